//! The stages that compare the mount with what a local file system does.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};

use crate::cargo::count_before;
use crate::run::{Running, run, run_and_read};
use crate::scratch::Scratch;
use crate::setup::{self, FSX, PJDFSTEST, tool};
use crate::{Context, Tally};

/// What a FUSE file system that fails nothing scores; more skipped means that cases were not tried.
const PJDFSTEST_SCORE: Score = Score { passed: 384, failed: 0, skipped: 14 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Score {
    passed: u64,
    failed: u64,
    skipped: u64,
}

/// The cases that remount the file system; in the other runs they are skipped.
const EROFS_SCORE: Score = Score { passed: 13, failed: 0, skipped: 0 };

/// All cases on a mount, and on one over its own slow tier; then those that remount it read-only, through mount(8).
pub(crate) fn pjdfstest(cx: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    {
        let scratch = Scratch::new(cx, "pjdfstest")?;
        add(&mut tally, pjdfstest_run(cx, &scratch, &[])?, PJDFSTEST_SCORE);
        // Apart from the rest: files that are removed but still open make a file system too busy to become read-only.
        add(&mut tally, pjdfstest_run(cx, &scratch, &["erofs"])?, EROFS_SCORE);
    }
    let scratch = Scratch::over_itself(cx, "pjdfstest")?;
    add(&mut tally, pjdfstest_run(cx, &scratch, &[])?, PJDFSTEST_SCORE);
    tally.note = format!("{} skipped twice", PJDFSTEST_SCORE.skipped);
    Ok(tally)
}

/// A wrong number of skipped cases fails the stage even if every case that ran has passed.
fn add(tally: &mut Tally, score: Score, wanted: Score) {
    tally.passed += score.passed;
    tally.failed += score.failed + u64::from(score.failed == 0 && score != wanted);
}

/// With names, only the cases of that name, which may remount.
fn pjdfstest_run(cx: &Context, scratch: &Scratch, cases: &[&str]) -> Result<Score> {
    let inside = scratch.point().join(if cases.is_empty() { "all" } else { "some" });
    // Two cases need a second file system.
    let second = PathBuf::from(format!("/dev/shm/pjdfstest-{}", std::process::id()));
    fs::create_dir(&inside)?;
    fs::create_dir(&second).with_context(|| format!("cannot create {}", second.display()))?;
    let mut command = with_helpers(cx)?;
    command.env("RUST_BACKTRACE", "0").env("NO_COLOR", "1").env_remove("CLICOLOR_FORCE");
    let config = if cases.is_empty() { "pjdfstest.toml" } else { "pjdfstest-remount.toml" };
    command.arg(tool(cx, PJDFSTEST)).arg("-c").arg(cx.root.join("tests/conformance").join(config));
    let result = run_and_read(command.arg("-s").arg(&second).arg("-p").arg(&inside).args(cases));
    drop(fs::remove_dir_all(&second));
    read_score(&result?.1).context("pjdfstest printed no summary")
}

/// Runs what follows in a mount name space in which mount(8) finds our helpers, and no others, in /sbin.
fn with_helpers(cx: &Context) -> Result<Command> {
    let sbin = setup::work_dir(cx).join("sbin");
    fs::create_dir_all(&sbin)?;
    for name in ["mount.fuse.dlio", "umount.fuse.dlio"] {
        let link = sbin.join(name);
        fs::remove_file(&link).unwrap_or_default();
        symlink(cx.target.join("debug/dlio-fs"), link)?;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec"]);
    command.arg("mount --bind \"$0\" \"$(realpath /sbin)\"; exec \"$@\"").arg(sbin);
    Ok(command)
}

/// Reads `Summary: 0 failed, 14 skipped, 384 passed, 0 expected failures, 398 total`.
fn read_score(text: &str) -> Option<Score> {
    let line = text.lines().rev().find(|line| line.starts_with("Summary: "))?;
    let count = |word| count_before(line, word);
    Some(Score { passed: count(" passed")?, failed: count(" failed")?, skipped: count(" skipped")? })
}

/// Seeds of the idle runs, and the one that is drained meanwhile.
const FSX_SEEDS: u64 = 5;
const FSX_SEEDS_ALL: u64 = 25;
const FSX_OPERATIONS: &str = "20000";

pub(crate) fn fsx(cx: &Context) -> Result<Tally> {
    let mut scratch = Scratch::new(cx, "fsx")?;
    let seeds = if cx.all { FSX_SEEDS_ALL } else { FSX_SEEDS };
    let mut tally = Tally::default();
    for seed in 1..=seeds {
        count(&mut tally, run_fsx(cx, &scratch.point().join(format!("idle-{seed}")), seed));
    }
    count(&mut tally, fsx_while_drained(cx, &scratch, seeds + 1));
    scratch.umount()?;
    tally.note = format!("{} runs of {FSX_OPERATIONS} operations", seeds + 1);
    Ok(tally)
}

fn count(tally: &mut Tally, result: Result<()>) {
    match result {
        Ok(()) => tally.passed += 1,
        Err(error) => {
            println!("FAILED: {error:#}");
            tally.failed += 1;
        }
    }
}

fn run_fsx(cx: &Context, file: &Path, seed: u64) -> Result<()> {
    let artifacts = setup::work_dir(cx).join("fsx-artifacts");
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(tool(cx, FSX));
    command.env("RUST_BACKTRACE", "0").arg("-q").arg("-f").arg(cx.root.join("tests/conformance/fsx.toml"));
    command.args(["-N", FSX_OPERATIONS, "-S", &seed.to_string(), "-P"]).arg(&artifacts).arg(file);
    run(&mut command).with_context(|| format!("fsx, seed {seed}"))
}

/// One run while its file is drained over and over; then the slow copy must be what the mount shows.
fn fsx_while_drained(cx: &Context, scratch: &Scratch, seed: u64) -> Result<()> {
    /// Fewer versions than this on the slow tier would prove nothing.
    const VERSIONS: usize = 5;
    let name = format!("drained-{seed}");
    let file = scratch.point().join(&name);
    let slow = scratch.slow().join(&name);
    let done = AtomicBool::new(false);
    let (result, versions) = thread::scope(|scope| {
        let drainer = scope.spawn(|| drain_over_and_over(scratch, &file, &slow, &done));
        let result = run_fsx(cx, &file, seed);
        done.store(true, Ordering::Relaxed);
        (result, drainer.join())
    });
    result?;
    let Ok(versions) = versions else { bail!("the draining thread panicked") };
    let versions = versions?;
    println!("{versions} versions of the file reached the slow tier meanwhile");
    ensure!(versions >= VERSIONS, "only {versions} versions were drained during the run, {VERSIONS} are needed");
    scratch.drain()?;
    let differ = || format!("{} and {} differ", file.display(), slow.display());
    ensure!(fs::read(&file)? == fs::read(&slow).with_context(differ)?, differ());
    Ok(())
}

/// Returns how many versions of the file the slow tier has seen.
fn drain_over_and_over(scratch: &Scratch, file: &Path, slow: &Path, done: &AtomicBool) -> Result<usize> {
    let mut versions = HashSet::new();
    while !done.load(Ordering::Relaxed) {
        if !file.exists() {
            thread::yield_now();
            continue;
        }
        let status = Running::start(scratch.program().arg("drain").arg(file).arg("--wait"))?.wait()?;
        ensure!(status.success(), "dlio-fs drain {}: {status}", file.display());
        if let Ok(stat) = fs::metadata(slow) {
            versions.insert((stat.ino(), stat.mtime(), stat.mtime_nsec()));
        }
    }
    Ok(versions.len())
}

/// More files than the daemon may have descriptors, in directories of this many.
const FILES: usize = 50_000;
const FILES_PER_DIR: usize = 5_000;

pub(crate) fn many_files(cx: &Context) -> Result<Tally> {
    let mut scratch = Scratch::new(cx, "files")?;
    let view = scratch.point().join("many");
    step("create", || create_files(&view))?;
    step("list, stat and read", || check_files(&view))?;
    step("unmount without draining", || scratch.umount_now())?;
    step("mount again", || scratch.mount())?;
    step("list, stat and read", || check_files(&view))?;
    step("drain", || scratch.drain())?;
    step("list, stat and read on the slow tier", || check_files(&scratch.slow().join("many")))?;
    step("unmount", || scratch.umount())?;
    Ok(Tally { passed: 3, failed: 0, note: format!("{FILES} files: in the view, after a remount, on the slow tier") })
}

fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = std::time::Instant::now();
    let result = work().with_context(|| format!("{FILES} files: {what}"))?;
    println!("{what}: {:.1} s", began.elapsed().as_secs_f64());
    Ok(result)
}

fn dir_of(top: &Path, number: usize) -> PathBuf {
    top.join(format!("d{:02}", number / FILES_PER_DIR))
}

fn content(number: usize) -> String {
    format!("content of file {number}\n")
}

fn create_files(top: &Path) -> Result<()> {
    for number in 0..FILES {
        let dir = dir_of(top, number);
        if number.is_multiple_of(FILES_PER_DIR) {
            fs::create_dir_all(&dir)?;
        }
        let file = dir.join(format!("f{number}"));
        fs::write(&file, content(number)).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn check_files(top: &Path) -> Result<()> {
    for first in (0..FILES).step_by(FILES_PER_DIR) {
        let dir = dir_of(top, first);
        let numbers = first..first + FILES_PER_DIR;
        let wanted: BTreeSet<String> = numbers.clone().map(|number| format!("f{number}")).collect();
        let listed = fs::read_dir(&dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let listed: Vec<String> =
            listed.collect::<Result<_>>().with_context(|| format!("listing {}", dir.display()))?;
        ensure!(listed.len() == wanted.len(), "{} lists {} names", dir.display(), listed.len());
        ensure!(BTreeSet::from_iter(listed) == wanted, "{} lists the wrong names", dir.display());
        for number in numbers {
            let file = dir.join(format!("f{number}"));
            let wanted = content(number);
            let size = fs::metadata(&file).with_context(|| format!("stat of {}", file.display()))?.len();
            ensure!(size == wanted.len() as u64, "{} has {size} bytes", file.display());
            let found = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            ensure!(found == wanted.as_bytes(), "{} has the wrong content", file.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_read_from_the_last_summary() {
        let text = "chown::x   ok\n\nSummary: 3 failed, 14 skipped, 381 passed, 0 expected failures, 398 total\n";
        assert_eq!(read_score(text), Some(Score { passed: 381, failed: 3, skipped: 14 }));
        assert_eq!(read_score("killed"), None);
    }
}
