//! What a refusal holds, and what goes on (P15). Pure: reads the state, decides, changes nothing.
//!
//! Held are a user's event that the slow tier refuses; all later events of that user, so that a marker never arrives
//! before what it marks; and every later event that depends on a held one. Two events depend on each other if they
//! touch the same node or name, or if one touches a directory above the other. A user with a held event is a held user
//! from there on, too: each user's events keep their order. All other events may go first, which changes neither the
//! view nor the meaning of any event.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::tiers::disk::layout::split;
use crate::tiers::log::dirs::LoggedPath;
use crate::tiers::log::record::Record;
use crate::tiers::model::event::Event;
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::state::EngineState;
use crate::tiers::{Ino, Lsn};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct HeldEvents {
    /// In log order.
    pub(crate) events: Vec<Lsn>,
    /// The nodes that these events touch, and the files with bytes ahead of their events that depend on them.
    pub(crate) inodes: HashSet<Ino>,
    /// For each of these nodes, the last of its events that is not held.
    last_free: HashMap<Ino, Lsn>,
}

/// What is held with the events of these users.
pub(crate) fn held_with(st: &EngineState, users: BTreeSet<u32>) -> HeldEvents {
    let mut found = Dependents::new(st, users);
    let mut held = HeldEvents::default();
    for event in st.queue.events() {
        if found.has(event) {
            held.events.push(event.lsn);
            found.add(event);
        } else {
            held.last_free.extend(event.change.inodes().into_iter().map(|ino| (ino, event.lsn)));
        }
    }
    for ino in st.uncommitted.files() {
        let links = st.view.get(ino).map(|node| &node.links[..]).unwrap_or_default();
        if found.inodes.contains(&ino) || links.iter().any(|place| found.has_place(place)) {
            held.inodes.insert(ino);
        }
    }
    held.inodes.extend(found.inodes);
    held.last_free.retain(|ino, _| held.inodes.contains(ino));
    held
}

impl HeldEvents {
    /// Which of these records, in the log's present order, leave their places, and whether each is logged again.
    /// `binds`: the records that name the objects of files with bytes ahead of their events.
    pub(crate) fn records<'a>(
        &self,
        records: impl DoubleEndedIterator<Item = &'a (Lsn, Record)> + Clone,
        binds: &HashSet<Lsn>,
    ) -> Vec<(Lsn, bool)> {
        let is_held = |lsn: Lsn| self.events.binary_search(&lsn).is_ok();
        let is_behind =
            |ino: &Ino, lsn: Lsn| self.inodes.contains(ino) && self.last_free.get(ino).is_none_or(|last| *last < lsn);
        let mut dirs: HashMap<Vec<u8>, Lsn> = HashMap::new();
        for (lsn, record) in records.clone().filter(|(lsn, _)| is_held(*lsn)) {
            dirs.extend(leads_to(record).into_iter().flatten().map(|path| (path.bytes().into_owned(), *lsn)));
        }
        // For a file that is gone without an event, in a directory that is held.
        let is_below = |path: &[u8], lsn: Lsn| {
            let mut above = std::iter::successors(Some(split(path).0), |path| Some(split(path).0));
            above.by_ref().take_while(|path| !path.is_empty()).any(|dir| dirs.get(dir).is_some_and(|held| *held < lsn))
        };
        let mut found: Vec<(Lsn, bool)> = Vec::new();
        // A record that precedes another one goes with it.
        let mut next = None;
        for (lsn, record) in records.rev() {
            let goes = match record {
                record if record.is_event() && is_held(*lsn) => Some(true),
                Record::Bind { ino, .. } if is_behind(ino, *lsn) => Some(binds.contains(lsn)),
                Record::Bind { path, .. } | Record::Remove { path, .. } => {
                    is_below(&path.bytes(), *lsn).then_some(false)
                }
                Record::Invalidate { ino, .. } | Record::InPlace { ino, .. } => is_behind(ino, *lsn).then_some(true),
                Record::Seal { of, .. } => is_held(*of).then_some(true),
                Record::Expect { .. } | Record::Names { .. } => next,
                _ => None,
            };
            found.extend(goes.map(|again| (*lsn, again)));
            next = goes;
        }
        found.reverse();
        found
    }
}

/// The paths that lead to another node from this event on.
fn leads_to(record: &Record) -> [Option<&LoggedPath>; 2] {
    match record {
        Record::Make { path, .. } => [Some(path), None],
        Record::Rename { path, to, exchange, .. } => [exchange.then_some(path), Some(to)],
        _ => [None, None],
    }
}

/// The held events so far, and what they touch.
struct Dependents<'a> {
    st: &'a EngineState,
    users: BTreeSet<u32>,
    inodes: HashSet<Ino>,
    places: HashSet<&'a DirEntryKey>,
    /// The directories above all these.
    above: HashSet<Ino>,
    /// Whether a node is beneath one of the nodes; filled on demand.
    inside: HashMap<Ino, bool>,
}

impl<'a> Dependents<'a> {
    fn new(st: &'a EngineState, users: BTreeSet<u32>) -> Self {
        let (inodes, places) = (HashSet::new(), HashSet::new());
        Dependents { st, users, inodes, places, above: HashSet::new(), inside: HashMap::new() }
    }

    fn has(&mut self, event: &Event) -> bool {
        if self.users.contains(&event.by) {
            return true;
        }
        if self.inodes.is_empty() {
            return false;
        }
        let inodes = event.change.inodes();
        inodes.iter().any(|ino| self.above.contains(ino))
            || inodes.into_iter().any(|ino| self.is_inside(ino))
            || event.change.places().into_iter().any(|place| self.has_place(place))
    }

    fn has_place(&mut self, place: &DirEntryKey) -> bool {
        self.places.contains(place) || self.is_inside(place.0)
    }

    fn add(&mut self, event: &'a Event) {
        self.users.insert(event.by);
        let (inodes, places) = (event.change.inodes(), event.change.places());
        let mut above: Vec<Ino> = places.iter().map(|(dir, _)| *dir).collect();
        inodes.iter().for_each(|ino| above.extend(self.parents(*ino)));
        while let Some(dir) = above.pop() {
            if self.above.insert(dir) {
                above.extend(self.parents(dir));
            }
        }
        self.places.extend(places);
        let before = self.inodes.len();
        self.inodes.extend(inodes);
        if self.inodes.len() > before {
            self.inside.clear();
        }
    }

    /// The directories of its names, in the view and on the slow tree.
    fn parents(&self, ino: Ino) -> Vec<Ino> {
        let node = self.st.view.get(ino);
        node.into_iter().flat_map(|node| node.links.iter().chain(node.slow())).map(|(dir, _)| *dir).collect()
    }

    fn is_inside(&mut self, ino: Ino) -> bool {
        if self.inodes.contains(&ino) {
            return true;
        }
        if let Some(inside) = self.inside.get(&ino) {
            return *inside;
        }
        self.inside.insert(ino, false);
        let inside = self.parents(ino).into_iter().any(|dir| self.is_inside(dir));
        self.inside.insert(ino, inside);
        inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::ROOT;
    use crate::tiers::model::closure::tests::{Queue, at};

    const SHE: u32 = 1001;
    const HE: u32 = 1002;

    fn held(queue: &Queue) -> Vec<Lsn> {
        held_with(&queue.0, BTreeSet::from([HE])).events
    }

    #[test]
    fn a_user_is_held_from_there_on_and_others_go_on() {
        let mut queue = Queue::new();
        for (user, name) in [(SHE, "a"), (HE, "b"), (SHE, "c"), (HE, "d"), (SHE, "e")] {
            queue.1 = user;
            queue.file(ROOT, name);
        }
        assert_eq!(held(&queue), [2, 4]);
    }

    #[test]
    fn who_changes_what_a_held_one_changed_is_held_too_and_from_there_on() {
        let mut queue = Queue::new();
        queue.1 = SHE;
        queue.file(ROOT, "before"); // 1
        queue.1 = HE;
        let his = queue.file(ROOT, "his"); // 2
        queue.remove(his, at(ROOT, "his")); // 3
        queue.1 = SHE;
        queue.file(ROOT, "free"); // 4
        queue.file(ROOT, "his"); // 5: another file, under a name that the held user has left
        queue.file(ROOT, "behind"); // 6
        queue.1 = 1003;
        queue.file(ROOT, "its"); // 7
        assert_eq!(held(&queue), [2, 3, 5, 6]);
    }

    #[test]
    fn what_is_above_or_below_is_held_too() {
        let mut queue = Queue::new();
        queue.1 = SHE;
        let shared = queue.dir_of_mode(ROOT, "shared", 0); // 1
        let beside = queue.dir_of_mode(ROOT, "beside", 0); // 2
        queue.1 = HE;
        let his = queue.dir_of_mode(shared, "his", 0); // 3
        queue.1 = SHE;
        queue.file(beside, "free"); // 4
        queue.file(shared, "free"); // 5
        queue.1 = 1003;
        queue.file(his, "below"); // 6
        queue.1 = 1004;
        queue.rename(shared, at(ROOT, "shared"), at(ROOT, "moved")); // 7
        queue.1 = 1005;
        queue.file(beside, "free, too"); // 8
        assert_eq!(held(&queue), [3, 6, 7]);
    }
}
