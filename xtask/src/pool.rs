//! Running stages, several at a time: most of them wait for a disk or a timer.
//!
//! Each is a process of its own (`cargo xtask stage NAME`), which leaves what it counted in a file. What it prints is shown when it
//! ends; a stage that runs by itself prints to the terminal.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::{Deserialize, Serialize};

use crate::run::{self, Running, in_time};
use crate::setup::{self, Setup};
use crate::stages::{Stage, named};
use crate::{Context, Tally, scratch};

/// Stages at a time, besides one for each processor.
const MORE_THAN_PROCESSORS: usize = 1;

/// Tests whose times the summary tells.
const SLOWEST: usize = 20;
/// Of a stage that failed, the summary shows so many panics, and the last lines of each: there the reason is.
const PANICS: usize = 5;
const PANIC_LINES: usize = 15;

/// What a stage's process leaves for whoever has started it.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    tally: Tally,
    /// Of processors: its own and its programs'.
    busy: f64,
}

/// A stage under way.
struct Started {
    stage: &'static Stage,
    process: Running,
    began: Instant,
    /// Where its output is; `None`: it has been on the terminal.
    output: Option<PathBuf>,
}

/// A stage that has ended.
struct Ended {
    name: &'static str,
    row: String,
    tally: Tally,
    /// What its tests panicked with, if it failed.
    panics: Vec<String>,
}

/// Runs the stages, whatever fails, and ends with the summary: a line per stage, the count, and what failed.
pub(crate) fn run_stages(cx: &Context, stages: &[&'static Stage]) -> Result<bool> {
    let began = Instant::now();
    scratch::sweep()?;
    scratch::ensure_room(&cx.target)?;
    let needs: Vec<_> = stages.iter().flat_map(|stage| stage.needs).copied().collect();
    let mut setup = Setup::start(cx, &needs)?;
    let mut pool = Pool { cx, alone: stages.len() == 1, under_way: Vec::new(), ended: Vec::new() };
    for stage in stages {
        pool.make_room(stage)?;
        let waited = Instant::now();
        match stage.needs.iter().try_for_each(|need| setup.wait(*need)) {
            Ok(()) => pool.start(stage)?,
            Err(error) => pool.ended.push(Ended::stopped(stage, &error, waited.elapsed())),
        }
    }
    pool.wait_for(0)?;
    Ok(sum_up(&pool.ended, began.elapsed()))
}

struct Pool<'a> {
    cx: &'a Context,
    /// One stage, on the terminal.
    alone: bool,
    under_way: Vec<Started>,
    ended: Vec<Ended>,
}

impl Pool<'_> {
    /// Returns when the stage may begin.
    fn make_room(&mut self, stage: &Stage) -> Result<()> {
        let at_once = thread::available_parallelism().map_or(1, usize::from) + MORE_THAN_PROCESSORS;
        let is_alone = stage.alone || self.under_way.iter().any(|other| other.stage.alone);
        self.wait_for(if is_alone { 0 } else { at_once - 1 })
    }

    /// Returns when no more than so many stages are under way.
    fn wait_for(&mut self, left: usize) -> Result<()> {
        while self.under_way.len() > left {
            let mut ended = None;
            for (at, started) in self.under_way.iter_mut().enumerate() {
                if started.process.ended()?.is_some() {
                    ended = Some(at);
                }
            }
            match ended {
                Some(at) => {
                    let ended = self.under_way.remove(at).end(self.cx)?;
                    println!("---- {}", ended.row);
                    self.ended.push(ended);
                }
                None => thread::sleep(Duration::from_millis(50)),
            }
        }
        Ok(())
    }

    fn start(&mut self, stage: &'static Stage) -> Result<()> {
        println!("\n==== {}: {}", stage.name, stage.about);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["stage", stage.name]).args(self.cx.all.then_some("--all"));
        fs::remove_file(report_path(self.cx, stage)).unwrap_or_default();
        let mut output = None;
        if !self.alone {
            let path = setup::work_dir(self.cx).join(format!("{}.out", stage.name));
            let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
            command.stdout(file.try_clone()?).stderr(file);
            output = Some(path);
        }
        let (process, began) = (Running::start(&mut command)?, Instant::now());
        self.under_way.push(Started { stage, process, began, output });
        Ok(())
    }
}

impl Started {
    fn end(mut self, cx: &Context) -> Result<Ended> {
        let status = self.process.wait()?;
        let mut panicked = Vec::new();
        if let Some(path) = &self.output {
            let text = fs::read(path)?;
            let text = String::from_utf8_lossy(&text);
            println!("\n==== {}, from its beginning to its end", self.stage.name);
            print!("{text}");
            panicked = panics(&text);
        }
        let report = fs::read(report_path(cx, self.stage)).map_err(anyhow::Error::from);
        match report.and_then(|text| Ok(serde_json::from_slice::<Report>(&text)?)) {
            Ok(Report { tally, busy }) => {
                let ended = Ended::new(self.stage, tally, self.began.elapsed(), busy);
                // A test that passed may have panicked on purpose.
                let panics = if ended.tally.failed > 0 { panicked } else { Vec::new() };
                Ok(Ended { panics, ..ended })
            }
            Err(_) => {
                let error = anyhow::anyhow!("its process ended with {status} and has left no report");
                Ok(Ended::stopped(self.stage, &error, self.began.elapsed()))
            }
        }
    }
}

impl Ended {
    fn new(stage: &Stage, tally: Tally, took: Duration, busy: f64) -> Self {
        Ended { name: stage.name, row: row(stage.name, &tally, took, busy), tally, panics: Vec::new() }
    }

    fn stopped(stage: &Stage, error: &anyhow::Error, took: Duration) -> Self {
        Ended::new(stage, stopped(error), took, 0.0)
    }
}

fn stopped(error: &anyhow::Error) -> Tally {
    Tally { failed: 1, failures: vec![format!("{error:#}")], note: "stopped".to_owned(), ..Tally::default() }
}

fn row(name: &str, tally: &Tally, took: Duration, busy: f64) -> String {
    let result = if tally.failed == 0 { "ok" } else { "FAILED" };
    let row = format!(
        "{name:<17} {result:<7} {:>5} passed {:>3} failed {:>6.1} s, busy {busy:>6.1} s  {}",
        tally.passed,
        tally.failed,
        took.as_secs_f64(),
        tally.note
    );
    row.trim_end().to_owned()
}

fn sum_up(ended: &[Ended], took: Duration) -> bool {
    println!("\n==== summary");
    for stage in ended {
        println!("{}", stage.row);
    }
    for (time, test, stage) in slowest(ended) {
        println!("{time:>6.1} s  {stage}: {test}");
    }
    println!("{} min {} s", took.as_secs() / 60, took.as_secs() % 60);
    let passed: u64 = ended.iter().map(|stage| stage.tally.passed).sum();
    let failed: u64 = ended.iter().map(|stage| stage.tally.failed).sum();
    println!("{passed} passed, {failed} failed");
    for stage in ended {
        for failure in &stage.tally.failures {
            println!("{} FAILED: {failure}", stage.name);
        }
        stage.panics.iter().for_each(|panic| println!("{panic}"));
    }
    failed == 0
}

/// The last panics in the output of `cargo test`: where, and the end of what was said.
fn panics(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let places =
        (0..lines.len()).filter(|at| lines[*at].starts_with("thread '") && lines[*at].contains("panicked at "));
    let places: Vec<usize> = places.collect();
    let is_end = |line: &&str| line.starts_with("stack backtrace:") || line.starts_with("note: run with");
    let mut panics = Vec::new();
    for at in &places[places.len().saturating_sub(PANICS)..] {
        let said: Vec<&str> = lines[at + 1..].iter().copied().take_while(|line| !is_end(line)).collect();
        let end = said[said.len().saturating_sub(PANIC_LINES)..].join("\n");
        panics.push(format!("{}\n{end}", lines[*at]));
    }
    panics
}

/// The tests that took longest, as far as stages tell of theirs.
fn slowest(ended: &[Ended]) -> Vec<(f64, &str, &str)> {
    let mut all = Vec::new();
    for stage in ended {
        all.extend(stage.tally.times.iter().map(|(test, time)| (*time, test.as_str(), stage.name)));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.truncate(SLOWEST);
    all
}

fn report_path(cx: &Context, stage: &Stage) -> PathBuf {
    setup::work_dir(cx).join(format!("{}.report", stage.name))
}

/// The process of one stage.
pub(crate) fn stage(cx: &Context, name: &str) -> Result<ExitCode> {
    let stage = named(name).with_context(|| format!("no stage is named `{name}`"))?;
    let log = scratch::log_path(cx, stage.name);
    // Absent unless the stage mounts, so that no earlier run's is shown.
    fs::remove_file(&log).unwrap_or_default();
    let for_stage = cx.clone();
    let tally = in_time(stage.name, stage.minutes, move || (stage.run)(&for_stage)).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        run::print_tail(&log);
        stopped(&error)
    });
    let passed = tally.failed == 0;
    let report = Report { tally, busy: busy()? };
    let path = report_path(cx, stage);
    fs::write(&path, serde_json::to_vec(&report)?).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Seconds of processors that this process and those it has waited for have had.
fn busy() -> Result<f64> {
    let of = |who| getrusage(who).map(|used| (used.user_time() + used.system_time()).num_microseconds());
    Ok((of(UsageWho::RUSAGE_SELF)? + of(UsageWho::RUSAGE_CHILDREN)?) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_panic_the_place_and_the_end_are_shown() {
        let told: String = (0..PANIC_LINES).map(|line| format!("told {line}\n")).collect();
        let text = format!(
            "test a ... \nthread 'a' (7) panicked at tests/a.rs:1:2:\nthe log of a daemon\n{told}stack backtrace:\n   0: main\n\
             test b ... \nthread 'b' (8) panicked at tests/b.rs:3:4:\nwhy\nnote: run with `RUST_BACKTRACE=1`\nfine\n"
        );
        let place = "thread 'a' (7) panicked at tests/a.rs:1:2:\n";
        let second = "thread 'b' (8) panicked at tests/b.rs:3:4:\nwhy";
        assert_eq!(panics(&text), [format!("{place}{}", told.trim_end()), second.to_owned()]);
        assert!(panics("test a ... ok\n").is_empty());
    }
}
