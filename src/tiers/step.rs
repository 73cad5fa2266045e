//! One step on the slow tree, applied or found applied already, by the inode numbers it names (P11); and what has to be synced behind
//! it. Which steps there are, and when, is `plan.rs`'s and `publish.rs`'s.

use std::collections::BTreeSet;

use crate::error::{Context, Errno, Result};
use crate::tiers::Tiers;
use crate::tiers::disk::{Access, Dir, Kind, NewAttr, RenameMode};
use crate::tiers::plan::Planned;
use crate::tiers::pool::Proof;
use crate::tiers::record::{Path, Step};
use crate::tiers::slow::{SlowTier, absent_is_none, split};

/// What a step met on the slow tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Met {
    Expected,
    /// A directory of that name was there: ours is that one now, by this device and inode number.
    Merged((u64, u64)),
    /// Somebody else changed the name: theirs stays, ours is under this name in the same directory.
    Conflict(Vec<u8>),
    /// What was to be changed is not there any more, or is somebody else's.
    Gone,
}

/// What steps changed on the slow tier, each once: directories by their entries, nodes by their attributes.
#[derive(Default)]
pub(crate) struct Touched {
    dirs: BTreeSet<Path>,
    nodes: BTreeSet<Path>,
}

impl Touched {
    pub(crate) fn of(planned: &[Planned]) -> Self {
        let mut touched = Touched::default();
        planned.iter().for_each(|planned| touched.add(&planned.step));
        touched
    }

    pub(crate) fn add(&mut self, step: &Step) {
        let mut add = |path: &[u8]| {
            self.dirs.insert(split(path).0.to_vec());
        };
        match step {
            Step::Move { path, to, .. } | Step::Swap { a: path, b: to, .. } => {
                // Where it arrives is synced first: found twice is better than not at all.
                add(to);
                add(path);
            }
            Step::Link { to, .. } => add(to),
            Step::Place { path, .. } | Step::Remove { path, .. } => add(path),
            Step::Attr { path, .. } | Step::Xattr { path, .. } => {
                self.nodes.insert(path.clone());
            }
        }
    }

    pub(crate) fn sync(&mut self, tiers: &Tiers) -> Result<()> {
        for path in std::mem::take(&mut self.dirs) {
            // A directory removed by a later step of the group has nothing left to sync.
            let dir = absent_is_none(tiers.slow.walk(&path)).at("open on slow", String::from_utf8_lossy(&path))?;
            if let Some(dir) = dir {
                dir.sync().at("fsync on slow", String::from_utf8_lossy(&path))?;
            }
        }
        // The fsync of a directory says nothing about the attributes of what is in it: xfs keeps them for later. Last, because
        // on ext4 they are durable by now.
        for path in std::mem::take(&mut self.nodes) {
            tiers.slow.sync_node(&path).at("fsync on slow", String::from_utf8_lossy(&path))?;
        }
        Ok(())
    }
}

pub(crate) fn step_path(step: &Step) -> &[u8] {
    match step {
        Step::Place { path, .. }
        | Step::Move { path, .. }
        | Step::Swap { a: path, .. }
        | Step::Link { path, .. }
        | Step::Remove { path, .. }
        | Step::Attr { path, .. }
        | Step::Xattr { path, .. } => path,
    }
}

impl SlowTier {
    /// Applies one step, or finds that it is applied already: by the inode numbers it names, never by guessing.
    pub(crate) fn apply(&self, step: &Step, twin: Option<Proof>) -> std::io::Result<Met> {
        match step {
            Step::Place { tmp, ino, path, over, .. } => self.apply_place(tmp, *ino, path, *over, twin),
            Step::Move { path, ino, to, over } => self.apply_move(path, *ino, to, *over),
            Step::Swap { a, a_ino, b, b_ino } => {
                let (Some(at_a), Some(at_b)) = (self.stat(a)?, self.stat(b)?) else { return Ok(Met::Gone) };
                if (at_a.ino, at_b.ino) == (*b_ino, *a_ino) {
                    return Ok(Met::Expected);
                }
                if (at_a.ino, at_b.ino) != (*a_ino, *b_ino) {
                    return Ok(Met::Gone);
                }
                let ((from, name), (to, to_name)) = (self.parent(a)?, self.parent(b)?);
                from.rename(name, &*to, to_name, RenameMode::Exchange).map(|()| Met::Expected)
            }
            Step::Link { path, ino, to } => self.apply_link(path, *ino, to),
            Step::Remove { path, ino, dir } => self.apply_remove(path, *ino, *dir),
            Step::Attr { path, ino, new } => self.apply_attr(path, *ino, |dir, name, kind| {
                let perm = new.perm.filter(|_| kind != Kind::Symlink);
                dir.set_attr(name, &NewAttr { perm, ..*new })
            }),
            Step::Xattr { path, ino, key, value } => self.apply_attr(path, *ino, |dir, name, _| match value {
                Some(value) => dir.set_xattr(name, key, value),
                None => dir.remove_xattr(name, key),
            }),
        }
    }

    /// A copy that is still in `tmp` under its own inode number has not been placed.
    fn apply_place(
        &self,
        tmp: &[u8],
        ino: u64,
        path: &[u8],
        over: Option<u64>,
        twin: Option<Proof>,
    ) -> std::io::Result<Met> {
        let waiting = absent_is_none(self.tmp.stat(tmp))?.is_some_and(|stat| stat.ino == ino || left_out!(PlaceOnce));
        if !waiting {
            return Ok(Met::Expected);
        }
        let (dir, name) = self.parent(path)?;
        let Some(over) = over else { return self.place_new(tmp, &*dir, name) };
        match self.tmp.rename(tmp, &*dir, name, RenameMode::Exchange) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return self.place_new(tmp, &*dir, name),
            Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => {
                return self.place_over(tmp, &*dir, name, over);
            }
            Err(e) => return Err(e),
        }
        let out = self.tmp.stat(tmp)?;
        let changed = twin.is_some_and(|twin| !twin.is_same_version(&out));
        if out.ino == over && !changed {
            return Ok(Met::Expected);
        }
        // Not what we knew: it goes back, and ours beside it.
        self.tmp.rename(tmp, &*dir, name, RenameMode::Exchange)?;
        self.place_beside(tmp, &*dir, name)
    }

    fn place_new(&self, tmp: &[u8], dir: &dyn Dir, name: &[u8]) -> std::io::Result<Met> {
        match self.tmp.rename(tmp, dir, name, RenameMode::NoReplace) {
            Ok(()) => Ok(Met::Expected),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => self.meet_existing(tmp, dir, name),
            Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => {
                if absent_is_none(dir.stat(name))?.is_some() {
                    return self.meet_existing(tmp, dir, name);
                }
                self.tmp.rename(tmp, dir, name, RenameMode::Replace).map(|()| Met::Expected)
            }
            Err(e) => Err(e),
        }
    }

    /// Somebody else made the name first. Two directories merge; anything else is kept beside it.
    fn meet_existing(&self, tmp: &[u8], dir: &dyn Dir, name: &[u8]) -> std::io::Result<Met> {
        let (ours, theirs) = (self.tmp.stat(tmp)?, dir.stat(name)?);
        if ours.kind == Kind::Dir && theirs.kind == Kind::Dir {
            self.tmp.rmdir(tmp)?;
            return Ok(Met::Merged((theirs.dev, theirs.ino)));
        }
        self.place_beside(tmp, dir, name)
    }

    fn place_over(&self, tmp: &[u8], dir: &dyn Dir, name: &[u8], over: u64) -> std::io::Result<Met> {
        match absent_is_none(dir.stat(name))? {
            Some(there) if there.ino != over => self.place_beside(tmp, dir, name),
            _ => self.tmp.rename(tmp, dir, name, RenameMode::Replace).map(|()| Met::Expected),
        }
    }

    fn place_beside(&self, tmp: &[u8], dir: &dyn Dir, name: &[u8]) -> std::io::Result<Met> {
        place_beside(&*self.tmp, tmp, dir, name)
    }

    fn apply_move(&self, path: &[u8], ino: u64, to: &[u8], over: Option<u64>) -> std::io::Result<Met> {
        match self.stat(path)? {
            Some(stat) if stat.ino == ino || left_out!(MoveOnce) => {}
            _ => {
                let arrived = self.stat(to)?.is_some_and(|stat| stat.ino == ino);
                return Ok(if arrived { Met::Expected } else { Met::Gone });
            }
        }
        let ((from, name), (dir, to_name)) = (self.parent(path)?, self.parent(to)?);
        let there = absent_is_none(dir.stat(to_name))?.map(|stat| stat.ino);
        if there != over && there.is_some() {
            return place_beside(&*from, name, &*dir, to_name);
        }
        from.rename(name, &*dir, to_name, RenameMode::Replace).map(|()| Met::Expected)
    }

    fn apply_link(&self, path: &[u8], ino: u64, to: &[u8]) -> std::io::Result<Met> {
        let ((from, name), (dir, to_name)) = (self.parent(path)?, self.parent(to)?);
        match absent_is_none(dir.stat(to_name))? {
            Some(there) if there.ino == ino => return Ok(Met::Expected),
            Some(_) => return Ok(Met::Gone),
            None => {}
        }
        match absent_is_none(from.stat(name))? {
            Some(stat) if stat.ino == ino => from.link(name, &*dir, to_name).map(|()| Met::Expected),
            _ => Ok(Met::Gone),
        }
    }

    fn apply_remove(&self, path: &[u8], ino: u64, is_dir: bool) -> std::io::Result<Met> {
        let Some((dir, name)) = absent_is_none(self.parent(path))? else { return Ok(Met::Expected) };
        match absent_is_none(dir.stat(name))? {
            None => Ok(Met::Expected),
            Some(stat) if stat.ino != ino && !left_out!(RemoveOnce) => Ok(Met::Gone),
            Some(_) if is_dir => match dir.rmdir(name) {
                // Somebody else put something into it: it stays, with that.
                Err(e) if e.raw_os_error() == Some(Errno::ENOTEMPTY as i32) => Ok(Met::Gone),
                other => other.map(|()| Met::Expected),
            },
            Some(_) => dir.unlink(name).map(|()| Met::Expected),
        }
    }

    fn apply_attr(
        &self,
        path: &[u8],
        ino: u64,
        act: impl Fn(&dyn Dir, &[u8], Kind) -> std::io::Result<()>,
    ) -> std::io::Result<Met> {
        let Some((dir, name)) = absent_is_none(self.parent(path))? else { return Ok(Met::Gone) };
        let name = if name.is_empty() { b"." } else { name };
        let stat = match absent_is_none(dir.stat(name))? {
            Some(stat) if stat.ino == ino => stat,
            _ => return Ok(Met::Gone),
        };
        act(&*dir, name, stat.kind).map(|()| Met::Expected)
    }

    /// Makes a node's own attributes durable. Nothing, if it is not there any more.
    fn sync_node(&self, path: &[u8]) -> std::io::Result<()> {
        let Some((dir, name)) = absent_is_none(self.parent(path))? else { return Ok(()) };
        if name.is_empty() {
            return dir.sync();
        }
        match absent_is_none(dir.stat(name))?.map(|stat| stat.kind) {
            None => Ok(()),
            Some(Kind::File) => dir.open(name, Access::Read)?.sync(),
            Some(Kind::Dir) => dir.dir(name)?.sync(),
            // No other kind can be opened for that.
            Some(_) => dir.sync_all(),
        }
    }
}

/// Moves ours to `NAME.dlio-conflict-HOST-TIME`, with a number if that is taken; theirs keeps the name.
fn place_beside(from: &dyn Dir, ours: &[u8], dir: &dyn Dir, name: &[u8]) -> std::io::Result<Met> {
    let suffix = conflict_suffix();
    for attempt in 0..1000 {
        let number = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let tail = format!(".dlio-conflict-{suffix}{number}");
        let keep = name.len().min(crate::path::NAME_MAX.saturating_sub(tail.len()));
        let beside = [&name[..keep], tail.as_bytes()].concat();
        if absent_is_none(dir.stat(&beside))?.is_none() {
            from.rename(ours, dir, &beside, RenameMode::Replace)?;
            return Ok(Met::Conflict(beside));
        }
    }
    Err(std::io::Error::from_raw_os_error(Errno::EEXIST as i32))
}

pub(crate) fn conflict_suffix() -> String {
    let host =
        nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok()).unwrap_or_else(|| "host".into());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_secs());
    format!("{}-{now}", host.replace('/', "-"))
}
