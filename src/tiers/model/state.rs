//! What the engine's one lock protects: the view, the pending events and the references to objects.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};

use crate::tiers::checkpoints::bursts::{Bursts, PAUSE};
use crate::tiers::checkpoints::forecast::CheckpointForecast;
use crate::tiers::checkpoints::index::{CheckpointIndex, Version};
use crate::tiers::disk::sync::atomic::Ordering;
use crate::tiers::disk::{Kind, NewAttr, Time};
use crate::tiers::log::record::{Home, Kept, ObjectId, Record, Spec};
use crate::tiers::model::node::{DirEntryKey, Node, Slot};
use crate::tiers::model::view::View;
use crate::tiers::objects::file::FileState;
use crate::tiers::objects::version::Content;
use crate::tiers::small_deque::SmallDeque;
use crate::tiers::{Ino, Lsn};

/// How many states that were made for readers only are kept.
const MATERIALIZED_KEPT: usize = 1024;
/// Capacity that the queue keeps, in events, when it shrinks.
const EVENTS_KEPT: usize = 1024;

/// One ordered change of the view that the slow tier does not have yet.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) lsn: Lsn,
    /// Uptime of the append.
    pub(crate) at: Duration,
    pub(crate) change: Change,
}

/// What changed, by inode. Names are the view's at the event's LSN. There may be a million: larger variants than
/// `Content` are boxed.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Make { ino: Ino, at: DirEntryKey, spec: Arc<Spec> },
    Content { ino: Ino, at: DirEntryKey, content: Arc<Content> },
    Link { ino: Ino, at: DirEntryKey },
    Rename { ino: Ino, from: Box<DirEntryKey>, to: Box<DirEntryKey>, replaced: Option<Ino> },
    Exchange { a: Ino, a_at: Box<DirEntryKey>, b: Ino, b_at: Box<DirEntryKey> },
    Remove { ino: Ino, at: DirEntryKey },
    SetAttr { ino: Ino, new: Box<NewAttr> },
    SetXattr { ino: Ino, key: Box<[u8]>, value: Option<Box<[u8]>> },
}

impl Change {
    /// The names it touches.
    pub(crate) fn places(&self) -> Vec<&DirEntryKey> {
        match self {
            Change::Make { at, .. }
            | Change::Content { at, .. }
            | Change::Link { at, .. }
            | Change::Remove { at, .. } => vec![at],
            Change::Rename { from, to, .. } => vec![from, to],
            Change::Exchange { a_at, b_at, .. } => vec![a_at, b_at],
            Change::SetAttr { .. } | Change::SetXattr { .. } => Vec::new(),
        }
    }

    /// The name that leads to another node from then on, if it is a single one.
    pub(crate) fn overwrites(&self) -> Option<&DirEntryKey> {
        match self {
            Change::Make { at, .. } | Change::Link { at, .. } | Change::Remove { at, .. } => Some(at),
            Change::Rename { to, .. } => Some(to),
            Change::Content { .. } | Change::Exchange { .. } | Change::SetAttr { .. } | Change::SetXattr { .. } => None,
        }
    }

    /// The inodes it touches.
    pub(crate) fn inodes(&self) -> Vec<Ino> {
        match self {
            Change::Make { ino, .. }
            | Change::Content { ino, .. }
            | Change::Link { ino, .. }
            | Change::Remove { ino, .. }
            | Change::SetAttr { ino, .. }
            | Change::SetXattr { ino, .. } => vec![*ino],
            Change::Rename { ino, replaced, .. } => [Some(*ino), *replaced].into_iter().flatten().collect(),
            Change::Exchange { a, b, .. } => vec![*a, *b],
        }
    }
}

#[derive(Debug)]
pub(crate) struct EngineState {
    pub(crate) view: View,
    /// Not yet applied, by LSN.
    pub(crate) events: VecDeque<Event>,
    pub(crate) applied: Lsn,
    /// The content events up to here were sealed at the last check, and perhaps further ones.
    pub(crate) sealed: Lsn,
    /// The pending content events, by file, and the last event that removed a name of a file.
    pub(crate) contents: HashMap<Ino, SmallDeque<(Lsn, Arc<Content>)>>,
    pub(crate) unnamed: HashMap<Ino, Lsn>,
    /// The files whose state was made most recently from a pending version.
    materialized: VecDeque<Ino>,
    /// Removed files whose object could not be released at once, because a caller was using it.
    pub(crate) orphans: HashSet<Ino>,
    /// Files whose slow version is ahead of `applied`, and the event it belongs to: a batch cut in two is under way.
    pub(crate) early: HashMap<Ino, Lsn>,
    /// The newest `bind` record of each file with bytes that are not in an event; logged again before `applied` passes
    /// it.
    pub(crate) bound: BTreeMap<Lsn, (Ino, ObjectId)>,
    pub(crate) bound_at: HashMap<Ino, Lsn>,
    /// Since when a file has bytes that are not in an event.
    pub(crate) uncommitted: HashMap<Ino, Duration>,
    /// Files written in place on the slow tier and not synced there since.
    pub(crate) in_place: HashSet<Ino>,
    /// For files written in place while changes of their times were pending: the record that says so, and the time of
    /// the last write. The changes before that record set this time.
    pub(crate) overtaken: HashMap<Ino, (Lsn, Time)>,
    /// An earlier daemon may have left more files written in place, which are unknown.
    pub(crate) in_place_before: bool,
    /// Nodes that were set aside and are no event again.
    pub(crate) aside: HashMap<Ino, Aside>,
    /// Nodes that were set aside and are events again, by that event: until it is applied, a start may have to set
    /// them aside again.
    pub(crate) was_aside: BTreeMap<Lsn, Aside>,
    /// How many events and files refer to an object.
    pub(crate) objects: References,
    /// Objects without references, to be deleted once the log is durable up to the LSN that says so.
    pub(crate) to_delete: BTreeMap<ObjectId, Lsn>,
    /// Clean files with an object, oldest drained first.
    pub(crate) clean: BTreeMap<u64, Clean>,
    pub(crate) clean_at: HashMap<Ino, u64>,
    pub(crate) clean_next: u64,
    /// Which versions were written together, and when the next such burst may come.
    pub(crate) bursts: Bursts,
    pub(crate) book: CheckpointIndex,
    pub(crate) expected: CheckpointForecast,
}

/// How many events and files refer to each object. Objects of the pool, of which there may be a million, are stored by
/// number alone.
#[derive(Debug, Default)]
pub(crate) struct References {
    in_pool: HashMap<u64, u32>,
    others: HashMap<ObjectId, u32>,
}

impl References {
    /// Adds a reference; returns how many there are now.
    fn add(&mut self, object: ObjectId) -> u32 {
        let count = match object.home {
            Home::Fast => self.in_pool.entry(object.number).or_default(),
            Home::Slow | Home::Split { .. } => self.others.entry(object).or_default(),
        };
        *count += 1;
        *count
    }

    /// Removes a reference; returns how many are left, if there was any.
    fn remove(&mut self, object: ObjectId) -> Option<u32> {
        let count = match object.home {
            Home::Fast => self.in_pool.get_mut(&object.number)?,
            Home::Slow | Home::Split { .. } => self.others.get_mut(&object)?,
        };
        *count -= 1;
        let left = *count;
        if left == 0 {
            match object.home {
                Home::Fast => self.in_pool.remove(&object.number),
                Home::Slow | Home::Split { .. } => self.others.remove(&object),
            };
        }
        Some(left)
    }

    pub(crate) fn len(&self) -> usize {
        self.in_pool.len() + self.others.len()
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectId> {
        let in_pool = self.in_pool.keys().map(|number| ObjectId { home: Home::Fast, number: *number });
        in_pool.chain(self.others.keys().copied())
    }
}

/// A node that an operator has set aside. It has its own reference to its object, whatever object the file goes on in.
#[derive(Clone, Debug)]
pub(crate) struct Aside {
    pub(crate) kept: Kept,
    /// Seconds since 1970.
    pub(crate) since: u64,
    /// The record that a start uses; and its repetition, for when `applied` has passed the first.
    pub(crate) lsn: Lsn,
    pub(crate) again: Option<Lsn>,
}

/// A clean file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clean {
    pub(crate) ino: Ino,
    pub(crate) bytes: u64,
    /// The number of its burst; 0: not known.
    pub(crate) burst: u64,
}

impl EngineState {
    pub(crate) fn new(view: View) -> Self {
        EngineState {
            view,
            events: VecDeque::new(),
            sealed: 0,
            applied: 0,
            contents: HashMap::new(),
            unnamed: HashMap::new(),
            materialized: VecDeque::new(),
            orphans: HashSet::new(),
            early: HashMap::new(),
            bound: BTreeMap::new(),
            bound_at: HashMap::new(),
            uncommitted: HashMap::new(),
            in_place: HashSet::new(),
            overtaken: HashMap::new(),
            in_place_before: false,
            aside: HashMap::new(),
            was_aside: BTreeMap::new(),
            objects: References::default(),
            to_delete: BTreeMap::new(),
            clean: BTreeMap::new(),
            clean_at: HashMap::new(),
            clean_next: 0,
            bursts: Bursts::default(),
            book: CheckpointIndex::default(),
            expected: CheckpointForecast::default(),
        }
    }

    /// Queues an event that has just been logged; at a start it may have a place before others. The nodes it touches
    /// stay in memory until it is applied.
    pub(crate) fn push(&mut self, lsn: Lsn, at: Duration, change: Change) {
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
        match &change {
            Change::Content { ino, content, .. } => {
                self.refer(content.object());
                self.contents.entry(*ino).or_default().push_back((lsn, content.clone()));
            }
            Change::Remove { ino, .. } | Change::Rename { replaced: Some(ino), .. } => {
                let last = self.unnamed.entry(*ino).or_default();
                *last = lsn.max(*last);
            }
            _ => {}
        }
        // Grow by 25 %, not 2x: the queue may hold a million events.
        if self.events.len() == self.events.capacity() {
            self.events.reserve_exact((self.events.len() / 4).max(64));
        }
        let behind = self.events.iter().rev().take_while(|event| event.lsn > lsn).count();
        self.events.insert(self.events.len() - behind, Event { lsn, at, change });
    }

    /// Drops every event up to `upto`; `now` is the log's newest LSN.
    pub(crate) fn pop(&mut self, upto: Lsn, now: Lsn) {
        while self.events.front().is_some_and(|event| event.lsn <= upto) {
            let Some(event) = self.events.pop_front() else { return };
            self.unpin(&event, now);
            for ino in event.change.inodes() {
                self.view.collect(ino);
            }
        }
        // A small queue is not worth shrinking.
        if self.events.capacity() > EVENTS_KEPT && self.events.len() < self.events.capacity() / 4 {
            self.events.shrink_to((self.events.len() * 2).max(EVENTS_KEPT));
        }
        self.applied = self.applied.max(upto);
        self.early.retain(|_, lsn| *lsn > upto);
        self.unnamed.retain(|_, lsn| *lsn > upto);
        self.overtaken.retain(|_, (lsn, _)| *lsn > upto);
        let over: Vec<Lsn> = self.was_aside.range(..=upto).map(|(lsn, _)| *lsn).collect();
        over.into_iter().for_each(|lsn| self.forget_was_aside(lsn, now));
    }

    /// Takes these events out of the order, wherever they are in it. The nodes they touched are not collected yet.
    pub(crate) fn take_out(&mut self, events: &[Lsn], now: Lsn) -> Vec<Event> {
        let (taken, left): (Vec<Event>, VecDeque<Event>) = {
            let (mut taken, mut left) = (Vec::new(), VecDeque::with_capacity(self.events.len()));
            for event in std::mem::take(&mut self.events) {
                match events.binary_search(&event.lsn) {
                    Ok(_) => taken.push(event),
                    Err(_) => left.push_back(event),
                }
            }
            (taken, left)
        };
        self.events = left;
        for event in &taken {
            self.unpin(event, now);
            self.forget_was_aside(event.lsn, now);
        }
        self.unnamed.clear();
        for event in &self.events {
            if let Change::Remove { ino, .. } | Change::Rename { replaced: Some(ino), .. } = &event.change {
                self.unnamed.insert(*ino, event.lsn);
            }
        }
        taken
    }

    fn unpin(&mut self, event: &Event, now: Lsn) {
        if let Change::Content { ino, content, .. } = &event.change {
            // Wake first: no state can be made from a version that is gone.
            self.wake(*ino);
            content.set_applied();
            self.unrefer(content.object(), now);
            if let Some(versions) = self.contents.get_mut(ino) {
                let is_first = versions.iter().next().is_some_and(|(first, _)| *first == event.lsn);
                match is_first {
                    true => drop(versions.pop_front()),
                    false => versions.retain(|(lsn, _)| *lsn != event.lsn),
                }
                if versions.is_empty() {
                    self.contents.remove(ino);
                }
            }
        }
        for (dir, name) in event.change.places() {
            if let Some(node) = self.view.get_mut(*dir) {
                node.pins -= 1;
                if let Some(slot) = node.dir.as_mut().and_then(|dir| dir.slots.get_mut(name)) {
                    slot.pins -= 1;
                }
            }
        }
        for ino in event.change.inodes() {
            if let Some(node) = self.view.get_mut(ino) {
                node.pins -= 1;
            }
        }
    }

    /// Sets a node aside, or replaces its aside. `now` is the log's newest LSN.
    pub(crate) fn set_aside(&mut self, ino: Ino, aside: Aside, now: Lsn) {
        aside.kept.object().into_iter().for_each(|object| self.refer(object));
        self.end_aside(ino, now);
        self.aside.insert(ino, aside);
    }

    /// Ends an aside: the node is gone.
    pub(crate) fn end_aside(&mut self, ino: Ino, now: Lsn) {
        let ended = self.aside.remove(&ino).and_then(|aside| aside.kept.object());
        ended.into_iter().for_each(|object| self.unrefer(object, now));
    }

    /// The slot of a name, in a directory that is in memory.
    pub(crate) fn slot(&self, (dir, name): &DirEntryKey) -> Option<&Slot> {
        self.view.get(*dir)?.dir.as_ref()?.slots.get(name)
    }

    /// The node is an event again, this one.
    pub(crate) fn take_up(&mut self, ino: Ino, lsn: Lsn) -> bool {
        let Some(aside) = self.aside.remove(&ino) else { return false };
        self.was_aside.insert(lsn, aside);
        true
    }

    fn forget_was_aside(&mut self, lsn: Lsn, now: Lsn) {
        let ended = self.was_aside.remove(&lsn).and_then(|aside| aside.kept.object());
        ended.into_iter().for_each(|object| self.unrefer(object, now));
    }

    /// The first LSN that the log must keep for asides.
    pub(crate) fn aside_from(&mut self) -> Option<Lsn> {
        for aside in self.aside.values_mut() {
            if let Some(again) = aside.again.filter(|again| *again <= self.applied) {
                (aside.lsn, aside.again) = (again, None);
            }
        }
        self.aside.values().chain(self.was_aside.values()).map(|aside| aside.lsn).min()
    }

    /// The state of a regular file, made if it was not needed so far. Ask for it before changing anything about a file:
    /// its lock keeps others out.
    pub(crate) fn file(&mut self, ino: Ino) -> Option<Arc<FileState>> {
        self.wake(ino);
        self.view.file(ino)
    }

    /// The same, but also `None` for a file whose bytes are on the slow tier and not in use.
    pub(crate) fn known_file(&mut self, ino: Ino) -> Option<Arc<FileState>> {
        self.wake(ino);
        self.view.get(ino)?.file.clone()
    }

    /// Makes the state of a file that is fully described by a pending version. A state made for readers only is dropped
    /// again once as many others were made.
    fn wake(&mut self, ino: Ino) {
        if !self.view.get(ino).is_some_and(Node::rests_pending) {
            return;
        }
        if self.materialized.len() == MATERIALIZED_KEPT
            && let Some(longest) = self.materialized.pop_front()
        {
            self.rest(longest);
        }
        let versions = self.contents.get(&ino).into_iter().flat_map(SmallDeque::iter).map(|(_, content)| content);
        if let Some(node) = self.view.get_mut(ino) {
            node.wake(|opened| FileState::on_pending(ino, opened, versions));
            self.materialized.push_back(ino);
        }
    }

    /// Drops the state of a file that is fully described by its pending versions.
    pub(crate) fn rest(&mut self, ino: Ino) {
        let newest = self.contents.get(&ino).and_then(SmallDeque::back).map(|(_, content)| content);
        if let Some(node) = self.view.get_mut(ino) {
            node.rest(newest);
        }
    }

    pub(crate) fn refer(&mut self, object: ObjectId) {
        if self.objects.add(object) == 1 {
            // A replay may return to an object that a later record seemed to have replaced.
            self.to_delete.remove(&object);
            object.head().into_iter().for_each(|head| self.refer(head));
        }
    }

    /// Removes a reference; after the last one, the object is deleted once the log is durable up to `lsn`.
    pub(crate) fn unrefer(&mut self, object: ObjectId, lsn: Lsn) {
        if self.objects.remove(object) == Some(0) {
            self.to_delete.insert(object, lsn);
            object.head().into_iter().for_each(|head| self.unrefer(head, lsn));
        }
    }

    /// Remembers that the file's bytes are ahead of its events, since when, and which record says so.
    pub(crate) fn bind(&mut self, ino: Ino, lsn: Lsn, object: ObjectId, now: Duration) {
        self.unbind(ino);
        self.bound.insert(lsn, (ino, object));
        self.bound_at.insert(ino, lsn);
        self.uncommitted.entry(ino).or_insert(now);
    }

    fn unbind(&mut self, ino: Ino) {
        if let Some(lsn) = self.bound_at.remove(&ino) {
            self.bound.remove(&lsn);
        }
    }

    /// The record that must precede a record about the bytes of a file with several names.
    pub(crate) fn names_record(&self, ino: Ino) -> Option<Record> {
        let links = &self.view.get(ino)?.links;
        let paths = || links.iter().filter_map(|place| self.view.path_at(place)).collect();
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

    /// The same for a file whose next bytes get an object.
    pub(crate) fn expect_record(&self, at: &DirEntryKey) -> Option<Record> {
        let dir = self.view.get(at.0)?;
        let slots = dir.dir.as_ref().filter(|_| dir.slow_id().is_some() && !left_out!(Expect))?;
        let slow = match slots.slots.get(&at.1) {
            None => slots.known.then_some(None)?,
            Some(slot) if slot.pins > 0 => return None,
            Some(slot) => match slot.slow() {
                None => None,
                Some(ino) if self.contents.contains_key(&ino) => return None,
                Some(ino) => {
                    let node = self.view.get(ino).filter(|node| node.kind == Kind::File)?;
                    Some(node.slow_fingerprint().filter(|_| node.meta_lsn() <= self.applied)?)
                }
            },
        };
        Some(Record::Expect { path: self.view.path_at(at)?, slow })
    }

    /// The records that must precede a `bind` record of the file.
    pub(crate) fn before_bind(&self, ino: Ino) -> impl Iterator<Item = Record> + use<> {
        let named = self.view.get(ino).and_then(|node| node.links.first());
        [named.and_then(|at| self.expect_record(at)), self.names_record(ino)].into_iter().flatten()
    }

    /// The slow file has bytes that are not synced; it stays in memory until they are. Earlier answers of the slow tier
    /// about the file do not count.
    pub(crate) fn written_in_place(&mut self, ino: Ino, now: Duration) {
        self.view.publish([ino], now);
        if let Some(node) = self.view.get_mut(ino) {
            node.set_slow_fingerprint(None);
        }
        if self.in_place.insert(ino)
            && let Some(node) = self.view.get_mut(ino)
        {
            node.pins += 1;
        }
    }

    pub(crate) fn synced_in_place(&mut self, ino: Ino) {
        if self.in_place.remove(&ino)
            && let Some(node) = self.view.get_mut(ino)
        {
            node.pins -= 1;
        }
    }

    /// Whether changes of its times are pending.
    pub(crate) fn awaits_times(&self, ino: Ino) -> bool {
        let sets_time = |change: &Change| match change {
            Change::SetAttr { ino: other, new } => *other == ino && new.mtime.is_some(),
            _ => false,
        };
        let awaits_any = self.view.get(ino).is_some_and(|node| node.meta_lsn() > self.applied);
        awaits_any && self.events.iter().any(|event| sets_time(&event.change))
    }

    /// A record says that the file was written in place at `mtime`, after the pending changes of its times.
    pub(crate) fn overtake(&mut self, ino: Ino, lsn: Lsn, mtime: Time) {
        if self.awaits_times(ino)
            && let Some(node) = self.view.get_mut(ino)
        {
            node.change_meta(|meta| meta.mtime = mtime);
            self.overtaken.insert(ino, (lsn, mtime));
        }
    }

    /// The attributes that a pending change sets by now.
    pub(crate) fn as_overtaken(&self, ino: Ino, new: NewAttr) -> NewAttr {
        let written = self.overtaken.get(&ino).filter(|_| new.mtime.is_some());
        NewAttr { mtime: written.map(|(_, mtime)| *mtime).or(new.mtime), ..new }
    }

    /// An event got its place in the log, and the view does not show it yet. `now` is the uptime, `epoch` the start of
    /// the uptime, since 1970.
    pub(crate) fn note_checkpoint(&mut self, lsn: Lsn, change: &Change, now: Duration, epoch: Duration) {
        let going_on = self.bursts.going_on();
        match change {
            Change::Content { ino, at, content } => {
                let Some(path) = self.view.path_at(at) else { return };
                let began = epoch.saturating_add(self.began_to_write(*ino, now));
                let (burst, bytes) = (content.burst(), content.size);
                self.book.written(Version { burst, path, lsn, bytes, began, at: epoch.saturating_add(now) });
            }
            Change::Rename { from, to, .. } => {
                if let (Some(from), Some(to)) = (self.view.path_at(from), self.view.path_at(to)) {
                    self.book.moved(&from, &to, lsn, going_on);
                }
            }
            Change::Exchange { a_at, b_at, .. } => {
                if let (Some(a), Some(b)) = (self.view.path_at(a_at), self.view.path_at(b_at)) {
                    self.book.exchanged(&a, &b, lsn, going_on);
                }
            }
            Change::Remove { at, .. } => {
                if let Some(path) = self.view.path_at(at) {
                    self.book.removed(&path);
                }
            }
            Change::Make { .. } | Change::Link { .. } | Change::SetAttr { .. } | Change::SetXattr { .. } => {}
        }
    }

    /// When a program began to write bytes that are not in an event yet: at its open, if it wrote soon after. A log is
    /// open for hours.
    pub(crate) fn began_to_write(&self, ino: Ino, now: Duration) -> Duration {
        let first = self.uncommitted.get(&ino).copied().unwrap_or(now);
        let open_for = self.view.get(ino).and_then(|node| node.file.as_ref()).map(|file| file.open_to_write_for(first));
        first.saturating_sub(open_for.filter(|time| *time <= PAUSE).unwrap_or_default())
    }

    /// The file's bytes have all become events, or it is gone.
    pub(crate) fn committed(&mut self, ino: Ino) {
        self.unbind(ino);
        self.uncommitted.remove(&ino);
    }

    /// The file was drained last; calling it again moves it behind all others.
    pub(crate) fn set_clean(&mut self, clean: Clean) {
        let ino = clean.ino;
        self.unset_clean(ino);
        self.clean.insert(self.clean_next, clean);
        self.clean_at.insert(ino, self.clean_next);
        self.clean_next += 1;
    }

    pub(crate) fn unset_clean(&mut self, ino: Ino) {
        if let Some(at) = self.clean_at.remove(&ino) {
            self.clean.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Name;
    use crate::tiers::ROOT;
    use crate::tiers::log::record::Attrs;
    use crate::tiers::model::node::NodeAttrs;
    use crate::tiers::model::view::tests::stat;
    use crate::tiers::objects::file::Bytes;

    fn state() -> EngineState {
        EngineState::new(View::new(&stat(2, Kind::Dir), Duration::ZERO))
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
            st.push(lsn, Duration::ZERO, Change::Content { ino, at: at.clone(), content: content.clone() });
            let mut io = file.io.write();
            file.place(&mut io, Bytes::Object(object), None);
            file.add_pending_version(&mut io, content);
        };
        version(&mut st, 1, 5);
        st.rest(ino);
        let is_awake = |st: &EngineState| st.view.get(ino).expect("it is pending").file.is_some();
        assert!(is_awake(&st), "somebody has it");
        version(&mut st, 2, 9);
        drop(file);
        st.rest(ino);
        st.view.collect(ino);
        assert!(!is_awake(&st) && st.view.get(ino).expect("it is pending").holds_bytes());

        let file = st.known_file(ino).expect("its versions say all");
        let io = file.io.read();
        let newest = st.contents[&ino].back().map(|(_, content)| content);
        assert!(io.object() == Some(object) && io.has_event && !io.dirty && file.holds_bytes());
        assert!(io.latest.as_ref().zip(newest).is_some_and(|(latest, newest)| Arc::ptr_eq(latest, newest)));
        assert_eq!((io.pending_versions.iter().count(), file.is_guarded(8), file.is_guarded(9)), (2, true, false));
        drop(io);
        file.io.write().dirty = true;
        drop(file);
        st.rest(ino);
        assert!(is_awake(&st), "it is ahead of its versions");
        let file = st.known_file(ino).expect("it is awake");
        file.io.write().dirty = false;
        file.failed.store(true, Ordering::Release);
        drop(file);
        st.rest(ino);
        assert!(is_awake(&st), "whoever syncs it next must hear that the last one failed");
        st.known_file(ino).expect("it is awake").failed.store(false, Ordering::Release);
        st.rest(ino);
        assert!(!is_awake(&st));
        st.pop(2, 2);
        let file = st.known_file(ino).expect("made before its last version went");
        assert_eq!(file.io.read().object(), Some(object));
    }

    /// An event that is inserted before others has its place before them, so the name it removes is not the last one.
    #[test]
    fn a_removal_that_comes_in_before_another_is_not_the_last() {
        let mut st = state();
        let ino = st.view.new_ino();
        st.view.add(ino, Kind::File, NodeAttrs::default());
        for (lsn, name) in [(5, "other"), (3, "left"), (7, "made")] {
            let at = (ROOT, Name::new(name.as_bytes()).expect("a name"));
            let change = match name {
                "made" => Change::Link { ino, at },
                _ => Change::Remove { ino, at },
            };
            st.push(lsn, Duration::ZERO, change);
        }
        assert_eq!(st.events.iter().map(|event| event.lsn).collect::<Vec<_>>(), [3, 5, 7]);
        assert_eq!(st.unnamed[&ino], 5);
    }

    #[test]
    fn no_more_than_some_are_awake_for_those_who_only_look() {
        let mut st = state();
        let files: Vec<Ino> = (0..2 * MATERIALIZED_KEPT as u64)
            .map(|number| {
                let ino = st.view.new_ino();
                let at = (ROOT, Name::new(format!("f{number}").as_bytes()).expect("a name"));
                st.view.add(ino, Kind::File, NodeAttrs::default());
                st.view.set_view(at.0, &at.1, Some(ino));
                let object = ObjectId { home: Home::Fast, number };
                let content = Arc::new(Content::new(object, 1, Attrs::default(), 0));
                st.push(number + 1, Duration::ZERO, Change::Content { ino, at, content: content.clone() });
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
        let awake = files.iter().filter(|ino| st.view.get(**ino).is_some_and(|node| node.file.is_some()));
        assert_eq!(awake.count(), MATERIALIZED_KEPT);
    }
}
