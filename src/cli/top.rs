//! `dlio-fs top`: shows a mount live: a screen on a terminal, a line per interval elsewhere.
//!
//! Everything comes from the mount's `.dlio`, so nothing here waits for the slow tier. `watch` reads, `look` parses,
//! `change` computes rates from two looks; `lines` and, through `state` and `table`, `draw` show them.

mod change;
mod draw;
mod lines;
mod screen;
mod shown;
mod snapshot;
mod state;
mod table;
mod watch;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use change::Delta;
use clap::Args;
use draw::Theme;
use snapshot::Snapshot;
use table::TopView;

use super::client;
use super::duration::parse_duration;
use super::outcome::{Exit, Failure, Outcome, complain};
use crate::json;
use crate::path::harmless_lines;

/// The mount samples its own totals ten times a second.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);

/// Show a mount live: throughput of each tier, busiest files, processes, operations, queue
///
/// On a terminal it shows a screen: f, p, o, u and m (or Tab) choose the table, < and > the column to sort by, / filters,
/// space pauses, ? shows all keys, q quits. Elsewhere, or with --plain, it prints one line per interval; with --json
/// one object: bytes and calls of that interval (`span` seconds), and the safety from stats.json.
///
/// Root and the owner of the mount see all files, processes and changes, others their own. It reads only the mount's
/// .dlio, so it works while the slow tier hangs. When the mount is gone it says so and ends (exit code 1).
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs top /mnt/train
  dlio-fs top --fleet
  dlio-fs top --plain --interval 5s | tee throughput.txt
  dlio-fs top --json --count 60 | jq '.read_slow / .span'")]
pub(super) struct TopArgs {
    /// The mount, or a path on it; optional if there is only one
    mountpoint: Option<PathBuf>,
    /// How often to look, as "1s" or "500ms"
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Print one line per interval, also on a terminal
    #[arg(long)]
    plain: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "plain")]
    json: bool,
    /// Begin with the members of the mount's fleet
    #[arg(long, conflicts_with_all = ["plain", "json", "count"])]
    fleet: bool,
    /// End after this many lines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        Ok(interval)
    } else {
        Err("give a time from 200ms to 1day".to_owned())
    }
}

pub(super) fn run(args: &TopArgs) -> Outcome {
    let mountpoint = client::the_mount(args.mountpoint.as_deref())?;
    if client::is_dead(&mountpoint)? {
        return Err(client::dead(&mountpoint).into());
    }
    let capable = io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
    if capable && !args.plain && !args.json && args.count.is_none() {
        // https://no-color.org: any value counts, except an empty one.
        let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let view = if args.fleet { TopView::Members } else { TopView::default() };
        return screen::run(&mountpoint, args.interval, Theme { colours }, view);
    }
    if args.fleet {
        return Err(Failure::new(Exit::Usage, "--fleet needs a terminal; elsewhere use dlio-fs status --fleet"));
    }
    print(args, &mountpoint)
}

/// A line for each interval.
fn print(args: &TopArgs, mountpoint: &Path) -> Outcome {
    let (send, snapshots) = mpsc::channel();
    let _ask = watch::watch(mountpoint.to_path_buf(), args.interval, None, move |snapshot| send.send(snapshot).is_ok());
    let (mut before, mut printed, mut answered, mut told): (Option<Snapshot>, u64, _, _) =
        (None, 0, Instant::now(), false);
    while args.count.is_none_or(|count| printed < count) {
        let snapshot = match snapshots.recv_timeout(Duration::from_secs(1)) {
            Ok(snapshot) => snapshot?,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let waited = answered.elapsed().as_secs_f64();
                if !told && state::too_long(waited, args.interval.as_secs_f64()) {
                    complain(state::silence(waited));
                    told = true;
                }
                continue;
            }
        };
        (answered, told) = (Instant::now(), false);
        let change = before.as_ref().map(|before| Delta::between(before, &snapshot));
        if let Some(Some(change)) = &change {
            if !print_interval(args, mountpoint, &snapshot, change, printed)? {
                return Ok(Exit::Done);
            }
            printed += 1;
        }
        // If the mount's clock has not advanced, keep the first look.
        if !matches!(change, Some(None)) {
            before = Some(snapshot);
        }
    }
    Ok(Exit::Done)
}

/// Whether the reader is still there.
fn print_interval(
    args: &TopArgs,
    mountpoint: &Path,
    snapshot: &Snapshot,
    change: &Delta,
    printed: u64,
) -> Result<bool, Failure> {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let mut text = String::new();
    if args.json {
        text = lines::json(&now, &json::lossy(mountpoint), snapshot, change);
    } else {
        if printed.is_multiple_of(lines::NAMED_EVERY) {
            text = format!("{}\n{}\n", lines::NAMES[0], lines::NAMES[1]);
        }
        // 2026-01-31T10:20:30Z
        text.push_str(&lines::plain(now.get(11..19).unwrap_or(&now), snapshot, change));
    }
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", harmless_lines(&text)).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::new(Exit::Failure, format!("cannot write to standard output: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_one_that_the_mount_can_tell_apart() {
        assert_eq!(parse_interval("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_interval("200ms"), Ok(INTERVAL_MIN));
        for text in ["0s", "199ms", "2days", "soon", ""] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }
}
