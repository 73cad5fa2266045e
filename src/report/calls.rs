//! The figures that only traced calls give, from one pass over them: busy time, and the throughput of the slow tier by
//! number of readers. Pure.

use std::collections::HashMap;
use std::time::Duration;

use crate::stats::counters::{Op, Tier, nanos};
use crate::stats::recording::Recording;
use crate::stats::traced::Traced;

/// How many ranges of a [`Union`] stay open for late calls.
const RANGES_MAX: usize = 2048;
/// The most spans in which readers are counted: a tenth of a second each, or longer if there would be more.
const SPANS_MAX: u64 = 4096;
const SPAN: u64 = 100_000_000;

/// What the traced calls of a time show.
#[derive(Clone, Debug, Default)]
pub struct CallSummary {
    pub calls: u64,
    /// When the first one began and the last one ended.
    pub from: Duration,
    pub until: Duration,
    /// By process.
    pub busy: Vec<(u64, Busy)>,
    pub readers: Vec<Readers>,
}

/// Time in which at least one call of a kind was in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    pub read: Duration,
    /// Writes and syncs, as in Darshan.
    pub write: Duration,
    pub meta: Duration,
    /// Any of them.
    pub any: Duration,
    /// From the beginning of the first call to the end of the last.
    pub active: (Duration, Duration),
}

/// How fast the slow tier was read at a given number of concurrent reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Readers {
    /// The number of reads, up to this and more than half of it: 1, 2, 4, 8, ...
    pub up_to: u64,
    /// Seconds at this level.
    pub seconds: f64,
    pub bytes: f64,
}

impl Readers {
    /// Bytes per second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes / self.seconds } else { 0.0 }
    }
}

/// Processes the calls that began between two moments.
pub fn summarize(recording: &mut Recording, from: Duration, until: Duration) -> CallSummary {
    let mut seen = Looking { readers: Concurrency::new(from, until), ..Looking::default() };
    recording.calls(from, until, |traced| seen.add(traced));
    seen.summary(from)
}

#[derive(Debug, Default)]
struct ProcessCalls {
    /// Reads, writes, the rest, and any of them.
    unions: [Union; 4],
    active: Option<(u64, u64)>,
}

#[derive(Default)]
struct Looking {
    calls: u64,
    from: Option<u64>,
    until: u64,
    busy: HashMap<u32, ProcessCalls>,
    readers: Concurrency,
}

impl Looking {
    fn add(&mut self, traced: &Traced) {
        let (began, ended) = (nanos(traced.call.began), nanos(traced.ended()));
        self.calls += 1;
        self.from = Some(self.from.map_or(began, |from| from.min(began)));
        self.until = self.until.max(ended);
        let kind = match traced.call.op {
            Op::Read => 0,
            Op::Write | Op::Fsync | Op::Fdatasync => 1,
            _ => 2,
        };
        let process = self.busy.entry(traced.process).or_default();
        process.unions[kind].add(began, ended);
        process.unions[3].add(began, ended);
        let (first, last) = process.active.unwrap_or((began, ended));
        process.active = Some((first.min(began), last.max(ended)));
        if kind == 0 && traced.call.tier == Tier::Slow && traced.call.bytes > 0 {
            self.readers.add(began, ended, traced.call.bytes);
        }
    }

    fn summary(self, from: Duration) -> CallSummary {
        let busy = |(number, process): (u32, ProcessCalls)| {
            let [read, write, meta, any] = process.unions.map(|union| union.length());
            let (first, last) = process.active.unwrap_or_default();
            let active = (Duration::from_nanos(first), Duration::from_nanos(last));
            (u64::from(number), Busy { read, write, meta, any, active })
        };
        let mut busy: Vec<_> = self.busy.into_iter().map(busy).collect();
        busy.sort_by_key(|(process, _)| *process);
        CallSummary {
            calls: self.calls,
            from: self.from.map_or(from, Duration::from_nanos),
            until: Duration::from_nanos(self.until).max(from),
            busy,
            readers: self.readers.levels(),
        }
    }
}

/// The length of a union of ranges that come nearly in order: a range that comes after more than [`RANGES_MAX`] later
/// ones counts only its part after the settled ones.
#[derive(Debug, Default)]
struct Union {
    ranges: Vec<(u64, u64)>,
    settled: u64,
    horizon: u64,
}

impl Union {
    fn add(&mut self, from: u64, to: u64) {
        let from = from.max(self.horizon);
        if from >= to {
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if from >= last.0 && from <= last.1 => last.1 = last.1.max(to),
            Some(last) if from < last.0 => self.insert(from, to),
            _ => self.ranges.push((from, to)),
        }
        if self.ranges.len() >= RANGES_MAX {
            let old = self.ranges.drain(..RANGES_MAX / 2);
            (self.settled, self.horizon) =
                old.fold((self.settled, 0), |(sum, _), range| (sum + (range.1 - range.0), range.1));
        }
    }

    fn insert(&mut self, from: u64, to: u64) {
        let first = self.ranges.partition_point(|range| range.1 < from);
        let behind = self.ranges.partition_point(|range| range.0 <= to);
        if first == behind {
            self.ranges.insert(first, (from, to));
        } else {
            let joined = (self.ranges[first].0.min(from), self.ranges[behind - 1].1.max(to));
            self.ranges.splice(first..behind, [joined]);
        }
    }

    fn length(&self) -> Duration {
        let open: u64 = self.ranges.iter().map(|range| range.1 - range.0).sum();
        Duration::from_nanos(self.settled + open)
    }
}

/// Concurrent reads and bytes, span by span: a call over several spans is noted where it begins and where it ends.
#[derive(Debug, Default)]
struct Concurrency {
    from: u64,
    width: u64,
    /// Nanoseconds and bytes of calls in the spans where they begin or end.
    edges: Vec<(f64, f64)>,
    /// The change in calls, and in bytes per nanosecond, from the previous span.
    steps: Vec<(f64, f64)>,
}

impl Concurrency {
    fn new(from: Duration, until: Duration) -> Self {
        let (from, until) = (nanos(from), nanos(until));
        let whole = until.saturating_sub(from);
        Concurrency { from, width: SPAN.max(whole / SPANS_MAX + 1), ..Concurrency::default() }
    }

    fn add(&mut self, began: u64, ended: u64, bytes: u64) {
        let last = self.width.saturating_mul(SPANS_MAX) - 1;
        let (from, to) = (began.saturating_sub(self.from).min(last), ended.saturating_sub(self.from).min(last));
        let (first, behind) = ((from / self.width) as usize, (to / self.width) as usize);
        if self.edges.len() <= behind + 1 {
            self.edges.resize(behind + 2, (0.0, 0.0));
            self.steps.resize(behind + 2, (0.0, 0.0));
        }
        let rate = bytes as f64 / (to - from).max(1) as f64;
        let mut edge = |span: usize, nanos: u64| {
            self.edges[span].0 += nanos as f64;
            self.edges[span].1 += nanos as f64 * rate;
        };
        if first == behind {
            edge(first, (to - from).max(1));
            return;
        }
        edge(first, (first as u64 + 1) * self.width - from);
        edge(behind, to - behind as u64 * self.width);
        let mut step = |span: usize, sign: f64| {
            self.steps[span].0 += sign;
            self.steps[span].1 += sign * rate;
        };
        step(first + 1, 1.0);
        step(behind, -1.0);
    }

    fn levels(&self) -> Vec<Readers> {
        let (width, mut through) = (self.width as f64, (0.0, 0.0));
        let mut levels: Vec<Readers> = Vec::new();
        for (edge, step) in self.edges.iter().zip(&self.steps) {
            through = (through.0 + step.0, through.1 + step.1);
            let (nanos, bytes) = (edge.0 + through.0 * width, edge.1 + through.1 * width);
            if nanos < 1.0 {
                continue;
            }
            // If it was idle for a part of the span, one reader was at work for the rest.
            let readers = (nanos / width).max(1.0);
            let level = readers.round().log2().ceil() as usize;
            while levels.len() <= level {
                levels.push(Readers { up_to: 1 << levels.len(), ..Readers::default() });
            }
            levels[level].seconds += nanos / readers / 1e9;
            levels[level].bytes += bytes;
        }
        levels.retain(|level| level.seconds > 0.0);
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_once_whatever_the_order() {
        let mut union = Union::default();
        for (from, to) in [(10, 20), (15, 30), (40, 50), (45, 46), (0, 12), (30, 40), (60, 60)] {
            union.add(from, to);
        }
        assert_eq!((union.length(), union.ranges.len()), (Duration::from_nanos(50), 1));
        let mut many = Union::default();
        (0..10_000).for_each(|n| many.add(10 * n, 10 * n + 4));
        assert_eq!(many.length(), Duration::from_nanos(40_000));
        assert!(many.ranges.len() < RANGES_MAX);
        many.add(0, 100_001);
        assert!(many.length() > Duration::from_nanos(40_000) && many.length() <= Duration::from_nanos(100_001));
    }

    /// One reader for a second at 1 MB/s, then four for a second at 2 MB/s together.
    #[test]
    fn throughput_is_told_for_each_number_of_readers() {
        let second = 1_000_000_000;
        let mut found = Concurrency::new(Duration::ZERO, Duration::from_secs(2));
        (0..100).for_each(|n| found.add(n * second / 100, (n + 1) * second / 100, 10_000));
        (0..4).for_each(|_| found.add(second, 2 * second, 500_000));
        let levels: Vec<_> =
            found.levels().iter().map(|level| (level.up_to, level.seconds.round(), level.rate().round())).collect();
        assert_eq!(levels, [(1, 1.0, 1_000_000.0), (4, 1.0, 2_000_000.0)]);
    }

    #[test]
    fn a_reader_that_pauses_is_one_reader() {
        let mut found = Concurrency::new(Duration::ZERO, Duration::from_secs(1));
        (0..10).for_each(|n| found.add(n * SPAN, n * SPAN + SPAN / 4, 1_000));
        let levels = found.levels();
        assert_eq!((levels.len(), levels[0].up_to), (1, 1));
        assert!((levels[0].seconds - 0.25).abs() < 1e-6 && (levels[0].rate() - 40_000.0).abs() < 1.0, "{levels:?}");
    }

    #[test]
    fn no_moment_overflows() {
        let mut found = Concurrency::new(Duration::ZERO, Duration::MAX);
        let mut union = Union::default();
        for (from, to) in [(0, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX), (5, u64::MAX)] {
            found.add(from, to.max(from), u64::MAX);
            union.add(from, to);
        }
        assert_eq!(union.length(), Duration::from_nanos(u64::MAX));
        assert!(found.levels().len() < 80);
    }
}
