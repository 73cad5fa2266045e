//! The three directories of a mount, checked before anything is created.
//!
//! Read-only: a refused mount has changed nothing. The engine checks the contents of the tiers.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, eaccess, geteuid};

use super::answer::{ask, within};
use super::daemon::silent;
use super::lock::PRIVATE_DIR;
use super::table::{self, Location, MountEntry};
use super::trust::{SWAPPED, was_fast};
use super::underlay::{self, is_writable};
use crate::error::{Error, Result};
use crate::path::Show as _;

/// How long a directory may take to answer before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(15);
/// The directory of statistics in the root of every mount.
const STATS_DIR: &str = ".dlio";

/// Where a mount appears and what it is based on. Absolute paths without symbolic links.
#[derive(Clone, Debug)]
pub struct Places {
    pub mountpoint: PathBuf,
    pub fast: PathBuf,
    pub slow: PathBuf,
    /// A mount of ours whose daemon is gone is on the mount point; it is removed just before ours is made.
    pub replaces_dead: bool,
    /// False if nothing can be changed on the slow tier: it is on a read-only file system and never was mounted for
    /// writing, or the mount is to be read-only and this user may not write there. Then the mount is read-only.
    pub slow_is_writable: bool,
    /// What the user should know of these places, each a sentence with its remedy.
    pub notes: Vec<String>,
}

impl Places {
    /// Refuses what cannot work: directories that are missing or unusable, and ones that are the same or inside one
    /// another, also through bind mounts. The mount point may be the slow tier itself. With `read_only` the slow tier
    /// need not be writable.
    pub fn check(mountpoint: &Path, fast: &Path, slow: &Path, read_only: bool) -> Result<Places> {
        let mounts = table::mounts()?;
        let fast = usable_directory("--fast", fast, AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK)?;
        let usable_slow = || usable_directory("--slow", slow, AccessFlags::R_OK | AccessFlags::X_OK);
        // A mount over the slow tier is checked first: dead or not answering, it hides the slow tier.
        let over_itself =
            canonical_mountpoint(slow).is_ok_and(|slow| Some(slow) == canonical_mountpoint(mountpoint).ok());
        let apart = if over_itself { None } else { Some(usable_slow()?) };
        let (mountpoint, replaces_dead) = free_mountpoint(mountpoint, &mounts)?;
        let slow = match apart {
            Some(slow) => slow,
            None if replaces_dead => mountpoint.clone(),
            None => usable_slow()?,
        };
        let mut places = Places { mountpoint, fast, slow, replaces_dead, slow_is_writable: true, notes: Vec::new() };
        places.refuse_tiers_on_ours(&mounts)?;
        places.refuse_overlap(&mounts)?;
        places.refuse_swapped()?;
        places.check_slow_tree(read_only)?;
        Ok(places)
    }

    /// Refuses a file of the daemon's own, given by `option`, inside the mount: to write to it, the daemon would wait
    /// for itself, and once mounted it would no longer find the file under that name.
    pub fn refuse_inside(&self, option: &'static str, file: &Path) -> Result<()> {
        let asked = file.to_path_buf();
        let Some(dir) = within(PATIENCE, move || directory_of(&asked)) else { return Err(hung(option, file)) };
        let mounts = self.bare(&table::mounts()?);
        let mountpoint = Spot::of("mount point", &self.mountpoint, &mounts);
        if Spot::of(option, &dir, &mounts).is_within(&mountpoint) {
            let what = format!("{option} {} is inside {mountpoint}", file.shown());
            return Err(Error::refused(what, "name a file outside it, best on local storage"));
        }
        Ok(())
    }

    /// Whether the slow tier lies beneath the dead mount that is to be replaced.
    pub(super) fn slow_is_hidden(&self) -> bool {
        self.replaces_dead && self.slow == self.mountpoint
    }

    /// A mount of ours cannot be a tier of another: both would order and delay the same changes.
    fn refuse_tiers_on_ours(&self, mounts: &[MountEntry]) -> Result<()> {
        for (option, path) in [("--fast", &self.fast), ("--slow", &self.slow)] {
            let on_ours = table::holder_of(path, mounts).is_some_and(MountEntry::is_ours);
            if on_ours && !(option == "--slow" && self.slow_is_hidden()) {
                let what = format!("{option} {} is on a dlio-fs mount", path.shown());
                return Err(Error::refused(what, "name a directory of the underlying file system"));
            }
        }
        Ok(())
    }

    /// The mounts without ours: a new mount hides what is on the mount point, and a dead one is removed.
    fn bare(&self, mounts: &[MountEntry]) -> Vec<MountEntry> {
        mounts.iter().filter(|m| !(m.at == self.mountpoint && m.is_ours())).cloned().collect()
    }

    fn refuse_overlap(&self, mounts: &[MountEntry]) -> Result<()> {
        let bare = self.bare(mounts);
        let fast = Spot::of("--fast", &self.fast, &bare);
        let slow = Spot::of("--slow", &self.slow, &bare);
        let mountpoint = Spot::of("mount point", &self.mountpoint, &bare);
        if fast.is_same(&slow) {
            let what = format!("{fast} and {slow} are the same directory");
            return Err(Error::refused(what, "choose a directory on fast storage for --fast"));
        }
        let over_itself = mountpoint.is_same(&slow);
        for (inner, outer) in [
            (&fast, &slow),
            (&slow, &fast),
            (&mountpoint, &fast),
            (&mountpoint, &slow),
            (&fast, &mountpoint),
            (&slow, &mountpoint),
        ] {
            let both = [inner.option, outer.option];
            if over_itself && both.contains(&"--slow") && both.contains(&"mount point") {
                continue;
            }
            if inner.is_within(outer) {
                let what = format!("{inner} is inside {outer}");
                return Err(Error::refused(what, "choose three directories of which none contains another"));
            }
        }
        Ok(())
    }

    /// A mount with swapped tiers would work, but report what only the fast tier has as safe.
    fn refuse_swapped(&self) -> Result<()> {
        let [fast, slow] = [&self.fast, &self.slow].map(|path| {
            let path = path.clone();
            within(PATIENCE, move || was_fast(&path)).flatten()
        });
        let what = match (fast, slow) {
            (Some(false), Some(true)) => {
                format!("--slow {} is a fast tier, and --fast {} a slow one", self.slow.shown(), self.fast.shown())
            }
            (_, Some(true)) => format!("--slow {} is a fast tier of dlio-fs, and not a slow one", self.slow.shown()),
            (Some(false), _) => format!("--fast {} is a slow tier of dlio-fs, and not a fast one", self.fast.shown()),
            _ => return Ok(()),
        };
        Err(Error::refused(what, SWAPPED))
    }

    /// Checks the slow tree's contents where that is possible.
    fn check_slow_tree(&mut self, read_only: bool) -> Result<()> {
        let (path, hidden) = (self.slow.clone(), self.slow_is_hidden());
        let looked = within(PATIENCE, move || {
            let tree = underlay::open(&path, hidden)?;
            let root = tree.by_descriptor();
            let has_stats = root.join(STATS_DIR).symlink_metadata().is_ok();
            let was_written = root.join(PRIVATE_DIR).join("id").exists();
            Ok::<_, io::Error>((is_writable(&tree), was_written, has_foreign_private(&root), has_stats))
        });
        let slow = self.slow.shown();
        let (writable, was_written, foreign, has_stats) = match looked {
            // Without the right to look beneath, the dead mount is removed first; `serve` checks then.
            Some(Err(e)) if hidden && e.raw_os_error() == Some(Errno::EPERM as i32) => return Ok(()),
            Some(Err(e)) => return Err(unusable("--slow", &self.slow, &e)),
            None => return Err(hung("--slow", &self.slow)),
            Some(Ok(looked)) => looked,
        };
        self.slow_is_writable = match writable {
            Ok(true) => true,
            // Do not accept this silently: a file system may have become read-only by itself after a disk error.
            Ok(false) if was_written && !read_only => {
                return Err(unusable("--slow", &self.slow, &Errno::EROFS.into()));
            }
            Ok(false) => {
                self.notes.push(format!("--slow {slow} is on a read-only file system: the mount is read-only"));
                false
            }
            Err(_) if read_only => false,
            Err(e) => return Err(unusable("--slow", &self.slow, &e)),
        };
        if foreign {
            let what = format!("--slow {slow} has a .dlio-fs that dlio-fs did not make, and dlio-fs needs the name");
            return Err(Error::refused(what, "find out whose it is; until then, name another directory"));
        }
        let nested = super::nested::nested_trees(&self.slow);
        self.notes.extend(nested.map(|(what, remedy)| format!("--slow {what}; {remedy}")));
        if has_stats {
            let note = format!("--slow {slow} has a .dlio of its own, which the mount hides; rename it to see it");
            self.notes.push(note);
        }
        Ok(())
    }
}

/// Whether the private directory's name is taken by something that is not ours: not a directory, or one that has
/// content but not our `id`, which is the first name that we keep there.
fn has_foreign_private(root: &Path) -> bool {
    let private = root.join(PRIVATE_DIR);
    match private.symlink_metadata() {
        Err(_) => false,
        Ok(found) if !found.is_dir() => true,
        Ok(_) => {
            // Other mounts may be starting: each leaves an `id.<uuid>` for a while, and makes other names only after
            // `id`.
            let is_foreign = |name: &OsStr| name != "id" && !name.as_bytes().starts_with(b"id.");
            let listed = std::fs::read_dir(&private).into_iter().flatten().flatten();
            let has_foreign = listed.map(|entry| entry.file_name()).any(|name| is_foreign(&name));
            has_foreign && !private.join("id").exists()
        }
    }
}

/// The directory of a file that may not exist yet, with symbolic links followed, including the file's own; if that
/// leads nowhere, the path as given.
fn directory_of(file: &Path) -> PathBuf {
    let above = |path: &Path| path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    if let Ok(canonical) = file.canonicalize() {
        return above(&canonical);
    }
    // Creating a file under the name of a link creates it where the link leads.
    let dir = above(&file.read_link().map_or_else(|_| file.to_path_buf(), |link| above(file).join(link)));
    dir.canonicalize().unwrap_or(dir)
}

/// A directory, in every form in which two directories can be compared.
struct Spot<'a> {
    option: &'static str,
    path: &'a Path,
    location: Option<Location>,
    /// (device, inode) of the directory and of all above it.
    ancestors: Vec<(u64, u64)>,
}

impl std::fmt::Display for Spot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.option, self.path.shown())
    }
}

impl<'a> Spot<'a> {
    fn of(option: &'static str, path: &'a Path, mounts: &[MountEntry]) -> Self {
        Spot { option, path, location: Location::of(path, mounts), ancestors: identities(path) }
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

/// From the path upwards; empty if the path itself cannot be accessed (a dead mount).
fn identities(path: &Path) -> Vec<(u64, u64)> {
    let identity = |p: &Path| p.metadata().ok().map(|m| (m.dev(), m.ino()));
    match identity(path) {
        Some(_) => path.ancestors().filter_map(identity).collect(),
        None => Vec::new(),
    }
}

/// Checks an existing directory and returns its canonical path. `option` is the user's name for it.
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
        None => Err(hung(option, path)),
    }
}

fn hung(option: &str, path: &Path) -> Error {
    let what = format!("{option} {} does not answer within {} s", path.shown(), PATIENCE.as_secs());
    Error::refused(what, "check whether its server or device is up")
}

/// The remedy for a missing path. No shell expands a configuration file, or what follows `--fast=`: `~` and `$HOME` are
/// ordinary names there.
pub(super) fn if_missing<'a>(path: &Path, otherwise: &'a str) -> &'a str {
    let is_unexpanded = |name: &OsStr| name == "~" || name.as_bytes().contains(&b'$');
    if path.iter().any(is_unexpanded) {
        "nothing expands ~ or a variable here: write the whole path"
    } else {
        otherwise
    }
}

pub(super) fn unusable(option: &str, name: &Path, error: &io::Error) -> Error {
    let path = name.shown();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => {
            let otherwise = "create the directory, or mount the file system it is on";
            Error::refused(format!("{option} {path} does not exist"), if_missing(name, otherwise))
        }
        Some(Errno::ENOTDIR) => Error::refused(format!("{option} {path} is not a directory"), "name a directory"),
        Some(Errno::EACCES | Errno::EPERM) if option == "--slow" => Error::refused(
            format!("{option} {path} cannot be read, written and searched by user {}", geteuid()),
            "change its mode or owner, run as a user who may, or mount it read-only if it can be read (-o ro)",
        ),
        Some(Errno::EACCES | Errno::EPERM) => Error::refused(
            format!("{option} {path} cannot be read, written and searched by user {}", geteuid()),
            "change its mode or owner, or run as a user who may",
        ),
        Some(Errno::EROFS) => Error::refused(
            format!("{option} {path} is on a file system that is mounted read-only"),
            if option == "--slow" {
                "remount it for writing, or mount it with -o ro"
            } else {
                "remount it for writing"
            },
        ),
        Some(Errno::ENOTCONN) => Error::refused(
            format!("{option} {path} is on a mount whose daemon is gone"),
            "unmount it and mount it again",
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
        None if ours => return Err(silent(&canonical)),
        None => {
            let what = format!("mount point {} does not answer within {} s", path.shown(), PATIENCE.as_secs());
            return Err(Error::refused(what, "unmount what is on it"));
        }
    };
    match is_dir {
        Ok(_) if ours => {
            let what = format!("mount point {} already has a dlio-fs mount", path.shown());
            Err(Error::refused(what, format!("use it, or unmount it first: dlio-fs umount {}", path.shown())))
        }
        Err(e) if ours && e.raw_os_error() == Some(Errno::EACCES as i32) => {
            let what = format!("mount point {} already has a dlio-fs mount of another user", path.shown());
            Err(Error::refused(what, "mount at another directory, or ask that user to unmount it"))
        }
        Ok(true) => Ok((canonical, false)),
        Ok(false) => Err(unusable("mount point", path, &Errno::ENOTDIR.into())),
        Err(e) if ours && e.raw_os_error() == Some(Errno::ENOTCONN as i32) => Ok((canonical, true)),
        Err(e) => Err(unusable("mount point", path, &e)),
    }
}

/// Like `canonicalize`, but the last component may be a dead mount, which cannot be accessed.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(mountpoint: &Path, fast: &Path, slow: &Path) -> String {
        Places::check(mountpoint, fast, slow, false).expect_err("must be refused").to_string()
    }

    #[test]
    fn three_separate_directories_are_taken() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [mnt, fast, slow] = ["mnt", "fast", "slow"].map(|name| dir.path().join(name));
        for path in [&mnt, &fast, &slow] {
            std::fs::create_dir(path).expect("mkdir");
        }
        let places = Places::check(&mnt, &fast, &slow, false).expect("fine");
        assert!(!places.replaces_dead && places.slow_is_writable);
        assert!(places.notes.is_empty(), "{places:?}");
    }

    #[test]
    fn the_slow_tier_itself_may_be_the_mount_point() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [fast, slow] = ["fast", "slow"].map(|name| dir.path().join(name));
        for path in [&fast, &slow] {
            std::fs::create_dir(path).expect("mkdir");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&slow, &link).expect("symlink");
        for (mountpoint, slow) in [(&slow, &slow), (&link, &slow), (&slow, &link)] {
            Places::check(mountpoint, &fast, slow, false).expect("fine");
        }
    }

    #[test]
    fn names_of_ours_in_the_slow_tree_are_spoken_of() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [mnt, fast, slow] = ["mnt", "fast", "slow"].map(|name| dir.path().join(name));
        for path in [&mnt, &fast, &slow] {
            std::fs::create_dir(path).expect("mkdir");
        }
        std::fs::write(slow.join(".dlio"), "a user's").expect("write");
        let places = Places::check(&mnt, &fast, &slow, false).expect("only hidden");
        assert!(places.notes.iter().any(|note| note.contains("has a .dlio of its own")), "{places:?}");
        let private = slow.join(PRIVATE_DIR);
        std::fs::write(&private, "a user's").expect("write");
        assert!(refusal(&mnt, &fast, &slow).contains("has a .dlio-fs that dlio-fs did not make"));
        std::fs::remove_file(&private).expect("remove");
        std::fs::create_dir(&private).expect("mkdir");
        Places::check(&mnt, &fast, &slow, false).expect("a start that was cut off leaves it empty");
        std::fs::write(private.join("id.0c5d"), "of a mount that begins").expect("write");
        assert!(!has_foreign_private(&slow), "another mount begins at this moment");
        std::fs::write(private.join("notes"), "a user's").expect("write");
        assert!(refusal(&mnt, &fast, &slow).contains("has a .dlio-fs that dlio-fs did not make"));
    }

    /// Each mistook what the other published for changes of another program, and no user was told.
    #[test]
    fn a_slow_tree_in_another_one_is_spoken_of() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [mnt, fast, slow] = ["mnt", "fast", "run/a"].map(|name| dir.path().join(name));
        for path in [&mnt, &fast, &slow] {
            std::fs::create_dir_all(path).expect("mkdir");
        }
        let notes = || Places::check(&mnt, &fast, &slow, false).expect("fine").notes.join("\n");
        assert_eq!(notes(), "");
        let ours = dir.path().join("run").join(PRIVATE_DIR);
        std::fs::create_dir(&ours).expect("mkdir");
        std::fs::write(ours.join("id"), "an id").expect("write");
        assert!(notes().contains("/run, which is a slow tier of dlio-fs, too: the two keep no order"), "{}", notes());
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
            assert!(refusal(mountpoint, fast, slow).contains("is inside"), "{mountpoint:?} {fast:?} {slow:?}");
        }
        assert!(refusal(&b, &a, &link).contains("are the same directory"));
    }

    #[test]
    fn a_file_inside_of_the_mount_is_refused_however_it_is_named() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        for name in ["mnt", "mnt/sub", "fast", "slow"] {
            std::fs::create_dir(path(name)).expect("mkdir");
        }
        std::os::unix::fs::symlink(path("mnt"), path("link")).expect("symlink");
        std::os::unix::fs::symlink("mnt/sub/log", path("log")).expect("symlink");
        let places = Places::check(&path("mnt"), &path("fast"), &path("slow"), false).expect("fine");
        for inside in ["mnt/log", "mnt/sub/log", "mnt/not/there/log", "link/log", "link/sub/log", "log"] {
            let error = places.refuse_inside("--log-file", &path(inside)).expect_err(inside).to_string();
            assert!(error.contains("is inside mount point"), "{inside}: {error}");
        }
        for outside in ["log.1", "fast/log", "slow/log", "mnt.log", "not/there/log"] {
            places.refuse_inside("--log-file", &path(outside)).expect(outside);
        }
        let over = Places::check(&path("slow"), &path("fast"), &path("slow"), false).expect("over itself");
        over.refuse_inside("--log-file", &path("slow/log")).expect_err("the mount hides it");
    }
}
