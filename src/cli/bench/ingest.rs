//! `dlio-fs bench ingest`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::asked::{Common, parse_size, size_text, usage};
use super::measure::measure;
use super::plan::{BenchPlan, Room};
use super::session::{Place, Session, stage_all};
use crate::bench::pictures::Pictures;
use crate::bench::reader::{self, Load, Pace};
use crate::bench::results::Unit;
use crate::cli::duration::parse_duration;
use crate::cli::outcome::{Failure, Outcome};
use crate::error::Context;
use crate::stats::render::{bytes, count};

/// Longer than any step of training.
const COMPUTE_MAX: Duration = Duration::from_secs(60);
/// Directories in the mount: a copy of the data set that stays on the slow tier, and one that is staged.
const PLAIN: &str = "plain";
const STAGED: &str = "staged";

/// Read a data set of pictures as a training job does: with several threads, decoded, in batches while steps compute
///
/// The pictures are on the slow tier when the mount is made. The mount is measured with them there, and with a second
/// copy that was staged. Each measurement reads every file once, in random order, with cold caches.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs bench ingest --fast /optane --slow /hdd
  dlio-fs bench ingest --fast /optane --slow /hdd --files 4096 --threads 1,8 --only read --output ingest.html")]
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
    let room = Room { stays: 2 * all, passes: 0, remedy: "ask for less with --files or --file-size" };
    let plan = BenchPlan { name: "ingest", runs, settings, caches, steps, room };
    measure(&args.common, plan, move |session| {
        session.step("drawing pictures")?;
        let pictures = Pictures::draw(files, size, &session.stop())?;
        let paths = prepare(session, &pictures, files)?;
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

/// Writes the data set to each place, mounts, and stages a copy. Returns the paths of the pictures below each place.
fn prepare(session: &mut Session, pictures: &Pictures, files: usize) -> Result<Vec<PathBuf>, Failure> {
    let (all, stop) = (pictures.bytes(files), session.stop());
    session.add_setting("data set", bytes(all));
    let mut paths = Vec::new();
    // It is the first of all places.
    let slow = session.places[0].dir.clone();
    for place in session.places.clone() {
        session.step(&format!("writing {}: {}", count(files as u64, "picture"), place.name))?;
        let dir = match place.mount() {
            Some(mount) => {
                link_all(&slow, &mount.slow.join(PLAIN), &paths)?;
                mount.slow.join(STAGED)
            }
            None => place.dir.clone(),
        };
        paths = pictures.write(&dir, files, &stop)?;
    }
    session.write_back()?;
    session.mount()?;
    let mut places = Vec::new();
    for place in std::mem::take(&mut session.places) {
        let Some(mount) = place.mount() else {
            places.push(place);
            continue;
        };
        session.step(&format!("staging: {}", place.name))?;
        stage_all(mount, &format!("/{STAGED}"), &stop)?;
        let below = |name: String, dir: &str| Place { name, dir: place.dir.join(dir), kind: place.kind.clone() };
        places.push(below(place.name.clone(), PLAIN));
        places.push(below(format!("{} staged", place.name), STAGED));
    }
    session.places = places;
    Ok(paths)
}

/// Links the files to where a mount shows them. A copy would lie elsewhere on the disk, and its position there affects
/// how fast it is read.
fn link_all(from: &Path, to: &Path, paths: &[PathBuf]) -> Result<(), Failure> {
    for path in paths {
        let [from, to] = [from, to].map(|dir| dir.join(path));
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir).at("mkdir", dir.display())?;
        }
        // Not every file system has links.
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).at("copy", from.display())?;
    }
    Ok(())
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

fn parse_compute(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        time if time <= COMPUTE_MAX => Ok(time),
        _ => Err("a step computes for a minute at most".to_owned()),
    }
}
