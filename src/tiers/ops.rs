//! The calls of applications: names, attributes, listings and data, and how written data gets its place in the log.

pub(crate) mod attrs;
pub(crate) mod commit;
pub(crate) mod copy_up;
pub(crate) mod data;
pub(crate) mod list;
pub(crate) mod meet;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod recheck;
mod rename;
pub(crate) mod seal;

use std::collections::VecDeque;
use std::time::Duration;

use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::sync::atomic::AtomicU32;

/// State that calls share with later calls and the background.
#[derive(Default)]
pub(super) struct SharedByCalls {
    /// Pieces of large files that the fast disk may begin to write.
    behind: Mutex<VecDeque<data::Piece>>,
    /// How many calls are now looking for data in memory.
    at_hand: AtomicU32,
    /// The latest listings, for the next caller that lists the same directory.
    recent: Mutex<list::Recent>,
}

impl SharedByCalls {
    /// Drops listings that are older than `limit`.
    pub(super) fn age_listings(&self, now: Duration, limit: Duration) {
        self.recent.lock().age(now, limit);
    }
}
