//! A call in progress, as it is counted, logged and reported.

use std::sync::Arc;
use std::time::Instant;

use fuser::INodeNo;

use super::control::node;
use super::handles::Open;
use crate::stats::counters::{Op, Tier};
use crate::tiers::{Ino, ROOT};

/// A call in progress: the operation, its subject, its start, and the tier that serves it.
#[derive(Clone, Debug)]
pub(super) struct ObservedCall {
    pub(super) what: OpAt,
    pub(super) on: Subject,
    pub(super) since: Instant,
    pub(super) tier: Tier,
    /// The calling thread, as the kernel names it.
    pub(super) thread: u32,
}

/// An operation, and where in the file it reads or writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpAt {
    pub(super) op: Op,
    pub(super) offset: u64,
}

impl From<Op> for OpAt {
    fn from(op: Op) -> Self {
        OpAt { op, offset: 0 }
    }
}

/// What a call is counted for.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Inode(Ino),
    Open(Arc<Open>),
}

impl Subject {
    /// Whether it is in `.dlio`.
    pub(super) fn is_virtual(&self) -> bool {
        match self {
            Subject::Inode(ino) => node::owns(*ino),
            Subject::Open(open) => open.user_file().is_none(),
        }
    }

    /// Whether it is a conversation on `control`.
    pub(super) fn is_command(&self) -> bool {
        matches!(self, Subject::Open(open) if matches!(&**open, Open::Virtual(open) if open.is_command()))
    }

    /// `None` for an open file of `.dlio`.
    pub(super) fn ino(&self) -> Option<Ino> {
        match self {
            Subject::Inode(ino) => Some(*ino),
            Subject::Open(open) => open.user_file().map(|handle| handle.file().ino),
        }
    }
}

impl From<INodeNo> for Subject {
    fn from(ino: INodeNo) -> Self {
        Subject::Inode(ino.0)
    }
}

/// The way to `.dlio` leads through the root.
pub(super) fn is_root_s_getattr(seen: &ObservedCall) -> bool {
    matches!((seen.what.op, &seen.on), (Op::Getattr, Subject::Inode(ROOT)))
}
