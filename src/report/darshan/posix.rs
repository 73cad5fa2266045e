//! The record of Darshan's POSIX module for a file, from our counters. Pure.
//!
//! Each number stands beside its name, in the order of a log. Counters that a file system cannot know are [`UNKNOWN`] in every record: Darshan's tools sum a counter over records,
//! and a mixture would be a meaningless number.

use std::time::Duration;

use super::numbers::{seconds, signed};
use crate::stats::access::SIZE_NAMES;
use crate::stats::counters::Op;
use crate::stats::record::{Field, FileRecord, failed};

/// Darshan's value for counters that could not be observed.
const UNKNOWN: i64 = -1;
/// The alignment by which [`Field::Unaligned`] is counted.
const ALIGNMENT: i64 = 4096;
const COUNTERS: usize = 69;
const TIMES: usize = 17;
/// The one counter that is the id of a record.
const RENAMED_FROM: &str = "RENAMED_FROM";
/// Bytes of a record in the log.
pub(super) const SIZE: usize = 16 + 8 * (COUNTERS + TIMES);

/// A file's record.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Posix {
    id: u64,
    rank: i64,
    /// With their names; in the tools each begins with `POSIX_`.
    counters: Vec<(String, i64)>,
    times: [(&'static str, f64); TIMES],
}

impl Posix {
    /// `from`: the beginning of the job, since the mount.
    pub(super) fn new(id: u64, rank: i64, record: &FileRecord, from: Duration) -> Self {
        Posix { id, rank, counters: counters(record), times: times(record, from) }
    }

    /// The form in a log.
    pub(super) fn bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let numbers = [self.id, self.rank as u64].into_iter().chain(self.counters.iter().map(|(_, n)| *n as u64));
        let all = numbers.chain(self.times.iter().map(|(_, time)| time.to_bits()));
        bytes.chunks_exact_mut(8).zip(all).for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        bytes
    }
}

/// Whether Darshan would have a record of the file: it keeps none for directories, and none for files whose name was
/// only looked up.
pub(super) fn is_met(record: &FileRecord) -> bool {
    const SEEN: [Op; 7] = [Op::Open, Op::Create, Op::Read, Op::Write, Op::Getattr, Op::Fsync, Op::Fdatasync];
    SEEN.iter().any(|op| record.get(Field::Calls(*op)) > 0) && !is_directory(record)
}

/// Operations on names in a directory are counted for the directory, even if they fail.
fn is_directory(record: &FileRecord) -> bool {
    const OPS: [Op; 12] = [
        Op::Lookup,
        Op::Mknod,
        Op::Mkdir,
        Op::Unlink,
        Op::Rmdir,
        Op::Symlink,
        Op::Rename,
        Op::Opendir,
        Op::Readdir,
        Op::Readdirplus,
        Op::Releasedir,
        Op::Fsyncdir,
    ];
    let has_failed = |(value, _)| failed(value).is_some_and(|(op, _)| OPS.contains(&op));
    OPS.iter().any(|op| record.get(Field::Calls(*op)) > 0) || record.failures.iter().any(has_failed)
}

fn counters(record: &FileRecord) -> Vec<(String, i64)> {
    let get = |field| signed(record.get(field));
    let calls = |op| get(Field::Calls(op));
    let last_byte = |end| signed(record.get(end).saturating_sub(1));
    let first = [
        ("OPENS", signed(record.opens())),
        ("FILENOS", UNKNOWN),
        ("DUPS", UNKNOWN),
        ("READS", calls(Op::Read)),
        ("WRITES", calls(Op::Write)),
        ("SEEKS", UNKNOWN),
        ("STATS", calls(Op::Getattr)),
        ("MMAPS", UNKNOWN),
        ("FSYNCS", calls(Op::Fsync)),
        ("FDSYNCS", calls(Op::Fdatasync)),
        ("RENAME_SOURCES", UNKNOWN),
        ("RENAME_TARGETS", UNKNOWN),
        // An unknown one has no value other than that for none.
        (RENAMED_FROM, 0),
        // The mode of the last open that created the file.
        ("MODE", last_byte(Field::Mode)),
        ("BYTES_READ", get(Field::BytesRead)),
        ("BYTES_WRITTEN", get(Field::BytesWritten)),
        ("MAX_BYTE_READ", last_byte(Field::EndRead)),
        ("MAX_BYTE_WRITTEN", last_byte(Field::EndWritten)),
        ("CONSEC_READS", get(Field::ConsecutiveReads)),
        ("CONSEC_WRITES", get(Field::ConsecutiveWrites)),
        ("SEQ_READS", get(Field::SequentialReads)),
        ("SEQ_WRITES", get(Field::SequentialWrites)),
        ("RW_SWITCHES", get(Field::Switches)),
        ("MEM_NOT_ALIGNED", UNKNOWN),
        ("MEM_ALIGNMENT", UNKNOWN),
        ("FILE_NOT_ALIGNED", get(Field::Unaligned)),
        ("FILE_ALIGNMENT", ALIGNMENT),
        ("MAX_READ_TIME_SIZE", get(Field::SlowestReadSize)),
        ("MAX_WRITE_TIME_SIZE", get(Field::SlowestWriteSize)),
    ];
    let mut all: Vec<_> = first.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for (way, sizes) in [("READ", Field::ReadSizes as fn(usize) -> Field), ("WRITE", Field::WriteSizes)] {
        let class = |(class, name)| (format!("SIZE_{way}_{name}"), get(sizes(class)));
        all.extend(SIZE_NAMES.into_iter().enumerate().map(class));
    }
    for (kind, common) in [("STRIDE", &record.strides), ("ACCESS", &record.sizes)] {
        let top = common.top(4);
        let of = |n: usize| top.get(n).copied().unwrap_or_default();
        all.extend((0..4).map(|n| (format!("{kind}{}_{kind}", n + 1), signed(of(n).0))));
        all.extend((0..4).map(|n| (format!("{kind}{}_COUNT", n + 1), signed(of(n).1))));
    }
    let ranks = ["FASTEST_RANK", "FASTEST_RANK_BYTES", "SLOWEST_RANK", "SLOWEST_RANK_BYTES"];
    all.extend(ranks.map(|name| (name.to_owned(), UNKNOWN)));
    all
}

fn times(record: &FileRecord, from: Duration) -> [(&'static str, f64); TIMES] {
    // 0 means never: calls in progress when the job began are set to a microsecond later.
    let moment = |field| {
        let since = |moment: Duration| moment.saturating_sub(from).max(Duration::from_micros(1));
        record.moment(field).map_or(0.0, |moment| seconds(since(moment)))
    };
    let time = |field| seconds(record.time(field));
    let (read, written, meta) = (time(Field::ReadTime), time(Field::WriteTime), time(Field::MetaTime));
    let unknown = UNKNOWN as f64;
    [
        ("F_OPEN_START_TIMESTAMP", moment(Field::OpenFirst)),
        ("F_READ_START_TIMESTAMP", moment(Field::ReadFirst)),
        ("F_WRITE_START_TIMESTAMP", moment(Field::WriteFirst)),
        ("F_CLOSE_START_TIMESTAMP", moment(Field::CloseFirst)),
        ("F_OPEN_END_TIMESTAMP", moment(Field::OpenLast)),
        ("F_READ_END_TIMESTAMP", moment(Field::ReadLast)),
        ("F_WRITE_END_TIMESTAMP", moment(Field::WriteLast)),
        ("F_CLOSE_END_TIMESTAMP", moment(Field::CloseLast)),
        ("F_READ_TIME", read),
        ("F_WRITE_TIME", written),
        ("F_META_TIME", meta),
        ("F_MAX_READ_TIME", time(Field::SlowestRead)),
        ("F_MAX_WRITE_TIME", time(Field::SlowestWrite)),
        ("F_FASTEST_RANK_TIME", unknown),
        // The sum over a file's processes, which the slowest cannot exceed: the tools divide bytes by it, and get a
        // bandwidth that is too low rather than too high.
        ("F_SLOWEST_RANK_TIME", read + written + meta),
        ("F_VARIANCE_RANK_TIME", unknown),
        ("F_VARIANCE_RANK_BYTES", unknown),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::stats::access::Cursor;
    use crate::stats::counters::{Call, Tier};

    fn call(op: Op, at: u64, offset: u64, bytes: u64) -> Call {
        let (began, took) = (Duration::from_secs(at), Duration::from_millis(5 + at));
        Call { op, began, took, offset, bytes, errno: None, tier: Tier::Fast }
    }

    fn counted(calls: &[Call]) -> FileRecord {
        let (mut record, mut cursor) = (FileRecord::default(), Cursor::default());
        calls.iter().for_each(|call| record.count(call, Some(&mut cursor)));
        record
    }

    fn value(posix: &Posix, wanted: &str) -> i64 {
        posix.counters.iter().find(|(name, _)| name == wanted).expect(wanted).1
    }

    fn time(posix: &Posix, wanted: &str) -> f64 {
        posix.times.iter().find(|(name, _)| *name == wanted).expect(wanted).1
    }

    /// The tools know a counter by its place alone.
    #[test]
    fn every_counter_has_its_place() {
        let posix = Posix::new(1, 0, &FileRecord::default(), Duration::ZERO);
        let names: Vec<&str> = posix.counters.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), COUNTERS);
        for (class, name) in SIZE_NAMES.into_iter().enumerate() {
            assert_eq!(
                (names[29 + class], names[39 + class]),
                (&*format!("SIZE_READ_{name}"), &*format!("SIZE_WRITE_{name}"))
            );
        }
        assert_eq!((names[12], names[49], names[53]), (RENAMED_FROM, "STRIDE1_STRIDE", "STRIDE1_COUNT"));
        assert_eq!((names[57], names[61], names[68]), ("ACCESS1_ACCESS", "ACCESS1_COUNT", "SLOWEST_RANK_BYTES"));
    }

    #[test]
    fn every_counter_has_its_number() {
        let mut record = counted(&[
            call(Op::Create, 1, 0, 0),
            call(Op::Write, 2, 0, 8192),
            call(Op::Write, 3, 8192, 8192),
            call(Op::Write, 4, 20_000, 50),
            call(Op::Read, 5, 100, 2000),
            call(Op::Getattr, 6, 0, 0),
            call(Op::Fdatasync, 7, 0, 0),
            call(Op::Flush, 8, 0, 0),
        ]);
        record.opened_by(3, Some(0o640));
        let posix = Posix::new(7, 2, &record, Duration::from_millis(500));
        let told =
            posix.counters.iter().map(|(name, n)| (name.as_str(), *n)).filter(|(_, n)| ![0, UNKNOWN].contains(n));
        let wanted = [
            ("OPENS", 1),
            ("READS", 1),
            ("WRITES", 3),
            ("STATS", 1),
            ("FDSYNCS", 1),
            ("MODE", 0o640),
            ("BYTES_READ", 2000),
            ("BYTES_WRITTEN", 16_434),
            ("MAX_BYTE_READ", 2099),
            ("MAX_BYTE_WRITTEN", 20_049),
            ("CONSEC_WRITES", 1),
            ("SEQ_READS", 1),
            ("SEQ_WRITES", 2),
            ("RW_SWITCHES", 1),
            ("FILE_NOT_ALIGNED", 2),
            ("FILE_ALIGNMENT", 4096),
            ("MAX_READ_TIME_SIZE", 2000),
            ("MAX_WRITE_TIME_SIZE", 50),
            ("SIZE_READ_1K_10K", 1),
            ("SIZE_WRITE_0_100", 1),
            ("SIZE_WRITE_1K_10K", 2),
            ("STRIDE1_STRIDE", 3616),
            ("STRIDE1_COUNT", 1),
            ("ACCESS1_ACCESS", 8192),
            ("ACCESS2_ACCESS", 2000),
            ("ACCESS3_ACCESS", 50),
            ("ACCESS1_COUNT", 2),
            ("ACCESS2_COUNT", 1),
            ("ACCESS3_COUNT", 1),
        ];
        assert_eq!(told.collect::<Vec<_>>(), wanted);
        let unknown = ["FILENOS", "DUPS", "SEEKS", "MMAPS", "RENAME_SOURCES", "RENAME_TARGETS", "MEM_NOT_ALIGNED"];
        assert!(unknown.iter().all(|name| value(&posix, name) == UNKNOWN));
        let at = |name| time(&posix, name);
        assert_eq!((at("F_OPEN_START_TIMESTAMP"), at("F_WRITE_END_TIMESTAMP")), (0.5, 3.509));
        assert_eq!((at("F_READ_START_TIMESTAMP"), at("F_CLOSE_END_TIMESTAMP")), (4.5, 7.513));
        assert_eq!((at("F_READ_TIME"), at("F_MAX_WRITE_TIME")), (0.01, 0.009));
        assert_eq!(at("F_SLOWEST_RANK_TIME"), at("F_READ_TIME") + at("F_WRITE_TIME") + at("F_META_TIME"));
    }

    #[test]
    fn never_is_zero_and_the_first_moment_is_not() {
        let record = counted(&[call(Op::Open, 1, 0, 0)]);
        let posix = Posix::new(1, 0, &record, Duration::from_secs(9));
        assert_eq!(time(&posix, "F_READ_START_TIMESTAMP"), 0.0);
        assert!(time(&posix, "F_OPEN_START_TIMESTAMP") > 0.0);
    }

    #[test]
    fn a_record_lies_in_the_log_as_darshan_has_it() {
        assert_eq!(SIZE, 704);
        let posix = Posix::new(7, -1, &counted(&[call(Op::Open, 1, 0, 0)]), Duration::ZERO);
        let bytes = posix.bytes();
        let eight = |at: usize| i64::from_le_bytes(std::array::from_fn(|n| bytes[8 * at + n]));
        assert_eq!((eight(0), eight(1), eight(2), eight(3)), (7, -1, 1, UNKNOWN));
        assert_eq!(f64::from_bits(eight(2 + COUNTERS) as u64), 1.0);
    }

    #[test]
    fn directories_and_mere_names_are_none_of_darshans() {
        assert!(is_met(&counted(&[call(Op::Getattr, 1, 0, 0)])));
        assert!(!is_met(&counted(&[call(Op::Lookup, 1, 0, 0), call(Op::Unlink, 1, 0, 0)])));
        assert!(!is_met(&counted(&[call(Op::Getattr, 1, 0, 0), call(Op::Opendir, 2, 0, 0)])));
        let refused = Call { errno: Some(Errno::ENOENT), ..call(Op::Lookup, 2, 0, 0) };
        assert!(!is_met(&counted(&[call(Op::Getattr, 1, 0, 0), refused])));
        let unreadable = Call { errno: Some(Errno::EIO), ..call(Op::Read, 2, 0, 0) };
        assert!(is_met(&counted(&[call(Op::Open, 1, 0, 0), unreadable])));
    }

    #[test]
    fn no_number_overflows() {
        let most = counted(&[call(Op::Read, 1, u64::MAX, u64::MAX)]);
        assert_eq!(value(&Posix::new(1, 0, &most, Duration::MAX), "BYTES_READ"), i64::MAX);
    }
}
