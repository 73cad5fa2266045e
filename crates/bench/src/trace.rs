//! `dlio-fs-bench trace`.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use clap::Args;
use dlio_fs::cli::duration::parse_duration;
use dlio_fs::cli::outcome::{Exit, Failure, Outcome, complain};
use dlio_fs::cli::sandbox;
use dlio_fs::error::Context;
use dlio_fs::path::Show as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::SignalKind;

use super::asked::{directory, documents, usage};
use super::measure::publish;
use super::session;
use crate::loads::devices::{self, Sampler};
use crate::loads::results::MeasuredTiers;

const EVERY_MIN: Duration = Duration::from_millis(10);
const EVERY_MAX: Duration = Duration::from_secs(3600);

/// Record what the tiers' devices read and write over time, while a command runs or until Ctrl-C
///
/// Counts all requests that reach the devices, from any process. The results follow the output of the command; --output
/// writes them to a file.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench trace --fast /optane --slow /hdd
  dlio-fs-bench trace --fast /optane --slow /hdd --output epoch.html \\
      -- python train.py --epochs 1")]
pub(super) struct TraceArgs {
    /// A directory on the fast tier
    #[arg(long, value_name = "DIR")]
    fast: PathBuf,
    /// A directory on the slow tier
    #[arg(long, value_name = "DIR")]
    slow: PathBuf,
    /// Interval between figures
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_every)]
    every: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write the results to this file, in the format of its ending: .html, .svg, .md, .json or .txt; may be given
    /// several times
    #[arg(long, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// The command to run, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Events: the command ended, or a signal came.
enum LoadMessage {
    Signal(SignalKind),
    Ended(std::io::Result<ExitStatus>),
}

pub(super) fn run(args: &TraceArgs) -> Outcome {
    let documents = documents(&args.output)?;
    directory("--fast", &args.fast)?;
    directory("--slow", &args.slow)?;
    let tiers = MeasuredTiers { fast: session::tier(&args.fast)?, slow: session::tier(&args.slow)? };
    let found = devices::of_tiers(tiers.fast.device.as_deref(), tiers.slow.device.as_deref());
    if found.is_empty() {
        let what = format!("neither {} nor {} is on a block device", args.fast.shown(), args.slow.shown());
        return Err(usage(what, "name directories on disks of this machine"));
    }
    for (name, tier) in [("fast", &tiers.fast), ("slow", &tiers.slow)] {
        if tier.device.is_none() {
            complain(format_args!("the {name} tier is on no block device ({}): it is left out", tier.file_system));
        }
    }
    let (news, arrived) = mpsc::channel();
    let on_signal = news.clone();
    let _signals = sandbox::watch_signals(move |kind| on_signal.send(LoadMessage::Signal(kind)).is_ok())?;
    let sampler = Sampler::start(&found, args.every)?;
    let status = match args.command.split_first() {
        None => {
            complain("recording; Ctrl-C ends it");
            // Without a command only a signal can arrive.
            drop(arrived.recv());
            None
        }
        Some((program, arguments)) => {
            let mut child = Command::new(program).args(arguments).spawn().at("run", program)?;
            let pid = Pid::from_raw(child.id().cast_signed());
            std::thread::spawn(move || news.send(LoadMessage::Ended(child.wait())).is_ok());
            Some(wait(&arrived, pid)?)
        }
    };
    let courses = sampler.end("")?;
    let every = humantime::format_duration(args.every).to_string();
    let mut settings = vec![("every".to_owned(), every)];
    settings.extend((!args.command.is_empty()).then(|| ("command".to_owned(), args.command.join(" "))));
    let results = session::results("trace", tiers, settings, "as they were", Vec::new(), courses);
    publish(args.json, &documents, &results)?;
    match status {
        Some(status) if !status.success() => {
            Err(Failure::new(Exit::Failure, format!("{} failed: {status}", args.command[0])))
        }
        _ => Ok(Exit::Done),
    }
}

/// Ctrl-C reaches the command from the terminal; other signals that ask this program to end are passed on.
fn wait(arrived: &Receiver<LoadMessage>, pid: Pid) -> Result<ExitStatus, Failure> {
    loop {
        match arrived.recv() {
            Ok(LoadMessage::Signal(kind)) if kind == SignalKind::interrupt() => {}
            Ok(LoadMessage::Signal(_)) => drop(kill(pid, Signal::SIGTERM)),
            Ok(LoadMessage::Ended(status)) => return status.at("wait for", "the command").map_err(Failure::from),
            Err(_) => return Err(Failure::new(Exit::Failure, "the command was lost")),
        }
    }
}

fn parse_every(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        time if (EVERY_MIN..=EVERY_MAX).contains(&time) => Ok(time),
        _ => Err("write an interval from 10ms to 1h".to_owned()),
    }
}
