//! A call that was traced, and whose it was. Pure.

use std::time::Duration;

use super::counters::Call;

/// One call, and whose it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    pub call: Call,
    /// The file or directory that it was about.
    pub ino: u64,
    /// The open file that it came through; 0 for none.
    pub handle: u64,
    /// As in [`super::processes::Process::number`].
    pub process: u32,
    /// As the kernel names it; 0 where it does not.
    pub thread: u32,
}

impl Traced {
    pub fn ended(&self) -> Duration {
        self.call.began.saturating_add(self.call.took)
    }
}
