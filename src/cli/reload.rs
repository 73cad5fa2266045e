//! `dlio-fs reload`: the daemon reads its configuration file again.

use std::path::PathBuf;

use clap::Args;

use super::client::{self, ControlCall, Said};
use super::outcome::{Exit, Failure, Outcome, say};

/// Read the configuration file again while mounted
///
/// Names the keys that changed at once, and those that stay as they were until a remount. A file with a mistake changes
/// nothing (exit code 2). SIGHUP to a daemon in the background does the same, and reopens the log file. Options and
/// flags of `mount` still override the file; `cat MOUNTPOINT/.dlio/config` shows each value in force and its origin.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n  dlio-fs reload /mnt/train\n  changed: settle, high; needs a remount: slow_wait"
)]
pub(super) struct ReloadArgs {
    /// The mount, or a path on it; optional if there is only one
    mountpoint: Option<PathBuf>,
}

pub(super) fn run(args: &ReloadArgs) -> Outcome {
    let mountpoint = client::the_mount(args.mountpoint.as_deref())?;
    let mut control = ControlCall::ask(&mountpoint, "reload")?;
    loop {
        match control.listen()? {
            Said::Done(text) => return say(text).map(|()| Exit::Done),
            Said::Error(why) => return Err(Failure::new(Exit::Usage, why)),
            Said::Waiting(_) => {}
        }
    }
}
