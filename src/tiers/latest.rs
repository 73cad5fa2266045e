//! What the engine tells the book of checkpoints (`checkpoints.rs`), what it tells of it, and the newest safe one, which a small file
//! remembers from mount to mount: `<fast>/.dlio-fs/latest-safe`, one escaped path.
//!
//! That file is a help, no promise: it is written by [`Tiers::tick`], and whoever uses it looks whether the path is still there.

use std::time::Duration;

use crate::error::Context;
use crate::path::{escape, unescape};
use crate::stats::safe::Checkpoint;
use crate::tiers::checkpoints::{Moment, Told, Version};
use crate::tiers::identity::{read_text, replace_text};
use crate::tiers::names::OURS;
use crate::tiers::state::{Change, State};
use crate::tiers::{Ino, Lsn, Tiers};

const FILE: &[u8] = b"latest-safe";
/// A file that has got less so far holds no checkpoint open: logs are written to all the time.
const LARGE: u64 = 64 << 10;

impl Tiers {
    /// An event got its place in the log, and the view does not show it yet.
    pub(crate) fn note_checkpoint(&self, st: &mut State, lsn: Lsn, change: &Change) {
        let going_on = st.bursts.going_on();
        match change {
            Change::Content { ino, at, content } => {
                let Some(path) = st.view.path_at(at) else { return };
                let now = self.uptime();
                let began = st.uncommitted.get(ino).copied().unwrap_or(now);
                let (burst, bytes) = (content.burst, content.size);
                st.book.written(Version { burst, path, lsn, bytes, began, at: now });
            }
            Change::Rename { from, to, .. } => {
                if let (Some(from), Some(to)) = (st.view.path_at(from), st.view.path_at(to)) {
                    st.book.moved(&from, &to, lsn, going_on);
                }
            }
            Change::Exchange { a_at, b_at, .. } => {
                if let (Some(a), Some(b)) = (st.view.path_at(a_at), st.view.path_at(b_at)) {
                    st.book.exchanged(&a, &b, lsn, going_on);
                }
            }
            Change::Remove { at, .. } => {
                if let Some(path) = st.view.path_at(at) {
                    st.book.removed(&path);
                }
            }
            Change::Make { .. } | Change::Link { .. } | Change::SetAttr { .. } | Change::SetXattr { .. } => {}
        }
    }

    /// These events are at D1.
    pub(crate) fn note_sealed(&self, events: impl Iterator<Item = Lsn>) {
        self.state.lock().book.sealed(events, self.uptime());
    }

    /// Ends a burst that is over, and remembers the newest safe checkpoint if it is another.
    pub(crate) fn look_at_checkpoints(&self, now: Duration) {
        let writing = self.being_written();
        let patience = self.options().live_after / 2;
        let latest = {
            let mut st = self.state.lock();
            let over = st.bursts.end_if_quiet(now, &writing, patience);
            if let Some(over) = over {
                st.expected.learn(over.began, over.bytes);
            }
            if !st.book.take_changed() && over.is_none() {
                return;
            }
            let moment = self.moment(&st, &writing);
            st.book.latest_safe(&moment)
        };
        self.write_latest_safe(latest);
    }

    /// The first writes of the large files that are being written; none while no checkpoint is.
    fn being_written(&self) -> Vec<Duration> {
        let any = self.state.lock().bursts.being_written() > 0;
        if any { self.written_since(LARGE) } else { Vec::new() }
    }

    fn moment(&self, st: &State, writing: &[Duration]) -> Moment {
        let uncommitted = st.uncommitted.keys().filter_map(|ino| st.view.path(*ino)).collect();
        Moment {
            now: self.uptime(),
            applied: if st.events.is_empty() { Lsn::MAX } else { st.applied },
            going_on: st.bursts.going_on(),
            writing: st.bursts.is_joined_by(writing),
            uncommitted,
        }
    }

    pub(crate) fn told_checkpoints(&self) -> Vec<Told> {
        let writing = self.being_written();
        let st = self.state.lock();
        let moment = self.moment(&st, &writing);
        st.book.told(&moment)
    }

    /// All checkpoints since the mount was made, the oldest first; it was made at the uptime `mounted_at`.
    pub fn checkpoints(&self, mounted_at: Duration) -> Vec<Checkpoint> {
        let since_mount = |moment: Duration| moment.saturating_sub(mounted_at).as_secs_f64();
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
            safe: one.safe,
            verified: one.verified,
            current: one.current,
        });
        told.collect()
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

    /// At a start.
    pub(crate) fn remember_latest_safe(&self) {
        let ours = self.fast.dir(OURS).at_fast("open", "latest-safe");
        let text = ours.and_then(|ours| read_text(&*ours, FILE));
        // What nobody wrote is nothing to go by.
        let path = text.ok().flatten().and_then(|text| unescape(text.trim_end())).filter(|path| !path.is_empty());
        if let Some(path) = path {
            *self.counters.latest_safe.lock() = Some(path.clone());
            self.state.lock().book.remember(path);
        }
    }

    fn write_latest_safe(&self, latest: Option<Vec<u8>>) {
        if *self.counters.latest_safe.lock() == latest {
            return;
        }
        let text = latest.as_deref().map_or(String::new(), |path| escape(path) + "\n");
        let ours = self.fast.dir(OURS).at_fast("open", "latest-safe");
        let done = ours.and_then(|ours| replace_text(&*ours, FILE, &text));
        match done {
            Ok(()) => *self.counters.latest_safe.lock() = latest,
            // The next checkpoint is written down again.
            Err(error) => tracing::debug!(%error, "the newest safe checkpoint is not remembered"),
        }
    }
}
