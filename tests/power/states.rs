//! What a power cut may leave on two disks, of what was written to them: computed, no I/O.
//!
//! A disk keeps every write that came before the last flush of that disk. Of the later ones it keeps what it likes: any of
//! them in any order, and of each any of its sectors. (How large a sector is: `rig.rs`.)

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// A disk in memory is made of pieces of this size; those that were never written are zeros.
const CHUNK: usize = 64 << 10;

/// Both disks have places in arrays.
pub(crate) const FAST: usize = 0;
pub(crate) const SLOW: usize = 1;

/// Something that a disk was told.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) disk: usize,
    /// When it came, as `traffic::now` tells it.
    pub(crate) stamp: u64,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Write { offset: u64, bytes: Vec<u8> },
    Flush,
}

/// The bytes of a disk. A clone shares all that is not written afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    chunks: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl Disk {
    pub(crate) fn write(&mut self, offset: u64, mut bytes: &[u8]) {
        let mut at = offset;
        while !bytes.is_empty() {
            let (chunk, within) = (at / CHUNK as u64, (at % CHUNK as u64) as usize);
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - within));
            let chunk = self.chunks.entry(chunk).or_insert_with(|| Arc::new(vec![0; CHUNK]));
            Arc::make_mut(chunk)[within..within + now.len()].copy_from_slice(now);
            (at, bytes) = (at + now.len() as u64, later);
        }
    }

    /// Where there is anything, and what.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.chunks.iter().map(|(number, bytes)| (number * CHUNK as u64, bytes.as_slice()))
    }
}

/// Both disks as they certainly are after some of the records, and the writes that came after the last flush of each.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    durable: [Disk; 2],
    /// What each writes at once or not at all, in bytes.
    sectors: [u64; 2],
    /// Places in the log.
    pending: [Vec<usize>; 2],
    /// How many of the records have come.
    at: usize,
}

impl Moment {
    pub(crate) fn start(disks: [Disk; 2], sectors: [u64; 2]) -> Self {
        Moment { durable: disks, sectors, pending: [Vec::new(), Vec::new()], at: 0 }
    }

    /// Goes on to when `upto` records had come.
    pub(crate) fn advance(&mut self, log: &[Record], upto: usize) {
        for (number, Record { disk, what, .. }) in log.iter().enumerate().take(upto).skip(self.at) {
            match what {
                What::Write { .. } => self.pending[*disk].push(number),
                What::Flush => {
                    for number in std::mem::take(&mut self.pending[*disk]) {
                        let What::Write { offset, bytes } = &log[number].what else { continue };
                        self.durable[*disk].write(*offset, bytes);
                    }
                }
            }
        }
        self.at = self.at.max(upto);
    }

    /// How many writes each disk may lose.
    pub(crate) fn unflushed(&self) -> [usize; 2] {
        [self.pending[FAST].len(), self.pending[SLOW].len()]
    }

    /// The disks as a power cut leaves them now.
    pub(crate) fn cut(&self, log: &[Record], losses: [Loss; 2], seed: u64) -> [Disk; 2] {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut left = |disk: usize| {
            let mut image = self.durable[disk].clone();
            for (number, sectors) in losses[disk].keep(&self.writes(log, disk), &mut random) {
                let What::Write { offset, bytes } = &log[number].what else { continue };
                let mut pieces = pieces(self.sectors[disk], *offset, bytes);
                sectors.0.iter().for_each(|keep| match pieces.next() {
                    Some((offset, piece)) if *keep => image.write(offset, piece),
                    _ => {}
                });
            }
            image
        };
        [left(FAST), left(SLOW)]
    }

    /// The writes that may be lost: places in the log, and how many sectors each has.
    fn writes(&self, log: &[Record], disk: usize) -> Vec<(usize, usize)> {
        let sectors = |number: &usize| match &log[*number].what {
            What::Write { offset, bytes } => pieces(self.sectors[disk], *offset, bytes).count(),
            What::Flush => 0,
        };
        self.pending[disk].iter().map(|number| (*number, sectors(number))).collect()
    }
}

/// What a disk does with the writes that came after its last flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It had written all of them.
    Nothing,
    Everything,
    /// It had written them in order, up to somewhere in the middle of one.
    Tail,
    /// All but one.
    One,
    /// Any of them, each of them whole.
    Some,
    /// Any sectors of any of them.
    Torn,
}

impl Loss {
    pub(crate) const ALL: [Loss; 6] = [Loss::Nothing, Loss::Everything, Loss::Tail, Loss::One, Loss::Some, Loss::Torn];

    /// The writes that stay, and what stays of each.
    fn keep(self, writes: &[(usize, usize)], random: &mut SmallRng) -> Vec<(usize, Sectors)> {
        let whole = |(number, sectors): &(usize, usize)| (*number, Sectors(vec![true; *sectors]));
        let mut kept: Vec<(usize, Sectors)> = match self {
            Loss::Everything => Vec::new(),
            Loss::Torn => {
                let often = random.random_range(0.1..0.9);
                let mut some = |sectors: usize| Sectors((0..sectors).map(|_| random.random_bool(often)).collect());
                writes.iter().map(|(number, sectors)| (*number, some(*sectors))).collect()
            }
            _ => writes.iter().map(whole).collect(),
        };
        match self {
            Loss::Tail if !kept.is_empty() => {
                kept.truncate(random.random_range(1..=kept.len()));
                let Sectors(last) = &mut kept.last_mut().expect("one is left").1;
                last.truncate(random.random_range(0..=last.len()));
            }
            Loss::One if !kept.is_empty() => drop(kept.remove(random.random_range(0..kept.len()))),
            Loss::Some => {
                let often = random.random_range(0.1..0.9);
                kept.retain(|_| random.random_bool(often));
            }
            _ => {}
        }
        kept
    }
}

/// Which sectors of a write stay; those behind the last one do not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sectors(Vec<bool>);

/// Superblocks are within: file systems need them whole before they can look at their journals.
const HEAD: u64 = 4096;

/// A write, cut at the borders of sectors; what begins in the head of the disk is not cut there.
fn pieces(sector: u64, offset: u64, mut bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = offset;
    std::iter::from_fn(move || {
        let room = if at < HEAD { HEAD - at } else { sector - at % sector };
        let (now, later) = bytes.split_at(bytes.len().min(room as usize));
        let piece = (at, now);
        (at, bytes) = (at + now.len() as u64, later);
        (!now.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(disk: usize, offset: u64, byte: u8, len: usize) -> Record {
        Record { disk, stamp: 0, what: What::Write { offset, bytes: vec![byte; len] } }
    }

    fn flush(disk: usize) -> Record {
        Record { disk, stamp: 0, what: What::Flush }
    }

    fn read(disk: &Disk, offset: u64, len: usize) -> Vec<u8> {
        let byte = |at: u64| disk.chunks.get(&(at / CHUNK as u64)).map_or(0, |c| c[(at % CHUNK as u64) as usize]);
        (offset..offset + len as u64).map(byte).collect()
    }

    /// Random writes and flushes of two small disks.
    fn some_log(random: &mut SmallRng) -> Vec<Record> {
        let mut byte = 0;
        let mut record = |_| {
            let disk = random.random_range(0..2);
            if random.random_bool(0.2) {
                return flush(disk);
            }
            byte += 1;
            write(disk, 4096 + random.random_range(0..64) * 512, byte, random.random_range(1..8) * 512)
        };
        (0..60).map(&mut record).collect()
    }

    /// Every byte that each sector ever had since its last flush, and the one it had then.
    fn possible(log: &[Record], disk: usize, sector: u64) -> Vec<u8> {
        let mut possible = vec![0];
        for record in log.iter().filter(|record| record.disk == disk) {
            match &record.what {
                What::Flush => drop(possible.drain(..possible.len() - 1)),
                What::Write { offset, bytes } => {
                    if (*offset..offset + bytes.len() as u64).contains(&(4096 + sector * 512)) {
                        possible.push(bytes[0]);
                    }
                }
            }
        }
        possible
    }

    #[test]
    fn each_sector_is_as_it_was_flushed_or_as_it_was_written_later() {
        let (mut lost, mut torn) = (0, 0);
        for seed in 0..200 {
            let mut random = SmallRng::seed_from_u64(seed);
            let log = some_log(&mut random);
            let upto = random.random_range(0..=log.len());
            let losses = [(); 2].map(|()| Loss::ALL[random.random_range(0..Loss::ALL.len())]);
            let mut moment = Moment::start(Default::default(), [512; 2]);
            moment.advance(&log, upto / 2);
            moment.advance(&log, upto);
            for (disk, image) in moment.cut(&log, losses, seed).iter().enumerate() {
                for sector in 0..72 {
                    let found = read(image, 4096 + sector * 512, 512);
                    let possible = possible(&log[..upto], disk, sector);
                    assert!(found.iter().all(|byte| *byte == found[0]), "seed {seed}: a sector is torn");
                    assert!(possible.contains(&found[0]), "seed {seed}, {losses:?}: {} of {possible:?}", found[0]);
                    lost += u32::from(found[0] != *possible.last().unwrap());
                    torn += u32::from(losses[disk] == Loss::Torn && found[0] == *possible.last().unwrap());
                }
            }
        }
        assert!(lost > 500 && torn > 500, "{lost} sectors lost, {torn} kept of torn writes");
    }

    #[test]
    fn what_was_flushed_stays_and_a_flush_is_one_disk_s_own() {
        let log = [
            write(FAST, 0, 1, 1024),
            write(SLOW, 0, 2, 1024),
            flush(FAST),
            write(FAST, 0, 3, 512),
            write(SLOW, 512, 4, 512),
        ];
        let mut moment = Moment::start(Default::default(), [512; 2]);
        moment.advance(&log, log.len());
        assert_eq!(moment.unflushed(), [1, 2]);
        let [fast, slow] = moment.cut(&log, [Loss::Everything; 2], 0);
        assert_eq!((read(&fast, 0, 1024), slow), (vec![1; 1024], Disk::default()));
        let [fast, slow] = moment.cut(&log, [Loss::Nothing; 2], 0);
        assert_eq!(read(&fast, 0, 1024), [[3; 512], [1; 512]].concat());
        assert_eq!(read(&slow, 0, 1024), [[2; 512], [4; 512]].concat());
    }

    #[test]
    fn sectors_have_their_borders_on_the_disk_and_not_in_the_write() {
        let cut = |offset| pieces(4096, offset, &[0; 5000]).map(|(at, piece)| (at, piece.len())).collect::<Vec<_>>();
        assert_eq!(cut(8192), [(8192, 4096), (12288, 904)]);
        assert_eq!(cut(3584), [(3584, 512), (4096, 4096), (8192, 392)]);
        assert_eq!(pieces(512, 1024, &[0; 4096]).map(|(at, _)| at).collect::<Vec<_>>(), [1024, 4096, 4608]);
    }

    #[test]
    fn a_clone_of_a_disk_is_not_changed_by_writes_to_the_other() {
        let mut one = Disk::default();
        one.write(CHUNK as u64 - 3, &[7; 6]);
        let mut other = one.clone();
        other.write(CHUNK as u64, &[8]);
        assert_eq!(read(&one, CHUNK as u64 - 4, 8), [0, 7, 7, 7, 7, 7, 7, 0]);
        assert_eq!(read(&other, CHUNK as u64 - 4, 8), [0, 7, 7, 7, 8, 7, 7, 0]);
        assert_eq!(
            one.pieces().map(|(at, bytes)| (at, bytes.len())).collect::<Vec<_>>(),
            [(0, CHUNK), (CHUNK as u64, CHUNK)]
        );
    }
}
