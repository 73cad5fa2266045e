//! `dlio-fs drain` and `dlio-fs sync`: wait until all of a mount, or one path, is on the slow tier (D2).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::progress::Progress;
use super::talk::{self, Control, Said};
use super::{Exit, Failure, Outcome, say};

/// Bring everything, or what is below PATH, to the slow tier, showing progress
///
/// Without --wait it only says whether anything is left (exit code 3), for it is on its way anyway; with it, it returns
/// once all that was written before is on the slow tier under its name.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  dlio-fs drain /mnt/train/run1 --wait")]
pub(super) struct DrainArgs {
    /// A mount point, or a file or directory below one; may be left out when there is only one mount
    path: Option<PathBuf>,
    /// Return only when everything has arrived
    #[arg(long)]
    wait: bool,
}

/// Return once everything written so far is on the slow tier; quiet, for scripts
///
/// fsync of a file, or of the mount point, returns when it is durable on the fast tier; sync(1) and syncfs(2) do not
/// reach a FUSE file system at all.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  dlio-fs sync /mnt/train && rm -r /scratch/copy")]
pub(super) struct SyncArgs {
    /// A mount point, or a file or directory below one; may be left out when there is only one mount
    path: Option<PathBuf>,
}

pub(super) fn run(args: &DrainArgs) -> Outcome {
    let place = Place::of(args.path.as_deref())?;
    if !args.wait {
        say(talk::first_line(&place.mountpoint)?)?;
        let safe = talk::standing(&place.mountpoint)?.safety.safe;
        return Ok(if safe { Exit::Done } else { Exit::Undrained });
    }
    let _progress = Progress::watch(&place.mountpoint);
    wait(&place, None).map(|_| Exit::Done)
}

pub(super) fn run_sync(args: &SyncArgs) -> Outcome {
    wait(&Place::of(args.path.as_deref())?, None).map(|_| Exit::Done)
}

/// A mount, or a part of one.
#[derive(Debug)]
pub(super) struct Place {
    mountpoint: PathBuf,
    /// Empty for all of it.
    below: PathBuf,
}

impl Place {
    fn of(path: Option<&Path>) -> Result<Place, Failure> {
        match path {
            Some(path) => talk::mount_of(path).map(|(mountpoint, below)| Place { mountpoint, below }),
            None => Ok(Place::whole(talk::the_mount(None)?)),
        }
    }

    pub(super) fn whole(mountpoint: PathBuf) -> Place {
        Place { mountpoint, below: PathBuf::new() }
    }

    /// `sync`, or `sync PATH` with the path below the mount, escaped as everywhere.
    fn sync_command(&self) -> String {
        match self.below.as_os_str().as_encoded_bytes() {
            b"" => "sync".to_owned(),
            path => format!("sync {}", crate::path::escape(path)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Done,
    TimedOut,
}

/// How often a read-only mount is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Waits without asking for anything: what a read-only mount has is on its way, and nothing new can come.
fn watch(mountpoint: &Path, limit: Option<Duration>, mut tell: impl FnMut(&str)) -> Result<Waited, Failure> {
    let begun = Instant::now();
    while !talk::standing(mountpoint)?.safety.safe {
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return Ok(Waited::TimedOut);
        }
        tell(&talk::first_line(mountpoint)?);
        std::thread::sleep(LOOK);
    }
    Ok(Waited::Done)
}

/// Waits until everything in `place` has arrived; about `limit` at most, if there is one.
pub(super) fn wait(place: &Place, limit: Option<Duration>) -> Result<Waited, Failure> {
    wait_telling(place, limit, |_| ())
}

/// As [`wait`], and tells about once a second what is waited for.
pub(super) fn wait_telling(
    place: &Place,
    limit: Option<Duration>,
    mut tell: impl FnMut(&str),
) -> Result<Waited, Failure> {
    let begun = Instant::now();
    let mut control = match Control::ask(&place.mountpoint, &place.sync_command()) {
        // A mount that takes no changes takes no commands either.
        Err(_) if talk::is_read_only(&place.mountpoint) => return watch(&place.mountpoint, limit, tell),
        control => control?,
    };
    loop {
        match control.listen()? {
            Said::Done(_) => return Ok(Waited::Done),
            Said::Error(why) => return Err(Failure::new(Exit::Failure, why)),
            // The daemon speaks up about once a second, so this is looked at as often.
            Said::Waiting(_) if limit.is_some_and(|limit| begun.elapsed() >= limit) => return Ok(Waited::TimedOut),
            Said::Waiting(line) => tell(&line),
        }
    }
}
