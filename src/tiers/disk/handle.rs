//! The handle by which a file system finds a file again: its inode number, and what distinguishes it from earlier files
//! with that number.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;
use xxhash_rust::xxh3::xxh3_64;

/// The longest that the kernel gives (MAX_HANDLE_SZ).
const LONGEST: usize = 128;

/// `struct file_handle` of `fcntl.h`, with room for the longest.
#[repr(C)]
struct RawHandle {
    len: libc::c_uint,
    kind: libc::c_int,
    bytes: [u8; LONGEST],
}

/// As [`Stat::birth`](super::Stat::birth): 0 if the file system has no handles, or a sandbox forbids the call.
pub(super) fn birth(file: BorrowedFd<'_>) -> u32 {
    handle(file).map_or(0, |bytes| number(&bytes))
}

/// Never 0, which means unknown.
pub(super) fn number(bytes: &[u8]) -> u32 {
    (xxh3_64(bytes) as u32).max(1)
}

#[expect(unsafe_code, reason = "no library that is kept has this call")]
fn handle(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut handle = RawHandle { len: LONGEST as libc::c_uint, kind: 0, bytes: [0; LONGEST] };
    let mut mount: libc::c_int = 0;
    // SAFETY: the kernel reads the empty name and `len`, and writes at most that many bytes behind it, and one int; all
    // of it lives until the call returns, and so does the descriptor.
    let done = unsafe {
        let (name, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
        libc::syscall(libc::SYS_name_to_handle_at, file.as_raw_fd(), name, &raw mut handle, &raw mut mount, flags)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let kind = handle.kind.to_le_bytes();
    Ok(kind.into_iter().chain(handle.bytes.into_iter().take(handle.len as usize)).collect())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;

    use super::birth;

    #[test]
    fn a_handle_is_of_one_file_under_whatever_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| {
            let path = dir.path().join(name);
            birth(File::options().create(true).append(true).open(path).expect("open").as_fd())
        };
        let (one, other) = (at("one"), at("other"));
        fs::rename(dir.path().join("one"), dir.path().join("moved")).expect("rename");
        // Some file systems have none.
        assert!(one == 0 || (one != other && at("moved") == one && at("one") != one), "{one} {other}");
    }
}
