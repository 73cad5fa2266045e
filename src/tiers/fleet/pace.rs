//! How many files a member of a fleet opens to know the other leases, and whose lease it reads next. Pure.
//!
//! N members that read each other ten times a second open 10 N² files a second. So each has a *share* of a bit less
//! than twenty a second, whatever their number: for its own slot, the leases of the others and their files of names.
//! What it does not use it may use later, so that it can read all of them at once when that matters. With something
//! pending, a round reads:
//!
//! 1. regardless of the share, the unknown members: this one has not looked at them lately, or their clock is not known
//!    yet, as after a mount (`clocks.rs`). And for one second in ten minutes with something pending, all: only a lease
//!    read soon after it was written shows that its clock is slightly ahead;
//! 2. the smallest lease that holds up the oldest event (`rule::next_to_read`), and if that now admits it, the next
//!    one. If it does not, no other lease would help;
//! 3. leases not read for a second: for their names, and to see whether their members are alive. That is one, or more
//!    if at least half of what may be saved up is left.
//!
//! So a member that waits for another one reads that lease in each round. Once it admits the event, the rest are read
//! at once. With nothing pending, all are read in one pass, by the rule of step 3.

use std::time::Duration;

use crate::tiers::fleet::clocks::SeenClock;
use crate::tiers::fleet::periods::ROUND;
use crate::tiers::fleet::rule::SeenLease;

/// A member may open one more file in each such time.
const SHARE: Duration = Duration::from_millis(55);
/// How often, and for how long, all clocks are looked at: each member writes a lease by then. Not counted in the share.
const CLOCKS: Duration = Duration::from_secs(600);
const CLOCKS_FOR: Duration = Duration::from_millis(1200);
/// The least and the most that is saved up; the least is the share of a second.
const KEPT_LEAST: u32 = 20;
const KEPT_MOST: u32 = 256;
/// Without an earlier reason, a lease is read again after this.
const READ: Duration = Duration::from_secs(1);

/// One member's part.
#[derive(Debug)]
pub(crate) struct LeasePace {
    slot: u32,
    /// How many files may be opened now. Negative: more had to be opened, of which at most `kept` are counted.
    left: i64,
    /// The most that is saved up: half of it is enough for all leases of a small fleet, and their names.
    kept: i64,
    /// This round opened a file for which no event waits.
    has_more: bool,
    /// Our uptime up to which the share is included in `left`.
    counted: Option<Duration>,
    /// Our uptime at the last look at each slot, whether or not it had a lease.
    looked: Vec<Option<Duration>>,
    /// Our uptime when all clocks were last looked at.
    clocks: Option<Duration>,
    /// Our uptime when the last pass with nothing pending began.
    pass: Option<Duration>,
}

impl LeasePace {
    pub(crate) fn new(slot: u32, size: u32) -> LeasePace {
        let kept = i64::from(size.saturating_mul(4).clamp(KEPT_LEAST, KEPT_MOST));
        let looked = vec![None; size as usize];
        LeasePace { slot, left: kept, kept, has_more: false, counted: None, looked, clocks: None, pass: None }
    }

    /// Begins a round.
    pub(crate) fn begin_round(&mut self, now: Duration) {
        self.has_more = false;
        let counted = self.counted.get_or_insert(now);
        let shares = u32::try_from(now.saturating_sub(*counted).as_nanos() / SHARE.as_nanos()).unwrap_or(u32::MAX);
        *counted += SHARE * shares;
        self.left = (self.left + i64::from(shares)).min(self.kept);
    }

    /// Counts a file that is opened regardless of the share.
    pub(crate) fn spend(&mut self) {
        self.left = (self.left - 1).max(-self.kept);
    }

    /// Takes one file from the share, if one more may be opened.
    pub(crate) fn take(&mut self) -> bool {
        let may = self.left > 0;
        self.left -= i64::from(may);
        may
    }

    /// Notes a look at a slot, whatever it found.
    pub(crate) fn note_look(&mut self, slot: u32, now: Duration) {
        if let Some(looked) = self.looked.get_mut(slot as usize) {
            *looked = Some(now);
        }
    }

    /// Step 1. `is_right`: our own clock is right, so that the others' can be known. `watched`: a look within this time
    /// shows whether a member is alive.
    pub(crate) fn unknown(
        &mut self,
        seen: &[Option<SeenLease>],
        is_right: bool,
        watched: Duration,
        now: Duration,
    ) -> Vec<u32> {
        let ago = |at: Duration| now.saturating_sub(at);
        let clocks = self.clocks.filter(|at| ago(*at) < CLOCKS).unwrap_or(now);
        self.clocks = Some(clocks);
        let (mut unknown, mut old) = (Vec::new(), 0);
        for ((slot, looked), seen) in (0..).zip(&self.looked).zip(seen).filter(|((slot, _), _)| *slot != self.slot) {
            let is_old = looked.is_none_or(|at| ago(at) >= watched);
            let clock = seen.as_ref().map(|seen| seen.clock);
            let is_for_clock = ago(clocks) < CLOCKS_FOR || matches!(clock, Some(SeenClock::Unknown(_)));
            if is_old || is_right && is_for_clock {
                unknown.push(slot);
                old += usize::from(is_old);
            }
        }
        (0..old).for_each(|_| self.spend());
        unknown
    }

    /// Step 3.
    pub(crate) fn one_more(&mut self, now: Duration) -> Option<u32> {
        // A round less than that, because the next one would come too late.
        let slot = self.not_since(now.checked_sub(READ.saturating_sub(ROUND))?)?;
        self.admit_more().then_some(slot)
    }

    /// With nothing pending: whether a pass is in progress. `is_used`: a program uses what the others publish.
    pub(crate) fn begin_pass(&mut self, is_used: impl FnOnce() -> bool, now: Duration) -> bool {
        if self.pass.is_some_and(|began| self.not_since(began).is_some()) {
            return true;
        }
        let begins = self.pass.is_none_or(|began| now.saturating_sub(began) >= READ) && is_used();
        if begins {
            self.pass = Some(now);
        }
        begins
    }

    /// The next slot of the pass.
    pub(crate) fn next_of_pass(&mut self) -> Option<u32> {
        let slot = self.not_since(self.pass?)?;
        self.admit_more().then_some(slot)
    }

    /// Takes a file for which no event waits from the share, if at least half of what may be saved up is left.
    fn admit_more(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_more, true);
        (is_first || self.left > self.kept / 2) && self.take()
    }

    /// The slot that was looked at longest ago, if that was before `since`.
    fn not_since(&self, since: Duration) -> Option<u32> {
        let others = (0..).zip(&self.looked).filter(|(slot, _)| *slot != self.slot);
        let (looked, slot) = others.map(|(slot, looked)| (*looked, slot)).min()?;
        looked.is_none_or(|at| at < since).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::fleet::periods::COLLECT_ABOVE;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn no_more_files_are_opened_than_the_share_allows_and_what_was_kept() {
        let mut pace = LeasePace::new(0, 5);
        let mut opened = |at: u64| {
            pace.begin_round(ms(at));
            (0..100).filter(|_| pace.take()).count()
        };
        assert_eq!([opened(0), opened(0), opened(54), opened(55), opened(1000)], [20, 0, 0, 1, 17]);
        assert_eq!([opened(3_600_000), opened(3_600_109)], [20, 2]);
        let mut pace = LeasePace::new(0, 64);
        pace.begin_round(ms(0));
        (0..258).for_each(|_| pace.spend());
        assert!(!pace.take(), "all that was kept");
        pace.begin_round(ms(164));
        assert!(!pace.take(), "and two more");
        pace.begin_round(ms(165));
        assert!(pace.take() && !pace.take());
    }

    #[test]
    fn the_share_and_what_is_not_counted_are_twenty_a_second_at_most() {
        let others = f64::from(COLLECT_ABOVE - 1);
        let rounds = CLOCKS_FOR.div_duration_f64(ROUND);
        assert!(1.0 / SHARE.as_secs_f64() + others * rounds / CLOCKS.as_secs_f64() <= 20.0);
    }

    #[test]
    fn one_more_is_the_one_that_nobody_has_looked_at_for_longest() {
        let mut pace = LeasePace::new(1, 4);
        [(0, 100), (2, 50), (3, 1000)].iter().for_each(|(slot, at)| pace.note_look(*slot, ms(*at)));
        let mut next = |at| {
            let slot = pace.one_more(ms(at));
            slot.into_iter().for_each(|slot| pace.note_look(slot, ms(at)));
            slot
        };
        assert_eq!([next(950), next(951), next(1000), next(1100)], [None, Some(2), None, Some(0)]);
        assert_eq!([next(1899), next(1901), next(1902), next(2001)], [Some(2), Some(3), None, Some(0)]);
        (0..7).for_each(|_| pace.spend());
        pace.begin_round(ms(9000));
        assert_eq!([9000, 9000].map(|at| pace.one_more(ms(at))), [Some(2), None], "the rest is for those that wait");
        assert!(pace.take());
    }

    #[test]
    fn a_pass_looks_at_each_once_and_the_next_one_begins_after_a_second() {
        let mut pace = LeasePace::new(0, 64);
        let mut seen = Vec::new();
        let mut round = |at, is_used| {
            pace.begin_round(ms(at));
            let is_under_way = pace.begin_pass(|| is_used, ms(at));
            let slots: Vec<u32> = std::iter::from_fn(|| {
                let slot = pace.next_of_pass();
                slot.into_iter().for_each(|slot| pace.note_look(slot, ms(at)));
                slot
            })
            .collect();
            seen.push((is_under_way, slots.len()));
        };
        round(0, false);
        round(0, true);
        // The first rounds use up all but the part reserved for other reads.
        [900, 1000].into_iter().for_each(|at| round(at, true));
        (20..50).for_each(|tenth| round(tenth * 100, true));
        assert_eq!(seen[..5], [(false, 0), (true, 63), (false, 0), (true, 63), (true, 38)]);
        let read: usize = seen.iter().map(|(_, read)| read).sum();
        assert!((63 * 3..=128 + 19 * 5).contains(&read), "{seen:?}");
    }

    #[test]
    fn those_of_which_nothing_is_known_are_read_at_once() {
        use crate::tiers::fleet::rule::MemberLease;
        use uuid::Uuid;
        let mut pace = LeasePace::new(0, 5);
        let watched = Duration::from_secs(10);
        let of = |clock| {
            let lease = MemberLease::first(Uuid::nil(), String::new(), 0);
            Some(SeenLease { lease, read: 0, since: ms(0), seen_at: ms(0), after: None, clock })
        };
        let seen = [None, None, of(SeenClock::Unknown(1)), of(SeenClock::Right), of(SeenClock::Off(9, 0))];
        assert_eq!(pace.unknown(&seen, true, watched, ms(0)), [1, 2, 3, 4]);
        (1..5).for_each(|slot| pace.note_look(slot, ms(0)));
        assert_eq!(pace.unknown(&seen, true, watched, ms(1199)), [1, 2, 3, 4], "of whom a lease is read soon");
        assert_eq!(pace.unknown(&seen, true, watched, ms(1200)), [2]);
        assert_eq!(pace.unknown(&seen, false, watched, ms(100)), [0; 0], "nobody's clock can be known");
        (2..5).for_each(|slot| pace.note_look(slot, ms(9000)));
        assert_eq!(pace.unknown(&seen, false, watched, ms(10_000)), [1], "not mounted yet, as of long ago");
        // Leases that are read for their clocks are not counted.
        assert_eq!(std::iter::from_fn(|| pace.take().then_some(())).count(), 20 - 5);
        (1..5).for_each(|slot| pace.note_look(slot, ms(600_000)));
        assert_eq!(pace.unknown(&seen, true, watched, ms(600_000)), [1, 2, 3, 4], "again");
    }
}
