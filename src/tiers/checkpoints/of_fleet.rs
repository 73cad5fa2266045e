//! Checkpoints that the members of a fleet write together: whether the slow tier has the parts of all of them. This
//! member's index knows only its own.
//!
//! 1. This member's part is complete and published ([`UnprovedCheckpoint`]).
//! 2. A sign shows that all members have finished writing: the checkpoint is one file, so that no other member has a
//!    part; or this member has given its directory the name, after all else that it wrote there; or a marker exists
//!    that any member made after this member's part, in the checkpoint's directory, or above it with the checkpoint's
//!    step in it. Saves overlap: a pointer made after a part may name the checkpoint before. Without such a sign more
//!    may follow, and the checkpoint does not count as safe.
//! 3. `finished`, the time after that, is noted: whatever was answered before the marker was made was logged by then.
//! 4. The leases say that all members are up to `finished`: all that they had logged is durable on the slow tier,
//!    including the marker. A forgotten member stays where its last lease was, so nothing after that is ever safe.
//! 5. No other member takes a forgotten member's slot before the checkpoint began: the loss of a part would be
//!    forgotten.
//!
//! A marker of an earlier save under the same names is not mistaken for this one's: a call is answered once its `end`
//! is past on every clock, so a marker that was begun after the answer has a later time.
//!
//! The sign itself is on the slow tier, so everything before it is there, too (the fleet's order); step 4 only adds
//! that it is durable, and that no member was forgotten. So `elsewhere`, the time from which the others can read all of
//! it, is `finished`, or the time at which this member published its own marker. All this happens in the background,
//! once a second; a reader of `latest-safe` gets the last result.

use std::time::Duration;

use crate::error::Result;
use crate::stats::fleet::{FleetStatus, MadeWithin};
use crate::tiers::checkpoints::index::{FLEET_MARKERS, POINTERS, UnprovedCheckpoint, join};
use crate::tiers::checkpoints::step::step_in;
use crate::tiers::disk::Kind;
use crate::tiers::disk::layout::split;
use crate::tiers::fleet::{Fleet, nanos};
use crate::tiers::log::record::Path;
use crate::tiers::{Cx, OpenMode, Progress, Tiers};

/// Time between two looks.
const ROUND: Duration = Duration::from_secs(1);
/// How many of the newest checkpoints are looked at.
const AT_ONCE: usize = 2;
/// After this long the leases are read for a checkpoint only now and then.
const OLD: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(30);
/// A pointer names its checkpoint in its first bytes.
const POINTER_MAX: usize = 256;

impl Tiers {
    /// One look at the newest checkpoints of which other members may have parts.
    pub fn check_parts(&self) -> Result<Progress> {
        let Some(fleet) = self.order.fleet() else { return Ok(Progress::Idle) };
        let writing = self.being_written();
        let unproved = {
            let st = self.state.lock();
            let moment = self.moment(&st, &writing);
            st.checkpoints.ask(|index| index.unproved(&moment, AT_ONCE))
        }; // 1
        for one in &unproved {
            match one.finished {
                // With a clock that is off, its times mean nothing to others.
                None if fleet.has_right_clock() => self.note_look(one, self.is_finished(fleet, one)), // 2, 3
                None => {}
                Some(finished) => self.ask_leases(fleet, one, finished), // 4, 5
            }
        }
        Ok(Progress::Wait(ROUND))
    }

    fn ask_leases(&self, fleet: &Fleet, one: &UnprovedCheckpoint, finished: Duration) {
        let now = self.uptime();
        // A question makes the background read all leases again.
        if one.asked.is_some_and(|at| now.saturating_sub(at) < pause(one, now).max(fleet.periods.question)) {
            return;
        }
        // In a large fleet, the collected leases answer for all.
        let collected = fleet.is_all_there(finished, one.began);
        let read = || self.fleet_status().is_some_and(|status| has_all(&status, one, finished));
        let has_all = collected.unwrap_or_else(read);
        let mut st = self.state.lock();
        st.checkpoints.change(|index| index.asked_leases(one, now));
        if has_all {
            st.checkpoints.change(|index| index.has_all_parts(one, if one.is_ours { one.published } else { finished }));
        }
    }

    fn note_look(&self, one: &UnprovedCheckpoint, is_finished: bool) {
        // After the look, so that what it found existed by then. Rounded up, like the times of a verdict.
        let now = Duration::from_millis(nanos(self.now()).div_ceil(1_000_000));
        let finished = is_finished.then_some(now);
        self.state.lock().checkpoints.change(|index| index.note_parts_check(one, self.uptime(), finished));
    }

    /// Step 2. What cannot be looked at is no sign; other work reports a slow tier that does not answer.
    fn is_finished(&self, fleet: &Fleet, one: &UnprovedCheckpoint) -> bool {
        if one.is_ours {
            return true;
        }
        // A lookup of a name needs the names that others publish.
        fleet.note_use();
        let (above, _) = split(&one.path);
        let is_later = |path: &Path| one.markers.contains(path) || self.is_later(path, one.end);
        FLEET_MARKERS.iter().any(|marker| {
            let [inside, beside] = [&one.path[..], above].map(|dir| join(dir, marker.as_bytes()));
            let is_pointer = POINTERS.contains(marker);
            let is_of_it = |step: Option<u64>| step.is_none() || one.step.is_none() || step == one.step;
            is_later(&inside) && (!is_pointer || is_of_it(self.pointed_to(&inside)))
                || is_pointer && is_later(&beside) && one.step.is_some() && self.pointed_to(&beside) == one.step
        })
    }

    /// Whether the file at this path was written after this `end`. A directory is as late as its contents.
    fn is_later(&self, path: &[u8], end: u64) -> bool {
        let found = self.at_path(&Cx::internal(), path, |ino| self.getattr(&Cx::internal(), ino));
        found.is_ok_and(|found| found.kind == Kind::File && (nanos(found.mtime) > end || left_out!(MarkerLater)))
    }

    /// The step that the first line of the file at this path names, whichever member made it.
    fn pointed_to(&self, path: &[u8]) -> Option<u64> {
        let cx = Cx::internal();
        let text = self.at_path(&cx, path, |ino| {
            let file = self.open(&cx, ino, OpenMode::default())?;
            let mut text = vec![0; POINTER_MAX];
            let got = self.read(&cx, &file, &mut text, 0);
            self.release(&cx, file);
            text.truncate(got?);
            Ok(text)
        });
        let text = text.unwrap_or_default();
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        step_in(line).map(|(_, step)| step)
    }
}

/// Between two questions to the leases about one checkpoint. One that stays unsafe for long waits for an operator.
fn pause(one: &UnprovedCheckpoint, now: Duration) -> Duration {
    let is_old = one.looked.is_some_and(|since| now.saturating_sub(since) > OLD);
    if is_old { PAUSE } else { Duration::ZERO }
}

/// Steps 4 and 5.
fn has_all(status: &FleetStatus, one: &UnprovedCheckpoint, finished: Duration) -> bool {
    let made = MadeWithin { began: one.began.saturating_sub(2 * status.clock_error), finished };
    // A caller that accepts a loss continues without a part, and gets none back.
    status.answer(finished).is_final() && !status.members.iter().any(|member| member.may_have_lost(made))
}
