//! Numbers as a log of Darshan has them.

use std::time::Duration;

pub(super) fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
