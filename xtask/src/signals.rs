//! Signals that ask to end: they wait until they are looked at, so that what was built is taken down first.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

/// How often somebody who waits looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long a command may take to end once it was asked to.
const PATIENCE: Duration = Duration::from_secs(60);

/// The signals of this process, no longer fatal.
#[derive(Debug)]
pub(crate) struct Signals(Mutex<State>);

#[derive(Debug)]
struct State {
    pending: SignalsInfo<WithOrigin>,
    first: Option<i32>,
}

impl Signals {
    /// From now on. Handlers, not a mask: a mask would be that of started programs too.
    pub(crate) fn hold() -> Result<Self> {
        let pending = SignalsInfo::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).context("cannot handle signals")?;
        Ok(Signals(Mutex::new(State { pending, first: None })))
    }

    /// An error once a signal has come: for use between the steps of what takes long.
    pub(crate) fn check(&self) -> Result<()> {
        self.next();
        match self.state().first {
            None => Ok(()),
            Some(number) => bail!("interrupted by {}", name(number)),
        }
    }

    /// Runs `command` to its end. A signal is passed on to it; a second one, or its patience running out, kills it.
    pub(crate) fn run(&self, command: &mut Command) -> Result<ExitStatus> {
        self.check()?;
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("cannot run `{program}`"))?;
        let ended = self.see_it_end(&mut child);
        if ended.is_err() {
            // An error means that it has ended.
            drop(child.kill());
            drop(child.wait());
        }
        ended.with_context(|| format!("waiting for `{program}`"))
    }

    fn see_it_end(&self, child: &mut Child) -> Result<ExitStatus> {
        let mut asked: Option<Instant> = None;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            let received = self.next();
            if asked.is_some_and(|asked| received.is_some() || asked.elapsed() > PATIENCE) {
                child.kill()?;
            } else if let Some(received) = received {
                asked = Some(Instant::now());
                pass_on(received, child)?;
            }
            thread::sleep(LOOK);
        }
    }

    fn next(&self) -> Option<Origin> {
        let mut state = self.state();
        let received = state.pending.pending().next();
        state.first = state.first.or(received.as_ref().map(|received| received.signal));
        received
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The child has not been waited for: its id is still its own.
fn pass_on(received: Origin, child: &Child) -> Result<()> {
    if received.cause == Cause::Kernel {
        // Ctrl-C and the like: the terminal has told all programs in its foreground.
        return Ok(());
    }
    match kill(Pid::from_raw(i32::try_from(child.id())?), Signal::try_from(received.signal)?) {
        // It has ended a moment ago.
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).context("cannot pass a signal on"),
    }
}

fn name(number: i32) -> &'static str {
    Signal::try_from(number).map_or("a signal", Signal::as_str)
}

/// The exit code as a shell has it: 128 and the signal's number for what was killed.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(15)), 143);
    }

    #[test]
    fn what_runs_is_told_and_what_comes_next_is_not_begun() {
        let signals = Signals::hold().unwrap();
        signals.check().unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(signals.see_it_end(&mut child).unwrap().signal(), Some(SIGTERM));
        let error = signals.run(&mut Command::new("true")).unwrap_err();
        assert_eq!(error.to_string(), "interrupted by SIGTERM");
    }
}
