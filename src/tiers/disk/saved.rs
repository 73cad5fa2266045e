//! `.dlio-fs/saved` on the slow tree: what is kept for people, under its path in a directory of this host and time. Nothing
//! of ours is ever removed from it.

use std::io;
use std::sync::Arc;

use crate::error::Errno;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, split};
use crate::tiers::disk::{Dir, RenameMode};

/// In [`OURS`].
pub(crate) const SAVED: &[u8] = b"saved";

/// The name of a directory in [`SAVED`], and the end of the name of a conflict.
pub(crate) fn host_and_time() -> String {
    let host =
        nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok()).unwrap_or_else(|| "host".into());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_secs());
    format!("{}-{now}", host.replace('/', "-"))
}

/// Saves what is at `path` in the directory `time` of [`SAVED`], or in one with a number behind that if this has the path
/// already: makes the directories there, durably, calls `take` with the last of them and the name in it, and syncs that.
/// Returns the directory's name.
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

/// One that exists already will do.
pub(crate) fn make_dir(dir: &dyn Dir, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
    match dir.mkdir(name, 0o700) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => dir.dir(name),
    }
}

/// Never over something that is there.
pub(crate) fn move_to(from: &dyn Dir, name: &[u8], to: &dyn Dir, to_name: &[u8]) -> io::Result<()> {
    match from.rename(name, to, to_name, RenameMode::NoReplace) {
        // Not on every file system. Only we use the directory.
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => match absent_is_none(to.stat(to_name))? {
            Some(_) => Err(Errno::EEXIST.into()),
            None => from.rename(name, to, to_name, RenameMode::Replace),
        },
        moved => moved,
    }
}
