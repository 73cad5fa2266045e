//! Parts of the slow tree: across the border of one no rename and no hard link goes. Another file system that is mounted inside of the
//! tree is one, a btrfs subvolume, a directory with a project of its own (xfs, ext4, Lustre).
//!
//! What is to be placed in a part waits in a `.dlio-fs/tmp/<uuid>` of its own, at the part's root. A name in `tmp` is therefore a path: that
//! of the part's root on the slow tier, in front of the name; the tree's own root has none.
//!
//! 1. A directory with another device than the one above it is the root of a part: the view knows that (`model/view.rs::part_of`). Where the
//!    device is the same, the rename out of `tmp` answers EXDEV, and the topmost directory into which nothing of ours can be renamed is
//!    looked for ([`Tiers::find_part`]).
//! 2. The part's `tmp` is made, and written down in `<fast>/.dlio-fs/parts` with its inode, durably, before anything is made in it. From
//!    then on it is reached by its descriptor, and after a start only if it has that inode.
//! 3. A version is copied there at once. Where it is placed in another part than it was copied for, it is copied from `tmp` to `tmp`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use nix::errno::Errno;

use crate::error::{Context, Error, Result};
use crate::path::{escape, unescape};
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::{Access, Dir, MetadataOrder, RenameMode};
use crate::tiers::log::record::{Known, Path, Step, is_below_root};
use crate::tiers::model::publish_plan::{Batch, Effect, Planned};
use crate::tiers::model::state::State;
use crate::tiers::objects::file::{Content, Copied};
use crate::tiers::objects::slow_tier::{SlowId, SlowTier, absent_is_none, split};
use crate::tiers::ops::data::copy_data;
use crate::tiers::ops::names::OURS;
use crate::tiers::recovery::identity::{ensure_dir, read_text, replace_text};
use crate::tiers::writeback::drain::{copy_name, remove_leftover, set_attrs};
use crate::tiers::writeback::mend::Mended;
use crate::tiers::writeback::publish::Unfinished;
use crate::tiers::writeback::step::{Met, step_path};
use crate::tiers::{Ino, Lsn, ROOT, Tiers};

const FILE: &[u8] = b"parts";
/// In `tmp`: a file by which the border of a part is found.
const PROBE: &[u8] = b"e";

/// The inode numbers of a part's root and of its `tmp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recorded {
    root: u64,
    tmp: u64,
}

/// The parts that have a `tmp` of ours, by the paths of their roots on the slow tier.
#[derive(Debug)]
pub(crate) struct Parts {
    /// `<fast>/.dlio-fs`.
    ours: Arc<dyn Dir>,
    uuid: Vec<u8>,
    recorded: Mutex<BTreeMap<Path, Recorded>>,
    open: Mutex<HashMap<Path, Arc<dyn Dir>>>,
}

impl Parts {
    pub(crate) fn open(ours: Arc<dyn Dir>, uuid: &str) -> Result<Self> {
        let text = read_text(&*ours, FILE)?.unwrap_or_default();
        let parts = Parts { ours, uuid: uuid.as_bytes().to_vec(), recorded: Mutex::default(), open: Mutex::default() };
        // A line that nobody wrote is none.
        *parts.recorded.lock() = text.lines().filter_map(line).collect();
        Ok(parts)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.recorded.lock().is_empty()
    }

    pub(crate) fn paths(&self) -> Vec<Path> {
        self.recorded.lock().keys().cloned().collect()
    }

    /// Changes what is written down, on the disk first.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<Path, Recorded>)) -> Result<()> {
        let mut recorded = self.recorded.lock();
        let mut wanted = recorded.clone();
        change(&mut wanted);
        if wanted == *recorded {
            return Ok(());
        }
        let line = |(path, ids): (&Path, &Recorded)| format!("{} {} {}\n", escape(path), ids.root, ids.tmp);
        replace_text(&*self.ours, FILE, &wanted.iter().map(line).collect::<String>())?;
        *recorded = wanted;
        Ok(())
    }
}

fn line(line: &str) -> Option<(Path, Recorded)> {
    let mut words = line.split(' ');
    let path = unescape(words.next()?).filter(|path| is_below_root(path))?;
    let ids = Recorded { root: words.next()?.parse().ok()?, tmp: words.next()?.parse().ok()? };
    words.next().is_none().then_some((path, ids))
}

/// A name in the `tmp` of a part.
pub(crate) fn in_part(part: &[u8], name: &[u8]) -> Vec<u8> {
    if part.is_empty() { name.to_vec() } else { [part, b"/", name].concat() }
}

/// The last name of a name in `tmp`.
pub(crate) fn bare(tmp: &[u8]) -> &[u8] {
    split(tmp).1
}

impl SlowTier {
    /// The `tmp` that a name is in, and its last name.
    pub(crate) fn tmp_of<'a>(&self, tmp: &'a [u8]) -> io::Result<(Arc<dyn Dir>, &'a [u8])> {
        let (part, name) = split(tmp);
        Ok((self.tmp_at(part)?, name))
    }

    /// The `tmp` of a part that has one, by the path of its root.
    ///
    /// Errors: ENOENT if it was removed; another one if the part is not there.
    pub(crate) fn tmp_at(&self, part: &[u8]) -> io::Result<Arc<dyn Dir>> {
        if part.is_empty() {
            return Ok(self.tmp.clone());
        }
        if let Some(tmp) = self.parts.open.lock().get(part) {
            return Ok(tmp.clone());
        }
        let absent =
            || io::Error::other(".dlio-fs/tmp of a part of the slow tree is not there; is its file system mounted?");
        let recorded = self.parts.recorded.lock().get(part).copied().ok_or_else(absent)?;
        let root = absent_is_none(self.walk(part))?.ok_or_else(absent)?;
        if root.stat(b".")?.ino != recorded.root {
            return Err(absent());
        }
        let tmp = root.dir(OURS)?.dir(b"tmp")?.dir(&self.parts.uuid)?;
        if tmp.stat(b".")?.ino != recorded.tmp {
            return Err(absent());
        }
        self.parts.open.lock().insert(part.to_vec(), tmp.clone());
        Ok(tmp)
    }

    /// The same, made if there is none. `id` is the part's root.
    pub(crate) fn ensure_tmp(&self, part: &[u8], id: SlowId) -> Result<Arc<dyn Dir>> {
        if let Ok(tmp) = self.tmp_at(part) {
            return Ok(tmp);
        }
        let label = || format!("{}/.dlio-fs/tmp on the slow tier", String::from_utf8_lossy(part));
        let root = self.walk(part).at("open", label())?;
        let stat = root.stat(b".").at("stat", label())?;
        if (stat.dev, stat.ino) != id {
            return Err(Error::io("open", label(), Errno::ESTALE.into()));
        }
        let tmp = make_tmp(&*root, &self.parts.uuid)?;
        let made = tmp.stat(b".").at("stat", label())?;
        // Root may do anything there anyway.
        if ![0, nix::unistd::geteuid().as_raw()].contains(&made.uid) {
            return Err(Error::refused(
                format!("/{}/.dlio-fs on the slow tier belongs to somebody else", escape(part)),
                "remove it, or give it to the user who mounts",
            ));
        }
        let recorded = Recorded { root: stat.ino, tmp: made.ino };
        self.parts.change(|all| {
            all.insert(part.to_vec(), recorded);
        })?;
        self.parts.open.lock().insert(part.to_vec(), tmp.clone());
        Ok(tmp)
    }

    /// Syncs each `tmp` that these names are in.
    pub(crate) fn sync_tmps<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let parts: BTreeSet<&[u8]> = names.map(|tmp| split(tmp).0).chain([&b""[..]]).collect();
        parts
            .into_iter()
            .try_for_each(|part| self.tmp_at(part).and_then(|tmp| tmp.sync()).at("fsync", "tmp on the slow tier"))
    }

    /// Removes an empty `tmp` of ours from the root of a part, which is otherwise empty. `false`: that is not all there is.
    pub(crate) fn remove_tmp(&self, part: &[u8], above: &dyn Dir, name: &[u8]) -> io::Result<bool> {
        let root = above.dir(name)?;
        let only = |dir: &dyn Dir, name: &[u8]| Ok::<_, io::Error>(dir.list()?.iter().all(|entry| entry.name == name));
        if !only(&*root, OURS)? {
            return Ok(false);
        }
        let ours = root.dir(OURS)?;
        if !only(&*ours, b"tmp")? || !only(&*ours.dir(b"tmp")?, &self.parts.uuid)? {
            return Ok(false);
        }
        self.parts.open.lock().remove(part);
        Ok(remove_made(&*root, &self.parts.uuid).is_ok())
    }

    /// Steps that are done have moved the roots of parts, or removed one.
    pub(crate) fn follow_parts<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let below = |path: &[u8], dir: &[u8]| {
            path.strip_prefix(dir).filter(|rest| matches!(rest.first(), None | Some(b'/'))).map(<[u8]>::to_vec)
        };
        let mut moved = false;
        self.parts.change(|all| {
            for step in steps {
                let carry = |path: &Path| match step {
                    Step::Move { path: from, to, .. } => below(path, from).map(|rest| Some([&to[..], &rest].concat())),
                    Step::Swap { a, b, .. } => below(path, a)
                        .map(|rest| Some([&b[..], &rest].concat()))
                        .or_else(|| below(path, b).map(|rest| Some([&a[..], &rest].concat()))),
                    Step::Remove { path: gone, dir: true, .. } => (path == gone).then_some(None),
                    _ => None,
                };
                let carried: BTreeMap<Path, Recorded> = all
                    .iter()
                    .filter_map(|(path, ids)| Some((carry(path).unwrap_or_else(|| Some(path.clone()))?, *ids)))
                    .collect();
                moved |= carried != *all;
                *all = carried;
            }
        })?;
        if moved {
            self.parts.open.lock().clear();
        }
        Ok(())
    }
}

fn make_tmp(root: &dyn Dir, uuid: &[u8]) -> Result<Arc<dyn Dir>> {
    ensure_dir(&*ensure_dir(&*ensure_dir(root, OURS)?, b"tmp")?, uuid)
}

/// Removes what [`make_tmp`] has made, as far as it is empty.
fn remove_made(root: &dyn Dir, uuid: &[u8]) -> io::Result<()> {
    let ours = root.dir(OURS)?;
    absent_is_none(ours.dir(b"tmp").and_then(|tmp| tmp.rmdir(uuid)))?;
    absent_is_none(ours.rmdir(b"tmp"))?;
    absent_is_none(root.rmdir(OURS)).map(drop)
}

/// The part that a directory lies in: the path of its root on the slow tier, and who that is there. `None`: the tree's own.
fn part_at(st: &State, dir: Ino) -> Option<(Path, SlowId)> {
    let part = Some(st.view.part_of(dir)).filter(|part| *part != ROOT)?;
    Some((st.view.slow_path(part)?, st.view.get(part)?.slow_id()?))
}

impl Tiers {
    /// The `tmp` for what is placed in directory `dir`, and the path of its part.
    pub(crate) fn tmp_for(&self, dir: Ino) -> Result<(Path, Arc<dyn Dir>)> {
        let part = part_at(&self.state.lock(), dir);
        match part {
            None => Ok((Path::new(), self.slow.tmp.clone())),
            Some((path, id)) => self.slow.ensure_tmp(&path, id).map(|tmp| (path, tmp)),
        }
    }

    /// Whether the file systems of these steps keep their order by themselves: no two of them do.
    pub(crate) fn keeps_order(&self, planned: &[Planned]) -> Result<bool> {
        let parts: BTreeSet<Path> = {
            let st = self.state.lock();
            let dir = |effect: &Effect| match effect {
                Effect::Name((dir, _), _) => Some(*dir),
                Effect::Touched(ino) => Some(st.view.get(*ino)?.slow().first()?.0),
                Effect::Identity(..) => None,
            };
            let dirs: BTreeSet<Ino> = planned.iter().flat_map(|planned| &planned.effects).filter_map(dir).collect();
            dirs.into_iter().map(|dir| part_at(&st, dir).map_or_else(Path::new, |part| part.0)).collect()
        };
        let order = match parts.first() {
            Some(part) if parts.len() == 1 => absent_is_none(self.slow.walk(part)).at("open on slow", escape(part))?,
            Some(_) => return Ok(false),
            None => Some(self.slow.root.clone()),
        };
        Ok(order.is_some_and(|dir| dir.order() == MetadataOrder::Journaled))
    }

    /// Brings the versions over whose copies wait in another part than they are placed in. `true`: the steps name copies that are no more.
    pub(crate) fn bring_copies(&self, batches: &[Batch], planned: &[Planned]) -> Result<bool> {
        let wrong: Vec<(Ino, Ino)> = {
            let st = self.state.lock();
            let is_wrong = |planned: &Planned| match (&planned.step, planned.effects.first()) {
                (Step::Place { tmp, node, object: Some(_), .. }, Some(Effect::Name((dir, _), _))) => {
                    let part = part_at(&st, *dir).map_or_else(Path::new, |part| part.0);
                    (split(tmp).0 != part).then_some((*node, *dir))
                }
                _ => None,
            };
            planned.iter().filter_map(is_wrong).collect()
        };
        for (node, dir) in &wrong {
            if let Some((lsn, content)) = batches.iter().find_map(|batch| batch.contents.get(node)) {
                self.bring_copy(*lsn, *node, content, *dir)?;
            }
        }
        Ok(!wrong.is_empty())
    }

    /// Copies what was copied into another part, where it will be placed in directory `dir`.
    fn bring_copy(&self, lsn: Lsn, ino: Ino, content: &Content, dir: Ino) -> Result<Option<Copied>> {
        let Some(copied) = content.copy.lock().as_deref().cloned() else { return Ok(None) };
        let (part, tmp) = self.tmp_for(dir)?;
        let label = || self.label(ino);
        let name = bare(&copied.tmp);
        // The directories above its part may have been moved: then it is there.
        let there = absent_is_none(tmp.stat(name)).at("stat on slow", label())?;
        let new = match there.filter(|there| (there.dev, there.ino) == copied.id) {
            Some(_) => Copied { tmp: in_part(&part, name), ..copied.clone() },
            None => {
                let (from, _) = self.slow.tmp_of(&copied.tmp).at("open", "tmp on the slow tier")?;
                let source =
                    match absent_is_none(from.open(name, Access::Unnoticed)).at("open the slow copy of", label())? {
                        Some(source) => source,
                        // An object that is being placed, or one that somebody else has removed.
                        None if content.object().needs_slow() => {
                            self.slow.object(content.object().tail()).at("open the slow copy of", label())?
                        }
                        None => {
                            *content.copy.lock() = None;
                            self.wake();
                            return Ok(None);
                        }
                    };
                let to = copy_name(lsn);
                remove_leftover(&*tmp, &to)?;
                let file = tmp.create(&to, 0o600).at("create the slow copy of", label())?;
                let mut watch = |at, bytes: &[u8]| {
                    self.counters.notes.copied(lsn, at + bytes.len() as u64);
                    Ok(())
                };
                copy_data(&*source, &*file, 0..content.size, &mut watch)
                    .map_err(io::Error::from)
                    .and_then(|()| file.set_len(content.size))
                    .and_then(|()| set_attrs(&*file, &content.attrs()))
                    .and_then(|()| file.sync())
                    .at("copy to another part of the slow tier", label())?;
                let stat = file.stat().at("stat", label())?;
                if !content.object().needs_slow() {
                    remove_leftover(&*from, name)?;
                }
                let id = (stat.dev, stat.ino);
                Copied { tmp: in_part(&part, &to), id, sum: copied.sum, known: Some(Known::of(&stat)) }
            }
        };
        // It may have been lost meanwhile: then it stays so.
        let mut copy = content.copy.lock();
        if copy.is_none() {
            return Ok(None);
        }
        *copy = Some(Box::new(new.clone()));
        Ok(Some(new))
    }

    /// The rename of the next step has answered EXDEV, although the view knows no border there: it learns it, and what is placed goes again.
    pub(crate) fn bring_over(&self, group: &mut Unfinished) -> Result<Mended> {
        let Planned { step, effects, .. } = &group.planned[group.met.len()];
        let apart = |step: &Step| {
            Error::refused(
                format!("/{} goes to another part of the slow tree, where no rename reaches", escape(step_path(step))),
                "move it on the slow tier by `mv`, which copies it",
            )
        };
        let (Step::Place { tmp, path, node, .. }, Some(Effect::Name((dir, _), _))) = (step.clone(), effects.first())
        else {
            return Err(apart(step));
        };
        let dir = *dir;
        if !self.find_part(split(&tmp).0, &path)? {
            return Err(apart(step));
        }
        let made = match group.next_content() {
            Some((lsn, content)) => self.bring_copy(lsn, node, &content, dir)?,
            None => match self.spec_of(&tmp) {
                Some((lsn, spec, dir)) => {
                    let (from, name) = self.slow.tmp_of(&tmp).at("open", "tmp on the slow tier")?;
                    let made = self.make_one(lsn, &spec, dir)?;
                    remove_leftover(&*from, name)?;
                    Some(made)
                }
                None => return Err(apart(&group.planned[group.met.len()].step)),
            },
        };
        match made {
            // Each time it goes further down: parts may lie in parts.
            Some(copied) if split(&copied.tmp).0 == split(&tmp).0 => Err(apart(&group.planned[group.met.len()].step)),
            Some(copied) if self.renew(group, &copied)? => Ok(Mended::Again),
            _ => Ok(Mended::Soon),
        }
    }

    /// Finds the root of the part that a path lies in: the topmost directory above it into whose `tmp` nothing can be renamed out of that
    /// of `from`. Only names of ours are touched. `false`: there is none.
    fn find_part(&self, from: &[u8], path: &[u8]) -> Result<bool> {
        let label = || String::from_utf8_lossy(path).into_owned();
        let base = self.slow.tmp_at(from).at("open", "tmp on the slow tier")?;
        remove_leftover(&*base, PROBE)?;
        base.create(PROBE, 0o600).at("create", "file in tmp")?;
        let found = self.border_below(&*base, from, split(path).0);
        remove_leftover(&*base, PROBE)?;
        let Some((part, id)) = found? else { return Ok(false) };
        self.slow.ensure_tmp(&part, id)?;
        self.state.lock().view.add_part(id);
        tracing::info!(part = %String::from_utf8_lossy(&part), for_ = label(), "a part of the slow tree that no rename reaches has its own .dlio-fs/tmp");
        Ok(true)
    }

    fn border_below(&self, base: &dyn Dir, from: &[u8], dirs: &[u8]) -> Result<Option<(Path, SlowId)>> {
        let slashes = dirs.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in slashes.chain([dirs.len()]).filter(|end| *end > from.len()) {
            let part = &dirs[..end];
            let label = || String::from_utf8_lossy(part).into_owned();
            let dir = self.slow.walk(part).at("open on slow", label())?;
            let stat = dir.stat(b".").at("stat on slow", label())?;
            let tmp = make_tmp(&*dir, &self.slow.parts.uuid)?;
            match base.rename(PROBE, &*tmp, PROBE, RenameMode::Replace) {
                Err(e) if e.raw_os_error() == Some(Errno::EXDEV as i32) => {
                    return Ok(Some((part.to_vec(), (stat.dev, stat.ino))));
                }
                renamed => renamed.at("rename on slow", label())?,
            }
            tmp.rename(PROBE, base, PROBE, RenameMode::Replace).at("rename on slow", label())?;
            // Not one; unless somebody else's is there, nothing of it stays.
            if let Err(e) = remove_made(&*dir, &self.slow.parts.uuid) {
                tracing::debug!(error = %e, "an empty .dlio-fs stays on the slow tier");
            }
        }
        Ok(None)
    }

    /// At a start: parts that were found by EXDEV are known again.
    pub(crate) fn restore_parts(&self) {
        for part in self.slow.parts.paths() {
            let recorded = self.slow.parts.recorded.lock().get(&part).copied();
            let stat = self.slow.stat(&part).ok().flatten();
            if let Some(stat) = stat.filter(|stat| recorded.is_some_and(|recorded| recorded.root == stat.ino)) {
                self.state.lock().view.add_part((stat.dev, stat.ino));
            }
        }
    }
}

impl Met {
    /// Of a step whose rename went across a border.
    pub(crate) fn or_apart(met: io::Result<Met>) -> io::Result<Met> {
        match met {
            Err(e) if e.raw_os_error() == Some(Errno::EXDEV as i32) => Ok(Met::Apart),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_file_says_where_a_part_is_and_whose() {
        assert_eq!(line("a/b%20c 256 300"), Some((b"a/b c".to_vec(), Recorded { root: 256, tmp: 300 })));
        for bad in ["", "a", "a 1", "a 1 x", "a 1 2 3", "../a 1 2", ".dlio-fs/a 1 2", "/a 1 2"] {
            assert_eq!(line(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_name_in_tmp_stands_behind_the_path_of_its_part() {
        assert_eq!((in_part(b"", b"c1"), in_part(b"a.b/c", b"c1.2")), (b"c1".to_vec(), b"a.b/c/c1.2".to_vec()));
        assert_eq!((bare(b"c1"), bare(b"a.b/c/c1.2")), (&b"c1"[..], &b"c1.2"[..]));
    }
}
