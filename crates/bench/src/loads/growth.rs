//! Many small files in directories of a thousand, with the same operation on each in turn; and the memory of a process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use dlio_fs::error::{Context, Error, Result};
use dlio_fs::path::Show as _;
use procfs::process::Process;

use super::StopFlag;
use super::caches::write_back;
use super::data::numbered;

/// The content of each file. File systems that store a few bytes in the inode need no block for it.
pub(crate) const LINE: &[u8] = b"one line of a small file\n";
/// Files per directory.
pub(crate) const PER_DIR: usize = 1000;

/// A number of files below a directory.
#[derive(Clone, Debug)]
pub(crate) struct Many {
    top: PathBuf,
    count: usize,
}

impl Many {
    /// Creates nothing yet.
    pub(crate) fn new(top: PathBuf, count: usize) -> Many {
        Many { top, count }
    }

    pub(crate) fn top(&self) -> &Path {
        &self.top
    }

    pub(crate) fn make_dirs(&self) -> Result<()> {
        let dirs = (0..self.count.div_ceil(PER_DIR)).map(|number| numbered(&self.top, number));
        dirs.into_iter().try_for_each(|dir| fs::create_dir_all(&dir).at("mkdir", dir.shown()))
    }

    /// Creates, writes and closes each; returns seconds per file.
    pub(crate) fn create(&self, stop: &StopFlag) -> Result<f64> {
        self.each(|path| fs::write(path, LINE).at("create", path.shown()), stop)
    }

    /// Stats each by its path; returns seconds per file.
    pub(crate) fn stat(&self, stop: &StopFlag) -> Result<f64> {
        self.each(|path| path.symlink_metadata().map(drop).at("stat", path.shown()), stop)
    }

    /// Opens, reads and closes each; returns seconds per file. Errors: the content is wrong.
    pub(crate) fn read(&self, stop: &StopFlag) -> Result<f64> {
        let read = |path: &Path| match fs::read(path).at("read", path.shown())? {
            content if content == LINE => Ok(()),
            _ => Err(Error::refused(format!("{} is not what was written", path.shown()), "report this")),
        };
        self.each(read, stop)
    }

    fn each(&self, one: impl Fn(&Path) -> Result<()>, stop: &StopFlag) -> Result<f64> {
        let begun = Instant::now();
        for number in 0..self.count {
            stop.check()?;
            one(&numbered(&numbered(&self.top, number / PER_DIR), number))?;
        }
        Ok(begun.elapsed().as_secs_f64() / self.count.max(1) as f64)
    }
}

/// The bytes that the file system of a directory uses for one such file, besides its inode and its name.
pub(crate) fn footprint(dir: &Path) -> Result<u64> {
    let path = dir.join("footprint");
    fs::write(&path, LINE).at("create", path.shown())?;
    write_back(dir)?;
    let blocks = path.metadata().at("stat", path.shown())?.blocks();
    fs::remove_file(&path).at("unlink", path.shown())?;
    Ok(blocks * 512)
}

/// Removes a directory with everything below it; does nothing if it does not exist.
pub(crate) fn remove(dir: &Path, stop: &StopFlag) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).at("list", dir.shown())? {
        stop.check()?;
        let entry = entry.at("list", dir.shown())?;
        let path = entry.path();
        match entry.file_type().at("stat", path.shown())?.is_dir() {
            true => remove(&path, stop)?,
            false => fs::remove_file(&path).at("unlink", path.shown())?,
        }
    }
    fs::remove_dir(dir).at("rmdir", dir.shown())
}

/// The anonymous memory of a process in bytes, without mapped files.
pub(crate) fn memory(pid: u32) -> Result<u64> {
    let status = Process::new(pid.cast_signed()).and_then(|process| process.status()).map_err(io::Error::other);
    let gone = || Error::refused(format!("process {pid} has no memory: it has ended"), "see its log");
    status.at("read", format!("/proc/{pid}/status"))?.rssanon.map(|kib| kib << 10).ok_or_else(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_looked_at_read_and_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (many, stop) = (Many::new(dir.path().join("many"), 2_005), StopFlag::default());
        many.make_dirs().expect("made");
        let begun = Instant::now();
        let all = [many.create(&stop), many.stat(&stop), many.read(&stop)].map(|each| each.expect("done"));
        let whole = begun.elapsed().as_secs_f64();
        assert!(all.iter().map(|each| each * 2_005.0).sum::<f64>() <= whole);
        let counts = (0..3).map(|number| fs::read_dir(numbered(many.top(), number)).expect("listed").count());
        assert_eq!(counts.collect::<Vec<_>>(), [1_000, 1_000, 5]);
        fs::write(numbered(&numbered(many.top(), 2), 2_004), "other").expect("written");
        assert!(many.read(&stop).is_err());
        remove(many.top(), &stop).expect("removed");
        remove(many.top(), &stop).expect("gone already");
        assert!(!many.top().exists() && many.stat(&stop).is_err());
    }

    #[test]
    fn a_stop_is_obeyed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (many, stop) = (Many::new(dir.path().join("many"), 1), StopFlag::default());
        many.make_dirs().expect("made");
        stop.set();
        assert!(many.create(&stop).is_err() && remove(many.top(), &stop).is_err());
    }

    #[test]
    fn what_a_file_takes_is_less_than_a_page_or_two() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(footprint(dir.path()).expect("tried") <= 64 << 10);
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
    }

    #[test]
    fn memory_grows_with_what_is_touched() {
        let before = memory(std::process::id()).expect("our own");
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = memory(std::process::id()).expect("our own");
        assert!(after >= before + (32 << 20), "{before} {after} {}", held.len());
        assert!(memory(u32::MAX).is_err());
    }
}
