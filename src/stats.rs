//! What was observed: one registry of exact counters, per operation and per path, and its rendering.
//!
//! It knows neither the file system nor the tiers: both push plain numbers into it, and what it renders is a plain
//! [`render::Snapshot`] that its caller fills. Every table has a limit, and what went over it is counted.

pub mod counters;
pub mod metrics;
pub mod queue;

pub mod render;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

use counters::{Call, Op, OpCounters, OpFigures, PathCounters, PathFigures};

/// How many paths are told apart unless the caller says otherwise.
pub const PATHS_MAX: usize = 65_536;

/// The registry. Shared by every thread; no lock is held while counting.
#[derive(Debug)]
pub struct Stats {
    ops: [OpCounters; Op::ALL.len()],
    paths: DashMap<u64, Arc<Path>>,
    /// Entries of `paths`; its own `len` would lock every shard.
    known: AtomicUsize,
    paths_max: usize,
    /// Where calls are counted that no path has room for.
    unattributed: Arc<Path>,
    unattributed_calls: AtomicU64,
}

/// One path's counters. A handle keeps it while it is open, so that a read or write touches no table.
#[derive(Debug, Default)]
pub struct Path {
    counters: PathCounters,
    /// The path when it was first seen; it may have been renamed or removed since.
    first: Option<String>,
}

/// How full the table of paths is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PathTotals {
    pub known: usize,
    pub limit: usize,
    /// Calls counted per operation only, because the table was full.
    pub unattributed_calls: u64,
}

impl Default for Stats {
    fn default() -> Self {
        Stats::new(PATHS_MAX)
    }
}

impl Stats {
    /// A registry that tells at most `paths_max` paths apart.
    pub fn new(paths_max: usize) -> Self {
        Stats {
            ops: std::array::from_fn(|_| OpCounters::default()),
            paths: DashMap::new(),
            known: AtomicUsize::new(0),
            paths_max,
            unattributed: Arc::default(),
            unattributed_calls: AtomicU64::new(0),
        }
    }

    /// The counters of an inode's path, for [`Stats::record`]. `name` is asked once, when the path is new.
    pub fn path(&self, ino: u64, name: impl FnOnce() -> Option<String>) -> Arc<Path> {
        if let Some(path) = self.paths.get(&ino) {
            return Arc::clone(&path);
        }
        // Two threads may both see the last free place: the table is then a few entries over its limit, never
        // unbounded.
        if self.known.load(Relaxed) >= self.paths_max {
            return Arc::clone(&self.unattributed);
        }
        // Asked before the table is locked: a name comes from the engine, which has locks of its own.
        let first = name();
        match self.paths.entry(ino) {
            Entry::Occupied(entry) => Arc::clone(entry.get()),
            Entry::Vacant(entry) => {
                self.known.fetch_add(1, Relaxed);
                Arc::clone(&entry.insert(Arc::new(Path { counters: PathCounters::default(), first })))
            }
        }
    }

    /// Counts one call, for its operation and for its path.
    pub fn record(&self, call: &Call, path: &Arc<Path>) {
        self.ops[call.op as usize].record(call);
        path.counters.record(call);
        if Arc::ptr_eq(path, &self.unattributed) {
            self.unattributed_calls.fetch_add(1, Relaxed);
        }
    }

    /// Counts calls that have neither a path nor a duration (the kernel dropping inodes from its cache).
    pub fn record_untimed(&self, op: Op, calls: u64) {
        self.ops[op as usize].record_untimed(calls);
    }

    /// The operations that were called at least once, in the order of [`Op::ALL`].
    pub fn operations(&self) -> Vec<(Op, OpFigures)> {
        Op::ALL
            .iter()
            .map(|op| (*op, self.ops[*op as usize].figures()))
            .filter(|(_, figures)| figures.calls > 0)
            .collect()
    }

    pub fn path_totals(&self) -> PathTotals {
        PathTotals {
            known: self.known.load(Relaxed),
            limit: self.paths_max,
            unattributed_calls: self.unattributed_calls.load(Relaxed),
        }
    }

    /// The paths that took the most time, at most `limit`, busiest first. `name` gives an inode's path of today; where
    /// it has none any more, the path it was first seen under is shown. One path known by several inode numbers is one
    /// line.
    pub fn busiest(&self, limit: usize, name: impl Fn(u64) -> Option<String>) -> Vec<(String, PathFigures)> {
        // Copied out first: `name` asks the engine, and no table lock may be held then.
        let seen: Vec<(u64, Arc<Path>)> = self.paths.iter().map(|e| (*e.key(), Arc::clone(e.value()))).collect();
        let mut by_name: HashMap<String, PathFigures> = HashMap::new();
        for (ino, path) in seen {
            let shown = name(ino).or_else(|| path.first.clone()).unwrap_or_else(|| "?".into());
            by_name.entry(shown).or_default().add(&path.counters.figures());
        }
        let mut lines: Vec<_> = by_name.into_iter().collect();
        lines.sort_by(|(a, x), (b, y)| y.total.cmp(&x.total).then_with(|| a.cmp(b)));
        lines.truncate(limit);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn call(op: Op, bytes: u64) -> Call {
        Call { op, took: Duration::from_micros(bytes.max(1)), bytes, failed: false }
    }

    #[test]
    fn calls_are_counted_per_operation_and_per_path() {
        let stats = Stats::default();
        let a = stats.path(7, || Some("a".into()));
        stats.record(&call(Op::Write, 10), &a);
        stats.record(&call(Op::Write, 20), &stats.path(8, || Some("b".into())));
        stats.record_untimed(Op::Forget, 3);

        let operations = stats.operations();
        assert_eq!(
            operations.iter().map(|(op, f)| (*op, f.calls, f.bytes)).collect::<Vec<_>>(),
            [(Op::Forget, 3, 0), (Op::Write, 2, 30)]
        );
        let busiest = stats.busiest(1, |ino| (ino == 8).then(|| "b".into()));
        assert_eq!(busiest.len(), 1);
        assert_eq!((busiest[0].0.as_str(), busiest[0].1.bytes_written), ("b", 20));
    }

    #[test]
    fn a_removed_path_keeps_its_first_name_and_a_renamed_one_shows_the_new() {
        let stats = Stats::default();
        stats.record(&call(Op::Read, 1), &stats.path(7, || Some("gone".into())));
        stats.record(&call(Op::Read, 2), &stats.path(8, || Some("old".into())));
        let lines = stats.busiest(9, |ino| (ino == 8).then(|| "new".into()));
        assert_eq!(lines.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["new", "gone"]);
    }

    #[test]
    fn one_path_under_two_inode_numbers_is_one_line() {
        let stats = Stats::default();
        stats.record(&call(Op::Write, 1), &stats.path(7, || None));
        stats.record(&call(Op::Write, 2), &stats.path(8, || None));
        let lines = stats.busiest(9, |_| Some("ckpt".into()));
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].1.writes, lines[0].1.bytes_written), (2, 3));
    }

    #[test]
    fn beyond_the_limit_calls_are_counted_as_unattributed() {
        let stats = Stats::new(1);
        stats.record(&call(Op::Read, 1), &stats.path(1, || Some("a".into())));
        stats.record(&call(Op::Read, 1), &stats.path(2, || Some("b".into())));
        stats.record(&call(Op::Read, 1), &stats.path(1, || None));
        assert_eq!(stats.path_totals(), PathTotals { known: 1, limit: 1, unattributed_calls: 1 });
        assert_eq!(stats.operations()[0].1.calls, 3, "the operation's own figures stay exact");
    }
}
