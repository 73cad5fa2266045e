//! Polls a mount on its own thread, so that a daemon that does not answer blocks neither the keys nor the exit.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::snapshot::{self, Checkpoints, Dated, FlowTimeline, Snapshot};
use super::table::TopView;
use crate::cli::client;
use crate::error::{Errno, Error, Result};
use crate::path::Show as _;

/// Reports a look every `interval`, until `tell` returns false or a look fails. Sending a view chooses the table from
/// then on and causes a look at once; the first table is `view`.
pub(super) fn watch(
    mountpoint: PathBuf,
    interval: Duration,
    view: Option<TopView>,
    tell: impl Fn(Result<Snapshot>) -> bool + Send + 'static,
) -> Sender<TopView> {
    let (ask, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut view, mut due) = (view, Instant::now());
        loop {
            let now = Instant::now();
            if now >= due {
                // A late look does not make the next ones come at once.
                due = (due + interval).max(now + interval / 2);
            }
            let snapshot = read_snapshot(&mountpoint, view);
            let failed = snapshot.is_err();
            if !tell(snapshot) || failed {
                return;
            }
            match asked.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(wanted) => view = Some(wanted),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    ask
}

fn read_snapshot(mountpoint: &Path, view: Option<TopView>) -> Result<Snapshot> {
    let mut snapshot = Snapshot {
        stats: snapshot::parse(&read(mountpoint, "stats.json")?).map_err(|e| misread(mountpoint, "stats.json", &e))?,
        timeline: FlowTimeline::parse(&read(mountpoint, "timeline.json")?)
            .map_err(|e| misread(mountpoint, "timeline.json", &e))?,
        ..Snapshot::default()
    };
    let at = snapshot.stats.mounted_for.as_secs_f64();
    match view {
        None | Some(TopView::Operations) => {}
        Some(TopView::Files) => {
            snapshot.files = table(mountpoint, "files.json", snapshot::parse)?.map(|table| Dated { at, table });
        }
        Some(TopView::Processes) => {
            snapshot.processes = table(mountpoint, "processes.json", snapshot::parse)?.map(|table| Dated { at, table });
        }
        Some(TopView::Queue) => {
            snapshot.queue = table(mountpoint, "queue.json", snapshot::parse)?;
        }
        Some(TopView::Members) => {
            snapshot.fleet = table(mountpoint, "fleet.json", snapshot::parse)?;
        }
    }
    if view.is_some() {
        let checkpoints: Option<Checkpoints> = table(mountpoint, "checkpoints.json", snapshot::parse)?;
        snapshot.checkpoints = checkpoints.unwrap_or_default().checkpoints;
        snapshot.pace = table(mountpoint, "pace.json", snapshot::parse)?;
    }
    Ok(snapshot)
}

/// A file of `.dlio`; `None` if the daemon does not have it, or not for this user.
fn table<T>(mountpoint: &Path, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>> {
    match client::read(mountpoint, name) {
        Ok(text) => parse(&text).map(Some).map_err(|e| misread(mountpoint, name, &e)),
        Err(e) if matches!(e.errno(), Errno::EACCES | Errno::EPERM | Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A file that every mount has for every user.
fn read(mountpoint: &Path, name: &str) -> Result<String> {
    client::read(mountpoint, name).map_err(|e| match e.errno() {
        Errno::ENOENT => Error::refused(
            format!("{} is no longer mounted", mountpoint.shown()),
            "mount it again with dlio-fs mount; dlio-fs status lists what is mounted",
        ),
        _ => e,
    })
}

fn misread(mountpoint: &Path, name: &str, why: &str) -> Error {
    let what = format!("{}: {why}", mountpoint.join(".dlio").join(name).shown());
    Error::refused(what, "use the dlio-fs that made the mount")
}
