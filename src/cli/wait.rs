//! `dlio-fs wait`: until a checkpoint that several nodes write is whole on the slow tier.
//!
//! Two moments would do. If PATH was made after all the rest (a marker), the fleet's order says that the rest is there
//! once PATH is on the slow tier. If it was not (a directory), nothing about PATH itself says so. What is right for both
//! is the moment at which PATH is seen: whatever was answered before PATH was made was answered before that moment, too.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::client;
use super::fleet::{self, FleetQuestion, FleetSource};
use super::outcome::{Exit, Failure, Outcome, complain};
use super::progress::News;
use crate::error::{Context, Error};

/// How often PATH is looked for.
const LOOK: Duration = Duration::from_millis(250);

/// Wait until a path exists and everything that any node wrote before it is on the slow tier; prints nothing
///
/// For a checkpoint that the nodes of a fleet write together: name its marker, the file that is made after all the
/// others. Then the checkpoint is whole on the slow tier, whichever nodes wrote it, and can be read from there. Of a
/// directory, or a file that is not the last one, the command cannot know what is still to come: call it once all nodes
/// have finished writing. What this mount has looked up before may be shown as it was for a second or two.
///
/// At the timeout the exit code is 1 if the path does not exist, and otherwise that of `dlio-fs status --fleet`. It is 3
/// also if what a forgotten member had may be missing.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs wait /mnt/train/ckpt/step-700/.metadata --timeout 10min
  dlio-fs wait /lustre/run7/ckpt/latest --fleet run7 --slow /lustre/run7     # where there is no mount")]
pub(super) struct WaitArgs {
    /// A file or directory, in a mount that is a member, or on the slow tier
    path: PathBuf,
    /// How long to wait
    #[arg(long, value_name = "TIME", value_parser = super::duration::parse_duration)]
    timeout: Option<Duration>,
    /// The fleet, if the path is on its slow tier
    #[arg(long, value_name = "NAME", requires = "slow")]
    fleet: Option<String>,
    /// The slow tier of that fleet
    #[arg(long, value_name = "DIR", requires = "fleet")]
    slow: Option<PathBuf>,
}

/// 1. PATH exists.
/// 2. The question is asked: what was answered before PATH was made is part of it.
/// 3. All members are past the question.
pub(super) fn run(args: &WaitArgs) -> Outcome {
    let begun = Instant::now();
    let left = || args.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
    let source = match (&args.fleet, &args.slow) {
        (Some(fleet), Some(slow)) => FleetSource::on_slow(fleet, slow)?,
        _ => FleetSource::Mount(client::the_mount(Some(&args.path))?),
    };
    // Whoever names no fleet is not to wait for the path first.
    let mut question = FleetQuestion::ask(source)?;
    let mut news = News::default();
    while !exists(&args.path)? {
        if left().is_some_and(|left| left.is_zero()) {
            return Err(Failure::new(Exit::Failure, format!("{} does not exist", args.path.display())));
        }
        // Below a mount that is gone it would be waited for in vain.
        question.check_source()?;
        news.tell(&format!("waits for {}, which does not exist", args.path.display()));
        thread::sleep(LOOK.min(left().unwrap_or(LOOK)));
    } // 1
    question.ask_again()?; // 2
    question.wait(left(), |line| news.tell(line))?; // 3
    let answer = question.answer();
    answer.why.iter().for_each(complain);
    if !exists(&args.path)? {
        let why = format!("{} has been removed meanwhile", args.path.display());
        return Err(Failure::new(Exit::Failure, why));
    }
    Ok(fleet::exit(&answer))
}

fn exists(path: &Path) -> Result<bool, Error> {
    match path.metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        found => found.map(|_| true).at("look for", path.display()),
    }
}
