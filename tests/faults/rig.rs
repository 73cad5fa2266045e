//! Two tiers on ext4 in loop devices, a daemon over them that does what it is told, and copies of both images: what a power
//! cut leaves, where everything stays that has reached the disk.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::faults::VARIABLE;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::script::{COPY_UP_MAX, LITTLE, RULES, Target, before};
use crate::traffic::ledger::Op;
use crate::traffic::tree::{self, Shown, Tree, set_tag};

/// Reached only when something hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const TIERS: [&str; 2] = ["fast", "slow"];
const MIB: [u64; 2] = [48, 24];

/// Freshly made images, the slow one filled: each point begins with a copy.
pub(crate) struct Pristine {
    dir: TempDir,
}

impl Pristine {
    pub(crate) fn make() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests mount file systems: run them as root");
        let pristine = Pristine { dir: TempDir::with_prefix("dlio-fs-points-").unwrap() };
        for (tier, mib) in TIERS.iter().zip(MIB) {
            let image = pristine.image(tier);
            File::create(&image).unwrap().set_len(mib << 20).unwrap();
            let mut mkfs = Command::new("mkfs.ext4");
            // Nothing is left for the kernel to do in the background.
            mkfs.args(["-q", "-b", "4096", "-m", "0", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
            succeeds(mkfs.arg(&image));
            let at = pristine.dir.path().join("mnt");
            fs::create_dir_all(&at).unwrap();
            let volume = Volume::attach(&image, at);
            fs::create_dir(volume.at.join("tier")).unwrap();
            if *tier == "slow" {
                populate(&volume.at.join("tier"));
            }
        }
        pristine
    }

    fn image(&self, tier: &str) -> PathBuf {
        self.dir.path().join(tier)
    }
}

fn populate(root: &Path) {
    for op in before() {
        match op {
            Op::Mkdir(path) => DirBuilder::new().mode(0o700).create(root.join(path)).unwrap(),
            Op::Create(path) => {
                drop(OpenOptions::new().write(true).create_new(true).mode(0o600).open(root.join(path)).unwrap());
            }
            Op::Write { path, bytes, .. } => fs::write(root.join(path), bytes).unwrap(),
            _ => {}
        }
    }
}

/// An image that is mounted; unmounted when dropped.
struct Volume {
    at: PathBuf,
}

impl Volume {
    fn attach(image: &Path, at: PathBuf) -> Self {
        // What nobody syncs does not reach the disk by itself meanwhile.
        succeeds(Command::new("mount").args(["-o", "loop,commit=300,noatime"]).arg(image).arg(&at));
        Volume { at }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A descriptor of a process that is just ending may still be there.
        let began = Instant::now();
        while umount2(&self.at, MntFlags::empty()) == Err(Errno::EBUSY) && began.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A machine: two volumes, a mount point, perhaps a daemon.
pub(crate) struct Machine {
    daemon: Option<Child>,
    open: Option<File>,
    volumes: Vec<Volume>,
    dir: TempDir,
}

impl Machine {
    pub(crate) fn new(pristine: &Pristine) -> Self {
        Machine::from_images(|tier| pristine.image(tier))
    }

    /// The machine after a power cut, whatever this one goes on doing.
    pub(crate) fn power_cut(&self) -> Self {
        Machine::from_images(|tier| self.dir.path().join(format!("{tier}.image")))
    }

    fn from_images(image: impl Fn(&str) -> PathBuf) -> Self {
        let dir = TempDir::with_prefix("dlio-fs-points-").unwrap();
        // Both at once, as far as that goes, then mounted.
        for tier in TIERS {
            let to = dir.path().join(format!("{tier}.image"));
            succeeds(Command::new("cp").arg("--sparse=always").arg(image(tier)).arg(&to));
        }
        let volumes = TIERS.iter().map(|tier| {
            let at = dir.path().join(tier);
            fs::create_dir(&at).unwrap();
            Volume::attach(&dir.path().join(format!("{tier}.image")), at)
        });
        let volumes = volumes.collect();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Machine { daemon: None, open: None, volumes, dir }
    }

    pub(crate) fn tier(&self, tier: &str) -> PathBuf {
        self.dir.path().join(tier).join("tier")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn slow_tree(&self) -> Tree {
        tree::read(&self.tier("slow")).unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// `dlio-fs mount` in the foreground, perhaps beneath another program.
    pub(crate) fn command(&self, beneath: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_dlio-fs");
        let mut command = match beneath.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.arg("mount").arg(self.root());
        command.arg("--fast").arg(self.tier("fast")).arg("--slow").arg(self.tier("slow"));
        let options = format!("settle=0s,high=98%,low=97%,ballast=1MiB,copy_up_max={COPY_UP_MAX}");
        for option in options.split(',') {
            command.args(["-o", option]);
        }
        command.arg("-o").arg(format!("rules={RULES}"));
        command.arg("--foreground").stdin(Stdio::null());
        command
    }

    /// Starts the daemon; `false` if it ended before the mount answered.
    pub(crate) fn start(&mut self, faults: &str) -> bool {
        let command = self.command(&[]);
        self.start_as(command, faults)
    }

    pub(crate) fn start_as(&mut self, mut command: Command, faults: &str) -> bool {
        let log = OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        command.env(VARIABLE, faults).stdout(log.try_clone().unwrap()).stderr(log);
        let mut daemon = command.spawn().unwrap();
        let stats = self.root().join(".dlio/stats");
        let began = Instant::now();
        let answers = loop {
            if fs::read(&stats).is_ok() {
                break true;
            }
            if daemon.try_wait().unwrap().is_some() {
                break false;
            }
            assert!(began.elapsed() < PATIENCE, "the mount does not answer:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        };
        self.daemon = Some(daemon);
        answers
    }

    /// Whether the daemon ends within a moment; it need not have been told to.
    pub(crate) fn is_ending(&mut self) -> bool {
        const MOMENT: Duration = Duration::from_secs(1);
        let began = Instant::now();
        let daemon = self.daemon.as_mut().expect("started before it ends");
        while began.elapsed() < MOMENT {
            if daemon.try_wait().unwrap().is_some() {
                return true;
            }
            thread::sleep(Duration::from_millis(2));
        }
        false
    }

    /// Waits for the daemon to end by itself.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        self.open = None;
        let mut daemon = self.daemon.take().expect("started before it ends");
        let began = Instant::now();
        loop {
            if let Some(status) = daemon.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "the daemon does not end:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// SIGKILL, wherever it is.
    pub(crate) fn kill(&mut self) {
        self.open = None;
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap_or_default();
            daemon.wait().unwrap();
        }
    }

    /// As an operator does; everything is on the slow tier.
    pub(crate) fn leave(&mut self) {
        self.terminate();
        let status = self.ended();
        assert!(status.success(), "the daemon: {status}\n{}", self.log());
    }

    /// Asks it to leave, and does not wait.
    pub(crate) fn terminate(&mut self) {
        self.open = None;
        let pid = Pid::from_raw(self.daemon.as_ref().expect("a daemon that runs").id() as i32);
        kill(pid, Signal::SIGTERM).unwrap();
    }

    /// The same for a daemon beneath another program, which passes SIGINT on from no terminal: the mount is taken away.
    pub(crate) fn interrupt(&mut self) {
        self.open = None;
        umount2(&self.root(), MntFlags::MNT_DETACH).unwrap();
        let status = self.ended();
        assert!(status.success(), "the daemon: {status}\n{}", self.log());
    }

    /// The first line of the statistics.
    pub(crate) fn verdict(&self) -> String {
        let stats = fs::read_to_string(self.root().join(".dlio/stats")).unwrap_or_default();
        stats.lines().next().unwrap_or_default().to_owned()
    }

    /// A command of `control`; its reply.
    fn control(&self, command: &str) -> io::Result<String> {
        let mut control = OpenOptions::new().read(true).write(true).open(self.root().join(".dlio/control"))?;
        control.write_all(format!("{command}\n").as_bytes())?;
        let mut reply = String::new();
        control.read_to_string(&mut reply)?;
        Ok(reply)
    }

    /// A command that is about to succeed: what it says last.
    fn told(&self, command: &str) -> io::Result<String> {
        let reply = self.control(command)?;
        let last = reply.lines().last().and_then(|line| line.strip_prefix("ok: "));
        last.map(str::to_owned).ok_or_else(|| Errno::EIO.into())
    }

    fn opened(&mut self, options: &OpenOptions, path: &Path) -> io::Result<()> {
        self.open = Some(options.open(self.root().join(path))?);
        Ok(())
    }

    fn call(&mut self, op: &Op) -> io::Result<()> {
        let root = self.root();
        let at = |path: &Path| root.join(path);
        match op {
            Op::Mkdir(path) => DirBuilder::new().mode(0o700).create(at(path)),
            Op::Rmdir(path) => fs::remove_dir(at(path)),
            Op::Create(path) => self.opened(OpenOptions::new().write(true).create_new(true).mode(0o600), path),
            Op::Truncate(path) => self.opened(OpenOptions::new().write(true).truncate(true), path),
            Op::Write { path, offset, bytes } => {
                if self.open.is_none() {
                    self.opened(OpenOptions::new().write(true), path)?;
                }
                let file = self.open.as_ref().expect("just opened");
                file.write_all_at(bytes, *offset as u64)
            }
            Op::Fsync(_) => self.open.as_ref().expect("the script has it open").sync_all(),
            Op::Close(_) => Ok(nix::unistd::close(self.open.take().expect("the script has it open"))?),
            Op::Rename(from, to) => fs::rename(at(from), at(to)),
            Op::Unlink(path) => fs::remove_file(at(path)),
            Op::Symlink(target, path) => symlink(target, at(path)),
            Op::Link(from, to) => fs::hard_link(at(from), at(to)),
            Op::Chmod(path, mode) => fs::set_permissions(at(path), Permissions::from_mode(*mode)),
            Op::Tag(path, tag) => set_tag(&at(path), tag),
            Op::SyncDir => File::open(root)?.sync_all(),
        }
    }
}

impl Target for Machine {
    fn perform(&mut self, op: &Op) -> Result<(), Errno> {
        let was_open = self.open.is_some();
        let done = self.call(op);
        if done.is_err() && !was_open {
            self.open = None;
        }
        done.map_err(errno)
    }

    fn tree(&mut self) -> Result<Tree, String> {
        tree::read(&self.root()).map_err(|e| format!("the view cannot be read: {e}\n{}", self.log()))
    }

    fn drain(&mut self) -> Result<(), Errno> {
        self.told("sync").map(drop).map_err(errno)
    }

    fn evict(&mut self) {
        // What stays is none the worse for it, and a dead daemon shows in the next call.
        drop(self.control("evict /"));
    }

    fn bring(&mut self, dir: &Path, read: &Path) {
        let job = self.told(&format!("stage /{}", dir.display()));
        let read = self.root().join(read);
        // What is read is promoted behind the answer to the last one; if a call of that fails, it is read again.
        let is_staged = || xattr::get(&read, "user.dlio.state").is_ok_and(|state| state.as_deref() == Some(b"staged"));
        let began = Instant::now();
        while fs::read(&read).is_ok() && !is_staged() && began.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        if let Some(number) = job.ok().as_deref().and_then(|job| job.strip_prefix("job ")) {
            drop(self.control(&format!("staging watch {number}")));
        }
    }

    fn read(&mut self, path: &Path) -> Result<Shown, Errno> {
        fs::read(self.root().join(path)).map(|bytes| Shown::file(&bytes)).map_err(errno)
    }

    fn pin(&mut self, path: &Path) -> Result<(), Errno> {
        self.told(&format!("pin /{}", path.display())).map(drop).map_err(errno)
    }

    fn pins(&mut self) -> Result<Vec<PathBuf>, String> {
        let pins = self.control("pins").map_err(|e| format!("pins: {e}"))?;
        Ok(pins.lines().map(|line| line.trim_start_matches('/').into()).collect())
    }

    fn fill(&mut self, full: bool) {
        let (root, filler) = (self.path("fast"), self.path("fast/somebody-else"));
        if !full {
            fs::remove_file(filler).unwrap_or_default();
            return;
        }
        let space = statvfs(&root).unwrap();
        let len = (space.blocks_available() * space.fragment_size()).saturating_sub(LITTLE);
        succeeds(Command::new("fallocate").args(["-l", &len.to_string()]).arg(filler));
    }

    fn change_behind(&mut self, path: &Path, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(self.tier("slow").join(path)).unwrap();
        file.write_all_at(bytes, 0).unwrap();
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}

impl Drop for Machine {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            println!("--- log of the daemon\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
        }
        self.kill();
        while umount2(&self.root(), MntFlags::MNT_DETACH).is_ok() {}
        self.volumes.clear();
    }
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}
