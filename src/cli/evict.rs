//! `dlio-fs evict`: make room on the fast tier now.

use std::path::{Path, PathBuf};

use clap::Args;

use super::talk::{self, Control, Said};
use super::{Exit, Failure, Outcome, complain, say};

/// Let the fast copies of files go that are safe on the slow tier
///
/// Each copy is compared with its slow file once more before it goes; the files are read from the slow tier from then on.
/// What only the fast tier has stays and is named (exit code 3), and so is what is open (1) or was changed on the slow
/// tier by somebody else (5). Between the watermarks `high` and `low` this happens by itself.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs evict /mnt/train/run1/model-01.keras /mnt/train/old
  dlio-fs evict --all /mnt/train")]
pub(super) struct EvictArgs {
    /// Files or directories of a mount; with --all, mount points
    #[arg(value_name = "PATH", required_unless_present = "all")]
    paths: Vec<PathBuf>,
    /// Everything that can go; the mount may be left out when there is only one
    #[arg(long)]
    all: bool,
}

pub(super) fn run(args: &EvictArgs) -> Outcome {
    let places = match (args.all, args.paths.as_slice()) {
        (true, []) => vec![(talk::the_mount(None)?, PathBuf::new())],
        (true, named) => {
            let whole = |path: &PathBuf| Ok((talk::the_mount(Some(path))?, PathBuf::new()));
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
