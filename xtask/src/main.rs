//! `cargo xtask`: sets up what the tests need on this machine and runs them, stage by stage.
//!
//! A stage is one row of `stages.rs`; what it does stands in `cargo.rs`, `conformance.rs`, `files.rs`, `clients.rs`, `suites.rs`,
//! `user.rs` and `guest.rs`, and how several run at a time in `pool.rs`. How the machine is prepared is `setup.rs`, how a mount is made
//! and taken down `scratch.rs`,
//! how a program is run `run.rs`. The disks of `cargo xtask testbed` are `testbed.rs`, and what is measured on them `bench.rs`. What is
//! installed elsewhere is made and tried by `package.rs`. `mutants.rs` measures which known defects the model test finds.

#![allow(clippy::print_stdout, clippy::print_stderr)] // A command-line tool talks to its terminal.

mod alike;
mod bench;
mod cargo;
mod clients;
mod conformance;
mod differential;
mod files;
mod guest;
mod motion;
mod mutants;
mod package;
mod pool;
mod run;
mod scratch;
mod setup;
mod signals;
mod stages;
mod suites;
mod testbed;
mod user;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use pool::run_stages;
use setup::Setup;
use stages::{STAGES, Stage, When, choose};

const USAGE: &str = "\
usage: cargo xtask test [--all] [STAGE...]   set up and run the tests: all stages, or the named ones
       cargo xtask check                     format, lints, documentation
       cargo xtask rotation MINUTES          the stages whose turn it is today, as with --all, as far as the minutes allow: each has its
                                             turn within a week
       cargo xtask setup [--all]             only install what the tests need
       cargo xtask package                   the static programs as tarball, .deb, .rpm, wheel and image, in target/package
       cargo xtask testbed [OPTION...] [-- COMMAND...]
                                             three disks in memory with the speeds of the paper's HDD, SSD and Optane: measure
                                             them, run COMMAND with DLIO_HDD, DLIO_SSD and DLIO_OPTANE, take them down again
       cargo xtask bench [OPTION...]         measure on these disks, beside other file systems, and write BENCHMARKS.md: hours
       cargo xtask mutants [OPTION...] [NAME...]
                                             put known defects back, one at a time, and tell which of them the model test finds

  --all   more seeds and more cases, and the stages that are marked (all) below

options of testbed:
  --size SIZE                        of each disk, in memory (4GiB)
  --device NAME=READ/WRITE[/READS]   MB/s and small reads/s (hdd=163/133/150, ssd=281/195, optane=1603/512)
  --many-inodes                      disks for a million files of few bytes and their copies, as bench has them for growth
  --json                             the measured speeds as JSON

options of mutants:
  --minutes N                        of processor time for each (10)
  --first N                          the number of the first case (0)
  --keep                             what was measured before is not measured anew
  --write                            writes docs/internals/mutants.md

options of bench:
  --only PART[,PART]                 tiers, checkpoint, ranks, ranks-torch, ranks-dcp, ingest, epoch, interference, files, listing,
                                     cost, fleet, blocks, metadata, drain, growth; the others' figures stay
  --runs N                           of each figure (9)
  --quick                            small and few, to try it; written to target/xtask/bench
  --document                         measures nothing: writes BENCHMARKS.md anew from the figures and notes in docs/benchmarks
";

/// Where things are, and how much is asked for.
#[derive(Clone, Debug)]
struct Context {
    root: PathBuf,
    /// Cargo's target directory; the tools, the Python environment and the logs live in it.
    target: PathBuf,
    all: bool,
}

/// What a stage counted. A stage that stops with an error counts as one more failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Tally {
    passed: u64,
    failed: u64,
    /// What failed, if it has a name.
    failures: Vec<String>,
    /// What else the summary should say.
    note: String,
    /// Seconds that each test took, beside the others, if it has a name.
    times: Vec<(String, f64)>,
}

impl Tally {
    fn one() -> Self {
        Tally { passed: 1, ..Tally::default() }
    }

    fn add(&mut self, more: Tally) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.failures.extend(more.failures);
        self.times.extend(more.times);
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match command(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs one command line; a failure when tests failed.
fn command(args: &[String]) -> Result<ExitCode> {
    // Not through Cargo: it is a build of its own.
    if let [verb, rest @ ..] = args
        && verb == "bare"
    {
        return bench::bare::command(rest).map(|()| ExitCode::SUCCESS);
    }
    // As Cargo says now, not as it was built: the directory may have been moved since.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").context("run this as `cargo xtask`")?;
    let root = Path::new(&xtask).parent().context("xtask has no parent directory")?.to_owned();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let mut cx = Context { root, target, all: false };
    let passed = match args.split_first().map(|(verb, rest)| (verb.as_str(), rest)) {
        Some(("testbed", rest)) => return testbed::command(rest),
        Some(("bench", rest)) => return bench::command(&cx, rest),
        Some(("test", rest)) => {
            cx.all = rest.iter().any(|arg| arg == "--all");
            let names: Vec<&str> = rest.iter().map(String::as_str).filter(|arg| *arg != "--all").collect();
            run_stages(&cx, &choose(&names, cx.all)?)
        }
        Some(("stage", [name, rest @ ..])) => {
            cx.all = !rest.is_empty();
            return pool::stage(&cx, name);
        }
        Some(("as-user", [suite, rest @ ..])) => {
            cx.all = !rest.is_empty();
            return user::as_user(&cx, suite);
        }
        Some(("mutants", rest)) => mutants::command(&cx, rest),
        Some(("package", [])) => package::command(&cx),
        Some(("check", [])) => run_stages(&cx, &stages::checks()),
        Some(("rotation", [minutes])) => {
            cx.all = true;
            let minutes = minutes.parse().with_context(|| format!("`{minutes}` is no number of minutes"))?;
            let turn = stages::turn(today()?, minutes);
            if turn.is_empty() {
                println!("{minutes} minutes are too few for the stages whose turn it is today");
                return Ok(ExitCode::SUCCESS);
            }
            run_stages(&cx, &turn)
        }
        Some(("setup", [])) => set_up(&cx, &choose(&[], false)?),
        Some(("setup", [all])) if all == "--all" => set_up(&cx, &choose(&[], true)?),
        None | Some(("help" | "--help" | "-h", _)) => {
            print!("{}", usage());
            Ok(true)
        }
        Some((verb, _)) => bail!("unknown command or argument after `{verb}`\n\n{}", usage()),
    }?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn usage() -> String {
    let mut text = format!("{USAGE}\nstages:\n");
    for stage in STAGES {
        let mark = match stage.when {
            When::Check => " (check)",
            When::Test => "",
            When::All => " (all)",
        };
        text.push_str(&format!("  {:<17} {}{mark}\n", stage.name, stage.about));
    }
    text
}

fn set_up(cx: &Context, stages: &[&'static Stage]) -> Result<bool> {
    let needs: Vec<_> = stages.iter().flat_map(|stage| stage.needs).copied().collect();
    let mut setup = Setup::start(cx, &needs)?;
    needs.into_iter().try_for_each(|need| setup.wait(need))?;
    Ok(true)
}

/// Days since 1970, by which the stages at full length take turns.
fn today() -> Result<u64> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(since.as_secs() / 86400)
}
