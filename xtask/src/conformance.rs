//! The stages that compare the mount with what a local file system does.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::cargo::count_before;
use crate::run::{Running, run_and_read};
use crate::scratch::{Scratch, Wish};
use crate::setup::{self, FSX, PJDFSTEST, tool};
use crate::{Context, Tally};

const EXACT: &str = "io=exact";
const PASSTHROUGH: &str = "io=passthrough";
/// Each I/O path as an option of the mount.
const IO_PATHS: [&str; 3] = [EXACT, "io=cached", PASSTHROUGH];

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

/// All cases on each I/O path, and on a mount over its own slow tier; those that remount it read-only through mount(8).
pub(crate) fn pjdfstest(cx: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    for io in IO_PATHS {
        let scratch = Scratch::mounted(cx, "pjdfstest", Wish { options: &[io], ..Wish::default() })?;
        add(&mut tally, pjdfstest_run(cx, &scratch, &[])?, PJDFSTEST_SCORE);
        // Apart from the rest: files that are removed but still open make a file system too busy to become read-only.
        if io == EXACT {
            add(&mut tally, pjdfstest_run(cx, &scratch, &["erofs"])?, EROFS_SCORE);
        }
        ensure!(io != PASSTHROUGH || passthrough_opens(&scratch)? > 0, "no open was passthrough");
    }
    let scratch = Scratch::mounted(cx, "pjdfstest", Wish { over_itself: true, ..Wish::default() })?;
    add(&mut tally, pjdfstest_run(cx, &scratch, &[])?, PJDFSTEST_SCORE);
    tally.note = format!("{} skipped in each of four runs", PJDFSTEST_SCORE.skipped);
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

/// Seeds of the runs on `exact`; on the other I/O paths it is one.
const FSX_SEEDS: u64 = 1;
const FSX_SEEDS_ALL: u64 = 5;
const FSX_OPERATIONS: &str = "20000";

/// On each I/O path, while the file is drained and evicted over and over; and left alone.
pub(crate) fn fsx(cx: &Context) -> Result<Tally> {
    let mut tally = Tally::default();
    let exact_seeds = if cx.all { FSX_SEEDS_ALL } else { FSX_SEEDS };
    for io in IO_PATHS {
        let seeds = match io {
            EXACT => exact_seeds,
            // Now and then an open beside a reader that comes and goes is EIO there: a defect that only --all shows as yet.
            PASSTHROUGH if !cx.all => continue,
            _ => 1,
        };
        // Everything is drained at once and, always above its watermarks, evicted at once.
        let options = [io, "settle=0s", "high=2%", "low=1%"];
        let mut scratch = Scratch::mounted(cx, "fsx", Wish { options: &options, ..Wish::default() })?;
        for seed in 1..=seeds {
            count(&mut tally, fsx_while_evicted(cx, &scratch, io, seed));
        }
        scratch.umount()?;
    }
    let mut scratch = Scratch::new(cx, "fsx")?;
    for seed in 1..=exact_seeds {
        let mut fsx = start_fsx(cx, "fsx.toml", &scratch.point().join(format!("idle-{seed}")), seed)?;
        count(&mut tally, succeeded(fsx.wait()?, seed));
    }
    scratch.umount()?;
    tally.note = format!("{} runs of {FSX_OPERATIONS} operations", tally.passed + tally.failed);
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

fn start_fsx(cx: &Context, config: &str, file: &Path, seed: u64) -> Result<Running> {
    let artifacts = setup::work_dir(cx).join("fsx-artifacts");
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(tool(cx, FSX));
    command.env("RUST_BACKTRACE", "0").arg("-q").arg("-f").arg(cx.root.join("tests/conformance").join(config));
    command.args(["-N", FSX_OPERATIONS, "-S", &seed.to_string(), "-P"]).arg(&artifacts).arg(file);
    Running::start(&mut command)
}

fn succeeded(status: ExitStatus, seed: u64) -> Result<()> {
    ensure!(status.success(), "fsx, seed {seed}: {status}");
    Ok(())
}

/// One run while its file is drained and evicted over and over; then the slow copy must be what the mount shows.
fn fsx_while_evicted(cx: &Context, scratch: &Scratch, io: &str, seed: u64) -> Result<()> {
    /// Fewer versions on the slow tier, or fewer evictions, than this would prove nothing.
    const ENOUGH: u64 = 5;
    /// One eviction in so many drains, or fsx would get nowhere.
    const EVERY: u32 = 8;
    let name = format!("evicted-{seed}");
    let file = scratch.point().join(&name);
    let slow = scratch.slow().join(&name);
    let figures = || Ok::<_, anyhow::Error>((scratch.figure("/pipeline/evictions")?, passthrough_opens(scratch)?));
    let (evictions, through) = figures()?;
    let mut versions = HashSet::new();
    let began = Instant::now();
    let mut fsx = start_fsx(cx, "fsx-evicted.toml", &file, seed)?;
    let mut round = 0;
    while fsx.ended()?.is_none() {
        let reader = match round % EVERY {
            0 => between_opens(&mut fsx, &file, || evict_or_read(scratch, &file, round / EVERY))?,
            _ => None,
        };
        drain_file(scratch, &file)?;
        if let Ok(stat) = fs::metadata(&slow) {
            versions.insert((stat.ino(), stat.mtime(), stat.mtime_nsec()));
        }
        drop(reader);
        round += 1;
    }
    succeeded(fsx.wait()?, seed)?;
    let now = figures()?;
    let (versions, evictions, through) = (versions.len() as u64, now.0 - evictions, now.1 - through);
    println!(
        "fsx -o {io}, seed {seed}: {FSX_OPERATIONS} operations in {:.1} s; {versions} versions reached the slow tier, \
         {evictions} evictions, {through} passthrough opens",
        began.elapsed().as_secs_f64()
    );
    ensure!(versions >= ENOUGH, "only {versions} versions were drained during the run, {ENOUGH} are needed");
    ensure!(evictions >= ENOUGH, "only {evictions} evictions during the run, {ENOUGH} are needed");
    ensure!(io != PASSTHROUGH || through >= ENOUGH, "only {through} opens were passthrough, {ENOUGH} are needed");
    scratch.drain()?;
    let differ = || format!("{} and {} differ", file.display(), slow.display());
    ensure!(fs::read(&file)? == fs::read(&slow).with_context(differ)?, differ());
    Ok(())
}

fn passthrough_opens(scratch: &Scratch) -> Result<u64> {
    scratch.figure("/io_path/opens/passthrough")
}

/// Returns when the content that the file has now is on the slow tier; also if there is no such file yet.
fn drain_file(scratch: &Scratch, file: &Path) -> Result<()> {
    if file.exists() {
        let status = Running::start(scratch.program().arg("drain").arg(file).arg("--wait"))?.wait()?;
        ensure!(status.success(), "dlio-fs drain {}: {status}", file.display());
    }
    Ok(())
}

/// An open file is not evicted, and fsx closes its file only for a moment, to open it again: fsx is stopped wherever it is
/// until that is between the two, and `work` is done. `None` if it was not.
fn between_opens<T>(fsx: &mut Running, file: &Path, work: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    /// Then the file is drained again.
    const TRIES: u32 = 100;
    /// How far fsx gets between two stops: less than one of its operations.
    const STRIDE: Duration = Duration::from_micros(300);
    for _ in 0..TRIES {
        let Some(stopped) = fsx.stop()? else { return Ok(None) };
        if !stopped.has_open(file)? {
            return work();
        }
        drop(stopped);
        thread::sleep(STRIDE);
    }
    Ok(None)
}

/// In turns the file is evicted, evicted and opened by a reader, and opened by a reader. On `passthrough` the kernel reads
/// the slow file then, or the object, by itself, beside what fsx goes on to do.
fn evict_or_read(scratch: &Scratch, file: &Path, turn: u32) -> Result<Option<File>> {
    if !file.exists() {
        return Ok(None);
    }
    drain_file(scratch, file)?;
    if turn % 3 != 2 {
        let mut evict = scratch.program();
        evict.arg("evict").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        // Exit code 1 says that fsx is about to have opened it. What counts are the figures.
        Running::start(&mut evict)?.wait()?;
    }
    Ok(if turn.is_multiple_of(3) { None } else { Some(File::open(file)?) })
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
