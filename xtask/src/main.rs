//! `cargo xtask`: sets up what the tests need on this machine and runs them, stage by stage.
//!
//! A stage is one row of [`STAGES`]; what it does stands in `cargo.rs`, `conformance.rs`, `files.rs`, `clients.rs` and `suites.rs`. How the
//! machine is prepared is `setup.rs`, how a mount is made and taken down `scratch.rs`, how a program is run `run.rs`. The disks of
//! `cargo xtask testbed` are `testbed.rs`, and what is measured on them `bench.rs`.

#![allow(clippy::print_stdout, clippy::print_stderr)] // A command-line tool talks to its terminal.

mod alike;
mod bench;
mod cargo;
mod clients;
mod conformance;
mod differential;
mod files;
mod motion;
mod run;
mod scratch;
mod setup;
mod signals;
mod suites;
mod testbed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use setup::{Need, Setup};

const USAGE: &str = "\
usage: cargo xtask test [--all] [STAGE...]   set up and run the tests: all stages, or the named ones
       cargo xtask check                     format, lints, documentation and unit tests: what needs no mount
       cargo xtask setup [--all]             only install what the tests need
       cargo xtask testbed [OPTION...] [-- COMMAND...]
                                             three disks in memory with the speeds of the paper's HDD, SSD and Optane: measure
                                             them, run COMMAND with DLIO_HDD, DLIO_SSD and DLIO_OPTANE, take them down again
       cargo xtask bench [OPTION...]         measure on these disks, beside other file systems, and write BENCHMARKS.md: hours

  --all   more seeds and more cases, and the stages that are marked (all) below

options of testbed:
  --size SIZE                        of each disk, in memory (4GiB)
  --device NAME=READ/WRITE[/READS]   MB/s and small reads/s (hdd=163/133/150, ssd=281/195, optane=1603/512)
  --many-inodes                      disks for a million files of few bytes and their copies, as bench has them for growth
  --json                             the measured speeds as JSON

options of bench:
  --only PART[,PART]                 tiers, checkpoint, ingest, files, listing, cost, growth; the others' figures stay
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    /// What failed, if it has a name.
    failures: Vec<String>,
    /// What else the summary should say.
    note: String,
}

impl Tally {
    fn one() -> Self {
        Tally { passed: 1, ..Tally::default() }
    }

    fn add(&mut self, more: Tally) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.failures.extend(more.failures);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// `check` and `test`.
    Check,
    Test,
    /// `test --all`, or by name.
    All,
}

struct Stage {
    name: &'static str,
    about: &'static str,
    when: When,
    needs: &'static [Need],
    /// After this long the stage is stuck: its programs are killed and it has failed.
    minutes: u64,
    run: fn(&Context) -> Result<Tally>,
}

const STAGES: &[Stage] = &[
    Stage { name: "fmt", about: "formatting", when: When::Check, needs: &[], minutes: 5, run: cargo::fmt },
    Stage { name: "clippy", about: "lints", when: When::Check, needs: &[], minutes: 15, run: cargo::clippy },
    Stage { name: "doc", about: "documentation", when: When::Check, needs: &[], minutes: 15, run: cargo::doc },
    Stage {
        name: "unit",
        about: "unit, model, architecture and integration tests",
        when: When::Check,
        needs: &[Need::Mount, Need::Xfs, Need::Strace, Need::Prometheus],
        minutes: 40,
        run: cargo::test,
    },
    Stage {
        name: "deny",
        about: "licences and sources of all dependencies, if cargo-deny is installed",
        when: When::Check,
        needs: &[],
        minutes: 5,
        run: cargo::deny,
    },
    Stage {
        name: "fuzz",
        about: "any bytes as log, super block, attributes, configuration, command, recording and trace, a minute each, with nightly Rust",
        when: When::All,
        needs: &[],
        minutes: 40,
        run: cargo::fuzz,
    },
    Stage {
        name: "pjdfstest",
        about: "398 POSIX cases on each I/O path, and over itself",
        when: When::Test,
        needs: &[Need::Mount, Need::Pjdfstest],
        minutes: 5,
        run: conformance::pjdfstest,
    },
    Stage {
        name: "fsx",
        about: "random reads, writes and mappings of one file while it is evicted and beside readers, on each I/O path",
        when: When::Test,
        needs: &[Need::Mount, Need::Fsx],
        minutes: 40,
        run: conformance::fsx,
    },
    Stage {
        name: "lockstep",
        about: "random operations beside a plain directory while the mount is drained, evicted and read again",
        when: When::Test,
        needs: &[Need::Mount],
        minutes: 15,
        run: suites::lockstep,
    },
    Stage {
        name: "motion",
        about: "ten suites while the mount is drained, evicted and read again all the time (one: MOTION=git)",
        when: When::All,
        needs: &[Need::Mount, Need::Pjdfstest, Need::Fsx, Need::Suites],
        minutes: 40,
        run: suites::motion,
    },
    Stage {
        name: "files",
        about: "50,000 files with 20,000 descriptors",
        when: When::Test,
        needs: &[Need::Mount],
        minutes: 15,
        run: files::many_files,
    },
    Stage {
        name: "million",
        about: "a million files that were there before, with 1,024 descriptors",
        when: When::All,
        needs: &[Need::Mount],
        minutes: 30,
        run: files::million,
    },
    Stage {
        name: "kill",
        about: "42 SIGKILLs of the daemon under load",
        when: When::Test,
        needs: &[Need::Mount],
        minutes: 15,
        run: cargo::kill,
    },
    Stage {
        name: "power",
        about: "100 power cuts on ext4 and xfs (--all: 1,600), on disks that write down what they are told",
        when: When::Test,
        needs: &[Need::Mount, Need::Xfs],
        minutes: 60,
        run: cargo::power,
    },
    Stage {
        name: "keras",
        about: "Keras ModelCheckpoint",
        when: When::Test,
        needs: &[Need::Mount, Need::Python],
        minutes: 10,
        run: clients::keras,
    },
    Stage {
        name: "tensorflow",
        about: "TensorFlow CheckpointManager",
        when: When::Test,
        needs: &[Need::Mount, Need::Python],
        minutes: 10,
        run: clients::tensorflow,
    },
    Stage {
        name: "tfdata",
        about: "tf.data reads files and TFRecords",
        when: When::Test,
        needs: &[Need::Mount, Need::Python],
        minutes: 10,
        run: clients::tfdata,
    },
    Stage {
        name: "tensorboard",
        about: "event files that stay open while they are read",
        when: When::Test,
        needs: &[Need::Mount, Need::Python],
        minutes: 10,
        run: clients::tensorboard,
    },
    Stage {
        name: "h5py",
        about: "HDF5 files made, appended to and changed in place",
        when: When::Test,
        needs: &[Need::Mount, Need::Python],
        minutes: 10,
        run: clients::h5py,
    },
    Stage {
        name: "safetensors",
        about: "safetensors of NumPy arrays",
        when: When::Test,
        needs: &[Need::Mount, Need::Python],
        minutes: 10,
        run: clients::safetensors,
    },
    Stage {
        name: "exports",
        about: "reports for other tools, read by DuckDB and as JSON, hold every call",
        when: When::Test,
        needs: &[Need::Mount, Need::Python],
        minutes: 10,
        run: clients::exports,
    },
    Stage {
        name: "darshan",
        about: "logs for Darshan's tools, read by PyDarshan",
        when: When::Test,
        needs: &[Need::Mount, Need::Python],
        minutes: 10,
        run: clients::darshan,
    },
    Stage {
        name: "keras_alexnet",
        about: "the mini-application in Keras: tf.data, checkpoints, --resume",
        when: When::Test,
        needs: &[Need::Mount, Need::Python],
        minutes: 10,
        run: clients::keras_alexnet,
    },
    Stage {
        name: "torch",
        about: "torch.save, torch.load, safetensors of tensors",
        when: When::All,
        needs: &[Need::Mount, Need::Torch],
        minutes: 10,
        run: clients::torch,
    },
    Stage {
        name: "lightning",
        about: "Lightning ModelCheckpoint",
        when: When::All,
        needs: &[Need::Mount, Need::Torch],
        minutes: 10,
        run: clients::lightning,
    },
    Stage {
        name: "dcp",
        about: "torch.distributed.checkpoint, also asynchronous",
        when: When::All,
        needs: &[Need::Mount, Need::Torch],
        minutes: 10,
        run: clients::dcp,
    },
    Stage {
        name: "dataloader",
        about: "DataLoader with forked workers",
        when: When::All,
        needs: &[Need::Mount, Need::Torch],
        minutes: 10,
        run: clients::dataloader,
    },
    Stage {
        name: "lightning_alexnet",
        about: "the mini-application in Lightning: DataLoader, checkpoints, --resume",
        when: When::All,
        needs: &[Need::Mount, Need::Torch],
        minutes: 10,
        run: clients::lightning_alexnet,
    },
    Stage {
        name: "git",
        about: "git init, commit, clone, gc, fsck",
        when: When::Test,
        needs: &[Need::Mount],
        minutes: 10,
        run: clients::git,
    },
    Stage {
        name: "sqlite",
        about: "SQLite in six journal modes",
        when: When::Test,
        needs: &[Need::Mount],
        minutes: 10,
        run: clients::sqlite,
    },
    // The last: it leaves the program with calls that fail on demand where the others find theirs.
    Stage {
        name: "points",
        about: "stops at single calls of the daemon, power cuts there, calls that fail",
        when: When::Test,
        needs: &[Need::Mount, Need::Strace],
        minutes: 90,
        run: cargo::points,
    },
    Stage {
        name: "races",
        about: "threads that meet on one file, under a scheduler that tries their orders",
        when: When::Test,
        needs: &[],
        minutes: 30,
        run: cargo::races,
    },
];

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
        Some(("check", [])) => run_stages(&cx, &with(When::Check)),
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
        let mark = if stage.when == When::All { " (all)" } else { "" };
        text.push_str(&format!("  {:<17} {}{mark}\n", stage.name, stage.about));
    }
    text
}

fn with(when: When) -> Vec<&'static Stage> {
    STAGES.iter().filter(|stage| stage.when == when).collect()
}

/// The named stages in the order of the table; without names all that `all` includes.
fn choose(names: &[&str], all: bool) -> Result<Vec<&'static Stage>> {
    for name in names {
        if !STAGES.iter().any(|stage| stage.name == *name) {
            bail!("no stage is named `{name}`\n\n{}", usage());
        }
    }
    let wanted = |stage: &&Stage| match names {
        [] => all || stage.when != When::All,
        names => names.contains(&stage.name),
    };
    Ok(STAGES.iter().filter(wanted).collect())
}

fn needs(stages: &[&'static Stage]) -> Vec<Need> {
    stages.iter().flat_map(|stage| stage.needs).copied().collect()
}

fn set_up(cx: &Context, stages: &[&'static Stage]) -> Result<bool> {
    let needs = needs(stages);
    let mut setup = Setup::start(cx, &needs)?;
    needs.into_iter().try_for_each(|need| setup.wait(need))?;
    Ok(true)
}

/// Runs the stages in order, whatever fails, and ends with the summary: a line per stage, the count, and what failed.
fn run_stages(cx: &Context, stages: &[&'static Stage]) -> Result<bool> {
    scratch::sweep()?;
    scratch::ensure_room(&cx.target)?;
    let mut setup = Setup::start(cx, &needs(stages))?;
    let mut summary = Vec::new();
    for stage in stages {
        println!("\n==== {}: {}", stage.name, stage.about);
        let log = scratch::log_path(cx, stage.name);
        // Absent unless the stage mounts, so that no earlier run's is shown.
        fs::remove_file(&log).unwrap_or_default();
        let began = Instant::now();
        let ready = stage.needs.iter().try_for_each(|need| setup.wait(*need));
        let tally = ready.and_then(|()| run_stage(cx, stage)).unwrap_or_else(|error| {
            let error = format!("{error:#}");
            eprintln!("error: {error}");
            run::print_tail(&log);
            Tally { failed: 1, failures: vec![error], note: "stopped".to_owned(), ..Tally::default() }
        });
        let row = row(stage.name, &tally, began.elapsed());
        println!("---- {row}");
        summary.push((stage.name, row, tally));
    }
    println!("\n==== summary");
    for (_, row, _) in &summary {
        println!("{row}");
    }
    let passed: u64 = summary.iter().map(|(.., tally)| tally.passed).sum();
    let failed: u64 = summary.iter().map(|(.., tally)| tally.failed).sum();
    println!("{passed} passed, {failed} failed");
    for (stage, _, tally) in &summary {
        for failure in &tally.failures {
            println!("{stage} FAILED: {failure}");
        }
    }
    Ok(failed == 0)
}

fn row(name: &str, tally: &Tally, took: Duration) -> String {
    let result = if tally.failed == 0 { "ok" } else { "FAILED" };
    let row = format!(
        "{name:<17} {result:<7} {:>5} passed {:>3} failed {:>6.1} s  {}",
        tally.passed,
        tally.failed,
        took.as_secs_f64(),
        tally.note
    );
    row.trim_end().to_owned()
}

/// Runs one stage on a thread of its own, so that a mount that hangs cannot hang the run: killing the daemon makes
/// every call on its mount fail, and the stage ends by itself.
fn run_stage(cx: &Context, stage: &'static Stage) -> Result<Tally> {
    let (sender, receiver) = mpsc::channel();
    let for_stage = cx.clone();
    let worker = thread::Builder::new().name(stage.name.to_owned()).spawn(move || {
        let result = (stage.run)(&for_stage);
        // The receiver has gone when the stage overran its time; nobody is interested any more.
        drop(sender.send(result));
    })?;
    match receiver.recv_timeout(Duration::from_secs(stage.minutes * 60)) {
        Ok(result) => result,
        Err(RecvTimeoutError::Disconnected) => {
            drop(worker.join());
            bail!("the stage panicked")
        }
        Err(RecvTimeoutError::Timeout) => {
            run::kill_all();
            // Time for the stage to unmount; if it is stuck all the same, the next run sweeps.
            drop(receiver.recv_timeout(Duration::from_secs(30)));
            bail!("not finished after {} minutes: killed", stage.minutes)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn stages_are_chosen_by_name_in_table_order() {
        let names: Vec<_> = choose(&["kill", "fmt"], false).unwrap().iter().map(|stage| stage.name).collect();
        assert_eq!(names, ["fmt", "kill"]);
        assert!(choose(&["kil"], false).is_err_and(|error| error.to_string().contains("`kil`")));
    }

    /// They leave a daemon that is of no use to the other stages.
    #[test]
    fn builds_with_features_of_their_own_come_last() {
        let names: Vec<_> = STAGES.iter().rev().take(2).map(|stage| stage.name).collect();
        assert_eq!(names, ["races", "points"]);
    }

    #[test]
    fn long_stages_run_only_when_asked_for() {
        let has_fuzz = |names: &[&str], all| choose(names, all).unwrap().iter().any(|stage| stage.name == "fuzz");
        assert!(!has_fuzz(&[], false));
        assert!(has_fuzz(&[], true));
        assert!(has_fuzz(&["fuzz"], false));
    }
}
