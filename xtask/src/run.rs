//! Running other programs: echoed, with their output shown or kept, and every one of them known, so that a stage that
//! is stuck can be ended.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Context, Tally};

/// Lines of a log that are shown when something failed.
const TAIL: usize = 40;

/// How often a program that is to stop is looked at.
const LOOK: Duration = Duration::from_micros(100);

/// Programs under way: started here and not yet waited for.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn running() -> std::sync::MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A started program; killed when dropped before it ended.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    line: String,
    ended: Option<ExitStatus>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let line = line(command);
        let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot run `{line}`"))?;
        running().insert(child.id());
        Ok(Running { child, line, ended: None })
    }

    /// Its process id; another process's at the earliest when the end has been seen here.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let status = match self.ended {
            Some(status) => status,
            None => self.child.wait().with_context(|| format!("cannot wait for `{}`", self.line))?,
        };
        self.gone(status);
        Ok(status)
    }

    /// The exit status if it has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none()
            && let Some(status) = self.child.try_wait()?
        {
            self.gone(status);
        }
        Ok(self.ended)
    }

    /// Stops it wherever it is, until the answer is dropped. `None` if it has ended.
    pub(crate) fn stop(&mut self) -> Result<Option<Stopped<'_>>> {
        let stopped = Stopped(self);
        while stopped.0.ended()?.is_none() {
            stopped.signal(Signal::SIGSTOP);
            if stopped.0.stands()? {
                return Ok(Some(stopped));
            }
            thread::sleep(LOOK);
        }
        Ok(None)
    }

    /// Whether it has been stopped: not before the system call that it is in has returned.
    fn stands(&self) -> Result<bool> {
        let stat = std::fs::read_to_string(self.proc("stat"))?;
        // The state follows the name, which is in parentheses and may hold any character.
        Ok(stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    }

    fn proc(&self, what: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.id())).join(what)
    }

    fn gone(&mut self, status: ExitStatus) {
        self.ended = Some(status);
        running().remove(&self.child.id());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            drop(self.child.kill());
            drop(self.wait());
        }
    }
}

/// A program that stands still; it goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct Stopped<'a>(&'a mut Running);

impl Stopped<'_> {
    pub(crate) fn has_open(&self, file: &Path) -> Result<bool> {
        let mut fds = std::fs::read_dir(self.0.proc("fd"))?;
        fds.try_fold(false, |found, fd| Ok(found || std::fs::read_link(fd?.path()).is_ok_and(|open| open == file)))
    }

    /// The id is its own until its end is seen, which only [`Running`] does.
    fn signal(&self, signal: Signal) {
        if let (None, Ok(pid)) = (self.0.ended, i32::try_from(self.0.id())) {
            // An error means that it ended a moment ago.
            kill(Pid::from_raw(pid), signal).unwrap_or_default();
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
    }
}

/// SIGKILL for everything that is under way; those who wait for it see it end.
pub(crate) fn kill_all() {
    for pid in running().iter().filter_map(|pid| i32::try_from(*pid).ok()) {
        // An error means that it ended a moment ago.
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap_or_default();
    }
}

/// Runs a stage on a thread of its own, so that a mount that hangs cannot hang the run: killing the daemon makes
/// every call on its mount fail, and the stage ends by itself.
pub(crate) fn in_time(name: &str, minutes: u64, run: impl FnOnce() -> Result<Tally> + Send + 'static) -> Result<Tally> {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = run();
        // The receiver has gone when the stage overran its time; nobody is interested any more.
        drop(sender.send(result));
    })?;
    match receiver.recv_timeout(Duration::from_secs(minutes * 60)) {
        Ok(result) => result,
        Err(RecvTimeoutError::Disconnected) => {
            drop(worker.join());
            bail!("the stage panicked")
        }
        Err(RecvTimeoutError::Timeout) => {
            kill_all();
            // Time for the stage to unmount; if it is stuck all the same, the next run sweeps.
            drop(receiver.recv_timeout(Duration::from_secs(30)));
            bail!("not finished after {minutes} minutes: killed")
        }
    }
}

/// The Cargo that runs this program, in the project's directory.
pub(crate) fn cargo(cx: &Context) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(&cx.root);
    command
}

/// Runs a program whose output goes to the terminal. An unsuccessful end is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", line(command));
    let mut running = Running::start(command)?;
    let status = running.wait()?;
    if !status.success() {
        bail!("`{}`: {status}", running.line);
    }
    Ok(())
}

/// As [`run`], and returns what the program wrote to its standard output, with the status for the caller to judge.
pub(crate) fn run_and_read(command: &mut Command) -> Result<(ExitStatus, String)> {
    println!("$ {}", line(command));
    let mut running = Running::start(command.stdout(Stdio::piped()))?;
    let stdout = running.child.stdout.take().context("no standard output")?;
    let mut text = String::new();
    for bytes in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&bytes?).into_owned();
        println!("{line}");
        text.push_str(&line);
        text.push('\n');
    }
    Ok((running.wait()?, text))
}

/// Runs a program that says something only when it fails; returns what it printed.
pub(crate) fn quiet(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}: is it installed?"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}: {}", output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program with its output in `log`, whose end is shown if the program fails.
pub(crate) fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut running = Running::start(command.stdout(file.try_clone()?).stderr(file))?;
    let status = running.wait()?;
    if !status.success() {
        print_tail(log);
        bail!("`{}`: {status}; its output is in {}", running.line, log.display());
    }
    Ok(())
}

/// Shows the end of a log; nothing if there is no such log.
pub(crate) fn print_tail(log: &Path) {
    let Ok(text) = std::fs::read(log) else { return };
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    println!("---- end of {}", log.display());
    for line in lines.iter().skip(lines.len().saturating_sub(TAIL)) {
        println!("{line}");
    }
}

/// The number in front of `word`.
pub(crate) fn count_before(line: &str, word: &str) -> Option<u64> {
    let (before, _) = line.split_once(word)?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_its_status() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err().to_string();
        assert!(error.contains("sh -c exit 3") && error.contains('3'), "{error}");
        let error = run(&mut Command::new("/no/such/program")).unwrap_err().to_string();
        assert!(error.contains("/no/such/program"), "{error}");
    }

    #[test]
    fn what_is_stopped_stands_until_dropped() {
        let file = std::env::temp_dir().join(format!("xtask-open-{}", std::process::id()));
        let open = File::create(&file).unwrap();
        let mut started = Running::start(Command::new("sleep").arg("1000").stdout(open)).unwrap();
        let stopped = started.stop().unwrap().unwrap();
        assert!(stopped.0.stands().unwrap());
        assert!(stopped.has_open(&file).unwrap() && !stopped.has_open(Path::new("/no/such")).unwrap());
        drop(stopped);
        std::fs::remove_file(file).unwrap();
        while started.stands().unwrap() {
            thread::yield_now();
        }
        started.child.kill().unwrap();
        started.wait().unwrap();
        assert!(started.stop().unwrap().is_none());
    }

    #[test]
    fn what_is_dropped_early_is_killed_and_forgotten() {
        let started = Running::start(Command::new("sleep").arg("1000")).unwrap();
        let pid = started.child.id();
        assert!(running().contains(&pid));
        drop(started);
        assert!(!running().contains(&pid));
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_count_is_the_number_right_before_its_word() {
        assert_eq!(count_before("Summary: 0 failed, 14 skipped, 384 passed", " passed"), Some(384));
        assert_eq!(count_before("no number passed", " passed"), None);
    }
}
