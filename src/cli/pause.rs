//! `dlio-fs pause` and `dlio-fs resume`: hold the drain, and continue it.

use std::path::PathBuf;

use clap::Args;

use super::client;
use super::outcome::{Exit, Outcome, say};
use super::stage::answer;

/// Hold the drain until `dlio-fs resume`
///
/// Applications continue, and everything that they write stays on the fast tier meanwhile: the first line of the
/// statistics says HELD, and a drain or umount waits. A copy under way is finished. The next mount drains again.
#[derive(Debug, Args)]
pub(super) struct PauseArgs {
    /// The mount; optional if there is only one
    mountpoint: Option<PathBuf>,
}

/// Continue the drain after `dlio-fs pause`
#[derive(Debug, Args)]
pub(super) struct ResumeArgs {
    /// The mount; optional if there is only one
    mountpoint: Option<PathBuf>,
}

pub(super) fn run(args: &PauseArgs) -> Outcome {
    send(args.mountpoint.as_ref(), "pause")
}

pub(super) fn run_resume(args: &ResumeArgs) -> Outcome {
    send(args.mountpoint.as_ref(), "resume")
}

fn send(mountpoint: Option<&PathBuf>, verb: &str) -> Outcome {
    let mountpoint = client::the_mount(mountpoint.map(PathBuf::as_path))?;
    say(answer(&mountpoint, verb)?).map(|()| Exit::Done)
}
