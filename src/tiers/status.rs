//! What the engine tells about itself: counters, the state of a file, what only the fast tier has.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Errno, Error, Result};
use crate::path::escape;
use crate::tiers::capacity::policy::Evicting;
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::throttle::Speed;
use crate::tiers::disk::{Kind, Space};
use crate::tiers::model::publish_plan;
use crate::tiers::model::state::{Change, State as EngineState};
use crate::tiers::objects::file::{Bytes, FileState};
use crate::tiers::writeback::queue::{Notes, copied_in, to_copy};
use crate::tiers::{Cx, Ino, Lsn, State, Status, TierKind, Tiers};

/// What each kind of background work last failed with, and whether that is the slow tier not answering.
type Troubles = BTreeMap<&'static str, (bool, String)>;

/// The trouble of a step that has been waiting for long.
const NO_ANSWER: &str = "no answer";
/// Up to so many pending events are looked at by everybody who asks.
const FEW: usize = 1000;
/// What was found of more is told to whoever asks within this time.
const TOLD_FOR: Duration = Duration::from_millis(500);
/// A file is not synced more often than after so many bytes, before its end.
const SYNCED_MIN: u64 = 16 << 20;
/// Of a drain that nothing has come from for so long the rate is 0.
const RATE_WINDOW: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Files that somebody has open.
    pub(crate) open_files: AtomicU64,
    /// What only the fast tier has, as it was last told of many, and when that was.
    told: Mutex<Option<(Duration, Extent)>>,
    pub(crate) late_snapshots: AtomicU64,
    pub(crate) left_out: AtomicU64,
    /// Files that a full slow tier lost ahead of their turn.
    pub(crate) removed_first: AtomicU64,
    pub(crate) in_place_writes: AtomicU64,
    pub(crate) spilled: AtomicU64,
    pub(crate) evictions: AtomicU64,
    /// When somebody last read from the slow tier, in milliseconds of uptime; 0: never.
    slow_read: AtomicU64,
    staged_files: AtomicU64,
    staged_bytes: AtomicU64,
    pub(crate) struck: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) quarantined: AtomicU64,
    pub(crate) evicting: Mutex<Evicting>,
    /// The last object that was not needed could not be deleted.
    pub(crate) undeleted: AtomicBool,
    pub(crate) notes: Notes,
    drained_bytes: AtomicU64,
    drained_files: AtomicU64,
    published_events: AtomicU64,
    batches: AtomicU64,
    conflicts: AtomicU64,
    /// How fast bytes arrive on the slow tier, and when the last ones did.
    speed: Mutex<(Speed, Duration)>,
    slow_space: Mutex<Option<Space>>,
    /// When the fast tier last failed to read or write, in milliseconds of uptime; 0: it never has.
    fast_failed: AtomicU64,
    /// When a tier that had been silent answered, in milliseconds of uptime; 0: it never was.
    answered: AtomicU64,
    troubles: Mutex<Troubles>,
    /// What the file of that name on the fast tier says.
    pub(crate) checkpoints: Mutex<String>,
}

impl Counters {
    /// A version is copied.
    pub(crate) fn drained(&self, bytes: u64) {
        self.drained_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.drained_files.fetch_add(1, Ordering::Relaxed);
    }

    /// The drain has something to copy.
    pub(crate) fn drain_goes_on(&self, now: Duration) {
        self.speed.lock().0.begin(now);
    }

    /// So many bytes more are on the slow tier's disk.
    pub(crate) fn arrived(&self, bytes: u64, now: Duration) {
        let mut speed = self.speed.lock();
        speed.0.arrived(now, bytes);
        speed.1 = now;
    }

    /// About as many bytes as arrive within a second.
    pub(crate) fn second_of_copying(&self) -> u64 {
        self.speed.lock().0.bytes_per_s().map_or(SYNCED_MIN, |rate| (rate as u64).max(SYNCED_MIN))
    }

    /// The drain has nothing to copy, and nothing that is copied waits to be published.
    pub(crate) fn drain_rests(&self) {
        self.speed.lock().0.rest();
    }

    fn rate(&self, now: Duration) -> Option<f64> {
        let speed = self.speed.lock();
        speed.0.bytes_per_s().filter(|_| now.saturating_sub(speed.1) < RATE_WINDOW)
    }

    /// Somebody who waits reads from the slow tier.
    pub(crate) fn read_from_slow(&self, now: Duration) {
        self.slow_read.store(now.as_millis() as u64, Ordering::Relaxed);
    }

    /// Whether that was a moment ago.
    pub(crate) fn reads_from_slow(&self, now: Duration) -> bool {
        const LATELY: u64 = 200;
        let at = self.slow_read.load(Ordering::Relaxed);
        at > 0 && (now.as_millis() as u64).saturating_sub(at) < LATELY
    }

    pub(crate) fn staged(&self, bytes: u64) {
        self.staged_files.fetch_add(1, Ordering::Relaxed);
        self.staged_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn published(&self, events: u64, batches: u64) {
        self.published_events.fetch_add(events, Ordering::Relaxed);
        self.batches.fetch_add(batches, Ordering::Relaxed);
    }

    /// `what` names the files, for `.dlio/queue`.
    pub(crate) fn conflict(&self, what: String) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
        self.notes.conflict(what);
    }

    pub(crate) fn slow_space(&self) -> Option<Space> {
        *self.slow_space.lock()
    }

    pub(crate) fn set_slow_space(&self, space: Space) {
        *self.slow_space.lock() = Some(space);
    }
}

impl Tiers {
    /// An inode's path from the mount root; `None` when it has no name any more.
    pub fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.state.lock().view.path(ino)
    }

    /// The same for messages and statistics: escaped.
    pub fn path_of(&self, ino: Ino) -> Option<String> {
        self.label_of(&self.state.lock(), ino)
    }

    fn label_of(&self, st: &EngineState, ino: Ino) -> Option<String> {
        Some(escape(&st.view.path(ino)?))
    }

    pub(crate) fn label_in(&self, st: &EngineState, ino: Ino) -> String {
        self.label_of(st, ino).unwrap_or_else(|| format!("removed file {ino}"))
    }

    /// The background reports how one kind of its work goes: with what it failed, or that it works.
    pub fn report(&self, work: &'static str, failure: Option<&Error>) {
        let mut troubles = self.counters.troubles.lock();
        match failure {
            Some(error) => {
                self.blame(error);
                troubles.insert(work, (is_silence(error), with_remedy(error)));
            }
            None => {
                // Of a failure that was reported the background tells the end itself.
                if troubles.remove(work).is_some_and(|trouble| trouble.1 == NO_ANSWER) {
                    self.counters.answered.store(self.uptime().as_millis() as u64, Ordering::Relaxed);
                    if !is_unanswered(&troubles) {
                        tracing::info!(work, "the slow tier answers again");
                    }
                }
            }
        }
        self.slow.set_down(troubles.values().any(|(silent, _)| *silent));
    }

    /// The background reports that a step has been waiting for the slow tier, and nothing moves. Until it comes back, what is
    /// known is trusted. Where other work has been answered since it began to wait, it is the next in line and not silent yet.
    pub fn report_silence(&self, work: &'static str, waited: Duration) {
        let answered = Duration::from_millis(self.counters.answered.load(Ordering::Relaxed));
        if !answered.is_zero() && self.uptime() < answered + waited {
            return;
        }
        let mut troubles = self.counters.troubles.lock();
        let told = is_unanswered(&troubles);
        if troubles.insert(work, (true, NO_ANSWER.to_owned())).is_none() && !told {
            tracing::warn!(work, "the slow tier does not answer; nothing is dropped, it goes on when it does");
        }
        self.slow.set_down(true);
    }

    /// Who answers the kernel reports what failed: if that was a disk, a look at the fast tier is due.
    pub fn suspect(&self, error: &Error) {
        if matches!(error, Error::Io { source, .. } if is_broken(source)) {
            self.log.suspect();
            self.blame(error);
        }
    }

    /// What failed may have been the fast tier.
    fn blame(&self, error: &Error) {
        if matches!(error, Error::Io { on_fast: true, source, .. } if is_broken(source)) {
            self.fast_has_failed();
        }
    }

    /// The fast tier could not read or write something.
    pub(crate) fn fast_has_failed(&self) {
        let first = !self.fast_fails();
        self.counters.fast_failed.store(self.uptime().as_millis().max(1) as u64, Ordering::Relaxed);
        if first {
            tracing::error!(
                "the fast tier fails to read or write; new files go to the slow tier until it has not for a minute"
            );
        }
    }

    /// Whether it has failed a moment ago. What is new does not go there then, and what is there goes to the slow tier at once.
    pub(crate) fn fast_fails(&self) -> bool {
        const LATELY: u64 = 60_000;
        let at = self.counters.fast_failed.load(Ordering::Relaxed);
        at > 0 && (self.uptime().as_millis() as u64).saturating_sub(at) < LATELY
    }

    /// Why changes are refused, or not kept on the fast tier. Asks neither tier.
    pub fn refuses_writes(&self) -> Option<&'static str> {
        let refusing = self.refuses_changes(&self.state.lock());
        if self.log.usable().is_err() {
            return Some(
                "the fast tier fails; changes are refused until it is repaired and mounted again, see the log",
            );
        }
        if self.fast_fails() {
            return Some("the fast tier fails to read or write: new files go to the slow tier, see the log");
        }
        refusing.then_some("max_pending changes wait for the slow tier: further ones get ENOSPC")
    }

    /// Rises while bytes are written to the slow tier.
    pub fn copied_bytes(&self) -> u64 {
        self.counters.drained_bytes.load(Ordering::Relaxed) + self.counters.notes.written()
    }

    /// Those of them that are known to be on its disk.
    pub fn arrived_bytes(&self) -> u64 {
        self.counters.drained_bytes.load(Ordering::Relaxed) + self.counters.notes.on_disk()
    }

    /// Bytes that were written and have arrived meanwhile, as far as can be said between two syncs.
    fn in_flight(&self, now: Duration) -> u64 {
        let since_then = now.saturating_sub(self.counters.speed.lock().1).as_secs_f64();
        let at_most = self.counters.rate(now).map_or(0, |rate| (rate * since_then) as u64);
        self.counters.notes.all_unsynced().min(at_most)
    }

    /// Bytes per second that will be copied: as many as lately, no more than `drain_bandwidth` lets through.
    pub(crate) fn expected_rate(&self) -> Option<f64> {
        let lately = self.counters.rate(self.uptime());
        match self.options().drain_bandwidth.filter(|limit| *limit > 0 && !self.urgency.is_on()) {
            Some(limit) => Some(lately.unwrap_or(f64::MAX).min(limit as f64)),
            None => lately,
        }
    }

    pub fn status(&self) -> Status {
        let now = self.uptime();
        let pending = self.pending_extent(now);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        let fast = self.fast.space().unwrap_or_default();
        let refusal = || c.troubles.lock().values().find(|(silent, _)| !silent).map(|trouble| trouble.1.clone());
        // Behind the reason of a refusal, which is what closed it.
        let closed = || self.log.usable().err().map(|error| with_remedy(&error));
        let paused = || self.is_paused().then(|| "the drain is paused; dlio-fs resume continues it".to_owned());
        let held =
            self.damaged.clone().or_else(paused).or_else(refusal).or_else(closed).or_else(|| self.held_by_cut_off());
        let (objects, known_inodes, interrupted, events, applied, refusing, aside) = {
            let st = self.state.lock();
            let cut_off: Vec<_> = st.uncommitted.keys().filter_map(|ino| st.view.get(*ino)?.file.clone()).collect();
            let objects = st.objects.len() + st.view.waiting.len();
            let refusing = self.refuses_changes(&st);
            let (known, events, aside) = (st.view.nodes.len() as u64, st.events.len() as u64, self.aside_extent(&st));
            (objects as u64, known, cut_off, events, st.applied, refusing, aside)
        };
        let waits = self.waits();
        let interrupted =
            interrupted.iter().filter(|file| file.io.try_read().is_some_and(|io| io.interrupted)).count() as u64;
        Status {
            unsafe_files: pending.files,
            unsafe_bytes: pending.bytes,
            pending_events: events,
            oldest: pending.oldest.map(|at| now.saturating_sub(at)),
            // At the rate of before something stood in the way nothing goes on.
            eta: copied_in(pending.to_copy.saturating_sub(self.in_flight(now)), self.expected_rate())
                .filter(|_| held.is_none() && waits.is_none() && !self.slow.is_down()),
            to_copy: pending.to_copy,
            drained_bytes: count(&c.drained_bytes),
            drained_files: count(&c.drained_files),
            published_events: count(&c.published_events),
            drain_bytes_per_s: self.counters.rate(now).unwrap_or(0.0) as u64,
            log_lsn: self.log.last(),
            durable_lsn: self.log.durable(),
            applied_lsn: applied,
            objects,
            evictions: count(&c.evictions),
            copies: self.copies.extent().0,
            copies_bytes: self.copies.extent().1,
            staged_files: count(&c.staged_files),
            staged_bytes: count(&c.staged_bytes),
            known_inodes,
            open_files: count(&c.open_files),
            batches: count(&c.batches),
            late_snapshots: count(&c.late_snapshots),
            in_place_writes: count(&c.in_place_writes),
            conflicts: count(&c.conflicts),
            left_out: count(&c.left_out),
            removed_first: count(&c.removed_first),
            aside: aside.nodes,
            aside_bytes: aside.bytes,
            aside_for: aside.since.map(|since| self.stamp(now).saturating_sub(Duration::from_secs(since))),
            spilled: count(&c.spilled),
            struck: count(&c.struck),
            damaged: count(&c.damaged),
            quarantined: self.pool.quarantined().unwrap_or_else(|_| count(&c.quarantined)),
            held,
            waits_until: waits.map(|closed| closed.until.to_string()),
            slow_down: self.slow.is_down(),
            fast_fails: self.fast_fails(),
            refusing,
            interrupted,
            fast,
            slow: c.slow_space().unwrap_or_default(),
            abilities: self.abilities(),
        }
    }

    /// Everything waits for a version that no longer exists, because whoever wrote over it was cut off by a crash.
    pub(crate) fn held_by_cut_off(&self) -> Option<String> {
        let st = self.state.lock();
        let (ino, _) = publish_plan::blocker(&st)?;
        let cut_off = st.view.get(ino)?.file.as_ref()?.io.try_read()?.interrupted;
        cut_off.then(|| {
            let path = self.label_in(&st, ino);
            format!("/{path} was cut off while it was written over; write it again, or take it as it is: dlio-fs sync")
        })
    }

    /// The same in all. Of many it takes a while, with the lock that everybody needs: so whoever asks within [`TOLD_FOR`] is told the same.
    /// That many are pending is never told late, and so no verdict.
    fn pending_extent(&self, now: Duration) -> Extent {
        let are_many = || {
            let st = self.state.lock();
            st.events.len() + st.uncommitted.len() > FEW
        };
        let told = *self.counters.told.lock();
        if let Some((at, extent)) = told
            && now.saturating_sub(at) < TOLD_FOR
            && are_many()
        {
            return extent;
        }
        let extent = self.pending().extent();
        let told = Some((now, extent)).filter(|_| are_many());
        *self.counters.told.lock() = told;
        extent
    }

    /// What only the fast tier has, node by node.
    fn pending(&self) -> Pending {
        let arrivals = self.counters.notes.arrivals();
        let st = self.state.lock();
        let mut pending = Pending::default();
        for event in &st.events {
            pending.since(event.at);
            pending.to_copy += to_copy(event, &arrivals);
            for ino in event.change.inodes().into_iter().take(1) {
                let node = pending.node(ino, event.at);
                if let Change::Content { content, .. } = &event.change {
                    (node.content, node.bytes) = (true, content.size);
                }
            }
        }
        let uncommitted = uncommitted(&st);
        drop(st);
        for (ino, since, file) in uncommitted {
            pending.since(since);
            let size = self.size_at_once(&file).unwrap_or(0);
            pending.to_copy += size;
            let node = pending.node(ino, since);
            (node.content, node.bytes) = (true, node.bytes.max(size));
        }
        pending
    }

    /// How large a file on the fast tier is, where nobody has to be waited for.
    fn size_at_once(&self, file: &FileState) -> Option<u64> {
        let io = file.io.try_read()?;
        let object = io.object().filter(|object| object.home == crate::tiers::log::record::Home::Fast)?;
        let stat = match io.fd.clone() {
            Some(fd) => fd.stat(),
            None => self.pool.stat(object.number),
        };
        stat.ok().map(|stat| stat.size)
    }

    /// The first writes of the files with bytes that no event has, of those that are `large` or not known to be small.
    pub(crate) fn written_since(&self, large: u64) -> Vec<Duration> {
        let mut files = uncommitted(&self.state.lock());
        files.retain(|(_, _, file)| self.size_at_once(file).is_none_or(|size| size >= large));
        files.into_iter().map(|(_, since, _)| since).collect()
    }

    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending().bytes()
    }

    /// The files whose content only the fast tier has, oldest first.
    pub(crate) fn unsafe_files(&self) -> Vec<Ino> {
        self.pending().oldest_first(|node| node.content)
    }

    /// The paths of which only the fast tier has the newest state, files or not, oldest first, at most `limit`.
    pub fn unsafe_paths(&self, limit: usize) -> Vec<String> {
        let nodes = self.pending().oldest_first(|_| true);
        let st = self.state.lock();
        nodes.into_iter().take(limit).map(|ino| self.label_in(&st, ino)).collect()
    }

    /// The LSN up to which everything must be applied for all of what is written now to be D2.
    pub fn last_lsn(&self) -> Lsn {
        self.log.last()
    }

    pub fn applied_lsn(&self) -> Lsn {
        let st = self.state.lock();
        // With nothing pending everything logged is as applied as it will ever be.
        if st.events.is_empty() { self.log.last() } else { st.applied }
    }

    /// The newest event that something at or below `ino` waits for; `None` when nothing there is pending or uncommitted.
    pub fn pending_below(&self, ino: Ino) -> Option<Lsn> {
        let st = self.state.lock();
        let below = |other: Ino| st.view.is_above(ino, other);
        let touched = st.events.iter().rev().find(|event| {
            event.change.inodes().into_iter().any(below)
                || event.change.places().into_iter().any(|(dir, _)| below(*dir))
        });
        let uncommitted = st.uncommitted.keys().any(|file| below(*file));
        if uncommitted { Some(self.log.last()) } else { touched.map(|event| event.lsn) }
    }

    /// Who owns a file, as the view knows it; nobody else is asked.
    pub fn owner_of(&self, ino: Ino) -> Option<u32> {
        self.state.lock().view.get(ino).map(|node| node.meta().uid)
    }

    /// Who owns what a path, from the root, leads to.
    pub fn owner_at(&self, cx: &Cx, path: &[u8]) -> Result<u32> {
        self.at_path(cx, path, |ino| self.getattr(cx, ino)).map(|attr| attr.uid)
    }

    /// Whether the slow tree is in the middle of changes that are published as one. Waits for the step that is made.
    pub fn is_inside_batch(&self) -> bool {
        let group = self.publishing.lock();
        group.as_ref().is_some_and(|group| !group.followed && group.is_inside_batch())
            || !self.state.lock().early.is_empty()
    }

    /// What an `fsync` of `ino` waits for on the slow tier beyond D1: where a rule says so, the newest event at or below it.
    ///
    /// Errors: see [`Tiers::is_out_of_the_order`].
    pub fn awaited(&self, ino: Ino) -> Result<Option<Lsn>> {
        if !self.options().rules.syncs_to_slow(|| self.path(ino)) {
            return Ok(None);
        }
        match self.pending_below(ino) {
            None => self.is_out_of_the_order(ino).map(|()| None),
            pending => Ok(pending),
        }
    }

    /// Errors: EIO if something at or below `ino` has been set aside: however long one waits, it does not come to the slow tier.
    pub fn is_out_of_the_order(&self, ino: Ino) -> Result<()> {
        let st = self.state.lock();
        let is_aside = st.aside.keys().any(|aside| st.view.is_above(ino, *aside));
        if is_aside { Err(Errno::EIO.into()) } else { Ok(()) }
    }

    /// `user.dlio.state` and `user.dlio.tier` of an inode.
    pub(crate) fn file_status(&self, ino: Ino) -> Result<(State, TierKind)> {
        let (pending, kind, file, aside) = {
            let mut st = self.state.lock();
            let kind = st.view.get(ino).ok_or(Errno::ESTALE)?.kind;
            let aside = st.aside.contains_key(&ino);
            let pending =
                st.uncommitted.contains_key(&ino) || st.events.iter().any(|event| event.change.inodes().contains(&ino));
            (pending, kind, st.known_file(ino), aside)
        };
        let has_copy = kind == Kind::File && self.copy_number(ino).is_some_and(|number| self.copies.has(number));
        let Some(file) = file else {
            if has_copy && !pending {
                return Ok((State::Staged, TierKind::Fast));
            }
            let state = match (pending, aside) {
                (true, _) => State::Dirty,
                (false, true) => State::Saved,
                (false, false) => State::Slow,
            };
            // The bytes of a file without a state are on the slow tier, whatever is pending of its names.
            let fast = (pending || aside) && kind != Kind::File;
            return Ok((state, if fast { TierKind::Fast } else { TierKind::Slow }));
        };
        let (object, has_copy) = {
            let io = file.io.read();
            // Who opened it before the copy was made reads and writes on slow.
            (io.object(), has_copy && (io.copy.is_some() || (io.place == Bytes::Slow && io.fd.is_none())))
        };
        let tier = match object {
            Some(object) if object.home == crate::tiers::log::record::Home::Fast => TierKind::Fast,
            _ => TierKind::Slow,
        };
        let state = if file.failed.load(Ordering::Acquire) {
            State::Failed
        } else if file.draining.load(Ordering::Acquire) {
            State::Draining
        } else if pending {
            State::Dirty
        } else if aside {
            State::Saved
        } else if object.is_some() {
            State::Clean
        } else if has_copy {
            State::Staged
        } else {
            State::Slow
        };
        Ok((state, if state == State::Staged { TierKind::Fast } else { tier }))
    }

    /// Checks what must always hold in memory; for tests.
    pub fn check(&self) {
        let st = self.state.lock();
        st.view.check();
        let mut last = 0;
        for event in &st.events {
            assert!(event.lsn > last && event.lsn > st.applied, "events are in order and behind applied");
            last = event.lsn;
        }
        let named: HashSet<Ino> = st.bound.values().map(|(ino, _)| *ino).collect();
        assert_eq!(named.len(), st.bound.len(), "one bind record a file");
    }
}

/// Files with bytes that no event has, and since when.
fn uncommitted(st: &EngineState) -> Vec<(Ino, Duration, Arc<FileState>)> {
    let files = st.uncommitted.iter();
    files.filter_map(|(ino, since)| Some((*ino, *since, st.view.get(*ino)?.file.clone()?))).collect()
}

/// Whether some work is known to wait for an answer.
fn is_unanswered(troubles: &Troubles) -> bool {
    troubles.values().any(|(_, why)| why == NO_ANSWER)
}

/// A slow tier that does not answer, as against one that refuses.
pub(crate) fn is_silence(error: &Error) -> bool {
    use Errno::{EHOSTDOWN, EHOSTUNREACH, EIO, ENODEV, ENOTCONN, ENXIO, ESTALE, ETIMEDOUT};
    let silent = [EIO, ESTALE, ENOTCONN, ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH, ENXIO, ENODEV];
    matches!(error, Error::Io { on_fast: false, .. }) && silent.contains(&error.errno())
}

/// What holds the order, and what an operator can do about it.
pub(crate) fn with_remedy(error: &Error) -> String {
    let again = "it is tried again until it succeeds";
    let remedy = match (error, error.errno()) {
        // It has brought its own.
        (Error::Refused { .. }, _) => return error.to_string(),
        (Error::Io { on_fast: true, .. }, Errno::ENOSPC | Errno::EDQUOT) => {
            "free space or raise the quota on the fast tier"
        }
        (Error::Io { on_fast: true, .. }, Errno::EIO) => {
            "the fast tier fails (see dmesg): write the file under a new name"
        }
        (Error::Io { on_fast: true, .. }, _) => again,
        (_, Errno::ENOSPC | Errno::EDQUOT) => "free space or raise the quota on the slow tier",
        (_, Errno::EACCES | Errno::EPERM) => {
            "let dlio-fs write to the slow tier: mode and owner of the directory, chattr -i, no_root_squash"
        }
        (_, Errno::EROFS) => "let dlio-fs write to the slow tier: remount its file system for writing",
        (_, Errno::EIO) => {
            "it is tried again; if the slow tier's file system was shut down (see dmesg), leave with dlio-fs umount --now, \
             unmount and mount that, and mount again"
        }
        (_, Errno::ENOTDIR | Errno::ELOOP) => {
            "something else has the name of its directory on the slow tier: move that away"
        }
        (_, Errno::ENAMETOOLONG) => "the slow tier does not take this name: rename the file in the mount",
        _ => again,
    };
    let last = match error {
        // What is silent answers again some time, and what only lacks room gets it.
        Error::Io { on_fast: false, .. } if !is_silence(error) => "; or, last of all, dlio-fs set-aside PATH",
        _ => "",
    };
    format!("{error}; {remedy}{last}")
}

#[derive(Default)]
struct Pending {
    nodes: BTreeMap<Ino, PendingNode>,
    oldest: Option<Duration>,
    to_copy: u64,
}

struct PendingNode {
    since: Duration,
    /// It is a file with a content that the slow tier does not have, and not just a name or attributes.
    content: bool,
    bytes: u64,
}

/// What is pending in all: files with a content that the slow tier does not have, and their bytes.
#[derive(Clone, Copy, Debug)]
struct Extent {
    files: u64,
    bytes: u64,
    oldest: Option<Duration>,
    /// Bytes that are not on the slow tier's disk yet, those of a version that is on its way but for what has arrived.
    to_copy: u64,
}

impl Pending {
    fn extent(&self) -> Extent {
        let files = self.nodes.values().filter(|node| node.content).count() as u64;
        Extent { files, bytes: self.bytes(), oldest: self.oldest, to_copy: self.to_copy }
    }

    fn since(&mut self, at: Duration) {
        self.oldest = Some(self.oldest.map_or(at, |oldest| oldest.min(at)));
    }

    fn node(&mut self, ino: Ino, since: Duration) -> &mut PendingNode {
        self.nodes.entry(ino).or_insert(PendingNode { since, content: false, bytes: 0 })
    }

    fn bytes(&self) -> u64 {
        self.nodes.values().map(|node| node.bytes).sum()
    }

    fn oldest_first(&self, chosen: impl Fn(&PendingNode) -> bool) -> Vec<Ino> {
        let chosen = self.nodes.iter().filter(|(_, node)| chosen(node));
        let mut nodes: Vec<_> = chosen.map(|(ino, node)| (node.since, *ino)).collect();
        nodes.sort_unstable();
        nodes.into_iter().map(|(_, ino)| ino).collect()
    }
}

/// Not what was asked for, but the disk below is at fault.
pub(crate) fn is_broken(error: &std::io::Error) -> bool {
    const CODES: [Errno; 5] = [Errno::EIO, Errno::ENODEV, Errno::ENXIO, Errno::EROFS, Errno::EUCLEAN];
    error.raw_os_error().is_some_and(|code| CODES.contains(&Errno::from_raw(code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_on_the_fast_tier_is_not_told_as_the_slow_one_s() {
        let (fast, slow) = (
            |errno: Errno| Error::io_on_fast("append", "log", errno.into()),
            |errno: Errno| Error::io("append", "log", errno.into()),
        );
        assert!(is_silence(&slow(Errno::EIO)) && !is_silence(&fast(Errno::EIO)));
        for errno in [Errno::ENOSPC, Errno::EDQUOT, Errno::EIO] {
            let text = with_remedy(&fast(errno));
            assert!(text.starts_with("append log on the fast tier: ") && !text.contains("slow tier"), "{text}");
        }
        let remedy = "; free space or raise the quota on the slow tier; or, last of all, dlio-fs set-aside PATH";
        assert!(with_remedy(&slow(Errno::ENOSPC)).ends_with(remedy));
        let refused = Error::refused("what", "its own remedy");
        assert_eq!(with_remedy(&refused), "what; its own remedy");
    }
}
