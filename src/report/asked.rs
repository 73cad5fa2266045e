//! What a user asks of a document, and of folded stacks.

use std::fmt;
use std::io::{self, Read};

/// What a user asks of a document besides its kind. Each is for the kinds that leave it open.
pub struct Asked {
    /// By what a flame is wide.
    pub weigh: Weigh,
    /// A part takes no more bytes than this, before compression.
    pub split: u64,
    /// Opens a trace of another tool that is to be in the document: each time from its beginning.
    pub merge: Option<Merge>,
}

/// See [`Asked::merge`].
pub type Merge = Box<dyn Fn() -> io::Result<Box<dyn Read>>>;

/// What the values of folded stacks are.
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
