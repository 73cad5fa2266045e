//! The log's events in memory: changes of the view that the slow tier does not have yet.

use std::sync::Arc;
use std::time::Duration;

use crate::path::escaped_len;
use crate::tiers::disk::NewAttr;
use crate::tiers::log::record::{AttrsOf, Spec};
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::objects::version::{Content, Xattr};
use crate::tiers::{Ino, Lsn};

/// One ordered change of the view that the slow tier does not have yet.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) lsn: Lsn,
    /// Uptime of the append.
    pub(crate) at: Duration,
    /// The user whose event it is.
    pub(crate) by: u32,
    pub(crate) change: Change,
}

/// What changed, by inode. Names are the view's at the event's LSN. There may be a million: variants larger than
/// `Content` are boxed.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Make { ino: Ino, at: DirEntryKey, spec: Arc<Spec> },
    Content { ino: Ino, at: DirEntryKey, content: Arc<Content> },
    Link { ino: Ino, at: DirEntryKey },
    Rename { ino: Ino, from: Box<DirEntryKey>, to: Box<DirEntryKey>, replaced: Option<Ino> },
    Exchange { a: Ino, a_at: Box<DirEntryKey>, b: Ino, b_at: Box<DirEntryKey> },
    Remove { ino: Ino, at: DirEntryKey },
    SetAttr { ino: Ino, of: Box<AttrsOf>, new: Box<NewAttr> },
    SetXattr { ino: Ino, of: Box<AttrsOf>, new: Box<(Vec<u8>, Option<Vec<u8>>)> },
}

/// About what an event takes besides its names and values: itself, a slot, and the numbers in its record.
const EVENT_ITSELF: u64 = 256;

impl Change {
    /// About how many bytes it takes while it is pending, in memory and in the log.
    pub(crate) fn bytes(&self) -> u64 {
        let both = |bytes: &[u8]| (bytes.len() + escaped_len(bytes)) as u64;
        let all = |xattrs: &[Xattr]| xattrs.iter().map(|(key, value)| both(key) + both(value)).sum();
        let names: u64 = self.places().into_iter().map(|(_, name)| both(name.as_bytes())).sum();
        let values = match self {
            Change::Make { spec, .. } => both(&spec.target) + all(&spec.attrs.xattrs),
            Change::Content { content, .. } => all(content.xattrs()),
            Change::SetXattr { new, .. } => both(&new.0) + new.1.as_deref().map_or(0, both),
            Change::Link { .. }
            | Change::Rename { .. }
            | Change::Exchange { .. }
            | Change::Remove { .. }
            | Change::SetAttr { .. } => 0,
        };
        EVENT_ITSELF + names + values
    }

    /// The names it touches.
    pub(crate) fn places(&self) -> Vec<&DirEntryKey> {
        match self {
            Change::Make { at, .. }
            | Change::Content { at, .. }
            | Change::Link { at, .. }
            | Change::Remove { at, .. } => vec![at],
            Change::Rename { from, to, .. } => vec![from, to],
            Change::Exchange { a_at, b_at, .. } => vec![a_at, b_at],
            Change::SetAttr { .. } | Change::SetXattr { .. } => Vec::new(),
        }
    }

    /// The names it touches, for replacing them.
    pub(super) fn places_mut(&mut self) -> Vec<&mut DirEntryKey> {
        match self {
            Change::Make { at, .. }
            | Change::Content { at, .. }
            | Change::Link { at, .. }
            | Change::Remove { at, .. } => vec![at],
            Change::Rename { from, to, .. } => vec![from, to],
            Change::Exchange { a_at, b_at, .. } => vec![a_at, b_at],
            Change::SetAttr { .. } | Change::SetXattr { .. } => Vec::new(),
        }
    }

    /// Whether it takes the name away from its node, and puts no other node there.
    pub(super) fn frees(&self, place: &DirEntryKey) -> bool {
        match self {
            Change::Rename { from, .. } => **from == *place,
            Change::Remove { at, .. } => at == place,
            _ => false,
        }
    }

    /// The name that leads to another node from then on, if there is exactly one.
    pub(crate) fn overwrites(&self) -> Option<&DirEntryKey> {
        match self {
            Change::Make { at, .. } | Change::Link { at, .. } | Change::Remove { at, .. } => Some(at),
            Change::Rename { to, .. } => Some(to),
            Change::Content { .. } | Change::Exchange { .. } | Change::SetAttr { .. } | Change::SetXattr { .. } => None,
        }
    }

    /// The inodes it touches.
    pub(crate) fn inodes(&self) -> Vec<Ino> {
        match self {
            Change::Make { ino, .. }
            | Change::Content { ino, .. }
            | Change::Link { ino, .. }
            | Change::Remove { ino, .. }
            | Change::SetAttr { ino, .. }
            | Change::SetXattr { ino, .. } => vec![*ino],
            Change::Rename { ino, replaced, .. } => [Some(*ino), *replaced].into_iter().flatten().collect(),
            Change::Exchange { a, b, .. } => vec![*a, *b],
        }
    }
}
