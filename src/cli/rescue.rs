//! `dlio-fs rescue`: restore what only the fast tier has, without a mount and without the slow tier.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::outcome::{Exit, Failure, Outcome, complain, say, unusable};
use super::tiers;
use crate::mount::{FastLock, Owner, TrustedTier, boot_id};
use crate::path::Show as _;
use crate::tiers as engine;

/// Restore every file that only the fast tier has into a directory, without a mount
///
/// Reads the log of the fast tier FAST, or, without a log, the labels of the objects. It changes nothing there, so a
/// read-only tier will do. Use it when the slow tier is lost, or the fast tier is damaged or was moved to another
/// machine. As at a mount, a version that was not durable before a power cut counts as never written. If root rescues from a
/// tier of another user, all is read and made with the rights of that user, who must be able to write to DIR. Exit code 3
/// if the log is damaged or a file could not be restored completely; it lists everything.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  dlio-fs rescue /optane --to /home/me/rescued")]
pub(super) struct RescueArgs {
    /// The fast tier of a mount that is not running
    fast: PathBuf,
    /// Where the files go: an empty directory, or one that does not exist yet
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

pub(super) fn run(args: &RescueArgs) -> Outcome {
    let fast = tiers::open_fast(&args.fast)?;
    tiers::enter(&[(TrustedTier::Fast, &fast)])?;
    // Held until the end, so that no daemon changes the tier meanwhile.
    let _lock = FastLock::acquire_to_read(&fast, &Owner::ourselves(&args.to, None, true))?;
    empty_directory(&args.to)?;
    let to = tiers::open("--to", &args.to)?;
    let report = engine::rescue(tiers::dir(&fast)?, tiers::dir(&to)?, &boot_id()?)?;
    for path in &report.restored {
        say(path)?;
    }
    for damage in &report.damage {
        complain(format_args!("the log is damaged: {damage}"));
    }
    for path in &report.short {
        complain(format_args!("partly restored: {path}"));
    }
    for path in &report.unexplained {
        complain(format_args!("not restored, left where it is: {path}"));
    }
    complain(format_args!("{} restored to {}", report.restored.len(), args.to.shown()));
    let whole = report.unexplained.is_empty() && report.short.is_empty() && report.damage.is_empty();
    Ok(if whole { Exit::Done } else { Exit::Undrained })
}

fn empty_directory(to: &Path) -> Result<(), Failure> {
    const REMEDY: &str = "name an empty or a new directory to which you may write";
    match DirBuilder::new().mode(0o700).create(to) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        made => return made.map_err(|e| unusable("--to", to, &e, REMEDY)),
    }
    let mut entries = std::fs::read_dir(to).map_err(|e| unusable("--to", to, &e, REMEDY))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(unusable("--to", to, &"it is not empty", REMEDY)),
    }
}
