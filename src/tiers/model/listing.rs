//! The listing of a directory, shared by all callers that have it open. Each name keeps its position, whatever is made
//! and removed meanwhile, so a reader continues behind the last name it got, in a newer listing as well. If each reader
//! had a frozen listing, a user with many handles on a large directory would have as many copies of its names.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::tiers::disk::sync::{Mutex, Rank};
use crate::tiers::{ListEntry, Listing};

/// What an entry takes besides its name: itself, and the allocator's share.
const ENTRY_ITSELF: usize = size_of::<ListEntry>() + 16;

/// The latest listing of a directory.
#[derive(Debug)]
pub struct SharedListing {
    latest: Mutex<Arc<Listing>>,
    /// [`Listing::bytes`] of it.
    bytes: AtomicUsize,
}

impl SharedListing {
    /// A first listing; its entries get their positions.
    pub(crate) fn new(mut entries: Vec<ListEntry>, generation: u64) -> Self {
        entries.iter_mut().zip(0..).for_each(|(entry, at)| entry.at = at);
        let latest = Listing::of(entries, 0, generation);
        SharedListing { bytes: latest.bytes.into(), latest: Mutex::new(Rank::Leaf, latest) }
    }

    pub fn latest(&self) -> Arc<Listing> {
        Arc::clone(&self.latest.lock())
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Takes a newer listing: names of the former listing keep their positions, new ones come behind all others. So a
    /// reader gets each name exactly once if the name exists all the while. Returns the generation of the latest
    /// listing, which another caller may have asked for later.
    pub(crate) fn renew(&self, mut entries: Vec<ListEntry>, generation: u64) -> u64 {
        loop {
            let before = self.latest();
            if generation < before.generation {
                return before.generation;
            }
            let end = before.place(&mut entries);
            // Other callers ask for the listing with the state locked, so do not hold its lock while a million names
            // are placed.
            let mut latest = self.latest.lock();
            if Arc::ptr_eq(&latest, &before) {
                *latest = Listing::of(entries, end, generation);
                self.bytes.store(latest.bytes, Relaxed);
                return generation;
            }
        }
    }
}

impl Listing {
    fn of(entries: Vec<ListEntry>, end: u64, generation: u64) -> Arc<Self> {
        let bytes = entries.iter().map(|entry| entry.name.len() + ENTRY_ITSELF).sum();
        let end = entries.last().map_or(0, |last| last.at + 1).max(end);
        Arc::new(Listing { entries, end, bytes, generation })
    }

    /// Gives newer entries their positions, and sorts them. Returns the end of the positions.
    fn place(&self, newer: &mut [ListEntry]) -> u64 {
        let places: HashMap<&[u8], u64> = self.entries.iter().map(|entry| (&*entry.name, entry.at)).collect();
        let mut end = self.end;
        for entry in newer.iter_mut() {
            entry.at = places.get(&*entry.name).copied().unwrap_or_else(|| {
                end += 1;
                end - 1
            });
        }
        // Nearly sorted already: the slow tier lists names in the same order as before.
        newer.sort_by_key(|entry| entry.at);
        end
    }

    /// The entries from this position on.
    pub fn from(&self, position: u64) -> &[ListEntry] {
        self.entries.get(self.entries.partition_point(|entry| entry.at < position)..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::disk::Kind;

    fn entries(names: &[&str]) -> Vec<ListEntry> {
        let entry = |name: &&str| ListEntry { name: name.as_bytes().into(), ino: 7, kind: Kind::File, at: 0 };
        names.iter().map(entry).collect()
    }

    fn shown(listing: &Listing, from: u64) -> Vec<(&str, u64)> {
        listing.from(from).iter().map(|entry| (std::str::from_utf8(&entry.name).expect("text"), entry.at)).collect()
    }

    #[test]
    fn a_name_keeps_its_position_while_others_come_and_go() {
        let shared = SharedListing::new(entries(&[".", "..", "a", "b", "c"]), 1);
        let end = shared.latest().end;
        assert_eq!(end, 5);
        // In any order; `a` is gone and comes back later, at another place.
        assert_eq!(shared.renew(entries(&[".", "..", "c", "new", "b"]), 2), 2);
        assert_eq!(shown(&shared.latest(), 2), [("b", 3), ("c", 4), ("new", 5)]);
        shared.renew(entries(&[".", "..", "a", "c"]), 3);
        assert_eq!(shown(&shared.latest(), 0), [(".", 0), ("..", 1), ("c", 4), ("a", 6)]);
        // No position is given again, even if the last names are gone.
        shared.renew(entries(&[".", "..", "c"]), 4);
        shared.renew(entries(&[".", "..", "late", "c"]), 5);
        assert_eq!(shown(&shared.latest(), 4), [("c", 4), ("late", 7)]);
        assert_eq!((shared.latest().end, shared.latest().from(end).len()), (8, 1));
    }

    #[test]
    fn an_older_listing_replaces_no_newer_one() {
        let shared = SharedListing::new(entries(&[".", "..", "a"]), 5);
        assert_eq!(shared.renew(entries(&[".", ".."]), 4), 5);
        assert_eq!(shown(&shared.latest(), 2), [("a", 2)]);
    }
}
