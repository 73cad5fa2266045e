//! The files with bytes that are not in an event, and the `bind` records that name their objects.

use std::collections::BTreeMap;
use std::time::Duration;

use foldhash::HashMap;

use crate::tiers::log::record::ObjectId;
use crate::tiers::{Ino, Lsn};

#[derive(Debug, Default)]
pub(crate) struct UncommittedFiles {
    /// Since when a file has such bytes.
    since: HashMap<Ino, Duration>,
    /// The newest `bind` record of each; logged again before `applied` passes it.
    binds: BTreeMap<Lsn, (Ino, ObjectId)>,
    bound_at: HashMap<Ino, Lsn>,
    /// The stamp of the first such byte, if the mount is a member of a fleet and has seen it.
    starts: HashMap<Ino, u64>,
    /// The user that wrote the first such byte, if it was not root.
    writers: HashMap<Ino, u32>,
}

impl UncommittedFiles {
    /// Notes that the file's bytes are ahead of its events, since now at the latest; the record at `lsn` says so.
    pub(crate) fn bind(&mut self, ino: Ino, lsn: Lsn, object: ObjectId, now: Duration) {
        self.unbind(ino);
        self.binds.insert(lsn, (ino, object));
        self.bound_at.insert(ino, lsn);
        self.since.entry(ino).or_insert(now);
    }

    fn unbind(&mut self, ino: Ino) {
        if let Some(lsn) = self.bound_at.remove(&ino) {
            self.binds.remove(&lsn);
        }
    }

    /// Forgets a file whose bytes have all become events, or that is gone.
    pub(crate) fn remove(&mut self, ino: Ino) {
        self.unbind(ino);
        self.since.remove(&ino);
        self.starts.remove(&ino);
        self.writers.remove(&ino);
    }

    /// Notes the user and the stamp of the file's next version, unless it had begun before.
    pub(crate) fn start(&mut self, ino: Ino, by: u32, stamp: Option<u64>) {
        if let Some(stamp) = stamp {
            self.starts.entry(ino).or_insert(stamp);
        }
        if by != 0 {
            self.writers.entry(ino).or_insert(by);
        }
    }

    /// When the file's next version began.
    pub(crate) fn started(&self, ino: Ino) -> Option<u64> {
        self.starts.get(&ino).copied()
    }

    /// The user that began the file's next version; root if unknown.
    pub(crate) fn writer(&self, ino: Ino) -> u32 {
        self.writers.get(&ino).copied().unwrap_or(0)
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.since.contains_key(&ino)
    }

    pub(crate) fn since(&self, ino: Ino) -> Option<Duration> {
        self.since.get(&ino).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.since.len()
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = Ino> {
        self.since.keys().copied()
    }

    /// Each file, and since when.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ino, Duration)> {
        self.since.iter().map(|(ino, since)| (*ino, *since))
    }

    /// The `bind` records.
    pub(crate) fn bind_records(&self) -> impl Iterator<Item = Lsn> {
        self.binds.keys().copied()
    }

    /// Notes that the `bind` record `old` was logged again as `new`.
    pub(super) fn renumber(&mut self, old: Lsn, new: Lsn) {
        if let Some(bound) = self.binds.remove(&old) {
            self.bound_at.insert(bound.0, new);
            self.binds.insert(new, bound);
        }
    }

    /// The files with a `bind` record, and their objects, in the order of the records.
    pub(crate) fn bound(&self) -> impl Iterator<Item = (Ino, ObjectId)> {
        self.binds.values().copied()
    }

    /// The files with a `bind` record up to `upto`, and their objects.
    pub(crate) fn bound_up_to(&self, upto: Lsn) -> impl Iterator<Item = (Ino, ObjectId)> {
        self.binds.range(..=upto).map(|(_, bound)| *bound)
    }

    /// Panics unless each file has one `bind` record; for tests.
    pub(crate) fn check(&self) {
        assert!(self.binds.iter().all(|(lsn, (ino, _))| self.bound_at.get(ino) == Some(lsn)));
        assert_eq!(self.binds.len(), self.bound_at.len(), "one bind record a file");
    }
}
