//! What a daemon leaves behind.

/// What only the fast tier has when a daemon leaves.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Left {
    pub files: u64,
    /// Including changes of names and attributes.
    pub events: u64,
    /// Escaped; at most a thousand, oldest first.
    pub paths: Vec<String>,
}

impl Left {
    pub fn is_nothing(&self) -> bool {
        self.files == 0 && self.events == 0 && self.paths.is_empty()
    }
}
