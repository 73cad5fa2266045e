//! The counters of each file, for people and scripts. Pure.

use std::cmp::Reverse;
use std::fmt::{Result, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::access::{AccessPattern, SIZE_NAMES, SIZES};
use super::catalog::CatalogExtent;
use super::counters::Op;
use super::record::{CommonValues, Field, FileRecord, failed};
use super::render::{bytes, latency};
use crate::json;

/// A file's figures, for a report. There may be a million: the counters are packed, since they take a kilobyte each
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFigures {
    /// The current path; for a file that is gone the last one known.
    pub path: String,
    packed: Box<[u8]>,
}

impl FileFigures {
    pub fn new(path: impl Into<String>, record: &FileRecord) -> Self {
        FileFigures { path: path.into(), packed: packed(record) }
    }

    pub fn record(&self) -> FileRecord {
        FileRecord::unpack(&mut &*self.packed).unwrap_or_default()
    }

    /// Adds the counters of another inode that had the path.
    pub fn add(&mut self, piece: &FileRecord) {
        let mut sum = self.record();
        sum.add(piece);
        self.packed = packed(&sum);
    }
}

fn packed(record: &FileRecord) -> Box<[u8]> {
    let mut bytes = Vec::new();
    record.pack(&mut bytes);
    bytes.into()
}

/// All files of a mount.
#[derive(Clone, Debug)]
pub struct FileTable {
    pub files: Vec<FileFigures>,
    /// The counters of files without their own record.
    pub rest: Vec<FileFigures>,
    pub extent: CatalogExtent,
}

/// The line of the rest with the counters of other users' files.
pub const OF_OTHERS: &str = "(files of others)";

/// The files that are open or were used last: a few thousand, however many there are in all. The content of
/// `.dlio/files.json`; the JSON keys are the field names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ActiveFiles {
    pub files: Vec<ActiveFile>,
    /// The number of files that have their own record.
    pub known: usize,
}

/// One of them. Paths are escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ActiveFile {
    /// Its number in the mount, which a rename does not change.
    pub ino: u64,
    #[serde(flatten, with = "json::path")]
    pub path: String,
    #[serde(flatten)]
    pub sums: Activity,
    /// The part of that from before the file's counters were last unpacked: a reader that sees the file only the second
    /// time it looks knows what is new.
    #[serde(default, skip_serializing_if = "Activity::is_nothing")]
    pub before: Activity,
}

/// What a file saw, or a process did, as a live view shows it. Time is spent in calls, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Activity {
    pub opens: u64,
    pub reads: u64,
    pub writes: u64,
    pub others: u64,
    pub errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub slow_bytes_read: u64,
    pub slow_bytes_written: u64,
    #[serde(with = "json::seconds")]
    pub time: Duration,
}

impl From<&FileRecord> for Activity {
    fn from(record: &FileRecord) -> Self {
        Activity {
            opens: record.opens(),
            reads: record.get(Field::Calls(Op::Read)),
            writes: record.get(Field::Calls(Op::Write)),
            others: others(record),
            errors: record.failed(),
            bytes_read: record.get(Field::BytesRead),
            bytes_written: record.get(Field::BytesWritten),
            slow_bytes_read: record.get(Field::SlowBytesRead),
            slow_bytes_written: record.get(Field::SlowBytesWritten),
            time: record.in_calls(),
        }
    }
}

impl Activity {
    fn is_nothing(&self) -> bool {
        *self == Activity::default()
    }

    /// The difference to `before`, the same earlier.
    pub fn since(&self, before: &Activity) -> Activity {
        Activity { time: self.time.saturating_sub(before.time), ..self.each(before, u64::saturating_sub) }
    }

    pub fn add(&mut self, other: &Activity) {
        *self = Activity { time: self.time.saturating_add(other.time), ..self.each(other, u64::saturating_add) };
    }

    fn each(&self, other: &Activity, join: fn(u64, u64) -> u64) -> Activity {
        Activity {
            opens: join(self.opens, other.opens),
            reads: join(self.reads, other.reads),
            writes: join(self.writes, other.writes),
            others: join(self.others, other.others),
            errors: join(self.errors, other.errors),
            bytes_read: join(self.bytes_read, other.bytes_read),
            bytes_written: join(self.bytes_written, other.bytes_written),
            slow_bytes_read: join(self.slow_bytes_read, other.slow_bytes_read),
            slow_bytes_written: join(self.slow_bytes_written, other.slow_bytes_written),
            time: self.time,
        }
    }

    pub fn calls(&self) -> u64 {
        [self.reads, self.writes, self.others].into_iter().fold(self.opens, u64::saturating_add)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes_read.saturating_add(self.bytes_written)
    }

    /// Of the bytes that moved, those that the slow tier served; `None` if none moved.
    pub fn slow_share(&self) -> Option<f64> {
        let slow = self.slow_bytes_read as f64 + self.slow_bytes_written as f64;
        (self.bytes() > 0).then(|| slow / self.bytes() as f64)
    }
}

impl ActiveFiles {
    /// The text of `.dlio/files.json`: the `limit` files in whose calls the most time was spent. Ends with a newline.
    pub fn json(mut self, limit: usize) -> String {
        self.files.sort_by_key(|file| (Reverse(file.sums.time), file.ino));
        self.files.truncate(limit);
        json::line(&self)
    }
}

/// How a column's value is read from a record.
type ReadField = fn(&FileRecord) -> u64;

/// The plain numbers of the table, by name.
const NUMBERS: &[(&str, ReadField)] = &[
    ("bytes_read", |r| r.get(Field::BytesRead)),
    ("bytes_written", |r| r.get(Field::BytesWritten)),
    ("end_read", |r| r.get(Field::EndRead)),
    ("end_written", |r| r.get(Field::EndWritten)),
    ("slow_reads", |r| r.get(Field::SlowReads)),
    ("slow_bytes_read", |r| r.get(Field::SlowBytesRead)),
    ("slow_writes", |r| r.get(Field::SlowWrites)),
    ("slow_bytes_written", |r| r.get(Field::SlowBytesWritten)),
    ("read_ns", |r| r.get(Field::ReadTime)),
    ("write_ns", |r| r.get(Field::WriteTime)),
    ("meta_ns", |r| r.get(Field::MetaTime)),
    ("slowest_read_ns", |r| r.get(Field::SlowestRead)),
    ("slowest_read_bytes", |r| r.get(Field::SlowestReadSize)),
    ("slowest_write_ns", |r| r.get(Field::SlowestWrite)),
    ("slowest_write_bytes", |r| r.get(Field::SlowestWriteSize)),
    ("seq_reads", |r| r.get(Field::SequentialReads)),
    ("seq_writes", |r| r.get(Field::SequentialWrites)),
    ("consec_reads", |r| r.get(Field::ConsecutiveReads)),
    ("consec_writes", |r| r.get(Field::ConsecutiveWrites)),
    ("switches", |r| r.get(Field::Switches)),
    ("unaligned", |r| r.get(Field::Unaligned)),
];

const MOMENTS: &[(&str, Field)] = &[
    ("open_first_us", Field::OpenFirst),
    ("open_last_us", Field::OpenLast),
    ("read_first_us", Field::ReadFirst),
    ("read_last_us", Field::ReadLast),
    ("write_first_us", Field::WriteFirst),
    ("write_last_us", Field::WriteLast),
    ("close_first_us", Field::CloseFirst),
    ("close_last_us", Field::CloseLast),
];

type List = fn(&FileRecord) -> &CommonValues;

const LISTS: &[(&str, List)] = &[("sizes", |r| &r.sizes), ("strides", |r| &r.strides), ("processes", |r| &r.processes)];

/// How many of a list's values are reported.
const COMMON: usize = 4;

/// Calls other than opens, reads and writes.
fn others(record: &FileRecord) -> u64 {
    let counted = |op: &Op| !matches!(op, Op::Open | Op::Create | Op::Read | Op::Write);
    Op::ALL.into_iter().filter(counted).map(|op| record.get(Field::Calls(op))).sum()
}

impl FileTable {
    /// The table for people: the `limit` files in whose calls the most time was spent. Ends with a newline.
    pub fn text(mut self, limit: usize) -> String {
        self.files.sort_by_cached_key(|file| (Reverse(file.record().in_calls()), file.path.clone()));
        let known = self.files.len();
        self.files.truncate(limit);
        let beyond =
            |class: FileFigures| FileFigures { path: format!("{} (beyond the limit of memory)", class.path), ..class };
        self.files.extend(self.rest.into_iter().map(beyond));
        let mut out = format!(
            "{} of {known} files, most time first; all of them, with all numbers: files.tsv\n\
             records {} of at most {}\n\n",
            known.min(limit),
            bytes(self.extent.bytes as u64),
            bytes(self.extent.limit_bytes as u64)
        );
        out.push_str("  opens    reads   writes    other errors       read    written     time  path\n");
        for file in &self.files {
            let r = &file.record();
            writeln!(
                out,
                "{:>7}{:>9}{:>9}{:>9}{:>7}{:>11}{:>11}{:>9}  {}",
                r.opens(),
                r.get(Field::Calls(Op::Read)),
                r.get(Field::Calls(Op::Write)),
                others(r),
                r.failed(),
                bytes(r.get(Field::BytesRead)),
                bytes(r.get(Field::BytesWritten)),
                latency(r.in_calls()),
                file.path
            )
            .expect("formatting into memory");
        }
        out
    }

    /// All files and all numbers, one line each, in tab-separated columns named by the first line; in the order of
    /// their paths, which are escaped; then the classes of files without their own record, as `*.jpg`. Ends with a
    /// newline.
    pub fn table(mut self) -> String {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.files.append(&mut self.rest);
        let (columns, mut out) = (columns(), String::new());
        header(&mut out, &columns).expect("formatting into memory");
        for file in &self.files {
            row(&mut out, &columns, &file.path, &file.record()).expect("formatting into memory");
        }
        out
    }
}

/// The table, line by line.
#[derive(Debug)]
pub struct FileLines(Vec<(String, FileColumn)>);

impl Default for FileLines {
    fn default() -> Self {
        FileLines(columns())
    }
}

impl FileLines {
    /// The names of the columns, separated by tabs. Ends with a newline.
    pub fn heading(&self) -> String {
        let mut out = String::new();
        header(&mut out, &self.0).expect("formatting into memory");
        out
    }

    /// The line of one file. Ends with a newline; the path must be escaped to be one column.
    pub fn of(&self, path: &str, record: &FileRecord) -> String {
        let mut out = String::new();
        row(&mut out, &self.0, path, record).expect("formatting into memory");
        out
    }
}

/// A column of the table that holds numbers.
#[derive(Clone, Copy, Debug)]
pub enum FileColumn {
    Number(ReadField),
    Field(Field),
    Moment(Field),
}

impl FileColumn {
    /// `None` for never, which only moments can be.
    pub fn of(self, record: &FileRecord) -> Option<u64> {
        match self {
            FileColumn::Number(value) => Some(value(record)),
            FileColumn::Field(field) => Some(record.get(field)),
            FileColumn::Moment(field) => record.moment(field).map(|moment| moment.as_micros() as u64),
        }
    }
}

/// The columns that hold numbers, by name, in their order; times in nanoseconds, moments in microseconds since the
/// mount.
pub fn columns() -> Vec<(String, FileColumn)> {
    let mut columns: Vec<(String, FileColumn)> = vec![
        ("opens".to_owned(), FileColumn::Number(FileRecord::opens)),
        ("errors".to_owned(), FileColumn::Number(FileRecord::failed)),
    ];
    let field = |name: String, field| (name, FileColumn::Field(field));
    columns.extend(Op::ALL.map(|op| field(op.name().to_owned(), Field::Calls(op))));
    columns.extend(NUMBERS.iter().map(|(name, value)| ((*name).to_owned(), FileColumn::Number(*value))));
    type Sized = fn(usize) -> Field;
    type Placed = fn(AccessPattern) -> Field;
    let ways: [(&str, Sized, Sized, Placed); 2] = [
        ("read", Field::ReadSizes, Field::ReadSizeBytes, Field::ReadPatterns),
        ("write", Field::WriteSizes, Field::WriteSizeBytes, Field::WritePatterns),
    ];
    for (what, count, bytes, pattern) in ways {
        columns.extend((0..SIZES).map(|n| field(format!("{what}s_{}", SIZE_NAMES[n]), count(n))));
        columns.extend((0..SIZES).map(|n| field(format!("{what}_bytes_{}", SIZE_NAMES[n]), bytes(n))));
        columns.extend(AccessPattern::ALL.map(|p| field(format!("{what}s_{}", p.name()), pattern(p))));
    }
    columns.extend(MOMENTS.iter().map(|(name, field)| ((*name).to_owned(), FileColumn::Moment(*field))));
    columns
}

fn header(out: &mut String, columns: &[(String, FileColumn)]) -> Result {
    out.push_str("path");
    columns.iter().try_for_each(|(name, _)| write!(out, "\t{name}"))?;
    LISTS.iter().try_for_each(|(name, _)| write!(out, "\t{name}"))?;
    out.push_str("\tfailures\n");
    Ok(())
}

fn row(out: &mut String, columns: &[(String, FileColumn)], path: &str, record: &FileRecord) -> Result {
    out.push_str(path);
    for (_, column) in columns {
        match column.of(record) {
            Some(number) => write!(out, "\t{number}")?,
            None => out.push('\t'),
        }
    }
    // `VALUE:COUNT,VALUE:COUNT`, most frequent first.
    for (_, list) in LISTS {
        let told: Vec<_> = list(record).top(COMMON).iter().map(|(value, n)| format!("{value}:{n}")).collect();
        write!(out, "\t{}", told.join(","))?;
    }
    let told = |(value, n): &(u64, u64)| {
        let (op, errno) = failed(*value)?;
        Some(format!("{}/{:?}:{n}", op.name(), errno))
    };
    let failures: Vec<_> = record.failures.top(COMMON).iter().filter_map(told).collect();
    writeln!(out, "\t{}", failures.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::stats::counters::{Call, Tier};

    fn files(unnamed: u64) -> FileTable {
        let mut record = FileRecord::default();
        let call = |op, bytes| Call {
            op,
            began: Duration::from_micros(5),
            took: Duration::from_micros(3),
            offset: 0,
            bytes,
            errno: (op == Op::Unlink).then_some(Errno::EACCES),
            tier: Tier::Slow,
        };
        let mut cursor = crate::stats::access::Cursor::default();
        for (op, bytes) in [(Op::Open, 0), (Op::Read, 2048), (Op::Getattr, 0), (Op::Unlink, 0)] {
            record.count(&call(op, bytes), Some(&mut cursor));
        }
        record.opened_by(3, None);
        let files = vec![FileFigures::new("/b", &FileRecord::default()), FileFigures::new("/ckpt/epoch%201", &record)];
        let rest = (0..unnamed).map(|_| FileFigures::new("*.jpg", &record)).collect();
        FileTable { files, rest, extent: CatalogExtent { files: 2, bytes: 90, limit_bytes: 100, unnamed } }
    }

    #[test]
    fn the_table_for_people_begins_with_what_took_longest_and_fits_80_columns() {
        let text = files(0).text(1);
        assert!(text.starts_with("1 of 2 files"), "{text}");
        let last = text.lines().last().expect("a row");
        assert!(last.ends_with("/ckpt/epoch%201") && last.contains("2.0 KiB") && last.contains("12 us"), "{last}");
        assert!(text.lines().all(|line| line.len() <= 80 + "/ckpt/epoch%201".len()), "{text}");
        let full = files(1).text(9);
        assert!(full.lines().last().expect("a row").ends_with("*.jpg (beyond the limit of memory)"), "{full}");
    }

    #[test]
    fn the_busiest_are_told_with_what_they_did_before() {
        let figures = files(0);
        let busy = |ino: u64, file: &FileFigures, before| ActiveFile {
            ino,
            path: file.path.clone(),
            sums: (&file.record()).into(),
            before,
        };
        let (idle, busiest) = (&figures.files[0], &figures.files[1]);
        let before = Activity { bytes_read: 48, ..Activity::default() };
        let all =
            vec![busy(7, idle, Activity::default()), busy(9, busiest, before), busy(8, idle, Activity::default())];
        let text = ActiveFiles { files: all, known: 5 }.json(2);
        let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        let file = &value["files"][0];
        assert_eq!((&file["ino"], &file["path"]), (&9.into(), &"/ckpt/epoch 1".into()), "most time first");
        let numbers = ["opens", "reads", "writes", "others", "errors", "bytes_read", "slow_bytes_read"];
        assert_eq!(numbers.map(|name| file[name].as_u64()), [1, 1, 0, 1, 1, 2048, 2048].map(Some));
        assert_eq!((file["time"].as_f64(), file["before"]["bytes_read"].as_u64()), (Some(12e-6), Some(48)));
        assert!(value["files"][1]["ino"] == 7 && value["files"][1]["before"].is_null(), "{value}");
        assert_eq!((value["files"].as_array().map(Vec::len), &value["known"]), (Some(2), &5.into()));
    }

    #[test]
    fn the_table_for_scripts_has_a_cell_for_each_column() {
        let table = files(0).table();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
        let names: std::collections::HashSet<_> = rows[0].iter().collect();
        assert_eq!(names.len(), rows[0].len(), "a name is there once");
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
        let cell = |name: &str| rows[2][rows[0].iter().position(|column| *column == name).expect("a column")];
        assert_eq!(cell("path"), "/ckpt/epoch%201");
        assert_eq!((cell("opens"), cell("read"), cell("bytes_read"), cell("slow_reads")), ("1", "1", "2048", "1"));
        assert_eq!((cell("reads_1K_10K"), cell("read_bytes_1K_10K"), cell("reads_first")), ("1", "2048", "1"));
        assert_eq!((cell("open_first_us"), cell("read_last_us"), cell("write_first_us")), ("5", "8", ""));
        assert_eq!((cell("sizes"), cell("processes"), cell("failures")), ("2048:1", "3:1", "unlink/EACCES:1"));
    }
}
