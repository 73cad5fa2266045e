//! `dlio-fs reload`: the daemon reads its configuration file again, or changes some values.

use std::path::PathBuf;

use clap::Args;

use super::client::{self, ControlCall, Said};
use super::options::MountOptions;
use super::outcome::{Exit, Failure, Outcome, say};
use crate::error::Error;
use crate::path::escape;

/// Read the configuration file again while mounted, or change values with -o
///
/// Names the keys that changed at once, and those that stay as they were until a remount. A file with a mistake changes
/// nothing (exit code 2). SIGHUP to a daemon in the background does the same, and reopens the log file. Options and
/// flags of `mount` still override the file, and so does what -o has changed, until the mount ends; `cat MOUNTPOINT/.dlio/config` shows each value in force and its origin.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs reload /mnt/train
  changed: settle, high; needs a remount: slow_wait
  dlio-fs reload /mnt/train -o full_slow=remove-first
  changed: full_slow")]
pub(super) struct ReloadArgs {
    /// The mount, or a path on it; optional if there is only one
    mountpoint: Option<PathBuf>,
    /// Change values instead of reading the file: key=value, comma-separated
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
}

pub(super) fn run(args: &ReloadArgs) -> Outcome {
    let mountpoint = client::the_mount(args.mountpoint.as_deref())?;
    let options = MountOptions::sort(&args.options, false).map_err(Failure::usage)?;
    if let Some(flag) = options.vfs.first() {
        let what = format!("{flag} is a flag of the mount");
        return Err(Failure::usage(Error::refused(what, format!("use dlio-fs mount MOUNTPOINT -o remount,{flag}"))));
    }
    let mut control = ControlCall::ask(&mountpoint, &command(&options.settings))?;
    loop {
        match control.listen()? {
            Said::Done(text) => return say(text).map(|()| Exit::Done),
            Said::Error(why) => return Err(Failure::new(Exit::Usage, why)),
            Said::Waiting(_) => {}
        }
    }
}

/// Without options it is about the file.
fn command(options: &[String]) -> String {
    let words: Vec<_> = options.iter().map(|option| escape(option.as_bytes())).collect();
    format!("reload {}", words.join(" ")).trim_end().to_owned()
}
