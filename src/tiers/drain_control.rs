//! What the drain heeds besides the queue: a pause, its bandwidth, callers that wait, and deadlines.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::tiers::Tiers;
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::throttle::TokenBucket;

#[derive(Debug, Default)]
pub(crate) struct DrainControl {
    /// How many callers wait for everything to be published.
    waiters: AtomicU64,
    /// How many calls of programs wait for that.
    calls: AtomicU64,
    /// Nothing is copied or published, by request.
    paused: AtomicBool,
    /// How many callers have a deadline.
    deadlines: AtomicU64,
    /// By the rate so far everything is expected to arrive before the deadline: versions that are deleted or replaced
    /// later need not be copied. Otherwise each published event counts, and none waits for a batch.
    fits: AtomicBool,
    /// A checkpoint is being saved beside the user's tree, with the slow tier to itself.
    saving: AtomicBool,
    bandwidth: Mutex<TokenBucket>,
}

impl DrainControl {
    pub(crate) fn has_deadline(&self) -> bool {
        self.deadlines.load(Ordering::Relaxed) > 0
    }

    /// Starts a deadline, which lasts until [`DrainControl::end_deadline`].
    pub(crate) fn begin_deadline(&self) {
        self.fits.store(false, Ordering::Relaxed);
        self.deadlines.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end_deadline(&self) {
        self.deadlines.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn is_saving(&self) -> bool {
        self.saving.load(Ordering::Relaxed)
    }

    pub(crate) fn set_saving(&self, saving: bool) {
        self.saving.store(saving, Ordering::Relaxed);
    }
}

impl Tiers {
    /// Counts a caller that begins to wait for D2, or ends to. While there is one, publishing does not wait for
    /// `settle`.
    pub fn count_waiter(&self, waits: bool) {
        if waits {
            self.drain_control.waiters.fetch_add(1, Ordering::Relaxed);
        } else {
            self.drain_control.waiters.fetch_sub(1, Ordering::Relaxed);
        }
        self.wake();
    }

    /// The same for a call of a program: for it nothing waits for what comes after it, either.
    pub fn count_waiting_call(&self, waits: bool) {
        if waits {
            self.drain_control.calls.fetch_add(1, Ordering::Relaxed);
        } else {
            self.drain_control.calls.fetch_sub(1, Ordering::Relaxed);
        }
        self.count_waiter(waits);
    }

    pub(crate) fn has_waiting_calls(&self) -> bool {
        self.drain_control.calls.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.drain_control.waiters.load(Ordering::Relaxed) > 0
    }

    /// Pauses or resumes the drain. A copy in progress is finished; the application goes on.
    pub fn pause(&self, paused: bool) {
        self.drain_control.paused.store(paused, Ordering::Relaxed);
        self.wake();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.drain_control.paused.load(Ordering::Relaxed) && !self.drain_control.has_deadline()
    }

    /// Sets whether everything is expected to arrive before the deadline.
    pub fn set_fits(&self, fits: bool) {
        self.drain_control.fits.store(fits, Ordering::Relaxed);
        self.wake();
    }

    /// The fast tier is nearly full, or someone has a deadline that can be met: versions that are deleted or replaced
    /// later need not be copied.
    pub(crate) fn pressure(&self) -> bool {
        let control = &self.drain_control;
        (control.has_deadline() && control.fits.load(Ordering::Relaxed)) || self.is_nearly_full()
    }

    fn is_nearly_full(&self) -> bool {
        self.fast.space().is_ok_and(|space| space.used() as f64 > self.options().high * space.capacity() as f64)
    }

    /// The limit now in force, in bytes per second.
    pub(crate) fn bandwidth_limit(&self) -> Option<u64> {
        self.options().drain_bandwidth.filter(|limit| *limit > 0 && !self.drain_control.has_deadline())
    }

    /// Waits before more is copied, to keep to `drain_bandwidth`.
    pub(crate) fn keep_to_bandwidth(&self, bytes: u64) {
        let limit = self.bandwidth_limit();
        let wait = {
            let mut bucket = self.drain_control.bandwidth.lock();
            bucket.set_rate(limit);
            bucket.take(self.uptime(), bytes)
        };
        self.wait_for_rate(wait);
    }

    /// Waits before more is copied, unless someone has a deadline.
    pub(crate) fn wait_for_rate(&self, mut wait: Duration) {
        const PIECE: Duration = Duration::from_millis(100);
        while !wait.is_zero() && !self.drain_control.has_deadline() {
            let piece = wait.min(PIECE);
            std::thread::sleep(piece);
            wait -= piece;
        }
    }
}
