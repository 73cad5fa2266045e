//! `dlio-fs forget`: go on without a member of a fleet whose node is lost, or with a copy of its fast tier in its place.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;

use super::outcome::{Exit, Failure, Outcome, complain, say};
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

/// Let a fleet go on without a member whose node is lost
///
/// The other members of a fleet wait for a node that died: what they have pending stays on their fast tiers. If the node
/// comes back, mount it again instead, and nothing is lost. This command watches the member for a minute (longer in a
/// fleet of more than 1,000 members) and, if it is silent all the while, finishes what it had begun to publish and tells
/// the others not to wait for it. What only that node had is then missing on the slow tier, and newer files of the others
/// will be there without it. What it had copied and not published is moved to .dlio-fs/saved there, each file under its
/// path. If the member comes back, it publishes nothing more and cannot be mounted; `dlio-fs rescue` saves what it has.
/// If the slow tier is another user's, root does all of this with the rights of that user.
///
/// With --partner nobody is forgotten: the copy that the member kept in its partner_dir takes its place. Mount the copy, on
/// any node, with the member's settings and --fast DIR/ID as the command says; it publishes what the lost node had, in its
/// order, and the others wait for that.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n  dlio-fs forget job17 2 --slow /shared/run\n\n.dlio/stats of the others names the member and its number."
)]
pub(super) struct ForgetArgs {
    /// The fleet's name
    fleet: String,
    /// The member's number, as the others tell it
    member: u32,
    /// The slow tier
    #[arg(long, value_name = "DIR")]
    slow: PathBuf,
    /// Let the copy in this directory, the member's partner_dir, take its place
    #[arg(long, value_name = "DIR")]
    partner: Option<PathBuf>,
    /// Forget the member although it has a copy at its partner, and lose what only that has
    #[arg(long, conflicts_with = "partner")]
    without_copy: bool,
    /// Forget the member although what it had begun to publish cannot be finished
    #[arg(long, conflicts_with = "partner")]
    unfinished: bool,
}

pub(super) fn run(args: &ForgetArgs) -> Outcome {
    let held = tiers::open("--slow", &args.slow)?;
    let partner = args.partner.as_deref().map(|dir| tiers::open("--partner", dir)).transpose()?;
    let both = [(tiers::SLOW, &held)].into_iter().chain(partner.iter().map(|dir| (TrustedTier::Fast, dir)));
    tiers::enter(&both.collect::<Vec<_>>())?;
    let slow = tiers::slow_dir(&held)?;
    let watched = Watched::begin(&*slow, &args.fleet, args.member).map_err(Failure::usage)?;
    if let Some(partner) = &partner {
        return hand_over(args, &watched, &slow, partner);
    }
    if watched.has_copy() && !args.without_copy {
        let what =
            format!("member {} on {} has a copy at its partner, which would be lost", args.member, watched.host());
        return Err(Failure::usage(Error::refused(what, "name its partner_dir with --partner, or add --without-copy")));
    }
    if !watched.is_forgotten() {
        watch(args, &watched, &slow)?;
        finish(args, &watched, &slow)?;
        watched.forget()?;
        tell_what_is_whole(&watched)?;
    }
    let (moved, place) = watched.save_copies(&slow).inspect_err(|_| {
        let copies = args.slow.join(".dlio-fs/tmp").join(watched.id());
        complain(format!("forgotten; what it had copied and not published is in {}", copies.shown()));
    })?;
    match moved {
        0 => say("forgotten; it had copied nothing that was not published".to_owned())?,
        _ => say(format!(
            "forgotten; {} that it had copied and not published, below {}",
            count(moved, "file"),
            args.slow.join(place).shown()
        ))?,
    }
    Ok(Exit::Done)
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
        let what = format!("member {} was forgotten, and the fleet has gone on without it", args.member);
        return Err(Failure::usage(Error::refused(what, "save what the copy has with `dlio-fs rescue`")));
    }
    let copy = partner.path().join(watched.id());
    let dir = tiers::dir(partner)?;
    if let Ok(root) = HeldDir::open(&partner.at(watched.id())) {
        mount::check_trust(TrustedTier::Fast, &root).map_err(Failure::usage)?;
    }
    // Before a minute is lost.
    if watched.find_copy(&dir)? == FoundCopy::Good {
        watch(args, watched, slow)?;
    }
    watched.hand_over(slow, &dir)?;
    say(format!("the copy has the place of member {}; mount it with --fast {}", args.member, copy.shown()))?;
    Ok(Exit::Done)
}

/// It publishes nothing once its own lease is a third of that old.
fn watch(args: &ForgetArgs, watched: &Watched, slow: &Arc<dyn Dir>) -> Result<(), Failure> {
    let reader = FleetReader::open(&**slow, &args.fleet, Arc::new(OsClock)).map_err(Failure::usage)?;
    let silence = reader.forget_after();
    complain(format!("watching member {} on {} for {} s", args.member, watched.host(), silence.as_secs()));
    let (began, mut looks) = (Instant::now(), 0);
    while began.elapsed() < silence {
        thread::sleep(LOOK);
        if !watched.is_silent()? {
            let what = format!("member {} on {} is alive", args.member, watched.host());
            return Err(Failure::from(Error::refused(what, "unmount it there; nobody waits for one that has left")));
        }
        looks += 1;
        if looks % LINE_EVERY == 0 {
            complain(format!("silent for {} s", began.elapsed().as_secs()));
        }
    }
    Ok(())
}
