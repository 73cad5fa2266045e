//! `dlio-fs plan`: predicts what staging would save, before anything is copied.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::Args;

use super::outcome::{Exit, Failure, Outcome, complain, say};
use super::{client, report};
use crate::error::Error;
use crate::path::{Show as _, unescape};
use crate::report::plan::{PlannedFile, StagePlan};

/// Choose files to stage, and predict the saving per epoch, from a recording
///
/// It chooses the files that save the most seconds per byte, until the room is used up. SOURCE is as for `dlio-fs
/// report`: a mount point, a recording, or the directory that `trace` names. Nothing is copied; `dlio-fs stage --plan`
/// does that.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs plan /mnt/train                       # for the room that there is
  dlio-fs plan /mnt/train --window epoch-3 --size 200GiB
  dlio-fs plan run.dlio --list --size 20GiB | dlio-fs stage --list - /mnt/train
  dlio-fs plan /mnt/train --json > plan.json
  dlio-fs stage --plan plan.json /mnt/train --wait
  dlio-fs advise /mnt/train                     # an epoch later: what it saved")]
pub(super) struct PlanArgs {
    /// A mount point or a directory on it, or recordings or a directory of them
    #[arg(value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// Consider only this closed window of the mount
    #[arg(long, value_name = "NAME")]
    window: Option<String>,
    /// The room that staged files may take; default: the room on the mount's fast tier, or unlimited for a recording
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Print JSON
    #[arg(long, conflicts_with = "list")]
    json: bool,
    /// Print only the paths, for `stage --list`
    #[arg(long)]
    list: bool,
}

pub(super) fn run(args: &PlanArgs) -> Outcome {
    let mount = match &*args.sources {
        [] => Some(client::the_mount(None)?),
        [one] if report::is_mount(one)? => Some(client::the_mount(Some(one))?),
        _ => None,
    };
    let staging = mount.as_deref().map(StagingRoom::of).transpose()?;
    let size = args.size.map(|size| size.as_u64()).or(staging.as_ref().map(|staging| staging.bytes));
    let mut recording = report::read(&args.sources, args.window.as_deref())?;
    let staged = mount.as_deref().filter(|_| staging.is_some_and(|staging| staging.has_copies));
    let plan = StagePlan::of(&mut recording, size, |path| staged.is_some_and(|mount| is_staged(mount, path)));
    match (args.json, args.list) {
        (true, _) => say(plan.json().trim_end())?,
        (_, true) => list(&plan.files)?,
        _ => say(plan.text().trim_end())?,
    }
    recording.flaws.iter().for_each(|flaw| complain(format!("the recording: {flaw}")));
    Ok(Exit::Done)
}

/// The room of a mount for copies of slow files.
struct StagingRoom {
    /// That existing copies take, and that is left.
    bytes: u64,
    has_copies: bool,
}

impl StagingRoom {
    fn of(mountpoint: &Path) -> Result<StagingRoom, Failure> {
        let bad =
            |what: String| Error::refused(format!(".dlio/staging.json: {what}"), "use the dlio-fs that made the mount");
        let text = client::read(mountpoint, "staging.json")?;
        let staging: serde_json::Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        let figure = |name: &str| staging[name].as_u64().ok_or_else(|| bad(format!("it tells no {name}")));
        let copies = figure("copies_bytes")?;
        Ok(StagingRoom { bytes: figure("room")?.saturating_add(copies), has_copies: copies > 0 })
    }
}

/// Whether the mount has a copy of this file. `path`: from the mount's root, escaped.
fn is_staged(mountpoint: &Path, path: &str) -> bool {
    let Some(path) = unescape(path) else { return false };
    let file = mountpoint.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(&path)));
    xattr::get(file, "user.dlio.state").is_ok_and(|state| state.as_deref() == Some(b"staged"))
}

/// Raw paths, one per line, but on a terminal. A name with a newline in it cannot be printed that way.
fn list(files: &[PlannedFile]) -> Result<(), Failure> {
    let (mut lines, mut left_out) = (Vec::new(), 0);
    let is_read_by_people = io::stdout().is_terminal();
    for path in files.iter().filter_map(|file| unescape(&file.path)) {
        if path.contains(&b'\n') {
            left_out += 1;
        } else {
            match is_read_by_people {
                true => lines.extend_from_slice(OsStr::from_bytes(&path).shown().to_string().as_bytes()),
                false => lines.extend_from_slice(&path),
            }
            lines.push(b'\n');
        }
    }
    match io::stdout().write_all(&lines) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            return Err(Failure::new(Exit::Failure, format!("cannot write to standard output: {e}")));
        }
        _ => {}
    }
    if left_out > 0 {
        complain(format_args!("{left_out} paths with a newline in them are left out; use --json and stage --plan"));
    }
    Ok(())
}
