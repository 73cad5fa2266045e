//! `dlio-fs report`: writes what was observed as a document.

mod outlet;

use std::fs::{self, File};
use std::io::{self, Cursor};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::Args;

use outlet::FileOutlet;

use super::client::{self, ControlCall};
use super::outcome::{Exit, Failure, Outcome, unusable};
use crate::error::{Context, Error};
use crate::mount;
use crate::path::Show as _;
use crate::report::asked::DocumentOptions;
use crate::report::formats::Format;
use crate::stats::recording::{Recording, Source};

/// Report what was observed in a mount, in one of its windows, or in recordings
///
/// SOURCE is a mount point, a recording (a copy of a mount's `.dlio/recording`, or a file written for `trace`), or the
/// directory that `trace` names, for its latest mount. Default: the only mount.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs report /mnt/train                    # what matters, on one screen
  dlio-fs report /mnt/train --all | less
  dlio-fs report /mnt/train -o report.html
  dlio-fs report /mnt/train --window epoch-3 -o epoch-3.html
  dlio-fs report run.dlio --format json | jq .cost
  dlio-fs report run.dlio --format chrome -o run.json.gz")]
pub(super) struct ReportArgs {
    /// A mount point or a directory on it, or recordings or a directory of them
    #[arg(value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// Report only this closed window of the mount
    #[arg(long, value_name = "NAME")]
    window: Option<String>,
    /// The format; default: by the ending of FILE, or text without FILE
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write to this file, compressed if its name ends in `.gz`
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// text: everything, and not only what fits on a screen
    #[arg(long)]
    all: bool,
    /// chrome: start another file (`run-1.json`, ...) when one reaches this size
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    split: ByteSize,
}

pub(super) fn run(args: &ReportArgs) -> Outcome {
    let format = format(args)?;
    let mut recording = read(&args.sources, args.window.as_deref())?;
    write(args, format, &mut recording)?;
    for flaw in &recording.flaws {
        super::outcome::complain(format!("the recording: {flaw}"));
    }
    Ok(Exit::Done)
}

/// Checks the arguments before anything is read.
fn format(args: &ReportArgs) -> Result<Format, Failure> {
    let by_ending = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Format::of_name(name).ok_or_else(|| {
            let remedy = "add --format, or end it with .html, .md, .json, .csv, .txt, .darshan or .pfw, also with .gz";
            unusable("--output", file, &"its ending names no format", remedy)
        })
    };
    match (args.format, &args.output) {
        (Some(format), _) => Ok(format),
        (None, Some(file)) => by_ending(file),
        (None, None) => Ok(Format::Text),
    }
}

/// The recording that the arguments name.
pub(in crate::cli) fn read(sources: &[PathBuf], window: Option<&str>) -> Result<Recording, Failure> {
    let (named, sources) = match sources {
        [] => of_mount(&client::the_mount(None)?, window)?,
        [one] if is_mount(one)? => of_mount(&client::the_mount(Some(one))?, window)?,
        [one] if one.is_dir() => (one.shown().to_string(), files(&latest_of(one)?)?),
        several => (several[0].shown().to_string(), files(several)?),
    };
    Recording::read(sources).map_err(|why| Failure::new(Exit::Failure, format!("cannot read {named}: {why}")))
}

type Sources = Vec<Box<dyn Source>>;

/// A mount of ours, or a directory below one that contains no recordings.
pub(in crate::cli) fn is_mount(path: &Path) -> Result<bool, Error> {
    let mounts = mount::mounts()?;
    let absolute = std::path::absolute(path).at("find", path.shown())?;
    let is_ours = mount::mounted_at(&mounts, &absolute).is_some_and(mount::MountEntry::is_ours);
    let is_below =
        || client::mount_of(path).is_ok() && mount::latest_recording(path).is_ok_and(|found| found.is_empty());
    Ok(is_ours || path.is_dir() && is_below())
}

fn of_mount(mountpoint: &Path, window: Option<&str>) -> Result<(String, Sources), Failure> {
    let bytes = match window {
        None => {
            let path = mountpoint.join(".dlio/recording");
            fs::read(&path).at("read", path.shown())?
        }
        Some(name) => ControlCall::ask(mountpoint, &format!("window recording {name}"))?.bytes()?,
    };
    if let Some(why) = bytes.strip_prefix(b"error: ") {
        return Err(Failure::new(Exit::Failure, String::from_utf8_lossy(why).trim_end()));
    }
    Ok((mountpoint.shown().to_string(), vec![Box::new(Cursor::new(bytes))]))
}

fn files(paths: &[PathBuf]) -> Result<Sources, Failure> {
    let remedy = "name a mount, a recording, or the directory that `trace` names";
    let open = |path: &PathBuf| match File::open(path) {
        Ok(file) => Ok(Box::new(file) as Box<dyn Source>),
        Err(e) => Err(unusable("SOURCE", path, &e, remedy)),
    };
    paths.iter().map(open).collect()
}

/// The recording of the latest mount in a directory.
fn latest_of(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let found = mount::latest_recording(dir)?;
    match found.is_empty() {
        true => Err(Failure::new(Exit::Failure, format!("there is no recording in {}", dir.shown()))),
        false => Ok(found),
    }
}

fn write(args: &ReportArgs, format: Format, recording: &mut Recording) -> Result<(), Failure> {
    if let Some(output) = &args.output
        && let Some(read) = args.sources.iter().find(|read| is_same(read, output))
    {
        return Err(Failure::new(Exit::Failure, format!("cannot write to {}: it is an input", read.shown())));
    }
    let asked = DocumentOptions { all: args.all, split: args.split.as_u64() };
    let mut out = FileOutlet::new(args.output.as_deref(), format.is_tables());
    let written = format.write(recording, &asked, &mut out).and_then(|()| out.end());
    match (written, &args.output) {
        (Err(e), None) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Failure, format!("cannot write to standard output: {e}")))
        }
        (Err(e), Some(path)) => {
            let remedy = match e.kind() {
                io::ErrorKind::NotFound => "make the directory that it is to be in",
                _ => "name another file",
            };
            Err(Failure { exit: Exit::Failure, ..unusable("--output", path, &e, remedy) })
        }
        _ => Ok(()),
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}
