//! `dlio-fs-bench growth`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bytesize::ByteSize;
use clap::Args;
use dlio_fs::cli::client;
use dlio_fs::cli::outcome::{Failure, Outcome};
use dlio_fs::cli::sandbox::{Mount, Sandbox};
use dlio_fs::error::{Context, Error};
use dlio_fs::path::Show as _;
use dlio_fs::stats::render::count;
use nix::sys::statvfs::statvfs;

use super::asked::{PREFIX, check_options, check_tiers, documents, usage};
use super::measure::{give_out, in_sandbox};
use super::session::{command, results, stage_all, tier};
use crate::loads::growth::{LINE, Many, PER_DIR, footprint, memory, remove};
use crate::loads::results::{MeasuredTiers, ResultTable, Results, Unit};
use crate::loads::{StopFlag, caches, files};
use crate::steps::Steps;

/// Options of the mounts, before those of the user. No limit refuses a file; and the kernel caches no attributes, so
/// that each stat asks the mount: otherwise it would still know a thousand files, but not a million.
const OPTIONS: [&str; 4] =
    ["max_pending=100000000", "max_pending_bytes=1TiB", "attribute_lifetime=0s", "attribute_lifetime_slow=0s"];
/// The directory of the tier below the given one, and that of the files below the tier.
const TIER: &str = "tier";
const TREE: &str = "tree";
/// Bytes on the fast tier for each pending file: its records in the log, and those that replace them at a compaction.
const LOG: u64 = 1024;
/// Directories of a fast tier.
const DIRS: u64 = 1024;

/// The cases measured for each number of files, as they are shown.
const CASES: [(&str, Unit); 16] = [
    ("memory per file, looked up", Unit::Size),
    ("memory per file, looked up, not observed", Unit::Size),
    ("memory per file, staged", Unit::Size),
    ("memory per file, staged, not observed", Unit::Size),
    ("memory per file, pending", Unit::Size),
    ("memory per file, pending, not observed", Unit::Size),
    ("memory per file, staged and read", Unit::Size),
    ("walk with stat, nothing known", Unit::Microseconds),
    ("stat, looked up", Unit::Microseconds),
    ("stat, pending", Unit::Microseconds),
    ("open and read, staged", Unit::Microseconds),
    ("create and write, pending", Unit::Microseconds),
    ("mount ready, nothing known", Unit::Seconds),
    ("mount ready, staged", Unit::Seconds),
    ("mount ready, pending, after a kill", Unit::Seconds),
    ("recovery", Unit::Events),
];

/// Measure how memory per file, latency and start-up time change with the number of files
///
/// For each number of files, one mount looks them up and stages them. Another creates them and holds them back from the
/// slow tier (pending); it is killed and mounted again. Memory is what the daemon uses beyond an empty mount; it is
/// also measured in mounts without statistics (profile = false). The stats go through the paths in order, and each asks
/// the mount.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dlio-fs-bench growth --fast /optane --slow /hdd
  dlio-fs-bench growth --fast /optane --slow /hdd --files 1000,1000000 \\
      --runs 1 --output growth.html")]
pub(super) struct GrowthArgs {
    /// A directory on the fast tier
    #[arg(long, value_name = "DIR")]
    fast: PathBuf,
    /// A directory on the slow tier
    #[arg(long, value_name = "DIR")]
    slow: PathBuf,
    /// Numbers of files of 25 bytes each; every number is a place in the results
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1000,10000,100000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    files: Vec<u32>,
    /// Set keys of the configuration of these mounts, as `dlio-fs mount -o` (KEY=VALUE,...)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// How often each number is measured; the numbers take turns, so that runs can be compared in pairs
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Touch this much memory before timing: a virtual machine may be slow to get memory the first time. Default: the
    /// smaller of 4 GiB and a quarter of the available memory; 0 for none
    #[arg(long, value_name = "SIZE")]
    touch: Option<ByteSize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write the results to this file, in the format of its ending: .html, .svg, .md, .json or .txt; may be given
    /// several times
    #[arg(long, value_name = "FILE")]
    output: Vec<PathBuf>,
}

/// The checked arguments.
struct GrowthSetup {
    fast: PathBuf,
    slow: PathBuf,
    /// Ascending.
    numbers: Vec<usize>,
    options: Vec<String>,
    runs: usize,
    touch: Option<u64>,
}

/// The results so far, and where they are measured.
struct Growth {
    sandbox: Sandbox,
    asked: GrowthSetup,
    /// All mounts use this place, one after the other, each with new tiers.
    mount: Mount,
    steps: Steps,
    /// In order of measurement: number of files, case, figure.
    figures: Vec<(usize, &'static str, f64)>,
}

/// A mount that has just been made.
struct Ready {
    /// Seconds.
    after: f64,
    pid: u32,
    /// Bytes.
    memory: u64,
}

pub(super) fn run(args: &GrowthArgs) -> Outcome {
    let documents = documents(&args.output)?;
    let asked = args.check()?;
    let results = in_sandbox(move |sandbox| {
        let mut growth = Growth::new(sandbox, asked)?;
        growth.ensure_room()?;
        growth.touch_memory()?;
        growth.all()?;
        growth.finish()
    })?;
    give_out(args.json, &documents, results)
}

impl GrowthArgs {
    fn check(&self) -> Result<GrowthSetup, Failure> {
        check_options(&self.options)?;
        check_tiers(&self.fast, &self.slow)?;
        let mut numbers: Vec<_> = self.files.iter().map(|files| *files as usize).collect();
        numbers.sort_unstable();
        if let Some(pair) = numbers.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(usage(format!("--files names {} twice", pair[0]), "name each once"));
        }
        Ok(GrowthSetup {
            fast: self.fast.clone(),
            slow: self.slow.clone(),
            numbers,
            options: self.options.clone(),
            runs: self.runs as usize,
            touch: self.touch.map(|size| size.as_u64()),
        })
    }
}

impl Growth {
    fn new(sandbox: &Sandbox, asked: GrowthSetup) -> Result<Growth, Failure> {
        let dir = |parent: &Path, remedy| sandbox.dir(parent, PREFIX, remedy);
        let remedy = "name a directory that you may write to";
        let (fast, slow) = (dir(&asked.fast, remedy)?, dir(&asked.slow, remedy)?);
        let here = dir(&std::env::temp_dir(), "set TMPDIR to a directory that you may write to")?;
        let [mountpoint, log] = ["mnt", "daemon.log"].map(|name| here.join(name));
        let mount = Mount { mountpoint, log, fast: fast.join(TIER), slow: slow.join(TIER) };
        // Making the files, and two mounts of either kind.
        let steps = Steps::new(1 + 5 * asked.runs * asked.numbers.len());
        Ok(Growth { sandbox: sandbox.clone(), asked, mount, steps, figures: Vec::new() })
    }

    fn stop(&self) -> StopFlag {
        self.sandbox.stop().clone()
    }

    fn touch_memory(&mut self) -> Result<(), Failure> {
        self.step("touching memory")?;
        Ok(caches::touch_memory(self.asked.touch, self.sandbox.stop())?)
    }

    /// Shows the next step.
    fn step(&mut self, text: &str) -> Result<(), Failure> {
        self.steps.start(text);
        Ok(self.sandbox.stop().check()?)
    }

    /// Refuses more files than fit, in bytes and in inodes: a tenth must stay free.
    fn ensure_room(&self) -> Result<(), Failure> {
        let most = self.asked.numbers.last().copied().unwrap_or(0) as u64;
        let mut needed: BTreeMap<u64, (u64, u64, &Path)> = BTreeMap::new();
        for (tier, log) in [(&self.mount.fast, LOG), (&self.mount.slow, 0)] {
            let dir = tier.parent().unwrap_or(tier);
            let file_system = fs::metadata(dir).at("stat", dir.shown())?.dev();
            let (bytes, inodes, _) = needed.entry(file_system).or_insert((0, 0, dir));
            *bytes += most * (footprint(dir)? + log);
            *inodes += most + most / PER_DIR as u64 + DIRS;
        }
        needed
            .into_values()
            .try_for_each(|(bytes, inodes, dir)| has_room(dir, bytes + bytes / 10, inodes + inodes / 10))
    }

    /// Each number in each run; every run begins with another one.
    fn all(&mut self) -> Result<(), Failure> {
        for run in 0..self.asked.runs {
            let mut numbers = self.asked.numbers.clone();
            let len = numbers.len();
            numbers.rotate_left(run % len);
            for files in numbers {
                self.one(run, files)?;
            }
        }
        Ok(())
    }

    fn one(&mut self, run: usize, files: usize) -> Result<(), Failure> {
        let told = format!("run {} of {}: {}", run + 1, self.asked.runs, count(files as u64, "file"));
        self.step(&format!("{told}, making them"))?;
        self.plant(files)?;
        self.step(&format!("{told}, looked up and staged"))?;
        self.looked_up_and_staged(files)?;
        self.step(&format!("{told}, looked up and staged, not observed"))?;
        self.not_observed(files)?;
        self.clear(&self.mount.slow)?;
        self.step(&format!("{told}, pending"))?;
        self.pending(files)?;
        self.step(&format!("{told}, pending, not observed"))?;
        self.pending_not_observed(files)
    }

    /// Makes the files on the slow tier, before there is a mount.
    fn plant(&self, files: usize) -> Result<(), Failure> {
        let planted = Many::new(self.mount.slow.join(TREE), files);
        planted.make_dirs()?;
        planted.create(&self.stop())?;
        Ok(caches::write_back(planted.top())?)
    }

    fn looked_up_and_staged(&mut self, files: usize) -> Result<(), Failure> {
        let (many, stop) = (self.through_the_mount(files), self.stop());
        let ready = self.mounted(&[])?;
        self.add(files, "mount ready, nothing known", ready.after);
        self.add(files, "walk with stat, nothing known", files::walk(many.top(), &stop)? * 1e6);
        self.add(files, "memory per file, looked up", ready.grown(files)?);
        self.add(files, "stat, looked up", many.stat(&stop)? * 1e6);
        stage_all(&self.mount, "/", &stop)?;
        self.add(files, "memory per file, staged", ready.grown(files)?);
        self.mount.unmount()?;
        let ready = self.mounted(&[])?;
        self.add(files, "mount ready, staged", ready.after);
        self.add(files, "open and read, staged", many.read(&stop)? * 1e6);
        self.add(files, "memory per file, staged and read", ready.grown(files)?);
        self.leave()
    }

    fn not_observed(&mut self, files: usize) -> Result<(), Failure> {
        let (many, stop) = (self.through_the_mount(files), self.stop());
        let ready = self.mounted(&["profile=false"])?;
        files::walk(many.top(), &stop)?;
        self.add(files, "memory per file, looked up, not observed", ready.grown(files)?);
        stage_all(&self.mount, "/", &stop)?;
        self.add(files, "memory per file, staged, not observed", ready.grown(files)?);
        self.leave()
    }

    fn pending(&mut self, files: usize) -> Result<(), Failure> {
        let (many, stop) = (self.through_the_mount(files), self.stop());
        let ready = self.mounted(&[])?;
        self.add(files, "create and write, pending", self.create(&many)? * 1e6);
        self.add(files, "memory per file, pending", ready.grown(files)?);
        self.add(files, "stat, pending", many.stat(&stop)? * 1e6);
        let events = client::status(&self.mount.mountpoint)?.safety.events;
        self.mount.kill()?;
        let ready = self.mounted(&[])?;
        self.add(files, "mount ready, pending, after a kill", ready.after);
        self.add(files, "recovery", events as f64 / ready.after);
        self.leave()?;
        self.clear(&self.mount.slow)
    }

    fn pending_not_observed(&mut self, files: usize) -> Result<(), Failure> {
        let many = self.through_the_mount(files);
        let ready = self.mounted(&["profile=false"])?;
        self.create(&many)?;
        self.add(files, "memory per file, pending, not observed", ready.grown(files)?);
        self.leave()?;
        self.clear(&self.mount.slow)
    }

    /// Creates the files through a mount that holds them back from the slow tier; seconds per file.
    fn create(&self, many: &Many) -> Result<f64, Failure> {
        command(&self.mount, "pause", self.sandbox.stop())?;
        many.make_dirs()?;
        Ok(many.create(self.sandbox.stop())?)
    }

    fn through_the_mount(&self, files: usize) -> Many {
        Many::new(self.mount.mountpoint.join(TREE), files)
    }

    fn mounted(&self, more: &[&str]) -> Result<Ready, Failure> {
        let owned = |option: &&str| (*option).to_owned();
        let asked = self.asked.options.iter().cloned();
        let options: Vec<_> = OPTIONS.iter().map(owned).chain(asked).chain(more.iter().map(owned)).collect();
        let begun = Instant::now();
        self.sandbox.mount(&self.mount, &options)?;
        let after = begun.elapsed().as_secs_f64();
        let pid = self.mount.daemon()?.pid;
        Ok(Ready { after, pid, memory: memory(pid)? })
    }

    /// Removes the mount and its fast tier now, rather than a million files at the end.
    fn leave(&self) -> Result<(), Failure> {
        self.mount.unmount()?;
        self.clear(&self.mount.fast)
    }

    /// Writes the removal back, too: otherwise the disk would do that during the next measurement.
    fn clear(&self, tier: &Path) -> Result<(), Failure> {
        remove(tier, self.sandbox.stop())?;
        Ok(caches::write_back(tier.parent().unwrap_or(tier))?)
    }

    fn add(&mut self, files: usize, case: &'static str, figure: f64) {
        self.figures.push((files, case, figure));
    }

    fn finish(self) -> Result<Results, Failure> {
        let Growth { asked, figures, .. } = self;
        let mut table = ResultTable::default();
        for (case, unit) in CASES {
            for (files, _, figure) in figures.iter().filter(|(_, of, _)| *of == case) {
                table.add(&place(*files), case, unit, *figure);
            }
        }
        let places: Vec<_> = asked.numbers.iter().map(|files| place(*files)).collect();
        let tiers = MeasuredTiers { fast: tier(&asked.fast)?, slow: tier(&asked.slow)? };
        let set: Vec<_> = OPTIONS.iter().map(|option| (*option).to_owned()).chain(asked.options).collect();
        let settings = [
            ("each file", count(LINE.len() as u64, "byte")),
            ("each directory", count(PER_DIR as u64, "file")),
            ("runs", asked.runs.to_string()),
            ("options", set.join(" ")),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(results("growth", tiers, settings, caches::Caches::Hot.name(), table.rows(&places), Vec::new()))
    }
}

impl Ready {
    /// Bytes that the daemon has more by now, for each file.
    fn grown(&self, files: usize) -> Result<f64, Failure> {
        Ok(memory(self.pid)?.saturating_sub(self.memory) as f64 / files as f64)
    }
}

fn place(files: usize) -> String {
    count(files as u64, "file")
}

fn has_room(dir: &Path, bytes: u64, inodes: u64) -> Result<(), Failure> {
    let stat = statvfs(dir).map_err(std::io::Error::from).at("statfs", dir.shown())?;
    let holder = dir.parent().unwrap_or(dir).shown();
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    if free < bytes {
        let what = format!("{holder} has {} free, and {} are needed", ByteSize(free), ByteSize(bytes));
        return Err(Failure::usage(Error::refused(what, "ask for fewer files with --files")));
    }
    // Some file systems make inodes on demand and report none.
    if stat.files() > 0 && stat.files_available() < inodes {
        let what = format!("{holder} has {} inodes free, and {inodes} are needed", stat.files_available());
        let remedy = "ask for fewer files with --files, or make a file system with more inodes (mkfs.ext4 -i 2048)";
        return Err(Failure::usage(Error::refused(what, remedy)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_room_for_is_refused_with_what_to_ask_for() {
        let dir = tempfile::tempdir().expect("a directory");
        has_room(dir.path(), 0, 0).expect("nothing is needed");
        let why = has_room(dir.path(), u64::MAX, 0).expect_err("too much").message;
        assert!(why.contains("--files"), "{why}");
        if statvfs(dir.path()).expect("looked at").files() > 0 {
            let why = has_room(dir.path(), 0, u64::MAX).expect_err("too many").message;
            assert!(why.contains("inodes") && why.contains("--files"), "{why}");
        }
    }
}
