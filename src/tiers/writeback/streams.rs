//! How many streams copy at the same time, found out while they run. Pure; moments are passed in.
//!
//! Many small requests in flight make a network file system fast and a rotating disk slow, so the number is found by
//! hill climbing. A *round* is a second or more in which all streams have something to copy, even if only a part of a
//! large file. A round's result is counted in bytes, where a file costs as much as a MiB. Twice the streams are kept if
//! they achieve a fifth more, half of them if they achieve as much; otherwise the number returns to what it was, and
//! the other direction is tried after some rounds.

use std::time::Duration;

use crate::config::STREAMS_MAX;

/// The shortest round.
const ROUND: Duration = Duration::from_secs(1);
/// Fewer files say little about a tier, unless they are large.
const FILES_MIN: u64 = 4;
const BYTES_MIN: u64 = 64 << 20;
/// What a file costs besides its bytes.
const COST_OF_FILE: u64 = 1 << 20;
/// How many rounds pass between two unsuccessful trials.
const ROUNDS_BETWEEN: u32 = 8;
const BETTER: f64 = 1.2;
const AS_GOOD: f64 = 0.95;

/// What was copied since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Achieved {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

#[derive(Debug)]
pub(crate) struct StreamCount {
    count: u32,
    /// What `count` streams achieved per second in the last round.
    rate: Option<f64>,
    /// The direction of the current trial.
    trial: Option<Direction>,
    next: Direction,
    /// Rounds until the next trial.
    rest: u32,
    /// When the present round began, and the total at that time.
    began: Option<(Duration, Achieved)>,
}

impl StreamCount {
    pub(crate) fn starting_with(count: u32) -> Self {
        StreamCount { count, rate: None, trial: None, next: Direction::Up, rest: 0, began: None }
    }

    /// How many streams may copy now.
    pub(crate) fn get(&self) -> u32 {
        match self.trial {
            None => self.count,
            Some(direction) => self.stepped(direction),
        }
    }

    /// The number without the current trial.
    pub(crate) fn settled(&self) -> u32 {
        self.count
    }

    fn stepped(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Up => (self.count * 2).min(STREAMS_MAX),
            Direction::Down => (self.count / 2).max(1),
        }
    }

    /// Ends the round without a measurement: not all streams have something to copy, or they make way for other work.
    pub(crate) fn interrupt(&mut self) {
        self.began = None;
    }

    /// To be called when a stream has copied something and there is more for all of them.
    pub(crate) fn copied(&mut self, now: Duration, achieved: Achieved) {
        let Some((began, before)) = self.began else {
            self.began = Some((now, achieved));
            return;
        };
        // Streams that end at the same time may report in another order.
        let (took, files) = (now.saturating_sub(began), achieved.files.saturating_sub(before.files));
        let bytes = achieved.bytes.saturating_sub(before.bytes);
        if took < ROUND || (files < FILES_MIN && bytes < BYTES_MIN) {
            return;
        }
        self.began = Some((now, achieved));
        self.end_round((bytes + files * COST_OF_FILE) as f64 / took.as_secs_f64());
    }

    fn end_round(&mut self, rate: f64) {
        let before = self.rate.unwrap_or(rate);
        match self.trial.take() {
            Some(direction) => {
                let wanted = if direction == Direction::Up { BETTER } else { AS_GOOD };
                let kept = rate >= wanted * before;
                if kept {
                    (self.count, self.rate) = (self.stepped(direction), Some(rate));
                } else {
                    self.next = if direction == Direction::Up { Direction::Down } else { Direction::Up };
                }
                self.rest = if kept { 0 } else { ROUNDS_BETWEEN };
            }
            None => {
                self.rate = Some(rate);
                self.rest = self.rest.saturating_sub(1);
            }
        }
        if self.rest == 0 {
            // At the end of one direction only the other is left.
            if self.stepped(self.next) == self.count {
                self.next = if self.next == Direction::Up { Direction::Down } else { Direction::Up };
            }
            self.trial = Some(self.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of streams in each of these seconds, on a tier with this throughput per second.
    fn climb(start: u32, seconds: u64, bytes_per_s: impl Fn(u32) -> u64) -> Vec<u32> {
        let (mut streams, mut achieved) = (StreamCount::starting_with(start), Achieved::default());
        let mut counts = Vec::new();
        for second in 0..seconds {
            streams.copied(Duration::from_secs(second), achieved);
            counts.push(streams.get());
            achieved.files += 10;
            achieved.bytes += bytes_per_s(streams.get());
        }
        counts
    }

    fn share_of(counts: &[u32], wanted: impl Fn(u32) -> bool) -> f64 {
        let later = &counts[counts.len() / 5..];
        later.iter().filter(|count| wanted(**count)).count() as f64 / later.len() as f64
    }

    #[test]
    fn a_tier_that_rewards_streams_gets_all_of_them() {
        let counts = climb(1, 100, |streams| 20_000_000 * u64::from(streams));
        assert!(share_of(&counts, |count| count == STREAMS_MAX) > 0.85, "{counts:?}");
    }

    #[test]
    fn a_disk_that_turns_keeps_one() {
        let counts = climb(4, 200, |streams| 130_000_000 / u64::from(streams));
        assert!(share_of(&counts, |count| count == 1) > 0.85, "{counts:?}");
    }

    #[test]
    fn no_more_are_used_than_help() {
        let counts = climb(1, 300, |streams| 100_000_000 * u64::from(streams.min(2)));
        assert!(share_of(&counts, |count| count == 2) > 0.8, "{counts:?}");
    }

    #[test]
    fn a_tier_that_changes_is_found_out_again() {
        let (mut streams, mut achieved) = (StreamCount::starting_with(1), Achieved::default());
        let mut seen = Vec::new();
        for second in 0..200 {
            streams.copied(Duration::from_secs(second), achieved);
            let count = u64::from(streams.get());
            achieved.files += 10;
            achieved.bytes += if second < 50 { 50_000_000 * count } else { 400_000_000 / count };
            seen.push(streams.get());
        }
        assert_eq!((seen[45], *seen.last().expect("many")), (STREAMS_MAX, 1), "{seen:?}");
    }

    #[test]
    fn what_waits_for_work_measures_nothing() {
        let mut streams = StreamCount::starting_with(1);
        for second in 0..100 {
            streams.copied(Duration::from_secs(second), Achieved { files: second * 100, bytes: 0 });
            streams.interrupt();
        }
        assert_eq!(streams.get(), 1);
    }
}
