//! Finds epochs from the reads themselves: passes over the data, each of which reads again what the one before read.
//! Pure; calls come in.
//!
//! A *visit* is a read of a file's beginning. A pass visits each file once, in any order; so when most of the latest
//! visits are to files that this pass has visited before, a new one has begun, with the first of those visits. Where
//! two passes overlap for a moment, as with prefetching workers, the boundary is off by as much. If an apparent new
//! pass then comes to files that neither it nor the one before has visited, it was not one (a validation set that is
//! read again in the middle of an epoch): the two are merged again.
//!
//! A pass has [`FILES_MIN`] files or more. If a data set is in a few large files that stay open, its passes show in no
//! visit: its epochs are not found, and need marks.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;

use super::counters::{Op, Tier};
use super::recording::Epoch;
use super::render::bytes;
use super::traced::Traced;

/// The fewest files of a pass.
pub const FILES_MIN: u64 = 16;
/// How many of the latest visits are examined.
const LATEST: usize = 32;
/// How many of them must be to files visited before to begin a new pass.
const AGAIN: usize = 24;
/// How many new files undo a boundary; a tenth of the files before is required, too.
const STRANGERS: u64 = 16;
/// How many epochs are kept; then the oldest goes.
const KEPT: usize = 1_000;

/// The epochs of a mount.
#[derive(Debug, Default)]
pub struct Epochs {
    /// Oldest first; without the current one.
    done: VecDeque<Epoch>,
    now: Epoch,
    seen: Inos,
    /// The files of the previous pass, while its end may be undone.
    before: Option<Inos>,
    /// Files that neither of the two passes had visited.
    strangers: u64,
    latest: VecDeque<Visit>,
}

#[derive(Debug)]
struct Visit {
    ino: u64,
    at: f64,
    again: bool,
    /// The sums of the pass so far, without this visit, and the end of its last read.
    sums: [u64; 3],
    ended: f64,
}

/// A set of inode numbers. The engine gives them consecutively, so 64 share a word.
#[derive(Debug, Default)]
struct Inos {
    words: HashMap<u64, u64>,
    len: u64,
}

impl Inos {
    /// Returns whether it is new.
    fn insert(&mut self, ino: u64) -> bool {
        let (word, bit) = (self.words.entry(ino / 64).or_default(), 1 << (ino % 64));
        let new = *word & bit == 0;
        *word |= bit;
        self.len += u64::from(new);
        new
    }

    fn contains(&self, ino: u64) -> bool {
        self.words.get(&(ino / 64)).is_some_and(|word| word >> (ino % 64) & 1 != 0)
    }

    fn join(&mut self, other: &Inos) {
        for (at, bits) in &other.words {
            let word = self.words.entry(*at).or_default();
            self.len += u64::from((bits & !*word).count_ones());
            *word |= bits;
        }
    }
}

impl Epochs {
    /// Processes a call.
    pub fn see(&mut self, traced: &Traced) {
        let call = &traced.call;
        if call.op != Op::Read || call.errno.is_some() || call.bytes == 0 {
            return;
        }
        if call.offset == 0 {
            self.visit(traced.ino, call.began.as_secs_f64());
        }
        let now = &mut self.now;
        now.reads += 1;
        match call.tier {
            Tier::Fast => now.bytes_fast += call.bytes,
            Tier::Slow => now.bytes_slow += call.bytes,
        }
        now.ended = now.ended.max(traced.ended().as_secs_f64());
    }

    fn visit(&mut self, ino: u64, at: f64) {
        if self.now.number == 0 {
            self.now = Epoch { number: 1, began: at, open: true, ..Epoch::default() };
        }
        let again = !self.seen.insert(ino);
        self.now.files = self.seen.len;
        if !again && self.before.as_ref().is_some_and(|before| !before.contains(ino)) {
            self.strangers += 1;
        }
        if self.latest.len() == LATEST {
            self.latest.pop_front();
        }
        let sums = [self.now.reads, self.now.bytes_fast, self.now.bytes_slow];
        self.latest.push_back(Visit { ino, at, again, sums, ended: self.now.ended });
        let before = self.before.as_ref().map_or(0, |before| before.len);
        if self.strangers >= STRANGERS && self.strangers * 10 > before {
            self.undo();
        } else if self.latest.iter().filter(|visit| visit.again).count() >= AGAIN.min(self.seen.len as usize)
            && self.seen.len >= FILES_MIN
        {
            self.start();
        }
    }

    /// Begins a new pass, from the first of the latest visits that was to a file visited before.
    fn start(&mut self) {
        while self.latest.front().is_some_and(|visit| !visit.again) {
            self.latest.pop_front();
        }
        let Some(first) = self.latest.front() else { return };
        let [reads, fast, slow] = first.sums;
        let ended = first.ended;
        let next = Epoch {
            number: self.now.number + 1,
            began: first.at,
            ended: self.now.ended,
            open: true,
            files: 0,
            reads: self.now.reads - reads,
            bytes_fast: self.now.bytes_fast - fast,
            bytes_slow: self.now.bytes_slow - slow,
        };
        // What comes between the two, a validation or a checkpoint, belongs to neither.
        let done = Epoch { ended, open: false, reads, bytes_fast: fast, bytes_slow: slow, ..self.now.clone() };
        self.done.push_back(done);
        if self.done.len() > KEPT {
            self.done.pop_front();
        }
        self.now = next;
        self.before = Some(std::mem::take(&mut self.seen));
        self.strangers = 0;
        // The files that were new most likely belong to the previous pass; in this one they count when they come again.
        for visit in std::mem::take(&mut self.latest).into_iter().filter(|visit| visit.again) {
            self.seen.insert(visit.ino);
        }
        self.now.files = self.seen.len;
    }

    /// Undoes the previous boundary.
    fn undo(&mut self) {
        self.strangers = 0;
        self.latest.clear();
        let (Some(before), Some(last)) = (self.before.take(), self.done.pop_back()) else { return };
        self.seen.join(&before);
        self.now = Epoch {
            number: last.number,
            began: last.began,
            files: self.seen.len,
            reads: self.now.reads + last.reads,
            bytes_fast: self.now.bytes_fast + last.bytes_fast,
            bytes_slow: self.now.bytes_slow + last.bytes_slow,
            ..self.now.clone()
        };
    }

    /// All epochs that are kept, oldest first; the last one is the current one. A single pass is not reported: nothing
    /// was read again.
    pub fn recorded(&self) -> Vec<Epoch> {
        if self.done.is_empty() { Vec::new() } else { self.done.iter().chain([&self.now]).cloned().collect() }
    }
}

/// The lines of `.dlio/windows` about epochs; empty if none were found.
pub fn text(epochs: &[Epoch]) -> String {
    let mut out = String::new();
    if !epochs.is_empty() {
        out.push_str("\n     from     time    files    reads       read    MiB/s  slow  epoch found\n");
    }
    for epoch in epochs {
        let (read, lasted) = (epoch.bytes_fast + epoch.bytes_slow, epoch.ended - epoch.began);
        let slow = epoch.bytes_slow as f64 * 100.0 / (read as f64).max(1.0);
        let rate = read as f64 / lasted.max(1e-6) / f64::from(1 << 20);
        let Epoch { number, began, files, reads, open, .. } = epoch;
        let open = if *open { ", not over" } else { "" };
        writeln!(
            out,
            "{began:>8.1}s{lasted:>8.1}s{files:>9}{reads:>9}{:>11}{rate:>9.1}{slow:>5.0}%  {number}{open}",
            bytes(read)
        )
        .expect("formatting into memory");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::counters::Call;
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};
    use std::time::Duration;

    struct Reader {
        epochs: Epochs,
        now: u64,
    }

    impl Reader {
        fn new() -> Self {
            Reader { epochs: Epochs::default(), now: 0 }
        }

        /// Reads whole files, in two reads each.
        fn read(&mut self, files: impl IntoIterator<Item = u64>) {
            for ino in files {
                for (offset, bytes) in [(0, 100), (100, 20), (120, 0)] {
                    self.now += 1;
                    let (began, took) = (Duration::from_millis(self.now), Duration::from_micros(9));
                    let tier = if ino % 2 == 0 { Tier::Fast } else { Tier::Slow };
                    let call = Call { op: Op::Read, began, took, offset, bytes, errno: None, tier };
                    self.epochs.see(&Traced { call, ino, handle: 1, process: 1, thread: 1 });
                }
            }
        }

        fn passes(&self) -> Vec<(u64, u64, u64)> {
            self.epochs.recorded().iter().map(|e| (e.number, e.files, e.bytes_fast + e.bytes_slow)).collect()
        }
    }

    fn shuffled(files: std::ops::Range<u64>, random: &mut SmallRng) -> Vec<u64> {
        let mut all: Vec<u64> = files.collect();
        all.shuffle(random);
        all
    }

    #[test]
    fn passes_in_any_order_are_epochs() {
        let mut random = SmallRng::seed_from_u64(1);
        for files in [FILES_MIN, 20, 100, 5_000] {
            let mut reader = Reader::new();
            for _ in 0..4 {
                reader.read(shuffled(0..files, &mut random));
            }
            let wanted: Vec<_> = (1..=4).map(|number| (number, files, 120 * files)).collect();
            assert_eq!(reader.passes(), wanted, "{files} files");
            assert!(reader.epochs.recorded().iter().all(|e| e.open == (e.number == 4) && e.ended > e.began));
        }
    }

    /// An epoch of a second was told to last two minutes, because a validation came behind it.
    #[test]
    fn a_pause_between_two_passes_is_part_of_neither() {
        let mut reader = Reader::new();
        reader.read(0..100);
        let over = reader.now as f64 / 1e3;
        reader.now += 120_000;
        reader.read(0..100);
        let found = reader.epochs.recorded();
        let told = (found.len(), found[0].ended, found[1].began);
        assert!(told.0 == 2 && (told.1 - over).abs() < 0.01 && (told.2 - over - 120.0).abs() < 0.01, "{told:?}");
    }

    #[test]
    fn passes_that_overlap_a_little_are_found_with_a_boundary_that_is_off_by_as_much() {
        let mut random = SmallRng::seed_from_u64(2);
        let mut order: Vec<u64> = (0..3).flat_map(|_| shuffled(0..500, &mut random)).collect();
        // Eight workers that run up to eight files ahead of each other.
        for at in 0..order.len() - 8 {
            order.swap(at, at + random.random_range(0..8));
        }
        let mut reader = Reader::new();
        reader.read(order);
        let told = reader.passes();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(
            told.iter().all(|(_, files, bytes)| files.abs_diff(500) < 40 && bytes.abs_diff(60_000) < 4_800),
            "{told:?}"
        );
        assert_eq!(told.iter().map(|(.., bytes)| bytes).sum::<u64>(), 3 * 60_000, "each read is one's");
    }

    #[test]
    fn a_validation_set_that_is_read_in_between_makes_no_epochs() {
        let mut random = SmallRng::seed_from_u64(3);
        let mut reader = Reader::new();
        for _ in 0..3 {
            let train = shuffled(0..1_000, &mut random);
            for part in train.chunks(250) {
                reader.read(part.to_vec());
                reader.read(10_000..10_100);
            }
        }
        let told = reader.passes();
        // The last part may be the beginning of another pass: only later reads could tell.
        assert_eq!((told.len(), told[3].1), (4, 100), "{told:?}");
        assert!(told[..3].iter().all(|(_, files, _)| files.abs_diff(1_100) < 150), "{told:?}");
    }

    #[test]
    fn one_pass_or_a_few_files_read_again_are_none() {
        let mut reader = Reader::new();
        reader.read(0..10_000);
        assert!(reader.passes().is_empty());
        let mut reader = Reader::new();
        (0..50).for_each(|_| reader.read([1, 2, 3]));
        assert!(reader.passes().is_empty() && text(&reader.epochs.recorded()).is_empty());
    }

    #[test]
    fn the_table_fits_80_columns() {
        let mut reader = Reader::new();
        (0..3).for_each(|_| reader.read(0..200));
        let text = text(&reader.epochs.recorded());
        assert!(text.lines().all(|line| line.len() <= 80) && text.contains("3, not over"), "{text}");
    }
}
