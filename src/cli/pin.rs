//! `dlio-fs pin` and `dlio-fs unpin`: what stays on the fast tier.

use std::path::{Path, PathBuf};

use clap::Args;

use super::client::{self, ControlCall};
use super::outcome::{Exit, Outcome, say};
use super::stage::answer;

/// Never evict files at or below PATH from the fast tier
///
/// A pin belongs to a path and outlives the mount. It copies nothing; `dlio-fs stage` does. A file that does not fit on
/// the fast tier goes to the slow tier all the same.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs stage /mnt/train/data/val --wait && dlio-fs pin /mnt/train/data/val
  dlio-fs pin --list")]
pub(super) struct PinArgs {
    /// Files or directories of a mount; with --list the mount point, optional if there is only one
    #[arg(value_name = "PATH", required_unless_present = "list")]
    paths: Vec<PathBuf>,
    /// Show the pinned paths
    #[arg(long)]
    list: bool,
}

/// Allow the eviction of files at or below PATH again
#[derive(Debug, Args)]
pub(super) struct UnpinArgs {
    /// The pinned paths
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: &PinArgs) -> Outcome {
    if args.list {
        let mountpoint = client::the_mount(args.paths.first().map(PathBuf::as_path))?;
        let list = ControlCall::ask(&mountpoint, "pins")?.bytes()?;
        let list = String::from_utf8_lossy(&list).into_owned();
        return list.lines().try_for_each(|line| say(client::for_people(line))).map(|()| Exit::Done);
    }
    tell_all(&args.paths, "pin")
}

pub(super) fn run_unpin(args: &UnpinArgs) -> Outcome {
    tell_all(&args.paths, "unpin")
}

fn tell_all(paths: &[PathBuf], verb: &str) -> Outcome {
    for path in paths {
        let (mountpoint, below) = client::mount_of(path).or_else(|failure| gone(path).ok_or(failure))?;
        let said = answer(&mountpoint, &format!("{verb} {}", client::escaped(&below)))?;
        say(client::for_people(&said))?;
    }
    Ok(Exit::Done)
}

/// A path whose file no longer exists, by its parent directory.
fn gone(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let (above, name) = (path.parent()?, path.file_name()?);
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let (mountpoint, below) = client::mount_of(above).ok().or_else(|| gone(above))?;
    Some((mountpoint, below.join(name)))
}
