//! What was observed as bytes: the form in which a mount exports it, and the format of recording files. Pure.
//!
//! A recording is a head of sixteen bytes and *pieces*, one after another. Each has a header with its length, the time
//! it covers and its checksum, so that the headers are an index: a reader that wants one minute of a day skips from
//! header to header. Kinds of pieces:
//!
//! | kind | its bytes, before compression |
//! |---|---|
//! | `M` | [`Meta`] as JSON: the last one of a recording is valid |
//! | `P` | paths: inode number, path; the last one for a number is valid for the blocks after it |
//! | `T` | traced calls (`trace/block.rs`); the header says how many were dropped before them |
//! | `F` | files: inode number, path, record (`record.rs`); all `F` after the last `M` are one table |
//! | `R` | classes of files without their own record, as `*.jpg`: name, record |
//!
//! A recording that is cut off anywhere, or damaged, still gives what its whole pieces contain, and says that it is
//! incomplete. Numbers are little-endian; a changed order of operations or of a record's numbers requires another
//! version of the format.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Errno;

use super::catalog;
pub use super::checkpoints::Checkpoint;
use super::counters::{Op, OpFigures, Tier, nanos};
use super::plans;
use super::processes::{Identity, ProcessFigures};
use super::record::{FileRecord, read_number, write_number};
use super::status::IoPathFigures;
use super::trace::block;
use super::trace::{self, Block};
use super::traced::Traced;

/// Begins every recording; the version follows in four bytes, then four zero bytes.
const MAGIC: [u8; 8] = *b"dlio-rec";
/// The version of the format.
pub const VERSION: u32 = 1;
const HEAD: usize = 16;
/// Bytes of a piece's header.
const HEADER: usize = 48;
/// No piece holds more than this before compression.
const PIECE_MAX: usize = 64 << 20;
/// The most files, or paths, of one piece: more are refused, as a few bytes of zstd can expand to millions that are all
/// zeros.
const FILES: usize = 1 << 13;
/// All pieces together may expand to at most this many times their stored bytes, plus an allowance for small
/// recordings: recordings may come from anybody. Ours expand about tenfold.
const RATIO_MAX: u64 = 64;
const SMALL: u64 = 16 << 20;
const LEVEL: i32 = 3;

/// What is known besides files and calls. Moments are seconds since the mount was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// The version of the program that wrote it.
    pub version: String,
    pub host: String,
    /// As `uname -sr` prints it.
    pub kernel: String,
    pub uid: u32,
    pub mountpoint: String,
    pub fast: TierPlace,
    pub slow: TierPlace,
    /// When the mount was made: nanoseconds since 1970.
    pub since: u64,
    /// The time that it covers.
    pub from: f64,
    pub until: f64,
    /// Its name, if it is a window.
    pub window: Option<String>,
    /// The first line of `.dlio/stats`.
    pub safety: String,
    pub io_path: IoPathFigures,
    pub operations: Vec<RecordedOperation>,
    pub failures: Vec<RecordedFailure>,
    pub processes: Vec<RecordedProcess>,
    pub timeline: RecordedTimeline,
    pub heat: RecordedHeat,
    pub windows: Vec<RecordedWindow>,
    pub marks: Vec<Mark>,
    pub epochs: Vec<Epoch>,
    /// Only checkpoints that nobody writes to any more.
    pub checkpoints: Vec<Checkpoint>,
    pub plans: Vec<plans::RunningPlan>,
    pub files: catalog::CatalogExtent,
    pub trace: trace::TraceExtent,
}

/// A tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierPlace {
    pub path: String,
    /// `ext4`, `lustre`, ...
    pub kind: String,
    pub total: u64,
    pub used: u64,
}

/// One operation as one tier served it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedOperation {
    pub op: Op,
    pub tier: Tier,
    pub calls: u64,
    pub errors: u64,
    pub bytes: u64,
    /// Nanoseconds.
    pub total: u64,
    pub max: u64,
    /// The number of a bucket ([`OpFigures`]), and how many calls are in it.
    pub latency: Vec<(usize, u64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedFailure {
    pub op: Op,
    pub errno: String,
    pub calls: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedProcess {
    /// As in [`Traced::process`]; 0 stands for all unknown processes.
    pub number: u64,
    pub pid: u32,
    pub command: String,
    pub cgroup: String,
    pub opens: u64,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Seconds in calls through its handles.
    pub time: f64,
}

/// What moved, in spans of equal length since the mount: see `timeline.rs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedTimeline {
    /// Seconds.
    pub span: f64,
    pub read_fast: Vec<u64>,
    pub read_slow: Vec<u64>,
    pub written_fast: Vec<u64>,
    pub written_slow: Vec<u64>,
    pub drained: Vec<u64>,
    pub calls: Vec<u64>,
}

/// Bytes by process and span, since the mount. All rows are equally long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedHeat {
    /// Seconds.
    pub span: f64,
    pub rows: Vec<HeatRow>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeatRow {
    /// The number of the process; 0 stands for all that have no row.
    pub process: u64,
    pub read: Vec<u64>,
    pub written: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedWindow {
    pub name: String,
    pub began: f64,
    pub ended: f64,
    pub files: u64,
    /// How many processes did something meanwhile; an earlier version did not count them.
    #[serde(default)]
    pub processes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    pub at: f64,
    pub text: String,
}

/// A pass over the data, found without a mark.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Epoch {
    /// From 1 on.
    pub number: u64,
    pub began: f64,
    pub ended: f64,
    /// It has not ended yet.
    pub open: bool,
    /// Different files that were read.
    pub files: u64,
    pub reads: u64,
    pub bytes_fast: u64,
    pub bytes_slow: u64,
}

impl From<(Op, Tier, OpFigures)> for RecordedOperation {
    fn from((op, tier, figures): (Op, Tier, OpFigures)) -> Self {
        let latency = figures.latency.iter().copied().enumerate().filter(|(_, calls)| *calls > 0).collect();
        let OpFigures { calls, errors, bytes, total, max, .. } = figures;
        RecordedOperation { op, tier, calls, errors, bytes, total: nanos(total), max: nanos(max), latency }
    }
}

impl RecordedOperation {
    /// The figures it was made from. Buckets that do not exist are left out.
    pub fn figures(&self) -> OpFigures {
        let mut figures = OpFigures {
            calls: self.calls,
            errors: self.errors,
            bytes: self.bytes,
            total: Duration::from_nanos(self.total),
            max: Duration::from_nanos(self.max),
            ..OpFigures::default()
        };
        for (bucket, calls) in &self.latency {
            if let Some(counter) = figures.latency.get_mut(*bucket) {
                *counter = *calls;
            }
        }
        figures
    }
}

impl From<(Op, Errno, u64)> for RecordedFailure {
    fn from((op, errno, calls): (Op, Errno, u64)) -> Self {
        RecordedFailure { op, errno: format!("{errno:?}"), calls }
    }
}

impl From<ProcessFigures> for RecordedProcess {
    fn from(figures: ProcessFigures) -> Self {
        let ProcessFigures { number, identity, opens, reads, writes, bytes_read, bytes_written, time } = figures;
        let Identity { pid, command, cgroup, .. } = identity;
        let time = time.as_secs_f64();
        RecordedProcess { number, pid, command, cgroup, opens, reads, writes, bytes_read, bytes_written, time }
    }
}

/// Writes a recording, piece by piece.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    written: u64,
}

/// The content of a piece's header besides its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    kind: u8,
    stored: u32,
    sum: u32,
    calls: u32,
    dropped: u64,
    from: u64,
    until: u64,
}

impl Header {
    fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind;
        bytes[4..8].copy_from_slice(&self.stored.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sum.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.calls.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.dropped.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.from.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.until.to_le_bytes());
        let own = crc32fast::hash(&bytes[..40]);
        bytes[40..44].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// `None`: this is not a header.
    fn read(bytes: &[u8; HEADER]) -> Option<Header> {
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        let eight = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        let header = Header {
            kind: bytes[0],
            stored: four(4),
            sum: four(8),
            calls: four(12),
            dropped: eight(16),
            from: eight(24),
            until: eight(32),
        };
        (four(40) == crc32fast::hash(&bytes[..40])).then_some(header)
    }
}

impl<W: Write> Writer<W> {
    /// Begins a recording.
    pub fn new(mut out: W) -> io::Result<Self> {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out.write_all(&head)?;
        Ok(Writer { out, written: HEAD as u64 })
    }

    /// Bytes so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn into_inner(self) -> W {
        self.out
    }

    fn piece(&mut self, header: Header, stored: &[u8]) -> io::Result<()> {
        let header = Header { stored: stored.len() as u32, sum: crc32fast::hash(stored), ..header };
        self.out.write_all(&header.bytes())?;
        self.out.write_all(stored)?;
        self.written += (HEADER + stored.len()) as u64;
        Ok(())
    }

    fn packed(&mut self, kind: u8, raw: &[u8]) -> io::Result<()> {
        let stored = zstd::bulk::compress(raw, LEVEL)?;
        self.piece(Header { kind, ..Header::default() }, &stored)
    }

    pub fn meta(&mut self, meta: &Meta) -> io::Result<()> {
        self.packed(b'M', &serde_json::to_vec(meta)?)
    }

    pub fn paths(&mut self, paths: &[(u64, String)]) -> io::Result<()> {
        for some in paths.chunks(FILES) {
            let mut raw = Vec::new();
            for (ino, path) in some {
                write_number(&mut raw, *ino);
                write_text(&mut raw, path);
            }
            self.packed(b'P', &raw)?;
        }
        Ok(())
    }

    pub fn block(&mut self, block: &Block) -> io::Result<()> {
        let Block { from, until, calls, dropped, bytes } = block;
        let (from, until) = (nanos(*from), nanos(*until));
        self.piece(Header { kind: b'T', calls: *calls, dropped: *dropped, from, until, ..Header::default() }, bytes)
    }

    /// The table of files, after the [`Meta`] that it belongs to.
    pub fn files(&mut self, files: impl IntoIterator<Item = (u64, String, FileRecord)>) -> io::Result<()> {
        let (mut raw, mut count) = (Vec::new(), 0);
        for (ino, path, record) in files {
            write_number(&mut raw, ino);
            write_text(&mut raw, &path);
            record.pack(&mut raw);
            count += 1;
            if count == FILES {
                self.packed(b'F', &raw)?;
                (raw, count) = (Vec::new(), 0);
            }
        }
        if count > 0 { self.packed(b'F', &raw) } else { Ok(()) }
    }

    /// The counters of files without their own record, by class. This ends the table of files, even if there are none.
    pub fn rest(&mut self, classes: &[(String, FileRecord)]) -> io::Result<()> {
        let mut raw = Vec::new();
        for (class, record) in classes {
            write_text(&mut raw, class);
            record.pack(&mut raw);
        }
        self.packed(b'R', &raw)
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    write_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn read_text(bytes: &mut &[u8]) -> Option<String> {
    let len = usize::try_from(read_number(bytes)?).ok()?;
    Some(String::from_utf8_lossy(bytes.split_off(..len)?).into_owned())
}

/// Where a recording's bytes are.
pub trait Source: Read + Seek {}
impl<T: Read + Seek> Source for T {}

/// A file in a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFile {
    pub ino: u64,
    /// Escaped, from the mount's root.
    pub path: String,
    /// Packed, a tenth of the size: there may be a million of them.
    packed: Box<[u8]>,
}

impl RecordedFile {
    pub fn new(ino: u64, path: String, record: &FileRecord) -> RecordedFile {
        let mut packed = Vec::new();
        record.pack(&mut packed);
        RecordedFile { ino, path, packed: packed.into() }
    }

    /// Its counters.
    pub fn record(&self) -> FileRecord {
        FileRecord::unpack(&mut &*self.packed).expect("it was packed here, or unpacked once when it was read")
    }
}

/// A recording that was read: all but the traced calls, which stay in the source until somebody iterates over them.
#[derive(derive_more::Debug)]
#[debug("Recording({}, {})", files.len(), blocks.len())]
pub struct Recording {
    pub meta: Meta,
    pub files: Vec<RecordedFile>,
    /// Classes of files without their own record, as `*.jpg`; their numbers are 0.
    pub rest: Vec<RecordedFile>,
    /// The last path of each inode number.
    pub paths: HashMap<u64, String>,
    /// What is wrong with it, for people.
    pub flaws: Vec<String>,
    /// The tables of files are complete: it was not cut off before its end.
    pub is_whole: bool,
    sources: Vec<Box<dyn Source>>,
    blocks: Vec<Stored>,
    /// How many bytes its further pieces may take.
    room: u64,
}

/// A block in a source.
#[derive(Clone, Copy, Debug)]
struct Stored {
    source: usize,
    at: u64,
    header: Header,
}

impl Recording {
    /// Reads recordings of one mount, oldest first, as one. Errors: there is none.
    pub fn read(sources: Vec<Box<dyn Source>>) -> Result<Recording, String> {
        let mut recording = Recording {
            meta: Meta::default(),
            files: Vec::new(),
            rest: Vec::new(),
            paths: HashMap::new(),
            flaws: Vec::new(),
            is_whole: false,
            sources,
            blocks: Vec::new(),
            room: SMALL,
        };
        let (mut met, mut error) = (false, "nothing is there".to_owned());
        for source in 0..recording.sources.len() {
            match recording.read_source(source) {
                Ok(()) => met = true,
                Err(why) => error = why,
            }
        }
        if met { Ok(recording) } else { Err(error) }
    }

    /// How many calls are traced in it, and how many were dropped.
    pub fn traced(&self) -> (u64, u64) {
        let sum = |(calls, dropped): (u64, u64), block: &Stored| {
            (calls + u64::from(block.header.calls), dropped.saturating_add(block.header.dropped))
        };
        self.blocks.iter().fold((0, 0), sum)
    }

    /// Where calls were dropped: when the block that reports it began, and how many they were.
    pub fn gaps(&self) -> impl Iterator<Item = (Duration, u64)> {
        let gap = |header: &Header| (Duration::from_nanos(header.from), header.dropped);
        self.blocks.iter().map(move |block| gap(&block.header)).filter(|(_, dropped)| *dropped > 0)
    }

    /// Passes the traced calls that began in a time to `each`, block by block: in order within a block, and nearly so
    /// overall. Unreadable blocks are reported as a flaw.
    pub fn calls(&mut self, from: Duration, until: Duration, mut each: impl FnMut(&Traced)) {
        let mut lost = 0;
        for Stored { source, at, header } in self.blocks.clone() {
            if header.until < nanos(from) || header.from > nanos(until) {
                continue;
            }
            match self.stored(source, at, &header).and_then(|bytes| block::unpack(&bytes)) {
                Some(calls) => {
                    calls.iter().filter(|traced| (from..=until).contains(&traced.call.began)).for_each(&mut each);
                }
                None => lost += u64::from(header.calls),
            }
        }
        if lost > 0 {
            self.flaw(format!("{lost} traced calls cannot be read: their blocks are damaged"));
        }
    }

    fn flaw(&mut self, flaw: String) {
        if !self.flaws.contains(&flaw) {
            self.flaws.push(flaw);
        }
    }

    fn read_source(&mut self, source: usize) -> Result<(), String> {
        let mut head = [0; HEAD];
        let file = &mut self.sources[source];
        let begin = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut head));
        if begin.is_err() || head[..8] != MAGIC {
            return Err("it is no recording of dlio-fs".to_owned());
        }
        let version = u32::from_le_bytes(std::array::from_fn(|n| head[8 + n]));
        if version != VERSION {
            return Err(format!(
                "its format is version {version}, and this dlio-fs reads version {VERSION}: use the dlio-fs that wrote it"
            ));
        }
        let len = self.sources[source].seek(SeekFrom::End(0)).map_err(|e| e.to_string())?;
        self.room = self.room.saturating_add(len.saturating_mul(RATIO_MAX));
        let mut at = HEAD as u64;
        while at < len {
            let Some(header) = self.header(source, at) else {
                let what = if len - at < HEADER as u64 { "cut off" } else { "damaged" };
                self.flaw(format!("it is {what} at byte {at}; what follows is not read"));
                return Ok(());
            };
            at += HEADER as u64;
            if len - at < u64::from(header.stored) {
                self.flaw(format!("it is cut off in the piece at byte {at}"));
                return Ok(());
            }
            match header.kind {
                b'T' => self.blocks.push(Stored { source, at, header }),
                _ if self.piece(source, at, &header).is_none() => {
                    self.flaw(format!("the piece at byte {at} is damaged and left out"));
                }
                _ => {}
            }
            at += u64::from(header.stored);
        }
        Ok(())
    }

    fn header(&mut self, source: usize, at: u64) -> Option<Header> {
        let (file, mut bytes) = (&mut self.sources[source], [0; HEADER]);
        file.seek(SeekFrom::Start(at)).ok()?;
        file.read_exact(&mut bytes).ok()?;
        Header::read(&bytes)
    }

    /// A piece's bytes as stored, if they match the checksum.
    fn stored(&mut self, source: usize, at: u64, header: &Header) -> Option<Vec<u8>> {
        let file = &mut self.sources[source];
        file.seek(SeekFrom::Start(at)).ok()?;
        let mut bytes = Vec::new();
        file.take(header.stored.into()).read_to_end(&mut bytes).ok()?;
        (bytes.len() == header.stored as usize && crc32fast::hash(&bytes) == header.sum).then_some(bytes)
    }

    /// Processes a piece that is not a block.
    fn piece(&mut self, source: usize, at: u64, header: &Header) -> Option<()> {
        let stored = self.stored(source, at, header)?;
        let room = PIECE_MAX.min(usize::try_from(self.room).unwrap_or(PIECE_MAX));
        let raw = zstd::bulk::decompress(&stored, room).ok()?;
        self.room -= raw.len() as u64;
        let mut raw = &*raw;
        match header.kind {
            b'M' => {
                self.meta = serde_json::from_slice(raw).ok()?;
                self.files.clear();
                self.rest.clear();
                self.is_whole = false;
            }
            b'P' => {
                for _ in 0..FILES {
                    if raw.is_empty() {
                        break;
                    }
                    self.paths.insert(read_number(&mut raw)?, read_text(&mut raw)?);
                }
                raw.is_empty().then_some(())?;
            }
            b'F' => {
                self.is_whole = true;
                for _ in 0..FILES {
                    if raw.is_empty() {
                        break;
                    }
                    let (ino, path) = (read_number(&mut raw)?, read_text(&mut raw)?);
                    let before = raw;
                    FileRecord::unpack(&mut raw)?;
                    let packed = before[..before.len() - raw.len()].into();
                    self.files.push(RecordedFile { ino, path, packed });
                }
                raw.is_empty().then_some(())?;
            }
            b'R' => {
                self.is_whole = true;
                self.rest.clear();
                while !raw.is_empty() && self.rest.len() < FILES {
                    let class = read_text(&mut raw)?;
                    self.rest.push(RecordedFile::new(0, class, &FileRecord::unpack(&mut raw)?));
                }
                raw.is_empty().then_some(())?;
            }
            // From a later program with the same version: an unknown piece is not a flaw.
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::counters::Call;
    use crate::stats::record::Field;
    use std::io::Cursor;

    fn traced(n: u64) -> Traced {
        let (began, took) = (Duration::from_millis(n), Duration::from_micros(7));
        let call = Call { op: Op::Read, began, took, offset: n, bytes: 3, errno: None, tier: Tier::Slow };
        Traced { call, ino: 9, handle: 2, process: 1, thread: 3 }
    }

    fn block(from: u64, calls: u64) -> Block {
        let some: Vec<_> = (from..from + calls).map(traced).collect();
        Block {
            from: some[0].call.began,
            until: some[some.len() - 1].ended(),
            calls: calls as u32,
            dropped: from,
            bytes: block::pack(&some).into(),
        }
    }

    fn record(mode: u32) -> FileRecord {
        let mut record = FileRecord::default();
        record.opened_by(1, Some(mode));
        record
    }

    fn meta(until: f64) -> Meta {
        let mut figures = OpFigures::default();
        (figures.calls, figures.latency[5]) = (3, 3);
        let operations = vec![RecordedOperation::from((Op::Read, Tier::Slow, figures))];
        Meta { version: "1".into(), until, operations, ..Meta::default() }
    }

    fn written() -> Vec<u8> {
        let mut out = Writer::new(Vec::new()).expect("into memory");
        out.meta(&meta(1.0)).expect("into memory");
        out.paths(&[(9, "/a".into()), (10, "/b".into())]).expect("into memory");
        out.block(&block(0, 100)).expect("into memory");
        out.paths(&[(9, "/renamed".into())]).expect("into memory");
        out.block(&block(100, 50)).expect("into memory");
        out.meta(&meta(2.0)).expect("into memory");
        let files = (0..10_000).map(|n| (n, format!("/f{n}"), record(n as u32 & 0o777)));
        out.files(files).expect("into memory");
        out.rest(&[("*.jpg".to_owned(), record(0o600))]).expect("into memory");
        assert_eq!(out.written(), out.out.len() as u64);
        out.into_inner()
    }

    fn read(bytes: Vec<u8>) -> Result<Recording, String> {
        Recording::read(vec![Box::new(Cursor::new(bytes))])
    }

    fn calls(recording: &mut Recording, from: u64, until: u64) -> Vec<u64> {
        let mut found = Vec::new();
        recording.calls(Duration::from_millis(from), Duration::from_millis(until), |one| found.push(one.call.offset));
        found
    }

    #[test]
    fn what_is_written_is_read() {
        let mut found = read(written()).expect("a recording");
        assert!(found.flaws.is_empty() && found.is_whole, "{:?}", found.flaws);
        assert_eq!(found.meta, meta(2.0));
        assert_eq!(found.meta.operations[0].figures().latency[5], 3);
        assert_eq!((found.files.len(), found.paths[&9].as_str()), (10_000, "/renamed"));
        let last = &found.files[9_999];
        assert_eq!((last.ino, last.path.as_str(), last.record()), (9_999, "/f9999", record(9_999 & 0o777)));
        assert_eq!((found.rest[0].path.as_str(), found.rest[0].record().get(Field::Mode)), ("*.jpg", 0o601));
        assert_eq!(found.traced(), (150, 100));
        assert_eq!(calls(&mut found, 0, 1_000), (0..150).collect::<Vec<_>>());
        assert_eq!(calls(&mut found, 90, 110), (90..=110).collect::<Vec<_>>());
        let text = String::from_utf8(serde_json::to_vec(&meta(1.0)).expect("valid")).expect("UTF-8");
        assert!(text.contains(r#""op":"read","tier":"slow""#), "{text}");
    }

    #[test]
    fn several_files_are_one_recording() {
        let mut first = Writer::new(Vec::new()).expect("into memory");
        first.meta(&meta(0.5)).expect("into memory");
        first.block(&block(0, 10)).expect("into memory");
        let second = written();
        let sources: Vec<Box<dyn Source>> =
            vec![Box::new(Cursor::new(first.into_inner())), Box::new(Cursor::new(second))];
        let mut found = Recording::read(sources).expect("recordings");
        assert_eq!((found.traced().0, found.meta.until), (160, 2.0));
        assert_eq!(calls(&mut found, 0, 5).len(), 12);
    }

    /// 389 KB once took 845 MB to report: each piece was within its bounds, but their sum had none.
    #[test]
    fn a_few_bytes_that_are_many_take_no_more_memory_than_a_small_recording() {
        let mut out = Writer::new(Vec::new()).expect("into memory");
        out.meta(&meta(1.0)).expect("into memory");
        let path = "a".repeat(1 << 10);
        for piece in 0..8 {
            let paths: Vec<_> = (0..1 << 12).map(|n| (piece << 12 | n, path.clone())).collect();
            out.paths(&paths).expect("into memory");
        }
        let bytes = out.into_inner();
        let bound = SMALL + RATIO_MAX * bytes.len() as u64;
        let found = read(bytes).expect("a recording");
        let kept: u64 = found.paths.values().map(|path| path.len() as u64).sum();
        assert!(0 < kept && kept <= bound && !found.flaws.is_empty(), "{kept} bytes of {bound}: {:?}", found.flaws);
    }

    /// Whole pieces are read, the rest is reported, and nothing panics.
    #[test]
    fn a_recording_cut_anywhere_tells_what_it_has() {
        let whole = written();
        for len in (0..whole.len()).step_by(28).chain(0..500) {
            match read(whole[..len].to_vec()) {
                Err(why) => assert!(len < HEAD && why.contains("no recording"), "{len}: {why}"),
                Ok(mut cut) => {
                    let found = calls(&mut cut, 0, 1_000).len() as u64;
                    assert_eq!(found, cut.traced().0, "{len}");
                    let files = cut.files.len();
                    assert!(files.is_multiple_of(FILES) || files == 10_000, "{len}: {files}");
                }
            }
        }
    }

    #[test]
    fn damage_is_told_and_costs_what_it_hit() {
        let whole = written();
        let (places, mut told) = ((HEAD..whole.len()).step_by(25), 0);
        for at in places.clone() {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            let mut found = read(bad).expect("the head is whole");
            drop(calls(&mut found, 0, 1_000));
            told += u32::from(!found.flaws.is_empty());
        }
        let bytes = places.count() as u32;
        // A header ends with four zero bytes.
        assert!(told + 20 >= bytes, "{told} of {bytes}");
    }

    #[test]
    fn what_is_none_is_refused_with_the_reason() {
        let refused = |bytes: &[u8]| read(bytes.to_vec()).expect_err("none");
        assert!(refused(b"").contains("no recording") && refused(&[0; 100]).contains("no recording"));
        let mut newer = written();
        newer[8] = 200;
        assert!(refused(&newer).contains("version 200"));
        assert!(Recording::read(Vec::new()).expect_err("none").contains("nothing"));
    }

    /// 64 MiB of zeros are 2 KiB of zstd, and would be nine million files.
    #[test]
    fn a_few_bytes_do_not_become_gigabytes() {
        for kind in [b'F', b'P'] {
            let mut out = Writer::new(Vec::new()).expect("into memory");
            out.packed(kind, &vec![0; PIECE_MAX]).expect("into memory");
            let bytes = out.into_inner();
            assert!(bytes.len() < 10_000, "{} bytes", bytes.len());
            let found = read(bytes).expect("the head is whole");
            assert!(found.files.len() <= FILES && found.paths.len() <= FILES);
            assert!(found.flaws.iter().any(|flaw| flaw.contains("damaged")), "{:?}", found.flaws);
        }
    }

    /// The numbers of operations and of a record's fields are stored in files: changing either requires another
    /// [`VERSION`].
    #[test]
    fn the_version_stands_for_these_numbers() {
        let mut packed = Vec::new();
        let mut all = FileRecord::default();
        let mut cursor = crate::stats::access::Cursor::default();
        for (n, op) in Op::ALL.into_iter().enumerate() {
            let call = Call { op, bytes: n as u64 * 1000, ..traced(1_000 * n as u64).call };
            all.count(&call, Some(&mut cursor));
        }
        all.opened_by(5, Some(0o640));
        all.pack(&mut packed);
        let names: String = Op::ALL.map(Op::name).join(" ");
        assert_eq!(
            (crc32fast::hash(names.as_bytes()), crc32fast::hash(&packed), VERSION),
            (3_118_174_121, 3_617_352_693, 1)
        );
    }
}
