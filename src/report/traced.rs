//! The traced calls with their names, for documents that other tools read. Pure.
//!
//! They are passed one after another, never all at once: a recording may hold more of them than fit into memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::time::Duration;

use serde::Serialize;

pub(super) use crate::stats::counters::nanos;
use crate::stats::recording::{Meta, Recording};
use crate::stats::status::IoPathFigures;
use crate::stats::traced::Traced;

/// No process has this number: Linux gives none above 4,194,304. It stands for events of the mount itself: marks,
/// epochs, ...
pub(super) const OF_THE_MOUNT: u32 = 4_194_305;
/// The same for calls of an unknown process.
pub(super) const OF_UNKNOWN: u32 = 4_194_306;

/// What the numbers in traced calls stand for.
#[derive(Debug, Default)]
pub(super) struct Names {
    paths: HashMap<u64, String>,
    /// Process id and command by number.
    processes: HashMap<u64, (u32, String)>,
}

/// What a reader of a document must know about its gaps.
#[derive(Debug, Serialize)]
pub(super) struct Provenance<'a> {
    pub(super) version: &'a str,
    pub(super) host: &'a str,
    pub(super) kernel: &'a str,
    pub(super) mountpoint: &'a str,
    pub(super) window: Option<&'a str>,
    /// When the mount was made, in nanoseconds since 1970; the times that the document covers, in seconds since then.
    pub(super) since: u64,
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) io_path: &'a IoPathFigures,
    /// In the recording.
    pub(super) calls_traced: u64,
    /// Not traced, because the collector did not keep up.
    pub(super) calls_dropped: u64,
    /// Counted by the mount in this time.
    pub(super) calls_counted: u64,
    pub(super) is_whole: bool,
    pub(super) flaws: &'a [String],
}

impl Names {
    /// Takes the paths out of a recording, and its files with theirs: some recordings name files only there.
    pub(super) fn of(recording: &mut Recording) -> Names {
        let known = recording.meta.processes.iter().filter(|process| process.number > 0);
        let processes = known.map(|process| (process.number, (process.pid, process.command.clone()))).collect();
        let mut paths = std::mem::take(&mut recording.paths);
        for file in std::mem::take(&mut recording.files) {
            paths.entry(file.ino).or_insert(file.path);
        }
        Names { paths, processes }
    }

    /// From the mount's root, escaped.
    pub(super) fn path(&self, ino: u64) -> &str {
        self.paths.get(&ino).map_or("(unknown)", String::as_str)
    }

    /// Process id and command.
    pub(super) fn process(&self, number: u32) -> (u32, &str) {
        let known = self.processes.get(&number.into());
        known.map_or((OF_UNKNOWN, "(unknown)"), |(pid, command)| (*pid, command))
    }

    /// Commands by process id; ids may have been reused.
    pub(super) fn commands(&self) -> BTreeMap<u32, String> {
        let mut commands = BTreeMap::<u32, BTreeSet<&str>>::new();
        for (pid, command) in self.processes.values() {
            commands.entry(*pid).or_default().insert(command);
        }
        commands.into_iter().map(|(pid, all)| (pid, all.into_iter().collect::<Vec<_>>().join(", "))).collect()
    }
}

/// Passes all traced calls of the time that a recording covers to `each`, until that fails.
pub(super) fn each(recording: &mut Recording, mut each: impl FnMut(&Traced) -> io::Result<()>) -> io::Result<()> {
    let (from, until) = time(&recording.meta);
    let mut outcome = Ok(());
    recording.calls(from, until, |traced| {
        if outcome.is_ok() {
            outcome = each(traced);
        }
    });
    outcome
}

/// A window is cut to its time, because a block may hold more than the window.
fn time(meta: &Meta) -> (Duration, Duration) {
    let moment = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    match meta.window {
        Some(_) => (moment(meta.from), moment(meta.until)),
        None => (Duration::ZERO, Duration::MAX),
    }
}

/// As far as known: damaged blocks are found only when their calls are read.
pub(super) fn completeness(recording: &Recording) -> Provenance<'_> {
    let (meta, (calls_traced, calls_dropped)) = (&recording.meta, recording.traced());
    Provenance {
        version: &meta.version,
        host: &meta.host,
        kernel: &meta.kernel,
        mountpoint: &meta.mountpoint,
        window: meta.window.as_deref(),
        since: meta.since,
        from: meta.from,
        until: meta.until,
        io_path: &meta.io_path,
        calls_traced,
        calls_dropped,
        calls_counted: meta.operations.iter().fold(0, |sum, operation| sum.saturating_add(operation.calls)),
        is_whole: recording.is_whole,
        flaws: &recording.flaws,
    }
}

/// A recording like that of a loader and a checkpoint, with awkward cases.
#[cfg(test)]
pub(super) mod sample {
    use super::*;
    use crate::error::Errno;
    use crate::stats::access::Cursor as Place;
    use crate::stats::counters::{Call, Op, Tier};
    use crate::stats::record::FileRecord;
    use crate::stats::recording::{Checkpoint, Epoch, Mark, RecordedProcess, RecordedTimeline, RecordedWindow, Writer};
    use crate::stats::trace::{Block, block};

    pub(crate) const SINCE: u64 = 1_700_000_000_123_456_789;

    /// Calls of two workers that overlap, of an unknown one, and one that failed.
    pub(crate) fn calls() -> Vec<Traced> {
        let mut calls = Vec::new();
        for n in 0..300 {
            let (ino, handle, thread) = (10 + n % 3, 1 + n % 4, 100 + (n % 2) as u32);
            let (began, took) = (Duration::from_nanos(1_000_001 * n), Duration::from_nanos(2_500_250 + n));
            let op = [Op::Read, Op::Write, Op::Open, Op::Getattr][(n % 4) as usize];
            let bytes = if matches!(op, Op::Read | Op::Write) { 1000 + n } else { 0 };
            let tier = Tier::ALL[(n / 7 % 2) as usize];
            let call = Call { op, began, took, offset: n * 4096, bytes, errno: None, tier };
            calls.push(Traced { call, ino, handle, process: 1 + (n / 200) as u32, thread });
        }
        let last = &mut calls[299];
        (last.call.errno, last.process) = (Some(Errno::ENOENT), 9);
        calls
    }

    pub(crate) fn meta() -> Meta {
        let process = |number, pid, command: &str| RecordedProcess {
            number,
            pid,
            command: command.into(),
            ..RecordedProcess::default()
        };
        Meta {
            version: "0.1".into(),
            host: "node-7".into(),
            mountpoint: "/mnt/t".into(),
            since: SINCE,
            until: 0.4,
            io_path: IoPathFigures { name: "exact".into(), not_seen: vec!["seeks".into()], ..IoPathFigures::default() },
            processes: vec![process(1, 4711, "python"), process(2, 4712, "python")],
            timeline: RecordedTimeline { span: 0.1, read_fast: vec![0, 0, 500_000, 0], ..RecordedTimeline::default() },
            windows: vec![RecordedWindow {
                name: "w\"\n\u{1}".into(),
                began: 0.1,
                ended: 0.2,
                files: 3,
                processes: 1,
                bytes_read: 1,
                bytes_written: 2,
            }],
            marks: vec![Mark { at: 0.15, text: "step\t1".into() }],
            epochs: vec![Epoch { number: 1, began: 0.0, ended: 0.3, ..Epoch::default() }],
            checkpoints: vec![
                Checkpoint { number: 1, began: 0.05, absorbed: 0.1, drained: Some(0.3), ..Checkpoint::default() },
                Checkpoint { number: 2, began: 0.2, absorbed: 0.25, drained: None, ..Checkpoint::default() },
            ],
            ..Meta::default()
        }
    }

    pub(crate) fn bytes() -> Vec<u8> {
        let mut out = Writer::new(Vec::new()).expect("into memory");
        out.meta(&meta()).expect("into memory");
        let paths: Vec<(u64, String)> = (0..3).map(|n| (10 + n, format!("/data/a;b/f{n}.bin"))).collect();
        // Only the table of files names the others.
        out.paths(&paths[..1]).expect("into memory");
        let calls = calls();
        for some in calls.chunks(100) {
            let until = some.iter().map(Traced::ended).max().expect("some");
            let (from, bytes) = (some[0].call.began, block::pack(some).into());
            let dropped = if from.is_zero() { 0 } else { 7 - u64::from(from > Duration::from_millis(150)) * 7 };
            out.block(&Block { from, until, calls: some.len() as u32, dropped, bytes }).expect("into memory");
        }
        let files = paths.into_iter().map(|(ino, path)| {
            let (mut record, mut place) = (FileRecord::default(), Place::default());
            calls.iter().filter(|one| one.ino == ino).for_each(|one| record.count(&one.call, Some(&mut place)));
            (ino, path, record)
        });
        out.files(files).expect("into memory");
        out.into_inner()
    }

    pub(crate) fn recording() -> Recording {
        read(bytes())
    }

    pub(crate) fn read(bytes: Vec<u8>) -> Recording {
        crate::report::sample::read(bytes).expect("a recording")
    }
}
