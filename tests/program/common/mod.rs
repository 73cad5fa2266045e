//! A real mount for a test: two temporary tiers, the built program in the foreground, everything gone afterwards.
//!
//! Needs root and /dev/fuse; without them a test fails and says so.

#![allow(clippy::unwrap_used, clippy::print_stderr, dead_code, unreachable_pub)]

pub mod foreign;
pub mod gluster;
pub mod rig;
pub mod trees;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;

/// Reached only when something hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A user who is neither root nor the owner of anything.
pub const USER: u32 = 1000;

/// Directories to take as tiers instead of temporary ones.
#[derive(Debug, Default)]
pub struct Elsewhere {
    pub fast: Option<PathBuf>,
    pub slow: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Mount {
    dir: tempfile::TempDir,
    /// Tiers that are not the temporary ones.
    pub elsewhere: Elsewhere,
    options: Vec<String>,
    arguments: Vec<String>,
    launcher: Vec<String>,
    daemon: Option<Child>,
}

impl Mount {
    pub fn new() -> Self {
        Mount::with(&[], |_| ())
    }

    /// A mount whose slow tier `prepare` fills first, with `-o` options.
    pub fn with(options: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        Mount::build(Elsewhere::default(), options, prepare)
    }

    /// A mount over a slow tier that is somewhere else.
    pub fn over(slow: PathBuf, options: &[&str]) -> Self {
        Mount::on(Elsewhere { slow: Some(slow), ..Elsewhere::default() }, options)
    }

    /// A mount over tiers of which one or both are somewhere else.
    pub fn on(elsewhere: Elsewhere, options: &[&str]) -> Self {
        Mount::build(elsewhere, options, |_| ())
    }

    fn build(elsewhere: Elsewhere, options: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let mut mount = Mount::idle(elsewhere, options);
        prepare(&mount.slow());
        mount.start();
        mount
    }

    /// The same without a daemon.
    pub fn idle(elsewhere: Elsewhere, options: &[&str]) -> Self {
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
        // Whatever else fills the disk beneath must not make the engine hurry, nor leave no room to stage.
        let options = ["high=98%", "low=97%", "reserve=0%"].iter().chain(options).map(|&o| o.to_owned()).collect();
        Mount { dir, elsewhere, options, arguments: Vec::new(), launcher: Vec::new(), daemon: None }
    }

    pub fn fast(&self) -> PathBuf {
        self.elsewhere.fast.clone().unwrap_or_else(|| self.dir.path().join("fast"))
    }

    pub fn slow(&self) -> PathBuf {
        self.elsewhere.slow.clone().unwrap_or_else(|| self.dir.path().join("slow"))
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

    /// Further arguments of `mount`, from the next [`Mount::start`] on.
    pub fn arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&a| a.to_owned()).collect();
    }

    /// A command that becomes the daemon (`prlimit --nofile=64`, ...), from the next [`Mount::start`] on.
    pub fn through(&mut self, launcher: &[&str]) {
        self.launcher = launcher.iter().map(|&word| word.to_owned()).collect();
    }

    /// A further `-o` option, from the next [`Mount::start`] on.
    pub fn option(&mut self, option: &str) {
        self.options.push(option.to_owned());
    }

    /// Without the `-o` options of a name that begins so, from the next [`Mount::start`] on.
    pub fn leave_out(&mut self, name: &str) {
        self.options.retain(|option| !option.starts_with(name));
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// What the daemon has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.daemon.as_ref().expect("a mount that runs").id() as i32)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    fn mounted(&self) -> bool {
        let above = fs::metadata(self.dir.path()).unwrap().dev();
        fs::metadata(self.root()).is_ok_and(|mnt| mnt.dev() != above)
    }

    fn mount_command(&self) -> Command {
        let program = env!("CARGO_BIN_EXE_dlio-fs");
        let mut words = self.launcher.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words).arg("mount").arg(self.root()).arg("--fast").arg(self.fast()).arg("--slow").arg(self.slow());
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command.args(&self.arguments).stdin(Stdio::null());
        command
    }

    /// Starts the daemon where it must be refused: its exit code and what it said.
    pub fn refused(&self) -> (Option<i32>, String) {
        let output = self.mount_command().arg("--log-file").arg(self.log_file()).output().unwrap();
        assert!(!self.mounted(), "it must not be mounted: {output:?}");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Starts the daemon and waits until the mount answers.
    pub fn start(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = self.mount_command();
        let mut daemon = command.arg("--foreground").stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        until("the mount answers", || {
            if let Some(status) = daemon.try_wait().unwrap() {
                panic!("dlio-fs mount ended with {status}:\n{}", self.log());
            }
            // Of a dead mount the kernel may still know the attributes of the root.
            self.mounted() && statvfs(&self.root()) != Err(Errno::ENOTCONN)
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

    pub fn runs(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|daemon| daemon.try_wait().unwrap().is_none())
    }

    /// Waits until the daemon ends by itself. What it leaves stays where it is.
    pub fn ended(&mut self) -> ExitStatus {
        let mut daemon = self.daemon.take().expect("a mount that runs");
        until("the daemon ends", || daemon.try_wait().unwrap().is_some());
        daemon.wait().unwrap()
    }

    /// SIGKILL, and what it leaves taken away.
    pub fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("a mount that runs");
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        umount2(&self.root(), MntFlags::MNT_DETACH).unwrap();
    }

    /// `dlio-fs status` of this mount: the exit code.
    pub fn status(&self) -> Option<i32> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        command.arg("status").arg(self.root()).stdin(Stdio::null()).output().unwrap().status.code()
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
        match control.write_all(format!("{command}\n").as_bytes()) {
            // It is not begun; the reply says why.
            Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => {}
            written => written.unwrap(),
        }
        let mut reply = String::new();
        control.read_to_string(&mut reply).unwrap();
        reply
    }

    /// The first line of the statistics.
    pub fn verdict(&self) -> String {
        self.stats().lines().next().unwrap_or_default().to_owned()
    }

    /// Waits until everything is on the slow tier.
    pub fn sync(&self) {
        let mut control = OpenOptions::new().read(true).write(true).open(self.at(".dlio/control")).unwrap();
        control.write_all(b"sync\n").unwrap();
        let (mut reply, mut line, deadline) = (String::new(), [0; 4096], Instant::now() + PATIENCE);
        loop {
            let n = control.read(&mut line).unwrap();
            reply.push_str(&String::from_utf8_lossy(&line[..n]));
            // It says every second what it still waits for.
            match n {
                0 => break,
                _ => assert!(Instant::now() < deadline, "never synced: {}\n{reply}", self.verdict()),
            }
        }
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
            eprintln!("--- log of the daemon\n{}", self.log());
        }
    }
}

/// A small file system of its own, for a tier that is full, read-only or not there. Unmounted when dropped: declare it
/// before the mount that stands on it.
#[derive(Debug)]
pub struct Volume {
    dir: tempfile::TempDir,
}

impl Volume {
    /// EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN of the argument, without a flush of the journal.
    pub const SHUT_DOWN: &str = "import fcntl, os, struct, sys\n\
        fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

    /// An ext4 of this many MiB in a loop device, with room for this many files.
    pub fn new(mib: u64, inodes: u32) -> Self {
        // Nothing kept back for root: full is full.
        Volume::holding_back(0, mib, inodes)
    }

    /// One that keeps this percentage back for root.
    pub fn holding_back(percent: u32, mib: u64, inodes: u32) -> Self {
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-b", "4096", "-J", "size=4", "-m", &percent.to_string(), "-N", &inodes.to_string()]);
        Volume::made_by(mkfs, mib)
    }

    /// An xfs, which is never smaller; what is not written takes no room.
    pub fn xfs() -> Self {
        let mut mkfs = Command::new("mkfs.xfs");
        mkfs.arg("-q");
        Volume::made_by(mkfs, 320)
    }

    /// A btrfs: what is written over goes elsewhere, and what is removed is free some time later.
    ///
    /// mkfs.btrfs looks at whatever any mount of this machine was made from: it fails at one that a test cut off from
    /// its server, and waits for one that a test stopped. It gets a list of mounts without a line.
    pub fn btrfs(mib: u64) -> Self {
        let mut mkfs = Command::new("unshare");
        mkfs.args([
            "--mount",
            "sh",
            "-c",
            "mount --bind /dev/null /proc/$$/mounts && exec mkfs.btrfs -q \"$@\"",
            "mkfs",
        ]);
        Volume::made_by(mkfs, mib)
    }

    /// An ext4 with blocks of 1 KiB: no file is larger than 4 TiB.
    pub fn of_small_blocks() -> Self {
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-b", "1024"]);
        Volume::made_by(mkfs, 64)
    }

    /// An ext4 on a disk that hangs while the relay is frozen.
    pub fn behind(relay: &Relay, mib: u64) -> Self {
        let volume = Volume::nowhere();
        symlink(relay.shown().join("image"), volume.image()).unwrap();
        volume.format(Command::new("mkfs.ext4").args(["-q", "-b", "4096"]), mib);
        volume
    }

    /// An ext4 that keeps no journal.
    pub fn without_journal() -> Self {
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-O", "^has_journal"]);
        Volume::made_by(mkfs, 16)
    }

    fn made_by(mut mkfs: Command, mib: u64) -> Self {
        let volume = Volume::nowhere();
        volume.format(&mut mkfs, mib);
        volume
    }

    fn nowhere() -> Self {
        let dir = tempfile::Builder::new().prefix("dlio-fs-volume-").tempdir().unwrap();
        let volume = Volume { dir };
        fs::create_dir(volume.root()).unwrap();
        volume
    }

    fn format(&self, mkfs: &mut Command, mib: u64) {
        File::create(self.image()).unwrap().set_len(mib << 20).unwrap();
        succeeded(mkfs.arg(self.image()).output().unwrap());
        self.attach();
        fs::create_dir(self.tier()).unwrap();
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// The root of the file system: what is here, a tier in it does not see.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// A directory to be a tier.
    pub fn tier(&self) -> PathBuf {
        self.root().join("tier")
    }

    pub fn attach(&self) {
        self.attach_at(&self.root());
    }

    /// At another one's place.
    pub fn attach_at(&self, place: &Path) {
        succeeded(Command::new("mount").args(["-o", "loop"]).arg(self.image()).arg(place).output().unwrap());
    }

    /// What remains at the tier's place is a directory that is empty. A name space that another test has made at this moment may have a
    /// copy of the mount: as long as it stands, the same file system is what would be attached again.
    pub fn detach(&self) {
        umount2(&self.root(), MntFlags::empty()).unwrap();
        until("the kernel lets go of it", || {
            succeeded(Command::new("losetup").arg("-j").arg(self.image()).output().unwrap()).is_empty()
        });
    }

    /// The same while somebody uses it, who goes on with it.
    pub fn detach_lazily(&self) {
        umount2(&self.root(), MntFlags::MNT_DETACH).unwrap();
    }

    /// The kernel gives the file system up, as after an error of its device: every call into it fails from now on, and what was
    /// not durable is lost.
    pub fn shut_down(&self) {
        succeeded(Command::new("python3").args(["-c", Self::SHUT_DOWN]).arg(self.root()).output().unwrap());
    }

    /// With `ro` once nobody has a file in it open for writing.
    pub fn remount(&self, option: &str) {
        let mut command = Command::new("mount");
        command.arg("-o").arg(format!("remount,{option}")).arg(self.root()).stderr(Stdio::null());
        until("it can be remounted", || command.status().unwrap().success());
    }

    /// Another program takes all the room but this many bytes, until the file that is returned is removed.
    pub fn fill(&self, leave: u64) -> PathBuf {
        let path = (0..).map(|i| self.root().join(format!("somebody-else-{i}"))).find(|path| !path.exists()).unwrap();
        let mut file = File::create(&path).unwrap();
        let room = || statvfs(&self.root()).map(|s| s.blocks_available() * s.fragment_size()).unwrap();
        while let Some(more) = room().checked_sub(leave).filter(|more| *more > 0) {
            let full = file.write_all(&vec![7; more.min(1 << 20) as usize]).and_then(|()| file.sync_data());
            if full.is_err() {
                break;
            }
        }
        path
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        umount2(&self.root(), MntFlags::MNT_DETACH).ok();
    }
}

/// A directory that shows another one through a process of its own (bindfs), which can be stopped: every call into it hangs
/// then, and cannot be killed.
#[derive(Debug)]
pub struct Relay {
    dir: tempfile::TempDir,
    process: Child,
}

impl Relay {
    /// `prepare` fills the directory first.
    pub fn new(prepare: impl FnOnce(&Path)) -> Self {
        Relay::showing(&[], prepare)
    }

    /// With options of bindfs: a file system that does not have all that ext4 has.
    pub fn showing(options: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        Relay::by("bindfs", options, prepare)
    }

    /// Shown by another program of that kind (mergerfs).
    pub fn by(program: &str, options: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::Builder::new().prefix("dlio-fs-test-").tempdir().unwrap();
        for name in ["tree", "shown"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        prepare(&dir.path().join("tree"));
        let mut command = Command::new(program);
        command.arg("-f").args(options).arg(dir.path().join("tree")).arg(dir.path().join("shown")).stdin(Stdio::null());
        let process = command.spawn().expect("the test needs that program");
        let relay = Relay { dir, process };
        let above = fs::metadata(relay.dir.path()).unwrap().dev();
        until("it is mounted", || fs::metadata(relay.shown()).is_ok_and(|shown| shown.dev() != above));
        relay
    }

    /// The directory that it shows, as it is.
    pub fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    pub fn shown(&self) -> PathBuf {
        self.dir.path().join("shown")
    }

    /// Stops the process in its tracks.
    pub fn freeze(&self) -> Frozen {
        let pid = Pid::from_raw(self.process.id() as i32);
        kill(pid, Signal::SIGSTOP).unwrap();
        let (thaw, thawed) = mpsc::channel();
        // A test that hangs in the frozen directory cannot be ended in any other way.
        std::thread::spawn(move || {
            thawed.recv_timeout(PATIENCE).ok();
            kill(pid, Signal::SIGCONT).ok();
        });
        Frozen { _thaw: thaw, pid }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        kill(Pid::from_raw(self.process.id() as i32), Signal::SIGCONT).ok();
        umount2(&self.shown(), MntFlags::MNT_DETACH).ok();
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A process that was stopped; dropping this lets it go on. At the latest it goes on when patience runs out.
#[derive(Debug)]
pub struct Frozen {
    /// Its end is the message.
    _thaw: mpsc::Sender<()>,
    pid: Pid,
}

impl Drop for Frozen {
    /// What came to its end only because the process went on by itself would be taken for what needs no such process.
    fn drop(&mut self) {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let still = stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'));
        assert!(
            still || std::thread::panicking(),
            "the process went on when patience ran out, and what was tried has waited for that"
        );
    }
}

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
