//! A real mount for a test: two temporary tiers, the built program in the foreground, everything gone afterwards.
//!
//! Needs root and /dev/fuse; without them a test fails and says so.

#![allow(clippy::unwrap_used, clippy::print_stderr, dead_code, unreachable_pub)]

pub mod rig;

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Reached only when something hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A user who is neither root nor the owner of anything.
pub const USER: u32 = 1000;

#[derive(Debug)]
pub struct Mount {
    dir: tempfile::TempDir,
    /// Where it is not the temporary one.
    slow: Option<PathBuf>,
    options: Vec<String>,
    daemon: Option<Child>,
}

impl Mount {
    pub fn new() -> Self {
        Mount::with(&[], |_| ())
    }

    /// A mount whose slow tier `prepare` fills first, with `-o` options.
    pub fn with(options: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        Mount::build(None, options, prepare)
    }

    /// A mount over a slow tier that is somewhere else.
    pub fn over(slow: PathBuf, options: &[&str]) -> Self {
        Mount::build(Some(slow), options, |_| ())
    }

    fn build(slow: Option<PathBuf>, options: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests mount as root");
        assert!(Path::new("/dev/fuse").exists(), "these tests need /dev/fuse (modprobe fuse)");
        let dir = tempfile::Builder::new()
            .prefix("dlio-fs-test-")
            // Other users must get to the mount point.
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        for name in ["fast", "slow", "mnt"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let options = options.iter().map(|&o| o.to_owned()).collect();
        let mut mount = Mount { dir, slow, options, daemon: None };
        prepare(&mount.slow());
        mount.start();
        mount
    }

    pub fn fast(&self) -> PathBuf {
        self.dir.path().join("fast")
    }

    pub fn slow(&self) -> PathBuf {
        self.slow.clone().unwrap_or_else(|| self.dir.path().join("slow"))
    }

    /// The mount point.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// A path in the mount.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    /// Creates a file in the mount.
    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn mounted(&self) -> bool {
        let above = fs::metadata(self.dir.path()).unwrap().dev();
        fs::metadata(self.root()).is_ok_and(|mnt| mnt.dev() != above)
    }

    /// Starts the daemon and waits until the mount answers.
    pub fn start(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        command.arg("mount").arg(self.root()).arg("--fast").arg(self.fast()).arg("--slow").arg(self.slow());
        command.arg("--foreground");
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        let mut daemon = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        until("the mount answers", || {
            if let Some(status) = daemon.try_wait().unwrap() {
                panic!("dlio-fs mount ended with {status}:\n{}", fs::read_to_string(self.log()).unwrap_or_default());
            }
            self.mounted()
        });
        self.daemon = Some(daemon);
    }

    /// Ends the daemon as an operator does, and waits for it. What is pending stays on the fast tier.
    pub fn stop(&mut self) {
        let mut daemon = self.daemon.take().expect("a mount that runs");
        kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
        until("the daemon ends", || daemon.try_wait().unwrap().is_some());
        assert!(!self.mounted(), "a daemon that ended on SIGTERM has unmounted");
    }

    /// Stops the daemon in its tracks: whoever calls into this mount hangs.
    pub fn freeze(&self) -> Frozen {
        let pid = Pid::from_raw(self.daemon.as_ref().expect("a mount that runs").id() as i32);
        kill(pid, Signal::SIGSTOP).unwrap();
        let (thaw, thawed) = mpsc::channel();
        // A test that hangs in the frozen mount cannot be ended in any other way.
        std::thread::spawn(move || {
            thawed.recv_timeout(PATIENCE).ok();
            kill(pid, Signal::SIGCONT).ok();
        });
        Frozen(thaw)
    }

    pub fn stats(&self) -> String {
        fs::read_to_string(self.at(".dlio/stats")).unwrap()
    }

    pub fn stats_json(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.at(".dlio/stats.json")).unwrap()).unwrap()
    }

    /// How often an operation was called, and the bytes it moved.
    pub fn calls(&self, op: &str) -> (u64, u64) {
        let json = self.stats_json();
        let lines = json["operations"].as_array().unwrap();
        let line = lines.iter().find(|line| line["op"] == op);
        line.map_or((0, 0), |line| (line["calls"].as_u64().unwrap(), line["bytes"].as_u64().unwrap()))
    }

    /// Sends a line to `control`; the reply, up to its end.
    pub fn control(&self, command: &str) -> String {
        let mut control = OpenOptions::new().read(true).write(true).open(self.at(".dlio/control")).unwrap();
        control.write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut reply = String::new();
        control.read_to_string(&mut reply).unwrap();
        reply
    }

    /// Waits until everything is on the slow tier.
    pub fn sync(&self) {
        let reply = self.control("sync");
        assert!(reply.lines().last().is_some_and(|line| line.starts_with("ok: ")), "{reply}");
    }

    /// Runs a shell script in the mount's root as another user.
    pub fn as_user(&self, uid: u32, script: &str) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(self.root()).uid(uid).gid(uid);
        command.output().unwrap()
    }

    /// Runs a shell script in the mount's root; its standard output. Fails if the script does.
    pub fn sh(&self, script: &str) -> String {
        succeeded(Command::new("sh").args(["-ec", script]).current_dir(self.root()).output().unwrap())
    }

    /// The same for Python, for calls that have no safe form in Rust.
    pub fn python(&self, script: &str) -> String {
        succeeded(Command::new("python3").args(["-c", script]).current_dir(self.root()).output().unwrap())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).ok();
            let deadline = Instant::now() + PATIENCE;
            while matches!(daemon.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            daemon.kill().ok();
            daemon.wait().ok();
        }
        umount2(&self.root(), MntFlags::MNT_DETACH).ok();
        if std::thread::panicking() {
            eprintln!("--- log of the daemon\n{}", fs::read_to_string(self.log()).unwrap_or_default());
        }
    }
}

/// A daemon that was stopped; dropping this lets it go on. At the latest it goes on when patience runs out.
#[derive(Debug)]
pub struct Frozen(#[allow(dead_code, reason = "its end is the message")] mpsc::Sender<()>);

/// Polls; fails with what was waited for when patience runs out.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn succeeded(output: Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// The errno a call failed with.
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    let error = result.expect_err("the call must fail");
    Errno::from_raw(error.raw_os_error().unwrap_or_else(|| panic!("no errno in {error:?}")))
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

pub fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// The names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}
