//! The engine's locks, and the order in which they are taken.
//!
//! A thread that waits for a lock holds none of the same [`Rank`] or of a later one; two files' [`Rank::Io`] are taken
//! by inode number. With debug assertions each lock checks that, independently of other threads: the first test that
//! takes a wrong order finds it, not only one in which two threads meet. A lock that is only *tried* may be out of
//! order.
//!
//! With debug assertions, each lock and each atomic of a file is also a point where a [`turns::Scheduler`] may switch
//! to another thread: `tests/races` tries the orders of threads in the build that all other tests use.

use derive_more::{Deref, DerefMut};
#[cfg(debug_assertions)]
use std::panic::Location;
use std::time::Duration;

use parking_lot as raw;

#[cfg(not(debug_assertions))]
pub(crate) use std::sync::atomic;
#[cfg(debug_assertions)]
pub(crate) use turns::atomic;

/// The ranks, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Publishing.
    Publishing,
    /// One file's bytes; its key is the inode number. Besides `Publishing`, the only one that may be held across a call
    /// to the slow tier.
    Io,
    /// Opening closed nodes on the slow tier for the duration of a call, in a mount without root (`disk/closed.rs`).
    /// Held across the calls that do that; no lock is taken after it.
    Opening,
    /// The next piece of a copy to the slow tier, which is read from the fast tier with it held.
    Copying,
    /// Names, events, references: memory and the append.
    State,
    /// Syncing the log.
    Syncing,
    /// The end of the log.
    Tail,
    /// Taken for a read or a change in memory; no lock is taken after it.
    Leaf,
}

/// The locks that the calling thread holds, in the order in which it took them; none without debug assertions. For
/// tests: no call to the slow tier is made with more than [`Rank::Io`] held, except to open a closed node.
pub fn held() -> Vec<Rank> {
    order::held()
}

/// How long the calling thread has held [`Rank::State`] each time since the last call, and where it took it. In
/// processor time: a preempted thread delays other threads too, but not by what it does. With debug assertions only.
#[cfg(debug_assertions)]
pub fn times_held() -> Vec<(Duration, &'static Location<'static>)> {
    order::times_held()
}

#[derive(Debug)]
pub(crate) struct Mutex<T> {
    place: order::Place,
    inner: raw::Mutex<T>,
}

#[derive(Debug, Deref, DerefMut)]
pub(crate) struct MutexGuard<'a, T> {
    #[deref(forward)]
    #[deref_mut(forward)]
    inner: raw::MutexGuard<'a, T>,
    held: order::Held,
    turn: turns::AtRelease,
}

impl<T> Mutex<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Mutex { place: order::Place::new(rank, 0), inner: raw::Mutex::new(value) }
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.place.wait();
        let inner = turns::take(|| self.inner.try_lock(), || self.inner.lock());
        MutexGuard { inner, held, turn: turns::AtRelease }
    }
}

/// A leaf lock.
impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(Rank::Leaf, T::default())
    }
}

impl<T> MutexGuard<'_, T> {
    /// Hands the lock to the longest waiter, if there is one.
    pub(crate) fn unlock_fair(this: Self) {
        let MutexGuard { inner, held: _held, turn: _turn } = this;
        raw::MutexGuard::unlock_fair(inner);
    }
}

#[derive(Debug)]
pub(crate) struct RwLock<T> {
    place: order::Place,
    inner: raw::RwLock<T>,
}

#[derive(Debug, Deref)]
pub(crate) struct RwLockReadGuard<'a, T> {
    #[deref(forward)]
    inner: raw::RwLockReadGuard<'a, T>,
    _held: order::Held,
    _turn: turns::AtRelease,
}

#[derive(Debug, Deref, DerefMut)]
pub(crate) struct RwLockWriteGuard<'a, T> {
    #[deref(forward)]
    #[deref_mut(forward)]
    inner: raw::RwLockWriteGuard<'a, T>,
    _held: order::Held,
    _turn: turns::AtRelease,
}

impl<T> RwLock<T> {
    /// `key` orders the locks of one rank.
    pub(crate) fn new(rank: Rank, key: u64, value: T) -> Self {
        RwLock { place: order::Place::new(rank, key), inner: raw::RwLock::new(value) }
    }

    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = self.place.wait();
        let inner = turns::take(|| self.inner.try_read(), || self.inner.read());
        RwLockReadGuard { inner, _held: held, _turn: turns::AtRelease }
    }

    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.place.wait();
        let inner = turns::take(|| self.inner.try_write(), || self.inner.write());
        RwLockWriteGuard { inner, _held: held, _turn: turns::AtRelease }
    }

    /// Locks something that no other thread can know yet: no thread holds the lock, so it may be taken out of order.
    pub(crate) fn write_new(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { inner: self.inner.write(), _held: self.place.taken(), _turn: turns::AtRelease }
    }

    pub(crate) fn try_read_for(&self, time: Duration) -> Option<RwLockReadGuard<'_, T>> {
        // When threads take turns there is no time: an attempt that would wait fails at once.
        let inner = turns::take(|| Some(self.inner.try_read()), || self.inner.try_read_for(time))?;
        Some(RwLockReadGuard { inner, _held: self.place.taken(), _turn: turns::AtRelease })
    }

    pub(crate) fn try_write_for(&self, time: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = turns::take(|| Some(self.inner.try_write()), || self.inner.try_write_for(time))?;
        Some(RwLockWriteGuard { inner, _held: self.place.taken(), _turn: turns::AtRelease })
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        turns::may_switch();
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _held: self.place.taken(), _turn: turns::AtRelease })
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        turns::may_switch();
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, _held: self.place.taken(), _turn: turns::AtRelease })
    }
}

/// The check of the lock order.
#[cfg(debug_assertions)]
mod order {
    use std::cell::{Cell, RefCell};
    use std::panic::Location;
    use std::time::Duration;

    use nix::time::{ClockId, clock_gettime};

    use super::{Rank, turns};

    thread_local! {
        static HELD: RefCell<Vec<(u64, Place)>> = const { RefCell::new(Vec::new()) };
        static NEXT: Cell<u64> = const { Cell::new(0) };
        /// `None` until a caller asks for it: otherwise a daemon would collect times for ever.
        static TIMES: RefCell<Option<Vec<(Duration, &'static Location<'static>)>>> = const { RefCell::new(None) };
    }

    fn processor_time() -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
    }

    pub(super) fn times_held() -> Vec<(Duration, &'static Location<'static>)> {
        TIMES.replace(Some(Vec::new())).unwrap_or_default()
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) struct Place {
        rank: Rank,
        key: u64,
    }

    impl Place {
        pub(super) fn new(rank: Rank, key: u64) -> Self {
            Place { rank, key }
        }

        /// Called before waiting for a lock.
        #[track_caller]
        pub(super) fn wait(self) -> Held {
            if turns::are_taken() {
                return Held::unknown();
            }
            HELD.with_borrow(|held| {
                let wrong = held.iter().find(|(_, other)| *other >= self);
                assert!(wrong.is_none(), "waits for {self:?} while it holds {held:?}: see `tiers::sync`");
            });
            self.taken()
        }

        #[track_caller]
        pub(super) fn taken(self) -> Held {
            if turns::are_taken() {
                return Held::unknown();
            }
            let number = NEXT.get();
            NEXT.set(number + 1);
            HELD.with_borrow_mut(|held| held.push((number, self)));
            let is_timed = self.rank == Rank::State && TIMES.with_borrow(Option::is_some);
            let place = Location::caller();
            Held { number, since: is_timed.then(|| (processor_time(), place)) }
        }
    }

    #[derive(Debug)]
    pub(super) struct Held {
        number: u64,
        since: Option<(Duration, &'static Location<'static>)>,
    }

    impl Held {
        /// For threads that take turns.
        fn unknown() -> Self {
            Held { number: u64::MAX, since: None }
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| held.retain(|(number, _)| *number != self.number));
            if let Some((since, place)) = self.since {
                let time = processor_time().saturating_sub(since);
                TIMES.with_borrow_mut(|times| times.iter_mut().for_each(|times| times.push((time, place))));
            }
        }
    }

    pub(super) fn held() -> Vec<Rank> {
        HELD.with_borrow(|held| held.iter().map(|(_, place)| place.rank).collect())
    }
}

#[cfg(not(debug_assertions))]
mod order {
    use super::Rank;

    #[derive(Clone, Copy, Debug)]
    pub(super) struct Place;

    #[derive(Debug)]
    pub(super) struct Held;

    impl Place {
        pub(super) fn new(_: Rank, _: u64) -> Self {
            Place
        }
        pub(super) fn wait(self) -> Held {
            Held
        }
        pub(super) fn taken(self) -> Held {
            Held
        }
    }

    pub(super) fn held() -> Vec<Rank> {
        Vec::new()
    }
}

/// Threads that take turns, in an order that a scheduler decides.
#[cfg(debug_assertions)]
pub mod turns {
    use std::sync::OnceLock;

    static SCHEDULER: OnceLock<Scheduler> = OnceLock::new();

    /// Runs the threads of one process one at a time.
    #[derive(Clone, Copy, Debug)]
    pub struct Scheduler {
        /// Another thread may go on from here.
        pub may_switch: fn(),
        /// The calling thread cannot go on before another one has.
        pub must_switch: fn(),
    }

    /// Takes all locks of this process in turns from now on. Their order is not checked: these threads share one OS
    /// thread, and the check works per OS thread.
    pub fn install(scheduler: Scheduler) {
        SCHEDULER.get_or_init(|| scheduler);
    }

    pub(super) fn are_taken() -> bool {
        SCHEDULER.get().is_some()
    }

    pub(super) fn may_switch() {
        if let Some(scheduler) = SCHEDULER.get() {
            (scheduler.may_switch)();
        }
    }

    /// Takes a lock by repeated attempts if threads take turns, else by waiting.
    pub(super) fn take<G>(attempt: impl Fn() -> Option<G>, wait: impl FnOnce() -> G) -> G {
        let Some(scheduler) = SCHEDULER.get() else { return wait() };
        (scheduler.may_switch)();
        loop {
            match attempt() {
                Some(guard) => return guard,
                None => (scheduler.must_switch)(),
            }
        }
    }

    /// The last field of a guard: a waiter may have the lock as soon as it is free.
    #[derive(Debug)]
    pub(super) struct AtRelease;

    impl Drop for AtRelease {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                may_switch();
            }
        }
    }

    /// The part of `std::sync::atomic` that is used.
    pub(crate) mod atomic {
        pub(crate) use std::sync::atomic::Ordering;

        use super::may_switch;

        macro_rules! atomics {
            ($($name:ident($value:ty)),*) => {$(
                #[derive(Debug, Default)]
                pub(crate) struct $name(std::sync::atomic::$name);

                #[allow(dead_code, reason = "each type has some that nobody needs")]
                impl $name {
                    pub(crate) const fn new(value: $value) -> Self {
                        $name(std::sync::atomic::$name::new(value))
                    }
                    pub(crate) fn load(&self, order: Ordering) -> $value {
                        may_switch();
                        self.0.load(order)
                    }
                    pub(crate) fn store(&self, value: $value, order: Ordering) {
                        may_switch();
                        self.0.store(value, order);
                    }
                    /// Access is exclusive: no turn.
                    pub(crate) fn get_mut(&mut self) -> &mut $value {
                        self.0.get_mut()
                    }
                }
            )*};
        }

        macro_rules! changes {
            ($($name:ident($value:ty): $($change:ident),*;)*) => {$(
                impl $name {$(
                    pub(crate) fn $change(&self, value: $value, order: Ordering) -> $value {
                        may_switch();
                        self.0.$change(value, order)
                    }
                )*}
            )*};
        }

        atomics! { AtomicBool(bool), AtomicU8(u8), AtomicU32(u32), AtomicU64(u64) }
        changes! {
            AtomicBool(bool): swap;
            AtomicU8(u8): fetch_and, fetch_or;
            AtomicU32(u32): fetch_add, fetch_sub, swap;
            AtomicU64(u64): fetch_max, fetch_min;
        }
    }
}

/// Without a scheduler: threads wait for locks as the operating system decides.
#[cfg(not(debug_assertions))]
mod turns {
    #[derive(Debug)]
    pub(super) struct AtRelease;

    pub(super) fn may_switch() {}

    pub(super) fn take<G>(_: impl Fn() -> Option<G>, wait: impl FnOnce() -> G) -> G {
        wait()
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    fn locks() -> (Mutex<()>, RwLock<()>, RwLock<()>, Mutex<()>) {
        let io = |key| RwLock::new(Rank::Io, key, ());
        (Mutex::new(Rank::Publishing, ()), io(1), io(2), Mutex::new(Rank::State, ()))
    }

    #[test]
    fn the_order_holds() {
        let (publishing, one, two, state) = locks();
        let all = (publishing.lock(), one.write(), two.read(), state.lock());
        assert_eq!(held(), [Rank::Publishing, Rank::Io, Rank::Io, Rank::State]);
        drop(all);
        MutexGuard::unlock_fair(state.lock());
        assert_eq!(held(), []);
    }

    #[test]
    #[should_panic(expected = "waits for Place { rank: Io, key: 1 }")]
    fn a_file_after_the_state_is_found() {
        let (_, io, _, state) = locks();
        let _state = state.lock();
        drop(io.read());
    }

    #[test]
    #[should_panic(expected = "waits for Place { rank: Io, key: 1 }")]
    fn two_files_the_wrong_way_round_are_found() {
        let (_, one, two, _) = locks();
        let _two = two.read();
        drop(one.read());
    }

    #[test]
    #[should_panic(expected = "waits for Place { rank: Io, key: 1 }")]
    fn a_second_shared_lock_is_found() {
        let (_, one, ..) = locks();
        let _one = one.read();
        drop(one.read());
    }

    #[test]
    fn what_is_only_tried_may_be_out_of_order() {
        let (_, io, _, state) = locks();
        let state = state.lock();
        let tried = io.try_write();
        assert!(tried.is_some());
        drop(state);
        assert_eq!(held(), [Rank::Io]);
    }
}
