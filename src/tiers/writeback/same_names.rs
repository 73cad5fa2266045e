//! Members of a fleet that change the same name: the change that is published later wins.
//!
//! Without a fleet, what an event of ours does not expect is somebody else's: it keeps its name, and ours goes beside
//! it. Members expect nothing of each other. All of them write `latest`, and one of them removes an old checkpoint in
//! which others have files that it does not see yet. The gate lets events go in their order, so what is met here began
//! before the event that meets it was over. It goes to `saved` on the slow tree, under its path in a directory of this
//! host and time, and the event is applied as if it had met what it expects. Nobody deletes what is in `saved`.
//!
//! 1. Make the directories in `saved`, durably.
//! 2. Give a file that is in the way a second name there, or move it if it cannot have two. A directory is moved with all
//!    that is in it, and so is a file that an exchange has brought to `tmp` already.
//! 3. Sync its directory in `saved`.
//! 4. Rename ours to its name, if it has not got that by now.
//!
//! A crash before step 4 leaves a second name in `saved`, and a start does all steps again.

use std::io;

use crate::error::Errno;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::OURS;
use crate::tiers::disk::saved::{host_and_time, move_to, save};
use crate::tiers::disk::{Dir, Kind, RenameMode};
use crate::tiers::log::record::Path;
use crate::tiers::writeback::open_tree::OpenTree;

/// Why something cannot be given a name in `saved`: it is on another file system, a mount point, or the file system
/// has no such call.
const NOT_THERE: [Errno; 6] =
    [Errno::EXDEV, Errno::EBUSY, Errno::EPERM, Errno::EMLINK, Errno::EOPNOTSUPP, Errno::ENOSYS];

impl OpenTree<'_> {
    /// Puts ours in the place of somebody else's file at `path`, which is `name` in `dir`. `false`: there is no fleet, or
    /// one of them is a directory, or theirs cannot be saved. Nothing is done then.
    pub(super) fn take_name(
        &self,
        (from, ours): (&dyn Dir, &[u8]),
        (dir, name): (&dyn Dir, &[u8]),
        path: &[u8],
    ) -> io::Result<bool> {
        if !self.slow.in_fleet || [from.stat(ours)?, dir.stat(name)?].iter().any(|stat| stat.kind == Kind::Dir) {
            return Ok(false);
        }
        let linked = self.save(path, |saved, as_name| dir.link(name, saved, as_name))?;
        if !linked && !self.save(path, |saved, as_name| move_to(dir, name, saved, as_name))? {
            return Ok(false);
        }
        from.rename(ours, dir, name, RenameMode::Replace).map(|()| true) // 4
    }

    /// Saves what an exchange has brought to `tmp` in the place of ours. `false`: there is no fleet, or it is a directory,
    /// or it cannot be saved.
    pub(super) fn save_exchanged(&self, from: &dyn Dir, tmp: &[u8], path: &[u8]) -> io::Result<bool> {
        if !self.slow.in_fleet || from.stat(tmp)?.kind == Kind::Dir {
            return Ok(false);
        }
        self.save(path, |saved, as_name| move_to(from, tmp, saved, as_name))
    }

    /// Moves a directory that one of ours removes away with what others have put into it. `false`: there is no fleet, or it
    /// cannot be moved.
    pub(super) fn save_dir(&self, above: &dyn Dir, name: &[u8], path: &[u8]) -> io::Result<bool> {
        // The root of a part has the copies of all members that wait for their turn there.
        if !self.slow.in_fleet || absent_is_none(above.dir(name)?.stat(OURS))?.is_some() {
            return Ok(false);
        }
        self.save(path, |saved, as_name| move_to(above, name, saved, as_name))
    }

    /// Steps 1 to 3: `take` gives it a name in a directory. `false`: it cannot have one there.
    fn save(&self, path: &[u8], take: impl Fn(&dyn Dir, &[u8]) -> io::Result<()>) -> io::Result<bool> {
        match save(&self.slow.root, &host_and_time(), path, take) {
            Ok(time) => {
                let place = format!(".dlio-fs/saved/{time}").into_bytes();
                self.saved.borrow_mut().push((path.to_vec(), place));
                Ok(true)
            }
            Err(e) if NOT_THERE.iter().any(|errno| e.raw_os_error() == Some(*errno as i32)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// What was saved since this was asked: its path, and the directory in which it has that path now.
    pub(super) fn take_saved(&self) -> Vec<(Path, Path)> {
        self.saved.take()
    }
}
