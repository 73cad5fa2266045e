//! GlusterFS with three replicas on this machine, in name spaces of its own: its daemons see no network but their own, and change nothing
//! of the system.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::mount::{MntFlags, umount2};

use super::{succeeded, until};

/// glusterd takes no address of the loopback range for a brick.
const ADDRESS: &str = "192.0.2.9";

#[derive(Debug)]
pub struct Gluster {
    dir: tempfile::TempDir,
    /// The parent of the first process of the name spaces, with which they end.
    daemon: Child,
    /// Where further clients show it.
    others: Vec<PathBuf>,
}

impl Gluster {
    pub const BRICKS: [&str; 3] = ["b1", "b2", "b3"];

    /// The shell stays: it waits for what others leave, and a brick that was killed would be there until somebody does.
    const BEGIN: &str = "cd \"$1\" && ip link set lo up && ip addr add \"$2/32\" dev lo && mount -t tmpfs none /run && mkdir /run/gluster && \
        mount --bind log /var/log/glusterfs && glusterd -N -f \"$1/glusterd.vol\" --log-file=\"$1/glusterd.log\" -p /run/glusterd.pid; exit";

    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("dlio-fs-test-").tempdir().unwrap();
        for name in Self::BRICKS.into_iter().chain(["state", "log", "shown"]) {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let gluster = Gluster { daemon: Self::begin(dir.path()), dir, others: Vec::new() };
        until("glusterd answers", || gluster.command("volume info").output().unwrap().status.success());
        let bricks = Self::BRICKS.map(|brick| format!("{ADDRESS}:{}", gluster.dir.path().join(brick).display()));
        succeeded(gluster.command(&format!("volume create r replica 3 {} force", bricks.join(" "))).output().unwrap());
        succeeded(gluster.command("volume start r").output().unwrap());
        gluster.mount(&gluster.shown());
        fs::create_dir(gluster.tier()).unwrap();
        gluster
    }

    fn mount(&self, at: &Path) {
        let above = fs::metadata(self.dir.path()).unwrap().dev();
        let mut client = self.inside(&["--net"], &["glusterfs", "--volfile-id=r"]);
        client.arg(format!("--volfile-server={ADDRESS}")).arg(at);
        client.arg(format!("--log-file={}", self.dir.path().join("client.log").display()));
        assert!(client.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
        until("GlusterFS is mounted", || fs::metadata(at).is_ok_and(|shown| shown.dev() != above));
    }

    /// The same directory through one more client, with a cache of its own, as another machine has it.
    pub fn elsewhere(&mut self) -> PathBuf {
        let at = self.dir.path().join(format!("shown{}", self.others.len()));
        fs::create_dir(&at).unwrap();
        self.mount(&at);
        self.others.push(at.clone());
        at.join("tier")
    }

    fn begin(dir: &Path) -> Child {
        let state = dir.join("state");
        let config = format!(
            "volume management\n  type mgmt/glusterd\n  option working-directory {}\n  option transport-type socket\n  option ping-timeout 0\nend-volume\n",
            state.display()
        );
        fs::write(dir.join("glusterd.vol"), config).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", Self::BEGIN]);
        command.arg("glusterd").arg(dir).arg(ADDRESS).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(dir.join("errors")).unwrap()).spawn().unwrap()
    }

    fn shown(&self) -> PathBuf {
        self.dir.path().join("shown")
    }

    /// A directory to be a tier.
    pub fn tier(&self) -> PathBuf {
        self.shown().join("tier")
    }

    /// What one brick has of it.
    pub fn replica(&self, brick: &str) -> PathBuf {
        self.dir.path().join(brick).join("tier")
    }

    /// Ends the daemon of one brick, as a machine that fails.
    pub fn kill_brick(&self, brick: &str) {
        let script = format!("kill -KILL $(cat /run/gluster/vols/r/*-{brick}.pid)");
        succeeded(self.inside(&["--net", "--mount", "--pid"], &["sh", "-c", &script]).output().unwrap());
    }

    /// Starts the daemons that do not run, and has them catch up.
    pub fn start_bricks(&self) {
        let done = |words: &str| self.command(words).output().unwrap().status.success();
        until("the replicas heal", || done("volume start r force") && done("volume heal r"));
    }

    fn command(&self, words: &str) -> Command {
        let mut command = self.inside(&["--net", "--mount", "--pid"], &["gluster", "--mode=script"]);
        command.args(words.split(' '));
        command
    }

    /// In these name spaces of the daemon's.
    fn inside(&self, spaces: &[&str], words: &[&str]) -> Command {
        let parent = self.daemon.id();
        let children = || fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        until("glusterd has been started", || !children().is_empty());
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(children().trim()).args(spaces).args(words).stdin(Stdio::null());
        command
    }
}

impl Drop for Gluster {
    fn drop(&mut self) {
        for shown in self.others.iter().chain([&self.shown()]) {
            umount2(shown, MntFlags::MNT_DETACH).ok();
        }
        self.daemon.kill().ok();
        self.daemon.wait().ok();
    }
}
