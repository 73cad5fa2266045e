//! What an error of a tier means.

use std::io;

use crate::error::{Errno, Error};

pub(crate) fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.raw_os_error(), Some(libc) if libc == Errno::ENOENT as i32 || libc == Errno::ENOTDIR as i32) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// The path leads to nothing or to another node, or a directory above it is gone or was replaced.
pub(crate) fn is_elsewhere(error: &io::Error) -> bool {
    use Errno::{ELOOP, ENOENT, ENOTDIR, ESTALE};
    matches!(error.raw_os_error().map(Errno::from_raw), Some(ENOENT | ESTALE | ENOTDIR | ELOOP))
}

pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether an error of the engine is a lack of room. Later events may make room.
pub(crate) fn lacks_room(error: &Error) -> bool {
    matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT)
}

/// The attribute is larger than this file system stores.
pub(crate) fn has_no_such_room(e: &io::Error) -> bool {
    matches!(e.raw_os_error().map(Errno::from_raw), Some(Errno::E2BIG | Errno::ERANGE))
}

/// Whether the disk is at fault, not the request.
pub(crate) fn is_broken(error: &io::Error) -> bool {
    const CODES: [Errno; 5] = [Errno::EIO, Errno::ENODEV, Errno::ENXIO, Errno::EROFS, Errno::EUCLEAN];
    error.raw_os_error().is_some_and(|code| CODES.contains(&Errno::from_raw(code)))
}

/// The slow tier does not answer, as opposed to refusing.
pub(crate) fn is_silence(error: &Error) -> bool {
    use Errno::{EHOSTDOWN, EHOSTUNREACH, EIO, ENODEV, ENOTCONN, ENXIO, ESTALE, ETIMEDOUT};
    let silent = [EIO, ESTALE, ENOTCONN, ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH, ENXIO, ENODEV];
    matches!(error, Error::Io { on_fast: false, .. }) && silent.contains(&error.errno())
}

/// Where the slow tier refuses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedAt {
    /// In our own `tmp`.
    Tmp,
    /// In the tree, at the names of an event.
    Tree,
    /// In a part of the tree, its `tmp` included.
    Part,
}

/// Whether a refusal holds only the user whose event it meets (P15): its cause is in a part of the tree or in one
/// user's directory, file or quota. A refusal by the whole tier, or a lack in the daemon, holds all users.
pub(crate) fn holds_its_user(error: &Error, at: RefusedAt) -> bool {
    use Errno::{EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS, EUCLEAN};
    match error {
        Error::Io { on_fast: true, .. } | Error::Posix(_) | Error::NeedSlow | Error::SlowTimeout => false,
        Error::Io { .. } if matches!(error.errno(), EMFILE | ENFILE | ENOMEM) => false,
        Error::Refused { .. } | Error::Io { .. } if at == RefusedAt::Part => true,
        Error::Refused { .. } => false,
        Error::Io { .. } if matches!(error.errno(), EDQUOT | EFBIG) => true,
        Error::Io { .. } if at == RefusedAt::Tmp || is_silence(error) => false,
        Error::Io { .. } => !matches!(error.errno(), ENOSPC | EROFS | EUCLEAN),
    }
}

/// Why the order is held, and what an operator can do about it.
pub(crate) fn with_remedy(error: &Error) -> String {
    let again = "it is tried again until it succeeds";
    let remedy = match (error, error.errno()) {
        // The error has its own remedy.
        (Error::Refused { .. }, _) => return error.to_string(),
        (Error::Io { on_fast: true, .. }, Errno::ENOSPC | Errno::EDQUOT) => {
            "free space or raise the quota on the fast tier"
        }
        (Error::Io { on_fast: true, .. }, Errno::EIO) => {
            "the fast tier fails (see dmesg): write the file under a new name"
        }
        (Error::Io { on_fast: true, .. }, _) => again,
        (_, Errno::ENOSPC | Errno::EDQUOT) => "free space or raise the quota on the slow tier",
        (_, Errno::EACCES | Errno::EPERM) => {
            "let dlio-fs write to the slow tier: mode and owner of the directory, chattr -i, no_root_squash"
        }
        (_, Errno::EROFS) => "let dlio-fs write to the slow tier: remount its file system for writing",
        (_, Errno::EIO) => {
            "it is tried again; if the slow tier's file system was shut down (see dmesg), unmount with dlio-fs umount --now, unmount that file system and mount it again, then mount this"
        }
        (_, Errno::ENOTDIR | Errno::ELOOP) => {
            "something else has the name of its directory on the slow tier: move it away"
        }
        (_, Errno::EBUSY) => "a file system is mounted over its directory on the slow tier: unmount it",
        (_, Errno::ENAMETOOLONG) => "the slow tier does not take this name: rename the file in the mount",
        _ => again,
    };
    let last = match error {
        // A silent tier will answer again. Any other error may be permanent.
        Error::Io { on_fast: false, .. } if !is_silence(error) => "; or, as the last resort, dlio-fs set-aside PATH",
        _ => "",
    };
    format!("{error}; {remedy}{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each cause: whether it holds one user where it is met in `tmp`, in the tree, in a part of the tree.
    #[test]
    fn a_refusal_holds_its_user_where_its_reason_lies_with_one() {
        let table: [(Errno, [bool; 3]); 16] = [
            (Errno::EACCES, [false, true, true]),
            (Errno::EPERM, [false, true, true]),
            (Errno::EBUSY, [false, true, true]),
            (Errno::EAGAIN, [false, true, true]),
            (Errno::ENOTDIR, [false, true, true]),
            (Errno::ENAMETOOLONG, [false, true, true]),
            (Errno::EDQUOT, [true, true, true]),
            (Errno::EFBIG, [true, true, true]),
            (Errno::ENOSPC, [false, false, true]),
            (Errno::EROFS, [false, false, true]),
            (Errno::EIO, [false, false, true]),
            (Errno::ENOTCONN, [false, false, true]),
            (Errno::ETIMEDOUT, [false, false, true]),
            (Errno::ENOMEM, [false, false, false]),
            (Errno::EMFILE, [false, false, false]),
            (Errno::EUCLEAN, [false, false, true]),
        ];
        const PLACES: [RefusedAt; 3] = [RefusedAt::Tmp, RefusedAt::Tree, RefusedAt::Part];
        for (errno, wanted) in table {
            let on_slow = Error::io("publish", "a", errno.into());
            assert_eq!(PLACES.map(|at| holds_its_user(&on_slow, at)), wanted, "{errno}");
            let on_fast = Error::io_on_fast("open", "object", errno.into());
            assert_eq!(PLACES.map(|at| holds_its_user(&on_fast, at)), [false; 3], "{errno} on the fast tier");
        }
        let refused = Error::refused("what", "remedy");
        assert_eq!(PLACES.map(|at| holds_its_user(&refused, at)), [false, false, true]);
    }

    #[test]
    fn what_fails_on_the_fast_tier_is_not_told_as_the_slow_one_s() {
        let (fast, slow) = (
            |errno: Errno| Error::io_on_fast("append", "log", errno.into()),
            |errno: Errno| Error::io("append", "log", errno.into()),
        );
        assert!(is_silence(&slow(Errno::EIO)) && !is_silence(&fast(Errno::EIO)));
        for errno in [Errno::ENOSPC, Errno::EDQUOT, Errno::EIO] {
            let text = with_remedy(&fast(errno));
            assert!(text.starts_with("append log on the fast tier: ") && !text.contains("slow tier"), "{text}");
        }
        let remedy = "; free space or raise the quota on the slow tier; or, as the last resort, dlio-fs set-aside PATH";
        assert!(with_remedy(&slow(Errno::ENOSPC)).ends_with(remedy));
        let refused = Error::refused("what", "its own remedy");
        assert_eq!(with_remedy(&refused), "what; its own remedy");
    }
}
