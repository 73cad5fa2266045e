//! Which events must leave the order together when something is set aside. Pure: reads the state, decides, changes
//! nothing.
//!
//! All pending events of a node go, and for a directory all events beneath it. The remaining events must keep their
//! meaning: each must find under its names what it found before. So the queue is walked in two worlds at once, with the
//! events that go and without them. An event that meets a name under which the two worlds have different nodes goes
//! too, with all pending events of its nodes, until no more are found. Writers that used the same temporary name are
//! not affected: in both worlds the name was free by then.

use std::collections::{HashMap, HashSet};

use crate::tiers::model::event::Change;
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::state::EngineState;
use crate::tiers::{Ino, Lsn};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Closure {
    pub(crate) inodes: HashSet<Ino>,
    /// In log order.
    pub(crate) events: Vec<Lsn>,
    /// The names under which the two worlds differ in the end, each with its node in the world without the events that
    /// go.
    pub(crate) places: HashMap<DirEntryKey, Option<Ino>>,
    /// Files among them with bytes ahead of their events: those bytes have to become an event first.
    pub(crate) uncommitted: Vec<Ino>,
}

/// Everything that goes with these nodes.
pub(crate) fn closure(st: &EngineState, start: HashSet<Ino>) -> Closure {
    let mut inodes = start;
    loop {
        let known = inodes.len();
        let found = QueueWalk::new(st, inodes).go();
        if found.inodes.len() == known {
            return found;
        }
        inodes = found.inodes;
    }
}

/// The nodes that pending events have had, or will have, under a name.
pub(crate) fn pending_at<'a>(st: &'a EngineState, place: &'a DirEntryKey) -> impl Iterator<Item = Ino> + 'a {
    let at = move |change: &&Change| change.places().contains(&place);
    st.queue.events().iter().map(|event| &event.change).filter(at).flat_map(Change::inodes)
}

/// One pass through the queue.
struct QueueWalk<'a> {
    st: &'a EngineState,
    found: Closure,
    /// Whether a node is one of the nodes that go, or beneath one; filled on demand.
    inside: HashMap<Ino, bool>,
    with: HashMap<&'a DirEntryKey, Option<Ino>>,
    without: HashMap<&'a DirEntryKey, Option<Ino>>,
}

impl<'a> QueueWalk<'a> {
    fn new(st: &'a EngineState, inodes: HashSet<Ino>) -> Self {
        let found = Closure { inodes, ..Closure::default() };
        QueueWalk { st, found, inside: HashMap::new(), with: HashMap::new(), without: HashMap::new() }
    }

    fn go(mut self) -> Closure {
        let st = self.st;
        for event in st.queue.events() {
            let change = &event.change;
            let goes = self.is_inside(change) || change.places().into_iter().any(|place| self.differs(place));
            if goes {
                self.found.events.push(event.lsn);
                self.found.inodes.extend(change.inodes());
            } else {
                put(&mut self.without, change);
            }
            put(&mut self.with, change);
        }
        for ino in st.uncommitted.files() {
            let links = st.view.get(ino).map(|node| &node.links[..]).unwrap_or_default();
            if !links.is_empty() && (self.is_node_inside(ino) || links.iter().any(|place| self.differs(place))) {
                self.found.inodes.insert(ino);
                self.found.uncommitted.push(ino);
            }
        }
        let differing = self.with.keys().filter(|place| self.differs(place));
        self.found.places = differing.map(|place| ((*place).clone(), self.occupant(&self.without, place))).collect();
        self.found
    }

    fn is_inside(&mut self, change: &Change) -> bool {
        let dirs = change.places().into_iter().map(|(dir, _)| *dir);
        change.inodes().into_iter().chain(dirs).any(|ino| self.is_node_inside(ino))
    }

    /// Checks all of the node's names, in the view and on the slow tree.
    fn is_node_inside(&mut self, ino: Ino) -> bool {
        if self.found.inodes.contains(&ino) {
            return true;
        }
        if let Some(inside) = self.inside.get(&ino) {
            return *inside;
        }
        self.inside.insert(ino, false);
        let Some(node) = self.st.view.get(ino) else { return false };
        let inside = node.links.iter().chain(node.slow()).any(|(dir, _)| self.is_node_inside(*dir));
        self.inside.insert(ino, inside);
        inside
    }

    fn differs(&self, place: &DirEntryKey) -> bool {
        self.occupant(&self.with, place) != self.occupant(&self.without, place)
    }

    fn occupant(&self, world: &HashMap<&DirEntryKey, Option<Ino>>, place: &DirEntryKey) -> Option<Ino> {
        let (dir, name) = place;
        let on_slow = || self.st.view.get(*dir)?.dir.as_ref()?.slots.get(name)?.slow();
        world.get(place).copied().unwrap_or_else(on_slow)
    }
}

/// Applies a change to the names it touches.
fn put<'a>(world: &mut HashMap<&'a DirEntryKey, Option<Ino>>, change: &'a Change) {
    match change {
        Change::Make { ino, at, .. } | Change::Content { ino, at, .. } | Change::Link { ino, at } => {
            world.insert(at, Some(*ino));
        }
        Change::Rename { ino, from, to, .. } => {
            world.insert(&**to, Some(*ino));
            world.insert(&**from, None);
        }
        Change::Exchange { a, a_at, b, b_at } => {
            world.insert(&**b_at, Some(*a));
            world.insert(&**a_at, Some(*b));
        }
        Change::Remove { at, .. } => {
            world.insert(at, None);
        }
        Change::SetAttr { .. } | Change::SetXattr { .. } => {}
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::path::Name;
    use crate::tiers::ROOT;
    use crate::tiers::disk::Kind;
    use crate::tiers::log::record::{Attrs, Home, ObjectId, Spec};
    use crate::tiers::model::node::NodeAttrs;
    use crate::tiers::model::view::View;
    use crate::tiers::model::view::tests::stat;
    use crate::tiers::objects::version::Content;

    /// A queue that is filled step by step, by a user, and numbers its events from 1 on.
    pub(crate) struct Queue(pub(crate) EngineState, pub(crate) u32);

    pub(crate) fn at(dir: Ino, name: &str) -> DirEntryKey {
        (dir, Name::new(name.as_bytes()).expect("a name"))
    }

    impl Queue {
        pub(crate) fn new() -> Self {
            Queue(EngineState::new(View::new(&stat(2, Kind::Dir), Duration::ZERO)), 0)
        }

        /// The number of the last event, pending or not.
        pub(crate) fn last(&self) -> Lsn {
            self.0.queue.events().back().map_or(self.0.queue.applied(), |event| event.lsn)
        }

        fn push(&mut self, change: Change) {
            let lsn = self.last() + 1;
            self.0.push(lsn, Duration::ZERO, self.1, change);
        }

        /// A node on the slow tier with nothing pending.
        fn there(&mut self, name: &str, number: u64, kind: Kind) -> Ino {
            let asked = self.0.view.asked(Duration::ZERO);
            let (dir, name) = at(ROOT, name);
            self.0.view.learn(dir, &name, Some(&stat(number, kind)), asked, 0).expect("it is there")
        }

        pub(crate) fn file(&mut self, dir: Ino, name: &str) -> Ino {
            let (ino, at) = (self.0.view.new_ino(), at(dir, name));
            self.0.view.add(ino, Kind::File, NodeAttrs::default());
            self.0.view.set_view(at.0, &at.1, Some(ino));
            self.content(ino, at);
            ino
        }

        pub(crate) fn content(&mut self, ino: Ino, at: DirEntryKey) {
            let object = ObjectId { home: Home::Fast, number: ino };
            let content = Arc::new(Content::new(object, 1, Attrs::default(), 0));
            self.push(Change::Content { ino, at, content });
        }

        fn dir(&mut self, dir: Ino, name: &str) -> Ino {
            self.dir_of_mode(dir, name, 0)
        }

        pub(crate) fn dir_of_mode(&mut self, dir: Ino, name: &str, perm: u32) -> Ino {
            let (ino, at) = (self.0.view.new_ino(), at(dir, name));
            let attrs = Attrs { perm, ..Attrs::default() };
            let spec = Spec { kind: Kind::Dir, attrs, rdev: 0, target: Vec::new() };
            self.0.view.add(ino, Kind::Dir, NodeAttrs::default());
            self.0.view.set_view(at.0, &at.1, Some(ino));
            self.push(Change::Make { ino, at, spec: Arc::new(spec) });
            ino
        }

        pub(crate) fn rename(&mut self, ino: Ino, from: DirEntryKey, to: DirEntryKey) {
            let replaced = self.0.view.live_dir(to.0).and_then(|dir| dir.slots.get(&to.1)?.view());
            self.0.view.set_view(to.0, &to.1, Some(ino));
            self.0.view.set_view(from.0, &from.1, None);
            self.push(Change::Rename { ino, from: from.into(), to: to.into(), replaced });
        }

        pub(crate) fn remove(&mut self, ino: Ino, at: DirEntryKey) {
            self.0.view.set_view(at.0, &at.1, None);
            self.push(Change::Remove { ino, at });
        }

        fn closure(&self, ino: Ino) -> Closure {
            closure(&self.0, HashSet::from([ino]))
        }
    }

    #[test]
    fn a_temporary_name_that_all_use_drags_none_in() {
        let mut queue = Queue::new();
        let files: Vec<Ino> = (1..=3)
            .map(|i| {
                let ino = queue.file(ROOT, "tmp");
                queue.rename(ino, at(ROOT, "tmp"), at(ROOT, &format!("ckpt-{i}")));
                ino
            })
            .collect();
        let found = queue.closure(files[1]);
        assert_eq!((&found.events[..], &found.inodes), (&[3, 4][..], &HashSet::from([files[1]])));
        assert_eq!(found.places, HashMap::from([(at(ROOT, "ckpt-2"), None)]));
    }

    #[test]
    fn whoever_meets_another_node_under_a_name_goes_too_and_those_behind_it() {
        let mut queue = Queue::new();
        let old = queue.there("name", 20, Kind::File);
        queue.remove(old, at(ROOT, "name")); // 1
        let other = queue.file(ROOT, "other"); // 2
        let new = queue.file(ROOT, "name"); // 3
        queue.rename(new, at(ROOT, "name"), at(ROOT, "moved")); // 4
        let last = queue.file(ROOT, "name"); // 5
        let found = queue.closure(old);
        assert_eq!(found.events, [1, 3, 4, 5]);
        assert!(!found.inodes.contains(&other) && found.inodes.contains(&last));
        let places = [(at(ROOT, "name"), Some(old)), (at(ROOT, "moved"), None)];
        assert_eq!(found.places, HashMap::from(places));
        // It found the name free: it depends on no other node, and none depends on it.
        assert_eq!(queue.closure(last).events, [5]);
    }

    #[test]
    fn a_name_that_is_replaced_again_and_again_goes_as_a_whole() {
        let mut queue = Queue::new();
        for _ in 0..3 {
            let ino = queue.file(ROOT, "tmp");
            queue.rename(ino, at(ROOT, "tmp"), at(ROOT, "latest"));
        }
        let other = queue.file(ROOT, "other");
        let latest = pending_at(&queue.0, &at(ROOT, "latest")).next().expect("it is pending");
        let found = queue.closure(latest);
        assert_eq!(found.events, [1, 2, 3, 4, 5, 6]);
        assert!(!found.inodes.contains(&other));
    }

    #[test]
    fn a_directory_goes_with_all_beneath_it_and_with_what_came_from_there() {
        let mut queue = Queue::new();
        let dir = queue.dir(ROOT, "dir"); // 1
        let below = queue.dir(dir, "below"); // 2
        let file = queue.file(below, "file"); // 3
        let beside = queue.file(ROOT, "beside"); // 4
        queue.push(Change::SetAttr { ino: file, of: Box::default(), new: Box::default() }); // 5
        queue.push(Change::SetAttr { ino: beside, of: Box::default(), new: Box::default() }); // 6
        let gone = queue.file(below, "gone"); // 7
        queue.rename(gone, at(below, "gone"), at(ROOT, "elsewhere")); // 8
        let found = queue.closure(dir);
        assert_eq!(found.events, [1, 2, 3, 5, 7, 8]);
        assert_eq!(queue.closure(below).events, [2, 3, 5, 7, 8], "not the one above");
    }

    /// The file is no event yet, and would be in the way of a node that comes back.
    #[test]
    fn a_file_that_is_being_written_under_such_a_name_is_to_be_committed_first() {
        let mut queue = Queue::new();
        let old = queue.there("name", 20, Kind::File);
        queue.remove(old, at(ROOT, "name"));
        let new = queue.0.view.new_ino();
        queue.0.view.add(new, Kind::File, NodeAttrs::default());
        let (dir, name) = at(ROOT, "name");
        queue.0.view.set_view(dir, &name, Some(new));
        queue.0.uncommitted.bind(new, 2, ObjectId { home: Home::Fast, number: 1 }, Duration::ZERO);
        assert_eq!(queue.closure(old).uncommitted, [new]);
        let elsewhere = queue.file(ROOT, "elsewhere");
        assert!(queue.closure(elsewhere).uncommitted.is_empty());
    }
}
