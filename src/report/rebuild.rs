//! Rebuilds the tables of a recording without them: files, operations and processes, counted again from its traced
//! calls. Pure.
//!
//! A recording ends with its tables; one of a killed daemon, or from a full disk, has none. Its calls are counted by
//! the same rules ([`FileRecord::count`]), so the result is what the tables would have said, less the calls that were
//! not traced.

use std::collections::HashMap;
use std::time::Duration;

use crate::error::Errno;
use crate::stats::access::{Cursor, Way};
use crate::stats::counters::{Op, OpCounters, Tier};
use crate::stats::heat::HeatMap;
use crate::stats::record::FileRecord;
use crate::stats::recording::{self, RecordedFailure, RecordedFile, RecordedOperation, RecordedProcess, Recording};
use crate::stats::timeline::{Amounts, Timeline};
use crate::stats::traced::Traced;

/// For how many open files the last read position is remembered; beyond that, tracking starts anew.
const HANDLES_MAX: usize = 1 << 17;
/// How often the timeline takes a sample.
const LOOK: Duration = Duration::from_millis(20);

/// Fills in what is missing; a complete recording, or one without traced calls, is left as it is.
pub fn rebuild(recording: &mut Recording) {
    let (traced, _) = recording.traced();
    if recording.is_whole || traced == 0 {
        return;
    }
    let mut again = Rebuild::default();
    recording.calls(Duration::ZERO, Duration::MAX, |call| again.count(call));
    let paths = std::mem::take(&mut recording.paths);
    recording.files = again.files(&paths);
    recording.paths = paths;
    let meta = &mut recording.meta;
    meta.until = again.until.as_secs_f64();
    meta.operations = again.operations();
    meta.failures = again.failures();
    let known = std::mem::take(&mut meta.processes);
    meta.processes = again.processes(known);
    meta.timeline = again.timeline();
    meta.heat = again.heat.recorded();
    let flaw = format!("its tables are missing; files and operations are counted again from {traced} traced calls");
    if !recording.flaws.contains(&flaw) {
        recording.flaws.push(flaw);
    }
}

#[derive(Default)]
struct Rebuild {
    records: Vec<(u64, FileRecord)>,
    /// The index of each file in `records`.
    places: HashMap<u64, usize>,
    cursors: HashMap<u64, Cursor>,
    operations: HashMap<(Op, Tier), OpCounters>,
    /// By error number.
    failures: HashMap<(Op, i32), u64>,
    processes: HashMap<u32, RecordedProcess>,
    amounts: Amounts,
    timeline: Timeline,
    heat: HeatMap,
    /// The timeline has everything up to here.
    sampled: Duration,
    until: Duration,
}

impl Rebuild {
    fn count(&mut self, traced: &Traced) {
        let Traced { call, ino, handle, process, .. } = *traced;
        let place = *self.places.entry(ino).or_insert_with(|| {
            self.records.push((ino, FileRecord::default()));
            self.records.len() - 1
        });
        let record = &mut self.records[place].1;
        if self.cursors.len() >= HANDLES_MAX {
            self.cursors.clear();
        }
        let last = record.last_way();
        let cursor = (handle != 0).then(|| self.cursors.entry(handle).or_insert_with(|| Cursor::new(last)));
        record.count(&call, cursor);
        if call.op == Op::Release {
            self.cursors.remove(&handle);
        }
        self.operations.entry((call.op, call.tier)).or_default().record(&call);
        if let Some(errno) = call.errno {
            *self.failures.entry((call.op, errno as i32)).or_default() += 1;
        } else if matches!(call.op, Op::Open | Op::Create) {
            record.opened_by(process.into(), None);
        }
        self.by_process(traced);
        self.over_time(traced);
    }

    fn by_process(&mut self, Traced { call, handle, process, .. }: &Traced) {
        let known = self.processes.entry(*process).or_default();
        if *handle != 0 {
            known.time += call.took.as_secs_f64();
        }
        let (calls, bytes) = match call.op {
            Op::Open | Op::Create if call.errno.is_none() => (&mut known.opens, None),
            Op::Read => (&mut known.reads, Some(&mut known.bytes_read)),
            Op::Write => (&mut known.writes, Some(&mut known.bytes_written)),
            _ => return,
        };
        *calls += 1;
        if let Some(bytes) = bytes {
            *bytes = bytes.saturating_add(call.bytes);
        }
    }

    fn over_time(&mut self, traced: &Traced) {
        let (call, ended) = (&traced.call, traced.ended());
        self.amounts.calls += 1;
        let moved = match call.op {
            Op::Read => &mut self.amounts.read,
            Op::Write => &mut self.amounts.written,
            _ => &mut [0; 2],
        };
        moved[call.tier as usize] = moved[call.tier as usize].saturating_add(call.bytes);
        self.until = self.until.max(ended);
        if ended >= self.sampled + LOOK {
            self.timeline.sample(ended, self.amounts);
            self.sampled = ended;
        }
        let way = match call.op {
            Op::Read => Way::Read,
            Op::Write => Way::Write,
            _ => return,
        };
        self.heat.count(traced.process.into(), way, call.bytes, call.began, call.took);
    }

    fn files(&mut self, paths: &HashMap<u64, String>) -> Vec<RecordedFile> {
        self.places = HashMap::new();
        let named = |(ino, record): (u64, FileRecord)| {
            let path = paths.get(&ino).cloned().unwrap_or_else(|| format!("(file {ino} without a name)"));
            RecordedFile::new(ino, path, &record)
        };
        std::mem::take(&mut self.records).into_iter().map(named).collect()
    }

    fn operations(&self) -> Vec<RecordedOperation> {
        let all = Op::ALL.into_iter().flat_map(|op| Tier::ALL.map(|tier| (op, tier)));
        let met = all.filter_map(|(op, tier)| Some((op, tier, self.operations.get(&(op, tier))?.figures())));
        met.map(RecordedOperation::from).collect()
    }

    fn failures(&self) -> Vec<RecordedFailure> {
        let mut all: Vec<_> = self
            .failures
            .iter()
            .map(|((op, errno), calls)| RecordedFailure::from((*op, Errno::from_raw(*errno), *calls)))
            .collect();
        all.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| (a.op.name(), &a.errno).cmp(&(b.op.name(), &b.errno))));
        all
    }

    /// Adds the names of known processes.
    fn processes(&mut self, known: Vec<RecordedProcess>) -> Vec<RecordedProcess> {
        for RecordedProcess { number, pid, command, cgroup, .. } in known {
            if let Some(met) = u32::try_from(number).ok().and_then(|number| self.processes.get_mut(&number)) {
                (met.pid, met.command, met.cgroup) = (pid, command, cgroup);
            }
        }
        let numbered = |(number, process): (&u32, &RecordedProcess)| RecordedProcess {
            number: (*number).into(),
            ..process.clone()
        };
        let mut all: Vec<_> = self.processes.iter().map(numbered).collect();
        all.sort_by_key(|process| process.number);
        all
    }

    fn timeline(&mut self) -> recording::RecordedTimeline {
        self.timeline.sample(self.until.max(self.sampled + Duration::from_nanos(1)), self.amounts);
        self.timeline.recorded()
    }
}
