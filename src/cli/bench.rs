//! `dlio-fs bench`: what a mount over two tiers costs and gains, measured beside the tiers themselves.
//!
//! `asked.rs` is what the user said, `session.rs` the places and the runs, and each load has a file of its own; what a load does stands
//! in `src/bench`.

mod asked;
mod checkpoint;
mod files;
mod growth;
mod ingest;
mod session;
mod tiers;
mod trace;

use std::fs;
use std::io::{IsTerminal, stdout};

use asked::{Common, Document};
use clap::{Args, Subcommand};
use session::Session;

use super::sandbox;
use super::{Exit, Failure, Outcome, say};
use crate::bench::caches::Caches;
use crate::bench::results::Results;
use crate::bench::text;
use crate::error::Context;
use crate::mount;

/// Measure two tiers and a mount over them with the loads of training jobs
///
/// Makes a temporary directory in each tier, and its own mount over both; running mounts and their files are not touched, and
/// everything is removed at the end, also after Ctrl-C. The places are measured in turns, run by run, and each ratio has its interval.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs bench tiers --fast /optane --slow /hdd
  dlio-fs bench checkpoint --fast /optane --slow /hdd --output checkpoint.html
  dlio-fs bench files --fast /optane --slow /hdd --io exact,cached,passthrough --json")]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Tiers(tiers::TiersArgs),
    Ingest(ingest::IngestArgs),
    Checkpoint(checkpoint::CheckpointArgs),
    Files(files::FilesArgs),
    Growth(growth::GrowthArgs),
    Trace(trace::TraceArgs),
}

/// Bytes of a small file: the middle size in ImageNet.
const SMALL: usize = 112 << 10;

pub(super) fn run(args: &BenchArgs) -> Outcome {
    match &args.what {
        What::Tiers(args) => tiers::run(args),
        What::Ingest(args) => ingest::run(args),
        What::Checkpoint(args) => checkpoint::run(args),
        What::Files(args) => files::run(args),
        What::Growth(args) => growth::run(args),
        What::Trace(args) => trace::run(args),
    }
}

/// A benchmark that is to be run.
struct Plan {
    name: &'static str,
    runs: usize,
    /// What the user should know of it, in order.
    settings: Vec<(&'static str, String)>,
    caches: Caches,
    /// For the progress, besides one for each run of each place.
    steps: usize,
    room: Room,
}

/// What a benchmark needs on each tier, in bytes.
#[derive(Clone, Copy)]
struct Room {
    /// Stays in each place.
    stays: u64,
    /// A place has it while it is measured.
    passes: u64,
    /// What to ask for less of.
    remedy: &'static str,
}

/// Runs `work` between the making of the places and their removal, and gives the results out.
fn measure(
    common: &Common,
    plan: Plan,
    work: impl FnOnce(&mut Session) -> Result<(), Failure> + Send + 'static,
) -> Outcome {
    let documents = common.documents()?;
    let asked = common.check()?;
    mount::open_device()?;
    let results = sandbox::run(move |sandbox| {
        let mut session = Session::new(sandbox, asked, plan)?;
        session.ensure_room()?;
        session.touch_memory()?;
        work(&mut session)?;
        session.finish()
    })?;
    give_out(common.json, &documents, results)
}

/// What a sandbox has brought; nothing if it was interrupted.
fn give_out(json: bool, documents: &[Document], results: Option<Results>) -> Outcome {
    match results {
        None => Ok(Exit::Interrupted),
        Some(results) => publish(json, documents, &results).map(|()| Exit::Done),
    }
}

/// To standard output and to the files that were asked for. All are tried before one's failure is told.
fn publish(json: bool, documents: &[Document], results: &Results) -> Result<(), Failure> {
    let write = |document: &Document| {
        let path = &document.path;
        fs::write(path, document.kind.render(results)).at("write", path.display()).map_err(Failure::from)
    };
    let written: Vec<_> = documents.iter().map(write).collect();
    match json {
        true => say(results.json().trim_end())?,
        false => say(text::report(results, width()).trim_end())?,
    }
    written.into_iter().collect()
}

/// Of the terminal; what goes elsewhere has room.
fn width() -> usize {
    const LEAST: u16 = 60;
    const ELSEWHERE: u16 = 120;
    let size = if stdout().is_terminal() { ratatui::crossterm::terminal::size().ok() } else { None };
    size.map_or(ELSEWHERE, |(columns, _)| columns.max(LEAST)).into()
}
