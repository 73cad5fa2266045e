//! Directories that are resolved once: what is checked is what is used, even if the path leads elsewhere by then.
//!
//! A path in a configuration may lead through a directory of a user, who can replace any of it at any moment by a link
//! to somewhere else. So `HeldDir::find` follows no link of another user, and everything after that goes through the
//! descriptor.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use nix::unistd::geteuid;

use crate::error::Errno;

/// As many links as the kernel follows in one path.
const LINKS_MAX: u32 = 40;
const FOUND: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
const FOUND_DIR: OFlag = FOUND.union(OFlag::O_DIRECTORY);

/// A directory, with the descriptor that must stay open while anything in it is used.
#[derive(Debug)]
pub struct HeldDir {
    dir: OwnedFd,
    path: PathBuf,
}

impl HeldDir {
    /// `path` is how the user knows it.
    pub(crate) fn new(dir: OwnedFd, path: &Path) -> Self {
        HeldDir { dir, path: path.to_path_buf() }
    }

    /// Opens a directory and follows all links: the caller checks what it has opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(HeldDir::new(open(path, flags, Mode::empty())?, path))
    }

    /// Finds a directory without following links of users other than root and this one; with a mode, makes missing
    /// directories.
    pub(crate) fn find(path: &Path, make: Option<u32>) -> io::Result<Self> {
        match walk(path, make)? {
            (dir, None) => HeldDir::new(dir, path).with_real_path(),
            (dir, Some(name)) => {
                HeldDir::new(dir, path).at(name).symlink_metadata().and_then(|_| Err(Errno::ENOTDIR.into()))
            }
        }
    }

    /// Like [`HeldDir::find`], for the directory of a file that may not exist yet; also returns the file's name in it,
    /// which is not a link.
    pub(crate) fn find_file(path: &Path) -> io::Result<(Self, OsString)> {
        match walk(path, None)? {
            (dir, Some(name)) => Ok((HeldDir::new(dir, path).with_real_path()?, name)),
            (_, None) => Err(Errno::EISDIR.into()),
        }
    }

    fn with_real_path(self) -> io::Result<Self> {
        let path = std::fs::read_link(self.by_descriptor())?;
        Ok(HeldDir { path, ..self })
    }

    /// How the user knows it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path that leads to it while this value lives, whatever happens to the names above it.
    pub fn by_descriptor(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))
    }

    /// A path to a name in it, valid while this value lives.
    pub fn at(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.by_descriptor().join(name.as_ref())
    }
}

/// Reads a file without following other users' links.
pub(crate) fn read_file(path: &Path) -> io::Result<String> {
    let (dir, name) = HeldDir::find_file(path)?;
    io::read_to_string(open_file(&dir, &name)?)
}

/// Opens a regular file for reading. Fails if the name has become a link, or a fifo, which would block.
pub(crate) fn open_file(dir: &HeldDir, name: &OsStr) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(dir.at(name))?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// The last directory on the path, and the name behind it unless that is a directory.
fn walk(path: &Path, make: Option<u32>) -> io::Result<(OwnedFd, Option<OsString>)> {
    let root = || open("/", FOUND_DIR, Mode::empty());
    let mut at = if path.has_root() { root()? } else { open(".", FOUND_DIR, Mode::empty())? };
    // The next name is the last element.
    let (mut left, mut links) = (names(path), 0);
    while let Some(name) = left.pop() {
        // Opened as a directory, so that an automounter mounts it.
        match (openat(&at, &*name, FOUND_DIR, Mode::empty()), make) {
            (Ok(dir), _) => {
                at = dir;
                continue;
            }
            (Err(Errno::ENOENT), Some(mode)) => {
                match mkdirat(&at, &*name, Mode::from_bits_truncate(mode)) {
                    Ok(()) | Err(Errno::EEXIST) => at = openat(&at, &*name, FOUND_DIR, Mode::empty())?,
                    Err(errno) => return Err(errno.into()),
                }
                continue;
            }
            (Err(Errno::ENOENT), None) if left.is_empty() => return Ok((at, Some(name))),
            (Err(Errno::ENOTDIR), _) => {}
            (Err(errno), _) => return Err(errno.into()),
        }
        let found = openat(&at, &*name, FOUND, Mode::empty())?;
        let stat = fstat(&found)?;
        if stat.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFLNK.bits() {
            return if left.is_empty() { Ok((at, Some(name))) } else { Err(Errno::ENOTDIR.into()) };
        }
        if ![0, geteuid().as_raw()].contains(&stat.st_uid) {
            let what = format!("{name:?} is a link of user {}, which is not followed", stat.st_uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::ELOOP.into());
        }
        let target = PathBuf::from(readlinkat(&found, "")?);
        if target.has_root() {
            at = root()?;
        }
        left.extend(names(&target));
    }
    Ok((at, None))
}

/// The names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(is_name).map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    use nix::unistd::Uid;

    use super::*;

    #[test]
    fn a_path_leads_where_the_kernel_would_lead_it() {
        let top = tempfile::tempdir().expect("a directory");
        let top = top.path().canonicalize().expect("it is there");
        fs::create_dir_all(top.join("a/b")).expect("made");
        fs::write(top.join("a/file"), "text").expect("written");
        symlink("a", top.join("relative")).expect("linked");
        symlink(top.join("a"), top.join("a/b/absolute")).expect("linked");
        symlink("../a/file", top.join("a/link")).expect("linked");
        symlink("new", top.join("a/to-new")).expect("linked");
        symlink("loop", top.join("loop")).expect("linked");
        for path in ["a/b", "relative/b/", "a/./b/../b", "a/b/absolute/b/absolute", "relative/../a"] {
            let found = HeldDir::find(&top.join(path), None).expect(path);
            assert_eq!(found.path(), top.join(path).canonicalize().expect(path));
        }
        for (path, name) in [("a/file", "file"), ("a/b/absolute/link", "file"), ("a/to-new", "new"), ("a/none", "none")]
        {
            let (dir, found) = HeldDir::find_file(&top.join(path)).expect(path);
            assert_eq!((dir.path(), &*found), (&*top.join("a"), OsStr::new(name)), "{path}");
        }
        assert_eq!(read_file(&top.join("relative/link")).expect("read"), "text");
        let errno = |found: io::Result<HeldDir>| found.expect_err("refused").raw_os_error().map(Errno::from_raw);
        assert_eq!(errno(HeldDir::find(&top.join("loop"), None)), Some(Errno::ELOOP));
        assert_eq!(errno(HeldDir::find(&top.join("none/b"), None)), Some(Errno::ENOENT));
        assert_eq!(errno(HeldDir::find(&top.join("a/file"), None)), Some(Errno::ENOTDIR));
        assert_eq!(errno(HeldDir::find(&top.join("a/file/b"), None)), Some(Errno::ENOTDIR));
        let made = HeldDir::find(&top.join("relative/new/deep"), Some(0o700)).expect("made");
        assert_eq!(made.path(), top.join("a/new/deep"));
    }

    #[test]
    fn what_is_held_is_the_same_when_its_name_leads_elsewhere_and_no_link_of_others_is_followed() {
        let top = tempfile::tempdir().expect("a directory");
        let (dir, before, other) = (top.path().join("dir"), top.path().join("before"), top.path().join("other"));
        fs::create_dir(&dir).and_then(|()| fs::create_dir(&other)).expect("made");
        let held = HeldDir::find(&dir, None).expect("there");
        fs::rename(&dir, &before).and_then(|()| symlink(&other, &dir)).expect("exchanged");
        fs::write(held.at("new"), "").expect("written");
        assert!(before.join("new").exists() && !other.join("new").exists());
        assert_eq!(HeldDir::find(&dir, None).expect("our own link").path(), other.canonicalize().expect("there"));
        if Uid::effective().is_root() {
            lchown(&dir, Some(1001), None).expect("root may");
            for refused in [HeldDir::find(&dir, None), HeldDir::find(&dir.join("below"), Some(0o700))] {
                assert!(refused.expect_err("refused").to_string().contains("is a link of user 1001"));
            }
            assert!(read_file(&dir).is_err() && !other.join("below").exists());
        }
    }
}
