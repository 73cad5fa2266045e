//! `dlio-fs checkpoints --fleet`: the checkpoints that this mount had a part in, with the parts of all members.
//!
//! What is complete, and since when all of it is on the slow tier, the daemon knows (`src/tiers/checkpoints/of_fleet.rs`).
//! Files, bytes and ranks are counted here, as the mount shows them now.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::client;
use super::fleet::{self, FleetQuestion, FleetSource};
use super::outcome::{Outcome, say, say_json};
use crate::error::Error;
use crate::json;
use crate::path::{readable, unescape};
use crate::stats::checkpoints::Checkpoint;
use crate::stats::fleet::FleetAnswer;
use crate::stats::render::bytes;

#[derive(Deserialize)]
struct ListedCheckpoints {
    checkpoints: Vec<ListedCheckpoint>,
}

#[derive(Deserialize)]
struct ListedCheckpoint {
    #[serde(flatten)]
    checkpoint: Checkpoint,
    elsewhere_at: Option<String>,
}

#[derive(Serialize)]
struct FleetCheckpoints<'a> {
    #[serde(flatten)]
    answer: &'a FleetAnswer<'a>,
    checkpoints: Vec<FleetCheckpoint>,
}

/// One checkpoint, with the parts of all members. The JSON keys are the field names.
#[derive(Debug, Serialize)]
struct FleetCheckpoint {
    step: Option<u64>,
    #[serde(flatten, with = "json::path")]
    path: String,
    #[serde(flatten)]
    parts: Option<CountedParts>,
    complete: bool,
    state: &'static str,
    elsewhere_at: Option<String>,
}

/// What the mount shows of a checkpoint.
#[derive(Debug, Default, PartialEq, Serialize)]
struct CountedParts {
    files: u64,
    bytes: u64,
    /// How many ranks the names of its files tell of.
    ranks: Option<u64>,
}

/// Of the newest ones the files are counted: each is asked for.
const COUNTED: usize = 20;

pub(super) fn list(mountpoint: &Path, as_json: bool) -> Outcome {
    let question = FleetQuestion::about_now(FleetSource::Mount(mountpoint.to_owned()))?;
    let answer = question.answer();
    let text = client::read(mountpoint, "checkpoints.json")?;
    let listed: ListedCheckpoints = serde_json::from_str(&text)
        .map_err(|e| Error::refused(format!("checkpoints.json: {e}"), "use the dlio-fs that made the mount"))?;
    let older = listed.checkpoints.len().saturating_sub(COUNTED);
    let checkpoints: Vec<_> =
        listed.checkpoints.into_iter().enumerate().map(|(at, one)| counted(mountpoint, one, at >= older)).collect();
    if as_json {
        say_json(&FleetCheckpoints { answer: &answer, checkpoints })?;
    } else {
        say(format!("{}\n\n{}", answer.line(), table(&checkpoints)).trim_end())?;
    }
    Ok(fleet::exit(&answer))
}

fn counted(mountpoint: &Path, listed: ListedCheckpoint, is_wanted: bool) -> FleetCheckpoint {
    let ListedCheckpoint { checkpoint, elsewhere_at } = listed;
    let below = unescape(checkpoint.path.trim_start_matches('/')).filter(|_| is_wanted);
    let (mut parts, mut ranks) = (CountedParts::default(), BTreeSet::new());
    // What was removed, or may not be read, has no figures.
    let found = below.ok_or(ErrorKind::NotFound.into());
    let found = found.and_then(|below| count(&mountpoint.join(OsStr::from_bytes(&below)), &mut parts, &mut ranks));
    parts.ranks = Some(ranks.len() as u64).filter(|ranks| *ranks > 0);
    let (state, step, complete) = (checkpoint.state(), checkpoint.step, checkpoint.complete);
    FleetCheckpoint { step, path: checkpoint.path, parts: found.ok().map(|()| parts), complete, state, elsewhere_at }
}

fn count(path: &Path, parts: &mut CountedParts, ranks: &mut BTreeSet<u64>) -> std::io::Result<()> {
    let found = path.symlink_metadata()?;
    if found.is_dir() {
        return fs::read_dir(path)?.try_for_each(|entry| match count(&entry?.path(), parts, ranks) {
            // A rotation removes it at this moment.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            counted => counted,
        });
    }
    parts.files += 1;
    parts.bytes += found.len();
    ranks.extend(path.file_name().and_then(|name| rank_in(&name.to_string_lossy())));
    Ok(())
}

/// The rank that a file's name tells: `rank-3`, `mp_rank_07_model_states.pt`, `__3_0.distcp`.
fn rank_in(name: &str) -> Option<u64> {
    let behind = name.split_once("rank").map(|(_, rest)| rest.trim_start_matches(['-', '_', '=', '.']));
    let rest = behind.or_else(|| name.strip_prefix("__"))?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

fn table(checkpoints: &[FleetCheckpoint]) -> String {
    if checkpoints.is_empty() {
        return "no checkpoint of 1.0 MiB or more yet\n".to_owned();
    }
    let mut out = "      step  files  ranks       size  state       readable elsewhere since  path\n".to_owned();
    for FleetCheckpoint { step, path, parts, state, elsewhere_at, .. } in checkpoints {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let parts = parts.as_ref();
        let (files, ranks) = (number(parts.map(|parts| parts.files)), number(parts.and_then(|parts| parts.ranks)));
        let size = parts.map_or_else(|| "-".to_owned(), |parts| bytes(parts.bytes));
        let (step, since, path) = (number(*step), elsewhere_at.as_deref().unwrap_or("-"), readable(path));
        writeln!(out, "{step:>10}{files:>7}{ranks:>7}{size:>11}  {state:<10}  {since:<24}  {path}")
            .expect("formatting into memory");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_read_from_the_name_of_its_file() {
        for (name, rank) in [
            ("rank-3", Some(3)),
            ("mp_rank_07_model_states.pt", Some(7)),
            ("zero_pp_rank_12_mp_rank_00_optim_states.pt", Some(12)),
            ("__3_0.distcp", Some(3)),
            ("model-00001-of-00002.safetensors", None),
            ("rank", None),
            (".metadata", None),
        ] {
            assert_eq!(rank_in(name), rank, "{name}");
        }
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let one = |parts, elsewhere_at| FleetCheckpoint {
            step: Some(700),
            path: "/ckpt/step-700".to_owned(),
            parts,
            complete: true,
            state: "safe",
            elsewhere_at,
        };
        let parts = CountedParts { files: 3, bytes: 3 << 30, ranks: Some(2) };
        let told = table(&[one(Some(parts), Some("2026-11-27T07:00:00.000Z".to_owned())), one(None, None)]);
        let expected = "\
\x20     step  files  ranks       size  state       readable elsewhere since  path
       700      3      2    3.0 GiB  safe        2026-11-27T07:00:00.000Z  /ckpt/step-700
       700      -      -          -  safe        -                         /ckpt/step-700
";
        assert_eq!(told, expected);
        assert!(table(&[]).starts_with("no checkpoint"));
    }
}
