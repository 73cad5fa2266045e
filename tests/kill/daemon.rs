//! Two tiers, a mount point and the daemon between them, which can be killed and started again.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

use super::world::wait;

/// For anything the daemon is asked for.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Mount {
    dir: TempDir,
    arguments: Vec<String>,
    daemon: Option<Child>,
}

impl Mount {
    /// Makes the directories, fills the slow tier and starts the daemon.
    pub(crate) fn new(arguments: &[&str], fill: impl FnOnce(&Path)) -> Self {
        let dir = TempDir::with_prefix_in("kill-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let mut mount = Mount { dir, arguments, daemon: None };
        for dir in [mount.fast(), mount.slow(), mount.point()] {
            fs::create_dir(dir).unwrap();
        }
        fill(&mount.slow());
        mount.start();
        mount
    }

    fn fast(&self) -> PathBuf {
        self.dir.path().join("fast")
    }

    pub(crate) fn slow(&self) -> PathBuf {
        self.dir.path().join("slow")
    }

    pub(crate) fn point(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("daemon.log")
    }

    /// Starts the daemon, on a dead mount as well, and returns when the mount answers.
    pub(crate) fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        command.arg("mount").arg(self.point()).arg("--fast").arg(self.fast()).arg("--slow").arg(self.slow());
        command
            .args(["-o", "high=98%,low=97%", "--foreground"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut daemon = command.spawn().unwrap();
        let stats = self.point().join(".dlio/stats");
        let began = Instant::now();
        while fs::read(&stats).is_err() {
            let ended = daemon.try_wait().unwrap();
            assert!(ended.is_none(), "the daemon ended before the mount answered: {ended:?}");
            assert!(began.elapsed() < PATIENCE, "the mount does not answer");
            thread::sleep(Duration::from_millis(5));
        }
        self.daemon = Some(daemon);
    }

    /// SIGKILL; when this returns the daemon is no more, and its mount point says so.
    pub(crate) fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("started before it is killed");
        daemon.kill().unwrap();
        let status = daemon.wait().unwrap();
        assert_eq!(status.code(), None, "the daemon had ended by itself: {status}");
        let error = fs::read_dir(self.point()).expect_err("a dead mount must not look like a directory");
        assert_eq!(error.raw_os_error(), Some(Errno::ENOTCONN as i32), "a dead mount answers: {error}");
    }

    /// Returns when everything is on the slow tier.
    pub(crate) fn drain(&self) {
        self.program(&["drain".as_ref(), self.point().as_ref()]);
    }

    /// Drains, unmounts and sees the daemon end.
    pub(crate) fn umount(&mut self) {
        self.program(&["umount".as_ref(), self.point().as_ref()]);
        let mut daemon = self.daemon.take().expect("started before it is unmounted");
        let status = wait(&mut daemon, PATIENCE).expect("the daemon ends after its unmount");
        assert!(status.success(), "the daemon: {status}");
    }

    /// Another command; what it printed.
    pub(crate) fn program(&self, arguments: &[&Path]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        let mut child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let status = wait(&mut child, PATIENCE);
        assert!(status.is_some_and(|status| status.success()), "dlio-fs {arguments:?}: {status:?}");
        let mut said = String::new();
        child.stdout.take().expect("piped").read_to_string(&mut said).unwrap();
        said
    }
}

/// Returns when this is so.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            // Both fail only if it has ended already.
            daemon.kill().unwrap_or_default();
            daemon.wait().map(drop).unwrap_or_default();
        }
        // EINVAL: nothing is mounted there.
        umount2(&self.point(), MntFlags::MNT_DETACH).unwrap_or_default();
        if thread::panicking() {
            self.dir.disable_cleanup(true);
            println!("both tiers and the daemon's log are kept in {}", self.dir.path().display());
            let log = fs::read(self.log()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
    }
}
