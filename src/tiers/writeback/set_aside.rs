//! Takes events that the slow tier refuses for good out of the order (P15), at an operator's command.
//!
//! `model/closure.rs` finds the nodes that must leave together. The view returns to the slow tier's state of them: an
//! older version, the former name, or nothing. What only the fast tier has is copied to `saved/` on the slow tier
//! first. A handle that is open on such a file keeps its bytes, as on a removed file.
//!
//! *Order:*
//!
//! 1. Commit what was written, and make it durable on fast (D1).
//! 2. Copy what only fast has to `saved/` on the slow tier, durably.
//! 3. Hold the publisher's lock and those of the files. End a held group before the unfinished batch, which voids its
//!    intents. If more was written meanwhile, start again at 1.
//! 4. Log `set-aside`, which names the events. A crash before its end changes nothing, except that the copies exist. A
//!    start leaves these events out (`recovery/left_out.rs`) until `applied` has passed the record.
//! 5. Update queue and view.
//! 6. Sync the log, and delete the copies in `tmp` and the objects that are no longer wanted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Context, Error, Result};
use crate::path::{Name, escape};
use crate::tiers::disk::Kind;
use crate::tiers::disk::layout::{remove_leftover, split};
use crate::tiers::disk::sync::RwLockWriteGuard;
use crate::tiers::log::record::{Attrs, Record, Spec};
use crate::tiers::model::closure::{Closure, closure, pending_at};
use crate::tiers::model::event::{Change, Event};
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::file::{FileState, Io};
use crate::tiers::objects::version::Content;
use crate::tiers::ops::names::add_subdir;
use crate::tiers::writeback::deadline::{SaveTask, SaveWhat, Saving};
use crate::tiers::writeback::group::Unfinished;
use crate::tiers::writeback::held_users::ranges;
use crate::tiers::writeback::open_tree::OpenTree;
use crate::tiers::{Cx, Ino, Lsn, ROOT, Tiers};

/// How often to retry because more was written meanwhile.
const TRIES: usize = 10;

/// The locks of the files that are set aside.
type FilesHeld<'a> = HashMap<Ino, RwLockWriteGuard<'a, Io>>;

/// The result of setting aside, real or predicted. Paths are from the root, escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAside {
    /// Events taken out of the order.
    pub events: u64,
    /// What only the fast tier has, and the view no longer shows; `bytes` counts its files.
    pub fast_only: Vec<String>,
    pub bytes: u64,
    /// All other nodes: the view shows them as the slow tier has them.
    pub returned: Vec<String>,
    /// Where the copies of `fast_only` are on the slow tier, from its root.
    pub saved: Option<String>,
}

/// What happens to the nodes of a closure.
#[derive(Default)]
struct AsideOutcome {
    /// Directories before their contents.
    fast_only: Vec<SaveTask>,
    returned: Vec<Ino>,
}

impl Tiers {
    /// Predicts what [`Tiers::set_aside`] would do now.
    pub fn would_set_aside(&self, cx: &Cx, path: &[u8]) -> Result<SetAside> {
        let start = self.nodes_at(cx, path)?;
        let st = self.state.lock();
        let closure = closure(&st, start);
        let outcome = outcome(&st, &closure);
        let mut said = told(&st, &outcome);
        said.events = closure.events.len() as u64;
        Ok(said)
    }

    /// Takes everything that is pending at and below a path out of the order. `copy`: saves what only fast has on the
    /// slow tier; otherwise it is lost. Waits for the slow tier without a limit; `saving` can cancel between two
    /// pieces.
    pub fn set_aside(&self, cx: &Cx, path: &[u8], copy: bool, saving: &Saving) -> Result<SetAside> {
        let start = self.nodes_at(cx, path)?;
        let (mut saved, mut place) = (Vec::new(), None);
        for _ in 0..TRIES {
            self.make_durable(cx, &start)?; // 1
            if copy {
                place = self.save_for(&start, saving, &mut saved)?.or(place); // 2
            }
            if let Some(done) = self.leave_order(cx, &start, copy.then_some(&saved))? {
                self.wake();
                return Ok(SetAside { saved: place, ..done });
            }
        }
        Err(Error::refused(
            format!("/{} is being written all the time", escape(path)),
            "end the writer, or close its file, and try again",
        ))
    }

    /// The inode at a path in the view, and those that had this path in pending events.
    fn nodes_at(&self, cx: &Cx, path: &[u8]) -> Result<HashSet<Ino>> {
        let found = |path: &[u8]| match self.at_path(cx, path, Ok) {
            Ok(ino) => Ok(Some(ino)),
            Err(Error::Posix(_)) => Ok(None),
            Err(other) => Err(other),
        };
        let mut start: HashSet<Ino> = found(path)?.into_iter().collect();
        let (dirs, name) = split(path);
        if let (Some(dir), Ok(name)) = (found(dirs)?, Name::new(name)) {
            let st = self.state.lock();
            start.extend(pending_at(&st, &(dir, name)));
        }
        let any = { !closure_is_empty(&closure(&self.state.lock(), start.clone())) };
        if any {
            return Ok(start);
        }
        Err(Error::refused(
            format!("nothing is pending at /{}", escape(path)),
            "dlio-fs queue lists the pending changes, and what holds the order",
        ))
    }

    /// Step 1.
    fn make_durable(&self, cx: &Cx, start: &HashSet<Ino>) -> Result<()> {
        for _ in 0..TRIES {
            let files: Vec<Arc<FileState>> = {
                let mut st = self.state.lock();
                let ahead = closure(&st, start.clone()).uncommitted;
                ahead.into_iter().filter_map(|ino| st.known_file(ino)).collect()
            };
            if files.is_empty() {
                break;
            }
            for file in files {
                self.commit_as_it_is(cx, &file)?;
            }
        }
        let of_it: HashSet<Lsn> = closure(&self.state.lock(), start.clone()).events.into_iter().collect();
        let pending = self.unsealed(|_, lsn| of_it.contains(&lsn), usize::MAX);
        self.seal_durably(cx, &pending)
    }

    /// Step 2, for what is not saved yet. Returns its place.
    fn save_for(&self, start: &HashSet<Ino>, saving: &Saving, saved: &mut Vec<SaveTask>) -> Result<Option<String>> {
        let mut wanted = {
            let st = self.state.lock();
            outcome(&st, &closure(&st, start.clone())).fast_only
        };
        wanted.retain(|one| !saved.contains(one));
        if wanted.is_empty() {
            return Ok(None);
        }
        let place = self.save_all(&wanted, saving)?;
        saved.extend(wanted);
        Ok(Some(place))
    }

    /// Steps 3 to 6. `saved`: must include all that only fast has. `None`: more was written meanwhile.
    fn leave_order(&self, cx: &Cx, start: &HashSet<Ino>, saved: Option<&Vec<SaveTask>>) -> Result<Option<SetAside>> {
        let mut unfinished = self.writeback.unfinished.lock();
        self.end_group_for(&mut unfinished, start)?; // 3
        let files: Vec<Arc<FileState>> = {
            let mut st = self.state.lock();
            let mut inodes: Vec<Ino> = closure(&st, start.clone()).inodes.into_iter().collect();
            inodes.sort_unstable();
            // Every file, including removed ones that are not open: its lock keeps writers out.
            inodes.into_iter().filter_map(|ino| st.file(ino)).collect()
        };
        let mut ios: FilesHeld<'_> = files.iter().map(|file| (file.ino, file.io.write())).collect();
        let mut st = self.state.lock();
        let closure = closure(&st, start.clone());
        let outcome = outcome(&st, &closure);
        let is_held = |ino: &Ino| st.view.get(*ino).is_none_or(|node| node.kind != Kind::File || ios.contains_key(ino));
        let is_ready = |one: &SaveTask| {
            let object = ios.get(&one.ino).and_then(|io| io.object());
            let is_whole =
                |content: &Arc<Content>| content.is_intact() && content.is_sealed() && object == Some(content.object());
            one.version().is_none_or(is_whole) && saved.is_none_or(|saved| saved.contains(one))
        };
        let is_all = closure.inodes.iter().all(is_held) && outcome.fast_only.iter().all(is_ready);
        if !closure.uncommitted.is_empty() || !is_all {
            return Ok(None);
        }
        let said = SetAside { events: closure.events.len() as u64, ..told(&st, &outcome) };
        let lsn = self.log.append(&[Record::SetAside { events: ranges(closure.events.iter().copied()) }])?; // 4
        st.note_set_aside(outcome.fast_only.iter().map(|one| one.ino), lsn);
        // Before any call can see the events gone: an fsync must find them set aside, not published.
        self.counters.set_aside.fetch_add(said.events, Ordering::Relaxed);
        let (taken, touched) = self.follow_set_aside(&mut st, &closure, &mut ios); // 5
        drop(st);
        drop(ios);
        if !left_out!(AsideDurable) {
            self.log.sync(self.log.last())?; // 6
        }
        drop(unfinished);
        self.clean_up_set_aside(cx, taken, &touched)?;
        Ok(Some(said))
    }

    /// Ends a held-up group in front of its next batch; the intents of the rest are void after `applied`.
    pub(super) fn end_group_for(&self, unfinished: &mut Option<Unfinished>, start: &HashSet<Ino>) -> Result<()> {
        self.stop_filling();
        if let Some(group) = unfinished.as_mut() {
            let begun = !group.followed && group.is_inside_batch();
            if begun {
                let upto = group.upto;
                let of_it = closure(&self.state.lock(), start.clone()).events.iter().any(|lsn| *lsn <= upto);
                return if of_it { Err(half_done()) } else { Ok(()) };
            }
            if group.places_filled() {
                let step = group.steps().next().map(|step| OpenTree::new(&self.slow).has_applied(step)).transpose();
                if step.at("stat", "tmp on the slow tier")?.flatten() != Some(false) {
                    // All of it may already be on the slow tree.
                    return Err(half_done());
                }
            }
            if !group.followed {
                self.cut(group);
            }
            if self.apply_group(group)? {
                self.finish_group(unfinished)?;
            }
        }
        if !self.state.lock().is_inside_batch() { Ok(()) } else { Err(half_done()) }
    }

    /// Step 5. Returns the events, and the nodes that may no longer be needed.
    fn follow_set_aside(
        &self,
        st: &mut EngineState,
        closure: &Closure,
        ios: &mut FilesHeld<'_>,
    ) -> (Vec<Event>, HashSet<Ino>) {
        let taken = st.remove_events(&closure.events, self.log.last());
        let of_it: HashSet<Lsn> = closure.events.iter().copied().collect();
        st.checkpoints.change(|index| index.set_aside(|lsn| of_it.contains(&lsn)));
        for event in &taken {
            if let Change::Content { content, .. } = &event.change {
                // A copy in progress finds that it is no longer wanted.
                content.set_overwritten();
            }
        }
        let with_object: Vec<Ino> = ios.iter().filter(|(_, io)| io.object().is_some()).map(|(ino, _)| *ino).collect();
        let detached: HashMap<Ino, Ino> =
            with_object.iter().filter_map(|ino| Some((*ino, st.view.detach(*ino)?))).collect();
        let touched = return_names(st, closure, &detached);
        for node in detached.values() {
            // Names that hid the slow node do not count.
            if let Some(node) = st.view.get_mut(*node) {
                let names = node.links.len().max(1) as u32;
                node.change_meta(|meta| meta.nlink = names);
            }
        }
        for ino in &with_object {
            if let Some(io) = ios.get_mut(ino) {
                (io.has_event, io.interrupted) = (false, false);
            }
            if let Some(node) = st.view.get_mut(*ino).filter(|node| node.links.is_empty()) {
                node.change_meta(|meta| meta.nlink = 0);
            }
        }
        for ino in closure.inodes.iter().filter(|ino| !with_object.contains(ino)) {
            st.view.give_back(*ino);
            st.in_place.forget_overtaken(*ino);
        }
        (taken, touched)
    }

    fn clean_up_set_aside(&self, cx: &Cx, taken: Vec<Event>, touched: &HashSet<Ino>) -> Result<()> {
        self.let_all_go();
        let lsns: HashSet<Lsn> = taken.iter().map(|event| event.lsn).collect();
        self.counters.notes.forget(&lsns);
        for event in &taken {
            let tmp = match &event.change {
                Change::Content { content, .. } if !content.object().needs_slow() => {
                    content.copy.lock().take().map(|copied| copied.tmp)
                }
                _ => None,
            };
            let removed = tmp.map(|tmp| {
                let (dir, name) = self.slow.tmp_of(&tmp).at("open", "tmp on the slow tier")?;
                remove_leftover(&*dir, name)
            });
            if let Some(Err(error)) = removed {
                tracing::debug!(%error, "a copy of what was set aside stays in tmp until the next start");
            }
        }
        let mut st = self.state.lock();
        for ino in touched.iter().filter(|ino| **ino != ROOT) {
            self.settle_lost(&mut st, *ino);
        }
        touched.iter().for_each(|ino| st.view.collect(*ino));
        drop(st);
        self.delete_unreferenced(cx)
    }
}

/// Restores the view's names that changed.
fn return_names(st: &mut EngineState, closure: &Closure, detached: &HashMap<Ino, Ino>) -> HashSet<Ino> {
    let now_is = |ino: Ino| detached.get(&ino).copied().unwrap_or(ino);
    let mut places: HashMap<DirEntryKey, Option<Ino>> =
        closure.places.iter().map(|(place, who)| (place.clone(), who.map(now_is))).collect();
    for ino in detached.keys() {
        let links = st.view.get(*ino).map(|node| node.links.to_vec()).unwrap_or_default();
        for place in links {
            let there = st.slot(&place).and_then(|slot| slot.slow());
            places.entry(place).or_insert(there);
        }
    }
    let mut touched: HashSet<Ino> = closure.inodes.iter().chain(detached.values()).copied().collect();
    let is_dir = |st: &EngineState, ino: Option<Ino>| {
        i32::from(ino.and_then(|ino| st.view.get(ino)).is_some_and(|node| node.kind == Kind::Dir))
    };
    for ((dir, name), who) in places {
        if st.view.get(dir).is_none_or(|node| node.dir.is_none()) {
            continue;
        }
        let viewed = st.slot(&(dir, name.clone())).and_then(|slot| slot.view());
        touched.extend([Some(dir), who, viewed].into_iter().flatten());
        if viewed == who {
            continue;
        }
        let by = is_dir(st, who) - is_dir(st, viewed);
        st.view.set_view(dir, &name, who);
        if by != 0 {
            add_subdir(st, dir, by);
        }
    }
    touched
}

fn closure_is_empty(closure: &Closure) -> bool {
    closure.events.is_empty() && closure.uncommitted.is_empty()
}

fn outcome(st: &EngineState, closure: &Closure) -> AsideOutcome {
    let of_it = |event: &&Event| closure.events.binary_search(&event.lsn).is_ok();
    let (mut made, mut changed) = (HashSet::new(), HashSet::new());
    for event in st.queue.events().iter().filter(of_it) {
        if let Change::Make { ino, .. } = event.change {
            made.insert(ino);
        }
        changed.extend(event.change.inodes());
    }
    let mut outcome = AsideOutcome::default();
    for ino in closure.inodes.iter().filter(|ino| changed.contains(ino) || closure.uncommitted.contains(ino)) {
        let newest = st.queue.newest_version(*ino).map(|(_, content)| SaveWhat::Version(content.clone()));
        let node = || made.contains(ino).then(|| spec_of(st, *ino)).flatten().map(SaveWhat::Node);
        // A node without a name is not needed once its handles are closed.
        match st.view.path(*ino).zip(newest.or_else(node)) {
            Some((path, what)) => outcome.fast_only.push(SaveTask { path, ino: *ino, what }),
            None => outcome.returned.push(*ino),
        }
    }
    outcome.fast_only.sort_by_key(|one| (depth(st, one.ino), one.ino));
    outcome.returned.sort_unstable();
    outcome
}

fn told(st: &EngineState, outcome: &AsideOutcome) -> SetAside {
    let path = |ino: &Ino| st.view.path(*ino).or_else(|| st.view.slow_path(*ino)).map(|path| escape(&path));
    SetAside {
        fast_only: outcome.fast_only.iter().map(|one| escape(&one.path)).collect(),
        bytes: outcome.fast_only.iter().filter_map(SaveTask::version).map(|content| content.size).sum(),
        returned: outcome.returned.iter().filter_map(path).collect(),
        ..SetAside::default()
    }
}

fn depth(st: &EngineState, ino: Ino) -> usize {
    let (mut depth, mut at) = (0, ino);
    while at != ROOT {
        depth += 1;
        at = st.view.get(at).and_then(|node| node.links.first()).map_or(ROOT, |link| link.0);
    }
    depth
}

/// The spec of a node other than a regular file, from the view.
fn spec_of(st: &EngineState, ino: Ino) -> Option<Spec> {
    let node = st.view.get(ino)?;
    let meta = node.meta();
    let xattrs = node.xattrs().into_iter().flatten();
    let xattrs = xattrs.filter_map(|(key, (value, _))| Some((key.clone(), value.clone()?))).collect();
    let attrs = Attrs { perm: meta.perm, uid: meta.uid, gid: meta.gid, mtime: meta.mtime, xattrs };
    Some(Spec { kind: node.kind, attrs, rdev: meta.rdev, target: node.target().to_vec() })
}

fn half_done() -> Error {
    Error::refused(
        "a batch with a part of it is half done on the slow tier",
        "allow the refused change on the slow tier once; then it continues by itself",
    )
}
