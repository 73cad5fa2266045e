//! The fleet's work in the background. One round, which `views.rs` runs:
//!
//! 1. compare the clock with the fleet's bound;
//! 2. if a lease is to be written, read our own slot: a member that has lost it publishes nothing;
//! 3. read the lease under the state lock: an event that is logged later has a larger stamp;
//! 4. write the names published before step 3 (`names.rs`): a member that the lease admits can read them;
//! 5. write the lease, if the last one is a period old, the oldest event has changed, or there were names;
//! 6. while something is pending, read the leases that hold it up, and now and then the rest (`pace.rs`). While a file
//!    is open, or if a program has asked for a name since, read all others about once a second: no program waits for
//!    that, so the first answer after a pause may be old. If a caller has asked about the fleet, read all at once. In a
//!    large fleet `collected.rs` replaces this step and step 7;
//! 7. look up again what they have published (`views.rs`).
//!
//! An event leaves the queue only after the slow tree was synced and its names wait for step 4, so the lease of step 5
//! is never too large.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Result;
use crate::stats::fleet::FleetStatus;
use crate::stats::status::FleetFigures;
use crate::tiers::disk::Clock;
use crate::tiers::fleet::clocks::{LeaseClock, ReadAt, SeenClock};
use crate::tiers::fleet::members::OwnNames;
use crate::tiers::fleet::pace::LeasePace;
use crate::tiers::fleet::periods::LeaseNews;
use crate::tiers::fleet::rule::{self, MemberLease, SeenLease, Standing};
use crate::tiers::fleet::{Fleet, FleetState, nanos};
use crate::tiers::incarnation::mounted_elsewhere;
use crate::tiers::{Lsn, Tiers};

/// Reason given by a member that was forgotten.
const FORGOTTEN: &str = "it was forgotten (dlio-fs forget), and the others have gone on without it; save what is pending with \
                         `dlio-fs rescue`";
/// Reason given by a member whose place a copy of its fast tier has taken.
const HANDED_ON: &str = "a copy of its fast tier has taken its place (dlio-fs forget --partner); save what is pending with \
                         `dlio-fs rescue`";
/// Reason given by a member that was away while an operator set another bound for the clocks.
const ANOTHER_BOUND: &str =
    "the fleet has agreed on another bound for its clocks (dlio-fs clock-error): mount it again";

impl Tiers {
    /// Steps 1 to 5. Also called by a start, after the replay and before anything new is logged.
    pub(crate) fn renew_lease(&self, fleet: &Fleet) -> Result<()> {
        fleet.check_clock(&*self.clock); // 1
        // Before step 2, whose reading may be old when the lease is written.
        let now = self.uptime();
        let (oldest, least, clock) = {
            let st = self.state.lock();
            let clock = nanos(self.now());
            fleet.note_undated(self.log.last(), st.queue.front());
            let oldest = st.queue.oldest_stamps(usize::from(left_out!(LeaseLast)));
            let oldest = oldest.map(|stamps| stamps.end);
            let least = oldest.unwrap_or_else(|| fleet.stamp(self.now()));
            // Events that the copy lacks limit the lease as if they were pending (`partner.rs`).
            let (oldest, least) = fleet.partner.lock().limit(oldest, least);
            (oldest, fleet.at_most(least), clock)
        }; // 3
        if fleet.partner.lock().give_up_hanging(now) {
            tracing::warn!("the partner directory does not answer; its copy is given up");
        }
        if !fleet.is_due(oldest, now) || self.damaged.is_some() || self.log.usable().is_err() {
            return Ok(());
        }
        if fleet.is_ourselves(now)? {
            // 2
            fleet.announce_names(); // 4
            fleet.write(least, clock, Standing::Here)?; // 5
            let mut state = fleet.state.lock();
            (state.written, state.oldest) = (Some(now), oldest);
        }
        Ok(())
    }

    /// At the end of a mount with nothing pending: the others need not wait for this member. Nothing is logged
    /// afterwards. `given_up`: the caller, which must not wait for a hanging slow tier, has gone on.
    pub fn leave_fleet(&self, given_up: impl Fn() -> bool) -> Result<()> {
        let Some(fleet) = self.order.fleet() else { return Ok(()) };
        {
            let st = self.state.lock();
            if !st.queue.is_empty() || st.uncommitted.len() > 0 {
                return Ok(());
            }
            // Events get their place in the log under this lock.
            self.log.make_read_only();
        }
        let is_off = fleet.state.lock().off;
        if !is_off
            && self.damaged.is_none()
            && self.log.usable().is_ok()
            && fleet.is_ourselves(self.uptime())?
            && !given_up()
        {
            fleet.announce_names();
            if given_up() {
                return Ok(());
            }
            fleet.write(fleet.stamp(self.now()), nanos(self.now()), Standing::Left)?;
            fleet.stop_collecting()?;
        }
        Ok(())
    }

    /// How long to delay the answer of a call that has logged this (`Cx::logged`). `all`: the answer says that
    /// everything done before is durable, by any process.
    pub fn commit_wait(&self, logged: u64, all: bool) -> Duration {
        match self.order.fleet() {
            None => Duration::ZERO,
            Some(fleet) if all => fleet.wait_for_all(self.now()),
            Some(fleet) => fleet.wait_for(logged, self.now()),
        }
    }

    /// Whether a step may be made on the slow tree: not by a member that may have been declared lost.
    pub(crate) fn may_go_on(&self) -> bool {
        let is_last = self.incarnation.as_ref().is_none_or(|this| this.lost().is_none());
        is_last && self.order.may_go_on(self.uptime())
    }

    /// All members of the fleet as they were read last; requests a new reading in the background. Asks neither tier.
    /// `None`: the mount is in no fleet.
    pub fn fleet_status(&self) -> Option<FleetStatus> {
        self.order.fleet()?.is_asked.store(true, Ordering::Release);
        self.fleet_as_read()
    }

    /// The fleet's figures, for callers that poll. In a large fleet this causes no reads: it uses only what was read
    /// recently, by the collector, or because a caller has asked.
    pub fn fleet_figures(&self) -> Option<FleetFigures> {
        let fleet = self.order.fleet()?;
        if !fleet.is_collected() {
            return self.fleet_status()?.figures();
        }
        let status = self.fleet_as_read()?;
        status.figures().filter(|_| status.read_ago.is_some_and(|ago| ago <= fleet.periods.silent))
    }

    fn fleet_as_read(&self) -> Option<FleetStatus> {
        let fleet = self.order.fleet()?;
        let (asked, now) = (nanos(self.now()), self.uptime());
        let state = fleet.state.lock();
        let read_ago = state.read_all.map(|at| now.saturating_sub(at));
        Some(rule::fleet_status(&fleet.name, &state.seen, fleet.error, asked, read_ago))
    }

    /// Whether the mount is a member of a fleet.
    pub fn is_in_fleet(&self) -> bool {
        self.order.is_shared()
    }

    /// A program asks for a name or an attribute: names published by others matter.
    pub(crate) fn note_use(&self) {
        if let Some(fleet) = self.order.fleet() {
            fleet.note_use();
        }
    }

    /// Why the fleet holds up what is pending.
    pub(crate) fn held_by_fleet(&self) -> Option<String> {
        let pending = !self.state.lock().queue.is_empty();
        self.order.fleet()?.held(self.uptime(), pending)
    }
}

impl Fleet {
    /// Step 2.
    fn is_ourselves(&self, now: Duration) -> Result<bool> {
        self.state.lock().pace.spend();
        let in_slot = self.members.read(self.slot)?;
        // The bound is changed only while no member writes a lease.
        let was_away = self.state.lock().written.is_none_or(|at| now.saturating_sub(at) > 2 * self.periods.period);
        let lost = match in_slot {
            _ if was_away && !self.members.still_agree()? => Some(ANOTHER_BOUND.to_owned()),
            Some(lease) if lease.member == self.id && lease.standing == Standing::Forgotten => {
                Some(FORGOTTEN.to_owned())
            }
            Some(lease) if lease.member == self.id && lease.turn != self.turn && !left_out!(PartnerTurn) => {
                Some(HANDED_ON.to_owned())
            }
            // Two daemons have one id: each that sees the other stops.
            Some(lease)
                if lease.member == self.id
                    && !self.has_written(&lease)
                    && !left_out!(OneStart)
                    && !left_out!(PartnerTurn) =>
            {
                Some(mounted_elsewhere(&lease.host))
            }
            Some(lease) if lease.member == self.id => None,
            Some(lease) => Some(format!(
                "its slot belongs to another mount, on {}; save what is pending with `dlio-fs rescue`",
                lease.host
            )),
            None => Some("its slot is gone from the slow tier; save what is pending with `dlio-fs rescue`".to_owned()),
        };
        let is_lost = lost.is_some() && !left_out!(OwnSlot);
        if is_lost {
            self.state.lock().lost = lost;
        }
        Ok(!is_lost)
    }

    /// After a power cut of its server the slow tier may show an older one.
    fn has_written(&self, lease: &MemberLease) -> bool {
        lease.start == self.start && lease.beat <= self.state.lock().beat
    }

    /// Notes the end of the log and the first pending event. Events logged while the clock was off have meaningless
    /// stamps: once the clock is right again, no verdict relies on the lease before these events are published.
    fn note_undated(&self, last: Lsn, front: Option<Lsn>) {
        let mut state = self.state.lock();
        if state.off {
            state.undated = Some(last);
        }
        state.undated = state.undated.filter(|upto| state.off || front.is_some_and(|front| front <= *upto));
    }

    /// The lease to write; with a clock that is off, the last one.
    fn at_most(&self, least: u64) -> u64 {
        let state = self.state.lock();
        if state.off { state.least.min(least) } else { least }
    }

    fn is_due(&self, oldest: Option<u64>, now: Duration) -> bool {
        let is_to_tell = self.partner.lock().is_to_tell();
        let state = self.state.lock();
        if is_to_tell {
            return true;
        }
        let is_news = state.oldest != oldest || !state.untold.is_empty();
        let is_waited_for = state.collected.as_ref().is_none_or(|collected| collected.has(self.slot));
        let news = if is_waited_for { LeaseNews::WaitedFor } else { LeaseNews::Plain };
        self.periods.is_lease_due(state.written.map(|at| now.saturating_sub(at)), is_news.then_some(news))
    }

    /// Step 4. Names that cannot be written are lost, and the lease says so: it must not wait for room on the slow
    /// tier.
    fn announce_names(&self) {
        let (own, lines) = {
            let mut state = self.state.lock();
            (state.names.clone(), std::mem::take(&mut state.untold))
        };
        if lines.is_empty() {
            return;
        }
        let names = self.members.append_names(self.slot, &own, &lines).unwrap_or_else(|error| {
            tracing::warn!(%error, "the other members look everything up again instead of what this one has published");
            OwnNames::ending_at(own.end.lost())
        });
        self.state.lock().names = names;
    }

    /// Step 5.
    fn write(&self, least: u64, now: u64, standing: Standing) -> Result<()> {
        {
            let mut state = self.state.lock();
            if let Some(loss) = state.loss.as_mut().filter(|loss| loss.before == u64::MAX) {
                // Our first lease: what begins from now on is ours. A copy's log may end long before.
                loss.before = now.max(self.floor.load(Ordering::Acquire));
            }
        }
        let is_off = {
            let state = self.state.lock();
            state.off || state.undated.is_some()
        };
        let clock = if is_off { LeaseClock::Off } else { LeaseClock::At(now) };
        self.write_lease(least, clock, standing)
    }

    /// Writes the lease at join, before replay; leaves `lost_before` unchanged.
    pub(super) fn write_as_found(&self, least: u64, standing: Standing) -> Result<()> {
        self.write_lease(least, LeaseClock::Untold, standing)
    }

    fn write_lease(&self, least: u64, clock: LeaseClock, standing: Standing) -> Result<()> {
        let (beat, names, lost) = {
            let state = self.state.lock();
            (state.beat + 1, state.names.end, state.loss)
        };
        let (member, host, turn, start) = (self.id, self.host.clone(), self.turn, self.start);
        // A member that leaves has nothing that a copy could give back.
        let copy = if standing == Standing::Here { self.partner.lock().name_copy() } else { 0 };
        let lease = MemberLease { member, host, least, beat, names, lost, turn, copy, clock, start, standing };
        // A failed write may have been done: such a lease is ours, too.
        self.state.lock().beat = beat;
        self.members.write(&lease)?;
        self.partner.lock().named(copy);
        self.state.lock().least = least;
        Ok(())
    }

    /// Step 6, for all leases at once. `own`: including ours.
    pub(super) fn read_all_leases(&self, clock: &dyn Clock, own: bool) {
        let uptime = clock.uptime();
        let all = (0..self.size).filter(|slot| own || *slot != self.slot);
        all.for_each(|slot| self.read_lease(clock, slot));
        let mut state = self.state.lock();
        state.read = Some(uptime);
        if own {
            state.read_all = Some(uptime);
            // A member with an unknown clock gives no answer: it is read again at once.
            let is_unknown = |seen: &SeenLease| matches!(seen.clock, SeenClock::Unknown(_));
            if !state.off && state.seen.iter().flatten().any(is_unknown) {
                self.is_asked.store(true, Ordering::Release);
            }
        }
    }

    /// Step 6, within the share of this member (`pace.rs`). `start`: when the oldest pending event began. Returns
    /// whether there was a reason to read.
    pub(super) fn read_some_leases(&self, clock: &dyn Clock, start: Option<u64>, is_open: bool) -> bool {
        let now = clock.uptime();
        let Some(start) = start else { return self.read_for_names(clock, is_open, now) };
        let unknown = {
            let FleetState { pace, seen, off, .. } = &mut *self.state.lock();
            pace.unknown(seen, !*off, self.periods.watched, now)
        };
        unknown.into_iter().for_each(|slot| self.read_lease(clock, slot));
        self.read_those_before(clock, start);
        self.read_each(clock, |pace| pace.one_more(now));
        true
    }

    fn read_for_names(&self, clock: &dyn Clock, is_open: bool, now: Duration) -> bool {
        let is_used = || self.used.swap(false, Ordering::Relaxed) || is_open;
        if !self.state.lock().pace.begin_pass(is_used, now) {
            return false;
        }
        self.read_each(clock, LeasePace::next_of_pass);
        true
    }

    fn read_each(&self, clock: &dyn Clock, mut next: impl FnMut(&mut LeasePace) -> Option<u32>) {
        loop {
            let slot = next(&mut self.state.lock().pace);
            let Some(slot) = slot else { break };
            self.read_lease(clock, slot);
        }
        self.state.lock().read = Some(clock.uptime());
    }

    /// Reads again the leases that hold up an event that began at `start`, until one still holds it up.
    pub(super) fn read_those_before(&self, clock: &dyn Clock, start: u64) {
        let mut before = None;
        while let Some(slot) = self.next_to_read(start) {
            // It was read, and still holds the event up.
            if before == Some(slot) || !self.state.lock().pace.take() {
                return;
            }
            self.read_lease(clock, slot);
            before = Some(slot);
        }
    }

    fn next_to_read(&self, start: u64) -> Option<u32> {
        let state = self.state.lock();
        match self.smallest(&state) {
            None => rule::next_to_read(self.id, self.slot, &state.seen, 2 * self.error, start),
            Some(smallest) => smallest.next_to_read(start),
        }
    }

    /// An unreadable lease does not replace an earlier one.
    pub(super) fn read_lease(&self, clock: &dyn Clock, slot: u32) {
        let (began, uptime) = (nanos(clock.now()), clock.uptime());
        let lease = self.members.read(slot);
        let ended = nanos(clock.now());
        let errors = 2 * self.error.as_nanos() as u64;
        let mut state = self.state.lock();
        state.pace.note_look(slot, uptime);
        let is_right = !state.off;
        let (Ok(Some(lease)), Some(seen)) = (lease, state.seen.get_mut(slot as usize)) else { return };
        let has_watched = SeenLease::is_watched(seen.as_ref(), uptime, self.periods.silent);
        let patience = self.periods.patience;
        let at = ReadAt { began, ended, uptime, has_watched, errors, is_right, patience };
        SeenLease::renew(seen, lease, at);
    }
}
