//! The slow tier's abilities (P16), found out at the start by a handful of calls in our own directory there. Each
//! missing ability has a fixed outcome:
//!
//! - extended attributes, ACLs: setting one is refused, as on the tier itself; those that come with a copied file are
//!   left out and counted;
//! - owners, groups, modes: all files have those that the tier gives, in the view too; a change is left out and
//!   counted. So are all attributes of symbolic links;
//! - symbolic links, special files, further links: refused at the call;
//! - unusual names, and sizes and targets beyond the known limits, are tried there before they are accepted;
//! - inode numbers that change, or differ from those listed: the mount is refused, because foreign nodes could not be
//!   told from ours. A fast tier is refused for that, too, and for lacking extended attributes.
//!
//! For an ability that was not tried, or whose answer was inconclusive, the last mount's result counts (`super` stores
//! it). Without one the ability is assumed, and the publishing step gets the error.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{getegid, geteuid};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::tiers::disk::layout::remove_tree;
use crate::tiers::disk::{Clock, Dir, Kind, NewAttr, RenameMode, Stat, Time, acl};
use crate::tiers::log::record::Owned;
use crate::tiers::objects::attrs::Birth;

/// The time limit for the trials of a start, so that a tier that hangs delays no mount.
pub(crate) const AT_MOST: Duration = Duration::from_secs(1);
/// The names in `tmp` that the trials use.
const FILE: &[u8] = b"tf";
const OTHER: &[u8] = b"tg";
const LINK: &[u8] = b"tl";
const SYMLINK: &[u8] = b"ts";
const FIFO: &[u8] = b"tp";
const DIR: &[u8] = b"td";
/// Characters that some file systems refuse in names: those of Windows.
const RARE: &[u8] = b"\"*:<>?\\|";
/// A name with those characters, and with bytes that are not UTF-8.
const NAME: &[u8] = b"tn\x01\"*:<>?\\|\xff";
/// Modes that differ from a mode that a tier gives to all files.
pub(super) const FILE_PERM: u32 = 0o640;
const DIR_PERM: u32 = 0o750;
/// An owner and a group that none of our files has.
const STRANGER: u32 = 1;
/// A file of this size is tried at the start; larger ones when they come.
const LARGE: u64 = 1 << 40;
/// Limits that every file system meets.
const SIZE_EVERYWHERE: u64 = (1 << 31) - 1;
const TARGET_EVERYWHERE: u64 = 255;
/// Hard links that are kept in reserve: while a group is published, a file has its new names as well as the old ones
/// that later steps remove.
pub const NAMES_AHEAD: u64 = 128;
/// No file is longer.
const UNLIMITED: u64 = i64::MAX as u64;
/// If a tier with more than this free has no room for an attribute, it never will.
pub(super) const FREE: u64 = 1 << 20;

/// The slow tier's abilities. In `super` they are a table with a key for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Abilities {
    pub user_xattrs: bool,
    pub acls: bool,
    /// A file has the owner, the group and the mode that it was given.
    pub owners: bool,
    pub groups: bool,
    pub modes: bool,
    pub symlinks: bool,
    /// Attributes set on a symbolic link are its own.
    pub link_attrs: bool,
    pub fifos: bool,
    pub hard_links: bool,
    /// How many hard links a file may get. Asked at each start.
    #[serde(skip)]
    pub names_max: u64,
    /// Some of its directories cannot be renamed (an overlayfs). Asked at each start.
    #[serde(skip)]
    pub keeps_dirs: bool,
    /// A file keeps its inode number for as long as it exists.
    pub lasting_numbers: bool,
    /// A file keeps its inode number through a rename of it or of a directory above it. `false` is never remembered.
    #[serde(skip)]
    steady_numbers: bool,
    /// Names may contain any bytes.
    pub any_names: bool,
    /// It can rename by exchange, and rename without replacing (`no_replace`).
    pub exchange: bool,
    pub no_replace: bool,
    /// In nanoseconds in `super`.
    #[serde(with = "nanos")]
    pub time_grain: Duration,
    /// The longest target of a symbolic link, and the largest file, that the tier is known to take.
    pub target_known: u64,
    pub size_known: u64,
    given: Given,
}

mod nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        (time.as_nanos() as u64).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}

/// An ability that a tier lacks, and the consequence.
#[derive(Clone, Copy, Debug)]
pub struct Lack {
    pub what: &'static str,
    pub then: &'static str,
}

/// Attributes that the tier gives to new nodes, whatever was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Given {
    uid: u32,
    gid: u32,
    /// `None`: the mode that the node is made with.
    #[serde(skip_serializing_if = "Option::is_none")]
    file_perm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dir_perm: Option<u32>,
}

impl Default for Abilities {
    /// All abilities.
    fn default() -> Self {
        Abilities {
            user_xattrs: true,
            acls: true,
            owners: true,
            groups: true,
            modes: true,
            symlinks: true,
            link_attrs: true,
            fifos: true,
            hard_links: true,
            names_max: u64::MAX,
            keeps_dirs: false,
            lasting_numbers: true,
            steady_numbers: true,
            any_names: true,
            exchange: true,
            no_replace: true,
            time_grain: Duration::from_nanos(1),
            target_known: UNLIMITED,
            size_known: UNLIMITED,
            given: Given::default(),
        }
    }
}

impl Abilities {
    /// Tries all abilities in a directory of our own, for no longer than `at_most`. Leaves nothing there. `before`: the
    /// result of an earlier mount. Without it three trials are made however long they take: inode numbers, owners (if
    /// wrongly assumed, they would hold everything), and attributes of links (they would be set on the link's target).
    pub fn find_out(tmp: &dyn Dir, clock: &dyn Clock, at_most: Duration, before: Option<Abilities>) -> Self {
        type Try = fn(&dyn Dir, &mut Abilities) -> io::Result<()>;
        let tries: [Try; 12] = [
            try_file,
            try_numbers,
            try_link_attrs,
            try_owner,
            try_xattrs,
            try_times,
            try_size,
            try_symlink,
            try_characters,
            try_fifo,
            try_link,
            try_names,
        ];
        let needed = if before.is_some() { 0 } else { 4 };
        let (mut found, begun) = (before.unwrap_or_default(), clock.uptime());
        for (number, try_it) in tries.into_iter().enumerate() {
            if number >= needed && clock.uptime().saturating_sub(begun) > at_most {
                tracing::info!(
                    "the slow tier is slow to answer; abilities not tried there yet are those of the mount before, or assumed"
                );
                break;
            }
            if let Err(error) = try_it(tmp, &mut found) {
                tracing::debug!(%error, "an ability of the slow tier could not be tried");
            }
        }
        remove_trials(tmp);
        found
    }

    /// Tries what a fast tier must be able to do, in a directory of our own.
    pub fn expect_of_fast(tmp: &dyn Dir) -> Result<()> {
        let mut found = Abilities::default();
        let tried = try_file(tmp, &mut found)
            .and_then(|()| try_numbers(tmp, &mut found))
            .and_then(|()| try_xattrs(tmp, &mut found));
        remove_trials(tmp);
        if let Err(error) = tried {
            tracing::debug!(%error, "an ability of the fast tier could not be tried");
        }
        if !found.user_xattrs {
            return Err(Error::refused(
                "the fast tier has no extended attributes of users",
                "use ext4, xfs or btrfs (tmpfs: Linux 6.6 or later)",
            ));
        }
        found.expect_steady_numbers("fast")
    }

    /// Refuses a tier whose inode numbers change: files are identified by them.
    pub fn expect_steady_numbers(&self, tier: &str) -> Result<()> {
        if self.steady_numbers {
            return Ok(());
        }
        Err(Error::refused(
            format!(
                "the {tier} tier gives a file or directory another inode number when it is renamed, or lists another one"
            ),
            "mount that tier with `use_ino,inodecalc=devino-hash` (mergerfs), `noforget` (libfuse), `serverino` (cifs), or use another one",
        ))
    }

    /// Called once, for the log.
    pub(crate) fn tell(&self) {
        for Lack { what, then } in self.lacking() {
            tracing::warn!("the slow tier does not have {what}: {then}");
        }
    }

    /// The missing abilities, each with its outcome.
    pub fn lacking(&self) -> Vec<Lack> {
        const REFUSED: &str = "setting them is refused, and those of copied files are left out";
        const GIVEN: &str =
            "all files have those that the tier gives, and changes have no effect (an NFS export needs no_root_squash)";
        const NOT_MADE: &str = "making one is refused";
        const OF_LINKS: &str =
            "all have those that the tier gives: it would set those of a link on the file that the link names";
        const FORGOTTEN: &str = "a file that the kernel has forgotten looks like a foreign one: a new version is kept beside it, other changes are left out, and all are reported as conflicts; mount that tier with `-o noforget` (sshfs, exfat-fuse), and remount it only when nothing is pending";
        const NAMES: &str = "making one that the tier does not take is refused";
        const RACE: &str =
            "a foreign change at the moment of publishing may be overwritten: change this tree through the mount only";
        let all = [
            (self.user_xattrs, "user xattrs", REFUSED),
            (self.acls, "ACLs", REFUSED),
            (self.owners, "owners of files", GIVEN),
            (self.groups, "groups of files", GIVEN),
            (self.modes, "modes of files", GIVEN),
            (self.symlinks, "symbolic links", NOT_MADE),
            (self.link_attrs || !self.symlinks, "attributes of symbolic links", OF_LINKS),
            (self.fifos, "special files", NOT_MADE),
            (self.hard_links, "hard links", NOT_MADE),
            (self.lasting_numbers, "persistent inode numbers", FORGOTTEN),
            (self.any_names, "names with any characters", NAMES),
            (self.no_replace, "rename with NOREPLACE", RACE),
            (self.exchange, "rename with EXCHANGE", RACE),
            (self.time_grain < Duration::from_secs(1), "times below a second", "times are compared at its granularity"),
        ];
        all.into_iter().filter(|(able, ..)| !able).map(|(_, what, then)| Lack { what, then }).collect()
    }

    /// The part of an attribute change that the tier takes for a node of this kind.
    pub(crate) fn kept_by(&self, kind: Kind, new: &NewAttr) -> NewAttr {
        if kind == Kind::Symlink && !self.link_attrs { NewAttr::default() } else { self.kept(new) }
    }

    /// The part of an attribute change that the tier takes for any node but a symbolic link.
    pub(crate) fn kept(&self, new: &NewAttr) -> NewAttr {
        NewAttr {
            uid: new.uid.filter(|_| self.owners),
            gid: new.gid.filter(|_| self.groups),
            perm: new.perm.filter(|_| self.modes),
            ..*new
        }
    }

    /// A node's kind, owner and group, as far as the tier stores them. An owner or group that the tier gives to all
    /// nodes says nothing: then `known` has the right one.
    pub(crate) fn owned(&self, stat: &Stat, known: &Owned) -> Owned {
        let tells = stat.kind != Kind::Symlink || self.link_attrs;
        Owned {
            kind: stat.kind,
            uid: if self.owners && tells { stat.uid } else { known.uid },
            gid: if self.groups && tells { stat.gid } else { known.gid },
        }
    }

    /// Gives the birth of a new node the attributes that the tier will give it.
    pub(crate) fn give(&self, kind: Kind, birth: &mut Birth) {
        let is_given = kind == Kind::Symlink && !self.link_attrs;
        if !self.owners || is_given {
            birth.uid = self.given.uid;
        }
        if !self.groups || is_given {
            birth.gid = self.given.gid;
        }
        let perm = match kind {
            Kind::Dir => self.given.dir_perm,
            Kind::Symlink => None,
            _ => self.given.file_perm,
        };
        birth.perm = perm.filter(|_| !self.modes).unwrap_or(birth.perm);
        birth.xattrs.retain(|(key, _)| self.has(key));
    }

    /// Whether the tier stores attributes of this kind.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        match key {
            acl::ACCESS | acl::DEFAULT => self.acls,
            key if key.starts_with(b"user.") => self.user_xattrs,
            _ => true,
        }
    }

    /// Whether a node shows the attributes it was given, as far as the tier can.
    pub(crate) fn shows(&self, stat: &Stat, (uid, gid, perm): (u32, u32, u32)) -> bool {
        let same = |able: bool, there: u32, wanted: u32| !able || there == wanted;
        same(self.owners, stat.uid, uid) && same(self.groups, stat.gid, gid) && same(self.modes, stat.perm, perm)
    }

    /// Whether the tier may show one time as the other.
    pub(crate) fn same_time(&self, one: Time, other: Time) -> bool {
        let nanos = |time: Time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
        (nanos(one) - nanos(other)).unsigned_abs() < self.time_grain.as_nanos().max(1)
    }
}

pub(super) fn is(error: &io::Error, codes: &[Errno]) -> bool {
    error.raw_os_error().is_some_and(|code| codes.contains(&Errno::from_raw(code)))
}

/// Whether a retry would get the same error.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    is(error, &[Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EPERM, Errno::EINVAL, Errno::ENOTTY])
}

/// Whether the call is possible; an inconclusive error is returned.
fn can(done: io::Result<()>) -> io::Result<bool> {
    match done {
        Err(e) if is_refused(&e) => Ok(false),
        done => done.map(|()| true),
    }
}

fn remove_trials(tmp: &dyn Dir) {
    for name in [FILE, OTHER, LINK, SYMLINK, FIFO, DIR, NAME] {
        if let Err(error) = remove_tree(tmp, name) {
            tracing::debug!(%error, "a file of these trials stays in tmp until the next start");
        }
    }
}

/// Makes the file that the other trials need.
fn try_file(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    for name in [FILE, OTHER, LINK, SYMLINK, FIFO, DIR] {
        remove_tree(tmp, name).map_err(|e| io::Error::from(e.errno()))?;
    }
    found.names_max = tmp.names_max().saturating_sub(NAMES_AHEAD);
    found.keeps_dirs = tmp.is_overlay();
    tmp.create(FILE, FILE_PERM)?;
    let made = tmp.stat(FILE)?;
    let perm = Some(made.perm).filter(|perm| *perm != FILE_PERM);
    found.given = Given { uid: made.uid, gid: made.gid, file_perm: perm, ..found.given };
    Ok(())
}

/// Over SFTP (sshfs), attributes set on a link are set on its target, which may be any file of the server. Detected by
/// the link's own times: the file's times may be cached from before.
fn try_link_attrs(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    // An even second long ago: every time grain can represent it, and no new link has it.
    const ASKED: Time = Time { sec: 1_500_000_000, nsec: 0 };
    found.symlinks = can(tmp.symlink(SYMLINK, FILE))?;
    if !found.symlinks {
        return Ok(());
    }
    let set = can(tmp.set_attr(SYMLINK, &NewAttr { mtime: Some(ASKED), ..NewAttr::default() }))?;
    found.link_attrs = set && tmp.stat(SYMLINK)?.mtime == ASKED;
    tmp.unlink(SYMLINK)
}

/// Leaves a directory with a file in it, and the file that was there before.
///
/// A FUSE daemon may derive a number from the path (mergerfs does, for directories): a step that looks for what it has
/// renamed finds something else, gives up, and all counts as published. So the numbers must survive a rename, and be
/// the listed ones. Asks the server, because the kernel caches a number for a second.
///
/// A daemon that leaves inode numbers to its library lists the unknown number for all files. The library gives a file
/// another number once the kernel has forgotten it, unless it is told not to (`-o noforget`), which cannot be detected.
fn try_numbers(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    const UNKNOWN: u64 = 0xffff_ffff;
    let number = |dir: &dyn Dir, name: &[u8]| dir.stat_now(name).map(|stat| stat.ino);
    tmp.mkdir(DIR, DIR_PERM)?;
    found.given.dir_perm = Some(tmp.stat(DIR)?.perm).filter(|perm| *perm != DIR_PERM);
    tmp.dir(DIR)?.create(FILE, FILE_PERM)?;
    let numbers =
        |dir, file| Ok::<_, io::Error>([number(tmp, dir)?, number(&*tmp.dir(dir)?, FILE)?, number(tmp, file)?]);
    let before = numbers(DIR, FILE)?;
    let [_, _, of_file] = before;
    tmp.rename(DIR, tmp, LINK, RenameMode::Replace)?;
    tmp.create(OTHER, FILE_PERM)?;
    tmp.rename(FILE, tmp, OTHER, RenameMode::Replace)?;
    let mut steady = numbers(LINK, OTHER)? == before;
    tmp.rename(LINK, tmp, DIR, RenameMode::Replace)?;
    tmp.rename(OTHER, tmp, FILE, RenameMode::Replace)?;
    let listed = tmp.list()?.into_iter().find(|entry| entry.name == FILE).map(|entry| entry.ino);
    found.lasting_numbers = listed.is_none_or(|listed| listed != UNKNOWN || of_file == UNKNOWN);
    steady &= listed.is_none_or(|listed| listed == UNKNOWN || listed == of_file);
    found.steady_numbers = steady;
    Ok(())
}

fn try_xattrs(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    let unknown = |done: io::Result<()>| match done {
        Err(e) if is(&e, &[Errno::EOPNOTSUPP, Errno::ENOSYS]) => Ok(false),
        done => done.map(|()| true),
    };
    found.user_xattrs = unknown(tmp.set_xattr(FILE, b"user.dlio.try", b"1"))?;
    // An ACL that the mode cannot express: the user has an entry of their own.
    found.acls = unknown(tmp.set_xattr(FILE, acl::ACCESS, &acl::example()))?;
    if found.acls {
        tmp.remove_xattr(FILE, acl::ACCESS)?;
    }
    Ok(())
}

fn try_times(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    // An odd second, and a nanosecond that no grain divides.
    let asked = Time { sec: 1_700_000_001, nsec: 123_456_789 };
    tmp.set_attr(FILE, &NewAttr { mtime: Some(asked), ..NewAttr::default() })?;
    let shown = tmp.stat(FILE)?.mtime;
    found.time_grain = match (shown.sec == asked.sec, shown.nsec) {
        (false, _) => Duration::from_secs(2),
        (true, 0) => Duration::from_secs(1),
        (true, nsec) => {
            let grains = (0..9).rev().map(|digits| 10_u32.pow(digits));
            let grain = grains.into_iter().find(|grain| nsec % grain == 0).unwrap_or(1);
            Duration::from_nanos(u64::from(grain))
        }
    };
    Ok(())
}

/// Skipped on a tier without holes: it would write them.
fn try_size(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    const HOLE: u64 = 1 << 20;
    // Exceeding a limit of the daemon itself would end the daemon.
    if !getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(soft, _)| soft == RLIM_INFINITY) {
        return Ok(());
    }
    let file = tmp.create(OTHER, FILE_PERM)?;
    file.set_len(HOLE)?;
    if file.stat()?.blocks * 512 >= HOLE {
        return Ok(());
    }
    found.size_known = match file.set_len(LARGE) {
        Ok(()) => LARGE,
        Err(e) if is(&e, &[Errno::EFBIG, Errno::EINVAL]) => SIZE_EVERYWHERE,
        Err(e) => return Err(e),
    };
    file.set_len(0)
}

/// Mode first: once the file has another owner we may not be able to change it.
fn try_owner(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    const PERM: u32 = 0o604;
    let made = tmp.stat(FILE)?;
    // Refused twice, while other changes are accepted: a tier that refuses everything for now says nothing about this
    // ability.
    let set = |new: NewAttr| {
        let is_able = |done: io::Result<()>| match done {
            Err(e) if is(&e, &[Errno::EACCES]) => Ok(false),
            done => can(done),
        };
        if is_able(tmp.set_attr(FILE, &new))? {
            return Ok(true);
        }
        tmp.set_attr(FILE, &NewAttr { mtime: Some(made.mtime), ..NewAttr::default() })?;
        is_able(tmp.set_attr(FILE, &new))
    };
    found.modes = set(NewAttr { perm: Some(PERM), ..NewAttr::default() })? && tmp.stat(FILE)?.perm == PERM;
    let is_root = geteuid().is_root();
    let group = |gid: u32| NewAttr { gid: Some(gid), ..NewAttr::default() };
    found.groups = match set(group(STRANGER))? {
        true => tmp.stat(FILE)?.gid == STRANGER,
        false if is_root => false,
        // Only root may give a file to any group.
        false => set(group(getegid().as_raw()))? && tmp.stat(FILE)?.gid == getegid().as_raw(),
    };
    found.owners = match set(NewAttr { uid: Some(STRANGER), ..NewAttr::default() })? {
        true => tmp.stat(FILE)?.uid == STRANGER,
        false => !is_root && made.uid == geteuid().as_raw(),
    };
    Ok(())
}

fn try_symlink(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    const LENGTHS: [u64; 2] = [4095, 1023];
    for length in LENGTHS {
        match can(tmp.symlink(SYMLINK, &vec![b'a'; length as usize])) {
            Ok(able) => {
                found.symlinks = able;
                found.target_known = length;
                return Ok(());
            }
            Err(e) if is(&e, &[Errno::ENAMETOOLONG]) => {}
            Err(e) => return Err(e),
        }
    }
    found.target_known = TARGET_EVERYWHERE;
    Ok(())
}

fn try_characters(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    found.any_names = match tmp.create(NAME, FILE_PERM) {
        Err(e) if is_of_name(&e) => false,
        made => made.and_then(|_| tmp.unlink(NAME)).map(|()| true)?,
    };
    Ok(())
}

/// Errors that are about a name; exfat-fuse returns ENOENT for characters that it does not take.
pub(super) fn is_of_name(error: &io::Error) -> bool {
    is_refused(error) || is(error, &[Errno::EILSEQ, Errno::ENOENT, Errno::EACCES, Errno::ENAMETOOLONG])
}

/// Whether every file system accepts the name.
pub(super) fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|byte| matches!(byte, b' '..=b'~') && !RARE.contains(byte))
}

fn try_fifo(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    let made = can(tmp.mknod(FIFO, Kind::Fifo, FILE_PERM, 0));
    // Some tiers make a regular file instead (exfat-fuse), which the kernel reports as EIO.
    let is_other = || tmp.stat(FIFO).is_ok_and(|there| there.kind != Kind::Fifo);
    found.fifos = if is_other() { false } else { made? };
    Ok(())
}

/// Steps identify a file by its number: two names with different numbers (sshfs) would look like two files, the second
/// of them foreign.
fn try_link(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    found.hard_links = can(tmp.link(FILE, tmp, LINK))?;
    if found.hard_links {
        found.hard_links = tmp.stat(FILE)?.ino == tmp.stat(LINK)?.ino;
        tmp.unlink(LINK)?;
    }
    Ok(())
}

fn try_names(tmp: &dyn Dir, found: &mut Abilities) -> io::Result<()> {
    found.no_replace = can(tmp.rename(FILE, tmp, LINK, RenameMode::NoReplace))?;
    let file = if found.no_replace { LINK } else { FILE };
    found.exchange = can(tmp.rename(file, tmp, DIR, RenameMode::Exchange))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::tiers::disk::os::OsDir;

    /// A second passes at each look.
    #[derive(Debug, Default)]
    struct Hasty(AtomicU64);

    impl Clock for Hasty {
        fn now(&self) -> Time {
            Time { sec: 0, nsec: 0 }
        }

        fn uptime(&self) -> Duration {
            Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
        }
    }

    /// A tier that hangs shows none of its abilities at once, and those it lacks must not be assumed.
    #[test]
    fn what_there_was_no_time_to_try_is_as_the_mount_before_found_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let tmp = OsDir::open(dir.path()).expect("opened");
        let find_out = |at_most, before| Abilities::find_out(&tmp, &Hasty::default(), at_most, before);
        let mut before = Abilities::default();
        (before.exchange, before.fifos, before.time_grain, before.size_known) =
            (false, false, Duration::from_secs(2), 77);
        let hour = Duration::from_secs(3600);
        let all = find_out(hour, None);
        assert_eq!(find_out(hour, Some(before)), all, "what is tried counts");
        assert_eq!(find_out(hour, Some(all)), all);
        assert_eq!(find_out(Duration::ZERO, Some(before)), before, "not even the first is tried");
        let some = find_out(Duration::from_secs(3), Some(before));
        assert!(some.given.uid == geteuid().as_raw() && !some.exchange && some.size_known == 77, "{some:?}");
        let new = find_out(Duration::ZERO, None);
        assert!(new.given.uid == geteuid().as_raw() && new.exchange && new.fifos, "{new:?}");
    }
}
