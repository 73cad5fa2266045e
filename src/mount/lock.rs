//! One owner per fast tier (promise P7): a lock that names its holder. On leaving, the holder notes there what only the
//! fast tier has.
//!
//! The lock is `flock(2)` on `<fast>/.dlio-fs/lock`; it ends with the process, so there are no stale locks. The text in
//! the file is for users and for `dlio-fs umount`; it never means that the lock is held.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{self, Flock, FlockArg, OFlag};
use nix::sys::stat::Mode;
use tracing::warn;

use super::left::Left;
use super::process::{is_ending, standstill};
use super::table::mounts_of;
use crate::error::{Context, Error, Result};
use crate::path::{Show as _, harmless, unescape};
use crate::tiers::disk::held::HeldDir;

/// The name of our directory on either tier.
pub const PRIVATE_DIR: &str = ".dlio-fs";
/// The lock's path on the fast tier.
pub(super) const LOCK_FILE: &str = ".dlio-fs/lock";

/// Longer text in the lock is not ours.
const TEXT_MAX: u64 = 16 << 20;

/// A holder's line is at most this long: a host name and two paths, in which each byte may be escaped.
const LINE_MAX: u64 = 32 << 10;

/// How long a daemon may take to release its lock once it was killed, or lost its mount.
const ENDING: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// Held for as long as the daemon may touch the fast tier. If the holder changed nothing there (a refused start, a
/// rescue), dropping it restores the last daemon's text.
#[derive(Debug)]
pub struct FastLock {
    file: Flock<File>,
    path: PathBuf,
    /// The text before ours, while it is still true.
    before: Option<String>,
    /// The tier is read-only: nothing is written into the lock either.
    read_only: bool,
}

/// The least size of the lock on the disk.
const BLOCK: usize = 512;

impl FastLock {
    /// Takes the lock, making the private directory if it is not there. If it is held, the refusal names the holder.
    pub fn acquire(fast: &HeldDir, owner: &Owner) -> Result<FastLock> {
        match DirBuilder::new().mode(0o700).create(fast.at(PRIVATE_DIR)) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(e).at("mkdir", fast.path().join(PRIVATE_DIR).shown());
            }
            _ => {}
        }
        FastLock::acquire_in(fast, owner, true)
    }

    /// Like [`FastLock::acquire`], for a tier that is only read, and may be unwritable.
    pub fn acquire_to_read(fast: &HeldDir, owner: &Owner) -> Result<FastLock> {
        FastLock::acquire_in(fast, owner, false)
    }

    fn acquire_in(held: &HeldDir, owner: &Owner, to_write: bool) -> Result<FastLock> {
        let (fast, path) = (&*held.by_descriptor(), held.path().join(LOCK_FILE));
        let (mut file, read_only) = match open_lock(fast, true) {
            Err(e) if !to_write && e.raw_os_error() == Some(Errno::EROFS as i32) => {
                (open_lock(fast, false).at("open", path.shown())?, true)
            }
            opened => (opened.at("open", path.shown())?, false),
        };
        let stat = file.metadata().at("stat", path.shown())?;
        if !stat.is_file() || stat.nlink() > 1 {
            let found =
                if stat.is_file() { format!("it has {} names", stat.nlink()) } else { "it is no file".to_owned() };
            let what = format!("{} is not a file of its own: {found}", path.shown());
            return Err(Error::refused(what, "no daemon made it: find out where it comes from, then remove it"));
        }
        let begun = Instant::now();
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(mut file) => {
                    let before = whole(&mut file).at("read", path.shown())?;
                    let mut lock = FastLock { file, path, before: Some(before), read_only };
                    lock.write(&format!("{owner}\n"))?;
                    return Ok(lock);
                }
                Err((file, Errno::EWOULDBLOCK)) => file,
                Err((_, errno)) => return Err(io::Error::from(errno)).at("lock", path.shown()),
            };
            let text = whole(&mut file).at("read", path.shown())?;
            let holder = text.lines().next().unwrap_or_default();
            if !Owner::parse(holder).is_some_and(|owner| owner.is_about_to_end()) || begun.elapsed() >= ENDING {
                return Err(is_held(held.path(), holder));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Rewrites the holder's line. It grows very little, because there may be no room for another block.
    pub(super) fn say(&mut self, owner: &Owner) -> Result<()> {
        self.write(&format!("{owner}\n"))
    }

    /// From here on the mount accepts changes: the last daemon's text is no longer true.
    pub(super) fn serving(&mut self) {
        self.before = None;
    }

    /// Notes what only the fast tier has, then releases the lock.
    pub(super) fn leave(mut self, left: &Left) -> Result<()> {
        let mut text = format!("left files={} events={}\n", left.files, left.events);
        for path in &left.paths {
            text.push_str(path);
            text.push('\n');
        }
        self.before = None;
        match self.write(&text) {
            // On a full tier, write as many paths as fit into its block.
            Err(error) if error.errno() == Errno::ENOSPC && text.len() > BLOCK => {
                let end = text.as_bytes().iter().take(BLOCK).rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                self.write(text.get(..end).unwrap_or_default())
            }
            written => written,
        }
    }

    fn write(&mut self, text: &str) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let file: &mut File = &mut self.file;
        // Truncated afterwards: a full tier has room only to overwrite the old text.
        let written = file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(text.as_bytes()));
        written.and_then(|()| file.set_len(text.len() as u64)).at("write", self.path.shown())
    }
}

impl Drop for FastLock {
    fn drop(&mut self) {
        if let Some(before) = self.before.take()
            && let Err(error) = self.write(&before)
        {
            warn!(%error, "the lock no longer lists what the last daemon left on this fast tier; nothing else is lost");
        }
    }
}

/// Through the private directory's descriptor: neither it nor the lock may be a link that leads out of the tier.
/// O_NONBLOCK: a fifo must not block us.
fn open_lock(fast: &Path, to_write: bool) -> io::Result<File> {
    let dir = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let dir = fcntl::open(&fast.join(PRIVATE_DIR), dir, Mode::empty())?;
    let access = if to_write { OFlag::O_RDWR | OFlag::O_CREAT } else { OFlag::O_RDONLY };
    let flags = access | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    Ok(fcntl::openat(&dir, "lock", flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
}

fn whole(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(TEXT_MAX).read_to_end(&mut bytes)?;
    // We wrote all of it escaped; foreign bytes in it do not prevent mounting.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_held(fast: &Path, holder: &str) -> Error {
    // A holder that has not written its line yet is still a holder.
    let by = if holder.is_empty() { "another daemon".to_owned() } else { format!("a daemon ({})", harmless(holder)) };
    let what = format!("--fast {} is in use by {by}", fast.shown());
    let here = Owner::parse(holder).filter(Owner::is_here);
    // A process that starts and has not mounted yet was waited for.
    let at = here.as_ref().filter(|owner| owner.has_lost_its_mount()).and_then(|owner| unescape(&owner.mountpoint));
    let at = at.map(|at| PathBuf::from(OsString::from_vec(at)));
    match (here.and_then(|owner| standstill(owner.pid)), at) {
        (Some((why, remedy)), _) => Error::refused(format!("{what}, which {why}"), remedy),
        (None, Some(at)) => Error::refused(
            format!("{what}; its mount is not here any more, and a process in another mount namespace may have it"),
            format!("end it with dlio-fs umount --now {}, or wait until it has ended", at.shown()),
        ),
        (None, None) => Error::refused(
            what,
            "one fast tier serves one mount: unmount that one with dlio-fs umount, or use another directory",
        ),
    }
}

/// The holder of a lock, as one readable line of `key=value` words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub(super) host: String,
    pub(super) pid: u32,
    /// Escaped, as is `slow`.
    pub(super) mountpoint: String,
    /// The slow tier; empty for a holder that needs none.
    slow: String,
    /// Also false if the fast tier has no room for changes.
    pub(super) slow_is_writable: bool,
    /// Whole seconds, RFC 3339.
    since: String,
}

impl Owner {
    /// This process, for a mount of the tree at `slow`, or for another operation at `mountpoint`.
    pub fn ourselves(mountpoint: &Path, slow: Option<&Path>, slow_is_writable: bool) -> Owner {
        let escaped = |path: &Path| crate::path::escape(path.as_os_str().as_encoded_bytes());
        Owner {
            host: hostname(),
            pid: std::process::id(),
            mountpoint: escaped(mountpoint),
            slow: slow.map(escaped).unwrap_or_default(),
            slow_is_writable,
            since: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }

    /// Whether the holder is a process of this machine, so that its number is valid here.
    pub(super) fn is_here(&self) -> bool {
        self.host == hostname()
    }

    /// Whether the holder will release the lock by itself: it was killed, or its mount was removed (`umount -l`), so
    /// that it ends as soon as everything is durable. One that has not mounted yet looks the same.
    fn is_about_to_end(&self) -> bool {
        self.is_here() && self.pid != std::process::id() && (is_ending(self.pid) || self.has_lost_its_mount())
    }

    fn has_lost_its_mount(&self) -> bool {
        let mounts = mounts_of(self.pid);
        let here = |path: &Path| crate::path::escape(path.as_os_str().as_encoded_bytes()) == self.mountpoint;
        // A holder without a slow tier has no mount; the mounts of another user's process are invisible.
        !self.slow.is_empty() && !mounts.is_empty() && !mounts.iter().any(|mount| mount.is_ours() && here(&mount.at))
    }

    /// `None` for any other line.
    pub(super) fn parse(line: &str) -> Option<Owner> {
        let value = |key: &str| line.split(' ').find_map(|word| Some(word.strip_prefix(key)?.to_owned()));
        Some(Owner {
            host: value("host=")?,
            pid: value("pid=")?.parse().ok()?,
            mountpoint: value("mountpoint=")?,
            slow: value("slow=").or_else(|| value("slow-read-only=")).unwrap_or_default(),
            slow_is_writable: value("slow-read-only=").is_none(),
            since: value("since=")?,
        })
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Owner { host, pid, mountpoint, slow, slow_is_writable, since } = self;
        let key = if *slow_is_writable { "slow" } else { "slow-read-only" };
        write!(f, "host={host} pid={pid} mountpoint={mountpoint} {key}={slow} since={since}")
    }
}

fn hostname() -> String {
    nix::unistd::gethostname().map_or_else(|_| "unknown".into(), |host| host.to_string_lossy().into_owned())
}

/// Where a fast tier is mounted, according to its daemon's text in the lock it holds.
pub fn mountpoint_of(fast: &Path) -> Option<PathBuf> {
    let mut file = match Flock::lock(open_lock(fast, false).ok()?, FlockArg::LockSharedNonblock) {
        Err((file, Errno::EWOULDBLOCK)) => file,
        _ => return None,
    };
    let text = whole(&mut file).ok()?;
    // A holder without a slow tier only inspects the fast one, as fsck does.
    let owner = Owner::parse(text.lines().next()?).filter(|owner| !owner.slow.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(unescape(&owner.mountpoint)?)))
}

/// The holder of a fast tier's lock according to its text; `None` unless the file belongs to one of these users.
pub(super) fn owner_named_in(fast: &Path, users: &[u32]) -> Option<Owner> {
    let file = open_lock(fast, false).ok()?;
    let stat = file.metadata().ok()?;
    if !stat.is_file() || !users.contains(&stat.uid()) {
        return None;
    }
    let mut line = Vec::new();
    file.take(LINE_MAX).read_to_end(&mut line).ok()?;
    Owner::parse(String::from_utf8_lossy(&line).lines().next()?)
}

/// What the last daemon of a fast tier left behind. `None` while it is locked, or if no daemon ever left cleanly.
pub fn last_left(fast: &Path) -> Option<Left> {
    let file = open_lock(fast, false).ok().filter(|file| file.metadata().is_ok_and(|stat| stat.is_file()))?;
    let mut file = Flock::lock(file, FlockArg::LockSharedNonblock).ok()?;
    let text = whole(&mut file).ok()?;
    let mut lines = text.lines();
    let (files, events) = lines.next()?.strip_prefix("left files=")?.split_once(" events=")?;
    let (files, events) = (files.parse().ok()?, events.parse().ok()?);
    Some(Left { files, events, paths: lines.map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(mountpoint: &str) -> Owner {
        Owner::ourselves(Path::new(mountpoint), Some(Path::new("/hdd 1")), true)
    }

    fn held(fast: &tempfile::TempDir) -> HeldDir {
        HeldDir::open(fast.path()).expect("it is there")
    }

    #[test]
    fn a_second_holder_is_refused_naming_the_first() {
        let fast = tempfile::tempdir().expect("a temporary directory");
        let first = FastLock::acquire(&held(&fast), &owner("/mnt/a b")).expect("free");
        let text = FastLock::acquire(&held(&fast), &owner("/mnt/b")).expect_err("held").to_string();
        assert!(text.contains(&format!("pid={}", std::process::id())), "{text}");
        assert!(text.contains("mountpoint=/mnt/a%20b slow=/hdd%201 ") && text.contains("host="), "{text}");
        assert!(last_left(fast.path()).is_none(), "held");
        assert_eq!(mountpoint_of(fast.path()), Some("/mnt/a b".into()));
        drop(first);
        assert!(last_left(fast.path()).is_none(), "the first did not leave cleanly");
        assert_eq!(mountpoint_of(fast.path()), None);
        FastLock::acquire(&held(&fast), &owner("/mnt/b")).expect("free again");
    }

    #[test]
    fn an_owner_is_read_back() {
        for owner in [
            owner("/mnt/a b"),
            Owner::ourselves(Path::new("/mnt"), Some(Path::new("/ro")), false),
            Owner::ourselves(Path::new("/out"), None, true),
        ] {
            assert_eq!(Owner::parse(&owner.to_string()), Some(owner));
        }
        assert_eq!(Owner::parse("left files=0 events=0"), None);
    }

    #[test]
    fn what_was_left_is_read_back() {
        let fast = tempfile::tempdir().expect("a temporary directory");
        assert!(last_left(fast.path()).is_none());
        let lock = FastLock::acquire(&held(&fast), &owner("/mnt")).expect("free");
        let left = Left { files: 2, events: 5, paths: vec!["a".into(), "b%20c".into()] };
        lock.leave(&left).expect("written");
        assert_eq!(last_left(fast.path()), Some(left));
    }

    #[test]
    fn what_was_left_stands_until_a_mount_takes_changes() {
        let fast = tempfile::tempdir().expect("a temporary directory");
        let left = || Left { files: 1, events: 2, paths: vec!["ckpt".into()] };
        FastLock::acquire(&held(&fast), &owner("/mnt")).expect("free").leave(&left()).expect("written");
        let refused = FastLock::acquire(&held(&fast), &owner("/mnt")).expect("free");
        assert!(last_left(fast.path()).is_none(), "held");
        drop(refused);
        assert_eq!(last_left(fast.path()), Some(left()));
        let mut killed = FastLock::acquire(&held(&fast), &owner("/mnt")).expect("free");
        killed.serving();
        drop(killed);
        assert!(last_left(fast.path()).is_none(), "nobody knows what that one left");
    }
}
