//! The heat map: bytes by process and time, as Darshan's HEATMAP module has them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::numbers::{seconds, signed};
use super::ranks::Ranks;
use crate::stats::recording::{HeatRow, Meta};

/// The most bins that `darshan-parser` can hold.
const BINS_MAX: usize = 5117;
/// The name of all records, whatever the process.
pub(super) const NAME: &str = "heatmap:POSIX";

/// All rows have the same number of bins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Heat {
    /// Seconds of a bin.
    pub(super) width: f64,
    pub(super) rows: Vec<ProcessHeat>,
}

/// The row of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProcessHeat {
    pub(super) rank: i64,
    pub(super) read: Vec<i64>,
    pub(super) written: Vec<i64>,
}

impl Heat {
    /// For a job that begins `from` after the mount was made and lasts `run`. `None`: nothing was read or written, and
    /// PyDarshan cannot draw such a map.
    pub(super) fn new(meta: &Meta, ranks: &Ranks, from: Duration, run: Duration) -> Option<Heat> {
        let mut width = meta.heat.span;
        if !width.is_normal() || width < 0.0 {
            return None;
        }
        // Spans are counted from the mount: the first bin may begin a little before the job.
        let before = (seconds(from) / width) as usize;
        let mut rows: BTreeMap<i64, ProcessHeat> = BTreeMap::new();
        for HeatRow { process, read, written } in &meta.heat.rows {
            let row = rows.entry(ranks.of(*process)).or_default();
            merge(&mut row.read, read.get(before..).unwrap_or_default());
            merge(&mut row.written, written.get(before..).unwrap_or_default());
        }
        let longest = |rows: &BTreeMap<i64, ProcessHeat>| {
            rows.values().flat_map(|row| [row.read.len(), row.written.len()]).max().unwrap_or(0)
        };
        while longest(&rows) > BINS_MAX || seconds(run) / width > BINS_MAX as f64 {
            width *= 2.0;
            rows.values_mut().for_each(|row| [&mut row.read, &mut row.written].into_iter().for_each(fold));
        }
        // Up to the end of the job: the tools spread the bins over all of it.
        let bins = longest(&rows).max((seconds(run) / width).ceil() as usize);
        for (rank, row) in &mut rows {
            row.rank = *rank;
            row.read.resize(bins, 0);
            row.written.resize(bins, 0);
        }
        let rows: Vec<ProcessHeat> = rows.into_values().collect();
        let any = rows.iter().any(|row| row.read.iter().chain(&row.written).any(|bytes| *bytes > 0));
        any.then_some(Heat { width, rows })
    }

    /// The form of a row in a log.
    pub(super) fn bytes(&self, id: u64, row: &ProcessHeat) -> Vec<u8> {
        let head = [id, row.rank as u64, self.width.to_bits(), row.read.len() as u64, 0, 0];
        let bins = row.written.iter().chain(&row.read).map(|bytes| *bytes as u64);
        head.into_iter().chain(bins).flat_map(u64::to_le_bytes).collect()
    }
}

fn merge(row: &mut Vec<i64>, more: &[u64]) {
    row.resize(row.len().max(more.len()), 0);
    row.iter_mut().zip(more).for_each(|(bytes, more)| *bytes = bytes.saturating_add(signed(*more)));
}

fn fold(row: &mut Vec<i64>) {
    *row = row.chunks(2).map(|two| two.iter().fold(0, |sum: i64, bytes| sum.saturating_add(*bytes))).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(span: f64, rows: &[(u64, &[u64], &[u64])]) -> Meta {
        let mut meta = Meta::default();
        meta.heat.span = span;
        meta.heat.rows = rows
            .iter()
            .map(|(process, read, written)| HeatRow {
                process: *process,
                read: read.to_vec(),
                written: written.to_vec(),
            })
            .collect();
        meta
    }

    fn heat(meta: &Meta, from: f64, run: f64) -> Option<Heat> {
        let ranks = Ranks::new(meta.heat.rows.iter().map(|row| row.process));
        Heat::new(meta, &ranks, Duration::from_secs_f64(from), Duration::from_secs_f64(run))
    }

    #[test]
    fn each_process_has_a_row_that_lasts_as_long_as_the_job() {
        let found = heat(&meta(0.1, &[(9, &[1, 2], &[]), (4, &[], &[3])]), 0.0, 0.35).expect("bytes");
        let row =
            |rank, read: [i64; 4], written: [i64; 4]| ProcessHeat { rank, read: read.into(), written: written.into() };
        assert_eq!(found.rows, [row(0, [0; 4], [3, 0, 0, 0]), row(1, [1, 2, 0, 0], [0; 4])]);
        let bytes = found.bytes(7, &found.rows[1]);
        assert_eq!(bytes.len(), 48 + 16 * 4);
        let eight = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[8 * at + n]));
        assert_eq!((eight(0), eight(1), eight(3)), (7, 1, 4));
        assert_eq!((f64::from_bits(eight(2)), eight(6), eight(10), eight(11)), (0.1, 0, 1, 2));
    }

    #[test]
    fn a_window_has_the_bins_from_its_beginning_on() {
        let found = heat(&meta(1.0, &[(1, &[1, 2, 4, 8], &[])]), 2.5, 1.0).expect("bytes");
        assert_eq!(found.rows[0].read, [4, 8]);
        assert_eq!(heat(&meta(1.0, &[(1, &[1, 2], &[])]), 9.0, 1.0), None, "nothing was moved since");
    }

    #[test]
    fn more_bins_than_the_tools_take_are_folded_and_none_is_lost() {
        let many: Vec<u64> = (0..20_000).collect();
        let found = heat(&meta(0.1, &[(1, &many, &[]), (2, &[5], &[6])]), 0.0, 2000.0).expect("bytes");
        assert_eq!((found.width, found.rows[0].read.len()), (0.4, 5000));
        assert_eq!(found.rows[0].read.iter().sum::<i64>(), (0..20_000).sum::<i64>());
        let idle = heat(&meta(0.1, &[(1, &[5], &[])]), 0.0, 1e9).expect("bytes");
        assert!(idle.rows[0].read.len() <= BINS_MAX, "however long nothing was done");
    }

    #[test]
    fn without_spans_or_bytes_there_is_none() {
        for span in [0.0, -1.0, f64::INFINITY, f64::NAN, 1e-320] {
            assert_eq!(heat(&meta(span, &[(1, &[1], &[1])]), 0.0, 1.0), None, "{span}");
        }
        assert_eq!(heat(&meta(0.1, &[(1, &[0], &[0])]), 0.0, 1.0), None);
        assert!(heat(&meta(f64::MIN_POSITIVE, &[(1, &[1], &[1])]), 0.0, 1.0).is_some());
    }
}
