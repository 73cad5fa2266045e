//! How one operation changes the figures: pure arithmetic on relaxed atomics.
//!
//! Counters are exact and independent of each other: every field is updated on its own, so a snapshot taken meanwhile
//! may show a call that is counted but whose bytes are not yet. Nothing here reads a clock; durations come in as
//! arguments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use metrics::{Counter, HistogramFn};
use strum::{EnumCount, IntoStaticStr, VariantArray};

use crate::error::Errno;

/// An operation that reaches the file system, named as FUSE names it.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    EnumCount,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
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
    /// FSYNC for the data only.
    Fdatasync,
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
    pub const ALL: [Op; Op::COUNT] = *Op::VARIANTS.first_chunk().expect("all of them");

    /// The name in documents for scripts and in log lines; stable.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The name for people: nobody knows what was refused, and by whom.
    pub fn shown(self) -> &'static str {
        match self {
            Op::Refused => "left to kernel",
            op => op.name(),
        }
    }
}

/// The tier that served a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Tier {
    /// The fast tier, or memory.
    Fast,
    /// It had to wait for the slow tier.
    Slow,
}

impl Tier {
    pub const ALL: [Tier; 2] = [Tier::Fast, Tier::Slow];

    /// The name in reports; stable.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One observed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub op: Op,
    /// When the request arrived, since the mount.
    pub began: Duration,
    /// From the arrival of the request to its reply.
    pub took: Duration,
    /// The file offset of a read or write.
    pub offset: u64,
    /// Bytes read, written or copied; 0 for everything else and for a call that failed.
    pub bytes: u64,
    pub errno: Option<Errno>,
    pub tier: Tier,
}

/// Latency is counted in buckets whose bounds are a sixteenth of a power of two apart, starting at a sixteenth of a
/// microsecond: values read from them are at most 6.3 % too high. The last bucket takes everything from seventeen
/// minutes on.
const FINE: usize = 16 * BUCKETS;
/// Power-of-two buckets: bucket `i` counts calls shorter than `2^i` microseconds that no bucket before counts.
pub const BUCKETS: usize = 31;

/// The cell of a [`Counter`], through which it can be read and changed without a dynamic call.
#[derive(Clone, Debug, Default)]
pub struct Count(Arc<AtomicU64>);

impl Count {
    pub fn increment(&self, by: u64) {
        self.0.fetch_add(by, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl From<Count> for Counter {
    fn from(count: Count) -> Self {
        Counter::from_arc(count.0)
    }
}

/// The cell of a [`metrics::Histogram`] of seconds: calls by bucket, and the exact sum of their durations.
#[derive(Debug)]
pub struct Latency {
    nanos: AtomicU64,
    /// Boxed rather than an array: the compiler would build each of its numbers one by one.
    buckets: Box<[AtomicU64]>,
}

impl Default for Latency {
    fn default() -> Self {
        Latency { nanos: AtomicU64::new(0), buckets: (0..FINE).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Latency {
    fn add(&self, nanos: u64) {
        self.nanos.fetch_add(nanos, Relaxed);
        self.buckets[bucket(nanos)].fetch_add(1, Relaxed);
    }

    /// Calls by bucket, and the sum of their durations.
    pub fn figures(&self) -> (Box<[u64]>, Duration) {
        let buckets = self.buckets.iter().map(|calls| calls.load(Relaxed)).collect();
        (buckets, Duration::from_nanos(self.nanos.load(Relaxed)))
    }
}

impl HistogramFn for Latency {
    fn record(&self, seconds: f64) {
        self.add((seconds * 1e9).round() as u64);
    }
}

/// The figures of one operation on one tier.
#[derive(Debug, Default)]
pub struct OpCounters {
    calls: Count,
    errors: AtomicU64,
    bytes: AtomicU64,
    max_nanos: AtomicU64,
    latency: Arc<Latency>,
}

/// [`OpCounters`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpFigures {
    pub calls: u64,
    pub errors: u64,
    pub bytes: u64,
    pub total: Duration,
    pub max: Duration,
    /// By bucket.
    pub(super) latency: Box<[u64]>,
}

impl Default for OpFigures {
    fn default() -> Self {
        OpCounters::default().figures()
    }
}

impl OpCounters {
    /// Those whose calls and latency are in these cells of a recorder.
    pub fn new(calls: Count, latency: Arc<Latency>) -> Self {
        OpCounters { calls, latency, ..OpCounters::default() }
    }

    pub fn record(&self, call: &Call) {
        let nanos = nanos(call.took);
        self.calls.increment(1);
        if call.errno.is_some() {
            self.errors.fetch_add(1, Relaxed);
        }
        if call.bytes > 0 {
            self.bytes.fetch_add(call.bytes, Relaxed);
        }
        // Rarely the longest: checking first costs no more than a read.
        if nanos > self.max_nanos.load(Relaxed) {
            self.max_nanos.fetch_max(nanos, Relaxed);
        }
        self.latency.add(nanos);
    }

    /// Counts `calls` calls that have no duration of their own.
    pub fn record_untimed(&self, calls: u64) {
        self.calls.increment(calls);
    }

    /// Calls and bytes so far.
    pub fn moved(&self) -> (u64, u64) {
        (self.calls.get(), self.bytes.load(Relaxed))
    }

    pub fn figures(&self) -> OpFigures {
        let (latency, total) = self.latency.figures();
        OpFigures {
            calls: self.calls.get(),
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            total,
            max: Duration::from_nanos(self.max_nanos.load(Relaxed)),
            latency,
        }
    }
}

impl OpFigures {
    /// Adds the figures of the same operation from elsewhere.
    pub fn add(&mut self, other: &OpFigures) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.total += other.total;
        self.max = self.max.max(other.max);
        self.latency.iter_mut().zip(&*other.latency).for_each(|(mine, other)| *mine += other);
    }

    /// The difference to `before`. The longest call is taken from its bucket: at most 6.3 % too high, never above the
    /// longest of all.
    pub fn since(&self, before: &OpFigures) -> OpFigures {
        let latency: Box<[u64]> =
            self.latency.iter().zip(&*before.latency).map(|(now, before)| now.saturating_sub(*before)).collect();
        let longest = latency.iter().rposition(|calls| *calls > 0);
        let max = longest.map_or(Duration::ZERO, |bucket| upper_bound(bucket).unwrap_or(self.max).min(self.max));
        OpFigures {
            calls: self.calls.saturating_sub(before.calls),
            errors: self.errors.saturating_sub(before.errors),
            bytes: self.bytes.saturating_sub(before.bytes),
            total: self.total.saturating_sub(before.total),
            max,
            latency,
        }
    }

    /// The bound below which at least `share` (0 to 1) of the timed calls stayed; `None` without timed calls. At most
    /// 6.3 % too high, and never above the longest call.
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
        Some(upper_bound(bucket).map_or(self.max, |bound| bound.min(self.max)))
    }
}

/// Calls of a [`Latency`] by powers of two of their duration: see [`BUCKETS`].
pub fn by_powers_of_two(latency: &[u64]) -> [u64; BUCKETS] {
    std::array::from_fn(|i| latency[16 * i..16 * (i + 1)].iter().sum())
}

/// Saturates after 584 years.
pub fn nanos(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

/// The bucket of a duration, in sixteenths of a microsecond: the first sixteen are one wide, then there are sixteen per
/// power of two.
fn bucket(nanos: u64) -> usize {
    let sixteenths = nanos / 1000 * 16 + nanos % 1000 * 16 / 1000;
    let power = sixteenths.max(1).ilog2() as usize;
    match power.checked_sub(4) {
        None => sixteenths as usize,
        Some(shift) => (16 * (shift + 1) + (sixteenths >> shift) as usize % 16).min(FINE - 1),
    }
}

/// The upper bound of a bucket; the last one has none.
fn upper_bound(bucket: usize) -> Option<Duration> {
    if bucket + 1 >= FINE {
        return None;
    }
    let next = bucket as u64 + 1;
    let sixteenths = if next < 16 { next } else { (16 + next % 16) << (next / 16 - 1) };
    Some(Duration::from_nanos((sixteenths * 1000).div_ceil(16)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(micros: u64, bytes: u64, errno: Option<Errno>) -> Call {
        let (op, tier) = (Op::Read, Tier::Fast);
        Call { op, began: Duration::ZERO, took: Duration::from_micros(micros), offset: 0, bytes, errno, tier }
    }

    #[test]
    fn every_operation_has_its_own_slot_and_name() {
        for (slot, op) in Op::ALL.iter().enumerate() {
            assert_eq!(*op as usize, slot, "{op:?}");
        }
        let names: std::collections::HashSet<_> = Op::ALL.iter().map(|op| op.name()).collect();
        assert_eq!(names.len(), Op::ALL.len());
        let in_json = Op::ALL.map(|op| serde_json::to_value(op).expect("a name"));
        assert_eq!(in_json, Op::ALL.map(|op| serde_json::Value::from(op.name())));
    }

    #[test]
    fn an_operation_sums_and_keeps_the_longest() {
        let counters = OpCounters::default();
        counters.record(&call(10, 4096, None));
        counters.record(&call(30, 0, Some(Errno::EIO)));
        let mut figures = counters.figures();
        figures.add(&counters.figures());
        assert_eq!((figures.calls, figures.errors, figures.bytes), (4, 2, 8192));
        assert_eq!((figures.total, figures.max), (Duration::from_micros(80), Duration::from_micros(30)));
        assert_eq!(figures.quantile(0.5), Some(Duration::from_nanos(10_500)));
    }

    #[test]
    fn what_came_since_is_told_with_its_own_longest() {
        let counters = OpCounters::default();
        counters.record(&call(9_000, 5, None));
        let before = counters.figures();
        counters.record(&call(100, 7, Some(Errno::EIO)));
        let since = counters.figures().since(&before);
        assert_eq!((since.calls, since.errors, since.bytes, since.total), (1, 1, 7, Duration::from_micros(100)));
        assert!(since.max >= Duration::from_micros(100) && since.max <= Duration::from_micros(107), "{:?}", since.max);
        assert_eq!(before.since(&before).max, Duration::ZERO);
    }

    /// A duration lies below the bound of its bucket, by at most a sixteenth, and not below the bound of the previous
    /// one.
    #[test]
    fn a_bucket_holds_what_lies_between_its_bounds() {
        let nanos = (0..64).flat_map(|power| [0, 1, 7].map(|more| (1u64 << power) + more * ((1 << power) / 9)));
        for nanos in nanos.chain([0, 62, 63, 999, 1_000, 3_999, 4_000]) {
            let at = bucket(nanos);
            let below = upper_bound(at).is_none_or(|bound| {
                let bound = bound.as_nanos() as u64;
                nanos < bound && (bound - nanos) * 16 <= nanos + 1000 + bound % 16
            });
            let above = at == 0 || upper_bound(at - 1).is_some_and(|bound| nanos >= bound.as_nanos() as u64);
            assert!(below && above, "{nanos} ns are in bucket {at}");
        }
        assert_eq!(bucket(u64::MAX), FINE - 1);
    }

    #[test]
    fn powers_of_two_of_microseconds_are_told() {
        let counters = OpCounters::default();
        for micros in [0, 1, 3, 4, 1023, 1024, u64::MAX / 1000] {
            counters.record(&call(micros, 0, None));
        }
        let found = by_powers_of_two(&counters.figures().latency);
        let mut wanted = [0; BUCKETS];
        [0, 1, 2, 3, 10, 11, BUCKETS - 1].into_iter().for_each(|at| wanted[at] += 1);
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_quantile_bounds_its_share_of_the_calls() {
        let counters = OpCounters::default();
        assert_eq!(counters.figures().quantile(0.5), None);
        for _ in 0..99 {
            counters.record(&call(3, 0, None));
        }
        counters.record(&call(5_000, 0, None));
        let figures = counters.figures();
        assert_eq!(figures.quantile(0.5), Some(Duration::from_nanos(3125)));
        assert_eq!(figures.quantile(0.99), Some(Duration::from_nanos(3125)));
        assert_eq!(figures.quantile(1.0), Some(Duration::from_micros(5_000)), "not above the longest call");
    }
}
