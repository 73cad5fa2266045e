//! Names and small files: what a file system costs besides moving bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;

use super::StopFlag;
use super::data::{Data, numbered};

/// The bytes written to each new file.
pub(crate) const CREATED: usize = 4096;
/// Files per directory for timed metadata operations.
const PER_DIR: usize = 500;
/// Files per directory in a tree to list.
const PER_LISTED: usize = 1000;

/// Creates, stats, renames and removes `entries` files; returns each operation and its seconds per file. Leaves only
/// the directories.
pub(crate) fn metadata(
    dir: &Path,
    entries: usize,
    data: &mut Data,
    stop: &StopFlag,
) -> Result<Vec<(&'static str, f64)>> {
    let (before, after) = (paths(dir, entries, "a")?, paths(dir, entries, "b")?);
    let create = |path: &PathBuf| fs::write(path, data.piece(CREATED)).at("create", path.shown());
    let stat = |path: &PathBuf| path.symlink_metadata().map(drop).at("stat", path.shown());
    let renamed: Vec<_> = before.iter().zip(&after).collect();
    let rename = |(from, to): &(&PathBuf, &PathBuf)| fs::rename(from, to).at("rename", from.shown());
    let unlink = |path: &PathBuf| fs::remove_file(path).at("unlink", path.shown());
    Ok(vec![
        ("create and write 4 KiB", each(&before, create, stop)?),
        ("stat, first", each(&before, stat, stop)?),
        ("stat, again", each(&before, stat, stop)?),
        ("rename", each(&renamed, rename, stop)?),
        ("unlink", each(&after, unlink, stop)?),
    ])
}

/// Creates files, 500 to a directory, and goes on where it was.
#[derive(Debug)]
pub(crate) struct Creator {
    dir: PathBuf,
    next: usize,
}

impl Creator {
    /// Creates nothing yet.
    pub(crate) fn new(dir: PathBuf) -> Creator {
        Creator { dir, next: 0 }
    }

    /// The file with this number.
    pub(crate) fn path(&self, number: usize) -> PathBuf {
        numbered(&numbered(&self.dir, number / PER_DIR), number)
    }

    /// Creates, writes and closes the next `count` files; returns seconds per file.
    pub(crate) fn create(&mut self, count: usize, data: &mut Data, stop: &StopFlag) -> Result<f64> {
        let paths: Vec<_> = (self.next..self.next + count).map(|number| self.path(number)).collect();
        // Before the time is taken.
        for number in self.next / PER_DIR..(self.next + count).div_ceil(PER_DIR) {
            let dir = numbered(&self.dir, number);
            fs::create_dir_all(&dir).at("mkdir", dir.shown())?;
        }
        self.next += count;
        each(&paths, |path| fs::write(path, data.piece(CREATED)).at("create", path.shown()), stop)
    }
}

/// `count` paths, in directories that are created.
fn paths(dir: &Path, count: usize, name: &str) -> Result<Vec<PathBuf>> {
    let dirs: Vec<_> = (0..count.div_ceil(PER_DIR)).map(|number| numbered(dir, number)).collect();
    dirs.iter().try_for_each(fs::create_dir_all).at("mkdir", dir.shown())?;
    Ok((0..count).map(|number| dirs[number / PER_DIR].join(format!("{name}{number:06}"))).collect())
}

/// Seconds per item.
fn each<T>(all: &[T], mut one: impl FnMut(&T) -> Result<()>, stop: &StopFlag) -> Result<f64> {
    let begun = Instant::now();
    for item in all {
        stop.check()?;
        one(item)?;
    }
    Ok(begun.elapsed().as_secs_f64() / all.len().max(1) as f64)
}

/// Makes the directories to list: a tree of `files` empty files, and one directory with as many.
pub(crate) fn plant(dir: &Path, files: usize, stop: &StopFlag) -> Result<()> {
    let (tree, flat) = (tree(dir), flat(dir));
    for number in 0..files {
        stop.check()?;
        let inner = numbered(&tree, number / PER_LISTED);
        if number % PER_LISTED == 0 {
            fs::create_dir_all(&inner).at("mkdir", inner.shown())?;
        }
        make(&numbered(&inner, number))?;
    }
    fs::create_dir_all(&flat).at("mkdir", flat.shown())?;
    for number in 0..files {
        stop.check()?;
        make(&numbered(&flat, number))?;
    }
    Ok(())
}

fn make(path: &Path) -> Result<()> {
    fs::File::create(path).map(drop).at("create", path.shown())
}

pub(crate) fn tree(dir: &Path) -> PathBuf {
    dir.join("tree")
}

pub(crate) fn flat(dir: &Path) -> PathBuf {
    dir.join("flat")
}

/// Walks a tree and stats each file, as find(1) does with `-size`: it reads all names of a directory first and then
/// stats one file after another, when the kernel no longer requests attributes along with the listing. Returns seconds
/// per file.
pub(crate) fn walk(dir: &Path, stop: &StopFlag) -> Result<f64> {
    let (begun, mut files, mut left) = (Instant::now(), 0u64, vec![dir.to_path_buf()]);
    while let Some(dir) = left.pop() {
        let entries =
            fs::read_dir(&dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>).at("list", dir.shown())?;
        for entry in entries {
            stop.check()?;
            let meta = entry.metadata().at("stat", entry.path().shown())?;
            match meta.is_dir() {
                true => left.push(entry.path()),
                false => files += 1,
            }
        }
    }
    Ok(begun.elapsed().as_secs_f64() / files.max(1) as f64)
}

/// Lists one directory, as `ls -U` does; returns seconds per entry.
pub(crate) fn list(dir: &Path, stop: &StopFlag) -> Result<f64> {
    let (begun, mut entries) = (Instant::now(), 0u64);
    for entry in fs::read_dir(dir).at("list", dir.shown())? {
        stop.check()?;
        entry.at("list", dir.shown())?;
        entries += 1;
    }
    Ok(begun.elapsed().as_secs_f64() / entries.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_leaves_no_file_and_times_are_for_each() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut data, stop) = (Data::new(CREATED), StopFlag::default());
        let begun = Instant::now();
        let figures = metadata(dir.path(), 1_200, &mut data, &stop).expect("done");
        let whole = begun.elapsed().as_secs_f64();
        assert_eq!(figures.len(), 5);
        assert!(figures.iter().map(|(_, seconds)| seconds * 1_200.0).sum::<f64>() <= whole);
        let dirs: Vec<_> = fs::read_dir(dir.path()).expect("listed").map(|entry| entry.expect("one").path()).collect();
        assert_eq!(dirs.len(), 3);
        assert!(dirs.iter().all(|dir| fs::read_dir(dir).expect("listed").count() == 0));
    }

    #[test]
    fn files_are_created_where_the_last_ones_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut data, stop) = (Data::new(CREATED), StopFlag::default());
        let mut creator = Creator::new(dir.path().join("new"));
        for count in [499, 2, 1_000] {
            assert!(creator.create(count, &mut data, &stop).expect("created") > 0.0);
        }
        assert!((0..1_501).all(|number| creator.path(number).metadata().is_ok_and(|file| file.len() == 4_096)));
        assert!(!creator.path(1_501).exists());
        stop.set();
        assert!(creator.create(1, &mut data, &stop).is_err());
    }

    #[test]
    fn what_is_planted_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let stop = StopFlag::default();
        plant(dir.path(), 2_500, &stop).expect("made");
        let count = |dir: &Path| fs::read_dir(dir).expect("listed").count();
        assert_eq!((count(&tree(dir.path())), count(&flat(dir.path()))), (3, 2_500));
        assert_eq!(count(&numbered(&tree(dir.path()), 2)), 500);
        assert!(walk(&tree(dir.path()), &stop).expect("walked") > 0.0);
        assert!(list(&flat(dir.path()), &stop).expect("listed") > 0.0);
        stop.set();
        assert!(plant(dir.path(), 1, &stop).is_err() && walk(dir.path(), &stop).is_err());
    }
}
