//! Counts a large fleet's requests to the slow tree, and the delay of a marker behind its data. The members follow the
//! rules of `step.rs` and `collected.rs`, without a disk; all clocks agree.

#![allow(clippy::print_stdout, reason = "the counts are for people to see, too")]

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use uuid::Uuid;

use crate::stats::fleet::{MemberStanding, MemberStatus};
use crate::tiers::fleet::clocks::ReadAt;
use crate::tiers::fleet::collector::CollectorDuty;
use crate::tiers::fleet::pace::LeasePace;
use crate::tiers::fleet::periods::{self, AMONG_THE_SMALLEST, FleetPeriods, LeaseNews, ROUND};
use crate::tiers::fleet::rule::{self, MemberLease, SeenLease};
use crate::tiers::fleet::smallest::{SeenSmallest, SmallestLeases, SmallestReader};

const READ_LEASE: u64 = periods::READ_LEASE as u64;
const WRITE_LEASE: u64 = periods::WRITE_LEASE as u64;
const LOOK: u64 = periods::LOOK as u64;
const WRITE_SMALLEST: u64 = 3;

/// The simulation's step where reads take time.
const FINE: Duration = Duration::from_millis(10);
/// The pause between two rounds if the first took long (`mount/background.rs`).
const BREATH: Duration = Duration::from_millis(10);

/// An event, with its stamps.
#[derive(Clone, Copy, Debug)]
struct Pending {
    start: u64,
    end: u64,
}

struct SimMember {
    lease: MemberLease,
    written: Option<Duration>,
    oldest: Option<u64>,
    duty: CollectorDuty,
    pace: LeasePace,
    seen: Option<SeenSmallest>,
    /// The leases that it has collected.
    leases: Vec<Option<SeenLease>>,
    pending: VecDeque<Pending>,
    published: u64,
    requests: u64,
    /// The requests that open a file.
    opens: u64,
    is_gone: bool,
    /// When its next round begins, or its pending read returns.
    next: Duration,
    /// When the round began in which it is reading.
    reads_since: Option<Duration>,
}

struct SimFleet {
    periods: FleetPeriods,
    members: Vec<SimMember>,
    file: Option<SmallestLeases>,
    now: Duration,
    /// The duration of one read of a lease. Everything else takes no time.
    latency: Duration,
    /// When each published reading was written.
    renewed: Vec<Duration>,
    /// The members that have claimed the file.
    claimed: BTreeSet<usize>,
}

fn at(now: Duration) -> ReadAt {
    let nanos = now.as_nanos() as u64;
    ReadAt {
        began: nanos,
        ended: nanos,
        uptime: now,
        has_watched: true,
        errors: 0,
        is_right: true,
        patience: Duration::ZERO,
    }
}

impl SimMember {
    /// All of them begin by opening a file.
    fn ask(&mut self, requests: u64) {
        self.requests += requests;
        self.opens += 1;
    }
}

impl SimFleet {
    fn new(size: u32) -> SimFleet {
        SimFleet::with_latency(size, Duration::ZERO)
    }

    fn with_latency(size: u32, latency: Duration) -> SimFleet {
        let periods = FleetPeriods::of(size as usize);
        let member = |slot: u32| SimMember {
            // In another order than the slots.
            lease: MemberLease::first(Uuid::from_u128(u128::from(slot.wrapping_mul(2_654_435_761))), String::new(), 0),
            written: None,
            oldest: None,
            duty: CollectorDuty::new(slot, size, periods),
            pace: LeasePace::new(slot, size),
            seen: None,
            leases: Vec::new(),
            pending: VecDeque::new(),
            published: 0,
            requests: 0,
            opens: 0,
            is_gone: false,
            next: Duration::ZERO,
            reads_since: None,
        };
        let members = (0..size).map(member).collect();
        let now = Duration::from_secs(1000);
        SimFleet { periods, members, file: None, now, latency, renewed: Vec::new(), claimed: BTreeSet::new() }
    }

    /// One round of one member, or a part of it: a read returns after its latency.
    fn round(&mut self, at: usize) {
        if self.now < self.members[at].next {
            return;
        }
        let began = match self.members[at].reads_since.take() {
            Some(began) => began,
            None => {
                self.members[at].pace.begin_round(self.now);
                self.renew_lease(at);
                let took = self.latency * self.collect(at);
                if took > Duration::ZERO {
                    (self.members[at].reads_since, self.members[at].next) = (Some(self.now), self.now + took);
                    return;
                }
                self.now
            }
        };
        self.end_pass(at);
        self.read_those_before(at);
        self.publish(at);
        self.members[at].next = (began + ROUND).max(self.now + BREATH.min(self.latency));
    }

    fn renew_lease(&mut self, at: usize) {
        let (now, member) = (self.now, &mut self.members[at]);
        let oldest = member.pending.front().map(|pending| pending.end);
        let is_waited_for = member.seen.as_ref().is_some_and(|seen| seen.has(at as u32));
        let news = if is_waited_for { LeaseNews::WaitedFor } else { LeaseNews::Plain };
        let news = (member.oldest != oldest).then_some(news);
        if self.periods.is_lease_due(member.written.map(|written| now - written), news) {
            (member.lease.least, member.lease.beat) = (oldest.unwrap_or(now.as_nanos() as u64), member.lease.beat + 1);
            (member.written, member.oldest) = (Some(now), oldest);
            member.ask(WRITE_LEASE);
            member.pace.spend();
        }
    }

    fn look(&mut self, slot: usize) {
        let (now, member) = (self.now, &mut self.members[slot]);
        member.ask(LOOK);
        member.pace.spend();
        member.duty.note_look(self.file.as_ref().map(SmallestLeases::head), now);
        if let Some(file) = &self.file {
            SeenSmallest::renew(&mut member.seen, file.clone(), slot as u32, at(now));
        }
    }

    /// Returns how many leases were read.
    fn collect(&mut self, slot: usize) -> u32 {
        let now = self.now;
        let has_pending = !self.members[slot].pending.is_empty();
        if self.members[slot].duty.is_to_look(has_pending, now) {
            self.look(slot);
        }
        if self.members[slot].duty.is_to_claim(now) {
            self.claim(slot);
        }
        self.members[slot].duty.begin_pass(false, now);
        let slots = self.members[slot].duty.next_slots();
        for other in slots.clone() {
            self.read_lease(slot, other as usize);
        }
        slots.len() as u32
    }

    fn end_pass(&mut self, slot: usize) {
        if self.members[slot].duty.has_read_all().is_some() {
            self.look(slot);
            let member = &mut self.members[slot];
            if member.duty.end_pass().is_some_and(|pass| pass.is_for_file) {
                self.file = Some(SmallestLeases::of(&member.leases, 0, member.duty.next_round(), slot as u32));
                member.ask(WRITE_SMALLEST);
                member.duty.note_written(self.now);
                self.renewed.push(self.now);
                self.look(slot);
            }
        }
    }

    fn claim(&mut self, slot: usize) {
        let member = &mut self.members[slot];
        member.duty.note_claim(self.now);
        member.ask(WRITE_SMALLEST);
        let known = member.seen.as_ref().map(|seen| &seen.smallest);
        self.file = Some(SmallestLeases::again(known, member.duty.next_round(), Some(slot as u32)));
        self.claimed.insert(slot);
    }

    fn read_lease(&mut self, slot: usize, other: usize) {
        let (lease, size) = (self.members[other].lease.clone(), self.members.len());
        let member = &mut self.members[slot];
        member.ask(READ_LEASE);
        member.leases.resize(size, None);
        let seen = &mut member.leases[other];
        let has_watched = SeenLease::is_watched(seen.as_ref(), self.now, self.periods.silent);
        SeenLease::renew(seen, lease, ReadAt { has_watched, ..at(self.now) });
    }

    fn reader(&self, slot: usize) -> SmallestReader<'_> {
        let SimMember { lease, seen, leases, .. } = &self.members[slot];
        SmallestReader { own: lease.member, slot: slot as u32, seen: seen.as_ref(), leases, errors: 0 }
    }

    fn read_those_before(&mut self, slot: usize) {
        let mut before = None;
        loop {
            let start = self.members[slot].pending.front().map(|pending| pending.start);
            let next = start.and_then(|start| self.reader(slot).next_to_read(start));
            let member = &mut self.members[slot];
            let Some(other) = next.filter(|next| Some(*next) != before && member.pace.take()) else { return };
            self.read_lease(slot, other as usize);
            before = Some(other);
        }
    }

    fn publish(&mut self, slot: usize) {
        if self.members[slot].pending.is_empty() {
            return;
        }
        let gate = self.reader(slot).gate();
        let member = &mut self.members[slot];
        while member.pending.pop_front_if(|pending| gate.lets_go(pending.start)).is_some() {
            member.published += 1;
        }
    }

    /// Logs an event.
    fn log(&mut self, slot: usize, start: u64) {
        let end = self.now.as_nanos() as u64;
        self.members[slot].pending.push_back(Pending { start, end });
    }

    fn rounds(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.all_once();
        }
    }

    fn all_once(&mut self) {
        for slot in 0..self.members.len() {
            if !self.members[slot].is_gone {
                self.round(slot);
            }
        }
        self.now += if self.latency > Duration::ZERO { FINE } else { ROUND };
    }

    fn collectors(&self) -> Vec<usize> {
        let collects = |slot: &usize| !self.members[*slot].is_gone && self.members[*slot].duty.is_collector();
        (0..self.members.len()).filter(collects).collect()
    }

    /// The requests to the slow tree within some periods: by the collector, by a member whose lease no member waits
    /// for, and by all.
    fn requests(&mut self, periods: u32, mut before_each: impl FnMut(&mut SimFleet)) -> Requests {
        self.members.iter_mut().for_each(|member| (member.requests, member.opens) = (0, 0));
        let (began, end) = (self.now, self.now + periods * self.periods.period);
        while self.now < end {
            before_each(self);
            self.all_once();
        }
        let collectors = self.collectors();
        assert_eq!(collectors.len(), 1, "{collectors:?}");
        let plain = self.members.iter().enumerate().filter(|(slot, _)| *slot != collectors[0]);
        let mut plain: Vec<u64> = plain.map(|(_, member)| member.requests / u64::from(periods)).collect();
        plain.sort_unstable();
        let all: u64 = self.members.iter().map(|member| member.requests).sum();
        let opens: u64 = self.members.iter().map(|member| member.opens).sum();
        let time = (self.now - began).as_millis() as u64;
        Requests {
            collector: self.members[collectors[0]].requests / u64::from(periods),
            plain: plain[plain.len() / 4],
            all_per_second: all * 1000 / time,
            opens_each: opens as f64 * 1000.0 / (time * self.members.len() as u64) as f64,
        }
    }
}

/// Requests per period, and of all members per second.
#[derive(Debug)]
struct Requests {
    collector: u64,
    plain: u64,
    all_per_second: u64,
    /// Average opens of a member per second.
    opens_each: f64,
}

const SIZES: [u32; 6] = [65, 200, 512, 1000, 1024, 4096];
/// Limits that do not depend on the number of members: all with nothing pending, and all busy. A fleet of 64 in which
/// each reads all leases ten times a second would send 80,000.
const ALL_IDLE: u64 = 2000;
const ALL_BUSY: u64 = 8000;

#[test]
fn the_requests_of_a_member_and_of_all_do_not_grow_with_the_fleet() {
    for size in SIZES {
        let mut fleet = SimFleet::new(size);
        fleet.rounds(3 * fleet.periods.period);
        let idle = fleet.requests(3, |_| ());
        // Each has another event pending in each round, so each lease is news.
        let busy = fleet.requests(3, |fleet| {
            let start = fleet.now.as_nanos() as u64;
            fleet.members.iter_mut().for_each(|member| member.pending.clear());
            (0..size as usize).for_each(|slot| fleet.log(slot, start));
        });
        println!("{size} members, {:?}: {idle:?}, busy {busy:?}", fleet.periods.period);
        let leases = READ_LEASE * u64::from(size);
        // A lease and a look, or four of each; one more because a period does not begin with the counting.
        assert!(idle.plain <= 2 * (WRITE_LEASE + LOOK) && busy.plain <= 5 * (WRITE_LEASE + LOOK), "{size}");
        assert!(idle.collector >= leases * 3 / 4, "{size}");
        // Its own lease and looks, and one pass in a period.
        for collector in [idle.collector, busy.collector] {
            assert!(collector <= leases * 11 / 10 + 50, "{size}: {collector}");
        }
        assert!(idle.opens_each <= 20.0 && busy.opens_each <= 20.0, "{size}: {idle:?}, {busy:?}");
        // What `dlio-fs doctor` reports.
        let (told_idle, told_busy) = fleet.periods.requests(size);
        for (told, counted) in [(told_idle, idle.all_per_second), (told_busy, busy.all_per_second)] {
            assert!(told * 2 > counted && told < counted * 2, "{size}: {told} are told, {counted} were counted");
        }
        assert!(idle.all_per_second <= ALL_IDLE && busy.all_per_second <= ALL_BUSY, "{size}");
        // The reference allows each member a small write a second, and the collector two requests for each member.
        let allowed = 2 * 1000 * u64::from(size) / fleet.periods.period.as_millis() as u64;
        assert!(idle.collector * 1000 / fleet.periods.period.as_millis() as u64 <= allowed + 50, "{size}");
    }
}

/// Each member writes its shard, then one of them the marker.
#[test]
fn a_marker_comes_a_few_periods_after_its_data() {
    for size in SIZES {
        let mut fleet = SimFleet::new(size);
        let period = fleet.periods.period;
        fleet.rounds(3 * period);
        let start = fleet.now.as_nanos() as u64;
        fleet.rounds(ROUND);
        // All were written at the same time.
        (0..size as usize).for_each(|slot| fleet.log(slot, start - u64::from(size - slot as u32)));
        fleet.rounds(ROUND);
        let start = fleet.now.as_nanos() as u64;
        let marker = 7;
        fleet.log(marker, start);
        let mut data = None;
        let began = fleet.now;
        while fleet.members[marker].published < 2 {
            fleet.all_once();
            let is_there = fleet.members.iter().all(|member| member.published > 0);
            data = data.or_else(|| is_there.then_some(fleet.now));
            assert!(fleet.members[marker].published < 2 || is_there, "{size}: early");
            assert!(fleet.now - began < 20 * period, "{size}: stuck");
        }
        let behind = fleet.now - data.unwrap_or(fleet.now);
        println!(
            "{size} members: {behind:?} behind its data, {:.1} periods",
            behind.as_secs_f64() / period.as_secs_f64()
        );
        // The lease of the last shard, the current pass, a whole one, and a look.
        assert!(behind <= 3 * period + 4 * ROUND, "{size}: {behind:?}");
    }
}

/// Each member renames something, one right after another: each may go once those before it have gone. Members among
/// the smallest need no new file for that.
#[test]
fn members_whose_turns_follow_each_other_do_not_wait_a_period_each() {
    for size in [65, 200, 1024] {
        let mut fleet = SimFleet::new(size);
        let period = fleet.periods.period;
        fleet.rounds(3 * period);
        let start = fleet.now.as_nanos() as u64;
        for slot in 0..size as usize {
            // In a shuffled order.
            let at = start + (slot * 7 % size as usize) as u64;
            fleet.members[slot].pending.push_back(Pending { start: at, end: at });
        }
        let began = fleet.now;
        while fleet.members.iter().any(|member| member.published == 0) {
            fleet.all_once();
            assert!(fleet.now - began < size * period, "{size}");
        }
        let took = fleet.now - began;
        let files = size.div_ceil(AMONG_THE_SMALLEST / 2) + 1;
        println!("{size} members: one after another in {took:?}");
        assert!(took <= 3 * files * period + 3 * size * ROUND, "{size}: {took:?}");
    }
}

/// For every collector that may be gone, together with others.
#[test]
fn another_member_soon_collects_in_the_place_of_one_that_is_gone() {
    for size in [65, 512] {
        let mut fleet = SimFleet::new(size);
        let period = fleet.periods.period;
        fleet.rounds(3 * period);
        for gone in 0..3 {
            let before = fleet.collectors();
            assert_eq!(before.len(), 1, "{before:?}");
            fleet.members[before[0]].is_gone = true;
            // The members with the first turns are gone, too.
            for slot in (0..size as usize).filter(|slot| slot % 16 < 5 * gone) {
                fleet.members[slot].is_gone = true;
            }
            fleet.claimed.clear();
            // Three periods, and the turns of all sixteen; the next look shows the claim, and then all leases are read.
            fleet.rounds((3 + 8 + 3) * period);
            let after = fleet.collectors();
            assert_eq!(after.len(), 1, "{after:?}");
            assert!(fleet.file.as_ref().is_some_and(|file| file.by == Some(after[0] as u32)));
            println!("{size} members: {:?} claimed it", fleet.claimed);
            assert!(fleet.claimed.len() <= 3, "{:?}", fleet.claimed);
        }
    }
}

/// However long a read of a lease takes: no member gives the file up while its collector is reading, so each pass ends
/// with a new file, and markers arrive.
#[test]
fn the_file_is_renewed_and_markers_come_however_long_a_read_takes() {
    for (size, latency) in [65, 200, 1024].into_iter().flat_map(|size| [2, 8, 30].map(|latency| (size, latency))) {
        let mut fleet = SimFleet::with_latency(size, Duration::from_millis(latency));
        let period = fleet.periods.period;
        // Its reads, the least time between two of its rounds, and the error of looking at the clock so seldom.
        let rounds = size.div_ceil(fleet.periods.next_slots(0, size).len() as u32);
        let pass = (fleet.latency * size + rounds * 2 * FINE).max(rounds * ROUND).max(period) + period / 4;
        let of = format!("{size} members, {latency} ms a read, a pass in {pass:?}");
        // The first claim, and two whole passes.
        fleet.rounds(period + 2 * pass);
        fleet.renewed.clear();
        let (claimed, began) = (std::mem::take(&mut fleet.claimed), fleet.now);
        let start = began.as_nanos() as u64;
        (0..size as usize).for_each(|slot| fleet.log(slot, start - u64::from(size - slot as u32)));
        fleet.log(7, start);
        fleet.rounds(6 * pass);
        let unpublished = fleet.members.iter().filter(|member| !member.pending.is_empty()).count();
        println!("{of}: renewed after {:?}", fleet.renewed.iter().map(|at| *at - began).collect::<Vec<_>>());
        assert_eq!(unpublished, 0, "{of}");
        assert!(fleet.renewed.len() >= 5, "{of}: {:?}", fleet.renewed);
        assert_eq!(fleet.collectors().len(), 1, "{of}");
        let others: Vec<_> = fleet.claimed.difference(&claimed).collect();
        assert!(others.is_empty(), "{of}: {others:?} claimed it, too");
    }
}

/// Also a member that is read late in a pass, and if a pass takes longer than a period.
#[test]
fn the_collector_tells_which_member_is_silent() {
    for slot in [3, 500, 1000] {
        let mut fleet = SimFleet::with_latency(1024, Duration::from_millis(8));
        let silent = fleet.periods.silent;
        fleet.rounds(silent);
        fleet.members[slot].is_gone = true;
        // Until it is silent, and the pass after that.
        fleet.rounds(silent + 5 * fleet.periods.period);
        let collector = fleet.collectors()[0];
        assert_ne!(collector, slot);
        let (asked, leases) = (fleet.now.as_nanos() as u64, &fleet.members[collector].leases);
        let status = rule::fleet_status("job", leases, Duration::ZERO, asked, None);
        let is_silent = |member: &&MemberStatus| member.standing == MemberStanding::Silent;
        let silent: Vec<u32> = status.members.iter().filter(is_silent).map(|member| member.slot).collect();
        assert_eq!(silent, [slot as u32]);
    }
}
