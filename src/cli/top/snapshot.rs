//! One look at a mount: the parsed texts of its `.dlio`. Pure.
//!
//! Only what is shown is read. A text of another version, or one that was cut off, is an error and no panic.

use serde::{Deserialize, Serialize};

use crate::json;
use crate::stats::files::{ActiveFiles, Activity};
use crate::stats::fleet::FleetStatus;
use crate::stats::pace::CheckpointPace;
use crate::stats::queue::Queue;
use crate::stats::recording::Checkpoint;
use crate::stats::status::{Safety, Status};

/// The state of the mount at one moment.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct Snapshot {
    pub(super) stats: Status,
    pub(super) timeline: FlowTimeline,
    /// The requested table.
    pub(super) files: Option<Dated<ActiveFiles>>,
    pub(super) processes: Option<Dated<ProcessTable>>,
    pub(super) queue: Option<Queue>,
    pub(super) fleet: Option<FleetStatus>,
    /// Oldest first; empty if the daemon does not report them.
    pub(super) checkpoints: Vec<Checkpoint>,
    pub(super) pace: Option<CheckpointPace>,
}

/// `timeline.json`: an amount for each span of so many seconds since the mount was made.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct FlowTimeline {
    pub(super) span: f64,
    pub(super) until: f64,
    pub(super) read_fast: Vec<u64>,
    pub(super) read_slow: Vec<u64>,
    pub(super) written_fast: Vec<u64>,
    pub(super) written_slow: Vec<u64>,
    pub(super) drained: Vec<u64>,
    pub(super) calls: Vec<u64>,
}

/// Sums of a timeline, or of the time between two looks: bytes by tier, and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct FlowTotals {
    pub(super) read_fast: u64,
    pub(super) read_slow: u64,
    pub(super) written_fast: u64,
    pub(super) written_slow: u64,
    pub(super) drained: u64,
    pub(super) calls: u64,
}

/// `files.json`, with its moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Dated<T> {
    pub(super) at: f64,
    pub(super) table: T,
}

/// `processes.json`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ProcessTable {
    pub(super) processes: Vec<ProcessEntry>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ProcessEntry {
    pub(super) number: u64,
    pub(super) pid: Option<u64>,
    #[serde(deserialize_with = "json::escaped")]
    pub(super) command: String,
    #[serde(deserialize_with = "json::escaped")]
    pub(super) cgroup: String,
    #[serde(flatten)]
    pub(super) sums: Activity,
}

/// `checkpoints.json`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Checkpoints {
    pub(super) checkpoints: Vec<Checkpoint>,
}

/// Parses a file of `.dlio`. The error says what is wrong with it.
pub(super) fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

impl FlowTimeline {
    /// Like [`parse`]; refuses a timeline whose spans make no sense.
    pub(super) fn parse(text: &str) -> Result<FlowTimeline, String> {
        let timeline: FlowTimeline = parse(text)?;
        let sound = timeline.span.is_finite() && timeline.span > 0.0 && timeline.until.is_finite();
        if sound { Ok(timeline) } else { Err(format!("spans of {} s", timeline.span)) }
    }

    /// Read fast and slow, written fast and slow, drained.
    pub(super) fn flows(&self) -> [&[u64]; 5] {
        [&self.read_fast, &self.read_slow, &self.written_fast, &self.written_slow, &self.drained]
    }

    /// Everything that moved since the mount was made.
    pub(super) fn total(&self) -> FlowTotals {
        let sum = |spans: &[u64]| spans.iter().fold(0u64, |sum, span| sum.saturating_add(*span));
        FlowTotals {
            read_fast: sum(&self.read_fast),
            read_slow: sum(&self.read_slow),
            written_fast: sum(&self.written_fast),
            written_slow: sum(&self.written_slow),
            drained: sum(&self.drained),
            calls: sum(&self.calls),
        }
    }
}

impl FlowTotals {
    pub(super) fn since(&self, before: &FlowTotals) -> FlowTotals {
        FlowTotals {
            read_fast: self.read_fast.saturating_sub(before.read_fast),
            read_slow: self.read_slow.saturating_sub(before.read_slow),
            written_fast: self.written_fast.saturating_sub(before.written_fast),
            written_slow: self.written_slow.saturating_sub(before.written_slow),
            drained: self.drained.saturating_sub(before.drained),
            calls: self.calls.saturating_sub(before.calls),
        }
    }

    /// In the order of [`FlowTimeline::flows`].
    pub(super) fn flows(&self) -> [u64; 5] {
        [self.read_fast, self.read_slow, self.written_fast, self.written_slow, self.drained]
    }
}

/// Whether everything is safe, in a word.
pub(super) fn word(safety: &Safety) -> &'static str {
    match safety {
        Safety { held: Some(_), .. } => "HELD",
        Safety { slow_down: true, .. } => "DOWN",
        Safety { fast_fails: true, .. } => "BROKEN",
        Safety { refusing: true, .. } => "FULL",
        Safety { safe: true, .. } => "yes",
        _ => "no",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::files::ActiveFile;
    use crate::stats::queue::{EventState, PendingEvent};
    use crate::stats::status::{Figures, LongestCall, Operation, SlowCalls};

    /// The text of `stats.json` that the daemon would give, whatever it has beside it.
    #[test]
    fn what_the_daemon_writes_is_understood() {
        let safety = Safety {
            files: 2,
            bytes: 1 << 30,
            oldest: Some(Duration::from_secs(14)),
            held: Some("why".into()),
            ..Safety::default()
        };
        let figures = Figures { calls: 9, total: Duration::new(1, 5), p50: Some(Duration::ZERO), ..Figures::default() };
        let operation =
            Operation { op: "read".into(), all: figures.clone(), tiers: [("slow".to_owned(), figures)].into() };
        let status = Status {
            safety,
            version: "1.2.3".into(),
            mounted_at: Some("2026-01-01T00:00:00.000Z".into()),
            mounted_for: Duration::from_millis(90_500),
            slow_calls: SlowCalls { longest: Some(LongestCall::default()), ..SlowCalls::default() },
            operations: vec![operation],
            ..Status::default()
        };
        assert_eq!(parse(&status.json()), Ok(status.clone()));
        assert_eq!(word(&status.safety), "HELD");
        let mut timeline = crate::stats::timeline::Timeline::default();
        let totals = crate::stats::timeline::Amounts { read: [7, 8], drained: 5, ..Default::default() };
        timeline.sample(Duration::from_millis(250), totals);
        let timeline = FlowTimeline::parse(&timeline.json(Duration::ZERO)).expect("our own");
        let total = timeline.total();
        assert_eq!((total.read_fast, total.read_slow, total.drained, timeline.until), (7, 8, 5, 0.25));
        let pending = PendingEvent {
            path: "/a%20b".into(),
            to: Some("/%FF".into()),
            state: EventState::Copying,
            age: Duration::from_millis(1),
            ..PendingEvent::default()
        };
        let queue =
            Queue { pending: vec![pending], cut_off_shown: vec!["/c%20".into(), "/%FF".into()], ..Queue::default() };
        assert_eq!(parse(&queue.json()), Ok(queue));
        let before = Activity { time: Duration::from_micros(3), ..Activity::default() };
        let file = ActiveFile { path: "/a%20b".into(), before, ..ActiveFile::default() };
        let files = ActiveFiles { files: vec![file], known: 7 };
        assert_eq!(parse(&files.clone().json(9)), Ok(files));
    }

    #[test]
    fn an_older_daemon_may_lack_a_figure_but_not_say_nothing_of_safety() {
        let mut document = serde_json::to_value(Status::default()).expect("a form");
        let pipeline = document["pipeline"].as_object_mut().expect("an object");
        assert!(pipeline.remove("staged_files").is_some());
        assert_eq!(parse(&document.to_string()), Ok(Status::default()));
        let safety = document["safety"].as_object_mut().expect("an object");
        assert!(safety.remove("safe").is_some() && parse::<Status>(&document.to_string()).is_err());
    }

    #[test]
    fn what_is_cut_off_or_of_another_form_is_an_error() {
        for text in ["", "{", "[]", "null", "{\"span\":0.1}", "{\"safety\":{\"safe\":\"maybe\"}}"] {
            assert!(parse::<Status>(text).is_err() && FlowTimeline::parse(text).is_err(), "{text}");
            assert!(parse::<ActiveFiles>(text).is_err() && parse::<Queue>(text).is_err(), "{text}");
        }
        let no_width = "{\"span\":0.0,\"until\":1,\"read_fast\":[],\"read_slow\":[],\"written_fast\":[],\
                        \"written_slow\":[],\"drained\":[],\"calls\":[]}";
        assert_eq!(FlowTimeline::parse(no_width).expect_err("no width"), "spans of 0 s");
    }
}
