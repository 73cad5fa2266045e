//! Files of `saved` get their names in the tree back, where no newer file has them.
//!
//! For each directory in `saved`:
//!
//! 1. Make the missing directories of the tree above it, durably. Each is made in `saved`, with the owner of the file,
//!    and moved: no other user can put another one in its place meanwhile.
//! 2. Move each file whose name is free, never over another. If an older file has the name, exchange the two: the older
//!    one is in `saved` from then on, whose age begins anew.
//! 3. Sync the directory of the tree, then the one in `saved`.
//!
//! A file has one name or the other at any time. Where the slow tier can neither move without replacing nor exchange
//! (NFS), the file first gets its second name, durably, and the file in its way a second name in `saved`. After a crash
//! the same command continues.

use std::io;
use std::sync::Arc;

use uuid::Uuid;

use crate::error::{Context, Errno, Error, Result};
use crate::path::escape;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, is_at_or_below, is_taken, split};
use crate::tiers::disk::saved::{SavedKind, below, dirs_below, join, open, save};
use crate::tiers::disk::{Dir, Kind, NewAttr, RenameMode, Stat, Time};

const MODE: u32 = 0o755;
/// The errors of a file system that lacks a call.
const LACKS: [Errno; 3] = [Errno::EINVAL, Errno::ENOSYS, Errno::EOPNOTSUPP];

/// The outcome for a directory of `saved`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Files that have their names again, and those of them that have taken the place of an older one.
    pub files: u64,
    pub exchanged: u64,
    /// The paths of files that stay, and why.
    pub left: Vec<(Vec<u8>, String)>,
}

/// The outcome for a file.
enum AdoptedFile {
    Placed,
    Exchanged,
    Left(String),
}

/// Gives the files at or below `path` in the directory `name` of `saved` their names in the tree. `now` is by the machine's clock.
///
/// Errors: there is no such directory, or it is not whole; or the slow tier fails.
pub fn adopt(slow: &Arc<dyn Dir>, name: &[u8], path: &[u8], now: Time) -> Result<Adopted> {
    let shown = || format!(".dlio-fs/saved/{}", escape(name));
    let saved = open(&**slow)?;
    let top = saved.as_ref().map(|saved| absent_is_none(saved.dir(name))).transpose().at("open", shown())?.flatten();
    let refused = |why: &str, remedy: &str| Err(Error::refused(format!("{} {why}", shown()), remedy));
    let Some((saved, top)) = saved.zip(top) else {
        return refused("is not there", "see which there are: dlio-fs saved SLOW");
    };
    if SavedKind::of(name).0 == SavedKind::Part {
        return refused("is not whole", "its files may be cut off; look at each, and copy what you need");
    }
    let mut adoption = Adoption { slow, top: &top, name: escape(name), now, adopted: Adopted::default() };
    adoption.all(path).at("adopt", shown())?;
    // A directory with contents stays.
    saved.rmdir(name).ok();
    saved.sync().at("fsync", ".dlio-fs/saved")?;
    Ok(adoption.adopted)
}

struct Adoption<'a> {
    slow: &'a Arc<dyn Dir>,
    /// The directory of `saved`.
    top: &'a Arc<dyn Dir>,
    name: String,
    now: Time,
    adopted: Adopted,
}

impl Adoption<'_> {
    fn all(&mut self, path: &[u8]) -> io::Result<()> {
        let dirs = dirs_below(self.top, |_, _| Ok(()))?;
        dirs.iter().try_for_each(|dir| self.files_in(dir, path))?;
        for dir in dirs.iter().rev().filter(|dir| !dir.is_empty()) {
            let (above, last) = split(dir);
            // A directory with contents stays.
            below(self.top, above).and_then(|above| above.rmdir(last)).ok();
        }
        self.top.sync()
    }

    fn files_in(&mut self, dir: &[u8], wanted: &[u8]) -> io::Result<()> {
        let from = below(self.top, dir)?;
        let files = from
            .list()?
            .into_iter()
            .filter(|entry| entry.kind != Kind::Dir)
            .map(|entry| (join(dir, &entry.name), entry.name));
        let mut to = None;
        for (path, name) in files.filter(|(path, _)| is_at_or_below(path, wanted)) {
            match self.file(&from, &name, &path, &mut to) {
                Ok(AdoptedFile::Placed) => self.adopted.files += 1,
                Ok(AdoptedFile::Exchanged) => {
                    self.adopted.files += 1;
                    self.adopted.exchanged += 1;
                }
                Ok(AdoptedFile::Left(why)) => self.adopted.left.push((path, why)),
                Err(e) if is_refusal(&e) => self.adopted.left.push((path, e.to_string())),
                Err(e) => return Err(e),
            }
        }
        if let Some(to) = to {
            to.sync()?;
            from.sync()?; // 3
        }
        Ok(())
    }

    /// `to`: the directory of the tree, once it was found or made.
    fn file(
        &self,
        from: &Arc<dyn Dir>,
        name: &[u8],
        path: &[u8],
        to: &mut Option<Arc<dyn Dir>>,
    ) -> io::Result<AdoptedFile> {
        let ours = from.stat(name)?;
        let to = match to {
            Some(to) => to,
            None => to.insert(self.made(&**from, split(path).0, &ours)?), // 1
        };
        match absent_is_none(to.stat_now(name))? {
            None => place(&**from, name, &**to), // 2
            // It has both names: a crash came before it lost this one.
            Some(there) if there.id() == ours.id() => from.unlink(name).map(|()| AdoptedFile::Placed),
            Some(there) if there.kind == Kind::Dir => Ok(AdoptedFile::Left("a directory has its name".to_owned())),
            Some(there) if there.mtime >= ours.mtime => {
                Ok(AdoptedFile::Left("what is there is newer, or as new".to_owned()))
            }
            Some(there) => self.exchange(&**from, name, &**to, path, &there), // 2
        }
    }

    /// The directory of the tree at this path.
    fn made(&self, from: &dyn Dir, path: &[u8], owner: &Stat) -> io::Result<Arc<dyn Dir>> {
        let mut dir = self.slow.clone();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if name == OURS {
                return Err(Errno::EPERM.into());
            }
            dir = match dir.dir(name) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => make(from, &*dir, name, owner)?,
                found => found?,
            };
        }
        Ok(dir)
    }

    fn exchange(
        &self,
        from: &dyn Dir,
        name: &[u8],
        to: &dyn Dir,
        path: &[u8],
        there: &Stat,
    ) -> io::Result<AdoptedFile> {
        // The age of these contents counts from now on.
        self.top.set_attr(b".", &NewAttr { mtime: Some(self.now), ..NewAttr::default() })?;
        match from.rename(name, to, name, RenameMode::Exchange) {
            Err(e) if lacks(&e) => return self.replace(from, name, to, path),
            exchanged => exchanged?,
        }
        if from.stat(name)?.id() == there.id() {
            return Ok(AdoptedFile::Exchanged);
        }
        from.rename(name, to, name, RenameMode::Exchange)?;
        Ok(AdoptedFile::Left("somebody has replaced what is there meanwhile".to_owned()))
    }

    /// Without an exchange: the present file first gets its name in another directory of `saved`.
    fn replace(&self, from: &dyn Dir, name: &[u8], to: &dyn Dir, path: &[u8]) -> io::Result<AdoptedFile> {
        save(self.slow, &self.name, path, |saved, as_name| to.link(name, saved, as_name))?;
        from.rename(name, to, name, RenameMode::Replace).map(|()| AdoptedFile::Exchanged)
    }
}

/// Makes a directory in the tree, or finds the one that another program has made meanwhile.
fn make(from: &dyn Dir, above: &dyn Dir, name: &[u8], owner: &Stat) -> io::Result<Arc<dyn Dir>> {
    let new = Uuid::new_v4().to_string().into_bytes();
    from.mkdir(&new, MODE)?;
    let dir = from.dir(&new)?;
    let attrs = NewAttr { uid: Some(owner.uid), gid: Some(owner.gid), perm: Some(MODE), ..NewAttr::default() };
    match dir.set_attr(b".", &attrs) {
        // Fails on a tier that gives all files one owner.
        Err(e) if !is_refusal(&e) => return Err(e),
        _ => dir.sync()?,
    }
    let moved = match from.rename(&new, above, name, RenameMode::NoReplace) {
        // A directory replaces only an empty one.
        Err(e) if lacks(&e) => from.rename(&new, above, name, RenameMode::Replace),
        moved => moved,
    };
    match moved {
        Ok(()) => above.sync().map(|()| dir),
        Err(e) => {
            from.rmdir(&new)?;
            if is_taken(&e) { above.dir(name) } else { Err(e) }
        }
    }
}

fn place(from: &dyn Dir, name: &[u8], to: &dyn Dir) -> io::Result<AdoptedFile> {
    match from.rename(name, to, name, RenameMode::NoReplace) {
        Err(e) if lacks(&e) => {
            to_two_names(from, name, to)?;
            from.unlink(name).map(|()| AdoptedFile::Placed)
        }
        Err(e) if is_taken(&e) => Ok(AdoptedFile::Left("somebody has taken its name meanwhile".to_owned())),
        moved => moved.map(|()| AdoptedFile::Placed),
    }
}

fn to_two_names(from: &dyn Dir, name: &[u8], to: &dyn Dir) -> io::Result<()> {
    from.link(name, to, name)?;
    to.sync()
}

fn lacks(error: &io::Error) -> bool {
    LACKS.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// Concerns this one file: others may get their names.
fn is_refusal(error: &io::Error) -> bool {
    const ABOUT_IT: [Errno; 10] = [
        Errno::EXDEV,
        Errno::EPERM,
        Errno::EACCES,
        Errno::ENOTDIR,
        Errno::ELOOP,
        Errno::EEXIST,
        Errno::ENOENT,
        Errno::EMLINK,
        Errno::EBUSY,
        Errno::EISDIR,
    ];
    lacks(error) || ABOUT_IT.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}
