//! The daemon is killed at random moments under load, again and again (promises P1, P3 and P5).
//!
//! Workers do what training frameworks do and keep a ledger of every call that returned. After each SIGKILL the slow
//! tier is looked at as if the node were lost, then the daemon is started again and the view must show everything that
//! was acknowledged. What the workers do follows from the seed that is printed (`KILL_SEED` repeats it); where the kill
//! hits does not.
//!
//! Each test runs in a process of its own ([`alone`]).

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod daemon;
mod samples;
#[path = "../traffic/mod.rs"]
mod traffic;
#[path = "../world/mod.rs"]
mod world;

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use daemon::Mount;
use samples::Samples;
use traffic::ledger::{Change, positions};
use traffic::tree::{self, Tree};
use traffic::{Habits, Worker, generation_of, now};

const WORKERS: usize = 4;

#[test]
#[ignore = "needs root and /dev/fuse and takes a minute: cargo xtask test kill"]
fn twenty_kills_leave_an_exact_prefix() {
    alone("twenty_kills_leave_an_exact_prefix", || kills_of_new_files(Habits::NewFiles, "io=exact", 20));
}

#[test]
#[ignore = "needs root and /dev/fuse and takes a minute: cargo xtask test kill"]
fn ten_kills_under_rewrites_leave_nothing_torn() {
    alone("ten_kills_under_rewrites_leave_nothing_torn", || kills_of_new_files(Habits::InPlace, "io=exact", 10));
}

/// What is in the page cache has been acknowledged by the daemon too.
#[test]
#[ignore = "needs root and /dev/fuse and takes a minute: cargo xtask test kill"]
fn six_kills_under_cached_files_lose_nothing() {
    alone("six_kills_under_cached_files_lose_nothing", || kills_of_new_files(Habits::InPlace, "io=cached", 6));
}

/// Over files that the slow tier had: they are staged and promoted, read, written over and evicted; one is pinned, and some of what
/// is written does not pass the fast tier.
#[test]
#[ignore = "needs root and /dev/fuse and takes a minute: cargo xtask test kill"]
fn six_kills_of_a_mount_that_stages_leave_no_stale_copy() {
    alone("six_kills_of_a_mount_that_stages_leave_no_stale_copy", kills_of_a_mount_that_stages);
}

fn kills_of_a_mount_that_stages() {
    let mut random = dice();
    let (mut samples, mut staging) = (Samples::default(), Worker::new("data".into(), Habits::DataSet, random.random()));
    let arguments = ["-o", "io=exact", "-o", "promote=true", "-o", NOT_ABSORBED, "--stage", "set/staged-*"];
    let mount = Mount::new(&arguments, |slow| {
        samples.fill(slow);
        DirBuilder::new().mode(0o700).create(slow.join("data")).unwrap();
        staging.begin_with_samples(&slow.join("data"));
    });
    staging.dir = mount.point().join("data");
    let mut workers = new_files(&mount, 3, Habits::NewFiles, &mut random);
    workers.push(staging);
    samples.stage_and_pin(&mount);
    let mount = kill_over_and_over(mount, &mut workers, 6, &mut random, &mut samples);
    samples.are_all_staged_in_the_end(&mount);
    finish(mount);
}

/// A daemon that another test starts would close its copies of the descriptors of this one's workers, and by that half a file.
fn alone(test: &str, kills: impl FnOnce()) {
    const ALONE: &str = "KILL_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return kills();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(ALONE, "1");
    let done = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    // It is counted once, here.
    said.lines().filter(|line| !line.starts_with("test result: ")).for_each(|line| println!("{line}"));
    assert!(done.status.success(), "{test}: {}", done.status);
}

const NOT_ABSORBED: &str = r#"rules=[{path="**/{model.keras,weights,sample-*[0-4]}", absorb=false}]"#;

fn kills_of_new_files(habits: Habits, io: &str, kills: u32) {
    let mut random = dice();
    let mount = Mount::new(&["-o", io], |_| ());
    let mut workers = new_files(&mount, WORKERS, habits, &mut random);
    finish(kill_over_and_over(mount, &mut workers, kills, &mut random, &mut Samples::default()));
}

fn dice() -> SmallRng {
    assert!(nix::unistd::geteuid().is_root(), "the kill test mounts a file system: run it as root");
    let seed = std::env::var("KILL_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("KILL_SEED={seed}");
    SmallRng::seed_from_u64(seed)
}

fn new_files(mount: &Mount, count: usize, habits: Habits, random: &mut SmallRng) -> Vec<Worker> {
    let worker = |number| {
        let dir = mount.point().join(format!("worker{number}"));
        std::fs::create_dir(&dir).unwrap();
        Worker::new(dir, habits, random.random())
    };
    (0..count).map(worker).collect()
}

fn kill_over_and_over(
    mut mount: Mount,
    workers: &mut [Worker],
    kills: u32,
    random: &mut SmallRng,
    samples: &mut Samples,
) -> Mount {
    let mut slow = SlowTier { top: mount.slow(), workers: Default::default() };
    let mut behind = 0;
    let mut advanced = 0;
    for round in 1..=kills {
        let moment = Duration::from_millis(random.random_range(20..2500));
        work_until_killed(&mut mount, workers, samples, moment);
        let found = slow.look(workers);
        samples.change_some(&mount.slow(), random);
        mount.start();
        samples.are_as_on_slow(&mount);
        let difference = settle(workers);
        println!("round {round}: killed after {moment:?}; {found:?}");
        difference
            .unwrap_or_else(|difference| panic!("round {round}: the view lost or made up something: {difference}"));
        behind += u32::from(found.behind);
        advanced += u32::from(found.advanced);
    }
    // Kills that always found the slow tier up to date, or always empty, would prove nothing.
    assert!(behind * 5 >= kills, "only {behind} of {kills} kills found something that was not drained yet");
    assert!(advanced * 5 >= kills, "the slow tier had advanced at only {advanced} of {kills} kills");
    mount
}

fn work_until_killed(mount: &mut Mount, workers: &mut [Worker], samples: &Samples, moment: Duration) {
    let point = mount.point();
    let killed = thread::scope(|scope| {
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| worker.work())).collect();
        let reader = scope.spawn(|| samples.read_until_killed(&point));
        thread::sleep(moment);
        let killed = now();
        mount.kill();
        for thread in threads.into_iter().chain([reader]) {
            thread.join().unwrap();
        }
        killed
    });
    let failed = workers.iter_mut().filter_map(|worker| worker.failed.take()).min();
    assert!(failed.is_none_or(|failed| failed > killed), "a call had failed before the daemon was killed");
}

fn settle(workers: &mut [Worker]) -> Result<(), String> {
    for worker in workers {
        let seen = tree::read(&worker.dir).map_err(|error| error.to_string())?;
        worker.ledger.settle(&seen).map_err(|difference| format!("{}: {difference}", worker.dir.display()))?;
    }
    Ok(())
}

/// Everything drained, the slow tier must equal the view in every byte and attribute.
fn finish(mut mount: Mount) {
    mount.drain();
    let view = tree::read(&mount.point()).unwrap();
    let slow = tree::read(&mount.slow()).unwrap();
    let differences = tree::differences(&view, &slow);
    assert!(view.len() > WORKERS, "the view is empty: {view:?}");
    assert!(differences.is_empty(), "view and slow tier differ after the drain:\n{}", differences.join("\n"));
    mount.umount();
    let alone = tree::read(&mount.slow()).unwrap();
    let differences = tree::differences(&view, &alone);
    assert!(differences.is_empty(), "the slow tier changed by the unmount:\n{}", differences.join("\n"));
    println!("drained: {} names are equal on both", view.len());
}

/// What is known of the slow tier from earlier looks.
struct SlowTier {
    top: PathBuf,
    workers: BTreeMap<usize, Known>,
}

#[derive(Default)]
struct Known {
    /// How many of the worker's changes the slow tier has at least.
    position: usize,
    /// What the manifest named.
    manifest: u64,
    tree: Tree,
}

#[derive(Debug)]
struct Found {
    /// Not everything that was acknowledged is on the slow tier.
    behind: bool,
    /// The slow tier is not what it was at the last look.
    advanced: bool,
}

impl SlowTier {
    /// Looks at the slow tier while no daemon runs, as whoever has lost the node would.
    fn look(&mut self, workers: &[Worker]) -> Found {
        let mut found = Found { behind: false, advanced: false };
        let mut histories = Vec::new();
        for (number, worker) in workers.iter().enumerate() {
            let tree = tree::read(&self.top.join(worker.dir.file_name().unwrap())).unwrap();
            let known = self.workers.entry(number).or_default();
            nothing_torn(worker, &tree);
            known.manifest = manifest_names_what_is_there(&tree, known.manifest);
            let changes = worker.ledger.with_in_flight();
            let possible: Vec<usize> =
                positions(&changes, &tree).into_iter().filter(|k| *k >= known.position).collect();
            let keeps_all = worker.habits != Habits::InPlace;
            if keeps_all {
                let Some(first) = possible.first() else {
                    let since = known.position;
                    panic!("{}: no prefix of the order, from change {since} on, gives {tree:#?}", worker.dir.display());
                };
                known.position = *first;
            }
            found.behind |= possible.last().is_none_or(|last| *last < worker.ledger.changes().len());
            found.advanced |= !tree::differences(&tree, &known.tree).is_empty();
            known.tree = tree;
            histories.extend(keeps_all.then_some((changes, possible)));
        }
        one_order_for_all(&histories);
        found
    }
}

/// Every file is whole and is a version that its worker closed under this name.
fn nothing_torn(worker: &Worker, slow: &Tree) {
    for (path, seen) in slow {
        let whole = !matches!(seen.shown, tree::Shown::File { .. }) || seen.generations.is_some();
        assert!(whole, "torn on the slow tier: {} {}: {seen:?}", worker.dir.display(), path.display());
        let known = worker.ledger.ever_had(path, &seen.shown);
        assert!(known, "never closed like this: {} {}: {seen:?}", worker.dir.display(), path.display());
    }
}

/// The manifest's generation has its data, and is not older than before. Returns it.
fn manifest_names_what_is_there(slow: &Tree, before: u64) -> u64 {
    let Some(manifest) = slow.get(Path::new("manifest")) else {
        assert_eq!(before, 0, "the manifest has gone from the slow tier");
        return 0;
    };
    let generation = manifest.generations.as_ref().expect("nothing is torn")[0];
    assert!(generation >= before, "the manifest went back from {before} to {generation}");
    let data = slow.iter().find(|(path, _)| generation_of(path) == Some(generation));
    let whole = data.is_some_and(|(_, data)| data.generations.as_deref() == Some(&[generation]));
    assert!(whole, "the manifest names generation {generation}, which has {data:?}");
    generation
}

/// No worker's change is on the slow tier without every change of another worker that had returned before it began.
fn one_order_for_all(histories: &[(Vec<Change>, Vec<usize>)]) {
    for (one, (changes, possible)) in histories.iter().enumerate() {
        // The last change that is there for certain.
        let Some(there) = possible[0].checked_sub(1).map(|at| &changes[at]) else { continue };
        for (other, (changes, possible)) in histories.iter().enumerate() {
            // The first change that is missing for certain.
            let Some(missing) = possible.last().and_then(|at| changes.get(*at)) else { continue };
            assert!(
                missing.end >= there.start,
                "worker {one} has on the slow tier {there:?}, but not worker {other}'s earlier {missing:?}"
            );
        }
    }
}

/// The workers and their ledgers agree with an ordinary directory, stopped at any call: whatever the kill test finds,
/// the file system did.
#[test]
fn ledgers_agree_with_a_local_file_system() {
    for seed in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let habits = if seed % 4 == 0 { Habits::DataSet } else { Habits::InPlace };
        let mut worker = Worker::new(dir.path().to_owned(), habits, seed);
        if habits == Habits::DataSet {
            worker.begin_with_samples(dir.path());
        }
        worker.pause_max = Duration::ZERO;
        let mut random = SmallRng::seed_from_u64(seed);
        for _ in 0..10 {
            worker.budget = random.random_range(1..100);
            worker.work();
            let seen = tree::read(dir.path()).unwrap();
            worker.ledger.settle(&seen).unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
            nothing_torn_here(&worker, &seen);
        }
    }
}

/// The check of whole files holds where every file was closed, and only there.
fn nothing_torn_here(worker: &Worker, seen: &Tree) {
    let unfinished = worker.ledger.unfinished();
    let closed: Tree =
        seen.iter().filter(|(path, _)| !unfinished.contains(path)).map(|(p, s)| (p.clone(), s.clone())).collect();
    nothing_torn(worker, &closed);
    if unfinished.is_empty() {
        let changes = worker.ledger.changes();
        assert_eq!(positions(changes, seen).last(), Some(&changes.len()), "the newest state is the last position");
    }
}
