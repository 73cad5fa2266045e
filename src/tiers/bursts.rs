//! Which files were written together: the checkpoints, as eviction knows them. Pure; moments come in.
//!
//! A burst goes on as long as files are written whose first write comes within [`PAUSE`] of the last close. One of less than
//! [`SMALLEST`] is no checkpoint. The statistics find bursts from each write and tell of them; they may be off, and eviction must not
//! depend on that.

use std::collections::BTreeMap;
use std::time::Duration;

/// Between two files of one checkpoint.
const PAUSE: Duration = Duration::from_secs(3);
/// Bytes.
const SMALLEST: u64 = 1 << 20;
/// So many bursts are remembered.
const KEPT: usize = 1_000;

/// The bursts of a mount; numbers rise with time and begin at 1.
#[derive(Debug, Default)]
pub(crate) struct Bursts {
    current: Option<Burst>,
    /// Bytes of those that were no less than [`SMALLEST`], by number.
    checkpoints: BTreeMap<u64, u64>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    began: Duration,
    last: Duration,
    bytes: u64,
}

/// A checkpoint that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) began: Duration,
    pub(crate) bytes: u64,
}

impl Bursts {
    /// A version of so many bytes, written since `began`, is complete. Returns the number of its burst, and the one before if that is
    /// over by this.
    pub(crate) fn add(&mut self, began: Duration, now: Duration, bytes: u64) -> (u64, Option<Finished>) {
        let over = self.end_if_over(began);
        let burst = self.current.get_or_insert_with(|| {
            self.last += 1;
            Burst { began, last: now, bytes: 0 }
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

    /// The burst that nothing was added to for [`PAUSE`], if it is a checkpoint.
    pub(crate) fn end_if_over(&mut self, now: Duration) -> Option<Finished> {
        let over = self.current.take_if(|burst| now > burst.last + PAUSE)?;
        (over.bytes >= SMALLEST).then_some(Finished { began: over.began, bytes: over.bytes })
    }

    /// Bytes of the one that is being written; 0: none is.
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
    }
}
