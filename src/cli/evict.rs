//! `dlio-fs evict`: make room on the fast tier now.

use std::path::{Path, PathBuf};

use clap::Args;

use super::talk::{self, Control, Said};
use super::{Exit, Failure, Outcome, complain, say};

/// Delete the fast copies of files that are safe on the slow tier
///
/// Each copy is compared with its slow file once more before it is deleted; the files are read from the slow tier from then on.
/// Files that only the fast tier has stay and are named (exit code 3), and so are files that are open (1) or were changed on the
/// slow tier by somebody else (5). Above the watermark `high` eviction starts by itself.
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
}

pub(super) fn run(args: &EvictArgs) -> Outcome {
    let places = match (args.all, args.paths.as_slice()) {
        (true, []) => vec![(talk::the_mount(None)?, PathBuf::new())],
        (true, named) => {
            let whole = |path: &PathBuf| Ok((talk::the_mountpoint(path)?, PathBuf::new()));
            named.iter().map(whole).collect::<Result<_, Failure>>()?
        }
        (false, paths) => paths.iter().map(|path| part_of_a_mount(path)).collect::<Result<_, Failure>>()?,
    };
    let mut worst = Exit::Done;
    for (mountpoint, below) in &places {
        worst = worst.max(evict(mountpoint, below)?);
    }
    Ok(worst)
}

fn part_of_a_mount(path: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    match talk::mount_of(path)? {
        (_, below) if below.as_os_str().is_empty() => {
            let what = format!("{} is a whole mount; add --all to evict everything that can go", path.display());
            Err(Failure::new(Exit::Usage, what))
        }
        part => Ok(part),
    }
}

fn evict(mountpoint: &Path, below: &Path) -> Outcome {
    let mut control = Control::ask(mountpoint, &format!("evict {}", talk::escaped(below)))?;
    let mut worst = Exit::Done;
    loop {
        match control.listen()? {
            Said::Done(text) => return say(text).map(|()| worst),
            Said::Error(why) => return Err(Failure::new(Exit::Failure, why)),
            Said::Waiting(line) => {
                worst = worst.max(match line.split_once(": ") {
                    Some(("dirty", _)) => Exit::Undrained,
                    Some(("kept", why)) if why.ends_with("is open") || why.ends_with("is pinned") => Exit::Failure,
                    Some(("kept", _)) => Exit::Conflict,
                    // How far it is.
                    _ => continue,
                });
                complain(line);
            }
        }
    }
}
