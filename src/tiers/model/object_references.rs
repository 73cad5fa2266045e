//! How many events and files refer to each object, and which objects wait for their deletion.

use std::collections::BTreeMap;

use foldhash::HashMap;

use crate::tiers::Lsn;
use crate::tiers::log::record::{Home, ObjectId};

/// How many events and files refer to each object. Objects of the pool, of which there may be a million, are stored by
/// number alone.
#[derive(Debug, Default)]
pub(crate) struct ObjectReferences {
    in_pool: HashMap<u64, u32>,
    others: HashMap<ObjectId, u32>,
    /// Objects without references, to be deleted once the log is durable up to the LSN that says so.
    to_delete: BTreeMap<ObjectId, Lsn>,
}

impl ObjectReferences {
    /// Adds a reference; returns how many there are now.
    fn count_up(&mut self, object: ObjectId) -> u32 {
        let count = match object.home {
            Home::Fast => self.in_pool.entry(object.number).or_default(),
            Home::Slow | Home::Split { .. } => self.others.entry(object).or_default(),
        };
        *count += 1;
        *count
    }

    /// Removes a reference; returns how many are left, if there was any.
    fn count_down(&mut self, object: ObjectId) -> Option<u32> {
        let count = match object.home {
            Home::Fast => self.in_pool.get_mut(&object.number)?,
            Home::Slow | Home::Split { .. } => self.others.get_mut(&object)?,
        };
        *count -= 1;
        let left = *count;
        if left == 0 {
            match object.home {
                Home::Fast => self.in_pool.remove(&object.number),
                Home::Slow | Home::Split { .. } => self.others.remove(&object),
            };
        }
        Some(left)
    }

    pub(crate) fn add(&mut self, object: ObjectId) {
        if self.count_up(object) == 1 {
            // A replay may return to an object that a later record seemed to have replaced.
            self.to_delete.remove(&object);
            object.head().into_iter().for_each(|head| self.add(head));
        }
    }

    /// Removes a reference; after the last one, the object is deleted once the log is durable up to `lsn`.
    pub(crate) fn remove(&mut self, object: ObjectId, lsn: Lsn) {
        if self.count_down(object) == Some(0) {
            self.delete_after(object, lsn);
            object.head().into_iter().for_each(|head| self.remove(head, lsn));
        }
    }

    /// Deletes an unreferenced object once the log is durable up to `lsn`.
    pub(crate) fn delete_after(&mut self, object: ObjectId, lsn: Lsn) {
        self.to_delete.insert(object, lsn);
    }

    /// The LSN up to which the log must be durable before everything without references can be deleted.
    pub(crate) fn deletable_at(&self) -> Option<Lsn> {
        self.to_delete.values().max().copied()
    }

    /// Forgets the deletion of objects that are gone.
    pub(crate) fn keep_deletable(&mut self, is_there: impl Fn(ObjectId) -> bool) {
        self.to_delete.retain(|object, _| is_there(*object));
    }

    /// Takes the objects that may be deleted once the log is durable up to `durable`.
    pub(crate) fn pop_deletable(&mut self, durable: Lsn) -> Vec<ObjectId> {
        self.to_delete.extract_if(.., |_, lsn| *lsn <= durable).map(|(object, _)| object).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.in_pool.len() + self.others.len()
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectId> {
        let in_pool = self.in_pool.keys().map(|number| ObjectId { home: Home::Fast, number: *number });
        in_pool.chain(self.others.keys().copied())
    }
}
