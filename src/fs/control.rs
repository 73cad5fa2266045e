//! The virtual directory `.dlio`: statistics to read, and `control` for line commands.
//!
//! It has its own range of inode numbers at the top, is found in the root by name and never listed there. A file's text
//! is rendered when it is opened, and a read at any offset sees that text (`control/texts.rs`). All of this runs on a
//! small pool of its own: neither the threads that serve the kernel nor those that wait for the slow tier ever wait for
//! a command.
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
mod texts;
mod verify;
mod waiting;
mod windows;

use std::io::{self, Cursor};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use asker::Asker;
use node::{FIRST, LINKS, VirtualNode};
use open::{OpsReader, TextShare, Virtual, VirtualContent};
use parking_lot::Mutex;
use session::ControlSession;
use sources::Control;

use super::shown::path_of;
use crate::error::{Context, Errno, Result};
use crate::observing::behind_door;
use crate::report::{self, summary::Summary};
use crate::stats::recording::{Recording, Source};
use crate::stats::{checkpoints, epochs, processes};
use crate::tiers::disk::Kind;
use crate::tiers::{Attr, Ino, ListEntry, OpenMode, ROOT, SharedListing};

/// Only the texts in here change, and those are never cached.
const TTL: Duration = Duration::from_secs(60);

/// How many paths `.dlio/files` lists.
const FILES_SHOWN: usize = 1_000;
/// How many files `.dlio/files.json` lists: all that are in memory, unless thousands more are open.
const ACTIVE_SHOWN: usize = 10_000;

/// How many files here a user other than the mount's owner may have open.
const TEXTS_MAX: usize = 64;

impl Control {
    pub(super) fn root_attr(&self) -> Attr {
        self.node_attr(VirtualNode::Dir)
    }

    pub(super) fn attr(&self, ino: Ino) -> Result<Attr> {
        Ok(Attr { ino, ..self.node_attr(VirtualNode::of(ino)?) })
    }

    /// Finds a name in `.dlio` itself.
    pub(super) fn lookup(&self, name: &[u8]) -> Result<Attr> {
        let node = VirtualNode::files().find(|node| node.name().as_bytes() == name).ok_or(Errno::ENOENT)?;
        match node {
            node if !self.is_there(node) => Err(Errno::ENOENT.into()),
            VirtualNode::LatestSafe => {
                let looks = self.looks.fetch_add(1, Ordering::Relaxed);
                self.attr(LINKS + looks % (FIRST - LINKS))
            }
            _ => Ok(self.node_attr(node)),
        }
    }

    /// True for all files but the link, which may have no target, and those about the fleet, if there is none.
    fn is_there(&self, node: VirtualNode) -> bool {
        match node {
            VirtualNode::LatestSafe => self.tiers.latest_safe().is_some(),
            VirtualNode::Fleet | VirtualNode::FleetJson => self.tiers.is_in_fleet(),
            _ => true,
        }
    }

    fn node_attr(&self, node: VirtualNode) -> Attr {
        let (kind, nlink) = match node {
            VirtualNode::Dir => (Kind::Dir, 2),
            VirtualNode::LatestSafe => (Kind::Symlink, 1),
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
            size: if node == VirtualNode::Ops { self.stats.lines_len() } else { 0 },
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            ttl: if matches!(node, VirtualNode::Ops | VirtualNode::LatestSafe) { Duration::ZERO } else { TTL },
        }
    }

    pub(super) fn list(&self) -> SharedListing {
        let entry = |name: &[u8], ino, kind| ListEntry { name: name.to_vec(), ino, kind, at: 0 };
        let above = [entry(b".", VirtualNode::Dir.ino(), Kind::Dir), entry(b"..", ROOT, Kind::Dir)];
        let there = VirtualNode::files().filter(|node| self.is_there(*node));
        let there = there.map(|node| entry(node.name().as_bytes(), node.ino(), self.node_attr(node).kind));
        SharedListing::new(above.into_iter().chain(there).collect(), 0)
    }

    /// Opens one of the files. The kernel has checked the mode bits, but root passes every check: writing to a
    /// read-only file is EACCES for root too.
    ///
    /// Errors: ENFILE for a user who has too many of them open, or too much text.
    pub(super) fn open(&self, ino: Ino, mode: OpenMode, asker: Asker) -> Result<Virtual> {
        let share = asker.limited().map(|uid| self.share_for(uid)).transpose()?;
        // A text contains names that any user has chosen: a bug in it ends in an error for its reader.
        let what = behind_door("a text of .dlio", || self.open_what(ino, mode, asker));
        Ok(Virtual { what: what.unwrap_or(Err(Errno::EIO.into()))?, _share: share })
    }

    fn share_for(&self, uid: u32) -> Result<TextShare> {
        let mut open = self.open_texts.lock();
        let count = open.entry(uid).or_default();
        if *count >= TEXTS_MAX {
            return Err(Errno::ENFILE.into());
        }
        *count += 1;
        Ok(TextShare { open: Arc::clone(&self.open_texts), uid })
    }

    fn open_what(&self, ino: Ino, mode: OpenMode, asker: Asker) -> Result<VirtualContent> {
        let node = VirtualNode::of(ino)?;
        if mode.write && node != VirtualNode::Control {
            return Err(Errno::EACCES.into());
        }
        match node {
            VirtualNode::Dir => Err(Errno::EISDIR.into()),
            VirtualNode::LatestSafe => Err(Errno::ELOOP.into()),
            VirtualNode::Ops => {
                let reader = Mutex::new(self.stats.open_lines(|ino| path_of(&self.tiers, ino)));
                Ok(VirtualContent::Ops(OpsReader { stats: Arc::clone(&self.stats), reader }))
            }
            VirtualNode::Control => Ok(VirtualContent::Control(Mutex::new(ControlSession::new(asker)))),
            _ => Ok(VirtualContent::Text(self.texts.open(node, &asker, || self.render(node, &asker))?)),
        }
    }

    fn render(&self, node: VirtualNode, asker: &Asker) -> Result<Vec<u8>> {
        let text = match node {
            VirtualNode::Stats => self.status_for(asker).text(),
            VirtualNode::StatsJson => self.status_for(asker).json(),
            VirtualNode::Metrics => self.status_for(asker).metrics(self.tiers.recorder()),
            VirtualNode::Files => self.files_for(asker).text(FILES_SHOWN),
            VirtualNode::FilesTsv => self.files_for(asker).table(),
            VirtualNode::FilesJson => self.active_files_for(asker).json(ACTIVE_SHOWN),
            VirtualNode::Processes => processes::table(&self.processes_for(asker)),
            VirtualNode::ProcessesJson => processes::json(&self.processes_for(asker)),
            VirtualNode::Queue => self.queue_for(asker).text(),
            VirtualNode::QueueJson => self.queue_for(asker).json(),
            VirtualNode::Staging => self.staging_for(asker)?.text(),
            VirtualNode::StagingJson => self.staging_for(asker)?.json(),
            VirtualNode::Windows => {
                self.observer.collected().windows().text(self.stats.now()) + &epochs::text(&self.stats.epochs())
            }
            VirtualNode::WindowsJson => {
                self.observer.collected().windows().json(&self.stats.epochs(), self.stats.since_1970())
            }
            VirtualNode::TimelineJson => self.stats.timeline().json(self.stats.since_1970()),
            VirtualNode::Checkpoints => {
                let now = self.stats.now();
                checkpoints::text(&self.checkpoints_for(asker)?, now.as_secs_f64())
            }
            VirtualNode::CheckpointsJson => checkpoints::json(&self.checkpoints_for(asker)?, self.stats.since_1970()),
            VirtualNode::Pace => self.pace_for(asker)?.text(),
            VirtualNode::PaceJson => self.pace_for(asker)?.json(),
            VirtualNode::Fleet => self.tiers.fleet_status().ok_or(Errno::ENOENT)?.text(),
            VirtualNode::FleetJson => self.tiers.fleet_status().ok_or(Errno::ENOENT)?.json(),
            VirtualNode::Recording => return self.recording_for(asker),
            VirtualNode::Advice => {
                let recording: Box<dyn Source> = Box::new(Cursor::new(self.recording_for(asker)?));
                let mut recording =
                    Recording::read(vec![recording]).map_err(io::Error::other).at("read", "a recording")?;
                report::text::advice(&Summary::of(&mut recording).advice)
            }
            VirtualNode::Config => self.live.text(),
            VirtualNode::Dir | VirtualNode::LatestSafe | VirtualNode::Ops | VirtualNode::Control => String::new(),
        };
        Ok(text.into_bytes())
    }

    pub(super) fn read(&self, open: &Virtual, offset: u64, size: usize) -> Vec<u8> {
        match &open.what {
            VirtualContent::Text(text) => {
                let text = text.bytes();
                let rest = usize::try_from(offset).ok().and_then(|from| text.get(from..)).unwrap_or_default();
                rest.get(..size).unwrap_or(rest).to_vec()
            }
            VirtualContent::Ops(lines) => {
                let read = || self.stats.read_lines(&mut lines.reader.lock(), offset, size);
                behind_door("the calls as lines", read).unwrap_or_default()
            }
            VirtualContent::Control(session) => session.lock().read(self, size),
        }
    }

    /// Runs a command line on `control`.
    pub(super) fn write(&self, open: &Virtual, line: &[u8]) -> Result<()> {
        let VirtualContent::Control(session) = &open.what else { return Err(Errno::EACCES.into()) };
        session.lock().write(self, line)
    }
}
