//! Copying one file by several streams.
//!
//! A stream reads the next piece and hashes it with a lock held, then writes it without. So the hash gets the bytes in
//! order, and per-file decisions (holes, the page cache) are made once. Only the writes to the slow tier run in
//! parallel: they take the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::tiers::disk::File;
use crate::tiers::disk::sync::{Mutex, Rank};
use crate::tiers::objects::copy::{CHUNK, CopyMeans, NotCopied, Pieces, forget_from};
use crate::tiers::objects::hash::Sum;

/// A copy of the first bytes of a file, holes as holes, that leaves the page cache as it was. The target is new and
/// empty.
pub(crate) struct JointCopy {
    from: Arc<dyn File>,
    to: Arc<dyn File>,
    len: u64,
    /// The target shares the blocks of the source, which is read only for the hash.
    shared: bool,
    /// A copy of [`Pieces::at`], for callers that do not wait for a read.
    at: AtomicU64,
    /// Streams that copy.
    streams: AtomicU32,
    reading: Mutex<Reading>,
}

struct Reading {
    pieces: Pieces,
    sum: Sum,
    /// The bytes of the source from here on were not in the page cache before this copy.
    ours: u64,
    /// Where the pieces begin that are being written.
    in_flight: Vec<u64>,
    /// The end of the last piece.
    data_end: u64,
    failed: Option<NotCopied>,
    /// Each helping stream has a sender; the owner waits until all are dropped. `None`: the copy has ended.
    helpers: Option<(Sender<()>, Receiver<()>)>,
}

/// What was written, and the offset up to which nothing is missing any more.
pub(crate) struct PieceDone {
    pub(crate) len: u64,
    pub(crate) upto: u64,
}

/// The result of a copy.
pub(crate) struct CopyEnd {
    pub(crate) sum: Sum,
    /// The target ends here. Behind it the source has a hole.
    pub(crate) data_end: u64,
}

/// A stream that is counted among those that copy.
pub(crate) struct CopyHelper {
    copy: Arc<JointCopy>,
    /// Dropped last: the owner goes on then.
    over: Option<Sender<()>>,
}

impl JointCopy {
    /// Begins a copy. A large file shares the blocks of its source where the file system can do that.
    pub(crate) fn begin(
        means: &CopyMeans,
        (from, to): (Arc<dyn File>, Arc<dyn File>),
        len: u64,
    ) -> Result<Arc<Self>, NotCopied> {
        let large = len > CHUNK as u64;
        let shared = large && means.share(&*from, &*to, len).map_err(NotCopied::Written)?;
        let reading = Reading {
            pieces: Pieces::of(0..len),
            sum: Sum::default(),
            ours: len,
            in_flight: Vec::new(),
            data_end: 0,
            failed: None,
            helpers: Some(channel()),
        };
        let (at, streams) = (AtomicU64::new(0), AtomicU32::new(1));
        Ok(Arc::new(JointCopy { from, to, len, shared, at, streams, reading: Mutex::new(Rank::Copying, reading) }))
    }

    /// Bytes that no stream has taken yet, including holes. 0 for a file that shares its blocks: there is nothing to
    /// write.
    pub(crate) fn left(&self) -> u64 {
        if self.shared { 0 } else { self.len - self.at.load(Ordering::Relaxed) }
    }

    pub(crate) fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Adds a stream.
    pub(crate) fn help(self: &Arc<Self>) -> CopyHelper {
        self.streams.fetch_add(1, Ordering::Relaxed);
        CopyHelper { copy: self.clone(), over: None }
    }

    /// Copies pieces until there are no more, or a stream has failed. `watch` is called for each piece, and says
    /// whether to go on. A failure is kept for [`JointCopy::end`].
    pub(crate) fn copy(&self, means: &CopyMeans, watch: &mut dyn FnMut(PieceDone) -> std::io::Result<bool>) {
        let mut buf = vec![0; CHUNK.min(self.len as usize)];
        while let Some((at, bytes)) = self.take(means, &mut buf) {
            let got = bytes.len() as u64;
            let written = self.write(means, bytes, at).and_then(|()| {
                let (upto, ours) = self.written(at);
                let goes_on = watch(PieceDone { len: got, upto })?;
                forget_from(ours, &*self.from, at..at + got);
                Ok(goes_on)
            });
            match written {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => self.fail(NotCopied::Written(error)),
            }
        }
    }

    /// Reads and hashes the next piece.
    fn take<'a>(&self, means: &CopyMeans, buf: &'a mut [u8]) -> Option<(u64, &'a [u8])> {
        let mut reading = self.reading.lock();
        let Reading { pieces, sum, ours, in_flight, data_end, failed, .. } = &mut *reading;
        if failed.is_some() {
            return None;
        }
        let taken = pieces.next(&*self.from, buf, &mut |buf, at| means.read(&*self.from, buf, at, ours));
        self.at.store(pieces.at(), Ordering::Relaxed);
        match taken {
            Ok(Some((at, bytes))) => {
                sum.take(at, bytes);
                in_flight.push(at);
                *data_end = at + bytes.len() as u64;
                Some((at, bytes))
            }
            Ok(None) => None,
            Err(error) => {
                *failed = Some(NotCopied::Read(error));
                None
            }
        }
    }

    fn write(&self, means: &CopyMeans, bytes: &[u8], at: u64) -> std::io::Result<()> {
        match self.len > CHUNK as u64 {
            _ if self.shared => Ok(()),
            true => means.write_large(&*self.to, bytes, at),
            false => self.to.write_at(bytes, at),
        }
    }

    /// Notes that the piece at `at` is written. Returns the offset up to which all pieces are, and the one from which
    /// on the bytes of the source were not in the page cache before.
    fn written(&self, at: u64) -> (u64, u64) {
        let mut reading = self.reading.lock();
        reading.in_flight.retain(|begin| *begin != at);
        let upto = reading.in_flight.iter().copied().min().unwrap_or(reading.data_end);
        (upto, reading.ours)
    }

    fn fail(&self, why: NotCopied) {
        self.reading.lock().failed.get_or_insert(why);
    }

    /// For the owner, on success and on failure: waits for the helping streams. None joins after that.
    pub(crate) fn end(&self) -> Result<CopyEnd, NotCopied> {
        let helpers = self.reading.lock().helpers.take();
        if let Some((ours, over)) = helpers {
            drop(ours);
            // An error means that the last sender is gone. No stream sends anything.
            let _gone = over.recv();
        }
        let mut reading = self.reading.lock();
        // Drop what was read ahead, and what the cache holds in pages larger than a piece.
        forget_from(reading.ours, &*self.from, 0..self.len);
        match reading.failed.take() {
            Some(why) => Err(why),
            None => Ok(CopyEnd { sum: std::mem::take(&mut reading.sum), data_end: reading.data_end }),
        }
    }
}

impl CopyHelper {
    /// Like [`JointCopy::copy`]. Does nothing if the copy has ended.
    pub(crate) fn copy(&mut self, means: &CopyMeans, watch: &mut dyn FnMut(PieceDone) -> std::io::Result<bool>) {
        self.over = self.copy.reading.lock().helpers.as_ref().map(|(sender, _)| sender.clone());
        if self.over.is_some() {
            self.copy.copy(means, watch);
        }
    }
}

impl Drop for CopyHelper {
    fn drop(&mut self) {
        self.copy.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::tiers::disk::Dir;
    use crate::tiers::disk::os::OsDir;
    use crate::tiers::objects::copy::next_data;
    use crate::tiers::objects::hash::Hash;

    const MIB: u64 = 1 << 20;

    fn whole(file: &dyn File) -> Vec<u8> {
        let mut bytes = vec![0; file.stat().expect("a file").size as usize];
        assert_eq!(file.read_at(&mut bytes, 0).expect("a file"), bytes.len());
        bytes
    }

    fn sum_of(bytes: &[u8]) -> Hash {
        let mut sum = Sum::default();
        sum.take(0, bytes);
        sum.of_size(bytes.len() as u64)
    }

    /// Data and holes of any length, some of both longer than a piece.
    fn scattered(dir: &OsDir, random: &mut Xoshiro256PlusPlus) -> (Arc<dyn File>, u64) {
        let (file, len) = (dir.create(b"from", 0o600).expect("new"), random.random_range(0..24 * MIB));
        for _ in 0..random.random_range(0..6) {
            let at = random.random_range(0..=len);
            let mut bytes = vec![0; random.random_range(0..=(4 * MIB).min(len - at)) as usize];
            random.fill(&mut bytes[..]);
            file.write_at(&bytes, at).expect("room");
        }
        file.set_len(len).expect("a file");
        (file, len)
    }

    #[test]
    fn streams_copy_and_hash_what_one_would() {
        let (place, mut random) = (tempfile::tempdir().expect("a directory"), Xoshiro256PlusPlus::seed_from_u64(3));
        let dir = OsDir::open(place.path()).expect("a directory");
        for streams in [1, 2, 3, 8].repeat(5) {
            let (from, len) = scattered(&dir, &mut random);
            let to = dir.create(b"to", 0o600).expect("new");
            let means = CopyMeans::default();
            let copy = JointCopy::begin(&means, (from.clone(), to.clone()), len).expect("begun");
            let copied = AtomicU64::new(0);
            let mut count = |piece: PieceDone| {
                copied.fetch_add(piece.len, Ordering::Relaxed);
                assert!(piece.upto <= len);
                // The other streams go on.
                std::thread::yield_now();
                Ok(true)
            };
            std::thread::scope(|scope| {
                for _ in 1..streams {
                    let (mut helper, mut count) = (copy.help(), count);
                    let means = &means;
                    scope.spawn(move || helper.copy(means, &mut count));
                }
                copy.copy(&means, &mut count);
                let CopyEnd { sum, data_end } = copy.end().expect("copied");
                if data_end != len {
                    to.set_len(len).expect("a file");
                }
                assert!(whole(&*to) == whole(&*from), "{len} bytes");
                assert_eq!(sum.of_size(len), sum_of(&whole(&*from)));
            });
            assert_eq!(copy.streams(), 1);
            // A hole of the source is one of the copy, and no piece was copied twice.
            let (mut at, mut data) = (0, 0);
            while {
                at = next_data(&*from, at..len).expect("a file");
                at < len
            } {
                let end = from.seek(crate::tiers::disk::Seek::Hole, at).expect("a file").min(len);
                (data, at) = (data + end - at, end);
            }
            assert_eq!(copied.into_inner(), data);
            assert!(to.stat().expect("a file").blocks <= from.stat().expect("a file").blocks + 16);
            [&b"from"[..], b"to"].into_iter().for_each(|name| dir.unlink(name).expect("there"));
        }
    }

    /// Two pieces are in flight; the first one that is written is behind the other.
    #[test]
    fn nothing_is_missing_up_to_where_a_piece_says() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = OsDir::open(place.path()).expect("a directory");
        let [from, to] = [&b"from"[..], b"to"].map(|name| dir.create(name, 0o600).expect("new"));
        from.write_at(&vec![7; 3 * MIB as usize], 0).expect("room");
        let means = CopyMeans::default();
        let copy = JointCopy::begin(&means, (from, to), 3 * MIB).expect("begun");
        if copy.shared {
            return;
        }
        let mut buf = vec![0; CHUNK];
        let taken = [0, 1].map(|_| copy.take(&means, &mut buf).expect("a piece").0);
        assert_eq!((taken, copy.left()), ([0, MIB], MIB));
        assert_eq!([MIB, 0].map(|at| copy.written(at).0), [0, 2 * MIB]);
    }

    /// Otherwise it would sync, and pass on, a file that is still being written.
    #[test]
    fn the_owner_waits_for_what_others_write() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = OsDir::open(place.path()).expect("a directory");
        let [from, to] = [&b"from"[..], b"to"].map(|name| dir.create(name, 0o600).expect("new"));
        from.write_at(&vec![7; 4 * MIB as usize], 0).expect("room");
        let means = CopyMeans::default();
        let copy = JointCopy::begin(&means, (from, to), 4 * MIB).expect("begun");
        let (begun, is_begun) = channel();
        let written = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let (means, written, mut helper) = (&means, &written, copy.help());
            scope.spawn(move || {
                helper.copy(means, &mut |_| {
                    begun.send(()).expect("the owner listens");
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    written.fetch_add(1, Ordering::Relaxed);
                    Ok(false)
                });
            });
            is_begun.recv().expect("a piece");
            copy.copy(means, &mut |_| Ok(true));
            copy.end().expect("copied");
            assert_eq!(written.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn what_one_stream_meets_ends_the_copy_of_all() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = OsDir::open(place.path()).expect("a directory");
        let [from, to] = [&b"from"[..], b"to"].map(|name| dir.create(name, 0o600).expect("new"));
        from.write_at(&vec![7; 8 * MIB as usize], 0).expect("room");
        let means = CopyMeans::default();
        let copy = JointCopy::begin(&means, (from, to), 8 * MIB).expect("begun");
        let mut pieces = 0;
        copy.help().copy(&means, &mut |_| Err(std::io::Error::other("no")));
        copy.copy(&means, &mut |_| {
            pieces += 1;
            Ok(true)
        });
        assert_eq!(pieces, 0);
        assert!(matches!(copy.end(), Err(NotCopied::Written(_))));
        // A stream that comes now finds nothing.
        copy.help().copy(&means, &mut |_| panic!("it has ended"));
    }
}
