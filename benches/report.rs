//! What a report of ten million calls costs: `cargo bench --bench report`. Makes up a recording of a training run over 1.3 million
//! files, has the program make each document of it, and prints how long that took and how much memory. `FILES=10000 cargo bench
//! --bench report` makes a smaller one; with `KEEP=DIRECTORY` the recording and the documents stay there.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use dlio_fs::error::Errno;
use dlio_fs::stats::access::{Cursor, Way};
use dlio_fs::stats::catalog::Catalog;
use dlio_fs::stats::counters::{Call, Op, OpCounters, Tier};
use dlio_fs::stats::heat::HeatMap;
use dlio_fs::stats::record::FileRecord;
use dlio_fs::stats::recording::{
    Checkpoint, Epoch, Mark, Meta, RecordedFailure, RecordedOperation, RecordedProcess, TierPlace, Writer,
};
use dlio_fs::stats::status::IoPathFigures;
use dlio_fs::stats::timeline::{Amounts, Timeline};
use dlio_fs::stats::trace::{Block, block};
use dlio_fs::stats::traced::Traced;
use nix::sys::resource::{UsageWho, getrusage};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

fn main() {
    // As a test it would take minutes, and show nothing.
    if !std::env::args().any(|arg| arg == "--bench") && std::env::var_os("FILES").is_none() {
        return;
    }
    let files = std::env::var("FILES").map_or(1_300_000, |files| files.parse().unwrap());
    let epochs = std::env::var("EPOCHS").map_or(1, |epochs| epochs.parse().unwrap());
    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("KEEP");
    let dir = kept.as_ref().map_or(temporary.path(), Path::new);
    let recording = dir.join("run.dlio");
    let run = Run { files, epochs, workers: 6, checkpoint: (files / 4).max(1), prefix: "/imagenet/train" };
    let calls = write(&run, BufWriter::new(File::create(&recording).unwrap()));
    println!("{calls} calls over {files} files in {} MiB", fs::metadata(&recording).unwrap().len() >> 20);
    for ending in ["txt", "md", "html", "json", "csv"] {
        let document = dir.join(format!("report.{ending}"));
        let began = Instant::now();
        let mut report = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        let said = report.arg("report").arg(&recording).arg("-o").arg(&document).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        println!(
            "{ending}: {:.1} s, {} KiB",
            began.elapsed().as_secs_f64(),
            fs::metadata(&document).unwrap().len() >> 10
        );
    }
    // In KiB, of the one that took most.
    let most = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
    println!("memory: {} MiB at most", most >> 10);
}

/// A made-up training run: workers read a data set over and over, one of them saves checkpoints. All that its recording says was
/// counted by the program's own counters, call by call.
struct Run {
    files: u64,
    epochs: u64,
    workers: u32,
    /// Every so many files; 0 for none.
    checkpoint: u64,
    /// What a path begins with.
    prefix: &'static str,
}

const BLOCK: usize = 1 << 15;
const READ: u64 = 128 << 10;
/// Inode numbers of checkpoints begin here.
const SAVED: u64 = 1 << 40;

/// What is written so far, and all counters.
struct Observed<W> {
    out: Writer<W>,
    calls: Vec<Traced>,
    files: Catalog,
    operations: HashMap<(Op, Tier), OpCounters>,
    failures: HashMap<(Op, String), u64>,
    processes: Vec<RecordedProcess>,
    heat: HeatMap,
    timeline: Timeline,
    amounts: Amounts,
    meta: Meta,
    handles: u64,
    traced: u64,
}

/// Writes the recording; how many calls are in it.
fn write<W: Write>(run: &Run, out: W) -> u64 {
    let mut writer = Writer::new(out).expect("written");
    writer.meta(&meta()).expect("written");
    let process = |n: u32| RecordedProcess {
        number: u64::from(n) + 1,
        pid: 41_200 + n,
        command: if n == 0 { "python".into() } else { "pt_data_worker".into() },
        cgroup: "/user.slice/train.service".into(),
        ..RecordedProcess::default()
    };
    let mut all = Observed {
        out: writer,
        calls: Vec::new(),
        files: Catalog::new(1 << 30),
        operations: HashMap::new(),
        failures: HashMap::new(),
        processes: (0..=run.workers).map(process).collect(),
        heat: HeatMap::default(),
        timeline: Timeline::default(),
        amounts: Amounts::default(),
        meta: meta(),
        handles: 0,
        traced: 0,
    };
    all.train(run);
    all.finish()
}

fn meta() -> Meta {
    let place =
        |path: &str, kind: &str, total: u64, used: u64| TierPlace { path: path.into(), kind: kind.into(), total, used };
    Meta {
        version: "0.1.0".into(),
        host: "node17".into(),
        kernel: "Linux 6.18.0".into(),
        uid: 1000,
        mountpoint: "/mnt/train".into(),
        fast: place("/optane", "ext4", 480 << 30, 112 << 30),
        slow: place("/hdd", "xfs", 16 << 40, 9 << 40),
        since: 1_795_339_700_000_000_000,
        safety: "SAFE: everything is on the slow tier".into(),
        io_path: IoPathFigures {
            name: "exact".into(),
            opens: [("exact".into(), 1)].into(),
            not_seen: vec!["what programs asked of the kernel and it answered by itself".into()],
        },
        ..Meta::default()
    }
}

/// Most are small, some are large, as in a data set of pictures with some archives.
fn size(random: &mut SmallRng) -> u64 {
    match random.random_range(0..100) {
        0..45 => random.random_range(2_000..60_000),
        45..90 => random.random_range(60_000..220_000),
        90..97 => random.random_range(220_000..1_500_000),
        _ => random.random_range(1_500_000..9_000_000),
    }
}

impl<W: Write> Observed<W> {
    fn train(&mut self, run: &Run) {
        let mut random = SmallRng::seed_from_u64(1);
        let sizes: Vec<u64> = (0..run.files).map(|_| size(&mut random)).collect();
        let mut clocks: Vec<Duration> =
            (0..run.workers).map(|n| Duration::from_millis(150 + 40 * u64::from(n))).collect();
        let (mut saved, mut until_save) = (0, run.checkpoint);
        for epoch in 1..=run.epochs {
            let began = clocks.iter().min().copied().unwrap_or_default();
            let before = self.moved();
            for file in 0..run.files {
                let Some(worker) = (0..clocks.len()).min_by_key(|worker| clocks[*worker]) else { return };
                let is_fast = epoch > 1 && file % 3 == 0;
                let place = (file, sizes[file as usize], is_fast);
                clocks[worker] = self.read_file(run, &mut random, worker as u32, place, clocks[worker]);
                until_save = until_save.saturating_sub(1);
                if run.checkpoint > 0 && until_save == 0 {
                    until_save = run.checkpoint;
                    saved += 1;
                    let ended = self.save(saved, clocks[worker]);
                    // The step waits, and all who feed it.
                    clocks.iter_mut().for_each(|clock| *clock = (*clock).max(ended));
                }
            }
            let ended = clocks.iter().max().copied().unwrap_or_default();
            let now = self.moved();
            self.meta.epochs.push(Epoch {
                number: epoch,
                began: began.as_secs_f64(),
                ended: ended.as_secs_f64(),
                open: false,
                files: run.files,
                reads: now.2 - before.2,
                bytes_fast: now.0 - before.0,
                bytes_slow: now.1 - before.1,
            });
            self.meta.marks.push(Mark { at: ended.as_secs_f64(), text: format!("validation {epoch}") });
            clocks.iter_mut().for_each(|clock| *clock = ended + Duration::from_millis(700));
        }
    }

    fn moved(&self) -> (u64, u64, u64) {
        (self.amounts.read[0], self.amounts.read[1], self.amounts.calls)
    }

    /// Opens, reads to the end, closes; when it was done.
    fn read_file(
        &mut self,
        run: &Run,
        random: &mut SmallRng,
        worker: u32,
        (file, size, is_fast): (u64, u64, bool),
        now: Duration,
    ) -> Duration {
        self.handles += 1;
        let (mut record, mut cursor) = (FileRecord::default(), Cursor::default());
        let mut whole = Traced {
            call: call(Op::Lookup, now),
            ino: file + 2,
            handle: self.handles,
            process: worker + 2,
            thread: 41_201 + worker,
        };
        let tier = if is_fast { Tier::Fast } else { Tier::Slow };
        let mut at = now;
        let mut run_call = |all: &mut Self, op, offset, bytes, micros: u64, tier| {
            whole.call = Call { op, began: at, took: Duration::from_micros(micros), offset, bytes, errno: None, tier };
            record.count(&whole.call, Some(&mut cursor));
            all.note(whole);
            at += whole.call.took + Duration::from_micros(6);
        };
        let micros = random.random_range(60..140);
        run_call(self, Op::Open, 0, 0, if is_fast { 24 } else { micros }, tier);
        let mut offset = 0;
        while offset < size {
            let bytes = READ.min(size - offset);
            let seek = if offset == 0 { random.random_range(1_200..7_000) } else { 0 };
            let micros = if is_fast { 20 + bytes / 2_000 } else { seek + bytes / 150 };
            run_call(self, Op::Read, offset, bytes, micros, tier);
            offset += bytes;
        }
        run_call(self, Op::Read, size, 0, 4, Tier::Fast);
        run_call(self, Op::Flush, 0, 0, 3, Tier::Fast);
        run_call(self, Op::Release, 0, 0, 2, Tier::Fast);
        record.opened_by(u64::from(worker) + 2, None);
        self.processes[worker as usize + 1].opens += 1;
        let path = format!("{}/n{:04}/{file:08}.jpg", run.prefix, file % 1000);
        let path = self.files.first(&path);
        self.files.add(file + 2, Some(&path), &record);
        // Decoding.
        at + Duration::from_micros(random.random_range(400..1_600))
    }

    /// A checkpoint of 64 MiB; when it was done.
    fn save(&mut self, number: u64, now: Duration) -> Duration {
        self.handles += 1;
        let (mut record, mut cursor, mut at) = (FileRecord::default(), Cursor::default(), now);
        let ino = SAVED + number;
        let mut run_call = |all: &mut Self, op, offset, bytes, micros| {
            let call = Call {
                op,
                began: at,
                took: Duration::from_micros(micros),
                offset,
                bytes,
                errno: None,
                tier: Tier::Fast,
            };
            record.count(&call, Some(&mut cursor));
            all.note(Traced { call, ino, handle: all.handles, process: 1, thread: 41_200 });
            at += call.took + Duration::from_micros(20);
        };
        run_call(self, Op::Create, 0, 0, 90);
        (0..64).for_each(|n| run_call(self, Op::Write, n << 20, 1 << 20, 900));
        run_call(self, Op::Fsync, 0, 0, 30_000);
        run_call(self, Op::Flush, 0, 0, 5);
        run_call(self, Op::Release, 0, 0, 2);
        record.opened_by(1, Some(0o644));
        self.processes[0].opens += 1;
        let path = format!("/ckpt/step-{number:05}.pt");
        let first = self.files.first(&path);
        self.files.add(ino, Some(&first), &record);
        self.amounts.drained += 64 << 20;
        self.meta.checkpoints.push(Checkpoint {
            number,
            began: now.as_secs_f64(),
            absorbed: at.as_secs_f64(),
            files: 1,
            bytes: 64 << 20,
            path,
            drained: Some(at.as_secs_f64() + 1.9),
            ..Checkpoint::default()
        });
        at
    }

    /// Counts a call wherever the mount does, but in its file's record.
    fn note(&mut self, traced: Traced) {
        let call = traced.call;
        self.operations.entry((call.op, call.tier)).or_default().record(&call);
        let process = &mut self.processes[traced.process as usize - 1];
        process.time += call.took.as_secs_f64();
        self.amounts.calls += 1;
        let (calls, bytes, amounts, way) = match call.op {
            Op::Read => (&mut process.reads, &mut process.bytes_read, &mut self.amounts.read, Way::Read),
            Op::Write => (&mut process.writes, &mut process.bytes_written, &mut self.amounts.written, Way::Write),
            _ => return self.trace(traced),
        };
        *calls += 1;
        *bytes += call.bytes;
        amounts[call.tier as usize] += call.bytes;
        self.heat.count(traced.process.into(), way, call.bytes, call.began, call.took);
        self.trace(traced);
    }

    fn trace(&mut self, traced: Traced) {
        self.timeline.sample(traced.ended(), self.amounts);
        self.calls.push(traced);
        if self.calls.len() == BLOCK {
            self.seal();
        }
    }

    fn seal(&mut self) {
        self.calls.sort_by_key(|traced| traced.call.began);
        let (Some(first), Some(last)) = (self.calls.first(), self.calls.iter().map(Traced::ended).max()) else {
            return;
        };
        let (from, calls) = (first.call.began, self.calls.len() as u32);
        let block = Block { from, until: last, calls, dropped: 0, bytes: block::pack(&self.calls).into() };
        self.out.block(&block).expect("written");
        self.traced += u64::from(calls);
        self.calls.clear();
    }

    fn finish(mut self) -> u64 {
        // Names that were asked for and are not there.
        for n in 0..40 {
            let call = Call { errno: Some(Errno::ENOENT), ..call(Op::Lookup, Duration::from_millis(n)) };
            self.operations.entry((Op::Lookup, Tier::Slow)).or_default().record(&call);
            *self.failures.entry((Op::Lookup, "ENOENT".into())).or_default() += 1;
        }
        self.seal();
        let mut all = Op::ALL.into_iter().flat_map(|op| Tier::ALL.map(|tier| (op, tier))).collect::<Vec<_>>();
        all.retain(|key| self.operations.contains_key(key));
        self.meta.operations =
            all.iter().map(|key| RecordedOperation::from((key.0, key.1, self.operations[key].figures()))).collect();
        let failure = |((op, errno), calls): (&(Op, String), &u64)| RecordedFailure {
            op: *op,
            errno: errno.clone(),
            calls: *calls,
        };
        self.meta.failures = self.failures.iter().map(failure).collect();
        self.meta.until = self.meta.epochs.last().map_or(0.0, |epoch| epoch.ended + 0.5);
        self.meta.heat = self.heat.recorded();
        self.meta.processes = std::mem::take(&mut self.processes);
        self.meta.timeline = self.timeline.recorded();
        self.meta.files = self.files.extent();
        self.out.meta(&self.meta).expect("written");
        let mut some = Vec::new();
        let (files, out) = (&self.files, &mut self.out);
        files.for_each(|ino, path, record| {
            some.push((ino, path.unwrap_or_default().to_owned(), record));
            if some.len() == 8192 {
                out.files(some.drain(..)).expect("written");
            }
        });
        out.files(some).expect("written");
        out.rest(&[]).expect("written");
        self.traced
    }
}

fn call(op: Op, began: Duration) -> Call {
    Call { op, began, took: Duration::from_micros(40), offset: 0, bytes: 0, errno: None, tier: Tier::Slow }
}
