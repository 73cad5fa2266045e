//! A file that no longer fits on the fast tier: its beginning stays there, the rest goes to the slow tier.
//!
//! - The *head* is the pool's object that the file had until then. It holds the bytes below the offset `at`; bytes
//!   behind that have no meaning. If it ends early, zeros follow.
//! - The *tail* is an object in the slow tier's `tmp`. It holds the bytes from `at` on, each at its own offset, so that
//!   the head can be copied into it before it is published. Its length is the file's, and it has the file's attributes.
//!   Bytes below `at` have no meaning.
//!
//! The two look like one file. A daemon killed in the middle of a truncation may leave a head that is longer than the
//! file: [`Split::finish_truncation`]. The drain decides when the tail takes in the head, and the log says which file
//! is split.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use delegate::delegate;

use crate::error::Errno;
use crate::tiers::disk::{Allocate, File, Inode, NewAttr, Seek, Stat};
use crate::tiers::objects::copy::{copy_data, next_data};

#[derive(Debug)]
pub(crate) struct Split {
    head: Arc<dyn File>,
    tail: Arc<dyn File>,
    at: u64,
}

/// Start and end.
type Part = (u64, u64);

impl Split {
    pub(crate) fn new(head: Arc<dyn File>, tail: Arc<dyn File>, at: u64) -> Self {
        Split { head, tail, at }
    }

    /// Cuts a head that a killed daemon left longer than the file, before the file grows over it again. Call it only
    /// while the file is not in use.
    pub(crate) fn finish_truncation(&self) -> io::Result<()> {
        let size = self.size()?;
        if size < self.at && self.head.stat()?.size > size { self.head.set_len(size) } else { Ok(()) }
    }

    /// The tail alone: the whole file, once it has taken in the head.
    pub(crate) fn tail(&self) -> &dyn File {
        &*self.tail
    }

    /// How much of the file the head holds.
    pub(crate) fn head_size(&self) -> io::Result<u64> {
        Ok(self.size()?.min(self.at))
    }

    /// Call before taking in the head: removes the leftovers of an earlier attempt. `true`: only the head's data needs
    /// copying; `false`: its holes too, as zeros. The tail has the file's mtime from here on, even if there is nothing
    /// to take in.
    pub(crate) fn clear_tail_below(&self) -> io::Result<bool> {
        self.keeping_mtime(|| self.punch_stale())
    }

    fn punch_stale(&self) -> io::Result<bool> {
        let stale = match self.tail.seek(Seek::Data, 0) {
            Ok(data) => data < self.at,
            Err(e) if is(&e, Errno::ENXIO) => false,
            Err(e) if is(&e, Errno::EINVAL) => true,
            Err(e) => return Err(e),
        };
        if !stale {
            return Ok(true);
        }
        match self.tail.allocate(Allocate::PunchHole, 0, self.at) {
            Ok(()) => Ok(true),
            Err(e) if is(&e, Errno::EOPNOTSUPP) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The next offset in a range that must be taken in; the range's end if there is none. Skips holes of the head;
    /// unless `only_data`, only where the tail has a hole, too.
    pub(crate) fn next_to_join(&self, range: Range<u64>, only_data: bool) -> io::Result<u64> {
        let data = next_data(&*self.head, range.clone())?;
        if only_data { Ok(data) } else { Ok(next_data(&*self.tail, range)?.min(data)) }
    }

    /// Takes `[from, to)` of the head in; with `only_data`, holes stay holes.
    pub(crate) fn join(&self, from: u64, to: u64, only_data: bool) -> io::Result<()> {
        self.keeping_mtime(|| {
            if only_data {
                return Ok(copy_data(&*self.head, &*self.tail, from..to, &mut |_, _| Ok(()))?);
            }
            let mut buf = vec![0; (to - from) as usize];
            self.read_at(&mut buf, from)?;
            self.tail.write_at(&buf, from)
        })
    }

    /// Runs `act` and restores the tail's mtime: the drain's changes to the tail do not change the file's mtime.
    fn keeping_mtime<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let mtime = self.stat()?.mtime;
        let done = act();
        self.tail.set_attr(&NewAttr { mtime: Some(mtime), ..NewAttr::default() })?;
        done
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.tail.stat()?.size)
    }

    /// The parts of `[offset, end)` below and behind `at`, if there are any.
    fn parts(&self, offset: u64, end: u64) -> (Option<Part>, Option<Part>) {
        let part = |from: u64, to: u64| (from < to).then_some((from, to));
        (part(offset, end.min(self.at)), part(offset.max(self.at), end))
    }

    /// Makes the file at least `end` long, for a range that ends below `at`. Writes a zero, which has no meaning there:
    /// setting the length could undo a concurrent writer's extension.
    fn reach(&self, end: u64) -> io::Result<()> {
        if self.size()? < end { self.tail.write_at(&[0], end - 1) } else { Ok(()) }
    }
}

fn is(e: &io::Error, errno: Errno) -> bool {
    e.raw_os_error() == Some(errno as i32)
}

impl Inode for Split {
    fn stat(&self) -> io::Result<Stat> {
        let (head, tail) = (self.head.stat()?, self.tail.stat()?);
        Ok(Stat {
            blocks: head.blocks + tail.blocks,
            atime: head.atime.max(tail.atime),
            mtime: head.mtime.max(tail.mtime),
            ctime: head.ctime.max(tail.ctime),
            ..tail
        })
    }

    fn set_attr(&self, new: &NewAttr) -> io::Result<()> {
        // The later of the two times counts, so both are set.
        self.head.set_attr(&NewAttr { atime: new.atime, mtime: new.mtime, ..NewAttr::default() })?;
        self.tail.set_attr(new)
    }

    delegate! {
        to self.tail {
            fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
            fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()>;
            fn remove_xattr(&self, key: &[u8]) -> io::Result<()>;
            fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>>;
        }
    }
}

impl File for Split {
    fn reopen(&self) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(Split::new(self.head.reopen()?, self.tail.reopen()?, self.at)))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset >= self.at {
            return self.tail.read_at(buf, offset);
        }
        let end = self.size()?.min(offset.saturating_add(buf.len() as u64));
        let (below, behind) = self.parts(offset, end);
        let mut done = 0;
        if let Some((from, to)) = below {
            done = (to - from) as usize;
            let head = buf.get_mut(..done).unwrap_or_default();
            let got = self.head.read_at(head, from)?;
            head.iter_mut().skip(got).for_each(|byte| *byte = 0);
        }
        if let Some((from, to)) = behind {
            let tail = buf.get_mut(done..done + (to - from) as usize).unwrap_or_default();
            done += self.tail.read_at(tail, from)?;
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        match self.parts(offset, end) {
            (None, _) => self.tail.write_at(buf, offset),
            (Some(_), None) => self.head.write_at(buf, offset).and_then(|()| self.reach(end)),
            (Some((from, to)), Some(_)) => {
                let (below, behind) = buf.split_at((to - from) as usize);
                self.head.write_at(below, offset)?;
                self.tail.write_at(behind, to)
            }
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // The tail first: its length is the file's.
        self.tail.set_len(len)?;
        if len < self.at { self.head.set_len(len) } else { Ok(()) }
    }

    fn allocate(&self, what: Allocate, offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        let (below, behind) = self.parts(offset, end);
        if let Some((from, to)) = below {
            // The head's length has no meaning.
            let what = match what {
                Allocate::Extend => Allocate::KeepSize,
                Allocate::ZeroRange => Allocate::ZeroRangeKeepSize,
                other => other,
            };
            self.head.allocate(what, from, to - from)?;
        }
        match behind {
            Some((from, to)) => self.tail.allocate(what, from, to - from),
            None if matches!(what, Allocate::Extend | Allocate::ZeroRange) => self.reach(end),
            None => Ok(()),
        }
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        let size = self.size()?;
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        if offset < self.at {
            let found = match (self.head.seek(what, offset), what) {
                // Behind the head's end there is a hole up to `at`.
                (Err(e), Seek::Data) if is(&e, Errno::ENXIO) => self.at,
                (Err(e), Seek::Hole) if is(&e, Errno::ENXIO) => offset,
                (found, _) => found?,
            };
            if found < self.at.min(size) {
                return Ok(found);
            }
        }
        match self.tail.seek(what, offset.max(self.at)) {
            // `at` is behind the file's end.
            Err(e) if is(&e, Errno::ENXIO) && what == Seek::Hole => Ok(size),
            found => found,
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.head.sync()?;
        self.tail.sync()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.head.forget_cached(range.clone());
        self.tail.forget_cached(range);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::tiers::disk::os::OsDir;
    use crate::tiers::disk::{Dir, Time};
    use crate::tiers::objects::copy::copy_bytes;

    const MAX: u64 = 40_000;

    /// A file in two parts, and a plain one to which the same is done.
    struct Twins {
        split: Split,
        plain: Arc<dyn File>,
    }

    impl Twins {
        fn new(dir: &OsDir, at: u64) -> Self {
            let create = |name: &[u8]| dir.create(name, 0o600).unwrap();
            let split = Split::new(create(b"head"), create(b"tail"), at);
            // Bytes that the object had behind the offset when it stopped fitting.
            split.head.write_at(&[0xee; 5000], at).unwrap();
            Twins { split, plain: create(b"plain") }
        }

        fn both<T: PartialEq + std::fmt::Debug>(&self, act: impl Fn(&dyn File) -> T) -> T {
            let wanted = act(&*self.plain);
            assert_eq!(act(&self.split), wanted);
            wanted
        }

        fn change(&self, rng: &mut Xoshiro256PlusPlus) {
            let offset = rng.random_range(0..MAX);
            let len = rng.random_range(1..8000_u64);
            match rng.random_range(0..10) {
                0..5 => {
                    let bytes = vec![rng.random_range(1..=255_u8); len as usize];
                    self.both(|file| file.write_at(&bytes, offset).is_ok());
                }
                5..7 => {
                    self.both(|file| file.set_len(offset).is_ok());
                }
                what => {
                    let what = match what {
                        7 => Allocate::PunchHole,
                        8 => Allocate::Extend,
                        _ => Allocate::ZeroRange,
                    };
                    self.both(|file| file.allocate(what, offset, len).is_ok());
                }
            }
        }

        fn compare(&self, rng: &mut Xoshiro256PlusPlus) {
            let (offset, len) = (rng.random_range(0..MAX), rng.random_range(0..20_000));
            self.both(|file| file.stat().unwrap().size);
            self.both(|file| {
                let mut buf = vec![0x55; len];
                let got = file.read_at(&mut buf, offset).unwrap();
                buf.truncate(got);
                buf
            });
            assert_eq!(content(&self.split), content(&*self.plain));
        }
    }

    /// The whole file, read by its data alone: a hole reported by a seek must be one.
    fn content(file: &dyn File) -> Vec<u8> {
        let size = file.stat().unwrap().size;
        let mut all = vec![0; size as usize];
        let mut at = 0;
        while let Ok(data) = file.seek(Seek::Data, at) {
            let hole = file.seek(Seek::Hole, data).unwrap();
            assert!(at <= data && data < hole && hole <= size, "{at} {data} {hole} {size}");
            file.read_at(&mut all[data as usize..hole as usize], data).unwrap();
            at = hole;
        }
        all
    }

    fn join(split: &Split) {
        let only_data = split.clear_tail_below().unwrap();
        let size = split.head_size().unwrap();
        let mut at = 0;
        while at < size {
            at = split.next_to_join(at..size, only_data).unwrap();
            let to = size.min(at + 3000);
            split.join(at, to, only_data).unwrap();
            at = to;
        }
    }

    #[test]
    fn two_parts_are_one_file() {
        for seed in 0..60 {
            let dir = tempfile::tempdir().unwrap();
            let dir = OsDir::open(dir.path()).unwrap();
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let twins = Twins::new(&dir, rng.random_range(0..MAX));
            for _ in 0..60 {
                twins.change(&mut rng);
                twins.compare(&mut rng);
                if rng.random_range(0..10) == 0 {
                    join(&twins.split);
                    assert_eq!(content(twins.split.tail()), content(&*twins.plain), "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn taking_the_head_in_is_no_change_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let dir = OsDir::open(dir.path()).unwrap();
        let Twins { split, .. } = Twins::new(&dir, 10_000);
        split.write_at(&[1; 30_000], 0).unwrap();
        let mtime = Time { sec: 1_000_000_000, nsec: 5 };
        split.set_attr(&NewAttr { mtime: Some(mtime), ..NewAttr::default() }).unwrap();
        join(&split);
        assert_eq!(split.stat().unwrap().mtime, mtime);
        // Again, with leftovers of an earlier attempt that are a hole now.
        split.allocate(Allocate::PunchHole, 0, 8192).unwrap();
        split.set_attr(&NewAttr { mtime: Some(mtime), ..NewAttr::default() }).unwrap();
        join(&split);
        assert_eq!(split.tail().stat().unwrap().mtime, mtime);
        assert_eq!(split.tail().seek(Seek::Data, 0).unwrap(), 8192);
    }

    #[test]
    fn a_truncation_cut_off_by_a_kill_leaves_nothing_to_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let dir = OsDir::open(dir.path()).unwrap();
        let Twins { split, .. } = Twins::new(&dir, 10_000);
        split.write_at(&[1; 30_000], 0).unwrap();
        // The first half of a truncation.
        split.tail.set_len(100).unwrap();
        split.finish_truncation().unwrap();
        split.set_len(20_000).unwrap();
        let copy = dir.create(b"copy", 0o600).unwrap();
        copy_bytes(&split, &*copy, 20_000).unwrap();
        assert_eq!(content(&*copy).iter().filter(|byte| **byte != 0).count(), 100);
    }
}
