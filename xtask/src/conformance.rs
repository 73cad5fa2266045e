//! The stages that compare the mount with what a local file system does.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use nix::unistd::Uid;

use crate::cargo;
use crate::run::{Running, count_before, run_and_read};
use crate::scratch::{Scratch, Wish, with_own_mounts};
use crate::setup::{self, FSX, PJDFSTEST, tool};
use crate::{Context, Tally};

pub(crate) const EXACT: &str = "io=exact";
const PASSTHROUGH: &str = "io=passthrough";
/// Each I/O path as an option of the mount.
pub(crate) const IO_PATHS: [&str; 3] = [EXACT, "io=cached", PASSTHROUGH];

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

/// Of a mount in motion: a drained file gets a fingerprint as an attribute of its object, and with it another
/// ctime, which is shown. Nothing else has to fail.
const FAILS_IN_MOTION: &str = "::unchanged_ctime_";

/// All cases, so many times.
pub(crate) fn pjdfstest_in_motion(cx: &Context, scratch: &Scratch, times: u32) -> Result<Tally> {
    let mut tally = Tally::default();
    for _ in 0..times {
        let (score, text) = pjdfstest_text(cx, scratch, &[])?;
        let failed = text.lines().filter_map(|line| line.strip_suffix("FAILED")).map(str::trim_end);
        let known = failed.filter(|name| name.contains(FAILS_IN_MOTION)).count() as u64;
        let Score { passed, failed, skipped } = score;
        println!("{known} failed that are known to: {FAILS_IN_MOTION}");
        add(&mut tally, Score { passed: passed + known, failed: failed - known, skipped }, PJDFSTEST_SCORE);
    }
    Ok(tally)
}

/// Of an ordinary user: what needs root is skipped.
const USERS_SCORE: Score = Score { passed: 254, failed: 0, skipped: 144 };

pub(crate) fn pjdfstest_of_a_user(cx: &Context, scratch: &Scratch) -> Result<Tally> {
    let mut tally = Tally::default();
    add(&mut tally, pjdfstest_run(cx, scratch, &[])?, USERS_SCORE);
    Ok(tally)
}

/// With names, only the cases of that name, which may remount.
fn pjdfstest_run(cx: &Context, scratch: &Scratch, cases: &[&str]) -> Result<Score> {
    Ok(pjdfstest_text(cx, scratch, cases)?.0)
}

fn pjdfstest_text(cx: &Context, scratch: &Scratch, cases: &[&str]) -> Result<(Score, String)> {
    let inside = scratch.point().join(if cases.is_empty() { "all" } else { "some" });
    // Two cases need a second file system.
    let second = PathBuf::from(format!("/dev/shm/pjdfstest-{}", std::process::id()));
    // There from the second time on.
    fs::create_dir_all(&inside)?;
    fs::create_dir(&second).with_context(|| format!("cannot create {}", second.display()))?;
    // Only root remounts.
    let mut command = if Uid::effective().is_root() { with_helpers(cx)? } else { Command::new("env") };
    command.env("RUST_BACKTRACE", "0").env("NO_COLOR", "1").env_remove("CLICOLOR_FORCE");
    let config = if cases.is_empty() { "pjdfstest.toml" } else { "pjdfstest-remount.toml" };
    command.arg(tool(cx, PJDFSTEST)).arg("-c").arg(cx.root.join("tests/conformance").join(config));
    let result = run_and_read(command.arg("-s").arg(&second).arg("-p").arg(&inside).args(cases));
    drop(fs::remove_dir_all(&second));
    let text = result?.1;
    Ok((read_score(&text).context("pjdfstest printed no summary")?, text))
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
    let mut command = with_own_mounts("mount --bind \"$0\" \"$(realpath /sbin)\"; exec \"$@\"");
    command.arg(sbin);
    Ok(command)
}

/// Reads `Summary: 0 failed, 14 skipped, 384 passed, 0 expected failures, 398 total`.
fn read_score(text: &str) -> Option<Score> {
    let line = text.lines().rev().find(|line| line.starts_with("Summary: "))?;
    let count = |word| count_before(line, word);
    Some(Score { passed: count(" passed")?, failed: count(" failed")?, skipped: count(" skipped")? })
}

/// What fsx does is made of a number, and it does so many operations.
#[derive(Clone, Copy, Debug)]
struct FsxRun {
    seed: u64,
    operations: u32,
}

/// Runs on each I/O path: short ones with a new seed each time, which is printed and which `FSX_SEED` repeats, or long ones.
const FSX_OPERATIONS: u32 = 5_000;
const FSX_OPERATIONS_ALL: u32 = 20_000;
const FSX_SEEDS_ALL: u64 = 5;

fn fsx_of(cx: &Context) -> Result<Vec<FsxRun>> {
    if cx.all {
        return Ok(fsx_at_length(FSX_SEEDS_ALL).collect());
    }
    let seed = match std::env::var("FSX_SEED") {
        Ok(seed) => seed.parse().with_context(|| format!("FSX_SEED={seed} is no number"))?,
        Err(_) => cargo::seed(cx),
    };
    Ok(vec![FsxRun { seed, operations: FSX_OPERATIONS }])
}

fn fsx_at_length(seeds: u64) -> impl Iterator<Item = FsxRun> {
    (1..=seeds).map(|seed| FsxRun { seed, operations: FSX_OPERATIONS_ALL })
}

/// How far fsx gets between two things done to its file: about one of its operations.
const STRIDE: Duration = Duration::from_micros(300);

/// On each I/O path, while the file is drained and evicted over and over; and beside readers.
pub(crate) fn fsx(cx: &Context) -> Result<Tally> {
    let (mut tally, runs) = (Tally::default(), fsx_of(cx)?);
    for io in IO_PATHS {
        // Everything is drained at once and, always above its watermarks, evicted at once.
        let evicting = [io, "settle=0s", "high=2%", "low=1%", "keep=0"];
        fsx_runs(cx, &mut tally, &evicting, &runs, |scratch, run| fsx_while_evicted(cx, scratch, io, run))?;
        fsx_runs(cx, &mut tally, &[io], &runs, |scratch, run| fsx_beside_readers(cx, scratch, io, run))?;
    }
    let filling = [EXACT, "settle=0s", "high=98%"];
    fsx_runs(cx, &mut tally, &filling, &runs, |scratch, run| fsx_while_full(cx, scratch, run))?;
    let FsxRun { seed, operations } = runs[0];
    tally.note = format!("{} runs of {operations} operations, the first seed is {seed}", tally.passed + tally.failed);
    Ok(tally)
}

/// One mount, and all runs on it.
fn fsx_runs(
    cx: &Context,
    tally: &mut Tally,
    options: &[&str],
    runs: &[FsxRun],
    one: impl Fn(&Scratch, FsxRun) -> Result<()>,
) -> Result<()> {
    let mut scratch = Scratch::mounted(cx, "fsx", Wish { options, ..Wish::default() })?;
    runs.iter().for_each(|run| count(tally, one(&scratch, *run)));
    scratch.umount()
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

fn start_fsx(cx: &Context, config: &str, file: &Path, run: FsxRun) -> Result<Running> {
    let artifacts = setup::work_dir(cx).join("fsx-artifacts");
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(tool(cx, FSX));
    command.env("RUST_BACKTRACE", "0").arg("-q").arg("-f").arg(cx.root.join("tests/conformance").join(config));
    command.args(["-N", &run.operations.to_string(), "-S", &run.seed.to_string(), "-P"]).arg(&artifacts).arg(file);
    Running::start(&mut command)
}

/// Runs on one mount with these seeds, while their file is drained and evicted.
pub(crate) fn fsx_seeds(cx: &Context, scratch: &Scratch, io: &str, seeds: u64) -> Tally {
    let mut tally = Tally::default();
    fsx_at_length(seeds).for_each(|run| count(&mut tally, fsx_while_evicted(cx, scratch, io, run)));
    tally
}

/// One run beside a reader that comes before the former one goes. On `passthrough` the kernel reads the file by itself from
/// before fsx opens it to after it has closed it for good, so that all opens have to join.
fn fsx_beside_readers(cx: &Context, scratch: &Scratch, io: &str, run: FsxRun) -> Result<()> {
    let FsxRun { seed, operations } = run;
    let file = scratch.point().join(format!("beside-{seed}"));
    File::create(&file)?;
    drain_file(scratch, &file)?;
    let through = passthrough_opens(scratch)?;
    let began = Instant::now();
    let (mut reader, mut opens) = (File::open(&file)?, 1);
    let mut fsx = start_fsx(cx, "fsx.toml", &file, run)?;
    while fsx.ended()?.is_none() {
        reader.read_at(&mut [0; 4096], 0).context("reading beside fsx")?;
        reader = File::open(&file).context("opening beside fsx")?;
        opens += 1;
        thread::sleep(STRIDE);
    }
    succeeded(fsx.wait()?, seed)?;
    let through = passthrough_opens(scratch)? - through;
    println!(
        "fsx -o {io}, seed {seed}: {operations} operations in {:.1} s beside {opens} readers; {through} passthrough opens",
        began.elapsed().as_secs_f64(),
    );
    ensure!(io != PASSTHROUGH || through > opens, "only {through} opens were passthrough, the readers' are {opens}");
    same_on_slow(scratch, &file)
}

/// One run while the fast tier is full, and is not, and is full again: the file, brought there by its first write, stops
/// fitting in the middle.
fn fsx_while_full(cx: &Context, scratch: &Scratch, run: FsxRun) -> Result<()> {
    /// Fewer files that stopped fitting than this would prove nothing.
    const ENOUGH: u64 = 10;
    /// Less than what fsx writes between two holes.
    const ROOM: u64 = 64 << 10;
    let FsxRun { seed, operations } = run;
    let file = scratch.point().join(format!("full-{seed}"));
    let filler = scratch.fast().join("filler");
    let spilled = || scratch.figure("/exceptions/spilled");
    let (before, began) = (spilled()?, Instant::now());
    let mut fsx = start_fsx(cx, "fsx.toml", &file, run)?;
    while fsx.ended()?.is_none() {
        thread::sleep(20 * STRIDE);
        let free = statvfs(&scratch.fast())?;
        let taken = (free.blocks_free() * free.fragment_size()).saturating_sub(ROOM);
        match fallocate(File::create(&filler)?, FallocateFlags::empty(), 0, taken.try_into()?) {
            // fsx has taken the room meanwhile.
            Ok(()) | Err(Errno::ENOSPC) => {}
            Err(e) => bail!("cannot fill {}: {e}", filler.display()),
        }
        thread::sleep(20 * STRIDE);
        fs::remove_file(&filler)?;
        drain_file(scratch, &file)?;
    }
    succeeded(fsx.wait()?, seed)?;
    let spilled = spilled()? - before;
    println!(
        "fsx on a tier that is full now and then, seed {seed}: {operations} operations in {:.1} s; it stopped fitting \
         {spilled} times",
        began.elapsed().as_secs_f64()
    );
    ensure!(spilled >= ENOUGH, "the file stopped fitting only {spilled} times, {ENOUGH} are needed");
    same_on_slow(scratch, &file)
}

/// Once drained, the slow copy must be what the mount shows.
fn same_on_slow(scratch: &Scratch, file: &Path) -> Result<()> {
    scratch.drain()?;
    let slow = scratch.slow().join(file.file_name().context("a file of ours has a name")?);
    let differ = || format!("{} and {} differ", file.display(), slow.display());
    ensure!(fs::read(file)? == fs::read(&slow).with_context(differ)?, differ());
    Ok(())
}

fn succeeded(status: ExitStatus, seed: u64) -> Result<()> {
    ensure!(status.success(), "fsx, seed {seed}: {status}");
    Ok(())
}

/// One run while its file is drained and evicted over and over.
fn fsx_while_evicted(cx: &Context, scratch: &Scratch, io: &str, run: FsxRun) -> Result<()> {
    /// Fewer versions on the slow tier, evictions or passthrough opens than this would prove nothing.
    const ENOUGH: u64 = 10;
    /// One eviction in so many drains, or fsx would get nowhere.
    const EVERY: u32 = 3;
    let FsxRun { seed, operations } = run;
    let name = format!("evicted-{seed}");
    let file = scratch.point().join(&name);
    let slow = scratch.slow().join(&name);
    let figures = || Ok::<_, anyhow::Error>((scratch.figure("/pipeline/evictions")?, passthrough_opens(scratch)?));
    let (evictions, through) = figures()?;
    let mut versions = HashSet::new();
    let began = Instant::now();
    let mut fsx = start_fsx(cx, "fsx-evicted.toml", &file, run)?;
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
        "fsx -o {io}, seed {seed}: {operations} operations in {:.1} s; {versions} versions reached the slow tier, \
         {evictions} evictions, {through} passthrough opens",
        began.elapsed().as_secs_f64()
    );
    ensure!(versions >= ENOUGH, "only {versions} versions were drained during the run, {ENOUGH} are needed");
    ensure!(evictions >= ENOUGH, "only {evictions} evictions during the run, {ENOUGH} are needed");
    ensure!(io != PASSTHROUGH || through >= ENOUGH, "only {through} opens were passthrough, {ENOUGH} are needed");
    same_on_slow(scratch, &file)
}

fn passthrough_opens(scratch: &Scratch) -> Result<u64> {
    scratch.figure("/io_path/opens/passthrough")
}

/// Returns when the content that the file has now is on the slow tier; also if there is no such file yet.
fn drain_file(scratch: &Scratch, file: &Path) -> Result<()> {
    if file.exists() {
        let status = Running::start(scratch.program().arg("sync").arg(file))?.wait()?;
        ensure!(status.success(), "dlio-fs sync {}: {status}", file.display());
    }
    Ok(())
}

/// An open file is not evicted, and fsx closes its file only for a moment, to open it again: fsx is stopped wherever it is
/// until that is between the two, and `work` is done. `None` if it was not.
fn between_opens<T>(fsx: &mut Running, file: &Path, work: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    /// Then the file is drained again.
    const TRIES: u32 = 100;
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

    /// Half of what has no name there has a weight of 10, and the other half none.
    #[test]
    fn all_that_fsx_can_do_is_named_with_its_weight() {
        let operations = [
            "close_open",
            "copy_file_range",
            "fdatasync",
            "fsync",
            "invalidate",
            "mapread",
            "mapwrite",
            "posix_fadvise",
            "posix_fallocate",
            "punch_hole",
            "read",
            "sendfile",
            "truncate",
            "write",
        ];
        for config in ["fsx.toml", "fsx-evicted.toml"] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/conformance").join(config);
            let text = fs::read_to_string(&file).expect(config);
            let (_, weights) = text.split_once("[weights]").expect(config);
            let lines = weights.lines().filter(|line| !line.starts_with('#'));
            let mut named: Vec<&str> = lines.filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
            named.sort_unstable();
            assert_eq!(named, operations, "{config}");
        }
    }
}
