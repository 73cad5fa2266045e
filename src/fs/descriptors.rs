//! Limits how many files each user has open. Each open file costs the daemon one descriptor, however often it is open
//! and by whom.
//!
//! Some descriptors are reserved for the daemon: without them nothing could be listed or published. Users other than
//! root and the mount's owner may not hold more of the rest than are left: a user who wants all of them gets half, the
//! next one a quarter, and there are always some for those who come later.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Errno, Error, Result};
use crate::tiers::Ino;

/// How many of a process's descriptors it reserves for itself: a quarter, but enough for its own files and threads.
fn reserve(limit: u64) -> u64 {
    const LEAST: u64 = 112;
    (limit / 4).max(LEAST).min(limit / 2)
}

#[derive(Debug)]
pub(super) struct Descriptors {
    most: u64,
    owner: u32,
    open: Arc<Mutex<OpenCounts>>,
}

#[derive(Debug, Default)]
struct OpenCounts {
    /// The user who opened it first, and the number of its handles.
    files: HashMap<Ino, (u32, u64)>,
    by_user: HashMap<u32, u64>,
}

impl Descriptors {
    /// `limit`: the descriptors of this process; `owner`: the owner of the mount.
    pub(super) fn new(limit: u64, owner: u32) -> Self {
        Descriptors { most: limit - reserve(limit), owner, open: Arc::default() }
    }

    /// ENFILE if this user may not open a file that is not open yet.
    pub(super) fn expect_one_for(&self, uid: u32) -> Result<()> {
        self.expect_one(&self.open.lock(), uid)
    }

    fn expect_one(&self, open: &OpenCounts, uid: u32) -> Result<()> {
        let left = self.most.saturating_sub(open.files.len() as u64);
        let held = open.by_user.get(&uid).copied().unwrap_or(0);
        let is_trusted = uid == 0 || uid == self.owner;
        if left > 0 && (is_trusted || held < left) {
            return Ok(());
        }
        let whom = format!("user {uid}, who has {held}; of {} there are {left} left (ulimit -n)", self.most);
        Err(Error::io("open one more file for", whom, Errno::ENFILE.into()))
    }

    /// For a file that is about to be opened.
    pub(super) fn acquire(&self, uid: u32, ino: Ino) -> Result<Share> {
        let mut open = self.open.lock();
        if !open.files.contains_key(&ino) {
            self.expect_one(&open, uid)?;
        }
        Ok(self.share(&mut open, uid, ino))
    }

    /// For a file that was just created.
    pub(super) fn take_new(&self, uid: u32, ino: Ino) -> Share {
        self.share(&mut self.open.lock(), uid, ino)
    }

    fn share(&self, open: &mut OpenCounts, uid: u32, ino: Ino) -> Share {
        let (by, handles) = open.files.entry(ino).or_insert((uid, 0));
        *handles += 1;
        if *handles == 1 {
            *open.by_user.entry(*by).or_default() += 1;
        }
        Share { open: Arc::clone(&self.open), ino }
    }
}

/// The share of one handle, until it is closed.
#[derive(Debug)]
pub(super) struct Share {
    open: Arc<Mutex<OpenCounts>>,
    ino: Ino,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        let Some((by, handles)) = open.files.get_mut(&self.ino) else { return };
        let by = *by;
        *handles -= 1;
        if *handles > 0 {
            return;
        }
        open.files.remove(&self.ino);
        if let Some(held) = open.by_user.get_mut(&by) {
            *held -= 1;
            if *held == 0 {
                open.by_user.remove(&by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_are_left() {
        let all = Descriptors::new(1000, 7);
        let mut numbers = 1..;
        let mut take = |uid: u32| all.acquire(uid, numbers.next().unwrap_or_default()).ok();
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
        let all = Descriptors::new(1000, 0);
        let shares: Vec<Share> = (0..2000).filter_map(|_| all.acquire(1001, 5).ok()).collect();
        assert_eq!((shares.len(), all.open.lock().by_user[&1001]), (2000, 1));
        drop(shares);
        assert!(all.open.lock().files.is_empty() && all.open.lock().by_user.is_empty());
    }
}
