//! What is derived from the calls as they arrive: the trace, its lines, epochs and checkpoints; and the recording of it
//! all.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use super::catalog::Catalog;
use super::checkpoints::Checkpoint;
use super::counters::nanos;
use super::ops::{self, About};
use super::processes::of_user;
use super::record::FileRecord;
use super::recording::{self, Epoch, Mark, Meta, Writer};
use super::status::Detected;
use super::trace::block::unpack;
use super::trace::{Block, TraceExtent};
use super::{IsTheirs, Stats, shown_rest};

/// How many files are written at a time: a record takes a kilobyte before it is packed.
const FILES_AT_ONCE: usize = 1 << 13;

impl Stats {
    /// Processes the calls since the last time. To be called some ten times a second, and when `Trace::on_half_full`
    /// says so. `name` gives an inode's current path.
    pub fn collect(&self, name: impl Fn(u64) -> Option<String>) {
        self.enter(|| self.collect_all(name));
    }

    fn collect_all(&self, name: impl Fn(u64) -> Option<String>) {
        let mut watch = self.watch.lock();
        let fresh = self.trace.collect();
        let now = self.now();
        fresh.iter().for_each(|traced| watch.see(traced));
        let dropped = self.trace.extent().dropped;
        let more = dropped - std::mem::replace(&mut watch.dropped, dropped);
        self.with_about(watch.lines.is_read(), &name, |about| watch.lines.add(&fresh, more, about));
        self.trace.keep(&fresh, now);
    }

    /// The current path, or the one under which a file was first seen.
    fn path(&self, ino: u64, name: impl Fn(u64) -> Option<String>) -> Option<String> {
        let at_hand = || self.files.get(&ino).and_then(|file| self.catalog.whole(file.first.as_ref()?));
        name(ino).or_else(|| self.catalog.path(ino)).or_else(at_hand)
    }

    /// What lines need to know; nothing is looked up if no lines are made.
    fn with_about<R>(&self, read: bool, name: impl Fn(u64) -> Option<String>, run: impl FnOnce(&About<'_>) -> R) -> R {
        let processes = if read { self.processes.names() } else { HashMap::new() };
        let paths: RefCell<HashMap<u64, Option<String>>> = RefCell::default();
        let path = |ino| paths.borrow_mut().entry(ino).or_insert_with(|| self.path(ino, &name)).clone();
        let process = |number: u32| processes.get(&u64::from(number)).cloned();
        run(&About { since: self.epoch, path: &path, process: &process })
    }

    /// Starts a reader of the calls as lines.
    pub fn open_lines(&self, name: impl Fn(u64) -> Option<String>) -> ops::Reader {
        let mut watch = self.watch.lock();
        let first = !watch.lines.is_read();
        let reader = watch.lines.open();
        if first {
            let latest = self.trace.latest(ops::BEFORE);
            self.with_about(true, name, |about| watch.lines.recall(&latest, about));
        }
        reader
    }

    /// Bytes of all lines so far.
    pub fn lines_len(&self) -> u64 {
        self.watch.lock().lines.len()
    }

    /// The bytes for a reader from an offset on.
    pub fn read_lines(&self, reader: &mut ops::Reader, offset: u64, size: usize) -> Vec<u8> {
        self.watch.lock().lines.read(reader, offset, size)
    }

    /// Ends a reader.
    pub fn close_lines(&self) {
        self.watch.lock().lines.close();
    }

    /// Passes over the data, oldest first.
    pub fn epochs(&self) -> Vec<Epoch> {
        self.watch.lock().epochs.recorded()
    }

    /// What was found so far, in figures. `checkpoints`: the complete ones, oldest first, and how many there were in
    /// all.
    pub fn found(&self, (checkpoints, total): (&[Checkpoint], u64)) -> Detected {
        let epochs = self.epochs();
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let mut found = Detected { trace: self.trace.extent(), ..Detected::default() };
        if let Some(last) = checkpoints.last() {
            found.checkpoints = total;
            found.checkpoint_bytes = last.bytes;
            found.checkpoint_absorb = time(last.absorbed - last.began);
            found.checkpoint_at_risk = time(last.drained.unwrap_or(self.now().as_secs_f64()) - last.absorbed);
        }
        if let [.., before, last] = checkpoints {
            found.checkpoint_interval = time(last.began - before.began);
        }
        if let [.., before, last] = &*epochs {
            found.epoch = last.number;
            found.epoch_duration = time(before.ended - before.began);
        }
        found
    }

    /// When the mount was made, since 1970.
    pub fn since_1970(&self) -> Duration {
        self.epoch.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }

    /// What is known besides files and calls; `about` has what others know: who, where, by which paths.
    pub fn meta(&self, about: Meta) -> Meta {
        let overview = self.windows.overview();
        let watch = self.watch.lock();
        Meta {
            since: self.epoch.duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanos),
            until: self.now().as_secs_f64(),
            operations: self.operations().into_iter().map(recording::RecordedOperation::from).collect(),
            failures: self.failures().into_iter().map(recording::RecordedFailure::from).collect(),
            processes: self.processes.figures().into_iter().map(recording::RecordedProcess::from).collect(),
            timeline: self.timeline().recorded(),
            heat: watch.heat.recorded(),
            windows: overview.closed.iter().map(|window| recording::RecordedWindow::from(&**window)).collect(),
            marks: overview
                .marks
                .marks
                .iter()
                .map(|(at, text)| Mark { at: at.as_secs_f64(), text: text.clone() })
                .collect(),
            epochs: watch.epochs.recorded(),
            files: self.catalog.extent(),
            trace: self.trace.extent(),
            ..about
        }
    }

    /// Everything known, with the calls in memory. `name` as for [`Stats::files`].
    pub fn recording(&self, about: Meta, name: impl Fn(u64) -> Option<String>) -> io::Result<Vec<u8>> {
        self.settle();
        let mut out = Writer::new(Vec::new())?;
        out.meta(&self.meta(about))?;
        self.write_blocks(&mut out, &self.trace.blocks(), &name)?;
        self.write_files(&mut out, &self.catalog, name, None)?;
        Ok(out.into_inner())
    }

    /// The same for a user other than the mount's owner: their own files, processes and checkpoints, the sums of all
    /// others, and no single calls, windows or marks.
    pub fn recording_of_user(
        &self,
        uid: u32,
        about: Meta,
        name: impl Fn(u64) -> Option<String>,
        is_theirs: impl Fn(u64) -> bool,
    ) -> io::Result<Vec<u8>> {
        self.settle();
        let mut meta = self.meta(about);
        let processes = of_user(self.processes.figures(), uid);
        meta.heat.rows.retain(|row| processes.iter().any(|process| process.number == row.process));
        meta.processes = processes.into_iter().map(recording::RecordedProcess::from).collect();
        (meta.windows, meta.marks, meta.plans) = (Vec::new(), Vec::new(), Vec::new());
        meta.trace = TraceExtent::default();
        let mut out = Writer::new(Vec::new())?;
        out.meta(&meta)?;
        self.write_files(&mut out, &self.catalog, name, Some(&is_theirs))?;
        Ok(out.into_inner())
    }

    /// The same for the newest closed window of a name. `None`: there is no such window, or its files are not kept any
    /// more.
    pub fn recording_of_window(
        &self,
        window: &str,
        about: Meta,
        name: impl Fn(u64) -> Option<String>,
    ) -> Option<io::Result<Vec<u8>>> {
        let window = self.windows.closed(window)?;
        let files = window.files()?;
        let meta = Meta {
            from: window.began.as_secs_f64(),
            until: window.ended.as_secs_f64(),
            window: Some(window.name.clone()),
            operations: window.operations.iter().cloned().map(recording::RecordedOperation::from).collect(),
            processes: window.processes.iter().cloned().map(recording::RecordedProcess::from).collect(),
            files: files.extent(),
            ..self.meta(about)
        };
        let write = || {
            let mut out = Writer::new(Vec::new())?;
            out.meta(&meta)?;
            let mut blocks = self.trace.blocks();
            blocks.retain(|block| block.until >= window.began && block.from <= window.ended);
            self.write_blocks(&mut out, &blocks, &name)?;
            self.write_files(&mut out, &files, name, None)?;
            Ok(out.into_inner())
        };
        Some(write())
    }

    /// The calls, and before them the names of what no table of files names: directories, above all.
    fn write_blocks<W: Write>(
        &self,
        out: &mut Writer<W>,
        blocks: &[Block],
        name: impl Fn(u64) -> Option<String>,
    ) -> io::Result<()> {
        let calls = blocks.iter().filter_map(|block| unpack(&block.bytes)).flatten();
        let inos: HashSet<u64> = calls.map(|traced| traced.ino).collect();
        let unnamed = inos.into_iter().filter(|ino| self.catalog.get(*ino).is_none());
        let paths: Vec<(u64, String)> = unnamed.filter_map(|ino| Some((ino, name(ino)?))).collect();
        out.paths(&paths)?;
        blocks.iter().try_for_each(|block| out.block(block))
    }

    /// The table of files, as the end of a recording.
    fn write_files<W: Write>(
        &self,
        out: &mut Writer<W>,
        catalog: &Catalog,
        name: impl Fn(u64) -> Option<String>,
        is_theirs: Option<IsTheirs<'_>>,
    ) -> io::Result<()> {
        let (mut some, mut done, mut others) = (Vec::new(), Ok(()), FileRecord::default());
        catalog.for_each(|ino, first, record| {
            if is_theirs.is_some_and(|is_theirs| !is_theirs(ino)) {
                return others.add(&record);
            }
            let path = name(ino).or_else(|| first.map(str::to_owned)).or_else(|| self.catalog.path(ino));
            some.push((ino, path.unwrap_or_else(|| "?".to_owned()), record));
            if some.len() == FILES_AT_ONCE && done.is_ok() {
                done = out.files(some.drain(..));
            }
        });
        done?;
        out.files(some)?;
        out.rest(&shown_rest(catalog, is_theirs.map(|_| others)))
    }

    /// All files, as the end of a recording.
    pub fn write_all_files<W: Write>(
        &self,
        out: &mut Writer<W>,
        name: impl Fn(u64) -> Option<String>,
    ) -> io::Result<()> {
        self.settle();
        self.write_files(out, &self.catalog, name, None)
    }
}
