//! `dlio-fs doctor`: what will not work on this machine and with these directories, and the remedy.
//!
//! It writes only a temporary directory in each tier, and removes it again.

mod finding;
mod fleet;
mod machine;
mod tier;
mod visibility;

use std::path::{Path, PathBuf};

use clap::Args;
use finding::{DoctorFinding, Verdict};

use super::accept_loss::of_mount;
use super::outcome::{Exit, Failure, Outcome, say, say_json};
use crate::error::Error;

/// Find what will not work on this machine and with these directories, and name the remedy
///
/// Without directories it checks the machine only. In each named tier it makes a temporary directory, tries what the
/// file system can do, and removes it. Exit code 1 if something that a mount needs is missing.
///
/// With --fleet it looks at a fleet instead, for ten seconds (longer in one of more than 1,000 members), and makes nothing: who is
/// silent or was never mounted, whose clock is off, which fast tier is mounted twice, what is lost, what the slow tier's client
/// keeps back, and what the leases cost.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs doctor
  dlio-fs doctor --fast /optane --slow /hdd
  dlio-fs doctor --fleet run7 --slow /shared/run7
  dlio-fs doctor --fleet /mnt/train
  dlio-fs doctor --visibility")]
pub(super) struct DoctorArgs {
    /// A directory to be used as the fast tier
    #[arg(long, value_name = "DIR")]
    fast: Option<PathBuf>,
    /// A directory to be used as the slow tier
    #[arg(long, value_name = "DIR")]
    slow: Option<PathBuf>,
    /// Look at this fleet on the slow tier, or at the one that the mount at this path is in
    #[arg(long, value_name = "NAME", conflicts_with = "fast")]
    fleet: Option<String>,
    /// Run known operations on a temporary mount, once on each I/O path, and show which of them the mount saw
    ///
    /// Exit code 1 if the path `exact` did not see everything that was done.
    #[arg(long, conflicts_with_all = ["fast", "slow", "fleet"])]
    visibility: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &DoctorArgs) -> Outcome {
    if args.visibility {
        return visibility::run(args.json);
    }
    let findings = match &args.fleet {
        Some(named) => of_fleet(named, args.slow.as_deref())?,
        None => of_machine(args),
    };
    match args.json {
        true => say_json(&serde_json::json!({ "findings": findings }))?,
        false => findings.iter().try_for_each(print)?,
    }
    let failed = findings.iter().filter(|finding| finding.verdict == Verdict::Fail).count();
    let warned = findings.iter().filter(|finding| finding.verdict == Verdict::Warn).count();
    if !args.json {
        let what = if args.fleet.is_some() { "the fleet" } else { "a mount" };
        say(match (failed, warned) {
            (0, 0) => "all is well".to_owned(),
            (0, _) => format!("{what} works; {warned} of {} findings limit it", findings.len()),
            _ => format!("{what} does not work: {failed} of {} findings prevent it", findings.len()),
        })?;
    }
    Ok(if failed == 0 { Exit::Done } else { Exit::Failure })
}

/// A mount's fleet, or one on a slow tier.
fn of_fleet(named: &str, slow: Option<&Path>) -> Result<Vec<DoctorFinding>, Failure> {
    let (fleet, slow) = match slow {
        Some(slow) => (named.to_owned(), slow.to_path_buf()),
        // No fleet has a name with a slash.
        None if named.contains('/') => of_mount(Path::new(named))?,
        None => {
            let what = "--fleet NAME without its slow tier";
            return Err(Failure::usage(Error::refused(what, "add --slow DIR, or name a mount instead")));
        }
    };
    let mut findings = machine::clock(Some(&slow));
    findings.extend(fleet::examine(&fleet, &slow)?);
    Ok(findings)
}

fn of_machine(args: &DoctorArgs) -> Vec<DoctorFinding> {
    let mut findings = machine::examine();
    findings.extend(machine::clock(args.slow.as_deref()));
    findings.extend(args.fast.iter().flat_map(|path| tier::examine(tier::Role::Fast, path)));
    findings.extend(args.slow.iter().flat_map(|path| tier::examine(tier::Role::Slow, path)));
    if let (Some(fast), Some(slow)) = (&args.fast, &args.slow) {
        findings.extend(tier::compare(fast, slow));
    }
    findings
}

fn print(finding: &DoctorFinding) -> Result<(), Failure> {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok  ",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    };
    say(format_args!("{verdict}  {:<17} {}", finding.about, finding.found))?;
    match &finding.remedy {
        Some(remedy) => say(format_args!("      {:<17} -> {remedy}", "")),
        None => Ok(()),
    }
}
