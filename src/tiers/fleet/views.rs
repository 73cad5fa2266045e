//! The names that other members have published are looked up again, and nothing else.
//!
//! A member announces its names before its lease admits others, but a killed one may have published more than it
//! announced. Its next mount says so; if it never comes back, `revalidate` limits the delay. A name with a pending
//! change here, or one that publishing moves, is left alone: ours wins.
//!
//! In a fully known directory names are looked up at once, so that it stays fully known; elsewhere the next lookup
//! asks. The directory's generation rises, so an answer that was in flight meanwhile does not count.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::error::{Context, Errno, Result};
use crate::path::{Name, escape};
use crate::tiers::disk::errors::is_silence;
use crate::tiers::disk::layout::split;
use crate::tiers::fleet::Fleet;
use crate::tiers::fleet::members::ToldNames;
use crate::tiers::fleet::names::{ChangedName, NameChange, NamesEnd};
use crate::tiers::fleet::periods::ROUND;
use crate::tiers::{Cx, Ino, Lsn, Progress, ROOT, Tiers};

/// How many names, and directories, are taken in under one state lock.
const NAMES_AT_ONCE: usize = 256;
const DIRS_AT_ONCE: usize = 64;
/// If more names of a directory have changed, it is no longer fully known.
const LOOKED_UP_MOST: usize = 64;

impl Tiers {
    /// One round: `step.rs` has its parts.
    pub fn fleet_step(&self) -> Result<Progress> {
        let Some(fleet) = self.order.fleet() else { return Ok(Progress::Idle) };
        fleet.state.lock().pace.begin_round(self.uptime());
        self.renew_lease(fleet)?;
        let is_published = |ino, upto| {
            let st = self.state.lock();
            !st.uncommitted.has(ino) && st.queue.front().is_none_or(|front| front > upto)
        };
        if let Err(error) = fleet.appends.remove_done(self.log.last(), is_published) {
            tracing::debug!(%error, "a file stays claimed for appending on this node");
        }
        let oldest = self.oldest_start();
        if fleet.is_collected() {
            self.collected_round(fleet, oldest)?;
        } else {
            self.read_leases(fleet, oldest)?;
        }
        // Reading may have taken a while.
        if oldest.is_none() && self.state.lock().queue.is_empty() {
            fleet.journal.clear(&*self.slow.tmp);
        }
        Ok(Progress::Wait(ROUND))
    }

    /// When the event that is published next began.
    fn oldest_start(&self) -> Option<u64> {
        let st = self.state.lock();
        st.queue.front().map(|lsn| st.queue.stamps(lsn).start)
    }

    /// Steps 6 and 7.
    fn read_leases(&self, fleet: &Fleet, oldest: Option<u64>) -> Result<()> {
        let is_open = self.counters.open_files.load(Ordering::Relaxed) > 0;
        let before = self.order.gate(self.uptime());
        if fleet.is_asked.swap(false, Ordering::AcqRel) {
            fleet.read_all_leases(&*self.clock, true);
        } else if !fleet.read_some_leases(&*self.clock, oldest, is_open) {
            return Ok(());
        }
        if self.order.gate(self.uptime()) != before {
            self.wake();
        }
        self.follow_others(fleet)
    }

    /// Before steps: what is found is compared with the changes that other members have reported.
    pub(crate) fn follow_reported(&self) -> Result<()> {
        let each = self.order.fleet().filter(|fleet| !fleet.is_collected());
        each.map_or(Ok(()), |fleet| self.follow_others(fleet))
    }

    /// Takes in what the others have published since the last call. An error: the slow tier does not answer. Then the
    /// known state stays, and the next call begins with the same names.
    fn follow_others(&self, fleet: &Fleet) -> Result<()> {
        for (slot, known, told) in fleet.not_followed() {
            fleet.state.lock().pace.spend();
            match fleet.members.names_since(slot, known, told)? {
                ToldNames::Later => continue,
                ToldNames::Lost => self.expire_all(),
                ToldNames::These(names) => {
                    fleet.note_told(&names);
                    names.chunks(NAMES_AT_ONCE).try_for_each(|names| self.expire_names(names))?;
                }
            }
            fleet.note_followed(slot, told);
        }
        Ok(())
    }

    /// Renames here the directories that others have renamed: open files and pending events go with them. An error: the
    /// slow tier does not answer.
    fn follow_dirs(&self, names: &[ChangedName]) -> Result<()> {
        for changed in names.iter().filter(|changed| changed.change == NameChange::Placed) {
            let (dir, above) = {
                let st = self.state.lock();
                let is_elsewhere = |ino: &Ino| {
                    st.view.live_dir(*ino).is_some() && st.view.slow_path(*ino).is_some_and(|path| path != changed.path)
                };
                let Some(dir) = st.view.with_slow_ino(changed.ino).filter(is_elsewhere) else { continue };
                (dir, st.view.slow_dirs(split(&changed.path).0, changed.dir).first().copied())
            };
            let (above_path, name) = split(&changed.path);
            let Ok(name) = Name::new(name) else { continue };
            let found = self.slow.parent(&changed.path).and_then(|(above, name)| above.stat_now(name));
            let found = match found.at("look for", escape(&changed.path)) {
                Err(error) if is_silence(&error) && error.errno() != Errno::ESTALE => return Err(error),
                // It has another name by now, or is gone: that is announced, too.
                Err(_) => continue,
                Ok(found) => found,
            };
            let follow = |above| {
                let mut st = self.state.lock();
                let from = st.view.path(dir);
                if !st.view.follow_dir(dir, found.id(), &(above, name)) {
                    return;
                }
                let to = st.view.path(dir);
                let (from, to) = (escape(&from.unwrap_or_default()), escape(&to.unwrap_or_default()));
                tracing::info!(from, to, "another member has renamed a directory");
            };
            match above {
                Some(above) => follow(above),
                None => drop(self.at_path(&Cx::internal(), above_path, |above| {
                    follow(above);
                    Ok(())
                })),
            }
        }
        Ok(())
    }

    /// Whether the directory that a step changes, which is no longer at this path, has another path by what the others
    /// have announced so far.
    pub(crate) fn has_moved_on(&self, dir: Ino, path: &[u8]) -> Result<bool> {
        let Some(fleet) = self.order.fleet().filter(|fleet| !fleet.is_collected()) else { return Ok(false) };
        fleet.read_all_leases(&*self.clock, false);
        self.follow_others(fleet)?;
        Ok(self.state.lock().view.slow_path(dir).is_some_and(|now| now != path))
    }

    fn expire_names(&self, names: &[ChangedName]) -> Result<()> {
        self.follow_dirs(names)?;
        let mut nodes = Vec::new();
        let mut known_in_full: BTreeMap<Ino, Vec<Name>> = BTreeMap::new();
        {
            let mut st = self.state.lock();
            let applied = st.queue.applied();
            let applied_or_all = if st.queue.is_empty() { Lsn::MAX } else { applied };
            for changed in names {
                let (above, name) = split(&changed.path);
                let Ok(name) = Name::new(name) else { continue };
                if changed.change != NameChange::Touched {
                    st.checkpoints.change(|index| index.removed_by_other(&changed.path, changed.end, applied_or_all));
                }
                if changed.change == NameChange::Placed {
                    st.checkpoints.change(|index| index.placed_by_other(&changed.path, changed.end));
                }
                for dir in st.view.slow_dirs(above, changed.dir) {
                    let (is_known, expired) = st.view.expire_name(dir, &name, applied);
                    nodes.extend(expired);
                    if is_known {
                        known_in_full.entry(dir).or_default().push(name.clone());
                    }
                }
                if let Some(ino) = st.view.with_slow_ino(changed.ino) {
                    st.view.expire_node(ino, applied);
                    nodes.push(ino);
                }
            }
            nodes.retain(|ino| st.view.get(*ino).is_some_and(|node| node.refs > 0));
        }
        for (dir, names) in known_in_full {
            self.relearn_names(dir, if names.len() > LOOKED_UP_MOST { None } else { Some(&names) })?;
        }
        // Last: from here on the kernel gets the new answer.
        nodes.into_iter().for_each(|ino| self.forget_attrs(ino));
        Ok(())
    }

    /// Some names are no longer known: the slow tier is asked for each again.
    fn expire_all(&self) {
        let mut from = Some(ROOT);
        while let Some(first) = from {
            let mut st = self.state.lock();
            let applied = st.queue.applied();
            from = st.view.expire_dirs(first, DIRS_AT_ONCE, applied);
        }
    }
}

impl Fleet {
    /// Members whose names we have not fully followed: slot, our position, and the end.
    fn not_followed(&self) -> Vec<(u32, NamesEnd, NamesEnd)> {
        let state = self.state.lock();
        let all = (0..).zip(&state.seen).zip(&state.followed);
        let told = all.filter_map(|((slot, seen), known)| Some((slot, *known, seen.as_ref()?.lease.names)));
        told.filter(|(slot, known, told)| *slot != self.slot && known != told).collect()
    }

    fn note_told(&self, names: &[ChangedName]) {
        let mut state = self.state.lock();
        names.iter().for_each(|changed| state.told.add(changed));
    }

    fn note_followed(&self, slot: u32, told: NamesEnd) {
        if let Some(followed) = self.state.lock().followed.get_mut(slot as usize) {
            *followed = told;
        }
    }
}
