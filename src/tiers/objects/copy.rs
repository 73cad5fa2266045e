//! Copying the bytes of a file, holes as holes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Errno;
use crate::tiers::disk::{File, REFUSALS, Seek};

/// Bytes copied at a time.
pub(crate) const CHUNK: usize = 1 << 20;

/// Bytes could not be copied: the read failed, or the write.
#[derive(Debug)]
pub(crate) enum NotCopied {
    Read(std::io::Error),
    Written(std::io::Error),
}

impl From<NotCopied> for std::io::Error {
    fn from((NotCopied::Read(why) | NotCopied::Written(why)): NotCopied) -> Self {
        why
    }
}

/// The offset of the next data in a range; its end if there is none. Skips holes, which need not be read.
pub(crate) fn next_data(file: &dyn File, range: Range<u64>) -> std::io::Result<u64> {
    if range.is_empty() {
        return Ok(range.end);
    }
    match file.seek(Seek::Data, range.start) {
        Ok(data) => Ok(data.min(range.end)),
        // No data behind this offset, or a file system without holes.
        Err(e) if e.raw_os_error() == Some(Errno::ENXIO as i32) => Ok(range.end),
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => Ok(range.start),
        Err(e) => Err(e),
    }
}

/// A call that not every file system or kernel has: made until it is refused once.
#[derive(Debug, Default)]
struct OptionalCall {
    refused: AtomicBool,
}

impl OptionalCall {
    /// `None`: not supported here.
    fn make<T>(&self, call: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<Option<T>> {
        if self.refused.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match call() {
            Err(e) if REFUSALS.iter().any(|refusal| e.raw_os_error() == Some(*refusal as i32)) => {
                self.refused.store(true, Ordering::Relaxed);
                Ok(None)
            }
            done => done.map(Some),
        }
    }
}

/// The calls that copy between one pair of file systems, where these have them.
#[derive(Debug, Default)]
pub(crate) struct CopyMeans {
    reflink: OptionalCall,
    read_cached: OptionalCall,
    write_uncached: OptionalCall,
}

impl CopyMeans {
    /// Makes the target share the source's blocks, without a copy. `false`: not possible; the target is still empty. A
    /// source that has grown since its first bytes became a version is not shared, because the added bytes would be
    /// shared too.
    pub(super) fn share(&self, from: &dyn File, to: &dyn File, len: u64) -> std::io::Result<bool> {
        let Some(fd) = from.descriptor() else { return Ok(false) };
        if from.stat()?.size != len {
            return Ok(false);
        }
        // Another error than a refusal, such as a full disk, may not apply to a copy; if it does, the copy gets it,
        // too.
        match self.reflink.make(|| to.reflink(fd)) {
            Ok(None) => return Ok(false),
            // XFS before Linux 6.13 also reports success for a clone that an error cut short.
            Ok(Some(())) if to.stat()?.size == len => return Ok(true),
            Ok(Some(())) | Err(_) => {}
        }
        to.set_len(0).map(|()| false)
    }

    /// Reads, and lowers `ours` to the first byte that was not in the cache. What the kernel reads ahead is in the
    /// cache at the next read, so one miss decides for everything behind it.
    pub(super) fn read(&self, from: &dyn File, buf: &mut [u8], at: u64, ours: &mut u64) -> std::io::Result<usize> {
        let Some(there) = self.read_cached.make(|| from.read_cached(buf, at))? else { return from.read_at(buf, at) };
        if there == buf.len() {
            return Ok(there);
        }
        let behind = at + there as u64;
        *ours = behind.min(*ours);
        Ok(there + from.read_at(buf.get_mut(there..).unwrap_or_default(), behind)?)
    }

    pub(super) fn write_large(&self, to: &dyn File, bytes: &[u8], at: u64) -> std::io::Result<()> {
        if self.write_uncached.make(|| to.write_uncached(bytes, at))?.is_none() {
            to.write_at(bytes, at)?;
            to.write_behind(at..at + bytes.len() as u64);
        }
        Ok(())
    }
}

/// Drops those bytes of a range from the cache that are at or behind `point`.
pub(super) fn forget_from(point: u64, file: &dyn File, range: Range<u64>) {
    let begin = range.start.max(point);
    if begin < range.end {
        file.forget_cached(begin..range.end);
    }
}

/// Copies the data in a range to the same offsets. `watch` is called for each piece with its offset and bytes, and may
/// end the copy with an error. The target has a hole there.
pub(crate) fn copy_data(
    from: &dyn File,
    to: &dyn File,
    range: Range<u64>,
    watch: &mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>,
) -> Result<(), NotCopied> {
    use NotCopied::{Read, Written};
    let (start, len) = (range.start, range.end);
    let mut buf = vec![0; CHUNK.min(len.saturating_sub(start) as usize)];
    let mut pieces = Pieces::of(range);
    while let Some((at, bytes)) = pieces.next(from, &mut buf, &mut |buf, at| from.read_at(buf, at)).map_err(Read)? {
        to.write_at(bytes, at).and_then(|()| watch(at, bytes)).map_err(Written)?;
        let end = at + bytes.len() as u64;
        if end < len {
            to.write_behind(at..end);
        }
    }
    Ok(())
}

/// The data in a range of a file, piece by piece.
#[derive(Debug)]
pub(super) struct Pieces {
    at: u64,
    /// There is data from `at` to here.
    data_end: u64,
    end: u64,
}

impl Pieces {
    pub(super) fn of(Range { start, end }: Range<u64>) -> Self {
        Pieces { at: start, data_end: start, end }
    }

    /// Where the next piece may begin; behind the last one the end of the range.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Reads the next piece, no longer than `buf`, with `read`. Returns its offset and bytes; `None`: there is none.
    pub(super) fn next<'a>(
        &mut self,
        from: &dyn File,
        buf: &'a mut [u8],
        read: &mut dyn FnMut(&mut [u8], u64) -> std::io::Result<usize>,
    ) -> std::io::Result<Option<(u64, &'a [u8])>> {
        if self.at == self.data_end {
            self.at = next_data(from, self.at..self.end)?;
            self.data_end = self.at;
            if self.at == self.end {
                return Ok(None);
            }
            self.data_end = from.seek(Seek::Hole, self.at).unwrap_or(self.end).min(self.end);
        }
        let (at, want) = (self.at, buf.len().min((self.data_end - self.at) as usize));
        let buf = buf.get_mut(..want).unwrap_or_default();
        let got = read(buf, at)?;
        if got == 0 {
            (self.at, self.data_end) = (self.end, self.end);
            return Ok(None);
        }
        self.at += got as u64;
        Ok(Some((at, buf.get(..got).unwrap_or_default())))
    }
}

/// Copies the first `len` bytes, leaving holes as holes. The target is new or empty.
pub(crate) fn copy_bytes(from: &dyn File, to: &dyn File, len: u64) -> std::io::Result<()> {
    Ok(copy_data(from, to, 0..len, &mut |_, _| Ok(()))?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;
    use std::sync::Arc;

    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::tiers::disk::faults::{Faults, TierName};
    use crate::tiers::disk::os::OsDir;
    use crate::tiers::disk::{Dir, WHOLE};
    use crate::tiers::objects::joint_copy::JointCopy;

    const MIB: u64 = 1 << 20;

    /// The whole file, and where its data begins and ends.
    fn content(file: &dyn File) -> (Vec<u8>, Vec<Range<u64>>) {
        let size = file.stat().unwrap().size;
        let mut bytes = vec![0; size as usize];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap() as u64, size);
        let (mut data, mut at) = (Vec::new(), 0);
        loop {
            at = next_data(file, at..size).unwrap();
            if at == size {
                return (bytes, data);
            }
            let end = file.seek(Seek::Hole, at).unwrap().min(size);
            data.push(at..end);
            at = end;
        }
    }

    /// Data of any length at any place, up to a few pieces long.
    fn write_somewhere(file: &dyn File, random: &mut Xoshiro256PlusPlus) {
        for _ in 0..random.random_range(0..6) {
            let at = random.random_range(0..4 * MIB);
            let mut bytes = vec![0; random.random_range(1..2 * MIB) as usize];
            random.fill(&mut bytes[..]);
            file.write_at(&bytes, at).unwrap();
        }
    }

    /// Copies the first bytes by all means, and returns the pieces in which that was done.
    fn copy_all(means: &CopyMeans, from: &Arc<dyn File>, to: &Arc<dyn File>, len: u64) -> Vec<Range<u64>> {
        let copy = JointCopy::begin(means, (from.clone(), to.clone()), len).unwrap();
        let mut passed = Vec::new();
        copy.copy(means, &mut |piece| {
            passed.push(piece.upto - piece.len..piece.upto);
            Ok(true)
        });
        copy.end().unwrap();
        passed
    }

    /// On the file systems of the temporary directory and of shared memory.
    #[test]
    fn what_is_copied_by_all_means_is_what_is_copied_by_none() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        for place in ["/tmp", "/dev/shm"].map(Path::new).into_iter().filter(|place| place.is_dir()) {
            let dir = tempfile::tempdir_in(place).unwrap();
            let dir = OsDir::open(dir.path()).unwrap();
            let means = CopyMeans::default();
            for _ in 0..30 {
                let [from, to, plain] = [&b"from"[..], b"to", b"plain"].map(|name| dir.create(name, 0o600).unwrap());
                write_somewhere(&*from, &mut random);
                from.sync().unwrap();
                if random.random() {
                    from.forget_cached(WHOLE);
                }
                let len = random.random_range(0..=from.stat().unwrap().size);
                let passed = copy_all(&means, &from, &to, len);
                let mut passed_plain = Vec::new();
                copy_data(&*from, &*plain, 0..len, &mut |at, bytes| {
                    passed_plain.push(at..at + bytes.len() as u64);
                    Ok(())
                })
                .unwrap();
                assert_eq!(passed, passed_plain);
                [&to, &plain].into_iter().for_each(|copy| copy.set_len(len).unwrap());
                assert!(content(&*to) == content(&*plain), "{len} bytes below {}", place.display());
                [&b"from"[..], b"to", b"plain"].into_iter().for_each(|name| dir.unlink(name).unwrap());
            }
        }
    }

    #[test]
    fn what_a_file_system_refuses_is_asked_of_it_once() {
        let place = tempfile::tempdir().unwrap();
        let faults = Arc::new(Faults::default());
        let slow = faults.wrap(TierName::Slow, Arc::new(OsDir::open(place.path()).unwrap()));
        let from = slow.create(b"from", 0o600).unwrap();
        from.write_at(&vec![7; 3 * MIB as usize], 0).unwrap();
        // The blocks are not shared, nor is a piece written past the cache.
        faults.set("at=slow:write:1:2:EOPNOTSUPP at=slow:read:1:1:EOPNOTSUPP").unwrap();
        let means = CopyMeans::default();
        let counted = || ["write", "read"].map(|call| faults.counts().get(&(TierName::Slow, call)).map_or(0, |n| *n));
        let calls = |name: &[u8]| {
            let to = slow.create(name, 0o600).unwrap();
            let before = counted();
            copy_all(&means, &from, &to, 3 * MIB);
            let after = counted();
            assert!(content(&*to).0.iter().all(|byte| *byte == 7));
            [after[0] - before[0], after[1] - before[1]]
        };
        assert_eq!(calls(b"first"), [5, 4]);
        assert_eq!(calls(b"second"), [3, 3]);
        assert_eq!(faults.fired(), 3);
    }

    /// Only where the cache drops what it is asked to: not in shared memory.
    #[test]
    fn a_copy_leaves_the_cache_as_it_was() {
        let place = tempfile::tempdir().unwrap();
        let dir = OsDir::open(place.path()).unwrap();
        let cached = |file: &dyn File| file.read_cached(&mut [0; 4096], 0).unwrap() > 0;
        for (name, warm) in [("cold", false), ("warm", true)] {
            let from = dir.create(name.as_bytes(), 0o600).unwrap();
            from.write_at(&vec![7; 5 * MIB as usize], 0).unwrap();
            from.sync().unwrap();
            if !warm {
                from.forget_cached(WHOLE);
            }
            let to = dir.create(format!("{name} copy").as_bytes(), 0o600).unwrap();
            copy_all(&CopyMeans::default(), &from, &to, 5 * MIB);
            to.sync().unwrap();
            to.forget_cached(WHOLE);
            if cached(&*to) {
                return;
            }
            // Looking reads ahead: each file is looked at once.
            assert_eq!(cached(&*from), warm, "{name}");
        }
    }
}
