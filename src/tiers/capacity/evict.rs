//! Makes room on the fast tier: evicts objects of clean files and staged copies, in the order of `capacity/policy.rs`.
//!
//! An object's fingerprint is compared with the slow file once more just before (P6). Files that are open, dirty, pinned or
//! not marked clean are never evicted, nor are the newest checkpoints. An operator may request eviction at once, file by file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::config::Config;
use crate::error::{Context, Result};
use crate::tiers::capacity::policy::{Amount, Candidate, Class, EvictionOrder, FreeTarget, SpaceLimits, Usage};
use crate::tiers::disk::errors::is_elsewhere;
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::{Space, Stat};
use crate::tiers::model::clean_list::Clean;
use crate::tiers::model::node::{Node, NodeAttrs, ObservedAt};
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::file::FileState;
use crate::tiers::{Cx, Ino, Progress, Tiers};

/// How many clean objects are considered at once.
const AT_ONCE: usize = 16;
/// Share of the fast tier's inodes that is kept free.
const INODES_KEPT: f64 = 0.05;

/// A file that may be evicted.
enum Victim {
    Object(Ino),
    Copy(u64),
}

/// The outcome for a file that was to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Went {
    Gone,
    /// The slow tier no longer has the drained version: the file goes last in line.
    Last,
    /// It is in use, or no longer clean.
    Stays,
}

/// The files that can be evicted on demand, and those that cannot because the slow tier does not have them.
#[derive(Debug, Default)]
pub struct Evictable {
    /// Oldest drained first.
    pub clean: Vec<Ino>,
    /// Files that only the fast tier has, with paths as in `path_of`; at most as many as asked for.
    pub dirty: Vec<(Ino, String)>,
    /// Number of files that only the fast tier has.
    pub dirty_files: u64,
}

/// The result of evicting one file on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// Its object is gone, with this many bytes.
    Gone(u64),
    /// It has no object now, or is dirty again.
    NotClean,
    /// It stays because it is open.
    Open,
    /// It, or a directory above it, is pinned.
    Pinned,
    /// The slow file's fingerprint has changed; the next open of the file decides.
    Changed,
}

impl Tiers {
    /// The files at or below `below`, split by whether they could be evicted. Names at most `limit` of those that
    /// cannot.
    pub fn evictable(&self, below: Ino, limit: usize) -> Evictable {
        let dirty = self.unsafe_files();
        let st = self.state.lock();
        let inside = |ino: &Ino| st.view.is_above(below, *ino);
        let dirty: Vec<Ino> = dirty.into_iter().filter(inside).collect();
        Evictable {
            clean: st.clean.iter().map(|(_, clean)| clean).map(|clean| clean.ino).filter(inside).collect(),
            dirty: dirty.iter().take(limit).map(|ino| (*ino, self.label_in(&st, *ino))).collect(),
            dirty_files: dirty.len() as u64,
        }
    }

    /// Evicts one file now, regardless of the watermarks. Waits for the slow tier.
    pub fn evict_now(&self, cx: &Cx, ino: Ino) -> Result<Evicted> {
        cx.slow()?;
        let file = {
            let st = self.state.lock();
            let clean = st.clean.has(ino);
            st.view.get(ino).filter(|_| clean).and_then(|node| node.file.clone())
        };
        let Some(file) = file else { return Ok(Evicted::NotClean) };
        if file.opens.load(Ordering::Acquire) > 0 {
            return Ok(Evicted::Open);
        }
        let size = file.io.read().object().and_then(|object| self.pool.stat(object.number).ok()).map_or(0, |s| s.size);
        if self.path(ino).is_some_and(|path| self.stays(&path, size)) {
            return Ok(Evicted::Pinned);
        }
        if self.evict(&file)? != Went::Gone {
            let opened = file.opens.load(Ordering::Acquire) > 0;
            return Ok(if opened { Evicted::Open } else { Evicted::Changed });
        }
        self.delete_unreferenced(cx)?;
        Ok(Evicted::Gone(size))
    }

    /// The limits for eviction and staging.
    pub(crate) fn limits(&self) -> SpaceLimits {
        let options = self.options();
        let quotas = [None, None, options.staged_max];
        let Config { high, low, reserve, keep, .. } = options.config;
        SpaceLimits { high, low, reserve, inodes: INODES_KEPT, quotas, keep }
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        let space = self.fast.space().at_fast("statfs", "fast tier")?;
        // Only staged copies have a quota.
        let classes = [0, 0, self.copies.extent().1];
        let Space { avail, files, files_free, .. } = space;
        Ok(Usage { total: space.capacity(), avail, files_total: files, files_free, classes })
    }

    /// Makes room for a write that found the tier full; `false` if nothing could be evicted. `kept`: files protected by
    /// `keep` may be evicted, too. `more` as for [`Tiers::let_some_go`].
    pub(crate) fn free(&self, bytes: u64, kept: bool, more: &dyn Fn() -> Result<bool>) -> Result<bool> {
        let mut any = false;
        loop {
            let space = self.fast.space().at_fast("statfs", "fast tier")?;
            let lacking = bytes.min(space.capacity() / 4).saturating_sub(space.avail);
            let amount = Amount { bytes: lacking, files: 0 };
            let wanted = FreeTarget { all: amount, data: amount, kept, ..FreeTarget::default() };
            if lacking == 0 || !self.let_some_go(wanted, more)? {
                return Ok(any);
            }
            any = true;
            if self.fast.space().is_ok_and(|now| now.avail <= space.avail) {
                // Freed space is available only when the file system has committed it: btrfs does so every 30 s, or at
                // a sync. Without the sync everything else would be evicted meanwhile.
                self.fast.sync_all().at_fast("sync", "fast tier")?;
            }
        }
    }

    /// Makes room for what a start logs. Staged copies are not indexed yet: they are searched on disk and evicted until
    /// there is room.
    pub(crate) fn free_for_a_start(&self, more: &dyn Fn() -> Result<bool>) -> Result<()> {
        const ROOM: u64 = 1 << 20;
        let lacks = || -> Result<bool> {
            let space = self.fast.space().at_fast("statfs", "fast tier")?;
            Ok(space.avail < ROOM.min(space.capacity() / 4))
        };
        while lacks()? && self.find_copies_step()? == Progress::Did {
            self.free(ROOM, false, more)?;
        }
        self.free(ROOM, false, more).map(drop)
    }

    /// Evicts files for `wanted`; `false`: nothing can be evicted. `more` looks up some of the files not looked up
    /// since the start, whose objects can then be evicted; it returns `false` when none are left.
    pub(crate) fn let_some_go(&self, wanted: FreeTarget, more: &dyn Fn() -> Result<bool>) -> Result<bool> {
        // Once around the list: files that cannot be evicted are moved to its end.
        let mut left = self.state.lock().clean.len();
        loop {
            let (any, moved) = self.let_first_go(wanted)?;
            left = left.saturating_sub(moved);
            // Objects from before the start come after all other clean ones: they are looked up only now.
            if any || !((moved > 0 && left > 0) || more()?) {
                return Ok(any);
            }
        }
    }

    /// Evicts the first candidates. Returns whether any was evicted, and how many were moved to the end of the line
    /// instead. Fails if an error left nothing evicted.
    fn let_first_go(&self, wanted: FreeTarget) -> Result<(bool, usize)> {
        let limits = self.limits();
        let keep = if wanted.kept { 0 } else { limits.keep };
        let order = EvictionOrder::new(&SpaceLimits { keep, ..limits }, self.checkpoints_here());
        let candidates = self.candidates(&order);
        let described: Vec<Candidate> = candidates.iter().map(|(_, candidate)| *candidate).collect();
        let (mut any, mut moved, mut failed) = (false, 0, None);
        for at in order.pick(&described, wanted) {
            let Some(candidate) = candidates.get(at) else { continue };
            let evicted = match candidate.0 {
                Victim::Object(ino) => self.evict_object(ino),
                Victim::Copy(number) => self.evict_copy(number).map(|gone| gone.map_or(Went::Stays, |_| Went::Gone)),
            };
            match evicted {
                Ok(Went::Gone) => any = true,
                Ok(Went::Last) => moved += 1,
                Ok(Went::Stays) => {}
                Err(e) => {
                    // Try the others first next time: the error may concern only this path.
                    self.put_last(candidate);
                    failed = failed.or(Some(e));
                }
            }
        }
        match failed {
            Some(e) if !any => Err(e),
            _ => Ok((any, moved)),
        }
    }

    fn put_last(&self, (victim, candidate): &(Victim, Candidate)) {
        let Victim::Object(ino) = *victim else { return };
        let mut st = self.state.lock();
        if st.clean.has(ino) {
            st.clean.add(Clean { ino, bytes: candidate.bytes, burst: candidate.group.unwrap_or(0) });
        }
    }

    fn evict_object(&self, ino: Ino) -> Result<Went> {
        let file = self.state.lock().known_file(ino);
        let Some(file) = file else { return Ok(Went::Stays) };
        let went = self.evict(&file)?;
        if went == Went::Gone {
            self.delete_unreferenced(&Cx::internal())?;
        }
        Ok(went)
    }

    /// For each class the first candidates, of those that may be evicted at all.
    fn candidates(&self, order: &EvictionOrder) -> Vec<(Victim, Candidate)> {
        // Many at once, because finding them scans the whole index.
        let copies = self.copies.longest_unused(64 * AT_ONCE);
        let st = self.state.lock();
        let open = |node: &Node| {
            let opens = node.file.as_ref().is_some_and(|file| file.opens.load(Ordering::Acquire) > 0);
            node.pins > 0 || opens
        };
        let clean = st.clean.iter().filter_map(|(seq, clean)| {
            let node = st.view.get(clean.ino).filter(|node| !open(node))?;
            node.file.as_ref()?;
            let is_checkpoint = st.bursts.is_checkpoint(clean.burst);
            let class = if is_checkpoint { Class::Checkpoint } else { Class::Other };
            let pinned = st.view.path(clean.ino).is_some_and(|path| self.stays(&path, clean.bytes));
            let group = is_checkpoint.then_some(clean.burst);
            let (last_used, bytes, drained) = (Duration::ZERO, clean.bytes, seq);
            Some((Victim::Object(clean.ino), Candidate { class, pinned, group, last_used, bytes, drained }))
        });
        let may_go = |(_, candidate): &(Victim, Candidate)| order.place(candidate).is_some();
        let mut found: Vec<_> = clean.filter(may_go).take(AT_ONCE).collect();
        drop(st);
        let class = Class::Data;
        let copies = copies.into_iter().map(|(number, bytes, last_used)| {
            let pinned = self.is_copy_pinned(number, bytes);
            (Victim::Copy(number), Candidate { class, pinned, group: None, last_used, bytes, drained: number })
        });
        found.extend(copies.filter(may_go));
        found
    }

    /// The checkpoints of which the fast tier has at least a part.
    fn checkpoints_here(&self) -> BTreeSet<u64> {
        let st = self.state.lock();
        let dirty = st.queue.all_versions().map(|(_, content)| content.burst());
        let clean = st.clean.iter().map(|(_, clean)| clean).map(|clean| clean.burst);
        dirty.chain(clean).filter(|burst| st.bursts.is_checkpoint(*burst)).collect()
    }

    fn evict(&self, file: &Arc<FileState>) -> Result<Went> {
        let path = self.state.lock().view.slow_path(file.ino);
        let Some(path) = path else { return Ok(Went::Stays) };
        let slow_stat = match self.slow.stat(&path) {
            Err(e) if is_elsewhere(&e) => None,
            found => found.at("stat on slow", self.label(file.ino))?,
        };
        let mut io = file.io.write();
        let (Some(fingerprint), Some(object)) = (io.clean(), io.object()) else { return Ok(Went::Stays) };
        let same = |stat: Stat| Fingerprint::of(&stat) == fingerprint || left_out!(CompareFingerprint);
        if !slow_stat.is_some_and(same) {
            // Another program changed or removed it; the next open decides. Until then we must not delete it.
            self.state.lock().clean.add(Clean { ino: file.ino, bytes: fingerprint.size, burst: 0 });
            return Ok(Went::Last);
        }
        let shown = self.pool.stat(object.number).at_fast("stat", "object")?;
        let mut st = self.state.lock();
        let busy = st.view.get(file.ino).is_none_or(|node| node.pins > 0) || file.opens.load(Ordering::Acquire) > 0;
        if busy || io.dirty {
            return Ok(Went::Stays);
        }
        self.remember_attrs(&mut st, file.ino, &shown, fingerprint);
        self.drop_clean(&mut st, file, &mut io);
        st.view.collect(file.ino);
        self.counters.totals.evictions.increment(1);
        Ok(Went::Gone)
    }

    /// Before a clean object is evicted: keeps its attributes in the view, so that the view shows the same. The view
    /// already has the ctime.
    pub(crate) fn remember_attrs(&self, st: &mut EngineState, ino: Ino, shown: &Stat, fingerprint: Fingerprint) {
        let now = self.uptime();
        let Some(node) = st.view.get_mut(ino) else { return };
        let Stat { perm, uid, gid, size, blocks, atime, mtime, .. } = *shown;
        node.change_meta(|meta| *meta = NodeAttrs { perm, uid, gid, size, blocks, atime, mtime, ..*meta });
        node.seen = ObservedAt::at(now);
        node.set_slow_fingerprint(Some(fingerprint));
    }
}
