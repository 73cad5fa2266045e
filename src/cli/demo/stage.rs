//! The demonstration's directories and its mount, and their removal whatever happens.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::super::{Exit, Failure};
use crate::error::{Context, Error, Result};
use crate::mount::{self, Daemon, Detach, Started};

/// How long a daemon may take to end by itself once its mount is gone.
const END_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// Both tiers, the mount point and the daemon's log, in one temporary directory.
#[derive(Clone)]
pub(super) struct Stage {
    root: PathBuf,
    mountpoint: PathBuf,
    fast: PathBuf,
    slow: PathBuf,
    log: PathBuf,
}

impl Stage {
    /// Makes the directories. They go with the returned guard, but not while something is mounted there: give it to
    /// [`Stage::clear`].
    pub(super) fn set(parent: &Path) -> Result<(Stage, TempDir)> {
        let dir = tempfile::Builder::new().prefix("dlio-fs-demo-").tempdir_in(parent).map_err(|e| {
            let remedy = "name a directory that you may write to with --dir";
            Error::refused(format!("no temporary directory in {}: {e}", parent.display()), remedy)
        })?;
        let root = dir.path().canonicalize().at("find", dir.path().display())?;
        let [mountpoint, fast, slow, log] = ["mnt", "fast", "slow", "daemon.log"].map(|name| root.join(name));
        for path in [&mountpoint, &fast, &slow] {
            fs::create_dir(path).at("mkdir", path.display())?;
        }
        Ok((Stage { root, mountpoint, fast, slow, log }, dir))
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

    /// Removes mount, daemon and directories, as far as they are still there.
    pub(super) fn clear(&self, dir: TempDir) -> Result<()> {
        let daemon = Daemon::of(&self.mountpoint);
        let mounted = mount::mounts().is_ok_and(|mounts| mount::mounted_at(&mounts, &self.mountpoint).is_some());
        if mounted && let Err(errno) = mount::detach(&self.mountpoint, Detach::Now) {
            let what = format!("cannot unmount {}: {}", self.mountpoint.display(), errno.desc());
            return Err(Error::refused(what, format!("unmount it by hand, then remove {}", dir.keep().display())));
        }
        if let Some(daemon) = daemon {
            end(&daemon);
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
