//! One pass over the records of all files: their sums, the kinds of files, and those that took longest. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;

use crate::error::Errno;
use crate::stats::access::AccessPattern;
use crate::stats::counters::Op;
use crate::stats::record::{Field, FileRecord, failure};

/// How many files are listed by name.
pub const FILES: usize = 200;
/// The most different sizes and strides counted over all files.
const VALUES_MAX: usize = 1 << 16;
/// Smaller files are tiny.
pub const TINY: u64 = 256 << 10;
/// Size classes for the curve: up to 4 KiB, up to 8 KiB, ...
const FIRST_BOUND: u32 = 12;
const BOUNDS: usize = 52;

/// What the records of all files show.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The sum of all records.
    pub all: FileRecord,
    /// Files that were opened, read or written.
    pub used: u64,
    /// Other files that were asked about: directories, and files that were only looked up.
    pub asked: u64,
    pub kinds: Vec<FileCountRow>,
    pub common_sizes: Vec<(u64, u64)>,
    pub common_strides: Vec<(u64, u64)>,
    /// Opens, and those of tiny files.
    pub opens: u64,
    pub tiny_opens: u64,
    /// The median size of the files that were read.
    pub median: u64,
    /// Bytes read from the slow tier more than once, as far as known.
    pub slow_again: u64,
    /// By upper bound of the size of the files that were read.
    pub curve: Vec<Band>,
    /// Those with the most time first.
    pub top: Vec<FileRow>,
    /// Where most look-ups found nothing, and how many.
    pub misses: Option<(String, u64)>,
    sizes: Vec<u64>,
    values: Values,
    ranked: BTreeMap<ByTime, FileRow>,
}

/// A row of Darshan's file count summary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileCountRow {
    pub name: &'static str,
    pub files: u64,
    /// Sizes, as far as files were read or written.
    pub average: u64,
    pub max: u64,
    #[serde(skip)]
    sum: u128,
}

/// Files of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Band {
    /// No file is larger.
    pub bound: u64,
    pub files: u64,
    /// The sum of their sizes.
    pub bytes: u64,
    /// Seconds of reads.
    pub seconds: f64,
    /// The part served by the slow tier, and the time that the fast one would have taken for it.
    pub slow_seconds: f64,
    pub fast_seconds: f64,
    pub slow_reads: u64,
}

/// One file, for people.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FileRow {
    #[serde(flatten, with = "crate::json::path")]
    pub path: String,
    pub size: u64,
    pub opens: u64,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub slow_bytes_read: u64,
    pub errors: u64,
    pub processes: u64,
    pub read_seconds: f64,
    pub write_seconds: f64,
    pub meta_seconds: f64,
    pub slowest_seconds: f64,
}

/// The average read on each tier, over all files: to estimate a file's reads on the other tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speeds {
    /// Seconds per read, on the fast tier and on the slow one; 0 without reads.
    pub call: [f64; 2],
    /// Bytes per read on the fast tier.
    pub bytes: f64,
    /// As `call`, per open.
    pub open: [f64; 2],
}

impl Speeds {
    /// Whether enough was read from the fast tier to know its speed: empty reads alone do not count.
    pub fn knows_fast(&self) -> bool {
        self.bytes >= 1.0
    }

    /// The seconds of a file's reads from the slow tier, and the time that the fast one would have taken for them.
    pub fn reads(&self, record: &FileRecord) -> (f64, f64) {
        let (reads, slow) = (record.get(Field::Calls(Op::Read)), record.get(Field::SlowReads));
        let seconds = record.time(Field::ReadTime).as_secs_f64();
        let weights = [reads.saturating_sub(slow) as f64 * self.call[0], slow as f64 * self.call[1]];
        let slow_share = if weights[1] > 0.0 { weights[1] / (weights[0] + weights[1]) } else { 0.0 };
        let larger = (record.get(Field::SlowBytesRead) as f64 / (slow.max(1) as f64 * self.bytes.max(1.0))).max(1.0);
        let slow_seconds = seconds * slow_share;
        let fast_seconds =
            if self.knows_fast() { (slow as f64 * self.call[0] * larger).min(slow_seconds) } else { 0.0 };
        (slow_seconds, fast_seconds)
    }

    /// The same for its opens; the slow tier's share of them is taken to be that of its reads.
    pub fn opens(&self, record: &FileRecord) -> (f64, f64) {
        let slow_share = record.get(Field::SlowReads) as f64 / record.get(Field::Calls(Op::Read)).max(1) as f64;
        let slow = record.opens() as f64 * slow_share.min(1.0);
        let slow_seconds = (slow * self.open[1]).min(record.time(Field::MetaTime).as_secs_f64());
        (slow_seconds, (slow * self.open[0]).min(slow_seconds))
    }
}

/// The place of a file among those that took longest, the last one first: its time, its path, and how many were ranked
/// before it.
type ByTime = (Duration, Reverse<String>, usize);

#[derive(Clone, Debug, Default)]
struct Values {
    sizes: HashMap<u64, u64>,
    strides: HashMap<u64, u64>,
}

const KINDS: [&str; 8] = [
    "all that were used",
    "only read",
    "only written",
    "read and written",
    "created",
    "read once",
    "read again",
    "never closed",
];

/// The largest known end of a file.
pub fn size(record: &FileRecord) -> u64 {
    record.get(Field::EndRead).max(record.get(Field::EndWritten))
}

impl Totals {
    pub fn new() -> Self {
        Totals {
            kinds: KINDS.iter().map(|name| FileCountRow { name, ..FileCountRow::default() }).collect(),
            curve: (0..BOUNDS).map(|at| Band { bound: 1 << (FIRST_BOUND + at as u32), ..Band::default() }).collect(),
            ..Totals::default()
        }
    }

    /// Adds a file; `speeds` are those of all files.
    pub fn add(&mut self, path: &str, record: &FileRecord, speeds: &Speeds) {
        self.merge(record);
        let (opens, bytes_read, bytes_written) =
            (record.opens(), record.get(Field::BytesRead), record.get(Field::BytesWritten));
        let misses = record.failures.iter().filter(|(value, _)| *value == failure(Op::Lookup, Errno::ENOENT));
        let misses: u64 = misses.fold(0, |sum, (_, times)| sum.saturating_add(times));
        if misses > self.misses.as_ref().map_or(0, |(_, most)| *most) {
            self.misses = Some((path.to_owned(), misses));
        }
        self.rank(path, record);
        let touched = [Op::Read, Op::Write].iter().any(|op| record.get(Field::Calls(*op)) > 0);
        if opens == 0 && !touched {
            self.asked += 1;
            return;
        }
        self.used += 1;
        let size = size(record);
        self.opens = self.opens.saturating_add(opens);
        if size < TINY && (bytes_read > 0 || bytes_written > 0) {
            self.tiny_opens = self.tiny_opens.saturating_add(opens);
        }
        let again = bytes_read > record.get(Field::EndRead);
        let is = [
            true,
            bytes_read > 0 && bytes_written == 0,
            bytes_written > 0 && bytes_read == 0,
            bytes_read > 0 && bytes_written > 0,
            record.get(Field::Calls(Op::Create)) > 0,
            bytes_read > 0 && !again,
            again,
            opens > record.get(Field::Calls(Op::Release)),
        ];
        for (kind, _) in self.kinds.iter_mut().zip(is).filter(|(_, is)| *is) {
            kind.files += 1;
            kind.sum += u128::from(size);
            kind.max = kind.max.max(size);
        }
        if bytes_read > 0 {
            self.read(size, record, speeds);
        }
    }

    /// Adds the counters of files without their own record: they are part of all sums, but not of the counts of files.
    pub fn merge(&mut self, record: &FileRecord) {
        self.all.add(record);
        for (mine, theirs) in [(&mut self.values.sizes, &record.sizes), (&mut self.values.strides, &record.strides)] {
            for (value, times) in theirs.iter() {
                if mine.len() < VALUES_MAX || mine.contains_key(&value) {
                    let count = mine.entry(value).or_default();
                    *count = count.saturating_add(times);
                }
            }
        }
    }

    fn read(&mut self, size: u64, record: &FileRecord, speeds: &Speeds) {
        self.sizes.push(size);
        let slow_bytes = record.get(Field::SlowBytesRead);
        self.slow_again = self.slow_again.saturating_add(slow_bytes.saturating_sub(record.get(Field::EndRead)));
        let (slow_seconds, fast_seconds) = speeds.reads(record);
        let class = (64 - size.saturating_sub(1).leading_zeros()).saturating_sub(FIRST_BOUND) as usize;
        let Some(entry) = self.curve.get_mut(class.min(BOUNDS - 1)) else { return };
        entry.files += 1;
        entry.bytes = entry.bytes.saturating_add(size);
        entry.seconds += record.time(Field::ReadTime).as_secs_f64();
        entry.slow_seconds += slow_seconds;
        entry.fast_seconds += fast_seconds;
        entry.slow_reads = entry.slow_reads.saturating_add(record.get(Field::SlowReads));
    }

    fn rank(&mut self, path: &str, record: &FileRecord) {
        let time = record.in_calls();
        if self.ranked.len() >= FILES && self.ranked.first_key_value().is_some_and(|(least, _)| time <= least.0) {
            return;
        }
        let seconds = |field| record.time(field).as_secs_f64();
        let row = FileRow {
            path: path.to_owned(),
            size: size(record),
            opens: record.opens(),
            reads: record.get(Field::Calls(Op::Read)),
            writes: record.get(Field::Calls(Op::Write)),
            bytes_read: record.get(Field::BytesRead),
            bytes_written: record.get(Field::BytesWritten),
            slow_bytes_read: record.get(Field::SlowBytesRead),
            errors: record.failed(),
            processes: record.processes.iter().count() as u64,
            read_seconds: seconds(Field::ReadTime),
            write_seconds: seconds(Field::WriteTime),
            meta_seconds: seconds(Field::MetaTime),
            slowest_seconds: seconds(Field::SlowestRead).max(seconds(Field::SlowestWrite)),
        };
        self.ranked.insert((time, Reverse(path.to_owned()), self.asked as usize + self.used as usize), row);
        if self.ranked.len() > FILES {
            self.ranked.pop_first();
        }
    }

    /// Completes the figures after the last file.
    pub fn finish(&mut self) {
        for kind in &mut self.kinds {
            kind.average = u64::try_from(kind.sum / u128::from(kind.files.max(1))).unwrap_or(u64::MAX);
        }
        let middle = self.sizes.len() / 2;
        if !self.sizes.is_empty() {
            self.median = *self.sizes.select_nth_unstable(middle).1;
        }
        self.sizes = Vec::new();
        let values = std::mem::take(&mut self.values);
        (self.common_sizes, self.common_strides) = (commonest(values.sizes), commonest(values.strides));
        let last = self.curve.iter().rposition(|class| class.files > 0).map_or(0, |at| at + 1);
        let first = self.curve.iter().position(|class| class.files > 0).unwrap_or(0);
        self.curve.truncate(last);
        self.curve.drain(..first);
        self.top = std::mem::take(&mut self.ranked).into_values().rev().collect();
    }

    /// Calls by pattern: reads, then writes.
    pub fn patterns(&self) -> [[u64; AccessPattern::ALL.len()]; 2] {
        [
            AccessPattern::ALL.map(|pattern| self.all.get(Field::ReadPatterns(pattern))),
            AccessPattern::ALL.map(|pattern| self.all.get(Field::WritePatterns(pattern))),
        ]
    }
}

/// The four most frequent values, as in Darshan.
fn commonest(values: HashMap<u64, u64>) -> Vec<(u64, u64)> {
    let mut all: Vec<_> = values.into_iter().collect();
    all.sort_by_key(|(value, times)| Reverse((*times, *value)));
    all.truncate(4);
    all
}
