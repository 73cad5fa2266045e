//! How often a member of a fleet writes and reads on the slow tree, and after which silence it is given up. All these
//! times depend on each other, so they are defined together here. Pure.
//!
//! In a small fleet each member reads the other leases itself, limited per second (`pace.rs`). In a larger one it would
//! read each too seldom, so one member collects them ([`COLLECT_ABOVE`], `smallest.rs`), and all periods grow with the
//! number of members, so that the slow tree gets no more requests from 4,096 members than from 200: the period is 5 ms
//! for each member, which is also the cost of an open and a read on a slow tier of 2 ms for each request. The longer
//! times grow once the period exceeds 5 s, which is beyond 1,000 members.

use std::ops::Range;
use std::time::Duration;

/// Above this many members, one of them reads the leases of all.
pub(crate) const COLLECT_ABOVE: u32 = 64;

/// The shortest time between two rounds of a member's work for the fleet.
pub(crate) const ROUND: Duration = Duration::from_millis(100);

/// The period of a fleet in which each member reads all leases.
const PERIOD_LEAST: Duration = Duration::from_secs(1);
/// What each member adds to it: two requests of 2 ms, and a reserve.
const PERIOD_EACH: Duration = Duration::from_millis(5);
/// What each member adds to the time between two questions about all: half of the share of `pace.rs`.
const QUESTION_EACH: Duration = Duration::from_millis(100);
/// Up to this period the longer times are constant.
const PERIOD_PLAIN: Duration = Duration::from_secs(5);
/// Where leases are collected, a member with something pending does this many times per period what others do once.
const BUSY_TIMES: u32 = 4;

/// Requests to the slow tree; an open by name is one, a close is none. Two read a lease; it is written after it was
/// read. A look at the smallest leases is an open and a read.
pub(crate) const READ_LEASE: u32 = 2;
pub(crate) const WRITE_LEASE: u32 = 4;
pub(crate) const LOOK: u32 = 2;
/// How many leases a member of a small fleet reads per second, at most (`pace.rs`).
const LOOKS_EACH: f64 = 18.0;
/// How many members at most write their leases for others that read them at once.
pub(crate) const AMONG_THE_SMALLEST: u32 = 40;

/// What a lease has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseNews {
    Plain,
    /// Others read it to see whether they may go on: in a small fleet each of them; in a large one, if it is among the
    /// smallest.
    WaitedFor,
}

/// The times of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FleetPeriods {
    /// A lease is written at least this often. Where the leases are collected, so are the smallest, and a member with
    /// nothing pending reads them this often.
    pub(crate) period: Duration,
    /// The shortest time between two leases of a member for which no member waits, and between two looks at the
    /// smallest.
    pub(crate) busy: Duration,
    /// A member that could not write its own lease for this long publishes nothing.
    pub(crate) own_lease_max: Duration,
    /// A member whose lease has not changed for this long, by the reader's own clock, is reported.
    pub(crate) silent: Duration,
    /// A reader that has looked within this time would have seen an alive member's lease change.
    pub(crate) watched: Duration,
    /// A member to be forgotten must be silent for this long.
    pub(crate) forget: Duration,
    /// By then every member could say in its lease that it has nothing pending, and another could read it.
    pub(crate) answer: Duration,
    /// Between two automatic questions about all members. Each is answered by reading all leases at once.
    pub(crate) question: Duration,
    /// How long an unchanged lease leaves its member's clock unknown (`clocks.rs`). Where the leases are collected,
    /// most are read late, and no reader waits for a better reading.
    pub(crate) patience: Duration,
    /// How many leases are collected in one round, so that the requests are spread over the period.
    slots_at_once: u32,
}

impl FleetPeriods {
    /// The times of a fleet of this size. `is_collected`: one of the members reads the leases of all.
    pub(crate) fn new(size: u32, is_collected: bool) -> FleetPeriods {
        let period = if is_collected { (PERIOD_EACH * size).max(PERIOD_LEAST) } else { PERIOD_LEAST };
        let longer =
            |plain: u64| (period * plain as u32 / PERIOD_PLAIN.as_secs() as u32).max(Duration::from_secs(plain));
        let rounds = (period.as_nanos() / ROUND.as_nanos()) as u32;
        FleetPeriods {
            period,
            busy: if is_collected { period / BUSY_TIMES } else { Duration::ZERO },
            own_lease_max: longer(20),
            silent: longer(30),
            watched: longer(10),
            forget: longer(60),
            // A pass over all leases may be in progress, and another one follows it.
            answer: period * if is_collected { 6 } else { 3 },
            question: if is_collected { Duration::ZERO } else { QUESTION_EACH * size },
            patience: if is_collected { Duration::ZERO } else { period * 3 },
            slots_at_once: size.div_ceil(rounds),
        }
    }

    /// The times that every member of a fleet of this size uses, and that readers from outside rely on.
    pub(crate) fn of(size: usize) -> FleetPeriods {
        let size = u32::try_from(size).unwrap_or(u32::MAX / 1000);
        FleetPeriods::new(size, size > COLLECT_ABOVE)
    }

    /// About how many requests per second all members of a fleet of this size send for their leases: with nothing
    /// pending, and with all of them busy.
    pub(crate) fn requests(&self, size: u32) -> (u64, u64) {
        let (members, rounds) = (f64::from(size), 1.0 / ROUND.as_secs_f64());
        let (read, write, look) = (f64::from(READ_LEASE), f64::from(WRITE_LEASE), f64::from(LOOK));
        if self.busy.is_zero() {
            let others = members - 1.0;
            let looks = (rounds * others).min(LOOKS_EACH);
            return ((members * write) as u64, (members * (rounds * write + looks * read)) as u64);
        }
        let passes = 1.0 / self.period.as_secs_f64();
        let times = f64::from(BUSY_TIMES) * passes;
        let waited_for = f64::from(AMONG_THE_SMALLEST.min(size)) * write * (rounds - times).max(0.0);
        let idle = members * passes * (write + look + read);
        (idle as u64, (members * (times * (write + look) + passes * read) + waited_for) as u64)
    }

    /// Whether a lease is to be written, `ago` after the last one. `news`: it says something new.
    pub(crate) fn is_lease_due(&self, ago: Option<Duration>, news: Option<LeaseNews>) -> bool {
        let least = match news {
            None => self.period,
            Some(LeaseNews::Plain) => self.busy,
            Some(LeaseNews::WaitedFor) => Duration::ZERO,
        };
        ago.is_none_or(|ago| ago >= least)
    }

    /// The slots to read in the next round, if those before `next` were read.
    pub(crate) fn next_slots(&self, next: u32, size: u32) -> Range<u32> {
        next..next.saturating_add(self.slots_at_once).min(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FLEET_MAX;

    fn all() -> impl Iterator<Item = (u32, bool, FleetPeriods)> {
        let both = |size| [(size, false), (size, true)];
        (1..=FLEET_MAX)
            .flat_map(both)
            // A small fleet with a collector is only for tests.
            .filter(|(size, is_collected)| *is_collected || *size <= COLLECT_ABOVE)
            .map(|(size, is_collected)| (size, is_collected, FleetPeriods::new(size, is_collected)))
    }

    /// A member is reported and forgotten only after it had many occasions to write, and never while it may still
    /// publish.
    #[test]
    fn the_times_of_a_fleet_fit_each_other_whatever_its_size() {
        for (size, is_collected, times) in all() {
            let FleetPeriods { period, busy, own_lease_max, silent, watched, forget, .. } = times;
            let of = format!("{size}, {is_collected}: {times:?}");
            assert!(busy < period, "{of}");
            // Three leases in a row may fail.
            assert!(4 * period <= own_lease_max, "{of}");
            // What a member had begun when its lease became too old has two thirds of the time to end.
            assert!(3 * own_lease_max <= forget, "{of}");
            // By then an alive member has written a lease, and a collector has read and written it, twice, and every
            // member has looked.
            assert!(6 * period <= silent && own_lease_max < silent && silent < forget, "{of}");
            // A member that looks once in a period always watches.
            assert!(2 * period <= watched && 2 * watched < silent, "{of}");
            // A lease, the current pass, and a whole one, each of them twice as long as it should be.
            assert!(!is_collected || period + 2 * (2 * period) + busy <= times.answer, "{of}");
            let rounds = size.div_ceil(times.slots_at_once);
            assert!(rounds * ROUND <= period && times.next_slots(0, size).len() <= 22, "{of}");
        }
    }

    #[test]
    fn a_lease_for_which_others_wait_is_written_at_once() {
        let (times, ago) = (FleetPeriods::of(4096), Some(Duration::from_secs(1)));
        let is_due = |news| times.is_lease_due(ago, news);
        assert_eq!([None, Some(LeaseNews::Plain), Some(LeaseNews::WaitedFor)].map(is_due), [false, false, true]);
        assert!(FleetPeriods::of(64).is_lease_due(ago, None));
    }

    #[test]
    fn up_to_a_thousand_members_only_the_period_grows() {
        for size in [1, 64, 65, 200, 1000] {
            let times = FleetPeriods::of(size);
            let longer = [times.own_lease_max, times.silent, times.watched, times.forget].map(|time| time.as_secs());
            assert_eq!(longer, [20, 30, 10, 60], "{size}");
        }
        assert_eq!([64, 65, 200, 400].map(|size| FleetPeriods::of(size).period.as_secs()), [1, 1, 1, 2]);
        let most = FleetPeriods::of(4096);
        assert_eq!((most.period.as_millis(), most.own_lease_max.as_secs(), most.forget.as_secs()), (20_480, 81, 245));
    }
}
