//! Rechecks directories that are known in full for names that foreign changes made or removed (P11).
//!
//! Knowing a directory in full ages, regardless of writes to it. After three quarters of `revalidate` the background
//! asks the slow tier once, if a name was looked up since; a lookup never waits for that. If no name was looked up, the
//! slow tier is not asked, and the directory is no longer known in full.
//!
//! 1. read the directory's own times. If they are settled and unchanged, no name has changed, and the check is done;
//! 2. otherwise list it, even if the change was our own: publishing changes the times as well and would hide a foreign
//!    change;
//! 3. look up each name that differs from what the view knows, and update the view. Names that are pending, that
//!    publishing moves, or that have changed since 1 are left to the view;
//! 4. keep the times of step 1. They are *settled* if they were the same some seconds before the listing of step 2: a
//!    later change then gets other times, however coarse the tier's clock. They are never compared with our own clock.
//!
//! While the slow tier does not answer, the known names are trusted: the step waits, and nothing ages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Errno, Result};
use crate::path::Name;
use crate::tiers::disk::errors::{absent_is_none, is_elsewhere, is_silence};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::{Dir, DirEntry, Stat};
use crate::tiers::model::node::{DirNode, ObservedAt, Shown, Slot};
use crate::tiers::model::state::EngineState;
use crate::tiers::model::view::LookupStart;
use crate::tiers::{Ino, Progress, ROOT, Tiers};

/// Directories checked in one step, one after the other.
const DIRS_AT_ONCE: usize = 256;
/// If more names have changed, each is looked up when it is next used.
const NAMES_AT_ONCE: usize = 4096;
/// Up to this many names are looked up even if the listed inode numbers may be meaningless.
const FEW: usize = 64;
/// Two changes within this time may leave the same times on a directory. FAT has a resolution of two seconds.
const SAME_TIMES: Duration = Duration::from_secs(3);

/// A directory as it was when the slow tier was asked.
struct Recheck {
    ino: Ino,
    asked: LookupStart,
    generation: u64,
}

impl Tiers {
    /// Looks for foreign changes of names in directories that are known in full. Directories without lookups are no
    /// longer tracked.
    pub fn recheck_step(&self) -> Result<Progress> {
        if self.slow.is_down() && self.is_root_silent() {
            return Ok(Progress::Idle);
        }
        self.slow.remove_gone();
        let due = self.state.lock().view.age_dirs(self.uptime(), self.ages(), DIRS_AT_ONCE);
        for ino in &due {
            let Err(error) = self.recheck(*ino) else { continue };
            if is_silence(&error) && self.is_root_silent() {
                return Err(error);
            }
            tracing::debug!(%error, "a directory cannot be rechecked");
            if is_silence(&error) && error.errno() != Errno::ESTALE {
                // A bad block, or a failed server of one part of the tree: while it cannot be read, keep what is known.
                self.change_dir(*ino, |dir| dir.checked = ObservedAt::at(self.uptime()));
            } else {
                self.change_dir(*ino, DirNode::forget_others);
            }
        }
        Ok(if due.len() == DIRS_AT_ONCE { Progress::Did } else { Progress::Idle })
    }

    fn is_root_silent(&self) -> bool {
        self.slow.root.stat(b".").at("stat", "slow tier").is_err_and(|error| is_silence(&error))
    }

    fn recheck(&self, ino: Ino) -> Result<()> {
        let (id, before, look) = {
            let mut st = self.state.lock();
            let asked = st.view.asked(self.uptime());
            let Some(node) = st.view.get_mut(ino) else { return Ok(()) };
            let Some(id) = node.slow_id() else { return Ok(()) };
            let Some(dir) = node.dir.as_mut().filter(|dir| dir.known) else { return Ok(()) };
            dir.used.store(false, Ordering::Relaxed);
            dir.listers += 1;
            (id, dir.shown.as_deref().copied(), Recheck { ino, asked, generation: dir.generation })
        };
        let found = self.at_slow(ino, |path, _| {
            let dir = self.slow.dir(ino, path, id)?;
            let stat = dir.stat_now(b".")?; // 1
            let same = before.is_some_and(|before| before.settled && before.fingerprint == Fingerprint::of(&stat));
            let entries = if same { None } else { Some(self.slow.list(&*dir)?) }; // 2
            Ok((dir, stat, entries))
        });
        let differing = self.compare(&look, found.as_ref().ok().and_then(|(.., entries)| entries.as_deref()));
        let (dir, stat, entries) = found.at("look through", self.label(ino))?;
        if differing.len() > NAMES_AT_ONCE {
            self.change_dir(ino, DirNode::forget_others);
            return Ok(());
        }
        for name in &differing {
            self.relearn(&look, &dir, name)?; // 3
        }
        self.keep_shown(&look, &stat, before, entries.is_some()); // 4
        Ok(())
    }

    /// The names that differ from what the view knows of the slow tier. Ends the look: slots may be collected again.
    fn compare(&self, look: &Recheck, entries: Option<&[DirEntry]>) -> Vec<Name> {
        let mut st = self.state.lock();
        let Some(dir) = st.view.get_mut(look.ino).and_then(|node| node.dir.as_mut()) else { return Vec::new() };
        dir.listers -= 1;
        let Some(entries) = entries else { return Vec::new() };
        let there: HashMap<&[u8], u64> = entries.iter().map(|entry| (&entry.name[..], entry.ino)).collect();
        let Some(dir) = st.view.live_dir(look.ino) else { return Vec::new() };
        let number = |ino: Ino| st.view.get(ino).and_then(|node| node.slow_id()).map(|id| id.1.ino);
        let in_both = dir.slots.iter().filter_map(|(name, slot)| Some((slot.slow()?, *there.get(name.as_bytes())?)));
        let (same, others): (Vec<_>, Vec<_>) = in_both.partition(|(child, ino)| number(*child) == Some(*ino));
        // Some file systems (sshfs, overlayfs) list other inode numbers than stat shows: ignore the numbers then.
        let numbers_count = !same.is_empty() || others.len() <= FEW;
        let differs = |name: &Name, slot: &Slot| match (slot.slow(), there.get(name.as_bytes())) {
            (Some(child), Some(ino)) => numbers_count && number(child) != Some(*ino),
            (known, found) => known.is_some() != found.is_some(),
        };
        let is_new = |name: &&[u8]| !dir.slots.contains_key(*name);
        let made = there.keys().copied().filter(is_new).filter_map(|name| Name::new(name).ok());
        let changed = dir.slots.iter().filter(|(name, slot)| differs(name, slot) && look.may_ask(&st, name));
        made.chain(changed.map(|(name, _)| name.clone())).collect()
    }

    /// The slow tier reports that an inode is gone or was replaced: looks its names up again. After ESTALE the kernel
    /// repeats its lookup and then finds the current state.
    pub(crate) fn forget_seen(&self, ino: Ino) {
        let mut gone = Some(ino).filter(|ino| *ino != ROOT);
        while let Some(ino) = gone.take() {
            let places = self.state.lock().view.get(ino).map(|node| node.links.iter().cloned().collect::<Vec<_>>());
            for (parent, name) in places.unwrap_or_default() {
                let looked = self.look_at(parent, &name);
                // The directory is gone, too.
                gone = gone.or(looked.is_err_and(|e| is_elsewhere(&e)).then_some(parent)).filter(|ino| *ino != ROOT);
            }
        }
    }

    fn look_at(&self, parent: Ino, name: &Name) -> std::io::Result<()> {
        let (look, dir) = self.open_to_look(parent)?;
        self.relearn(&look, &dir, name).ok();
        Ok(())
    }

    /// Takes in a foreign change of these names of a directory that is known in full; `None`: too many to look up each.
    /// On an error the slow tier does not answer, and what is known is kept.
    pub(crate) fn relearn_names(&self, ino: Ino, names: Option<&[Name]>) -> Result<()> {
        let learned = names.map(|names| {
            let (look, dir) = self.open_to_look(ino).at("open", "a directory on the slow tier")?;
            names.iter().try_for_each(|name| self.relearn(&look, &dir, name))
        });
        match learned {
            Some(Ok(())) => {}
            Some(Err(error)) if is_silence(&error) && self.is_root_silent() => return Err(error),
            _ => self.change_dir(ino, DirNode::forget_others),
        }
        Ok(())
    }

    fn open_to_look(&self, parent: Ino) -> std::io::Result<(Recheck, Arc<dyn Dir>)> {
        let (id, look) = {
            let st = self.state.lock();
            let node = st.view.get(parent).ok_or(Errno::ESTALE)?;
            let generation = node.dir.as_ref().ok_or(Errno::ESTALE)?.generation;
            let asked = st.view.asked(self.uptime());
            (node.slow_id().ok_or(Errno::ESTALE)?, Recheck { ino: parent, asked, generation })
        };
        let dir = self.at_slow(parent, |path, _| {
            let dir = self.slow.dir(parent, path, id)?;
            dir.stat_now(b".").map(|_| dir)
        })?;
        Ok((look, dir))
    }

    fn relearn(&self, look: &Recheck, dir: &Arc<dyn Dir>, name: &Name) -> Result<()> {
        let stat = absent_is_none(dir.stat_now(name.as_bytes())).at("stat on slow", self.label(look.ino))?;
        let mut st = self.state.lock();
        if st.view.live_dir(look.ino).is_some() && look.may_ask(&st, name) {
            self.learn(&mut st, look.ino, name, stat.as_ref(), look.asked);
        }
        Ok(())
    }

    fn keep_shown(&self, look: &Recheck, stat: &Stat, before: Option<Shown>, listed: bool) {
        let (at, fingerprint) = (look.asked.at, Fingerprint::of(stat));
        let since = before.filter(|before| before.fingerprint == fingerprint).map_or(at, |before| before.since);
        let settled = at.saturating_sub(since) >= SAME_TIMES;
        self.change_dir(look.ino, |dir| {
            dir.checked = ObservedAt::at(at);
            if listed {
                dir.shown = Some(Box::new(Shown { fingerprint, since, settled }));
            }
        });
    }

    fn change_dir(&self, ino: Ino, change: impl FnOnce(&mut DirNode)) {
        if let Some(dir) = self.state.lock().view.get_mut(ino).and_then(|node| node.dir.as_mut()) {
            change(dir);
        }
    }
}

impl Recheck {
    /// Whether the slow tier's answer about a name counts: no change of ours is pending there, or has been since.
    fn may_ask(&self, st: &EngineState, name: &Name) -> bool {
        let slot = st.view.live_dir(self.ino).and_then(|dir| dir.slots.get(name));
        let is_ours = slot.is_some_and(|slot| {
            let is_written = slot.view().is_some_and(|ino| st.uncommitted.has(ino));
            slot.pending() || slot.changed > self.generation || is_written
        });
        !is_ours && !st.view.is_following(self.ino, name)
    }
}
