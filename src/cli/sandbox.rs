//! Temporary directories and mounts over them, for a while, and their removal whatever happens: when it ends well, when a
//! step fails, on Ctrl-C.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::outcome::{Exit, Failure, complain};
use crate::bench::Stop;
use crate::error::{Context, Error, Result};
use crate::mount::{self, Daemon, Detach, Started};

/// How long a daemon may take to end by itself once its mount is gone.
const END_WAIT: Duration = Duration::from_secs(10);
/// How long interrupted work may take to notice: a call that writes a file back cannot be cut short.
const STOP_WAIT: Duration = Duration::from_secs(60);
/// How long a directory may go on being filled by work that was left behind.
const REMOVE_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// What was made, to be removed. Clones are of the same.
#[derive(Clone, Default)]
pub(super) struct Sandbox {
    held: Arc<Mutex<Held>>,
    stop: Stop,
}

#[derive(Default)]
struct Held {
    dirs: Vec<TempDir>,
    mounts: Vec<Mount>,
}

/// A mount over two directories, both of which are the sandbox's.
#[derive(Clone, Debug)]
pub(super) struct Mount {
    pub(super) mountpoint: PathBuf,
    pub(super) fast: PathBuf,
    pub(super) slow: PathBuf,
    pub(super) log: PathBuf,
}

/// Why it is cleared away.
enum End<T> {
    Done(Result<T, Failure>),
    Interrupted,
}

/// Runs `work` in a sandbox and clears that away. `None`: interrupted.
pub(super) fn run<T: Send + 'static>(
    work: impl FnOnce(&Sandbox) -> Result<T, Failure> + Send + 'static,
) -> Result<Option<T>, Failure> {
    let (ended, end) = mpsc::channel();
    let on_signal = ended.clone();
    let _signals = watch_signals(move |_| on_signal.send(End::Interrupted).is_ok())?;
    let sandbox = Sandbox::default();
    let inside = sandbox.clone();
    // On a thread of its own, which Ctrl-C leaves behind wherever it is if it does not end by itself.
    std::thread::spawn(move || ended.send(End::Done(work(&inside))).is_ok());
    match end.recv() {
        Ok(End::Done(Ok(result))) => {
            sandbox.clear()?;
            Ok(Some(result))
        }
        Ok(End::Done(Err(failure))) => {
            for line in sandbox.last_log_lines(5) {
                complain(format_args!("the daemon said: {line}"));
            }
            sandbox.clear()?;
            Err(failure)
        }
        Ok(End::Interrupted) | Err(_) => {
            complain("interrupted; clearing away");
            sandbox.stop.set();
            wait_for_work(&end);
            sandbox.clear()?;
            Ok(None)
        }
    }
}

/// A second signal ends the waiting.
fn wait_for_work<T>(end: &Receiver<End<T>>) {
    drop(end.recv_timeout(STOP_WAIT));
}

/// Signals that ask to end are told for as long as the runtime lives, or until `tell` says that nobody listens.
pub(super) fn watch_signals(tell: impl Fn(SignalKind) -> bool + Clone + Send + Sync + 'static) -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build();
    let runtime = runtime.at("start", "signal handling")?;
    let inside = runtime.enter();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let (mut arrivals, tell) = (signal(kind).at("catch", "signals")?, tell.clone());
        runtime.spawn(async move { while arrivals.recv().await.is_some_and(|()| tell(kind)) {} });
    }
    drop(inside);
    Ok(runtime)
}

impl Sandbox {
    /// Is set when the work is to end.
    pub(super) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Makes a directory in `parent` that goes with the sandbox.
    pub(super) fn dir(&self, parent: &Path, prefix: &str, remedy: &str) -> Result<PathBuf> {
        let dir = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(parent)
            .map_err(|e| Error::refused(format!("no temporary directory in {}: {e}", parent.display()), remedy))?;
        let path = dir.path().canonicalize().at("find", dir.path().display())?;
        self.held.lock().dirs.push(dir);
        Ok(path)
    }

    /// Makes the directories that are missing of a mount, and mounts with these options; beneath a dead mount, if there is one.
    pub(super) fn mount(&self, mount: &Mount, options: &[String]) -> Result<(), Failure> {
        for path in [&mount.mountpoint, &mount.fast, &mount.slow] {
            // A dead mount cannot be looked at, but is there.
            let is_there = |e: &io::Error| e.kind() == io::ErrorKind::AlreadyExists;
            fs::create_dir_all(path)
                .or_else(|e| if is_there(&e) { Ok(()) } else { Err(e) })
                .at("mkdir", path.display())?;
        }
        // Before it is there: whatever comes of it is taken away. One that is made again is known already.
        let mut held = self.held.lock();
        if !held.mounts.iter().any(|known| known.mountpoint == mount.mountpoint) {
            held.mounts.push(mount.clone());
        }
        drop(held);
        match mount::start_in_background(mount.arguments(options), &mount.mountpoint)? {
            Started::Up => Ok(()),
            Started::Failed(status) => {
                let why = mount::describe(status).unwrap_or_else(|| "the mount failed".to_owned());
                let remedy = "dlio-fs doctor says what this machine lacks";
                Err(Failure::new(Exit::Failure, format!("{why}; {remedy}")))
            }
        }
    }

    fn last_log_lines(&self, count: usize) -> Vec<String> {
        let mounts = &self.held.lock().mounts;
        let text: String = mounts.iter().map(|mount| fs::read_to_string(&mount.log).unwrap_or_default()).collect();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines[lines.len().saturating_sub(count)..].to_vec()
    }

    /// Removes mounts, daemons and directories, as far as they are still there.
    fn clear(&self) -> Result<()> {
        let Held { dirs, mounts } = std::mem::take(&mut *self.held.lock());
        let mut errors: Vec<_> = mounts.iter().filter_map(|mount| mount.unmount().err()).collect();
        if let Some(error) = errors.pop() {
            // What is mounted there is not ours to remove.
            dirs.into_iter().for_each(|dir| drop(dir.keep()));
            return Err(error);
        }
        // All are tried, whatever becomes of one.
        let removed: Vec<_> = dirs.iter().rev().map(remove).collect();
        removed.into_iter().collect()
    }
}

/// Work that was left behind may still be adding to it, and what else is mounted there may list less than there is. One attempt may
/// take minutes.
fn remove(dir: &TempDir) -> Result<()> {
    let mut waiting = None;
    loop {
        match fs::remove_dir_all(dir.path()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e)
                if e.raw_os_error() == Some(Errno::ENOTEMPTY as i32)
                    && waiting.get_or_insert_with(Instant::now).elapsed() < REMOVE_WAIT =>
            {
                std::thread::sleep(POLL);
            }
            removed => return removed.at("remove", dir.path().display()),
        }
    }
}

impl Mount {
    /// A mount whose directories and log are all in one directory.
    pub(super) fn inside(root: &Path) -> Mount {
        let [mountpoint, fast, slow, log] = ["mnt", "fast", "slow", "daemon.log"].map(|name| root.join(name));
        Mount { mountpoint, fast, slow, log }
    }

    fn arguments(&self, options: &[String]) -> Vec<OsString> {
        let with = |flag: &str, path: &Path| {
            let mut argument = OsString::from(flag);
            argument.push("=");
            argument.push(path);
            argument
        };
        let mut arguments = vec![
            "mount".into(),
            "--foreground".into(),
            "--announce".into(),
            with("--fast", &self.fast),
            with("--slow", &self.slow),
            with("--log-file", &self.log),
            // The tiers may be small: a temporary directory is often in memory.
            "-oballast=8MiB".into(),
        ];
        arguments.extend(options.iter().map(|option| format!("-o{option}").into()));
        arguments.push(self.mountpoint.clone().into());
        arguments
    }

    /// The process that serves it.
    pub(super) fn daemon(&self) -> Result<Daemon> {
        Daemon::of(&self.mountpoint).ok_or_else(|| {
            let what = format!("the mount at {} has no daemon any more", self.mountpoint.display());
            Error::refused(what, format!("see {}", self.log.display()))
        })
    }

    /// Kills its daemon, as a crash does. The mount stays, and is dead.
    pub(super) fn kill(&self) -> Result<()> {
        let daemon = self.daemon()?;
        match end_by_force(&daemon) {
            true => Ok(()),
            false => {
                let what = format!("the daemon (pid {}) does not end though it was killed", daemon.pid);
                Err(Error::refused(what, "see dmesg, and whether the tiers answer"))
            }
        }
    }

    /// Takes the mount away, and waits for its daemon, as far as they are still there.
    pub(super) fn unmount(&self) -> Result<()> {
        let daemon = Daemon::of(&self.mountpoint);
        let mounted = mount::mounts().is_ok_and(|mounts| mount::mounted_at(&mounts, &self.mountpoint).is_some());
        if mounted && let Err(errno) = mount::detach(&self.mountpoint, Detach::Now) {
            let what = format!("cannot unmount {}: {}", self.mountpoint.display(), errno.desc());
            return Err(Error::refused(what, "unmount it by hand, then remove the directory"));
        }
        if let Some(daemon) = daemon {
            end(&daemon);
        }
        Ok(())
    }
}

/// Without its mount the daemon ends by itself; one that does not is ended.
fn end(daemon: &Daemon) {
    if !ends_within(daemon, END_WAIT) {
        end_by_force(daemon);
    }
}

fn ends_within(daemon: &Daemon, wait: Duration) -> bool {
    let begun = Instant::now();
    while daemon.runs() && begun.elapsed() < wait {
        std::thread::sleep(POLL);
    }
    !daemon.runs()
}

/// Whether it has ended. A sync that it is in ends first, which a busy disk may take long for.
fn end_by_force(daemon: &Daemon) -> bool {
    let pid = i32::try_from(daemon.pid).map(Pid::from_raw);
    // The signal fails only if the daemon has ended in this moment.
    pid.is_ok_and(|pid| kill(pid, Signal::SIGKILL).is_err() || ends_within(daemon, STOP_WAIT))
}
