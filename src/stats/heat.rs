//! How many bytes each process moved when: a row for each process, a column for each span of time. Pure; calls come in.
//!
//! A span is a tenth of a second at first, and doubles whenever there would be more than [`SPANS_MAX`]: 102 seconds in
//! tenths, a day in spans of 102 s.

use std::collections::HashMap;
use std::time::Duration;

use super::access::Way;
use super::recording::{HeatRow, RecordedHeat};
use super::timeline::FINEST;

/// The most spans.
pub const SPANS_MAX: usize = 1024;
/// The most rows: processes that come later share the row of the unknown ones.
pub const ROWS_MAX: usize = 256;

/// Bytes by process and span since the mount was made.
#[derive(Debug)]
pub struct HeatMap {
    width: Duration,
    /// The number of spans of the longest row.
    spans: usize,
    rows: HashMap<u64, [Vec<u64>; 2]>,
}

impl Default for HeatMap {
    fn default() -> Self {
        HeatMap { width: FINEST, spans: 0, rows: HashMap::new() }
    }
}

impl HeatMap {
    /// Counts bytes that a process moved in a span of time. They are spread over it evenly, as Darshan does.
    pub fn count(&mut self, process: u64, way: Way, bytes: u64, began: Duration, took: Duration) {
        if bytes == 0 {
            return;
        }
        let ended = began.saturating_add(took);
        while self.index(ended) >= SPANS_MAX {
            self.fold();
        }
        let (first, last, width) = (self.index(began), self.index(ended), self.width);
        self.spans = self.spans.max(last + 1);
        // One row is left for everybody else.
        let known = self.rows.len() + 1 < ROWS_MAX || self.rows.contains_key(&process);
        let row = self.rows.entry(if known { process } else { 0 }).or_default();
        let row = &mut row[usize::from(way == Way::Write)];
        if row.len() <= last {
            row.resize(last + 1, 0);
        }
        let mut left = bytes;
        for (at, span) in row.iter_mut().enumerate().take(last).skip(first) {
            let inside = width * (at as u32 + 1) - began.max(width * at as u32);
            let share = (u128::from(bytes) * inside.as_nanos() / took.as_nanos().max(1)) as u64;
            *span = span.saturating_add(share);
            left = left.saturating_sub(share);
        }
        row[last] = row[last].saturating_add(left);
    }

    fn index(&self, moment: Duration) -> usize {
        usize::try_from(moment.as_nanos() / self.width.as_nanos()).unwrap_or(usize::MAX)
    }

    fn fold(&mut self) {
        self.width *= 2;
        self.spans = self.spans.div_ceil(2);
        for row in self.rows.values_mut().flatten() {
            *row = row.chunks(2).map(|two| two.iter().fold(0, |sum: u64, span| sum.saturating_add(*span))).collect();
        }
    }

    /// All rows, equally long, ordered by process.
    pub fn recorded(&self) -> RecordedHeat {
        let whole = |row: &[u64]| row.iter().copied().chain(std::iter::repeat(0)).take(self.spans).collect();
        let mut rows: Vec<_> = self
            .rows
            .iter()
            .map(|(process, [read, written])| HeatRow { process: *process, read: whole(read), written: whole(written) })
            .collect();
        rows.sort_by_key(|row| row.process);
        RecordedHeat { span: self.width.as_secs_f64(), rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn bytes_are_spread_over_the_time_they_took() {
        let mut map = HeatMap::default();
        map.count(7, Way::Read, 100, ms(50), ms(100));
        map.count(7, Way::Write, 9, ms(310), ms(0));
        map.count(3, Way::Read, 0, ms(900), ms(10));
        let told = map.recorded();
        assert_eq!((told.span, told.rows.len()), (0.1, 1));
        assert_eq!((&*told.rows[0].read, &*told.rows[0].written), (&[50, 50, 0, 0][..], &[0, 0, 0, 9][..]));
    }

    #[test]
    fn nothing_is_lost_however_long_it_lasts_and_however_many_there_are() {
        let mut map = HeatMap::default();
        let mut sum = 0;
        for n in 0..20_000_u64 {
            map.count(n % 400, if n % 3 == 0 { Way::Write } else { Way::Read }, n, ms(n * 37), ms(n % 700));
            sum += n;
        }
        let told = map.recorded();
        let all: u64 = told.rows.iter().flat_map(|row| row.read.iter().chain(&row.written)).sum();
        assert_eq!((all, told.rows.len()), (sum, ROWS_MAX));
        let spans = told.rows[0].read.len();
        assert!((SPANS_MAX / 2..=SPANS_MAX).contains(&spans), "{spans}");
        assert!(told.rows.iter().all(|row| row.read.len() == spans && row.written.len() == spans));
        map.count(1, Way::Read, 1, Duration::MAX, Duration::MAX);
    }
}
