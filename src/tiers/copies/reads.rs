//! Files that were read to their end from the slow tier, and wait to be promoted.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::tiers::disk::sync::Mutex;
use crate::tiers::objects::file::Bytes;
use crate::tiers::{Ino, OpenFile, Tiers};

/// A file that was read to its end from the slow tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) ino: Ino,
    pub(crate) bytes: u64,
    /// For `rounds::replaces`.
    pub(crate) interval: Option<Duration>,
}

/// Most bytes of files that may wait to be promoted: roughly what the page cache may still hold of them.
const PROMOTE_MAX: u64 = 256 << 20;

/// Files that wait to be promoted, oldest first. Each is listed once, however often it is read meanwhile: several
/// streams promote, and two of them would copy the same file.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    waiting: Mutex<WaitingReads>,
    passed_over: AtomicU64,
}

#[derive(Debug, Default)]
struct WaitingReads {
    reads: VecDeque<Read>,
    /// The sum of their sizes.
    bytes: u64,
    /// The files that wait or are being promoted.
    known: HashSet<Ino>,
}

impl Reads {
    /// Adds a file that neither waits nor is being promoted; skips it if too many bytes wait.
    pub(crate) fn push(&self, read: Read) {
        let mut waiting = self.waiting.lock();
        if waiting.known.contains(&read.ino) {
            return;
        }
        if waiting.bytes + read.bytes > PROMOTE_MAX {
            return self.pass_over();
        }
        waiting.known.insert(read.ino);
        waiting.bytes += read.bytes;
        waiting.reads.push_back(read);
    }

    /// The next file to promote. The caller calls [`Reads::done`] afterwards.
    pub(crate) fn pop(&self) -> Option<Read> {
        let mut waiting = self.waiting.lock();
        let read = waiting.reads.pop_front()?;
        waiting.bytes -= read.bytes;
        Some(read)
    }

    pub(crate) fn done(&self, read: &Read) {
        self.waiting.lock().known.remove(&read.ino);
    }

    /// Counts a file that was not promoted.
    pub(crate) fn pass_over(&self) {
        self.passed_over.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn passed_over(&self) -> u64 {
        self.passed_over.load(Ordering::Relaxed)
    }
}

impl Tiers {
    /// Called when a handle is released. Notes a file that was read to its end through it; returns one that was read
    /// from the slow tier, to be promoted while the page cache has it.
    pub(crate) fn note_reading(&self, file: &OpenFile) -> Option<Read> {
        let read = file.read.load(Ordering::Relaxed);
        let options = self.options();
        if read == 0 || file.mode.write || (!options.rules.promotes_any() && self.copies.extent().0 == 0) {
            return None;
        }
        let (bytes, dir) = {
            let st = self.state.lock();
            let node = st.view.get(file.ino)?;
            (node.meta().size, node.links.first()?.0)
        };
        let number = self.copy_number(file.ino).filter(|_| read >= bytes)?;
        let from_slow = file.state.io.try_read().is_some_and(|io| io.place == Bytes::Slow && io.copy.is_none());
        let interval = self.copies.was_read(number, dir, self.uptime());
        (from_slow && options.rules.promotes(|| self.path(file.ino))).then_some(Read { ino: file.ino, bytes, interval })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_read_again_before_it_is_promoted_waits_once() {
        let reads = Reads::default();
        let read = Read { ino: 7, bytes: 100, interval: None };
        reads.push(read);
        reads.push(read);
        let first = reads.pop().expect("it waits");
        reads.push(read);
        assert!(reads.pop().is_none(), "it is being promoted");
        reads.done(&first);
        reads.push(read);
        assert!(reads.pop().is_some(), "the last attempt may have failed");
        assert_eq!(reads.passed_over(), 0);
    }
}
