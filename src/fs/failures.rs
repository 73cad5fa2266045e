//! Which failed operations are logged, at which level, and how often; and whether any failed recently.
//!
//! Errors that only concern the application (ENOENT, EEXIST, ENODATA, ...) are logged for debugging. Errors that an
//! operator should see are logged at most once per interval and level, with the number of those left out: a full disk
//! fails every write.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{debug, error, warn};

use crate::error::{Errno, Error};
use crate::stats::counters::Op;
use crate::stats::status::FailingCalls;
use crate::tiers::Ino;

const INTERVAL: Duration = Duration::from_secs(10);
/// How long after the last failure the mount is reported as failing.
const LATELY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Failures {
    warnings: Mutex<Gate>,
    errors: Mutex<Gate>,
    lately: Mutex<Option<FailingSince>>,
}

/// Calls that a tier failed, none of them longer than [`LATELY`] after the one before.
#[derive(Debug)]
struct FailingSince {
    last: Instant,
    calls: u64,
    writes: u64,
    errno: Errno,
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
        if is_of_a_tier(error) {
            self.note(op, error.errno(), Instant::now());
        }
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

    fn note(&self, op: Op, errno: Errno, now: Instant) {
        let mut lately = self.lately.lock();
        let is_over = |before: &FailingSince| now.duration_since(before.last) > LATELY;
        let before = lately.take().filter(|before| !is_over(before));
        let (calls, writes) = before.map_or((0, 0), |before| (before.calls, before.writes));
        *lately = Some(FailingSince { last: now, calls: calls + 1, writes: writes + u64::from(is_write(op)), errno });
    }

    /// The calls that a tier has failed recently, if there are any.
    pub(super) fn lately(&self) -> Option<FailingCalls> {
        self.lately_at(Instant::now())
    }

    fn lately_at(&self, now: Instant) -> Option<FailingCalls> {
        let lately = self.lately.lock();
        let FailingSince { last, calls, writes, errno } = lately.as_ref()?;
        let ago = now.duration_since(*last);
        let errno = format!("{errno:?}");
        (ago <= LATELY).then_some(FailingCalls { calls: *calls, writes: *writes, errno, ago })
    }
}

/// Whether a tier failed the call. A user's own limits, on a tier or here, do not count: otherwise any user could make
/// the mount report itself unready.
fn is_of_a_tier(error: &Error) -> bool {
    match error {
        Error::SlowTimeout => true,
        Error::Io { .. } => level(error) != Level::Debug && error.errno() != Errno::EDQUOT,
        Error::Posix(_) | Error::NeedSlow | Error::Refused { .. } => false,
    }
}

fn is_write(op: Op) -> bool {
    matches!(
        op,
        Op::Setattr
            | Op::Mknod
            | Op::Mkdir
            | Op::Unlink
            | Op::Rmdir
            | Op::Symlink
            | Op::Rename
            | Op::Link
            | Op::Create
            | Op::Write
            | Op::Flush
            | Op::Fsync
            | Op::Fdatasync
            | Op::Fsyncdir
            | Op::Setxattr
            | Op::Removexattr
            | Op::Fallocate
            | Op::CopyFileRange
    )
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
        // The error comes from the disk, not from us: fewer of these concern only the application.
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
    fn what_a_tier_has_failed_lately_is_told_for_a_minute() {
        let (failures, start) = (Failures::default(), Instant::now());
        assert_eq!(failures.lately_at(start), None);
        failures.note(Op::Write, Errno::ENOSPC, start);
        failures.note(Op::Read, Errno::EIO, start + LATELY);
        let told = FailingCalls { calls: 2, writes: 1, errno: "EIO".to_owned(), ago: LATELY };
        assert_eq!(failures.lately_at(start + LATELY * 2), Some(told));
        assert_eq!(failures.lately_at(start + LATELY * 3), None);
        failures.note(Op::Read, Errno::EIO, start + LATELY * 3);
        assert!(
            failures.lately_at(start + LATELY * 3).is_some_and(|told| told.calls == 1 && told.of_writes().is_none())
        );
        let io = |errno: Errno| Error::io("write", "f", errno.into());
        assert!(is_of_a_tier(&io(Errno::ENOSPC)) && is_of_a_tier(&io(Errno::EIO)) && is_of_a_tier(&Error::SlowTimeout));
        assert!(!is_of_a_tier(&io(Errno::EDQUOT)) && !is_of_a_tier(&Errno::ENOSPC.into()), "a user's own limit");
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
