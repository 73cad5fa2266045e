//! A copy of a lost member's fast tier takes the member's place (`tiers/partner.rs` makes the copy):
//!
//! 1. The caller watches the member's lease, as before it is forgotten (`fleet/forget.rs`).
//! 2. Refuse a copy that the lease does not name: it was given up, and the fleet has gone on without it.
//! 3. Write the copy's `super`, with the next turn: from here on it is a fast tier, but no mount takes it while it has
//!    notes.
//! 4. Replace the member's lease by one with the next turn, by one rename. If the member comes back, it finds that its
//!    turn is over, and publishes nothing.
//! 5. Write a file with the member's id and the turn that is over: it keeps the member's own fast tier from joining
//!    this fleet again, even after its slot has gone to another member.
//! 6. Cut the copy's log to its newest note. What is behind was not durable there, although its lines may say that it
//!    was durable on the fast tier.
//! 7. Remove the notes. From here on the copy can be mounted, and resumes as the member.
//!
//! Before the rename nothing has happened to the fleet, or to the copy's contents: the member could still come back and
//! go on with its copy. It would refuse a directory with a `super`, and make a new copy once an operator has removed
//! that one. The turn in `super` is written before the one in the slot: the other order could leave a slot that no fast
//! tier can take. After a crash behind the rename, the same command continues with step 5.

use std::sync::Arc;

use crate::error::{Context, Error, Result};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, ensure_dir, remove_leftover};
use crate::tiers::disk::{Access, Dir};
use crate::tiers::fleet::forget::Watched;
use crate::tiers::fleet::partner::{CopyNote, NOTE_LEN, NOTES};
use crate::tiers::log;
use crate::tiers::recovery::identity::{give_turn, read_slow_id, turn_of};

/// What a directory has of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundCopy {
    /// It may take the member's place.
    Good,
    /// It has the member's place already: only the last steps may be left to do.
    InPlace,
}

impl Watched {
    /// Step 2 by itself.
    pub fn find_copy(&self, partner: &Arc<dyn Dir>) -> Result<FoundCopy> {
        let ours = self.copy_in(partner)?;
        if self.is_in_place(&*ours)? {
            return Ok(FoundCopy::InPlace);
        }
        let note = read_note(&*ours)?;
        self.expect_good(note.as_ref()).map(|()| FoundCopy::Good)
    }

    fn copy_in(&self, partner: &Arc<dyn Dir>) -> Result<Arc<dyn Dir>> {
        let fast = partner.dir(self.id().as_bytes()).at("open", format!("the copy {}", self.id()))?;
        fast.dir(OURS).at("open", "the copy's .dlio-fs")
    }

    /// Whether the copy's turn is that of the slot.
    fn is_in_place(&self, ours: &dyn Dir) -> Result<bool> {
        Ok(self.turn() > 0 && turn_of(ours)? == Some(self.turn()))
    }

    /// Steps 2 to 7, or those that are left of them. `partner` is the directory that has the copies, `slow` the slow
    /// tree. Unless the copy is in place already, the caller has watched for long enough. The copy is in the directory
    /// with the member's id.
    pub fn hand_over(&self, slow: &Arc<dyn Dir>, partner: &Arc<dyn Dir>) -> Result<()> {
        let ours = self.copy_in(partner)?;
        let note = read_note(&*ours)?;
        if self.is_in_place(&*ours)? {
            self.note_turn_over(self.turn() - 1)?; // 5
            // Without notes it is a fast tier like any other, which may be mounted by now.
            return note.map_or(Ok(()), |note| cut_to_note(&*ours, &note));
        }
        self.expect_good(note.as_ref())?; // 2
        let note = note.ok_or_else(|| Error::refused("the copy has no note", "forget the member without --partner"))?;
        for name in [&b"pool"[..], b"quarantine"] {
            ensure_dir(&*ours, name)?;
        }
        let tree = read_slow_id(&**slow)?.ok_or_else(|| {
            Error::refused("the slow tier has no .dlio-fs/id", "is the slow tier not mounted? Name the fleet's own one")
        })?;
        give_turn(&*ours, self.id(), tree, self.turn() + 1)?; // 3
        self.hand_on()?; // 4
        self.note_turn_over(self.turn())?; // 5
        cut_to_note(&*ours, &note)
    }
}

/// Steps 6 and 7.
fn cut_to_note(ours: &dyn Dir, note: &CopyNote) -> Result<()> {
    let logs = ours.dir(b"log").at("open", "the copy's log")?;
    log::cut_to(&*logs, note.segment, note.len)?; // 6
    remove_leftover(ours, NOTES)?; // 7
    ours.sync().at("fsync", "the copy's .dlio-fs")
}

fn read_note(ours: &dyn Dir) -> Result<Option<CopyNote>> {
    let file = absent_is_none(ours.open(NOTES, Access::Read)).at("open", "the copy's notes")?;
    let Some(file) = file else { return Ok(None) };
    let mut bytes = [0; 2 * NOTE_LEN];
    let got = file.read_into(&mut bytes, 0).at("read", "the copy's notes")?;
    Ok(CopyNote::newest(got))
}
