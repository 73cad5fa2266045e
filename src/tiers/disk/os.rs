//! The disk seam on Linux: directories, files and the clock of this machine.
//!
//! Every call is one `*at(2)` on a single name beneath an open descriptor, except the walk to a directory, which takes
//! a path. Nothing follows a symbolic link, and every descriptor is close-on-exec. A call interrupted by a signal is
//! repeated, so callers never see EINTR. Policy, retries after real failures and messages are left to the engine.

use std::any::Any;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use fiemap::{Fiemap, FiemapExtentFlags};
use nix::dir;
use nix::errno::Errno;
use nix::fcntl::{self, AtFlags, FallocateFlags, OFlag, OpenHow, PosixFadviseAdvice, ResolveFlag};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{self, FchmodatFlags, FileStat, Mode, SFlag, UtimensatFlags};
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, fstatfs,
};
use nix::sys::statvfs::fstatvfs;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{self, Gid, Uid, UnlinkatFlags, Whence};
use procfs::process::Process;
use rtime_clock::adjtime::{Timex, adjtimex};
use rustix::fs::{
    IFlags, RenameFlags, Statx, StatxFlags, ioctl_ficlone, ioctl_getflags, ioctl_setflags, renameat_with,
};
use rustix::io::{ReadWriteFlags, preadv2, pwritev2};
use xattr::FileExt as _;

use super::handle;
use super::page_cache::{self, PageCache};
use super::sync::Mutex;
use super::{
    Access, Allocate, Clock, Dir, DirEntry, File, Inode, Kind, MetadataOrder, NewAttr, RenameMode, Seek, Space, Stat,
    Time,
};

/// The flags of every descriptor we open.
const SAFE: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW);

/// A flag of `openat2(2)`, since Linux 5.12: EAGAIN if a name is not in the kernel's cache.
const RESOLVE_CACHED: ResolveFlag = ResolveFlag::from_bits_retain(0x20);

/// A flag of `pwritev2(2)`, since Linux 6.14: the pages leave the cache once they are written back.
const RWF_DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// nix defines it for glibc only.
pub const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);

/// The longest path that one system call takes (PATH_MAX, which includes the terminating byte).
const PIECE_MAX: usize = 4096;

/// An open directory of this machine.
///
/// New entries get their mode from the caller's `perm` less the process's umask (a daemon clears it once), and what the
/// directory itself adds: a default ACL, the group of a set-group-ID directory.
#[derive(Debug)]
pub struct OsDir {
    fd: fs::File,
    /// Set if the kernel's cache of the file system is authoritative and can be read without I/O.
    remembered: Option<Remembered>,
    births: Births,
    /// Reads beneath it leave access times unchanged, if the file's owner permits it.
    unnoticed: bool,
}

/// What [`Stat::birth`] uses to distinguish files that have had one inode number.
#[derive(Clone, Copy, Debug)]
enum Births {
    /// Nothing, or it is not needed.
    Untold,
    /// The file's creation time, which no program can set and which needs no extra call. Two files made in one tick of
    /// the kernel's clock are not distinguished.
    Time,
    /// The file's handle, which needs an extra call. On this device only.
    Handle { dev: u64 },
}

impl Births {
    /// For the file system that has this directory. None on an overlay, which shows the birth first of the lower file
    /// and then of the upper one. A file system in user space makes new handles; others are known to keep them.
    fn of(dir: &fs::File) -> io::Result<Births> {
        let kind = fstatfs(dir)?.filesystem_type();
        let has_time = || Ok::<_, io::Error>(statx(dir, OsStr::new(""))?.stx_mask & StatxFlags::BTIME.bits() != 0);
        match kind {
            OVERLAYFS_SUPER_MAGIC => Ok(Births::Untold),
            NFS_SUPER_MAGIC => Ok(Births::Handle { dev: stat::fstat(dir)?.st_dev }),
            // An ext4 with small inodes, an xfs of the former format.
            EXT4_SUPER_MAGIC | XFS_SUPER_MAGIC if !has_time()? => Ok(Births::Handle { dev: stat::fstat(dir)?.st_dev }),
            _ => has_time().map(|_| Births::Time),
        }
    }

    fn stat(self, fd: &fs::File) -> io::Result<Stat> {
        match self {
            Births::Time => statx(fd, OsStr::new("")).map(|s| from_statx(&s)),
            Births::Untold => retry(|| stat::fstat(fd)).map(|s| to_stat(&s)),
            Births::Handle { dev } => {
                let stat = retry(|| stat::fstat(fd)).map(|s| to_stat(&s))?;
                let birth = if stat.dev == dev { handle::birth(fd.as_fd()) } else { 0 };
                Ok(Stat { birth, ..stat })
            }
        }
    }
}

/// What is known of a file system whose cache is authoritative.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    dev: u64,
    order: MetadataOrder,
    pages: Option<PageCache>,
}

impl OsDir {
    /// Opens a tier's root. Symbolic links in `path` are followed: the operator chose it.
    ///
    /// Errors: ENOENT, ENOTDIR, EACCES as `open(2)` gives them.
    pub fn open(path: &Path) -> io::Result<OsDir> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = retry(|| fcntl::open(path, flags, Mode::empty()))?;
        // A network file system may have to ask other machines, and so may an unknown one.
        let kind = fstatfs(&fd).map(|s| s.filesystem_type());
        let remembered = match kind {
            Ok(EXT4_SUPER_MAGIC | XFS_SUPER_MAGIC | BTRFS_SUPER_MAGIC | TMPFS_MAGIC) => {
                let dev = retry(|| stat::fstat(&fd))?.st_dev;
                Some(Remembered { dev, order: order_of(&fd), pages: PageCache::of(fd.as_fd(), dev) })
            }
            _ => None,
        };
        Ok(OsDir { fd: fd.into(), remembered, births: Births::Untold, unnoticed: false })
    }

    /// For the slow tier: stats have [`Stat::birth`], if the file system has one. Without it on a kernel or in a
    /// sandbox that lacks the calls.
    pub fn with_births(self) -> OsDir {
        let births = Births::of(&self.fd).unwrap_or(Births::Untold);
        OsDir { births, ..self }
    }

    /// For a mount that keeps no access times (`noatime`).
    pub fn unnoticed(self, unnoticed: bool) -> OsDir {
        OsDir { unnoticed, ..self }
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> Option<PageCache> {
        self.remembered?.pages
    }

    fn below(&self, fd: fs::File) -> OsDir {
        // Another file system may be mounted there.
        let is_same = |of: &Remembered| stat::fstat(&fd).is_ok_and(|s| s.st_dev == of.dev);
        OsDir { remembered: self.remembered.filter(is_same), fd, births: self.births, unnoticed: self.unnoticed }
    }

    fn open_at(&self, name: &OsStr, flags: OFlag, perm: u32) -> io::Result<fs::File> {
        let open = |flags| retry(|| fcntl::openat(&self.fd, name, flags | SAFE, mode(perm))).map(fs::File::from);
        if self.unnoticed && !flags.contains(OFlag::O_PATH) { unnoticed_if_may(open, flags) } else { open(flags) }
    }

    fn file(&self, fd: fs::File) -> Arc<dyn File> {
        let (remembered, births, unnoticed) = (self.remembered, self.births, self.unnoticed);
        Arc::new(OsFile { fd, remembered, births, cached: Mutex::default(), unnoticed })
    }
}

impl Dir for OsDir {
    fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        let name = entry_or_self(name)?;
        let found = match self.births {
            Births::Untold => {
                retry(|| stat::fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)).map(|s| to_stat(&s))
            }
            Births::Time => statx(&self.fd, name).map(|s| from_statx(&s)),
            // Both from one file, even if the name leads elsewhere meanwhile.
            Births::Handle { .. } => self.open_at(name, OFlag::O_PATH, 0).and_then(|fd| self.births.stat(&fd)),
        };
        if is_closed(&found, name) { self.births.stat(&self.fd) } else { found }
    }

    fn stat_at_hand(&self, name: &[u8]) -> Option<io::Result<Stat>> {
        let name = entry(name).ok().filter(|_| self.remembered.is_some())?;
        // A file system mounted on the name is another one.
        let resolve = RESOLVE_CACHED | ResolveFlag::RESOLVE_NO_XDEV;
        let how = OpenHow::new().flags(OFlag::O_PATH | SAFE).resolve(resolve);
        match fcntl::openat2(&self.fd, name, how) {
            Ok(fd) => Some(self.births.stat(&fd.into())),
            Err(Errno::ENOENT) => Some(Err(Errno::ENOENT.into())),
            // Not in memory, or a kernel or sandbox without this call: a caller that may wait asks again.
            Err(_) => None,
        }
    }

    /// An NFS client trusts a name for as long as it trusts the attributes of its directory, so refresh those first.
    fn stat_now(&self, name: &[u8]) -> io::Result<Stat> {
        if self.remembered.is_none() {
            let flags = rustix::fs::AtFlags::STATX_FORCE_SYNC | rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            for name in [OsStr::from_bytes(b"."), entry_or_self(name)?] {
                // If this fails, so does the stat below.
                rustix::fs::statx(&self.fd, name, flags, StatxFlags::BASIC_STATS).ok();
            }
        }
        self.stat(name)
    }

    fn dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
        let fd = self.open_at(entry(name)?, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)?;
        Ok(Arc::new(self.below(fd)))
    }

    /// Takes few system calls, however deep the path: each takes as much of it as the kernel accepts.
    fn walk(&self, path: &[u8]) -> io::Result<Arc<dyn Dir>> {
        path.split(|b| *b == b'/').try_for_each(|name| entry(name).map(drop))?;
        let mut walked: Option<fs::File> = None;
        let mut rest = path;
        while !rest.is_empty() {
            let end = match rest.get(..PIECE_MAX) {
                Some(most) => most.iter().rposition(|b| *b == b'/').ok_or(Errno::ENAMETOOLONG)?,
                None => rest.len(),
            };
            let (piece, behind) = rest.split_at(end);
            let from = walked.as_ref().unwrap_or(&self.fd);
            walked = Some(walk_from(from, OsStr::from_bytes(piece))?);
            rest = behind.strip_prefix(b"/").unwrap_or_default();
        }
        Ok(Arc::new(self.below(walked.ok_or(Errno::EINVAL)?)))
    }

    fn walk_within(&self, path: &[u8], devices: &BTreeSet<u64>) -> io::Result<Arc<dyn Dir>> {
        let beneath = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV;
        let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | SAFE).resolve(beneath);
        let open = |from: &fs::File, path: &[u8]| retry(|| fcntl::openat2(from, OsStr::from_bytes(path), how));
        let is = |e: &io::Error, errno: Errno| e.raw_os_error() == Some(errno as i32);
        match open(&self.fd, path) {
            // A mount on the way, or a path that is too long, or a kernel or sandbox without this call.
            Err(e) if is(&e, Errno::EXDEV) => {}
            Err(e) if [Errno::ENAMETOOLONG, Errno::ENOSYS, Errno::EPERM].iter().any(|errno| is(&e, *errno)) => {
                return self.walk(path);
            }
            opened => return Ok(Arc::new(self.below(opened?.into()))),
        }
        let mut at = self.fd.try_clone()?;
        for name in path.split(|b| *b == b'/') {
            entry(name)?;
            at = match open(&at, name) {
                Err(e) if is(&e, Errno::EXDEV) => enter(&at, name, devices)?,
                opened => opened?.into(),
            };
        }
        Ok(Arc::new(self.below(at)))
    }

    fn expect_within(&self, name: &[u8], devices: &BTreeSet<u64>) -> io::Result<()> {
        let how = OpenHow::new().flags(OFlag::O_PATH | SAFE).resolve(ResolveFlag::RESOLVE_NO_XDEV);
        match fcntl::openat2(&self.fd, entry(name)?, how) {
            Err(Errno::EXDEV) => mounted_on(&self.fd, name, devices).map(drop),
            // Any other result: the caller's own call will get it.
            _ => Ok(()),
        }
    }

    fn open(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>> {
        // O_NONBLOCK: a fifo that took the file's place must not block us until its other end is opened.
        let open = |access| self.open_at(entry(name)?, access | OFlag::O_NONBLOCK | OFlag::O_NOCTTY, 0);
        let opened = match access {
            Access::Read => open(OFlag::O_RDONLY),
            Access::ReadWrite => open(OFlag::O_RDWR),
            Access::Unnoticed => unnoticed_if_may(open, OFlag::O_RDONLY),
        };
        let fd = opened.map_err(as_not_regular)?;
        if kind(retry(|| stat::fstat(&fd))?.st_mode) != Kind::File {
            return Err(Errno::EINVAL.into());
        }
        Ok(self.file(fd))
    }

    fn open_at_hand(&self, name: &[u8]) -> Option<Arc<dyn File>> {
        let name = entry(name).ok().filter(|_| self.remembered.is_some())?;
        let resolve = RESOLVE_CACHED | ResolveFlag::RESOLVE_NO_XDEV;
        // O_NONBLOCK: as in `open`.
        let how = |flags| OpenHow::new().flags(flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | SAFE).resolve(resolve);
        let open = |flags| retry(|| fcntl::openat2(&self.fd, name, how(flags)));
        let fd = if self.unnoticed { unnoticed_if_may(open, OFlag::O_RDONLY) } else { open(OFlag::O_RDONLY) };
        Some(self.file(fd.ok()?.into()))
    }

    fn create(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>> {
        let fd = self.open_at(entry(name)?, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL, perm)?;
        Ok(self.file(fd))
    }

    fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()> {
        let name = entry(name)?;
        retry(|| stat::mkdirat(&self.fd, name, mode(perm)))
    }

    fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()> {
        let name = entry(name)?;
        let format = match kind {
            Kind::File => SFlag::S_IFREG,
            Kind::Fifo => SFlag::S_IFIFO,
            Kind::Socket => SFlag::S_IFSOCK,
            Kind::CharDevice => SFlag::S_IFCHR,
            Kind::BlockDevice => SFlag::S_IFBLK,
            Kind::Dir | Kind::Symlink => return Err(Errno::EINVAL.into()),
        };
        retry(|| stat::mknodat(&self.fd, name, format, mode(perm), rdev))
    }

    fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        let name = entry(name)?;
        retry(|| unistd::symlinkat(OsStr::from_bytes(target), &self.fd, name))
    }

    /// For `.` the open descriptor serves: in a directory that denies search even to its owner, `.` cannot be looked
    /// up.
    fn inode(&self, name: &[u8]) -> io::Result<Arc<dyn Inode>> {
        let fd = match name {
            b"." => self.fd.try_clone()?,
            name => self.open_at(entry(name)?, OFlag::O_PATH, 0)?,
        };
        Ok(Arc::new(OsInode { fd, births: self.births }))
    }

    fn rename(&self, name: &[u8], to: &dyn Dir, to_name: &[u8], mode: RenameMode) -> io::Result<()> {
        let (name, to_name, to) = (entry(name)?, entry(to_name)?, same_machine(to)?);
        let flags = match mode {
            // The plain call: not every file system supports the one with flags.
            RenameMode::Replace => return retry(|| fcntl::renameat(&self.fd, name, &to.fd, to_name)),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        // nix defines it for glibc only.
        let call = || renameat_with(&self.fd, name, &to.fd, to_name, flags);
        retry(|| call().map_err(|e| Errno::from_raw(e.raw_os_error())))
    }

    fn unlink(&self, name: &[u8]) -> io::Result<()> {
        let name = entry(name)?;
        retry(|| unistd::unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir))
    }

    fn rmdir(&self, name: &[u8]) -> io::Result<()> {
        let name = entry(name)?;
        retry(|| unistd::unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir))
    }

    fn list(&self) -> io::Result<Vec<DirEntry>> {
        // A descriptor of its own: the position in a directory belongs to the descriptor, and lists run concurrently.
        let flags = SAFE | OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let open = |flags| retry(|| dir::Dir::openat(&self.fd, ".", flags, Mode::empty()));
        let listed = if self.unnoticed { unnoticed_if_may(open, flags) } else { open(flags) }?;
        let mut entries = Vec::new();
        for found in listed {
            let found = found?;
            let name = found.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match found.file_type() {
                Some(known) => from_dirent(known),
                // Not every file system returns the type with the name; a name that is gone by now is left out.
                None => match self.stat(name) {
                    Ok(is) => is.kind,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    Err(e) => return Err(e),
                },
            };
            entries.push(DirEntry { name: name.to_vec(), ino: found.ino(), kind });
        }
        Ok(entries)
    }

    fn sync(&self) -> io::Result<()> {
        self.fd.sync_all()
    }

    fn sync_all(&self) -> io::Result<()> {
        retry(|| unistd::syncfs(&self.fd))
    }

    /// `EXT4_LINK_MAX`, `BTRFS_LINK_MAX`, `XFS_MAXLINK` (Linux); tmpfs has no limit of its own. Any other file system
    /// may be a server over ext3, which has the lowest limit of those in use.
    fn names_max(&self) -> u64 {
        match fstatfs(&self.fd).map(|s| s.filesystem_type()) {
            Ok(EXT4_SUPER_MAGIC) => 65_000,
            Ok(BTRFS_SUPER_MAGIC) => 65_535,
            Ok(XFS_SUPER_MAGIC | TMPFS_MAGIC) => (1 << 31) - 1,
            _ => 32_000,
        }
    }

    fn is_overlay(&self) -> bool {
        fstatfs(&self.fd).is_ok_and(|s| s.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
    }

    fn space(&self) -> io::Result<Space> {
        let s = retry(|| fstatvfs(&self.fd))?;
        let unit = s.fragment_size();
        Ok(Space {
            total: s.blocks().saturating_mul(unit),
            free: s.blocks_free().saturating_mul(unit),
            avail: s.blocks_available().saturating_mul(unit),
            files: s.files(),
            files_free: s.files_free(),
            block: u32::try_from(unit).unwrap_or(u32::MAX),
            name_max: u32::try_from(s.name_max()).unwrap_or(u32::MAX),
        })
    }

    fn order(&self) -> MetadataOrder {
        self.remembered.map_or_else(|| order_of(&self.fd), |remembered| remembered.order)
    }

    fn rotates(&self) -> bool {
        let Ok(dev) = retry(|| stat::fstat(&self.fd)).map(|stat| stat.st_dev) else { return false };
        let device = format!("/sys/dev/block/{}:{}", stat::major(dev), stat::minor(dev));
        // A partition's disk has the queue, one directory up.
        let queue = ["queue/rotational", "../queue/rotational"].map(|name| Path::new(&device).join(name));
        queue.iter().find_map(|path| fs::read_to_string(path).ok()).is_some_and(|text| text.trim() == "1")
    }

    fn heeds_modes(&self) -> bool {
        heeds_modes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The inode that a name led to, on this machine: an `O_PATH` descriptor, or a directory's.
#[derive(Debug)]
struct OsInode {
    fd: fs::File,
    births: Births,
}

impl OsInode {
    /// A path for calls that do not take an `O_PATH` descriptor. The kernel resolves it to the inode itself, by no
    /// name, and follows no link.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    fn chmod(&self, perm: u32) -> io::Result<()> {
        let path = self.path();
        match retry(|| stat::fchmodat(fcntl::AT_FDCWD, &path, mode(perm), FchmodatFlags::FollowSymlink)) {
            // The mode of a symbolic link cannot change, and has no effect.
            Err(e) if e.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) && self.stat()?.kind == Kind::Symlink => {
                Ok(())
            }
            done => done,
        }
    }
}

impl Inode for OsInode {
    fn stat(&self) -> io::Result<Stat> {
        self.births.stat(&self.fd)
    }

    fn set_attr(&self, new: &NewAttr) -> io::Result<()> {
        if new.uid.is_some() || new.gid.is_some() {
            let (uid, gid) = owner(new);
            retry(|| unistd::fchownat(&self.fd, "", uid, gid, AtFlags::AT_EMPTY_PATH))?;
        }
        if let Some(perm) = new.perm {
            self.chmod(perm)?;
        }
        if new.atime.is_some() || new.mtime.is_some() {
            let (atime, mtime, path) = (time_spec(new.atime)?, time_spec(new.mtime)?, self.path());
            let follow = UtimensatFlags::FollowSymlink;
            retry(|| stat::utimensat(fcntl::AT_FDCWD, &path, &atime, &mtime, follow))?;
        }
        Ok(())
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        xattr::get_deref(self.path(), OsStr::from_bytes(key))
    }

    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        xattr::set_deref(self.path(), OsStr::from_bytes(key), value)
    }

    fn remove_xattr(&self, key: &[u8]) -> io::Result<()> {
        absent_is_fine(xattr::remove_deref(self.path(), OsStr::from_bytes(key)))
    }

    fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>> {
        Ok(xattr::list_deref(self.path())?.map(OsStringExt::into_vec).collect())
    }

    fn readlink(&self) -> io::Result<Vec<u8>> {
        match retry(|| fcntl::readlinkat(&self.fd, "")) {
            // The kernel's answer for anything but a link, when asked without a name.
            Err(e) if e.raw_os_error() == Some(Errno::ENOENT as i32) => Err(Errno::EINVAL.into()),
            target => target.map(OsStringExt::into_vec),
        }
    }

    fn link(&self, to: &dyn Dir, to_name: &[u8]) -> io::Result<()> {
        let (to_name, to, path) = (entry(to_name)?, same_machine(to)?, self.path());
        retry(|| unistd::linkat(fcntl::AT_FDCWD, &path, &to.fd, to_name, AtFlags::AT_SYMLINK_FOLLOW))
    }
}

/// An open regular file of this machine.
#[derive(Debug)]
pub struct OsFile {
    fd: fs::File,
    /// That of the directory: another file system may be mounted on the file.
    remembered: Option<Remembered>,
    births: Births,
    cached: Mutex<Option<page_cache::Known>>,
    unnoticed: bool,
}

impl Inode for OsFile {
    fn stat(&self) -> io::Result<Stat> {
        self.births.stat(&self.fd)
    }

    fn set_attr(&self, new: &NewAttr) -> io::Result<()> {
        if new.uid.is_some() || new.gid.is_some() {
            let (uid, gid) = owner(new);
            retry(|| unistd::fchown(&self.fd, uid, gid))?;
        }
        if let Some(perm) = new.perm {
            retry(|| stat::fchmod(&self.fd, mode(perm)))?;
        }
        if new.atime.is_some() || new.mtime.is_some() {
            let (atime, mtime) = (time_spec(new.atime)?, time_spec(new.mtime)?);
            retry(|| stat::futimens(&self.fd, &atime, &mtime))?;
        }
        Ok(())
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.fd.get_xattr(OsStr::from_bytes(key))
    }

    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.fd.set_xattr(OsStr::from_bytes(key), value)
    }

    fn remove_xattr(&self, key: &[u8]) -> io::Result<()> {
        absent_is_fine(self.fd.remove_xattr(OsStr::from_bytes(key)))
    }

    fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>> {
        Ok(self.fd.list_xattr()?.map(OsStringExt::into_vec).collect())
    }
}

impl File for OsFile {
    fn reopen(&self) -> io::Result<Arc<dyn File>> {
        // Through the descriptor: the file may have no name that we know.
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let open = |flags| retry(|| fcntl::open(path.as_str(), flags, Mode::empty()));
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let fd: OwnedFd = if self.unnoticed { unnoticed_if_may(open, flags) } else { open(flags) }?;
        let (remembered, births, unnoticed) = (self.remembered, self.births, self.unnoticed);
        Ok(Arc::new(OsFile { fd: fd.into(), remembered, births, cached: Mutex::default(), unnoticed }))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.fd.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.fd.write_all_at(buf, offset)
    }

    fn read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut buf = [IoSliceMut::new(buf)];
        match rustix::io::retry_on_intr(|| preadv2(&self.fd, &mut buf, offset, ReadWriteFlags::NOWAIT)) {
            Err(rustix::io::Errno::AGAIN) => Ok(0),
            got => Ok(got?),
        }
    }

    fn read_at_hand(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        let Remembered { dev, pages: Some(pages), .. } = self.remembered? else { return None };
        let stat = stat::fstat(&self.fd).ok().filter(|stat| stat.st_dev == dev)?;
        let wanted = (stat.st_size as u64).saturating_sub(offset).min(buf.len() as u64);
        if wanted == 0 || !pages.has(&self.cached, self.fd.as_fd(), &stat, offset..offset + wanted).ok()? {
            return (wanted == 0).then_some(0);
        }
        let got = self.read_cached(buf.get_mut(..wanted as usize)?, offset).ok()?;
        // A page is still being read, or the file became shorter: a caller that may wait reads again.
        (got as u64 == wanted).then_some(got)
    }

    fn write_uncached(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let write = || pwritev2(&self.fd, &[IoSlice::new(buf)], offset, RWF_DONTCACHE);
            let done = match rustix::io::retry_on_intr(write)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                done => done,
            };
            (buf, offset) = (buf.get(done..).unwrap_or_default(), offset + done as u64);
        }
        Ok(())
    }

    fn reflink(&self, from: BorrowedFd<'_>) -> io::Result<()> {
        Ok(rustix::io::retry_on_intr(|| ioctl_ficlone(&self.fd, from))?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fd.set_len(len)
    }

    fn allocate(&self, what: Allocate, offset: u64, len: u64) -> io::Result<()> {
        let flags = match what {
            Allocate::Extend => FallocateFlags::empty(),
            Allocate::KeepSize => FallocateFlags::FALLOC_FL_KEEP_SIZE,
            Allocate::PunchHole => FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE,
            Allocate::ZeroRange => FallocateFlags::FALLOC_FL_ZERO_RANGE,
            Allocate::ZeroRangeKeepSize => FallocateFlags::FALLOC_FL_ZERO_RANGE | FallocateFlags::FALLOC_FL_KEEP_SIZE,
        };
        let (offset, len) = (signed(offset)?, signed(len)?);
        retry(|| fcntl::fallocate(&self.fd, flags, offset, len))
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        // Moves the descriptor's own position, which nothing here uses.
        let whence = match what {
            Seek::Data => Whence::SeekData,
            Seek::Hole => Whence::SeekHole,
        };
        let offset = signed(offset)?;
        retry(|| unistd::lseek(&self.fd, offset, whence)).map(i64::unsigned_abs)
    }

    fn sync(&self) -> io::Result<()> {
        self.fd.sync_all()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn forget_cached(&self, range: Range<u64>) {
        // Only advice: a file system that does not take it loses nothing.
        let (Ok(from), Ok(len)) = (range.start.try_into(), (range.end - range.start).try_into()) else { return };
        fcntl::posix_fadvise(&self.fd, from, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED).ok();
    }

    fn write_behind(&self, range: Range<u64>) {
        // For dirty bytes Linux takes this as: start writing them, wait for nothing, keep them until they are written.
        self.forget_cached(range);
    }

    fn stay_in_place(&self) {
        if matches!(fstatfs(&self.fd).map(|s| s.filesystem_type()), Ok(BTRFS_SUPER_MAGIC)) {
            let set = ioctl_getflags(&self.fd).and_then(|flags| ioctl_setflags(&self.fd, flags | IFlags::NOCOW));
            if let Err(error) = set {
                tracing::debug!(%error, "btrfs will write the log elsewhere each time");
            }
        }
    }

    fn place(&self) -> Option<u64> {
        let first = Fiemap::new(&self.fd).next()?.ok()?;
        (!first.fe_flags.contains(FiemapExtentFlags::UNKNOWN)).then_some(first.fe_physical)
    }
}

/// The clocks of this machine. `uptime` counts from boot, including the time that the machine is suspended.
#[derive(Debug, Default)]
pub struct OsClock;

impl Clock for OsClock {
    fn now(&self) -> Time {
        let t = clock_gettime(ClockId::CLOCK_REALTIME).expect("Linux always has this clock");
        Time { sec: t.tv_sec(), nsec: t.tv_nsec() as u32 }
    }

    /// Read from a file in memory: no clock that a program can read is right. Since Linux 6.13 a file gets the coarse
    /// time of the last tick, or a finer one if its time was read since then, and no later change of any file is older
    /// than that.
    fn file_time(&self) -> Time {
        static FILE: LazyLock<io::Result<OwnedFd>> =
            LazyLock::new(|| Ok(memfd_create("dlio-fs time", MFdFlags::MFD_CLOEXEC)?));
        let asked = FILE.as_ref().ok().and_then(|file| {
            stat::futimens(file, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW).ok()?;
            stat::fstat(file).ok()
        });
        asked.map_or_else(|| self.now(), |stat| Time { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 })
    }

    fn uptime(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux always has this clock").into()
    }

    fn thread_cpu(&self) -> Option<Duration> {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
    }

    fn error(&self) -> Option<Duration> {
        let mut timex = Timex::new();
        let state = adjtimex(&mut timex).ok()?;
        let is_kept = state != libc::TIME_ERROR && timex.0.status & libc::STA_UNSYNC == 0;
        // Not `maxerror`: the kernel lets it grow by half a millisecond a second until the time daemon's next update,
        // which takes minutes.
        is_kept.then(|| Duration::from_micros(timex.0.esterror.unsigned_abs()))
    }
}

/// Opens without updating the access time; with it, if the file is another user's and we are not root.
fn unnoticed_if_may<T>(open: impl Fn(OFlag) -> io::Result<T>, flags: OFlag) -> io::Result<T> {
    match open(flags | OFlag::O_NOATIME) {
        Err(e) if e.raw_os_error() == Some(Errno::EPERM as i32) => open(flags),
        opened => opened,
    }
}

/// A file system that cannot be identified counts as unknown: safe, only slower. ext2 and ext3 have ext4's magic
/// number.
fn order_of(dir: impl AsFd) -> MetadataOrder {
    match fstatfs(&dir).map(|s| s.filesystem_type()) {
        Ok(XFS_SUPER_MAGIC) => MetadataOrder::Journaled,
        Ok(EXT4_SUPER_MAGIC) if has_journal(&dir) => MetadataOrder::Journaled,
        _ => MetadataOrder::Unknown,
    }
}

/// Whether the ext4 that has this file has a journal: then a kernel thread writes it.
fn has_journal(file: impl AsFd) -> bool {
    let Ok(dev) = retry(|| stat::fstat(&file)).map(|stat| stat.st_dev) else { return false };
    let device = fs::canonicalize(format!("/sys/dev/block/{}:{}", stat::major(dev), stat::minor(dev)));
    let task = device.ok().and_then(|device| {
        let name = device.file_name()?;
        fs::read_to_string(Path::new("/sys/fs/ext4").join(name).join("journal_task")).ok()
    });
    task.is_some_and(|task| task.trim().parse::<u32>().is_ok())
}

/// Opens the directory at a relative path, following no symbolic link.
fn walk_from(dir: &fs::File, path: &OsStr) -> io::Result<fs::File> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | SAFE;
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
    match retry(|| fcntl::openat2(dir, path, how)) {
        Err(e) if matches!(e.raw_os_error().map(Errno::from_raw), Some(Errno::ENOSYS | Errno::EPERM)) => {}
        opened => return opened.map(Into::into),
    }
    // The kernel or sandbox does not have this call.
    let mut at: Option<fs::File> = None;
    for name in path.as_bytes().split(|b| *b == b'/') {
        let from = at.as_ref().unwrap_or(dir);
        let fd = retry(|| fcntl::openat(from, OsStr::from_bytes(name), flags, Mode::empty()))?;
        at = Some(fd.into());
    }
    at.ok_or_else(|| Errno::EINVAL.into())
}

/// Opens the root of what is mounted on a name, if it is one of these devices.
fn enter(dir: &fs::File, name: &[u8], devices: &BTreeSet<u64>) -> io::Result<fs::File> {
    let root = mounted_on(dir, name, devices)?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | SAFE;
    retry(|| fcntl::openat(&root, ".", flags, Mode::empty())).map(Into::into)
}

/// What is mounted on a name. EBUSY if it is none of these devices, which the kernel says from memory.
fn mounted_on(dir: &fs::File, name: &[u8], devices: &BTreeSet<u64>) -> io::Result<fs::File> {
    let root: fs::File =
        retry(|| fcntl::openat(dir, OsStr::from_bytes(name), OFlag::O_PATH | SAFE, Mode::empty()))?.into();
    let flags = rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(&root, "", flags, StatxFlags::TYPE)?;
    if !devices.contains(&rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor)) {
        return Err(Errno::EBUSY.into());
    }
    Ok(root)
}

/// Whether even `.` could not be looked up in a directory, because its mode denies search to all but root.
fn is_closed<T>(done: &io::Result<T>, name: &OsStr) -> bool {
    name == "." && done.as_ref().is_err_and(|e| e.raw_os_error() == Some(Errno::EACCES as i32))
}

/// Whether this process lacks CAP_DAC_OVERRIDE, so that the modes of its own files restrict it. This never changes
/// later.
fn heeds_modes() -> bool {
    const DAC_OVERRIDE: u64 = 1 << 1;
    static HEEDS: OnceLock<bool> = OnceLock::new();
    *HEEDS.get_or_init(|| match Process::myself().and_then(|process| process.status()) {
        Ok(status) => status.capeff & DAC_OVERRIDE == 0,
        Err(_) => !unistd::geteuid().is_root(),
    })
}

/// Repeats a call while a signal interrupts it.
fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return Ok(done?),
        }
    }
}

/// Accepts a single component that does not lead out of the directory. The call itself refuses a NUL.
fn entry(name: &[u8]) -> io::Result<&OsStr> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(Errno::EINVAL.into());
    }
    Ok(OsStr::from_bytes(name))
}

fn entry_or_self(name: &[u8]) -> io::Result<&OsStr> {
    if name == b"." { Ok(OsStr::from_bytes(name)) } else { entry(name) }
}

fn same_machine(to: &dyn Dir) -> io::Result<&OsDir> {
    to.as_any().downcast_ref().ok_or_else(|| Errno::EXDEV.into())
}

fn mode(perm: u32) -> Mode {
    Mode::from_bits_truncate(perm & 0o7777)
}

fn owner(new: &NewAttr) -> (Option<Uid>, Option<Gid>) {
    (new.uid.map(Uid::from_raw), new.gid.map(Gid::from_raw))
}

fn time_spec(time: Option<Time>) -> io::Result<TimeSpec> {
    match time {
        None => Ok(TimeSpec::UTIME_OMIT),
        // Values from one second on are the kernel's own marks for "now" and "leave it".
        Some(t) if t.nsec >= 1_000_000_000 => Err(Errno::EINVAL.into()),
        Some(t) => Ok(TimeSpec::new(t.sec, i64::from(t.nsec))),
    }
}

fn signed(offset: u64) -> io::Result<i64> {
    i64::try_from(offset).map_err(|_| Errno::EFBIG.into())
}

fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.raw_os_error() == Some(Errno::ENODATA as i32) => Ok(()),
        removed => removed,
    }
}

/// Maps the errors of `open(2)` for links, directories, sockets and dead devices to this seam's single error.
fn as_not_regular(e: io::Error) -> io::Error {
    match e.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ELOOP | Errno::EISDIR | Errno::ENXIO | Errno::ENODEV) => Errno::EINVAL.into(),
        _ => e,
    }
}

fn kind(mode: u32) -> Kind {
    match SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFDIR => Kind::Dir,
        SFlag::S_IFLNK => Kind::Symlink,
        SFlag::S_IFIFO => Kind::Fifo,
        SFlag::S_IFSOCK => Kind::Socket,
        SFlag::S_IFCHR => Kind::CharDevice,
        SFlag::S_IFBLK => Kind::BlockDevice,
        _ => Kind::File,
    }
}

fn from_dirent(kind: dir::Type) -> Kind {
    match kind {
        dir::Type::File => Kind::File,
        dir::Type::Directory => Kind::Dir,
        dir::Type::Symlink => Kind::Symlink,
        dir::Type::Fifo => Kind::Fifo,
        dir::Type::Socket => Kind::Socket,
        dir::Type::CharacterDevice => Kind::CharDevice,
        dir::Type::BlockDevice => Kind::BlockDevice,
    }
}

/// `statx(2)` of a name, or with an empty one of the descriptor itself.
fn statx(fd: impl AsFd, name: &OsStr) -> io::Result<Statx> {
    use rustix::fs::AtFlags as At;
    let (flags, asked) = (At::SYMLINK_NOFOLLOW | At::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME);
    Ok(rustix::io::retry_on_intr(|| rustix::fs::statx(&fd, name, flags, asked))?)
}

fn from_statx(s: &Statx) -> Stat {
    let time = |t: rustix::fs::StatxTimestamp| Time { sec: t.tv_sec, nsec: t.tv_nsec };
    let made = time(s.stx_btime);
    let made = (s.stx_mask & StatxFlags::BTIME.bits() != 0).then_some(made);
    let mode = s.stx_mode.into();
    Stat {
        dev: rustix::fs::makedev(s.stx_dev_major, s.stx_dev_minor),
        ino: s.stx_ino,
        kind: kind(mode),
        perm: mode & 0o7777,
        nlink: s.stx_nlink,
        uid: s.stx_uid,
        gid: s.stx_gid,
        rdev: rustix::fs::makedev(s.stx_rdev_major, s.stx_rdev_minor),
        size: s.stx_size,
        blocks: s.stx_blocks,
        atime: time(s.stx_atime),
        mtime: time(s.stx_mtime),
        ctime: time(s.stx_ctime),
        birth: made.map_or(0, |at| handle::number(&[at.sec.to_le_bytes(), i64::from(at.nsec).to_le_bytes()].concat())),
    }
}

fn to_stat(s: &FileStat) -> Stat {
    let time = |sec, nsec: i64| Time { sec, nsec: nsec as u32 };
    Stat {
        dev: s.st_dev,
        ino: s.st_ino,
        kind: kind(s.st_mode),
        perm: s.st_mode & 0o7777,
        nlink: u32::try_from(s.st_nlink).unwrap_or(u32::MAX),
        uid: s.st_uid,
        gid: s.st_gid,
        rdev: s.st_rdev,
        size: s.st_size.unsigned_abs(),
        blocks: s.st_blocks.unsigned_abs(),
        atime: time(s.st_atime, s.st_atime_nsec),
        mtime: time(s.st_mtime, s.st_mtime_nsec),
        ctime: time(s.st_ctime, s.st_ctime_nsec),
        birth: 0,
    }
}
