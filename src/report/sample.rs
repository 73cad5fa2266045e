//! Small recordings with known figures, for tests.

use std::collections::HashMap;
use std::io::{self, Cursor as Bytes, Write};
use std::time::Duration;

use super::outlet::Outlet;
use crate::error::Errno;
use crate::stats::access::Cursor;
use crate::stats::counters::{Call, Op, OpCounters, Tier};
use crate::stats::record::FileRecord;
use crate::stats::recording::{
    Checkpoint, Epoch, HeatRow, Mark, Meta, RecordedFailure, RecordedHeat, RecordedOperation, RecordedProcess,
    RecordedTimeline, RecordedWindow, Recording, TierPlace, Writer,
};
use crate::stats::status::IoPathFigures;
use crate::stats::trace::{Block, block};
use crate::stats::traced::Traced;

/// A document in memory: its parts and tables, each with its name, which parts have none.
#[derive(Debug, Default)]
pub(crate) struct Memory(pub(crate) Vec<(String, Vec<u8>)>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            self.next()?;
        }
        self.0.last_mut().expect("one").1.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Outlet for Memory {
    fn next(&mut self) -> io::Result<()> {
        self.table("")
    }

    fn table(&mut self, name: &str) -> io::Result<()> {
        self.0.push((name.to_owned(), Vec::new()));
        Ok(())
    }
}

/// A recording under construction.
pub(crate) struct Made {
    pub(crate) meta: Meta,
    pub(crate) calls: Vec<Traced>,
    pub(crate) paths: Vec<(u64, String)>,
}

/// A call on one file by one process: operation, start in milliseconds, duration in microseconds, offset, bytes, tier.
type Line = (Op, u64, u64, u64, u64, Tier);

impl Made {
    pub(crate) fn file(&mut self, ino: u64, path: &str, process: u32, lines: &[Line]) {
        self.paths.push((ino, path.to_owned()));
        for (op, began, took, offset, bytes, tier) in lines.iter().copied() {
            let (began, took) = (Duration::from_millis(began), Duration::from_micros(took));
            let call = Call { op, began, took, offset, bytes, errno: None, tier };
            self.calls.push(Traced { call, ino, handle: ino, process, thread: process });
        }
    }

    fn records(&self) -> Vec<(u64, String, FileRecord)> {
        let (mut records, mut cursors) = (HashMap::<u64, FileRecord>::new(), HashMap::<u64, Cursor>::new());
        for traced in &self.calls {
            let record = records.entry(traced.ino).or_default();
            record.count(&traced.call, Some(cursors.entry(traced.handle).or_default()));
            if matches!(traced.call.op, Op::Open | Op::Create) && traced.call.errno.is_none() {
                record.opened_by(traced.process.into(), None);
            }
        }
        self.paths.iter().map(|(ino, path)| (*ino, path.clone(), records.remove(ino).unwrap_or_default())).collect()
    }

    fn operations(&self) -> Vec<RecordedOperation> {
        let mut counters = HashMap::<(Op, Tier), OpCounters>::new();
        self.calls
            .iter()
            .for_each(|traced| counters.entry((traced.call.op, traced.call.tier)).or_default().record(&traced.call));
        let mut all: Vec<_> =
            counters.iter().map(|(key, one)| RecordedOperation::from((key.0, key.1, one.figures()))).collect();
        all.sort_by_key(|line| (line.op as usize, line.tier as usize));
        all
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Writer::new(Vec::new()).expect("into memory");
        let mut meta = self.meta.clone();
        out.meta(&meta).expect("into memory");
        out.paths(&self.paths).expect("into memory");
        let mut calls = self.calls.clone();
        calls.sort_by_key(|traced| traced.call.began);
        for some in calls.chunks(5) {
            let until = some.iter().map(Traced::ended).max().unwrap_or_default();
            let (from, bytes) = (some[0].call.began, block::pack(some).into());
            out.block(&Block { from, until, calls: some.len() as u32, dropped: 0, bytes }).expect("into memory");
        }
        if meta.operations.is_empty() {
            meta.operations = self.operations();
        }
        out.meta(&meta).expect("into memory");
        out.files(self.records()).expect("into memory");
        out.rest(&[]).expect("into memory");
        out.into_inner()
    }

    pub(crate) fn recording(&self) -> Recording {
        read(self.bytes()).expect("a recording")
    }
}

pub(crate) fn read(bytes: Vec<u8>) -> Result<Recording, String> {
    Recording::read(vec![Box::new(Bytes::new(bytes))])
}

/// Only a mount.
pub(crate) fn empty() -> Made {
    let place =
        |path: &str, kind: &str| TierPlace { path: path.into(), kind: kind.into(), total: 1 << 40, used: 1 << 30 };
    let meta = Meta {
        version: "0.1.0".into(),
        host: "node17".into(),
        mountpoint: "/mnt/train".into(),
        fast: place("/optane", "ext4"),
        slow: place("/hdd", "xfs"),
        since: 1_795_339_700_000_000_000,
        until: 10.0,
        io_path: IoPathFigures { name: "exact".into(), ..IoPathFigures::default() },
        ..Meta::default()
    };
    Made { meta, calls: Vec::new(), paths: Vec::new() }
}

/// Two processes read one file each from the slow tier, then the first one writes one.
pub(crate) fn made() -> Made {
    let mut made = empty();
    let (fast, slow) = (Tier::Fast, Tier::Slow);
    made.file(
        2,
        "/data/a",
        1,
        &[
            (Op::Open, 1000, 200, 0, 0, slow),
            (Op::Read, 1001, 99_000, 0, 100_000, slow),
            (Op::Read, 1100, 1, 100_000, 0, fast),
            (Op::Release, 1101, 2, 0, 0, fast),
        ],
    );
    made.file(
        3,
        "/data/b",
        2,
        &[
            (Op::Open, 1000, 200, 0, 0, slow),
            (Op::Read, 1050, 150_000, 0, 300_000, slow),
            (Op::Read, 1200, 50_000, 300_000, 100_000, slow),
            (Op::Release, 1300, 2, 0, 0, fast),
        ],
    );
    made.file(
        4,
        "/ckpt/c",
        1,
        &[
            (Op::Create, 5000, 100, 0, 0, fast),
            (Op::Write, 5001, 10_000, 0, 1 << 20, fast),
            (Op::Fsync, 5011, 5_000, 0, 0, fast),
            (Op::Release, 5016, 2, 0, 0, fast),
        ],
    );
    let began = Duration::from_millis(900);
    let call =
        Call { op: Op::Lookup, began, took: began / 9000, offset: 0, bytes: 0, errno: Some(Errno::ENOENT), tier: fast };
    made.calls.push(Traced { call, ino: 1, handle: 0, process: 0, thread: 0 });
    made.paths.push((1, "/".into()));
    let process = |number, command: &str, bytes_read, bytes_written| RecordedProcess {
        number,
        pid: 100 + number as u32,
        command: command.into(),
        opens: 1,
        reads: 2,
        bytes_read,
        bytes_written,
        ..RecordedProcess::default()
    };
    let meta = &mut made.meta;
    meta.processes = vec![process(1, "python", 100_000, 1 << 20), process(2, "worker", 400_000, 0)];
    meta.failures = vec![RecordedFailure { op: Op::Lookup, errno: "ENOENT".into(), calls: 1 }];
    let spans = |at: usize, n: u64| (0..100).map(|span| if span == at { n } else { 0 }).collect::<Vec<u64>>();
    meta.timeline = RecordedTimeline {
        span: 0.1,
        read_fast: spans(0, 0),
        read_slow: spans(11, 500_000),
        written_fast: spans(50, 1 << 20),
        written_slow: spans(0, 0),
        drained: spans(60, 1 << 20),
        calls: spans(11, 13),
    };
    let row = |process, read, written| HeatRow { process, read, written };
    meta.heat = RecordedHeat {
        span: 0.1,
        rows: vec![row(1, spans(10, 100_000), spans(50, 1 << 20)), row(2, spans(12, 400_000), spans(0, 0))],
    };
    meta.epochs =
        vec![Epoch { number: 1, began: 1.0, ended: 1.3, files: 2, reads: 4, bytes_slow: 500_000, ..Epoch::default() }];
    meta.checkpoints = vec![Checkpoint {
        number: 1,
        began: 5.0,
        absorbed: 5.016,
        files: 1,
        bytes: 1 << 20,
        path: "/ckpt/c".into(),
        drained: Some(6.016),
        ..Checkpoint::default()
    }];
    let window = RecordedWindow { name: "w1".into(), began: 1.0, ended: 2.0, ..RecordedWindow::default() };
    meta.windows = vec![RecordedWindow { files: 2, processes: 2, bytes_read: 500_000, ..window }];
    meta.marks = vec![Mark { at: 2.0, text: "step 100".into() }];
    made
}

/// Names that mean something to a browser, a terminal or a reader of Markdown, and as many of everything as there may
/// be.
pub(crate) fn hostile() -> Made {
    hostile_with(400)
}

/// The same with few of each.
pub(crate) fn few_hostile() -> Made {
    let mut made = hostile_with(2);
    let meta = &mut made.meta;
    meta.failures.truncate(2);
    meta.processes.truncate(2);
    meta.heat.rows.truncate(2);
    meta.epochs.truncate(2);
    meta.checkpoints.truncate(2);
    meta.windows.truncate(2);
    meta.marks.truncate(2);
    made
}

fn hostile_with(files: u64) -> Made {
    const NAME: &str =
        "</script><script>alert(1)</script><b>&\"'`|[x](http://x/)\u{1b}[31m\u{9b}2J\u{7f}\u{202e}\u{2028}\r\n\t";
    let mut made = made();
    let long = format!("/{}/{NAME}", "d".repeat(4000));
    for n in 0..files {
        made.file(100 + n, &format!("{long}{n}"), 1, &[(Op::Read, n, 70, 0, 5, Tier::Slow)]);
    }
    let meta = &mut made.meta;
    for text in [&mut meta.version, &mut meta.host, &mut meta.kernel, &mut meta.mountpoint, &mut meta.safety] {
        *text = NAME.into();
    }
    (meta.window, meta.io_path.name) = (Some(NAME.into()), NAME.into());
    meta.io_path.opens = [(NAME.to_owned(), 3)].into();
    meta.io_path.not_seen = vec![NAME.into()];
    (meta.fast.path, meta.slow.path, meta.fast.kind) = (NAME.into(), NAME.into(), NAME.into());
    meta.fast.used = meta.fast.total;
    meta.failures = vec![RecordedFailure { op: Op::Lookup, errno: NAME.into(), calls: 1 << 60 }; 500];
    let process = |number| RecordedProcess {
        number,
        pid: 7,
        command: NAME.into(),
        cgroup: NAME.into(),
        opens: 1,
        bytes_read: u64::MAX,
        ..RecordedProcess::default()
    };
    meta.processes = (0..4096).map(process).collect();
    let many = vec![u64::MAX; 4096];
    meta.timeline = RecordedTimeline {
        span: 0.1,
        read_fast: many.clone(),
        read_slow: many.clone(),
        written_fast: many.clone(),
        written_slow: many.clone(),
        drained: many.clone(),
        calls: many.clone(),
    };
    let row = |process| HeatRow { process, read: many.clone(), written: (0..4096).map(|n| n << 40).collect() };
    meta.heat = RecordedHeat { span: 0.1, rows: (0..60).map(row).collect() };
    (meta.from, meta.until) = (0.0, 409.6);
    meta.epochs = vec![Epoch { number: 2, ended: 1e300, bytes_slow: u64::MAX, ..Epoch::default() }; 5000];
    let checkpoint = Checkpoint { path: long.clone(), bytes: u64::MAX, absorbed: 300.0, ..Checkpoint::default() };
    meta.checkpoints = vec![checkpoint; 1000];
    let window =
        RecordedWindow { name: NAME.into(), began: 9.0, ended: 1.0, files: 1, processes: 1, ..meta.windows[0].clone() };
    meta.windows = vec![window; 256];
    meta.marks = vec![Mark { at: 3.0, text: NAME.into() }; 10_000];
    made
}
