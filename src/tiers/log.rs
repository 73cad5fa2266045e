//! The log: the ordered, durable list of records on the fast tier.
//!
//! An append is one write, so an acknowledged record survives the daemon; [`Log::sync`] makes it survive a power cut,
//! and callers that arrive together share one fsync. The log does not know what the records mean, except that LSNs
//! rise.
//!
//! A torn tail (the last appends of a crash) is cut off at the next start. A power cut may leave valid records behind a
//! hole. Each record says up to which LSN the log was durable when it was written, so the tail begins at the first hole
//! that no later record vouches for. Within one boot nothing is lost except the end of the last write of a killed
//! daemon, so in the boot in which it was written every other hole is damage. LSNs follow each other without a gap, so
//! a missing segment is a hole too. Damage is not cut: the records behind it are kept, and [`OpenedLog::damage`] says
//! where it is.
//!
//! Room: each segment is preallocated, and a ballast file is released when the tier is full, so a full tier does not
//! stop the log (promise P8). An append that fails is cut back; nothing half-written is ever acknowledged.
//!
//! A start has room of its own, the file `spare`, which is used for nothing else, however full the tier is:
//!
//! 1. it first releases this room ([`drop_spare`]), for everything that it writes, in the log or elsewhere;
//! 2. it preallocates a new segment only if that leaves the room untouched. If there is hardly more room, or no inode,
//!    the log continues in the last segment;
//! 3. after its records are written it reserves the rest of the room again ([`Log::set_room_aside`]), and all of it as
//!    soon as the tier has room.
//!
//! A crash between 1 and 3 leaves the room free, and no process of ours writes to the tier before the next start.

pub(crate) mod dirs;
pub(crate) mod record;

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::error::{Context, Errno, Error, Result};
use crate::tiers::Lsn;
use crate::tiers::disk::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::tiers::disk::sync::{Mutex, Rank};
use crate::tiers::disk::{Access, Allocate, Dir, File, Kind};
use crate::tiers::log::dirs::{DirsRead, DirsWritten};
use crate::tiers::log::record::{EventOrigin, LoggedLine, Record, Stamps, boot_line, counter, in_present_order};

/// A segment is closed once it has this length, in bytes.
const SEGMENT: u64 = 16 << 20;

/// A segment never reaches this length: the last append to it may be a record of every name and attribute that a file
/// can have.
const SEGMENT_MAX: u64 = 512 << 20;

/// The room for a start, besides the ballast, is the ballast's size divided by this: 4 MiB by default.
const SPARE: u64 = 16;
/// A smaller room is not worth a file, in bytes.
const SPARE_MIN: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Log {
    fast: Arc<dyn Dir>,
    dir: Arc<dyn Dir>,
    tail: Mutex<Tail>,
    /// Held by the thread that syncs.
    syncing: Mutex<()>,
    durable: AtomicU64,
    ballast: u64,
    boot: String,
    /// A call has failed since the last [`Log::check`].
    suspect: AtomicBool,
    /// Nothing is appended before the next start.
    read_only: AtomicBool,
}

#[derive(Debug)]
struct Tail {
    segment: Arc<dyn File>,
    len: u64,
    next: Lsn,
    /// Closed segments by their first LSN, oldest first; the last LSN of each is below the next one's first.
    closed: VecDeque<Lsn>,
    first: Lsn,
    /// The directories that records of this segment refer to.
    dirs: DirsWritten,
    /// Set by the first failure that leaves the tail unknown: nothing is appended or reported durable after it.
    broken: bool,
}

/// The segments of a log at one moment.
#[derive(Clone, Debug)]
pub(crate) struct LogExtent {
    /// They do not change any more.
    pub(crate) closed: Vec<Lsn>,
    /// The last segment, and its length then.
    pub(crate) tail: Lsn,
    pub(crate) len: u64,
    /// The last record.
    pub(crate) last: Lsn,
}

/// How far a reader of the log has come.
#[derive(Debug)]
pub(crate) struct ReadingPlace {
    segment: Lsn,
    len: u64,
    /// The directories that the segment has up to there.
    dirs: DirsRead,
}

/// What a log held when it was opened.
#[derive(Debug)]
pub(crate) struct OpenedLog {
    pub(crate) log: Log,
    pub(crate) records: Vec<(Lsn, Record)>,
    /// The stamps of the events that have some.
    pub(crate) stamps: Vec<(Lsn, Stamps)>,
    /// The users of the events, except root.
    pub(crate) by: Vec<(Lsn, u32)>,
    /// Bytes cut off the end: the last append of a crash.
    pub(crate) torn: u64,
    /// Where records are missing although valid ones follow; empty for a sound log.
    pub(crate) damage: Vec<String>,
}

impl Log {
    /// Reads the log in `<fast>/log`, cuts a torn tail and starts a new segment. `ballast` is in bytes, `boot` is this
    /// boot of the machine.
    pub(crate) fn open(fast: Arc<dyn Dir>, ballast: u64, boot: &str) -> Result<OpenedLog> {
        let dir = fast.dir(b"log").at_fast("open", "log")?;
        let found = read_and_cut(&*dir, boot)?;
        let next = found.last + 1;
        let closed: VecDeque<Lsn> = found.segments.iter().copied().filter(|first| *first < next).collect();
        // A new segment for each of many starts would use up the room for starts.
        let is_short = fast.space().is_ok_and(|space| space.avail < 2 * spare(ballast));
        let made = if is_short && !closed.is_empty() { None } else { Some(new_segment(&*fast, &*dir, next)) };
        let tail = match made {
            Some(Ok(segment)) => {
                Tail { segment, len: 0, next, closed, first: next, dirs: DirsWritten::default(), broken: false }
            }
            None => reopen_last(&*dir, next, closed)?,
            // Not even an inode is left.
            Some(Err(error)) if is_full(&error) && !closed.is_empty() => reopen_last(&*dir, next, closed)?,
            Some(Err(error)) => return Err(error),
        };
        let log = Log {
            fast,
            dir,
            tail: Mutex::new(Rank::Tail, tail),
            syncing: Mutex::new(Rank::Syncing, ()),
            durable: AtomicU64::new(next - 1),
            ballast,
            boot: boot.to_owned(),
            suspect: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
        };
        let LogContents { records, stamps, by, torn, damage, .. } = found;
        Ok(OpenedLog { log, records, stamps, by, torn, damage })
    }

    /// The records behind `at`, as they were appended; moves `at` to the end. From a new place: the records of all
    /// segments that may have some behind `applied`.
    pub(crate) fn read_on(&self, at: &mut ReadingPlace) -> Result<Vec<(Lsn, Record, EventOrigin)>> {
        let extent = self.extent()?;
        let mut read = Vec::new();
        let from = at.segment;
        for first in extent.closed.iter().copied().chain([extent.tail]).filter(|first| *first >= from) {
            let segment = self.segment(first).at_fast("open", label(first))?;
            let len =
                if first == extent.tail { extent.len } else { segment.stat().at_fast("stat", label(first))?.size };
            if first != at.segment {
                *at = ReadingPlace { segment: first, len: 0, dirs: DirsRead::default() };
            }
            let from = at.len;
            let mut bytes = vec![0; len.saturating_sub(from) as usize];
            let got = segment.read_at(&mut bytes, from).at_fast("read", label(first))?;
            if got < bytes.len() {
                return Err(Error::io_on_fast("read", label(first), io::ErrorKind::UnexpectedEof.into()));
            }
            for line in bytes.split(|byte| *byte == b'\n') {
                if let Some(LoggedLine::Record((lsn, _, record, origin))) = LoggedLine::decode(line, &mut at.dirs) {
                    read.push((lsn, record, origin));
                }
            }
            at.len = len;
        }
        Ok(read)
    }

    /// The beginning of the first segment that may have records behind `applied`.
    pub(crate) fn place_behind(&self, applied: Lsn) -> ReadingPlace {
        let tail = self.tail.lock();
        let segment = tail.closed.iter().chain([&tail.first]).filter(|first| **first <= applied + 1).max();
        ReadingPlace { segment: segment.copied().unwrap_or(0), len: 0, dirs: DirsRead::default() }
    }

    /// Appends the records with one write and returns the LSN of the last.
    ///
    /// Errors: ENOSPC when the ballast is spent too; any other error of the tier. Nothing was appended then.
    pub(crate) fn append(&self, records: &[Record]) -> Result<Lsn> {
        self.append_event(records, EventOrigin::default())
    }

    /// Like [`Log::append`], with the origin of the event among the records. The caller has taken the stamp `end` and
    /// appends under one lock, so LSNs and stamps have the same order.
    pub(crate) fn append_event(&self, records: &[Record], origin: EventOrigin) -> Result<Lsn> {
        self.append_each(records.len(), |_| records.iter().map(|record| (record, origin)))
    }

    /// Appends `count` records, each with its own origin; `records` gets the LSN of the first.
    pub(crate) fn append_each<R: Borrow<Record>, I: Iterator<Item = (R, EventOrigin)>>(
        &self,
        count: usize,
        records: impl FnOnce(Lsn) -> I,
    ) -> Result<Lsn> {
        self.check_writable()?;
        let mut tail = self.tail.lock();
        if tail.broken {
            return Err(broken());
        }
        let durable = self.durable();
        // Needed again if they go to a new segment.
        let records: Vec<(R, EventOrigin)> = records(tail.next).collect();
        let mut text = self.encode(&mut tail, &records, durable);
        if tail.next > tail.first && tail.len + text.len() as u64 > SEGMENT {
            tail.dirs.undo();
            self.rotate(&mut tail)?;
            text = self.encode(&mut tail, &records, durable);
        }
        #[cfg(debug_assertions)]
        let text = crate::tiers::disk::faults::held_back(text, tail.next, count);
        if let Err(error) = self.write(&mut tail, &text) {
            tail.dirs.undo();
            return Err(error);
        }
        tail.dirs.keep();
        tail.len += text.len() as u64;
        tail.next += count as u64;
        Ok(tail.next - 1)
    }

    /// The records as lines. A segment begins with the boot, because the `start` record is deleted with its own
    /// segment. The boot is in one write with the first records, for which a full tier has its ballast.
    fn encode<R: Borrow<Record>>(&self, tail: &mut Tail, records: &[(R, EventOrigin)], durable: Lsn) -> String {
        let mut text = if tail.len == 0 { boot_line(&self.boot) } else { String::new() };
        for ((record, origin), lsn) in records.iter().zip(tail.next..) {
            record.borrow().encode_in((lsn, durable), *origin, &mut tail.dirs, &mut text);
        }
        text
    }

    /// Writes this behind the tail, all of it or nothing.
    fn write(&self, tail: &mut Tail, text: &str) -> Result<()> {
        let Err(first) = tail.segment.write_at(text.as_bytes(), tail.len) else { return Ok(()) };
        self.cut_back(tail)?;
        if first.kind() != io::ErrorKind::StorageFull || !self.drop_ballast() {
            return Err(Error::io_on_fast("append", "log", first));
        }
        // Allocate at once, before the next write to the tier takes the room.
        let room = tail.segment.allocate(Allocate::KeepSize, tail.len, SEGMENT.min(self.ballast / 2));
        if let Err(e) = room {
            tracing::debug!(error = %e, "no ballast is reserved for the log");
        }
        let mut again = tail.segment.write_at(text.as_bytes(), tail.len);
        if again.as_ref().is_err_and(crate::tiers::disk::errors::is_full) {
            // btrfs frees space late unless it is asked to.
            self.cut_back(tail)?;
            again = self.fast.sync_all().and_then(|()| tail.segment.write_at(text.as_bytes(), tail.len));
        }
        if let Err(second) = again {
            self.cut_back(tail)?;
            return Err(Error::io_on_fast("append", "log", second));
        }
        Ok(())
    }

    /// From here on each append fails with EROFS.
    pub(crate) fn make_read_only(&self) {
        self.read_only.store(true, Ordering::Relaxed);
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only.load(Ordering::Relaxed) { Err(Errno::EROFS.into()) } else { Ok(()) }
    }

    fn cut_back(&self, tail: &mut Tail) -> Result<()> {
        if let Err(e) = tail.segment.set_len(tail.len) {
            tail.broken = true;
            return Err(Error::io_on_fast("cut back", "log", e));
        }
        Ok(())
    }

    /// Starts a new segment. The old one is synced first: its records are durable before the next segment's first
    /// record can be.
    fn rotate(&self, tail: &mut Tail) -> Result<()> {
        if let Err(e) = tail.segment.sync() {
            tail.broken = true;
            return Err(Error::io_on_fast("fsync", "log", e));
        }
        tail.segment = new_segment(&*self.fast, &*self.dir, tail.next)?;
        tail.closed.push_back(tail.first);
        tail.first = tail.next;
        tail.dirs = DirsWritten::default();
        tail.len = 0;
        Ok(())
    }

    /// The segments of the log now. Everything up to its last record is durable once [`Log::sync`] says so.
    pub(crate) fn extent(&self) -> Result<LogExtent> {
        let tail = self.tail.lock();
        if tail.broken {
            return Err(broken());
        }
        let closed = tail.closed.iter().copied().collect();
        Ok(LogExtent { closed, tail: tail.first, len: tail.len, last: tail.next - 1 })
    }

    /// A segment, for reading. ENOENT: it was deleted since, and everything in it is applied.
    pub(crate) fn segment(&self, first: Lsn) -> io::Result<Arc<dyn File>> {
        self.dir.open(&segment_name(first), Access::Read)
    }

    /// Fails once the log is closed.
    pub(crate) fn usable(&self) -> Result<()> {
        if self.tail.lock().broken { Err(broken()) } else { Ok(()) }
    }

    /// The LSN of the newest record.
    pub(crate) fn last(&self) -> Lsn {
        self.tail.lock().next - 1
    }

    /// Every record up to this one survives a power cut.
    pub(crate) fn durable(&self) -> Lsn {
        // Release in `sync` after the fsync, Acquire here: a thread that sees the number sees the records it covers.
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
        let (segment, last) = {
            let tail = self.tail.lock();
            if tail.broken {
                return Err(broken());
            }
            (tail.segment.clone(), tail.next - 1)
        };
        self.sync_segment(&*segment)?;
        // The kernel reports a failure to only one fsync of an open file. That may have been the one in `rotate`, which
        // holds `tail` from before its fsync until `broken` is set.
        if self.tail.lock().broken {
            return Err(broken());
        }
        self.durable.store(last, Ordering::Release);
        Ok(())
    }

    fn sync_segment(&self, segment: &dyn File) -> Result<()> {
        segment.sync().map_err(|e| {
            // The kernel may have dropped the pages: a second fsync would succeed and prove nothing.
            self.tail.lock().broken = true;
            Error::io_on_fast("fsync", "log", e)
        })
    }

    /// Notes that a call has failed, perhaps because of the fast tier.
    pub(crate) fn suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// Checks that the log still has a name: without one everything written is gone with the daemon. If a call has
    /// failed since the last check, also that the log can still be written: if the whole fast tier is gone, objects
    /// fail first, and the next record may be far off. An error is returned once.
    pub(crate) fn check(&self) -> Result<()> {
        let of_now = || {
            let tail = self.tail.lock();
            (!tail.broken).then(|| tail.segment.clone())
        };
        let Some(segment) = of_now() else { return Ok(()) };
        let is_suspect = self.suspect.swap(false, Ordering::Relaxed);
        let gone = match segment.stat() {
            // The former tail, full by now, may have been deleted meanwhile.
            Ok(stat) if stat.nlink == 0 && of_now().is_some_and(|now| Arc::ptr_eq(&now, &segment)) => {
                Some(io::Error::new(io::ErrorKind::NotFound, "it was removed"))
            }
            Ok(_) => None,
            // On an xfs that was shut down, an fsync with nothing to write succeeds.
            Err(e) => Some(e).filter(|_| is_suspect),
        };
        if let Some(e) = gone {
            self.tail.lock().broken = true;
            return Err(Error::io_on_fast("find", "log", e));
        }
        if !is_suspect {
            return Ok(());
        }
        let _syncing = self.syncing.lock();
        of_now().map_or(Ok(()), |segment| self.sync_segment(&*segment))
    }

    /// Deletes the segments that hold only records up to `upto`. The caller has made sure that none of these records is
    /// needed.
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
                self.dir.unlink(&segment_name(first)).at_fast("unlink", format!("log segment {first}"))?;
            }
        }
    }

    /// Called when a start has written its records and no other thread writes yet: reserves the next start's room, then
    /// the ballast. If there is no room for both, half of the free room goes to the next start, and a part of the rest
    /// to the log: publishing cannot make room without it. Failure alone does no harm: appends then fail earlier when
    /// the tier is full.
    pub(crate) fn set_room_aside(&self) {
        if self.ballast == 0 {
            return;
        }
        let has_ballast = self.fast.stat(b"ballast").is_ok();
        let is_short = !has_ballast && self.avail() < self.spare() + self.ballast;
        let most = if is_short { self.avail() / 2 } else { self.spare() };
        let mut size = self.spare();
        while size >= SPARE_MIN && (size > most || !self.restore(b"spare", size)) {
            size /= 2;
        }
        if size < self.spare() {
            tracing::warn!(bytes = size, "the fast tier is full: only this much is reserved for the next start");
        }
        if self.restore(b"ballast", self.ballast) {
            return;
        }
        let left = self.avail() / 2;
        let tail = self.tail.lock();
        if let Err(e) = tail.segment.allocate(Allocate::KeepSize, tail.len, left.min(SEGMENT).min(self.ballast / 2)) {
            tracing::debug!(error = %e, "no room is reserved for the next start");
        }
    }

    /// For a start whose records found no room: continues in the last segment, which has some room in its last block.
    /// `false`: there is no such segment, or a record was appended already.
    pub(crate) fn go_on_in_last_segment(&self) -> Result<bool> {
        let mut tail = self.tail.lock();
        if tail.len > 0 || tail.closed.is_empty() {
            return Ok(false);
        }
        let (next, empty, closed) = (tail.next, tail.first, tail.closed.clone());
        *tail = reopen_last(&*self.dir, next, closed)?;
        // Durably: an append that was cut back must not reappear behind the records that follow.
        remove_empty(&*self.dir, &[empty])?;
        Ok(true)
    }

    /// Reserves a start's room and the ballast again, once the tier has twice their size free.
    pub(crate) fn restore_if_room(&self) {
        let is_whole = || self.fast.stat(b"spare").is_ok_and(|stat| stat.size >= self.spare());
        if self.spare() > 0 && self.avail() > 2 * self.spare() && !is_whole() {
            drop_spare(&*self.fast);
            self.restore(b"spare", self.spare());
        }
        if self.ballast > 0 && self.avail() > 2 * self.ballast {
            self.restore(b"ballast", self.ballast);
        }
    }

    /// Reserves room under this name, all of it or none. `true`: it is reserved.
    fn restore(&self, name: &[u8], size: u64) -> bool {
        if self.fast.stat(name).is_ok() {
            return true;
        }
        let made = self.fast.create(name, 0o600).and_then(|file| file.allocate(Allocate::Extend, 0, size));
        if made.is_err() {
            // Some file systems leave a part of it behind.
            drop_file(&*self.fast, name);
        }
        made.is_ok()
    }

    fn spare(&self) -> u64 {
        spare(self.ballast)
    }

    fn avail(&self) -> u64 {
        self.fast.space().map_or(0, |space| space.avail)
    }

    fn drop_ballast(&self) -> bool {
        drop_ballast(&*self.fast)
    }
}

/// The size of a start's own room, with a ballast of this size.
fn spare(ballast: u64) -> u64 {
    if ballast == 0 { 0 } else { (ballast / SPARE).max(SPARE_MIN) }
}

/// Called before a start does anything else: see the beginning of this file.
pub(crate) fn drop_spare(fast: &dyn Dir) {
    drop_file(fast, b"spare");
}

fn drop_ballast(fast: &dyn Dir) -> bool {
    drop_file(fast, b"ballast")
}

fn drop_file(fast: &dyn Dir, name: &[u8]) -> bool {
    fast.unlink(name).is_ok()
}

pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if crate::tiers::disk::errors::is_full(source))
}

/// The tail of a log that continues in the last of these segments.
fn reopen_last(dir: &dyn Dir, next: Lsn, mut closed: VecDeque<Lsn>) -> Result<Tail> {
    let first = closed.pop_back().unwrap_or(next);
    let segment = open_segment(dir, first, Access::ReadWrite)?;
    let len = segment.stat().at_fast("stat", label(first))?.size;
    let mut dirs = DirsRead::default();
    for line in read_all(dir, first)?.split(|byte| *byte == b'\n') {
        LoggedLine::decode(line, &mut dirs);
    }
    Ok(Tail { segment, len, next, closed, first, dirs: DirsWritten::behind(dirs.last()), broken: false })
}

/// Creates a segment. On a full tier the ballast makes room for it.
fn new_segment(fast: &dyn Dir, dir: &dyn Dir, first: Lsn) -> Result<Arc<dyn File>> {
    let segment = match create_segment(dir, first) {
        Err(error) if is_full(&error) && drop_ballast(fast) => create_segment(dir, first),
        other => other,
    }?;
    // Room allocated now cannot be missing later; a file system without fallocate works as well. A file system with
    // less free than the whole size may keep a partial allocation, which would take the last room from other files.
    let has_room = fast.space().is_ok_and(|space| space.avail > 2 * SEGMENT);
    if has_room && let Err(e) = segment.allocate(Allocate::KeepSize, 0, SEGMENT) {
        tracing::debug!(error = %e, "a log segment could not be preallocated");
    }
    Ok(segment)
}

fn broken() -> Error {
    Error::refused(
        "the log could not be written and is closed",
        "see the first error in the daemon's log, repair the fast tier and mount again",
    )
}

pub(crate) fn segment_name(first: Lsn) -> Vec<u8> {
    format!("{first:020}.log").into_bytes()
}

/// Removes segments without bytes, durably.
fn remove_empty(dir: &dyn Dir, empty: &[Lsn]) -> Result<()> {
    for first in empty {
        dir.unlink(&segment_name(*first)).at_fast("unlink", "empty log segment")?;
    }
    if empty.is_empty() { Ok(()) } else { dir.sync().at_fast("fsync", "log") }
}

fn create_segment(dir: &dyn Dir, first: Lsn) -> Result<Arc<dyn File>> {
    let name = segment_name(first);
    // A segment with this name holds no record: the daemon that created it never appended to it.
    match dir.unlink(&name) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io_on_fast("unlink", "empty log segment", e));
        }
        _ => {}
    }
    let file = dir.create(&name, 0o600).at_fast("create", "log segment")?;
    file.stay_in_place();
    dir.sync().at_fast("fsync", "log")?;
    Ok(file)
}

/// Cuts a log that is not in use to the first `len` bytes of a segment, durably.
pub(crate) fn cut_to(dir: &dyn Dir, segment: Lsn, len: u64) -> Result<()> {
    for entry in dir.list().at("list", "the log")? {
        if segment_of(&entry.name).is_some_and(|first| first > segment) {
            dir.unlink(&entry.name).at("unlink", label(segment))?;
        }
    }
    let file = open_segment(dir, segment, Access::ReadWrite)?;
    let has = file.stat().at("stat", label(segment))?.size;
    if has < len {
        return Err(Error::refused(
            format!("{} has {has} of {len} bytes", label(segment)),
            "the copy has lost what was made durable there: forget the member without --partner",
        ));
    }
    file.set_len(len).and_then(|()| file.sync()).at("cut", label(segment))?;
    dir.sync().at("fsync", "the log")
}

/// A log as it is on the disk, read without changing it.
#[derive(Debug, Default)]
pub(crate) struct LogContents {
    pub(crate) records: Vec<(Lsn, Record)>,
    pub(crate) stamps: Vec<(Lsn, Stamps)>,
    pub(crate) by: Vec<(Lsn, u32)>,
    /// The highest number, including records that do not count; 0: none.
    last: Lsn,
    /// Those that have bytes.
    pub(crate) segments: Vec<Lsn>,
    /// Those without bytes: their daemon never appended to them, and may have continued in the segment before.
    empty: Vec<Lsn>,
    /// Bytes of the torn tail, which are not part of the log.
    pub(crate) torn: u64,
    pub(crate) damage: Vec<String>,
    /// Where the torn tail begins.
    cut: Option<Cut>,
}

/// The index of the segment to cut and the length to cut it to; the segments behind it are deleted.
type Cut = (usize, u64);

/// Reads a log without changing it.
pub(crate) fn read_only(dir: &dyn Dir, boot: &str) -> Result<LogContents> {
    scan(dir, boot)
}

/// Reads the log, cuts its torn tail, and makes the rest durable before anything is written behind it. Removes segments
/// without bytes: if the segment before has gone past an empty one's number, that number would later bound what the
/// segment before holds, which would be deleted with pending records.
pub(crate) fn read_and_cut(dir: &dyn Dir, boot: &str) -> Result<LogContents> {
    let mut found = scan(dir, boot)?;
    remove_empty(dir, &found.empty)?;
    if let Some((keep, len)) = found.cut {
        for first in found.segments.split_off(keep + 1) {
            dir.unlink(&segment_name(first)).at_fast("unlink", "log segment behind a torn tail")?;
        }
        if let Some(last) = found.segments.last() {
            open_segment(dir, *last, Access::ReadWrite)?.set_len(len).at_fast("cut", "last log segment")?;
        }
    }
    if let Some(last) = found.segments.last() {
        let segment = open_segment(dir, *last, Access::ReadWrite)?;
        // Frees the preallocated room behind its end, which stays unused: the next segment needs it. A hint.
        if let Err(e) = segment.stat().and_then(|stat| segment.set_len(stat.size)) {
            tracing::debug!(error = %e, "the preallocated room of the last log segment stays reserved");
        }
        segment.sync().at_fast("fsync", "last log segment")?;
        dir.sync().at_fast("fsync", "log")?;
    }
    Ok(found)
}

/// A place where records are missing: bytes that are no records, or numbers that were skipped.
struct Hole {
    segment: usize,
    from: u64,
    /// Bytes that are no records; 0 where only numbers are missing.
    len: u64,
    /// How many records are before it.
    before: usize,
    /// The last write of a killed daemon may have ended here.
    may_be_torn: bool,
}

/// The segments that have bytes, oldest first, and those that have none.
fn list_segments(dir: &dyn Dir) -> Result<(Vec<Lsn>, Vec<Lsn>)> {
    let (mut segments, mut empty) = (Vec::new(), Vec::new());
    for first in dir.list().at_fast("list", "log")?.iter().filter_map(|entry| segment_of(&entry.name)) {
        let stat = dir.stat(&segment_name(first)).at_fast("stat", label(first))?;
        let list = if stat.kind == Kind::File && stat.size == 0 { &mut empty } else { &mut segments };
        list.push(first);
    }
    segments.sort_unstable();
    Ok((segments, empty))
}

fn scan(dir: &dyn Dir, boot: &str) -> Result<LogContents> {
    let (segments, empty) = list_segments(dir)?;
    // Each with the LSN up to which it says the log was durable.
    let mut records: Vec<(Lsn, Lsn, Record)> = Vec::new();
    let mut holes: Vec<Hole> = Vec::new();
    let (mut stamped, mut users) = (Vec::new(), Vec::new());
    // The boot of the first records, if their `start` is gone.
    let mut front = None;
    for (segment, first) in segments.iter().enumerate() {
        let (bytes, mut dirs) = (read_all(dir, *first)?, DirsRead::default());
        for line in bytes.split_inclusive(|b| *b == b'\n') {
            let from = (line.as_ptr() as usize - bytes.as_ptr() as usize) as u64;
            let last = records.last().map_or(0, |record| record.0);
            let hole = Hole { segment, from, len: line.len() as u64, before: records.len(), may_be_torn: false };
            match line.strip_suffix(b"\n").and_then(|line| LoggedLine::decode(line, &mut dirs)) {
                Some(LoggedLine::Dir) => {}
                Some(LoggedLine::Boot(boot)) if records.is_empty() => front = Some(boot),
                Some(LoggedLine::Boot(_)) => {}
                Some(LoggedLine::Record((lsn, durable, record, EventOrigin { by, stamps }))) if lsn > last => {
                    let known = holes.last().is_some_and(|hole| hole.before == records.len());
                    if lsn > last + 1 && !records.is_empty() && !known {
                        holes.push(Hole { len: 0, ..hole });
                    }
                    records.push((lsn, durable, record));
                    stamped.extend(stamps.map(|stamps| (lsn, stamps)));
                    users.extend((by != 0).then_some((lsn, by)));
                }
                _ => match holes.last_mut().filter(|hole| hole.segment == segment && hole.from + hole.len == from) {
                    Some(run) => run.len += line.len() as u64,
                    None => holes.push(hole),
                },
            }
        }
        if let Some(run) = holes.last_mut().filter(|run| run.segment == segment && !bytes.ends_with(b"\n")) {
            // One line without its end, and nothing behind it.
            let line = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end as u64 + 1);
            run.may_be_torn = run.from == line && segment + 1 == segments.len();
        }
    }
    let mut found = LogContents { segments, empty, ..LogContents::default() };
    let applied = Record::applied(records.iter().map(|(.., record)| record));
    found.damage.extend(missing_in_front(&records, applied));
    for hole in holes.into_iter().filter(|hole| !is_applied(hole, &records, applied)) {
        if !is_damage(&hole, &records, front.as_deref(), boot) {
            found.torn = hole.len;
            found.cut = Some((hole.segment, hole.from));
            records.truncate(hole.before);
            break;
        }
        found.damage.push(describe(&hole, &records, &found.segments));
    }
    found.last = records.last().map_or(0, |record| record.0);
    let last = found.last;
    stamped.truncate(stamped.partition_point(|(lsn, _)| *lsn <= last));
    users.truncate(users.partition_point(|(lsn, _)| *lsn <= last));
    (found.stamps, found.by) = (stamped, users);
    found.records = in_present_order(records.into_iter().map(|(lsn, _, record)| (lsn, record)).collect());
    if let (Some(boot), Some((first, record))) = (front, found.records.first())
        && !matches!(record, Record::Start { .. })
    {
        found.records.insert(0, (first - 1, Record::Start { boot }));
    }
    Ok(found)
}

/// Segments are deleted from the front once all their events are applied, and a power cut may bring back one of them
/// without the next: a hole of skipped numbers that are all applied is no loss.
fn is_applied(hole: &Hole, records: &[(Lsn, Lsn, Record)], applied: Lsn) -> bool {
    hole.len == 0 && records.get(hole.before).is_some_and(|(next, ..)| *next <= applied + 1)
}

/// Whether the missing records had been durable, or cannot have been lost since.
fn is_damage(hole: &Hole, records: &[(Lsn, Lsn, Record)], front: Option<&str>, boot: &str) -> bool {
    let before = last_before(hole, records);
    let vouched = records.iter().skip(hole.before).any(|(_, durable, _)| *durable > before);
    let mut starts = records.iter().take(hole.before).rev();
    let start = starts.find_map(|(.., record)| if let Record::Start { boot } = record { Some(&**boot) } else { None });
    let start = start.or(front);
    vouched || (start.is_some_and(|start| start == boot) && !hole.may_be_torn)
}

fn last_before(hole: &Hole, records: &[(Lsn, Lsn, Record)]) -> Lsn {
    records.iter().take(hole.before).next_back().map_or(0, |(lsn, ..)| *lsn)
}

/// The records behind the last applied one must be there.
fn missing_in_front(records: &[(Lsn, Lsn, Record)], applied: Lsn) -> Option<String> {
    let first = records.first()?.0;
    (first > applied + 1).then(|| format!("log: records {} to {} are missing at its beginning", applied + 1, first - 1))
}

fn describe(hole: &Hole, records: &[(Lsn, Lsn, Record)], segments: &[Lsn]) -> String {
    let name = segments.get(hole.segment).map_or("the log".to_owned(), |first| label(*first).to_string());
    let first = last_before(hole, records) + 1;
    let lost = match records.get(hole.before) {
        Some((next, ..)) if *next == first + 1 => format!("record {first} is missing"),
        Some((next, ..)) if *next > first => format!("records {first} to {} are missing", next - 1),
        Some(_) => "no record is missing".to_owned(),
        None => format!("records from {first} on are missing"),
    };
    match hole.len {
        0 => format!("{name}: {lost} in front of byte {}", hole.from),
        len => format!("{name}: {len} bytes at {} are not records; {lost}", hole.from),
    }
}

fn label(first: Lsn) -> String {
    format!("log/{}", String::from_utf8_lossy(&segment_name(first)))
}

/// The first LSN of a segment, from its name; accepts exactly what [`segment_name`] writes.
pub(crate) fn segment_of(name: &[u8]) -> Option<Lsn> {
    let first = std::str::from_utf8(name).ok()?.strip_suffix(".log").and_then(counter)?;
    (segment_name(first) == name).then_some(first)
}

/// A segment has one name: a file with several links may be outside of the tier.
fn open_segment(dir: &dyn Dir, first: Lsn, access: Access) -> Result<Arc<dyn File>> {
    let file = dir.open(&segment_name(first), access).at_fast("open", label(first))?;
    if file.stat().at_fast("stat", label(first))?.nlink > 1 {
        return Err(not_ours(first, "has another name, perhaps outside of the fast tier"));
    }
    Ok(file)
}

fn not_ours(first: Lsn, what: &str) -> Error {
    let remedy = "no daemon made it: save its files with `dlio-fs rescue`, then use an empty fast tier";
    Error::refused(format!("{} {what}", label(first)), remedy)
}

fn read_all(dir: &dyn Dir, first: Lsn) -> Result<Vec<u8>> {
    let file = open_segment(dir, first, Access::Read)?;
    let len = file.stat().at_fast("stat", label(first))?.size;
    if len > SEGMENT_MAX {
        return Err(not_ours(first, &format!("is {len} bytes long, more than a segment can be")));
    }
    let mut bytes = vec![0; len as usize];
    let got = file.read_at(&mut bytes, 0).at_fast("read", label(first))?;
    bytes.truncate(got);
    Ok(bytes)
}
