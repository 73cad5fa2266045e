//! The machine: kernel, FUSE device, who may mount, limits, log.

use std::fs;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::utsname::uname;
use nix::unistd::geteuid;
use procfs::process::Process;

use super::finding::DoctorFinding;
use crate::cli::tiers;
use crate::mount;
use crate::tiers::disk::Clock as _;
use crate::tiers::disk::os::OsClock;

/// The capability that `mount(2)` asks for, as a bit of `CapEff`.
const CAP_SYS_ADMIN: u32 = 21;

pub(super) fn examine() -> Vec<DoctorFinding> {
    vec![kernel(), device(), who_mounts(), who_uses(), descriptors(), request_size(), log()]
}

/// What the kernel knows of the clock. Only a fleet needs a right one: those on this slow tier tell how right.
pub(super) fn clock(slow: Option<&Path>) -> Vec<DoctorFinding> {
    let about = "clock";
    let found = match OsClock.error() {
        Some(error) => format!("synchronized, off by {} at most", humantime::format_duration(error)),
        None => "the kernel does not know it to be synchronized; only a fleet needs that".to_owned(),
    };
    let mut findings = vec![DoctorFinding::ok(about, found)];
    let fleets = slow
        .and_then(|slow| Some((tiers::open("--slow", slow).ok()?, fs::read_dir(slow.join(".dlio-fs/fleet")).ok()?)));
    let Some((slow, fleets)) = fleets else { return findings };
    for fleet in fleets.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let trouble = tiers::fleet_reader(&slow, &fleet).ok().and_then(|reader| reader.clock_trouble());
        if let Some((what, remedy)) = trouble.as_ref().and_then(|trouble| trouble.split_once("; ")) {
            findings.push(DoctorFinding::warn(about, format!("fleet {fleet}: {what}"), remedy));
        }
    }
    findings
}

fn kernel() -> DoctorFinding {
    let release = uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let about = "kernel";
    match version(&release) {
        Some(v) if v < (5, 4) => {
            DoctorFinding::fail(about, release, "dlio-fs needs Linux 5.4 or later: use a newer kernel")
        }
        Some(v) if v < (6, 6) => DoctorFinding::warn(
            about,
            release,
            "shared mmap of files on the mount fails with ENODEV (LMDB, Arrow, numpy.memmap): use Linux 6.6 or later",
        ),
        Some(_) => DoctorFinding::ok(about, format!("{release}: shared mmap works on the exact I/O path")),
        None => {
            DoctorFinding::warn(about, format!("release \"{release}\" is not understood"), "use Linux 6.6 or later")
        }
    }
}

/// The first two numbers of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn device() -> DoctorFinding {
    match mount::open_device() {
        Ok(_) => DoctorFinding::ok("/dev/fuse", "can be opened"),
        Err(crate::error::Error::Refused { what, remedy }) => DoctorFinding::fail("/dev/fuse", what, remedy),
        Err(e) => DoctorFinding::fail("/dev/fuse", e.to_string(), "see the kernel log"),
    }
}

fn who_mounts() -> DoctorFinding {
    let about = "mounting";
    if has_capability(CAP_SYS_ADMIN) {
        return DoctorFinding::ok(about, "directly, with CAP_SYS_ADMIN");
    }
    match mount::helper_version() {
        Some(version) => DoctorFinding::ok(about, format!("through {version}")),
        None => DoctorFinding::fail(
            about,
            format!("user {} lacks CAP_SYS_ADMIN, and there is no fusermount3", geteuid()),
            "install the package fuse3, or run as root",
        ),
    }
}

fn who_uses() -> DoctorFinding {
    let about = "access";
    if has_capability(CAP_SYS_ADMIN) {
        return DoctorFinding::ok(about, "all users, as the modes of the files allow");
    }
    match mount::others_allowed() {
        true => DoctorFinding::ok(about, "all users, as the modes of the files allow; files belong to you"),
        false => DoctorFinding::warn(
            about,
            format!("only user {} will see the mount, not even root", geteuid()),
            "put the line user_allow_other into /etc/fuse.conf, or mount as root",
        ),
    }
}

fn has_capability(bit: u32) -> bool {
    let status = Process::myself().and_then(|process| process.status());
    status.is_ok_and(|status| status.capeff & (1 << bit) != 0)
}

fn descriptors() -> DoctorFinding {
    let about = "open files";
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard < 4_096 => DoctorFinding::warn(
            about,
            format!("at most {hard}"),
            "every file that applications have open costs one: raise the hard limit (ulimit -Hn, LimitNOFILE=)",
        ),
        Ok((_, hard)) => DoctorFinding::ok(about, format!("at most {hard} at once")),
        Err(errno) => DoctorFinding::warn(about, errno.desc(), "see ulimit -Hn"),
    }
}

fn request_size() -> DoctorFinding {
    let about = "request size";
    let setting = "/proc/sys/fs/fuse/max_pages_limit";
    let pages = fs::read_to_string(setting).ok().and_then(|text| text.trim().parse::<u64>().ok());
    // Before Linux 6.13 the limit was a constant.
    let size = bytesize::ByteSize(pages.unwrap_or(256) * 4096);
    match pages {
        Some(256..) | None => DoctorFinding::ok(about, format!("up to {size} per read or write")),
        Some(_) => {
            DoctorFinding::warn(about, format!("only {size} per read or write"), format!("echo 256 > {setting}"))
        }
    }
}

fn log() -> DoctorFinding {
    match mount::has_syslog() {
        true => DoctorFinding::ok("log", "syslog"),
        false => {
            DoctorFinding::warn("log", "there is no syslog", "give `mount` a --log-file, or its log lines are lost")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_all_kinds_are_understood() {
        assert_eq!(version("6.18.44-cloud-amd64"), Some((6, 18)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version("6.6-rc1"), Some((6, 6)));
        assert_eq!(version(""), None);
        assert_eq!(version("linux"), None);
    }
}
