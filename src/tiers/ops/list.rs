//! Listing a directory: the slow tier's entries merged with the view's.
//!
//! All callers that have a directory open share one listing of it (`model/listing.rs`). A caller that begins to read
//! renews it, unless it was read within `attribute_lifetime_slow` and the view of the directory has not changed: every
//! process that loads a data set begins with a listing, and a slow tier takes seconds for a million names.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Errno, Result};
use crate::path::Name;
use crate::tiers::disk::errors::is_elsewhere;
use crate::tiers::disk::layout::OURS;
use crate::tiers::disk::{DirEntry, Kind};
use crate::tiers::model::listing::SharedListing;
use crate::tiers::model::node::{DirNode, Listed, Present, Slot};
use crate::tiers::model::state::EngineState;
use crate::tiers::{Cx, Ino, ListEntry, Listing, ROOT, Tiers};

/// How many unused listings are kept, and how many bytes in all of them.
const KEPT: usize = 8;
const BYTES_KEPT: usize = 32 << 20;
/// A program that has closed a directory of a fleet removes the directory within this time; later, names that other
/// members have made in it count.
const REMOVED_WITHIN: Duration = Duration::from_secs(60);
/// The names of a larger directory are not kept for the time when the slow tier does not answer.
const PRESENT_MOST: usize = 4096;

/// Keeps the latest listings for later callers; a directory has only a weak reference.
#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<(Duration, Arc<SharedListing>)>);

impl Recent {
    fn keep(&mut self, asked: Duration, listing: &Arc<SharedListing>) {
        self.0.retain(|(_, other)| !Arc::ptr_eq(other, listing));
        self.0.push_front((asked, Arc::clone(listing)));
        self.0.truncate(KEPT);
        while self.0.iter().map(|(_, listing)| listing.bytes()).sum::<usize>() > BYTES_KEPT {
            self.0.pop_back();
        }
    }

    /// Drops listings that are older than `limit`.
    pub(super) fn age(&mut self, now: Duration, limit: Duration) {
        self.0.retain(|(asked, _)| now.saturating_sub(*asked) < limit);
    }
}

impl Tiers {
    /// The entries of a directory as the view shows them now.
    pub fn list(&self, cx: &Cx, ino: Ino) -> Result<Arc<Listing>> {
        Ok(self.open_listing(cx, ino)?.latest())
    }

    /// The listing of a directory, shared by all callers that have it open.
    pub fn open_listing(&self, cx: &Cx, ino: Ino) -> Result<Arc<SharedListing>> {
        self.note_use();
        let asked = self.uptime();
        if let Some(listing) = self.listed(ino, asked) {
            return Ok(listing);
        }
        let (entries, generation) = self.list_since(cx, ino, false)?;
        // Creates need it while the slow tier does not answer. On an error, it is read then.
        self.default_acl(cx, ino).ok();
        let listing = self.share(ino, asked, entries, generation);
        self.calls.recent.lock().keep(asked, &listing);
        Ok(listing)
    }

    /// Gives a new listing to all callers that have the directory open.
    fn share(&self, ino: Ino, asked: Duration, entries: Vec<ListEntry>, generation: u64) -> Arc<SharedListing> {
        let present = (entries.len() <= PRESENT_MOST).then(|| {
            let names = entries.iter().skip(2).filter_map(|entry| Name::new(&entry.name).ok()).collect();
            Box::new(Present { asked, names })
        });
        let mut st = self.state.lock();
        let open = st.view.get(ino).and_then(|node| node.dir.as_ref()?.listed.as_ref()?.listing.upgrade());
        let (listing, generation) = match open {
            None => (Arc::new(SharedListing::new(entries, generation)), generation),
            Some(listing) => {
                // Without the state lock: there may be a million names.
                drop(st);
                let generation = listing.renew(entries, generation);
                st = self.state.lock();
                (listing, generation)
            }
        };
        if let Some(dir) = st.view.get_mut(ino).and_then(|node| node.dir.as_mut()) {
            note_listing(dir, Listed { asked, generation, listing: Arc::downgrade(&listing) }, present);
        }
        listing
    }

    /// The directory is closed. In a fleet its listing is kept: the program may be about to remove the directory.
    pub fn close_listing(&self, listing: &Arc<SharedListing>) {
        if self.order.is_shared() {
            self.calls.recent.lock().keep(self.uptime(), listing);
        }
    }

    /// How long unused listings are kept.
    pub(crate) fn listings_kept(&self) -> Duration {
        if self.order.is_shared() { REMOVED_WITHIN } else { self.options().attribute_lifetime_slow }
    }

    /// Whether these entries of a directory all came after its latest listing here, which must be recent, and none was
    /// looked up here since.
    pub(crate) fn came_since_listed(&self, ino: Ino, entries: &[ListEntry]) -> bool {
        if !self.order.is_shared() {
            return false;
        }
        let listing = {
            let st = self.state.lock();
            let dir = st.view.live_dir(ino);
            // A looked-up entry has been seen here.
            let is_known =
                |child: Ino| st.view.owes_below(child) || st.view.get(child).is_some_and(|node| node.refs > 0);
            let is_seen = |entry: &ListEntry| {
                let slot = dir.and_then(|dir| dir.slots.get(entry.name.as_slice()));
                slot.is_some_and(|slot| slot.pending() || slot.view().is_some_and(is_known))
            };
            let listed = dir.and_then(|dir| dir.listed.as_ref()).filter(|_| !entries.iter().any(is_seen));
            listed.and_then(|listed| listed.listing.upgrade()).map(|listing| listing.latest())
        };
        let Some(listing) = listing else { return false };
        let listed: HashSet<&[u8]> = listing.entries.iter().map(|entry| &*entry.name).collect();
        !entries.iter().any(|entry| listed.contains(&*entry.name))
    }

    /// Treats these entries of a directory as gone. Returns its generation then; `None`: the directory has changed
    /// since `since`.
    pub(crate) fn overlook(&self, ino: Ino, entries: &[ListEntry], since: u64) -> Option<u64> {
        let names: Vec<Name> = entries.iter().filter_map(|entry| Name::new(&entry.name).ok()).collect();
        let mut st = self.state.lock();
        st.view.live_dir(ino).filter(|dir| dir.generation == since)?;
        let (asked, applied) = (st.view.asked(self.uptime()), st.queue.applied());
        for name in &names {
            st.view.learn(ino, name, None, asked, applied);
        }
        let dir = st.view.get_mut(ino)?.dir.as_mut()?;
        // If the directory is not removed after all, its names are read again.
        dir.forget_others();
        Some(dir.generation)
    }

    /// Whether a name is free according to the latest listing and everything else that is known.
    pub fn lists_not(&self, dir: Ino, name: &Name) -> bool {
        self.state.lock().view.known(dir, name, self.uptime(), self.ages(), true) == Some(None)
    }

    /// The latest listing, if it is still valid.
    fn listed(&self, ino: Ino, now: Duration) -> Option<Arc<SharedListing>> {
        let st = self.state.lock();
        let node = st.view.get(ino)?;
        let dir = node.dir.as_ref()?;
        dir.used.store(true, Ordering::Relaxed);
        let listed = dir.listed.as_ref().filter(|listed| listed.generation == dir.generation)?;
        let fresh = now.saturating_sub(listed.asked) < self.options().attribute_lifetime_slow;
        let listing = listed.listing.upgrade().filter(|_| fresh || dir.known || self.slow.is_down())?;
        // The directory may have moved to another parent.
        let parent = node.links.first().map_or(ROOT, |link| link.0);
        listing.latest().entries.get(1).is_some_and(|above| above.ino == parent).then_some(listing)
    }

    /// The listing as it is now, and the directory's generation it is valid for. No lock is held while the slow tier is
    /// read; names that changed meanwhile are taken from the view. `anew`: read the slow tier even if every name is
    /// known.
    pub(crate) fn list_since(&self, cx: &Cx, ino: Ino, anew: bool) -> Result<(Vec<ListEntry>, u64)> {
        let (slow, start) = {
            let mut st = self.state.lock();
            let has_path = st.view.slow_path(ino).is_some();
            let node = st.view.get_mut(ino).ok_or(Errno::ESTALE)?;
            let id = node.slow_id().filter(|_| has_path);
            let dir = node.dir.as_mut().ok_or(Errno::ENOTDIR)?;
            dir.used.store(true, Ordering::Relaxed);
            let slow = if dir.known && !anew { None } else { id };
            if slow.is_some() {
                cx.slow()?;
                dir.listers += 1;
            }
            (slow, dir.generation)
        };
        let found = match &slow {
            None => Ok(Vec::new()),
            Some(id) => self.at_slow(ino, |path, _| self.slow.list(&*self.slow.dir(ino, path, *id)?)),
        };
        let mut st = self.state.lock();
        let parent = st.view.get(ino).and_then(|node| node.links.first()).map_or(ROOT, |link| link.0);
        if slow.is_some()
            && let Some(dir) = st.view.get_mut(ino).and_then(|node| node.dir.as_mut())
        {
            dir.listers -= 1;
        }
        let is_elsewhere = found.as_ref().is_err_and(is_elsewhere);
        let is_gone = is_elsewhere && st.view.owes_below(ino);
        if is_elsewhere && !is_gone {
            drop(st);
            self.forget_seen(ino);
            st = self.state.lock();
        }
        // A foreign rmdir: publishing makes the directory again, with the pending entries.
        let found = if is_gone { Vec::new() } else { found.at("list on slow", format!("inode {ino}"))? };
        let mut entries = Vec::with_capacity(found.len() + 2);
        let dir = |name: &[u8], ino| ListEntry { name: name.to_vec(), ino, kind: Kind::Dir, at: 0 };
        entries.extend([dir(b".", ino), dir(b"..", parent)]);
        let generation = merge(&mut st, ino, found, slow.is_some().then_some(start), &mut entries)?;
        Ok((entries, generation))
    }
}

/// Makes this the directory's listing, unless a newer one is in use. Its names count as present while the directory is
/// not known in full.
fn note_listing(dir: &mut DirNode, listed: Listed, present: Option<Box<Present>>) {
    if dir.listed.as_ref().is_some_and(|newer| newer.generation > listed.generation && newer.listing.strong_count() > 0)
    {
        return;
    }
    if !dir.known && dir.generation == listed.generation && present.is_some() {
        dir.present = present;
    }
    dir.listed = Some(listed);
}

/// Adds the slow tier's entries that the view does not hide, then the view's own. `since`: the generation before the
/// slow tier was read; `None` if it was not read because every name has a slot. Returns the generation that the result
/// is valid for.
fn merge(
    st: &mut EngineState,
    ino: Ino,
    found: Vec<DirEntry>,
    since: Option<u64>,
    entries: &mut Vec<ListEntry>,
) -> Result<u64> {
    let dir = st.view.get(ino).and_then(|node| node.dir.as_ref()).ok_or(Errno::ESTALE)?;
    let from_view = |name: &Name, slot: &Slot| {
        since.is_none_or(|since| slot.pending() || slot.changed > since || st.view.is_following(ino, name))
    };
    let hidden = |entry: &DirEntry| {
        let slot = dir.slots.get_key_value(entry.name.as_slice());
        slot.is_some_and(|(name, slot)| from_view(name, slot)) || (entry.name == OURS && st.view.is_part(ino))
    };
    let shown: Vec<DirEntry> = found.into_iter().filter(|entry| !hidden(entry)).collect();
    let own: Vec<_> = dir
        .slots
        .iter()
        .filter(|(name, slot)| from_view(name, slot))
        .filter_map(|(name, slot)| {
            let child = slot.view()?;
            Some(ListEntry { name: name.as_bytes().to_vec(), ino: child, kind: st.view.get(child)?.kind, at: 0 })
        })
        .collect();
    let generation = dir.generation;
    let dev = st.view.dev_of(ino);
    for DirEntry { name, ino: number, kind } in shown {
        // A mounted directory has another inode number than its mount point.
        let mounted = st.view.get(ino).and_then(|node| node.dir.as_ref()?.slots.get(name.as_slice())?.view());
        let mounted = mounted.filter(|child| st.view.is_part(*child));
        let ino = mounted.unwrap_or_else(|| st.view.ino_shown((dev, number), kind));
        entries.push(ListEntry { ino, name, kind, at: 0 });
    }
    entries.extend(own);
    Ok(generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(entries: usize) -> Arc<SharedListing> {
        let entry = ListEntry { name: vec![b'x'; 1 << 10], ino: 7, kind: Kind::File, at: 0 };
        Arc::new(SharedListing::new(vec![entry; entries], 0))
    }

    #[test]
    fn the_latest_are_kept_for_a_while_and_no_more_than_fit() {
        let mut recent = Recent::default();
        let all: Vec<_> = (0..20).map(|_| listing(10)).collect();
        for (second, listing) in all.iter().enumerate() {
            recent.keep(Duration::from_secs(second as u64), listing);
        }
        let kept = |all: &[Arc<SharedListing>]| all.iter().filter(|listing| Arc::strong_count(listing) > 1).count();
        assert_eq!((kept(&all), kept(&all[20 - KEPT..])), (KEPT, KEPT));
        recent.age(Duration::from_secs(20), Duration::from_secs(3));
        assert_eq!(kept(&all), 2, "of 18 and 19");
        recent.keep(Duration::from_secs(20), &all[18]);
        assert_eq!((recent.0.len(), recent.0[0].0), (2, Duration::from_secs(20)), "each is kept once");
        let large = listing((BYTES_KEPT >> 10) * 9 / 10);
        recent.keep(Duration::from_secs(20), &large);
        assert_eq!((kept(&all), Arc::strong_count(&large)), (2, 2));
        recent.keep(Duration::from_secs(20), &listing(BYTES_KEPT >> 10));
        assert!(recent.0.is_empty(), "too large to be kept");
    }
}
