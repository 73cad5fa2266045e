//! The limits of this process, set by a shell, a batch system or a service manager. The daemon works for all users, so
//! it raises them as far as it may; where that is not enough, a start is refused or a warning names the consequences.

use std::thread::available_parallelism;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::stats::render::bytes;

/// Address space for the program, the stacks of its threads (2 MiB each, hardly touched) and what it copies.
const PROGRAM: u64 = 1 << 30;
/// How many threads it has, unless calls hang on the slow tier.
const THREADS: u64 = 128;
/// glibc's allocator reserves this much for each thread, in at most eight such pieces per processor.
const ARENA: u64 = if cfg!(target_env = "gnu") { 64 << 20 } else { 0 };

/// The address space that a mount with these settings may need. Hardly any of it becomes memory: most is only reserved.
fn address_space(config: &Config) -> u64 {
    let processors = available_parallelism().map_or(1, |n| n.get() as u64);
    let arenas = ARENA * processors.saturating_mul(8).min(THREADS);
    PROGRAM.saturating_add(arenas).saturating_add(config.profile_memory).saturating_add(config.max_pending_bytes)
}

/// Raises the limit on address space as far as possible. To be called before the first thread is started: with too
/// little, a thread or an allocation fails at any time, and a failed allocation ends the daemon.
pub fn check_address_space(config: &Config) -> Result<()> {
    let raised = setrlimit(Resource::RLIMIT_AS, RLIM_INFINITY, RLIM_INFINITY).map(|()| RLIM_INFINITY).or_else(|_| {
        let (_, hard) = getrlimit(Resource::RLIMIT_AS)?;
        setrlimit(Resource::RLIMIT_AS, hard, hard).map(|()| hard)
    });
    match raised {
        Ok(limit) if limit < address_space(config) => Err(too_little(limit, address_space(config))),
        // The need is unknown, or nothing can be done.
        _ => Ok(()),
    }
}

fn too_little(limit: u64, needed: u64) -> Error {
    let what = format!("the address space of this process is limited to {} (ulimit -v)", bytes(limit));
    Error::refused(
        format!("{what}, and a mount needs {}, most of which it never touches", bytes(needed)),
        "raise the hard limit (ulimit -v unlimited, LimitAS= of a systemd unit, the limits of the batch system), or mount as root",
    )
}

/// Each open file of an application costs one of our descriptors. A limit that cannot be raised does not prevent
/// mounting.
pub(super) fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map(|()| hard));
    match raised {
        Ok(limit) => info!(limit, "descriptors"),
        Err(errno) => warn!(%errno, "could not raise the limit of open files"),
    }
}

pub(super) fn descriptor_limit() -> u64 {
    // Every system allows at least this many.
    getrlimit(Resource::RLIMIT_NOFILE).map_or(256, |(soft, _)| soft)
}

/// The shell or job that mounts may limit the size of its files, but the daemon writes files for all users: a write
/// beyond the limit would kill it with SIGXFSZ. With the signal caught, such a write gets EFBIG, as on a file system
/// that cannot store such a file. The kernel itself enforces each program's own limit.
pub(super) fn raise_file_size_limit(runtime: &Runtime) -> Result<()> {
    let _inside = runtime.enter();
    // Its handler stays installed without a listener.
    drop(signal(SignalKind::from_raw(Signal::SIGXFSZ as i32)).at("catch", "SIGXFSZ")?);
    let (limit, hard) = match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok(limits) => limits,
        Err(errno) => {
            warn!(%errno, "could not read the limit of file sizes");
            return Ok(());
        }
    };
    let raised = setrlimit(Resource::RLIMIT_FSIZE, RLIM_INFINITY, RLIM_INFINITY).map(|()| RLIM_INFINITY);
    let raised = raised.or_else(|_| setrlimit(Resource::RLIMIT_FSIZE, hard, hard).map(|()| hard));
    match raised.unwrap_or(limit) {
        RLIM_INFINITY => {}
        bytes => warn!(bytes, "this process may not write larger files (ulimit -f): larger writes get EFBIG"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_follows_the_settings_and_is_told_beside_the_limit() {
        let small = Config { profile_memory: 1 << 20, max_pending_bytes: 1 << 20, ..Config::default() };
        let large = Config { max_pending_bytes: 1 << 40, ..small.clone() };
        assert!(address_space(&small) > PROGRAM && address_space(&large) > 1 << 40);
        let said = too_little(300 << 20, 3 << 30).to_string();
        assert!(said.contains("limited to 300.0 MiB (ulimit -v), and a mount needs 3.0 GiB"), "{said}");
        assert!(said.contains("; raise the hard limit (ulimit -v unlimited"), "{said}");
    }
}
