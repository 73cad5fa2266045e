//! Cases that the dice found, as short as they got (see [`shrink`](super::shrink)).

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::RenameMode::Replace;
use dlio_fs::tiers::disk::{NewAttr, Time};

use super::case::Case;
use super::ops::Op::{self, Advance, Create, Fail, FsyncDir, Prioritize, Rename, Run, SetAttr, SetXattr, Truncate};
use super::ops::Step::Publish;
use super::ops::path;
use super::toxic::Call::{Change, Look};
use super::toxic::Fails;

fn holds(seed: u64, ops: &[Op]) {
    let mut case = Case::new(seed);
    if let Err(why) = case.run_these(ops) {
        panic!("{}\n{why}", case.trace.join("\n"));
    }
}

/// A file with two names was truncated on the slow tier, and the look behind it failed. With a change of times pending, its size was that from
/// before for as long as that was, with fewer bytes behind it.
#[test]
fn a_file_that_is_truncated_in_place_has_its_size_whatever_fails() {
    for at in 0..40 {
        let later = NewAttr { mtime: Some(Time { sec: 827, nsec: 4 }), ..NewAttr::default() };
        holds(
            23_853,
            &[
                SetAttr { path: path("LONGnnn%C3"), new: later },
                Fail(Fails { call: Look, after: at, errno: Errno::EIO }),
                Truncate { path: path("LONGnnn%C3"), len: 5000 },
            ],
        );
    }
}

/// An attribute was removed, and the slow tier refused that once for want of room: it was taken for an attribute that the tier never takes, and
/// came back.
#[test]
fn a_removed_attribute_does_not_come_back_after_a_refusal() {
    for after in 1..20 {
        holds(
            27_274,
            &[
                SetXattr { path: path("LONGnnn%C3"), key: 0, value: None, create: false, replace: false },
                Advance { ms: 3000 },
                Fail(Fails { call: Change, after, errno: Errno::ENOSPC }),
                Run(Publish),
                Run(Publish),
                Op::Look,
            ],
        );
    }
}

/// A file was open and had been committed by an fsync of its directory; another one was renamed over it, and given another length. The front of
/// the queue waited for a copy of the other one's first version, which the drain did not make: by itself that version was superseded.
/// Nothing got to the slow tier any more.
#[test]
fn a_version_that_only_the_batch_at_the_front_needs_is_copied() {
    for sync in [FsyncDir { path: path("") }, Prioritize { path: path("a") }] {
        holds(
            11_696,
            &[
                Create { slot: 3, path: path("a"), mode: 0o755, umask: 0, uid: 0 },
                sync,
                Create { slot: 2, path: path("b"), mode: 0o644, umask: 0, uid: 0 },
                Rename { from: path("b"), to: path("a"), mode: Replace },
                Truncate { path: path("a"), len: 4096 },
            ],
        );
    }
}
