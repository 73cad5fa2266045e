//! Step 3 of a start: finishes the group that the last daemon had begun to publish. `recovery/start.rs` has the steps
//! before and after.

use foldhash::{HashMap, HashMapExt};

use crate::error::{Errno, Error, Result};
use crate::path::escape;
use crate::tiers::disk::errors::is_elsewhere;
use crate::tiers::disk::{FileId, MetadataOrder, NewAttr, Time};
use crate::tiers::log::record::{Record, Step};
use crate::tiers::recovery::state::{Half, Recovery};
use crate::tiers::writeback::open_tree::OpenTree;
use crate::tiers::writeback::step::{Met, SyncSet, go_on_beside, step_path};
use crate::tiers::{Ino, Lsn};

/// Files that the last daemon has written in place while changes of their times were pending, by slow inode number: the
/// whole identity, and the time of the write. Only the last daemon's: the groups of earlier daemons are finished, and
/// the last daemon's own plans include the earlier writes.
fn written_in_place(records: &[(Lsn, Record)], applied: Lsn) -> HashMap<u64, (FileId, Time)> {
    let started = records.iter().rposition(|(_, record)| matches!(record, Record::Start { .. })).unwrap_or(0);
    let mut last: HashMap<Ino, (FileId, Time)> = HashMap::new();
    for (_, record) in records.iter().skip(started).filter(|(lsn, _)| *lsn > applied) {
        match record {
            Record::InPlace { ino, slow, mtime } => drop(last.insert(*ino, (*slow, *mtime))),
            Record::SetAttr { ino, new, .. } if new.mtime.is_some() => drop(last.remove(ino)),
            _ => {}
        }
    }
    last.into_values().map(|(slow, mtime)| (slow.ino, (slow, mtime))).collect()
}

impl Recovery<'_> {
    /// Step 3. Applies every step, or finds it applied, by the inode numbers it names, up to one that is refused or has
    /// nothing to place. If that batch is partly done or not durable, or a step behind it is done, the daemon takes it
    /// over; batches that have not begun are replayed as other events. Returns the steps that are finished for good.
    pub(super) fn finish_intents(&mut self) -> Result<Vec<Step>> {
        self.applied = Record::applied(self.records.iter().map(|(_, record)| record));
        let written = written_in_place(&self.records, self.applied);
        let as_written = |step: &Step| {
            let mut step = step.clone();
            if let Step::Attr { id, new: NewAttr { mtime: Some(mtime), .. }, .. } = &mut step
                && let Some((_, written)) = written.get(&id.ino).filter(|(slow, _)| slow == id)
            {
                *mtime = *written;
            }
            step
        };
        let unfinished = Record::unfinished(&self.records).into_iter();
        let mut group: Vec<(Lsn, Step)> = unfinished.map(|(upto, step)| (upto, as_written(&step))).collect();
        let (met, durable) = self.apply_group(&mut group);
        let batch = |at: usize| group.get(at).map(|(upto, _)| *upto);
        let of_batch = |one: usize, other: usize| batch(one) == batch(other);
        let mut finished = if durable { met.len() } else { 0 };
        while durable && finished > 0 && met.len() < group.len() && of_batch(finished - 1, met.len()) {
            finished -= 1;
        }
        let done = met.len() + self.seen_done(group.get(met.len()..).unwrap_or_default())?;
        let mut end = done;
        while done > 0 && end < group.len() && of_batch(end, done - 1) {
            end += 1;
        }
        if done > finished
            && let Some(upto) = batch(end - 1)
        {
            let steps = group.iter().take(end).skip(finished).map(|(_, step)| step.clone()).collect();
            let met = met.into_iter().skip(finished).collect();
            self.half = Some(Half { upto, steps, met, done: done - finished });
        }
        let applied = group.iter().take(finished).next_back().map_or(0, |(upto, _)| *upto);
        self.applied = self.applied.max(applied);
        self.tiers.state.lock().queue.start_behind(self.applied);
        Ok(group.into_iter().take(finished).map(|(_, step)| step).collect())
    }

    /// What each step met, and whether all of them are durable.
    fn apply_group(&mut self, group: &mut [(Lsn, Step)]) -> (Vec<Met>, bool) {
        let (mut met, mut touched) = (Vec::new(), SyncSet::default());
        let tree = OpenTree::new(&self.tiers.slow);
        for at in 0..group.len() {
            let (applied, rest) = group.split_at_mut(at + 1);
            let Some((_, step)) = applied.last() else { break };
            let path = escape(step_path(step));
            match tree.apply(step, None) {
                Ok(Met::Lacking) => {
                    tracing::warn!(
                        path,
                        "somebody else removed a file to be published from .dlio-fs/tmp on the slow tier; it is copied again"
                    );
                    break;
                }
                Ok(Met::Apart) => {
                    self.refused = Some(Error::io("finish publishing", path, Errno::EXDEV.into()));
                    break;
                }
                Ok(found) => {
                    go_on_beside((step, &found), rest.iter_mut().map(|(_, step)| step));
                    met.push(found);
                }
                Err(e) => {
                    self.refused = Some(Error::io("finish publishing", path, e));
                    break;
                }
            }
            touched.add(step);
            // Two file systems do not order their writes between them.
            let in_order = self.tiers.slow.root.order() == MetadataOrder::Journaled && self.tiers.slow.parts.is_empty();
            if !in_order && !self.is_synced(&tree, &mut touched) {
                let done = self.done_already(group.get(met.len()..).unwrap_or_default());
                met.extend(std::iter::repeat_with(|| Met::Expected).take(done));
                return (met, false);
            }
        }
        let durable = self.is_synced(&tree, &mut touched);
        (met, durable)
    }

    /// How many of these steps the previous daemon has done. Applies none itself, because the earlier ones are not
    /// durable.
    fn done_already(&self, steps: &[(Lsn, Step)]) -> usize {
        let (mut done, tree) = (0, OpenTree::new(&self.tiers.slow));
        for (at, (_, step)) in steps.iter().enumerate() {
            match tree.has_applied(step) {
                Ok(Some(true)) => done = at + 1,
                // Attributes alone prove nothing.
                Ok(None) => {}
                Ok(Some(false)) | Err(_) => break,
            }
        }
        done
    }

    /// How many of these steps the previous daemon has done, although the first one is not found done: its node may be
    /// gone again, or the slow tier may not have answered. A replay would repeat the steps on their own results. If a
    /// check fails, the answer is unknown, and the start fails, as it does where the replay cannot look.
    fn seen_done(&self, steps: &[(Lsn, Step)]) -> Result<usize> {
        let tree = OpenTree::new(&self.tiers.slow);
        for (at, (_, step)) in steps.iter().enumerate().rev() {
            match tree.is_seen_done(step) {
                Ok(true) => return Ok(at + 1),
                Ok(false) => {}
                Err(e) if is_elsewhere(&e) => {}
                Err(e) => return Err(Error::io("look on slow", "what a change that was under way has led to", e)),
            }
        }
        Ok(0)
    }

    fn is_synced(&mut self, tree: &OpenTree<'_>, touched: &mut SyncSet) -> bool {
        let failed = touched.sync(tree).err();
        let synced = failed.is_none();
        self.refused = self.refused.take().or(failed);
        synced
    }
}
