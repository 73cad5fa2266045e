//! The slow tree's root, opened before a mount hides it, or beneath a dead mount that hides it already.
//!
//! A mount over its own slow tier works because descriptors refer to the tree beneath: everything on the slow tier is
//! reached from the one opened here. When the daemon of such a mount has died, its dead mount is on top. Then the tree
//! is looked up in a private mount namespace of a thread, where the dead mount can be removed unnoticed; it is cloned
//! there, with everything mounted inside it, and the clone outlives the namespace.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{AccessFlags, eaccess};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::table::{self, MountEntry};
use crate::tiers::disk::held::HeldDir;

/// Opens the directory at `path`, or, if it is `hidden`, the one beneath our dead mounts there.
///
/// Errors: like `open(2)`; EPERM if it is hidden and this process may not make a mount namespace.
pub(super) fn open(path: &Path, hidden: bool) -> io::Result<HeldDir> {
    match hidden {
        true => Ok(HeldDir::new(clone_hidden(path)?, path)),
        false => HeldDir::open(path),
    }
}

/// Whether this user may create entries in it. Errors: EACCES and others like `access(2)`; a file system that is
/// mounted read-only is no error.
pub(super) fn is_writable(dir: &HeldDir) -> io::Result<bool> {
    match eaccess(&dir.by_descriptor(), AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Ok(true),
        Err(Errno::EROFS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn clone_hidden(path: &Path) -> io::Result<OwnedFd> {
    let path = path.to_path_buf();
    // The namespace belongs to the thread, and ends with it.
    let found = std::thread::Builder::new().name("dlio-beneath".into()).spawn(move || open_hidden(&path))?;
    found.join().unwrap_or_else(|_| Err(io::Error::other("looking beneath the mount panicked")))
}

fn open_hidden(path: &Path) -> io::Result<OwnedFd> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Changes here must not reach the namespace of the other threads.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    let top_is_ours = || {
        let mounts = table::mounts_of_this_thread().map_err(io::Error::other)?;
        Ok::<_, io::Error>(table::mounted_at(&mounts, path).is_some_and(MountEntry::is_ours))
    };
    while top_is_ours()? {
        umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, path, flags)?)
}
