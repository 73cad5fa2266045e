//! `dlio-fs-bench`: what a mount over two tiers costs and gains, measured beside the tiers themselves.
//!
//! `asked.rs` has the arguments, `session.rs` the places and runs, `measure.rs` runs one benchmark, `daemon_cost.rs` reads what the
//! daemon takes, and each benchmark has a file of its own here. The folder `loads` defines what a load does.

// Names are anybody's.
#![cfg_attr(not(test), deny(clippy::string_slice))]

mod asked;
mod blocks;
mod checkpoint;
mod daemon_cost;
mod data_set;
mod drain;
mod epoch;
mod files;
mod growth;
mod ingest;
mod interference;
mod loads;
mod measure;
mod metadata;
mod plan;
mod ranks;
mod session;
mod steps;
mod tiers;
mod trace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use dlio_fs::cli::completions::{self, FILES_COMMAND};
use dlio_fs::cli::run_program;

/// Measure two tiers and a mount over them with the loads of training jobs
///
/// Makes a temporary directory in each tier and its own mount over both. Running mounts and their files are not
/// touched, and everything is removed at the end, even after Ctrl-C. The places are measured in turns, run by run, and
/// each ratio comes with its confidence interval.
#[derive(Debug, Parser)]
#[command(
    name = "dlio-fs-bench",
    version,
    max_term_width = 100,
    after_long_help = "\
Examples:
  dlio-fs-bench tiers --fast /optane --slow /hdd
  dlio-fs-bench checkpoint --fast /optane --slow /hdd --output checkpoint.html
  dlio-fs-bench files --fast /optane --slow /hdd \\
      --io exact,cached,passthrough --json"
)]
struct BenchCommand {
    #[command(subcommand)]
    what: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    Tiers(tiers::TiersArgs),
    Ingest(ingest::IngestArgs),
    Epoch(epoch::EpochArgs),
    Interference(interference::InterferenceArgs),
    Checkpoint(checkpoint::CheckpointArgs),
    Ranks(ranks::RanksArgs),
    Files(files::FilesArgs),
    Blocks(blocks::BlocksArgs),
    Metadata(metadata::MetadataArgs),
    Drain(drain::DrainBenchArgs),
    Growth(growth::GrowthArgs),
    Trace(trace::TraceArgs),
    /// Print the manual pages and completions, for `dlio-fs install`
    #[command(name = FILES_COMMAND, hide = true)]
    InstalledFiles,
}

fn main() -> ExitCode {
    run_program(|cli: &BenchCommand| match &cli.what {
        Benchmark::Tiers(args) => tiers::run(args),
        Benchmark::Ingest(args) => ingest::run(args),
        Benchmark::Epoch(args) => epoch::run(args),
        Benchmark::Interference(args) => interference::run(args),
        Benchmark::Checkpoint(args) => checkpoint::run(args),
        Benchmark::Ranks(args) => ranks::run(args),
        Benchmark::Files(args) => files::run(args),
        Benchmark::Blocks(args) => blocks::run(args),
        Benchmark::Metadata(args) => metadata::run(args),
        Benchmark::Drain(args) => drain::run(args),
        Benchmark::Growth(args) => growth::run(args),
        Benchmark::Trace(args) => trace::run(args),
        Benchmark::InstalledFiles => completions::say_files(&BenchCommand::command()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_no_example_is_broken_at_eighty_columns() {
        BenchCommand::command().debug_assert();
        for command in BenchCommand::command().get_subcommands().chain([&BenchCommand::command()]) {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let mut broken = help.lines().filter(|line| line.starts_with("  ") && line.chars().count() > 80);
            assert_eq!(broken.next(), None, "{}", command.get_name());
        }
    }
}
