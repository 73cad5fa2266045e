//! The owner of a tier (promise P17): the daemon uses its own rights on what it finds there, so no other user may put
//! it there. The same holds for every command that reads a tier without a mount.
//!
//! Before anything on a tier is opened, this checks the owner and the mode of its root, of `.dlio-fs`, and of all
//! directories and files in there that are the daemon's own; the objects belong to the users whose files they are, in
//! directories that no other user can reach. A shared root of the slow tier may be sticky: then no other user can
//! remove `.dlio-fs`. Directories above a tier are its administrator's responsibility.
//!
//! A command that root runs on a user's tier continues as that user ([`enter`]): the user's log and journal decide what
//! is made, linked and given away, which the user may do anyway.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use nix::unistd::geteuid;

use super::lock::PRIVATE_DIR;
use super::owner::become_user;
use super::table::{MountEntry, mounts};
use crate::error::{Context, Error, Result};
use crate::path::Show as _;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::held::HeldDir;

/// The directories in `.dlio-fs` whose subdirectories are ours, and whose files are the users'.
const OBJECTS: [&str; 2] = ["pool", "staged"];
/// The contents of these are the users'.
const KEPT: [&str; 2] = ["quarantine", "saved"];

/// What to do about a tier that was used as the other one.
pub(super) const SWAPPED: &str = "are the fast and the slow tier swapped? if not, name another directory";

const ACL: &str = "system.posix_acl_access";
const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustedTier {
    Fast,
    /// A tier that is only read gets no writes.
    Slow {
        writable: bool,
    },
}

/// For a command that reads tiers without a mount: root gives up its rights for good if the first of them is a user's.
/// Then all are checked as at a mount. Returns the user as whom the command continues.
pub fn enter(tiers: &[(TrustedTier, &HeldDir)]) -> Result<Option<u32>> {
    let owner = tiers.first().map(|(_, first)| owner_of(first)).transpose()?;
    let user = owner.filter(|owner| *owner != 0 && geteuid().is_root());
    user.map_or(Ok(()), become_user)?;
    tiers.iter().try_for_each(|(tier, root)| check(*tier, root))?;
    Ok(user)
}

/// The owner of a tier. A root with another user's `.dlio-fs` is found by the check.
fn owner_of(root: &HeldDir) -> Result<u32> {
    let stat = fs::metadata(root.by_descriptor()).at("stat", root.path().shown())?;
    if let Some(user) = foreign_maker_of(&stat) {
        return Ok(user);
    }
    let ours = absent_is_none(fs::symlink_metadata(root.at(PRIVATE_DIR))).at("stat", root.path().shown())?;
    Ok(ours.unwrap_or(stat).uid())
}

/// The user, neither root nor this one, who has mounted the FUSE file system of this file: everything on it, owners
/// included, is under that user's control.
fn foreign_maker_of(stat: &Metadata) -> Option<u32> {
    maker_of(stat.dev(), &mounts().ok()?).filter(|user| ![0, geteuid().as_raw()].contains(user))
}

fn maker_of(dev: u64, mounts: &[MountEntry]) -> Option<u32> {
    let device = format!("{}:{}", major(dev), minor(dev));
    mounts.iter().filter(|mount| mount.device == device).find_map(|mount| mount.user)
}

/// Refuses a tier that another user may change beneath the daemon, with the command that fixes it.
pub fn check(tier: TrustedTier, root: &HeldDir) -> Result<()> {
    if !check_top(tier, root)? {
        return Ok(());
    }
    refuse_swapped(tier, root)?;
    let trusted = Trusted::on(root);
    let (ours, shown) = (root.at(PRIVATE_DIR), root.path().join(PRIVATE_DIR));
    each(&ours, &shown, |name, is_dir| {
        let (path, shown) = (ours.join(name), shown.join(name));
        trusted.node(&path, &shown)?;
        let is_one_of = |names: &[&str]| names.iter().any(|one| *one == name);
        match is_dir && !is_one_of(&KEPT) {
            true => trusted.inside(&path, &shown, is_one_of(&OBJECTS)),
            false => Ok(()),
        }
    })
}

/// Whether a directory was used before as a fast tier, or as a slow one, by the names in its `.dlio-fs`. `None`: not at
/// all, or a first start was cut off.
pub(super) fn was_fast(root: &Path) -> Option<bool> {
    let has = |name: &str| root.join(PRIVATE_DIR).join(name).symlink_metadata().is_ok();
    if has("super") || has("log") { Some(true) } else { has("id").then_some(false) }
}

/// Refuses a directory that was used as the other tier: a slow tree would get a log as a fast tier, and a fast tier may
/// have the only copy of a file.
fn refuse_swapped(tier: TrustedTier, root: &HeldDir) -> Result<()> {
    let what = match (tier, was_fast(&root.by_descriptor())) {
        (TrustedTier::Fast, Some(false)) => "a slow tier of dlio-fs, and not a fast one",
        (TrustedTier::Slow { .. }, Some(true)) => "a fast tier of dlio-fs, and not a slow one",
        _ => return Ok(()),
    };
    Err(Error::refused(format!("{} is {what}", root.path().shown()), SWAPPED))
}

/// Checks its root and `.dlio-fs` only, not the contents. Returns whether there are contents to check.
pub(super) fn check_top(tier: TrustedTier, root: &HeldDir) -> Result<bool> {
    if tier == (TrustedTier::Slow { writable: false }) {
        return Ok(false);
    }
    let (path, shown) = (root.by_descriptor(), root.path());
    let stat = fs::metadata(&path).at("stat", shown.shown())?;
    if let Some(user) = foreign_maker_of(&stat) {
        let what = format!("{} is on a file system that is mounted by user {user}, who could change", shown.shown());
        return Err(Error::refused(format!("{what} the daemon's files there"), "mount that one as the same user"));
    }
    let trusted = Trusted::on(root);
    trusted.admit(&stat, &path, shown, tier != TrustedTier::Fast)?;
    trusted.node(&root.at(PRIVATE_DIR), &shown.join(PRIVATE_DIR))
}

/// The owners allowed for what the daemon uses: root, this user, and, on a tier that gives all files one owner (a
/// squashed NFS, for instance), that owner, found by creating a file there.
struct Trusted {
    root: PathBuf,
    given: OnceCell<u32>,
}

impl Trusted {
    fn on(root: &HeldDir) -> Self {
        Trusted { root: root.by_descriptor(), given: OnceCell::new() }
    }

    fn is_owner(&self, uid: u32) -> bool {
        let ours = geteuid().as_raw();
        let made =
            || tempfile::tempfile_in(&self.root).and_then(|file| file.metadata()).map_or(ours, |made| made.uid());
        uid == 0 || uid == ours || uid == *self.given.get_or_init(made)
    }

    /// Checks the contents of one of our directories.
    fn inside(&self, dir: &Path, shown: &Path, only_dirs: bool) -> Result<()> {
        each(dir, shown, |name, is_dir| {
            if only_dirs && !is_dir {
                return Ok(());
            }
            self.node(&dir.join(name), &shown.join(name)).map(drop)
        })
    }

    /// Checks a node of our own; returns whether it exists.
    fn node(&self, path: &Path, shown: &Path) -> Result<bool> {
        let stat = match fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            stat => stat.at("stat", shown.shown())?,
        };
        if stat.is_symlink() {
            let remedy = "the daemon never makes one: find out where it comes from, then remove it";
            return Err(Error::refused(format!("{} is a symbolic link", shown.shown()), remedy));
        }
        self.admit(&stat, path, shown, false).map(|()| true)
    }

    fn admit(&self, stat: &Metadata, path: &Path, shown: &Path, may_be_shared: bool) -> Result<()> {
        let (shown, mode) = (shown.shown(), stat.permissions().mode());
        if !self.is_owner(stat.uid()) {
            return Err(Error::refused(
                format!("{shown} belongs to user {}, who could change the daemon's files there", stat.uid()),
                format!("if you trust everything in it: chown {} {shown}", geteuid()),
            ));
        }
        if !is_writable_by_others(stat, path) || (may_be_shared && mode & STICKY != 0) {
            return Ok(());
        }
        let sticky = format!(", or chmod +t {shown} if others should create files in it");
        Err(Error::refused(
            format!("{shown} may be written by users other than {} (mode {:04o})", stat.uid(), mode & 0o7777),
            format!("chmod go-w {shown}{}", if may_be_shared { &sticky } else { "" }),
        ))
    }
}

/// A group with the same number as the user counts as the user's own, as most systems set users up, unless an ACL lets
/// others write: then the mode's group bits show its mask.
fn is_writable_by_others(stat: &Metadata, path: &Path) -> bool {
    let mode = stat.permissions().mode();
    let own_group = || stat.gid() == stat.uid() && !matches!(xattr::get(path, ACL), Ok(Some(_)));
    mode & OTHERS_WRITE != 0 || (mode & GROUP_WRITES != 0 && !own_group())
}

/// Visits each entry of a directory: its name, and whether it is a directory.
fn each(dir: &Path, shown: &Path, mut visit: impl FnMut(&OsStr, bool) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(dir).at("list", shown.shown())? {
        let entry = entry.at("list", shown.shown())?;
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        visit(&entry.file_name(), is_dir)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    const SLOW: TrustedTier = TrustedTier::Slow { writable: true };

    fn tier() -> (TempDir, PathBuf) {
        made_of(&["log", "pool/00", "staged/new", "quarantine"], &["super", "log/1.log", "pool/00/0", "quarantine/1"])
    }

    fn slow_tier() -> (TempDir, PathBuf) {
        made_of(&["tmp/one", "mounts"], &["id"])
    }

    fn made_of(dirs: &[&str], files: &[&str]) -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("tier");
        let ours = root.join(PRIVATE_DIR);
        dirs.iter().for_each(|below| fs::create_dir_all(ours.join(below)).unwrap());
        files.iter().for_each(|below| fs::write(ours.join(below), "").unwrap());
        [&root, &ours].into_iter().for_each(|place| open(place, 0o700));
        dirs.iter().chain(files).for_each(|below| open(&ours.join(below), 0o700));
        (dir, root)
    }

    fn open(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn said(tier: TrustedTier, root: &Path) -> String {
        let held = HeldDir::open(root).unwrap();
        check(tier, &held).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_others_may_write_is_refused_wherever_it_is() {
        let fast = ["", "super", "log/1.log", "pool/00"];
        let slow = ["", "id", "tmp/one", "mounts"];
        for (tier, (_dir, root), inside) in [(TrustedTier::Fast, tier(), fast), (SLOW, slow_tier(), slow)] {
            assert_eq!(said(tier, &root), "");
            for path in inside.map(|place| root.join(PRIVATE_DIR).join(place)).iter().chain([&root]) {
                let path = path.components().collect::<PathBuf>();
                let before = fs::metadata(&path).unwrap().permissions();
                open(&path, 0o722);
                let said = said(tier, &root);
                assert!(said.contains(&format!("chmod go-w {}", path.display())), "{said}");
                fs::set_permissions(&path, before).unwrap();
            }
            assert_eq!(said(tier, &root), "");
        }
    }

    #[test]
    fn a_tier_that_was_used_as_the_other_one_is_refused() {
        let ((_fast_dir, fast), (_slow_dir, slow)) = (tier(), slow_tier());
        assert_eq!((said(TrustedTier::Fast, &fast), said(SLOW, &slow)), (String::new(), String::new()));
        for (tier, root) in [(TrustedTier::Fast, &slow), (SLOW, &fast)] {
            assert!(said(tier, root).contains("are the fast and the slow tier swapped?"), "{tier:?}");
        }
    }

    #[test]
    fn a_shared_root_of_the_slow_tier_may_be_sticky_and_of_the_fast_tier_not() {
        let ((_fast_dir, fast), (_dir, root)) = (tier(), slow_tier());
        [&fast, &root].into_iter().for_each(|root| open(root, 0o1777));
        assert_eq!(said(SLOW, &root), "");
        assert!(said(TrustedTier::Fast, &fast).contains("chmod go-w"));
        open(&root.join(PRIVATE_DIR), 0o1777);
        assert!(said(SLOW, &root).contains(".dlio-fs may be written"));
        assert_eq!(
            said(TrustedTier::Slow { writable: false }, &root),
            "",
            "nobody writes through a mount that only reads"
        );
    }

    #[test]
    fn what_a_user_has_mounted_is_that_user_s_whatever_it_says() {
        let mount = |device: &str, user| MountEntry {
            device: device.to_owned(),
            root: PathBuf::from("/"),
            at: PathBuf::from("/home/user/mnt"),
            fs_type: "fuse".to_owned(),
            source: PathBuf::from("program"),
            user,
            options: String::new(),
        };
        let mounts = [mount("8:1", None), mount("0:51", Some(1001))];
        assert_eq!(maker_of(nix::sys::stat::makedev(0, 51), &mounts), Some(1001));
        assert_eq!(maker_of(nix::sys::stat::makedev(8, 1), &mounts), None);
    }

    #[test]
    fn the_users_files_are_theirs_and_links_nobody_s() {
        let (_dir, root) = tier();
        for users in ["pool/00/0", "quarantine/1"] {
            open(&root.join(PRIVATE_DIR).join(users), 0o666);
        }
        assert_eq!(said(TrustedTier::Fast, &root), "");
        symlink("pool", root.join(PRIVATE_DIR).join("checkpoints")).unwrap();
        assert!(said(TrustedTier::Fast, &root).contains("checkpoints is a symbolic link"));
    }
}
