//! Consecutive checkpoints, each one file, as TensorFlow's `Saver` writes its data: under a temporary name, in pieces
//! of 8 MiB, then renamed. ("Characterizing Deep-Learning I/O Workloads in TensorFlow", Chien et al. 2018, 3.3 and Fig.
//! 9.)

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;

use super::StopFlag;
use super::data::{Data, sync_dir};

/// The size of TensorFlow's writes.
pub(crate) const PIECE: usize = 8 << 20;

/// The checkpoints that a training job saves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckpointLoad {
    pub(crate) count: usize,
    /// Bytes of one checkpoint.
    pub(crate) size: u64,
    /// The computing time between two of them.
    pub(crate) interval: Duration,
    pub(crate) fsync: bool,
}

impl CheckpointLoad {
    pub(crate) fn bytes(&self) -> u64 {
        (self.count as u64).saturating_mul(self.size)
    }

    /// Writes all of them to a directory; returns the seconds in which the application waited. `tell` gets each event
    /// when it happens.
    pub(crate) fn write(&self, dir: &Path, data: &mut Data, stop: &StopFlag, tell: impl Fn(String)) -> Result<f64> {
        let mut blocked = 0.0;
        for number in 1..=self.count {
            if number > 1 {
                pause(self.interval, stop)?;
            }
            tell(format!("checkpoint {number} begins"));
            let begun = Instant::now();
            self.save(dir, number, data, stop)?;
            blocked += begun.elapsed().as_secs_f64();
            tell(format!("checkpoint {number} ends"));
        }
        Ok(blocked)
    }

    /// Saves the checkpoint with this number.
    pub(crate) fn save(&self, dir: &Path, number: usize, data: &mut Data, stop: &StopFlag) -> Result<()> {
        let (path, temporary) = (saved(dir, number), dir.join(format!("ckpt-{number}.tempstate")));
        let mut file = File::create(&temporary).at("create", temporary.shown())?;
        data.write(&mut file, &temporary, self.size, PIECE, stop)?;
        if self.fsync {
            file.sync_all().at("fsync", temporary.shown())?;
        }
        drop(file);
        fs::rename(&temporary, &path).at("rename", temporary.shown())?;
        if self.fsync { sync_dir(dir) } else { Ok(()) }
    }

    /// Waits until each file and its name are durable.
    pub(crate) fn sync_files(&self, dir: &Path) -> Result<()> {
        for path in (1..=self.count).map(|number| saved(dir, number)) {
            File::open(&path).and_then(|file| file.sync_all()).at("fsync", path.shown())?;
        }
        sync_dir(dir)
    }
}

/// Where the checkpoint with this number is once it is whole.
pub(crate) fn saved(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("ckpt-{number}"))
}

/// Stands in for computing: it does nothing for a while.
pub(super) fn pause(time: Duration, stop: &StopFlag) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(50);
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        stop.check()?;
        std::thread::sleep(left.min(LOOK));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn all_are_there_under_their_names_and_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let load = CheckpointLoad { count: 3, size: 100_000, interval: Duration::from_millis(20), fsync: true };
        let (told, begun) = (RefCell::new(Vec::new()), Instant::now());
        let blocked = load
            .write(dir.path(), &mut Data::new(PIECE), &StopFlag::default(), |what| told.borrow_mut().push(what))
            .expect("written");
        load.sync_files(dir.path()).expect("synced");
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).expect("listed").map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["ckpt-1", "ckpt-2", "ckpt-3"]);
        assert!(names.iter().all(|name| fs::metadata(dir.path().join(name)).expect("stat").len() == 100_000));
        assert_eq!((told.borrow().len(), load.bytes()), (6, 300_000));
        assert!(blocked + 0.04 <= begun.elapsed().as_secs_f64(), "the application does not wait while it computes");
    }
}
