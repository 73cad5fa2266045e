//! Leaving a member of a fleet out for good, after its node was lost: the others do not wait for it any more.
//!
//! 1. Somebody watches the member's lease for a while ([`Watched::is_silent`]): a member whose own lease has been older
//!    than 20 s publishes nothing, so one that is silent for longer does not publish after step 2 either.
//! 2. A lease that says "forgotten" takes the place of the member's, by one rename. The member, should it come back,
//!    writes to the old file, which has no name any more; it reads its slot, finds itself forgotten, and publishes
//!    nothing.
//!
//! A crash before the rename leaves a file that no one reads. Nothing of the member is deleted: its finished copies stay
//! in its directory in `tmp`. A step that the member had sent to the slow tier before it fell silent may still be
//! carried out there.

use std::sync::Arc;

use crate::error::{Context, Error, Result};
use crate::tiers::disk::layout::{OURS, is_taken, remove_leftover};
use crate::tiers::disk::{Dir, RenameMode};
use crate::tiers::fleet::members::{read, slot_name};
use crate::tiers::fleet::rule::{MemberLease, Standing};

/// A member whose lease is watched.
#[derive(Debug)]
pub struct Watched {
    dir: Arc<dyn Dir>,
    slot: u32,
    first: MemberLease,
}

impl Watched {
    /// Begins to watch member `slot` of a fleet on this slow tree. Errors: there is no such fleet or member, or it has
    /// left or was forgotten before, so nobody waits for it.
    pub fn begin(slow: &dyn Dir, fleet: &str, slot: u32) -> Result<Watched> {
        let fleets = slow.dir(OURS).and_then(|ours| ours.dir(b"fleet"));
        let dir = fleets.and_then(|fleets| fleets.dir(fleet.as_bytes())).at("open", format!("fleet {fleet}"))?;
        let refused = |why: &str, remedy: &str| Error::refused(format!("member {slot} of fleet {fleet} {why}"), remedy);
        let Some(first) = read(&*dir, slot)? else {
            return Err(refused("was never mounted", "see in .dlio/stats of another member for whom it waits"));
        };
        match first.standing {
            Standing::Here => Ok(Watched { dir, slot, first }),
            Standing::Left => Err(refused("has left with nothing pending", "nobody waits for it")),
            Standing::Forgotten => Err(refused("is forgotten already", "nobody waits for it")),
        }
    }

    /// Where the member was mounted.
    pub fn host(&self) -> &str {
        &self.first.host
    }

    /// Its fast tier's id: its finished copies are in this directory of `tmp`.
    pub fn id(&self) -> String {
        self.first.member.to_string()
    }

    /// Whether it has written no lease since this began.
    pub fn is_silent(&self) -> Result<bool> {
        Ok(read(&*self.dir, self.slot)?.is_some_and(|lease| lease.beat == self.first.beat))
    }

    /// Step 2. The caller has watched for long enough.
    pub fn forget(&self) -> Result<()> {
        let forgotten = MemberLease { standing: Standing::Forgotten, ..self.first.clone() };
        let beside = format!("{}.forgotten", self.slot).into_bytes();
        let what = || format!("the end of member {}", self.slot);
        remove_leftover(&*self.dir, &beside)?;
        let file = match self.dir.create(&beside, 0o644) {
            Err(error) if is_taken(&error) => {
                let what = format!("somebody else is about to forget member {}", self.slot);
                return Err(Error::refused(what, "let one do it"));
            }
            made => made.at("create", what())?,
        };
        file.write_at(&forgotten.encode(), 0).at("write", what())?;
        file.sync().at("fsync", what())?;
        self.dir
            .rename(&beside, &*self.dir, slot_name(self.slot).as_bytes(), RenameMode::Replace)
            .at("rename", what())?;
        self.dir.sync().at("fsync", what())
    }
}
