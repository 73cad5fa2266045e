//! When a checkpoint was made, by the times of its files: what was lost with a node is a part of it only if the node was lost
//! after the checkpoint was begun and before it was whole.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Context, Error};
use crate::path::Show as _;
use crate::stats::fleet::MadeWithin;
use crate::tiers::{FLEET_MARKERS, certain_step, is_temporary, step_in};

/// A pointer names its checkpoint in its first bytes.
const POINTER_MAX: u64 = 256;
/// The coarsest grain of a file's times.
const GRAIN: Duration = Duration::from_secs(2);

/// Of the checkpoint that this path says is whole: of its marker, its last file, or its directory. `step`: of that one in the
/// directory of the path.
///
/// What a node wrote that is gone was written while the others wrote their parts, so the oldest part that is there tells when
/// the checkpoint was begun, unless all that are there were written after another one had taken the lost node's place.
pub(super) fn made(path: &Path, step: Option<u64>) -> Result<MadeWithin, Error> {
    let found = path.metadata().at("look for", path.shown())?;
    let (mut oldest, mut newest) = (None, None);
    for part in parts(path, &found, step)? {
        walk(&part, &mut oldest, &mut newest)?;
    }
    let finished = if found.is_dir() { newest } else { Some(time(&found)) };
    // Without a file nothing is known.
    Ok(MadeWithin { began: oldest.unwrap_or_default(), finished: finished.map_or(Duration::MAX, |time| time + GRAIN) })
}

fn parts(path: &Path, found: &Metadata, step: Option<u64>) -> Result<Vec<PathBuf>, Error> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name().map(|name| name.as_encoded_bytes())) else {
        return Ok(vec![path.to_owned()]);
    };
    let is_marker = FLEET_MARKERS.iter().any(|marker| marker.as_bytes() == name);
    let above_name = above.file_name().unwrap_or_default().as_encoded_bytes();
    let step = match step {
        Some(step) => Some(step),
        None if found.is_dir() => return Ok(vec![path.to_owned()]),
        None if is_marker => pointed_to(path),
        None if certain_step(above_name).is_some() => None,
        None => step_in(name).map(|(_, step)| step),
    };
    let named = step.map(|step| of_step(above, step)).transpose()?.unwrap_or_default();
    Ok(match named.is_empty() {
        false => named,
        true if is_marker || certain_step(above_name).is_some() => vec![above.to_owned()],
        true => vec![path.to_owned()],
    })
}

/// What is in this directory and has a name with that step.
pub(super) fn of_step(dir: &Path, step: u64) -> Result<Vec<PathBuf>, Error> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", dir.shown())?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.at("list", dir.shown())?;
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if !is_temporary(name) && step_in(name).is_some_and(|(_, of)| of == step) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The step that the first line of this file names.
pub(super) fn pointed_to(pointer: &Path) -> Option<u64> {
    let mut text = Vec::new();
    // A directory may have this name, too.
    File::open(pointer).and_then(|file| file.take(POINTER_MAX).read_to_end(&mut text)).ok()?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    step_in(line).map(|(_, step)| step)
}

fn walk(path: &Path, oldest: &mut Option<Duration>, newest: &mut Option<Duration>) -> Result<(), Error> {
    let found = match path.symlink_metadata() {
        // A rotation removes it at this moment.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.at("look for", path.shown())?,
    };
    if found.is_dir() {
        let entries = std::fs::read_dir(path).at("list", path.shown())?;
        return entries.into_iter().try_for_each(|entry| walk(&entry.at("list", path.shown())?.path(), oldest, newest));
    }
    let time = time(&found);
    *oldest = Some(oldest.map_or(time, |oldest| oldest.min(time)));
    *newest = Some(newest.map_or(time, |newest| newest.max(time)));
    Ok(())
}

fn time(found: &Metadata) -> Duration {
    let modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    modified.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, FileTimes};

    use super::*;

    #[test]
    fn a_checkpoint_was_made_when_its_files_were() {
        let top = tempfile::tempdir().expect("a directory");
        let at = |name: &str| top.path().join(name);
        let put = |name: &str, text: &str, seconds: u64| {
            fs::create_dir_all(at(name).parent().expect("one")).and_then(|()| fs::write(at(name), text)).expect("put");
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            let file = File::options().write(true).open(at(name)).expect("there");
            file.set_times(FileTimes::new().set_modified(time)).expect("set");
        };
        put("step-7/rank-0", "", 100);
        put("step-7/deep/rank-1", "", 90);
        put("step-7/.metadata", "", 110);
        put("step-8/rank-0", "", 300);
        put("latest", "step-7\n", 120);
        put("model-5.ckpt.index", "", 20);
        put("model-5.ckpt.data", "", 10);
        put("checkpoint", "model_checkpoint_path: \"model-5.ckpt\"", 30);
        put("alone", "", 40);
        let made = |name: &str, step| {
            let MadeWithin { began, finished } = made(&at(name), step).expect("known");
            (began.as_secs(), (finished - GRAIN).as_secs())
        };
        assert_eq!(made("step-7/.metadata", None), (90, 110));
        assert_eq!(made("step-7/rank-0", None), (90, 100));
        assert_eq!(made("step-7", None), (90, 110));
        assert_eq!(made("latest", None), (90, 120));
        assert_eq!(made("latest", Some(8)), (300, 120), "it named that one before");
        assert_eq!(made("checkpoint", None), (10, 30));
        assert_eq!(made("model-5.ckpt.index", None), (10, 20));
        assert_eq!(made("alone", None), (40, 40));
        fs::create_dir(at("empty")).expect("made");
        let empty = super::made(&at("empty"), None).expect("known");
        assert_eq!((empty.began, empty.finished), (Duration::ZERO, Duration::MAX));
    }
}
