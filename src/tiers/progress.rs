//! The progress of pending events, and their failures.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Error;
use crate::tiers::Lsn;
use crate::tiers::disk::errors::{is_silence, lacks_room, with_remedy};
use crate::tiers::disk::sync::Mutex;
use crate::tiers::model::event::{Change, Event};

/// Bytes still to be copied for an event; `arrivals` comes from [`Notes::arrivals`].
pub(crate) fn to_copy(event: &Event, arrivals: &BTreeMap<Lsn, u64>) -> u64 {
    match &event.change {
        Change::Content { content, .. } if content.exists() && !content.is_copied() => {
            content.size.saturating_sub(arrivals.get(&event.lsn).copied().unwrap_or(0))
        }
        _ => 0,
    }
}

/// How long copying `bytes` takes at a rate.
pub(crate) fn copied_in(bytes: u64, rate: Option<f64>) -> Option<Duration> {
    match rate {
        _ if bytes == 0 => Some(Duration::ZERO),
        Some(rate) => Duration::try_from_secs_f64(bytes as f64 / rate).ok(),
        None => None,
    }
}

/// How many conflicts are remembered by name.
pub(crate) const CONFLICTS_KEPT: usize = 100;

/// What happened to events that are still pending, for reports.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Versions that are being copied, and how far they are.
    pub(crate) copying: Mutex<BTreeMap<Lsn, CopyProgress>>,
    /// Failures by event and kind of work: to copy it, or to publish it.
    pub(crate) failed: Mutex<BTreeMap<(Lsn, WorkKind), Failed>>,
    pub(crate) conflicts: Mutex<VecDeque<String>>,
    /// The first event when a step was last refused for a reason other than lack of room; 0: none was.
    pub(crate) refused: AtomicU64,
    /// The state when the slow tier was last full.
    pub(crate) full: Mutex<FullSlowTier>,
    /// How often other programs have removed the prepared node of an event from `tmp`.
    pub(crate) vanished: Mutex<BTreeMap<Lsn, u32>>,
    /// Everything up to this event has priority; the bytes of this file are copied first.
    pub(crate) priority_lsn: AtomicU64,
    pub(crate) priority_ino: AtomicU64,
}

/// What a full slow tier lacks, and what would make room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FullSlowTier {
    /// It has room for bytes, and no inode.
    pub(crate) no_inodes: bool,
    /// Removals wait behind data without room, and might go first.
    pub(crate) removals_wait: bool,
}

impl FullSlowTier {
    /// The error with its remedy.
    pub(crate) fn with_remedy(self, error: &Error) -> String {
        let told = with_remedy(error);
        if !matches!(error, Error::Io { on_fast: false, .. }) || !lacks_room(error) {
            return told;
        }
        let inodes = if self.no_inodes { "; it has no inodes left (df -i): remove files there" } else { "" };
        let removals = match self.removals_wait {
            true => "; removals wait behind it, and `dlio-fs reload -o full_slow=remove-first` lets them go first",
            false => "",
        };
        format!("{told}{inodes}{removals}")
    }
}

/// The progress of the copy of a version.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyProgress {
    /// The end of the written bytes, and of those known to be on the disk.
    pub(crate) written: u64,
    pub(crate) arrived: u64,
    /// Bytes that were written since the last sync began, without holes, and those that a sync in progress covers.
    pub(crate) unsynced: u64,
    pub(crate) syncing: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorkKind {
    Copy,
    Publish,
}

#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) tries: u32,
    pub(crate) reason: String,
}

impl Notes {
    /// Notes that the copy of a version begins, which is then shown.
    pub(crate) fn copying(&self, lsn: Lsn) {
        self.copying.lock().insert(lsn, CopyProgress::default());
    }

    /// Notes that the copy has ended, perhaps with an error. Returns how many of its bytes were not known to be on the
    /// disk.
    pub(crate) fn copying_ended(&self, lsn: Lsn, error: Option<&Error>) -> u64 {
        let way = self.copying.lock().remove(&lsn).unwrap_or_default();
        self.tried(lsn, WorkKind::Copy, error);
        way.unsynced + way.syncing
    }

    /// The version is written up to here. Several streams that write it may report in another order.
    pub(crate) fn written_upto(&self, lsn: Lsn, bytes: u64) {
        if let Some(way) = self.copying.lock().get_mut(&lsn) {
            way.written = way.written.max(bytes);
        }
    }

    /// The version is taken in, or read back, up to this many bytes.
    pub(crate) fn copied(&self, lsn: Lsn, bytes: u64) {
        if let Some(way) = self.copying.lock().get_mut(&lsn) {
            way.written = bytes;
        }
    }

    /// Notes further written bytes of the version; returns how many since its last sync began.
    pub(crate) fn unsynced(&self, lsn: Lsn, more: u64) -> u64 {
        let mut copying = self.copying.lock();
        let Some(way) = copying.get_mut(&lsn) else { return 0 };
        way.unsynced += more;
        way.unsynced
    }

    /// Notes that a sync of the version begins; returns how many bytes it covers. Later writes of other streams are not
    /// among them.
    pub(crate) fn sync_begins(&self, lsn: Lsn) -> u64 {
        let mut copying = self.copying.lock();
        let Some(way) = copying.get_mut(&lsn) else { return 0 };
        let bytes = std::mem::take(&mut way.unsynced);
        way.syncing += bytes;
        bytes
    }

    /// Notes that the sync has ended, and that the version is on the disk up to here.
    pub(crate) fn arrived(&self, lsn: Lsn, end: u64, bytes: u64) {
        if let Some(way) = self.copying.lock().get_mut(&lsn) {
            way.arrived = way.arrived.max(end);
            way.syncing = way.syncing.saturating_sub(bytes);
        }
    }

    pub(crate) fn is_copying(&self) -> bool {
        !self.copying.lock().is_empty()
    }

    /// Written bytes of the versions that are being copied.
    pub(crate) fn written(&self) -> u64 {
        self.copying.lock().values().map(|way| way.written).sum()
    }

    /// Bytes on the disk of the versions that are being copied.
    pub(crate) fn on_disk(&self) -> u64 {
        self.copying.lock().values().map(|way| way.arrived).sum()
    }

    /// Bytes that were written and are not known to be on the disk.
    pub(crate) fn all_unsynced(&self) -> u64 {
        self.copying.lock().values().map(|way| way.unsynced + way.syncing).sum()
    }

    /// Bytes on the disk of each version that is being copied. No more entries than concurrent copies.
    pub(crate) fn arrivals(&self) -> BTreeMap<Lsn, u64> {
        self.copying.lock().iter().map(|(lsn, way)| (*lsn, way.arrived)).collect()
    }

    /// Counts a failed attempt; a successful one clears the earlier failures.
    pub(crate) fn tried(&self, lsn: Lsn, work: WorkKind, error: Option<&Error>) {
        if work == WorkKind::Publish {
            let refused = error.is_some_and(|error| !is_silence(error) && !lacks_room(error));
            self.refused.store(if refused { lsn } else { 0 }, Ordering::Relaxed);
        }
        let full = *self.full.lock();
        let mut failed = self.failed.lock();
        match error {
            Some(error) => {
                let before = failed.get(&(lsn, work)).map_or(0, |failed| failed.tries);
                let failure = Failed { tries: before.saturating_add(1), reason: full.with_remedy(error) };
                failed.insert((lsn, work), failure);
            }
            None => drop(failed.remove(&(lsn, work))),
        }
    }

    pub(crate) fn has_failed_copies(&self) -> bool {
        self.failed.lock().keys().any(|(_, work)| *work == WorkKind::Copy)
    }

    /// Forgets the notes on applied events.
    pub(crate) fn applied(&self, upto: Lsn) {
        self.failed.lock().retain(|(lsn, _), _| *lsn > upto);
        self.vanished.lock().retain(|lsn, _| *lsn > upto);
    }

    /// Forgets the notes on events that have left the order.
    pub(crate) fn forget(&self, events: &HashSet<Lsn>) {
        self.failed.lock().retain(|(lsn, _), _| !events.contains(lsn));
        self.vanished.lock().retain(|lsn, _| !events.contains(lsn));
    }

    /// Events got new numbers, which `now` returns.
    pub(crate) fn renumber(&self, now: impl Fn(Lsn) -> Option<Lsn>) {
        let now = |lsn| now(lsn).unwrap_or(lsn);
        let mut failed = self.failed.lock();
        *failed = std::mem::take(&mut *failed).into_iter().map(|((lsn, work), one)| ((now(lsn), work), one)).collect();
        drop(failed);
        let mut vanished = self.vanished.lock();
        *vanished = std::mem::take(&mut *vanished).into_iter().map(|(lsn, count)| (now(lsn), count)).collect();
    }

    /// Whether a step was refused while this event was in front.
    pub(crate) fn is_refused(&self, first: Lsn) -> bool {
        self.refused.load(Ordering::Relaxed) == first && first > 0
    }

    /// Counts one more removal; returns their number.
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

    pub(crate) fn failed(&self, lsn: Lsn) -> Option<Failed> {
        let failed = self.failed.lock();
        let mut of_event = failed.range((lsn, WorkKind::Copy)..=(lsn, WorkKind::Publish)).map(|(_, failed)| failed);
        let first = of_event.next()?.clone();
        Some(Failed { tries: of_event.fold(first.tries, |sum, failed| sum.saturating_add(failed.tries)), ..first })
    }

    /// Everything up to here has priority.
    pub(crate) fn priority_lsn(&self) -> Lsn {
        self.priority_lsn.load(Ordering::Relaxed)
    }
}
