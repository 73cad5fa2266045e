//! A machine that can lose its power: a name space of mounts that ends with the test, file systems on disks, the daemon on
//! both of them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{str, thread};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;

use super::states::{FAST, SLOW};
use super::world::{enter_name_space, run};

/// For anything that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The exit code of `dlio-fs status` when something is only on the fast tier.
const UNDRAINED: i32 = 3;

/// A thread's own boot of the machine: to the daemons it starts, the kernel has another boot id each time. Below it the
/// thread's mounts are its own, too.
#[derive(Debug)]
pub(crate) struct Boots {
    file: PathBuf,
}

impl Boots {
    pub(crate) fn enter(dir: &Path) -> Self {
        enter_name_space();
        fs::create_dir_all(dir).unwrap();
        let boots = Boots { file: dir.join("boot_id") };
        boots.again();
        mount(Some(&boots.file), BOOT_ID, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        boots
    }

    /// The machine has been started again.
    pub(crate) fn again(&self) {
        fs::write(&self.file, format!("{}\n", uuid::Uuid::new_v4())).unwrap();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// As small as may be: every state is a copy.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            FileSystem::Ext4 => 256 << 20,
            FileSystem::Xfs => 320 << 20,
        }
    }

    /// What it takes for granted that a disk writes at once or not at all. ext4 keeps copies of its blocks in the journal; xfs
    /// has changes in its log, and finds a block torn of which a part is newer than they are ("Metadata CRC error").
    pub(crate) fn sector(self) -> u64 {
        match self {
            FileSystem::Ext4 => 512,
            FileSystem::Xfs => 4096,
        }
    }

    pub(crate) fn make(self, image: &Path) {
        File::create(image).unwrap().set_len(self.bytes()).unwrap();
        let mut mkfs = match self {
            FileSystem::Ext4 => Command::new("mkfs.ext4"),
            FileSystem::Xfs => Command::new("mkfs.xfs"),
        };
        match self {
            // Nothing is left to be initialised while it is mounted: that would be writes of no interest.
            FileSystem::Ext4 => mkfs.args(["-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
            FileSystem::Xfs => mkfs.args(["-q"]),
        };
        run(mkfs.arg(image));
    }

    /// What replays the journal.
    fn mount(self, disk: &Path, root: &Path) -> Result<(), String> {
        let (kind, options) = match self {
            FileSystem::Ext4 => ("ext4", "loop"),
            // Many states of one file system are mounted side by side.
            FileSystem::Xfs => ("xfs", "loop,nouuid"),
        };
        let mut command = Command::new("mount");
        let output = command.args(["-t", kind, "-o", options]).arg(disk).arg(root).output().unwrap();
        let said = |output: &Output| format!("{kind} does not mount: {}", String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    }
}

/// A machine with both disks, and the daemon. Dropped, its power is cut.
#[derive(Debug)]
pub(crate) struct Machine {
    dir: PathBuf,
    mounted: Vec<PathBuf>,
    /// Before this time nothing is published unless somebody waits for it.
    settle: &'static str,
    daemon: Option<Child>,
}

impl Machine {
    /// Directories below `dir`; nothing is mounted.
    pub(crate) fn new(dir: &Path, settle: &'static str) -> Self {
        let machine = Machine { dir: dir.to_owned(), settle, mounted: Vec::new(), daemon: None };
        for dir in [machine.tier(FAST), machine.tier(SLOW), machine.point()] {
            fs::create_dir_all(dir).unwrap();
        }
        machine
    }

    pub(crate) fn tier(&self, disk: usize) -> PathBuf {
        self.dir.join(["fast-tier", "slow-tier"][disk])
    }

    /// The mount point.
    pub(crate) fn point(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("daemon.log")
    }

    pub(crate) fn mount(&mut self, disk: usize, file_system: FileSystem, image: &Path) -> Result<(), String> {
        let root = self.tier(disk);
        file_system.mount(image, &root)?;
        self.mounted.push(root);
        Ok(())
    }

    /// Starts the daemon, on a dead mount as well, and returns when the mount answers.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        self.start_over(&self.tier(FAST))
    }

    /// The same with another fast tier.
    pub(crate) fn start_over(&mut self, fast: &Path) -> Result<(), String> {
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        command.arg("mount").arg(self.point()).arg("--fast").arg(fast).arg("--slow").arg(self.tier(SLOW));
        command.arg("-o").arg(format!("settle={}", self.settle));
        command.args(["-o", "high=98%,low=97%", "--foreground"]).stdin(Stdio::null());
        let mut daemon = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let (stats, began) = (self.point().join(".dlio/stats"), Instant::now());
        while fs::read(&stats).is_err() {
            if let Some(status) = daemon.try_wait().unwrap() {
                return Err(format!("the daemon did not start: {status}\n{}", self.said()));
            }
            if began.elapsed() > PATIENCE {
                daemon.kill().unwrap();
                daemon.wait().unwrap();
                return Err(format!("the mount does not answer\n{}", self.said()));
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    /// SIGKILL; when this returns the daemon is no more.
    pub(crate) fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("started before it is killed");
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// What the daemon has logged.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    pub(crate) fn stats(&self) -> Value {
        serde_json::from_slice(&fs::read(self.point().join(".dlio/stats.json")).unwrap()).unwrap()
    }

    /// Fails if the daemon says that anything is wrong.
    pub(crate) fn see_it_is_well(&self) -> Result<(), String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        let output = command.arg("status").arg(self.point()).stdin(Stdio::null()).output().unwrap();
        match output.status.code() {
            Some(0 | UNDRAINED) => Ok(()),
            _ => Err(format!("dlio-fs status: {}\n{}", output.status, String::from_utf8_lossy(&output.stdout))),
        }
    }

    /// Evicts what can be evicted; the rest is named and stays. Here and not by a command: a process that is started has, for
    /// a moment, every file open that this one has, and its closes are closes: half a file would have its place in the order.
    pub(crate) fn evict(&self) -> io::Result<()> {
        let mut control = File::options().read(true).write(true).open(self.point().join(".dlio/control"))?;
        control.write_all(b"evict /\n")?;
        io::copy(&mut control, &mut io::sink()).map(drop)
    }

    /// A command of the program on the mount; what it said, if it failed.
    pub(crate) fn program(&self, verb: &str, option: &str) -> Result<(), String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        let output = command.arg(verb).arg(option).arg(self.point()).stdin(Stdio::null()).output().unwrap();
        let said = || format!("dlio-fs {verb}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(()) } else { Err(said()) }
    }

    /// Kills the daemon and unmounts everything.
    pub(crate) fn stop(&mut self) {
        if self.daemon.is_some() {
            self.kill();
        }
        umount2(&self.point(), MntFlags::MNT_DETACH).unwrap_or_default();
        for root in self.mounted.drain(..) {
            until("the file system is not busy", || umount2(&root, MntFlags::empty()).is_ok());
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.kill().unwrap_or_default();
            daemon.wait().map(drop).unwrap_or_default();
        }
        umount2(&self.point(), MntFlags::MNT_DETACH).unwrap_or_default();
        self.mounted.iter().for_each(|root| umount2(root, MntFlags::MNT_DETACH).unwrap_or_default());
    }
}

/// Polls; fails with what was waited for when patience runs out.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The log of a fast tier that nobody has mounted: whether a group was being published when its daemon stopped.
pub(crate) fn was_publishing(fast: &Path) -> bool {
    let (mut intent, mut applied) = (0, 0);
    for line in read_log(&fast.join(".dlio-fs/log")).unwrap_or_default().lines() {
        let mut words = line.split(' ').skip(3);
        let kind = words.next();
        let upto = words.next().and_then(|word| word.strip_prefix("upto=")?.parse().ok()).unwrap_or(0u64);
        match kind {
            Some("intent") => intent = intent.max(upto),
            Some("applied") => applied = applied.max(upto),
            _ => {}
        }
    }
    intent > applied
}

fn read_log(dir: &Path) -> io::Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(dir)? {
        text += &String::from_utf8_lossy(&fs::read(entry?.path())?);
    }
    Ok(text)
}
