//! A mount to test: two fresh ext4 tiers on loop devices and the program serving them, gone again whatever happens.
//!
//! ext4 on a loop device, because then the scores do not depend on the file system of the machine. The images are beside
//! Cargo's output, where there is room; the mounts are in the directory for temporary files, whose path is short: a socket's
//! path has 108 bytes, and pjdfstest makes sockets. An ordinary user's tiers are directories of a disk that root has made for him.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;
use nix::unistd::Uid;
use serde_json::Value;

use crate::run::{Running, count_before, run};
use crate::{Context, setup};

/// Size of each tier; the images are sparse.
const TIER_BYTES: u64 = 4 << 30;
/// Descriptors the daemon may have unless a stage wishes otherwise: fewer than the files it will know.
const DESCRIPTORS: u64 = 20_000;
/// Scratch directories are named after the process that made them.
const PREFIX: &str = "dlio-xtask-";
/// For the daemon to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a stage may want otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    /// What follows each `-o` of the mount.
    pub(crate) options: &'a [&'a str],
    /// Over the slow tier itself.
    pub(crate) over_itself: bool,
    /// Descriptors the daemon may have.
    pub(crate) descriptors: u64,
    /// For mkfs.ext4 of the slow tier.
    pub(crate) mkfs: &'a [&'a str],
}

impl Default for Wish<'_> {
    fn default() -> Self {
        Wish { options: &[], over_itself: false, descriptors: DESCRIPTORS, mkfs: &[] }
    }
}

/// A shell with mounts of its own, and without those of other stages: a daemon whose mount has gone goes on as long as somebody has a copy
/// of it, and `umount` waits for its end.
pub(crate) fn with_own_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec"]);
    let ours = std::process::id();
    let leave = format!(
        "for at in $(cut -d ' ' -f 2 /proc/self/mounts); do\n\
         case $at in */{PREFIX}{ours}/*) ;; */{PREFIX}*) umount -l \"$at\" ;; esac\n\
         done"
    );
    command.arg(format!("{leave}\n{script}"));
    command
}

/// Directories `fast`, `slow` and `mnt` below one scratch directory.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: PathBuf,
    /// Where the mount is.
    point: PathBuf,
    program: PathBuf,
    log: PathBuf,
    options: Vec<String>,
    descriptors: u64,
    daemon: Option<Running>,
}

impl Scratch {
    /// Makes the tiers and mounts them.
    pub(crate) fn mounted(cx: &Context, stage: &str, wish: Wish<'_>) -> Result<Self> {
        let mut scratch = Scratch::unmounted(cx, stage, wish)?;
        scratch.mount()?;
        Ok(scratch)
    }

    /// Only makes the tiers.
    pub(crate) fn unmounted(cx: &Context, stage: &str, wish: Wish<'_>) -> Result<Self> {
        let mut dir = std::env::temp_dir();
        if Uid::effective().is_root() {
            dir.push(format!("{PREFIX}{}", std::process::id()));
        }
        let log = log_path(cx, stage);
        File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        // From here on dropping it cleans up, also when a step below fails.
        let scratch = Scratch {
            point: dir.join(if wish.over_itself { "slow" } else { "mnt" }),
            dir,
            program: cx.target.join("debug/dlio-fs"),
            log,
            options: wish.options.iter().map(|option| (*option).to_owned()).collect(),
            descriptors: wish.descriptors,
            daemon: None,
        };
        for dir in [scratch.fast(), scratch.slow(), scratch.point()] {
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        if Uid::effective().is_root() {
            make_tier(cx, &scratch.fast(), &[])?;
            make_tier(cx, &scratch.slow(), wish.mkfs)?;
        }
        Ok(scratch)
    }

    pub(crate) fn fast(&self) -> PathBuf {
        self.dir.join("fast")
    }

    pub(crate) fn slow(&self) -> PathBuf {
        self.dir.join("slow")
    }

    pub(crate) fn point(&self) -> PathBuf {
        self.point.clone()
    }

    /// Starts the daemon and returns once the mount answers. Also replaces a dead mount.
    pub(crate) fn mount(&mut self) -> Result<()> {
        let log = File::options().append(true).open(&self.log)?;
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={0}:{0}", self.descriptors)).arg(&self.program);
        command.arg("mount").arg(self.point()).arg("--fast").arg(self.fast()).arg("--slow").arg(self.slow());
        command.args(self.options.iter().flat_map(|option| ["-o", option]));
        let mut daemon = Running::start(command.arg("--foreground").stdout(log.try_clone()?).stderr(log))?;
        let stats = self.point().join(".dlio/stats");
        until("the mount to answer", || {
            if let Some(status) = daemon.ended()? {
                bail!("the daemon ended before the mount answered: {status}");
            }
            Ok(fs::read(&stats).is_ok())
        })?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// A `dlio-fs` command line.
    pub(crate) fn program(&self) -> Command {
        Command::new(&self.program)
    }

    /// A number of `.dlio/stats.json`, by its JSON pointer; 0 if it is not there.
    pub(crate) fn figure(&self, pointer: &str) -> Result<u64> {
        let stats: Value = serde_json::from_slice(&fs::read(self.point().join(".dlio/stats.json"))?)?;
        Ok(stats.pointer(pointer).and_then(Value::as_u64).unwrap_or(0))
    }

    /// The most memory the daemon has had so far, in bytes, and the descriptors it has now.
    pub(crate) fn usage(&self) -> Result<(u64, usize)> {
        let daemon = self.daemon.as_ref().context("nothing is mounted")?;
        let proc = PathBuf::from(format!("/proc/{}", daemon.id()));
        let status = fs::read_to_string(proc.join("status"))?;
        let peak = status.lines().find(|line| line.starts_with("VmHWM:")).and_then(|line| count_before(line, " kB"));
        let peak = peak.context("no VmHWM in the daemon's status")?;
        Ok((peak << 10, fs::read_dir(proc.join("fd"))?.count()))
    }

    /// Returns when everything written is on the slow tier.
    pub(crate) fn drain(&self) -> Result<()> {
        run(self.program().arg("drain").arg(self.point()))
    }

    /// Drains, unmounts, and sees the daemon end.
    pub(crate) fn umount(&mut self) -> Result<()> {
        run(self.program().arg("umount").arg(self.point()))?;
        self.see_it_end()
    }

    /// Unmounts without draining: what is only on the fast tier stays there.
    pub(crate) fn umount_now(&mut self) -> Result<()> {
        /// The exit code of a command that left something undrained.
        const UNDRAINED: i32 = 3;
        let mut command = self.program();
        let status = Running::start(command.arg("umount").arg(self.point()).arg("--now"))?.wait()?;
        if !matches!(status.code(), Some(0 | UNDRAINED)) {
            bail!("dlio-fs umount --now: {status}");
        }
        self.see_it_end()
    }

    fn see_it_end(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else { bail!("nothing is mounted") };
        let mut status: Option<ExitStatus> = None;
        until("the daemon to end after the unmount", || {
            status = daemon.ended()?;
            Ok(status.is_some())
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Killed by its own id; its mount then answers ENOTCONN until it is taken away below.
        self.daemon = None;
        if !Uid::effective().is_root() {
            // It goes with the disk, and the mount with the name space.
            return;
        }
        if let Err(error) = clean(&self.dir) {
            println!("left behind: {error:#}");
        }
    }
}

/// One disk, of whose files a stage does something else; gone again whatever happens.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
}

impl Disk {
    pub(crate) fn new(cx: &Context) -> Result<Self> {
        let disk = Disk { dir: std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id())) };
        fs::create_dir_all(disk.root()).with_context(|| format!("cannot create {}", disk.root().display()))?;
        make_tier(cx, &disk.root(), &[])?;
        Ok(disk)
    }

    /// Short: see above.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("u")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = clean(&self.dir) {
            println!("left behind: {error:#}");
        }
    }
}

/// Looks until it is so, for [`PATIENCE`].
pub(crate) fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !done()? {
        if began.elapsed() > PATIENCE {
            bail!("waited {} s for {what}", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Mounts a new file system at `tier`. Its image has no name any more when this returns: it goes with the mount.
fn make_tier(cx: &Context, tier: &Path, mkfs: &[&str]) -> Result<()> {
    let image = &setup::work_dir(cx).join(format!("tier-{}.img", std::process::id()));
    let file = File::create(image).with_context(|| format!("cannot create {}", image.display()))?;
    let made = file.set_len(TIER_BYTES).with_context(|| format!("cannot size {}", image.display()));
    let made = made.and_then(|()| run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).args(mkfs).arg(image)));
    let mounted = made.and_then(|()| run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(tier)));
    fs::remove_file(image).with_context(|| format!("cannot remove {}", image.display()))?;
    mounted
}

/// Where the daemon of a stage says what it has to say.
pub(crate) fn log_path(cx: &Context, stage: &str) -> PathBuf {
    setup::work_dir(cx).join(format!("{stage}-daemon.log"))
}

/// Builds need room; and a fast tier on a disk of which less than 1/50 is free takes no files, which fails tests that say nothing
/// of it.
pub(crate) fn ensure_room(target: &Path) -> Result<()> {
    const BUILD: u64 = 8 << 30;
    fs::create_dir_all(target)?;
    for dir in [target, &std::env::temp_dir()] {
        let space = statvfs(dir).with_context(|| format!("statvfs {}", dir.display()))?;
        let (free, total) = (space.blocks_available() * space.fragment_size(), space.blocks() * space.fragment_size());
        let least = (total / 25).max(BUILD);
        let gib = |bytes: u64| bytes >> 30;
        ensure!(free > least, "{}: {} GiB free, {} are needed", dir.display(), gib(free), gib(least));
    }
    Ok(())
}

/// Takes away what a run that was itself killed has left behind.
pub(crate) fn sweep() -> Result<()> {
    for entry in fs::read_dir(std::env::temp_dir())? {
        let dir = entry?.path();
        let owner = dir.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            println!("cleaning up after an interrupted run: {}", dir.display());
            if let Err(error) = clean(&dir) {
                println!("left behind: {error:#}");
            }
        }
    }
    Ok(())
}

/// Unmounts all below `dir`, the latest mount first, and removes it: a client of a killed run may have written into the mount
/// point. Should something still be mounted, its files are not ours to delete.
fn clean(dir: &Path) -> Result<()> {
    let dir = dir.canonicalize()?;
    for point in mounts_below(&dir)?.iter().rev() {
        umount2(point, MntFlags::MNT_DETACH).with_context(|| format!("cannot unmount {}", point.display()))?;
    }
    if let Some(point) = mounts_below(&dir)?.first() {
        bail!("{} is still mounted", point.display());
    }
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))
}

fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mountinfo = fs::read("/proc/self/mountinfo")?;
    let mut points = mount_points(&String::from_utf8_lossy(&mountinfo));
    points.retain(|point| point.starts_with(dir));
    Ok(points)
}

/// The fifth field of each line of mountinfo, where the kernel writes blank, tab, newline and backslash in octal.
pub(crate) fn mount_points(mountinfo: &str) -> Vec<PathBuf> {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    let unescape = |field: &str| escapes.iter().fold(field.to_owned(), |text, (from, to)| text.replace(from, to));
    mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(|field| unescape(field).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        let text =
            "36 35 98:0 / /mnt/a rw,noatime master:1 - ext4 /dev/root rw\n37 35 0:9 / /with\\040blank rw - fuse x rw\n";
        assert_eq!(mount_points(text), [PathBuf::from("/mnt/a"), PathBuf::from("/with blank")]);
    }
}
