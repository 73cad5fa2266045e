//! One owner per fast tier (promise P7): a lock that names its holder, and on leaving says what was left behind.
//!
//! The lock is `flock(2)` on `<fast>/.dlio-fs/lock`; it ends with the process, so nothing stale can be in the way. The
//! text in the file is for people and for `dlio-fs umount`, never a reason to believe that somebody holds it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::Left;
use crate::error::{Context, Error, Result};

/// What is ours on either tier.
pub const PRIVATE_DIR: &str = ".dlio-fs";

/// Held for as long as the daemon may touch the fast tier.
#[derive(Debug)]
pub struct FastLock {
    file: Flock<File>,
    path: PathBuf,
}

impl FastLock {
    /// Takes the lock, making the private directory if it is not there. Refuses, naming the holder.
    pub fn take(fast: &Path, mountpoint: &Path) -> Result<FastLock> {
        let path = fast.join(PRIVATE_DIR).join("lock");
        match DirBuilder::new().mode(0o700).create(fast.join(PRIVATE_DIR)) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e).at("mkdir", path.display()),
            _ => {}
        }
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = open.custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path).at("open", path.display())?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => {
                let mut lock = FastLock { file, path };
                lock.write(&Holder::ourselves(mountpoint).to_string())?;
                Ok(lock)
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                file.read_to_string(&mut text).at("read", path.display())?;
                Err(held(fast, text.lines().next().unwrap_or_default()))
            }
            Err((_, errno)) => Err(io::Error::from(errno)).at("lock", path.display()),
        }
    }

    /// Says what only the fast tier has, then gives the lock back.
    pub(super) fn leave(mut self, left: &Left) -> Result<()> {
        let mut text = format!("left files={} events={}\n", left.files, left.events);
        for path in &left.paths {
            text.push_str(path);
            text.push('\n');
        }
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let file: &mut File = &mut self.file;
        let written =
            file.seek(SeekFrom::Start(0)).and_then(|_| file.set_len(0)).and_then(|()| file.write_all(text.as_bytes()));
        written.at("write", self.path.display())
    }
}

fn held(fast: &Path, holder: &str) -> Error {
    // A holder that has not written its line yet is still a holder.
    let by = if holder.is_empty() { "another daemon".to_owned() } else { format!("a daemon ({holder})") };
    let what = format!("--fast {} is in use by {by}", fast.display());
    Error::refused(
        what,
        "one fast tier serves one mount: leave that mount with dlio-fs umount, or use another directory",
    )
}

/// Who holds a lock, as one readable line.
struct Holder {
    host: String,
    pid: u32,
    mountpoint: String,
    since: SystemTime,
}

impl Holder {
    fn ourselves(mountpoint: &Path) -> Holder {
        let host = nix::unistd::gethostname().map_or_else(|_| "unknown".into(), |h| h.to_string_lossy().into_owned());
        let mountpoint = crate::path::escape(mountpoint.as_os_str().as_encoded_bytes());
        Holder { host, pid: std::process::id(), mountpoint, since: SystemTime::now() }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = humantime::format_rfc3339_seconds(self.since);
        writeln!(f, "host={} pid={} mountpoint={} since={since}", self.host, self.pid, self.mountpoint)
    }
}

/// What the last daemon of a fast tier left behind. `None` while one holds it, or if none ever left cleanly.
pub fn last_left(fast: &Path) -> Option<Left> {
    let file = File::open(fast.join(PRIVATE_DIR).join("lock")).ok()?;
    let mut file = Flock::lock(file, FlockArg::LockSharedNonblock).ok()?;
    let mut text = String::new();
    let opened: &mut File = &mut file;
    opened.read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    let (files, events) = lines.next()?.strip_prefix("left files=")?.split_once(" events=")?;
    let (files, events) = (files.parse().ok()?, events.parse().ok()?);
    Some(Left { files, events, paths: lines.map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_naming_the_first() {
        let fast = tempfile::tempdir().expect("a temporary directory");
        let first = FastLock::take(fast.path(), Path::new("/mnt/a b")).expect("free");
        let text = FastLock::take(fast.path(), Path::new("/mnt/b")).expect_err("held").to_string();
        assert!(text.contains(&format!("pid={}", std::process::id())), "{text}");
        assert!(text.contains("mountpoint=/mnt/a%20b") && text.contains("host="), "{text}");
        assert!(last_left(fast.path()).is_none(), "held");
        drop(first);
        assert!(last_left(fast.path()).is_none(), "the first did not leave cleanly");
        FastLock::take(fast.path(), Path::new("/mnt/b")).expect("free again");
    }

    #[test]
    fn what_was_left_is_read_back() {
        let fast = tempfile::tempdir().expect("a temporary directory");
        assert!(last_left(fast.path()).is_none());
        let lock = FastLock::take(fast.path(), Path::new("/mnt")).expect("free");
        let left = Left { files: 2, events: 5, paths: vec!["a".into(), "b%20c".into()] };
        lock.leave(&left).expect("written");
        assert_eq!(last_left(fast.path()), Some(left));
    }
}
