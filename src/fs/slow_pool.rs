//! Threads that may wait for the slow tier, so that the threads that serve the kernel never do.
//!
//! A call comes with its reply. Whoever takes the reply out of the call's slot first answers: the thread that ran the
//! call, or the watchdog once the call has waited too long. A result that comes too late is dropped, and a result that
//! must be undone (an open file, a counted reference) does that in its own `Drop`. Threads and queue are bounded; what
//! a call does is its caller's business.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How many calls run and wait at once, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) threads: usize,
    /// Calls that wait for a thread; one more is refused.
    pub(super) queue: usize,
    /// From the submission of a call to the answer of the watchdog; `None`: there is no watchdog.
    pub(super) wait: Option<Duration>,
}

/// What the pool has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) waiting: usize,
    pub(super) served: u64,
    pub(super) timed_out: u64,
    pub(super) refused: u64,
}

#[derive(Debug)]
pub(super) struct SlowPool {
    shared: Arc<Shared>,
}

struct Shared {
    limits: Limits,
    state: Mutex<State>,
    /// A call was queued, or the pool closes.
    queued: Condvar,
    /// The pool closes.
    closing: Condvar,
    served: AtomicU64,
    timed_out: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Calls that are not answered yet, in the order of their deadlines.
    unanswered: BTreeMap<u64, (Instant, Arc<dyn Expire>)>,
    next: u64,
    closed: bool,
}

type Job = Box<dyn FnOnce(&Shared) + Send>;

/// A call as the watchdog sees it.
trait Expire: Send + Sync {
    /// Gives up and answers, and counts that; nothing if the call was answered meanwhile.
    fn expire(&self, timed_out: &AtomicU64);
}

struct Call<R, E> {
    reply: Mutex<Option<R>>,
    gave_up: Arc<AtomicBool>,
    expired: E,
}

impl<R: Send, E: Fn(R) + Send + Sync> Expire for Call<R, E> {
    fn expire(&self, timed_out: &AtomicU64) {
        // First the flag, then the reply: once the application has its answer, the engine changes nothing any more. The
        // engine reads the flag just before it commits a change; that last window is the engine's to close.
        self.gave_up.store(true, SeqCst);
        let reply = self.reply.lock().take();
        if let Some(reply) = reply {
            timed_out.fetch_add(1, Relaxed);
            (self.expired)(reply);
        }
    }
}

impl SlowPool {
    /// Starts the threads, named `name-0`, `name-1`, ...
    pub(super) fn new(name: &str, limits: Limits) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            limits,
            state: Mutex::default(),
            queued: Condvar::new(),
            closing: Condvar::new(),
            served: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let pool = SlowPool { shared };
        for i in 0..limits.threads {
            pool.start(format!("{name}-{i}"), Shared::work)?;
        }
        if limits.wait.is_some() {
            pool.start(format!("{name}-watch"), Shared::watch)?;
        }
        Ok(pool)
    }

    fn start(&self, name: String, body: fn(&Shared)) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        // Not joined: a thread that hangs in a system call on the slow tier must not hold up the end of the program.
        thread::Builder::new().name(name).spawn(move || body(&shared)).map(drop)
    }

    /// Queues a call. `run` gets the flag that tells it when nobody waits any more. Then either `done` gets the result
    /// and the reply, or `expired` gets the reply and the result is dropped.
    ///
    /// Errors: gives `reply` back if the queue is full.
    pub(super) fn submit<R, V>(
        &self,
        reply: R,
        run: impl FnOnce(Arc<AtomicBool>) -> V + Send + 'static,
        done: impl FnOnce(R, V) + Send + 'static,
        expired: impl Fn(R) + Send + Sync + 'static,
    ) -> Result<(), R>
    where
        R: Send + 'static,
    {
        let mut state = self.shared.state.lock();
        if state.queue.len() >= self.shared.limits.queue {
            self.shared.refused.fetch_add(1, Relaxed);
            return Err(reply);
        }
        let call = Arc::new(Call { reply: Mutex::new(Some(reply)), gave_up: Arc::default(), expired });
        let number = state.next;
        state.next += 1;
        if let Some(wait) = self.shared.limits.wait {
            // The watchdog is not woken: it looks in time by itself.
            state.unanswered.insert(number, (Instant::now() + wait, call.clone()));
        }
        state.queue.push_back(Box::new(move |shared: &Shared| {
            // Given up while it was queued: running it would only hold a thread that others wait for.
            if call.gave_up.load(SeqCst) {
                return;
            }
            let value = run(Arc::clone(&call.gave_up));
            shared.state.lock().unanswered.remove(&number);
            let reply = call.reply.lock().take();
            if let Some(reply) = reply {
                shared.served.fetch_add(1, Relaxed);
                done(reply, value);
            }
        }));
        // Without the lock: the thread would be woken for that first.
        drop(state);
        self.shared.queued.notify_one();
        Ok(())
    }

    pub(super) fn limits(&self) -> Limits {
        self.shared.limits
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            waiting: self.shared.state.lock().queue.len(),
            served: self.shared.served.load(Relaxed),
            timed_out: self.shared.timed_out.load(Relaxed),
            refused: self.shared.refused.load(Relaxed),
        }
    }
}

impl Drop for SlowPool {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let unserved = std::mem::take(&mut state.queue);
        state.unanswered.clear();
        drop(state);
        // Outside of the lock: dropping a reply answers it.
        drop(unserved);
        self.shared.queued.notify_all();
        self.shared.closing.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            match state.queue.pop_front() {
                Some(job) => MutexGuard::unlocked(&mut state, || job(self)),
                None => self.queued.wait(&mut state),
            }
        }
    }

    /// Every call waits equally long. So whoever comes while the watchdog sleeps is due after it has woken, and wakes nobody.
    fn watch(&self) {
        let Some(wait) = self.limits.wait else { return };
        let mut state = self.state.lock();
        while !state.closed {
            let Some((&number, &(deadline, _))) = state.unanswered.first_key_value() else {
                self.closing.wait_for(&mut state, wait);
                continue;
            };
            if Instant::now() < deadline {
                self.closing.wait_until(&mut state, deadline);
                continue;
            }
            if let Some((_, call)) = state.unanswered.remove(&number) {
                MutexGuard::unlocked(&mut state, || call.expire(&self.timed_out));
            }
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("limits", &self.limits).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender};

    /// Far beyond what any test needs; reached only when something hangs.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn pool(threads: usize, queue: usize, wait: Option<Duration>) -> SlowPool {
        SlowPool::new("test", Limits { threads, queue, wait }).expect("threads")
    }

    /// A call that holds its thread until the sender it returns is used or dropped.
    fn block(pool: &SlowPool) -> (Sender<()>, Receiver<&'static str>) {
        let (go, gate) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel();
        let (reply, answer) = mpsc::channel();
        let run = move |_| {
            started.send(()).expect("the test listens");
            gate.recv().ok();
        };
        let say = |what| move |reply: Sender<&'static str>| reply.send(what).expect("the test listens");
        let done = move |reply, ()| say("done")(reply);
        pool.submit(reply, run, done, say("expired")).expect("room");
        running.recv_timeout(PATIENCE).expect("the call runs");
        (go, answer)
    }

    #[test]
    fn a_call_is_answered_with_its_result() {
        let pool = pool(2, 10, Some(PATIENCE));
        let (reply, answer) = mpsc::channel();
        pool.submit(reply, |_| 6 * 7, |reply, n| reply.send(n).expect("the test listens"), drop).expect("room");
        assert_eq!(answer.recv_timeout(PATIENCE), Ok(42));
        assert_eq!(pool.counts(), Counts { served: 1, ..Counts::default() });
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
        let expired = |reply: Sender<&str>| reply.send("expired").expect("the test listens");
        pool.submit(reply, run, done, expired).expect("room");

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
        pool.submit(reply, run, |_, ()| (), |reply: Sender<()>| reply.send(()).expect("the test listens"))
            .expect("room");
        answer.recv_timeout(PATIENCE).expect("the watchdog answers though no thread is free");
        assert_eq!(blocked.recv_timeout(PATIENCE), Ok("expired"));
        drop(go);
        assert!(runs.recv().is_err(), "dropped without having been called");
    }

    #[test]
    fn a_full_queue_gives_the_reply_back() {
        let pool = pool(1, 1, None);
        let (_go, _answer) = block(&pool);
        pool.submit("queued", |_| (), |_, ()| (), |_| ()).expect("room for one");
        assert_eq!(pool.submit("refused", |_| (), |_, ()| (), |_| ()), Err("refused"));
        assert_eq!((pool.counts().waiting, pool.counts().refused), (1, 1));
    }

    #[test]
    fn a_dropped_pool_drops_what_it_has_not_run() {
        let pool = pool(1, 10, None);
        let (go, _answer) = block(&pool);
        let (reply, answer) = mpsc::channel::<()>();
        pool.submit(reply, |_| (), |_, ()| (), |_| ()).expect("room");
        drop(pool);
        assert!(answer.recv_timeout(PATIENCE).is_err(), "its reply is gone, unanswered");
        drop(go);
    }
}
