//! The pending events as an operator sees them, in the order in which they will be published, and hurrying one of them.
//!
//! Publishing stays in order (P1). What is moved to the front has its bytes copied before all others; it is published once
//! everything before it is, so that is hurried too: nothing up to it waits for `settle`.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Errno, Error, Result};
use crate::path::escape;
use crate::stats::queue::{Pending, Queue, State as Stage};
use crate::tiers::disk::sync::Mutex;
use crate::tiers::model::node::Place;
use crate::tiers::model::state::{Change, Event, State};
use crate::tiers::objects::file::Content;
use crate::tiers::status::{is_silence, with_remedy};
use crate::tiers::{Cx, Ino, Lsn, Tiers};

/// How many conflicts are remembered by name.
const CONFLICTS_KEPT: usize = 100;
/// So much of what is aside is named.
const ASIDE_SHOWN: usize = 100;

/// What happened to events that are still pending, for those who look.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Versions on their way, and how far they are.
    copying: Mutex<BTreeMap<Lsn, CopyProgress>>,
    /// By event, and what failed: to copy it, or to publish it.
    failed: Mutex<BTreeMap<(Lsn, Work), Failed>>,
    conflicts: Mutex<VecDeque<String>>,
    /// The event in front when a step was last refused, for another reason than that there is no room; 0: none was.
    refused: AtomicU64,
    /// How often what an event is to place has been removed from `tmp` by somebody else.
    vanished: Mutex<BTreeMap<Lsn, u32>>,
    /// Everything up to this event is hurried; this file's bytes are copied first.
    front: AtomicU64,
    front_ino: AtomicU64,
}

/// How far the copy of a version is.
#[derive(Clone, Copy, Debug, Default)]
struct CopyProgress {
    /// The end of what was written, and of what is known to be on the disk.
    written: u64,
    arrived: u64,
    /// Bytes from the one to the other, without holes.
    unsynced: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    Copy,
    Publish,
}

#[derive(Clone, Debug)]
struct Failed {
    tries: u32,
    reason: String,
}

impl Notes {
    /// A version is on its way from here on, and shown so.
    pub(crate) fn copying(&self, lsn: Lsn) {
        self.copying.lock().insert(lsn, CopyProgress::default());
    }

    /// It has arrived, or what failed. Returns how many of its bytes were not known to be on the disk.
    pub(crate) fn copying_ended(&self, lsn: Lsn, error: Option<&Error>) -> u64 {
        let way = self.copying.lock().remove(&lsn).unwrap_or_default();
        self.tried(lsn, Work::Copy, error);
        way.unsynced
    }

    /// So many bytes of the version were written, or read back.
    pub(crate) fn copied(&self, lsn: Lsn, bytes: u64) {
        if let Some(way) = self.copying.lock().get_mut(&lsn) {
            way.written = bytes;
        }
    }

    /// So many bytes more of the version were written; how many are not known to be on the disk.
    pub(crate) fn unsynced(&self, lsn: Lsn, more: u64) -> u64 {
        let mut copying = self.copying.lock();
        let Some(way) = copying.get_mut(&lsn) else { return 0 };
        way.unsynced += more;
        way.unsynced
    }

    /// The version is on the disk up to here. Returns how many bytes more these are.
    pub(crate) fn arrived(&self, lsn: Lsn, end: u64) -> u64 {
        let mut copying = self.copying.lock();
        let Some(way) = copying.get_mut(&lsn) else { return 0 };
        way.arrived = end;
        std::mem::take(&mut way.unsynced)
    }

    /// Bytes of the versions on their way that were written.
    pub(crate) fn written(&self) -> u64 {
        self.copying.lock().values().map(|way| way.written).sum()
    }

    /// Bytes of the versions on their way that are on the disk.
    pub(crate) fn on_disk(&self) -> u64 {
        self.copying.lock().values().map(|way| way.arrived).sum()
    }

    /// Bytes that were written and are not known to be on the disk.
    pub(crate) fn all_unsynced(&self) -> u64 {
        self.copying.lock().values().map(|way| way.unsynced).sum()
    }

    /// Of each version on its way, the bytes that are on the disk. No more than are copied at once.
    pub(crate) fn arrivals(&self) -> BTreeMap<Lsn, u64> {
        self.copying.lock().iter().map(|(lsn, way)| (*lsn, way.arrived)).collect()
    }

    /// Counts an attempt that failed; one that succeeded makes the earlier ones forgotten.
    pub(crate) fn tried(&self, lsn: Lsn, work: Work, error: Option<&Error>) {
        if work == Work::Publish {
            let refused = error.is_some_and(|error| !is_silence(error) && !lacks_room(error));
            self.refused.store(if refused { lsn } else { 0 }, Ordering::Relaxed);
        }
        let mut failed = self.failed.lock();
        match error {
            Some(error) => {
                let before = failed.get(&(lsn, work)).map_or(0, |failed| failed.tries);
                let failure = Failed { tries: before.saturating_add(1), reason: with_remedy(error) };
                failed.insert((lsn, work), failure);
            }
            None => drop(failed.remove(&(lsn, work))),
        }
    }

    /// Forgets what was noted for events that are applied.
    pub(crate) fn applied(&self, upto: Lsn) {
        self.failed.lock().retain(|(lsn, _), _| *lsn > upto);
        self.vanished.lock().retain(|lsn, _| *lsn > upto);
    }

    /// Forgets what was noted for events that have left the order.
    pub(crate) fn forget(&self, events: &HashSet<Lsn>) {
        self.failed.lock().retain(|(lsn, _), _| !events.contains(lsn));
        self.vanished.lock().retain(|lsn, _| !events.contains(lsn));
    }

    /// Whether a step was refused while this event was in front.
    pub(crate) fn is_refused(&self, front: Lsn) -> bool {
        self.refused.load(Ordering::Relaxed) == front && front > 0
    }

    /// Once more; returns how often by now.
    pub(crate) fn vanished(&self, lsn: Lsn) -> u32 {
        let mut vanished = self.vanished.lock();
        let count = vanished.entry(lsn).or_default();
        *count += 1;
        *count
    }

    pub(crate) fn conflict(&self, what: String) {
        let mut conflicts = self.conflicts.lock();
        if conflicts.len() == CONFLICTS_KEPT {
            conflicts.pop_front();
        }
        conflicts.push_back(what);
    }

    fn failed(&self, lsn: Lsn) -> Option<Failed> {
        let failed = self.failed.lock();
        let mut of_event = failed.range((lsn, Work::Copy)..=(lsn, Work::Publish)).map(|(_, failed)| failed);
        let first = of_event.next()?.clone();
        Some(Failed { tries: of_event.fold(first.tries, |sum, failed| sum.saturating_add(failed.tries)), ..first })
    }

    /// Everything up to here is hurried.
    pub(crate) fn front(&self) -> Lsn {
        self.front.load(Ordering::Relaxed)
    }
}

/// Bytes that are still to be copied for an event; `arrivals` as [`Notes::arrivals`] has them.
pub(crate) fn to_copy(event: &Event, arrivals: &BTreeMap<Lsn, u64>) -> u64 {
    match &event.change {
        Change::Content { content, .. } if content.exists() && !content.is_copied() => {
            content.size.saturating_sub(arrivals.get(&event.lsn).copied().unwrap_or(0))
        }
        _ => 0,
    }
}

/// How long so many bytes take at a rate.
pub(crate) fn copied_in(bytes: u64, rate: Option<f64>) -> Option<Duration> {
    match rate {
        _ if bytes == 0 => Some(Duration::ZERO),
        Some(rate) => Duration::try_from_secs_f64(bytes as f64 / rate).ok(),
        None => None,
    }
}

/// Room may come by what is behind.
fn lacks_room(error: &Error) -> bool {
    matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT)
}

impl Tiers {
    /// What is pending, the first `limit` events of it.
    pub fn queue(&self, limit: usize) -> Queue {
        let status = self.status();
        let held = self.damaged.is_some() || self.held_by_cut_off().is_some();
        let aside_shown = self.aside_paths(ASIDE_SHOWN).into_iter().map(|path| format!("/{path}")).collect();
        let st = self.state.lock();
        let mut look = Look::new(self, &st, self.expected_rate(), held);
        let mut queue = Queue {
            events: st.events.len() as u64,
            held: status.held,
            conflicts: status.conflicts,
            aside: status.aside,
            aside_shown,
            conflicts_shown: self.counters.notes.conflicts.lock().iter().cloned().collect(),
            ..Queue::default()
        };
        for (at, event) in st.events.iter().enumerate() {
            queue.bytes_to_copy += to_copy(event, &look.arrivals);
            if at < limit {
                queue.pending.push(look.at(at, event, queue.bytes_to_copy));
            }
        }
        queue
    }

    /// The same for a user who is not the mount's owner: their own events of the first `limit`, in their places. Of the others, and of what
    /// holds the order, the numbers are told.
    pub fn queue_of(&self, uid: u32, limit: usize) -> Queue {
        let theirs: HashSet<Lsn> = {
            let st = self.state.lock();
            let owns = |ino: Ino| st.view.get(ino).is_some_and(|node| node.meta().uid == uid);
            let theirs = st.events.iter().take(limit).filter(|event| event.change.inodes().into_iter().all(owns));
            theirs.map(|event| event.lsn).collect()
        };
        let mut queue = self.queue(limit);
        queue.pending.retain(|pending| theirs.contains(&pending.lsn));
        const ELSEWHERE: &str = "the mount's owner sees why in .dlio/queue";
        for pending in &mut queue.pending {
            // What the front is held by may be a change that is published together with it: another user's.
            let own = pending.path.trim_start_matches('/');
            pending.reason =
                pending.reason.take().map(|why| if why.contains(own) { why } else { ELSEWHERE.to_owned() });
        }
        queue.held = queue.held.map(|_| ELSEWHERE.to_owned());
        queue.conflicts_shown.clear();
        queue.aside_shown.clear();
        queue
    }

    /// Hurries the newest event at or below `ino` and everything before it, and copies its bytes before all others. What
    /// was written to the file gets its place in the order first. Returns how many events have to be published; `None` if
    /// nothing there is pending.
    pub fn to_front(&self, cx: &Cx, ino: Ino) -> Result<Option<u64>> {
        let file = self.state.lock().known_file(ino);
        // What a crash cut off is accepted by a sync only.
        if let Some(file) = file.filter(|file| !file.io.read().interrupted) {
            self.commit(cx, &file)?;
        }
        let Some(lsn) = self.pending_below(ino) else { return Ok(None) };
        let notes = &self.counters.notes;
        notes.front_ino.store(ino, Ordering::Relaxed);
        notes.front.store(lsn, Ordering::Relaxed);
        let before = self.state.lock().events.iter().take_while(|event| event.lsn <= lsn).count() as u64;
        self.wake();
        Ok(Some(before))
    }

    /// The version to copy before all others: the newest of the file that was moved to the front.
    pub(crate) fn first_to_copy(&self, st: &State) -> Option<(Lsn, Ino, Arc<Content>)> {
        let ino = self.counters.notes.front_ino.load(Ordering::Relaxed);
        let (lsn, content) = st.contents.get(&ino)?.back()?;
        let wanted = *lsn <= self.counters.notes.front() && content.exists() && !content.is_copied();
        wanted.then(|| (*lsn, ino, content.clone()))
    }
}

/// One look at the queue.
struct Look<'a> {
    tiers: &'a Tiers,
    st: &'a State,
    now: Duration,
    settle: Duration,
    /// Bytes per second, where that is known.
    rate: Option<f64>,
    held: bool,
    arrivals: BTreeMap<Lsn, u64>,
}

impl<'a> Look<'a> {
    /// `held`: nothing is published at all.
    fn new(tiers: &'a Tiers, st: &'a State, rate: Option<f64>, held: bool) -> Self {
        let settle = tiers.options().settle;
        Look { tiers, st, now: tiers.uptime(), settle, rate, held, arrivals: tiers.counters.notes.arrivals() }
    }

    /// Event number `at`; `bytes` are to be copied up to it, and with it.
    fn at(&mut self, at: usize, event: &Event, bytes: u64) -> Pending {
        let failed = self.tiers.counters.notes.failed(event.lsn);
        let settles_in = match event.lsn <= self.tiers.counters.notes.front() || self.tiers.hurried() {
            true => Duration::ZERO,
            false => (event.at + self.settle).saturating_sub(self.now),
        };
        let state = match &failed {
            Some(_) => Stage::Held,
            None if at == 0 && self.held => Stage::Held,
            None => self.stage(event, settles_in),
        };
        self.held |= state == Stage::Held;
        let copied_in = copied_in(bytes, self.rate);
        let (change, path, to) = self.named(&event.change);
        Pending {
            lsn: event.lsn,
            change,
            path,
            to,
            size: if let Change::Content { content, .. } = &event.change { Some(content.size) } else { None },
            done: self.arrivals.get(&event.lsn).copied().filter(|_| state == Stage::Copying),
            state,
            tries: failed.as_ref().map_or(0, |failed| failed.tries),
            reason: failed.map(|failed| failed.reason),
            age: self.now.saturating_sub(event.at),
            // Behind what is held nothing is known.
            eta: copied_in.filter(|_| !self.held).map(|time| time.max(settles_in)),
        }
    }

    fn stage(&self, event: &Event, settles_in: Duration) -> Stage {
        let unsettled = if settles_in.is_zero() { Stage::Waiting } else { Stage::Settling };
        let Change::Content { content, .. } = &event.change else { return unsettled };
        if !content.exists() {
            Stage::Replaced
        } else if content.is_copied() || content.is_early() {
            Stage::Copied
        } else if !content.is_sealed() {
            Stage::Sealing
        } else if self.arrivals.contains_key(&event.lsn) {
            Stage::Copying
        } else {
            unsettled
        }
    }

    fn named(&self, change: &Change) -> (&'static str, String, Option<String>) {
        let place = |place: &Place| match self.st.view.path_at(place) {
            Some(path) => format!("/{}", escape(&path)),
            None => format!("removed directory {}, {}", place.0, place.1),
        };
        let inode = |ino: Ino| match self.st.view.path(ino) {
            Some(path) => format!("/{}", escape(&path)),
            None => format!("removed file {ino}"),
        };
        match change {
            Change::Make { at, .. } => ("make", place(at), None),
            Change::Content { at, .. } => ("content", place(at), None),
            Change::Link { ino, at } => ("link", inode(*ino), Some(place(at))),
            Change::Rename { from, to, .. } => ("rename", place(from), Some(place(to))),
            Change::Exchange { a_at, b_at, .. } => ("exchange", place(a_at), Some(place(b_at))),
            Change::Remove { at, .. } => ("remove", place(at), None),
            Change::SetAttr { ino, .. } | Change::SetXattr { ino, .. } => ("attributes", inode(*ino), None),
        }
    }
}
