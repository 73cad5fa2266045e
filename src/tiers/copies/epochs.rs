//! Tracks which staged copies are durable. They are synced in batches: an fsync of each would cost more than the copy.
//!
//! A copy is given the number of its *sync epoch*, and a sync of the whole file system ends an epoch. A copy counts if
//! its epoch belongs to this mount, for which the kernel has the bytes even if the disk does not, or is recorded in
//! `staged/epochs`:
//!
//! 1. before its first copy, a mount records in that file that it takes the next epochs, and syncs the file;
//! 2. a copy gets its epoch when all its bytes are written;
//! 3. the epoch ends: later copies get the next one;
//! 4. the file system is synced;
//! 5. the file records that the epochs of this mount up to the ended one are durable, and takes one more in advance.
//!
//! A crash after any step costs the copies of the epochs that the file does not name: no mount reuses their numbers,
//! and a mount that finds such a copy removes it. If step 4 or 5 fails, the epoch's copies no longer count, and the
//! mount takes new epochs: a later sync does not repair a failed one.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::tiers::disk::Dir;
use crate::tiers::disk::layout::{read_text, replace_text};
use crate::tiers::disk::sync::{Mutex, Rank};

const FILE: &[u8] = b"epochs";
/// How many mounts keep a record of their durable epochs. Copies of older mounts no longer count.
const SPANS_KEPT: usize = 1_000;
/// The longest time a copy waits for the others of its epoch.
const EPOCH: Duration = Duration::from_secs(5);
/// The longest wait while a checkpoint is being written, which a sync of the file system would slow down.
const EPOCH_BESIDE_CHECKPOINT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct CopyEpochs {
    dir: Arc<dyn Dir>,
    epochs: Mutex<SyncEpochs>,
    /// Held while epochs are taken or ended.
    writing: Mutex<()>,
}

/// The rules alone, without I/O: what to write and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SyncEpochs {
    /// First and last epoch of each mount that synced any, the oldest first.
    spans: Vec<(u64, u64)>,
    /// The first epoch that no earlier mount has used.
    next: u64,
    /// This mount's first epoch and the current one.
    ours: Option<(u64, u64)>,
    /// When the first copy of the current epoch asked for its number.
    since: Option<Duration>,
}

impl SyncEpochs {
    /// `fallback`: an epoch that no earlier mount can have used.
    fn parse(text: Option<&str>, fallback: u64) -> Self {
        let parse = |text: &str| {
            let mut lines = text.lines();
            let next = lines.next()?.strip_prefix("next ")?.parse().ok()?;
            let spans = lines.map(|line| {
                let (first, last) = line.split_once(' ')?;
                Some((first.parse().ok()?, last.parse().ok()?))
            });
            Some(SyncEpochs { spans: spans.collect::<Option<_>>()?, next, ..SyncEpochs::default() })
        };
        text.and_then(parse).unwrap_or(SyncEpochs { next: fallback, ..SyncEpochs::default() })
    }

    /// `ahead`: how many epochs after the current one are taken.
    fn text(&self, ahead: u64) -> String {
        let next = self.ours.map_or(self.next, |(_, now)| now + 1 + ahead);
        let mut text = format!("next {next}\n");
        for (first, last) in self.spans.iter().skip(self.spans.len().saturating_sub(SPANS_KEPT)) {
            writeln!(text, "{first} {last}").expect("formatting into memory");
        }
        text
    }

    fn counts(&self, epoch: u64) -> bool {
        self.ours.is_some_and(|(first, now)| (first..=now).contains(&epoch))
            || self.spans.iter().any(|(first, last)| (first..=last).contains(&&epoch))
    }

    /// Step 1, unless it is done.
    fn take(&mut self) {
        self.ours.get_or_insert((self.next, self.next));
    }

    fn is_due(&self, now: Duration, beside_checkpoint: impl FnOnce() -> bool) -> bool {
        let Some(since) = self.since else { return false };
        now >= since + EPOCH && (now >= since + EPOCH_BESIDE_CHECKPOINT || !beside_checkpoint())
    }

    /// Step 3. Returns the epoch that ended.
    fn end(&mut self) -> Option<u64> {
        let (_, now) = self.ours.as_mut()?;
        self.since = None;
        *now += 1;
        Some(*now - 1)
    }

    /// Step 5.
    fn synced(&mut self, epoch: u64) {
        let Some((first, _)) = self.ours else { return };
        match self.spans.last_mut().filter(|span| span.0 == first) {
            Some(span) => span.1 = epoch,
            None => self.spans.push((first, epoch)),
        }
    }

    /// Unsynced epochs no longer count, including copies made meanwhile. Takes new epochs next.
    fn failed(&mut self) {
        if let Some((_, now)) = self.ours.take() {
            self.next = now + 1;
        }
        self.since = None;
    }
}

impl CopyEpochs {
    /// `now`: wall-clock time in seconds.
    pub(crate) fn open(dir: Arc<dyn Dir>, now: u64) -> Result<Self> {
        let epochs = SyncEpochs::parse(read_text(&*dir, FILE)?.as_deref(), now);
        let known = CopyEpochs { dir, epochs: Mutex::default(), writing: Mutex::new(Rank::Publishing, ()) };
        *known.epochs.lock() = epochs;
        Ok(known)
    }

    /// Whether a copy of this epoch certainly has the bytes it was made with.
    pub(crate) fn counts(&self, epoch: u64) -> bool {
        self.epochs.lock().counts(epoch)
    }

    /// The epoch of a copy whose bytes are all written (2). Call it without locks: the first copy of a mount waits for
    /// the disk.
    pub(crate) fn epoch(&self, now: Duration) -> Result<u64> {
        let under_way = || {
            let mut epochs = self.epochs.lock();
            let (_, epoch) = epochs.ours?;
            epochs.since.get_or_insert(now);
            Some(epoch)
        };
        if let Some(epoch) = under_way() {
            return Ok(epoch);
        }
        let _one_at_a_time = self.writing.lock();
        if let Some(epoch) = under_way() {
            return Ok(epoch);
        }
        let mut wanted = self.epochs.lock().clone();
        wanted.take(); // 1
        replace_text(&*self.dir, FILE, &wanted.text(1))?;
        let mut epochs = self.epochs.lock();
        epochs.take();
        epochs.since = Some(now);
        Ok(epochs.next)
    }

    /// Whether the current epoch has waited long enough.
    pub(crate) fn is_due(&self, now: Duration, beside_checkpoint: impl FnOnce() -> bool) -> bool {
        // `beside_checkpoint` is called without the lock: it takes the engine's.
        let epochs = SyncEpochs { since: self.epochs.lock().since, ..SyncEpochs::default() };
        epochs.is_due(now, beside_checkpoint)
    }

    /// Makes all copies durable that were finished before the call. After an error they no longer count.
    pub(crate) fn sync(&self) -> Result<()> {
        let _one_at_a_time = self.writing.lock();
        let ended = {
            let mut epochs = self.epochs.lock();
            if epochs.since.is_none() { None } else { epochs.end() } // 3
        };
        let Some(ended) = ended else { return Ok(()) };
        let mut wanted = self.epochs.lock().clone();
        wanted.synced(ended);
        let synced = self.dir.sync_all().map_err(|e| Error::io_on_fast("sync", "staged copies", e)); // 4
        let synced = synced.and_then(|()| replace_text(&*self.dir, FILE, &wanted.text(1))); // 5
        let mut epochs = self.epochs.lock();
        match synced {
            Ok(()) => epochs.synced(ended),
            Err(_) => epochs.failed(),
        }
        synced
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// One event in the life of a mount's epochs.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Copy,
        Sync,
        FailedSync,
        /// The next mount reads the file.
        Remount,
        /// The sync is done, but the file is not written.
        CutAfterSync,
    }

    fn any_step(random: &mut SmallRng) -> Step {
        match random.random_range(0..9) {
            0..4 => Step::Copy,
            4 | 5 => Step::Sync,
            6 => Step::FailedSync,
            7 => Step::Remount,
            _ => Step::CutAfterSync,
        }
    }

    /// The file and the epochs of one mount, like those of `CopyEpochs`.
    struct Mount {
        file: Option<String>,
        epochs: SyncEpochs,
    }

    impl Mount {
        fn epoch(&mut self) -> u64 {
            if self.epochs.ours.is_none() {
                let mut wanted = self.epochs.clone();
                wanted.take();
                self.file = Some(wanted.text(1));
                self.epochs.take();
            }
            self.epochs.ours.expect("it takes them first").1
        }
    }

    /// A copy: its epoch, whether it was synced, and whether its bytes may be lost.
    #[derive(Clone, Copy)]
    struct Made {
        epoch: u64,
        synced: bool,
        lost: bool,
    }

    #[test]
    fn what_counts_was_synced_or_is_this_mount_s() {
        for seed in 0..2_000 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut mount = Mount { file: None, epochs: SyncEpochs::parse(None, 1_000) };
            let mut copies: Vec<Made> = Vec::new();
            for _ in 0..60 {
                let step = any_step(&mut random);
                let lose = |copies: &mut Vec<Made>| copies.iter_mut().for_each(|copy| copy.lost |= !copy.synced);
                // A copy that is made while a sync runs.
                let beside = |mount: &Mount| Made {
                    epoch: mount.epochs.ours.expect("one is ended").1,
                    synced: false,
                    lost: false,
                };
                match step {
                    Step::Copy => copies.push(Made { epoch: mount.epoch(), synced: false, lost: false }),
                    Step::Sync => {
                        let Some(ended) = mount.epochs.end() else { continue };
                        mount.epochs.synced(ended);
                        mount.file = Some(mount.epochs.text(1));
                        copies.iter_mut().for_each(|copy| copy.synced |= !copy.lost);
                    }
                    Step::FailedSync => {
                        if mount.epochs.end().is_some() {
                            copies.push(beside(&mount));
                            mount.epochs.failed();
                            lose(&mut copies);
                        }
                    }
                    Step::CutAfterSync | Step::Remount => {
                        if let (Step::CutAfterSync, Some(ended)) = (step, mount.epochs.end()) {
                            copies.push(beside(&mount));
                            mount.epochs.synced(ended);
                        }
                        lose(&mut copies);
                        mount.epochs = SyncEpochs::parse(mount.file.as_deref(), 1_000);
                    }
                }
                for Made { epoch, synced, lost } in &copies {
                    assert!(!lost || !mount.epochs.counts(*epoch), "seed {seed}: a lost copy of epoch {epoch} counts");
                    assert!(!synced || mount.epochs.counts(*epoch), "seed {seed}: a durable one of {epoch} does not");
                }
            }
        }
    }

    #[test]
    fn an_epoch_is_due_after_a_while_and_later_beside_a_checkpoint() {
        let due = |since: Option<u64>, now: u64, beside| {
            let epochs = SyncEpochs { since: since.map(Duration::from_secs), ..SyncEpochs::default() };
            epochs.is_due(Duration::from_secs(now), || beside)
        };
        assert!(!due(None, 1_000, false));
        assert!(!due(Some(10), 14, false) && due(Some(10), 15, false));
        assert!(!due(Some(10), 69, true) && due(Some(10), 70, true));
    }

    #[test]
    fn a_file_that_cannot_be_read_starts_behind_all_that_was() {
        for text in [None, Some(""), Some("next x\n"), Some("next 5\n1 2 3\n"), Some("5\n")] {
            let epochs = SyncEpochs::parse(text, 1_700_000_000);
            assert!(epochs.next == 1_700_000_000 && epochs.spans.is_empty(), "{text:?}");
        }
        let epochs = SyncEpochs::parse(Some("next 9\n1 3\n7 7\n"), 1);
        assert!(epochs.next == 9 && epochs.counts(2) && epochs.counts(7) && !epochs.counts(5) && !epochs.counts(9));
    }
}
