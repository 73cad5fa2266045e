//! Which member collects the leases of a large fleet, and when each looks at the result. Pure.
//!
//! The collector is the member that wrote the file last (`smallest.rs`). It reads all leases once in a period, some in
//! each round, and writes the smallest. All members look at the file: with something pending four times in a period,
//! else once. A member that finds it unchanged for three periods, and whose turn it is, *claims* it: it writes the same
//! again in its own name. The collector also does so once in a period while it reads, because that may take longer than
//! three. The turns are half a period apart and repeat after 16 slots, so that a turn comes soon whichever members are
//! left, and few members share one. Members that share one see at their next look which of them was the last: only that
//! one begins to collect. Two collectors cost more requests, and do no harm.
//!
//! A finished pass is always written, even if another member has claimed the file; otherwise slow passes never publish.
//! A pass is given up only if another member has since written its own reading, or keeps announcing that it reads: of
//! two collectors, one remains.

use std::ops::Range;
use std::time::Duration;

use crate::tiers::fleet::periods::FleetPeriods;
use crate::tiers::fleet::smallest::{SeenSmallest, SmallestHead};

/// After this many slots the turns repeat.
const TURNS: u32 = 16;
/// A file not renewed for this many periods has no collector.
const PATIENCE: u32 = 3;

/// One member's part.
#[derive(Debug)]
pub(crate) struct CollectorDuty {
    slot: u32,
    size: u32,
    periods: FleetPeriods,
    /// The file as we read it last. `None`: there is none.
    seen: Option<SmallestHead>,
    /// Our uptime at the first look, or claim, that found this.
    changed: Option<Duration>,
    looked: Option<Duration>,
    has_looked: bool,
    /// When we wrote it last.
    written: Option<Duration>,
    /// We have claimed it since the last look, so the next look shows our name or a later claimer's.
    has_claimed: bool,
    pass: Option<LeasePass>,
    /// When our last pass for the file began.
    collected: Option<Duration>,
}

/// One reading of all leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeasePass {
    /// The first slot that was not read yet.
    next: u32,
    pub(crate) began: Duration,
    /// For the file, not only because a caller has asked.
    pub(crate) is_for_file: bool,
    /// A caller has asked.
    is_asked: bool,
}

/// What a member of a large fleet knows of the others.
#[derive(Debug)]
pub(super) struct CollectedFleet {
    pub(super) duty: CollectorDuty,
    pub(super) seen: Option<SeenSmallest>,
}

impl CollectedFleet {
    pub(super) fn new(duty: CollectorDuty) -> CollectedFleet {
        CollectedFleet { duty, seen: None }
    }

    /// Whether the lease of this slot is among the smallest.
    pub(super) fn has(&self, slot: u32) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.has(slot))
    }
}

impl CollectorDuty {
    pub(crate) fn new(slot: u32, size: u32, periods: FleetPeriods) -> CollectorDuty {
        let (seen, changed, looked, written) = (None, None, None, None);
        CollectorDuty {
            slot,
            size,
            periods,
            seen,
            changed,
            looked,
            has_looked: false,
            written,
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

    /// Notes that the file was read. `None`: there is none.
    pub(crate) fn note_look(&mut self, seen: Option<SmallestHead>, now: Duration) {
        if seen.is_some_and(|seen| self.is_done_by_another(seen)) {
            self.give_up_pass();
        }
        if self.seen != seen || self.changed.is_none() {
            (self.seen, self.changed) = (seen, Some(now));
        }
        (self.looked, self.has_looked, self.has_claimed) = (Some(now), true, false);
    }

    /// Whether this file shows that another member collects. When our pass began, the file was ours, so any change came
    /// after that.
    fn is_done_by_another(&self, now: SmallestHead) -> bool {
        let Some(before) = self.seen.filter(|_| now.by.is_some_and(|by| by != self.slot)) else { return false };
        // That member has finished a reading, or has renewed its claim.
        now.read > before.read || now.by == before.by && now.round != before.round
    }

    /// Leaves the file to another member. A caller that has asked still gets the answer.
    fn give_up_pass(&mut self) {
        self.pass = self.pass.filter(|pass| pass.is_asked).map(|pass| LeasePass { is_for_file: false, ..pass });
    }

    /// Notes that the file could not be read, for example while it is being written.
    pub(crate) fn note_unreadable(&mut self, now: Duration) {
        (self.looked, self.has_looked) = (Some(now), true);
        self.changed = self.changed.or(Some(now));
    }

    /// Whether we wrote it last, and have looked at it since.
    pub(crate) fn is_collector(&self) -> bool {
        self.seen.is_some_and(|seen| seen.by == Some(self.slot))
    }

    /// Whether to claim the file, right after a look at it: the next look shows the outcome. As the collector: whether
    /// to announce that we are still reading.
    pub(crate) fn is_to_claim(&mut self, now: Duration) -> bool {
        if !std::mem::take(&mut self.has_looked) {
            return false;
        }
        let turn = self.periods.period * (self.slot % TURNS) / 2;
        let patience = match self.seen.map(|seen| seen.by) {
            Some(Some(by)) if by == self.slot => return self.is_to_say_so(now),
            Some(Some(_)) => PATIENCE * self.periods.period + turn,
            // It has no writer any more, or none yet.
            _ => turn,
        };
        self.changed.is_some_and(|changed| now.saturating_sub(changed) >= patience)
    }

    fn is_to_say_so(&self, now: Duration) -> bool {
        let reads = self.pass.is_some_and(|pass| pass.is_for_file);
        reads && self.written.is_none_or(|written| now.saturating_sub(written) >= self.periods.period)
    }

    pub(crate) fn note_claim(&mut self, now: Duration) {
        (self.changed, self.looked, self.has_claimed) = (Some(now), Some(now), true);
        self.written = Some(now);
    }

    /// Notes that a pass's result was written.
    pub(crate) fn note_written(&mut self, now: Duration) {
        self.written = Some(now);
    }

    /// The round of the next file that we write.
    pub(crate) fn next_round(&self) -> u64 {
        self.seen.map_or(0, |seen| seen.round).saturating_add(1)
    }

    /// Begins to read all leases if it is due. `is_asked`: a caller wants to know all. Returns whether a pass has begun.
    pub(crate) fn begin_pass(&mut self, is_asked: bool, now: Duration) -> bool {
        let is_due = self.collected.is_none_or(|began| now.saturating_sub(began) >= self.periods.period);
        let is_for_file = self.is_collector() && is_due;
        if self.pass.is_some() || !(is_for_file || is_asked) {
            return false;
        }
        if is_for_file {
            self.collected = Some(now);
        }
        self.pass = Some(LeasePass { next: 0, began: now, is_for_file, is_asked });
        true
    }

    /// The slots to read now.
    pub(crate) fn next_slots(&mut self) -> Range<u32> {
        let Some(pass) = &mut self.pass else { return 0..0 };
        let slots = self.periods.next_slots(pass.next, self.size);
        pass.next = slots.end;
        slots
    }

    /// The pass, if all of it was read.
    pub(crate) fn has_read_all(&mut self) -> Option<LeasePass> {
        self.pass.filter(|pass| pass.next >= self.size)
    }

    /// Ends the pass, if all of it was read, and returns it.
    pub(crate) fn end_pass(&mut self) -> Option<LeasePass> {
        self.pass.take_if(|pass| pass.next >= self.size)
    }

    /// Stops collecting for now. Returns whether this member was the collector.
    pub(crate) fn stop(&mut self) -> bool {
        self.give_up_pass();
        let was_collector = self.is_collector();
        if let Some(seen) = &mut self.seen {
            seen.by = seen.by.filter(|by| *by != self.slot);
        }
        was_collector
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(round: u64, read: u64, by: u32) -> Option<SmallestHead> {
        Some(SmallestHead { round, read, by: Some(by) })
    }

    /// The collector in slot 3, which has read all leases and not looked again since it claimed the file.
    fn reader_of_all(is_asked: bool) -> CollectorDuty {
        let mut duty = CollectorDuty::new(3, 65, FleetPeriods::of(65));
        duty.note_look(head(7, 5, 3), Duration::ZERO);
        assert!(duty.begin_pass(is_asked, Duration::ZERO));
        while !duty.next_slots().is_empty() {}
        duty
    }

    /// Whether the rest of the pass is for the file, after these looks. `None`: no pass is left.
    fn left_after(is_asked: bool, looks: &[Option<SmallestHead>]) -> Option<bool> {
        let mut duty = reader_of_all(is_asked);
        looks.iter().for_each(|look| duty.note_look(*look, Duration::from_secs(1)));
        duty.end_pass().map(|pass| pass.is_for_file)
    }

    /// Otherwise each member would lose its pass to the next one, and no file would ever be written.
    #[test]
    fn a_claim_of_another_member_takes_no_pass_away() {
        assert_eq!(left_after(false, &[head(8, 5, 3)]), Some(true), "our own");
        assert_eq!(left_after(false, &[head(8, 5, 4)]), Some(true));
        assert_eq!(left_after(false, &[head(8, 5, 4), head(8, 5, 4)]), Some(true), "it does nothing");
        assert_eq!(left_after(false, &[head(8, 5, 4), head(9, 5, 5)]), Some(true), "each for the first time");
    }

    #[test]
    fn a_pass_is_given_up_if_another_member_has_read_all_or_goes_on_reading() {
        assert_eq!(left_after(false, &[head(8, 8, 4)]), None);
        assert_eq!(left_after(false, &[head(9, 8, 4)]), None, "and has begun again");
        assert_eq!(left_after(false, &[head(8, 5, 4), head(9, 5, 4)]), None);
        assert_eq!(left_after(true, &[head(8, 8, 4)]), Some(false), "who has asked gets the answer");
    }

    #[test]
    fn whoever_reads_says_so_once_in_a_period() {
        let (mut duty, period) = (reader_of_all(false), FleetPeriods::of(65).period);
        let mut is_to_claim = |at| {
            duty.note_look(head(7, 5, 3), at);
            let is_to_claim = duty.is_to_claim(at);
            if is_to_claim {
                duty.note_claim(at);
            }
            is_to_claim
        };
        assert_eq!(
            [4, 7, 8, 11, 12].map(|quarter| is_to_claim(period * quarter / 4)),
            [true, false, true, false, true]
        );
        duty.end_pass();
        duty.note_look(head(7, 5, 3), period * 9);
        assert!(!duty.is_to_claim(period * 9), "nothing is being read");
    }
}
