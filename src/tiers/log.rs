//! The log: the ordered, durable list of records on the fast tier.
//!
//! An append is one write, so what was acknowledged survives the daemon; [`Log::sync`] makes it survive a power cut, and
//! callers that arrive together share one fsync. What the records mean is not known here, except that LSNs rise.
//!
//! A torn tail (the last append of a crash) is cut off at the next start. Damage with valid records behind it is not: the
//! records behind it are kept, and [`Opened::damage`] says where it is.
//!
//! Room: each segment is preallocated, and a ballast file is given back when the tier is full, so a full tier does not
//! stop the log (promise P8). An append that fails is cut back; nothing half-written is ever acknowledged.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::{Context, Error, Result};
use crate::tiers::Lsn;
use crate::tiers::disk::{Allocate, Dir, File};
use crate::tiers::record::Record;

/// A segment is closed once it is this long, in bytes.
const SEGMENT: u64 = 16 << 20;

#[derive(Debug)]
pub(crate) struct Log {
    fast: Arc<dyn Dir>,
    dir: Arc<dyn Dir>,
    tail: Mutex<Tail>,
    /// Taken by whoever syncs. Order: `syncing` before `tail`.
    syncing: Mutex<()>,
    durable: AtomicU64,
    ballast: u64,
}

#[derive(Debug)]
struct Tail {
    segment: Arc<dyn File>,
    len: u64,
    next: Lsn,
    /// Closed segments by their first LSN, oldest first; the last LSN of each is below the next one's first.
    closed: VecDeque<Lsn>,
    first: Lsn,
    /// Closed segments whose bytes may not be durable yet.
    unsynced: Vec<Arc<dyn File>>,
    /// Set by the first failure that leaves the tail unknown: nothing is appended or reported durable after it.
    broken: bool,
}

/// What a log held when it was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) log: Log,
    pub(crate) records: Vec<(Lsn, Record)>,
    /// Bytes cut off the end: the last append of a crash.
    pub(crate) torn: u64,
    /// Where records are missing although valid ones follow; empty for a sound log.
    pub(crate) damage: Vec<String>,
}

impl Log {
    /// Reads the log in `<fast>/log`, cuts a torn tail and starts a new segment. `ballast` is in bytes.
    pub(crate) fn open(fast: Arc<dyn Dir>, ballast: u64) -> Result<Opened> {
        let dir = fast.dir(b"log").at("open", "log")?;
        let found = read(&*dir)?;
        let next = found.records.last().map_or(1, |(lsn, _)| lsn + 1);
        let closed = found.segments.into_iter().filter(|first| *first < next).collect();
        let segment = create_segment(&*dir, next)?;
        let tail = Tail { segment, len: 0, next, closed, first: next, unsynced: Vec::new(), broken: false };
        let log = Log {
            fast,
            dir,
            tail: Mutex::new(tail),
            syncing: Mutex::new(()),
            durable: AtomicU64::new(next - 1),
            ballast,
        };
        log.restore_ballast();
        Ok(Opened { log, records: found.records, torn: found.torn, damage: found.damage })
    }

    /// Appends the records with one write and returns the LSN of the last.
    ///
    /// Errors: ENOSPC when the ballast is spent too; whatever the tier says. Nothing was appended then.
    pub(crate) fn append(&self, records: &[Record]) -> Result<Lsn> {
        let mut tail = self.tail.lock();
        if tail.broken {
            return Err(broken());
        }
        let text: String = records.iter().zip(tail.next..).map(|(record, lsn)| record.encode(lsn)).collect();
        if tail.len > 0 && tail.len + text.len() as u64 > SEGMENT {
            self.rotate(&mut tail)?;
        }
        if let Err(first) = tail.segment.write_at(text.as_bytes(), tail.len) {
            self.cut_back(&mut tail)?;
            if first.kind() != io::ErrorKind::StorageFull || !self.drop_ballast() {
                return Err(Error::io("append", "log", first));
            }
            if let Err(second) = tail.segment.write_at(text.as_bytes(), tail.len) {
                self.cut_back(&mut tail)?;
                return Err(Error::io("append", "log", second));
            }
        }
        tail.len += text.len() as u64;
        tail.next += records.len() as u64;
        Ok(tail.next - 1)
    }

    fn cut_back(&self, tail: &mut Tail) -> Result<()> {
        if let Err(e) = tail.segment.set_len(tail.len) {
            tail.broken = true;
            return Err(Error::io("cut back", "log", e));
        }
        Ok(())
    }

    fn rotate(&self, tail: &mut Tail) -> Result<()> {
        let new = match create_segment(&*self.dir, tail.next) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::StorageFull && self.drop_ballast() => {
                create_segment(&*self.dir, tail.next)?
            }
            other => other?,
        };
        let old = std::mem::replace(&mut tail.segment, new);
        tail.unsynced.push(old);
        tail.closed.push_back(tail.first);
        tail.first = tail.next;
        tail.len = 0;
        Ok(())
    }

    /// The LSN of the newest record.
    pub(crate) fn last(&self) -> Lsn {
        self.tail.lock().next - 1
    }

    /// Every record up to this one survives a power cut.
    pub(crate) fn durable(&self) -> Lsn {
        // Release in `sync` after the fsync, Acquire here: whoever sees the number sees what it stands for.
        self.durable.load(Ordering::Acquire)
    }

    /// Returns once every record up to `upto` is durable. Callers that arrive while one fsync runs share the next.
    pub(crate) fn sync(&self, upto: Lsn) -> Result<()> {
        if self.durable() >= upto {
            return Ok(());
        }
        let _syncing = self.syncing.lock();
        if self.durable() >= upto {
            return Ok(());
        }
        let (files, last) = {
            let mut tail = self.tail.lock();
            if tail.broken {
                return Err(broken());
            }
            let mut files = std::mem::take(&mut tail.unsynced);
            files.push(tail.segment.clone());
            (files, tail.next - 1)
        };
        for file in files {
            if let Err(e) = file.sync() {
                // The kernel may have dropped the pages: a second fsync would succeed and prove nothing.
                self.tail.lock().broken = true;
                return Err(Error::io("fsync", "log", e));
            }
        }
        self.durable.store(last, Ordering::Release);
        Ok(())
    }

    /// Deletes the segments that hold only records up to `upto`. The caller has made sure that nothing in them is needed.
    pub(crate) fn drop_upto(&self, upto: Lsn) -> Result<()> {
        loop {
            let first = {
                let mut tail = self.tail.lock();
                let next_first = tail.closed.get(1).copied().unwrap_or(tail.first);
                if tail.closed.is_empty() || next_first > upto + 1 {
                    return Ok(());
                }
                tail.closed.pop_front()
            };
            if let Some(first) = first {
                self.dir.unlink(&segment_name(first)).at("unlink", format!("log segment {first}"))?;
            }
        }
    }

    /// Recreates the ballast if there is room. Failure is no harm: appends then fail earlier when the tier is full.
    pub(crate) fn restore_ballast(&self) {
        if self.ballast == 0 || self.fast.stat(b"ballast").is_ok() {
            return;
        }
        let made =
            self.fast.create(b"ballast", 0o600).and_then(|file| file.allocate(Allocate::Extend, 0, self.ballast));
        if made.is_err() {
            self.drop_ballast();
        }
    }

    /// Takes the ballast back once the tier has twice its size to spare.
    pub(crate) fn restore_ballast_if_room(&self) {
        if self.fast.space().is_ok_and(|space| space.avail > 2 * self.ballast) {
            self.restore_ballast();
        }
    }

    fn drop_ballast(&self) -> bool {
        self.fast.unlink(b"ballast").is_ok()
    }
}

fn broken() -> Error {
    Error::refused(
        "the log could not be written and is closed",
        "see the first error in the daemon's log, repair the fast tier and mount again",
    )
}

fn segment_name(first: Lsn) -> Vec<u8> {
    format!("{first:020}.log").into_bytes()
}

fn create_segment(dir: &dyn Dir, first: Lsn) -> Result<Arc<dyn File>> {
    let name = segment_name(first);
    // A segment of this name holds no record: it was created by a daemon that never appended to it.
    match dir.unlink(&name) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io("unlink", "empty log segment", e)),
        _ => {}
    }
    let file = dir.create(&name, 0o600).at("create", "log segment")?;
    // Room taken now cannot be missing later; a file system without fallocate works all the same.
    let _ = file.allocate(Allocate::KeepSize, 0, SEGMENT);
    dir.sync().at("fsync", "log")?;
    Ok(file)
}

/// A log as it lies there, read without changing it but for a torn tail.
struct Found {
    records: Vec<(Lsn, Record)>,
    segments: Vec<Lsn>,
    torn: u64,
    damage: Vec<String>,
}

/// Reads a log without changing it, for `rescue`.
pub(crate) fn read_only(dir: &dyn Dir) -> Result<(Vec<(Lsn, Record)>, Vec<String>)> {
    let found = scan(dir)?;
    Ok((found.0.records, found.0.damage))
}

fn read(dir: &dyn Dir) -> Result<Found> {
    let (found, cut) = scan(dir)?;
    if let Some((name, len)) = cut {
        let file = dir.open(&name, crate::tiers::disk::Access::ReadWrite).at("open", "last log segment")?;
        file.set_len(len).at("cut", "last log segment")?;
        file.sync().at("fsync", "last log segment")?;
    }
    Ok(found)
}

/// The segment to cut, and the length to cut it to.
type Cut = Option<(Vec<u8>, u64)>;

fn scan(dir: &dyn Dir) -> Result<(Found, Cut)> {
    let mut names: Vec<(Lsn, Vec<u8>)> = dir
        .list()
        .at("list", "log")?
        .into_iter()
        .filter_map(|entry| {
            let first = std::str::from_utf8(&entry.name).ok()?.strip_suffix(".log")?.parse().ok()?;
            Some((first, entry.name))
        })
        .collect();
    names.sort();
    let mut found =
        Found { records: Vec::new(), segments: names.iter().map(|n| n.0).collect(), torn: 0, damage: vec![] };
    // Bad bytes seen since the last valid record: a torn tail if nothing valid follows, damage otherwise.
    let mut bad: Option<(Vec<u8>, u64, u64)> = None;
    for (_, name) in &names {
        let bytes = read_all(dir, name)?;
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes[at..].iter().position(|b| *b == b'\n').map(|n| at + n);
            let record = end.and_then(|end| Record::decode(&bytes[at..end]));
            let last = found.records.last().map_or(0, |r| r.0);
            match record {
                Some((lsn, record)) if lsn > last => {
                    if let Some((name, from, len)) = bad.take() {
                        let name = String::from_utf8_lossy(&name).into_owned();
                        found.damage.push(format!("log/{name}: {len} bytes at {from} are not records"));
                    }
                    found.records.push((lsn, record));
                }
                _ => {
                    let len = end.map_or(bytes.len(), |end| end + 1) - at;
                    bad.get_or_insert_with(|| (name.clone(), at as u64, 0)).2 += len as u64;
                }
            }
            at = end.map_or(bytes.len(), |end| end + 1);
        }
    }
    let cut = bad.map(|(name, from, len)| {
        found.torn = len;
        (name, from)
    });
    Ok((found, cut))
}

fn read_all(dir: &dyn Dir, name: &[u8]) -> Result<Vec<u8>> {
    let what = || String::from_utf8_lossy(name).into_owned();
    let file = dir.open(name, crate::tiers::disk::Access::Read).at("open", what())?;
    let len = file.stat().at("stat", what())?.size;
    let mut bytes = vec![0; len as usize];
    let got = file.read_at(&mut bytes, 0).at("read", what())?;
    bytes.truncate(got);
    Ok(bytes)
}
