//! The slow tier as the engine reaches it: directories by inode, nodes by path, and our own `tmp`.
//!
//! Every call here, except [`SlowTier::stat_at_hand`] and [`SlowTier::open_at_hand`], may block for as long as the slow
//! tier likes. Never call it with the state lock held.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;

use crate::tiers::disk::errors::{absent_is_none, is_elsewhere};
use crate::tiers::disk::layout::{OURS, split};
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::sync::atomic::{AtomicBool, Ordering};
use crate::tiers::disk::{Access, Dir, DirEntry, File, FileId, Inode, RenameMode, SlowId, Stat};
use crate::tiers::log::record::{ObjectId, Path};
use crate::tiers::objects::abilities::Abilities;
use crate::tiers::objects::parts::{Parts, in_part, lane_of};
use crate::tiers::objects::pool::tmp_name;
use crate::tiers::{Ino, Tiers};

#[derive(Debug)]
pub(crate) struct SlowTier {
    pub(crate) root: Arc<dyn Dir>,
    /// `<slow>/.dlio-fs/tmp/<uuid>`: copies not yet published, and objects that did not fit on fast.
    pub(crate) tmp: Arc<dyn Dir>,
    /// The `tmp` directories of the parts of the tree.
    pub(crate) parts: Parts,
    tmp_path: Path,
    /// Recently used, at most `dirs_kept`.
    dirs: Mutex<HashMap<Ino, Arc<dyn Dir>>>,
    dirs_kept: usize,
    /// Objects that are being published: renamed from `tmp` into place, while their files still refer to them.
    placing: Mutex<HashMap<ObjectId, Arc<dyn File>>>,
    /// The moves being published, in order, while the view still has everything at the old places.
    moving: Mutex<Vec<Moving>>,
    left_open: LeftOpen,
    /// Set while the movers find the slow tier not answering: cached answers are then trusted however old.
    down: AtomicBool,
    /// Other members of a fleet publish here, too.
    pub(crate) in_fleet: bool,
    pub(crate) abilities: Abilities,
    /// The longest target of a symbolic link, and the largest file, that the tier is known to take.
    pub(crate) target_known: AtomicU64,
    pub(crate) size_known: AtomicU64,
}

/// What a publishing step does to a path where the view still has the old state.
#[derive(Debug)]
pub(crate) enum Moving {
    /// Moved from the first path to the second.
    To(Path, Path),
    /// The two have exchanged paths.
    Exchanged(Path, Path),
    /// Removed, or replaced by another node.
    Gone(Path),
}

impl Moving {
    /// Where the step takes the node at `path`; `None` if it leaves it alone.
    fn carry(&self, path: &[u8]) -> Option<Option<Path>> {
        let below = |dir: &[u8]| path.strip_prefix(dir).filter(|below| matches!(below.first(), None | Some(b'/')));
        let instead = |from: &[u8], to: &[u8]| Some(Some([to, below(from)?].concat()));
        match self {
            Moving::To(from, to) => instead(from, to),
            Moving::Exchanged(a, b) => instead(a, b).or_else(|| instead(b, a)),
            Moving::Gone(from) => below(from).map(|_| None),
        }
    }
}

/// How many removed files are remembered.
const REMOVED_KEPT: usize = 4096;

/// When an open file loses its last name, an NFS client keeps it in the same directory until it is closed, as `.nfs`
/// followed by its number in sixteen digits and a counter in eight; libfuse, on which sshfs and most others are built,
/// as `.fuse_hidden` followed by sixteen digits that do not depend on the file. Those of files that our steps have
/// removed must stay hidden.
#[derive(Debug, Default)]
struct LeftOpen {
    removed: Mutex<VecDeque<u64>>,
    /// Directories in `tmp` that hold such files.
    gone: Mutex<Vec<Path>>,
}

impl LeftOpen {
    fn note(&self, ino: u64) {
        let mut removed = self.removed.lock();
        removed.truncate(REMOVED_KEPT - 1);
        removed.push_front(ino);
    }

    fn has(&self, dir: &dyn Dir, name: &[u8]) -> bool {
        let digits = |prefix: &[u8], count| name.strip_prefix(prefix).filter(|digits| digits.len() == count);
        let is_removed = |ino| self.removed.lock().contains(&ino);
        if let Some(digits) = digits(b".nfs", 24) {
            let number = digits.first_chunk::<16>().and_then(|number| std::str::from_utf8(number).ok());
            return number.and_then(|number| u64::from_str_radix(number, 16).ok()).is_some_and(is_removed);
        }
        // A file that has just been closed is gone.
        digits(b".fuse_hidden", 16).is_some()
            && absent_is_none(dir.stat(name)).is_ok_and(|stat| stat.is_none_or(|stat| is_removed(stat.ino)))
    }
}

impl SlowTier {
    pub(crate) fn new(
        root: Arc<dyn Dir>,
        tmp: Arc<dyn Dir>,
        tmp_path: Path,
        parts: Parts,
        abilities: Abilities,
        (dirs_kept, in_fleet): (usize, bool),
    ) -> Self {
        SlowTier {
            dirs_kept,
            root,
            tmp,
            parts,
            tmp_path,
            dirs: Mutex::default(),
            placing: Mutex::default(),
            moving: Mutex::default(),
            left_open: LeftOpen::default(),
            down: AtomicBool::new(false),
            in_fleet,
            abilities,
            target_known: AtomicU64::new(abilities.target_known),
            size_known: AtomicU64::new(abilities.size_known),
        }
    }

    /// The path of a name in `tmp`.
    pub(crate) fn path_in_tmp(&self, tmp: &[u8]) -> Path {
        let (part, name) = split(tmp);
        let lane = lane_of(name).map_or_else(Vec::new, |lane| [b"/", lane].concat());
        in_part(part, &[&self.tmp_path, &lane, &b"/"[..], name].concat())
    }

    /// Opens an object on the slow tier. Its name in `tmp` is looked up first: once publishing has moved the object, or
    /// exchanged it for the former version, the object is among those that are being placed.
    pub(crate) fn object(&self, object: ObjectId) -> io::Result<Arc<dyn File>> {
        let in_tmp = self.tmp.open(&tmp_name(object), Access::ReadWrite);
        self.placing.lock().get(&object).cloned().map_or(in_tmp, Ok)
    }

    pub(crate) fn stat_object(&self, object: ObjectId) -> io::Result<Stat> {
        let in_tmp = self.tmp.stat(&tmp_name(object));
        let placing = self.placing.lock().get(&object).cloned();
        placing.map_or(in_tmp, |file| file.stat())
    }

    /// Called before an object is renamed into place; called again if that was interrupted.
    pub(crate) fn place(&self, object: ObjectId) -> io::Result<()> {
        if let Some(file) = absent_is_none(self.object(object))? {
            self.placing.lock().insert(object, file);
        }
        Ok(())
    }

    /// Like [`SlowTier::place`], for an object that has been renamed to `path` already.
    pub(crate) fn place_at(&self, object: ObjectId, path: &[u8]) -> io::Result<()> {
        let opened = self.parent(path).and_then(|(dir, name)| dir.open(name, Access::ReadWrite));
        if let Some(file) = absent_is_none(opened)? {
            self.placing.lock().insert(object, file);
        }
        Ok(())
    }

    /// Called once the object's file refers to the published file.
    pub(crate) fn placed(&self, object: ObjectId) {
        self.placing.lock().remove(&object);
    }

    /// Called with the moves before the first of their steps, and with none once the view has followed.
    pub(crate) fn set_moving(&self, moving: Vec<Moving>) {
        *self.moving.lock() = moving;
    }

    /// Whether names are being moved on the slow tier that the view still has at their old places.
    pub(crate) fn is_moving(&self) -> bool {
        !self.moving.lock().is_empty()
    }

    /// Where publishing takes the node that the view has at `path`, in the order in which it gets there.
    fn moved_to(&self, path: &[u8]) -> Vec<Path> {
        let mut places = vec![path.to_vec()];
        for step in self.moving.lock().iter() {
            let next: Vec<Path> = places.iter().filter_map(|path| step.carry(path)?).collect();
            next.into_iter().for_each(|path| {
                if !places.contains(&path) {
                    places.push(path);
                }
            });
        }
        places.split_off(1)
    }

    /// Whether `stat`, found at `path`, is the expected node; ESTALE if publishing has put another node in its place. A
    /// foreign replacement passes: the caller detects it.
    pub(crate) fn expect(&self, path: &[u8], stat: &Stat, id: SlowId) -> io::Result<()> {
        let is_left = || self.moving.lock().iter().any(|step| step.carry(path).is_some());
        if stat.id() != id && is_left() {
            return Err(io::Error::from_raw_os_error(Errno::ESTALE as i32));
        }
        Ok(())
    }

    /// Acts on node `id` at `path` through a descriptor, so that a concurrent rename does not matter. ESTALE if another
    /// node is there.
    pub(crate) fn act<T>(
        &self,
        path: &[u8],
        id: SlowId,
        act: impl FnOnce(&dyn Inode) -> io::Result<T>,
    ) -> io::Result<T> {
        let (dir, name) = self.parent(path)?;
        let inode = dir.inode(or_self(name))?;
        let stat = inode.stat()?;
        if stat.id() != id {
            return Err(io::Error::from_raw_os_error(Errno::ESTALE as i32));
        }
        act(&*inode)
    }

    /// Holds the node of this name if it is this one: for publishing steps, which do not know its device.
    pub(crate) fn hold_now(dir: &dyn Dir, name: &[u8], id: FileId) -> io::Result<Option<(Arc<dyn Inode>, Stat)>> {
        // The cached answer of a network client would be too old here.
        let is_it = absent_is_none(dir.stat_now(or_self(name)))?.is_some_and(|stat| stat.file() == id);
        let held = if is_it { absent_is_none(dir.inode(or_self(name)))? } else { None };
        let Some(inode) = held else { return Ok(None) };
        let stat = inode.stat()?;
        Ok((stat.file() == id).then_some((inode, stat)))
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// The directory at `path`, component by component beneath the root, following no symbolic link.
    pub(crate) fn walk(&self, path: &[u8]) -> io::Result<Arc<dyn Dir>> {
        if path.is_empty() { Ok(self.root.clone()) } else { self.root.walk(path) }
    }

    /// EXDEV for a directory that cannot be renamed: one of a lower layer of an overlayfs. It checks that before the
    /// target, which is our own directory here: it has `tmp` in it, so no rename can replace it.
    pub(crate) fn expect_moves(&self, dir: &[u8]) -> io::Result<()> {
        let (above, name) = self.parent(dir)?;
        match above.rename(name, &*self.root, OURS, RenameMode::Replace) {
            Err(e) if [Errno::ENOTEMPTY, Errno::EEXIST].iter().any(|no| e.raw_os_error() == Some(*no as i32)) => Ok(()),
            moved => moved,
        }
    }

    /// The directory above `path`, and the last name in it.
    pub(crate) fn parent<'a>(&self, path: &'a [u8]) -> io::Result<(Arc<dyn Dir>, &'a [u8])> {
        let (dir, name) = split(path);
        Ok((self.walk(dir)?, name))
    }

    /// The slow tier's directory for inode `ino`, at `path` unless its descriptor is still open. `id` is checked:
    /// between reading the path and walking it, a published rename may have moved another node there.
    pub(crate) fn dir(&self, ino: Ino, path: &[u8], id: SlowId) -> io::Result<Arc<dyn Dir>> {
        if let Some(dir) = self.dirs.lock().get(&ino) {
            return Ok(dir.clone());
        }
        let dir = self.walk(path)?;
        let stat = dir.stat(b".")?;
        if stat.id() != id {
            return Err(io::Error::from_raw_os_error(Errno::ESTALE as i32));
        }
        let mut dirs = self.dirs.lock();
        if dirs.len() >= self.dirs_kept {
            dirs.clear();
        }
        dirs.insert(ino, dir.clone());
        Ok(dir)
    }

    /// Stat of a name in directory `dir`, if that does not block: the directory's descriptor is still open, and the
    /// kernel has the name cached.
    pub(crate) fn stat_at_hand(&self, dir: Ino, name: &[u8]) -> Option<Option<Stat>> {
        let dir = self.dirs.lock().get(&dir).cloned()?;
        absent_is_none(dir.stat_at_hand(name)?).ok()
    }

    /// Opens a name in directory `dir` for reading, if that does not block.
    pub(crate) fn open_at_hand(&self, dir: Ino, name: &[u8]) -> Option<(Arc<dyn File>, Stat)> {
        let dir = self.dirs.lock().get(&dir).cloned()?;
        let file = dir.open_at_hand(name)?;
        let stat = file.stat().ok()?;
        Some((file, stat))
    }

    pub(crate) fn forget_dir(&self, ino: Ino) {
        self.dirs.lock().remove(&ino);
    }

    /// Stat of the node at `path`, for [`Tiers::at_slow`].
    pub(crate) fn stat_of(&self, path: &[u8], id: SlowId) -> io::Result<Stat> {
        let stat = self.stat(path)?.ok_or(Errno::ENOENT)?;
        self.expect(path, &stat, id).map(|()| stat)
    }

    /// Called before a step removes the last name of a file that may be open through the mount.
    pub(crate) fn note_removed(&self, ino: u64) {
        self.left_open.note(ino);
    }

    /// Every entry, except files that a network client keeps because we have them open after their removal.
    pub(crate) fn list(&self, dir: &dyn Dir) -> io::Result<Vec<DirEntry>> {
        let mut entries = dir.list()?;
        entries.retain(|entry| !self.left_open.has(dir, &entry.name));
        Ok(entries)
    }

    /// Moves a directory that is to be removed to `tmp`, if it contains only files that [`SlowTier::list`] leaves out:
    /// the client refuses a rename or unlink of these files, but allows a rename of a directory above them. `false`: it
    /// cannot be moved, or it contains something else.
    pub(crate) fn move_left_open(&self, above: &dyn Dir, name: &[u8]) -> io::Result<bool> {
        let dir = above.dir(name)?;
        let holds_others = || dir.list().map(|all| !all.iter().all(|entry| self.left_open.has(&*dir, &entry.name)));
        if holds_others()? {
            return Ok(false);
        }
        let gone = format!("g{:016x}", dir.stat(b".")?.ino).into_bytes();
        if above.rename(name, &*self.tmp, &gone, RenameMode::Replace).is_err() {
            return Ok(false);
        }
        if holds_others()? {
            // A name was made there just now.
            self.tmp.rename(&gone, above, name, RenameMode::Replace)?;
            return Ok(false);
        }
        self.left_open.gone.lock().push(gone);
        Ok(true)
    }

    /// Removes from `tmp` the directories whose files have all been closed by now.
    pub(crate) fn remove_gone(&self) {
        let mut gone = std::mem::take(&mut *self.left_open.gone.lock());
        gone.retain(|name| absent_is_none(self.tmp.rmdir(name)).is_err());
        self.left_open.gone.lock().append(&mut gone);
    }

    /// Opens the node at `path`, for [`Tiers::at_slow`].
    pub(crate) fn open_of(&self, path: &[u8], id: SlowId, access: Access) -> io::Result<(Arc<dyn File>, Stat)> {
        let (dir, name) = self.parent(path)?;
        match dir.open(name, access) {
            Ok(file) => {
                let stat = file.stat()?;
                self.expect(path, &stat, id).map(|()| (file, stat))
            }
            Err(e) => self.expect(path, &dir.stat(name)?, id).and(Err(e)),
        }
    }

    /// Links the node at `path` into `tmp`, if it is this one.
    pub(crate) fn link_into(&self, path: &[u8], id: FileId, tmp: &[u8]) -> io::Result<()> {
        let (into, tmp) = self.tmp_of(tmp)?;
        let (dir, name) = self.parent(path)?;
        let (inode, _) = SlowTier::hold_now(&*dir, name, id)?.ok_or(Errno::ENOENT)?;
        inode.link(&*into, tmp)
    }

    /// Stat of the node at `path`; `None` if it, or a directory above it, is missing.
    pub(crate) fn stat(&self, path: &[u8]) -> io::Result<Option<Stat>> {
        absent_is_none(self.parent(path).and_then(|(dir, name)| dir.stat(or_self(name))))
    }
}

impl Tiers {
    /// Acts on inode `ino` on the slow tier, by its path there. While a step is published that touches its names, or
    /// those of a directory above it, the node is either where the view has it or where publishing takes it. The view
    /// may have followed since the path was read from it: then the answer may be about another node, and the call is
    /// repeated.
    pub(crate) fn at_slow<T>(&self, ino: Ino, act: impl Fn(&[u8], SlowId) -> io::Result<T>) -> io::Result<T> {
        let known = || {
            let st = self.state.lock();
            (st.view.slow_paths(ino), st.view.get(ino).and_then(|node| node.slow_id()))
        };
        let mut tried = None;
        loop {
            let before = known();
            let (paths, Some(id)) = &before else { return Err(io::Error::from_raw_os_error(Errno::ESTALE as i32)) };
            let found = self.at_any(paths, |path| act(path, *id));
            let is_elsewhere = found.as_ref().is_err_and(is_elsewhere);
            if is_elsewhere && tried.is_none() {
                // If a directory was removed and made again from outside, the cached descriptor leads nowhere.
                self.slow.forget_dir(ino);
            }
            if if is_elsewhere { tried.as_ref() == Some(&before) } else { known() == before } {
                return found;
            }
            tried = Some(before);
        }
    }

    /// The first answer that does not say that the node is elsewhere; else the answer for the last path.
    fn at_any<T>(&self, paths: &[Path], act: impl Fn(&[u8]) -> io::Result<T>) -> io::Result<T> {
        let mut found = Err(io::Error::from_raw_os_error(Errno::ESTALE as i32));
        for path in paths {
            found = act(path);
            if !found.as_ref().is_err_and(is_elsewhere) {
                break;
            }
            let moved = self.slow.moved_to(path).into_iter().map(|path| act(&path));
            if let Some(there) = moved.into_iter().find(|found| !found.as_ref().is_err_and(is_elsewhere)) {
                return there;
            }
        }
        found
    }
}

/// Maps the root's empty last component to `.`.
pub(crate) fn or_self(name: &[u8]) -> &[u8] {
    if name.is_empty() { b"." } else { name }
}
