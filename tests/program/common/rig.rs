//! A mount as its user makes it, through the built program and in the background; everything gone afterwards.

#![allow(clippy::unwrap_used, clippy::print_stderr, dead_code, unreachable_pub)]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;

use super::until;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");
/// Keeps what is written on the fast tier for the length of a test, unless somebody hurries it; also where the disk that the
/// test runs on is nearly full, which would count as pressure.
pub const NEVER_SETTLES: [&str; 4] = ["-o", "settle=30min,live_after=1h", "-o", "high=98%,low=97%"];

/// Puts the program where another user can run it. `cp` does it: had we the copy open for writing, a process that another
/// test starts at that moment would inherit it, and the copy could not be run (ETXTBSY).
pub fn copy_program(to: &Path) {
    succeeds(Command::new("cp").arg(PROGRAM).arg(to));
}

/// Two tiers and a mount point; whatever is left of them at the end of a test is cleared away.
#[derive(Debug)]
pub struct Rig {
    pub dir: tempfile::TempDir,
    /// Where the mount is.
    point: &'static str,
}

impl Rig {
    pub fn new() -> Self {
        Rig::at("mnt")
    }

    /// Mounts over the slow tier itself.
    pub fn over_itself() -> Self {
        Rig::at("slow")
    }

    /// Mounts on a directory of this name.
    pub fn called(name: &'static str) -> Self {
        let rig = Rig::at(name);
        fs::create_dir(rig.point()).unwrap();
        rig
    }

    fn at(point: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["mnt", "fast", "slow"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Rig { dir, point }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The mount point.
    pub fn point(&self) -> PathBuf {
        self.path(self.point)
    }

    pub fn mnt(&self, name: &str) -> PathBuf {
        self.point().join(name)
    }

    /// The arguments of a mount of these tiers.
    pub fn mount_command(&self) -> Command {
        let mut command = program();
        command.arg("mount").arg(self.point()).arg("--log-file").arg(self.path("log"));
        command.arg("--fast").arg(self.path("fast")).arg("--slow").arg(self.path("slow"));
        command
    }

    #[track_caller]
    pub fn mount(&self, options: &[&str]) {
        succeeds(self.mount_command().args(options));
    }

    pub fn umount(&self, options: &[&str]) -> Output {
        program().arg("umount").arg(self.point()).args(options).output().unwrap()
    }

    /// Leaves with everything on the slow tier.
    #[track_caller]
    pub fn umount_safely(&self) {
        let output = self.umount(&[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }

    /// The daemon's pid, as its lock names it.
    pub fn daemon(&self) -> Pid {
        let lock = fs::read_to_string(self.path("fast/.dlio-fs/lock")).unwrap();
        let pid = lock.split_whitespace().find_map(|word| word.strip_prefix("pid=")).unwrap();
        Pid::from_raw(pid.parse().unwrap())
    }

    pub fn slow_has(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path("slow").join(name)).ok()
    }

    pub fn kill_daemon(&self) {
        let pid = self.daemon();
        kill(pid, Signal::SIGKILL).unwrap();
        until("the mount is dead", || statvfs(&self.point()) == Err(Errno::ENOTCONN));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // EINVAL: nothing is mounted there, as it should be. Without its mount a daemon ends by itself.
        while umount2(&self.point(), MntFlags::MNT_DETACH).is_ok() {}
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", fs::read_to_string(self.path("log")).unwrap_or_default());
        }
    }
}

pub fn program() -> Command {
    let mut command = Command::new(PROGRAM);
    command.stdin(Stdio::null());
    command
}

#[track_caller]
pub fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub fn wait(mut child: Child) -> (Option<i32>, String) {
    let mut status = None;
    until("the process ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        stderr.read_to_string(&mut said).unwrap();
    }
    (status.unwrap().code(), said)
}

/// A daemon in the foreground whose mount answers.
pub fn foreground(rig: &Rig, options: &[&str]) -> Child {
    let child = rig.mount_command().arg("--foreground").args(options).stderr(Stdio::piped()).spawn().unwrap();
    until("the mount answers", || rig.mnt(".dlio/stats").exists());
    child
}
