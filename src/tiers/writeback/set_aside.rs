//! Takes events that the slow tier refuses for good out of the order (P15), at an operator's command.
//!
//! `model/closure.rs` finds the nodes that must leave together.
//!
//! - A file with bytes that the slow tier lacks stays in the view with its object, under its present names. So does a
//!   directory, link or special file that the slow tier lacks. These nodes are *set aside*: they have no pending event,
//!   and eviction ignores them.
//! - For all other nodes the view returns to the state of the slow tier. If the slow tier has, or gets back, an older
//!   version under the name of a file that is set aside, that version becomes another node (`model/view.rs::detach`).
//!
//! *Order:*
//!
//! 1. Commit what was written, and make it durable on fast (D1).
//! 2. Copy the bytes to `saved/` on the slow tier, durably.
//! 3. Hold the publisher's lock and those of the files. End a held group before the unfinished batch, which voids its
//!    intents. If more was written meanwhile, start again at 1.
//! 4. In one append, log a `saved` record for each node that stays, and `set-aside`, which makes them count and names
//!    the events. A crash before its end changes nothing, except that the copies exist.
//! 5. Update queue and view.
//! 6. Sync the log, and delete the copies in `tmp` that are no longer wanted.
//!
//! *Later.* A start believes a `saved` record even after `applied` has passed it (`recovery/aside.rs`), so it need not
//! be repeated with each group. Before its log segment is dropped the record is logged again ([`Tiers::drop_log`]), and
//! the segment stays until `applied` has passed the repetition. So a start always finds a record older than everything
//! that it replays. A new version, a new name or a rename of such a file, or an entry put into such a directory, makes
//! it an event again ([`Tiers::take_up`]); a change of its attributes logs the record again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::error::{Context, Error, Result};
use crate::path::{Name, escape};
use crate::tiers::disk::Kind;
use crate::tiers::disk::layout::{remove_leftover, split};
use crate::tiers::log::record::{Attrs, Kept, Spec};
use crate::tiers::model::aside_nodes::Aside;
use crate::tiers::model::closure::{Closure, closure, pending_at};
use crate::tiers::model::event::{Change, Event};
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::attrs::own_xattrs;
use crate::tiers::objects::file::{Bytes, FileState, Io};
use crate::tiers::objects::version::Content;
use crate::tiers::ops::names::add_subdir;
use crate::tiers::writeback::deadline::{SaveTask, Saving};
use crate::tiers::writeback::group::Unfinished;
use crate::tiers::writeback::held_users::ranges;
use crate::tiers::writeback::open_tree::OpenTree;
use crate::tiers::{Cx, Ino, Lsn, ROOT, Tiers};

/// How often to try again because more was written meanwhile.
const TRIES: usize = 10;

/// The result of setting aside, real or predicted. Paths are from the root, escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAside {
    /// Events taken out of the order.
    pub events: u64,
    /// The nodes that stay in the view; `bytes` counts their files.
    pub kept: Vec<String>,
    pub bytes: u64,
    /// The nodes that the view shows as the slow tier has them again.
    pub returned: Vec<String>,
    /// Where the bytes are on the slow tier, from its root.
    pub saved: Option<String>,
}

/// What happens to the nodes of a closure.
#[derive(Default)]
struct AsideOutcome {
    /// The nodes that stay, with the newest version of each file.
    kept: Vec<(Ino, Option<Arc<Content>>)>,
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

    /// Takes everything that is pending at and below a path out of the order. `copy`: also saves the bytes on the slow
    /// tier. Waits for the slow tier as long as that takes; `saving` can end it between two pieces.
    pub fn set_aside(&self, cx: &Cx, path: &[u8], copy: bool, saving: &Saving) -> Result<SetAside> {
        let start = self.nodes_at(cx, path)?;
        let mut saved: Vec<(Arc<Content>, String)> = Vec::new();
        for _ in 0..TRIES {
            self.make_durable(cx, &start)?; // 1
            if copy {
                self.save_for(&start, saving, &mut saved)?; // 2
            }
            let is_saved = |content: &Arc<Content>| !copy || saved.iter().any(|(other, _)| Arc::ptr_eq(other, content));
            if let Some(mut done) = self.take_out_of_the_order(cx, &start, is_saved)? {
                done.saved = saved.last().map(|(_, place)| place.clone());
                self.wake();
                return Ok(done);
            }
        }
        Err(Error::refused(
            format!("/{} is being written all the time", escape(path)),
            "end the writer, or close its file, and try again",
        ))
    }

    /// The inode at a path in the view, and those that pending events had there.
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

    /// Step 2, for versions that are not saved yet.
    fn save_for(&self, start: &HashSet<Ino>, saving: &Saving, saved: &mut Vec<(Arc<Content>, String)>) -> Result<()> {
        let wanted: Vec<SaveTask> = {
            let st = self.state.lock();
            let outcome = outcome(&st, &closure(&st, start.clone()));
            let new = |content: &Arc<Content>| !saved.iter().any(|(other, _)| Arc::ptr_eq(other, content));
            let files = outcome.kept.into_iter().filter_map(|(ino, content)| Some((ino, content.filter(&new)?)));
            files.filter_map(|(ino, content)| Some(SaveTask { path: st.view.path(ino)?, ino, content })).collect()
        };
        if wanted.is_empty() {
            return Ok(());
        }
        let place = self.save_all(&wanted, saving)?;
        saved.extend(wanted.into_iter().map(|one| (one.content, place.clone())));
        Ok(())
    }

    /// Steps 3 to 6. `None`: more was written meanwhile.
    fn take_out_of_the_order(
        &self,
        cx: &Cx,
        start: &HashSet<Ino>,
        is_saved: impl Fn(&Arc<Content>) -> bool,
    ) -> Result<Option<SetAside>> {
        let mut unfinished = self.writeback.unfinished.lock();
        self.end_group_for(&mut unfinished, start)?; // 3
        let files: Vec<Arc<FileState>> = {
            let mut st = self.state.lock();
            let mut inodes: Vec<Ino> = closure(&st, start.clone()).inodes.into_iter().collect();
            inodes.sort_unstable();
            // Every file, including removed ones that are not open: its lock keeps others out.
            inodes.into_iter().filter_map(|ino| st.file(ino)).collect()
        };
        let mut ios: HashMap<Ino, _> = HashMap::new();
        for file in &files {
            ios.insert(file.ino, (file, file.io.write()));
        }
        let mut attrs: HashMap<Ino, Attrs> = HashMap::new();
        for (ino, (_, io)) in &mut ios {
            attrs.extend(self.attrs_of(cx, *ino, io)?.map(|attrs| (*ino, attrs)));
        }
        let mut st = self.state.lock();
        let closure = closure(&st, start.clone());
        let outcome = outcome(&st, &closure);
        let is_held = |ino: &Ino| st.view.get(*ino).is_none_or(|node| node.kind != Kind::File || ios.contains_key(ino));
        let is_ready = |(ino, content): &(Ino, Option<Arc<Content>>)| {
            let object = ios.get(ino).and_then(|(_, io)| io.object());
            content.as_ref().is_none_or(|content| {
                content.is_intact() && content.is_sealed() && is_saved(content) && object == Some(content.object())
            })
        };
        if !closure.uncommitted.is_empty() || !closure.inodes.iter().all(is_held) || !outcome.kept.iter().all(is_ready)
        {
            return Ok(None);
        }
        let mut said = told(&st, &outcome);
        said.events = closure.events.len() as u64;
        let since = self.stamp(self.uptime()).as_secs();
        let kept = outcome.kept.iter().filter_map(|(ino, content)| {
            let kept = match content {
                None => Kept::Node(spec_of(&st, *ino)?),
                Some(content) => Kept::File {
                    object: content.object(),
                    size: content.size,
                    attrs: attrs.get(ino).cloned().unwrap_or_else(|| content.attrs()),
                },
            };
            Some((*ino, kept))
        });
        let kept: Vec<(Ino, Kept)> = kept.collect();
        let last = self.log_aside(
            &st,
            kept.iter().map(|(ino, kept)| (*ino, since, kept)),
            ranges(closure.events.iter().copied()),
        )?; // 4
        let first = last - kept.len() as u64;
        let kept =
            (first..).zip(kept).map(|(lsn, (ino, kept))| (ino, Aside { kept, since, lsn, again: None })).collect();
        let (taken, touched) = self.follow_set_aside(&mut st, &closure, kept, &outcome.returned, &mut ios); // 5
        if taken.iter().any(|event| matches!(event.change, Change::Rename { .. } | Change::Exchange { .. })) {
            // A directory may have its old name again, and with it nodes that were set aside below it before.
            let before = st.aside.iter().filter(|(_, aside)| aside.lsn < first).map(|(ino, _)| ino).collect();
            self.log_aside_again(&mut st, before)?;
        }
        drop(st);
        drop(ios);
        if !left_out!(AsideDurable) {
            self.log.sync(self.log.last())?; // 6
        }
        drop(unfinished);
        self.clean_up_set_aside(cx, taken, &touched)?;
        Ok(Some(said))
    }

    /// A group that is held up ends in front of its next batch; the intents of the rest are void after `applied`.
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
                    // All of it may be on the slow tree by now.
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

    /// The attributes of the object. Attributes that only the view has are written to the object first.
    fn attrs_of(&self, cx: &Cx, ino: Ino, io: &mut Io) -> Result<Option<Attrs>> {
        let Some(object) = io.object() else { return Ok(None) };
        let had = io.fd.clone();
        let fd = self.fd(cx, io, object)?;
        if io.attrs_in_view {
            io.fd = Some(fd.clone());
            let given = self.give_attrs(ino, io);
            io.fd = had;
            given?;
        }
        let stat = fd.stat().at("stat", crate::tiers::objects::pool::label(object))?;
        let xattrs = own_xattrs(&*fd)?;
        Ok(Some(Attrs { perm: stat.perm, uid: stat.uid, gid: stat.gid, mtime: stat.mtime, xattrs }))
    }

    /// Step 5. Returns the events, and the nodes that may no longer be needed.
    fn follow_set_aside(
        &self,
        st: &mut EngineState,
        closure: &Closure,
        kept: Vec<(Ino, Aside)>,
        returned: &[Ino],
        ios: &mut HashMap<Ino, (&Arc<FileState>, crate::tiers::disk::sync::RwLockWriteGuard<'_, Io>)>,
    ) -> (Vec<Event>, HashSet<Ino>) {
        let now = self.log.last();
        let taken = st.take_out(&closure.events, now);
        let of_it: HashSet<Lsn> = closure.events.iter().copied().collect();
        st.checkpoints.change(|index| index.set_aside(|lsn| of_it.contains(&lsn)));
        for event in &taken {
            if let Change::Content { content, .. } = &event.change {
                // A copy in progress finds that it is no longer wanted.
                content.set_overwritten();
            }
        }
        let has_object = ios.iter().filter(|(_, (_, io))| io.object().is_some()).map(|(ino, _)| *ino);
        let detached: HashMap<Ino, Ino> =
            has_object.collect::<Vec<_>>().into_iter().filter_map(|ino| Some((ino, st.view.detach(ino)?))).collect();
        let stays: HashSet<Ino> = kept.iter().map(|(ino, _)| *ino).collect();
        let touched = self.return_names(st, closure, &detached, &stays);
        for node in detached.values() {
            // Names that hide it do not count.
            if let Some(node) = st.view.get_mut(*node) {
                let names = node.links.len().max(1) as u32;
                node.change_meta(|meta| meta.nlink = names);
            }
        }
        returned.iter().filter(|ino| !detached.contains_key(ino)).for_each(|ino| {
            st.view.give_back(*ino);
            st.in_place.forget_overtaken(*ino);
        });
        for (ino, aside) in kept {
            if let Some((file, io)) = ios.get_mut(&ino) {
                let (object, fd) = (io.object(), io.fd.take());
                if let Some(object) = object {
                    file.place(io, Bytes::Object(object), fd);
                }
                (io.dirty, io.has_event, io.mtime_set_since_bind, io.interrupted) = (false, false, false, false);
                st.uncommitted.remove(ino);
            }
            if let Some(node) = st.view.get_mut(ino) {
                let names = node.links.len() as u32;
                node.ours = true;
                if node.kind != Kind::Dir {
                    node.change_meta(|meta| meta.nlink = names);
                }
                if node.meta_lsn() > 0 {
                    node.set_meta_lsn(0);
                }
            }
            st.set_aside(ino, aside, now);
        }
        (taken, touched)
    }

    /// Restores the view's side of the names that changed.
    fn return_names(
        &self,
        st: &mut EngineState,
        closure: &Closure,
        detached: &HashMap<Ino, Ino>,
        stays: &HashSet<Ino>,
    ) -> HashSet<Ino> {
        let now_is = |ino: Ino| detached.get(&ino).copied().unwrap_or(ino);
        let mut places: HashMap<DirEntryKey, Option<Ino>> =
            closure.places.iter().map(|(place, who)| (place.clone(), who.map(now_is))).collect();
        for ino in detached.keys().filter(|ino| !stays.contains(ino)) {
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
            // Nodes set aside earlier keep their names.
            let is_aside = |ino: Ino| stays.contains(&ino) || st.aside.has(ino);
            if viewed == who || viewed.is_some_and(is_aside) {
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

    /// Drops the log up to `applied`, except for set-aside records (see the top of this file).
    pub(crate) fn drop_log(&self, applied: Lsn) -> Result<()> {
        let last = self.log.droppable(applied);
        if last == 0 {
            return Ok(());
        }
        let mut st = self.state.lock();
        let from = st.aside_from().filter(|_| !left_out!(AsideAgain)).unwrap_or(Lsn::MAX);
        if from <= last {
            let old = st.aside.iter().filter(|(_, aside)| aside.lsn <= last && aside.again.is_none());
            let old: Vec<Ino> = old.map(|(ino, _)| ino).collect();
            self.log_aside_again(&mut st, old)?;
        }
        drop(st);
        self.log.drop_upto(applied.min(from - 1))
    }

    pub(crate) fn log_aside_again(&self, st: &mut EngineState, mut nodes: Vec<Ino>) -> Result<()> {
        if nodes.is_empty() {
            return Ok(());
        }
        nodes.sort_by_key(|ino| (depth(st, *ino), *ino));
        let said = nodes.iter().filter_map(|ino| st.aside.get(*ino).map(|aside| (*ino, aside.since, &aside.kept)));
        let last = self.log_aside(st, said, Vec::new())?;
        for (lsn, ino) in (last - nodes.len() as u64..).zip(nodes) {
            st.aside.repeated(ino, lsn);
        }
        Ok(())
    }
}

fn closure_is_empty(closure: &Closure) -> bool {
    closure.events.is_empty() && closure.uncommitted.is_empty()
}

/// The nodes that stay, directories before their contents, and the nodes that go back.
fn outcome(st: &EngineState, closure: &Closure) -> AsideOutcome {
    let made: HashSet<Ino> = {
        let of_it = |event: &&Event| closure.events.binary_search(&event.lsn).is_ok();
        let made = |event: &Event| if let Change::Make { ino, .. } = event.change { Some(ino) } else { None };
        st.queue.events().iter().filter(of_it).filter_map(made).collect()
    };
    let changed: HashSet<Ino> = {
        let of_it = |event: &&Event| closure.events.binary_search(&event.lsn).is_ok();
        st.queue.events().iter().filter(of_it).flat_map(|event| event.change.inodes()).collect()
    };
    let mut outcome = AsideOutcome::default();
    for ino in closure.inodes.iter().filter(|ino| changed.contains(ino) || closure.uncommitted.contains(ino)) {
        let Some(node) = st.view.get(*ino) else { continue };
        let newest = st.queue.newest_version(*ino).map(|(_, content)| content.clone());
        let has_name = !node.links.is_empty();
        match newest {
            Some(content) if has_name => outcome.kept.push((*ino, Some(content))),
            None if has_name && made.contains(ino) => outcome.kept.push((*ino, None)),
            _ => outcome.returned.push(*ino),
        }
    }
    outcome.kept.sort_by_key(|(ino, _)| (depth(st, *ino), *ino));
    outcome.returned.sort_unstable();
    outcome
}

fn told(st: &EngineState, outcome: &AsideOutcome) -> SetAside {
    let path = |ino: &Ino| st.view.path(*ino).or_else(|| st.view.slow_path(*ino)).map(|path| escape(&path));
    let bytes = outcome.kept.iter().filter_map(|(_, content)| content.as_ref()).map(|content| content.size).sum();
    SetAside {
        kept: outcome.kept.iter().filter_map(|(ino, _)| path(ino)).collect(),
        returned: outcome.returned.iter().filter_map(path).collect(),
        bytes,
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
