//! What is in `.dlio`: names, inode numbers and modes.

use crate::error::{Errno, Error, Result};
use crate::tiers::{Ino, ROOT};

/// The name of the directory in the root. A user's file of this name is hidden by it.
pub(in crate::fs) const NAME: &[u8] = b".dlio";

/// The first inode number of the files; the engine's numbers stay below [`LINKS`].
pub(super) const FIRST: Ino = u64::MAX - 0xFF;
/// From here on up to [`FIRST`] all numbers are the link's, another one at each look-up: the kernel keeps what a link says, for whoever
/// asks, as long as it has the number.
pub(super) const LINKS: Ino = u64::MAX - 0xFFFF_FFFF;

/// Whether an inode number is one of ours.
pub(in crate::fs) fn owns(ino: Ino) -> bool {
    ino >= LINKS
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) enum Node {
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

impl Node {
    pub(super) const FILES: [Node; 23] = [
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
        Node::Staging,
        Node::StagingJson,
        Node::Windows,
        Node::WindowsJson,
        Node::TimelineJson,
        Node::Checkpoints,
        Node::CheckpointsJson,
        Node::LatestSafe,
        Node::Ops,
        Node::Recording,
        Node::Advice,
        Node::Config,
        Node::Control,
    ];

    pub(super) fn ino(self) -> Ino {
        FIRST + self as u64
    }

    /// ENOENT for a number that is in our range but names nothing.
    pub(super) fn of(ino: Ino) -> Result<Node, Errno> {
        if (LINKS..FIRST).contains(&ino) {
            return Ok(Node::LatestSafe);
        }
        [Node::Dir].into_iter().chain(Node::FILES).find(|node| node.ino() == ino).ok_or(Errno::ENOENT)
    }

    pub(super) fn name(self) -> &'static str {
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
            Node::Staging => "staging",
            Node::StagingJson => "staging.json",
            Node::Windows => "windows",
            Node::WindowsJson => "windows.json",
            Node::TimelineJson => "timeline.json",
            Node::Checkpoints => "checkpoints",
            Node::CheckpointsJson => "checkpoints.json",
            Node::LatestSafe => "latest-safe",
            Node::Ops => "ops",
            Node::Recording => "recording",
            Node::Advice => "advice",
            Node::Config => "config",
            Node::Control => "control",
        }
    }

    pub(super) fn perm(self) -> u32 {
        match self {
            Node::Dir => 0o555,
            Node::Stats | Node::StatsJson | Node::Metrics | Node::TimelineJson => 0o444,
            // Who may ask for what, `rights.rs` says; and in `figures.rs` that an ordinary user is shown what is theirs.
            Node::Control => 0o666,
            Node::Queue | Node::QueueJson | Node::Staging | Node::StagingJson => 0o444,
            Node::Processes | Node::ProcessesJson | Node::Checkpoints | Node::CheckpointsJson => 0o444,
            Node::Files | Node::FilesTsv | Node::FilesJson | Node::Recording | Node::Advice => 0o444,
            // As of any symbolic link; whom it is shown to, `latest` decides.
            Node::LatestSafe => 0o777,
            // The others are of all users together, or of the tiers.
            _ => 0o400,
        }
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
        assert_eq!([LINKS, FIRST - 1].map(Node::of), [Ok(Node::LatestSafe); 2]);
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
}
