//! The engine's counters, and what it remembers of the progress of its work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::stats::counters::Count;
use crate::stats::recorder::MetricsRecorder;
use crate::tiers::capacity::policy::Evicting;
use crate::tiers::disk::Space;
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::throttle::Speed;
use crate::tiers::progress::{Notes, copied_in};

macro_rules! totals {
    ($($field:ident $name:literal $help:literal;)*) => {
        /// What only grows, and is scraped: the cells of the mount's recorder.
        #[derive(Debug)]
        pub(crate) struct Totals {
            pub(crate) recorder: Arc<MetricsRecorder>,
            $(#[doc = $help] pub(crate) $field: Count,)*
        }

        impl Default for Totals {
            fn default() -> Self {
                let recorder = Arc::<MetricsRecorder>::default();
                Totals { $($field: recorder.count($name, $help, &[]),)* recorder }
            }
        }
    };
}

totals! {
    published_events "dliofs_published_events_total" "Changes applied to the slow tier.";
    drained_files "dliofs_drained_files_total" "Versions copied to the slow tier.";
    drained_bytes "dliofs_drained_bytes_total" "Bytes copied to the slow tier.";
    evictions "dliofs_evictions_total" "Clean objects and staged copies deleted from the fast tier.";
    staged_files "dliofs_staged_files_total" "Slow files copied to the fast tier.";
    staged_bytes "dliofs_staged_bytes_total" "Bytes of them.";
    batches "dliofs_batches_total" "Batches of more than one step.";
    late_snapshots "dliofs_late_snapshots_total" "Files published while open for writing.";
    in_place_writes "dliofs_in_place_writes_total" "Files written in place on slow.";
    conflicts "dliofs_conflicts_total" "Foreign changes met; both versions are kept.";
    removed_first "dliofs_removed_first_total"
        "Files removed from a full slow tier ahead of what was written before.";
    held_back "dliofs_held_back_total" "Changes of held users that others went ahead of.";
    replaced "dliofs_replaced_total"
        "Files and directories of other members of the fleet that made way for ours and were saved.";
    skipped_versions "dliofs_skipped_versions_total" "Versions superseded before their copy began.";
    skipped_bytes "dliofs_skipped_bytes_total" "Bytes of them.";
    spilled_files "dliofs_spilled_files_total" "Files that did not fit on the fast tier.";
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) totals: Totals,
    /// Files that are open.
    pub(crate) open_files: AtomicU64,
    /// The last extent reported when many events were pending, and when that was.
    pub(crate) told: Mutex<Option<(Duration, PendingExtent)>>,
    pub(crate) left_out: AtomicU64,
    /// When a caller last read from the slow tier, in milliseconds of uptime; 0: never.
    pub(crate) slow_read: AtomicU64,
    pub(crate) discarded: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) quarantined: AtomicU64,
    pub(crate) evicting: Mutex<Evicting>,
    /// The last attempt to delete an unneeded object failed.
    pub(crate) undeleted: AtomicBool,
    pub(crate) notes: Notes,
    /// What the bytes copied to the slow tier have cost so far.
    copy_cost: Mutex<CopyCost>,
    /// Events that an operator has set aside.
    pub(crate) set_aside: AtomicU64,
    /// How fast bytes arrive on the slow tier, and when the last ones did.
    pub(crate) speed: Mutex<(Speed, Duration)>,
    /// Changes that are published.
    publishing: Mutex<Speed>,
    pub(crate) slow_space: Mutex<Option<Space>>,
    /// The directory of the slow tier was removed.
    pub(crate) slow_gone: AtomicBool,
    /// When the fast tier last failed to read or write, in milliseconds of uptime; 0: it never has.
    pub(crate) fast_failed: AtomicU64,
    /// When a tier that had been silent answered, in milliseconds of uptime; 0: never.
    pub(crate) answered: AtomicU64,
    pub(crate) troubles: Mutex<Troubles>,
    /// The contents of the file of that name on the fast tier.
    pub(crate) checkpoints: Mutex<String>,
}

impl Counters {
    /// A version has been copied.
    pub(crate) fn drained(&self, bytes: u64) {
        self.totals.drained_bytes.increment(bytes);
        self.totals.drained_files.increment(1);
    }

    /// Some copies have moved so many bytes, and taken so much of a processor.
    pub(crate) fn copies_cost(&self, cpu: Option<Duration>, bytes: u64) {
        let Some(cpu) = cpu else { return };
        let mut cost = self.copy_cost.lock();
        cost.cpu = cost.cpu.saturating_add(cpu);
        cost.bytes += bytes;
    }

    /// What copying a GiB has taken so far. `None`: too little has been copied to tell.
    pub(crate) fn cpu_per_gib(&self) -> Option<Duration> {
        self.copy_cost.lock().per_gib()
    }

    /// A number that rises while bytes are written to the slow tier.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.totals.drained_bytes.get() + self.notes.written()
    }

    /// The drain has something to copy.
    pub(crate) fn drain_goes_on(&self, now: Duration) {
        self.speed.lock().0.begin(now);
    }

    /// Counts further bytes on the slow tier's disk.
    pub(crate) fn arrived(&self, bytes: u64, now: Duration) {
        let mut speed = self.speed.lock();
        speed.0.arrived(now, bytes);
        speed.1 = now;
    }

    /// Roughly the bytes that arrive within a second.
    pub(crate) fn second_of_copying(&self) -> u64 {
        self.speed.lock().0.per_second().map_or(SYNCED_MIN, |rate| (rate as u64).max(SYNCED_MIN))
    }

    /// The drain has nothing to copy, and no copy waits to be published.
    pub(crate) fn drain_rests(&self) {
        self.speed.lock().0.rest();
    }

    /// However long ago that was.
    pub(crate) fn latest_rate(&self) -> Option<f64> {
        self.speed.lock().0.per_second()
    }

    pub(crate) fn rate(&self, now: Duration) -> Option<f64> {
        let speed = self.speed.lock();
        speed.0.per_second().filter(|_| now.saturating_sub(speed.1) < RATE_WINDOW)
    }

    /// A waiting caller reads from the slow tier.
    pub(crate) fn read_from_slow(&self, now: Duration) {
        self.slow_read.store(now.as_millis() as u64, Ordering::Relaxed);
    }

    /// Whether a caller did so a moment ago.
    pub(crate) fn reads_from_slow(&self, now: Duration) -> bool {
        const LATELY: u64 = 200;
        let at = self.slow_read.load(Ordering::Relaxed);
        at > 0 && (now.as_millis() as u64).saturating_sub(at) < LATELY
    }

    pub(crate) fn staged(&self, bytes: u64) {
        self.totals.staged_files.increment(1);
        self.totals.staged_bytes.increment(bytes);
    }

    /// Something may be published.
    pub(crate) fn publishing_goes_on(&self, now: Duration) {
        self.publishing.lock().begin(now);
    }

    /// Nothing is left to publish, or something holds it.
    pub(crate) fn publishing_rests(&self) {
        self.publishing.lock().rest();
    }

    /// How long publishing so many changes will take. `None`: not known, and they are too many not to count.
    pub(crate) fn published_in(&self, events: u64) -> Option<Duration> {
        const FEW: u64 = 100;
        let rate = self.publishing.lock().per_second();
        copied_in(events, rate).or((events <= FEW).then_some(Duration::ZERO))
    }

    pub(crate) fn published(&self, events: u64, batches: u64, now: Duration) {
        self.publishing.lock().arrived(now, events);
        self.totals.published_events.increment(events);
        self.totals.batches.increment(batches);
    }

    /// A batch has skipped so many versions, and their bytes.
    pub(crate) fn skip(&self, (versions, bytes): (u64, u64)) {
        self.totals.skipped_versions.increment(versions);
        self.totals.skipped_bytes.increment(bytes);
    }

    /// `what` names the files, for `.dlio/queue`.
    pub(crate) fn conflict(&self, what: String) {
        self.totals.conflicts.increment(1);
        self.notes.conflict(what);
    }

    pub(crate) fn slow_space(&self) -> Option<Space> {
        *self.slow_space.lock()
    }

    pub(crate) fn set_slow_space(&self, space: Space) {
        *self.slow_space.lock() = Some(space);
    }
}

/// Processor time of the threads that copied, and the bytes that they copied: holes are not among them, what was copied
/// twice is twice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyCost {
    cpu: Duration,
    bytes: u64,
}

impl CopyCost {
    /// Of less than this, the few calls that each file costs are most of it.
    const MEASURED: u64 = 4 << 20;

    fn per_gib(self) -> Option<Duration> {
        let gib = self.bytes as f64 / (1u64 << 30) as f64;
        let per_gib = || Duration::try_from_secs_f64(self.cpu.as_secs_f64() / gib).ok();
        if self.bytes < Self::MEASURED { None } else { per_gib() }
    }
}

/// Before its end, a file is synced at most once per this many bytes.
pub(crate) const SYNCED_MIN: u64 = 16 << 20;

/// A drain from which nothing has come for this long has rate 0.
pub(crate) const RATE_WINDOW: Duration = Duration::from_secs(30);

/// The last failure of each kind of background work, and whether it is the slow tier not answering.
pub(crate) type Troubles = BTreeMap<&'static str, (bool, String)>;

/// The total of what is pending: files with content that the slow tier does not have, and their bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingExtent {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) oldest: Option<Duration>,
    /// Bytes that are not on the slow tier's disk yet; for a version being copied, without those that have arrived.
    pub(crate) to_copy: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gib_costs_is_unknown_until_bytes_were_copied() {
        let counters = Counters::default();
        counters.copies_cost(Some(Duration::from_millis(3)), 0);
        assert_eq!(counters.cpu_per_gib(), None, "an empty file");
        counters.copies_cost(None, 1 << 40);
        assert_eq!(counters.cpu_per_gib(), None, "a clock that does not tell");
        counters.copies_cost(Some(Duration::from_micros(160)), 2);
        assert_eq!(counters.cpu_per_gib(), None, "two bytes cost 88,000 seconds per GiB");
        counters.copies_cost(Some(Duration::from_micros(96_840)), (256 << 20) - 2);
        assert_eq!(counters.cpu_per_gib(), Some(Duration::from_millis(400)));
    }
}
