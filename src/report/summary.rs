//! Everything that the documents show, computed once from a recording by `summarize.rs`. Pure; in JSON the keys are
//! stable.
//!
//! Seconds are on the mount's clock, with 0 at the mount, unless the name says that they are a duration; sizes are in
//! bytes, shares go from 0 to 1. Values that the recording cannot give are `None`, never 0.

use std::time::Duration;

use serde::Serialize;

use super::calls::Readers;
use super::totals::{FileCountRow, FileRow};
use crate::json;
use crate::stats::counters::{Op, Tier};
use crate::stats::plans::RunningPlan;
use crate::stats::recording::{
    Checkpoint, Epoch, Mark, RecordedFailure, RecordedHeat, RecordedProcess, RecordedTimeline, RecordedWindow,
    TierPlace,
};

/// What was observed.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub schema: u32,
    pub job: Job,
    /// In one sentence.
    pub verdict: String,
    pub advice: Vec<Advice>,
    pub completeness: Completeness,
    pub moved: Moved,
    pub cost: Option<Cost>,
    pub operations: Vec<Counted>,
    pub failures: Vec<RecordedFailure>,
    pub latency: Vec<LatencyQuantiles>,
    pub sizes: Vec<SizeClass>,
    /// Sizes and strides with their counts, most frequent first.
    pub common_sizes: Vec<(u64, u64)>,
    pub common_strides: Vec<(u64, u64)>,
    pub patterns: Patterns,
    pub files: Files,
    pub spans: Spans,
    pub tiers: Vec<TierRow>,
    pub timeline: RecordedTimeline,
    /// When the first span of the timeline begins.
    pub timeline_from: f64,
    pub heat: RecordedHeat,
    pub heat_from: f64,
    pub staging: Vec<Staged>,
    pub checkpoints: Vec<Checkpoint>,
    pub epochs: Vec<Epoch>,
    pub workers: Vec<RecordedProcess>,
    pub readers: Vec<Readers>,
    pub windows: Vec<RecordedWindow>,
    pub marks: Vec<Mark>,
    /// Staging jobs made from plans.
    pub plans: Vec<RunningPlan>,
    pub top: Vec<FileRow>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Its stable name.
    pub rule: &'static str,
    pub what: String,
    pub evidence: String,
    /// When the rule applies.
    pub threshold: String,
    /// How to do it: a line of a shell or of Python, with further remarks as its comment.
    pub command: String,
    /// The predicted gain, if it can be known.
    pub gain: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Job {
    pub version: String,
    pub host: String,
    pub kernel: String,
    pub uid: u32,
    pub mountpoint: String,
    pub fast: TierPlace,
    pub slow: TierPlace,
    /// When the mount was made, since 1970.
    #[serde(rename = "mounted_at", serialize_with = "json::as_timestamp")]
    pub since: Duration,
    pub from: f64,
    pub until: f64,
    /// The time between the two.
    pub wall: f64,
    pub window: Option<String>,
    /// The first line of `.dlio/stats`, when the recording was made.
    pub safety: String,
    pub processes: u64,
}

/// What the figures do not include.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Completeness {
    pub io_path: String,
    pub opens: Vec<(String, u64)>,
    pub not_seen: Vec<String>,
    /// Reads and writes are seen as programs issued them: sizes are access sizes; otherwise they are request sizes.
    pub is_exact: bool,
    /// Calls that were counted, and those traced one by one.
    pub calls: u64,
    pub traced: u64,
    pub traced_from: Option<f64>,
    pub traced_until: Option<f64>,
    /// Calls lost because the trace did not keep up.
    pub dropped: u64,
    /// Pieces counted for files without their own record.
    pub unnamed: u64,
    /// It was not cut off before its end.
    pub is_whole: bool,
    pub flaws: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Moved {
    pub calls: u64,
    pub errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub slow_bytes_read: u64,
    pub slow_bytes_written: u64,
    pub drained: u64,
}

/// Time spent in calls: for each process the time in which at least one call was in progress, averaged over processes.
/// Only processes that read or wrote count, if any did: a shell that lists a directory now and then is active for long
/// and waits for nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// The time that the trace covers, which may be less than all.
    pub from: f64,
    pub until: f64,
    pub processes: u64,
    /// Seconds per process, on average.
    pub read: f64,
    pub write: f64,
    pub meta: f64,
    /// Any of the three.
    pub any: f64,
    /// A process is active from its first call to its last: time before and after, when the mount is idle, is in no
    /// share.
    pub active: f64,
    /// Seconds in which at least one of them was active.
    pub lasted: f64,
}

impl Cost {
    /// The share of the time in which a process was active.
    pub fn share(&self, seconds: f64) -> f64 {
        ratio(seconds, self.active)
    }
}

/// Calls of an operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counted {
    pub op: Op,
    pub calls: u64,
    pub errors: u64,
    pub slow: u64,
    pub bytes: u64,
    /// Sum over all calls; they may overlap.
    pub seconds: f64,
}

/// Seconds within which a share of the calls finished: at most 6.3 % too high.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatencyQuantiles {
    pub op: Op,
    pub tier: Tier,
    pub calls: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeClass {
    pub name: &'static str,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Patterns {
    pub reads: Vec<(&'static str, u64)>,
    pub writes: Vec<(&'static str, u64)>,
    /// By Darshan's rules.
    pub sequential_reads: u64,
    pub sequential_writes: u64,
    pub consecutive_reads: u64,
    pub consecutive_writes: u64,
    pub switches: u64,
    pub unaligned: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Files {
    pub used: u64,
    pub asked: u64,
    pub kinds: Vec<FileCountRow>,
    pub opens: u64,
    pub tiny_opens: u64,
    pub median: u64,
    pub slow_again: u64,
    /// Where most look-ups found nothing, and how many.
    #[serde(serialize_with = "missed")]
    pub misses: Option<(String, u64)>,
}

/// As an object.
fn missed<S: serde::Serializer>(misses: &Option<(String, u64)>, to: S) -> Result<S::Ok, S::Error> {
    let object = |(path, lookups): &(String, u64)| {
        let mut object = json::text("path", path);
        object.insert("lookups".to_owned(), (*lookups).into());
        object
    };
    misses.as_ref().map(object).serialize(to)
}

/// When something was done first and last.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spans {
    pub opens: Option<(f64, f64)>,
    pub reads: Option<(f64, f64)>,
    pub writes: Option<(f64, f64)>,
    pub closes: Option<(f64, f64)>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TierRow {
    pub tier: Tier,
    pub place: TierPlace,
    pub reads: u64,
    pub bytes_read: u64,
    pub writes: u64,
    pub bytes_written: u64,
    /// Sum over reads and writes; they may overlap.
    pub seconds: f64,
}

/// The share of the files up to `size` in everything that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Staged {
    pub size: u64,
    pub files: u64,
    pub bytes: u64,
    pub file_share: f64,
    pub byte_share: f64,
    /// Seconds of reads from the slow tier, and their share; on the fast tier they would have taken `fast_seconds`.
    pub slow_seconds: f64,
    pub slow_share: f64,
    pub fast_seconds: f64,
    pub slow_reads: u64,
    /// How much faster all reading would have been; `None` if nothing was read from the fast tier to compare with.
    pub gain: Option<f64>,
}

/// A part of a whole; 0 if that is 0.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

pub(super) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 && part.is_finite() { part / whole } else { 0.0 }
}

impl Summary {
    /// The word for the size of a read or write: what programs asked for, or what the kernel made of it.
    pub fn size_word(&self) -> &'static str {
        if self.completeness.is_exact { "access" } else { "request" }
    }

    /// Seconds with any activity; without traced calls, the whole covered time.
    pub fn lasted(&self) -> f64 {
        self.cost.as_ref().map_or(self.job.wall, |cost| cost.lasted)
    }

    /// An operation's figures on both tiers.
    pub fn counted(&self, op: Op) -> Option<&Counted> {
        self.operations.iter().find(|row| row.op == op)
    }
}

/// `1 file`, `12,800 files`.
pub fn render_count(n: u64, one: &str, several: &str) -> String {
    format!("{} {}", grouped(n), if n == 1 { one } else { several })
}

/// `1,281,167`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `0 %`, `0.4 %`, `62 %`: a share above 0 never shows as 0, and one below 1 never as 100.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p <= 0.0 || p.is_nan() => "0 %".to_owned(),
        p if p < 0.1 => "< 0.1 %".to_owned(),
        p if p < 9.95 => format!("{p:.1} %"),
        p if p < 100.0 => format!("{:.0} %", p.min(99.0)),
        p => format!("{p:.0} %"),
    }
}

/// A gain in speed: `+19 %`, `x 3.4`.
pub fn faster(gain: f64) -> String {
    if gain < 1.0 { format!("+{}", percent(gain)) } else { format!("x {:.1}", 1.0 + gain) }
}

/// A duration with about three digits: `12 us`, `1.5 ms`, `83.2 s`, `2 h 3 min`.
pub fn seconds_text(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() || s <= 0.0 => "0 s".to_owned(),
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{} min {:.0} s", (s / 60.0) as u64, (s % 60.0).floor()),
        s => format!("{} h {} min", (s / 3600.0) as u64, (s % 3600.0 / 60.0) as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!((&*grouped(0), &*grouped(999), &*grouped(1_281_167)), ("0", "999", "1,281,167"));
        assert_eq!([0.0, 0.0001, 0.004, 0.62, 0.999, 1.0].map(percent).join(" "), "0 % < 0.1 % 0.4 % 62 % 99 % 100 %");
        assert_eq!(
            [0.0, 12e-6, 0.0015, 83.2, 125.0, 7400.0].map(seconds_text).join("; "),
            "0 s; 12 us; 1.5 ms; 83.2 s; 2 min 5 s; 2 h 3 min"
        );
    }
}
