//! What a test needs of the machine. Where that is missing the test is left out, and one line for each kind says so, with the remedy.
//!
//! `cargo xtask test` installs everything and sets [`VARIABLE`], with which a test whose needs are not met fails.

#![allow(dead_code, unreachable_pub, unused_imports, unused_macros)]

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::geteuid;

/// Ends a test whose needs are not met here: `needs!(MOUNTS)`, `needs!(MOUNTS, "bindfs")`.
macro_rules! needs {
    ($($need:expr),+) => {
        if !$crate::needs::are_met(&[$($need),+]) {
            return;
        }
    };
}
pub(crate) use needs;

/// Root, and a kernel that lets it mount FUSE and other file systems.
pub const MOUNTS: &str = "mounts";
/// Files of any owner, devices, `trusted` attributes. All needs besides these two are programs, or directories that a container may lack.
pub const ROOT: &str = "root";

/// Set: nothing is left out.
const VARIABLE: &str = "DLIO_TESTS_LEAVE_NOTHING_OUT";

/// Programs that are not in a package of their own name.
const PACKAGES: &[(&str, &str)] = &[
    ("glusterd", "glusterfs-server"),
    ("ip", "iproute2"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("lowntfs-3g", "ntfs-3g"),
    ("mkfs.exfat", "exfatprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.ntfs", "ntfs-3g"),
    ("mkfs.xfs", "xfsprogs"),
    ("mount.exfat-fuse", "exfat-fuse"),
    ("promtool", "prometheus"),
    ("script", "bsdutils"),
    ("setfattr", "attr"),
    ("ssh-keygen", "openssh-client"),
    ("sshd", "openssh-server"),
    ("systemd-analyze", "systemd"),
    ("xfs_io", "xfsprogs"),
];

pub fn are_met(needs: &[&'static str]) -> bool {
    let Some(missing) = needs.iter().find_map(|need| Some((*need, missing(need)?))) else { return true };
    let (need, why) = missing;
    assert!(std::env::var_os(VARIABLE).is_none(), "{why}");
    static TOLD: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if TOLD.lock().is_ok_and(|mut told| told.insert(need)) {
        // Past the test runner, which keeps what a test that passes has printed.
        writeln!(std::io::stderr(), "left out: {why}").ok();
    }
    false
}

/// What is left out without this need, why, and how to have it run.
fn missing(need: &str) -> Option<String> {
    static MAY_MOUNT: OnceLock<Result<(), String>> = OnceLock::new();
    if need == MOUNTS {
        let why = MAY_MOUNT.get_or_init(may_mount).as_ref().err()?;
        return Some(format!(
            "all tests on real mounts ({why}); to run them: `cargo xtask test` as root, with /dev/fuse"
        ));
    }
    if need == ROOT {
        let told = "tests of owners, devices and trusted attributes; to run them: `cargo test` as root";
        return (!geteuid().is_root()).then(|| told.to_owned());
    }
    if need.starts_with('/') {
        let told = || {
            format!(
                "tests of what is mounted at {need}, where nothing is; to run them: `cargo xtask test` on a whole system"
            )
        };
        return (!Path::new(need).is_dir()).then(told);
    }
    if program(need).is_some() {
        return None;
    }
    let package = PACKAGES.iter().find(|(program, _)| *program == need).map_or(need, |(_, package)| package);
    Some(format!(
        "tests that need {need}, which is not in PATH; to run them: `cargo xtask setup`, or install {package}"
    ))
}

/// Where a program is: in PATH, or where `cargo xtask` unpacks what it does not install.
pub fn program(name: &str) -> Option<PathBuf> {
    const UNPACKED: [&str; 2] = ["tools/prometheus/usr/bin", "tools/openssh-server/usr/sbin"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let target = option_env!("CARGO_TARGET_TMPDIR").map(Path::new);
    let unpacked = target.into_iter().flat_map(|dir| UNPACKED.map(|tool| dir.with_file_name(tool)));
    std::env::split_paths(&path).chain(unpacked).map(|dir| dir.join(name)).find(|file| file.exists())
}

/// Tries it: in a container root may lack the right to, or the device.
fn may_mount() -> Result<(), String> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.map_err(|e| format!("/dev/fuse: {e}"))?;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let none: Option<&Path> = None;
    mount(none, dir.path(), Some("tmpfs"), MsFlags::empty(), none).map_err(|e| format!("mount: {e}"))?;
    umount2(dir.path(), MntFlags::MNT_DETACH).map_err(|e| format!("umount: {e}"))
}
