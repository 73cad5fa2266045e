//! A training loop that saves checkpoints: readers prepare batches ahead, each step computes on one processor, and a save
//! stops the loop, as `torch.save` does, or goes on beside it, as `async_save` does. What else goes on meanwhile is the
//! caller's.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use dlio_fs::error::Result;
use xxhash_rust::xxh3::xxh3_64;

use super::StopFlag;
use super::checkpoint::CheckpointLoad;
use super::data::Data;
use super::reader::{self, Load, Pace, join};

/// As many as MLPerf Storage has for unet3d.
const READERS: usize = 4;
/// Batches that they prepare while a step computes: a DataLoader's `prefetch_factor`.
const AHEAD: usize = 2;
/// The memory that is hashed. It fits into the cache of one processor: a step is to notice that the processor is taken
/// away, not who else uses the memory.
const HASHED: usize = 256 << 10;
/// How long one trial of the calibration takes at least, and how many there are.
const TRIAL: Duration = Duration::from_millis(2);
const TRIALS: usize = 100;

/// Work for one processor, always as much. Unlike a sleep it takes longer when somebody else gets the processor.
#[derive(Debug)]
pub(crate) struct ProcessorWork {
    memory: Vec<u8>,
    rounds: usize,
}

impl ProcessorWork {
    /// As much as takes `time` when nobody disturbs it: the fastest of several trials counts.
    pub(crate) fn calibrated(time: Duration, stop: &StopFlag) -> Result<ProcessorWork> {
        let mut work = ProcessorWork { memory: vec![7; HASHED], rounds: 1 };
        // Asked before each trial: where the processor is taken away, the first one may be long enough.
        stop.check()?;
        while work.time() < TRIAL {
            work.rounds *= 2;
            stop.check()?;
        }
        let fastest = (0..TRIALS).map(|_| work.time()).min().unwrap_or(TRIAL);
        let rounds = work.rounds as f64 * time.as_secs_f64() / fastest.as_secs_f64();
        work.rounds = (rounds.round() as usize).max(1);
        Ok(work)
    }

    /// Does it; returns how long that took.
    fn time(&self) -> Duration {
        let begun = Instant::now();
        for _ in 0..self.rounds {
            black_box(xxh3_64(black_box(&self.memory)));
        }
        begun.elapsed()
    }
}

/// What a training job does in its loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrainingLoop {
    pub(crate) steps: usize,
    /// Files that are read for one step.
    pub(crate) batch: usize,
    /// How long a step computes when nobody disturbs it.
    pub(crate) compute: Duration,
    /// A checkpoint is saved each time that so many steps are done.
    pub(crate) every: usize,
    /// Bytes of one checkpoint.
    pub(crate) size: u64,
}

/// What a loop took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopTimes {
    pub(crate) steps: usize,
    pub(crate) seconds: f64,
    /// Of these, for how long it computed, and for how long it waited for saves.
    pub(crate) computed: f64,
    pub(crate) blocked: f64,
}

impl LoopTimes {
    /// Steps per second.
    pub(crate) fn rate(&self) -> f64 {
        self.steps as f64 / self.seconds
    }

    /// Steps per second while it did not wait for a save.
    pub(crate) fn rate_between_saves(&self) -> f64 {
        self.steps as f64 / (self.seconds - self.blocked)
    }

    /// For how many seconds a step waited until its files were read.
    pub(crate) fn wait_for_batch(&self) -> f64 {
        (self.seconds - self.computed - self.blocked) / self.steps as f64
    }

    /// By how many percent `rate` is less than the rate of this loop.
    pub(crate) fn slowdown(&self, rate: f64) -> f64 {
        100.0 * (1.0 - rate / self.rate())
    }
}

impl TrainingLoop {
    /// How many files it reads.
    pub(crate) fn files(&self) -> usize {
        self.steps * self.batch
    }

    /// How many checkpoints it saves. None after its last step: no further step would notice it.
    pub(crate) fn saves(&self) -> usize {
        (self.steps - 1) / self.every
    }

    pub(crate) fn checkpoints(&self, count: usize) -> CheckpointLoad {
        CheckpointLoad { count, size: self.size, interval: Duration::ZERO, fsync: true }
    }

    /// The number of the checkpoint that is saved when this step is done.
    fn due(&self, step: usize) -> Option<usize> {
        let number = (step + 1) / self.every;
        ((step + 1).is_multiple_of(self.every) && number <= self.saves()).then_some(number)
    }

    /// Trains and saves nothing, for as long as `goes_on` says after a step.
    pub(crate) fn run(
        &self,
        order: &[PathBuf],
        work: &ProcessorWork,
        stop: &StopFlag,
        goes_on: impl Fn() -> bool,
    ) -> Result<LoopTimes> {
        self.steps(order, work, stop, |_| Ok(goes_on()))
    }

    /// The loop waits for each save.
    pub(crate) fn run_and_save(
        &self,
        order: &[PathBuf],
        work: &ProcessorWork,
        dir: &Path,
        data: &mut Data,
        stop: &StopFlag,
    ) -> Result<LoopTimes> {
        let checkpoints = self.checkpoints(self.saves());
        self.steps(order, work, stop, |step| match self.due(step) {
            Some(number) => checkpoints.save(dir, number, data, stop).map(|()| true),
            None => Ok(true),
        })
    }

    /// A thread beside the loop saves. The loop waits only where the save before is not done.
    pub(crate) fn run_and_save_beside(
        &self,
        order: &[PathBuf],
        work: &ProcessorWork,
        dir: &Path,
        data: &mut Data,
        stop: &StopFlag,
    ) -> Result<LoopTimes> {
        let checkpoints = self.checkpoints(self.saves());
        // Whoever asks waits until the thread takes it.
        let (ask, asked) = mpsc::sync_channel(0);
        thread::scope(|scope| {
            let save = move || asked.iter().try_for_each(|number| checkpoints.save(dir, number, data, stop));
            let saver = scope.spawn(save);
            // Nobody takes it any more once a save has failed.
            let looped = self.steps(order, work, stop, |step| Ok(self.due(step).is_none_or(|n| ask.send(n).is_ok())));
            drop(ask);
            join(vec![saver])?;
            looped
        })
    }

    /// Calls `after` after each step, and counts what it takes as blocked. It tells whether the loop goes on.
    fn steps(
        &self,
        order: &[PathBuf],
        work: &ProcessorWork,
        stop: &StopFlag,
        mut after: impl FnMut(usize) -> Result<bool>,
    ) -> Result<LoopTimes> {
        let pace = Pace::Steps { batch: self.batch, compute: self.compute, ahead: AHEAD };
        let [mut computed, mut blocked] = [Duration::ZERO; 2];
        let pass = reader::pass_computing(order, Load { threads: READERS, decode: false, pace }, stop, |step, _| {
            computed += work.time();
            stop.check()?;
            let begun = Instant::now();
            let goes_on = after(step);
            blocked += begun.elapsed();
            goes_on
        })?;
        let [computed, blocked] = [computed, blocked].map(|time| time.as_secs_f64());
        Ok(LoopTimes { steps: pass.steps, seconds: pass.seconds, computed, blocked })
    }
}

#[cfg(test)]
mod tests {
    use super::super::checkpoint::saved;
    use super::super::sequential::write_small;
    use super::*;
    use std::cell::Cell;

    struct Job {
        dir: tempfile::TempDir,
        work: ProcessorWork,
        order: Vec<PathBuf>,
        data: Data,
    }

    const LOOP: TrainingLoop =
        TrainingLoop { steps: 7, batch: 2, compute: Duration::from_micros(50), every: 3, size: 10_000 };

    fn job() -> Job {
        let (dir, mut data, stop) =
            (tempfile::tempdir().expect("a directory"), Data::new(1 << 20), StopFlag::default());
        let order = write_small(dir.path(), LOOP.files(), 100, &mut data, &stop).expect("written");
        Job { dir, work: ProcessorWork::calibrated(LOOP.compute, &stop).expect("calibrated"), order, data }
    }

    #[test]
    fn work_is_what_takes_so_long_and_a_stop_is_obeyed() {
        let stop = StopFlag::default();
        let [short, long] = [1, 100].map(|ms| ProcessorWork::calibrated(Duration::from_millis(ms), &stop));
        let (short, long) = (short.expect("calibrated").rounds, long.expect("calibrated").rounds);
        assert!(short > 0 && long > short, "{short} and {long} rounds");
        stop.set();
        assert!(ProcessorWork::calibrated(Duration::ZERO, &stop).is_err());
    }

    #[test]
    fn it_saves_either_way_and_not_after_the_last_step() {
        let mut job = job();
        let stop = StopFlag::default();
        assert_eq!((LOOP.saves(), TrainingLoop { steps: 6, ..LOOP }.saves()), (2, 1));
        assert_eq!((0..7).filter_map(|step| LOOP.due(step)).collect::<Vec<_>>(), [1, 2]);
        for beside in [false, true] {
            let dir = job.dir.path().join(if beside { "beside" } else { "waits" });
            std::fs::create_dir(&dir).expect("mkdir");
            let times = match beside {
                false => LOOP.run_and_save(&job.order, &job.work, &dir, &mut job.data, &stop),
                true => LOOP.run_and_save_beside(&job.order, &job.work, &dir, &mut job.data, &stop),
            };
            let times = times.expect("trained");
            assert_eq!((times.steps, times.blocked > 0.0, times.wait_for_batch() > 0.0), (7, true, true));
            assert!([1, 2].iter().all(|number| saved(&dir, *number).metadata().expect("saved").len() == 10_000));
            assert_eq!(std::fs::read_dir(&dir).expect("listed").count(), 2);
            let none = job.dir.path().join("none");
            let failed = match beside {
                false => LOOP.run_and_save(&job.order, &job.work, &none, &mut job.data, &stop),
                true => LOOP.run_and_save_beside(&job.order, &job.work, &none, &mut job.data, &stop),
            };
            assert!(failed.expect_err("there is no such directory").to_string().contains("/none/"));
        }
    }

    #[test]
    fn it_goes_on_for_as_long_as_it_is_told() {
        let job = job();
        let (stop, asked) = (StopFlag::default(), Cell::new(0));
        let times = LOOP.run(&job.order, &job.work, &stop, || asked.replace(asked.get() + 1) < 3).expect("trained");
        assert_eq!((times.steps, asked.get()), (4, 4));
        stop.set();
        assert!(LOOP.run(&job.order, &job.work, &stop, || true).is_err());
    }

    #[test]
    fn a_slowdown_is_of_steps_in_the_same_time() {
        let alone = LoopTimes { steps: 40, seconds: 4.0, computed: 4.0, blocked: 0.0 };
        let saving = LoopTimes { steps: 40, seconds: 16.0, computed: 6.0, blocked: 8.0 };
        assert_eq!((alone.slowdown(saving.rate()), alone.slowdown(saving.rate_between_saves())), (75.0, 50.0));
        assert_eq!((alone.wait_for_batch(), saving.wait_for_batch()), (0.0, 0.05));
    }
}
