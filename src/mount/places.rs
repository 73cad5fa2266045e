//! The three directories of a mount, checked before anything is created.
//!
//! Read-only: whoever is refused here has changed nothing. What is on the tiers is the engine's to judge.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, eaccess, geteuid};

use super::table::{self, Location, MountEntry};
use crate::error::{Error, Result};

/// How long a directory may take to answer before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(15);

/// Where a mount appears and what it stands on. Absolute paths without symbolic links.
#[derive(Clone, Debug)]
pub struct Places {
    pub mountpoint: PathBuf,
    pub fast: PathBuf,
    pub slow: PathBuf,
    /// A mount of ours whose daemon is gone is on the mount point; it is taken away just before ours is made.
    pub replaces_dead: bool,
}

impl Places {
    /// Refuses what cannot work: directories that are missing or not usable, and ones that are the same or inside of
    /// one another, also by way of bind mounts.
    pub fn check(mountpoint: &Path, fast: &Path, slow: &Path) -> Result<Places> {
        let fast = usable_directory("--fast", fast, AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK)?;
        let slow = usable_directory("--slow", slow, AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK)?;
        let mounts = table::mounts()?;
        let (mountpoint, replaces_dead) = free_mountpoint(mountpoint, &mounts)?;
        let places = Places { mountpoint, fast, slow, replaces_dead };
        places.refuse_overlap(&mounts)?;
        Ok(places)
    }

    fn refuse_overlap(&self, mounts: &[MountEntry]) -> Result<()> {
        let fast = Spot::of("--fast", &self.fast, mounts);
        let slow = Spot::of("--slow", &self.slow, mounts);
        let mountpoint = Spot::of_mountpoint(&self.mountpoint, mounts);
        if fast.is_same(&slow) {
            let what = format!("{fast} and {slow} are the same directory");
            return Err(Error::refused(what, "choose a directory on fast storage for --fast"));
        }
        if mountpoint.is_same(&slow) {
            let what = format!("{mountpoint} is the slow tier itself, which is not supported yet");
            return Err(Error::refused(what, "mount at another, empty directory"));
        }
        for (inner, outer) in [
            (&fast, &slow),
            (&slow, &fast),
            (&mountpoint, &fast),
            (&mountpoint, &slow),
            (&fast, &mountpoint),
            (&slow, &mountpoint),
        ] {
            if inner.is_within(outer) {
                let what = format!("{inner} is inside of {outer}");
                return Err(Error::refused(what, "choose three directories of which none contains another"));
            }
        }
        Ok(())
    }
}

/// One of the three, in every way two directories can be compared.
struct Spot<'a> {
    option: &'static str,
    path: &'a Path,
    location: Option<Location>,
    /// (device, inode) of the directory and of all above it.
    ancestors: Vec<(u64, u64)>,
}

impl std::fmt::Display for Spot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.option, self.path.display())
    }
}

impl<'a> Spot<'a> {
    fn of(option: &'static str, path: &'a Path, mounts: &[MountEntry]) -> Self {
        Spot { option, path, location: Location::of(path, mounts), ancestors: identities(path) }
    }

    /// The mount point counts by its parent: a dead mount may be on top of it, and what we mount hides it anyway.
    fn of_mountpoint(path: &'a Path, mounts: &[MountEntry]) -> Self {
        let bare: Vec<MountEntry> = mounts.iter().filter(|m| !(m.at == path && m.is_ours())).cloned().collect();
        Spot { option: "mount point", path, location: Location::of(path, &bare), ancestors: identities(path) }
    }

    fn is_same(&self, other: &Spot<'_>) -> bool {
        self.is_within(other) && other.is_within(self)
    }

    fn is_within(&self, other: &Spot<'_>) -> bool {
        let by_location = match (&self.location, &other.location) {
            (Some(inner), Some(outer)) => inner.is_within(outer),
            _ => false,
        };
        let by_identity = other.ancestors.first().is_some_and(|outer| self.ancestors.contains(outer));
        by_location || by_identity || self.path.starts_with(other.path)
    }
}

/// From the path upwards; empty if the path itself cannot be looked at (a dead mount).
fn identities(path: &Path) -> Vec<(u64, u64)> {
    let identity = |p: &Path| p.metadata().ok().map(|m| (m.dev(), m.ino()));
    match identity(path) {
        Some(_) => path.ancestors().filter_map(identity).collect(),
        None => Vec::new(),
    }
}

/// Checks an existing directory and returns its canonical path. `option` is what the user calls it.
fn usable_directory(option: &'static str, path: &Path, access: AccessFlags) -> Result<PathBuf> {
    let asked = path.to_path_buf();
    let answer = within(PATIENCE, move || {
        let canonical = asked.canonicalize()?;
        if !canonical.metadata()?.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        eaccess(&canonical, access)?;
        Ok(canonical)
    });
    match answer {
        Some(Ok(canonical)) => Ok(canonical),
        Some(Err(e)) => Err(unusable(option, path, &e)),
        None => {
            let what = format!("{option} {} does not answer within {} s", path.display(), PATIENCE.as_secs());
            Err(Error::refused(what, "see whether its server or device is up"))
        }
    }
}

fn unusable(option: &str, path: &Path, error: &io::Error) -> Error {
    let path = path.display();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => Error::refused(
            format!("{option} {path} does not exist"),
            "create the directory, or mount the file system it is on",
        ),
        Some(Errno::ENOTDIR) => Error::refused(format!("{option} {path} is not a directory"), "name a directory"),
        Some(Errno::EACCES | Errno::EPERM) => Error::refused(
            format!("{option} {path} cannot be read, written and searched by user {}", geteuid()),
            "change its mode or owner, or run as a user who may",
        ),
        Some(Errno::EROFS) => Error::refused(
            format!("{option} {path} is on a file system that is mounted read-only"),
            "remount it for writing",
        ),
        Some(Errno::ENOTCONN) => Error::refused(
            format!("{option} {path} is on a mount whose daemon is gone"),
            "unmount it and mount it anew",
        ),
        _ => Error::refused(format!("{option} {path} cannot be used: {error}"), "see the kernel log for its device"),
    }
}

/// The canonical mount point, and whether a dead mount of ours is on it.
fn free_mountpoint(path: &Path, mounts: &[MountEntry]) -> Result<(PathBuf, bool)> {
    let canonical = canonical_mountpoint(path)?;
    let ours = table::mounted_at(mounts, &canonical).is_some_and(MountEntry::is_ours);
    let asked = canonical.clone();
    let look = move || if ours { ask(&asked).map(|()| true) } else { asked.metadata().map(|m| m.is_dir()) };
    let is_dir = match within(PATIENCE, look) {
        Some(answer) => answer,
        None => {
            let what = format!("mount point {} does not answer within {} s", path.display(), PATIENCE.as_secs());
            return Err(Error::refused(what, "unmount what is on it"));
        }
    };
    match is_dir {
        Ok(_) if ours => {
            let what = format!("mount point {} has a dlio-fs mount already", path.display());
            Err(Error::refused(what, format!("use it, or leave it first: dlio-fs umount {}", path.display())))
        }
        Ok(true) => Ok((canonical, false)),
        Ok(false) => Err(unusable("mount point", path, &Errno::ENOTDIR.into())),
        Err(e) if ours && e.raw_os_error() == Some(Errno::ENOTCONN as i32) => Ok((canonical, true)),
        Err(e) => Err(unusable("mount point", path, &e)),
    }
}

/// Asks the daemon of a mount: ENOTCONN if it is gone. Attributes will not do: the kernel may know them by itself, long
/// after the daemon has died.
pub fn ask(mountpoint: &Path) -> io::Result<()> {
    Ok(statvfs(mountpoint).map(drop)?)
}

/// Like `canonicalize`, but the last component may be a dead mount, which cannot be looked at.
fn canonical_mountpoint(path: &Path) -> Result<PathBuf> {
    if let Ok(canonical) = path.canonicalize() {
        return Ok(canonical);
    }
    let wrong = |e: io::Error| unusable("mount point", path, &e);
    let absolute = std::path::absolute(path).map_err(wrong)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(wrong)?.join(name)),
        _ => Err(unusable("mount point", path, &Errno::ENOENT.into())),
    }
}

/// Runs `f` on a thread of its own and gives up waiting after `limit`: a call into a hung file system cannot be
/// interrupted, only left behind.
pub fn within<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, answer) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        // Nobody may be waiting any more.
        drop(done.send(f()));
    });
    answer.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(mountpoint: &Path, fast: &Path, slow: &Path) -> String {
        Places::check(mountpoint, fast, slow).expect_err("must be refused").to_string()
    }

    #[test]
    fn three_separate_directories_are_taken() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [mnt, fast, slow] = ["mnt", "fast", "slow"].map(|name| dir.path().join(name));
        for path in [&mnt, &fast, &slow] {
            std::fs::create_dir(path).expect("mkdir");
        }
        let places = Places::check(&mnt, &fast, &slow).expect("fine");
        assert!(!places.replaces_dead);
    }

    #[test]
    fn overlap_is_refused_in_every_direction() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [a, b, inner] = ["a", "b", "a/inner"].map(|name| dir.path().join(name));
        for path in [&a, &b, &inner] {
            std::fs::create_dir(path).expect("mkdir");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&a, &link).expect("symlink");
        for (mountpoint, fast, slow) in [
            (&b, &inner, &a),
            (&b, &a, &inner),
            (&inner, &a, &b),
            (&inner, &b, &a),
            (&a, &inner, &b),
            (&a, &b, &inner),
            (&b, &inner, &link),
        ] {
            assert!(refusal(mountpoint, fast, slow).contains("is inside of"), "{mountpoint:?} {fast:?} {slow:?}");
        }
        assert!(refusal(&b, &a, &link).contains("are the same directory"));
        assert!(refusal(&a, &b, &link).contains("is the slow tier itself"));
    }

    #[test]
    fn what_hangs_is_given_up() {
        let (hold, held) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || held.recv().is_ok()), None);
        drop(hold);
        assert_eq!(within(PATIENCE, || 7), Some(7));
    }
}
