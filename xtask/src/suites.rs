//! The stage in motion: suites that pass on a mount at rest pass while all of it is drained, evicted and read again.
//!
//! Each has a mount of its own. When it is done the slow tree must be what the mount shows, and how much was moved meanwhile
//! must be worth the name.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::alike::{Besides, ensure_alike};
use crate::clients::Script;
use crate::conformance::{EXACT, IO_PATHS, fsx_seeds, pjdfstest_in_motion};
use crate::motion::{self, Enough, in_motion};
use crate::run::{print_tail, run, run_and_read};
use crate::scratch::{Scratch, Wish, log_path};
use crate::setup::work_dir;
use crate::{Context, Tally, differential};

struct Suite {
    name: &'static str,
    /// A part of the least that was moved on two slow cores.
    enough: Enough,
    run: fn(&Context, &Scratch, &str) -> Result<Tally>,
    /// A script of `tests/clients` that looks at the slow tier, with the mount gone.
    script: Option<&'static str>,
    when: When,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// Too long for every day: with `--all`, or if `MOTION` names it.
    All,
}

const fn enough(drained: u64, evicted: u64, recalled: u64) -> Enough {
    Enough { drained, evicted, recalled }
}

const fn suite(name: &'static str, enough: Enough, run: fn(&Context, &Scratch, &str) -> Result<Tally>) -> Suite {
    Suite { name, enough, run, script: None, when: When::Always }
}

const fn client(name: &'static str, enough: Enough, run: fn(&Context, &Scratch, &str) -> Result<Tally>) -> Suite {
    Suite { script: Some(name), ..suite(name, enough, run) }
}

const fn at_length(suite: Suite) -> Suite {
    Suite { when: When::All, ..suite }
}

const SUITES: &[Suite] = &[
    suite("differential", enough(100, 50, 50), random_operations),
    // Its files live for a moment.
    suite("pjdfstest", enough(5, 0, 0), |cx, at, _| pjdfstest_in_motion(cx, at, pick(cx, 1, 5))),
    // Evicts its one file by itself, and demands that, as in its own stage.
    at_length(suite("fsx", enough(100, 20, 0), |cx, at, io| Ok(fsx_seeds(cx, at, io, pick(cx, 1, 5))))),
    client("git", enough(400, 200, 8), |cx, at, _| through_the_mount(cx, at, "git")),
    client("sqlite", enough(300, 25, 200), |cx, at, _| through_the_mount(cx, at, "sqlite")),
    client("cargo", enough(35, 25, 25), |cx, at, _| through_the_mount(cx, at, "cargo")),
    client("locks", enough(4, 2, 20), |cx, at, _| through_the_mount(cx, at, "locks")),
    suite("fio", enough(30, 30, 100), fio),
    // Removes its files before they are read again.
    suite("stress-ng", enough(10, 2, 0), stress_ng),
    // Has all its files open to the end.
    at_length(suite("dbench", enough(50, 0, 0), dbench)),
];

/// A subset on one I/O path, or all on each.
fn pick<T>(cx: &Context, few: T, all: T) -> T {
    if cx.all { all } else { few }
}

/// All suites, or those that the variable `MOTION` names.
pub(crate) fn motion(cx: &Context) -> Result<Tally> {
    let named = std::env::var("MOTION").unwrap_or_default();
    let names: Vec<&str> = named.split(',').filter(|name| !name.is_empty()).collect();
    if let Some(unknown) = names.iter().find(|name| SUITES.iter().all(|suite| suite.name != **name)) {
        let known: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("MOTION={unknown}: the suites are {}", known.join(", "));
    }
    run_suites(cx, &names)
}

/// The one suite for which nothing has to be installed.
pub(crate) fn lockstep(cx: &Context) -> Result<Tally> {
    run_suites(cx, &["differential"])
}

fn run_suites(cx: &Context, names: &[&str]) -> Result<Tally> {
    let mut tally = Tally::default();
    for io in pick(cx, &[EXACT][..], &IO_PATHS[..]) {
        for suite in SUITES.iter().filter(|suite| suite.is_wanted(cx, names)) {
            tally.add(suite.run(cx, io).unwrap_or_else(|error| {
                println!("FAILED {} -o {io}: {error:#}", suite.name);
                print_tail(&log_path(cx, &suite.log()));
                let failures = vec![format!("{} -o {io}: {error:#}", suite.name)];
                Tally { failed: 1, failures, ..Tally::default() }
            }));
        }
    }
    Ok(tally)
}

impl Suite {
    fn is_wanted(&self, cx: &Context, names: &[&str]) -> bool {
        match names {
            [] => cx.all || self.when == When::Always,
            names => names.contains(&self.name),
        }
    }

    fn log(&self) -> String {
        format!("motion-{}", self.name)
    }

    fn run(&self, cx: &Context, io: &str) -> Result<Tally> {
        println!("\n-- {} in motion, -o {io}", self.name);
        let options: Vec<&str> = motion::OPTIONS.into_iter().chain([io]).collect();
        let mut scratch = Scratch::mounted(cx, &self.log(), Wish { options: &options, ..Wish::default() })?;
        let began = Instant::now();
        let (result, moved) = in_motion(&scratch, || (self.run)(cx, &scratch, io))?;
        let mut tally = result?;
        let took = began.elapsed().as_secs_f64();
        println!("{} -o {io}: {} passed, {} failed in {took:.1} s; {moved}", self.name, tally.passed, tally.failed);
        moved.is_enough(self.enough)?;
        scratch.drain()?;
        ensure_alike(&scratch.point(), &scratch.slow(), Besides::All)?;
        let conflicts = scratch.figure("/exceptions/conflicts")?;
        ensure!(conflicts == 0, "{conflicts} conflicts, and nobody else changes the slow tier");
        scratch.umount()?;
        if let Some(name) = self.script {
            tally.add(Script::again(cx, &scratch, name, Path::new("python3")).on_slow()?);
        }
        Ok(tally)
    }
}

fn through_the_mount(cx: &Context, scratch: &Scratch, name: &str) -> Result<Tally> {
    Script::new(cx, scratch, name, Path::new("python3"))?.through_the_mount(scratch)
}

fn random_operations(cx: &Context, scratch: &Scratch, _: &str) -> Result<Tally> {
    let (seeds, operations) = pick(cx, (2, 5_000), (10, 20_000));
    let mut tally = Tally::default();
    for seed in 1..=seeds {
        differential::run(scratch, seed, operations)?;
        tally.passed += 1;
    }
    Ok(tally)
}

/// Writes, reads and verifies with each way to do so; and reads all of it once more, when it has been closed and evicted.
fn fio(cx: &Context, scratch: &Scratch, _: &str) -> Result<Tally> {
    const ENGINES: [(&str, &str); 4] = [("psync", "0"), ("libaio", "1"), ("mmap", "0"), ("io_uring", "0")];
    let mut tally = Tally::default();
    for (engine, direct) in ENGINES {
        let dir = scratch.point().join(engine);
        fs::create_dir(&dir)?;
        let job = |more: &[&str]| {
            let mut command = Command::new("fio");
            command.args(["--name=job", "--rw=randwrite", "--bs=16k", "--size", pick(cx, "8m", "64m"), "--nrfiles=16"]);
            command.args(["--openfiles=4", "--file_service_type=random:8", "--iodepth=8", "--fsync=64", "--minimal"]);
            command.args(["--randseed=7", "--verify=crc32c", "--verify_fatal=1", "--output=/dev/null"]);
            command.arg(format!("--ioengine={engine}")).arg(format!("--direct={direct}"));
            // It leaves the state of its verification where it runs.
            command.arg("--directory").arg(&dir).args(more).current_dir(work_dir(cx));
            run_and_read(&mut command)
        };
        for more in [&["--do_verify=1"][..], &["--verify_only=1"][..]] {
            let (status, _) = job(more).with_context(|| engine.to_owned())?;
            ensure!(status.success(), "fio with {engine}, {more:?}: {status}");
            tally.passed += 1;
        }
    }
    Ok(tally)
}

/// The stressors of the class `filesystem`, one after the other, each of which verifies what it does.
fn stress_ng(cx: &Context, scratch: &Scratch, _: &str) -> Result<Tally> {
    /// bind-mount and binderfs mount something else, procfs reads the system's own; FUSE has neither fiemap nor verity.
    /// Known: xattr is told now and then by fsetxattr that its open file is stale.
    const EXCLUDED: &str = "bind-mount,binderfs,procfs,fiemap,verity,xattr";
    const FEW: [&str; 7] = ["dentry", "copy-file", "fallocate", "hdd", "rename", "link", "utime"];
    let dir = scratch.point().join("stress");
    fs::create_dir(&dir)?;
    let mut command = Command::new("stress-ng");
    command.args(["--verify", "--metrics-brief", "--timeout", "3", "--seed", "7", "--temp-path"]).arg(&dir);
    if cx.all {
        command.args(["--class", "filesystem", "--sequential", "1", "--exclude", EXCLUDED]);
    } else {
        // At the same time: the run is to be short.
        command.args(FEW.iter().flat_map(|stressor| [format!("--{stressor}"), "1".to_owned()]));
    }
    let (status, _) = run_and_read(&mut command)?;
    ensure!(status.success(), "stress-ng: {status}");
    Ok(Tally::one())
}

/// The calls of a file server's clients, which it expects to succeed.
fn dbench(cx: &Context, scratch: &Scratch, _: &str) -> Result<Tally> {
    let dir = scratch.point().join("dbench");
    fs::create_dir(&dir)?;
    let mut command = Command::new("dbench");
    command.args(["--timelimit", pick(cx, "5", "30"), "--directory"]).arg(&dir).arg("4");
    run(&mut command)?;
    Ok(Tally::one())
}
