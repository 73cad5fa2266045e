//! Files copied by `cp -a`: one that copies a directory, or several side by side.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dlio_fs::error::{Context, Error, Result};
use dlio_fs::path::Show as _;

use super::StopFlag;
use super::data::{Data, numbered};
use super::reader::join;

/// The size of a write when a source is made.
const PIECE: usize = 1 << 20;
/// Files per command: their names must fit its arguments.
const NAMES_MAX: usize = 1000;

/// A directory of files of one size, to be copied.
#[derive(Clone, Debug)]
pub(crate) struct CopySource {
    dir: PathBuf,
    count: usize,
}

impl CopySource {
    /// Makes a new directory with `count` files of `size` bytes.
    pub(crate) fn make(dir: PathBuf, count: usize, size: u64, data: &mut Data, stop: &StopFlag) -> Result<CopySource> {
        fs::create_dir(&dir).at("mkdir", dir.shown())?;
        for path in (0..count).map(|number| numbered(&dir, number)) {
            let mut file = File::create(&path).at("create", path.shown())?;
            data.write(&mut file, &path, size, PIECE, stop)?;
        }
        Ok(CopySource { dir, count })
    }

    /// The pieces that [`CopySource::make`] asks of its data.
    pub(crate) fn data() -> Data {
        Data::new(PIECE)
    }

    /// Copies the directory to `to`, which is made.
    pub(crate) fn copy(&self, to: &Path) -> Result<()> {
        run(Command::new("cp").arg("-a").arg("--").args([&self.dir, to]))
    }

    /// The same by several commands at once, with an equal share of the files each.
    pub(crate) fn copy_shared(&self, to: &Path, streams: usize) -> Result<()> {
        fs::create_dir(to).at("mkdir", to.shown())?;
        let share = |files: Range<usize>| {
            let names: Vec<_> = files.map(|number| numbered(Path::new(""), number)).collect();
            names.chunks(NAMES_MAX).try_for_each(|names| {
                run(Command::new("cp").current_dir(&self.dir).arg("-a").arg("-t").arg(to).arg("--").args(names))
            })
        };
        let shares = shares(self.count, streams);
        std::thread::scope(|scope| join(shares.into_iter().map(|files| scope.spawn(move || share(files))).collect()))
    }

    /// Copies the first file `copies` times into a new directory, by as many commands at once.
    pub(crate) fn multiply(&self, to: &Path, copies: usize) -> Result<()> {
        fs::create_dir(to).at("mkdir", to.shown())?;
        let one =
            |number| run(Command::new("cp").arg("-a").arg("--").args([numbered(&self.dir, 0), numbered(to, number)]));
        std::thread::scope(|scope| join((0..copies).map(|number| scope.spawn(move || one(number))).collect()))
    }
}

/// Consecutive parts of `0..count`, none larger than another by more than one.
fn shares(count: usize, parts: usize) -> Vec<Range<usize>> {
    (0..parts).map(|part| count * part / parts..count * (part + 1) / parts).collect()
}

/// It ends with this program's group: Ctrl-C in a terminal reaches both.
fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output().at("run", "cp")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let what = format!("cp: {}: {}", output.status, said.lines().next().unwrap_or_default());
    Err(Error::refused(what, "see whether there is room, and whether cp (coreutils) is installed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_in_one_share() {
        assert_eq!(shares(10, 3), [0..3, 3..6, 6..10]);
        assert_eq!(shares(2, 3), [0..0, 0..1, 1..2]);
        for (count, parts) in [(2_000, 8), (7, 8), (0, 8), (1_001, 1)] {
            let all: Vec<_> = shares(count, parts).into_iter().flatten().collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>(), "{count} in {parts}");
        }
    }

    #[test]
    fn copies_are_whole_whoever_makes_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let (mut data, stop) = (CopySource::data(), StopFlag::default());
        let source = CopySource::make(path("source"), 9, 5_000, &mut data, &stop).expect("made");
        source.copy(&path("one")).expect("copied");
        source.copy_shared(&path("four"), 4).expect("copied");
        source.copy_shared(&path("more"), 20).expect("copied, though some have nothing to do");
        source.multiply(&path("times"), 3).expect("copied");
        let content = |dir: &str, number| fs::read(numbered(&path(dir), number)).expect("read");
        for number in 0..9 {
            for dir in ["one", "four", "more"] {
                assert_eq!(content(dir, number), content("source", number), "{dir} {number}");
            }
        }
        let count = |dir| fs::read_dir(path(dir)).expect("listed").count();
        assert_eq!(["one", "four", "more", "times"].map(count), [9, 9, 9, 3]);
        assert_eq!(content("times", 2), content("source", 0));
        let refused = source.copy(Path::new("/no/such/directory/here")).expect_err("there is no place").to_string();
        assert!(refused.contains("/no/such/directory"), "{refused}");
        stop.set();
        assert!(CopySource::make(path("stopped"), 1, 1, &mut data, &stop).is_err());
    }
}
