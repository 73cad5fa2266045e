//! A group of changes that a start finds half done and cannot finish: one of its steps is refused, or its node is gone.
//! The start takes the group over, and the daemon continues it like one of its own (P15).
//!
//! 1. Before the replay ([`Recovery::revert`]) the view learns the slow tree as it was before the group: finished
//!    steps are undone in the view. So their events are replayed as usual.
//! 2. The intents are logged again behind the start's `applied`.
//! 3. After the replay ([`Recovery::rebuild_group`]) the group is rebuilt from the inodes and names that the view has now.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Context, Result};
use crate::path::{Name, escape};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::dirs_above;
use crate::tiers::disk::layout::split;
use crate::tiers::disk::{FileId, Kind, Stat, Time};
use crate::tiers::log::record::{ObjectId, Path, Step};
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::publish_plan::{Batch, Effect, Planned};
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::parts::{bare, copied_event};
use crate::tiers::objects::version::{Content, Copied};
use crate::tiers::recovery::state::{Half, Recovery};
use crate::tiers::writeback::group::Unfinished;
use crate::tiers::writeback::mend::base_of;
use crate::tiers::writeback::step::{Met, step_path};
use crate::tiers::{Ino, Lsn, ROOT};

impl Recovery<'_> {
    pub(crate) fn revert(&mut self) -> Result<()> {
        let Some(half) = self.half.take() else { return Ok(()) };
        // For lookups below a directory that the group has moved.
        self.tiers.slow.set_moving(self.tiers.moves(half.steps.iter()));
        for (at, step) in half.steps.iter().enumerate() {
            if half.has_changed(at) || matches!(half.met.get(at), Some(Met::Merged(_))) {
                self.revert_one(&half, at as u64, step)?;
            }
        }
        self.half = Some(half);
        Ok(())
    }

    fn revert_one(&mut self, half: &Half, at: u64, step: &Step) -> Result<()> {
        let tiers = self.tiers;
        let slow = &tiers.slow;
        let stat = |path: &[u8]| slow.stat(path).at("stat on slow", escape(path));
        match step {
            Step::Place { tmp, id, path, over, object, .. } => {
                let object = object.filter(|object| object.needs_slow());
                if let Some(object) = object
                    && stat(path)?.is_some_and(|there| there.file() == *id)
                {
                    slow.place_at(object.tail(), path).at("open on slow", escape(path))?;
                }
                let left = absent_is_none(slow.tmp_of(tmp).and_then(|(dir, name)| dir.stat(name)));
                let left = left.at("stat", "tmp on the slow tier")?;
                let before =
                    over.map(|over| left.filter(|left| left.file() == over).unwrap_or_else(|| gone(Kind::File, at)));
                self.was(path, before)
            }
            Step::Remove { path, id, dir } => {
                let other = half.placed(*id).map(|path| stat(path)).transpose()?.flatten();
                let kind = if *dir { Kind::Dir } else { Kind::File };
                let before = other.filter(|other| other.file() == *id).unwrap_or_else(|| gone(kind, at));
                self.was(path, Some(before))
            }
            Step::Move { path, to, over, .. } => {
                let moved = stat(to)?;
                let kind = moved.map_or(Kind::File, |moved| moved.kind);
                self.was(to, over.map(|_| gone(kind, at)))?;
                self.was(path, moved)
            }
            Step::Swap { a, b, .. } => {
                let (at_a, at_b) = (stat(a)?, stat(b)?);
                self.was(a, at_b)?;
                self.was(b, at_a)
            }
            Step::Link { to, .. } => self.was(to, None),
            Step::Attr { .. } | Step::Xattr { .. } => Ok(()),
        }
    }

    /// Enters into the view what the slow tree had under a name.
    fn was(&mut self, path: &[u8], stat: Option<Stat>) -> Result<()> {
        self.last_dir = None;
        let place = self.place(path)?;
        self.last_dir = None;
        // Below a directory that did not exist either.
        let Some((dir, name)) = place else { return Ok(()) };
        let mut st = self.tiers.state.lock();
        let (asked, applied) = (st.view.asked(self.uptime), st.queue.applied());
        let found = st.view.learn(dir, &name, stat.as_ref(), asked, applied);
        if let Some(dir) = found.and_then(|ino| st.view.get_mut(ino)).and_then(|node| node.dir.as_mut()) {
            // It was empty when it was removed.
            dir.known |= stat.is_some_and(|stat| stat.dev == 0);
        }
        Ok(())
    }

    pub(crate) fn rebuild_group(&mut self) {
        let Some(half) = self.half.take() else { return };
        let changed: Vec<bool> = (0..half.steps.len()).map(|at| half.has_changed(at)).collect();
        let Half { upto, steps, met, done } = half;
        let tiers = self.tiers;
        let group = {
            let mut st = tiers.state.lock();
            let mut parts = GroupParts::default();
            let planned: Vec<Planned> = steps
                .into_iter()
                .map(|step| {
                    let step = self.as_now(step);
                    let effects = parts.effects(&st, &step);
                    Planned { step, effects, upto }
                })
                .collect();
            parts.hide_links(&mut st, &planned, &changed);
            let events = 0..st.queue.index_behind(upto);
            let ahead = parts.contents.iter().filter(|(_, (lsn, _))| *lsn > upto).map(|(ino, (lsn, _))| (*ino, *lsn));
            let (ahead, contents) = (ahead.collect(), parts.contents);
            let batch = Batch { events, upto, ahead, contents, skipped: (0, 0) };
            Unfinished::taken_over(batch, planned, (met, done))
        };
        tracing::warn!("a group of changes was under way and is not finished; the mount continues it");
        tiers.resume_group(group);
    }

    /// The step with the view's inode for the one in the log.
    fn as_now(&self, mut step: Step) -> Step {
        if let Step::Place { node, .. } = &mut step {
            *node = self.met.get(node).copied().unwrap_or(*node);
        }
        step
    }
}

/// The parts of a group besides its steps.
#[derive(Default)]
struct GroupParts {
    contents: HashMap<Ino, (Lsn, Arc<Content>)>,
    /// The nodes that it brings to the slow tree, directories included.
    brought: HashMap<Path, Ino>,
}

impl GroupParts {
    /// The effects of a step on the view; see [`crate::tiers::model::publish_plan`].
    fn effects(&mut self, st: &EngineState, step: &Step) -> Vec<Effect> {
        let at = |path: &Path| self.place(st, path);
        let with = |path: &Path, id: FileId| st.view.at_slow((self.dev(st, path), id.ino));
        let there = |place: &DirEntryKey| st.view.get(place.0)?.dir.as_ref()?.slots.get(&place.1)?.slow();
        let name = |place: Option<DirEntryKey>, who: Option<Ino>| place.map(|place| Effect::Name(place, who));
        let touched = |ino: Option<Ino>| ino.map(Effect::Touched);
        let effects: Vec<Option<Effect>> = match step {
            Step::Place { id, path, node, .. } => {
                vec![name(at(path), Some(*node)), Some(Effect::Identity(*node, (self.dev(st, path), *id)))]
            }
            Step::Move { path, to, .. } => {
                let (from, to) = (at(path), at(to));
                let who = from.as_ref().and_then(there);
                vec![name(to.filter(|_| who.is_some()), who), name(from, None), touched(who)]
            }
            Step::Swap { a, b, a_id, b_id } => {
                let (a, b) = (at(a), at(b));
                let (at_a, at_b) = (a.as_ref().and_then(there), b.as_ref().and_then(there));
                let dev = self.dev(st, step_path(step));
                let identity = |who: Option<Ino>, slow: FileId| who.map(|who| Effect::Identity(who, (dev, slow)));
                vec![
                    name(b, at_a),
                    name(a, at_b),
                    identity(at_a, *a_id),
                    identity(at_b, *b_id),
                    touched(at_a),
                    touched(at_b),
                ]
            }
            Step::Link { path, to, id } => {
                let who = with(path, *id);
                vec![name(at(to).filter(|_| who.is_some()), who), touched(who)]
            }
            Step::Remove { path, .. } => {
                let place = at(path);
                let who = place.as_ref().and_then(there);
                vec![name(place, None), touched(who)]
            }
            Step::Attr { path, id, .. } | Step::Xattr { path, id, .. } => {
                vec![touched(if path.is_empty() { Some(ROOT) } else { with(path, *id) })]
            }
        };
        self.learn_step(st, step);
        effects.into_iter().flatten().collect()
    }

    /// Gives the version that a step places its copy: the drain makes no other one under that name.
    fn learn_step(&mut self, st: &EngineState, step: &Step) {
        let Step::Place { tmp, id, node, object, known, .. } = step else { return };
        self.brought.insert(step_path(step).to_vec(), *node);
        if let Some((lsn, content)) = object.and_then(|object| version(st, *node, tmp, object)) {
            let (tmp, id) = (base_of(tmp).to_vec(), (self.dev(st, step_path(step)), *id));
            *content.copy.lock() = Some(Box::new(Copied { tmp, id, sum: None, known: *known }));
            self.contents.insert(*node, (lsn, content));
        }
    }

    fn place(&self, st: &EngineState, path: &[u8]) -> Option<DirEntryKey> {
        let mut dir = ROOT;
        for part in dirs_above(path) {
            dir = match self.brought.get(part) {
                Some(brought) => *brought,
                None => st.view.below_on_slow(dir, split(part).1)?,
            };
        }
        st.view.get(dir)?.dir.as_ref()?;
        Some((dir, Name::new(split(path).1).ok()?))
    }

    /// The device of the node that has, or gets, this name.
    fn dev(&self, st: &EngineState, path: &[u8]) -> u64 {
        self.place(st, path).map_or(st.view.root_dev(), |(dir, _)| st.view.dev_of(dir))
    }

    /// Hides the links in `tmp` of nodes that the group moves. Those nodes have already lost or got names, which the
    /// replay counts once more.
    fn hide_links(&self, st: &mut EngineState, planned: &[Planned], changed: &[bool]) {
        for (Planned { step, .. }, changed) in planned.iter().zip(changed) {
            let (id, by) = match step {
                Step::Place { tmp, id, .. } if bare(tmp).starts_with(b"l") => (*id, -1),
                Step::Remove { id, dir: false, .. } if *changed => (*id, 1),
                Step::Link { id, .. } if *changed => (*id, -1),
                _ => continue,
            };
            let Some(node) = st.view.at_slow((self.dev(st, step_path(step)), id.ino)) else { continue };
            st.view.in_tmp.insert(node);
            if let Some(node) = st.view.get_mut(node) {
                node.change_meta(|meta| meta.nlink = meta.nlink.saturating_add_signed(by));
            }
        }
    }
}

fn version(st: &EngineState, node: Ino, tmp: &[u8], object: ObjectId) -> Option<(Lsn, Arc<Content>)> {
    let of = copied_event(bare(tmp));
    let is_it = |(lsn, content): &&(Lsn, Arc<Content>)| match of {
        Some(of) => *lsn == of,
        None => content.object().tail() == object.tail(),
    };
    st.queue.versions(node).filter(is_it).last().cloned()
}

/// A node that no longer exists: the view needs it until the event that has removed it is replayed. No file system of
/// the slow tier has this device.
fn gone(kind: Kind, number: u64) -> Stat {
    let time = Time::default();
    Stat {
        dev: 0,
        ino: number + 1,
        kind,
        perm: 0o700,
        nlink: if kind == Kind::Dir { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        birth: 0,
    }
}
