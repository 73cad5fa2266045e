//! From a recording to its summary. Pure.

use std::time::Duration;

use super::advice;
use super::calls::{self, Busy, CallSummary};
use super::rebuild;
use super::summary::{
    Completeness, Cost, Counted, Files, Job, LatencyQuantiles, Moved, Patterns, SizeClass, Spans, Staged, Summary,
    TierRow, percent, ratio, render_count, seconds_text, share,
};
use super::totals::{Speeds, Totals};
use crate::stats::access::{AccessPattern, SIZE_NAMES};
use crate::stats::counters::{Op, Tier};
use crate::stats::record::Field;
use crate::stats::recording::{Meta, RecordedHeat, RecordedOperation, RecordedProcess, RecordedTimeline, Recording};
use crate::stats::render;

/// The schema; changing a key requires another one.
const SCHEMA: u32 = 1;
/// No meaningful count is larger: a damaged or forged recording cannot make a sum overflow.
const COUNT_MAX: u64 = 1 << 53;
/// The most rows and spans of the heat map.
const HEAT_ROWS: usize = 48;
const HEAT_SPANS: usize = 480;

fn span_of(from: f64, until: f64) -> Duration {
    Duration::try_from_secs_f64((until - from).max(0.0)).unwrap_or(Duration::MAX)
}

impl Summary {
    /// Reads a whole recording. Unreadable parts are added to its flaws.
    pub fn of(recording: &mut Recording) -> Summary {
        rebuild::rebuild(recording);
        bounded(&mut recording.meta);
        let (from, until) = (recording.meta.from.max(0.0), recording.meta.until);
        let seen = calls::summarize(recording, span_of(0.0, from), span_of(0.0, until.max(from)));
        let totals = totals(recording);
        let meta = &recording.meta;
        let mut summary = Summary {
            schema: SCHEMA,
            job: job(meta),
            verdict: String::new(),
            advice: Vec::new(),
            completeness: completeness(recording, &seen),
            moved: moved(meta),
            cost: cost(&seen),
            operations: operations(&meta.operations),
            failures: meta.failures.clone(),
            latency: meta.operations.iter().filter_map(latency).collect(),
            sizes: sizes(&totals),
            common_sizes: totals.common_sizes.clone(),
            common_strides: totals.common_strides.clone(),
            patterns: patterns(&totals),
            files: files(&totals),
            spans: spans(&totals),
            tiers: Tier::ALL.map(|tier| tier_row(meta, tier)).into(),
            timeline: RecordedTimeline::default(),
            timeline_from: 0.0,
            heat: RecordedHeat::default(),
            heat_from: 0.0,
            staging: staging(&totals),
            checkpoints: meta.checkpoints.clone(),
            epochs: meta.epochs.clone(),
            workers: workers(meta),
            readers: seen.readers,
            windows: meta.windows.clone(),
            marks: meta.marks.clone(),
            plans: meta.plans.clone(),
            top: totals.top,
        };
        (summary.timeline_from, summary.timeline) = timeline(meta);
        (summary.heat_from, summary.heat) = heat(meta);
        summary.moved.drained = summary.timeline.drained.iter().fold(0, |sum, n| sum.saturating_add(*n));
        summary.completeness.flaws.clone_from(&recording.flaws);
        summary.verdict = verdict(&summary);
        summary.advice = advice::advise(&summary);
        summary
    }
}

/// Cuts down impossible counts, and sets invalid moments to 0.
pub(super) fn bounded(meta: &mut Meta) {
    let low = |n: &mut u64| *n = (*n).min(COUNT_MAX);
    for RecordedOperation { calls, errors, bytes, latency, .. } in &mut meta.operations {
        [calls, errors, bytes].into_iter().for_each(low);
        latency.iter_mut().for_each(|(_, calls)| low(calls));
        latency.truncate(1 << 10);
    }
    let moment = |n: &mut f64| *n = if n.is_finite() { n.clamp(0.0, 1e10) } else { 0.0 };
    [&mut meta.from, &mut meta.until].into_iter().for_each(moment);
    for epoch in &mut meta.epochs {
        [&mut epoch.began, &mut epoch.ended].into_iter().for_each(moment);
        epoch.ended = epoch.ended.max(epoch.began);
        [&mut epoch.bytes_fast, &mut epoch.bytes_slow].into_iter().for_each(low);
    }
    for checkpoint in &mut meta.checkpoints {
        [&mut checkpoint.began, &mut checkpoint.absorbed].into_iter().for_each(moment);
        checkpoint.drained.as_mut().into_iter().for_each(moment);
        checkpoint.absorbed = checkpoint.absorbed.max(checkpoint.began);
        checkpoint.drained = checkpoint.drained.map(|drained| drained.max(checkpoint.absorbed));
        low(&mut checkpoint.bytes);
    }
    meta.marks.iter_mut().for_each(|mark| moment(&mut mark.at));
    for window in &mut meta.windows {
        [&mut window.began, &mut window.ended].into_iter().for_each(moment);
        window.ended = window.ended.max(window.began);
    }
    for process in &mut meta.processes {
        moment(&mut process.time);
        [&mut process.bytes_read, &mut process.bytes_written].into_iter().for_each(low);
    }
    let RecordedTimeline { read_fast, read_slow, written_fast, written_slow, drained, calls, .. } = &mut meta.timeline;
    [read_fast, read_slow, written_fast, written_slow, drained, calls].into_iter().flatten().for_each(low);
    meta.heat.rows.iter_mut().flat_map(|row| [&mut row.read, &mut row.written]).flatten().for_each(low);
}

/// The speeds of reads and opens, from all that were counted by tier.
pub(super) fn speeds(meta: &Meta) -> Speeds {
    let mut speeds = Speeds::default();
    for open in meta.operations.iter().filter(|line| line.op == Op::Open) {
        speeds.open[open.tier as usize] = ratio(open.total as f64 / 1e9, open.calls as f64);
    }
    for read in meta.operations.iter().filter(|line| line.op == Op::Read) {
        speeds.call[read.tier as usize] = ratio(read.total as f64 / 1e9, read.calls as f64);
        if read.tier == Tier::Fast {
            speeds.bytes = ratio(read.bytes as f64, read.calls as f64);
        }
    }
    speeds
}

fn totals(recording: &Recording) -> Totals {
    let (mut totals, speeds) = (Totals::new(), speeds(&recording.meta));
    recording.files.iter().for_each(|file| totals.add(&file.path, &file.record(), &speeds));
    recording.rest.iter().for_each(|class| totals.merge(&class.record()));
    totals.finish();
    totals
}

fn job(meta: &Meta) -> Job {
    Job {
        version: meta.version.clone(),
        host: meta.host.clone(),
        kernel: meta.kernel.clone(),
        uid: meta.uid,
        mountpoint: meta.mountpoint.clone(),
        fast: meta.fast.clone(),
        slow: meta.slow.clone(),
        since: Duration::from_nanos(meta.since),
        from: meta.from,
        until: meta.until,
        wall: (meta.until - meta.from).max(0.0),
        window: meta.window.clone(),
        safety: meta.safety.clone(),
        processes: meta.processes.iter().filter(|one| one.number != 0 && one.opens + one.reads + one.writes > 0).count()
            as u64,
    }
}

fn completeness(recording: &Recording, seen: &CallSummary) -> Completeness {
    let meta = &recording.meta;
    let opens: Vec<(String, u64)> = meta.io_path.opens.iter().map(|(name, n)| (name.clone(), *n)).collect();
    let other_opens = opens.iter().any(|(name, n)| name != "exact" && *n > 0);
    let traced = seen.calls > 0;
    let (_, dropped) = recording.traced();
    Completeness {
        io_path: meta.io_path.name.clone(),
        is_exact: matches!(meta.io_path.name.as_str(), "exact" | "") && !other_opens,
        opens,
        not_seen: meta.io_path.not_seen.clone(),
        calls: sum(&meta.operations, |line| line.calls),
        traced: seen.calls,
        traced_from: traced.then_some(seen.from.as_secs_f64()),
        traced_until: traced.then_some(seen.until.as_secs_f64()),
        dropped: dropped.max(meta.trace.dropped),
        unnamed: meta.files.unnamed,
        is_whole: recording.is_whole,
        flaws: Vec::new(),
    }
}

fn sum(operations: &[RecordedOperation], of: fn(&RecordedOperation) -> u64) -> u64 {
    operations.iter().fold(0, |sum, line| sum.saturating_add(of(line)))
}

fn moved(meta: &Meta) -> Moved {
    let bytes = |op: Op, slow_only: bool| {
        let of = meta.operations.iter().filter(|line| line.op == op && (!slow_only || line.tier == Tier::Slow));
        of.fold(0, |sum: u64, line| sum.saturating_add(line.bytes))
    };
    Moved {
        calls: sum(&meta.operations, |line| line.calls),
        errors: sum(&meta.operations, |line| line.errors),
        bytes_read: bytes(Op::Read, false),
        bytes_written: bytes(Op::Write, false),
        slow_bytes_read: bytes(Op::Read, true),
        slow_bytes_written: bytes(Op::Write, true),
        drained: 0,
    }
}

/// The cost for the known processes, and of these only those that moved something, if there are any.
fn cost(seen: &CallSummary) -> Option<Cost> {
    let is_known = |busy: &&(u64, Busy)| busy.0 != 0;
    let moved = |busy: &&(u64, Busy)| busy.1.read + busy.1.write > Duration::ZERO;
    let mut counted: Vec<&(u64, Busy)> = seen.busy.iter().collect();
    for wanted in [&is_known as &dyn Fn(&&(u64, Busy)) -> bool, &moved] {
        if counted.iter().any(wanted) {
            counted.retain(wanted);
        }
    }
    if counted.is_empty() {
        return None;
    }
    let mean = |of: fn(&Busy) -> Duration| {
        counted.iter().map(|(_, busy)| of(busy).as_secs_f64()).sum::<f64>() / counted.len() as f64
    };
    Some(Cost {
        from: seen.from.as_secs_f64(),
        until: seen.until.as_secs_f64(),
        processes: counted.len() as u64,
        read: mean(|busy| busy.read),
        write: mean(|busy| busy.write),
        meta: mean(|busy| busy.meta),
        any: mean(|busy| busy.any),
        active: mean(|busy| busy.active.1.saturating_sub(busy.active.0)),
        lasted: lasted(counted.iter().map(|(_, busy)| busy.active)),
    })
}

/// How many seconds at least one of these spans covers.
fn lasted(spans: impl Iterator<Item = (Duration, Duration)>) -> f64 {
    let mut spans: Vec<_> = spans.collect();
    spans.sort_unstable();
    let add = |(sum, end): (Duration, Duration), (from, until): (Duration, Duration)| {
        (sum + until.saturating_sub(from.max(end)), end.max(until))
    };
    spans.into_iter().fold((Duration::ZERO, Duration::ZERO), add).0.as_secs_f64()
}

/// One row for each operation, in their order.
fn operations(lines: &[RecordedOperation]) -> Vec<Counted> {
    let of = |op: Op| {
        let mut row = Counted { op, calls: 0, errors: 0, slow: 0, bytes: 0, seconds: 0.0 };
        for line in lines.iter().filter(|line| line.op == op) {
            row.calls = row.calls.saturating_add(line.calls);
            row.errors = row.errors.saturating_add(line.errors);
            row.bytes = row.bytes.saturating_add(line.bytes);
            row.seconds += line.total as f64 / 1e9;
            row.slow = row.slow.saturating_add(if line.tier == Tier::Slow { line.calls } else { 0 });
        }
        (row.calls > 0).then_some(row)
    };
    Op::ALL.into_iter().filter_map(of).collect()
}

fn latency(line: &RecordedOperation) -> Option<LatencyQuantiles> {
    let figures = line.figures();
    let at = |share: f64| figures.quantile(share).map(|bound| bound.as_secs_f64());
    Some(LatencyQuantiles {
        op: line.op,
        tier: line.tier,
        calls: line.calls,
        mean: ratio(line.total as f64 / 1e9, line.calls as f64),
        p50: at(0.5)?,
        p90: at(0.9)?,
        p99: at(0.99)?,
        p999: at(0.999)?,
        max: line.max as f64 / 1e9,
    })
}

fn sizes(totals: &Totals) -> Vec<SizeClass> {
    let all = &totals.all;
    let class = |(at, name): (usize, &&'static str)| SizeClass {
        name,
        reads: all.get(Field::ReadSizes(at)),
        writes: all.get(Field::WriteSizes(at)),
        bytes_read: all.get(Field::ReadSizeBytes(at)),
        bytes_written: all.get(Field::WriteSizeBytes(at)),
    };
    SIZE_NAMES.iter().enumerate().map(class).collect()
}

fn patterns(totals: &Totals) -> Patterns {
    let [reads, writes] =
        totals.patterns().map(|counts| AccessPattern::ALL.map(AccessPattern::name).into_iter().zip(counts).collect());
    let get = |field| totals.all.get(field);
    Patterns {
        reads,
        writes,
        sequential_reads: get(Field::SequentialReads),
        sequential_writes: get(Field::SequentialWrites),
        consecutive_reads: get(Field::ConsecutiveReads),
        consecutive_writes: get(Field::ConsecutiveWrites),
        switches: get(Field::Switches),
        unaligned: get(Field::Unaligned),
    }
}

fn files(totals: &Totals) -> Files {
    let Totals { used, asked, opens, tiny_opens, median, slow_again, .. } = *totals;
    let (kinds, misses) = (totals.kinds.clone(), totals.misses.clone());
    Files { used, asked, kinds, opens, tiny_opens, median, slow_again, misses }
}

fn spans(totals: &Totals) -> Spans {
    let between = |first, last| {
        let (first, last) = (totals.all.moment(first)?, totals.all.moment(last)?);
        Some((first.as_secs_f64(), last.as_secs_f64()))
    };
    Spans {
        opens: between(Field::OpenFirst, Field::OpenLast),
        reads: between(Field::ReadFirst, Field::ReadLast),
        writes: between(Field::WriteFirst, Field::WriteLast),
        closes: between(Field::CloseFirst, Field::CloseLast),
    }
}

fn tier_row(meta: &Meta, tier: Tier) -> TierRow {
    let place = if tier == Tier::Fast { &meta.fast } else { &meta.slow };
    let mut row =
        TierRow { tier, place: place.clone(), reads: 0, bytes_read: 0, writes: 0, bytes_written: 0, seconds: 0.0 };
    for line in meta.operations.iter().filter(|line| line.tier == tier) {
        let (calls, bytes) = match line.op {
            Op::Read => (&mut row.reads, &mut row.bytes_read),
            Op::Write => (&mut row.writes, &mut row.bytes_written),
            _ => continue,
        };
        *calls = calls.saturating_add(line.calls);
        *bytes = bytes.saturating_add(line.bytes);
        row.seconds += line.total as f64 / 1e9;
    }
    row
}

fn workers(meta: &Meta) -> Vec<RecordedProcess> {
    let mut all: Vec<_> = meta.processes.iter().filter(|one| one.opens + one.reads + one.writes > 0).cloned().collect();
    all.sort_by(|a, b| {
        let moved = |one: &RecordedProcess| one.bytes_read.saturating_add(one.bytes_written);
        moved(b).cmp(&moved(a)).then(b.time.total_cmp(&a.time)).then(a.number.cmp(&b.number))
    });
    all
}

/// Which of the spans since the mount lie in the covered time: the first, and how many.
fn covered(meta: &Meta, span: f64, len: usize) -> Option<(usize, usize)> {
    if !(span.is_finite() && span > 1e-6) || len == 0 {
        return None;
    }
    let first = ((meta.from / span) as usize).min(len);
    let behind = ((meta.until / span).ceil() as usize).clamp(first, len);
    Some((first, behind - first))
}

fn part(values: &[u64], first: usize, len: usize) -> Vec<u64> {
    values.iter().copied().chain(std::iter::repeat(0)).skip(first).take(len).collect()
}

fn timeline(meta: &Meta) -> (f64, RecordedTimeline) {
    let all = &meta.timeline;
    let Some((first, len)) = covered(meta, all.span, all.calls.len()) else {
        return (0.0, RecordedTimeline::default());
    };
    let part = |values: &[u64]| part(values, first, len);
    let told = RecordedTimeline {
        span: all.span,
        read_fast: part(&all.read_fast),
        read_slow: part(&all.read_slow),
        written_fast: part(&all.written_fast),
        written_slow: part(&all.written_slow),
        drained: part(&all.drained),
        calls: part(&all.calls),
    };
    (first as f64 * all.span, told)
}

/// The heat map of the covered time, with at most as many rows and spans as a page shows: the processes that moved
/// least are merged into one row without a process.
fn heat(meta: &Meta) -> (f64, RecordedHeat) {
    let spans = meta.heat.rows.iter().map(|row| row.read.len().max(row.written.len())).max().unwrap_or(0);
    let Some((first, len)) = covered(meta, meta.heat.span, spans) else { return (0.0, RecordedHeat::default()) };
    // Before and after the first and last bytes moved, there is nothing to show.
    let is_busy = |at: &usize| {
        let of = |values: &[u64]| values.get(*at).is_some_and(|bytes| *bytes > 0);
        meta.heat.rows.iter().any(|row| of(&row.read) || of(&row.written))
    };
    let Some(begins) = (first..first + len).find(is_busy) else { return (0.0, RecordedHeat::default()) };
    let ends = (begins..first + len).rfind(is_busy).map_or(begins, |last| last + 1);
    let (first, len) = (begins, ends - begins);
    let each = len.div_ceil(HEAT_SPANS).max(1);
    let fewer = |values: &[u64]| {
        let part = part(values, first, len);
        part.chunks(each).map(|some| some.iter().fold(0, |sum: u64, n| sum.saturating_add(*n))).collect::<Vec<u64>>()
    };
    let mut rows: Vec<_> = meta.heat.rows.clone();
    for row in &mut rows {
        (row.read, row.written) = (fewer(&row.read), fewer(&row.written));
    }
    let moved = |values: &[u64]| values.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
    rows.sort_by_cached_key(|row| {
        (row.process == 0, std::cmp::Reverse(moved(&row.read).saturating_add(moved(&row.written))), row.process)
    });
    if rows.len() > HEAT_ROWS {
        let others = rows.split_off(HEAT_ROWS - 1).into_iter().reduce(|mut sum, row| {
            let add = |(mine, other): (&mut u64, u64)| *mine = mine.saturating_add(other);
            sum.read.iter_mut().zip(row.read).for_each(add);
            sum.written.iter_mut().zip(row.written).for_each(add);
            sum
        });
        rows.extend(others.map(|mut sum| {
            sum.process = 0;
            sum
        }));
    }
    rows.retain(|row| moved(&row.read) > 0 || moved(&row.written) > 0);
    rows.sort_by_key(|row| (row.process == 0, row.process));
    (first as f64 * meta.heat.span, RecordedHeat { span: meta.heat.span * each as f64, rows })
}

fn staging(totals: &Totals) -> Vec<Staged> {
    let (files, bytes) =
        totals.curve.iter().fold((0u64, 0u64), |sum, class| (sum.0 + class.files, sum.1.saturating_add(class.bytes)));
    let seconds: f64 = totals.curve.iter().map(|class| class.seconds).sum();
    let slow: f64 = totals.curve.iter().map(|class| class.slow_seconds).sum();
    let mut below = Staged::default();
    let add = |class: &super::totals::Band| {
        below.size = class.bound;
        below.files += class.files;
        below.bytes = below.bytes.saturating_add(class.bytes);
        below.slow_seconds += class.slow_seconds;
        below.fast_seconds += class.fast_seconds;
        below.slow_reads = below.slow_reads.saturating_add(class.slow_reads);
        (below.file_share, below.byte_share) = (share(below.files, files), share(below.bytes, bytes));
        below.slow_share = ratio(below.slow_seconds, slow);
        let saved = below.slow_seconds - below.fast_seconds;
        below.gain = (below.fast_seconds > 0.0 && saved < seconds).then(|| seconds / (seconds - saved) - 1.0);
        below
    };
    totals.curve.iter().map(add).collect()
}

/// The most important finding in one sentence.
fn verdict(summary: &Summary) -> String {
    let Summary { job, moved, cost, files, .. } = summary;
    if moved.calls == 0 && files.used == 0 {
        return "Nothing was done through the mount.".to_owned();
    }
    let slow = share(moved.slow_bytes_read, moved.bytes_read);
    let part = |of: fn(&Cost) -> f64| cost.as_ref().map_or(0.0, |cost| cost.share(of(cost)));
    let (read, write, meta) = (part(|cost| cost.read), part(|cost| cost.write), part(|cost| cost.meta));
    let most = read.max(write).max(meta);
    let bound = match () {
        () if cost.is_none() => "",
        () if most < 0.1 => "Storage hardly mattered: ",
        () if meta >= most => "Metadata took most of the time in calls: ",
        () if write >= most => "Writing took most of the time in calls: ",
        () if slow > 0.5 => "Reading from the slow tier took most of the time in calls: ",
        () => "Reading took most of the time in calls: ",
    };
    let who = match job.processes {
        0 => "programs".to_owned(),
        n => render_count(n, "process", "processes"),
    };
    let mut text = format!(
        "{bound}in {} {who} read {} and wrote {} in {}",
        seconds_text(summary.lasted()),
        render::bytes(moved.bytes_read),
        render::bytes(moved.bytes_written),
        render_count(files.used, "file", "files")
    );
    if moved.bytes_read > 0 {
        text.push_str(&format!("; {} of what was read waited for the slow tier", percent(slow)));
    }
    if cost.is_some() && most > 0.0 {
        let (read, write, meta) = (percent(read), percent(write), percent(meta));
        text.push_str(&format!("; a process was {read} of its time in reads, {write} in writes, {meta} in metadata"));
    }
    text.push('.');
    let first = text.chars().next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(text.chars().skip(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::{empty, hostile, made};

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs().max(1e-3)
    }

    #[test]
    fn figures_are_those_that_were_made_up() {
        let summary = Summary::of(&mut made().recording());
        let Moved { calls, errors, bytes_read, bytes_written, slow_bytes_read, drained, .. } = summary.moved;
        assert_eq!((calls, errors, bytes_read, bytes_written, slow_bytes_read), (13, 1, 500_000, 1 << 20, 500_000));
        assert_eq!(drained, 1 << 20);
        // The first process read for 99.001 ms and the second for 200 ms; only the first wrote.
        let cost = summary.cost.as_ref().expect("traced");
        assert!(near(cost.read, 0.149_500_5) && near(cost.write, 0.0075), "{cost:?}");
        assert!(near(cost.meta, (0.000_200 + 0.000_002 + 0.000_100 + 0.000_002 + 0.000_202) / 2.0), "{cost:?}");
        assert_eq!(cost.processes, 2, "who is not known is no process");
        let kinds: Vec<_> = summary.files.kinds.iter().map(|kind| (kind.files, kind.average, kind.max)).collect();
        let both = (2, 250_000, 400_000);
        let saved = (1, 1 << 20, 1 << 20);
        assert_eq!(kinds, [(3, 516_192, 1 << 20), both, saved, (0, 0, 0), saved, both, (0, 0, 0), (0, 0, 0)]);
        assert_eq!(summary.common_sizes, [(100_000, 2), (1 << 20, 1), (300_000, 1)]);
        assert_eq!(
            summary.patterns.reads,
            [("first", 2), ("consecutive", 1), ("forward", 0), ("backward", 0), ("again", 0), ("end", 1)]
        );
        assert_eq!((summary.patterns.sequential_reads, summary.patterns.consecutive_reads), (2, 2));
        assert_eq!(summary.spans.reads.map(|(first, last)| (near(first, 1.001), near(last, 1.25))), Some((true, true)));
        assert_eq!(
            summary.top.iter().map(|row| row.path.as_str()).collect::<Vec<_>>(),
            ["/data/b", "/data/a", "/ckpt/c", "/"]
        );
        assert_eq!(
            summary.verdict,
            "Storage hardly mattered: in 4.0 s 2 processes read 488.3 KiB and wrote 1.0 MiB in 3 files; 100 % of what was read \
             waited for the slow tier; a process was 6.9 % of its time in reads, 0.3 % in writes, < 0.1 % in metadata."
        );
    }

    /// A report made a minute later, with the mount idle and somebody looking around in it, gives the same results.
    #[test]
    fn idle_time_changes_no_share() {
        let told = |made: &mut crate::report::sample::Made| {
            let Summary { verdict, cost, advice, .. } = Summary::of(&mut made.recording());
            let cost = cost.expect("traced");
            (verdict, cost.active, cost.lasted, cost.processes, advice.len())
        };
        let mut made = made();
        let at_once = told(&mut made);
        assert!(near(at_once.1, (4.016_002 + 0.300_002) / 2.0) && near(at_once.2, 4.016_002), "{at_once:?}");
        made.meta.until = 70.0;
        made.file(
            1,
            "/",
            3,
            &[(Op::Getattr, 69_000, 20, 0, 0, Tier::Fast), (Op::Getattr, 69_900, 20, 0, 0, Tier::Fast)],
        );
        let counted = made.meta.operations.len();
        assert_eq!((told(&mut made), counted), (at_once, 0));
    }

    #[test]
    fn spans_that_follow_one_another_or_overlap_last_once() {
        let span = |from, until| (Duration::from_secs(from), Duration::from_secs(until));
        let overlapping = [span(5, 9), span(1, 3), span(2, 4), span(6, 7), span(9, 10)];
        assert!(near(lasted(overlapping.into_iter()), 8.0));
    }

    #[test]
    fn the_staging_curve_adds_up_to_all() {
        let summary = Summary::of(&mut made().recording());
        let curve: Vec<_> = summary.staging.iter().map(|point| (point.size, point.files, point.bytes)).collect();
        assert_eq!(curve, [(128 << 10, 1, 100_000), (256 << 10, 1, 100_000), (512 << 10, 2, 500_000)]);
        let (first, last) = (&summary.staging[0], &summary.staging[2]);
        assert!(near(first.file_share, 0.5) && near(first.byte_share, 0.2), "{first:?}");
        assert!((first.slow_seconds - 0.099).abs() < 1e-5 && (last.slow_seconds - 0.299).abs() < 1e-5, "{last:?}");
        assert!(near(last.slow_share, 1.0) && near(last.byte_share, 1.0));
        assert!(first.gain.is_none(), "an empty read alone does not tell how fast the fast tier is");
    }

    /// The same bytes took ten times as long on the slow tier: 110 ms become 20.
    #[test]
    fn what_staging_gains_is_told_by_what_reads_took_on_each_tier() {
        let mut made = empty();
        made.file(2, "/a", 1, &[(Op::Read, 0, 100_000, 0, 100_000, Tier::Slow)]);
        made.file(3, "/b", 1, &[(Op::Read, 200, 10_000, 0, 100_000, Tier::Fast)]);
        let summary = Summary::of(&mut made.recording());
        let Staged { slow_seconds, fast_seconds, gain, .. } = summary.staging[0];
        assert!(near(slow_seconds, 0.1) && near(fast_seconds, 0.01) && gain.is_some_and(|gain| near(gain, 4.5)));
    }

    #[test]
    fn a_window_shows_its_own_time() {
        let mut window = made();
        (window.meta.from, window.meta.until, window.meta.window) = (4.0, 7.0, Some("w".into()));
        let summary = Summary::of(&mut window.recording());
        assert_eq!((summary.timeline_from, summary.timeline.calls.len()), (4.0, 30));
        assert_eq!((summary.timeline.written_fast[10], summary.timeline.read_slow.iter().sum::<u64>()), (1 << 20, 0));
        assert_eq!(summary.heat.rows.iter().map(|row| row.process).collect::<Vec<_>>(), [1]);
        assert_eq!(summary.completeness.traced, 4);
        assert!(near(summary.job.wall, 3.0));
    }

    #[test]
    fn nothing_is_told_of_nothing() {
        let summary = Summary::of(&mut empty().recording());
        assert_eq!(summary.verdict, "Nothing was done through the mount.");
        assert!(
            summary.advice.is_empty()
                && summary.cost.is_none()
                && summary.latency.is_empty()
                && summary.staging.is_empty()
        );
    }

    #[test]
    fn what_no_counter_holds_overflows_nothing() {
        let summary = Summary::of(&mut hostile().recording());
        assert!(summary.heat.rows.len() <= HEAT_ROWS && summary.heat.rows[0].read.len() <= HEAT_SPANS);
        assert!(summary.epochs.iter().all(|epoch| epoch.ended <= 1e10));
    }
}
