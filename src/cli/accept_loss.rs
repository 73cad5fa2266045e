//! `dlio-fs accept-loss`: go on with what a fleet has after a node was lost.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use super::outcome::{Exit, Failure, Outcome, say};
use super::{client, tiers};
use crate::error::Error;
use crate::mount;
use crate::path::Show as _;

/// Accept what was lost with a node of a fleet, so that the fleet is SAFE again
///
/// After dlio-fs forget, what the lost node had logged and nobody else has may be missing on the slow tier. status --fleet,
/// sync --fleet, and wait for a checkpoint that may lack a part of it, say so with exit code 3, also once another node has
/// its place. This command says that you know: remove the checkpoints of that time, or keep them, and go on. The dates of
/// what is accepted are printed. .dlio/latest-safe never leads to a checkpoint that may lack a part, accepted or not.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs accept-loss /mnt/train                  # as the slow tier's owner
  dlio-fs accept-loss run7 --slow /shared/run7    # where there is no mount")]
pub(super) struct AcceptLossArgs {
    /// A mount that is a member of the fleet, or, with --slow, the fleet's name
    fleet: String,
    /// The slow tier
    #[arg(long, value_name = "DIR")]
    slow: Option<PathBuf>,
}

#[derive(Deserialize)]
struct NamedFleet {
    fleet: String,
}

pub(super) fn run(args: &AcceptLossArgs) -> Outcome {
    let (fleet, slow) = match &args.slow {
        Some(slow) => (args.fleet.clone(), slow.clone()),
        None => of_mount(Path::new(&args.fleet))?,
    };
    let held = tiers::open("--slow", &slow)?;
    tiers::enter(&[(tiers::SLOW, &held)])?;
    let reader = tiers::fleet_reader(&held, &fleet).map_err(Failure::usage)?;
    let accepted = reader.accept_losses()?;
    if accepted.is_empty() {
        say(format!("fleet {fleet} has lost nothing that was not accepted"))?;
    }
    accepted.iter().try_for_each(|what| say(format!("accepted: {what}, as far as it is not on the slow tier")))?;
    Ok(Exit::Done)
}

/// A mount's fleet, and its slow tier.
pub(super) fn of_mount(named: &Path) -> Result<(String, PathBuf), Failure> {
    let mountpoint = client::the_mount(Some(named))?;
    let in_none = |_| {
        let what = format!("the mount at {} is in no fleet", mountpoint.shown());
        Error::refused(what, "name a mount that is, or a fleet and its slow tier (--slow DIR)")
    };
    let text = client::read(&mountpoint, "fleet.json").map_err(in_none)?;
    let NamedFleet { fleet } = serde_json::from_str(&text).map_err(|e| {
        Error::refused(format!("{}/.dlio/fleet.json: {e}", mountpoint.shown()), "use the dlio-fs that made the mount")
    })?;
    let mounts = mount::mounts()?;
    let slow = mount::mounted_at(&mounts, &mountpoint).map(|mount| mount.source.clone());
    Ok((fleet, slow.ok_or_else(client::no_mount)?))
}
