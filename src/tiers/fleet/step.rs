//! The fleet's work in the background. One round:
//!
//! 1. compare the clock with what the fleet was promised;
//! 2. read our own slot: a member that is no longer itself publishes nothing;
//! 3. read the lease under the state lock: an event that is logged later has a larger stamp;
//! 4. write it, if it is older than a second or has changed;
//! 5. while something is pending, read the leases of the others.
//!
//! An event leaves the queue only after the slow tree was synced, so step 4 never says too much.

use std::time::Duration;

use crate::error::Result;
use crate::tiers::fleet::rule::{FleetGate, MemberLease, SeenLease, Standing};
use crate::tiers::fleet::{Fleet, nanos};
use crate::tiers::{Progress, Tiers};

/// The shortest time between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// What becomes of a member that was taken for lost.
const FORGOTTEN: &str = "it was forgotten (dlio-fs forget), and the others have gone on without it";
/// A lease is written at least as often.
const RENEW: Duration = Duration::from_secs(1);

impl Tiers {
    /// One round.
    pub fn fleet_step(&self) -> Result<Progress> {
        let Some(fleet) = &self.fleet else { return Ok(Progress::Idle) };
        self.renew_lease(fleet)?;
        let pending = !self.state.lock().queue.is_empty();
        if pending {
            fleet.read_others(nanos(self.now()), self.uptime())?; // 5
            self.wake();
        }
        Ok(Progress::Wait(ROUND))
    }

    /// Steps 1 to 4. Also called by a start, behind the replay and before anything new is logged.
    pub(crate) fn renew_lease(&self, fleet: &Fleet) -> Result<()> {
        fleet.check_clock(&*self.clock); // 1
        if self.damaged.is_some() || self.log.usable().is_err() || !fleet.is_ourselves()? {
            return Ok(()); // 2
        }
        let now = self.uptime();
        let (oldest, least) = {
            let st = self.state.lock();
            let oldest = st.queue.events().get(usize::from(left_out!(LeaseLast)));
            let oldest = oldest.map(|event| st.queue.stamps(event.lsn).end);
            (oldest, oldest.unwrap_or_else(|| fleet.stamp(self.now())))
        }; // 3
        if fleet.is_due(oldest, now) {
            fleet.write(least, Standing::Here, now)?; // 4
            fleet.state.lock().oldest = oldest;
        }
        Ok(())
    }

    /// At the end of a mount with nothing pending: the others need not wait for this member. Nothing may be logged
    /// afterwards.
    pub fn leave_fleet(&self) -> Result<()> {
        let Some(fleet) = &self.fleet else { return Ok(()) };
        let is_empty = {
            let st = self.state.lock();
            st.queue.is_empty() && st.uncommitted.len() == 0
        };
        if is_empty && self.damaged.is_none() && self.log.usable().is_ok() && fleet.is_ourselves()? {
            let now = self.uptime();
            fleet.write(fleet.stamp(self.now()), Standing::Left, now)?;
        }
        Ok(())
    }

    /// How long the answer of a call that may have logged an event has to wait.
    pub fn commit_wait(&self) -> Duration {
        self.fleet.as_ref().map_or(Duration::ZERO, |fleet| fleet.wait(self.now()))
    }

    /// What the other members let go.
    pub(crate) fn fleet_gate(&self) -> FleetGate {
        self.fleet.as_ref().map_or(FleetGate::Open, |fleet| fleet.gate(self.uptime()))
    }

    /// Why the fleet holds up what is pending.
    pub(crate) fn held_by_fleet(&self) -> Option<String> {
        let pending = !self.state.lock().queue.is_empty();
        self.fleet.as_ref()?.held(self.uptime(), pending)
    }
}

impl Fleet {
    /// Step 2.
    fn is_ourselves(&self) -> Result<bool> {
        let in_slot = self.members.read(self.slot)?;
        let lost = match in_slot {
            Some(lease) if lease.member == self.id && lease.standing == Standing::Forgotten => {
                Some(FORGOTTEN.to_owned())
            }
            Some(lease) if lease.member == self.id => None,
            Some(lease) => Some(format!("its slot belongs to another mount, on {}", lease.host)),
            None => Some("its slot is gone from the slow tier".to_owned()),
        };
        let is_lost = lost.is_some() && !left_out!(OwnSlot);
        if is_lost {
            self.state.lock().lost = lost.map(|why| format!("{why}; save what is pending with `dlio-fs rescue`"));
        }
        Ok(!is_lost)
    }

    fn is_due(&self, oldest: Option<u64>, now: Duration) -> bool {
        let state = self.state.lock();
        state.oldest != oldest || state.written.is_none_or(|at| now.saturating_sub(at) >= RENEW)
    }

    /// Step 4. `now` is our uptime before the lease was read.
    fn write(&self, least: u64, standing: Standing, now: Duration) -> Result<()> {
        let beat = self.state.lock().beat + 1;
        self.members.write(&MemberLease { member: self.id, host: self.host.clone(), least, beat, standing })?;
        let mut state = self.state.lock();
        state.beat = beat;
        state.written = Some(now);
        Ok(())
    }

    /// Step 5. A lease that cannot be read keeps its last value: it never goes back. `now` is our clock, `uptime` for
    /// intervals.
    fn read_others(&self, now: u64, uptime: Duration) -> Result<()> {
        for slot in (0..self.size).filter(|slot| *slot != self.slot) {
            let Ok(Some(lease)) = self.members.read(slot) else { continue };
            let mut state = self.state.lock();
            let Some(seen) = state.seen.get_mut(slot as usize) else { continue };
            let since = seen.as_ref().filter(|seen| seen.lease.beat == lease.beat).map_or(uptime, |seen| seen.since);
            *seen = Some(SeenLease { lease, read: now, since });
        }
        Ok(())
    }
}
