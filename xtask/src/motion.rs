//! What keeps a mount in motion: all of it is drained, evicted and read again, over and over, while something else runs there.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::run::Running;
use crate::scratch::Scratch;

/// Mount options with which the daemon does by itself as much as it can: everything is drained at once and, always above its
/// watermarks, evicted at once; an open file holds up what comes after it only for a moment.
pub(crate) const OPTIONS: [&str; 5] = ["settle=0s", "live_after=1s", "high=2%", "low=1%", "keep=0"];

/// What was done to a mount while something ran on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Times that everything was drained and evicted.
    pub(crate) rounds: u64,
    /// Versions of files that were copied to the slow tier.
    pub(crate) drained: u64,
    /// Changes of the slow tree.
    pub(crate) published: u64,
    pub(crate) evicted: u64,
    /// Files that were read while only the slow tier had them.
    pub(crate) recalled: u64,
}

impl Moved {
    /// That is known to the daemon.
    fn so_far(scratch: &Scratch) -> Result<Self> {
        Ok(Moved {
            drained: scratch.figure("/pipeline/drained_files")?,
            published: scratch.figure("/pipeline/published_events")?,
            evicted: scratch.figure("/pipeline/evictions")?,
            ..Moved::default()
        })
    }

    /// What ran while hardly anything moved proves nothing.
    pub(crate) fn is_enough(&self, enough: Enough) -> Result<()> {
        /// However little there is to move, it was tried.
        const ROUNDS: u64 = 3;
        let figures = [
            (self.rounds, ROUNDS, "rounds of motion"),
            (self.drained, enough.drained, "versions drained"),
            (self.evicted, enough.evicted, "evictions"),
            (self.recalled, enough.recalled, "files recalled"),
        ];
        for (figure, enough, what) in figures {
            ensure!(figure >= enough, "only {figure} {what} meanwhile, {enough} are needed: nothing was proven");
        }
        Ok(())
    }
}

/// The least that is to be moved. 0 where a suite never leaves a file closed for long enough.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enough {
    pub(crate) drained: u64,
    pub(crate) evicted: u64,
    pub(crate) recalled: u64,
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Moved { rounds, drained, published, evicted, recalled } = self;
        write!(
            f,
            "{rounds} rounds: {drained} versions drained, {published} events published, {evicted} evictions, {recalled} recalls"
        )
    }
}

/// Does `work` while the mount is in motion. An error of the motion itself comes first: it may be why the work failed.
pub(crate) fn in_motion<T>(scratch: &Scratch, work: impl FnOnce() -> Result<T>) -> Result<(Result<T>, Moved)> {
    let before = Moved::so_far(scratch)?;
    let over = AtomicBool::new(false);
    let (result, moved) = thread::scope(|scope| {
        let mover = scope.spawn(|| move_until(scratch, &over));
        // Also when `work` panics: the scope waits for the mover.
        let ends = SetWhenDropped(&over);
        let result = work();
        drop(ends);
        (result, mover.join().unwrap_or_else(|_| Err(anyhow!("the motion panicked"))))
    });
    let (moved, now) = (moved.context("the motion")?, Moved::so_far(scratch)?);
    let moved = Moved {
        drained: now.drained - before.drained,
        published: now.published - before.published,
        evicted: now.evicted - before.evicted,
        ..moved
    };
    Ok((result, moved))
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn move_until(scratch: &Scratch, over: &AtomicBool) -> Result<Moved> {
    let mut moved = Moved::default();
    while !over.load(Ordering::Relaxed) {
        sync(scratch)?;
        evict(scratch)?;
        moved.recalled += recall(&scratch.point(), moved.rounds)?;
        moved.rounds += 1;
    }
    Ok(moved)
}

fn sync(scratch: &Scratch) -> Result<()> {
    let status = Running::start(scratch.program().arg("sync").arg(scratch.point()))?.wait()?;
    ensure!(status.success(), "dlio-fs sync: {status}");
    Ok(())
}

pub(crate) fn evict(scratch: &Scratch) -> Result<()> {
    /// What is open stays; what is dirty by now; and what has another name or is gone by now, which is told as changed.
    const NOT_ALL: [i32; 3] = [1, 3, 5];
    let mut command = scratch.program();
    command.arg("evict").arg("--all").arg(scratch.point()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = Running::start(&mut command)?.wait()?;
    ensure!(status.code().is_some_and(|code| code == 0 || NOT_ALL.contains(&code)), "dlio-fs evict --all: {status}");
    Ok(())
}

/// Reads some of the files that only the slow tier has, others each time. How many were read so.
fn recall(top: &Path, round: u64) -> Result<u64> {
    /// A round is to be short: the next drain waits for it.
    const AT_ONCE: usize = 32;
    let mut files = Vec::new();
    collect(top, &mut files)?;
    let from = (round as usize * AT_ONCE) % files.len().max(1);
    let mut recalled = 0;
    for file in files.iter().cycle().skip(from).take(AT_ONCE.min(files.len())) {
        recalled += u64::from(vanished(read_if_slow(file)).with_context(|| format!("reading {}", file.display()))?);
    }
    Ok(recalled)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = vanished(fs::read_dir(dir).map(Some)).with_context(|| format!("listing {}", dir.display()))?;
    for entry in entries.into_iter().flatten() {
        let Some(entry) = vanished(entry.map(Some))? else { continue };
        match vanished(entry.file_type().map(Some))? {
            Some(kind) if kind.is_dir() => collect(&entry.path(), files)?,
            Some(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    Ok(())
}

/// Without a trace in its times: who works on the file may compare them.
fn read_if_slow(file: &Path) -> io::Result<bool> {
    const LARGEST: u64 = 1 << 20;
    if xattr::get(file, "user.dlio.tier")?.as_deref() != Some(b"slow") {
        return Ok(false);
    }
    let flags = OFlag::O_NOATIME | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits()).open(file)?;
    io::copy(&mut file.take(LARGEST), &mut io::sink())?;
    Ok(true)
}

/// A file that somebody else has removed, replaced or closed meanwhile is nothing to read, and no error.
fn vanished<T: Default>(result: io::Result<T>) -> Result<T> {
    const GONE: [Errno; 7] = [
        Errno::ENOENT,
        Errno::ENOTDIR,
        Errno::EISDIR,
        Errno::ELOOP,
        Errno::ENXIO,
        Errno::ENAMETOOLONG,
        // Without root: closed.
        Errno::EACCES,
    ];
    match result {
        Ok(found) => Ok(found),
        Err(error) if error.raw_os_error().is_some_and(|code| GONE.contains(&Errno::from_raw(code))) => {
            Ok(T::default())
        }
        Err(error) => bail!(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_three_has_to_move() {
        let moved = Moved { rounds: 9, drained: 5, published: 9, evicted: 5, recalled: 5 };
        let enough = Enough { drained: 5, evicted: 5, recalled: 5 };
        assert!(moved.is_enough(enough).is_ok());
        for less in [Moved { drained: 4, ..moved }, Moved { evicted: 4, ..moved }, Moved { recalled: 4, ..moved }] {
            assert!(less.is_enough(enough).is_err(), "{less}");
        }
    }

    #[test]
    fn only_what_has_gone_may_fail() {
        assert_eq!(vanished::<bool>(Err(Errno::ENOENT.into())).ok(), Some(false));
        assert!(vanished::<bool>(Err(Errno::EIO.into())).is_err());
    }
}
