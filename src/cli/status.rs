//! `dlio-fs status`: prints `.dlio/stats` of each mount, with the matching exit code.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};

use super::client;
use super::fleet::{self, FleetArgs};
use super::outcome::{Exit, Outcome, say, say_json};
use crate::error::Error;
use crate::json;
use crate::path::{Show as _, escape};

/// Say whether everything is on the slow tier, and how it is going
///
/// The exit code says the same: 0 safe, 3 something is only on the fast tier, 4
/// degraded (the order is held, changes are refused, the slow tier is down, the fast tier fails, or a tier failed a call
/// a moment ago), 5 there are conflicts with foreign changes, 1 the daemon is gone or there is no mount.
///
/// With --fleet this is about all mounts of a fleet: SAFE as of now means that everything that any member had answered
/// when the question was asked is on the slow tier. The answer comes at once if it is that, and after about three seconds
/// otherwise. 3 is also the code if all is safe but for what a forgotten member had, and 4 if somebody must help.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs status /mnt/train | head -1
  dlio-fs status --json | jq '.mounts[].safety'
  dlio-fs status > /dev/null || echo 'not everything is safe'
  dlio-fs status /mnt/train --fleet
  dlio-fs status --fleet run7 --slow /shared/run7    # where there is no mount")]
pub(super) struct StatusArgs {
    /// The mount, or a path on it; default: all mounts
    mountpoint: Option<PathBuf>,
    #[command(flatten)]
    fleet: FleetArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &StatusArgs) -> Outcome {
    if let Some(source) = args.fleet.source(args.mountpoint.as_deref())? {
        return fleet::status(source, args.json);
    }
    let mountpoints = match &args.mountpoint {
        Some(named) => vec![client::the_mount(Some(named))?],
        None => client::all_mounts()?,
    };
    if args.json {
        return as_json(&mountpoints);
    }
    if mountpoints.is_empty() {
        // A mount that has vanished must not count as safe.
        return Err(client::no_mount());
    }
    let mut worst = Exit::Done;
    for mountpoint in &mountpoints {
        if mountpoints.len() > 1 {
            say(format_args!("{}:", mountpoint.shown()))?;
        }
        // A mount that does not answer must not hide the others.
        let (text, exit) = read(mountpoint, "stats").unwrap_or_else(|e| (format!("UNKNOWN: {e}"), Exit::Failure));
        say(text.trim_end())?;
        worst = worst.max(exit);
    }
    Ok(worst)
}

fn as_json(mountpoints: &[PathBuf]) -> Outcome {
    let (mut worst, mut all) = (Exit::Done, Vec::new());
    for mountpoint in mountpoints {
        let parsed = read(mountpoint, "stats.json").map(|(text, exit)| (serde_json::from_str(&text), exit));
        let (mut value, exit): (Map<String, Value>, Exit) = match parsed {
            Ok((Ok(value), exit)) => (value, exit),
            Ok((Err(e), _)) => (Map::from_iter([("error".to_owned(), e.to_string().into())]), Exit::Failure),
            Err(e) => (Map::from_iter([("error".to_owned(), e.to_string().into())]), Exit::Failure),
        };
        worst = worst.max(exit);
        value.extend(json::text("mountpoint", &escape(mountpoint.as_os_str().as_encoded_bytes())));
        value.remove("schema");
        all.push(value);
    }
    say_json(&json!({ "mounts": all }))?;
    if mountpoints.is_empty() { Err(client::no_mount()) } else { Ok(worst) }
}

/// A file of `.dlio`, and the exit code for its mount.
fn read(mountpoint: &Path, file: &str) -> Result<(String, Exit), Error> {
    if client::is_dead(mountpoint)? {
        return Err(client::dead(mountpoint));
    }
    Ok((client::read(mountpoint, file)?, client::exit(&client::status(mountpoint)?)))
}
