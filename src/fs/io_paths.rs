//! Which path the reads and writes of an open file take: `exact`, `cached` or `passthrough`.
//!
//! The path is a property of the inode while it is open, chosen at its first open, because the kernel allows no
//! mixture: while one handle of an inode is passthrough, all must be, with the same backing file. So a file that is
//! open for writing is exact. A file that is opened for writing while it is passthrough is direct *and* passthrough:
//! its reads and writes come to us, its mappings are the backing file's. Its bytes are pinned meanwhile: they are
//! changed where the kernel reads them.
//!
//! `config` has the rules; the engine knows where the bytes are.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use fuser::{BackingId, FopenFlags, InitFlags, KernelConfig};

use crate::config::{IoPath, Rules};
use crate::stats::counters::Count;
use crate::stats::recorder::MetricsRecorder;
use crate::stats::status::IoPathFigures;
use crate::tiers::{Ino, Pin};

/// Every read and write comes to us as it was issued.
const EXACT: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// What is not observed on any path.
const ALWAYS: [&str; 5] = [
    "accesses through mmap: they come as reads and writes of pages",
    "sync and syncfs: they never reach a FUSE file system; fsync does",
    "positions; lookups and attributes the kernel's cache answers",
    "closes of files that are only read; their release is seen",
    "calls larger than fs.fuse.max_pages_limit: they arrive split",
];

/// What else is not observed on one path.
fn not_seen(path: IoPath) -> &'static [&'static str] {
    match path {
        IoPath::Exact => &[],
        IoPath::Cached => &[
            "reads that the page cache answered; read-ahead is seen",
            "the size of writes to cached files: they arrive split at pages",
        ],
        IoPath::Passthrough => &["reads of passthrough files, mmap included: only opens and closes"],
    }
}

/// The paths of all open files of one mount.
#[derive(Debug)]
pub(super) struct IoPaths {
    rules: Rules,
    open: DashMap<Ino, InUse>,
    /// The kernel, or our privileges, do not allow passthrough: files that ask for it are exact.
    no_passthrough: AtomicBool,
    recorder: Arc<MetricsRecorder>,
    /// Opens so far, in the order of [`IoPath::ALL`]; registered at the first one.
    opened: [OnceLock<Count>; IoPath::ALL.len()],
}

/// How an open inode is used.
#[derive(Debug, Default)]
struct InUse {
    /// The number of passthrough handles, and the backing file they share once the first one was answered.
    through: u32,
    backing: Option<Arc<BackingId>>,
    /// The number of other handles, and whether their path is cached.
    others: u32,
    cached: bool,
}

/// One handle's share in its inode's path. Given back when dropped.
#[derive(Debug)]
pub(super) struct Lease {
    paths: Arc<IoPaths>,
    ino: Ino,
    path: IoPath,
    /// Passthrough, except for reads and writes.
    direct: bool,
    /// Held while it is passthrough. Dropped last: a passthrough inode is pinned.
    _pin: Option<Pin>,
}

impl IoPaths {
    pub(super) fn new(rules: Rules, recorder: Arc<MetricsRecorder>) -> Self {
        let (open, no_passthrough) = (DashMap::new(), AtomicBool::new(false));
        let paths = IoPaths { rules, open, no_passthrough, recorder, opened: Default::default() };
        // The mount's path is shown before anything was opened.
        paths.opened(paths.rules.io_otherwise());
        paths
    }

    /// How many files were opened on this path.
    #[expect(clippy::indexing_slicing, reason = "there is one for each path")]
    fn opened(&self, path: IoPath) -> &Count {
        let help = "Opens, by the way their reads and writes take.";
        let register = || self.recorder.count("dliofs_opens_total", help, &[("io_path", path.name())]);
        self.opened[path as usize].get_or_init(register)
    }

    /// Asks the kernel for what the rules need.
    pub(super) fn negotiate(&self, config: &mut KernelConfig) {
        if !self.rules.uses_io(IoPath::Passthrough) {
            return;
        }
        // The backing file system must not be stacked itself; such a file is refused at its open.
        let deep = config.set_max_stack_depth(1).is_ok();
        if !deep || config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_err() {
            self.refuse_passthrough(&"the kernel does not offer it");
        }
    }

    /// From now on files that ask for passthrough are exact. Logs that once.
    fn refuse_passthrough(&self, why: &dyn std::fmt::Display) {
        if !self.no_passthrough.swap(true, Relaxed) {
            tracing::warn!(%why, "passthrough is not possible here (it needs root and Linux 6.9); exact is used instead");
        }
    }

    /// The paths used, and what the statistics miss because of them.
    pub(super) fn figures(&self) -> IoPathFigures {
        let used = |path: &IoPath| self.rules.uses_io(*path);
        let opens = IoPath::ALL.iter().zip(&self.opened);
        let opens = opens.filter_map(|(path, opens)| Some((path.name().to_owned(), opens.get()?.get())));
        let not_seen = IoPath::ALL.iter().filter(|path| used(path)).flat_map(|path| not_seen(*path));
        IoPathFigures {
            name: self.rules.io_otherwise().name().to_owned(),
            opens: opens.collect(),
            not_seen: ALWAYS.iter().chain(not_seen).map(|what| (*what).to_owned()).collect(),
        }
    }

    /// Chooses the path of a new handle. `name` is called if rules need it; `pin` is called if the kernel is to read
    /// directly, with `true` if the file must be quiet to be pinned.
    pub(super) fn lease(
        self: &Arc<Self>,
        ino: Ino,
        writes: bool,
        name: impl FnOnce() -> Option<Vec<u8>>,
        pin: impl FnOnce(bool) -> Option<Pin>,
    ) -> Lease {
        // Called before the table is locked: a name comes from the engine, which has its own locks.
        let wanted = self.rules.io(name);
        let mut used = self.open.entry(ino).or_default();
        let joins = used.through > 0;
        let path = match wanted {
            _ if joins => IoPath::Passthrough,
            _ if used.others > 0 && used.cached => IoPath::Cached,
            _ if used.others > 0 => IoPath::Exact,
            IoPath::Passthrough if writes || self.no_passthrough.load(Relaxed) => IoPath::Exact,
            wanted => wanted,
        };
        // Under the table's lock, so that a joining handle finds the previous one's pin. It takes memory locks only.
        let pin = if path == IoPath::Passthrough { pin(!joins) } else { None };
        let path = if path == IoPath::Passthrough && pin.is_none() { IoPath::Exact } else { path };
        used.count(path, true);
        Lease { paths: Arc::clone(self), ino, path, direct: writes, _pin: pin }
    }
}

impl InUse {
    fn count(&mut self, path: IoPath, up: bool) {
        let count = if path == IoPath::Passthrough { &mut self.through } else { &mut self.others };
        *count = if up { *count + 1 } else { *count - 1 };
        match path {
            IoPath::Passthrough if !up && self.through == 0 => self.backing = None,
            IoPath::Passthrough => {}
            path => self.cached = path == IoPath::Cached,
        }
    }
}

impl Lease {
    /// The backing file for the kernel, made by `register` for the first of an inode's handles. `None`: the handle is
    /// not passthrough, or cannot be, and is exact from now on.
    pub(super) fn backing(
        &mut self,
        fd: Option<BorrowedFd<'_>>,
        register: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        if self.path != IoPath::Passthrough {
            return None;
        }
        // Locked while the kernel takes the descriptor, which does not block: two backing files for one inode would be
        // EIO.
        let mut used = self.paths.open.get_mut(&self.ino)?;
        if let Some(backing) = &used.backing {
            return Some(Arc::clone(backing));
        }
        let registered = match fd {
            Some(fd) => register(fd).map_err(|e| self.paths.refuse_passthrough(&e)).ok(),
            None => None,
        };
        match registered {
            Some(backing) => used.backing.insert(Arc::new(backing)).clone().into(),
            None => {
                used.count(IoPath::Passthrough, false);
                used.count(IoPath::Exact, true);
                drop(used);
                self.path = IoPath::Exact;
                None
            }
        }
    }

    pub(super) fn is_passthrough(&self) -> bool {
        self.path == IoPath::Passthrough
    }

    /// The flags for the kernel. `writes`: the handle may write. `unchanged`: since the last open the file has only
    /// been written through this mount, so the kernel may keep its cached pages.
    pub(super) fn flags(&self, writes: bool, unchanged: bool) -> FopenFlags {
        self.paths.opened(self.path).increment(1);
        // The close of a read-only handle tells us nothing that its release does not.
        let close = if writes { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH };
        close
            | match self.path {
                IoPath::Exact => EXACT,
                IoPath::Cached if unchanged => FopenFlags::FOPEN_KEEP_CACHE,
                IoPath::Passthrough if self.direct => EXACT,
                IoPath::Cached | IoPath::Passthrough => FopenFlags::empty(),
            }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(mut used) = self.paths.open.get_mut(&self.ino) {
            used.count(self.path, false);
        }
        self.paths.open.remove_if(&self.ino, |_, used| used.through == 0 && used.others == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn paths(io: IoPath) -> Arc<IoPaths> {
        let rules = Rules::new(&Config { io, ..Config::default() }).expect("no patterns");
        Arc::new(IoPaths::new(rules, Arc::default()))
    }

    fn lease(paths: &Arc<IoPaths>, ino: Ino, writes: bool) -> Lease {
        paths.lease(ino, writes, || None, |_| None)
    }

    #[test]
    fn what_is_not_seen_fits_a_line_of_80_columns() {
        let told = IoPath::ALL.into_iter().flat_map(not_seen).chain(&ALWAYS);
        let long: Vec<_> = told.filter(|text| text.len() > 80 - "  not seen:  ".len()).collect();
        assert!(long.is_empty(), "{long:?}");
    }

    #[test]
    fn a_file_that_is_open_for_writing_is_exact_for_all() {
        let paths = paths(IoPath::Passthrough);
        let (writer, beside) = (lease(&paths, 7, true), lease(&paths, 7, false));
        assert_eq!((writer.path, beside.path), (IoPath::Exact, IoPath::Exact));
        drop(writer);
        assert_eq!(lease(&paths, 7, false).path, IoPath::Exact, "one that began exact is still open");
        drop(beside);
        assert!(paths.open.is_empty(), "nothing is kept of what is closed");
    }

    #[test]
    fn a_cached_file_is_cached_for_all() {
        let paths = paths(IoPath::Cached);
        let (a, b) = (lease(&paths, 7, true), lease(&paths, 7, false));
        assert_eq!((a.path, b.path), (IoPath::Cached, IoPath::Cached));
        let kept = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        assert_eq!((a.flags(true, false), b.flags(false, true)), (FopenFlags::empty(), kept));
        let figures = paths.figures();
        assert_eq!((&*figures.name, figures.opens), ("cached", [("cached".to_owned(), 2)].into()));
        assert!(figures.not_seen.iter().any(|line| line.contains("page cache answered")));
    }

    #[test]
    fn what_cannot_be_pinned_is_exact() {
        let paths = paths(IoPath::Passthrough);
        let reader = lease(&paths, 7, false);
        assert_eq!((reader.path, reader.flags(true, true)), (IoPath::Exact, EXACT));
        paths.refuse_passthrough(&"EPERM");
        let asked = paths.lease(8, false, || None, |_| unreachable!("it is not asked any more"));
        assert_eq!(asked.path, IoPath::Exact);
    }
}
