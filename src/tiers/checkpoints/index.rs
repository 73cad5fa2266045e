//! The known checkpoints, and the state of their files. Pure; events and times are passed in.
//!
//! A checkpoint is a burst of versions (`checkpoints/bursts.rs`) of [`SMALLEST`] or more. Its files are identified by
//! their paths, which follow renames, so that no inode has to stay in memory. A checkpoint loses a file when the file
//! is removed, or when a newer burst has rewritten or replaced it. Losing a small file does not count: pointers
//! (`latest`) and logs are replaced each time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::path::{escape, unescape};
use crate::tiers::Lsn;
use crate::tiers::checkpoints::bursts::SMALLEST;
use crate::tiers::checkpoints::step::step_in;
use crate::tiers::disk::layout::after_move;
use crate::tiers::disk::layout::{is_at_or_below, split};
use crate::tiers::log::record::Path;

/// How many checkpoints the index keeps, and how many files in all; the oldest go first. Further files of a checkpoint
/// are only counted.
const KEPT: usize = 200;
const FILES_KEPT: usize = 20_000;
/// A file with a longer path is only counted, too: a user can nest directories without limit.
pub(crate) const PATH_KEPT: usize = 1024;
/// How many are saved for the next mount, besides the newest safe one.
const SAVED: usize = 20;
/// A checkpoint may lose a file that is smaller than this and than a hundredth of the checkpoint.
const HEAVY: u64 = 64 << 10;
/// Names that a framework writes once the other files are there.
pub(crate) const MARKERS: [&str; 8] = [
    "checkpoint",
    "latest",
    ".metadata",
    ".snapshot_metadata",
    "commit_success.txt",
    "latest_checkpointed_iteration.txt",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
];
/// Markers that a framework writes when all ranks have finished. (An index of weights may be written before the state
/// of the optimizer.)
pub(crate) const FLEET_MARKERS: [&str; 6] = [
    "checkpoint",
    "latest",
    ".metadata",
    ".snapshot_metadata",
    "commit_success.txt",
    "latest_checkpointed_iteration.txt",
];
/// Markers that may name another checkpoint than the one that they lie in or beside: their text says which.
pub(crate) const POINTERS: [&str; 3] = ["checkpoint", "latest", "latest_checkpointed_iteration.txt"];
/// How long after the first look another member's marker is looked for.
const PATIENCE: Duration = Duration::from_secs(600);
/// After a marker and this long without another file, a checkpoint is complete before its burst is over.
const QUIET: Duration = Duration::from_secs(1);

/// Larger values in a saved index are damage, because no mount saves them. Up to them, sums and dates do not overflow.
const NUMBER_MAX: u64 = 1 << 62;
const BYTES_MAX: u64 = 1 << 55;
const MOMENT_MAX: Duration = Duration::from_secs(1 << 37);

/// The checkpoints of a mount.
#[derive(Debug, Default)]
pub(crate) struct CheckpointIndex {
    /// The newest version of each file of a checkpoint.
    files: BTreeMap<Path, CheckpointFile>,
    bursts: BTreeMap<u64, BurstFiles>,
    /// Files of an earlier mount that have not been checked for changes yet.
    unchecked: Vec<(Path, Lsn)>,
    /// Something has changed since [`CheckpointIndex::pop_changed`].
    changed: bool,
    /// The last number of the previous mount, and how many checkpoints of this mount were dropped to make room.
    resumed: u64,
    forgotten: u64,
}

#[derive(Clone, Debug)]
struct CheckpointFile {
    burst: u64,
    /// The event with its bytes.
    lsn: Lsn,
    bytes: u64,
    verified: bool,
    /// The event's `end` by the fleet's stamps; 0 outside of a fleet.
    end: u64,
}

/// Times count from the beginning of 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct BurstFiles {
    began: Duration,
    last: Duration,
    files: u64,
    bytes: u64,
    /// The newest event of its files, and the events whose bytes are not durable on fast.
    upto: Lsn,
    #[serde(skip)]
    unsealed: HashSet<Lsn>,
    durable: Option<Duration>,
    published: Option<Duration>,
    /// A framework has marked it complete.
    marked: bool,
    /// How many of its named files still exist; whether it has lost a file that counts.
    left: u64,
    lost: bool,
    /// Part of it was set aside.
    #[serde(default)]
    incomplete: bool,
    /// Its place when the first file that counts was lost, escaped, and its step.
    place: Option<(String, Option<u64>)>,
    /// In a fleet: the fleet's name; the latest `end` of its events; the directory that received its name when it was
    /// whole, escaped, with the latest `end` by then; and what is known of the other members' parts.
    #[serde(default)]
    fleet: String,
    #[serde(default)]
    end: u64,
    #[serde(default)]
    placed: Option<(String, u64)>,
    #[serde(default)]
    parts: PartsKnown,
}

/// What a member of a fleet knows of the parts of a checkpoint that the others write (`checkpoints/of_fleet.rs`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct PartsKnown {
    /// When a marker was first looked for.
    #[serde(skip)]
    looked: Option<Duration>,
    /// All members had written their parts by this time, on the clock that verdicts use.
    #[serde(skip)]
    finished: Option<Duration>,
    /// All of it has been on the slow tier since this time or earlier.
    elsewhere: Option<Duration>,
    /// When the leases were last read for it.
    #[serde(skip)]
    asked: Option<Duration>,
    /// Its place, escaped, once there was a marker.
    #[serde(default)]
    place: String,
    /// Another member has written a file there since: it is a mixture of two saves.
    #[serde(default)]
    mixed: bool,
}

impl PartsKnown {
    /// Its marker is no longer looked for, or it can never be proved.
    fn is_given_up(&self, uptime: Duration) -> bool {
        let is_late = self.looked.is_some_and(|since| uptime.saturating_sub(since) > PATIENCE);
        self.mixed || self.elsewhere.is_some() || (is_late && self.finished.is_none())
    }
}

/// A checkpoint whose parts of other members may be missing on the slow tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnprovedCheckpoint {
    pub(crate) number: u64,
    /// Its newest event: with a newer one it is another checkpoint.
    pub(crate) upto: Lsn,
    pub(crate) path: Path,
    pub(crate) step: Option<u64>,
    pub(crate) began: Duration,
    /// The latest `end` of its events here.
    pub(crate) end: u64,
    /// It is one file, or this member has named its directory: no member has a part later than those known here.
    pub(crate) is_ours: bool,
    /// Files that this member made later and that may be its marker.
    pub(crate) markers: Vec<Path>,
    pub(crate) published: Duration,
    pub(crate) looked: Option<Duration>,
    pub(crate) finished: Option<Duration>,
    pub(crate) asked: Option<Duration>,
}

/// One version of a file, when it gets its place in the order.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) burst: u64,
    pub(crate) path: Path,
    pub(crate) lsn: Lsn,
    pub(crate) bytes: u64,
    /// When the file was opened, or first written to if that was much later; and when it got its place.
    pub(crate) began: Duration,
    pub(crate) at: Duration,
    /// The event's `end` by the fleet's stamps; 0 outside of a fleet.
    pub(crate) end: u64,
}

/// The state saved for the next mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedIndex(Vec<SavedBurst>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedBurst {
    number: u64,
    burst: BurstFiles,
    files: Vec<SavedFile>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedFile {
    /// Escaped.
    path: String,
    lsn: Lsn,
    bytes: u64,
    verified: bool,
    #[serde(default)]
    end: u64,
}

/// The numbers of the open bursts, and whether a large file that belongs to one is still being written.
pub(crate) type GoingOn = BTreeMap<u64, bool>;

/// The circumstances of a query.
#[derive(Debug, Default)]
pub(crate) struct Moment {
    pub(crate) now: Duration,
    /// Everything up to this event is on the slow tier.
    pub(crate) applied: Lsn,
    /// The open bursts, and whether a large file that belongs to one is still being written.
    pub(crate) going_on: GoingOn,
    /// The mount's fleet, whose members may have parts of a checkpoint; empty: none.
    pub(crate) fleet: String,
    /// Our uptime.
    pub(crate) uptime: Duration,
    /// Files with bytes that are not in an event yet.
    pub(crate) uncommitted: HashSet<Path>,
}

/// A checkpoint, as shown in reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointStatus {
    pub(crate) number: u64,
    pub(crate) step: Option<u64>,
    pub(crate) path: Path,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) began: Duration,
    pub(crate) last: Duration,
    pub(crate) durable: Option<Duration>,
    pub(crate) published: Option<Duration>,
    /// In a fleet: since when the parts of all members have been on the slow tier.
    pub(crate) elsewhere: Option<Duration>,
    /// It was written in a fleet, so other members may have parts of it.
    pub(crate) of_fleet: bool,
    pub(crate) complete: bool,
    /// None of its files is lost or being overwritten.
    pub(crate) whole: bool,
    /// An operator has set some of it aside: it will not reach the slow tier as a whole.
    pub(crate) incomplete: bool,
    /// All of it is on the slow tier, under its current names.
    pub(crate) safe: bool,
    /// Both copies of each file were compared.
    pub(crate) verified: bool,
    /// The newest checkpoint that is complete and whole.
    pub(crate) current: bool,
}

impl CheckpointIndex {
    /// A version got its place in the order. `going_on`: the open bursts.
    pub(crate) fn written(&mut self, version: Version, going_on: &[u64]) {
        assert!(!left_out!(IndexStands), "left out on purpose");
        let Version { burst: number, path, lsn, bytes, began, at, end } = version;
        self.make_room(number, going_on);
        let again = self.files.get(&path).is_some_and(|file| file.burst == number);
        let before = if again { self.files.remove(&path) } else { None };
        self.removed(&path);
        let listed = again || (self.files.len() < FILES_KEPT && path.len() <= PATH_KEPT);
        let burst = self.bursts.entry(number).or_insert_with(|| BurstFiles::new(began));
        burst.bytes = burst.bytes + bytes - before.map_or(0, |file| file.bytes);
        burst.files += u64::from(!again);
        burst.left += u64::from(listed && !again);
        burst.began = burst.began.min(began);
        burst.last = at;
        burst.marked |= is_marker(&path);
        burst.unsealed.insert(lsn);
        (burst.durable, burst.published) = (None, None);
        burst.upto = burst.upto.max(lsn);
        (burst.end, burst.parts) = (burst.end.max(end), PartsKnown::default());
        if listed {
            self.files.insert(path, CheckpointFile { burst: number, lsn, bytes, verified: false, end });
        }
        self.changed = true;
    }

    /// A program has waited until `now` for an fsync of a file of this burst.
    pub(crate) fn synced(&mut self, burst: u64, now: Duration) {
        if let Some(burst) = self.bursts.get_mut(&burst) {
            burst.last = burst.last.max(now);
        }
    }

    /// A node was renamed, with everything below it; the target's old node is gone. `going_on`: the open bursts.
    pub(crate) fn moved(&mut self, from: &[u8], to: &[u8], lsn: Lsn, going_on: &[u64]) {
        self.removed(to);
        self.carry(&[(from, to)], lsn, going_on);
    }

    /// Two nodes have exchanged names.
    pub(crate) fn exchanged(&mut self, a: &[u8], b: &[u8], lsn: Lsn, going_on: &[u64]) {
        self.carry(&[(a, b), (b, a)], lsn, going_on);
    }

    /// The bytes of these events are durable on fast.
    pub(crate) fn sealed(&mut self, events: impl Iterator<Item = Lsn>, now: Duration) {
        let events: HashSet<Lsn> = events.collect();
        for burst in self.bursts.values_mut() {
            burst.seal(now, |lsn| events.contains(&lsn));
        }
    }

    /// The slow tier has everything up to this LSN.
    pub(crate) fn published(&mut self, upto: Lsn, now: Duration) {
        for burst in self.bursts.values_mut() {
            burst.seal(now, |lsn| lsn <= upto);
            if burst.upto <= upto && burst.published.is_none() && !burst.incomplete {
                burst.published = Some(now);
                self.changed = true;
            }
        }
    }

    /// These events have left the order: checkpoints that need them will not be complete on the slow tier.
    pub(crate) fn set_aside(&mut self, of_it: impl Fn(Lsn) -> bool) {
        let mut of_files: HashSet<u64> =
            self.files.values().filter(|file| of_it(file.lsn)).map(|file| file.burst).collect();
        of_files.extend(self.bursts.iter().filter(|(_, burst)| of_it(burst.upto)).map(|(number, _)| *number));
        for (number, burst) in &mut self.bursts {
            if of_files.contains(number) && !burst.incomplete {
                burst.incomplete = true;
                self.changed = true;
            }
        }
    }

    /// Events were moved behind others; `now` returns their new numbers.
    pub(crate) fn renumber(&mut self, now: impl Fn(Lsn) -> Option<Lsn>) {
        for file in self.files.values_mut() {
            let Some(new) = now(file.lsn) else { continue };
            file.lsn = new;
            if let Some(burst) = self.bursts.get_mut(&file.burst) {
                burst.upto = burst.upto.max(new);
            }
        }
        for burst in self.bursts.values_mut() {
            burst.upto = now(burst.upto).unwrap_or(burst.upto);
            burst.unsealed = burst.unsealed.iter().map(|lsn| now(*lsn).unwrap_or(*lsn)).collect();
        }
    }

    /// Both copies of this file are the same.
    pub(crate) fn verified(&mut self, path: &[u8]) {
        if let Some(file) = self.files.get_mut(path) {
            file.verified = true;
        }
    }

    /// The slow copy of this event's version reads back as it was written.
    pub(crate) fn verified_version(&mut self, lsn: Lsn) {
        if let Some(file) = self.files.values_mut().find(|file| file.lsn == lsn) {
            file.verified = true;
        }
    }

    /// The complete checkpoints to save for the next mount: the newest ones, and the newest safe one.
    pub(crate) fn saved(&self, moment: &Moment) -> SavedIndex {
        let complete: Vec<CheckpointStatus> = self.statuses(moment).into_iter().filter(|one| one.complete).collect();
        let newest = complete.iter().skip(complete.len().saturating_sub(SAVED));
        let safe = complete.iter().rfind(|one| one.is_safe_for_all(moment));
        let mut saved: BTreeMap<u64, SavedBurst> = newest
            .chain(safe)
            .filter_map(|one| {
                let mut burst = self.bursts.get(&one.number)?.clone();
                if one.number > self.resumed {
                    moment.fleet.clone_into(&mut burst.fleet);
                }
                Some((one.number, SavedBurst { number: one.number, burst, files: Vec::new() }))
            })
            .collect();
        for (path, CheckpointFile { burst, lsn, bytes, verified, end }) in &self.files {
            if let Some(saved) = saved.get_mut(burst) {
                let (path, lsn, bytes, verified, end) = (escape(path), *lsn, *bytes, *verified, *end);
                saved.files.push(SavedFile { path, lsn, bytes, verified, end });
            }
        }
        SavedIndex(saved.into_values().collect())
    }

    /// Restores into an empty index. `only_durable`: ignores bursts that were not durable when they were saved. Ignores
    /// entries that no mount can have saved, too. Returns the number, the start and the bytes of each, the oldest
    /// first.
    pub(crate) fn restore(&mut self, saved: SavedIndex, only_durable: bool) -> Vec<(u64, Duration, u64)> {
        for SavedBurst { number, mut burst, files } in saved.0 {
            if number > NUMBER_MAX || !burst.is_possible() || (only_durable && burst.durable.is_none()) {
                continue;
            }
            burst.left = 0;
            if burst.durable.is_none() {
                burst.unsealed.extend(files.iter().map(|file| file.lsn));
            }
            for SavedFile { path, lsn, bytes, verified, end } in files {
                let Some(path) = unescape(&path) else { continue };
                self.unchecked.push((path.clone(), lsn));
                self.files.insert(path, CheckpointFile { burst: number, lsn, bytes, verified, end });
                burst.left += 1;
            }
            self.bursts.insert(number, burst);
        }
        self.resumed = self.bursts.keys().next_back().copied().unwrap_or(0);
        self.bursts.iter().map(|(number, burst)| (*number, burst.began, burst.bytes)).collect()
    }

    /// How many checkpoints of this mount are no longer listed.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Whether the index has no path to check.
    pub(crate) fn has_no_files(&self) -> bool {
        self.files.is_empty()
    }

    /// Called after a start with the version pending for this path: a checkpoint's file with another version is lost.
    pub(crate) fn expect_version(&mut self, path: &[u8], lsn: Lsn) {
        if self.files.get(path).is_some_and(|file| file.lsn != lsn) {
            self.removed(path);
        }
    }

    /// Some of the previous mount's files, with their expected bytes; `None`: the file has changed since.
    pub(crate) fn unchecked(&self, most: usize) -> Vec<(Path, Option<u64>)> {
        let some = self.unchecked.iter().rev().take(most);
        let same = |path, lsn| self.files.get(path).filter(|file: &&CheckpointFile| file.lsn == lsn);
        some.map(|(path, lsn)| (path.clone(), same(path, *lsn).map(|file| file.bytes))).collect()
    }

    /// This many of them have been checked.
    pub(crate) fn checked(&mut self, many: usize) {
        self.unchecked.truncate(self.unchecked.len().saturating_sub(many));
    }

    /// The next one could not be checked: it is put last.
    pub(crate) fn put_off(&mut self) {
        if !self.unchecked.is_empty() {
            self.unchecked.rotate_right(1);
        }
    }

    /// The number of the checkpoint whose file with this size is at this path.
    pub(crate) fn burst_at(&self, path: &[u8], bytes: u64) -> Option<u64> {
        self.files.get(path).filter(|file| file.bytes == bytes).map(|file| file.burst)
    }

    /// Whether this is a large file of a checkpoint.
    pub(crate) fn has_large(&self, path: &[u8]) -> bool {
        self.files.get(path).is_some_and(|file| file.bytes >= HEAVY)
    }

    /// The numbers of the checkpoints that these events' versions belong to.
    pub(crate) fn bursts_of_events(&self) -> HashMap<Lsn, u64> {
        self.files.values().map(|file| (file.lsn, file.burst)).collect()
    }

    /// Whether something has changed since the last call.
    pub(crate) fn pop_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// All checkpoints, the oldest first.
    pub(crate) fn statuses(&self, moment: &Moment) -> Vec<CheckpointStatus> {
        let mut files: BTreeMap<u64, Vec<(&Path, &CheckpointFile)>> = BTreeMap::new();
        for (path, file) in &self.files {
            files.entry(file.burst).or_default().push((path, file));
        }
        let large = self.bursts.iter().filter(|(_, burst)| burst.bytes >= SMALLEST);
        let mut statuses: Vec<CheckpointStatus> = large
            .map(|(number, burst)| burst.status(*number, files.get(number).map_or(&[][..], Vec::as_slice), moment))
            .collect();
        if let Some(current) = statuses.iter_mut().rev().find(|one| one.complete && one.whole) {
            current.current = true;
        }
        statuses
    }

    /// The path of the newest checkpoint that is complete, whole and safe; in a fleet, with the parts of all members.
    pub(crate) fn latest_safe(&self, moment: &Moment) -> Option<Path> {
        let statuses = self.statuses(moment);
        let newest = statuses.into_iter().rev().find(|one| one.is_safe_for_all(moment));
        newest.map(|one| one.path)
    }

    /// In a fleet: the newest checkpoints that are safe as far as this member knows, except for the other members'
    /// parts. None is older than one with all parts.
    ///
    /// For checkpoints written in another fleet, or in none, the members with parts are unknown.
    pub(crate) fn unproved(&self, moment: &Moment, most: usize) -> Vec<UnprovedCheckpoint> {
        let is_of_this_fleet =
            |number: u64, burst: &BurstFiles| burst.end > 0 && (number > self.resumed || burst.fleet == moment.fleet);
        let may_be = |(number, burst): (&u64, &BurstFiles)| {
            let is_ready = burst.bytes >= SMALLEST && burst.published.is_some() && is_of_this_fleet(*number, burst);
            is_ready && !burst.lost && !burst.incomplete && !burst.parts.is_given_up(moment.uptime)
        };
        // Usually there is none, and this is called often.
        if !self.bursts.iter().rev().take_while(|(_, burst)| burst.parts.elsewhere.is_none()).any(may_be) {
            return Vec::new();
        }
        let newest = self.statuses(moment).into_iter().rev();
        let newest = newest.take_while(|one| !one.is_safe_for_all(moment));
        let safe = newest.filter(|one| one.complete && one.whole && one.safe);
        let unproved = safe.filter_map(|one| {
            let burst = self.bursts.get(&one.number).filter(|burst| may_be((&one.number, burst)))?;
            let end = self.end_of(&one.path, one.number);
            Some(UnprovedCheckpoint {
                number: one.number,
                upto: burst.upto,
                step: one.step,
                began: one.began,
                end,
                is_ours: self.files.contains_key(&one.path) || Self::is_named_here(&one, burst, end),
                markers: self.markers_here(&one, end),
                published: burst.published?,
                looked: burst.parts.looked,
                finished: burst.parts.finished,
                asked: burst.parts.asked,
                path: one.path,
            })
        });
        unproved.take(most).collect()
    }

    /// The latest `end` of this burst's files at or below a path, without markers.
    fn end_of(&self, path: &[u8], number: u64) -> u64 {
        let paths = self.at_or_below(path).into_iter().filter(|path| !is_marker(path));
        let files = paths.filter_map(|path| self.files.get(&path)).filter(|file| file.burst == number);
        files.map(|file| file.end).max().unwrap_or_default()
    }

    /// The markers in the checkpoint's directory, or the one above, that this member has made after all else that it
    /// wrote there. The text of one above says which checkpoint it names.
    fn markers_here(&self, one: &CheckpointStatus, end: u64) -> Vec<Path> {
        let (above, _) = split(&one.path);
        let paths =
            FLEET_MARKERS.iter().flat_map(|marker| [&one.path[..], above].map(|dir| join(dir, marker.as_bytes())));
        paths.filter(|path| self.files.get(path).is_some_and(|made| made.end > end)).collect()
    }

    /// Whether this member has given the checkpoint's directory its name, after all that it wrote there.
    fn is_named_here(one: &CheckpointStatus, burst: &BurstFiles, end: u64) -> bool {
        burst
            .placed
            .as_ref()
            .is_some_and(|(dir, upto)| *upto >= end && unescape(dir).is_some_and(|dir| is_at_or_below(&one.path, &dir)))
    }

    /// The leases were read for this checkpoint.
    pub(crate) fn asked_leases(&mut self, of: &UnprovedCheckpoint, now: Duration) {
        if let Some(burst) = self.bursts.get_mut(&of.number) {
            burst.parts.asked = Some(now);
        }
    }

    /// Another member has published a node at this path, by an event with this `end`. If that is later than the
    /// checkpoint's marker, it belongs to a later save.
    pub(crate) fn placed_by_other(&mut self, path: &[u8], end: u64) {
        if is_marker(path) {
            return;
        }
        for burst in self.bursts.values_mut() {
            let finished = burst.parts.finished.or(burst.parts.elsewhere);
            let is_later = finished.is_some_and(|at| u128::from(end) > at.as_nanos());
            let is_there = || unescape(&burst.parts.place).is_some_and(|place| is_at_or_below(path, &place));
            if is_later && !burst.parts.place.is_empty() && is_there() {
                burst.parts.mixed = true;
                self.changed = true;
            }
        }
    }

    /// A marker of this checkpoint was looked for at `now`; by `finished` all had written their parts.
    pub(crate) fn note_parts_check(&mut self, of: &UnprovedCheckpoint, now: Duration, finished: Option<Duration>) {
        if let Some(burst) = self.bursts.get_mut(&of.number).filter(|burst| burst.upto == of.upto) {
            burst.parts.looked.get_or_insert(now);
            burst.parts.finished = finished;
            burst.parts.place = escape(&of.path);
        }
    }

    /// All parts of this checkpoint have been on the slow tier since `elsewhere` or earlier.
    pub(crate) fn has_all_parts(&mut self, of: &UnprovedCheckpoint, elsewhere: Duration) {
        if let Some(burst) = self.bursts.get_mut(&of.number).filter(|burst| burst.upto == of.upto) {
            burst.parts.elsewhere = Some(elsewhere);
            self.changed = true;
        }
    }

    /// How many files a checkpoint has.
    pub(crate) fn files_of(&self, number: u64) -> u64 {
        self.bursts.get(&number).map_or(0, |burst| burst.files)
    }

    fn carry(&mut self, moves: &[(&[u8], &[u8])], lsn: Lsn, going_on: &[u64]) {
        let mut carried = Vec::new();
        for (from, to) in moves {
            for path in self.at_or_below(from) {
                let Some(file) = self.files.remove(&path) else { continue };
                self.changed = true;
                if to.len() + path.len() - from.len() > PATH_KEPT {
                    let burst = self.bursts.get_mut(&file.burst);
                    burst.into_iter().for_each(|burst| burst.left = burst.left.saturating_sub(1));
                    continue;
                }
                if let Some(burst) = self.bursts.get_mut(&file.burst) {
                    burst.upto = lsn;
                    // An older checkpoint keeps its publishing time: publishing the rename does not change it.
                    if going_on.contains(&file.burst) {
                        (burst.published, burst.parts) = (None, PartsKnown::default());
                        if path != *from && is_temporary(from) {
                            burst.marked = true;
                            burst.placed = Some((escape(to), burst.end));
                        }
                    }
                }
                carried.extend(after_move(&path, from, to).map(|there| (there, file)));
            }
        }
        self.files.extend(carried);
    }

    fn at_or_below(&self, path: &[u8]) -> Vec<Path> {
        let inside = [path, b"/"].concat();
        let range = (Bound::Included(inside.as_slice()), Bound::Unbounded);
        let below =
            self.files.range::<[u8], _>(range).map(|(path, _)| path).take_while(|path| path.starts_with(&inside));
        below.chain(self.files.get_key_value(path).map(|(path, _)| path)).cloned().collect()
    }

    /// The file at this path, if any, is lost to its checkpoint: the name is gone, or leads to another file.
    pub(crate) fn removed(&mut self, path: &[u8]) {
        let Some(file) = self.files.get(path) else { return };
        self.changed = true;
        if let Some(burst) = self.bursts.get_mut(&file.burst) {
            burst.left = burst.left.saturating_sub(1);
            if file.bytes >= HEAVY || file.bytes.saturating_mul(100) >= burst.bytes {
                burst.lost = true;
                let of_it = self.files.iter().filter(|(_, other)| other.burst == file.burst);
                let files: Vec<(&[u8], u64)> = of_it.map(|(path, file)| (path.as_slice(), file.bytes)).collect();
                burst.place.get_or_insert_with(|| {
                    let (path, step) = place(&files);
                    (escape(&path), step)
                });
            }
        }
        self.files.remove(path);
    }

    /// Another member has removed or replaced the node at this path, by an event with this `end`. A file of ours that
    /// is later, or not published up to `applied` yet, stays.
    pub(crate) fn removed_by_other(&mut self, path: &[u8], end: u64, applied: Lsn) {
        let Some(file) = self.files.get(path).filter(|file| file.lsn <= applied) else { return };
        if file.end < end {
            self.removed(path);
        }
    }

    /// Called before a burst of this number gets a file: drops earlier bursts that are no checkpoints, and the oldest
    /// burst if there are too many.
    fn make_room(&mut self, number: u64, going_on: &[u64]) {
        let full = |index: &CheckpointIndex| index.bursts.len() >= KEPT || index.files.len() >= FILES_KEPT;
        let is_small = |at: &u64, burst: &BurstFiles| burst.bytes < SMALLEST && *at != number && !going_on.contains(at);
        let small = self.bursts.iter().filter(|(at, burst)| is_small(at, burst));
        let mut gone: HashSet<u64> = small.map(|(at, _)| *at).collect();
        if full(self) {
            let oldest = self.bursts.keys().next().copied().filter(|oldest| *oldest != number);
            self.forgotten += u64::from(oldest.is_some_and(|oldest| oldest > self.resumed && !gone.contains(&oldest)));
            gone.extend(oldest);
        }
        if !gone.is_empty() {
            self.bursts.retain(|at, _| !gone.contains(at));
            self.files.retain(|_, file| !gone.contains(&file.burst));
        }
    }
}

impl BurstFiles {
    fn new(began: Duration) -> Self {
        BurstFiles {
            began,
            last: began,
            files: 0,
            bytes: 0,
            upto: 0,
            unsealed: HashSet::new(),
            durable: None,
            published: None,
            marked: false,
            left: 0,
            lost: false,
            incomplete: false,
            place: None,
            fleet: String::new(),
            end: 0,
            placed: None,
            parts: PartsKnown::default(),
        }
    }

    /// Whether a mount can have saved this.
    fn is_possible(&self) -> bool {
        let later = [self.durable, self.published, self.parts.elsewhere];
        let mut moments = [self.began, self.last].into_iter().chain(later.into_iter().flatten());
        moments.all(|moment| moment <= MOMENT_MAX) && self.bytes <= BYTES_MAX && self.files <= NUMBER_MAX
    }

    fn seal(&mut self, now: Duration, durable: impl Fn(Lsn) -> bool) {
        self.unsealed.retain(|lsn| !durable(*lsn));
        if self.unsealed.is_empty() && self.durable.is_none() {
            self.durable = Some(now);
        }
    }

    fn status(&self, number: u64, files: &[(&Path, &CheckpointFile)], moment: &Moment) -> CheckpointStatus {
        let named: Vec<(&[u8], u64)> = files.iter().map(|(path, file)| (path.as_slice(), file.bytes)).collect();
        let before = || self.place.as_ref().and_then(|(path, step)| Some((unescape(path)?, *step)));
        let (path, step) = before().unwrap_or_else(|| place(&named));
        let writing = moment.going_on.get(&number);
        let said_so = self.marked && moment.now >= self.last.saturating_add(QUIET) && writing != Some(&true);
        let written_over = files.iter().any(|(path, _)| moment.uncommitted.contains(*path));
        CheckpointStatus {
            number,
            step,
            path,
            files: self.files,
            bytes: self.bytes,
            began: self.began,
            last: self.last,
            durable: self.durable,
            published: self.published,
            elsewhere: self.parts.elsewhere.filter(|_| !self.parts.mixed),
            of_fleet: self.end > 0,
            complete: writing.is_none() || said_so,
            whole: self.left > 0 && !self.lost && !self.incomplete && !written_over,
            incomplete: self.incomplete,
            safe: self.upto <= moment.applied && !self.incomplete,
            verified: !files.is_empty() && files.iter().all(|(_, file)| file.verified),
            current: false,
        }
    }
}

impl CheckpointStatus {
    /// Whether the slow tier has all of it, including the other members' parts.
    fn is_safe_for_all(&self, moment: &Moment) -> bool {
        let is_of_one = moment.fleet.is_empty() && !self.of_fleet;
        let has_all = is_of_one || self.elsewhere.is_some() || left_out!(PartsOfAll);
        self.complete && self.whole && self.safe && has_all
    }
}

/// A name in a directory, which may be the root.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Path {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

fn is_marker(path: &[u8]) -> bool {
    MARKERS.iter().any(|marker| marker.as_bytes() == name_of(path))
}

/// Whether a checkpoint has this name only while it is written.
pub(crate) fn is_temporary(path: &[u8]) -> bool {
    name_of(path).windows(3).any(|three| three.eq_ignore_ascii_case(b"tmp"))
}

/// The place of a checkpoint with these files, and its step: a directory that is named by the step; else the file, if
/// only one is large; else the directory that contains all large files, or the largest file if that is the root.
pub(crate) fn place(files: &[(&[u8], u64)]) -> (Path, Option<u64>) {
    let Some((largest, most)) = files.iter().min_by_key(|(path, bytes)| (std::cmp::Reverse(*bytes), *path)) else {
        return (Path::new(), None);
    };
    let found = step_in(largest);
    let step = found.map(|(_, step)| step);
    let names: Vec<&[u8]> = largest.split(|byte| *byte == b'/').collect();
    let first = |count: usize| names.iter().take(count).copied().collect::<Vec<_>>().join(&b'/');
    if let Some((at, _)) = found.filter(|(at, _)| at + 1 < names.len()) {
        return (first(at + 1), step);
    }
    let large = files.iter().filter(|(_, bytes)| *bytes >= HEAVY.min(*most));
    let mut common = names.len();
    for (path, _) in large {
        let same = path.split(|byte| *byte == b'/').zip(&names).take_while(|(a, b)| a == *b).count();
        common = common.min(same);
    }
    let path = if common == 0 { largest.to_vec() } else { first(common) };
    (path, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::checkpoints::bursts::BurstVersion;

    const S: Duration = Duration::from_secs(1);
    const MIB: u64 = 1 << 20;

    /// 20,000 files in a tree of 1,000 nested directories took gigabytes.
    #[test]
    fn a_path_without_end_is_not_kept() {
        let mut index = CheckpointIndex::default();
        let deep = "d".repeat(PATH_KEPT);
        write(&mut index, 1, "run/a", 1, MIB, 2);
        write(&mut index, 1, &format!("{deep}/b"), 2, MIB, 3);
        assert_eq!((index.files.len(), index.files_of(1)), (1, 2));
        index.moved(b"run", format!("{deep}/run").as_bytes(), 3, &[1]);
        assert_eq!((index.files.len(), index.bursts[&1].left), (0, 0));
    }

    fn write(index: &mut CheckpointIndex, burst: u64, path: &str, lsn: Lsn, bytes: u64, at: u32) {
        let (began, at) = (S * (at - 1), S * at);
        index.written(Version { burst, path: path.into(), lsn, bytes, began, at, end: 0 }, &[burst]);
    }

    fn write_in_fleet(index: &mut CheckpointIndex, burst: u64, path: &str, lsn: Lsn, bytes: u64, at: u32) {
        let (began, at) = (S * (at - 1), S * at);
        index.written(Version { burst, path: path.into(), lsn, bytes, began, at, end: lsn }, &[burst]);
    }

    fn at(now: u32, applied: Lsn, going_on: Option<u64>) -> Moment {
        let going_on = going_on.into_iter().map(|number| (number, false)).collect();
        Moment { now: S * now, applied, going_on, ..Moment::default() }
    }

    fn text(path: Option<Path>) -> Option<String> {
        path.map(|path| String::from_utf8(path).expect("text"))
    }

    #[test]
    fn the_place_is_the_step_s_directory_or_the_large_file_or_what_all_are_in() {
        let place = |files: &[(&str, u64)]| {
            let files: Vec<_> = files.iter().map(|(path, bytes)| (path.as_bytes(), *bytes)).collect();
            String::from_utf8(place(&files).0).expect("text")
        };
        assert_eq!(place(&[("run/ckpt-1.pt", MIB), ("run/log.csv", 90)]), "run/ckpt-1.pt");
        assert_eq!(place(&[("run/step_4/m.pt", MIB), ("run/step_4/r/o.pt", 2 * MIB), ("run/latest", 9)]), "run/step_4");
        assert_eq!(place(&[("run/last/m.pt", MIB), ("run/last/o.pt", MIB), ("run/x.txt", 9)]), "run/last");
        assert_eq!(place(&[("m.pt", MIB), ("o.pt", 2 * MIB)]), "o.pt", "not all of the mount");
        assert_eq!(place(&[]), "");
    }

    #[test]
    fn a_burst_becomes_complete_durable_safe_and_current() {
        let mut index = CheckpointIndex::default();
        write(&mut index, 1, "run/ckpt-1.tmp", 10, 2 * MIB, 5);
        index.moved(b"run/ckpt-1.tmp", b"run/ckpt-1", 11, &[1]);
        let one = |index: &CheckpointIndex, moment: &Moment| index.statuses(moment)[0].clone();
        let status = one(&index, &at(6, 0, Some(1)));
        assert_eq!(
            (status.path.as_slice(), status.step, status.files, status.bytes),
            (&b"run/ckpt-1"[..], Some(1), 1, 2 * MIB)
        );
        assert!(!status.complete && !status.safe && status.durable.is_none() && !status.current);
        assert!(one(&index, &at(9, 0, None)).current);
        index.sealed([10].into_iter(), S * 6);
        assert_eq!(one(&index, &at(9, 10, None)).durable, Some(S * 6));
        index.published(10, S * 7);
        let status = one(&index, &at(9, 10, None));
        assert!(!status.safe && status.published.is_none(), "it has not got its name yet");
        index.published(11, S * 8);
        let status = one(&index, &at(9, 11, None));
        assert!(status.safe && status.published == Some(S * 8) && !status.verified);
        assert_eq!(text(index.latest_safe(&at(9, 11, None))).as_deref(), Some("run/ckpt-1"));
        assert_eq!(index.latest_safe(&at(9, 11, Some(1))), None, "it may go on");
        index.verified_version(9);
        assert!(!one(&index, &at(9, 11, None)).verified);
        index.verified_version(10);
        assert!(one(&index, &at(9, 11, None)).verified);
        index.verified(b"run/ckpt-1");
        assert!(one(&index, &at(9, 11, None)).verified);
    }

    #[test]
    fn a_marker_says_that_it_is_complete_but_not_while_somebody_writes() {
        let mut index = CheckpointIndex::default();
        write(&mut index, 1, "run/1/__0_0.distcp", 10, 2 * MIB, 5);
        assert!(!index.statuses(&at(9, 0, Some(1)))[0].complete);
        write(&mut index, 1, "run/1/.metadata", 11, 100, 5);
        assert!(!index.statuses(&at(5, 0, Some(1)))[0].complete, "the next file may just be opened");
        assert!(index.statuses(&at(6, 0, Some(1)))[0].complete);
        assert!(!index.statuses(&Moment { going_on: GoingOn::from([(1, true)]), ..at(6, 0, Some(1)) })[0].complete);
        write(&mut index, 2, "v/7.orbax-checkpoint-tmp/d", 12, 2 * MIB, 20);
        index.moved(b"v/7.orbax-checkpoint-tmp", b"v/7", 13, &[2]);
        let statuses = index.statuses(&at(21, 0, Some(2)));
        assert!(statuses[1].complete && statuses[1].path == b"v/7", "{statuses:?}");
    }

    #[test]
    fn what_is_removed_or_replaced_is_not_offered_and_the_one_before_it_is() {
        let mut index = CheckpointIndex::default();
        write(&mut index, 1, "run/ckpt-1", 10, 2 * MIB, 5);
        write(&mut index, 1, "run/checkpoint", 11, 50, 5);
        write(&mut index, 2, "run/ckpt-2", 20, 2 * MIB, 15);
        write(&mut index, 2, "run/checkpoint", 21, 50, 15);
        let (all, first) = (at(30, 21, None), at(30, 11, None));
        assert_eq!(text(index.latest_safe(&all)).as_deref(), Some("run/ckpt-2"));
        assert_eq!(text(index.latest_safe(&first)).as_deref(), Some("run/ckpt-1"), "its pointer may be written anew");
        let over = Moment { uncommitted: HashSet::from([b"run/ckpt-2".to_vec()]), ..at(30, 21, None) };
        assert_eq!(text(index.latest_safe(&over)).as_deref(), Some("run/ckpt-1"), "somebody writes to it");
        index.moved(b"run", b"kept", 22, &[]);
        assert_eq!(index.statuses(&all).len(), 2);
        assert_eq!(index.latest_safe(&all), None, "the slow tier has the former name");
        let moved = at(30, 22, None);
        index.removed(b"kept/ckpt-2");
        assert_eq!(text(index.latest_safe(&moved)).as_deref(), Some("kept/ckpt-1"));
        write(&mut index, 3, "kept/ckpt-1", 30, 2 * MIB, 40);
        assert_eq!(index.latest_safe(&moved), None);
        let statuses = index.statuses(&moved);
        assert_eq!(
            statuses.iter().map(|one| (one.number, one.whole, one.step)).collect::<Vec<_>>(),
            [(1, false, Some(1)), (2, false, Some(2)), (3, true, Some(1))]
        );
        assert_eq!(statuses[1].path, b"kept/ckpt-2", "where it was");
    }

    #[test]
    fn in_a_fleet_only_one_with_the_parts_of_all_members_is_offered() {
        let mut index = CheckpointIndex::default();
        write_in_fleet(&mut index, 1, "run/step-1/a", 10, 2 * MIB, 5);
        write_in_fleet(&mut index, 2, "run/step-2/a", 20, 2 * MIB, 15);
        index.published(20, S * 16);
        let moment = Moment { fleet: "job".into(), ..at(60, 30, None) };
        let offered = |index: &CheckpointIndex| text(index.latest_safe(&moment));
        let unproved = index.unproved(&moment, 9);
        let numbers = |of: &[UnprovedCheckpoint]| of.iter().map(|one| (one.number, one.is_ours)).collect::<Vec<_>>();
        assert_eq!((offered(&index), numbers(&unproved)), (None, vec![(2, false), (1, false)]));
        index.has_all_parts(&unproved[1], S * 17);
        assert_eq!(offered(&index).as_deref(), Some("run/step-1"));
        // Notes about a checkpoint do not apply to its successor under the same name.
        write_in_fleet(&mut index, 2, "run/step-2/b", 21, MIB, 16);
        index.note_parts_check(&unproved[0], S, Some(S));
        index.has_all_parts(&unproved[0], S * 18);
        index.published(21, S * 19);
        let again = index.unproved(&moment, 9);
        assert_eq!((again[0].end, again[0].looked, again[0].finished), (21, None, None));
        assert_eq!(numbers(&again), [(2, false)], "an older one is of no use");
        index.has_all_parts(&again[0], S * 20);
        assert_eq!(offered(&index).as_deref(), Some("run/step-2"));
        assert!(index.unproved(&moment, 9).is_empty());
        // One file has one writer.
        write_in_fleet(&mut index, 3, "run/ckpt-3.pt", 22, 2 * MIB, 25);
        write_in_fleet(&mut index, 4, "run/step-4/a", 23, 2 * MIB, 35);
        write_in_fleet(&mut index, 4, "run/step-4/.metadata", 24, 9, 35);
        index.published(24, S * 36);
        assert_eq!(numbers(&index.unproved(&moment, 9)), [(4, false), (3, true)]);
        let next = serde_json::to_string(&index.saved(&moment)).expect("as JSON");
        let mut restored = CheckpointIndex::default();
        restored.restore(serde_json::from_str(&next).expect("an index"), false);
        assert_eq!(offered(&restored).as_deref(), Some("run/step-2"), "it is not found out again");
    }

    #[test]
    fn a_marker_of_this_member_counts_where_it_is_the_last_thing_that_it_wrote_there() {
        let in_fleet = |name: &str| Moment { fleet: name.into(), ..at(60, 90, None) };
        let markers = |files: &[&str]| {
            let mut index = CheckpointIndex::default();
            for (lsn, path) in (10..).zip(files) {
                let bytes = if is_marker(path.as_bytes()) { 9 } else { 2 * MIB };
                write_in_fleet(&mut index, 1, path, lsn, bytes, 5);
            }
            index.published(90, S * 16);
            index.unproved(&in_fleet("job"), 9).swap_remove(0).markers
        };
        let inside = [b"run/step-1/.metadata".to_vec()];
        assert_eq!(markers(&["run/step-1/a", "run/step-1/.metadata"]), inside);
        assert_eq!(markers(&["run/step-1/a", "run/latest"]), [b"run/latest".to_vec()]);
        let none: [Path; 0] = [];
        assert_eq!(markers(&["run/step-1/.metadata", "run/step-1/a"]), none, "the rest is still to come");
        assert_eq!(markers(&["run/step-1/a", "run/step-1/model.safetensors.index.json"]), none);
        assert_eq!(markers(&["run/step-1/a", "run/step-1/b", "logs/latest"]), none);
        assert_eq!(markers(&["run/step-1/a", "run/step-1/b", "run/step-1/inner/checkpoint"]), none);
    }

    #[test]
    fn a_directory_that_gets_its_name_when_it_is_whole_is_a_marker() {
        let moment = Moment { fleet: "job".into(), ..at(60, 90, None) };
        let is_ours = |from: &str, to: &str, later: bool| {
            let mut index = CheckpointIndex::default();
            write_in_fleet(&mut index, 1, &format!("{from}/a"), 10, 2 * MIB, 5);
            write_in_fleet(&mut index, 1, "run/step-1/b", 11, 2 * MIB, 5);
            index.moved(from.as_bytes(), to.as_bytes(), 12, &[1]);
            if later {
                write_in_fleet(&mut index, 1, "run/step-1/c", 13, 2 * MIB, 5);
            }
            index.published(90, S * 16);
            index.unproved(&moment, 9)[0].is_ours
        };
        assert!(is_ours("run/step-1.tmp", "run/step-1", false));
        assert!(!is_ours("run/step-1.tmp", "run/step-1", true));
        assert!(!is_ours("run/step-1/rank-3.tmp", "run/step-1/rank-3", false), "each rank does that");
    }

    #[test]
    fn a_checkpoint_is_proved_in_the_fleet_that_wrote_it_only() {
        let mut index = CheckpointIndex::default();
        write_in_fleet(&mut index, 1, "run/step-1/a", 10, 2 * MIB, 5);
        index.published(90, S * 16);
        let in_fleet = |name: &str| Moment { fleet: name.into(), ..at(60, 90, None) };
        let saved = serde_json::to_string(&index.saved(&in_fleet("job"))).expect("as JSON");
        for (fleet, unproved) in [("job", 1), ("another", 0), ("", 0)] {
            let mut index = CheckpointIndex::default();
            index.restore(serde_json::from_str(&saved).expect("an index"), false);
            assert_eq!(index.unproved(&in_fleet(fleet), 9).len(), unproved, "{fleet}");
            assert_eq!(index.latest_safe(&in_fleet(fleet)), None, "{fleet}");
            let again = serde_json::to_string(&index.saved(&in_fleet(fleet))).expect("as JSON");
            assert_eq!(again, saved, "{fleet}");
        }
        // A checkpoint of a mount in no fleet had no other parts, but a member cannot know that.
        let mut alone = CheckpointIndex::default();
        write(&mut alone, 1, "run/step-1/a", 10, 2 * MIB, 5);
        alone.published(90, S * 16);
        assert!(alone.latest_safe(&in_fleet("")).is_some() && alone.latest_safe(&in_fleet("job")).is_none());
        assert!(alone.unproved(&in_fleet("job"), 9).is_empty(), "any marker would be later than it");
    }

    #[test]
    fn what_others_save_there_later_makes_it_no_checkpoint() {
        let mut index = CheckpointIndex::default();
        write_in_fleet(&mut index, 1, "run/last/a", 10, 2 * MIB, 5);
        write_in_fleet(&mut index, 1, "run/last/c", 11, 2 * MIB, 5);
        index.published(90, S * 16);
        let moment = Moment { fleet: "job".into(), ..at(60, 90, None) };
        let unproved = index.unproved(&moment, 9);
        index.note_parts_check(&unproved[0], S, Some(S * 17));
        index.has_all_parts(&unproved[0], S * 17);
        let at_17 = (S * 17).as_nanos() as u64;
        index.placed_by_other(b"run/last/b", at_17 - 1);
        index.placed_by_other(b"run/next/b", at_17 + 1);
        index.placed_by_other(b"run/last/.metadata", at_17 + 1);
        assert!(index.latest_safe(&moment).is_some());
        index.placed_by_other(b"run/last/b", at_17 + 1);
        assert!(index.latest_safe(&moment).is_none() && index.unproved(&moment, 9).is_empty());
    }

    #[test]
    fn nobody_looks_for_ever() {
        let mut index = CheckpointIndex::default();
        write_in_fleet(&mut index, 1, "run/step-1/a", 10, 2 * MIB, 5);
        index.published(90, S * 16);
        let after = |uptime: Duration| Moment { fleet: "job".into(), uptime, ..at(60, 90, None) };
        let unproved = index.unproved(&after(S), 9);
        index.note_parts_check(&unproved[0], S, None);
        assert_eq!(index.unproved(&after(PATIENCE), 9).len(), 1);
        assert_eq!(index.unproved(&after(PATIENCE + S * 2), 9), []);
    }

    #[test]
    fn what_another_member_removes_later_is_lost_to_its_checkpoint() {
        let mut index = CheckpointIndex::default();
        write_in_fleet(&mut index, 1, "run/step-1/a", 10, 2 * MIB, 5);
        let is_whole = |index: &CheckpointIndex| index.statuses(&at(60, 30, None))[0].whole;
        index.removed_by_other(b"run/step-1/b", 11, 10);
        index.removed_by_other(b"run/step-1/a", 10, 10);
        index.removed_by_other(b"run/step-1/a", 11, 9);
        assert!(is_whole(&index), "another file; before ours; ours comes after it");
        index.removed_by_other(b"run/step-1/a", 11, 10);
        assert!(!is_whole(&index));
    }

    #[test]
    fn what_is_complete_is_known_to_the_next_mount_and_what_is_left_of_it() {
        let mut index = CheckpointIndex::default();
        for step in 1..=30 {
            write(&mut index, step, &format!("run/ckpt-{step}"), step * 10, 2 * MIB, step as u32 * 5);
        }
        write(&mut index, 30, "run/\n", 301, 2 * MIB, 150);
        write(&mut index, 31, "run/ckpt-31", 310, 2 * MIB, 155);
        index.sealed((0..300).step_by(10), S * 151);
        index.published(100, S * 151);
        let moment = at(160, 100, Some(31));
        let text = serde_json::to_string(&index.saved(&moment)).expect("as JSON");
        let restored = |only_durable| {
            let mut index = CheckpointIndex::default();
            let statuses = index.restore(serde_json::from_str(&text).expect("an index"), only_durable);
            (index, statuses)
        };
        let (mut next, statuses) = restored(false);
        let numbers: Vec<u64> = statuses.iter().map(|(number, ..)| *number).collect();
        assert_eq!(numbers, [10].into_iter().chain(11..=30).collect::<Vec<_>>(), "the safe one and the newest twenty");
        assert_eq!(statuses[0], (10, S * 49, 2 * MIB));
        assert_eq!(next.statuses(&moment), index.statuses(&moment)[9..30]);
        let (durable, _) = restored(true);
        assert_eq!(durable.statuses(&moment).len(), 20, "a power cut may have taken the newest one");
        let (mut later, _) = restored(false);
        later.published(290, S * 170);
        let known = |index: &CheckpointIndex| {
            let statuses = index.statuses(&moment).split_off(19);
            statuses.iter().map(|one| (one.number, one.durable.is_some(), one.published.is_some())).collect::<Vec<_>>()
        };
        assert_eq!(known(&later), [(29, true, true), (30, false, false)]);

        // Changed since it was saved: removed, written anew and moved; one is unchanged.
        next.removed(b"run/ckpt-27");
        next.expect_version(b"run/ckpt-28", 320);
        next.expect_version(b"run/ckpt-29", 290);
        next.moved(b"run/ckpt-30", b"run/kept", 330, &[]);
        assert_eq!(next.burst_at(b"run/ckpt-29", 2 * MIB), Some(29));
        assert_eq!(next.burst_at(b"run/ckpt-29", MIB), None);
        assert_eq!(next.bursts_of_events().get(&290), Some(&29));
        let left: Vec<(u64, bool)> = next.statuses(&moment).iter().map(|one| (one.number, one.whole)).collect();
        assert_eq!(left[17..], [(27, false), (28, false), (29, true), (30, true)]);
        let some = next.unchecked(5);
        assert_eq!(some.len(), 5);
        next.checked(5);
        let rest = next.unchecked(1_000);
        let all: BTreeMap<Path, Option<u64>> = some.into_iter().chain(rest).collect();
        assert_eq!((all.len(), all.values().flatten().count()), (22, 19), "{all:?}");
        assert_eq!(all[&b"run/ckpt-29"[..]], Some(2 * MIB));
        next.checked(1_000);
        assert!(next.unchecked(9).is_empty());
    }

    /// The daemon aborted at each mount, in a sum that does not fit.
    #[test]
    fn a_damaged_index_is_restored_without_what_cannot_be() {
        let mut index = CheckpointIndex::default();
        write(&mut index, 1, "run/ckpt-1", 10, 2 * MIB, 5);
        write(&mut index, 1, "run/latest", 11, 9, 5);
        write(&mut index, 2, "run/ckpt-2", 20, 2 * MIB, 10);
        index.published(90, S * 11);
        let saved = index.saved(&at(60, 90, None));
        let most = Duration::new(u64::MAX, 999_999_999);
        let damages: [fn(&mut SavedBurst, Duration); 8] = [
            |saved, most| saved.burst.last = most,
            |saved, most| saved.burst.began = most,
            |saved, most| saved.burst.durable = Some(most),
            |saved, most| saved.burst.published = Some(most),
            |saved, most| saved.burst.parts.elsewhere = Some(most),
            |saved, _| saved.number = u64::MAX,
            |saved, _| saved.burst.bytes = u64::MAX,
            |saved, _| saved.burst.files = u64::MAX,
        ];
        for (which, damage) in damages.iter().enumerate() {
            let mut damaged = saved.clone();
            damage(&mut damaged.0[0], most);
            let mut next = CheckpointIndex::default();
            let mut bursts = crate::tiers::checkpoints::bursts::Bursts::default();
            for (number, _, bytes) in next.restore(damaged, false) {
                bursts.resume(number, bytes);
            }
            let (number, _) =
                bursts.add(BurstVersion { began: S * 60, now: S * 60, bytes: 2 * MIB, ..BurstVersion::default() });
            write(&mut next, number, "run/ckpt-3", 100, 2 * MIB, 61);
            let numbers: Vec<u64> = next.statuses(&at(70, 100, None)).iter().map(|one| one.number).collect();
            assert_eq!(numbers, [2, 3], "damage {which}");
            assert!(next.unchecked(9).iter().all(|(path, _)| path == b"run/ckpt-2"), "damage {which}");
        }
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let mut index = CheckpointIndex::default();
        for burst in 1..=2 * KEPT as u64 {
            write(&mut index, burst, &format!("log-{burst}"), burst * 2, 100, 5);
        }
        assert_eq!((index.bursts.len(), index.files.len()), (1, 1), "those were none");
        for burst in 1_000..1_000 + 2 * KEPT as u64 {
            write(&mut index, burst, &format!("ckpt-{burst}"), burst * 2, MIB, 5);
        }
        assert!(index.bursts.len() <= KEPT && index.statuses(&at(9, 0, None)).len() == index.bursts.len());
        for n in 0..2 * FILES_KEPT as u64 {
            write(&mut index, 9_000, &format!("set/{n}"), 10_000 + n, 1_000, 6);
        }
        let statuses = index.statuses(&at(9, 0, None));
        assert_eq!(statuses.iter().map(|one| one.files).collect::<Vec<_>>(), [2 * FILES_KEPT as u64]);
        assert!(index.files.len() <= FILES_KEPT);
    }
}
