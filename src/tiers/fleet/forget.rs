//! Leaving a member out for good after its node was lost: the others do not wait for it any more.
//!
//! 1. Watch the member's lease for a while ([`Watched::is_silent`]). A member whose own lease is older than 20 s (more
//!    in a large fleet, `periods.rs`) publishes nothing, so one that is silent for longer does not publish after step 4
//!    either.
//! 2. Finish the group that it had begun to publish, while the others still wait for it (`recovery/lost_member.rs`).
//! 3. Make a file with the member's id in its name; it keeps the member from ever joining this fleet again.
//! 4. Replace the member's lease by one that says "forgotten", by one rename. If the member comes back, it writes to
//!    the old file, which has no name any more; it reads its slot, finds itself forgotten, and publishes nothing.
//! 5. Move its finished copies from its directory in `tmp` to `saved`, under the paths that its journal names
//!    (`fleet/journal.rs`). Published copies are in the tree; these are not.
//!
//! A crash before the rename leaves a file that no member reads, and all steps are repeated. A crash after it leaves
//! copies in `tmp` for the next `forget`. Nothing of the member is deleted. A step that the member sent to the slow
//! tier before it fell silent may still be carried out there.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Context, Error, Result};
use crate::path::escape;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, is_taken, remove_leftover, split};
use crate::tiers::disk::saved::{host_and_time, move_to, save};
use crate::tiers::disk::{Dir, DirEntry, Kind, RenameMode};
use crate::tiers::fleet::journal::{self, WaitingCopy};
use crate::tiers::fleet::members::{agreed, dir_of, note_forgotten, read, read_settled, slot_name};
use crate::tiers::fleet::rule::{MemberLease, Standing};
use crate::tiers::log::record::Path;
use crate::tiers::objects::parts::lane_of;

/// A file, by its directory and name.
type FoundFile = (Arc<dyn Dir>, Vec<u8>);

/// The files below new directories in this `tmp` (`writeback/fill.rs`), by inode number. Unreadable ones are left out.
fn files_in_made(tmp: &Arc<dyn Dir>) -> HashMap<u64, FoundFile> {
    let mut found = HashMap::new();
    let is_made = |entry: &DirEntry| entry.kind == Kind::Dir && entry.name.starts_with(b"m");
    let made = tmp.list().unwrap_or_default().into_iter().filter(is_made);
    let mut dirs: Vec<Arc<dyn Dir>> = made.filter_map(|entry| tmp.dir(&entry.name).ok()).collect();
    while let Some(dir) = dirs.pop() {
        for entry in dir.list().unwrap_or_default() {
            match entry.kind {
                Kind::Dir => dirs.extend(dir.dir(&entry.name)),
                _ => drop(found.insert(entry.ino, (dir.clone(), entry.name))),
            }
        }
    }
    found
}

/// A member whose lease is watched.
#[derive(Debug)]
pub struct Watched {
    pub(super) dir: Arc<dyn Dir>,
    pub(super) slot: u32,
    pub(super) first: MemberLease,
}

impl Watched {
    /// Begins to watch member `slot` of a fleet on this slow tree. Errors: there is no such fleet or member, or it has
    /// left, so no member waits for it.
    pub fn begin(slow: &dyn Dir, fleet: &str, slot: u32) -> Result<Watched> {
        let dir = dir_of(slow, fleet)?;
        let refused = |why: &str, remedy: &str| Error::refused(format!("member {slot} of fleet {fleet} {why}"), remedy);
        let Some(first) = read(&*dir, slot)? else {
            return Err(refused("was never mounted", "see in .dlio/stats of another member for whom it waits"));
        };
        match first.standing {
            Standing::Here | Standing::Forgotten => Ok(Watched { dir, slot, first }),
            Standing::Left => Err(refused("has left with nothing pending", "nobody waits for it")),
        }
    }

    /// Begins to watch all members of a fleet for which others wait.
    pub fn all(slow: &dyn Dir, fleet: &str) -> Result<Vec<Watched>> {
        let dir = dir_of(slow, fleet)?;
        let size = agreed(&*dir)?.map_or(0, |agreed| agreed.size);
        let mut here = Vec::new();
        for slot in 0..size {
            let lease = read_settled(&*dir, slot)?.filter(|lease| lease.standing == Standing::Here);
            here.extend(lease.map(|first| Watched { dir: dir.clone(), slot, first }));
        }
        Ok(here)
    }

    /// Its number.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether it was forgotten before: then at most step 5 is left to do.
    pub fn is_forgotten(&self) -> bool {
        self.first.standing == Standing::Forgotten
    }

    /// The host where the member was mounted.
    pub fn host(&self) -> &str {
        &self.first.host
    }

    /// Its fast tier's id, which names the directory of `tmp` with its finished copies.
    pub fn id(&self) -> String {
        self.first.member.to_string()
    }

    /// Whether its lease names a copy of its fast tier that may take its place.
    pub fn has_copy(&self) -> bool {
        self.first.copy != 0 && !self.is_forgotten()
    }

    /// Everything that it logged with an `end` below this is on the slow tree: nanoseconds since 1970, by its clock.
    pub fn least(&self) -> u64 {
        self.first.least
    }

    /// Whether it has written no lease since the watch began.
    pub fn is_silent(&self) -> Result<bool> {
        Ok(read_settled(&*self.dir, self.slot)?.is_some_and(|lease| lease == self.first))
    }

    /// Step 5. Returns how many copies were moved, and to which directory of the slow tree.
    pub fn save_copies(&self, slow: &Arc<dyn Dir>) -> Result<(u64, String)> {
        let tmp_of = |part: &[u8]| {
            let part = part.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
            let id = self.id();
            let names = part.chain([OURS, b"tmp", id.as_bytes()]);
            names.into_iter().try_fold(slow.clone(), |dir, name| dir.dir(name))
        };
        // Without its `tmp` there are no copies.
        let copies = absent_is_none(tmp_of(b"").and_then(|tmp| journal::read(&*tmp)));
        let copies = copies.at("read", "the journal of its copies")?.unwrap_or_default();
        let (time, mut moved) = (host_and_time(), 0);
        let mut made: HashMap<Path, HashMap<u64, FoundFile>> = HashMap::new();
        for WaitingCopy { tmp, id, size, path } in copies {
            let (part, name) = split(&tmp);
            let Ok(in_part) = tmp_of(part) else { continue };
            let in_lane = lane_of(name).map_or(Ok(in_part.clone()), |lane| in_part.dir(lane));
            let is_it = |dir: &Arc<dyn Dir>, name: &[u8]| {
                dir.stat(name).is_ok_and(|stat| (stat.file(), stat.size) == (id, size))
            };
            // It may already be in a new directory, which waits for its turn with all its contents.
            let moved_on = || {
                let made = made.entry(part.to_vec()).or_insert_with(|| files_in_made(&in_part));
                made.get(&id.ino).filter(|(dir, name)| is_it(dir, name)).cloned()
            };
            let waits = in_lane.ok().filter(|dir| is_it(dir, name)).map(|dir| (dir, name.to_vec()));
            // Otherwise it is published, or was copied again.
            let Some((dir, name)) = waits.or_else(moved_on) else { continue };
            let saved = save(slow, &time, &path, |saved, as_name| move_to(&*dir, &name, saved, as_name));
            saved.at("save", escape(&path))?;
            moved += 1;
        }
        Ok((moved, format!(".dlio-fs/saved/{time}")))
    }

    /// Steps 3 and 4. The caller has watched for long enough, and has done step 2.
    pub fn forget(&self) -> Result<()> {
        let forgotten = self.first.forgotten();
        self.give_slot_to(&forgotten, || note_forgotten(&*self.dir, &forgotten)) // 3, 4
    }

    /// Replaces the member's lease by another, by one rename, if the member is still silent and no other process does
    /// the same. `before` runs once that is known, before the rename.
    pub(super) fn give_slot_to(&self, next: &MemberLease, before: impl FnOnce() -> Result<()>) -> Result<()> {
        let beside = format!("{}.forgotten", self.slot).into_bytes();
        let what = || format!("the slot of member {}", self.slot);
        remove_leftover(&*self.dir, &beside)?;
        let file = match self.dir.create(&beside, 0o644) {
            Err(error) if is_taken(&error) => {
                let what = format!("somebody else is about to forget member {}", self.slot);
                return Err(Error::refused(what, "let one do it"));
            }
            made => made.at("create", what())?,
        };
        if !self.is_silent()? {
            // Another process was quicker, and another member may have the slot.
            remove_leftover(&*self.dir, &beside)?;
            let what = format!("member {} of the fleet has changed while it was watched", self.slot);
            return Err(Error::refused(what, "see whether anybody still waits for it"));
        }
        before()?;
        file.write_at(&next.encode(), 0).at("write", what())?;
        file.sync().at("fsync", what())?;
        let slot = slot_name(self.slot);
        self.dir.rename(&beside, &*self.dir, slot.as_bytes(), RenameMode::Replace).at("rename", what())?;
        self.dir.sync().at("fsync", what())
    }
}
