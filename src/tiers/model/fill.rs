//! Which batches go into a new directory before it is placed (`writeback/fill.rs`). Pure.
//!
//! They must be new names below the directory for nodes that the slow tier does not have: then the slow tree without
//! the directory is the state before all of them, and the tree with it the state behind all of them.

use std::collections::HashSet;

use crate::tiers::disk::Kind;
use crate::tiers::log::record::Spec;
use crate::tiers::model::event::{Change, Event};
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::publish_plan::Batch;
use crate::tiers::model::state::EngineState;
use crate::tiers::{Ino, Lsn};

/// How many events one directory takes in. Later ones are published into the placed directory, in their turn.
const EVENTS_MAX: usize = 4096;
/// How many directories are filled at once: each is kept open.
const DIRS_MAX: usize = 256;
/// The largest file that is filled in: above this size bandwidth dominates, not requests.
const FILE_MAX: u64 = 1 << 20;
/// The most bytes that all files of one directory may have.
const BYTES_MAX: u64 = 256 << 20;

/// A new directory, and what goes into it.
#[derive(Debug)]
pub(crate) struct FillPlan {
    /// The directory, and those below it that take something in.
    dirs: HashSet<Ino>,
    nodes: HashSet<Ino>,
    names: HashSet<DirEntryKey>,
    events: usize,
    bytes: u64,
    upto: Lsn,
}

impl FillPlan {
    /// The plan for a batch that makes a directory which can take something in; `None` for any other batch.
    pub(crate) fn begin(st: &EngineState, batch: &Batch) -> Option<FillPlan> {
        let mut events = st.queue.events().range(batch.events.clone());
        match (&events.next()?.change, events.next()) {
            (Change::Make { ino, at, spec }, None) if can_be_filled(spec) && is_free(st, at) => Some(FillPlan {
                dirs: HashSet::from([*ino]),
                nodes: HashSet::from([*ino]),
                names: HashSet::new(),
                events: 1,
                bytes: 0,
                upto: batch.upto,
            }),
            _ => None,
        }
    }

    /// The last event that the plan includes.
    pub(crate) fn upto(&self) -> Lsn {
        self.upto
    }

    /// Whether the plan may include this event, which comes next, as far as is known before its batch is ready.
    pub(crate) fn may_take(&self, event: &Event) -> bool {
        let is_new = |ino: &Ino, at: &DirEntryKey| self.dirs.contains(&at.0) && !self.nodes.contains(ino);
        let is_for_it = match &event.change {
            Change::Make { ino, at, .. } => is_new(ino, at),
            Change::Content { ino, at, content, .. } => is_new(ino, at) && content.exists() && content.size <= FILE_MAX,
            _ => false,
        };
        is_for_it && self.events < EVENTS_MAX
    }

    /// Adds the next batch to the plan. `false`: it does not belong into the directory.
    pub(crate) fn take(&mut self, st: &EngineState, batch: &Batch) -> bool {
        let events: Vec<&Event> = st.queue.events().range(batch.events.clone()).collect();
        if self.events >= EVENTS_MAX {
            return false;
        }
        let Some(first) = events.first() else { return false };
        let is_taken = match (&events[..], &first.change) {
            ([_], Change::Make { spec, .. }) if spec.kind == Kind::Dir && self.dirs.len() >= DIRS_MAX => false,
            ([_], Change::Make { ino, at, spec }) => {
                self.add_node(st, *ino, at) && {
                    if can_be_filled(spec) {
                        self.dirs.insert(*ino);
                    }
                    true
                }
            }
            (_, Change::Content { ino, .. }) => self.add_file(st, *ino, &events, batch),
            _ => false,
        };
        if is_taken {
            self.events += events.len();
            self.upto = batch.upto;
        }
        is_taken
    }

    /// Adds a file's version, which may have been renamed or removed since.
    fn add_file(&mut self, st: &EngineState, ino: Ino, events: &[&Event], batch: &Batch) -> bool {
        let mut place = None;
        for event in events {
            place = match &event.change {
                Change::Content { ino: same, at, .. } if *same == ino => place.or(Some(at.clone())),
                Change::Rename { ino: same, to, replaced: None, .. } if *same == ino => Some(DirEntryKey::clone(to)),
                Change::Remove { ino: same, .. } if *same == ino => None,
                _ => return false,
            };
        }
        let whole = batch.ahead.is_empty() && batch.skipped == (0, 0);
        match (place, batch.contents.get(&ino)) {
            (Some(at), Some((_, content))) => {
                let bytes = self.bytes.saturating_add(content.size);
                let fits = content.size <= FILE_MAX && bytes <= BYTES_MAX && !content.object().needs_slow();
                let takes = whole && fits && self.add_node(st, ino, &at);
                if takes {
                    self.bytes = bytes;
                }
                takes
            }
            (None, None) => whole && !self.nodes.contains(&ino) && !is_there(st, ino),
            _ => false,
        }
    }

    fn add_node(&mut self, st: &EngineState, ino: Ino, at: &DirEntryKey) -> bool {
        let is_new = self.dirs.contains(&at.0) && !is_there(st, ino) && is_free(st, at);
        is_new && !self.nodes.contains(&ino) && self.names.insert(at.clone()) && self.nodes.insert(ino)
    }
}

/// Whether we can put something into such a directory and list it, without root as well.
fn can_be_filled(spec: &Spec) -> bool {
    spec.kind == Kind::Dir && spec.attrs.perm & 0o700 == 0o700
}

fn is_there(st: &EngineState, ino: Ino) -> bool {
    st.view.get(ino).is_some_and(|node| node.slow_id().is_some())
}

fn is_free(st: &EngineState, (dir, name): &DirEntryKey) -> bool {
    let slot = st.view.get(*dir).and_then(|node| node.dir.as_ref()?.slots.get(name));
    slot.is_none_or(|slot| slot.slow().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::ROOT;
    use crate::tiers::model::closure::tests::{Queue, at};
    use crate::tiers::model::publish_plan::{Walk, batch_at};

    /// How many of the events a directory at the front takes in; 0: none.
    fn taken(queue: &Queue) -> usize {
        let mut walk = Walk::default();
        let mut batch = |at| batch_at(&queue.0, &mut walk, at, false).expect("whatever it needs exists");
        let first = batch(0);
        let mut end = first.events.end;
        let Some(mut plan) = FillPlan::begin(&queue.0, &first) else { return 0 };
        while end < queue.0.queue.len() {
            let next = batch(end);
            if !plan.take(&queue.0, &next) {
                break;
            }
            end = next.events.end;
        }
        assert_eq!(plan.upto(), queue.0.queue.events()[end - 1].lsn);
        end
    }

    #[test]
    fn a_directory_takes_in_what_is_new_in_it() {
        let mut queue = Queue::new();
        let dir = queue.dir_of_mode(ROOT, "step-1", 0o755);
        let model = queue.file(dir, "model.tmp");
        queue.rename(model, at(dir, "model.tmp"), at(dir, "model"));
        let lock = queue.file(dir, "lock");
        queue.remove(lock, at(dir, "lock"));
        let inner = queue.dir_of_mode(dir, "shards", 0o700);
        queue.file(inner, "shard-1");
        // Written elsewhere.
        let moved = queue.file(ROOT, "optimizer");
        queue.rename(moved, at(ROOT, "optimizer"), at(dir, "optimizer"));
        let all = queue.0.queue.len();
        assert_eq!(taken(&queue), all);
        queue.file(ROOT, "latest");
        assert_eq!(taken(&queue), all, "the next one is not in it");
    }

    #[test]
    fn a_directory_ends_at_what_changes_something_in_it() {
        let last: [fn(&mut Queue, Ino, Ino); 4] = [
            |queue, dir, model| queue.content(model, at(dir, "model")),
            |queue, dir, model| queue.remove(model, at(dir, "model")),
            |queue, dir, model| queue.rename(model, at(dir, "model"), at(dir, "renamed")),
            |queue, dir, _| {
                let other = queue.file(dir, "other");
                queue.rename(other, at(dir, "other"), at(ROOT, "other"));
            },
        ];
        for (case, change) in last.into_iter().enumerate() {
            let mut queue = Queue::new();
            let dir = queue.dir_of_mode(ROOT, "step-1", 0o755);
            let model = queue.file(dir, "model");
            queue.file(dir, "optimizer");
            let before = queue.0.queue.len();
            change(&mut queue, dir, model);
            assert_eq!(taken(&queue), before, "case {case}");
        }
    }

    /// Without root nothing could be put into it, or seen in it.
    #[test]
    fn a_directory_that_is_closed_to_its_owner_is_not_filled() {
        for (perm, count) in [(0o700, 2), (0o755, 2), (0o555, 0), (0o300, 0)] {
            let mut queue = Queue::new();
            let dir = queue.dir_of_mode(ROOT, "step-1", perm);
            queue.file(dir, "model");
            assert_eq!(taken(&queue), count, "{perm:o}");
        }
    }

    /// However many follow.
    #[test]
    fn a_directory_takes_in_so_much_and_no_more() {
        let mut queue = Queue::new();
        let dir = queue.dir_of_mode(ROOT, "step-1", 0o755);
        queue.file(dir, "model");
        let first = batch_at(&queue.0, &mut Walk::default(), 0, false).expect("it is there");
        let plan = FillPlan::begin(&queue.0, &first).expect("a directory");
        assert!(plan.may_take(&queue.0.queue.events()[1]));
        let mut full = FillPlan { events: EVENTS_MAX, ..plan };
        let second = batch_at(&queue.0, &mut Walk::default(), 1, false).expect("it is there");
        assert!(!full.take(&queue.0, &second));
        assert!(!full.may_take(&queue.0.queue.events()[1]));
    }
}
