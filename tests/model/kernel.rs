//! What a kernel keeps of a mount for its users, and how it asks: open files, names that it has looked up, and files that it reads by itself.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dlio_fs::error::{Errno, Error, Result as EngineResult};
use dlio_fs::path::Name;
use dlio_fs::tiers::disk::{File, Kind, NewAttr};
use dlio_fs::tiers::{Attr, Cx, Ino, OpenFile, OpenMode, Pin, ROOT, SetAttr, Tiers};

use super::model::{SLOTS, xattr};
use super::ops::{Op, Path};

pub struct Kernel {
    engine: Arc<Tiers>,
    /// It reads by itself what is on the fast tier.
    passthrough: bool,
    files: [Option<OpenFile>; SLOTS],
    through: [Option<Through>; SLOTS],
    /// Opens of files that it read by itself.
    pub through_count: u64,
    /// References as its cache would keep them.
    pub cached: Vec<Ino>,
    /// What the next write writes.
    pub fill: u8,
    /// What the last read has read.
    pub was_read: Vec<u8>,
}

/// A file that it reads by itself.
struct Through {
    _pin: Pin,
    ino: Ino,
    backing: Arc<dyn File>,
}

impl Kernel {
    pub fn new(engine: Arc<Tiers>, passthrough: bool) -> Kernel {
        Kernel {
            engine,
            passthrough,
            files: Default::default(),
            through: Default::default(),
            through_count: 0,
            cached: Vec::new(),
            fill: 0,
            was_read: Vec::new(),
        }
    }

    /// The file in a slot that has one.
    pub fn ino_of(&self, slot: usize) -> Ino {
        self.files[slot].as_ref().expect("the model has one there").ino
    }

    pub fn reads_by_itself(&self, slot: usize) -> bool {
        self.through[slot].is_some()
    }

    pub fn reads_file_by_itself(&self, ino: Ino) -> bool {
        self.through.iter().flatten().any(|through| through.ino == ino)
    }

    /// The engine's answer to an operation: bytes read or copied, or an errno.
    pub fn call(&mut self, op: &Op) -> Result<u64, Errno> {
        match op {
            Op::Open { slot, path, write, truncate } => {
                let mode = OpenMode { write: *write, append: false, truncate: *truncate && *write };
                self.find(path)
                    .and_then(|attr| errno(self.at_hand_first(|engine, cx| engine.open(cx, attr.ino, mode))))
                    .and_then(|file| {
                        self.files[*slot] = Some(file);
                        self.lease(*slot, *write).map(|()| 0)
                    })
            }
            Op::Create { slot, path, mode, umask, uid } => self.parent(path).and_then(|(dir, name)| {
                let open = OpenMode { write: true, append: false, truncate: false };
                let (attr, file) = errno(self.engine.create(&as_user(*uid), dir, &name, *mode, *umask, open))?;
                self.cached.push(attr.ino);
                self.files[*slot] = Some(file);
                self.lease(*slot, true).map(|()| 0)
            }),
            Op::Read { slot, at, len } => {
                let mut bytes = vec![0xEE; *len];
                let n = self.read_bytes(*slot, &mut bytes, *at)?;
                bytes.truncate(n);
                self.was_read = bytes;
                Ok(n as u64)
            }
            Op::Release { slot } => {
                let file = self.files[*slot].take().expect("the model has one there");
                self.through[*slot] = None;
                self.engine.release(&root(), file);
                Ok(0)
            }
            _ => self.call_by_name(op),
        }
    }

    fn call_by_name(&mut self, op: &Op) -> Result<u64, Errno> {
        let cx = root();
        match op {
            Op::Mkdir { path, mode, umask, uid } => {
                let (dir, name) = self.parent(path)?;
                self.made(|engine| engine.mkdir(&as_user(*uid), dir, &name, *mode, *umask))
            }
            Op::Mknod { path, kind, mode, rdev } => {
                let (dir, name) = self.parent(path)?;
                self.made(|engine| engine.mknod(&cx, dir, &name, *kind, *mode, 0, *rdev))
            }
            Op::Symlink { path, target } => {
                let (dir, name) = self.parent(path)?;
                self.made(|engine| engine.symlink(&cx, dir, &name, &target.0))
            }
            Op::Link { from, to } => {
                let attr = self.find(from)?;
                let (dir, name) = self.parent(to)?;
                // The kernel looks first.
                if self.lookup(dir, &name).is_ok() {
                    return Err(Errno::EEXIST);
                }
                if attr.kind == Kind::Dir {
                    return Err(Errno::EPERM);
                }
                self.made(|engine| engine.link(&cx, attr.ino, dir, &name))
            }
            Op::Unlink { path } => {
                let (dir, name) = self.looked_up(path)?;
                errno(self.engine.unlink(&cx, dir, &name)).map(|()| 0)
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.looked_up(path)?;
                errno(self.engine.rmdir(&cx, dir, &name)).map(|()| 0)
            }
            Op::Rename { from, to, mode } => {
                let ((dir, name), (to, to_name)) = (self.parent(from)?, self.parent(to)?);
                self.lookup(dir, &name)?;
                // Whether or not something is there.
                self.lookup(to, &to_name).ok();
                errno(self.engine.rename(&cx, dir, &name, to, &to_name, *mode)).map(|()| 0)
            }
            Op::Truncate { path, len } => {
                let set = SetAttr { attr: NewAttr::default(), size: Some(*len) };
                let attr = self.find(path)?;
                errno(self.engine.setattr(&cx, attr.ino, &set)).map(|_| 0)
            }
            Op::SetAttr { path, new } => {
                let attr = self.find(path)?;
                errno(self.engine.setattr(&cx, attr.ino, &SetAttr { attr: *new, size: None })).map(|_| 0)
            }
            Op::SetXattr { path, key, value, create, replace } => {
                let ino = self.find(path)?.ino;
                let (key, value) = xattr(*key, *value);
                let done = match value {
                    Some(value) => self.engine.set_xattr(&cx, ino, &key, &value, *create, *replace),
                    None => self.engine.remove_xattr(&cx, ino, &key),
                };
                errno(done).map(|()| 0)
            }
            Op::Prioritize { path } => {
                let attr = self.find(path)?;
                errno(self.engine.prioritize(&cx, attr.ino)).map(|_| 0)
            }
            Op::FsyncDir { path } => {
                let attr = self.find(path)?;
                if attr.kind != Kind::Dir {
                    return Err(Errno::ENOTDIR);
                }
                errno(self.engine.fsync_dir(&cx, attr.ino)).map(|()| 0)
            }
            Op::SyncFast => errno(self.engine.sync_fast()).map(|()| 0),
            _ => self.call_on_file(op),
        }
    }

    fn call_on_file(&mut self, op: &Op) -> Result<u64, Errno> {
        let cx = root();
        let file = |slot: usize| self.files[slot].as_ref().expect("the model has one there");
        match op {
            Op::Write { slot, at, len, kill_privileges } => {
                let file = file(*slot);
                let at = match at {
                    Some(at) => *at,
                    None => errno(self.engine.getattr(&cx, file.ino))?.size,
                };
                errno(self.engine.write(&cx, file, &vec![self.fill; *len], at, *kill_privileges)).map(|()| 0)
            }
            Op::Allocate { slot, what, at, len } => {
                errno(self.engine.allocate(&cx, file(*slot), *what, *at, *len)).map(|()| 0)
            }
            Op::Copy { from, at, to, to_at, len } => {
                errno(self.engine.copy_range(&cx, file(*from), *at, file(*to), *to_at, *len))
            }
            Op::Flush { slot } => errno(self.engine.flush(&cx, file(*slot))).map(|()| 0),
            Op::Fsync { slot } => errno(self.engine.fsync(&cx, file(*slot))).map(|()| 0),
            _ => unreachable!("{op:?} is dealt with elsewhere"),
        }
    }

    /// An open file gets its way of reading: by the kernel itself, if that is quiet or others have it so already. EIO: the kernel would not
    /// open it.
    fn lease(&mut self, slot: usize, writes: bool) -> Result<(), Errno> {
        if !self.passthrough {
            return Ok(());
        }
        let file = self.files[slot].as_ref().expect("it was just opened");
        let ino = file.ino;
        let joined =
            self.through.iter().flatten().find(|through| through.ino == ino).map(|through| through.backing.clone());
        let others = self.files.iter().flatten().filter(|other| other.ino == ino).count() > 1;
        if joined.is_none() && (writes || others) {
            return Ok(());
        }
        let Some(pin) = self.engine.pin(ino, joined.is_none()) else {
            return if joined.is_none() { Ok(()) } else { Err(Errno::EIO) };
        };
        let backing = joined.or_else(|| self.engine.backing(file)).ok_or(Errno::EIO)?;
        self.through[slot] = Some(Through { _pin: pin, ino, backing });
        self.through_count += 1;
        Ok(())
    }

    fn read_bytes(&self, slot: usize, buf: &mut [u8], at: u64) -> Result<usize, Errno> {
        let file = self.files[slot].as_ref().expect("the model has one there");
        // Of a handle that may write, reads come to us as well.
        if let Some(through) = self.through[slot].as_ref().filter(|_| !file.mode.write) {
            return through.backing.read_at(buf, at).map_err(|e| Errno::from_raw(e.raw_os_error().expect("a number")));
        }
        errno(match self.engine.read(&Cx::fast_only(0, 0), file, buf, at) {
            Err(Error::NeedSlow) => self.engine.read(&root(), file, buf, at),
            read => read,
        })
    }

    // Names, as the kernel walks them: a look-up counts a reference, given back some time later.

    fn lookup(&mut self, dir: Ino, name: &Name) -> Result<Attr, Errno> {
        let attr = errno(self.at_hand_first(|engine, cx| engine.lookup(cx, dir, name)))?;
        self.cached.push(attr.ino);
        Ok(attr)
    }

    /// As the file system asks: with what is at hand, and again with the slow tier if that is not enough.
    fn at_hand_first<T>(&self, ask: impl Fn(&Tiers, &Cx) -> EngineResult<T>) -> EngineResult<T> {
        match ask(&self.engine, &Cx::fast_only(0, 0)) {
            Err(Error::NeedSlow) => ask(&self.engine, &root()),
            answer => answer,
        }
    }

    fn made(&mut self, make: impl FnOnce(&Tiers) -> EngineResult<Attr>) -> Result<u64, Errno> {
        let attr = errno(make(&self.engine))?;
        self.cached.push(attr.ino);
        Ok(0)
    }

    fn parent(&mut self, path: &Path) -> Result<(Ino, Name), Errno> {
        let mut names: Vec<Name> = path.0.split(|&b| b == b'/').map(|n| Name::new(n).expect("a good name")).collect();
        let last = names.pop().expect("a split has a last piece");
        let mut dir = ROOT;
        for name in names {
            let attr = self.lookup(dir, &name)?;
            if attr.kind != Kind::Dir {
                return Err(Errno::ENOTDIR);
            }
            dir = attr.ino;
        }
        Ok((dir, last))
    }

    /// What is removed or moved is looked up first, and so it is referred to.
    fn looked_up(&mut self, path: &Path) -> Result<(Ino, Name), Errno> {
        let (dir, name) = self.parent(path)?;
        self.lookup(dir, &name)?;
        Ok((dir, name))
    }

    pub fn find(&mut self, path: &Path) -> Result<Attr, Errno> {
        if path.0.is_empty() {
            return errno(self.at_hand_first(|engine, cx| engine.getattr(cx, ROOT)));
        }
        let (dir, name) = self.parent(path)?;
        self.lookup(dir, &name)
    }

    pub fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        errno(self.at_hand_first(|engine, cx| engine.getattr(cx, ino)))
    }
}

pub fn errno<T>(answer: EngineResult<T>) -> Result<T, Errno> {
    answer.map_err(|e| e.errno())
}

pub fn as_user(uid: u32) -> Cx {
    Cx::may_wait(uid, uid, Arc::new(AtomicBool::new(false)))
}

pub fn root() -> Cx {
    as_user(0)
}
