//! The figures in the files of `.dlio`, restricted to what the asking user may see.

use std::time::{Duration, Instant};

use super::asker::Asker;
use super::sources::Control;
use crate::error::{Context, Result};
use crate::fs::shown::path_of;
use crate::fs::slow_pool::Longest;
use crate::stats::files::{ActiveFiles, FileTable};
use crate::stats::pace::{CheckpointPace, DrainOutlook};
use crate::stats::processes::ProcessFigures;
use crate::stats::queue::Queue;
use crate::stats::recording::Meta;
use crate::stats::staging::Staging;
use crate::stats::status::{Cache, Detected, FailureCount, LongestCall, Operation, Safety, SlowCalls, Status};
use crate::stats::{checkpoints, daemon, processes};
use crate::tiers::{Cx, Tiers};
use crate::{json, path};

/// How long the looked-up checkpoints are reused.
const CHECKPOINTS_HOLD: Duration = Duration::from_millis(500);

/// How many pending events `.dlio/queue` lists.
const QUEUE_SHOWN: usize = 1_000;

impl Control {
    /// Everything known, with the calls in memory; for users other than the mount's owner only their own.
    pub(super) fn recording_for(&self, asker: &Asker) -> Result<Vec<u8>> {
        let (collected, about) = (self.observer.collected(), self.observer.about());
        let name = |ino| path_of(&self.tiers, ino);
        let bytes = match asker.limited() {
            None => collected.recording(about, name),
            Some(uid) => {
                let checkpoints = self.theirs(about.checkpoints, uid)?;
                let about = Meta { safety: self.safety_for(asker).line(), checkpoints, ..about };
                collected.recording_of_user(uid, about, name, |ino| self.is_theirs(asker, ino))
            }
        };
        bytes.at("make", "a recording")
    }

    pub(super) fn files_for(&self, asker: &Asker) -> FileTable {
        let name = |ino| path_of(&self.tiers, ino);
        match asker.limited() {
            None => self.stats.files(name),
            Some(_) => self.stats.files_of(name, |ino| self.is_theirs(asker, ino)),
        }
    }

    pub(super) fn active_files_for(&self, asker: &Asker) -> ActiveFiles {
        let mut active = self.stats.active_files(|ino| path_of(&self.tiers, ino));
        active.files.retain(|file| self.is_theirs(asker, file.ino));
        active
    }

    pub(super) fn processes_for(&self, asker: &Asker) -> Vec<ProcessFigures> {
        let all = self.stats.processes.figures();
        match asker.limited() {
            None => all,
            Some(uid) => processes::of_user(all, uid),
        }
    }

    pub(super) fn queue_for(&self, asker: &Asker) -> Queue {
        asker.limited().map_or_else(|| self.tiers.queue(QUEUE_SHOWN), |uid| self.tiers.queue_of(uid, QUEUE_SHOWN))
    }

    pub(super) fn staging_for(&self, asker: &Asker) -> Result<Staging> {
        let all = self.tiers.staging();
        match asker.limited() {
            None => Ok(all),
            Some(uid) => self.staging_of(all.of_user(uid), uid),
        }
    }

    /// A directory of theirs may contain files of other users, which they must not learn about.
    pub(super) fn staging_of(&self, mut theirs: Staging, uid: u32) -> Result<Staging> {
        self.file_on_slow(move |tiers, cx| {
            for job in &mut theirs.jobs {
                job.failures.retain(|failure| is_at(tiers, cx, &failure.path, uid));
            }
            Ok(theirs)
        })
    }

    /// For users other than the mount's owner, only checkpoints whose directory or file is theirs.
    pub(super) fn checkpoints_for(&self, asker: &Asker) -> Result<Vec<checkpoints::Checkpoint>> {
        let all = self.observer.all_checkpoints();
        let Some(uid) = asker.limited() else { return Ok(all) };
        self.theirs(all, uid)
    }

    /// From the checkpoints that the asker may see, and how the drain goes for all.
    pub(super) fn pace_for(&self, asker: &Asker) -> Result<CheckpointPace> {
        let drain = DrainOutlook { bytes_per_s: self.tiers.latest_rate(), all_safe_in: self.tiers.status().safety.eta };
        Ok(CheckpointPace::of(&self.checkpoints_for(asker)?, drain, self.stats.now().as_secs_f64()))
    }

    pub(super) fn theirs(&self, all: Vec<checkpoints::Checkpoint>, uid: u32) -> Result<Vec<checkpoints::Checkpoint>> {
        self.file_on_slow(move |tiers, cx| Ok(all.into_iter().filter(|one| is_at(tiers, cx, &one.path, uid)).collect()))
    }

    /// The text of `metrics` without anything private.
    pub(in crate::fs) fn metrics_for_all(&self) -> String {
        self.status().for_others().metrics(self.tiers.recorder())
    }

    /// Whether everything is safe, and if not, what is not.
    pub(super) fn safety_for(&self, asker: &Asker) -> Safety {
        let safety = self.tiers.status().safety;
        if asker.is_trusted() { safety } else { safety.for_others() }
    }

    pub(super) fn status_for(&self, asker: &Asker) -> Status {
        let status = self.status();
        if asker.is_trusted() { status } else { status.for_others() }
    }

    /// The checkpoints for the statistics are looked up at most twice a second: it looks at each of their files. A
    /// checkpoint that seemed complete may be written again, but the reported total never falls.
    pub(super) fn found(&self) -> Detected {
        let mut known = self.checkpoints.lock();
        if known.asked.is_none_or(|asked| asked.elapsed() >= CHECKPOINTS_HOLD) {
            known.told = self.observer.checkpoints();
            known.total = known.total.max(known.told.len() as u64 + self.tiers.forgotten_checkpoints());
            known.asked = Some(Instant::now());
        }
        self.stats.found((&known.told, known.total))
    }

    /// Parts that only observe and were turned off by a bug of theirs.
    fn off(&self) -> Vec<String> {
        let statistics = self.stats.has_failed().then_some("the statistics");
        let checkpoints = self.tiers.has_no_checkpoints().then_some("the index of checkpoints");
        statistics.into_iter().chain(checkpoints).map(str::to_owned).collect()
    }

    /// All of the mount's status.
    pub(super) fn status(&self) -> Status {
        let status = self.tiers.status();
        let (limits, counts) = (self.slow.limits(), self.slow.counts());
        let longest = self.slow.longest();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mounted_at: json::timestamp(self.stats.since_1970()),
            mounted_for: self.stats.now(),
            cache: Cache { open_handles: self.open.of_users(), ..status.cache },
            slow_calls: SlowCalls {
                waiting: counts.waiting,
                longest: longest.map(|Longest { waited, about }| LongestCall { seconds: waited.as_secs(), about }),
                limit: limits.queue,
                threads: limits.threads,
                served: counts.served,
                timed_out: counts.timed_out,
                refused: counts.refused,
            },
            failing: self.failures.lately(),
            io_path: self.io.figures(),
            operations: Operation::all(self.stats.operations()),
            failures: FailureCount::all(self.stats.failures()),
            profile: self.stats.is_on() || self.stats.has_failed(),
            off: self.off(),
            files: self.stats.extent(),
            found: self.found(),
            daemon: daemon::usage(),
            fleet: self.tiers.fleet_figures(),
            metrics_addr: self.metrics_addr.map(|addr| addr.to_string()),
            other_mounts: self.other_mounts.names(),
            ..status
        }
    }
}

/// Whether the file at an escaped path belongs to a user.
fn is_at(tiers: &Tiers, cx: &Cx, path: &str, uid: u32) -> bool {
    path::unescape(path).is_some_and(|path| tiers.owner_at(cx, &path).is_ok_and(|owner| owner == uid))
}
