//! The results of a measurement, as they are stored. Pure.
//!
//! The JSON is [`Results`] field by field; `format` changes when its readers would have to.

use dlio_fs::stats::render::bytes;
use serde::{Deserialize, Serialize};

use super::sums::{self, Estimate};

/// The format of the JSON.
pub(crate) const FORMAT: u32 = 1;

/// One benchmark, with all its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) format: u32,
    /// `tiers`, `ingest`, `epoch`, `interference`, `checkpoint`, `ranks`, `files`, `blocks`, `metadata`, `drain`, `growth` or `trace`.
    pub(crate) bench: String,
    pub(crate) version: String,
    pub(crate) machine: Machine,
    pub(crate) tiers: MeasuredTiers,
    /// As shown, in order.
    pub(crate) settings: Vec<(String, String)>,
    /// What was cold at the start of each measurement: `dropped`, `file data only` or `hot`.
    pub(crate) caches: String,
    pub(crate) rows: Vec<Row>,
    pub(crate) devices: Vec<Course>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cpus: usize,
    /// Bytes.
    pub(crate) memory: u64,
    pub(crate) cpu: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredTiers {
    pub(crate) fast: TierInfo,
    pub(crate) slow: TierInfo,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TierInfo {
    /// As the user gave it.
    pub(crate) path: String,
    pub(crate) file_system: String,
    /// As in `/proc/diskstats`; `None` behind a tmpfs or a network file system.
    pub(crate) device: Option<String>,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "B/s")]
    Bytes,
    #[serde(rename = "files/s")]
    Files,
    #[serde(rename = "B")]
    Size,
    #[serde(rename = "events/s")]
    Events,
    #[serde(rename = "operations/s")]
    Operations,
    #[serde(rename = "steps/s")]
    Steps,
    #[serde(rename = "accelerators")]
    Accelerators,
    /// Percent of a time in which something is busy.
    #[serde(rename = "%")]
    Utilisation,
    /// Percent fewer in the same time; below zero for more.
    #[serde(rename = "% slower")]
    Slowdown,
}

impl Unit {
    /// True for times, sizes and slowdowns, false for rates.
    pub(crate) fn less_is_better(self) -> bool {
        matches!(self, Unit::Seconds | Unit::Microseconds | Unit::Size | Unit::Slowdown)
    }
}

/// One case at one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The part before its first comma is the kind of case: `read, 4 threads`.
    pub(crate) case: String,
    pub(crate) unit: Unit,
    pub(crate) less_is_better: bool,
    pub(crate) place: String,
    pub(crate) runs: Vec<f64>,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// The ratio to every other place that has the case, from paired runs.
    pub(crate) ratios: Vec<Ratio>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) to: String,
    #[serde(flatten)]
    pub(crate) of: Estimate,
}

/// The traffic of a device over time, while one place was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Course {
    /// `fast`, `slow`, or `fast and slow` if both are on it.
    pub(crate) tier: String,
    /// As in `/proc/diskstats`.
    pub(crate) device: String,
    /// What was measured meanwhile; empty for a trace.
    pub(crate) place: String,
    /// The interval of the figures below, in seconds.
    pub(crate) every: f64,
    /// Bytes per second.
    pub(crate) read: Vec<f64>,
    pub(crate) written: Vec<f64>,
    /// Moments, in seconds since the first figure.
    pub(crate) marks: Vec<(f64, String)>,
}

/// Collects figures as they come, run by run.
#[derive(Debug, Default)]
pub(crate) struct ResultTable {
    rows: Vec<Row>,
    /// In order.
    cases: Vec<String>,
    /// Where a case that is not known yet is put: behind the last one that came.
    next: usize,
}

impl ResultTable {
    /// Adds one run's figure. Cases and places keep the order in which they came; a case that only some places have stands
    /// behind the one that came before it there.
    pub(crate) fn add(&mut self, place: &str, case: &str, unit: Unit, figure: f64) {
        let known = self.cases.iter().position(|known| known == case);
        let at = known.unwrap_or_else(|| {
            self.cases.insert(self.next, case.to_owned());
            self.next
        });
        self.next = at + 1;
        match self.rows.iter_mut().find(|row| row.place == place && row.case == case) {
            Some(row) => row.runs.push(figure),
            None => self.rows.push(Row {
                case: case.to_owned(),
                unit,
                less_is_better: unit.less_is_better(),
                place: place.to_owned(),
                runs: vec![figure],
                median: 0.0,
                least: 0.0,
                most: 0.0,
                ratios: Vec::new(),
            }),
        }
    }

    /// All rows, case by case, within a case in the order of `places`, with medians, ranges and ratios.
    pub(crate) fn rows(mut self, places: &[String]) -> Vec<Row> {
        let at = |of: &[String], name: &str| of.iter().position(|one| one == name);
        self.rows.sort_by_key(|row| (at(&self.cases, &row.case), at(places, &row.place)));
        let all = self.rows.clone();
        for row in &mut self.rows {
            row.median = sums::median(&row.runs).unwrap_or_default();
            row.least = row.runs.iter().copied().fold(f64::INFINITY, f64::min);
            row.most = row.runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            // A slowdown is a difference already, and may be nothing.
            let compared = row.unit != Unit::Slowdown;
            // A run that has no figure of one of them makes no pair, and which one it was is not known here.
            let paired = |other: &Row| other.case == row.case && other.runs.len() == row.runs.len();
            let others = all.iter().filter(|other| compared && paired(other) && other.place != row.place);
            let ratio = |other: &Row| Some(Ratio { to: other.place.clone(), of: sums::ratio(&row.runs, &other.runs)? });
            row.ratios = others.filter_map(ratio).collect();
        }
        self.rows
    }
}

/// The distinct names, in the order of their first occurrence.
pub(crate) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if !all.iter().any(|known| known == name) {
            all.push(name.to_owned());
        }
    }
    all
}

impl Results {
    /// The cases, in order.
    pub(crate) fn cases(&self) -> Vec<String> {
        distinct(self.rows.iter().map(|row| row.case.as_str()))
    }

    /// The places, in order.
    pub(crate) fn places(&self) -> Vec<String> {
        distinct(self.rows.iter().map(|row| row.place.as_str()))
    }

    pub(crate) fn rows_of(&self, case: &str) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.case == case)
    }

    /// How it was measured, as label and value.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let tier = |tier: &TierInfo| {
            let device = tier.device.as_deref().unwrap_or("no block device");
            format!("{} ({}, {device})", tier.path, tier.file_system)
        };
        let Machine { kernel, cpus, memory, cpu } = &self.machine;
        let machine = format!("{cpus} x {cpu}, {} of memory, Linux {kernel}", bytes(*memory));
        let rest = [
            ("caches", self.caches.clone()),
            ("fast", tier(&self.tiers.fast)),
            ("slow", tier(&self.tiers.slow)),
            ("machine", machine),
            ("version", self.version.clone()),
        ];
        self.settings.iter().cloned().chain(rest.map(|(name, value)| (name.to_owned(), value))).collect()
    }

    /// Ends with a newline.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).map(|text| text + "\n").unwrap_or_default()
    }

    /// One sentence on how reliable the ratios are; `None` without ratios.
    pub(crate) fn note(&self) -> Option<String> {
        let of = &self.rows.iter().find_map(|row| Some((row.ratios.first()?.of, row.runs.len())))?;
        let (Estimate { level, .. }, runs) = *of;
        let interval = match level {
            level if level <= 0.0 => return Some("Ratios come from one run: their precision is unknown.".to_owned()),
            level if runs < 6 => format!(
                "the whole range, which contains the true ratio with {:.0} %; from 6 runs on with 95 %",
                level * 100.0
            ),
            level => format!("an interval that contains the true ratio with {:.1} %", level * 100.0),
        };
        Some(format!("Ratios: the median of {runs} paired runs, and in brackets {interval}."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_of_some_places_stands_where_it_came() {
        let mut table = ResultTable::default();
        let of_mount = ["loop, alone", "loop, while it drains", "slowdown", "drained"];
        for case in ["loop, alone", "slowdown", "wait"] {
            table.add("slow", case, Unit::Seconds, 1.0);
        }
        of_mount.iter().for_each(|case| table.add("mount", case, Unit::Seconds, 1.0));
        let rows = table.rows(&["slow".to_owned(), "mount".to_owned()]);
        let cases = distinct(rows.iter().map(|row| row.case.as_str()));
        assert_eq!(cases, ["loop, alone", "loop, while it drains", "slowdown", "drained", "wait"]);
    }

    #[test]
    fn rows_come_case_by_case_with_paired_ratios() {
        let mut table = ResultTable::default();
        for (run, by) in [1.0, 2.0, 4.0].into_iter().enumerate() {
            // Another place is first in each run.
            let mut places = [("slow", 20.0), ("fast", 10.0)];
            places.rotate_left(run % 2);
            for (place, figure) in places {
                table.add(place, "write", Unit::Seconds, figure * by);
                table.add(place, "read", Unit::Bytes, figure / by);
            }
        }
        table.add("slow", "only here", Unit::Seconds, 1.0);
        ["fast", "slow"].iter().for_each(|place| table.add(place, "slowdown", Unit::Slowdown, -0.5));
        let rows = table.rows(&["fast".to_owned(), "slow".to_owned()]);
        let order: Vec<_> = rows.iter().map(|row| (row.case.as_str(), row.place.as_str())).collect();
        assert_eq!(
            order,
            [
                ("write", "fast"),
                ("write", "slow"),
                ("read", "fast"),
                ("read", "slow"),
                ("only here", "slow"),
                ("slowdown", "fast"),
                ("slowdown", "slow")
            ]
        );
        let slow = &rows[1];
        assert_eq!(
            (slow.runs.as_slice(), slow.least, slow.median, slow.most),
            (&[20.0, 40.0, 80.0][..], 20.0, 40.0, 80.0)
        );
        let ratio = &slow.ratios[0];
        assert_eq!((ratio.to.as_str(), ratio.of.median, ratio.of.low, ratio.of.high), ("fast", 2.0, 2.0, 2.0));
        assert_eq!((ratio.of.level, slow.less_is_better, rows[2].less_is_better), (0.75, true, false));
        assert!(rows[4..].iter().all(|row| row.ratios.is_empty()));
        assert_eq!((rows[5].median, rows[5].less_is_better), (-0.5, true));
    }
}
