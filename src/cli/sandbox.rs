//! Temporary directories and mounts over them, which are always removed: on success, on failure, on Ctrl-C.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::error::{Context, Error, Result};
use crate::mount::{self, Daemon, Detach, Started};
use crate::path::Show as _;

/// How long a daemon may take to exit once its mount is gone.
const END_WAIT: Duration = Duration::from_secs(10);
/// How long interrupted work may take to stop: a call that writes a file back cannot be cut short.
const STOP_WAIT: Duration = Duration::from_secs(60);
/// How long abandoned work may go on adding files to a directory.
const REMOVE_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// Whether work should end. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// From now on all work ends at its next piece or file.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Errors: EINTR once it is set.
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(Errno::EINTR.into()) } else { Ok(()) }
    }
}

/// Everything that was made and must be removed. Clones share it.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// The `dlio-fs` that mounts.
    program: PathBuf,
    held: Arc<Mutex<SandboxParts>>,
    stop: StopFlag,
}

#[derive(Debug, Default)]
struct SandboxParts {
    dirs: Vec<TempDir>,
    mounts: Vec<Mount>,
}

/// A mount over two directories of the sandbox.
#[derive(Clone, Debug)]
pub struct Mount {
    pub mountpoint: PathBuf,
    pub fast: PathBuf,
    pub slow: PathBuf,
    pub log: PathBuf,
}

/// Why it is cleaned up.
enum CleanupReason<T> {
    Done(Result<T, Failure>),
    Interrupted,
}

/// Runs `work` in a sandbox whose mounts are made by this `dlio-fs`, and removes the sandbox. `None`: interrupted.
pub fn run<T: Send + 'static>(
    program: PathBuf,
    work: impl FnOnce(&Sandbox) -> Result<T, Failure> + Send + 'static,
) -> Result<Option<T>, Failure> {
    let (ended, end) = mpsc::channel();
    let on_signal = ended.clone();
    let _signals = watch_signals(move |_| on_signal.send(CleanupReason::Interrupted).is_ok())?;
    let sandbox = Sandbox { program, held: Arc::default(), stop: StopFlag::default() };
    let inside = sandbox.clone();
    // On its own thread, which is abandoned after Ctrl-C if it does not stop by itself.
    std::thread::spawn(move || ended.send(CleanupReason::Done(work(&inside))).is_ok());
    match end.recv() {
        Ok(CleanupReason::Done(Ok(result))) => {
            sandbox.clear()?;
            Ok(Some(result))
        }
        Ok(CleanupReason::Done(Err(failure))) => {
            for line in sandbox.last_log_lines(5) {
                complain(format_args!("the daemon said: {line}"));
            }
            sandbox.clear()?;
            Err(failure)
        }
        Ok(CleanupReason::Interrupted) | Err(_) => {
            complain("interrupted; cleaning up");
            sandbox.stop.set();
            wait_for_work(&end);
            sandbox.clear()?;
            Ok(None)
        }
    }
}

/// A second signal ends the wait.
fn wait_for_work<T>(end: &Receiver<CleanupReason<T>>) {
    drop(end.recv_timeout(STOP_WAIT));
}

/// Reports signals that ask to end, for as long as the runtime lives, or until `tell` returns false.
pub fn watch_signals(tell: impl Fn(SignalKind) -> bool + Clone + Send + Sync + 'static) -> Result<Runtime> {
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
    /// Set when the work must stop.
    pub fn stop(&self) -> &StopFlag {
        &self.stop
    }

    /// Makes a directory in `parent` that is removed with the sandbox.
    pub fn dir(&self, parent: &Path, prefix: &str, remedy: &str) -> Result<PathBuf> {
        let dir = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(parent)
            .map_err(|e| Error::refused(format!("no temporary directory in {}: {e}", parent.shown()), remedy))?;
        let path = dir.path().canonicalize().at("find", dir.path().shown())?;
        self.held.lock().dirs.push(dir);
        Ok(path)
    }

    /// Makes the missing directories of a mount, and mounts with these options, beneath a dead mount if there is one.
    pub fn mount(&self, mount: &Mount, options: &[String]) -> Result<(), Failure> {
        for path in [&mount.mountpoint, &mount.fast, &mount.slow] {
            // A dead mount answers no stat, but exists.
            let is_there = |e: &io::Error| e.kind() == io::ErrorKind::AlreadyExists;
            fs::create_dir_all(path)
                .or_else(|e| if is_there(&e) { Ok(()) } else { Err(e) })
                .at("mkdir", path.shown())?;
        }
        // Registered before it exists, so that it is removed in any case. One that is made again is already registered.
        let mut held = self.held.lock();
        if !held.mounts.iter().any(|known| known.mountpoint == mount.mountpoint) {
            held.mounts.push(mount.clone());
        }
        drop(held);
        match mount::start_in_background(&self.program, mount.arguments(options), &mount.mountpoint)? {
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

    /// Removes mounts, daemons and directories that still exist.
    fn clear(&self) -> Result<()> {
        let SandboxParts { dirs, mounts } = std::mem::take(&mut *self.held.lock());
        let mut errors: Vec<_> = mounts.iter().filter_map(|mount| mount.unmount().err()).collect();
        if let Some(error) = errors.pop() {
            // Never delete files below a mount.
            dirs.into_iter().for_each(|dir| drop(dir.keep()));
            return Err(error);
        }
        // All are tried, even if one fails.
        let removed: Vec<_> = dirs.iter().rev().map(remove).collect();
        removed.into_iter().collect()
    }
}

/// Tries several times: abandoned work may still add files, and another mount there may list too few. One attempt may
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
            removed => return removed.at("remove", dir.path().shown()),
        }
    }
}

impl Mount {
    /// A mount whose tiers and log lie in one directory.
    pub fn inside(root: &Path) -> Mount {
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
            // The tiers may be small, since a temporary directory is often in memory.
            "-oballast=8MiB".into(),
        ];
        arguments.extend(options.iter().map(|option| format!("-o{option}").into()));
        arguments.push(self.mountpoint.clone().into());
        arguments
    }

    /// The daemon's process.
    pub fn daemon(&self) -> Result<Daemon> {
        Daemon::of(&self.mountpoint).ok_or_else(|| {
            let what = format!("the mount at {} no longer has a daemon", self.mountpoint.shown());
            Error::refused(what, format!("see {}", self.log.shown()))
        })
    }

    /// Kills its daemon, as a crash would. A dead mount stays.
    pub fn kill(&self) -> Result<()> {
        let daemon = self.daemon()?;
        match end_by_force(&daemon) {
            true => Ok(()),
            false => {
                let what = format!("the daemon (pid {}) does not end though it was killed", daemon.pid);
                Err(Error::refused(what, "see dmesg, and whether the tiers answer"))
            }
        }
    }

    /// Unmounts, and waits for the daemon, if they still exist.
    pub fn unmount(&self) -> Result<()> {
        let daemon = Daemon::of(&self.mountpoint);
        let mounted = mount::mounts().is_ok_and(|mounts| mount::mounted_at(&mounts, &self.mountpoint).is_some());
        if mounted && let Err(errno) = mount::detach(&self.mountpoint, Detach::Now) {
            let what = format!("cannot unmount {}: {}", self.mountpoint.shown(), errno.desc());
            return Err(Error::refused(what, "unmount it by hand, then remove the directory"));
        }
        if let Some(daemon) = daemon {
            end(&daemon);
        }
        Ok(())
    }
}

/// Without its mount the daemon exits by itself; otherwise it is killed.
fn end(daemon: &Daemon) {
    if !ends_within(daemon, END_WAIT) {
        end_by_force(daemon);
    }
}

fn ends_within(daemon: &Daemon, wait: Duration) -> bool {
    let begun = Instant::now();
    while daemon.runs() {
        if begun.elapsed() >= wait {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// Whether it has exited. It first finishes a sync in progress, which may take long on a busy disk.
fn end_by_force(daemon: &Daemon) -> bool {
    let pid = i32::try_from(daemon.pid).map(Pid::from_raw);
    // The signal fails only if the daemon has just exited.
    pid.is_ok_and(|pid| kill(pid, Signal::SIGKILL).is_err() || ends_within(daemon, STOP_WAIT))
}
