//! Translates between the kernel's terms and the engine's: attributes, times, flags. Pure, and the only place that
//! knows both.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, RenameFlags, TimeOrNow};
use nix::fcntl::{FallocateFlags, OFlag};
use nix::libc;
use nix::sys::stat::SFlag;

use crate::error::Errno;
use crate::tiers::disk::{Allocate, Kind, RenameMode, Seek, Time};
use crate::tiers::{Attr, OpenMode};

/// What `st_blksize` tells buffered readers to use for a regular file: large requests cost far less through FUSE.
const FILE_BLKSIZE: u32 = 1 << 20;
const OTHER_BLKSIZE: u32 = 4096;

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    let ctime = system_time(attr.ctime);
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime,
        crtime: ctime,
        kind: file_type(attr.kind),
        perm: (attr.perm & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // FUSE carries 32 bits: every device with a major below 4,096 and a minor below 2^20.
        rdev: attr.rdev as u32,
        blksize: if attr.kind == Kind::File { FILE_BLKSIZE } else { OTHER_BLKSIZE },
        flags: 0,
    }
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind that MKNOD requests in its mode; without type bits it is a regular file, as mknod(2) says.
pub(super) fn kind_of_mode(mode: u32) -> Result<Kind, Errno> {
    match SFlag::from_bits_truncate(mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => Ok(Kind::File),
        SFlag::S_IFIFO => Ok(Kind::Fifo),
        SFlag::S_IFSOCK => Ok(Kind::Socket),
        SFlag::S_IFCHR => Ok(Kind::CharDevice),
        SFlag::S_IFBLK => Ok(Kind::BlockDevice),
        none if none.is_empty() => Ok(Kind::File),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn open_mode(flags: i32) -> OpenMode {
    let flags = OFlag::from_bits_retain(flags);
    let access = flags & OFlag::O_ACCMODE;
    OpenMode {
        write: access != OFlag::O_RDONLY,
        append: flags.contains(OFlag::O_APPEND),
        truncate: flags.contains(OFlag::O_TRUNC),
    }
}

/// Whether every write must be durable before it returns.
pub(super) fn wants_sync(flags: i32) -> bool {
    // O_SYNC is O_DSYNC plus one bit.
    OFlag::from_bits_retain(flags).contains(OFlag::O_DSYNC)
}

/// Whether execve(2) opens the file: the kernel's own `__FMODE_EXEC`, which no program can set.
pub(super) fn wants_to_run(flags: i32) -> bool {
    flags & 0x20 != 0
}

pub(super) fn wants_exclusive(flags: i32) -> bool {
    OFlag::from_bits_retain(flags).contains(OFlag::O_EXCL)
}

/// EINVAL for a whiteout and for flags that exclude each other, as rename(2) says.
pub(super) fn rename_mode(flags: RenameFlags) -> Result<RenameMode, Errno> {
    match flags {
        none if none.is_empty() => Ok(RenameMode::Replace),
        RenameFlags::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        RenameFlags::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno::EINVAL),
    }
}

/// EOPNOTSUPP for modes that not every tier supports (collapsing, inserting, unsharing).
pub(super) fn allocate(mode: i32) -> Result<Allocate, Errno> {
    const KEEP: FallocateFlags = FallocateFlags::FALLOC_FL_KEEP_SIZE;
    const PUNCH: FallocateFlags = FallocateFlags::FALLOC_FL_PUNCH_HOLE.union(KEEP);
    const ZERO: FallocateFlags = FallocateFlags::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: FallocateFlags = ZERO.union(KEEP);
    match FallocateFlags::from_bits(mode) {
        Some(none) if none.is_empty() => Ok(Allocate::Extend),
        Some(KEEP) => Ok(Allocate::KeepSize),
        Some(PUNCH) => Ok(Allocate::PunchHole),
        Some(ZERO) => Ok(Allocate::ZeroRange),
        Some(ZERO_KEEP) => Ok(Allocate::ZeroRangeKeepSize),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Only these two reach a FUSE file system; the kernel moves the file position by itself.
pub(super) fn seek(whence: i32) -> Result<Seek, Errno> {
    match whence {
        libc::SEEK_DATA => Ok(Seek::Data),
        libc::SEEK_HOLE => Ok(Seek::Hole),
        _ => Err(Errno::EINVAL),
    }
}

/// Times as fuser sends them. It writes a time before 1970 correctly.
fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let second = if time.sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    // A time no clock can show comes out as 1970 instead of stopping the file system.
    second.and_then(|t| t.checked_add(Duration::from_nanos(time.nsec.into()))).unwrap_or(UNIX_EPOCH)
}

/// A time as fuser 0.18.0 delivers it in SETATTR.
pub(super) fn time_or_now(time: TimeOrNow, now: Time) -> Time {
    match time {
        TimeOrNow::Now => now,
        TimeOrNow::SpecificTime(time) => match time.duration_since(UNIX_EPOCH) {
            Ok(_) => time_after_1970(time),
            // fuser 0.18.0 subtracts the nanoseconds of a negative time instead of adding them, so the distance from
            // 1970 is exactly the pair that came in: seconds negated, nanoseconds unchanged.
            Err(before) => {
                let before = before.duration();
                Time { sec: -(before.as_secs().min(i64::MAX as u64) as i64), nsec: before.subsec_nanos() }
            }
        },
    }
}

/// A reading of the clock; a time before 1970 becomes 1970.
pub(super) fn time_after_1970(time: SystemTime) -> Time {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsec: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds() {
        let time = Time { sec: 1_700_000_000, nsec: 123_456_789 };
        assert_eq!(system_time(time), UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789));
        assert_eq!(time_or_now(TimeOrNow::SpecificTime(system_time(time)), Time { sec: 0, nsec: 0 }), time);
        assert_eq!(time_or_now(TimeOrNow::Now, time), time);
    }

    #[test]
    fn a_time_before_1970_goes_out_right_and_comes_in_as_fuser_mangles_it() {
        let time = Time { sec: -2, nsec: 800_000_000 };
        assert_eq!(system_time(time), UNIX_EPOCH - Duration::from_millis(1_200), "1.2 s before 1970");
        // What fuser 0.18.0 makes of the pair (-2, 800000000) in a SETATTR.
        let mangled = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(time_or_now(TimeOrNow::SpecificTime(mangled), Time { sec: 0, nsec: 0 }), time);
    }

    #[test]
    fn a_time_out_of_range_does_not_panic() {
        for sec in [i64::MIN, i64::MIN + 1, i64::MAX] {
            system_time(Time { sec, nsec: 999_999_999 });
        }
    }

    #[test]
    fn attributes_carry_the_kind_and_a_large_block_size_for_files_only() {
        let time = Time { sec: 1, nsec: 2 };
        let attr = Attr {
            ino: 9,
            kind: Kind::File,
            perm: 0o104_755,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 0,
            size: 5,
            blocks: 8,
            atime: time,
            mtime: time,
            ctime: time,
            ttl: Duration::ZERO,
        };
        let file = file_attr(&attr);
        assert_eq!((file.ino, file.perm, file.blksize), (INodeNo(9), 0o4755, 1 << 20));
        assert_eq!(file_attr(&Attr { kind: Kind::Dir, ..attr }).blksize, 4096);
    }

    #[test]
    fn modes_and_flags_map_or_are_refused() {
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o644), Ok(Kind::Fifo));
        assert_eq!(kind_of_mode(0o644), Ok(Kind::File));
        assert_eq!(kind_of_mode(libc::S_IFDIR), Err(Errno::EINVAL));
        assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE), Ok(RenameMode::Exchange));
        assert_eq!(rename_mode(RenameFlags::RENAME_WHITEOUT), Err(Errno::EINVAL));
        assert_eq!(rename_mode(RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE), Err(Errno::EINVAL));
        assert_eq!(allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE), Ok(Allocate::PunchHole));
        assert_eq!(allocate(libc::FALLOC_FL_ZERO_RANGE), Ok(Allocate::ZeroRange));
        assert_eq!(allocate(libc::FALLOC_FL_PUNCH_HOLE), Err(Errno::EOPNOTSUPP));
        assert_eq!(allocate(libc::FALLOC_FL_COLLAPSE_RANGE), Err(Errno::EOPNOTSUPP));
        assert_eq!(allocate(1 << 30), Err(Errno::EOPNOTSUPP));
        assert_eq!(seek(libc::SEEK_HOLE), Ok(Seek::Hole));
        assert_eq!(seek(libc::SEEK_CUR), Err(Errno::EINVAL));
    }

    #[test]
    fn open_flags_are_taken_apart() {
        let mode = open_mode(libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC | libc::O_DIRECT);
        assert!(mode.write && mode.append && mode.truncate);
        let mode = open_mode(libc::O_RDONLY);
        assert!(!mode.write && !mode.append && !mode.truncate);
        assert!(open_mode(libc::O_RDWR).write);
        assert!(wants_sync(libc::O_SYNC) && wants_sync(libc::O_DSYNC) && !wants_sync(libc::O_DIRECT));
        assert!(wants_exclusive(libc::O_CREAT | libc::O_EXCL) && !wants_exclusive(libc::O_CREAT));
    }
}
