//! `dlio-fs forget`: go on without members of a fleet whose nodes are lost, or with a copy of a fast tier in its place.

use std::borrow::Borrow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;

use super::outcome::{Exit, Failure, Outcome, complain, one_line, say};
use super::tiers;
use crate::error::Error;
use crate::mount::{self, HeldDir, TrustedTier};
use crate::path::Show as _;
use crate::stats::render::count;
use crate::tiers::disk::Dir;
use crate::tiers::disk::os::OsClock;
use crate::tiers::{FinishedGroup, FleetReader, FoundCopy, Watched, finish_group};

const LOOK: Duration = Duration::from_secs(1);
const LINE_EVERY: u32 = 10;

/// Let a fleet go on without members whose nodes are lost
///
/// The other members of a fleet wait for a node that died: what they have pending stays on their fast tiers. If the node
/// comes back, mount it again instead, and nothing is lost. This command watches the member for a minute (longer in a
/// fleet of more than 1,000 members) and, if it is silent all the while, finishes what it had begun to publish and tells
/// the others not to wait for it. What only that node had is then missing on the slow tier, and newer files of the others
/// will be there without it. What it had copied and not published is moved to .dlio-fs/saved there, each file under its
/// path. If the member comes back, it publishes nothing more and cannot be mounted; `dlio-fs rescue` saves what it has.
/// If the slow tier is another user's, root does all of this with the rights of that user.
///
/// With --all this is done with every member that is silent for that minute. Those that write leases are left alone and
/// named, and so are those that have a copy at their partner, unless --without-copy is given.
///
/// With --partner nobody is forgotten: the copy that the member kept in its partner_dir takes its place. Mount the copy, on
/// any node, with the member's settings and --fast DIR/ID as the command says; it publishes what the lost node had, in its
/// order, and the others wait for that.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs forget job17 2 --slow /shared/run
  dlio-fs forget job17 --all --slow /shared/run

.dlio/stats of the others names the member and its number.")]
pub(super) struct ForgetArgs {
    /// The fleet's name
    fleet: String,
    /// The member's number, as the others tell it
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    member: Option<u32>,
    /// Forget all members that are silent
    #[arg(long, conflicts_with = "partner")]
    all: bool,
    /// The slow tier
    #[arg(long, value_name = "DIR")]
    slow: PathBuf,
    /// Let the copy in this directory, the member's partner_dir, take its place
    #[arg(long, value_name = "DIR")]
    partner: Option<PathBuf>,
    /// Forget a member although it has a copy at its partner, and lose what only that has
    #[arg(long, conflicts_with = "partner")]
    without_copy: bool,
    /// Forget a member although what it had begun to publish cannot be finished
    #[arg(long, conflicts_with = "partner")]
    unfinished: bool,
}

pub(super) fn run(args: &ForgetArgs) -> Outcome {
    let held = tiers::open("--slow", &args.slow)?;
    let partner = args.partner.as_deref().map(|dir| tiers::open("--partner", dir)).transpose()?;
    let both = [(tiers::SLOW, &held)].into_iter().chain(partner.iter().map(|dir| (TrustedTier::Fast, dir)));
    tiers::enter(&both.collect::<Vec<_>>())?;
    let slow = tiers::slow_dir(&held)?;
    let Some(member) = args.member else { return forget_all(args, &slow) };
    let watched = Watched::begin(&*slow, &args.fleet, member).map_err(Failure::usage)?;
    if let Some(partner) = &partner {
        return hand_over(args, &watched, &slow, partner);
    }
    if let Some(refusal) = refuse_for_copy(args, &watched) {
        return Err(Failure::usage(refusal));
    }
    if !watched.is_forgotten() {
        watch_one(args, &watched, &slow)?;
    }
    forget(args, &watched, &slow)?;
    Ok(Exit::Done)
}

/// Goes on with the next one if one cannot be forgotten.
fn forget_all(args: &ForgetArgs, slow: &Arc<dyn Dir>) -> Outcome {
    let here = Watched::all(&**slow, &args.fleet).map_err(Failure::usage)?;
    let (with_copy, watched): (Vec<_>, Vec<_>) =
        here.into_iter().partition(|watched| refuse_for_copy(args, watched).is_some());
    with_copy
        .iter()
        .filter_map(|watched| refuse_for_copy(args, watched))
        .for_each(|refusal| complain(refusal.to_string()));
    let silent = watch(args, watched, slow, |watched| {
        complain(alive(watched));
        Ok(())
    })?;
    if silent.is_empty() {
        say(format!("no member of fleet {} was forgotten", args.fleet))?;
    }
    let mut worst = Exit::Done;
    for watched in silent {
        // Those before it took their time: it may have come back.
        if !watched.is_silent()? {
            complain(alive(&watched));
            continue;
        }
        say(format!("{}:", name(&watched)))?;
        if let Err(failure) = forget(args, &watched, slow) {
            complain(one_line(&failure.message));
            worst = worst.max(failure.exit);
        }
    }
    Ok(worst)
}

fn name(watched: &Watched) -> String {
    format!("member {} on {}", watched.slot(), watched.host())
}

fn alive(watched: &Watched) -> Error {
    Error::refused(format!("{} is alive", name(watched)), "unmount it there; nobody waits for one that has left")
}

fn refuse_for_copy(args: &ForgetArgs, watched: &Watched) -> Option<Error> {
    let what = || format!("{} has a copy at its partner, which would be lost", name(watched));
    let remedy = "name its partner_dir with --partner, or add --without-copy";
    (watched.has_copy() && !args.without_copy).then(|| Error::refused(what(), remedy))
}

/// The caller has watched it, unless it was forgotten before.
fn forget(args: &ForgetArgs, watched: &Watched, slow: &Arc<dyn Dir>) -> Result<(), Failure> {
    if !watched.is_forgotten() {
        finish(args, watched, slow)?;
        watched.forget()?;
        tell_what_is_whole(watched)?;
    }
    let (moved, place) = watched.save_copies(slow).inspect_err(|_| {
        let copies = args.slow.join(".dlio-fs/tmp").join(watched.id());
        complain(format!("forgotten; what it had copied and not published is in {}", copies.shown()));
    })?;
    match moved {
        0 => say("forgotten; it had copied nothing that was not published".to_owned()),
        _ => say(format!(
            "forgotten; {} that it had copied and not published, below {}",
            count(moved, "file"),
            args.slow.join(place).shown()
        )),
    }
}

/// Finishes the group that the member had begun, before the others go on.
fn finish(args: &ForgetArgs, watched: &Watched, slow: &Arc<dyn Dir>) -> Result<(), Failure> {
    let FinishedGroup { done, all, stopped } = match finish_group(watched, slow) {
        Err(error) if args.unfinished => {
            complain(format!("not finished: {error}"));
            return Ok(());
        }
        finished => finished.inspect_err(|_| {
            complain(
                "nobody is forgotten yet: run this again once the slow tier takes it, or with --unfinished".to_owned(),
            );
        })?,
    };
    if let Some(path) = stopped {
        let steps = count(all as u64, "step");
        complain(format!("of {steps} that it had begun to publish, {done} are done; what belongs at {path} is gone"));
    }
    Ok(())
}

/// A checkpoint whose marker was written before the lost member's oldest unpublished change has all its parts: they were
/// written before the marker.
fn tell_what_is_whole(watched: &Watched) -> Result<(), Failure> {
    let until = UNIX_EPOCH + Duration::from_nanos(watched.least());
    say(format!(
        "checkpoints that were finished before {} have all parts of {}; a newer one may lack some, though its marker is there",
        humantime::format_rfc3339_seconds(until),
        watched.host()
    ))
}

fn hand_over(args: &ForgetArgs, watched: &Watched, slow: &Arc<dyn Dir>, partner: &HeldDir) -> Outcome {
    if watched.is_forgotten() {
        let what = format!("member {} was forgotten, and the fleet has gone on without it", watched.slot());
        return Err(Failure::usage(Error::refused(what, "save what the copy has with `dlio-fs rescue`")));
    }
    let copy = partner.path().join(watched.id());
    let dir = tiers::dir(partner)?;
    if let Ok(root) = HeldDir::open(&partner.at(watched.id())) {
        mount::check_trust(TrustedTier::Fast, &root).map_err(Failure::usage)?;
    }
    // Before a minute is lost.
    if watched.find_copy(&dir)? == FoundCopy::Good {
        watch_one(args, watched, slow)?;
    }
    watched.hand_over(slow, &dir)?;
    say(format!("the copy has the place of member {}; mount it with --fast {}", watched.slot(), copy.shown()))?;
    Ok(Exit::Done)
}

fn watch_one(args: &ForgetArgs, watched: &Watched, slow: &Arc<dyn Dir>) -> Result<(), Failure> {
    watch(args, vec![watched], slow, |watched| Err(Failure::from(alive(watched)))).map(drop)
}

/// Returns those that were silent all the while: a member publishes nothing once its own lease is a third of that old. `found` gets those
/// that are alive.
fn watch<W: Borrow<Watched>>(
    args: &ForgetArgs,
    mut silent: Vec<W>,
    slow: &Arc<dyn Dir>,
    found: impl Fn(&Watched) -> Result<(), Failure>,
) -> Result<Vec<W>, Failure> {
    let reader = FleetReader::open(&**slow, &args.fleet, Arc::new(OsClock)).map_err(Failure::usage)?;
    let silence = reader.forget_after();
    let whom = match &*silent {
        [] => return Ok(silent),
        [one] => name(one.borrow()),
        many => count(many.len() as u64, "member"),
    };
    complain(format!("watching {whom} for {} s", silence.as_secs()));
    let (began, mut looks) = (Instant::now(), 0);
    while began.elapsed() < silence && !silent.is_empty() {
        thread::sleep(LOOK);
        let mut still = Vec::new();
        for watched in silent {
            match watched.borrow().is_silent()? {
                true => still.push(watched),
                false => found(watched.borrow())?,
            }
        }
        silent = still;
        looks += 1;
        if looks % LINE_EVERY == 0 && !silent.is_empty() {
            complain(format!("silent for {} s", began.elapsed().as_secs()));
        }
    }
    Ok(silent)
}
