//! Runs a benchmark in a sandbox and prints or writes its results.

use std::fs;
use std::io::{IsTerminal, stdout};

use super::asked::{Common, ResultFile};
use super::plan::BenchPlan;
use super::session::Session;
use crate::bench::results::Results;
use crate::bench::text;
use crate::cli::outcome::{Exit, Failure, Outcome, say};
use crate::cli::sandbox;
use crate::error::Context;
use crate::mount;
use crate::path::Show as _;

/// Makes the places, runs `work`, removes the places, and gives out the results.
pub(super) fn measure(
    common: &Common,
    plan: BenchPlan,
    work: impl FnOnce(&mut Session) -> Result<(), Failure> + Send + 'static,
) -> Outcome {
    let documents = common.documents()?;
    let asked = common.check()?;
    mount::open_device()?;
    let results = sandbox::run(move |sandbox| {
        let mut session = Session::new(sandbox, asked, plan)?;
        session.ensure_room()?;
        session.touch_memory()?;
        work(&mut session)?;
        session.finish()
    })?;
    give_out(common.json, &documents, results)
}

/// The result of a sandbox; none if it was interrupted.
pub(super) fn give_out(json: bool, documents: &[ResultFile], results: Option<Results>) -> Outcome {
    match results {
        None => Ok(Exit::Interrupted),
        Some(results) => publish(json, documents, &results).map(|()| Exit::Done),
    }
}

/// Writes to standard output and to the requested files. A failure is reported after all were tried.
pub(super) fn publish(json: bool, documents: &[ResultFile], results: &Results) -> Result<(), Failure> {
    let write = |document: &ResultFile| {
        let path = &document.path;
        fs::write(path, document.kind.render(results)).at("write", path.shown()).map_err(Failure::from)
    };
    let written: Vec<_> = documents.iter().map(write).collect();
    match json {
        true => say(results.json().trim_end())?,
        false => say(text::report(results, width()).trim_end())?,
    }
    written.into_iter().collect()
}

/// The width of the output: the terminal's, or a fixed one elsewhere.
fn width() -> usize {
    const LEAST: u16 = 60;
    const ELSEWHERE: u16 = 120;
    let size = if stdout().is_terminal() { ratatui::crossterm::terminal::size().ok() } else { None };
    size.map_or(ELSEWHERE, |(columns, _)| columns.max(LEAST)).into()
}
