//! Files and traced calls as two Parquet tables, for pandas and DuckDB. Pure.
//!
//! Rows are written in groups, so a table may be larger than memory. The columns of the table of files are those of
//! `.dlio/files.tsv`, as far as they are numbers.

use std::io;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::outlet::Outlet;
use super::traced::{self, Names, OF_UNKNOWN};
use crate::stats::files;
use crate::stats::record::FileRecord;
use crate::stats::recording::Recording;

/// Rows of a group.
const ROWS: usize = 1 << 16;

/// The metadata key of a table under which its gaps are described, as JSON.
const TOLD: &str = "dlio-fs";

const CALLS: &str = "message calls {
    required int64 began (timestamp(micros, true));
    required int64 began_ns (integer(64, false));
    required int64 took_ns (integer(64, false));
    required binary op (string);
    required binary tier (string);
    optional binary errno (string);
    required binary path (string);
    required int64 inode (integer(64, false));
    required int64 handle (integer(64, false));
    required int64 offset (integer(64, false));
    required int64 bytes (integer(64, false));
    optional int64 pid (integer(64, false));
    required binary command (string);
    required int64 thread (integer(64, false));
}";

/// Writes both tables: `files` and `operations`.
pub(super) fn write(recording: &mut Recording, out: &mut dyn Outlet) -> io::Result<()> {
    out.table("files")?;
    write_files(recording, out).map_err(as_io)?;
    out.table("operations")?;
    write_calls(recording, out).map_err(as_io)
}

fn write_files(recording: &Recording, out: &mut dyn Outlet) -> Result<(), ParquetError> {
    let columns = files::columns();
    let mut schema =
        "message files { required binary path (string); required int64 inode (integer(64, false));".to_owned();
    for (name, column) in &columns {
        let there = if column.of(&FileRecord::default()).is_some() { "required" } else { "optional" };
        schema.push_str(&format!("{there} int64 {name} (integer(64, false));"));
    }
    let mut table = ParquetTable::new(out, &(schema + "}"))?;
    for file in recording.files.iter().chain(&recording.rest) {
        let record = file.record();
        let numbers =
            columns.iter().map(|(_, column)| column.of(&record).map_or(ParquetCell::Nothing, ParquetCell::Number));
        table.row([ParquetCell::Text(&file.path), ParquetCell::Number(file.ino)].into_iter().chain(numbers))?;
    }
    table.end(recording)
}

fn write_calls(recording: &mut Recording, out: &mut dyn Outlet) -> Result<(), ParquetError> {
    let names = Names::of(recording);
    let since = recording.meta.since;
    let mut table = ParquetTable::new(out, CALLS)?;
    traced::each(recording, |traced| {
        let call = &traced.call;
        let errno = call.errno.map(|errno| format!("{errno:?}"));
        let (pid, command) = names.process(traced.process);
        let row = [
            // DuckDB can do little with nanoseconds with a time zone; the exact moment is the one since the mount.
            ParquetCell::Number(since.saturating_add(traced::nanos(call.began)) / 1000),
            ParquetCell::Number(traced::nanos(call.began)),
            ParquetCell::Number(traced::nanos(call.took)),
            ParquetCell::Text(call.op.name()),
            ParquetCell::Text(call.tier.name()),
            errno.as_deref().map_or(ParquetCell::Nothing, ParquetCell::Text),
            ParquetCell::Text(names.path(traced.ino)),
            ParquetCell::Number(traced.ino),
            ParquetCell::Number(traced.handle),
            ParquetCell::Number(call.offset),
            ParquetCell::Number(call.bytes),
            if pid == OF_UNKNOWN { ParquetCell::Nothing } else { ParquetCell::Number(pid.into()) },
            ParquetCell::Text(command),
            ParquetCell::Number(traced.thread.into()),
        ];
        table.row(row).map_err(as_io)
    })?;
    table.end(recording)
}

fn as_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => inner.downcast().map_or_else(io::Error::other, |error| *error),
        error => io::Error::other(error),
    }
}

enum ParquetCell<'a> {
    Number(u64),
    Text(&'a str),
    /// For optional columns.
    Nothing,
}

/// A column's cells in the current group. `there`: whether each cell has a value, 1 or 0.
#[derive(Default)]
struct Cells {
    numbers: Vec<i64>,
    texts: Vec<ByteArray>,
    there: Vec<i16>,
}

struct ParquetTable<'a> {
    out: SerializedFileWriter<&'a mut dyn Outlet>,
    columns: Vec<Cells>,
    rows: usize,
}

impl<'a> ParquetTable<'a> {
    fn new(out: &'a mut dyn Outlet, schema: &str) -> Result<Self, ParquetError> {
        let schema = Arc::new(parse_message_type(schema)?);
        let columns = schema.get_fields().iter().map(|_| Cells::default()).collect();
        let level = ZstdLevel::try_new(3)?;
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
        let out = SerializedFileWriter::new(out, schema, Arc::new(properties))?;
        Ok(ParquetTable { out, columns, rows: 0 })
    }

    /// Adds a row: a cell for each column.
    fn row<'c>(&mut self, row: impl IntoIterator<Item = ParquetCell<'c>>) -> Result<(), ParquetError> {
        for (cells, cell) in self.columns.iter_mut().zip(row) {
            cells.there.push(i16::from(!matches!(cell, ParquetCell::Nothing)));
            match cell {
                // The same bits: the schema says that they are unsigned.
                ParquetCell::Number(number) => cells.numbers.push(number as i64),
                ParquetCell::Text(text) => cells.texts.push(text.into()),
                ParquetCell::Nothing => {}
            }
        }
        self.rows += 1;
        if self.rows < ROWS { Ok(()) } else { self.group() }
    }

    /// Writes the pending rows as a group.
    fn group(&mut self) -> Result<(), ParquetError> {
        self.rows = 0;
        let mut group = self.out.next_row_group()?;
        for cells in &mut self.columns {
            let Some(mut column) = group.next_column()? else { break };
            // Ignored for columns that are not optional.
            let there = Some(&*cells.there);
            match column.untyped() {
                parquet::column::writer::ColumnWriter::ByteArrayColumnWriter(_) => {
                    column.typed::<ByteArrayType>().write_batch(&cells.texts, there, None)?
                }
                _ => column.typed::<Int64Type>().write_batch(&cells.numbers, there, None)?,
            };
            column.close()?;
            *cells = Cells::default();
        }
        group.close().map(drop)
    }

    fn end(mut self, recording: &Recording) -> Result<(), ParquetError> {
        if self.rows > 0 {
            self.group()?;
        }
        let told = serde_json::to_string(&traced::completeness(recording)).map_err(io::Error::from)?;
        self.out.append_key_value_metadata(KeyValue::new(TOLD.to_owned(), told));
        self.out.close().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::Memory;
    use crate::report::traced::sample;
    use crate::stats::traced::Traced;
    use bytes::Bytes;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    type Reader = SerializedFileReader<Bytes>;

    fn tables(recording: &mut Recording) -> [Reader; 2] {
        let mut out = Memory::default();
        write(recording, &mut out).expect("into memory");
        let names: Vec<_> = out.0.iter().map(|table| table.0.as_str()).collect();
        assert_eq!(names, ["files", "operations"]);
        let mut readers = out.0.into_iter().map(|(_, bytes)| Reader::new(Bytes::from(bytes)).expect("a table"));
        std::array::from_fn(|_| readers.next().expect("two"))
    }

    fn sum(reader: &Reader, column: &str) -> u64 {
        let fields = reader.metadata().file_metadata().schema().get_fields();
        let at = fields.iter().position(|field| field.name() == column).expect("a column");
        reader.get_row_iter(None).expect("rows").map(|row| row.expect("a row").get_ulong(at).unwrap_or(0)).sum()
    }

    #[test]
    fn both_tables_add_up_to_the_recording() {
        let [files, calls] = tables(&mut sample::recording());
        let all = sample::calls();
        assert_eq!(calls.metadata().file_metadata().num_rows(), all.len() as i64);
        assert_eq!(sum(&calls, "bytes"), all.iter().map(|one| one.call.bytes).sum::<u64>());
        assert_eq!(sum(&calls, "took_ns"), all.iter().map(|one| traced::nanos(one.call.took)).sum::<u64>());
        let began = |one: &Traced| traced::nanos(one.call.began);
        assert_eq!(sum(&calls, "began_ns"), all.iter().map(began).sum::<u64>());
        assert_eq!(sum(&calls, "offset"), all.iter().map(|one| one.call.offset).sum::<u64>());
        let known = all.iter().filter(|one| one.process < 3);
        assert_eq!(sum(&calls, "pid"), known.map(|one| 4710 + u64::from(one.process)).sum::<u64>());
        assert_eq!(files.metadata().file_metadata().num_rows(), 3);
        assert_eq!(sum(&files, "bytes_read") + sum(&files, "bytes_written"), sum(&calls, "bytes"));
        assert_eq!((sum(&files, "opens"), sum(&files, "errors")), (75, 1));
        for table in [&files, &calls] {
            let told = table.metadata().file_metadata().key_value_metadata().expect("some");
            let told = told.iter().find(|one| one.key == TOLD).and_then(|one| one.value.clone()).expect("told");
            assert!(told.contains(r#""calls_dropped":7"#) && told.contains(r#""name":"exact""#), "{told}");
        }
    }

    /// A group of full size, and the last rows in a smaller one; unknown values are null.
    #[test]
    fn rows_go_out_in_groups() {
        let mut out = Memory(vec![Default::default()]);
        let mut table = ParquetTable::new(&mut out, "message t { required int64 a; optional binary b (string); }")
            .expect("a table");
        for n in 0..ROWS as u64 + 10 {
            let text = n.to_string();
            table
                .row([ParquetCell::Number(n), if n % 2 == 0 { ParquetCell::Nothing } else { ParquetCell::Text(&text) }])
                .expect("a row");
        }
        table.end(&sample::recording()).expect("written");
        let reader = Reader::new(Bytes::from(out.0.remove(0).1)).expect("a table");
        let rows: Vec<_> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(rows, [ROWS as i64, 10]);
        for (n, row) in reader.get_row_iter(None).expect("rows").enumerate() {
            let row = row.expect("a row");
            assert_eq!(
                (row.get_long(0).expect("a number"), row.get_string(1).ok()),
                (n as i64, (n % 2 == 1).then(|| n.to_string()).as_ref())
            );
        }
    }

    #[test]
    fn a_recording_without_files_is_two_tables() {
        let whole = sample::bytes();
        let [files, calls] = tables(&mut sample::read(whole[..whole.len() - 40].to_vec()));
        assert_eq!(
            (files.metadata().file_metadata().num_rows(), calls.metadata().file_metadata().num_rows()),
            (0, 300)
        );
    }
}
