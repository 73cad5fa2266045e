//! Starting the daemon in the background: the program is run once more, and it returns once the mount answers.
//!
//! It does not fork, which a process with threads must not do. The readiness pipe is the daemon's standard output: one
//! word is written when the mount stands; end-of-file without it means that the daemon has failed, after saying why on
//! the standard error it shares with us.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::mount::answer::{ask, within};
use crate::mount::logging;
use crate::path::Show as _;

const READY: &[u8] = b"ready\n";
/// How long the kernel may take to show a mount that its daemon calls ready.
const ANSWER: Duration = Duration::from_secs(30);

/// How starting a daemon ended.
#[derive(Debug)]
pub enum Started {
    /// The mount answers.
    Up,
    /// The daemon gave up. If it exited by itself it has said why.
    Failed(ExitStatus),
}

/// The file that this process runs.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().at("find", "this program")
}

/// Runs a `dlio-fs` with `arguments` as a daemon, and waits until `mountpoint` answers.
pub fn start(program: &Path, arguments: impl IntoIterator<Item = OsString>, mountpoint: &Path) -> Result<Started> {
    let mut command = Command::new(program);
    // Not the name under which this program was called: it may be a mount helper's.
    command.arg0("dlio-fs");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut daemon = command.spawn().at("run", program.shown())?;
    let mut said = Vec::new();
    if let Some(mut pipe) = daemon.stdout.take() {
        pipe.by_ref().take(READY.len() as u64).read_to_end(&mut said).at("read from", "the daemon")?;
    }
    if said == READY { answers(mountpoint).map(|()| Started::Up) } else { exited(daemon) }
}

fn exited(mut daemon: Child) -> Result<Started> {
    daemon.wait().map(Started::Failed).at("wait for", "the daemon")
}

fn answers(mountpoint: &Path) -> Result<()> {
    let asked = mountpoint.to_path_buf();
    match within(ANSWER, move || ask(&asked)) {
        Some(answer) => answer.at("ask", mountpoint.shown()),
        None => {
            let what = format!("the mount at {} does not answer", mountpoint.shown());
            Err(Error::refused(what, "see the daemon's log"))
        }
    }
}

/// A text for a daemon that was killed and could not say why.
pub fn describe(status: ExitStatus) -> Option<String> {
    status.signal().map(|signal| format!("the daemon was killed by signal {signal} before the mount answered"))
}

/// The daemon's side: a session of its own, so that the terminal's signals and hangup do not reach it.
pub(super) fn become_session_leader() -> Result<()> {
    nix::unistd::setsid().map(drop).map_err(io::Error::from).at("call", "setsid")
}

/// Tells the starter that the mount answers, then releases its terminal. Fails if the starter has gone: then the mount
/// is no longer wanted.
pub(super) fn announce() -> Result<()> {
    // Opened before the word is written: after it, no failure could be reported to the starter.
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").at("open", "/dev/null")?;
    let mut stdout = io::stdout();
    stdout.write_all(READY).and_then(|()| stdout.flush()).at("tell", "the starting process")?;
    nix::unistd::dup2_stdout(&null).map_err(io::Error::from).at("redirect", "standard output")?;
    nix::unistd::dup2_stderr(&null).map_err(io::Error::from).at("redirect", "standard error")?;
    logging::redirect_stderr().at("redirect", "standard error")
}
