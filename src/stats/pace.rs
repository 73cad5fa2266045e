//! How often the slow tier sustains a checkpoint, and what is lost until the newest one is there: `.dlio/pace`. Pure.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::checkpoints::Checkpoint;
use super::render::{bytes, seconds, tenths};
use crate::json;
use crate::path::readable;

/// Size and interval are the medians of the newest checkpoints, at most so many.
const LATEST: usize = 9;

/// The pace of a mount. Durations are in seconds, sizes in bytes; the JSON keys are the field names. What is not known
/// is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointPace {
    /// How large a checkpoint is, and how long after one the next begins.
    pub checkpoint_bytes: Option<u64>,
    #[serde(with = "json::optional_seconds")]
    pub interval: Option<Duration>,
    /// What the slow tier took when bytes were last copied to it, or `drain_bandwidth` if that is less.
    pub drain_bytes_per_s: Option<u64>,
    /// The shortest interval at which that copies all of a checkpoint before the next one comes.
    #[serde(with = "json::optional_seconds")]
    pub shortest_interval: Option<Duration>,
    /// The newest complete checkpoint, from the mount's root, escaped.
    pub newest: Option<String>,
    /// Until it is on the slow tier, if nothing further is written: 0 when it is.
    #[serde(with = "json::optional_seconds")]
    pub safe_in: Option<Duration>,
    /// The newest checkpoint on the slow tier. Without the fast tier, training goes on from there.
    pub newest_safe: Option<String>,
    /// The time of training in this mount that would be lost: since that checkpoint began, or since the mount was made.
    #[serde(with = "json::seconds")]
    pub work_at_risk: Duration,
}

/// What the engine knows about the way to the slow tier.
#[derive(Clone, Copy, Debug)]
pub struct DrainOutlook {
    pub bytes_per_s: Option<f64>,
    /// Until everything pending is on the slow tier; `None` while that is not known.
    pub all_safe_in: Option<Duration>,
}

impl CheckpointPace {
    /// `checkpoints`: oldest first; `now`: seconds since the mount was made, the clock of their moments.
    pub fn of(checkpoints: &[Checkpoint], drain: DrainOutlook, now: f64) -> CheckpointPace {
        let complete: Vec<&Checkpoint> = checkpoints.iter().filter(|one| one.complete).collect();
        let latest = &complete[complete.len().saturating_sub(LATEST)..];
        let size = median(latest.iter().map(|one| one.bytes).collect());
        // Not across the time between two mounts.
        let pairs = latest.windows(2).filter(|two| two[0].began >= 0.0);
        let interval = median(pairs.map(|two| duration(two[1].began - two[0].began)).collect());
        let newest = complete.iter().rev().find(|one| one.whole);
        let safe = complete.iter().rev().find(|one| one.whole && one.safe);
        let rate = drain.bytes_per_s.filter(|rate| *rate >= 1.0);
        CheckpointPace {
            checkpoint_bytes: size,
            interval,
            drain_bytes_per_s: rate.map(|rate| rate as u64),
            shortest_interval: size.zip(rate).map(|(size, rate)| duration(size as f64 / rate)),
            newest: newest.map(|one| one.path.clone()),
            // Everything may be copied, and not published yet: nothing says how long that takes.
            safe_in: newest.and_then(|one| match one.safe {
                true => Some(Duration::ZERO),
                false => drain.all_safe_in.filter(|left| !left.is_zero()),
            }),
            newest_safe: safe.map(|one| one.path.clone()),
            work_at_risk: duration(now - safe.map_or(0.0, |one| one.began.max(0.0))),
        }
    }

    /// Whether checkpoints come no faster than the slow tier takes them.
    pub fn is_sustained(&self) -> Option<bool> {
        Some(self.interval? >= self.shortest_interval?)
    }

    /// The text of `.dlio/pace`. Ends with a newline.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |text: String| writeln!(out, "{text}").expect("formatting into memory");
        match (self.checkpoint_bytes, self.interval) {
            (None, _) => line("no complete checkpoint yet".to_owned()),
            (Some(size), None) => line(format!("one checkpoint of {}", bytes(size))),
            (Some(size), Some(interval)) => line(format!("checkpoints of {} every {}", bytes(size), tenths(interval))),
        }
        if let (Some(shortest), Some(rate)) = (self.shortest_interval, self.drain_bytes_per_s) {
            let verdict = match self.is_sustained() {
                Some(false) => ": they come faster, and what waits grows",
                _ => "",
            };
            line(format!("the slow tier sustains one every {} at {}/s{verdict}", tenths(shortest), bytes(rate)));
        }
        let newest = self.newest.as_deref().map(readable);
        match (&newest, self.safe_in) {
            (None, _) => {}
            (Some(path), Some(Duration::ZERO)) => line(format!("the newest, {path}, is on the slow tier")),
            (Some(path), Some(left)) => {
                line(format!("the newest, {path}, will be on the slow tier in {}", seconds(left)))
            }
            (Some(path), None) => line(format!("the newest, {path}, is not on the slow tier yet")),
        }
        let lost = seconds(self.work_at_risk);
        match (&self.newest, self.safe_in, &self.newest_safe) {
            (None, ..) => line(format!("the work since the mount, {lost}, is in no checkpoint")),
            (_, Some(Duration::ZERO), _) => {
                line(format!("the work since it was begun, {lost}, is in no checkpoint yet"))
            }
            (.., Some(path)) => line(format!(
                "without the fast tier, training would go on from {}: {lost} of work lost",
                readable(path)
            )),
            (.., None) => line(format!(
                "without the fast tier, training would begin anew, or from a checkpoint of an earlier mount: \
                 {lost} of work lost"
            )),
        }
        out
    }

    /// The content of `.dlio/pace.json`. Ends with a newline.
    pub fn json(&self) -> String {
        json::document(&serde_json::json!(self))
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Of an even number the smaller one of the two in the middle.
fn median<T: Ord>(mut all: Vec<T>) -> Option<T> {
    all.sort();
    let middle = all.len().checked_sub(1)? / 2;
    all.into_iter().nth(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(number: u64, safe: bool) -> Checkpoint {
        Checkpoint {
            number,
            path: format!("/run/ckpt-{number}"),
            bytes: 4 << 30,
            began: number as f64 * 600.0,
            absorbed: number as f64 * 600.0 + 2.0,
            complete: true,
            whole: true,
            safe,
            ..Checkpoint::default()
        }
    }

    const TIER: DrainOutlook =
        DrainOutlook { bytes_per_s: Some(128.0 * 1048576.0), all_safe_in: Some(Duration::from_secs(30)) };

    #[test]
    fn before_the_first_checkpoint_no_work_is_in_one() {
        let pace = CheckpointPace::of(&[], DrainOutlook { bytes_per_s: None, all_safe_in: None }, 90.0);
        assert_eq!(pace, CheckpointPace { work_at_risk: Duration::from_secs(90), ..CheckpointPace::default() });
        assert_eq!(
            pace.text(),
            "\
no complete checkpoint yet
the work since the mount, 90 s, is in no checkpoint
"
        );
    }

    #[test]
    fn it_says_what_the_tier_sustains_and_what_is_lost_until_then() {
        let all = [checkpoint(1, true), checkpoint(2, true), checkpoint(3, false)];
        let pace = CheckpointPace::of(&all, TIER, 1802.0);
        assert_eq!(pace.is_sustained(), Some(true));
        assert_eq!(
            pace.text(),
            "\
checkpoints of 4.0 GiB every 10 min
the slow tier sustains one every 32 s at 128.0 MiB/s
the newest, /run/ckpt-3, will be on the slow tier in 30 s
without the fast tier, training would go on from /run/ckpt-2: 10 min of work lost
"
        );
        let first = CheckpointPace::of(&all[2..], TIER, 1802.0).text();
        assert!(
            first.ends_with("begin anew, or from a checkpoint of an earlier mount: 30 min of work lost\n"),
            "{first}"
        );
        let safe = CheckpointPace::of(&all[..2], TIER, 1802.0).text();
        let told = "the newest, /run/ckpt-2, is on the slow tier\nthe work since it was begun, 10 min, is in no checkpoint yet\n";
        assert!(safe.ends_with(told), "nothing is lost with the fast tier: {safe}");
        let slow = DrainOutlook { bytes_per_s: Some(4.0 * 1048576.0), all_safe_in: None };
        let pace = CheckpointPace::of(&all, slow, 1802.0);
        assert_eq!(pace.is_sustained(), Some(false));
        assert!(pace.text().contains("sustains one every 17 min at 4.0 MiB/s: they come faster"), "{}", pace.text());
        assert!(pace.text().contains("/run/ckpt-3, is not on the slow tier yet"), "{}", pace.text());
        // All is copied, and not yet in its place.
        let copied = CheckpointPace::of(&all, DrainOutlook { all_safe_in: Some(Duration::ZERO), ..TIER }, 1802.0);
        assert_eq!(copied.safe_in, None, "{}", copied.text());
    }

    /// One that an earlier mount has written.
    #[test]
    fn the_time_between_two_mounts_does_not_count() {
        let mut all = [checkpoint(1, true), checkpoint(2, true)];
        all[0].began = -50_000.0;
        all[1].safe = false;
        let pace = CheckpointPace::of(&all, TIER, 1300.0);
        assert_eq!((pace.interval, pace.work_at_risk), (None, Duration::from_secs(1300)));
    }

    /// A replaced or unfinished one is nothing to go on from.
    #[test]
    fn only_whole_and_complete_checkpoints_count() {
        let mut all = [checkpoint(1, true), checkpoint(2, true), checkpoint(3, true)];
        all[1].whole = false;
        all[2].complete = false;
        let pace = CheckpointPace::of(&all, TIER, 1802.0);
        let on_slow = (pace.newest.as_deref(), pace.newest_safe.as_deref(), pace.safe_in);
        assert_eq!(on_slow, (Some("/run/ckpt-1"), Some("/run/ckpt-1"), Some(Duration::ZERO)));
        assert_eq!((pace.interval, pace.work_at_risk), (Some(Duration::from_secs(600)), Duration::from_secs(1202)));
    }
}
