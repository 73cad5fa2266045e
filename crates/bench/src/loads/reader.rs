//! Reads a data set as a training job does: several threads read files in random order, decode pictures and resize
//! them, and put them into batches, beside or between steps of computing. ("Characterizing Deep-Learning I/O Workloads
//! in TensorFlow", Chien et al. 2018, 3.1, 3.2 and Figs. 4 to 7.)

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;
use parking_lot::{Condvar, Mutex};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::{StopFlag, pictures};

/// The buffer size of a reader.
pub(crate) const BUFFER: usize = 1 << 20;

/// How files become batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) threads: usize,
    /// Pictures are decoded and resized by the threads that read them.
    pub(crate) decode: bool,
    pub(crate) pace: Pace,
}

/// When the next files are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// As soon as possible.
    Free,
    /// A step of computing follows each batch.
    Steps {
        batch: usize,
        /// The duration of one step.
        compute: Duration,
        /// Batches prepared while a step computes. With none, threads are idle then.
        ahead: usize,
    },
}

/// The result of a pass over a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pass {
    pub(crate) seconds: f64,
    /// Of these, until the first step began to compute.
    pub(crate) first: f64,
    pub(crate) bytes: u64,
    /// Steps of computing.
    pub(crate) steps: usize,
}

/// The order of a pass: the same for the same seed.
pub(crate) fn shuffled(paths: &[PathBuf], seed: u64) -> Vec<PathBuf> {
    let mut order = paths.to_vec();
    order.shuffle(&mut SmallRng::seed_from_u64(seed));
    order
}

/// Opens, stats, reads and closes a file; returns its size. The content is at the start of the buffer, which never
/// shrinks.
pub(crate) fn read_file(path: &Path, buffer: &mut Vec<u8>) -> Result<usize> {
    let mut file = File::open(path).at("open", path.shown())?;
    file.metadata().at("stat", path.shown())?;
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            buffer.resize(filled + BUFFER, 0);
        }
        match file.read(&mut buffer[filled..]).at("read", path.shown())? {
            0 => return Ok(filled),
            n => filled += n,
        }
    }
}

/// The progress of a pass.
struct PassState {
    next: usize,
    /// Files before this index may be taken.
    limit: usize,
    /// The number of ready files, by batch.
    ready: Vec<usize>,
    bytes: u64,
    /// Nothing more is read: a reader has failed, or all steps are done.
    over: bool,
}

/// One pass over files in this order. Files that do not fill a last batch are left out, as in training.
pub(crate) fn pass(order: &[PathBuf], load: Load, stop: &StopFlag) -> Result<Pass> {
    pass_computing(order, load, stop, |_, time| {
        // An accelerator would be busy, but not this processor.
        std::thread::sleep(time);
        Ok(true)
    })
}

/// The same; each step calls `compute` with its number and its duration. The pass ends once that returns false.
pub(crate) fn pass_computing(
    order: &[PathBuf],
    load: Load,
    stop: &StopFlag,
    compute: impl FnMut(usize, Duration) -> Result<bool>,
) -> Result<Pass> {
    let (batch, steps) = match load.pace {
        Pace::Free => (order.len().max(1), 0),
        Pace::Steps { batch, .. } => (batch, order.len() / batch),
    };
    let order = if steps > 0 { &order[..steps * batch] } else { order };
    let limit = if steps > 0 { 0 } else { order.len() };
    let ready = vec![0; order.len().div_ceil(batch)];
    let shared = (Mutex::new(PassState { next: 0, limit, ready, bytes: 0, over: false }), Condvar::new());
    let begun = Instant::now();
    let (first, steps, ended) = std::thread::scope(|scope| {
        let threads = (0..load.threads).map(|_| scope.spawn(|| prepare(order, load.decode, batch, &shared, stop)));
        let threads = threads.collect();
        if steps == 0 {
            join(threads)?;
            return Ok((begun, 0, Instant::now()));
        }
        let stepped = step_by_step(load.pace, &shared, compute);
        let ended = Instant::now();
        shared.0.lock().over = true;
        shared.1.notify_all();
        // Why a reader failed comes before what the steps made of it.
        join(threads)?;
        stepped.map(|(first, steps)| (first.unwrap_or(ended), steps, ended))
    })?;
    let bytes = shared.0.lock().bytes;
    let [seconds, first] = [ended, first].map(|moment| moment.duration_since(begun).as_secs_f64());
    Ok(Pass { seconds, first, bytes, steps })
}

type PassShared = (Mutex<PassState>, Condvar);

/// A thread that reads until no files are left.
fn prepare(order: &[PathBuf], decode: bool, batch: usize, shared: &PassShared, stop: &StopFlag) -> Result<()> {
    let (state, changed) = shared;
    let mut buffer = vec![0; BUFFER];
    let mut one = |path: &Path| {
        stop.check()?;
        let size = read_file(path, &mut buffer)?;
        if decode {
            pictures::decode(&buffer[..size], path)?;
        }
        Ok(size)
    };
    loop {
        let at = {
            let mut state = state.lock();
            while !state.over && state.next < order.len() && state.next >= state.limit {
                changed.wait(&mut state);
            }
            if state.over || state.next == order.len() {
                return Ok(());
            }
            state.next += 1;
            state.next - 1
        };
        let done = one(&order[at]);
        let mut state = state.lock();
        match done {
            Ok(size) => {
                state.bytes += size as u64;
                state.ready[at / batch] += 1;
                if state.ready[at / batch] == batch {
                    changed.notify_all();
                }
            }
            Err(error) => {
                state.over = true;
                changed.notify_all();
                return Err(error);
            }
        }
    }
}

/// Computes on one batch after the other. Returns when the first step began, and how many there were.
fn step_by_step(
    pace: Pace,
    shared: &PassShared,
    mut compute: impl FnMut(usize, Duration) -> Result<bool>,
) -> Result<(Option<Instant>, usize)> {
    let (mut first, mut done) = (None, 0);
    let Pace::Steps { batch, compute: time, ahead } = pace else { return Ok((first, done)) };
    let steps = shared.0.lock().ready.len();
    let mut goes_on = true;
    while goes_on && done < steps && wait_for_batch(done, batch, ahead, shared) {
        first.get_or_insert_with(Instant::now);
        goes_on = compute(done, time)?;
        done += 1;
    }
    Ok((first, done))
}

/// Waits for the batch of a step, and lets readers go on with those after it; returns false once a reader has failed.
fn wait_for_batch(step: usize, batch: usize, ahead: usize, (state, changed): &PassShared) -> bool {
    let mut state = state.lock();
    state.limit = state.limit.max((step + 1) * batch);
    changed.notify_all();
    while !state.over && state.ready[step] < batch {
        changed.wait(&mut state);
    }
    state.limit = state.limit.max((step + 1 + ahead) * batch);
    changed.notify_all();
    !state.over
}

/// Waits for all threads; returns the first failure.
pub(super) fn join(threads: Vec<ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    // A panic aborts the program, so none is reported here.
    let all: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn files(dir: &Path, count: usize) -> Vec<PathBuf> {
        let paths: Vec<_> = (0..count).map(|n| dir.join(n.to_string())).collect();
        paths.iter().enumerate().for_each(|(n, path)| fs::write(path, vec![0; n]).expect("written"));
        paths
    }

    fn load(threads: usize, pace: Pace) -> Load {
        Load { threads, decode: false, pace }
    }

    #[test]
    fn a_pass_reads_each_file_once_whoever_reads() {
        let dir = tempfile::tempdir().expect("a directory");
        let (paths, stop) = (files(dir.path(), 100), StopFlag::default());
        let all = (0..100).sum::<u64>();
        for threads in [1, 3, 16] {
            assert_eq!(pass(&paths, load(threads, Pace::Free), &stop).expect("read").bytes, all);
        }
        for ahead in [0, 1, 5] {
            let pace = Pace::Steps { batch: 8, compute: Duration::from_micros(100), ahead };
            let done = pass(&paths, load(4, pace), &stop).expect("read");
            assert_eq!((done.steps, done.bytes), (12, (0..96).sum::<u64>()), "the last four fill no batch");
        }
    }

    #[test]
    fn without_prefetch_nothing_is_read_while_a_step_computes() {
        let (batch, steps) = (4, 3);
        let shared = (
            Mutex::new(PassState { next: 0, limit: 0, ready: vec![batch; steps], bytes: 0, over: false }),
            Condvar::new(),
        );
        for (step, ahead, limit) in [(0, 0, 4), (1, 0, 8), (1, 1, 12), (2, 2, 20)] {
            assert!(wait_for_batch(step, batch, ahead, &shared));
            assert_eq!(shared.0.lock().limit, limit);
        }
        shared.0.lock().over = true;
        assert!(!wait_for_batch(0, batch, 0, &shared));
    }

    /// Readers that wait for room must not be waited for.
    #[test]
    fn a_pass_ends_when_its_steps_do_or_fail() {
        let dir = tempfile::tempdir().expect("a directory");
        let (paths, stop) = (files(dir.path(), 60), StopFlag::default());
        let load = load(3, Pace::Steps { batch: 2, compute: Duration::from_secs(7), ahead: 4 });
        let mut times = Vec::new();
        let done = pass_computing(&paths, load, &stop, |step, time| {
            times.push((step, time));
            Ok(step < 4)
        });
        let done = done.expect("read");
        assert_eq!((done.steps, times.len(), times[4]), (5, 5, (4, Duration::from_secs(7))));
        assert!(done.first <= done.seconds);
        let failed = pass_computing(&paths, load, &stop, |_, _| Err(dlio_fs::error::Errno::EIO.into()));
        assert!(failed.is_err());
    }

    #[test]
    fn an_order_is_the_seeds_and_has_all() {
        let paths: Vec<PathBuf> = (0..50).map(|n| n.to_string().into()).collect();
        let (one, same, other) = (shuffled(&paths, 1), shuffled(&paths, 1), shuffled(&paths, 2));
        assert_eq!(one, same);
        assert_ne!(one, other);
        let mut sorted = one.clone();
        sorted.sort_by_key(|path| paths.iter().position(|one| one == path));
        assert_eq!(sorted, paths);
    }

    #[test]
    fn a_file_that_is_missing_ends_the_pass_and_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let (paths, stop) = (files(dir.path(), 40), StopFlag::default());
        fs::remove_file(&paths[20]).expect("removed");
        for pace in [Pace::Free, Pace::Steps { batch: 4, compute: Duration::ZERO, ahead: 1 }] {
            let error = pass(&paths, load(3, pace), &stop).expect_err("one is missing").to_string();
            assert!(error.contains("/20"), "{error}");
        }
        stop.set();
        assert!(pass(&paths, load(3, Pace::Free), &stop).is_err());
    }

    #[test]
    fn a_file_larger_than_the_buffer_is_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("large");
        let content: Vec<u8> = (0..3 * BUFFER + 17).map(|n| (n % 251) as u8).collect();
        fs::write(&path, &content).expect("written");
        let mut buffer = vec![0; BUFFER];
        let size = read_file(&path, &mut buffer).expect("read");
        assert!(buffer[..size] == content);
    }
}
