//! The command line: what a user may ask for, and the exit code of each answer.
//!
//! Parses, calls one function per command and prints one line when it fails. Commands talk to a running daemon through
//! its mount (`.dlio/control`, `.dlio/stats.json`), so whoever may use the mount needs nothing else.

mod accept_loss;
mod advise;
mod checkpoints;
mod checkpoints_of_fleet;
pub mod client;
mod clock_error;
pub mod completions;
mod demo;
mod doctor;
mod drain;
pub mod duration;
mod evict;
mod fleet;
mod forget;
mod fsck;
mod helper;
mod holders;
mod install;
mod made;
mod mount;
pub mod options;
pub mod outcome;
mod pause;
mod pin;
mod plan;
mod progress;
mod queue;
mod reload;
mod remount;
mod report;
mod rescue;
pub mod sandbox;
mod saved;
mod set_aside;
pub mod stage;
mod status;
mod tiers;
mod top;
mod umount;
mod verify;
mod wait;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

pub use outcome::Exit;
use outcome::{EXIT_CODES, Failure, Outcome, complain, one_line, usage_line};

/// Absorb checkpoints on fast storage and copy them to slow storage, in order, without losing one
///
/// `dlio-fs mount /mnt/train --fast /optane --slow /hdd` shows the tree of /hdd at /mnt/train. What is written there
/// lands on /optane and is copied to /hdd in the background, in the order in which it happened.
/// `cat /mnt/train/.dlio/stats` says whether everything has arrived; `dlio-fs demo` shows all of this in a minute.
#[derive(Debug, Parser)]
// Longer lines are hard to read, however wide the terminal is.
#[command(name = "dlio-fs", version, after_help = EXIT_CODES, max_term_width = 100)]
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
    Wait(wait::WaitArgs),
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
    Saved(saved::SavedArgs),
    Forget(forget::ForgetArgs),
    AcceptLoss(accept_loss::AcceptLossArgs),
    ClockError(clock_error::ClockErrorArgs),
    Doctor(doctor::DoctorArgs),
    Demo(demo::DemoArgs),
    Install(install::InstallArgs),
    Completions(completions::CompletionsArgs),
}

/// The whole program.
pub fn run() -> ExitCode {
    if let Some(code) = std::env::args_os().next().and_then(|name| helper::run(Path::new(&name))) {
        return code;
    }
    run_program(|cli: &Cli| match &cli.command {
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Status(args) => status::run(args),
        Command::Drain(args) => drain::run(args),
        Command::Sync(args) => drain::run_sync(args),
        Command::Wait(args) => wait::run(args),
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
        Command::Saved(args) => saved::run(args),
        Command::Forget(args) => forget::run(args),
        Command::AcceptLoss(args) => accept_loss::run(args),
        Command::ClockError(args) => clock_error::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Install(args) => install::run(args, &Cli::command()),
        Command::Completions(args) => completions::run(args, &Cli::command()),
    })
}

/// Runs a program with the arguments of this process. Help goes to standard output; a failure is one line.
pub fn run_program<P: Parser>(run: impl FnOnce(&P) -> Outcome) -> ExitCode {
    let program = match P::try_parse() {
        Ok(program) => program,
        Err(error) if !error.use_stderr() => {
            // Help or the version: not a failure, and clap knows how to print it.
            return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        // Called without arguments: print the help. If that fails, nothing else can be done.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            drop(error.print());
            return ExitCode::from(Exit::Usage as u8);
        }
        Err(error) => return finish(Err(Failure::new(Exit::Usage, usage_line(&error, P::command().get_name())))),
    };
    finish(run(&program))
}

/// The man pages of the program and its commands: file name and text.
///
/// Errors: none in practice, since the pages are written to memory.
pub fn man_pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    completions::man_pages(Cli::command())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Remarks stood behind examples: at 80 columns they were broken, and so were commands that people copy.
    #[test]
    fn no_example_is_broken_at_eighty_columns() {
        fn check(command: &clap::Command) {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let broken: Vec<_> =
                help.lines().filter(|line| line.starts_with("  ") && line.chars().count() > 80).collect();
            assert!(broken.is_empty(), "{}: {broken:#?}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn a_usage_error_is_one_line_with_its_tip() {
        let error = Cli::try_parse_from(["dlio-fs", "mount", "/mnt", "--fats", "/x"]).expect_err("no such flag");
        let line = usage_line(&error, "dlio-fs");
        assert!(!line.contains('\n') && line.contains("--fats") && line.contains("'--fast'"), "{line}");
        let error = Cli::try_parse_from(["dlio-fs", "umount"]).expect_err("the mount point is missing");
        let line = usage_line(&error, "dlio-fs");
        assert!(line.contains("<MOUNTPOINT>") && !line.contains("Usage:"), "{line}");
    }
}
