//! `.dlio-fs/saved` on the slow tree: files kept for people, under their paths in a directory of this host and time.
//! What was replaced by another member of a fleet is removed when it is old (`tiers/saved.rs`), all else by people
//! only.

use std::io;
use std::sync::Arc;

use serde::Serialize;

use crate::error::{Context, Errno, Result};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, split};
use crate::tiers::disk::{Dir, Kind, RenameMode};

/// In [`OURS`].
pub(crate) const SAVED: &[u8] = b"saved";

/// What a directory in `SAVED` holds, by its name: `HOST-TIME`, one of these words, and `-N` if there was one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavedKind {
    /// What was replaced by another member of a fleet.
    Replaced,
    /// What a forgotten member was about to remove.
    Removed,
    /// The files of a deadline, what was set aside, or the copies of a forgotten member. Or a directory that is not
    /// ours.
    Kept,
    /// It is being made, or was cut off.
    Part,
}

impl SavedKind {
    const REPLACED: &'static str = "-fleet";
    const REMOVED: &'static str = "-removed";
    const PART: &'static str = ".part";
    /// No working clock shows less, and no number behind a name is as large.
    const TIME_LEAST: u64 = 1_000_000_000;

    /// The name of a directory that is made now.
    pub(crate) fn name(self) -> String {
        let end = match self {
            SavedKind::Replaced => Self::REPLACED,
            SavedKind::Removed => Self::REMOVED,
            SavedKind::Kept => "",
            SavedKind::Part => Self::PART,
        };
        format!("{}{end}", host_and_time())
    }

    /// The kind by a directory's name, and the time in the name: seconds since 1970. A host may be called `gpu-fleet`:
    /// the word counts only behind the time.
    pub(crate) fn of(name: &[u8]) -> (SavedKind, Option<u64>) {
        let name = str::from_utf8(name).unwrap_or_default();
        if name.ends_with(Self::PART) {
            return (SavedKind::Part, None);
        }
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let time_of = |name: &str| {
            let (_, end) = name.rsplit_once('-').filter(|(_, end)| is_number(end))?;
            end.parse().ok().filter(|time| *time >= Self::TIME_LEAST)
        };
        let whole = match name.rsplit_once('-') {
            Some((rest, end)) if is_number(end) && time_of(name).is_none() => rest,
            _ => name,
        };
        let words = [(Self::REPLACED, SavedKind::Replaced), (Self::REMOVED, SavedKind::Removed)];
        let of_word = |(word, kind): (&str, SavedKind)| Some((kind, Some(time_of(whole.strip_suffix(word)?)?)));
        words.into_iter().find_map(of_word).unwrap_or((SavedKind::Kept, time_of(whole)))
    }
}

/// `saved` on a slow tree, if it has one.
pub(crate) fn open(slow: &dyn Dir) -> Result<Option<Arc<dyn Dir>>> {
    absent_is_none(slow.dir(OURS).and_then(|ours| ours.dir(SAVED))).at("open", ".dlio-fs/saved")
}

/// A directory below this one.
pub(crate) fn below(dir: &Arc<dyn Dir>, path: &[u8]) -> io::Result<Arc<dyn Dir>> {
    if path.is_empty() { Ok(dir.clone()) } else { dir.walk(path) }
}

pub(crate) fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() }
}

/// The paths of all directories below this one, itself (an empty path) included, each behind its parent.
pub(crate) fn dirs_below(
    top: &Arc<dyn Dir>,
    mut visit: impl FnMut(&dyn Dir, &[u8]) -> io::Result<()>,
) -> io::Result<Vec<Vec<u8>>> {
    let mut paths = vec![Vec::new()];
    let mut next = 0;
    while let Some(path) = paths.get(next).cloned() {
        next += 1;
        // It may be removed meanwhile.
        let Some(dir) = absent_is_none(below(top, &path))? else { continue };
        for entry in absent_is_none(dir.list())?.unwrap_or_default() {
            match entry.kind {
                Kind::Dir => paths.push(join(&path, &entry.name)),
                _ => visit(&*dir, &entry.name)?,
            }
        }
    }
    Ok(paths)
}

/// The name of a directory in [`SAVED`], and the end of the name of a conflict.
pub(crate) fn host_and_time() -> String {
    let host =
        nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok()).unwrap_or_else(|| "host".into());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_secs());
    format!("{}-{now}", host.replace('/', "-"))
}

/// Saves what is at `path` in the directory `time` of [`SAVED`], or in one with a number behind that if the path is
/// taken there: makes the directories, durably, calls `take` with the last of them and the name in it, and syncs that
/// one. Returns the directory's name.
///
/// Errors: those of `take`; EEXIST after a thousand directories.
pub(crate) fn save(
    root: &Arc<dyn Dir>,
    time: &str,
    path: &[u8],
    take: impl Fn(&dyn Dir, &[u8]) -> io::Result<()>,
) -> io::Result<String> {
    let (above, name) = split(path);
    for attempt in 0..1000 {
        let time = if attempt == 0 { time.to_owned() } else { format!("{time}-{attempt}") };
        let names = [OURS, SAVED, time.as_bytes()].into_iter().chain(above.split(|byte| *byte == b'/'));
        let mut dir = root.clone();
        for name in names.filter(|name| !name.is_empty()) {
            let next = make_dir(&*dir, name)?;
            dir.sync()?;
            dir = next;
        }
        match take(&*dir, name) {
            Ok(()) => return dir.sync().map(|()| time),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EEXIST.into())
}

/// Opens a directory, made if it is missing.
pub(crate) fn make_dir(dir: &dyn Dir, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
    match dir.mkdir(name, 0o700) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => dir.dir(name),
    }
}

/// Renames without replacing an existing name.
pub(crate) fn move_to(from: &dyn Dir, name: &[u8], to: &dyn Dir, to_name: &[u8]) -> io::Result<()> {
    match from.rename(name, to, to_name, RenameMode::NoReplace) {
        // Not every file system has this call. A check first is enough: only we use the directory.
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => match absent_is_none(to.stat(to_name))? {
            Some(_) => Err(Errno::EEXIST.into()),
            None => from.rename(name, to, to_name, RenameMode::Replace),
        },
        moved => moved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What may be anything but the loser of a race is never removed automatically.
    #[test]
    fn a_name_tells_what_a_directory_has_whatever_the_host_is_called() {
        let of = |name: &str| SavedKind::of(name.as_bytes());
        let (at, time) = (Some(1_795_384_262), "1795384262");
        for (name, expected) in [
            (format!("n1-{time}-fleet"), (SavedKind::Replaced, at)),
            (format!("n1-{time}-fleet-12"), (SavedKind::Replaced, at)),
            (format!("n1-{time}-removed"), (SavedKind::Removed, at)),
            (format!("n1-{time}"), (SavedKind::Kept, at)),
            (format!("n1-{time}-2"), (SavedKind::Kept, at)),
            (format!("gpu-fleet-{time}"), (SavedKind::Kept, at)),
            (format!("gpu-fleet-{time}-3"), (SavedKind::Kept, at)),
            (format!("gpu-fleet-{time}-fleet"), (SavedKind::Replaced, at)),
            (format!("n1-{time}.part"), (SavedKind::Part, None)),
            ("gpu-7-fleet".to_owned(), (SavedKind::Kept, None)),
            ("fleet".to_owned(), (SavedKind::Kept, None)),
            (format!("n1-{time}-fleet-x"), (SavedKind::Kept, None)),
        ] {
            assert_eq!(of(&name), expected, "{name}");
        }
        for kind in [SavedKind::Replaced, SavedKind::Removed, SavedKind::Kept, SavedKind::Part] {
            assert_eq!(of(&kind.name()).0, kind);
        }
    }
}
