//! A copy of a member's fast tier takes the member's place in the fleet after its node was lost. The steps on the slow
//! tree are here; `recovery/handover.rs` has all of them.
//!
//! The others continue to wait for the member: its slot keeps the lease, so nothing later is published before the
//! events in the copy. Events that the member had logged and the copy lacks are missing; the lease says from when on
//! everything is there again.

use crate::error::{Error, Result};
use crate::tiers::fleet::forget::Watched;
use crate::tiers::fleet::members::note_handed_on;
use crate::tiers::fleet::partner::CopyNote;
use crate::tiers::fleet::rule::MemberLease;

impl Watched {
    /// The turn that the slot names.
    pub(crate) fn turn(&self) -> u32 {
        self.first.turn
    }

    /// Step 5.
    pub(crate) fn note_turn_over(&self, turn: u32) -> Result<()> {
        note_handed_on(&*self.dir, &MemberLease { turn, ..self.first.clone() })
    }

    /// Refuses a copy that the member's lease does not name: the fleet may have gone on without it.
    pub(crate) fn expect_good(&self, note: Option<&CopyNote>) -> Result<()> {
        let is_named = |note: &CopyNote| note.member == self.first.member && note.copy == self.first.copy;
        if note.is_some_and(is_named) && self.first.copy != 0 || left_out!(StaleCopy) {
            return Ok(());
        }
        let what = match (note, self.first.copy) {
            (_, 0) => "the member's lease names no copy: the last one was given up",
            (None, _) => "there is no whole copy of the member's fast tier in that directory",
            (Some(_), _) => "the member's lease names another copy than the one in that directory: it is an old one",
        };
        let remedy = "mount the member's own fast tier again, or forget the member without --partner";
        Err(Error::refused(what, remedy))
    }

    /// Step 4. The caller has watched for long enough.
    pub(crate) fn hand_on(&self) -> Result<()> {
        let next = MemberLease {
            turn: self.first.turn + 1,
            // The beats of a slot only grow.
            beat: self.first.beat + 1,
            copy: 0,
            lost: Some(self.first.loss()),
            ..self.first.clone()
        };
        self.give_slot_to(&next, || Ok(())) // 4
    }
}
