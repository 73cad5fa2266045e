//! The clean files that have an object, in the order in which they were drained.

use std::collections::BTreeMap;

use foldhash::HashMap;

use crate::tiers::Ino;

/// A clean file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clean {
    pub(crate) ino: Ino,
    pub(crate) bytes: u64,
    /// The number of its burst; 0: unknown.
    pub(crate) burst: u64,
}

#[derive(Debug, Default)]
pub(crate) struct CleanList {
    /// Oldest drained first.
    by_age: BTreeMap<u64, Clean>,
    ages: HashMap<Ino, u64>,
    next: u64,
}

impl CleanList {
    /// Adds the file as the one drained last; a second call moves it behind all others.
    pub(crate) fn add(&mut self, clean: Clean) {
        let ino = clean.ino;
        self.remove(ino);
        self.by_age.insert(self.next, clean);
        self.ages.insert(ino, self.next);
        self.next += 1;
    }

    pub(crate) fn remove(&mut self, ino: Ino) {
        if let Some(age) = self.ages.remove(&ino) {
            self.by_age.remove(&age);
        }
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.ages.contains_key(&ino)
    }

    pub(crate) fn len(&self) -> usize {
        self.ages.len()
    }

    /// Oldest first, each with a number that rises with its place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Clean)> {
        self.by_age.iter().map(|(age, clean)| (*age, clean))
    }
}
