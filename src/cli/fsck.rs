//! `dlio-fs fsck`: check a fast tier that is not mounted, and repair what is safe to repair.

use std::path::{Path, PathBuf};

use clap::Args;

use super::outcome::{Exit, Outcome, complain, say, say_json};
use super::tiers;
use crate::error::Error;
use crate::mount::{FastLock, Owner, TrustedTier, boot_id, mountpoint_of};
use crate::path::{Show as _, readable};
use crate::stats::render::count;
use crate::tiers::{self as engine, Finding, FsckReport, Severity};

/// Check a fast tier that is not mounted, and repair what is safe
///
/// Checks the super block, every record of the log, every object and the quarantine of FAST, and with --slow its files
/// there. Each finding is one line: what, where, and the remedy. It repairs only what the next mount would repair as
/// well: it cuts off the torn tail of the log, and moves unexplained objects to the quarantine. Nothing is deleted.
/// Exit code 1 if something is wrong and not repaired. The bytes of objects are not compared; `dlio-fs verify` does
/// that.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  dlio-fs fsck /optane --dry-run\n  dlio-fs fsck /optane --slow /hdd")]
pub(super) struct FsckArgs {
    /// The fast tier of a mount that is not running
    fast: PathBuf,
    /// Its slow tier: also check the files of the fast tier there
    #[arg(long, value_name = "DIR")]
    slow: Option<PathBuf>,
    /// Change nothing; list what would be repaired
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &FsckArgs) -> Outcome {
    let fast = tiers::open_fast(&args.fast)?;
    let slow = args.slow.as_deref().map(|slow| tiers::open("--slow", slow)).transpose()?;
    let both = [(TrustedTier::Fast, &fast)].into_iter().chain(slow.iter().map(|slow| (tiers::SLOW, slow)));
    tiers::enter(&both.collect::<Vec<_>>())?;
    // Held until the end, so that no daemon changes the tier meanwhile.
    let owner = Owner::ourselves(&args.fast, None, true);
    let lock = match args.dry_run {
        true => FastLock::acquire_to_read(&fast, &owner),
        false => FastLock::acquire(&fast, &owner),
    };
    let mounted_at = || mountpoint_of(&fast.by_descriptor());
    let _lock = lock.map_err(|error| mounted_at().map_or(error, |at| is_mounted(&args.fast, &at)))?;
    let slow = slow.as_ref().map(tiers::dir).transpose()?;
    let report = engine::fsck(tiers::dir(&fast)?, slow, &boot_id()?, !args.dry_run)?;
    if args.json {
        say_json(&report)?;
    } else {
        report.findings.iter().try_for_each(|finding| say(line(finding)))?;
        complain(summary(&report));
    }
    Ok(if wrong(&report) == 0 { Exit::Done } else { Exit::Failure })
}

fn is_mounted(fast: &Path, at: &Path) -> Error {
    let (fast, at) = (fast.shown(), at.shown());
    Error::refused(
        format!("{fast} is mounted at {at}, and fsck needs a tier that no daemon uses"),
        format!("unmount it first (dlio-fs umount {at}), or compare the copies of its files (dlio-fs verify {at})"),
    )
}

fn line(finding: &Finding) -> String {
    let Finding { severity, place, what, remedy } = finding;
    let word = match severity {
        Severity::Note => "note",
        Severity::Repaired => "repaired",
        Severity::Repairable => "to repair",
        Severity::Damage => "DAMAGE",
    };
    let remedy = if remedy.is_empty() { String::new() } else { format!("; {remedy}") };
    format!("{word}: {}: {what}{remedy}", readable(place))
}

/// Findings that were not repaired.
fn wrong(report: &FsckReport) -> u64 {
    let wrong = |finding: &&Finding| matches!(finding.severity, Severity::Repairable | Severity::Damage);
    report.findings.iter().filter(wrong).count() as u64
}

fn summary(report: &FsckReport) -> String {
    let verdict = match wrong(report) {
        0 => "nothing is wrong".to_owned(),
        n => format!("{} not repaired", count(n, "finding")),
    };
    format!(
        "{}, {}, {} not on the slow tier yet, {} in quarantine: {verdict}",
        count(report.records, "record"),
        count(report.objects, "object"),
        count(report.pending, "version"),
        report.quarantined,
    )
}
