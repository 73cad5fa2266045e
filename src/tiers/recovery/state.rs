//! What a start knows while it reads the records behind `applied`.

use std::collections::BTreeMap;
use std::time::Duration;

use foldhash::{HashMap, HashSet};

use crate::error::Error;
use crate::tiers::log::record::{Attrs, ObjectId, Path, Record, Step};
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::sorted_set::SortedSet;
use crate::tiers::writeback::mend::base_of;
use crate::tiers::writeback::step::Met;
use crate::tiers::{Cx, Ino, Lsn, Tiers};

/// What a start knows of the records that it has read, and of what they speak of.
pub(crate) struct Recovery<'a> {
    pub(crate) tiers: &'a Tiers,
    pub(crate) records: Vec<(Lsn, Record)>,
    pub(crate) boot: &'a str,
    /// The last daemon ran in another boot: what it did not sync may be gone.
    pub(crate) rebooted: bool,
    pub(crate) cx: Cx,
    /// Up to where everything is on the slow tier, once the intents are finished.
    pub(crate) applied: Lsn,
    pub(crate) sealed: SortedSet<Lsn>,
    /// Objects the log speaks of, each by itself: what becomes of them is known.
    pub(crate) explained: SortedSet<ObjectId>,
    pub(crate) struck: HashSet<ObjectId>,
    /// Of those, the ones of which something was lost, and what.
    pub(crate) lost: HashMap<ObjectId, String>,
    /// Versions that were to be shown where by now no directory is, and where that was: they are put aside.
    pub(crate) homeless: HashMap<ObjectId, String>,
    /// After a reboot: the newest sealed version of each object, to cut what a power cut left behind it and to give it
    /// back the attributes it was sealed with. Always: the committed objects on the slow tier.
    pub(crate) sealed_as: HashMap<ObjectId, (u64, Attrs)>,
    /// What we have placed on the slow tier, by its number there, and the intent that says so.
    pub(crate) placed: HashMap<u64, Lsn>,
    /// What is done of the group that was under way, where it could not be finished, and why.
    pub(crate) half: Option<Half>,
    pub(crate) refused: Option<Error>,
    /// The inode each number of the log is now, as far as it has been met.
    pub(crate) met: HashMap<Ino, Ino>,
    /// Records that mean nothing any more: what they are about was set aside.
    pub(super) skipped: HashSet<Lsn>,
    /// What is aside and has another number than in the log.
    pub(crate) renumbered: Vec<Ino>,
    /// The inodes met.
    pub(super) taken: HashSet<Ino>,
    /// Numbers of files that were struck and have no older version: what follows about them is about nothing.
    pub(crate) never: HashSet<Ino>,
    /// Names that the log has freed and under which there is still what one of those had replaced: by which record, and which of them.
    pub(super) left: HashMap<DirEntryKey, (Lsn, Ino)>,
    /// Changes of attributes behind a file's newest content, for its object: in memory and in the log they are, on the
    /// object perhaps not.
    pub(crate) later_attrs: BTreeMap<Ino, Vec<(Lsn, Record)>>,
    /// Which versions were written together, by their events, as far as the mount before this one has written it down.
    pub(crate) bursts: HashMap<Lsn, u64>,
    /// The objects of the pool as this start has found them, by ascending number; nothing is known of one that could not be read.
    pub(crate) looked: Vec<(u64, Option<Looked>)>,
    /// For all that is replayed it happens at this one moment.
    pub(crate) uptime: Duration,
    /// The directory of the record before, by its path: as a rule the next one is about the same. Until names may change.
    pub(crate) last_dir: Option<(Vec<u8>, Ino)>,
    /// The file of the content before, which is let go of at the next one: its pending versions say all, and the states of a million
    /// are not to be in memory at once.
    pub(super) last_file: Option<Ino>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    /// Bytes.
    pub(crate) size: u64,
    /// It has no other name.
    pub(crate) alone: bool,
    /// It says that it is.
    pub(crate) proven: bool,
}

/// The steps, as they were logged, and what the first ones have met, which are done.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) upto: Lsn,
    pub(crate) steps: Vec<Step>,
    pub(crate) met: Vec<Met>,
}

impl Half {
    /// Names in `tmp` that it needs.
    pub(crate) fn in_tmp(&self) -> impl Iterator<Item = &[u8]> {
        let places = self.steps.iter().filter_map(|step| match step {
            Step::Place { tmp, .. } => Some(&tmp[..]),
            _ => None,
        });
        places.flat_map(|tmp| [tmp, base_of(tmp)])
    }

    pub(crate) fn intents(&self) -> impl Iterator<Item = Record> {
        let count = self.steps.len() as u64;
        let intent =
            move |(index, step): (u64, &Step)| Record::Intent { upto: self.upto, index, count, step: step.clone() };
        (0..).zip(&self.steps).map(intent)
    }

    /// Where a step of it puts this inode.
    pub(super) fn placed(&self, slow: u64) -> Option<&Path> {
        self.steps.iter().find_map(|step| match step {
            Step::Place { ino, path, .. } if *ino == slow => Some(path),
            _ => None,
        })
    }
}

/// Where a path is after a rename of `from` to `to`.
pub(crate) fn carried(path: &[u8], from: &[u8], to: &[u8], exchange: bool) -> Vec<u8> {
    let moved = |from: &[u8], to: &[u8]| {
        let rest = path.strip_prefix(from)?;
        (rest.is_empty() || rest[0] == b'/').then(|| [to, rest].concat())
    };
    let back = if exchange { moved(to, from) } else { None };
    moved(from, to).or(back).unwrap_or_else(|| path.to_vec())
}
