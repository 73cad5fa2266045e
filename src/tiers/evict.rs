//! Letting objects of clean files go, oldest drained first, while the fast tier is above its watermarks.
//!
//! The proof is compared with the slow file once more just before (P6). Nothing that is open, dirty or unproven goes. An
//! operator may ask for the same at once, file by file.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Context, Error, Result};
use crate::tiers::disk::{Access, Stat};
use crate::tiers::file::FileState;
use crate::tiers::node::{Meta, Seen};
use crate::tiers::pool::{Pool, Proof};
use crate::tiers::state::State;
use crate::tiers::{Cx, Ino, Progress, Tiers};

/// How many files are looked at before the engine's lock is given back.
const AT_ONCE: usize = 16;

/// What can be evicted on demand, and what cannot because the slow tier does not have it.
#[derive(Debug, Default)]
pub struct Evictable {
    /// Oldest drained first.
    pub clean: Vec<Ino>,
    /// Paths that only the fast tier has, as [`Tiers::path_of`] gives them; at most as many as asked for.
    pub dirty: Vec<String>,
    /// Files that only the fast tier has.
    pub dirty_files: u64,
}

/// What came of evicting one file on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// Its object is gone; so many bytes.
    Gone(u64),
    /// It has none by now, or is dirty again.
    NotClean,
    /// It stays while it is open.
    Open,
    /// The slow file is not the one that was proven; the next open of the file decides.
    Changed,
}

impl Tiers {
    /// The files at or below `below`, sorted by whether they could go. Names at most `limit` that cannot.
    pub fn evictable(&self, below: Ino, limit: usize) -> Evictable {
        let dirty = self.unsafe_files();
        let st = self.state.lock();
        let inside = |ino: &Ino| st.view.is_above(below, *ino);
        let dirty: Vec<Ino> = dirty.into_iter().filter(inside).collect();
        Evictable {
            clean: st.clean.values().copied().filter(inside).collect(),
            dirty: dirty.iter().take(limit).map(|ino| self.label_in(&st, *ino)).collect(),
            dirty_files: dirty.len() as u64,
        }
    }

    /// Evicts one file now, whatever the watermarks say. Waits for the slow tier.
    pub fn evict_now(&self, cx: &Cx, ino: Ino) -> Result<Evicted> {
        cx.slow()?;
        let file = {
            let st = self.state.lock();
            let clean = st.clean_at.contains_key(&ino);
            st.view.get(ino).filter(|_| clean).and_then(|node| node.file.clone())
        };
        let Some(file) = file else { return Ok(Evicted::NotClean) };
        if file.opens.load(Ordering::Acquire) > 0 {
            return Ok(Evicted::Open);
        }
        let size = file.io.read().object().and_then(|object| self.pool.stat(object.number).ok()).map_or(0, |s| s.size);
        if !self.evict(&file)? {
            let opened = file.opens.load(Ordering::Acquire) > 0;
            return Ok(if opened { Evicted::Open } else { Evicted::Changed });
        }
        self.delete_doomed(cx)?;
        Ok(Evicted::Gone(size))
    }

    /// Evicts one object if the fast tier is above the high watermark, or still above the low one after that.
    pub fn evict_step(&self) -> Result<Progress> {
        self.counters.set_slow_space(self.slow.root.space().at("statfs", "slow tier")?);
        if self.pressure() {
            self.counters.evicting.store(true, Ordering::Relaxed);
        }
        if !self.counters.evicting.load(Ordering::Relaxed) || !self.above_low() {
            self.counters.evicting.store(false, Ordering::Relaxed);
            return Ok(Progress::Idle);
        }
        if self.evict_oldest()? { Ok(Progress::Did) } else { Ok(Progress::Idle) }
    }

    fn above_low(&self) -> bool {
        self.fast.space().is_ok_and(|space| {
            let used = space.total.saturating_sub(space.avail) as f64;
            used > self.options().low * space.total as f64
        })
    }

    /// Makes room for a write that found the tier full; `false` if nothing could go.
    pub(crate) fn evict_for(&self, bytes: u64) -> Result<bool> {
        let mut any = false;
        while self.fast.space().is_ok_and(|space| space.avail < bytes.min(space.total / 4)) && self.evict_oldest()? {
            any = true;
        }
        Ok(any)
    }

    fn evict_oldest(&self) -> Result<bool> {
        if self.evict_copies(1)? > 0 {
            return Ok(true);
        }
        loop {
            if self.evict_oldest_met()? {
                return Ok(true);
            }
            if !self.meet_waiting()? {
                return Ok(false);
            }
        }
    }

    /// Looks up some of the files whose objects have waited for that since the start, by the names they had then. Each is
    /// tried once; `false`: there are no more.
    fn meet_waiting(&self) -> Result<bool> {
        let untried: Vec<u64> = {
            let mut st = self.state.lock();
            let untried = st.view.waiting.values_mut().filter(|waiting| !waiting.tried).take(AT_ONCE);
            let numbers = untried.map(|waiting| {
                waiting.tried = true;
                waiting.object.number
            });
            numbers.collect()
        };
        self.meet(&untried, b"")?;
        Ok(!untried.is_empty())
    }

    /// The clean objects whose files nobody has looked up since the start.
    pub fn unmet(&self) -> Vec<u64> {
        self.state.lock().view.waiting.values().map(|waiting| waiting.object.number).collect()
    }

    /// Looks up the files of these objects by the names they had, of those at or below the path `below`.
    pub fn meet(&self, objects: &[u64], below: &[u8]) -> Result<()> {
        for number in objects {
            let object = match self.pool.open_object(*number, Access::Read) {
                // Met, and gone, meanwhile.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.at_fast("open", "object")?,
            };
            let named = Pool::name_of(&*object).at_fast("read name of", "object")?;
            if let Some(named) = named.filter(|named| is_at_or_below(&named.path, below)) {
                self.look_up(&named.path)?;
            }
        }
        Ok(())
    }

    fn look_up(&self, path: &[u8]) -> Result<()> {
        match self.at_path(&Cx::internal(), path, |_| Ok(())) {
            // Something else is there by now.
            Err(Error::Posix(_)) => Ok(()),
            other => other,
        }
    }

    fn evict_oldest_met(&self) -> Result<bool> {
        let candidates: Vec<Arc<FileState>> = {
            let st = self.state.lock();
            let files = st.clean.values().filter_map(|ino| {
                let node = st.view.get(*ino)?;
                node.file.clone().filter(|file| node.pins == 0 && file.opens.load(Ordering::Acquire) == 0)
            });
            files.take(AT_ONCE).collect()
        };
        for file in candidates {
            if self.evict(&file)? {
                self.delete_doomed(&Cx::internal())?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn evict(&self, file: &Arc<FileState>) -> Result<bool> {
        let path = self.state.lock().view.slow_path(file.ino);
        let Some(path) = path else { return Ok(false) };
        let twin = self.slow.stat(&path).at("stat on slow", self.label(file.ino))?;
        let mut io = file.io.write();
        let (Some(proof), Some(object), Some(twin)) = (io.clean, io.object(), twin) else { return Ok(false) };
        if Proof::of(&twin) != proof && !left_out!(CompareProof) {
            // Changed by somebody else; the next open decides. Not ours to delete meanwhile, and last in line.
            self.state.lock().set_clean(file.ino);
            return Ok(false);
        }
        let shown = self.pool.stat(object.number).at_fast("stat", "object")?;
        let mut st = self.state.lock();
        let busy = st.view.get(file.ino).is_none_or(|node| node.pins > 0) || file.opens.load(Ordering::Acquire) > 0;
        if busy || io.dirty {
            return Ok(false);
        }
        self.remember_attrs(&mut st, file.ino, &shown, proof);
        self.drop_clean(&mut st, file, &mut io);
        st.view.collect(file.ino);
        self.counters.evictions.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Before a clean object goes: the view goes on showing what it showed.
    pub(crate) fn remember_attrs(&self, st: &mut State, ino: Ino, shown: &Stat, proof: Proof) {
        let now = self.uptime();
        let Some(node) = st.view.get_mut(ino) else { return };
        let Stat { perm, uid, gid, size, blocks, atime, mtime, ctime, .. } = *shown;
        let ctime = ctime.max(node.meta().ctime);
        node.change_meta(|meta| *meta = Meta { perm, uid, gid, size, blocks, atime, mtime, ctime, ..*meta });
        node.seen = Seen::at(now);
        node.set_twin(Some(proof));
    }
}

pub(crate) fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
