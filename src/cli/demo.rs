//! `dlio-fs demo`: two temporary tiers and a mount, checkpoints written as frameworks do, the drain, and the slow
//! copies verified after the mount is gone.
//!
//! Leaves nothing behind, even if a step fails or on Ctrl-C.

mod frameworks;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use clap::Args;
use frameworks::{Expected, TrainingState};

use super::drain::{self, DrainScope};
use super::outcome::{Exit, Failure, Outcome, say};
use super::progress::ProgressDisplay;
use super::sandbox::{self, Mount, Sandbox};
use super::{client, umount};
use crate::error::{Context, Error};
use crate::mount::{self, PRIVATE_DIR};
use crate::path::Show as _;

/// Show dlio-fs in a minute: two temporary tiers, a mount, checkpoints, the drain, and the verified copies
///
/// Needs /dev/fuse, and root or fusermount3. Writes about 150 MiB to a temporary directory and removes it again.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Where to put the temporary tiers; default: the system's directory for temporary files
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn run(args: &DemoArgs) -> Outcome {
    mount::open_device()?;
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    match sandbox::run(mount::this_program()?, move |sandbox| show(sandbox, &parent))? {
        None => Ok(Exit::Interrupted),
        Some(()) => {
            say("Nothing is left behind. With your own directories:")?;
            say("   dlio-fs mount MOUNTPOINT --fast DIR --slow DIR")?;
            Ok(Exit::Done)
        }
    }
}

fn show(sandbox: &Sandbox, parent: &Path) -> Result<(), Failure> {
    let root = sandbox.dir(parent, "dlio-fs-demo-", "name a directory that you may write to with --dir")?;
    let mount = Mount::inside(&root);
    say(format_args!("A fast tier, a slow tier and a mount over both, in {}", root.shown()))?;
    say("(on one disk here, so the figures say nothing about yours):")?;
    say("   dlio-fs mount mnt --fast fast --slow slow\n")?;
    sandbox.mount(&mount, &[])?;

    say("1. Training writes checkpoints to the mount; they land on the fast tier.")?;
    let expected = train(sandbox, &mount.mountpoint)?;
    say(format_args!("   {}\n", client::first_line(&mount.mountpoint)?))?;

    say("2. They are copied to the slow tier and published in the order of writing.")?;
    let begun = Instant::now();
    let progress = ProgressDisplay::watch(&mount.mountpoint);
    drain::wait(&DrainScope::whole(mount.mountpoint.clone()), None)?;
    drop(progress);
    say(format_args!("   done in {:.1} s\n", begun.elapsed().as_secs_f64()))?;

    say("3. The mount's own statistics: cat mnt/.dlio/stats")?;
    let stats = client::read(&mount.mountpoint, "stats")?;
    // The table of operations is too long for a screen.
    let shown = stats.lines().filter(|line| !line.is_empty()).take_while(|line| !line.starts_with("operation"));
    shown.map(|line| format!("   {line}")).try_for_each(say)?;

    say("\n4. After unmounting, the slow tier alone holds, byte for byte:")?;
    match umount::leave(&mount.mountpoint)? {
        Exit::Done => verify(&mount.slow, &expected),
        _ => Err(wrong("files are left on the fast tier after the drain".to_owned())),
    }
}

/// Saves as TensorFlow and Keras do, and prints how fast the fast tier absorbed it.
fn train(sandbox: &Sandbox, mountpoint: &Path) -> Result<Expected, Failure> {
    say("   TensorFlow: ckpt-N under temporary names, renamed, then the manifest;")?;
    say("               only the newest two are kept")?;
    say("   Keras: model.keras, overwritten in place each epoch")?;
    let (mut expected, mut bytes, mut took) = (Expected::new(), 0, Duration::ZERO);
    for number in 1..=frameworks::EPOCHS {
        sandbox.stop().check()?;
        let epoch = TrainingState::new(number);
        let begun = Instant::now();
        epoch.save_as_tensorflow(mountpoint)?;
        epoch.save_as_keras(mountpoint)?;
        took += begun.elapsed();
        bytes += epoch.bytes();
        epoch.expect(&mut expected);
    }
    let speed = bytes as f64 / took.as_secs_f64().max(1e-6);
    say(format_args!("   {} in {:.2} s, {}/s", ByteSize(bytes), took.as_secs_f64(), ByteSize(speed as u64)))?;
    Ok(expected)
}

/// Compares the slow tree with what was written: the same names, the same bytes, nothing else.
fn verify(slow: &Path, expected: &Expected) -> Result<(), Failure> {
    let mut found = BTreeMap::new();
    collect(slow, Path::new(""), &mut found)?;
    for (path, bytes) in expected {
        match found.remove(path) {
            Some(copy) if copy == *bytes => {
                say(format_args!("   {:<32} {:>10}  identical", path.shown(), ByteSize(bytes.len() as u64)))?;
            }
            Some(_) => return Err(wrong(format!("{} differs on the slow tier", path.shown()))),
            None => return Err(wrong(format!("{} is missing on the slow tier", path.shown()))),
        }
    }
    match found.keys().next() {
        None => say(""),
        Some(path) => Err(wrong(format!("{} is on the slow tier but was deleted", path.shown()))),
    }
}

fn wrong(what: String) -> Failure {
    Error::refused(what, "this must not happen: please report it").into()
}

/// All regular files below, except our own.
fn collect(root: &Path, below: &Path, into: &mut Expected) -> Result<(), Error> {
    let dir = root.join(below);
    for entry in fs::read_dir(&dir).at("list", dir.shown())? {
        let entry = entry.at("list", dir.shown())?;
        let path = below.join(entry.file_name());
        if path == Path::new(PRIVATE_DIR) {
            continue;
        }
        match entry.file_type().at("stat", path.shown())?.is_dir() {
            true => collect(root, &path, into)?,
            false => drop(into.insert(path, fs::read(entry.path()).at("read", entry.path().shown())?)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verification_notices_a_difference_a_loss_and_a_leftover() {
        let slow = tempfile::tempdir().expect("a temporary directory");
        let put = |name: &str, text: &str| fs::write(slow.path().join(name), text).expect("write");
        fs::create_dir(slow.path().join(PRIVATE_DIR)).expect("mkdir");
        put(".dlio-fs/id", "ours");
        fs::create_dir(slow.path().join("d")).expect("mkdir");
        put("d/a", "1");
        let expected = Expected::from([(PathBuf::from("d/a"), b"1".to_vec())]);
        verify(slow.path(), &expected).expect("equal");
        let failure = |why| verify(slow.path(), &expected).expect_err(why).message;
        put("d/a", "2");
        assert!(failure("another byte").contains("d/a differs"));
        put("d/a", "1");
        put("b", "1");
        assert!(failure("one more").contains("b is on the slow tier but"));
        fs::remove_file(slow.path().join("d/a")).expect("rm");
        assert!(failure("one less").contains("d/a is missing"));
    }
}
