//! `dlio-fs status`: what `.dlio/stats` of each mount says, and the exit code that goes with it.

use std::path::PathBuf;

use clap::Args;

use super::{Exit, Failure, Outcome, say, talk};

/// Say whether everything is on the slow tier, and how it is going
///
/// The exit code answers the same: 0 safe, 3 something is only on the fast tier, 4 the slow tier is down or the order is
/// held, 5 there are conflicts with foreign changes, 1 the daemon is gone.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// The mount; all of them if left out
    mountpoint: Option<PathBuf>,
    /// Print JSON: an object per mount, by mount point
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &StatusArgs) -> Outcome {
    let mountpoints = match &args.mountpoint {
        Some(named) => vec![talk::the_mount(Some(named))?],
        None => talk::all_mounts()?,
    };
    if args.json {
        return as_json(&mountpoints);
    }
    if mountpoints.is_empty() {
        say("no dlio-fs mount")?;
    }
    let mut worst = Exit::Done;
    for mountpoint in &mountpoints {
        if mountpoints.len() > 1 {
            say(format_args!("{}:", mountpoint.display()))?;
        }
        match talk::is_dead(mountpoint) {
            true => {
                say(format_args!("DEAD: {}", talk::dead(mountpoint)))?;
                worst = worst.max(Exit::Failure);
            }
            false => {
                say(talk::read(mountpoint, "stats")?.trim_end())?;
                worst = worst.max(talk::standing(mountpoint)?.exit());
            }
        }
    }
    Ok(worst)
}

fn as_json(mountpoints: &[PathBuf]) -> Outcome {
    let mut worst = Exit::Done;
    let mut all = serde_json::Map::new();
    for mountpoint in mountpoints {
        let value = match talk::is_dead(mountpoint) {
            true => {
                worst = worst.max(Exit::Failure);
                serde_json::json!({ "dead": talk::dead(mountpoint).to_string() })
            }
            false => {
                worst = worst.max(talk::standing(mountpoint)?.exit());
                let text = talk::read(mountpoint, "stats.json")?;
                serde_json::from_str(&text).map_err(|e| Failure::new(Exit::Failure, format!("stats.json: {e}")))?
            }
        };
        all.insert(mountpoint.display().to_string(), value);
    }
    say(serde_json::Value::Object(all))?;
    Ok(worst)
}
