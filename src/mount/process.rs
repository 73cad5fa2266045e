//! Processes as `/proc` shows them: which files they hold open, and what blocks them. Little can be seen of other
//! users' processes.

use std::fs::DirEntry;
use std::path::PathBuf;

use procfs::process::{Process, StatFlags};

/// All processes that this user may see.
pub fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The files that a process's descriptors refer to. Empty if the process is another user's, or gone.
///
/// The first thread of a killed process may have given up its descriptors while another, which waits in the kernel,
/// still holds them all: each thread is checked until one has some.
pub fn open_files(pid: u32) -> Vec<PathBuf> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let held = |thread: DirEntry| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(thread.path().join("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
    };
    threads.map(held).find(|held| !held.is_empty()).unwrap_or_default()
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

/// Whether a process is exiting: killed, and about to release what it holds.
pub(super) fn is_ending(pid: u32) -> bool {
    let stat = Process::new(pid.cast_signed()).and_then(|process| process.stat());
    stat.map_or(true, |stat| stat.flags & StatFlags::PF_EXITING.bits() != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use nix::sys::signal::{Signal, kill};
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
