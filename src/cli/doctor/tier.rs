//! Checks one tier: whether it answers, what its file system can do, how much room it has.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use nix::sys::statfs::{self, FsType, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};
use tempfile::TempDir;

use super::finding::{DoctorFinding, Verdict};
use crate::error::{Context as _, Error};
use crate::mount::{self, HeldDir};
use crate::path::Show as _;
use crate::tiers::disk::os::{OsClock, OsDir, XFS_SUPER_MAGIC};
use crate::tiers::{Abilities, Lack};

/// A tier that takes longer for these few calls counts as hung.
const PATIENCE: Duration = Duration::from_secs(10);
/// A fast tier below this absorbs hardly anything.
const FAST_LEAST: u64 = 1 << 30;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Fast,
    Slow,
}

impl Role {
    fn about(self, what: &str) -> String {
        match self {
            Role::Fast => format!("fast: {what}"),
            Role::Slow => format!("slow: {what}"),
        }
    }
}

pub(super) fn examine(role: Role, path: &Path) -> Vec<DoctorFinding> {
    let asked = path.to_path_buf();
    // The calls may hang on a dead server; then the program ends without waiting for them.
    match mount::within(PATIENCE, move || probe(role, &asked)) {
        Some(findings) => findings,
        None => vec![DoctorFinding::fail(
            role.about("answers"),
            format!("{} did not answer within {} s", path.shown(), PATIENCE.as_secs()),
            "check whether its server or device is up",
        )],
    }
}

fn probe(role: Role, path: &Path) -> Vec<DoctorFinding> {
    if is_on_a_mount_of_ours(path) {
        let found = format!("{} is on a dlio-fs mount, which would be checked instead of the tier", path.shown());
        let remedy = "if that mount is over the slow tier itself, unmount it first (dlio-fs umount); else name another directory";
        return vec![DoctorFinding::fail(role.about("directory"), found, remedy)];
    }
    if role == Role::Slow && statvfs(path).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_RDONLY)) {
        let found = format!("{} is on a read-only file system", path.shown());
        let remedy = "a mount over it is read-only too; remount it for writing if checkpoints are to go there";
        return vec![DoctorFinding::warn(role.about("directory"), found, remedy), file_system(role, path)];
    }
    let unusable = |e: &io::Error| {
        let remedy = "name an existing directory that you may write to";
        DoctorFinding::fail(role.about("directory"), format!("{}: {e}", path.shown()), remedy)
    };
    let root = match HeldDir::open(path) {
        Ok(root) => root,
        Err(e) => return vec![unusable(&e)],
    };
    let owner = owner(role, &root);
    if owner.verdict == Verdict::Fail {
        // Whoever may change the tier could lead the trial elsewhere.
        return vec![owner, file_system(role, path), space(role, path)];
    }
    let trial = match tempfile::Builder::new().prefix(".dlio-fs-doctor-").tempdir_in(path) {
        Ok(trial) => trial,
        Err(e) => return vec![unusable(&e)],
    };
    let mut findings = vec![DoctorFinding::ok(role.about("directory"), format!("{} can be written", path.shown()))];
    findings.push(file_system(role, path));
    findings.push(owner);
    match role {
        Role::Fast => findings.push(fast_abilities(&trial)),
        Role::Slow => {
            let nested = path.canonicalize().ok().and_then(|path| mount::nested_trees(&path));
            findings.extend(nested.map(|(what, remedy)| DoctorFinding::warn(role.about("other trees"), what, remedy)));
            findings.extend(slow_abilities(&trial));
        }
    }
    findings.push(space(role, path));
    if let Err(e) = trial.close() {
        findings.push(DoctorFinding::warn(role.about("clean-up"), e.to_string(), "remove .dlio-fs-doctor-* by hand"));
    }
    findings
}

/// A mount refuses a tier that other users may change.
fn owner(role: Role, root: &HeldDir) -> DoctorFinding {
    let about = role.about("owner");
    let tier = match role {
        Role::Fast => mount::TrustedTier::Fast,
        Role::Slow => mount::TrustedTier::Slow { writable: true },
    };
    match mount::check_trust(tier, root) {
        Ok(()) => DoctorFinding::ok(about, "nobody else may change what is kept there"),
        Err(Error::Refused { what, remedy }) => DoctorFinding::fail(about, what, remedy),
        Err(e) => DoctorFinding::fail(about, e.to_string(), "check whether its server or device is up"),
    }
}

fn is_on_a_mount_of_ours(path: &Path) -> bool {
    let (Ok(mounts), Ok(path)) = (mount::mounts(), path.canonicalize()) else { return false };
    let holder = path.ancestors().find_map(|above| mount::mounted_at(&mounts, above));
    holder.is_some_and(mount::MountEntry::is_ours)
}

/// The name of a file system, and in which order it makes names durable.
fn file_system(role: Role, path: &Path) -> DoctorFinding {
    let about = role.about("file system");
    let kind = match statfs(path) {
        Ok(stat) => stat.filesystem_type(),
        Err(errno) => return DoctorFinding::fail(about, errno.desc(), "see the kernel log"),
    };
    let name = name_of(kind);
    match (role, name) {
        (Role::Fast, "tmpfs") => DoctorFinding::warn(
            about,
            "tmpfs: in memory, so its content is lost when the power fails",
            "use a file system on a device (ext4, xfs) for anything that matters",
        ),
        (_, "FUSE") => DoctorFinding::warn(
            about,
            "FUSE: order and durability are up to its daemon",
            "docs/install.md lists those that were tried as the slow tier; never use a dlio-fs mount as a tier",
        ),
        (_, "ext4" | "xfs") => {
            DoctorFinding::ok(about, format!("{name}: names become durable in order, many by one fsync"))
        }
        (Role::Fast, _) => DoctorFinding::ok(about, name),
        (Role::Slow, _) => DoctorFinding::ok(
            about,
            format!("{name}: each directory is synced before the next change is published (slower)"),
        ),
    }
}

fn name_of(kind: FsType) -> &'static str {
    // Not in the C library's headers; the numbers are from the headers of the kernel and Lustre.
    const LUSTRE: FsType = FsType(0x0bd0_0bd0);
    const CEPH: FsType = FsType(0x00c3_6400);
    const GPFS: FsType = FsType(0x4750_4653);
    const ZFS: FsType = FsType(0x2fc1_2fc1);
    const BEEGFS: FsType = FsType(0x1983_0326);
    match kind {
        statfs::EXT4_SUPER_MAGIC => "ext4",
        XFS_SUPER_MAGIC => "xfs",
        statfs::BTRFS_SUPER_MAGIC => "btrfs",
        statfs::F2FS_SUPER_MAGIC => "f2fs",
        statfs::TMPFS_MAGIC => "tmpfs",
        statfs::NFS_SUPER_MAGIC => "NFS",
        statfs::FUSE_SUPER_MAGIC => "FUSE",
        statfs::OVERLAYFS_SUPER_MAGIC => "overlayfs",
        LUSTRE => "Lustre",
        CEPH => "CephFS",
        GPFS => "GPFS",
        ZFS => "ZFS",
        BEEGFS => "BeeGFS",
        _ => "a file system unknown to dlio-fs",
    }
}

/// The trials of a mount's start, with the same calls.
fn fast_abilities(trial: &TempDir) -> DoctorFinding {
    let about = Role::Fast.about("abilities");
    match opened(trial).and_then(|dir| Abilities::expect_of_fast(&dir)) {
        Ok(()) => DoctorFinding::ok(about, "user xattrs and inode numbers are kept"),
        Err(error) => unfit(about, error),
    }
}

fn opened(trial: &TempDir) -> Result<OsDir, Error> {
    OsDir::open(trial.path()).at("open", trial.path().shown())
}

fn unfit(about: String, error: Error) -> DoctorFinding {
    match error {
        Error::Refused { what, remedy } => DoctorFinding::fail(about, what, remedy),
        error => DoctorFinding::fail(about, error.to_string(), "see the kernel log"),
    }
}

fn slow_abilities(trial: &TempDir) -> Vec<DoctorFinding> {
    let about = Role::Slow.about("abilities");
    let found = opened(trial).map(|dir| Abilities::find_out(&dir, &OsClock, PATIENCE / 2, None));
    let lacking = match found.and_then(|found| found.expect_steady_numbers("slow").map(|()| found.lacking())) {
        Ok(lacking) => lacking,
        Err(error) => return vec![unfit(about, error)],
    };
    if lacking.is_empty() {
        return vec![DoctorFinding::ok(about, "it keeps all attributes of files")];
    }
    lacking.iter().map(|Lack { what, then }| DoctorFinding::warn(about.clone(), format!("no {what}"), *then)).collect()
}

fn space(role: Role, path: &Path) -> DoctorFinding {
    let about = role.about("space");
    let stat = match statvfs(path) {
        Ok(stat) => stat,
        Err(errno) => return DoctorFinding::fail(about, errno.desc(), "see the kernel log"),
    };
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    let total = stat.blocks().saturating_mul(stat.fragment_size());
    let found = format!("{} of {} free", ByteSize(free), ByteSize(total));
    if stat.flags().contains(FsFlags::ST_RDONLY) {
        return DoctorFinding::fail(about, "mounted read-only", "remount it for writing");
    }
    match role {
        Role::Fast if free < FAST_LEAST => DoctorFinding::warn(
            about,
            found,
            "make room for at least one checkpoint, or everything goes at the slow tier's speed",
        ),
        _ => DoctorFinding::ok(about, found),
    }
}

/// Checks that need both tiers.
pub(super) fn compare(fast: &Path, slow: &Path) -> Vec<DoctorFinding> {
    let device = |path: &Path| {
        let path: PathBuf = path.to_path_buf();
        mount::within(PATIENCE, move || path.metadata().map(|m| m.dev()))?.ok()
    };
    match (device(fast), device(slow)) {
        (Some(a), Some(b)) if a == b => vec![DoctorFinding::warn(
            "tiers",
            "both are on the same file system",
            "that gains neither speed nor safety: put the fast tier on faster storage",
        )],
        (Some(_), Some(_)) => vec![DoctorFinding::ok("tiers", "are on different file systems")],
        // Already reported.
        _ => Vec::new(),
    }
}
