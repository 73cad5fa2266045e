//! The changes between two looks at a mount. Pure: counters in, rates out.
//!
//! All counters start at 0 with the daemon, so after a new mount in between everything counts as new.

use std::collections::HashMap;

use serde::Serialize;

use super::snapshot::{Dated, FlowTotals, ProcessTable, Snapshot};
use crate::stats::files::{ActiveFiles, Activity};
use crate::stats::status::{Figures, Operation};

/// Between two snapshots.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct Delta {
    /// Seconds of the mount's clock.
    pub(super) span: f64,
    /// `None`: nothing is counted.
    pub(super) amounts: Option<FlowTotals>,
    /// Copied to the slow tier, counted or not.
    pub(super) drained: u64,
    /// The operations that were ever called.
    pub(super) operations: Vec<OpChange>,
    pub(super) files: Vec<ActivityChange>,
    pub(super) processes: Vec<ActivityChange>,
}

/// One operation. Times in seconds; a percentile is an upper bound.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct OpChange {
    pub(super) op: String,
    pub(super) calls: u64,
    pub(super) errors: u64,
    pub(super) bytes: u64,
    pub(super) time: f64,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    /// Served by the slow tier.
    pub(super) slow_calls: u64,
    /// Since the mount was made.
    #[serde(skip)]
    pub(super) all_calls: u64,
}

/// The calls on one file, or of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct ActivityChange {
    /// The path, or a process's command.
    pub(super) name: String,
    pub(super) pid: Option<u64>,
    pub(super) cgroup: String,
    /// The seconds in which `new` came; `None` at the first look.
    pub(super) span: Option<f64>,
    pub(super) new: Activity,
    pub(super) all: Activity,
}

impl Delta {
    /// `None` if the mount's clock has not advanced.
    pub(in crate::cli) fn between(before: &Snapshot, now: &Snapshot) -> Option<Delta> {
        let (total, total_before) = (now.timeline.total(), before.timeline.total());
        let anew = now.stats.mounted_for < before.stats.mounted_for || total.calls < total_before.calls;
        let nothing = Snapshot::default();
        let (before, total_before) = if anew { (&nothing, FlowTotals::default()) } else { (before, total_before) };
        let (span, amounts) = match now.stats.profile {
            true => (now.timeline.until - before.timeline.until, Some(total.since(&total_before))),
            false => (now.stats.mounted_for.as_secs_f64() - before.stats.mounted_for.as_secs_f64(), None),
        };
        let copied = now.stats.pipeline.drained_bytes.saturating_sub(before.stats.pipeline.drained_bytes);
        (span > 0.0).then(|| Delta {
            span,
            amounts,
            drained: amounts.map_or(copied, |amounts| amounts.drained),
            operations: operations(&before.stats.operations, &now.stats.operations),
            files: now.files.as_ref().map_or_else(Vec::new, |now| files(before.files.as_ref(), now, anew)),
            processes: now
                .processes
                .as_ref()
                .map_or_else(Vec::new, |now| processes(before.processes.as_ref(), now, anew)),
        })
    }

    /// The bound of an operation's 99th percentile, in seconds.
    pub(super) fn p99(&self, op: &str) -> Option<f64> {
        self.operations.iter().find(|change| change.op == op)?.p99
    }

    pub(super) fn per_second(&self, amount: u64) -> f64 {
        amount as f64 / self.span
    }
}

fn operations(before: &[Operation], now: &[Operation]) -> Vec<OpChange> {
    let slow = |op: &Operation| op.tiers.get("slow").map_or(0, |slow| slow.calls);
    let nothing = Operation::default();
    let one = |now: &Operation| {
        let before = before.iter().find(|before| before.op == now.op).unwrap_or(&nothing);
        let latency = LatencyBuckets::between(&before.all, &now.all);
        OpChange {
            op: now.op.clone(),
            calls: now.all.calls.saturating_sub(before.all.calls),
            errors: now.all.errors.saturating_sub(before.all.errors),
            bytes: now.all.bytes.saturating_sub(before.all.bytes),
            time: now.all.total.saturating_sub(before.all.total).as_secs_f64(),
            p50: latency.below(0.5),
            p99: latency.below(0.99),
            slow_calls: slow(now).saturating_sub(slow(before)),
            all_calls: now.all.calls,
        }
    };
    now.iter().map(one).collect()
}

/// Calls by powers of two of their duration.
struct LatencyBuckets {
    buckets: Vec<u64>,
    /// The longest call of all.
    max: f64,
}

impl LatencyBuckets {
    fn between(before: &Figures, now: &Figures) -> LatencyBuckets {
        let pairs = now.latency_log2_us.iter().zip(before.latency_log2_us);
        let buckets = pairs.map(|(now, before)| now.saturating_sub(before)).collect();
        LatencyBuckets { buckets, max: now.max.as_secs_f64() }
    }

    /// An upper bound for at least this share of the calls: up to twice too high, never above the longest call.
    fn below(&self, share: f64) -> Option<f64> {
        let timed = self.buckets.iter().fold(0, |sum: u64, calls| sum.saturating_add(*calls));
        let wanted = ((timed as f64 * share).ceil() as u64).clamp(1, timed.max(1));
        let mut seen: u64 = 0;
        let bucket = self.buckets.iter().position(|calls| {
            seen = seen.saturating_add(*calls);
            seen >= wanted
        })?;
        // The last one has no bound.
        let last = bucket + 1 == self.buckets.len();
        Some(if last { self.max } else { (2f64.powi(bucket as i32) * 1e-6).min(self.max) })
    }
}

/// Merges files with one path: a file gets a new number after the kernel has forgotten it.
fn files(before: Option<&Dated<ActiveFiles>>, now: &Dated<ActiveFiles>, anew: bool) -> Vec<ActivityChange> {
    let known: HashMap<u64, &Activity> =
        before.into_iter().flat_map(|before| before.table.files.iter().map(|file| (file.ino, &file.sums))).collect();
    let span = span(before.map(|before| before.at), now.at, anew);
    let (mut all, mut places): (Vec<ActivityChange>, HashMap<&str, usize>) = (Vec::new(), HashMap::new());
    for file in &now.table.files {
        let new = file.sums.since(known.get(&file.ino).copied().unwrap_or(&file.before));
        let place = *places.entry(&file.path).or_insert(all.len());
        if place == all.len() {
            all.push(ActivityChange { name: file.path.clone(), span, ..ActivityChange::default() });
        }
        if span.is_some() {
            all[place].new.add(&new);
        }
        all[place].all.add(&file.sums);
    }
    all
}

fn processes(before: Option<&Dated<ProcessTable>>, now: &Dated<ProcessTable>, anew: bool) -> Vec<ActivityChange> {
    let known: HashMap<u64, &Activity> = before
        .into_iter()
        .flat_map(|before| before.table.processes.iter().map(|process| (process.number, &process.sums)))
        .collect();
    let span = span(before.map(|before| before.at), now.at, anew);
    let nothing = Activity::default();
    let one = |process: &super::snapshot::ProcessEntry| ActivityChange {
        name: if process.pid.is_some() { process.command.clone() } else { "(not known)".to_owned() },
        pid: process.pid,
        cgroup: process.cgroup.clone(),
        span,
        new: span
            .map(|_| process.sums.since(known.get(&process.number).copied().unwrap_or(&nothing)))
            .unwrap_or_default(),
        all: process.sums.clone(),
    };
    now.table.processes.iter().map(one).collect()
}

/// Seconds between the looks at a table.
fn span(before: Option<f64>, now: f64, anew: bool) -> Option<f64> {
    let before = if anew { Some(0.0) } else { before };
    before.map(|before| now - before).filter(|span| *span > 0.0)
}

impl ActivityChange {
    pub(super) fn per_second(&self, amount: u64) -> Option<f64> {
        self.span.map(|span| amount as f64 / span)
    }

    /// The share of the time spent in calls: more than 1 if calls overlap.
    pub(super) fn busy(&self) -> Option<f64> {
        self.span.map(|span| self.new.time.as_secs_f64() / span)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::top::snapshot::{FlowTimeline, ProcessEntry};
    use crate::stats::files::ActiveFile;

    /// A snapshot at `until` seconds after which so much was read.
    pub(in crate::cli::top) fn snapshot(until: f64, read: u64, calls: u64) -> Snapshot {
        let mut figures = Figures {
            calls,
            bytes: read,
            total: Duration::from_secs_f64(until / 10.0),
            max: Duration::from_millis(3),
            ..Figures::default()
        };
        (figures.latency_log2_us[3], figures.latency_log2_us[12]) = (calls - calls / 50, calls / 50);
        let operation =
            Operation { op: "read".into(), all: figures.clone(), tiers: [("slow".to_owned(), figures)].into() };
        let mut snapshot = Snapshot::default();
        (snapshot.stats.mounted_for, snapshot.stats.profile) = (Duration::from_secs_f64(until), true);
        snapshot.stats.operations = vec![operation];
        snapshot.timeline =
            FlowTimeline { span: until, until, read_slow: vec![read], calls: vec![calls], ..FlowTimeline::default() };
        snapshot
    }

    fn sums(bytes: u64) -> Activity {
        Activity { opens: 1, bytes_read: bytes, time: Duration::from_millis(bytes), ..Activity::default() }
    }

    fn file(ino: u64, path: &str, bytes: u64, before: u64) -> ActiveFile {
        let before = if before > 0 { sums(before) } else { Activity::default() };
        ActiveFile { ino, path: path.into(), sums: sums(bytes), before }
    }

    fn files(at: f64, files: Vec<ActiveFile>) -> Option<Dated<ActiveFiles>> {
        Some(Dated { at, table: ActiveFiles { files, known: 9 } })
    }

    fn rates(busy: &[ActivityChange]) -> Vec<(&str, u64, Option<f64>)> {
        busy.iter().map(|busy| (&*busy.name, busy.all.bytes(), busy.per_second(busy.new.bytes_read))).collect()
    }

    #[test]
    fn two_looks_give_what_came_between_them() {
        let change = Delta::between(&snapshot(10.0, 1000, 100), &snapshot(12.0, 5000, 300)).expect("time went on");
        let amounts = change.amounts.expect("counted");
        assert_eq!((change.span, amounts.read_slow, amounts.read_fast, amounts.calls), (2.0, 4000, 0, 200));
        assert_eq!(change.per_second(amounts.read_slow), 2000.0);
        let read = &change.operations[0];
        assert_eq!((read.calls, read.bytes, read.slow_calls, read.all_calls), (200, 4000, 200, 300));
        assert_eq!((read.p50, change.p99("read")), (Some(8e-6), Some(0.003)), "never above the longest call");
        assert_eq!(change.p99("write"), None);
        assert!(Delta::between(&snapshot(10.0, 1, 1), &snapshot(10.0, 2, 2)).is_none(), "the clock stands");
    }

    #[test]
    fn a_percentile_is_of_the_calls_in_between() {
        let idle = Delta::between(&snapshot(10.0, 1000, 100), &snapshot(11.0, 1000, 100)).expect("time went on");
        assert_eq!((idle.operations[0].p50, idle.p99("read")), (None, None));
        let latency = |buckets: &[u64]| LatencyBuckets { buckets: buckets.to_vec(), max: 99.0 };
        assert_eq!(latency(&[1, 98, 1]).below(0.99), Some(2e-6));
        assert_eq!(latency(&[1, 97, 2]).below(0.99), Some(99.0), "what is in the last bucket is told by the longest");
        assert_eq!(latency(&[]).below(0.5), None);
    }

    /// A daemon that was started anew counts from nothing: what it tells is all new, in the time since it was mounted.
    #[test]
    fn counters_that_went_back_are_those_of_a_new_daemon() {
        let mut now = snapshot(4.0, 800, 20);
        now.files = files(4.0, vec![file(1, "/f", 400, 0)]);
        let mut before = snapshot(500.0, 90_000, 9_000);
        before.files = files(500.0, vec![file(1, "/g", 90_000, 0)]);
        let change = Delta::between(&before, &now).expect("its clock went on");
        assert_eq!((change.span, change.amounts.map(|amounts| amounts.read_slow)), (4.0, Some(800)));
        assert_eq!((change.operations[0].calls, rates(&change.files)), (20, vec![("/f", 400, Some(100.0))]));
        // It has been there for longer than the one before was, when that was looked at.
        let change = Delta::between(&snapshot(2.0, 90_000, 9_000), &now).expect("its clock went on");
        assert_eq!((change.span, change.amounts.map(|amounts| amounts.read_slow)), (4.0, Some(800)));
    }

    #[test]
    fn without_a_profile_only_the_drain_is_known() {
        let (mut before, mut now) = (Snapshot::default(), Snapshot::default());
        (before.stats.mounted_for, now.stats.mounted_for) = (Duration::from_secs(1), Duration::from_secs(3));
        (before.stats.pipeline.drained_bytes, now.stats.pipeline.drained_bytes) = (100, 700);
        let change = Delta::between(&before, &now).expect("time went on");
        assert_eq!((change.span, change.amounts, change.drained), (2.0, None, 600));
    }

    #[test]
    fn a_file_that_is_met_anew_has_done_what_it_did_since() {
        let with = |until: f64, all: Vec<ActiveFile>| {
            let mut snapshot = snapshot(until, 0, 0);
            snapshot.files = files(until, all);
            snapshot
        };
        let before = with(10.0, vec![file(1, "/a", 100, 0), file(4, "/d", 70, 0)]);
        let now = with(12.0, vec![file(1, "/b", 300, 0), file(2, "/new", 50, 0), file(3, "/old", 500, 480)]);
        let change = Delta::between(&before, &now).expect("time went on");
        let wanted = [("/b", 300, Some(100.0)), ("/new", 50, Some(25.0)), ("/old", 500, Some(10.0))];
        assert_eq!(rates(&change.files), wanted, "a rename changes nothing");
        let first = Delta::between(&snapshot(10.0, 0, 0), &now).expect("time went on");
        assert_eq!(rates(&first.files)[0], ("/b", 300, None), "one look gives no rate");
        let twice = with(12.0, vec![file(1, "/a", 300, 0), file(5, "/a", 40, 0)]);
        let change = Delta::between(&before, &twice).expect("time went on");
        assert_eq!(rates(&change.files), [("/a", 340, Some(120.0))], "one path is one file");
    }

    #[test]
    fn a_process_is_known_by_its_number() {
        let with = |until: f64, bytes: u64| {
            let mut snapshot = snapshot(until, 0, 0);
            let process = |number, pid| ProcessEntry {
                number,
                pid,
                command: "python3".into(),
                sums: sums(bytes),
                ..ProcessEntry::default()
            };
            let processes = vec![process(0, None), process(bytes, Some(7))];
            snapshot.processes = Some(Dated { at: until, table: ProcessTable { processes } });
            snapshot
        };
        let change = Delta::between(&with(1.0, 100), &with(3.0, 500)).expect("time went on");
        // Another one with the same pid.
        assert_eq!(rates(&change.processes), [("(not known)", 500, Some(200.0)), ("python3", 500, Some(250.0))]);
        assert_eq!(change.processes[1].busy(), Some(0.25));
    }
}
