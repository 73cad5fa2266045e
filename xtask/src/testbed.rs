//! `cargo xtask testbed`: the three disks of the paper on one machine, in memory, as fast as they were and no faster.
//!
//! Each is an ext4 on a loop device over a file in a tmpfs. The kernel's block throttle holds it to the figures at the root of cgroup
//! v1, where all I/O counts: a program's own and the write-back of what it has written. One whose requests are counted has a second loop
//! device above the throttled one ([`set_up`]). What stands, and taking it down, is `testbed/remains.rs`; whether the disks are as fast
//! as asked for, `testbed/baseline.rs`.

mod baseline;
mod remains;

use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use bytesize::ByteSize;
use nix::fcntl::Flock;
use nix::mount::{MsFlags, mount};
use nix::unistd::Uid;

use crate::run::{count_before, quiet};
use crate::signals::{self, Signals};
use remains::{MARK, MEMORY, Setting, in_sys};

const MB: u64 = 1_000_000;
/// What the rest of the machine is left with.
const LEFT_OVER: u64 = 2 << 30;
/// The kernel's throttle counts requests where a disk counts seeks. Read ahead in large requests, one long file is as fast as the
/// disk though the requests are limited.
const READ_AHEAD_KIB: &str = "4096";

/// One of the three, by what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Hdd,
    Ssd,
    Optane,
}

impl Device {
    pub(crate) const ALL: [Device; 3] = [Device::Hdd, Device::Ssd, Device::Optane];

    fn name(self) -> &'static str {
        match self {
            Device::Hdd => "hdd",
            Device::Ssd => "ssd",
            Device::Optane => "optane",
        }
    }

    /// The environment variable with its directory.
    pub(crate) fn variable(self) -> String {
        format!("DLIO_{}", self.name().to_uppercase())
    }

    fn image(self) -> PathBuf {
        Path::new(MEMORY).join(format!("{}.img", self.name()))
    }

    fn dir(self) -> PathBuf {
        Path::new(remains::ROOT).join(self.name())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How fast a disk is to be, in MB (10^6 bytes) and requests a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speed {
    pub(crate) read: u64,
    pub(crate) write: u64,
    /// Requests to read; `None` for as many as the bandwidth allows. Writes are not counted: a disk's own cache makes few of many.
    pub(crate) reads: Option<u64>,
}

impl FromStr for Speed {
    type Err = Error;

    /// `READ/WRITE` or `READ/WRITE/READS`.
    fn from_str(text: &str) -> Result<Self> {
        // Up to a TB/s.
        let figures = text.split('/').map(|figure| figure.parse().ok().filter(|figure| (1..=MB).contains(figure)));
        match figures.collect::<Option<Vec<u64>>>().as_deref() {
            Some([read, write]) => Ok(Speed { read: *read, write: *write, reads: None }),
            Some([read, write, reads]) => Ok(Speed { read: *read, write: *write, reads: Some(*reads) }),
            _ => bail!("`{text}` is no speed: READ/WRITE in MB/s, or READ/WRITE/READS with small reads a second"),
        }
    }
}

/// What to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Of each disk, in bytes.
    pub(crate) size: u64,
    /// For a million small files and as many copies of them: few bytes are kept with their inode, of which there are twice as many.
    pub(crate) many_inodes: bool,
    speeds: [Speed; 3],
}

impl Default for Spec {
    /// The bandwidths are those that IOR found in "Characterizing Deep-Learning I/O Workloads in TensorFlow" (Chien et al. 2018), which
    /// says nothing of requests. A disk of 7200 rpm needs half a turn, 4.2 ms, and a seek for each: 8.5 ms on average over all of the
    /// disk by the data sheets, about 80 a second, but 2 to 3 ms within the few GB of one data set, 150 a second. The paper's SSD
    /// and Optane are limited by bandwidth with files of 12 and 112 KB.
    fn default() -> Self {
        let speeds = [
            Speed { read: 163, write: 133, reads: Some(150) },
            Speed { read: 281, write: 195, reads: None },
            Speed { read: 1603, write: 512, reads: None },
        ];
        // Five checkpoints of 600 MB fit and as much data, three times, into half of 24 GiB.
        Spec { size: 4 << 30, many_inodes: false, speeds }
    }
}

impl Spec {
    pub(crate) fn speed(&self, device: Device) -> Speed {
        self.speeds[device as usize]
    }

    /// A million inodes on 4 GiB. Of twice as many, each has room for a line and for the attributes that lead from a copy to its file.
    fn inodes(&self) -> &'static [&'static str] {
        match self.many_inodes {
            false => &["-i", "4096"],
            true => &["-i", "2048", "-I", "512", "-O", "inline_data"],
        }
    }

    /// `DEVICE=SPEED`.
    fn change(&mut self, text: &str) -> Result<()> {
        let (name, speed) = text.split_once('=').with_context(|| format!("`{text}` is not DEVICE=READ/WRITE/READS"))?;
        let device = Device::ALL.into_iter().find(|device| device.name() == name);
        let device = device.with_context(|| format!("no device is named `{name}`: they are hdd, ssd and optane"))?;
        self.speeds[device as usize] = speed.parse()?;
        Ok(())
    }

    fn set_size(&mut self, text: &str) -> Result<()> {
        const LEAST: u64 = 256 << 20;
        const MOST: u64 = 1 << 40;
        let size: ByteSize = text.parse().map_err(|error| anyhow!("`{text}` is no size: {error}"))?;
        ensure!(size.0 >= LEAST, "a disk of {text} is too small for the baseline: 256 MiB or more");
        ensure!(size.0 <= MOST, "a disk of {text} is larger than any memory: 1 TiB at most");
        // The throttle and direct I/O want whole blocks.
        self.size = size.0.next_multiple_of(1 << 20);
        Ok(())
    }
}

/// A command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    spec: Spec,
    json: bool,
    /// What to run, with its arguments.
    command: Vec<String>,
}

fn parse(args: &[String]) -> Result<Asked> {
    let mut asked = Asked::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--size" => asked.spec.set_size(value()?)?,
            "--device" => asked.spec.change(value()?)?,
            "--many-inodes" => asked.spec.many_inodes = true,
            "--json" => asked.json = true,
            "--" => {
                asked.command = args.cloned().collect();
                ensure!(!asked.command.is_empty(), "there is no command after `--`");
                break;
            }
            other => bail!("unknown argument `{other}` of testbed; a command to run comes after `--`"),
        }
    }
    Ok(asked)
}

/// Runs `cargo xtask testbed`: the exit code is that of the command, or says whether the disks are as fast as asked for.
pub(crate) fn command(args: &[String]) -> Result<ExitCode> {
    let asked = parse(args)?;
    let signals = Signals::hold()?;
    let testbed = Testbed::build(asked.spec, &signals)?;
    let baseline = testbed.baseline(&signals)?;
    match asked.json {
        true => println!("{}", baseline.json()),
        false => print!("{baseline}"),
    }
    let Some((program, args)) = asked.command.split_first() else {
        return Ok(if baseline.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    };
    if !baseline.holds() {
        eprintln!("warning: a disk is off, as the baseline above says; so is what is measured on it");
    }
    let status = signals.run(testbed.environment(Command::new(program).args(args)))?;
    Ok(signals::exit_code(status).into())
}

/// Whether a testbed of this process stands: what a panic has to take down.
static STANDING: AtomicBool = AtomicBool::new(false);

/// The three disks, mounted. Taken down when dropped, with all that [`Testbed::environment`] was given to.
#[derive(Debug)]
pub(crate) struct Testbed {
    spec: Spec,
    /// There is one testbed at a time; held until everything is down.
    _lock: Flock<File>,
}

impl Testbed {
    /// Builds all three, after taking down what a killed process has left behind.
    pub(crate) fn build(spec: Spec, signals: &Signals) -> Result<Self> {
        let throttle = usable()?;
        let lock = remains::lock()?;
        remains::take_down().context("cannot take down what a killed testbed has left")?;
        ensure_memory(&fs::read_to_string("/proc/meminfo")?, spec)?;
        take_down_on_panic();
        STANDING.store(true, Ordering::Relaxed);
        // From here on dropping it takes down what there is, also when a step below fails.
        let testbed = Testbed { spec, _lock: lock };
        fs::create_dir_all(MEMORY).with_context(|| format!("cannot create {MEMORY}"))?;
        let size = format!("size={},mode=700", 3 * spec.size + (64 << 20));
        mount(Some("dlio-testbed"), MEMORY, Some("tmpfs"), MsFlags::empty(), Some(size.as_str()))
            .with_context(|| format!("cannot mount a tmpfs at {MEMORY}"))?;
        eprintln!("writing three disks of {} in memory", ByteSize(spec.size));
        fill(spec, signals)?;
        for device in Device::ALL {
            signals.check()?;
            set_up(device, spec, &throttle).with_context(|| format!("cannot build {device}"))?;
        }
        Ok(testbed)
    }

    /// The directory where a disk is mounted.
    pub(crate) fn dir(&self, device: Device) -> PathBuf {
        device.dir()
    }

    /// Tells a command where the disks are. What it leaves running ends with the testbed.
    pub(crate) fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(MARK, remains::ROOT);
        command.envs(Device::ALL.map(|device| (device.variable(), self.dir(device))))
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if let Err(error) = remains::take_down() {
            eprintln!("left behind: {error:#}");
        }
        STANDING.store(false, Ordering::Relaxed);
    }
}

/// This program aborts on a panic, which drops nothing.
fn take_down_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            if STANDING.swap(false, Ordering::Relaxed)
                && let Err(error) = remains::take_down()
            {
                // Not `eprintln`, which may panic.
                writeln!(std::io::stderr(), "left behind: {error:#}").unwrap_or_default();
            }
        }));
    });
}

/// Says what is missing here; else where the limits are set.
pub(crate) fn usable() -> Result<PathBuf> {
    ensure!(Uid::effective().is_root(), "the testbed needs root, for loop devices, mounts and the block throttle");
    ensure!(
        std::env::var_os(MARK).is_none(),
        "this runs inside of a testbed already ({MARK} is set), and there is only one at a time"
    );
    ensure!(
        Path::new("/dev/loop-control").exists(),
        "/dev/loop-control is missing: load the kernel module (modprobe loop), or pass the device to the container"
    );
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let throttle = blkio(&mounts).context(
        "no cgroup v1 with `blkio` is mounted. With only cgroup v2 this kernel cannot do it: its root takes no limits, so that nothing would \
         bound what is written back. Try `mount -t cgroup -o blkio blkio DIRECTORY`; if v2 has the controller already, start \
         Linux with systemd.unified_cgroup_hierarchy=0 (and SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1)",
    )?;
    ensure!(
        throttle.join("blkio.throttle.read_bps_device").exists(),
        "{} has no blkio.throttle files: this needs a kernel with CONFIG_BLK_DEV_THROTTLING",
        throttle.display()
    );
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let group = group(&groups).unwrap_or("/");
    ensure!(
        group == "/",
        "this process is in the blkio group {group}, for which limits at the root do not hold; leave it: echo $$ > {}/cgroup.procs",
        throttle.display()
    );
    Ok(throttle)
}

/// The group of a process in cgroup v1's `blkio`, from its `cgroup` file.
fn group(groups: &str) -> Option<&str> {
    let fields = |line| str::split_once(line, ':')?.1.split_once(':');
    let blkio = |(controllers, _): &(&str, &str)| controllers.split(',').any(|controller| controller == "blkio");
    groups.lines().filter_map(fields).find(blkio).map(|(_, group)| group)
}

/// Where the root of cgroup v1's `blkio` is mounted.
fn blkio(mountinfo: &str) -> Option<PathBuf> {
    let root = |line: &&str| {
        let (mount, kind) = line.split_once(" - cgroup ").unwrap_or_default();
        let options = kind.split(' ').nth(1).unwrap_or_default();
        mount.split(' ').nth(3) == Some("/") && options.split(',').any(|option| option == "blkio")
    };
    mountinfo.lines().find(root)?.split(' ').nth(4).map(PathBuf::from)
}

fn ensure_memory(meminfo: &str, spec: Spec) -> Result<()> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"));
    let free = line.and_then(|line| count_before(line, " kB")).context("no MemAvailable in /proc/meminfo")? << 10;
    let needed = 3 * spec.size + LEFT_OVER;
    ensure!(
        free >= needed,
        "three disks of {} and {} for everything else need {} of memory and {} are available: ask for less with --size",
        ByteSize(spec.size),
        ByteSize(LEFT_OVER),
        ByteSize(needed),
        ByteSize(free)
    );
    Ok(())
}

/// Writes the images whole. Memory that a virtual machine touches for the first time may come more slowly than Optane writes; and
/// memory that runs out should do so here and not in the middle of a run.
fn fill(spec: Spec, signals: &Signals) -> Result<()> {
    const PIECE: usize = 1 << 20;
    let zeros = vec![0; PIECE];
    let fill_one = |device: Device| {
        let image = device.image();
        let fill = || {
            let mut file = File::create(&image)?;
            for _ in 0..spec.size / PIECE as u64 {
                signals.check()?;
                file.write_all(&zeros)?;
            }
            anyhow::Ok(())
        };
        fill().with_context(|| format!("while writing {}", image.display()))
    };
    thread::scope(|scope| {
        let threads = Device::ALL.map(|device| scope.spawn(move || fill_one(device)));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("panicked")))
    })
}

/// Makes the file system and its loop device, mounts it, and slows it down.
///
/// The throttle counts what is submitted to a device, before that makes one request of what lies side by side: an ext4 that reads 32
/// blocks of inodes ahead would wait for 32 turns of the disk, where a disk is asked once. So where requests are counted, the file system
/// is on a second loop device, which is not throttled and makes such requests; each is one to the device below. Nor does the throttle
/// know there which are the file system's own: it lets those by at once, and has others wait for them later.
fn set_up(device: Device, spec: Spec, throttle: &Path) -> Result<()> {
    let (image, dir, speed) = (device.image(), device.dir(), spec.speed(device));
    // Nothing is left to be done in the background, where it would take its share of a slow disk. Discarding would give the memory back.
    let mkfs = ["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
    quiet(Command::new("mkfs.ext4").args(mkfs).args(spec.inodes()).arg(&image))?;
    let slow = attach(&image)?;
    // A tmpfs has direct I/O since Linux 6.6. Without, the kernel's threads copy once more, of which a slow disk takes no notice.
    if let Err(error) = go_direct(&slow) {
        eprintln!("warning: {device} without direct I/O: {error:#}");
    }
    let above = if speed.reads.is_some() { Some(attach(&slow)?) } else { None };
    let mounted = above.as_deref().unwrap_or(&slow);
    if let Some(above) = &above {
        // Else the page cache between the two would be the disk.
        go_direct(above)?;
        set_queue(above, "read_ahead_kb", READ_AHEAD_KIB)?;
    }
    if device == Device::Hdd {
        // ext4 looks once, when it is mounted.
        set_queue(mounted, "rotational", "1")?;
    }
    fs::create_dir_all(&dir)?;
    mount(Some(mounted), &dir, Some("ext4"), MsFlags::empty(), None::<&str>).context("cannot mount it")?;
    // From now on they go when the mount does.
    for path in above.iter().chain([&slow]) {
        quiet(Command::new("losetup").arg("--detach").arg(path))?;
    }
    slow_down(&slow, speed, throttle)
}

/// A new loop device over this file or device.
fn attach(image: &Path) -> Result<PathBuf> {
    let path = quiet(Command::new("losetup").args(["--find", "--show"]).arg(image))?;
    Ok(path.trim().into())
}

fn go_direct(path: &Path) -> Result<()> {
    quiet(Command::new("losetup").arg("--direct-io=on").arg(path)).map(drop)
}

fn slow_down(path: &Path, speed: Speed, throttle: &Path) -> Result<()> {
    let number = fs::read_to_string(in_sys(path)?.join("dev"))?;
    let number = number.trim();
    let limit = |file: &str, limit: u64| {
        let (file, value, undo) = (throttle.join(file), format!("{number} {limit}"), format!("{number} 0"));
        Setting { device: path, file: &file, value: &value, undo: &undo }.apply()
    };
    limit("blkio.throttle.read_bps_device", speed.read * MB)?;
    limit("blkio.throttle.write_bps_device", speed.write * MB)?;
    if let Some(reads) = speed.reads {
        limit("blkio.throttle.read_iops_device", reads)?;
    }
    Ok(())
}

fn set_queue(path: &Path, what: &str, value: &str) -> Result<()> {
    let file = in_sys(path)?.join("queue").join(what);
    let before = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Setting { device: path, file: &file, value, undo: before.trim() }.apply()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_command_line_says_what_to_build_and_what_to_run() {
        let asked =
            parse(&args("--size 2GiB --device hdd=80/70/100 --device optane=1000/500 --json -- ls --json")).unwrap();
        assert_eq!(asked.spec.size, 2 << 30);
        assert_eq!(asked.spec.speed(Device::Hdd), Speed { read: 80, write: 70, reads: Some(100) });
        assert_eq!(asked.spec.speed(Device::Ssd), Spec::default().speed(Device::Ssd));
        assert_eq!(asked.spec.speed(Device::Optane), Speed { read: 1000, write: 500, reads: None });
        assert!(asked.json && !asked.spec.many_inodes);
        assert!(parse(&args("--many-inodes")).unwrap().spec.many_inodes);
        assert_eq!(asked.command, ["ls", "--json"]);
        assert_eq!(parse(&[]).unwrap(), Asked::default());
    }

    #[test]
    fn a_wrong_command_line_names_the_word_and_what_it_could_be() {
        for (line, says) in [
            ("--size", "--size needs a value"),
            ("--size big", "`big` is no size"),
            ("--size 1MiB", "256 MiB or more"),
            ("--size 2TiB", "1 TiB at most"),
            ("--device tape=1/1", "hdd, ssd and optane"),
            ("--device hdd", "DEVICE=READ/WRITE/READS"),
            ("--device hdd=0/133", "READ/WRITE in MB/s"),
            ("--device hdd=163/133/0", "READ/WRITE in MB/s"),
            ("--device hdd=163/18446744073709551615", "READ/WRITE in MB/s"),
            ("--device hdd=163", "READ/WRITE in MB/s"),
            ("--", "no command"),
            ("ls", "after `--`"),
        ] {
            let error = format!("{:#}", parse(&args(line)).unwrap_err());
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    #[ignore = "needs root, loop devices and cgroup v1: cargo test -p xtask -- --ignored testbed"]
    fn the_disks_stand_while_it_lives_and_nothing_is_left_of_them() {
        let signals = Signals::hold().unwrap();
        let ours = || {
            let mounts = fs::read_to_string("/proc/mounts").unwrap();
            let lines = mounts.lines().filter(|line| line.contains(remains::ROOT)).count();
            (lines, remains::our_loops().unwrap().len())
        };
        let limits = || fs::read_to_string(usable().unwrap().join("blkio.throttle.read_bps_device")).unwrap();
        let before = limits();
        let testbed = Testbed::build(Spec { size: 256 << 20, ..Spec::default() }, &signals).unwrap();
        assert_eq!(ours(), (4, 4), "a tmpfs and three disks, one of them on two devices");
        assert_ne!(limits(), before);
        for device in Device::ALL {
            fs::write(testbed.dir(device).join("file"), "bytes").unwrap();
        }
        let second = Testbed::build(Spec::default(), &signals).unwrap_err().to_string();
        assert!(second.contains(&std::process::id().to_string()), "{second}");
        let mut left = testbed.environment(&mut Command::new("sleep")).arg("1000").spawn().unwrap();
        let reaper = thread::spawn(move || left.wait().unwrap());
        drop(testbed);
        assert!(!reaper.join().unwrap().success());
        assert_eq!((ours(), limits()), ((0, 0), before));
        assert!(!Path::new(remains::ROOT).exists());
    }

    #[test]
    fn the_root_of_cgroup_v1_blkio_is_found_wherever_it_is() {
        let v2 = "31 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw";
        let cpu = "32 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct";
        let inner = "37 31 0:35 /docker/1 /elsewhere rw - cgroup cgroup rw,blkio";
        let blkio_line = "38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime shared:9 - cgroup cgroup rw,blkio";
        assert_eq!(blkio(&[v2, cpu, inner].join("\n")), None);
        assert_eq!(blkio(&[v2, cpu, inner, blkio_line].join("\n")), Some("/sys/fs/cgroup/blkio".into()));
    }

    #[test]
    fn the_group_of_a_process_is_found_among_others() {
        assert_eq!(group("8:pids:/a\n7:blkio:/\n0::/b\n"), Some("/"));
        assert_eq!(group("7:cpu,blkio:/docker/1:2\n"), Some("/docker/1:2"));
        assert_eq!(group("8:pids:/\n0::/\n"), None);
    }

    #[test]
    fn disks_for_many_files_have_room_for_a_million_with_their_copies() {
        let inodes = |many_inodes| Spec { many_inodes, ..Spec::default() }.inodes().to_vec();
        assert_eq!(inodes(false), ["-i", "4096"]);
        let per_inode: u64 = inodes(true)[1].parse().unwrap();
        assert!(Spec::default().size / per_inode > 2_000_000);
    }

    #[test]
    fn too_little_memory_is_refused_with_how_much_is_needed() {
        let spec = Spec { size: 4 << 30, ..Spec::default() };
        let meminfo = |kib: u64| format!("MemTotal: 1 kB\nMemAvailable:   {kib} kB\n");
        ensure_memory(&meminfo(14 << 20), spec).unwrap();
        let error = ensure_memory(&meminfo((14 << 20) - 1), spec).unwrap_err().to_string();
        assert!(error.contains("need 14.0 GiB") && error.contains("--size"), "{error}");
    }
}
