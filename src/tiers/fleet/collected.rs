//! A member's round in a fleet too large for each member to read all leases (`collector.rs`, `smallest.rs`). It
//! replaces step 6 of `step.rs`:
//!
//! 1. look at the file of the smallest leases, if it is due;
//! 2. claim it if no member renews it: the next look shows whether another member has claimed it, too. As the
//!    collector, write it again once in a period, so that no other member claims it;
//! 3. as the collector, or if a caller has asked for all members, read some more leases;
//! 4. once all were read, look at the file again, and unless another member has written its own reading, write the
//!    smallest leases;
//! 5. if our own lease is among them and something is pending, read again the leases before it.
//!
//! A member whose clock is off, or that has lost its slot, collects nothing: how it counts the lease of a member that
//! has left depends on its clock. Names that others publish are not followed: that would be N² reads.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Result;
use crate::tiers::Tiers;
use crate::tiers::disk::Clock;
use crate::tiers::disk::errors::is_silence;
use crate::tiers::fleet::clocks::ReadAt;
use crate::tiers::fleet::collector::{CollectedFleet, CollectorDuty};
use crate::tiers::fleet::smallest::{SeenSmallest, SmallestLeases, SmallestReader};
use crate::tiers::fleet::{Fleet, FleetState, nanos};

impl Tiers {
    /// Steps 1 to 5. `oldest`: when the oldest pending event began.
    pub(super) fn collected_round(&self, fleet: &Fleet, oldest: Option<u64>) -> Result<()> {
        let before = self.order.gate(self.uptime());
        let now = self.uptime();
        let may_collect = fleet.may_collect();
        if fleet.duty(|duty| duty.is_to_look(oldest.is_some(), now)) == Some(true) {
            fleet.read_smallest_leases(&*self.clock)?; // 1
        }
        if !may_collect {
            fleet.stop_collecting()?;
        } else if fleet.duty(|duty| duty.is_to_claim(now)) == Some(true) {
            fleet.claim_smallest(now)?; // 2
        }
        let is_asked = fleet.is_asked.swap(false, Ordering::AcqRel);
        if fleet.duty(|duty| duty.begin_pass(is_asked, now)) != Some(true) && is_asked {
            // A question asked during a pass is about a later moment, and gets another pass.
            fleet.is_asked.store(true, Ordering::Release);
        }
        for slot in fleet.duty(CollectorDuty::next_slots).unwrap_or_default() {
            fleet.read_lease(&*self.clock, slot); // 3
        }
        fleet.end_pass(&*self.clock)?; // 4
        if let Some(start) = oldest {
            fleet.read_those_before(&*self.clock, start); // 5
        }
        if self.order.gate(self.uptime()) != before {
            self.wake();
        }
        Ok(())
    }
}

impl Fleet {
    /// What the smallest leases tell this member. `None`: each member reads all.
    pub(super) fn smallest<'a>(&self, state: &'a FleetState) -> Option<SmallestReader<'a>> {
        let seen = state.collected.as_ref()?.seen.as_ref();
        let errors = 2 * self.error.as_nanos() as u64;
        Some(SmallestReader { own: self.id, slot: self.slot, seen, leases: &state.seen, errors })
    }

    /// Whether the slow tier has all that any member had logged at this moment, and no member was lost that may have
    /// had something from `began` on. `None`: each member reads all.
    pub(crate) fn is_all_there(&self, moment: Duration, began: Duration) -> Option<bool> {
        let [moment, began] = [moment, began].map(|at| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
        self.smallest(&self.state.lock()).map(|smallest| smallest.is_all_there(moment, began))
    }

    /// `None`: each member reads all.
    fn duty<T>(&self, ask: impl FnOnce(&mut CollectorDuty) -> T) -> Option<T> {
        self.state.lock().collected.as_mut().map(|collected| ask(&mut collected.duty))
    }

    pub(crate) fn is_collected(&self) -> bool {
        self.state.lock().collected.is_some()
    }

    fn may_collect(&self) -> bool {
        let state = self.state.lock();
        state.clock.is_none() && state.lost.is_none()
    }

    /// Step 1. While the file is being written, the previous reading stays in use.
    fn read_smallest_leases(&self, clock: &dyn Clock) -> Result<()> {
        let uptime = clock.uptime();
        let began = nanos(clock.now());
        self.state.lock().pace.spend();
        let smallest = match self.members.read_smallest() {
            Ok(smallest) => smallest,
            Err(error) if is_silence(&error) => return Err(error),
            Err(_) => {
                self.duty(|duty| duty.note_unreadable(uptime));
                return Ok(());
            }
        };
        let mut state = self.state.lock();
        let has_watched = state.read.is_some_and(|at| uptime.saturating_sub(at) < self.periods.watched);
        state.read = Some(uptime);
        let Some(collected) = &mut state.collected else { return Ok(()) };
        collected.duty.note_look(smallest.as_ref().map(SmallestLeases::head), uptime);
        if let Some(smallest) = smallest {
            let errors = 2 * self.error.as_nanos() as u64;
            let patience = self.periods.patience;
            let at = ReadAt { began, ended: began, uptime, has_watched, errors, is_right: true, patience };
            SeenSmallest::renew(&mut collected.seen, smallest, self.slot, at);
        }
        Ok(())
    }

    /// Step 2. Repeats the file's contents.
    fn claim_smallest(&self, now: Duration) -> Result<()> {
        let smallest = {
            let mut state = self.state.lock();
            let Some(CollectedFleet { duty, seen }) = &mut state.collected else { return Ok(()) };
            duty.note_claim(now);
            let known = seen.as_ref().map(|seen| &seen.smallest);
            SmallestLeases::again(known, duty.next_round(), Some(self.slot))
        };
        self.members.write_smallest(&smallest, self.id)
    }

    /// Lets another member collect at once.
    pub(super) fn stop_collecting(&self) -> Result<()> {
        let smallest = {
            let mut state = self.state.lock();
            let is_lost = state.lost.is_some();
            let Some(CollectedFleet { duty, seen }) = &mut state.collected else { return Ok(()) };
            let is_collector = duty.stop() && !is_lost;
            let Some(seen) = seen.as_ref().filter(|_| is_collector) else { return Ok(()) };
            SmallestLeases::again(Some(&seen.smallest), seen.smallest.round.saturating_add(1), None)
        };
        self.members.write_smallest(&smallest, self.id)
    }

    /// Step 4. Another collector may have begun meanwhile, or this one may have been stalled.
    fn end_pass(&self, clock: &dyn Clock) -> Result<()> {
        let Some(pass) = self.duty(CollectorDuty::has_read_all).flatten() else { return Ok(()) };
        self.state.lock().read_all = Some(pass.began);
        if pass.is_for_file {
            self.read_smallest_leases(clock)?; // It may give the pass up.
        }
        let is_for_file = self.duty(CollectorDuty::end_pass).flatten().is_some_and(|pass| pass.is_for_file);
        // The check at the begin of the round is old by now: reading takes time.
        self.check_clock(clock);
        if !is_for_file || !self.may_collect() {
            return Ok(());
        }
        let smallest = {
            let state = self.state.lock();
            let Some(CollectedFleet { duty, .. }) = &state.collected else { return Ok(()) };
            SmallestLeases::of(&state.seen, 2 * self.error.as_nanos() as u64, duty.next_round(), self.slot)
        };
        self.members.write_smallest(&smallest, self.id)?;
        self.duty(|duty| duty.note_written(clock.uptime()));
        self.read_smallest_leases(clock)
    }
}
