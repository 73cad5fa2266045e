//! The machine: kernel, FUSE device, who may mount, limits, log.

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::utsname::uname;
use nix::unistd::geteuid;
use procfs::process::Process;

use super::finding::Finding;
use crate::mount;

/// The capability that `mount(2)` asks for, as a bit of `CapEff`.
const CAP_SYS_ADMIN: u32 = 21;

pub(super) fn examine() -> Vec<Finding> {
    vec![kernel(), device(), who_mounts(), who_uses(), descriptors(), request_size(), log()]
}

fn kernel() -> Finding {
    let release = uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let about = "kernel";
    match version(&release) {
        Some(v) if v < (5, 4) => Finding::fail(about, release, "dlio-fs needs Linux 5.4 or later: use a newer kernel"),
        Some(v) if v < (6, 6) => Finding::warn(
            about,
            release,
            "shared mmap of files on the mount fails with ENODEV (LMDB, Arrow, numpy.memmap): use Linux 6.6 or later",
        ),
        Some(_) => Finding::ok(about, format!("{release}: shared mmap works on the exact I/O path")),
        None => Finding::warn(about, format!("release \"{release}\" is not understood"), "use Linux 6.6 or later"),
    }
}

/// The first two numbers of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn device() -> Finding {
    match mount::open_device() {
        Ok(_) => Finding::ok("/dev/fuse", "can be opened"),
        Err(crate::error::Error::Refused { what, remedy }) => Finding::fail("/dev/fuse", what, remedy),
        Err(e) => Finding::fail("/dev/fuse", e.to_string(), "see the kernel log"),
    }
}

fn who_mounts() -> Finding {
    let about = "mounting";
    if has_capability(CAP_SYS_ADMIN) {
        return Finding::ok(about, "directly, with CAP_SYS_ADMIN");
    }
    match mount::helper_version() {
        Some(version) => Finding::ok(about, format!("through {version}")),
        None => Finding::fail(
            about,
            format!("user {} lacks CAP_SYS_ADMIN, and there is no fusermount3", geteuid()),
            "install the package fuse3, or run as root",
        ),
    }
}

fn who_uses() -> Finding {
    let about = "access";
    if has_capability(CAP_SYS_ADMIN) {
        return Finding::ok(about, "all users, as the modes of the files allow");
    }
    match mount::others_allowed() {
        true => Finding::ok(about, "all users, as the modes of the files allow; files belong to you"),
        false => Finding::warn(
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

fn descriptors() -> Finding {
    let about = "open files";
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard < 4_096 => Finding::warn(
            about,
            format!("at most {hard}"),
            "every file that applications have open costs one: raise the hard limit (ulimit -Hn, LimitNOFILE=)",
        ),
        Ok((_, hard)) => Finding::ok(about, format!("at most {hard} at once")),
        Err(errno) => Finding::warn(about, errno.desc(), "see ulimit -Hn"),
    }
}

fn request_size() -> Finding {
    let about = "request size";
    let setting = "/proc/sys/fs/fuse/max_pages_limit";
    let pages = std::fs::read_to_string(setting).ok().and_then(|text| text.trim().parse::<u64>().ok());
    // Before Linux 6.13 the limit was a constant.
    let size = bytesize::ByteSize(pages.unwrap_or(256) * 4096);
    match pages {
        Some(256..) | None => Finding::ok(about, format!("up to {size} per read or write")),
        Some(_) => Finding::warn(about, format!("only {size} per read or write"), format!("echo 256 > {setting}")),
    }
}

fn log() -> Finding {
    match mount::has_syslog() {
        true => Finding::ok("log", "syslog"),
        false => Finding::warn("log", "there is no syslog", "give `mount` a --log-file, or its log lines are lost"),
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
