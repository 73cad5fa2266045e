//! Parts of the slow tree, whose borders no rename and no hard link crosses: another file system that is mounted inside
//! the tree, a btrfs subvolume, or a directory with a project of its own (xfs, ext4, Lustre).
//!
//! A node that goes to a part waits in a `.dlio-fs/tmp/<uuid>` at that part's root. A name in `tmp` is therefore a
//! path: the path of the part's root on the slow tier, then the name; for the tree's own root only the name.
//!
//! 1. A directory with another device than its parent is the root of a part: the view knows that
//!    (`model/view.rs::part_of`). If the device is the same, the rename out of `tmp` answers EXDEV; then
//!    [`Tiers::find_part`] searches for the topmost directory into which nothing of ours can be renamed.
//! 2. The part's `tmp` is made and recorded in `<fast>/.dlio-fs/parts` with its inode, durably, before anything is made
//!    in it. From then on it is reached by its descriptor; a start opens it only if it has that inode.
//! 3. The drain copies a version straight into it. If the version turns out to belong to another part, it is copied
//!    from `tmp` to `tmp`.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;

use crate::error::{Context, Error, Result};
use crate::path::escape;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::dirs_above;
use crate::tiers::disk::layout::{remove_leftover, split};
use crate::tiers::disk::{Access, Dir, MetadataOrder, RenameMode, SlowId};
use crate::tiers::log::record::{Path, Step, TmpStat};
use crate::tiers::model::publish_plan::{Batch, Effect, Planned};
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::attrs::set_attrs;
use crate::tiers::objects::copy::copy_data;
use crate::tiers::objects::parts::{bare, copy_name, in_part};
use crate::tiers::objects::version::{Content, Copied};
use crate::tiers::writeback::group::Unfinished;
use crate::tiers::writeback::mend::Mended;
use crate::tiers::writeback::step::{Met, step_path};
use crate::tiers::{Ino, Lsn, ROOT, Tiers};

/// In `tmp`: a file to probe for the border of a part, and for whether the tier can be written.
pub(super) const PROBE: &[u8] = b"e";

/// The part that contains a directory: the path of its root on the slow tier, and that root's identity. `None`: the
/// tree's own part.
fn part_at(st: &EngineState, dir: Ino) -> Option<(Path, SlowId)> {
    let part = Some(st.view.part_of(dir)).filter(|part| *part != ROOT)?;
    Some((st.view.slow_path(part)?, st.view.get(part)?.slow_id()?))
}

impl Tiers {
    /// The `tmp` for nodes that are placed in directory `dir`, and the path of its part.
    pub(crate) fn tmp_for(&self, dir: Ino) -> Result<(Path, Arc<dyn Dir>)> {
        let part = part_at(&self.state.lock(), dir);
        match part {
            None => Ok((Path::new(), self.slow.tmp.clone())),
            Some((path, id)) => self.slow.ensure_tmp(&path, id).map(|tmp| (path, tmp)),
        }
    }

    /// Whether the file system of these steps keeps their order; false for steps on two file systems.
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

    /// Brings over versions whose copies wait in another part than the one they are placed in. `true`: the steps name
    /// copies that no longer exist.
    pub(crate) fn copy_to_parts(&self, batches: &[Batch], planned: &[Planned]) -> Result<bool> {
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
                self.copy_to_part(*lsn, *node, content, *dir)?;
            }
        }
        Ok(!wrong.is_empty())
    }

    /// Copies a version's copy to the part of directory `dir`, where it will be placed.
    fn copy_to_part(&self, lsn: Lsn, ino: Ino, content: &Content, dir: Ino) -> Result<Option<Copied>> {
        let Some(copied) = content.copy.lock().as_deref().cloned() else { return Ok(None) };
        let (part, tmp) = self.tmp_for(dir)?;
        let label = || self.label(ino);
        let name = bare(&copied.tmp);
        // The directories above its part may have been moved: then it is already there.
        let moved_with = in_part(&part, name);
        let there = self.slow.tmp_of(&moved_with).and_then(|(tmp, name)| tmp.stat(name));
        let there = absent_is_none(there).at("stat on slow", label())?;
        let new = match there.filter(|there| there.id() == copied.id) {
            Some(_) => Copied { tmp: in_part(&part, name), ..copied.clone() },
            None => {
                let (from, _) = self.slow.tmp_of(&copied.tmp).at("open", "tmp on the slow tier")?;
                let source =
                    match absent_is_none(from.open(name, Access::Unnoticed)).at("open the slow copy of", label())? {
                        Some(source) => source,
                        // An object that is being placed, or that another program has removed.
                        None if content.object().needs_slow() => {
                            self.slow.object(content.object().tail()).at("open the slow copy of", label())?
                        }
                        None => {
                            self.copy_again(content);
                            return Ok(None);
                        }
                    };
                let to = copy_name(lsn, 0);
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
                let id = stat.id();
                Copied { tmp: in_part(&part, &to), id, sum: copied.sum, known: Some(TmpStat::of(&stat)) }
            }
        };
        // It may have been lost meanwhile: then it stays lost.
        let mut copy = content.copy.lock();
        if copy.is_none() {
            return Ok(None);
        }
        *copy = Some(Box::new(new.clone()));
        Ok(Some(new))
    }

    /// The next step's rename failed with EXDEV, although the view knows no border there: records the border in the
    /// view, and brings the node over.
    pub(crate) fn move_to_parts(&self, group: &mut Unfinished) -> Result<Mended> {
        let Some(Planned { step, effects, .. }) = group.next() else { return Ok(Mended::Soon) };
        let apart = |step: &Step| {
            Error::refused(
                format!(
                    "/{} belongs to another part of the slow tree, which no rename reaches",
                    escape(step_path(step))
                ),
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
            Some((lsn, content)) => self.copy_to_part(lsn, node, &content, dir)?,
            None => match self.spec_of(&tmp) {
                Some((lsn, spec, dir)) => {
                    let (from, name) = self.slow.tmp_of(&tmp).at("open", "tmp on the slow tier")?;
                    let made = self.make_one(lsn, &spec, dir)?;
                    remove_leftover(&*from, name)?;
                    Some(made)
                }
                None => return Err(apart(step)),
            },
        };
        match made {
            // Each round goes further down: parts may contain parts.
            Some(copied) if split(&copied.tmp).0 == split(&tmp).0 => Err(apart(step)),
            Some(copied) if self.renew(group, &copied)? => Ok(Mended::Again),
            _ => Ok(Mended::Soon),
        }
    }

    /// Finds the root of the part that contains a path: the topmost directory above it into whose `tmp` nothing can be
    /// renamed from the `tmp` of `from`. Only our own names are touched. `false`: there is none.
    fn find_part(&self, from: &[u8], path: &[u8]) -> Result<bool> {
        let label = || escape(path);
        let base = self.slow.tmp_at(from).at("open", "tmp on the slow tier")?;
        remove_leftover(&*base, PROBE)?;
        base.create(PROBE, 0o600).at("create", "file in tmp")?;
        let found = self.border_below(&*base, from, split(path).0);
        remove_leftover(&*base, PROBE)?;
        let Some((part, id)) = found? else { return Ok(false) };
        self.slow.ensure_tmp(&part, id)?;
        self.state.lock().view.add_part(id);
        tracing::info!(part = %escape(&part), for_ = label(), "a part of the slow tree that no rename reaches has its own .dlio-fs/tmp");
        Ok(true)
    }

    fn border_below(&self, base: &dyn Dir, from: &[u8], dirs: &[u8]) -> Result<Option<(Path, SlowId)>> {
        for part in dirs_above(dirs).chain([dirs]).filter(|part| part.len() > from.len()) {
            let label = || escape(part);
            let dir = self.slow.walk(part).at("open on slow", label())?;
            let stat = dir.stat(b".").at("stat on slow", label())?;
            let tmp = self.slow.parts.make_tmp(part, &*dir)?;
            match base.rename(PROBE, &*tmp, PROBE, RenameMode::Replace) {
                Err(e) if e.raw_os_error() == Some(Errno::EXDEV as i32) => {
                    return Ok(Some((part.to_vec(), stat.id())));
                }
                renamed => renamed.at("rename on slow", label())?,
            }
            tmp.rename(PROBE, base, PROBE, RenameMode::Replace).at("rename on slow", label())?;
            // Not a part: remove our directories, unless they hold files of other programs.
            if let Err(e) = self.slow.parts.remove_made(&*dir) {
                tracing::debug!(error = %e, "an empty .dlio-fs stays on the slow tier");
            }
        }
        Ok(None)
    }

    /// At a start: restores the parts that were found by EXDEV.
    pub(crate) fn restore_parts(&self) {
        for part in self.slow.parts.paths() {
            let recorded = self.slow.parts.root(&part);
            let stat = self.slow.stat(&part).ok().flatten();
            if let Some(stat) = stat.filter(|stat| recorded == Some(stat.ino)) {
                self.state.lock().view.add_part(stat.id());
            }
        }
    }
}

impl Met {
    /// Maps the EXDEV of a rename across a border to [`Met::Apart`].
    pub(crate) fn or_apart(met: io::Result<Met>) -> io::Result<Met> {
        match met {
            Err(e) if e.raw_os_error() == Some(Errno::EXDEV as i32) => Ok(Met::Apart),
            other => other,
        }
    }
}
