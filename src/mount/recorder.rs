//! The collector of traced calls, and the files of the trace: `trace` names their directory, `trace_max` bounds its
//! size.
//!
//! There are two threads. The collector empties the rings of the threads that answer calls; it must never wait. The
//! writer writes blocks to files and may wait: blocks for which the queue has no room are counted as not written. Each
//! file of recordings can be read by itself; a new one is begun when it has its share ([`PARTS`]) of the allowed size,
//! and the oldest is removed, including those of former mounts. Every half minute, and at the end, the file gets the
//! data besides the calls, so that a killed daemon leaves a report of all but its last seconds. Nothing here is synced:
//! a power cut costs a report, not data.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::fs::Observer;
use crate::observing::behind_door;
use crate::path::Show as _;
use crate::stats::Stats;
use crate::stats::recording::Writer;
use crate::stats::timeline::FINEST;
use crate::stats::trace::Sealed;
use crate::tiers::Tiers;
use crate::tiers::disk::held::HeldDir;

/// How many files the allowed size is divided into.
const PARTS: u64 = 8;
/// No file gets more than this, so that it can be sent around.
const FILE_MAX: u64 = 256 << 20;
/// How often the data besides the calls is written.
const SUMMARY: Duration = Duration::from_secs(30);
/// Blocks that may wait for the writer: two million calls.
const QUEUE: usize = 256;
/// The pause after a failure.
const REST: Duration = Duration::from_secs(60);
/// How long the end of the last file may take.
const FINISH: Duration = Duration::from_secs(30);

/// Where the trace goes.
#[derive(Debug)]
pub(super) struct Directory {
    held: HeldDir,
    /// Bytes that all files in it may take.
    pub(super) max: u64,
}

impl Directory {
    /// The directory that the configuration names, created if necessary, and held: a user may replace a directory above
    /// it later. Must be called before the mount is made: a daemon that wrote into its own mount would wait for itself.
    pub(super) fn of(config: &Config, mountpoint: &Path) -> Result<Option<Directory>> {
        let Some(path) = &config.trace else { return Ok(None) };
        let held = HeldDir::find(path, Some(0o700)).map_err(|e| unusable(path, &e.to_string()))?;
        if held.path().starts_with(mountpoint) {
            return Err(unusable(held.path(), &format!("it is inside the mount {}", mountpoint.shown())));
        }
        Ok(Some(Directory { held, max: config.trace_max }))
    }
}

/// The error if the directory of `trace` cannot be written.
fn unusable(path: &Path, why: &str) -> Error {
    let remedy = "name a directory outside the mount, best on local storage, or one that can be made there";
    Error::refused(format!("trace = {}: {why}", path.shown()), remedy)
}

/// Both threads.
#[derive(Debug)]
pub(super) struct Recorder {
    stop: Arc<AtomicBool>,
    collector: JoinHandle<()>,
    /// Closed when the writer has ended.
    written: Option<Receiver<()>>,
}

/// A task for the writer.
enum WriterTask {
    Block(Box<Sealed>),
    /// The last one: the files' records, then nothing.
    End,
}

impl Recorder {
    /// Starts both. Errors: the directory cannot be written to, or a thread cannot be started.
    pub(super) fn start(
        stats: &Arc<Stats>,
        tiers: &Arc<Tiers>,
        observer: Observer,
        directory: Option<Directory>,
    ) -> Result<Self> {
        let (tasks, written) = match directory {
            Some(directory) => {
                let (tasks, queue) = mpsc::sync_channel(QUEUE);
                let (ended, written) = mpsc::sync_channel(0);
                let mut files = RecordingFiles::new(directory, Arc::clone(stats), observer.clone())?;
                hand_on(stats, tasks.clone());
                let write = move || {
                    behind_door("the recording", || files.write_all(&queue));
                    drop(ended);
                };
                let started = thread::Builder::new().name("dlio-record".into()).spawn(write);
                started.map_err(|e| Error::no_thread("dlio-record", &e))?;
                (Some(tasks), Some(written))
            }
            None => (None, None),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let collect = {
            let (stats, tiers, stop) = (Arc::clone(stats), Arc::clone(tiers), Arc::clone(&stop));
            move || collect(&stats, &tiers, &observer, &stop, tasks)
        };
        let collector = thread::Builder::new().name("dlio-trace".into()).spawn(collect);
        let collector = collector.map_err(|e| Error::no_thread("dlio-trace", &e))?;
        let thread = collector.thread().clone();
        stats.trace.on_half_full(move || thread.unpark());
        Ok(Recorder { stop, collector, written })
    }

    /// Writes the rest, with a bounded wait.
    pub(super) fn finish(self) {
        self.stop.store(true, Relaxed);
        self.collector.thread().unpark();
        if let Some(written) = self.written
            && written.recv_timeout(FINISH) == Err(RecvTimeoutError::Timeout)
        {
            warn!("the end of the trace is not written after {FINISH:?}; a report of it has no table of files");
        }
    }
}

/// Passes each new block to the writer, if its queue has room.
fn hand_on(stats: &Arc<Stats>, tasks: SyncSender<WriterTask>) {
    let counted = Arc::downgrade(stats);
    stats.trace.to(move |sealed| {
        if let Err(TrySendError::Full(WriterTask::Block(sealed))) = tasks.try_send(WriterTask::Block(Box::new(sealed)))
            && let Some(stats) = counted.upgrade()
        {
            stats.trace.unwritten(&sealed.block);
        }
    });
}

fn collect(
    stats: &Stats,
    tiers: &Tiers,
    observer: &Observer,
    stop: &AtomicBool,
    tasks: Option<SyncSender<WriterTask>>,
) {
    let mut sampled = Instant::now();
    loop {
        let ending = stop.load(Relaxed);
        observer.collected();
        // Called for a full ring, it would record the same totals again and again.
        if sampled.elapsed() >= FINEST || ending {
            sampled = Instant::now();
            stats.sample(tiers.copied_bytes());
            behind_door("plans", || observer.update_plans());
        }
        if ending {
            break;
        }
        thread::park_timeout(FINEST.saturating_sub(sampled.elapsed()));
    }
    if let Some(tasks) = tasks {
        stats.trace.flush();
        // No thread joins this one, and the wait for the writer is bounded.
        drop(tasks.send(WriterTask::End));
    }
}

/// The files of this mount.
struct RecordingFiles {
    directory: Directory,
    stats: Arc<Stats>,
    observer: Observer,
    /// When the mount was made, in nanoseconds since 1970: in the files' names.
    mount: u64,
    /// The number of the next file.
    number: u64,
    current: Option<Current>,
    /// Nothing is tried before this time.
    rest_until: Option<Instant>,
}

struct Current {
    out: Writer<File>,
    /// Inodes whose path is in the file.
    told: std::collections::HashSet<u64>,
    summary: Instant,
}

impl RecordingFiles {
    /// Begins the first file.
    fn new(directory: Directory, stats: Arc<Stats>, observer: Observer) -> Result<Self> {
        let path = directory.held.path().to_path_buf();
        let mount = observer.meta().since;
        let mut files =
            RecordingFiles { directory, stats, observer, mount, number: 0, current: None, rest_until: None };
        files.open_next().map_err(|e| unusable(&path, &format!("a recording cannot be written: {e}")))?;
        Ok(files)
    }

    fn write_all(&mut self, queue: &Receiver<WriterTask>) {
        while let Ok(WriterTask::Block(sealed)) = queue.recv() {
            if self.rest_until.is_some_and(|until| Instant::now() < until) {
                self.stats.trace.unwritten(&sealed.block);
                continue;
            }
            match self.write(&sealed) {
                Ok(()) if self.rest_until.take().is_some() => info!("the trace is written again"),
                Ok(()) => {}
                Err(error) => {
                    self.stats.trace.unwritten(&sealed.block);
                    if self.rest_until.is_none() {
                        let path = self.directory.held.path().shown();
                        warn!(%path, %error, "the trace cannot be written; lost calls are counted: make room, or mount without trace");
                    }
                    // The file is complete up to the part that failed: start a new one.
                    self.current = None;
                    self.rest_until = Some(Instant::now() + REST);
                }
            }
        }
        if let Err(error) = self.end() {
            warn!(path = %self.directory.held.path().shown(), %error, "the end of the trace is not written; a report of it has no table of files");
        }
    }

    fn write(&mut self, sealed: &Sealed) -> io::Result<()> {
        let full = self.file_max();
        if self.current.as_ref().is_none_or(|current| current.out.written() >= full) {
            self.open_next()?;
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        if sealed.renamed {
            current.told.clear();
        }
        let new = sealed.inos.iter().filter(|ino| current.told.insert(**ino));
        let paths: Vec<_> = new.filter_map(|ino| Some((*ino, self.observer.path_of(*ino)?))).collect();
        current.out.paths(&paths)?;
        current.out.block(&sealed.block)?;
        if current.summary.elapsed() >= SUMMARY {
            current.out.meta(&self.observer.meta())?;
            current.summary = Instant::now();
        }
        Ok(())
    }

    fn file_max(&self) -> u64 {
        (self.directory.max / PARTS).min(FILE_MAX)
    }

    /// Begins the next file. Room for it is made first.
    fn open_next(&mut self) -> io::Result<()> {
        self.current = None;
        self.delete_oldest()?;
        let path = self.directory.held.at(name(self.mount, self.number));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        self.number += 1;
        let mut out = Writer::new(file)?;
        out.meta(&self.observer.meta())?;
        self.current = Some(Current { out, told: Default::default(), summary: Instant::now() });
        Ok(())
    }

    /// Removes the oldest files until a whole one fits.
    fn delete_oldest(&self) -> io::Result<()> {
        let mut all = recordings(&self.directory.held.by_descriptor())?;
        let mut sum: u64 = all.iter().map(|file| file.bytes).sum();
        all.sort_by_key(|file| (file.mount, file.number));
        for file in all {
            if sum + self.file_max() <= self.directory.max {
                break;
            }
            fs::remove_file(&file.path)?;
            sum -= file.bytes;
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        if self.current.is_none() {
            self.open_next()?;
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        current.out.meta(&self.observer.meta())?;
        self.stats.write_all_files(&mut current.out, |ino| self.observer.path_of(ino))
    }
}

/// The name of a file of recordings: when its mount was made, in nanoseconds since 1970, and the file's number.
fn name(mount: u64, number: u64) -> String {
    format!("dlio-{mount:020}-{number:06}.dlio")
}

/// The mount and the number of a file of recordings, from its name.
fn parse(file: &OsStr) -> Option<(u64, u64)> {
    let (mount, number) = file.to_str()?.strip_prefix("dlio-")?.strip_suffix(".dlio")?.split_once('-')?;
    let told = (mount.parse().ok()?, number.parse().ok()?);
    (*name(told.0, told.1) == *file).then_some(told)
}

/// A file of recordings in a directory.
struct Recorded {
    mount: u64,
    number: u64,
    path: PathBuf,
    bytes: u64,
}

fn recordings(dir: &Path) -> io::Result<Vec<Recorded>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some((mount, number)) = parse(&entry.file_name()) {
            found.push(Recorded { mount, number, path: entry.path(), bytes: entry.metadata()?.len() });
        }
    }
    Ok(found)
}

/// The files that the latest mount has written into a directory, oldest first; none if there are no recordings.
pub fn latest_recording(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut all = recordings(dir).at("read", dir.shown())?;
    let latest = all.iter().map(|file| file.mount).max();
    all.retain(|file| Some(file.mount) == latest);
    all.sort_by_key(|file| file.number);
    Ok(all.into_iter().map(|file| file.path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_tells_the_files_of_its_latest_mount_in_order() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(latest_recording(dir.path()).expect("empty").is_empty());
        for (mount, number) in [(7, 0), (7, 1), (99, 2), (99, 0), (99, 10)] {
            fs::write(dir.path().join(name(mount, number)), "").expect("written");
        }
        for other in ["dlio-7-1.dlio", "dlio-x-y.dlio", "notes.txt"] {
            fs::write(dir.path().join(other), "").expect("written");
        }
        let found = latest_recording(dir.path()).expect("read");
        let names: Vec<_> = [0, 2, 10].map(|number| dir.path().join(name(99, number))).to_vec();
        assert_eq!(found, names);
        assert!(latest_recording(&dir.path().join("none")).is_err());
    }
}
