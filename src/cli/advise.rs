//! `dlio-fs advise`: advice from what was observed.

use std::path::PathBuf;

use clap::Args;

use super::outcome::{Exit, Outcome, say, say_json};
use super::report;
use crate::report::summary::Summary;
use crate::report::text;

/// Give advice from what was observed: which files to stage, what to change in a program
///
/// Each piece of advice shows its figures, the threshold that was exceeded and how to follow it. SOURCE is as for
/// `dlio-fs report`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs advise /mnt/train
  dlio-fs advise /mnt/train --window epoch-3
  dlio-fs advise run.dlio --json | jq -r '.advice[].command'")]
pub(super) struct AdviseArgs {
    /// A mount point or a directory on it, or recordings or a directory of them
    #[arg(value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// Consider only this closed window of the mount
    #[arg(long, value_name = "NAME")]
    window: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &AdviseArgs) -> Outcome {
    let mut recording = report::read(&args.sources, args.window.as_deref())?;
    let summary = Summary::of(&mut recording);
    if args.json {
        say_json(&serde_json::json!({ "advice": summary.advice }))?;
    } else {
        say(text::advice(&summary.advice).trim_end())?;
    }
    recording.flaws.iter().for_each(|flaw| super::outcome::complain(format!("the recording: {flaw}")));
    Ok(Exit::Done)
}
