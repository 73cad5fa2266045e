//! `dlio-fs-bench checkpoint`.

use std::time::{Duration, Instant};

use clap::Args;
use dlio_fs::cli::duration::parse_duration;
use dlio_fs::cli::outcome::{Failure, Outcome};

use super::asked::{Common, parse_size, size_text};
use super::measure::measure;
use super::plan::{BenchPlan, Room};
use super::session::{Place, PlaceKind, Session};
use crate::loads::checkpoint::{CheckpointLoad, PIECE};
use crate::loads::data::{Data, sync_dir};
use crate::loads::devices::Sampler;
use crate::loads::results::Unit;

/// Write checkpoints one after the other: how long the application waits, and when all is on the slow tier
///
/// Each is one file, written in pieces of 8 MiB under a temporary name, fsynced and renamed, and its directory is
/// fsynced, as TensorFlow's Saver does. Through the mount it reaches the slow tier while the application goes on. The
/// throughput of both tiers' devices during the last run is recorded.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench checkpoint --fast /optane --slow /hdd
  dlio-fs-bench checkpoint --fast /optane --slow /hdd --interval 10s --runs 6 \\
      --output checkpoint.html")]
pub(super) struct CheckpointArgs {
    #[command(flatten)]
    common: Common,
    /// How many checkpoints
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Size of one checkpoint
    #[arg(long, value_name = "SIZE", default_value = "600MB", value_parser = parse_size)]
    size: u64,
    /// How long the application computes between two of them
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    interval: Duration,
    /// Do not fsync, as most frameworks do not
    #[arg(long)]
    no_fsync: bool,
}

pub(super) fn run(args: &CheckpointArgs) -> Outcome {
    let load =
        CheckpointLoad { count: args.count as usize, size: args.size, interval: args.interval, fsync: !args.no_fsync };
    let plan = BenchPlan {
        name: "checkpoint",
        runs: args.common.runs(3),
        settings: vec![
            ("checkpoints", load.count.to_string()),
            ("size", size_text(load.size)),
            ("interval", humantime::format_duration(load.interval).to_string()),
            ("fsync", if load.fsync { "yes" } else { "no" }.to_owned()),
        ],
        caches: args.common.cold()?,
        steps: 0,
        room: Room { stays: 0, beneath: 0, passes: load.bytes(), remedy: "ask for less with --size or --count" },
    };
    measure(&args.common, plan, move |session| {
        session.mount()?;
        let mut data = Data::new(PIECE);
        session.each(|session, place, run| one(session, place, run, load, &mut data))
    })
}

fn one(session: &mut Session, place: &Place, run: usize, load: CheckpointLoad, data: &mut Data) -> Result<(), Failure> {
    session.cool()?;
    let sampler = session.is_last(run).then(|| session.sample()).transpose()?;
    let mark = |text: String| sampler.iter().for_each(|sampler: &Sampler| sampler.mark(text.clone()));
    let begun = Instant::now();
    let blocked = load.write(&place.dir, data, &session.stop(), mark)?;
    session.add(&place.name, "application blocked", Unit::Seconds, blocked);
    if !load.fsync {
        match &place.kind {
            // At the mount's root this covers everything.
            PlaceKind::Mount(_) => sync_dir(&place.dir)?,
            _ => load.sync_files(&place.dir)?,
        }
        session.add(&place.name, "until durable", Unit::Seconds, begun.elapsed().as_secs_f64());
    }
    if let PlaceKind::Mount(mount) = &place.kind {
        session.watch_until_safe(mount)?;
        mark("all is on the slow tier".to_owned());
    }
    if matches!(place.kind, PlaceKind::Mount(_) | PlaceKind::Slow) {
        let took = begun.elapsed().as_secs_f64();
        session.add(&place.name, "until all is on the slow tier", Unit::Seconds, took);
        session.add(&place.name, "slow bandwidth", Unit::Bytes, load.bytes() as f64 / took);
    }
    if let Some(sampler) = sampler {
        let courses = sampler.end(&place.name)?;
        session.keep(courses);
    }
    session.clear(place)
}
