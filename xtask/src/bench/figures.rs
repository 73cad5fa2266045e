//! What was measured of one part, as it is kept: the JSON of `dlio-fs-bench` as it came, with where and how it was measured.
//!
//! All statistics are the program's; here they are only read.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// Of the file around the program's figures.
const FORMAT: u32 = 1;
/// Of the program's figures.
const RESULTS_FORMAT: u32 = 1;
/// Behind the commit of a tree with changes.
pub(crate) const CHANGED: &str = "-dirty";

/// The file of a part in `docs/benchmarks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    format: u32,
    pub(crate) part: String,
    pub(crate) setup: Setup,
    /// What was mounted beside, in command lines; disks are named by their variables.
    pub(crate) mounts: Vec<String>,
    /// The command line of `dlio-fs-bench`.
    pub(crate) command: String,
    /// Of what the program has written that of which the page is made, with all runs; its pictures are beside it.
    results: Results,
}

/// What the parts of one `cargo xtask bench` share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The day, as 2026-01-31.
    pub(crate) date: String,
    /// What was checked out; none outside of a repository.
    pub(crate) commit: Option<String>,
    /// `fs.fuse.max_pages_limit`; none where the kernel has no such setting.
    pub(crate) max_pages: Option<String>,
    /// Microseconds that a thread takes to wake another one, as `wake.rs` measures it; none where that was not done.
    #[serde(default)]
    pub(crate) wake_up_us: Option<f64>,
    /// Each package and its version.
    pub(crate) versions: Vec<(String, String)>,
    /// By disk and by what was measured of it: `asked`, `measured` and `off`.
    pub(crate) baseline: Value,
    /// Small sizes and few runs: to try the command.
    pub(crate) quick: bool,
}

impl Setup {
    /// Whether what was measured is no commit.
    pub(crate) fn is_of_changes(&self) -> bool {
        self.commit.as_ref().is_some_and(|commit| commit.ends_with(CHANGED))
    }
}

/// Of the program's JSON what is told and judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    format: u32,
    bench: String,
    pub(crate) version: String,
    pub(crate) machine: Machine,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) caches: String,
    pub(crate) rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cpus: u32,
    /// Bytes.
    pub(crate) memory: u64,
    pub(crate) cpu: String,
}

/// One case at one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    /// `s`, `us`, `B`, `B/s`, `files/s`, `events/s`, `operations/s`, `steps/s`, `accelerators`, `%` or `% slower`.
    pub(crate) unit: String,
    pub(crate) less_is_better: bool,
    pub(crate) place: String,
    #[serde(serialize_with = "few_digits_each")]
    pub(crate) runs: Vec<f64>,
    #[serde(serialize_with = "few_digits")]
    pub(crate) median: f64,
    #[serde(serialize_with = "few_digits")]
    pub(crate) least: f64,
    #[serde(serialize_with = "few_digits")]
    pub(crate) most: f64,
    pub(crate) ratios: Vec<Ratio>,
}

/// Of paired runs: the median, and an interval that covers the true one with the probability `level`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) to: String,
    #[serde(serialize_with = "few_digits")]
    pub(crate) median: f64,
    #[serde(serialize_with = "few_digits")]
    pub(crate) low: f64,
    #[serde(serialize_with = "few_digits")]
    pub(crate) high: f64,
    #[serde(serialize_with = "few_digits")]
    pub(crate) level: f64,
}

impl Ratio {
    /// Of times, where this is of rates.
    pub(crate) fn inverse(&self) -> Self {
        let Ratio { to, median, low, high, level } = self.clone();
        Ratio { to, median: 1.0 / median, low: 1.0 / high, high: 1.0 / low, level }
    }
}

/// Seven digits: the page shows up to five.
fn rounded(figure: f64) -> f64 {
    format!("{figure:.6e}").parse().unwrap_or(figure)
}

fn few_digits<S: Serializer>(figure: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(rounded(*figure))
}

fn few_digits_each<S: Serializer>(figures: &[f64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(figures.iter().map(|figure| rounded(*figure)))
}

impl Row {
    pub(crate) fn ratio(&self, to: &str) -> Option<&Ratio> {
        self.ratios.iter().find(|ratio| ratio.to == to)
    }
}

impl Results {
    /// In the order in which they come first.
    pub(crate) fn cases(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|row| row.case.as_str()))
    }

    /// In the order in which they come first.
    pub(crate) fn places(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|row| row.place.as_str()))
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

impl Measured {
    /// Takes what `dlio-fs-bench` has written to `json`.
    pub(crate) fn of(part: &str, setup: Setup, mounts: Vec<String>, command: String, json: &Path) -> Result<Self> {
        let results = parse(&read(json)?).with_context(|| format!("in {}", json.display()))?;
        let measured = Measured { format: FORMAT, part: part.to_owned(), setup, mounts, command, results };
        // What cannot be judged later is noticed now.
        measured.results().with_context(|| format!("in {}", json.display()))?;
        Ok(measured)
    }

    /// None if the part has not been measured.
    pub(crate) fn load(part: &str, path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        Measured::from_json(part, &read(path)?).map(Some).with_context(|| {
            format!("{} is of no use; measure it anew: cargo xtask bench --only {part}", path.display())
        })
    }

    fn from_json(part: &str, text: &str) -> Result<Self> {
        let measured: Measured = parse(text)?;
        ensure!(measured.format == FORMAT, "format {}, and this version reads {FORMAT}", measured.format);
        ensure!(measured.part == part, "these are the figures of `{}`", measured.part);
        ensure!(measured.setup.quick || !measured.setup.is_of_changes(), "measured in a tree with changes");
        measured.results()?;
        Ok(measured)
    }

    /// Each row of figures on a line of its own, so that a change shows which were measured anew. Ends with a newline.
    pub(crate) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?.replace("{\"case\":", "\n{\"case\":") + "\n")
    }

    pub(crate) fn results(&self) -> Result<Results> {
        let results = self.results.clone();
        ensure!(
            results.format == RESULTS_FORMAT,
            "figures of format {}, and this version reads {RESULTS_FORMAT}",
            results.format
        );
        ensure!(!results.rows.is_empty(), "no row: nothing was measured");
        for row in &results.rows {
            ensure!(!row.runs.is_empty(), "`{}` at `{}` has no run", row.case, row.place);
        }
        Ok(results)
    }

    /// Which of the program's benchmarks it was.
    pub(crate) fn ensure_bench(&self, bench: &str) -> Result<()> {
        let results = self.results()?;
        ensure!(results.bench == bench, "these are figures of `dlio-fs-bench {}`, not of {bench}", results.bench);
        Ok(())
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn parse<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T> {
    serde_json::from_str(text).context("no valid JSON of figures")
}

/// What was measured of a part.
pub(super) fn find<'a>(measured: &'a [(Measured, Results)], part: &str) -> Option<&'a (Measured, Results)> {
    measured.iter().find(|(measured, _)| measured.part == part)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Two places and two cases of `files`, three runs each.
    const SAMPLE: &str = include_str!("sample.json");

    pub(crate) fn sample() -> Measured {
        Measured::from_json("files", SAMPLE).unwrap()
    }

    #[test]
    fn what_is_written_is_what_was_read() {
        let sample = sample();
        assert_eq!(Measured::from_json("files", &sample.json().unwrap()).unwrap(), sample);
        // But nothing of which the page is not made.
        assert!(SAMPLE.contains("\"devices\"") && !sample.json().unwrap().contains("\"devices\""));
        let results = sample.results().unwrap();
        assert_eq!(results.cases(), ["read 112 KB files, 1 thread", "read large file, 4 KiB"]);
        assert_eq!(results.rows[0].ratio("fast").unwrap().median, 4.0);
        assert!(results.rows[0].ratio("slow").is_none());
    }

    #[test]
    fn figures_of_no_use_say_why() {
        for (from, to, says) in [
            ("{", "", "no valid JSON"),
            ("\"part\": \"files\"", "\"part\": \"tiers\"", "figures of `tiers`"),
            ("\"format\": 1,\n  \"part\"", "\"format\": 2,\n  \"part\"", "format 2"),
            ("\"format\": 1,\n    \"bench\"", "\"format\": 7,\n    \"bench\"", "figures of format 7"),
            ("\"median\": 4.0", "\"median\": null", "expected f64"),
            ("\"rows\"", "\"lines\"", "missing field `rows`"),
            ("[96.0, 100.0, 104.0]", "[]", "has no run"),
            ("0123abc", "0123abc-dirty", "tree with changes"),
        ] {
            assert!(SAMPLE.contains(from), "{from}");
            let error = format!("{:#}", Measured::from_json("files", &SAMPLE.replacen(from, to, 1)).unwrap_err());
            assert!(error.contains(says), "{says}: {error}");
        }
        let error = sample().ensure_bench("tiers").unwrap_err().to_string();
        assert!(error.contains("dlio-fs-bench files"), "{error}");
    }

    #[test]
    fn a_part_that_was_not_measured_is_no_error() {
        assert_eq!(Measured::load("files", Path::new("/no/such/files.json")).unwrap(), None);
    }
}
