//! Empty and small files by several ranks at once: the phases of mdtest as IO500 names and runs them (`-F -N 1`, easy with `-u -L`, hard
//! with `-w 3901 -e 3901`), by a driver of our own. Ranks are threads, a number of files takes the place of a number of seconds, and
//! what is found is no IO500 result.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;

use super::StopFlag;
use super::data::Data;
use super::ranks::at_once;

/// Bytes of a file of the hard phases.
pub(crate) const HARD: usize = 3901;

/// What all ranks do with their files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataLoad {
    pub(crate) ranks: usize,
    /// Of each rank, easy ones and as many hard ones.
    pub(crate) files: usize,
}

/// A phase, by IO500's name: easy files are empty, each rank's in a directory of its own; hard ones have 3901 bytes, all in one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MdtestPhase {
    EasyWrite,
    HardWrite,
    EasyStat,
    HardStat,
    EasyDelete,
    HardRead,
    HardDelete,
}

impl MdtestPhase {
    /// In the order of IO500.
    pub(crate) const ALL: [MdtestPhase; 7] = [
        MdtestPhase::EasyWrite,
        MdtestPhase::HardWrite,
        MdtestPhase::EasyStat,
        MdtestPhase::HardStat,
        MdtestPhase::EasyDelete,
        MdtestPhase::HardRead,
        MdtestPhase::HardDelete,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            MdtestPhase::EasyWrite => "mdtest-easy-write",
            MdtestPhase::HardWrite => "mdtest-hard-write",
            MdtestPhase::EasyStat => "mdtest-easy-stat",
            MdtestPhase::HardStat => "mdtest-hard-stat",
            MdtestPhase::EasyDelete => "mdtest-easy-delete",
            MdtestPhase::HardRead => "mdtest-hard-read",
            MdtestPhase::HardDelete => "mdtest-hard-delete",
        }
    }

    fn is_easy(self) -> bool {
        matches!(self, MdtestPhase::EasyWrite | MdtestPhase::EasyStat | MdtestPhase::EasyDelete)
    }

    /// By how many a rank is before the one whose files it takes: as mdtest has it with `-N 1`.
    fn shift(self) -> usize {
        match self {
            MdtestPhase::EasyWrite | MdtestPhase::HardWrite => 0,
            MdtestPhase::EasyStat | MdtestPhase::HardStat => 1,
            MdtestPhase::HardRead => 2,
            MdtestPhase::EasyDelete | MdtestPhase::HardDelete => 3,
        }
    }
}

impl MetadataLoad {
    /// Makes the directories of the ranks, and the one of all.
    pub(crate) fn make_dirs(&self, dir: &Path) -> Result<()> {
        self.dirs(dir).iter().try_for_each(|dir| fs::create_dir(dir).at("mkdir", dir.shown()))
    }

    /// Removes them. An error: a file is left.
    pub(crate) fn remove_dirs(&self, dir: &Path) -> Result<()> {
        self.dirs(dir).iter().try_for_each(|dir| fs::remove_dir(dir).at("rmdir", dir.shown()))
    }

    /// One phase, by all ranks from the same moment on; `data` has one item for each. Returns the operations a second of all of them,
    /// until the slowest one is done.
    pub(crate) fn run(&self, phase: MdtestPhase, dir: &Path, data: &mut [Data], stop: &StopFlag) -> Result<f64> {
        let seconds = at_once(data, |rank, data| {
            let of = (rank + phase.shift()) % self.ranks;
            (0..self.files).try_for_each(|number| {
                stop.check()?;
                operation(phase, &self.path(dir, phase.is_easy(), of, number), data)
            })
        })?;
        Ok((self.ranks * self.files) as f64 / seconds)
    }

    fn dirs(&self, dir: &Path) -> Vec<PathBuf> {
        (0..self.ranks).map(|rank| easy_dir(dir, rank)).chain([hard_dir(dir)]).collect()
    }

    fn path(&self, dir: &Path, is_easy: bool, rank: usize, number: usize) -> PathBuf {
        let inner = if is_easy { easy_dir(dir, rank) } else { hard_dir(dir) };
        inner.join(format!("file.mdtest.{rank}.{number}"))
    }
}

fn easy_dir(dir: &Path, rank: usize) -> PathBuf {
    dir.join(format!("mdtest-easy.{rank}"))
}

fn hard_dir(dir: &Path) -> PathBuf {
    dir.join("mdtest-hard")
}

/// What a phase does with one file.
fn operation(phase: MdtestPhase, path: &Path, data: &mut Data) -> Result<()> {
    match phase {
        MdtestPhase::EasyWrite => File::create_new(path).map(drop).at("create", path.shown()),
        MdtestPhase::HardWrite => {
            let mut file = File::create_new(path).at("create", path.shown())?;
            file.write_all(data.piece(HARD)).at("write", path.shown())
        }
        MdtestPhase::EasyStat | MdtestPhase::HardStat => path.metadata().map(drop).at("stat", path.shown()),
        MdtestPhase::HardRead => read(path),
        MdtestPhase::EasyDelete | MdtestPhase::HardDelete => fs::remove_file(path).at("unlink", path.shown()),
    }
}

/// With one read, as mdtest does.
fn read(path: &Path) -> Result<()> {
    let mut buffer = [0; HARD];
    let mut file = File::open(path).at("open", path.shown())?;
    file.read_exact(&mut buffer).at("read", path.shown())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: MetadataLoad = MetadataLoad { ranks: 3, files: 5 };

    fn data() -> Vec<Data> {
        (0..LOAD.ranks).map(|_| Data::new(HARD)).collect()
    }

    /// The sizes of all files below.
    fn sizes(dir: &Path) -> Vec<u64> {
        let entries = fs::read_dir(dir).expect("listed").map(|entry| entry.expect("an entry").path());
        entries
            .flat_map(|path| if path.is_dir() { sizes(&path) } else { vec![path.metadata().expect("stat").len()] })
            .collect()
    }

    #[test]
    fn all_files_are_there_and_the_phases_leave_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut data, stop) = (data(), StopFlag::default());
        LOAD.make_dirs(dir.path()).expect("made");
        let mut counts = Vec::new();
        for phase in MdtestPhase::ALL {
            assert!(LOAD.run(phase, dir.path(), &mut data, &stop).expect("done") > 0.0, "{phase:?}");
            let found = sizes(dir.path());
            counts.push([0, HARD as u64].map(|size| found.iter().filter(|found| **found == size).count()));
            assert_eq!(counts.last().map(|both| both.iter().sum()), Some(found.len()), "of two sizes");
        }
        assert_eq!(counts, [[15, 0], [15, 15], [15, 15], [15, 15], [0, 15], [0, 15], [0, 0]]);
        LOAD.remove_dirs(dir.path()).expect("they are empty");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
    }

    #[test]
    fn easy_files_are_in_a_directory_of_each_rank_and_hard_ones_in_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut data, stop) = (data(), StopFlag::default());
        LOAD.make_dirs(dir.path()).expect("made");
        for phase in [MdtestPhase::EasyWrite, MdtestPhase::HardWrite] {
            LOAD.run(phase, dir.path(), &mut data, &stop).expect("written");
        }
        let counts: Vec<usize> = LOAD.dirs(dir.path()).iter().map(|dir| sizes(dir).len()).collect();
        assert_eq!(counts, [5, 5, 5, 15]);
        assert!(LOAD.remove_dirs(dir.path()).is_err(), "files are left");
    }

    /// Else the rank that made a file would find what it knows of it.
    #[test]
    fn a_rank_takes_files_that_another_one_made() {
        let shifts = MdtestPhase::ALL.map(|phase| phase.shift());
        assert_eq!(shifts, [0, 0, 1, 1, 3, 2, 3]);
        let dir = tempfile::tempdir().expect("a directory");
        let (mut data, stop) = (data(), StopFlag::default());
        LOAD.make_dirs(dir.path()).expect("made");
        LOAD.run(MdtestPhase::EasyWrite, dir.path(), &mut data, &stop).expect("written");
        let missing = LOAD.path(dir.path(), true, 2, 4);
        fs::remove_file(&missing).expect("removed");
        let error = LOAD.run(MdtestPhase::EasyStat, dir.path(), &mut data, &stop).expect_err("it is missing");
        assert!(error.to_string().contains("file.mdtest.2.4"), "{error}");
    }

    #[test]
    fn a_short_file_and_a_stop_are_errors() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut data, stop) = (data(), StopFlag::default());
        LOAD.make_dirs(dir.path()).expect("made");
        LOAD.run(MdtestPhase::HardWrite, dir.path(), &mut data, &stop).expect("written");
        fs::write(LOAD.path(dir.path(), false, 0, 0), "short").expect("written");
        assert!(LOAD.run(MdtestPhase::HardRead, dir.path(), &mut data, &stop).is_err());
        stop.set();
        assert!(LOAD.run(MdtestPhase::HardStat, dir.path(), &mut data, &stop).is_err());
    }
}
