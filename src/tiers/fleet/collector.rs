//! Who collects the leases of a large fleet, and when each member looks at what was collected. Pure.
//!
//! The collector is the member that wrote the file last (`smallest.rs`). It reads all leases once in a period, some in each
//! round, and writes the smallest. All members look at the file: with something pending four times in a period, else
//! once. One that finds it unchanged for three periods and its turn *claims* it: it writes the same again in its own name.
//! The turns are half a period apart and repeat after 16 slots, so that somebody's turn comes soon whoever is left, and
//! few members have the same one. Those that do nevertheless find at their next look that one of them was the last: only
//! that one begins to collect. Nothing depends on there being one collector only, but for the number of requests.

use std::ops::Range;
use std::time::Duration;

use crate::tiers::fleet::periods::FleetPeriods;

/// After so many slots the turns repeat.
const TURNS: u32 = 16;
/// A file that nobody has renewed for so many periods has no collector.
const PATIENCE: u32 = 3;

/// One member's part.
#[derive(Debug)]
pub(crate) struct CollectorDuty {
    slot: u32,
    size: u32,
    periods: FleetPeriods,
    /// The round of the file and who wrote it, as we read it last. `None`: there is no file.
    seen: Option<(u64, Option<u32>)>,
    /// Our uptime at the first look, or claim, that found this.
    changed: Option<Duration>,
    looked: Option<Duration>,
    has_looked: bool,
    /// It has our name since then, or that of whoever was later.
    has_claimed: bool,
    pass: Option<LeasePass>,
    /// When the last pass of ours began that was for the file.
    collected: Option<Duration>,
}

/// One reading of all leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeasePass {
    /// The first slot that was not read yet.
    next: u32,
    pub(crate) began: Duration,
    /// For the file, and not only because somebody has asked.
    pub(crate) is_for_file: bool,
}

impl CollectorDuty {
    pub(crate) fn new(slot: u32, size: u32, periods: FleetPeriods) -> CollectorDuty {
        let (seen, changed, looked) = (None, None, None);
        CollectorDuty {
            slot,
            size,
            periods,
            seen,
            changed,
            looked,
            has_looked: false,
            has_claimed: false,
            pass: None,
            collected: None,
        }
    }

    /// Whether to look at the file.
    pub(crate) fn is_to_look(&self, has_pending: bool, now: Duration) -> bool {
        let FleetPeriods { busy, period, .. } = self.periods;
        let least = if has_pending || self.has_claimed || self.is_collector() { busy } else { period };
        self.looked.is_none_or(|looked| now.saturating_sub(looked) >= least)
    }

    /// The file was read: its round, and who wrote it. `None`: there is none.
    pub(crate) fn note_look(&mut self, seen: Option<(u64, Option<u32>)>, now: Duration) {
        if self.seen != seen || self.changed.is_none() {
            (self.seen, self.changed) = (seen, Some(now));
        }
        (self.looked, self.has_looked, self.has_claimed) = (Some(now), true, false);
    }

    /// It could not be read, as while it is being written.
    pub(crate) fn note_unreadable(&mut self, now: Duration) {
        (self.looked, self.has_looked) = (Some(now), true);
        self.changed = self.changed.or(Some(now));
    }

    /// Whether we wrote it last, and it was read since.
    pub(crate) fn is_collector(&self) -> bool {
        self.seen.is_some_and(|(_, by)| by == Some(self.slot))
    }

    /// Whether to claim the file, right after a look at it: what follows from that is seen at the next look.
    pub(crate) fn is_to_claim(&mut self, now: Duration) -> bool {
        if !std::mem::take(&mut self.has_looked) {
            return false;
        }
        let turn = self.periods.period * (self.slot % TURNS) / 2;
        let patience = match self.seen {
            Some((_, Some(by))) if by == self.slot => return false,
            Some((_, Some(_))) => PATIENCE * self.periods.period + turn,
            // Nobody will write it, or nobody has yet.
            _ => turn,
        };
        self.changed.is_some_and(|changed| now.saturating_sub(changed) >= patience)
    }

    pub(crate) fn note_claim(&mut self, now: Duration) {
        (self.changed, self.looked, self.has_claimed) = (Some(now), Some(now), true);
    }

    /// The round of the next file that we write.
    pub(crate) fn next_round(&self) -> u64 {
        self.seen.map_or(0, |(round, _)| round).saturating_add(1)
    }

    /// Begins to read all leases if it is time for that. `is_asked`: somebody wants to know all. Returns whether that is
    /// what has begun.
    pub(crate) fn begin_pass(&mut self, is_asked: bool, now: Duration) -> bool {
        let is_due = self.collected.is_none_or(|began| now.saturating_sub(began) >= self.periods.period);
        let is_for_file = self.is_collector() && is_due;
        if self.pass.is_some() || !(is_for_file || is_asked) {
            return false;
        }
        if is_for_file {
            self.collected = Some(now);
        }
        self.pass = Some(LeasePass { next: 0, began: now, is_for_file });
        true
    }

    /// The slots to read now.
    pub(crate) fn next_slots(&mut self) -> Range<u32> {
        let Some(pass) = &mut self.pass else { return 0..0 };
        let slots = self.periods.next_slots(pass.next, self.size);
        pass.next = slots.end;
        slots
    }

    /// The pass, if all of it was read. It is over.
    pub(crate) fn end_pass(&mut self) -> Option<LeasePass> {
        self.pass.take_if(|pass| pass.next >= self.size)
    }

    /// Nothing is collected any more by this member, for now. Returns whether it was the collector.
    pub(crate) fn stop(&mut self) -> bool {
        self.pass = self.pass.filter(|pass| !pass.is_for_file);
        let was_collector = self.is_collector();
        if let Some((_, by)) = &mut self.seen {
            *by = by.filter(|by| *by != self.slot);
        }
        was_collector
    }
}
