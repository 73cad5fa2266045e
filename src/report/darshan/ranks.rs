//! Ranks: Darshan's numbers for the processes of a job.

use std::collections::BTreeSet;

use crate::stats::record::FileRecord;
use crate::stats::recording::{self, Recording};

/// The numbers of processes, in order: the index of each is its rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ranks(Vec<u64>);

impl Ranks {
    pub(super) fn new(processes: impl IntoIterator<Item = u64>) -> Self {
        Ranks(processes.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// All processes named anywhere in a recording.
    pub(super) fn of_recording(recording: &Recording, traced: impl IntoIterator<Item = u64>) -> Self {
        let known = recording.meta.processes.iter().map(|process| process.number);
        let rows = recording.meta.heat.rows.iter().map(|row| row.process);
        let opened_by = |file: &recording::RecordedFile| {
            file.record().processes.iter().map(|(number, _)| number).collect::<Vec<_>>()
        };
        let openers = recording.files.iter().flat_map(opened_by);
        Ranks::new(known.chain(rows).chain(traced).chain(openers))
    }

    /// There is always at least one.
    pub(super) fn count(&self) -> usize {
        self.0.len().max(1)
    }

    pub(super) fn of(&self, process: u64) -> i64 {
        self.0.binary_search(&process).unwrap_or(0) as i64
    }

    /// The rank of a file; -1 for several.
    pub(super) fn of_file(&self, record: &FileRecord) -> i64 {
        let mut openers = record.processes.iter();
        match (openers.next(), openers.next()) {
            (Some((only, _)), None) => self.of(only),
            // Nobody has opened it: with several processes it is unknown which one accessed it.
            (None, _) if self.count() == 1 => 0,
            _ => -1,
        }
    }
}
