//! `cargo xtask bench`: measures dlio-fs on the testbed, beside other file systems, and writes `BENCHMARKS.md` and a page for each part.
//!
//! What is measured is `bench/parts.rs`: a row of [`PARTS`] is one `dlio-fs-bench`. What is mounted beside is `bench/peers.rs` (one of
//! them is `bench/bare.rs`), what is kept of a part `bench/figures.rs`, what is to be reached `bench/bars.rs`, what users ask
//! `bench/overview.rs`, the pages `bench/document.rs` and `bench/print.rs`, and whether others slow all of it down `bench/wake.rs`.

pub(crate) mod bare;
mod bars;
mod document;
mod figures;
mod overview;
mod parts;
mod peers;
mod print;
mod wake;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};

use crate::run::{cargo, quiet};
use crate::setup::{self, Need, Setup};
use crate::signals::Signals;
use crate::testbed::{self, Device, Spec, Testbed};
use crate::{Context, scratch};
use bars::BARS;
use document::Notes;
use figures::{Measured, Results};
use parts::{DOCUMENT, FIGURES, PARTS, Part};
use peers::{Beside, Stage};

/// From 9 on an interval leaves out the least and the most.
const RUNS: u32 = 9;
const QUICK_RUNS: u32 = 3;
/// Of each disk, with `--quick`.
const QUICK_DISK: u64 = 1 << 30;

/// A command line.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    runs: u32,
    /// In the order of [`PARTS`].
    parts: Vec<&'static str>,
    quick: bool,
    /// Measures nothing.
    document: bool,
}

fn parse(args: &[String]) -> Result<Asked> {
    let (mut runs, mut only, mut quick, mut document) = (None, None, false, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--runs" => {
                let text = value()?;
                let number = text.parse().ok().filter(|runs| (1..1000).contains(runs));
                runs = Some(number.with_context(|| format!("`{text}` is no number of runs: 1 to 999"))?);
            }
            "--only" => only = Some(value()?.as_str()),
            "--quick" => quick = true,
            "--document" => document = true,
            other => bail!("unknown argument `{other}` of bench: --runs, --only, --quick and --document are there"),
        }
    }
    ensure!(!document || (runs, only, quick) == (None, None, false), "--document measures nothing: it stands alone");
    let runs = runs.unwrap_or(if quick { QUICK_RUNS } else { RUNS });
    Ok(Asked { runs, parts: chosen(only)?, quick, document })
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static str>> {
    let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
    let wanted: Vec<&str> = only.map_or_else(|| names.clone(), |only| only.split(',').collect());
    for name in &wanted {
        ensure!(names.contains(name), "no part is named `{name}`: there are {}", names.join(", "));
    }
    Ok(PARTS.iter().map(|part| part.name).filter(|name| wanted.contains(name)).collect())
}

/// Runs `cargo xtask bench`. What is missed is no failure of this command.
pub(crate) fn command(cx: &Context, args: &[String]) -> Result<ExitCode> {
    let asked = parse(args)?;
    let pages = Pages::new(cx, asked.quick)?;
    // What cannot be written later is noticed before anything is measured.
    pages.notes()?;
    pages.load(|part| asked.document || !asked.parts.contains(&part))?;
    match asked.document {
        true => pages.write()?,
        false => measure(cx, &asked, &pages)?,
    }
    print!("{}", pages.bars()?);
    println!("written: {}", pages.document().display());
    Ok(ExitCode::SUCCESS)
}

fn measure(cx: &Context, asked: &Asked, pages: &Pages) -> Result<()> {
    testbed::usable()?;
    let changed = commit(cx).is_some_and(|commit| commit.ends_with(figures::CHANGED));
    ensure!(asked.quick || !changed, "this tree has changes, and figures are of a commit: commit them, or use --quick");
    scratch::ensure_room(&cx.target)?;
    let saves_by_torch = |part: &&Part| asked.parts.contains(&part.name) && part.args.contains("--save");
    let torch = PARTS.iter().find(saves_by_torch).map(|_| Need::Torch);
    let needs: Vec<Need> = [Need::Peers].into_iter().chain(torch).collect();
    let mut setup = Setup::start(cx, &needs)?;
    needs.into_iter().try_for_each(|need| setup.wait(need))?;
    let signals = Signals::hold()?;
    // One after the other: together, the one would be built with what the other wants of a library. This xtask itself is built for
    // tests, in which the FUSE library is not optimised.
    for what in [["--bin", "dlio-fs"], ["--package", "dlio-fs-bench"], ["--package", "xtask"]] {
        let built = signals.run(cargo(cx).args(["build", "--profile", "dist"]).args(what))?;
        ensure!(built.success(), "cargo build: {built}");
    }
    let _awake = wake::Awake::keep()?;
    // One after the other: there is room for one.
    for many_inodes in [false, true] {
        let parts = PARTS.iter().filter(|part| part.many_inodes == many_inodes && asked.parts.contains(&part.name));
        let parts: Vec<_> = parts.collect();
        if !parts.is_empty() {
            measure_on(spec(asked.quick, many_inodes), &parts, cx, asked, pages, &signals)?;
        }
    }
    Ok(())
}

fn spec(quick: bool, many_inodes: bool) -> Spec {
    let mut spec = Spec::default();
    spec.many_inodes = many_inodes;
    if quick {
        spec.size = QUICK_DISK;
    }
    spec
}

/// Measures these parts on a testbed that is built for them.
fn measure_on(
    spec: Spec,
    parts: &[&'static Part],
    cx: &Context,
    asked: &Asked,
    pages: &Pages,
    signals: &Signals,
) -> Result<()> {
    let testbed = Testbed::build(spec, signals)?;
    let baseline = testbed.baseline(signals)?;
    eprint!("{baseline}");
    if !baseline.holds() {
        eprintln!("warning: a disk is off; so is what is measured on it. Is something else busy here?");
    }
    let setup = about_this(cx, asked.quick, baseline.json())?;
    if let Some(warning) = wake::warning(setup.wake_up_us) {
        eprintln!("warning: {warning}");
    }
    let (program, logs) = (cx.target.join("dist/dlio-fs"), setup::work_dir(cx));
    let (python, juicefs) = (setup::torch_python(cx), setup::juicefs(cx));
    let stage =
        Stage { testbed: &testbed, signals, program: &program, juicefs: &juicefs, python: &python, logs: &logs };
    for part in parts {
        eprintln!("\n==== {}", part.name);
        let measured =
            part.measure(asked, &setup, &stage, &pages.fresh).with_context(|| format!("measuring {}", part.name));
        // What was measured before is on the page already.
        pages.keep(&measured?)?;
    }
    Ok(())
}

fn about_this(cx: &Context, quick: bool, baseline: serde_json::Value) -> Result<figures::Setup> {
    let packages = PARTS.iter().flat_map(|part| part.beside).filter_map(Beside::package).chain(["fio"]);
    let max_pages = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    Ok(figures::Setup {
        date: quiet(Command::new("date").args(["-u", "+%F"]))?.trim().to_owned(),
        commit: commit(cx),
        max_pages: max_pages.ok().map(|pages| pages.trim().to_owned()),
        wake_up_us: wake::up()?,
        versions: peers::versions(packages),
        baseline,
        quick,
    })
}

/// What is checked out; none outside of a repository. The pages are no change: they are written while parts are measured.
fn commit(cx: &Context) -> Option<String> {
    let git = |args: &[&str]| quiet(Command::new("git").args(args).current_dir(&cx.root)).ok();
    let commit = git(&["describe", "--always"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs", ":!*.md"])?;
    let mark = if changes.trim().is_empty() { "" } else { figures::CHANGED };
    Some(format!("{}{mark}", commit.trim()))
}

impl Part {
    /// The command line of the program, with variables for the disks.
    fn command(&self, runs: u32, quick: bool) -> String {
        let args = if quick { self.quick } else { self.args };
        let [fast, slow] = [Device::Optane, self.slow].map(Device::variable);
        let mut line = format!("dlio-fs-bench {} --fast ${fast} --slow ${slow}", self.bench);
        for word in args.split_whitespace() {
            line = format!("{line} {word}");
        }
        line += &format!(" --runs {}", self.runs_max.map_or(runs, |most| most.min(runs)));
        for beside in self.beside.iter().filter(|beside| !matches!(beside, Beside::Unmeasured(..))) {
            line += &format!(" --also {}={}", beside.name(), beside.dir());
        }
        line
    }

    /// Measures it; figures and plots are in `fresh` then.
    fn measure(
        &'static self,
        asked: &Asked,
        setup: &figures::Setup,
        stage: &Stage<'_>,
        fresh: &Path,
    ) -> Result<Measured> {
        let [json, plot] = ["json", "svg"].map(|ending| fresh.join(self.name).with_extension(ending));
        for file in [&json, &plot] {
            // Of an earlier run, which must not be taken for this one's.
            fs::remove_file(file).or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
        }
        let mounted = stage.mount(self.beside)?;
        let line = self.command(asked.runs, asked.quick);
        eprintln!("$ {line}");
        let mut command = stage.run(&line);
        command.arg("--output").arg(&json).arg("--output").arg(&plot);
        let status = stage.signals.run(&mut command)?;
        stage.signals.check()?;
        ensure!(status.success(), "dlio-fs-bench: {status}");
        stage.unmount(mounted)?;
        let mounts = self.beside.iter().flat_map(Beside::commands).collect();
        let measured = Measured::of(self.name, setup.clone(), mounts, line, &json)?;
        measured.ensure_bench(self.bench)?;
        Ok(measured)
    }
}

/// What is written, and from what.
#[derive(Debug)]
struct Pages {
    /// The tree, or with `--quick` a place in Cargo's target directory.
    root: PathBuf,
    notes: PathBuf,
    /// For what is not whole yet.
    fresh: PathBuf,
}

impl Pages {
    fn new(cx: &Context, quick: bool) -> Result<Self> {
        let work = setup::work_dir(cx);
        let root = if quick { work.join("bench") } else { cx.root.clone() };
        let pages = Pages { notes: cx.root.join(FIGURES).join("notes.md"), fresh: work.join("bench-fresh"), root };
        for dir in [pages.root.join(FIGURES), pages.fresh.clone()] {
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(pages)
    }

    fn document(&self) -> PathBuf {
        self.root.join(DOCUMENT)
    }

    fn figures(&self, part: &str, ending: &str) -> PathBuf {
        self.root.join(FIGURES).join(part).with_extension(ending)
    }

    /// Puts a part's figures in the place of those that were there, and writes the document anew.
    fn keep(&self, measured: &Measured) -> Result<()> {
        let [json, plot] = ["json", "svg"].map(|ending| self.figures(&measured.part, ending));
        let fresh_plot = self.fresh.join(&measured.part).with_extension("svg");
        fs::copy(&fresh_plot, &plot)
            .with_context(|| format!("cannot copy {} to {}", fresh_plot.display(), plot.display()))?;
        fs::write(&json, measured.json()?).with_context(|| format!("cannot write {}", json.display()))?;
        self.write()
    }

    /// The figures of those parts that were measured.
    fn load(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<(Measured, Results)>> {
        let mut all = Vec::new();
        for part in PARTS.iter().filter(|part| wanted(part.name)) {
            if let Some(measured) = Measured::load(part.name, &self.figures(part.name, "json"))? {
                let results = measured.results()?;
                all.push((measured, results));
            }
        }
        Ok(all)
    }

    fn notes(&self) -> Result<Notes> {
        let text = fs::read_to_string(&self.notes).with_context(|| format!("cannot read {}", self.notes.display()))?;
        Notes::parse(&text).with_context(|| format!("in {}", self.notes.display()))
    }

    fn write(&self) -> Result<()> {
        for (name, text) in document::pages(&self.load(|_| true)?, BARS, &self.notes()?)? {
            let path = self.root.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// The table of bars, and those without a figure.
    fn bars(&self) -> Result<String> {
        let measured = self.load(|_| true)?;
        let judged: Vec<_> = BARS.iter().map(|bar| bar.judge(&measured)).collect();
        Ok(document::targets(&judged)? + &document::without_figure(&judged))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::figures::tests::sample;
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_command_line_says_what_to_measure() {
        let all: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        let asked = Asked { runs: 9, parts: all.clone(), quick: false, document: false };
        assert_eq!(parse(&[]).unwrap(), asked);
        let quick = parse(&args("--quick --only cost,tiers")).unwrap();
        assert_eq!(quick, Asked { runs: 3, parts: vec!["tiers", "cost"], quick: true, document: false });
        assert_eq!(parse(&args("--quick --runs 1")).unwrap().runs, 1);
        assert_eq!(parse(&args("--document")).unwrap(), Asked { document: true, ..asked });
    }

    #[test]
    fn a_wrong_command_line_names_the_word_and_what_it_could_be() {
        for (line, says) in [
            ("--runs", "--runs needs a value"),
            ("--runs 0", "`0` is no number of runs"),
            ("--runs many", "1 to 999"),
            (
                "--only tires",
                "`tires`: there are tiers, checkpoint, ranks, pace, ranks-torch, ranks-dcp, ingest, epoch, interference, files, listing, cost, fleet, blocks, metadata, drain, growth",
            ),
            ("--only tiers,", "no part is named ``"),
            ("--fast", "`--fast`"),
            ("--document --quick", "stands alone"),
        ] {
            let error = format!("{:#}", parse(&args(line)).unwrap_err());
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn the_program_is_told_of_everything_that_is_mounted() {
        let part = PARTS.iter().find(|part| part.name == "checkpoint").unwrap();
        assert_eq!(
            part.command(9, false),
            "dlio-fs-bench checkpoint --fast $DLIO_OPTANE --slow $DLIO_HDD --count 5 --size 600MB --runs 9 \
             --also ssd=$DLIO_SSD --also mergerfs=$DLIO_OPTANE/peers/mergerfs/mount --also rclone=$DLIO_HDD/peers/rclone/mount"
        );
        assert!(part.command(3, true).contains("--count 2 --size 20MB --runs 3"));
        let growth = PARTS.iter().find(|part| part.name == "growth").unwrap();
        let command = growth.command(9, false);
        assert!(command.ends_with("-o slow_wait=60s --runs 3"), "{command}");
        assert!(command.starts_with("dlio-fs-bench growth --fast $DLIO_OPTANE --slow $DLIO_SSD "), "{command}");
    }

    /// Else a bar would be of figures that no command makes.
    #[test]
    fn bars_are_of_what_their_part_measures() {
        for bar in BARS {
            let part = PARTS.iter().find(|part| part.name == bar.part).unwrap();
            assert_eq!(part.bench == "growth", bar.is_of_numbers(), "{}", bar.text);
            if bar.is_of_numbers() {
                continue;
            }
            let beside: Vec<String> = part.beside.iter().map(Beside::name).collect();
            let io =
                bar.place.strip_prefix("mount ").map(|io| io.trim_end_matches(" staged").trim_end_matches(" paused"));
            let asked = part.args.split_once("--io ").map_or("exact", |(_, rest)| rest.split(' ').next().unwrap());
            let is_there = match io {
                Some(io) => asked.split(',').any(|one| one == io),
                None => beside.iter().any(|name| name == bar.place),
            };
            assert!(is_there, "{}: {}", bar.text, bar.place);
            let own: &[&str] = if part.bench == "drain" { &[bars::PAUSED, bars::CP] } else { &[] };
            for to in bar.to {
                assert!(
                    ["fast", "slow"].contains(to) || own.contains(to) || beside.iter().any(|name| name == to),
                    "{}: {to}",
                    bar.text
                );
            }
        }
    }

    /// A part that is measured again takes nothing from the others.
    #[test]
    fn a_part_replaces_its_own_figures_only() {
        let root = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        let cx = Context { root: root.clone(), target: root.join("target"), all: false };
        fs::create_dir_all(root.join(FIGURES)).unwrap();
        fs::write(root.join(FIGURES).join("notes.md"), "## files\n\nA note.\n").unwrap();
        let pages = Pages::new(&cx, false).unwrap();
        let mut files = sample();
        let mut tiers = sample();
        tiers.part = "tiers".to_owned();
        for part in [&files, &tiers] {
            fs::write(pages.fresh.join(&part.part).with_extension("svg"), "<svg/>").unwrap();
            pages.keep(part).unwrap();
        }
        files.setup.date = "2026-02-01".to_owned();
        pages.keep(&files).unwrap();
        let page = |part| fs::read_to_string(pages.figures(part, "md")).unwrap();
        assert!(page("tiers").contains("Measured on 2026-01-31"), "{}", page("tiers"));
        assert!(
            page("files").contains("Measured on 2026-02-01") && page("files").contains("A note."),
            "{}",
            page("files")
        );
        assert!(fs::read_to_string(pages.document()).unwrap().contains("| 2026-02-01 |"));
        // One of no use is told of, unless it is to be measured anew.
        fs::write(pages.figures("tiers", "json"), "{").unwrap();
        let error = format!("{:#}", pages.load(|_| true).unwrap_err());
        assert!(error.contains("tiers.json") && error.contains("cargo xtask bench --only tiers"), "{error}");
        assert_eq!(pages.load(|part| part != "tiers").unwrap().len(), 1);
        let quick = Pages::new(&cx, true).unwrap();
        assert!(quick.document().starts_with(root.join("target")) && quick.load(|_| true).unwrap().is_empty());
        fs::remove_dir_all(root).unwrap();
    }
}
