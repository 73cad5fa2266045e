//! What was counted of each file, as people and scripts read it. Pure.

use std::cmp::Reverse;
use std::fmt::{Result, Write};
use std::time::Duration;

use super::FileFigures;
use super::access::{Pattern, SIZE_NAMES, SIZES};
use super::catalog::Extent;
use super::counters::Op;
use super::record::{Common, Field, Record, failed};
use super::render::{bytes, latency};

/// All files of a mount.
#[derive(Clone, Debug)]
pub struct Files {
    pub files: Vec<FileFigures>,
    /// What was counted of those that have no record of their own.
    pub rest: Record,
    pub extent: Extent,
}

/// How a column's value is taken from a record.
type Value = fn(&Record) -> u64;

/// The numbers of the table, by name; times in nanoseconds, moments in microseconds since the mount, empty for never.
const NUMBERS: &[(&str, Value)] = &[
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

type List = fn(&Record) -> &Common;

const LISTS: &[(&str, List)] = &[("sizes", |r| &r.sizes), ("strides", |r| &r.strides), ("processes", |r| &r.processes)];

/// How many of a list's values are told.
const COMMON: usize = 4;

fn opens(record: &Record) -> u64 {
    record.get(Field::Calls(Op::Open)) + record.get(Field::Calls(Op::Create))
}

/// Spent in its calls.
fn time(record: &Record) -> Duration {
    [Field::ReadTime, Field::WriteTime, Field::MetaTime].map(|field| record.time(field)).iter().sum()
}

/// Calls that are no opens, reads or writes.
fn others(record: &Record) -> u64 {
    let counted = |op: &Op| !matches!(op, Op::Open | Op::Create | Op::Read | Op::Write);
    Op::ALL.into_iter().filter(counted).map(|op| record.get(Field::Calls(op))).sum()
}

impl Files {
    /// The table for people: the `limit` files in whose calls the most time was spent. Ends with a newline.
    pub fn text(mut self, limit: usize) -> String {
        self.files.sort_by_cached_key(|file| (Reverse(time(&file.record)), file.path.clone()));
        let known = self.files.len();
        self.files.truncate(limit);
        if self.extent.unnamed > 0 {
            let path = "(files beyond the limit of memory)".to_owned();
            self.files.push(FileFigures { path, record: self.rest });
        }
        let mut out = format!(
            "{} of {known} files, most time first; all of them, with all numbers: files.tsv\n\
             records {} of at most {}\n\n",
            known.min(limit),
            bytes(self.extent.bytes as u64),
            bytes(self.extent.limit_bytes as u64)
        );
        out.push_str("  opens    reads   writes    other errors       read    written     time  path\n");
        for FileFigures { path, record: r } in &self.files {
            writeln!(
                out,
                "{:>7}{:>9}{:>9}{:>9}{:>7}{:>11}{:>11}{:>9}  {path}",
                opens(r),
                r.get(Field::Calls(Op::Read)),
                r.get(Field::Calls(Op::Write)),
                others(r),
                r.failed(),
                bytes(r.get(Field::BytesRead)),
                bytes(r.get(Field::BytesWritten)),
                latency(time(r))
            )
            .expect("formatting into memory");
        }
        out
    }

    /// All files and all numbers, a line each, in columns that the first line names and tabulators part; in the order of
    /// their paths. Paths are escaped. Ends with a newline.
    pub fn table(mut self) -> String {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        if self.extent.unnamed > 0 {
            self.files.push(FileFigures { path: String::new(), record: self.rest });
        }
        let mut out = String::new();
        header(&mut out).expect("formatting into memory");
        for file in &self.files {
            row(&mut out, file).expect("formatting into memory");
        }
        out
    }
}

fn header(out: &mut String) -> Result {
    out.push_str("path\topens\terrors");
    Op::ALL.iter().try_for_each(|op| write!(out, "\t{}", op.name()))?;
    NUMBERS.iter().try_for_each(|(name, _)| write!(out, "\t{name}"))?;
    for what in ["read", "write"] {
        SIZE_NAMES.iter().try_for_each(|class| write!(out, "\t{what}s_{class}"))?;
        SIZE_NAMES.iter().try_for_each(|class| write!(out, "\t{what}_bytes_{class}"))?;
        Pattern::ALL.iter().try_for_each(|pattern| write!(out, "\t{what}s_{}", pattern.name()))?;
    }
    MOMENTS.iter().try_for_each(|(name, _)| write!(out, "\t{name}"))?;
    LISTS.iter().try_for_each(|(name, _)| write!(out, "\t{name}"))?;
    out.push_str("\tfailures\n");
    Ok(())
}

fn row(out: &mut String, FileFigures { path, record }: &FileFigures) -> Result {
    write!(out, "{path}\t{}\t{}", opens(record), record.failed())?;
    Op::ALL.iter().try_for_each(|op| write!(out, "\t{}", record.get(Field::Calls(*op))))?;
    NUMBERS.iter().try_for_each(|(_, value)| write!(out, "\t{}", value(record)))?;
    let mut tell = |field: Field| write!(out, "\t{}", record.get(field));
    (0..SIZES).map(Field::ReadSizes).try_for_each(&mut tell)?;
    (0..SIZES).map(Field::ReadSizeBytes).try_for_each(&mut tell)?;
    Pattern::ALL.map(Field::ReadPatterns).into_iter().try_for_each(&mut tell)?;
    (0..SIZES).map(Field::WriteSizes).try_for_each(&mut tell)?;
    (0..SIZES).map(Field::WriteSizeBytes).try_for_each(&mut tell)?;
    Pattern::ALL.map(Field::WritePatterns).into_iter().try_for_each(&mut tell)?;
    for (_, field) in MOMENTS {
        match record.moment(*field) {
            Some(moment) => write!(out, "\t{}", moment.as_micros())?,
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

    fn files(unnamed: u64) -> Files {
        let mut record = Record::default();
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
        let files = vec![
            FileFigures { path: "/b".into(), record: Record::default() },
            FileFigures { path: "/ckpt/epoch%201".into(), record: record.clone() },
        ];
        Files { files, rest: record, extent: Extent { files: 2, bytes: 90, limit_bytes: 100, unnamed } }
    }

    #[test]
    fn the_table_for_people_begins_with_what_took_longest_and_fits_80_columns() {
        let text = files(0).text(1);
        assert!(text.starts_with("1 of 2 files"), "{text}");
        let last = text.lines().last().expect("a row");
        assert!(last.ends_with("/ckpt/epoch%201") && last.contains("2.0 KiB") && last.contains("12 us"), "{last}");
        assert!(text.lines().all(|line| line.len() <= 80 + "/ckpt/epoch%201".len()), "{text}");
        let full = files(1).text(9);
        assert!(full.lines().last().expect("a row").ends_with("(files beyond the limit of memory)"), "{full}");
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
