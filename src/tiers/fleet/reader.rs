//! Reads the leases of a fleet from outside: a machine that sees only the slow tree asks how far all members are. It
//! writes only the acceptance of a loss and a new bound for the clocks.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::stats::fleet::FleetStatus;
use crate::tiers::disk::{Clock, Dir};
use crate::tiers::fleet::clocks::ReadAt;
use crate::tiers::fleet::members::{Agreed, accept, agree_on, agreed, dir_of, read_settled};
use crate::tiers::fleet::periods::FleetPeriods;
use crate::tiers::fleet::rule::{self, SeenLease, Standing};
use crate::tiers::fleet::{nanos, not_exact};
use crate::tiers::incarnation::last_start;

/// A member's lease at one moment, and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLook {
    pub host: String,
    /// It is mounted, or was not left.
    pub is_here: bool,
    /// Increases with each lease written.
    pub beat: u64,
    /// The start of the daemon that wrote it. Empty: an earlier version wrote it.
    pub start: String,
    /// The last start of the fast tier, and its host. Two daemons with one fast tier each name another one.
    pub last_start: Option<(String, String)>,
}

/// The leases of one fleet, as they were read last.
#[derive(Debug)]
pub struct FleetReader {
    dir: Arc<dyn Dir>,
    fleet: String,
    agreed: Agreed,
    clock: Arc<dyn Clock>,
    seen: Vec<Option<SeenLease>>,
    /// Our uptime at the last look.
    looked: Option<Duration>,
}

impl FleetReader {
    /// Finds a fleet below `slow`. `clock` has to be as right as those of the members. Errors: there is no such fleet.
    pub fn open(slow: &dyn Dir, fleet: &str, clock: Arc<dyn Clock>) -> Result<FleetReader> {
        let dir = dir_of(slow, fleet)?;
        let Some(agreed) = agreed(&*dir)? else {
            let what = format!("what the members of fleet {fleet} agree on is not readable");
            return Err(Error::refused(what, "see whether .dlio-fs/fleet on the slow tier is damaged"));
        };
        let seen = vec![None; agreed.size as usize];
        Ok(FleetReader { dir, fleet: fleet.to_owned(), agreed, clock, seen, looked: None })
    }

    /// How long a member of this fleet must be silent before it may be forgotten.
    pub fn forget_after(&self) -> Duration {
        FleetPeriods::of(self.seen.len()).forget
    }

    /// What is wrong with this machine's clock, as its kernel knows it, for a member of this fleet, and what to do.
    pub fn clock_trouble(&self) -> Option<String> {
        let Agreed { error, is_believed, .. } = self.agreed;
        not_exact(&self.fleet, self.clock.error(), error).filter(|_| !is_believed)
    }

    /// The beats of all slots, and the hosts: a change shows who writes leases.
    pub fn beats(&self) -> Result<Vec<(u64, String)>> {
        let beat =
            |slot| Ok(read_settled(&*self.dir, slot)?.map_or((0, String::new()), |lease| (lease.beat, lease.host)));
        (0..self.seen.len() as u32).map(beat).collect()
    }

    /// One look at each slot. `None`: it was never taken.
    pub fn slots(&self, slow: &dyn Dir) -> Result<Vec<Option<SlotLook>>> {
        let look = |slot| {
            let Some(lease) = read_settled(&*self.dir, slot)? else { return Ok(None) };
            let last = last_start(slow, &lease.member.to_string())?;
            let start = if lease.start.is_nil() { String::new() } else { lease.start.to_string() };
            let is_here = lease.standing == Standing::Here;
            let last_start = last.map(|last| (last.start, last.host));
            Ok(Some(SlotLook { host: lease.host, is_here, beat: lease.beat, start, last_start }))
        };
        (0..self.seen.len() as u32).map(look).collect()
    }

    /// About how many requests per second the members send to the slow tree for their leases: with nothing pending, and
    /// with all of them busy.
    pub fn requests(&self) -> (u64, u64) {
        FleetPeriods::of(self.seen.len()).requests(self.agreed.size)
    }

    /// How long no member must have written a lease before the bound of the clocks is changed.
    pub fn change_after(&self) -> Duration {
        FleetPeriods::of(self.seen.len()).watched
    }

    /// Sets the bound for the errors of all clocks, which all members take from now on. The caller has seen for
    /// [`Self::change_after`] that no member is mounted; one that was only frozen finds the new bound before it writes
    /// a lease.
    pub fn set_clock_error(&self, error: Duration) -> Result<()> {
        agree_on(&*self.dir, &Agreed { error, is_believed: true, ..self.agreed })
    }

    /// Accepts what may be lost with members of this fleet that did not come back: verdicts ignore it from now on.
    /// Returns one line for each loss.
    pub fn accept_losses(&self) -> Result<Vec<String>> {
        let mut accepted = Vec::new();
        for slot in 0..self.seen.len() as u32 {
            let Some(lease) = read_settled(&*self.dir, slot)? else { continue };
            let Some(loss) = lease.lost.filter(|loss| !loss.is_accepted) else { continue };
            accept(&*self.dir, slot, &loss)?;
            let date = |nanos| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(nanos));
            let until = match loss.before {
                u64::MAX => "its end".to_owned(),
                before => date(before).to_string(),
            };
            let place = match lease.standing {
                Standing::Forgotten => format!("member {slot} on {}", lease.host),
                _ => format!("the node that member {slot} on {} replaces", lease.host),
            };
            accepted.push(format!("what {place} logged from {} until {until}", date(loss.from)));
        }
        Ok(accepted)
    }

    /// Reads all leases.
    pub fn look(&mut self) -> Result<FleetStatus> {
        let asked = nanos(self.clock.now());
        let uptime = self.clock.uptime();
        let FleetPeriods { watched, patience, .. } = FleetPeriods::of(self.seen.len());
        let has_watched = self.looked.is_some_and(|at| uptime.saturating_sub(at) < watched);
        for (slot, seen) in (0..).zip(&mut self.seen) {
            let began = nanos(self.clock.now());
            let Some(lease) = read_settled(&*self.dir, slot)? else { continue };
            let ended = nanos(self.clock.now());
            let errors = 2 * self.agreed.error.as_nanos() as u64;
            let at = ReadAt { began, ended, uptime, has_watched, errors, is_right: true, patience };
            SeenLease::renew(seen, lease, at);
        }
        self.looked = Some(uptime);
        Ok(rule::fleet_status(&self.fleet, &self.seen, self.agreed.error, asked, Some(Duration::ZERO)))
    }
}
