//! The user's options for a document, and for folded stacks.

use std::fmt;
use std::io::{self, Read};

/// The user's options for a document besides its kind. Each applies to the kinds that have it.
pub struct Asked {
    /// What the width of a flame shows.
    pub weigh: Weigh,
    /// The most bytes of a part, before compression.
    pub split: u64,
    /// Opens another tool's trace to merge into the document, each time from its beginning.
    pub merge: Option<Merge>,
}

/// See [`Asked::merge`].
pub type Merge = Box<dyn Fn() -> io::Result<Box<dyn Read>>>;

/// The values of folded stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Weigh {
    /// Microseconds in calls
    Time,
    /// Bytes read, written or copied
    Bytes,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Asked { weigh, split, merge } = self;
        f.debug_struct("Asked").field("weigh", weigh).field("split", split).field("merge", &merge.is_some()).finish()
    }
}
