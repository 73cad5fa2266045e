//! Random operations on the mount and on a plain directory, in lock step: the same answers, and the same trees.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, OFlag, RenameFlags, copy_file_range, fallocate, renameat2};
use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::mkfifo;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::alike::{Besides, ensure_alike};
use crate::scratch::Scratch;

/// Operations between two comparisons of the whole trees, and of the slow tree alone with all drained.
const COMPARE_EVERY: u64 = 500;
const DRAIN_EVERY: u64 = 2_500;
/// Few names, so that operations meet; files kept open; where in them something happens.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const HANDLES: usize = 5;
const LARGEST: u64 = 300_000;

/// Where an operation acts: a name of [`NAMES`], in a directory of such a name, and so on.
type Where = PathBuf;

#[derive(Clone, Debug)]
enum Op {
    Mkdir(Where, u32),
    Rmdir(Where),
    Unlink(Where),
    Fifo(Where),
    Symlink(String, Where),
    Link(Where, Where),
    Rename(Where, Where, u32),
    WriteFile(Where, Vec<u8>),
    Truncate(Where, u64),
    Chmod(Where, u32),
    Chown(Where, u32, u32),
    SetTimes(Where, i64),
    SetXattr(Where, &'static str, Vec<u8>),
    RemoveXattr(Where, &'static str),
    Stat(Where),
    ReadLink(Where),
    List(Where),
    ReadFile(Where),
    Open(usize, Where, i32),
    Close(usize),
    WriteAt(usize, u64, Vec<u8>),
    ReadAt(usize, u64, usize),
    SetLen(usize, u64),
    Allocate(usize, u64, u64, i32),
    Copy { from: usize, at: i64, to: usize, to_at: i64, length: usize },
    Sync(usize),
}

/// One of the two trees and what is open in it.
struct Side {
    top: PathBuf,
    open: [Option<File>; HANDLES],
}

/// Runs so many operations of the seed; the two trees have names of their own on the mount and beside the pool.
pub(crate) fn run(scratch: &Scratch, seed: u64, operations: u64) -> Result<()> {
    let name = format!("random-{seed}");
    let (plain, slow) = (scratch.fast().join(&name), scratch.slow().join(&name));
    let mut sides = [Side::new(scratch.point().join(&name))?, Side::new(plain)?];
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    for number in 1..=operations {
        let op = random_op(&mut random);
        if !sides[1].moves_a_directory(&op) {
            let on_plain = sides[1].apply(&op);
            let on_mount = sides[0].apply(&op);
            ensure!(
                on_mount == on_plain,
                "seed {seed}, operation {number}, {}: {on_mount:?} on the mount, {on_plain:?} on a plain directory",
                shortened(&op)
            );
        }
        let [mount, plain] = sides.each_ref().map(|side| side.top.as_path());
        let after = || format!("seed {seed}, after {number} operations");
        if number % COMPARE_EVERY == 0 {
            ensure_alike_in_motion(mount, plain).map_err(|e| e.context(after()))?;
        }
        if number % DRAIN_EVERY == 0 || number == operations {
            scratch.drain()?;
            ensure_alike(&slow, plain, Besides::SetTimesAndXattrs).map_err(|e| e.context(after()))?;
            ensure_alike(mount, &slow, Besides::All).map_err(|e| e.context(after()))?;
        }
    }
    println!("seed {seed}: {operations} operations");
    Ok(())
}

/// A difference that goes by itself is one, too; it says so.
fn ensure_alike_in_motion(mount: &Path, plain: &Path) -> Result<()> {
    ensure_alike(mount, plain, Besides::SetTimes).map_err(|error| {
        thread::sleep(Duration::from_secs(1));
        let later = if ensure_alike(mount, plain, Besides::SetTimes).is_ok() { "alike" } else { "still different" };
        error.context(format!("{later} a second later"))
    })
}

/// Without what was written.
fn shortened(op: &Op) -> String {
    const ENOUGH: usize = 200;
    format!("{op:?}").chars().take(ENOUGH).collect()
}

fn random_where(random: &mut Xoshiro256PlusPlus) -> Where {
    let depth = random.random_range(1..=3);
    (0..depth).map(|_| random_of(random, &NAMES)).collect()
}

fn random_of<T: Copy>(random: &mut Xoshiro256PlusPlus, of: &[T]) -> T {
    of[random.random_range(0..of.len())]
}

/// Mostly short, and rarely all the same: bytes that are moved about must be noticed.
fn random_bytes(random: &mut Xoshiro256PlusPlus, most: usize) -> Vec<u8> {
    let length =
        if random.random_bool(0.7) { random.random_range(0..most.min(5_000)) } else { random.random_range(0..most) };
    let first: u8 = random.random();
    (0..length).map(|index| first.wrapping_add((index / 7) as u8)).collect()
}

fn random_op(random: &mut Xoshiro256PlusPlus) -> Op {
    const XATTRS: [&str; 3] = ["user.one", "user.two", "trusted.three"];
    const MODES: [u32; 5] = [0o644, 0o600, 0o755, 0o444, 0o4755];
    const OPEN: [OFlag; 5] = [
        OFlag::O_RDWR,
        OFlag::O_RDONLY,
        OFlag::O_RDWR.union(OFlag::O_CREAT),
        OFlag::O_RDWR.union(OFlag::O_CREAT).union(OFlag::O_EXCL),
        OFlag::O_RDWR.union(OFlag::O_CREAT).union(OFlag::O_TRUNC),
    ];
    const ALLOCATE: [FallocateFlags; 3] = [
        FallocateFlags::empty(),
        FallocateFlags::FALLOC_FL_KEEP_SIZE,
        FallocateFlags::FALLOC_FL_PUNCH_HOLE.union(FallocateFlags::FALLOC_FL_KEEP_SIZE),
    ];
    const RENAME: [RenameFlags; 4] =
        [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::RENAME_NOREPLACE, RenameFlags::RENAME_EXCHANGE];
    let path = random_where(random);
    let handle = random.random_range(0..HANDLES);
    let at = random.random_range(0..LARGEST);
    match random.random_range(0..100) {
        0..8 => Op::Mkdir(path, random_of(random, &[0o755, 0o700, 0o1777, 0o2755])),
        8..11 => Op::Rmdir(path),
        11..16 => Op::Unlink(path),
        16 => Op::Fifo(path),
        17..19 => Op::Symlink(random_where(random).display().to_string(), path),
        19..23 => Op::Link(path, random_where(random)),
        23..32 => Op::Rename(path, random_where(random), random_of(random, &RENAME).bits()),
        32..42 => Op::WriteFile(path, random_bytes(random, 100_000)),
        42..45 => Op::Truncate(path, at),
        45..48 => Op::Chmod(path, random_of(random, &MODES)),
        48..50 => Op::Chown(path, random_of(random, &[0, 1, 65_534]), random_of(random, &[0, 1, 65_534])),
        50..53 => Op::SetTimes(path, random.random_range(0..900_000_000)),
        53..56 => Op::SetXattr(path, random_of(random, &XATTRS), random_bytes(random, 200)),
        56..58 => Op::RemoveXattr(path, random_of(random, &XATTRS)),
        58..61 => Op::Stat(path),
        61 => Op::ReadLink(path),
        62..65 => Op::List(path),
        65..72 => Op::ReadFile(path),
        72..78 => Op::Open(handle, path, random_of(random, &OPEN).bits()),
        78..81 => Op::Close(handle),
        81..87 => Op::WriteAt(handle, at, random_bytes(random, 100_000)),
        87..92 => Op::ReadAt(handle, at, random.random_range(0..100_000)),
        92..94 => Op::SetLen(handle, at),
        94..97 => Op::Allocate(handle, at, random.random_range(1..50_000), random_of(random, &ALLOCATE).bits()),
        97..99 => {
            let (to, to_at) = (random.random_range(0..HANDLES), random.random_range(0..LARGEST) as i64);
            Op::Copy { from: handle, at: at as i64, to, to_at, length: random.random_range(1..50_000) }
        }
        _ => Op::Sync(handle),
    }
}

/// What an operation says besides having been done.
type Answer = Result<String, Errno>;

impl Side {
    fn new(top: PathBuf) -> Result<Self> {
        fs::create_dir(&top)?;
        Ok(Side { top, open: Default::default() })
    }

    /// Known: look-ups in a directory whose rename is being published fail as long as the view has not followed. Such renames
    /// are left out until the look-ups wait for that.
    fn moves_a_directory(&self, op: &Op) -> bool {
        let is_dir = |path: &Where| fs::symlink_metadata(self.top.join(path)).is_ok_and(|stat| stat.is_dir());
        matches!(op, Op::Rename(from, to, _) if is_dir(from) || is_dir(to))
    }

    fn apply(&mut self, op: &Op) -> Answer {
        let at = |path: &Where| self.top.join(path);
        let done = String::new();
        match op {
            Op::Mkdir(path, mode) => {
                // Not what is left of it by the mask of this process.
                io(fs::create_dir(at(path)).and_then(|()| set_mode(&at(path), *mode)))
            }
            Op::Rmdir(path) => io(fs::remove_dir(at(path))),
            Op::Unlink(path) => io(fs::remove_file(at(path))),
            Op::Fifo(path) => mkfifo(&at(path), Mode::S_IRUSR).map(|()| done),
            Op::Symlink(target, path) => io(symlink(target, at(path))),
            Op::Link(from, to) => io(fs::hard_link(at(from), at(to))),
            Op::Rename(from, to, flags) => {
                let flags = RenameFlags::from_bits_truncate(*flags);
                renameat2(AT_FDCWD, &at(from), AT_FDCWD, &at(to), flags).map(|()| done)
            }
            Op::WriteFile(path, bytes) => {
                let flags = OFlag::O_NONBLOCK | OFlag::O_CREAT | OFlag::O_TRUNC;
                io(open(&at(path), flags | OFlag::O_WRONLY).and_then(|file| file.write_all_at(bytes, 0)))
            }
            Op::Truncate(path, length) => nix::unistd::truncate(&at(path), *length as i64).map(|()| done),
            Op::Chmod(path, mode) => io(set_mode(&at(path), *mode)),
            Op::Chown(path, user, group) => io(lchown(at(path), Some(*user), Some(*group))),
            Op::SetTimes(path, seconds) => {
                let time = TimeSpec::new(*seconds, *seconds % 1_000_000_000);
                let flags = UtimensatFlags::NoFollowSymlink;
                utimensat(AT_FDCWD, &at(path), &time, &time, flags).map(|()| done)
            }
            Op::SetXattr(path, name, value) => io(xattr::set(at(path), name, value)),
            Op::RemoveXattr(path, name) => io(xattr::remove(at(path), name)),
            Op::Stat(path) => fs::symlink_metadata(at(path)).map(|stat| told(&stat)).map_err(errno),
            Op::ReadLink(path) => fs::read_link(at(path)).map(|target| format!("{target:?}")).map_err(errno),
            Op::List(path) => list(&at(path)).map_err(errno),
            Op::ReadFile(path) => {
                let file = open(&at(path), OFlag::O_RDONLY | OFlag::O_NONBLOCK).map_err(errno)?;
                read_at(&file, 0, LARGEST as usize * 2)
            }
            Op::Open(handle, path, flags) => {
                let flags = OFlag::from_bits_truncate(*flags) | OFlag::O_NONBLOCK;
                self.open[*handle] = Some(open(&at(path), flags).map_err(errno)?);
                Ok(done)
            }
            Op::Close(handle) => {
                self.open[*handle] = None;
                Ok(done)
            }
            Op::WriteAt(handle, offset, bytes) => io(self.handle(*handle)?.write_all_at(bytes, *offset)),
            Op::ReadAt(handle, offset, length) => read_at(self.handle(*handle)?, *offset, *length),
            Op::SetLen(handle, length) => io(self.handle(*handle)?.set_len(*length)),
            Op::Allocate(handle, offset, length, flags) => {
                let flags = FallocateFlags::from_bits_truncate(*flags);
                fallocate(self.handle(*handle)?, flags, *offset as i64, *length as i64).map(|()| done)
            }
            Op::Copy { from, at, to, to_at, length } => {
                let (from, to, mut at, mut to_at) = (self.handle(*from)?, self.handle(*to)?, *at, *to_at);
                copy_file_range(from, Some(&mut at), to, Some(&mut to_at), *length).map(|copied| copied.to_string())
            }
            Op::Sync(handle) => io(self.handle(*handle)?.sync_all()),
        }
    }

    fn handle(&self, number: usize) -> Result<&File, Errno> {
        self.open[number].as_ref().ok_or(Errno::EBADF)
    }
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

fn io(result: io::Result<()>) -> Answer {
    result.map(|()| String::new()).map_err(errno)
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

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
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
