//! The engine's side of the checkpoint index: feeds it events, answers queries from it, and keeps it from mount to
//! mount in `<fast>/.dlio-fs/checkpoints` (JSON).
//!
//! That file is only a hint: [`Tiers::tick`] and the end of the mount write it whenever a complete checkpoint has
//! changed. A start uses it unless the log contradicts it; the background looks up files that have changed since
//! ([`Tiers::check_remembered`]).

use std::collections::HashMap;
use std::time::Duration;

use crate::error::{Context, Error};
use crate::path::escape;
use crate::stats::checkpoints::Checkpoint;
use crate::tiers::checkpoints::bursts::{BeingWritten, LARGE, PAUSE};
use crate::tiers::checkpoints::index::{CheckpointStatus, GoingOn, Moment, PATH_KEPT, SavedIndex};
use crate::tiers::checkpoints::step::certain_step;
use crate::tiers::disk::layout::{OURS, read_text, replace_text};
use crate::tiers::model::event::Change;
use crate::tiers::model::state::EngineState;
use crate::tiers::pending::uncommitted;
use crate::tiers::{Cx, Ino, Lsn, Progress, Tiers};

const FILE: &[u8] = b"checkpoints";
/// How many files of earlier mounts are looked up at once.
const AT_ONCE: usize = 64;

impl Tiers {
    /// Ends a burst that is over, and saves changes of finished ones.
    pub(crate) fn update_checkpoints(&self, now: Duration) {
        let writing = self.being_written();
        let patience = self.options().live_after / 2;
        let saved = {
            let mut st = self.state.lock();
            let over = st.bursts.end_if_quiet(now, &writing, patience);
            st.learn(&over, self.stamp(Duration::ZERO));
            if !st.checkpoints.change(|index| index.pop_changed()) && over.is_empty() {
                return;
            }
            let moment = self.moment(&st, &writing);
            st.checkpoints.ask(|index| Some(index.saved(&moment)))
        };
        self.save_checkpoints(saved.as_ref());
    }

    /// Called at the end of the mount: nothing more will be written.
    pub fn end_checkpoints(&self) {
        let saved = {
            let st = self.state.lock();
            let moment = Moment { going_on: GoingOn::new(), ..self.moment(&st, &[]) };
            st.checkpoints.ask(|index| Some(index.saved(&moment)))
        };
        self.save_checkpoints(saved.as_ref());
    }

    /// The large files that are being written; empty unless a checkpoint is being written. A file that stays open from
    /// version to version is a log.
    pub(super) fn being_written(&self) -> Vec<BeingWritten> {
        let any = self.state.lock().bursts.being_written() > 0;
        if any { self.large_files_written() } else { Vec::new() }
    }

    /// A file of unknown size counts as large.
    fn large_files_written(&self) -> Vec<BeingWritten> {
        let mut files = uncommitted(&self.state.lock());
        files.retain(|(_, since, file)| {
            file.open_to_write_for(*since) <= PAUSE && self.size_at_once(file).is_none_or(|size| size >= LARGE)
        });
        let st = self.state.lock();
        let step = |ino: Ino| st.view.path(ino).and_then(|path| certain_step(&path));
        files.into_iter().map(|(ino, since, _)| BeingWritten { since, step: step(ino) }).collect()
    }

    pub(super) fn moment(&self, st: &EngineState, writing: &[BeingWritten]) -> Moment {
        let uncommitted =
            st.uncommitted.files().filter_map(|ino| st.view.path(ino)).filter(|path| path.len() <= PATH_KEPT).collect();
        Moment {
            now: self.stamp(self.uptime()),
            applied: if st.queue.is_empty() { Lsn::MAX } else { st.queue.applied() },
            going_on: st.bursts.joined_by(writing),
            fleet: self.order.name(),
            uptime: self.uptime(),
            uncommitted,
        }
    }

    pub(crate) fn checkpoint_statuses(&self) -> Vec<CheckpointStatus> {
        let writing = self.being_written();
        let st = self.state.lock();
        let moment = self.moment(&st, &writing);
        st.checkpoints.ask(|index| index.statuses(&moment))
    }

    /// All known checkpoints, the oldest first; the mount was made at the uptime `mounted_at`.
    pub fn checkpoints(&self, mounted_at: Duration) -> Vec<Checkpoint> {
        let mounted_at = self.stamp(mounted_at);
        let since_mount = |moment: Duration| match moment.checked_sub(mounted_at) {
            Some(since) => since.as_secs_f64(),
            None => -mounted_at.saturating_sub(moment).as_secs_f64(),
        };
        let all = self.checkpoint_statuses().into_iter().map(|one| Checkpoint {
            number: one.number,
            step: one.step,
            path: format!("/{}", escape(&one.path)),
            files: one.files,
            bytes: one.bytes,
            began: since_mount(one.began),
            absorbed: since_mount(one.last),
            durable: one.durable.map(since_mount),
            drained: one.published.map(since_mount),
            elsewhere: one.elsewhere.map(since_mount),
            complete: one.complete,
            whole: one.whole,
            incomplete: one.incomplete,
            safe: one.safe,
            verified: one.verified,
            current: one.current,
        });
        all.collect()
    }

    /// Whether a bug has turned the index off.
    pub fn has_no_checkpoints(&self) -> bool {
        self.state.lock().checkpoints.is_off()
    }

    /// How many checkpoints of this mount are no longer among them.
    pub fn forgotten_checkpoints(&self) -> u64 {
        self.state.lock().checkpoints.ask(|index| index.forgotten())
    }

    /// The path, from the root, of the newest checkpoint that is complete and wholly on the slow tier; in a fleet, with
    /// the parts of all members (`of_fleet.rs`). The caller must check that it still exists: it may date from the
    /// previous mount, or another member may have removed it.
    pub fn latest_safe(&self) -> Option<Vec<u8>> {
        let writing = self.being_written();
        let st = self.state.lock();
        let moment = self.moment(&st, &writing);
        st.checkpoints.ask(|index| index.latest_safe(&moment))
    }

    /// Notes that both copies of a file are equal.
    pub(crate) fn note_verified(&self, ino: Ino) {
        let mut st = self.state.lock();
        if let Some(path) = st.view.path(ino) {
            st.checkpoints.change(|index| index.verified(&path));
        }
    }

    /// Called at a start, before the log is replayed. `only_durable`: the machine was rebooted. Returns the burst of
    /// each version, by event.
    pub(crate) fn restore_checkpoints(&self, only_durable: bool) -> HashMap<Lsn, u64> {
        let ours = self.fast.dir(OURS).at_fast("open", "checkpoints");
        let saved = ours.and_then(|ours| read_text(&*ours, FILE)).map(|text| {
            let text = text?;
            let saved: SavedIndex = serde_json::from_str(&text).ok()?;
            Some((saved, text))
        });
        // An unreadable file is ignored.
        let Ok(Some((saved, text))) = saved else { return HashMap::new() };
        *self.counters.checkpoints.lock() = text;
        let mut st = self.state.lock();
        for (number, began, bytes) in st.checkpoints.change(|index| index.restore(saved, only_durable)) {
            st.bursts.resume(number, bytes);
            st.forecast.learn(began, bytes);
        }
        st.checkpoints.ask(|index| index.bursts_of_events())
    }

    /// Called at a start, after the log was replayed: the pending version of a path is the newest there. Versions that
    /// were published but not saved as such count as published now.
    pub(crate) fn expect_versions(&self, st: &mut EngineState, applied: Lsn) {
        st.checkpoints.change(|index| index.published(applied, self.stamp(self.uptime())));
        if st.checkpoints.ask(|index| index.has_no_files()) {
            return;
        }
        let newest = st.queue.events().iter().filter_map(|event| match &event.change {
            Change::Content { ino, .. } => Some((st.view.path(*ino)?, event.lsn)),
            _ => None,
        });
        let newest: HashMap<Vec<u8>, Lsn> = newest.filter(|(path, _)| path.len() <= PATH_KEPT).collect();
        newest.into_iter().for_each(|(path, lsn)| st.checkpoints.change(|index| index.expect_version(&path, lsn)));
    }

    /// Looks up some of the files that the previous mount knew as a checkpoint's. A changed file is lost to its
    /// checkpoint; one that cannot be looked up now is retried after all others, and holds up nothing else.
    pub(crate) fn check_remembered(&self) -> Progress {
        let some = self.state.lock().checkpoints.ask(|index| index.unchecked(AT_ONCE));
        let mut looked_up = 0;
        for (path, bytes) in &some {
            let size = || self.at_path(&Cx::internal(), path, |ino| Ok(self.getattr(&Cx::internal(), ino)?.size));
            match bytes.map(|bytes| (bytes, size())) {
                None => {}
                Some((bytes, Ok(size))) if size == bytes => {}
                Some((_, Ok(_) | Err(Error::Posix(_)))) => {
                    self.state.lock().checkpoints.change(|index| index.removed(path))
                }
                Some((_, Err(error))) => {
                    tracing::debug!(%error, path = escape(path), "a checkpoint's file cannot be looked up now");
                    // The next one may take as long to fail.
                    break;
                }
            }
            looked_up += 1;
        }
        let mut st = self.state.lock();
        st.checkpoints.change(|index| index.checked(looked_up));
        if looked_up < some.len() {
            st.checkpoints.change(|index| index.put_off());
        }
        if looked_up > 0 { Progress::Did } else { Progress::Idle }
    }

    fn save_checkpoints(&self, saved: Option<&SavedIndex>) {
        // The index is off: the last saved state stays.
        let Some(saved) = saved else { return };
        let Ok(text) = serde_json::to_string(saved) else { return };
        if *self.counters.checkpoints.lock() == text {
            return;
        }
        let ours = self.fast.dir(OURS).at_fast("open", "checkpoints");
        let done = ours.and_then(|ours| replace_text(&*ours, FILE, &text));
        match done {
            Ok(()) => *self.counters.checkpoints.lock() = text,
            // The next change saves it again.
            Err(error) => tracing::debug!(%error, "the checkpoints are not remembered"),
        }
    }
}
