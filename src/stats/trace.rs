//! The trace: every single call. The latest million are in memory; all of them can be written to a file.
//!
//! A thread that answers calls puts each into a ring of its own: it takes no lock and never waits. One collector
//! ([`Trace::collect`]) empties the rings some ten times a second, and when one of them is half full, into blocks
//! (`block.rs`). If it does not keep up, a call is dropped and counted, and the block that should have held it says so.
//!
//! Pure but for the rings, which belong to their threads.

pub mod block;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rtrb::{Consumer, Producer, RingBuffer};

use super::counters::Op;
use super::traced::Traced;

/// How many of the latest calls are in memory, at least; up to one block more.
pub const LATEST: u64 = 1_000_000;
/// The usual number of calls of a block.
const BLOCK: usize = 1 << 13;
/// The size of a thread's ring: what comes in 10 ms at half a million calls a second.
const RING: usize = 1 << 13;
/// The longest time that a block is held back from the sink.
const PATIENCE: Duration = Duration::from_secs(2);
/// A ring checks whether it is half full once per this many calls.
const LOOK: u64 = 1 << 8;

/// Calls that follow each other, packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// When the first of them began and the last one ended, since the mount.
    pub from: Duration,
    pub until: Duration,
    pub calls: u32,
    /// How many calls were dropped since the previous block.
    pub dropped: u64,
    pub bytes: Arc<[u8]>,
}

/// A new block, with what else is known about it.
#[derive(Clone, Debug)]
pub struct Sealed {
    pub block: Block,
    /// The files in it, in order.
    pub inos: Vec<u64>,
    /// Names were changed in it.
    pub renamed: bool,
}

/// How much is traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct TraceExtent {
    /// Calls in memory, and the bytes they take.
    pub calls: u64,
    pub bytes: usize,
    /// All calls ever collected.
    pub collected: u64,
    pub dropped: u64,
    /// How many of the collected calls did not get into the files that `trace` asks for.
    pub unwritten: u64,
}

/// The trace of a mount.
#[derive(derive_more::Debug)]
#[debug("Trace({number}, {:?})", self.extent())]
pub struct Trace {
    /// Distinguishes the threads' rings of several traces.
    number: u64,
    rings: Mutex<Vec<Ring>>,
    kept: Mutex<KeptBlocks>,
    /// Wakes the collector.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Takes each new block.
    sink: OnceLock<Box<dyn Fn(Sealed) + Send + Sync>>,
}

/// The collector's end of a thread's ring.
#[derive(Debug)]
struct Ring {
    calls: Consumer<Traced>,
    dropped: Arc<AtomicU64>,
}

/// A thread's own end.
struct Own {
    trace: u64,
    calls: Producer<Traced>,
    dropped: Arc<AtomicU64>,
    count: u64,
}

#[derive(Debug, Default)]
struct KeptBlocks {
    blocks: VecDeque<Block>,
    /// Not packed yet, in the order in which they were collected.
    open: Vec<Traced>,
    /// When the first of `open` was collected.
    since: Duration,
    /// Calls and bytes in `blocks`.
    calls: u64,
    bytes: usize,
    collected: u64,
    dropped: u64,
    /// How many of the dropped calls a block has reported.
    told: u64,
    unwritten: u64,
}

thread_local! {
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

impl Default for Trace {
    fn default() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Trace {
            number: NUMBERS.fetch_add(1, Relaxed),
            rings: Mutex::default(),
            kept: Mutex::default(),
            wake: OnceLock::new(),
            sink: OnceLock::new(),
        }
    }
}

impl Trace {
    /// `wake` is called by a thread whose ring is half full: it must not wait.
    pub fn on_half_full(&self, wake: impl Fn() + Send + Sync + 'static) {
        // A second one would mean a second collector, but there is only one.
        drop(self.wake.set(Box::new(wake)));
    }

    /// `sink` takes each block from here on: it must not wait.
    pub fn to(&self, sink: impl Fn(Sealed) + Send + Sync + 'static) {
        // The first one stays: a file without the blocks that went to others is of no use.
        drop(self.sink.set(Box::new(sink)));
    }

    /// Notes a call.
    pub fn push(&self, traced: Traced) {
        // A thread that is ending has no ring any more, and answers no calls.
        OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            let own = match &mut *own {
                Some(own) if own.trace == self.number => own,
                other => other.insert(self.ring()),
            };
            if own.calls.push(traced).is_err() {
                own.dropped.fetch_add(1, Relaxed);
            }
            own.count += 1;
            if own.count.is_multiple_of(LOOK)
                && own.calls.slots() < RING / 2
                && let Some(wake) = self.wake.get()
            {
                wake();
            }
        })
        .ok();
    }

    fn ring(&self) -> Own {
        let (producer, consumer) = RingBuffer::new(RING);
        let dropped = Arc::new(AtomicU64::new(0));
        self.rings.lock().push(Ring { calls: consumer, dropped: Arc::clone(&dropped) });
        Own { trace: self.number, calls: producer, dropped, count: 0 }
    }

    /// Empties the rings. Returns the calls, in the order in which they began; they are kept only by [`Trace::keep`].
    pub fn collect(&self) -> Vec<Traced> {
        let mut rings = self.rings.lock();
        let mut fresh = Vec::new();
        let mut dropped = 0;
        rings.retain_mut(|ring| {
            // Checked first, so that everything an ended thread has put in is seen.
            let ended = ring.calls.is_abandoned();
            let here = ring.calls.slots();
            // There are as many: only this thread takes them out.
            fresh.extend(ring.calls.read_chunk(here).into_iter().flatten());
            dropped += ring.dropped.swap(0, Relaxed);
            !ended
        });
        drop(rings);
        fresh.sort_by_key(|traced| traced.call.began);
        self.kept.lock().dropped += dropped;
        fresh
    }

    /// Keeps collected calls. A block that is full, or has been held back for too long, is passed to the sink.
    pub fn keep(&self, fresh: &[Traced], now: Duration) {
        let mut kept = self.kept.lock();
        let mut sealed = Vec::new();
        kept.collected += fresh.len() as u64;
        for some in fresh.chunks(BLOCK) {
            if kept.open.is_empty() {
                kept.since = now;
            }
            kept.open.extend_from_slice(some);
            if kept.open.len() >= BLOCK {
                sealed.extend(kept.seal());
            }
        }
        let Some(sink) = self.sink.get() else { return };
        if now.saturating_sub(kept.since) >= PATIENCE {
            sealed.extend(kept.seal());
        }
        drop(kept);
        // There is one collector: they arrive in order.
        sealed.into_iter().for_each(sink);
    }

    /// Passes the unfinished block to the sink.
    pub fn flush(&self) {
        let sealed = self.kept.lock().seal();
        if let (Some(sink), Some(sealed)) = (self.sink.get(), sealed) {
            sink(sealed);
        }
    }

    /// The blocks in memory, oldest first. Calls still in rings are not included.
    pub fn blocks(&self) -> Vec<Block> {
        let kept = self.kept.lock();
        kept.blocks.iter().cloned().chain(kept.packed().map(|sealed| sealed.block)).collect()
    }

    pub fn extent(&self) -> TraceExtent {
        let kept = self.kept.lock();
        TraceExtent {
            calls: kept.calls + kept.open.len() as u64,
            bytes: kept.bytes + size_of_val(&*kept.open),
            collected: kept.collected,
            dropped: kept.dropped,
            unwritten: kept.unwritten,
        }
    }

    /// Notes that a block did not get into a file.
    pub fn unwritten(&self, block: &Block) {
        self.kept.lock().unwritten += u64::from(block.calls);
    }

    /// The latest calls, up to `count` of them.
    pub fn latest(&self, count: usize) -> Vec<Traced> {
        let kept = self.kept.lock();
        let mut latest = kept.open.clone();
        let last = kept.blocks.back().filter(|_| latest.len() < count).cloned();
        drop(kept);
        if let Some(mut calls) = last.and_then(|last| block::unpack(&last.bytes)) {
            calls.append(&mut latest);
            latest = calls;
        }
        latest.drain(..latest.len().saturating_sub(count));
        latest
    }
}

impl KeptBlocks {
    /// The open calls, as a block.
    fn packed(&self) -> Option<Sealed> {
        let mut calls = self.open.clone();
        calls.sort_by_key(|traced| traced.call.began);
        let (first, last) = (calls.first()?, calls.iter().map(Traced::ended).max()?);
        let block = Block {
            from: first.call.began,
            until: last,
            calls: calls.len() as u32,
            dropped: self.dropped - self.told,
            bytes: block::pack(&calls).into(),
        };
        let mut inos: Vec<u64> = calls.iter().map(|traced| traced.ino).collect();
        inos.sort_unstable();
        inos.dedup();
        let renamed = calls.iter().any(|traced| traced.call.op == Op::Rename);
        Some(Sealed { block, inos, renamed })
    }

    /// Makes a block of the open calls.
    fn seal(&mut self) -> Option<Sealed> {
        let sealed = self.packed()?;
        self.told = self.dropped;
        self.open.clear();
        self.calls += u64::from(sealed.block.calls);
        self.bytes += sealed.block.bytes.len();
        self.blocks.push_back(sealed.block.clone());
        while let Some(oldest) = self.blocks.front()
            && self.calls - u64::from(oldest.calls) >= LATEST
        {
            self.calls -= u64::from(oldest.calls);
            self.bytes -= oldest.bytes.len();
            self.blocks.pop_front();
        }
        Some(sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::counters::{Call, Tier};

    fn traced(began: u64) -> Traced {
        let (op, took) = (Op::Read, Duration::from_nanos(5));
        let call =
            Call { op, began: Duration::from_nanos(began), took, offset: 0, bytes: 1, errno: None, tier: Tier::Fast };
        Traced { call, ino: began % 7, handle: 1, process: 1, thread: 1 }
    }

    fn calls(blocks: &[Block]) -> Vec<u64> {
        let all = blocks.iter().flat_map(|block| block::unpack(&block.bytes).expect("packed"));
        all.map(|traced| traced.call.began.as_nanos() as u64).collect()
    }

    /// Everything that several threads note arrives, in order for each thread, including threads that have ended and
    /// two traces at once.
    #[test]
    fn what_is_noted_arrives() {
        let traces = [Trace::default(), Trace::default()];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let traces = &traces;
                scope.spawn(move || {
                    (0..2_000).for_each(|n| traces.iter().for_each(|trace| trace.push(traced(n * 4 + thread))));
                });
            }
        });
        for trace in &traces {
            let fresh = trace.collect();
            trace.keep(&fresh, Duration::ZERO);
            assert_eq!(calls(&trace.blocks()), (0..8_000).collect::<Vec<_>>());
            assert!(trace.rings.lock().is_empty(), "no thread is left");
            assert!(trace.collect().is_empty() && trace.extent().dropped == 0);
        }
    }

    #[test]
    fn a_full_ring_drops_and_says_so_in_its_block() {
        let (trace, woken) = (Trace::default(), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&woken);
        trace.on_half_full(move || {
            count.fetch_add(1, Relaxed);
        });
        (0..RING as u64 + 10).for_each(|n| trace.push(traced(n)));
        assert!(woken.load(Relaxed) > 0, "the collector was called before it was too late");
        let fresh = trace.collect();
        trace.keep(&fresh, Duration::ZERO);
        trace.push(traced(1 << 30));
        let fresh = trace.collect();
        trace.keep(&fresh, Duration::ZERO);
        let blocks = trace.blocks();
        assert_eq!(blocks.iter().map(|block| block.dropped).collect::<Vec<_>>(), [10, 0]);
        assert_eq!(calls(&blocks).len(), RING + 1);
        assert_eq!((trace.extent().dropped, trace.extent().collected), (10, RING as u64 + 1));
    }

    #[test]
    fn the_latest_million_is_kept_and_the_sink_has_all() {
        let (trace, taken) = (Trace::default(), Arc::new(Mutex::new((0, 0))));
        let sum = Arc::clone(&taken);
        trace.to(move |sealed| {
            let mut sum = sum.lock();
            *sum = (sum.0 + u64::from(sealed.block.calls), sum.1 + sealed.inos.len());
        });
        let some: Vec<Traced> = (0..100_000).map(traced).collect();
        for _ in 0..15 {
            trace.keep(&some, Duration::ZERO);
        }
        let extent = trace.extent();
        assert!((LATEST..LATEST + 2 * BLOCK as u64).contains(&extent.calls), "{extent:?}");
        assert!(extent.bytes < 10 * 1_000_000, "{extent:?}");
        assert!(taken.lock().0 < 1_500_000, "the last ones are open");
        trace.flush();
        assert_eq!((taken.lock().0, extent.collected), (1_500_000, 1_500_000));
        assert_eq!(taken.lock().1 % 7, 0);
        trace.keep(&some[..1], Duration::from_secs(9));
        trace.keep(&[], Duration::from_secs(12));
        assert_eq!(taken.lock().0, 1_500_001, "nobody waits for long");
    }
}
