//! `dlio-fs umount`: drain, unmount, wait for the daemon, and list what stays on the fast tier (P10).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use serde_json::json;

use super::drain::{self, Place, Waited};
use super::duration::parse_duration;
use super::holders::Holder;
use super::outcome::{Exit, Failure, Outcome, complain, say, say_json};
use super::progress::Progress;
use super::{holders, talk};
use crate::config::Config;
use crate::error::{Context, Error};
use crate::json;
use crate::mount::{self, Daemon, Detach, Left};
use crate::stats::render::count;

/// How long the daemon may take to end once its mount is gone: it makes all durable on the fast tier.
const END_WAIT: Duration = Duration::from_secs(60);
/// A daemon that has nothing else to wait for ends sooner.
const COPY_WAIT: Duration = Duration::from_secs(2);
/// How long a mount may be busy with nobody to be named.
const BUSY_WAIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// Unmount once everything is on the slow tier, showing progress
///
/// With --timeout or --now, what has not arrived by then stays on the fast tier and is listed (exit code 3); the next
/// mount of the same tiers goes on with it. A mount in use is not unmounted, and its users are named. If a process has a copy of the
/// mount in its own mount name space (a container), umount waits for it; with --timeout or --now the process loses that copy.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs umount /mnt/train
  dlio-fs umount /mnt/train --timeout 10min
  dlio-fs umount /mnt/train --now

Exit codes: 0 left with everything on the slow tier; 3 left with something only on the fast tier; 1 not left, for it is in
use or something failed.")]
pub(super) struct UmountArgs {
    /// The mount point
    #[arg(required_unless_present = "config")]
    mountpoint: Option<PathBuf>,
    /// Take the mount point from this configuration file, as the service does
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
    /// With everything on the slow tier, or with a part of it that goes on elsewhere.
    Whole,
    Left(Left),
    /// So many files and changes are only on the fast tier: another user's daemon does not say which.
    Counted(u64, u64),
    /// Without asking its daemon.
    TakenAway,
}

/// In which way a mount is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// After at most this long for the slow tier.
    Drained(Option<Duration>),
    /// Drained without a limit, for umount(8).
    Quietly,
    Now,
    /// At once, whoever uses it; it ends with its last user.
    Lazily,
    /// At once, whoever uses it and whether it answers or not: calls under way fail.
    Force,
}

pub(super) fn run(args: &UmountArgs) -> Outcome {
    let how = if args.now { How::Now } else { How::Drained(args.timeout) };
    let mountpoint = match (&args.mountpoint, &args.config) {
        (Some(mountpoint), _) => mountpoint.clone(),
        (None, Some(file)) => configured(file).map_err(Failure::usage)?,
        (None, None) => return Err(Failure::new(Exit::Usage, "no mount point is given")),
    };
    if args.json { as_json(&mountpoint, how) } else { leave_mount(&mountpoint, how) }
}

fn as_json(named: &Path, how: How) -> Outcome {
    let mountpoint = talk::the_mount(Some(named))?;
    let end = end_mount(&mountpoint, how)?;
    let (safe, files, changes, paths) = match &end {
        End::Whole => (Some(true), Some(0), Some(0), Vec::new()),
        End::Left(left) => (Some(left.is_nothing()), Some(left.files), Some(left.events), left.paths.clone()),
        End::Counted(files, changes) => (Some(false), Some(*files), Some(*changes), Vec::new()),
        End::TakenAway => (None, None, None, Vec::new()),
    };
    let mountpoint = mountpoint.display().to_string();
    // A file that has no name any more is called so, with a space. A path has none: it is escaped.
    let paths = paths.iter().filter(|path| !path.contains(' '));
    let paths: Vec<_> = paths.map(|path| json::path_of(&format!("/{path}"))).collect();
    let left = json!({ "mountpoint": mountpoint, "safe": safe, "files": files, "changes": changes, "paths": paths });
    say_json(&left)?;
    Ok(end.exit())
}

impl End {
    fn exit(&self) -> Exit {
        match self {
            End::Whole => Exit::Done,
            End::Left(left) if left.is_nothing() => Exit::Done,
            End::Left(_) | End::Counted(..) | End::TakenAway => Exit::Undrained,
        }
    }
}

fn configured(file: &Path) -> Result<PathBuf, Error> {
    let mut config = Config::default();
    let text = std::fs::read_to_string(file).at("read", file.display())?;
    config.apply_toml(&text, &file.display().to_string())?;
    config.mountpoint.ok_or_else(|| {
        Error::refused(format!("{} has no mountpoint", file.display()), "name the mount point itself, or set the key")
    })
}

pub(super) fn leave_mount(named: &Path, how: How) -> Outcome {
    let mountpoint = talk::the_mount(Some(named))?;
    end_mount(&mountpoint, how).and_then(|end| tell(&mountpoint, end))
}

fn end_mount(mountpoint: &Path, how: How) -> Result<End, Failure> {
    // Called from inside of the mount, this process would be its last user.
    std::env::set_current_dir("/").at("go to", "/")?;
    if how == How::Force {
        return leave_by(mountpoint, mount::force);
    }
    if talk::is_dead(mountpoint)? {
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
        // What is still pending for it waits for a mount that can write.
        How::Drained(_) | How::Quietly if Daemon::of(mountpoint).is_some_and(|daemon| !daemon.slow_is_writable()) => {}
        How::Drained(limit) => drain(mountpoint, limit, Progress::watch)?,
        How::Quietly => drain(mountpoint, None, Progress::watch_on_terminals)?,
        _ => {}
    }
    leave_as(
        mountpoint,
        if matches!(how, How::Drained(None) | How::Quietly) { Copies::WaitedFor } else { Copies::Ended },
    )
}

/// What becomes of copies of the mount in other mount name spaces, for which the daemon would go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    /// Whoever has one may still need it, and nobody is in a hurry.
    WaitedFor,
    /// The time that was given to leave is up.
    Ended,
}

fn drain(mountpoint: &Path, limit: Option<Duration>, watch: fn(&Path) -> Progress) -> Result<(), Failure> {
    let progress = watch(mountpoint);
    let waited = drain::wait_telling(&Place::whole(mountpoint.to_path_buf()), limit, mount::still_leaving)?;
    drop(progress);
    if waited == Waited::TimedOut {
        complain("the time is up; leaving with what has arrived");
    }
    Ok(())
}

/// The daemon goes on for the other places, so nothing need be drained.
fn leave_one_of_several(mountpoint: &Path, others: &[PathBuf]) -> Result<End, Failure> {
    unmount(mountpoint)?;
    let others: Vec<_> = others.iter().map(|path| path.display().to_string()).collect();
    complain(format_args!("{} is left; the same mount goes on at {}", mountpoint.display(), others.join(", ")));
    Ok(End::Whole)
}

/// Takes the mount away without asking its daemon, and without waiting for it.
fn leave_by(mountpoint: &Path, take_away: impl Fn(&Path) -> Result<(), Errno>) -> Result<End, Failure> {
    take_away(mountpoint).map_err(|errno| failed(mountpoint, errno))?;
    complain(format_args!(
        "{} is taken away without draining; mount the same tiers again to bring over what is only on the fast tier",
        mountpoint.display()
    ));
    Ok(End::TakenAway)
}

/// Unmounts as it is, waits for the daemon to end, and lists what stays on the fast tier.
pub(super) fn leave(mountpoint: &Path) -> Outcome {
    leave_as(mountpoint, Copies::WaitedFor).and_then(|end| tell(mountpoint, end))
}

fn leave_as(mountpoint: &Path, copies: Copies) -> Result<End, Failure> {
    let daemon = Daemon::of(mountpoint);
    let standing = talk::standing(mountpoint)?;
    let device = mount::mounted_at(&mount::mounts()?, mountpoint).map(|mount| mount.device.clone());
    unmount(mountpoint)?;
    match daemon {
        Some(daemon) => wait_for_end(&daemon, &device.unwrap_or_default(), copies).map(End::Left),
        // Another user's daemon: only what it said last is known.
        None if standing.safety.safe => Ok(End::Whole),
        None => Ok(End::Counted(standing.safety.files, standing.safety.events)),
    }
}

fn leave_dead(mountpoint: &Path) -> Result<End, Failure> {
    mount::detach(mountpoint, Detach::Now).map_err(|errno| failed(mountpoint, errno))?;
    complain(format_args!(
        "the daemon of {} was gone already; mount the same tiers again to bring over what is only on the fast tier",
        mountpoint.display()
    ));
    Ok(End::TakenAway)
}

/// A look-up or a reader of `/proc` that passes by keeps a mount busy for a moment without being a user of it: only what
/// can be named, or lasts, refuses.
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
        format!("{} is in use by {holders}", mountpoint.display()),
        "end them, or let them go elsewhere (cd)",
    )
    .into()
}

fn failed(mountpoint: &Path, errno: Errno) -> Failure {
    let remedy = "only root and the user who mounted it may unmount it";
    Error::refused(format!("cannot unmount {}: {}", mountpoint.display(), errno.desc()), remedy).into()
}

/// The lock is given back as the daemon's last act, with the list of what it leaves. `device` is the mount's.
///
/// Copies are ended by asking the daemon to leave, as any SIGTERM does. That needs no right but the one to end it, finds those who
/// cannot be seen from here as well, and lets it make all durable first, which aborting the connection would not.
fn wait_for_end(daemon: &Daemon, device: &str, copies: Copies) -> Result<Left, Failure> {
    let begun = Instant::now();
    let mut told = false;
    while begun.elapsed() < END_WAIT {
        if let Some(left) = mount::last_left(&daemon.fast) {
            return Ok(left);
        }
        if !daemon.runs() && mount::last_left(&daemon.fast).is_none() {
            let what = format!("the daemon (pid {}) ended without saying what it left", daemon.pid);
            return Err(Error::refused(what, "see its log; nothing acknowledged is lost, mount again to go on").into());
        }
        if !told && begun.elapsed() >= COPY_WAIT {
            told = true;
            let what = if copies == Copies::Ended { "taken away from" } else { "waiting for" };
            holders::of_copies(device).iter().for_each(|holder| complain(format_args!("{what} {}", copy(holder))));
            // A daemon that is leaving already ignores it.
            if copies == Copies::Ended {
                daemon.ask_to_leave().map_err(|errno| unended(daemon, errno))?;
            }
        }
        std::thread::sleep(POLL);
    }
    let what = format!("unmounted, but the daemon (pid {}) still runs after {} s", daemon.pid, END_WAIT.as_secs());
    let remedy = holders::of_copies(device).first().map_or_else(
        || "see its log; it makes what it holds durable on the fast tier".to_owned(),
        |holder| format!("it continues until {} ends", copy(holder)),
    );
    Err(Error::refused(what, remedy).into())
}

fn unended(daemon: &Daemon, errno: Errno) -> Failure {
    let what = format!("unmounted, but the daemon (pid {}) cannot be told to end: {}", daemon.pid, errno.desc());
    Error::refused(what, "only root and the user who mounted it may end it").into()
}

fn copy(holder: &Holder) -> String {
    format!("{holder}, which has the mount too, in a mount name space of its own")
}

/// As lines: the files that stay to standard output, the rest beside it.
fn tell(mountpoint: &Path, end: End) -> Outcome {
    match &end {
        End::Whole | End::TakenAway => {}
        End::Counted(files, changes) => {
            let (files, changes) = (count(*files, "file"), count(*changes, "change"));
            say(format_args!("{files} and {changes} are only on the fast tier"))?;
        }
        End::Left(left) if left.is_nothing() => {}
        End::Left(left) => {
            left.paths.iter().try_for_each(say)?;
            complain(format_args!(
                "{} and {} stay on the fast tier; the next mount at {} goes on with them",
                count(left.files, "file"),
                count(left.events, "change"),
                mountpoint.display()
            ));
        }
    }
    Ok(end.exit())
}
