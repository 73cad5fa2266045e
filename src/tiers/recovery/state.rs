//! The state of a start while it reads the records after `applied`.

use std::collections::BTreeMap;
use std::time::Duration;

use foldhash::{HashMap, HashSet};

use crate::error::Error;
use crate::tiers::disk::FileId;
use crate::tiers::disk::layout::after_move;
use crate::tiers::log::dirs::LoggedPath;
use crate::tiers::log::record::{Attrs, ObjectId, Path, Record, Step};
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::sorted::SortedSet;
use crate::tiers::writeback::mend::base_of;
use crate::tiers::writeback::step::Met;
use crate::tiers::{Cx, Ino, Lsn, Tiers};

/// What a start has learned from the records, and about the nodes and objects that they mention.
pub(crate) struct Recovery<'a> {
    pub(crate) tiers: &'a Tiers,
    pub(crate) records: Vec<(Lsn, Record)>,
    /// The users of the events, except root.
    pub(crate) by: Vec<(Lsn, u32)>,
    pub(crate) boot: &'a str,
    /// The last daemon ran in another boot: anything it did not sync may be gone.
    pub(crate) rebooted: bool,
    pub(crate) cx: Cx,
    /// The LSN up to which everything is on the slow tier, once the intents are finished.
    pub(crate) applied: Lsn,
    pub(crate) sealed: SortedSet<Lsn>,
    /// Objects that the log mentions, the parts of one in two parts each by itself: their fate is known.
    pub(crate) explained: SortedSet<ObjectId>,
    pub(crate) discarded: HashSet<ObjectId>,
    /// Objects that have lost bytes, with a description.
    pub(crate) lost: HashMap<ObjectId, String>,
    /// Versions whose directory no longer exists, and their paths: they are quarantined.
    pub(crate) homeless: HashMap<ObjectId, String>,
    /// After a reboot: the newest sealed version of each object, to cut bytes that a power cut left after it and to
    /// restore the attributes it was sealed with. Always: the committed objects on the slow tier.
    pub(crate) sealed_as: HashMap<ObjectId, (u64, Attrs)>,
    /// The slow files that we have placed, by their inode numbers, and the intent that says so.
    pub(crate) placed: HashMap<u64, (FileId, Lsn)>,
    /// The slow files of placed nodes that are not versions of files, by the paths that the log gives.
    pub(super) placed_at: HashMap<LoggedPath, FileId>,
    /// The part of the group in progress that is done, if the group could not be finished. `refused`: the reason.
    pub(crate) half: Option<Half>,
    pub(crate) refused: Option<Error>,
    /// The present inode for each number of the log, as far as it has been met.
    pub(crate) met: HashMap<Ino, Ino>,
    /// Records that no longer count: their file was set aside.
    pub(super) skipped: HashSet<Lsn>,
    /// The inodes that were met.
    pub(super) taken: HashSet<Ino>,
    /// Numbers of discarded files without an older version: later records about them are skipped.
    pub(crate) never: HashSet<Ino>,
    /// Names that the log has freed and that still have a file which a discarded file had replaced: the freeing record,
    /// and the discarded file.
    pub(super) left: HashMap<DirEntryKey, (Lsn, Ino)>,
    /// Attribute changes after a file's newest content, for its object: memory and the log have them, the object may
    /// not.
    pub(crate) later_attrs: BTreeMap<Ino, Vec<(Lsn, Record)>>,
    /// The burst of each version, by the LSN of its event, as far as the previous mount has recorded it.
    pub(crate) bursts: HashMap<Lsn, u64>,
    /// The objects of the pool as this start has found them, by ascending number; `None` for one that could not be
    /// read.
    pub(crate) looked: Vec<(u64, Option<Looked>)>,
    /// The time of everything that is replayed.
    pub(crate) uptime: Duration,
    /// The directory of the previous record, by its path: usually the next one has the same. Valid until names may
    /// change.
    pub(crate) last_dir: Option<(Vec<u8>, Ino)>,
    /// The file of the previous content, whose state is dropped at the next one: its pending versions say everything,
    /// and the states of a million files must not be in memory at once.
    pub(super) last_file: Option<Ino>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    /// Bytes.
    pub(crate) size: u64,
    /// It has no other name.
    pub(crate) alone: bool,
    /// It has a fingerprint.
    pub(crate) clean: bool,
}

/// A file whose bytes are ahead of its events, with the LSN of the `bind` record.
pub(super) struct Bound {
    pub(super) lsn: Lsn,
    pub(super) paths: Vec<LoggedPath>,
    pub(super) ino: Ino,
    pub(super) object: ObjectId,
}

/// The logged steps of a half-done group, and the results of the first ones, which are done.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) upto: Lsn,
    pub(crate) steps: Vec<Step>,
    pub(crate) met: Vec<Met>,
    /// How many steps are done. Those behind `met` were found done, although one in front of them gave no result.
    pub(crate) done: usize,
}

impl Half {
    /// Whether the step has changed the slow tree as intended.
    pub(super) fn has_changed(&self, at: usize) -> bool {
        self.met.get(at).map_or(at < self.done, |met| *met == Met::Expected)
    }

    /// The names in `tmp` that the group needs.
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
            move |(index, step): (u64, &Step)| Record::Intent { upto: self.upto, index, count, step: step.logged() };
        (0..).zip(&self.steps).map(intent)
    }

    /// The path where a step places this file.
    pub(super) fn placed(&self, slow: FileId) -> Option<&Path> {
        self.steps.iter().find_map(|step| match step {
            Step::Place { id, path, .. } if *id == slow => Some(path),
            _ => None,
        })
    }
}

/// The path after a rename of `from` to `to`.
pub(crate) fn carried(path: &[u8], from: &[u8], to: &[u8], exchange: bool) -> Vec<u8> {
    let back = if exchange { after_move(path, to, from) } else { None };
    after_move(path, from, to).or(back).unwrap_or_else(|| path.to_vec())
}
