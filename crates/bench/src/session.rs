//! The places and runs of one benchmark: which place is measured when, the state of the caches, and the results.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use dlio_fs::cli::client::{self, ControlCall, Said};
use dlio_fs::cli::outcome::{Exit, Failure};
use dlio_fs::cli::sandbox::{Mount, Sandbox};
use dlio_fs::cli::stage;
use dlio_fs::config::IoPath;
use dlio_fs::error::{Context, Error, Result};
use dlio_fs::mount;
use dlio_fs::path::Show as _;
use nix::sys::statvfs::statvfs;
use procfs::{Current as _, Meminfo};

use super::asked::{BenchSetup, PREFIX, copies_name, mount_name, paused_name};
use super::plan::{BenchPlan, Room};
use crate::loads::caches::{self, Caches};
use crate::loads::devices::{self, Device, Sampler};
use crate::loads::results::{Course, FORMAT, Machine, MeasuredTiers, ResultTable, Results, TierInfo, Unit};
use crate::loads::{StopFlag, data};
use crate::steps::Steps;

/// How often the devices are sampled during a measurement.
const EVERY: Duration = Duration::from_millis(100);

/// A directory to measure.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    pub(super) kind: PlaceKind,
}

#[derive(Clone, Debug)]
pub(super) enum PlaceKind {
    Slow,
    Fast,
    Mount(Mount),
    /// One whose drain is paused while it is measured.
    Paused(Mount),
    /// A directory on the slow tier, for so many `cp` at once.
    Copies(usize),
    /// From `--also`.
    Other,
}

pub(super) struct Session {
    sandbox: Sandbox,
    plan: BenchPlan,
    asked: BenchSetup,
    pub(super) places: Vec<Place>,
    /// All directories that hold data, for the caches.
    dirs: Vec<PathBuf>,
    tiers: MeasuredTiers,
    devices: Vec<Device>,
    steps: Steps,
    table: ResultTable,
    courses: Vec<Course>,
}

impl Session {
    /// Makes the directories. Nothing is mounted yet.
    pub(super) fn new(sandbox: &Sandbox, asked: BenchSetup, plan: BenchPlan) -> Result<Session, Failure> {
        let remedy = "name a directory that you may write to";
        let dir = |parent: &Path, remedy| sandbox.dir(parent, PREFIX, remedy);
        let (fast, slow) = (dir(&asked.fast, remedy)?, dir(&asked.slow, remedy)?);
        let here = dir(&std::env::temp_dir(), "set TMPDIR to a directory that you may write to")?;
        let mut places = vec![
            Place { name: "slow".to_owned(), dir: slow.join("native"), kind: PlaceKind::Slow },
            Place { name: "fast".to_owned(), dir: fast.join("native"), kind: PlaceKind::Fast },
        ];
        for io in &asked.io {
            let below = |dir: &Path| dir.join(io.name());
            let mount = Mount {
                mountpoint: below(&here),
                fast: below(&fast),
                slow: below(&slow),
                log: below(&here).with_extension("log"),
            };
            places.push(Place { name: mount_name(*io), dir: mount.mountpoint.clone(), kind: PlaceKind::Mount(mount) });
        }
        let mut dirs = vec![fast, slow];
        for (name, parent) in &asked.also {
            let other = dir(parent, remedy)?;
            places.push(Place { name: name.clone(), dir: other.join("native"), kind: PlaceKind::Other });
            dirs.push(other);
        }
        for place in &places {
            fs::create_dir_all(&place.dir).at("mkdir", place.dir.shown())?;
            if let PlaceKind::Mount(mount) = &place.kind {
                [&mount.fast, &mount.slow].iter().try_for_each(|dir| fs::create_dir(dir).at("mkdir", dir.shown()))?;
            }
        }
        let tiers = MeasuredTiers { fast: tier(&asked.fast)?, slow: tier(&asked.slow)? };
        let devices = devices::of_tiers(tiers.fast.device.as_deref(), tiers.slow.device.as_deref());
        let steps = Steps::new(plan.runs * places.len() + plan.steps + 1);
        let (sandbox, table) = (sandbox.clone(), ResultTable::default());
        Ok(Session { sandbox, plan, asked, places, dirs, tiers, devices, steps, table, courses: Vec::new() })
    }

    pub(super) fn stop(&self) -> StopFlag {
        self.sandbox.stop().clone()
    }

    /// Shows the next step.
    pub(super) fn step(&mut self, text: &str) -> Result<()> {
        self.steps.start(text);
        self.sandbox.stop().check()
    }

    pub(super) fn touch_memory(&mut self) -> Result<()> {
        self.step("touching memory")?;
        caches::touch_memory(self.asked.touch, self.sandbox.stop())
    }

    /// Makes the mounts.
    pub(super) fn mount(&self) -> Result<(), Failure> {
        self.mounts().into_iter().try_for_each(|(_, mount, io)| self.mount_one(&mount, io))
    }

    /// The places that are mounts, in order, with their I/O paths.
    fn mounts(&self) -> Vec<(String, Mount, IoPath)> {
        let mount = |place: &Place| match &place.kind {
            PlaceKind::Mount(mount) => Some((place.name.clone(), mount.clone())),
            _ => None,
        };
        let mounts = self.places.iter().filter_map(mount).zip(&self.asked.io);
        mounts.map(|((name, mount), io)| (name, mount, *io)).collect()
    }

    fn mount_one(&self, mount: &Mount, io: IoPath) -> Result<(), Failure> {
        let options = self.asked.options.iter().cloned().chain([format!("io={}", io.name())]);
        self.sandbox.mount(mount, &options.collect::<Vec<_>>())
    }

    /// Makes another mount for each, over tiers of its own, and a place of it behind all others.
    pub(super) fn mount_paused(&mut self) -> Result<(), Failure> {
        for (name, mount, io) in self.mounts() {
            let beside = |path: &Path| path.with_extension("paused");
            let paused = Mount {
                mountpoint: beside(&mount.mountpoint),
                fast: beside(&mount.fast),
                slow: beside(&mount.slow),
                log: mount.log.with_extension("paused.log"),
            };
            self.mount_one(&paused, io)?;
            let (name, dir) = (paused_name(&name), paused.mountpoint.clone());
            self.places.push(Place { name, dir, kind: PlaceKind::Paused(paused) });
        }
        Ok(())
    }

    /// Makes places on the slow tier, for so many `cp` each.
    pub(super) fn add_copies(&mut self, streams: &[usize]) -> Result<(), Failure> {
        for streams in streams {
            let dir = self.slow().join(format!("cp-{streams}"));
            fs::create_dir(&dir).at("mkdir", dir.shown())?;
            self.places.push(Place { name: copies_name(*streams), dir, kind: PlaceKind::Copies(*streams) });
        }
        Ok(())
    }

    /// The directory on the fast tier that holds its places.
    pub(super) fn fast(&self) -> &Path {
        &self.dirs[0]
    }

    fn slow(&self) -> &Path {
        &self.dirs[1]
    }

    /// Refuses what does not fit: a tenth must stay free.
    pub(super) fn ensure_room(&self) -> Result<(), Failure> {
        let Room { stays, beneath, passes, remedy } = self.plan.room;
        // A tier needs room as a place of its own, and for the mounts.
        let mounts = self.asked.io.len() as u64;
        let bytes = stays.saturating_mul(1 + mounts).saturating_add(passes);
        let mut needed: BTreeMap<u64, (u64, &Path)> = BTreeMap::new();
        for dir in &self.dirs {
            let file_system = fs::metadata(dir).at("stat", dir.shown())?.dev();
            let bytes = bytes.saturating_add(if dir == self.slow() { beneath.saturating_mul(mounts) } else { 0 });
            needed.entry(file_system).or_insert((0, dir)).0 += bytes.saturating_add(bytes / 10);
        }
        for (needed, dir) in needed.into_values() {
            let stat = statvfs(dir).map_err(std::io::Error::from).at("statfs", dir.shown())?;
            let free = stat.blocks_available().saturating_mul(stat.fragment_size());
            if free < needed {
                let holder = dir.parent().unwrap_or(dir).shown();
                let what = format!("{holder} has {} free, and {} are needed", ByteSize(free), ByteSize(needed));
                return Err(Failure::usage(Error::refused(what, remedy)));
            }
        }
        Ok(())
    }

    /// Calls `one` for each place of each run. Each run begins with the second place of the run before, so that none is
    /// always first.
    pub(super) fn each(
        &mut self,
        mut one: impl FnMut(&mut Session, &Place, usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let runs = self.plan.runs;
        for run in 0..runs {
            let mut places = self.places.clone();
            let len = places.len();
            places.rotate_left(run % len);
            for place in &places {
                self.step(&format!("run {} of {runs}: {}", run + 1, place.name))?;
                one(self, place, run)?;
            }
        }
        Ok(())
    }

    pub(super) fn is_last(&self, run: usize) -> bool {
        run + 1 == self.plan.runs
    }

    /// Brings the caches into the state for a measurement.
    pub(super) fn cool(&self) -> Result<()> {
        let mounts = self.places.iter().filter(|place| place.mount().is_some() && self.plan.caches == Caches::FileData);
        let dirs: Vec<_> = self.dirs.iter().cloned().chain(mounts.map(|place| place.dir.clone())).collect();
        self.plan.caches.cool(&dirs)
    }

    /// Starts to sample the tiers' devices.
    pub(super) fn sample(&self) -> Result<Sampler> {
        Sampler::start(&self.devices, EVERY)
    }

    pub(super) fn keep(&mut self, courses: Vec<Course>) {
        self.courses.extend(courses);
    }

    /// Adds a figure to this run.
    pub(super) fn add(&mut self, place: &str, case: &str, unit: Unit, figure: f64) {
        self.table.add(place, case, unit, figure);
    }

    /// Removes what was written to a place, and waits until the place is idle.
    pub(super) fn clear(&self, place: &Place) -> Result<(), Failure> {
        data::clear(&place.dir)?;
        self.settle(place)
    }

    /// Waits until a place is idle, so that it does not disturb the next measurement.
    pub(super) fn settle(&self, place: &Place) -> Result<(), Failure> {
        if let Some(mount) = place.mount() {
            command(mount, "sync", self.sandbox.stop())?;
        }
        self.write_back()
    }

    /// Waits until the tiers have written back their memory.
    pub(super) fn write_back(&self) -> Result<(), Failure> {
        self.dirs.iter().try_for_each(|dir| caches::write_back(dir)).map_err(Failure::from)
    }

    /// Waits until everything in a mount is on the slow tier, without a command: the drain must keep its own pace.
    pub(super) fn watch_until_safe(&self, mount: &Mount) -> Result<(), Failure> {
        const LOOK: Duration = Duration::from_millis(5);
        loop {
            let safety = client::status(&mount.mountpoint)?.safety;
            if safety.safe {
                return Ok(());
            }
            if let Some(why) = safety.held {
                return Err(Failure::new(Exit::Failure, format!("the mount does not drain: {why}")));
            }
            self.sandbox.stop().check()?;
            std::thread::sleep(LOOK);
        }
    }

    /// Adds a setting that became known only now.
    pub(super) fn add_setting(&mut self, name: &'static str, value: String) {
        self.plan.settings.push((name, value));
    }

    pub(super) fn finish(self) -> Result<Results, Failure> {
        let Session { plan, asked, places, tiers, table, mut courses, .. } = self;
        let names: Vec<_> = places.into_iter().map(|place| place.name).collect();
        // Runs begin with different places: restore the order of the places.
        courses.sort_by_key(|course| names.iter().position(|name| *name == course.place));
        let mut settings: Vec<(String, String)> =
            plan.settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        settings.push(("runs".to_owned(), plan.runs.to_string()));
        settings.extend((!asked.options.is_empty()).then(|| ("options".to_owned(), asked.options.join(" "))));
        for (name, dir) in &asked.also {
            settings.push((name.clone(), format!("{} ({})", dir.shown(), tier(dir)?.file_system)));
        }
        Ok(results(plan.name, tiers, settings, plan.caches.name(), table.rows(&names), courses))
    }
}

impl Place {
    /// Where its files can be written before anything is mounted.
    pub(super) fn beneath(&self) -> &Path {
        self.mount().map_or(&self.dir, |mount| &mount.slow)
    }

    pub(super) fn mount(&self) -> Option<&Mount> {
        match &self.kind {
            PlaceKind::Mount(mount) | PlaceKind::Paused(mount) => Some(mount),
            _ => None,
        }
    }
}

/// Gives a mount a command and waits for it. Returns the last line of the reply.
pub(super) fn command(mount: &Mount, command: &str, stop: &StopFlag) -> Result<String, Failure> {
    let mut control = ControlCall::ask(&mount.mountpoint, command)?;
    loop {
        stop.check()?;
        match control.listen()? {
            Said::Done(text) => return Ok(text),
            Said::Error(why) => return Err(Failure::new(Exit::Failure, why)),
            Said::Waiting(_) => {}
        }
    }
}

/// Stages a path, given from the mount's root, and waits. Errors: not everything was staged.
pub(super) fn stage_all(mount: &Mount, path: &str, stop: &StopFlag) -> Result<(), Failure> {
    let said = command(mount, &format!("stage {path}"), stop)?;
    let job = said.strip_prefix("job ").and_then(|job| job.parse::<u64>().ok());
    let job = job.ok_or_else(|| Failure::new(Exit::Failure, format!("the daemon named no job: {said}")))?;
    command(mount, &format!("staging watch {job}"), stop)?;
    match stage::failures(&mount.mountpoint, job)?.first() {
        None => Ok(()),
        Some((path, why)) => {
            let remedy = "if there is too little room, let the fast tier fill up more: -o reserve=0%,high=98%,low=97%";
            Err(Failure::new(Exit::Failure, format!("{path} was not staged: {why}; {remedy}")))
        }
    }
}

pub(super) fn results(
    bench: &str,
    tiers: MeasuredTiers,
    settings: Vec<(String, String)>,
    caches: &str,
    rows: Vec<crate::loads::results::Row>,
    devices: Vec<Course>,
) -> Results {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let (bench, caches) = (bench.to_owned(), caches.to_owned());
    Results { format: FORMAT, bench, version, machine: machine(), tiers, settings, caches, rows, devices }
}

/// The file system and device of a tier.
pub(super) fn tier(path: &Path) -> Result<TierInfo> {
    let mounts = mount::mounts()?;
    let found = path.canonicalize().at("find", path.shown())?;
    let holder = mount::holder_of(&found, &mounts);
    Ok(TierInfo {
        path: path.shown().to_string(),
        file_system: holder.map(|holder| holder.fs_type.clone()).unwrap_or_default(),
        device: holder.and_then(|holder| devices::behind(&holder.source, &holder.device)),
    })
}

fn machine() -> Machine {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Machine {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        memory: Meminfo::current().map_or(0, |meminfo| meminfo.mem_total),
        cpu: model.map_or_else(String::new, |(_, name)| name.trim().to_owned()),
    }
}
