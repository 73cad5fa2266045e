//! The process that serves a mount, as others see it: found by the lock that it holds open, and what keeps it from going
//! on when it does not answer.
//!
//! Everything is read from `/proc`, so it needs nothing of a daemon that hangs. Of other users' daemons nothing is seen.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::lock::{LOCK_FILE, Owner};
use super::places::{ask, within};
use crate::error::Error;

/// A daemon that answers nothing for this long is stuck: what it is asked here needs no tier.
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
        processes().find_map(|pid| {
            let lock = lock_held_by(pid)?;
            let owner = Owner::parse(std::fs::read_to_string(&lock).ok()?.lines().next()?)?;
            let fast = lock.parent()?.parent()?.to_path_buf();
            (owner.pid == pid && owner.mountpoint == here).then_some(Daemon { pid, fast, owner })
        })
    }

    /// Whether the process is still there, and still that daemon.
    pub fn runs(&self) -> bool {
        lock_held_by(self.pid).is_some_and(|lock| lock.starts_with(&self.fast))
    }

    /// Asks it to make all durable on the fast tier, to take its mount away, and to end. No error if it has ended.
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

fn lock_held_by(pid: u32) -> Option<PathBuf> {
    open_files(pid).into_iter().find(|file| file.ends_with(LOCK_FILE))
}

/// All processes that this user may see.
pub fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What a process's descriptors refer to. Empty if the process is another user's, or gone.
///
/// Of a killed process the first thread has given up its descriptors while another, which waits in the kernel, still holds
/// them all: each is asked until one has some.
pub fn open_files(pid: u32) -> Vec<PathBuf> {
    let held = |thread: PathBuf| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(thread.join("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
    };
    threads(pid).map(held).find(|held| !held.is_empty()).unwrap_or_default()
}

/// Whether a mount answers.
#[derive(Debug)]
pub enum Pulse {
    Answers,
    /// Its daemon is gone.
    Dead,
    /// It does not answer, or not to this user; why, and the remedy.
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
            // An answer all the same, from its slow tier.
            _ => Pulse::Answers,
        },
        Some(Ok(())) => Pulse::Answers,
    }
}

fn another_users(mountpoint: &Path, error: &io::Error) -> Error {
    let what = format!("the mount at {} is another user's alone: {error}", mountpoint.display());
    Error::refused(what, "do this as that user; root is let in if /etc/fuse.conf says user_allow_other")
}

/// Why a mount does not answer, as far as it can be seen, and what to do.
pub(super) fn silent(mountpoint: &Path) -> Error {
    let what = format!("the mount at {} does not answer", mountpoint.display());
    let Some(daemon) = Daemon::of(mountpoint) else {
        return Error::refused(
            format!("{what}, and its daemon is not one that this user may see"),
            "look as root, or as the user who mounted it",
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

/// What keeps a process from going on, and the remedy; `None` if nothing is to be seen.
pub(super) fn standstill(pid: u32) -> Option<(&'static str, String)> {
    let states: Vec<char> = threads(pid).filter_map(|thread| state(&thread)).collect();
    if states.iter().any(|state| matches!(state, 'T' | 't')) {
        return Some(("is stopped", format!("let it go on: kill -CONT {pid}")));
    }
    states.contains(&'D').then(|| {
        let remedy = "see dmesg, and whether the tiers answer: it goes on, or ends if it was killed, when they do";
        ("waits in the kernel for a device or a server (state D)", remedy.to_owned())
    })
}

/// Whether a process is on its way out: killed, and about to give back what it holds.
pub(super) fn is_ending(pid: u32) -> bool {
    /// `PF_EXITING` of the kernel's flags, the seventh field behind the name.
    const EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
    let flags = fields.and_then(|fields| fields.split(' ').nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

fn threads(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The letter behind the name, which is in parentheses and may itself hold some.
fn state(thread: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(thread.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_stopped_process_is_seen_and_named() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep");
        let pid = child.id();
        assert!(standstill(pid).is_none_or(|(why, _)| !why.contains("stopped")));
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).expect("our own child");
        let begun = Instant::now();
        let (why, remedy) = loop {
            match standstill(pid) {
                Some(found) if found.0.contains("stopped") => break found,
                // It may read its program from the disk just now.
                _ => assert!(begun.elapsed() < Duration::from_secs(60), "never seen"),
            }
        };
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        assert!(why.contains("is stopped") && remedy.contains(&format!("kill -CONT {pid}")), "{why}; {remedy}");
        assert!(standstill(pid).is_none() && is_ending(pid), "gone");
        assert!(!is_ending(std::process::id()));
    }
}
