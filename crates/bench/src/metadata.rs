//! `dlio-fs-bench metadata`.

use clap::Args;
use dlio_fs::cli::outcome::{Failure, Outcome};

use super::asked::Common;
use super::measure::measure;
use super::plan::{BenchPlan, Room};
use super::session::{Place, Session};
use crate::loads::data::Data;
use crate::loads::metadata::{HARD, MdtestPhase, MetadataLoad};
use crate::loads::results::Unit;

/// What a small file takes of a disk.
const BLOCK: u64 = 4096;

/// Create, stat, read and delete files by several ranks at once: the phases and names of IO500's mdtest
///
/// Easy: empty files, each rank's in a directory of its own. Hard: files of 3901 bytes, all ranks' in one directory. The phases come in
/// IO500's order, with nothing in between: easy and hard write, easy and hard stat, easy delete, hard read, hard delete. Rank 0 stats the
/// files of rank 1, reads those of rank 2 and deletes those of rank 3, and so on (mdtest's -N 1). Reports, for each phase,
/// the operations a second of all ranks until the slowest one is done. The driver is our own: ranks are threads of one machine, and each makes a fixed number of files instead
/// of working for five minutes. It is no IO500 result.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench metadata --fast /optane --slow /hdd
  dlio-fs-bench metadata --fast /optane --slow /hdd --ranks 16 --files 10000 \\
      --runs 6 --output metadata.html")]
pub(super) struct MetadataArgs {
    #[command(flatten)]
    common: Common,
    /// How many ranks work at once
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
    /// How many files each rank makes, easy ones and as many hard ones
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
}

pub(super) fn run(args: &MetadataArgs) -> Outcome {
    let load = MetadataLoad { ranks: args.ranks as usize, files: args.files as usize };
    let plan = BenchPlan {
        name: "metadata",
        runs: args.common.runs(3),
        settings: vec![
            ("ranks", load.ranks.to_string()),
            ("files of each rank", format!("{0} easy, {0} hard", load.files)),
        ],
        caches: args.common.hot()?,
        steps: 0,
        room: Room {
            stays: 0,
            beneath: 0,
            passes: BLOCK * u64::from(args.ranks) * u64::from(args.files),
            remedy: "ask for less with --files or --ranks",
        },
    };
    measure(&args.common, plan, move |session| {
        session.mount()?;
        let mut data: Vec<Data> = (0..load.ranks).map(|_| Data::new(HARD)).collect();
        session.each(|session, place, _| one(session, place, load, &mut data))
    })
}

fn one(session: &mut Session, place: &Place, load: MetadataLoad, data: &mut [Data]) -> Result<(), Failure> {
    let stop = session.stop();
    load.make_dirs(&place.dir)?;
    for phase in MdtestPhase::ALL {
        let rate = load.run(phase, &place.dir, data, &stop)?;
        session.add(&place.name, phase.name(), Unit::Operations, rate);
    }
    load.remove_dirs(&place.dir)?;
    session.settle(place)
}
