//! The rule by which several daemons will publish over one slow tree, held against random schedules. Pure: it was written
//! before the engine knows of a fleet, and each change of the rule has to pass here first.
//!
//! What it promises: what was answered anywhere before an operation began is on the slow tree before that operation is.
//!
//! 1. Each event has `start`, the node's clock when the operation began, and `end`, the clock when it was logged. `end` is
//!    stamped together with the place in the log. No stamp of either kind is smaller than one before it: a clock set back
//!    between the two would leave an `end` in front of its `start`, and two such events wait for each other.
//! 2. An operation is answered when the node's clock is past `end` by more than twice the largest clock error of all.
//! 3. A node's *lease* is the `end` of its oldest event that is not durable on the slow tree, or the clock if there is
//!    none. It is read together with the log, and written after the slow tree was synced.
//! 4. An event may be published once the lease of every other member is larger than the event's `start`; equal ones are
//!    told apart by the members' numbers. That is asked for each event by itself: a batch is cut at the first one that
//!    has to wait.
//! 5. A member with nothing left to publish may leave. From then on its lease counts as the reader's clock when it began to
//!    read, less twice the largest error: whoever takes its place, the same member or another one, writes a lease before it
//!    logs anything, so its stamps are larger. None is smaller than the last lease of that place, whoever has it: so a lease
//!    never goes back, and an old one only delays.
//! 6. Of many members any may collect the leases, and write the smallest of them, two at least, with what each counts as for
//!    the collector (5.) when it read it. A reader waits for those that are not its own, as they are written; it may read
//!    the leases of these members again itself, but never goes beyond the largest one that is written: the others may be as
//!    far. As long as a place was never taken, nothing goes. Several may collect at the same time, and what they write may
//!    be old.
//!
//! `LAPSES` leaves one sentence out each, and a schedule is found that goes wrong. One that is too rare to be found is told by
//! itself.

#![allow(clippy::unwrap_used)]

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

type Time = i64;

/// The largest clock error of all members.
const ERROR: Time = 6;

/// What is left out of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lapse {
    Nothing,
    NoCommitWait,
    /// The wait is twice the node's own clock error: others may be further off.
    OwnErrorOnly,
    EndStampedLater,
    StampsGoBack,
    StartIsNoFloor,
    LeaseBeforeSync,
    BatchIsOneEvent,
    OnlyFirstOfBatch,
    EqualStampsWait,
    MembersByListing,
    LeftIsNoMember,
    LeaseAfterReturn,
    LeaseGoesBack,
    OneSmallest,
    OneLeftOut,
    NeverTakenIsNobody,
    LeftAsOfReader,
    LeftAsOfWrite,
    BeyondTheWritten,
}

/// Each of them, and what goes wrong.
const LAPSES: [(Lapse, Wrong); 18] = [
    (Lapse::NoCommitWait, Wrong::Early),
    (Lapse::OwnErrorOnly, Wrong::Early),
    (Lapse::EndStampedLater, Wrong::Early),
    (Lapse::StampsGoBack, Wrong::Early),
    (Lapse::StartIsNoFloor, Wrong::Stuck),
    (Lapse::LeaseBeforeSync, Wrong::Early),
    (Lapse::BatchIsOneEvent, Wrong::Stuck),
    (Lapse::OnlyFirstOfBatch, Wrong::Early),
    (Lapse::EqualStampsWait, Wrong::Stuck),
    (Lapse::MembersByListing, Wrong::Early),
    (Lapse::LeftIsNoMember, Wrong::Early),
    (Lapse::LeaseAfterReturn, Wrong::Early),
    (Lapse::OneSmallest, Wrong::Stuck),
    (Lapse::OneLeftOut, Wrong::Early),
    (Lapse::NeverTakenIsNobody, Wrong::Early),
    (Lapse::LeftAsOfReader, Wrong::Early),
    (Lapse::LeftAsOfWrite, Wrong::Early),
    (Lapse::BeyondTheWritten, Wrong::Early),
];

/// Those of the sixth sentence.
const OF_COLLECTING: [Lapse; 6] = [
    Lapse::OneSmallest,
    Lapse::OneLeftOut,
    Lapse::NeverTakenIsNobody,
    Lapse::LeftAsOfReader,
    Lapse::LeftAsOfWrite,
    Lapse::BeyondTheWritten,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// Something is on the slow tree before what was answered before it began.
    Early,
    /// Events stay for ever.
    Stuck,
}

/// An operation that changes something. Moments are of no clock, stamps of its node's.
#[derive(Debug)]
struct Operation {
    began: Time,
    start: Time,
    end: Option<Time>,
    answered: Option<Time>,
    /// A rename right behind the content that it is about: one batch with it.
    joins: bool,
}

#[derive(Debug)]
struct Node {
    /// How far its clock is off, and may be.
    offset: Time,
    error: Time,
    /// No stamp is smaller.
    floor: Time,
    /// Operations that have begun, and those that were logged, in the order of the log.
    begun: Vec<Operation>,
    log: Vec<Operation>,
    /// How many of the log are on the slow tree, and durable there.
    applied: usize,
    durable: usize,
    lease: Lease,
    /// It was unmounted, or nobody has taken its place yet.
    is_away: bool,
    is_taken: bool,
    /// The leases of all as it last read them, and its clock then.
    seen: Vec<Option<(Lease, Time)>>,
    /// The smallest that it is about to write, and those that it read last, with its clock then.
    collected: SmallestLeases,
    read: Option<(SmallestLeases, Time)>,
    /// The members that it knows of.
    knows: Vec<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    least: Time,
    has_left: bool,
    /// Nobody has taken the place yet.
    is_nobodys: bool,
}

impl Lease {
    /// For one who began to read it at this moment of its clock.
    fn least(self, read: Time, lapse: Lapse) -> Time {
        match (self.has_left, lapse) {
            (false, _) => self.least,
            (true, Lapse::LeftIsNoMember) => Time::MAX,
            (true, _) => self.least.max(read - 2 * ERROR),
        }
    }
}

/// A lease as a collector has written it: what it counts as, and its member.
#[derive(Clone, Copy, Debug)]
struct Smallest {
    least: Time,
    member: usize,
    has_left: bool,
}

/// The smallest first. `None`: nothing may go.
type SmallestLeases = Option<Vec<Smallest>>;

struct Fleet {
    lapse: Lapse,
    now: Time,
    nodes: Vec<Node>,
    /// The members read these instead of the leases of all.
    smallest: Option<SmallestLeases>,
    dice: Xoshiro256PlusPlus,
}

impl Fleet {
    fn new(lapse: Lapse, members: usize, seed: u64) -> Fleet {
        let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
        let collects = OF_COLLECTING.contains(&lapse) || dice.random_bool(0.4);
        let nodes = (0..members).map(|_| {
            let is_taken = !collects || dice.random_bool(0.8);
            let error = if dice.random_bool(0.5) { ERROR } else { 1 };
            Node {
                offset: dice.random_range(-error..=error),
                error,
                floor: 0,
                begun: Vec::new(),
                log: Vec::new(),
                applied: 0,
                durable: 0,
                lease: Lease { least: 0, has_left: false, is_nobodys: !is_taken },
                is_away: !is_taken,
                is_taken,
                seen: vec![None; members],
                collected: None,
                read: None,
                knows: vec![lapse != Lapse::MembersByListing; members],
            }
        });
        let nodes = nodes.collect();
        Fleet { lapse, now: 100, nodes, smallest: collects.then_some(None), dice }
    }

    fn clock(&self, node: usize) -> Time {
        let Node { offset, floor, .. } = self.nodes[node];
        let clock = self.now + offset;
        if self.lapse == Lapse::StampsGoBack { clock } else { clock.max(floor) }
    }

    fn stamp(&mut self, node: usize) -> Time {
        let stamp = self.clock(node);
        self.nodes[node].floor = stamp;
        stamp
    }

    fn begin(&mut self, node: usize) {
        let (began, start) =
            (self.now, if self.lapse == Lapse::StartIsNoFloor { self.clock(node) } else { self.stamp(node) });
        // Content that was answered may be renamed next.
        let behind_content = self.nodes[node].begun.is_empty()
            && self.nodes[node].log.last().is_some_and(|last| last.answered.is_some() && !last.joins);
        let joins = behind_content && self.dice.random_bool(0.5);
        self.nodes[node].begun.push(Operation { began, start, end: None, answered: None, joins });
    }

    /// Logs an operation that has begun, or with one lapse: stamps one that was logged.
    fn commit(&mut self, node: usize) {
        let late = self.lapse == Lapse::EndStampedLater;
        if late && self.dice.random_bool(0.5) {
            let end = self.stamp(node);
            let mut unstamped: Vec<_> = self.nodes[node].log.iter_mut().filter(|one| one.end.is_none()).collect();
            let count = unstamped.len();
            if count > 0 {
                unstamped[self.dice.random_range(0..count)].end = Some(end);
            }
            return;
        }
        let count = self.nodes[node].begun.len();
        if count == 0 {
            return;
        }
        let mut operation = {
            let at = self.dice.random_range(0..count);
            self.nodes[node].begun.swap_remove(at)
        };
        operation.end = (!late).then(|| self.stamp(node));
        self.nodes[node].log.push(operation);
    }

    fn answer(&mut self, node: usize) {
        let (now, clock) = (self.now, self.clock(node));
        let wait = match self.lapse {
            Lapse::NoCommitWait => -1,
            Lapse::OwnErrorOnly => 2 * self.nodes[node].error,
            _ => 2 * ERROR,
        };
        let ready = |operation: &&mut Operation| {
            operation.answered.is_none() && operation.end.is_some_and(|end| clock > end + wait)
        };
        let answered = self.nodes[node].log.iter_mut().find(ready);
        answered.into_iter().for_each(|operation| operation.answered = Some(now));
    }

    /// Whether the leases that `node` knows let an event with this `start` go.
    fn lets_go(&self, node: usize, start: Time) -> bool {
        let is_larger = |lease: (Time, usize)| match self.lapse {
            Lapse::EqualStampsWait => lease.0 > start,
            _ => lease > (start, node),
        };
        let Node { seen, knows, read, .. } = &self.nodes[node];
        if self.smallest.is_some() {
            let Some((Some(smallest), read)) = read else { return false };
            let goes = |one: &Smallest| {
                let Smallest { least, member, has_left } = *one;
                let is_moved = has_left && self.lapse == Lapse::LeftAsOfReader;
                let again = seen[member].map_or(0, |(lease, read)| lease.least(read, self.lapse));
                is_larger((if is_moved { least.max(read - 2 * ERROR) } else { least }.max(again), member))
            };
            let others = || smallest.iter().filter(|one| one.member != node || self.lapse == Lapse::OneSmallest);
            let largest = smallest.last().filter(|_| self.lapse != Lapse::BeyondTheWritten);
            return others().all(goes) && largest.is_none_or(|one| is_larger((one.least, one.member)));
        }
        let least = |member: usize| seen[member].map_or(0, |(lease, read)| lease.least(read, self.lapse));
        (0..seen.len())
            .filter(|member| *member != node && knows[*member])
            .all(|member| is_larger((least(member), member)))
    }

    /// The next batch, as far as it may go.
    fn publish(&mut self, node: usize) {
        let Node { log, applied, .. } = &self.nodes[node];
        let next = &log[*applied..];
        let batch =
            if next.get(1).is_some_and(|second| second.joins) { &next[..2] } else { &next[..next.len().min(1)] };
        let go = batch.iter().take_while(|operation| self.lets_go(node, operation.start)).count();
        let go = match self.lapse {
            Lapse::BatchIsOneEvent if go < batch.len() => 0,
            Lapse::OnlyFirstOfBatch if go > 0 => batch.len(),
            _ => go,
        };
        self.nodes[node].applied += go;
    }

    /// What was published becomes durable, in its order.
    fn sync(&mut self, node: usize) -> Result<(), Wrong> {
        let Node { durable, applied, .. } = self.nodes[node];
        for at in durable..applied {
            let began = self.nodes[node].log[at].began;
            let is_late = |operation: &Operation| operation.answered.is_some_and(|answered| answered < began);
            if self.nodes.iter().any(|other| other.log[other.durable..].iter().any(is_late)) {
                return Err(Wrong::Early);
            }
            self.nodes[node].durable = at + 1;
        }
        Ok(())
    }

    fn write_lease(&mut self, node: usize) {
        let clock = self.stamp(node);
        let Node { log, durable, applied, .. } = &self.nodes[node];
        let published = if self.lapse == Lapse::LeaseBeforeSync { *applied } else { *durable };
        let oldest = log.get(published).and_then(|operation| operation.end);
        self.nodes[node].lease = Lease { least: oldest.unwrap_or(clock), has_left: false, is_nobodys: false };
    }

    fn leave(&mut self, node: usize) {
        let Node { begun, log, durable, .. } = &self.nodes[node];
        if begun.is_empty() && *durable == log.len() {
            let least = self.stamp(node);
            self.nodes[node].lease = Lease { least, has_left: true, is_nobodys: false };
            self.nodes[node].is_away = true;
        }
    }

    /// The same member, or one in its place that has another clock and no stamps yet.
    fn come_back(&mut self, node: usize) {
        let floor = if self.lapse == Lapse::LeaseGoesBack { 0 } else { self.nodes[node].lease.least };
        (self.nodes[node].is_away, self.nodes[node].is_taken) = (false, true);
        if self.dice.random_bool(0.5) {
            let error = if self.dice.random_bool(0.5) { ERROR } else { 1 };
            let offset = self.dice.random_range(-error..=error);
            let new = &mut self.nodes[node];
            (new.error, new.offset, new.floor) = (error, offset, floor);
            new.seen.fill(None);
            (new.collected, new.read) = (None, None);
        }
        if self.lapse != Lapse::LeaseAfterReturn {
            self.write_lease(node);
        }
    }

    fn read_lease(&mut self, node: usize, of: usize) {
        self.nodes[node].seen[of] = Some((self.nodes[of].lease, self.clock(node)));
        self.nodes[node].knows[of] = true;
    }

    /// The two smallest of the leases that `node` has read, perhaps some time ago.
    fn collect(&mut self, node: usize) {
        let left_out =
            if self.lapse == Lapse::OneLeftOut { self.dice.random_range(0..self.nodes.len()) } else { usize::MAX };
        let is_member = |(member, seen): &(usize, &Option<(Lease, Time)>)| {
            let is_nobodys = seen.is_some_and(|(lease, _)| lease.is_nobodys) && self.lapse == Lapse::NeverTakenIsNobody;
            *member != left_out && !is_nobodys
        };
        let now = self.clock(node);
        let one = |(member, seen): (usize, &Option<(Lease, Time)>)| {
            let (lease, read) = (*seen)?;
            let read = if self.lapse == Lapse::LeftAsOfWrite { now } else { read };
            Some(Smallest { least: lease.least(read, self.lapse), member, has_left: lease.has_left })
        };
        let members = self.nodes[node].seen.iter().enumerate();
        let all: Option<Vec<_>> = members.filter(is_member).map(one).collect();
        self.nodes[node].collected = all.map(|mut all| {
            all.sort_by_key(|smallest| (smallest.least, smallest.member));
            let kept = if self.lapse == Lapse::OneSmallest { 1 } else { self.dice.random_range(2..=3) };
            all.truncate(kept);
            all
        });
    }

    fn write_smallest(&mut self, node: usize) {
        if let Some(smallest) = &mut self.smallest {
            smallest.clone_from(&self.nodes[node].collected);
        }
    }

    fn read_smallest(&mut self, node: usize) {
        let read = self.clock(node);
        self.nodes[node].read = self.smallest.clone().map(|smallest| (smallest, read));
    }

    fn do_something(&mut self) -> Result<(), Wrong> {
        let members: Vec<usize> = (0..self.nodes.len()).collect();
        let (node, other) = (*members.choose(&mut self.dice).unwrap(), *members.choose(&mut self.dice).unwrap());
        if self.nodes[node].is_away {
            if self.dice.random_bool(0.2) {
                self.come_back(node);
            }
            return Ok(());
        }
        match self.dice.random_range(0..if self.smallest.is_some() { 20 } else { 13 }) {
            0 | 1 => self.now += self.dice.random_range(0..=ERROR),
            2 if self.nodes[node].begun.len() < 2 => self.begin(node),
            3 | 4 => self.commit(node),
            5 => self.answer(node),
            6 => self.publish(node),
            7 => self.sync(node)?,
            8 => self.write_lease(node),
            9 => self.read_lease(node, other),
            10 => self.leave(node),
            13 | 14 => self.read_lease(node, other),
            15 | 16 => self.collect(node),
            17 => self.write_smallest(node),
            18 | 19 => self.read_smallest(node),
            // Somebody sets its clock, as far as it may be off.
            _ => {
                let error = self.nodes[node].error;
                let offsets = [-error, error, self.dice.random_range(-error..=error)];
                self.nodes[node].offset = *offsets.choose(&mut self.dice).unwrap();
            }
        }
        Ok(())
    }

    /// Nobody begins anything more: in the end all of it is on the slow tree.
    fn finish(&mut self) -> Result<(), Wrong> {
        for node in 0..self.nodes.len() {
            if !self.nodes[node].is_taken {
                self.come_back(node);
            }
        }
        for _ in 0..400 {
            self.now += 1;
            for node in 0..self.nodes.len() {
                if self.nodes[node].is_away {
                    continue;
                }
                self.commit(node);
                self.answer(node);
                self.publish(node);
                self.sync(node)?;
                self.write_lease(node);
                (0..self.nodes.len()).for_each(|other| self.read_lease(node, other));
                // In turn, and so does everybody read it.
                self.collect(node);
                self.write_smallest(node);
                self.read_smallest(node);
            }
            let is_done = |node: &Node| node.begun.is_empty() && node.durable == node.log.len();
            if self.nodes.iter().all(is_done) {
                return Ok(());
            }
        }
        Err(Wrong::Stuck)
    }
}

/// One schedule: some hundred random steps, then the end.
fn schedule(lapse: Lapse, seed: u64) -> Result<(), Wrong> {
    let mut fleet = Fleet::new(lapse, 2 + (seed % 5 / 2) as usize, seed);
    for _ in 0..300 {
        fleet.do_something()?;
    }
    fleet.finish()
}

#[test]
fn nothing_is_early_and_nothing_stays() {
    for seed in 0..6000 {
        assert_eq!(schedule(Lapse::Nothing, seed), Ok(()), "schedule {seed}");
    }
}

#[test]
fn each_sentence_of_the_rule_is_needed() {
    for (lapse, wrong) in LAPSES {
        let found = (0..100_000).find(|seed| schedule(lapse, *seed) == Err(wrong));
        assert!(found.is_some(), "{lapse:?}: no schedule is {wrong:?}");
    }
}

/// The place of a member that has left goes to one whose clock is behind. What somebody read before says that the place has
/// nothing that is older, so the new member's stamps are larger, whatever its clock shows.
#[test]
fn a_lease_that_goes_back_lets_others_go_too_early() {
    const OLD: usize = 0;
    const READER: usize = 1;
    for (lapse, expected) in [(Lapse::LeaseGoesBack, Err(Wrong::Early)), (Lapse::Nothing, Ok(()))] {
        let early = (0..1000).map(|seed| {
            let mut fleet = Fleet::new(lapse, 2, seed);
            fleet.smallest = None;
            fleet.nodes.iter_mut().for_each(|node| (node.is_away, node.is_taken, node.error) = (false, true, ERROR));
            fleet.nodes[OLD].offset = ERROR;
            fleet.write_lease(OLD);
            fleet.read_lease(READER, OLD);
            fleet.leave(OLD);
            fleet.come_back(OLD);
            fleet.nodes[OLD].offset = -ERROR;
            fleet.begin(OLD);
            fleet.commit(OLD);
            // The clocks are set, as far as they may be off.
            fleet.nodes[OLD].offset = ERROR;
            fleet.now += 1;
            fleet.answer(OLD);
            fleet.now += 1;
            fleet.nodes[READER].offset = -ERROR;
            fleet.begin(READER);
            fleet.commit(READER);
            fleet.publish(READER);
            fleet.sync(READER)
        });
        assert_eq!(early.fold(Ok(()), Result::and), expected, "{lapse:?}");
    }
}
