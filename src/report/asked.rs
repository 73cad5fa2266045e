//! The user's options for a document, and for folded stacks.

use std::io::{self, Read};

/// The user's options for a document besides its kind. Each applies to the kinds that have it.
#[derive(derive_more::Debug)]
#[debug("DocumentOptions({all}, {weigh:?}, {split}, {})", merge.is_some())]
pub struct DocumentOptions {
    /// Everything, and not only what fits on a screen.
    pub all: bool,
    /// What the width of a flame shows.
    pub weigh: Weigh,
    /// The most bytes of a part, before compression.
    pub split: u64,
    /// Opens another tool's trace to merge into the document, each time from its beginning.
    pub merge: Option<Merge>,
}

/// See [`DocumentOptions::merge`].
pub type Merge = Box<dyn Fn() -> io::Result<Box<dyn Read>>>;

/// The values of folded stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Weigh {
    /// Microseconds in calls
    Time,
    /// Bytes read, written or copied
    Bytes,
}
