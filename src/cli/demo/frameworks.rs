//! How frameworks write checkpoints: the same calls on the same kinds of names, with random bytes for weights.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::error::{Context, Result};
use crate::path::Show as _;

/// Files that the demonstration wrote and did not delete: path below the mount, and bytes.
pub(super) type Expected = BTreeMap<PathBuf, Vec<u8>>;

pub(super) const EPOCHS: u64 = 4;
/// Bytes of weights in one checkpoint.
const WEIGHTS: usize = 24 << 20;
const MODEL: usize = 12 << 20;
/// TensorFlow writes its data in pieces of this size.
const PIECE: usize = 8 << 20;
/// `max_to_keep` of the checkpoint manager.
const KEEP: u64 = 2;

/// The state of training before a save.
pub(super) struct TrainingState {
    number: u64,
    data: Vec<u8>,
    index: Vec<u8>,
    model: Vec<u8>,
}

impl TrainingState {
    pub(super) fn new(number: u64) -> Self {
        let mut random = StdRng::seed_from_u64(number);
        let mut bytes = |len| {
            let mut bytes = vec![0; len];
            random.fill_bytes(&mut bytes);
            bytes
        };
        TrainingState { number, data: bytes(WEIGHTS), index: bytes(906), model: bytes(MODEL) }
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.data.len() + self.index.len() + self.model.len()) as u64
    }

    /// One save of TensorFlow's CheckpointManager. Everything but the index is written under a temporary
    /// name first; the manifest comes last, and only then is the oldest checkpoint deleted.
    pub(super) fn save_as_tensorflow(&self, dir: &Path) -> Result<()> {
        let temporary = dir.join(format!("ckpt-{}_temp", self.number));
        fs::create_dir(&temporary).at("mkdir", temporary.shown())?;
        let part = |suffix: &str| temporary.join(format!("part-00000-of-00001.{suffix}"));
        write(&part("data-00000-of-00001.tempstate7"), &self.data)?;
        rename(&part("data-00000-of-00001.tempstate7"), &part("data-00000-of-00001"))?;
        write(&part("index.tempstate7"), &self.index)?;
        rename(&part("index.tempstate7"), &part("index"))?;
        rename(&part("data-00000-of-00001"), &dir.join(data_name(self.number)))?;
        write(&dir.join(index_name(self.number)), &self.index)?;
        remove(&part("index"))?;
        fs::remove_dir(&temporary).at("rmdir", temporary.shown())?;
        write(&dir.join("checkpoint.tmp0123456789abcdef"), manifest(self.number).as_bytes())?;
        rename(&dir.join("checkpoint.tmp0123456789abcdef"), &dir.join("checkpoint"))?;
        match self.number.checked_sub(KEEP).filter(|old| *old > 0) {
            Some(old) => remove(&dir.join(index_name(old))).and_then(|()| remove(&dir.join(data_name(old)))),
            None => Ok(()),
        }
    }

    /// Keras's ModelCheckpoint: the same file truncated and written again each epoch.
    pub(super) fn save_as_keras(&self, dir: &Path) -> Result<()> {
        write(&dir.join("model.keras"), &self.model)
    }

    /// The files that must exist after this epoch and those before it were saved.
    pub(super) fn expect(self, expected: &mut Expected) {
        if let Some(old) = self.number.checked_sub(KEEP) {
            expected.remove(Path::new(&data_name(old)));
            expected.remove(Path::new(&index_name(old)));
        }
        expected.insert(data_name(self.number).into(), self.data);
        expected.insert(index_name(self.number).into(), self.index);
        expected.insert("checkpoint".into(), manifest(self.number).into_bytes());
        expected.insert("model.keras".into(), self.model);
    }
}

fn data_name(epoch: u64) -> String {
    format!("ckpt-{epoch}.data-00000-of-00001")
}

fn index_name(epoch: u64) -> String {
    format!("ckpt-{epoch}.index")
}

/// The small file that names the newest checkpoint, which must exist whenever this file is read.
fn manifest(epoch: u64) -> String {
    let mut text = format!("model_checkpoint_path: \"ckpt-{epoch}\"\n");
    for kept in epoch.saturating_sub(KEEP - 1).max(1)..=epoch {
        text.push_str(&format!("all_model_checkpoint_paths: \"ckpt-{kept}\"\n"));
    }
    text
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).at("create", path.shown())?;
    bytes.chunks(PIECE).try_for_each(|piece| file.write_all(piece)).at("write", path.shown())
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).at("rename", from.shown())
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).at("unlink", path.shown())
}
