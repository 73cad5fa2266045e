//! The two tiers and the view over them: what an application's calls mean.
//!
//! [`Tiers`] is the engine. Its methods are the file system's operations on inode numbers, without a word of FUSE; its
//! `*_step` methods are the background's work, each a bounded piece that a test can stop after.

pub mod disk;
pub mod os;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Errno, Error, Result};
use crate::path::Name;
use disk::{Allocate, Clock, Dir, DirEntry, Kind, NewAttr, RenameMode, Seek, Space, Time};

/// An inode number of the view: ours, stable while the kernel or an object knows the file. The root is 1.
pub type Ino = u64;
pub const ROOT: Ino = 1;
/// A log sequence number.
pub type Lsn = u64;

/// Attributes as the view shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    pub kind: Kind,
    /// The low twelve mode bits.
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// How long the kernel may believe this without asking.
    pub ttl: Duration,
}

/// Who asks, and how far the call may go.
#[derive(Clone, Debug)]
pub struct Cx {
    pub uid: u32,
    pub gid: u32,
    slow: SlowAccess,
}

#[derive(Clone, Debug)]
enum SlowAccess {
    Forbidden,
    Allowed(Arc<AtomicBool>),
}

impl Cx {
    /// For a thread that must not wait: what needs the slow tier answers [`Error::NeedSlow`] and changes nothing.
    pub fn fast_only(uid: u32, gid: u32) -> Self {
        Cx { uid, gid, slow: SlowAccess::Forbidden }
    }

    /// For a thread that may wait for the slow tier. Once `gave_up` is set nothing is changed any more: the call answers
    /// [`Error::SlowTimeout`].
    pub fn may_wait(uid: u32, gid: u32, gave_up: Arc<AtomicBool>) -> Self {
        Cx { uid, gid, slow: SlowAccess::Allowed(gave_up) }
    }
}

/// Changes asked for by one SETATTR.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub attr: NewAttr,
    pub size: Option<u64>,
}

/// How a file is opened; what is not here makes no difference to the engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenMode {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub truncate: bool,
}

/// An open file. Refers to the inode, whatever holds its bytes now. Give it back with [`Tiers::release`].
#[derive(Debug)]
pub struct OpenFile {
    pub ino: Ino,
    pub mode: OpenMode,
    // private: Arc<FileState>
}

/// A merged directory listing, frozen when the directory was opened. `.` and `..` are included, first.
#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<ListEntry>,
}

#[derive(Debug)]
pub struct ListEntry {
    pub name: Vec<u8>,
    pub ino: Ino,
    pub kind: Kind,
}

/// Which tier holds the newest bytes, for `user.dlio.tier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierKind {
    Fast,
    Slow,
}

/// `user.dlio.state` (design: state of a file).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Slow,
    Dirty,
    Draining,
    Clean,
    Staged,
    Failed,
    Conflict,
}

/// What a background step achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something was done; call again.
    Did,
    /// Nothing to do until something changes.
    Idle,
    /// Nothing to do before this much time has passed.
    Wait(Duration),
}

/// Where the engine stands; everything `.dlio/stats` says about the tiers.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Files whose newest bytes or names only the fast tier has.
    pub unsafe_files: u64,
    pub unsafe_bytes: u64,
    /// Events not yet published, namespace changes included.
    pub pending_events: u64,
    /// Age of the oldest pending event or uncommitted write.
    pub oldest: Option<Duration>,
    /// At the recent drain rate; `None` when unknown.
    pub eta: Option<Duration>,
    pub drained_bytes: u64,
    pub drained_files: u64,
    pub published_events: u64,
    /// Bytes copied to the slow tier per second, recently.
    pub drain_bytes_per_s: u64,
    pub log_lsn: Lsn,
    pub durable_lsn: Lsn,
    pub applied_lsn: Lsn,
    pub objects: u64,
    pub object_bytes: u64,
    pub evictions: u64,
    pub known_inodes: u64,
    pub open_files: u64,
    /// Batches of more than one step (promise P1's exception), snapshots of late files, in-place writes.
    pub batches: u64,
    pub late_snapshots: u64,
    pub in_place_writes: u64,
    pub conflicts: u64,
    pub spilled: u64,
    /// Versions struck or files quarantined by the last recovery.
    pub struck: u64,
    pub quarantined: u64,
    /// Why publishing stands still, with the remedy; shown first.
    pub held: Option<String>,
    /// Set while the slow tier does not answer.
    pub slow_down: Option<String>,
    /// Files whose writer was cut off by a crash; a sync, drain or close accepts them as they are.
    pub interrupted: u64,
    pub fast: Space,
    pub slow: Space,
}

#[derive(Debug)]
pub struct Tiers {}

#[allow(unused_variables, clippy::too_many_arguments)]
impl Tiers {
    /// Looks up a name and counts one kernel reference to what it finds (given back by [`Tiers::forget`]).
    pub fn lookup(&self, cx: &Cx, parent: Ino, name: &Name) -> Result<Attr> {
        todo!()
    }
    pub fn forget(&self, ino: Ino, count: u64) {
        todo!()
    }
    pub fn getattr(&self, cx: &Cx, ino: Ino) -> Result<Attr> {
        todo!()
    }
    pub fn setattr(&self, cx: &Cx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        todo!()
    }
    pub fn readlink(&self, cx: &Cx, ino: Ino) -> Result<Vec<u8>> {
        todo!()
    }
    /// `mode` has the caller's mode bits, `umask` is applied here (a default ACL replaces it). Counts one reference.
    pub fn mkdir(&self, cx: &Cx, parent: Ino, name: &Name, mode: u32, umask: u32) -> Result<Attr> {
        todo!()
    }
    pub fn mknod(
        &self,
        cx: &Cx,
        parent: Ino,
        name: &Name,
        kind: Kind,
        mode: u32,
        umask: u32,
        rdev: u64,
    ) -> Result<Attr> {
        todo!()
    }
    pub fn symlink(&self, cx: &Cx, parent: Ino, name: &Name, target: &[u8]) -> Result<Attr> {
        todo!()
    }
    /// Creates and opens; EEXIST if the name is there (the kernel asks for creation only when it believes it is not).
    pub fn create(
        &self,
        cx: &Cx,
        parent: Ino,
        name: &Name,
        mode: u32,
        umask: u32,
        open: OpenMode,
    ) -> Result<(Attr, OpenFile)> {
        todo!()
    }
    pub fn link(&self, cx: &Cx, ino: Ino, parent: Ino, name: &Name) -> Result<Attr> {
        todo!()
    }
    pub fn unlink(&self, cx: &Cx, parent: Ino, name: &Name) -> Result<()> {
        todo!()
    }
    pub fn rmdir(&self, cx: &Cx, parent: Ino, name: &Name) -> Result<()> {
        todo!()
    }
    pub fn rename(&self, cx: &Cx, parent: Ino, name: &Name, to: Ino, to_name: &Name, mode: RenameMode) -> Result<()> {
        todo!()
    }
    pub fn list(&self, cx: &Cx, ino: Ino) -> Result<Listing> {
        todo!()
    }
    pub fn open(&self, cx: &Cx, ino: Ino, mode: OpenMode) -> Result<OpenFile> {
        todo!()
    }
    /// Fills `buf`; a short count means end of file.
    pub fn read(&self, cx: &Cx, file: &OpenFile, buf: &mut [u8], offset: u64) -> Result<usize> {
        todo!()
    }
    /// Writes all or fails. `kill_privileges`: clear suid and sgid as POSIX asks of a write by an unprivileged process.
    pub fn write(&self, cx: &Cx, file: &OpenFile, bytes: &[u8], offset: u64, kill_privileges: bool) -> Result<()> {
        todo!()
    }
    /// One `close()` of one descriptor: what was written gets its place in the order.
    pub fn flush(&self, cx: &Cx, file: &OpenFile) -> Result<()> {
        todo!()
    }
    /// The last reference is gone. Cannot fail towards the application; a failure is kept in the file's state.
    pub fn release(&self, cx: &Cx, file: OpenFile) {
        todo!()
    }
    /// D1: returns when bytes, name and every earlier record are durable on the fast tier.
    pub fn fsync(&self, cx: &Cx, file: &OpenFile) -> Result<()> {
        todo!()
    }
    /// D1 for the names in a directory and for the files in it; for the root, D1 for everything.
    pub fn fsync_dir(&self, cx: &Cx, ino: Ino) -> Result<()> {
        todo!()
    }
    pub fn allocate(&self, cx: &Cx, file: &OpenFile, what: Allocate, offset: u64, len: u64) -> Result<()> {
        todo!()
    }
    pub fn seek(&self, cx: &Cx, file: &OpenFile, what: Seek, offset: u64) -> Result<u64> {
        todo!()
    }
    /// Copies between two open files; returns the bytes copied, 0 at the end of the source.
    pub fn copy_range(
        &self,
        cx: &Cx,
        from: &OpenFile,
        from_offset: u64,
        to: &OpenFile,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        todo!()
    }
    /// `Ok(None)`: no such attribute. Includes `user.dlio.state` and `user.dlio.tier`.
    pub fn get_xattr(&self, cx: &Cx, ino: Ino, key: &[u8]) -> Result<Option<Vec<u8>>> {
        todo!()
    }
    /// `create`/`replace` as XATTR_CREATE and XATTR_REPLACE.
    pub fn set_xattr(&self, cx: &Cx, ino: Ino, key: &[u8], value: &[u8], create: bool, replace: bool) -> Result<()> {
        todo!()
    }
    pub fn remove_xattr(&self, cx: &Cx, ino: Ino, key: &[u8]) -> Result<()> {
        todo!()
    }
    pub fn list_xattr(&self, cx: &Cx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
    /// The slow tier's size, and its free space less what is pending.
    pub fn statfs(&self, cx: &Cx) -> Result<Space> {
        todo!()
    }

    /// The inode's path from the mount root, escaped, for messages and statistics; `None` when it has no name any more.
    pub fn path_of(&self, ino: Ino) -> Option<String> {
        todo!()
    }
    pub fn status(&self) -> Status {
        todo!()
    }
    /// The paths that only the fast tier has, oldest first, at most `limit`.
    pub fn unsafe_paths(&self, limit: usize) -> Vec<String> {
        todo!()
    }
    /// D1 for everything: commits, seals and syncs all that was written. Waits for the fast tier only.
    pub fn sync_fast(&self) -> Result<()> {
        todo!()
    }
    /// While set, publishing does not wait for `settle`: somebody waits for D2.
    pub fn set_hurry(&self, hurry: bool) {
        todo!()
    }
    /// The LSN up to which everything must be applied for all of what is written now to be D2.
    pub fn last_lsn(&self) -> Lsn {
        todo!()
    }
    pub fn applied_lsn(&self) -> Lsn {
        todo!()
    }
    /// The same below one path: `None` when nothing under it is pending or uncommitted.
    pub fn pending_below(&self, ino: Ino) -> Option<Lsn> {
        todo!()
    }

    // The background's work. One thread each; drain may run on several.
    pub fn seal_step(&self) -> Result<Progress> {
        todo!()
    }
    pub fn drain_step(&self) -> Result<Progress> {
        todo!()
    }
    pub fn publish_step(&self) -> Result<Progress> {
        todo!()
    }
    pub fn evict_step(&self) -> Result<Progress> {
        todo!()
    }
    /// Snapshots files held open for longer than `live_after`, forgets what is idle.
    pub fn tick(&self) -> Result<Progress> {
        todo!()
    }
    /// Called once with a function that wakes the background: something was appended, closed or published.
    pub fn on_work(&self, wake: Box<dyn Fn() + Send + Sync>) {
        todo!()
    }
}

/// What the engine is told; `config` makes it.
#[derive(Clone, Debug)]
pub struct Options {
    pub settle: Duration,
    pub live_after: Duration,
    /// Bytes.
    pub copy_up_max: u64,
    pub revalidate: Duration,
    /// Events.
    pub max_pending: u64,
    /// Fractions of the fast tier.
    pub high: f64,
    pub low: f64,
    pub reserve: f64,
    /// Bytes given back to the log when the fast tier is full.
    pub ballast: u64,
    /// How long the kernel may believe attributes of files changed through this mount / known only from the slow tier.
    pub ttl_ours: Duration,
    pub ttl_slow: Duration,
}

/// Opens both tiers, recovers, and returns the engine ready to serve. The fast tier must be locked by the caller.
/// `boot` names this boot of the machine: what was not sealed in another boot is struck.
pub fn open(
    fast: Arc<dyn Dir>,
    slow: Arc<dyn Dir>,
    options: Options,
    clock: Arc<dyn Clock>,
    boot: &str,
) -> Result<Tiers> {
    todo!()
}
