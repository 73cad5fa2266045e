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

/// The path leads to nothing, or to something else, or something else is where a directory above it was.
pub(crate) fn is_elsewhere(error: &io::Error) -> bool {
    use Errno::{ELOOP, ENOENT, ENOTDIR, ESTALE};
    matches!(error.raw_os_error().map(Errno::from_raw), Some(ENOENT | ESTALE | ENOTDIR | ELOOP))
}

pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The attribute is larger than this file system stores.
pub(crate) fn has_no_such_room(e: &io::Error) -> bool {
    matches!(e.raw_os_error().map(Errno::from_raw), Some(Errno::E2BIG | Errno::ERANGE))
}

/// The request is not at fault, the disk below is.
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

/// Why the order is held, and what an operator can do about it.
pub(crate) fn with_remedy(error: &Error) -> String {
    let again = "it is tried again until it succeeds";
    let remedy = match (error, error.errno()) {
        // It carries its own remedy.
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
        (_, Errno::ENAMETOOLONG) => "the slow tier does not take this name: rename the file in the mount",
        _ => again,
    };
    let last = match error {
        // A silent tier will answer again. Anything else may be refused for good.
        Error::Io { on_fast: false, .. } if !is_silence(error) => "; or, as the last resort, dlio-fs set-aside PATH",
        _ => "",
    };
    format!("{error}; {remedy}{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
