//! `dlio-fs-bench ranks`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use dlio_fs::cli::client;
use dlio_fs::cli::duration::parse_duration;
use dlio_fs::cli::outcome::{Failure, Outcome};
use dlio_fs::cli::sandbox::Mount;

use super::asked::{Common, parse_size, size_text};
use super::daemon_cost::{DaemonCost, ProcessorTime};
use super::measure::measure;
use super::plan::{BenchPlan, Room};
use super::session::{Place, PlaceKind, Session};
use crate::loads::data::Data;
use crate::loads::rank_processes::{RankProcesses, Saver};
use crate::loads::ranks::{MARKER, PIECE, RankSet, RanksLoad, SaveTimes, marker};
use crate::loads::results::Unit;

/// How often the slow tier is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Save and load checkpoints by several ranks at once: how long they wait, when all is safe, and what the daemon takes
///
/// Each rank writes its shard and fsyncs it; when all have, a marker is written. Then all shards are read, with the
/// caches cold; PyTorch's are compared with what was saved. The sizes are those of an eighth of a Llama 3 model of 60 million parameters with its optimizer (14
/// bytes a parameter): the shape that DLIO and MLPerf Storage save, made smaller. It is no MLPerf Storage result.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench ranks --fast /optane --slow /hdd
  dlio-fs-bench ranks --fast /optane --slow /hdd --save dcp \\
      --python ~/venv/bin/python
  dlio-fs-bench ranks --fast /optane --slow /hdd --interval 30s --count 3
  dlio-fs-bench ranks --fast /optane --slow /hdd --ranks 16 --shard 1GB \\
      --runs 6 --output ranks.html")]
pub(super) struct RanksArgs {
    #[command(flatten)]
    common: Common,
    /// How many ranks save at once
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
    /// How many checkpoints
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Size of one rank's shard
    #[arg(long, value_name = "SIZE", default_value = "105MB", value_parser = parse_size)]
    shard: u64,
    /// How long the job computes between two of them
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    interval: Duration,
    /// What saves and loads a shard
    #[arg(long, value_name = "SAVER", value_enum, default_value = "bytes")]
    save: Saver,
    /// The Python that has PyTorch, for --save torch and dcp
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
}

pub(super) fn run(args: &RanksArgs) -> Outcome {
    let load = RanksLoad {
        ranks: args.ranks as usize,
        count: args.count as usize,
        shard: args.shard,
        interval: args.interval,
    };
    let plan = BenchPlan {
        name: "ranks",
        runs: args.common.runs(3),
        settings: vec![
            ("ranks", load.ranks.to_string()),
            ("checkpoints", load.count.to_string()),
            ("shard", size_text(load.shard)),
            ("interval", humantime::format_duration(load.interval).to_string()),
            ("saved with", args.save.name().to_owned()),
        ],
        caches: args.common.cold()?,
        steps: 0,
        room: Room {
            stays: 0,
            beneath: 0,
            passes: load.bytes(),
            remedy: "ask for less with --shard, --ranks or --count",
        },
    };
    let (saver, python) = (args.save, args.python.clone());
    measure(&args.common, plan, move |session| {
        session.mount()?;
        let mut ranks = match saver {
            Saver::Bytes => RankSet::Threads((0..load.ranks).map(|_| Data::new(PIECE)).collect()),
            Saver::Torch | Saver::Dcp => {
                let meeting = session.fast().join("ranks");
                RankSet::Processes(RankProcesses::start(&python, saver, load.ranks, load.shard, &meeting)?)
            }
        };
        session.each(|session, place, _| one(session, place, load, &mut ranks))
    })
}

fn one(session: &mut Session, place: &Place, load: RanksLoad, ranks: &mut RankSet) -> Result<(), Failure> {
    session.cool()?;
    let daemon = place.mount().map(DaemonCost::begin).transpose()?;
    let (begun, stop, own) = (Instant::now(), session.stop(), time_of(ranks)?);
    let times = load.save(&place.dir, ranks, &stop)?;
    session.add(&place.name, "save, slowest rank", Unit::Bytes, load.bytes() as f64 / times.blocked);
    let taken = own.seconds()? + daemon.as_ref().map_or(Ok(0.0), DaemonCost::seconds)?;
    session.add(&place.name, "processor time, per GiB saved", Unit::Seconds, load.per_gib(taken));
    if let PlaceKind::Mount(mount) = &place.kind {
        work_at_risk(session, place, mount, &times)?;
        until_safe(session, place, mount, load, begun)?;
    }
    if matches!(place.kind, PlaceKind::Slow) {
        session.add(&place.name, "until all is on the slow tier", Unit::Seconds, begun.elapsed().as_secs_f64());
    }
    if let Some(daemon) = daemon {
        // Absorbed and drained once each.
        let each = load.per_gib(daemon.seconds()?);
        session.add(&place.name, "the daemon's processor time, per GiB saved and drained", Unit::Seconds, each);
        session.add(&place.name, "the daemon's memory, at most", Unit::Size, daemon.peak()? as f64);
    }
    session.cool()?;
    let took = load.load(&place.dir, ranks, &stop)?;
    session.add(&place.name, "load, slowest rank", Unit::Bytes, load.bytes() as f64 / took);
    session.clear(place)
}

/// Compares what the mount tells with what a job would lose that went on from the slow tier now, if it has one of the checkpoints.
fn work_at_risk(session: &mut Session, place: &Place, mount: &Mount, times: &SaveTimes) -> Result<(), Failure> {
    let pace = client::pace(&mount.mountpoint)?;
    let on_slow = |number: &usize| says(&mount.slow.join(MARKER), &marker(*number));
    let Some(newest) = (1..=times.began.len()).find(on_slow) else { return Ok(()) };
    let lost = times.began[newest - 1].elapsed().as_secs_f64();
    session.add(&place.name, "training that would be lost after the save", Unit::Seconds, lost);
    session.add(&place.name, "that loss as the mount told it", Unit::Seconds, pace.work_at_risk.as_secs_f64());
    Ok(())
}

/// Waits until the slow tier has the last marker, which is when another machine can read the checkpoint, and until the
/// mount is safe.
fn until_safe(
    session: &mut Session,
    place: &Place,
    mount: &Mount,
    load: RanksLoad,
    begun: Instant,
) -> Result<(), Failure> {
    let saved = Instant::now();
    let (told, pace) = (client::status(&mount.mountpoint)?.safety.eta, client::pace(&mount.mountpoint)?);
    let (path, wanted) = (mount.slow.join(MARKER), marker(load.count));
    while !says(&path, &wanted) {
        if let Some(why) = client::status(&mount.mountpoint)?.safety.held {
            let what = format!("the mount does not drain: {why}");
            return Err(Failure::new(dlio_fs::cli::outcome::Exit::Failure, what));
        }
        session.stop().check()?;
        std::thread::sleep(LOOK);
    }
    let readable = saved.elapsed().as_secs_f64();
    session.add(&place.name, "readable on the slow tier after the save", Unit::Seconds, readable);
    if let Some(told) = told {
        session.add(&place.name, "the same as the mount told it", Unit::Seconds, told.as_secs_f64());
    }
    session.watch_until_safe(mount)?;
    let all = begun.elapsed().as_secs_f64();
    session.add(&place.name, "until all is on the slow tier", Unit::Seconds, all);
    // With training in between the time is not the slow tier's alone.
    if load.interval.is_zero() {
        session.add(&place.name, "interval that the slow tier sustains", Unit::Seconds, all / load.count as f64);
    }
    if let Some(told) = pace.shortest_interval {
        session.add(&place.name, "that interval as the mount told it", Unit::Seconds, told.as_secs_f64());
    }
    Ok(())
}

fn says(path: &Path, wanted: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text == wanted)
}

/// Of all ranks: threads are those of this process.
fn time_of(ranks: &RankSet) -> dlio_fs::error::Result<ProcessorTime> {
    match ranks {
        RankSet::Threads(_) => ProcessorTime::begin([std::process::id()]),
        RankSet::Processes(processes) => ProcessorTime::begin(processes.pids()),
    }
}
