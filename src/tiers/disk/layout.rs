//! Our own directory on either tier, and names and small files in it.

use std::io;
use std::sync::Arc;

use nix::unistd::{getegid, geteuid};

use crate::error::{Context, Errno, Error, Result};
use crate::path::escape;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::{Access, Dir, Inode, NewAttr, REFUSALS, RenameMode, acl};

/// Our own directory at the root of the slow tier, and of each part of it that no rename reaches; not part of the tree.
pub(crate) const OURS: &[u8] = b".dlio-fs";

/// Extended attributes with this prefix are ours and never shown.
pub(crate) const PRIVATE: &[u8] = b"user.dlio.";

/// `super` and `id` are a few lines, `pins` some thousand.
pub(crate) const TEXT_MAX: u64 = 64 << 10;

/// Splits a path into its directory and last name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    (path.strip_suffix(name).and_then(|dir| dir.strip_suffix(b"/")).unwrap_or_default(), name)
}

/// The longest path stored in an attribute of an object or staged copy; of a longer path, its last names. ext4 has room
/// for some 4,000 bytes of attributes, and an escaped byte takes three.
const LABEL_MAX: usize = 1024;

pub(crate) fn label_of(path: &[u8]) -> &[u8] {
    let Some(last) = path.last_chunk::<LABEL_MAX>().filter(|last| last.len() < path.len()) else { return path };
    last.iter().position(|byte| *byte == b'/').and_then(|slash| last.get(slash + 1..)).unwrap_or(last)
}

/// The directories above a path, but for the root, from the top.
pub(crate) fn dirs_above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').filter_map(|(slash, _)| path.get(..slash))
}

/// Where `path` is after a rename of `from` to `to`; `None`: where it was.
pub(crate) fn after_move(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))?;
    Some([to, rest].concat())
}

pub(crate) fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// One of our own directories, made if it is missing. Nodes made in it inherit nothing.
pub(crate) fn ensure_dir(parent: &dyn Dir, name: &[u8]) -> Result<Arc<dyn Dir>> {
    let what = || escape(name);
    let (dir, made) = match parent.dir(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let made = match parent.mkdir(name, 0o700) {
                // Made by another mount over the same slow tree that starts at the same moment.
                Err(e) if is_taken(&e) => false,
                made => made.map(|()| true).at("create", what())?,
            };
            parent.sync().at("fsync", what())?;
            (parent.dir(name).at("open", what())?, made)
        }
        other => (other.at("open", what())?, false),
    };
    give_nothing_on(&*dir, made).at("set attributes of", what())?;
    Ok(dir)
}

/// Removes from one of our directories what nodes made in it would inherit: a default ACL, and the group (by the
/// set-group-ID bit or a mount option). A tier's root may have them, and `.dlio-fs` inherits them.
///
/// The project stays: a rename out of a directory with another project than its target's is refused (EXDEV).
pub(crate) fn give_nothing_on(dir: &dyn Dir, made: bool) -> io::Result<()> {
    const SETGID: u32 = 0o2000;
    let node = dir.inode(b".")?;
    let stat = node.stat()?;
    // In a part of the slow tree a user may have a directory of this name.
    if !made && ![0, geteuid().as_raw()].contains(&stat.uid) {
        return Ok(());
    }
    drop_lists(&*node, &[acl::DEFAULT, acl::ACCESS])?;
    let group = getegid().as_raw();
    if stat.perm & SETGID == 0 && stat.gid == group {
        return Ok(());
    }
    let new = NewAttr { gid: Some(group), perm: Some(stat.perm & !SETGID), ..NewAttr::default() };
    unless_refused(node.set_attr(&new)).map(|_| ())
}

/// Removes ACLs that a node has inherited from the directory it was made in. Without one nothing is changed.
pub(crate) fn drop_lists(node: &dyn Inode, keys: &[&[u8]]) -> io::Result<()> {
    for key in keys {
        if unless_refused(node.get_xattr(key))?.flatten().is_some() {
            unless_refused(node.remove_xattr(key))?;
        }
    }
    Ok(())
}

/// `None` on a tier that has no such attribute, or takes no change of it.
fn unless_refused<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(e) if e.raw_os_error().is_some_and(|code| is_refusal(Errno::from_raw(code))) => Ok(None),
        done => done.map(Some),
    }
}

fn is_refusal(errno: Errno) -> bool {
    REFUSALS.contains(&errno) || matches!(errno, Errno::EPERM | Errno::EROFS)
}

pub(crate) fn remove_leftover(tmp: &dyn Dir, name: &[u8]) -> Result<()> {
    match tmp.unlink(name) {
        Err(e) if e.raw_os_error() == Some(Errno::EISDIR as i32) => tmp.rmdir(name).at("remove", "leftover in tmp"),
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", "leftover in tmp", e)),
        _ => Ok(()),
    }
}

/// Removes a leftover with everything in it. Other processes may remove some of it meanwhile.
pub(crate) fn remove_tree(tmp: &dyn Dir, name: &[u8]) -> Result<()> {
    match remove_leftover(tmp, name) {
        Err(error) if matches!(error.errno(), Errno::ENOTEMPTY | Errno::EEXIST) => {}
        Err(error) if error.errno() == Errno::ENOENT => return Ok(()),
        removed => return removed,
    }
    let Some(dir) = absent_is_none(tmp.dir(name)).at("open", "leftover in tmp")? else { return Ok(()) };
    let entries = absent_is_none(dir.list()).at("list", "leftover in tmp")?.unwrap_or_default();
    entries.iter().try_for_each(|entry| remove_tree(&*dir, &entry.name))?;
    match remove_leftover(tmp, name) {
        Err(error) if error.errno() == Errno::ENOENT => Ok(()),
        removed => removed,
    }
}

pub(crate) fn read_text(dir: &dyn Dir, name: &[u8]) -> Result<Option<String>> {
    let what = || escape(name);
    let Some(file) = absent_is_none(dir.open(name, Access::Read)).at("open", what())? else { return Ok(None) };
    let len = file.stat().at("stat", what())?.size;
    let mut bytes = vec![0; len.min(TEXT_MAX) as usize];
    let got = file.read_at(&mut bytes, 0).at("read", what())?;
    bytes.truncate(got);
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes a file beside the old one, syncs, renames and syncs again: there is always one whole file.
pub(crate) fn replace_text(dir: &dyn Dir, name: &[u8], text: &str) -> Result<()> {
    let what = || escape(name);
    let beside = [name, b".new"].concat();
    remove_leftover(dir, &beside)?;
    let file = dir.create(&beside, 0o600).at("create", what())?;
    file.write_at(text.as_bytes(), 0).at("write", what())?;
    file.sync().at("fsync", what())?;
    dir.rename(&beside, dir, name, RenameMode::Replace).at("rename", what())?;
    dir.sync().at("fsync", what())
}

pub(crate) fn is_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AlreadyExists
}
