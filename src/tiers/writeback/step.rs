//! Applies one step on the slow tree, or finds it applied already, by the inode numbers it names (P11); and collects
//! what must be synced after it. `model/publish_plan.rs` and `writeback/publish.rs` decide the steps and their order.

use std::collections::BTreeSet;

use crate::error::{Context, Errno, Result};
use crate::path::escape;
use crate::tiers::disk::errors::{absent_is_none, is_full};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::split;
use crate::tiers::disk::saved::host_and_time;
use crate::tiers::disk::{Access, Dir, FileId, Inode, Kind, NewAttr, RenameMode, SlowId, Stat};
use crate::tiers::log::record::{Owned, Path, Step, TmpStat};
use crate::tiers::model::publish_plan::Planned;
use crate::tiers::writeback::open_tree::OpenTree;

/// What a step found on the slow tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Met {
    Expected,
    /// An attribute was set, but another program has written into the file since it was last seen.
    Rewritten,
    /// A directory of that name existed, with this identity: ours is merged into it.
    Merged(SlowId),
    /// Another program changed the name: theirs stays, ours has this name in the same directory.
    Conflict(Vec<u8>),
    /// The target of the change no longer exists, or belongs to another program.
    Gone,
    /// The node to place is neither in `tmp` nor in its place: another program has removed it. It is made again.
    Lacking,
    /// Like `Lacking`, but it cannot be made again: the name stays as it is until the file's next version.
    Lost,
    /// The rename goes into an unknown part of the tree: nothing is done.
    Apart,
    /// Another member has renamed the directory: nothing is done.
    Moved,
    /// An attribute that the slow tier never takes (P16) and does not have.
    LeftOut,
}

impl Met {
    /// The path where a step has put its node.
    pub(super) fn path(&self, path: &[u8]) -> Option<Path> {
        match self {
            Met::Expected => Some(path.to_vec()),
            Met::Conflict(beside) => Some([path.strip_suffix(split(path).1)?, beside].concat()),
            _ => None,
        }
    }
}

/// A [`Step::Place`], and the fingerprint of the version that it replaces.
struct Placing<'a> {
    /// Including the path of its part.
    path_in_tmp: &'a [u8],
    /// The directory in `tmp` that holds it; `tmp` is its name there.
    from: &'a dyn Dir,
    tmp: &'a [u8],
    id: FileId,
    path: &'a [u8],
    over: Option<FileId>,
    known: Option<TmpStat>,
    known_version: Option<Fingerprint>,
}

impl Placing<'_> {
    /// Whether this file, found in `tmp`, is the one to place.
    fn is_waiting(&self, stat: &Stat) -> bool {
        stat.file() == self.id && self.known.is_none_or(|known| known.fits(stat))
    }

    /// Whether this file, found in its place, is ours.
    fn is_placed(&self, stat: &Stat) -> bool {
        is_placed(stat, self.id, self.over, self.known)
    }

    /// Whether this is the known previous version.
    fn is_replaced(&self, stat: &Stat) -> bool {
        Some(stat.file()) == self.over
            && self.known_version.is_none_or(|known_version| known_version.is_same_version(stat))
    }
}

/// Whether this file, found where node `id` was to be placed, is that node. A later step of the batch may have changed
/// its times. If the tier shows no difference to the previous version, the inode number was reused: ours had gone from
/// `tmp` before that version was made.
fn is_placed(stat: &Stat, id: FileId, over: Option<FileId>, known: Option<TmpStat>) -> bool {
    let same_size = known.is_none_or(|known| stat.kind != Kind::File || known.size == stat.size);
    over != Some(id) && stat.file() == id && same_size
}

/// The paths that steps changed on the slow tier, each once: directories for their entries, nodes for their attributes.
#[derive(Default)]
pub(crate) struct SyncSet {
    dirs: BTreeSet<Path>,
    nodes: BTreeSet<Path>,
}

impl SyncSet {
    pub(crate) fn of(planned: &[Planned]) -> Self {
        let mut touched = SyncSet::default();
        planned.iter().for_each(|planned| touched.add(&planned.step));
        touched
    }

    pub(crate) fn add(&mut self, step: &Step) {
        let mut add = |path: &[u8]| {
            self.dirs.insert(split(path).0.to_vec());
        };
        match step {
            Step::Move { path, to, .. } | Step::Swap { a: path, b: to, .. } => {
                // The destination is synced first: a file found twice is better than a lost one.
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

    pub(crate) fn sync(&mut self, tree: &OpenTree<'_>) -> Result<()> {
        for path in std::mem::take(&mut self.dirs) {
            // A directory removed by a later step of the group has nothing left to sync.
            let dir = absent_is_none(tree.walk(&path)).at("open on slow", escape(&path))?;
            if let Some(dir) = dir {
                dir.sync().at("fsync on slow", escape(&path))?;
            }
        }
        // The fsync of a directory does not cover the attributes of its entries: xfs delays them. They come last,
        // because on ext4 they are durable by now.
        for path in std::mem::take(&mut self.nodes) {
            tree.sync_node(&path).at("fsync on slow", escape(&path))?;
        }
        Ok(())
    }
}

/// The name that a step changes in a directory.
pub(crate) fn step_target(step: &Step) -> Option<&[u8]> {
    match step {
        Step::Place { path: to, .. } | Step::Move { to, .. } | Step::Link { to, .. } => Some(to),
        Step::Swap { .. } | Step::Remove { .. } | Step::Attr { .. } | Step::Xattr { .. } => None,
    }
}

/// The paths that lead to another node after the step.
fn paths_changed(step: &Step) -> Vec<&[u8]> {
    match step {
        Step::Move { path, to, .. } | Step::Swap { a: path, b: to, .. } => vec![path, to],
        Step::Place { path, over: Some(_), .. } | Step::Remove { path, dir: true, .. } => vec![path],
        Step::Place { over: None, .. } | Step::Remove { dir: false, .. } => Vec::new(),
        Step::Link { .. } | Step::Attr { .. } | Step::Xattr { .. } => Vec::new(),
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

/// Corrects the paths of the node that `applied` has put beside another program's file, and of its contents.
pub(crate) fn go_on_beside<'a>((applied, met): (&Step, &Met), rest: impl Iterator<Item = &'a mut Step>) {
    let (Step::Place { path: at, id: of, .. } | Step::Move { to: at, id: of, .. }) = applied else { return };
    let (Met::Conflict(_), Some(beside)) = (met, met.path(at)) else { return };
    let moved = |path: &Path| match path.strip_prefix(&at[..]) {
        Some(below) if below.first() == Some(&b'/') => [&beside[..], below].concat(),
        _ => path.clone(),
    };
    for step in rest {
        *step = step.with_paths(moved);
        if let Step::Attr { path, id, .. } | Step::Xattr { path, id, .. } | Step::Link { path, id, .. } = step
            && (&*path, &*id) == (at, of)
        {
            path.clone_from(&beside);
        }
    }
}

impl OpenTree<'_> {
    /// Applies one step, or finds that it is applied already: by the inode numbers it names, never by guessing.
    /// `known_version`: of the file that a `place` replaces, or whose attributes are set.
    pub(crate) fn apply(&self, step: &Step, known_version: Option<Fingerprint>) -> std::io::Result<Met> {
        paths_changed(step).into_iter().for_each(|path| self.forget_below(path));
        match step {
            Step::Attr { path, .. } | Step::Xattr { path, .. } | Step::Move { path, .. } => self.expect_within(path)?,
            Step::Swap { a, b, .. } => self.expect_within(a).and_then(|()| self.expect_within(b))?,
            Step::Remove { path, dir: true, .. } => match self.expect_within(path) {
                // A file system is mounted there.
                Err(e) if e.raw_os_error() == Some(Errno::EBUSY as i32) => return Ok(Met::Gone),
                within => within?,
            },
            Step::Remove { .. } | Step::Place { .. } | Step::Link { .. } => {}
        }
        match step {
            Step::Place { tmp, id, path, over, known, .. } => {
                let (from, name) = self.slow.tmp_of(tmp)?;
                Met::or_apart(self.apply_place(&Placing {
                    path_in_tmp: tmp,
                    from: &*from,
                    tmp: name,
                    id: *id,
                    path,
                    over: *over,
                    known: *known,
                    known_version,
                }))
            }
            Step::Move { path, id, to, over } => Met::or_apart(self.apply_move(path, *id, to, *over)),
            Step::Swap { a, a_id, b, b_id } => {
                let (Some(at_a), Some(at_b)) = (self.stat_now(a)?, self.stat_now(b)?) else { return Ok(Met::Gone) };
                if (at_a.file(), at_b.file()) == (*b_id, *a_id) {
                    return Ok(Met::Expected);
                }
                if (at_a.file(), at_b.file()) != (*a_id, *b_id) {
                    return Ok(Met::Gone);
                }
                let ((from, name), (to, to_name)) = (self.parent(a)?, self.parent(b)?);
                from.rename(name, &*to, to_name, RenameMode::Exchange).map(|()| Met::Expected)
            }
            Step::Link { path, id, to } => self.apply_link(path, *id, to),
            Step::Remove { path, id, dir } => self.apply_remove(path, *id, *dir),
            Step::Attr { path, id, of, new } => self.apply_attr(path, *id, (of, new), known_version, |inode, kind| {
                let perm = new.perm.filter(|_| kind != Kind::Symlink);
                inode.set_attr(&self.slow.abilities.kept_by(kind, &NewAttr { perm, ..*new }))
            }),
            Step::Xattr { path, id, of, key, value } => {
                let met =
                    self.apply_attr(path, *id, (of, &NewAttr::default()), known_version, |inode, _| match value {
                        Some(value) => inode.set_xattr(key, value),
                        None => inode.remove_xattr(key),
                    });
                // A removal needs no room: it is retried until it succeeds.
                let is_final = |e: &std::io::Error| self.slow.never_takes(e) && (value.is_some() || !is_full(e));
                match met {
                    Err(e) if is_final(&e) => Ok(Met::LeftOut),
                    met => met,
                }
            }
        }
    }

    /// Whether a step has been applied, without applying it. `None`: attributes do not show it, and need not.
    pub(crate) fn has_applied(&self, step: &Step) -> std::io::Result<Option<bool>> {
        let at = |path: &[u8]| self.stat(path).map(|stat| stat.map(|stat| stat.file()));
        Ok(Some(match step {
            Step::Place { tmp, id, .. } => {
                let waiting = self.slow.tmp_of(tmp).and_then(|(dir, name)| dir.stat(name));
                absent_is_none(waiting)?.is_none_or(|stat| stat.file() != *id)
            }
            Step::Move { path, id, .. } | Step::Remove { path, id, .. } => at(path)? != Some(*id),
            Step::Swap { a, b_id, .. } => at(a)? == Some(*b_id),
            Step::Link { id, to, .. } => at(to)? == Some(*id),
            Step::Attr { .. } | Step::Xattr { .. } => return Ok(None),
        }))
    }

    /// Whether the moved node is at its destination. `false` does not exclude it, for example for a removal.
    pub(crate) fn is_seen_done(&self, step: &Step) -> std::io::Result<bool> {
        let at = |path: &[u8]| self.stat(path).map(|stat| stat.map(|stat| stat.file()));
        Ok(match step {
            Step::Place { id, path, over, known, .. } => {
                self.stat(path)?.is_some_and(|stat| is_placed(&stat, *id, *over, *known))
            }
            Step::Move { path, id, to, .. } => at(to)? == Some(*id) && at(path)? != Some(*id),
            Step::Swap { a, a_id, b, b_id } => (at(a)?, at(b)?) == (Some(*b_id), Some(*a_id)),
            Step::Link { id, to, .. } => at(to)? == Some(*id),
            Step::Remove { .. } | Step::Attr { .. } | Step::Xattr { .. } => false,
        })
    }

    /// A node still in `tmp` has not been placed; one under its name has been. A node in neither place is made again
    /// (P6).
    fn apply_place(&self, place: &Placing<'_>) -> std::io::Result<Met> {
        let Placing { from, tmp, path, .. } = *place;
        let left = self.stat_waiting(place.path_in_tmp, from, tmp)?;
        if !left.as_ref().is_some_and(|stat| place.is_waiting(stat) || left_out!(PlaceOnce)) {
            return self.find_placed(place, left.as_ref());
        }
        let (dir, name) = self.parent(path)?;
        if place.over.is_none() {
            return self.place_new(place, &*dir, name);
        }
        match from.rename(tmp, &*dir, name, RenameMode::Exchange) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return self.place_new(place, &*dir, name),
            Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => {
                place.over.into_iter().for_each(|over| self.slow.note_removed(over.ino));
                return self.place_over(place, &*dir, name);
            }
            Err(e) => return Err(e),
        }
        if place.is_replaced(&from.stat(tmp)?) {
            return Ok(Met::Expected);
        }
        if self.save_exchanged(from, tmp, path)? {
            return Ok(Met::Expected);
        }
        // Not the known version: it goes back, and ours beside it.
        from.rename(tmp, &*dir, name, RenameMode::Exchange)?;
        place_beside(from, tmp, &*dir, name)
    }

    fn place_new(&self, place: &Placing<'_>, dir: &dyn Dir, name: &[u8]) -> std::io::Result<Met> {
        let Placing { from, tmp, .. } = *place;
        match from.rename(tmp, dir, name, RenameMode::NoReplace) {
            Ok(()) => Ok(Met::Expected),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => self.resolve_existing(place, dir, name),
            Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => {
                if absent_is_none(dir.stat_now(name))?.is_some() {
                    return self.resolve_existing(place, dir, name);
                }
                from.rename(tmp, dir, name, RenameMode::Replace).map(|()| Met::Expected)
            }
            Err(e) => Err(e),
        }
    }

    /// Another program made the name first. Two directories merge.
    fn resolve_existing(&self, place: &Placing<'_>, dir: &dyn Dir, name: &[u8]) -> std::io::Result<Met> {
        let Placing { from, tmp, path, .. } = *place;
        let (ours, theirs) = (from.stat(tmp)?, dir.stat(name)?);
        if ours.id() == theirs.id() {
            // A further link of the file that is already there.
            return from.unlink(tmp).map(|()| Met::Expected);
        }
        if ours.kind == Kind::Dir && theirs.kind == Kind::Dir {
            match from.rmdir(tmp) {
                // A filled directory: the caller removes it, with the copies in it.
                Err(e) if e.raw_os_error() == Some(Errno::ENOTEMPTY as i32) => {}
                removed => removed?,
            }
            return Ok(Met::Merged(theirs.id()));
        }
        self.resolve_other((from, tmp), (dir, name), path, true)
    }

    /// For file systems without exchange: checks first. Only another program's change between the check and the rename
    /// is lost.
    fn place_over(&self, place: &Placing<'_>, dir: &dyn Dir, name: &[u8]) -> std::io::Result<Met> {
        let Placing { from, tmp, path, .. } = *place;
        let there = absent_is_none(dir.stat_now(name))?;
        if there.as_ref().is_some_and(|there| !place.is_replaced(there)) {
            return self.resolve_other((from, tmp), (dir, name), path, true);
        }
        let replace = || from.rename(tmp, dir, name, RenameMode::Replace);
        match replace() {
            // A directory of ours, and a file that the same batch removes: no rename replaces one by the other. After a
            // crash between the two the name is free, and ours is still in `tmp`. If the name was free a moment ago,
            // the file is another program's.
            Err(e) if e.kind() == std::io::ErrorKind::NotADirectory && there.is_some() => {
                dir.unlink(name).and_then(|()| replace())?;
            }
            replaced => replaced?,
        }
        Ok(Met::Expected)
    }

    /// Another program has the name, which is `path` from the root. `in_tmp`: ours waits there.
    fn resolve_other(
        &self,
        (from, ours): (&dyn Dir, &[u8]),
        (dir, name): (&dyn Dir, &[u8]),
        path: &[u8],
        in_tmp: bool,
    ) -> std::io::Result<Met> {
        match self.claim_name((from, ours), (dir, name), path, in_tmp)? {
            true => Ok(Met::Expected),
            false => place_beside(from, ours, dir, name),
        }
    }

    /// Ours is not in `tmp`; `left` is the file that has its name there.
    fn find_placed(&self, place: &Placing<'_>, left: Option<&Stat>) -> std::io::Result<Met> {
        if left_out!(FindPlaced) {
            return Ok(Met::Expected);
        }
        let may_be_exchanged = place.over.is_some() || self.slow.in_fleet;
        if may_be_exchanged && left.is_some_and(|left| !place.is_replaced(left)) {
            // Another program's file, exchanged for ours and not checked before a crash or an error.
            if self.save_exchanged(place.from, place.tmp, place.path)? {
                return self.find_placed(place, None);
            }
            let aside = put_aside(place.tmp);
            tracing::warn!(aside = %escape(&aside), "a foreign version is moved aside in tmp on the slow tier");
            place.from.rename(place.tmp, place.from, &aside, RenameMode::Replace)?;
        }
        let Some((dir, name)) = absent_is_none(self.parent(place.path))? else { return Ok(Met::Lacking) };
        if absent_is_none(dir.stat(name))?.is_some_and(|there| place.is_placed(&there)) {
            return Ok(Met::Expected);
        }
        Ok(find_beside(&*dir, name, |stat| place.is_placed(stat))?.map_or(Met::Lacking, Met::Conflict))
    }

    fn apply_move(&self, path: &[u8], id: FileId, to: &[u8], over: Option<FileId>) -> std::io::Result<Met> {
        let ours = match self.stat_now(path)? {
            Some(stat) if stat.file() == id || left_out!(MoveOnce) => stat,
            _ => {
                let arrived = self.stat_now(to)?.is_some_and(|stat| stat.file() == id);
                return Ok(if arrived { Met::Expected } else { Met::Gone });
            }
        };
        let ((from, name), (dir, to_name)) = (self.parent(path)?, self.parent(to)?);
        let stat = absent_is_none(dir.stat_now(to_name))?;
        let there = stat.as_ref().map(Stat::file);
        if there == Some(id) {
            return move_onto_itself(&*from, name, &*dir, to_name);
        }
        let meet = || self.resolve_other((&*from, name), (&*dir, to_name), to, false);
        // Our renames never put a file in place of a directory, or the reverse.
        let is_unlike = stat.is_some_and(|stat| (stat.kind == Kind::Dir) != (ours.kind == Kind::Dir));
        if (there != over && there.is_some()) || is_unlike {
            return meet();
        }
        if there.is_none() {
            match from.rename(name, &*dir, to_name, RenameMode::NoReplace) {
                // Another program has made it since.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return meet(),
                // The tier has no such rename.
                Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => {}
                done => return done.map(|()| Met::Expected),
            }
        }
        there.into_iter().for_each(|over| self.slow.note_removed(over.ino));
        from.rename(name, &*dir, to_name, RenameMode::Replace).map(|()| Met::Expected)
    }

    fn apply_link(&self, path: &[u8], id: FileId, to: &[u8]) -> std::io::Result<Met> {
        if let Some(there) = self.stat_now(to)? {
            return Ok(if there.file() == id { Met::Expected } else { Met::Gone });
        }
        let Some((inode, _)) = self.hold_now(path, id)? else { return Ok(Met::Gone) };
        let (dir, to_name) = self.parent(to)?;
        inode.link(&*dir, to_name).map(|()| Met::Expected)
    }

    fn apply_remove(&self, path: &[u8], id: FileId, is_dir: bool) -> std::io::Result<Met> {
        let Some((dir, name)) = absent_is_none(self.parent(path))? else { return Ok(Met::Expected) };
        match absent_is_none(dir.stat_now(name))? {
            None => Ok(Met::Expected),
            Some(stat) if stat.file() != id && !left_out!(RemoveOnce) => Ok(Met::Gone),
            // The number was given to another node.
            Some(stat) if (stat.kind == Kind::Dir) != is_dir => Ok(Met::Gone),
            Some(_) if is_dir => match dir.rmdir(name) {
                Err(e) if e.raw_os_error() == Some(Errno::ENOTEMPTY as i32) => {
                    // The root of a part has our `tmp`. Otherwise another program put something into it: without a
                    // fleet the directory stays, with that.
                    if !self.slow.remove_tmp(path, &*dir, name)? {
                        let is_gone = self.slow.move_left_open(&*dir, name)? || self.save_dir(&*dir, name, path)?;
                        return Ok(if is_gone { Met::Expected } else { Met::Gone });
                    }
                    match dir.rmdir(name) {
                        Err(e) if e.raw_os_error() == Some(Errno::ENOTEMPTY as i32) => Ok(Met::Gone),
                        other => other.map(|()| Met::Expected),
                    }
                }
                // A file system is mounted there.
                Err(e) if e.raw_os_error() == Some(Errno::EBUSY as i32) => Ok(Met::Gone),
                other => other.map(|()| Met::Expected),
            },
            Some(_) => {
                self.slow.note_removed(id.ino);
                // Another program, or `writeback/full_slow.rs`, may be removing it now.
                absent_is_none(dir.unlink(name)).map(|_| Met::Expected)
            }
        }
    }

    /// Compares the inode that is changed: if the name goes to another file meanwhile, that file is not touched. Nor is
    /// another program's file with the same number: some tiers report no birth, and a new owner has not asked for the
    /// change.
    fn apply_attr(
        &self,
        path: &[u8],
        id: FileId,
        (of, new): (&Owned, &NewAttr),
        known_version: Option<Fingerprint>,
        act: impl Fn(&dyn Inode, Kind) -> std::io::Result<()>,
    ) -> std::io::Result<Met> {
        match self.hold_now(path, id)? {
            Some((inode, stat)) if of.may_be(&self.slow.abilities.owned(&stat, of), new) => {
                act(&*inode, stat.kind)?;
                let is_rewritten = known_version.is_some_and(|known| !known.is_same_version(&stat));
                Ok(if is_rewritten { Met::Rewritten } else { Met::Expected })
            }
            _ => Ok(Met::Gone),
        }
    }

    /// Makes a node's own attributes durable. Does nothing if the node no longer exists.
    fn sync_node(&self, path: &[u8]) -> std::io::Result<()> {
        self.expect_within(path)?;
        let Some((dir, name)) = absent_is_none(self.parent(path))? else { return Ok(()) };
        if name.is_empty() {
            return dir.sync();
        }
        match absent_is_none(dir.stat(name))?.map(|stat| stat.kind) {
            None => Ok(()),
            Some(Kind::File) => match dir.open(name, Access::Read) {
                // Its owner has a lease on it; each sync would wait for the lease.
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => dir.sync_all(),
                opened => opened?.sync(),
            },
            Some(Kind::Dir) => dir.dir(name)?.sync(),
            // No other kind can be opened for a sync.
            Some(_) => dir.sync_all(),
        }
    }
}

/// Both names lead to the node to move. A rename between two names of one file does nothing, so the first one is
/// unlinked. But on a case-insensitive file system they may be one name, as the directory listing shows: removing it
/// would lose the file.
fn move_onto_itself(from: &dyn Dir, name: &[u8], dir: &dyn Dir, to_name: &[u8]) -> std::io::Result<Met> {
    let has = |dir: &dyn Dir, name: &[u8]| Ok::<_, std::io::Error>(dir.list()?.iter().any(|entry| entry.name == name));
    match (has(from, name)?, has(dir, to_name)?) {
        (true, true) => from.unlink(name)?,
        (true, false) => from.rename(name, dir, to_name, RenameMode::Replace)?,
        (false, _) => {}
    }
    Ok(Met::Expected)
}

/// Moves ours to `NAME.dlio-conflict-HOST-TIME`, with a number if that is taken; theirs keeps the name.
fn place_beside(from: &dyn Dir, ours: &[u8], dir: &dyn Dir, name: &[u8]) -> std::io::Result<Met> {
    let suffix = host_and_time();
    for attempt in 0..1000 {
        let number = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let tail = format!(".dlio-conflict-{suffix}{number}");
        let keep = name.len().min(crate::path::NAME_MAX.saturating_sub(tail.len()));
        let beside = [name.get(..keep).unwrap_or(name), tail.as_bytes()].concat();
        if absent_is_none(dir.stat(&beside))?.is_none() {
            from.rename(ours, dir, &beside, RenameMode::Replace)?;
            return Ok(Met::Conflict(beside));
        }
    }
    Err(std::io::Error::from_raw_os_error(Errno::EEXIST as i32))
}

/// The name under which [`place_beside`] has put ours.
pub(crate) fn find_beside(
    dir: &dyn Dir,
    name: &[u8],
    is_ours: impl Fn(&Stat) -> bool,
) -> std::io::Result<Option<Vec<u8>>> {
    const MARK: &[u8] = b".dlio-conflict-";
    let is_beside = |other: &[u8]| {
        let mark = other.windows(MARK.len()).rposition(|part| part == MARK);
        mark.and_then(|mark| other.get(..mark)).is_some_and(|cut| name.starts_with(cut))
    };
    for entry in dir.list()?.into_iter().filter(|entry| is_beside(&entry.name)) {
        if absent_is_none(dir.stat(&entry.name))?.is_some_and(|stat| is_ours(&stat)) {
            return Ok(Some(entry.name));
        }
    }
    Ok(None)
}

/// Gives an unexplained file in `tmp` a prefix that no start sweeps.
pub(crate) fn put_aside(tmp: &[u8]) -> Vec<u8> {
    [b"q", tmp].concat()
}
