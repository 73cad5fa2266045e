//! Two temporary tiers and a mount of their own, for a while, and their removal whatever happens: when it ends well, when
//! a step fails, on Ctrl-C.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::{Exit, Failure, complain};
use crate::error::{Context, Error, Result};
use crate::mount::{self, Daemon, Detach, Started};

/// How long a daemon may take to end by itself once its mount is gone.
const END_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// Both tiers, the mount point and the daemon's log, in one temporary directory.
#[derive(Clone)]
pub(super) struct Sandbox {
    root: PathBuf,
    mountpoint: PathBuf,
    fast: PathBuf,
    slow: PathBuf,
    log: PathBuf,
}

/// Why it is cleared away.
enum End<T> {
    Done(Result<T, Failure>),
    Interrupted,
}

/// Makes a sandbox in a directory below `parent`, runs `work` in it and clears it away. `None`: interrupted.
pub(super) fn run<T: Send + 'static>(
    parent: &Path,
    work: impl FnOnce(&Sandbox) -> Result<T, Failure> + Send + 'static,
) -> Result<Option<T>, Failure> {
    let (ended, end) = mpsc::channel();
    let _signals = watch_signals(ended.clone())?;
    let (sandbox, dir) = Sandbox::make(parent)?;
    // On a thread of its own, which Ctrl-C leaves behind wherever it is.
    let inside = sandbox.clone();
    std::thread::spawn(move || ended.send(End::Done(work(&inside))).is_ok());
    match end.recv() {
        Ok(End::Done(Ok(result))) => {
            sandbox.clear(dir)?;
            Ok(Some(result))
        }
        Ok(End::Done(Err(failure))) => {
            for line in sandbox.last_log_lines(5) {
                complain(format_args!("the daemon said: {line}"));
            }
            sandbox.clear(dir)?;
            Err(failure)
        }
        Ok(End::Interrupted) | Err(_) => {
            complain("interrupted; clearing away");
            sandbox.clear(dir)?;
            Ok(None)
        }
    }
}

/// Signals are caught for as long as the runtime lives.
fn watch_signals<T: Send + 'static>(ended: mpsc::Sender<End<T>>) -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build();
    let runtime = runtime.at("start", "signal handling")?;
    let inside = runtime.enter();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let (mut arrivals, ended) = (signal(kind).at("catch", "signals")?, ended.clone());
        // Nobody listens any more once the work has ended by itself.
        runtime.spawn(async move { arrivals.recv().await.is_some_and(|()| ended.send(End::Interrupted).is_ok()) });
    }
    drop(inside);
    Ok(runtime)
}

impl Sandbox {
    /// Makes the directories. They go with the returned guard, but not while something is mounted there: give it to
    /// [`Sandbox::clear`].
    fn make(parent: &Path) -> Result<(Sandbox, TempDir)> {
        let dir = tempfile::Builder::new().prefix("dlio-fs-demo-").tempdir_in(parent).map_err(|e| {
            let remedy = "name a directory that you may write to with --dir";
            Error::refused(format!("no temporary directory in {}: {e}", parent.display()), remedy)
        })?;
        let root = dir.path().canonicalize().at("find", dir.path().display())?;
        let [mountpoint, fast, slow, log] = ["mnt", "fast", "slow", "daemon.log"].map(|name| root.join(name));
        for path in [&mountpoint, &fast, &slow] {
            fs::create_dir(path).at("mkdir", path.display())?;
        }
        Ok((Sandbox { root, mountpoint, fast, slow, log }, dir))
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    pub(super) fn slow(&self) -> &Path {
        &self.slow
    }

    /// Mounts with further options.
    pub(super) fn mount(&self, options: &[&str]) -> Result<(), Failure> {
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
        match mount::start_in_background(arguments, &self.mountpoint)? {
            Started::Up => Ok(()),
            Started::Failed(status) => {
                let why = mount::describe(status).unwrap_or_else(|| "the mount failed".to_owned());
                let remedy = "dlio-fs doctor says what this machine lacks";
                Err(Failure::new(Exit::Failure, format!("{why}; {remedy}")))
            }
        }
    }

    fn last_log_lines(&self, count: usize) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines[lines.len().saturating_sub(count)..].to_vec()
    }

    /// Takes the mount away, and waits for its daemon, as far as they are still there.
    pub(super) fn unmount(&self) -> Result<()> {
        let daemon = Daemon::of(&self.mountpoint);
        let mounted = mount::mounts().is_ok_and(|mounts| mount::mounted_at(&mounts, &self.mountpoint).is_some());
        if mounted && let Err(errno) = mount::detach(&self.mountpoint, Detach::Now) {
            let what = format!("cannot unmount {}: {}", self.mountpoint.display(), errno.desc());
            return Err(Error::refused(what, format!("unmount it by hand, then remove {}", self.root.display())));
        }
        if let Some(daemon) = daemon {
            end(&daemon);
        }
        Ok(())
    }

    /// Removes mount, daemon and directories, as far as they are still there.
    fn clear(&self, dir: TempDir) -> Result<()> {
        if let Err(error) = self.unmount() {
            // What is mounted there is not ours to remove.
            drop(dir.keep());
            return Err(error);
        }
        dir.close().at("remove", self.root.display())
    }
}

/// Without its mount the daemon ends by itself; one that does not is ended.
fn end(daemon: &Daemon) {
    let ends_within = |limit| {
        let begun = Instant::now();
        while daemon.runs() && begun.elapsed() < limit {
            std::thread::sleep(POLL);
        }
        !daemon.runs()
    };
    // The signal fails only if the daemon has ended in this moment.
    if !ends_within(END_WAIT)
        && let Ok(pid) = i32::try_from(daemon.pid)
        && kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok()
    {
        ends_within(END_WAIT);
    }
}
