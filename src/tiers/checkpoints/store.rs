//! What the engine tells the index of checkpoints and what it answers from it, and how the index is remembered from mount to mount:
//! `<fast>/.dlio-fs/checkpoints`, JSON.
//!
//! That file is a help, no promise: it is written by [`Tiers::tick`] and at the end, each time that something is new about a checkpoint
//! that is complete. A start believes of it what the log does not contradict; what became of files that were changed since, the background
//! looks up ([`Tiers::check_remembered`]).

use std::collections::HashMap;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::path::escape;
use crate::stats::safe::Checkpoint;
use crate::tiers::checkpoints::index::{CheckpointStatus, Moment, SavedIndex};
use crate::tiers::disk::layout::{OURS, read_text, replace_text};
use crate::tiers::model::state::{Change, EngineState};
use crate::tiers::{Cx, Ino, Lsn, Progress, Tiers};

const FILE: &[u8] = b"checkpoints";
/// Of the time before, which became of files is looked up so many at a time.
const AT_ONCE: usize = 64;
/// A file that has got less so far holds no checkpoint open: logs are written to all the time.
const LARGE: u64 = 64 << 10;

impl Tiers {
    /// Ends a burst that is over, and writes down what is new about those that are.
    pub(crate) fn look_at_checkpoints(&self, now: Duration) {
        let writing = self.being_written();
        let patience = self.options().live_after / 2;
        let saved = {
            let mut st = self.state.lock();
            let over = st.bursts.end_if_quiet(now, &writing, patience);
            if let Some(over) = over {
                st.expected.learn(self.stamp(over.began), over.bytes);
            }
            if !st.book.take_changed() && over.is_none() {
                return;
            }
            let moment = self.moment(&st, &writing);
            st.book.saved(&moment)
        };
        self.save_checkpoints(&saved);
    }

    /// When the mount comes to its end: nothing more will be written.
    pub fn end_checkpoints(&self) {
        let saved = {
            let st = self.state.lock();
            let moment = Moment { going_on: None, ..self.moment(&st, &[]) };
            st.book.saved(&moment)
        };
        self.save_checkpoints(&saved);
    }

    /// The first writes of the large files that are being written; none while no checkpoint is.
    fn being_written(&self) -> Vec<Duration> {
        let any = self.state.lock().bursts.being_written() > 0;
        if any { self.written_since(LARGE) } else { Vec::new() }
    }

    fn moment(&self, st: &EngineState, writing: &[Duration]) -> Moment {
        let uncommitted = st.uncommitted.keys().filter_map(|ino| st.view.path(*ino)).collect();
        Moment {
            now: self.stamp(self.uptime()),
            applied: if st.events.is_empty() { Lsn::MAX } else { st.applied },
            going_on: st.bursts.going_on(),
            writing: st.bursts.is_joined_by(writing),
            uncommitted,
        }
    }

    pub(crate) fn told_checkpoints(&self) -> Vec<CheckpointStatus> {
        let writing = self.being_written();
        let st = self.state.lock();
        let moment = self.moment(&st, &writing);
        st.book.told(&moment)
    }

    /// All checkpoints that are known, the oldest first; the mount was made at the uptime `mounted_at`.
    pub fn checkpoints(&self, mounted_at: Duration) -> Vec<Checkpoint> {
        let mounted_at = self.stamp(mounted_at);
        let since_mount = |moment: Duration| match moment.checked_sub(mounted_at) {
            Some(since) => since.as_secs_f64(),
            None => -mounted_at.saturating_sub(moment).as_secs_f64(),
        };
        let told = self.told_checkpoints().into_iter().map(|one| Checkpoint {
            number: one.number,
            step: one.step,
            path: format!("/{}", escape(&one.path)),
            files: one.files,
            bytes: one.bytes,
            began: since_mount(one.began),
            absorbed: since_mount(one.last),
            durable: one.durable.map(since_mount),
            drained: one.published.map(since_mount),
            complete: one.complete,
            whole: one.whole,
            incomplete: one.incomplete,
            safe: one.safe,
            verified: one.verified,
            current: one.current,
        });
        told.collect()
    }

    /// How many checkpoints of this mount are not among them any more.
    pub fn forgotten_checkpoints(&self) -> u64 {
        self.state.lock().book.forgotten()
    }

    /// The path, from the root, of the newest checkpoint that is complete and wholly on the slow tier. Whether it is still there is for
    /// the caller to see: the mount before this one may have remembered it.
    pub fn latest_safe(&self) -> Option<Vec<u8>> {
        let writing = self.being_written();
        let st = self.state.lock();
        let moment = self.moment(&st, &writing);
        st.book.latest_safe(&moment)
    }

    /// Both copies of a file are the same.
    pub(crate) fn note_verified(&self, ino: Ino) {
        let mut st = self.state.lock();
        if let Some(path) = st.view.path(ino) {
            st.book.verified(&path);
        }
    }

    /// At a start, before the log is replayed. `only_durable`: the machine was started anew. Returns the bursts of versions, by their events.
    pub(crate) fn restore_checkpoints(&self, only_durable: bool) -> HashMap<Lsn, u64> {
        let ours = self.fast.dir(OURS).at_fast("open", "checkpoints");
        let saved = ours.and_then(|ours| read_text(&*ours, FILE)).map(|text| {
            let text = text?;
            let saved: SavedIndex = serde_json::from_str(&text).ok()?;
            Some((saved, text))
        });
        // What nobody can read is nothing to go by.
        let Ok(Some((saved, text))) = saved else { return HashMap::new() };
        *self.counters.checkpoints.lock() = text;
        let mut st = self.state.lock();
        for (number, began, bytes) in st.book.restore(saved, only_durable) {
            st.bursts.resume(number, bytes);
            st.expected.learn(began, bytes);
        }
        st.book.bursts_of_events()
    }

    /// At a start, when the log has been replayed: what is on its way to a path is the newest there. What was published before that, but
    /// not written down, was so at the latest by now.
    pub(crate) fn expect_versions(&self, st: &mut EngineState, applied: Lsn) {
        st.book.published(applied, self.stamp(self.uptime()));
        if st.book.has_no_files() {
            return;
        }
        let newest = st.events.iter().filter_map(|event| match &event.change {
            Change::Content { ino, .. } => Some((st.view.path(*ino)?, event.lsn)),
            _ => None,
        });
        let newest: HashMap<Vec<u8>, Lsn> = newest.collect();
        newest.into_iter().for_each(|(path, lsn)| st.book.expect_version(&path, lsn));
    }

    /// Looks up some of the files that the mount before this one knew to be a checkpoint's. One that is not there as it was is lost to it.
    pub(crate) fn check_remembered(&self) -> Result<Progress> {
        let some = self.state.lock().book.unchecked(AT_ONCE);
        if some.is_empty() {
            return Ok(Progress::Idle);
        }
        for (path, bytes) in some {
            let Some(bytes) = bytes else { continue };
            let size = self.at_path(&Cx::internal(), &path, |ino| Ok(self.getattr(&Cx::internal(), ino)?.size));
            match size {
                Ok(size) if size == bytes => {}
                Ok(_) | Err(Error::Posix(_)) => self.state.lock().book.removed(&path),
                Err(error) => return Err(error),
            }
        }
        self.state.lock().book.checked(AT_ONCE);
        Ok(Progress::Did)
    }

    fn save_checkpoints(&self, saved: &SavedIndex) {
        let Ok(text) = serde_json::to_string(saved) else { return };
        if *self.counters.checkpoints.lock() == text {
            return;
        }
        let ours = self.fast.dir(OURS).at_fast("open", "checkpoints");
        let done = ours.and_then(|ours| replace_text(&*ours, FILE, &text));
        match done {
            Ok(()) => *self.counters.checkpoints.lock() = text,
            // The next one is written down again.
            Err(error) => tracing::debug!(%error, "the checkpoints are not remembered"),
        }
    }
}
