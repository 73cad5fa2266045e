//! `dlio-fs evict`: make room on the fast tier now.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::client::{self, ControlCall, Said, for_people};
use super::outcome::{Exit, Failure, Outcome, complain, say, say_json};
use crate::json;
use crate::path::Show as _;

/// Delete the fast copies of files that are safe on the slow tier
///
/// Each copy is compared with its slow file before it is deleted; later reads go to the slow tier. Files that only the
/// fast tier has stay and are listed (exit code 3), and so do files that are open (1) or that somebody else changed on
/// the slow tier (5). Above the watermark `high`, eviction starts automatically.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs evict /mnt/train/run1/model-01.keras /mnt/train/old
  dlio-fs evict --all /mnt/train")]
pub(super) struct EvictArgs {
    /// Files or directories of a mount; with --all, mount points
    #[arg(value_name = "PATH", required_unless_present = "all")]
    paths: Vec<PathBuf>,
    /// Everything that can be evicted; the mount is optional if there is only one
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EvictArgs) -> Outcome {
    let places = match (args.all, args.paths.as_slice()) {
        (true, []) => vec![(client::the_mount(None)?, PathBuf::new())],
        (true, named) => {
            let whole = |path: &PathBuf| Ok((client::the_mountpoint(path)?, PathBuf::new()));
            named.iter().map(whole).collect::<Result<_, Failure>>()?
        }
        (false, paths) => paths.iter().map(|path| part_of_a_mount(path)).collect::<Result<_, Failure>>()?,
    };
    let (mut worst, mut all) = (Exit::Done, Vec::new());
    for (mountpoint, below) in &places {
        let evicted = evict(mountpoint, below, |line| {
            if !args.json {
                complain(for_people(line))
            }
        })?;
        worst = worst.max(evicted.exit);
        if args.json {
            all.push(json!({
                "mountpoint": json::lossy(mountpoint),
                "findings": evicted.findings.iter().map(|(kind, what)| client::finding(kind, what)).collect::<Vec<_>>(),
                "summary": evicted.summary,
            }));
        } else {
            say(evicted.summary)?;
        }
    }
    if args.json {
        say_json(&json!({ "evicted": all }))?;
    }
    Ok(worst)
}

/// The result for one place.
struct EvictReport {
    exit: Exit,
    /// The files that stay: `dirty` or `kept`, with path and reason.
    findings: Vec<(String, String)>,
    summary: String,
}

fn part_of_a_mount(path: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    match client::mount_of(path)? {
        (_, below) if below.as_os_str().is_empty() => {
            let what = format!("{} is a whole mount; add --all to evict everything that can be evicted", path.shown());
            Err(Failure::new(Exit::Usage, what))
        }
        part => Ok(part),
    }
}

/// `tell` gets each file that stays, as it is found.
fn evict(mountpoint: &Path, below: &Path, tell: impl Fn(&str)) -> Result<EvictReport, Failure> {
    let mut control = ControlCall::ask(mountpoint, &format!("evict {}", client::escaped(below)))?;
    let (mut exit, mut findings) = (Exit::Done, Vec::new());
    loop {
        match control.listen()? {
            Said::Done(summary) => return Ok(EvictReport { exit, findings, summary }),
            Said::Error(why) => return Err(Failure::new(Exit::Failure, why)),
            Said::Waiting(line) => {
                let Some((which, what)) = line.split_once(": ") else { continue };
                exit = exit.max(match which {
                    "dirty" => Exit::Undrained,
                    "kept" if what.ends_with("is open") || what.ends_with("is pinned") => Exit::Failure,
                    "kept" => Exit::Conflict,
                    // Progress.
                    _ => continue,
                });
                tell(&line);
                findings.push((which.to_owned(), what.to_owned()));
            }
        }
    }
}
