//! Packs many traced calls into few bytes: column by column, each value as its difference to the previous line. Pure.
//!
//! A loader's calls are alike: the same thread reads the next 128 KiB of the same file. So a column holds mostly zeros
//! or repeats, which zstd compresses to next to nothing. The bytes may come from anywhere when they are read back: a
//! block that no trace has written is refused, whatever it contains.

use std::collections::HashMap;
use std::time::Duration;

use crate::error::Errno;
use crate::stats::counters::{Call, Op, Tier, nanos};
use crate::stats::record::{read_number, unzigzag, write_number, zigzag};
use crate::stats::traced::Traced;

/// The most calls in a block.
pub const CALLS_MAX: usize = 1 << 16;
/// Columns of a block.
const COLUMNS: usize = 9;
/// zstd's level: a higher one takes longer than the call it notes, a lower one saves little time.
const LEVEL: i32 = 1;
/// The most bytes of a call before compression: nine numbers of up to ten bytes.
const CALL_MAX: usize = COLUMNS * 10;

/// Packs at most [`CALLS_MAX`] calls.
pub fn pack(calls: &[Traced]) -> Vec<u8> {
    let mut columns: [Vec<u8>; COLUMNS] = std::array::from_fn(|_| Vec::with_capacity(2 * calls.len()));
    let mut before = Before::default();
    for traced in calls {
        let numbers = before.differences(traced);
        columns.iter_mut().zip(numbers).for_each(|(column, number)| write_number(column, number));
    }
    let mut raw = Vec::with_capacity(columns.iter().map(Vec::len).sum::<usize>() + 32);
    write_number(&mut raw, calls.len() as u64);
    for column in &columns {
        write_number(&mut raw, column.len() as u64);
        raw.extend_from_slice(column);
    }
    zstd::bulk::compress(&raw, LEVEL).expect("into memory")
}

/// The calls of a block. `None`: it is not a block, or damaged.
pub fn unpack(block: &[u8]) -> Option<Vec<Traced>> {
    let raw = zstd::bulk::decompress(block, CALLS_MAX * CALL_MAX + 128).ok()?;
    let mut raw = &*raw;
    let len = usize::try_from(read_number(&mut raw)?).ok().filter(|len| *len <= CALLS_MAX)?;
    let mut columns = [&[][..]; COLUMNS];
    for column in &mut columns {
        let bytes = usize::try_from(read_number(&mut raw)?).ok()?;
        *column = raw.split_off(..bytes)?;
    }
    let mut calls = Vec::with_capacity(len);
    let mut before = Before::default();
    for _ in 0..len {
        let mut numbers = [0; COLUMNS];
        for (number, column) in numbers.iter_mut().zip(&mut columns) {
            *number = read_number(column)?;
        }
        calls.push(before.restore(numbers)?);
    }
    (raw.is_empty() && columns.iter().all(|column| column.is_empty())).then_some(calls)
}

/// The values of the previous line, from which the next one differs.
#[derive(Default)]
struct Before {
    began: u64,
    ino: u64,
    handle: u64,
    thread: u32,
    process: u32,
    /// Where each handle's last call ended.
    ends: HashMap<u64, u64>,
}

impl Before {
    /// A line as differences. Operation, tier and whether it failed are one number: mostly the same.
    fn differences(&mut self, traced: &Traced) -> [u64; COLUMNS] {
        let Traced { call, ino, handle, process, thread } = *traced;
        let errno = call.errno.map_or(0, |errno| errno as i32 as u64);
        let end = self.ends.insert(handle, call.offset.wrapping_add(call.bytes)).unwrap_or(0);
        let away = |now: u64, before: u64| zigzag(now.wrapping_sub(before) as i64);
        let began = nanos(call.began);
        let numbers = [
            errno << 8 | (call.op as u64) << 1 | call.tier as u64,
            away(began, self.began),
            nanos(call.took),
            away(call.offset, end),
            call.bytes,
            away(ino, self.ino),
            away(handle, self.handle),
            away(thread.into(), self.thread.into()),
            away(process.into(), self.process.into()),
        ];
        (self.began, self.ino, self.handle) = (began, ino, handle);
        (self.thread, self.process) = (thread, process);
        numbers
    }

    fn restore(&mut self, numbers: [u64; COLUMNS]) -> Option<Traced> {
        let [kind, began, took, offset, bytes, ino, handle, thread, process] = numbers;
        let onto = |before: u64, away: u64| before.wrapping_add(unzigzag(away) as u64);
        self.began = onto(self.began, began);
        self.ino = onto(self.ino, ino);
        self.handle = onto(self.handle, handle);
        self.thread = u32::try_from(onto(self.thread.into(), thread)).ok()?;
        self.process = u32::try_from(onto(self.process.into(), process)).ok()?;
        let end = self.ends.entry(self.handle).or_default();
        let offset = onto(*end, offset);
        *end = offset.wrapping_add(bytes);
        let errno = i32::try_from(kind >> 8).ok()?;
        let call = Call {
            op: *Op::ALL.get((kind >> 1 & 0x7F) as usize)?,
            tier: Tier::ALL[(kind & 1) as usize],
            began: Duration::from_nanos(self.began),
            took: Duration::from_nanos(took),
            offset,
            bytes,
            errno: (errno != 0).then(|| Errno::from_raw(errno)),
        };
        Some(Traced { call, ino: self.ino, handle: self.handle, process: self.process, thread: self.thread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    /// A loader with four workers: each opens a file, reads it to its end and closes it.
    pub(crate) fn loader(calls: usize) -> Vec<Traced> {
        let mut random = SmallRng::seed_from_u64(1);
        let mut made = Vec::with_capacity(calls + 4);
        let (mut now, mut handle) = (0, 0);
        while made.len() < calls {
            handle += 1;
            let size = random.random_range(20_000..200_000);
            let mut take = |op, offset, bytes| {
                now += random.random_range(3_000..9_000);
                let took = Duration::from_nanos(random.random_range(2_000..60_000));
                let began = Duration::from_nanos(now);
                let call = Call { op, began, took, offset, bytes, errno: None, tier: Tier::Fast };
                made.push(Traced { call, ino: 1000 + handle, handle, process: 1, thread: 4711 });
            };
            take(Op::Open, 0, 0);
            take(Op::Read, 0, size);
            take(Op::Read, size, 0);
            take(Op::Release, 0, 0);
        }
        made.truncate(calls);
        made
    }

    #[test]
    fn any_calls_come_back_as_they_were() {
        for seed in 0..50 {
            let mut random = SmallRng::seed_from_u64(seed);
            let any = |random: &mut SmallRng| random.random::<u64>() >> random.random_range(0..64);
            let one = |random: &mut SmallRng| Traced {
                call: Call {
                    op: Op::ALL[random.random_range(0..Op::ALL.len())],
                    tier: Tier::ALL[random.random_range(0..2)],
                    began: Duration::from_nanos(any(random)),
                    took: Duration::from_nanos(any(random)),
                    offset: any(random),
                    bytes: any(random),
                    errno: random.random_bool(0.2).then_some(Errno::ENOSPC),
                },
                ino: any(random),
                handle: any(random) % 5,
                process: any(random) as u32,
                thread: any(random) as u32,
            };
            let calls: Vec<_> = (0..random.random_range(0..300)).map(|_| one(&mut random)).collect();
            assert_eq!(unpack(&pack(&calls)), Some(calls), "seed {seed}");
        }
    }

    #[test]
    fn a_call_of_a_loader_takes_ten_bytes_at_most() {
        let calls = loader(CALLS_MAX);
        let bytes = pack(&calls).len();
        assert!(bytes <= 10 * calls.len(), "{} calls in {bytes} bytes", calls.len());
    }

    #[test]
    fn damage_is_refused_or_read_and_never_a_panic() {
        let block = pack(&loader(500));
        assert!((0..block.len()).all(|len| unpack(&block[..len]).is_none()));
        for at in 0..block.len() {
            for bit in 0..8 {
                let mut bad = block.clone();
                bad[at] ^= 1 << bit;
                drop(unpack(&bad));
            }
        }
        // The same below the compression, which has no checksum.
        let raw = zstd::bulk::decompress(&block, 1 << 20).expect("packed");
        for at in 0..raw.len() {
            let mut bad = raw.clone();
            bad[at] ^= 0x81;
            drop(unpack(&zstd::bulk::compress(&bad, 1).expect("into memory")));
        }
    }
}
