//! `BENCHMARKS.md`, made of the figures that are there and of what people have written about them. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::bars::{Bar, Check, Found, Judged};
use super::figures::{Measured, Ratio, Results, Row, Setup};
use super::parts::{FIGURES, PARTS, Part};

/// Notes that belong to no part: below the table of targets, below the machine, and about what is measured beside.
const COMMON: [&str; 3] = ["targets", "setup", "peers"];

/// What people have written: `notes.md`, a heading of the second order for each part that has any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes(BTreeMap<String, String>);

impl Notes {
    /// What stands above the first heading is for those who write, and goes nowhere.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut notes = BTreeMap::new();
        for section in format!("\n{text}").split("\n## ").skip(1) {
            let (name, body) = section.split_once('\n').unwrap_or((section, ""));
            let name = name.trim();
            let known = COMMON.into_iter().chain(PARTS.iter().map(|part| part.name));
            ensure!(
                known.clone().any(|one| one == name),
                "`## {name}` is no part of the document: {}",
                known.collect::<Vec<_>>().join(", ")
            );
            let twice = notes.insert(name.to_owned(), body.trim().to_owned());
            ensure!(twice.is_none(), "`## {name}` stands there twice");
        }
        Ok(Notes(notes))
    }

    /// A paragraph, with the empty line that follows; nothing if there are none.
    fn of(&self, name: &str) -> String {
        let text = self.0.get(name).map_or("", String::as_str);
        if text.is_empty() { String::new() } else { format!("{text}\n\n") }
    }
}

/// The whole document. Of each part its figures, if it was measured.
pub(crate) fn document(measured: &[(Measured, Results)], bars: &[Bar], notes: &Notes) -> Result<String> {
    let judged: Vec<Judged> = bars.iter().map(|bar| bar.judge(measured)).collect();
    let mut text = String::from(HEAD);
    if measured.iter().any(|(measured, _)| measured.setup.quick) {
        text += "**Figures of `cargo xtask bench --quick`: they try the command and say nothing of the program.**\n\n";
    }
    text += &verdicts(&judged)?;
    text += &notes.of("targets");
    text += &setups(measured)?;
    text += &notes.of("setup");
    let peers = notes.of("peers");
    if !peers.is_empty() {
        text += &format!("## Measured beside\n\n{peers}");
    }
    for part in PARTS {
        let of_part = measured.iter().find(|(measured, _)| measured.part == part.name);
        if let Some((measured, results)) = of_part {
            text += &section(part, measured, results, &judged)?;
            text += &notes.of(part.name);
        }
    }
    Ok(text.trim_end().to_owned() + "\n")
}

const HEAD: &str = "\
# Benchmarks

The targets of dlio-fs, whether it meets them, and every figure behind that. `cargo xtask bench` writes this page from the JSON in
[docs/benchmarks](docs/benchmarks), which has all runs, and from the notes in [notes.md](docs/benchmarks/notes.md).
[How to measure](CONTRIBUTING.md#benchmarks).

Places are `fast` and `slow`, the two tiers themselves; `mount exact`, `mount cached` and `mount passthrough`, dlio-fs over
both with that I/O path; and the other file systems. In `growth` places are numbers of files. In `blocks` and `drain` there are
mounts with their drain `paused`, and in `drain` `cp` copies from `fast` to `slow`. Each run measures all places once, in an
order that rotates. A ratio divides two figures of one run; the page shows the median of these and, in brackets, an interval
that covers the true ratio in 96 % of cases (9 runs).

";

/// The verdicts of all bars.
pub(crate) fn verdicts(judged: &[Judged]) -> Result<String> {
    let mut text = String::from("## Targets\n\n");
    text += "A target is *met* if the median is on the good side of the limit, and *undecided* if only the interval\n\
             reaches it. Of several cases the worst counts; the others are listed with their part.\n\n";
    text += "| part | target | limit | measured | |\n|---|---|---|---|---|\n";
    for judged in judged {
        let part = judged.bar.part;
        let (measured, verdict) = match judged.worst() {
            None => ("–".to_owned(), "not measured".to_owned()),
            Some(check) => (measured(judged, check), check.verdict.to_string()),
        };
        let part = if judged.checks.is_empty() { part.to_owned() } else { format!("[{part}](#{part})") };
        writeln!(text, "| {part} | {} | {} | {measured} | {verdict} |", judged.bar.text, judged.bar.limit())?;
    }
    text.push('\n');
    Ok(text)
}

/// A ratio or a figure, and of which case and place it is where there are several.
fn measured(judged: &Judged, Check { case, place, found, .. }: &Check) -> String {
    let to = if judged.bar.to.is_empty() { "" } else { "to " };
    match found {
        None => format!("{case}, {to}{place}"),
        Some(found) if judged.checks.len() == 1 => told(found),
        Some(found) => format!("{}: {case}, {to}{place}", told(found)),
    }
}

fn told(found: &Found) -> String {
    match found {
        Found::Ratio(ratio) => with_interval(ratio),
        Found::Figure(row) if row.runs.len() == 1 => figure(row, row.median),
        Found::Figure(row) => format!("{} ({})", figure(row, row.median), range(row)),
    }
}

/// The machines, each with the parts that were measured on it.
fn setups(measured: &[(Measured, Results)]) -> Result<String> {
    let mut text = String::from("## Measured on\n\n");
    let mut told: Vec<(&Setup, &Results)> = Vec::new();
    for (one, results) in measured {
        let same = |setup: &Setup, other: &Results| {
            *setup == one.setup && (&other.version, &other.machine) == (&results.version, &results.machine)
        };
        if told.iter().any(|(setup, other)| same(setup, other)) {
            continue;
        }
        let parts = measured.iter().filter(|(measured, results)| same(&measured.setup, results));
        let parts: Vec<_> = parts.map(|(measured, _)| measured.part.as_str()).collect();
        text += &setup(&parts.join(", "), &one.setup, results)?;
        told.push((&one.setup, results));
    }
    if told.is_empty() {
        text += "Nothing was measured yet.\n\n";
    }
    Ok(text)
}

fn setup(parts: &str, setup: &Setup, results: &Results) -> Result<String> {
    let machine = &results.machine;
    let commit = setup.commit.as_ref().map_or_else(String::new, |commit| format!(" ({commit})"));
    let mut text = format!(
        "{parts}: on {} with dlio-fs {}{commit}, Linux {}, {} processors ({}), {:.0} GiB of memory,\n\
         `fs.fuse.max_pages_limit` {}{}; {}.\n\n",
        setup.date,
        results.version,
        machine.kernel,
        machine.cpus,
        machine.cpu,
        machine.memory as f64 / f64::from(1 << 30),
        setup.max_pages.as_deref().unwrap_or("not there"),
        setup.wake_up_us.map_or_else(String::new, |us| format!(", {us:.0} µs to wake a thread on another processor")),
        setup.versions.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", "),
    );
    text += &baseline(&setup.baseline)?;
    Ok(text)
}

/// What `cargo xtask testbed` has found of its disks before anything else.
fn baseline(baseline: &Value) -> Result<String> {
    const FIGURES: [(&str, &str); 3] =
        [("read_mb_per_s", "read MB/s"), ("write_mb_per_s", "write MB/s"), ("small_reads_per_s", "small reads/s")];
    let mut text = String::from("| disk |");
    FIGURES.iter().try_for_each(|(_, name)| write!(text, " {name}, asked | measured |"))?;
    text += "\n|---|";
    text += &"--:|--:|".repeat(FIGURES.len());
    text.push('\n');
    for (disk, figures) in baseline.as_object().into_iter().flatten() {
        write!(text, "| {disk} |")?;
        for (key, _) in FIGURES {
            let figure = &figures[key];
            let rounded = |value: &Value| value.as_f64().map_or("–".to_owned(), |value| format!("{value:.0}"));
            let mark = if figure["off"].as_bool().unwrap_or(true) { " **off**" } else { "" };
            write!(text, " {} | {}{mark} |", rounded(&figure["asked"]), rounded(&figure["measured"]))?;
        }
        text.push('\n');
    }
    text.push('\n');
    Ok(text)
}

fn section(part: &Part, measured: &Measured, results: &Results, judged: &[Judged]) -> Result<String> {
    let name = part.name;
    let mut text = format!("## {name}\n\n{}\n\n", part.about);
    write!(
        text,
        "    cargo xtask bench --only {name}\n\nwhich runs, with the variables of `cargo xtask testbed`:\n\n"
    )?;
    measured.mounts.iter().try_for_each(|mount| writeln!(text, "    {mount}"))?;
    write!(text, "    {}\n\n", measured.command.replace(" --also", " \\\n        --also"))?;
    // How often, and what is beside, is told already.
    let told = |name: &str| name == "runs" || part.beside.iter().any(|beside| beside.name() == name);
    let settings = results.settings.iter().filter(|(name, _)| !told(name));
    let settings: Vec<_> = settings.map(|(name, value)| format!("{name} {value}")).collect();
    write!(text, "Settings: {}; caches: {}; {}.\n\n", settings.join(", "), results.caches, runs(results))?;
    write!(text, "![{name}]({FIGURES}/{name}.svg)\n\n")?;
    for judged in judged.iter().filter(|judged| judged.bar.part == name && judged.checks.len() > 1) {
        text += &checks(judged)?;
    }
    text += &figures(results)?;
    Ok(text)
}

/// How many, and how sure the intervals are.
fn runs(results: &Results) -> String {
    let runs = results.rows.iter().map(|row| row.runs.len());
    let runs = match (runs.clone().min().unwrap_or_default(), runs.max().unwrap_or_default()) {
        (least, most) if least != most => format!("{least} to {most} runs"),
        (1, _) => "1 run".to_owned(),
        (runs, _) => format!("{runs} runs"),
    };
    let levels = results.rows.iter().flat_map(|row| &row.ratios).map(|ratio| ratio.level);
    match levels.fold(1.0, f64::min) {
        0.0 => format!("{runs}, so that how sure a ratio is cannot be told"),
        level => format!("{runs}, intervals that cover by {:.0} %", 100.0 * level),
    }
}

fn checks(judged: &Judged) -> Result<String> {
    let head = if judged.bar.to.is_empty() { "place | figure" } else { "to | ratio" };
    let mut text =
        format!("Target: {}; {}.\n\n| case | {head} | |\n|---|---|--:|---|\n", judged.bar.text, judged.bar.limit());
    for check in &judged.checks {
        let found = check.found.as_ref().map_or_else(|| "–".to_owned(), told);
        writeln!(text, "| {} | {} | {found} | {} |", check.case, check.place, check.verdict)?;
    }
    text.push('\n');
    Ok(text)
}

/// Every row, with its ratios to the tiers themselves; where these are no places, to the first one.
fn figures(results: &Results) -> Result<String> {
    let tiers: Vec<_> = ["fast", "slow"].into_iter().filter(|tier| results.places().contains(tier)).collect();
    let compared = if tiers.is_empty() { results.places().into_iter().take(1).collect() } else { tiers };
    let heads: String = compared.iter().map(|to| format!(" to {to} |")).collect();
    let mut text = format!("| case | place | median | least to most |{heads}\n|---|---|--:|--:|");
    text += &"--:|".repeat(compared.len());
    text.push('\n');
    for case in results.cases() {
        // Told once for all its places.
        let mut case_once = case;
        for row in results.rows.iter().filter(|row| row.case == case) {
            let ratio = |to: &str| row.ratio(to).map_or_else(String::new, with_interval);
            let ratios: String = compared.iter().map(|to| format!(" {} |", ratio(to))).collect();
            writeln!(text, "| {case_once} | {} | {} | {} |{ratios}", row.place, figure(row, row.median), range(row))?;
            case_once = "";
        }
    }
    text.push('\n');
    Ok(text)
}

fn range(row: &Row) -> String {
    let (scale, _) = scale(&row.unit);
    format!("{} to {}", digits(row.least / scale), digits(row.most / scale))
}

fn figure(row: &Row, value: f64) -> String {
    let (scale, unit) = scale(&row.unit);
    format!("{} {unit}", digits(value / scale))
}

/// What a unit is told in.
fn scale(unit: &str) -> (f64, &str) {
    match unit {
        "B/s" => (1e6, "MB/s"),
        "us" => (1.0, "µs"),
        other => (1.0, other),
    }
}

/// Three that say something.
fn digits(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn with_interval(ratio: &Ratio) -> String {
    let told = |value: f64| if value < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") };
    format!("{} ({} to {})", told(ratio.median), told(ratio.low), told(ratio.high))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::bars::tests::sample_bars;
    use super::super::figures::tests::sample;
    use super::*;

    const NOTES: &str = "For those who write.\n\n## peers\n\nOthers.\n\n## files\n\nWhat was tried.\n\nAnd why.\n";

    fn all() -> Vec<(Measured, Results)> {
        let sample = sample();
        let results = sample.results().unwrap();
        vec![(sample, results)]
    }

    /// `BLESS=1` writes the sample anew.
    #[test]
    fn the_document_of_a_sample() {
        let text = document(&all(), &sample_bars(), &Notes::parse(NOTES).unwrap()).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/sample.md");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(path).unwrap());
    }

    #[test]
    fn nothing_measured_is_a_document_too() {
        let text = document(&[], &sample_bars(), &Notes::default()).unwrap();
        assert!(text.contains("Nothing was measured yet.") && !text.contains("## Measured beside"), "{text}");
    }

    #[test]
    fn quick_figures_say_that_they_are() {
        let mut all = all();
        assert!(!document(&all, &sample_bars(), &Notes::default()).unwrap().contains("--quick"));
        all[0].0.setup.quick = true;
        assert!(document(&all, &sample_bars(), &Notes::default()).unwrap().contains("--quick"));
    }

    /// A part that was measured another day stands with its own day.
    #[test]
    fn parts_are_told_together_where_all_of_it_is_the_same() {
        let (mut tiers, results) = all().remove(0);
        tiers.part = "tiers".to_owned();
        let same = setups(&[all().remove(0), (tiers.clone(), results.clone())]).unwrap();
        assert!(same.contains("files, tiers: on 2026-01-31"), "{same}");
        tiers.setup.date = "2026-02-01".to_owned();
        let other = setups(&[all().remove(0), (tiers, results)]).unwrap();
        assert!(other.contains("files: on 2026-01-31") && other.contains("tiers: on 2026-02-01"), "{other}");
    }

    #[test]
    fn notes_go_to_their_part_and_a_wrong_name_is_told() {
        let notes = Notes::parse(NOTES).unwrap();
        assert_eq!(notes.of("files"), "What was tried.\n\nAnd why.\n\n");
        assert_eq!(notes.of("tiers"), "");
        let error = Notes::parse("## fils\n\nLost.\n").unwrap_err().to_string();
        assert!(error.contains("`## fils`") && error.contains("files"), "{error}");
        assert!(Notes::parse("## files\n## files\n").is_err_and(|error| error.to_string().contains("twice")));
        assert_eq!(Notes::parse("").unwrap(), Notes::default());
    }

    #[test]
    fn how_often_it_was_measured_says_how_sure_it_is() {
        let mut results = all().remove(0).1;
        assert_eq!(runs(&results), "3 runs, intervals that cover by 75 %");
        results.rows[0].runs.truncate(1);
        results.rows[0].ratios[0].level = 0.0;
        assert_eq!(runs(&results), "1 to 3 runs, so that how sure a ratio is cannot be told");
        results.rows.truncate(1);
        assert!(runs(&results).starts_with("1 run,"));
    }

    #[test]
    fn figures_have_three_digits() {
        let texts: Vec<_> = [5704.4, 100.0, 57.04, 5.704, 0.05704].into_iter().map(digits).collect();
        assert_eq!(texts, ["5704", "100", "57.0", "5.70", "0.057"]);
    }
}
