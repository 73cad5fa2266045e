//! What a process does, each operation one system call: after a kill it has happened or it has not.

use std::fs::{self, File, Permissions};
use std::io::{self, Seek as _};
use std::ops::Range;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, FcntlArg, OFlag, RenameFlags, fallocate, fcntl, renameat2};
use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::mkfifo;
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rustix::fs::copy_file_range;
use serde::{Deserialize, Serialize};

use super::script::random_of;

/// Few names, so that operations meet; files kept open; where in them something happens.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const HANDLES: usize = 4;
/// In which the kernel cuts writes through its cache.
const PAGE: usize = 4096;
const MOST_PROCESSES: usize = 4;
const LARGEST: u64 = 300_000;
/// Times that somebody has set are before this second, in 2001.
pub(crate) const LONG_AGO: i64 = 1_000_000_000;

/// Below the process's directory: a name of [`NAMES`], in a directory of such a name, and so on.
type Where = PathBuf;

/// Bytes that differ from place to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bytes {
    first: u8,
    length: usize,
}

impl Bytes {
    fn bytes(self) -> Vec<u8> {
        (0..self.length).map(|index| self.first.wrapping_add((index / 7) as u8)).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Op {
    Mkdir(Where, u32),
    Rmdir(Where),
    Unlink(Where),
    Fifo(Where),
    /// Target, then name.
    Symlink(String, Where),
    Link(Where, Where),
    Rename(Where, Where, u32),
    Truncate(Where, u64),
    Chmod(Where, u32),
    Chown(Where, u32, u32),
    /// Seconds and nanoseconds.
    SetTimes(Where, i64, i64),
    SetXattr(Where, String, Bytes),
    RemoveXattr(Where, String),
    /// Of a directory also that which new files get; user, permissions of that user, of the group, and of others.
    SetAcl {
        at: Where,
        is_default: bool,
        user: u32,
        permissions: [u16; 3],
    },
    Stat(Where),
    ReadLink(Where),
    List(Where),
    ReadFile(Where),
    Open(usize, Where, i32),
    Close(usize),
    WriteAt(usize, u64, Bytes),
    Append(usize, Bytes),
    ReadAt(usize, u64, usize),
    SetLen(usize, u64),
    Allocate(usize, u64, u64, i32),
    Copy {
        from: usize,
        at: u64,
        to: usize,
        to_at: u64,
        length: usize,
    },
    Sync(usize),
    /// One of the mount's own attributes (`stage`, `evict`, `drain`, `pin`), and a value. Any answer will do.
    Ask(Where, String, String),
    /// Reads all that another process has, through the mount: what is found there, that process knows.
    Peek(usize),
    /// Milliseconds, so that the background has its turn.
    Rest(u64),
}

fn random_where(random: &mut Xoshiro256PlusPlus) -> Where {
    let depth = random_of(random, &[1, 1, 1, 2, 2, 3]);
    (0..depth).map(|_| random_of(random, &NAMES)).collect()
}

/// Mostly short, and rarely all the same: bytes that are moved about must be noticed.
fn random_bytes(random: &mut Xoshiro256PlusPlus, most: usize) -> Bytes {
    let most = if random.random_bool(0.7) { most.min(5_000) } else { most };
    Bytes { first: random.random(), length: random.random_range(0..most) }
}

pub(crate) fn random_op(random: &mut Xoshiro256PlusPlus) -> Op {
    match random.random_range(0..100) {
        0..55 => random_op_on_a_name(random),
        55..93 => random_op_on_a_handle(random),
        93..96 => {
            let (what, value) =
                random_of(random, &[("stage", "1"), ("evict", "1"), ("drain", "1"), ("pin", "1"), ("pin", "0")]);
            Op::Ask(random_where(random), what.to_owned(), value.to_owned())
        }
        96 => Op::Peek(random.random_range(0..MOST_PROCESSES)),
        _ => Op::Rest(random.random_range(0..130)),
    }
}

fn random_op_on_a_name(random: &mut Xoshiro256PlusPlus) -> Op {
    const XATTRS: [&str; 3] = ["user.one", "user.two", "trusted.three"];
    const MODES: [u32; 5] = [0o644, 0o600, 0o755, 0o444, 0o4755];
    const RENAME: [RenameFlags; 4] =
        [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::RENAME_NOREPLACE, RenameFlags::RENAME_EXCHANGE];
    let path = random_where(random);
    match random.random_range(0..65) {
        0..7 => Op::Mkdir(path, random_of(random, &[0o755, 0o700, 0o1777, 0o2755])),
        7..9 => Op::Rmdir(path),
        9..14 => Op::Unlink(path),
        14 => Op::Fifo(path),
        15..17 => Op::Symlink(random_where(random).display().to_string(), path),
        17..21 => Op::Link(path, random_where(random)),
        21..35 => Op::Rename(path, random_where(random), random_of(random, &RENAME).bits()),
        35..38 => Op::Truncate(path, random.random_range(0..LARGEST)),
        38..41 => Op::Chmod(path, random_of(random, &MODES)),
        41..43 => Op::Chown(path, random_of(random, &[0, 1, 65_534]), random_of(random, &[0, 1, 65_534])),
        43..46 => Op::SetTimes(path, random.random_range(0..LONG_AGO), random_of(random, &[0, 0, 999_999_999])),
        46..49 => Op::SetXattr(path, random_of(random, &XATTRS).to_owned(), random_bytes(random, 200)),
        49..51 => Op::RemoveXattr(path, random_of(random, &XATTRS).to_owned()),
        51..53 => Op::SetAcl {
            at: path,
            is_default: random.random_bool(0.5),
            user: random.random_range(1..4),
            permissions: [random.random_range(0..8), random.random_range(0..8), random.random_range(0..8)],
        },
        53..56 => Op::Stat(path),
        56 => Op::ReadLink(path),
        57..60 => Op::List(path),
        _ => Op::ReadFile(path),
    }
}

fn random_op_on_a_handle(random: &mut Xoshiro256PlusPlus) -> Op {
    const CREATE: OFlag = OFlag::O_RDWR.union(OFlag::O_CREAT);
    const OPEN: [OFlag; 8] = [
        OFlag::O_RDWR,
        OFlag::O_RDONLY,
        CREATE,
        CREATE,
        CREATE.union(OFlag::O_EXCL),
        CREATE.union(OFlag::O_TRUNC),
        CREATE.union(OFlag::O_TRUNC),
        CREATE.union(OFlag::O_APPEND),
    ];
    const ALLOCATE: [FallocateFlags; 4] = [
        FallocateFlags::empty(),
        FallocateFlags::FALLOC_FL_KEEP_SIZE,
        FallocateFlags::FALLOC_FL_PUNCH_HOLE.union(FallocateFlags::FALLOC_FL_KEEP_SIZE),
        FallocateFlags::FALLOC_FL_ZERO_RANGE,
    ];
    let handle = random.random_range(0..HANDLES);
    let at = random.random_range(0..LARGEST);
    match random.random_range(0..45) {
        0..12 => Op::Open(handle, random_where(random), random_of(random, &OPEN).bits()),
        12..19 => Op::Close(handle),
        19..29 => Op::WriteAt(handle, if random.random_bool(0.5) { at } else { 0 }, random_bytes(random, 100_000)),
        29..31 => Op::Append(handle, random_bytes(random, 20_000)),
        31..36 => Op::ReadAt(handle, at, random.random_range(0..100_000)),
        36..38 => Op::SetLen(handle, at),
        38..40 => Op::Allocate(handle, at, random.random_range(1..50_000), random_of(random, &ALLOCATE).bits()),
        40..42 => {
            let (to, to_at) = (random.random_range(0..HANDLES), random.random_range(0..LARGEST));
            Op::Copy { from: handle, at, to, to_at, length: random.random_range(1..50_000) }
        }
        _ => Op::Sync(handle),
    }
}

/// What an operation says besides having been done.
pub(crate) type Answer = Result<String, Errno>;

/// One of two trees and what is open in it.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) top: PathBuf,
    /// Whether there is somebody to [`Op::Ask`].
    is_mount: bool,
    open: [Option<File>; 8],
}

impl Side {
    pub(crate) fn new(top: PathBuf, is_mount: bool) -> Self {
        Side { top, is_mount, open: Default::default() }
    }

    /// Their daemon is gone.
    pub(crate) fn drop_handles(&mut self) {
        self.open = Default::default();
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Answer {
        match op {
            Op::Open(handle, path, flags) => {
                // The one before it is closed first, so that the two are never one call.
                self.open[*handle] = None;
                let flags = OFlag::from_bits_truncate(*flags) | OFlag::O_NONBLOCK;
                self.open[*handle] = Some(open(&self.top.join(path), flags).map_err(errno)?);
                Ok(String::new())
            }
            Op::Close(handle) => match self.open[*handle].take() {
                Some(file) => nix::unistd::close(file).map(|()| String::new()),
                None => Ok(String::new()),
            },
            Op::Ask(path, what, value) if self.is_mount => self.ask(path, what, value),
            Op::Peek(other) if self.is_mount => peek(&self.top.with_file_name(subtree(*other))),
            Op::Rest(time) if self.is_mount => {
                std::thread::sleep(Duration::from_millis(*time));
                Ok(String::new())
            }
            Op::Ask(..) | Op::Peek(_) | Op::Rest(_) => Ok(String::new()),
            op => self.on_a_handle(op).unwrap_or_else(|| self.on_a_name(op)),
        }
    }

    /// The parts in which the kernel may hand a write to the daemon: a kill leaves some of the first ones. `None`: it is one.
    pub(crate) fn pieces(&self, op: &Op) -> Option<Vec<Range<usize>>> {
        let (number, offset, length) = match op {
            Op::WriteAt(number, offset, bytes) => (number, Some(*offset), bytes.length),
            Op::Append(number, bytes) => (number, None, bytes.length),
            Op::Copy { to, to_at, length, .. } => (to, Some(*to_at), *length),
            _ => return None,
        };
        let mut file = self.open[*number].as_ref()?;
        let appends = fcntl(file, FcntlArg::F_GETFL).is_ok_and(|flags| flags & OFlag::O_APPEND.bits() != 0);
        let start = match offset.filter(|_| !appends) {
            Some(offset) => offset,
            None if appends => file.metadata().ok()?.len(),
            None => file.stream_position().ok()?,
        };
        let first = (PAGE - start as usize % PAGE).min(length);
        let ends = (first..length).step_by(PAGE).chain([length]);
        Some(ends.scan(0, |from, to| Some(std::mem::replace(from, to)..to)).collect())
    }

    /// Does this part of a write.
    pub(crate) fn apply_piece(&mut self, op: &Op, piece: Range<usize>) -> Answer {
        match op {
            Op::WriteAt(number, offset, bytes) => {
                let bytes = &bytes.bytes()[piece.clone()];
                self.write(*number, |file| file.write_all_at(bytes, offset + piece.start as u64))
            }
            Op::Append(number, bytes) => {
                let bytes = &bytes.bytes()[piece];
                self.write(*number, |mut file| io::Write::write_all(&mut file, bytes))
            }
            Op::Copy { from, at, to, to_at, .. } => self.apply(&Op::Copy {
                from: *from,
                at: at + piece.start as u64,
                to: *to,
                to_at: to_at + piece.start as u64,
                length: piece.len(),
            }),
            whole => self.apply(whole),
        }
    }

    /// The file whose bytes this changes.
    pub(crate) fn changed(&self, op: &Op) -> Option<File> {
        match op {
            Op::WriteAt(number, ..)
            | Op::Append(number, _)
            | Op::SetLen(number, _)
            | Op::Allocate(number, ..)
            | Op::Copy { to: number, .. } => self.open[*number].as_ref()?.try_clone().ok(),
            Op::Open(_, _, flags) if flags & OFlag::O_TRUNC.bits() == 0 => None,
            Op::Open(_, path, _) | Op::Truncate(path, _) => {
                open(&self.top.join(path), OFlag::O_RDWR | OFlag::O_NONBLOCK).ok()
            }
            _ => None,
        }
    }

    fn write(&self, number: usize, write: impl FnOnce(&File) -> io::Result<()>) -> Answer {
        self.open[number].as_ref().ok_or(Errno::EBADF).and_then(|file| io(write(file)))
    }

    fn ask(&self, path: &Path, what: &str, value: &str) -> Answer {
        match xattr::set(self.top.join(path), format!("user.dlio.{what}"), value.as_bytes()) {
            // Everything else is an answer: what may be asked when, other tests know.
            Err(error) if is_dead(errno_of(&error)) => Err(errno_of(&error)),
            _ => Ok(String::new()),
        }
    }

    fn on_a_name(&self, op: &Op) -> Answer {
        let at = |path: &Where| self.top.join(path);
        let done = String::new();
        match op {
            Op::Mkdir(path, mode) => io(fs::DirBuilder::new().mode(*mode).create(at(path))),
            Op::Rmdir(path) => io(fs::remove_dir(at(path))),
            Op::Unlink(path) => io(fs::remove_file(at(path))),
            Op::Fifo(path) => mkfifo(&at(path), Mode::S_IRUSR).map(|()| done),
            Op::Symlink(target, path) => io(symlink(target, at(path))),
            Op::Link(from, to) => io(fs::hard_link(at(from), at(to))),
            Op::Rename(from, to, flags) => {
                let flags = RenameFlags::from_bits_truncate(*flags);
                renameat2(AT_FDCWD, &at(from), AT_FDCWD, &at(to), flags).map(|()| done)
            }
            Op::Truncate(path, length) => nix::unistd::truncate(&at(path), *length as i64).map(|()| done),
            Op::Chmod(path, mode) => io(fs::set_permissions(at(path), Permissions::from_mode(*mode))),
            Op::Chown(path, user, group) => io(lchown(at(path), Some(*user), Some(*group))),
            Op::SetTimes(path, seconds, nanoseconds) => {
                let time = TimeSpec::new(*seconds, *nanoseconds);
                utimensat(AT_FDCWD, &at(path), &time, &time, UtimensatFlags::NoFollowSymlink).map(|()| done)
            }
            Op::SetXattr(path, name, value) => io(xattr::set(at(path), name, &value.bytes())),
            Op::RemoveXattr(path, name) => io(xattr::remove(at(path), name)),
            Op::SetAcl { at: path, is_default, user, permissions } => {
                let name = if *is_default { "system.posix_acl_default" } else { "system.posix_acl_access" };
                io(xattr::set(at(path), name, &acl(*user, *permissions)))
            }
            Op::Stat(path) => fs::symlink_metadata(at(path)).map(|stat| told(&stat)).map_err(errno),
            Op::ReadLink(path) => fs::read_link(at(path)).map(|target| format!("{target:?}")).map_err(errno),
            Op::List(path) => list(&at(path)).map_err(errno),
            Op::ReadFile(path) => {
                let file = open(&at(path), OFlag::O_RDONLY | OFlag::O_NONBLOCK).map_err(errno)?;
                read_at(&file, 0, LARGEST as usize * 2)
            }
            _ => unreachable!("{op:?} is no operation on a name"),
        }
    }

    /// `None`: it is not one on a handle.
    fn on_a_handle(&self, op: &Op) -> Option<Answer> {
        let handle = |number: &usize| self.open[*number].as_ref().ok_or(Errno::EBADF);
        Some(match op {
            Op::WriteAt(number, offset, bytes) => {
                self.write(*number, |file| file.write_all_at(&bytes.bytes(), *offset))
            }
            Op::Append(number, bytes) => {
                self.write(*number, |mut file| io::Write::write_all(&mut file, &bytes.bytes()))
            }
            Op::ReadAt(number, offset, length) => handle(number).and_then(|file| read_at(file, *offset, *length)),
            Op::SetLen(number, length) => self.write(*number, |file| file.set_len(*length)),
            Op::Allocate(number, offset, length, flags) => handle(number).and_then(|file| {
                let flags = FallocateFlags::from_bits_truncate(*flags);
                fallocate(file, flags, *offset as i64, *length as i64).map(|()| String::new())
            }),
            Op::Copy { from, at, to, to_at, length } => handle(from).and_then(|from| {
                let (to, mut at, mut to_at) = (handle(to)?, *at, *to_at);
                let copied = copy_file_range(from, Some(&mut at), to, Some(&mut to_at), *length);
                copied.map(|copied| copied.to_string()).map_err(|error| Errno::from_raw(error.raw_os_error()))
            }),
            Op::Sync(number) => self.write(*number, File::sync_all),
            _ => return None,
        })
    }
}

/// The directory of a process, at the top of each tree.
pub(crate) fn subtree(number: usize) -> String {
    format!("actor{number}")
}

/// Reads a tree that changes at the same time: what was there a moment ago may be gone, or something else.
fn peek(dir: &Path) -> Answer {
    const VANISHED: [Errno; 5] = [Errno::ENOENT, Errno::ENOTDIR, Errno::EISDIR, Errno::ELOOP, Errno::ENXIO];
    let unless_vanished = |error: io::Error| match errno_of(&error) {
        errno if VANISHED.contains(&errno) => Ok(String::new()),
        errno => Err(errno),
    };
    let entries = match fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) => return unless_vanished(error),
    };
    for path in entries.into_iter().map(|entry| entry.path()) {
        let read = || {
            let kind = fs::symlink_metadata(&path)?.file_type();
            let file = match kind.is_file() {
                true => open(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW)?,
                false => return Ok(kind.is_dir()),
            };
            read_at(&file, 0, LARGEST as usize * 2).map(|_| false).map_err(io::Error::from)
        };
        match read() {
            Ok(true) => drop(peek(&path)?),
            Ok(false) => {}
            Err(error) => drop(unless_vanished(error)?),
        }
    }
    Ok(String::new())
}

/// How a mount without its daemon answers.
pub(crate) fn is_dead(errno: Errno) -> bool {
    matches!(errno, Errno::ENOTCONN | Errno::ECONNABORTED)
}

pub(crate) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn errno(error: io::Error) -> Errno {
    errno_of(&error)
}

fn io(result: io::Result<()>) -> Answer {
    result.map(|()| String::new()).map_err(errno)
}

/// As the kernel takes it: a version, and then tag, permissions and user of each entry. The mask lets everything through.
fn acl(user: u32, [of_user, group, other]: [u16; 3]) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries = [(1, 7, NOBODY), (2, of_user, user), (4, group, NOBODY), (16, 7, NOBODY), (32, other, NOBODY)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(permissions));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

/// Some operations say what is there now, so that a difference is seen where it arises.
fn told(stat: &fs::Metadata) -> String {
    let size = if stat.is_dir() { 0 } else { stat.len() };
    format!("{:o} {}:{} {size} bytes", stat.mode(), stat.uid(), stat.gid())
}

fn open(path: &Path, flags: OFlag) -> io::Result<File> {
    let access = flags & OFlag::O_ACCMODE;
    let mut options = File::options();
    options.read(access != OFlag::O_WRONLY).write(access != OFlag::O_RDONLY);
    // Creating is asked for as flags: the library refuses combinations that the system knows.
    options.mode(0o640).custom_flags((flags & !OFlag::O_ACCMODE).bits()).open(path)
}

fn list(dir: &Path) -> io::Result<String> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<io::Result<_>>()?;
    names.sort();
    Ok(names.join(" "))
}

/// How much there is and its checksum.
fn read_at(file: &File, offset: u64, length: usize) -> Answer {
    let (mut bytes, mut filled) = (vec![0; length], 0);
    loop {
        match file.read_at(&mut bytes[filled..], offset + filled as u64).map_err(errno)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(format!("{filled} bytes, crc {:08x}", crc32fast::hash(&bytes[..filled])))
}
