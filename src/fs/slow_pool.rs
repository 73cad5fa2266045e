//! Threads that may wait for the slow tier, so that the threads that serve the kernel never do.
//!
//! A call comes with its reply. The first to take the reply out of the call's slot answers: the thread that ran the
//! call, or the watchdog once the call has waited too long or its caller is being killed. A late result is dropped; a
//! result that must be undone (an open file, a counted reference) does so in its own `Drop`.
//!
//! The number of threads is bounded, and so are each user's queue and share: a user other than root and the mount's
//! owner has at most a quarter of the threads, so that others never wait for one user's calls. Calls of users who have
//! no call running come first. A thread that has been in one call for a second does not count against the limit: a hung
//! call does not block the others. The pool does not know what a call does.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::stats::counters::Count;
use crate::stats::recorder::MetricsRecorder;

/// How often the watchdog checks for killed callers and hung threads.
const LOOK: Duration = Duration::from_secs(1);
/// A call that has waited this long is logged.
const LONG: Duration = Duration::from_secs(5);
/// The shortest interval between these messages.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// How many calls run and wait at once, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Calls that run at once.
    pub(super) threads: usize,
    /// The limit on calls at once, including the threads that replace hung ones.
    pub(super) threads_most: usize,
    /// Calls of one user that may wait for a thread; one more is refused.
    pub(super) queue: usize,
    /// The time from submitting a call until the watchdog answers it; `None`: there is no watchdog.
    pub(super) wait: Option<Duration>,
    /// The mount's owner, who may have all threads, as root may.
    pub(super) owner: u32,
}

impl Limits {
    /// How many of these threads one user has at most.
    fn share(threads: usize) -> usize {
        (threads / 4).max(1)
    }

    fn allows(&self, uid: u32, running: RunningOfUser) -> bool {
        let RunningOfUser { all, hanging } = running;
        let is_trusted = uid == 0 || uid == self.owner;
        is_trusted || (all - hanging < Limits::share(self.threads) && all < Limits::share(self.threads_most))
    }
}

/// The caller that waits, and its call.
pub(super) struct Caller {
    pub(super) uid: u32,
    /// The call's own wait, where it is shorter than the pool's: its caller then has another answer, and the call does
    /// not count as timed out.
    pub(super) wait: Option<Duration>,
    /// Whether the kernel is about to kill it. Checked once a second.
    pub(super) is_killed: Box<dyn Fn() -> bool + Send + Sync>,
    /// Describes the call for messages. Called after it has waited for long.
    pub(super) about: Box<dyn Fn() -> String + Send + Sync>,
}

/// Why a call is answered before it has a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenUp {
    TooLong,
    Killed,
}

/// The call that has waited longest, if that is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Longest {
    pub(super) waited: Duration,
    pub(super) about: String,
}

/// What the pool has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolCounts {
    pub(super) waiting: usize,
    pub(super) served: u64,
    pub(super) timed_out: u64,
    pub(super) refused: u64,
}

/// The counters of a pool.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolTotals {
    served: Count,
    timed_out: Count,
    refused: Count,
}

impl PoolTotals {
    /// Those of the pool of the slow tier.
    pub(super) fn of_slow(recorder: &MetricsRecorder) -> Self {
        let count = |name, help| recorder.count(name, help, &[]);
        PoolTotals {
            served: count("dliofs_slow_calls_total", "Operations that went to the slow tier."),
            timed_out: count("dliofs_slow_calls_timed_out_total", "Answered EIO after slow_wait."),
            refused: count("dliofs_slow_calls_refused_total", "Answered EIO: too many waited."),
        }
    }
}

#[derive(Debug)]
pub(super) struct SlowPool {
    shared: Arc<PoolShared>,
}

#[derive(derive_more::Debug)]
#[debug("PoolShared({limits:?})")]
struct PoolShared {
    name: String,
    limits: Limits,
    state: Mutex<PoolState>,
    /// The pool closes.
    closing: Condvar,
    totals: PoolTotals,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Queued>,
    /// How many calls of each user are in it.
    in_line: HashMap<u32, usize>,
    /// Calls not answered yet, by their numbers, which is the order of their deadlines.
    unanswered: BTreeMap<u64, Unanswered>,
    /// Calls being run, and since when; including those that no caller waits for any more.
    running: BTreeMap<u64, RunningCall>,
    threads: usize,
    /// Threads that wait for a call. The last one gets the next call, so that memory which the allocator keeps per
    /// thread, for instance for large listings, exists only for as many threads as run at once.
    idle: Vec<Thread>,
    next: u64,
    told: Option<Instant>,
    closed: bool,
}

struct Queued {
    uid: u32,
    number: u64,
    has_own_wait: bool,
    job: PoolJob,
}

struct RunningCall {
    uid: u32,
    since: Instant,
    has_own_wait: bool,
}

/// How many calls of a user are being run.
#[derive(Clone, Copy, Debug, Default)]
struct RunningOfUser {
    all: usize,
    hanging: usize,
}

impl RunningCall {
    fn hangs(&self) -> bool {
        self.since.elapsed() >= LOOK
    }
}

#[derive(Clone)]
struct Unanswered {
    since: Instant,
    caller: Arc<Caller>,
    call: Arc<dyn Expire>,
}

type PoolJob = Box<dyn FnOnce(&PoolShared) + Send>;

/// A call as the watchdog sees it.
trait Expire: Send + Sync {
    /// Gives up and answers, and counts a call that took too long; does nothing if the call was answered meanwhile.
    fn expire(&self, why: GivenUp, timed_out: Option<&Count>);
}

struct PendingCall<R, E> {
    reply: Mutex<Option<R>>,
    gave_up: Arc<AtomicBool>,
    expired: E,
}

impl<R: Send, E: Fn(R, GivenUp) + Send + Sync> Expire for PendingCall<R, E> {
    fn expire(&self, why: GivenUp, timed_out: Option<&Count>) {
        // First the flag, then the reply: once the application has its answer, the engine changes nothing any more. The
        // engine reads the flag just before it commits a change; closing the last window is up to the engine.
        self.gave_up.store(true, SeqCst);
        let reply = self.reply.lock().take();
        if let Some(reply) = reply {
            if let Some(timed_out) = timed_out {
                timed_out.increment(1);
            }
            (self.expired)(reply, why);
        }
    }
}

impl SlowPool {
    /// Starts the threads, named `name-0`, `name-1`, ...
    pub(super) fn new(name: &str, limits: Limits, totals: PoolTotals) -> io::Result<Self> {
        let shared = Arc::new(PoolShared {
            name: name.to_owned(),
            limits,
            state: Mutex::default(),
            closing: Condvar::new(),
            totals,
        });
        let pool = SlowPool { shared };
        for _ in 0..limits.threads {
            pool.shared.add_thread()?;
        }
        if limits.wait.is_some() {
            start(&pool.shared, "watch", PoolShared::watch)?;
        }
        Ok(pool)
    }

    /// Queues a call. `run` gets a flag that is set when the caller no longer waits. Then either `done` gets the result
    /// and the reply, or `expired` gets the reply and the result is dropped.
    ///
    /// Errors: gives `reply` back if the queue is full.
    pub(super) fn submit<R, V>(
        &self,
        caller: Caller,
        reply: R,
        run: impl FnOnce(Arc<AtomicBool>) -> V + Send + 'static,
        done: impl FnOnce(R, V) + Send + 'static,
        expired: impl Fn(R, GivenUp) + Send + Sync + 'static,
    ) -> Result<(), R>
    where
        R: Send + 'static,
    {
        let mut state = self.shared.state.lock();
        let (uid, has_own_wait) = (caller.uid, caller.wait.is_some());
        let in_line = state.in_line.entry(uid).or_default();
        if *in_line >= self.shared.limits.queue {
            self.shared.totals.refused.increment(1);
            return Err(reply);
        }
        *in_line += 1;
        let call = Arc::new(PendingCall { reply: Mutex::new(Some(reply)), gave_up: Arc::default(), expired });
        let number = state.next;
        state.next += 1;
        if self.shared.limits.wait.is_some() {
            // The watchdog is not woken: it checks in time by itself.
            let unanswered = Unanswered { since: Instant::now(), caller: Arc::new(caller), call: call.clone() };
            state.unanswered.insert(number, unanswered);
        }
        let job: PoolJob = Box::new(move |shared: &PoolShared| {
            // Abandoned while queued: running it would only hold a thread that others wait for.
            if call.gave_up.load(SeqCst) {
                return;
            }
            let value = run(Arc::clone(&call.gave_up));
            shared.state.lock().unanswered.remove(&number);
            let reply = call.reply.lock().take();
            if let Some(reply) = reply {
                shared.totals.served.increment(1);
                done(reply, value);
            }
        });
        state.queue.push_back(Queued { uid, number, has_own_wait, job });
        let idle = state.idle.pop();
        // Without the lock: the woken thread would block on it first.
        drop(state);
        idle.iter().for_each(Thread::unpark);
        Ok(())
    }

    pub(super) fn limits(&self) -> Limits {
        self.shared.limits
    }

    pub(super) fn counts(&self) -> PoolCounts {
        let PoolTotals { served, timed_out, refused } = &self.shared.totals;
        PoolCounts {
            waiting: self.shared.state.lock().queue.len(),
            served: served.get(),
            timed_out: timed_out.get(),
            refused: refused.get(),
        }
    }

    /// Whether a call with its own wait hangs: another one would only take another thread.
    pub(super) fn hangs(&self) -> bool {
        self.shared.state.lock().running.values().any(|running| running.has_own_wait && running.hangs())
    }

    pub(super) fn longest(&self) -> Option<Longest> {
        let first = self.shared.state.lock().unanswered.values().next().cloned()?;
        let waited = first.since.elapsed();
        (waited >= LONG).then(|| Longest { waited, about: (first.caller.about)() })
    }
}

/// Starts a thread. It is not joined: a thread that hangs in a system call on the slow tier must not delay the end of
/// the program.
fn start(shared: &Arc<PoolShared>, name: &str, body: fn(&Arc<PoolShared>)) -> io::Result<()> {
    let (name, shared) = (format!("{}-{name}", shared.name), Arc::clone(shared));
    thread::Builder::new().name(name).spawn(move || body(&shared)).map(drop)
}

impl Drop for SlowPool {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let unserved = std::mem::take(&mut state.queue);
        state.unanswered.clear();
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        // Outside of the lock: dropping a reply answers it.
        drop(unserved);
        idle.iter().for_each(Thread::unpark);
        self.shared.closing.notify_all();
    }
}

impl PoolShared {
    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let number = {
            let mut state = self.state.lock();
            state.threads += 1;
            state.threads - 1
        };
        let started = start(self, &number.to_string(), |shared| shared.work());
        if started.is_err() {
            self.state.lock().threads -= 1;
        }
        started
    }

    fn work(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            let Some(Queued { uid, number, has_own_wait, job }) = state.pop_next(&self.limits) else {
                if state.threads > state.wanted(&self.limits) {
                    // It replaced one that hung.
                    break;
                }
                let this = thread::current();
                state.idle.push(this.clone());
                MutexGuard::unlocked(&mut state, thread::park);
                // It may have been woken for another reason.
                state.idle.retain(|idle| idle.id() != this.id());
                continue;
            };
            state.running.insert(number, RunningCall { uid, since: Instant::now(), has_own_wait });
            MutexGuard::unlocked(&mut state, || job(self));
            state.running.remove(&number);
        }
        state.threads -= 1;
    }

    /// Checks each second, or as often as a call may wait where that is less.
    fn watch(self: &Arc<Self>) {
        let Some(wait) = self.limits.wait else { return };
        let look = wait.min(LOOK);
        loop {
            {
                let mut state = self.state.lock();
                if !state.closed {
                    self.closing.wait_for(&mut state, look);
                }
                if state.closed {
                    return;
                }
            }
            self.give_up(wait, look);
            self.log_longest();
            self.stand_in();
        }
    }

    /// Answers calls that have waited too long, and those whose caller is being killed. The kernel sends no request to
    /// interrupt a call: a signal that does not end its process does not concern a file system, and one that does is
    /// found here.
    fn give_up(&self, wait: Duration, look: Duration) {
        let waiting: Vec<(u64, Unanswered)> = {
            let state = self.state.lock();
            let waiting = state.unanswered.iter().filter(|(_, waiting)| waiting.since.elapsed() >= look);
            waiting.map(|(number, waiting)| (*number, waiting.clone())).collect()
        };
        for (number, waiting) in waiting {
            let why = match waiting.since.elapsed() >= waiting.caller.wait.map_or(wait, |own| own.min(wait)) {
                true => GivenUp::TooLong,
                false if (waiting.caller.is_killed)() => GivenUp::Killed,
                false => continue,
            };
            self.state.lock().unanswered.remove(&number);
            let times_out = why == GivenUp::TooLong && waiting.caller.wait.is_none();
            waiting.call.expire(why, times_out.then_some(&self.totals.timed_out));
        }
    }

    /// Logs the call that has waited longest.
    fn log_longest(&self) {
        let first = {
            let mut state = self.state.lock();
            let Some(first) = state.unanswered.values().next().filter(|first| first.since.elapsed() >= LONG).cloned()
            else {
                return;
            };
            if state.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
                return;
            }
            state.told = Some(Instant::now());
            first
        };
        let waited = first.since.elapsed().as_secs();
        tracing::warn!(call = (first.caller.about)(), waited, "waits for the slow tier");
    }

    /// Starts threads in place of hung ones, if calls wait for one, and wakes idle ones: a user whose call now counts
    /// as hung may start another.
    fn stand_in(self: &Arc<Self>) {
        let missing = {
            let state = self.state.lock();
            if !state.queue.is_empty() {
                state.idle.iter().for_each(Thread::unpark);
            }
            state.wanted(&self.limits).saturating_sub(state.threads).min(state.queue.len())
        };
        for _ in 0..missing {
            if let Err(error) = self.add_thread() {
                tracing::warn!(%error, "no further thread for calls that wait for the slow tier");
                return;
            }
        }
    }
}

impl PoolState {
    /// How many threads there should be.
    fn wanted(&self, limits: &Limits) -> usize {
        let hanging = self.running.values().filter(|running| running.hangs()).count();
        (limits.threads + hanging).min(limits.threads_most)
    }

    /// The oldest call of a user who has none running; otherwise the oldest of a user who may have one more.
    fn pop_next(&mut self, limits: &Limits) -> Option<Queued> {
        let mut running: HashMap<u32, RunningOfUser> = HashMap::new();
        for call in self.running.values() {
            let of_user = running.entry(call.uid).or_default();
            of_user.all += 1;
            of_user.hanging += usize::from(call.hangs());
        }
        let has_none = |queued: &Queued| !running.contains_key(&queued.uid);
        let may = |queued: &Queued| running.get(&queued.uid).is_none_or(|running| limits.allows(queued.uid, *running));
        let at = self.queue.iter().position(has_none).or_else(|| self.queue.iter().position(may))?;
        let next = self.queue.remove(at)?;
        self.left_line(next.uid);
        Some(next)
    }

    fn left_line(&mut self, uid: u32) {
        if let Some(in_line) = self.in_line.get_mut(&uid) {
            *in_line -= 1;
            if *in_line == 0 {
                self.in_line.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender};

    /// Far beyond what any test needs; reached only when something hangs.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn pool(threads: usize, queue: usize, wait: Option<Duration>) -> SlowPool {
        let limits = Limits { threads, threads_most: threads, queue, wait, owner: 0 };
        SlowPool::new("test", limits, PoolTotals::default()).expect("threads")
    }

    fn user(uid: u32) -> Caller {
        Caller { uid, wait: None, is_killed: Box::new(|| false), about: Box::new(move || format!("of user {uid}")) }
    }

    /// A call that holds its thread until the sender it returns is used or dropped.
    fn block(pool: &SlowPool) -> (Sender<()>, Receiver<&'static str>) {
        let (go, answer, running) = submit_blocked(pool, 0);
        running.recv_timeout(PATIENCE).expect("the call runs");
        (go, answer)
    }

    /// Blocks a thread with a call of this user; the last receiver says when the call runs.
    fn submit_blocked(pool: &SlowPool, uid: u32) -> (Sender<()>, Receiver<&'static str>, Receiver<()>) {
        let (go, gate) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel();
        let (reply, answer) = mpsc::channel();
        let run = move |_| {
            started.send(()).expect("the test listens");
            gate.recv().ok();
        };
        let done = |reply: Sender<&'static str>, ()| reply.send("done").expect("the test listens");
        let expired = |reply: Sender<&'static str>, _| reply.send("expired").expect("the test listens");
        pool.submit(user(uid), reply, run, done, expired).expect("room");
        (go, answer, running)
    }

    #[test]
    fn a_call_is_answered_with_its_result() {
        let pool = pool(2, 10, Some(PATIENCE));
        let (reply, answer) = mpsc::channel();
        let done = |reply: Sender<i32>, n| reply.send(n).expect("the test listens");
        pool.submit(user(0), reply, |_| 6 * 7, done, |_, _| ()).expect("room");
        assert_eq!(answer.recv_timeout(PATIENCE), Ok(42));
        assert_eq!(pool.counts(), PoolCounts { served: 1, ..PoolCounts::default() });
    }

    #[test]
    fn the_watchdog_answers_once_and_the_late_result_is_dropped() {
        let pool = pool(1, 10, Some(Duration::from_millis(20)));
        let (dropped, late) = mpsc::channel();
        struct Undo(Sender<bool>, Arc<AtomicBool>);
        impl Drop for Undo {
            fn drop(&mut self) {
                self.0.send(self.1.load(SeqCst)).ok();
            }
        }
        let (go, gate) = mpsc::channel::<()>();
        let (reply, answer) = mpsc::channel();
        let run = move |gave_up| {
            gate.recv().ok();
            Undo(dropped, gave_up)
        };
        let done = |reply: Sender<&str>, _| reply.send("done").expect("the test listens");
        let expired = |reply: Sender<&str>, _| reply.send("expired").expect("the test listens");
        pool.submit(user(0), reply, run, done, expired).expect("room");

        assert_eq!(answer.recv_timeout(PATIENCE), Ok("expired"));
        drop(go);
        assert_eq!(late.recv_timeout(PATIENCE), Ok(true), "the late result is undone, and the call could know");
        assert!(answer.recv().is_err(), "no second answer");
        assert_eq!((pool.counts().timed_out, pool.counts().served), (1, 0));
    }

    #[test]
    fn a_call_given_up_while_queued_never_runs() {
        let pool = pool(1, 10, Some(Duration::from_millis(20)));
        let (go, blocked) = block(&pool);
        let (reply, answer) = mpsc::channel();
        let (ran, runs) = mpsc::channel();
        let run = move |_| ran.send(()).expect("the test listens");
        let expired = |reply: Sender<()>, _| reply.send(()).expect("the test listens");
        pool.submit(user(0), reply, run, |_, ()| (), expired).expect("room");
        answer.recv_timeout(PATIENCE).expect("the watchdog answers though no thread is free");
        assert_eq!(blocked.recv_timeout(PATIENCE), Ok("expired"));
        drop(go);
        assert!(runs.recv().is_err(), "dropped without having been called");
    }

    #[test]
    fn what_one_user_has_in_line_is_limited_and_no_other_s() {
        let pool = pool(1, 1, None);
        let (_go, _answer) = block(&pool);
        let submit = |uid, reply| pool.submit(user(uid), reply, |_| (), |_, ()| (), |_, _| ());
        submit(7, "queued").expect("room for one");
        assert_eq!(submit(7, "refused"), Err("refused"));
        submit(8, "of another").expect("room for one");
        assert_eq!((pool.counts().waiting, pool.counts().refused), (2, 1));
    }

    #[test]
    fn who_has_many_calls_in_line_keeps_no_other_user_waiting() {
        let pool = pool(2, 10, None);
        let (_first, (go, _answer)) = (block(&pool), block(&pool));
        let (told, order) = mpsc::channel();
        for uid in [0, 0, 0, 8] {
            let told = told.clone();
            let run = move |_| told.send(uid).expect("the test listens");
            pool.submit(user(uid), (), run, |(), ()| (), |(), _| ()).expect("room");
        }
        drop(go);
        let order: Vec<u32> = (0..4).map(|_| order.recv_timeout(PATIENCE).expect("it runs")).collect();
        assert_eq!(order, [8, 0, 0, 0]);
    }

    /// All threads were in calls of one user, on a hung mount in the tree: other users waited for theirs.
    #[test]
    fn one_user_has_a_quarter_of_the_threads() {
        let pool = pool(8, 10, None);
        let mine: Vec<_> = (0..8).map(|_| submit_blocked(&pool, 7)).collect();
        let runs = |n: usize| mine[n].2.recv_timeout(PATIENCE).is_ok();
        assert!(runs(0) && runs(1));
        // Six threads are left, for any others.
        let others: Vec<_> = (8..11).flat_map(|uid| [submit_blocked(&pool, uid), submit_blocked(&pool, uid)]).collect();
        assert!(others.iter().all(|(_, _, running)| running.recv_timeout(PATIENCE).is_ok()));
        assert_eq!((pool.counts().waiting, mine[2].2.try_recv().is_ok()), (6, false));
        drop(others);
        mine[0].0.send(()).expect("it runs");
        assert!(runs(2), "one of theirs is done, and the next one runs");
        assert!(mine[3].2.try_recv().is_err());
    }

    #[test]
    fn a_call_of_who_is_being_killed_is_answered_and_changes_nothing() {
        let pool = pool(1, 10, Some(PATIENCE));
        let (go, gate) = mpsc::channel::<()>();
        let (reply, answer) = mpsc::channel();
        let (told, late) = mpsc::channel();
        let run = move |gave_up: Arc<AtomicBool>| {
            gate.recv().ok();
            told.send(gave_up.load(SeqCst)).expect("the test listens");
        };
        let expired = |reply: Sender<_>, why| reply.send(why).expect("the test listens");
        let caller = Caller { is_killed: Box::new(|| true), ..user(0) };
        pool.submit(caller, reply, run, |_, ()| (), expired).expect("room");
        assert_eq!(answer.recv_timeout(PATIENCE), Ok(GivenUp::Killed));
        drop(go);
        assert_eq!(late.recv_timeout(PATIENCE), Ok(true));
        assert_eq!(pool.counts().timed_out, 0);
    }

    #[test]
    fn what_hangs_is_not_in_the_way_of_what_does_not() {
        let limits = Limits { threads: 1, threads_most: 3, queue: 10, wait: Some(PATIENCE), owner: 0 };
        let pool = SlowPool::new("test", limits, PoolTotals::default()).expect("threads");
        let hanging = [block(&pool), block(&pool)];
        let (reply, answer) = mpsc::channel();
        let done = |reply: Sender<i32>, n| reply.send(n).expect("the test listens");
        pool.submit(user(0), reply, |_| 6 * 7, done, |_, _| ()).expect("room");
        assert_eq!(answer.recv_timeout(PATIENCE), Ok(42));
        drop(hanging);
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            thread::yield_now();
        }
    }

    /// It hangs for as long as its thread does. Only a call with its own wait reports this: a large copy is no reason
    /// to answer from memory.
    #[test]
    fn a_call_with_a_wait_of_its_own_has_another_answer_and_hangs_on() {
        let pool = pool(2, 10, Some(PATIENCE));
        let (_other, _answer) = block(&pool);
        let (go, gate) = mpsc::channel::<()>();
        let (reply, answer) = mpsc::channel();
        let expired = |reply: Sender<_>, why| reply.send(why).expect("the test listens");
        let caller = Caller { wait: Some(LOOK), ..user(0) };
        let run = move |_| {
            gate.recv().ok();
        };
        pool.submit(caller, reply, run, |_, ()| (), expired).expect("room");
        assert_eq!(answer.recv_timeout(PATIENCE), Ok(GivenUp::TooLong));
        // Its thread may have started the call some time after it was submitted.
        until("it hangs", || pool.hangs());
        assert_eq!(pool.counts().timed_out, 0);
        drop(go);
        until("the other one hangs on, and does not count", || !pool.hangs());
    }

    #[test]
    fn a_dropped_pool_drops_what_it_has_not_run() {
        let pool = pool(1, 10, None);
        let (go, _answer) = block(&pool);
        let (reply, answer) = mpsc::channel::<()>();
        pool.submit(user(0), reply, |_| (), |_, ()| (), |_, _| ()).expect("room");
        drop(pool);
        assert!(answer.recv_timeout(PATIENCE).is_err(), "its reply is gone, unanswered");
        drop(go);
    }
}
