//! The engine's locks, and the order in which they are taken.
//!
//! Whoever waits for a lock holds none of its [`Rank`] or of one behind it; two files' [`Rank::Io`] are taken by inode number.
//! With debug assertions each lock checks that, whatever the other threads do at that moment: a wrong order is found by the
//! first test that takes it, not by the one in which two threads meet. A lock that is only *tried* may be out of order.
//!
//! With the feature `shuttle` the locks and the atomics of a file are those of a scheduler that tries orders of threads
//! (`tests/races`); such a build can do nothing else.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(not(feature = "shuttle"))]
use parking_lot as raw;
#[cfg(feature = "shuttle")]
use shuttled as raw;

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic;

/// In the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Whoever publishes.
    Publishing,
    /// One file's bytes; its key is the inode number. The only one that may be held across a call to the slow tier, but for
    /// `Publishing`.
    Io,
    /// Names, events, references: memory and the append.
    State,
    /// Whoever syncs the log.
    Syncing,
    /// The end of the log.
    Tail,
    /// Taken for a look or a change in memory, with nothing behind it.
    Leaf,
}

/// What the calling thread holds, in the order in which it was taken; nothing without debug assertions. For tests: no call to
/// the slow tier is made with more than [`Rank::Io`].
pub fn held() -> Vec<Rank> {
    order::held()
}

#[derive(Debug)]
pub(crate) struct Mutex<T> {
    place: order::Place,
    inner: raw::Mutex<T>,
}

#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    inner: raw::MutexGuard<'a, T>,
    held: order::Held,
}

impl<T> Mutex<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Mutex { place: order::Place::new(rank, 0), inner: raw::Mutex::new(value) }
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.place.wait();
        MutexGuard { inner: self.inner.lock(), held }
    }
}

/// A leaf.
impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(Rank::Leaf, T::default())
    }
}

impl<T> MutexGuard<'_, T> {
    /// To whoever waits longest, if somebody does.
    pub(crate) fn unlock_fair(this: Self) {
        let MutexGuard { inner, held: _held } = this;
        #[cfg(not(feature = "shuttle"))]
        raw::MutexGuard::unlock_fair(inner);
        #[cfg(feature = "shuttle")]
        drop(inner);
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[derive(Debug)]
pub(crate) struct RwLock<T> {
    place: order::Place,
    inner: raw::RwLock<T>,
}

#[derive(Debug)]
pub(crate) struct RwLockReadGuard<'a, T> {
    inner: raw::RwLockReadGuard<'a, T>,
    _held: order::Held,
}

#[derive(Debug)]
pub(crate) struct RwLockWriteGuard<'a, T> {
    inner: raw::RwLockWriteGuard<'a, T>,
    _held: order::Held,
}

impl<T> RwLock<T> {
    /// `key` orders the locks of one rank.
    pub(crate) fn new(rank: Rank, key: u64, value: T) -> Self {
        RwLock { place: order::Place::new(rank, key), inner: raw::RwLock::new(value) }
    }

    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = self.place.wait();
        RwLockReadGuard { inner: self.inner.read(), _held: held }
    }

    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.place.wait();
        RwLockWriteGuard { inner: self.inner.write(), _held: held }
    }

    /// Of something that no other thread can know yet: it is not waited for, so it may be taken out of order.
    pub(crate) fn write_new(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { inner: self.inner.write(), _held: self.place.taken() }
    }

    pub(crate) fn try_read_for(&self, time: Duration) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read_for(time)?;
        Some(RwLockReadGuard { inner, _held: self.place.taken() })
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _held: self.place.taken() })
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, _held: self.place.taken() })
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The check of the order.
#[cfg(all(debug_assertions, not(feature = "shuttle")))]
mod order {
    use std::cell::{Cell, RefCell};

    use super::Rank;

    thread_local! {
        static HELD: RefCell<Vec<(u64, Place)>> = const { RefCell::new(Vec::new()) };
        static NEXT: Cell<u64> = const { Cell::new(0) };
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

        /// Before a lock is waited for.
        #[track_caller]
        pub(super) fn wait(self) -> Held {
            HELD.with_borrow(|held| {
                let wrong = held.iter().find(|(_, other)| *other >= self);
                assert!(wrong.is_none(), "waits for {self:?} while it holds {held:?}: see `tiers::sync`");
            });
            self.taken()
        }

        pub(super) fn taken(self) -> Held {
            let number = NEXT.get();
            NEXT.set(number + 1);
            HELD.with_borrow_mut(|held| held.push((number, self)));
            Held(number)
        }
    }

    #[derive(Debug)]
    pub(super) struct Held(u64);

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| held.retain(|(number, _)| *number != self.0));
        }
    }

    pub(super) fn held() -> Vec<Rank> {
        HELD.with_borrow(|held| held.iter().map(|(_, place)| place.rank).collect())
    }
}

#[cfg(not(all(debug_assertions, not(feature = "shuttle"))))]
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

/// What is used of `parking_lot`, made of shuttle's locks.
#[cfg(feature = "shuttle")]
mod shuttled {
    use std::time::Duration;

    pub(super) use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    /// A thread that panics while it holds a lock has ended the test already.
    const POISONED: &str = "no panic is caught";

    #[derive(Debug)]
    pub(super) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Mutex(shuttle::sync::Mutex::new(value))
        }
        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect(POISONED)
        }
    }

    #[derive(Debug)]
    pub(super) struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(super) fn new(value: T) -> Self {
            RwLock(shuttle::sync::RwLock::new(value))
        }
        pub(super) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect(POISONED)
        }
        pub(super) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect(POISONED)
        }
        pub(super) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().expect(POISONED)
        }
        pub(super) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }
        /// There is no time here: whoever would wait has waited in vain.
        pub(super) fn try_read_for(&self, _: Duration) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }
        pub(super) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }
}

#[cfg(all(test, debug_assertions, not(feature = "shuttle")))]
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
