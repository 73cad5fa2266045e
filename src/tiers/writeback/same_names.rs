//! Members of a fleet that change the same name: the change that is published later wins.
//!
//! Without a fleet, an unexpected node belongs to another program: it keeps its name, and ours goes beside it. Members
//! expect nothing of each other. All of them write `latest`, and one of them removes an old checkpoint with files of
//! others that it does not see yet. The gate publishes events in order, so a node that an event finds was begun before
//! the event ended. If its member reported it as older than the event, it is replaced or removed, as on one machine. If
//! it overlaps the event, it goes to `saved` on the slow tree, under its path in a directory of this host and time, and
//! the event is applied as if it had found what it expects. It stays in `saved` for at least `saved_age`.
//!
//! 1. Make the directories in `saved`, durably.
//! 2. Give a file that is in the way a second name there, or move it if it cannot have two. A file that an exchange has
//!    already brought to `tmp` is moved. All files in a directory are moved, and the directory is removed: if it were
//!    moved itself, processes that have it open would continue in `saved`.
//! 3. Sync its directory in `saved`.
//! 4. Give ours its name, if it has not got it yet: from `tmp` by an exchange, which shows whether a third program has
//!    put another file there meanwhile; that is saved, too.
//!
//! A crash before step 4 leaves a second name in `saved`, and a start repeats all steps.

use std::io;

use crate::error::Errno;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::OURS;
use crate::tiers::disk::saved::{SavedKind, move_to, save};
use crate::tiers::disk::{Dir, Kind, RenameMode};
use crate::tiers::log::record::Path;
use crate::tiers::writeback::open_tree::OpenTree;
use crate::tiers::writeback::step::put_aside;

/// Errors that mean: cannot be given a name in `saved`. It is on another file system, is a mount point, the call is not
/// supported, or there is no room.
const NOT_THERE: [Errno; 8] = [
    Errno::EXDEV,
    Errno::EBUSY,
    Errno::EPERM,
    Errno::EMLINK,
    Errno::EOPNOTSUPP,
    Errno::ENOSYS,
    Errno::ENOSPC,
    Errno::EDQUOT,
];
/// How often a directory is emptied, and a name looked at: other programs change them meanwhile.
const TRIES: u32 = 10;

impl OpenTree<'_> {
    /// Puts ours in place of another program's file at `path`, which is `name` in `dir`. `in_tmp`: ours waits there.
    /// `false`: there is no fleet, or one of them is a directory, or theirs cannot be saved. Then nothing is done.
    pub(super) fn claim_name(
        &self,
        (from, ours): (&dyn Dir, &[u8]),
        (dir, name): (&dyn Dir, &[u8]),
        path: &[u8],
        in_tmp: bool,
    ) -> io::Result<bool> {
        if !self.slow.in_fleet || from.stat(ours)?.kind == Kind::Dir {
            return Ok(false);
        }
        for _ in 0..TRIES {
            let Some(theirs) = absent_is_none(dir.stat_now(name))? else { break };
            if theirs.kind == Kind::Dir {
                return Ok(false);
            }
            let is_older = self.was_there(path, theirs.ino);
            let linked = is_older || self.save(path, |saved, as_name| dir.link(name, saved, as_name))?; // 1, 2, 3
            if !linked && !self.save(path, |saved, as_name| move_to(dir, name, saved, as_name))? {
                return Ok(false);
            }
            match if in_tmp { from.rename(ours, dir, name, RenameMode::Exchange) } else { Err(Errno::EINVAL.into()) } {
                // 4
                Ok(()) if from.stat(ours)?.ino == theirs.ino => return from.unlink(ours).map(|()| true),
                Ok(()) if self.save_exchanged(from, ours, path)? => return Ok(true),
                Ok(()) => return from.rename(ours, from, &put_aside(ours), RenameMode::Replace).map(|()| true),
                // It was moved, or another program has removed it.
                Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => {}
                Err(e) => return Err(e),
            }
            if absent_is_none(dir.stat_now(name))?.is_none_or(|there| there.ino == theirs.ino) {
                break;
            }
        }
        from.rename(ours, dir, name, RenameMode::Replace).map(|()| true) // 4
    }

    /// Saves the file that an exchange brought to `tmp` in place of ours. `false`: there is no fleet, it is a
    /// directory, or it cannot be saved.
    pub(super) fn save_exchanged(&self, from: &dyn Dir, tmp: &[u8], path: &[u8]) -> io::Result<bool> {
        let theirs = from.stat(tmp)?;
        if !self.slow.in_fleet || theirs.kind == Kind::Dir {
            return Ok(false);
        }
        if self.was_there(path, theirs.ino) {
            return from.unlink(tmp).map(|()| true);
        }
        self.save(path, |saved, as_name| move_to(from, tmp, saved, as_name))
    }

    /// Removes a directory for an event of ours, and saves what others have put into it. `false`: there is no fleet, or
    /// something in it cannot be moved.
    pub(super) fn save_dir(&self, above: &dyn Dir, name: &[u8], path: &[u8]) -> io::Result<bool> {
        if !self.slow.in_fleet {
            return Ok(false);
        }
        for _ in 0..TRIES {
            let Some(dir) = absent_is_none(above.dir(name))? else { return Ok(true) };
            for entry in self.slow.list(&*dir)? {
                let below = [path, b"/", &entry.name].concat();
                let is_saved = match entry.kind {
                    // The root of a part holds the waiting copies of all members.
                    Kind::Dir if entry.name == OURS => false,
                    Kind::Dir => self.save_dir(&*dir, &entry.name, &below)?,
                    _ if self.was_there(&below, entry.ino) => {
                        self.slow.note_removed(entry.ino);
                        absent_is_none(dir.unlink(&entry.name)).map(|_| true)?
                    }
                    _ => self.save(&below, |saved, as_name| move_to(&*dir, &entry.name, saved, as_name))?,
                };
                if !is_saved {
                    return Ok(false);
                }
            }
            match absent_is_none(above.rmdir(name)) {
                // Another program has just put something into it.
                Err(e) if e.raw_os_error() == Some(Errno::ENOTEMPTY as i32) => {}
                Err(e) if e.raw_os_error() == Some(Errno::EBUSY as i32) => return Ok(false),
                removed => return removed.map(|_| true),
            }
        }
        Ok(false)
    }

    /// Steps 1 to 3: `take` gives the file a name in a directory. `false`: it cannot have one there.
    fn save(&self, path: &[u8], take: impl Fn(&dyn Dir, &[u8]) -> io::Result<()>) -> io::Result<bool> {
        match save(&self.slow.root, &SavedKind::Replaced.name(), path, take) {
            Ok(time) => {
                let place = format!(".dlio-fs/saved/{time}").into_bytes();
                self.saved.borrow_mut().push((path.to_vec(), place));
                Ok(true)
            }
            Err(e) if NOT_THERE.iter().any(|errno| e.raw_os_error() == Some(*errno as i32)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// What was saved since the last call: its path, and the directory that now has it.
    pub(super) fn pop_saved(&self) -> Vec<(Path, Path)> {
        self.saved.take()
    }
}
