//! When the next checkpoint comes and how large it is, estimated from the last few.
//!
//! The rule, careful rather than clever:
//!
//! - bursts of like size, each within four times of the one before, are a *series*; its last [`KEPT`] are remembered.
//!   The largest live series is taken for the checkpoints: it has two or more bursts, and its last one began at most
//!   four intervals before the last burst of any size. So neither a log that grows by megabytes nor a data set that is
//!   unpacked once is mistaken for checkpoints;
//! - **size**: the largest of the series, and an eighth more;
//! - **when**: the start of the last checkpoint plus the median interval, once there are two intervals or more;
//! - **spread**: twice the distance from the median that three of four intervals stay within. One long pause does not
//!   count. Without regularity the spread is about as long as the interval, and room is wanted nearly always;
//! - room is wanted from [`LEAD`] plus the spread before that time until a quarter of the interval, at least [`LEAD`],
//!   plus the spread after it. After that the next checkpoint is no longer expected: training has ended, or pauses.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How many checkpoints of a series are remembered.
const KEPT: usize = 8;
/// More than the number of series between a megabyte and a petabyte.
const SERIES: usize = 20;
/// Time for eviction: each file takes a call to the slow tier, which may be slow.
const LEAD: Duration = Duration::from_secs(120);

/// The recently finished checkpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckpointForecast {
    /// In order of the last addition; the most recent series comes last.
    series: Vec<Series>,
    next: ExpectedCheckpoint,
}

/// The expected checkpoint.
#[derive(Clone, Debug, Default)]
struct ExpectedCheckpoint {
    bytes: u64,
    /// When room is wanted.
    due: Option<RangeInclusive<Duration>>,
}

/// Bursts of like size: their starts and bytes. Never empty.
#[derive(Clone, Debug, Default)]
struct Series(VecDeque<(Duration, u64)>);

impl CheckpointForecast {
    /// Adds a finished checkpoint that began at `began` and has this many bytes.
    pub(crate) fn learn(&mut self, began: Duration, bytes: u64) {
        let like = self.series.iter().rposition(|series| series.is_like(bytes));
        let mut series = like.map(|at| self.series.remove(at)).unwrap_or_default();
        series.0.push_back((began, bytes));
        if series.0.len() > KEPT {
            series.0.pop_front();
        }
        if self.series.len() == SERIES {
            self.series.remove(0);
        }
        self.series.push(series);
        let going_on = self.series.iter().filter(|series| series.goes_on(began));
        self.next =
            going_on.max_by_key(|series| series.largest()).map_or_else(ExpectedCheckpoint::default, Series::next);
    }

    /// Bytes of the next checkpoint, regardless of its time; 0 while unknown. Staging leaves this room free at all
    /// times.
    pub(crate) fn expected(&self) -> u64 {
        self.next.bytes
    }

    /// Bytes that should be free now: those of the checkpoint that is about to come, or the rest of the one that is
    /// being written, which has `written` bytes so far. `written` is 0 if there is none.
    pub(crate) fn ahead(&self, now: Duration, written: u64) -> u64 {
        let due = self.next.due.as_ref().is_some_and(|due| due.contains(&now));
        if due || written > 0 { self.next.bytes.saturating_sub(written) } else { 0 }
    }
}

impl Series {
    fn is_like(&self, bytes: u64) -> bool {
        self.0.back().is_some_and(|(_, last)| bytes / 4 <= *last && last / 4 <= bytes)
    }

    fn last(&self) -> Duration {
        self.0.back().map_or(Duration::ZERO, |(began, _)| *began)
    }

    fn largest(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0)
    }

    fn goes_on(&self, now: Duration) -> bool {
        upper(&mut self.intervals(), 2)
            .is_some_and(|interval| now.saturating_sub(self.last()) <= interval.saturating_mul(4))
    }

    fn intervals(&self) -> Vec<Duration> {
        self.0.iter().zip(self.0.iter().skip(1)).map(|((a, _), (b, _))| b.saturating_sub(*a)).collect()
    }

    fn next(&self) -> ExpectedCheckpoint {
        let largest = self.largest();
        ExpectedCheckpoint { bytes: largest.saturating_add(largest / 8), due: self.due() }
    }

    fn due(&self) -> Option<RangeInclusive<Duration>> {
        let mut intervals = self.intervals();
        let interval = upper(&mut intervals, 2).filter(|_| intervals.len() >= 2)?;
        let mut off: Vec<Duration> = intervals.iter().map(|one| one.abs_diff(interval)).collect();
        let spread = upper(&mut off, 4)?.saturating_mul(2);
        let at = self.last().saturating_add(interval);
        let patience = (interval / 4).max(LEAD).saturating_add(spread);
        Some(at.saturating_sub(LEAD.saturating_add(spread))..=at.saturating_add(patience))
    }
}

/// The smallest of the largest `part`th: 2 gives the median, 4 a value that three of four do not exceed. Sorts.
fn upper(all: &mut [Duration], part: usize) -> Option<Duration> {
    all.sort_unstable();
    all.get(all.len() - all.len().div_ceil(part)).copied()
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn min(minutes: u64) -> Duration {
        Duration::from_secs(minutes * 60)
    }

    /// A forecast that has learnt checkpoints of 8 GiB at these minutes.
    fn learnt(minutes: impl IntoIterator<Item = u64>) -> CheckpointForecast {
        let mut all = CheckpointForecast::default();
        minutes.into_iter().for_each(|at| all.learn(min(at), 8 * GIB));
        all
    }

    fn wanted(all: &CheckpointForecast, minutes: std::ops::Range<u64>) -> Vec<u64> {
        minutes.filter(|minute| all.ahead(min(*minute), 0) > 0).collect()
    }

    #[test]
    fn room_is_wanted_from_shortly_before_until_it_is_too_late() {
        let all = learnt([0, 20, 40]);
        assert_eq!(all.expected(), 9 * GIB);
        assert_eq!(wanted(&all, 40..200), (58..=65).collect::<Vec<_>>());
        assert_eq!(all.ahead(min(60), 0), 9 * GIB);
        assert_eq!(wanted(&learnt([0, 20, 40, 60]), 60..200), (78..=85).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_expected_before_it_was_seen_to_come_again() {
        assert_eq!((learnt([]).expected(), learnt([5]).expected(), learnt([5, 10]).expected()), (0, 0, 9 * GIB));
        assert_eq!((learnt([5]).ahead(min(6), GIB), learnt([5, 10]).ahead(min(15), 0)), (0, 0));
    }

    #[test]
    fn one_that_is_being_written_wants_the_rest() {
        let all = learnt([0, 20, 40]);
        assert_eq!((all.ahead(min(45), GIB), all.ahead(min(60), 8 * GIB)), (8 * GIB, GIB));
        assert_eq!(all.ahead(min(60), 10 * GIB), 0);
    }

    #[test]
    fn one_long_pause_or_one_that_is_missing_changes_nothing() {
        let night = learnt([0, 20, 40, 600, 620, 640, 660, 680]);
        assert_eq!(wanted(&night, 680..2000), (698..=705).collect::<Vec<_>>());
    }

    #[test]
    fn where_nothing_is_regular_room_is_wanted_nearly_always() {
        let pairs = learnt([0, 1, 15, 16, 30, 31, 45, 46]);
        assert_eq!(wanted(&pairs, 46..60), (46..60).collect::<Vec<_>>());
        let any = learnt([0, 7, 40, 45, 90, 93, 120, 180]);
        assert!(wanted(&any, 180..240).len() > 45, "{:?}", wanted(&any, 180..240));
        assert!(wanted(&any, 180..2000).len() < 200, "and given up in the end");
    }

    #[test]
    fn neither_small_writes_nor_a_data_set_that_is_unpacked_are_taken_for_one() {
        let mut all = CheckpointForecast::default();
        all.learn(min(0), 500 * GIB);
        for minute in 1..100 {
            all.learn(min(minute), if minute % 15 == 0 { 20 * GIB } else { (1 + minute % 3) << 20 });
        }
        assert_eq!(all.expected(), 20 * GIB + 20 * GIB / 8);
        assert_eq!(wanted(&all, 99..200), (103..=108).collect::<Vec<_>>());
        // The job ends; the remaining writer writes little.
        (100..200).for_each(|minute| all.learn(min(minute), 1 << 20));
        assert!(all.expected() < 8 << 20, "{}", all.expected());
    }

    #[test]
    fn sizes_that_vary_count_as_the_largest_of_the_last() {
        let mut all = CheckpointForecast::default();
        (0..8).for_each(|n| all.learn(min(n * 10), if n == 3 { 12 * GIB } else { 4 * GIB }));
        assert_eq!(all.expected(), 12 * GIB + 12 * GIB / 8);
        (8..12).for_each(|n| all.learn(min(n * 10), 4 * GIB));
        assert_eq!(all.expected(), 4 * GIB + GIB / 2);
    }

    #[test]
    fn any_history_leads_to_something() {
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..300 {
            let mut all = CheckpointForecast::default();
            for _ in 0..random.random_range(0..60) {
                let began = Duration::from_nanos(random.random::<u64>() >> random.random_range(0..64));
                all.learn(began, random.random::<u64>() >> random.random_range(0..64));
                let (now, written) = (Duration::from_nanos(random.random()), random.random_range(0..3));
                assert!(all.ahead(now, written) <= all.expected() && all.series.len() <= SERIES);
            }
            all.learn(Duration::MAX, u64::MAX);
            all.learn(Duration::MAX, u64::MAX);
            all.learn(Duration::ZERO, u64::MAX);
            assert_eq!((all.expected(), all.ahead(Duration::MAX, 1)), (u64::MAX, u64::MAX - 1));
        }
    }
}
