//! What one operation does to the figures: pure arithmetic on relaxed atomics.
//!
//! Counters are exact and independent of each other: every field is added to on its own, so a snapshot taken meanwhile
//! may show a call that is counted but whose bytes are not yet. Nothing here reads a clock; durations come in as
//! arguments.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// An operation that reaches the file system, named as FUSE names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Lookup,
    Forget,
    Getattr,
    Setattr,
    Readlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Symlink,
    Rename,
    Link,
    Create,
    Open,
    Read,
    Write,
    Flush,
    Release,
    Fsync,
    Opendir,
    Readdir,
    Readdirplus,
    Releasedir,
    Fsyncdir,
    Statfs,
    Getxattr,
    Setxattr,
    Listxattr,
    Removexattr,
    Fallocate,
    Lseek,
    CopyFileRange,
    /// Ioctl, access, poll, bmap and locks: refused, so that the kernel answers them itself.
    Refused,
}

impl Op {
    pub const ALL: [Op; 33] = [
        Op::Lookup,
        Op::Forget,
        Op::Getattr,
        Op::Setattr,
        Op::Readlink,
        Op::Mknod,
        Op::Mkdir,
        Op::Unlink,
        Op::Rmdir,
        Op::Symlink,
        Op::Rename,
        Op::Link,
        Op::Create,
        Op::Open,
        Op::Read,
        Op::Write,
        Op::Flush,
        Op::Release,
        Op::Fsync,
        Op::Opendir,
        Op::Readdir,
        Op::Readdirplus,
        Op::Releasedir,
        Op::Fsyncdir,
        Op::Statfs,
        Op::Getxattr,
        Op::Setxattr,
        Op::Listxattr,
        Op::Removexattr,
        Op::Fallocate,
        Op::Lseek,
        Op::CopyFileRange,
        Op::Refused,
    ];

    /// The name in reports and log lines; stable.
    pub fn name(self) -> &'static str {
        match self {
            Op::Lookup => "lookup",
            Op::Forget => "forget",
            Op::Getattr => "getattr",
            Op::Setattr => "setattr",
            Op::Readlink => "readlink",
            Op::Mknod => "mknod",
            Op::Mkdir => "mkdir",
            Op::Unlink => "unlink",
            Op::Rmdir => "rmdir",
            Op::Symlink => "symlink",
            Op::Rename => "rename",
            Op::Link => "link",
            Op::Create => "create",
            Op::Open => "open",
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Release => "release",
            Op::Fsync => "fsync",
            Op::Opendir => "opendir",
            Op::Readdir => "readdir",
            Op::Readdirplus => "readdirplus",
            Op::Releasedir => "releasedir",
            Op::Fsyncdir => "fsyncdir",
            Op::Statfs => "statfs",
            Op::Getxattr => "getxattr",
            Op::Setxattr => "setxattr",
            Op::Listxattr => "listxattr",
            Op::Removexattr => "removexattr",
            Op::Fallocate => "fallocate",
            Op::Lseek => "lseek",
            Op::CopyFileRange => "copy_file_range",
            Op::Refused => "refused",
        }
    }
}

/// One observed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub op: Op,
    /// From the arrival of the request to its reply.
    pub took: Duration,
    /// Bytes read, written or copied; 0 for everything else and for a call that failed.
    pub bytes: u64,
    pub failed: bool,
}

/// Latency buckets: bucket `i` counts calls shorter than `2^i` microseconds, and not shorter than the bucket before it;
/// the last one (from 2^29 us, nine minutes) takes all the rest.
pub const BUCKETS: usize = 31;

/// The figures of one operation.
#[derive(Debug, Default)]
pub struct OpCounters {
    calls: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
    max_nanos: AtomicU64,
    latency: [AtomicU64; BUCKETS],
}

/// [`OpCounters`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpFigures {
    pub calls: u64,
    pub errors: u64,
    pub bytes: u64,
    pub total: Duration,
    pub max: Duration,
    pub latency: [u64; BUCKETS],
}

impl OpCounters {
    pub fn record(&self, call: &Call) {
        let nanos = nanos(call.took);
        self.calls.fetch_add(1, Relaxed);
        self.errors.fetch_add(u64::from(call.failed), Relaxed);
        self.bytes.fetch_add(call.bytes, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
        self.max_nanos.fetch_max(nanos, Relaxed);
        self.latency[bucket(nanos)].fetch_add(1, Relaxed);
    }

    /// Counts `calls` calls that have no duration of their own.
    pub fn record_untimed(&self, calls: u64) {
        self.calls.fetch_add(calls, Relaxed);
    }

    pub fn figures(&self) -> OpFigures {
        OpFigures {
            calls: self.calls.load(Relaxed),
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            total: Duration::from_nanos(self.nanos.load(Relaxed)),
            max: Duration::from_nanos(self.max_nanos.load(Relaxed)),
            latency: std::array::from_fn(|i| self.latency[i].load(Relaxed)),
        }
    }
}

impl OpFigures {
    /// The bound below which at least `share` (0 to 1) of the timed calls stayed; `None` without timed calls. Exact to
    /// a factor of two, and never above the longest call.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let timed: u64 = self.latency.iter().sum();
        if timed == 0 {
            return None;
        }
        let wanted = ((timed as f64 * share).ceil() as u64).clamp(1, timed);
        let mut seen = 0;
        let bucket = self.latency.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        // The last bucket has no upper bound of its own.
        let bound = if bucket + 1 == BUCKETS { self.max } else { Duration::from_micros(1 << bucket) };
        Some(bound.min(self.max))
    }
}

/// The figures of one path.
#[derive(Debug, Default)]
pub struct PathCounters {
    opens: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    other: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: AtomicU64,
    nanos: AtomicU64,
}

/// [`PathCounters`] at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathFigures {
    /// That succeeded; the others are errors.
    pub opens: u64,
    pub reads: u64,
    pub writes: u64,
    /// Calls that are none of the three.
    pub other: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub errors: u64,
    /// Time spent in all of its calls.
    pub total: Duration,
}

impl PathCounters {
    pub fn record(&self, call: &Call) {
        match call.op {
            Op::Open | Op::Create if !call.failed => self.opens.fetch_add(1, Relaxed),
            Op::Read => {
                self.bytes_read.fetch_add(call.bytes, Relaxed);
                self.reads.fetch_add(1, Relaxed)
            }
            Op::Write => {
                self.bytes_written.fetch_add(call.bytes, Relaxed);
                self.writes.fetch_add(1, Relaxed)
            }
            _ => self.other.fetch_add(1, Relaxed),
        };
        self.errors.fetch_add(u64::from(call.failed), Relaxed);
        self.nanos.fetch_add(nanos(call.took), Relaxed);
    }

    pub fn figures(&self) -> PathFigures {
        PathFigures {
            opens: self.opens.load(Relaxed),
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            other: self.other.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            errors: self.errors.load(Relaxed),
            total: Duration::from_nanos(self.nanos.load(Relaxed)),
        }
    }
}

impl PathFigures {
    /// Adds what the same path did under another inode number.
    pub fn add(&mut self, other: &PathFigures) {
        self.opens += other.opens;
        self.reads += other.reads;
        self.writes += other.writes;
        self.other += other.other;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.errors += other.errors;
        self.total += other.total;
    }
}

/// Saturates after 584 years.
fn nanos(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

fn bucket(nanos: u64) -> usize {
    let micros = nanos / 1000;
    ((u64::BITS - micros.leading_zeros()) as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: Op, micros: u64, bytes: u64, failed: bool) -> Call {
        Call { op, took: Duration::from_micros(micros), bytes, failed }
    }

    #[test]
    fn every_operation_has_its_own_slot_and_name() {
        for (slot, op) in Op::ALL.iter().enumerate() {
            assert_eq!(*op as usize, slot, "{op:?}");
        }
        let names: std::collections::HashSet<_> = Op::ALL.iter().map(|op| op.name()).collect();
        assert_eq!(names.len(), Op::ALL.len());
    }

    #[test]
    fn an_operation_sums_and_keeps_the_longest() {
        let counters = OpCounters::default();
        counters.record(&call(Op::Read, 10, 4096, false));
        counters.record(&call(Op::Read, 30, 0, true));
        let figures = counters.figures();
        assert_eq!((figures.calls, figures.errors, figures.bytes), (2, 1, 4096));
        assert_eq!((figures.total, figures.max), (Duration::from_micros(40), Duration::from_micros(30)));
    }

    #[test]
    fn buckets_are_powers_of_two_and_take_everything() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(999), 0);
        assert_eq!(bucket(1_000), 1);
        assert_eq!(bucket(3_999), 2);
        assert_eq!(bucket(4_000), 3);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_quantile_bounds_its_share_of_the_calls() {
        let counters = OpCounters::default();
        assert_eq!(counters.figures().quantile(0.5), None);
        for _ in 0..99 {
            counters.record(&call(Op::Read, 3, 0, false));
        }
        counters.record(&call(Op::Read, 5_000, 0, false));
        let figures = counters.figures();
        assert_eq!(figures.quantile(0.5), Some(Duration::from_micros(4)));
        assert_eq!(figures.quantile(0.99), Some(Duration::from_micros(4)));
        assert_eq!(figures.quantile(1.0), Some(Duration::from_micros(5_000)), "not above the longest call");
    }

    #[test]
    fn a_path_tells_its_calls_apart() {
        let counters = PathCounters::default();
        counters.record(&call(Op::Create, 1, 0, false));
        counters.record(&call(Op::Write, 1, 100, false));
        counters.record(&call(Op::Read, 1, 7, false));
        counters.record(&call(Op::Getattr, 1, 0, true));
        let mut figures = counters.figures();
        let once = PathFigures {
            opens: 1,
            reads: 1,
            writes: 1,
            other: 1,
            bytes_read: 7,
            bytes_written: 100,
            errors: 1,
            total: Duration::from_micros(4),
        };
        assert_eq!(figures, once);
        figures.add(&once);
        assert_eq!((figures.bytes_written, figures.errors, figures.total), (200, 2, Duration::from_micros(8)));
    }
}
