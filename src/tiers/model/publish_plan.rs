//! What to publish next, and by which steps. Pure: reads the state, decides, changes nothing.
//!
//! Events go to the slow tier in the order of the log, each as a *batch* of its own unless
//!
//! - (a) it is the content of a temporary file that the next event renames or removes: one step takes the slow tree
//!   from before the first event to behind the last, so no state in between is skipped;
//! - (b) a version's bytes no longer exist, because the file was rewritten in place: all events up to the next version
//!   that exists go together;
//! - (c) the tiers are under pressure;
//! - (d) with `drain_policy = "newest"`, a version that has no copy yet is superseded: its name is replaced or removed
//!   by a later event. All events up to that one go together, and the version is skipped ([`skip_end`]).
//!
//! A batch of more than one event is published as a difference: new directories, new names, replacements, attributes,
//! removals. It is cut before an event that moves something the slow tier already has, and before one that the other
//! members of a fleet hold up: the gate is asked for each event separately.
//!
//! A *group* is a run of batches whose steps touch different names and inodes. Its intents are logged at once. No two
//! of its steps touch the same thing, so after a crash each step is recognised as done or not done separately.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::tiers::disk::sync::atomic::Ordering;
use crate::tiers::disk::{FileId, Kind, SlowId};
use crate::tiers::fleet::rule::FleetGate;
use crate::tiers::log::record::{Path, Step};
use crate::tiers::model::event::{Change, Event};
use crate::tiers::model::node::{DirEntryKey, Node};
use crate::tiers::model::queue::QueuedVersion;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::parts::in_part;
use crate::tiers::objects::version::{Content, Copied};
use crate::tiers::{Ino, Lsn};

/// Events in one group, and in one batch under pressure.
pub(super) const GROUP_MAX: usize = 128;
/// Bytes of paths in a group of more than one batch.
const GROUP_PATHS: usize = 256 << 10;
const PRESSURE_MAX: usize = 1024;
/// How many bytes a batch may copy for each byte that it skips. Nothing of the batch is published before all of it is
/// copied, so skipping must be worth the wait: a program that keeps its last four checkpoints has four to copy when the
/// first of them is removed.
const COPIED_FOR_SKIPPED: u64 = 4;
/// How many events are searched for removals that may be published before others.
const AHEAD_MAX: usize = 16_384;

/// What may be published.
#[derive(Debug)]
pub(crate) enum NextToPublish {
    /// Nothing is pending.
    Empty,
    /// The oldest event has not settled.
    Wait(Duration),
    /// The oldest event waits for its bytes to be sealed, copied, or to exist again.
    Blocked,
    /// The oldest event waits for another member of the fleet.
    Gated,
    Batches(Vec<Batch>),
}

/// Events that are published together, as indices into the queue.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) events: Range<usize>,
    pub(crate) upto: Lsn,
    /// The published version of each file with content in the batch, and its event.
    pub(crate) contents: HashMap<Ino, QueuedVersion>,
    /// Files whose version in this batch is gone and replaced by a version of a later event, because the batch was cut:
    /// until that event the slow tree is in the middle of a batch.
    pub(crate) ahead: Vec<(Ino, Lsn)>,
    /// Superseded versions that still have their bytes and are not copied (d): their number and their bytes.
    pub(crate) skipped: (u64, u64),
}

/// A step on the slow tree, and its effect on the view's knowledge of it.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) step: Step,
    pub(crate) effects: Vec<Effect>,
    /// The end of its batch.
    pub(crate) upto: Lsn,
}

#[derive(Debug)]
pub(crate) enum Effect {
    /// The slow tier now has this node (or nothing) there.
    Name(DirEntryKey, Option<Ino>),
    /// The node is this file on the slow tier.
    Identity(Ino, SlowId),
    /// The slow tier's attributes of the node changed.
    Touched(Ino),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PublishPace {
    pub(crate) now: Duration,
    pub(crate) settle: Duration,
    /// The longest time to wait for an event to settle: a file that is written constantly never settles.
    pub(crate) live_after: Duration,
    pub(crate) pressure: bool,
    /// Events up to this one do not wait to settle.
    pub(crate) priority_lsn: Lsn,
    pub(crate) gate: FleetGate,
}

/// Chooses the batches of the next group.
pub(crate) fn next(st: &EngineState, pace: PublishPace) -> NextToPublish {
    next_behind(st, pace, 0)
}

/// Like [`next`], for the group after unapplied LSN `behind`.
pub(crate) fn next_behind(st: &EngineState, pace: PublishPace, behind: Lsn) -> NextToPublish {
    let events = st.queue.events();
    let first = st.queue.index_behind(behind);
    if first == events.len() {
        return NextToPublish::Empty;
    }
    let mut batches: Vec<Batch> = Vec::new();
    let mut touched = TouchedByGroup::default();
    let refused = first_refused(st, pace.gate);
    let mut walk = Walk::behind(behind).up_to(refused);
    let mut at = first;
    while at < events.len() && at < first + GROUP_MAX {
        if refused.is_some_and(|refused| at >= refused) {
            return done_or(batches, NextToPublish::Gated);
        }
        let Some(batch) = batch_at(st, &mut walk, at, pace.pressure) else {
            return done_or(batches, NextToPublish::Blocked);
        };
        let slice: Vec<&Event> = events.range(batch.events.clone()).collect();
        let slice = &slice[..];
        if let Some(left) = unsettled(slice, pace) {
            return done_or(batches, NextToPublish::Wait(left));
        }
        let through = batch.ahead.iter().map(|(_, lsn)| *lsn).max().unwrap_or(0);
        if !is_ready(&batch) || !ready_through(st, &walk, batch.events.end, through, pace.pressure) {
            return done_or(batches, NextToPublish::Blocked);
        }
        // Batches that go into a directory which is not visible yet may share a group.
        let is_seen = behind == 0;
        let alone = (slice.len() > 1 && is_seen)
            || through > batch.upto
            || slice.iter().any(|event| moves_dir(st, &event.change));
        if (alone && !batches.is_empty()) || !touched.add(st, slice) {
            return NextToPublish::Batches(batches);
        }
        at = batch.events.end;
        batches.push(batch);
        if alone {
            break;
        }
    }
    NextToPublish::Batches(batches)
}

/// The index of the first event that the fleet's gate refuses. Events beyond what a group can hold are not asked about;
/// the first of them counts as refused.
pub(crate) fn first_refused(st: &EngineState, gate: FleetGate) -> Option<usize> {
    let refused = |event: &Event| !gate.lets_go(st.queue.stamps(event.lsn).start);
    match gate {
        FleetGate::Open => None,
        _ => {
            let events = st.queue.events();
            let unasked = (events.len() > PRESSURE_MAX).then_some(PRESSURE_MAX);
            events.iter().take(PRESSURE_MAX).position(refused).or(unasked)
        }
    }
}

/// The versions without a copy that a batch needs, in the order of the log.
pub(super) fn missing_in(batch: Batch) -> Vec<(Ino, QueuedVersion)> {
    let mut missing: Vec<_> = batch.contents.into_iter().filter(|(_, (_, content))| !content.is_copied()).collect();
    missing.sort_by_key(|(_, (lsn, _))| *lsn);
    missing
}

/// The versions without a copy that the front of the queue waits for. `refused`: the result of [`first_refused`].
pub(crate) fn missing_at_front(st: &EngineState, pressure: bool, refused: Option<usize>) -> Vec<Lsn> {
    let (mut walk, mut missing) = (Walk::default().up_to(refused), Vec::new());
    let (mut at, mut through) = (0, 0);
    while at == 0 || st.queue.events().get(at).is_some_and(|event| event.lsn <= through) {
        let batch = st.queue.events().get(at).and_then(|_| batch_at(st, &mut walk, at, pressure));
        let Some(batch) = batch else { break };
        at = batch.events.end;
        through = batch.ahead.iter().map(|(_, lsn)| *lsn).max().unwrap_or(0).max(through);
        missing.extend(missing_in(batch).into_iter().map(|(_, (lsn, _))| lsn));
    }
    missing
}

/// The file whose missing version blocks the front of the queue (it was rewritten in place and has not been committed
/// since), and the uptime of the event that waits for it.
pub(crate) fn blocker(st: &EngineState) -> Option<(Ino, Duration)> {
    let events = st.queue.events();
    let mut walk = Walk::default();
    if events.is_empty() || batch_at(st, &mut walk, 0, false).is_some() {
        return None;
    }
    events.iter().enumerate().find_map(|(i, event)| match &event.change {
        Change::Content { ino, content, .. } if !content.exists() && walk.of(st, i, *ino).is_none() => {
            Some((*ino, event.at))
        }
        _ => None,
    })
}

/// Files whose removal may be published before everything in front of it, in log order: no event in front touches the
/// same names or nodes, the files are not open, and the slow tier has them under that name alone.
pub(crate) fn removable_first(st: &EngineState) -> Vec<Ino> {
    let mut touched = TouchedByGroup::default();
    let mut found = Vec::new();
    for event in st.queue.events().iter().take(AHEAD_MAX) {
        let other = TouchedByGroup::by(st, &[event]);
        if let Change::Remove { ino, at } = &event.change
            && is_only_there(st, *ino, at)
            && touched.is_apart_from(&other)
        {
            found.push(*ino);
        }
        touched.extend(other);
    }
    found
}

fn is_only_there(st: &EngineState, ino: Ino, at: &DirEntryKey) -> bool {
    let Some(node) = st.view.get(ino) else { return false };
    let is_open = node.file.as_ref().is_some_and(|file| file.opens.load(Ordering::Acquire) > 0);
    node.kind == Kind::File && !is_open && slow_at(st, at) == Some(ino) && node.slow().len() == 1
}

fn done_or(batches: Vec<Batch>, otherwise: NextToPublish) -> NextToPublish {
    if batches.is_empty() { otherwise } else { NextToPublish::Batches(batches) }
}

fn is_ready(batch: &Batch) -> bool {
    batch.contents.values().all(|(_, content)| content.is_sealed() && content.is_copied())
}

/// For a batch that was cut and contains a version of a later event: whether everything up to that event is ready to
/// follow at once. Only then may the batch begin.
fn ready_through(st: &EngineState, before: &Walk, mut at: usize, through: Lsn, pressure: bool) -> bool {
    let mut walk = Walk { arrived: before.arrived.clone(), refused: before.refused, ..Walk::default() };
    while st.queue.events().get(at).is_some_and(|event| event.lsn <= through) {
        match batch_at(st, &mut walk, at, pressure) {
            Some(batch) if is_ready(&batch) => at = batch.events.end,
            _ => return false,
        }
    }
    true
}

fn unsettled(slice: &[&Event], pace: PublishPace) -> Option<Duration> {
    if pace.pressure {
        return None;
    }
    let (first, last) = (slice.first()?, slice.last()?);
    if first.lsn <= pace.priority_lsn {
        return None;
    }
    let (oldest, newest) = (first.at, last.at);
    let left = (newest + pace.settle).min(oldest + pace.live_after).saturating_sub(pace.now);
    (!left.is_zero()).then_some(left)
}

/// What a group touches so far.
#[derive(Default)]
struct TouchedByGroup {
    places: HashSet<DirEntryKey>,
    inodes: HashSet<Ino>,
    /// The bytes of the paths to the events' names.
    paths: usize,
}

impl TouchedByGroup {
    fn by(st: &EngineState, slice: &[&Event]) -> Self {
        let mut places = HashSet::new();
        let mut inodes = HashSet::new();
        let mut paths = 0;
        for event in slice {
            paths += event.change.places().into_iter().map(|(dir, _)| st.view.path_len(*dir)).sum::<usize>();
            places.extend(event.change.places().into_iter().cloned());
            inodes.extend(event.change.inodes());
        }
        // The node that the slow tier has under a touched name is touched too, and so are all slow names of a touched
        // inode.
        inodes.extend(places.iter().filter_map(|place| slow_at(st, place)));
        for ino in &inodes {
            places.extend(st.view.get(*ino).into_iter().flat_map(|node| node.slow().iter().cloned()));
        }
        TouchedByGroup { places, inodes, paths }
    }

    fn is_apart_from(&self, other: &TouchedByGroup) -> bool {
        self.places.is_disjoint(&other.places) && self.inodes.is_disjoint(&other.inodes)
    }

    fn extend(&mut self, other: TouchedByGroup) {
        self.places.extend(other.places);
        self.inodes.extend(other.inodes);
        self.paths += other.paths;
    }

    /// Adds a batch, unless it touches what the group touches already, or the paths of the group would take too much
    /// memory: each step has its whole path, several times.
    fn add(&mut self, st: &EngineState, slice: &[&Event]) -> bool {
        let other = TouchedByGroup::by(st, slice);
        let has_room = self.places.is_empty() || self.paths + other.paths <= GROUP_PATHS;
        let is_apart = has_room && self.is_apart_from(&other);
        if is_apart {
            self.extend(other);
        }
        is_apart
    }
}

fn slow_at(st: &EngineState, (dir, name): &DirEntryKey) -> Option<Ino> {
    st.view.get(*dir)?.dir.as_ref()?.slots.get(name)?.slow()
}

fn on_slow(st: &EngineState, ino: Ino) -> bool {
    st.view.get(ino).is_some_and(|node| node.slow_id().is_some())
}

fn is_dir(st: &EngineState, ino: Ino) -> bool {
    st.view.get(ino).is_some_and(|node| node.kind == Kind::Dir)
}

fn moves_dir(st: &EngineState, change: &Change) -> bool {
    match change {
        Change::Rename { ino, .. } => is_dir(st, *ino),
        Change::Exchange { a, b, .. } => is_dir(st, *a) || is_dir(st, *b),
        _ => false,
    }
}

/// Whether a batch ends before this change: slow directories that move or are removed, with everything below them.
fn cuts(st: &EngineState, change: &Change) -> bool {
    let dir_there = |ino: &Ino| is_dir(st, *ino) && on_slow(st, *ino);
    match change {
        Change::Rename { ino, replaced, .. } => dir_there(ino) || replaced.as_ref().is_some_and(dir_there),
        Change::Exchange { a, b, .. } => is_dir(st, *a) || is_dir(st, *b),
        Change::Remove { ino, .. } => dir_there(ino),
        _ => false,
    }
}

/// Whether event `i` renames a file into another part of the slow tree, right after a version committed for this: a
/// rename cannot cross parts, so the version is placed under the new name and the old name is removed.
fn goes_across(st: &EngineState, i: usize) -> bool {
    let (Some(event), Some(before)) =
        (st.queue.events().get(i), i.checked_sub(1).and_then(|i| st.queue.events().get(i)))
    else {
        return false;
    };
    match (&event.change, &before.change) {
        (Change::Rename { ino, from, to, .. }, Change::Content { ino: same, .. }) => {
            ino == same && st.view.are_apart(from.0, to.0)
        }
        _ => false,
    }
}

/// The batch that begins with event `at`; `None` while a version it needs does not exist.
pub(super) fn batch_at(st: &EngineState, walk: &mut Walk, at: usize, pressure: bool) -> Option<Batch> {
    let all = batch_of(st, walk, at, pressure, at)?;
    let batch = newest_of(st, walk, &all, pressure).unwrap_or(all);
    walk.arrived.extend(batch.contents.keys());
    Some(batch)
}

/// The batch that skips what is superseded, in place of the one that copies `all`, if that is worth it.
fn newest_of(st: &EngineState, walk: &mut Walk, all: &Batch, pressure: bool) -> Option<Batch> {
    let superseded = |i| walk.superseded_by(st, i, usize::MAX).is_some();
    if pressure || !st.queue.has_newest_only() || !all.events.clone().any(superseded) {
        return None;
    }
    let at = all.events.start;
    let batch = batch_of(st, walk, at, pressure, skip_end(st, at))?;
    let copied = batch.contents.values().fold(0_u64, |sum, (_, content)| sum.saturating_add(content.size));
    (copied <= batch.skipped.1.saturating_mul(COPIED_FOR_SKIPPED) && batch.skipped.0 > 0).then_some(batch)
}

/// The end of the events among which a batch that begins with event `at` may extend to skip a version. All of them can
/// go together, and none makes the batch wait: they are sealed, and at most as many as one batch under pressure has.
fn skip_end(st: &EngineState, at: usize) -> usize {
    let end = st.queue.len().min(at + PRESSURE_MAX);
    let ends = |i: &usize| match &st.queue.events()[*i].change {
        Change::Content { content, .. } => !content.exists() || !content.is_sealed(),
        // A change of a node that the slow tier has may be refused there, and nothing can be set aside from a half-done
        // batch.
        Change::Rename { ino, .. }
        | Change::Link { ino, .. }
        | Change::SetAttr { ino, .. }
        | Change::SetXattr { ino, .. }
            if on_slow(st, *ino) =>
        {
            true
        }
        change => *i > at && cuts(st, change),
    };
    (at..end).find(ends).unwrap_or(end)
}

/// The batch that begins with event `at`, without weighing its cost: versions that are superseded before the event
/// `skip_below` are skipped.
fn batch_of(st: &EngineState, walk: &mut Walk, at: usize, pressure: bool, skip_below: usize) -> Option<Batch> {
    let mut skipped = (0, 0);
    let events = st.queue.events();
    let first = walk.source(st, at, skip_below, &mut skipped)?;
    let mut sources = vec![first];
    let mut end = adjacent_end(st, walk, at);
    if pressure && !cuts(st, &events[at].change) {
        end = events.len().min(at + PRESSURE_MAX);
    }
    // A version that no longer exists is replaced by the next one that does; the batch extends to that one.
    let mut needed = first + 1;
    end = end.max(needed);
    for i in at + 1.. {
        if i >= end {
            if !goes_across(st, i) {
                break;
            }
            // Its bytes are in the version before it.
            end = i + 1;
        }
        match walk.source(st, i, skip_below, &mut skipped) {
            Some(j) => {
                sources.push(j);
                if j > i {
                    needed = needed.max(j + 1);
                    end = end.max(needed);
                }
            }
            // Event `i` has no bytes yet: end before it, as no earlier event needs it.
            None if pressure || i >= needed => end = i,
            None => return None,
        }
    }
    // Not for a batch that begins behind the refused event: where that will be cut is not known yet.
    if let Some(refused) = walk.refused.filter(|refused| at < *refused && !left_out!(GateEach)) {
        if needed > refused {
            return None;
        }
        end = end.min(refused);
    }
    if let Some(cut) = (at + 1..end).find(|i| cuts(st, &events[*i].change)) {
        end = cut;
    }
    let mut contents = HashMap::new();
    let mut ahead = Vec::new();
    for (event, j) in events.range(at..end).zip(sources) {
        if let Change::Content { ino, .. } = &event.change {
            ahead.extend((j >= end).then(|| (*ino, events[j].lsn)));
            match (events[j].lsn, &events[j].change) {
                (lsn, Change::Content { content, .. }) if !content.is_early() => {
                    contents.insert(*ino, (lsn, content.clone()));
                }
                // The file is there already, or was removed before it existed whole again: nothing to publish.
                _ => {
                    contents.remove(ino);
                }
            }
        }
    }
    // Files that the batch itself removes need no copy.
    let gone = removed_in(st, walk, events.range(at..end));
    contents.retain(|ino, _| !gone.contains(ino));
    Some(Batch { events: at..end, upto: events[end - 1].lsn, contents, ahead, skipped })
}

/// State of a walk through the events, from batch to batch.
#[derive(Default)]
pub(super) struct Walk {
    /// The walk begins behind this event: earlier batches bring the earlier versions to the slow tier.
    behind: Lsn,
    /// Results of [`stand_in`], by file: each file's history is searched once, not once per version.
    stands: HashMap<Ino, (usize, Option<usize>)>,
    /// Files that earlier batches bring to the slow tier.
    arrived: HashSet<Ino>,
    /// Batches are cut before this event.
    refused: Option<usize>,
}

impl Walk {
    pub(super) fn behind(behind: Lsn) -> Self {
        Walk { behind, ..Walk::default() }
    }

    /// Cuts batches before this event, the result of [`first_refused`].
    pub(super) fn up_to(self, refused: Option<usize>) -> Self {
        Walk { refused, ..self }
    }

    /// Whether an earlier batch brings the file to the slow tier.
    fn brings(&self, st: &EngineState, ino: Ino) -> bool {
        let has_earlier = || st.queue.versions(ino).next().is_some_and(|(lsn, _)| *lsn <= self.behind);
        self.arrived.contains(&ino) || (self.behind > 0 && has_earlier())
    }

    /// The event that has the bytes of event `i`: itself, or the one that replaces it. `skipped` counts the versions
    /// that still have their bytes and are replaced all the same.
    fn source(&mut self, st: &EngineState, i: usize, skip_below: usize, skipped: &mut (u64, u64)) -> Option<usize> {
        let Change::Content { ino, content, .. } = &st.queue.events()[i].change else { return Some(i) };
        if !content.exists() {
            return self.of(st, i, *ino);
        }
        let newer = self.superseded_by(st, i, skip_below);
        if newer.is_some() {
            *skipped = (skipped.0 + 1, skipped.1 + content.size);
        }
        newer.or(Some(i))
    }

    /// The event before `skip_below` that supersedes event `i`, if that is a version that may be skipped.
    ///
    /// A batch whose copies have begun keeps its end: otherwise, with a program that writes faster than the slow tier
    /// takes it, each batch would grow while it is copied, and none would be published.
    fn superseded_by(&mut self, st: &EngineState, i: usize, skip_below: usize) -> Option<usize> {
        let event = st.queue.events().get(i)?;
        let Change::Content { ino, content, .. } = &event.change else { return None };
        if i >= skip_below || !content.may_be_skipped() {
            return None;
        }
        let newer = self.of(st, i, *ino).filter(|newer| *newer < skip_below)?;
        let begun = st.queue.begun();
        (event.lsn > begun || st.queue.events()[newer].lsn <= begun).then_some(newer)
    }

    /// [`stand_in`], cached: a result for an earlier event is valid up to the event that was found.
    fn of(&mut self, st: &EngineState, i: usize, ino: Ino) -> Option<usize> {
        match self.stands.get(&ino) {
            Some((asked, found)) if *asked <= i && found.is_none_or(|j| j > i) => *found,
            _ => {
                let found = stand_in(st, i, ino);
                self.stands.insert(ino, (i, found));
                found
            }
        }
    }
}

/// The event that replaces content event `i` of `ino`: its next version that exists, or the loss of its last name.
fn stand_in(st: &EngineState, i: usize, ino: Ino) -> Option<usize> {
    let lsn = st.queue.events()[i].lsn;
    let next = st.queue.versions_behind(ino, lsn).find(|(_, content)| content.exists()).map(|(at, _)| *at);
    let gone = || {
        let unnamed = st.view.get(ino).is_none_or(|node| node.links.is_empty());
        st.queue.last_removal(ino).filter(|at| unnamed && *at > lsn)
    };
    let at = next.or_else(gone)?;
    Some(st.queue.events().partition_point(|event| event.lsn < at))
}

/// Files that lose their last name within these events and were never on the slow tier.
fn removed_in<'a>(st: &EngineState, walk: &Walk, slice: impl Iterator<Item = &'a Event> + Clone) -> HashSet<Ino> {
    let linked: HashSet<Ino> = slice
        .clone()
        .filter_map(|event| if let Change::Link { ino, .. } = event.change { Some(ino) } else { None })
        .collect();
    let gone = slice.filter_map(|event| match event.change {
        Change::Remove { ino, .. } | Change::Rename { replaced: Some(ino), .. } => Some(ino),
        _ => None,
    });
    let unnamed = |ino: &Ino| st.view.get(*ino).is_none_or(|node| node.links.is_empty());
    let there = |ino: &Ino| on_slow(st, *ino) || walk.brings(st, *ino);
    gone.filter(|ino| !there(ino) && !linked.contains(ino) && unnamed(ino)).collect()
}

/// Case (a): content of a file new to the slow tier, then its renames, its newer contents, or its removal.
fn adjacent_end(st: &EngineState, walk: &Walk, at: usize) -> usize {
    let events = st.queue.events();
    let (first, mut place) = match &events[at].change {
        Change::Content { ino, at, .. } if !on_slow(st, *ino) && !walk.brings(st, *ino) => (*ino, at.clone()),
        _ => return at + 1,
    };
    // A copied version does not wait for newer ones without a copy: a busy file always has one.
    let (mut copied, mut copied_end) = (is_copied(&events[at]), None);
    let mut end = at + 1;
    while let Some(event) = events.get(end) {
        match &event.change {
            Change::Rename { ino, from, to, .. } if *ino == first && **from == place => place = DirEntryKey::clone(to),
            Change::Content { ino, .. } if *ino == first => match is_copied(event) {
                true => (copied, copied_end) = (true, None),
                false if copied => copied_end = copied_end.or(Some(end)),
                false => {}
            },
            Change::Remove { ino, at, .. } if *ino == first && *at == place => return end + 1,
            _ => break,
        }
        end += 1;
    }
    copied_end.unwrap_or(end)
}

fn is_copied(event: &Event) -> bool {
    matches!(&event.change, Change::Content { content, .. } if content.is_copied())
}

/// The steps of a group's batches. `made` has the prepared nodes of `make` events, by LSN.
///
/// `None` if something that the plan needs is missing; the group is then planned again.
pub(crate) fn steps(st: &EngineState, batches: &[Batch], made: &HashMap<Lsn, Copied>) -> Option<Vec<Planned>> {
    steps_below(st, batches, made, &mut HashMap::new())
}

/// The steps of batches behind others that are not applied yet. `dirs`: the directories that those put on the slow
/// tier; the directories of these batches are added.
pub(crate) fn steps_below(
    st: &EngineState,
    batches: &[Batch],
    made: &HashMap<Lsn, Copied>,
    dirs: &mut HashMap<Ino, DirEntryKey>,
) -> Option<Vec<Planned>> {
    let mut planner = Planner { st, made, dirs: std::mem::take(dirs), out: Vec::new(), upto: 0 };
    for batch in batches {
        planner.upto = batch.upto;
        let events: Vec<&Event> = st.queue.events().range(batch.events.clone()).collect();
        match events[..] {
            [event] => planner.single(event, batch)?,
            _ => planner.difference(&events, batch)?,
        }
    }
    *dirs = planner.dirs;
    Some(planner.out)
}

/// How many batches take more than one step: a reader of the slow tree may see those half done.
pub(crate) fn stepped(batches: &[Batch], planned: &[Planned]) -> u64 {
    // The steps of a batch are consecutive.
    let in_steps = planned.iter().zip(planned.iter().skip(1));
    let in_steps = in_steps.filter(|(step, next)| step.upto == next.upto).map(|(step, _)| step.upto);
    let in_steps: HashSet<Lsn> = in_steps.collect();
    batches.iter().filter(|batch| !batch.ahead.is_empty() || in_steps.contains(&batch.upto)).count() as u64
}

struct Planner<'a> {
    st: &'a EngineState,
    made: &'a HashMap<Lsn, Copied>,
    /// Directories that this group puts on the slow tier.
    dirs: HashMap<Ino, DirEntryKey>,
    out: Vec<Planned>,
    /// The end of the batch that is being planned.
    upto: Lsn,
}

impl Planner<'_> {
    fn add(&mut self, step: Step, effects: Vec<Effect>) {
        self.out.push(Planned { step, effects, upto: self.upto });
    }

    fn path(&self, (dir, name): &DirEntryKey) -> Option<Path> {
        let mut path = match self.dirs.get(dir) {
            Some(place) => self.path(place)?,
            None => self.st.view.slow_path(*dir)?,
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        Some(path)
    }

    /// The node that the slow tier has there.
    fn over(&self, place: &DirEntryKey) -> Option<FileId> {
        self.slow_file(slow_at(self.st, place)?)
    }

    fn slow_file(&self, ino: Ino) -> Option<FileId> {
        self.st.view.get(ino)?.slow_id().map(|id| id.1)
    }

    fn first_slow(&self, ino: Ino) -> Option<Path> {
        self.st.view.slow_path(ino)
    }

    fn place(
        &mut self,
        ino: Ino,
        copied: &Copied,
        suffix: usize,
        at: &DirEntryKey,
        content: Option<&Content>,
    ) -> Option<()> {
        let mut tmp = copied.tmp.clone();
        if suffix > 0 {
            tmp.extend_from_slice(format!(".{suffix}").as_bytes());
        }
        let step = Step::Place {
            tmp,
            id: copied.id.1,
            path: self.path(at)?,
            over: self.over(at),
            node: ino,
            object: content.map(|content| content.object()),
            known: copied.known,
        };
        self.add(step, vec![Effect::Name(at.clone(), Some(ino)), Effect::Identity(ino, copied.id)]);
        Some(())
    }

    fn single(&mut self, event: &Event, batch: &Batch) -> Option<()> {
        match &event.change {
            Change::Make { ino, at, .. } => {
                let copied = self.made.get(&event.lsn)?.clone();
                self.place(*ino, &copied, 0, at, None)?;
                if is_dir(self.st, *ino) {
                    self.dirs.insert(*ino, at.clone());
                }
            }
            Change::Content { ino, at, .. } => {
                if let Some((_, content)) = batch.contents.get(ino) {
                    self.content(*ino, content.clone(), std::slice::from_ref(at))?;
                }
            }
            Change::Link { ino, at } => self.link(*ino, at)?,
            Change::Rename { ino, from, to, .. } => self.rename(*ino, from, to)?,
            Change::Exchange { a, a_at, b, b_at } => self.exchange((*a, a_at), (*b, b_at))?,
            Change::Remove { at, .. } => self.remove(at)?,
            Change::SetAttr { .. } | Change::SetXattr { .. } => self.attributes(event)?,
        }
        Some(())
    }

    /// Places a version under every name that the file has on the slow tier, or under its new names.
    fn content(&mut self, ino: Ino, content: Arc<Content>, new: &[DirEntryKey]) -> Option<()> {
        let copied = content.copy.lock().clone()?;
        let names = self.st.view.get(ino).map(|node| node.slow().to_vec()).filter(|names| !names.is_empty());
        for (i, at) in names.as_deref().unwrap_or(new).iter().enumerate() {
            self.place(ino, &copied, i, at, Some(&content))?;
        }
        Some(())
    }

    fn link(&mut self, ino: Ino, at: &DirEntryKey) -> Option<()> {
        // A file whose content comes later cannot be linked yet; its content will get all its names.
        let (Some(path), Some(slow)) = (self.first_slow(ino), self.slow_file(ino)) else { return Some(()) };
        let step = Step::Link { path, id: slow, to: self.path(at)? };
        self.add(step, vec![Effect::Name(at.clone(), Some(ino)), Effect::Touched(ino)]);
        Some(())
    }

    fn rename(&mut self, ino: Ino, from: &DirEntryKey, to: &DirEntryKey) -> Option<()> {
        if slow_at(self.st, from) != Some(ino) {
            return Some(());
        }
        if slow_at(self.st, to) == Some(ino) {
            return self.remove(from);
        }
        // A foreign file has its number: ours is gone.
        let Some(id) = self.slow_file(ino) else { return Some(()) };
        let step = Step::Move { path: self.path(from)?, id, to: self.path(to)?, over: self.over(to) };
        self.add(
            step,
            vec![Effect::Name(to.clone(), Some(ino)), Effect::Name(from.clone(), None), Effect::Touched(ino)],
        );
        Some(())
    }

    fn exchange(&mut self, (a, a_at): (Ino, &DirEntryKey), (b, b_at): (Ino, &DirEntryKey)) -> Option<()> {
        let there = |ino, at| self.slow_file(ino).filter(|_| slow_at(self.st, at) == Some(ino));
        let (a_id, b_id) = match (there(a, a_at), there(b, b_at)) {
            (Some(a_id), Some(b_id)) => (a_id, b_id),
            // The content of one of them comes later or is gone: the other one still moves.
            (Some(_), None) => return self.rename(a, a_at, b_at),
            (None, Some(_)) => return self.rename(b, b_at, a_at),
            (None, None) => return Some(()),
        };
        let step = Step::Swap { a: self.path(a_at)?, a_id, b: self.path(b_at)?, b_id };
        let effects = vec![
            Effect::Name(b_at.clone(), Some(a)),
            Effect::Name(a_at.clone(), Some(b)),
            // During the exchange one of them had no name for a moment.
            Effect::Identity(a, self.st.view.get(a)?.slow_id()?),
            Effect::Identity(b, self.st.view.get(b)?.slow_id()?),
            Effect::Touched(a),
            Effect::Touched(b),
        ];
        self.add(step, effects);
        Some(())
    }

    fn remove(&mut self, at: &DirEntryKey) -> Option<()> {
        let Some(there) = slow_at(self.st, at) else { return Some(()) };
        let Some(id) = self.slow_file(there) else { return Some(()) };
        let step = Step::Remove { path: self.path(at)?, id, dir: is_dir(self.st, there) };
        self.add(step, vec![Effect::Name(at.clone(), None), Effect::Touched(there)]);
        Some(())
    }

    /// A change of attributes, if the node is on the slow tier or this group brings it there.
    fn attributes(&mut self, event: &Event) -> Option<()> {
        let change = &event.change;
        let ino = *change.inodes().first()?;
        if self.is_overtaken(ino, event.lsn) {
            return Some(());
        }
        let (Some(path), Some(slow)) = (self.first_slow(ino), self.slow_file(ino)) else { return Some(()) };
        self.attributes_at(change, path, slow);
        Some(())
    }

    /// Whether this is an attribute change of a file that loses all its known names on the slow tier, but has unknown
    /// ones there.
    fn leaves_with_others(&self, change: &Change, last: &Last) -> bool {
        let (Change::SetAttr { ino, .. } | Change::SetXattr { ino, .. }) = change else { return false };
        let goes = |place: &DirEntryKey| last.get(place).is_some_and(|(who, _)| *who != Some(*ino));
        let leaves = |node: &Node| node.kind != Kind::Dir && node.has_unlisted_names() && node.slow().iter().all(goes);
        self.st.view.get(*ino).is_some_and(leaves)
    }

    /// Whether the version on the slow tier is newer than the event, because it was published early.
    fn is_overtaken(&self, ino: Ino, lsn: Lsn) -> bool {
        self.st.is_ahead_of(ino, lsn)
    }

    fn attributes_at(&mut self, change: &Change, path: Path, id: FileId) {
        let (step, node) = match change {
            Change::SetAttr { ino: node, of, new } => {
                let new = self.st.in_place.as_overtaken(*node, **new);
                (Step::Attr { path, id: of.slow.unwrap_or(id), of: of.owned, new }, *node)
            }
            Change::SetXattr { ino: node, of, new } => {
                let (key, value) = (**new).clone();
                (Step::Xattr { path, id: of.slow.unwrap_or(id), of: of.owned, key, value }, *node)
            }
            _ => return,
        };
        self.add(step, vec![Effect::Touched(node)]);
    }

    /// A batch as the difference between the slow tree before and after it.
    fn difference(&mut self, events: &[&Event], batch: &Batch) -> Option<()> {
        let last = simulate(self.st, events);
        let mut made: BTreeMap<Lsn, Ino> = BTreeMap::new();
        for event in events {
            if let Change::Make { ino, .. } = &event.change {
                made.insert(event.lsn, *ino);
            }
        }
        let by_ino = places_by_ino(&last);
        let final_places = |ino: Ino| -> Vec<DirEntryKey> { by_ino.get(&ino).cloned().unwrap_or_default() };
        // A file that loses every known name may have unknown ones: it gets its attributes while it can still be found.
        for event in events {
            if self.leaves_with_others(&event.change, &last) {
                self.attributes(event)?;
            }
        }
        // New directories, parents first.
        for ino in made.values().filter(|ino| is_dir(self.st, **ino)) {
            if let Some(place) = final_places(*ino).first() {
                self.dirs.insert(*ino, place.clone());
            }
        }
        let mut new_dirs: Vec<(usize, Lsn, Ino)> = Vec::new();
        for (lsn, ino) in &made {
            let Some(at) = self.dirs.get(ino) else { continue };
            let depth = self.path(at)?.iter().filter(|b| **b == b'/').count();
            new_dirs.push((depth, *lsn, *ino));
        }
        new_dirs.sort_unstable();
        for (_, lsn, ino) in new_dirs {
            let copied = self.made.get(&lsn)?.clone();
            let at = self.dirs.get(&ino)?.clone();
            self.place(ino, &copied, 0, &at, None)?;
        }
        // New names first, replacements second; each in log order.
        let mut new: Vec<(bool, Lsn, Ino)> = Vec::new();
        let mut seen = HashSet::new();
        for event in events {
            let ino = match &event.change {
                Change::Make { ino, .. } if !is_dir(self.st, *ino) => *ino,
                Change::Content { ino, .. } if batch.contents.contains_key(ino) => *ino,
                _ => continue,
            };
            if !seen.insert(ino) {
                continue;
            }
            let replaces =
                on_slow(self.st, ino) || final_places(ino).iter().any(|place| slow_at(self.st, place).is_some());
            new.push((replaces, event.lsn, ino));
        }
        let moved = moved(self.st, batch, &last);
        for (ino, places) in &moved {
            let replaces = places.iter().any(|place| slow_at(self.st, place).is_some());
            let lsn = places.iter().filter_map(|place| last.get(place)).map(|(_, lsn)| *lsn).max();
            new.push((replaces, lsn?, *ino));
        }
        new.sort_unstable();
        for (_, lsn, ino) in new {
            if let Some(places) = moved.get(&ino) {
                self.moved_of_batch(batch, ino, places)?;
            } else if let Some((_, content)) = batch.contents.get(&ino) {
                self.contents_of_batch(ino, content.clone(), &final_places(ino), &last)?;
            } else {
                let copied = self.made.get(&lsn)?.clone();
                for (i, at) in final_places(ino).iter().enumerate() {
                    self.place(ino, &copied, i, at, None)?;
                }
            }
        }
        let placed: HashMap<Ino, (Path, FileId)> = self
            .out
            .iter()
            .filter_map(|planned| match &planned.step {
                Step::Place { id: slow, node, path, .. } => Some((*node, (path.clone(), *slow))),
                _ => None,
            })
            .collect();
        // Attributes, unless the published version already has them.
        for event in events {
            let Some(ino) = event.change.inodes().first().copied() else { continue };
            let newer =
                batch.contents.get(&ino).is_none_or(|(lsn, _)| *lsn < event.lsn) && !self.is_overtaken(ino, event.lsn);
            if matches!(event.change, Change::SetAttr { .. } | Change::SetXattr { .. }) && newer {
                self.attributes_of_batch(&event.change, placed.get(&ino), &final_places(ino), &last)?;
            }
        }
        // Removals in log order.
        for event in events {
            for place in event.change.places() {
                let vanishes = matches!(last.get(place), Some((None, lsn)) if *lsn == event.lsn);
                if vanishes {
                    self.remove(place)?;
                }
            }
        }
        Some(())
    }

    fn contents_of_batch(&mut self, ino: Ino, content: Arc<Content>, new: &[DirEntryKey], last: &Last) -> Option<()> {
        let copied = content.copy.lock().clone()?;
        let old = self.st.view.get(ino).map(|node| node.slow().to_vec()).unwrap_or_default();
        // Names it keeps, and names it gets.
        let mut names: Vec<DirEntryKey> =
            old.into_iter().filter(|place| last.get(place).is_none_or(|(who, _)| *who == Some(ino))).collect();
        for place in new {
            if !names.contains(place) {
                names.push(place.clone());
            }
        }
        for (i, at) in names.iter().enumerate() {
            self.place(ino, &copied, i, at, Some(&content))?;
        }
        Some(())
    }

    /// New names of a node that the slow tier had before and whose bytes do not change. They come from a link in `tmp`,
    /// so names may be swapped and chained: nothing is overwritten before its node has another link.
    fn moved_of_batch(&mut self, batch: &Batch, ino: Ino, places: &[DirEntryKey]) -> Option<()> {
        // Its stat is not recorded: openers may write to it in place.
        let (tmp, id) = (link_name(self.st, batch.upto, ino), self.st.view.get(ino)?.slow_id()?);
        let copied = Copied { tmp, id, sum: None, known: None };
        for (i, at) in places.iter().enumerate() {
            self.place(ino, &copied, i, at, None)?;
        }
        Some(())
    }

    fn attributes_of_batch(
        &mut self,
        change: &Change,
        placed: Option<&(Path, FileId)>,
        new: &[DirEntryKey],
        last: &Last,
    ) -> Option<()> {
        if let Some((path, slow)) = placed {
            self.attributes_at(change, path.clone(), *slow);
            return Some(());
        }
        let ino = *change.inodes().first()?;
        let kept =
            self.st.view.get(ino)?.slow().iter().find(|place| last.get(place).is_none_or(|(who, _)| *who == Some(ino)));
        let Some(place) = kept.or(new.first()) else { return Some(()) };
        if let (Some(slow), Some(path)) = (self.slow_file(ino), self.path(place)) {
            self.attributes_at(change, path, slow);
        }
        Some(())
    }
}

/// Slow nodes that a batch of several events gives further names without new bytes, and those names.
fn moved(st: &EngineState, batch: &Batch, last: &Last) -> BTreeMap<Ino, Vec<DirEntryKey>> {
    let mut moved: BTreeMap<Ino, Vec<DirEntryKey>> = BTreeMap::new();
    for (place, (who, _)) in last {
        if let Some(ino) = who
            && !batch.contents.contains_key(ino)
            && !is_dir(st, *ino)
            && st.view.get(*ino).is_some_and(|node| node.slow_id().is_some() && !node.slow().contains(place))
        {
            moved.entry(*ino).or_default().push(place.clone());
        }
    }
    moved.values_mut().for_each(|places| places.sort());
    moved
}

/// What must be linked into `tmp` before a batch is published: the nodes, and the names of the links.
pub(crate) fn to_link(st: &EngineState, batch: &Batch) -> Vec<(Ino, Vec<u8>)> {
    if batch.events.len() == 1 {
        return Vec::new();
    }
    let events: Vec<&Event> = st.queue.events().range(batch.events.clone()).collect();
    let moved = moved(st, batch, &simulate(st, &events));
    moved.into_keys().map(|ino| (ino, link_name(st, batch.upto, ino))).collect()
}

/// A name in the `tmp` of the part that the node is in.
fn link_name(st: &EngineState, upto: Lsn, ino: Ino) -> Vec<u8> {
    let name = format!("l{upto:016x}-{ino:x}").into_bytes();
    let dir = st.view.get(ino).and_then(|node| node.slow().first()).map(|place| place.0);
    let part = dir.and_then(|dir| st.view.slow_path(st.view.part_of(dir))).unwrap_or_default();
    in_part(&part, &name)
}

/// The names each node has after the batch, in the order in which it got them.
fn places_by_ino(last: &Last) -> HashMap<Ino, Vec<DirEntryKey>> {
    let mut all: Vec<_> = last.iter().filter_map(|(place, (who, lsn))| Some((*lsn, (*who)?, place))).collect();
    all.sort_unstable_by_key(|(lsn, ..)| *lsn);
    let mut by_ino: HashMap<Ino, Vec<DirEntryKey>> = HashMap::new();
    for (_, ino, place) in all {
        by_ino.entry(ino).or_default().push(place.clone());
    }
    by_ino
}

/// The node that each touched name has after the batch, and the event that set it.
type Last = HashMap<DirEntryKey, (Option<Ino>, Lsn)>;

fn simulate(st: &EngineState, events: &[&Event]) -> Last {
    let mut last: Last = HashMap::new();
    let mut set = |place: &DirEntryKey, who: Option<Ino>, lsn: Lsn| {
        last.insert(place.clone(), (who, lsn));
    };
    for event in events {
        match &event.change {
            Change::Make { ino, at, .. } | Change::Link { ino, at } => set(at, Some(*ino), event.lsn),
            // A file that is on the slow tier keeps its names; a new one appears with its content.
            Change::Content { ino, at, .. } if !on_slow(st, *ino) => set(at, Some(*ino), event.lsn),
            Change::Rename { ino, from, to, .. } => {
                set(to, Some(*ino), event.lsn);
                set(from, None, event.lsn);
            }
            Change::Exchange { a, a_at, b, b_at } => {
                set(b_at, Some(*a), event.lsn);
                set(a_at, Some(*b), event.lsn);
            }
            Change::Remove { at, .. } => set(at, None, event.lsn),
            _ => {}
        }
    }
    last
}
