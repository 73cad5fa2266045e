//! The slow tier as the engine reaches it: directories by inode, nodes by path, and our own `tmp`.
//!
//! Every call here may block for as long as the slow tier likes. Nobody calls it with the state lock held.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;

use crate::tiers::commit::tmp_name;
use crate::tiers::disk::{Access, Dir, File, Stat};
use crate::tiers::record::{ObjectId, Path};
use crate::tiers::sync::Mutex;
use crate::tiers::sync::atomic::{AtomicBool, Ordering};
use crate::tiers::{Ino, Tiers};

/// Descriptors kept for directories used lately.
const DIRS_KEPT: usize = 512;

#[derive(Debug)]
pub(crate) struct SlowTier {
    pub(crate) root: Arc<dyn Dir>,
    /// `<slow>/.dlio-fs/tmp/<uuid>`: copies not yet published, and objects that did not fit on fast.
    pub(crate) tmp: Arc<dyn Dir>,
    dirs: Mutex<HashMap<Ino, Arc<dyn Dir>>>,
    /// Objects that are being published: renamed from `tmp` into place, while their files still refer to them.
    placing: Mutex<HashMap<ObjectId, Arc<dyn File>>>,
    /// Renames that are being published, from where to where, while the view still has everything at the first.
    moving: Mutex<Vec<(Path, Path)>>,
    /// Set while the movers find it not answering: what is cached is then trusted however old.
    down: AtomicBool,
}

impl SlowTier {
    pub(crate) fn new(root: Arc<dyn Dir>, tmp: Arc<dyn Dir>) -> Self {
        let (dirs, placing, moving) = (Mutex::default(), Mutex::default(), Mutex::default());
        SlowTier { root, tmp, dirs, placing, moving, down: AtomicBool::new(false) }
    }

    /// An object that lies here. Its name in `tmp` is looked up first: once publishing has taken that, or has exchanged it for
    /// the version before, the object is among those that are being placed.
    pub(crate) fn object(&self, object: ObjectId) -> io::Result<Arc<dyn File>> {
        let in_tmp = self.tmp.open(&tmp_name(object), Access::ReadWrite);
        self.placing.lock().get(&object).cloned().map_or(in_tmp, Ok)
    }

    pub(crate) fn stat_object(&self, object: ObjectId) -> io::Result<Stat> {
        let in_tmp = self.tmp.stat(&tmp_name(object));
        let placing = self.placing.lock().get(&object).cloned();
        placing.map_or(in_tmp, |file| file.stat())
    }

    /// Called before an object is renamed into place; again if that was interrupted.
    pub(crate) fn place(&self, object: ObjectId) -> io::Result<()> {
        if let Some(file) = absent_is_none(self.object(object))? {
            self.placing.lock().insert(object, file);
        }
        Ok(())
    }

    /// Its file refers to the published one by now.
    pub(crate) fn placed(&self, object: ObjectId) {
        self.placing.lock().remove(&object);
    }

    /// Called before the first of these renames, and without any once the view has followed.
    pub(crate) fn set_moving(&self, moving: Vec<(Path, Path)>) {
        *self.moving.lock() = moving;
    }

    /// Whether names are being moved on the slow tier which the view has where they were.
    pub(crate) fn is_moving(&self) -> bool {
        !self.moving.lock().is_empty()
    }

    /// Where a rename that is being published takes what was at `path`.
    fn moved_to(&self, path: &[u8]) -> Option<Path> {
        let moving = self.moving.lock();
        let carried = |(from, to): &(Path, Path)| {
            let below = path.strip_prefix(&from[..]).filter(|below| matches!(below.first(), None | Some(b'/')))?;
            Some([&to[..], below].concat())
        };
        moving.iter().find_map(carried)
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// The directory at `path`, component by component beneath the root, no symbolic link followed.
    pub(crate) fn walk(&self, path: &[u8]) -> io::Result<Arc<dyn Dir>> {
        let mut dir = self.root.clone();
        for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            dir = dir.dir(name)?;
        }
        Ok(dir)
    }

    /// The directory above `path`, and the last name in it.
    pub(crate) fn parent<'a>(&self, path: &'a [u8]) -> io::Result<(Arc<dyn Dir>, &'a [u8])> {
        let (dir, name) = split(path);
        Ok((self.walk(dir)?, name))
    }

    /// The directory that inode `ino` is on the slow tier, at `path` unless its descriptor is still open. `id` is checked:
    /// between reading the path and walking it a published rename may have moved something else there.
    pub(crate) fn dir(&self, ino: Ino, path: &[u8], id: (u64, u64)) -> io::Result<Arc<dyn Dir>> {
        if let Some(dir) = self.dirs.lock().get(&ino) {
            return Ok(dir.clone());
        }
        let dir = self.walk(path)?;
        let stat = dir.stat(b".")?;
        if (stat.dev, stat.ino) != id {
            return Err(io::Error::from_raw_os_error(Errno::ESTALE as i32));
        }
        let mut dirs = self.dirs.lock();
        if dirs.len() >= DIRS_KEPT {
            dirs.clear();
        }
        dirs.insert(ino, dir.clone());
        Ok(dir)
    }

    pub(crate) fn forget_dir(&self, ino: Ino) {
        self.dirs.lock().remove(&ino);
    }

    /// What is at `path`; `None` if nothing is, or no directory above it.
    pub(crate) fn stat(&self, path: &[u8]) -> io::Result<Option<Stat>> {
        let found = match self.parent(path) {
            Ok((dir, b"")) => dir.stat(b"."),
            Ok((dir, name)) => dir.stat(name),
            Err(e) => Err(e),
        };
        absent_is_none(found)
    }
}

impl Tiers {
    /// Does something to what inode `ino` is on the slow tier, by its path there. While a rename of it, or of a directory above it,
    /// is published, that is the one path or the other; and the view may have followed since the path was taken from it.
    pub(crate) fn at_slow<T>(&self, ino: Ino, act: impl Fn(&[u8]) -> io::Result<T>) -> io::Result<T> {
        let mut tried = None;
        loop {
            let path = self.state.lock().view.slow_path(ino);
            let path = path.ok_or_else(|| io::Error::from_raw_os_error(Errno::ESTALE as i32))?;
            let elsewhere =
                |e: &io::Error| matches!(e.raw_os_error().map(Errno::from_raw), Some(Errno::ENOENT | Errno::ESTALE));
            match act(&path) {
                Err(e) if elsewhere(&e) && tried.as_ref() != Some(&path) => {
                    if let Some(found) = self.slow.moved_to(&path).and_then(|path| act(&path).ok()) {
                        return Ok(found);
                    }
                    tried = Some(path);
                }
                other => return other,
            }
        }
    }
}

/// A path's directory and last name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

pub(crate) fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.raw_os_error(), Some(libc) if libc == Errno::ENOENT as i32 || libc == Errno::ENOTDIR as i32) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}
