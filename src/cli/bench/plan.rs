//! What a benchmark is: its runs, and what it needs.

use crate::bench::caches::Caches;

/// Bytes of a small file: the middle size in ImageNet.
pub(super) const SMALL: usize = 112 << 10;

/// A benchmark that is to be run.
pub(super) struct Plan {
    pub(super) name: &'static str,
    pub(super) runs: usize,
    /// What the user should know of it, in order.
    pub(super) settings: Vec<(&'static str, String)>,
    pub(super) caches: Caches,
    /// For the progress, besides one for each run of each place.
    pub(super) steps: usize,
    pub(super) room: Room,
}

/// What a benchmark needs on each tier, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Stays in each place.
    pub(super) stays: u64,
    /// A place has it while it is measured.
    pub(super) passes: u64,
    /// What to ask for less of.
    pub(super) remedy: &'static str,
}
