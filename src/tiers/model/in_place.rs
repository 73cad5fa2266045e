//! The files that are written in place on the slow tier.

use foldhash::{HashMap, HashSet};

use crate::tiers::disk::{NewAttr, Time};
use crate::tiers::{Ino, Lsn};

#[derive(Debug, Default)]
pub(crate) struct InPlaceFiles {
    /// Written and not synced since.
    unsynced: HashSet<Ino>,
    /// An earlier daemon may have left more such files, which are unknown.
    unknown_left: bool,
    /// Files written while changes of their times were pending: the record that says so, and the time of the last
    /// write. The changes before that record set this time.
    overtaken: HashMap<Ino, (Lsn, Time)>,
}

impl InPlaceFiles {
    /// `false`: it was written before, and not synced since.
    pub(super) fn written(&mut self, ino: Ino) -> bool {
        self.unsynced.insert(ino)
    }

    /// `false`: there was nothing to sync.
    pub(super) fn synced(&mut self, ino: Ino) -> bool {
        self.unsynced.remove(&ino)
    }

    pub(crate) fn unsynced(&self) -> impl Iterator<Item = Ino> {
        self.unsynced.iter().copied()
    }

    pub(crate) fn set_unknown_left(&mut self, left: bool) {
        self.unknown_left = left;
    }

    pub(crate) fn has_unknown_left(&self) -> bool {
        self.unknown_left
    }

    pub(super) fn overtake(&mut self, ino: Ino, lsn: Lsn, mtime: Time) {
        self.overtaken.insert(ino, (lsn, mtime));
    }

    /// Called when a change of the file's times is logged, which is newer than any write in place so far.
    pub(crate) fn forget_overtaken(&mut self, ino: Ino) {
        self.overtaken.remove(&ino);
    }

    /// Gives records their new numbers.
    pub(super) fn renumber(&mut self, now: impl Fn(Lsn) -> Option<Lsn>) {
        self.overtaken.values_mut().for_each(|(lsn, _)| *lsn = now(*lsn).unwrap_or(*lsn));
    }

    pub(super) fn set_applied(&mut self, upto: Lsn) {
        self.overtaken.retain(|_, (lsn, _)| *lsn > upto);
    }

    /// The attributes that a pending change sets now that a write in place may have overtaken it.
    pub(crate) fn as_overtaken(&self, ino: Ino, new: NewAttr) -> NewAttr {
        let written = self.overtaken.get(&ino).filter(|_| new.mtime.is_some());
        NewAttr { mtime: written.map(|(_, mtime)| *mtime).or(new.mtime), ..new }
    }
}
