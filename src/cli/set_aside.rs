//! `dlio-fs set-aside`: takes changes that the slow tier refuses for good out of the order.

use std::path::{Path, PathBuf};

use clap::Args;

use super::client::{self, ControlCall, Said};
use super::outcome::{Exit, Failure, Outcome, complain, say, say_json};
use crate::json;

/// Take the pending changes at or below PATH out of the order, so that those behind them can continue
///
/// The last remedy if the slow tier keeps refusing a change and the cause cannot be removed (`dlio-fs queue` names the
/// change). New files and new versions are moved to .dlio-fs/saved/ on the slow tier, under their paths. From then on
/// the mount shows what the slow tier has: an older version, the former name, or nothing. Checkpoints with such a file
/// become incomplete.
///
/// Files that have taken over one of its names are set aside with it. --dry-run lists all of them.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs set-aside --dry-run /mnt/train/run1/ckpt-7
  dlio-fs set-aside /mnt/train/run1/ckpt-7")]
pub(super) struct SetAsideArgs {
    /// A file or directory of a mount, which may have been removed
    path: PathBuf,
    /// List what would be set aside, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Save nothing: what only the fast tier has is gone. For a slow tier that refuses the copies, too
    #[arg(long, conflicts_with = "dry_run")]
    discard: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SetAsideArgs) -> Outcome {
    let (mountpoint, below) = find(&args.path)?;
    let how = match (args.dry_run, args.discard) {
        (true, _) => "dry-run ",
        (false, true) => "discard ",
        (false, false) => "",
    };
    let mut control = ControlCall::ask(&mountpoint, &format!("set-aside {how}{}", client::escaped(&below)))?;
    let mut lines = Vec::new();
    let said = loop {
        match control.listen()? {
            Said::Done(text) => break text,
            Said::Error(why) => return Err(Failure::new(Exit::Failure, why)),
            Said::Waiting(line) if line.starts_with("saving: ") => complain(line),
            Said::Waiting(line) if args.json => lines.push(line),
            Said::Waiting(line) => say(client::for_people(&line))?,
        }
    };
    if !args.json {
        return say(said).map(|()| Exit::Done);
    }
    let all =
        |kind: &str| -> Vec<_> { lines.iter().filter_map(|line| line.strip_prefix(kind)).map(json::path_of).collect() };
    let document = serde_json::json!({
        "dry_run": args.dry_run,
        "fast_only": all("fast only: "),
        "returned": all("returned: "),
        "saved": lines.iter().find_map(|line| line.strip_prefix("saved: ")),
        "summary": said,
    });
    say_json(&document).map(|()| Exit::Done)
}

/// The mount and the path below it; a removed file is found by its parent directory. Does not follow a symbolic link.
fn find(path: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let (above, name) = match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) => (if above.as_os_str().is_empty() { Path::new(".") } else { above }, name),
        _ => return client::mount_of(path),
    };
    match client::mount_of(above) {
        Ok((mountpoint, below)) => Ok((mountpoint, below.join(name))),
        // The mount's own root.
        Err(failure) => client::mount_of(path).map_err(|_| failure),
    }
}
