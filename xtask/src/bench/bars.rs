//! What dlio-fs is to reach, and whether it does: the only place where a limit stands. Pure.
//!
//! A ratio is that of paired runs, from the figures as they are: nothing is computed here but which side of a limit it lies on. Of a
//! figure that is limited by itself, the least and the most of its runs are the interval.
//!
//! Some targets are beyond what FUSE gives. They stay as they were set, and each has a *restated* bar beside it: the same cases, compared
//! with a bare passthrough: one for which nothing is kept in the kernel, and one for which as much is kept as for dlio-fs.

use std::fmt;

use super::figures::{Measured, Ratio, Results, Row};
use super::peers::{
    BARE, BARE_1MIN, BARE_1S, BINDFS, BINDFS_FAST, FLEET, LOGGEDFS, MERGERFS, MERGERFS_CACHED, NO_PROFILE, OBSERVED,
    RCLONE,
};

/// How a ratio of ours to theirs is bounded; or, where there is nobody to compare with, a figure in this unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// At most so many times as slow, whichever way the case counts.
    NoSlower(f64),
    FigureAtMost(f64, &'static str),
    FigureAtLeast(f64, &'static str),
}

/// The cases that are bounded alike.
#[derive(Clone, Copy, Debug)]
enum Cases {
    Named(&'static [&'static str]),
    /// Each that the place has.
    All,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    pub(crate) part: &'static str,
    pub(crate) text: &'static str,
    cases: Cases,
    /// One, or all that a word stands for: [`FEWEST`], [`MOST`], [`MANY`].
    pub(crate) place: &'static str,
    /// Every one of these places; none for a figure by itself.
    pub(crate) to: &'static [&'static str],
    limit: Limit,
}

/// Places that are numbers of files, from the fewest to the most: whichever were asked for.
const FEWEST: &str = "the fewest files";
const MOST: &str = "the most files";
/// Of fewer, what a process has anyway is as much as what it has for them.
const MANY: &str = "10000 files and more";
const MANY_FROM: u64 = 10_000;

const EXACT: &str = "mount exact";
const STAGED: &str = "mount exact staged";
const PASSTHROUGH: &str = "mount passthrough";
/// A mount whose drain is paused.
pub(super) const PAUSED: &str = "mount exact paused";
/// `cp -a` of a directory from the fast to the slow tier, alone.
pub(super) const CP: &str = "cp";
const MERGED: &[&str] = &[MERGERFS.name, MERGERFS_CACHED.name, BINDFS.name, BINDFS_FAST.name];
const EVERYBODY: &[&str] =
    &[MERGERFS.name, MERGERFS_CACHED.name, BINDFS.name, BINDFS_FAST.name, RCLONE.name, LOGGEDFS.name];
/// For restated bars.
const BESIDE_BARE: Limit = Limit::NoSlower(1.15);
const BLOCKED: Cases = Cases::Named(&["application blocked"]);
const EPOCH: Cases = Cases::Named(&["read, 1 thread", "read, 2 threads", "read, 4 threads", "read, 8 threads"]);
const LARGE: Cases = Cases::Named(&["sequential read, 64 KiB", "sequential read, 1 MiB"]);
const CREATED: Cases = Cases::Named(&["create and write 4 KiB"]);
const READ: Cases = Cases::Named(&["sequential read, 4 KiB", "sequential read, 64 KiB", "sequential read, 1 MiB"]);
const READ_SLOW: Cases = Cases::Named(&[
    "sequential read, 4 KiB, slow files",
    "sequential read, 64 KiB, slow files",
    "sequential read, 1 MiB, slow files",
    "small files, 1 thread, slow files",
    "small files, 4 threads, slow files",
]);
const SMALL: Cases = Cases::Named(&["small files, 1 thread", "small files, 4 threads"]);
const NAMES: Cases = Cases::Named(&["create and write 4 KiB", "stat, first", "stat, again", "rename", "unlink"]);
const FIND: Cases = Cases::Named(&["walk of a tree with stat"]);
const MEMORY: Cases =
    Cases::Named(&["memory per file, looked up", "memory per file, staged", "memory per file, pending"]);
const LATENCY: Cases = Cases::Named(&[
    "walk with stat, nothing known",
    "stat, looked up",
    "stat, pending",
    "open and read, staged",
    "create and write, pending",
]);
const ABSORBED: Cases = Cases::Named(&[
    "write 1 MiB daemon's processor time per GiB, psync, 1 job, buffered",
    "write 1 MiB daemon's processor time per GiB, psync, 4 jobs, buffered",
    "write 1 MiB daemon's processor time per GiB, psync, 1 job, direct",
    "write 1 MiB daemon's processor time per GiB, psync, 4 jobs, direct",
    "write 1 MiB daemon's processor time per GiB, libaio, 1 job, direct",
    "write 1 MiB daemon's processor time per GiB, libaio, 4 jobs, direct",
    "write 1 MiB daemon's processor time per GiB, io_uring, 1 job, direct",
    "write 1 MiB daemon's processor time per GiB, io_uring, 4 jobs, direct",
]);
const LISTING: Cases = Cases::Named(&["walk of a tree with stat", "listing of one directory"]);

pub(crate) const BARS: &[Bar] = &[
    Bar {
        part: "checkpoint",
        text: "five checkpoints of 600 MB, fsync each: the application is blocked no longer than by the fast tier alone",
        cases: BLOCKED,
        place: EXACT,
        to: &["fast"],
        limit: Limit::AtMost(1.0),
    },
    Bar {
        part: "checkpoint",
        text: "the same: the gain over the slow tier alone is at least 0.95 of the fast tier's own",
        cases: BLOCKED,
        place: EXACT,
        to: &["fast"],
        // (slow / mount) / (slow / fast) of the same run.
        limit: Limit::AtMost(1.0 / 0.95),
    },
    Bar {
        part: "checkpoint",
        text: "the same: until all is on the slow tier, which takes 133 MB/s: no more than 1.05 of that time",
        cases: Cases::Named(&["until all is on the slow tier"]),
        place: EXACT,
        to: &[],
        // 3000 MB take 22.56 s.
        limit: Limit::FigureAtMost(23.68, "s"),
    },
    Bar {
        part: "ranks",
        text: "eight ranks save at once: no slower than on the fast tier alone",
        cases: Cases::Named(&["save, slowest rank"]),
        place: EXACT,
        to: &["fast"],
        limit: Limit::AtLeast(1.0),
    },
    Bar {
        part: "ranks",
        text: "the same: until all is on the slow tier, which takes 133 MB/s: no more than 1.05 of that time",
        cases: Cases::Named(&["until all is on the slow tier"]),
        place: EXACT,
        to: &[],
        // 2520 MB take 18.95 s.
        limit: Limit::FigureAtMost(19.90, "s"),
    },
    Bar {
        part: "ranks",
        text: "the same: the daemon's processor time, 0.5 s for each GiB saved and 0.35 s for each drained",
        cases: Cases::Named(&["the daemon's processor time, per GiB saved and drained"]),
        place: EXACT,
        to: &[],
        limit: Limit::FigureAtMost(0.85, "s"),
    },
    Bar {
        part: "ranks",
        text: "the same: the daemon's memory",
        cases: Cases::Named(&["the daemon's memory, at most"]),
        place: EXACT,
        to: &[],
        // 256 MiB.
        limit: Limit::FigureAtMost(268_435_456.0, "B"),
    },
    Bar {
        part: "ingest",
        text: "an epoch from staged files, cold, 1 to 8 threads: files/s",
        cases: EPOCH,
        place: STAGED,
        to: &["fast"],
        limit: Limit::AtLeast(0.95),
    },
    Bar {
        part: "ingest",
        text: "an epoch from files that are not staged, cold, 1 to 8 threads: files/s",
        cases: EPOCH,
        place: EXACT,
        to: &["slow"],
        limit: Limit::AtLeast(0.97),
    },
    Bar {
        part: "interference",
        text: "a training loop while the mount drains at full speed and one processor is free: steps in the same time",
        cases: Cases::Named(&["slowdown, a drain beside it"]),
        place: EXACT,
        to: &[],
        limit: Limit::FigureAtMost(3.0, "% slower"),
    },
    Bar {
        part: "files",
        text: "a large file, hot, in blocks of 64 KiB and more, passthrough",
        cases: LARGE,
        place: PASSTHROUGH,
        to: &["fast"],
        limit: Limit::AtLeast(0.95),
    },
    Bar {
        part: "files",
        text: "the same, exact (as first set; restated below)",
        cases: LARGE,
        place: EXACT,
        to: &["fast"],
        limit: Limit::AtLeast(0.55),
    },
    Bar {
        part: "files",
        text: "112 KB files, hot, 1 and 4 threads: passthrough ahead of every peer in its best setting",
        cases: SMALL,
        place: PASSTHROUGH,
        to: EVERYBODY,
        limit: Limit::AtMost(1.0),
    },
    Bar {
        part: "files",
        text: "the same, 1 thread, exact (as first set; restated below)",
        cases: Cases::Named(&["small files, 1 thread"]),
        place: EXACT,
        to: &["fast"],
        limit: Limit::AtMost(100.0 / 24.0),
    },
    Bar {
        part: "files",
        text: "the same, 4 threads, exact (as first set; restated below)",
        cases: Cases::Named(&["small files, 4 threads"]),
        place: EXACT,
        to: &["fast"],
        limit: Limit::AtMost(55.0 / 14.0),
    },
    Bar {
        part: "files",
        text: "the same, 1 thread, passthrough",
        cases: Cases::Named(&["small files, 1 thread"]),
        place: PASSTHROUGH,
        to: &["fast"],
        limit: Limit::AtMost(45.0 / 24.0),
    },
    Bar {
        part: "files",
        text: "the same, 4 threads, passthrough",
        cases: Cases::Named(&["small files, 4 threads"]),
        place: PASSTHROUGH,
        to: &["fast"],
        limit: Limit::AtMost(28.0 / 14.0),
    },
    Bar {
        part: "files",
        text: "create + write 4 KiB + close, stat, rename, unlink: ahead of mergerfs and bindfs in either setting (as first set; restated below)",
        cases: NAMES,
        place: EXACT,
        to: MERGED,
        limit: Limit::AtMost(1.0),
    },
    Bar {
        part: "files",
        text: "a large file read in blocks of 4 KiB, hot, exact (as first set; restated below)",
        cases: Cases::Named(&["sequential read, 4 KiB"]),
        place: EXACT,
        to: &[MERGERFS.name],
        limit: Limit::AtLeast(2.0),
    },
    Bar {
        part: "files",
        text: "restated: a large file read in blocks of 4 KiB, 64 KiB and 1 MiB, hot, exact: beside a bare FUSE passthrough of the same library",
        cases: READ,
        place: EXACT,
        to: &[BARE.name, BARE_1MIN.name],
        limit: BESIDE_BARE,
    },
    Bar {
        part: "files",
        text: "restated: 112 KB files, hot, 1 and 4 threads, exact: beside the same",
        cases: SMALL,
        place: EXACT,
        to: &[BARE.name, BARE_1MIN.name],
        limit: BESIDE_BARE,
    },
    Bar {
        part: "files",
        text: "the same, files of the slow tier that lie in memory, exact: beside the same",
        cases: READ_SLOW,
        place: EXACT,
        to: &[BARE.name, BARE_1MIN.name],
        limit: BESIDE_BARE,
    },
    Bar {
        part: "files",
        text: "restated: create + write 4 KiB + close, stat, rename, unlink: beside the same",
        cases: NAMES,
        place: EXACT,
        to: &[BARE.name, BARE_1MIN.name],
        limit: BESIDE_BARE,
    },
    Bar {
        part: "listing",
        text: "find over 100,000 files, and ls of one directory with as many: ahead of mergerfs and bindfs in either setting (as first set; restated below)",
        cases: LISTING,
        place: EXACT,
        to: MERGED,
        limit: Limit::AtMost(1.0),
    },
    Bar {
        part: "listing",
        text: "the same, beside the fast tier itself (as first set; restated below)",
        cases: LISTING,
        place: EXACT,
        to: &["fast"],
        limit: Limit::AtMost(1.5),
    },
    Bar {
        part: "listing",
        text: "restated: find over 100,000 files: beside a bare FUSE passthrough of the same library",
        cases: FIND,
        place: EXACT,
        to: &[BARE.name, BARE_1S.name],
        limit: BESIDE_BARE,
    },
    Bar {
        part: "cost",
        text: "observation, beside a mount with `--no-profile`: any figure",
        cases: Cases::All,
        place: OBSERVED.name,
        to: &[NO_PROFILE.name],
        limit: Limit::NoSlower(1.02),
    },
    Bar {
        part: "fleet",
        text: "one of three mounts that are a fleet, beside one that is in none; without the wait for clocks: any figure",
        cases: Cases::All,
        place: FLEET.name,
        to: &[OBSERVED.name],
        limit: Limit::NoSlower(1.03),
    },
    Bar {
        part: "blocks",
        text: "blocks of 1 MiB written while the drain is paused: the daemon's processor time for each GiB, until it is durable",
        cases: ABSORBED,
        place: PAUSED,
        to: &[],
        limit: Limit::FigureAtMost(0.5, "s"),
    },
    Bar {
        part: "drain",
        text: "create + write 4 KiB + close while the drain copies, beside a mount whose drain is paused",
        cases: CREATED,
        place: EXACT,
        to: &[PAUSED],
        limit: Limit::AtMost(1.3),
    },
    Bar {
        part: "drain",
        text: "the same, beside mergerfs",
        cases: CREATED,
        place: EXACT,
        to: &[MERGERFS.name],
        limit: Limit::AtMost(1.0),
    },
    Bar {
        part: "drain",
        text: "a directory of 2,000 files of 4 KiB copied into the mount until all are on the slow tier, beside `cp -a` to the slow tier and \
               a sync: files/s",
        cases: Cases::Named(&["small files, until all are slow"]),
        place: EXACT,
        to: &[CP],
        limit: Limit::AtLeast(1.0),
    },
    Bar {
        part: "growth",
        text: "memory for each file, whether it is looked up, staged or pending",
        cases: MEMORY,
        place: MANY,
        to: &[],
        limit: Limit::FigureAtMost(400.0, "B"),
    },
    Bar {
        part: "growth",
        text: "the time of a stat, an open with a read, a create with a write: of the most files as of the fewest",
        cases: LATENCY,
        place: MOST,
        to: &[FEWEST],
        limit: Limit::AtMost(1.5),
    },
    Bar {
        part: "growth",
        text: "a mount is ready, whether nothing is known or all is staged",
        cases: Cases::Named(&["mount ready, nothing known", "mount ready, staged"]),
        place: MOST,
        to: &[],
        limit: Limit::FigureAtMost(1.0, "s"),
    },
    Bar {
        part: "growth",
        text: "recovery after a kill with all of them pending",
        cases: Cases::Named(&["recovery"]),
        place: MOST,
        to: &[],
        limit: Limit::FigureAtLeast(100_000.0, "events/s"),
    },
];

/// From good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Holds,
    /// The median is on the bad side, the limit within the interval.
    Within,
    Missed,
    /// The part was measured and has no such row: a case or a place has another name.
    NoFigure,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Holds => "met",
            Verdict::Within => "undecided",
            Verdict::Missed => "**missed**",
            Verdict::NoFigure => "**no such figure**",
        })
    }
}

/// What is held against a limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    Ratio(Ratio),
    Figure(Row),
}

/// One ratio or figure beside its limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Check {
    pub(crate) case: String,
    /// What it is compared with; of a figure by itself, where it was measured.
    pub(crate) place: String,
    pub(crate) found: Option<Found>,
    pub(crate) verdict: Verdict,
    /// Below 1 on the good side of the limit; the greatest is the worst.
    distance: f64,
}

/// A bar and all that it was judged by.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) bar: Bar,
    /// The worst first; none if the part was not measured.
    pub(crate) checks: Vec<Check>,
}

impl Bar {
    /// `mount exact / fast at most 1.050`, `the most files at most 1 s`.
    pub(crate) fn limit(&self) -> String {
        let to = if let [one] = self.to { one } else { "each" };
        let ratio = |words: &str, limit: f64| format!("{} / {to} {words} {limit:.3}", self.place);
        match self.limit {
            Limit::AtMost(limit) => ratio("at most", limit),
            Limit::AtLeast(limit) => ratio("at least", limit),
            Limit::NoSlower(limit) => ratio("no slower than by", limit),
            Limit::FigureAtMost(limit, unit) => format!("{} at most {limit} {unit}", self.place),
            Limit::FigureAtLeast(limit, unit) => format!("{} at least {limit} {unit}", self.place),
        }
    }

    /// Whether its places are numbers of files.
    #[cfg(test)]
    pub(super) fn is_of_numbers(&self) -> bool {
        [FEWEST, MOST, MANY].contains(&self.place)
    }

    pub(crate) fn judge(&self, measured: &[(Measured, Results)]) -> Judged {
        let results = measured.iter().find(|(measured, _)| measured.part == self.part).map(|(_, results)| results);
        let mut checks = results.map_or_else(Vec::new, |results| self.checks(results));
        let worst = |check: &Check| (check.verdict, check.distance);
        checks.sort_by(|a, b| worst(b).partial_cmp(&worst(a)).unwrap_or(std::cmp::Ordering::Equal));
        Judged { bar: *self, checks }
    }

    fn checks(&self, results: &Results) -> Vec<Check> {
        let places = stands_for(self.place, results);
        let ours = |case: &str, place: &str| results.rows.iter().find(|row| row.case == case && row.place == place);
        let cases = match self.cases {
            Cases::Named(names) => names.to_vec(),
            Cases::All => {
                let is_there = |case: &&str| places.iter().any(|place| ours(case, place).is_some());
                results.cases().into_iter().filter(is_there).collect()
            }
        };
        let to: Vec<&str> = self.to.iter().flat_map(|to| stands_for(to, results)).collect();
        let mut checks = Vec::new();
        for (case, place) in cases.iter().flat_map(|case| places.iter().map(move |place| (case, place))) {
            let row = ours(case, place);
            match self.to {
                [] => checks.push(self.check_figure(case, place, row)),
                _ => checks.extend(to.iter().map(|to| self.check_ratio(case, to, row))),
            }
        }
        if checks.is_empty() { vec![no_figure("any", self.place)] } else { checks }
    }

    fn check_ratio(&self, case: &str, to: &str, row: Option<&Row>) -> Check {
        let Some((row, ratio)) = row.and_then(|row| Some((row, row.ratio(to)?))) else { return no_figure(case, to) };
        let (within, distance) = match self.limit {
            Limit::AtMost(limit) => at_most(limit, ratio.median, ratio.low),
            Limit::AtLeast(limit) => at_least(limit, ratio.median, ratio.high),
            Limit::NoSlower(limit) if row.less_is_better => at_most(limit, ratio.median, ratio.low),
            Limit::NoSlower(limit) => at_least(1.0 / limit, ratio.median, ratio.high),
            Limit::FigureAtMost(..) | Limit::FigureAtLeast(..) => return no_figure(case, to),
        };
        let (found, verdict) = (Some(Found::Ratio(ratio.clone())), verdict(within, distance));
        Check { case: case.to_owned(), place: to.to_owned(), found, verdict, distance }
    }

    fn check_figure(&self, case: &str, place: &str, row: Option<&Row>) -> Check {
        let (within, distance) = match (row, self.limit) {
            (Some(row), Limit::FigureAtMost(limit, unit)) if row.unit == unit => at_most(limit, row.median, row.least),
            (Some(row), Limit::FigureAtLeast(limit, unit)) if row.unit == unit => at_least(limit, row.median, row.most),
            _ => return no_figure(case, place),
        };
        let (found, verdict) = (row.cloned().map(Found::Figure), verdict(within, distance));
        Check { case: case.to_owned(), place: place.to_owned(), found, verdict, distance }
    }
}

/// The places of the results that a name means.
fn stands_for<'a>(name: &'a str, results: &'a Results) -> Vec<&'a str> {
    let places = results.places();
    let number = |place: &str| place.split(' ').next().and_then(|number| number.parse::<u64>().ok());
    match name {
        FEWEST => places.first().copied().into_iter().collect(),
        MOST => places.last().copied().into_iter().collect(),
        MANY => places.into_iter().filter(|place| number(place).is_some_and(|files| files >= MANY_FROM)).collect(),
        one => vec![one],
    }
}

fn no_figure(case: &str, place: &str) -> Check {
    let (case, place) = (case.to_owned(), place.to_owned());
    Check { case, place, found: None, verdict: Verdict::NoFigure, distance: f64::INFINITY }
}

/// Whether the interval reaches the limit, and how far the median is from it.
fn at_most(limit: f64, median: f64, low: f64) -> (bool, f64) {
    (low <= limit, median / limit)
}

fn at_least(limit: f64, median: f64, high: f64) -> (bool, f64) {
    (high >= limit, limit / median)
}

fn verdict(within: bool, distance: f64) -> Verdict {
    match (distance <= 1.0, within) {
        (true, _) => Verdict::Holds,
        (false, true) => Verdict::Within,
        (false, false) => Verdict::Missed,
    }
}

impl Judged {
    /// What decides; none if the part was not measured.
    pub(crate) fn worst(&self) -> Option<&Check> {
        self.checks.first()
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::figures::tests::sample;
    use super::*;

    const SMALL: &str = "read 112 KB files, 1 thread";
    const LARGE: &str = "read large file, 4 KiB";

    /// One that holds, one of several cases that does not, one of what was not measured, one by itself, one without figures.
    pub(crate) fn sample_bars() -> Vec<Bar> {
        let bar =
            |part, text, cases, to, limit| Bar { part, text, cases: Cases::Named(cases), place: EXACT, to, limit };
        vec![
            bar("files", "small files", &[SMALL], &["fast"], Limit::AtMost(4.0)),
            bar("files", "large files", &[SMALL, LARGE], &["fast"], Limit::AtLeast(0.55)),
            bar("files", "small files, ahead of peers", &[SMALL], &["mergerfs", "bindfs"], Limit::AtMost(0.45)),
            bar("files", "small files, by themselves", &[SMALL, "none"], &[], Limit::FigureAtMost(99.0, "us")),
            bar("tiers", "tiers", &[LARGE], &["slow"], Limit::NoSlower(1.02)),
        ]
    }

    fn judged(cases: &'static [&'static str], to: &'static [&'static str], limit: Limit) -> Judged {
        let bar = Bar { part: "files", text: "", cases: Cases::Named(cases), place: EXACT, to, limit };
        let measured = sample();
        let results = measured.results().unwrap();
        bar.judge(&[(measured, results)])
    }

    /// The sample's ratio to `fast` is 4.00 (3.50 to 4.25), and 0.0728 (0.07 to 0.08) where more is better.
    #[test]
    fn a_limit_is_held_by_the_median_or_by_the_interval_or_not() {
        let verdict = |cases, limit| judged(cases, &["fast"], limit).worst().unwrap().verdict;
        for (limit, expected) in [(4.0, Verdict::Holds), (3.5, Verdict::Within), (3.49, Verdict::Missed)] {
            assert_eq!(verdict(&[SMALL], Limit::AtMost(limit)), expected, "at most {limit}");
        }
        for (limit, expected) in [(0.0728, Verdict::Holds), (0.08, Verdict::Within), (0.081, Verdict::Missed)] {
            assert_eq!(verdict(&[LARGE], Limit::AtLeast(limit)), expected, "at least {limit}");
        }
        // 4 times as slow, and 1 / 0.0728 = 13.7 times.
        for (limit, expected) in [(4.0, Verdict::Holds), (3.6, Verdict::Within), (3.4, Verdict::Missed)] {
            assert_eq!(verdict(&[SMALL], Limit::NoSlower(limit)), expected, "no slower than by {limit}");
        }
        for (limit, expected) in [(13.8, Verdict::Holds), (13.0, Verdict::Within), (12.4, Verdict::Missed)] {
            assert_eq!(verdict(&[LARGE], Limit::NoSlower(limit)), expected, "no slower than by {limit}");
        }
    }

    #[test]
    fn the_worst_decides() {
        let both = judged(&[SMALL], &["mergerfs", "fast"], Limit::AtMost(1.0));
        let order: Vec<_> = both.checks.iter().map(|check| (check.place.as_str(), check.verdict)).collect();
        assert_eq!(order, [("fast", Verdict::Missed), ("mergerfs", Verdict::Holds)]);
        // Of two that are missed, the one that is further off.
        let order = judged(&[LARGE, SMALL], &["fast"], Limit::AtLeast(100.0));
        assert_eq!(order.worst().unwrap().case, LARGE);
    }

    #[test]
    fn what_has_no_row_is_said_and_not_passed_over() {
        for judged in [
            judged(&["read 112 KB files, 9 threads"], &["fast"], Limit::AtMost(9.0)),
            judged(&[SMALL], &["fast", "nobody"], Limit::AtMost(9.0)),
        ] {
            let worst = judged.worst().unwrap();
            assert_eq!((worst.verdict, &worst.found), (Verdict::NoFigure, &None));
        }
        let nowhere =
            Bar { place: "mount nowhere", cases: Cases::All, ..judged(&[], &["fast"], Limit::AtMost(1.0)).bar };
        let measured = sample();
        let results = measured.results().unwrap();
        assert_eq!(nowhere.judge(&[(measured, results)]).worst().unwrap().verdict, Verdict::NoFigure);
    }

    #[test]
    fn a_part_that_was_not_measured_is_not_judged() {
        let bar = Bar { part: "tiers", ..judged(&[SMALL], &["fast"], Limit::AtMost(1.0)).bar };
        let measured = sample();
        let results = measured.results().unwrap();
        assert!(bar.judge(&[(measured, results)]).worst().is_none());
    }

    #[test]
    fn all_cases_are_those_of_the_place() {
        let bar = Bar { cases: Cases::All, ..judged(&[], &["fast"], Limit::NoSlower(14.0)).bar };
        let measured = sample();
        let results = measured.results().unwrap();
        let judged = bar.judge(&[(measured, results)]);
        assert_eq!(judged.checks.iter().map(|check| check.case.as_str()).collect::<Vec<_>>(), [LARGE, SMALL]);
        assert_eq!(judged.worst().unwrap().verdict, Verdict::Holds);
    }

    /// The sample's places as numbers of files: 100 us (96 to 104), 25 (24 to 26), 200 (200 to 210).
    fn of_numbers(place: &'static str, to: &'static [&'static str], limit: Limit) -> Vec<(String, Verdict)> {
        let named = |place: &mut String| {
            let names = [(EXACT, "1000 files"), ("fast", "10000 files"), ("mergerfs", "100000 files")];
            if let Some((_, to)) = names.iter().find(|(from, _)| place == from) {
                *place = (*to).to_owned();
            }
        };
        let mut results = sample().results().unwrap();
        for row in &mut results.rows {
            named(&mut row.place);
            row.ratios.iter_mut().for_each(|ratio| named(&mut ratio.to));
        }
        let bar = Bar { place, ..judged(&[SMALL], to, limit).bar };
        let checks = bar.judge(&[(sample(), results)]).checks;
        checks.into_iter().map(|check| (check.place, check.verdict)).collect()
    }

    #[test]
    fn a_figure_is_limited_by_itself_wherever_it_is_meant() {
        let at = |place: &str, verdict| (place.to_owned(), verdict);
        let most = |limit| of_numbers(MOST, &[], Limit::FigureAtMost(limit, "us"));
        assert_eq!(most(200.0), [at("100000 files", Verdict::Holds)]);
        assert_eq!(most(199.0), [at("100000 files", Verdict::Missed)]);
        let fewest = |limit| of_numbers(FEWEST, &[], Limit::FigureAtLeast(limit, "us"));
        assert_eq!(fewest(100.0), [at("1000 files", Verdict::Holds)]);
        assert_eq!(fewest(104.0), [at("1000 files", Verdict::Within)]);
        let many = of_numbers(MANY, &[], Limit::FigureAtMost(30.0, "us"));
        assert_eq!(many, [at("100000 files", Verdict::Missed), at("10000 files", Verdict::Holds)]);
        // In another unit it would say nothing.
        let other = of_numbers(MOST, &[], Limit::FigureAtMost(200.0, "B"));
        assert_eq!(other, [at("100000 files", Verdict::NoFigure)]);
    }

    #[test]
    fn the_most_are_compared_with_the_fewest() {
        let ratio = |limit| of_numbers(MOST, &[FEWEST], Limit::AtMost(limit));
        assert_eq!(ratio(2.0), [("1000 files".to_owned(), Verdict::Holds)]);
        assert_eq!(ratio(0.5), [("1000 files".to_owned(), Verdict::Missed)]);
    }

    #[test]
    fn a_limit_in_words() {
        assert_eq!(judged(&[], &["fast"], Limit::AtMost(1.05)).bar.limit(), "mount exact / fast at most 1.050");
        assert_eq!(judged(&[], &["a", "b"], Limit::AtLeast(2.0)).bar.limit(), "mount exact / each at least 2.000");
        assert_eq!(judged(&[], &["a"], Limit::NoSlower(1.02)).bar.limit(), "mount exact / a no slower than by 1.020");
        let by_itself = |place, limit| Bar { place, ..judged(&[], &[], limit).bar }.limit();
        assert_eq!(by_itself(MANY, Limit::FigureAtMost(400.0, "B")), "10000 files and more at most 400 B");
        assert_eq!(by_itself(MOST, Limit::FigureAtLeast(1e5, "events/s")), "the most files at least 100000 events/s");
    }
}
