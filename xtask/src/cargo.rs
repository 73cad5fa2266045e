//! The stages that are Cargo commands.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::run::{cargo, count_before, run, run_and_read};
use crate::setup::{CARGO_DENY, CARGO_FUZZ, tool};
use crate::{Context, Tally};

pub(crate) fn fmt(cx: &Context) -> Result<Tally> {
    run(cargo(cx).args(["fmt", "--all", "--check"]))?;
    Ok(Tally::one())
}

pub(crate) fn clippy(cx: &Context) -> Result<Tally> {
    run(cargo(cx).args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(Tally::one())
}

pub(crate) fn doc(cx: &Context) -> Result<Tally> {
    let mut command = cargo(cx);
    command.env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--quiet", "--workspace", "--no-deps"]);
    run(command.arg("--document-private-items"))?;
    Ok(Tally::one())
}

/// Everything that the stages run, in one build: so that none waits for another's, and it is known what building takes.
pub(crate) fn build(cx: &Context) -> Result<Tally> {
    run(cargo(cx).args(["test", "--quiet", "--workspace", "--no-run"]))?;
    Ok(Tally::one())
}

/// Test programs that are stages by themselves.
const STAGES_OF_THEIR_OWN: [&str; 6] = ["faults", "kill", "power", "program", "races", "storm"];

/// Everything else that `cargo test` runs, 10,000 cases of the model test among it.
pub(crate) fn unit(cx: &Context) -> Result<Tally> {
    let programs = test_programs(cx)?;
    let mut chosen = vec!["--no-fail-fast", "--lib", "--bins"];
    for program in programs.iter().filter(|name| !STAGES_OF_THEIR_OWN.contains(&name.as_str())) {
        chosen.extend(["--test", program]);
    }
    let mut command = tests(cx, &chosen, &[]);
    if cx.all {
        command.env("DLIO_DAMAGE_CASES", "3000").env("DLIO_FLEET_CASES", "10000");
    }
    counted(&mut command)
}

/// `cargo test` of some programs, which tell how long each test takes. They do that only where unstable options are allowed; the
/// variable for it is set for them alone, since what is built with it is built anew.
fn tests(cx: &Context, programs: &[&str], args: &[&str]) -> Command {
    let mut command = cargo(cx);
    command.args(["--config", "target.'cfg(unix)'.runner = ['env', 'RUSTC_BOOTSTRAP=1']", "test", "--workspace"]);
    command.args(programs).args(["--", "-Zunstable-options", "--report-time"]).args(args);
    // Whoever has set it repeats something.
    if std::env::var_os("DLIO_FAULTS_SEED").is_none() {
        command.env("DLIO_FAULTS_SEED", seed(cx).to_string());
    }
    command
}

/// Each commit throws other dice, and throws them again wherever it is tested; with `--all` each day does. Outside of a repository it
/// is zero.
pub(crate) fn seed(cx: &Context) -> u64 {
    let head = Command::new("git").current_dir(&cx.root).args(["rev-parse", "--short=7", "HEAD"]).output();
    let head = head.ok().and_then(|head| u64::from_str_radix(String::from_utf8(head.stdout).ok()?.get(..7)?, 16).ok());
    let days = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs() / 86_400);
    head.unwrap_or(0) + if cx.all { days() } else { 0 }
}

/// As Cargo finds them: the files and the folders with a `main.rs` in `tests`.
fn test_programs(cx: &Context) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(cx.root.join("tests"))? {
        let path = entry?.path();
        let is_program = path.join("main.rs").exists() || path.extension().is_some_and(|ending| ending == "rs");
        names.extend(path.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_program).map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// The file of a built test program.
pub(crate) fn test_program(cx: &Context, name: &str) -> Result<PathBuf> {
    executable(cargo(cx).args(["test", "--quiet", "--no-run", "--workspace", "--test", name]), name)
}

/// The file of a test program that this command builds.
pub(crate) fn executable(build: &mut Command, name: &str) -> Result<PathBuf> {
    let output = build.args(["--message-format", "json"]).stderr(Stdio::inherit()).output()?;
    let messages = output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let file = |message: Value| {
        let is_it = message.pointer("/target/name")? == name;
        message.get("executable")?.as_str().filter(|_| is_it).map(PathBuf::from)
    };
    messages.filter_map(file).next().with_context(|| format!("cargo has not built the test program {name}"))
}

/// Where the compiler in use is installed.
pub(crate) fn sysroot() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim_end().into())
}

/// The tests of `dlio-fs` and of `dlio-fs-bench`. They wait for file systems and daemons most of the time: more at once than there are processors.
pub(crate) fn program(cx: &Context) -> Result<Tally> {
    let mut command = tests(cx, &["--no-fail-fast", "--test", "program"], &["--test-threads=6"]);
    if cx.all {
        command.env("DLIO_FIRST_MOUNTS", "20");
    }
    counted(&mut command)
}

/// One of the program's tests, which a plain `cargo test` leaves out: its package is large, and hardly anybody has it.
pub(crate) fn gluster(cx: &Context) -> Result<Tally> {
    counted(&mut tests(cx, &["--test", "program"], &["--ignored", "glusterfs"]))
}

/// The kill test is ignored by a plain `cargo test` because it takes a minute.
pub(crate) fn kill(cx: &Context) -> Result<Tally> {
    counted(&mut tests(cx, &["--test", "kill"], &["--ignored", "--nocapture", "--test-threads=4"]))
}

/// By dice; with `--all` it stops at every call of the daemon's life, some 1,600 times, and each call fails, too.
pub(crate) fn points(cx: &Context) -> Result<Tally> {
    let mut command = tests(cx, &["--test", "faults"], &["--nocapture", "--test-threads=2"]);
    if cx.all {
        command.env("DLIO_FAULTS_ALL", "1");
    }
    counted(&mut command)
}

/// Without `--all` so many states of the disks that it takes about a minute.
pub(crate) fn power(cx: &Context) -> Result<Tally> {
    // Not the one that is the process beneath the disks.
    let args = ["power_cuts", "--ignored", "--nocapture", "--test-threads=1"];
    let mut command = tests(cx, &["--test", "power"], &args);
    if cx.all {
        command.env("POWER_STATES", "1600");
    }
    counted(&mut command)
}

/// Scripts of new seeds, which it prints, one after the other for as long as this.
pub(crate) fn storm(cx: &Context) -> Result<Tally> {
    let args = ["the_storm", "a_script", "halves", "--include-ignored", "--nocapture", "--test-threads=1"];
    let mut command = tests(cx, &["--test", "storm"], &args);
    // Whoever has said it looks for something.
    if std::env::var_os("DLIO_STORM_SECONDS").is_none() {
        command.env("DLIO_STORM_SECONDS", if cx.all { "2400" } else { "180" });
    }
    counted(&mut command)
}

pub(crate) fn races(cx: &Context) -> Result<Tally> {
    let schedules = if cx.all { "20000" } else { "300" };
    let tally = counted(tests(cx, &["--test", "races"], &[]).env("RACES", schedules))?;
    Ok(Tally { note: format!("{schedules} schedules of each race"), ..tally })
}

/// All but the advisories, which are looked up on the day of a release: their database comes from elsewhere. A second where
/// cargo-deny is installed; to install it takes longer than all the tests, so that is left to whoever wants it.
pub(crate) fn deny(cx: &Context) -> Result<Tally> {
    let mut deny = Command::new(tool(cx, CARGO_DENY));
    run(deny.args(["check", "bans", "licenses", "sources"]).current_dir(&cx.root))?;
    Ok(Tally::one())
}

/// Each target for a minute, with bytes that nobody has tried yet. What was found before is in the unit stage.
pub(crate) fn fuzz(cx: &Context) -> Result<Tally> {
    let nightly = || {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly"]).arg(tool(cx, CARGO_FUZZ)).current_dir(&cx.root);
        command.env("CARGO_TARGET_DIR", cx.target.join("fuzz"));
        command
    };
    if !answers(nightly().arg("--version")) {
        return Ok(not_run("no nightly toolchain (rustup toolchain install nightly)"));
    }
    // New inputs go to a directory of their own: what is kept is chosen by hand.
    let (corpus, found) = (cx.root.join("fuzz/corpus"), cx.target.join("xtask/fuzz"));
    let mut tally = Tally::default();
    for target in FUZZ_TARGETS {
        let found = found.join(target);
        fs::create_dir_all(&found)?;
        let mut command = nightly();
        command.arg("run").arg(target).args([&found, &corpus.join(target)]);
        run(command.args(["--", "-max_total_time=60", "-timeout=20", "-rss_limit_mb=4096"]))?;
        tally.passed += 1;
    }
    Ok(tally)
}

const FUZZ_TARGETS: [&str; 7] = ["log_replay", "super_block", "xattrs", "config", "control", "recording", "block"];

fn answers(command: &mut Command) -> bool {
    run_and_read(command).is_ok_and(|(status, _)| status.success())
}

fn not_run(why: &str) -> Tally {
    Tally { note: format!("not run: {why}"), ..Tally::default() }
}

/// Runs `cargo test` and adds up what its test programs report. Whatever a test needs is installed: none may leave itself out.
pub(crate) fn counted(command: &mut Command) -> Result<Tally> {
    let (status, text) = run_and_read(command.env("DLIO_TESTS_LEAVE_NOTHING_OUT", "1"))?;
    let tally = add_up(&text);
    if tally.failed == 0 && !status.success() {
        bail!("cargo test: {status} before all tests were run");
    }
    if tally.passed + tally.failed == 0 {
        bail!("cargo test ran no test");
    }
    Ok(tally)
}

/// Adds up the lines `test result: ok. 3 passed; 1 failed; ...`.
fn add_up(text: &str) -> Tally {
    let mut tally = Tally::default();
    for line in text.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        tally.passed += count_before(line, " passed").unwrap_or(0);
        tally.failed += count_before(line, " failed").unwrap_or(0);
    }
    tally.failures = failures(text);
    tally.times = text.lines().filter_map(time_of).collect();
    tally
}

/// Of a line `test a::b ... ok <1.234s>`.
fn time_of(line: &str) -> Option<(String, f64)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, time) = rest.strip_suffix("s>")?.rsplit_once('<')?;
    Some((name.to_owned(), time.parse().ok()?))
}

/// The names below the lines `failures:`. Where they are outputs, an empty line comes first.
fn failures(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut listed = false;
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(name) if listed => names.push(name.to_owned()),
            _ => listed = line == "failures:",
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_test_programs_are_added_up() {
        let text = "running 3 tests\n...\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\
                    failures:\n\n---- a::b stdout ----\n    left: 1\n\nfailures:\n    a::b\n    c\n\n\
                    test result: FAILED. 12 passed; 2 failed; 0 ignored\n";
        let failures = vec!["a::b".to_owned(), "c".to_owned()];
        assert_eq!(add_up(text), Tally { passed: 15, failed: 2, failures, ..Tally::default() });
        assert_eq!(add_up("error: could not compile"), Tally::default());
    }

    #[test]
    fn a_test_s_time_stands_behind_its_result() {
        assert_eq!(time_of("test a::b ... ok <1.234s>"), Some(("a::b".to_owned(), 1.234)));
        assert_eq!(
            time_of("test a::b - should panic ... FAILED <0.5s>"),
            Some(("a::b - should panic".to_owned(), 0.5))
        );
        assert_eq!(time_of("test a::b ... ignored"), None);
    }
}
