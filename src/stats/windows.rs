//! Windows: what was done between two named moments, and marks: moments with a text. Pure; moments come in.
//!
//! A window has its own catalog, into which pieces of files are merged while it is open; for operations and processes
//! it keeps the figures at its beginning. Windows may overlap and nest. A call in progress when a window starts or
//! stops may be counted on either side.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use serde_json::json;

use super::catalog::Catalog;
use super::counters::{Op, OpFigures, Tier};
use super::processes::ProcessFigures;
use super::record::FileRecord;
use super::recording::{self, Epoch};
use super::render::bytes;
use super::status;
use crate::json;
use crate::path::is_harmless;

/// How many may be open at once: each used file costs a merge for each of them.
pub const OPEN_MAX: usize = 8;
/// How many closed windows are kept; then the oldest goes.
pub const CLOSED_MAX: usize = 256;
/// How many marks are kept; then the oldest goes.
pub const MARKS_MAX: usize = 10_000;
/// The most bytes of a name or of a mark's text.
pub const TEXT_MAX: usize = 256;

/// Figures of operations, tier by tier.
type Operations = Vec<(Op, Tier, OpFigures)>;

/// Figures of a mount at one moment.
#[derive(Debug, Default)]
pub struct MountFigures {
    pub operations: Operations,
    pub processes: Vec<ProcessFigures>,
}

/// All windows and marks of a mount.
#[derive(Debug)]
pub struct Windows {
    open: RwLock<Vec<OpenWindow>>,
    closed: Mutex<ClosedWindows>,
    marks: Mutex<Marks>,
    /// Bytes that the records of a window may take, and also those of all closed ones together.
    memory: usize,
}

#[derive(Debug)]
struct OpenWindow {
    name: String,
    began: Duration,
    before: MountFigures,
    files: Catalog,
}

#[derive(Debug, Default)]
struct ClosedWindows {
    windows: VecDeque<Arc<Window>>,
    forgotten: u64,
}

/// A closed window.
#[derive(Debug)]
pub struct Window {
    pub name: String,
    /// Since the mount was made.
    pub began: Duration,
    pub ended: Duration,
    pub operations: Operations,
    /// The processes that did something meanwhile, and what they did.
    pub processes: Vec<ProcessFigures>,
    /// How many files were used.
    pub used: usize,
    /// `None` once newer windows needed the memory.
    files: Mutex<Option<Arc<Catalog>>>,
}

/// Moments since the mount was made, with their texts, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub marks: VecDeque<(Duration, String)>,
    /// How many are not kept any more.
    pub forgotten: u64,
}

/// All windows at one moment.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    /// Oldest first.
    pub closed: Vec<Arc<Window>>,
    /// Closed windows that are not kept any more.
    pub forgotten: u64,
    /// Names and beginnings.
    pub open: Vec<(String, Duration)>,
    pub marks: Marks,
}

/// Checks a name or a text: one non-empty line.
fn checked(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text {
        "" => Err("give it a name".to_owned()),
        text if text.len() > TEXT_MAX => Err(format!("longer than {TEXT_MAX} bytes")),
        text if !text.chars().all(is_harmless) => Err("a line of text, without control characters".to_owned()),
        text => Ok(text.to_owned()),
    }
}

impl Windows {
    pub fn new(memory: usize) -> Self {
        Windows { open: RwLock::default(), closed: Mutex::default(), marks: Mutex::default(), memory }
    }

    /// Merges a file's counters into all open windows. `path` is called for each.
    pub fn add(&self, ino: u64, path: impl Fn() -> Option<String>, piece: &FileRecord) {
        for OpenWindow { files, .. } in &*self.open.read() {
            files.add(ino, path().map(|path| files.first(&path)).as_ref(), piece);
        }
    }

    /// Opens a window. `before`: the current figures; the caller has merged all pieces. The error says why not.
    pub fn start(&self, name: &str, now: Duration, before: MountFigures) -> Result<(), String> {
        let name = checked(name)?;
        let mut open = self.open.write();
        if open.iter().any(|window| window.name == name) {
            return Err(format!("{name} is open already; stop it, or choose another name"));
        }
        if open.len() >= OPEN_MAX {
            return Err(format!("{OPEN_MAX} windows are open; stop one"));
        }
        open.push(OpenWindow { name, began: now, before, files: Catalog::new(self.memory) });
        Ok(())
    }

    /// Closes the window of this name, or the one that was opened last. `after` as for [`Windows::start`].
    pub fn stop(&self, name: Option<&str>, now: Duration, after: MountFigures) -> Result<Arc<Window>, String> {
        let OpenWindow { name, began, before, files } = {
            let mut open = self.open.write();
            let at = match name {
                Some(name) => open.iter().position(|window| window.name == name.trim()),
                None => open.len().checked_sub(1),
            };
            let none = || name.map_or("no window is open".to_owned(), |name| format!("no window {name} is open"));
            open.remove(at.ok_or_else(none)?)
        };
        let operations = difference(&before.operations, after.operations);
        let processes = since(&before.processes, after.processes);
        let used = files.extent().files;
        let files = Mutex::new(Some(Arc::new(files)));
        let window = Arc::new(Window { name, began, ended: now, operations, processes, used, files });
        self.closed.lock().keep(Arc::clone(&window), self.memory);
        Ok(window)
    }

    /// Notes a moment.
    pub fn mark(&self, text: &str, now: Duration) -> Result<(), String> {
        let text = checked(text)?;
        let mut marks = self.marks.lock();
        if marks.marks.len() >= MARKS_MAX {
            marks.marks.pop_front();
            marks.forgotten += 1;
        }
        marks.marks.push_back((now, text));
        Ok(())
    }

    /// The newest closed window of this name.
    pub fn closed(&self, name: &str) -> Option<Arc<Window>> {
        self.closed.lock().windows.iter().rfind(|window| window.name == name).cloned()
    }

    pub fn overview(&self) -> Overview {
        let open = self.open.read().iter().map(|window| (window.name.clone(), window.began)).collect();
        let closed = self.closed.lock();
        let (windows, forgotten) = (closed.windows.iter().cloned().collect(), closed.forgotten);
        Overview { closed: windows, forgotten, open, marks: self.marks.lock().clone() }
    }
}

impl ClosedWindows {
    fn keep(&mut self, window: Arc<Window>, memory: usize) {
        self.windows.push_back(window);
        if self.windows.len() > CLOSED_MAX {
            self.windows.pop_front();
            self.forgotten += 1;
        }
        // The newest keep their files, as many as the memory allows.
        let mut left = memory;
        for window in self.windows.iter().rev() {
            let mut files = window.files.lock();
            let bytes = files.as_ref().map_or(0, |files| files.extent().bytes);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => (*files, left) = (None, 0),
            }
        }
    }
}

impl Window {
    pub fn lasted(&self) -> Duration {
        self.ended.saturating_sub(self.began)
    }

    /// The counters of each file meanwhile; `None` once newer windows needed the memory.
    pub fn files(&self) -> Option<Arc<Catalog>> {
        self.files.lock().clone()
    }

    /// Calls and bytes of an operation on both tiers.
    pub fn total(&self, op: Op) -> (u64, u64) {
        let of_op = self.operations.iter().filter(|line| line.0 == op);
        of_op.fold((0, 0), |sum, (_, _, figures)| (sum.0 + figures.calls, sum.1 + figures.bytes))
    }
}

impl Overview {
    /// The table of `.dlio/windows`. Ends with a newline.
    pub fn text(&self, now: Duration) -> String {
        let mut out = String::new();
        self.table(&mut out, now).expect("formatting into memory");
        out
    }

    fn table(&self, out: &mut String, now: Duration) -> fmt::Result {
        writeln!(out, "     from     time    files    opens       read    MiB/s    written  name")?;
        for window in &self.closed {
            let (opens, (_, read), (_, written)) = (
                window.total(Op::Open).0 + window.total(Op::Create).0,
                window.total(Op::Read),
                window.total(Op::Write),
            );
            let rate = read as f64 / window.lasted().as_secs_f64().max(1e-6);
            writeln!(
                out,
                "{:>8.1}s{:>8.1}s{:>9}{opens:>9}{:>11}{:>9.1}{:>11}  {}",
                window.began.as_secs_f64(),
                window.lasted().as_secs_f64(),
                window.used,
                bytes(read),
                rate / (1 << 20) as f64,
                bytes(written),
                window.name
            )?;
        }
        for (name, began) in &self.open {
            let lasts = now.saturating_sub(*began).as_secs_f64();
            writeln!(out, "{:>8.1}s{lasts:>8.1}s{:>49}  {name}", began.as_secs_f64(), "open")?;
        }
        if self.forgotten > 0 {
            writeln!(out, "{} older windows are forgotten", self.forgotten)?;
        }
        if !self.marks.marks.is_empty() {
            writeln!(out, "\n     mark")?;
        }
        for (at, text) in &self.marks.marks {
            writeln!(out, "{:>8.1}s  {text}", at.as_secs_f64())?;
        }
        match self.marks.forgotten {
            0 => Ok(()),
            forgotten => writeln!(out, "{forgotten} older marks are forgotten"),
        }
    }

    /// The same for scripts, with all operations of each closed window, and the epochs that were found. Times are in
    /// seconds since the mount was made, which was `mounted` after 1970 began. Ends with a newline.
    pub fn json(&self, epochs: &[Epoch], mounted: Duration) -> String {
        let at = |time: &Duration| json::moment(mounted, time.as_secs_f64());
        let closed = |window: &Arc<Window>| {
            json!({
                "name": window.name,
                "began": window.began.as_secs_f64(),
                "began_at": at(&window.began),
                "ended": window.ended.as_secs_f64(),
                "ended_at": at(&window.ended),
                "files": window.used,
                "processes": window.processes.len(),
                "operations": status::Operation::all(window.operations.clone()),
            })
        };
        let open = |(name, began): &(String, Duration)| json!({"name": name, "began": began.as_secs_f64(), "began_at": at(began)});
        let mark =
            |(time, text): &(Duration, String)| json!({"at": time.as_secs_f64(), "time": at(time), "text": text});
        let epoch = |epoch: &Epoch| {
            let mut value = json!(epoch);
            value["began_at"] = json!(json::moment(mounted, epoch.began));
            value["ended_at"] = json!(json::moment(mounted, epoch.ended));
            value
        };
        let value = json!({
            "closed": self.closed.iter().map(closed).collect::<Vec<_>>(),
            "open": self.open.iter().map(open).collect::<Vec<_>>(),
            "epochs": epochs.iter().map(epoch).collect::<Vec<_>>(),
            "marks": self.marks.marks.iter().map(mark).collect::<Vec<_>>(),
            "forgotten": {"windows": self.forgotten, "marks": self.marks.forgotten},
        });
        json::document(&value)
    }
}

impl From<&Window> for recording::RecordedWindow {
    fn from(window: &Window) -> Self {
        recording::RecordedWindow {
            name: window.name.clone(),
            began: window.began.as_secs_f64(),
            ended: window.ended.as_secs_f64(),
            files: window.used as u64,
            processes: window.processes.len() as u64,
            bytes_read: window.total(Op::Read).1,
            bytes_written: window.total(Op::Write).1,
        }
    }
}

/// The difference; operations without a call are left out.
fn difference(before: &Operations, after: Operations) -> Operations {
    let since = |(op, tier, figures): (Op, Tier, OpFigures)| {
        let old = before.iter().find(|old| (old.0, old.1) == (op, tier));
        (op, tier, old.map_or_else(|| figures.clone(), |old| figures.since(&old.2)))
    };
    after.into_iter().map(since).filter(|(_, _, figures)| figures.calls > 0).collect()
}

/// What each process did since; processes that did nothing are left out.
fn since(before: &[ProcessFigures], after: Vec<ProcessFigures>) -> Vec<ProcessFigures> {
    let before: HashMap<u64, &ProcessFigures> = before.iter().map(|process| (process.number, process)).collect();
    let since = |now: ProcessFigures| match before.get(&now.number) {
        Some(before) => now.since(before),
        None => now,
    };
    after.into_iter().map(since).filter(ProcessFigures::did_something).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::record::Field;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn piece(opens: u64) -> FileRecord {
        let mut record = FileRecord::default();
        (0..opens).for_each(|_| record.opened_by(1, Some(0o600)));
        record
    }

    fn opens(window: &Window) -> u64 {
        let mut sum = 0;
        window.files().expect("kept").for_each(|_, _, record| sum += record.processes.total());
        sum
    }

    #[test]
    fn windows_nest_overlap_and_hold_what_came_meanwhile() {
        let windows = Windows::new(1 << 20);
        windows.add(1, || None, &piece(1));
        windows.start("outer", seconds(1), MountFigures::default()).expect("opened");
        windows.add(1, || None, &piece(2));
        windows.start(" inner ", seconds(2), MountFigures::default()).expect("opened");
        windows.add(2, || Some("/f".to_owned()), &piece(4));
        let inner = windows.stop(None, seconds(3), MountFigures::default()).expect("closed");
        windows.add(1, || None, &piece(8));
        let outer = windows.stop(Some("outer"), seconds(9), MountFigures::default()).expect("closed");
        assert_eq!((inner.name.as_str(), opens(&inner), inner.used, inner.lasted()), ("inner", 4, 1, seconds(1)));
        assert_eq!((outer.name.as_str(), opens(&outer), outer.used, outer.lasted()), ("outer", 14, 2, seconds(8)));
        assert!(
            windows.overview().open.is_empty() && windows.closed("inner").is_some() && windows.closed("none").is_none()
        );
        assert_eq!(inner.files().and_then(|files| files.get(2)).map(|record| record.get(Field::Mode)), Some(0o601));
    }

    #[test]
    fn the_table_and_the_json_tell_the_same() {
        let windows = Windows::new(1 << 20);
        windows.start("epoch 1", seconds(2), MountFigures::default()).expect("opened");
        windows.add(1, || Some("/f".to_owned()), &piece(1));
        windows.stop(None, seconds(6), MountFigures::default()).expect("closed");
        windows.start("rest", seconds(7), MountFigures::default()).expect("opened");
        windows.mark("step 100", seconds(8)).expect("marked");
        let overview = windows.overview();
        let text = overview.text(seconds(9));
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["2.0s", "4.0s", "1", "0", "0", "B", "0.0", "0", "B", "epoch", "1"], "{text}");
        assert_eq!((&*rows[2], &*rows[5]), (&["7.0s", "2.0s", "open", "rest"][..], &["8.0s", "step", "100"][..]));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let json: serde_json::Value = serde_json::from_str(&overview.json(&[], Duration::ZERO)).expect("valid");
        assert_eq!((&json["closed"][0]["name"], &json["closed"][0]["files"]), (&json!("epoch 1"), &json!(1)));
        assert_eq!((&json["open"][0]["name"], &json["marks"][0]["at"]), (&json!("rest"), &json!(8.0)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let windows = Windows::new(1 << 20);
        let start = |name: &str| windows.start(name, seconds(0), MountFigures::default());
        assert!(
            windows.stop(None, seconds(0), MountFigures::default()).expect_err("none").contains("no window is open")
        );
        start("a").expect("opened");
        assert!(start("a").expect_err("twice").contains("open already"));
        assert!(start(" ").is_err() && start("a\tb").is_err() && start(&"x".repeat(257)).is_err());
        assert!(
            windows.stop(Some("b"), seconds(0), MountFigures::default()).expect_err("another").contains("no window b")
        );
        (1..OPEN_MAX).for_each(|n| start(&n.to_string()).expect("opened"));
        assert!(start("more").expect_err("too many").contains("stop one"));
        assert!(windows.mark("", seconds(0)).is_err());
    }

    #[test]
    fn the_oldest_are_forgotten_and_the_newest_keep_their_files() {
        let windows = Windows::new(4096);
        for n in 0..CLOSED_MAX as u64 + 5 {
            windows.start("epoch", seconds(n), MountFigures::default()).expect("opened");
            windows.add(1, || Some("/file".to_owned()), &piece(1));
            windows.stop(None, seconds(n + 1), MountFigures::default()).expect("closed");
        }
        let overview = windows.overview();
        assert_eq!((overview.closed.len(), overview.forgotten), (CLOSED_MAX, 5));
        let kept = overview.closed.iter().filter(|window| window.files().is_some()).count();
        assert!((1..CLOSED_MAX / 2).contains(&kept), "{kept} have their files");
        assert!(overview.closed.last().is_some_and(|newest| newest.files().is_some() && newest.used == 1));
        for n in 0..MARKS_MAX as u64 + 3 {
            windows.mark("step", seconds(n)).expect("marked");
        }
        let marks = windows.overview().marks;
        assert_eq!((marks.marks.len(), marks.forgotten, marks.marks[0].0), (MARKS_MAX, 3, seconds(3)));
    }
}
