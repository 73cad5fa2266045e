//! What the kernel holds of ours: open files, open directories, counted references. Each type gives itself back when it
//! is dropped, so that no code path (an error, a late reply) can leak one.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use fuser::{BackingId, FopenFlags};
use parking_lot::Mutex;

use super::control::node;
use super::control::open::Virtual;
use super::control::sources::OpenFiles;
use super::convert;
use super::holdings::Share;
use super::io_paths::Lease;
use crate::stats;
use crate::tiers::disk::File;
use crate::tiers::{Attr, Cx, Ino, ListEntry, Listing, OpenFile, ROOT, SharedListing, Tiers};

/// Maps handle numbers to their handles. Numbers are never reused.
#[derive(Debug)]
pub(super) struct Handles<T> {
    open: DashMap<u64, Arc<T>>,
    next: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles { open: DashMap::new(), next: AtomicU64::new(1) }
    }
}

impl<T> Handles<T> {
    pub(super) fn insert(&self, handle: T) -> (u64, Arc<T>) {
        let (fh, handle) = (self.next.fetch_add(1, Relaxed), Arc::new(handle));
        self.open.insert(fh, Arc::clone(&handle));
        (fh, handle)
    }

    /// A clone of the reference: no lock of the table outlives this call.
    pub(super) fn get(&self, fh: u64) -> Option<Arc<T>> {
        self.open.get(&fh).map(|handle| Arc::clone(&handle))
    }

    /// Scans all handles: not for frequent calls.
    pub(super) fn any(&self, is_one: impl Fn(&T) -> bool) -> bool {
        self.open.iter().any(|handle| is_one(&handle))
    }

    /// How many match; scans all handles, too.
    pub(super) fn count(&self, is_one: impl Fn(&T) -> bool) -> u64 {
        self.open.iter().filter(|handle| is_one(handle)).count() as u64
    }

    pub(super) fn remove(&self, fh: u64) -> Option<Arc<T>> {
        self.open.remove(&fh).map(|(_, handle)| handle)
    }
}

impl OpenFiles for Handles<Open> {
    fn of_users(&self) -> u64 {
        self.count(|open| open.user_file().is_some())
    }
}

/// What a file handle of the kernel refers to.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "each is in a reference already, and nearly all are files")]
pub(super) enum Open {
    File(FileHandle),
    Virtual(Virtual),
}

impl Open {
    /// `None` for a file of `.dlio`.
    pub(super) fn user_file(&self) -> Option<&FileHandle> {
        match self {
            Open::File(handle) => Some(handle),
            Open::Virtual(_) => None,
        }
    }
}

/// An open file of the view. Dropping the last reference closes it in the engine; an abandoned call may still hold one
/// when the kernel releases the handle.
#[derive(Debug)]
pub(super) struct FileHandle {
    tiers: Arc<Tiers>,
    /// Taken by `drop` only.
    file: Option<OpenFile>,
    cx: Cx,
    /// Opened with O_SYNC or O_DSYNC.
    pub(super) sync: bool,
    /// Opened by execve(2): open for as long as the program runs.
    pub(super) runs: bool,
    /// Where its calls are counted.
    pub(super) seen: stats::Handle,
    /// Given back after the close.
    _share: Share,
    /// Its share in the inode's I/O path, once the kernel has its answer.
    lease: OnceLock<Lease>,
}

impl FileHandle {
    pub(super) fn new(
        tiers: &Arc<Tiers>,
        cx: &Cx,
        (file, share): (OpenFile, Share),
        flags: i32,
        seen: stats::Handle,
    ) -> Self {
        // Not the opener's context: an abandoned open must still be closed.
        let cx = Cx::fast_only(cx.uid, cx.gid);
        let (sync, runs) = (convert::wants_sync(flags), convert::wants_to_run(flags));
        let (tiers, lease) = (Arc::clone(tiers), OnceLock::new());
        FileHandle { tiers, file: Some(file), cx, sync, runs, seen, _share: share, lease }
    }

    pub(super) fn file(&self) -> &OpenFile {
        self.file.as_ref().expect("only drop takes it")
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.tiers.release(&self.cx, file);
        }
    }
}

/// An open directory.
#[derive(Debug)]
pub(super) struct DirHandle {
    pub(super) ino: Ino,
    reading: Mutex<Option<DirReading>>,
    /// How many entries with attributes to gather for one reply; learned from how many fitted into the last one.
    batch: AtomicUsize,
}

/// The listing that a reading from offset 0 (after opendir and rewinddir) sees. All who have the directory open share
/// it, up to its end at that time. Later entries are not read, or a program that makes a file for each one it finds
/// would never finish.
#[derive(Clone, Debug)]
pub(super) struct DirReading {
    listing: Arc<SharedListing>,
    end: u64,
    _share: Option<Arc<Share>>,
}

impl DirReading {
    pub(super) fn new(listing: Arc<SharedListing>, share: Option<Share>) -> Self {
        let end = listing.latest().end;
        DirReading { listing, end, _share: share.map(Arc::new) }
    }
}

/// A guess for the first reply: about this many fit into a page.
const FIRST_BATCH: usize = 24;
/// Bounds the lookups that one reply waits for.
const LARGEST_BATCH: usize = 1024;

impl DirHandle {
    pub(super) fn new(ino: Ino) -> Self {
        DirHandle { ino, reading: Mutex::new(None), batch: AtomicUsize::new(FIRST_BATCH) }
    }

    /// The entries from an offset on: the position after the last one that was read. At offset 0, `begin` begins anew;
    /// it is called without any lock.
    pub(super) fn page<E>(&self, offset: u64, begin: impl FnOnce() -> Result<DirReading, E>) -> Result<ListingPage, E> {
        let going_on = self.reading.lock().clone().filter(|_| offset > 0);
        let reading = match going_on {
            Some(reading) => reading,
            None => {
                let reading = begin()?;
                *self.reading.lock() = Some(reading.clone());
                reading
            }
        };
        Ok(ListingPage { dir: self.ino, listing: reading.listing.latest(), from: offset, end: reading.end })
    }

    pub(super) fn close(&self, tiers: &Tiers) {
        if let Some(reading) = &*self.reading.lock() {
            tiers.close_listing(&reading.listing);
        }
    }

    pub(super) fn batch(&self) -> usize {
        self.batch.load(Relaxed)
    }

    /// Learns from a reply: `fitted` of `gathered` entries went into it.
    fn learn(&self, fitted: usize, gathered: usize) {
        let next = if fitted < gathered { fitted } else { self.batch() * 2 };
        self.batch.store(next.clamp(1, LARGEST_BATCH), Relaxed);
    }
}

/// An inode whose counted reference is on its way to the kernel. If dropped before that, the reference is given back.
#[derive(Debug)]
pub(super) struct EntryReference {
    attr: Attr,
    /// `None` if there is no reference to give back: for our own `.dlio`, and after the hand-over.
    counted_by: Option<Arc<Tiers>>,
}

impl EntryReference {
    pub(super) fn counted(tiers: &Arc<Tiers>, attr: Attr) -> Self {
        EntryReference { attr, counted_by: Some(Arc::clone(tiers)) }
    }

    pub(super) fn uncounted(attr: Attr) -> Self {
        EntryReference { attr, counted_by: None }
    }

    /// The kernel has the reference from here on.
    pub(super) fn hand_over(mut self) -> Attr {
        self.counted_by = None;
        self.attr
    }
}

impl Drop for EntryReference {
    fn drop(&mut self) {
        if let Some(tiers) = self.counted_by.take() {
            tiers.forget(self.attr.ino, 1);
        }
    }
}

/// A new handle on its way to the kernel. If dropped before that, the file or directory is closed.
#[derive(Debug)]
pub(super) struct Opened {
    fh: u64,
    flags: FopenFlags,
    table: Option<Arc<dyn Close>>,
    file: Option<OpenedFile>,
}

/// What else the kernel must be told about an open file of the view.
#[derive(Debug)]
struct OpenedFile {
    handle: Arc<Open>,
    lease: Lease,
    /// The file that passthrough would read from.
    bytes: Option<Arc<dyn File>>,
    writes: bool,
    /// The file was only written through this mount since the last open.
    unchanged: bool,
}

/// A table of handles of any type.
trait Close: Send + Sync + std::fmt::Debug {
    fn close(&self, fh: u64);
}

impl<T: Send + Sync + std::fmt::Debug> Close for Handles<T> {
    fn close(&self, fh: u64) {
        drop(self.remove(fh));
    }
}

impl Opened {
    pub(super) fn new<T>(table: &Arc<Handles<T>>, handle: T, flags: FopenFlags) -> Self
    where
        T: Send + Sync + std::fmt::Debug + 'static,
    {
        let (fh, _) = table.insert(handle);
        let table: Arc<Handles<T>> = Arc::clone(table);
        Opened { fh, flags, table: Some(table), file: None }
    }

    /// For a file of the view; its I/O path decides the flags.
    pub(super) fn file(table: &Arc<Handles<Open>>, handle: FileHandle, lease: Lease) -> Self {
        let bytes = lease.is_passthrough().then(|| handle.tiers.backing(handle.file())).flatten();
        let unchanged = handle.tiers.unchanged_since_open(handle.file());
        let writes = handle.file().mode.write;
        let (fh, handle) = table.insert(Open::File(handle));
        let table: Arc<Handles<Open>> = Arc::clone(table);
        let file = Some(OpenedFile { handle, lease, bytes, writes, unchanged });
        Opened { fh, flags: FopenFlags::empty(), table: Some(table), file }
    }

    pub(super) fn seen(&self) -> Option<&stats::Handle> {
        self.file.as_ref()?.handle.user_file().map(|handle| &handle.seen)
    }

    /// The kernel has the handle from here on. `register` makes a descriptor known to the kernel, for passthrough.
    pub(super) fn hand_over(
        mut self,
        register: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<BackingId>,
    ) -> (u64, FopenFlags, Option<Arc<BackingId>>) {
        self.table = None;
        let Some(OpenedFile { handle, mut lease, bytes, writes, unchanged }) = self.file.take() else {
            return (self.fh, self.flags, None);
        };
        let backing = lease.backing(bytes.as_ref().and_then(|bytes| bytes.descriptor()), register);
        let flags = lease.flags(writes, unchanged);
        if let Some(handle) = handle.user_file() {
            handle.lease.set(lease).expect("an answer is given once");
        }
        (self.fh, flags, backing)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(table) = self.table.take() {
            table.close(self.fh);
        }
    }
}

/// A part of a listing: as many entries from a position as fit.
#[derive(Debug)]
pub(super) struct ListingPage {
    dir: Ino,
    listing: Arc<Listing>,
    from: u64,
    end: u64,
}

impl ListingPage {
    pub(super) fn entries(&self) -> impl Iterator<Item = &ListEntry> {
        // A user's `.dlio` on the slow tier is hidden: the name is ours.
        let is_ours = |entry: &&ListEntry| self.dir == ROOT && entry.name == node::NAME;
        let entries = self.listing.from(self.from).iter().take_while(|entry| entry.at < self.end);
        entries.filter(move |entry| !is_ours(entry))
    }
}

/// Entries of a directory with their attributes, for one READDIRPLUS. The kernel takes a reference to each but `.` and
/// `..`; references of entries that do not fit are given back.
#[derive(Debug)]
pub(super) struct DirEntries {
    pub(super) dir: Arc<DirHandle>,
    /// Position, name, and the entry.
    pub(super) found: Vec<(u64, Vec<u8>, EntryReference)>,
}

impl DirEntries {
    /// Offers each entry to `add` (position, name, attributes) until it says that the reply is full.
    pub(super) fn hand_over(self, mut add: impl FnMut(u64, &[u8], &Attr) -> bool) {
        let (gathered, mut fitted) = (self.found.len(), 0);
        for (at, name, entry) in self.found {
            if add(at, &name, &entry.attr) {
                break;
            }
            entry.hand_over();
            fitted += 1;
        }
        self.dir.learn(fitted, gathered);
    }
}
