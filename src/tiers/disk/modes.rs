//! The objects of a mount without root: their owner can always read and write them, whatever mode their file has.
//!
//! `chmod 0444` restricts programs, but the daemon has to do more: it marks an object clean, names it, and goes on
//! writing through earlier descriptors. So the mode of an object on the disk has `rw` for its owner, and the file's own
//! mode is data: `user.dlio.mode` beside it. That attribute counts if it equals the mode on the disk apart from these
//! two bits. Otherwise a crash came between the two calls, or another program set the mode, and the mode on the disk is
//! right.
//!
//! A fast tier that may hold such objects is marked, so that a root mount that takes the tier over reads their modes as
//! well.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use delegate::delegate;
use nix::errno::Errno;

use crate::error::{Context, Result};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::{
    Access, Allocate, Dir, DirEntry, File, Inode, Kind, MetadataOrder, NewAttr, RenameMode, Seek, Space, Stat, acl,
};

const MODE: &[u8] = b"user.dlio.mode";
/// The mark's name in `.dlio-fs` on the fast tier.
const MARK: &[u8] = b"modes";
const OWNER: u32 = 0o600;

/// Wraps `ours`, `.dlio-fs` on the fast tier, so that its objects show the modes of their files. The first mount
/// without root marks it.
pub(crate) fn with_modes(ours: &Arc<dyn Dir>) -> Result<Arc<dyn Dir>> {
    let marked = absent_is_none(ours.stat(MARK)).at_fast("stat", "modes")?.is_some();
    if !marked && ours.heeds_modes() {
        ours.create(MARK, OWNER).and_then(|_| ours.sync()).at_fast("create", "modes")?;
    }
    Ok(if marked || ours.heeds_modes() { Arc::new(ModeDir(ours.clone())) } else { ours.clone() })
}

/// Wraps `ours` if it is marked, for a tier on which nothing may be changed.
pub(crate) fn with_marked_modes(ours: &Arc<dyn Dir>) -> Arc<dyn Dir> {
    match ours.stat(MARK) {
        Ok(_) => Arc::new(ModeDir(ours.clone())),
        Err(_) => ours.clone(),
    }
}

fn shown(stat: Stat, recorded: Option<Vec<u8>>) -> Stat {
    let recorded = recorded.and_then(|text| u32::from_str_radix(std::str::from_utf8(&text).ok()?, 8).ok());
    let perm = recorded.filter(|perm| perm | OWNER == stat.perm).unwrap_or(stat.perm);
    Stat { perm, ..stat }
}

fn record(file: &dyn File, perm: u32) -> io::Result<()> {
    if perm & OWNER == OWNER { file.remove_xattr(MODE) } else { file.set_xattr(MODE, format!("{perm:o}").as_bytes()) }
}

#[derive(Debug)]
struct ModeDir(Arc<dyn Dir>);

fn inner(dir: &dyn Dir) -> &dyn Dir {
    dir.as_any().downcast_ref().map_or(dir, |ModeDir(inner)| &**inner)
}

impl ModeDir {
    /// Opens an object that an earlier daemon left closed.
    fn open_closed(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>> {
        let perm = self.0.stat(name)?.perm;
        self.0.set_attr(name, &NewAttr { perm: Some(perm | OWNER), ..NewAttr::default() })?;
        let file = self.0.open(name, access)?;
        record(&*file, perm)?;
        Ok(file)
    }
}

impl Dir for ModeDir {
    fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        let stat = self.0.stat(name)?;
        if stat.kind == Kind::File { Ok(shown(stat, self.0.get_xattr(name, MODE)?)) } else { Ok(stat) }
    }

    fn stat_at_hand(&self, _name: &[u8]) -> Option<io::Result<Stat>> {
        None
    }

    fn dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
        Ok(Arc::new(ModeDir(self.0.dir(name)?)))
    }

    fn open(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>> {
        let opened = match self.0.open(name, access) {
            Err(e) if e.raw_os_error() == Some(Errno::EACCES as i32) => self.open_closed(name, access),
            opened => opened,
        };
        Ok(Arc::new(ModeFile(opened?)))
    }

    fn create(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>> {
        let file = self.0.create(name, perm | OWNER)?;
        if perm & OWNER != OWNER {
            record(&*file, perm)?;
        }
        Ok(Arc::new(ModeFile(file)))
    }

    fn inode(&self, name: &[u8]) -> io::Result<Arc<dyn Inode>> {
        Ok(Arc::new(ModeInode { dir: self.0.clone(), name: name.to_vec(), inner: self.0.inode(name)? }))
    }

    fn rename(&self, name: &[u8], to: &dyn Dir, to_name: &[u8], mode: RenameMode) -> io::Result<()> {
        self.0.rename(name, inner(to), to_name, mode)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    delegate! {
        to self.0 {
            fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()>;
            fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()>;
            fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()>;
            fn unlink(&self, name: &[u8]) -> io::Result<()>;
            fn rmdir(&self, name: &[u8]) -> io::Result<()>;
            fn list(&self) -> io::Result<Vec<DirEntry>>;
            fn sync(&self) -> io::Result<()>;
            fn sync_all(&self) -> io::Result<()>;
            fn space(&self) -> io::Result<Space>;
            fn names_max(&self) -> u64;
            fn is_overlay(&self) -> bool;
            fn order(&self) -> MetadataOrder;
            fn rotates(&self) -> bool;
            fn heeds_modes(&self) -> bool;
        }
    }
}

/// The mode of an object is set through its file: only the daemon changes what the names in its pool lead to.
#[derive(Debug)]
struct ModeInode {
    dir: Arc<dyn Dir>,
    name: Vec<u8>,
    inner: Arc<dyn Inode>,
}

impl Inode for ModeInode {
    fn stat(&self) -> io::Result<Stat> {
        let stat = self.inner.stat()?;
        if stat.kind == Kind::File { Ok(shown(stat, self.inner.get_xattr(MODE)?)) } else { Ok(stat) }
    }

    fn set_attr(&self, new: &NewAttr) -> io::Result<()> {
        match new.perm {
            Some(_) if self.inner.stat()?.kind == Kind::File => {
                ModeDir(self.dir.clone()).open(&self.name, Access::Read)?.set_attr(new)
            }
            _ => self.inner.set_attr(new),
        }
    }

    fn link(&self, to: &dyn Dir, to_name: &[u8]) -> io::Result<()> {
        self.inner.link(inner(to), to_name)
    }

    delegate! {
        to self.inner {
            fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
            fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()>;
            fn remove_xattr(&self, key: &[u8]) -> io::Result<()>;
            fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>>;
            fn readlink(&self) -> io::Result<Vec<u8>>;
        }
    }
}

#[derive(Debug)]
struct ModeFile(Arc<dyn File>);

impl Inode for ModeFile {
    fn stat(&self) -> io::Result<Stat> {
        Ok(shown(self.0.stat()?, self.0.get_xattr(MODE)?))
    }

    fn set_attr(&self, new: &NewAttr) -> io::Result<()> {
        if let Some(perm) = new.perm {
            record(&*self.0, perm)?;
            return self.0.set_attr(&NewAttr { perm: Some(perm | OWNER), ..*new });
        }
        if new.uid.is_none() && new.gid.is_none() {
            return self.0.set_attr(new);
        }
        // A chown clears suid on the disk.
        let lacks = OWNER & !self.stat()?.perm;
        self.0.set_attr(new)?;
        if lacks == 0 { Ok(()) } else { record(&*self.0, self.0.stat()?.perm & !lacks) }
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let value = self.0.get_xattr(key)?;
        match value {
            Some(list) if key == acl::ACCESS => {
                let perm = self.stat()?.perm;
                Ok(Some(acl::with_owner(&list, |_| ((perm >> 6) & 7) as u16).unwrap_or(list)))
            }
            value => Ok(value),
        }
    }

    /// An access list sets the mode too.
    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if key == acl::ACCESS
            && let Some((perm, _)) = acl::mode_of(value, self.stat()?.perm)
            && let Some(list) = acl::with_owner(value, |owner| owner | (OWNER >> 6) as u16)
        {
            record(&*self.0, perm)?;
            return self.0.set_xattr(key, &list);
        }
        self.0.set_xattr(key, value)
    }

    delegate! {
        to self.0 {
            fn remove_xattr(&self, key: &[u8]) -> io::Result<()>;
            fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>>;
        }
    }
}

impl File for ModeFile {
    fn reopen(&self) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(ModeFile(self.0.reopen()?)))
    }

    delegate! {
        to self.0 {
            fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
            fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
            fn read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
            fn read_at_hand(&self, buf: &mut [u8], offset: u64) -> Option<usize>;
            fn write_uncached(&self, buf: &[u8], offset: u64) -> io::Result<()>;
            fn reflink(&self, from: BorrowedFd<'_>) -> io::Result<()>;
            fn set_len(&self, len: u64) -> io::Result<()>;
            fn allocate(&self, what: Allocate, offset: u64, len: u64) -> io::Result<()>;
            fn seek(&self, what: Seek, offset: u64) -> io::Result<u64>;
            fn sync(&self) -> io::Result<()>;
            fn descriptor(&self) -> Option<BorrowedFd<'_>>;
            fn forget_cached(&self, range: Range<u64>);
            fn write_behind(&self, range: Range<u64>);
            fn place(&self) -> Option<u64>;
        }
    }
}
