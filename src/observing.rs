//! Doors to parts that only observe: a panic behind a door ends that part, and nothing else.
//!
//! After a panic of its own the engine cannot continue: its state may be half changed. So [`abort_on_panic`] ends the
//! process, unless the thread is behind a door. Statistics, the index of checkpoints, recordings and the texts of
//! `.dlio` process names and bytes that any user chooses, and a bug in them must not end the mount for all users.
//!
//! No lock is poisoned: all are `parking_lot`'s, which a panic releases.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::process::abort;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static DOORS_PASSED: Cell<u32> = const { Cell::new(0) };
}

/// Also in builds for tests, which can unwind anywhere.
pub fn abort_on_panic() {
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        print(panic);
        if DOORS_PASSED.get() == 0 {
            abort();
        }
    }));
}

/// Runs work of a part that only observes. `None`: it has panicked, which is logged.
pub fn behind_door<R>(part: &str, work: impl FnOnce() -> R) -> Option<R> {
    DOORS_PASSED.set(DOORS_PASSED.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    DOORS_PASSED.set(DOORS_PASSED.get() - 1);
    if done.is_err() {
        tracing::error!(part, "a bug in a part that only observes; no file is affected; please report the panic above");
    }
    done.ok()
}

/// The door of a part that has state of its own, and is off once it has panicked.
#[derive(Debug)]
pub struct Door {
    part: &'static str,
    shut: AtomicBool,
}

impl Door {
    pub const fn new(part: &'static str) -> Self {
        Door { part, shut: AtomicBool::new(false) }
    }

    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Relaxed)
    }

    /// `None`: the part is off.
    pub fn enter<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        if self.is_shut() {
            return None;
        }
        let done = behind_door(self.part, work);
        if done.is_none() {
            self.shut.store(true, Ordering::Relaxed);
        }
        done
    }
}

/// A part with its door. While it is off, changes do nothing and answers are empty.
#[derive(Debug)]
pub(crate) struct Observing<T> {
    part: T,
    door: Door,
}

impl<T> Observing<T> {
    pub(crate) const fn new(name: &'static str, part: T) -> Self {
        Observing { part, door: Door::new(name) }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.door.is_shut()
    }

    pub(crate) fn ask<R: Default>(&self, of: impl FnOnce(&T) -> R) -> R {
        self.door.enter(|| of(&self.part)).unwrap_or_default()
    }

    pub(crate) fn change<R: Default>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let Observing { part, door } = self;
        door.enter(|| change(part)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_panics_is_off_and_the_others_go_on() {
        let (mut bad, mut good) = (Observing::new("bad", vec![1]), Observing::new("good", vec![1]));
        bad.change(|list| {
            list.push(2);
            assert!(list.is_empty(), "on purpose");
        });
        assert_eq!(bad.ask(|list| list.len()), 0, "what it holds is half changed");
        bad.change(|list| list.clear());
        assert_eq!(bad.part.len(), 2, "it is off");
        good.change(|list| list.push(2));
        assert_eq!((good.ask(Vec::len), bad.is_off(), good.is_off()), (2, true, false));
        assert_eq!((behind_door("text", || 7), DOORS_PASSED.get()), (Some(7), 0));
    }
}
