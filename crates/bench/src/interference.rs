//! `dlio-fs-bench interference`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use dlio_fs::cli::client;
use dlio_fs::cli::outcome::{Failure, Outcome};
use dlio_fs::cli::sandbox::Mount;
use dlio_fs::error::Context;
use dlio_fs::path::Show as _;
use dlio_fs::stats::render::count;

use super::asked::{Common, parse_compute, parse_size, size_text, usage};
use super::measure::measure;
use super::plan::{BenchPlan, Room, SMALL};
use super::session::{Place, PlaceKind, Session, command};
use crate::loads::checkpoint::{PIECE, saved};
use crate::loads::data::{Data, clear};
use crate::loads::results::Unit;
use crate::loads::train::{LoopTimes, ProcessorWork, TrainingLoop};
use crate::loads::{reader, sequential};

/// Below a place: the data set, and what is saved.
const DATA: &str = "data";
const SAVED: &str = "saved";

/// Train while checkpoints are saved and drained: how many steps a second are left
///
/// In each step of a loop one processor computes on a batch of files, which 4 threads read ahead, with the caches cold. The
/// loop runs with nothing beside it; with saves for which it waits; with the same saves by a thread beside it; and, in the
/// mount, while checkpoints that were saved before are drained at full speed. A slowdown is of the steps in the same time,
/// with nothing beside them, in the same place and run. The data set is on the slow tier when the mount is made.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench interference --fast /optane --slow /hdd
  dlio-fs-bench interference --fast /nvme --slow /shared --size 2GB \\
      --backlog 40GB --runs 6 --output interference.html")]
pub(super) struct InterferenceArgs {
    #[command(flatten)]
    common: Common,
    /// How many steps
    #[arg(long, value_name = "N", default_value = "40", value_parser = clap::value_parser!(u32).range(2..=100_000))]
    steps: u32,
    /// How many files of 112 KiB are read for a step
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=1000))]
    batch: u32,
    /// How long a step computes
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_compute)]
    compute: Duration,
    /// A checkpoint is saved each time that so many steps are done
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    every: u32,
    /// Size of one checkpoint
    #[arg(long, value_name = "SIZE", default_value = "100MB", value_parser = parse_size)]
    size: u64,
    /// How much is saved before, to be drained while the loop runs; more than is drained meanwhile
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = parse_size)]
    backlog: u64,
}

pub(super) fn run(args: &InterferenceArgs) -> Outcome {
    let [steps, batch, every] = [args.steps, args.batch, args.every].map(|n| n as usize);
    if every >= steps {
        let what = format!("{steps} steps end before a checkpoint is saved after {every}");
        return Err(usage(what, "lower --every, or raise --steps"));
    }
    let load = TrainingLoop { steps, batch, compute: args.compute, every, size: args.size };
    let backlog = args.backlog.div_ceil(args.size) as usize;
    let most = load.saves().max(backlog) as u64;
    let plan = BenchPlan {
        name: "interference",
        runs: args.common.runs(3),
        settings: vec![
            ("steps", steps.to_string()),
            ("batch", format!("{batch} of {}", size_text(SMALL as u64))),
            ("compute", humantime::format_duration(args.compute).to_string()),
            ("saves", format!("{} of {}", load.saves(), size_text(args.size))),
            ("saved before a drain", format!("{backlog} of {}", size_text(args.size))),
        ],
        caches: args.common.cold()?,
        // The data set of each place.
        steps: args.common.places(),
        room: Room {
            stays: (load.files() * SMALL) as u64,
            beneath: 0,
            passes: args.size.saturating_mul(most),
            remedy: "ask for less with --size, --backlog, --steps or --batch",
        },
    };
    measure(&args.common, plan, move |session| {
        let mut job = TrainingJob::prepare(session, load, backlog)?;
        session.each(|session, place, run| job.one(session, place, run))?;
        if job.cut_short > 0 {
            session.add_setting("drained before the loop had ended", count(job.cut_short as u64, "time"));
        }
        Ok(())
    })
}

/// What all places and runs share.
struct TrainingJob {
    load: TrainingLoop,
    /// Checkpoints that are saved before a drain.
    backlog: usize,
    work: ProcessorWork,
    data: Data,
    /// Below each place.
    files: Vec<PathBuf>,
    /// How often there was nothing left to drain.
    cut_short: usize,
}

impl TrainingJob {
    /// Writes the data set to each place, and mounts.
    fn prepare(session: &mut Session, load: TrainingLoop, backlog: usize) -> Result<TrainingJob, Failure> {
        let (mut data, stop) = (Data::new(PIECE), session.stop());
        let work = ProcessorWork::calibrated(load.compute, &stop)?;
        let mut files = Vec::new();
        for place in session.places.clone() {
            session.step(&format!("writing a data set: {}", place.name))?;
            let dir = place.beneath().join(DATA);
            fs::create_dir(&dir).at("mkdir", dir.shown())?;
            let written = sequential::write_small(&dir, load.files(), SMALL, &mut data, &stop)?;
            let below = written.iter().filter_map(|path| path.strip_prefix(place.beneath()).ok());
            files = below.map(PathBuf::from).collect();
        }
        session.write_back()?;
        session.mount()?;
        Ok(TrainingJob { load, backlog, work, data, files, cut_short: 0 })
    }

    fn one(&mut self, session: &mut Session, place: &Place, run: usize) -> Result<(), Failure> {
        let (load, stop, saves) = (self.load, session.stop(), place.dir.join(SAVED));
        let files: Vec<_> = self.files.iter().map(|path| place.dir.join(path)).collect();
        // A different order in each run, the same for all places of a run.
        let order = reader::shuffled(&files, run as u64);
        fs::create_dir(&saves).at("mkdir", saves.shown())?;
        session.settle(place)?;
        session.cool()?;
        let alone = load.run(&order, &self.work, &stop, || true)?;
        session.cool()?;
        let waits = load.run_and_save(&order, &self.work, &saves, &mut self.data, &stop)?;
        clear(&saves)?;
        session.settle(place)?;
        session.cool()?;
        let beside = load.run_and_save_beside(&order, &self.work, &saves, &mut self.data, &stop)?;
        clear(&saves)?;
        session.settle(place)?;
        let drained = match &place.kind {
            PlaceKind::Mount(mount) => Some(self.while_draining(session, place, mount, &order)?),
            _ => None,
        };
        self.add(session, place, alone, [waits, beside], drained);
        fs::remove_dir_all(&saves).at("remove", saves.shown())?;
        session.settle(place)
    }

    /// Saves checkpoints while the drain is paused, and trains while they are drained. Also returns how many bytes a
    /// second were drained.
    fn while_draining(
        &mut self,
        session: &Session,
        place: &Place,
        mount: &Mount,
        order: &[PathBuf],
    ) -> Result<(LoopTimes, f64), Failure> {
        let stop = session.stop();
        command(mount, "pause", &stop)?;
        self.load.checkpoints(self.backlog).write(&place.dir.join(SAVED), &mut self.data, &stop, |_| {})?;
        session.cool()?;
        let left = || Ok::<_, Failure>(client::status(&mount.mountpoint)?.pipeline.bytes_to_copy);
        let before = left()?;
        // Versions are published in order. The slow tier itself is looked at: a question to the daemon would disturb.
        let last = saved(&mount.slow.join(SAVED), self.backlog);
        command(mount, "resume", &stop)?;
        let times = self.load.run(order, &self.work, &stop, || !last.exists())?;
        let drained = before.saturating_sub(left()?);
        self.cut_short += usize::from(times.steps < self.load.steps);
        Ok((times, drained as f64 / times.seconds))
    }

    fn add(
        &self,
        session: &mut Session,
        place: &Place,
        alone: LoopTimes,
        [waits, beside]: [LoopTimes; 2],
        drained: Option<(LoopTimes, f64)>,
    ) {
        let mut add = |case: String, unit, figure| session.add(&place.name, &case, unit, figure);
        let drain = drained.map(|(times, _)| times);
        let cases = [
            ("nothing beside it", Some(alone)),
            ("waits for saves", Some(waits)),
            ("saves beside it", Some(beside)),
            ("a drain beside it", drain),
        ];
        let cases: Vec<_> = cases.into_iter().filter_map(|(name, times)| Some((name, times?))).collect();
        for (name, times) in &cases {
            add(format!("training loop, {name}"), Unit::Steps, times.rate());
        }
        for (name, times) in &cases[1..] {
            add(format!("slowdown, {name}"), Unit::Slowdown, alone.slowdown(times.rate()));
        }
        let between = alone.slowdown(waits.rate_between_saves());
        add("slowdown, between the waits for saves".to_owned(), Unit::Slowdown, between);
        for (name, times) in &cases {
            add(format!("wait for a batch, {name}"), Unit::Microseconds, times.wait_for_batch() * 1e6);
        }
        let [waits, beside] = [waits, beside].map(|times| times.blocked / self.load.saves() as f64);
        add("wait for a save, synchronous".to_owned(), Unit::Seconds, waits);
        add("wait for a save, beside the loop".to_owned(), Unit::Microseconds, beside * 1e6);
        if let Some((_, rate)) = drained {
            add("drained meanwhile".to_owned(), Unit::Bytes, rate);
        }
    }
}
