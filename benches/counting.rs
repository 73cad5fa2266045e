//! What it costs to count one operation: `cargo bench --bench counting`. Without a mount: the clock is read by the caller, and
//! nobody else counts at the same time but where it says so.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlio_fs::error::Errno;
use dlio_fs::stats::counters::{Call, Op, Tier};
use dlio_fs::stats::{By, Stats};

const TOOK: Duration = Duration::from_micros(12);

fn call(op: Op, offset: u64, bytes: u64) -> Call {
    Call { op, began: Duration::from_micros(offset), took: TOOK, offset, bytes, errno: None, tier: Tier::Fast }
}

/// What so many of something take. In between, and not counted, the trace is emptied, as another thread does while a mount runs.
fn timed(stats: &Stats, times: u64, mut one: impl FnMut(u64)) -> Duration {
    const PIECE: u64 = 1_000;
    let mut took = Duration::ZERO;
    for first in (0..times).step_by(PIECE as usize) {
        let began = Instant::now();
        (first..times.min(first + PIECE)).for_each(&mut one);
        took += began.elapsed();
        stats.collect(|_| None);
    }
    took
}

/// Prints what one of them takes: the median of samples of a tenth of a second, and the least and the most.
fn bench(name: &str, mut timed: impl FnMut(u64) -> Duration) {
    const SAMPLES: usize = 21;
    const SAMPLE: Duration = Duration::from_millis(100);
    // Also what warms up.
    let mut times = 1_000;
    while timed(times) < SAMPLE / 2 {
        times *= 2;
    }
    let mut nanos: Vec<f64> = (0..SAMPLES).map(|_| timed(times).as_nanos() as f64 / times as f64).collect();
    nanos.sort_by(f64::total_cmp);
    println!("{name}: {:.1} ns ({:.1} to {:.1})", nanos[SAMPLES / 2], nanos[0], nanos[SAMPLES - 1]);
}

fn main() {
    let stats = Stats::default();
    let open = |ino| stats.open(stats.file(ino, || Some("/data/file".into())), stats.processes.others(), None);

    let handle = open(1);
    bench("a read through a handle", |times| {
        let read = |n: u64| stats.record_through(black_box(&call(Op::Read, n * 4096, 4096)), &handle, 1);
        timed(&stats, times, read)
    });

    // Each lies apart from those before: as many ranges as are remembered.
    let (handle, mut at) = (open(2), 1_u64);
    bench("a read at any place", |times| {
        timed(&stats, times, |_| {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            stats.record_through(black_box(&call(Op::Read, at >> 24, 4096)), &handle, 1);
        })
    });

    let none = Call { errno: Some(Errno::ENOENT), ..call(Op::Lookup, 0, 0) };
    bench("a look-up that finds nothing", |times| {
        timed(&stats, times, |_| stats.record(black_box(&none), &stats.file(3, || None), By::default()))
    });

    // Of a data set that is much larger than what is kept at hand: open, read, read its end, close. Four operations.
    let mut ino = 1000;
    bench("a file that is read once", |times| {
        timed(&stats, times, |_| {
            ino += 1;
            let handle = open(ino);
            for (op, offset, bytes) in
                [(Op::Open, 0, 0), (Op::Read, 0, 110_000), (Op::Read, 110_000, 0), (Op::Flush, 0, 0)]
            {
                stats.record_through(&call(op, offset, bytes), &handle, 1);
            }
        })
    });

    let (stats, stop) = (Arc::new(Stats::default()), Arc::new(AtomicBool::new(false)));
    let open = |ino| stats.open(stats.file(ino, || None), stats.processes.others(), None);
    let (mine, other) = (open(1), open(2));
    let beside = {
        let (stats, stop) = (Arc::clone(&stats), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                stats.record_through(&call(Op::Read, 0, 4096), &other, 1);
            }
        })
    };
    bench("a read while another thread reads another file", |times| {
        let read = |n: u64| stats.record_through(black_box(&call(Op::Read, n * 4096, 4096)), &mine, 1);
        timed(&stats, times, read)
    });
    stop.store(true, Ordering::Relaxed);
    beside.join().unwrap();
}
