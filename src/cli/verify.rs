//! `dlio-fs verify`: compares the fast copies of files with their slow ones.

use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use super::client::{self, ControlCall, Said, for_people};
use super::outcome::{Exit, Failure, Outcome, complain, say, say_json};
use crate::path::harmless;

/// Compare the two copies of files that are on both tiers, byte by byte
///
/// For each clean or staged file at or below PATH, reads the fast copy and the slow file from the devices. Names the
/// files that differ, which of the two is damaged, and the remedy. Files that only one tier has are counted and not
/// compared. Exit code 1 if a file is damaged, 5 if the only differences are foreign changes on the slow tier. The
/// mount stays in use meanwhile.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  dlio-fs verify /mnt/train/run1\n  dlio-fs verify /mnt/train --json")]
pub(super) struct VerifyArgs {
    /// A file or directory of a mount, or a whole mount
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &VerifyArgs) -> Outcome {
    let (mountpoint, below) = client::mount_of(&args.path)?;
    let (worst, found, summary) = verify(&mountpoint, &below)?;
    if args.json {
        let found: Vec<_> = found.iter().map(|(kind, what)| client::finding(kind, what)).collect();
        say_json(&json!({ "findings": found, "summary": summary }))?;
    } else {
        found.iter().try_for_each(|(which, what)| say(for_people(&format!("{which}: {what}"))))?;
        complain(summary);
    }
    Ok(worst)
}

type Found = Vec<(String, String)>;

fn verify(mountpoint: &Path, below: &Path) -> Result<(Exit, Found, String), Failure> {
    let mut control = ControlCall::ask(mountpoint, &format!("verify {}", client::escaped(below)))?;
    let (mut worst, mut found) = (Exit::Done, Vec::new());
    // Hidden by itself where there is no terminal.
    let progress = ProgressBar::new_spinner();
    loop {
        match control.listen()? {
            Said::Done(summary) => {
                progress.finish_and_clear();
                return Ok((worst, found, summary));
            }
            Said::Error(why) => {
                progress.finish_and_clear();
                return Err(Failure::new(Exit::Failure, why));
            }
            Said::Waiting(line) => match line.split_once(": ") {
                Some(("verifying", how_far)) => progress.set_message(harmless(how_far).into_owned()),
                Some((which, what)) => {
                    // Damage outweighs foreign changes, whatever the numbers of the exit codes.
                    worst = if which == "changed" && worst != Exit::Failure { Exit::Conflict } else { Exit::Failure };
                    found.push((which.to_owned(), what.to_owned()));
                }
                None => {}
            },
        }
    }
}
