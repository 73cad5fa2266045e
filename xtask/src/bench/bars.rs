//! What dlio-fs is to reach, and whether it does: the only place where a limit stands. Pure.
//!
//! A ratio is that of paired runs, from the figures as they are: nothing is computed here but which side of a limit it lies on.

use std::fmt;

use super::figures::{Measured, Ratio, Results, Row};
use super::peers::{BINDFS, BINDFS_FAST, LOGGEDFS, MERGERFS, MERGERFS_CACHED, NO_PROFILE, OBSERVED, RCLONE};

/// How a ratio of ours to theirs is bounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// At most so many times as slow, whichever way the case counts.
    NoSlower(f64),
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
    pub(crate) place: &'static str,
    /// Every one of these places.
    pub(crate) to: &'static [&'static str],
    limit: Limit,
}

const EXACT: &str = "mount exact";
const STAGED: &str = "mount exact staged";
const PASSTHROUGH: &str = "mount passthrough";
const MERGED: &[&str] = &[MERGERFS.name, MERGERFS_CACHED.name, BINDFS.name, BINDFS_FAST.name];
const EVERYBODY: &[&str] =
    &[MERGERFS.name, MERGERFS_CACHED.name, BINDFS.name, BINDFS_FAST.name, RCLONE.name, LOGGEDFS.name];
const BLOCKED: Cases = Cases::Named(&["application blocked"]);
const EPOCH: Cases = Cases::Named(&["read, 1 thread", "read, 2 threads", "read, 4 threads", "read, 8 threads"]);
const LARGE: Cases = Cases::Named(&["sequential read, 64 KiB", "sequential read, 1 MiB"]);
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
        text: "the same: until all is on the slow tier",
        cases: Cases::Named(&["until all is on the slow tier"]),
        place: EXACT,
        to: &["slow"],
        limit: Limit::AtMost(1.05),
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
        part: "files",
        text: "a large file, hot, in blocks of 64 KiB and more, passthrough",
        cases: LARGE,
        place: PASSTHROUGH,
        to: &["fast"],
        limit: Limit::AtLeast(0.95),
    },
    Bar {
        part: "files",
        text: "the same, exact",
        cases: LARGE,
        place: EXACT,
        to: &["fast"],
        limit: Limit::AtLeast(0.55),
    },
    Bar {
        part: "files",
        text: "112 KB files, hot, 1 and 4 threads: passthrough ahead of every peer in its best setting",
        cases: Cases::Named(&["small files, 1 thread", "small files, 4 threads"]),
        place: PASSTHROUGH,
        to: EVERYBODY,
        limit: Limit::AtMost(1.0),
    },
    Bar {
        part: "files",
        text: "the same, 1 thread, exact",
        cases: Cases::Named(&["small files, 1 thread"]),
        place: EXACT,
        to: &["fast"],
        limit: Limit::AtMost(100.0 / 24.0),
    },
    Bar {
        part: "files",
        text: "the same, 4 threads, exact",
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
        text: "create + write 4 KiB + close, stat, rename, unlink: ahead of mergerfs and bindfs in either setting",
        cases: Cases::Named(&["create and write 4 KiB", "stat, first", "stat, again", "rename", "unlink"]),
        place: EXACT,
        to: MERGED,
        limit: Limit::AtMost(1.0),
    },
    Bar {
        part: "files",
        text: "a large file read in blocks of 4 KiB, hot, exact",
        cases: Cases::Named(&["sequential read, 4 KiB"]),
        place: EXACT,
        to: &[MERGERFS.name],
        limit: Limit::AtLeast(2.0),
    },
    Bar {
        part: "listing",
        text: "find over 100,000 files, and ls of one directory with as many: ahead of mergerfs and bindfs in either setting",
        cases: LISTING,
        place: EXACT,
        to: MERGED,
        limit: Limit::AtMost(1.0),
    },
    Bar {
        part: "listing",
        text: "the same, beside the fast tier itself",
        cases: LISTING,
        place: EXACT,
        to: &["fast"],
        limit: Limit::AtMost(1.5),
    },
    Bar {
        part: "cost",
        text: "observation, beside a mount with `--no-profile`: any figure",
        cases: Cases::All,
        place: OBSERVED.name,
        to: &[NO_PROFILE.name],
        limit: Limit::NoSlower(1.02),
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
            Verdict::Holds => "holds",
            Verdict::Within => "within the interval",
            Verdict::Missed => "**missed**",
            Verdict::NoFigure => "**no such figure**",
        })
    }
}

/// One ratio beside its limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Check {
    pub(crate) case: String,
    pub(crate) to: String,
    pub(crate) ratio: Option<Ratio>,
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
    /// `mount exact / fast at most 1.050`.
    pub(crate) fn limit(&self) -> String {
        let to = if let [one] = self.to { one } else { "each" };
        let (words, limit) = match self.limit {
            Limit::AtMost(limit) => ("at most", limit),
            Limit::AtLeast(limit) => ("at least", limit),
            Limit::NoSlower(limit) => ("no slower than by", limit),
        };
        format!("{} / {to} {words} {limit:.3}", self.place)
    }

    pub(crate) fn judge(&self, measured: &[(Measured, Results)]) -> Judged {
        let results = measured.iter().find(|(measured, _)| measured.part == self.part).map(|(_, results)| results);
        let mut checks = results.map_or_else(Vec::new, |results| self.checks(results));
        let worst = |check: &Check| (check.verdict, check.distance);
        checks.sort_by(|a, b| worst(b).partial_cmp(&worst(a)).unwrap_or(std::cmp::Ordering::Equal));
        Judged { bar: *self, checks }
    }

    fn checks(&self, results: &Results) -> Vec<Check> {
        let ours = |case: &str| results.rows.iter().find(|row| row.case == case && row.place == self.place);
        let cases = match self.cases {
            Cases::Named(names) => names.to_vec(),
            Cases::All => results.cases().into_iter().filter(|case| ours(case).is_some()).collect(),
        };
        let check = |case: &str, to: &str| match ours(case).and_then(|row| Some((row, row.ratio(to)?))) {
            Some((row, ratio)) => self.check(row, ratio),
            None => Check {
                case: case.to_owned(),
                to: to.to_owned(),
                ratio: None,
                verdict: Verdict::NoFigure,
                distance: f64::INFINITY,
            },
        };
        let checks: Vec<Check> = cases
            .iter()
            .flat_map(|case| self.to.iter().map(move |to| (case, to)))
            .map(|(case, to)| check(case, to))
            .collect();
        if checks.is_empty() { vec![check("any", self.place)] } else { checks }
    }

    fn check(&self, row: &Row, ratio: &Ratio) -> Check {
        let at_most = |limit: f64| (ratio.low <= limit, ratio.median / limit);
        let at_least = |limit: f64| (ratio.high >= limit, limit / ratio.median);
        let (within, distance) = match self.limit {
            Limit::AtMost(limit) => at_most(limit),
            Limit::AtLeast(limit) => at_least(limit),
            Limit::NoSlower(limit) if row.less_is_better => at_most(limit),
            Limit::NoSlower(limit) => at_least(1.0 / limit),
        };
        let verdict = match (distance <= 1.0, within) {
            (true, _) => Verdict::Holds,
            (false, true) => Verdict::Within,
            (false, false) => Verdict::Missed,
        };
        Check { case: row.case.clone(), to: ratio.to.clone(), ratio: Some(ratio.clone()), verdict, distance }
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

    /// One that holds, one of several cases that does not, one of what was not measured, one without figures.
    pub(crate) fn sample_bars() -> Vec<Bar> {
        let bar =
            |part, text, cases, to, limit| Bar { part, text, cases: Cases::Named(cases), place: EXACT, to, limit };
        vec![
            bar("files", "small files", &[SMALL], &["fast"], Limit::AtMost(4.0)),
            bar("files", "large files", &[SMALL, LARGE], &["fast"], Limit::AtLeast(0.55)),
            bar("files", "small files, ahead of peers", &[SMALL], &["mergerfs", "bindfs"], Limit::AtMost(0.45)),
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
        let order: Vec<_> = both.checks.iter().map(|check| (check.to.as_str(), check.verdict)).collect();
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
            assert_eq!((worst.verdict, &worst.ratio), (Verdict::NoFigure, &None));
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

    #[test]
    fn a_limit_in_words() {
        assert_eq!(judged(&[], &["fast"], Limit::AtMost(1.05)).bar.limit(), "mount exact / fast at most 1.050");
        assert_eq!(judged(&[], &["a", "b"], Limit::AtLeast(2.0)).bar.limit(), "mount exact / each at least 2.000");
        assert_eq!(judged(&[], &["a"], Limit::NoSlower(1.02)).bar.limit(), "mount exact / a no slower than by 1.020");
    }
}
