//! Classifies the reads and writes of one open file by where they lie, and by Darshan's rules. Pure.
//!
//! There are two views of the same calls. The *patterns* are ours: kept for each open handle, mutually exclusive,
//! adding up to all calls. *Darshan's* figures are kept beside them, with its quirks (a file that is read whole in one
//! call is neither sequential nor consecutive, the empty read at its end is both), so that they can be compared with
//! Darshan's: rules of `darshan-posix.c`, version 3.5.

use std::time::Duration;

use strum::{EnumCount, IntoStaticStr, VariantArray};

/// Inclusive upper bounds of Darshan's ten size classes; the last class has none.
const SIZE_BOUNDS: [u64; SIZES - 1] =
    [100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30];

/// The number of size classes.
pub const SIZES: usize = 10;

/// Darshan's names for them.
pub const SIZE_NAMES: [&str; SIZES] =
    ["0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS"];

/// The class of a size in bytes.
pub fn size_class(size: u64) -> usize {
    SIZE_BOUNDS.partition_point(|bound| *bound < size)
}

/// How many ranges of a file are remembered for an open handle. With more, the two closest ranges are merged into one,
/// so that bytes between them wrongly count as touched.
const RANGES_MAX: usize = 128;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Read,
    Write,
}

/// A call's class by its position, within one open handle and one direction: exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum AccessPattern {
    /// The first one of the handle.
    First,
    /// Begins where the previous one ended.
    Consecutive,
    /// Begins after that.
    Forward,
    /// Begins before that, and is not wholly `Again`.
    Backward,
    /// All its bytes were read (or written) before through this handle.
    Again,
    /// Found nothing: the end of the file.
    End,
}

impl AccessPattern {
    pub const ALL: [AccessPattern; AccessPattern::COUNT] = *AccessPattern::VARIANTS.first_chunk().expect("all of them");

    /// The name in reports; stable.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The classification of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessClass {
    pub pattern: AccessPattern,
    /// Darshan's: begins after the last byte of the previous call.
    pub sequential: bool,
    /// Darshan's: begins at the byte right after it.
    pub consecutive: bool,
    /// Darshan's: bytes between the end of the previous call and the beginning of this one; 0 for none.
    pub stride: u64,
    /// Darshan's: the previous call went in the other direction.
    pub switched: bool,
    /// The part of its time in which no earlier call of the same direction was still in progress.
    pub alone: Duration,
}

/// One open handle's position, both ways.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    reads: Track,
    writes: Track,
    last: Option<Way>,
}

#[derive(Clone, Debug, Default)]
struct Track {
    /// Darshan's, which begins at 0 as if byte 0 had been touched; -1 after an empty call at 0.
    last_byte: i64,
    any: bool,
    /// Where the last call ended.
    end: u64,
    touched: Ranges,
    /// When the last call ended.
    ended: Duration,
}

impl Cursor {
    /// A cursor for a handle on a file whose previous call had the direction `last`.
    pub fn new(last: Option<Way>) -> Self {
        Cursor { last, ..Cursor::default() }
    }

    /// The direction of the last call.
    pub fn last(&self) -> Option<Way> {
        self.last
    }

    /// Takes a successful call: `len` bytes from `offset`, begun at `began` and lasting `took`, by one clock.
    pub fn step(&mut self, way: Way, offset: u64, len: u64, began: Duration, took: Duration) -> AccessClass {
        let switched = self.last.is_some_and(|last| last != way);
        self.last = Some(way);
        let track = match way {
            Way::Read => &mut self.reads,
            Way::Write => &mut self.writes,
        };
        AccessClass { switched, ..track.step(offset, len, began, took) }
    }
}

impl Track {
    fn step(&mut self, offset: u64, len: u64, began: Duration, took: Duration) -> AccessClass {
        // No file is larger: the kernel's offsets are signed.
        let at = i64::try_from(offset).unwrap_or(i64::MAX);
        let sequential = at > self.last_byte;
        let behind = sequential && at > 0 && self.last_byte != 0;
        let place = AccessClass {
            pattern: self.pattern(offset, len),
            sequential,
            consecutive: at.checked_sub(1) == Some(self.last_byte),
            stride: if behind { (at - self.last_byte - 1).unsigned_abs() } else { 0 },
            switched: false,
            alone: took.saturating_sub(self.ended.saturating_sub(began)),
        };
        self.last_byte = at.saturating_add(i64::try_from(len).unwrap_or(i64::MAX)).saturating_sub(1);
        self.any = true;
        self.end = offset.saturating_add(len);
        self.touched.add(offset, self.end);
        self.ended = self.ended.max(began.saturating_add(took));
        place
    }

    fn pattern(&self, offset: u64, len: u64) -> AccessPattern {
        match len {
            0 => AccessPattern::End,
            _ if !self.any => AccessPattern::First,
            _ if offset == self.end => AccessPattern::Consecutive,
            _ if self.touched.covers(offset, offset.saturating_add(len)) => AccessPattern::Again,
            _ if offset > self.end => AccessPattern::Forward,
            _ => AccessPattern::Backward,
        }
    }
}

/// The touched ranges (from, to), in order; no two of them touch.
#[derive(Clone, Debug, Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn covers(&self, from: u64, to: u64) -> bool {
        let after = self.0.partition_point(|range| range.0 <= from);
        after.checked_sub(1).is_some_and(|at| self.0[at].1 >= to)
    }

    fn add(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        // Usually it continues where the last one ended.
        let first = self.0.partition_point(|range| range.1 < from);
        let behind = self.0.partition_point(|range| range.0 <= to);
        if first == behind {
            self.0.insert(first, (from, to));
        } else {
            let joined = (self.0[first].0.min(from), self.0[behind - 1].1.max(to));
            self.0.splice(first..behind, [joined]);
        }
        if self.0.len() > RANGES_MAX {
            let gap = |at: &usize| self.0[at + 1].0 - self.0[*at].1;
            let at = (0..self.0.len() - 1).min_by_key(gap).unwrap_or(0);
            let next = self.0.remove(at + 1);
            self.0[at].1 = next.1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Way::{Read, Write};

    fn patterns(calls: &[(Way, u64, u64)]) -> Vec<AccessPattern> {
        let mut cursor = Cursor::default();
        let step = |(way, offset, len): &(Way, u64, u64)| {
            cursor.step(*way, *offset, *len, Duration::ZERO, Duration::ZERO).pattern
        };
        calls.iter().map(step).collect()
    }

    #[test]
    fn a_bound_lies_within_its_class() {
        let at = |size| SIZE_NAMES[size_class(size)];
        assert_eq!((at(0), at(100), at(101)), ("0_100", "0_100", "100_1K"));
        assert_eq!((at(131_072), at(1 << 20), at((1 << 20) + 1)), ("100K_1M", "100K_1M", "1M_4M"));
        assert_eq!((at(1 << 30), at((1 << 30) + 1), at(u64::MAX)), ("100M_1G", "1G_PLUS", "1G_PLUS"));
    }

    #[test]
    fn a_file_read_to_its_end_is_first_then_consecutive_then_the_end() {
        let found = patterns(&[(Read, 0, 4096), (Read, 4096, 4096), (Read, 8192, 10), (Read, 8202, 0)]);
        assert_eq!(
            found,
            [AccessPattern::First, AccessPattern::Consecutive, AccessPattern::Consecutive, AccessPattern::End]
        );
    }

    #[test]
    fn gaps_steps_back_and_repeats_are_told_apart() {
        let found = patterns(&[(Read, 100, 10), (Read, 200, 10), (Read, 105, 2), (Read, 105, 10), (Read, 0, 50)]);
        assert_eq!(
            found,
            [
                AccessPattern::First,
                AccessPattern::Forward,
                AccessPattern::Again,
                AccessPattern::Backward,
                AccessPattern::Backward
            ]
        );
    }

    #[test]
    fn reads_and_writes_have_positions_of_their_own() {
        let found = patterns(&[(Write, 0, 10), (Read, 0, 10), (Write, 10, 10), (Read, 10, 10)]);
        assert_eq!(
            found,
            [AccessPattern::First, AccessPattern::First, AccessPattern::Consecutive, AccessPattern::Consecutive]
        );
    }

    #[test]
    fn darshan_calls_a_whole_read_neither_and_the_empty_one_behind_it_both() {
        let mut cursor = Cursor::default();
        let mut step = |offset, len| {
            let place = cursor.step(Read, offset, len, Duration::ZERO, Duration::ZERO);
            (place.sequential, place.consecutive, place.stride)
        };
        assert_eq!(step(0, 1000), (false, false, 0));
        assert_eq!(step(1000, 0), (true, true, 0));
        assert_eq!(step(1500, 10), (true, false, 500));
    }

    #[test]
    fn an_empty_call_at_the_beginning_makes_the_next_one_there_both() {
        let mut cursor = Cursor::default();
        let mut step = |offset, len| {
            let place = cursor.step(Read, offset, len, Duration::ZERO, Duration::ZERO);
            (place.sequential, place.consecutive)
        };
        assert_eq!(step(0, 0), (false, false));
        assert_eq!(step(0, 10), (true, true));
    }

    #[test]
    fn turns_are_counted_and_remembered_from_the_handle_before() {
        let step = |cursor: &mut Cursor, way| cursor.step(way, 0, 1, Duration::ZERO, Duration::ZERO).switched;
        let mut cursor = Cursor::default();
        assert!(!step(&mut cursor, Read), "nothing was before");
        assert!(step(&mut cursor, Write) && !step(&mut cursor, Write));
        assert!(step(&mut Cursor::new(Some(Write)), Read));
    }

    #[test]
    fn time_that_overlaps_is_counted_once() {
        let ms = Duration::from_millis;
        let mut cursor = Cursor::default();
        let mut alone = |began, took| cursor.step(Read, 0, 1, ms(began), ms(took)).alone;
        assert_eq!(alone(0, 10), ms(10));
        assert_eq!(alone(5, 10), ms(5), "half of it is the first one's");
        assert_eq!(alone(6, 2), ms(0), "all of it");
        assert_eq!(alone(20, 1), ms(1));
    }

    #[test]
    fn no_offset_or_length_overflows() {
        let mut cursor = Cursor::default();
        for (offset, len) in [(u64::MAX, u64::MAX), (0, u64::MAX), (u64::MAX, 0), (i64::MAX as u64, 1)] {
            cursor.step(Read, offset, len, Duration::MAX, Duration::MAX);
        }
    }

    /// Compared with a set of bytes.
    #[test]
    fn ranges_know_what_was_touched() {
        use rand::rngs::SmallRng;
        use rand::{RngExt, SeedableRng};
        for seed in 0..200 {
            let mut random = SmallRng::seed_from_u64(seed);
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 256]);
            for _ in 0..60 {
                let from = random.random_range(0..250);
                let to = from + random.random_range(0..6);
                assert_eq!(
                    ranges.covers(from as u64, to as u64 + 1),
                    bytes[from..=to].iter().all(|byte| *byte),
                    "seed {seed}"
                );
                ranges.add(from as u64, to as u64 + 1);
                bytes[from..=to].fill(true);
                assert!(ranges.0.windows(2).all(|two| two[0].1 < two[1].0), "seed {seed}: {ranges:?}");
            }
        }
    }

    #[test]
    fn ranges_that_lie_apart_are_bounded() {
        let mut ranges = Ranges::default();
        (0..1000).for_each(|n| ranges.add(n * 10, n * 10 + 1));
        assert_eq!(ranges.0.len(), RANGES_MAX);
        assert!(ranges.covers(9990, 9991), "the newest is known");
    }
}
