//! The contents of `.dlio`: names, inode numbers and modes.

use crate::error::{Errno, Error, Result};
use crate::tiers::{Ino, ROOT};

/// The name of the directory in the root. It hides a user's file of this name.
pub(in crate::fs) const NAME: &[u8] = b".dlio";

/// The first inode number of the files; the engine's numbers stay below [`LINKS`].
pub(super) const FIRST: Ino = u64::MAX - 0xFF;
/// All numbers from here up to [`FIRST`] belong to the link, a new one at each look-up: the kernel caches a link's
/// target for all users for as long as it has the number.
pub(super) const LINKS: Ino = u64::MAX - 0xFFFF_FFFF;

/// Whether an inode number is one of ours.
pub(in crate::fs) fn owns(ino: Ino) -> bool {
    ino >= LINKS
}

/// One table for the files: the node, its name and its mode.
macro_rules! files {
    ($($node:ident $name:literal $perm:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(in crate::fs) enum VirtualNode {
            Dir,
            $($node,)*
        }

        const FILES: [(VirtualNode, &str, u32); [$($perm),*].len()] = [$((VirtualNode::$node, $name, $perm)),*];
    };
}

// The files, in the order of a listing, with their names and modes. 0o444: data of which each user is shown only their
// own (`figures.rs`), or data of no user; 0o400: data of all users together, or of the tiers; the link has the mode of
// any link.
files! {
    Stats "stats" 0o444,
    StatsJson "stats.json" 0o444,
    Metrics "metrics" 0o444,
    Files "files" 0o444,
    FilesTsv "files.tsv" 0o444,
    FilesJson "files.json" 0o444,
    Processes "processes" 0o444,
    ProcessesJson "processes.json" 0o444,
    Queue "queue" 0o444,
    QueueJson "queue.json" 0o444,
    Staging "staging" 0o444,
    StagingJson "staging.json" 0o444,
    Windows "windows" 0o400,
    WindowsJson "windows.json" 0o400,
    TimelineJson "timeline.json" 0o444,
    Checkpoints "checkpoints" 0o444,
    CheckpointsJson "checkpoints.json" 0o444,
    Pace "pace" 0o444,
    PaceJson "pace.json" 0o444,
    Fleet "fleet" 0o444,
    FleetJson "fleet.json" 0o444,
    LatestSafe "latest-safe" 0o777,
    Ops "ops" 0o400,
    Recording "recording" 0o444,
    Advice "advice" 0o444,
    Config "config" 0o400,
    Control "control" 0o666,
}

impl VirtualNode {
    pub(super) fn files() -> impl Iterator<Item = VirtualNode> {
        FILES.into_iter().map(|(node, ..)| node)
    }

    pub(super) fn ino(self) -> Ino {
        FIRST + self as u64
    }

    /// ENOENT for a number that is in our range but names nothing.
    pub(super) fn of(ino: Ino) -> Result<VirtualNode, Errno> {
        if (LINKS..FIRST).contains(&ino) {
            return Ok(VirtualNode::LatestSafe);
        }
        [VirtualNode::Dir].into_iter().chain(VirtualNode::files()).find(|node| node.ino() == ino).ok_or(Errno::ENOENT)
    }

    /// Its name and mode.
    pub(super) fn row(self) -> (&'static str, u32) {
        let row = FILES.into_iter().find(|(node, ..)| *node == self);
        row.map_or((".dlio", 0o555), |(_, name, perm)| (name, perm))
    }

    pub(super) fn name(self) -> &'static str {
        self.row().0
    }

    pub(super) fn perm(self) -> u32 {
        self.row().1
    }
}

/// EPERM for the name of our directory in the root, and for everything inside it.
pub(in crate::fs) fn refuse_change(parent: Ino, name: &[u8]) -> Result<(), Error> {
    if owns(parent) || (parent == ROOT && name == NAME) { Err(Errno::EPERM.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_inode_numbers_are_apart_from_the_engine_s() {
        assert!(!owns(ROOT) && !owns(LINKS - 1) && owns(LINKS) && owns(FIRST));
        assert_eq!([LINKS, FIRST - 1].map(VirtualNode::of), [Ok(VirtualNode::LatestSafe); 2]);
        for node in [VirtualNode::Dir].into_iter().chain(VirtualNode::files()) {
            assert_eq!(VirtualNode::of(node.ino()), Ok(node));
        }
        assert_eq!(VirtualNode::of(u64::MAX), Err(Errno::ENOENT));
    }

    #[test]
    fn only_the_root_s_entry_and_what_is_inside_are_protected() {
        assert!(refuse_change(ROOT, b".dlio").is_err());
        assert!(refuse_change(VirtualNode::Dir.ino(), b"anything").is_err());
        assert!(refuse_change(ROOT, b".dlio2").is_ok());
        assert!(refuse_change(7, b".dlio").is_ok());
    }
}
