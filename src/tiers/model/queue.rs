//! The pending events in the order of the log, and an index of the versions among them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use foldhash::HashMap;

use crate::share::{self, PerUser};
use crate::tiers::log::record::Stamps;
use crate::tiers::model::event::{Change, Event};
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::objects::version::Content;
use crate::tiers::small_deque::SmallDeque;
use crate::tiers::sorted::beside;
use crate::tiers::{Ino, Lsn};

/// Capacity that the queue keeps, in events, when it shrinks.
const EVENTS_KEPT: usize = 1024;

/// A version of a file, and its event.
pub(crate) type QueuedVersion = (Lsn, Arc<Content>);

/// How much is pending, in all and of each user.
#[derive(Debug, Default)]
pub(crate) struct PendingShares {
    events: PerUser,
    bytes: PerUser,
    sum: u64,
}

/// How many events may be pending, and how many bytes ([`Change::bytes`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingMost {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
}

impl PendingShares {
    fn add(&mut self, event: &Event) {
        let bytes = event.change.bytes();
        self.events.add(event.by, 1);
        self.bytes.add(event.by, bytes);
        self.sum += bytes;
    }

    fn remove(&mut self, event: &Event) {
        let bytes = event.change.bytes();
        self.events.remove(event.by, 1);
        self.bytes.remove(event.by, bytes);
        self.sum -= bytes;
    }
}

/// How far the search for versions to copy has come (`model/copy_plan.rs`).
#[derive(Debug, Default)]
pub(super) struct CopyCursor {
    /// All events up to here were looked at.
    pub(super) inspected: Lsn,
    /// The versions among them that are needed and had no copy, in the order in which they are needed.
    pub(super) found: VecDeque<(Ino, QueuedVersion)>,
    /// How many batches were looked at since the start; for tests.
    #[cfg(test)]
    pub(super) looks: usize,
}

impl CopyCursor {
    /// Starts the search at the front again.
    pub(super) fn begin_anew(&mut self) {
        self.inspected = 0;
        self.found.clear();
    }
}

#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    /// Not yet applied, by LSN.
    events: VecDeque<Event>,
    waiting: PendingShares,
    applied: Lsn,
    /// All content events up to here were sealed at the last check; later ones may be.
    sealed: Lsn,
    pub(super) copied: CopyCursor,
    /// Copies of batches up to here have begun: those batches keep their ends.
    begun: Lsn,
    /// There has been a version that may be skipped once it is superseded: without one the search for them is not
    /// needed.
    newest_only: bool,
    /// The slow tier has refused this event: while it is the oldest, nothing is skipped.
    refused: Lsn,
    /// A group of steps that is half done waits for the copy of this version.
    required: Option<(Ino, Lsn)>,
    /// The pending versions, by file.
    versions: HashMap<Ino, SmallDeque<QueuedVersion>>,
    /// The last event that removed a name of a file.
    last_removals: HashMap<Ino, Lsn>,
    /// The events' stamps, by LSN; empty where no fleet needs them.
    stamps: VecDeque<(Lsn, Stamps)>,
    /// The pending events that were moved behind others: their first number and their present one.
    moved: BTreeMap<Lsn, Lsn>,
}

/// What [`EventQueue::rename_place`] has found.
pub(super) struct RenamedPlace {
    /// How many places of events were changed.
    pub(super) changed: u32,
    /// The node that has the name behind these events.
    pub(super) last: Option<Ino>,
    /// A later event gives the former name to another node.
    pub(super) taken: bool,
}

impl EventQueue {
    /// In the order of their LSNs.
    pub(crate) fn events(&self) -> &VecDeque<Event> {
        &self.events
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// About how many bytes the events take, in memory and in the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.waiting.sum
    }

    /// Events and bytes that may still be queued.
    fn left(&self, most: PendingMost) -> (u64, u64) {
        (most.events.saturating_sub(self.len() as u64), most.bytes.saturating_sub(self.waiting.sum))
    }

    /// Whether the queue takes no more from any user.
    pub(crate) fn is_full(&self, most: PendingMost) -> bool {
        let (events, bytes) = self.left(most);
        events == 0 || bytes == 0
    }

    /// Whether this user has all that one user may queue, in events or bytes.
    pub(crate) fn has_share(&self, uid: u32, most: PendingMost) -> bool {
        let (events, bytes) = self.left(most);
        !share::allows(self.waiting.events.of(uid), events) || !share::allows(self.waiting.bytes.of(uid), bytes)
    }

    /// The users whose events are pending.
    pub(crate) fn users(&self) -> impl Iterator<Item = u32> {
        self.waiting.events.iter().map(|(uid, _)| uid)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Everything up to here is on the slow tier.
    pub(crate) fn applied(&self) -> Lsn {
        self.applied
    }

    /// Everything that was first logged with a number up to here is on the slow tier.
    pub(crate) fn all_applied(&self) -> Lsn {
        self.moved.keys().next().map_or(self.applied, |first| self.applied.min(first - 1))
    }

    /// The number with which a pending event was first logged.
    pub(crate) fn first_number(&self, lsn: Lsn) -> Lsn {
        self.moved.iter().find(|(_, now)| **now == lsn).map_or(lsn, |(first, _)| *first)
    }

    /// Whether the event first logged with this number is on the slow tier, with all earlier ones of its user.
    pub(crate) fn has_applied(&self, first: Lsn) -> bool {
        self.moved.get(&first).copied().unwrap_or(first) <= self.applied
    }

    /// The stamps of the pending event that was logged first, not counting the first `skip` events.
    pub(crate) fn oldest_stamps(&self, skip: usize) -> Option<Stamps> {
        let mut events = self.events.iter().skip(skip).map(|event| self.stamps(event.lsn));
        // Stamps rise with the events, unless some were moved.
        if self.moved.is_empty() { events.next() } else { events.min_by_key(|stamps| stamps.end) }
    }

    /// The LSN of the oldest event.
    pub(crate) fn front(&self) -> Option<Lsn> {
        self.events.front().map(|event| event.lsn)
    }

    /// The stamps of a pending event; zero if it has none.
    pub(crate) fn stamps(&self, lsn: Lsn) -> Stamps {
        let at = self.stamps.binary_search_by_key(&lsn, |stamped| stamped.0);
        at.ok().and_then(|at| self.stamps.get(at)).map(|stamped| stamped.1).unwrap_or_default()
    }

    /// Adds the stamps of these events. Their LSNs rise and are larger than those of all events with stamps.
    pub(crate) fn stamp(&mut self, stamps: impl IntoIterator<Item = (Lsn, Stamps)>) {
        self.stamps.extend(stamps);
    }

    /// The events up to this LSN.
    pub(crate) fn up_to(&self, upto: Lsn) -> impl Iterator<Item = &Event> + Clone {
        self.events.iter().take_while(move |event| event.lsn <= upto)
    }

    /// How many events there are up to this LSN: the index of the first one behind it.
    pub(crate) fn index_behind(&self, lsn: Lsn) -> usize {
        self.events.partition_point(|event| event.lsn <= lsn)
    }

    /// The event with this LSN.
    pub(crate) fn event(&self, lsn: Lsn) -> Option<&Event> {
        let at = self.events.binary_search_by_key(&lsn, |event| event.lsn).ok()?;
        self.events.get(at)
    }

    /// The pending versions of a file, oldest first.
    pub(crate) fn versions(&self, ino: Ino) -> impl Iterator<Item = &QueuedVersion> + Clone {
        self.versions.get(&ino).into_iter().flat_map(SmallDeque::iter)
    }

    /// The pending versions of a file behind this event, oldest first.
    pub(crate) fn versions_behind(&self, ino: Ino, lsn: Lsn) -> impl Iterator<Item = &QueuedVersion> {
        self.versions.get(&ino).into_iter().flat_map(move |versions| versions.behind(move |(at, _)| *at <= lsn))
    }

    pub(crate) fn newest_version(&self, ino: Ino) -> Option<&QueuedVersion> {
        self.versions.get(&ino)?.back()
    }

    pub(crate) fn has_versions(&self, ino: Ino) -> bool {
        self.versions.contains_key(&ino)
    }

    /// The pending versions of all files; the files are in no order.
    pub(crate) fn all_versions(&self) -> impl Iterator<Item = &QueuedVersion> {
        self.versions.values().flat_map(SmallDeque::iter)
    }

    /// The newest pending version of each file.
    pub(crate) fn newest_versions(&self) -> impl Iterator<Item = (Ino, &QueuedVersion)> {
        self.versions.iter().filter_map(|(ino, versions)| Some((*ino, versions.back()?)))
    }

    /// The last pending event that removes a name of the file.
    pub(crate) fn last_removal(&self, ino: Ino) -> Option<Lsn> {
        self.last_removals.get(&ino).copied()
    }

    /// The last event of the batches whose copies have begun.
    pub(super) fn begun(&self) -> Lsn {
        self.begun
    }

    pub(super) fn begin_upto(&mut self, upto: Lsn) {
        self.begun = self.begun.max(upto);
    }

    /// Whether a version may have to be skipped once it is superseded.
    pub(super) fn has_newest_only(&self) -> bool {
        self.newest_only && self.front() != Some(self.refused)
    }

    /// Disables skipping while this event, which the slow tier refused, is the oldest: it is to be published by itself,
    /// if possible.
    pub(crate) fn stop_skipping_at(&mut self, refused: Lsn) {
        self.refused = refused;
    }

    /// Requires a copy without which a half-done group cannot go on, even if the file has changed since.
    pub(crate) fn require_copy(&mut self, ino: Ino, lsn: Lsn) {
        self.required = Some((ino, lsn));
    }

    /// The version whose copy a half-done group waits for.
    pub(crate) fn required(&self) -> Option<(Ino, QueuedVersion)> {
        let (ino, lsn) = self.required?;
        let (_, content) = self.versions(ino).find(|(at, _)| *at == lsn)?;
        (content.is_sealed() && content.is_intact() && !content.is_copied()).then(|| (ino, (lsn, content.clone())))
    }

    /// Sets whether the file's newest version (`only_last`), or each one, may be skipped once it is superseded.
    pub(crate) fn set_policy(&mut self, ino: Ino, newest: bool, only_last: bool) {
        self.newest_only |= newest;
        if !self.newest_only {
            return;
        }
        match only_last {
            true => self.newest_version(ino).into_iter().for_each(|(_, content)| content.set_policy(newest)),
            false => self.versions(ino).for_each(|(_, content)| content.set_policy(newest)),
        }
    }

    /// Starts the search for versions to copy at the front again, because a copy is gone.
    pub(crate) fn search_copies_anew(&mut self) {
        self.copied.begin_anew();
    }

    /// Adds an event behind all others or, at a start, in its place among them.
    pub(super) fn push(&mut self, event: Event) {
        let lsn = event.lsn;
        match &event.change {
            Change::Content { ino, content, .. } => {
                self.versions.entry(*ino).or_default().push_back((lsn, content.clone()));
            }
            Change::Remove { ino, .. } | Change::Rename { replaced: Some(ino), .. } => {
                let last = self.last_removals.entry(*ino).or_default();
                *last = lsn.max(*last);
            }
            _ => {}
        }
        // Grow by 25 %, not 2x: the queue may hold a million events.
        if self.events.len() == self.events.capacity() {
            self.events.reserve_exact((self.events.len() / 4).max(64));
        }
        self.waiting.add(&event);
        let behind = self.events.iter().rev().take_while(|other| other.lsn > lsn).count();
        self.events.insert(self.events.len() - behind, event);
    }

    /// Takes out the oldest event, if it is not behind `upto`. Its version stays until [`EventQueue::forget_version`].
    pub(super) fn pop(&mut self, upto: Lsn) -> Option<Event> {
        let event = self.events.pop_front_if(|event| event.lsn <= upto)?;
        self.waiting.remove(&event);
        if let Change::Remove { ino, .. } | Change::Rename { replaced: Some(ino), .. } = &event.change
            && self.last_removals.get(ino) == Some(&event.lsn)
        {
            self.last_removals.remove(ino);
        }
        Some(event)
    }

    /// Everything up to here is applied and popped.
    pub(super) fn set_applied(&mut self, upto: Lsn) {
        // A small queue is not worth shrinking.
        if self.events.capacity() > EVENTS_KEPT && self.events.len() < self.events.capacity() / 4 {
            self.events.shrink_to((self.events.len() * 2).max(EVENTS_KEPT));
        }
        self.applied = self.applied.max(upto);
        while self.stamps.pop_front_if(|stamped| stamped.0 <= upto).is_some() {}
        self.moved.retain(|_, now| *now > upto);
    }

    /// Sets the LSN up to which, by the last daemon's log, everything is applied.
    pub(crate) fn start_behind(&mut self, applied: Lsn) {
        self.applied = applied;
    }

    /// Takes these events out of the order, wherever they are in it; `events` is sorted. Their versions stay until
    /// [`EventQueue::forget_version`].
    pub(super) fn remove_events(&mut self, events: &[Lsn]) -> Vec<Event> {
        let (mut taken, mut left) = (Vec::new(), VecDeque::with_capacity(self.events.len()));
        for event in std::mem::take(&mut self.events) {
            match events.binary_search(&event.lsn) {
                Ok(_) => taken.push(event),
                Err(_) => left.push_back(event),
            }
        }
        self.events = left;
        taken.iter().for_each(|event| self.waiting.remove(event));
        self.last_removals.clear();
        for event in &self.events {
            if let Change::Remove { ino, .. } | Change::Rename { replaced: Some(ino), .. } = &event.change {
                self.last_removals.insert(*ino, event.lsn);
            }
        }
        taken
    }

    /// Whether an event behind `upto` takes the name away from its node; `false`: another node takes the name first.
    /// `None`: no event changes the name.
    pub(crate) fn leaves(&self, upto: Lsn, at: &DirEntryKey) -> Option<bool> {
        let later = self.events.iter().skip(self.index_behind(upto)).map(|event| &event.change);
        let first = later
            .filter(|change| !matches!(change, Change::Content { .. }))
            .find(|change| change.places().contains(&at))?;
        Some(first.frees(at) || matches!(first, Change::Exchange { .. }))
    }

    /// Replaces this name, which `ino` has, by another one in the events behind `upto`, up to the event that frees it
    /// or gives it to a node that had another name until then.
    pub(super) fn rename_place(&mut self, upto: Lsn, at: &DirEntryKey, now: &DirEntryKey, ino: Ino) -> RenamedPlace {
        let mut renamed = RenamedPlace { changed: 0, last: Some(ino), taken: false };
        let behind = self.index_behind(upto);
        for event in self.events.iter_mut().skip(behind).filter(|event| event.change.places().contains(&at)) {
            let frees = event.change.frees(at);
            if !frees && event.change.overwrites() == Some(at) {
                return RenamedPlace { taken: true, ..renamed };
            }
            match &event.change {
                Change::Exchange { a, a_at, b, .. } => renamed.last = Some(if **a_at == *at { *b } else { *a }),
                _ if frees => renamed.last = None,
                _ => {}
            }
            self.waiting.remove(event);
            for place in event.change.places_mut().into_iter().filter(|place| *place == at) {
                *place = now.clone();
                renamed.changed += 1;
            }
            self.waiting.add(event);
            if frees {
                break;
            }
        }
        renamed
    }

    /// Moves these events behind all others. `new`: pairs of the old and the new number; both rise.
    pub(super) fn renumber(&mut self, new: &[(Lsn, Lsn)]) {
        let now = |lsn: Lsn| beside(new, lsn).copied();
        let old: Vec<Lsn> = new.iter().map(|(old, _)| *old).collect();
        let mut files = foldhash::HashSet::default();
        for mut event in self.remove_events(&old) {
            event.lsn = now(event.lsn).unwrap_or(event.lsn);
            if let Change::Content { ino, .. } = &event.change {
                files.insert(*ino);
            }
            if let Change::Remove { ino, .. } | Change::Rename { replaced: Some(ino), .. } = &event.change {
                self.last_removals.insert(*ino, event.lsn);
            }
            self.waiting.add(&event);
            self.events.push_back(event);
        }
        for ino in files {
            let Some(versions) = self.versions.get_mut(&ino) else { continue };
            let mut renumbered = SmallDeque::default();
            let all = versions.iter().map(|(lsn, content)| (now(*lsn).unwrap_or(*lsn), content.clone()));
            all.for_each(|version| renumbered.push_back(version));
            *versions = renumbered;
        }
        let (moved, mut stamps): (VecDeque<_>, VecDeque<_>) =
            self.stamps.drain(..).partition(|(lsn, _)| now(*lsn).is_some());
        stamps.extend(moved.into_iter().map(|(lsn, stamps)| (now(lsn).unwrap_or(lsn), stamps)));
        self.stamps = stamps;
        let again: foldhash::HashSet<Lsn> = self.moved.values().copied().collect();
        self.moved.values_mut().for_each(|lsn| *lsn = now(*lsn).unwrap_or(*lsn));
        self.moved.extend(new.iter().copied().filter(|(old, _)| !again.contains(old)));
        self.search_copies_anew();
    }

    /// Removes the version of an event that has left the queue.
    pub(super) fn forget_version(&mut self, ino: Ino, lsn: Lsn) {
        let Some(versions) = self.versions.get_mut(&ino) else { return };
        let is_first = versions.iter().next().is_some_and(|(first, _)| *first == lsn);
        match is_first {
            true => drop(versions.pop_front()),
            false => versions.retain(|(at, _)| *at != lsn),
        }
        if versions.is_empty() {
            self.versions.remove(&ino);
        }
    }

    /// The first `most` versions, in LSN order, that are not sealed yet and that `which` chooses.
    pub(crate) fn unsealed(&mut self, which: impl Fn(Ino, Lsn) -> bool, most: usize) -> Vec<(Lsn, Ino, Arc<Content>)> {
        let done = |content: &Content| content.is_sealed() || content.is_applied();
        let open = self.events.range(self.index_behind(self.sealed)..).filter_map(|event| match &event.change {
            Change::Content { ino, content, .. } if !done(content) => Some((event.lsn, *ino, content)),
            _ => None,
        });
        let mut open = open.peekable();
        let sealed = match (open.peek(), self.events.back()) {
            (Some((first, ..)), _) => first - 1,
            (None, last) => last.map_or(self.sealed, |last| last.lsn),
        };
        let wanted = open.filter(|(lsn, ino, _)| which(*ino, *lsn));
        let wanted = wanted.take(most).map(|(lsn, ino, content)| (lsn, ino, content.clone())).collect();
        self.sealed = sealed;
        wanted
    }

    /// Panics if the events are not in order or not behind `applied`; for tests.
    pub(crate) fn check(&self) {
        let mut last = self.applied;
        for event in &self.events {
            assert!(event.lsn > last, "events are in order and behind applied");
            last = event.lsn;
        }
        let bytes: u64 = self.events.iter().map(|event| event.change.bytes()).sum();
        let events: u64 = self.waiting.events.iter().map(|(_, events)| events).sum();
        assert_eq!((events, self.waiting.sum), (self.events.len() as u64, bytes), "what waits is counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Name;
    use crate::tiers::ROOT;
    use std::time::Duration;

    /// An event that is inserted before others has its place before them, so the name it removes is not the last one.
    #[test]
    fn a_removal_that_comes_in_before_another_is_not_the_last() {
        let mut queue = EventQueue::default();
        let ino = 2;
        for (lsn, name) in [(5, "other"), (3, "left"), (7, "made")] {
            let at = (ROOT, Name::new(name.as_bytes()).expect("a name"));
            let change = match name {
                "made" => Change::Link { ino, at },
                _ => Change::Remove { ino, at },
            };
            queue.push(Event { lsn, at: Duration::ZERO, by: 0, change });
        }
        assert_eq!(queue.events().iter().map(|event| event.lsn).collect::<Vec<_>>(), [3, 5, 7]);
        assert_eq!(queue.last_removal(ino), Some(5));
    }
}
