//! `dlio-fs-bench files`.

use std::fs;
use std::path::Path;

use clap::Args;
use dlio_fs::cli::outcome::{Failure, Outcome};
use dlio_fs::error::Context;
use dlio_fs::path::Show as _;
use dlio_fs::stats::render::count;

use super::asked::{Common, parse_size, size_text};
use super::measure::measure;
use super::plan::{BenchPlan, Room, SMALL};
use super::session::{Place, Session};
use crate::loads::data::{Data, clear, numbered};
use crate::loads::results::Unit;
use crate::loads::{StopFlag, files, sequential};

/// Sizes of a read and of a write.
const BLOCKS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const THREADS: [usize; 2] = [1, 4];
/// The directory of files that are on the slow tier only.
const SLOW: &str = "slow";

/// Measure the cost of the mount itself, with everything in memory: reads and writes by block size, small files,
/// metadata, listings
///
/// Everything is read once before it is timed, so that no device slows it down: the difference to the fast tier is the
/// cost of the mount. The files to read were written through the mount, but for slow files, which are not staged; the
/// files to list were on the slow tier before.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench files --fast /optane --slow /hdd
  dlio-fs-bench files --fast /optane --slow /hdd \\
      --io exact,cached,passthrough --listing 100000")]
pub(super) struct FilesArgs {
    #[command(flatten)]
    common: Common,
    /// Size of the large file
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    size: u64,
    /// How many small files, of 112 KiB each
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// How many files are created, inspected, renamed and removed
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    entries: u32,
    /// How many files are listed, in a tree and in one directory
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    listing: u32,
}

#[derive(Clone, Copy)]
struct Sizes {
    large: u64,
    small: usize,
    entries: usize,
}

pub(super) fn run(args: &FilesArgs) -> Outcome {
    let [small, entries, listing] = [args.files, args.entries, args.listing].map(|n| n as usize);
    let sizes = Sizes { large: args.size, small, entries };
    let to_read_bytes = sizes.large + (small * SMALL) as u64;
    let plan = BenchPlan {
        name: "files",
        runs: args.common.runs(5),
        settings: vec![
            ("large file", size_text(sizes.large)),
            ("small files", format!("{small} of {}", size_text(SMALL as u64))),
            ("metadata", count(entries as u64, "file")),
            ("listing", count(listing as u64, "file")),
        ],
        caches: args.common.hot()?,
        // The files to list and to read, in each place.
        steps: 2 * args.common.places(),
        room: Room {
            stays: to_read_bytes,
            // The slow files.
            beneath: to_read_bytes,
            passes: sizes.large + (entries * files::CREATED) as u64,
            remedy: "ask for less with --size, --files or --entries",
        },
    };
    measure(&args.common, plan, move |session| {
        let (mut data, stop) = (Data::new(1 << 20), session.stop());
        for place in session.places.clone() {
            session.step(&format!("making files to list: {}", place.name))?;
            files::plant(&place.beneath().join("listed"), listing, &stop)?;
            if place.mount().is_some() {
                to_read(&place.beneath().join(SLOW), sizes, &mut data, &stop)?;
            }
        }
        session.mount()?;
        for place in session.places.clone() {
            session.step(&format!("writing files to read: {}", place.name))?;
            to_read(&place.dir.join("read"), sizes, &mut data, &stop)?;
            for dir in ["new", "names"].map(|name| place.dir.join(name)) {
                fs::create_dir(&dir).at("mkdir", dir.shown())?;
            }
            session.settle(&place)?;
        }
        session.each(|session, place, _| one(session, place, sizes, &mut data))
    })
}

/// Makes a directory with a large file and small ones.
fn to_read(dir: &Path, sizes: Sizes, data: &mut Data, stop: &StopFlag) -> dlio_fs::error::Result<()> {
    let small = dir.join("small");
    fs::create_dir_all(&small).at("mkdir", small.shown())?;
    sequential::write(&dir.join("large"), sizes.large, 1 << 20, false, data, stop)?;
    sequential::write_small(&small, sizes.small, SMALL, data, stop).map(drop)
}

fn one(session: &mut Session, place: &Place, sizes: Sizes, data: &mut Data) -> Result<(), Failure> {
    let (stop, read) = (session.stop(), place.dir.join("read"));
    reads(session, place, &read, sizes, "")?;
    // A place without a slow tier has one kind of files.
    let slow = if place.mount().is_some() { place.dir.join(SLOW) } else { read };
    reads(session, place, &slow, sizes, ", slow files")?;
    writes(session, place, sizes.large, data)?;
    let dir = place.dir.join("names");
    for (what, each) in files::metadata(&dir, sizes.entries, data, &stop)? {
        session.add(&place.name, what, Unit::Microseconds, each * 1e6);
    }
    clear(&dir)?;
    session.settle(place)?;
    let listed = place.dir.join("listed");
    let (tree, flat) = (files::tree(&listed), files::flat(&listed));
    files::walk(&tree, &stop)?;
    session.add(&place.name, "walk of a tree with stat", Unit::Microseconds, files::walk(&tree, &stop)? * 1e6);
    files::list(&flat, &stop)?;
    session.add(&place.name, "listing of one directory", Unit::Microseconds, files::list(&flat, &stop)? * 1e6);
    Ok(())
}

/// Reads the large file and the small ones of a directory. `which` ends the names of the cases.
fn reads(session: &mut Session, place: &Place, dir: &Path, sizes: Sizes, which: &str) -> Result<(), Failure> {
    let (stop, large, small) = (session.stop(), dir.join("large"), dir.join("small"));
    sequential::read(&large, 1 << 20, &stop)?;
    for block in BLOCKS {
        let rate = sequential::read(&large, block, &stop)?;
        session.add(&place.name, &format!("sequential read, {}{which}", size_text(block as u64)), Unit::Bytes, rate);
    }
    let small: Vec<_> = (0..sizes.small).map(|number| numbered(&small, number)).collect();
    sequential::read_small(&small, 1, &stop)?;
    for threads in THREADS {
        let each = sequential::read_small(&small, threads, &stop)? / small.len() as f64;
        let case = format!("small files, {}{which}", count(threads as u64, "thread"));
        session.add(&place.name, &case, Unit::Microseconds, each * 1e6);
    }
    Ok(())
}

/// Writes new files of this size.
fn writes(session: &mut Session, place: &Place, size: u64, data: &mut Data) -> Result<(), Failure> {
    let (stop, dir) = (session.stop(), place.dir.join("new"));
    for block in BLOCKS {
        let seconds = sequential::write(&dir.join("file"), size, block, false, data, &stop)?;
        let rate = size as f64 / seconds;
        session.add(&place.name, &format!("sequential write, {}", size_text(block as u64)), Unit::Bytes, rate);
        clear(&dir)?;
        session.settle(place)?;
    }
    Ok(())
}
