//! Listing a directory: the slow tier's entries, under the view's.
//!
//! All callers that list a directory within `attribute_lifetime_slow` share one listing, as long as the view of it has
//! not changed: every process that loads a data set begins with a listing, and a slow tier takes seconds for a million
//! names.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Errno, Result};
use crate::path::Name;
use crate::tiers::disk::errors::is_elsewhere;
use crate::tiers::disk::layout::OURS;
use crate::tiers::disk::{DirEntry, Kind};
use crate::tiers::model::node::{Listed, Present, Slot};
use crate::tiers::model::state::EngineState;
use crate::tiers::{Cx, Ino, ListEntry, Listing, ROOT, Tiers};

/// How many listings that no one has open are kept, and how many entries in all of them.
const KEPT: usize = 8;
const ENTRIES_KEPT: usize = 1 << 18;
/// The names of a larger directory are not kept for the time when the slow tier does not answer.
const PRESENT_MOST: usize = 4096;

/// Keeps the latest listings for the next callers; directories refer to them.
#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<(Duration, Arc<Listing>)>);

impl Recent {
    fn keep(&mut self, asked: Duration, listing: &Arc<Listing>) {
        self.0.push_front((asked, Arc::clone(listing)));
        self.0.truncate(KEPT);
        while self.0.iter().map(|(_, listing)| listing.entries.len()).sum::<usize>() > ENTRIES_KEPT {
            self.0.pop_back();
        }
    }

    /// Drops listings that are older than `limit`.
    pub(super) fn age(&mut self, now: Duration, limit: Duration) {
        self.0.retain(|(asked, _)| now.saturating_sub(*asked) < limit);
    }
}

impl Tiers {
    /// The entries of a directory as the view shows them.
    pub fn list(&self, cx: &Cx, ino: Ino) -> Result<Arc<Listing>> {
        self.note_use();
        let asked = self.uptime();
        if let Some(listing) = self.listed(ino, asked) {
            return Ok(listing);
        }
        let (listing, generation) = self.list_since(cx, ino, false)?;
        let listing = Arc::new(listing);
        // Needed by creates in it while the slow tier does not answer. If it cannot be read now, it is read then.
        self.default_acl(cx, ino).ok();
        if let Some(dir) = self.state.lock().view.get_mut(ino).and_then(|node| node.dir.as_mut()) {
            dir.listed = Some(Listed { asked, generation, listing: Arc::downgrade(&listing) });
            if !dir.known && dir.generation == generation && listing.entries.len() <= PRESENT_MOST {
                let names = listing.entries.iter().skip(2).filter_map(|entry| Name::new(&entry.name).ok()).collect();
                dir.present = Some(Box::new(Present { asked, names }));
            }
        }
        self.calls.recent.lock().keep(asked, &listing);
        Ok(listing)
    }

    /// Whether a name is free by the latest listing, with nothing else known of it.
    pub fn lists_not(&self, dir: Ino, name: &Name) -> bool {
        self.state.lock().view.known(dir, name, self.uptime(), self.ages(), true) == Some(None)
    }

    /// A listing that still holds.
    fn listed(&self, ino: Ino, now: Duration) -> Option<Arc<Listing>> {
        let st = self.state.lock();
        let node = st.view.get(ino)?;
        let dir = node.dir.as_ref()?;
        dir.used.store(true, Ordering::Relaxed);
        let listed = dir.listed.as_ref().filter(|listed| listed.generation == dir.generation)?;
        let fresh = now.saturating_sub(listed.asked) < self.options().attribute_lifetime_slow;
        let listing = listed.listing.upgrade().filter(|_| fresh || dir.known || self.slow.is_down())?;
        // The directory may have moved to another parent.
        let parent = node.links.first().map_or(ROOT, |link| link.0);
        listing.entries.get(1).is_some_and(|above| above.ino == parent).then_some(listing)
    }

    /// The listing as it is now, and the directory's generation it is true for. No lock is held while the slow tier is
    /// read; names that changed meanwhile are taken from the view. `anew`: the slow tier is read though every name is
    /// known.
    pub(crate) fn list_since(&self, cx: &Cx, ino: Ino, anew: bool) -> Result<(Listing, u64)> {
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
            self.look_again(ino);
            st = self.state.lock();
        }
        // Someone else has removed it: it will be made anew, with the entries that are on their way.
        let found = if is_gone { Vec::new() } else { found.at("list on slow", format!("inode {ino}"))? };
        let mut entries = Vec::with_capacity(found.len() + 2);
        entries.push(ListEntry { name: b".".to_vec(), ino, kind: Kind::Dir });
        entries.push(ListEntry { name: b"..".to_vec(), ino: parent, kind: Kind::Dir });
        let generation = merge(&mut st, ino, found, slow.is_some().then_some(start), &mut entries)?;
        Ok((Listing { entries }, generation))
    }
}

/// Adds the slow tier's entries that the view does not hide, then the view's own. `since`: the generation before the
/// slow tier was read; `None` if it was not, because every name has a slot. Returns the generation the result is true
/// for.
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
            Some(ListEntry { name: name.as_bytes().to_vec(), ino: child, kind: st.view.get(child)?.kind })
        })
        .collect();
    let generation = dir.generation;
    let dev = st.view.dev_of(ino);
    for DirEntry { name, ino: number, kind } in shown {
        // A mounted directory has another number than its mount point.
        let mounted = st.view.get(ino).and_then(|node| node.dir.as_ref()?.slots.get(name.as_slice())?.view());
        let mounted = mounted.filter(|child| st.view.is_part(*child));
        entries.push(ListEntry { ino: mounted.unwrap_or_else(|| st.view.ino_shown((dev, number), kind)), name, kind });
    }
    entries.extend(own);
    Ok(generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(entries: usize) -> Arc<Listing> {
        let entry = ListEntry { name: b"x".to_vec(), ino: 7, kind: Kind::File };
        Arc::new(Listing { entries: vec![entry; entries] })
    }

    #[test]
    fn the_latest_are_kept_for_a_while_and_no_more_than_fit() {
        let mut recent = Recent::default();
        let all: Vec<_> = (0..20).map(|_| listing(10)).collect();
        for (second, listing) in all.iter().enumerate() {
            recent.keep(Duration::from_secs(second as u64), listing);
        }
        let kept = |all: &[Arc<Listing>]| all.iter().filter(|listing| Arc::strong_count(listing) > 1).count();
        assert_eq!((kept(&all), kept(&all[20 - KEPT..])), (KEPT, KEPT));
        recent.age(Duration::from_secs(20), Duration::from_secs(3));
        assert_eq!(kept(&all), 2, "of 18 and 19");
        let large = listing(ENTRIES_KEPT);
        recent.keep(Duration::from_secs(20), &large);
        assert_eq!((kept(&all), Arc::strong_count(&large)), (0, 2), "it takes the place of all others");
        recent.keep(Duration::from_secs(20), &listing(ENTRIES_KEPT + 1));
        assert!(recent.0.is_empty(), "too large to be kept");
    }
}
