//! The process that serves a mount, seen from outside: how to find it by the lock it holds open, and why it does not
//! answer.
//!
//! Everything is read from `/proc`, so a hanging daemon need not cooperate. Other users' daemons cannot be seen, and no
//! user can pose as the daemon of another user's mount: root inspects the files of all.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use super::answer::{ask, within};
use super::lock::{LOCK_FILE, Owner, owner_named_in};
use super::process::{is_of, open_files, processes, standstill};
use super::table::{mounted_at, mounts};
use crate::error::Error;
use crate::path::Show as _;

/// A daemon that answers nothing for this long is stuck: these requests need no tier.
const PATIENCE: Duration = Duration::from_secs(10);

/// The process that serves a mount.
#[derive(Debug)]
pub struct Daemon {
    pub pid: u32,
    /// Its fast tier.
    pub fast: PathBuf,
    owner: Owner,
}

impl Daemon {
    /// The daemon of the mount at this path; `None` if there is none, or it is another user's.
    pub fn of(mountpoint: &Path) -> Option<Daemon> {
        let here = crate::path::escape(mountpoint.as_os_str().as_encoded_bytes());
        let users = trusted_users(mountpoint);
        processes().filter(|pid| is_of(*pid, &users)).find_map(|pid| {
            let fast = lock_held_by(pid)?.parent()?.parent()?.to_path_buf();
            let owner = owner_named_in(&fast, &users)?;
            (owner.pid == pid && owner.mountpoint == here).then_some(Daemon { pid, fast, owner })
        })
    }

    /// Whether the process still exists, and still is that daemon.
    pub fn runs(&self) -> bool {
        lock_held_by(self.pid).is_some_and(|lock| lock.starts_with(&self.fast))
    }

    /// Asks it to make everything durable on the fast tier, to remove its mount, and to end. No error if it has ended.
    pub fn ask_to_leave(&self) -> Result<(), Errno> {
        if !self.runs() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid.cast_signed()), Signal::SIGTERM) {
            Err(Errno::ESRCH) => Ok(()),
            asked => asked,
        }
    }

    /// Whether its slow tier can be written; if not, its mount stays read-only.
    pub fn slow_is_writable(&self) -> bool {
        self.owner.slow_is_writable
    }
}

/// The users whose process may serve a mount: root, ourselves, and the user who mounted it.
fn trusted_users(mountpoint: &Path) -> Vec<u32> {
    let mounts = mounts().unwrap_or_default();
    let mounted_by = mounted_at(&mounts, mountpoint).filter(|mount| mount.is_ours()).and_then(|mount| mount.user);
    [0, geteuid().as_raw()].into_iter().chain(mounted_by).collect()
}

fn lock_held_by(pid: u32) -> Option<PathBuf> {
    open_files(pid).into_iter().find(|file| file.ends_with(LOCK_FILE))
}

/// Whether a mount answers.
#[derive(Debug)]
pub enum Pulse {
    Answers,
    /// Its daemon is gone.
    Dead,
    /// It does not answer, or not to this user; the error has the reason and the remedy.
    Silent(Error),
}

/// Asks a mount of ours, and waits for the answer for a bounded time.
pub fn pulse(mountpoint: &Path) -> Pulse {
    let asked = mountpoint.to_path_buf();
    match within(PATIENCE, move || ask(&asked)) {
        None => Pulse::Silent(silent(mountpoint)),
        Some(Err(e)) => match e.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOTCONN) => Pulse::Dead,
            Some(Errno::EACCES) => Pulse::Silent(another_users(mountpoint, &e)),
            // An error from its slow tier is an answer, too.
            _ => Pulse::Answers,
        },
        Some(Ok(())) => Pulse::Answers,
    }
}

fn another_users(mountpoint: &Path, error: &io::Error) -> Error {
    let what = format!("the mount at {} may only be used by another user: {error}", mountpoint.shown());
    Error::refused(what, "do this as that user; root may use it if /etc/fuse.conf says user_allow_other")
}

/// Why a mount does not answer, as far as can be seen, and what to do.
pub(super) fn silent(mountpoint: &Path) -> Error {
    let what = format!("the mount at {} does not answer", mountpoint.shown());
    let Some(daemon) = Daemon::of(mountpoint) else {
        return Error::refused(
            format!("{what}, and this user may not see its daemon"),
            "try as root, or as the user who mounted it",
        );
    };
    match standstill(daemon.pid) {
        Some((why, remedy)) => Error::refused(format!("{what}: its daemon (pid {}) {why}", daemon.pid), remedy),
        None => Error::refused(
            format!("{what}, although its daemon (pid {}) runs", daemon.pid),
            format!(
                "see its log; as the last resort kill -9 {} and mount again: nothing acknowledged is lost",
                daemon.pid
            ),
        ),
    }
}
