//! `dlio-fs clock-error`: another bound for the clocks of a fleet.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::outcome::{Exit, Failure, Outcome, complain, say};
use super::tiers;
use crate::config::check_clock_error;
use crate::error::Error;

const LOOK: Duration = Duration::from_secs(1);

/// Set by how much the clocks of a fleet may be off
///
/// The first member of a fleet writes down the bound for the errors of all clocks, 20 ms unless its clock_error says something
/// else. Where no time daemon tells the kernel how right the clock is, or keeps it worse, this command sets another bound,
/// which is believed. Unmount all members first (dlio-fs umount --now leaves on the fast tiers what is pending); it watches for
/// ten seconds, in a large fleet longer, whether one is there. Afterwards mount them again with this clock_error, or none.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  dlio-fs clock-error run7 50ms --slow /shared/run7")]
pub(super) struct ClockErrorArgs {
    /// The fleet's name
    fleet: String,
    /// How far any of its clocks may be off
    #[arg(value_name = "TIME", value_parser = super::duration::parse_duration)]
    error: Duration,
    /// The slow tier
    #[arg(long, value_name = "DIR")]
    slow: PathBuf,
}

/// 1. No lease is written for a while.
/// 2. The file that all members agree on gets the other bound, in one rename.
pub(super) fn run(args: &ClockErrorArgs) -> Outcome {
    check_clock_error(args.error).map_err(Failure::usage)?;
    let held = tiers::open("--slow", &args.slow)?;
    tiers::enter(&[(tiers::SLOW, &held)])?;
    let reader = tiers::fleet_reader(&held, &args.fleet).map_err(Failure::usage)?;
    let (before, silence, began) = (reader.beats()?, reader.change_after(), Instant::now());
    complain(format_args!("looking for {} s whether a member is mounted", silence.as_secs()));
    while began.elapsed() < silence {
        thread::sleep(LOOK);
        let now = reader.beats()?;
        let alive = (0..).zip(before.iter().zip(&now)).find(|(_, (before, now))| before != now);
        if let Some((slot, (_, (_, host)))) = alive {
            let what = format!("member {slot} of fleet {} is mounted on {host}", args.fleet);
            let remedy = "unmount all members first; `dlio-fs umount --now` leaves on the fast tier what is pending";
            return Err(Failure::usage(Error::refused(what, remedy)));
        }
    } // 1
    reader.set_clock_error(args.error)?; // 2
    let error = humantime::format_duration(args.error);
    say(format!("the clocks of fleet {} may be off by {error} from now on; mount its members again", args.fleet))?;
    Ok(Exit::Done)
}
