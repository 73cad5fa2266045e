//! `dlio-fs drain`, and `dlio-fs sync`, which is short for it: wait until a whole mount, one path, or a fleet is on the slow tier (D2).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::client::{self, ControlCall, Said};
use super::fleet::{self, FleetArgs, FleetQuestion, FleetSource};
use super::outcome::{Exit, Failure, Outcome, complain, say, say_json};
use super::progress::{self, News, ProgressDisplay};
use crate::json;
use crate::mount::Daemon;

/// Wait until everything written so far is on the slow tier, and show progress
///
/// It waits for what was written before, or for what is at PATH, under its name. The drain itself, which copies to the
/// slow tier, always runs in the background; --no-wait prints the verdict about the whole mount at once, with the exit
/// code of `dlio-fs status`. `dlio-fs sync` is short for `dlio-fs drain --quiet`.
///
/// fsync of a file, or of the mount point, waits for the fast tier only; sync(1) and syncfs(2) do not reach a FUSE file
/// system at all.
///
/// With --fleet it waits until everything that any member of a fleet had answered before the call is on the slow tier,
/// and says on standard error for whom. The exit code is 3 if what a forgotten member had may be missing.
///
/// --deadline is for a machine that will soon be gone (a spot instance, the end of a batch job). Until then the drain
/// ignores its bandwidth limit and pauses, nothing is staged, and files that were replaced or removed meanwhile are not
/// copied. If not everything will arrive in time, the newest complete checkpoint is copied first, as plain files below
/// .dlio-fs/saved on the slow tier, because the tree itself changes only in order. At the deadline it lists what was
/// saved and what is left, with exit code 3.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs drain /mnt/train/run1
  dlio-fs drain /mnt/train --deadline 110s
  dlio-fs drain --fleet job --slow /nfs/train")]
pub(super) struct DrainArgs {
    /// Only say whether everything is on the slow tier
    #[arg(long, conflicts_with = "fleet")]
    no_wait: bool,
    /// Print nothing, unless something holds it
    #[arg(long, short, conflicts_with = "no_wait")]
    quiet: bool,
    /// Copy as much as possible within this time, the newest checkpoint first if not everything fits; whole mounts only
    #[arg(long, value_name = "TIME", value_parser = super::duration::parse_duration)]
    #[arg(conflicts_with_all = ["no_wait", "quiet", "fleet"])]
    deadline: Option<Duration>,
    /// Print JSON
    #[arg(long, conflicts_with = "fleet")]
    json: bool,
    #[command(flatten)]
    what: DrainedArgs,
}

/// What is waited for.
#[derive(Debug, Args)]
struct DrainedArgs {
    /// A mount point, or a file or directory below one; optional if there is only one mount
    path: Option<PathBuf>,
    #[command(flatten)]
    fleet: FleetArgs,
}

/// Wait until everything written so far is on the slow tier; prints nothing, unless something holds it
///
/// It is `dlio-fs drain --quiet`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs sync /mnt/train && rm -r /scratch/copy
  dlio-fs sync /mnt/train --fleet")]
pub(super) struct SyncArgs {
    #[command(flatten)]
    what: DrainedArgs,
}

pub(super) fn run(args: &DrainArgs) -> Outcome {
    let path = args.what.path.as_deref();
    if let Some(time) = args.deadline {
        return drain_until(&client::the_mount(path)?, time, args.json);
    }
    if args.no_wait {
        let place = DrainScope::of(path)?;
        if args.json {
            place.tell_as_json()?;
        } else {
            say(client::first_line(&place.mountpoint)?)?;
        }
        return Ok(client::exit(&client::status(&place.mountpoint)?));
    }
    let exit = drain(&args.what, args.quiet)?;
    if args.json {
        DrainScope::of(path)?.tell_as_json()?;
    }
    Ok(exit)
}

pub(super) fn run_sync(args: &SyncArgs) -> Outcome {
    drain(&args.what, true)
}

/// Even if quiet it says what holds it: otherwise it would wait without end and a word.
fn drain(what: &DrainedArgs, quiet: bool) -> Outcome {
    if let Some(source) = what.fleet.source(what.path.as_deref())? {
        return drain_fleet(source);
    }
    let place = DrainScope::of(what.path.as_deref())?;
    if quiet {
        let mut news = News::default();
        let tell = |_: &str| {
            let trouble = client::status(&place.mountpoint).ok().and_then(|status| progress::trouble(&status));
            trouble.iter().for_each(|trouble| news.tell(trouble));
        };
        wait_telling(&place, None, tell)?;
    } else {
        let _progress = ProgressDisplay::watch(&place.mountpoint);
        wait(&place, None)?;
    }
    Ok(Exit::Done)
}

/// Saved and left files go to standard output, progress to standard error.
fn drain_until(mountpoint: &Path, time: Duration, as_json: bool) -> Outcome {
    let mut control = ControlCall::ask(
        mountpoint,
        &format!("deadline {}", humantime::format_duration(time).to_string().replace(' ', "")),
    )?;
    let mut findings = Vec::new();
    loop {
        match control.listen()? {
            Said::Done(verdict) => {
                if as_json {
                    let mountpoint = json::lossy(mountpoint);
                    let told = json!({ "mountpoint": mountpoint, "findings": findings, "summary": verdict });
                    say_json(&told)?;
                } else {
                    say(&verdict)?;
                }
                return Ok(if verdict.starts_with("SAFE") { Exit::Done } else { Exit::Undrained });
            }
            Said::Error(why) => return Err(Failure::new(Exit::Failure, why)),
            Said::Waiting(line) => match line.split_once(": ") {
                Some((kind @ ("saved" | "not saved" | "left"), what)) if as_json => {
                    findings.push(client::finding(kind, what));
                }
                Some(("saved" | "left", _)) => say(client::for_people(&line))?,
                _ => complain(client::for_people(&line)),
            },
        }
    }
}

/// 1. The question is asked. What is answered from now on is no part of it.
/// 2. Our own daemon hurries with what it has.
/// 3. The leases say when all members, ours too, are past the question.
fn drain_fleet(source: FleetSource) -> Outcome {
    let own = match &source {
        FleetSource::Mount(mountpoint) => Some(DrainScope::whole(mountpoint.clone())),
        FleetSource::Slow(_) => None,
    };
    let mut question = FleetQuestion::ask(source)?; // 1
    let mut news = News::default();
    if let Some(own) = own {
        wait_telling(&own, None, |line| news.tell(line))?; // 2
    }
    question.wait(None, |line| news.tell(line))?; // 3
    let answer = question.answer();
    answer.why.iter().for_each(complain);
    Ok(fleet::exit(&answer))
}

/// A mount, or a part of one.
#[derive(Debug)]
pub(super) struct DrainScope {
    mountpoint: PathBuf,
    /// Empty for the whole mount.
    below: PathBuf,
}

impl DrainScope {
    fn of(path: Option<&Path>) -> Result<DrainScope, Failure> {
        match path {
            Some(path) => client::mount_of(path).map(|(mountpoint, below)| DrainScope { mountpoint, below }),
            None => Ok(DrainScope::whole(client::the_mount(None)?)),
        }
    }

    pub(super) fn whole(mountpoint: PathBuf) -> DrainScope {
        DrainScope { mountpoint, below: PathBuf::new() }
    }

    /// How safe the mount is, from `.dlio/stats.json`.
    fn tell_as_json(&self) -> Result<(), Failure> {
        let stats = client::read(&self.mountpoint, "stats.json")?;
        let stats: serde_json::Value =
            serde_json::from_str(&stats).map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
        let mountpoint = json::lossy(&self.mountpoint);
        say_json(&json!({ "mountpoint": mountpoint, "safety": stats["safety"] }))
    }

    /// `sync`, or `sync PATH` with the escaped path below the mount.
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

/// How often a read-only mount is polled.
const LOOK: Duration = Duration::from_millis(100);

/// Waits without a command: nothing new can come, and a read-only mount drains by itself. Only one that cannot write
/// its slow tier does not; waiting for it would have no end.
fn watch(mountpoint: &Path, limit: Option<Duration>, mut tell: impl FnMut(&str)) -> Result<Waited, Failure> {
    let begun = Instant::now();
    let drains = Daemon::of(mountpoint).is_none_or(|daemon| daemon.slow_is_writable());
    while !client::status(mountpoint)?.safety.safe {
        if !drains {
            return Err(client::cannot_drain(mountpoint).into());
        }
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return Ok(Waited::TimedOut);
        }
        tell(&client::first_line(mountpoint)?);
        std::thread::sleep(LOOK);
    }
    Ok(Waited::Done)
}

/// Waits until everything in `place` has arrived, for about `limit` at most.
pub(super) fn wait(place: &DrainScope, limit: Option<Duration>) -> Result<Waited, Failure> {
    wait_telling(place, limit, |_| ())
}

/// Like [`wait`], and reports about once a second what it waits for.
pub(super) fn wait_telling(
    place: &DrainScope,
    limit: Option<Duration>,
    mut tell: impl FnMut(&str),
) -> Result<Waited, Failure> {
    let begun = Instant::now();
    let mut control = match ControlCall::ask(&place.mountpoint, &place.sync_command()) {
        // A read-only mount takes no commands.
        Err(_) if client::is_read_only(&place.mountpoint) => return watch(&place.mountpoint, limit, tell),
        control => control?,
    };
    loop {
        match control.listen()? {
            Said::Done(text) => {
                // The daemon does not wait for these.
                text.split_once(", but for ").into_iter().for_each(|(_, what)| {
                    complain(format_args!("{what}: not on the slow tier; dlio-fs queue lists it"));
                });
                return Ok(Waited::Done);
            }
            Said::Error(why) => return Err(Failure::new(Exit::Failure, why)),
            // The daemon sends a line about once a second, so the limit is checked as often.
            Said::Waiting(_) if limit.is_some_and(|limit| begun.elapsed() >= limit) => return Ok(Waited::TimedOut),
            Said::Waiting(line) => tell(&line),
        }
    }
}
