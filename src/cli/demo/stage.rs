//! The demonstration's directories and its mount, and their removal whatever happens.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use super::super::{Exit, Failure, complain, talk};
use crate::error::{Context, Error, Result};
use crate::mount::{self, Detach, Started};

/// How long a daemon may take to end by itself once its mount is gone.
const END_WAIT: Duration = Duration::from_secs(10);

/// What a shell reports for a program that ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// A temporary directory with both tiers, the mount point and the daemon's log.
pub(super) struct Stage {
    root: PathBuf,
    mountpoint: PathBuf,
    fast: PathBuf,
    slow: PathBuf,
    log: PathBuf,
    /// Taken by whoever clears the stage: the end of the demonstration, or a signal.
    dir: Arc<Mutex<Option<TempDir>>>,
    interrupted: Arc<AtomicBool>,
}

impl Stage {
    /// Makes the directories. From here on Ctrl-C clears them away too.
    pub(super) fn set(parent: &Path) -> Result<Stage> {
        let dir = tempfile::Builder::new().prefix("dlio-fs-demo-").tempdir_in(parent).map_err(|e| {
            let remedy = "name a directory that you may write to with --dir";
            Error::refused(format!("no temporary directory in {}: {e}", parent.display()), remedy)
        })?;
        let root = dir.path().canonicalize().at("find", dir.path().display())?;
        let [mountpoint, fast, slow, log] = ["mnt", "fast", "slow", "daemon.log"].map(|name| root.join(name));
        for path in [&mountpoint, &fast, &slow] {
            fs::create_dir(path).at("mkdir", path.display())?;
        }
        let stage = Stage {
            root,
            mountpoint,
            fast,
            slow,
            log,
            dir: Arc::new(Mutex::new(Some(dir))),
            interrupted: Arc::default(),
        };
        stage.clear_on_signals()?;
        Ok(stage)
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

    pub(super) fn mount(&self) -> Result<(), Failure> {
        let with = |flag: &str, path: &Path| {
            let mut argument = OsString::from(flag);
            argument.push("=");
            argument.push(path);
            argument
        };
        let arguments = [
            "mount".into(),
            "--foreground".into(),
            "--announce".into(),
            with("--fast", &self.fast),
            with("--slow", &self.slow),
            with("--log-file", &self.log),
            // The tiers may be small: a temporary directory is often in memory.
            "-oballast=8MiB".into(),
            self.mountpoint.clone().into(),
        ];
        match mount::start_in_background(arguments, &self.mountpoint)? {
            Started::Up => Ok(()),
            Started::Failed(status) => {
                let why = mount::describe(status).unwrap_or_else(|| "the mount failed".to_owned());
                let remedy = "dlio-fs doctor says what this machine lacks";
                Err(Failure::new(Exit::Failure, format!("{why}; {remedy}")))
            }
        }
    }

    pub(super) fn last_log_lines(&self, count: usize) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines[lines.len().saturating_sub(count)..].to_vec()
    }

    /// Never returns after Ctrl-C: what fails then is no news, and the process is about to end.
    pub(super) fn stop_if_interrupted(&self) {
        while self.interrupted.load(Ordering::Relaxed) {
            std::thread::park();
        }
    }

    /// Removes mount, daemon and directories, as far as they are still there.
    pub(super) fn clear(&self) -> Result<()> {
        clear(&self.dir, &self.mountpoint)
    }

    fn clear_on_signals(&self) -> Result<()> {
        let (dir, mountpoint) = (Arc::clone(&self.dir), self.mountpoint.clone());
        let interrupted = Arc::clone(&self.interrupted);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().at("start", "signal handling")?;
        let mut signals = Vec::new();
        {
            let _inside = runtime.enter();
            for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
                signals.push(signal(kind).at("catch", "signals")?);
            }
        }
        std::thread::spawn(move || {
            let [interrupt, terminate, hangup] = signals.as_mut_slice() else { return };
            runtime.block_on(async {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, _ = hangup.recv() => {} }
            });
            interrupted.store(true, Ordering::Relaxed);
            complain("interrupted; clearing away");
            if let Err(e) = clear(&dir, &mountpoint) {
                complain(e);
            }
            std::process::exit(INTERRUPTED);
        });
        Ok(())
    }
}

/// The lock is held to the end: whoever comes second waits, and finds nothing left to do.
fn clear(dir: &Mutex<Option<TempDir>>, mountpoint: &Path) -> Result<()> {
    let mut dir = dir.lock();
    let Some(dir) = dir.take() else { return Ok(()) };
    let daemon = talk::daemon_of(mountpoint);
    let mounted = mount::mounts().is_ok_and(|mounts| mount::mounted_at(&mounts, mountpoint).is_some());
    if mounted && let Err(errno) = mount::detach(mountpoint, Detach::Now) {
        let remedy = format!("unmount it by hand, then remove {}", dir.keep().display());
        return Err(Error::refused(format!("cannot unmount {}: {}", mountpoint.display(), errno.desc()), remedy));
    }
    if let Some(daemon) = daemon {
        end(&daemon);
    }
    let path = dir.path().display().to_string();
    dir.close().at("remove", path)
}

/// Without its mount the daemon ends by itself; one that does not is ended.
fn end(daemon: &talk::Daemon) {
    let alive = || talk::is_daemon(daemon);
    let begun = Instant::now();
    while alive() && begun.elapsed() < END_WAIT {
        std::thread::sleep(Duration::from_millis(10));
    }
    // The signal fails only if the daemon has ended in this moment.
    if alive()
        && let Ok(pid) = i32::try_from(daemon.pid)
        && kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok()
    {
        while alive() && begun.elapsed() < 2 * END_WAIT {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
