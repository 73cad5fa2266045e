//! `xtask bare LOWER MOUNT [SECONDS]`: a FUSE file system that shows a directory and does nothing else. It is the floor of what the
//! library gives that dlio-fs is built with. The command is hidden: only `peers.rs` runs it.
//!
//! It has dlio-fs's number of threads, asks the kernel for the same, and reads as `exact` does. It answers a request with one or two
//! system calls. It keeps no data, attributes or listings. Neither does the kernel, unless SECONDS say how long it may keep names and
//! attributes. Without them each component of each path costs a request that dlio-fs is not asked for, so only a bare mount with
//! dlio-fs's own lifetimes is a floor for names.
//!
//! It lacks what no benchmark uses: links, symbolic links, extended attributes, locks, and the attributes of an open file that has no
//! name any more.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use fuser::{
    BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{
    FchmodatFlags, FileStat, Mode, SFlag, UtimensatFlags, fchmodat, fstat, fstatat, mkdirat, umask, utimensat,
};
use nix::sys::statvfs::fstatvfs;
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, fsync, unlinkat};
use parking_lot::RwLock;

/// As many as dlio-fs has: `FUSE_THREADS` in `src/mount.rs`.
const THREADS: usize = 16;
/// `MAX_BACKGROUND` in `src/fs.rs`.
const MAX_BACKGROUND: u16 = 64;
/// Those of `CAPABILITIES` in `src/fs.rs` that concern speed.
const CAPABILITIES: [InitFlags; 5] = [
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_ASYNC_DIO,
];
/// `EXACT` in `src/fs/io_paths.rs`.
const EXACT: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
const GENERATION: Generation = Generation(0);
const OPEN_DIR: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
const NO_FOLLOW: AtFlags = AtFlags::AT_SYMLINK_NOFOLLOW;

/// Shows a directory in the foreground, until it is unmounted.
pub(crate) fn command(args: &[String]) -> Result<()> {
    let (lower, mount, lifetime) = parse(args)?;
    // The kernel has applied the caller's.
    umask(Mode::empty());
    let bare = Bare::new(lower, lifetime).with_context(|| format!("cannot open {}", lower.display()))?;
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    fuser::mount(bare, mount, &config).with_context(|| format!("cannot mount {}", mount.display()))
}

fn parse(args: &[String]) -> Result<(&Path, &Path, Duration)> {
    let (lower, mount, seconds) = match args {
        [lower, mount] => (lower, mount, "0"),
        [lower, mount, seconds] => (lower, mount, seconds.as_str()),
        _ => bail!("bare takes a directory, a mount point and a number of seconds"),
    };
    let lifetime = seconds.parse().with_context(|| format!("`{seconds}` is no number of seconds"))?;
    Ok((Path::new(lower), Path::new(mount), Duration::from_secs(lifetime)))
}

#[derive(Debug)]
struct Bare {
    /// How long the kernel may believe what it was told.
    lifetime: Duration,
    /// What the kernel knows, by its number there.
    nodes: RwLock<HashMap<u64, Node>>,
    files: Table<File>,
    listings: Table<Vec<Listed>>,
}

#[derive(Debug)]
struct Node {
    at: Arc<NodeName>,
    /// A directory itself: what is in it is found from here.
    dir: Option<Arc<OwnedFd>>,
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
}

/// Where a file is: no descriptor is kept of one that is not open.
#[derive(Debug)]
struct NodeName {
    parent: Arc<OwnedFd>,
    name: OsString,
}

/// An entry of a directory, as it was when the directory was opened.
#[derive(Debug)]
struct Listed {
    ino: INodeNo,
    kind: FileType,
    name: OsString,
}

impl Bare {
    fn new(lower: &Path, lifetime: Duration) -> io::Result<Self> {
        let root = Arc::new(nix::fcntl::open(lower, OPEN_DIR, Mode::empty())?);
        let at = Arc::new(NodeName { parent: Arc::clone(&root), name: ".".into() });
        let root = Node { at, dir: Some(root), lookups: 1 };
        let nodes = RwLock::new([(INodeNo::ROOT.0, root)].into());
        Ok(Bare { lifetime, nodes, files: Table::default(), listings: Table::default() })
    }

    fn at(&self, ino: INodeNo) -> io::Result<Arc<NodeName>> {
        Ok(Arc::clone(&self.nodes.read().get(&ino.0).ok_or(Errno::ESTALE)?.at))
    }

    fn dir(&self, ino: INodeNo) -> io::Result<Arc<OwnedFd>> {
        let nodes = self.nodes.read();
        Ok(Arc::clone(nodes.get(&ino.0).ok_or(Errno::ESTALE)?.dir.as_ref().ok_or(Errno::ENOTDIR)?))
    }

    /// Tells the kernel of a file, which from now on has this name.
    fn know(&self, parent: Arc<OwnedFd>, name: &OsStr, stat: &FileStat) -> io::Result<FileAttr> {
        let attr = attributes(number(stat.st_ino), stat);
        let open = |at: &NodeName| match attr.kind {
            FileType::Directory => openat(&at.parent, &*at.name, OPEN_DIR, Mode::empty()).map(|dir| Some(dir.into())),
            _ => Ok(None),
        };
        let at = Arc::new(NodeName { parent, name: name.to_owned() });
        match self.nodes.write().entry(attr.ino.0) {
            Entry::Vacant(free) => {
                free.insert(Node { dir: open(&at)?, at, lookups: 1 });
            }
            Entry::Occupied(known) => {
                let node = known.into_mut();
                // The disk may have given the number to something else, before the kernel forgot what had it.
                let is_gone = |dir: &Arc<OwnedFd>| fstat(dir).is_ok_and(|stat| stat.st_nlink == 0);
                if node.dir.is_some() != (attr.kind == FileType::Directory) || node.dir.as_ref().is_some_and(is_gone) {
                    node.dir = open(&at)?;
                }
                (node.at, node.lookups) = (at, node.lookups + 1);
            }
        }
        Ok(attr)
    }

    fn lookup(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let parent = self.dir(parent)?;
        let stat = fstatat(&parent, name, NO_FOLLOW)?;
        self.know(parent, name, &stat)
    }

    fn forget(&self, ino: INodeNo, lookups: u64) {
        if let Entry::Occupied(mut known) = self.nodes.write().entry(ino.0) {
            known.get_mut().lookups = known.get().lookups.saturating_sub(lookups);
            if known.get().lookups == 0 && ino != INodeNo::ROOT {
                known.remove();
            }
        }
    }

    fn attr(&self, ino: INodeNo) -> io::Result<FileAttr> {
        let at = self.at(ino)?;
        Ok(attributes(ino, &fstatat(&at.parent, &*at.name, NO_FOLLOW)?))
    }

    fn change(&self, ino: INodeNo, changes: &Changes) -> io::Result<FileAttr> {
        let NodeName { parent, name } = &*self.at(ino)?;
        let name = &**name;
        if let Some(size) = changes.size {
            let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            File::from(openat(parent, name, flags, Mode::empty())?).set_len(size)?;
        }
        if (changes.uid, changes.gid) != (None, None) {
            let (uid, gid) = (changes.uid.map(Uid::from_raw), changes.gid.map(Gid::from_raw));
            fchownat(parent, name, uid, gid, NO_FOLLOW)?;
        }
        if let Some(mode) = changes.mode {
            fchmodat(parent, name, permissions(mode), FchmodatFlags::FollowSymlink)?;
        }
        if (changes.atime, changes.mtime) != (None, None) {
            let [atime, mtime] = [changes.atime, changes.mtime].map(time_spec);
            utimensat(parent, name, &atime, &mtime, UtimensatFlags::NoFollowSymlink)?;
        }
        self.attr(ino)
    }

    fn open(&self, ino: INodeNo, flags: OpenFlags) -> io::Result<FileHandle> {
        let at = self.at(ino)?;
        Ok(self.files.insert(openat(&at.parent, &*at.name, lower_flags(flags.0), Mode::empty())?.into()))
    }

    fn create(&self, parent: INodeNo, name: &OsStr, mode: u32, flags: i32) -> io::Result<(FileAttr, FileHandle)> {
        let parent = self.dir(parent)?;
        let file = openat(&parent, name, lower_flags(flags) | OFlag::O_CREAT, permissions(mode))?;
        let stat = fstat(&file)?;
        Ok((self.know(parent, name, &stat)?, self.files.insert(file.into())))
    }

    fn make_dir(&self, parent: INodeNo, name: &OsStr, mode: u32) -> io::Result<FileAttr> {
        mkdirat(self.dir(parent)?, name, permissions(mode))?;
        self.lookup(parent, name)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, what: UnlinkatFlags) -> io::Result<()> {
        Ok(unlinkat(self.dir(parent)?, name, what)?)
    }

    fn rename(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), flags: RenameFlags) -> io::Result<()> {
        if !flags.is_empty() {
            return Err(Errno::EINVAL.into());
        }
        let parent = self.dir(to.0)?;
        renameat(self.dir(from.0)?, from.1, &parent, to.1)?;
        let stat = fstatat(&parent, to.1, NO_FOLLOW)?;
        if let Some(node) = self.nodes.write().get_mut(&number(stat.st_ino).0) {
            node.at = Arc::new(NodeName { parent, name: to.1.to_owned() });
        }
        Ok(())
    }

    fn open_dir(&self, ino: INodeNo) -> io::Result<FileHandle> {
        let mut dir = Dir::openat(self.dir(ino)?, ".", OPEN_DIR, Mode::empty())?;
        let listed = |entry: nix::Result<nix::dir::Entry>| {
            let entry = entry?;
            let kind = match entry.file_type() {
                Some(Type::Directory) => FileType::Directory,
                Some(Type::Symlink) => FileType::Symlink,
                _ => FileType::RegularFile,
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            Ok(Listed { ino: number(entry.ino()), kind, name })
        };
        Ok(self.listings.insert(dir.iter().map(listed).collect::<io::Result<_>>()?))
    }

    /// The entries from an offset on, until `add` has no room.
    fn list(
        &self,
        fh: FileHandle,
        offset: u64,
        mut add: impl FnMut(&Listed, u64) -> io::Result<bool>,
    ) -> io::Result<()> {
        let listing = self.listings.get(fh)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, entry) in listing.iter().enumerate().skip(from) {
            if add(entry, at as u64 + 1)? {
                break;
            }
        }
        Ok(())
    }

    fn answer_entry(&self, reply: ReplyEntry, result: io::Result<FileAttr>) {
        match result {
            Ok(attr) => reply.entry(&self.lifetime, &attr, GENERATION),
            Err(error) => reply.error(error.into()),
        }
    }

    fn answer_attr(&self, reply: ReplyAttr, result: io::Result<FileAttr>) {
        match result {
            Ok(attr) => reply.attr(&self.lifetime, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn list_plus(&self, ino: INodeNo, fh: FileHandle, offset: u64, reply: &mut ReplyDirectoryPlus) -> io::Result<()> {
        let parent = self.dir(ino)?;
        self.list(fh, offset, |entry, next| {
            let stat = match fstatat(&parent, &*entry.name, NO_FOLLOW) {
                Err(Errno::ENOENT) => return Ok(false),
                stat => stat?,
            };
            let attr = attributes(entry.ino, &stat);
            let is_full = reply.add(entry.ino, next, &entry.name, &self.lifetime, &attr, GENERATION);
            // The kernel does not count these two.
            if !is_full && entry.name != "." && entry.name != ".." {
                self.know(Arc::clone(&parent), &entry.name, &stat)?;
            }
            Ok(is_full)
        })
    }
}

/// What setattr asks for.
#[derive(Debug, Default)]
struct Changes {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
}

/// What is open, by numbers that are not used again.
#[derive(Debug)]
struct Table<T> {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { next: AtomicU64::new(1), open: RwLock::default() }
    }
}

impl<T> Table<T> {
    fn insert(&self, one: T) -> FileHandle {
        let fh = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(fh, Arc::new(one));
        FileHandle(fh)
    }

    fn get(&self, fh: FileHandle) -> io::Result<Arc<T>> {
        Ok(Arc::clone(self.open.read().get(&fh.0).ok_or(Errno::EBADF)?))
    }

    fn remove(&self, fh: FileHandle) {
        // Dropped, and by that closed, when the lock is not held any more.
        let _closed = self.open.write().remove(&fh.0);
    }
}

/// Of an inode of the disk: none is the root's number here.
fn number(inode: u64) -> INodeNo {
    INodeNo(inode + INodeNo::ROOT.0)
}

/// For an open below: a write names its place, also where the caller appends.
fn lower_flags(flags: i32) -> OFlag {
    let flags = OFlag::from_bits_truncate(flags) | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    flags - OFlag::O_APPEND
}

fn permissions(mode: u32) -> Mode {
    Mode::from_bits_truncate(mode)
}

fn time_spec(time: Option<TimeOrNow>) -> TimeSpec {
    match time {
        None => TimeSpec::UTIME_OMIT,
        Some(TimeOrNow::Now) => TimeSpec::UTIME_NOW,
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => TimeSpec::from_duration(since),
            // Before 1970, and rounded to a second.
            Err(before) => TimeSpec::new(-i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX), 0),
        },
    }
}

fn attributes(ino: INodeNo, stat: &FileStat) -> FileAttr {
    let time = |seconds: i64, nanoseconds: i64| {
        let within = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or_default());
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let time = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
        time.map_or(UNIX_EPOCH, |time| time + within)
    };
    let kind = match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFDIR => FileType::Directory,
        SFlag::S_IFLNK => FileType::Symlink,
        SFlag::S_IFIFO => FileType::NamedPipe,
        SFlag::S_IFCHR => FileType::CharDevice,
        SFlag::S_IFBLK => FileType::BlockDevice,
        SFlag::S_IFSOCK => FileType::Socket,
        _ => FileType::RegularFile,
    };
    FileAttr {
        ino,
        size: stat.st_size.cast_unsigned(),
        blocks: stat.st_blocks.cast_unsigned(),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind,
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

thread_local! {
    /// For what is read, so that no request makes memory of its own.
    static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn answer_empty(reply: ReplyEmpty, result: io::Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

#[allow(clippy::too_many_arguments, reason = "the signatures are fuser's")]
impl Filesystem for Bare {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in CAPABILITIES {
            config.add_capabilities(capability).map_err(|_| io::Error::from(Errno::ENOSYS))?;
        }
        config.set_max_background(MAX_BACKGROUND).map(drop).map_err(|_| Errno::EINVAL.into())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.answer_entry(reply, self.lookup(parent, name));
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.forget(ino, lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer_attr(reply, self.attr(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.answer_attr(reply, self.change(ino, &Changes { mode, uid, gid, size, atime, mtime }));
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        self.answer_entry(reply, self.make_dir(parent, name, mode));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(reply, self.remove(parent, name, UnlinkatFlags::NoRemoveDir));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(reply, self.remove(parent, name, UnlinkatFlags::RemoveDir));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer_empty(reply, self.rename((parent, name), (to_parent, to_name), flags));
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // The close of a reader needs no request: dlio-fs asks for none either.
        let close = match flags.acc_mode() {
            OpenAccMode::O_RDONLY => FopenFlags::FOPEN_NOFLUSH,
            _ => FopenFlags::empty(),
        };
        match self.open(ino, flags) {
            Ok(fh) => reply.opened(fh, EXACT | close),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create(parent, name, mode, flags) {
            Ok((attr, fh)) => reply.created(&self.lifetime, &attr, GENERATION, fh, EXACT),
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ.with_borrow_mut(|room| {
            let size = size as usize;
            room.resize(room.len().max(size), 0);
            match self.files.get(fh).and_then(|file| file.read_at(&mut room[..size], offset)) {
                Ok(read) => reply.data(&room[..read]),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.files.get(fh).and_then(|file| file.write_all_at(data, offset)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    /// As libfuse's own passthrough example does, so that a close tells what the close below tells.
    fn flush(&self, _: &Request, _ino: INodeNo, fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        answer_empty(reply, self.files.get(fh).and_then(|file| file.try_clone()).map(drop));
    }

    fn release(
        &self,
        _: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.remove(fh);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let sync = |file: Arc<File>| if datasync { file.sync_data() } else { file.sync_all() };
        answer_empty(reply, self.files.get(fh).and_then(sync));
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_dir(ino) {
            Ok(fh) => reply.opened(fh, FopenFlags::empty()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdir(&self, _: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let add = |entry: &Listed, next| Ok(reply.add(entry.ino, next, entry.kind, &entry.name));
        match self.list(fh, offset, add) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        match self.list_plus(ino, fh, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn releasedir(&self, _: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.listings.remove(fh);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer_empty(reply, self.dir(ino).and_then(|dir| Ok(fsync(dir)?)));
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.at(ino).and_then(|at| Ok(fstatvfs(&at.parent)?)) {
            Ok(stat) => reply.statfs(
                stat.blocks(),
                stat.blocks_free(),
                stat.blocks_available(),
                stat.files(),
                stat.files_free(),
                stat.block_size() as u32,
                stat.name_max() as u32,
                stat.fragment_size() as u32,
            ),
            Err(error) => reply.error(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::PathBuf;

    use super::*;

    const ROOT: INodeNo = INodeNo::ROOT;

    /// A directory with `d/f`, shown by itself: no kernel is needed. Removed at the end.
    struct Shown {
        lower: PathBuf,
        bare: Bare,
    }

    impl Shown {
        fn new(test: &str) -> Self {
            let lower = std::env::temp_dir().join(format!("xtask-bare-{test}-{}", std::process::id()));
            fs::create_dir_all(lower.join("d")).unwrap();
            fs::write(lower.join("d/f"), "some bytes").unwrap();
            let bare = Bare::new(&lower, Duration::ZERO).unwrap();
            Shown { lower, bare }
        }

        fn find(&self, parent: INodeNo, name: &str) -> io::Result<FileAttr> {
            self.bare.lookup(parent, OsStr::new(name))
        }
    }

    impl Drop for Shown {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.lower));
        }
    }

    #[test]
    fn what_is_shown_is_what_is_there() {
        let shown = Shown::new("there");
        assert_eq!(shown.bare.attr(ROOT).unwrap().kind, FileType::Directory);
        let dir = shown.find(ROOT, "d").unwrap();
        let file = shown.find(dir.ino, "f").unwrap();
        let meta = fs::metadata(shown.lower.join("d/f")).unwrap();
        assert_eq!((file.kind, file.size, file.nlink, file.uid), (FileType::RegularFile, 10, 1, meta.uid()));
        assert_eq!((file.mtime, u32::from(file.perm)), (meta.modified().unwrap(), meta.mode() & 0o7777));
        assert_eq!(shown.find(ROOT, "none").unwrap_err().kind(), io::ErrorKind::NotFound);
        let fh = shown.bare.open_dir(dir.ino).unwrap();
        let (mut names, mut nexts) = (Vec::new(), Vec::new());
        let mut add = |entry: &Listed, next| {
            names.push(entry.name.clone());
            nexts.push(next);
            Ok(false)
        };
        shown.bare.list(fh, 0, &mut add).unwrap();
        shown.bare.list(fh, 2, &mut add).unwrap();
        names[..3].sort();
        assert_eq!((&names[..3], &nexts[..]), (&[".".into(), "..".into(), "f".into()][..], &[1, 2, 3, 3][..]));
    }

    #[test]
    fn changes_go_through_and_a_renamed_file_is_found_by_its_number() {
        let shown = Shown::new("changes");
        let (attr, fh) = shown.bare.create(ROOT, OsStr::new("new"), 0o640, OFlag::O_WRONLY.bits()).unwrap();
        shown.bare.files.get(fh).unwrap().write_all_at(b"12345", 0).unwrap();
        let dir = shown.bare.make_dir(ROOT, OsStr::new("e"), 0o700).unwrap();
        shown.bare.rename((ROOT, OsStr::new("new")), (dir.ino, OsStr::new("old")), RenameFlags::empty()).unwrap();
        let mtime = Some(TimeOrNow::SpecificTime(UNIX_EPOCH + Duration::new(5, 7)));
        let changes = Changes { size: Some(3), mode: Some(0o600), mtime, ..Changes::default() };
        let changed = shown.bare.change(attr.ino, &changes).unwrap();
        assert_eq!((changed.size, changed.perm), (3, 0o600));
        let meta = fs::metadata(shown.lower.join("e/old")).unwrap();
        assert_eq!((meta.len(), meta.mtime(), meta.mtime_nsec()), (3, 5, 7));
        shown.bare.remove(dir.ino, OsStr::new("old"), UnlinkatFlags::NoRemoveDir).unwrap();
        shown.bare.remove(ROOT, OsStr::new("e"), UnlinkatFlags::RemoveDir).unwrap();
        assert!(!shown.lower.join("e").exists());
    }

    /// The kernel's numbers are the disk's, which gives one again as soon as it is free.
    #[test]
    fn a_directory_with_the_number_of_one_that_is_gone_is_not_taken_for_it() {
        let shown = Shown::new("again");
        let first = shown.bare.make_dir(ROOT, OsStr::new("a"), 0o700).unwrap();
        shown.bare.remove(ROOT, OsStr::new("a"), UnlinkatFlags::RemoveDir).unwrap();
        let stat = fstatat(shown.bare.dir(ROOT).unwrap(), "d", NO_FOLLOW).unwrap();
        // The same number, whatever this disk does: that of `d`, where `a` was.
        let node = shown.bare.nodes.write().remove(&first.ino.0).unwrap();
        shown.bare.nodes.write().insert(number(stat.st_ino).0, node);
        let dir = shown.find(ROOT, "d").unwrap();
        assert!(shown.find(dir.ino, "f").is_ok());
    }

    #[test]
    fn nothing_is_known_of_what_the_kernel_has_forgotten() {
        let shown = Shown::new("forgotten");
        let dir = shown.find(ROOT, "d").unwrap();
        shown.find(ROOT, "d").unwrap();
        shown.bare.forget(dir.ino, 1);
        assert!(shown.bare.attr(dir.ino).is_ok());
        shown.bare.forget(dir.ino, 1);
        assert_eq!(shown.bare.attr(dir.ino).unwrap_err().raw_os_error(), Some(Errno::ESTALE as i32));
        shown.bare.forget(ROOT, 9);
        assert!(shown.bare.attr(ROOT).is_ok());
    }

    #[test]
    fn a_command_line_says_how_long_the_kernel_may_keep_what_it_was_told() {
        let args = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (lower, mount) = (Path::new("/l"), Path::new("/m"));
        assert_eq!(parse(&args("/l /m")).unwrap(), (lower, mount, Duration::ZERO));
        assert_eq!(parse(&args("/l /m 60")).unwrap(), (lower, mount, Duration::from_secs(60)));
        assert!(parse(&args("/l")).is_err() && parse(&args("/l /m long")).is_err());
    }

    #[test]
    fn times_before_1970_and_no_times() {
        let before = TimeOrNow::SpecificTime(UNIX_EPOCH - Duration::from_secs(9));
        assert_eq!(time_spec(Some(before)).tv_sec(), -9);
        assert_eq!(time_spec(None), TimeSpec::UTIME_OMIT);
    }
}
