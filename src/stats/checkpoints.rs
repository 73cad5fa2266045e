//! Checkpoints, found from the writes themselves: bursts of writing, each with what it took until the slow tier had it. For
//! recordings and what is made of them; `.dlio/checkpoints` is the engine's (`src/tiers/checkpoints.rs`), which knows the files.
//! Pure; calls and moments come in.
//!
//! A program that trains writes little for minutes and then gigabytes at once. A burst begins with a write and ends when for
//! [`PAUSE`] no file is written to that has got 64 KiB in it: a log that grows by a line a second holds none
//! open. Bursts of less than [`SMALLEST`] are none. Whatever else writes so much at once (a data set that is unpacked) is
//! found as well: what it was for, no file system knows.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::counters::Op;
use super::recording::Checkpoint;
use super::trace::Traced;

/// A burst is over after so long without a write.
pub const PAUSE: Duration = Duration::from_secs(1);
/// A file that got less in a burst does not keep it going.
const HEAVY: u64 = 64 << 10;
/// A burst of less is not told.
pub const SMALLEST: u64 = 1 << 20;
/// So many are kept; then the oldest goes.
const KEPT: usize = 1_000;

/// The checkpoints of a mount.
#[derive(Debug, Default)]
pub struct Checkpoints {
    burst: Option<Burst>,
    /// The oldest first; those that the slow tier has not got yet with the LSN it must come to.
    done: VecDeque<(Checkpoint, u64)>,
    number: u64,
}

#[derive(Debug)]
struct Burst {
    /// When it last went on: its last write, or a close of one of its files.
    last: Duration,
    bytes: u64,
    /// What each file got, and when first.
    files: HashMap<u64, (u64, Duration)>,
    /// The log's last number when it last went on.
    lsn: u64,
    /// It has gone on since that was asked.
    moved: bool,
}

impl Checkpoints {
    /// Looks at a call.
    pub fn see(&mut self, traced: &Traced) {
        let (call, ended) = (&traced.call, traced.ended());
        if call.errno.is_some() {
            return;
        }
        match (call.op, &mut self.burst) {
            (Op::Write | Op::CopyFileRange, None) => {
                let files = HashMap::from([(traced.ino, (call.bytes, call.began))]);
                self.burst = Some(Burst { last: ended, bytes: call.bytes, files, lsn: 0, moved: true });
            }
            (Op::Write | Op::CopyFileRange, Some(burst)) => {
                let (file, _) = burst.files.entry(traced.ino).or_insert((0, call.began));
                *file += call.bytes;
                burst.bytes += call.bytes;
                if *file >= HEAVY {
                    burst.go_on(ended);
                }
            }
            (Op::Flush | Op::Release | Op::Fsync | Op::Fdatasync, Some(burst))
                if burst.files.get(&traced.ino).is_some_and(|(bytes, _)| *bytes >= HEAVY) =>
            {
                burst.go_on(ended);
            }
            _ => {}
        }
    }

    /// Looks at the time: `lsn` is the log's last number, `applied` the last one that the slow tier has. To be called after
    /// what was collected was seen. `name` gives a file's path of today.
    pub fn tick(&mut self, now: Duration, lsn: u64, applied: u64, name: impl Fn(u64) -> Option<String>) {
        if let Some(burst) = &mut self.burst {
            if std::mem::take(&mut burst.moved) {
                burst.lsn = lsn;
            }
            if now.saturating_sub(burst.last) >= PAUSE {
                self.end(&name);
            }
        }
        for (checkpoint, lsn) in self.done.iter_mut().rev() {
            if checkpoint.drained.is_some() {
                break;
            }
            if applied >= *lsn {
                checkpoint.drained = Some(now.as_secs_f64());
            }
        }
    }

    fn end(&mut self, name: impl Fn(u64) -> Option<String>) {
        let Some(burst) = self.burst.take().filter(|burst| burst.bytes >= SMALLEST) else { return };
        self.number += 1;
        let largest = burst.files.iter().max_by_key(|(ino, (bytes, _))| (*bytes, **ino)).map(|(ino, _)| *ino);
        // A line that a log got just before is not its beginning.
        let heavy = burst.files.values().filter(|(bytes, _)| *bytes >= HEAVY).map(|(_, first)| *first);
        let began = heavy.min().unwrap_or(burst.last);
        let checkpoint = Checkpoint {
            number: self.number,
            began: began.as_secs_f64(),
            absorbed: burst.last.as_secs_f64(),
            files: burst.files.len() as u64,
            bytes: burst.bytes,
            path: largest.and_then(name).unwrap_or_else(|| "(removed)".to_owned()),
            drained: None,
        };
        self.done.push_back((checkpoint, burst.lsn));
        if self.done.len() > KEPT {
            self.done.pop_front();
        }
    }

    /// All that are kept, the oldest first. The one that is being written is not among them.
    pub fn told(&self) -> Vec<Checkpoint> {
        self.done.iter().map(|(checkpoint, _)| checkpoint.clone()).collect()
    }
}

impl Burst {
    fn go_on(&mut self, moment: Duration) {
        self.last = self.last.max(moment);
        self.moved = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::stats::counters::{Call, Tier};

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn call(op: Op, ino: u64, at: u64, bytes: u64) -> Traced {
        let call = Call { op, began: ms(at), took: ms(10), offset: 0, bytes, errno: None, tier: Tier::Fast };
        Traced { call, ino, handle: 1, process: 1, thread: 1 }
    }

    fn name(ino: u64) -> Option<String> {
        Some(format!("/f{ino}"))
    }

    #[test]
    fn a_burst_is_told_with_what_it_took_until_the_slow_tier_had_it() {
        let mut all = Checkpoints::default();
        for n in 0..10 {
            all.see(&call(Op::Write, 1, 1_000 + n * 100, 1 << 20));
        }
        all.see(&call(Op::Write, 2, 1_950, 100));
        all.see(&call(Op::Flush, 1, 2_100, 0));
        all.tick(ms(2_150), 40, 10, name);
        all.see(&call(Op::Release, 2, 2_500, 0));
        all.tick(ms(2_600), 50, 20, name);
        assert!(all.told().is_empty(), "it may go on");
        all.tick(ms(3_200), 60, 30, name);
        let told = all.told();
        assert_eq!((told.len(), told[0].drained), (1, None));
        assert_eq!((told[0].began, told[0].absorbed, told[0].files, told[0].bytes), (1.0, 2.11, 2, (10 << 20) + 100));
        assert_eq!(told[0].path, "/f1");
        all.tick(ms(4_000), 70, 39, name);
        assert_eq!(all.told()[0].drained, None);
        all.tick(ms(5_000), 70, 40, name);
        assert_eq!(all.told()[0].drained, Some(5.0));
    }

    #[test]
    fn a_log_that_grows_is_none_and_holds_none_open() {
        let mut all = Checkpoints::default();
        let mut now = 0;
        for checkpoint in 0..3 {
            for second in 0..20 {
                now = checkpoint * 20_000 + second * 1_000;
                all.see(&call(Op::Write, 9, now, 50));
                if second == 5 {
                    (0..4).for_each(|n| all.see(&call(Op::Write, 100 + checkpoint, now + n * 20, 1 << 20)));
                }
                all.tick(ms(now + 500), 1, 1, name);
            }
        }
        all.tick(ms(now + 5_000), 1, 1, name);
        let told: Vec<_> =
            all.told().iter().map(|one| (one.began.round() as u64, one.bytes >> 20, one.number)).collect();
        assert_eq!(told, [(5, 4, 1), (25, 4, 2), (45, 4, 3)]);
    }

    #[test]
    fn failures_and_little_ones_are_none() {
        let mut all = Checkpoints::default();
        let mut failed = call(Op::Write, 1, 0, 9 << 20);
        failed.call.errno = Some(Errno::ENOSPC);
        all.see(&failed);
        all.see(&call(Op::Write, 1, 100, SMALLEST - 1));
        all.tick(ms(9_000), 1, 1, name);
        assert!(all.told().is_empty());
    }
}
