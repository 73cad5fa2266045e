//! Which node appends to a file, across the fleet. POSIX appends are not possible across nodes: each node has its own
//! end of the file, and the one that publishes last would drop what the other appended. So a file is open for appending
//! on one node at a time. On another node the open waits for a moment, because the first one may be about to publish,
//! and is then refused (EBUSY).
//!
//! `.dlio-fs/fleet/NAME/appends` has a *claim* for each such file, named by a hash of its path; it names its owner:
//!
//! 1. The first open for appending on a node makes the claim, exclusively. Then it looks the file up again, because the
//!    previous appender has published by now.
//! 2. Further opens on that node count up, closed handles count down ([`AppendClaim`]).
//! 3. Once no handle is left and all that was logged by then is published, the background removes the claim.
//!
//! A claim counts while its member is in the slot that it names. A claim left behind by a killed daemon or a forgotten
//! member is removed by its member's next start, or by the next node that wants the file. A node that removes a claim
//! first moves it to a name of its own, and puts it back if the claim has changed by then.
//!
//! A renamed file keeps the claim under the name at which it was opened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Context, Errno, Result};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{ensure_dir, is_taken, read_text, remove_leftover};
use crate::tiers::disk::sync::{Mutex, Rank};
use crate::tiers::disk::{Dir, RenameMode};
use crate::tiers::fleet::members::read_settled;
use crate::tiers::fleet::rule::Standing;
use crate::tiers::{Ino, Lsn};

/// How often, and at what interval, another member's claim is looked at before the file counts as busy.
const LOOKS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(100);
/// At most this many calls wait at the same time: other calls need the threads.
const WAITERS: u32 = 2;

/// The claims of this member.
#[derive(Debug)]
pub(crate) struct AppendClaims {
    /// The fleet's directory, and the directory of claims.
    fleet: Arc<dyn Dir>,
    dir: Arc<dyn Dir>,
    slot: u32,
    member: Uuid,
    held: Mutex<BTreeMap<String, HeldClaim>>,
    waiters: AtomicU32,
}

#[derive(Clone, Debug)]
struct HeldClaim {
    text: String,
    ino: Ino,
    opens: u32,
    /// Where the log ended when the last handle was closed.
    upto: Option<Lsn>,
}

/// A handle's part of a claim.
#[derive(Debug)]
pub(crate) struct AppendClaim {
    claims: Arc<AppendClaims>,
    name: String,
}

impl AppendClaim {
    /// Names the inode of a file that was made just now.
    pub(crate) fn is_of(&self, ino: Ino) {
        if let Some(held) = self.claims.held.lock().get_mut(&self.name) {
            held.ino = ino;
        }
    }
}

impl Drop for AppendClaim {
    fn drop(&mut self) {
        if let Some(held) = self.claims.held.lock().get_mut(&self.name) {
            held.opens = held.opens.saturating_sub(1);
        }
    }
}

impl AppendClaims {
    /// Includes the claims that an earlier start of this member has left.
    pub(super) fn open(fleet: &Arc<dyn Dir>, slot: u32, member: Uuid) -> Result<AppendClaims> {
        let dir = ensure_dir(&**fleet, b"appends")?;
        let mut held = BTreeMap::new();
        for entry in dir.list().at("list", "the fleet's claims")? {
            let text = read_text(&*dir, &entry.name)?.unwrap_or_default();
            if owner(&text).is_some_and(|(_, owner)| owner == member)
                && let Ok(name) = String::from_utf8(entry.name)
            {
                held.insert(name, HeldClaim { text, ino: 0, opens: 0, upto: None });
            }
        }
        Ok(AppendClaims {
            fleet: fleet.clone(),
            dir,
            slot,
            member,
            held: Mutex::new(Rank::Leaf, held),
            waiters: AtomicU32::new(0),
        })
    }

    /// Step 2. `None`: this member has no claim.
    pub(crate) fn again(self: &Arc<Self>, path: &[u8], ino: Ino) -> Option<AppendClaim> {
        let name = name_of(path);
        let mut held = self.held.lock();
        let claim = held.get_mut(&name)?;
        (claim.opens, claim.ino, claim.upto) = (claim.opens + 1, ino, None);
        Some(AppendClaim { claims: self.clone(), name })
    }

    /// Step 1. Asks the slow tier, for some seconds if another member has the file. EBUSY: that member still has it.
    pub(crate) fn claim(self: &Arc<Self>, path: &[u8], ino: Ino) -> Result<AppendClaim> {
        let waits = self.waiters.fetch_add(1, Ordering::Relaxed) < WAITERS;
        let mut looks = 0..if waits { LOOKS } else { 0 };
        let claimed = loop {
            let busy = match self.claim_now(path, ino) {
                Err(error) if error.errno() == Errno::EBUSY => error,
                claimed => break claimed,
            };
            if looks.next().is_none() {
                break Err(busy);
            }
            thread::sleep(PAUSE);
        };
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        claimed
    }

    fn claim_now(self: &Arc<Self>, path: &[u8], ino: Ino) -> Result<AppendClaim> {
        let name = name_of(path);
        let text = format!("{} {} {}\n", self.slot, self.member, Uuid::new_v4());
        while !self.make(&name, &text)? {
            let there = read_text(&*self.dir, name.as_bytes())?.unwrap_or_default();
            if let Some((slot, owner)) = owner(&there) {
                let lease = read_settled(&*self.fleet, slot)?;
                let is_there =
                    |owner| lease.is_some_and(|lease| lease.member == owner && lease.standing == Standing::Here);
                // A claim of ours without a handle is about to be removed.
                if owner != self.member && is_there(owner) {
                    return Err(Errno::EBUSY.into());
                }
            }
            self.take_away(&name, &there)?;
        }
        let claim = HeldClaim { text, ino, opens: 1, upto: None };
        self.held.lock().insert(name.clone(), claim);
        Ok(AppendClaim { claims: self.clone(), name })
    }

    /// `false`: a claim exists.
    fn make(&self, name: &str, text: &str) -> Result<bool> {
        let beside = format!("{}.new", Uuid::new_v4()).into_bytes();
        let what = "a claim of the fleet";
        let file = self.dir.create(&beside, 0o644).at("create", what)?;
        file.write_at(text.as_bytes(), 0).at("write", what)?;
        let made = match self.dir.link(&beside, &*self.dir, name.as_bytes()) {
            Err(error) if !is_taken(&error) => {
                self.dir.rename(&beside, &*self.dir, name.as_bytes(), RenameMode::NoReplace)
            }
            linked => linked,
        };
        remove_leftover(&*self.dir, &beside)?;
        match made {
            Err(error) if is_taken(&error) => Ok(false),
            made => made.at("create", what).map(|()| true),
        }
    }

    fn take_away(&self, name: &str, text: &str) -> Result<()> {
        let what = "a claim of the fleet";
        let beside = format!("{}.old", Uuid::new_v4()).into_bytes();
        let moved = self.dir.rename(name.as_bytes(), &*self.dir, &beside, RenameMode::Replace);
        if absent_is_none(moved).at("rename", what)?.is_none() {
            return Ok(());
        }
        if read_text(&*self.dir, &beside)?.is_some_and(|there| there != text) {
            let back = self.dir.rename(&beside, &*self.dir, name.as_bytes(), RenameMode::NoReplace);
            return back.at("rename", what);
        }
        remove_leftover(&*self.dir, &beside)
    }

    /// Step 3. `upto`: where the log ends; `is_published`: whether all of this file that was logged by then is
    /// published.
    pub(super) fn remove_done(&self, upto: Lsn, is_published: impl Fn(Ino, Lsn) -> bool) -> Result<()> {
        let closed: Vec<(String, Ino, Lsn)> = {
            let mut held = self.held.lock();
            let closed = held.iter_mut().filter(|(_, claim)| claim.opens == 0);
            closed.map(|(name, claim)| (name.clone(), claim.ino, *claim.upto.get_or_insert(upto))).collect()
        };
        for (name, ino, upto) in closed.into_iter().filter(|(_, ino, upto)| is_published(*ino, *upto)) {
            // A program may have opened it again.
            let is_same = |claim: &HeldClaim| claim.opens == 0 && claim.ino == ino && claim.upto == Some(upto);
            let claim = {
                let mut held = self.held.lock();
                if held.get(&name).is_some_and(is_same) { held.remove(&name) } else { None }
            };
            let Some(claim) = claim else { continue };
            if let Err(error) = self.take_away(&name, &claim.text) {
                // The slow tier refuses the removal: the next call retries.
                self.held.lock().entry(name).or_insert(claim);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// The owner's slot and id.
fn owner(text: &str) -> Option<(u32, Uuid)> {
    let mut words = text.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, Uuid::try_parse(words.next()?).ok()?))
}

fn name_of(path: &[u8]) -> String {
    format!("{:016x}", xxh3_64(path))
}
