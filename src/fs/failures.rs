//! Which failed operations are logged, at which level, and how often.
//!
//! Errors that are the application's own business (ENOENT, EEXIST, ENODATA, ...) are logged for debugging. Errors that
//! an operator should see are logged at most once per interval and level, with the number of those left out: a full
//! disk fails every write.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{debug, error, warn};

use crate::error::{Errno, Error};
use crate::stats::counters::Op;
use crate::tiers::Ino;

const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Failures {
    warnings: Mutex<Gate>,
    errors: Mutex<Gate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Debug,
    Warn,
    Error,
}

impl Failures {
    /// `path` is called only for messages to an operator.
    pub(super) fn log(&self, op: Op, ino: Option<Ino>, error: &Error, path: impl Fn(Ino) -> Option<String>) {
        let path = || ino.and_then(&path).unwrap_or_default();
        match level(error) {
            Level::Debug => debug!(op = op.name(), ino, %error, "operation failed"),
            Level::Warn => {
                if let Some(muted) = self.warnings.lock().pass(Instant::now()) {
                    warn!(op = op.name(), path = %path(), %error, muted, "operation failed");
                }
            }
            Level::Error => {
                if let Some(muted) = self.errors.lock().pass(Instant::now()) {
                    error!(op = op.name(), path = %path(), %error, muted, "operation failed");
                }
            }
        }
    }
}

fn level(error: &Error) -> Level {
    match error {
        Error::SlowTimeout | Error::NeedSlow => Level::Warn,
        Error::Refused { .. } => Level::Error,
        Error::Posix(errno) => match errno {
            Errno::EIO => Level::Error,
            Errno::ENOSPC | Errno::EDQUOT => Level::Warn,
            _ => Level::Debug,
        },
        // The error comes from the disk, not from us: fewer of these are the application's own business.
        Error::Io { .. } => match error.errno() {
            Errno::ENOSPC | Errno::EDQUOT | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE => Level::Warn,
            Errno::EIO | Errno::EROFS | Errno::ESTALE | Errno::EUCLEAN | Errno::ENODEV | Errno::ENOTCONN => {
                Level::Error
            }
            _ => Level::Debug,
        },
    }
}

/// Lets one message through per [`INTERVAL`].
#[derive(Debug, Default)]
struct Gate {
    last: Option<Instant>,
    muted: u64,
}

impl Gate {
    /// Returns how many were held back since the last one that passed; `None`: this one is held back too.
    fn pass(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            self.muted += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.muted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_fits_whose_business_it_is() {
        let io = |errno: Errno| Error::io("write", "f", errno.into());
        assert_eq!(level(&Errno::ENOENT.into()), Level::Debug);
        assert_eq!(level(&Errno::ESTALE.into()), Level::Debug, "our own word to the kernel");
        assert_eq!(level(&io(Errno::ESTALE)), Level::Error, "the slow tier lost a file");
        assert_eq!(level(&io(Errno::ENOSPC)), Level::Warn);
        assert_eq!(level(&io(Errno::EIO)), Level::Error);
        assert_eq!(level(&Error::SlowTimeout), Level::Warn);
    }

    #[test]
    fn a_gate_counts_what_it_holds_back() {
        let (mut gate, start) = (Gate::default(), Instant::now());
        assert_eq!(gate.pass(start), Some(0));
        assert_eq!(gate.pass(start), None);
        assert_eq!(gate.pass(start + INTERVAL / 2), None);
        assert_eq!(gate.pass(start + INTERVAL), Some(2));
        assert_eq!(gate.pass(start + INTERVAL * 2), Some(0));
    }
}
