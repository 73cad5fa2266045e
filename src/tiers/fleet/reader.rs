//! Reads the leases of a fleet from outside of it: a machine that sees only the slow tree asks how far all members are.
//! It writes nothing there.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::stats::fleet::FleetStatus;
use crate::tiers::disk::{Clock, Dir};
use crate::tiers::fleet::members::{agreed, dir_of, read_settled};
use crate::tiers::fleet::nanos;
use crate::tiers::fleet::periods::FleetPeriods;
use crate::tiers::fleet::rule::{self, ReadAt, SeenLease};

/// The leases of one fleet, as they were read last.
#[derive(Debug)]
pub struct FleetReader {
    dir: Arc<dyn Dir>,
    fleet: String,
    error: Duration,
    clock: Arc<dyn Clock>,
    seen: Vec<Option<SeenLease>>,
    /// Our uptime at the last look.
    looked: Option<Duration>,
}

impl FleetReader {
    /// Finds a fleet below `slow`. `clock` has to be as right as those of the members. Errors: there is no such fleet.
    pub fn open(slow: &dyn Dir, fleet: &str, clock: Arc<dyn Clock>) -> Result<FleetReader> {
        let dir = dir_of(slow, fleet)?;
        let Some((size, error)) = agreed(&*dir)? else {
            let what = format!("what the members of fleet {fleet} agree on is not readable");
            return Err(Error::refused(what, "see whether .dlio-fs/fleet on the slow tier is damaged"));
        };
        let seen = vec![None; size as usize];
        Ok(FleetReader { dir, fleet: fleet.to_owned(), error, clock, seen, looked: None })
    }

    /// For how long a member of this fleet must be silent before somebody may forget it.
    pub fn forget_after(&self) -> Duration {
        FleetPeriods::of(self.seen.len()).forget
    }

    /// Reads all leases.
    pub fn look(&mut self) -> Result<FleetStatus> {
        let asked = nanos(self.clock.now());
        let uptime = self.clock.uptime();
        let watched = FleetPeriods::of(self.seen.len()).watched;
        let has_watched = self.looked.is_some_and(|at| uptime.saturating_sub(at) < watched);
        for (slot, seen) in (0..).zip(&mut self.seen) {
            let began = nanos(self.clock.now());
            let Some(lease) = read_settled(&*self.dir, slot)? else { continue };
            let ended = nanos(self.clock.now());
            let errors = 2 * self.error.as_nanos() as u64;
            SeenLease::renew(seen, lease, ReadAt { began, ended, uptime, has_watched, errors });
        }
        self.looked = Some(uptime);
        Ok(rule::fleet_status(&self.fleet, &self.seen, self.error, asked, Some(Duration::ZERO)))
    }
}
