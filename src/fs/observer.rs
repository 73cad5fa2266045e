//! What a recording says about a mount, for the code that writes one: the virtual directory, and the files that `trace`
//! asks for.
//!
//! It keeps the engine and the statistics alive, but not the file system: open files end with the session, while the
//! end of a recording is written after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::io_paths::IoPaths;
use super::shown::path_of;
use crate::observing::behind_door;
use crate::stats::Stats;
use crate::stats::recording::{Checkpoint, Meta, TierPlace};
use crate::stats::staging::JobState;
use crate::stats::status::TierSpace;
use crate::tiers::{Ino, Tiers};

/// See the module.
#[derive(Clone, Debug)]
pub struct Observer {
    tiers: Arc<Tiers>,
    stats: Arc<Stats>,
    io: Arc<IoPaths>,
    about: Meta,
    /// When the statistics began, by the engine's clock.
    mounted_at: Duration,
    /// A thread is going through all files for a plan.
    busy: Arc<AtomicBool>,
}

impl Observer {
    /// `about`: the program and machine, and the tiers.
    pub(super) fn new(tiers: Arc<Tiers>, stats: Arc<Stats>, io: Arc<IoPaths>, about: Meta) -> Self {
        let mounted_at = tiers.uptime().saturating_sub(stats.now());
        Observer { tiers, stats, io, about, mounted_at, busy: Arc::default() }
    }

    /// The current state, with everything counted so far.
    pub fn meta(&self) -> Meta {
        self.stats.meta(self.about())
    }

    /// An inode's path, from the mount's root.
    pub fn path_of(&self, ino: Ino) -> Option<String> {
        path_of(&self.tiers, ino)
    }

    /// The statistics, including every call answered by now.
    pub fn collected(&self) -> &Stats {
        self.stats.collect(|ino| self.path_of(ino));
        &self.stats
    }

    /// All known checkpoints, oldest first.
    pub(super) fn all_checkpoints(&self) -> Vec<Checkpoint> {
        self.tiers.checkpoints(self.mounted_at)
    }

    /// The checkpoints of this mount that are no longer being written, oldest first.
    pub(super) fn checkpoints(&self) -> Vec<Checkpoint> {
        let all = self.all_checkpoints().into_iter();
        all.filter(|one| one.complete && one.began >= 0.0).collect()
    }

    /// For each plan whose staging job has ended, notes what was counted until now. To be called some ten times a
    /// second; the pass over all files runs on a thread of its own, because calls must be collected meanwhile.
    pub fn update_plans(&self) {
        let is_over = |job: &u64| self.tiers.staging_job(*job).is_none_or(|job| job.state != JobState::Running);
        let over: Vec<u64> = self.stats.plans.open().into_iter().filter(is_over).collect();
        if over.is_empty() || self.busy.swap(true, Relaxed) {
            return;
        }
        let observer = self.clone();
        let look = move || {
            let end = |job| observer.stats.end_plan(job, |ino| observer.path_of(ino));
            behind_door("plans", || over.into_iter().for_each(end));
            observer.busy.store(false, Relaxed);
        };
        // If no thread can be started, the next call retries.
        if thread::Builder::new().name("dlio-plan".to_owned()).spawn(look).is_err() {
            self.busy.store(false, Relaxed);
        }
    }

    /// What a recording says besides the counters.
    pub fn about(&self) -> Meta {
        let status = self.tiers.status();
        let place =
            |of: &TierPlace, space: &TierSpace| TierPlace { total: space.total, used: space.used, ..of.clone() };
        Meta {
            checkpoints: self.checkpoints(),
            safety: status.line(),
            io_path: self.io.figures(),
            fast: place(&self.about.fast, &status.fast),
            slow: place(&self.about.slow, &status.slow),
            plans: self.stats.plans(|ino| self.path_of(ino)),
            ..self.about.clone()
        }
    }
}
