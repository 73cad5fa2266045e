//! A large version is copied by all streams that have none of their own.
//!
//! The stream that found the version owns its copy: it makes the file and, when the others have finished, does all that
//! follows the bytes. The others copy pieces of it (`objects/joint_copy.rs`), about [`PART`] in one step; before the
//! next one a stream checks again whether there is a version for it, or fewer streams are allowed. A network file
//! system that gives each stream part of its bandwidth thus takes a single checkpoint file at full bandwidth.
//!
//! Only the owner reports errors. While any copy has failed no stream helps: a tier that takes the bytes of a file only
//! in order gets them so.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Errno;
use crate::tiers::disk::File;
use crate::tiers::objects::copy::NotCopied;
use crate::tiers::objects::joint_copy::{CopyEnd, CopyHelper, JointCopy, PieceDone};
use crate::tiers::objects::version::Content;
use crate::tiers::writeback::streams::Achieved;
use crate::tiers::{Lsn, Tiers, Wake};

/// Bytes of another stream's version that a stream copies in one step.
const PART: u64 = 16 << 20;
/// With less left than this, another stream would come too late.
const LEFT_MIN: u64 = 2 * PART;

/// A copy in progress that further streams can help with.
pub(super) struct LargeCopy {
    lsn: Lsn,
    content: Arc<Content>,
    file: Arc<dyn File>,
    copy: Arc<JointCopy>,
}

impl LargeCopy {
    /// Bytes left for another stream; none if the version was overwritten, whose copy would be wasted.
    fn left(&self) -> Option<u64> {
        let left = self.copy.left();
        (left >= LEFT_MIN && self.content.is_intact()).then_some(left)
    }
}

impl Tiers {
    /// Copies the bytes of a version together with the streams that help. Counts those that this stream copies.
    pub(super) fn copy_jointly(
        &self,
        lsn: Lsn,
        content: &Arc<Content>,
        (source, file): (Arc<dyn File>, &Arc<dyn File>),
        copied: &Cell<u64>,
    ) -> Result<CopyEnd, NotCopied> {
        let copy = JointCopy::begin(&self.writeback.means, (source, file.clone()), content.size)?;
        let is_large = copy.left() >= LEFT_MIN;
        if is_large {
            let (content, file, copy) = (content.clone(), file.clone(), copy.clone());
            self.writeback.large.lock().push(LargeCopy { lsn, content, file, copy });
            self.wake_some(Wake::AllStreams);
        }
        let mut measured = 0;
        copy.copy(&self.writeback.means, &mut |piece| {
            copied.set(copied.get() + piece.len);
            self.piece_copied(lsn, content.size, &**file, &piece)?;
            if copied.get() >= measured + PART && self.has_parts() {
                measured = copied.get();
                // Interrupts the round if programs wait for the slow tier.
                self.drain_streams();
                self.measure_streams();
            }
            Ok(true)
        });
        if is_large {
            self.writeback.large.lock().retain(|large| large.lsn != lsn);
        }
        copy.end()
    }

    /// Called after each written piece of a version. An error ends the copy.
    fn piece_copied(&self, lsn: Lsn, size: u64, file: &dyn File, piece: &PieceDone) -> std::io::Result<()> {
        if !self.is_pending(lsn) {
            return Err(Errno::ECANCELED.into());
        }
        let notes = &self.counters.notes;
        notes.written_upto(lsn, piece.upto);
        if notes.unsynced(lsn, piece.len) >= self.counters.second_of_copying() && piece.upto < size {
            let bytes = notes.sync_begins(lsn);
            file.sync()?;
            notes.arrived(lsn, piece.upto, bytes);
            self.counters.arrived(bytes, self.uptime());
        }
        self.keep_to_bandwidth(piece.len);
        Ok(())
    }

    /// Whether one version is so large that every stream can copy a part of it.
    pub(super) fn has_parts(&self) -> bool {
        let is_helped = !self.copies_nothing() && !self.counters.notes.has_failed_copies();
        is_helped && self.writeback.large.lock().iter().any(|large| large.left().is_some())
    }

    /// Copies a part of another stream's version. `false`: there was none, or no more streams are allowed.
    pub(super) fn help(&self, streams: u32) -> bool {
        if self.copies_nothing() || self.counters.notes.has_failed_copies() {
            return false;
        }
        let Some((LargeCopy { lsn, content, file, .. }, mut helper)) = self.next_to_help(streams) else { return false };
        let (cpu, mut copied) = (self.thread_cpu(), 0);
        helper.copy(&self.writeback.means, &mut |piece| {
            copied += piece.len;
            self.piece_copied(lsn, content.size, &*file, &piece)?;
            Ok(copied < PART)
        });
        // The owner waits for this before it removes a failed copy, so that no other thread has it open.
        drop((file, helper));
        self.counters.copies_cost(self.cpu_since(cpu), copied);
        if self.has_parts() {
            self.measure_streams();
        }
        copied > 0
    }

    /// The copy with the most left, unless as many streams help as are allowed.
    fn next_to_help(&self, streams: u32) -> Option<(LargeCopy, CopyHelper)> {
        let large = self.writeback.large.lock();
        if large.iter().map(|large| large.copy.streams()).sum::<u32>() >= streams {
            return None;
        }
        let (_, most) = large.iter().filter_map(|large| Some((large.left()?, large))).max_by_key(|(left, _)| *left)?;
        let LargeCopy { lsn, content, file, copy } = most;
        let found = LargeCopy { lsn: *lsn, content: content.clone(), file: file.clone(), copy: copy.clone() };
        Some((found, copy.help()))
    }

    /// Feeds throughput to the stream controller, and wakes streams that it newly allows: asleep they would not be
    /// measured.
    pub(super) fn measure_streams(&self) {
        let achieved =
            Achieved { files: self.counters.totals.drained_files.get(), bytes: self.counters.copied_bytes() };
        let more = {
            let mut streams = self.writeback.streams.lock();
            let before = streams.get();
            streams.copied(self.uptime(), achieved);
            streams.get() > before
        };
        if more {
            self.wake_some(Wake::AllStreams);
        }
    }

    /// Processor time of this thread since `then`.
    pub(super) fn cpu_since(&self, then: Option<Duration>) -> Option<Duration> {
        self.thread_cpu().zip(then).map(|(now, then)| now.saturating_sub(then))
    }
}
