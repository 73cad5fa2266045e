//! `dlio-fs checkpoints`: lists checkpoints, and which of them are safe. `checkpoints_of_fleet.rs` does it for a fleet.

use std::path::PathBuf;

use clap::Args;

use super::checkpoints_of_fleet;
use super::client;
use super::outcome::{Outcome, say};

/// List the checkpoints that were written through the mount, and which of them are on the slow tier
///
/// A checkpoint is a burst of writes of 1 MiB or more, whatever the names. States: writing (more may come), dirty
/// (complete, but not all on the slow tier yet), safe (all there), verified (dlio-fs verify, or verify = "bytes", has
/// compared each of its files), replaced (one of its files was removed or rewritten), incomplete (part of it was set
/// aside). D1 and D2 say how long after its last close it was durable on the fast tier, and published on the slow one.
/// The star marks the newest complete one. The exit code is that of `status`.
///
/// .dlio/latest-safe is a symbolic link to the newest safe one; it exists only if there is such a checkpoint.
///
/// With --fleet it lists those that the members of the mount's fleet wrote together, as far as this one had a part in
/// them: with the files of all that the mount shows, and since when all of it can be read on the other nodes. Its first
/// line and its exit code are those of `status --fleet`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs checkpoints /mnt/train
  dlio-fs checkpoints /mnt/train --fleet
  dlio-fs checkpoints --json | jq -r '.checkpoints[] | select(.current) | .path'
  cp -rL /mnt/train/.dlio/latest-safe /backup/")]
pub(super) struct CheckpointsArgs {
    /// The mount, or a path on it; optional if there is only one
    mountpoint: Option<PathBuf>,
    /// Ask about the parts of all members of the mount's fleet
    #[arg(long)]
    fleet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &CheckpointsArgs) -> Outcome {
    let mountpoint = client::the_mount(args.mountpoint.as_deref())?;
    if args.fleet {
        return checkpoints_of_fleet::list(&mountpoint, args.json);
    }
    let name = if args.json { "checkpoints.json" } else { "checkpoints" };
    say(client::read(&mountpoint, name)?.trim_end())?;
    Ok(client::exit(&client::status(&mountpoint)?))
}
