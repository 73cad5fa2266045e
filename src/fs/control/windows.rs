//! `window` and `mark`: counters from one moment to another.

use super::reply::Reply;
use super::sources::Control;
use crate::error::Context;
use crate::fs::job_report::JobReports;
use crate::fs::shown::path_of;
use crate::path::Show as _;
use crate::stats::render;

pub(super) fn start(control: &Control, name: &str) -> Result<Reply, String> {
    control.stats.start_window(name)?;
    Ok(Reply::ok(format!("{name} is open")))
}

pub(super) fn stop(control: &Control, name: Option<&str>) -> Result<Reply, String> {
    let window = control.stats.stop_window(name)?;
    let (files, lasted) = (render::count(window.used as u64, "file"), window.lasted().as_secs_f64());
    let report = leave_report(control, &window.name).map(|told| format!("; {told}")).unwrap_or_default();
    Ok(Reply::ok(format!("{} lasted {lasted:.1} s and used {files}: .dlio/windows{report}", window.name)))
}

/// Leaves the report of a job's window. `None`: the window is not a job's, or no reports are left.
fn leave_report(control: &Control, window: &str) -> Option<String> {
    let (reports, job) = (control.job_reports.as_ref()?, JobReports::job_of_window(window)?);
    let (collected, about) = (control.observer.collected(), control.observer.about());
    let recording = collected.recording_of_window(window, about, |ino| path_of(&control.tiers, ino))?;
    let left = recording.at("make", "a recording").and_then(|bytes| reports.leave_recording(job, &bytes));
    Some(match left {
        Ok(path) => format!("report: {}", path.shown()),
        Err(error) => format!("no report was written: {error}"),
    })
}

/// The table of a window's files.
pub(super) fn files(control: &Control, name: &str) -> Result<Reply, String> {
    let files = control.stats.files_of_window(name, |ino| path_of(&control.tiers, ino));
    Ok(Reply::text(files.ok_or_else(|| unknown(name))?.table()))
}

/// Everything known of a window.
pub(super) fn recording(control: &Control, name: &str) -> Result<Reply, String> {
    let (collected, about) = (control.observer.collected(), control.observer.about());
    let recording = collected.recording_of_window(name, about, |ino| path_of(&control.tiers, ino));
    recording.ok_or_else(|| unknown(name))?.map(Reply::text).map_err(|error| error.to_string())
}

pub(super) fn mark(control: &Control, text: &str) -> Result<Reply, String> {
    control.stats.mark(text)?;
    Ok(Reply::ok(format!("marked at {:.1} s", control.stats.now().as_secs_f64())))
}

fn unknown(name: &str) -> String {
    format!("no closed window {name} with its files: see .dlio/windows")
}
