//! Background work that concerns several modules: periodic tasks, and keeping space free.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::tiers::capacity::policy::Class;
use crate::tiers::disk::sync::MutexGuard;
use crate::tiers::model::state::EngineState;
use crate::tiers::model::view::Ages;
use crate::tiers::{Cx, Ino, Progress, Tiers};

impl Tiers {
    /// Commits closed files and files held open for longer than `live_after`, deletes what is no longer needed, and
    /// ages cached answers. Continues after an error; returns the first one.
    pub fn tick(&self) -> Result<Progress> {
        let (now, cx) = (self.uptime(), Cx::internal());
        let due = |st: &EngineState, ino: Ino| {
            let is_live = |since: Duration| now.saturating_sub(since) < self.options().live_after;
            let file = st.view.get(ino).and_then(|node| node.file.as_ref());
            // A file without writers that could not be committed when it was closed.
            let is_closed = file.is_some_and(|file| file.writers.load(Ordering::Acquire) == 0);
            st.uncommitted.since(ino).is_some_and(|since| is_closed || !is_live(since))
        };
        let mut done = Ok(());
        for state in self.uncommitted_files(due) {
            if state.io.read().interrupted {
                continue;
            }
            let is_live = state.writers.load(Ordering::Acquire) > 0;
            // Since the list was made, a program may have opened and truncated it again: that is no version yet.
            let still = || due(&self.state.lock(), state.ino);
            let committed = self.commit_if(&cx, &state, true, still).map(|committed| {
                let is_late = is_live && committed.is_some();
                self.counters.totals.late_snapshots.increment(u64::from(is_late));
            });
            done = done.and(committed);
        }
        done = done.and(self.delete_unreferenced(&cx).map(drop));
        self.update_checkpoints(now);
        self.save_streams();
        let ages = self.ages();
        let mut st = self.state.lock();
        for ino in st.pop_orphans() {
            self.settle_lost(&mut st, ino);
            st.view.collect(ino);
        }
        drop(st);
        self.calls.age_listings(now, self.listings_kept());
        self.age_names(now, ages);
        self.log.restore_if_room();
        if let Err(error) = self.log.check() {
            tracing::error!(%error, "the fast tier fails; changes are refused until it is repaired and mounted again");
        }
        done.map(|()| Progress::Idle)
    }

    /// Ages all names, or a part of them if there are many, and releases the lock between pieces.
    fn age_names(&self, now: Duration, ages: Ages) {
        const PIECE: usize = 1024;
        const ALL_OF: usize = 4 * PIECE;
        const PARTS: usize = 16;
        let mut left = (self.state.lock().view.nodes.len() / PARTS).max(ALL_OF);
        while left > 0 {
            let mut st = self.state.lock();
            if st.view.age_names(now, ages, PIECE) {
                return;
            }
            MutexGuard::unlock_fair(st);
            left = left.saturating_sub(PIECE);
        }
    }

    /// Evicts if the fast tier is above the high watermark, or once started still above the low one, short of inodes,
    /// or without room for a checkpoint that is due.
    pub fn evict_step(&self) -> Result<Progress> {
        self.counters.set_slow_space(self.slow.root.space().at("statfs", "slow tier")?);
        let gone = self.slow.root.stat(b".").at("stat", "slow tier")?.nlink == 0;
        self.counters.slow_gone.store(gone, Ordering::Relaxed);
        if gone {
            return Err(Error::refused("the directory of the slow tier was removed", "restore it, then mount again"));
        }
        if let Progress::Did = self.check_remembered() {
            return Ok(Progress::Did);
        }
        let ahead = {
            let st = self.state.lock();
            st.forecast.ahead(self.stamp(self.uptime()), st.bursts.being_written())
        };
        let wanted = {
            let (usage, limits) = (self.usage()?, self.limits());
            let mut evicting = self.counters.evicting.lock();
            let wanted = limits.to_free(&usage, *evicting, ahead);
            *evicting = wanted.evicting;
            wanted
        };
        let asks = Class::ALL.into_iter().any(|class| wanted.asks(class));
        if asks && self.let_some_go(wanted, &|| self.learn_waiting())? { Ok(Progress::Did) } else { Ok(Progress::Idle) }
    }

    /// While a deadline is set, the drain is not limited or paused, and nothing is staged.
    pub fn set_urgent(&self, urgent: bool) {
        if urgent {
            self.drain_control.begin_deadline();
            self.cancel_staging(None);
        } else {
            self.drain_control.end_deadline();
        }
        self.wake();
    }
}
