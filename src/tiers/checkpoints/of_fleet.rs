//! Checkpoints that the members of a fleet write together: whether the slow tier has the parts of all of them. This
//! member's index knows only its own.
//!
//! 1. This member's part is complete and published ([`UnprovedCheckpoint`]).
//! 2. There is a sign that all members had finished writing: the checkpoint is one file, which nobody else has a part of, or
//!    this member has given its directory the name, after all else that it wrote there; else a marker is there that somebody,
//!    this member or another, made after this member's part, in the checkpoint's directory, or above it with the checkpoint's
//!    step in it. Saves overlap: a pointer that was made after a part may speak of the checkpoint before. Without such a sign
//!    nobody knows what is still to come, and the checkpoint is not taken for safe.
//! 3. `finished`, the moment behind that, is noted: whatever was answered before the marker was made was logged by then.
//! 4. The leases say that all members are up to `finished`: all that they had logged is durable on the slow tier, the
//!    marker as well. A forgotten member stays where its last lease was, so nothing behind that is ever safe.
//! 5. Nobody takes a forgotten member's slot before the checkpoint began: a lost part would be no longer known.
//!
//! A marker of an earlier save under the same names is not taken for this one's: a call is answered once its `end` is
//! past on every clock, so a marker that was begun after the answer has a later time.
//!
//! The sign itself is on the slow tier, so everything before it is there by then (the fleet's order), and step 4 only
//! adds that it is durable, and that nobody was forgotten. So `elsewhere`, the moment from which the others can read
//! all of it, is `finished`, or that at which this member published its own marker. All this is the background's work,
//! once a second; whoever asks for `latest-safe` finds what it has noted.

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
/// So many checkpoints are looked at, the newest ones.
const AT_ONCE: usize = 2;
/// Of a checkpoint that was looked at for so long, the leases are asked about now and then only.
const OLD: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(30);
/// A pointer names its checkpoint in its first bytes.
const POINTER_MAX: usize = 256;

impl Tiers {
    /// One look at the newest checkpoints of which other members may have parts.
    pub fn look_at_parts(&self) -> Result<Progress> {
        let Some(fleet) = &self.fleet else { return Ok(Progress::Idle) };
        let writing = self.being_written();
        let unproved = {
            let st = self.state.lock();
            let moment = self.moment(&st, &writing);
            st.checkpoints.ask(|index| index.unproved(&moment, AT_ONCE))
        }; // 1
        for one in &unproved {
            match one.finished {
                // With a clock that is off, its moments are no others' moments.
                None if fleet.has_right_clock() => self.note_look(one, self.is_finished(fleet, one)), // 2, 3
                None => {}
                Some(finished) => self.ask_leases(fleet, one, finished), // 4, 5
            }
        }
        Ok(Progress::Wait(ROUND))
    }

    fn ask_leases(&self, fleet: &Fleet, one: &UnprovedCheckpoint, finished: Duration) {
        let now = self.uptime();
        // Asking makes the background read all leases again.
        if one.asked.is_some_and(|at| now.saturating_sub(at) < pause(one, now).max(fleet.periods.question)) {
            return;
        }
        // In a large fleet, what one member has collected says it for all.
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
        // After the look: what it found was there by then.
        // Rounded up, as the moments of a verdict are.
        let now = Duration::from_millis(nanos(self.now()).div_ceil(1_000_000));
        let finished = is_finished.then_some(now);
        self.state.lock().checkpoints.change(|index| index.looked_for_parts(one, self.uptime(), finished));
    }

    /// Step 2. What cannot be looked at is no sign: a slow tier that does not answer is told by other work.
    fn is_finished(&self, fleet: &Fleet, one: &UnprovedCheckpoint) -> bool {
        if one.is_ours {
            return true;
        }
        // Whoever looks for a name wants to hear of it.
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

    /// Whether there is a file at this path that was written after this `end`. A directory is as late as what is in it.
    fn is_later(&self, path: &[u8], end: u64) -> bool {
        let found = self.at_path(&Cx::internal(), path, |ino| self.getattr(&Cx::internal(), ino));
        found.is_ok_and(|found| found.kind == Kind::File && (nanos(found.mtime) > end || left_out!(MarkerLater)))
    }

    /// The step that the first line of the file at this path names, whoever made it.
    fn pointed_to(&self, path: &[u8]) -> Option<u64> {
        let cx = Cx::internal();
        let text = self.at_path(&cx, path, |ino| {
            let file = self.open(&cx, ino, OpenMode { read: true, ..OpenMode::default() })?;
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

/// Between two questions to the leases about one checkpoint. One that is not safe for so long waits for somebody.
fn pause(one: &UnprovedCheckpoint, now: Duration) -> Duration {
    let is_old = one.looked.is_some_and(|since| now.saturating_sub(since) > OLD);
    if is_old { PAUSE } else { Duration::ZERO }
}

/// Steps 4 and 5.
fn has_all(status: &FleetStatus, one: &UnprovedCheckpoint, finished: Duration) -> bool {
    let made = MadeWithin { began: one.began.saturating_sub(2 * status.clock_error), finished };
    // Whoever accepts a loss goes on without a part, and gets none back.
    status.answer(finished).is_final() && !status.members.iter().any(|member| member.may_have_lost(made))
}
