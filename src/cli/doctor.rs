//! `dlio-fs doctor`: what will not work on this machine and with these directories, and the remedy.
//!
//! It writes only a temporary directory in each tier, and removes it again.

mod finding;
mod machine;
mod tier;
mod visibility;

use std::path::PathBuf;

use clap::Args;
use finding::{DoctorFinding, Verdict};

use super::outcome::{Exit, Outcome, say, say_json};

/// Find what will not work on this machine and with these directories, and name the remedy
///
/// Without directories it checks the machine only. In each named tier it makes a temporary directory, tries what the
/// file system can do, and removes it. Exit code 1 if something that a mount needs is missing.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs doctor
  dlio-fs doctor --fast /optane --slow /hdd
  dlio-fs doctor --visibility")]
pub(super) struct DoctorArgs {
    /// A directory to be used as the fast tier
    #[arg(long, value_name = "DIR")]
    fast: Option<PathBuf>,
    /// A directory to be used as the slow tier
    #[arg(long, value_name = "DIR")]
    slow: Option<PathBuf>,
    /// Run known operations on a temporary mount, once on each I/O path, and show which of them the mount saw
    ///
    /// Exit code 1 if the path `exact` did not see everything that was done.
    #[arg(long, conflicts_with_all = ["fast", "slow"])]
    visibility: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &DoctorArgs) -> Outcome {
    if args.visibility {
        return visibility::run(args.json);
    }
    let mut findings = machine::examine();
    findings.extend(machine::clock(args.slow.as_deref()));
    findings.extend(args.fast.iter().flat_map(|path| tier::examine(tier::Role::Fast, path)));
    findings.extend(args.slow.iter().flat_map(|path| tier::examine(tier::Role::Slow, path)));
    if let (Some(fast), Some(slow)) = (&args.fast, &args.slow) {
        findings.extend(tier::compare(fast, slow));
    }
    match args.json {
        true => say_json(&serde_json::json!({ "findings": findings }))?,
        false => findings.iter().try_for_each(print)?,
    }
    let failed = findings.iter().filter(|finding| finding.verdict == Verdict::Fail).count();
    let warned = findings.iter().filter(|finding| finding.verdict == Verdict::Warn).count();
    if !args.json {
        say(match (failed, warned) {
            (0, 0) => "all is well".to_owned(),
            (0, _) => format!("a mount works; {warned} of {} findings limit it", findings.len()),
            _ => format!("a mount does not work: {failed} of {} findings prevent it", findings.len()),
        })?;
    }
    Ok(if failed == 0 { Exit::Done } else { Exit::Failure })
}

fn print(finding: &DoctorFinding) -> Result<(), super::outcome::Failure> {
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
