//! Which versions to copy next. Pure: reads the state, remembers how far it has looked.
//!
//! The search goes through the queue once. A version that it finds needed is remembered until it has a copy or is not
//! needed any more, and no event is looked at again. A version that it passed as not needed may become needed later:
//! the version that was to replace it is overwritten, or pressure ends. Then, sooner or later, the front of the queue
//! lacks a copy that the search does not know, and the search starts again there. It also starts again when a finished
//! copy is gone: a group of steps under way may need it, in the middle of the queue.
//!
//! With `drain_policy = "newest"` a version that was found may be superseded before its copy begins. It is not copied,
//! and the search starts again if that version is in front of what is needed, or takes its room.

use crate::tiers::model::publish_plan::{GROUP_MAX, Walk, batch_at, missing_at_front, missing_in};
use crate::tiers::model::queue::{CopyCursor, QueuedVersion};
use crate::tiers::model::state::EngineState;
use crate::tiers::{Ino, Lsn};

/// The versions that batches near the front of the queue wait for, in the order in which they are needed, at most
/// [`GROUP_MAX`]. `refused`: the result of [`publish_plan::first_refused`](super::publish_plan::first_refused). A file
/// that the next event removes needs no copy, unless the gate refuses that event: then the file goes to the slow tree
/// first.
pub(crate) fn plan_copies(st: &mut EngineState, pressure: bool, refused: Option<usize>) -> Vec<(Ino, QueuedVersion)> {
    let mut cursor = std::mem::take(&mut st.queue.copied);
    let applied = st.queue.applied();
    cursor.found.retain(|(_, (lsn, content))| *lsn > applied && content.exists() && !content.is_copied());
    if !is_up_to_date(&cursor, st, &missing_at_front(st, pressure, refused)) {
        cursor.begin_anew();
    }
    advance_cursor(&mut cursor, st, pressure, refused);
    let found = cursor.found.iter().cloned().collect();
    st.queue.copied = cursor;
    found
}

/// Whether the search has found everything that the front waits for, as far as it has looked.
fn is_up_to_date(cursor: &CopyCursor, st: &EngineState, front: &[Lsn]) -> bool {
    let has_room = cursor.found.len() < GROUP_MAX || !st.queue.has_newest_only();
    let is_known =
        |lsn: &Lsn| (*lsn > cursor.inspected && has_room) || cursor.found.iter().any(|(_, (known, _))| known == lsn);
    let first = cursor.found.front().filter(|_| st.queue.has_newest_only() && !front.is_empty());
    front.iter().all(is_known) && first.is_none_or(|(_, (lsn, _))| front.contains(lsn))
}

/// Searches the events behind those seen so far, until enough is found.
fn advance_cursor(cursor: &mut CopyCursor, st: &EngineState, pressure: bool, refused: Option<usize>) {
    let mut walk = Walk::behind(cursor.inspected).up_to(refused);
    let mut at = st.queue.index_behind(cursor.inspected);
    while at < st.queue.len() && cursor.found.len() < GROUP_MAX {
        let batch = batch_at(st, &mut walk, at, pressure);
        at = batch.as_ref().map_or(at + 1, |batch| batch.events.end);
        cursor.inspected = st.queue.events()[at - 1].lsn;
        cursor.found.extend(batch.into_iter().flat_map(missing_in));
        #[cfg(test)]
        {
            cursor.looks += 1;
        }
    }
}

/// Which of the versions that were found still need a copy: a later event that joined the batch may have removed or
/// replaced one.
pub(crate) struct StillNeeded {
    /// What the front waits for. Its batch may end before the event that supersedes one of its versions, while a batch
    /// that began with that version would not.
    front: Vec<Lsn>,
    refused: Option<usize>,
}

impl StillNeeded {
    pub(crate) fn of(st: &EngineState, pressure: bool, refused: Option<usize>) -> Self {
        StillNeeded { front: missing_at_front(st, pressure, refused), refused }
    }

    pub(crate) fn has(&self, st: &EngineState, ino: Ino, lsn: Lsn) -> bool {
        if st.queue.event(lsn).is_none() {
            return false;
        }
        if self.front.contains(&lsn) {
            return true;
        }
        let mut walk = Walk::behind(lsn - 1).up_to(self.refused);
        let batch = batch_at(st, &mut walk, st.queue.index_behind(lsn - 1), false);
        batch.is_none_or(|batch| batch.contents.get(&ino).is_some_and(|(chosen, _)| *chosen == lsn))
    }
}

/// Notes that the copy of this version begins: from now on the batches up to it keep their ends.
pub(crate) fn begin_copy(st: &mut EngineState, lsn: Lsn, pressure: bool) {
    while st.queue.has_newest_only() && st.queue.begun() < lsn {
        let (begun, at) = (st.queue.begun(), st.queue.index_behind(st.queue.begun()));
        let batch = batch_at(st, &mut Walk::behind(begun), at, pressure);
        st.queue.begin_upto(batch.map_or(lsn, |batch| batch.upto));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::path::Name;
    use crate::tiers::ROOT;
    use crate::tiers::disk::FileId;
    use crate::tiers::log::record::TmpStat;
    use crate::tiers::model::closure::tests::{Queue, at};
    use crate::tiers::model::event::{Change, Event};
    use crate::tiers::model::node::DirEntryKey;
    use crate::tiers::model::publish_plan::Batch;
    use crate::tiers::objects::version::{Content, Copied};

    fn copy(content: &Content) {
        let (tmp, known) = (b"c".to_vec(), None::<TmpStat>);
        *content.copy.lock() = Some(Box::new(Copied { tmp, id: (1, FileId { ino: 1, birth: 1 }), sum: None, known }));
    }

    /// Copies the first ready versions that the plan names; returns how many.
    fn copy_some(queue: &mut Queue, most: usize, pressure: bool) -> usize {
        let missing = plan_copies(&mut queue.0, pressure, None);
        let still = StillNeeded::of(&queue.0, pressure, None);
        let needed = missing.iter().filter(|(ino, (lsn, _))| still.has(&queue.0, *ino, *lsn));
        let needed: Vec<_> = needed.take(most).collect();
        for (_, (lsn, content)) in &needed {
            begin_copy(&mut queue.0, *lsn, pressure);
            copy(content);
        }
        needed.len()
    }

    /// Publishes the batch at the front, if the versions that it needs are copied.
    fn publish(queue: &mut Queue, pressure: bool) -> bool {
        publish_next(queue, pressure).is_some()
    }

    fn publish_next(queue: &mut Queue, pressure: bool) -> Option<Batch> {
        if queue.0.queue.is_empty() {
            return None;
        }
        let batch = batch_at(&queue.0, &mut Walk::default(), 0, pressure);
        let batch = batch.filter(|_| missing_at_front(&queue.0, pressure, None).is_empty())?;
        batch.ahead.iter().for_each(|(ino, lsn)| {
            let version = queue.0.queue.versions(*ino).find(|(at, _)| at == lsn);
            version.into_iter().for_each(|(_, content)| content.set_early());
        });
        queue.0.pop(batch.upto, u64::MAX);
        Some(batch)
    }

    /// The view and the slow tree by their names, and the versions that the slow tree has of each file.
    #[derive(Default)]
    struct Trees {
        names: HashMap<DirEntryKey, Ino>,
        newest: HashMap<Ino, Lsn>,
        placed: HashMap<Ino, Lsn>,
    }

    impl Trees {
        fn see(&mut self, event: &Event) {
            match &event.change {
                Change::Content { ino, at, .. } => {
                    self.newest.insert(*ino, event.lsn);
                    self.names.insert(at.clone(), *ino);
                }
                Change::Rename { ino, from, to, .. } => {
                    self.names.remove(&**from);
                    self.names.insert(DirEntryKey::clone(to), *ino);
                }
                Change::Remove { at, .. } => drop(self.names.remove(at)),
                _ => {}
            }
        }

        /// Checks that each file in the view behind the batch is on the slow tree as in the view.
        fn check(&mut self, queue: &Queue, batch: &Batch, seed: u64) {
            self.placed.extend(batch.contents.iter().map(|(ino, (lsn, _))| (*ino, *lsn)));
            for ino in self.names.values() {
                let early = queue.0.queue.versions(*ino).any(|(_, content)| content.is_early());
                let (shown, placed) = (self.newest.get(ino), self.placed.get(ino));
                assert!(shown == placed || early, "seed {seed}: {ino} at {shown:?}, slow {placed:?}: {batch:?}");
            }
        }
    }

    /// A file under a name of its own.
    struct Written {
        ino: Ino,
        at: DirEntryKey,
        there: bool,
    }

    fn change(queue: &mut Queue, files: &mut Vec<Written>, dice: &mut StdRng) {
        let name = format!("f{}", queue.last());
        let live: Vec<usize> = (0..files.len()).filter(|file| files[*file].there).collect();
        if live.len() > 1 && dice.random_bool(0.2) {
            // As a checkpoint that is written beside the last one, and renamed over it.
            let (old, new) = (live[0], live[live.len() - 1]);
            let to = files[old].at.clone();
            queue.rename(files[new].ino, files[new].at.clone(), to.clone());
            files[old].there = false;
            files[new].at = to;
            return;
        }
        let Some(file) = live.get(dice.random_range(0..live.len().max(1))).filter(|_| dice.random_bool(0.6)) else {
            let ino = queue.file(ROOT, &name);
            return files.push(Written { ino, at: at(ROOT, &name), there: true });
        };
        let file = &mut files[*file];
        match dice.random_range(0..4) {
            0 => queue.content(file.ino, file.at.clone()),
            1 => {
                let to = (ROOT, Name::new(name.as_bytes()).expect("a name"));
                queue.rename(file.ino, file.at.clone(), to.clone());
                file.at = to;
            }
            2 => {
                queue.remove(file.ino, file.at.clone());
                file.there = false;
            }
            // Overwritten; the next version replaces those that had no copy.
            _ => {
                queue.0.queue.versions(file.ino).for_each(|(_, content)| content.set_overwritten());
                queue.content(file.ino, file.at.clone());
            }
        }
    }

    /// Whatever happened between two searches, copying by the plan lets everything be published.
    #[test]
    fn the_plan_finds_all_that_publishing_waits_for() {
        for seed in 0..200 {
            let (mut dice, mut queue, mut files) = (StdRng::seed_from_u64(seed), Queue::new(), Vec::new());
            for _ in 0..dice.random_range(10..300) {
                let pressure = dice.random_bool(0.1);
                match dice.random_range(0..8) {
                    0 | 1 => drop(copy_some(&mut queue, dice.random_range(1..6), pressure)),
                    2 => drop(publish(&mut queue, pressure)),
                    _ => change(&mut queue, &mut files, &mut dice),
                }
            }
            while !queue.0.queue.is_empty() {
                let done = copy_some(&mut queue, 4, false) > 0 || publish(&mut queue, false);
                assert!(done, "seed {seed}: {} events stay for ever", queue.0.queue.len());
            }
        }
    }

    /// `drain_policy = "newest"`: a version is skipped only if it is superseded in the same batch. So behind each batch
    /// the slow tree has what the view had at that event, and all of it arrives.
    #[test]
    fn what_is_skipped_is_superseded_in_the_same_batch() {
        let mut skipped = 0;
        for seed in 0..400 {
            let (mut dice, mut queue, mut files) = (StdRng::seed_from_u64(seed), Queue::new(), Vec::new());
            let (mut trees, mut steps) = (Trees::default(), dice.random_range(10..300));
            let seals = [0.2, 0.9][dice.random_range(0..2)];
            while steps > 0 || !queue.0.queue.is_empty() {
                let pressure = steps > 0 && dice.random_bool(0.05);
                let done = match dice.random_range(0..9) {
                    0 | 1 => copy_some(&mut queue, dice.random_range(1..6), pressure) > 0,
                    2 | 3 => {
                        let events: Vec<Event> = queue.0.queue.events().iter().cloned().collect();
                        let batch = publish_next(&mut queue, pressure);
                        if let Some(batch) = &batch {
                            skipped += batch.skipped.0;
                            events[batch.events.clone()].iter().for_each(|event| trees.see(event));
                            trees.check(&queue, batch, seed);
                        }
                        batch.is_some()
                    }
                    _ if steps > 0 => {
                        change(&mut queue, &mut files, &mut dice);
                        let last = files[dice.random_range(0..files.len())].ino;
                        queue.0.queue.set_policy(last, dice.random_bool(0.8), dice.random_bool(0.5));
                        steps -= 1;
                        seal_some(&queue, seals, &mut dice);
                        true
                    }
                    _ => continue,
                };
                if steps == 0 {
                    seal_some(&queue, 1.0, &mut dice);
                    let missing = missing_at_front(&queue.0, false, None).len();
                    let goes_on = done || copy_some(&mut queue, 1, false) > 0 || missing == 0;
                    assert!(goes_on, "seed {seed}: {} events stay for ever", queue.0.queue.len());
                }
            }
        }
        assert!(skipped > 300, "{skipped}");
    }

    fn seal_some(queue: &Queue, share: f64, dice: &mut StdRng) {
        let versions = queue.0.queue.all_versions();
        versions.for_each(|(_, content)| {
            if dice.random_bool(share) {
                content.set_sealed();
            }
        });
    }

    /// A program that keeps its last three checkpoints, and a tier that takes one while four are written: each batch
    /// would grow while it is copied, and none would be published.
    #[test]
    fn a_tier_that_is_always_behind_gets_one_checkpoint_after_the_other() {
        let (mut queue, mut kept, mut dice) = (Queue::new(), VecDeque::new(), StdRng::seed_from_u64(0));
        let (mut copied, mut published, mut longest) = (0, 0, 0);
        const WRITTEN: usize = 2000;
        for number in 0..WRITTEN {
            let name = format!("ckpt-{number}");
            let ino = queue.file(ROOT, &name);
            queue.0.queue.set_policy(ino, true, true);
            kept.push_back((ino, at(ROOT, &name)));
            if kept.len() > 3 {
                let (ino, at) = kept.pop_front().expect("more than three");
                queue.remove(ino, at);
            }
            seal_some(&queue, 1.0, &mut dice);
            if number % 4 == 0 {
                copied += copy_some(&mut queue, 1, false);
                while publish(&mut queue, false) {
                    published += 1;
                }
                longest = longest.max(queue.0.queue.len());
            }
        }
        assert!(published > WRITTEN / 40 && longest < 100, "{published} batches, {longest} events wait");
        assert!(copied <= WRITTEN / 4 && copied > WRITTEN / 5, "{copied}");
    }

    /// A batch that may grow to the end of the queue would copy for hours before it publishes anything.
    #[test]
    fn a_batch_that_skips_something_has_a_limit() {
        let (mut queue, mut dice) = (Queue::new(), StdRng::seed_from_u64(0));
        let write = |queue: &mut Queue, name: &str| {
            let ino = queue.file(ROOT, name);
            queue.0.queue.set_policy(ino, true, true);
            ino
        };
        let last = at(ROOT, "last");
        for _ in 0..2000 {
            let ino = write(&mut queue, "tmp");
            queue.rename(ino, at(ROOT, "tmp"), last.clone());
        }
        seal_some(&queue, 1.0, &mut dice);
        let of = |queue: &Queue| batch_at(&queue.0, &mut Walk::default(), 0, false).expect("all versions exist");
        let batch = of(&queue);
        assert!(batch.events.len() > 1000 && batch.events.len() <= 1024, "{:?}", batch.events);
        assert_eq!((batch.contents.len() as u64, batch.skipped.0), (1, batch.events.len() as u64 / 2 - 1));

        // Five others between a version and what supersedes it: copying them all is not worth it.
        let mut queue = Queue::new();
        let first = write(&mut queue, "first");
        for number in 0..5 {
            write(&mut queue, &format!("other-{number}"));
        }
        queue.remove(first, at(ROOT, "first"));
        seal_some(&queue, 1.0, &mut dice);
        assert_eq!((of(&queue).events, of(&queue).skipped), (0..1, (0, 0)));
    }

    /// What is copied and waits to be published is not looked at again.
    #[test]
    fn each_event_is_looked_at_once() {
        let mut queue = Queue::new();
        const FILES: usize = 5000;
        for file in 0..FILES {
            queue.file(ROOT, &format!("f{file}"));
            copy_some(&mut queue, 1, false);
        }
        assert_eq!(queue.0.queue.len(), FILES, "nothing was published");
        assert!(plan_copies(&mut queue.0, false, None).is_empty());
        assert_eq!(queue.0.queue.copied.looks, FILES);
    }
}
