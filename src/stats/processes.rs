//! The processes that opened files, and what each has read and written. Pure: the caller asks the system.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;

use super::counters::{Call, Op, nanos};
use super::render::{bytes, latency};
use crate::path;

/// How many are told apart; later ones count as one.
pub const PROCESSES_MAX: usize = 4096;

/// The identity of a process, according to the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// 0 if unknown: the process is in another pid namespace, or gone.
    pub pid: u32,
    /// Its user when it was first met.
    pub uid: u32,
    /// When it was started, in the system's ticks: process numbers are reused.
    pub started: u64,
    /// Its name, of up to 15 bytes.
    pub command: String,
    /// Path of its control group; empty if there is none.
    pub cgroup: String,
}

/// One process, with its activity through handles that it opened.
#[derive(Debug, Default)]
pub struct Process {
    number: u64,
    identity: Identity,
    opens: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    nanos: AtomicU64,
}

/// [`Process`] at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFigures {
    /// As in [`super::record::FileRecord::processes`].
    pub number: u64,
    pub identity: Identity,
    pub opens: u64,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Time spent in calls through its handles.
    pub time: Duration,
}

impl ProcessFigures {
    /// The difference to `before`, the same process earlier.
    pub(super) fn since(self, before: &ProcessFigures) -> ProcessFigures {
        ProcessFigures {
            opens: self.opens.saturating_sub(before.opens),
            reads: self.reads.saturating_sub(before.reads),
            writes: self.writes.saturating_sub(before.writes),
            bytes_read: self.bytes_read.saturating_sub(before.bytes_read),
            bytes_written: self.bytes_written.saturating_sub(before.bytes_written),
            time: self.time.saturating_sub(before.time),
            ..self
        }
    }

    pub(super) fn did_something(&self) -> bool {
        self.opens + self.reads + self.writes > 0 || self.time > Duration::ZERO
    }

    fn with(self, other: &ProcessFigures) -> Self {
        ProcessFigures {
            opens: self.opens + other.opens,
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
            time: self.time + other.time,
            ..self
        }
    }
}

impl Process {
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn opened(&self) {
        self.opens.fetch_add(1, Relaxed);
    }

    pub(super) fn count(&self, call: &Call) {
        self.nanos.fetch_add(nanos(call.took), Relaxed);
        let (calls, bytes) = match call.op {
            Op::Read => (&self.reads, &self.bytes_read),
            Op::Write => (&self.writes, &self.bytes_written),
            _ => return,
        };
        calls.fetch_add(1, Relaxed);
        bytes.fetch_add(call.bytes, Relaxed);
    }

    fn figures(&self) -> ProcessFigures {
        ProcessFigures {
            number: self.number,
            identity: self.identity.clone(),
            opens: self.opens.load(Relaxed),
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            time: Duration::from_nanos(self.nanos.load(Relaxed)),
        }
    }
}

/// All processes. Number 0 stands for all unknown ones.
#[derive(Debug)]
pub struct Processes {
    known: Mutex<HashMap<(u32, u64), Arc<Process>>>,
    others: Arc<Process>,
    limit: usize,
}

impl Default for Processes {
    fn default() -> Self {
        Processes::new(PROCESSES_MAX)
    }
}

impl Processes {
    pub fn new(limit: usize) -> Self {
        Processes { known: Mutex::default(), others: Arc::default(), limit }
    }

    /// The entry of all unknown processes.
    pub fn others(&self) -> Arc<Process> {
        Arc::clone(&self.others)
    }

    /// A process that was met before.
    pub fn get(&self, pid: u32, started: u64) -> Option<Arc<Process>> {
        self.known.lock().get(&(pid, started)).cloned()
    }

    /// The entry of a process, known from now on; past the limit it is that of the unknown ones.
    pub fn meet(&self, identity: Identity) -> Arc<Process> {
        let mut known = self.known.lock();
        let key = (identity.pid, identity.started);
        if let Some(process) = known.get(&key) {
            return Arc::clone(process);
        }
        if identity.pid == 0 || known.len() >= self.limit {
            return self.others();
        }
        let number = known.len() as u64 + 1;
        let process = Arc::new(Process { number, identity, ..Process::default() });
        known.insert(key, Arc::clone(&process));
        process
    }

    /// Command and pid of each known process, by its number.
    pub fn names(&self) -> HashMap<u64, (String, u32)> {
        let known = self.known.lock();
        known.values().map(|one| (one.number, (one.identity.command.clone(), one.identity.pid))).collect()
    }

    /// Those that opened anything, ordered by number.
    pub fn figures(&self) -> Vec<ProcessFigures> {
        let mut all: Vec<_> = self.known.lock().values().map(|process| process.figures()).collect();
        all.push(self.others.figures());
        all.retain(|process| process.opens > 0);
        all.sort_by_key(|process| process.number);
        all
    }
}

/// What a user may see: their own processes, and the sum of all others as one process without details.
pub fn of_user(figures: Vec<ProcessFigures>, uid: u32) -> Vec<ProcessFigures> {
    let (mut shown, others): (Vec<_>, Vec<_>) =
        figures.into_iter().partition(|process| process.identity.pid > 0 && process.identity.uid == uid);
    if !others.is_empty() {
        shown.push(others.iter().fold(ProcessFigures::default(), ProcessFigures::with));
    }
    shown
}

/// The table of processes in `.dlio/processes`, those that spent most time in calls first. Ends with a newline.
pub fn table(figures: &[ProcessFigures]) -> String {
    let mut lines: Vec<&ProcessFigures> = figures.iter().collect();
    lines.sort_by_key(|process| (Reverse(process.time), process.number));
    let mut out =
        "    pid command            opens    reads   writes       read    written     time  cgroup\n".to_owned();
    for p in lines {
        let (pid, command) = match p.identity.pid {
            0 => ("-".to_owned(), "(others)".to_owned()),
            pid => (pid.to_string(), path::escape(p.identity.command.as_bytes())),
        };
        writeln!(
            out,
            "{pid:>7} {command:<15}{:>9}{:>9}{:>9}{:>11}{:>11}{:>9}  {}",
            p.opens,
            p.reads,
            p.writes,
            bytes(p.bytes_read),
            bytes(p.bytes_written),
            latency(p.time),
            path::escape(p.identity.cgroup.as_bytes())
        )
        .expect("formatting into memory");
    }
    out
}

/// The same as JSON, one object. Time is in seconds, `pid` is null for all unknown processes. Ends with a newline.
pub fn json(figures: &[ProcessFigures]) -> String {
    let one = |p: &ProcessFigures| {
        json!({
            "number": p.number,
            "pid": Some(p.identity.pid).filter(|pid| *pid > 0),
            "uid": Some(p.identity.uid).filter(|_| p.identity.pid > 0),
            "command": p.identity.command,
            "cgroup": p.identity.cgroup,
            "opens": p.opens,
            "reads": p.reads,
            "writes": p.writes,
            "bytes_read": p.bytes_read,
            "bytes_written": p.bytes_written,
            "time": p.time.as_secs_f64(),
        })
    };
    crate::json::line(&json!({ "processes": figures.iter().map(one).collect::<Vec<_>>() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(pid: u32, started: u64) -> Identity {
        Identity { pid, started, command: format!("p{pid}"), ..Identity::default() }
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let processes = Processes::default();
        let numbers = [(7, 1), (7, 2), (7, 1), (0, 0)].map(|(pid, at)| processes.meet(identity(pid, at)).number());
        assert_eq!(numbers, [1, 2, 1, 0]);
        assert!(processes.get(7, 2).is_some() && processes.get(7, 3).is_none());
    }

    #[test]
    fn the_json_has_the_same_numbers_and_no_name_of_a_process_breaks_out() {
        let processes = Processes::default();
        processes.meet(Identity { command: "a \x1b[31m".into(), ..identity(7, 1) }).opened();
        processes.others().opened();
        let value: serde_json::Value = serde_json::from_str(&json(&processes.figures())).expect("valid JSON");
        assert!(value["processes"][0]["pid"].is_null(), "{value}");
        let known = &value["processes"][1];
        assert_eq!((&known["pid"], &known["opens"], &known["time"]), (&json!(7), &json!(1), &json!(0.0)));
        assert_eq!(known["command"], "a \u{1b}[31m");
    }

    #[test]
    fn past_the_limit_they_are_counted_together() {
        let processes = Processes::new(1);
        for pid in 1..4 {
            processes.meet(identity(pid, 0)).opened();
        }
        let figures: Vec<_> = processes.figures().iter().map(|p| (p.number, p.identity.pid, p.opens)).collect();
        assert_eq!(figures, [(0, 0, 2), (1, 1, 1)]);
    }
}
