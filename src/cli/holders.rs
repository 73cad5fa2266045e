//! Who uses a mount: processes with files open below it, working in it, or mapping from it.
//!
//! Comparing paths is not enough: a shell's working directory may be the directory that the mount hides. So the file
//! system is compared too, without asking its daemon, which may need a slow tier that does not answer.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::mount::{self, MountEntry, processes};
use crate::path::{Show as _, harmless};

/// A process that keeps a mount busy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pid: u32,
    name: String,
    /// One of the files it holds.
    path: PathBuf,
}

/// Both names may be any user's choice, and root's terminal would follow what is in them.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}): {}", harmless(&self.name), self.pid, self.path.shown())
    }
}

/// The processes that this user may see; for root, all in this mount namespace.
pub(super) fn of(mountpoint: &Path) -> Vec<Holder> {
    let Some(device) = device_of(mountpoint) else { return Vec::new() };
    let inside = |link: &PathBuf| {
        let path = std::fs::read_link(link).ok().filter(|path| path.starts_with(mountpoint))?;
        (device_of(link)? == device).then_some(path)
    };
    processes()
        .filter_map(|pid| Some(Holder { pid, path: links(pid).iter().find_map(inside)?, name: name(pid) }))
        .collect()
}

/// The device of the file system of a file, which the kernel knows by itself: no attributes are asked for.
fn device_of(path: &Path) -> Option<(u32, u32)> {
    let stat = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Processes that still see the file system `device` after it was unmounted here. A container or service that was
/// started while it was mounted has a copy of the mount in its own mount namespace, and the daemon serves it until that
/// ends.
pub(super) fn of_copies(device: &str) -> Vec<Holder> {
    having(|mount| mount.device == device)
}

/// Processes that see a mount of ours at this path, which is not mounted here.
pub(super) fn elsewhere(mountpoint: &Path) -> Vec<Holder> {
    having(|mount| mount.at == mountpoint)
}

fn having(is_it: impl Fn(&MountEntry) -> bool) -> Vec<Holder> {
    let copy = |pid| mount::mounts_of(pid).into_iter().find(|mount| mount.is_ours() && is_it(mount));
    processes().filter_map(|pid| Some(Holder { pid, path: copy(pid)?.at, name: name(pid) })).collect()
}

/// The links in `/proc` to everything that a process holds: its working directory, open files, and mapped files (which
/// stay mapped after their descriptors are closed).
fn links(pid: u32) -> Vec<PathBuf> {
    let mut links: Vec<PathBuf> = ["cwd", "root", "exe"].map(|name| format!("/proc/{pid}/{name}").into()).into();
    links.extend(entries(&format!("/proc/{pid}/fd")));
    links.extend(entries(&format!("/proc/{pid}/map_files")));
    links
}

/// Empty if the process is another user's, or gone.
fn entries(dir: &str) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn name(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.is_empty() { "a process".into() } else { name.trim().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_held_by_its_process() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().canonicalize().expect("it is there");
        assert_eq!(of(&path), []);
        let file = std::fs::File::create(path.join("held")).expect("create");
        let holders = of(&path);
        assert_eq!(holders.len(), 1);
        assert_eq!((holders[0].pid, holders[0].path.clone()), (std::process::id(), path.join("held")));
        drop(file);
        assert_eq!(of(&path), []);
    }

    /// A file or process with an escape sequence or a newline in its name wrote lines of its own on root's terminal.
    #[test]
    fn names_are_shown_without_what_a_terminal_follows() {
        let holder = Holder { pid: 7, name: "a\u{1b}[2J b".into(), path: "/mnt/x\nSAFE: \u{1b}]0;y".into() };
        let text = holder.to_string();
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert_eq!(text, "a\\u{1b}[2J b (pid 7): /mnt/x\\nSAFE: \\u{1b}]0;y");
    }
}
