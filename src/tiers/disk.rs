//! The seam between the engine and the operating system: one directory tree, seen through descriptors.
//!
//! Every byte and every name the engine touches on either tier goes through these three traits, so a test can put a
//! disk underneath that loses unsynced data, fails the Nth call or has no room. Names are single components, except the
//! path of [`Dir::walk`]: an implementation never follows a symbolic link and never leaves its tree. No policy here.

pub(crate) mod acl;
pub(crate) mod closed;
pub(crate) mod errors;
#[cfg(debug_assertions)]
pub mod faults;
pub(crate) mod fingerprint;
mod handle;
pub mod held;
pub(crate) mod layout;
pub(crate) mod modes;
pub mod os;
mod page_cache;
pub(crate) mod saved;
pub(crate) mod shards;
pub mod sync;
pub(crate) mod throttle;

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Display, Formatter};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Errno;

/// A point in time: seconds and nanoseconds since 1970, as `stat(2)` gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    pub sec: i64,
    pub nsec: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    #[default]
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// `struct stat`. `perm` is the low twelve mode bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub kind: Kind,
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
    /// Distinguishes this file from other files that have, had or will have its inode number. 0: the tier cannot tell.
    pub birth: u32,
}

impl Stat {
    pub(crate) fn file(&self) -> FileId {
        FileId { ino: self.ino, birth: self.birth }
    }

    pub(crate) fn id(&self) -> SlowId {
        (self.dev, self.file())
    }
}

/// Which file of a file system. The inode number alone is not enough: some file systems reuse it at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileId {
    pub(crate) ino: u64,
    /// As [`Stat::birth`].
    pub(crate) birth: u32,
}

/// An unknown birth equals any other. On one tier all are known or none, so two files that equal a third one equal each
/// other.
impl PartialEq for FileId {
    fn eq(&self, other: &Self) -> bool {
        self.ino == other.ino && (self.birth == other.birth || self.birth == 0 || other.birth == 0)
    }
}

impl Eq for FileId {}

impl Display for FileId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.birth {
            0 => write!(f, "{}", self.ino),
            birth => write!(f, "{}:{birth}", self.ino),
        }
    }
}

impl FileId {
    /// Parses what `Display` writes.
    pub(crate) fn decode(text: &str) -> Option<FileId> {
        let (ino, birth) = text.split_once(':').unwrap_or((text, "0"));
        Some(FileId { ino: ino.parse().ok()?, birth: birth.parse().ok()? })
    }
}

/// The device, and which file of it.
pub(crate) type SlowId = (u64, FileId);

/// Attributes to change; a `None` stays as it is. Applied in the order owner, mode, times (a chown clears suid).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewAttr {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub perm: Option<u32>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub ino: u64,
    pub kind: Kind,
}

/// Sizes in bytes, as `statvfs(3)` means them: `free` includes what only root may use, `avail` does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub free: u64,
    pub avail: u64,
    pub files: u64,
    pub files_free: u64,
    /// Fundamental block size.
    pub block: u32,
    pub name_max: u32,
}

impl Space {
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// Used and available bytes, the base of the percentage that `df(1)` shows. Less than `total` where blocks are
    /// reserved for root, or are beyond a quota that the file system shows as free.
    pub fn capacity(&self) -> u64 {
        self.used().saturating_add(self.avail)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// For the daemon's own reads: the access time stays unchanged, if the file's owner permits it.
    Unnoticed,
    ReadWrite,
}

/// The modes of `fallocate(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    Extend,
    KeepSize,
    PunchHole,
    ZeroRange,
    ZeroRangeKeepSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// How the file system orders what it makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataOrder {
    /// Changes become durable in the order in which they were made (one journal: xfs, and ext4 unless it was made
    /// without one). One fsync of a directory makes all earlier changes of names durable; one fsync of the file whose
    /// attributes were changed last makes all earlier changes of attributes durable.
    Journaled,
    /// Nothing is known: each directory is synced before the order leaves it.
    Unknown,
}

/// An open directory. Methods taking `name` act on that entry; the name `.` means the directory itself where a method
/// says so.
pub trait Dir: Send + Sync + Debug {
    /// `.` allowed.
    fn stat(&self, name: &[u8]) -> io::Result<Stat>;
    /// Stat of a name, if the kernel has the answer in memory. `None`: it might have to ask a disk or a server. Never
    /// blocks.
    fn stat_at_hand(&self, _name: &[u8]) -> Option<io::Result<Stat>> {
        None
    }
    /// What [`Dir::open`] gives for reading, if the kernel has the name in memory. The node may be of any kind. `None`:
    /// it might have to ask a disk or a server, or it fails. Opening a file with a cached name waits for a disk only to
    /// read an access control list (or to find that there is none) or keys of encryption and verity; and it waits for
    /// programs that watch opens (fanotify's permission events, IMA).
    fn open_at_hand(&self, _name: &[u8]) -> Option<Arc<dyn File>> {
        None
    }
    /// Stat of a name, answered by the server that has the file and not from this machine's cache: a network client
    /// caches answers for a minute. Use it before replacing or removing a node that a foreign change may have hit
    /// meanwhile. `.` allowed.
    fn stat_now(&self, name: &[u8]) -> io::Result<Stat> {
        self.stat(name)
    }
    /// Opens a subdirectory. ENOTDIR or ELOOP for anything else.
    fn dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>>;
    /// Opens a directory below, by a non-empty path, name by name, following no symbolic link. ENOTDIR or ELOOP as for
    /// `dir`.
    fn walk(&self, path: &[u8]) -> io::Result<Arc<dyn Dir>> {
        let mut names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
        let first = self.dir(names.next().unwrap_or_default())?;
        names.try_fold(first, |dir, name| dir.dir(name))
    }
    /// Like `walk`, but a file system mounted on the way that is none of these devices gives EBUSY and is not asked
    /// anything: a user may have mounted one that never answers.
    fn walk_within(&self, path: &[u8], devices: &BTreeSet<u64>) -> io::Result<Arc<dyn Dir>> {
        let _ = devices;
        self.walk(path)
    }
    /// EBUSY if a file system is mounted on the name that is none of these devices, as for `walk_within`.
    fn expect_within(&self, name: &[u8], devices: &BTreeSet<u64>) -> io::Result<()> {
        let _ = (name, devices);
        Ok(())
    }
    /// Opens an existing regular file. EINVAL for anything else, without the pitfalls of O_NONBLOCK.
    fn open(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>>;
    /// Creates a regular file that must not exist, open for reading and writing.
    fn create(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>>;
    fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()>;
    fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()>;
    fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()>;
    /// Holds the inode that the name leads to now, of any kind: opens nothing and follows no symbolic link. `.`
    /// allowed.
    fn inode(&self, name: &[u8]) -> io::Result<Arc<dyn Inode>>;
    fn rename(&self, name: &[u8], to: &dyn Dir, to_name: &[u8], mode: RenameMode) -> io::Result<()>;
    fn unlink(&self, name: &[u8]) -> io::Result<()>;
    fn rmdir(&self, name: &[u8]) -> io::Result<()>;
    /// Every entry but `.` and `..`.
    fn list(&self) -> io::Result<Vec<DirEntry>>;
    /// Makes this directory's entries durable. An error is final for the pending changes: never repeat the call to
    /// clear it.
    fn sync(&self) -> io::Result<()>;
    /// Makes everything on this file system durable, including other programs' writes. An error is final, as for
    /// `sync`.
    fn sync_all(&self) -> io::Result<()>;
    fn space(&self) -> io::Result<Space>;
    /// The most hard links that a file may have here; a guess where the tier does not say.
    fn names_max(&self) -> u64;
    /// Whether it is an overlayfs, which renames no directory of a lower layer, unless it is mounted with
    /// `redirect_dir=on`.
    fn is_overlay(&self) -> bool {
        false
    }
    fn order(&self) -> MetadataOrder;
    /// Whether the tree is on one rotating disk, which parallel or out-of-order access slows down.
    fn rotates(&self) -> bool {
        false
    }
    /// Whether a node's mode restricts this process, as it does every user but root: a node of our own may deny us
    /// access.
    fn heeds_modes(&self) -> bool {
        false
    }
    /// For `rename` and `link` across two directories of one implementation.
    fn as_any(&self) -> &dyn std::any::Any;

    // Calls by name: for names that no other program can point at another node meanwhile, as in our own directories.
    // Elsewhere hold the inode first ([`Dir::inode`]) and check it.

    fn readlink(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        self.inode(name)?.readlink()
    }
    /// Hard link `name` here as `to_name` in `to`.
    fn link(&self, name: &[u8], to: &dyn Dir, to_name: &[u8]) -> io::Result<()> {
        self.inode(name)?.link(to, to_name)
    }
    fn set_attr(&self, name: &[u8], new: &NewAttr) -> io::Result<()> {
        self.inode(name)?.set_attr(new)
    }
    fn get_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.inode(name)?.get_xattr(key)
    }
    fn set_xattr(&self, name: &[u8], key: &[u8], value: &[u8]) -> io::Result<()> {
        self.inode(name)?.set_xattr(key, value)
    }
    fn remove_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<()> {
        self.inode(name)?.remove_xattr(key)
    }
    fn list_xattr(&self, name: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.inode(name)?.list_xattr()
    }
}

/// One inode of any kind, held by a descriptor: it stays the same inode, whatever becomes of its names.
pub trait Inode: Send + Sync + Debug {
    fn stat(&self) -> io::Result<Stat>;
    /// Changes a symbolic link's own owner and times, but not its mode.
    fn set_attr(&self, new: &NewAttr) -> io::Result<()>;
    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Succeeds if there is no such attribute.
    fn remove_xattr(&self, key: &[u8]) -> io::Result<()>;
    fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>>;
    /// EINVAL for anything but a symbolic link.
    fn readlink(&self) -> io::Result<Vec<u8>> {
        Err(Errno::EINVAL.into())
    }
    /// Adds a name. ENOENT once it has none left; EBADF for a descriptor opened for its bytes: names are added through
    /// [`Dir::inode`].
    fn link(&self, _to: &dyn Dir, _to_name: &[u8]) -> io::Result<()> {
        Err(Errno::EBADF.into())
    }
}

/// How a file system or a kernel says that it does not have a call, or not for these two files.
pub const REFUSALS: [Errno; 5] = [Errno::EOPNOTSUPP, Errno::EXDEV, Errno::EINVAL, Errno::ENOTTY, Errno::ENOSYS];

/// All bytes of a file, however long it is.
pub const WHOLE: Range<u64> = 0..i64::MAX as u64;

/// An open regular file.
pub trait File: Inode {
    /// Opens the same file for reading and writing, whatever its names are now.
    fn reopen(&self) -> io::Result<Arc<dyn File>>;
    /// Reads until `buf` is full or the file ends; a short count means end of file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Like `read_at`, but returns the bytes that were read.
    fn read_into<'a>(&self, buf: &'a mut [u8], offset: u64) -> io::Result<&'a [u8]> {
        let got = self.read_at(buf, offset)?;
        Ok(buf.get(..got).unwrap_or_default())
    }
    /// Writes all of `buf`, or fails. After a failure any part of it may have been written.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Reads the first of these bytes that the page cache has, without waiting for a disk. A short count: what follows
    /// is not in the cache, or the file ends. One of [`REFUSALS`]: not supported here.
    fn read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buf, offset)
    }
    /// Reads what `read_at` would, if all of it is in memory. `None`: it might have to ask a disk, or this is not
    /// supported here.
    fn read_at_hand(&self, _buf: &mut [u8], _offset: u64) -> Option<usize> {
        None
    }
    /// Writes as `write_at` does, starts writeback at once, and leaves no page in the cache once that is done. One of
    /// [`REFUSALS`]: not supported here, and nothing was written.
    fn write_uncached(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(buf, offset)
    }
    /// Makes this empty file share all the blocks of another one, holes as holes, without a copy. One of [`REFUSALS`]:
    /// not supported here, and nothing was changed.
    fn reflink(&self, _from: BorrowedFd<'_>) -> io::Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn allocate(&self, what: Allocate, offset: u64, len: u64) -> io::Result<()>;
    /// The next data or hole at or after `offset`; ENXIO beyond the end.
    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64>;
    /// Makes bytes and attributes durable. An error is final for the pending data: never repeat the call to clear it.
    fn sync(&self) -> io::Result<()>;
    /// The descriptor for the kernel to read from, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
    /// Tells the page cache that these bytes will not be read again soon: it drops those that are on the disk. A hint.
    fn forget_cached(&self, range: Range<u64>);
    /// Starts writeback of these just-written bytes, so that a sync has less to wait for. A hint: it makes nothing
    /// durable and reports no failure; the next sync reports it.
    fn write_behind(&self, _range: Range<u64>) {}
    /// Makes overwrites stay in place from now on, on a file system that otherwise writes them elsewhere (btrfs), so
    /// that allocated space is enough. Called while the file is empty. A hint.
    fn stay_in_place(&self) {}
    /// Where on the disk its first bytes are; `None`: it has none, or the place is not known. A hint.
    fn place(&self) -> Option<u64> {
        None
    }
}

/// Wall-clock and monotonic time, behind a seam so that a test decides what time it is.
pub trait Clock: Send + Sync + Debug {
    /// Time of day, for stamps and ages.
    fn now(&self) -> Time;
    /// The time that a change of a file would get from the kernel now: no earlier change of a file has a later time, no
    /// later change an earlier one. All times that we set on nodes ourselves come from here.
    fn file_time(&self) -> Time {
        self.now()
    }
    /// Time since some fixed start, for ages and intervals.
    fn uptime(&self) -> Duration;
    /// Processor time that the calling thread has used, in user and kernel mode. `None`: not known.
    fn thread_cpu(&self) -> Option<Duration> {
        None
    }
    /// How far `now` is off, as estimated by the time daemon. `None`: no daemon keeps the clock.
    fn error(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}
