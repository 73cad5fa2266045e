//! Counts the files that the members of a small fleet open, and how long an event waits once no member holds it up any
//! more. The members follow the rules of `step.rs`, without a disk; all clocks agree.

#![allow(clippy::print_stdout, reason = "the counts are for people to see, too")]

use std::collections::VecDeque;
use std::time::Duration;

use uuid::Uuid;

use crate::tiers::fleet::clocks::{LeaseClock, ReadAt};
use crate::tiers::fleet::names::NamesEnd;
use crate::tiers::fleet::pace::LeasePace;
use crate::tiers::fleet::periods::{FleetPeriods, LeaseNews, ROUND};
use crate::tiers::fleet::rule::{self, MemberLease, SeenLease};

/// The members' rounds are not simultaneous.
const FINE: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);
const NONE: Duration = Duration::ZERO;
const SAVES: u32 = 4;
const SIZES: [u32; 4] = [2, 8, 32, 64];
/// Average number of files that a member may open per second.
const OPENS: f64 = 20.0;

/// An event: its stamps, when it was logged and will have been copied, and since when all others admit it.
#[derive(Clone, Copy, Debug)]
struct FewEvent {
    start: u64,
    end: u64,
    logged: Duration,
    copied: Duration,
    free: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Opens {
    own: u64,
    leases: u64,
    names: u64,
}

struct FewMember {
    lease: MemberLease,
    written: Option<Duration>,
    oldest: Option<u64>,
    seen: Vec<Option<SeenLease>>,
    followed: Vec<NamesEnd>,
    pace: LeasePace,
    pending: VecDeque<FewEvent>,
    has_untold: bool,
    is_used: bool,
    next: Duration,
    opens: Opens,
}

struct FewFleet {
    periods: FleetPeriods,
    members: Vec<FewMember>,
    now: Duration,
    /// For each published event: how long nothing had held it up, and how old it was.
    behind: Vec<Duration>,
    age: Vec<Duration>,
}

fn nanos(at: Duration) -> u64 {
    at.as_nanos() as u64
}

impl FewFleet {
    fn new(size: u32) -> FewFleet {
        let now = Duration::from_secs(1000);
        let member = |slot: u32| FewMember {
            lease: MemberLease::first(Uuid::from_u128(u128::from(slot.wrapping_mul(2_654_435_761))), String::new(), 0),
            written: None,
            oldest: None,
            seen: vec![None; size as usize],
            followed: vec![NamesEnd::default(); size as usize],
            pace: LeasePace::new(slot, size),
            pending: VecDeque::new(),
            has_untold: false,
            is_used: false,
            next: now + FINE * (slot * 7 % 5),
            opens: Opens::default(),
        };
        let members = (0..size).map(member).collect();
        FewFleet { periods: FleetPeriods::new(size, false), members, now, behind: Vec::new(), age: Vec::new() }
    }

    /// A fleet in which all have published something, and know each other's clocks.
    fn settled(size: u32) -> FewFleet {
        let mut fleet = FewFleet::new(size);
        (0..size as usize).for_each(|slot| fleet.log(slot, NONE, NONE));
        fleet.run(15 * SECOND);
        assert!(fleet.members.iter().all(|member| member.pending.is_empty()), "{size}");
        (fleet.behind, fleet.age) = Default::default();
        fleet
    }

    /// Logs an event that began this long ago.
    fn log(&mut self, slot: usize, began: Duration, copying: Duration) {
        let (start, end) = (nanos(self.now - began), nanos(self.now));
        let (logged, copied) = (self.now, self.now + copying);
        self.members[slot].pending.push_back(FewEvent { start, end, logged, copied, free: None });
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.tick();
        }
    }

    fn tick(&mut self) {
        for slot in 0..self.members.len() {
            if self.members[slot].next <= self.now {
                self.members[slot].next += ROUND;
                self.members[slot].pace.begin_round(self.now);
                self.renew_lease(slot);
                self.read(slot);
                self.follow(slot);
            }
            self.publish(slot);
        }
        self.note_free();
        self.now += FINE;
    }

    fn renew_lease(&mut self, slot: usize) {
        let (now, member) = (self.now, &mut self.members[slot]);
        let oldest = member.pending.front().map(|pending| pending.end);
        let news = (member.oldest != oldest || member.has_untold).then_some(LeaseNews::WaitedFor);
        if self.periods.is_lease_due(member.written.map(|written| now - written), news) {
            member.opens.own += 1;
            member.pace.spend();
            let lease = &mut member.lease;
            (lease.least, lease.clock) = (oldest.unwrap_or(nanos(now)), LeaseClock::At(nanos(now)));
            (lease.beat, lease.names.len) = (lease.beat + 1, lease.names.len + u64::from(member.has_untold));
            (member.written, member.oldest, member.has_untold) = (Some(now), oldest, false);
        }
    }

    fn read(&mut self, slot: usize) {
        let (now, watched) = (self.now, self.periods.watched);
        let member = &mut self.members[slot];
        if let Some(FewEvent { start, .. }) = member.pending.front().copied() {
            let unknown = member.pace.unknown(&member.seen, true, watched, now);
            unknown.into_iter().for_each(|other| self.read_lease(slot, other));
            self.read_those_before(slot, start);
            while let Some(other) = self.members[slot].pace.one_more(now) {
                self.read_lease(slot, other);
            }
        } else if member.pace.begin_pass(|| member.is_used, now) {
            while let Some(other) = self.members[slot].pace.next_of_pass() {
                self.read_lease(slot, other);
            }
        }
    }

    fn read_those_before(&mut self, slot: usize, start: u64) {
        let mut before = None;
        loop {
            let member = &mut self.members[slot];
            let own = member.lease.member;
            let next = rule::next_to_read(own, slot as u32, &member.seen, Duration::ZERO, start);
            let Some(other) = next.filter(|next| before != Some(*next) && member.pace.take()) else { return };
            self.read_lease(slot, other);
            before = Some(other);
        }
    }

    fn read_lease(&mut self, slot: usize, other: u32) {
        let lease = self.members[other as usize].lease.clone();
        let (uptime, patience, silent) = (self.now, self.periods.patience, self.periods.silent);
        let member = &mut self.members[slot];
        member.opens.leases += 1;
        member.pace.note_look(other, uptime);
        if lease.beat == 0 {
            return;
        }
        let seen = &mut member.seen[other as usize];
        let has_watched = SeenLease::is_watched(seen.as_ref(), uptime, silent);
        let (began, ended) = (nanos(uptime), nanos(uptime));
        SeenLease::renew(
            seen,
            lease,
            ReadAt { began, ended, uptime, has_watched, errors: 0, is_right: true, patience },
        );
    }

    fn follow(&mut self, slot: usize) {
        let FewMember { seen, followed, opens, pace, .. } = &mut self.members[slot];
        for (seen, followed) in seen.iter().zip(followed) {
            let told = seen.as_ref().map_or(*followed, |seen| seen.lease.names);
            if told != *followed {
                *followed = told;
                opens.names += 1;
                pace.spend();
            }
        }
    }

    fn publish(&mut self, slot: usize) {
        let now = self.now;
        let FewMember { pending, seen, lease, has_untold, .. } = &mut self.members[slot];
        if pending.front().is_none_or(|front| front.copied > now) {
            return;
        }
        let gate = rule::gate(lease.member, slot as u32, seen, Duration::ZERO);
        while let Some(gone) = pending.pop_front_if(|front| front.copied <= now && gate.lets_go(front.start)) {
            *has_untold = true;
            // An event that goes together with earlier ones was not looked at.
            self.behind.extend(gone.free.map(|free| now - free.max(gone.copied)));
            self.age.push(now - gone.logged);
        }
    }

    /// Notes which members' oldest event no member holds up any more, as the leases are on the slow tree.
    fn note_free(&mut self) {
        let least = |(_, member): &(usize, &FewMember)| (member.lease.least, member.lease.member);
        let first = self.members.iter().enumerate().min_by_key(least).map(|(slot, _)| slot);
        let of = |but: Option<usize>| {
            self.members.iter().enumerate().filter(|(slot, _)| Some(*slot) != but).map(|member| least(&member)).min()
        };
        let (all, but_first) = (of(None), of(first));
        for (slot, member) in self.members.iter_mut().enumerate() {
            let others = if Some(slot) == first { but_first } else { all };
            if let Some(front) = member.pending.front_mut() {
                let is_free = others.is_none_or(|others| others > (front.start, member.lease.member));
                front.free = front.free.or(is_free.then_some(self.now));
            }
        }
    }

    /// Average opens per second of a member within this time. `each`: called before each moment.
    fn opens(&mut self, time: Duration, mut each: impl FnMut(&mut FewFleet)) -> [f64; 3] {
        self.members.iter_mut().for_each(|member| member.opens = Opens::default());
        let end = self.now + time;
        while self.now < end {
            each(self);
            self.tick();
        }
        let per = self.members.len() as f64 * time.as_secs_f64();
        let sum = |of: fn(&Opens) -> u64| self.members.iter().map(|member| of(&member.opens)).sum::<u64>() as f64 / per;
        [sum(|opens| opens.own), sum(|opens| opens.leases), sum(|opens| opens.names)]
    }

    /// The median and the longest of these times.
    fn spread(mut times: Vec<Duration>) -> [Duration; 2] {
        times.sort_unstable();
        [times[times.len() / 2], times[times.len() - 1]]
    }
}

fn assert_few(what: &str, size: u32, opens: [f64; 3]) {
    let all: f64 = opens.iter().sum();
    let [own, leases, names] = opens;
    println!(
        "{size} members, {what}: {all:.1} opens a second each: {own:.1} own, {leases:.1} leases, {names:.1} names"
    );
    // A member may have saved up a share, or be in debt, when the counting begins.
    assert!(all <= OPENS + 0.1, "{size}, {what}: {opens:?}");
}

#[test]
fn no_member_opens_more_files_than_its_share_whatever_the_fleet_does() {
    for size in SIZES {
        let mut fleet = FewFleet::settled(size);
        assert_few("idle", size, fleet.opens(20 * SECOND, |_| ()));
        fleet.members.iter_mut().for_each(|member| member.is_used = true);
        // Uses up the shares saved until then.
        fleet.run(10 * SECOND);
        assert_few("used", size, fleet.opens(20 * SECOND, |_| ()));

        // All wait for the first one, which has something that takes an hour to copy.
        fleet.log(0, NONE, 3600 * SECOND);
        fleet.run(FINE);
        (1..size as usize).for_each(|slot| fleet.log(slot, NONE, NONE));
        fleet.run(10 * SECOND);
        assert_few("wait for one", size, fleet.opens(20 * SECOND, |_| ()));

        // Each always has something pending, logged in turn with the others' events: nothing goes together.
        let mut fleet = FewFleet::settled(size);
        let busy = |fleet: &mut FewFleet| {
            let is_due = |member: &FewMember| member.next <= fleet.now && member.pending.len() < 10;
            let due: Vec<usize> = (0..size as usize).filter(|slot| is_due(&fleet.members[*slot])).collect();
            due.into_iter().for_each(|slot| fleet.log(slot, NONE, NONE));
        };
        fleet.opens(20 * SECOND, busy);
        fleet.age.clear();
        assert_few("busy", size, fleet.opens(20 * SECOND, busy));
        println!("    {:.2} events a second each", fleet.age.len() as f64 / f64::from(20 * size));
    }
}

/// Each member writes its shard, which takes a while to copy, then one of them the marker.
#[test]
fn a_marker_goes_in_the_round_after_its_data() {
    for size in SIZES {
        let mut fleet = FewFleet::settled(size);
        let (mut behind, marker) = (Vec::new(), size as usize - 1);
        // Programs read through all mounts all the time.
        fleet.members.iter_mut().for_each(|member| member.is_used = true);
        fleet.run(10 * SECOND);
        let mut opens = [0.0; 3];
        for save in 0..SAVES {
            // Copies of equal length, or one takes longer than the others.
            let copying = |slot: u32| SECOND * 5 + SECOND * u32::from(save % 2 == 1 && slot == save % size) * 5;
            (0..size).for_each(|slot| fleet.log(slot as usize, SECOND, copying(slot)));
            fleet.run(SECOND / 10);
            fleet.log(marker, NONE, NONE);
            let mut data = None;
            opens = fleet.opens(60 * SECOND, |fleet| {
                let others = fleet.members.iter().enumerate().filter(|(slot, _)| *slot != marker);
                let is_there = others.map(|(_, member)| member.pending.len()).sum::<usize>() == 0;
                let left = fleet.members[marker].pending.len();
                assert!(left > 0 || is_there, "{size}: early");
                data = data.or((is_there && left < 2).then_some(fleet.now));
                if let Some(data) = data.filter(|_| left == 0 && behind.len() as u32 == save) {
                    behind.push(fleet.now - data);
                }
            });
        }
        assert_eq!(behind.len() as u32, SAVES, "{size}: stuck");
        let behind = FewFleet::spread(behind);
        println!(
            "{size} members: the marker {behind:?} behind its data, {:?}",
            FewFleet::spread(std::mem::take(&mut fleet.behind))
        );
        assert_few("save", size, opens);
        // The lease of the last shard, and the round that reads it.
        assert!(behind[1] <= 3 * ROUND, "{size}: {behind:?}");
    }
}

/// Each member renames something, one right after another: each may go once those before it have gone.
#[test]
fn members_whose_turns_follow_each_other_need_a_round_or_two_each() {
    for size in SIZES {
        let mut fleet = FewFleet::settled(size);
        for slot in 0..size as usize {
            // In a shuffled order.
            let slot = slot * 7 % size as usize;
            fleet.log(slot, NONE, NONE);
            fleet.now += Duration::from_nanos(1);
        }
        let began = fleet.now;
        while fleet.members.iter().any(|member| !member.pending.is_empty()) {
            fleet.tick();
            assert!(fleet.now - began < 2 * size * SECOND, "{size}: stuck");
        }
        let took = fleet.now - began;
        println!("{size} members: one after another in {took:?}");
        assert!(took <= SECOND + 3 * size * ROUND, "{size}: {took:?}");
    }
}
