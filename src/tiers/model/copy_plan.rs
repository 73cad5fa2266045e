//! Which versions to copy next. Pure: reads the state, remembers how far it has looked.
//!
//! The search goes through the queue once: a version that it finds needed is remembered until it has a copy or is not
//! needed any more, and no event is looked at again. What it passed as superfluous may become needed later: the version
//! that was to stand in for it is overwritten, or pressure ends. Then the front of the queue lacks a copy that the
//! search does not know, sooner or later, and the search begins anew there. It does so, too, when a copy that was made
//! is gone: a group of steps under way may need it, in the middle of the queue.

use crate::tiers::model::publish_plan::{GROUP_MAX, Walk, batch_before, missing_at_front, missing_in};
use crate::tiers::model::queue::{CopyCursor, QueuedVersion};
use crate::tiers::model::state::EngineState;
use crate::tiers::{Ino, Lsn};

/// The versions that batches near the front of the queue wait for, in the order in which they are needed, at most
/// [`GROUP_MAX`]. `limit`: the first event that the fleet's gate refuses, by its index. A file that the next event removes
/// needs no copy, unless that event is this one: then the file goes to the slow tree first.
pub(crate) fn plan_copies(st: &mut EngineState, pressure: bool, limit: usize) -> Vec<(Ino, QueuedVersion)> {
    let mut cursor = std::mem::take(&mut st.queue.copied);
    let applied = st.queue.applied();
    cursor.found.retain(|(_, (lsn, content))| *lsn > applied && content.exists() && !content.is_copied());
    let is_known = |lsn| lsn > cursor.looked_at || cursor.found.iter().any(|(_, (known, _))| *known == lsn);
    if !missing_at_front(st, pressure, limit).into_iter().all(is_known) {
        cursor.begin_anew();
    }
    look_on(&mut cursor, st, pressure, limit);
    let found = cursor.found.iter().cloned().collect();
    st.queue.copied = cursor;
    found
}

/// Looks at the events behind those seen so far, until enough is found.
fn look_on(cursor: &mut CopyCursor, st: &EngineState, pressure: bool, limit: usize) {
    let mut walk = Walk::behind(cursor.looked_at);
    let mut at = st.queue.index_behind(cursor.looked_at);
    while at < st.queue.len() && cursor.found.len() < GROUP_MAX {
        let batch = batch_before(st, &mut walk, at, pressure, limit);
        at = batch.as_ref().map_or(at + 1, |batch| batch.events.end);
        cursor.looked_at = st.queue.events()[at - 1].lsn;
        cursor.found.extend(batch.into_iter().flat_map(missing_in));
        #[cfg(test)]
        {
            cursor.looks += 1;
        }
    }
}

/// Whether a version that was found is still published by itself: a later event that joined its batch may have removed
/// or replaced it.
pub(crate) fn is_needed(st: &EngineState, ino: Ino, lsn: Lsn, limit: usize) -> bool {
    if st.queue.event(lsn).is_none() {
        return false;
    }
    let batch = batch_before(st, &mut Walk::behind(lsn - 1), st.queue.index_behind(lsn - 1), false, limit);
    batch.is_none_or(|batch| batch.contents.get(&ino).is_some_and(|(chosen, _)| *chosen == lsn))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::path::Name;
    use crate::tiers::ROOT;
    use crate::tiers::log::record::TmpStat;
    use crate::tiers::model::closure::tests::{Queue, at};
    use crate::tiers::model::node::DirEntryKey;
    use crate::tiers::model::publish_plan::batch_at;
    use crate::tiers::objects::version::{Content, Copied};

    fn copy(content: &Content) {
        let (tmp, known) = (b"c".to_vec(), None::<TmpStat>);
        *content.copy.lock() = Some(Box::new(Copied { tmp, id: (1, 1), sum: None, known }));
    }

    /// Copies the first ready versions that the plan names; returns how many.
    fn copy_some(queue: &mut Queue, most: usize, pressure: bool) -> usize {
        let missing = plan_copies(&mut queue.0, pressure, usize::MAX);
        let needed = missing.iter().filter(|(ino, (lsn, _))| is_needed(&queue.0, *ino, *lsn, usize::MAX)).take(most);
        needed.map(|(_, (_, content))| copy(content)).count()
    }

    /// Publishes the batch at the front, if the versions that it needs are copied.
    fn publish(queue: &mut Queue, pressure: bool) -> bool {
        if queue.0.queue.is_empty() {
            return false;
        }
        let batch = batch_at(&queue.0, &mut Walk::default(), 0, pressure);
        let Some(batch) = batch.filter(|_| missing_at_front(&queue.0, pressure, usize::MAX).is_empty()) else {
            return false;
        };
        batch.ahead.iter().for_each(|(ino, lsn)| {
            let version = queue.0.queue.versions(*ino).find(|(at, _)| at == lsn);
            version.into_iter().for_each(|(_, content)| content.set_early());
        });
        queue.0.pop(batch.upto, u64::MAX);
        true
    }

    /// A file under a name of its own.
    struct Written {
        ino: Ino,
        at: DirEntryKey,
        there: bool,
    }

    fn change(queue: &mut Queue, files: &mut Vec<Written>, dice: &mut StdRng) {
        let name = format!("f{}", queue.0.queue.events().back().map_or(0, |event| event.lsn));
        let live: Vec<usize> = (0..files.len()).filter(|file| files[*file].there).collect();
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
            // Written over; the next version stands in for those that had no copy.
            _ => {
                queue.0.queue.versions(file.ino).for_each(|(_, content)| content.set_overwritten());
                queue.content(file.ino, file.at.clone());
            }
        }
    }

    /// Whatever happened between two searches, what is copied by the plan lets everything be published.
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
        assert!(plan_copies(&mut queue.0, false, usize::MAX).is_empty());
        assert_eq!(queue.0.queue.copied.looks, FILES);
    }
}
