//! `dlio-fs stage`: copies slow files to the fast tier, and shows and controls these jobs.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::client::{self, ControlCall, Said};
use super::outcome::{Exit, Failure, Outcome, complain, say, unusable};
use crate::error::Error;
use crate::path::{Show as _, escape, harmless, readable};
use crate::report::plan::StagePlan;
use crate::stats::plans::Promise;
use crate::stats::staging::Staging;

/// Copy slow files to the fast tier, so that they are read from there
///
/// Takes files, directories with everything below them, or quoted patterns ('/mnt/train/data/**/*.rec'). The job runs
/// in the background; --wait returns when every file was tried, with exit code 1 if one was not copied. Files for which
/// there is no room stay on the slow tier. Staging never takes the room of checkpoints. A copy is compared with the
/// slow file at the first open after a mount, then at most every `revalidate`; it survives a remount. `dlio-fs evict` deletes copies.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs stage /mnt/train/data --wait
  dlio-fs stage '/mnt/train/data/**/*.rec'
  dlio-fs stage --list epoch-2.txt /mnt/train    # in this order
  dlio-fs plan /mnt/train --json | dlio-fs stage --plan - /mnt/train
  dlio-fs stage --show                           # progress, and what failed
  dlio-fs stage --cancel 3 /mnt/train")]
pub(super) struct StageArgs {
    /// The files to copy; with --list or the options below, the mount point, optional if there is only one
    #[arg(value_name = "PATH", required_unless_present_any = ["list", "plan", "show", "cancel", "pause", "resume"])]
    paths: Vec<PathBuf>,
    /// Copy the files listed in FILE, one per line, in this order: paths from the mount's root or absolute; - is
    /// standard input
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Copy the files of a plan from `dlio-fs plan --json`, best saving per byte first; - is standard input. `dlio-fs
    /// advise` later reports the actual saving
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    plan: Option<PathBuf>,
    /// Return when every file was tried
    #[arg(long)]
    wait: bool,
    /// Show the jobs
    #[arg(long, group = "verb", conflicts_with_all = ["list", "plan", "wait"])]
    show: bool,
    /// Print JSON
    #[arg(long, requires = "show")]
    json: bool,
    /// Stop a job, by its number, or all
    #[arg(long, value_name = "JOB", group = "verb", conflicts_with_all = ["list", "plan", "wait"], value_parser = parse_job)]
    cancel: Option<String>,
    /// Pause all jobs
    #[arg(long, group = "verb", conflicts_with_all = ["list", "plan", "wait"])]
    pause: bool,
    /// Continue all jobs
    #[arg(long, group = "verb", conflicts_with_all = ["list", "plan", "wait"])]
    resume: bool,
}

pub(super) fn run(args: &StageArgs) -> Outcome {
    let verb = match &args.cancel {
        Some(job) => Some(format!("staging cancel {job}").trim_end_matches(" all").to_owned()),
        None if args.pause => Some("staging pause".to_owned()),
        None if args.resume => Some("staging resume".to_owned()),
        None => None,
    };
    if let Some(plan) = &args.plan {
        let words = planned(plan)?;
        return start(&only_mount(&args.paths)?, words.into_iter(), args.wait);
    }
    if args.show || verb.is_some() || args.list.is_some() {
        let mountpoint = only_mount(&args.paths)?;
        return match (verb, &args.list) {
            (Some(verb), _) => answer(&mountpoint, &verb).and_then(say).map(|()| Exit::Done),
            (None, Some(list)) => start(&mountpoint, listed(&mountpoint, list)?, args.wait),
            (None, None) => {
                let name = if args.json { "staging.json" } else { "staging" };
                say(client::read(&mountpoint, name)?.trim_end()).map(|()| Exit::Done)
            }
        };
    }
    let mut places = args.paths.iter().map(|path| place(path)).collect::<Result<Vec<_>, Failure>>()?;
    let mountpoint = places[0].0.clone();
    if let Some((other, _)) = places.iter().find(|(other, _)| *other != mountpoint) {
        let what = format!("{} and {} are different mounts; stage them one by one", mountpoint.shown(), other.shown());
        return Err(Failure::new(Exit::Usage, what));
    }
    start(&mountpoint, places.drain(..).map(|(_, wanted)| wanted), args.wait)
}

fn parse_job(text: &str) -> Result<String, String> {
    let is_number = text.parse::<u64>().is_ok();
    if is_number || text == "all" { Ok(text.to_owned()) } else { Err("write a job's number, or all".to_owned()) }
}

fn only_mount(paths: &[PathBuf]) -> Result<PathBuf, Failure> {
    match paths {
        [] => client::the_mount(None),
        [one] => client::the_mount(Some(one)),
        _ => Err(Failure::new(Exit::Usage, "name one mount point")),
    }
}

/// The mount of a path or pattern, and how `control` takes it.
fn place(path: &Path) -> Result<(PathBuf, String), Failure> {
    let is_pattern = path.as_os_str().as_bytes().iter().any(|byte| b"*?[{".contains(byte));
    if !is_pattern || path.symlink_metadata().is_ok() {
        return client::mount_of(path).map(|(mountpoint, below)| (mountpoint, client::escaped(&below)));
    }
    let has_wildcard = |part: &Path| part.as_os_str().as_bytes().iter().any(|byte| b"*?[{".contains(byte));
    let fixed = path.ancestors().find(|above| !has_wildcard(above)).unwrap_or(Path::new("."));
    let fixed = if fixed.as_os_str().is_empty() { Path::new(".") } else { fixed };
    let (mountpoint, below) = client::mount_of(fixed)?;
    let rest = path.strip_prefix(fixed).unwrap_or(path);
    let pattern = below.join(rest);
    Ok((mountpoint, format!("glob:{}", escape(pattern.as_os_str().as_bytes()))))
}

/// The paths in a list, as `control` takes them. Empty lines are left out.
fn listed(mountpoint: &Path, list: &Path) -> Result<impl Iterator<Item = String>, Failure> {
    let unreadable = |e| unusable("--list", list, &e, "name a readable file, one path a line, or - for standard input");
    let lines: Box<dyn BufRead> = if list == Path::new("-") {
        Box::new(BufReader::new(io::stdin()))
    } else {
        Box::new(BufReader::new(File::open(list).map_err(unreadable)?))
    };
    let lines = lines.split(b'\n').collect::<io::Result<Vec<_>>>().map_err(unreadable)?;
    let prefix = [mountpoint.as_os_str().as_bytes(), b"/"].concat();
    Ok(lines.into_iter().filter(|line| !line.is_empty()).map(move |line| {
        let below = line.strip_prefix(&prefix[..]).unwrap_or(&line);
        format!("/{}", escape(below))
    }))
}

/// The saving that a plan promises, and its paths, as `control` takes them.
fn planned(path: &Path) -> Result<Vec<String>, Failure> {
    let bytes = match path == Path::new("-") {
        true => {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).map(|_| bytes)
        }
        false => fs::read(path),
    };
    let unreadable = |why: &dyn Display| unusable("--plan", path, why, "name what dlio-fs plan --json has written");
    let plan = StagePlan::read(&bytes.map_err(|e| unreadable(&e))?).map_err(|why| unreadable(&why))?;
    if plan.files.is_empty() {
        return Err(Failure::new(Exit::Usage, "the plan names no file: nothing to stage"));
    }
    let Promise { before, after, bytes } = plan.promise;
    let promise = std::iter::once(format!("plan:{before}:{after}:{bytes}"));
    Ok(promise.chain(plan.files.into_iter().map(|file| file.path)).collect())
}

/// A command is one line of at most this length.
const LINE: usize = 8 << 10;

fn start(mountpoint: &Path, wanted: impl Iterator<Item = String>, wait: bool) -> Outcome {
    let mut job = None;
    let mut words = wanted.peekable();
    if words.peek().is_none() {
        return Err(Failure::new(Exit::Usage, "the list is empty: nothing to stage"));
    }
    while words.peek().is_some() {
        let mut line = job.map_or("stage".to_owned(), |job| format!("staging more {job}"));
        while let Some(word) = words.next_if(|word| line.len() + word.len() < LINE || !line.contains(" /")) {
            line.push(' ');
            line.push_str(&word);
        }
        let said = answer(mountpoint, &line)?;
        job = job.or_else(|| said.strip_prefix("job ")?.parse().ok());
    }
    let Some(job) = job else {
        return Err(Failure::new(Exit::Failure, "the daemon named no job; use the dlio-fs that made the mount"));
    };
    if wait {
        watch(mountpoint, job)
    } else {
        say(format_args!("job {job}; dlio-fs stage --show shows its progress")).map(|()| Exit::Done)
    }
}

/// The reply of a command that ends at once.
pub(super) fn answer(mountpoint: &Path, command: &str) -> Result<String, Failure> {
    match ControlCall::ask(mountpoint, command)?.listen()? {
        Said::Done(text) => Ok(text),
        Said::Error(why) => Err(Failure::new(Exit::Failure, why)),
        Said::Waiting(line) => Err(Failure::new(Exit::Failure, format!("unexpected answer: {line}"))),
    }
}

/// Shows the progress of a job until it ends, then what failed.
fn watch(mountpoint: &Path, job: u64) -> Outcome {
    let bar = io::stderr().is_terminal().then(|| {
        let style =
            ProgressStyle::with_template("{bar:30} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(1).with_style(style)
    });
    let mut control = ControlCall::ask(mountpoint, &format!("staging watch {job}"))?;
    let result = loop {
        match control.listen()? {
            Said::Done(text) => break text,
            Said::Error(why) => return Err(Failure::new(Exit::Failure, why)),
            Said::Waiting(line) => show(bar.as_ref(), &line),
        }
    };
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    let failures = failures(mountpoint, job)?;
    for (path, why) in &failures {
        complain(format_args!("{}: {why}", readable(path)));
    }
    let cancelled = result.ends_with("; cancelled");
    say(result)?;
    Ok(if failures.is_empty() && !cancelled { Exit::Done } else { Exit::Failure })
}

/// A line such as `staging: 12 of 40 files, ...`.
fn show(bar: Option<&ProgressBar>, line: &str) {
    let Some(bar) = bar else { return complain(line) };
    let text = line.strip_prefix("staging: ").unwrap_or(line);
    let mut words = text.split(' ');
    if let (Some(Ok(done)), Some(Ok(all))) = (words.next().map(str::parse), words.nth(1).map(str::parse)) {
        bar.set_length(all);
        bar.set_position(done);
    }
    bar.set_message(harmless(text).into_owned());
}

/// What of a job was not staged, and why. Paths are escaped.
pub fn failures(mountpoint: &Path, job: u64) -> Result<Vec<(String, String)>, Failure> {
    let text = client::read(mountpoint, "staging.json")?;
    let staging: Staging = serde_json::from_str(&text)
        .map_err(|e| Error::refused(format!(".dlio/staging.json: {e}"), "use the dlio-fs that made the mount"))?;
    let failures = staging.jobs.into_iter().filter(|one| one.number == job).flat_map(|one| one.failures);
    Ok(failures.map(|failure| (failure.path, failure.why)).collect())
}
