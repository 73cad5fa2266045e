//! Processes as `/proc` shows them: which files they hold open, and what blocks them. Little can be seen of other
//! users' processes.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use procfs::process::{Process, StatFlags};

/// SIGKILL in a mask of signals.
const KILLED: u64 = 1 << (Signal::SIGKILL as u64 - 1);

/// All processes that this user may see.
pub fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The files that a process's descriptors refer to, some of them maybe twice. Empty if the process is another user's, or gone.
///
/// All threads of a process share its descriptors, but a killed process loses its threads one by one: the first may have
/// given up its descriptors, or give them up while they are read, and another, which waits in the kernel, still holds
/// them all. Each thread is checked until one was read as a whole.
pub fn open_files(pid: u32) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let descriptors = std::fs::read_dir(thread.path().join("fd")).into_iter().flatten().flatten();
        let links: Vec<_> = descriptors.map(|descriptor| std::fs::read_link(descriptor.path()).ok()).collect();
        let whole = !links.is_empty() && links.iter().all(Option::is_some);
        files.extend(links.into_iter().flatten());
        if whole {
            break;
        }
    }
    files
}

/// Whether a process acts for one of these users, and was started by one of them. The owner of its directory in `/proc`
/// does not tell: it is root for a program that its user may not inspect.
pub(super) fn is_of(pid: u32, users: &[u32]) -> bool {
    let status = Process::new(pid.cast_signed()).and_then(|process| process.status());
    status.is_ok_and(|status| users.contains(&status.ruid) && users.contains(&status.euid))
}

/// What blocks a process, and the remedy; `None` if nothing can be seen.
pub(super) fn standstill(pid: u32) -> Option<(&'static str, String)> {
    let threads = Process::new(pid.cast_signed()).and_then(|process| process.tasks()).ok()?;
    let states: Vec<char> = threads.filter_map(|thread| Some(thread.ok()?.stat().ok()?.state)).collect();
    if states.iter().any(|state| matches!(state, 'T' | 't')) {
        return Some(("is stopped", format!("continue it: kill -CONT {pid}")));
    }
    states.contains(&'D').then(|| {
        let remedy = "see dmesg, and whether the tiers answer: when they do, it continues, or ends if it was killed";
        ("waits in the kernel for a device or a server (state D)", remedy.to_owned())
    })
}

/// Whether a process is gone, or was killed and is about to release what it holds.
///
/// A thread that waits in the kernel has the signal pending and begins to exit only when it wakes up.
pub(super) fn is_ending(pid: u32) -> bool {
    let Ok(process) = Process::new(pid.cast_signed()) else { return true };
    let exits = process.stat().map_or(true, |stat| stat.flags & StatFlags::PF_EXITING.bits() != 0);
    exits || process.status().map_or(true, |status| (status.sigpnd | status.shdpnd) & KILLED != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use nix::sys::signal::kill;
    use nix::unistd::Pid;

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
                // It may still be reading its program from the disk.
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
