//! Assigns the calls of one thread to rows so that calls in a row do not overlap. Pure.
//!
//! The kernel reads ahead, so calls of one thread overlap; within a row, viewers take a call that begins inside another
//! for a part of it. Each row is one asynchronous track with the row's id.

use std::collections::{BTreeSet, HashMap};

/// The owner of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LaneOwner {
    Thread {
        pid: u32,
        thread: u32,
    },
    /// The mount itself: its windows, epochs, ...
    Named(&'static str),
}

/// A row, from its first call to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneRow {
    pub(super) id: u64,
    pub(super) owner: LaneOwner,
    pub(super) ended: u64,
}

/// The rows of a document's part.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// When the rows of each owner end, and their ids.
    rows: HashMap<LaneOwner, BTreeSet<(u64, u64)>>,
    /// The last id given.
    id: u64,
}

impl Lanes {
    /// The row for a span from `began` to `ended`, and whether it is new.
    pub(super) fn place(&mut self, owner: LaneOwner, began: u64, ended: u64) -> (u64, bool) {
        let rows = self.rows.entry(owner).or_default();
        // The row that ended last: consecutive calls stay in one row.
        let free = rows.range(..=(began, u64::MAX)).next_back().copied();
        if let Some(row) = free {
            rows.remove(&row);
        } else {
            self.id += 1;
        }
        let id = free.map_or(self.id, |(_, id)| id);
        rows.insert((ended.max(began), id));
        (id, free.is_none())
    }

    /// Ends all rows. Ids are not reused.
    pub(super) fn end(&mut self) -> Vec<LaneRow> {
        let rows = self.rows.drain().flat_map(|(owner, rows)| rows.into_iter().map(move |row| (owner, row)));
        let mut rows: Vec<_> = rows.map(|(owner, (ended, id))| LaneRow { id, owner, ended }).collect();
        rows.sort_unstable_by_key(|row| row.id);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn what_is_in_a_row_does_not_overlap_and_rows_are_few() {
        let owner = LaneOwner::Thread { pid: 1, thread: 2 };
        let mut random = SmallRng::seed_from_u64(7);
        let (mut lanes, mut last, mut began) = (Lanes::default(), HashMap::new(), 0);
        for _ in 0..10_000 {
            began += random.random_range(0..10);
            let ended = began + random.random_range(0..40);
            let (id, is_new) = lanes.place(owner, began, ended);
            let before = last.insert(id, ended);
            assert_eq!(before.is_none(), is_new);
            assert!(before.is_none_or(|before| before <= began), "{id}: {before:?} {began}");
        }
        let rows = lanes.end();
        assert!(rows.len() < 60, "{} rows", rows.len());
        assert!(rows.iter().all(|row| last[&row.id] == row.ended && row.owner == owner));
        assert_eq!(lanes.place(owner, 0, 0), (rows.len() as u64 + 1, true));
        // Another owner's, and one that came late.
        assert!(lanes.place(LaneOwner::Named("epochs"), 5, 5).1);
        assert!(lanes.place(owner, 1 << 20, 1 << 21).0 != lanes.place(owner, 5, 1 << 19).0);
    }
}
