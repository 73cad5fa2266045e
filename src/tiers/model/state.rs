//! What the engine's one lock protects: the view, the pending events and the references to objects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};

use crate::observing::Observing;
use crate::tiers::checkpoints::bursts::{Bursts, Finished, PAUSE};
use crate::tiers::checkpoints::forecast::CheckpointForecast;
use crate::tiers::checkpoints::index::{CheckpointIndex, Version};
use crate::tiers::disk::sync::atomic::Ordering;
use crate::tiers::disk::{FileId, Kind, Time};
use crate::tiers::log::record::Record;
use crate::tiers::model::clean_list::CleanList;
use crate::tiers::model::event::{Change, Event};
use crate::tiers::model::in_place::InPlaceFiles;
use crate::tiers::model::node::{DirEntryKey, Node, ObservedAt, Slot};
use crate::tiers::model::object_references::ObjectReferences;
use crate::tiers::model::queue::{EventQueue, RenamedPlace};
use crate::tiers::model::uncommitted::UncommittedFiles;
use crate::tiers::model::view::View;
use crate::tiers::objects::file::FileState;
use crate::tiers::sorted::beside;
use crate::tiers::{Ino, Lsn};

/// How many states that were made for readers only are kept.
const MATERIALIZED_KEPT: usize = 1024;

/// A node that was set aside, the directory that it was in, and the record that says so.
#[derive(Debug)]
struct SetAsideNode {
    ino: Ino,
    dir: Option<Ino>,
    at: Lsn,
}

#[derive(Debug)]
pub(crate) struct EngineState {
    pub(crate) view: View,
    pub(crate) queue: EventQueue,
    pub(crate) uncommitted: UncommittedFiles,
    pub(crate) in_place: InPlaceFiles,
    /// What was set aside since the mount and had bytes that the slow tier does not have.
    set_aside: Vec<SetAsideNode>,
    pub(crate) objects: ObjectReferences,
    pub(crate) clean: CleanList,
    /// Which versions were written together, and when the next such burst may come.
    pub(crate) bursts: Bursts,
    pub(crate) checkpoints: Observing<CheckpointIndex>,
    pub(crate) forecast: CheckpointForecast,
    /// The files whose state was made most recently from a pending version.
    materialized: VecDeque<Ino>,
    /// Removed files whose object could not be released at once, because a caller was using it.
    orphans: HashSet<Ino>,
    /// Files whose slow version is ahead of what is applied, and the event it belongs to: a batch cut in two is under
    /// way.
    early: HashMap<Ino, Lsn>,
}

impl EngineState {
    pub(crate) fn new(view: View) -> Self {
        EngineState {
            view,
            queue: EventQueue::default(),
            uncommitted: UncommittedFiles::default(),
            in_place: InPlaceFiles::default(),
            set_aside: Vec::new(),
            objects: ObjectReferences::default(),
            clean: CleanList::default(),
            bursts: Bursts::default(),
            checkpoints: Observing::new("the index of checkpoints", CheckpointIndex::default()),
            forecast: CheckpointForecast::default(),
            materialized: VecDeque::new(),
            orphans: HashSet::new(),
            early: HashMap::new(),
        }
    }

    /// Adds a removed file whose object is in use; [`EngineState::pop_orphans`] comes back to it.
    pub(crate) fn add_orphan(&mut self, ino: Ino) {
        self.orphans.insert(ino);
    }

    pub(crate) fn pop_orphans(&mut self) -> HashSet<Ino> {
        std::mem::take(&mut self.orphans)
    }

    /// Notes versions that the slow tier has ahead of their events: batches that are cut in two are under way.
    pub(crate) fn run_ahead(&mut self, early: impl IntoIterator<Item = (Ino, Lsn)>) {
        self.early.extend(early);
    }

    /// Whether the slow tree is in the middle of a batch that was cut.
    pub(crate) fn is_inside_batch(&self) -> bool {
        !self.early.is_empty()
    }

    /// Whether the slow tier has a version of the file that belongs to an event behind this one.
    pub(crate) fn is_ahead_of(&self, ino: Ino, lsn: Lsn) -> bool {
        self.early.get(&ino).is_some_and(|early| *early > lsn)
    }

    /// Queues an event that has just been logged; at a start it may have a place before others. The nodes it touches
    /// stay in memory until it is applied.
    pub(crate) fn push(&mut self, lsn: Lsn, at: Duration, by: u32, change: Change) {
        for (dir, name) in change.places() {
            if let Some(node) = self.view.get_mut(*dir) {
                node.pins += 1;
                if let Some(slot) = node.dir.as_mut().and_then(|dir| dir.slots.get_mut(name)) {
                    slot.pins += 1;
                }
            }
        }
        for ino in change.inodes() {
            if let Some(node) = self.view.get_mut(ino) {
                node.pins += 1;
            }
        }
        if let Change::Content { content, .. } = &change {
            self.objects.add(content.object());
        }
        self.queue.push(Event { lsn, at, by, change });
    }

    /// The user whose event it is: the caller, or the user that began to write the version. Root acts for the owner of
    /// what it changes, and so does the background.
    pub(crate) fn whose(&self, caller: u32, change: &Change) -> u32 {
        let owner = |ino: Ino| self.view.get(ino).map_or(0, |node| node.meta().uid);
        let (by, owner) = match change {
            Change::Content { ino, content, .. } => (self.uncommitted.writer(*ino), content.attrs().uid),
            Change::Make { spec, .. } => (caller, spec.attrs.uid),
            Change::Link { ino, .. }
            | Change::Rename { ino, .. }
            | Change::Exchange { a: ino, .. }
            | Change::Remove { ino, .. }
            | Change::SetAttr { ino, .. }
            | Change::SetXattr { ino, .. } => (caller, owner(*ino)),
        };
        if by == 0 { owner } else { by }
    }

    /// Drops every event up to `upto`; `now` is the log's newest LSN.
    pub(crate) fn pop(&mut self, upto: Lsn, now: Lsn) {
        while let Some(event) = self.queue.pop(upto) {
            self.unpin(&event, now);
            event.change.places().into_iter().for_each(|place| self.settle_name(place));
            for ino in event.change.inodes() {
                self.view.collect(ino);
            }
        }
        self.queue.set_applied(upto);
        self.in_place.set_applied(upto);
        self.early.retain(|_, lsn| *lsn > upto);
    }

    /// After a conflict: on the slow tier node `ino` is at `beside`, because a foreign node has its name `at`. Events
    /// behind `upto` that would find it at `at` find it at `beside`; what they leave under the name goes there, too.
    pub(crate) fn move_on_from(&mut self, upto: Lsn, at: &DirEntryKey, beside: &DirEntryKey, ino: Ino) {
        self.view.set_slow(beside.0, &beside.1, Some(ino));
        let RenamedPlace { changed, last, taken } = self.queue.rename_place(upto, at, beside, ino);
        let slots = self.view.get_mut(at.0).and_then(|node| node.dir.as_mut()).map(|dir| &mut dir.slots);
        let Some(slots) = slots else { return };
        if let Some(slot) = slots.get_mut(&at.1) {
            slot.pins -= changed;
        }
        if let Some(slot) = slots.get_mut(&beside.1) {
            slot.pins += changed;
        }
        let Some(last) = last else { return };
        if !taken {
            self.view.set_view(at.0, &at.1, None);
        }
        // A file without a name in the view appears there as a file of the slow tier.
        if !taken || self.view.get(last).is_some_and(|node| !node.links.is_empty()) {
            self.view.set_view(beside.0, &beside.1, Some(last));
        }
    }

    /// Takes these events out of the order, wherever they are in it. The nodes they touched are not collected yet.
    pub(crate) fn remove_events(&mut self, events: &[Lsn], now: Lsn) -> Vec<Event> {
        let taken = self.queue.remove_events(events);
        for event in &taken {
            self.unpin(event, now);
        }
        taken
    }

    /// Gives moved events and records their new numbers. `new`: pairs of the old and the new number. `nodes`: those
    /// that the events touch.
    pub(crate) fn renumber(&mut self, new: &[(Lsn, Lsn)], nodes: &std::collections::HashSet<Ino>) {
        let now = |lsn: Lsn| beside(new, lsn).copied();
        let events: Vec<_> = new.iter().copied().filter(|(old, _)| self.queue.event(*old).is_some()).collect();
        self.queue.renumber(&events);
        new.iter().for_each(|(old, new)| self.uncommitted.renumber(*old, *new));
        self.in_place.renumber(now);
        self.checkpoints.change(|index| index.renumber(now));
        for ino in nodes {
            if let Some(node) = self.view.get_mut(*ino) {
                node.renumber(now);
            }
        }
    }

    fn unpin(&mut self, event: &Event, now: Lsn) {
        if let Change::Content { ino, content, .. } = &event.change {
            // Wake first: no state can be made from a version that is gone.
            self.wake(*ino);
            content.set_applied();
            self.objects.remove(content.object(), now);
            self.queue.forget_version(*ino, event.lsn);
        }
        for place in event.change.places() {
            let Some(node) = self.view.get_mut(place.0) else { continue };
            node.pins -= 1;
            if let Some(slot) = node.dir.as_mut().and_then(|dir| dir.slots.get_mut(&place.1)) {
                slot.pins -= 1;
            }
        }
        for ino in event.change.inodes() {
            if let Some(node) = self.view.get_mut(ino) {
                node.pins -= 1;
            }
        }
    }

    /// If nothing is pending for this name any more, and the slow tier does not have what the view has there, the cause
    /// is a foreign change: the name is to be looked up again.
    fn settle_name(&mut self, place: &DirEntryKey) {
        if self.slot(place).is_none_or(|slot| slot.pins > 0 || slot.view() == slot.slow()) {
            return;
        }
        let shown = self.slot(place).and_then(Slot::view);
        // What is still to come goes to this name, unless there is another one.
        let comes = |ino| self.uncommitted.has(ino) || self.queue.has_versions(ino);
        let is_only = |ino| self.view.get(ino).is_some_and(|node| node.links.len() == 1);
        if shown.is_some_and(|ino| (is_only(ino) && comes(ino)) || self.comes_below(ino)) {
            return;
        }
        self.view.set_view(place.0, &place.1, None);
        self.forget_slow_at(place);
        shown.into_iter().for_each(|ino| self.add_orphan(ino));
    }

    /// Forgets what the slow tier has under this name.
    pub(crate) fn forget_slow_at(&mut self, place: &DirEntryKey) {
        self.view.set_slow(place.0, &place.1, None);
        if let Some(dir) = self.view.get_mut(place.0).and_then(|node| node.dir.as_mut()) {
            dir.known = false;
            dir.slots.get_mut(&place.1).into_iter().for_each(|slot| slot.seen = ObservedAt::NEVER);
        }
    }

    /// Notes nodes that are about to lose their names because record `at` sets them aside.
    pub(crate) fn note_set_aside(&mut self, nodes: impl Iterator<Item = Ino>, at: Lsn) {
        for ino in nodes {
            let dir = self.view.get(ino).and_then(|node| node.links.first()).map(|(dir, _)| *dir);
            self.set_aside.push(SetAsideNode { ino, dir, at });
        }
    }

    /// Whether a node at or below `ino` was set aside that an event up to `awaited` was to bring to the slow tier.
    pub(crate) fn was_set_aside(&self, ino: Ino, awaited: Option<Lsn>) -> bool {
        let has_no_name = || self.view.get(ino).is_none_or(|node| node.links.is_empty());
        self.set_aside.iter().any(|one| {
            // Earlier events will never arrive. Later ones do not count: a node may have reused the number of one that
            // is gone.
            let was_awaited = awaited.is_some_and(|awaited| awaited < one.at);
            let is_below = || one.dir.is_some_and(|dir| self.view.is_above(ino, dir));
            (one.ino == ino && has_no_name()) || (was_awaited && is_below())
        })
    }

    /// The slot of a name, in a directory that is in memory.
    pub(crate) fn slot(&self, (dir, name): &DirEntryKey) -> Option<&Slot> {
        self.view.get(*dir)?.dir.as_ref()?.slots.get(name)
    }

    /// The state of a regular file, made if there is none. Get it before changing anything about a file: its lock keeps
    /// other callers out.
    pub(crate) fn file(&mut self, ino: Ino) -> Option<Arc<FileState>> {
        self.wake(ino);
        self.view.file(ino)
    }

    /// The state of a regular file; `None` if its bytes are on the slow tier and not in use.
    pub(crate) fn known_file(&mut self, ino: Ino) -> Option<Arc<FileState>> {
        self.wake(ino);
        self.view.get(ino)?.file.clone()
    }

    /// Makes the state of a file that is fully described by a pending version. A state made for readers only is dropped
    /// again once [`MATERIALIZED_KEPT`] others were made.
    fn wake(&mut self, ino: Ino) {
        if !self.view.get(ino).is_some_and(Node::rests_pending) {
            return;
        }
        if self.materialized.len() == MATERIALIZED_KEPT
            && let Some(longest) = self.materialized.pop_front()
        {
            self.rest(longest);
        }
        let versions = self.queue.versions(ino).map(|(_, content)| content);
        if let Some(node) = self.view.get_mut(ino) {
            node.wake(|opened| FileState::on_pending(ino, opened, versions));
            self.materialized.push_back(ino);
        }
    }

    /// Drops the state of a file that is fully described by its pending versions.
    pub(crate) fn rest(&mut self, ino: Ino) {
        let newest = self.queue.newest_version(ino).map(|(_, content)| content);
        if let Some(node) = self.view.get_mut(ino) {
            node.rest(newest);
        }
    }

    /// The record that must precede a record about the bytes of a file with several names.
    pub(crate) fn names_record(&self, ino: Ino) -> Option<Record> {
        let links = &self.view.get(ino)?.links;
        let paths = || links.iter().filter_map(|place| self.view.path_at(place)).map(Into::into).collect();
        (links.len() > 1).then(|| Record::Names { ino, paths: paths() })
    }

    /// The record that must precede the first event on a name. `None` if changes of ours to the node there are pending
    /// or may still come, or if the slow tier was not asked.
    pub(crate) fn expect_before(&self, change: &Change) -> Option<Record> {
        let at = change.overwrites()?;
        let there = self.view.get(at.0)?.dir.as_ref()?.slots.get(&at.1).and_then(|slot| self.view.get(slot.slow()?));
        // Openers, and users of another name of the file, may write to it in place after it has lost this name.
        let may_change = |node: &Node| {
            node.meta().nlink > 1 || node.file.as_ref().is_some_and(|file| file.writers.load(Ordering::Acquire) > 0)
        };
        if there.is_some_and(may_change) { None } else { self.expect_record(at) }
    }

    /// The record that must precede the `bind` of a file whose next bytes get an object; `None` as in
    /// [`EngineState::expect_before`].
    pub(crate) fn expect_record(&self, at: &DirEntryKey) -> Option<Record> {
        let dir = self.view.get(at.0)?;
        let slots = dir.dir.as_ref().filter(|_| dir.slow_id().is_some() && !left_out!(Expect))?;
        let slow = match slots.slots.get(&at.1) {
            None => slots.known.then_some(None)?,
            Some(slot) if slot.pins > 0 => return None,
            Some(slot) => match slot.slow() {
                None => None,
                Some(ino) if self.queue.has_versions(ino) => return None,
                Some(ino) => {
                    let node = self.view.get(ino).filter(|node| node.kind == Kind::File)?;
                    Some(node.slow_fingerprint().filter(|_| node.meta_lsn() <= self.queue.applied())?)
                }
            },
        };
        Some(Record::Expect { path: self.view.path_at(at)?.into(), slow })
    }

    /// Which file of the slow tier a change of the node that is logged now is about, as [`AttrsOf::slow`] says.
    ///
    /// [`AttrsOf::slow`]: crate::tiers::log::record::AttrsOf
    pub(crate) fn known_on_slow(&self, ino: Ino) -> Option<FileId> {
        self.view.get(ino)?.slow_id().map(|(_, file)| file).filter(|_| !self.queue.has_versions(ino))
    }

    /// The records that must precede a `bind` record of the file.
    pub(crate) fn before_bind(&self, ino: Ino) -> impl Iterator<Item = Record> + use<> {
        let named = self.view.get(ino).and_then(|node| node.links.first());
        [named.and_then(|at| self.expect_record(at)), self.names_record(ino)].into_iter().flatten()
    }

    /// Whether something is pending inside this directory, so that publishing makes it again after a foreign rmdir.
    pub(crate) fn comes_below(&self, ino: Ino) -> bool {
        self.is_dir(ino) && (self.view.owes_below(ino) || self.is_written_at(ino))
    }

    /// Whether this file, or one below this directory, has bytes that are not in an event yet.
    pub(crate) fn is_written_at(&self, ino: Ino) -> bool {
        let below = || self.uncommitted.files().any(|file| self.view.is_above(ino, file));
        self.uncommitted.has(ino) || (self.is_dir(ino) && below())
    }

    fn is_dir(&self, ino: Ino) -> bool {
        self.view.get(ino).is_some_and(|node| node.kind == Kind::Dir)
    }

    /// Notes that the slow file has bytes that are not synced; the node stays in memory until they are. Earlier answers
    /// of the slow tier about the file are not valid any more.
    pub(crate) fn written_in_place(&mut self, ino: Ino, now: Duration) {
        self.view.publish([ino], now);
        if let Some(node) = self.view.get_mut(ino) {
            node.set_slow_fingerprint(None);
        }
        if self.in_place.written(ino)
            && let Some(node) = self.view.get_mut(ino)
        {
            node.pins += 1;
        }
    }

    pub(crate) fn synced_in_place(&mut self, ino: Ino) {
        if self.in_place.synced(ino)
            && let Some(node) = self.view.get_mut(ino)
        {
            node.pins -= 1;
        }
    }

    /// Whether changes of its times are pending.
    pub(crate) fn awaits_times(&self, ino: Ino) -> bool {
        let sets_time = |change: &Change| match change {
            Change::SetAttr { ino: other, new, .. } => *other == ino && new.mtime.is_some(),
            _ => false,
        };
        let awaits_any = self.view.get(ino).is_some_and(|node| node.meta_lsn() > self.queue.applied());
        awaits_any && self.queue.events().iter().any(|event| sets_time(&event.change))
    }

    /// Takes in a record: the file was written in place at `mtime`, after the pending changes of its times.
    pub(crate) fn overtake(&mut self, ino: Ino, lsn: Lsn, mtime: Time) {
        if self.awaits_times(ino)
            && let Some(node) = self.view.get_mut(ino)
        {
            node.change_meta(|meta| meta.mtime = mtime);
            self.in_place.overtake(ino, lsn, mtime);
        }
    }

    /// Notes an event in the index of checkpoints once it has its LSN and stamps, before the view shows it. `now` is
    /// the uptime, `epoch` the start of the uptime, since 1970.
    pub(crate) fn note_checkpoint(&mut self, lsn: Lsn, change: &Change, now: Duration, epoch: Duration) {
        let going_on = self.bursts.going_on();
        match change {
            Change::Content { ino, at, content } => {
                let Some(path) = self.view.path_at(at) else { return };
                let began = epoch.saturating_add(self.began_to_write(*ino, now));
                let (burst, bytes) = (content.burst(), content.size);
                let end = self.queue.stamps(lsn).end;
                let at = epoch.saturating_add(now);
                if burst == 0 {
                    self.checkpoints.change(|index| index.removed(&path));
                    return;
                }
                let version = Version { burst, path, lsn, bytes, began, at, end };
                self.checkpoints.change(|index| index.written(version, &going_on));
            }
            Change::Rename { from, to, .. } => {
                if let (Some(from), Some(to)) = (self.view.path_at(from), self.view.path_at(to)) {
                    self.checkpoints.change(|index| index.moved(&from, &to, lsn, &going_on));
                }
            }
            Change::Exchange { a_at, b_at, .. } => {
                if let (Some(a), Some(b)) = (self.view.path_at(a_at), self.view.path_at(b_at)) {
                    self.checkpoints.change(|index| index.exchanged(&a, &b, lsn, &going_on));
                }
            }
            Change::Remove { at, .. } => {
                if let Some(path) = self.view.path_at(at) {
                    self.checkpoints.change(|index| index.removed(&path));
                }
            }
            Change::Make { .. } | Change::Link { .. } | Change::SetAttr { .. } | Change::SetXattr { .. } => {}
        }
    }

    /// Notes that these checkpoints are over. `epoch`: the start of the uptime, since 1970.
    pub(crate) fn learn(&mut self, over: &[Finished], epoch: Duration) {
        over.iter().for_each(|one| self.forecast.learn(epoch.saturating_add(one.began), one.bytes));
    }

    /// When a program began to write bytes that are not in an event yet: at its open, if it wrote soon after. A log
    /// file is open for hours.
    pub(crate) fn began_to_write(&self, ino: Ino, now: Duration) -> Duration {
        let first = self.uncommitted.since(ino).unwrap_or(now);
        let open_for = self.view.get(ino).and_then(|node| node.file.as_ref()).map(|file| file.open_to_write_for(first));
        first.saturating_sub(open_for.filter(|time| *time <= PAUSE).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Name;
    use crate::tiers::ROOT;
    use crate::tiers::log::record::{Attrs, Home, ObjectId};
    use crate::tiers::model::node::NodeAttrs;
    use crate::tiers::model::view::tests::stat;
    use crate::tiers::objects::file::Bytes;
    use crate::tiers::objects::version::Content;

    fn state() -> EngineState {
        EngineState::new(View::new(&stat(2, Kind::Dir), Duration::ZERO))
    }

    #[test]
    fn an_event_is_its_callers_and_a_version_is_its_writers() {
        let (mut st, alice, bob) = (state(), 1001, 1002);
        let (ino, object) = (st.view.new_ino(), ObjectId { home: Home::Fast, number: 1 });
        st.view.add(ino, Kind::File, NodeAttrs { uid: alice, ..NodeAttrs::default() });
        let at = (ROOT, Name::new(b"shared").expect("a name"));
        let removed = Change::Remove { ino, at: at.clone() };
        assert_eq!([bob, 0].map(|caller| st.whose(caller, &removed)), [bob, alice], "root acts for the owner");
        let attrs = Attrs { uid: alice, ..Attrs::default() };
        let version = Change::Content { ino, at, content: Arc::new(Content::new(object, 1, attrs, 0)) };
        assert_eq!(st.whose(bob, &version), alice, "whoever commits it");
        st.uncommitted.start(ino, bob, None);
        st.uncommitted.start(ino, alice, None);
        assert_eq!(st.whose(0, &version), bob, "he began it");
        st.uncommitted.remove(ino);
        assert_eq!(st.whose(0, &version), alice);
    }

    /// Once, each waiting file kept the state of an open file, in 300 bytes.
    #[test]
    fn a_file_that_waits_has_no_state_until_somebody_asks_for_it() {
        let mut st = state();
        let at = (ROOT, Name::new(b"waits").expect("a name"));
        let (ino, object) = (st.view.new_ino(), ObjectId { home: Home::Fast, number: 1 });
        st.view.add(ino, Kind::File, NodeAttrs::default());
        st.view.set_view(at.0, &at.1, Some(ino));
        let file = st.file(ino).expect("it is a file");
        let version = |st: &mut EngineState, lsn: Lsn, size: u64| {
            let content = Arc::new(Content::new(object, size, Attrs::default(), 0));
            st.push(lsn, Duration::ZERO, 0, Change::Content { ino, at: at.clone(), content: content.clone() });
            let mut io = file.io.write();
            file.place(&mut io, Bytes::Object(object), None);
            file.add_pending_version(&mut io, content);
        };
        version(&mut st, 1, 5);
        st.rest(ino);
        let is_materialized = |st: &EngineState| st.view.get(ino).expect("it is pending").file.is_some();
        assert!(is_materialized(&st), "somebody has it");
        version(&mut st, 2, 9);
        drop(file);
        st.rest(ino);
        st.view.collect(ino);
        assert!(!is_materialized(&st) && st.view.get(ino).expect("it is pending").holds_bytes());

        let file = st.known_file(ino).expect("its versions say all");
        let io = file.io.read();
        let newest = st.queue.newest_version(ino).map(|(_, content)| content);
        assert!(io.object() == Some(object) && io.has_event && !io.dirty && file.holds_bytes());
        assert!(io.latest.as_ref().zip(newest).is_some_and(|(latest, newest)| Arc::ptr_eq(latest, newest)));
        assert_eq!((io.pending_versions.iter().count(), file.is_guarded(8), file.is_guarded(9)), (2, true, false));
        drop(io);
        file.io.write().dirty = true;
        drop(file);
        st.rest(ino);
        assert!(is_materialized(&st), "it is ahead of its versions");
        let file = st.known_file(ino).expect("it is materialized");
        file.io.write().dirty = false;
        file.failed.store(true, Ordering::Release);
        drop(file);
        st.rest(ino);
        assert!(is_materialized(&st), "whoever syncs it next must hear that the last one failed");
        st.known_file(ino).expect("it is materialized").failed.store(false, Ordering::Release);
        st.rest(ino);
        assert!(!is_materialized(&st));
        st.pop(2, 2);
        let file = st.known_file(ino).expect("made before its last version went");
        assert_eq!(file.io.read().object(), Some(object));
    }

    #[test]
    fn no_more_than_some_are_materialized_for_those_who_only_look() {
        let mut st = state();
        let files: Vec<Ino> = (0..2 * MATERIALIZED_KEPT as u64)
            .map(|number| {
                let ino = st.view.new_ino();
                let at = (ROOT, Name::new(format!("f{number}").as_bytes()).expect("a name"));
                st.view.add(ino, Kind::File, NodeAttrs::default());
                st.view.set_view(at.0, &at.1, Some(ino));
                let object = ObjectId { home: Home::Fast, number };
                let content = Arc::new(Content::new(object, 1, Attrs::default(), 0));
                st.push(number + 1, Duration::ZERO, 0, Change::Content { ino, at, content: content.clone() });
                let file = st.file(ino).expect("it is a file");
                let mut io = file.io.write();
                file.place(&mut io, Bytes::Object(object), None);
                file.add_pending_version(&mut io, content);
                drop(io);
                drop(file);
                st.rest(ino);
                ino
            })
            .collect();
        for ino in &files {
            assert!(st.known_file(*ino).is_some_and(|file| file.holds_bytes()));
        }
        let materialized = files.iter().filter(|ino| st.view.get(**ino).is_some_and(|node| node.file.is_some()));
        assert_eq!(materialized.count(), MATERIALIZED_KEPT);
    }
}
