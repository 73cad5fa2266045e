//! Calls that are answered later than the engine has done its part: an `fsync` under a rule `fsync = "slow"`, once the
//! slow tier has its data; in a fleet, each call that may have logged an event, after the commit wait.
//!
//! One thread serves all of them, so that none holds a thread that other calls need. While one waits, publishing
//! hurries. There is no limit while the slow tier makes progress: everything before the call goes first, which may be
//! much. The call fails once nothing has arrived there for `slow_wait`, or for [`silent_after`] where that is longer;
//! its data stays safe on the fast tier.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::tiers::{Lsn, Tiers};

/// How long the slow tier may receive nothing before it counts as silent: a minute, because an fsync of gigabytes on a
/// disk may take half of that; less where calls wait for less than five seconds.
pub fn silent_after(slow_wait: Duration) -> Duration {
    (slow_wait * 12).min(Duration::from_secs(60))
}

/// How often progress is checked while a call waits.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Published {
    shared: Arc<Shared>,
}

#[derive(derive_more::Debug)]
#[debug("Shared({patience:?})")]
struct Shared {
    tiers: Arc<Tiers>,
    patience: Duration,
    state: Mutex<WaitState>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitState {
    waiting: Vec<Waiting>,
    closed: bool,
}

struct Waiting {
    /// 0: waits for nothing on the slow tier.
    lsn: Lsn,
    since: Instant,
    /// The earliest time of the answer.
    from: Instant,
    answer: Answering,
    _waiter: Option<WaiterGuard>,
}

type Answering = Box<dyn FnOnce(Result<()>) + Send>;

/// While one of these lives, publishing does not wait for files to settle.
#[derive(Debug)]
pub(super) struct WaiterGuard {
    tiers: Arc<Tiers>,
    count: fn(&Tiers, bool),
}

impl WaiterGuard {
    pub(super) fn new(tiers: &Arc<Tiers>) -> Self {
        WaiterGuard::counted_by(tiers, Tiers::count_waiter)
    }

    /// For a call of a program.
    fn of_call(tiers: &Arc<Tiers>) -> Self {
        WaiterGuard::counted_by(tiers, Tiers::count_waiting_call)
    }

    fn counted_by(tiers: &Arc<Tiers>, count: fn(&Tiers, bool)) -> Self {
        count(tiers, true);
        WaiterGuard { tiers: Arc::clone(tiers), count }
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        (self.count)(&self.tiers, false);
    }
}

/// How far the slow tier was when it last made progress, and when that was.
struct DrainProgress {
    applied: Lsn,
    arrived: u64,
    at: Instant,
}

impl DrainProgress {
    fn of(tiers: &Tiers) -> Self {
        DrainProgress { applied: tiers.applied_lsn(), arrived: tiers.copied_bytes(), at: Instant::now() }
    }

    fn refresh(&mut self, tiers: &Tiers) {
        let now = DrainProgress::of(tiers);
        if (now.applied, now.arrived) != (self.applied, self.arrived) {
            *self = now;
        }
    }
}

impl Published {
    /// Starts its thread.
    pub(super) fn new(tiers: Arc<Tiers>, slow_wait: Duration) -> io::Result<Self> {
        let patience = slow_wait.max(silent_after(slow_wait));
        let shared = Arc::new(Shared { tiers, patience, state: Mutex::default(), changed: Condvar::new() });
        let body = Arc::clone(&shared);
        // Not joined: it owns nothing.
        thread::Builder::new().name("published".to_owned()).spawn(move || body.work())?;
        Ok(Published { shared })
    }

    /// `answer` is called once, when `wait` is over: when everything up to `lsn`, if there is one, is on the slow tier,
    /// or with an error if that will not happen soon.
    pub(super) fn wait_for(&self, lsn: Option<Lsn>, wait: Duration, answer: impl FnOnce(Result<()>) + Send + 'static) {
        let _waiter = lsn.map(|_| WaiterGuard::of_call(&self.shared.tiers));
        let since = Instant::now();
        let lsn = lsn.unwrap_or(0);
        let waiting = Waiting { lsn, since, from: since + wait, answer: Box::new(answer), _waiter };
        self.shared.state.lock().waiting.push(waiting);
        self.shared.changed.notify_one();
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        let mut progress = DrainProgress::of(&self.tiers);
        while self.wait_for_work() {
            progress.refresh(&self.tiers);
            let (due, next) = self.due(&progress);
            for (answer, result) in due {
                answer(result);
            }
            thread::park_timeout(next.min(LOOK));
        }
    }

    /// Returns `false` once the file system is gone.
    fn wait_for_work(&self) -> bool {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.closed {
            self.changed.wait(&mut state);
        }
        !state.closed
    }

    /// The calls to answer now, and when the next one may be due.
    fn due(&self, progress: &DrainProgress) -> (Vec<(Answering, Result<()>)>, Duration) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let has_applied = |waiting: &Waiting| waiting.lsn == 0 || self.tiers.has_applied(waiting.lsn);
        let has_given_up = |waiting: &Waiting| progress.at.max(waiting.since).elapsed() >= self.patience;
        let is_due = |waiting: &mut Waiting| waiting.from <= now && (has_applied(waiting) || has_given_up(waiting));
        let due = state.waiting.extract_if(.., is_due);
        let told = due.map(|waiting| {
            let result = if has_applied(&waiting) { Ok(()) } else { Err(self.stalled()) };
            (waiting.answer, result)
        });
        let told = told.collect();
        let next = state.waiting.iter().map(|waiting| waiting.from.saturating_duration_since(now));
        (told, next.filter(|left| !left.is_zero()).min().unwrap_or(LOOK))
    }

    fn stalled(&self) -> Error {
        let patience = humantime::format_duration(self.patience);
        Error::refused(
            format!("nothing has arrived on the slow tier for {patience}"),
            "what was written is safe on the fast tier; .dlio/stats says what the drain waits for",
        )
    }
}
