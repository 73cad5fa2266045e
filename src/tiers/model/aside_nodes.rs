//! The nodes that an operator has set aside.

use std::collections::BTreeMap;

use foldhash::HashMap;

use crate::tiers::log::record::{Kept, ObjectId};
use crate::tiers::{Ino, Lsn};

/// A node that an operator has set aside. It has its own reference to its object, whatever object the file goes on in.
#[derive(Clone, Debug)]
pub(crate) struct Aside {
    pub(crate) kept: Kept,
    /// Seconds since 1970.
    pub(crate) since: u64,
    /// The record that a start uses; and its repetition, for when `applied` has passed the first.
    pub(crate) lsn: Lsn,
    pub(crate) again: Option<Lsn>,
}

#[derive(Debug, Default)]
pub(crate) struct AsideNodes {
    /// Nodes that were set aside and are no event again.
    nodes: HashMap<Ino, Aside>,
    /// Nodes that were set aside and are events again, by that event: until it is applied, a start may have to set
    /// them aside again.
    again_events: BTreeMap<Lsn, Aside>,
}

impl AsideNodes {
    pub(crate) fn get(&self, ino: Ino) -> Option<&Aside> {
        self.nodes.get(&ino)
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.nodes.contains_key(&ino)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (Ino, &Aside)> {
        self.nodes.iter().map(|(ino, aside)| (*ino, aside))
    }

    /// Sets a node aside, or replaces its aside, whose reference to its object the caller has taken over or removes.
    pub(crate) fn insert(&mut self, ino: Ino, aside: Aside) -> Option<ObjectId> {
        self.nodes.insert(ino, aside)?.kept.object()
    }

    /// Ends an aside: the node is gone. Returns the object that it referred to.
    pub(crate) fn remove(&mut self, ino: Ino) -> Option<ObjectId> {
        self.nodes.remove(&ino)?.kept.object()
    }

    /// The node is an event again, this one. `false`: it is not aside.
    pub(crate) fn take_up(&mut self, ino: Ino, lsn: Lsn) -> bool {
        let Some(aside) = self.nodes.remove(&ino) else { return false };
        self.again_events.insert(lsn, aside);
        true
    }

    /// Whether such an event is one of these.
    pub(crate) fn has_event(&self, which: impl Fn(Lsn) -> bool) -> bool {
        self.again_events.keys().any(|lsn| which(*lsn))
    }

    /// The event is applied or has left the order. Returns the object that the aside referred to.
    pub(crate) fn forget_event(&mut self, lsn: Lsn) -> Option<ObjectId> {
        self.again_events.remove(&lsn)?.kept.object()
    }

    /// The events up to here that are nodes that were aside.
    pub(crate) fn events_up_to(&self, upto: Lsn) -> Vec<Lsn> {
        self.again_events.range(..=upto).map(|(lsn, _)| *lsn).collect()
    }

    /// The record of a node is repeated here, for when `applied` has passed the first.
    pub(crate) fn repeated(&mut self, ino: Ino, lsn: Lsn) {
        if let Some(aside) = self.nodes.get_mut(&ino) {
            aside.again = Some(lsn);
        }
    }

    /// The first LSN that the log must keep for asides.
    pub(crate) fn first_needed(&mut self, applied: Lsn) -> Option<Lsn> {
        for aside in self.nodes.values_mut() {
            if let Some(again) = aside.again.filter(|again| *again <= applied) {
                (aside.lsn, aside.again) = (again, None);
            }
        }
        self.nodes.values().chain(self.again_events.values()).map(|aside| aside.lsn).min()
    }
}
