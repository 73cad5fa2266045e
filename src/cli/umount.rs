//! `dlio-fs umount`: drain, unmount, wait for the daemon, and list what stays on the fast tier (P10).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use serde_json::json;

use super::drain::{self, DrainScope, Waited};
use super::duration::parse_duration;
use super::holders::Holder;
use super::mount::CONFIG_REMEDY;
use super::outcome::{Exit, Failure, Outcome, complain, say, say_json, unusable};
use super::progress::ProgressDisplay;
use super::{client, holders};
use crate::config::Config;
use crate::error::{Context, Error};
use crate::json;
use crate::mount::{self, Daemon, Detach, Left};
use crate::path::{Show as _, readable};
use crate::stats::render::count;
use crate::stats::status::Safety;

/// How long the daemon may take to exit once its mount is gone: it makes everything durable on the fast tier.
const END_WAIT: Duration = Duration::from_secs(60);
/// A daemon that has nothing else to wait for exits sooner.
const COPY_WAIT: Duration = Duration::from_secs(2);
/// How long a mount may be busy without a process that can be named.
const BUSY_WAIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// Unmount once everything is on the slow tier, showing progress
///
/// With --timeout or --now, files that have not reached the slow tier by then stay on the fast tier and are listed
/// (exit code 3); the next mount of the same tiers continues with them. A mount in use is not unmounted, and its users
/// are named. If a process has a copy of the mount in its own mount namespace (a container), umount waits for it; with
/// --timeout or --now the process loses that copy.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs umount /mnt/train
  dlio-fs umount /mnt/train --timeout 10min
  dlio-fs umount /mnt/train --now

Exit codes: 0 left with everything on the slow tier; 3 left with something only on the fast
tier; 1 not left, for it is in use or something failed.")]
pub(super) struct UmountArgs {
    /// The mount point
    #[arg(required_unless_present = "config")]
    mountpoint: Option<PathBuf>,
    /// Read the mount point from this configuration file, as the service does
    #[arg(long, value_name = "FILE", conflicts_with = "mountpoint")]
    config: Option<PathBuf>,
    /// Wait at most this long for the slow tier, as "30s" or "10min"
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Do not wait for the slow tier at all
    #[arg(long, conflicts_with = "timeout")]
    now: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How a mount was left.
enum End {
    /// Everything is on the slow tier.
    Whole,
    /// The same mount continues elsewhere, and was so safe.
    Elsewhere(Safety),
    Left(Left),
    /// So many files and changes are only on the fast tier; another user's daemon does not say which.
    Counted(u64, u64),
    /// Without asking its daemon.
    TakenAway,
}

/// The way to leave a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// After waiting at most this long for the slow tier.
    Drained(Option<Duration>),
    /// Drained without a limit, for umount(8).
    Quietly,
    Now,
    /// At once, even if in use; it ends with its last user.
    Lazily,
    /// At once, even if in use or not answering: calls under way fail.
    Force,
}

pub(super) fn run(args: &UmountArgs) -> Outcome {
    let how = if args.now { How::Now } else { How::Drained(args.timeout) };
    let mountpoint = match (&args.mountpoint, &args.config) {
        (Some(mountpoint), _) => mountpoint.clone(),
        (None, Some(file)) => configured(file)?,
        (None, None) => return Err(Failure::new(Exit::Usage, "no mount point is given")),
    };
    if args.json { as_json(&mountpoint, how) } else { leave_mount(&mountpoint, how) }
}

fn as_json(named: &Path, how: How) -> Outcome {
    let (mountpoint, end) = end_named(named, how)?;
    let (safe, files, changes, paths) = match &end {
        End::Whole => (Some(true), Some(0), Some(0), Vec::new()),
        End::Elsewhere(Safety { safe, files, events, .. }) => (Some(*safe), Some(*files), Some(*events), Vec::new()),
        End::Left(left) => (Some(left.is_nothing()), Some(left.files), Some(left.events), left.paths.clone()),
        End::Counted(files, changes) => (Some(false), Some(*files), Some(*changes), Vec::new()),
        End::TakenAway => (None, None, None, Vec::new()),
    };
    let mountpoint = json::lossy(&mountpoint);
    // A file without a name is listed with a space in its text. An escaped path has no space.
    let paths = paths.iter().filter(|path| !path.contains(' '));
    let paths: Vec<_> = paths.map(|path| json::path_of(&format!("/{path}"))).collect();
    let left = json!({ "mountpoint": mountpoint, "safe": safe, "files": files, "changes": changes, "paths": paths });
    say_json(&left)?;
    Ok(end.exit())
}

impl End {
    fn exit(&self) -> Exit {
        match self {
            End::Whole | End::Elsewhere(Safety { safe: true, .. }) => Exit::Done,
            End::Left(left) if left.is_nothing() => Exit::Done,
            End::Left(_) | End::Elsewhere(_) | End::Counted(..) | End::TakenAway => Exit::Undrained,
        }
    }
}

fn configured(file: &Path) -> Result<PathBuf, Failure> {
    let mut config = Config::default();
    let text = std::fs::read_to_string(file).map_err(|e| unusable("--config", file, &e, CONFIG_REMEDY))?;
    config.apply_toml(&text, &file.shown().to_string()).map_err(Failure::usage)?;
    let none = || unusable("--config", file, &"it has no mountpoint", "name the mount point itself, or set the key");
    config.mountpoint.ok_or_else(none)
}

pub(super) fn leave_mount(named: &Path, how: How) -> Outcome {
    let (mountpoint, end) = end_named(named, how)?;
    report(&mountpoint, end)
}

/// Ends the mount at this path. It may be gone from here while others have it in mount namespaces of their own.
fn end_named(named: &Path, how: How) -> Result<(PathBuf, End), Failure> {
    match client::the_mount(Some(named)) {
        Ok(mountpoint) => end_mount(&mountpoint, how).map(|end| (mountpoint, end)),
        Err(error) => {
            let mountpoint = named.canonicalize().unwrap_or_else(|_| named.to_owned());
            let daemon = Daemon::of(&mountpoint).ok_or(error)?;
            end_copies(&mountpoint, &daemon, how).map(|end| (mountpoint, end))
        }
    }
}

fn end_copies(mountpoint: &Path, daemon: &Daemon, how: How) -> Result<End, Failure> {
    if matches!(how, How::Drained(None) | How::Quietly) {
        let holders: Vec<_> = holders::elsewhere(mountpoint).iter().map(ToString::to_string).collect();
        let what = match holders.is_empty() {
            true => format!("{} is unmounted, and its daemon (pid {}) still runs", mountpoint.shown(), daemon.pid),
            false => format!("{} is unmounted here, and in use by {}", mountpoint.shown(), holders.join(", ")),
        };
        return Err(Error::refused(what, format!("wait for that, or end it: {}", end_now(mountpoint))).into());
    }
    daemon.ask_to_leave().map_err(|errno| unended(daemon, errno))?;
    wait_for_end(mountpoint, daemon, "", MountCopies::Ended).map(End::Left)
}

fn end_now(mountpoint: &Path) -> String {
    format!("dlio-fs umount --now {}", mountpoint.shown())
}

fn end_mount(mountpoint: &Path, how: How) -> Result<End, Failure> {
    // Called from inside the mount, this process would be its last user.
    std::env::set_current_dir("/").at("go to", "/")?;
    if how == How::Force {
        return leave_by(mountpoint, mount::force);
    }
    if client::is_dead(mountpoint)? {
        return leave_dead(mountpoint);
    }
    let others = mount::also_at(&mount::mounts()?, mountpoint);
    if !others.is_empty() {
        return leave_one_of_several(mountpoint, &others);
    }
    if how == How::Lazily {
        return leave_by(mountpoint, |mountpoint| mount::detach(mountpoint, Detach::Now));
    }
    // Before a long drain rather than after it.
    refuse_if_busy(mountpoint)?;
    mount::stopping("draining to the slow tier");
    match how {
        // Changes may be pending, but wait for a mount that can write.
        How::Drained(_) | How::Quietly if Daemon::of(mountpoint).is_some_and(|daemon| !daemon.slow_is_writable()) => {}
        How::Drained(limit) => drain(mountpoint, limit, ProgressDisplay::watch)?,
        How::Quietly => drain(mountpoint, None, ProgressDisplay::watch_on_terminals)?,
        _ => {}
    }
    leave_as(
        mountpoint,
        if matches!(how, How::Drained(None) | How::Quietly) { MountCopies::WaitedFor } else { MountCopies::Ended },
    )
}

/// What to do about copies of the mount in other mount namespaces, which keep the daemon running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountCopies {
    /// Wait: their users may still need them.
    WaitedFor,
    /// End them: the time to leave is up.
    Ended,
}

fn drain(mountpoint: &Path, limit: Option<Duration>, watch: fn(&Path) -> ProgressDisplay) -> Result<(), Failure> {
    let progress = watch(mountpoint);
    let waited = drain::wait_telling(&DrainScope::whole(mountpoint.to_path_buf()), limit, mount::still_leaving)?;
    drop(progress);
    if waited == Waited::TimedOut {
        complain("the time is up; unmounting with what has arrived");
    }
    Ok(())
}

/// The daemon continues for the other mount points, so nothing need be drained. What is pending is told nevertheless:
/// a script may go on only with what is on the slow tier.
fn leave_one_of_several(mountpoint: &Path, others: &[PathBuf]) -> Result<End, Failure> {
    let safety = client::status(mountpoint)?.safety;
    unmount(mountpoint)?;
    let others: Vec<_> = others.iter().map(|path| path.shown().to_string()).collect();
    complain(format_args!("{} is unmounted; the same mount continues at {}", mountpoint.shown(), others.join(", ")));
    Ok(End::Elsewhere(safety))
}

/// Removes the mount without asking its daemon, and without waiting for it.
fn leave_by(mountpoint: &Path, take_away: impl Fn(&Path) -> Result<(), Errno>) -> Result<End, Failure> {
    take_away(mountpoint).map_err(|errno| failed(mountpoint, errno))?;
    complain(format_args!(
        "{} is removed without draining; mount the same tiers again to copy what is only on the fast tier",
        mountpoint.shown()
    ));
    Ok(End::TakenAway)
}

/// Unmounts now, waits for the daemon to exit, and lists what stays on the fast tier.
pub(super) fn leave(mountpoint: &Path) -> Outcome {
    leave_as(mountpoint, MountCopies::WaitedFor).and_then(|end| report(mountpoint, end))
}

fn leave_as(mountpoint: &Path, copies: MountCopies) -> Result<End, Failure> {
    let daemon = Daemon::of(mountpoint);
    let safety = client::status(mountpoint)?.safety;
    let device = mount::mounted_at(&mount::mounts()?, mountpoint).map(|mount| mount.device.clone());
    unmount(mountpoint)?;
    match daemon {
        Some(daemon) => wait_for_end(mountpoint, &daemon, &device.unwrap_or_default(), copies).map(End::Left),
        // Another user's daemon: only its last figures are known.
        None if safety.safe => Ok(End::Whole),
        None => Ok(End::Counted(safety.files, safety.events)),
    }
}

fn leave_dead(mountpoint: &Path) -> Result<End, Failure> {
    mount::detach(mountpoint, Detach::Now).map_err(|errno| failed(mountpoint, errno))?;
    complain(format_args!(
        "the daemon of {} was already gone; mount the same tiers again to copy what is only on the fast tier",
        mountpoint.shown()
    ));
    Ok(End::TakenAway)
}

/// A passing lookup or reader of `/proc` keeps a mount busy for a moment. So only a user that can be named, or that
/// lasts, counts.
fn unmount(mountpoint: &Path) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        match mount::detach(mountpoint, Detach::WhenFree) {
            Ok(()) => return Ok(()),
            Err(Errno::EBUSY) => refuse_if_busy(mountpoint)?,
            Err(errno) => return Err(failed(mountpoint, errno)),
        }
        if begun.elapsed() >= BUSY_WAIT {
            return Err(busy(
                mountpoint,
                "processes that this user may not see, a call that waits for the slow tier (dlio-fs status says whose), or a mount below it",
            ));
        }
        std::thread::sleep(POLL);
    }
}

fn refuse_if_busy(mountpoint: &Path) -> Result<(), Failure> {
    let holders = holders::of(mountpoint);
    if holders.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = holders.iter().map(ToString::to_string).collect();
    Err(busy(mountpoint, &names.join(", ")))
}

fn busy(mountpoint: &Path, holders: &str) -> Failure {
    Error::refused(
        format!("{} is in use by {holders}", mountpoint.shown()),
        "end them, or change their working directory (cd)",
    )
    .into()
}

fn failed(mountpoint: &Path, errno: Errno) -> Failure {
    let remedy = "only root and the user who mounted it may unmount it";
    Error::refused(format!("cannot unmount {}: {}", mountpoint.shown(), errno.desc()), remedy).into()
}

/// Waits for the lock, which the daemon releases as its last act, with the list of what it leaves. `device` is the
/// mount's.
///
/// Copies are ended by sending the daemon SIGTERM. This needs only the right to signal it, also reaches copies that are
/// invisible from here, and lets the daemon make everything durable first, unlike aborting the connection.
fn wait_for_end(mountpoint: &Path, daemon: &Daemon, device: &str, copies: MountCopies) -> Result<Left, Failure> {
    let begun = Instant::now();
    let mut told = false;
    while begun.elapsed() < END_WAIT {
        if let Some(left) = mount::last_left(&daemon.fast) {
            return Ok(left);
        }
        if !daemon.runs() && mount::last_left(&daemon.fast).is_none() {
            let what = format!("the daemon (pid {}) ended without a list of what it left", daemon.pid);
            return Err(
                Error::refused(what, "see its log; nothing acknowledged is lost; mount again to continue").into()
            );
        }
        if !told && begun.elapsed() >= COPY_WAIT {
            told = true;
            let what = if copies == MountCopies::Ended { "taken away from" } else { "waiting for" };
            holders::of_copies(device).iter().for_each(|holder| complain(format_args!("{what} {}", copy(holder))));
            // A daemon that is already leaving ignores it.
            if copies == MountCopies::Ended {
                daemon.ask_to_leave().map_err(|errno| unended(daemon, errno))?;
            }
        }
        std::thread::sleep(POLL);
    }
    let what = format!("unmounted, but the daemon (pid {}) still runs after {} s", daemon.pid, END_WAIT.as_secs());
    let remedy = holders::of_copies(device).first().map_or_else(
        || "see its log; it makes what it holds durable on the fast tier".to_owned(),
        |holder| format!("it continues until {} ends, or until {}", copy(holder), end_now(mountpoint)),
    );
    Err(Error::refused(what, remedy).into())
}

fn unended(daemon: &Daemon, errno: Errno) -> Failure {
    let what = format!("unmounted, but the daemon (pid {}) cannot be told to end: {}", daemon.pid, errno.desc());
    Error::refused(what, "only root and the user who mounted it may end it").into()
}

fn copy(holder: &Holder) -> String {
    format!("{holder}, which has the mount in its own mount namespace, too")
}

/// Prints the files that stay to standard output, the rest to standard error.
fn report(mountpoint: &Path, end: End) -> Outcome {
    match &end {
        End::Whole | End::TakenAway | End::Elsewhere(Safety { safe: true, .. }) => {}
        End::Elsewhere(Safety { files, events, .. }) => {
            let (files, changes) = (count(*files, "file"), count(*events, "change"));
            complain(format_args!("{files} and {changes} are only on the fast tier, and are drained there"));
        }
        End::Counted(files, changes) => {
            let (files, changes) = (count(*files, "file"), count(*changes, "change"));
            say(format_args!("{files} and {changes} are only on the fast tier"))?;
        }
        End::Left(left) if left.is_nothing() => {}
        End::Left(left) => {
            left.paths.iter().try_for_each(|path| say(readable(path)))?;
            complain(format_args!(
                "{} and {} stay on the fast tier; the next mount at {} continues with them",
                count(left.files, "file"),
                count(left.events, "change"),
                mountpoint.shown()
            ));
        }
    }
    Ok(end.exit())
}
