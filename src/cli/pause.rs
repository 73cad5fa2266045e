//! `dlio-fs pause` and `dlio-fs resume`: the drain is held, and goes on.

use std::path::PathBuf;

use clap::Args;

use super::stage::answer;
use super::{Exit, Outcome, say, talk};

/// Copy nothing to the slow tier until `dlio-fs resume`
///
/// The application goes on, and all that it writes stays on the fast tier meanwhile: the statistics say HELD first, and a drain or umount
/// waits. A file that is being copied is copied to its end. The next mount drains again.
#[derive(Debug, Args)]
pub(super) struct PauseArgs {
    /// The mount; may be left out when there is only one
    mountpoint: Option<PathBuf>,
}

/// Let the drain go on after `dlio-fs pause`
#[derive(Debug, Args)]
pub(super) struct ResumeArgs {
    /// The mount; may be left out when there is only one
    mountpoint: Option<PathBuf>,
}

pub(super) fn run(args: &PauseArgs) -> Outcome {
    tell(args.mountpoint.as_ref(), "pause")
}

pub(super) fn run_resume(args: &ResumeArgs) -> Outcome {
    tell(args.mountpoint.as_ref(), "resume")
}

fn tell(mountpoint: Option<&PathBuf>, verb: &str) -> Outcome {
    let mountpoint = talk::the_mount(mountpoint.map(PathBuf::as_path))?;
    say(answer(&mountpoint, verb)?).map(|()| Exit::Done)
}
