//! The user of a request: an ordinary user, root, or the mount's owner.

use crate::fs::caller;
use crate::tiers::{Attr, Cx};

/// A user, with the rights of the asking process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fs) struct Asker {
    uid: u32,
    /// All groups of the process.
    groups: Vec<u32>,
    /// Root, or the mount's owner.
    is_trusted: bool,
}

impl Asker {
    /// `thread`: the asking thread, or 0. The kernel gives only its first group, and the thread waits while we look up
    /// the rest.
    pub(in crate::fs) fn new(cx: &Cx, thread: u32, owner: u32) -> Self {
        let is_trusted = [0, owner].contains(&cx.uid);
        let mut groups = if is_trusted { Vec::new() } else { caller::groups(thread) };
        groups.push(cx.gid);
        Asker { uid: cx.uid, groups, is_trusted }
    }

    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// The user, if limits apply; `None`: there are no limits.
    pub(super) fn limited(&self) -> Option<u32> {
        (!self.is_trusted).then_some(self.uid)
    }

    pub(super) fn is(&self, uid: u32) -> bool {
        self.is_trusted || self.uid == uid
    }

    /// Whether the mode bits give this user one of these rights: 4 to read, 2 to write, 1 to traverse.
    pub(super) fn may(&self, attr: &Attr, one_of: u32) -> bool {
        let shift = match (attr.uid == self.uid, self.groups.contains(&attr.gid)) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        self.is_trusted || attr.perm >> shift & one_of != 0
    }
}
