//! The staging jobs, as `.dlio/staging` shows them. Pure: filled by the engine, a string out.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::render::{bytes, count, one_line, seconds};
use crate::json;
use crate::path::readable;

/// How many failed files of a job the text names; the JSON has more.
const FAILURES_SHOWN: usize = 20;

/// The jobs of a mount, oldest first, and the copies of slow files on the fast tier. Durations are in seconds, sizes in
/// bytes; the JSON keys are the field names.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Staging {
    pub paused: bool,
    /// Copies of slow files on the fast tier, as far as they were found since the start.
    pub copies: u64,
    pub copies_bytes: u64,
    /// Bytes that further copies may take.
    pub room: u64,
    /// Files that were copied because they were read.
    pub promoted: u64,
    /// Files that were read to their end and not copied, because others were waiting already or there was no room.
    pub passed_over: u64,
    pub jobs: Vec<JobStatus>,
}

/// One job. Counts are files.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct JobStatus {
    pub number: u64,
    /// The user who began it, unless that was root or the mount's owner.
    #[serde(skip)]
    pub by: Option<u32>,
    /// What was requested.
    pub what: String,
    pub state: JobState,
    /// Directories still to be scanned; until then more files may be added to `pending`.
    pub directories: u64,
    pub pending: u64,
    pub complete: u64,
    pub complete_bytes: u64,
    /// Files that the fast tier had already.
    pub there: u64,
    pub no_room: u64,
    pub failed: u64,
    /// The first of those that failed or found no room.
    pub failures: Vec<StagingFailure>,
    /// From the first copy to the last, or to now.
    #[serde(with = "json::seconds")]
    pub took: Duration,
}

/// A file that is not staged. `path`: from the mount's root, escaped.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct StagingFailure {
    #[serde(flatten, with = "json::path")]
    pub path: String,
    pub why: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum JobState {
    #[default]
    Running,
    /// Everything was tried.
    Done,
    Cancelled,
}

impl Staging {
    /// For users other than the mount's owner: only the jobs that they have begun.
    pub fn of_user(self, uid: u32) -> Staging {
        let jobs = self.jobs.into_iter().filter(|job| job.by == Some(uid)).collect();
        Staging { jobs, ..self }
    }
}

impl JobStatus {
    pub fn new(number: u64, what: &str) -> Self {
        JobStatus { number, what: what.to_owned(), ..JobStatus::default() }
    }

    /// Bytes per second; `None` before anything was copied.
    fn rate(&self) -> Option<f64> {
        let took = self.took.as_secs_f64();
        (self.complete > 0 && took > 0.0).then(|| self.complete_bytes as f64 / took)
    }

    /// The time until all known files are copied, at the rate so far.
    fn to_go(&self) -> Option<Duration> {
        let each = (self.complete > 0).then(|| self.took.as_secs_f64() / self.complete as f64)?;
        Some(Duration::from_secs_f64(each * self.pending as f64))
    }

    /// The progress, as `N of M files, ...`.
    pub fn progress(&self) -> String {
        let done = self.complete + self.there + self.no_room + self.failed;
        let mut text = format!("{done} of {}, {}", count(done + self.pending, "file"), bytes(self.complete_bytes));
        if let Some(rate) = self.rate() {
            text.push_str(&format!(", {}/s", bytes(rate as u64)));
        }
        match (self.directories, self.to_go().filter(|_| self.pending > 0)) {
            (1, _) => text.push_str(", 1 directory to look through"),
            (2.., _) => text.push_str(&format!(", {} directories to look through", self.directories)),
            (0, Some(left)) => text.push_str(&format!(", {} to go", seconds(left))),
            (0, None) => {}
        }
        text
    }

    /// The result.
    pub fn result(&self) -> String {
        let mut text = format!("{} staged, {}", count(self.complete, "file"), bytes(self.complete_bytes));
        for (files, what) in [(self.there, "there already"), (self.no_room, "without room"), (self.failed, "failed")] {
            if files > 0 {
                text.push_str(&format!("; {files} {what}"));
            }
        }
        if self.state == JobState::Cancelled {
            text.push_str("; cancelled");
        }
        text
    }
}

impl Staging {
    /// The text of `.dlio/staging`. Ends with a newline.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        self.lines(&mut out).expect("formatting into memory");
        out
    }

    /// The same as JSON, one object. Ends with a newline.
    pub fn json(&self) -> String {
        json::document(self)
    }

    fn lines(&self, out: &mut String) -> std::fmt::Result {
        let Staging { copies, copies_bytes, promoted, passed_over, .. } = self;
        writeln!(out, "{} on the fast tier, {}", count(*copies, "staged file"), bytes(*copies_bytes))?;
        if promoted + passed_over > 0 {
            writeln!(out, "promoted because they were read: {promoted}; passed over: {passed_over}")?;
        }
        if self.paused {
            writeln!(out, "PAUSED: dlio-fs stage --resume lets it go on")?;
        }
        for job in &self.jobs {
            let told = if job.state == JobState::Running { job.progress() } else { job.result() };
            let what = readable(&one_line(&job.what));
            writeln!(out, "\n{:>4}  {:<10}{what}\n      {told}", job.number, <&str>::from(job.state))?;
            for StagingFailure { path, why } in job.failures.iter().take(FAILURES_SHOWN) {
                writeln!(out, "      {}: {}", readable(path), one_line(why))?;
            }
            let more = job.failures.len().saturating_sub(FAILURES_SHOWN);
            if more > 0 {
                writeln!(out, "      and {more} more: .dlio/staging.json")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobStatus {
        JobStatus {
            pending: 30,
            complete: 10,
            complete_bytes: 10 << 20,
            there: 2,
            took: Duration::from_secs(5),
            ..JobStatus::new(3, "/data")
        }
    }

    #[test]
    fn progress_tells_how_much_is_left() {
        assert_eq!(job().progress(), "12 of 42 files, 10.0 MiB, 2.0 MiB/s, 15 s to go");
        let looking = JobStatus { directories: 4, ..job() };
        assert!(looking.progress().ends_with("4 directories to look through"), "{}", looking.progress());
        assert_eq!(JobStatus::new(1, "/data").progress(), "0 of 0 files, 0 B");
    }

    #[test]
    fn the_result_names_what_is_missing() {
        let done = JobStatus { pending: 0, state: JobState::Done, no_room: 1, failed: 2, ..job() };
        assert_eq!(done.result(), "10 files staged, 10.0 MiB; 2 there already; 1 without room; 2 failed");
    }

    #[test]
    fn the_text_names_failures_and_says_where_the_others_are() {
        let failures = (0..25).map(|n| StagingFailure { path: format!("/data/{n}"), why: "gone\naway".to_owned() });
        let done = JobStatus { state: JobState::Done, failed: 25, failures: failures.collect(), ..job() };
        let text = Staging { paused: true, jobs: vec![done], ..Staging::default() }.text();
        assert!(
            text.contains("PAUSED") && text.contains("/data/19: gone away\n") && !text.contains("/data/20:"),
            "{text}"
        );
        assert!(text.ends_with("and 5 more: .dlio/staging.json\n"), "{text}");
    }
}
