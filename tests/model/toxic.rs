//! Calls of the slow tier that fail: an operation arms one, and whatever comes to it meets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};

use dlio_fs::error::Errno;
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use super::sim::{Op, SimDisk};

/// The call of the slow tier that fails: the `after`th of its kind from now on (1: the next one).
#[derive(Clone, Copy, Debug)]
pub struct Fails {
    pub call: Call,
    pub after: i64,
    pub errno: Errno,
}

#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// One that changes something.
    Change,
    /// One that changes nothing.
    Look,
    /// A read of a file's bytes.
    Read,
}

impl Fails {
    /// Those that hold all, whosever events they meet: with the others, and EROFS in one place only, a user is held, and the order of the
    /// rest goes on.
    const ERRNOS: [Errno; 5] = [Errno::ENOSPC, Errno::EUCLEAN, Errno::ETIMEDOUT, Errno::ENOTCONN, Errno::EIO];

    pub fn roll(rng: &mut Xoshiro256PlusPlus) -> Fails {
        let errno = Fails::ERRNOS[rng.random_range(0..Fails::ERRNOS.len())];
        match rng.random_range(0..6) {
            0 => Fails { call: Call::Look, after: rng.random_range(1..60), errno: Errno::EIO },
            1 => Fails { call: Call::Read, after: rng.random_range(1..6), errno: Errno::EIO },
            _ => Fails { call: Call::Change, after: rng.random_range(1..30), errno },
        }
    }
}

/// Lets single calls of a disk fail while it is on.
#[derive(Debug, Default)]
pub struct Toxic {
    is_on: AtomicBool,
    spares_syncs: AtomicBool,
    changes: Countdown,
    looks: Countdown,
    reads: Countdown,
    has_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct Countdown {
    left: AtomicI64,
    errno: AtomicI32,
}

impl Toxic {
    pub fn watch(self: &Arc<Self>, disk: &SimDisk) {
        let [changes, looks, reads] = [(); 3].map(|()| self.clone());
        disk.inject(move |op| changes.change(op));
        disk.fail_looks(move || looks.meets(&looks.looks).is_some());
        disk.fail_reads(move |_| reads.meets(&reads.reads));
    }

    pub fn arm(&self, fails: &Fails) {
        let countdown = self.of(fails.call);
        countdown.errno.store(fails.errno as i32, Ordering::Relaxed);
        countdown.left.store(fails.after, Ordering::Relaxed);
    }

    fn of(&self, call: Call) -> &Countdown {
        match call {
            Call::Change => &self.changes,
            Call::Look => &self.looks,
            Call::Read => &self.reads,
        }
    }

    /// Nothing is to fail any more.
    pub fn disarm(&self) {
        [&self.changes, &self.looks, &self.reads]
            .iter()
            .for_each(|countdown| countdown.left.store(0, Ordering::Relaxed));
    }

    pub fn is_armed(&self) -> bool {
        [&self.changes, &self.looks, &self.reads].iter().any(|countdown| countdown.left.load(Ordering::Relaxed) > 0)
    }

    /// Calls count from here on, until [`Toxic::off`]. `spares_syncs`: a version that lies on the slow tier is synced, or may be. Such a
    /// sync is not tried again: whoever syncs the file next is told (EIO), and has to write it once more.
    pub fn on(&self, spares_syncs: bool) {
        self.spares_syncs.store(spares_syncs, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Whether one has failed since it is on.
    pub fn off(&self) -> bool {
        self.is_on.store(false, Ordering::Relaxed);
        self.has_failed.swap(false, Ordering::Relaxed)
    }

    fn meets(&self, countdown: &Countdown) -> Option<Errno> {
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let less = |left: i64| (left > 0).then(|| left - 1);
        if countdown.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) != Ok(1) {
            return None;
        }
        self.has_failed.store(true, Ordering::Relaxed);
        Some(Errno::from_raw(countdown.errno.load(Ordering::Relaxed)))
    }

    fn change(&self, op: &Op) -> Option<Errno> {
        if op.call.starts_with("sync") && self.spares_syncs.load(Ordering::Relaxed) {
            return None;
        }
        match self.meets(&self.changes)? {
            // There is no room for this attribute, and never will be: it is left out.
            Errno::ENOSPC if op.call == "set_xattr" => Some(Errno::ETIMEDOUT),
            errno => Some(errno),
        }
    }
}
