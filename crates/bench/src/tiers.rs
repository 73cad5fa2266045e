//! `dlio-fs-bench tiers`.

use std::fs;

use clap::Args;
use dlio_fs::cli::outcome::{Failure, Outcome};
use dlio_fs::error::Context;
use dlio_fs::path::Show as _;

use super::asked::{Common, parse_size, size_text};
use super::measure::measure;
use super::plan::{BenchPlan, Room, SMALL};
use super::session::{Place, Session};
use crate::loads::data::{Data, numbered};
use crate::loads::results::Unit;
use crate::loads::sequential;

/// The transfer size of IOR.
const PIECE: usize = 1 << 20;

/// Measure the tiers and a mount over them: write and read one large file, read small files, with cold caches
///
/// The time of the write includes its fsync. The read begins when the mount has copied the file to the slow tier and no
/// part of it is in memory; the mount still has it on the fast tier.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench tiers --fast /optane --slow /hdd
  dlio-fs-bench tiers --fast /optane --slow /hdd --size 4GiB \\
      --also nfs=/mnt/nfs --output tiers.md")]
pub(super) struct TiersArgs {
    #[command(flatten)]
    common: Common,
    /// Size of the large file
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    size: u64,
    /// How many small files, of 112 KiB each
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
}

pub(super) fn run(args: &TiersArgs) -> Outcome {
    let (size, files) = (args.size, args.files as usize);
    let plan = BenchPlan {
        name: "tiers",
        runs: args.common.runs(3),
        settings: vec![
            ("large file", size_text(size)),
            ("small files", format!("{files} of {}", size_text(SMALL as u64))),
        ],
        caches: args.common.cold()?,
        // The small files of each place.
        steps: args.common.places(),
        room: Room {
            stays: (files * SMALL) as u64,
            beneath: 0,
            passes: size,
            remedy: "ask for less with --size or --files",
        },
    };
    measure(&args.common, plan, move |session| {
        session.mount()?;
        let mut data = Data::new(PIECE);
        for place in session.places.clone() {
            session.step(&format!("writing small files: {}", place.name))?;
            let dir = place.dir.join("small");
            fs::create_dir(&dir).at("mkdir", dir.shown())?;
            sequential::write_small(&dir, files, SMALL, &mut data, &session.stop())?;
            session.settle(&place)?;
        }
        session.each(|session, place, _| one(session, place, size, files, &mut data))
    })
}

fn one(session: &mut Session, place: &Place, size: u64, files: usize, data: &mut Data) -> Result<(), Failure> {
    let (stop, large, small) = (session.stop(), place.dir.join("large"), place.dir.join("small"));
    session.cool()?;
    let seconds = sequential::write(&large, size, PIECE, true, data, &stop)?;
    session.add(&place.name, "sequential write and fsync", Unit::Bytes, size as f64 / seconds);
    session.settle(place)?;
    session.cool()?;
    let rate = sequential::read(&large, PIECE, &stop)?;
    session.add(&place.name, "sequential read", Unit::Bytes, rate);
    session.cool()?;
    let small: Vec<_> = (0..files).map(|number| numbered(&small, number)).collect();
    let seconds = sequential::read_small(&small, 1, &stop)?;
    session.add(&place.name, "small files", Unit::Files, files as f64 / seconds);
    fs::remove_file(&large).at("unlink", large.shown())?;
    session.settle(place)
}
