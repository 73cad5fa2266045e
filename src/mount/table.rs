//! The kernel's list of mounts: which are ours, and where on which file system a path lies.
//!
//! Paths are bytes: a mount point elsewhere on the machine with a strange name must not stop us.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};

/// The file system type of our mounts in the table; `umount.fuse.dlio` is found by it.
const FS_TYPE: &str = "fuse.dlio";

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `major:minor` of the file system.
    pub device: String,
    /// The directory of that file system that is mounted; `/` unless it is a bind mount.
    pub root: PathBuf,
    /// Where it is mounted.
    pub at: PathBuf,
    pub fs_type: String,
    /// What was mounted: a device, a server's export, or any word.
    pub source: PathBuf,
    /// The user who mounted it, where the kernel says: for FUSE it does.
    pub user: Option<u32>,
    /// The options of the file system, separated by commas.
    pub options: String,
}

impl MountEntry {
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// All mounts that this process sees, in the order in which they were made: of two at one place the later is on top.
pub fn mounts() -> Result<Vec<MountEntry>> {
    read("/proc/self/mountinfo")
}

/// All mounts that another process sees; none if it is gone, or another user's.
pub fn mounts_of(pid: u32) -> Vec<MountEntry> {
    read(&format!("/proc/{pid}/mountinfo")).unwrap_or_default()
}

/// All mounts that this thread sees, which has its own mount namespace.
pub(super) fn mounts_of_this_thread() -> Result<Vec<MountEntry>> {
    read("/proc/thread-self/mountinfo")
}

fn read(file: &str) -> Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read(file).at("read", file)?))
}

/// The mount on top at exactly this path.
pub fn mounted_at<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    mounts.iter().rev().find(|mount| mount.at == path)
}

/// The other places where the same mount of ours appears (bind mounts).
pub fn also_at(mounts: &[MountEntry], mountpoint: &Path) -> Vec<PathBuf> {
    let Some(here) = mounted_at(mounts, mountpoint) else { return Vec::new() };
    let same = |m: &&MountEntry| m.is_ours() && m.device == here.device && m.at != mountpoint;
    mounts.iter().filter(same).map(|m| m.at.clone()).collect()
}

/// The mount that holds a path (absolute, without symbolic links).
pub fn holder_of<'a>(path: &Path, mounts: &'a [MountEntry]) -> Option<&'a MountEntry> {
    // The longest mount point above the path holds it; `max_by_key` takes the last of equals, the one on top.
    mounts.iter().filter(|m| path.starts_with(&m.at)).max_by_key(|m| m.at.components().count())
}

/// A path as the file system below knows it, so that two bind mounts of one directory compare equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    device: String,
    path: PathBuf,
}

impl Location {
    /// For an absolute path without symbolic links; `None` if no mount holds it.
    pub(super) fn of(path: &Path, mounts: &[MountEntry]) -> Option<Location> {
        let mount = holder_of(path, mounts)?;
        let below = path.strip_prefix(&mount.at).ok()?;
        Some(Location { device: mount.device.clone(), path: mount.root.join(below) })
    }

    pub(super) fn is_within(&self, other: &Location) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// Skips lines that do not have the kernel's form.
fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /at rw,noatime master:1 - ext3 /dev/root rw`: the optional fields end with a lone dash.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ').skip(2);
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let root = unescape(fields.next()?);
    let at = unescape(fields.next()?);
    let mut kind = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(kind.next()?).into_owned();
    let source = kind.next().map(unescape).unwrap_or_default();
    let options = String::from_utf8_lossy(kind.next().unwrap_or_default()).into_owned();
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(MountEntry { device, root, at, fs_type, source, user, options })
}

/// The kernel writes blank, tab, newline and backslash as `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let is_octal = |digits: &[u8]| digits.iter().all(|digit| (b'0'..b'8').contains(digit));
        let octal = tail.split_at_checked(3).filter(|(digits, _)| *first == b'\\' && is_octal(digits));
        match octal {
            Some((digits, behind)) => {
                let code = digits.iter().fold(0u32, |code, digit| code * 8 + u32::from(digit - b'0'));
                out.push(code.to_le_bytes()[0]);
                rest = behind;
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
        2 1 8:2 / /hdd rw,noatime shared:1 master:2 - xfs /dev/sdb rw\n\
        3 1 8:2 /data/a /bind\\040it rw - xfs /dev/sdb rw\n\
        4 1 0:50 / /mnt/train rw - fuse.dlio dlio-fs rw,user_id=1000,group_id=7\n\
        5 1 0:51 / /mnt/train rw - tmpfs none rw\n\
        not a mount line\n\
        6 1 0:52 / /odd\\134\xff rw - tmpfs none rw\n";

    fn location(path: &str) -> Location {
        Location::of(Path::new(path), &parse(TABLE)).expect("the root is always there")
    }

    #[test]
    fn lines_are_read_and_unescaped() {
        let mounts = parse(TABLE);
        assert_eq!(mounts.len(), 6);
        assert_eq!((mounts[1].device.as_str(), mounts[1].fs_type.as_str()), ("8:2", "xfs"));
        assert_eq!(
            (mounts[2].at.as_path(), mounts[2].source.as_path()),
            (Path::new("/bind it"), Path::new("/dev/sdb"))
        );
        assert_eq!((mounts[3].user, mounts[4].user), (Some(1000), None));
        assert_eq!(mounts[3].options, "rw,user_id=1000,group_id=7");
        assert_eq!(mounts[5].at.as_os_str().as_encoded_bytes(), b"/odd\\\xff");
    }

    #[test]
    fn the_mount_on_top_is_the_later_one() {
        let mounts = parse(TABLE);
        assert_eq!(mounted_at(&mounts, Path::new("/mnt/train")).expect("mounted").fs_type, "tmpfs");
        assert!(mounts[3].is_ours());
        assert_eq!(mounted_at(&mounts, Path::new("/mnt")), None);
    }

    #[test]
    fn the_other_places_of_a_mount_are_known() {
        let table = b"4 1 0:50 / /mnt/train rw - fuse.dlio /hdd rw\n\
            5 1 0:50 /run /bound rw - fuse.dlio /hdd rw\n\
            6 1 0:51 / /other rw - fuse.dlio /hdd2 rw\n";
        let mounts = parse(table);
        assert_eq!(also_at(&mounts, Path::new("/mnt/train")), [Path::new("/bound")]);
        assert!(also_at(&mounts, Path::new("/other")).is_empty());
    }

    #[test]
    fn a_bind_mount_lies_where_it_came_from() {
        assert_eq!(location("/bind it/x"), location("/hdd/data/a/x"));
        assert!(location("/bind it").is_within(&location("/hdd")));
        assert!(location("/hdd/data/a/b").is_within(&location("/bind it")));
        assert!(!location("/hdd/data").is_within(&location("/bind it")));
        assert!(!location("/mnt/train").is_within(&location("/")), "another file system");
        assert!(!location("/hdd/data/ab").is_within(&location("/bind it")), "a prefix of names is not a parent");
    }
}
