//! Every single read and write, as in Darshan's DXT_POSIX module: by file and process, the writes before the reads.
//!
//! The trace has them in the order in which they came, so it is read twice: to count what belongs together, and to put
//! each call in its place. The calls being placed are in memory, no more than [`TOGETHER`] unless one process made more
//! on one file: a longer trace is read once for each lot.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::time::Duration;

use super::numbers::{seconds, signed};
use super::ranks::Ranks;
use crate::stats::access::Way;
use crate::stats::counters::{Op, nanos};
use crate::stats::recording::Recording;
use crate::stats::traced::Traced;

/// The most calls in memory at once: 128 MiB.
const TOGETHER: u64 = 4 << 20;
/// The size of a record before its calls, and of a call.
const HEADER: usize = 104;
const SEGMENT: usize = 32;
const HOST: usize = 64;

/// A file, and a process that read or wrote it.
type Key = (u64, u32);

/// How many calls there are for each key, and whether the trace is complete.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DxtExtent {
    /// Writes, reads; in order.
    counts: Vec<(Key, [u64; 2])>,
    /// When the last call ended, since the mount.
    pub(super) end: Duration,
    pub(super) is_all: bool,
}

/// One call: offset, size and time, in nanoseconds since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Segment {
    offset: u64,
    bytes: u64,
    began: u64,
    took: u64,
}

impl DxtExtent {
    /// Counts the calls that began in `time`.
    pub(super) fn new(recording: &mut Recording, time: &Range<Duration>) -> DxtExtent {
        let mut plan = DxtExtent::default();
        let mut earliest = Duration::MAX;
        let mut counts: HashMap<Key, [u64; 2]> = HashMap::new();
        recording.calls(Duration::ZERO, Duration::MAX, |traced| {
            earliest = earliest.min(traced.call.began);
            if let Some((key, way, _)) = segment(traced).filter(|_| time.contains(&traced.call.began)) {
                counts.entry(key).or_default()[place(way)] += 1;
                plan.end = plan.end.max(traced.ended());
            }
        });
        plan.counts = counts.into_iter().collect();
        plan.counts.sort_unstable();
        let (kept, dropped) = recording.traced();
        let collected = recording.meta.trace.collected.max(kept);
        let from_the_beginning = kept == collected || recording.meta.window.is_some() && earliest <= time.start;
        plan.is_all = dropped == 0 && from_the_beginning && recording.flaws.is_empty();
        plan
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().map(|((_, process), _)| u64::from(*process))
    }

    /// Inode numbers of the files, each once.
    pub(super) fn inos(&self) -> Vec<u64> {
        let mut inos: Vec<u64> = self.counts.iter().map(|((ino, _), _)| *ino).collect();
        inos.dedup();
        inos
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    pub(super) fn calls(&self) -> u64 {
        self.counts.iter().flat_map(|(_, calls)| calls).sum()
    }

    /// The lots to write together, as ranges of `counts`.
    fn lots(&self, together: u64) -> Vec<Range<usize>> {
        let (mut lots, mut from, mut sum) = (Vec::new(), 0, 0);
        for (at, (_, calls)) in self.counts.iter().enumerate() {
            let more: u64 = calls.iter().sum();
            if at > from && sum + more > together {
                lots.push(from..at);
                (from, sum) = (at, 0);
            }
            sum += more;
        }
        lots.push(from..self.counts.len());
        lots
    }

    /// Writes all records. `ids` maps inode numbers to file ids; times are relative to the beginning of `time`.
    pub(super) fn write(
        &self,
        recording: &mut Recording,
        time: &Range<Duration>,
        ids: &HashMap<u64, u64>,
        ranks: &Ranks,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        self.write_in_lots(TOGETHER, recording, time, ids, ranks, out)
    }

    fn write_in_lots(
        &self,
        together: u64,
        recording: &mut Recording,
        time: &Range<Duration>,
        ids: &HashMap<u64, u64>,
        ranks: &Ranks,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let host = recording.meta.host.clone();
        for lot in self.lots(together) {
            let mut lot = Lot::new(&self.counts[lot]);
            recording.calls(time.start, time.end, |traced| {
                if let Some((key, way, segment)) = segment(traced).filter(|_| time.contains(&traced.call.began)) {
                    lot.put(key, way, segment);
                }
            });
            for at in 0..lot.counts.len() {
                let ((ino, process), _) = lot.counts[at];
                let id = ids.get(&ino).copied().unwrap_or_default();
                let [writes, reads] = [Way::Write, Way::Read].map(|way| lot.sorted(at, way));
                let (written, read) = (writes.len(), reads.len());
                out.write_all(&header(id, ranks.of(process.into()), &host, written, read))?;
                for place in writes.chain(reads) {
                    out.write_all(&lot.segments[place].encoded(time.start))?;
                }
            }
        }
        Ok(())
    }
}

/// Calls that are written together, each in its place.
struct Lot<'a> {
    counts: &'a [(Key, [u64; 2])],
    segments: Vec<Segment>,
    /// Where the writes and the reads of each begin, and where the next one goes.
    starts: Vec<[usize; 2]>,
    next: Vec<[usize; 2]>,
    /// The entry of the last call: the next one most often has the same.
    last: usize,
}

impl<'a> Lot<'a> {
    fn new(counts: &'a [(Key, [u64; 2])]) -> Self {
        let mut end = 0;
        let place = |(_, [writes, reads]): &(Key, [u64; 2])| {
            let starts = [end, end + *writes as usize];
            end = starts[1] + *reads as usize;
            starts
        };
        let starts: Vec<_> = counts.iter().map(place).collect();
        Lot { counts, segments: vec![Segment::default(); end], next: starts.clone(), starts, last: 0 }
    }

    /// Adds a call, if it belongs to the lot.
    fn put(&mut self, key: Key, way: Way, segment: Segment) {
        if self.counts.get(self.last).is_none_or(|(last, _)| *last != key) {
            let Ok(at) = self.counts.binary_search_by_key(&key, |(key, _)| *key) else { return };
            self.last = at;
        }
        let behind = self.starts.get(self.last + 1).map_or(self.segments.len(), |next| next[0]);
        let end = [self.starts[self.last][1], behind][place(way)];
        let next = &mut self.next[self.last][place(way)];
        // Calls that a source has only the second time are dropped.
        if *next < end {
            self.segments[*next] = segment;
            *next += 1;
        }
    }

    /// The range of one entry's calls, sorted by their beginning.
    fn sorted(&mut self, at: usize, way: Way) -> Range<usize> {
        let filled = self.starts[at][place(way)]..self.next[at][place(way)];
        self.segments[filled.clone()].sort_by_key(|segment| segment.began);
        filled
    }
}

/// A call that Darshan traces: a successful read or write.
fn segment(traced: &Traced) -> Option<(Key, Way, Segment)> {
    let call = &traced.call;
    let way = match call.op {
        Op::Read => Way::Read,
        Op::Write => Way::Write,
        _ => return None,
    };
    let segment = Segment { offset: call.offset, bytes: call.bytes, began: nanos(call.began), took: nanos(call.took) };
    call.errno.is_none().then_some(((traced.ino, traced.process), way, segment))
}

/// Writes come first.
fn place(way: Way) -> usize {
    match way {
        Way::Write => 0,
        Way::Read => 1,
    }
}

fn header(id: u64, rank: i64, host: &str, writes: usize, reads: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let mut put = |at: usize, number: u64| bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    put(0, id);
    put(8, rank as u64);
    put(88, writes as u64);
    put(96, reads as u64);
    // Ended by a zero byte; cut between characters.
    let len = host.floor_char_boundary(HOST - 1);
    bytes[24..24 + len].copy_from_slice(&host.as_bytes()[..len]);
    bytes
}

impl Segment {
    /// The form in a log.
    fn encoded(&self, from: Duration) -> [u8; SEGMENT] {
        let since = |nanos: u64| seconds(Duration::from_nanos(nanos).saturating_sub(from)).to_bits();
        let (offset, bytes) = (signed(self.offset) as u64, signed(self.bytes) as u64);
        let numbers = [offset, bytes, since(self.began), since(self.began.saturating_add(self.took))];
        let mut told = [0; SEGMENT];
        told.chunks_exact_mut(8).zip(numbers).for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::report::darshan::tests::{recorded, traced};

    const ALWAYS: Range<Duration> = Duration::ZERO..Duration::MAX;

    fn recording(calls: &[Traced]) -> Recording {
        crate::report::traced::sample::read(recorded(calls, &[]))
    }

    fn written(recording: &mut Recording, together: u64, time: &Range<Duration>) -> Vec<u8> {
        let plan = DxtExtent::new(recording, time);
        let ids = plan.inos().into_iter().map(|ino| (ino, 100 + ino)).collect();
        let ranks = Ranks::new(plan.processes());
        let mut out = Vec::new();
        plan.write_in_lots(together, recording, time, &ids, &ranks, &mut out).expect("into memory");
        out
    }

    /// Records: id, rank, offsets of the writes and of the reads.
    fn parsed(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u64>, Vec<u64>)> {
        let eight = |bytes: &[u8], at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        let mut found = Vec::new();
        while let Some(header) = bytes.split_off(..HEADER) {
            let mut offsets = |count| {
                (0..count).map(|_| eight(bytes.split_off(..SEGMENT).expect("as many as were announced"), 0)).collect()
            };
            let (writes, reads) = (offsets(eight(header, 88)), offsets(eight(header, 96)));
            found.push((eight(header, 0), eight(header, 8), writes, reads));
        }
        assert!(bytes.is_empty());
        found
    }

    #[test]
    fn calls_are_told_by_file_and_process_the_writes_first() {
        let mut calls: Vec<_> =
            (0..6).map(|n| traced(if n % 2 == 0 { Op::Read } else { Op::Write }, n, 7, 3)).collect();
        calls.push(traced(Op::Read, 6, 7, 9));
        calls.push(traced(Op::Read, 7, 8, 9));
        calls.push(traced(Op::Open, 8, 8, 9));
        let mut failed = traced(Op::Read, 9, 8, 9);
        failed.call.errno = Some(Errno::EIO);
        calls.push(failed);
        let mut recording = recording(&calls);
        let wanted = [(107, 0, vec![1, 3, 5], vec![0, 2, 4]), (107, 1, vec![], vec![6]), (108, 1, vec![], vec![7])];
        let whole = written(&mut recording, TOGETHER, &ALWAYS);
        assert_eq!(parsed(&whole), wanted);
        assert_eq!(whole.len(), 3 * HEADER + 8 * SEGMENT);
        for together in 1..9 {
            assert_eq!(written(&mut recording, together, &ALWAYS), whole, "in lots of {together}");
        }
        let host = &whole[24..24 + HOST];
        assert_eq!((&host[..5], host[5]), (&b"node7"[..], 0));
    }

    #[test]
    fn a_window_has_the_calls_that_began_in_it_and_its_own_zero() {
        let calls: Vec<_> = (0..10).map(|n| traced(Op::Read, n, 7, 3)).collect();
        let time = Duration::from_millis(4)..Duration::from_millis(6);
        let bytes = written(&mut recording(&calls), TOGETHER, &time);
        assert_eq!(parsed(&bytes), [(107, 0, vec![], vec![4, 5])]);
        let double = |at: usize| f64::from_le_bytes(std::array::from_fn(|n| bytes[HEADER + at + n]));
        assert_eq!((double(16), double(24), double(SEGMENT + 16)), (0.0, 0.000_007, 0.001));
    }

    #[test]
    fn what_is_missing_is_noticed() {
        let calls: Vec<_> = (0..10).map(|n| traced(Op::Read, n, 7, 3)).collect();
        let mut whole = recording(&calls);
        assert!(DxtExtent::new(&mut whole, &ALWAYS).is_all);
        whole.meta.trace.collected = 11;
        assert!(!DxtExtent::new(&mut whole, &ALWAYS).is_all, "one is not kept any more");
        whole.meta.window = Some("epoch".into());
        assert!(
            DxtExtent::new(&mut whole, &(Duration::from_millis(4)..Duration::MAX)).is_all,
            "the window's are all there"
        );
        whole.flaws.push("damaged".into());
        assert!(!DxtExtent::new(&mut whole, &ALWAYS).is_all);
    }

    #[test]
    fn a_long_name_of_a_host_is_cut_between_letters() {
        let bytes = header(1, 0, &"ä".repeat(40), 0, 0);
        assert_eq!(std::str::from_utf8(&bytes[24..86]), Ok(&*"ä".repeat(31)));
        assert_eq!(bytes[86..88], [0, 0]);
    }
}
