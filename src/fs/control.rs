//! The virtual directory `.dlio`: statistics to read, and `control` for line commands.
//!
//! It has its own range of inode numbers at the top, is found in the root by name and never listed there. A file's text
//! is rendered when it is opened and kept in the handle. All of this runs on a small pool of its own: neither the
//! threads that serve the kernel nor those that wait for the slow tier ever wait for a command.
//!
//! This file has the directory; `control/session.rs` answers what is written to `control`.

mod aside;
pub(super) mod asker;
pub(super) mod by_xattr;
mod clean;
pub(super) mod command;
mod deadline;
mod evict;
mod figures;
mod latest;
pub(super) mod node;
pub(super) mod open;
mod paths;
mod pins;
mod reply;
mod rights;
mod session;
pub(super) mod sources;
mod stage;
mod sync;
mod verify;
mod waiting;
mod windows;

use std::io::{self, Cursor};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use asker::Asker;
use node::{FIRST, LINKS, Node};
use open::{Lines, TextShare, Virtual, What};
use parking_lot::Mutex;
use session::Session;
use sources::Control;

use super::shown::path_of;
use crate::error::{Context, Errno, Result};
use crate::report::{self, summary::Summary};
use crate::stats::recording::{Recording, Source};
use crate::stats::{epochs, processes, safe};
use crate::tiers::disk::Kind;
use crate::tiers::{Attr, Ino, ListEntry, Listing, OpenMode, ROOT};

/// Only the text ever changes in here, and that is never cached.
const TTL: Duration = Duration::from_secs(60);

/// How many paths `.dlio/files` lists.
const FILES_SHOWN: usize = 1_000;
/// How many files `.dlio/files.json` lists: all that are in memory, unless thousands more are open.
const ACTIVE_SHOWN: usize = 10_000;

/// How many files here a user other than the mount's owner may have open.
const TEXTS_MAX: usize = 64;

impl Control {
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

    /// True for all files but the link, which may have no target.
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
            // As in /proc: the text is made when the file is opened; but `tail -f` on `ops` looks at its size.
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

    /// Opens one of the files. The kernel has checked the mode bits, but root passes every check: writing to a
    /// read-only file is EACCES for root too.
    ///
    /// Errors: ENFILE for a user who has too many of them open: each holds its text.
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
            Node::Stats => self.status_for(&asker).text(),
            Node::StatsJson => self.status_for(&asker).json(),
            Node::Metrics => self.status_for(&asker).metrics(),
            Node::Files => self.files_for(&asker).text(FILES_SHOWN),
            Node::FilesTsv => self.files_for(&asker).table(),
            Node::FilesJson => self.active_files_for(&asker).json(ACTIVE_SHOWN),
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
}
