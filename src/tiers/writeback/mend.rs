//! Repairs what other programs remove while we publish: copies that waited in `tmp`, for instance victims of a clean-up
//! of old files, and directories that pending changes need.
//!
//! - If nothing of the step's batch is done, the group ends before the batch ([`Tiers::cut`]). The rest is planned
//!   anew, with the version that the drain copies again, or with a newer one if those bytes are gone.
//! - If the batch is half done, the drain copies the version again; other nodes are made here. The intent is logged
//!   again, durably, with the new inode number ([`Tiers::renew`]), before the step is applied. If the version's bytes
//!   are gone, the step is skipped; a newer version follows.
//! - An object in `tmp` itself was the only copy. Nothing is deleted; the order waits until the file is written again
//!   or removed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::error::{Context, Errno, Error, Result};
use crate::path::escape;
use crate::tiers::disk::errors::is_elsewhere;
use crate::tiers::disk::layout::dirs_above;
use crate::tiers::disk::layout::{remove_leftover, split};
use crate::tiers::disk::{Dir, Kind, RenameMode, SlowId, acl};
use crate::tiers::log::record::{Attrs, Path, Spec, Step};
use crate::tiers::model::event::Change;
use crate::tiers::model::publish_plan::{Effect, Planned};
use crate::tiers::objects::parts::{bare, copied_event, in_part, lane_of};
use crate::tiers::objects::version::{Content, Copied};
use crate::tiers::writeback::group::Unfinished;
use crate::tiers::writeback::step::{Met, step_path};
use crate::tiers::{Ino, Lsn, ROOT, Tiers};

/// How often a version may vanish from `tmp` before it is reported as what holds the order.
const VANISHES_MAX: u32 = 3;
/// In `tmp`: a directory that is being made again. Only one is made at a time.
const ANEW: &[u8] = b"d";

/// The outcome for a step whose node is gone.
pub(crate) enum Mended {
    /// There is something to place again.
    Again,
    /// The drain will copy it again.
    Soon,
    /// The group ends in front of the step's batch.
    Cut,
    Never(Met),
}

impl Tiers {
    /// If the next step's copy had vanished and the drain has copied it again, logs the intent again with the new copy.
    /// `None`: no such case.
    pub(crate) fn adopt_new_copy(&self, group: &mut Unfinished) -> Result<Option<Mended>> {
        let Some((lsn, content)) = group.next_content() else { return Ok(None) };
        let Some(Step::Place { tmp, id, node, .. }) = group.next().map(|next| &next.step) else { return Ok(None) };
        let (tmp, id, node) = (tmp.clone(), *id, *node);
        let base = base_of(&tmp);
        let copied = content.copy.lock().as_deref().cloned();
        match copied {
            // Another stream may have copied it, or the new copy may have got the same inode number.
            Some(copied)
                if is_same_version(&copied.tmp, base) && (bare(&copied.tmp), copied.id.1) != (bare(base), id) =>
            {
                if self.renew(group, &copied)? {
                    return Ok(Some(Mended::Again));
                }
                self.copy_again(&content);
                self.state.lock().queue.require_copy(node, lsn);
                Ok(Some(Mended::Soon))
            }
            Some(_) => Ok(None),
            None if !group.is_inside_batch() => {
                self.cut(group);
                Ok(Some(Mended::Cut))
            }
            None if content.is_intact() => {
                self.state.lock().queue.require_copy(node, lsn);
                Ok(Some(Mended::Soon))
            }
            // Overwritten since: its bytes are gone. The newer version will be published in its own turn.
            None => Ok(Some(Mended::Never(Met::Lost))),
        }
    }

    /// The version's copy is gone: lets the drain copy it again, if that is possible.
    pub(crate) fn copy_again(&self, content: &Content) {
        match content.object().needs_slow() {
            true => content.lose(),
            false => *content.copy.lock() = None,
        }
        self.state.lock().queue.search_copies_anew();
        self.wake();
    }

    /// The next step has nothing to place: another program has removed its node from `tmp`.
    pub(crate) fn mend(&self, group: &mut Unfinished) -> Result<Mended> {
        let Some(Planned { step, upto, .. }) = group.next() else { return Ok(Mended::Never(Met::Gone)) };
        let Step::Place { tmp, node, path, .. } = step.clone() else { return Ok(Mended::Never(Met::Gone)) };
        if bare(&tmp).starts_with(b"l") {
            // A link to a file that is, or was, in the tree.
            let again = |tmp: &[u8]| {
                let (into, tmp) = self.slow.tmp_of(tmp)?;
                self.at_slow(node, |path, id| self.slow.act(path, id, |inode| inode.link(&*into, tmp)))
            };
            let linked = self.link_again(&tmp, again).at("link into tmp", escape(&path))?;
            return Ok(if linked { Mended::Again } else { Mended::Never(Met::Gone) });
        }
        let lsn = group.next_content().map_or(*upto, |(lsn, _)| lsn);
        let told = self.report_vanished(lsn, step);
        // Tried however often it has vanished: the removals may have stopped.
        let mended = self.make_again(group, lsn)?;
        told.map(|()| mended)
    }

    /// [`Tiers::mend`], except for links to files in the tree.
    fn make_again(&self, group: &mut Unfinished, lsn: Lsn) -> Result<Mended> {
        let Some(Step::Place { tmp, id, node, path, .. }) = group.next().map(|next| next.step.clone()) else {
            return Ok(Mended::Never(Met::Gone));
        };
        let label = || escape(&path);
        if !group.is_inside_batch() {
            if let Some((_, content)) = group.next_content() {
                self.copy_again(&content);
            }
            self.forget_vanished(group.applied())?;
            self.cut(group);
            return Ok(Mended::Cut);
        }
        if let Some(placed) = group.placed(node, id) {
            // It is already in place, under another name of the file.
            let linked = self.link_again(&tmp, |tmp| self.slow.link_into(&placed, id, tmp));
            if linked.at("link into tmp", label())? {
                return Ok(Mended::Again);
            }
        }
        match group.next_content() {
            Some((_, content)) if content.object().needs_slow() => match self.is_superseded(node, lsn) {
                true => Ok(Mended::Never(Met::Lost)),
                false => Err(Error::refused(
                    format!("somebody else removed the bytes of /{} from .dlio-fs/tmp on the slow tier", escape(&path)),
                    "write the file again, or remove it; and exclude .dlio-fs from clean-ups of old files",
                )),
            },
            Some((_, content)) => {
                self.copy_again(&content);
                self.state.lock().queue.require_copy(node, lsn);
                Ok(Mended::Soon)
            }
            None => match self.spec_of(&tmp) {
                Some((lsn, spec, dir)) => {
                    let copied = self.make_one(lsn, &spec, dir)?;
                    Ok(if self.renew(group, &copied)? { Mended::Again } else { Mended::Soon })
                }
                None => Ok(Mended::Never(Met::Gone)),
            },
        }
    }

    /// `false`: no inode is left to link.
    fn link_again(&self, tmp: &[u8], link: impl Fn(&[u8]) -> std::io::Result<()>) -> std::io::Result<bool> {
        let linked = match link(tmp) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                self.slow.tmp_of(tmp).and_then(|(dir, name)| dir.unlink(name)).and_then(|()| link(tmp))
            }
            linked => linked,
        };
        match linked {
            Err(e) if is_elsewhere(&e) => Ok(false),
            linked => linked.map(|()| true),
        }
    }

    /// The `make` event for which a node in `tmp` was made, and the directory it goes to.
    pub(crate) fn spec_of(&self, tmp: &[u8]) -> Option<(Lsn, Arc<Spec>, Ino)> {
        let number = std::str::from_utf8(bare(base_of(tmp)).strip_prefix(b"m")?).ok()?;
        let lsn = Lsn::from_str_radix(number, 16).ok()?;
        let st = self.state.lock();
        match &st.queue.event(lsn)?.change {
            Change::Make { spec, at, .. } => Some((lsn, spec.clone(), at.0)),
            _ => None,
        }
    }

    /// Whether the file has a newer version, or no name any more.
    fn is_superseded(&self, node: Ino, lsn: Lsn) -> bool {
        let st = self.state.lock();
        let newer = st.queue.newest_version(node).is_some_and(|(newest, _)| *newest > lsn);
        newer || st.view.get(node).is_none_or(|node| node.links.is_empty())
    }

    /// Puts a newly made node in place of the next step's, in that step and all later ones, and logs the intents of the
    /// group again. The node is identified by its name in `tmp`, and in steps that change it by its names in the tree:
    /// the inode number of a vanished copy may have been given to another node of the group. `false`: the new node has
    /// vanished, too, and nothing has changed.
    pub(crate) fn renew(&self, group: &mut Unfinished, new: &Copied) -> Result<bool> {
        let done = group.met.len();
        let Some(Step::Place { tmp, id: old, .. }) = group.next().map(|next| next.step.clone()) else {
            return Ok(false);
        };
        let was = base_of(&tmp);
        let mut paths: HashSet<Path> = HashSet::new();
        for (at, planned) in group.planned.iter().enumerate() {
            let Step::Place { tmp, path, .. } = &planned.step else { continue };
            if base_of(tmp) != was {
                continue;
            }
            paths.insert(path.clone());
            let further = tmp.strip_prefix(was).unwrap_or_default();
            if at >= done && !further.is_empty() && !self.link_further(&new.tmp, further)? {
                return Ok(false);
            }
        }
        for Planned { step, effects, .. } in group.planned.iter_mut().skip(done) {
            let id = match step {
                Step::Place { tmp, id, known, .. } if base_of(tmp) == was => {
                    *known = new.known;
                    *tmp = [&new.tmp[..], tmp.strip_prefix(was).unwrap_or_default()].concat();
                    id
                }
                Step::Attr { path, id, .. } | Step::Xattr { path, id, .. } if *id == old && paths.contains(path) => id,
                _ => continue,
            };
            *id = new.id.1;
            for effect in effects {
                if let Effect::Identity(_, id) = effect {
                    *id = new.id;
                }
            }
        }
        self.slow.sync_tmps([&new.tmp[..]].into_iter())?;
        let last = self.log.append(&group.intents())?;
        self.note_intents(last);
        self.log.sync(last)?;
        self.journal_group(group);
        Ok(true)
    }

    /// Gives a copy in `tmp` a further name. `false`: the copy has vanished.
    pub(crate) fn link_further(&self, copy: &[u8], further: &[u8]) -> Result<bool> {
        let name = [copy, further].concat();
        let (dir, name) = self.slow.tmp_of(&name).at("open", "tmp on the slow tier")?;
        remove_leftover(&*dir, name)?;
        match dir.link(bare(copy), &*dir, name) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            linked => linked.at("link", "copy in tmp").map(|()| true),
        }
    }

    /// Ends the group in front of the next step, the first of its batch: the applied part is finished, the rest is
    /// planned anew. The intents of the rest are void after the next `applied`.
    pub(crate) fn cut(&self, group: &mut Unfinished) {
        let rest = group.planned.split_off(group.met.len());
        let Some(first) = rest.first().map(|planned| planned.upto) else { return };
        let dropped = group.batches.split_off(group.batches.partition_point(|batch| batch.upto < first));
        if group.filled.take().is_some() {
            match &group.planned[..] {
                [] => self.empty_filled(&dropped, &rest),
                placed => self.empty_filled(&dropped, placed),
            }
        }
        for (_, content) in dropped.iter().flat_map(|batch| batch.contents.values()) {
            if content.object().needs_slow() {
                self.slow.placed(content.object().tail());
            }
        }
        group.upto = group.batches.last().map_or_else(|| self.state.lock().queue.applied(), |batch| batch.upto);
        group.left.extend(rest.into_iter().filter_map(|planned| match planned.step {
            // A node is made again, perhaps with another number; a copy stays.
            Step::Place { tmp, object, .. } if object.is_none() || bare(&tmp).contains(&b'.') => Some(tmp),
            _ => None,
        }));
    }

    /// Lets versions whose copies are no longer in `tmp` be copied again; an object that was in `tmp` itself is lost.
    /// `done`: steps that have placed theirs.
    pub(crate) fn forget_vanished(&self, done: &[Planned]) -> Result<()> {
        let copies: Vec<(Vec<u8>, Arc<Content>)> = {
            let st = self.state.lock();
            let contents = st.queue.all_versions();
            let copy = |content: &Arc<Content>| Some((content.copy.lock().as_ref()?.tmp.clone(), content.clone()));
            contents.filter_map(|(_, content)| copy(content)).collect()
        };
        let mut kept: HashSet<Vec<u8>> = HashSet::new();
        let place = |tmp: &'_ [u8]| (split(tmp).0.to_vec(), lane_of(bare(tmp)).map(<[u8]>::to_vec));
        let places: HashMap<_, &[u8]> = copies.iter().map(|(tmp, _)| (place(tmp), &tmp[..])).collect();
        for ((part, lane), tmp) in places {
            let listed = match self.slow.tmp_of(tmp).and_then(|(dir, _)| dir.list()) {
                // The lane was removed with all its copies.
                Err(e) if lane.is_some() && is_elsewhere(&e) => Vec::new(),
                listed => listed.at("list", "tmp on the slow tier")?,
            };
            kept.extend(listed.into_iter().map(|entry| in_part(&part, &entry.name)));
        }
        kept.extend(done.iter().filter_map(|planned| match &planned.step {
            Step::Place { tmp, .. } => Some(base_of(tmp).to_vec()),
            _ => None,
        }));
        copies.iter().filter(|(tmp, _)| !kept.contains(tmp)).for_each(|(_, content)| self.copy_again(content));
        self.wake();
        Ok(())
    }

    /// Fails if it has vanished too often.
    fn report_vanished(&self, lsn: Lsn, step: &Step) -> Result<()> {
        let path = escape(step_path(step));
        tracing::warn!(
            path,
            "somebody else removed a file to be published from .dlio-fs/tmp on the slow tier; it is copied again"
        );
        self.counters
            .conflict(format!("/{path}: removed from .dlio-fs/tmp on the slow tier by somebody else, made again"));
        if self.counters.notes.vanished(lsn) > VANISHES_MAX { Err(vanishes(step)) } else { Ok(()) }
    }

    /// Makes the directories above `path` that another program has removed, as the view has them (P15). Returns those
    /// that were missing.
    pub(crate) fn make_parents(&self, path: &[u8]) -> Result<Vec<(Ino, SlowId)>> {
        let (mut dir, mut at, mut made) = (self.slow.root.clone(), Some(ROOT), Vec::new());
        for part in dirs_above(path) {
            let (name, above) = (split(part).1, at);
            at = at.and_then(|at| self.state.lock().view.below_on_slow(at, name));
            dir = match dir.dir(name) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    let (there, id) = self.make_dir_anew((&*dir, above), name, at, part)?;
                    made.extend(at.map(|ino| (ino, id)));
                    there
                }
                other => other.at("open on slow", escape(part))?,
            };
        }
        Ok(made)
    }

    /// Makes the directory in `tmp`, complete, and renames it into place.
    fn make_dir_anew(
        &self,
        (above, above_ino): (&dyn Dir, Option<Ino>),
        name: &[u8],
        ino: Option<Ino>,
        path: &[u8],
    ) -> Result<(Arc<dyn Dir>, SlowId)> {
        let label = || escape(path);
        let (_, tmp) = self.tmp_for(above_ino.unwrap_or(ROOT))?;
        self.make_whole(&*tmp, ANEW, &self.spec_of_dir(ino))?;
        match tmp.rename(ANEW, above, name, RenameMode::NoReplace) {
            // Another program made it first.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => remove_leftover(&*tmp, ANEW)?,
            Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => {
                tmp.rename(ANEW, above, name, RenameMode::Replace).at("make anew on slow", label())?;
            }
            renamed => renamed.at("make anew on slow", label())?,
        }
        above.sync().at("fsync on slow", label())?;
        let dir = above.dir(name).at("open on slow", label())?;
        let stat = dir.stat(b".").at("stat on slow", label())?;
        let id = stat.id();
        if let Some(ino) = ino {
            self.state.lock().view.made_anew(ino, id);
            self.slow.forget_dir(ino);
        }
        let path = escape(path);
        if self.order.is_shared() {
            tracing::info!(path, "another member has removed a directory with pending changes; it is made again");
            return Ok((dir, id));
        }
        tracing::warn!(
            path,
            "a directory with pending changes was removed on the slow tier by somebody else; it is made again"
        );
        self.counters
            .conflict(format!("/{path}: removed on the slow tier by somebody else, made again for pending changes"));
        Ok((dir, id))
    }

    /// If nothing is known of the directory, only its owner gets access: it may have been private.
    fn spec_of_dir(&self, ino: Option<Ino>) -> Spec {
        let st = self.state.lock();
        let node = ino.and_then(|ino| st.view.get(ino));
        let attrs = node.map_or_else(
            || Attrs {
                perm: 0o700,
                uid: nix::unistd::geteuid().as_raw(),
                gid: nix::unistd::getegid().as_raw(),
                mtime: self.file_time(),
                xattrs: Vec::new(),
            },
            |node| {
                let meta = node.meta();
                let kept = node.xattrs().into_iter().flatten();
                let mut xattrs: Vec<_> =
                    kept.filter_map(|(key, (value, _))| Some((key.clone(), value.clone()?))).collect();
                let default = node.dir.as_ref().and_then(|dir| dir.default_acl.clone().flatten());
                if let Some(list) = default.filter(|_| !xattrs.iter().any(|(key, _)| key == acl::DEFAULT)) {
                    xattrs.push((acl::DEFAULT.to_vec(), list));
                }
                Attrs { perm: meta.perm, uid: meta.uid, gid: meta.gid, mtime: meta.mtime, xattrs }
            },
        );
        Spec { kind: Kind::Dir, attrs, rdev: 0, target: Vec::new() }
    }
}

/// The copy of which a name in `tmp` is a further link.
pub(crate) fn base_of(tmp: &[u8]) -> &[u8] {
    let name = bare(tmp);
    let further = name.iter().position(|byte| *byte == b'.').and_then(|dot| name.get(dot..)).unwrap_or_default();
    tmp.strip_suffix(further).unwrap_or(tmp)
}

/// Whether two names in `tmp` are of one version, perhaps in two lanes or parts.
fn is_same_version(one: &[u8], other: &[u8]) -> bool {
    let (one, other) = (bare(one), bare(other));
    one == other || copied_event(one).is_some_and(|event| copied_event(other) == Some(event))
}

pub(crate) fn vanishes(step: &Step) -> Error {
    Error::refused(
        format!("the copy of /{} keeps vanishing from .dlio-fs/tmp on the slow tier", escape(step_path(step))),
        "exclude .dlio-fs from clean-ups of old files; it is made again until it is published",
    )
}
