//! A traced call and its caller. Pure.

use std::time::Duration;

use super::counters::Call;

/// One call and its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    pub call: Call,
    /// The file or directory that the call was about.
    pub ino: u64,
    /// The open file that it came through; 0 for none.
    pub handle: u64,
    /// As in [`super::processes::Process::number`].
    pub process: u32,
    /// As the kernel names it; 0 if it does not.
    pub thread: u32,
}

impl Traced {
    pub fn ended(&self) -> Duration {
        self.call.began.saturating_add(self.call.took)
    }
}
