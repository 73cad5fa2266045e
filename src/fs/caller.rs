//! Which process a request comes from.
//!
//! The kernel names a thread. We look it up once, at the open, while the thread waits for the answer: later it may be
//! gone, and a request to close has no sender. The result is reused for a moment, so that a loader that opens a
//! thousand files a second costs a few lookups in `/proc`. Only `status`, `stat` and `cgroup` are read there: they wait
//! for no process, while `cmdline` waits for one that may itself wait for this mount.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;

use crate::path::harmless;
use crate::stats::processes::{Identity, Process, Processes};
use crate::tiers::UNNAMED;

/// How long a thread's number stays valid: numbers wrap around after millions of threads.
const HOLDS: Duration = Duration::from_secs(2);
/// How many threads are remembered.
const THREADS_MAX: usize = 4096;

/// Threads that were looked up recently.
#[derive(Debug, Default)]
pub(super) struct Callers {
    threads: DashMap<u32, (Instant, Arc<Process>)>,
    /// The thread groups of threads that write or close files.
    groups: DashMap<u32, (Instant, u32)>,
}

impl Callers {
    /// The process of a thread that has opened a file recently, from memory only.
    pub(super) fn known(&self, thread: u32) -> Option<Arc<Process>> {
        self.threads.get(&thread).filter(|found| found.0.elapsed() < HOLDS).map(|found| Arc::clone(&found.1))
    }

    /// The number of a thread's process, for the engine: the one that writes or closes. The thread waits for the
    /// answer.
    pub(super) fn number(&self, thread: u32) -> u32 {
        if let Some(found) = self.groups.get(&thread)
            && found.0.elapsed() < HOLDS
        {
            return found.1;
        }
        let named = Some(thread).filter(|thread| *thread != UNNAMED);
        let status = named.and_then(|thread| read(thread, "status"));
        let number = status.and_then(|status| group(&String::from_utf8_lossy(&status))).unwrap_or(UNNAMED);
        if self.groups.len() >= THREADS_MAX {
            self.groups.clear();
        }
        self.groups.insert(thread, (Instant::now(), number));
        number
    }

    /// The process of a thread; 0 is a thread that the kernel cannot name here.
    pub(super) fn process(&self, processes: &Processes, thread: u32) -> Arc<Process> {
        if thread == 0 {
            return processes.others();
        }
        if let Some(found) = self.threads.get(&thread)
            && found.0.elapsed() < HOLDS
        {
            return Arc::clone(&found.1);
        }
        let process = ask(processes, thread).unwrap_or_else(|| processes.others());
        if self.threads.len() >= THREADS_MAX {
            self.threads.clear();
        }
        self.threads.insert(thread, (Instant::now(), Arc::clone(&process)));
        process
    }
}

fn ask(processes: &Processes, thread: u32) -> Option<Arc<Process>> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let status = text(read(thread, "status")?);
    let (pid, uid) = (group(&status)?, user(&status)?);
    let (command, started) = command_and_start(&text(read(pid, "stat")?))?;
    if let Some(known) = processes.get(pid, started)
        && known.identity().command == command
    {
        return Some(known);
    }
    let cgroup = read(pid, "cgroup").map(|bytes| cgroup(&text(bytes))).unwrap_or_default();
    Some(processes.meet(Identity { pid, uid, started, command, cgroup }))
}

/// Reads one file of a process or thread, usually in one read: a buffer sized by the file's reported length, which is
/// 0, would have to grow.
fn read(of: u32, file: &str) -> Option<Vec<u8>> {
    const LONGEST: u64 = 1 << 16;
    let mut bytes = Vec::with_capacity(4096);
    File::open(format!("/proc/{of}/{file}")).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The process of a thread, from its `status`.
fn group(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The user whose rights a thread has: the second of the four IDs in `status`.
fn user(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

/// The supplementary groups of a thread that waits for an answer; empty for one that the kernel cannot name here.
pub(super) fn groups(thread: u32) -> Vec<u32> {
    let status = Some(thread).filter(|thread| *thread != 0).and_then(|thread| read(thread, "status"));
    further_groups(&String::from_utf8_lossy(&status.unwrap_or_default()))
}

fn further_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

/// Whether the kernel is about to end a thread: SIGKILL is pending, which the kernel sets for each signal that ends a
/// process.
pub(super) fn is_killed(thread: u32) -> bool {
    thread != 0 && read(thread, "status").is_some_and(|status| has_sigkill(&String::from_utf8_lossy(&status)))
}

fn has_sigkill(status: &str) -> bool {
    const SIGKILL: u64 = 1 << (nix::libc::SIGKILL - 1);
    let pending = |line: &str| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    status.lines().filter_map(pending).any(|mask| mask & SIGKILL != 0)
}

/// The process of a thread, for messages.
pub(super) fn shown(thread: u32) -> Option<String> {
    let status = read(thread, "status")?;
    let status = String::from_utf8_lossy(&status);
    let name = status.lines().find_map(|line| line.strip_prefix("Name:"))?.trim();
    Some(format!("{} (pid {})", harmless(name), group(&status)?))
}

/// From `stat`: the second field, which is in parentheses and may itself contain some, and the 22nd.
fn command_and_start(stat: &str) -> Option<(String, u64)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let command = head.split_once('(')?.1;
    let started = tail.split_whitespace().nth(22 - 3)?.parse().ok()?;
    Some((command.to_owned(), started))
}

/// From `cgroup`: the path of version 2 if there is one, else the first that is not the root.
fn cgroup(text: &str) -> String {
    let paths = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| *path != "/");
    let second = text.lines().find_map(|line| line.strip_prefix("0::")).filter(|path| *path != "/");
    second.or_else(|| paths().next()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_finds_itself() {
        let (who, processes) = (Callers::default(), Processes::default());
        let thread = nix::unistd::gettid().as_raw() as u32;
        let process = who.process(&processes, thread);
        assert_eq!(process.identity().pid, std::process::id());
        assert!(!process.identity().command.is_empty());
        assert!(Arc::ptr_eq(&process, &who.process(&processes, thread)));
        let other = std::thread::spawn(|| nix::unistd::gettid().as_raw() as u32);
        let gone = other.join().expect("a number");
        // `join` returns a moment before the kernel has removed the thread from its list.
        while std::path::Path::new(&format!("/proc/{gone}")).exists() {
            std::thread::yield_now();
        }
        assert_eq!(who.process(&processes, gone).number(), 0, "a thread that has ended is nobody's");
    }

    #[test]
    fn what_the_kernel_writes_is_read() {
        assert!(has_sigkill("SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(!has_sigkill("SigPnd:\t0000000004000000\nShdPnd:\t0000000000004000\nSigBlk:\t0000000000000100\n"));
        assert_eq!(group("Name:\ta\nTgid:\t12\nPid:\t13\n"), Some(12));
        let stat = "12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(command_and_start(stat), Some(("a (b) c".to_owned(), 4711)));
        assert_eq!(command_and_start("12 (cut"), None);
        assert_eq!(cgroup("0::/user.slice\n"), "/user.slice");
        assert_eq!(cgroup("5:cpu:/\n4:memory:/job/7\n0::/\n"), "/job/7");
        assert_eq!(cgroup(""), "");
    }
}
