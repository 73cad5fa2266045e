//! Which files were written together: the definition of a checkpoint, for eviction and for `.dlio/checkpoints`. Pure;
//! times are passed in.
//!
//! A burst continues while files are written that were opened within [`PAUSE`] of the last close or of the end of the
//! last fsync. Names that contain a step ([`certain_step`](super::step::certain_step)) separate bursts, too, so several
//! may be open at once; a file whose name has no step belongs to the one that was written last. A burst of less than
//! [`SMALLEST`] is no checkpoint. Reports, metrics and advice all use these checkpoints.
//!
//! A log that a program keeps open, or appends to, belongs to no burst ([`BurstVersion::is_of_a_log`]): it would keep a
//! burst open, and begin long before it.

use std::collections::BTreeMap;
use std::time::Duration;

/// The longest pause between two files of one checkpoint.
pub(crate) const PAUSE: Duration = Duration::from_secs(3);
/// In bytes.
pub(crate) const SMALLEST: u64 = 1 << 20;
/// A version that adds less than this may be a log's.
pub(crate) const LARGE: u64 = 64 << 10;
/// How many bursts are remembered.
const KEPT: usize = 1_000;
/// How many may be open at once; a data set may have thousands of directories with numbers as names.
const AT_ONCE: usize = 16;

/// The bursts of a mount; numbers rise with time and begin at 1.
#[derive(Debug, Default)]
pub(crate) struct Bursts {
    /// The open bursts, in the order of their last version.
    going_on: Vec<Burst>,
    /// Bytes of the bursts of at least [`SMALLEST`], by number.
    checkpoints: BTreeMap<u64, u64>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    number: u64,
    step: Option<u64>,
    began: Duration,
    last: Duration,
    bytes: u64,
    /// How many programs wait for an fsync of one of its files.
    syncs: u32,
}

/// A version of a file that got its place in the order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BurstVersion {
    /// The certain step in its name.
    pub(crate) step: Option<u64>,
    /// When the file was opened, or first written to if that was much later; and when the version was complete.
    pub(crate) began: Duration,
    pub(crate) now: Duration,
    pub(crate) bytes: u64,
    /// The length of the prefix that is older than the version.
    pub(crate) kept: u64,
}

/// A file that is being written: when that began, and its certain step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeingWritten {
    pub(crate) since: Duration,
    pub(crate) step: Option<u64>,
}

/// A checkpoint that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) began: Duration,
    pub(crate) bytes: u64,
}

impl BurstVersion {
    /// Whether it has grown only a little, and is an old file or has long been open.
    pub(crate) fn is_of_a_log(&self) -> bool {
        self.bytes.saturating_sub(self.kept) < LARGE && (self.kept > 0 || self.now > self.began + PAUSE)
    }
}

impl Burst {
    fn takes(&self, step: Option<u64>) -> bool {
        self.step.is_none() || step.is_none() || self.step == step
    }

    fn is_over(&self, now: Duration) -> bool {
        self.syncs == 0 && now > self.last + PAUSE
    }

    fn is_joined_by(&self, file: &BeingWritten) -> bool {
        self.takes(file.step) && (self.began..=self.last + PAUSE).contains(&file.since)
    }

    /// The checkpoint, if the burst is one.
    fn finished(&self) -> Option<Finished> {
        (self.bytes >= SMALLEST).then_some(Finished { began: self.began, bytes: self.bytes })
    }
}

impl Bursts {
    /// Adds a complete version. Returns the number of its burst, and the checkpoints that this version ends.
    pub(crate) fn add(&mut self, version: BurstVersion) -> (u64, Vec<Finished>) {
        let BurstVersion { step, began, now, bytes, .. } = version;
        let mut over = self.end_if_over(began);
        // Of the bursts that accept it, the one with its step comes first.
        let named = || self.going_on.iter().rposition(|burst| step.is_some() && burst.step == step);
        let at = named().or_else(|| self.going_on.iter().rposition(|burst| burst.takes(step)));
        let mut burst = at.map(|at| self.going_on.remove(at)).unwrap_or_else(|| {
            self.last += 1;
            Burst { number: self.last, step, began, last: now, bytes: 0, syncs: 0 }
        });
        burst.step = burst.step.or(step);
        burst.began = burst.began.min(began);
        burst.last = now;
        burst.bytes += bytes;
        if self.going_on.len() == AT_ONCE {
            over.extend(self.going_on.remove(0).finished());
        }
        self.going_on.push(burst);
        if burst.bytes >= SMALLEST {
            self.checkpoints.insert(burst.number, burst.bytes);
            if self.checkpoints.len() > KEPT {
                self.checkpoints.pop_first();
            }
        }
        (burst.number, over)
    }

    /// Restores a checkpoint of an earlier mount; new numbers come after it.
    pub(crate) fn resume(&mut self, number: u64, bytes: u64) {
        self.last = self.last.max(number);
        if bytes >= SMALLEST {
            self.checkpoints.insert(number, bytes);
        }
    }

    fn numbered(&mut self, number: u64) -> Option<&mut Burst> {
        self.going_on.iter_mut().find(|burst| burst.number == number)
    }

    /// A program begins to wait for an fsync of a file of this burst: the burst does not end before [`Bursts::synced`].
    pub(crate) fn syncing(&mut self, number: u64) {
        if let Some(burst) = self.numbered(number) {
            burst.syncs += 1;
        }
    }

    /// The fsync has returned. Returns whether the burst is still open.
    pub(crate) fn synced(&mut self, number: u64, now: Duration) -> bool {
        let burst = self.numbered(number);
        let goes_on = burst.is_some();
        burst.into_iter().for_each(|burst| {
            burst.syncs = burst.syncs.saturating_sub(1);
            burst.last = now;
        });
        goes_on
    }

    /// Ends the bursts to which nothing was added for [`PAUSE`]; returns those that are checkpoints.
    pub(crate) fn end_if_over(&mut self, now: Duration) -> Vec<Finished> {
        self.end_if_quiet(now, &[], Duration::ZERO)
    }

    /// Like [`Bursts::end_if_over`], but keeps a burst open while one of its files is being written. Waits at most
    /// `patience`, because a continuously written file would keep the burst open forever.
    pub(crate) fn end_if_quiet(
        &mut self,
        now: Duration,
        writing: &[BeingWritten],
        patience: Duration,
    ) -> Vec<Finished> {
        let waits = |burst: &Burst| now <= burst.last + patience && writing.iter().any(|file| burst.is_joined_by(file));
        let over = self.going_on.extract_if(.., |burst| burst.is_over(now) && !waits(burst));
        over.filter_map(|burst| burst.finished()).collect()
    }

    /// The open bursts, and whether one of these files will belong to them.
    pub(crate) fn joined_by(&self, writing: &[BeingWritten]) -> BTreeMap<u64, bool> {
        let joined = |burst: &Burst| (burst.number, writing.iter().any(|file| burst.is_joined_by(file)));
        self.going_on.iter().map(joined).collect()
    }

    /// The numbers of the open bursts.
    pub(crate) fn going_on(&self) -> Vec<u64> {
        self.going_on.iter().map(|burst| burst.number).collect()
    }

    /// Bytes of the newest checkpoint that is being written; 0: there is none.
    pub(crate) fn being_written(&self) -> u64 {
        self.going_on.iter().rev().find_map(Burst::finished).map_or(0, |checkpoint| checkpoint.bytes)
    }

    pub(crate) fn is_checkpoint(&self, number: u64) -> bool {
        self.checkpoints.contains_key(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn version(began: u32, now: u32, bytes: u64) -> BurstVersion {
        BurstVersion { began: began * S, now: now * S, bytes, ..BurstVersion::default() }
    }

    fn file(since: u32) -> BeingWritten {
        BeingWritten { since: since * S, step: None }
    }

    #[test]
    fn files_that_are_written_one_after_the_other_are_one_checkpoint() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.add(version(10, 11, 600_000)), (1, vec![]));
        assert!(!bursts.is_checkpoint(1) && bursts.being_written() == 0, "too small so far");
        // It takes long to write, but was begun at once.
        assert_eq!(bursts.add(version(12, 40, 600_000)), (1, vec![]));
        assert!(bursts.is_checkpoint(1) && bursts.being_written() == 1_200_000);
        assert_eq!(bursts.end_if_over(43 * S), []);
        let over = Finished { began: 10 * S, bytes: 1_200_000 };
        assert_eq!(bursts.add(version(44, 44, 5)), (2, vec![over]));
        assert_eq!(bursts.end_if_over(50 * S), [], "a line of a log is no checkpoint");
        assert_eq!((bursts.is_checkpoint(1), bursts.is_checkpoint(2), bursts.being_written()), (true, false, 0));
        bursts.resume(7, 2 << 20);
        bursts.resume(5, 5);
        let next = bursts.add(version(60, 60, 5)).0;
        assert_eq!((bursts.is_checkpoint(7), bursts.is_checkpoint(5), next), (true, false, 8));
    }

    #[test]
    fn a_burst_goes_on_while_a_program_waits_for_its_fsync_and_a_pause_behind_it() {
        let mut bursts = Bursts::default();
        bursts.add(version(10, 11, 2 << 20));
        bursts.syncing(1);
        assert_eq!(bursts.end_if_quiet(25 * S, &[], S), [], "the disk is slow");
        assert!(bursts.synced(1, 30 * S));
        assert_eq!(bursts.add(version(32, 33, 5)), (1, vec![]), "its next file");
        assert_eq!(bursts.end_if_over(37 * S).len(), 1);
        bursts.add(version(40, 41, 2 << 20));
        // An fsync for the previous burst: a file that was only synced once more.
        bursts.syncing(1);
        assert!(!bursts.synced(1, 43 * S));
        assert_eq!(bursts.end_if_over(45 * S).len(), 1);
    }

    #[test]
    fn a_file_that_takes_long_keeps_its_burst_open_but_not_for_good() {
        let mut bursts = Bursts::default();
        bursts.add(version(10, 11, 2 << 20));
        assert_eq!(bursts.end_if_quiet(15 * S, &[file(12)], 30 * S), [], "the weights, behind their configuration");
        assert_eq!(bursts.joined_by(&[file(12)]), BTreeMap::from([(1, true)]));
        assert_eq!(bursts.joined_by(&[file(9), file(15)]), BTreeMap::from([(1, false)]));
        assert_eq!(bursts.add(version(12, 25, 5)).0, 1);
        assert_eq!(bursts.end_if_quiet(56 * S, &[file(13)], 30 * S).len(), 1, "a log that is always written to");
        assert_eq!((bursts.going_on(), bursts.end_if_quiet(57 * S, &[file(13)], 30 * S)), (vec![], vec![]));
    }

    #[test]
    fn a_step_in_the_names_separates_checkpoints_that_are_written_at_once() {
        let mut bursts = Bursts::default();
        let mut add =
            |step: Option<u64>, at: u32, bytes: u64| bursts.add(BurstVersion { step, ..version(at, at, bytes) }).0;
        assert_eq!(add(None, 10, 5), 1, "a configuration");
        assert_eq!(add(Some(5), 10, 2 << 20), 1, "belongs to what comes behind it");
        assert_eq!(add(Some(6), 11, 2 << 20), 2);
        assert_eq!(add(Some(5), 12, 2 << 20), 1, "by another rank");
        assert_eq!(add(None, 12, 5), 1, "a pointer, to what was written last");
        assert_eq!(add(Some(6), 13, 2 << 20), 2);
        let writing = [BeingWritten { since: 13 * S, step: Some(6) }];
        assert_eq!(bursts.joined_by(&writing), BTreeMap::from([(1, false), (2, true)]));
        assert_eq!(bursts.end_if_quiet(17 * S, &writing, 30 * S).len(), 1);
        assert_eq!(bursts.going_on(), [2]);
        for step in 0..100 {
            bursts.add(BurstVersion { step: Some(step), ..version(17, 17, 5) });
        }
        assert_eq!(bursts.going_on().len(), AT_ONCE);
    }

    #[test]
    fn a_log_is_known_by_what_it_kept_or_how_long_it_was_open() {
        let log = |kept: u64, bytes: u64, began: u32| BurstVersion { kept, ..version(began, 100, bytes) }.is_of_a_log();
        assert!(log(5 << 20, (5 << 20) + 100, 100), "a large one that is appended to");
        assert!(log(0, 100, 90) && log(200, 100, 100), "open for long, or shortened");
        assert!(!log(0, 100, 99), "a small file of a checkpoint");
        assert!(!log(0, 1 << 20, 10) && !log(100, 1 << 20, 10), "much was written");
    }
}
