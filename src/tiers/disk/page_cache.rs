//! Which bytes of a local file are in the page cache, and whether a read of them waits for no disk.
//!
//! The kernel's own call (`preadv2` with RWF_NOWAIT) is not enough: on a miss it starts to read ahead, for which it
//! looks up where the blocks are, and waits for that. So `cachestat(2)` is called first (Linux 6.5). Two waits remain:
//! a page that is marked for read-ahead takes a lock that a truncation or a hole of this very file may hold, and
//! programs that watch reads (fanotify's permission events) are waited for. `ops/open.rs` keeps such waits from taking
//! all threads.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::stat::{FileStat, major, minor};
use rustix::fs::{StatVfsMountFlags, fstatvfs};

use crate::tiers::disk::sync::Mutex;

/// How long an answer is valid. A page that leaves the cache meanwhile costs a read of the disk. It delays this thread
/// only if the disk's queue is full or the block map must be read first.
const HOLDS: Duration = Duration::from_millis(20);
/// A file of this size is asked about as a whole: 16 thousand pages take half a millisecond.
const WHOLE_MAX: u64 = 64 << 20;

/// How the page cache treats the files of a file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageCache {
    /// Bytes that the kernel reads ahead at most.
    ahead: u64,
    /// No read changes an access time.
    noatime: bool,
}

impl PageCache {
    /// The page cache of the file system that holds this directory, on this device, as it is now: after a change of its
    /// read-ahead or of how it keeps access times, mount again. `None`: the kernel's read-ahead there is unknown
    /// (btrfs, tmpfs), or each read may change an access time.
    pub(super) fn of(dir: BorrowedFd<'_>, dev: u64) -> Option<PageCache> {
        let flags = fstatvfs(dir).ok()?.f_flag;
        if !flags.intersects(StatVfsMountFlags::NOATIME | StatVfsMountFlags::RELATIME) {
            return None;
        }
        let ahead = format!("/sys/class/bdi/{}:{}/read_ahead_kb", major(dev), minor(dev));
        // A partition's disk has it.
        let disk = format!("/sys/dev/block/{}:{}/../bdi/read_ahead_kb", major(dev), minor(dev));
        let told = [ahead, disk].iter().find_map(|path| std::fs::read_to_string(Path::new(path)).ok())?;
        let ahead = told.trim().parse::<u64>().ok()?.checked_mul(1024)?;
        Some(PageCache { ahead, noatime: flags.contains(StatVfsMountFlags::NOATIME) })
    }

    /// Whether a read of these bytes waits for no disk: they are in the cache, and so is what the kernel would read
    /// ahead behind them. It reads the next two windows at most, and a window is as long as the read if that is longer.
    pub(super) fn has(
        &self,
        known: &Mutex<Option<Known>>,
        file: BorrowedFd<'_>,
        stat: &FileStat,
        bytes: Range<u64>,
    ) -> io::Result<bool> {
        let (size, window) = (stat.st_size as u64, self.ahead.max(bytes.end - bytes.start));
        let reach = |windows: u64| bytes.end.saturating_add(window.saturating_mul(windows)).min(size);
        let answer = known.lock().as_ref().and_then(|known| known.answer(&(bytes.start..reach(2))));
        let there = match answer {
            Some(there) => there,
            None => {
                // Further than this read needs, for the reads that follow.
                let asked = if size <= WHOLE_MAX { 0..size } else { bytes.start..reach(4) };
                let asked = Known::ask(file, asked)?;
                known.lock().insert(asked).there
            }
        };
        Ok(there && (self.noatime || is_read_unnoticed(file, stat)?))
    }
}

/// The last answer about a file: asking takes 30 ns a page, which is more than a small read takes.
#[derive(Debug)]
pub(super) struct Known {
    asked: Instant,
    bytes: Range<u64>,
    /// The cache has all of them.
    there: bool,
}

impl Known {
    fn ask(file: BorrowedFd<'_>, bytes: Range<u64>) -> io::Result<Known> {
        let page = page_size();
        let pages = bytes.end.div_ceil(page) - bytes.start / page;
        let there = cached_pages(file, bytes.clone())? == pages;
        Ok(Known { asked: Instant::now(), bytes, there })
    }

    /// `None`: ask the cache. The answer is too old, or the read continues behind it or starts over. If several readers
    /// are at different places of a large file, this serves only one of them.
    fn answer(&self, wanted: &Range<u64>) -> Option<bool> {
        if self.asked.elapsed() > HOLDS {
            return None;
        }
        let begins_here = self.bytes.start <= wanted.start && wanted.start <= self.bytes.end;
        match self.there {
            true if begins_here && wanted.end <= self.bytes.end => Some(true),
            true if begins_here || wanted.start == 0 => None,
            true | false => Some(false),
        }
    }
}

/// Whether a read leaves the access time alone, where it is kept as `relatime` says (mount(8)): a read updates it if it
/// is not later than the file's other times, or a day old. Such a read could wait for the file system's journal.
fn is_read_unnoticed(file: BorrowedFd<'_>, stat: &FileStat) -> io::Result<bool> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60 - 60);
    let read = (stat.st_atime, stat.st_atime_nsec);
    let is_newer = read > (stat.st_mtime, stat.st_mtime_nsec) && read > (stat.st_ctime, stat.st_ctime_nsec);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_secs(u64::try_from(stat.st_atime).unwrap_or(0)));
    if is_newer && age < DAY {
        return Ok(true);
    }
    Ok(OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL)?).contains(OFlag::O_NOATIME))
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// `struct cachestat_range` and `struct cachestat` of `linux/mman.h`.
#[repr(C)]
struct CachestatRange {
    off: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    nr_cache: u64,
    nr_dirty: u64,
    nr_writeback: u64,
    nr_evicted: u64,
    nr_recently_evicted: u64,
}

/// How many pages of these bytes the page cache has. Errors: ENOSYS before Linux 6.5; EPERM for a file that is not ours
/// and that we may not write; EBADF, EOPNOTSUPP.
#[expect(unsafe_code, reason = "no library that is kept has this call yet")]
fn cached_pages(file: BorrowedFd<'_>, bytes: Range<u64>) -> io::Result<u64> {
    /// On all that we build for: new system calls have the same number there.
    const CACHESTAT: libc::c_long = 451;
    // To the kernel a length of 0 is the rest of the file.
    if bytes.is_empty() {
        return Ok(0);
    }
    let range = CachestatRange { off: bytes.start, len: bytes.end - bytes.start };
    let mut found = Cachestat::default();
    // SAFETY: the kernel reads one `cachestat_range` and writes one `cachestat`, which these are, field by field; both
    // live until the call returns, and so does the descriptor.
    let done = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0) };
    if done == 0 { Ok(found.nr_cache) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::Range;
    use std::time::Instant;

    use super::{HOLDS, Known};
    use crate::tiers::disk::os::OsDir;
    use crate::tiers::disk::{Access, Dir, File, WHOLE};

    const SIZE: usize = 300_000;

    /// A file with known bytes, opened like a slow file; `None`: this directory cannot be read at hand.
    fn file(dir: &tempfile::TempDir) -> Option<std::sync::Arc<dyn File>> {
        let bytes: Vec<u8> = (0..SIZE).map(|at| at as u8).collect();
        fs::write(dir.path().join("file"), bytes).expect("write");
        let root = OsDir::open(dir.path()).expect("open");
        let file = root.open(b"file", Access::Read).expect("open");
        file.sync().expect("sync");
        let can_be_asked = super::cached_pages(file.descriptor().expect("a descriptor"), 0..4096).is_ok();
        root.pages().filter(|_| can_be_asked).map(|_| file)
    }

    fn pages_of(file: &dyn File) -> u64 {
        super::cached_pages(file.descriptor().expect("a descriptor"), 0..SIZE as u64).expect("cachestat")
    }

    /// Reads until the access time is newer than the file: the clock of a file system has ticks.
    fn at_hand(file: &dyn File, offset: u64) -> usize {
        let mut buf = vec![0; SIZE];
        loop {
            file.read_at(&mut buf, 0).expect("read");
            if let Some(got) = file.read_at_hand(&mut buf, offset) {
                assert!(buf[..got].iter().zip(offset..).all(|(byte, at)| *byte == at as u8));
                return got;
            }
        }
    }

    /// For a large file, a part of which is known.
    #[test]
    fn a_read_behind_what_is_known_asks_again_and_one_elsewhere_does_not() {
        let known = |there| Known { asked: Instant::now(), bytes: 100..200, there };
        let asked: [(Range<u64>, Option<bool>); 6] = [
            (100..200, Some(true)),
            (150..160, Some(true)),
            (150..201, None),
            (200..300, None),
            (0..50, None),
            (201..300, Some(false)),
        ];
        for (wanted, answer) in asked {
            assert_eq!(known(true).answer(&wanted), answer, "{wanted:?}");
            assert_eq!(known(false).answer(&wanted), Some(false), "{wanted:?}");
        }
        let old = Known { asked: Instant::now() - 2 * HOLDS, ..known(true) };
        assert_eq!(old.answer(&(100..200)), None);
    }

    #[test]
    fn what_lies_in_memory_is_at_hand_to_its_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let Some(file) = file(&dir) else { return };
        for offset in [0, 1, 4096, 299_999, 300_000, 400_000] {
            assert_eq!(at_hand(&*file, offset), SIZE.saturating_sub(offset as usize));
        }
    }

    /// The disk is not asked, not even for what is behind.
    #[test]
    fn what_is_not_in_memory_is_not_at_hand_and_stays_on_the_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let Some(file) = file(&dir) else { return };
        at_hand(&*file, 0);
        let mut buf = vec![0; 4096];
        // The page is there, and what is read ahead behind it is not. Another descriptor has no answer yet.
        file.forget_cached(8192..SIZE as u64);
        let file = file.reopen().expect("open");
        let left = pages_of(&*file);
        assert!(left < SIZE as u64 / 4096, "{left}");
        assert_eq!(file.read_at_hand(&mut buf, 0), None);
        file.forget_cached(WHOLE);
        let file = file.reopen().expect("open");
        assert_eq!((file.read_at_hand(&mut buf, 0), pages_of(&*file)), (None, 0));
    }
}
