//! `dlio-fs bench blocks`.

use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;

use super::asked::{Common, parse_size, size_text, usage};
use super::measure::measure;
use super::plan::{BenchPlan, Room};
use super::session::{Place, PlaceKind, Session, command};
use crate::bench::blocks::{BlockCase, BlockFigures, Engine};
use crate::bench::results::Unit;
use crate::cli::duration::parse_duration;
use crate::cli::outcome::{Exit, Failure, Outcome};
use crate::error::Context;

/// Read and write blocks at random places with fio: how many bytes a second, and how long one takes
///
/// With one file for each job, through the page cache and past it; of each case the rate, and the time within which a half,
/// all but one of a hundred, and all but one of a thousand blocks were done. Writes through the mount are measured while its drain
/// runs, and in a second mount whose drain is paused. Needs fio.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs bench blocks --fast /optane --slow /hdd
  dlio-fs bench blocks --fast /optane --slow /hdd --engines io_uring --blocks 4KiB --jobs 16 --time 10s --runs 6")]
pub(super) struct BlocksArgs {
    #[command(flatten)]
    common: Common,
    /// How the kernel is asked
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_enum, default_value = "psync,libaio,io_uring")]
    engines: Vec<Engine>,
    /// Sizes of a block
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "4KiB,64KiB,1MiB", value_parser = parse_size)]
    blocks: Vec<u64>,
    /// Numbers of jobs that work side by side
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: Vec<u32>,
    /// Size of a job's file
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    size: u64,
    /// For how long each case is measured
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    time: Duration,
}

pub(super) fn run(args: &BlocksArgs) -> Outcome {
    see_fio()?;
    let (cases, size, time) = (BlockCase::all(&args.engines, &args.blocks, &args.jobs), args.size, args.time);
    let files = args.jobs.iter().max().copied().unwrap_or(1);
    let runs = args.common.runs(3);
    let plan = BenchPlan {
        name: "blocks",
        runs,
        settings: vec![
            ("files", format!("{files} of {}", size_text(size))),
            ("each case", humantime::format_duration(time).to_string()),
        ],
        caches: args.common.hot()?,
        // A paused mount for each other one.
        steps: runs * args.common.io.len(),
        room: Room {
            stays: 0,
            // What is written again while the version before is pending is a copy.
            passes: size.saturating_mul(2 * u64::from(files)),
            remedy: "ask for less with --size or --jobs",
        },
    };
    measure(&args.common, plan, move |session| {
        session.mount()?;
        session.mount_paused()?;
        session.each(|session, place, _| one(session, place, &cases, size, time))
    })
}

fn one(session: &mut Session, place: &Place, cases: &[BlockCase], size: u64, time: Duration) -> Result<(), Failure> {
    if let PlaceKind::Paused(mount) = &place.kind {
        command(mount, "pause", &session.stop())?;
    }
    for case in cases {
        session.stop().check()?;
        let BlockFigures { rate, p50, p99, p999 } = ask_fio(case, place, size, time)?;
        session.add(&place.name, &case.name(""), Unit::Bytes, rate);
        for (figure, time) in [("p50", p50), ("p99", p99), ("p99.9", p999)] {
            session.add(&place.name, &case.name(figure), Unit::Microseconds, time);
        }
    }
    if let PlaceKind::Paused(mount) = &place.kind {
        command(mount, "resume", &session.stop())?;
    }
    session.clear(place)
}

const FIO: &str = "fio";

fn see_fio() -> Result<(), Failure> {
    match Command::new(FIO).arg("--version").stdout(Stdio::null()).status() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(usage("fio is not installed", "install the package fio, or measure with bench files"))
        }
        started => started.at("start", FIO).map(drop).map_err(Failure::from),
    }
}

fn ask_fio(case: &BlockCase, place: &Place, size: u64, time: Duration) -> Result<BlockFigures, Failure> {
    let output = Command::new(FIO).args(case.arguments(&place.dir, size, time)).stdin(Stdio::null()).output();
    let output = output.at("start", FIO)?;
    let failed = |why: &str| {
        let said = String::from_utf8_lossy(&output.stderr);
        let what = format!("fio, {} in {}: {why}\n{}", case.name(""), place.dir.display(), said.trim_end());
        Failure::new(Exit::Failure, what.trim_end())
    };
    if !output.status.success() {
        return Err(failed(&output.status.to_string()));
    }
    case.figures(&output.stdout).map_err(|why| failed(&why))
}
