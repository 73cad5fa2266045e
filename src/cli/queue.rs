//! `dlio-fs queue`: lists what is on its way to the slow tier, and moves one path to the front.

use std::path::{Path, PathBuf};

use clap::Args;

use super::client::{self, ControlCall, Said};
use super::outcome::{Exit, Failure, Outcome, say};

/// List what is on its way to the slow tier, in the order in which it will be published
///
/// States: settling (waits until nobody has written for a while), sealing (is being made durable on the fast tier),
/// waiting, copying, copied (waits for its turn), replaced (a newer version takes its place), held (failed; the line
/// says why and what to do). The exit code is that of `status`.
///
/// Publishing always keeps the order, so that a manifest never names missing data. --front PATH copies the bytes of
/// PATH before all others, and nothing that must be published before it waits to settle.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs queue /mnt/train
  dlio-fs queue --json | jq '.pending[] | select(.state == \"held\")'
  dlio-fs queue --front /mnt/train/run1/model-09.keras")]
pub(super) struct QueueArgs {
    /// The mount, or a path on it; optional if there is only one
    #[arg(conflicts_with = "front")]
    mountpoint: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "front")]
    json: bool,
    /// Move this file or directory of a mount to the front
    #[arg(long, value_name = "PATH")]
    front: Option<PathBuf>,
}

pub(super) fn run(args: &QueueArgs) -> Outcome {
    if let Some(path) = &args.front {
        return front(path);
    }
    let mountpoint = client::the_mount(args.mountpoint.as_deref())?;
    let text = match args.json {
        true => client::read(&mountpoint, "queue.json")?,
        false => client::read(&mountpoint, "queue")?,
    };
    say(text.trim_end())?;
    Ok(client::exit(&client::status(&mountpoint)?))
}

fn front(path: &Path) -> Outcome {
    let (mountpoint, below) = client::mount_of(path)?;
    let mut control = ControlCall::ask(&mountpoint, &format!("front {}", client::escaped(&below)))?;
    loop {
        match control.listen()? {
            Said::Done(text) => return say(text).map(|()| Exit::Done),
            Said::Error(why) => return Err(Failure::new(Exit::Failure, why)),
            Said::Waiting(_) => {}
        }
    }
}
