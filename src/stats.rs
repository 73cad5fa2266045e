//! The statistics: one registry of exact counters, per operation and per file, and its rendering.
//!
//! It knows neither the file system nor the tiers: both push plain numbers into it, and it renders a plain
//! [`status::Status`] that its caller fills. Every table has a limit, and what exceeds it is counted.
//!
//! A file's counters are in its [`FileCounters`], which open handles hold, so that a read or write touches no table. The
//! latest few thousand files without an open handle keep their own; those of the others are merged, packed, into the
//! [`Catalog`]. Locks, in the order in which they are taken, each for a few instructions: the table of files, a
//! handle's cursor, a file's piece, a part of the catalog.

pub mod access;
pub mod catalog;
pub mod checkpoints;
mod collect;
pub mod counters;
pub mod daemon;
pub mod epochs;
pub mod files;
pub mod fleet;
pub mod heat;
pub mod metrics;
pub mod ops;
pub mod pace;
pub mod plans;
pub mod processes;
pub mod queue;
pub mod record;
pub mod recorder;
pub mod recording;
pub mod render;
pub mod staging;
pub mod status;
pub mod timeline;
pub mod trace;
pub mod traced;
mod watch;
pub mod windows;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;

use crate::config::Config;
use crate::error::Errno;
use crate::observing::Door;

use access::{Cursor, Way};
use catalog::{Catalog, CatalogExtent, FirstPath};
use counters::{Call, Count, Op, OpCounters, OpFigures, Tier};
use files::{ActiveFile, ActiveFiles, Activity, FileFigures, FileTable};
use plans::{PathHashes, Plans, RunningPlan, Spent};
use processes::{Process, Processes};
use record::{FileRecord, failed, failure};
use recorder::{Labels, MetricsRecorder};
use timeline::{Amounts, Timeline};
use trace::Trace;
use traced::Traced;
use watch::Watch;
use windows::{Window, Windows};

/// How many files keep their counters in memory unpacked.
const AT_HAND: usize = 8192;
/// What a command gets that needs them.
const OFF: &str = "the statistics were turned off by a bug: see the log, and mount again";
/// How many of these files are checked when one more comes: two, so that there are never many too many.
const LOOKED_AT: usize = 2;

/// The registry. Shared by every thread.
#[derive(Debug)]
pub struct Stats {
    /// If false, nothing is counted.
    on: bool,
    /// A bug in here must not end the daemon.
    door: Door,
    recorder: Arc<MetricsRecorder>,
    /// Registered when they are first called.
    ops: [[OnceLock<OpCounters>; Tier::ALL.len()]; Op::ALL.len()],
    /// By [`failure`].
    failures: DashMap<u64, Count>,
    files: DashMap<u64, Arc<FileCounters>>,
    /// The keys of `files`, the longest in memory first.
    queue: Mutex<VecDeque<u64>>,
    /// Stands in for every file while nothing is counted.
    nobody: Arc<FileCounters>,
    catalog: Catalog,
    pub processes: Processes,
    windows: Windows,
    timeline: Mutex<Timeline>,
    pub trace: Trace,
    /// What plans promised, compared with what was counted later.
    pub plans: Plans,
    watch: Mutex<Watch>,
    /// Handles opened so far.
    handles: AtomicU64,
    since: Instant,
    /// The same moment as wall-clock time.
    epoch: SystemTime,
}

/// The counters of one file since it was last merged into the catalog.
#[derive(Debug, Default)]
pub struct FileCounters {
    ino: u64,
    /// The path when it was first seen; it may have been renamed or removed since.
    first: Option<FirstPath>,
    /// What was counted before it got this entry.
    before: Activity,
    piece: Mutex<UnmergedCounters>,
    /// It was asked for since it was last checked.
    used: AtomicBool,
}

#[derive(Debug, Default)]
struct UnmergedCounters {
    record: FileRecord,
    /// The direction of the last call, even if that was merged since.
    last: Option<Way>,
}

/// Who called, for calls without an open file.
#[derive(Clone, Copy, Debug, Default)]
pub struct By {
    /// The number of the process; 0 if unknown.
    pub process: u32,
    /// As the kernel names it.
    pub thread: u32,
}

/// An open file, for which reads and writes through it are counted.
#[derive(Debug)]
pub struct Handle {
    /// From 1 on; 0 if nothing is counted.
    number: u64,
    file: Arc<FileCounters>,
    process: Arc<Process>,
    cursor: Mutex<Cursor>,
}

impl Default for Stats {
    fn default() -> Self {
        Stats::new(Config::default().profile_memory as usize, Arc::default())
    }
}

impl Stats {
    /// A registry whose file records take at most about `memory` bytes.
    pub fn new(memory: usize, recorder: Arc<MetricsRecorder>) -> Self {
        Stats {
            on: true,
            door: Door::new("the statistics"),
            recorder,
            ops: std::array::from_fn(|_| std::array::from_fn(|_| OnceLock::new())),
            failures: DashMap::new(),
            files: DashMap::new(),
            queue: Mutex::default(),
            nobody: Arc::default(),
            catalog: Catalog::new(memory),
            processes: Processes::default(),
            windows: Windows::new(memory),
            timeline: Mutex::default(),
            trace: Trace::default(),
            plans: Plans::default(),
            watch: Mutex::default(),
            handles: AtomicU64::new(0),
            since: Instant::now(),
            epoch: SystemTime::now(),
        }
    }

    /// One that counts nothing.
    pub fn off() -> Self {
        Stats { on: false, ..Stats::new(0, Arc::default()) }
    }

    /// When the registry was made.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The time since the registry was made.
    pub fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether it counts.
    pub fn is_on(&self) -> bool {
        self.on && !self.door.is_shut()
    }

    /// Whether a bug has ended the counting.
    pub fn has_failed(&self) -> bool {
        self.door.is_shut()
    }

    /// The counters of an inode. `name` is called once, when the file is new.
    pub fn file(&self, ino: u64, name: impl FnOnce() -> Option<String>) -> Arc<FileCounters> {
        if !self.on {
            return Arc::clone(&self.nobody);
        }
        self.door.enter(|| self.known_file(ino, name)).unwrap_or_else(|| Arc::clone(&self.nobody))
    }

    fn known_file(&self, ino: u64, name: impl FnOnce() -> Option<String>) -> Arc<FileCounters> {
        if let Some(file) = self.files.get(&ino) {
            file.used.store(true, Relaxed);
            return Arc::clone(&file);
        }
        let before = self.catalog.get(ino);
        let last = before.as_ref().and_then(FileRecord::last_way);
        // Called before the table is locked: a name comes from the engine, which has its own locks.
        let first = if before.is_none() { name().map(|path| self.catalog.first(&path)) } else { None };
        let before = before.as_ref().map(Activity::from).unwrap_or_default();
        let piece = Mutex::new(UnmergedCounters { last, ..UnmergedCounters::default() });
        let file = match self.files.entry(ino) {
            Entry::Occupied(entry) => return Arc::clone(entry.get()),
            Entry::Vacant(entry) => {
                let used = AtomicBool::new(false);
                Arc::clone(&entry.insert(Arc::new(FileCounters { ino, first, before, piece, used })))
            }
        };
        self.merge_idle(ino);
        file
    }

    /// Puts a new file in the queue, and merges those at its front that nobody uses.
    fn merge_idle(&self, new: u64) {
        let mut queue = self.queue.lock();
        queue.push_back(new);
        let mut inspected = Vec::with_capacity(LOOKED_AT);
        if queue.len() > AT_HAND {
            inspected.extend((0..LOOKED_AT).filter_map(|_| queue.pop_front()));
        }
        drop(queue);
        for ino in inspected {
            // With the table's lock held: a thread that asks for the file meanwhile waits and finds the catalog's
            // record; a thread that holds the file keeps it here.
            let gone = self.files.remove_if(&ino, |_, file| {
                let idle = !file.used.swap(false, Relaxed) && Arc::strong_count(file) == 1;
                if idle {
                    self.merge(file);
                }
                idle
            });
            if gone.is_none() {
                self.queue.lock().push_back(ino);
            }
        }
    }

    /// Moves a file's counters since the last merge to the catalog.
    fn merge(&self, file: &FileCounters) {
        let mut piece = file.piece.lock();
        if !piece.record.is_empty() {
            self.catalog.add(file.ino, file.first.as_ref(), &piece.record);
            let path = || file.first.as_ref().and_then(|path| self.catalog.whole(path));
            self.windows.add(file.ino, path, &piece.record);
            piece.record = FileRecord::default();
        }
    }

    /// A handle on a file just opened by a process; `mode`: the permission bits, if the open created the file.
    pub fn open(&self, file: Arc<FileCounters>, process: Arc<Process>, mode: Option<u32>) -> Handle {
        let opened = || {
            process.opened();
            let mut piece = file.piece.lock();
            piece.record.opened_by(process.number(), mode);
            piece.last
        };
        let Some(last) = self.on.then(|| self.door.enter(opened)).flatten() else {
            return Handle { number: 0, file, process, cursor: Mutex::default() };
        };
        let number = self.handles.fetch_add(1, Relaxed) + 1;
        Handle { number, file, process, cursor: Mutex::new(Cursor::new(last)) }
    }

    /// Counts one call, for its operation and for a file.
    pub fn record(&self, call: &Call, file: &FileCounters, by: By) {
        self.enter(|| {
            self.count(call);
            let By { process, thread } = by;
            self.trace.push(Traced { call: *call, ino: file.ino, handle: 0, process, thread });
            file.piece.lock().record.count(call, None);
        });
    }

    /// Counts one call of a thread through a handle.
    pub fn record_through(&self, call: &Call, handle: &Handle, thread: u32) {
        self.enter(|| {
            self.count(call);
            let (ino, process) = (handle.file.ino, handle.process.number() as u32);
            self.trace.push(Traced { call: *call, ino, handle: handle.number, process, thread });
            handle.process.count(call);
            let mut cursor = handle.cursor.lock();
            let mut piece = handle.file.piece.lock();
            piece.record.count(call, Some(&mut cursor));
            piece.last = cursor.last();
        });
    }

    fn enter(&self, work: impl FnOnce()) {
        if self.on {
            self.door.enter(work);
        }
    }

    fn count(&self, call: &Call) {
        self.counters(call.op, call.tier).record(call);
        if let Some(errno) = call.errno {
            let failures = self.failures.entry(failure(call.op, errno));
            failures.or_insert_with(|| self.failures_of(call.op, errno)).increment(1);
        }
    }

    fn counters(&self, op: Op, tier: Tier) -> &OpCounters {
        self.ops[op as usize][tier as usize].get_or_init(|| {
            let labels: Labels<'_> = &[("op", op.name()), ("tier", tier.name())];
            let (calls, latency) = ("dliofs_ops_total", "dliofs_op_duration_seconds");
            OpCounters::new(
                self.recorder.count(calls, "Calls of the applications, as FUSE names them.", labels),
                self.recorder.latency(latency, "From a request to its reply; a bound counts the shorter ones.", labels),
            )
        })
    }

    fn failures_of(&self, op: Op, errno: Errno) -> Count {
        let labels: Labels<'_> = &[("op", op.name()), ("errno", &format!("{errno:?}"))];
        self.recorder.count("dliofs_op_errors_total", "Calls that failed.", labels)
    }

    /// Counts calls that have neither a file nor a duration (the kernel dropping inodes from its cache).
    pub fn record_untimed(&self, op: Op, calls: u64) {
        if self.on {
            self.counters(op, Tier::Fast).record_untimed(calls);
        }
    }

    /// The operations that were called at least once, in the order of [`Op::ALL`], tier by tier.
    pub fn operations(&self) -> Vec<(Op, Tier, OpFigures)> {
        let all = Op::ALL.into_iter().flat_map(|op| Tier::ALL.map(|tier| (op, tier)));
        all.filter_map(|(op, tier)| Some((op, tier, self.ops[op as usize][tier as usize].get()?.figures()))).collect()
    }

    /// How often each operation failed with which error, in no order.
    pub fn failures(&self) -> Vec<(Op, Errno, u64)> {
        let told = |value, calls| failed(value).map(|(op, errno)| (op, errno, calls));
        self.failures.iter().filter_map(|entry| told(*entry.key(), entry.value().get())).collect()
    }

    /// How many files have their own record, and in how much memory.
    pub fn extent(&self) -> CatalogExtent {
        self.settle();
        self.catalog.extent()
    }

    /// The files, in no order, each with everything counted for it. `name` gives an inode's current path; if it has
    /// none any more, the path under which it was first seen is shown. One path with several inode numbers is one file.
    pub fn files(&self, name: impl Fn(u64) -> Option<String>) -> FileTable {
        self.settle();
        self.shown(&self.catalog, name, None)
    }

    /// The same for one user; the counters of all others are summed up in one line of the rest.
    pub fn files_of(&self, name: impl Fn(u64) -> Option<String>, is_theirs: impl Fn(u64) -> bool) -> FileTable {
        self.settle();
        self.shown(&self.catalog, name, Some(&is_theirs))
    }

    /// The files whose counters are unpacked: those that are open, and the latest few thousand; in no order, named as
    /// in [`Stats::files`]. The cost does not grow with the number of all files.
    pub fn active_files(&self, name: impl Fn(u64) -> Option<String>) -> ActiveFiles {
        self.settle();
        // Copied first: a name comes from the engine, which has its own locks.
        let active: Vec<_> = self.files.iter().map(|file| (file.ino, file.before.clone())).collect();
        let one = |(ino, before)| {
            let sums = Activity::from(&self.catalog.get(ino)?);
            let path = name(ino).or_else(|| self.catalog.path(ino)).unwrap_or_else(|| "?".into());
            Some(ActiveFile { ino, path, sums, before })
        };
        let files = active.into_iter().filter_map(one).collect();
        ActiveFiles { files, known: self.catalog.extent().files }
    }

    /// Notes what was spent until now on the files of a job that has ended. Scans all files.
    pub fn end_plan(&self, job: u64, name: impl Fn(u64) -> Option<String>) {
        let plan = self.plans.paths().into_iter().filter(|(number, _)| *number == job);
        for ((job, spent), (_, paths)) in self.spent(plan.clone(), name).into_iter().zip(plan) {
            self.plans.ended(job, &paths, spent);
        }
    }

    /// The results of all plans. Scans all files, if there is a plan.
    pub fn plans(&self, name: impl Fn(u64) -> Option<String>) -> Vec<RunningPlan> {
        if self.plans.is_empty() {
            return Vec::new();
        }
        self.plans.running(&self.spent(self.plans.paths().into_iter(), name))
    }

    fn spent(
        &self,
        plans: impl Iterator<Item = (u64, PathHashes)>,
        name: impl Fn(u64) -> Option<String>,
    ) -> Vec<(u64, Spent)> {
        self.settle();
        let mut sums: Vec<(u64, PathHashes, Spent)> =
            plans.map(|(job, paths)| (job, paths, Spent::default())).collect();
        self.catalog.for_each(|ino, first, record| {
            let Some(path) = name(ino).or_else(|| first.map(str::to_owned)) else { return };
            sums.iter_mut().filter(|(_, paths, _)| paths.has(&path)).for_each(|(_, _, spent)| spent.add(&record));
        });
        sums.into_iter().map(|(job, _, spent)| (job, spent)).collect()
    }

    fn shown(
        &self,
        catalog: &Catalog,
        name: impl Fn(u64) -> Option<String>,
        is_theirs: Option<IsTheirs<'_>>,
    ) -> FileTable {
        let mut by_path: HashMap<String, FileFigures> = HashMap::new();
        let mut others = FileRecord::default();
        catalog.for_each(|ino, first, record| {
            if is_theirs.is_some_and(|is_theirs| !is_theirs(ino)) {
                return others.add(&record);
            }
            let first = || first.map(str::to_owned).or_else(|| self.catalog.path(ino));
            let path = name(ino).or_else(first).unwrap_or_else(|| "?".into());
            match by_path.get_mut(&path) {
                Some(file) => file.add(&record),
                None => drop(by_path.insert(path.clone(), FileFigures::new(path, &record))),
            }
        });
        let files = by_path.into_values().collect();
        let rest = shown_rest(catalog, is_theirs.map(|_| others));
        let rest = rest.into_iter().map(|(path, record)| FileFigures::new(path, &record)).collect();
        FileTable { files, rest, extent: catalog.extent() }
    }

    /// Notes how much has moved so far. To be called some ten times a second; `drained` is the total copied to the slow
    /// tier.
    pub fn sample(&self, drained: u64) {
        self.door.enter(|| self.add_sample(drained));
    }

    fn add_sample(&self, drained: u64) {
        let mut totals = Amounts { drained, ..Amounts::default() };
        for op in Op::ALL {
            for tier in Tier::ALL {
                let counters = self.ops[op as usize][tier as usize].get();
                let (calls, bytes) = counters.map(OpCounters::moved).unwrap_or_default();
                totals.calls += calls;
                match op {
                    Op::Read => totals.read[tier as usize] += bytes,
                    Op::Write | Op::CopyFileRange => totals.written[tier as usize] += bytes,
                    _ => {}
                }
            }
        }
        self.timeline.lock().sample(self.now(), totals);
    }

    /// What moved over time.
    pub fn timeline(&self) -> Timeline {
        self.timeline.lock().clone()
    }

    fn figures(&self) -> windows::MountFigures {
        windows::MountFigures { operations: self.operations(), processes: self.processes.figures() }
    }

    /// Opens a window. The error says why not.
    pub fn start_window(&self, name: &str) -> Result<(), String> {
        self.change_windows(|| {
            // Earlier calls must not be counted in the window.
            self.settle();
            self.windows.start(name, self.now(), self.figures())
        })
    }

    /// Closes the window of this name, or the one that was opened last.
    pub fn stop_window(&self, name: Option<&str>) -> Result<Arc<Window>, String> {
        self.change_windows(|| {
            self.settle();
            self.windows.stop(name, self.now(), self.figures())
        })
    }

    fn change_windows<R>(&self, change: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
        self.door.enter(change).unwrap_or_else(|| Err(OFF.to_owned()))
    }

    /// Notes a moment.
    pub fn mark(&self, text: &str) -> Result<(), String> {
        self.change_windows(|| self.windows.mark(text, self.now()))
    }

    /// All windows and marks.
    pub fn windows(&self) -> windows::Overview {
        self.windows.overview()
    }

    /// The files of the newest closed window of this name, named as in [`Stats::files`]. `None`: there is no such
    /// window, or its files are not kept any more.
    pub fn files_of_window(&self, window: &str, name: impl Fn(u64) -> Option<String>) -> Option<FileTable> {
        Some(self.shown(&*self.windows.closed(window)?.files()?, name, None))
    }

    /// Merges all counters into the catalog.
    fn settle(&self) {
        // Only a part of the table is locked at a time.
        self.files.iter().for_each(|file| self.merge(&file));
    }
}

/// Whether a user may see a file.
type IsTheirs<'a> = &'a dyn Fn(u64) -> bool;

/// The files without their own record, by file name extension. For users other than the mount's owner this is one sum
/// together with the files of others.
fn shown_rest(catalog: &Catalog, others: Option<FileRecord>) -> Vec<(String, FileRecord)> {
    let rest = catalog.rest();
    let Some(mut sum) = others else { return rest };
    rest.iter().for_each(|(_, record)| sum.add(record));
    vec![(files::OF_OTHERS.to_owned(), sum)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::Field;

    fn call(op: Op, bytes: u64) -> Call {
        let took = Duration::from_micros(bytes.max(1));
        Call { op, began: Duration::ZERO, took, offset: 0, bytes, errno: None, tier: Tier::Fast }
    }

    /// Uses a handle of its own.
    fn access(stats: &Stats, ino: u64, name: Option<&str>, op: Op, bytes: u64) {
        let file = stats.file(ino, || name.map(str::to_owned));
        stats.record_through(&call(op, bytes), &stats.open(file, stats.processes.others(), None), 1);
    }

    fn figures(stats: &Stats, name: impl Fn(u64) -> Option<String>) -> Vec<(String, u64, u64)> {
        let mut all: Vec<_> = stats
            .files(name)
            .files
            .into_iter()
            .map(|file| {
                let get = |field| file.record().get(field);
                (
                    file.path.clone(),
                    get(Field::Calls(Op::Write)) + get(Field::Calls(Op::Read)),
                    get(Field::BytesWritten),
                )
            })
            .collect();
        all.sort();
        all
    }

    fn line(path: &str, calls: u64, written: u64) -> (String, u64, u64) {
        (path.to_owned(), calls, written)
    }

    #[test]
    fn calls_are_counted_per_operation_and_per_file() {
        let stats = Stats::default();
        access(&stats, 7, Some("/a"), Op::Write, 10);
        access(&stats, 8, Some("/b"), Op::Write, 20);
        stats.record_untimed(Op::Forget, 3);

        let operations = stats.operations();
        assert_eq!(
            operations.iter().map(|(op, tier, f)| (*op, *tier, f.calls, f.bytes)).collect::<Vec<_>>(),
            [(Op::Forget, Tier::Fast, 3, 0), (Op::Write, Tier::Fast, 2, 30)]
        );
        assert_eq!(figures(&stats, |_| None), [line("/a", 1, 10), line("/b", 1, 20)]);
        assert_eq!(figures(&stats, |_| None), [line("/a", 1, 10), line("/b", 1, 20)], "looking changes nothing");
    }

    #[test]
    fn what_is_off_counts_nothing() {
        let stats = Stats::off();
        access(&stats, 7, Some("/a"), Op::Write, 10);
        stats.record_untimed(Op::Forget, 3);
        assert!(stats.operations().is_empty() && stats.files(|_| None).files.is_empty());
        assert!(stats.files.is_empty() && stats.processes.figures().is_empty());
    }

    #[test]
    fn what_fails_is_counted_by_its_error() {
        let stats = Stats::default();
        let refused = Call { errno: Some(Errno::ENOENT), ..call(Op::Lookup, 0) };
        let dir = stats.file(1, || Some("/".into()));
        stats.record(&refused, &dir, By::default());
        stats.record(&refused, &dir, By::default());
        assert_eq!(stats.failures(), [(Op::Lookup, Errno::ENOENT, 2)]);
        let record = &stats.files(|_| None).files[0].record();
        assert_eq!((record.failed(), record.get(Field::Calls(Op::Lookup))), (2, 0));
    }

    #[test]
    fn a_removed_file_keeps_its_first_name_and_a_renamed_one_shows_the_new() {
        let stats = Stats::default();
        access(&stats, 7, Some("/run/gone"), Op::Write, 1);
        access(&stats, 8, Some("/run/old"), Op::Write, 2);
        let new = |ino| (ino == 8).then(|| "/run/new".into());
        assert_eq!(figures(&stats, new), [line("/run/gone", 1, 1), line("/run/new", 1, 2)]);
    }

    #[test]
    fn one_path_under_two_inode_numbers_is_one_file() {
        let stats = Stats::default();
        access(&stats, 7, None, Op::Write, 1);
        access(&stats, 8, None, Op::Write, 2);
        assert_eq!(figures(&stats, |_| Some("/ckpt".into())), [line("/ckpt", 2, 3)]);
    }

    #[test]
    fn files_that_nobody_uses_are_packed_and_lose_nothing() {
        let stats = Stats::default();
        let many = 3 * AT_HAND as u64;
        let kept = stats.file(0, || Some("/kept".into()));
        let handle = stats.open(Arc::clone(&kept), stats.processes.others(), None);
        for _ in 0..2 {
            (1..many).for_each(|ino| access(&stats, ino, Some("/some"), Op::Write, 1));
        }
        stats.record_through(&call(Op::Write, 5), &handle, 1);
        assert!(stats.files.len() <= 2 * AT_HAND, "{} at hand", stats.files.len());
        assert!(Arc::ptr_eq(&kept, &stats.file(0, || None)), "what somebody has is not replaced");
        let each = |ino: u64| Some(if ino == 0 { "/kept".into() } else { "/others".to_owned() });
        assert_eq!(figures(&stats, each), [line("/kept", 1, 5), line("/others", 2 * (many - 1), 2 * (many - 1))]);
        assert_eq!(stats.extent().files as u64, many);
    }

    /// A reader that looks twice at these files knows what was done in between, even to a file that was packed
    /// meanwhile.
    #[test]
    fn the_active_files_are_few_and_tell_what_they_did_before() {
        let stats = Stats::default();
        let many = 4 * AT_HAND as u64;
        access(&stats, 0, Some("/first"), Op::Write, 5);
        let first = |stats: &Stats| {
            let found = stats.active_files(|_| None);
            assert!(found.files.len() <= 2 * AT_HAND, "{} at hand", found.files.len());
            let first = found.files.into_iter().find(|file| file.ino == 0);
            first.map(|file| (file.path, file.sums.bytes_written, file.before.bytes_written))
        };
        access(&stats, 0, Some("/first"), Op::Write, 1);
        assert_eq!(first(&stats), Some(("/first".into(), 6, 0)));
        (1..many).for_each(|ino| access(&stats, ino, Some("/some"), Op::Write, 1));
        assert_eq!(first(&stats), None);
        access(&stats, 0, None, Op::Write, 30);
        assert_eq!(first(&stats), Some(("/first".into(), 36, 6)));
        assert_eq!(stats.active_files(|_| None).known as u64, many);
    }

    #[test]
    fn beyond_the_limit_files_are_counted_together() {
        let stats = Stats::new(0, Arc::default());
        access(&stats, 1, Some("/a"), Op::Write, 1);
        access(&stats, 2, Some("/b"), Op::Write, 2);
        assert_eq!(figures(&stats, |_| None), []);
        let files = stats.files(|_| None);
        assert_eq!((files.rest[0].record().get(Field::BytesWritten), files.extent.unnamed), (3, 2));
        assert_eq!(stats.operations()[0].2.calls, 2, "the operation's own figures stay exact");
    }

    #[test]
    fn the_way_of_the_last_call_outlives_the_handle_and_the_piece() {
        let stats = Stats::default();
        access(&stats, 1, None, Op::Write, 1);
        stats.settle();
        access(&stats, 1, None, Op::Read, 1);
        assert_eq!(stats.files(|_| None).files[0].record().get(Field::Switches), 1);
    }

    /// Threads count while others read the figures and files come and go: no count may be lost.
    #[test]
    fn threads_lose_no_count() {
        const THREADS: u64 = 4;
        const CALLS: u64 = 20_000;
        let stats = Stats::default();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..CALLS).for_each(|n| access(&stats, n * 7919 % 20_011, None, Op::Write, 1)));
            }
            scope.spawn(|| (0..20).for_each(|_| drop(stats.files(|_| None))));
        });
        assert_eq!(figures(&stats, |_| Some("/all".into())), [line("/all", THREADS * CALLS, THREADS * CALLS)]);
    }
}
