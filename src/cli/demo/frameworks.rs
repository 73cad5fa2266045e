//! How frameworks write checkpoints: the same calls on the same kinds of names, with random bytes for weights.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Expected;
use crate::error::{Context, Result};

pub(super) const EPOCHS: u64 = 4;
/// Bytes of weights in one checkpoint.
const WEIGHTS: usize = 24 << 20;
const MODEL: usize = 12 << 20;
/// TensorFlow writes its data in pieces of this size.
const PIECE: usize = 8 << 20;
/// `max_to_keep` of the checkpoint manager.
const KEEP: u64 = 2;

/// One save of TensorFlow's CheckpointManager. Everything is written under a temporary name first, but for the index;
/// the manifest comes last, and only then the oldest checkpoint goes. Returns the bytes written.
pub(super) fn tensorflow(dir: &Path, epoch: u64, expected: &mut Expected) -> Result<u64> {
    let (data_name, index_name) = (format!("ckpt-{epoch}.data-00000-of-00001"), format!("ckpt-{epoch}.index"));
    let (data, index) = (random(epoch, WEIGHTS), random(epoch + 100, 906));
    let temporary = dir.join(format!("ckpt-{epoch}_temp"));
    fs::create_dir(&temporary).at("mkdir", temporary.display())?;
    let part = |suffix: &str| temporary.join(format!("part-00000-of-00001.{suffix}"));
    write(&part("data-00000-of-00001.tempstate7"), &data)?;
    rename(&part("data-00000-of-00001.tempstate7"), &part("data-00000-of-00001"))?;
    write(&part("index.tempstate7"), &index)?;
    rename(&part("index.tempstate7"), &part("index"))?;
    rename(&part("data-00000-of-00001"), &dir.join(&data_name))?;
    write(&dir.join(&index_name), &index)?;
    remove(&part("index"))?;
    fs::remove_dir(&temporary).at("rmdir", temporary.display())?;
    expected.insert(data_name.into(), data);
    expected.insert(index_name.into(), index);
    manifest(dir, epoch, expected)?;
    if let Some(old) = epoch.checked_sub(KEEP).filter(|old| *old > 0) {
        for name in [format!("ckpt-{old}.index"), format!("ckpt-{old}.data-00000-of-00001")] {
            remove(&dir.join(&name))?;
            expected.remove(Path::new(&name));
        }
    }
    Ok(WEIGHTS as u64)
}

/// The small file that names the newest checkpoint: what it names must be there, whenever it is looked at.
fn manifest(dir: &Path, epoch: u64, expected: &mut Expected) -> Result<()> {
    let mut text = format!("model_checkpoint_path: \"ckpt-{epoch}\"\n");
    for kept in epoch.saturating_sub(KEEP - 1).max(1)..=epoch {
        text.push_str(&format!("all_model_checkpoint_paths: \"ckpt-{kept}\"\n"));
    }
    let temporary = dir.join("checkpoint.tmp0123456789abcdef");
    write(&temporary, text.as_bytes())?;
    rename(&temporary, &dir.join("checkpoint"))?;
    expected.insert("checkpoint".into(), text.into_bytes());
    Ok(())
}

/// Keras's ModelCheckpoint: the same file truncated and written again each epoch.
pub(super) fn keras(dir: &Path, epoch: u64, expected: &mut Expected) -> Result<u64> {
    let model = random(epoch + 200, MODEL);
    write(&dir.join("model.keras"), &model)?;
    expected.insert("model.keras".into(), model);
    Ok(MODEL as u64)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).at("create", path.display())?;
    bytes.chunks(PIECE).try_for_each(|piece| file.write_all(piece)).at("write", path.display())
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).at("rename", from.display())
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).at("unlink", path.display())
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
