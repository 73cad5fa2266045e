//! `dlio-fs-bench ingest`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dlio_fs::cli::outcome::{Failure, Outcome};
use dlio_fs::stats::render::{bytes, count};

use super::asked::{Common, parse_compute, parse_size, size_text, usage};
use super::data_set;
use super::measure::measure;
use super::plan::{BenchPlan, Room};
use super::session::{Place, Session};
use crate::loads::pictures::Pictures;
use crate::loads::reader::{self, Load, Pace};
use crate::loads::results::Unit;

/// Read a data set of pictures as a training job does: with several threads, decoded, in batches while steps compute
///
/// The pictures are on the slow tier when the mount is made. The mount is measured with them there, and with a second
/// copy that was staged. Each measurement reads every file once, in random order, with cold caches.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench ingest --fast /optane --slow /hdd
  dlio-fs-bench ingest --fast /optane --slow /hdd --files 4096 --threads 1,8 \\
      --only read --output ingest.html")]
pub(super) struct IngestArgs {
    #[command(flatten)]
    common: Common,
    /// How many pictures
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    files: u32,
    /// Median size of a picture; half of the sizes differ from it by more than 15 %, none by more than 30 %
    #[arg(long, value_name = "SIZE", default_value = "112KiB", value_parser = parse_file_size)]
    file_size: u64,
    /// Numbers of reading threads to measure
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Measure only reading, reading and decoding, or steps with and without prefetch (with the largest number of
    /// threads)
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_enum)]
    only: Vec<IngestStep>,
    /// Pictures per step
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// How long a step computes
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = parse_compute)]
    compute: Duration,
    /// Batches to prepare while a step computes
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    prefetch: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IngestStep {
    /// Read only
    Read,
    /// Read, decode and resize to 224 x 224
    Decode,
    /// Steps of decoded batches, without and with prefetch
    Prefetch,
}

/// A case and its work.
type IngestCase = (String, Load);

pub(super) fn run(args: &IngestArgs) -> Outcome {
    let (files, cases) = (args.files as usize, cases(args)?);
    let parts = args.wants(IngestStep::Prefetch);
    if parts && args.batch > args.files {
        let what = format!("{} files are fewer than a batch of {}", args.files, args.batch);
        return Err(usage(what, "raise --files, lower --batch, or leave the steps out with --only read,decode"));
    }
    let mut settings = vec![("pictures", files.to_string()), ("size", size_text(args.file_size))];
    if parts {
        let compute = humantime::format_duration(args.compute);
        settings.extend([("batch", args.batch.to_string()), ("compute", compute.to_string())]);
    }
    let (runs, mounts) = (args.common.runs(5), args.common.io.len());
    let caches = args.common.cold()?;
    // Drawing, writing for each place, staging; and one more place for each mount.
    let steps = 1 + args.common.places() + mounts * (1 + runs);
    let (size, all) = (args.file_size as usize, args.file_size.saturating_mul(files as u64));
    // For a mount the slow tier has it twice: staged, and not.
    let room = Room { stays: 2 * all, beneath: 0, passes: 0, remedy: "ask for less with --files or --file-size" };
    let plan = BenchPlan { name: "ingest", runs, settings, caches, steps, room };
    measure(&args.common, plan, move |session| {
        session.step("drawing pictures")?;
        let (pictures, stop) = (Pictures::draw(files, size, &session.stop())?, session.stop());
        session.add_setting("data set", bytes(pictures.bytes(files)));
        let what = count(files as u64, "picture");
        let paths = data_set::prepare(session, &what, |dir| pictures.write(dir, files, &stop))?;
        session.each(|session, place, run| one(session, place, &cases, &paths, run))
    })
}

impl IngestArgs {
    fn wants(&self, part: IngestStep) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

fn cases(args: &IngestArgs) -> Result<Vec<IngestCase>, Failure> {
    let mut threads: Vec<usize> = args.threads.iter().map(|threads| usize::from(*threads)).collect();
    threads.sort_unstable();
    if threads.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(usage("--threads names a number twice", "name each once"));
    }
    let most = threads.last().copied().unwrap_or(1);
    let mut cases = Vec::new();
    for (part, word, decode) in [(IngestStep::Read, "read", false), (IngestStep::Decode, "read and decode", true)] {
        let of = |threads: &usize| {
            (
                format!("{word}, {}", count(*threads as u64, "thread")),
                Load { threads: *threads, decode, pace: Pace::Free },
            )
        };
        cases.extend(threads.iter().filter(|_| args.wants(part)).map(of));
    }
    let step = |ahead: u32| {
        let name = match ahead {
            0 => "step, no prefetch".to_owned(),
            1 => "step, 1 batch ahead".to_owned(),
            n => format!("step, {n} batches ahead"),
        };
        let pace = Pace::Steps { batch: args.batch as usize, compute: args.compute, ahead: ahead as usize };
        (name, Load { threads: most, decode: true, pace })
    };
    cases.extend([0, args.prefetch].into_iter().filter(|_| args.wants(IngestStep::Prefetch)).map(step));
    Ok(cases)
}

fn one(
    session: &mut Session,
    place: &Place,
    cases: &[IngestCase],
    paths: &[PathBuf],
    run: usize,
) -> Result<(), Failure> {
    let paths: Vec<_> = paths.iter().map(|path| place.dir.join(path)).collect();
    // A different order in each run, the same for all places of a run.
    let order = reader::shuffled(&paths, run as u64);
    for (case, load) in cases {
        session.cool()?;
        let pass = reader::pass(&order, *load, &session.stop())?;
        match load.pace {
            Pace::Free => session.add(&place.name, case, Unit::Files, order.len() as f64 / pass.seconds),
            Pace::Steps { .. } => session.add(&place.name, case, Unit::Seconds, pass.seconds / pass.steps as f64),
        }
    }
    Ok(())
}

fn parse_file_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size @ 2_048..=67_108_864 => Ok(size),
        _ => Err("a picture has 2 KiB to 64 MiB".to_owned()),
    }
}
