//! Cases that the dice found, as short as they got (see [`shrink`](super::shrink)).

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::RenameMode::{Exchange, NoReplace, Replace};
use dlio_fs::tiers::disk::{NewAttr, Time};

use super::case::Case;
use super::ops::Op::{
    self, Advance, Create, Fail, FsyncDir, Open, Prioritize, Rename, Run, SetAttr, SetXattr, Symlink, Truncate, Unlink,
    Write,
};
use super::ops::Step::{Evict, Publish, Seal};
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

/// So it was with one that is open and written in place.
#[test]
fn a_file_that_is_written_in_place_has_its_size_whatever_fails() {
    let fails = |after| Fail(Fails { call: Look, after, errno: Errno::EIO });
    let make = |slot, name, mode| Create { slot, path: path(name), mode, umask: 0, uid: 0 };
    let rename = |from, to, mode| Rename { from: path(from), to: path(to), mode };
    let empty = |slot, name| Open { slot, path: path(name), write: true, truncate: true };
    for after in [8, 9, 10, 11] {
        holds(
            931,
            &[
                Op::Look,
                Symlink { path: path("LONGnnn%C3/%C3%A91"), target: path("a") },
                Run(Seal),
                Unlink { path: path("LONGnnn%C3/%C3%A91") },
                make(3, "%E2%80%AEc%1B/%C3%A91", 0o4755),
                Advance { ms: 3000 },
                Run(Publish),
                make(1, "a", 0o444),
                empty(2, "%C3%A91/%E2%80%AEc%1B/LONGnnn%C3"),
                rename("LONGnnn%C3", "%C3%A91/LONGnnn%C3/a", NoReplace),
                fails(after),
                empty(1, "%E2%80%AEc%1B"),
                Run(Publish),
                rename("%C3%A91", "a", Exchange),
                Symlink { path: path("%E2%80%AEc%1B/%E2%80%AEc%1B"), target: path("LONGnnn%C3/%E2%80%AEc%1B") },
                Unlink { path: path("%C3%A91/a") },
                rename("%C3%A91", "a", NoReplace),
                Write { slot: 1, at: Some(12288), len: 4096, kill_privileges: false },
                Run(Evict),
                Op::Look,
            ],
        );
    }
}

/// And with one whose handle was written to before, and whose size is asked for by name.
#[test]
fn the_size_of_a_file_that_was_written_in_place_is_looked_up_again() {
    for after in 0..6 {
        let later = NewAttr { mtime: Some(Time { sec: 631, nsec: 813_119_234 }), ..NewAttr::default() };
        holds(
            5713,
            &[
                Open { slot: 0, path: path("LONGnnn%C3/%E2%80%AEc%1B"), write: true, truncate: false },
                Write { slot: 0, at: Some(5), len: 4096, kill_privileges: false },
                SetAttr { path: path("LONGnnn%C3/%E2%80%AEc%1B"), new: later },
                Advance { ms: 70_000 },
                Fail(Fails { call: Look, after, errno: Errno::EIO }),
                Op::Look,
                Write { slot: 0, at: Some(8192), len: 10, kill_privileges: false },
                Op::Look,
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

/// Two names of one file were exchanged, and the link that was made for that in `tmp` could not be removed: until the next start the file showed a
/// name more than it had.
#[test]
fn a_link_that_cannot_be_removed_from_tmp_is_no_name() {
    for after in 1..30 {
        holds(
            34_676_958_000_520,
            &[
                SetXattr {
                    path: path("%E2%80%AEc%1B/%C3%A91"),
                    key: 0,
                    value: Some(69),
                    create: false,
                    replace: false,
                },
                Rename { from: path("%E2%80%AEc%1B/a"), to: path("a"), mode: Exchange },
                Op::Room { bytes: 0 },
                Fail(Fails { call: Change, after, errno: Errno::ETIMEDOUT }),
                Run(Publish),
            ],
        );
    }
}
