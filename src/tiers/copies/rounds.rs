//! Decides which files are out of use, from how often others are read again.
//!
//! A training job reads all files of a set in rounds, in the same order or in a new one each time. In any round a file
//! in use was last read in this round or in the one before. The files being read again now were last read at some point
//! of the previous round: the earliest of about a hundred such times is close to its beginning. So a file last read
//! clearly before *that* was left out for a whole round.
//!
//! The interval of a single file says nothing: with a new order each time it is anything from zero to two rounds, and a
//! file not read for nearly two rounds may still be in use. Judged by single intervals, data that does not fit would
//! evict itself in every epoch.

use std::collections::VecDeque;
use std::time::Duration;

/// How many of a set's last repeated reads are remembered.
const LATELY: usize = 128;
/// With fewer the previous round is unknown. This many of the newest count, however old they are.
const ENOUGH: usize = 8;
/// From this many on, the earliest is ignored: a file read once after days says nothing about the others.
const MANY: usize = LATELY / 2;
/// Sets share a slot by their number modulo this. Sharing only makes the estimate more patient, and bounds the memory
/// to 512 KiB.
const SETS: usize = 128;
/// Several processes of one job that read the same file read it once.
const TOGETHER: Duration = Duration::from_secs(5);

/// Files that were read again lately, by set: files that are read in the same rounds, such as those of a directory.
#[derive(Debug)]
pub(crate) struct ReadRounds {
    sets: Vec<VecDeque<Again>>,
}

#[derive(Clone, Copy, Debug)]
struct Again {
    before: Duration,
    now: Duration,
}

impl Again {
    /// For a small set the last [`LATELY`] reads span several rounds.
    fn is_recent(self, now: Duration) -> bool {
        now.saturating_sub(self.now) <= self.now.saturating_sub(self.before) / 2
    }
}

impl Default for ReadRounds {
    fn default() -> Self {
        ReadRounds { sets: vec![VecDeque::new(); SETS] }
    }
}

impl ReadRounds {
    /// Notes that a file of `set`, last read at `before`, is read again.
    pub(crate) fn read_again(&mut self, set: u64, before: Duration, now: Duration) {
        if now.saturating_sub(before) < TOGETHER {
            return;
        }
        let Some(lately) = self.sets.get_mut(place(set)) else { return };
        if lately.len() == LATELY {
            lately.pop_front();
        }
        lately.push_back(Again { before, now });
    }

    /// For [`replaces`]: how long ago the round before this one began, for a file of `set` that was last read at
    /// `before`. `None`: it was never read, or too little of the set was read again.
    pub(crate) fn interval(&self, set: u64, before: Option<Duration>, now: Duration) -> Option<Duration> {
        let before = before?;
        let lately = self.sets.get(place(set))?.iter().rev().enumerate();
        let lately = lately.filter(|(nth, again)| *nth < ENOUGH || again.is_recent(now));
        let began = earliest(lately.map(|(_, again)| again.before))?;
        Some(now.saturating_sub(before.min(began)))
    }
}

/// Approximately the beginning of a round, given some of its times.
fn earliest(moments: impl Iterator<Item = Duration>) -> Option<Duration> {
    let (mut first, mut second, mut count) = (Duration::MAX, Duration::MAX, 0);
    for moment in moments {
        count += 1;
        if moment < first {
            (first, second) = (moment, first);
        } else {
            second = second.min(moment);
        }
    }
    match count {
        MANY.. => Some(second),
        ENOUGH.. => Some(first),
        _ => None,
    }
}

fn place(set: u64) -> usize {
    (set % SETS as u64) as usize
}

/// Whether a file that is read again after `interval` may take the place of one not read for `idle`: only if `idle` is
/// longer by at least an eighth.
pub(crate) fn replaces(interval: Option<Duration>, idle: Duration) -> bool {
    interval.is_some_and(|interval| idle > interval.saturating_add(interval / 8))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Files that are read in rounds, and how often one of them would wrongly be evicted for another.
    struct Set {
        number: u64,
        read: Vec<Option<Duration>>,
        /// The files, least recently read first.
        by_age: BTreeSet<(Duration, usize)>,
        reads: u64,
        wrong: u64,
    }

    impl Set {
        fn new(number: u64, files: usize) -> Self {
            Set { number, read: vec![None; files], by_age: BTreeSet::new(), reads: 0, wrong: 0 }
        }

        fn order(&self, shuffled: bool, random: &mut SmallRng) -> Vec<usize> {
            let mut order: Vec<usize> = (0..self.read.len()).collect();
            if shuffled {
                order.shuffle(random);
            }
            order
        }

        fn read(&mut self, rounds: &mut ReadRounds, file: usize, now: Duration) {
            let before = self.read[file].replace(now);
            if let Some(before) = before {
                self.by_age.remove(&(before, file));
                rounds.read_again(self.number, before, now);
                let idle = self.by_age.first().map_or(Duration::ZERO, |(read, _)| now - *read);
                self.reads += 1;
                self.wrong += u64::from(replaces(rounds.interval(self.number, Some(before), now), idle));
            }
            self.by_age.insert((now, file));
        }
    }

    /// In any order, at any speed, with pauses, and beside a small set that is read much more often.
    #[test]
    fn what_is_in_use_is_hardly_ever_taken_for_what_is_not() {
        for (files, shuffled) in [4, 20, 100, 3_000].into_iter().flat_map(|files| [(files, false), (files, true)]) {
            let mut random = SmallRng::seed_from_u64(files as u64);
            let (mut rounds, mut now) = (ReadRounds::default(), 0.0);
            let (mut large, mut small) = (Set::new(1, files), Set::new(2, 30));
            for round in 0..40_000 / files.max(1_000) {
                let speed = random.random_range(0.8..1.2) * 1200.0 / files as f64;
                for file in large.order(shuffled, &mut random) {
                    now += speed;
                    large.read(&mut rounds, file, at(now));
                    if random.random_bool((speed / 60.0).min(1.0)) {
                        for (n, file) in small.order(true, &mut random).into_iter().enumerate() {
                            small.read(&mut rounds, file, at(now + n as f64 / 1e3));
                        }
                    }
                }
                now += if round % 10 == 9 { 7_200.0 } else { 0.0 };
            }
            let share = large.wrong as f64 / large.reads as f64;
            assert!(share < 0.005 && small.wrong == 0, "{files} files: {share}, {}", small.wrong);
        }
    }

    #[test]
    fn what_was_left_out_of_a_round_is_found_in_the_next() {
        for (files, shuffled) in [(30, false), (30, true), (2_000, false), (2_000, true)] {
            let mut random = SmallRng::seed_from_u64(9);
            let (mut rounds, mut now) = (ReadRounds::default(), 0.0);
            let (mut old, mut new) = (Set::new(1, files), Set::new(2, files));
            for round in 0..6 {
                let set = if round < 4 { &mut old } else { &mut new };
                for file in set.order(shuffled, &mut random) {
                    now += 1200.0 / files as f64;
                    set.read(&mut rounds, file, at(now));
                }
            }
            let interval = rounds.interval(2, Some(at(now)), at(now));
            let out = old.read.iter().flatten().filter(|read| replaces(interval, at(now) - **read)).count();
            assert!(out * 100 > files * if shuffled { 70 } else { 95 }, "{out} of {files}, {shuffled}");
            assert_eq!(new.read.iter().flatten().filter(|read| replaces(interval, at(now) - **read)).count(), 0);
        }
    }

    #[test]
    fn nothing_is_replaced_for_a_file_that_was_never_read_or_of_which_nothing_is_known() {
        let mut rounds = ReadRounds::default();
        let now = at(1e6);
        (0..7).for_each(|n| rounds.read_again(1, at(f64::from(n)), now));
        assert_eq!(rounds.interval(1, Some(at(5.0)), now), None, "too little is known");
        // Processes that read one file together.
        (0..9).for_each(|n| rounds.read_again(1, now - at(f64::from(n) / 2.0), now));
        assert_eq!(rounds.interval(1, Some(at(5.0)), now), None);
        rounds.read_again(1, at(7.0), now);
        assert_eq!((rounds.interval(1, None, now), rounds.interval(2, Some(now), now)), (None, None));
        assert_eq!(rounds.interval(1, Some(at(5.0)), now), Some(now));
        assert!(!replaces(None, Duration::MAX) && !replaces(Some(Duration::MAX), Duration::MAX));
        assert!(replaces(Some(at(80.0)), at(90.1)) && !replaces(Some(at(80.0)), at(90.0)));
    }

    #[test]
    fn one_look_at_a_file_after_days_keeps_nothing() {
        let mut rounds = ReadRounds::default();
        let now = at(1e6);
        rounds.read_again(1, at(0.0), now);
        (0..100).for_each(|n| rounds.read_again(1, now - at(1200.0) + at(f64::from(n)), now));
        assert_eq!(rounds.interval(1, Some(now - at(1000.0)), now), Some(at(1200.0)));
        assert_eq!(rounds.interval(1, Some(at(0.0)), now), Some(now), "the file itself is patient");
    }
}
