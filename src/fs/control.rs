//! The virtual directory `.dlio`: statistics to read, and `control` for line commands.
//!
//! It lives in a range of inode numbers of its own at the top, is found in the root by name and never listed there. A
//! file's text is rendered when it is opened and kept in the handle. All of this runs on a small pool of its own:
//! neither the threads that serve the kernel nor those that wait for the slow tier ever wait for a command.
//!
//! Here is the directory; what is written to `control` is answered in `control/session.rs`.

mod aside;
mod asker;
pub(super) mod by_xattr;
mod clean;
mod command;
mod deadline;
mod evict;
mod latest;
mod pins;
mod session;
mod stage;
mod sync;
mod verify;
mod windows;

use std::collections::HashMap;
use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::handles::{Handles, Open};
use super::io_paths::IoPaths;
use super::job_report::JobReports;
use super::live::Live;
use super::observer::Observer;
use super::slow_pool::{Longest, SlowPool};
use super::{FsOptions, convert};
use crate::error::{Context, Errno, Error, Result};
use crate::path;
use crate::report::{self, summary::Summary};
use crate::stats::files::{AtHand, FileTable};
use crate::stats::processes::ProcessFigures;
use crate::stats::queue::Queue;
use crate::stats::recording::{Meta, Recording, Source};
use crate::stats::staging::Staging;
use crate::stats::{Stats, daemon, epochs, ops, processes, render, safe};
use crate::tiers::disk::{Kind, Space, Time};
use crate::tiers::{Abilities, Attr, Cx, Ino, ListEntry, Listing, OpenMode, ROOT, Status, Tiers};
pub(super) use asker::Asker;
pub use command::parse_command;
use session::Session;

/// The name of the directory in the root. A user's file of this name is hidden by it.
pub(super) const NAME: &[u8] = b".dlio";

/// The first inode number of the files; the engine's numbers stay below [`LINKS`].
const FIRST: Ino = u64::MAX - 0xFF;
/// From here on up to [`FIRST`] all numbers are the link's, another one at each look-up: the kernel keeps what a link says, for whoever
/// asks, as long as it has the number.
const LINKS: Ino = u64::MAX - 0xFFFF_FFFF;

/// Nothing in here ever changes but the text, and that is never cached.
const TTL: Duration = Duration::from_secs(60);

/// How many paths `.dlio/files` lists.
const FILES_SHOWN: usize = 1_000;
/// How many files `.dlio/files.json` lists: all that are at hand, unless thousands more are open.
const AT_HAND_SHOWN: usize = 10_000;

/// For so long the checkpoints of the statistics are not looked up again.
const CHECKPOINTS_HOLD: Duration = Duration::from_millis(500);

/// How many files a user who is not the mount's owner may have open here.
const TEXTS_MAX: usize = 64;

/// How many pending events `.dlio/queue` lists.
const QUEUE_SHOWN: usize = 1_000;

/// Whether an inode number is one of ours.
pub(super) fn owns(ino: Ino) -> bool {
    ino >= LINKS
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Dir,
    Stats,
    StatsJson,
    Metrics,
    Files,
    FilesTsv,
    FilesJson,
    Processes,
    ProcessesJson,
    Queue,
    QueueJson,
    Staging,
    StagingJson,
    Windows,
    WindowsJson,
    TimelineJson,
    Checkpoints,
    CheckpointsJson,
    LatestSafe,
    Ops,
    Recording,
    Advice,
    Config,
    Control,
}

/// The files, in the order of a listing, with their names and modes. 0o444: of all, where each is shown what is theirs (`asker.rs`), or of
/// nobody; 0o400: of all users together, or of the tiers; the link's mode is that of any.
const FILES: [(Node, &str, u32); 23] = [
    (Node::Stats, "stats", 0o444),
    (Node::StatsJson, "stats.json", 0o444),
    (Node::Metrics, "metrics", 0o444),
    (Node::Files, "files", 0o444),
    (Node::FilesTsv, "files.tsv", 0o444),
    (Node::FilesJson, "files.json", 0o444),
    (Node::Processes, "processes", 0o444),
    (Node::ProcessesJson, "processes.json", 0o444),
    (Node::Queue, "queue", 0o444),
    (Node::QueueJson, "queue.json", 0o444),
    (Node::Staging, "staging", 0o444),
    (Node::StagingJson, "staging.json", 0o444),
    (Node::Windows, "windows", 0o400),
    (Node::WindowsJson, "windows.json", 0o400),
    (Node::TimelineJson, "timeline.json", 0o444),
    (Node::Checkpoints, "checkpoints", 0o444),
    (Node::CheckpointsJson, "checkpoints.json", 0o444),
    (Node::LatestSafe, "latest-safe", 0o777),
    (Node::Ops, "ops", 0o400),
    (Node::Recording, "recording", 0o444),
    (Node::Advice, "advice", 0o444),
    (Node::Config, "config", 0o400),
    (Node::Control, "control", 0o666),
];

impl Node {
    fn files() -> impl Iterator<Item = Node> {
        FILES.into_iter().map(|(node, ..)| node)
    }

    fn ino(self) -> Ino {
        FIRST + self as u64
    }

    /// ENOENT for a number that is in our range but names nothing.
    fn of(ino: Ino) -> Result<Node, Errno> {
        if (LINKS..FIRST).contains(&ino) {
            return Ok(Node::LatestSafe);
        }
        [Node::Dir].into_iter().chain(Node::files()).find(|node| node.ino() == ino).ok_or(Errno::ENOENT)
    }

    /// Its name and mode.
    fn row(self) -> (&'static str, u32) {
        let row = FILES.into_iter().find(|(node, ..)| *node == self);
        row.map_or((".dlio", 0o555), |(_, name, perm)| (name, perm))
    }

    fn name(self) -> &'static str {
        self.row().0
    }

    fn perm(self) -> u32 {
        self.row().1
    }
}

/// The directory, and what its files tell about.
#[derive(Debug)]
pub(super) struct Control {
    tiers: Arc<Tiers>,
    stats: Arc<Stats>,
    slow: Arc<SlowPool>,
    live: Arc<Live>,
    io: Arc<IoPaths>,
    open: Arc<Handles<Open>>,
    owner: (u32, u32),
    job_reports: Option<JobReports>,
    observer: Observer,
    metrics_addr: Option<SocketAddr>,
    since: Time,
    /// Open files of each user who is not the mount's owner.
    texts: Arc<Mutex<HashMap<u32, usize>>>,
    checkpoints: Mutex<Checkpoints>,
    /// Look-ups of the link so far.
    looks: AtomicU64,
}

/// The complete checkpoints of this mount as of lately.
#[derive(Debug, Default)]
struct Checkpoints {
    asked: Option<Instant>,
    told: Vec<safe::Checkpoint>,
    total: u64,
}

/// An open file of `.dlio`.
#[derive(Debug)]
pub(super) struct Virtual {
    what: What,
    _share: Option<TextShare>,
}

#[derive(Debug)]
enum What {
    /// Rendered when it was opened.
    Text(Vec<u8>),
    /// Grows while it is read.
    Ops(Lines),
    Control(Mutex<Session>),
}

impl Virtual {
    /// Whether it is `control`.
    pub(super) fn is_command(&self) -> bool {
        matches!(self.what, What::Control(_))
    }
}

/// One of the files that a user has open here who is not the mount's owner.
#[derive(Debug)]
struct TextShare {
    open: Arc<Mutex<HashMap<u32, usize>>>,
    uid: u32,
}

impl Drop for TextShare {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        if let Some(count) = open.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

/// Reading `ops`.
#[derive(Debug)]
pub(super) struct Lines {
    stats: Arc<Stats>,
    reader: Mutex<ops::Reader>,
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.stats.close_lines();
    }
}

impl Control {
    pub(super) fn new(
        (tiers, stats): (Arc<Tiers>, Arc<Stats>),
        slow: Arc<SlowPool>,
        live: Arc<Live>,
        io: Arc<IoPaths>,
        open: Arc<Handles<Open>>,
        options: &FsOptions,
        observer: Observer,
    ) -> Self {
        let since = convert::time_after_1970(SystemTime::now());
        let (owner, metrics_addr) = ((options.owner_uid, options.owner_gid), options.metrics_addr);
        let (checkpoints, looks) = (Mutex::default(), AtomicU64::new(0));
        let texts = Arc::default();
        let job_reports = options.job_reports.clone();
        Control {
            tiers,
            stats,
            slow,
            live,
            io,
            open,
            owner,
            job_reports,
            observer,
            metrics_addr,
            since,
            texts,
            checkpoints,
            looks,
        }
    }

    pub(super) fn owner(&self) -> u32 {
        self.owner.0
    }

    pub(super) fn root_attr(&self) -> Attr {
        self.node_attr(Node::Dir)
    }

    pub(super) fn attr(&self, ino: Ino) -> Result<Attr> {
        Ok(Attr { ino, ..self.node_attr(Node::of(ino)?) })
    }

    /// Finds a name in `.dlio` itself.
    pub(super) fn lookup(&self, name: &[u8]) -> Result<Attr> {
        let node = Node::files().find(|node| node.name().as_bytes() == name).ok_or(Errno::ENOENT)?;
        match node {
            Node::LatestSafe if self.tiers.latest_safe().is_none() => Err(Errno::ENOENT.into()),
            Node::LatestSafe => {
                let looks = self.looks.fetch_add(1, Ordering::Relaxed);
                self.attr(LINKS + looks % (FIRST - LINKS))
            }
            _ => Ok(self.node_attr(node)),
        }
    }

    /// All but the link, which may have nothing to lead to.
    fn is_there(&self, node: Node) -> bool {
        node != Node::LatestSafe || self.tiers.latest_safe().is_some()
    }

    fn node_attr(&self, node: Node) -> Attr {
        let (kind, nlink) = match node {
            Node::Dir => (Kind::Dir, 2),
            Node::LatestSafe => (Kind::Symlink, 1),
            _ => (Kind::File, 1),
        };
        Attr {
            ino: node.ino(),
            kind,
            perm: node.perm(),
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            // As in /proc: the text is made when the file is opened; but whoever follows `ops` looks at its size.
            size: if node == Node::Ops { self.stats.lines_len() } else { 0 },
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            ttl: if matches!(node, Node::Ops | Node::LatestSafe) { Duration::ZERO } else { TTL },
        }
    }

    pub(super) fn list(&self) -> Listing {
        let dir = |name: &[u8], ino| ListEntry { name: name.to_vec(), ino, kind: Kind::Dir };
        let mut entries = vec![dir(b".", Node::Dir.ino()), dir(b"..", ROOT)];
        let there = Node::files().filter(|node| self.is_there(*node));
        entries.extend(there.map(|node| ListEntry {
            name: node.name().into(),
            ino: node.ino(),
            kind: self.node_attr(node).kind,
        }));
        Listing { entries }
    }

    /// Opens one of the files. The kernel has checked the mode bits, but root passes every check: writing to what is
    /// read-only is EACCES for root too.
    ///
    /// Errors: ENFILE for a user who has many of them open: each holds its text.
    pub(super) fn open(&self, ino: Ino, mode: OpenMode, asker: Asker) -> Result<Virtual> {
        let share = asker.limited().map(|uid| self.share_for(uid)).transpose()?;
        Ok(Virtual { what: self.open_what(ino, mode, asker)?, _share: share })
    }

    fn share_for(&self, uid: u32) -> Result<TextShare> {
        let mut open = self.texts.lock();
        let count = open.entry(uid).or_default();
        if *count >= TEXTS_MAX {
            return Err(Errno::ENFILE.into());
        }
        *count += 1;
        Ok(TextShare { open: Arc::clone(&self.texts), uid })
    }

    fn open_what(&self, ino: Ino, mode: OpenMode, asker: Asker) -> Result<What> {
        let node = Node::of(ino)?;
        if mode.write && node != Node::Control {
            return Err(Errno::EACCES.into());
        }
        let text = match node {
            Node::Dir => return Err(Errno::EISDIR.into()),
            Node::LatestSafe => return Err(Errno::ELOOP.into()),
            Node::Stats => self.snapshot_for(&asker).text(),
            Node::StatsJson => self.snapshot_for(&asker).json(),
            Node::Metrics => self.snapshot_for(&asker).metrics(),
            Node::Files => self.files_for(&asker).text(FILES_SHOWN),
            Node::FilesTsv => self.files_for(&asker).table(),
            Node::FilesJson => self.files_at_hand_for(&asker).json(AT_HAND_SHOWN),
            Node::Processes => processes::table(&self.processes_for(&asker)),
            Node::ProcessesJson => processes::json(&self.processes_for(&asker)),
            Node::Queue => self.queue_for(&asker).text(),
            Node::QueueJson => self.queue_for(&asker).json(),
            Node::Staging => self.staging_for(&asker)?.text(),
            Node::StagingJson => self.staging_for(&asker)?.json(),
            Node::Windows => {
                self.observer.collected().windows().text(self.stats.now()) + &epochs::text(&self.stats.epochs())
            }
            Node::WindowsJson => {
                self.observer.collected().windows().json(&self.stats.epochs(), self.stats.since_1970())
            }
            Node::TimelineJson => self.stats.timeline().json(self.stats.since_1970()),
            Node::Checkpoints => {
                let now = self.stats.now();
                safe::text(&self.checkpoints_for(&asker)?, now.as_secs_f64())
            }
            Node::CheckpointsJson => safe::json(&self.checkpoints_for(&asker)?, self.stats.since_1970()),
            Node::Ops => {
                let reader = Mutex::new(self.stats.open_lines(|ino| path_of(&self.tiers, ino)));
                return Ok(What::Ops(Lines { stats: Arc::clone(&self.stats), reader }));
            }
            Node::Recording => return Ok(What::Text(self.recording_for(&asker)?)),
            Node::Advice => {
                let recording: Box<dyn Source> = Box::new(Cursor::new(self.recording_for(&asker)?));
                let mut recording =
                    Recording::read(vec![recording]).map_err(io::Error::other).at("read", "a recording")?;
                report::text::advice(&Summary::of(&mut recording).advice)
            }
            Node::Config => self.live.text(),
            Node::Control => return Ok(What::Control(Mutex::new(Session::new(asker)))),
        };
        Ok(What::Text(text.into_bytes()))
    }

    pub(super) fn read(&self, open: &Virtual, offset: u64, size: usize) -> Vec<u8> {
        match &open.what {
            What::Text(text) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
                text[from..text.len().min(from.saturating_add(size))].to_vec()
            }
            What::Ops(lines) => self.stats.read_lines(&mut lines.reader.lock(), offset, size),
            What::Control(session) => session.lock().read(self, size),
        }
    }

    /// Runs a command line on `control`.
    pub(super) fn write(&self, open: &Virtual, line: &[u8]) -> Result<()> {
        let What::Control(session) = &open.what else { return Err(Errno::EACCES.into()) };
        session.lock().write(self, line)
    }

    pub(super) fn observer(&self) -> &Observer {
        &self.observer
    }

    /// All that is known, with the calls in memory; of a user who is not the mount's owner what is theirs.
    fn recording_for(&self, asker: &Asker) -> Result<Vec<u8>> {
        let (collected, about) = (self.observer.collected(), self.observer.about());
        let name = |ino| path_of(&self.tiers, ino);
        let bytes = match asker.limited() {
            None => collected.recording(about, name),
            Some(uid) => {
                let checkpoints = self.theirs(about.checkpoints, uid)?;
                let about = Meta { safety: self.safety_for(asker).line(), checkpoints, ..about };
                collected.recording_of_user(uid, about, name, |ino| self.is_theirs(asker, ino))
            }
        };
        bytes.at("make", "a recording")
    }

    fn files_for(&self, asker: &Asker) -> FileTable {
        let name = |ino| path_of(&self.tiers, ino);
        match asker.limited() {
            None => self.stats.files(name),
            Some(_) => self.stats.files_of(name, |ino| self.is_theirs(asker, ino)),
        }
    }

    fn files_at_hand_for(&self, asker: &Asker) -> AtHand {
        let mut at_hand = self.stats.files_at_hand(|ino| path_of(&self.tiers, ino));
        at_hand.files.retain(|file| self.is_theirs(asker, file.ino));
        at_hand
    }

    fn processes_for(&self, asker: &Asker) -> Vec<ProcessFigures> {
        let all = self.stats.processes.figures();
        match asker.limited() {
            None => all,
            Some(uid) => processes::of_user(all, uid),
        }
    }

    fn queue_for(&self, asker: &Asker) -> Queue {
        asker.limited().map_or_else(|| self.tiers.queue(QUEUE_SHOWN), |uid| self.tiers.queue_of(uid, QUEUE_SHOWN))
    }

    fn staging_for(&self, asker: &Asker) -> Result<Staging> {
        let all = self.tiers.staging();
        match asker.limited() {
            None => Ok(all),
            Some(uid) => self.staging_of(all.of_user(uid), uid),
        }
    }

    /// Below their directory others may have files of which they know nothing.
    fn staging_of(&self, mut theirs: Staging, uid: u32) -> Result<Staging> {
        self.on_slow(move |tiers, cx| {
            for job in &mut theirs.jobs {
                job.failures.retain(|failure| is_at(tiers, cx, &failure.path, uid));
            }
            Ok(theirs)
        })
    }

    /// Of somebody who is not the mount's owner those whose directory or file is theirs.
    fn checkpoints_for(&self, asker: &Asker) -> Result<Vec<safe::Checkpoint>> {
        let all = self.observer.all_checkpoints();
        let Some(uid) = asker.limited() else { return Ok(all) };
        self.theirs(all, uid)
    }

    fn theirs(&self, all: Vec<safe::Checkpoint>, uid: u32) -> Result<Vec<safe::Checkpoint>> {
        self.on_slow(move |tiers, cx| Ok(all.into_iter().filter(|one| is_at(tiers, cx, &one.path, uid)).collect()))
    }

    /// The text of `metrics` for somebody who may be anybody.
    pub(super) fn metrics_for_all(&self) -> String {
        self.snapshot().for_others().metrics()
    }

    /// Whether all is safe, and what is not.
    fn safety_for(&self, asker: &Asker) -> render::Safety {
        let safety = safety(&self.tiers.status());
        if asker.is_trusted() { safety } else { safety.for_others() }
    }

    fn snapshot_for(&self, asker: &Asker) -> render::Snapshot {
        let snapshot = self.snapshot();
        if asker.is_trusted() { snapshot } else { snapshot.for_others() }
    }

    /// What the statistics tell of checkpoints is looked up twice a second at the most: it takes a look at each of their files. One that seemed
    /// complete may go on: the number of all of them never falls.
    fn found(&self) -> render::Detected {
        let mut known = self.checkpoints.lock();
        if known.asked.is_none_or(|asked| asked.elapsed() >= CHECKPOINTS_HOLD) {
            known.told = self.observer.checkpoints();
            known.total = known.total.max(known.told.len() as u64 + self.tiers.forgotten_checkpoints());
            known.asked = Some(Instant::now());
        }
        self.stats.found((&known.told, known.total))
    }

    fn snapshot(&self) -> render::Snapshot {
        let status = self.tiers.status();
        let (limits, counts) = (self.slow.limits(), self.slow.counts());
        render::Snapshot {
            safety: safety(&status),
            version: env!("CARGO_PKG_VERSION"),
            mounted_at: self.stats.since_1970(),
            mounted_for: self.stats.now(),
            fast: tier(&status.fast),
            slow: tier(&status.slow),
            pipeline: render::Pipeline {
                pending_events: status.pending_events,
                published_events: status.published_events,
                drained_files: status.drained_files,
                drained_bytes: status.drained_bytes,
                drain_bytes_per_s: status.drain_bytes_per_s,
                bytes_to_copy: status.to_copy,
                evictions: status.evictions,
                copies: status.copies,
                copies_bytes: status.copies_bytes,
                staged_files: status.staged_files,
                staged_bytes: status.staged_bytes,
            },
            log: render::LogFigures {
                lsn: status.log_lsn,
                durable_lsn: status.durable_lsn,
                applied_lsn: status.applied_lsn,
            },
            cache: render::Cache {
                objects: status.objects,
                known_inodes: status.known_inodes,
                open_files: status.open_files,
                open_handles: self.open.count(|open| open.user_file().is_some()),
            },
            exceptions: render::Exceptions {
                batches: status.batches,
                late_snapshots: status.late_snapshots,
                in_place_writes: status.in_place_writes,
                conflicts: status.conflicts,
                left_out: status.left_out,
                removed_first: status.removed_first,
                aside: status.aside,
                aside_bytes: status.aside_bytes,
                aside_for: status.aside_for,
                spilled: status.spilled,
                struck: status.struck,
                damaged: status.damaged,
                quarantined: status.quarantined,
            },
            slow_abilities: abilities(&status.abilities),
            slow_calls: render::SlowCalls {
                waiting: counts.waiting,
                longest: self
                    .slow
                    .longest()
                    .map(|Longest { waited, about }| render::LongestCall { seconds: waited.as_secs(), about }),
                limit: limits.queue,
                threads: limits.threads,
                served: counts.served,
                timed_out: counts.timed_out,
                refused: counts.refused,
            },
            io_path: self.io.figures(),
            operations: render::Operation::all(self.stats.operations()),
            failures: render::FailureCount::all(self.stats.failures()),
            profile: self.stats.is_on(),
            files: self.stats.extent(),
            found: self.found(),
            daemon: daemon::usage(),
            metrics_addr: self.metrics_addr.map(|addr| addr.to_string()),
        }
    }
}

/// Whether what a path, escaped, leads to belongs to a user.
fn is_at(tiers: &Tiers, cx: &Cx, path: &str, uid: u32) -> bool {
    path::unescape(path).is_some_and(|path| tiers.owner_at(cx, &path).is_ok_and(|owner| owner == uid))
}

/// An inode's path for people: from the mount's root, which is `/`.
pub(super) fn path_of(tiers: &Tiers, ino: Ino) -> Option<String> {
    tiers.path_of(ino).map(|path| format!("/{}", path.trim_start_matches('/')))
}

pub(super) fn safety(status: &Status) -> render::Safety {
    render::Safety {
        safe: status.unsafe_files == 0 && status.pending_events == 0 && status.interrupted == 0,
        files: status.unsafe_files,
        bytes: status.unsafe_bytes,
        events: status.pending_events,
        oldest: status.oldest,
        eta: status.eta,
        held: status.held.clone(),
        waits_until: status.waits_until.clone(),
        slow_down: status.slow_down,
        fast_fails: status.fast_fails,
        refusing: status.refusing,
        interrupted: status.interrupted,
        aside: status.aside,
        aside_bytes: status.aside_bytes,
    }
}

fn abilities(found: &Abilities) -> render::SlowAbilities {
    render::SlowAbilities {
        user_xattrs: found.user_xattrs,
        acls: found.acls,
        owners: found.owners,
        groups: found.groups,
        modes: found.modes,
        symlinks: found.symlinks,
        symlink_attrs: found.link_attrs,
        fifos: found.fifos,
        hard_links: found.hard_links,
        lasting_inode_numbers: found.lasting_numbers,
        any_names: found.any_names,
        rename_exchange: found.exchange,
        rename_noreplace: found.no_replace,
        time_grain: found.time_grain,
    }
}

pub(super) fn tier(space: &Space) -> render::TierSpace {
    render::TierSpace { total: space.capacity(), used: space.used(), available: space.avail }
}

/// EPERM for the name of our directory in the root, and for everything inside it.
pub(super) fn refuse_change(parent: Ino, name: &[u8]) -> Result<(), Error> {
    if owns(parent) || (parent == ROOT && name == NAME) { Err(Errno::EPERM.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_inode_numbers_are_apart_from_the_engine_s() {
        assert!(!owns(ROOT) && !owns(LINKS - 1) && owns(LINKS) && owns(FIRST));
        assert_eq!([LINKS, FIRST - 1].map(Node::of), [Ok(Node::LatestSafe); 2]);
        for node in [Node::Dir].into_iter().chain(Node::files()) {
            assert_eq!(Node::of(node.ino()), Ok(node));
        }
        assert_eq!(Node::of(u64::MAX), Err(Errno::ENOENT));
    }

    #[test]
    fn only_the_root_s_entry_and_what_is_inside_are_protected() {
        assert!(refuse_change(ROOT, b".dlio").is_err());
        assert!(refuse_change(Node::Dir.ino(), b"anything").is_err());
        assert!(refuse_change(ROOT, b".dlio2").is_ok());
        assert!(refuse_change(7, b".dlio").is_ok());
    }
}
