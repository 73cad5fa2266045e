//! Asks a mount, or another file system that may hang, with a bounded wait.

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;

/// Asks the daemon of a mount: ENOTCONN if it is gone, EACCES if this user may not use the mount. Attributes alone are
/// not enough: the kernel may have them cached long after the daemon has died. Nor are statistics, which every user can
/// read. A call that is cut off because the daemon dies meanwhile gets ECONNABORTED.
pub(super) fn ask(mountpoint: &Path) -> io::Result<()> {
    let told = statvfs(mountpoint).map_err(io::Error::from).and_then(|_| mountpoint.metadata());
    told.map(drop).map_err(|e| match e.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ECONNABORTED) => Errno::ENOTCONN.into(),
        _ => e,
    })
}

/// Runs `f` on a thread of its own and gives up waiting after `limit`: a call into a hung file system cannot be
/// interrupted, only abandoned.
pub fn within<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, answer) = mpsc::sync_channel(1);
    let work = Arc::new(Mutex::new(Some(f)));
    let to_do = Arc::clone(&work);
    let started = std::thread::Builder::new().spawn(move || {
        let f = to_do.lock().take();
        // The caller may have given up.
        f.into_iter().for_each(|f| drop(done.send(f())));
    });
    match started {
        Ok(_) => answer.recv_timeout(limit).ok(),
        // A limit on threads or address space: better a wait without a bound than an abort.
        Err(_) => {
            let f = work.lock().take();
            f.map(|f| f())
        }
    }
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
