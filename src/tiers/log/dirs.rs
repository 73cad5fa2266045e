//! Paths in the log: a record names a file by the number of its directory and its name, so neither the record nor the
//! memory it takes grows with the depth of the tree. Pure.
//!
//! The line `CRC dir n=7 of=3 name=run` in front of the first record that needs it says that directory 7 is `run` in
//! directory 3; 0 is the mount's root. A later record in the same segment has `path=7/ckpt`, one in the root
//! `path=ckpt`. Each segment begins without directories, because segments are read and deleted one by one. A number
//! stands for a path, not for a node: after a rename, records have other paths, with other numbers. Numbers rise within
//! a segment, so none has two meanings. If a directory's line is lost, its records are not readable: damage like any
//! other.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::sync::Arc;

use crate::path::{DirNumbers, Name, escape_into};
use crate::tiers::disk::layout::{OURS, split};
use crate::tiers::sorted::beside;

/// A path from the mount's root. Paths read from a segment share their directories.
#[derive(Clone)]
pub(crate) enum LoggedPath {
    Whole(Vec<u8>),
    In(Arc<LoggedDir>, Box<[u8]>),
}

/// A directory below the root.
#[derive(Debug)]
pub(crate) struct LoggedDir {
    above: Option<Arc<LoggedDir>>,
    name: Box<[u8]>,
}

impl LoggedPath {
    pub(crate) fn bytes(&self) -> Cow<'_, [u8]> {
        let (dir, name) = match self {
            LoggedPath::Whole(path) => return Cow::Borrowed(path),
            LoggedPath::In(dir, name) => (dir, name),
        };
        let mut names: Vec<&[u8]> = vec![name];
        let mut at = Some(dir);
        while let Some(dir) = at {
            names.push(&dir.name);
            at = dir.above.as_ref();
        }
        names.reverse();
        Cow::Owned(names.join(&b'/'))
    }
}

impl From<Vec<u8>> for LoggedPath {
    fn from(path: Vec<u8>) -> Self {
        LoggedPath::Whole(path)
    }
}

impl PartialEq for LoggedPath {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (LoggedPath::In(a, name), LoggedPath::In(b, other)) if Arc::ptr_eq(a, b) => name == other,
            _ => self.bytes() == other.bytes(),
        }
    }
}

impl Eq for LoggedPath {}

impl Hash for LoggedPath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl fmt::Debug for LoggedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", crate::path::escape(&self.bytes()))
    }
}

/// Without recursion: a tree may be deeper than a stack.
impl Drop for LoggedDir {
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(dir) = above {
            above = Arc::into_inner(dir).and_then(|mut dir| dir.above.take());
        }
    }
}

/// The directories that a segment has, for writing. They take about as much memory as their lines on the disk.
#[derive(Debug, Default)]
pub(crate) struct DirsWritten {
    numbers: DirNumbers,
    /// The largest number so far.
    last: u64,
    /// The directory of the latest path, and its number: usually the next path has the same, or one below.
    latest: (Vec<u8>, u64),
    /// Those whose lines may not be in the segment yet, each by the number of the one above and its name.
    unwritten: Vec<(u64, Box<[u8]>)>,
}

impl DirsWritten {
    /// For a segment that has directories up to this number, of which nothing else is known.
    pub(crate) fn behind(last: u64) -> Self {
        DirsWritten { last, ..DirsWritten::default() }
    }

    /// Adds ` KEY=PATH` to `line`, and the directories that it needs to `out`.
    pub(crate) fn write(&mut self, key: &str, path: &[u8], line: &mut String, out: &mut String) {
        let (dir, name) = split(path);
        *line += &match self.number(dir, out) {
            0 => format!(" {key}="),
            dir => format!(" {key}={dir}/"),
        };
        escape_into(line, name);
    }

    fn number(&mut self, dir: &[u8], out: &mut String) -> u64 {
        let (mut names, mut number) = (dir, 0);
        if let Some(below) = dir.strip_prefix(&self.latest.0[..]).filter(|_| !self.latest.0.is_empty()) {
            match below.split_first() {
                None => return self.latest.1,
                Some((b'/', below)) => (names, number) = (below, self.latest.1),
                Some(_) => {}
            }
        }
        for name in names.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            number = self.number_in(number, name, out);
        }
        dir.clone_into(&mut self.latest.0);
        self.latest.1 = number;
        number
    }

    fn number_in(&mut self, above: u64, name: &[u8], out: &mut String) -> u64 {
        if let Some(number) = self.numbers.get(above, name) {
            return number;
        }
        self.last += 1;
        let mut line = format!("dir n={} of={above} name=", self.last);
        escape_into(&mut line, name);
        *out += &format!("{:08x} {line}\n", crc32fast::hash(line.as_bytes()));
        self.unwritten.push((above, name.into()));
        self.numbers.insert(above, name, self.last);
        self.last
    }

    /// What was added is in the segment.
    pub(crate) fn keep(&mut self) {
        self.unwritten.clear();
    }

    /// What was added since the last [`DirsWritten::keep`] did not get into the segment.
    pub(crate) fn undo(&mut self) {
        for (above, name) in mem::take(&mut self.unwritten) {
            self.numbers.remove(above, &name);
        }
        self.latest = (Vec::new(), 0);
    }
}

/// The directories of a segment, for reading.
#[derive(Debug, Default)]
pub(crate) struct DirsRead(Vec<(u64, Arc<LoggedDir>)>);

impl DirsRead {
    /// The largest number so far.
    pub(crate) fn last(&self) -> u64 {
        self.0.last().map_or(0, |(number, _)| *number)
    }

    fn get(&self, number: u64) -> Option<&Arc<LoggedDir>> {
        beside(&self.0, number)
    }

    /// Takes in the line of a directory. `None`: no daemon writes this.
    pub(crate) fn define(&mut self, number: u64, above: u64, name: Vec<u8>) -> Option<()> {
        let above = if above == 0 { None } else { Some(self.get(above)?.clone()) };
        if number <= self.last() || !is_name(above.is_none(), &name) {
            return None;
        }
        self.0.push((number, Arc::new(LoggedDir { above, name: name.into() })));
        Some(())
    }

    /// The path of this name in directory `dir`. `None`: no daemon writes this, or the directory's line is lost.
    pub(crate) fn path(&self, dir: u64, name: Vec<u8>) -> Option<LoggedPath> {
        is_name(dir == 0, &name).then_some(())?;
        if dir == 0 { Some(LoggedPath::Whole(name)) } else { Some(LoggedPath::In(self.get(dir)?.clone(), name.into())) }
    }
}

fn is_name(in_root: bool, name: &[u8]) -> bool {
    Name::new(name).is_ok() && !(in_root && name == OURS)
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::tiers::log::record::{EventOrigin, LoggedLine, Record};

    fn removal(path: &[u8], ino: u64) -> Record {
        Record::Remove { path: path.to_vec().into(), ino, dir: false }
    }

    /// The contents of a segment with these lines; `None` for an invalid line.
    fn read(text: &str) -> Vec<Option<LoggedLine>> {
        let mut dirs = DirsRead::default();
        text.lines().map(|line| LoggedLine::decode(line.as_bytes(), &mut dirs)).collect()
    }

    fn paths(text: &str) -> Vec<Vec<u8>> {
        let path = |line| match line {
            Some(LoggedLine::Record((_, _, Record::Remove { path, .. }, _))) => Some(path.bytes().into_owned()),
            _ => None,
        };
        read(text).into_iter().filter_map(path).collect()
    }

    #[test]
    fn a_directory_is_in_a_segment_once() {
        let (mut dirs, mut text) = (DirsWritten::default(), String::new());
        let all: [&[u8]; 7] = [b"run/a", b"run/deep/er/b", b"top", b"run/c", b"run/deep/d", b"ru/n", b"run/deep/er/b"];
        for (path, lsn) in all.iter().zip(1..) {
            removal(path, 9).encode_in((lsn, 0), EventOrigin::default(), &mut dirs, &mut text);
        }
        let moved = Record::Again(Box::new(removal(b"run/deep/moved/a", 9)));
        moved.encode_in((8, 0), EventOrigin { by: 5, stamps: None }, &mut dirs, &mut text);
        let words: Vec<&str> = text.lines().map(|line| &line[9..]).collect();
        let wanted = [
            "dir n=1 of=0 name=run",
            "1 0 unlink path=1/a ino=9",
            "dir n=2 of=1 name=deep",
            "dir n=3 of=2 name=er",
            "2 0 unlink path=3/b ino=9",
            "3 0 unlink path=top ino=9",
            "4 0 unlink path=1/c ino=9",
            "5 0 unlink path=2/d ino=9",
            "dir n=4 of=0 name=ru",
            "6 0 unlink path=4/n ino=9",
            "7 0 unlink path=3/b ino=9",
            "dir n=5 of=2 name=moved",
            "8 0 again unlink path=5/a ino=9 by=5",
        ];
        assert_eq!(words, wanted);
        assert_eq!(paths(&text), all);
    }

    fn name(random: &mut SmallRng) -> Vec<u8> {
        let len = *[1, 1, 2, 9, 255].get(random.random_range(0..5)).unwrap_or(&1);
        let one = |random: &mut SmallRng| match random.random_range(0..4) {
            0 => b'a',
            1 => b'\xff',
            2 => b'\n',
            _ => random.random_range(1..=255),
        };
        let name: Vec<u8> = (0..len).map(|_| one(random)).map(|byte| if byte == b'/' { b'=' } else { byte }).collect();
        if Name::new(&name).is_ok() && name != OURS { name } else { "name é".into() }
    }

    /// Any paths come back as they were, over segments, failed appends and a writer that continues in a segment. If a
    /// line is lost, records that need it are lost, and no other one gets another path.
    #[test]
    fn paths_come_back_whatever_happens() {
        for seed in 0..60 {
            let mut random = SmallRng::seed_from_u64(seed);
            let names: Vec<Vec<u8>> = (0..6).map(|_| name(&mut random)).collect();
            let (mut dirs, mut segment, mut wanted) = (DirsWritten::default(), String::new(), Vec::new());
            for lsn in 1..300 {
                let depth = if random.random_ratio(1, 20) { 300 } else { random.random_range(1..6) };
                let path: Vec<&[u8]> = (0..depth).map(|_| &names[random.random_range(0..names.len())][..]).collect();
                let path = path.join(&b'/');
                let mut text = String::new();
                removal(&path, lsn).encode_in((lsn, 0), EventOrigin::default(), &mut dirs, &mut text);
                match random.random_range(0..30) {
                    0..6 => dirs.undo(),
                    6 => {
                        // The next segment; the record is encoded again.
                        assert_eq!(paths(&segment), wanted, "seed {seed}");
                        (dirs, segment, wanted) = (DirsWritten::default(), String::new(), Vec::new());
                    }
                    at => {
                        dirs.keep();
                        segment += &text;
                        wanted.push(path);
                        if at == 7 {
                            let mut seen = DirsRead::default();
                            segment.lines().for_each(|line| drop(LoggedLine::decode(line.as_bytes(), &mut seen)));
                            dirs = DirsWritten::behind(seen.last());
                        }
                    }
                }
            }
            assert_eq!(paths(&segment), wanted, "seed {seed}");
            let lines: Vec<&str> = segment.lines().collect();
            for _ in 0..20 {
                let lost = random.random_range(0..lines.len().max(1));
                let left: Vec<&str> =
                    lines.iter().enumerate().filter(|(at, _)| *at != lost).map(|(_, line)| *line).collect();
                let mut all = wanted.iter();
                let found = paths(&left.join("\n"));
                assert!(found.iter().all(|path| all.any(|one| one == path)), "seed {seed}, without line {lost}");
                assert!(found.len() < wanted.len() || lines.is_empty(), "seed {seed}, without line {lost}");
            }
        }
    }

    #[test]
    fn what_no_daemon_writes_defines_nothing() {
        let line = |text: &str| format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()));
        let long = format!("dir n=2 of=1 name={}", "n".repeat(256));
        for bad in [
            "dir n=1 of=0 name=again",
            "dir n=0 of=0 name=b",
            "dir n=2 of=2 name=itself",
            "dir n=2 of=3 name=later",
            "dir n=2 of=1 name=a/b",
            "dir n=2 of=1 name=..",
            "dir n=2 of=1 name=",
            "dir n=2 of=0 name=.dlio-fs",
            "dir n=2 of=1 name=b more=1",
            "dir n=2 of=1",
            "dir n=18446744073709551615 of=1 name=b",
            &long,
            "1 0 unlink path=2/b ino=9",
            "1 0 unlink path=0/b ino=9",
            "1 0 unlink path=1/b/c ino=9",
            "1 0 unlink path=1/ ino=9",
            "1 0 unlink path=1/.. ino=9",
            "1 0 unlink path=a/b ino=9",
            "1 0 unlink path=.dlio-fs ino=9",
            "1 0 unlink path= ino=9",
            "1 0 rename path=1/a to=1/a ino=9 slow=-",
            "1 0 rename path=a to=1/b ino=9 slow=-",
        ] {
            let lines = read(&(line("dir n=1 of=0 name=a") + &line(bad)));
            assert!(lines[0] == Some(LoggedLine::Dir) && lines[1].is_none(), "{bad}: {lines:?}");
        }
        let root = read(&line("1 0 setxattr path= ino=1 slow=- dir owner=0 group=0 key=user.a removed"));
        assert!(matches!(&root[..], [Some(LoggedLine::Record(_))]), "{root:?}");
    }

    /// Dropping a directory once dropped those above it by recursion.
    #[test]
    fn a_path_may_be_deeper_than_a_stack() {
        let mut dirs = DirsRead::default();
        (1..300_000).for_each(|number| dirs.define(number, number - 1, b"d".to_vec()).expect("a directory"));
        let path = dirs.path(299_999, b"f".to_vec()).expect("a path");
        drop(dirs);
        assert_eq!(path.bytes().len(), 2 * 299_999 + 1);
    }
}
