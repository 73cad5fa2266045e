//! The pending events as an operator sees them, in the order in which they will be published.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::path::escape;
use crate::stats::queue::{EventState, PendingEvent, Queue};
use crate::tiers::model::event::{Change, Event};
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::file::FileState;
use crate::tiers::pending::uncommitted;
use crate::tiers::progress::{copied_in, to_copy};
use crate::tiers::{Ino, Lsn, Tiers};

/// How many paths are listed of cut-off files, and of files being written.
const SHOWN: usize = 100;

impl Tiers {
    /// The pending events; only the first `limit` are listed.
    pub fn queue(&self, limit: usize) -> Queue {
        let status = self.status();
        let held = self.damaged.is_some() || self.held_by_cut_off().is_some();
        let (cut_off_shown, writing_shown) = self.uncommitted_shown(None);
        let st = self.state.lock();
        let mut look = QueueLook::new(self, &st, self.expected_rate(), held);
        let mut queue = Queue {
            events: st.queue.len() as u64,
            held: status.safety.held,
            held_users: status.held_users,
            conflicts: status.exceptions.conflicts,
            cut_off_shown,
            writing_shown,
            conflicts_shown: self.counters.notes.conflicts.lock().iter().cloned().collect(),
            ..Queue::default()
        };
        for (at, event) in st.queue.events().iter().enumerate() {
            queue.bytes_to_copy += to_copy(event, &look.arrivals);
            if at < limit {
                queue.pending.push(look.at(at, event, queue.bytes_to_copy));
            }
        }
        queue
    }

    /// The pending events for a user other than the mount's owner: lists their own events among the first `limit`, in
    /// their places. Of other events, and of what holds the order, only the numbers are shown.
    pub fn queue_of(&self, uid: u32, limit: usize) -> Queue {
        let theirs: HashSet<Lsn> = {
            let st = self.state.lock();
            let owns = |ino: Ino| st.view.get(ino).is_some_and(|node| node.meta().uid == uid);
            let theirs =
                st.queue.events().iter().take(limit).filter(|event| event.change.inodes().into_iter().all(owns));
            theirs.map(|event| event.lsn).collect()
        };
        let mut queue = self.queue(limit);
        queue.pending.retain(|pending| theirs.contains(&pending.lsn));
        const ELSEWHERE: &str = "the mount's owner sees why in .dlio/queue";
        for pending in &mut queue.pending {
            // Another user's change may hold the front, if both are published together.
            let own = pending.path.trim_start_matches('/');
            pending.reason =
                pending.reason.take().map(|why| if why.contains(own) { why } else { ELSEWHERE.to_owned() });
        }
        queue.held = queue.held.map(|_| ELSEWHERE.to_owned());
        queue.held_users.retain(|held| held.uid == uid);
        queue.conflicts_shown.clear();
        (queue.cut_off_shown, queue.writing_shown) = self.uncommitted_shown(Some(uid));
        queue
    }

    /// The first files without a place in the order: those that were cut off, and those that are being written. `of`:
    /// only this user's.
    fn uncommitted_shown(&self, of: Option<u32>) -> (Vec<String>, Vec<String>) {
        let files: Vec<_> = {
            let st = self.state.lock();
            let is_theirs = |ino: Ino| of.is_none_or(|uid| st.view.get(ino).is_some_and(|node| node.meta().uid == uid));
            let files = uncommitted(&st).into_iter().filter(|(ino, ..)| is_theirs(*ino));
            files.filter_map(|(ino, _, file)| Some((format!("/{}", escape(&st.view.path(ino)?)), file))).collect()
        };
        let is_cut_off = |file: &FileState| file.io.try_read().is_some_and(|io| io.interrupted);
        let (cut_off, others): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, file)| is_cut_off(file));
        let is_open = |file: &FileState| file.writers.load(Ordering::Acquire) > 0;
        let writing = others.into_iter().filter(|(_, file)| is_open(file));
        (first(cut_off.into_iter().map(|(path, _)| path)), first(writing.map(|(path, _)| path)))
    }
}

/// The first names.
fn first(paths: impl Iterator<Item = String>) -> Vec<String> {
    let mut paths: Vec<String> = paths.collect();
    paths.sort();
    paths.truncate(SHOWN);
    paths
}

/// The state for one pass over the queue.
struct QueueLook<'a> {
    tiers: &'a Tiers,
    st: &'a EngineState,
    now: Duration,
    settle: Duration,
    /// Bytes per second, if known.
    rate: Option<f64>,
    held: bool,
    arrivals: BTreeMap<Lsn, u64>,
}

impl<'a> QueueLook<'a> {
    /// `held`: nothing is published at all.
    fn new(tiers: &'a Tiers, st: &'a EngineState, rate: Option<f64>, held: bool) -> Self {
        let settle = tiers.options().settle;
        QueueLook { tiers, st, now: tiers.uptime(), settle, rate, held, arrivals: tiers.counters.notes.arrivals() }
    }

    /// Describes event number `at`; `bytes` are to be copied up to and including it.
    fn at(&mut self, at: usize, event: &Event, bytes: u64) -> PendingEvent {
        let failed = self.tiers.counters.notes.failed(event.lsn);
        let settles_in = match event.lsn <= self.tiers.counters.notes.priority_lsn() || self.tiers.has_waiters() {
            true => Duration::ZERO,
            false => (event.at + self.settle).saturating_sub(self.now),
        };
        let state = match &failed {
            Some(_) => EventState::Held,
            None if at == 0 && self.held => EventState::Held,
            None => self.stage(event, settles_in),
        };
        self.held |= state == EventState::Held;
        let copied_in = copied_in(bytes, self.rate);
        let (change, path, to) = self.named(&event.change);
        PendingEvent {
            lsn: event.lsn,
            change: change.to_owned(),
            path,
            to,
            size: if let Change::Content { content, .. } = &event.change { Some(content.size) } else { None },
            done: self.arrivals.get(&event.lsn).copied().filter(|_| state == EventState::Copying),
            state,
            tries: failed.as_ref().map_or(0, |failed| failed.tries),
            reason: failed.map(|failed| failed.reason),
            age: self.now.saturating_sub(event.at),
            // After a held event nothing is known.
            eta: copied_in.filter(|_| !self.held).map(|time| time.max(settles_in)),
        }
    }

    fn stage(&self, event: &Event, settles_in: Duration) -> EventState {
        let unsettled = if settles_in.is_zero() { EventState::Waiting } else { EventState::Settling };
        let Change::Content { content, .. } = &event.change else { return unsettled };
        if !content.exists() {
            EventState::Replaced
        } else if content.is_copied() || content.is_early() {
            EventState::Copied
        } else if !content.is_sealed() {
            EventState::Sealing
        } else if self.arrivals.contains_key(&event.lsn) {
            EventState::Copying
        } else {
            unsettled
        }
    }

    fn named(&self, change: &Change) -> (&'static str, String, Option<String>) {
        let place = |place: &DirEntryKey| match self.st.view.path_at(place) {
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
