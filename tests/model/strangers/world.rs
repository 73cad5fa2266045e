//! The machine of a case: it does what the dice say, one thing after the other, and asks the judge.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlio_fs::config::{Config, DrainPolicy, DrainStreams, Rules};
use dlio_fs::error::{Errno, Error, Result as EngineResult};
use dlio_fs::path::escape;
use dlio_fs::tiers::disk::{Kind, MetadataOrder, RenameMode};
use dlio_fs::tiers::{self, Cx, Ino, Progress, SlowTree, Tiers};
use parking_lot::Mutex;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::acts::{Act, Deed, SLOTS, Step};
use super::him::{Him, Tier, When};
use super::judge::{Block, Check, Ledger, files_below};
use super::programs::Held;
use crate::sim::image::Image;
use crate::sim::{Lose, Numbers, SimDisk};
use crate::stories::Machine;
use crate::toxic::Toxic;
use crate::walk;

const REVALIDATE: Duration = Duration::from_secs(30);
/// So often, six seconds apart, the background does all it can: by then all waiting has an end.
const ROUNDS: usize = 60;
/// Within so many of them others' changes are looked for again.
const ROUNDS_AT_LEAST: usize = 12;
/// Why a user is held whose directory somebody else has replaced by something else (docs/SEMANTICS.md, "A refusal holds its user").
const IN_THE_WAY: &str = "something else has the name of its directory";
/// Steps of one kind in one round.
const IN_A_ROUND: usize = 30;

/// A deed that waits for its call.
#[derive(Default)]
pub struct Ambush(Mutex<Option<Waits>>);

struct Waits {
    deed: Deed,
    after: u64,
    /// What is going on: calls count in that only.
    when: Option<When>,
}

impl Ambush {
    fn arm(&self, deed: Deed, after: u64) {
        *self.0.lock() = Some(Waits { deed, after, when: None });
    }

    fn begin(&self, when: When) {
        if let Some(waits) = &mut *self.0.lock() {
            waits.when = Some(when);
        }
    }

    /// What was not met is dropped.
    fn end(&self) {
        self.0.lock().take_if(|waits| waits.when.is_some());
    }

    fn due(&self) -> Option<(Deed, When)> {
        let mut waits = self.0.lock();
        let met = waits.take_if(|waits| {
            waits.after = waits.after.saturating_sub(u64::from(waits.when.is_some()));
            waits.after == 0
        })?;
        Some((met.deed, met.when?))
    }
}

pub struct World {
    pub machine: Machine,
    /// None while the machine is down.
    engine: Option<Tiers>,
    pub ledger: Arc<Mutex<Ledger>>,
    pub slots: [Option<Held>; SLOTS],
    /// References of what a program does just now.
    pub cached: RefCell<Vec<Ino>>,
    tier: Tier,
    ambush: Arc<Ambush>,
    toxic: Arc<Toxic>,
    /// A call of the slow tier, or a read of the fast one, has failed in what goes on.
    met: Arc<AtomicBool>,
    fast_reads: Arc<AtomicU64>,
    /// Something has failed since the start: what that leaves in `tmp` goes with the next one.
    failed: bool,
    cleaned: bool,
    armed: Option<(Lose, Vec<Deed>, Option<u64>)>,
    boot: u32,
    moved_away: u32,
    pub verbose: bool,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(!seed);
        let order = |rng: &mut Xoshiro256PlusPlus| match rng.random_bool(0.6) {
            true => MetadataOrder::Journaled,
            false => MetadataOrder::Unknown,
        };
        let mut machine = Machine::new();
        let disk = |label, order| SimDisk::new(label, order, 1 << 30, &machine.power, &machine.clock);
        (machine.fast, machine.slow) = (disk("fast", order(&mut rng)), disk("slow", order(&mut rng)));
        let is_journaled = machine.slow.root().order() == MetadataOrder::Journaled;
        let numbers = Numbers { at_once: is_journaled && rng.random_bool(0.5), births: rng.random_bool(0.7) };
        machine.slow.give_numbers(numbers);
        let nfs = rng.random_bool(0.2);
        if nfs {
            machine.slow.become_nfs();
        }
        machine.rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        machine.slow.root().mkdir(b"d", 0o755).unwrap();
        machine.slow.settle();
        options(&mut machine, &mut rng);
        let len = if rng.random_bool(0.7) { 300 } else { 5000 };
        let ledger = Ledger::new(len);
        let mut world = World {
            machine,
            engine: None,
            ledger: Arc::new(Mutex::new(ledger)),
            slots: Default::default(),
            cached: RefCell::default(),
            tier: Tier { nfs, numbers_lie: !numbers.births },
            ambush: Arc::default(),
            toxic: Arc::default(),
            met: Arc::default(),
            fast_reads: Arc::default(),
            failed: false,
            cleaned: false,
            armed: None,
            boot: 1,
            moved_away: 0,
            verbose: false,
        };
        world.watch();
        world.engine = Some(world.start().expect("the first start"));
        world
    }

    pub fn run(&mut self, acts: &[Act]) -> Check {
        for act in acts {
            if self.verbose {
                println!("{act:?}");
            }
            self.act(act).map_err(|why| format!("{act:?}: {why}"))?;
        }
        self.armed = None;
        self.machine.power.restore();
        self.rest()
    }

    pub fn engine(&self) -> &Tiers {
        self.engine.as_ref().expect("open between two stops")
    }

    fn act(&mut self, act: &Act) -> Check {
        match act {
            Act::They(deed) => self.he(deed, When::Between),
            Act::Ambush { deed, after } => self.ambush.arm(deed.clone(), *after),
            Act::Wait { ms } => self.machine.clock.advance(Duration::from_millis(*ms)),
            Act::Fail(fails) => self.toxic.arm(fails),
            Act::FailFast { after } => self.fast_reads.store(*after, Ordering::Relaxed),
            Act::Stop { lose, at, deeds, again } if self.armed.is_none() => {
                self.armed = Some((*lose, deeds.clone(), *again));
                match at {
                    Some(at) => self.machine.power.fail_after(*at, &mut self.machine.rng),
                    None => return self.stop(When::Down),
                }
            }
            Act::Stop { .. } => {}
            Act::Step(step) => {
                let done = self.within(When::InStep, |world| world.step(*step));
                if !self.is_gone() {
                    self.tell(*step, done)?;
                    self.check_slow_tree()?;
                }
            }
            Act::Rest => self.rest()?,
            program => {
                let done = self.within(When::InCall, |world| world.program(program));
                if !self.is_gone() {
                    done?;
                } else {
                    // Perhaps within a write.
                    self.ledger.lock().cut_off();
                }
            }
        }
        if self.is_gone() { self.stop(When::CutOff) } else { Ok(()) }
    }

    pub fn is_gone(&self) -> bool {
        self.machine.power.is_gone()
    }

    /// Whether a call was made to fail in what goes on.
    pub fn is_excused(&self) -> bool {
        let failed = self.toxic.off() | self.met.load(Ordering::Relaxed);
        self.met.store(failed, Ordering::Relaxed);
        self.toxic.on(true);
        failed || self.is_gone()
    }

    fn within<T>(&mut self, when: When, act: impl FnOnce(&mut World) -> T) -> T {
        self.ambush.begin(when);
        self.met.store(false, Ordering::Relaxed);
        self.toxic.on(when == When::InCall);
        let done = act(self);
        self.ambush.end();
        self.met.fetch_or(self.toxic.off(), Ordering::Relaxed);
        self.failed |= self.met.load(Ordering::Relaxed);
        done
    }

    fn he(&mut self, deed: &Deed, when: When) {
        self.cleaned |= matches!(deed, Deed::CleanTmp);
        Him { slow: &self.machine.slow, ledger: &mut self.ledger.lock(), tier: self.tier, when }.act(deed);
    }

    // The machine.

    /// Whoever comes in between, and what fails, on the disks as they are by now.
    fn watch(&self) {
        self.toxic.watch(&self.machine.slow);
        let (reads, met) = (self.fast_reads.clone(), self.met.clone());
        let less = |left: u64| left.checked_sub(1);
        self.machine.fast.fail_reads(move |path| {
            // Of what is a file's, not of the log.
            let is_object = path.starts_with(b".dlio-fs/objects");
            if !is_object || reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) != Ok(1) {
                return None;
            }
            met.store(true, Ordering::Relaxed);
            Some(Errno::EIO)
        });
        let (slow, ledger, tier) = (self.machine.slow.clone(), self.ledger.clone(), self.tier);
        let (ambush, toxic, met) = (self.ambush.clone(), self.toxic.clone(), self.met.clone());
        self.machine.slow.before_calls(move || {
            let Some((deed, when)) = ambush.due() else { return };
            met.fetch_or(toxic.off(), Ordering::Relaxed);
            Him { slow: &slow, ledger: &mut ledger.lock(), tier, when }.act(&deed);
            toxic.on(when == When::InCall);
        });
    }

    fn start(&self) -> EngineResult<Tiers> {
        let (fast, slow) = (self.machine.fast.root(), self.machine.slow.root());
        let boot = format!("boot-{}", self.boot);
        tiers::open(fast, slow, SlowTree::Writable, self.machine.options.clone(), self.machine.clock.clone(), &boot)
    }

    fn stop(&mut self, when: When) -> Check {
        let (lose, deeds, mut again) = self.armed.take().expect("a stop was asked for");
        self.crash(lose);
        deeds.iter().for_each(|deed| self.he(deed, when));
        loop {
            if let Some(at) = again.take() {
                self.machine.power.fail_after(at, &mut self.machine.rng);
            }
            let opened = self.start();
            if !self.is_gone() {
                self.machine.power.restore();
                self.engine = Some(opened.map_err(|e| format!("the start failed: {e}"))?);
                return Ok(());
            }
            drop(opened);
            self.crash(lose);
        }
    }

    fn crash(&mut self, lose: Lose) {
        self.slots = Default::default();
        self.engine = None;
        self.machine.slow.before_calls(|| ());
        self.machine.power.restore();
        self.toxic.disarm();
        self.fast_reads.store(0, Ordering::Relaxed);
        self.failed = false;
        self.machine.fast = self.machine.fast.crash(lose, &mut self.machine.rng);
        self.machine.slow = self.machine.slow.crash(lose, &mut self.machine.rng);
        self.watch();
        let slow = self.machine.slow.image();
        self.ledger.lock().stop(&slow);
        if lose == Lose::Unsynced {
            self.boot += 1;
            self.ledger.lock().power_cut();
        }
    }

    // The background.

    fn step(&self, step: Step) -> EngineResult<Progress> {
        let engine = self.engine();
        match step {
            Step::Seal => engine.seal_step(),
            Step::Drain => {
                let mut all = Progress::Idle;
                for stream in 0..engine.drain_streams() {
                    let done = engine.drain_stream_step(stream)?;
                    all = if all == Progress::Did { all } else { done };
                }
                Ok(all)
            }
            Step::Publish => engine.publish_step(),
            Step::Recheck => engine.recheck_step(),
            Step::Tick => engine.tick(),
            Step::Evict => engine.evict_step(),
            Step::Stage => engine.stage_step(),
        }
    }

    /// What a step met that failed is tried again: whether that has an end, the next rest tells.
    fn tell(&self, step: Step, done: EngineResult<Progress>) -> Check {
        if let (true, Err(e)) = (self.verbose, &done) {
            println!("  {step:?}: {e}");
        }
        Ok(())
    }

    /// What holds at any moment.
    fn check_slow_tree(&self) -> Check {
        let slow = self.machine.slow.image();
        let ledger = self.ledger.lock();
        ledger.none_is_torn(&slow)?;
        let safety = self.engine().status().safety;
        if safety.files == 0 && safety.events == 0 {
            ledger
                .all_is_there(&slow, &self.beside(), true)
                .map_err(|why| format!("it counts as safe, and is {why}"))?;
        }
        Ok(())
    }

    /// What was put aside on either tier.
    fn beside(&self) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for (disk, name) in [(&self.machine.slow, &b"saved"[..]), (&self.machine.fast, b"quarantine")] {
            if let Ok(dir) = disk.root().dir(b".dlio-fs").and_then(|ours| ours.dir(name)) {
                files_below(&*dir, &mut found).expect("nothing fails by now");
            }
        }
        found
    }

    fn rest(&mut self) -> Check {
        self.ambush.end();
        self.toxic.disarm();
        self.fast_reads.store(0, Ordering::Relaxed);
        for slot in 0..SLOTS {
            self.program(&Act::Close { slot })?;
        }
        let synced = self.engine().sync_fast();
        if self.is_gone() {
            return Ok(());
        }
        match synced {
            Ok(()) => self.ledger.lock().synced(&BTreeSet::new()),
            // He has put something else in the place of the directory of a file that was written in place.
            Err(e) if e.errno() == Errno::ENOTDIR => {}
            Err(e) => return Err(format!("sync: {e}")),
        }
        self.steps()?;
        if self.is_gone() { Ok(()) } else { self.judge() }
    }

    fn steps(&mut self) -> Check {
        let mut last = None;
        for round in 0..ROUNDS {
            for step in [Step::Seal, Step::Drain, Step::Publish, Step::Recheck, Step::Tick, Step::Evict, Step::Stage] {
                for _ in 0..IN_A_ROUND {
                    let done = self.step(step);
                    if self.is_gone() {
                        return Ok(());
                    }
                    match done {
                        Ok(Progress::Did) => {
                            if self.verbose {
                                println!("  {step:?} did, {} pending", self.engine().status().safety.events);
                            }
                        }
                        Ok(_) => break,
                        Err(e) => {
                            if self.verbose {
                                println!("  {step:?}: {e}");
                            }
                            last = Some((round, step, e.to_string()));
                            break;
                        }
                    }
                }
            }
            self.machine.clock.advance(Duration::from_secs(6));
            if round % ROUNDS_AT_LEAST == 0 && format!("{:?}", self.engine().queue(9)).contains(IN_THE_WAY) {
                self.make_way();
            }
            if round >= ROUNDS_AT_LEAST && self.engine().status().safety.events == 0 {
                break;
            }
        }
        let queue = self.engine().queue(20);
        if queue.events > 0 {
            return Err(format!("no rest, last {last:?}: {queue:?}\n{:?}", self.machine.slow.image()));
        }
        Ok(())
    }

    /// The operator does what he is told where a directory of ours has become something else: that is moved away.
    fn make_way(&mut self) {
        let root = self.machine.slow.root();
        let pending = self.engine().queue(99).pending;
        let (paths, to) =
            (pending.iter().map(|pending| &pending.path), pending.iter().filter_map(|pending| pending.to.as_ref()));
        let paths = paths.chain(to).map(|path| path.trim_start_matches('/'));
        // Of a file with several names, the one of the step that fails.
        let refused = pending.iter().filter_map(|pending| pending.reason.as_ref()?.strip_prefix("publish "));
        let above: BTreeSet<&str> =
            paths.chain(refused).filter_map(|path| path.split_once('/')).map(|(dir, _)| dir).collect();
        for dir in above {
            if root.stat(dir.as_bytes()).is_ok_and(|stat| stat.kind != Kind::Dir) {
                self.moved_away += 1;
                let to = format!("away{}", self.moved_away);
                root.rename(dir.as_bytes(), &*root, to.as_bytes(), RenameMode::Replace).expect("it is there");
            }
        }
    }

    fn judge(&mut self) -> Check {
        // What others changed is noticed at an open, and shown from then on.
        let look = |world: &World| {
            let mut cached = Vec::new();
            // How many names a file says to have is not judged: behind a conflict it is one more, or less (a known fault).
            let found = walk::everything(world.engine(), &mut cached);
            cached.into_iter().for_each(|ino| world.engine().forget(ino, 1));
            found.map(|found| found.view)
        };
        for _ in 0..2 {
            drop(look(self));
            self.machine.clock.advance(REVALIDATE);
        }
        drop(look(self));
        let view = look(self);
        if self.is_gone() {
            return Ok(());
        }
        let slow = self.machine.slow.image();
        let view = view.map_err(|why| format!("{why}\non the slow tree:\n{slow:?}"))?;
        let (shown, there) = {
            let ledger = self.ledger.lock();
            (ledger.without_known_faults(&view), ledger.without_known_faults(&slow))
        };
        if shown != there {
            return Err(format!("at rest the view is not the slow tree:\n{}", shown.diff(&there, "view", "slow")));
        }
        let beside = self.beside();
        let status = self.engine().status();
        let mut ledger = self.ledger.lock();
        ledger.none_is_torn(&slow)?;
        ledger.all_is_there(&slow, &beside, false)?;
        ledger.attributes_are_his(&slow)?;
        if status.safety.files > 0 {
            return Err(format!("at rest, and not safe: {:?}", status.safety));
        }
        if ledger.idle && status.exceptions.conflicts > 0 {
            return Err(format!("nobody else is there, and conflicts are told: {:?}", self.engine().queue(9)));
        }
        ledger.rested();
        drop(ledger);
        self.nothing_is_left()
    }

    /// At rest nothing of ours waits in `tmp`, if nothing has failed.
    fn nothing_is_left(&self) -> Check {
        if self.failed || self.cleaned {
            return Ok(());
        }
        let wrong = |e: std::io::Error| format!("tmp on the slow tier: {e}");
        let Ok(tmps) = self.machine.slow.root().dir(b".dlio-fs").and_then(|ours| ours.dir(b"tmp")) else {
            return Ok(());
        };
        let (mut left, mut dirs) = (Vec::new(), vec![tmps]);
        let mut depth = 0;
        while let Some(dir) = dirs.pop() {
            for entry in dir.list().map_err(wrong)? {
                if depth > 0 && matches!(entry.name.first(), Some(b'c' | b'm' | b'l')) {
                    left.push(escape(&entry.name));
                } else if entry.kind == Kind::Dir {
                    dirs.push(dir.dir(&entry.name).map_err(wrong)?);
                }
            }
            depth += 1;
        }
        if left.is_empty() { Ok(()) } else { Err(format!("at rest, and left in tmp: {left:?}")) }
    }

    /// All blocks that are under some name on the slow tier.
    pub fn on_slow(&self, path: &str) -> Vec<Block> {
        self.ledger.lock().blocks_below(&self.machine.slow.image(), path)
    }

    pub fn image(&self) -> Image {
        self.machine.slow.image()
    }
}

impl Drop for World {
    /// The disk and what is called before its calls hold each other.
    fn drop(&mut self) {
        self.machine.slow.before_calls(|| ());
    }
}

fn options(machine: &mut Machine, rng: &mut Xoshiro256PlusPlus) {
    let options = &mut machine.options;
    (options.revalidate, options.attribute_lifetime_slow) = (REVALIDATE, Duration::from_secs(1));
    // What is clean is evicted at the first opportunity, and all that is pending is one batch.
    if rng.random_bool(0.3) {
        (options.high, options.low) = (0.0, 0.0);
    }
    options.settle = Duration::from_millis(if rng.random_bool(0.5) { 0 } else { 1000 });
    options.live_after = Duration::from_secs(if rng.random_bool(0.7) { 60 } else { 2 });
    options.drain_streams = DrainStreams::Exactly(if rng.random_bool(0.5) { 1 } else { 3 });
    if rng.random_bool(0.3) {
        options.copy_up_max = 200;
    }
    let drain_policy = if rng.random_bool(0.5) { DrainPolicy::All } else { DrainPolicy::Newest };
    let config = Config { promote: rng.random_bool(0.3), drain_policy, ..Config::default() };
    options.rules = Rules::new(&config).expect("no pattern");
}

/// As the file system asks: with what is at hand, and again with the slow tier if that is not enough.
pub fn at_hand_first<T>(ask: impl Fn(&Cx) -> EngineResult<T>) -> EngineResult<T> {
    match ask(&Cx::fast_only(0, 0)) {
        Err(Error::NeedSlow) => ask(&Cx::internal()),
        answer => answer,
    }
}
