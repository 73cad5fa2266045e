//! Disks, mounts and daemons, in a name space of mounts that ends with the test.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::ops::{errno_of, is_dead};
use super::script::{Disk, Kind};
use super::world::{run, wait};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");
/// For anything that is waited for. Whoever halves a script that holds the drain for ever says fewer seconds.
pub(crate) fn patience() -> Duration {
    let said = std::env::var("DLIO_STORM_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(said.unwrap_or(120))
}

/// A file system on a loop device over a file in memory.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) root: PathBuf,
}

impl Volume {
    pub(crate) fn new(dir: &Path, name: &str, disk: Disk) -> Self {
        let (image, root) = (dir.join(format!("{name}.img")), dir.join(name));
        File::create(&image).unwrap().set_len(disk.mib << 20).unwrap();
        fs::create_dir(&root).unwrap();
        run(mkfs(disk.kind).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&root));
        let volume = Volume { root };
        fs::DirBuilder::new().mode(0o755).create(volume.tier()).unwrap();
        volume
    }

    /// A directory to be a tier: what is beside it, the daemon does not see.
    pub(crate) fn tier(&self) -> PathBuf {
        self.root.join("tier")
    }
}

impl Volume {
    /// False: somebody has a file in it open for writing.
    pub(crate) fn becomes_read_only(&self) -> bool {
        self.remount("remount,ro")
    }

    pub(crate) fn becomes_writable(&self) {
        assert!(self.remount("remount,rw"), "it was writable before");
    }

    fn remount(&self, options: &str) -> bool {
        let mut command = Command::new("mount");
        command.args(["-o", options]).arg(&self.root).stdin(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap().success()
    }

    fn somebody_else(&self) -> PathBuf {
        self.root.join("somebody-else")
    }

    pub(crate) fn becomes_full(&self) {
        let mut file = File::create(self.somebody_else()).unwrap();
        // Until it is: what is written last fits in part, and so on down to a block.
        for size in [1 << 20, 1 << 16, 1 << 12] {
            while file.write_all(&vec![7; size]).is_ok() {}
        }
        file.sync_all().ok();
    }

    pub(crate) fn gets_room(&self) {
        fs::remove_file(self.somebody_else()).unwrap();
    }

    pub(crate) fn freezes(&self) {
        run(Command::new("fsfreeze").arg("--freeze").arg(&self.root));
    }

    /// Fails if it is not, as it should be.
    pub(crate) fn thaws_if_frozen(&self) {
        Command::new("fsfreeze").arg("--unfreeze").arg(&self.root).stderr(Stdio::null()).status().ok();
    }

    pub(crate) fn thaws(&self) {
        run(Command::new("fsfreeze").arg("--unfreeze").arg(&self.root));
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        umount2(&self.root, MntFlags::MNT_DETACH).unwrap_or_default();
    }
}

/// Shows a directory through a process of its own, which can be stopped: every call into it hangs then, and cannot be killed.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) shown: PathBuf,
    process: Child,
}

impl Layer {
    pub(crate) fn new(dir: &Path, below: &Path) -> Self {
        let shown = dir.join("layer");
        fs::create_dir(&shown).unwrap();
        let mut command = ending_with_us("bindfs");
        // It knows each name of a file as a file of its own, of which the kernel would remember the former size. Not `hard_remove`: what is
        // open could not be read any more once it is removed.
        command.args(["-f", "-o", "direct_io,attr_timeout=0,entry_timeout=0,negative_timeout=0"]);
        let process = command.arg(below).arg(&shown).stdin(Stdio::null()).spawn().expect("bindfs");
        let layer = Layer { shown, process };
        let (above, began) = (fs::metadata(dir).unwrap().dev(), Instant::now());
        while fs::metadata(&layer.shown).unwrap().dev() == above {
            assert!(began.elapsed() < patience(), "bindfs does not mount");
            thread::sleep(Duration::from_millis(5));
        }
        layer
    }

    pub(crate) fn stops(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn goes_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        self.goes_on();
        umount2(&self.shown, MntFlags::MNT_DETACH).unwrap_or_default();
        self.process.kill().unwrap_or_default();
        self.process.wait().map(drop).unwrap_or_default();
    }
}

fn mkfs(kind: Kind) -> Command {
    match kind {
        Kind::Ext4 => {
            let mut command = Command::new("mkfs.ext4");
            // Small, so that the journal is small.
            command.args(["-q", "-b", "4096", "-m", "0", "-J", "size=4"]);
            command
        }
        Kind::Xfs => {
            let mut command = Command::new("mkfs.xfs");
            command.arg("-q");
            command
        }
        Kind::Btrfs => {
            let mut command = Command::new("unshare");
            // It looks at whatever any mount of this machine was made from, and waits for one that was stopped: it gets a list of
            // mounts without a line.
            let script = "mount --bind /dev/null /proc/$$/mounts && exec mkfs.btrfs -q \"$@\"";
            command.args(["--mount", "sh", "-c", script, "mkfs"]);
            command
        }
    }
}

/// A process that is killed when the thread that starts it ends, however that comes about: else it would keep the name space, and with it
/// every disk.
pub(crate) fn ending_with_us(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

/// One mount and its daemon. It is told to begin, to die, and looked at: nothing here waits.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) point: PathBuf,
    pub(crate) log: PathBuf,
    fast: PathBuf,
    slow: PathBuf,
    options: Vec<String>,
    daemon: Option<Child>,
    pub(crate) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Down,
    /// Since when the mount does not answer yet.
    Starting(Instant),
    Running,
    /// Since when it was killed and has not ended.
    Dying(Instant),
}

impl Member {
    pub(crate) fn new(dir: &Path, name: &str, fast: PathBuf, slow: PathBuf, options: &[String]) -> Self {
        let (point, log) = (dir.join(name), dir.join(format!("{name}.log")));
        fs::create_dir(&point).unwrap();
        Member { point, log, fast, slow, options: options.to_vec(), daemon: None, state: State::Down }
    }

    /// Over a dead mount as well.
    pub(crate) fn start(&mut self) {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = ending_with_us(PROGRAM);
        command.arg("mount").arg(&self.point).arg("--fast").arg(&self.fast).arg("--slow").arg(&self.slow);
        command.args(self.options.iter().flat_map(|option| ["-o", option])).arg("--foreground");
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemon = Some(command.spawn().unwrap());
        self.state = State::Starting(Instant::now());
    }

    pub(crate) fn kill(&mut self) {
        self.daemon.as_mut().expect("started before it is killed").kill().unwrap();
        self.state = State::Dying(Instant::now());
    }

    /// What has become of it by now. An error if that is not what it was told to.
    pub(crate) fn look(&mut self) -> Result<State, String> {
        let ended = self.daemon.as_mut().and_then(|daemon| daemon.try_wait().unwrap());
        self.state = match (self.state, ended) {
            (State::Dying(_), Some(_)) => self.dead()?,
            (State::Running | State::Starting(_), Some(status)) => {
                return Err(format!(
                    "the daemon of {} ended by itself: {status}\n{}",
                    self.point.display(),
                    self.said()
                ));
            }
            (State::Starting(_), None) if fs::read(self.point.join(".dlio/stats")).is_ok() => State::Running,
            (State::Starting(since) | State::Dying(since), None) if since.elapsed() > patience() => {
                return Err(format!("{} is {:?} for too long\n{}", self.point.display(), self.state, self.said()));
            }
            (state, _) => state,
        };
        Ok(self.state)
    }

    fn dead(&mut self) -> Result<State, String> {
        self.daemon = None;
        match fs::read_dir(&self.point) {
            // What reaches it while the kernel lets go of the connection is told so.
            Err(error) if is_dead(errno_of(&error)) => Ok(State::Down),
            looked => Err(format!("a dead mount answers {:?}", looked.map(|_| "with a directory"))),
        }
    }

    /// The end of the daemon's log.
    pub(crate) fn said(&self) -> String {
        let text = String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Drains, unmounts and sees the daemon end.
    pub(crate) fn umount(&mut self) -> Result<(), String> {
        program(&["umount"], &self.point)?;
        let mut daemon = self.daemon.take().expect("started before it is unmounted");
        self.state = State::Down;
        let status = wait(&mut daemon, patience()).ok_or("the daemon does not end after its unmount")?;
        if status.success() { Ok(()) } else { Err(format!("the daemon after its unmount: {status}\n{}", self.said())) }
    }

    /// What `fsck` finds, with the mount gone.
    pub(crate) fn fsck(&self) -> Result<(), String> {
        program(&["fsck", "--slow", &self.slow.display().to_string()], &self.fast).map(drop)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            // Both fail only if it has ended already.
            daemon.kill().unwrap_or_default();
            daemon.wait().map(drop).unwrap_or_default();
        }
        while umount2(&self.point, MntFlags::MNT_DETACH).is_ok() {}
    }
}

/// Runs a command of the program that must succeed; what it printed.
pub(crate) fn program(arguments: &[&str], path: &Path) -> Result<String, String> {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).arg(path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let status = wait(&mut child, patience());
    let mut said = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut said).unwrap();
    child.stderr.take().expect("piped").read_to_string(&mut said).unwrap();
    if status.is_some_and(|status| status.success()) {
        return Ok(said);
    }
    Err(format!("dlio-fs {arguments:?}: {status:?}\n{said}"))
}
