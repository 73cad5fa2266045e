//! The operations themselves, without the kernel's replies: they check names, find handles, tell `.dlio` apart, and
//! call the engine. Every function may return `Error::NeedSlow` having changed nothing, and is then called again on a
//! thread that may wait.

use std::sync::Arc;

use fuser::{FopenFlags, TimeOrNow};

use super::caller::Callers;
use super::control::asker::Asker;
use super::control::by_xattr::Verb;
use super::control::node;
use super::control::sources::Control;
use super::failures::Failures;
use super::handles::{
    DirEntries, DirHandle, DirReading, EntryReference, FileHandle, Handles, ListingPage, Open, Opened,
};
use super::holdings::{Holdings, Share};
use super::io_paths::{IoPaths, Lease};
use super::observer::Observer;
use super::options::FsOptions;
use super::published::Published;
use super::reload::LiveSettings;
use super::reply::{ReplyBuffer, Value};
use super::shown::path_of;
use super::{convert, slow_pool::SlowPool};
use crate::error::{Errno, Result};
use crate::path::Name;
use crate::stats::{self, Stats};
use crate::tiers::disk::{Kind, NewAttr, Space};
use crate::tiers::{Attr, Cx, Ino, ListEntry, Lsn, OpenFile, ROOT, SetAttr, Tiers};

/// The extended attributes that are ours.
const OUR_XATTRS: &[u8] = b"user.dlio.";

/// How much one COPY_FILE_RANGE copies at most: the caller asks again for the rest, and can be interrupted in between.
const COPY_MAX: u64 = 128 << 20;

/// How many bytes of listings users may have, of directories that they have open.
const LISTINGS_MAX: u64 = 256 << 20;

/// What SETATTR asks for; a field that is `None` is left as it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changes {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) atime: Option<TimeOrNow>,
    pub(super) mtime: Option<TimeOrNow>,
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) tiers: Arc<Tiers>,
    pub(super) stats: Arc<Stats>,
    who: Callers,
    pub(super) control: Control,
    pub(super) failures: Arc<Failures>,
    pub(super) published: Arc<Published>,
    pub(super) io: Arc<IoPaths>,
    descriptors: Holdings,
    listings: Holdings,
    pub(super) files: Arc<Handles<Open>>,
    pub(super) dirs: Arc<Handles<DirHandle>>,
}

impl Core {
    pub(super) fn new(
        tiers: Arc<Tiers>,
        stats: Arc<Stats>,
        slow: Arc<SlowPool>,
        live: Arc<LiveSettings>,
        published: Published,
        options: &FsOptions,
    ) -> Self {
        let who = Callers::default();
        let io = Arc::new(IoPaths::new(options.rules.clone(), Arc::clone(tiers.recorder())));
        let files = Arc::<Handles<Open>>::default();
        let open = Arc::clone(&files);
        let observer = Observer::new(Arc::clone(&tiers), Arc::clone(&stats), Arc::clone(&io), options.about.clone());
        let failures = Arc::<Failures>::default();
        let told = (Arc::clone(&tiers), Arc::clone(&stats), Arc::clone(&failures));
        let control = Control::new(told, slow, live, Arc::clone(&io), open, options, observer);
        let descriptors = Holdings::of_files(options.descriptors, options.owner_uid);
        let listings = ("keep one more listing for", "bytes of listings that are read");
        let listings = Holdings::of_bytes(listings, LISTINGS_MAX, options.owner_uid);
        let (published, dirs) = (Arc::new(published), Arc::default());
        Core { tiers, stats, who, control, failures, published, io, descriptors, listings, files, dirs }
    }

    /// The number of a thread's process if the thread has opened a file recently; otherwise 0.
    pub(super) fn process_lately(&self, thread: u32) -> u32 {
        self.who.known(thread).map_or(0, |process| process.number() as u32)
    }

    /// The context of a call by which this thread opens, writes or closes a file.
    pub(super) fn by<'a>(&self, cx: &'a Cx, thread: u32) -> &'a Cx {
        cx.by(self.who.number(thread))
    }

    /// For the code that writes recordings.
    pub(super) fn observer(&self) -> Observer {
        self.control.observer().clone()
    }

    /// An inode's path for messages, from the mount's root `/`.
    pub(super) fn path_of(&self, ino: Ino) -> Option<String> {
        path_of(&self.tiers, ino)
    }

    // Names

    pub(super) fn lookup(&self, cx: &Cx, parent: Ino, name: &[u8]) -> Result<EntryReference> {
        if node::owns(parent) {
            return self.control.lookup(name).map(EntryReference::uncounted);
        }
        if parent == ROOT && name == node::NAME {
            return Ok(EntryReference::uncounted(self.control.root_attr()));
        }
        self.counted(self.tiers.lookup(cx, parent, &Name::new(name)?))
    }

    pub(super) fn mkdir(&self, cx: &Cx, parent: Ino, name: &[u8], mode: u32, umask: u32) -> Result<EntryReference> {
        self.counted(self.tiers.mkdir(cx, parent, &changeable(parent, name)?, perm(mode), umask))
    }

    pub(super) fn mknod(
        &self,
        cx: &Cx,
        parent: Ino,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<EntryReference> {
        let (name, kind) = (changeable(parent, name)?, convert::kind_of_mode(mode)?);
        self.counted(self.tiers.mknod(cx, parent, &name, kind, perm(mode), umask, rdev.into()))
    }

    pub(super) fn symlink(&self, cx: &Cx, parent: Ino, name: &[u8], target: &[u8]) -> Result<EntryReference> {
        self.counted(self.tiers.symlink(cx, parent, &changeable(parent, name)?, target))
    }

    pub(super) fn link(&self, cx: &Cx, ino: Ino, parent: Ino, name: &[u8]) -> Result<EntryReference> {
        self.counted(self.tiers.link(cx, user_ino(ino)?, parent, &changeable(parent, name)?))
    }

    pub(super) fn unlink(&self, cx: &Cx, parent: Ino, name: &[u8]) -> Result<()> {
        self.tiers.unlink(cx, parent, &changeable(parent, name)?)
    }

    pub(super) fn rmdir(&self, cx: &Cx, parent: Ino, name: &[u8]) -> Result<()> {
        self.tiers.rmdir(cx, parent, &changeable(parent, name)?)
    }

    pub(super) fn rename(
        &self,
        cx: &Cx,
        (parent, name): (Ino, &[u8]),
        (to, to_name): (Ino, &[u8]),
        flags: fuser::RenameFlags,
    ) -> Result<()> {
        let (name, to_name) = (changeable(parent, name)?, changeable(to, to_name)?);
        self.tiers.rename(cx, parent, &name, to, &to_name, convert::rename_mode(flags)?)
    }

    /// The user who requests something in `.dlio`, through a thread that waits for the answer.
    fn asker(&self, cx: &Cx, by: u32) -> Asker {
        Asker::new(cx, by, self.control.owner())
    }

    pub(super) fn readlink(&self, cx: &Cx, by: u32, ino: Ino) -> Result<ReplyBuffer> {
        if node::owns(ino) {
            return self.control.latest_safe(ino, &self.asker(cx, by)).map(ReplyBuffer::from);
        }
        self.tiers.readlink(cx, user_ino(ino)?).map(ReplyBuffer::from)
    }

    fn counted(&self, attr: Result<Attr>) -> Result<EntryReference> {
        attr.map(|attr| EntryReference::counted(&self.tiers, attr))
    }

    // Attributes

    pub(super) fn getattr(&self, cx: &Cx, ino: Ino) -> Result<Attr> {
        if node::owns(ino) { self.control.attr(ino) } else { self.tiers.getattr(cx, ino) }
    }

    pub(super) fn setattr(&self, cx: &Cx, ino: Ino, changes: &Changes) -> Result<Attr> {
        if node::owns(ino) {
            // `echo sync > control` truncates first.
            let only_size = Changes { size: None, mtime: None, ..*changes }.are_none();
            return if only_size { self.control.attr(ino) } else { Err(Errno::EPERM.into()) };
        }
        let now = self.tiers.file_time();
        let time = |time: Option<TimeOrNow>| time.map(|time| convert::time_or_now(time, now));
        let attr = NewAttr {
            uid: changes.uid,
            gid: changes.gid,
            perm: changes.mode.map(perm),
            atime: time(changes.atime),
            mtime: time(changes.mtime),
        };
        self.tiers.setattr(cx, ino, &SetAttr { attr, size: changes.size })
    }

    pub(super) fn statfs(&self, cx: &Cx) -> Result<Space> {
        self.tiers.statfs(cx)
    }

    pub(super) fn getxattr(&self, cx: &Cx, ino: Ino, key: &[u8], room: u32) -> Result<Value> {
        if node::owns(ino) {
            return Err(Errno::ENODATA.into());
        }
        let value = self.tiers.get_xattr(cx, ino, key)?.ok_or(Errno::ENODATA)?;
        Value::fitting(value, room)
    }

    /// The known ACL of a directory, if there is one, for when the slow tier does not answer.
    pub(super) fn acl_as_known(&self, ino: Ino, key: &[u8], room: u32) -> Option<Result<Value>> {
        let list = self.tiers.acl_in_memory(ino, key, true)?;
        Some(list.ok_or(Errno::ENODATA.into()).and_then(|list| Value::fitting(list, room)))
    }

    pub(super) fn setxattr(&self, cx: &Cx, ino: Ino, key: &[u8], value: &[u8], flags: i32) -> Result<()> {
        if let Some(verb) = Verb::of(key) {
            return self.control.by_xattr(cx, user_ino(ino)?, verb, value);
        }
        let flag = |flag| flags & flag != 0;
        let (create, replace) = (flag(nix::libc::XATTR_CREATE), flag(nix::libc::XATTR_REPLACE));
        self.tiers.set_xattr(cx, user_ino(ino)?, user_key(key)?, value, create, replace)
    }

    pub(super) fn removexattr(&self, cx: &Cx, ino: Ino, key: &[u8]) -> Result<()> {
        self.tiers.remove_xattr(cx, user_ino(ino)?, user_key(key)?)
    }

    /// The names, each terminated by NUL.
    pub(super) fn listxattr(&self, cx: &Cx, ino: Ino, room: u32) -> Result<Value> {
        let keys = if node::owns(ino) { Vec::new() } else { self.tiers.list_xattr(cx, ino)? };
        let mut list = Vec::new();
        for key in keys.iter().filter(|key| !key.starts_with(OUR_XATTRS)) {
            list.extend_from_slice(key);
            list.push(0);
        }
        Value::fitting(list, room)
    }

    // Files

    pub(super) fn create(
        &self,
        cx: &Cx,
        by: u32,
        (parent, name): (Ino, &[u8]),
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Result<(EntryReference, Opened)> {
        let name = changeable(parent, name)?;
        self.descriptors.expect_one_for(cx.uid)?;
        let created = self.tiers.create(self.by(cx, by), parent, &name, perm(mode), umask, convert::open_mode(flags));
        let (attr, file) = created.map_err(|error| match error.errno() {
            // The kernel believed that the name was free, so it has not checked permissions on the file that is there
            // now (another node made it). ESTALE makes it look again and open what it finds.
            Errno::EEXIST if !convert::wants_exclusive(flags) => Errno::ESTALE.into(),
            _ => error,
        })?;
        let entry = EntryReference::counted(&self.tiers, attr);
        let share = self.descriptors.take_new(cx.uid, file.ino, 1);
        let lease = self.lease(file.ino, true);
        let seen = self.seen(&file, by, Some(perm(mode)));
        Ok((entry, self.opened(cx, (file, share), lease, flags, seen)))
    }

    pub(super) fn open(&self, cx: &Cx, by: u32, ino: Ino, flags: i32) -> Result<Opened> {
        let mode = convert::open_mode(flags);
        if node::owns(ino) {
            let open = Open::Virtual(self.control.open(ino, mode, self.asker(cx, by))?);
            return Ok(Opened::new(&self.files, open, FopenFlags::FOPEN_DIRECT_IO));
        }
        if mode.truncate && !mode.write && self.runs(ino) {
            return Err(Errno::ETXTBSY.into());
        }
        let share = self.descriptors.acquire(cx.uid, ino, 1)?;
        // As before a write; with O_TRUNC in OPEN the kernel leaves that to us. Only root is taken to have CAP_FSETID.
        if mode.truncate && cx.uid != 0 {
            self.tiers.kill_privileges(cx, ino)?;
        }
        // A writer takes its share before the engine moves any bytes for it, a reader once there is something to read.
        let early = mode.write.then(|| self.lease(ino, true));
        let file = match mode.write || mode.truncate {
            true => self.tiers.open(self.by(cx, by), ino, mode)?,
            false => self.tiers.open(cx, ino, mode)?,
        };
        let lease = early.unwrap_or_else(|| self.lease(ino, false));
        let seen = self.seen(&file, by, None);
        Ok(self.opened(cx, (file, share), lease, flags, seen))
    }

    /// Whether the file is a running program. With O_TRUNC in OPEN the kernel checks that only after us, unless the
    /// file is opened for writing: a reader's open would truncate a program while it runs.
    fn runs(&self, ino: Ino) -> bool {
        self.files.any(|open| open.user_file().is_some_and(|handle| handle.runs && handle.file().ino == ino))
    }

    fn lease(&self, ino: Ino, writes: bool) -> Lease {
        self.io.lease(ino, writes, || self.tiers.path(ino), |quiet| self.tiers.pin(ino, quiet))
    }

    fn opened(&self, cx: &Cx, file: (OpenFile, Share), lease: Lease, flags: i32, seen: stats::Handle) -> Opened {
        Opened::file(&self.files, FileHandle::new(&self.tiers, cx, file, flags, seen), lease)
    }

    /// Calls through a new handle are counted for its file and for the process of the thread that opened it.
    fn seen(&self, file: &OpenFile, by: u32, mode: Option<u32>) -> stats::Handle {
        // Skip the /proc lookup when statistics are off.
        let by = if self.stats.is_on() { by } else { 0 };
        let process = self.who.process(&self.stats.processes, by);
        self.stats.open(self.stats.file(file.ino, || self.path_of(file.ino)), process, mode)
    }

    pub(super) fn read(&self, cx: &Cx, open: &Open, offset: u64, size: u32) -> Result<ReplyBuffer> {
        match open {
            Open::File(handle) => {
                ReplyBuffer::read(size as usize, |buf| self.tiers.read(cx, handle.file(), buf, offset))
            }
            Open::Virtual(open) => Ok(self.control.read(open, offset, size as usize).into()),
        }
    }

    pub(super) fn write(&self, cx: &Cx, open: &Open, bytes: &[u8], offset: u64, kill_privileges: bool) -> Result<u32> {
        match open {
            Open::File(handle) => {
                self.tiers.write(cx, handle.file(), bytes, offset, kill_privileges)?;
                if handle.sync {
                    self.tiers.fsync(cx, handle.file())?;
                }
            }
            Open::Virtual(open) => self.control.write(open, bytes)?,
        }
        // A request is at most 16 MiB long.
        Ok(bytes.len() as u32)
    }

    pub(super) fn flush(&self, cx: &Cx, by: u32, open: &Open) -> Result<()> {
        // The close of a reader needs no process, so it is not looked up.
        let writer = open.user_file().filter(|handle| handle.file().mode.write);
        writer.map_or(Ok(()), |handle| self.tiers.flush(self.by(cx, by), handle.file()))
    }

    /// Returns what the slow tier must have before the application is answered, where a rule says so.
    pub(super) fn fsync(&self, cx: &Cx, open: &Open) -> Result<Option<Lsn>> {
        let Some(handle) = open.user_file() else { return Ok(None) };
        self.tiers.fsync(cx, handle.file())?;
        self.tiers.awaited(handle.file().ino)
    }

    /// The kernel's last request for a handle. The file closes with the last call that still uses it.
    pub(super) fn release(&self, fh: u64) {
        drop(self.files.remove(fh));
    }

    pub(super) fn fallocate(&self, cx: &Cx, open: &Open, offset: u64, len: u64, mode: i32) -> Result<()> {
        self.tiers.allocate(cx, user_file(open)?, convert::allocate(mode)?, offset, len)
    }

    pub(super) fn lseek(&self, cx: &Cx, open: &Open, offset: i64, whence: i32) -> Result<u64> {
        let what = convert::seek(whence)?;
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        self.tiers.seek(cx, user_file(open)?, what, offset)
    }

    pub(super) fn copy_range(
        &self,
        cx: &Cx,
        (from, from_offset): (&Open, u64),
        (to, to_offset): (u64, u64),
        len: u64,
    ) -> Result<u32> {
        let to = self.files.get(to).ok_or(Errno::EBADF)?;
        let (from, to_file) = (user_file(from)?, user_file(&to)?);
        let copied = self.tiers.copy_range(cx, from, from_offset, to_file, to_offset, len.min(COPY_MAX))?;
        if let Open::File(handle) = &*to
            && handle.sync
        {
            self.tiers.fsync(cx, handle.file())?;
        }
        Ok(copied as u32)
    }

    // Directories

    pub(super) fn opendir(&self, ino: Ino) -> Opened {
        Opened::new(&self.dirs, DirHandle::new(ino), FopenFlags::empty())
    }

    pub(super) fn releasedir(&self, fh: u64) {
        if let Some(dir) = self.dirs.remove(fh) {
            dir.close(&self.tiers);
        }
    }

    /// Like [`Core::fsync`], but with everything below the directory.
    pub(super) fn fsyncdir(&self, cx: &Cx, ino: Ino) -> Result<Option<Lsn>> {
        if node::owns(ino) {
            return Ok(None);
        }
        self.tiers.fsync_dir(cx, ino)?;
        self.tiers.awaited(ino)
    }

    pub(super) fn readdir(&self, cx: &Cx, fh: u64, offset: u64) -> Result<ListingPage> {
        let dir = self.dirs.get(fh).ok_or(Errno::EBADF)?;
        dir.page(offset, || self.begin_reading(cx, dir.ino))
    }

    /// Entries with their attributes, as many as are likely to fit. An entry that vanished meanwhile is left out. When
    /// one fails or needs the slow tier, those before it are returned, and the kernel asks again from there.
    pub(super) fn readdirplus(&self, cx: &Cx, fh: u64, offset: u64) -> Result<DirEntries> {
        let dir = self.dirs.get(fh).ok_or(Errno::EBADF)?;
        let page = dir.page(offset, || self.begin_reading(cx, dir.ino))?;
        let mut batch = DirEntries { found: Vec::new(), dir };
        for entry in page.entries() {
            if batch.found.len() >= batch.dir.batch() {
                break;
            }
            match self.listed(cx, batch.dir.ino, entry) {
                Ok(found) => batch.found.push((entry.at, entry.name.clone(), found)),
                Err(error) if error.errno() == Errno::ENOENT => {}
                Err(error) if batch.found.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(batch)
    }

    fn listed(&self, cx: &Cx, dir: Ino, entry: &ListEntry) -> Result<EntryReference> {
        match entry.name.as_slice() {
            b"." | b".." => Ok(EntryReference::uncounted(bare(entry))),
            name => self.lookup(cx, dir, name),
        }
    }

    /// The present entries of the directory. ENFILE if this user keeps too many listings in memory.
    fn begin_reading(&self, cx: &Cx, dir: Ino) -> Result<DirReading> {
        self.listings.expect_one_for(cx.uid)?;
        let listing = if node::owns(dir) { Arc::new(self.control.list()) } else { self.tiers.open_listing(cx, dir)? };
        let share = self.listings.take_bytes(cx.uid, dir, listing.bytes());
        Ok(DirReading::new(listing, share))
    }
}

impl Changes {
    fn are_none(&self) -> bool {
        let Changes { mode, uid, gid, size, atime, mtime } = self;
        mode.is_none() && uid.is_none() && gid.is_none() && size.is_none() && atime.is_none() && mtime.is_none()
    }
}

/// The kernel uses only the number and the kind of `.` and `..`.
fn bare(entry: &ListEntry) -> Attr {
    Attr { ino: entry.ino, kind: Kind::Dir, nlink: 1, ..Attr::default() }
}

fn perm(mode: u32) -> u32 {
    mode & 0o7777
}

/// A name that the user may add, change or remove.
fn changeable(parent: Ino, name: &[u8]) -> Result<Name> {
    node::refuse_change(parent, name)?;
    Ok(Name::new(name)?)
}

fn user_ino(ino: Ino) -> Result<Ino> {
    if node::owns(ino) { Err(Errno::EPERM.into()) } else { Ok(ino) }
}

fn user_key(key: &[u8]) -> Result<&[u8]> {
    if key.starts_with(OUR_XATTRS) { Err(Errno::EPERM.into()) } else { Ok(key) }
}

fn user_file(open: &Open) -> Result<&OpenFile> {
    Ok(open.user_file().ok_or(Errno::EOPNOTSUPP)?.file())
}
