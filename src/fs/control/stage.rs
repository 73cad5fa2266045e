//! `stage` and `staging`: bringing slow files to the fast tier.

use std::thread;
use std::time::{Duration, Instant};

use super::asker::Asker;
use super::command::StageTarget;
use super::paths::{joined, shown};
use super::reply::{Reply, Running};
use super::sources::Control;
use crate::config::Pattern;
use crate::stats::render;
use crate::stats::staging::JobState;
use crate::tiers::Tiers;

/// How often a job is checked meanwhile.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn start(control: &Control, asker: &Asker, wanted: Vec<StageTarget>) -> Result<Reply, String> {
    let number = start_jobs(control, asker, wanted)?;
    Ok(Reply::ok(format!("job {number}")))
}

/// Starts one job for each pattern, and one for all paths. Returns the last one's number.
fn start_jobs(control: &Control, asker: &Asker, wanted: Vec<StageTarget>) -> Result<u64, String> {
    let tiers = &control.tiers;
    let (mut paths, mut named, mut last, mut promised) = (Vec::new(), Vec::new(), None, None);
    for one in wanted {
        match one {
            StageTarget::Path(names) => {
                named.push(shown(&names));
                paths.push(joined(&names));
            }
            StageTarget::Pattern(pattern) => last = Some(stage_pattern(tiers, &pattern)?),
            StageTarget::Promise(promise) => promised = Some(promise),
        }
    }
    if !paths.is_empty() {
        let what = match named.as_slice() {
            [one] => one.clone(),
            [first, others @ ..] => format!("{first} and {} more", others.len()),
            [] => String::new(),
        };
        let what = if promised.is_some() { format!("planned: {what}") } else { what };
        let begun = match asker.limited() {
            None => tiers.stage(&what, paths),
            Some(uid) => tiers.stage_for(uid, &what, paths),
        };
        let number = begun.map_err(|error| error.to_string())?;
        if let Some(promise) = promised {
            control.stats.plans.start(number, promise, named.iter().map(String::as_str));
        }
        last = Some(number);
    }
    last.ok_or_else(|| "nothing to stage".to_owned())
}

fn stage_pattern(tiers: &Tiers, pattern: &str) -> Result<u64, String> {
    let pattern = Pattern::new(pattern).map_err(|why| format!("pattern {pattern:?}: {why}"))?;
    tiers.stage_fitting(pattern).map_err(|error| error.to_string())
}

pub(super) fn more(control: &Control, number: u64, wanted: Vec<StageTarget>) -> Result<Reply, String> {
    let mut named = Vec::new();
    let paths = wanted.into_iter().map(|one| match one {
        StageTarget::Path(names) => {
            named.push(shown(&names));
            Ok(joined(&names))
        }
        StageTarget::Pattern(_) | StageTarget::Promise(_) => {
            Err("a job takes more paths, but no patterns; start another job with stage glob:".to_owned())
        }
    });
    let paths: Vec<_> = paths.collect::<Result<_, _>>()?;
    let told = render::count(paths.len() as u64, "path");
    match control.tiers.stage_more(number, paths) {
        Ok(true) => {
            control.stats.plans.more(number, named.iter().map(String::as_str));
            Ok(Reply::ok(format!("{told} more for job {number}")))
        }
        Ok(false) => Err(no_job(number)),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn no_job(number: u64) -> String {
    format!("there is no job {number}: see .dlio/staging")
}

pub(super) fn watch(number: u64) -> Reply {
    Reply::runs(String::new(), Watching { number })
}

#[derive(Debug)]
struct Watching {
    number: u64,
}

impl Running for Watching {
    fn advance(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String> {
        loop {
            let job = control.tiers.staging_job(self.number).ok_or_else(|| no_job(self.number))?;
            if job.state != JobState::Running {
                return Ok(Some(job.result()));
            }
            if Instant::now() >= until {
                lines.push_str(&format!("staging: {}\n", job.progress()));
                return Ok(None);
            }
            thread::park_timeout(LOOK);
        }
    }
}

pub(super) fn cancel(control: &Control, number: Option<u64>) -> Result<Reply, String> {
    match (control.tiers.cancel_staging(number), number) {
        (0, Some(number)) => Err(format!("job {number} is not running")),
        (cancelled, _) => Ok(Reply::ok(format!("{} cancelled", render::count(cancelled, "job")))),
    }
}

pub(super) fn pause(control: &Control, paused: bool) -> Reply {
    control.tiers.pause_staging(paused);
    Reply::ok(if paused { "staging is paused" } else { "staging continues" })
}
