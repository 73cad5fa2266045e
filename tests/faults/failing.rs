//! Every call of either tier fails once, or from then on, in the engine on simulated disks: the first, the second, ... until
//! a run meets no fault any more. A short run takes some of these calls, by dice.
//!
//! Whatever fails: nothing acknowledged is lost, each state of the slow tier is one of the order, an fsync that succeeded
//! survives a power cut, no file is synced again after its sync has failed, and once nothing fails any more everything
//! arrives on the slow tier - by itself, or after a start where an fsync of the log or of an object has failed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::MetadataOrder;
use dlio_fs::tiers::disk::faults::{CHANGING, Counts, LOOKING, TierName};
use parking_lot::Mutex;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::engine::{World, tree_of};
use crate::script::{Failed, Player, Step, Target, brief, brief_tree, script};
use crate::traffic::ledger::Op;
use crate::traffic::tree::Tree;

/// What one fault is.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) tier: &'static str,
    pub(crate) call: &'static str,
    pub(crate) nth: u64,
    /// How many calls in a row fail: `1`, or `*` for all until the end.
    pub(crate) count: &'static str,
    pub(crate) what: &'static str,
    pub(crate) eager: bool,
    pub(crate) journaled: bool,
    /// How it ends: power cut (the seed), or a drain.
    pub(crate) cut: Option<u64>,
    /// After how many calls and other steps.
    pub(crate) steps: usize,
}

impl Case {
    fn without_faults() -> Self {
        let (tier, call, nth, count, what) = ("fast", "mknod", 1, "1", "EIO");
        Case { tier, call, nth, count, what, eager: true, journaled: true, cut: None, steps: usize::MAX }
    }

    fn rule(&self) -> String {
        let Case { tier, call, nth, count, what, .. } = self;
        format!("at={tier}:{call}:{nth}:{count}:{what}")
    }

    fn allows(&self, errno: Errno) -> bool {
        let own = match self.what {
            "short" => "ENOSPC",
            what => what,
        };
        errno == Errno::EIO || format!("{errno:?}") == own
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) fired: u64,
    /// The calls that a rule could have been about.
    met: Counts,
    /// It took a start until everything was drained.
    restarted: bool,
}

pub(crate) type Check<T = ()> = Result<T, String>;

struct Run {
    case: Case,
    world: World,
    player: Player,
    /// Positions of the order that the slow tier has passed.
    since: usize,
    story: Vec<String>,
}

impl Run {
    fn new(case: Case) -> Self {
        let order = if case.journaled { MetadataOrder::Journaled } else { MetadataOrder::Unknown };
        let world = World::new(order, case.eager);
        Run { case, world, player: Player::new(), since: 0, story: Vec::new() }
    }

    fn note(&mut self, line: String) {
        self.story.push(line);
    }

    fn run(&mut self) -> Check<Outcome> {
        self.world.start().map_err(|e| format!("the first start failed: {e}"))?;
        let before = self.world.faults.counts();
        self.world.faults.set(&self.case.rule()).map_err(|e| e.to_string())?;
        let mut left = self.case.steps;
        for paragraph in script() {
            let now = left.min(paragraph.len());
            left -= now;
            self.play(&paragraph[..now], left == 0)?;
        }
        self.world.fill(false);
        let (fired, met) = (self.world.faults.fired(), self.met_since(&before));
        self.world.faults.set("").map_err(|e| e.to_string())?;
        let restarted = match self.case.cut {
            Some(seed) => self.cut(seed)?,
            None => self.recover_by_itself()?,
        };
        self.equal()?;
        Ok(Outcome { fired, met, restarted })
    }

    /// The same where the calls of a start fail, after a kill or a power cut in the middle of the script.
    fn run_start(&mut self) -> Check<Outcome> {
        self.world.start().map_err(|e| format!("the first start failed: {e}"))?;
        let mut left = self.case.steps;
        for paragraph in script() {
            let now = left.min(paragraph.len());
            left -= now;
            self.play(&paragraph[..now], left == 0)?;
        }
        self.world.stop(self.case.cut);
        self.player.dead();
        self.player.change_behind(&mut [&mut self.world]);
        self.world.slow.take_observed();
        let before = self.world.faults.counts();
        self.world.faults.set(&self.case.rule()).map_err(|e| e.to_string())?;
        let started = self.world.start();
        let (fired, met) = (self.world.faults.fired(), self.met_since(&before));
        self.world.faults.set("").map_err(|e| e.to_string())?;
        let restarted = started.is_err();
        if let Err(e) = started {
            self.note(format!("the start: {e}"));
            if !self.case.allows(e.errno()) {
                return Err(format!("the start failed with {e}"));
            }
            self.world.stop(None);
            self.world.start().map_err(|e| format!("the next start failed: {e}"))?;
        }
        let seen = self.world.tree()?;
        match self.case.cut {
            Some(_) => self.player.survived(&seen)?,
            None => self.player.shows(&seen)?,
        }
        self.player.pins(&self.world.pins()?)?;
        if self.world.drain().is_err() {
            // As after any fsync that failed on the fast tier.
            self.world.stop(None);
            self.world.start().map_err(|e| format!("the last start failed: {e}"))?;
            self.drain_after_a_start()?;
        }
        self.equal()?;
        Ok(Outcome { fired, met, restarted })
    }

    fn met_since(&self, before: &Counts) -> Counts {
        let mut met = self.world.faults.counts();
        met.iter_mut().for_each(|(call, count)| *count -= before.get(call).copied().unwrap_or(0));
        met
    }

    fn play(&mut self, paragraph: &[Step], last: bool) -> Check {
        for step in paragraph {
            match step {
                Step::Do(op) => {
                    if self.call(op)? {
                        continue;
                    }
                    break;
                }
                Step::Drain => {
                    let drained = self.world.drain().is_ok();
                    self.note(format!("drain: {drained} {:?}", self.world.trouble));
                    self.check_slow_tree()?;
                    if drained {
                        self.player.drained();
                    }
                }
                Step::Evict => self.world.evict(),
                // With faults: what cannot be read is none of this test's business as long as nothing panics.
                Step::Look => drop(self.world.tree_with_faults()),
                Step::Bring(dir, read) => self.world.bring(dir, read),
                Step::Read(path) if self.player.ledger.has(path) => match self.world.read(path) {
                    Ok(found) => self.player.reads(path, &found)?,
                    Err(errno) => self.failed(&format!("reading {}", path.display()), errno)?,
                },
                Step::Read(_) => {}
                Step::Fill(full) => self.world.fill(*full),
                Step::Pin(path) => {
                    if let Err(errno) = self.player.pin(&mut self.world, path) {
                        self.failed("pinning", errno)?;
                    }
                }
            }
        }
        if let Some(path) = self.player.open_file().filter(|_| !last || self.case.cut.is_none()) {
            self.call(&Op::Close(path))?;
        }
        self.check_slow_tree()
    }

    /// One call; `false` if it failed.
    fn call(&mut self, op: &Op) -> Check<bool> {
        let done = self.player.play(&mut self.world, op);
        match done {
            Ok(()) => Ok(true),
            Err(Failed::Impossible) => Ok(false),
            Err(Failed::Errno(errno)) => {
                self.failed(&brief(op), errno)?;
                // A second fsync would succeed in the kernel, and prove nothing.
                let failed_sync = matches!(op, Op::Fsync(_)) && matches!(self.case.call, "sync" | "sync_dir");
                if failed_sync && self.world.perform(op).is_ok() {
                    return Err(format!("{}: {errno}, and then a success", brief(op)));
                }
                let seen = self.world.tree()?;
                self.player.settle(op, &seen).map_err(|why| format!("after {}: {errno}: {why}", brief(op)))?;
                Ok(false)
            }
        }
    }

    /// An error is told as what it is.
    fn failed(&mut self, what: &str, errno: Errno) -> Check {
        self.note(format!("{what}: {errno}"));
        if self.case.allows(errno) { Ok(()) } else { Err(format!("{what} failed with {errno}")) }
    }

    /// P1 and P5.
    fn check_slow_tree(&mut self) -> Check {
        for image in self.world.slow.take_observed() {
            let slow = tree_of(&image);
            let Some(first) = self.player.positions(&slow, self.since).first().copied() else {
                return Err(format!(
                    "the slow tier is at no position of the order since {}: {}",
                    self.since,
                    brief_tree(&slow)
                ));
            };
            self.since = first;
        }
        Ok(())
    }

    /// The power is cut with everything as it is: P4.
    fn cut(&mut self, seed: u64) -> Check<bool> {
        self.world.stop(Some(seed));
        self.player.dead();
        self.world.slow.take_observed();
        let slow = tree_of(&self.world.slow.image());
        if self.player.positions(&slow, self.player.on_slow()).is_empty() {
            return Err(format!("the power cut left the slow tier at no position of the order: {}", brief_tree(&slow)));
        }
        self.player.change_behind(&mut [&mut self.world]);
        self.world.start().map_err(|e| format!("the start after the power cut failed: {e}"))?;
        let seen = self.world.tree()?;
        self.player.survived(&seen).map_err(|why| format!("after the power cut: {why}"))?;
        self.player.pins(&self.world.pins()?)?;
        self.drain_after_a_start()?;
        Ok(true)
    }

    /// Nothing fails any more.
    fn recover_by_itself(&mut self) -> Check<bool> {
        let seen = self.world.tree()?;
        self.player.shows(&seen).map_err(|why| format!("once nothing failed any more: {why}"))?;
        let drained = self.world.drain().is_ok();
        self.check_slow_tree()?;
        if drained {
            return Ok(false);
        }
        self.note(format!("it needs a start: {:?}", self.world.trouble));
        if !self.needs_a_start() {
            let status = self.world.engine().status();
            return Err(format!("not drained by itself: {:?} {status:?}", self.world.trouble));
        }
        self.world.stop(None);
        self.player.change_behind(&mut [&mut self.world]);
        self.world.slow.take_observed();
        self.world.start().map_err(|e| format!("the next start failed: {e}"))?;
        let seen = self.world.tree()?;
        self.player.shows(&seen).map_err(|why| format!("after the next start: {why}"))?;
        self.player.pins(&self.world.pins()?)?;
        self.drain_after_a_start()?;
        Ok(true)
    }

    /// A failed fsync on the fast tier is not tried again, nor one of an object that lies on the slow tier, and a log that could not be
    /// cut back is closed.
    fn needs_a_start(&self) -> bool {
        let of_an_object = || self.world.trouble.as_ref().is_some_and(|trouble| trouble.starts_with("seal: fsync "));
        match self.case.call {
            "sync" | "sync_dir" => self.case.tier == "fast" || of_an_object(),
            "set_len" => self.case.tier == "fast",
            _ => false,
        }
    }

    fn drain_after_a_start(&mut self) -> Check {
        if self.world.drain().is_err() {
            let status = self.world.engine().status();
            return Err(format!("not drained after a start: {:?} {status:?}", self.world.trouble));
        }
        Ok(())
    }

    fn equal(&mut self) -> Check {
        let (view, slow) = (self.world.tree()?, tree_of(&self.world.slow.image()));
        let same = |one: &Tree, other: &Tree| {
            one.iter().all(|(path, seen)| other.get(path).is_some_and(|found| found.same_to_applications(seen)))
        };
        if !same(&view, &slow) || !same(&slow, &view) {
            return Err(format!("drained, but not equal:\n{}\n{}", brief_tree(&view), brief_tree(&slow)));
        }
        let status = self.world.engine().status();
        // What a power cut discarded is put aside.
        if status.exceptions.conflicts > 0 || (self.case.cut.is_none() && status.exceptions.quarantined > 0) {
            return Err(format!("conflicts or files put aside: {status:?}"));
        }
        Ok(())
    }
}

pub(crate) fn run(case: &Case) -> Check<Outcome> {
    run_as(case, Run::run)
}

fn run_as(case: &Case, how: Kind) -> Check<Outcome> {
    let mut run = Run::new(case.clone());
    let done = catch_unwind(AssertUnwindSafe(|| how(&mut run)));
    let why = match done {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(why)) => why,
        Err(_) => "panicked, see above".to_owned(),
    };
    Err(format!("{case:?}\n{}\n{why}", run.story.join("\n")))
}

type Kind = fn(&mut Run) -> Check<Outcome>;

struct Totals {
    runs: AtomicU64,
    faults: AtomicU64,
    restarts: AtomicU64,
    stop: AtomicBool,
    failures: Mutex<Vec<String>>,
}

/// Runs `cases`: of a full run each with the first call that it names, then later ones, until none fails any more.
fn all(how: Kind, cases: Vec<Case>) -> Totals {
    let totals = Totals {
        runs: AtomicU64::new(0),
        faults: AtomicU64::new(0),
        restarts: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        failures: Mutex::default(),
    };
    let left = Mutex::new(if is_full_run() { cases } else { some_of(how, &cases) });
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !totals.stop.load(Ordering::Relaxed) {
                    let Some(case) = left.lock().pop() else { return };
                    until_no_fault(how, case, &totals);
                }
            });
        }
    });
    totals
}

/// What a short run takes of them: each with one of the calls that it meets as long as none fails, and with one more for every so many.
fn some_of(how: Kind, cases: &[Case]) -> Vec<Case> {
    const EVERY: u64 = 32;
    let (mut dice, mut known, mut some) = (dice(), BTreeMap::new(), Vec::new());
    for case in cases {
        let without = Case { nth: u64::MAX, count: "1", ..case.clone() };
        let key = (case.eager, case.journaled, case.cut, case.steps);
        let met = known.entry(key).or_insert_with(|| run_as(&without, how).unwrap_or_else(|why| panic!("{why}")).met);
        let tier: TierName = case.tier.parse().unwrap();
        let Some(calls) = met.get(&(tier, case.call)).filter(|calls| **calls > 0) else { continue };
        some.extend((0..1 + calls / EVERY).map(|_| Case { nth: dice.random_range(1..=*calls), ..case.clone() }));
    }
    some
}

fn until_no_fault(how: Kind, mut case: Case, totals: &Totals) {
    while !totals.stop.load(Ordering::Relaxed) {
        totals.runs.fetch_add(1, Ordering::Relaxed);
        match run_as(&case, how) {
            Ok(Outcome { fired: 0, .. }) => return,
            Ok(Outcome { fired, restarted, .. }) => {
                totals.faults.fetch_add(fired, Ordering::Relaxed);
                totals.restarts.fetch_add(u64::from(restarted), Ordering::Relaxed);
            }
            Err(why) => {
                let mut failures = totals.failures.lock();
                failures.push(why);
                // One of each kind tells more than the first one.
                if failures.len() >= 40 {
                    totals.stop.store(true, Ordering::Relaxed);
                }
                return;
            }
        }
        if !is_full_run() {
            return;
        }
        case.nth += 1;
    }
}

/// Without faults it does all that may fail.
#[test]
fn the_script_stages_promotes_splits_and_spills() {
    for eager in [false, true] {
        let mut run = Run::new(Case { eager, ..Case::without_faults() });
        run.run().unwrap();
        let status = run.world.engine().status();
        // One that was copied is promoted once more, when the test looks at the tree.
        assert!(status.pipeline.staged_files >= 4, "{status:?}");
        assert_eq!((status.exceptions.spilled, status.exceptions.in_place_writes), (2, 1), "{status:?}");
    }
}

/// Among them the moments at which a staged copy was written over and not synced: it must not be taken for the slow file's equal.
#[test]
fn a_power_cut_after_any_step_loses_nothing() {
    let all: usize = script().iter().map(Vec::len).sum();
    let mut dice = dice();
    for steps in 1..=all {
        let seeds = if is_full_run() { (0..50).collect() } else { vec![dice.random(), dice.random()] };
        for seed in seeds {
            let (eager, journaled) = (seed % 2 == 0, seed % 4 < 2);
            let case = Case { eager, journaled, cut: Some(seed), steps, ..Case::without_faults() };
            run(&case).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

pub(crate) fn is_full_run() -> bool {
    std::env::var_os("DLIO_FAULTS_ALL").is_some()
}

/// By which a short run chooses: others each time, by a number that is printed and that `DLIO_FAULTS_SEED` repeats.
pub(crate) fn dice() -> Xoshiro256PlusPlus {
    let seed = match std::env::var("DLIO_FAULTS_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(),
    };
    println!("DLIO_FAULTS_SEED={seed}");
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

#[test]
fn any_call_of_the_engine_may_fail() {
    let errnos: &[&str] = if is_full_run() { &["EIO", "ENOSPC", "EDQUOT", "EACCES", "EROFS"] } else { &["EIO"] };
    let mut cases = Vec::new();
    for call in CHANGING.iter().chain(&LOOKING).copied() {
        for tier in ["fast", "slow"] {
            for (number, what) in errnos.iter().copied().enumerate() {
                for (count, eager) in [("1", true), ("1", false), ("*", true), ("*", false)] {
                    let cut = (eager == (count == "1")).then_some(number as u64);
                    let journaled = (number + usize::from(eager)) % 2 == 0;
                    cases.push(Case { tier, call, nth: 1, count, what, eager, journaled, cut, steps: usize::MAX });
                }
            }
            if call == "write" {
                for eager in [false, true] {
                    let (count, journaled, cut) = ("1", eager, None);
                    cases.push(Case {
                        tier,
                        call,
                        nth: 1,
                        count,
                        what: "short",
                        eager,
                        journaled,
                        cut,
                        steps: usize::MAX,
                    });
                }
            }
        }
    }
    let totals = all(Run::run, cases);
    let failures = totals.failures.into_inner();
    let (runs, faults) = (totals.runs.into_inner(), totals.faults.into_inner());
    println!("{runs} runs, {faults} calls failed, {} runs needed a start", totals.restarts.into_inner());
    assert!(failures.is_empty(), "{} kinds of failure:\n\n{}", failures.len(), failures.join("\n\n"));
    assert!(runs > 200 && faults > 500, "too few to prove anything");
}

#[test]
fn any_call_of_a_start_may_fail() {
    let whats: &[&str] = if is_full_run() { &["EIO", "ENOSPC", "EACCES", "EROFS"] } else { &["EIO"] };
    let mut cases = Vec::new();
    for call in CHANGING.iter().chain(&LOOKING).copied() {
        for tier in ["fast", "slow"] {
            for (number, what) in whats.iter().copied().enumerate() {
                // In the middle of absorbing, before and after a drain, with staged copies, among files past the fast tier, full.
                let moments = [(18, true), (31, false), (47, false), (60, true)];
                let staging = [(66, true), (75, false), (86, false), (104, true), (usize::MAX, false)];
                for (steps, eager) in moments.into_iter().chain(staging) {
                    for cut in [None, Some(number as u64)] {
                        let (count, journaled) = (if cut.is_some() { "*" } else { "1" }, eager);
                        cases.push(Case { tier, call, nth: 1, count, what, eager, journaled, cut, steps });
                    }
                }
            }
        }
    }
    let totals = all(Run::run_start, cases);
    let failures = totals.failures.into_inner();
    let (runs, faults) = (totals.runs.into_inner(), totals.faults.into_inner());
    println!("{runs} starts, {faults} calls failed, {} starts were refused", totals.restarts.into_inner());
    assert!(failures.is_empty(), "{} kinds of failure:\n\n{}", failures.len(), failures.join("\n\n"));
    assert!(runs > 200 && faults > 200, "too few to prove anything");
}
