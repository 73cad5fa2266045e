//! The command line: what a user may ask for, and the exit code of each answer.
//!
//! Parses, calls one function per command and prints one line when it fails. A running daemon is spoken to through its
//! mount (`.dlio/control`, `.dlio/stats.json`), so whoever may use the mount needs nothing else.

mod advise;
mod bench;
mod checkpoints;
mod completions;
mod demo;
mod doctor;
mod drain;
mod evict;
mod fsck;
mod helper;
mod holders;
mod install;
mod mount;
mod options;
mod pause;
mod pin;
mod plan;
mod progress;
mod queue;
mod reload;
mod remount;
mod report;
mod rescue;
mod sandbox;
mod set_aside;
mod stage;
mod status;
mod talk;
mod top;
mod umount;
mod verify;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::error::Error;
pub use completions::{completions, man_pages};

const EXIT_CODES: &str = "Exit codes: 0 done, everything safe; 1 it failed; 2 usage error (arguments, \
configuration, directories); 3 something is only on the fast tier; 4 degraded: the order is held, \
changes are refused, the slow tier is down, or the fast one fails; 5 a conflict with a foreign change.";

/// Absorb checkpoints on fast storage and copy them to slow storage, in order, without losing one
///
/// `dlio-fs mount /mnt/train --fast /optane --slow /hdd` shows the tree of /hdd at /mnt/train. What is written there
/// lands on /optane and is copied to /hdd in the background, in the order in which it happened.
/// `cat /mnt/train/.dlio/stats` says whether everything has arrived; `dlio-fs demo` shows everything in a minute.
#[derive(Debug, Parser)]
#[command(name = "dlio-fs", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    Status(status::StatusArgs),
    Drain(drain::DrainArgs),
    Sync(drain::SyncArgs),
    Pause(pause::PauseArgs),
    Resume(pause::ResumeArgs),
    Queue(queue::QueueArgs),
    SetAside(set_aside::SetAsideArgs),
    Checkpoints(checkpoints::CheckpointsArgs),
    Top(top::TopArgs),
    Stage(stage::StageArgs),
    Pin(pin::PinArgs),
    Unpin(pin::UnpinArgs),
    Evict(evict::EvictArgs),
    Verify(verify::VerifyArgs),
    Reload(reload::ReloadArgs),
    Report(report::ReportArgs),
    Advise(advise::AdviseArgs),
    Plan(plan::PlanArgs),
    Fsck(fsck::FsckArgs),
    Rescue(rescue::RescueArgs),
    Doctor(doctor::DoctorArgs),
    Demo(demo::DemoArgs),
    Bench(bench::BenchArgs),
    Install(install::InstallArgs),
    Completions(completions::CompletionsArgs),
}

/// How a command ended. The numbers are documented in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// Done; what the command was about is safe on the slow tier.
    Done = 0,
    /// It was asked for rightly and failed.
    Failure = 1,
    /// What was asked for is wrong: arguments, configuration, directories.
    Usage = 2,
    /// Something is only on the fast tier.
    Undrained = 3,
    /// The slow tier is down, or the order is held.
    Degraded = 4,
    /// A foreign change and ours met; both versions are kept.
    Conflict = 5,
    /// Ended by Ctrl-C, as a shell reports it.
    Interrupted = 130,
}

/// Why a command failed: its exit code and the line to print.
#[derive(Debug)]
struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into() }
    }

    /// What was asked for is wrong.
    fn usage(error: Error) -> Self {
        Failure::new(Exit::Usage, error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(Exit::Failure, error.to_string())
    }
}

type Outcome = Result<Exit, Failure>;

/// The whole program.
pub fn run() -> ExitCode {
    if let Some(code) = std::env::args_os().next().and_then(|name| helper::run(Path::new(&name))) {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help or the version: not a failure, and clap knows how to print it.
            return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        // Called with nothing at all: the help is the answer, and printing it is all that can be done.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            drop(error.print());
            return ExitCode::from(Exit::Usage as u8);
        }
        Err(error) => return finish(Err(Failure::new(Exit::Usage, usage_line(&error)))),
    };
    finish(match &cli.command {
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Status(args) => status::run(args),
        Command::Drain(args) => drain::run(args),
        Command::Sync(args) => drain::run_sync(args),
        Command::Pause(args) => pause::run(args),
        Command::Resume(args) => pause::run_resume(args),
        Command::Queue(args) => queue::run(args),
        Command::SetAside(args) => set_aside::run(args),
        Command::Checkpoints(args) => checkpoints::run(args),
        Command::Top(args) => top::run(args),
        Command::Stage(args) => stage::run(args),
        Command::Pin(args) => pin::run(args),
        Command::Unpin(args) => pin::run_unpin(args),
        Command::Evict(args) => evict::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Reload(args) => reload::run(args),
        Command::Report(args) => report::run(args),
        Command::Advise(args) => advise::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Fsck(args) => fsck::run(args),
        Command::Rescue(args) => rescue::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Install(args) => install::run(args),
        Command::Completions(args) => completions::run(args),
    })
}

fn finish(outcome: Outcome) -> ExitCode {
    let exit = match outcome {
        Ok(exit) => exit,
        Err(failure) => {
            complain(one_line(&failure.message));
            failure.exit
        }
    };
    ExitCode::from(exit as u8)
}

/// clap's message as one line: what is wrong, its tip, where to read more.
fn usage_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let (mut what, mut tips) = (Vec::new(), Vec::new());
    let mut lines = text.lines().map(str::trim);
    // The first paragraph is the error, also when it goes over several lines; below it stand the tips and the usage.
    what.extend(lines.by_ref().take_while(|line| !line.is_empty() && !line.starts_with("Usage:")));
    tips.extend(lines.filter_map(|line| line.strip_prefix("tip: ")));
    let what = what.join(" ");
    let mut line = what.strip_prefix("error: ").unwrap_or(&what).to_owned();
    for tip in tips {
        line.push_str("; ");
        line.push_str(tip);
    }
    line.push_str("; see dlio-fs --help");
    line
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints a line of the answer. A reader that has gone (`| head`) is no failure.
fn say(text: impl Display) -> Result<(), Failure> {
    match writeln!(io::stdout(), "{text}") {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Failure, format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Prints a line beside the answer: an error, a note, progress.
fn complain(text: impl Display) {
    // With standard error gone there is nobody left to tell.
    drop(writeln!(io::stderr(), "dlio-fs: {text}"));
}

/// A number without a unit is seconds, as for sleep(1).
fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|_| "write seconds, or a number and a unit, as \"30s\" or \"10min\"".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_usage_error_is_one_line_with_its_tip() {
        let error = Cli::try_parse_from(["dlio-fs", "mount", "/mnt", "--fats", "/x"]).expect_err("no such flag");
        let line = usage_line(&error);
        assert!(!line.contains('\n') && line.contains("--fats") && line.contains("'--fast'"), "{line}");
        let error = Cli::try_parse_from(["dlio-fs", "umount"]).expect_err("the mount point is missing");
        let line = usage_line(&error);
        assert!(line.contains("<MOUNTPOINT>") && !line.contains("Usage:"), "{line}");
    }
}
