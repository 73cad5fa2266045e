//! Which records a replay leaves out because their events were set aside (`writeback/set_aside.rs`).

use std::collections::{HashMap, HashSet};

use crate::tiers::log::record::{ObjectId, Record};
use crate::tiers::{Ino, Lsn};

/// The events that have been set aside.
pub(crate) fn set_aside(records: &[(Lsn, Record)]) -> HashSet<Lsn> {
    let ranges = records.iter().filter_map(|(lsn, record)| match record {
        Record::SetAside { events } => Some(events.iter().map(move |(from, to)| (*from, (*to).min(lsn - 1)))),
        _ => None,
    });
    let mut ranges: Vec<(Lsn, Lsn)> = ranges.flatten().collect();
    ranges.sort_unstable();
    let (mut set_aside, mut done) = (HashSet::new(), 0);
    for (from, to) in ranges {
        // Each record once, whatever the ranges are: the log may contain anything.
        let first = records.partition_point(|(lsn, _)| *lsn < from.max(done));
        let behind = records.iter().skip(first).map(|(lsn, _)| *lsn).take_while(|lsn| *lsn <= to);
        set_aside.extend(behind);
        done = done.max(to.saturating_add(1));
    }
    set_aside
}

/// The records that a replay skips: events taken out of the order, earlier records about the bytes of their files, and
/// the records that precede these.
pub(crate) fn left_out(records: &[(Lsn, Record)]) -> HashSet<Lsn> {
    // The LSN up to which records of a file, or of an object, are obsolete.
    let (mut files, mut objects): (HashMap<Ino, Lsn>, HashMap<ObjectId, Lsn>) = (HashMap::new(), HashMap::new());
    let mut left_out = set_aside(records);
    let mut until = 0;
    for (lsn, record) in records.iter().rev() {
        match record {
            Record::SetAside { .. } => until = *lsn,
            _ if !left_out.contains(lsn) => {}
            record => {
                if let Some(ino) = record.ino() {
                    files.entry(ino).or_insert(until);
                }
                if let Record::Content { object, .. } = record {
                    objects.entry(*object).or_insert(until);
                }
            }
        }
    }
    let is_over = |until: Option<&Lsn>, lsn: Lsn| until.is_some_and(|until| lsn < *until);
    let mut next_is = false;
    for (lsn, record) in records.iter().rev() {
        next_is = match record {
            Record::Bind { ino, object, .. } => is_over(files.get(ino), *lsn) || is_over(objects.get(object), *lsn),
            Record::Expect { .. } | Record::Names { .. } => next_is,
            _ => left_out.contains(lsn),
        };
        if next_is {
            left_out.insert(*lsn);
        }
    }
    left_out
}
