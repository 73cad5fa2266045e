//! `cargo xtask bench`: measures dlio-fs on the testbed, beside other file systems, and writes `BENCHMARKS.md`.
//!
//! A row of [`PARTS`] is one `dlio-fs-bench`. What is mounted beside is `bench/peers.rs` (one of them is `bench/bare.rs`), what is kept
//! of a part `bench/figures.rs`, what is to be reached `bench/bars.rs`, the page `bench/document.rs`, and whether others slow all of it
//! down `bench/wake.rs`.

pub(crate) mod bare;
mod bars;
mod document;
mod figures;
mod peers;
mod wake;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};

use crate::setup::{self, Need, Setup};
use crate::signals::Signals;
use crate::testbed::{self, Device, Spec, Testbed, quiet};
use crate::{Context, cargo, scratch};
use bars::BARS;
use document::Notes;
use figures::{Measured, Results};
use peers::{
    BARE, BARE_1MIN, BARE_1S, BELIEVED, BINDFS, BINDFS_FAST, Beside, FLEET, FLEET_MORE, JUICEFS, LOGGEDFS, MERGERFS,
    MERGERFS_CACHED, NO_PROFILE, OBSERVED, RCLONE, Stage,
};

/// Where figures, plots and notes are, from the document on.
const FIGURES: &str = "docs/benchmarks";
const DOCUMENT: &str = "BENCHMARKS.md";
/// From 9 on an interval leaves out the least and the most.
const RUNS: u32 = 9;
const QUICK_RUNS: u32 = 3;
/// Of each disk, with `--quick`.
const QUICK_DISK: u64 = 1 << 30;

/// A section of the document: one `dlio-fs-bench` with Optane as its fast tier.
#[derive(Debug)]
struct Part {
    name: &'static str,
    /// Its first paragraph.
    about: &'static str,
    /// Of `dlio-fs-bench`.
    bench: &'static str,
    args: &'static str,
    /// In place of `args`, with `--quick`.
    quick: &'static str,
    slow: Device,
    beside: &'static [Beside],
    /// On disks of its own, as [`Spec::many_inodes`] has them.
    many_inodes: bool,
    /// However many are asked for: where one makes millions of files.
    runs_max: Option<u32>,
}

const PARTS: &[Part] = &[
    Part {
        name: "tiers",
        about: "The disks as the paper's Table I has them, and the mount over them: one large file written, with its \
                fsync, and read cold; small files read cold.",
        bench: "tiers",
        args: "--io exact,passthrough",
        quick: "--io exact,passthrough --size 64MiB",
        slow: Device::Hdd,
        beside: &[Beside::Disk(Device::Ssd)],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "checkpoint",
        about: "The paper's Fig. 9: five checkpoints of 600 MB, each fsynced and moved into its place. How long the \
                application is blocked, and when the last byte is on the slow tier.",
        bench: "checkpoint",
        args: "--count 5 --size 600MB",
        quick: "--count 2 --size 20MB",
        slow: Device::Hdd,
        beside: &[
            Beside::Disk(Device::Ssd),
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&RCLONE, Device::Hdd),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "ranks",
        about: "Eight ranks save three checkpoints of 0.84 GB at once, a shard of 105 MB each, with an fsync, a barrier and a marker; then \
                they read them, cold. DLIO shape, scaled: a Llama 3 model of 60 million parameters, 14 bytes each; not an MLPerf result. \
                Ranks are threads, and each writes plain bytes; of each checkpoint the slowest one counts.",
        bench: "ranks",
        args: "--ranks 8 --count 3 --shard 105MB",
        quick: "--ranks 4 --count 2 --shard 2MB",
        slow: Device::Hdd,
        beside: &[
            Beside::Disk(Device::Ssd),
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&JUICEFS, Device::Hdd),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "pace",
        about: "The same with 8 s of training between the checkpoints, which the slow tier sustains: what the mount tells of that, beside what \
                happens.",
        bench: "ranks",
        args: "--ranks 8 --count 3 --shard 105MB --interval 8s",
        quick: "--ranks 4 --count 2 --shard 2MB --interval 4s",
        slow: Device::Hdd,
        beside: &[],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "ranks-torch",
        about: "The same with a process for each rank, which saves tensors of 16 MiB by `torch.save` and an fsync.",
        bench: "ranks",
        args: "--ranks 8 --count 3 --shard 105MB --save torch",
        quick: "--ranks 2 --count 2 --shard 2MB --save torch",
        slow: Device::Hdd,
        beside: &[],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "ranks-dcp",
        about: "The same by `torch.distributed.checkpoint`, all ranks together.",
        bench: "ranks",
        args: "--ranks 8 --count 3 --shard 105MB --save dcp",
        quick: "--ranks 2 --count 2 --shard 2MB --save dcp",
        slow: Device::Hdd,
        beside: &[],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "ingest",
        about: "The paper's Figs. 4 to 7: an epoch of a data set of JPEGs, cold, shuffled, by 1 to 8 threads: read \
                only, decoded, and with batches prepared ahead; of files that are on the slow tier only, and of files \
                staged before.",
        bench: "ingest",
        // The HDD gives 150 of them a second: an epoch takes it two seconds, and there are a hundred in a run.
        args: "--files 256",
        quick: "--files 64",
        slow: Device::Hdd,
        beside: &[
            Beside::Disk(Device::Ssd),
            Beside::Peer(&MERGERFS, Device::Hdd),
            Beside::Peer(&BINDFS, Device::Hdd),
            Beside::Peer(&RCLONE, Device::Hdd),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "epoch",
        about: "Two data sets read for simulated accelerators, cold: 64 files of 8 MB, as of unet3d, and 512 of 112 KiB, as of resnet. First by \
                4 threads as fast as it goes; from that follows how many H100 (MLPerf Storage v1.0) a place feeds at a utilisation of \
                90 %. That many, rounded down and at least one, are then simulated: each sleeps for as long as it would compute, and four \
                readers serve all. DLIO shape, scaled; not an MLPerf \
                result.",
        bench: "epoch",
        args: "--large-files 64 --large-size 8MB --small-files 512",
        quick: "--large-files 4 --large-size 4MB --small-files 32",
        slow: Device::Hdd,
        beside: &[],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "interference",
        about: "How much a training loop slows down: 40 steps of 100 ms on one of the two processors, each with 8 files of 112 KiB that 4 \
                threads read ahead, cold. With nothing beside it; with 3 saves of 100 MB for which it waits; with the same saves by a \
                thread beside it; and, in the mount, while 1 GB that was saved before is drained at full speed. A slowdown is of the \
                steps in the same time, with nothing beside them, in the same place and run.",
        bench: "interference",
        args: "--steps 40 --compute 100ms --every 10 --size 100MB --backlog 1GB",
        quick: "--steps 20 --compute 50ms --every 10 --size 10MB --backlog 200MB",
        slow: Device::Hdd,
        beside: &[Beside::Peer(&MERGERFS, Device::Optane)],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "files",
        about: "What the file system itself costs: the page cache is hot and no disk is waited for. A large file by block \
                size, small files, metadata; all peers are over Optane. `slow files` of a mount are on the slow tier only and not staged; the \
                others were written through it.",
        bench: "files",
        // All of them, twice over with rclone, and the log of LoggedFS fit on Optane.
        args: "--io exact,cached,passthrough --size 128MiB --listing 1000",
        quick: "--io exact,cached,passthrough --size 16MiB --files 64 --entries 200 --listing 1000",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&MERGERFS_CACHED, Device::Optane),
            Beside::Peer(&BINDFS, Device::Optane),
            Beside::Peer(&BINDFS_FAST, Device::Optane),
            Beside::Peer(&RCLONE, Device::Optane),
            Beside::Peer(&LOGGEDFS, Device::Optane),
            Beside::Peer(&BARE, Device::Optane),
            Beside::Peer(&BARE_1MIN, Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "listing",
        about: "The same with many files: find over a tree of 100,000, and ls of one directory with as many. Without rclone \
                and LoggedFS, which would be writing for longer than the others are measured.",
        bench: "files",
        // The HDD has to find 100,000 inodes should the kernel have let go of some: no figure, but no error either.
        args: "--size 1MiB --files 16 --entries 100 --listing 100000 -o slow_wait=60s",
        quick: "--size 1MiB --files 16 --entries 100 --listing 1000",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&MERGERFS_CACHED, Device::Optane),
            Beside::Peer(&BINDFS, Device::Optane),
            Beside::Peer(&BINDFS_FAST, Device::Optane),
            Beside::Peer(&BELIEVED, Device::Optane),
            Beside::Peer(&BARE, Device::Optane),
            Beside::Peer(&BARE_1S, Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "cost",
        about: "What observation costs: the same figures of dlio-fs as it comes, and of one that counts nothing; both are \
                mounted beside, and before each of them something is measured that leaves nothing to be drained.",
        bench: "files",
        args: "--listing 10000",
        quick: "--size 16MiB --files 64 --entries 200 --listing 1000",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&OBSERVED, Device::Optane),
            Beside::Disk(Device::Optane),
            Beside::Peer(&NO_PROFILE, Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "fleet",
        about: "What keeping one order with others costs: the same figures of dlio-fs as it comes, and of the first of three mounts that are \
                a fleet; all are mounted beside, and before each of them something is measured that leaves nothing to be drained.",
        bench: "files",
        args: "--listing 1000",
        quick: "--size 16MiB --files 64 --entries 200 --listing 1000",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&OBSERVED, Device::Optane),
            Beside::Disk(Device::Optane),
            Beside::Peer(&FLEET, Device::Optane),
            Beside::Unmeasured(&FLEET_MORE[0], Device::Optane),
            Beside::Unmeasured(&FLEET_MORE[1], Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "blocks",
        about: "Blocks of 4 KiB and of 1 MiB at random places, by fio: by 1 and 4 jobs, each with a file of 64 MiB; with psync through the \
                page cache and past it (`buffered`, `direct`), with libaio and io_uring, 16 blocks under way at a time, past it. They \
                are written while the drain runs and while it is paused, and read. `p50`, `p99` and `p99.9` are the times within which \
                a half of the blocks, all but one of a hundred, and all but one of a thousand were done; they are left out of fewer than \
                100 and 1,000 blocks. What the daemon takes counts until all is durable on the fast tier; beside a running drain that \
                contains the drain's work. (`dlio-fs-bench blocks` as it comes measures blocks of 64 KiB, too.)",
        bench: "blocks",
        args: "--io exact,passthrough --blocks 4KiB,1MiB --time 200ms",
        quick: "--io exact,passthrough --blocks 1MiB --time 50ms --size 8MiB",
        slow: Device::Hdd,
        beside: &[Beside::Peer(&MERGERFS, Device::Optane)],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "metadata",
        about: "The phases and names of IO500's mdtest, by a driver of our own: no IO500 result. Four ranks, which are threads of one \
                process, write 4,000 files each that are easy (empty, each rank's in a directory of its own) and 4,000 \
                that are hard (3901 bytes, all in one directory). Rank 0 stats the files of rank 1, reads those of rank 2, deletes those \
                of rank 3, and so on (mdtest's `-N 1`). Everything is in memory; all peers are over Optane.",
        bench: "metadata",
        args: "--io exact,passthrough --ranks 4 --files 4000",
        quick: "--io exact,passthrough --ranks 2 --files 50",
        slow: Device::Hdd,
        beside: &[
            Beside::Peer(&MERGERFS, Device::Optane),
            Beside::Peer(&BINDFS_FAST, Device::Optane),
            Beside::Peer(&BARE, Device::Optane),
        ],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "drain",
        about: "The background. Files created while the drain copies, and while it is paused. Until all is on the slow tier: 2,000 files \
                of 4 KiB, and eight of 256 MB at once, copied into the mount and waited for; beside `cp -a` from Optane to the slow tier \
                and a sync, alone and eight at a time.",
        bench: "drain",
        args: "--entries 2000 --files 2000 --size 256MB",
        quick: "--entries 200 --files 200 --size 4MB",
        slow: Device::Hdd,
        beside: &[Beside::Peer(&MERGERFS, Device::Optane)],
        many_inodes: false,
        runs_max: None,
    },
    Part {
        name: "growth",
        about: "Whether it stays as it is with more files: memory for each, latency, the time until a mount is ready, and \
                recovery after a kill, with a thousand to a million files of 25 bytes in directories of a thousand. Places are the numbers of \
                files. The disks are made anew for it, with more inodes, in which such files fit; the slow tier is the SSD. A run takes half an hour, \
                so there are at most three, an hour and a half: they show a range, no interval of 95 %.",
        bench: "growth",
        args: "--files 1000,10000,100000,1000000 -o slow_wait=60s",
        // As many as a bar is about.
        quick: "--files 1000,10000 -o slow_wait=60s",
        // Of so many the kernel keeps no inodes, and the HDD finds them again at 150 reads a second: hours for the disk's figure.
        slow: Device::Ssd,
        beside: &[],
        many_inodes: true,
        // An hour and a half, which shows a range; an interval of 95 % needs six.
        runs_max: Some(3),
    },
];

/// A command line.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    runs: u32,
    /// In the order of [`PARTS`].
    parts: Vec<&'static str>,
    quick: bool,
    /// Measures nothing.
    document: bool,
}

fn parse(args: &[String]) -> Result<Asked> {
    let (mut runs, mut only, mut quick, mut document) = (None, None, false, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--runs" => {
                let text = value()?;
                let number = text.parse().ok().filter(|runs| (1..1000).contains(runs));
                runs = Some(number.with_context(|| format!("`{text}` is no number of runs: 1 to 999"))?);
            }
            "--only" => only = Some(value()?.as_str()),
            "--quick" => quick = true,
            "--document" => document = true,
            other => bail!("unknown argument `{other}` of bench: --runs, --only, --quick and --document are there"),
        }
    }
    ensure!(!document || (runs, only, quick) == (None, None, false), "--document measures nothing: it stands alone");
    let runs = runs.unwrap_or(if quick { QUICK_RUNS } else { RUNS });
    Ok(Asked { runs, parts: chosen(only)?, quick, document })
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static str>> {
    let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
    let wanted: Vec<&str> = only.map_or_else(|| names.clone(), |only| only.split(',').collect());
    for name in &wanted {
        ensure!(names.contains(name), "no part is named `{name}`: there are {}", names.join(", "));
    }
    Ok(PARTS.iter().map(|part| part.name).filter(|name| wanted.contains(name)).collect())
}

/// Runs `cargo xtask bench`. What is missed is no failure of this command.
pub(crate) fn command(cx: &Context, args: &[String]) -> Result<ExitCode> {
    let asked = parse(args)?;
    let pages = Pages::new(cx, asked.quick)?;
    // What cannot be written later is noticed before anything is measured.
    pages.notes()?;
    pages.load(|part| asked.document || !asked.parts.contains(&part))?;
    match asked.document {
        true => pages.write()?,
        false => measure(cx, &asked, &pages)?,
    }
    print!("{}", pages.bars()?);
    println!("written: {}", pages.document().display());
    Ok(ExitCode::SUCCESS)
}

fn measure(cx: &Context, asked: &Asked, pages: &Pages) -> Result<()> {
    testbed::usable()?;
    scratch::ensure_room(&cx.target)?;
    let saves_by_torch = |part: &&Part| asked.parts.contains(&part.name) && part.args.contains("--save");
    let torch = PARTS.iter().find(saves_by_torch).map(|_| Need::Torch);
    let needs: Vec<Need> = [Need::Peers].into_iter().chain(torch).collect();
    let mut setup = Setup::start(cx, &needs)?;
    needs.into_iter().try_for_each(|need| setup.wait(need))?;
    let signals = Signals::hold()?;
    // One after the other: together, the one would be built with what the other wants of a library. This xtask itself is built for
    // tests, in which the FUSE library is not optimised.
    for what in [["--bin", "dlio-fs"], ["--package", "dlio-fs-bench"], ["--package", "xtask"]] {
        let built = signals.run(cargo::cargo(cx).args(["build", "--profile", "dist"]).args(what))?;
        ensure!(built.success(), "cargo build: {built}");
    }
    let _awake = wake::Awake::keep()?;
    // One after the other: there is room for one.
    for many_inodes in [false, true] {
        let parts = PARTS.iter().filter(|part| part.many_inodes == many_inodes && asked.parts.contains(&part.name));
        let parts: Vec<_> = parts.collect();
        if !parts.is_empty() {
            measure_on(spec(asked.quick, many_inodes), &parts, cx, asked, pages, &signals)?;
        }
    }
    Ok(())
}

fn spec(quick: bool, many_inodes: bool) -> Spec {
    let mut spec = Spec::default();
    spec.many_inodes = many_inodes;
    if quick {
        spec.size = QUICK_DISK;
    }
    spec
}

/// Measures these parts on a testbed that is built for them.
fn measure_on(
    spec: Spec,
    parts: &[&'static Part],
    cx: &Context,
    asked: &Asked,
    pages: &Pages,
    signals: &Signals,
) -> Result<()> {
    let testbed = Testbed::build(spec, signals)?;
    let baseline = testbed.baseline(signals)?;
    eprint!("{baseline}");
    if !baseline.holds() {
        eprintln!("warning: a disk is off; so is what is measured on it. Is something else busy here?");
    }
    let setup = about_this(cx, asked.quick, baseline.json())?;
    if let Some(warning) = wake::warning(setup.wake_up_us) {
        eprintln!("warning: {warning}");
    }
    let (program, logs) = (cx.target.join("dist/dlio-fs"), setup::work_dir(cx));
    let (python, juicefs) = (setup::torch_python(cx), setup::juicefs(cx));
    let stage =
        Stage { testbed: &testbed, signals, program: &program, juicefs: &juicefs, python: &python, logs: &logs };
    for part in parts {
        eprintln!("\n==== {}", part.name);
        let measured =
            part.measure(asked, &setup, &stage, &pages.fresh).with_context(|| format!("measuring {}", part.name));
        // What was measured before is on the page already.
        pages.keep(&measured?)?;
    }
    Ok(())
}

fn about_this(cx: &Context, quick: bool, baseline: serde_json::Value) -> Result<figures::Setup> {
    let packages = PARTS.iter().flat_map(|part| part.beside).filter_map(Beside::package).chain(["fio"]);
    let commit = quiet(Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(&cx.root));
    let max_pages = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    Ok(figures::Setup {
        date: quiet(Command::new("date").args(["-u", "+%F"]))?.trim().to_owned(),
        commit: commit.ok().map(|commit| commit.trim().to_owned()),
        max_pages: max_pages.ok().map(|pages| pages.trim().to_owned()),
        wake_up_us: wake::up()?,
        versions: peers::versions(packages),
        baseline,
        quick,
    })
}

impl Part {
    /// The command line of the program, with variables for the disks.
    fn command(&self, runs: u32, quick: bool) -> String {
        let args = if quick { self.quick } else { self.args };
        let [fast, slow] = [Device::Optane, self.slow].map(Device::variable);
        let mut line = format!("dlio-fs-bench {} --fast ${fast} --slow ${slow}", self.bench);
        for word in args.split_whitespace() {
            line = format!("{line} {word}");
        }
        line += &format!(" --runs {}", self.runs_max.map_or(runs, |most| most.min(runs)));
        for beside in self.beside.iter().filter(|beside| !matches!(beside, Beside::Unmeasured(..))) {
            line += &format!(" --also {}={}", beside.name(), beside.dir());
        }
        line
    }

    /// Measures it; figures and plots are in `fresh` then.
    fn measure(
        &'static self,
        asked: &Asked,
        setup: &figures::Setup,
        stage: &Stage<'_>,
        fresh: &Path,
    ) -> Result<Measured> {
        let [json, plot] = ["json", "svg"].map(|ending| fresh.join(self.name).with_extension(ending));
        for file in [&json, &plot] {
            // Of an earlier run, which must not be taken for this one's.
            fs::remove_file(file).or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
        }
        let mounted = stage.mount(self.beside)?;
        let line = self.command(asked.runs, asked.quick);
        eprintln!("$ {line}");
        let mut command = stage.run(&line);
        command.arg("--output").arg(&json).arg("--output").arg(&plot);
        let status = stage.signals.run(&mut command)?;
        stage.signals.check()?;
        ensure!(status.success(), "dlio-fs-bench: {status}");
        stage.unmount(mounted)?;
        let mounts = self.beside.iter().flat_map(Beside::commands).collect();
        let measured = Measured::of(self.name, setup.clone(), mounts, line, &json)?;
        measured.ensure_bench(self.bench)?;
        Ok(measured)
    }
}

/// What is written, and from what.
#[derive(Debug)]
struct Pages {
    /// The tree, or with `--quick` a place in Cargo's target directory.
    root: PathBuf,
    notes: PathBuf,
    /// For what is not whole yet.
    fresh: PathBuf,
}

impl Pages {
    fn new(cx: &Context, quick: bool) -> Result<Self> {
        let work = setup::work_dir(cx);
        let root = if quick { work.join("bench") } else { cx.root.clone() };
        let pages = Pages { notes: cx.root.join(FIGURES).join("notes.md"), fresh: work.join("bench-fresh"), root };
        for dir in [pages.root.join(FIGURES), pages.fresh.clone()] {
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(pages)
    }

    fn document(&self) -> PathBuf {
        self.root.join(DOCUMENT)
    }

    fn figures(&self, part: &str, ending: &str) -> PathBuf {
        self.root.join(FIGURES).join(part).with_extension(ending)
    }

    /// Puts a part's figures in the place of those that were there, and writes the document anew.
    fn keep(&self, measured: &Measured) -> Result<()> {
        let [json, plot] = ["json", "svg"].map(|ending| self.figures(&measured.part, ending));
        let fresh_plot = self.fresh.join(&measured.part).with_extension("svg");
        fs::copy(&fresh_plot, &plot)
            .with_context(|| format!("cannot copy {} to {}", fresh_plot.display(), plot.display()))?;
        fs::write(&json, measured.json()?).with_context(|| format!("cannot write {}", json.display()))?;
        self.write()
    }

    /// The figures of those parts that were measured.
    fn load(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<(Measured, Results)>> {
        let mut all = Vec::new();
        for part in PARTS.iter().filter(|part| wanted(part.name)) {
            if let Some(measured) = Measured::load(part.name, &self.figures(part.name, "json"))? {
                let results = measured.results()?;
                all.push((measured, results));
            }
        }
        Ok(all)
    }

    fn notes(&self) -> Result<Notes> {
        let text = fs::read_to_string(&self.notes).with_context(|| format!("cannot read {}", self.notes.display()))?;
        Notes::parse(&text).with_context(|| format!("in {}", self.notes.display()))
    }

    fn write(&self) -> Result<()> {
        let text = document::document(&self.load(|_| true)?, BARS, &self.notes()?)?;
        fs::write(self.document(), text).with_context(|| format!("cannot write {}", self.document().display()))
    }

    /// The table of bars.
    fn bars(&self) -> Result<String> {
        let measured = self.load(|_| true)?;
        document::verdicts(&BARS.iter().map(|bar| bar.judge(&measured)).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::figures::tests::sample;
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_command_line_says_what_to_measure() {
        let all: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        let asked = Asked { runs: 9, parts: all.clone(), quick: false, document: false };
        assert_eq!(parse(&[]).unwrap(), asked);
        let quick = parse(&args("--quick --only cost,tiers")).unwrap();
        assert_eq!(quick, Asked { runs: 3, parts: vec!["tiers", "cost"], quick: true, document: false });
        assert_eq!(parse(&args("--quick --runs 1")).unwrap().runs, 1);
        assert_eq!(parse(&args("--document")).unwrap(), Asked { document: true, ..asked });
    }

    #[test]
    fn a_wrong_command_line_names_the_word_and_what_it_could_be() {
        for (line, says) in [
            ("--runs", "--runs needs a value"),
            ("--runs 0", "`0` is no number of runs"),
            ("--runs many", "1 to 999"),
            (
                "--only tires",
                "`tires`: there are tiers, checkpoint, ranks, pace, ranks-torch, ranks-dcp, ingest, epoch, interference, files, listing, cost, fleet, blocks, metadata, drain, growth",
            ),
            ("--only tiers,", "no part is named ``"),
            ("--fast", "`--fast`"),
            ("--document --quick", "stands alone"),
        ] {
            let error = format!("{:#}", parse(&args(line)).unwrap_err());
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn the_program_is_told_of_everything_that_is_mounted() {
        let part = PARTS.iter().find(|part| part.name == "checkpoint").unwrap();
        assert_eq!(
            part.command(9, false),
            "dlio-fs-bench checkpoint --fast $DLIO_OPTANE --slow $DLIO_HDD --count 5 --size 600MB --runs 9 \
             --also ssd=$DLIO_SSD --also mergerfs=$DLIO_OPTANE/peers/mergerfs/mount --also rclone=$DLIO_HDD/peers/rclone/mount"
        );
        assert!(part.command(3, true).contains("--count 2 --size 20MB --runs 3"));
        let growth = PARTS.iter().find(|part| part.name == "growth").unwrap();
        let command = growth.command(9, false);
        assert!(command.ends_with("-o slow_wait=60s --runs 3"), "{command}");
        assert!(command.starts_with("dlio-fs-bench growth --fast $DLIO_OPTANE --slow $DLIO_SSD "), "{command}");
    }

    /// Else a bar would be of figures that no command makes.
    #[test]
    fn bars_are_of_what_their_part_measures() {
        for bar in BARS {
            let part = PARTS.iter().find(|part| part.name == bar.part).unwrap();
            assert_eq!(part.bench == "growth", bar.is_of_numbers(), "{}", bar.text);
            if bar.is_of_numbers() {
                continue;
            }
            let beside: Vec<String> = part.beside.iter().map(Beside::name).collect();
            let io =
                bar.place.strip_prefix("mount ").map(|io| io.trim_end_matches(" staged").trim_end_matches(" paused"));
            let asked = part.args.split_once("--io ").map_or("exact", |(_, rest)| rest.split(' ').next().unwrap());
            let is_there = match io {
                Some(io) => asked.split(',').any(|one| one == io),
                None => beside.iter().any(|name| name == bar.place),
            };
            assert!(is_there, "{}: {}", bar.text, bar.place);
            let own: &[&str] = if part.bench == "drain" { &[bars::PAUSED, bars::CP] } else { &[] };
            for to in bar.to {
                assert!(
                    ["fast", "slow"].contains(to) || own.contains(to) || beside.iter().any(|name| name == to),
                    "{}: {to}",
                    bar.text
                );
            }
        }
    }

    /// A part that is measured again takes nothing from the others.
    #[test]
    fn a_part_replaces_its_own_figures_only() {
        let root = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        let cx = Context { root: root.clone(), target: root.join("target"), all: false };
        fs::create_dir_all(root.join(FIGURES)).unwrap();
        fs::write(root.join(FIGURES).join("notes.md"), "## files\n\nA note.\n").unwrap();
        let pages = Pages::new(&cx, false).unwrap();
        let mut files = sample();
        let mut tiers = sample();
        tiers.part = "tiers".to_owned();
        for part in [&files, &tiers] {
            fs::write(pages.fresh.join(&part.part).with_extension("svg"), "<svg/>").unwrap();
            pages.keep(part).unwrap();
        }
        files.setup.date = "2026-02-01".to_owned();
        pages.keep(&files).unwrap();
        let text = fs::read_to_string(pages.document()).unwrap();
        assert!(text.contains("tiers: on 2026-01-31") && text.contains("files: on 2026-02-01"), "{text}");
        assert!(text.contains("A note."), "{text}");
        // One of no use is told of, unless it is to be measured anew.
        fs::write(pages.figures("tiers", "json"), "{").unwrap();
        let error = format!("{:#}", pages.load(|_| true).unwrap_err());
        assert!(error.contains("tiers.json") && error.contains("cargo xtask bench --only tiers"), "{error}");
        assert_eq!(pages.load(|part| part != "tiers").unwrap().len(), 1);
        let quick = Pages::new(&cx, true).unwrap();
        assert!(quick.document().starts_with(root.join("target")) && quick.load(|_| true).unwrap().is_empty());
        fs::remove_dir_all(root).unwrap();
    }
}
