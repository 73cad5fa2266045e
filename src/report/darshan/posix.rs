//! The record of Darshan's POSIX module for a file, from our counters. Pure.
//!
//! Counters that a file system cannot know are [`UNKNOWN`] in every record: Darshan's tools sum a counter over records,
//! and a mixture would be a meaningless number.

use std::time::Duration;

use super::numbers::{seconds, signed};
use crate::stats::access::SIZES;
use crate::stats::counters::Op;
use crate::stats::record::{Common, Field, FileRecord, failed};

/// Darshan's value for counters that could not be observed.
pub(super) const UNKNOWN: i64 = -1;
/// The alignment by which [`Field::Unaligned`] is counted.
const ALIGNMENT: i64 = 4096;
const COUNTERS: usize = 69;
const TIMES: usize = 17;
/// Bytes of a record in the log.
pub(super) const SIZE: usize = 16 + 8 * (COUNTERS + TIMES);

/// Names of the counters, in their order in a log. In the tools each begins with `POSIX_`.
pub(super) const NAMES: [&str; COUNTERS] = [
    "OPENS",
    "FILENOS",
    "DUPS",
    "READS",
    "WRITES",
    "SEEKS",
    "STATS",
    "MMAPS",
    "FSYNCS",
    "FDSYNCS",
    "RENAME_SOURCES",
    "RENAME_TARGETS",
    "RENAMED_FROM",
    "MODE",
    "BYTES_READ",
    "BYTES_WRITTEN",
    "MAX_BYTE_READ",
    "MAX_BYTE_WRITTEN",
    "CONSEC_READS",
    "CONSEC_WRITES",
    "SEQ_READS",
    "SEQ_WRITES",
    "RW_SWITCHES",
    "MEM_NOT_ALIGNED",
    "MEM_ALIGNMENT",
    "FILE_NOT_ALIGNED",
    "FILE_ALIGNMENT",
    "MAX_READ_TIME_SIZE",
    "MAX_WRITE_TIME_SIZE",
    "SIZE_READ_0_100",
    "SIZE_READ_100_1K",
    "SIZE_READ_1K_10K",
    "SIZE_READ_10K_100K",
    "SIZE_READ_100K_1M",
    "SIZE_READ_1M_4M",
    "SIZE_READ_4M_10M",
    "SIZE_READ_10M_100M",
    "SIZE_READ_100M_1G",
    "SIZE_READ_1G_PLUS",
    "SIZE_WRITE_0_100",
    "SIZE_WRITE_100_1K",
    "SIZE_WRITE_1K_10K",
    "SIZE_WRITE_10K_100K",
    "SIZE_WRITE_100K_1M",
    "SIZE_WRITE_1M_4M",
    "SIZE_WRITE_4M_10M",
    "SIZE_WRITE_10M_100M",
    "SIZE_WRITE_100M_1G",
    "SIZE_WRITE_1G_PLUS",
    "STRIDE1_STRIDE",
    "STRIDE2_STRIDE",
    "STRIDE3_STRIDE",
    "STRIDE4_STRIDE",
    "STRIDE1_COUNT",
    "STRIDE2_COUNT",
    "STRIDE3_COUNT",
    "STRIDE4_COUNT",
    "ACCESS1_ACCESS",
    "ACCESS2_ACCESS",
    "ACCESS3_ACCESS",
    "ACCESS4_ACCESS",
    "ACCESS1_COUNT",
    "ACCESS2_COUNT",
    "ACCESS3_COUNT",
    "ACCESS4_COUNT",
    "FASTEST_RANK",
    "FASTEST_RANK_BYTES",
    "SLOWEST_RANK",
    "SLOWEST_RANK_BYTES",
];

/// The names of the times.
pub(super) const TIME_NAMES: [&str; TIMES] = [
    "F_OPEN_START_TIMESTAMP",
    "F_READ_START_TIMESTAMP",
    "F_WRITE_START_TIMESTAMP",
    "F_CLOSE_START_TIMESTAMP",
    "F_OPEN_END_TIMESTAMP",
    "F_READ_END_TIMESTAMP",
    "F_WRITE_END_TIMESTAMP",
    "F_CLOSE_END_TIMESTAMP",
    "F_READ_TIME",
    "F_WRITE_TIME",
    "F_META_TIME",
    "F_MAX_READ_TIME",
    "F_MAX_WRITE_TIME",
    "F_FASTEST_RANK_TIME",
    "F_SLOWEST_RANK_TIME",
    "F_VARIANCE_RANK_TIME",
    "F_VARIANCE_RANK_BYTES",
];

/// A file's record.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Posix {
    pub(super) id: u64,
    pub(super) rank: i64,
    pub(super) counters: [i64; COUNTERS],
    pub(super) times: [f64; TIMES],
}

impl Posix {
    /// `from`: the beginning of the job, since the mount.
    pub(super) fn new(id: u64, rank: i64, record: &FileRecord, from: Duration) -> Self {
        Posix { id, rank, counters: counters(record), times: times(record, from) }
    }

    /// The form in a log.
    pub(super) fn bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let numbers = [self.id, self.rank as u64].into_iter().chain(self.counters.iter().map(|n| *n as u64));
        let all = numbers.chain(self.times.iter().map(|time| time.to_bits()));
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

fn counters(record: &FileRecord) -> [i64; COUNTERS] {
    let get = |field| signed(record.get(field));
    let calls = |op| get(Field::Calls(op));
    let last_byte = |end| signed(record.get(end).saturating_sub(1));
    let first = [
        calls(Op::Open).saturating_add(calls(Op::Create)),
        UNKNOWN,
        UNKNOWN,
        calls(Op::Read),
        calls(Op::Write),
        UNKNOWN,
        calls(Op::Getattr),
        UNKNOWN,
        calls(Op::Fsync),
        calls(Op::Fdatasync),
        UNKNOWN,
        UNKNOWN,
        // The id of a record: an unknown one has no value other than that for none.
        0,
        // The mode of the last open that created the file.
        last_byte(Field::Mode),
        get(Field::BytesRead),
        get(Field::BytesWritten),
        last_byte(Field::EndRead),
        last_byte(Field::EndWritten),
        get(Field::ConsecutiveReads),
        get(Field::ConsecutiveWrites),
        get(Field::SequentialReads),
        get(Field::SequentialWrites),
        get(Field::Switches),
        UNKNOWN,
        UNKNOWN,
        get(Field::Unaligned),
        ALIGNMENT,
        get(Field::SlowestReadSize),
        get(Field::SlowestWriteSize),
    ];
    let sizes = (0..SIZES).map(|class| get(Field::ReadSizes(class)));
    let sizes = sizes.chain((0..SIZES).map(|class| get(Field::WriteSizes(class))));
    let ranks = [UNKNOWN; 4];
    let mut all =
        first.into_iter().chain(sizes).chain(commonest(&record.strides)).chain(commonest(&record.sizes)).chain(ranks);
    std::array::from_fn(|_| all.next().unwrap_or(UNKNOWN))
}

/// Four values, then the count of each.
fn commonest(common: &Common) -> [i64; 8] {
    let mut all = [0; 8];
    for (at, (value, times)) in common.top(4).into_iter().enumerate() {
        (all[at], all[at + 4]) = (signed(value), signed(times));
    }
    all
}

fn times(record: &FileRecord, from: Duration) -> [f64; TIMES] {
    // 0 means never: calls in progress when the job began are set to a microsecond later.
    let moment = |field| {
        let since = |moment: Duration| moment.saturating_sub(from).max(Duration::from_micros(1));
        record.moment(field).map_or(0.0, |moment| seconds(since(moment)))
    };
    let time = |field| seconds(record.time(field));
    let (read, written, meta) = (time(Field::ReadTime), time(Field::WriteTime), time(Field::MetaTime));
    let unknown = UNKNOWN as f64;
    [
        moment(Field::OpenFirst),
        moment(Field::ReadFirst),
        moment(Field::WriteFirst),
        moment(Field::CloseFirst),
        moment(Field::OpenLast),
        moment(Field::ReadLast),
        moment(Field::WriteLast),
        moment(Field::CloseLast),
        read,
        written,
        meta,
        time(Field::SlowestRead),
        time(Field::SlowestWrite),
        unknown,
        // The sum over a file's processes, which the slowest cannot exceed: the tools divide bytes by it, and get a
        // bandwidth that is too low rather than too high.
        read + written + meta,
        unknown,
        unknown,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::stats::access::{Cursor, SIZE_NAMES};
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

    fn value(posix: &Posix, name: &str) -> i64 {
        posix.counters[NAMES.iter().position(|known| *known == name).expect(name)]
    }

    fn time(posix: &Posix, name: &str) -> f64 {
        posix.times[TIME_NAMES.iter().position(|known| *known == name).expect(name)]
    }

    #[test]
    fn names_are_those_of_the_classes() {
        for (class, name) in SIZE_NAMES.into_iter().enumerate() {
            assert_eq!(NAMES[29 + class], format!("SIZE_READ_{name}"));
            assert_eq!(NAMES[39 + class], format!("SIZE_WRITE_{name}"));
        }
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
        let told: Vec<(&str, i64)> =
            NAMES.into_iter().zip(posix.counters).filter(|(_, n)| *n != 0 && *n != UNKNOWN).collect();
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
        assert_eq!(told, wanted);
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
