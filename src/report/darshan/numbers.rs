//! Numbers as in a Darshan log.

use std::time::Duration;

pub(super) fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
