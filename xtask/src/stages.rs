//! The stages of `cargo xtask test`: what each is for, what it needs, and when it is run.

use anyhow::{Result, bail};

use crate::setup::Need;
use crate::{Context, Tally, cargo, clients, conformance, files, guest, package, suites, user};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// `check`.
    Check,
    /// `test`.
    Test,
    /// `test --all`, or by name.
    All,
}

pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) when: When,
    pub(crate) needs: &'static [Need],
    /// Has both processors busy, or what the others need is not there before it has ended: no other stage runs beside it.
    pub(crate) alone: bool,
    /// After this long the stage is stuck: its programs are killed and it has failed.
    pub(crate) minutes: u64,
    /// What it takes at full length (`--all`) on two processors, installations included, where that is more than it does by default and was
    /// measured: only such a stage takes its turn in the rotation.
    pub(crate) full_minutes: Option<u64>,
    pub(crate) run: fn(&Context) -> Result<Tally>,
}

type Run = fn(&Context) -> Result<Tally>;

const fn stage(name: &'static str, when: When, needs: &'static [Need], minutes: u64, run: Run) -> Stage {
    Stage { name, about: "", when, needs, alone: false, minutes, full_minutes: None, run }
}

impl Stage {
    const fn about(self, about: &'static str) -> Stage {
        Stage { about, ..self }
    }

    const fn alone(self) -> Stage {
        Stage { alone: true, ..self }
    }

    /// At full length it takes so many minutes.
    const fn full(self, minutes: u64) -> Stage {
        Stage { full_minutes: Some(minutes), ..self }
    }
}

const MOUNT: &[Need] = &[Need::Mount];
const PYTHON: &[Need] = &[Need::Mount, Need::Python];
const TORCH: &[Need] = &[Need::Mount, Need::Torch];
const OBSERVE: &[Need] = &[Need::Mount, Need::Torch, Need::Python, Need::Strace];

/// In the order in which they are begun: what is built first, then what takes longest.
pub(crate) const STAGES: &[Stage] = &[
    stage("fmt", When::Check, &[], 5, cargo::fmt).about("formatting").alone(),
    stage("clippy", When::Check, &[], 15, cargo::clippy).about("lints").alone(),
    stage("doc", When::Check, &[], 15, cargo::doc).about("documentation").alone(),
    stage("build", When::Test, &[], 30, cargo::build).about("the program and all tests, once for all stages").alone(),
    stage("program", When::Test, &[Need::Mount, Need::Tiers, Need::Xfs, Need::Prometheus, Need::Lua, Need::Fio], 20, cargo::program)
        .about("the built programs on real mounts")
        .alone(),
    stage("unit", When::Test, &[], 20, cargo::unit)
        .about("model, damage, architecture and unit tests: what needs no mount"),
    stage("points", When::Test, &[Need::Mount, Need::Strace], 60, cargo::points)
        .about("stops at single calls of the daemon, power cuts there, calls that fail"),
    stage("kill", When::Test, MOUNT, 15, cargo::kill).about("42 SIGKILLs of the daemon under load"),
    stage("storm", When::All, &[Need::Mount, Need::Xfs], 60, cargo::storm)
        .about("processes beside a plain directory while daemons are killed and tiers fail: 3 minutes (--all: 40) of scripts of new seeds")
        .full(42),
    stage("power", When::Test, &[Need::Mount, Need::Xfs], 60, cargo::power)
        .about("100 power cuts on ext4 and xfs (--all: 1,600), on disks that write down what they are told"),
    stage("races", When::Test, &[], 30, cargo::races)
        .about("threads that meet on one file, under a scheduler that tries their orders"),
    stage("files", When::Test, MOUNT, 15, files::many_files)
        .about("10,000 files with 4,000 descriptors (--all: 50,000 with 20,000)"),
    stage("fsx", When::Test, &[Need::Mount, Need::Fsx], 40, conformance::fsx)
        .about("random reads, writes and mappings of one file while it is evicted and beside readers, on each I/O path"),
    stage("pjdfstest", When::Test, &[Need::Mount, Need::Pjdfstest], 5, conformance::pjdfstest)
        .about("398 POSIX cases on each I/O path, and over itself"),
    stage("lockstep", When::Test, MOUNT, 15, suites::lockstep)
        .about("random operations beside a plain directory while the mount is drained, evicted and read again"),
    stage("git", When::Test, MOUNT, 10, clients::git).about("git init, commit, clone, gc, fsck"),
    stage("user", When::Test, &[Need::Mount, Need::Pjdfstest, Need::User], 75, user::user)
        .about("git, a module cache, pjdfstest, random operations and the model as an ordinary user (--all: pip and cargo, too; one: SUITE=git)")
        .full(6),
    stage("sqlite", When::Test, MOUNT, 10, clients::sqlite).about("SQLite in six journal modes"),
    stage("keras", When::Test, PYTHON, 10, clients::keras).about("Keras ModelCheckpoint"),
    stage("keras_alexnet", When::Test, PYTHON, 10, clients::keras_alexnet)
        .about("the mini-application in Keras: tf.data, checkpoints, --resume"),
    stage("tensorflow", When::Test, PYTHON, 10, clients::tensorflow).about("TensorFlow CheckpointManager"),
    stage("tfdata", When::Test, PYTHON, 10, clients::tfdata).about("tf.data reads files and TFRecords"),
    stage("tensorboard", When::Test, PYTHON, 10, clients::tensorboard)
        .about("event files that stay open while they are read"),
    stage("h5py", When::Test, PYTHON, 10, clients::h5py).about("HDF5 files made, appended to and changed in place"),
    stage("safetensors", When::Test, PYTHON, 10, clients::safetensors).about("safetensors of NumPy arrays"),
    stage("exports", When::Test, PYTHON, 10, clients::exports)
        .about("reports for other tools, read by DuckDB and as JSON, hold every call"),
    stage("darshan", When::Test, PYTHON, 10, clients::darshan).about("logs for Darshan's tools, read by PyDarshan"),
    stage("manifests", When::Test, &[Need::Python], 5, clients::manifests)
        .about("the manifests for Kubernetes, against its schemas"),
    stage("torch", When::All, TORCH, 10, clients::torch).about("torch.save, torch.load, safetensors of tensors").full(2),
    stage("lightning", When::All, TORCH, 10, clients::lightning).about("Lightning ModelCheckpoint").full(2),
    stage("dcp", When::All, TORCH, 10, clients::dcp).about("torch.distributed.checkpoint, also asynchronous").full(2),
    stage("dcp_fleet", When::All, TORCH, 10, clients::dcp_fleet)
        .about("torch.distributed.checkpoint by three ranks, each with a mount of its own: 50 saves, and an observer of the slow tier")
        .full(3),
    stage("observe", When::All, OBSERVE, 10, clients::observe)
        .about("what is observed of an epoch of DataLoader and a fit of Keras, and what DFTracer sees, beside strace")
        .full(2),
    stage("dataloader", When::All, TORCH, 10, clients::dataloader).about("DataLoader with forked workers").full(2),
    stage("lightning_alexnet", When::All, TORCH, 10, clients::lightning_alexnet)
        .about("the mini-application in Lightning: DataLoader, checkpoints, --resume")
        .full(3),
    stage("deny", When::All, &[Need::CargoDeny], 15, cargo::deny)
        .about("licences and sources of all dependencies")
        .full(8),
    stage("packages", When::All, &[Need::Package], 60, package::tried::packages)
        .about("tarball, .deb, .rpm, wheel, image and crate: made, installed in throw-away places, and used there")
        .alone()
        .full(13),
    stage("motion", When::All, &[Need::Mount, Need::Pjdfstest, Need::Fsx, Need::Suites], 40, suites::motion)
        .about("ten suites while the mount is drained, evicted and read again all the time (one: MOTION=git)")
        .alone(),
    stage("nfs", When::All, &[Need::Mount, Need::Guest], 80, guest::nfs)
        .about("an NFS server as the slow tier, in a virtual machine: versions 3, 4.0 and 4.2, squashed, others' changes, away (one: NFS=4.2,none)")
        .full(20),
    stage("gluster", When::All, &[Need::Mount, Need::Gluster], 10, cargo::gluster)
        .about("GlusterFS with three replicas as the slow tier, one of them away for a while")
        .full(2),
    stage("slurm", When::All, &[Need::Mount, Need::Slurm], 10, clients::slurm)
        .about("a Slurm of three nodes runs jobs with the scripts and burst_buffer.lua of packaging/slurm")
        .full(2),
    stage("million", When::All, MOUNT, 30, files::million)
        .about("a million files that were there before, with 1,024 descriptors")
        .alone(),
    stage("fuzz", When::All, &[Need::CargoFuzz], 40, cargo::fuzz)
        .about("any bytes as log, super block, attributes, configuration, command, recording and trace, a minute each, with nightly Rust")
        .alone(),
];

/// Minutes that a day's stages may take at full length: as long as the longest of them.
const ROTATION: u64 = 42;

/// Those of `check`.
pub(crate) fn checks() -> Vec<&'static Stage> {
    STAGES.iter().filter(|stage| stage.when == When::Check).collect()
}

/// The named stages in the order of the table; without names those of `test`, and with `all` every one.
pub(crate) fn choose(names: &[&str], all: bool) -> Result<Vec<&'static Stage>> {
    for name in names {
        if named(name).is_none() {
            bail!("no stage is named `{name}`; `cargo xtask` lists them");
        }
    }
    let wanted = |stage: &&Stage| match names {
        [] => all || stage.when == When::Test,
        // Without it they would be built by the first of several that run at a time, while the others wait.
        names => names.contains(&stage.name) || (stage.name == "build" && names.len() > 1),
    };
    Ok(STAGES.iter().filter(wanted).collect())
}

pub(crate) fn named(name: &str) -> Option<&'static Stage> {
    STAGES.iter().find(|stage| stage.name == name)
}

/// The stages whose turn it is on this day to run at full length, as far as they fit into the time. They are dealt out to as many days
/// as it takes for those of a day to fit into [`ROTATION`].
pub(crate) fn turn(day: u64, minutes: u64) -> Vec<&'static Stage> {
    let mut days: Vec<(u64, Vec<&Stage>)> = Vec::new();
    for stage in STAGES {
        let Some(full) = stage.full_minutes else { continue };
        match days.iter_mut().find(|(taken, _)| taken + full <= ROTATION) {
            Some((taken, stages)) => {
                *taken += full;
                stages.push(stage);
            }
            None => days.push((full, vec![stage])),
        }
    }
    let today = day as usize % days.len();
    let mut left = minutes;
    let mut fits = |stage: &&Stage| {
        let rest = left.checked_sub(stage.full_minutes.unwrap_or(0));
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    days.swap_remove(today).1.into_iter().filter(|stage| fits(stage)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn stages_are_chosen_by_name_in_table_order() {
        let names = |names: &[&str]| choose(names, false).unwrap().iter().map(|stage| stage.name).collect::<Vec<_>>();
        assert_eq!(names(&["kill", "fmt"]), ["fmt", "build", "kill"]);
        assert_eq!(names(&["kill"]), ["kill"]);
        assert!(choose(&["kil"], false).is_err_and(|error| error.to_string().contains("`kil`")));
    }

    #[test]
    fn long_stages_run_only_when_asked_for() {
        let has_fuzz = |names: &[&str], all| choose(names, all).unwrap().iter().any(|stage| stage.name == "fuzz");
        assert!(!has_fuzz(&[], false));
        assert!(has_fuzz(&[], true));
        assert!(has_fuzz(&["fuzz"], false));
    }

    #[test]
    fn every_stage_has_its_turn_within_a_week_and_fits_into_its_day() {
        let all: BTreeSet<_> = STAGES.iter().filter(|stage| stage.full_minutes.is_some()).map(|s| s.name).collect();
        let mut had = BTreeSet::new();
        for day in 20_000..20_007 {
            let today = turn(day, ROTATION);
            assert!(today.iter().filter_map(|stage| stage.full_minutes).sum::<u64>() <= ROTATION, "day {day}");
            had.extend(today.iter().map(|stage| stage.name));
        }
        assert_eq!(had, all);
    }
}
