//! The subjects of the files of `.dlio`, and of its commands.

use std::collections::HashMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use super::texts::Texts;
use crate::error::{Error, Result};
use crate::fs::convert;
use crate::fs::failures::Failures;
use crate::fs::io_paths::IoPaths;
use crate::fs::job_report::JobReports;
use crate::fs::observer::Observer;
use crate::fs::options::{FsOptions, OtherMounts};
use crate::fs::reload::LiveSettings;
use crate::fs::slow_pool::{Caller, SlowPool};
use crate::stats::{Stats, checkpoints};
use crate::tiers::disk::Time;
use crate::tiers::{Cx, Tiers};

/// How long a command waits for the slow tier at most: there are few threads for all of `.dlio`.
const COMMAND_WAIT: Duration = Duration::from_secs(60);
/// How many of these threads may wait for it with the content of a file, and how long others wait for their turn.
const FILES_AT_ONCE: usize = 2;
const TURN_WAIT: Duration = Duration::from_secs(1);

/// The directory, and the subjects of its files.
#[derive(Debug)]
pub(in crate::fs) struct Control {
    pub(super) tiers: Arc<Tiers>,
    pub(super) stats: Arc<Stats>,
    pub(super) failures: Arc<Failures>,
    pub(super) slow: Arc<SlowPool>,
    pub(super) live: Arc<LiveSettings>,
    pub(super) io: Arc<IoPaths>,
    pub(super) open: Arc<dyn OpenFiles>,
    pub(super) owner: (u32, u32),
    pub(super) job_reports: Option<JobReports>,
    pub(super) observer: Observer,
    pub(super) metrics_addr: Option<SocketAddr>,
    pub(super) other_mounts: Arc<OtherMounts>,
    pub(super) since: Time,
    /// Open files of each user other than the mount's owner.
    pub(super) open_texts: Arc<Mutex<HashMap<u32, usize>>>,
    pub(super) texts: Texts,
    pub(super) checkpoints: Mutex<CheckpointCache>,
    /// Look-ups of the link so far.
    pub(super) looks: AtomicU64,
    /// Files whose content waits for the slow tier.
    pub(super) turns: SlowTurns,
}

/// How many shared threads of `.dlio` wait for the slow tier.
#[derive(Debug, Default)]
pub(super) struct SlowTurns {
    waiting: Mutex<usize>,
    one_less: Condvar,
}

impl SlowTurns {
    fn take(&self) -> Result<SlowTurn<'_>> {
        let mut waiting = self.waiting.lock();
        let late = self.one_less.wait_while_for(&mut waiting, |waiting| *waiting >= FILES_AT_ONCE, TURN_WAIT);
        if late.timed_out() {
            return Err(Error::SlowTimeout);
        }
        *waiting += 1;
        Ok(SlowTurn(self))
    }
}

struct SlowTurn<'a>(&'a SlowTurns);

impl Drop for SlowTurn<'_> {
    fn drop(&mut self) {
        *self.0.waiting.lock() -= 1;
        self.0.one_less.notify_one();
    }
}

/// The table of open files, as far as the statistics report it.
pub(in crate::fs) trait OpenFiles: Debug + Send + Sync {
    /// How many handles of the user's files there are. Scans all of them.
    fn of_users(&self) -> u64;
}

/// The complete checkpoints of this mount at the last look-up.
#[derive(Debug, Default)]
pub(super) struct CheckpointCache {
    pub(super) asked: Option<Instant>,
    pub(super) told: Vec<checkpoints::Checkpoint>,
    pub(super) total: u64,
}

impl Control {
    pub(in crate::fs) fn new(
        (tiers, stats, failures): (Arc<Tiers>, Arc<Stats>, Arc<Failures>),
        slow: Arc<SlowPool>,
        live: Arc<LiveSettings>,
        io: Arc<IoPaths>,
        open: Arc<dyn OpenFiles>,
        options: &FsOptions,
        observer: Observer,
    ) -> Self {
        let since = convert::time_after_1970(SystemTime::now());
        let (owner, metrics_addr) = ((options.owner_uid, options.owner_gid), options.metrics_addr);
        let (checkpoints, looks) = (Mutex::default(), AtomicU64::new(0));
        let (open_texts, texts) = (Arc::default(), Texts::new(options.owner_uid));
        let job_reports = options.job_reports.clone();
        Control {
            tiers,
            stats,
            failures,
            slow,
            live,
            io,
            open,
            owner,
            job_reports,
            observer,
            metrics_addr,
            other_mounts: Arc::clone(&options.other_mounts),
            since,
            open_texts,
            texts,
            checkpoints,
            looks,
            turns: SlowTurns::default(),
        }
    }

    pub(in crate::fs) fn owner(&self) -> u32 {
        self.owner.0
    }

    pub(in crate::fs) fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Like [`Control::on_slow`], for the content of a file that every user may read: while that tier hangs, such
    /// readers do not take all threads.
    pub(super) fn file_on_slow<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Tiers, &Cx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _turn = self.turns.take()?;
        self.on_slow(run)
    }

    /// Runs what may need the slow tier with a bounded wait: with that tier down, `.dlio/stats` must keep answering.
    pub(super) fn on_slow<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Tiers, &Cx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (found, answer) = mpsc::sync_channel(1);
        let left = Arc::new(AtomicBool::new(false));
        let has_left = Arc::clone(&left);
        let caller = Caller {
            uid: 0,
            wait: None,
            is_killed: Box::new(move || has_left.load(Ordering::Relaxed)),
            about: Box::new(|| "a command".to_owned()),
        };
        let tiers = Arc::clone(&self.tiers);
        let run = move |gave_up| run(&tiers, &Cx::may_wait(0, 0, gave_up));
        // One answer at most, and one place for it: sending never blocks, and fails only if the receiver is gone.
        let done = |found: SyncSender<_>, result| drop(found.try_send(result));
        let expired = |found: SyncSender<_>, _| drop(found.try_send(Err(Error::SlowTimeout)));
        drop(self.slow.submit(caller, found, run, done, expired));
        // Refused, dropped unanswered while the mount ends, or too slow for a command.
        answer.recv_timeout(COMMAND_WAIT).unwrap_or_else(|_| {
            left.store(true, Ordering::Relaxed);
            Err(Error::SlowTimeout)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_files_that_wait_for_the_slow_tier_two_have_their_turn() {
        let turns = SlowTurns::default();
        let (one, two) = (turns.take().expect("a turn"), turns.take().expect("a turn"));
        assert!(matches!(turns.take(), Err(Error::SlowTimeout)));
        drop(one);
        let three = turns.take().expect("a turn");
        drop((two, three));
        assert_eq!(*turns.waiting.lock(), 0);
    }
}
