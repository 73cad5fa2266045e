//! A checkpoint that all ranks of a job save at the same time, as MLPerf Storage does: each rank one shard with an fsync, a
//! barrier, then a marker by the first one. ("DLIO shape, scaled": the rules are those of MLPerf Storage v3.0, 4.3 and
//! 4.7; the figures are none of its results.)

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;

use super::StopFlag;
use super::checkpoint::pause;
use super::data::{Data, sync_dir};
use super::rank_processes::RankProcesses;
use super::reader::join;
use super::sequential;

/// Of each write and read.
pub(crate) const PIECE: usize = 1 << 20;
/// The marker's name: it says which step is whole.
pub(crate) const MARKER: &str = "latest";

/// Who writes and reads the shards.
#[derive(Debug)]
pub(crate) enum RankSet {
    /// A thread for each, with what it writes.
    Threads(Vec<Data>),
    Processes(RankProcesses),
}

/// The checkpoints of a job with several ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RanksLoad {
    pub(crate) ranks: usize,
    pub(crate) count: usize,
    /// Bytes of one rank's shard.
    pub(crate) shard: u64,
    /// How long the job computes between two of them.
    pub(crate) interval: Duration,
}

/// What saving them took.
#[derive(Clone, Debug)]
pub(crate) struct SaveTimes {
    /// Seconds until the slowest rank of each was done, in all.
    pub(crate) blocked: f64,
    /// When each began. Training that goes on from one has lost what came behind that.
    pub(crate) began: Vec<Instant>,
}

impl RanksLoad {
    pub(crate) fn bytes(&self) -> u64 {
        self.checkpoint().saturating_mul(self.count as u64)
    }

    /// Bytes of one checkpoint.
    pub(crate) fn checkpoint(&self) -> u64 {
        self.shard.saturating_mul(self.ranks as u64)
    }

    /// Of what all of them take, the share of one GiB.
    pub(crate) fn per_gib(&self, all: f64) -> f64 {
        all / (self.bytes() as f64 / (1u64 << 30) as f64)
    }

    /// Saves all of them, one after the other.
    pub(crate) fn save(&self, dir: &Path, ranks: &mut RankSet, stop: &StopFlag) -> Result<SaveTimes> {
        let (mut blocked, mut began) = (0.0, Vec::new());
        for number in 1..=self.count {
            pause(if number == 1 { Duration::ZERO } else { self.interval }, stop)?;
            stop.check()?;
            began.push(Instant::now());
            let step = step_dir(dir, number);
            fs::create_dir(&step).at("mkdir", step.shown())?;
            blocked += match ranks {
                RankSet::Processes(processes) => processes.save(&step)?,
                RankSet::Threads(data) => at_once(data, |rank, data| {
                    let path = shard(&step, rank);
                    sequential::write(&path, self.shard, PIECE, true, data, stop).map(drop)
                })?,
            };
            let begun = Instant::now();
            mark(dir, number)?;
            blocked += begun.elapsed().as_secs_f64();
        }
        Ok(SaveTimes { blocked, began })
    }

    /// Each rank reads its shard of each. Returns the seconds until the slowest rank of each was done, in all.
    pub(crate) fn load(&self, dir: &Path, ranks: &mut RankSet, stop: &StopFlag) -> Result<f64> {
        let mut took = 0.0;
        for number in 1..=self.count {
            stop.check()?;
            let step = step_dir(dir, number);
            took += match ranks {
                RankSet::Processes(processes) => processes.load(&step)?,
                RankSet::Threads(data) => {
                    at_once(data, |rank, _| sequential::read(&shard(&step, rank), PIECE, stop).map(drop))?
                }
            };
        }
        Ok(took)
    }
}

/// Does something once in each rank, all from the same moment on, with what it has of its own. Returns the seconds from when the first
/// one begins until the slowest one is done: a rank that gets a processor late has had to wait for it.
pub(super) fn at_once<T: Send>(own: &mut [T], one: impl Fn(usize, &mut T) -> Result<()> + Sync) -> Result<f64> {
    let (barrier, before) = (Barrier::new(own.len()), Instant::now());
    let now = || before.elapsed().as_nanos() as u64;
    let (begin, end) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
    let rank = |(rank, own): (usize, &mut T)| {
        barrier.wait();
        begin.fetch_min(now(), Ordering::Relaxed);
        let done = one(rank, own);
        end.fetch_max(now(), Ordering::Relaxed);
        done
    };
    thread::scope(|scope| {
        let ranks = own.iter_mut().enumerate().map(|own| scope.spawn(|| rank(own)));
        join(ranks.collect())
    })?;
    Ok(end.into_inner().saturating_sub(begin.into_inner()) as f64 / 1e9)
}

/// The last thing that a save writes: whoever reads it finds all shards of that step.
fn mark(dir: &Path, number: usize) -> Result<()> {
    let (path, temporary) = (dir.join(MARKER), dir.join("latest.tmp"));
    fs::write(&temporary, marker(number)).at("write", temporary.shown())?;
    File::open(&temporary).and_then(|file| file.sync_all()).at("fsync", temporary.shown())?;
    fs::rename(&temporary, &path).at("rename", temporary.shown())?;
    sync_dir(dir)
}

/// What the marker of this step says.
pub(crate) fn marker(number: usize) -> String {
    format!("step-{number}\n")
}

fn step_dir(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("step-{number}"))
}

fn shard(step: &Path, rank: usize) -> PathBuf {
    step.join(format!("rank-{rank:03}.pt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_a_shard_of_each_step_and_the_marker_names_the_last() {
        let dir = tempfile::tempdir().expect("a directory");
        let interval = Duration::from_millis(20);
        let load = RanksLoad { ranks: 3, count: 2, shard: 100_000, interval };
        let mut data = RankSet::Threads((0..3).map(|_| Data::new(PIECE)).collect());
        let stop = StopFlag::default();
        let times = load.save(dir.path(), &mut data, &stop).expect("saved");
        assert!(times.blocked > 0.0 && times.began.len() == 2);
        assert!(times.began[1].duration_since(times.began[0]) >= interval);
        assert!(load.load(dir.path(), &mut data, &stop).expect("loaded") > 0.0);
        let lens: Vec<u64> = (0..3)
            .flat_map(|rank| [1, 2].map(|step| shard(&step_dir(dir.path(), step), rank)))
            .map(|path| fs::metadata(path).expect("a shard").len())
            .collect();
        assert_eq!((lens, load.bytes()), (vec![100_000; 6], 600_000));
        assert_eq!(fs::read_to_string(dir.path().join(MARKER)).expect("a marker"), marker(2));
        fs::remove_file(shard(&step_dir(dir.path(), 2), 1)).expect("removed");
        assert!(load.load(dir.path(), &mut data, &stop).is_err(), "a shard is missing");
    }
}
