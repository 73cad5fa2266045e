//! `dlio-fs-bench drain`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use dlio_fs::cli::outcome::{Exit, Failure, Outcome};
use dlio_fs::cli::sandbox::Mount;
use dlio_fs::error::Context;
use dlio_fs::path::Show as _;
use dlio_fs::stats::render::count;

use super::asked::{COPY_STREAMS, Common, parse_size, size_text};
use super::measure::measure;
use super::plan::{BenchPlan, Room};
use super::session::{Place, PlaceKind, Session, command};
use crate::loads::caches::write_back;
use crate::loads::copies::CopySource;
use crate::loads::data::{Data, clear};
use crate::loads::files::{CREATED, Creator};
use crate::loads::results::Unit;

/// Files that are created between two looks whether the drain is copying.
const LEAD_IN: usize = 50;
/// How long the drain may take to begin: longer than any sensible `settle`.
const BEGIN_WAIT: Duration = Duration::from_secs(120);

/// Measure the drain: what it costs those who write meanwhile, and how soon small and large files are on the slow tier
///
/// Files are created while the drain copies others that were created just before, and in a second mount whose drain is
/// paused. A directory of small files is copied into the mount and waited for, as with `dlio-fs sync`; beside it `cp -a`
/// copies the same directory from the fast to the slow tier, alone or eight at a time, followed by a sync. So do eight
/// copies of one large file.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench drain --fast /optane --slow /hdd
  dlio-fs-bench drain --fast /optane --slow /hdd --files 20000 --runs 9 \\
      --output drain.html")]
pub(super) struct DrainBenchArgs {
    #[command(flatten)]
    common: Common,
    /// How many files of 4 KiB are created while the time is taken
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    entries: u32,
    /// How many small files, of 4 KiB each, are copied
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    files: u32,
    /// Size of the large file of which eight copies are made
    #[arg(long, value_name = "SIZE", default_value = "256MB", value_parser = parse_size)]
    size: u64,
}

#[derive(Clone, Copy)]
struct DrainLoad {
    entries: usize,
    files: usize,
    large: u64,
}

impl DrainLoad {
    fn large(self) -> u64 {
        self.large.saturating_mul(COPY_STREAMS as u64)
    }
}

/// What is copied, from the fast tier.
struct CopySources {
    small: CopySource,
    large: CopySource,
}

pub(super) fn run(args: &DrainBenchArgs) -> Outcome {
    let load = DrainLoad { entries: args.entries as usize, files: args.files as usize, large: args.size };
    let (runs, small) = (args.common.runs(5), (load.files * CREATED) as u64);
    // Those created before the time is taken are as many again, or as many as until the drain begins.
    let created = (2 * load.entries * CREATED) as u64;
    let plan = BenchPlan {
        name: "drain",
        runs,
        settings: vec![
            ("created", count(load.entries as u64, "file")),
            ("small files", format!("{} of {}", load.files, size_text(CREATED as u64))),
            ("large files", format!("{COPY_STREAMS} of {}", size_text(load.large))),
        ],
        caches: args.common.hot()?,
        // Making what is copied; and a paused mount for each other one, `cp`, and eight of it.
        steps: 1 + runs * (args.common.io.len() + 2),
        room: Room {
            stays: small + load.large,
            beneath: 0,
            passes: load.large().max(small).max(created),
            remedy: "ask for less with --size, --files or --entries",
        },
    };
    measure(&args.common, plan, move |session| {
        session.step("making files to copy")?;
        let (mut data, stop) = (CopySource::data(), session.stop());
        let top = session.fast().to_owned();
        let sources = CopySources {
            small: CopySource::make(top.join("small"), load.files, CREATED as u64, &mut data, &stop)?,
            large: CopySource::make(top.join("large"), 1, load.large, &mut data, &stop)?,
        };
        session.mount()?;
        session.mount_paused()?;
        session.add_copies(&[1, COPY_STREAMS])?;
        session.write_back()?;
        session.each(|session, place, _| one(session, place, load, &sources, &mut data))
    })
}

fn one(
    session: &mut Session,
    place: &Place,
    load: DrainLoad,
    sources: &CopySources,
    data: &mut Data,
) -> Result<(), Failure> {
    if let PlaceKind::Paused(mount) = &place.kind {
        command(mount, "pause", &session.stop())?;
    }
    if !matches!(place.kind, PlaceKind::Copies(_)) {
        let each = create(session, place, load.entries, data)?;
        session.add(&place.name, "create and write 4 KiB", Unit::Microseconds, each * 1e6);
        clear(&place.dir)?;
    }
    if let PlaceKind::Paused(mount) = &place.kind {
        command(mount, "resume", &session.stop())?;
    }
    session.settle(place)?;
    let (small, large) = (place.dir.join("small"), place.dir.join("large"));
    if matches!(place.kind, PlaceKind::Mount(_) | PlaceKind::Copies(_)) {
        let seconds = until_slow(session, place, || match place.kind {
            PlaceKind::Copies(streams) if streams > 1 => sources.small.copy_shared(&small, streams),
            _ => sources.small.copy(&small),
        })?;
        session.add(&place.name, "small files, until all are slow", Unit::Files, load.files as f64 / seconds);
        session.clear(place)?;
    }
    if matches!(place.kind, PlaceKind::Mount(_) | PlaceKind::Copies(COPY_STREAMS)) {
        let seconds = until_slow(session, place, || sources.large.multiply(&large, COPY_STREAMS))?;
        session.add(&place.name, "large files, until all are slow", Unit::Bytes, load.large() as f64 / seconds);
        session.clear(place)?;
    }
    Ok(())
}

/// Seconds for each file. Others are created first: where a drain is to run, until it copies these.
fn create(session: &Session, place: &Place, entries: usize, data: &mut Data) -> Result<f64, Failure> {
    let (mut files, stop) = (Creator::new(place.dir.join("new")), session.stop());
    match &place.kind {
        PlaceKind::Mount(mount) => {
            let first = on_slow_tier(mount, &files.path(0))?;
            let begun = Instant::now();
            while !first.exists() {
                if begun.elapsed() > BEGIN_WAIT {
                    let waited = humantime::format_duration(BEGIN_WAIT);
                    let what = format!("the drain has copied nothing within {waited}: see -o settle");
                    return Err(Failure::new(Exit::Failure, what));
                }
                files.create(LEAD_IN, data, &stop)?;
            }
        }
        _ => drop(files.create(entries, data, &stop)?),
    }
    Ok(files.create(entries, data, &stop)?)
}

/// Where the slow tier has what the mount shows at `path`.
fn on_slow_tier(mount: &Mount, path: &Path) -> Result<PathBuf, Failure> {
    let below = path.strip_prefix(&mount.mountpoint).map_err(std::io::Error::other).at("find", path.shown())?;
    Ok(mount.slow.join(below))
}

/// Seconds for `copy`, and until what it has written is durable on the slow tier.
fn until_slow(
    session: &Session,
    place: &Place,
    copy: impl FnOnce() -> dlio_fs::error::Result<()>,
) -> Result<f64, Failure> {
    let begun = Instant::now();
    copy()?;
    match place.mount() {
        Some(mount) => drop(command(mount, "sync", &session.stop())?),
        None => write_back(&place.dir)?,
    }
    let seconds = begun.elapsed().as_secs_f64();
    session.stop().check()?;
    Ok(seconds)
}
