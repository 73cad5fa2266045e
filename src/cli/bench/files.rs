//! `dlio-fs bench files`.

use clap::Args;

use super::asked::{Common, parse_size, size_text};
use super::measure::measure;
use super::plan::{BenchPlan, Room, SMALL};
use super::session::{Place, Session};
use crate::bench::data::{Data, clear, numbered};
use crate::bench::results::Unit;
use crate::bench::{files, sequential};
use crate::cli::outcome::{Failure, Outcome};
use crate::error::Context;
use crate::stats::render::count;

/// Sizes of a read and of a write.
const BLOCKS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const THREADS: [usize; 2] = [1, 4];

/// Measure the cost of the mount itself, with everything in memory: reads and writes by block size, small files,
/// metadata, listings
///
/// Everything is read once before it is timed, so that no device slows it down: the difference to the fast tier is the
/// cost of the mount. The files to read were written through the mount; the files to list were on the slow tier before.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs bench files --fast /optane --slow /hdd
  dlio-fs bench files --fast /optane --slow /hdd --io exact,cached,passthrough --listing 100000")]
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
            stays: sizes.large + (small * SMALL) as u64,
            passes: sizes.large + (entries * files::CREATED) as u64,
            remedy: "ask for less with --size, --files or --entries",
        },
    };
    measure(&args.common, plan, move |session| {
        let (mut data, stop) = (Data::new(1 << 20), session.stop());
        for place in session.places.clone() {
            session.step(&format!("making files to list: {}", place.name))?;
            files::plant(&place.beneath().join("listed"), listing, &stop)?;
        }
        session.mount()?;
        for place in session.places.clone() {
            session.step(&format!("writing files to read: {}", place.name))?;
            sequential::write(&place.dir.join("large"), sizes.large, 1 << 20, false, &mut data, &stop)?;
            for dir in ["small", "new", "names"].map(|name| place.dir.join(name)) {
                std::fs::create_dir(&dir).at("mkdir", dir.display())?;
            }
            sequential::write_small(&place.dir.join("small"), small, SMALL, &mut data, &stop)?;
            session.settle(&place)?;
        }
        session.each(|session, place, _| one(session, place, sizes, &mut data))
    })
}

fn one(session: &mut Session, place: &Place, sizes: Sizes, data: &mut Data) -> Result<(), Failure> {
    large(session, place, sizes.large, data)?;
    let stop = session.stop();
    let dir = place.dir.join("small");
    let small: Vec<_> = (0..sizes.small).map(|number| numbered(&dir, number)).collect();
    sequential::read_small(&small, 1, &stop)?;
    for threads in THREADS {
        let each = sequential::read_small(&small, threads, &stop)? / small.len() as f64;
        session.add(
            &place.name,
            &format!("small files, {}", count(threads as u64, "thread")),
            Unit::Microseconds,
            each * 1e6,
        );
    }
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

/// Reads the large file, and writes new ones of its size.
fn large(session: &mut Session, place: &Place, size: u64, data: &mut Data) -> Result<(), Failure> {
    let (stop, path) = (session.stop(), place.dir.join("large"));
    sequential::read(&path, 1 << 20, &stop)?;
    for block in BLOCKS {
        let rate = sequential::read(&path, block, &stop)?;
        session.add(&place.name, &format!("sequential read, {}", size_text(block as u64)), Unit::Bytes, rate);
    }
    let dir = place.dir.join("new");
    for block in BLOCKS {
        let seconds = sequential::write(&dir.join("file"), size, block, false, data, &stop)?;
        let rate = size as f64 / seconds;
        session.add(&place.name, &format!("sequential write, {}", size_text(block as u64)), Unit::Bytes, rate);
        clear(&dir)?;
        session.settle(place)?;
    }
    Ok(())
}
