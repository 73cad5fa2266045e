//! Checkpoints that the members of a fleet write together: whether the slow tier has the parts of all of them. This
//! member's index knows only its own.
//!
//! 1. This member's part is complete and published ([`UnprovedCheckpoint`]).
//! 2. There is a sign that all members had finished writing: this member has made the marker, or the checkpoint is one
//!    file, which nobody else has a part of; else a marker of another member is there that was made after this member's
//!    part, in the checkpoint's directory, or above it with the checkpoint's step in it. Without such a sign nobody
//!    knows what is still to come, and the checkpoint is not taken for safe.
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

use crate::error::{Error, Result};
use crate::stats::fleet::{FleetStatus, FleetVerdict};
use crate::tiers::checkpoints::index::{MARKERS, UnprovedCheckpoint, step_in};
use crate::tiers::disk::layout::split;
use crate::tiers::fleet::nanos;
use crate::tiers::{Cx, OpenMode, Progress, Tiers};

/// Time between two looks.
const ROUND: Duration = Duration::from_secs(1);
/// So many checkpoints are looked at, the newest ones.
const AT_ONCE: usize = 2;
/// A marker that comes later is not looked for.
const PATIENCE: Duration = Duration::from_secs(600);
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
            st.checkpoints.unproved(&moment, AT_ONCE)
        }; // 1
        for one in &unproved {
            // With a clock that is off, its moments are no others' moments.
            if one.finished.is_none() && fleet.has_right_clock() && self.is_finished(one)? {
                self.note_look(one, true); // 2, 3
            } else if one.finished.is_none() {
                self.note_look(one, false);
            }
            let Some(finished) = one.finished else { continue };
            // Asking makes the background read the leases again.
            if self.fleet_status().is_some_and(|status| has_all(&status, one, finished)) {
                let elsewhere = if one.is_ours { one.published } else { finished };
                self.state.lock().checkpoints.has_all_parts(one, elsewhere); // 4, 5
            }
        }
        Ok(Progress::Wait(ROUND))
    }

    fn note_look(&self, one: &UnprovedCheckpoint, is_finished: bool) {
        // After the look: what it found was there by then.
        let finished = if is_finished { self.fleet_status().map(|status| status.asked_at) } else { None };
        self.state.lock().checkpoints.looked_for_parts(one, self.uptime(), finished);
    }

    /// Step 2.
    fn is_finished(&self, one: &UnprovedCheckpoint) -> Result<bool> {
        let is_late = one.looked.is_some_and(|since| self.uptime().saturating_sub(since) > PATIENCE);
        if one.is_ours || is_late {
            return Ok(one.is_ours);
        }
        for marker in MARKERS {
            let marker = marker.as_bytes();
            let inside = [&one.path, &b"/"[..], marker].concat();
            let (above, _) = split(&one.path);
            let beside = [above, b"/", marker].concat();
            if self.is_later(&inside, one.end)? || (self.is_later(&beside, one.end)? && self.points_to(&beside, one)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there is a file at this path that was written after this `end`.
    fn is_later(&self, path: &[u8], end: u64) -> Result<bool> {
        let written = self.at_path(&Cx::internal(), path, |ino| Ok(self.getattr(&Cx::internal(), ino)?.mtime));
        Ok(absent(written)?.is_some_and(|written| nanos(written) > end || left_out!(MarkerLater)))
    }

    /// Whether the first line of the file at this path names the checkpoint's step.
    fn points_to(&self, path: &[u8], one: &UnprovedCheckpoint) -> Result<bool> {
        let cx = Cx::internal();
        let text = self.at_path(&cx, path, |ino| {
            let file = self.open(&cx, ino, OpenMode { read: true, ..OpenMode::default() })?;
            let mut text = vec![0; POINTER_MAX];
            let got = self.read(&cx, &file, &mut text, 0);
            self.release(&cx, file);
            text.truncate(got?);
            Ok(text)
        });
        let Some(text) = absent(text)? else { return Ok(false) };
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        Ok(one.step.is_some() && step_in(line).map(|(_, step)| step) == one.step)
    }
}

/// `None`: no such file. An error: the slow tier does not answer.
fn absent<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(Error::Posix(_)) => Ok(None),
        found => found.map(Some),
    }
}

/// Steps 4 and 5.
fn has_all(status: &FleetStatus, one: &UnprovedCheckpoint, finished: Duration) -> bool {
    let began = one.began.saturating_sub(2 * status.clock_error);
    let has_nothing_lost = status.members.iter().all(|member| member.lost_before.is_none_or(|at| began > at));
    status.answer(finished).verdict == FleetVerdict::Safe && has_nothing_lost
}
