//! `-o remount`: changes the flags of an existing mount.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::outcome::{Failure, Outcome};
use crate::error::{Context, Error};
use crate::mount::Daemon;
use crate::path::Show as _;

/// Lets mount(8) change the flags: the kernel does it without the daemon.
pub(super) fn remount(mountpoint: &Path, flags: &[String]) -> Outcome {
    let to_write =
        flags.iter().rev().find(|flag| matches!(flag.as_str(), "ro" | "rw")).is_some_and(|flag| flag == "rw");
    let canonical = mountpoint.canonicalize().at("find", mountpoint.shown())?;
    if to_write && Daemon::of(&canonical).is_some_and(|daemon| !daemon.slow_is_writable()) {
        let what = format!(
            "{} stays read-only: its slow tier could not be written, or its fast tier was full, when it was mounted",
            canonical.shown()
        );
        let remedy = "make the slow tier writable, or make room on a full fast tier, unmount, and mount again";
        return Err(Error::refused(what, remedy).into());
    }
    let mut command = Command::new("mount");
    command.args(["-i", "-o", &["remount".to_owned()].iter().chain(flags).cloned().collect::<Vec<_>>().join(",")]);
    // Returns only if it fails.
    let error = command.arg("--").arg(&canonical).exec();
    Err(Failure::from(Error::io("run", "mount", error)))
}
