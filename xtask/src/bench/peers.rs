//! What dlio-fs is measured beside: other file systems in user space, each mounted over a directory of a disk of the testbed.
//!
//! All run in the foreground as children of this process, so that each is known by its id; and in groups of their own, so that
//! Ctrl-C in the terminal does not end them below what is being measured.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{major, minor};

use crate::run::{self, Running};
use crate::scratch::{mount_points, until};
use crate::signals::Signals;
use crate::testbed::{Device, Testbed};

/// A file system to mount beside.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Of its place in the tables.
    pub(crate) name: &'static str,
    /// Debian's package; none for what is built here.
    pub(crate) package: Option<&'static str>,
    /// `LOWER` is the directory that it shows, `FAST` one on Optane and `SLOW` one on the HDD for its own use.
    command: &'static str,
    /// Run before it.
    prepare: Option<&'static str>,
    /// Read ahead so many KiB once it is mounted.
    read_ahead_kib: Option<u32>,
}

/// As its documentation has it for most, with nothing kept in the kernel. It would take no new file with less than 4 GB free.
pub(crate) const MERGERFS: Peer = Peer {
    name: "mergerfs",
    package: Some("mergerfs"),
    command: "mergerfs -f -o minfreespace=0,cache.files=off LOWER MOUNT",
    prepare: None,
    read_ahead_kib: None,
};

/// What its documentation lists under performance, as far as files still arrive when they are closed: no `cache.writeback`, no
/// `symlinkify`, no `nullrw`.
pub(crate) const MERGERFS_CACHED: Peer = Peer {
    name: "mergerfs-cached",
    package: Some("mergerfs"),
    command: "mergerfs -f -o minfreespace=0,cache.files=auto-full,cache.entry=3600,cache.attr=3600,cache.negative_entry=3600,\
              cache.open=3600,cache.statfs=3600,cache.readdir=true,cache.symlinks=true,xattr=nosys,security_capability=false \
              LOWER MOUNT",
    prepare: None,
    read_ahead_kib: Some(1024),
};

pub(crate) const BINDFS: Peer = Peer {
    name: "bindfs",
    package: Some("bindfs"),
    command: "bindfs -f LOWER MOUNT",
    prepare: None,
    read_ahead_kib: None,
};

/// Its manual's `--multithreaded`, no question for capabilities before each write, and libfuse's own options for large requests
/// and for keeping what was looked up.
pub(crate) const BINDFS_FAST: Peer = Peer {
    name: "bindfs-fast",
    package: Some("bindfs"),
    command: "bindfs -f --multithreaded --xattr-none \
              -o big_writes,max_write=131072,kernel_cache,attr_timeout=3600,entry_timeout=3600,negative_timeout=3600 \
              LOWER MOUNT",
    prepare: None,
    read_ahead_kib: None,
};

/// Writes back whole files.
pub(crate) const RCLONE: Peer = Peer {
    name: "rclone",
    package: Some("rclone"),
    command: "rclone mount LOWER MOUNT --config /dev/null --vfs-cache-mode full --cache-dir FAST",
    prepare: None,
    read_ahead_kib: None,
};

/// Writes back from a cache on Optane, in blocks, to a directory of the HDD; its metadata are in SQLite on Optane.
pub(crate) const JUICEFS: Peer = Peer {
    name: "juicefs",
    package: None,
    command: "juicefs --no-agent mount --no-usage-report --backup-meta 0 --writeback --cache-dir FAST/cache --cache-size 1024 \
              sqlite3://FAST/meta.db MOUNT",
    prepare: Some(
        "juicefs --no-agent format --storage file --bucket LOWER/ --trash-days 0 sqlite3://FAST/meta.db bench",
    ),
    read_ahead_kib: None,
};

/// Shows a directory at the place where it is.
pub(crate) const LOGGEDFS: Peer = Peer {
    name: "loggedfs",
    package: Some("loggedfs"),
    command: "loggedfs -f -p -l FAST/log MOUNT",
    prepare: None,
    read_ahead_kib: None,
};

/// What a request costs whoever serves it: [`super::bare`]. Nothing is kept in the kernel.
pub(crate) const BARE: Peer =
    Peer { name: "bare", package: None, command: "xtask bare LOWER MOUNT", prepare: None, read_ahead_kib: None };

/// The kernel keeps names and attributes for as long as those of files that were changed through dlio-fs (`attribute_lifetime`).
pub(crate) const BARE_1MIN: Peer = Peer {
    name: "bare-1min",
    package: None,
    command: "xtask bare LOWER MOUNT 60",
    prepare: None,
    read_ahead_kib: None,
};

/// For as long as those of files that dlio-fs knows from the slow tier only (`attribute_lifetime_slow`).
pub(crate) const BARE_1S: Peer =
    Peer { name: "bare-1s", package: None, command: "xtask bare LOWER MOUNT 1", prepare: None, read_ahead_kib: None };

/// The program itself as it comes, mounted as [`NO_PROFILE`] is: nobody waits for the drain of either.
pub(crate) const OBSERVED: Peer = Peer {
    name: "observed",
    package: None,
    command: "dlio-fs mount MOUNT --fast FAST --slow SLOW --foreground",
    prepare: None,
    read_ahead_kib: None,
};

/// The program itself, which counts nothing.
pub(crate) const NO_PROFILE: Peer = Peer {
    name: "no-profile",
    package: None,
    command: "dlio-fs mount MOUNT --fast FAST --slow SLOW --no-profile --foreground",
    prepare: None,
    read_ahead_kib: None,
};

/// The first member of a fleet of three, mounted as [`OBSERVED`] is. All clocks are one, so an answer waits for no clock.
pub(crate) const FLEET: Peer = Peer {
    name: "fleet",
    package: None,
    command: "dlio-fs mount MOUNT --fast FAST --slow SLOW -o fleet=bench,fleet_size=3,clock_error=1us --foreground",
    prepare: None,
    read_ahead_kib: None,
};

/// The others, over the slow directory of the first.
pub(crate) const FLEET_MORE: [Peer; 2] = [more("fleet-second"), more("fleet-third")];

const fn more(name: &'static str) -> Peer {
    Peer {
        name,
        package: None,
        command: "dlio-fs mount MOUNT --fast FAST --slow $DLIO_HDD/peers/fleet/slow \
                  -o fleet=bench,fleet_size=3,clock_error=1us --foreground",
        prepare: None,
        read_ahead_kib: None,
    }
}

/// The program itself, for whom the kernel believes what it was told for as long as it does for [`MERGERFS_CACHED`] and [`BINDFS_FAST`].
pub(crate) const BELIEVED: Peer = Peer {
    name: "dlio-fs-1h",
    package: None,
    command: "dlio-fs mount MOUNT --fast FAST --slow SLOW -o attribute_lifetime=1h,attribute_lifetime_slow=1h --foreground",
    prepare: None,
    read_ahead_kib: None,
};

/// What one part measures beside.
#[derive(Debug)]
pub(crate) enum Beside {
    /// Mounted over a directory of this disk.
    Peer(&'static Peer, Device),
    /// A directory of a disk itself.
    Disk(Device),
    /// Mounted likewise, for the others, and not measured.
    Unmeasured(&'static Peer, Device),
}

impl Beside {
    /// Of its place in the tables.
    pub(crate) fn name(&self) -> String {
        match self {
            Beside::Peer(peer, _) | Beside::Unmeasured(peer, _) => peer.name.to_owned(),
            Beside::Disk(device) => device.to_string(),
        }
    }

    /// What is measured, with variables for the disks.
    pub(crate) fn dir(&self) -> String {
        match self {
            Beside::Peer(peer, lower) | Beside::Unmeasured(peer, lower) => peer.mount_point(*lower),
            Beside::Disk(device) => format!("${}", device.variable()),
        }
    }

    /// Debian's.
    pub(crate) fn package(&self) -> Option<&'static str> {
        if let Beside::Peer(peer, _) = self { peer.package } else { None }
    }

    /// The command lines that mount it, with variables for the disks; none for what is there anyway.
    pub(crate) fn commands(&self) -> Vec<String> {
        let (Beside::Peer(peer, lower) | Beside::Unmeasured(peer, lower)) = self else { return Vec::new() };
        let read_ahead = |kib| {
            let device = format!("$(mountpoint -d {})", peer.mount_point(*lower));
            format!("echo {kib} > /sys/class/bdi/{device}/read_ahead_kb")
        };
        let prepare = peer.prepare.map(|line| peer.with_dirs(line, *lower));
        prepare.into_iter().chain([peer.command(*lower)]).chain(peer.read_ahead_kib.map(read_ahead)).collect()
    }
}

impl Peer {
    /// On the disk that it shows, for one that shows a directory at its own place.
    fn mount_point(&self, lower: Device) -> String {
        self.own(lower, "mount")
    }

    /// A directory for its own use.
    fn own(&self, disk: Device, what: &str) -> String {
        format!("{}/{}/{what}", top(disk), self.name)
    }

    fn command(&self, lower: Device) -> String {
        self.with_dirs(self.command, lower)
    }

    fn with_dirs(&self, line: &str, lower: Device) -> String {
        self.dirs(lower).iter().fold(line.to_owned(), |line, (word, dir)| line.replace(word, dir))
    }

    fn dirs(&self, lower: Device) -> [(&'static str, String); 4] {
        [
            ("LOWER", self.own(lower, "lower")),
            ("FAST", self.own(Device::Optane, "fast")),
            ("SLOW", self.own(Device::Hdd, "slow")),
            ("MOUNT", self.mount_point(lower)),
        ]
    }

    /// Mounts it over `lower`, and returns once it answers. `program` is dlio-fs; what it says goes to `logs`.
    pub(crate) fn mount(&'static self, lower: Device, on: &Stage<'_>) -> Result<Mounted> {
        let mounted = self.try_mount(lower, on).inspect_err(|_| run::print_tail(&on.log(self.name)));
        mounted.with_context(|| format!("cannot mount {}", self.name))
    }

    fn try_mount(&'static self, lower: Device, on: &Stage<'_>) -> Result<Mounted> {
        let dirs = self.dirs(lower);
        let is_named =
            |word: &str| [Some(self.command), self.prepare].into_iter().flatten().any(|line| line.contains(word));
        for (_, dir) in dirs.iter().filter(|(word, _)| is_named(word)) {
            let dir = on.path(dir);
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let log = File::create(on.log(self.name))?;
        if let Some(line) = self.prepare {
            let mut command = on.run(&self.with_dirs(line, lower));
            let prepared = command.stdout(log.try_clone()?).stderr(log.try_clone()?).status()?;
            ensure!(prepared.success(), "{line}: {prepared}");
        }
        let mut command = on.run(&self.command(lower));
        command.process_group(0).stdout(log.try_clone()?).stderr(log);
        let point = on.path(&self.mount_point(lower));
        let mut mounted = Mounted { name: self.name, process: Running::start(&mut command)?, point };
        until("the mount to answer", || {
            on.signals.check()?;
            if let Some(status) = mounted.process.ended()? {
                bail!("it ended before the mount answered: {status}");
            }
            mounted.is_mounted()
        })?;
        if let Some(kib) = self.read_ahead_kib {
            mounted.read_ahead(kib)?;
        }
        Ok(mounted)
    }
}

/// The directory of a disk for all that is mounted beside.
fn top(disk: Device) -> String {
    format!("${}/peers", disk.variable())
}

/// Where all this happens.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) testbed: &'a Testbed,
    pub(crate) signals: &'a Signals,
    /// The built dlio-fs; dlio-fs-bench and xtask, built alike, are beside it.
    pub(crate) program: &'a Path,
    pub(crate) juicefs: &'a Path,
    /// One that has PyTorch, first on the path of what is run.
    pub(crate) python: &'a Path,
    pub(crate) logs: &'a Path,
}

impl Stage<'_> {
    /// A path with variables for the disks.
    fn path(&self, shown: &str) -> PathBuf {
        expand(shown, |disk| self.testbed.dir(disk).display().to_string()).into()
    }

    /// A command line with variables for the disks, of words without blanks. What it starts ends with the testbed at the
    /// latest.
    pub(crate) fn run(&self, line: &str) -> Command {
        let line = expand(line, |disk| self.testbed.dir(disk).display().to_string());
        let mut words = line.split(' ');
        let mut command = match words.next().unwrap_or_default() {
            "dlio-fs" => Command::new(self.program),
            beside @ ("dlio-fs-bench" | "xtask") => Command::new(self.program.with_file_name(beside)),
            "juicefs" => Command::new(self.juicefs),
            other => Command::new(other),
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = self.python.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
        self.testbed.environment(command.args(words));
        // One that no part needs may not be there, nor could its directory be named.
        if let Ok(path) = std::env::join_paths(dirs) {
            command.env("PATH", path);
        }
        command
    }

    fn log(&self, peer: &str) -> PathBuf {
        self.logs.join(format!("bench-{peer}.log"))
    }

    /// Mounts all there is to mount.
    pub(crate) fn mount(&self, beside: &'static [Beside]) -> Result<Vec<Mounted>> {
        let mount = |beside: &'static Beside| match beside {
            Beside::Peer(peer, lower) | Beside::Unmeasured(peer, lower) => Some(peer.mount(*lower, self)),
            Beside::Disk(_) => None,
        };
        beside.iter().filter_map(mount).collect()
    }

    /// Takes them away, with all that they have left on the disks.
    pub(crate) fn unmount(&self, mounted: Vec<Mounted>) -> Result<()> {
        for mounted in mounted {
            let name = mounted.name;
            mounted.unmount().with_context(|| format!("cannot take {name} down"))?;
        }
        for dir in Device::ALL.map(|disk| self.path(&top(disk))) {
            if dir.exists() {
                fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
            }
        }
        Ok(())
    }
}

fn expand(shown: &str, dir: impl Fn(Device) -> String) -> String {
    Device::ALL
        .into_iter()
        .fold(shown.to_owned(), |text, disk| text.replace(&format!("${}", disk.variable()), &dir(disk)))
}

/// A mounted peer. Dropped without [`Mounted::unmount`] it is killed and goes out of sight.
#[derive(Debug)]
pub(crate) struct Mounted {
    name: &'static str,
    process: Running,
    point: PathBuf,
}

impl Mounted {
    /// Also when nobody answers there any more.
    fn is_mounted(&self) -> Result<bool> {
        let mounts = fs::read("/proc/self/mountinfo")?;
        Ok(mount_points(&String::from_utf8_lossy(&mounts)).contains(&self.point))
    }

    fn read_ahead(&self, kib: u32) -> Result<()> {
        let device = fs::metadata(&self.point)?.dev();
        let file = format!("/sys/class/bdi/{}:{}/read_ahead_kb", major(device), minor(device));
        fs::write(&file, kib.to_string()).with_context(|| format!("cannot write {file}"))
    }

    /// Returns when its process has ended.
    fn unmount(mut self) -> Result<()> {
        until("the mount not to be in use", || match umount2(&self.point, MntFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::EBUSY) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot unmount {}", self.point.display())),
        })?;
        until("its process to end", || Ok(self.process.ended()?.is_some()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Not after `unmount`. The process is killed next, where it still runs.
        if self.is_mounted().unwrap_or(true) {
            umount2(&self.point, MntFlags::MNT_DETACH).unwrap_or_default();
        }
    }
}

/// The version of each package, in the order of their names.
pub(crate) fn versions<'a>(packages: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let version = |package: &str| {
        let mut query = Command::new("dpkg-query");
        let output = query.args(["-W", "-f=${Version}", package]).stderr(Stdio::null()).output();
        let version = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
        let version = version.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (package.to_owned(), version.unwrap_or_else(|| "not Debian's".to_owned()))
    };
    packages.collect::<BTreeSet<_>>().into_iter().map(version).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_names_disks_by_their_variables() {
        assert_eq!(
            MERGERFS.command(Device::Hdd),
            "mergerfs -f -o minfreespace=0,cache.files=off $DLIO_HDD/peers/mergerfs/lower $DLIO_HDD/peers/mergerfs/mount"
        );
        assert_eq!(
            RCLONE.command(Device::Hdd),
            "rclone mount $DLIO_HDD/peers/rclone/lower $DLIO_HDD/peers/rclone/mount --config /dev/null --vfs-cache-mode full \
             --cache-dir $DLIO_OPTANE/peers/rclone/fast"
        );
        assert_eq!(
            LOGGEDFS.command(Device::Optane),
            "loggedfs -f -p -l $DLIO_OPTANE/peers/loggedfs/fast/log $DLIO_OPTANE/peers/loggedfs/mount"
        );
        assert_eq!(
            NO_PROFILE.command(Device::Optane),
            "dlio-fs mount $DLIO_OPTANE/peers/no-profile/mount --fast $DLIO_OPTANE/peers/no-profile/fast \
             --slow $DLIO_HDD/peers/no-profile/slow --no-profile --foreground"
        );
    }

    #[test]
    fn the_variables_are_the_disks_where_it_runs() {
        let line = expand("a $DLIO_HDD/x -f$DLIO_OPTANE/y", |disk| format!("/disks/{disk}"));
        assert_eq!(line, "a /disks/hdd/x -f/disks/optane/y");
    }

    /// They are split at blanks and given to the program's `--also NAME=DIR`.
    #[test]
    fn every_peer_is_mounted_over_a_directory_and_its_words_have_no_blanks() {
        let others =
            [&MERGERFS, &MERGERFS_CACHED, &BINDFS, &BINDFS_FAST, &RCLONE, &LOGGEDFS, &BARE, &BARE_1MIN, &BARE_1S];
        for peer in others.into_iter().chain([&JUICEFS, &OBSERVED, &NO_PROFILE, &BELIEVED, &FLEET]) {
            let line = peer.command(Device::Optane);
            assert!(!line.contains("  ") && !line.contains('\n'), "{line}");
            for word in ["LOWER", "FAST", "SLOW", "MOUNT"] {
                assert!(!line.contains(word), "{line}");
            }
            let mount = Beside::Peer(peer, Device::Optane).dir();
            assert!(line.split(' ').any(|word| word == mount), "{line}");
            assert!(!peer.name.contains([' ', '=', '/', ',']), "{}", peer.name);
        }
    }

    #[test]
    fn what_is_set_after_mounting_is_told_too() {
        let lines = Beside::Peer(&MERGERFS_CACHED, Device::Hdd).commands();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[1],
            "echo 1024 > /sys/class/bdi/$(mountpoint -d $DLIO_HDD/peers/mergerfs-cached/mount)/read_ahead_kb"
        );
        assert!(Beside::Disk(Device::Ssd).commands().is_empty());
    }

    #[test]
    fn a_package_that_is_not_there_has_no_version() {
        let versions = versions(["no-such-package", "no-such-package"].into_iter());
        assert_eq!(versions, [("no-such-package".to_owned(), "not Debian's".to_owned())]);
    }
}
