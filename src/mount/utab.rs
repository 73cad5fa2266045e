//! Makes umount(8) call our helper, and so drain.
//!
//! Given an absolute path, umount(8) run by root asks statfs for the type only, which says "fuse" for every FUSE file
//! system, and would remove the mount without `umount.fuse.dlio`. It consults the table of mounts if its library has
//! its own line for the mount point (`/run/mount/utab`). As in libfuse, that line is written by a mount(8) that mounts
//! nothing. Without it only the draining is lost, so no failure here stops a mount.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::geteuid;
use tracing::debug;

use super::table::{mounted_at, mounts};

/// Called before any process is told that the mount is there.
pub(super) fn register(source: &Path, mountpoint: &Path) {
    if geteuid().is_root() {
        // A killed daemon may have left its line.
        remove(mountpoint);
        let arguments = ["--types", "fuse.dlio", "-o", "uhelper=fuse.dlio", "--"].map(OsStr::new);
        run("mount", arguments.into_iter().chain([source.as_os_str(), mountpoint.as_os_str()]));
    }
}

/// Called once the mount is gone.
pub(super) fn forget(source: &Path, mountpoint: &Path) {
    let there_again = || mounts().is_ok_and(|all| mounted_at(&all, mountpoint).is_some_and(|mount| mount.is_ours()));
    if !geteuid().is_root() || there_again() {
        return;
    }
    remove(mountpoint);
    // Another program mounted here meanwhile, and we may have removed its line.
    if there_again() {
        register(source, mountpoint);
    }
}

fn remove(mountpoint: &Path) {
    run("umount", [mountpoint.as_os_str()].into_iter());
}

/// Changes only the library's table, and looks at neither path: the daemon's own mount must not be asked.
fn run<'a>(program: &str, arguments: impl Iterator<Item = &'a OsStr>) {
    let mut command = Command::new(program);
    command.args(["--fake", "--internal-only", "--no-canonicalize"]).args(arguments);
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match done {
        Ok(status) if status.success() => {}
        Ok(status) => debug!(program, %status, "umount(8) may leave this mount without draining"),
        Err(error) => debug!(program, %error, "umount(8) may leave this mount without draining"),
    }
}
