//! Asking what may hang: a mount, or anything else in a file system. Nobody waits longer than they want to.

use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

/// Asks the daemon of a mount: ENOTCONN if it is gone, EACCES if it is not for this user. Attributes alone will not do:
/// the kernel may know them by itself, long after the daemon has died. Nor will statistics: everybody gets some. Whom the kernel
/// answers because the daemon dies meanwhile gets ECONNABORTED.
pub(super) fn ask(mountpoint: &Path) -> io::Result<()> {
    let told = statvfs(mountpoint).map_err(io::Error::from).and_then(|_| mountpoint.metadata());
    told.map(drop).map_err(|e| match e.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ECONNABORTED) => Errno::ENOTCONN.into(),
        _ => e,
    })
}

/// Runs `f` on a thread of its own and gives up waiting after `limit`: a call into a hung file system cannot be
/// interrupted, only left behind.
pub fn within<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, answer) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        // Nobody may be waiting any more.
        drop(done.send(f()));
    });
    answer.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_given_up() {
        let (hold, held) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || held.recv().is_ok()), None);
        drop(hold);
        assert_eq!(within(Duration::from_secs(15), || 7), Some(7));
    }
}
