//! What tests share that mount file systems of their own and wait for programs: `power`, `storm` and `kill`.

#![allow(dead_code, unreachable_pub, reason = "each test uses the part of this module that it needs")]

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

/// A name space of mounts with a directory in memory. Both are gone when the last process in it has ended, however that came about, with
/// everything that is mounted in it and all loop devices.
#[derive(Debug)]
pub struct World {
    dir: TempDir,
}

impl World {
    /// Takes the thread that calls it, and all threads and processes it starts from then on.
    pub fn enter(name: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "{name} needs loop devices and mounts: run as root");
        enter_name_space();
        let dir = TempDir::with_prefix(format!("dlio-fs-{name}-")).unwrap();
        mount(Some(name), dir.path(), Some("tmpfs"), MsFlags::empty(), Some("mode=755,size=75%")).unwrap();
        World { dir }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        umount2(self.dir.path(), MntFlags::MNT_DETACH).unwrap_or_default();
    }
}

pub fn enter_name_space() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
}

pub fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// `None` if it had to be killed after this time.
pub fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < patience {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}
