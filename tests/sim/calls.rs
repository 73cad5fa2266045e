//! The calls of the seam on a simulated disk: what `ext4` answers, errno by errno.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{
    self, Access, Allocate, Clock, Dir, DirEntry, File, Kind, MetadataOrder, NewAttr, RenameMode, Seek, Space, Stat,
    Time,
};

use super::bytes::BLOCK;
use super::tree::{Change, Ino, Inode, Meta, ROOT};
use super::{ACCESS_ACL, Behind, DEFAULT_ACL, Effect, INODE_BYTES, NFS_KEEPS, Op, PRIVATE, Shared, SimDisk, State};

const NAME_MAX: usize = 255;
/// The longest file, as on ext4 with blocks of 4 KiB.
const SIZE_MAX: u64 = 1 << 44;
/// Rights of the owner.
const R: u32 = 4;
const W: u32 = 2;
const X: u32 = 1;

/// An open descriptor: keeps its inode alive.
struct Handle {
    disk: Arc<Shared>,
    ino: Ino,
}

impl Handle {
    fn new(disk: &Arc<Shared>, state: &mut State, ino: Ino) -> Self {
        *state.open.entry(ino).or_default() += 1;
        Handle { disk: disk.clone(), ino }
    }

    fn announce(&self) {
        let before = self.disk.before.lock().clone();
        if let Some(before) = before {
            before();
        }
    }

    /// A call that changes nothing.
    fn look<T>(&self, call: impl FnOnce(&State) -> io::Result<T>) -> io::Result<T> {
        self.announce();
        self.disk.looks.fetch_add(1, Ordering::Relaxed);
        let fails = self.disk.failing.lock().as_ref().is_some_and(|fails| fails());
        let state = self.disk.state.lock();
        if state.dead || self.disk.power.is_gone() || fails {
            return Err(Errno::EIO.into());
        }
        let found = call(&state);
        drop(state);
        let after = self.disk.after.lock().clone();
        if let Some(after) = after {
            after();
        }
        found
    }

    /// A call that changes something: counted, failed on demand, and possibly the machine's last.
    fn change<T>(
        &self,
        call: &'static str,
        name: &[u8],
        bytes: u64,
        change: impl FnOnce(&mut State, Time, Effect) -> io::Result<T>,
    ) -> io::Result<T> {
        self.change_to((call, name, b""), bytes, change)
    }

    /// The same of a call that gives something a new name.
    fn change_to<T>(
        &self,
        (call, name, to): (&'static str, &[u8], &[u8]),
        bytes: u64,
        change: impl FnOnce(&mut State, Time, Effect) -> io::Result<T>,
    ) -> io::Result<T> {
        self.announce();
        let mut state = self.disk.state.lock();
        let last = self.disk.power.mutating();
        if state.dead || last == Some(Effect::Nothing) {
            return Err(Errno::EIO.into());
        }
        if let Some(inject) = &*self.disk.inject.lock() {
            let mut path = state.live.path(self.ino);
            if !name.is_empty() {
                path.extend_from_slice(if path.is_empty() { b"" } else { b"/" });
                path.extend_from_slice(name);
            }
            let private = path.split(|&b| b == b'/').next() == Some(PRIVATE);
            if let Some(errno) = inject(&Op { call, path, to: to.to_vec(), private, bytes }) {
                return Err(errno.into());
            }
        }
        let done = change(&mut state, self.disk.clock.now(), last.unwrap_or(Effect::All));
        // What is dropped below may be a descriptor, which takes the lock itself.
        drop(state);
        match last {
            None => done,
            Some(_) => Err(Errno::EIO.into()),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        if let Some(count) = state.open.get_mut(&self.ino) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&self.ino);
                state.close_removed(self.ino, self.disk.clock.now());
                state.drop_unused(self.ino);
            }
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.disk.label, self.ino)
    }
}

impl State {
    fn inode(&self, ino: Ino) -> io::Result<&Inode> {
        // Only a disk that lost its power has descriptors without an inode.
        self.live.inodes.get(&ino).ok_or_else(|| Errno::EIO.into())
    }

    /// Whether the owner of a node, who is everybody here, has these rights to it.
    fn may(&self, ino: Ino, rights: u32) -> io::Result<()> {
        let perm = self.inode(ino)?.meta.perm >> 6;
        if self.heeds_modes && perm & rights != rights { Err(Errno::EACCES.into()) } else { Ok(()) }
    }

    fn find(&self, dir: Ino, name: &[u8]) -> io::Result<Ino> {
        if self.is_nfs && dir != ROOT && self.inode(dir)?.names.is_empty() {
            return Err(Errno::ESTALE.into());
        }
        if name == b"." {
            return Ok(dir);
        }
        check(name)?;
        self.may(dir, X)?;
        self.inode(dir)?.entries.get(name).copied().ok_or_else(|| Errno::ENOENT.into())
    }

    /// Some give a file that is open another name when it is to lose its last one. `true`: that is done.
    fn keep_open(&mut self, ino: Ino, now: Time) -> io::Result<bool> {
        let inode = self.inode(ino)?;
        let (Some(beginning), 1, Kind::File) = (self.keeps_open, inode.names.len(), inode.kind) else {
            return Ok(false);
        };
        let Some((dir, name)) = inode.names.first().cloned().filter(|_| self.open.contains_key(&ino)) else {
            return Ok(false);
        };
        if self.is_kept_by_nfs(&name) {
            return Err(Errno::EBUSY.into());
        }
        let count = self.kept_open;
        self.kept_open += 1;
        // Only the one tells which file it was.
        let kept =
            if self.is_nfs { format!("{beginning}{ino:016x}{count:08x}") } else { format!("{beginning}{count:016x}") };
        let kept = kept.into_bytes();
        let changes = vec![Change::Entry { dir, name, ino: None }, Change::Entry { dir, name: kept, ino: Some(ino) }];
        self.commit(changes, Behind::Nothing);
        self.touch(dir, now);
        Ok(true)
    }

    /// And remove it when it is closed.
    fn close_removed(&mut self, ino: Ino, now: Time) {
        let names = self.live.inodes.get(&ino).map(|inode| inode.names.clone()).unwrap_or_default();
        let is_kept = |name: &[u8]| self.keeps_open.is_some_and(|beginning| name.starts_with(beginning.as_bytes()));
        if let Some((dir, name)) = names.into_iter().find(|(_, name)| is_kept(name)) {
            self.commit(vec![Change::Entry { dir, name, ino: None }], Behind::Nothing);
            self.touch(dir, now);
        }
    }

    fn is_kept_by_nfs(&self, name: &[u8]) -> bool {
        self.is_nfs && name.starts_with(NFS_KEEPS.as_bytes())
    }

    fn stat(&self, ino: Ino) -> io::Result<Stat> {
        let inode = self.inode(ino)?;
        let (size, blocks) = match inode.kind {
            Kind::File => (inode.bytes.size(), inode.bytes.allocated() * (BLOCK / 512)),
            Kind::Dir => (BLOCK, BLOCK / 512),
            Kind::Symlink => (inode.target.len() as u64, 0),
            _ => (0, 0),
        };
        Ok(Stat {
            dev: self.device_of(ino),
            ino,
            kind: inode.kind,
            perm: inode.meta.perm,
            nlink: self.live.nlink(ino),
            uid: inode.meta.uid,
            gid: inode.meta.gid,
            rdev: inode.rdev,
            size,
            blocks,
            atime: inode.meta.atime,
            mtime: inode.meta.mtime,
            ctime: inode.meta.ctime,
            birth: if self.numbers.births { inode.birth } else { 0 },
        })
    }

    /// Makes a new inode under a new name.
    fn make(&mut self, dir: Ino, name: &[u8], now: Time, mut inode: Inode) -> io::Result<Ino> {
        check_new(name)?;
        self.may(dir, X)?;
        let parent = self.inode(dir)?;
        if parent.entries.contains_key(name) {
            return Err(Errno::EEXIST.into());
        }
        if dir != ROOT && parent.names.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        self.may(dir, W)?;
        if parent.meta.perm & 0o2000 != 0 {
            inode.meta.gid = parent.meta.gid;
            inode.meta.perm |= if inode.kind == Kind::Dir { 0o2000 } else { 0 };
        }
        if let Some(list) = parent.xattrs.get(DEFAULT_ACL).filter(|_| inode.kind != Kind::Symlink) {
            inode.xattrs.insert(ACCESS_ACL.to_vec(), list.clone());
            if inode.kind == Kind::Dir {
                inode.xattrs.insert(DEFAULT_ACL.to_vec(), list.clone());
            }
        }
        self.room_for(INODE_BYTES)?;
        inode.meta = Meta { atime: now, mtime: now, ctime: now, ..inode.meta };
        let ino = self.free_ino();
        self.made += 1;
        inode.birth = self.made;
        let named = Change::Entry { dir, name: name.to_vec(), ino: Some(ino) };
        self.commit(vec![Change::New(ino, Box::new(inode)), named], Behind::Nothing);
        self.touch(dir, now);
        Ok(ino)
    }

    fn remove(&mut self, dir: Ino, name: &[u8], now: Time) -> io::Result<()> {
        let ino = self.find(dir, name)?;
        self.may(dir, W)?;
        if self.keep_open(ino, now)? {
            return Ok(());
        }
        let is_dir = self.inode(ino)?.kind == Kind::Dir;
        self.commit(
            vec![Change::Entry { dir, name: name.to_vec(), ino: None }],
            if is_dir { Behind::All } else { Behind::Nothing },
        );
        self.touch(ino, now);
        self.touch(dir, now);
        Ok(())
    }

    fn rename(
        &mut self,
        (dir, name): (Ino, &[u8]),
        (to, to_name): (Ino, &[u8]),
        mode: RenameMode,
        now: Time,
    ) -> io::Result<()> {
        check_new(name)?;
        check_new(to_name)?;
        let from = self.find(dir, name)?;
        self.may(to, X)?;
        let over = self.inode(to)?.entries.get(to_name).copied();
        let is_dir = self.inode(from)?.kind == Kind::Dir;
        if self.part_of(dir) != self.part_of(to) {
            return Err(Errno::EXDEV.into());
        }
        match (mode, over) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
            _ => {}
        }
        if is_dir && self.live.is_below(to, from) {
            return Err(Errno::EINVAL.into());
        }
        if self.is_nfs && mode != RenameMode::Replace {
            return Err(Errno::EINVAL.into());
        }
        if self.is_kept_by_nfs(name) {
            return Err(Errno::EBUSY.into());
        }
        let exchange = mode == RenameMode::Exchange;
        let loses_its_name = over.filter(|over| *over != from && !exchange);
        let kept = loses_its_name.map_or(Ok(false), |over| self.keep_open(over, now))?;
        let over = over.filter(|_| !kept);
        if let Some(over) = over {
            let over_dir = self.inode(over)?.kind == Kind::Dir;
            if over_dir && self.live.is_below(dir, over) {
                return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
            }
            if over == from {
                return Ok(());
            }
            match (is_dir, over_dir) {
                _ if exchange => {}
                (true, false) => return Err(Errno::ENOTDIR.into()),
                (false, true) => return Err(Errno::EISDIR.into()),
                (true, true) if !self.inode(over)?.entries.is_empty() => return Err(Errno::ENOTEMPTY.into()),
                _ => {}
            }
        }
        if to != ROOT && self.inode(to)?.names.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        self.may(dir, W)?;
        self.may(to, W)?;
        // What comes into another directory is written to for its `..`.
        let exchanged = over.filter(|_| exchange);
        for moved in [Some(from), exchanged].into_iter().flatten() {
            if dir != to && self.inode(moved)?.kind == Kind::Dir {
                self.may(moved, W)?;
            }
        }
        let behind = match over.is_some_and(|over| self.live.inodes[&over].kind == Kind::Dir) {
            true => Behind::All,
            false if is_dir => Behind::Moves,
            false => Behind::Nothing,
        };
        let left = if exchange { over } else { None };
        let changes = vec![
            Change::Entry { dir, name: name.to_vec(), ino: left },
            Change::Entry { dir: to, name: to_name.to_vec(), ino: Some(from) },
        ];
        self.commit(changes, behind);
        [Some(from), over, Some(dir), Some(to)].into_iter().flatten().for_each(|ino| self.touch(ino, now));
        Ok(())
    }

    fn set_attr(&mut self, ino: Ino, new: &NewAttr, now: Time) -> io::Result<()> {
        if [new.atime, new.mtime].into_iter().flatten().any(|t| t.nsec >= 1_000_000_000) {
            return Err(Errno::EINVAL.into());
        }
        let inode = self.inode(ino)?;
        let mut meta = inode.meta;
        if new.uid.is_some() || new.gid.is_some() {
            meta.uid = new.uid.unwrap_or(meta.uid);
            meta.gid = new.gid.unwrap_or(meta.gid);
            if inode.kind != Kind::Dir {
                let with_group_exec = meta.perm & 0o2010 == 0o2010;
                meta.perm &= if with_group_exec { !0o6000 } else { !0o4000 };
            }
        }
        if let Some(perm) = new.perm.filter(|_| inode.kind != Kind::Symlink) {
            meta.perm = perm & 0o7777;
        }
        meta.atime = new.atime.unwrap_or(meta.atime);
        meta.mtime = new.mtime.unwrap_or(meta.mtime);
        if *new != NewAttr::default() {
            meta.ctime = now;
            self.commit(vec![Change::Meta(ino, meta)], Behind::Nothing);
        }
        Ok(())
    }

    fn check_key(&self, ino: Ino, key: &[u8]) -> io::Result<()> {
        let known = [&b"user."[..], b"trusted.", b"security.", b"system.posix_acl_"];
        if !known.iter().any(|prefix| key.starts_with(prefix)) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if key.starts_with(b"user.") && !matches!(self.inode(ino)?.kind, Kind::File | Kind::Dir) {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    }

    fn get_xattr(&self, ino: Ino, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let checked = self.check_key(ino, key);
        if checked.is_ok() && key.starts_with(b"user.") {
            self.may(ino, R)?;
        }
        match checked {
            Err(e) if e.raw_os_error() == Some(Errno::EPERM as i32) => Ok(None),
            Err(e) => Err(e),
            Ok(()) => Ok(self.inode(ino)?.xattrs.get(key).cloned()),
        }
    }

    fn put_xattr(&mut self, ino: Ino, key: &[u8], value: Option<&[u8]>, now: Time) -> io::Result<()> {
        self.check_key(ino, key)?;
        if key.starts_with(b"user.") {
            self.may(ino, W)?;
        }
        if value.is_none() && !self.inode(ino)?.xattrs.contains_key(key) {
            return Ok(());
        }
        let change = Change::Xattr { ino, key: key.to_vec(), value: value.map(<[u8]>::to_vec) };
        self.commit(vec![change], Behind::Nothing);
        self.touch_file(ino, now);
        Ok(())
    }

    /// The change time alone, whatever it is.
    fn touch_file(&mut self, ino: Ino, now: Time) {
        if self.live.inodes.get(&ino).is_some_and(|inode| inode.kind != Kind::Dir) {
            self.touch(ino, now);
        }
    }
}

impl SimDisk {
    /// What this name at the root shows now is believed, whatever others do to it, until somebody has the server asked anew.
    pub fn believe(&self, name: &[u8]) {
        let mut state = self.0.state.lock();
        let shown = state.find(ROOT, name).and_then(|ino| state.stat(ino)).expect("it is there");
        state.believed.insert((ROOT, name.to_vec()), shown);
    }
}

pub struct SimDir(Handle);

impl SimDir {
    pub(super) fn open(disk: &Arc<Shared>, state: &mut State, ino: Ino) -> Arc<dyn Dir> {
        Arc::new(SimDir(Handle::new(disk, state, ino)))
    }

    fn peer<'a>(&self, to: &'a dyn Dir) -> io::Result<&'a SimDir> {
        let peer: Option<&SimDir> = to.as_any().downcast_ref();
        peer.filter(|to| Arc::ptr_eq(&to.0.disk, &self.0.disk)).ok_or_else(|| Errno::EXDEV.into())
    }
}

impl fmt::Debug for SimDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Dir for SimDir {
    fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        self.0.look(|s| match s.believed.get(&(self.0.ino, name.to_vec())) {
            Some(believed) => Ok(*believed),
            None => s.stat(s.find(self.0.ino, name)?),
        })
    }

    fn stat_now(&self, name: &[u8]) -> io::Result<Stat> {
        self.0.disk.state.lock().believed.remove(&(self.0.ino, name.to_vec()));
        self.stat(name)
    }

    /// The kernel remembers every other name.
    fn stat_at_hand(&self, name: &[u8]) -> Option<io::Result<Stat>> {
        name.last().is_some_and(|last| last % 2 == 0).then(|| self.stat(name))
    }

    fn dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
        check_new(name)?;
        let ino = self.0.look(|s| {
            let ino = s.find(self.0.ino, name)?;
            if s.inode(ino)?.kind == Kind::Dir { s.may(ino, R).map(|()| ino) } else { Err(Errno::ENOTDIR.into()) }
        })?;
        Ok(SimDir::open(&self.0.disk, &mut self.0.disk.state.lock(), ino))
    }

    fn open(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>> {
        check_new(name)?;
        let ino = self.0.look(|s| {
            let ino = s.find(self.0.ino, name)?;
            let rights = if access == Access::ReadWrite { R | W } else { R };
            if s.inode(ino)?.kind == Kind::File { s.may(ino, rights).map(|()| ino) } else { Err(Errno::EINVAL.into()) }
        })?;
        let handle = Handle::new(&self.0.disk, &mut self.0.disk.state.lock(), ino);
        Ok(Arc::new(SimFile { handle, writable: access == Access::ReadWrite }))
    }

    fn open_at_hand(&self, name: &[u8]) -> Option<Arc<dyn File>> {
        self.stat_at_hand(name)?.and_then(|_| self.open(name, Access::Read)).ok()
    }

    fn create(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>> {
        let handle = self.0.change("create", name, 0, |s, now, _| {
            let meta = Meta { perm: perm & 0o7777, ..Meta::default() };
            let ino = s.make(self.0.ino, name, now, Inode::new(Kind::File, meta))?;
            Ok(Handle::new(&self.0.disk, s, ino))
        });
        Ok(Arc::new(SimFile { handle: handle?, writable: true }))
    }

    fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()> {
        self.0.change("mkdir", name, 0, |s, now, _| {
            let meta = Meta { perm: perm & 0o1777, ..Meta::default() };
            s.make(self.0.ino, name, now, Inode::new(Kind::Dir, meta)).map(drop)
        })
    }

    fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()> {
        if matches!(kind, Kind::Dir | Kind::Symlink) {
            return Err(Errno::EINVAL.into());
        }
        self.0.change("mknod", name, 0, |s, now, _| {
            let meta = Meta { perm: perm & 0o7777, ..Meta::default() };
            let rdev = if matches!(kind, Kind::CharDevice | Kind::BlockDevice) { rdev } else { 0 };
            s.make(self.0.ino, name, now, Inode { rdev, ..Inode::new(kind, meta) }).map(drop)
        })
    }

    fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        if target.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        self.0.change("symlink", name, 0, |s, now, _| {
            let meta = Meta { perm: 0o777, ..Meta::default() };
            let inode = Inode { target: target.to_vec(), ..Inode::new(Kind::Symlink, meta) };
            s.make(self.0.ino, name, now, inode).map(drop)
        })
    }

    fn inode(&self, name: &[u8]) -> io::Result<Arc<dyn disk::Inode>> {
        let ino = self.0.look(|s| s.find(self.0.ino, name))?;
        let handle = Handle::new(&self.0.disk, &mut self.0.disk.state.lock(), ino);
        Ok(Arc::new(SimInode { handle, dir: self.0.ino }))
    }

    fn rename(&self, name: &[u8], to: &dyn Dir, to_name: &[u8], mode: RenameMode) -> io::Result<()> {
        let to = self.peer(to)?.0.ino;
        self.0
            .change_to(("rename", name, to_name), 0, |s, now, _| s.rename((self.0.ino, name), (to, to_name), mode, now))
    }

    fn unlink(&self, name: &[u8]) -> io::Result<()> {
        check_new(name)?;
        self.0.change("unlink", name, 0, |s, now, _| {
            if s.inode(s.find(self.0.ino, name)?)?.kind == Kind::Dir {
                return Err(Errno::EISDIR.into());
            }
            s.remove(self.0.ino, name, now)
        })
    }

    fn rmdir(&self, name: &[u8]) -> io::Result<()> {
        check_new(name)?;
        self.0.change("rmdir", name, 0, |s, now, _| {
            let inode = s.inode(s.find(self.0.ino, name)?)?;
            if inode.kind != Kind::Dir {
                return Err(Errno::ENOTDIR.into());
            }
            if !inode.entries.is_empty() {
                return Err(Errno::ENOTEMPTY.into());
            }
            s.remove(self.0.ino, name, now)
        })
    }

    fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.0.look(|s| {
            let entry =
                |(name, &ino): (&Vec<u8>, &Ino)| Ok(DirEntry { name: name.clone(), ino, kind: s.inode(ino)?.kind });
            s.may(self.0.ino, R | X)?;
            s.inode(self.0.ino)?.entries.iter().map(entry).collect()
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.0.change("sync", b"", 0, |s, _, _| {
            s.sync_dir(self.0.ino, self.0.disk.order);
            Ok(())
        })
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.change("sync_all", b"", 0, |s, _, _| {
            s.sync_all(self.0.disk.order);
            Ok(())
        })
    }

    fn names_max(&self) -> u64 {
        self.0.disk.state.lock().names_max.unwrap_or(65_000)
    }

    fn space(&self) -> io::Result<Space> {
        self.0.look(|s| {
            let free = s.capacity.saturating_sub(s.used());
            let files = s.live.inodes.len() as u64;
            Ok(Space {
                total: s.capacity,
                free,
                avail: free,
                files: files + free / INODE_BYTES,
                files_free: free / INODE_BYTES,
                block: BLOCK as u32,
                name_max: NAME_MAX as u32,
            })
        })
    }

    fn order(&self) -> MetadataOrder {
        self.0.disk.order
    }

    fn heeds_modes(&self) -> bool {
        self.0.disk.state.lock().heeds_modes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An inode, and the directory that it was found in.
#[derive(Debug)]
struct SimInode {
    handle: Handle,
    dir: Ino,
}

impl SimInode {
    fn ino(&self) -> Ino {
        self.handle.ino
    }
}

impl disk::Inode for SimInode {
    fn stat(&self) -> io::Result<Stat> {
        self.handle.look(|s| s.stat(self.ino()))
    }

    fn set_attr(&self, new: &NewAttr) -> io::Result<()> {
        self.handle.change("set_attr", b"", 0, |s, now, _| s.set_attr(self.ino(), new, now))
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.handle.look(|s| s.get_xattr(self.ino(), key))
    }

    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.handle.change("set_xattr", b"", 0, |s, now, _| s.put_xattr(self.ino(), key, Some(value), now))
    }

    fn remove_xattr(&self, key: &[u8]) -> io::Result<()> {
        self.handle.change("remove_xattr", b"", 0, |s, now, _| s.put_xattr(self.ino(), key, None, now))
    }

    fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>> {
        self.handle.look(|s| Ok(s.inode(self.ino())?.xattrs.keys().cloned().collect()))
    }

    fn readlink(&self) -> io::Result<Vec<u8>> {
        self.handle.look(|s| {
            let inode = s.inode(self.ino())?;
            if inode.kind == Kind::Symlink { Ok(inode.target.clone()) } else { Err(Errno::EINVAL.into()) }
        })
    }

    fn link(&self, to: &dyn Dir, to_name: &[u8]) -> io::Result<()> {
        let to: Option<&SimDir> = to.as_any().downcast_ref();
        let to = to.filter(|to| Arc::ptr_eq(&to.0.disk, &self.handle.disk)).ok_or(Errno::EXDEV)?.0.ino;
        check_new(to_name)?;
        self.handle.change_to(("link", b"", to_name), 0, |s, now, _| {
            let ino = self.ino();
            s.may(to, X)?;
            let parent = s.inode(to)?;
            if parent.entries.contains_key(to_name) {
                return Err(Errno::EEXIST.into());
            }
            if to != ROOT && parent.names.is_empty() {
                return Err(Errno::ENOENT.into());
            }
            if s.inode(ino)?.kind == Kind::Dir {
                return Err(Errno::EPERM.into());
            }
            if s.inode(ino)?.names.is_empty() {
                return Err(Errno::ENOENT.into());
            }
            if s.names_max.is_some_and(|most| s.inode(ino).is_ok_and(|inode| inode.names.len() as u64 >= most)) {
                return Err(Errno::EMLINK.into());
            }
            s.may(to, W)?;
            if s.part_of(self.dir) != s.part_of(to) {
                return Err(Errno::EXDEV.into());
            }
            s.commit(vec![Change::Entry { dir: to, name: to_name.to_vec(), ino: Some(ino) }], Behind::Nothing);
            s.touch(ino, now);
            s.touch(to, now);
            Ok(())
        })
    }
}

#[derive(Debug)]
struct SimFile {
    handle: Handle,
    writable: bool,
}

impl SimFile {
    /// Changes the bytes, as [`Handle::change`].
    fn edit<T>(
        &self,
        call: &'static str,
        bytes: u64,
        edit: impl FnOnce(&mut State, Time, Effect) -> io::Result<T>,
    ) -> io::Result<T> {
        if !self.writable {
            return Err(Errno::EBADF.into());
        }
        self.handle.change(call, b"", bytes, edit)
    }

    fn ino(&self) -> Ino {
        self.handle.ino
    }
}

impl disk::Inode for SimFile {
    fn stat(&self) -> io::Result<Stat> {
        self.handle.look(|s| s.stat(self.ino()))
    }

    fn set_attr(&self, new: &NewAttr) -> io::Result<()> {
        self.handle.change("set_attr", b"", 0, |s, now, _| s.set_attr(self.ino(), new, now))
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.handle.look(|s| s.get_xattr(self.ino(), key))
    }

    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.handle.change("set_xattr", b"", 0, |s, now, _| s.put_xattr(self.ino(), key, Some(value), now))
    }

    fn remove_xattr(&self, key: &[u8]) -> io::Result<()> {
        self.handle.change("remove_xattr", b"", 0, |s, now, _| s.put_xattr(self.ino(), key, None, now))
    }

    fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>> {
        self.handle.look(|s| Ok(s.inode(self.ino())?.xattrs.keys().cloned().collect()))
    }
}

impl File for SimFile {
    fn reopen(&self) -> io::Result<Arc<dyn File>> {
        let mut state = self.handle.disk.state.lock();
        state.may(self.ino(), R | W)?;
        Ok(Arc::new(SimFile { handle: Handle::new(&self.handle.disk, &mut state, self.handle.ino), writable: true }))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let fail = self.handle.disk.reads.lock().clone();
        if let Some(fail) = fail {
            let path = self.handle.disk.state.lock().live.path(self.ino());
            if let Some(errno) = fail(&path) {
                return Err(errno.into());
            }
        }
        let got = self.handle.look(|s| Ok(s.inode(self.ino())?.bytes.read(buf, offset)))?;
        self.handle.disk.read.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }

    /// The page cache has every other page.
    fn read_at_hand(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        (offset / BLOCK).is_multiple_of(2).then(|| self.read_at(buf, offset).ok()).flatten()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.edit("write_at", buf.len() as u64, |s, now, effect| {
            if buf.is_empty() {
                return Ok(());
            }
            // A killed write stops between two pages; only one that crosses a page boundary can be cut.
            let pages = (offset + 1).next_multiple_of(BLOCK) - offset;
            let len = if effect == Effect::Part { pages.min(buf.len() as u64) } else { buf.len() as u64 };
            write(s, self.ino(), &buf[..len as usize], offset, now)
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.edit("set_len", 0, |s, now, _| {
            if len > SIZE_MAX {
                return Err(Errno::EFBIG.into());
            }
            s.edit(self.ino(), now, |bytes| bytes.set_len(len))
        })
    }

    fn allocate(&self, what: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.edit("allocate", len, |s, now, _| {
            if len == 0 {
                return Err(Errno::EINVAL.into());
            }
            if what != Allocate::PunchHole {
                s.room_for(s.inode(self.ino())?.bytes.missing(offset, len) * BLOCK)?;
            }
            s.edit(self.ino(), now, |bytes| match what {
                Allocate::Extend => bytes.allocate(offset, len, false),
                Allocate::KeepSize => bytes.allocate(offset, len, true),
                Allocate::PunchHole => bytes.punch(offset, len),
                Allocate::ZeroRange | Allocate::ZeroRangeKeepSize => {
                    bytes.punch(offset, len);
                    bytes.allocate(offset, len, what == Allocate::ZeroRangeKeepSize);
                }
            })
        })
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        self.handle.look(|s| s.inode(self.ino())?.bytes.seek(what == Seek::Data, offset).ok_or(Errno::ENXIO.into()))
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.change("sync", b"", 0, |s, _, _| {
            s.sync_file(self.ino(), self.handle.disk.order);
            Ok(())
        })
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn forget_cached(&self, _range: std::ops::Range<u64>) {}
}

/// Writes as much as there is room for; a full disk is an error after that.
fn write(s: &mut State, ino: Ino, buf: &[u8], offset: u64, now: Time) -> io::Result<()> {
    let bytes = &s.inode(ino)?.bytes;
    let free = s.capacity.saturating_sub(s.used()) / BLOCK;
    if bytes.missing(offset, buf.len() as u64) <= free {
        return s.edit(ino, now, |bytes| bytes.write(buf, offset));
    }
    let mut fits = 0;
    while fits < buf.len() as u64 {
        let next = ((offset + fits + 1).next_multiple_of(BLOCK) - offset).min(buf.len() as u64);
        if bytes.missing(offset, next) > free {
            break;
        }
        fits = next;
    }
    if fits > 0 {
        s.edit(ino, now, |bytes| bytes.write(&buf[..fits as usize], offset))?;
    }
    Err(Errno::ENOSPC.into())
}

/// What may stand where an entry is meant; `.` is dealt with before.
fn check(name: &[u8]) -> io::Result<()> {
    if name.is_empty() || name == b".." || name.iter().any(|b| matches!(b, b'/' | 0)) {
        return Err(Errno::EINVAL.into());
    }
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    Ok(())
}

fn check_new(name: &[u8]) -> io::Result<()> {
    if name == b"." { Err(Errno::EINVAL.into()) } else { check(name) }
}
