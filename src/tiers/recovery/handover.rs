//! A copy of a lost member's fast tier takes the member's place (`tiers/partner.rs` makes the copy):
//!
//! 1. Somebody watches the member's lease, as before it is forgotten (`fleet/forget.rs`).
//! 2. Refuse a copy that the lease does not name: it was given up, and the fleet has gone on without it.
//! 3. Cut the copy's log to its newest note. What is behind was not durable there, although its lines may say that it was
//!    durable on the fast tier.
//! 4. Write the copy's `super`, with the next turn: from here on it is a fast tier, but no mount of the fleet takes it yet.
//! 5. A file with the member's id and its present turn keeps the member's own fast tier from joining this fleet again.
//! 6. The lease with the next turn takes the place of the member's, by one rename. The member, should it come back, finds
//!    that its turn is over, and publishes nothing. From here on the copy can be mounted, and resumes as the member.
//! 7. Remove the notes.
//!
//! The turn in `super` comes before the one in the slot: until the rename nothing has happened to the fleet, and the member
//! could still come back. A crash in between leaves a copy that is refused until this is done again. The other order would
//! leave a slot that nobody could have.

use std::sync::Arc;

use crate::error::{Context, Error, Result};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, ensure_dir, remove_leftover};
use crate::tiers::disk::{Access, Dir};
use crate::tiers::fleet::forget::Watched;
use crate::tiers::fleet::partner::{CopyNote, NOTE_LEN, NOTES};
use crate::tiers::log;
use crate::tiers::recovery::identity::{give_turn, read_slow_id};

impl Watched {
    /// Step 2 by itself.
    pub fn find_copy(&self, partner: &Arc<dyn Dir>) -> Result<()> {
        self.copy_in(partner).map(drop)
    }

    fn copy_in(&self, partner: &Arc<dyn Dir>) -> Result<(Arc<dyn Dir>, CopyNote)> {
        let fast = partner.dir(self.id().as_bytes()).at("open", format!("the copy {}", self.id()))?;
        let ours = fast.dir(OURS).at("open", "the copy's .dlio-fs")?;
        let note = read_note(&*ours)?;
        self.expect_good(note.as_ref())?;
        let note = note.ok_or_else(|| Error::refused("the copy has no note", "forget the member without --partner"))?;
        Ok((ours, note))
    }

    /// Steps 2 to 7. `partner` is the directory that has the copies, `slow` the slow tree. The caller has watched for long
    /// enough. The copy is in the directory with the member's id.
    pub fn hand_over(&self, slow: &Arc<dyn Dir>, partner: &Arc<dyn Dir>) -> Result<()> {
        let (ours, note) = self.copy_in(partner)?; // 2
        let logs = ours.dir(b"log").at("open", "the copy's log")?;
        log::cut_to(&*logs, note.segment, note.len)?; // 3
        for name in [&b"pool"[..], b"quarantine"] {
            ensure_dir(&*ours, name)?;
        }
        let tree = read_slow_id(&**slow)?.ok_or_else(|| {
            Error::refused("the slow tier has no .dlio-fs/id", "is the slow tier not mounted? Name the fleet's own one")
        })?;
        give_turn(&*ours, self.id(), tree, self.next_turn())?; // 4
        self.hand_on()?; // 5, 6
        remove_leftover(&*ours, NOTES) // 7
    }
}

fn read_note(ours: &dyn Dir) -> Result<Option<CopyNote>> {
    let file = absent_is_none(ours.open(NOTES, Access::Read)).at("open", "the copy's notes")?;
    let Some(file) = file else { return Ok(None) };
    let mut bytes = [0; 2 * NOTE_LEN];
    let got = file.read_at(&mut bytes, 0).at("read", "the copy's notes")?;
    Ok(CopyNote::newest(&bytes[..got]))
}
