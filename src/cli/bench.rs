//! `dlio-fs bench`: what a mount over two tiers costs and gains, measured beside the tiers themselves.
//!
//! `asked.rs` has the arguments, `session.rs` the places and runs, `measure.rs` runs one benchmark, `daemon_cost.rs` reads what the
//! daemon takes, and each load has a file of its own here. `src/bench` defines what a load does.

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
mod measure;
mod metadata;
mod plan;
mod ranks;
mod session;
mod tiers;
mod trace;

use clap::{Args, Subcommand};

use super::outcome::Outcome;

/// Measure two tiers and a mount over them with the loads of training jobs
///
/// Makes a temporary directory in each tier and its own mount over both. Running mounts and their files are not
/// touched, and everything is removed at the end, even after Ctrl-C. The places are measured in turns, run by run, and
/// each ratio comes with its confidence interval.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs bench tiers --fast /optane --slow /hdd
  dlio-fs bench checkpoint --fast /optane --slow /hdd --output checkpoint.html
  dlio-fs bench files --fast /optane --slow /hdd \\
      --io exact,cached,passthrough --json")]
pub(super) struct BenchArgs {
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
}

pub(super) fn run(args: &BenchArgs) -> Outcome {
    match &args.what {
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
    }
}
