//! The user's options for a document besides its kind. Each applies to the kinds that have it.

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct DocumentOptions {
    /// Everything, and not only what fits on a screen.
    pub all: bool,
    /// The most bytes of a part, before compression.
    pub split: u64,
}
