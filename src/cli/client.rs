//! Finds mounts and talks to their daemons through `.dlio/stats.json` and `.dlio/control` of the mount.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};
use serde::de::DeserializeOwned;

use super::outcome::{Exit, Failure};
use crate::error::{Context, Error};
use crate::json;
use crate::mount::{self, MountEntry, Pulse};
use crate::path::{Show as _, readable};
use crate::stats::pace::CheckpointPace;
use crate::stats::status::{Safety, Status};

/// What a mount's status means for a script.
pub(super) fn exit(status: &Status) -> Exit {
    let Safety { safe, held, slow_down, fast_fails, refusing, .. } = &status.safety;
    let hangs = *slow_down || status.slow_calls.longest.is_some();
    let degraded = held.is_some() || hangs || *fast_fails || *refusing || status.failing.is_some();
    match (status.exceptions.conflicts, degraded, safe) {
        (1.., ..) => Exit::Conflict,
        (0, true, _) => Exit::Degraded,
        (0, false, false) => Exit::Undrained,
        (0, false, true) => Exit::Done,
    }
}

/// The mount that the arguments name: that of the path, or the only one.
pub(super) fn the_mount(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let mounts = mount::mounts()?;
    let Some(named) = named else {
        return match our_mountpoints(&mounts).as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(no_mount()),
            several => {
                let list: Vec<_> = several.iter().map(|path| path.shown().to_string()).collect();
                Err(Failure::new(Exit::Usage, format!("several mounts; name one of {}", list.join(", "))))
            }
        };
    };
    match holder(&canonical(named), &mounts) {
        Some((holder, mount)) if mount.is_ours() => Ok(holder.to_path_buf()),
        _ => Err(not_a_mount(named, &mounts)),
    }
}

/// The same for commands about a whole mount, which take only its mount point.
pub(super) fn the_mountpoint(named: &Path) -> Result<PathBuf, Failure> {
    let mountpoint = the_mount(Some(named))?;
    match canonical(named) == mountpoint {
        true => Ok(mountpoint),
        false => {
            let what = format!("{} is not a mount point; its mount point is {}", named.shown(), mountpoint.shown());
            Err(Failure::new(Exit::Usage, what))
        }
    }
}

pub(super) fn no_mount() -> Failure {
    Failure::new(Exit::Failure, "there is no dlio-fs mount here; make one with dlio-fs mount")
}

/// The mount point at or above a path.
fn holder<'a, 'm>(path: &'a Path, mounts: &'m [MountEntry]) -> Option<(&'a Path, &'m MountEntry)> {
    path.ancestors().find_map(|above| Some((above, mount::mounted_at(mounts, above)?)))
}

pub(super) fn all_mounts() -> Result<Vec<PathBuf>, Error> {
    Ok(our_mountpoints(&mount::mounts()?))
}

/// The mount that holds a path, and the path below it.
pub(super) fn mount_of(path: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let mounts = mount::mounts()?;
    let canonical = path.canonicalize().at("find", path.shown())?;
    match holder(&canonical, &mounts) {
        Some((above, mount)) if mount.is_ours() => {
            let below = canonical.strip_prefix(above).unwrap_or(Path::new("")).to_path_buf();
            Ok((above.to_path_buf(), below))
        }
        _ => Err(not_a_mount(path, &mounts)),
    }
}

fn not_a_mount(path: &Path, mounts: &[MountEntry]) -> Failure {
    let ours: Vec<_> = our_mountpoints(mounts).iter().map(|path| path.shown().to_string()).collect();
    let ours = if ours.is_empty() { "there is none here".to_owned() } else { format!("mounts: {}", ours.join(", ")) };
    Failure::new(Exit::Failure, format!("{} is not on a dlio-fs mount; {ours}", path.shown()))
}

fn our_mountpoints(mounts: &[MountEntry]) -> Vec<PathBuf> {
    let mut ours: Vec<PathBuf> = mounts.iter().filter(|m| m.is_ours()).map(|m| m.at.clone()).collect();
    ours.sort();
    ours.dedup();
    ours
}

/// Like `canonicalize`, but the name of a dead mount, which answers no stat, is kept.
fn canonical(path: &Path) -> PathBuf {
    let absolute = || {
        let absolute = std::path::absolute(path).ok()?;
        Some(absolute.parent()?.canonicalize().ok()?.join(absolute.file_name()?))
    };
    path.canonicalize().ok().or_else(absolute).unwrap_or_else(|| path.to_path_buf())
}

/// Whether the daemon of a mount is gone. Errors: it exists, but does not answer; why, and the remedy.
pub(super) fn is_dead(mountpoint: &Path) -> Result<bool, Error> {
    match mount::pulse(mountpoint) {
        Pulse::Answers => Ok(false),
        Pulse::Dead => Ok(true),
        Pulse::Silent(why) => Err(why),
    }
}

/// Reads a file of `.dlio`. If the mount is dead, the error names the remedy.
pub(super) fn read(mountpoint: &Path, name: &str) -> Result<String, Error> {
    let path = mountpoint.join(".dlio").join(name);
    std::fs::read_to_string(&path).map_err(|e| failed(mountpoint, "read", path.shown().to_string(), e))
}

/// A call that failed. If it failed because the mount is dead, the error names the remedy.
fn failed(mountpoint: &Path, call: &'static str, path: String, error: io::Error) -> Error {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOTCONN | Errno::ECONNABORTED) => dead(mountpoint),
        _ => Error::io(call, path, error),
    }
}

pub(super) fn dead(mountpoint: &Path) -> Error {
    Error::refused(
        format!("the daemon of {} is gone", mountpoint.shown()),
        "mount it again with the same tiers: nothing acknowledged is lost",
    )
}

pub fn status(mountpoint: &Path) -> Result<Status, Error> {
    parsed(mountpoint, "stats.json")
}

fn parsed<T: DeserializeOwned>(mountpoint: &Path, name: &str) -> Result<T, Error> {
    serde_json::from_str(&read(mountpoint, name)?).map_err(|e| {
        let what = format!("{}: {e}", mountpoint.join(".dlio").join(name).shown());
        Error::refused(what, "use the dlio-fs that made the mount")
    })
}

/// `.dlio/pace.json`.
pub fn pace(mountpoint: &Path) -> Result<CheckpointPace, Error> {
    parsed(mountpoint, "pace.json")
}

/// The first line of `.dlio/stats`: whether everything is safe.
pub(super) fn first_line(mountpoint: &Path) -> Result<String, Error> {
    let text = read(mountpoint, "stats")?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Whether the mount is read-only, and so takes no commands.
pub(super) fn is_read_only(mountpoint: &Path) -> bool {
    statvfs(mountpoint).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_RDONLY))
}

const MAKE_WRITABLE: &str = "make the slow tier writable, or make room on a full fast tier, unmount, and mount again";

/// The error for a wait for a mount that writes nothing to its slow tier.
pub(super) fn cannot_drain(mountpoint: &Path) -> Error {
    let what = format!(
        "what is only on the fast tier of {} cannot come to the slow tier: the mount is read-only",
        mountpoint.shown()
    );
    Error::refused(what, MAKE_WRITABLE)
}

/// The error for a command on a read-only mount: the kernel does not open `control` for writing.
fn read_only(mountpoint: &Path, command: &str) -> Error {
    let word = command.split(' ').next().unwrap_or_default();
    let what =
        format!("the mount at {} is read-only and takes no commands, so {word} is impossible", mountpoint.shown());
    let daemon = mount::Daemon::of(mountpoint);
    let remedy = match (word, &daemon) {
        ("reload", Some(daemon)) => format!("send its daemon SIGHUP instead: kill -HUP {}", daemon.pid),
        (_, Some(daemon)) if !daemon.slow_is_writable() => MAKE_WRITABLE.to_owned(),
        _ => format!("remount it for that: mount -o remount,rw {}", mountpoint.shown()),
    };
    Error::refused(what, remedy)
}

/// One command on `.dlio/control`. Dropping it ends the wait.
#[derive(Debug)]
pub struct ControlCall {
    file: BufReader<File>,
    mountpoint: PathBuf,
    path: String,
}

/// A path below a mount as `control` takes it.
pub(super) fn escaped(below: &Path) -> String {
    format!("/{}", crate::path::escape(below.as_os_str().as_encoded_bytes()))
}

/// The parts of a reply line `KIND: PATH REASON`, for JSON. Some lines name no path.
pub(super) fn finding(kind: &str, line: &str) -> serde_json::Value {
    let (path, what) = match line.split_once(' ') {
        // The engine's word for a file without a name.
        Some(("/removed", what)) if what.starts_with("file ") => (None, line.trim_start_matches('/')),
        Some((path, what)) if path.starts_with('/') => (Some(path.trim_end_matches(':')), what),
        None if line.starts_with('/') => (Some(line), ""),
        _ => (None, line),
    };
    let mut finding = path.map_or_else(serde_json::Map::new, |path| json::text("path", path));
    finding.insert("kind".to_owned(), kind.into());
    finding.insert("what".to_owned(), what.into());
    finding.into()
}

/// A reply line, `PATH REASON` or `KIND: PATH REASON`, with the path as people read it. Other lines stay.
pub(super) fn for_people(line: &str) -> String {
    let is_kind = |kind: &str, rest: &str| !kind.starts_with('/') && rest.starts_with('/');
    let (kind, rest) = match line.split_once(": ").filter(|(kind, rest)| is_kind(kind, rest)) {
        Some((kind, rest)) => (format!("{kind}: "), rest),
        None if line.starts_with('/') => (String::new(), line),
        None => return line.to_owned(),
    };
    // An escaped path has no space.
    let (word, reason) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
    let (path, colon) = word.strip_suffix(':').map_or((word, ""), |path| (path, ":"));
    format!("{kind}{}{colon}{reason}", readable(path))
}

/// A line of the daemon's reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// Comes about once a second while the command runs.
    Waiting(String),
    Done(String),
    Error(String),
}

impl ControlCall {
    pub fn ask(mountpoint: &Path, command: &str) -> Result<ControlCall, Error> {
        let path = mountpoint.join(".dlio/control");
        let told = path.shown().to_string();
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let mut file = opened.map_err(|e| match e.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EROFS) => read_only(mountpoint, command),
            _ => failed(mountpoint, "open", told.clone(), e),
        })?;
        // The daemon takes a command as one write.
        match file.write_all(format!("{command}\n").as_bytes()) {
            // The daemon refused it; the reply says why.
            Err(e) if matches!(e.raw_os_error().map(Errno::from_raw), Some(Errno::EINVAL | Errno::EPERM)) => {}
            written => written.map_err(|e| failed(mountpoint, "write to", told.clone(), e))?,
        }
        Ok(ControlCall { file: BufReader::new(file), mountpoint: mountpoint.to_path_buf(), path: told })
    }

    /// A whole reply that does not consist of lines.
    pub(super) fn bytes(mut self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes).map_err(|e| self.unread(e))?;
        Ok(bytes)
    }

    /// The daemon may die while it is waited for.
    fn unread(&self, error: io::Error) -> Error {
        failed(&self.mountpoint, "read from", self.path.clone(), error)
    }

    /// The next line. After `Done` or `Error` there is none.
    pub fn listen(&mut self) -> Result<Said, Error> {
        let mut line = String::new();
        self.file.read_line(&mut line).map_err(|e| self.unread(e))?;
        let line = line.trim_end();
        Ok(match line.split_once(": ") {
            Some(("ok", text)) => Said::Done(text.to_owned()),
            Some(("error", text)) => Said::Error(for_people(text)),
            _ if line.is_empty() => Said::Error(format!("{}: the reply ended early", self.path)),
            _ => Said::Waiting(line.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_the_path_of_a_reply_as_it_is() {
        for (line, shown) in [
            ("/run/%C3%A9%201 is pinned", "/run/é 1 is pinned"),
            ("kept: /%E6%A8%A1: is open", "kept: /模: is open"),
            ("returned: /a", "returned: /a"),
            ("/%0A%E2%80%AE", "/\\n\\u{202e}"),
            ("verifying: 85% compared", "verifying: 85% compared"),
            ("rule: data/**", "rule: data/**"),
            ("unreadable: /%FF: open: EIO: %C3%A9", "unreadable: /\\xff: open: EIO: %C3%A9"),
        ] {
            assert_eq!(for_people(line), shown);
        }
    }
}
