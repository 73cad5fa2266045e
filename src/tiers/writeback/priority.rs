//! Priority: the bytes of an event with priority are copied before all others.
//!
//! Publishing stays in order (P1): the event is published after everything before it, so no event up to it waits for
//! `settle`.

use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::tiers::model::queue::QueuedVersion;
use crate::tiers::model::state::EngineState;
use crate::tiers::{Cx, Ino, Tiers};

impl Tiers {
    /// Gives priority to the newest event at or below `ino` and to everything before it, and copies its bytes before
    /// all others. Uncommitted writes to the file get their place in the order first. Returns how many events have to
    /// be published; `None` if nothing there is pending.
    pub fn prioritize(&self, cx: &Cx, ino: Ino) -> Result<Option<u64>> {
        let file = self.state.lock().known_file(ino);
        // Only a sync accepts a write that a crash cut off.
        if let Some(file) = file.filter(|file| !file.io.read().interrupted) {
            self.commit(cx, &file)?;
        }
        let Some(lsn) = self.pending_below(ino) else { return Ok(None) };
        let notes = &self.counters.notes;
        notes.priority_ino.store(ino, Ordering::Relaxed);
        notes.priority_lsn.store(lsn, Ordering::Relaxed);
        let before = self.state.lock().queue.events().iter().take_while(|event| event.lsn <= lsn).count() as u64;
        self.wake();
        Ok(Some(before))
    }

    /// The version to copy first: the newest of the file that has priority.
    pub(crate) fn first_to_copy(&self, st: &EngineState) -> Option<(Ino, QueuedVersion)> {
        let ino = self.counters.notes.priority_ino.load(Ordering::Relaxed);
        let (lsn, content) = st.queue.newest_version(ino)?;
        let wanted = *lsn <= self.counters.notes.priority_lsn()
            && content.is_sealed()
            && content.is_intact()
            && !content.is_copied();
        wanted.then(|| (ino, (*lsn, content.clone())))
    }
}
