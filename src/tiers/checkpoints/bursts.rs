//! Which files were written together: the definition of a checkpoint, for eviction and for `.dlio/checkpoints`. Pure;
//! moments are passed in.
//!
//! A burst goes on as long as files are written that are opened within [`PAUSE`] of the last close or of the end of the
//! last fsync. A burst of less than [`SMALLEST`] is no checkpoint. Reports, metrics and advice all use these
//! checkpoints.

use std::collections::BTreeMap;
use std::time::Duration;

/// The longest pause between two files of one checkpoint.
pub(crate) const PAUSE: Duration = Duration::from_secs(3);
/// In bytes.
pub(crate) const SMALLEST: u64 = 1 << 20;
/// How many bursts are remembered.
const KEPT: usize = 1_000;

/// The bursts of a mount; numbers rise with time and begin at 1.
#[derive(Debug, Default)]
pub(crate) struct Bursts {
    current: Option<Burst>,
    /// Bytes of the bursts of at least [`SMALLEST`], by number.
    checkpoints: BTreeMap<u64, u64>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    began: Duration,
    last: Duration,
    bytes: u64,
    /// How many programs wait for an fsync of one of its files.
    syncs: u32,
}

/// A checkpoint that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) began: Duration,
    pub(crate) bytes: u64,
}

impl Bursts {
    /// Adds a complete version of `bytes`, written since `began`. Returns the number of its burst, and the previous
    /// burst if this version ends it.
    pub(crate) fn add(&mut self, began: Duration, now: Duration, bytes: u64) -> (u64, Option<Finished>) {
        let over = self.end_if_over(began);
        let burst = self.current.get_or_insert_with(|| {
            self.last += 1;
            Burst { began, last: now, bytes: 0, syncs: 0 }
        });
        burst.last = now;
        burst.bytes += bytes;
        if burst.bytes >= SMALLEST {
            self.checkpoints.insert(self.last, burst.bytes);
            if self.checkpoints.len() > KEPT {
                self.checkpoints.pop_first();
            }
        }
        (self.last, over)
    }

    /// Restores a checkpoint of an earlier mount; numbers continue behind it.
    pub(crate) fn resume(&mut self, number: u64, bytes: u64) {
        self.last = self.last.max(number);
        if bytes >= SMALLEST {
            self.checkpoints.insert(number, bytes);
        }
    }

    /// A program begins to wait for an fsync of a file of this burst: the burst does not end before [`Bursts::synced`].
    pub(crate) fn syncing(&mut self, number: u64) {
        if let Some(burst) = self.current.as_mut().filter(|_| number == self.last) {
            burst.syncs += 1;
        }
    }

    /// The fsync has returned.
    pub(crate) fn synced(&mut self, number: u64, now: Duration) {
        if let Some(burst) = self.current.as_mut().filter(|_| number == self.last) {
            burst.syncs = burst.syncs.saturating_sub(1);
            burst.last = now;
        }
    }

    /// Ends the burst if nothing was added to it for [`PAUSE`]; returns it if it is a checkpoint.
    pub(crate) fn end_if_over(&mut self, now: Duration) -> Option<Finished> {
        let over = self.current.take_if(|burst| burst.syncs == 0 && now > burst.last + PAUSE)?;
        (over.bytes >= SMALLEST).then_some(Finished { began: over.began, bytes: over.bytes })
    }

    /// The same, unless a file that belongs to the burst is still being written: `writing` has the time of each file's
    /// first write. Waits no longer than `patience`, because a file that is always written to would hold the burst open
    /// for good.
    pub(crate) fn end_if_quiet(&mut self, now: Duration, writing: &[Duration], patience: Duration) -> Option<Finished> {
        let burst = self.current?;
        let waits = self.is_joined_by(writing) && now <= burst.last + patience;
        if waits { None } else { self.end_if_over(now) }
    }

    /// Whether one of these first writes is of a file that will belong to the current burst.
    pub(crate) fn is_joined_by(&self, writing: &[Duration]) -> bool {
        let joins = |burst: Burst| writing.iter().any(|since| (burst.began..=burst.last + PAUSE).contains(since));
        self.current.is_some_and(joins)
    }

    /// The number of the current burst.
    pub(crate) fn going_on(&self) -> Option<u64> {
        self.current.map(|_| self.last)
    }

    /// Bytes of the checkpoint that is being written; 0: none is.
    pub(crate) fn being_written(&self) -> u64 {
        self.current.map_or(0, |burst| if burst.bytes >= SMALLEST { burst.bytes } else { 0 })
    }

    pub(crate) fn is_checkpoint(&self, number: u64) -> bool {
        self.checkpoints.contains_key(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn files_that_are_written_one_after_the_other_are_one_checkpoint() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.add(10 * S, 11 * S, 600_000), (1, None));
        assert!(!bursts.is_checkpoint(1) && bursts.being_written() == 0, "too small so far");
        // It takes long to write, but was begun at once.
        assert_eq!(bursts.add(12 * S, 40 * S, 600_000), (1, None));
        assert!(bursts.is_checkpoint(1) && bursts.being_written() == 1_200_000);
        assert_eq!(bursts.end_if_over(43 * S), None);
        let over = Finished { began: 10 * S, bytes: 1_200_000 };
        assert_eq!(bursts.add(44 * S, 44 * S, 5), (2, Some(over)));
        assert_eq!(bursts.end_if_over(50 * S), None, "a line of a log is no checkpoint");
        assert_eq!((bursts.is_checkpoint(1), bursts.is_checkpoint(2), bursts.being_written()), (true, false, 0));
        bursts.resume(7, 2 << 20);
        bursts.resume(5, 5);
        assert_eq!(
            (bursts.is_checkpoint(7), bursts.is_checkpoint(5), bursts.add(60 * S, 60 * S, 5).0),
            (true, false, 8)
        );
    }

    #[test]
    fn a_burst_goes_on_while_a_program_waits_for_its_fsync_and_a_pause_behind_it() {
        let mut bursts = Bursts::default();
        bursts.add(10 * S, 11 * S, 2 << 20);
        bursts.syncing(1);
        assert_eq!(bursts.end_if_quiet(25 * S, &[], S), None, "the disk is slow");
        bursts.synced(1, 30 * S);
        assert_eq!(bursts.add(32 * S, 33 * S, 5), (1, None), "its next file");
        assert!(bursts.end_if_over(37 * S).is_some());
        bursts.add(40 * S, 41 * S, 2 << 20);
        // An fsync for the burst before: only a file that was synced once more.
        bursts.syncing(1);
        bursts.synced(1, 43 * S);
        assert!(bursts.end_if_over(45 * S).is_some());
    }

    #[test]
    fn a_file_that_takes_long_keeps_its_burst_open_but_not_for_good() {
        let mut bursts = Bursts::default();
        bursts.add(10 * S, 11 * S, 2 << 20);
        assert_eq!(bursts.end_if_quiet(15 * S, &[12 * S], 30 * S), None, "the weights, behind their configuration");
        assert!(
            bursts.going_on() == Some(1) && bursts.is_joined_by(&[12 * S]) && !bursts.is_joined_by(&[9 * S, 15 * S])
        );
        assert_eq!(bursts.add(12 * S, 25 * S, 5).0, 1);
        assert!(bursts.end_if_quiet(56 * S, &[13 * S], 30 * S).is_some(), "a log that is always written to");
        assert_eq!((bursts.going_on(), bursts.end_if_quiet(57 * S, &[13 * S], 30 * S)), (None, None));
    }
}
