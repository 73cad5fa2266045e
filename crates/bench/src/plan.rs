//! The plan of a benchmark: its runs and its needs.

use crate::loads::caches::Caches;

/// Bytes of a small file: the middle size in ImageNet.
pub(super) const SMALL: usize = 112 << 10;

/// A benchmark that is to be run.
pub(super) struct BenchPlan {
    pub(super) name: &'static str,
    pub(super) runs: usize,
    /// Its settings for the user, in order.
    pub(super) settings: Vec<(&'static str, String)>,
    pub(super) caches: Caches,
    /// Steps of the progress bar, besides one for each run of each place.
    pub(super) steps: usize,
    pub(super) room: Room,
}

/// What a benchmark needs on each tier, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Stays in each place until the end.
    pub(super) stays: u64,
    /// Stays on the slow tier besides, for each mount.
    pub(super) beneath: u64,
    /// Needed in a place only while it is measured.
    pub(super) passes: u64,
    /// How to ask for less.
    pub(super) remedy: &'static str,
}
