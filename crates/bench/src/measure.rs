//! Runs a benchmark in a sandbox and prints or writes its results.

use std::fs;
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use dlio_fs::cli::outcome::{Exit, Failure, Outcome, say};
use dlio_fs::cli::sandbox::{self, Sandbox};
use dlio_fs::error::{Context, Error};
use dlio_fs::mount;
use dlio_fs::path::Show as _;

use super::asked::{Common, ResultFile};
use super::plan::BenchPlan;
use super::session::Session;
use crate::loads::results::Results;
use crate::loads::text;

/// Makes the places, runs `work`, removes the places, and gives out the results.
pub(super) fn measure(
    common: &Common,
    plan: BenchPlan,
    work: impl FnOnce(&mut Session) -> Result<(), Failure> + Send + 'static,
) -> Outcome {
    let documents = common.documents()?;
    let asked = common.check()?;
    let results = in_sandbox(move |sandbox| {
        let mut session = Session::new(sandbox, asked, plan)?;
        session.ensure_room()?;
        session.touch_memory()?;
        work(&mut session)?;
        session.finish()
    })?;
    give_out(common.json, &documents, results)
}

/// Runs `work` in a sandbox whose mounts are made by the `dlio-fs` that belongs to this program. `None`: interrupted.
pub(super) fn in_sandbox<T: Send + 'static>(
    work: impl FnOnce(&Sandbox) -> Result<T, Failure> + Send + 'static,
) -> Result<Option<T>, Failure> {
    mount::open_device()?;
    sandbox::run(daemon_program()?, work)
}

/// `dlio-fs`: beside this program, where packages and Cargo place both, or in PATH.
fn daemon_program() -> Result<PathBuf, Failure> {
    let ourselves = mount::this_program()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = ourselves.parent().map(Path::to_path_buf).into_iter().chain(std::env::split_paths(&path));
    let found = dirs.map(|dir| dir.join("dlio-fs")).find(|file| file.is_file());
    found.ok_or_else(|| {
        let what = format!("there is no dlio-fs beside {} nor in PATH, and it makes the mounts", ourselves.shown());
        Error::refused(what, "install it, or add its directory to PATH").into()
    })
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
    let size = if stdout().is_terminal() { rustix::termios::tcgetwinsize(stdout()).ok() } else { None };
    size.map_or(ELSEWHERE, |size| size.ws_col.max(LEAST)).into()
}
