//! What a testbed leaves on the machine while it stands, and taking it down: also by another process, when the one that built it was
//! killed. All of it is found by where it lies, so that there is nothing to remember and nobody else's loop device is touched.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::run::quiet;
use crate::scratch::mount_points;

/// Everything lies here.
pub(super) const ROOT: &str = "/run/dlio-testbed";
/// The tmpfs with the images.
pub(super) const MEMORY: &str = "/run/dlio-testbed/memory";
/// In the environment of what runs on the testbed, with [`ROOT`] as its value.
pub(super) const MARK: &str = "DLIO_TESTBED";
/// How to undo each [`Setting`], a line each: the loop device, the file, what to write.
const UNDO: &str = "/run/dlio-testbed/undo";
/// Stays: were it removed, two processes could hold locks on two files of that name.
const LOCK: &str = "/run/dlio-testbed.lock";
/// For a program to end, for a loop device to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes this process the only one with a testbed. It is so until the answer is dropped or the process ends, however that happens.
pub(super) fn lock() -> Result<Flock<File>> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(LOCK);
    let file = file.with_context(|| format!("cannot open {LOCK}"))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            lock.set_len(0)?;
            writeln!(lock, "{}", std::process::id())?;
            Ok(lock)
        }
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid)?;
            bail!(
                "there is a testbed already, of process {}, and only one at a time: wait for it to end, or end it",
                pid.trim()
            )
        }
        Err((_, error)) => Err(error).with_context(|| format!("cannot lock {LOCK}")),
    }
}

/// A file of the kernel's about a loop device, to be written and later to be undone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub(super) device: &'a Path,
    pub(super) file: &'a Path,
    pub(super) value: &'a str,
    pub(super) undo: &'a str,
}

impl Setting<'_> {
    pub(super) fn apply(self) -> Result<()> {
        // How to undo it is known before it is done.
        let mut record = File::options().append(true).create(true).open(UNDO)?;
        record.write_all(self.line().as_bytes()).with_context(|| format!("cannot write {UNDO}"))?;
        fs::write(self.file, self.value)
            .with_context(|| format!("cannot write `{}` to {}", self.value, self.file.display()))
    }

    fn line(&self) -> String {
        format!("{} {} {}\n", self.device.display(), self.file.display(), self.undo)
    }
}

/// Takes down all there is, and goes on where something fails. Says what is still there.
pub(super) fn take_down() -> Result<()> {
    if !Path::new(ROOT).exists() {
        return Ok(());
    }
    // Limits first: what still has to be written back is written at once.
    let results = [
        undo_settings(),
        end_marked(),
        unmount_below(ROOT, |point| point != Path::new(MEMORY)),
        detach_loops(),
        unmount_below(MEMORY, |_| true),
    ];
    let failed: Vec<String> = results.into_iter().filter_map(|result| Some(format!("{:#}", result.err()?))).collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    remove_root()
}

/// Only what is empty, so that nothing is deleted on what is still mounted.
fn remove_root() -> Result<()> {
    for entry in fs::read_dir(ROOT).with_context(|| format!("cannot list {ROOT}"))? {
        let path = entry?.path();
        let removed = if path == Path::new(UNDO) { fs::remove_file(&path) } else { fs::remove_dir(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    fs::remove_dir(ROOT).with_context(|| format!("cannot remove {ROOT}"))
}

/// Should somebody have got one of our loop devices in the meantime, its settings are theirs.
fn undo_settings() -> Result<()> {
    let record = match fs::read_to_string(UNDO) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        record => record.with_context(|| format!("cannot read {UNDO}"))?,
    };
    for (device, file, undo) in record.lines().rev().filter_map(undo_of) {
        if backing(Path::new(device)).is_none_or(|below| is_ours(&below)) {
            fs::write(file, undo).with_context(|| format!("cannot write `{undo}` to {file}"))?;
        }
    }
    Ok(())
}

/// The loop device, the file and what to write. None if the line is not whole.
fn undo_of(line: &str) -> Option<(&str, &str, &str)> {
    let mut fields = line.splitn(3, ' ');
    Some((fields.next()?, fields.next()?, fields.next()?))
}

/// Ends the programs that were started on the testbed and what they have started, daemons too.
fn end_marked() -> Result<()> {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        for pid in marked(ROOT)? {
            // An error means that it has ended.
            kill(pid, signal).unwrap_or_default();
        }
        if within_patience(|| Ok(marked(ROOT)?.is_empty()))? {
            return Ok(());
        }
    }
    Err(anyhow!("still running: {}", names(&marked(ROOT)?)))
}

/// The processes that have [`MARK`] with this value. One that clears its environment is not among them.
fn marked(value: &str) -> Result<Vec<Pid>> {
    let mark = format!("{MARK}={value}");
    let has_mark = |pid: &Pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    Ok(processes()?.into_iter().filter(|pid| *pid != Pid::this()).filter(has_mark).collect())
}

fn processes() -> Result<Vec<Pid>> {
    let names = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.parse().ok().map(Pid::from_raw)).collect())
}

/// The latest mount first. What is in use goes out of sight at once, and away when its last user ends.
fn unmount_below(dir: &str, wanted: impl Fn(&Path) -> bool) -> Result<()> {
    let mountinfo = fs::read("/proc/self/mountinfo")?;
    let points = mount_points(&String::from_utf8_lossy(&mountinfo));
    for point in points.iter().rev().filter(|point| point.starts_with(dir) && wanted(point)) {
        let mut unmounted = umount2(point, MntFlags::empty());
        if unmounted == Err(Errno::EBUSY) {
            eprintln!("warning: {} is in use by {}", point.display(), names(&users(point)?));
            unmounted = umount2(point, MntFlags::MNT_DETACH);
        }
        unmounted.with_context(|| format!("cannot unmount {}", point.display()))?;
    }
    Ok(())
}

/// The processes with a file or directory below `point` open.
fn users(point: &Path) -> Result<Vec<Pid>> {
    let below = |link: PathBuf| fs::read_link(link).is_ok_and(|file| file.starts_with(point));
    let uses = |pid: &Pid| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().filter_map(|fd| Some(fd.ok()?.path()));
        open.chain([process.join("cwd"), process.join("root")]).any(below)
    };
    Ok(processes()?.into_iter().filter(uses).collect())
}

fn names(pids: &[Pid]) -> String {
    let name = |pid: &Pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("process {pid} ({})", name.trim())
    };
    if pids.is_empty() { "the kernel".to_owned() } else { pids.iter().map(name).collect::<Vec<_>>().join(", ") }
}

fn detach_loops() -> Result<()> {
    // Found before the first goes: what is known of one on top of another is what it is on.
    for path in our_loops()? {
        // One that was mounted goes by itself, and one below another with that; an error may mean that it just has.
        quiet(Command::new("losetup").arg("--detach").arg(path)).map_or_else(drop, drop);
    }
    let are_gone = within_patience(|| Ok(our_loops()?.is_empty()))?;
    let paths = our_loops()?.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    ensure!(are_gone, "still in use: {}", paths.join(", "));
    Ok(())
}

pub(super) fn our_loops() -> Result<Vec<PathBuf>> {
    let names = fs::read_dir("/sys/block")?.filter_map(|entry| Some(entry.ok()?.file_name()));
    let paths = names.map(|name| Path::new("/dev").join(name));
    Ok(paths.filter(|path| backing(path).is_some_and(|below| is_ours(&below))).collect())
}

/// The file or device under a loop device. None if there is none, or it is no loop device.
fn backing(path: &Path) -> Option<PathBuf> {
    let file = fs::read_to_string(in_sys(path).ok()?.join("loop/backing_file")).ok()?;
    Some(file.trim_end_matches('\n').into())
}

/// An image in our memory, or a loop device over one.
fn is_ours(below: &Path) -> bool {
    below.starts_with(MEMORY) || backing(below).is_some_and(|image| image.starts_with(MEMORY))
}

fn within_patience(mut done: impl FnMut() -> Result<bool>) -> Result<bool> {
    let began = Instant::now();
    while !done()? {
        if began.elapsed() > PATIENCE {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}

/// The kernel's directory about a device.
pub(super) fn in_sys(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().with_context(|| format!("{} is no device", path.display()))?;
    Ok(Path::new("/sys/block").join(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A loop device of somebody else stays, also one whose image is beside ours or has a name like ours.
    #[test]
    fn only_images_in_our_memory_are_ours() {
        assert!(is_ours(Path::new("/run/dlio-testbed/memory/hdd.img")));
        for other in ["/run/dlio-testbed/hdd.img", "/run/dlio-testbed/memory2/hdd.img", "/srv/hdd.img", "/hdd.img", ""]
        {
            assert!(!is_ours(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn what_is_undone_is_what_was_recorded() {
        let file = Path::new("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device");
        let setting = Setting { device: Path::new("/dev/loop3"), file, value: "7:3 163000000", undo: "7:3 0" };
        let line = setting.line();
        assert_eq!(undo_of(line.trim_end()), Some(("/dev/loop3", file.to_str().unwrap(), "7:3 0")));
        // A kill in the middle of a write.
        assert_eq!(undo_of("/dev/loop3 /sys/fs"), None);
    }

    #[test]
    fn who_runs_on_a_testbed_is_known_by_the_environment() {
        let start = |mark: &str| Command::new("sleep").arg("1000").env(MARK, mark).spawn().unwrap();
        // Not that of the one testbed which may stand while this runs.
        let value = format!("/test/{}", std::process::id());
        let (mut ours, mut other) = (start(&value), start("/elsewhere"));
        let pid = |child: &std::process::Child| Pid::from_raw(child.id().try_into().unwrap());
        let marked = marked(&value).unwrap();
        for child in [&mut ours, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(marked.contains(&pid(&ours)) && !marked.contains(&pid(&other)));
    }
}
