//! Limits what each user holds: the number of open files, and the memory of listings and texts. An object held by
//! several users exists once, and counts for each of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Errno, Error, Result};
use crate::share::{self, PerUser};

/// How many descriptors a process reserves for itself: a quarter, but enough for its own files and threads. Without
/// them nothing could be listed or published.
fn reserve(limit: u64) -> u64 {
    const LEAST: u64 = 112;
    (limit / 4).max(LEAST).min(limit / 2)
}

/// All objects of one kind, and their holders.
#[derive(Debug)]
pub(super) struct Holdings {
    /// For messages: one more object of this kind, and where it comes from.
    what: (&'static str, &'static str),
    most: u64,
    /// What a user may hold in any case. If set, root and the mount's owner are not counted: their reads must not keep
    /// others from reading.
    least: u64,
    owner: u32,
    held: Arc<Mutex<Holders>>,
}

#[derive(Debug, Default)]
struct Holders {
    things: HashMap<u64, Thing>,
    /// The weight of all objects, each counted once.
    sum: u64,
    by_user: PerUser,
}

#[derive(Debug, Default)]
struct Thing {
    weight: u64,
    /// Its holders, and how many handles each has.
    holders: Vec<(u32, u64)>,
}

impl Holdings {
    /// The open files of the view: each costs one descriptor, even if it is opened several times. `limit`: the
    /// descriptors of this process; `owner`: the owner of the mount.
    pub(super) fn of_files(limit: u64, owner: u32) -> Self {
        let what = ("open one more file for", "ulimit -n");
        Holdings { what, most: limit - reserve(limit), least: 0, owner, held: Arc::default() }
    }

    /// Objects in memory, of which users may hold this many bytes.
    pub(super) fn of_bytes(what: (&'static str, &'static str), most: u64, owner: u32) -> Self {
        Holdings { what, most, least: most / 16, owner, held: Arc::default() }
    }

    /// ENFILE if this user may not hold another object.
    pub(super) fn expect_one_for(&self, uid: u32) -> Result<()> {
        self.expect_one(&self.held.lock(), uid)
    }

    fn expect_one(&self, all: &Holders, uid: u32) -> Result<()> {
        let (held, left) = (all.by_user.of(uid), self.most.saturating_sub(all.sum));
        let may = if self.is_trusted(uid) { left > 0 || self.least > 0 } else { share::allows(held, left) };
        if may || held < self.least {
            return Ok(());
        }
        let (what, origin) = self.what;
        let whom = format!("user {uid}, who has {held}; of {} there are {left} left ({origin})", self.most);
        Err(Error::io(what, whom, Errno::ENFILE.into()))
    }

    fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner
    }

    /// For an object that the user is about to hold. If others already hold it, it costs nothing, but counts for this
    /// user, who may become its last holder.
    pub(super) fn acquire(&self, uid: u32, number: u64, weight: u64) -> Result<Share> {
        let mut all = self.held.lock();
        let needs_room = match all.things.get(&number) {
            None => true,
            Some(thing) => !self.is_trusted(uid) && thing.handles_of(uid).is_none(),
        };
        if needs_room {
            self.expect_one(&all, uid)?;
        }
        Ok(self.share(&mut all, uid, number, weight))
    }

    /// For an object that was just made.
    pub(super) fn take_new(&self, uid: u32, number: u64, weight: u64) -> Share {
        self.share(&mut self.held.lock(), uid, number, weight)
    }

    /// For bytes just made, where root and the mount's owner are not counted.
    pub(super) fn take_bytes(&self, uid: u32, number: u64, bytes: usize) -> Option<Share> {
        (!self.is_trusted(uid)).then(|| self.take_new(uid, number, bytes as u64))
    }

    fn share(&self, all: &mut Holders, uid: u32, number: u64, weight: u64) -> Share {
        all.weigh(number, weight);
        let thing = all.things.entry(number).or_default();
        match thing.holders.iter_mut().find(|(holder, _)| *holder == uid) {
            Some((_, handles)) => *handles += 1,
            None => {
                thing.holders.push((uid, 1));
                all.by_user.add(uid, weight);
            }
        }
        Share { held: Arc::clone(&self.held), uid, number }
    }
}

impl Thing {
    fn handles_of(&self, uid: u32) -> Option<u64> {
        self.holders.iter().find(|(holder, _)| *holder == uid).map(|(_, handles)| *handles)
    }
}

impl Holders {
    /// The object has this weight from now on.
    fn weigh(&mut self, number: u64, weight: u64) {
        let thing = self.things.entry(number).or_default();
        let before = std::mem::replace(&mut thing.weight, weight);
        self.sum = self.sum + weight - before;
        for (uid, _) in &thing.holders {
            self.by_user.remove(*uid, before);
            self.by_user.add(*uid, weight);
        }
    }

    fn give_back(&mut self, uid: u32, number: u64) {
        let Some(thing) = self.things.get_mut(&number) else { return };
        let Some((_, count)) = thing.holders.iter_mut().find(|(holder, _)| *holder == uid) else { return };
        *count -= 1;
        if *count == 0 {
            thing.holders.retain(|(holder, _)| *holder != uid);
            self.by_user.remove(uid, thing.weight);
        }
        if thing.holders.is_empty() {
            self.sum -= thing.weight;
            self.things.remove(&number);
        }
    }
}

/// The share of one handle, until it is closed.
#[derive(Debug)]
pub(super) struct Share {
    held: Arc<Mutex<Holders>>,
    uid: u32,
    number: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.lock().give_back(self.uid, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Holdings {
        fn sum(&self) -> u64 {
            self.held.lock().sum
        }

        fn of(&self, uid: u32) -> u64 {
            self.held.lock().by_user.of(uid)
        }
    }

    #[test]
    fn nobody_has_more_than_are_left() {
        let all = Holdings::of_files(1000, 7);
        let mut numbers = 1..;
        let mut take = |uid: u32| all.acquire(uid, numbers.next().unwrap_or_default(), 1).ok();
        let first: Vec<Share> = std::iter::from_fn(|| take(1001)).take(1000).collect();
        assert_eq!(first.len(), 375, "half of three quarters");
        let second: Vec<Share> = std::iter::from_fn(|| take(1002)).take(1000).collect();
        assert_eq!(second.len(), 188);
        assert!(take(1001).is_none() && take(1003).is_some());
        let owner: Vec<Share> = std::iter::from_fn(|| take(7)).take(1000).collect();
        assert_eq!(owner.len(), 750 - 375 - 188, "all that there are, but for the daemon's own");
        drop(first);
        assert!(take(1001).is_some() && take(1002).is_some());
    }

    #[test]
    fn a_file_costs_one_however_often_it_is_open() {
        let all = Holdings::of_files(1000, 0);
        let shares: Vec<Share> = (0..2000).filter_map(|_| all.acquire(1001, 5, 1).ok()).collect();
        assert_eq!((shares.len(), all.of(1001), all.sum()), (2000, 1, 1));
        drop(shares);
        let held = all.held.lock();
        assert!(held.things.is_empty() && held.by_user.iter().next().is_none() && held.sum == 0);
    }

    /// A file counted only for the user who had opened it first, as long as it was open. So a user could keep open what
    /// root's program opened and closed one by one, and hold all descriptors, none of them counted for that user.
    #[test]
    fn a_file_counts_for_each_user_who_holds_it() {
        let all = Holdings::of_files(1000, 0);
        let mut kept = Vec::new();
        for number in 0..1000 {
            let opened = all.acquire(0, number, 1).expect("root has nothing open");
            kept.extend(all.acquire(1001, number, 1).ok());
            drop(opened);
        }
        assert_eq!(kept.len(), 375);
        assert_eq!((all.of(1001), all.of(0)), (375, 0));
        assert!(all.acquire(1002, 5, 1).is_ok() && all.acquire(1001, 5, 1).is_ok());
        drop(kept);
        assert_eq!(all.sum(), 0);
    }

    #[test]
    fn a_thing_weighs_what_it_was_last_found_to_weigh() {
        let all = Holdings::of_bytes(("keep one more listing for", "a bound"), 160, 0);
        let (first, second) = (all.take_bytes(1001, 1, 10), all.take_bytes(1002, 1, 100));
        let told = || [all.sum(), all.of(1001), all.of(1002)];
        assert_eq!(told(), [100, 100, 100]);
        assert!(all.expect_one_for(1001).is_err() && all.expect_one_for(1003).is_ok());
        // A user who holds next to nothing may have some, whatever others hold.
        let third = all.take_bytes(1003, 2, 200);
        assert!(all.expect_one_for(1004).is_ok() && all.expect_one_for(1003).is_err());
        assert!(all.take_bytes(0, 3, 1000).is_none() && all.expect_one_for(0).is_ok());
        drop(third);
        drop(first);
        assert_eq!(told(), [100, 0, 100]);
        drop(second);
        assert_eq!(told(), [0, 0, 0]);
    }
}
