//! The program under the names that mount(8) and umount(8) look for: `mount.fuse.dlio` and `umount.fuse.dlio`.
//!
//! `mount -t fuse.dlio /hdd /mnt/train -o fast=/optane`, a line of fstab and `umount /mnt/train` end here, with
//! arguments and exit codes as those two have them: 0 done, 1 wrong arguments, 32 it failed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgAction, Parser};

use super::options::MountOptions;
use super::outcome::{Exit, Failure, Outcome, complain, one_line, usage_line};
use super::remount::remount;
use super::{mount, umount};

/// What mount(8) calls a failed mount.
const FAILED: u8 = 32;
/// What it calls wrong arguments.
const WRONG: u8 = 1;

/// The arguments as mount(8) gives them to its helpers.
#[derive(Debug, Parser)]
#[command(name = "mount.fuse.dlio", version, about = "Mount for mount(8): see dlio-fs mount --help")]
struct MountHelper {
    /// The slow tier
    slow: PathBuf,
    mountpoint: PathBuf,
    /// Ignore unknown options
    #[arg(short = 's')]
    sloppy: bool,
    /// Do everything except mount
    #[arg(short = 'f')]
    fake: bool,
    #[arg(short = 'n', action = ArgAction::Count, hide = true)]
    no_mtab: u8,
    #[arg(short = 'v', action = ArgAction::Count, hide = true)]
    verbose: u8,
    /// fast=DIR, config=FILE, any key of the configuration, ro, nosuid, nodev, noexec, noatime, remount
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    #[arg(short = 't', hide = true)]
    fs_type: Option<String>,
}

/// The arguments as umount(8) gives them.
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.dlio", version, about = "Drain and unmount for umount(8): see dlio-fs umount --help")]
struct UmountHelper {
    mountpoint: PathBuf,
    /// Detach the mount at once, without draining; it ends with its last user
    #[arg(short = 'l')]
    lazy: bool,
    /// End the mount even if it is in use or does not answer, without draining
    #[arg(short = 'f')]
    force: bool,
    /// Accepted and ignored: a mount that cannot be unmounted stays as it is
    #[arg(short = 'r', hide = true)]
    read_only: bool,
    #[arg(short = 'n', action = ArgAction::Count, hide = true)]
    no_mtab: u8,
    #[arg(short = 'v', action = ArgAction::Count, hide = true)]
    verbose: u8,
    #[arg(short = 't', hide = true)]
    fs_type: Option<String>,
}

/// Acts as the mount helper whose name the program was called by; `None` if it was called by its own name.
pub(super) fn run(called_as: &Path) -> Option<ExitCode> {
    let arguments = std::env::args_os();
    match called_as.file_name()?.to_str()? {
        "mount.fuse.dlio" => Some(finish(parse(arguments).and_then(|parsed| parsed.map_or(Ok(Exit::Done), mount_it)))),
        "umount.fuse.dlio" => {
            Some(finish(parse(arguments).and_then(|parsed| parsed.map_or(Ok(Exit::Done), unmount_it))))
        }
        _ => None,
    }
}

/// `None` if help was requested, which is printed.
fn parse<T: Parser>(arguments: impl Iterator<Item = OsString>) -> Result<Option<T>, Failure> {
    match T::try_parse_from(arguments) {
        Ok(parsed) => Ok(Some(parsed)),
        Err(error) if !error.use_stderr() => match error.print() {
            Ok(()) => Ok(None),
            Err(e) => Err(Failure::new(Exit::Failure, format!("cannot write to standard output: {e}"))),
        },
        Err(error) => Err(Failure::new(Exit::Usage, usage_line(&error, "dlio-fs"))),
    }
}

fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        // The files left on the fast tier were listed; umount(8) only knows done or not done.
        Ok(Exit::Failure) => ExitCode::from(FAILED),
        Ok(Exit::Usage) => ExitCode::from(WRONG),
        Ok(_) => ExitCode::SUCCESS,
        Err(Failure { exit, message }) => {
            complain(one_line(&message));
            ExitCode::from(if exit == Exit::Usage { WRONG } else { FAILED })
        }
    }
}

fn mount_it(helper: MountHelper) -> Outcome {
    let options = MountOptions::sort(&helper.options, helper.sloppy).map_err(Failure::usage)?;
    if options.remount {
        return if helper.fake { Ok(Exit::Done) } else { remount(&helper.mountpoint, &options.vfs) };
    }
    let args = mount::MountArgs::for_helper(helper.mountpoint, helper.slow, options);
    if helper.fake { args.check() } else { mount::run(&args) }
}

fn unmount_it(helper: UmountHelper) -> Outcome {
    let how = match (helper.lazy, helper.force) {
        (_, true) => umount::How::Force,
        (true, false) => umount::How::Lazily,
        (false, false) => umount::How::Quietly,
    };
    umount::leave_mount(&helper.mountpoint, how)
}
