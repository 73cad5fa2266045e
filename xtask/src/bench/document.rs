//! `BENCHMARKS.md` and a page for each part, made of the figures that are there and of notes about them. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::bars::{Bar, Check, Found, Judged};
use super::figures::{Measured, Results, Setup, find};
use super::overview;
use super::parts::{DOCUMENT, FIGURES, PARTS, Part};
use super::print::{figure, range, with_interval};

/// What is written by hand: `notes.md`, a heading of the second order for each part that has any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes(BTreeMap<String, String>);

impl Notes {
    /// What stands above the first heading is for those who write, and goes nowhere.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut notes = BTreeMap::new();
        for section in format!("\n{text}").split("\n## ").skip(1) {
            let (name, body) = section.split_once('\n').unwrap_or((section, ""));
            let name = name.trim();
            let known: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
            ensure!(known.contains(&name), "`## {name}` is no part: {}", known.join(", "));
            let twice = notes.insert(name.to_owned(), body.trim().to_owned());
            ensure!(twice.is_none(), "`## {name}` stands there twice");
        }
        Ok(Notes(notes))
    }
}

/// Each page with its path: the page of all parts first, then one for each part that was measured.
pub(crate) fn pages(measured: &[(Measured, Results)], bars: &[Bar], notes: &Notes) -> Result<Vec<(String, String)>> {
    let judged: Vec<Judged> = bars.iter().map(|bar| bar.judge(measured)).collect();
    let mut pages = vec![(DOCUMENT.to_owned(), summary(measured, &judged)?)];
    for part in PARTS {
        if let Some((measured, results)) = find(measured, part.name) {
            let mut text = page(part, measured, results, &judged)?;
            if let Some(notes) = notes.0.get(part.name).filter(|notes| !notes.is_empty()) {
                write!(text, "## Notes\n\n{notes}\n")?;
            }
            pages.push((format!("{FIGURES}/{}.md", part.name), text.trim_end().to_owned() + "\n"));
        }
    }
    Ok(pages)
}

const HEAD: &str = "\
# Benchmarks

How fast dlio-fs is beside the two tiers themselves, beside a FUSE file system that only passes requests on, and beside others.
`cargo xtask bench` measures, and writes this page and those that it links ([how to run it](CONTRIBUTING.md#benchmarks)). To
measure your own disks: [`dlio-fs-bench`](docs/benchmarking.md).

## Method

The tiers are a fast and a slow disk of known speed: memory that the kernel slows down to an Optane (read 1603 MB/s, write 512
MB/s) and to an HDD (163, 133, 150 small reads a second). No real disk, Lustre or network was measured.
[What these disks cannot show, and how the others are set up](docs/benchmarks/method.md).

- Each run measures all places once, in an order that rotates. A figure is the median of the runs.
- A ratio divides two figures of one run: the median, and in brackets an interval that covers the true ratio in 96 % of cases
  (9 runs; with fewer, the part's page says how sure it is).
- `fast` and `slow` are the tiers alone. `mount exact`, `mount cached` and `mount passthrough` are dlio-fs over both with that
  [I/O path](docs/tuning.md). `bare` is a passthrough of a few hundred lines with the FUSE library of dlio-fs: what FUSE costs at
  least.
- Figures are of a commit, which the part's page names; those of a tree with changes are refused.

";

fn summary(measured: &[(Measured, Results)], judged: &[Judged]) -> Result<String> {
    let mut text = String::from(HEAD);
    text += quick_warning(measured.iter().map(|(measured, _)| measured));
    text += &overview::table(measured)?;
    text += &targets(judged)?;
    text += "## Parts\n\n| part | measured | dlio-fs | |\n|---|---|---|---|\n";
    for part in PARTS {
        let name = part.name;
        match find(measured, name) {
            Some((measured, results)) => {
                let (date, commit) = (&measured.setup.date, commit(&measured.setup));
                let version = &results.version;
                writeln!(text, "| [{name}]({FIGURES}/{name}.md) | {date} | {version}{commit} | {} |", runs(results))?;
            }
            None => writeln!(text, "| {name} | not measured | | `cargo xtask bench --only {name}` |")?,
        }
    }
    text += "\n[What was tried to be faster, and what it gave](docs/benchmarks/tried.md).\n";
    Ok(text)
}

fn quick_warning<'a>(mut measured: impl Iterator<Item = &'a Measured>) -> &'static str {
    match measured.any(|measured| measured.setup.quick) {
        true => "**Figures of `cargo xtask bench --quick`: they try the command and say nothing of the program.**\n\n",
        false => "",
    }
}

fn commit(setup: &Setup) -> String {
    setup.commit.as_ref().map_or_else(String::new, |commit| format!(" ({commit})"))
}

/// The verdicts of all bars that have figures.
pub(crate) fn targets(judged: &[Judged]) -> Result<String> {
    let mut text = String::from("## Targets\n\n");
    text += "*Met*: the median is on the good side of the limit. *Undecided*: only the interval reaches it. Of several cases\n\
             the worst is shown, the others on the part's page. `a` / `b` divides the figures of two places, or their times\n\
             where it says *time*.\n\n";
    text += "| part | target | limit | measured | |\n|---|---|---|---|---|\n";
    for judged in judged {
        if let Some((check, found)) = judged.worst().and_then(|check| Some((check, check.found.as_ref()?))) {
            let (part, bar) = (judged.bar.part, &judged.bar);
            let of = if judged.checks.len() == 1 { String::new() } else { format!(": {}", of(judged, check)) };
            let (limit, found, verdict) = (bar.limit(), told(found), check.verdict);
            writeln!(text, "| [{part}]({FIGURES}/{part}.md) | {} | {limit} | {found}{of} | {verdict} |", bar.text)?;
        }
    }
    text.push('\n');
    Ok(text)
}

/// A line for each bar of a measured part that has no figure: a case or a place has another name.
pub(crate) fn without_figure(judged: &[Judged]) -> String {
    let checks = judged.iter().filter_map(|judged| Some((judged, judged.worst()?)));
    let checks = checks.filter(|(_, check)| check.found.is_none());
    let line = |(judged, check): (&Judged, &Check)| {
        format!("no such figure in {}: {} ({})\n", judged.bar.part, of(judged, check), judged.bar.text)
    };
    checks.map(line).collect()
}

/// The case and the place of a check.
fn of(judged: &Judged, check: &Check) -> String {
    let to = if judged.bar.to.is_empty() { "" } else { "to " };
    format!("{}, {to}{}", check.case, check.place)
}

fn told(found: &Found) -> String {
    match found {
        Found::Ratio(ratio) => with_interval(ratio),
        Found::Figure(row) if row.runs.len() == 1 => figure(row),
        Found::Figure(row) => format!("{} ({})", figure(row), range(row)),
    }
}

fn setup(setup: &Setup, results: &Results) -> Result<String> {
    let machine = &results.machine;
    let text = format!(
        "Measured on {} with dlio-fs {}{}, Linux {}, {} processors ({}), {:.0} GiB of memory,\n\
         `fs.fuse.max_pages_limit` {}{}; {}.\n\n",
        setup.date,
        results.version,
        commit(setup),
        machine.kernel,
        machine.cpus,
        machine.cpu,
        machine.memory as f64 / f64::from(1 << 30),
        setup.max_pages.as_deref().unwrap_or("not there"),
        setup.wake_up_us.map_or_else(String::new, |us| format!(", {us:.0} µs to wake a thread on another processor")),
        setup.versions.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", "),
    );
    Ok(text + &baseline(&setup.baseline)?)
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

fn page(part: &Part, measured: &Measured, results: &Results, judged: &[Judged]) -> Result<String> {
    let name = part.name;
    let mut text = format!("# Benchmark: {name}\n\n[All benchmarks](../../BENCHMARKS.md). {}\n\n", part.about);
    text += quick_warning([measured].into_iter());
    write!(text, "![{name}]({name}.svg)\n\n")?;
    for judged in judged.iter().filter(|judged| judged.bar.part == name && judged.checks.len() > 1) {
        text += &checks(judged)?;
    }
    text += &figures(results)?;
    text += "## How it was measured\n\n";
    text += &setup(&measured.setup, results)?;
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
            writeln!(text, "| {case_once} | {} | {} | {} |{ratios}", row.place, figure(row), range(row))?;
            case_once = "";
        }
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::bars::tests::sample_bars;
    use super::super::figures::tests::sample;
    use super::*;

    const NOTES: &str = "For those who write.\n\n## files\n\nWhat was tried.\n\nAnd why.\n";

    fn all() -> Vec<(Measured, Results)> {
        let sample = sample();
        let results = sample.results().unwrap();
        vec![(sample, results)]
    }

    /// `BLESS=1` writes the sample anew.
    #[test]
    fn the_pages_of_a_sample() {
        let pages = pages(&all(), &sample_bars(), &Notes::parse(NOTES).unwrap()).unwrap();
        let [(document, _), (page, text)] = &pages[..] else { panic!("{pages:?}") };
        assert_eq!((document.as_str(), page.as_str()), ("BENCHMARKS.md", "docs/benchmarks/files.md"));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/sample.md");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, text).unwrap();
        }
        assert_eq!(*text, std::fs::read_to_string(path).unwrap());
    }

    fn summary_of(measured: &[(Measured, Results)]) -> String {
        pages(measured, &sample_bars(), &Notes::default()).unwrap().remove(0).1
    }

    #[test]
    fn the_summary_has_what_has_a_figure_and_how_to_measure_the_rest() {
        let text = summary_of(&all());
        for part in [
            "| [files](docs/benchmarks/files.md) | small files | mount exact / fast ≤ 4.00 | 4.00 (3.50 to 4.25) | met |",
            "0.073 (0.070 to 0.080): read large file, 4 KiB, to fast | **missed** |",
            "| [files](docs/benchmarks/files.md) | 2026-01-31 | 0.1.0 (0123abc) | 3 runs, intervals that cover by 75 % |",
            "| tiers | not measured | | `cargo xtask bench --only tiers` |",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("ahead of peers") && !text.contains("no such figure"), "{text}");
        assert!(summary_of(&[]).contains("| ranks | not measured |"));
        let judged: Vec<_> = sample_bars().iter().map(|bar| bar.judge(&all())).collect();
        let without = without_figure(&judged);
        assert!(
            without.starts_with("no such figure in files: read 112 KB files, 1 thread, to bindfs (small"),
            "{without}"
        );
        assert_eq!(without.lines().count(), 2, "{without}");
    }

    #[test]
    fn quick_figures_say_that_they_are() {
        let mut all = all();
        assert!(!summary_of(&all).contains("bench --quick"));
        all[0].0.setup.quick = true;
        assert!(summary_of(&all).contains("bench --quick"));
    }

    #[test]
    fn notes_go_to_their_part_and_a_wrong_name_is_told() {
        let notes = Notes::parse(NOTES).unwrap();
        assert_eq!(notes.0["files"], "What was tried.\n\nAnd why.");
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
}
