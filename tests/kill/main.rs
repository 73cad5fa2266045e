//! The daemon is killed at random moments under load, again and again (promises P1, P3 and P5).
//!
//! Workers do what training frameworks do and keep a ledger of every call that returned. After each SIGKILL the slow
//! tier is looked at as if the node were lost, then the daemon is started again and the view must show everything that
//! was acknowledged. What the workers do follows from the seed that is printed (`KILL_SEED` repeats it); where the kill
//! hits does not.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod daemon;
#[path = "../traffic/mod.rs"]
mod traffic;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use daemon::Mount;
use traffic::ledger::{Change, positions};
use traffic::tree::{self, Tree};
use traffic::{Habits, Worker, generation_of};

const WORKERS: usize = 4;

#[test]
#[ignore = "needs root and /dev/fuse and takes a minute: cargo xtask test kill"]
fn twenty_kills_leave_an_exact_prefix() {
    kill_over_and_over(Habits::NewFiles, "io=exact", 20);
}

#[test]
#[ignore = "needs root and /dev/fuse and takes a minute: cargo xtask test kill"]
fn ten_kills_under_rewrites_leave_nothing_torn() {
    kill_over_and_over(Habits::InPlace, "io=exact", 10);
}

/// What is in the page cache has been acknowledged by the daemon too.
#[test]
#[ignore = "needs root and /dev/fuse and takes a minute: cargo xtask test kill"]
fn six_kills_under_cached_files_lose_nothing() {
    kill_over_and_over(Habits::InPlace, "io=cached", 6);
}

fn kill_over_and_over(habits: Habits, io: &str, kills: u32) {
    assert!(nix::unistd::geteuid().is_root(), "the kill test mounts a file system: run it as root");
    let seed = std::env::var("KILL_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("KILL_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut mount = Mount::new(io);
    let mut workers: Vec<Worker> = (0..WORKERS)
        .map(|number| {
            let dir = mount.point().join(name(number));
            std::fs::create_dir(&dir).unwrap();
            Worker::new(dir, habits, seed.wrapping_add(number as u64))
        })
        .collect();
    let mut slow = SlowTier { top: mount.slow(), habits, workers: Default::default() };
    let mut behind = 0;
    let mut advanced = 0;
    for round in 1..=kills {
        let moment = Duration::from_millis(random.random_range(20..2500));
        work_until_killed(&mut mount, &mut workers, moment);
        let found = slow.look(&workers);
        mount.start();
        let difference = settle(&mut workers);
        println!("round {round}: killed after {moment:?}; {found:?}");
        difference
            .unwrap_or_else(|difference| panic!("round {round}: the view lost or made up something: {difference}"));
        behind += u32::from(found.behind);
        advanced += u32::from(found.advanced);
    }
    // Kills that always found the slow tier up to date, or always empty, would prove nothing.
    assert!(behind * 5 >= kills, "only {behind} of {kills} kills found something that was not drained yet");
    assert!(advanced * 5 >= kills, "the slow tier had advanced at only {advanced} of {kills} kills");
    finish(mount);
}

fn name(number: usize) -> String {
    format!("worker{number}")
}

fn work_until_killed(mount: &mut Mount, workers: &mut [Worker], moment: Duration) {
    thread::scope(|scope| {
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| worker.work())).collect();
        thread::sleep(moment);
        mount.kill();
        for thread in threads {
            thread.join().unwrap();
        }
    });
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
    habits: Habits,
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
            let tree = tree::read(&self.top.join(name(number))).unwrap();
            let known = self.workers.entry(number).or_default();
            nothing_torn(worker, &tree);
            known.manifest = manifest_names_what_is_there(&tree, known.manifest);
            let changes = worker.ledger.with_in_flight();
            let possible: Vec<usize> =
                positions(&changes, &tree).into_iter().filter(|k| *k >= known.position).collect();
            if self.habits == Habits::NewFiles {
                let Some(first) = possible.first() else {
                    let since = known.position;
                    panic!("{}: no prefix of the order, from change {since} on, gives {tree:#?}", worker.dir.display());
                };
                known.position = *first;
            }
            found.behind |= possible.last().is_none_or(|last| *last < worker.ledger.changes().len());
            found.advanced |= !tree::differences(&tree, &known.tree).is_empty();
            known.tree = tree;
            histories.push((changes, possible));
        }
        if self.habits == Habits::NewFiles {
            one_order_for_all(&histories);
        }
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
        let mut worker = Worker::new(dir.path().to_owned(), Habits::InPlace, seed);
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
