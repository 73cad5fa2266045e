//! `dlio-fs-bench epoch`.

use std::path::PathBuf;

use clap::Args;
use dlio_fs::cli::outcome::{Failure, Outcome};

use super::asked::{Common, parse_size, size_text, usage};
use super::data_set;
use super::measure::measure;
use super::plan::{BenchPlan, Room, SMALL};
use super::session::{Place, Session};
use crate::loads::epoch::{self, EpochData, RESNET, UNET3D};
use crate::loads::reader;
use crate::loads::results::Unit;

/// Read an epoch for simulated accelerators: how many of them a place keeps busy, and how busy they then are
///
/// Two data sets: of large files, as of unet3d, and of small ones of 112 KiB, as of resnet. Each is read cold by 4 threads
/// as fast as it goes. From that follows how many H100 the place would feed at a utilisation of 90 %. That many,
/// rounded down and at least one, are then simulated: each sleeps for as long as MLPerf Storage v1.0 says that an H100
/// computes, and 4 threads read the batches of all. The mount is measured with the files on the slow tier, and with a second copy that was staged. DLIO shape, scaled: not an
/// MLPerf result.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench epoch --fast /optane --slow /hdd
  dlio-fs-bench epoch --fast /nvme --slow /shared --large-files 168 \\
      --large-size 146MB --small-files 20000 --runs 6")]
pub(super) struct EpochArgs {
    #[command(flatten)]
    common: Common,
    /// How many large files
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    large_files: u32,
    /// Size of a large file, 3.2 MB or more: else a step is too short to be a sleep
    #[arg(long, value_name = "SIZE", default_value = "8MB", value_parser = parse_size)]
    large_size: u64,
    /// How many small files, of 112 KiB each
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u32).range(32..=10_000_000))]
    small_files: u32,
}

pub(super) fn run(args: &EpochArgs) -> Outcome {
    let least = UNET3D.sample_min();
    if args.large_size < least {
        let what = format!("--large-size {}: an H100 computes for less than 1 ms on it", size_text(args.large_size));
        return Err(usage(what, &format!("give {least} B or more: a sleep in its place is not finer")));
    }
    let sets = [
        EpochData { accelerator: UNET3D, samples: args.large_files as usize, size: args.large_size },
        EpochData { accelerator: RESNET, samples: args.small_files as usize, size: SMALL as u64 },
    ];
    let (runs, mounts) = (args.common.runs(3), args.common.io.len());
    let files = |set: &EpochData| format!("{} of {}", set.samples, size_text(set.size));
    let all = sets.iter().map(EpochData::bytes).fold(0, u64::saturating_add);
    let plan = BenchPlan {
        name: "epoch",
        runs,
        settings: sets.iter().map(|set| (set.accelerator.model, files(set))).collect(),
        caches: args.common.cold()?,
        // Writing for each place, staging; and one more place for each mount.
        steps: args.common.places() + mounts * (1 + runs),
        // For a mount the slow tier has it twice: staged, and not.
        room: Room {
            stays: all.saturating_mul(2),
            beneath: 0,
            passes: 0,
            remedy: "ask for less with --large-files, --large-size or --small-files",
        },
    };
    measure(&args.common, plan, move |session| {
        let (mut data, stop) = (epoch::data(), session.stop());
        let paths = data_set::prepare(session, "data sets", |dir| {
            let written = sets.iter().map(|set| set.write(dir, &mut data, &stop));
            Ok(written.collect::<dlio_fs::error::Result<Vec<_>>>()?.concat())
        })?;
        session.each(|session, place, run| one(session, place, sets, &paths, run))
    })
}

/// What was found of one data set.
struct EpochFigures {
    /// Samples per second as fast as it goes.
    rate: f64,
    fed: f64,
    simulated: usize,
    utilisation: f64,
}

fn one(
    session: &mut Session,
    place: &Place,
    sets: [EpochData; 2],
    paths: &[PathBuf],
    run: usize,
) -> Result<(), Failure> {
    let mut found = Vec::new();
    for set in sets {
        // A different order in each run, the same for all places of a run.
        let order = reader::shuffled(&set.own(&place.dir, paths), run as u64);
        session.cool()?;
        let pass = reader::pass(&order, set.unthrottled(), &session.stop())?;
        let fed = set.fed(pass.bytes as f64 / pass.seconds);
        let simulated = set.simulated(fed);
        session.cool()?;
        let trained = reader::pass(&order, set.training(simulated), &session.stop())?;
        let (rate, utilisation) = (order.len() as f64 / pass.seconds, set.utilisation(&trained));
        found.push((set.accelerator.model, EpochFigures { rate, fed, simulated, utilisation }));
    }
    // Case by case: those that can be compared stand together.
    let mut add = |case: &str, unit, figure: fn(&EpochFigures) -> f64| {
        for (model, figures) in &found {
            session.add(&place.name, &format!("{case}, {model}"), unit, figure(figures));
        }
    };
    add("cold epoch", Unit::Files, |figures| figures.rate);
    add("fed at 90 % utilisation", Unit::Accelerators, |figures| figures.fed);
    add("simulated", Unit::Accelerators, |figures| figures.simulated as f64);
    add("utilisation of these", Unit::Utilisation, |figures| figures.utilisation);
    Ok(())
}
