//! The counters of one file, and how they are kept small. Pure.
//!
//! A [`FileRecord`] is a row of numbers, each with a rule for merging two rows of one file, and a few lists of common
//! values. At rest it is packed: most files of a data set are read once, and most of their numbers are 0.
//!
//! Times are by the mount's clock: durations in nanoseconds, moments in microseconds since the mount plus one, so that
//! 0 means never.

use std::cmp::Reverse;
use std::sync::LazyLock;
use std::time::Duration;

use crate::error::Errno;

use super::access::{AccessPattern, Cursor, SIZES, Way, size_class};
use super::counters::{Call, Op, Tier, nanos};

/// How two numbers of one file are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MergeRule {
    Sum,
    Max,
    /// The smaller one that is not 0.
    First,
    /// The later row's, if it has one.
    Last,
    /// Belongs to the previous number: comes from the row where that is larger.
    With,
}

/// A number of a [`FileRecord`]. Arrays have one number for each index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it; what needs more says more")]
pub enum Field {
    /// Calls that succeeded.
    Calls(Op),
    BytesRead,
    BytesWritten,
    /// The offset after the last byte read, or written.
    EndRead,
    EndWritten,
    /// By Darshan's rules, for each open handle.
    SequentialReads,
    SequentialWrites,
    ConsecutiveReads,
    ConsecutiveWrites,
    Switches,
    /// Reads and writes that did not begin at a multiple of 4096.
    Unaligned,
    /// Reads by size class, and the bytes of those.
    ReadSizes(usize),
    WriteSizes(usize),
    ReadSizeBytes(usize),
    WriteSizeBytes(usize),
    ReadPatterns(AccessPattern),
    WritePatterns(AccessPattern),
    OpenFirst,
    ReadFirst,
    ReadLast,
    WriteFirst,
    WriteLast,
    CloseFirst,
    CloseLast,
    OpenLast,
    /// Time in which at least one read was in progress, for each open handle; the time of writes and syncs; the time of
    /// all other calls.
    ReadTime,
    WriteTime,
    MetaTime,
    SlowestRead,
    SlowestReadSize,
    SlowestWrite,
    SlowestWriteSize,
    /// Served by the slow tier.
    SlowReads,
    SlowBytesRead,
    SlowWrites,
    SlowBytesWritten,
    /// The direction of the last call: 1 read, 2 written.
    LastWay,
    /// The permission bits of the last open that created it, plus one.
    Mode,
}

/// The alignment that is checked: a page, and a block of the usual file systems.
const BLOCK: u64 = 4096;

const OPS: usize = Op::ALL.len();
const PATTERNS: usize = AccessPattern::ALL.len();
const BYTES: usize = OPS;
const READ_SIZES: usize = BYTES + 10;
const READ_PATTERNS: usize = READ_SIZES + 4 * SIZES;
const MOMENTS: usize = READ_PATTERNS + 2 * PATTERNS;
const TIMES: usize = MOMENTS + 8;
const FIELDS: usize = TIMES + 13;

impl Field {
    fn index(self) -> usize {
        match self {
            Field::Calls(op) => op as usize,
            Field::BytesRead => BYTES,
            Field::BytesWritten => BYTES + 1,
            Field::EndRead => BYTES + 2,
            Field::EndWritten => BYTES + 3,
            Field::SequentialReads => BYTES + 4,
            Field::SequentialWrites => BYTES + 5,
            Field::ConsecutiveReads => BYTES + 6,
            Field::ConsecutiveWrites => BYTES + 7,
            Field::Switches => BYTES + 8,
            Field::Unaligned => BYTES + 9,
            Field::ReadSizes(class) => READ_SIZES + class,
            Field::WriteSizes(class) => READ_SIZES + SIZES + class,
            Field::ReadSizeBytes(class) => READ_SIZES + 2 * SIZES + class,
            Field::WriteSizeBytes(class) => READ_SIZES + 3 * SIZES + class,
            Field::ReadPatterns(pattern) => READ_PATTERNS + pattern as usize,
            Field::WritePatterns(pattern) => READ_PATTERNS + PATTERNS + pattern as usize,
            Field::OpenFirst => MOMENTS,
            Field::ReadFirst => MOMENTS + 1,
            Field::ReadLast => MOMENTS + 2,
            Field::WriteFirst => MOMENTS + 3,
            Field::WriteLast => MOMENTS + 4,
            Field::CloseFirst => MOMENTS + 5,
            Field::CloseLast => MOMENTS + 6,
            Field::OpenLast => MOMENTS + 7,
            Field::ReadTime => TIMES,
            Field::WriteTime => TIMES + 1,
            Field::MetaTime => TIMES + 2,
            Field::SlowestRead => TIMES + 3,
            Field::SlowestReadSize => TIMES + 4,
            Field::SlowestWrite => TIMES + 5,
            Field::SlowestWriteSize => TIMES + 6,
            Field::SlowReads => TIMES + 7,
            Field::SlowBytesRead => TIMES + 8,
            Field::SlowWrites => TIMES + 9,
            Field::SlowBytesWritten => TIMES + 10,
            Field::LastWay => TIMES + 11,
            Field::Mode => TIMES + 12,
        }
    }
}

/// The fields that are not summed.
const EXCEPTIONS: [(Field, MergeRule); 16] = [
    (Field::OpenFirst, MergeRule::First),
    (Field::ReadFirst, MergeRule::First),
    (Field::WriteFirst, MergeRule::First),
    (Field::CloseFirst, MergeRule::First),
    (Field::OpenLast, MergeRule::Max),
    (Field::ReadLast, MergeRule::Max),
    (Field::WriteLast, MergeRule::Max),
    (Field::CloseLast, MergeRule::Max),
    (Field::EndRead, MergeRule::Max),
    (Field::EndWritten, MergeRule::Max),
    (Field::SlowestRead, MergeRule::Max),
    (Field::SlowestReadSize, MergeRule::With),
    (Field::SlowestWrite, MergeRule::Max),
    (Field::SlowestWriteSize, MergeRule::With),
    (Field::LastWay, MergeRule::Last),
    (Field::Mode, MergeRule::Last),
];

/// The rule of each number.
static RULES: LazyLock<[MergeRule; FIELDS]> = LazyLock::new(|| {
    let mut rules = [MergeRule::Sum; FIELDS];
    for (field, rule) in EXCEPTIONS {
        rules[field.index()] = rule;
    }
    rules
});

/// How often each of a few values occurred. By Darshan's rule the first 32 different values are counted, the others are
/// not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommonValues(Vec<(u64, u64)>);

impl CommonValues {
    const MAX: usize = 32;

    /// Counts a value `times` times.
    pub fn add(&mut self, value: u64, times: u64) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.0 == value) {
            entry.1 = entry.1.saturating_add(times);
        } else if self.0.len() < Self::MAX {
            self.0.push((value, times));
        }
    }

    /// Values with their counts, in the order in which they were first met.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// The `count` most frequent values, most frequent first; of two equally frequent ones the larger first.
    pub fn top(&self, count: usize) -> Vec<(u64, u64)> {
        let mut all = self.0.clone();
        all.sort_by_key(|(value, count)| Reverse((*count, *value)));
        all.truncate(count);
        all
    }

    /// The sum of the counts.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|entry| entry.1).sum()
    }
}

/// What is counted of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    numbers: [u64; FIELDS],
    /// Sizes of reads and writes that were not empty.
    pub sizes: CommonValues,
    /// Gaps, by Darshan's rule.
    pub strides: CommonValues,
    /// Calls that failed, by operation and error number: see [`failure`].
    pub failures: CommonValues,
    /// Opens by process number in the table of processes.
    pub processes: CommonValues,
}

impl Default for FileRecord {
    fn default() -> Self {
        FileRecord {
            numbers: [0; FIELDS],
            sizes: CommonValues::default(),
            strides: CommonValues::default(),
            failures: CommonValues::default(),
            processes: CommonValues::default(),
        }
    }
}

/// A failure as a value of [`FileRecord::failures`].
pub fn failure(op: Op, errno: Errno) -> u64 {
    (op as u64) << 16 | (errno as i32 as u64 & 0xFFFF)
}

/// The inverse of [`failure`].
pub fn failed(value: u64) -> Option<(Op, Errno)> {
    Some((*Op::ALL.get((value >> 16) as usize)?, Errno::from_raw((value & 0xFFFF) as i32)))
}

impl FileRecord {
    /// A number.
    pub fn get(&self, field: Field) -> u64 {
        self.numbers[field.index()]
    }

    /// A duration.
    pub fn time(&self, field: Field) -> Duration {
        Duration::from_nanos(self.get(field))
    }

    /// A moment since the mount, `None` for never.
    pub fn moment(&self, field: Field) -> Option<Duration> {
        self.get(field).checked_sub(1).map(Duration::from_micros)
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == FileRecord::default()
    }

    /// Opens, with those that created it.
    pub fn opens(&self) -> u64 {
        self.get(Field::Calls(Op::Open)).saturating_add(self.get(Field::Calls(Op::Create)))
    }

    /// The time spent in its calls.
    pub fn in_calls(&self) -> Duration {
        let all = [Field::ReadTime, Field::WriteTime, Field::MetaTime].map(|field| self.time(field));
        all.into_iter().fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Calls that failed.
    pub fn failed(&self) -> u64 {
        self.failures.total()
    }

    /// The direction of the last read or write.
    pub fn last_way(&self) -> Option<Way> {
        match self.get(Field::LastWay) {
            1 => Some(Way::Read),
            2 => Some(Way::Write),
            _ => None,
        }
    }

    fn add_to(&mut self, field: Field, amount: u64) {
        let number = &mut self.numbers[field.index()];
        *number = number.saturating_add(amount);
    }

    fn raise(&mut self, field: Field, to: u64) {
        let number = &mut self.numbers[field.index()];
        *number = (*number).max(to);
    }

    fn set_once(&mut self, field: Field, to: u64) {
        let number = &mut self.numbers[field.index()];
        if *number == 0 || to < *number {
            *number = to;
        }
    }

    /// Counts one call. `cursor` is that of the handle it came through.
    pub fn count(&mut self, call: &Call, cursor: Option<&mut Cursor>) {
        let took = nanos(call.took);
        if let Some(errno) = call.errno {
            self.failures.add(failure(call.op, errno), 1);
            self.add_to(Field::MetaTime, took);
            return;
        }
        self.add_to(Field::Calls(call.op), 1);
        match (call.op, cursor) {
            (Op::Read, Some(cursor)) => self.access(Way::Read, call, cursor),
            (Op::Write, Some(cursor)) => self.access(Way::Write, call, cursor),
            // As Darshan counts it.
            (Op::Fsync | Op::Fdatasync, _) => self.add_to(Field::WriteTime, took),
            _ => self.add_to(Field::MetaTime, took),
        }
        let (began, ended) = (moment(call.began), moment(call.began + call.took));
        match call.op {
            Op::Open | Op::Create => {
                self.set_once(Field::OpenFirst, began);
                self.raise(Field::OpenLast, ended);
            }
            Op::Flush | Op::Release => {
                self.set_once(Field::CloseFirst, began);
                self.raise(Field::CloseLast, ended);
            }
            _ => {}
        }
    }

    /// Counts an open by a process; `mode`: the permission bits, if the open created the file.
    pub fn opened_by(&mut self, process: u64, mode: Option<u32>) {
        self.processes.add(process, 1);
        if let Some(mode) = mode {
            self.numbers[Field::Mode.index()] = u64::from(mode) + 1;
        }
    }

    fn access(&mut self, way: Way, call: &Call, cursor: &mut Cursor) {
        let Call { offset, bytes, began, took, .. } = *call;
        let place = cursor.step(way, offset, bytes, began, took);
        let (class, read) = (size_class(bytes), way == Way::Read);
        let either = |if_read, if_written| if read { if_read } else { if_written };
        let number = |way| match way {
            Way::Read => 1,
            Way::Write => 2,
        };

        self.add_to(either(Field::BytesRead, Field::BytesWritten), bytes);
        self.raise(either(Field::EndRead, Field::EndWritten), offset.saturating_add(bytes));
        self.add_to(either(Field::SequentialReads, Field::SequentialWrites), place.sequential.into());
        self.add_to(either(Field::ConsecutiveReads, Field::ConsecutiveWrites), place.consecutive.into());
        self.add_to(Field::Switches, place.switched.into());
        self.add_to(Field::Unaligned, u64::from(!offset.is_multiple_of(BLOCK)));
        self.add_to(either(Field::ReadSizes(class), Field::WriteSizes(class)), 1);
        self.add_to(either(Field::ReadSizeBytes(class), Field::WriteSizeBytes(class)), bytes);
        self.add_to(either(Field::ReadPatterns(place.pattern), Field::WritePatterns(place.pattern)), 1);
        self.set_once(either(Field::ReadFirst, Field::WriteFirst), moment(began));
        self.raise(either(Field::ReadLast, Field::WriteLast), moment(began + took));
        self.add_to(either(Field::ReadTime, Field::WriteTime), nanos(place.alone));
        let slowest = either(Field::SlowestRead, Field::SlowestWrite);
        if nanos(took) > self.get(slowest) {
            self.numbers[slowest.index()] = nanos(took);
            self.numbers[either(Field::SlowestReadSize, Field::SlowestWriteSize).index()] = bytes;
        }
        if call.tier == Tier::Slow {
            self.add_to(either(Field::SlowReads, Field::SlowWrites), 1);
            self.add_to(either(Field::SlowBytesRead, Field::SlowBytesWritten), bytes);
        }
        self.numbers[Field::LastWay.index()] = number(way);
        if bytes > 0 {
            self.sizes.add(bytes, 1);
        }
        if place.stride > 0 {
            self.strides.add(place.stride, 1);
        }
    }

    /// Adds later counters of the same file.
    pub fn add(&mut self, later: &FileRecord) {
        let mut larger = false;
        for (index, rule) in RULES.iter().enumerate() {
            let (mine, other) = (&mut self.numbers[index], later.numbers[index]);
            match rule {
                MergeRule::Sum => *mine = mine.saturating_add(other),
                MergeRule::Max => {
                    larger = other > *mine;
                    *mine = other.max(*mine);
                }
                MergeRule::With if larger => *mine = other,
                MergeRule::With => {}
                MergeRule::First if other != 0 && (*mine == 0 || other < *mine) => *mine = other,
                MergeRule::First => {}
                MergeRule::Last if other != 0 => *mine = other,
                MergeRule::Last => {}
            }
        }
        let lists = [
            (&mut self.sizes, &later.sizes),
            (&mut self.strides, &later.strides),
            (&mut self.failures, &later.failures),
            (&mut self.processes, &later.processes),
        ];
        for (mine, other) in lists {
            other.iter().for_each(|(value, times)| mine.add(value, times));
        }
    }
}

fn moment(since_mount: Duration) -> u64 {
    u64::try_from(since_mount.as_micros()).unwrap_or(u64::MAX).saturating_add(1)
}

// The packed form: which groups of eight numbers are not all 0 (a bit each), which numbers of each such group are not
// 0, those numbers, then the lists, each as its length and its entries. A number takes as few groups of seven bits as
// it needs; a moment is stored as its difference to the previous one.

const EIGHTS: usize = FIELDS.div_ceil(8);

impl FileRecord {
    /// Appends the packed form.
    pub fn pack(&self, out: &mut Vec<u8>) {
        let mask = |eight: &[u64]| (0..eight.len()).fold(0, |mask, at| mask | u8::from(eight[at] != 0) << at);
        let masks: Vec<u8> = self.numbers.chunks(8).map(mask).collect();
        let eights = (0..EIGHTS).fold(0, |eights, at| eights | u64::from(masks[at] != 0) << at);
        write_number(out, eights);
        out.extend(masks.iter().filter(|mask| **mask != 0));
        let mut before = 0;
        for (index, number) in self.numbers.iter().enumerate().filter(|(_, number)| **number != 0) {
            if (MOMENTS..TIMES).contains(&index) {
                write_number(out, zigzag(number.wrapping_sub(before) as i64));
                before = *number;
            } else {
                write_number(out, *number);
            }
        }
        for list in [&self.sizes, &self.strides, &self.failures, &self.processes] {
            write_number(out, list.0.len() as u64);
            for (value, times) in list.iter() {
                write_number(out, value);
                write_number(out, times);
            }
        }
    }

    /// Takes a packed record off the front of `bytes`. `None`: there is no valid one.
    pub fn unpack(bytes: &mut &[u8]) -> Option<FileRecord> {
        let mut record = FileRecord::default();
        let eights = read_number(bytes)?;
        let mut masks = [0; EIGHTS];
        for (at, mask) in masks.iter_mut().enumerate().filter(|(at, _)| eights >> at & 1 != 0) {
            *mask = *bytes.split_off_first()?;
            // The last group may be incomplete.
            if at == EIGHTS - 1 && usize::from(*mask) >> (FIELDS - 8 * at) != 0 {
                return None;
            }
        }
        let mut before: u64 = 0;
        for index in (0..FIELDS).filter(|index| masks[index / 8] >> (index % 8) & 1 != 0) {
            let number = read_number(bytes)?;
            record.numbers[index] = number;
            if (MOMENTS..TIMES).contains(&index) {
                before = before.wrapping_add(unzigzag(number) as u64);
                record.numbers[index] = before;
            }
        }
        for list in [&mut record.sizes, &mut record.strides, &mut record.failures, &mut record.processes] {
            let len = usize::try_from(read_number(bytes)?).ok().filter(|len| *len <= CommonValues::MAX)?;
            for _ in 0..len {
                list.0.push((read_number(bytes)?, read_number(bytes)?));
            }
        }
        (eights >> EIGHTS == 0).then_some(record)
    }
}

pub(super) fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

pub(super) fn write_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = *bytes.split_off_first()?;
        let bits = u64::from(byte & 0x7F);
        // The tenth byte has room for one bit.
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    fn call(op: Op, offset: u64, bytes: u64) -> Call {
        let (began, took) = (Duration::from_millis(7), Duration::from_micros(5));
        Call { op, began, took, offset, bytes, errno: None, tier: Tier::Fast }
    }

    /// Numbers of all lengths, many of them 0.
    fn any_number(random: &mut SmallRng) -> u64 {
        if random.random_bool(0.6) { 0 } else { random.random::<u64>() >> random.random_range(0..64) }
    }

    fn any_record(random: &mut SmallRng) -> FileRecord {
        let mut record = FileRecord::default();
        record.numbers.iter_mut().for_each(|number| *number = any_number(random));
        for list in [&mut record.sizes, &mut record.strides, &mut record.failures, &mut record.processes] {
            (0..random.random_range(0..40)).for_each(|_| list.add(any_number(random), any_number(random)));
        }
        record
    }

    fn packed(record: &FileRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.pack(&mut bytes);
        bytes
    }

    fn every_field() -> Vec<Field> {
        let (sizes, patterns) = (0..SIZES, AccessPattern::ALL);
        let mut all: Vec<Field> = Op::ALL.map(Field::Calls).into();
        all.extend([Field::BytesRead, Field::BytesWritten, Field::EndRead, Field::EndWritten]);
        all.extend([Field::SequentialReads, Field::SequentialWrites, Field::ConsecutiveReads]);
        all.extend([Field::ConsecutiveWrites, Field::Switches, Field::Unaligned]);
        for of in [Field::ReadSizes, Field::WriteSizes, Field::ReadSizeBytes, Field::WriteSizeBytes] {
            all.extend(sizes.clone().map(of));
        }
        all.extend(patterns.map(Field::ReadPatterns));
        all.extend(patterns.map(Field::WritePatterns));
        all.extend([Field::OpenFirst, Field::ReadFirst, Field::ReadLast, Field::WriteFirst, Field::WriteLast]);
        all.extend([Field::CloseFirst, Field::CloseLast, Field::OpenLast, Field::ReadTime, Field::WriteTime]);
        all.extend([Field::MetaTime, Field::SlowestRead, Field::SlowestReadSize, Field::SlowestWrite]);
        all.extend([Field::SlowestWriteSize, Field::SlowReads, Field::SlowBytesRead, Field::SlowWrites]);
        all.extend([Field::SlowBytesWritten, Field::LastWay, Field::Mode]);
        all
    }

    #[test]
    fn every_field_has_a_number_of_its_own() {
        let numbers: Vec<usize> = every_field().into_iter().map(Field::index).collect();
        assert_eq!(numbers, (0..FIELDS).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_packed_is_unpacked_and_a_part_of_it_is_nothing() {
        for seed in 0..500 {
            let record = any_record(&mut SmallRng::seed_from_u64(seed));
            let mut bytes = packed(&record);
            bytes.push(0xEE);
            let rest = &mut &*bytes;
            assert_eq!(FileRecord::unpack(rest).as_ref(), Some(&record), "seed {seed}");
            assert_eq!(*rest, [0xEE], "what follows is left");
            for cut in 0..bytes.len() - 1 {
                assert_eq!(FileRecord::unpack(&mut &bytes[..cut]), None, "seed {seed}, {cut} bytes");
            }
        }
    }

    #[test]
    fn any_bytes_are_a_record_or_none() {
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..100_000 {
            let bytes: Vec<u8> = (0..random.random_range(0..40)).map(|_| random.random()).collect();
            if let Some(record) = FileRecord::unpack(&mut &*bytes) {
                assert_eq!(FileRecord::unpack(&mut &*packed(&record)), Some(record));
            }
        }
    }

    /// Pieces add up to the whole, wherever they are split.
    #[test]
    fn pieces_add_up_to_the_whole() {
        for seed in 0..300 {
            let mut random = SmallRng::seed_from_u64(seed);
            let (mut whole, mut merged, mut piece) =
                (FileRecord::default(), FileRecord::default(), FileRecord::default());
            let (mut cursor, mut same) = (Cursor::default(), Cursor::default());
            let ops = [Op::Open, Op::Read, Op::Write, Op::Flush, Op::Fsync, Op::Getattr, Op::Create];
            for at in 0..60 {
                let op = ops[random.random_range(0..ops.len())];
                let access = matches!(op, Op::Read | Op::Write);
                let bytes = if access { random.random_range(0..3) * 1000 } else { 0 };
                let call = Call {
                    began: Duration::from_micros(10 * at),
                    took: Duration::from_micros(random.random_range(1..20)),
                    errno: random.random_bool(0.1).then_some(Errno::EIO),
                    tier: Tier::ALL[random.random_range(0..2)],
                    ..call(op, random.random_range(0..5) * 1000, bytes)
                };
                whole.count(&call, Some(&mut cursor));
                piece.count(&call, Some(&mut same));
                if random.random_bool(0.3) {
                    merged.add(&piece);
                    piece = FileRecord::default();
                }
            }
            merged.add(&piece);
            assert_eq!(merged, whole, "seed {seed}");
        }
    }

    #[test]
    fn a_file_that_is_read_once_takes_little_room() {
        let mut record = FileRecord::default();
        record.opened_by(3, None);
        let mut cursor = Cursor::default();
        for call in
            [call(Op::Open, 0, 0), call(Op::Read, 0, 110_000), call(Op::Read, 110_000, 0), call(Op::Flush, 0, 0)]
        {
            record.count(&call, Some(&mut cursor));
        }
        let bytes = packed(&record).len();
        assert!(bytes <= 96, "{bytes} bytes");
    }

    #[test]
    fn the_commonest_are_the_first_32_and_of_two_the_larger() {
        let mut common = CommonValues::default();
        for value in (1..=40).chain([5, 7, 7, 40]) {
            common.add(value, 1);
        }
        assert_eq!(common.top(3), [(7, 3), (5, 2), (32, 1)]);
        assert_eq!(common.total(), 35, "nine came too late");
    }

    #[test]
    fn a_failure_is_told_and_counts_for_nothing_else() {
        let mut record = FileRecord::default();
        let refused = Call { errno: Some(Errno::ENOSPC), ..call(Op::Write, 0, 0) };
        record.count(&refused, Some(&mut Cursor::default()));
        assert_eq!(
            record.failures.iter().filter_map(|(value, n)| Some((failed(value)?, n))).collect::<Vec<_>>(),
            [((Op::Write, Errno::ENOSPC), 1)]
        );
        assert_eq!((record.get(Field::Calls(Op::Write)), record.get(Field::WriteSizes(0))), (0, 0));
        assert_eq!(record.time(Field::MetaTime), Duration::from_micros(5));
    }

    #[test]
    fn the_slowest_call_keeps_its_size() {
        let mut record = FileRecord::default();
        let mut cursor = Cursor::default();
        for (bytes, micros) in [(10, 5), (20, 50), (30, 7)] {
            let call = Call { took: Duration::from_micros(micros), ..call(Op::Read, 0, bytes) };
            record.count(&call, Some(&mut cursor));
        }
        let mut later = FileRecord::default();
        later.add(&record);
        later.add(&FileRecord::default());
        assert_eq!(
            (later.time(Field::SlowestRead), later.get(Field::SlowestReadSize)),
            (Duration::from_micros(50), 20)
        );
    }
}
