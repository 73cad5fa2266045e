//! What plans promised, and their results. Pure: figures come in.
//!
//! A plan names files to stage, and says what an epoch spends on them before and after. For each staging job made from
//! a plan we keep the promise, and eight bytes for each path. When the job has ended, the counters of its files until
//! then are noted; what comes after is compared with the promise.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::record::{Field, FileRecord};

/// How many plans are remembered, the latest ones.
const KEPT: usize = 16;
/// The most paths of one plan: as many as may wait to be staged.
const PATHS_MAX: usize = 4_000_000;

/// What an epoch spends on the files of a plan, in calls that write nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// Nanoseconds as recorded, and as expected once the files are staged.
    pub before: u64,
    pub after: u64,
    /// Bytes that an epoch reads of them, to derive how often they were read since.
    pub bytes: u64,
}

/// What was spent on some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Nanoseconds in calls that wrote nothing.
    pub time: u64,
    pub bytes: u64,
    pub slow_bytes: u64,
}

/// A plan being carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningPlan {
    /// The number of its staging job.
    pub job: u64,
    pub files: u64,
    pub promise: Promise,
    /// What was spent since the job ended; `None` before that.
    pub since: Option<Spent>,
}

/// Paths, by their hashes.
#[derive(Clone, Debug, Default)]
pub struct PathHashes(Arc<HashSet<u64>>);

/// The plans of a mount.
#[derive(Debug, Default)]
pub struct Plans(Mutex<VecDeque<WatchedPlan>>);

#[derive(Debug)]
struct WatchedPlan {
    job: u64,
    promise: Promise,
    paths: PathHashes,
    /// What had been spent on its files when the job ended.
    before: Option<Spent>,
}

impl Spent {
    /// Adds a file.
    pub fn add(&mut self, record: &FileRecord) {
        let more = [Field::ReadTime, Field::MetaTime].map(|field| record.get(field));
        self.time = more.iter().fold(self.time, |sum, time| sum.saturating_add(*time));
        self.bytes = self.bytes.saturating_add(record.get(Field::BytesRead));
        self.slow_bytes = self.slow_bytes.saturating_add(record.get(Field::SlowBytesRead));
    }

    fn without(self, before: Spent) -> Spent {
        Spent {
            time: self.time.saturating_sub(before.time),
            bytes: self.bytes.saturating_sub(before.bytes),
            slow_bytes: self.slow_bytes.saturating_sub(before.slow_bytes),
        }
    }
}

impl RunningPlan {
    /// How many epochs were read since, and the time each of them spent; `None`: less than a tenth of an epoch.
    pub fn measured(&self) -> Option<(f64, Duration)> {
        let since = self.since?;
        let epochs = since.bytes as f64 / self.promise.bytes.max(1) as f64;
        (epochs >= 0.1).then(|| (epochs, Duration::from_nanos((since.time as f64 / epochs) as u64)))
    }
}

impl PathHashes {
    /// Whether a path is one of them. `path`: from the mount's root, escaped.
    pub fn has(&self, path: &str) -> bool {
        self.0.contains(&xxh3_64(path.as_bytes()))
    }

    fn add<'a>(&mut self, paths: impl IntoIterator<Item = &'a str>) {
        let mine = Arc::make_mut(&mut self.0);
        mine.extend(paths.into_iter().map(|path| xxh3_64(path.as_bytes())).take(PATHS_MAX.saturating_sub(mine.len())));
    }
}

impl Plans {
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Begins a job that was made from a plan.
    pub fn start<'a>(&self, job: u64, promise: Promise, paths: impl IntoIterator<Item = &'a str>) {
        let mut plan = WatchedPlan { job, promise, paths: PathHashes::default(), before: None };
        plan.paths.add(paths);
        let mut plans = self.0.lock();
        plans.push_back(plan);
        if plans.len() > KEPT {
            plans.pop_front();
        }
    }

    /// Adds paths to a job. If it had ended, it continues.
    pub fn more<'a>(&self, job: u64, paths: impl IntoIterator<Item = &'a str>) {
        if let Some(plan) = self.0.lock().iter_mut().find(|plan| plan.job == job) {
            plan.paths.add(paths);
            plan.before = None;
        }
    }

    /// Jobs for which the time spent until their end is not noted yet.
    pub fn open(&self) -> Vec<u64> {
        self.0.lock().iter().filter(|plan| plan.before.is_none()).map(|plan| plan.job).collect()
    }

    /// Each job with its paths.
    pub fn paths(&self) -> Vec<(u64, PathHashes)> {
        self.0.lock().iter().map(|plan| (plan.job, plan.paths.clone())).collect()
    }

    /// Notes that a job has ended, and what had been spent on its files by then. A job that got more paths meanwhile
    /// continues.
    pub fn ended(&self, job: u64, paths: &PathHashes, before: Spent) {
        let mut plans = self.0.lock();
        let is_it = |plan: &&mut WatchedPlan| plan.job == job && Arc::ptr_eq(&plan.paths.0, &paths.0);
        if let Some(plan) = plans.iter_mut().find(is_it) {
            plan.before.get_or_insert(before);
        }
    }

    /// All plans; `spent` has what was spent on the files of each job until now.
    pub fn running(&self, spent: &[(u64, Spent)]) -> Vec<RunningPlan> {
        let one = |plan: &WatchedPlan| {
            let now = spent.iter().find(|(job, _)| *job == plan.job).map(|(_, spent)| *spent);
            let since = now.zip(plan.before).map(|(now, before)| now.without(before));
            RunningPlan { job: plan.job, files: plan.paths.0.len() as u64, promise: plan.promise, since }
        };
        self.0.lock().iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: Promise = Promise { before: 10_000, after: 2_000, bytes: 100 };

    fn spent(time: u64, bytes: u64, slow_bytes: u64) -> Spent {
        Spent { time, bytes, slow_bytes }
    }

    fn end(plans: &Plans, job: u64, before: Spent) {
        let (_, paths) = plans.paths().into_iter().find(|(number, _)| *number == job).expect("it is there");
        plans.ended(job, &paths, before);
    }

    #[test]
    fn what_was_spent_before_the_job_ended_is_not_held_against_the_promise() {
        let plans = Plans::default();
        plans.start(3, PROMISE, ["/a", "/b", "/a"]);
        assert_eq!((plans.open(), plans.running(&[(3, spent(9, 9, 9))])[0].since), (vec![3], None));
        end(&plans, 3, spent(50_000, 400, 400));
        // Only the first report of the end counts.
        end(&plans, 3, spent(60_000, 500, 400));
        let told = plans.running(&[(3, spent(54_500, 600, 410))])[0];
        assert_eq!((told.files, told.since), (2, Some(spent(4_500, 200, 10))));
        assert_eq!(told.measured(), Some((2.0, Duration::from_nanos(2_250))));
        assert!(plans.open().is_empty());
    }

    #[test]
    fn a_job_that_gets_more_goes_on() {
        let plans = Plans::default();
        plans.start(1, PROMISE, ["/a"]);
        let (_, paths) = plans.paths().remove(0);
        plans.more(1, ["/b"]);
        plans.ended(1, &paths, spent(1, 1, 1));
        assert_eq!(plans.open(), [1], "the sum was not that of all its paths");
        let (_, paths) = plans.paths().remove(0);
        assert!(paths.has("/a") && paths.has("/b") && !paths.has("/c"));
        plans.ended(1, &paths, spent(1, 1, 1));
        plans.more(1, ["/c"]);
        assert_eq!(plans.open(), [1]);
        plans.more(7, ["/d"]);
        assert_eq!(plans.running(&[]).len(), 1, "no plan made that job");
    }

    #[test]
    fn a_tenth_of_an_epoch_is_the_least_that_tells_anything() {
        let told = |since| RunningPlan { job: 1, files: 1, promise: PROMISE, since };
        assert_eq!(told(None).measured(), None);
        assert_eq!(told(Some(spent(5, 9, 0))).measured(), None);
        assert!(told(Some(spent(5, 10, 0))).measured().is_some());
        assert!(
            RunningPlan { promise: Promise::default(), ..told(Some(spent(u64::MAX, u64::MAX, 0))) }
                .measured()
                .is_some()
        );
    }

    #[test]
    fn the_latest_plans_are_remembered() {
        let plans = Plans::default();
        (0..40).for_each(|job| plans.start(job, PROMISE, ["/a"]));
        assert_eq!((plans.open().len(), plans.open()[0]), (KEPT, 40 - KEPT as u64));
    }
}
