//! `dlio-fs-bench blocks`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use clap::Args;
use dlio_fs::cli::duration::parse_duration;
use dlio_fs::cli::outcome::{Exit, Failure, Outcome};
use dlio_fs::error::Context;
use dlio_fs::path::Show as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::asked::{Common, parse_size, size_text, usage};
use super::daemon_cost::DaemonCost;
use super::measure::measure;
use super::plan::{BenchPlan, Room};
use super::session::{Place, PlaceKind, Session, command};
use crate::loads::blocks::{BlockCase, BlockFigures, Engine};
use crate::loads::data::{Data, sync_dir};
use crate::loads::results::Unit;
use crate::loads::{StopFlag, caches, sequential};

/// Of the writes that make the files, and of the reads that bring them into the page cache.
const PIECE: usize = 1 << 20;
/// fio's unit.
const TIME_MIN: Duration = Duration::from_millis(1);

/// Read and write blocks at random places with fio: how many bytes a second, and how long one takes
///
/// Each job has a file, made beforehand: psync through the page cache and past it, libaio and io_uring past it. Reported are the rate,
/// the median, p99 (from 100 blocks on) and p99.9 (from 1,000), and for a mount its daemon's processor time until what was written is
/// durable.
/// Writes through the mount are measured while its drain runs, and in a second mount whose drain is paused. The slow tier is not
/// measured: blocks of a mount are on the fast one. Direct I/O passes only the page cache of the mount: the daemon does not open files
/// with O_DIRECT, so with `exact` the page cache of the fast tier answers. Needs fio.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench blocks --fast /optane --slow /hdd
  dlio-fs-bench blocks --fast /optane --slow /hdd --engines io_uring \\
      --blocks 4KiB --jobs 16 --time 10s --runs 6")]
pub(super) struct BlocksArgs {
    #[command(flatten)]
    common: Common,
    /// fio's I/O engines to measure
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
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    time: Duration,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        time if time >= TIME_MIN => Ok(time),
        _ => Err("fio counts in milliseconds; write 1ms or more".to_owned()),
    }
}

/// What is measured in each place.
struct BlocksLoad {
    cases: Vec<BlockCase>,
    /// As many as jobs at most.
    files: u32,
    size: u64,
    time: Duration,
}

pub(super) fn run(args: &BlocksArgs) -> Outcome {
    see_fio()?;
    let load = BlocksLoad {
        cases: BlockCase::all(&args.engines, &args.blocks, &args.jobs),
        files: args.jobs.iter().max().copied().unwrap_or(1),
        size: args.size,
        time: args.time,
    };
    let runs = args.common.runs(3);
    let plan = BenchPlan {
        name: "blocks",
        runs,
        settings: vec![
            ("files", format!("{} of {}", load.files, size_text(load.size))),
            ("each case", humantime::format_duration(load.time).to_string()),
        ],
        caches: args.common.hot()?,
        // A paused mount for each other one, and no slow tier.
        steps: runs * args.common.io.len() - runs,
        room: Room {
            stays: 0,
            // What is written again while the version before is copied is there twice.
            beneath: 0,
            passes: load.size.saturating_mul(2 * u64::from(load.files)),
            remedy: "ask for less with --size or --jobs",
        },
    };
    measure(&args.common, plan, move |session| {
        let mut data = Data::new(PIECE);
        session.mount()?;
        session.mount_paused()?;
        session.places.retain(|place| !matches!(place.kind, PlaceKind::Slow));
        session.each(|session, place, _| one(session, place, &load, &mut data))
    })
}

fn one(session: &mut Session, place: &Place, load: &BlocksLoad, data: &mut Data) -> Result<(), Failure> {
    let paused = if let PlaceKind::Paused(mount) = &place.kind { Some(mount) } else { None };
    if let Some(mount) = paused {
        command(mount, "pause", &session.stop())?;
    }
    for job in 0..load.files {
        sequential::write(&BlockCase::file(&place.dir, job), load.size, PIECE, false, data, &session.stop())?;
    }
    make_durable(session, place)?;
    let mut rows = Vec::new();
    // A read is none of the drain's business.
    for case in load.cases.iter().filter(|case| case.writes || paused.is_none()) {
        for (at, (figure, unit, value)) in one_case(session, place, case, load)?.into_iter().enumerate() {
            rows.push(((case.block, !case.writes, at), case.name(figure), unit, value));
        }
    }
    // One figure of blocks of one size, whichever way they are written or read, is one picture.
    rows.sort_by_key(|(order, ..)| *order);
    for (_, name, unit, value) in rows {
        session.add(&place.name, &name, unit, value);
    }
    if let Some(mount) = paused {
        command(mount, "resume", &session.stop())?;
    }
    session.clear(place)
}

/// What is told of a case: the name of a figure, which is empty for the first, and the figure.
type ToldOfBlocks = Vec<(&'static str, Unit, f64)>;

/// Measures one case; nothing is told of it where direct I/O is refused.
fn one_case(session: &Session, place: &Place, case: &BlockCase, load: &BlocksLoad) -> Result<ToldOfBlocks, Failure> {
    if !case.writes {
        before_reads(session, place, case)?;
    }
    session.stop().check()?;
    let daemon = place.mount().map(DaemonCost::begin).transpose()?;
    let Some(figures) = ask_fio(case, place, load, &session.stop())? else { return Ok(Vec::new()) };
    let BlockFigures { bytes, rate, p50, p99, p999 } = figures;
    if case.writes {
        make_durable(session, place)?;
    }
    let times = [("p50", Some(p50)), ("p99", p99), ("p99.9", p999)];
    let times = times.into_iter().filter_map(|(name, time)| Some((name, Unit::Microseconds, time?)));
    let mut told: ToldOfBlocks = [("", Unit::Bytes, rate)].into_iter().chain(times).collect();
    if let Some(daemon) = daemon {
        let each = daemon.seconds()? / (bytes as f64 / (1u64 << 30) as f64);
        told.push(("daemon's processor time per GiB", Unit::Seconds, each));
    }
    Ok(told)
}

/// So that reads begin alike in each place: nothing is drained or written back beside them, and what the page cache may answer is in it.
fn before_reads(session: &Session, place: &Place, case: &BlockCase) -> Result<(), Failure> {
    session.settle(place)?;
    let files = if case.direct { 0 } else { case.jobs };
    for job in 0..files {
        sequential::read(&BlockCase::file(&place.dir, job), PIECE, &session.stop())?;
    }
    Ok(())
}

/// So that no case pays for what the one before has written, and what the daemon does for it is in its own figure.
fn make_durable(session: &Session, place: &Place) -> Result<(), Failure> {
    if place.mount().is_some() {
        // All of a mount (P2).
        sync_dir(&place.dir)?;
    }
    [session.fast(), &place.dir].into_iter().try_for_each(caches::write_back).map_err(Failure::from)
}

const FIO: &str = "fio";
/// How often it is looked whether fio has ended or is to.
const LOOK: Duration = Duration::from_millis(5);

fn see_fio() -> Result<(), Failure> {
    match Command::new(FIO).arg("--version").stdout(Stdio::null()).status() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(usage("fio is not installed", "install the package fio, or measure with bench files"))
        }
        started => started.at("start", FIO).map(drop).map_err(Failure::from),
    }
}

/// None where direct I/O is refused.
fn ask_fio(
    case: &BlockCase,
    place: &Place,
    load: &BlocksLoad,
    stop: &StopFlag,
) -> Result<Option<BlockFigures>, Failure> {
    let output = run_fio(&case.arguments(&place.dir, load.size, load.time), stop)?;
    let failed = |why: &str| {
        let said = String::from_utf8_lossy(&output.stderr);
        let what = format!("fio, {} in {}: {why}\n{}", case.name(""), place.dir.shown(), said.trim_end());
        Failure::new(Exit::Failure, what.trim_end())
    };
    if !output.status.success() && case.is_refused(&output.stderr) {
        return Ok(None);
    }
    if !output.status.success() {
        return Err(failed(&output.status.to_string()));
    }
    case.figures(&output.stdout).map(Some).map_err(|why| failed(&why))
}

/// Errors: it could not be started, or was to stop.
fn run_fio(arguments: &[OsString], stop: &StopFlag) -> dlio_fs::error::Result<Output> {
    let file = || tempfile::tempfile().at("make a file in", std::env::temp_dir().shown());
    // Files, since a pipe that is not read while fio runs may fill up and hold it.
    let (said, complaint) = (file()?, file()?);
    let to = |file: &File| file.try_clone().map(Stdio::from).at("duplicate", "a file");
    let mut fio = Command::new(FIO);
    fio.args(arguments).stdin(Stdio::null()).stdout(to(&said)?).stderr(to(&complaint)?);
    // Ctrl-C is for this program, which ends it.
    let mut fio = fio.process_group(0).spawn().at("start", FIO)?;
    let status = loop {
        if let Some(status) = fio.try_wait().at("wait for", FIO)? {
            break status;
        }
        if stop.is_set() {
            // Asked to end, it ends its jobs, which are processes of their own; killed, it would leave them behind.
            kill(Pid::from_raw(fio.id().cast_signed()), Signal::SIGTERM).ok();
            fio.wait().at("wait for", FIO)?;
        }
        stop.check()?;
        std::thread::sleep(LOOK);
    };
    Ok(Output { status, stdout: content(said)?, stderr: content(complaint)? })
}

fn content(mut file: File) -> dlio_fs::error::Result<Vec<u8>> {
    let mut all = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut all)).at("read", "what fio said")?;
    Ok(all)
}
