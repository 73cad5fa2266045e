//! The virtual directory `.dlio`: statistics to read, and `control` for line commands.
//!
//! It lives in a range of inode numbers of its own at the top, is found in the root by name and never listed there. A
//! file's text is rendered when it is opened and kept in the handle. All of this runs on a small pool of its own:
//! neither the threads that serve the kernel nor those that wait for the slow tier ever wait for a command.
//!
//! A conversation with `control`, on one descriptor: write one line, then read until end of file. While the command
//! runs, each read answers within a second, with a line that tells what it waits for; then comes the result, `ok: ...`
//! or `error: ...`, and end of file. Closing the descriptor ends the waiting. File positions mean nothing here.

use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::handles::{Handles, Open};
use super::io_paths::IoPaths;
use super::live::Live;
use super::observer::Observer;
use super::slow_pool::SlowPool;
use super::{FsOptions, convert};
use crate::error::{Context, Errno, Error, Result};
use crate::path::{self, Name};
use crate::report::{self, summary::Summary};
use crate::stats::files::Files;
use crate::stats::recording::{Recording, Source};
use crate::stats::{Stats, checkpoints, daemon, epochs, ops, processes, render};
use crate::tiers::disk::{Kind, Space, Time};
use crate::tiers::{
    Attr, Bad, Cx, Evictable, Evicted, Ino, ListEntry, Listing, Lsn, OpenMode, ROOT, Status, Tiers, Verified, Verifying,
};

/// The name of the directory in the root. A user's file of this name is hidden by it.
pub(super) const NAME: &[u8] = b".dlio";

/// The first inode number that is ours; the engine's numbers stay below.
const FIRST: Ino = u64::MAX - 0xFF;

/// Nothing in here ever changes but the text, and that is never cached.
const TTL: Duration = Duration::from_secs(60);

/// The longest command: a path of 4,096 bytes, each escaped.
const COMMAND_MAX: usize = 3 * 4096 + 64;

/// How long a read of `control` waits before it tells what it is waiting for: a process waiting for us cannot be
/// interrupted, only between two reads.
const PROGRESS: Duration = Duration::from_secs(1);
/// How often the applied LSN is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(5);

/// How many paths `.dlio/files` lists.
const FILES_SHOWN: usize = 1_000;
/// How many files `.dlio/files.json` lists: all that are at hand, unless thousands more are open.
const AT_HAND_SHOWN: usize = 10_000;

const KNOWN: &str = "sync, sync PATH, status, reload, front PATH, evict PATH, verify PATH, window start NAME, \
                     window stop [NAME], window files NAME, window recording NAME, mark TEXT";

/// How many objects' files are looked up in one turn.
const MET_AT_ONCE: usize = 16;

/// How many pending events `.dlio/queue` lists, and how many files are named that `evict` keeps.
const QUEUE_SHOWN: usize = 1_000;

/// Whether an inode number is one of ours.
pub(super) fn owns(ino: Ino) -> bool {
    ino >= FIRST
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
    Windows,
    WindowsJson,
    TimelineJson,
    Checkpoints,
    CheckpointsJson,
    Ops,
    Recording,
    Advice,
    Config,
    Control,
}

impl Node {
    const FILES: [Node; 20] = [
        Node::Stats,
        Node::StatsJson,
        Node::Metrics,
        Node::Files,
        Node::FilesTsv,
        Node::FilesJson,
        Node::Processes,
        Node::ProcessesJson,
        Node::Queue,
        Node::QueueJson,
        Node::Windows,
        Node::WindowsJson,
        Node::TimelineJson,
        Node::Checkpoints,
        Node::CheckpointsJson,
        Node::Ops,
        Node::Recording,
        Node::Advice,
        Node::Config,
        Node::Control,
    ];

    fn ino(self) -> Ino {
        FIRST + self as u64
    }

    /// ENOENT for a number that is in our range but names nothing.
    fn of(ino: Ino) -> Result<Node, Errno> {
        [Node::Dir].into_iter().chain(Node::FILES).find(|node| node.ino() == ino).ok_or(Errno::ENOENT)
    }

    fn name(self) -> &'static str {
        match self {
            Node::Dir => ".dlio",
            Node::Stats => "stats",
            Node::StatsJson => "stats.json",
            Node::Metrics => "metrics",
            Node::Files => "files",
            Node::FilesTsv => "files.tsv",
            Node::FilesJson => "files.json",
            Node::Processes => "processes",
            Node::ProcessesJson => "processes.json",
            Node::Queue => "queue",
            Node::QueueJson => "queue.json",
            Node::Windows => "windows",
            Node::WindowsJson => "windows.json",
            Node::TimelineJson => "timeline.json",
            Node::Checkpoints => "checkpoints",
            Node::CheckpointsJson => "checkpoints.json",
            Node::Ops => "ops",
            Node::Recording => "recording",
            Node::Advice => "advice",
            Node::Config => "config",
            Node::Control => "control",
        }
    }

    fn perm(self) -> u32 {
        match self {
            Node::Dir => 0o555,
            Node::Stats | Node::StatsJson | Node::Metrics | Node::TimelineJson => 0o444,
            Node::Control => 0o600,
            // The others name the paths or the processes of all users, or the tiers.
            _ => 0o400,
        }
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
    observer: Observer,
    metrics_addr: Option<SocketAddr>,
    since: Time,
    /// How many commands want publishing to hurry.
    hurried: Arc<Mutex<u32>>,
}

/// An open file of `.dlio`.
#[derive(Debug)]
pub(super) enum Virtual {
    /// Rendered when it was opened.
    Text(Vec<u8>),
    /// Grows while it is read.
    Ops(Lines),
    Control(Mutex<Session>),
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

/// The conversation on one descriptor of `control`.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// What is to be read next.
    reply: Vec<u8>,
    /// The command that has not ended yet.
    running: Option<Running>,
}

/// A command that takes longer than a read may wait.
#[derive(Debug)]
enum Running {
    Sync(Wait),
    Evict(Eviction),
    Verify(Box<Verification>),
}

/// Comparing the two copies of clean files, one by one.
#[derive(Debug)]
struct Verification {
    /// At or below this, as an inode and as a path.
    below: (Ino, Vec<u8>),
    /// As of an [`Eviction`].
    unmet: Vec<u64>,
    left: Option<Vec<Ino>>,
    /// The one that is being compared.
    current: Option<(Ino, Verifying)>,
    files: u64,
    bytes: u64,
    bad: u64,
    /// Files that only the fast tier has, that changed meanwhile, or that somebody else changed on the slow tier.
    not_compared: u64,
}

/// Letting the fast copies of clean files go, one by one.
#[derive(Debug)]
struct Eviction {
    /// At or below this, as an inode and as a path.
    below: (Ino, Vec<u8>),
    /// Objects of the mount before whose files are looked up first: nobody has since.
    unmet: Vec<u64>,
    /// In reverse order; found when all are met.
    left: Option<Vec<Ino>>,
    files: u64,
    bytes: u64,
    /// Files that stay: dirty, open, or changed on the slow tier.
    kept: u64,
}

/// Waiting for D2: everything up to an LSN applied to the slow tier.
#[derive(Debug)]
struct Wait {
    /// What will be safe then, for the reply.
    what: String,
    lsn: Lsn,
    _hurry: Hurry,
}

/// While one of these lives, publishing does not wait for files to settle.
#[derive(Debug)]
struct Hurry {
    tiers: Arc<Tiers>,
    count: Arc<Mutex<u32>>,
}

impl Hurry {
    fn new(tiers: &Arc<Tiers>, count: &Arc<Mutex<u32>>) -> Self {
        let mut n = count.lock();
        *n += 1;
        if *n == 1 {
            tiers.set_hurry(true);
        }
        Hurry { tiers: Arc::clone(tiers), count: Arc::clone(count) }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        let mut n = self.count.lock();
        *n -= 1;
        if *n == 0 {
            self.tiers.set_hurry(false);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Command {
    /// Waits until everything, or everything below a path (its names, from the root), is on the slow tier.
    Sync(Option<Vec<Name>>),
    Status,
    /// Reads the configuration file again.
    Reload,
    /// Hurries a path, and what is to be published before it.
    Front(Vec<Name>),
    /// Lets the fast copies of clean files go: below a path, which is empty for all.
    Evict(Vec<Name>),
    /// Compares the fast copies of clean files with their slow ones, below a path.
    Verify(Vec<Name>),
    /// What is counted from here on, or up to here, is told by itself.
    StartWindow(String),
    StopWindow(Option<String>),
    /// The table of the files of a closed window.
    WindowFiles(String),
    /// All that is known of one, as a recording.
    WindowRecording(String),
    /// Notes the moment.
    Mark(String),
}

impl Command {
    /// One line, with or without its newline. The error is the text of the reply.
    fn parse(line: &[u8]) -> Result<Command, String> {
        let line = std::str::from_utf8(line).map_err(|_| "a command is plain ASCII; escape the path".to_owned())?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        if line.contains('\n') {
            return Err("one command at a time: write one line, then read its reply".into());
        }
        let (word, argument) = line.split_once(' ').unwrap_or((line, ""));
        match (word, argument.trim()) {
            ("sync", "") => Ok(Command::Sync(None)),
            ("sync", path) => Ok(Command::Sync(Some(Command::names(path)?))),
            ("status", "") => Ok(Command::Status),
            ("reload", "") => Ok(Command::Reload),
            (word @ ("status" | "reload"), extra) => Err(format!("{word} takes no argument, got {extra:?}")),
            ("front", path) if !path.is_empty() => Ok(Command::Front(Command::names(path)?)),
            ("evict", path) if !path.is_empty() => Ok(Command::Evict(Command::names(path)?)),
            ("verify", path) if !path.is_empty() => Ok(Command::Verify(Command::names(path)?)),
            ("mark", text) => Ok(Command::Mark(text.to_owned())),
            ("window", argument) => Command::window(argument),
            (word @ ("front" | "evict" | "verify"), _) => Err(format!("{word} takes a path, / for everything")),
            (unknown, _) => Err(format!("unknown command {unknown:?}; known: {KNOWN}")),
        }
    }

    fn window(argument: &str) -> Result<Command, String> {
        let (word, name) = argument.split_once(' ').unwrap_or((argument, ""));
        let name = name.trim().to_owned();
        match word {
            "start" => Ok(Command::StartWindow(name)),
            "stop" => Ok(Command::StopWindow(Some(name).filter(|name| !name.is_empty()))),
            "files" => Ok(Command::WindowFiles(name)),
            "recording" => Ok(Command::WindowRecording(name)),
            unknown => {
                Err(format!("window takes start NAME, stop [NAME], files NAME or recording NAME, got {unknown:?}"))
            }
        }
    }

    /// The names of an escaped path, from the mount's root.
    fn names(escaped: &str) -> Result<Vec<Name>, String> {
        let bad = |why: &str| format!("path {escaped:?}: {why}; give it from the mount's root, %20 for a space");
        let path = path::unescape(escaped).ok_or_else(|| bad("not escaped"))?;
        path.split(|&b| b == b'/')
            .filter(|name| !name.is_empty())
            .map(|name| Name::new(name).map_err(|errno| bad(errno.desc())))
            .collect()
    }
}

/// Whether a line is a command, and what is said if it is none.
pub fn parse_command(line: &[u8]) -> Result<(), String> {
    Command::parse(line).map(drop)
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
        Control { tiers, stats, slow, live, io, open, owner, observer, metrics_addr, since, hurried: Arc::default() }
    }

    pub(super) fn root_attr(&self) -> Attr {
        self.node_attr(Node::Dir)
    }

    pub(super) fn attr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.node_attr(Node::of(ino)?))
    }

    /// Finds a name in `.dlio` itself.
    pub(super) fn lookup(&self, name: &[u8]) -> Result<Attr> {
        let node = Node::FILES.into_iter().find(|node| node.name().as_bytes() == name).ok_or(Errno::ENOENT)?;
        Ok(self.node_attr(node))
    }

    fn node_attr(&self, node: Node) -> Attr {
        let (kind, nlink) = if node == Node::Dir { (Kind::Dir, 2) } else { (Kind::File, 1) };
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
            ttl: if node == Node::Ops { Duration::ZERO } else { TTL },
        }
    }

    pub(super) fn list(&self) -> Listing {
        let dir = |name: &[u8], ino| ListEntry { name: name.to_vec(), ino, kind: Kind::Dir };
        let mut entries = vec![dir(b".", Node::Dir.ino()), dir(b"..", ROOT)];
        entries.extend(Node::FILES.map(|node| ListEntry {
            name: node.name().into(),
            ino: node.ino(),
            kind: Kind::File,
        }));
        Listing { entries }
    }

    /// Opens one of the files. The kernel has checked the mode bits, but root passes every check: writing to what is
    /// read-only is EACCES for root too.
    pub(super) fn open(&self, ino: Ino, mode: OpenMode, uid: u32) -> Result<Virtual> {
        let node = Node::of(ino)?;
        if mode.write && node != Node::Control {
            return Err(Errno::EACCES.into());
        }
        let text = match node {
            Node::Dir => return Err(Errno::EISDIR.into()),
            Node::Stats => self.snapshot_for(uid).text(),
            Node::StatsJson => self.snapshot_for(uid).json(),
            Node::Metrics => self.snapshot_for(uid).metrics(),
            Node::Files => self.files().text(FILES_SHOWN),
            Node::FilesTsv => self.files().table(),
            Node::FilesJson => self.stats.files_at_hand(|ino| path_of(&self.tiers, ino)).json(AT_HAND_SHOWN),
            Node::Processes => processes::table(&self.stats.processes.figures()),
            Node::ProcessesJson => processes::json(&self.stats.processes.figures()),
            Node::Queue => self.tiers.queue(QUEUE_SHOWN).text(),
            Node::QueueJson => self.tiers.queue(QUEUE_SHOWN).json(),
            Node::Windows => {
                self.observer.collected().windows().text(self.stats.now()) + &epochs::text(&self.stats.epochs())
            }
            Node::WindowsJson => self.observer.collected().windows().json(&self.stats.epochs()),
            Node::TimelineJson => self.stats.timeline().json(),
            Node::Checkpoints => {
                checkpoints::text(&self.observer.collected().checkpoints(), self.stats.now().as_secs_f64())
            }
            Node::CheckpointsJson => json(&self.observer.collected().checkpoints()),
            Node::Ops => {
                let reader = Mutex::new(self.stats.open_lines(|ino| path_of(&self.tiers, ino)));
                return Ok(Virtual::Ops(Lines { stats: Arc::clone(&self.stats), reader }));
            }
            Node::Recording => return Ok(Virtual::Text(self.recording()?)),
            Node::Advice => {
                let recording: Box<dyn Source> = Box::new(Cursor::new(self.recording()?));
                let mut recording =
                    Recording::read(vec![recording]).map_err(io::Error::other).at("read", "a recording")?;
                report::text::advice(&Summary::of(&mut recording).advice)
            }
            Node::Config => self.live.text(),
            Node::Control => {
                let usage = format!(
                    "commands: {KNOWN} (write one line, then read; PATH from the mount's root, escaped as in \
                     .dlio/files: %20 for a space)\n"
                );
                let session = Session { reply: usage.into_bytes(), running: None };
                return Ok(Virtual::Control(Mutex::new(session)));
            }
        };
        Ok(Virtual::Text(text.into_bytes()))
    }

    pub(super) fn read(&self, open: &Virtual, offset: u64, size: usize) -> Vec<u8> {
        match open {
            Virtual::Text(text) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
                text[from..text.len().min(from.saturating_add(size))].to_vec()
            }
            Virtual::Ops(lines) => self.stats.read_lines(&mut lines.reader.lock(), offset, size),
            Virtual::Control(session) => {
                let mut session = session.lock();
                if session.reply.is_empty()
                    && let Some(running) = session.running.take()
                {
                    let (lines, running) = match running {
                        Running::Sync(wait) => self.watch(wait),
                        Running::Evict(eviction) => self.evict_some(eviction),
                        Running::Verify(verification) => self.verify_some(verification),
                    };
                    session.reply = lines.into_bytes();
                    session.running = running;
                }
                let taken = session.reply.len().min(size);
                session.reply.drain(..taken).collect()
            }
        }
    }

    /// Runs a command line on `control`. What the reader has not read of the former reply is gone. EBUSY while the
    /// former command has not ended.
    pub(super) fn write(&self, open: &Virtual, line: &[u8]) -> Result<()> {
        let Virtual::Control(session) = open else { return Err(Errno::EACCES.into()) };
        let mut session = session.lock();
        if session.running.is_some() {
            return Err(Errno::EBUSY.into());
        }
        if line.len() > COMMAND_MAX {
            return Err(Errno::E2BIG.into());
        }
        *session = match Command::parse(line) {
            Ok(Command::Status) => Session { reply: self.snapshot().json().into_bytes(), running: None },
            Ok(Command::Reload) => match self.live.reload() {
                Ok(reloaded) => Session::said("ok", reloaded),
                Err(error) => Session::said("error", error),
            },
            Ok(Command::Front(path)) => self.front(path),
            Ok(Command::Evict(path)) => self.evict(path),
            Ok(Command::Verify(path)) => self.verify(path),
            Ok(Command::StartWindow(name)) => self.start_window(&name),
            Ok(Command::StopWindow(name)) => self.stop_window(name.as_deref()),
            Ok(Command::WindowFiles(name)) => self.window_files(&name),
            Ok(Command::WindowRecording(name)) => self.window_recording(&name),
            Ok(Command::Mark(text)) => match self.stats.mark(&text) {
                Ok(()) => Session::said("ok", format!("marked at {:.1} s", self.stats.now().as_secs_f64())),
                Err(error) => Session::said("error", error),
            },
            Ok(Command::Sync(below)) => self.sync(below).unwrap_or_else(|error| Session::said("error", error)),
            Err(text) => Session::said("error", text),
        };
        Ok(())
    }

    fn start_window(&self, name: &str) -> Session {
        match self.stats.start_window(name) {
            Ok(()) => Session::said("ok", format!("{name} is open")),
            Err(error) => Session::said("error", error),
        }
    }

    fn stop_window(&self, name: Option<&str>) -> Session {
        match self.stats.stop_window(name) {
            Ok(window) => {
                let (files, lasted) = (render::count(window.used as u64, "file"), window.lasted().as_secs_f64());
                Session::said("ok", format!("{} lasted {lasted:.1} s and used {files}: .dlio/windows", window.name))
            }
            Err(error) => Session::said("error", error),
        }
    }

    fn window_files(&self, name: &str) -> Session {
        match self.stats.files_of_window(name, |ino| path_of(&self.tiers, ino)) {
            Some(files) => Session { reply: files.table().into_bytes(), running: None },
            None => {
                Session::said("error", format!("no closed window {name} whose files are still kept: .dlio/windows"))
            }
        }
    }

    pub(super) fn observer(&self) -> &Observer {
        &self.observer
    }

    /// All that is known, with the calls in memory.
    fn recording(&self) -> Result<Vec<u8>> {
        let bytes = self.observer.collected().recording(self.observer.about(), |ino| path_of(&self.tiers, ino));
        bytes.at("make", "a recording")
    }

    fn window_recording(&self, name: &str) -> Session {
        match self
            .observer
            .collected()
            .recording_of_window(name, self.observer.about(), |ino| path_of(&self.tiers, ino))
        {
            Some(Ok(bytes)) => Session { reply: bytes, running: None },
            Some(Err(error)) => Session::said("error", error),
            None => {
                Session::said("error", format!("no closed window {name} whose files are still kept: .dlio/windows"))
            }
        }
    }

    /// D1 for everything at once, and the LSN that must be applied for D2.
    fn sync(&self, below: Option<Vec<Name>>) -> Result<Session> {
        let hurry = Hurry::new(&self.tiers, &self.hurried);
        self.tiers.sync_fast()?;
        let (what, lsn) = match below {
            None => ("everything".to_owned(), Some(self.tiers.last_lsn())),
            Some(names) => {
                let shown = shown(&names);
                match self.find(names) {
                    Ok(ino) => (shown, self.tiers.pending_below(ino)),
                    Err(error) => return Ok(Session::said("error", format!("{shown}: {error}"))),
                }
            }
        };
        Ok(match lsn {
            None => Session::said("ok", format!("{what} is on the slow tier")),
            Some(lsn) => Session { reply: Vec::new(), running: Some(Running::Sync(Wait { what, lsn, _hurry: hurry })) },
        })
    }

    /// Copies a path's bytes next, and hurries all that is published before it.
    fn front(&self, names: Vec<Name>) -> Session {
        let shown = shown(&names);
        let ino = match self.find(names) {
            Ok(ino) => ino,
            Err(error) => return Session::said("error", format!("{shown}: {error}")),
        };
        match self.on_slow(move |tiers, cx| tiers.to_front(cx, ino)) {
            Ok(None) => Session::said("ok", format!("{shown} is on the slow tier")),
            Ok(Some(events)) => {
                let before = render::count(events.saturating_sub(1), "change");
                Session::said("ok", format!("{shown} is hurried, with {before} published before it"))
            }
            Err(error) => Session::said("error", format!("{shown}: {error}")),
        }
    }

    /// Names what stays because it is dirty; the clean files go while the reply is read.
    fn evict(&self, names: Vec<Name>) -> Session {
        let shown = shown(&names);
        let path = names.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/');
        let below = match self.find(names) {
            Ok(ino) => ino,
            Err(error) => return Session::said("error", format!("{shown}: {error}")),
        };
        let Evictable { dirty, dirty_files, .. } = self.tiers.evictable(below, QUEUE_SHOWN);
        let lines: String = dirty.iter().map(|path| format!("dirty: /{path} is only on the fast tier\n")).collect();
        let (below, unmet) = ((below, path), self.tiers.unmet());
        let eviction = Eviction { below, unmet, left: None, files: 0, bytes: 0, kept: dirty_files };
        Session { reply: lines.into_bytes(), running: Some(Running::Evict(eviction)) }
    }

    /// Goes on for at most [`PROGRESS`]; lines for the reader, and what is left to be done.
    fn evict_some(&self, mut eviction: Eviction) -> (String, Option<Running>) {
        let until = Instant::now() + PROGRESS;
        let mut lines = String::new();
        while !eviction.unmet.is_empty() {
            let some = eviction.unmet.split_off(eviction.unmet.len().saturating_sub(MET_AT_ONCE));
            let path = eviction.below.1.clone();
            if let Err(error) = self.on_slow(move |tiers, _| tiers.meet(&some, &path)) {
                return (format!("error: looking up the files of the mount before: {error}\n"), None);
            }
            if Instant::now() >= until {
                let left = render::count(eviction.unmet.len() as u64, "object");
                return (format!("evicting: {left} of the mount before to look up\n"), Some(Running::Evict(eviction)));
            }
        }
        let mut left = eviction.left.take().unwrap_or_else(|| {
            let mut clean = self.tiers.evictable(eviction.below.0, 0).clean;
            clean.reverse();
            clean
        });
        while let Some(ino) = left.pop() {
            let path = || path_of(&self.tiers, ino).unwrap_or_else(|| format!("removed file {ino}"));
            match self.on_slow(move |tiers, cx| tiers.evict_now(cx, ino)) {
                Ok(Evicted::Gone(bytes)) => {
                    eviction.files += 1;
                    eviction.bytes += bytes;
                }
                Ok(Evicted::NotClean) => {}
                Ok(Evicted::Open) => {
                    eviction.kept += 1;
                    lines.push_str(&format!("kept: {} is open\n", path()));
                }
                Ok(Evicted::Changed) => {
                    eviction.kept += 1;
                    lines.push_str(&format!("kept: {} was changed on the slow tier by somebody else\n", path()));
                }
                Err(error) => {
                    let files = render::count(eviction.files, "file");
                    lines.push_str(&format!("error: {}: {error}; {files} evicted\n", path()));
                    return (lines, None);
                }
            }
            if Instant::now() >= until {
                let files = render::count(eviction.files, "file");
                lines.push_str(&format!("evicting: {files}, {} to go\n", left.len()));
                eviction.left = Some(left);
                return (lines, Some(Running::Evict(eviction)));
            }
        }
        let Eviction { files, bytes, kept, .. } = eviction;
        let files = render::count(files, "file");
        lines.push_str(&format!("ok: {files} evicted, {}; {kept} kept\n", render::bytes(bytes)));
        (lines, None)
    }

    fn verify(&self, names: Vec<Name>) -> Session {
        let shown = shown(&names);
        let path = names.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/');
        let below = match self.find(names) {
            Ok(ino) => ino,
            Err(error) => return Session::said("error", format!("{shown}: {error}")),
        };
        let not_compared = self.tiers.evictable(below, 0).dirty_files;
        let (below, unmet) = ((below, path), self.tiers.unmet());
        let (files, bytes, bad) = (0, 0, 0);
        let verification = Verification { below, unmet, left: None, current: None, files, bytes, bad, not_compared };
        Session { reply: Vec::new(), running: Some(Running::Verify(Box::new(verification))) }
    }

    /// Goes on for at most [`PROGRESS`]; lines for the reader, and what is left to be done.
    fn verify_some(&self, mut all: Box<Verification>) -> (String, Option<Running>) {
        let until = Instant::now() + PROGRESS;
        let mut lines = String::new();
        while !all.unmet.is_empty() {
            let some = all.unmet.split_off(all.unmet.len().saturating_sub(MET_AT_ONCE));
            let path = all.below.1.clone();
            if let Err(error) = self.on_slow(move |tiers, _| tiers.meet(&some, &path)) {
                return (format!("error: looking up the files of the mount before: {error}\n"), None);
            }
            if Instant::now() >= until {
                let left = render::count(all.unmet.len() as u64, "object");
                return (format!("verifying: {left} of the mount before to look up\n"), Some(Running::Verify(all)));
            }
        }
        let mut left = all.left.take().unwrap_or_else(|| {
            let mut clean = self.tiers.evictable(all.below.0, 0).clean;
            clean.reverse();
            clean
        });
        loop {
            let Some((ino, current)) =
                all.current.take().map(|(ino, file)| (ino, Some(file))).or_else(|| Some((left.pop()?, None)))
            else {
                break;
            };
            let done = match self.on_slow(move |tiers, cx| compare(tiers, cx, ino, current)) {
                Err(Error::SlowTimeout) => return ("error: the slow tier does not answer\n".to_owned(), None),
                done => done,
            };
            if let Ok((Verified::More, file)) = done {
                all.current = file.map(|file| (ino, file));
            } else {
                let path = path_of(&self.tiers, ino).unwrap_or_else(|| format!("removed file {ino}"));
                lines.push_str(&all.take(&path, done));
            }
            if Instant::now() >= until {
                lines.push_str(&all.progress(left.len()));
                all.left = Some(left);
                return (lines, Some(Running::Verify(all)));
            }
        }
        lines.push_str(&all.verdict());
        (lines, None)
    }

    fn find(&self, names: Vec<Name>) -> Result<Ino> {
        self.on_slow(move |tiers, cx| find(tiers, cx, &names))
    }

    /// Runs what may need the slow tier where waiting for it is bounded: with that tier down, `.dlio/stats` must go on
    /// answering.
    fn on_slow<T: Send + 'static>(&self, run: impl FnOnce(&Tiers, &Cx) -> Result<T> + Send + 'static) -> Result<T> {
        let (found, answer) = mpsc::sync_channel(1);
        let tiers = Arc::clone(&self.tiers);
        let run = move |gave_up| run(&tiers, &Cx::may_wait(0, 0, gave_up));
        // One answer at most, and one place for it: sending never blocks, and fails only if nobody listens any more.
        let done = |found: SyncSender<_>, result| drop(found.try_send(result));
        let expired = |found: SyncSender<_>| drop(found.try_send(Err(Error::SlowTimeout)));
        drop(self.slow.submit(found, run, done, expired));
        // Refused, or dropped unanswered while the mount ends.
        answer.recv().unwrap_or(Err(Error::SlowTimeout))
    }

    /// Waits for at most [`PROGRESS`]; a line for the reader, and what is left to wait for.
    fn watch(&self, wait: Wait) -> (String, Option<Running>) {
        let until = Instant::now() + PROGRESS;
        while self.tiers.applied_lsn() < wait.lsn {
            if Instant::now() >= until {
                let status = self.tiers.status();
                let left = wait.lsn.saturating_sub(self.tiers.applied_lsn());
                return (format!("waiting for {left} events: {}\n", safety(&status).line()), Some(Running::Sync(wait)));
            }
            thread::park_timeout(LOOK);
        }
        (format!("ok: {} is on the slow tier (LSN {})\n", wait.what, wait.lsn), None)
    }

    fn files(&self) -> Files {
        self.stats.files(|ino| path_of(&self.tiers, ino))
    }

    /// The text of `metrics` for somebody who may be anybody.
    pub(super) fn metrics_for_all(&self) -> String {
        self.snapshot().for_others().metrics()
    }

    fn snapshot_for(&self, uid: u32) -> render::Snapshot {
        let snapshot = self.snapshot();
        if uid == 0 || uid == self.owner.0 { snapshot } else { snapshot.for_others() }
    }

    fn snapshot(&self) -> render::Snapshot {
        let status = self.tiers.status();
        let (limits, counts) = (self.slow.limits(), self.slow.counts());
        render::Snapshot {
            safety: safety(&status),
            version: env!("CARGO_PKG_VERSION"),
            mounted_for: self.stats.now(),
            fast: tier(&status.fast),
            slow: tier(&status.slow),
            pipeline: render::Pipeline {
                pending_events: status.pending_events,
                published_events: status.published_events,
                drained_files: status.drained_files,
                drained_bytes: status.drained_bytes,
                drain_bytes_per_s: status.drain_bytes_per_s,
                evictions: status.evictions,
            },
            log: render::Log { lsn: status.log_lsn, durable_lsn: status.durable_lsn, applied_lsn: status.applied_lsn },
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
                spilled: status.spilled,
                struck: status.struck,
                damaged: status.damaged,
                quarantined: status.quarantined,
            },
            slow_calls: render::SlowCalls {
                waiting: counts.waiting,
                limit: limits.queue,
                threads: limits.threads,
                served: counts.served,
                timed_out: counts.timed_out,
                refused: counts.refused,
            },
            io_path: self.io.figures(),
            operations: render::Operation::all(self.stats.operations()),
            failures: render::Failure::all(self.stats.failures()),
            profile: self.stats.is_on(),
            files: self.stats.extent(),
            found: self.stats.found(),
            daemon: daemon::usage(),
            metrics_addr: self.metrics_addr.map(|addr| addr.to_string()),
        }
    }
}

/// For scripts. Ends with a newline.
fn json(value: &impl serde::Serialize) -> String {
    format!("{:#}\n", serde_json::json!(value))
}

/// Some more of a file, or its beginning.
fn compare(tiers: &Tiers, cx: &Cx, ino: Ino, file: Option<Verifying>) -> Result<(Verified, Option<Verifying>)> {
    let mut file = match file.map_or_else(|| tiers.begin_verify(cx, ino), |file| Ok(Ok(file)))? {
        Ok(file) => file,
        Err(not_clean) => return Ok((not_clean, None)),
    };
    Ok((tiers.verify_some(cx, &mut file)?, Some(file)))
}

impl Verification {
    /// What came of a file; its line, if it needs one.
    fn take(&mut self, path: &str, done: Result<(Verified, Option<Verifying>)>) -> String {
        let read = |file: &Option<Verifying>| file.as_ref().map_or(0, |file| file.progress().0);
        match done {
            Ok((Verified::Same, file)) => {
                (self.files, self.bytes) = (self.files + 1, self.bytes + read(&file));
                String::new()
            }
            Ok((Verified::Differs { bad, at }, file)) => {
                (self.files, self.bytes, self.bad) = (self.files + 1, self.bytes + read(&file), self.bad + 1);
                let (which, remedy) = match bad {
                    Bad::Fast => ("fast", "the slow copy is good: evict the file"),
                    Bad::Slow => ("slow", "the fast copy is good: copy the file, and move the copy into its place"),
                    Bad::Both => ("both", "neither copy is what was written: restore it from elsewhere"),
                    Bad::Unknown => ("differ", "no hash says which copy is good: compare them"),
                };
                format!("{which}: {path} is damaged at byte {at}; {remedy}\n")
            }
            Ok((Verified::Changed, _)) => {
                self.not_compared += 1;
                format!("changed: {path} was changed on the slow tier by somebody else\n")
            }
            Ok(_) => {
                self.not_compared += 1;
                String::new()
            }
            Err(error) => {
                self.bad += 1;
                format!("unreadable: {path}: {error}\n")
            }
        }
    }

    fn progress(&self, to_go: usize) -> String {
        let files = render::count(self.files, "file");
        let more =
            self.current.as_ref().map(|(_, file)| file.progress()).map_or(String::new(), |(at, of)| {
                format!(", {} of {} of the next", render::bytes(at), render::bytes(of))
            });
        format!("verifying: {files} compared, {}{more}, {to_go} to go\n", render::bytes(self.bytes))
    }

    fn verdict(&self) -> String {
        let Verification { files, bytes, bad, not_compared, .. } = self;
        let (files, bytes) = (render::count(*files, "file"), render::bytes(*bytes));
        format!("ok: {files} compared, {bytes}: {bad} damaged; {not_compared} not compared\n")
    }
}

impl Session {
    fn said(verdict: &str, text: impl std::fmt::Display) -> Self {
        Session { reply: format!("{verdict}: {text}\n").into_bytes(), running: None }
    }
}

/// A path for the reply.
fn shown(names: &[Name]) -> String {
    format!("/{}", names.iter().map(Name::to_string).collect::<Vec<_>>().join("/"))
}

/// Walks from the root. Each step's reference is given back as soon as the next is held, and the last one's as well: a
/// number that nobody holds any more means nothing to the engine, and nothing worse.
fn find(tiers: &Tiers, cx: &Cx, names: &[Name]) -> Result<Ino> {
    let mut held = Reference { tiers, ino: ROOT, counted: false };
    for name in names {
        let ino = tiers.lookup(cx, held.ino, name)?.ino;
        held = Reference { tiers, ino, counted: true };
    }
    Ok(held.ino)
}

/// An inode that is held for a moment.
struct Reference<'a> {
    tiers: &'a Tiers,
    ino: Ino,
    counted: bool,
}

impl Drop for Reference<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.tiers.forget(self.ino, 1);
        }
    }
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
        slow_down: status.slow_down,
        refusing: status.refusing,
        interrupted: status.interrupted,
    }
}

pub(super) fn tier(space: &Space) -> render::Tier {
    render::Tier { total: space.total, used: space.total.saturating_sub(space.free), available: space.avail }
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
        assert!(!owns(ROOT) && !owns(FIRST - 1) && owns(FIRST));
        for node in [Node::Dir].into_iter().chain(Node::FILES) {
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

    #[test]
    fn commands_are_single_lines() {
        assert_eq!(Command::parse(b"sync\n"), Ok(Command::Sync(None)));
        assert_eq!(Command::parse(b"sync"), Ok(Command::Sync(None)));
        assert_eq!(Command::parse(b"status\n"), Ok(Command::Status));
        let name = |bytes: &[u8]| Name::new(bytes).expect("a valid name");
        assert_eq!(
            Command::parse(b"sync /run/epoch%201\n"),
            Ok(Command::Sync(Some(vec![name(b"run"), name(b"epoch 1")])))
        );
        assert_eq!(Command::parse(b"sync /\n"), Ok(Command::Sync(Some(vec![]))));
    }

    #[test]
    fn a_bad_command_says_what_is_known() {
        let said = |line: &[u8]| Command::parse(line).expect_err("not a command");
        assert_eq!(said(b"frobnicate now\n"), format!("unknown command \"frobnicate\"; known: {KNOWN}"));
        assert!(said(b"\n").contains("known: sync"));
        assert!(said(b"sync\nsync\n").contains("one command at a time"));
        assert!(said(b"sync a b\n").contains("%20 for a space"));
        assert!(said(b"sync ../../etc\n").contains("../../etc"));
        assert!(said(b"sync \xff\n").contains("ASCII"));
        assert!(said(b"status now\n").contains("no argument"));
        assert!(said(b"evict\n").contains("takes a path") && said(b"verify \n").contains("takes a path"));
    }
}
