//! The way to the slow tier: copying bytes, publishing in the order of the log, and handling refusals.

mod changed_names;
pub(crate) mod deadline;
pub(crate) mod drain;
pub(crate) mod fill;
pub(crate) mod full_slow;
pub(crate) mod group;
pub(crate) mod held_users;
pub(crate) mod helping;
pub(crate) mod mend;
pub(crate) mod open_tree;
pub(crate) mod parts;
pub(crate) mod priority;
pub(crate) mod publish;
mod same_names;
pub(crate) mod set_aside;
pub(crate) mod step;
pub(crate) mod stream_store;
pub(crate) mod streams;

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::tiers::disk::sync::{Mutex, Rank};
use crate::tiers::objects::copy::CopyMeans;
use fill::Filling;
use group::Unfinished;
use held_users::HeldUsers;
use helping::LargeCopy;
use streams::StreamCount;

/// What copying and publishing keep between two steps.
pub(super) struct Writeback {
    streams: Mutex<StreamCount>,
    /// The number of streams that the next mount will start with.
    saved_streams: AtomicU32,
    /// The calls that can copy from the fast tier to the slow one.
    means: CopyMeans,
    /// Copies in progress that further streams can help with.
    large: Mutex<Vec<LargeCopy>>,
    /// Held by the thread that publishes; contains a group that an error interrupted.
    unfinished: Mutex<Option<Unfinished>>,
    /// Names that could not be removed from `tmp` after a group: the next group retries.
    leftovers: Mutex<Vec<Vec<u8>>>,
    /// A new directory that is filled in `tmp` before it is placed.
    filling: Mutex<Option<Filling>>,
    /// The event of the directory that could last not be filled: its files are published one by one.
    not_filled: AtomicU64,
    /// LSN of the last intent appended.
    intents: AtomicU64,
    held: Mutex<HeldUsers>,
}

impl Writeback {
    pub(super) fn new() -> Self {
        let streams = StreamCount::starting_with(1);
        Writeback {
            streams: Mutex::new(Rank::Leaf, streams),
            saved_streams: AtomicU32::new(1),
            means: CopyMeans::default(),
            large: Mutex::default(),
            unfinished: Mutex::new(Rank::Publishing, None),
            leftovers: Mutex::new(Rank::Leaf, Vec::new()),
            filling: Mutex::new(Rank::Leaf, None),
            not_filled: AtomicU64::new(0),
            intents: AtomicU64::new(0),
            held: Mutex::new(Rank::Leaf, HeldUsers::default()),
        }
    }

    /// Whether an interrupted group is in the middle of a batch. Waits for the step in progress.
    pub(super) fn is_inside_batch(&self) -> bool {
        let group = self.unfinished.lock();
        group.as_ref().is_some_and(|group| !group.followed && group.is_inside_batch())
    }
}
