//! The staging queue: requested jobs, and files that were read (promotion).
//!
//! A job is a list of paths, and of directories whose files are wanted. Directories are scanned first, so that the
//! remaining amount is known; then the files are copied one after the other in the order of the list. Within a
//! directory that is the order of their inode numbers, which on a disk is nearly the order of their bytes.
//! `staging/copy_one.rs` copies the files.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::config::Pattern;
use crate::error::{Errno, Error, Result};
use crate::path::{Name, escape};
use crate::share;
use crate::stats::staging::{JobState, JobStatus, Staging, StagingFailure};
use crate::tiers::capacity::policy::{Candidate, Class};
use crate::tiers::copies::reads::Read;
use crate::tiers::disk::errors::is_full;
use crate::tiers::disk::layout::split;
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::throttle::{Backoff, TokenBucket};
use crate::tiers::disk::{Access, Kind};
use crate::tiers::staging::copy_one::{StageOutcome, TierTime};
use crate::tiers::{Cx, ListEntry, Progress, Tiers};

/// How many failed files of a job are named.
const FAILED_NAMED: usize = 1_000;
/// How many jobs that have ended are still reported.
const ENDED_KEPT: usize = 16;
/// Most paths that may wait, of all jobs. Some hundred bytes each.
const WAITING_MAX: u64 = 4_000_000;
/// Most jobs in progress of one user other than the mount's owner.
const JOBS_MAX: usize = 16;
/// How long jobs pause for a checkpoint before they check again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a changing file is tried, and the pause between two tries.
const TRIES: u32 = 3;
const LEFT_ALONE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
enum Item {
    /// A path that was named in the job.
    Named(Vec<u8>),
    File {
        dir: Arc<[u8]>,
        name: Name,
        tries: u32,
    },
}

impl Item {
    fn path(&self) -> Vec<u8> {
        match self {
            Item::Named(path) => path.clone(),
            Item::File { dir, name, .. } if dir.is_empty() => name.as_bytes().to_vec(),
            Item::File { dir, name, .. } => [dir, name.as_bytes()].join(&b'/'),
        }
    }
}

#[derive(derive_more::Debug)]
#[debug("RunningJob({told:?})")]
struct RunningJob {
    told: JobStatus,
    /// Which files of directories are wanted.
    wanted: Option<Arc<Pattern>>,
    /// Directories to scan, the next one last.
    directories: Vec<Vec<u8>>,
    files: VecDeque<Item>,
    /// Files that were changing, and when to retry them.
    later: VecDeque<(Duration, Item)>,
    /// Items taken from the queue and not settled yet.
    under_way: u64,
    /// Copies, and their bytes, that are not durable yet.
    unsynced: (u64, u64),
    began: Option<Duration>,
}

impl RunningJob {
    fn is_running(&self) -> bool {
        self.told.state == JobState::Running
    }

    fn waiting(&self) -> u64 {
        (self.files.len() + self.later.len()) as u64 + self.under_way
    }

    /// Whether everything is copied: the job ends when that is durable.
    fn is_finishing(&self) -> bool {
        self.is_running() && self.waiting() == 0 && self.directories.is_empty()
    }

    fn tell(&self) -> JobStatus {
        JobStatus { directories: self.directories.len() as u64, pending: self.waiting(), ..self.told.clone() }
    }

    fn fail(&mut self, path: &[u8], why: String) {
        if self.told.failures.len() < FAILED_NAMED {
            self.told.failures.push(StagingFailure { path: format!("/{}", escape(path)), why });
        }
    }
}

/// The next task of a staging thread.
enum Task {
    LookThrough(u64, Vec<u8>, Option<Arc<Pattern>>),
    Copy(u64, Item),
    Promote(Read),
    Wait(Duration),
    Nothing,
}

#[derive(Debug, Default)]
struct JobQueue {
    jobs: BTreeMap<u64, RunningJob>,
    last: u64,
    paused: bool,
    promoted: u64,
    /// A thread is syncing; the others need not.
    syncing: bool,
}

impl JobQueue {
    /// `pauses`: jobs wait because a checkpoint comes first.
    fn next(&mut self, now: Duration, pauses: bool) -> Task {
        if self.paused {
            return Task::Nothing;
        }
        if pauses && self.jobs.values().any(RunningJob::is_running) {
            return Task::Wait(PAUSE);
        }
        let mut soonest = None;
        for job in self.jobs.values_mut().filter(|job| job.is_running()) {
            if let Some(dir) = job.directories.pop() {
                job.under_way += 1;
                return Task::LookThrough(job.told.number, dir, job.wanted.clone());
            }
            if job.later.front().is_some_and(|(due, _)| *due <= now)
                && let Some((_, item)) = job.later.pop_front()
            {
                job.files.push_back(item);
            }
            if let Some(item) = job.files.pop_front() {
                job.began.get_or_insert(now);
                job.under_way += 1;
                return Task::Copy(job.told.number, item);
            }
            let due = job.later.front().map(|(due, _)| due.saturating_sub(now));
            soonest = soonest.into_iter().chain(due).min();
        }
        soonest.map_or(Task::Nothing, Task::Wait)
    }

    fn job(&mut self, number: u64) -> Option<&mut RunningJob> {
        self.jobs.get_mut(&number)
    }

    /// Called when an item that was taken is done.
    fn settle(&mut self, number: u64, now: Duration, settle: impl FnOnce(&mut RunningJob)) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        job.under_way -= 1;
        settle(job);
        if let Some(began) = job.began {
            job.told.took = now.saturating_sub(began);
        }
    }

    /// Takes the copies that a sync may now make durable: for each job, how many and how many bytes.
    fn pop_unsynced(&mut self) -> Vec<(u64, u64, u64)> {
        let jobs = self.jobs.iter_mut().filter(|(_, job)| job.unsynced.0 > 0);
        let taken = jobs.map(|(number, job)| {
            let (files, bytes) = std::mem::take(&mut job.unsynced);
            (*number, files, bytes)
        });
        taken.collect()
    }

    /// Counts copies as failed that could not be made durable and are gone.
    fn lost(&mut self, copies: &[(u64, u64, u64)], why: &Error) {
        for (number, files, bytes) in copies {
            let Some(job) = self.jobs.get_mut(number) else { continue };
            job.told.complete -= files;
            job.told.complete_bytes -= bytes;
            job.told.failed += files;
            job.fail(b"", format!("{files} copies could not be made durable and are dropped: {why}"));
        }
    }

    /// Ends jobs whose files are all copied and durable.
    fn end_finished(&mut self) {
        for job in self.jobs.values_mut().filter(|job| job.is_finishing() && job.unsynced.0 == 0) {
            job.told.state = JobState::Done;
            // A million paths may have waited in these buffers: free them.
            (job.files, job.later) = Default::default();
        }
        self.forget_old();
    }

    fn forget_old(&mut self) {
        let ended: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| !job.is_running()).map(|(number, _)| *number).collect();
        for number in ended.iter().take(ended.len().saturating_sub(ENDED_KEPT)) {
            self.jobs.remove(number);
        }
    }

    /// How many paths wait, of these jobs.
    fn waiting(&self, which: impl Fn(&RunningJob) -> bool) -> u64 {
        let jobs = self.jobs.values().filter(|job| which(job));
        jobs.map(|job| job.waiting() + job.directories.len() as u64).sum()
    }

    /// Errors: no more paths may wait at all, or for this user, who is not the mount's owner.
    fn expect_room(&self, by: Option<u32>, more: usize) -> Result<()> {
        let left = WAITING_MAX.checked_sub(self.waiting(|_| true)).filter(|left| *left >= more as u64);
        let theirs = || self.waiting(|job| job.told.by == by);
        if left.is_some_and(|left| by.is_none() || share::allows(theirs(), left)) {
            return Ok(());
        }
        let what = format!("of the {WAITING_MAX} paths that may wait to be staged too few are left");
        Err(Error::refused(what, "name a directory instead of its files, or wait"))
    }
}

/// The jobs of one mount.
#[derive(Debug, Default)]
pub(crate) struct StagingJobs {
    queue: Mutex<JobQueue>,
    bucket: Mutex<TokenBucket>,
    pub(super) time: Mutex<TierTime>,
    /// How often the slow tier was asked for its time.
    pub(super) times: AtomicU64,
}

impl StagingJobs {
    /// How long to wait for this many bytes at this rate, in bytes per second.
    fn rate(&self, rate: Option<u64>, now: Duration, bytes: u64) -> Duration {
        let mut bucket = self.bucket.lock();
        bucket.set_rate(rate);
        bucket.take(now, bytes)
    }
}

impl Tiers {
    /// Begins a job for files, and for all files below directories, and returns its number.
    pub fn stage(&self, what: &str, paths: Vec<Vec<u8>>) -> Result<u64> {
        self.begin_job(what, paths, None, None)
    }

    /// Begins a job like [`Tiers::stage`] for a user other than the mount's owner. EDQUOT if that user has too many
    /// jobs in progress.
    pub fn stage_for(&self, uid: u32, what: &str, paths: Vec<Vec<u8>>) -> Result<u64> {
        self.begin_job(what, paths, None, Some(uid))
    }

    /// Begins a job for all files that match, and returns its number.
    pub fn stage_fitting(&self, pattern: Pattern) -> Result<u64> {
        let root = pattern.root().as_bytes().to_vec();
        let pattern = Arc::new(pattern);
        self.begin_job(pattern.text(), vec![root], Some(Arc::clone(&pattern)), None)
    }

    fn begin_job(&self, what: &str, paths: Vec<Vec<u8>>, wanted: Option<Arc<Pattern>>, by: Option<u32>) -> Result<u64> {
        let mut queue = self.staging.queue.lock();
        queue.expect_room(by, paths.len())?;
        let is_theirs = |job: &RunningJob| job.told.by == by && job.told.state == JobState::Running;
        if let Some(uid) = by
            && queue.jobs.values().filter(|job| is_theirs(job)).count() >= JOBS_MAX
        {
            let whom = format!("user {uid}, who has {JOBS_MAX} under way");
            return Err(Error::io("begin a staging job for", whom, Errno::EDQUOT.into()));
        }
        queue.last += 1;
        let number = queue.last;
        let files = paths.into_iter().map(Item::Named).collect();
        let (directories, later) = (Vec::new(), VecDeque::new());
        queue.jobs.insert(
            number,
            RunningJob {
                told: JobStatus { by, ..JobStatus::new(number, what) },
                wanted,
                directories,
                files,
                later,
                under_way: 0,
                unsynced: (0, 0),
                began: None,
            },
        );
        drop(queue);
        self.wake();
        Ok(number)
    }

    /// Adds paths to a job that was not cancelled, after its others. `false`: there is no such job.
    pub fn stage_more(&self, number: u64, paths: Vec<Vec<u8>>) -> Result<bool> {
        let mut queue = self.staging.queue.lock();
        let by = queue.jobs.get(&number).and_then(|job| job.told.by);
        queue.expect_room(by, paths.len())?;
        let Some(job) = queue.job(number).filter(|job| job.told.state != JobState::Cancelled) else {
            return Ok(false);
        };
        job.told.state = JobState::Running;
        job.files.extend(paths.into_iter().map(Item::Named));
        drop(queue);
        self.wake();
        Ok(true)
    }

    /// Cancels a job, or all jobs with `None`; copies in progress stop soon. Returns how many were running.
    pub fn cancel_staging(&self, number: Option<u64>) -> u64 {
        let mut queue = self.staging.queue.lock();
        let mut cancelled = 0;
        for job in queue.jobs.values_mut().filter(|job| number.is_none_or(|number| job.told.number == number)) {
            if job.is_running() {
                job.told.state = JobState::Cancelled;
                (job.files, job.later, job.directories) = Default::default();
                cancelled += 1;
            }
        }
        queue.forget_old();
        cancelled
    }

    /// Pauses all jobs, or resumes them. Files being copied go back into the queue.
    pub fn pause_staging(&self, paused: bool) {
        self.staging.queue.lock().paused = paused;
        self.wake();
    }

    pub fn staging(&self) -> Staging {
        let (copies, copies_bytes) = self.copies.extent();
        let expected = self.state.lock().forecast.expected();
        let room = self.usage().map_or(0, |usage| self.limits().room(&usage, expected));
        let queue = self.staging.queue.lock();
        let (paused, promoted, passed_over) = (queue.paused, queue.promoted, self.reads.passed_over());
        let jobs = queue.jobs.values().map(RunningJob::tell).collect();
        Staging { paused, copies, copies_bytes, room, promoted, passed_over, jobs }
    }

    pub fn staging_job(&self, number: u64) -> Option<JobStatus> {
        self.staging.queue.lock().jobs.get(&number).map(RunningJob::tell)
    }

    /// Scans one directory, copies one file, or makes copies durable. May run on several threads.
    pub fn stage_step(&self) -> Result<Progress> {
        if self.find_copies_step()? == Progress::Did {
            return Ok(Progress::Did);
        }
        if self.drain_control.has_deadline() {
            return Ok(Progress::Wait(Duration::from_secs(1)));
        }
        if self.end_epoch()? {
            return Ok(Progress::Did);
        }
        if self.slow.is_down() || self.fast_fails() {
            return Ok(Progress::Wait(Duration::from_secs(1)));
        }
        // Only if there is a job: `saves` scans the pending events, under the engine's lock.
        let has_job = self.staging.queue.lock().jobs.values().any(RunningJob::is_running);
        let pauses = has_job && self.saves();
        // First: a file that was just read is still in the page cache.
        let read = self.reads.pop().map(Task::Promote);
        let task = read.unwrap_or_else(|| self.staging.queue.lock().next(self.uptime(), pauses));
        match task {
            Task::Nothing => return Ok(Progress::Idle),
            Task::Wait(time) => return Ok(Progress::Wait(time)),
            Task::LookThrough(job, dir, wanted) => self.scan_dir(job, &dir, wanted.as_deref()),
            Task::Copy(job, item) => self.copy_item(job, item),
            Task::Promote(read) => self.promote_now(read),
        }
        Ok(Progress::Did)
    }

    /// Makes the copies durable when they have waited long enough, or when a job waits only for that. `false`: not yet.
    fn end_epoch(&self) -> Result<bool> {
        let is_due = self.copies_are_due();
        let taken = {
            let mut queue = self.staging.queue.lock();
            if queue.syncing || !(is_due || queue.jobs.values().any(RunningJob::is_finishing)) {
                return Ok(false);
            }
            queue.syncing = true;
            // Before the sync: copies finished during it belong to the next one.
            queue.pop_unsynced()
        };
        let synced = self.sync_copies();
        let mut queue = self.staging.queue.lock();
        queue.syncing = false;
        if let Err(error) = &synced {
            let meanwhile = queue.pop_unsynced();
            queue.lost(&taken, error);
            queue.lost(&meanwhile, error);
        }
        queue.end_finished();
        match synced {
            // The copies were removed again; the jobs have reported that.
            Err(Error::Io { source, .. }) if is_full(&source) => Ok(true),
            synced => synced.map(|()| true),
        }
    }

    fn promote_now(&self, read: Read) {
        let stage = || self.stage_file(&Cx::internal(), read.ino, &mut |_| true);
        let staged = match stage() {
            Ok(StageOutcome::NoRoom(bytes)) if self.make_way(bytes, read.interval) => stage(),
            staged => staged,
        };
        self.reads.done(&read);
        let mut queue = self.staging.queue.lock();
        match staged {
            Ok(StageOutcome::Copied(_)) => queue.promoted += 1,
            Ok(StageOutcome::There) => {}
            // The next read may succeed.
            _ => self.reads.pass_over(),
        }
    }

    /// Evicts unused copies to make way for one of `bytes` bytes; `false`: there are too few.
    fn make_way(&self, bytes: u64, interval: Option<Duration>) -> bool {
        const AT_MOST: usize = 256;
        let class = Class::Data;
        let victims = self.copies.longest_unused(AT_MOST).into_iter();
        let victims = victims.filter(|(number, bytes, _)| !self.is_copy_pinned(*number, *bytes));
        let victims = victims.map(|(number, bytes, last_used)| {
            (number, Candidate { class, pinned: false, group: None, last_used, bytes, drained: number })
        });
        let expected = self.state.lock().forecast.expected();
        let usage = self.usage().ok();
        let go =
            usage.and_then(|usage| self.limits().make_way(&usage, expected, bytes, victims, interval, self.uptime()));
        go.is_some_and(|go| go.into_iter().all(|number| self.evict_copy(number).is_ok()))
    }

    fn scan_dir(&self, number: u64, dir: &[u8], wanted: Option<&Pattern>) {
        let found = self.entries_of(dir, wanted);
        let now = self.uptime();
        let mut queue = self.staging.queue.lock();
        let by = queue.jobs.get(&number).and_then(|job| job.told.by);
        let found = found.and_then(|(directories, files)| {
            queue.expect_room(by, directories.len() + files.len()).map(|()| (directories, files))
        });
        queue.settle(number, now, |job| match found {
            Ok((directories, files)) if job.is_running() => {
                job.directories.extend(directories);
                job.files.extend(files);
            }
            Ok(_) => {}
            Err(error) => {
                job.told.failed += 1;
                job.fail(dir, error.to_string());
            }
        });
    }

    /// The directories in `dir`, the first of them last, and its files.
    fn entries_of(&self, dir: &[u8], wanted: Option<&Pattern>) -> Result<(Vec<Vec<u8>>, Vec<Item>)> {
        let listed = self.at_path(&Cx::internal(), dir, |ino| self.list_since(&Cx::internal(), ino, false));
        let (mut entries, _) = listed?;
        self.sort_as_they_lie(dir, &mut entries)?;
        let shared: Arc<[u8]> = dir.into();
        let below = |name: &[u8]| if dir.is_empty() { name.to_vec() } else { [dir, name].join(&b'/') };
        let (mut directories, mut files) = (Vec::new(), Vec::new());
        for entry in entries {
            // Skips `.` and `..`.
            let Ok(name) = Name::new(&entry.name) else { continue };
            match entry.kind {
                Kind::Dir => directories.push(below(&entry.name)),
                Kind::File if wanted.is_none_or(|wanted| wanted.fits(&below(&entry.name))) => {
                    files.push(Item::File { dir: Arc::clone(&shared), name, tries: 0 });
                }
                _ => {}
            }
        }
        directories.sort_unstable_by(|a, b| b.cmp(a));
        Ok((directories, files))
    }

    /// Sorts files in the order in which a rotating disk reads them fastest: first by inode number, to find where their
    /// bytes are, then by that.
    fn sort_as_they_lie(&self, dir: &[u8], entries: &mut [ListEntry]) -> Result<()> {
        entries.sort_by_key(|entry| entry.ino);
        if !self.slow_rotates() {
            return Ok(());
        }
        let path = self.at_path(&Cx::internal(), dir, |ino| Ok(self.state.lock().view.slow_path(ino)))?;
        let Some(slow) = path.and_then(|path| self.slow.walk(&path).ok()) else { return Ok(()) };
        let place = |entry: &ListEntry| slow.open(&entry.name, Access::Unnoticed).ok()?.place();
        entries.sort_by_cached_key(|entry| if entry.kind == Kind::File { place(entry) } else { None });
        Ok(())
    }

    /// Whether the slow tier is one rotating disk.
    pub fn slow_rotates(&self) -> bool {
        self.slow.root.rotates()
    }

    /// Between two pieces of a copy: pauses while other work needs the disks, and keeps to the rate. `false`: the copy
    /// is no longer wanted.
    fn make_room_for_others(&self, job: u64, bytes: u64, took: Duration) -> bool {
        const AT_ONCE: Duration = Duration::from_millis(50);
        let is_wanted = || {
            let mut queue = self.staging.queue.lock();
            !queue.paused && queue.job(job).is_some_and(|job| job.is_running())
        };
        let reads = self.counters.reads_from_slow(self.uptime());
        let pending_versions = self.staging.rate(self.options().stage_bandwidth, self.uptime(), bytes);
        let mut rested = Duration::ZERO;
        while is_wanted() {
            let rest = match Backoff::after(took, reads, self.saves()) {
                Backoff::None => pending_versions,
                Backoff::For(time) => pending_versions.max(time),
                Backoff::Drain => rested + AT_ONCE,
            };
            if rested >= rest {
                return true;
            }
            let some = AT_ONCE.min(rest - rested);
            std::thread::sleep(some);
            rested += some;
        }
        false
    }

    fn copy_item(&self, number: u64, item: Item) {
        let path = item.path();
        let cx = Cx::internal();
        let mut since = Instant::now();
        let mut between = |bytes| {
            let goes_on = self.make_room_for_others(number, bytes, since.elapsed());
            since = Instant::now();
            goes_on
        };
        let staged = self.at_path(&cx, &path, |ino| {
            // A named path may lead to a directory.
            match self.getattr(&cx, ino)?.kind {
                Kind::Dir => Ok(None),
                _ => self.stage_file(&cx, ino, &mut between).map(Some),
            }
        });
        let now = self.uptime();
        self.staging.queue.lock().settle(number, now, |job| {
            if !job.is_running() {
                return;
            }
            match staged {
                Ok(None) => job.directories.push(path),
                Ok(Some(StageOutcome::Copied(bytes))) => {
                    job.told.complete += 1;
                    job.told.complete_bytes += bytes;
                    job.unsynced.0 += 1;
                    job.unsynced.1 += bytes;
                }
                Ok(Some(StageOutcome::There)) => job.told.there += 1,
                Ok(Some(StageOutcome::NoRoom(_))) => {
                    job.told.no_room += 1;
                    job.fail(&path, "no room for it on the fast tier".to_owned());
                }
                Ok(Some(StageOutcome::Stopped)) => job.files.push_front(item),
                Ok(Some(StageOutcome::Changing)) => put_off(job, item, now),
                Ok(Some(StageOutcome::Unfit(why))) => {
                    job.told.failed += 1;
                    job.fail(&path, why.to_owned());
                }
                Err(error) => {
                    job.told.failed += 1;
                    job.fail(&path, error.to_string());
                }
            }
        });
    }
}

fn put_off(job: &mut RunningJob, item: Item, now: Duration) {
    let path = item.path();
    let (dir, name, tries) = match item {
        Item::File { dir, name, tries } => (dir, name, tries),
        Item::Named(path) => {
            let (dir, name) = split(&path);
            let Ok(name) = Name::new(name) else { return };
            (dir.into(), name, 0)
        }
    };
    if tries + 1 < TRIES {
        job.later.push_back((now + LEFT_ALONE, Item::File { dir, name, tries: tries + 1 }));
    } else {
        job.told.failed += 1;
        job.fail(&path, "it is being written".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One user took the whole limit of waiting paths, and no other user could begin a job.
    #[test]
    fn of_the_paths_that_may_wait_one_user_has_no_more_than_are_left() {
        let mut queue = JobQueue::default();
        let mut waits = |number: u64, by: Option<u32>, under_way: u64| {
            let told = JobStatus { by, ..JobStatus::new(number, "data") };
            let (files, later) = (VecDeque::new(), VecDeque::new());
            let (wanted, directories, unsynced, began) = (None, Vec::new(), (0, 0), None);
            queue
                .jobs
                .insert(number, RunningJob { told, wanted, directories, files, later, under_way, unsynced, began });
            [None, Some(1001), Some(1002)].map(|by| queue.expect_room(by, 1000).is_ok())
        };
        assert_eq!(waits(1, Some(1001), WAITING_MAX / 2 - 1), [true, true, true]);
        assert_eq!(waits(2, Some(1001), 1), [true, false, true]);
        assert_eq!(waits(3, Some(1002), WAITING_MAX / 4), [true, false, false]);
        assert_eq!(waits(4, None, WAITING_MAX / 4 - 999), [false, false, false]);
    }
}
