//! Making committed content durable on fast by itself, about as soon as it is committed, so that `close` is followed by D1
//! without an fsync.

use crate::error::Result;
use crate::tiers::{Cx, Progress, Tiers};

/// Content events sealed with one sync of the log.
const AT_ONCE: usize = 64;

impl Tiers {
    /// Seals the oldest unsealed content events, in LSN order, and makes the log durable up to the seals.
    pub fn seal_step(&self) -> Result<Progress> {
        let mut pending = self.unsealed(|_, _| true);
        pending.truncate(AT_ONCE);
        let cx = Cx::internal();
        if pending.is_empty() {
            return self.sync_in_place(&cx, |_| true).map(|()| Progress::Idle);
        }
        self.seal_durably(&cx, &pending)?;
        self.wake();
        Ok(Progress::Did)
    }
}
