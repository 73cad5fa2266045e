//! The background: one loop per kind of work, each running the engine's bounded steps one after another.
//!
//! A step is synchronous and may hang in the slow tier, so it runs on a blocking thread; the loop around it decides
//! when the next one is due. The engine defines what a step does, and lets it be cut off at any point.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::config::STREAMS_MAX;
use crate::error::{Error, Result};
use crate::fs::silent_after;
use crate::tiers::{Progress, Tiers, Wake};

/// The longest sleep: changes without a wake-up (time passing, a foreign change) are noticed after this.
const TICK: Duration = Duration::from_secs(1);
/// The least time between two steps if the first only had to wait, however often the loop is woken: each is a hop to
/// another thread and back.
const BREATH: Duration = Duration::from_millis(10);
/// The least time if the step found nothing to do. Shorter, because a program may wait for the next work.
const GLANCE: Duration = Duration::from_millis(2);
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MOST: Duration = Duration::from_secs(60);

/// One kind of background work.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    /// Takes the number of the stream, from 0.
    step: fn(&Tiers, u32) -> Result<Progress>,
    /// It fails when the slow tier does; the others touch the fast tier only.
    needs_slow: bool,
    /// Whether it is retried after a second however often it failed, because others rely on it.
    steady: bool,
    /// Whether the wait between two steps counts from the beginning of the first: its steps are rounds of any length.
    rounds: bool,
    /// Whether new work wakes it; a timer suffices for work that only passing time creates.
    woken: bool,
    /// How many loops run it at the same time, given whether the slow tier is a rotating disk.
    streams: fn(bool) -> u32,
    /// How many of them may work now.
    streams_now: fn(&Tiers) -> u32,
}

/// All loops of a kind.
const ALL: fn(&Tiers) -> u32 = |_| u32::MAX;

/// The common defaults.
const PLAIN: Work = Work {
    name: "",
    step: |_, _| Ok(Progress::Idle),
    needs_slow: true,
    steady: false,
    rounds: false,
    woken: false,
    streams: |_| 1,
    streams_now: ALL,
};

const WORKS: [Work; 11] = [
    Work { name: "seal", step: |t, _| t.seal_step(), needs_slow: false, woken: true, ..PLAIN },
    Work {
        name: "drain",
        step: Tiers::drain_patiently,
        woken: true,
        streams: |_| STREAMS_MAX,
        streams_now: Tiers::drain_streams,
        ..PLAIN
    },
    Work { name: "publish", step: |t, _| t.publish_patiently(), woken: true, ..PLAIN },
    Work { name: "evict", step: |t, _| t.evict_step(), ..PLAIN },
    Work { name: "stage", step: |t, _| t.stage_step(), streams: staging_streams, ..PLAIN },
    Work { name: "recheck", step: |t, _| t.recheck_step(), ..PLAIN },
    Work { name: "fleet", step: |t, _| t.fleet_step(), steady: true, rounds: true, ..PLAIN },
    Work { name: PARTNER, step: |t, _| t.partner_step(), needs_slow: false, woken: true, ..PLAIN },
    Work { name: "checkpoints", step: |t, _| t.check_parts(), ..PLAIN },
    // If it hangs or fails, other work reports the same of the tier.
    Work { name: "saved", step: |t, _| t.saved_step(), needs_slow: false, ..PLAIN },
    Work { name: "tick", step: |t, _| t.tick(), needs_slow: false, ..PLAIN },
];

const PARTNER: &str = "partner";

/// How many copies are staged in parallel: only one from a rotating disk, where parallel reads slow each other down.
fn staging_streams(slow_rotates: bool) -> u32 {
    if slow_rotates { 1 } else { 4 }
}

/// Makes the runtime of the background. Shut down with a timeout: a step may hang.
pub(super) fn runtime() -> Result<Runtime> {
    const NAME: &str = "dlio-work";
    // The runtime panics if it cannot start its first thread.
    let tried = std::thread::Builder::new().name(NAME.to_owned()).spawn(|| ());
    tried.map_err(|e| Error::no_thread(NAME, &e))?.join().ok();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // Two threads carry timers and signals; the steps have threads of their own.
    let built = builder
        .worker_threads(2)
        .max_blocking_threads(2 * (STREAMS_MAX as usize + 2 * WORKS.len()))
        .thread_name(NAME)
        .enable_all();
    built.build().map_err(|e| Error::no_thread(NAME, &e))
}

/// How the loops of one kind of work are woken.
#[derive(Debug, Default)]
struct Bell {
    /// For one of the loops that wait for work: the others are not disturbed.
    one: Notify,
    /// For loops that wait until more streams are allowed.
    more: Notify,
}

/// Starts all loops. They end with the runtime.
pub(super) fn start(runtime: &Runtime, tiers: &Arc<Tiers>, slow_wait: Duration) {
    let rotates = tiers.slow_rotates();
    let (mut bells, mut of_drain): (Vec<Arc<Bell>>, Option<Arc<Bell>>) = Default::default();
    // Without a partner it would only be woken in vain.
    for work in WORKS.into_iter().filter(|work| work.name != PARTNER || tiers.has_partner()) {
        let bell = Arc::<Bell>::default();
        let streams = (work.streams)(rotates);
        for stream in 0..streams {
            // Each stream has its own failures.
            let name = if stream == 0 { work.name } else { format!("{} {}", work.name, stream + 1).leak() };
            let work = Work { name, ..work };
            runtime.spawn(run((work, stream), Arc::clone(tiers), Arc::clone(&bell), silent_after(slow_wait)));
        }
        if work.woken && streams > 1 {
            of_drain = Some(Arc::clone(&bell));
        }
        bells.extend(work.woken.then_some(bell));
    }
    tiers.on_work(Box::new(move |whom| match (whom, &of_drain) {
        // `notify_one` keeps a permit when no loop is waiting yet, so no wake-up is lost between a step and the sleep.
        (Wake::EachKind, _) => bells.iter().for_each(|bell| bell.one.notify_one()),
        (Wake::OneStream, Some(bell)) => bell.one.notify_one(),
        (Wake::AllStreams, Some(bell)) => {
            bell.more.notify_waiters();
            bell.one.notify_waiters();
        }
        (_, None) => {}
    }));
}

async fn run((work, stream): (Work, u32), tiers: Arc<Tiers>, bell: Arc<Bell>, silent_after: Duration) {
    let mut health = Health::new(work);
    loop {
        // Such a stream does not wait with the others: it would take their wake-ups. It passes on one that it may have
        // taken.
        if stream > 0 && stream >= (work.streams_now)(&tiers) {
            bell.one.notify_one();
            woken_within(&bell.more, TICK).await;
            continue;
        }
        let began = Instant::now();
        let Some(done) = step((work, stream), &tiers, silent_after).await else { return };
        tiers.report(work.name, done.as_ref().err());
        match next(done, began.elapsed(), &mut health) {
            Next::Again => {}
            Next::Sleep(time) => tokio::time::sleep(time).await,
            Next::Await { least, most } => {
                tokio::time::sleep(least).await;
                woken_within(&bell.one, most).await;
            }
        }
    }
}

async fn woken_within(notify: &Notify, most: Duration) {
    tokio::select! {
        () = notify.notified() => {}
        () = tokio::time::sleep(most) => {}
    }
}

/// Runs one step after another on this thread while there is work, but not for long: a hop to another thread costs more
/// than a small step.
fn steps((work, stream): (Work, u32), tiers: &Tiers) -> Result<Progress> {
    let began = Instant::now();
    loop {
        match (work.step)(tiers, stream)? {
            Progress::Did if began.elapsed() < BREATH => {}
            done => return Ok(done),
        }
    }
}

/// Runs some steps. While they wait for the slow tier and no byte arrives there, the tier is silent. `None`: the task
/// was cancelled, which only happens when the runtime shuts down; a panic aborts the process.
async fn step((work, stream): (Work, u32), tiers: &Arc<Tiers>, silent_after: Duration) -> Option<Result<Progress>> {
    let on_thread = Arc::clone(tiers);
    let mut done = tokio::task::spawn_blocking(move || steps((work, stream), &on_thread));
    let mut seen = tiers.copied_bytes();
    loop {
        tokio::select! {
            done = &mut done => return done.ok(),
            () = tokio::time::sleep(silent_after), if work.needs_slow => {
                let copied = tiers.copied_bytes();
                if copied == seen {
                    tiers.report_silence(work.name, silent_after);
                }
                seen = copied;
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Again,
    /// Sleeps the whole time: a wake-up does not make a failed tier answer.
    Sleep(Duration),
    /// Until woken, but at least `least`, and at most `most`, which may be shorter.
    Await {
        least: Duration,
        most: Duration,
    },
}

/// `took`: since the step began.
fn next(done: Result<Progress>, took: Duration, health: &mut Health) -> Next {
    match done {
        Ok(progress) => {
            health.succeeded();
            match progress {
                Progress::Did => Next::Again,
                Progress::Idle => Next::Await { least: GLANCE, most: TICK },
                Progress::Wait(time) if health.work.rounds => {
                    Next::Await { least: time.min(BREATH), most: time.saturating_sub(took.max(BREATH)).min(TICK) }
                }
                // A sync may cut the wait short, so it can be woken; a loop that is woken for each write must not spin.
                Progress::Wait(time) => Next::Await { least: time.min(BREATH), most: time.min(TICK) },
            }
        }
        Err(error) => Next::Sleep(health.failed(&error)),
    }
}

/// Whether a loop's work succeeds, and how long to wait when it does not. Logs changes only.
struct Health {
    work: Work,
    failures: u32,
}

impl Health {
    fn new(work: Work) -> Self {
        Health { work, failures: 0 }
    }

    fn succeeded(&mut self) {
        if self.failures > 0 {
            info!(work = self.work.name, after_failures = self.failures, "works again");
        }
        self.failures = 0;
    }

    /// Returns how long to wait: slow-tier work backs off, with jitter so that many nodes do not return at once.
    fn failed(&mut self, error: &Error) -> Duration {
        if self.failures == 0 {
            let work = self.work.name;
            match self.work.needs_slow {
                true => warn!(work, %error, "failed; nothing is dropped, it is tried again until it succeeds"),
                false => error!(work, %error, "failed on the fast tier; what it holds may not be durable"),
            }
        }
        self.failures = self.failures.saturating_add(1);
        let backs_off = self.work.needs_slow && !self.work.steady;
        if backs_off { backoff(self.failures, rand::rng().random_range(0.5..1.0)) } else { BACKOFF_FIRST }
    }
}

/// 1 s, doubled per failure up to 60 s, times `jitter` (0.5 to 1) from the second one on.
fn backoff(failures: u32, jitter: f64) -> Duration {
    let full = BACKOFF_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(BACKOFF_MOST);
    full.mul_f64(jitter).max(BACKOFF_FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Errno, Error};

    const SLOW: Work = Work { name: "test", woken: true, ..PLAIN };

    #[test]
    fn backoff_goes_from_one_second_to_sixty() {
        let seconds: Vec<f64> = (1..=9).map(|n| backoff(n, 1.0).as_secs_f64()).collect();
        assert_eq!(seconds, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
        assert_eq!(backoff(1, 0.5), Duration::from_secs(1), "never less than a second");
        assert_eq!(backoff(u32::MAX, 0.5), Duration::from_secs(30));
    }

    #[test]
    fn a_failed_step_is_not_repeated_at_once_and_success_forgets_the_failures() {
        let mut health = Health::new(SLOW);
        for _ in 0..3 {
            let next = next(Err(Error::from(Errno::EIO)), Duration::ZERO, &mut health);
            assert!(matches!(next, Next::Sleep(time) if time >= BACKOFF_FIRST), "{next:?}");
        }
        assert_eq!(health.failures, 3);
        assert_eq!(next(Ok(Progress::Did), Duration::ZERO, &mut health), Next::Again);
        assert_eq!(health.failures, 0);
    }

    #[test]
    fn waiting_can_be_cut_short_but_does_not_spin() {
        let mut health = Health::new(SLOW);
        let long = Progress::Wait(Duration::from_secs(50));
        assert_eq!(next(Ok(long), Duration::ZERO, &mut health), Next::Await { least: BREATH, most: TICK });
        let idle = Next::Await { least: GLANCE, most: TICK };
        assert_eq!(
            next(Ok(Progress::Idle), Duration::ZERO, &mut health),
            idle,
            "work that appears is begun soon, however often it is called"
        );
    }

    /// The duration of a round is not added to the time between two.
    #[test]
    fn a_round_begins_so_long_after_the_beginning_of_the_one_before_it() {
        let mut health = Health::new(Work { rounds: true, ..SLOW });
        let mut most = |took| match next(Ok(Progress::Wait(10 * BREATH)), took, &mut health) {
            Next::Await { least, most } if least == BREATH => most,
            other => panic!("{other:?}"),
        };
        assert_eq!([0, 4, 10, 50].map(|took| most(took * BREATH)), [9, 6, 0, 0].map(|most| most * BREATH));
        let next = next(Ok(Progress::Wait(10 * BREATH)), 4 * BREATH, &mut Health::new(SLOW));
        assert_eq!(next, Next::Await { least: BREATH, most: 10 * BREATH });
    }
}
