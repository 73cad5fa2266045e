//! Staged copies: read-only copies of slow files on the fast tier.
//!
//! `staged/<shard>/<number>` is named by the file's inode number on the slow tier, so the file system is the index: a
//! mount consults it when a file is opened, and a million copies cost a start nothing. A copy records which slow file
//! it equals, and is compared with that file before it is served (P11). No log record names a copy and it holds nothing
//! unique: in any doubt it is removed, and the file is read from the slow tier. `copies/epochs.rs` says which copies
//! survive a crash.
//!
//! The first write to a file with a copy turns the copy into the file's object ([`Tiers::adopt_copy`]). A file with
//! several names has no copy, nor has one on a file system mounted inside the slow tier.
//!
//! `staging/copy_one.rs` makes the copies.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::{HashMap, HashSet};

use crate::error::{Context, Result};
use crate::path::{escape, unescape};
use crate::tiers::copies::epochs::CopyEpochs;
use crate::tiers::copies::rounds::ReadRounds;
use crate::tiers::disk::errors::{absent_is_none, is_elsewhere};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::{ensure_dir, is_at_or_below, label_of};
use crate::tiers::disk::shards::{Shard, Shards, file_name};
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::{Access, Dir, File, FileId, Kind, RenameMode, Time};
use crate::tiers::model::node::ObservedAt;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::file::{Bytes, Copy, FileState};
use crate::tiers::objects::pool::{Named, Pool};
use crate::tiers::{Cx, Ino, Progress, Tiers};

/// The extended attribute with a copy's [`Label`].
const LABEL: &[u8] = b"user.dlio.staged";
/// The path that the slow file had. It is not in the label, which is read at each open: the label fits into an inode of
/// 256 bytes on ext4, while a larger value gets a block of its own elsewhere on the disk.
const PATH: &[u8] = b"user.dlio.path";

/// The slow file that a copy equals, and the epoch that makes it durable.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    fingerprint: Fingerprint,
    epoch: u64,
}

impl Label {
    /// `<epoch> <size> <mtime> <ctime>`. The copy's name is the rest of the fingerprint, except for the birth, which
    /// does not fit and is not needed: the file had been unchanged for a while when it was copied, so a later file with
    /// its number has a later ctime.
    fn encode(&self) -> String {
        format!("{} {}", self.epoch, self.fingerprint.encode_but_file())
    }

    /// `None`: not one of our labels.
    fn decode(number: u64, text: &[u8]) -> Option<Self> {
        let (epoch, fingerprint) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some(Label {
            fingerprint: Fingerprint::decode_but_file(FileId { ino: number, birth: 0 }, fingerprint)?,
            epoch: epoch.parse().ok()?,
        })
    }

    fn of(number: u64, file: &dyn File) -> io::Result<Option<Self>> {
        Ok(file.get_xattr(LABEL)?.and_then(|text| Label::decode(number, &text)))
    }
}

/// The path that the file had when it was copied.
pub(crate) fn path_then(copy: &dyn File) -> io::Result<Option<Vec<u8>>> {
    let text = copy.get_xattr(PATH)?;
    Ok(text.and_then(|text| unescape(std::str::from_utf8(&text).ok()?)))
}

/// How many files without a copy have their last read remembered. Some 30 bytes each.
const READ_KEPT: usize = 1 << 20;

/// The index entry of a copy.
#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    /// When it was last read to its end, or else when it was made.
    used: ObservedAt,
    epoch: u64,
}

/// The known copies. A listed copy may be gone; until all directories were scanned, an unlisted one may exist.
#[derive(Debug, Default)]
struct Index {
    copies: HashMap<u64, Entry>,
    bytes: u64,
    /// Copies that are being removed; they count as gone.
    going: HashSet<u64>,
    /// When files without a copy were last read to their end.
    read: HashMap<u64, ObservedAt>,
    /// The directories still to be scanned; `None`: the scan has not begun.
    unread: Option<Vec<Shard>>,
}

impl Index {
    fn is_complete(&self) -> bool {
        self.unread.as_ref().is_some_and(Vec::is_empty)
    }

    fn put(&mut self, number: u64, entry: Entry) {
        let before = self.copies.insert(number, entry);
        self.bytes = self.bytes + entry.bytes - before.map_or(0, |entry| entry.bytes);
    }

    fn take(&mut self, number: u64) -> u64 {
        let bytes = self.copies.remove(&number).map_or(0, |entry| entry.bytes);
        self.bytes -= bytes;
        bytes
    }
}

#[derive(Debug)]
pub(crate) struct Copies {
    shards: Shards,
    /// Copies in progress; a start deletes leftovers.
    making: Arc<dyn Dir>,
    next: AtomicU64,
    /// Bytes of the copies in progress, at their final size.
    making_bytes: AtomicU64,
    index: Mutex<Index>,
    /// Repeated reads, by directory.
    rounds: Mutex<ReadRounds>,
    durable: CopyEpochs,
}

/// A copy in progress.
#[derive(Debug)]
pub(crate) struct Making<'a> {
    all: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Copies {
    /// `now`: wall-clock time; `dirs_kept`: how many shard directories stay open.
    pub(crate) fn open(ours: &dyn Dir, now: Time, dirs_kept: usize) -> Result<Self> {
        let dir = ensure_dir(ours, b"staged")?;
        let making = ensure_dir(&*dir, b"new")?;
        for entry in making.list().at_fast("list", "staged/new")? {
            making.unlink(&entry.name).at_fast("remove", "a staged copy that was not finished")?;
        }
        Ok(Copies {
            durable: CopyEpochs::open(dir.clone(), now.sec.unsigned_abs())?,
            shards: Shards::new(dir, dirs_kept),
            making,
            next: AtomicU64::new(0),
            making_bytes: AtomicU64::new(0),
            index: Mutex::default(),
            rounds: Mutex::default(),
        })
    }

    /// Counts a copy in progress until the returned guard is dropped. The second value is the bytes of the other copies
    /// in progress.
    pub(crate) fn count(&self, bytes: u64) -> (Making<'_>, u64) {
        let others = self.making_bytes.fetch_add(bytes, Ordering::Relaxed);
        (Making { all: &self.making_bytes, bytes }, others)
    }

    /// Creates an empty file with a name of its own.
    pub(crate) fn begin(&self) -> io::Result<(Vec<u8>, Arc<dyn File>)> {
        let name = format!("{}", self.next.fetch_add(1, Ordering::Relaxed)).into_bytes();
        let file = self.making.create(&name, 0o600)?;
        Ok((name, file))
    }

    /// Removes the file that [`Copies::begin`] made.
    pub(crate) fn discard(&self, name: &[u8]) {
        if let Err(error) = self.making.unlink(name) {
            tracing::debug!(%error, "a staged copy that was not finished stays until the next start");
        }
    }

    /// Labels a copy whose bytes are all written. Returns its epoch.
    pub(crate) fn label(&self, copy: &dyn File, fingerprint: &Fingerprint, path: &[u8], now: Duration) -> Result<u64> {
        let epoch = self.durable.epoch(now)?;
        let label = Label { fingerprint: *fingerprint, epoch }.encode();
        // The label first, so that it gets the space in the inode.
        let labelled = copy.set_xattr(LABEL, label.as_bytes());
        labelled
            .and_then(|()| copy.set_xattr(PATH, escape(label_of(path)).as_bytes()))
            .at_fast("label", "a staged copy")?;
        Ok(epoch)
    }

    /// Installs the finished copy of this slow file, in place of an older copy. `false`: the older copy is just being
    /// removed.
    pub(crate) fn finish(&self, name: &[u8], fingerprint: &Fingerprint, epoch: u64, now: Duration) -> io::Result<bool> {
        let (number, bytes) = (fingerprint.file.ino, fingerprint.size);
        if self.index.lock().going.contains(&number) {
            return Ok(false);
        }
        let shard = self.shards.made(number)?;
        self.making.rename(name, &*shard, &file_name(number), RenameMode::Replace)?;
        let mut index = self.index.lock();
        index.read.remove(&number);
        index.put(number, Entry { bytes, used: ObservedAt::at(now), epoch });
        Ok(true)
    }

    /// The copy of this slow file, if one is certainly whole.
    pub(crate) fn find(&self, number: u64) -> io::Result<Option<Copy>> {
        let known = {
            let index = self.index.lock();
            let unknown = !index.copies.contains_key(&number);
            if unknown && (index.is_complete() || index.going.contains(&number)) {
                return Ok(None);
            }
            index.copies.contains_key(&number)
        };
        let opened = self.shards.of(number).and_then(|shard| shard.open(&file_name(number), Access::Read));
        let Some(fd) = absent_is_none(opened)? else {
            self.index.lock().take(number);
            return Ok(None);
        };
        let Some(label) = Label::of(number, &*fd)?.filter(|label| self.durable.counts(label.epoch)) else {
            self.unlink(number, self.condemn(number))?;
            return Ok(None);
        };
        if !known {
            let bytes = fd.stat()?.size;
            if bytes != label.fingerprint.size {
                // A file system repair or another program shortened it.
                self.unlink(number, self.condemn(number))?;
                return Ok(None);
            }
            let mut index = self.index.lock();
            if !index.copies.contains_key(&number) {
                index.put(number, Entry { bytes, used: ObservedAt::NEVER, epoch: label.epoch });
            }
        }
        Ok(Some(Copy { number, fd, fingerprint: label.fingerprint }))
    }

    /// Hides a copy from lookups. Returns its size in bytes; [`Copies::unlink`] must follow.
    fn condemn(&self, number: u64) -> u64 {
        let mut index = self.index.lock();
        index.going.insert(number);
        index.take(number)
    }

    /// Removes a condemned copy of `bytes` bytes, and returns that number.
    fn unlink(&self, number: u64, bytes: u64) -> io::Result<u64> {
        let gone = absent_is_none(self.shards.of(number).and_then(|shard| shard.unlink(&file_name(number))));
        let mut index = self.index.lock();
        // An unlisted copy that remains would be found again until all directories were scanned: its file gets no copy
        // from this mount any more.
        if gone.is_ok() || index.is_complete() {
            index.going.remove(&number);
        }
        gone.map(|_| bytes)
    }

    /// Removes a copy that is no longer read. If the disk refuses, this mount treats it as gone; the next one compares
    /// it with its file again.
    fn remove(&self, number: u64) {
        if let Err(error) = self.unlink(number, self.condemn(number)) {
            tracing::warn!(number, %error, "a staged copy could not be removed; it is not read any more");
        }
    }

    /// Makes removals and finished copies durable. Does nothing if there never was a copy.
    fn sync(&self, number: u64) -> io::Result<()> {
        absent_is_none(self.shards.of(number).and_then(|shard| shard.sync())).map(drop)
    }

    /// Moves the copy into the pool, as an object.
    pub(crate) fn hand_over(&self, number: u64, pool: &Pool, object: u64) -> io::Result<()> {
        self.index.lock().take(number);
        pool.adopt(object, &*self.shards.of(number)?, &file_name(number))
    }

    /// Notes that a file of a directory was read to its end, with or without a copy. Returns the interval for
    /// `rounds::replaces`.
    pub(crate) fn was_read(&self, number: u64, dir: Ino, now: Duration) -> Option<Duration> {
        let before = {
            let mut index = self.index.lock();
            let Index { copies, read, .. } = &mut *index;
            let seen = ObservedAt::at(now);
            match copies.get_mut(&number) {
                Some(entry) => Some(std::mem::replace(&mut entry.used, seen)),
                None if read.len() < READ_KEPT || read.contains_key(&number) => read.insert(number, seen),
                None => None,
            }
        };
        let before = before.filter(|seen| *seen != ObservedAt::NEVER).map(ObservedAt::since_start);
        let mut rounds = self.rounds.lock();
        if let Some(before) = before {
            rounds.read_again(dir, before, now);
        }
        rounds.interval(dir, before, now)
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.index.lock().copies.contains_key(&number)
    }

    /// Size of the copy in bytes; 0 if there is none.
    fn bytes_of(&self, number: u64) -> u64 {
        self.index.lock().copies.get(&number).map_or(0, |entry| entry.bytes)
    }

    /// Whether there is certainly no copy at all.
    fn are_none(&self) -> bool {
        let index = self.index.lock();
        index.copies.is_empty() && index.is_complete()
    }

    /// Number and bytes of the known copies.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let index = self.index.lock();
        (index.copies.len() as u64, index.bytes)
    }

    /// At most `most` copies, the longest unused first: number, bytes and time of last use.
    pub(crate) fn longest_unused(&self, most: usize) -> Vec<(u64, u64, Duration)> {
        let index = self.index.lock();
        let all = index.copies.iter().map(|(number, entry)| (entry.used, *number, entry.bytes));
        let mut all: Vec<(ObservedAt, u64, u64)> = all.collect();
        drop(index);
        if all.len() > most {
            all.select_nth_unstable(most);
            all.truncate(most);
        }
        all.sort_unstable();
        all.into_iter().map(|(used, number, bytes)| (number, bytes, used.since_start())).collect()
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.index.lock().copies.keys().copied().collect()
    }

    /// Copies whose epoch a sync failed to make durable.
    fn lost(&self) -> Vec<u64> {
        let epochs: Vec<(u64, u64)> =
            self.index.lock().copies.iter().map(|(number, entry)| (*number, entry.epoch)).collect();
        epochs.into_iter().filter(|(_, epoch)| !self.durable.counts(*epoch)).map(|(number, _)| number).collect()
    }

    /// The path that the file had when it was copied.
    pub(crate) fn path_of(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        let fd = self.shards.of(number)?.open(&file_name(number), Access::Read)?;
        path_then(&*fd)
    }

    /// Scans the next directory and removes copies that are not certainly whole; `false`: all were scanned.
    fn scan_one(&self) -> io::Result<bool> {
        let next = {
            let mut index = self.index.lock();
            if index.unread.is_none() {
                drop(index);
                let all = self.shards.list()?;
                index = self.index.lock();
                index.unread = Some(all);
            }
            index.unread.as_ref().and_then(|unread| unread.last().copied())
        };
        let Some(next) = next else { return Ok(false) };
        let shard = self.shards.at(next)?;
        for number in self.shards.numbers_in(next)? {
            let name = file_name(number);
            let Some(stat) = absent_is_none(shard.stat(&name))? else { continue };
            let label = absent_is_none(shard.get_xattr(&name, LABEL))?.flatten();
            let label = label.and_then(|text| Label::decode(number, &text));
            let is_whole = |label: &Label| self.durable.counts(label.epoch) && label.fingerprint.size == stat.size;
            let Some(label) = label.filter(is_whole) else {
                absent_is_none(shard.unlink(&name))?;
                continue;
            };
            let mut index = self.index.lock();
            if !index.copies.contains_key(&number) && !index.going.contains(&number) {
                index.put(number, Entry { bytes: stat.size, used: ObservedAt::NEVER, epoch: label.epoch });
            }
        }
        // Only now: until then unlisted copies are looked for on disk. Another thread may have scanned the same
        // directory.
        if let Some(unread) = &mut self.index.lock().unread {
            unread.retain(|other| *other != next);
        }
        Ok(true)
    }
}

impl Tiers {
    /// Finds the copies of the previous mount, one directory at a time.
    pub fn find_copies_step(&self) -> Result<Progress> {
        match self.copies.scan_one().at_fast("look through", "the staged copies")? {
            true => Ok(Progress::Did),
            false => Ok(Progress::Idle),
        }
    }

    /// The number that a copy of this file has, if the file may have one.
    pub(crate) fn copy_number(&self, ino: Ino) -> Option<u64> {
        self.copy_number_in(&self.state.lock(), ino)
    }

    pub(crate) fn copy_number_in(&self, st: &EngineState, ino: Ino) -> Option<u64> {
        let node = st.view.get(ino).filter(|node| node.kind == Kind::File && node.meta().nlink == 1)?;
        node.slow_id().filter(|id| id.0 == st.view.root_dev()).map(|id| id.1.ino)
    }

    /// Called at each open: lets a file whose bytes are on the slow tier be read from its copy, if that still equals
    /// the slow file.
    pub(crate) fn attach_copy(&self, cx: &Cx, state: &FileState) -> Result<()> {
        if self.copies.are_none() {
            return Ok(());
        }
        let attached = {
            let io = self.shared(cx, state)?;
            if io.place != Bytes::Slow || state.is_pinned() || (io.copy.is_none() && io.fd.is_some()) {
                return Ok(());
            }
            io.copy.clone()
        };
        let Some(number) = self.copy_number(state.ino) else { return Ok(()) };
        let found = match attached {
            None => self.copies.find(number).map(|found| found.map(Box::new)).unwrap_or_else(|error| {
                tracing::warn!(number, %error, "a staged copy cannot be opened; the file is read from the slow tier");
                None
            }),
            copy => copy,
        };
        let Some(copy) = found else { return Ok(()) };
        if !self.is_still_equal(cx, state.ino, &copy.fingerprint)? {
            tracing::info!(path = %self.label(state.ino), "the slow file has changed since it was copied; the staged copy is dropped");
            self.lose_copy(state, copy.number);
            return Ok(());
        }
        let mut io = self.exclusive(cx, state)?;
        if io.place == Bytes::Slow && !state.is_pinned() && io.fd.is_none() {
            io.copy = Some(copy);
            drop(io);
            self.set_staged(state.ino, true);
        }
        Ok(())
    }

    /// Makes all finished copies durable. After an error the copies that were not durable are removed unread: a failed
    /// sync leaves a file in an unknown state.
    pub fn sync_copies(&self) -> Result<()> {
        let synced = self.copies.durable.sync();
        let lost = if synced.is_err() { self.copies.lost() } else { Vec::new() };
        for number in lost {
            let file = {
                let st = self.state.lock();
                st.view.at_slow((st.view.root_dev(), number)).and_then(|ino| st.view.get(ino)?.file.clone())
            };
            match file {
                Some(file) => self.lose_copy(&file, number),
                None => self.copies.remove(number),
            }
        }
        synced
    }

    /// Whether finished copies have waited long enough to be made durable.
    pub(crate) fn copies_are_due(&self) -> bool {
        self.copies.durable.is_due(self.uptime(), || self.saves())
    }

    pub(crate) fn set_staged(&self, ino: Ino, staged: bool) {
        if let Some(node) = self.state.lock().view.get_mut(ino) {
            node.staged = staged;
        }
    }

    /// Whether the slow file still has the copied fingerprint. An answer younger than `revalidate` counts; while the
    /// slow tier is down, any does.
    fn is_still_equal(&self, cx: &Cx, ino: Ino, fingerprint: &Fingerprint) -> Result<bool> {
        let asked = {
            let st = self.state.lock();
            let Some(node) = st.view.get(ino) else { return Ok(false) };
            let known = node.slow_fingerprint();
            let fresh = node.seen.fresh(self.uptime(), self.options().revalidate);
            if (fresh || self.slow.is_down()) && known == Some(*fingerprint) {
                return Ok(true);
            }
            st.view.asked(self.uptime())
        };
        cx.slow()?;
        let found = match self.at_slow(ino, |path, id| self.slow.stat_of(path, id)) {
            Err(e) if is_elsewhere(&e) => return Ok(false),
            found => found.at("stat on slow", self.label(ino))?,
        };
        if !self.has_its_owner(ino, &found) {
            return Ok(false);
        }
        let mut st = self.state.lock();
        let applied = st.queue.applied();
        if st.view.get(ino).is_some_and(|node| node.slow_id() == Some(found.id())) {
            st.view.refresh(ino, &found, asked, applied);
        }
        Ok(Fingerprint::of(&found) == *fingerprint)
    }

    /// Removes the copy; the file is read from the slow tier from now on, even if the disk refuses the removal.
    pub(crate) fn lose_copy(&self, state: &FileState, number: u64) {
        let mut io = state.io.write();
        if !state.is_pinned() {
            io.copy = None;
        }
        drop(io);
        self.set_staged(state.ino, false);
        self.copies.remove(number);
    }

    /// Called when a read through `fd` failed. `true`: `fd` was the copy; it is dropped and the file is read from the
    /// slow tier from now on.
    pub(crate) fn give_up_copy(&self, state: &FileState, fd: &Arc<dyn File>, error: &io::Error) -> bool {
        let copy = state.io.read().copy.clone().filter(|copy| Arc::ptr_eq(&copy.fd, fd) && !state.is_pinned());
        let Some(copy) = copy else { return false };
        let path = self.label(state.ino);
        tracing::warn!(%path, %error, "the staged copy cannot be read; it is dropped, and the file is read from the slow tier");
        self.lose_copy(state, copy.number);
        true
    }

    /// The file now has other bytes, in an object: its copy is useless.
    pub(crate) fn forget_copy(&self, ino: Ino) {
        if let Some(number) = self.copy_number(ino) {
            self.set_staged(ino, false);
            self.drop_copy(number);
        }
    }

    /// Drops the copy of a file that is removed or has other bytes.
    pub(crate) fn drop_copy(&self, number: u64) {
        if self.copies.has(number)
            && let Err(error) = self.copies.unlink(number, self.copies.condemn(number))
        {
            tracing::debug!(number, %error, "an outdated staged copy could not be removed");
        }
    }

    /// Like [`Tiers::forget_copy`], before the slow file is changed in place: the removal is durable on return, so that
    /// no byte changes under a fingerprint (P6).
    pub(crate) fn forget_copy_durably(&self, ino: Ino) -> Result<()> {
        let Some(number) = self.copy_number(ino) else { return Ok(()) };
        let condemned = self.copies.condemn(number);
        let gone = self.copies.unlink(number, condemned).and_then(|_| self.copies.sync(number));
        gone.at_fast("remove the staged copy of", self.label(ino))
    }

    /// Whether the copy's file is pinned, by its current path or, if it was not looked up, by the path it had when
    /// copied.
    pub(crate) fn is_copy_pinned(&self, number: u64, bytes: u64) -> bool {
        self.any_stays() && self.copy_path(number).is_some_and(|path| self.stays(&path, bytes))
    }

    pub fn copy_path(&self, number: u64) -> Option<Vec<u8>> {
        let known = {
            let st = self.state.lock();
            st.view.at_slow((st.view.root_dev(), number)).and_then(|ino| st.view.path(ino))
        };
        known.or_else(|| self.copies.path_of(number).ok().flatten())
    }

    /// The numbers of all known copies.
    pub fn copies(&self) -> Vec<u64> {
        self.copies.numbers()
    }

    /// Evicts the copy of a file; `false`: there is none that may be evicted.
    pub fn evict_copy_of(&self, ino: Ino) -> Result<bool> {
        let Some(number) = self.copy_number(ino).filter(|number| self.copies.has(*number)) else { return Ok(false) };
        Ok(self.evict_unpinned_copy(number)?.is_some())
    }

    /// Whether a copy's file is at or below this path, from the root.
    pub fn is_copy_below(&self, number: u64, below: &[u8]) -> bool {
        below.is_empty() || self.copy_path(number).is_some_and(|path| is_at_or_below(&path, below))
    }

    /// Evicts a copy if its file is not pinned. Returns the bytes freed.
    pub fn evict_unpinned_copy(&self, number: u64) -> Result<Option<u64>> {
        if self.is_copy_pinned(number, self.copies.bytes_of(number)) { Ok(None) } else { self.evict_copy(number) }
    }

    /// Evicts a copy and returns its bytes; `None`: its file is open, so the space would not be freed.
    pub(crate) fn evict_copy(&self, number: u64) -> Result<Option<u64>> {
        let bytes = {
            let mut st = self.state.lock();
            let ino = st.view.at_slow((st.view.root_dev(), number));
            let node = ino.and_then(|ino| st.view.get_mut(ino));
            let file = node.as_ref().and_then(|node| node.file.as_ref());
            if file.is_some_and(|file| file.opens.load(Ordering::Acquire) > 0) {
                return Ok(None);
            }
            if let Some(node) = node {
                node.staged = false;
            }
            // Under the lock, so that no later open finds it.
            self.copies.condemn(number)
        };
        let gone = self.copies.unlink(number, bytes).at_fast("remove", "a staged copy")?;
        self.counters.totals.evictions.increment(1);
        Ok(Some(gone))
    }
}

/// Step 1 of turning a copy into an object. Also works for a copy whose epoch is not synced yet.
pub(crate) fn become_object(copy: &Copy, named: Named) -> io::Result<()> {
    Pool::set_name(&*copy.fd, &named)?;
    Pool::set_fingerprint(&*copy.fd, &copy.fingerprint)?;
    copy.fd.remove_xattr(LABEL)?;
    copy.fd.remove_xattr(PATH)?;
    copy.fd.sync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_round_trips_and_nonsense_is_none() {
        let time = Time { sec: 1_700_000_000, nsec: 1 };
        let fingerprint = Fingerprint { file: FileId { ino: 7, birth: 0 }, size: 12_288, mtime: time, ctime: time };
        let label = Label { fingerprint, epoch: 1_700_000_123 };
        assert_eq!(Label::decode(7, label.encode().as_bytes()), Some(label.clone()));
        assert!(label.encode().len() <= 60, "it has to fit into an inode of ext4: {}", label.encode());
        for bad in ["", "1", "1 2", "x 3 4.0 5.0", "1 3 4.0", "1 a 2 3 4.0 5.0", "\u{1F600} 3 4.0"] {
            assert_eq!(Label::decode(7, bad.as_bytes()), None, "{bad}");
        }
    }
}
