//! One case: an engine on two simulated disks, driven by dice, compared with the model after every step.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dlio_fs::config::{Config, DrainPolicy, DrainStreams, PathRule, Rules};
use dlio_fs::error::{Errno, Error, Result as EngineResult};
use dlio_fs::path::{Name, escape};
use dlio_fs::tiers::disk::sync::{Rank, held};
use dlio_fs::tiers::disk::{Clock, Dir, Kind, MetadataOrder, Time};
use dlio_fs::tiers::{self, Attr, Ino, NAMES_AHEAD, Options, Progress, ROOT, SlowTree, Tiers};
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::kernel::{Kernel, errno, root};
use super::model::{Done, Model, SLOTS};
use super::ops::{Crew, Dice, Op, Path, Step, random_path};
use super::reference::{Fs, Id};
use super::sim::image::Image;
use super::sim::{Lose, Numbers, SimClock, SimDisk, SimPower};
use super::toxic::Toxic;
use super::walk::{self, Changes, Meanwhile};

/// What a case met, so that the run can tell whether it tested anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub ops: u64,
    pub refused: u64,
    pub kills: u64,
    pub power_cuts: u64,
    pub in_flight: u64,
    /// States of the slow tier that were compared with the order of events.
    pub states: u64,
    /// States inside of a batch that were no prefix, and publish steps that had such.
    pub inside_batches: u64,
    pub publishes: u64,
    pub batches: u64,
    /// Versions that were superseded before their copy began, since the last start.
    pub skipped: u64,
    /// Objects that went to the slow tier, in whole or from some point on, since the last start.
    pub spilled: u64,
    /// Copies that were made of slow files.
    pub staged: u64,
    /// Power cuts whose outcome could not be judged.
    pub unjudged: u64,
    /// Looks at the view in the middle of a step of the background.
    pub glances: u64,
    /// Starts that found no room, and were read-only.
    pub read_only: u64,
    /// What somebody else took out of `tmp` on the slow tier.
    pub purged: u64,
    /// Calls of the slow tier that failed.
    pub toxics: u64,
    /// Opens of files that the kernel reads by itself.
    pub through: u64,
    /// Users' calls in the middle of a step, and steps in the middle of a user's call.
    pub met: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        let Tally {
            ops,
            refused,
            kills,
            power_cuts,
            in_flight,
            states,
            inside_batches,
            publishes,
            batches,
            skipped,
            spilled,
            staged,
            unjudged,
            glances,
            read_only,
            purged,
            toxics,
            through,
            met,
        } = other;
        self.ops += ops;
        self.refused += refused;
        self.kills += kills;
        self.power_cuts += power_cuts;
        self.in_flight += in_flight;
        self.states += states;
        self.inside_batches += inside_batches;
        self.publishes += publishes;
        self.batches += batches;
        self.skipped += skipped;
        self.spilled += spilled;
        self.staged += staged;
        self.unjudged += unjudged;
        self.glances += glances;
        self.read_only += read_only;
        self.purged += purged;
        self.toxics += toxics;
        self.through += through;
        self.met += met;
    }
}

#[derive(Debug)]
enum Fail {
    /// The machine stopped.
    Gone,
    Wrong(String),
}

impl From<String> for Fail {
    fn from(why: String) -> Self {
        Fail::Wrong(why)
    }
}

type Check<T = ()> = Result<T, Fail>;

pub struct Case {
    rng: Xoshiro256PlusPlus,
    clock: Arc<SimClock>,
    power: Arc<SimPower>,
    fast: SimDisk,
    slow: SimDisk,
    pub options: Options,
    boot: u32,
    without_root: bool,
    pub is_cleaned_up: bool,
    pub crew: Crew,
    toxic: Arc<Toxic>,
    engine: Option<Arc<Tiers>>,
    kernel: Option<Arc<Mutex<Kernel>>>,
    /// Somebody else has filled the fast tier in this case.
    is_tight: bool,
    /// When each file changed last, as the last look found it, and as far as no user has done anything since.
    changes: Changes,
    unchanged: Changes,
    /// What the slow tier showed last.
    was_shown: Image,
    /// What happens in the middle of a step of the background, or of a user's call.
    meanwhile: Arc<Meanwhile>,
    model: Model,
    /// The slow tier has had a file with several names: a handle may have been opened by one that is gone.
    linked: bool,
    /// A crash is scheduled, with this loss.
    armed: Option<Lose>,
    /// After a power cut the order of what was left is not known until everything is on the slow tier.
    loose: bool,
    /// While it is `loose`: what any file was as a whole before that, and whether one was written in place.
    whole: BTreeSet<Arc<Vec<u8>>>,
    torn_in_place: bool,
    /// A crash fell into a publish; the batch it may have been the middle of ends with the next known state.
    mid_batch: bool,
    /// The slow tree was inside of a batch at the last look, which waits for a copy that somebody has removed.
    waits_inside: bool,
    pub trace: Vec<String>,
    /// What it did so far.
    pub script: Vec<Rolled>,
    pub verbose: bool,
    pub tally: Tally,
}

/// An operation and the dice as they were before it: with both a part of a case does the same once more.
#[derive(Clone, Debug)]
pub struct Rolled {
    pub op: Op,
    rng: Xoshiro256PlusPlus,
}

/// Enough for everything a case writes.
const LARGE: u64 = 1 << 30;
/// Streams of the drain.
const STREAMS: u32 = 3;
/// A fast tier on which not everything fits, in bytes.
const SMALL: u64 = BALLAST + (384 << 10);
/// One on which files stop fitting in the middle of a write.
const TINY: u64 = BALLAST + (48 << 10);
/// The intents of a group have whole paths, of the longest names there are.
const BALLAST: u64 = 64 << 10;
/// What an operator adds to a full tier.
const ROOM: u64 = 8 << 10;
/// The background has to come to rest within this many steps.
const STEPS: usize = 3000;

/// Of the engine's locks only a file's own, the publisher's, and without root the opener's may be held while the slow tier is asked.
fn no_lock_is_held() {
    let held = held();
    assert!(held.iter().all(|rank| *rank <= Rank::Opening), "the slow tier is asked under {held:?}");
}

/// Whether a case also stages slow files and promotes what it reads.
fn stages(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

/// Whether the modes hold for the daemon of a case, which owns all that is there. What is done to the view is what root may do to it.
fn without_root(seed: u64) -> bool {
    seed % 5 == 2
}

/// Whether somebody else cleans up in `tmp` on the slow tier all the while.
fn is_cleaned_up(seed: u64) -> bool {
    seed % 7 == 5
}

/// In some cases a part of the files does not pass the fast tier. In seven of eleven what is superseded before its copy begins is skipped, in
/// three of them of a part of the files only.
fn rules(seed: u64) -> Rules {
    let past = PathRule { path: "**/*[a-c]*".to_owned(), absorb: Some(false), ..PathRule::default() };
    let all = PathRule { path: "**/*[d-m]*".to_owned(), drain_policy: Some(DrainPolicy::All), ..PathRule::default() };
    let rules = [(seed % 4 == 3, past), (seed % 11 >= 8, all)].into_iter().filter_map(|(is, rule)| is.then_some(rule));
    let drain_policy = if seed % 11 < 4 { DrainPolicy::All } else { DrainPolicy::Newest };
    let config = Config { promote: stages(seed), rules: rules.collect(), drain_policy, ..Config::default() };
    Rules::new(&config).expect("a pattern")
}

/// Its events have stamps, and it overwrites no pending version.
fn is_alone_in_a_fleet(seed: u64) -> bool {
    seed % 11 == 5
}

/// A directory with what is in it.
fn remove(dir: &dyn Dir, name: &[u8], kind: Kind) -> std::io::Result<()> {
    if kind != Kind::Dir {
        return dir.unlink(name);
    }
    let inner = dir.dir(name)?;
    inner.list()?.iter().try_for_each(|entry| remove(&*inner, &entry.name, entry.kind))?;
    dir.rmdir(name)
}

fn has_links(tree: &Image) -> bool {
    tree.paths().any(|path| tree.get(path).is_some_and(|entry| entry.same_as.is_some()))
}

impl Case {
    pub fn new(seed: u64) -> Case {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let (clock, power) = (SimClock::new(), SimPower::new());
        let order = |rng: &mut Xoshiro256PlusPlus| {
            if rng.random_bool(0.6) { MetadataOrder::Journaled } else { MetadataOrder::Unknown }
        };
        let capacity = match rng.random_range(0..100) {
            0..12 => TINY,
            12..20 => SMALL,
            _ => LARGE,
        };
        let fast = SimDisk::new("fast", order(&mut rng), capacity, &power, &clock);
        let slow = SimDisk::new("slow", order(&mut rng), LARGE, &power, &clock);
        let at_once = slow.root().order() == MetadataOrder::Journaled && seed.is_multiple_of(2);
        slow.give_numbers(Numbers { at_once, births: !seed.is_multiple_of(3) });
        populate(&*slow.root(), &mut rng);
        slow.settle();
        fast.heed_modes(without_root(seed));
        slow.heed_modes(without_root(seed));
        let names_max = seed.is_multiple_of(4).then_some(2);
        if let Some(most) = names_max {
            slow.limit_names(most as u64 + NAMES_AHEAD);
        }
        slow.observe();
        let toxic = Arc::<Toxic>::default();
        toxic.watch(&slow);
        let pick = |rng: &mut Xoshiro256PlusPlus, often: u64, seldom: u64| {
            if rng.random_bool(0.7) { often } else { seldom }
        };
        let mut options = Options::for_tests();
        options.ballast = BALLAST;
        options.settle = Duration::from_millis(pick(&mut rng, 1000, 0));
        options.live_after = Duration::from_secs(pick(&mut rng, 60, 2));
        options.copy_up_max = pick(&mut rng, 64 << 20, 6000);
        options.rules = rules(seed);
        // The stories (0) are told with one stream.
        options.drain_streams = DrainStreams::Exactly(if seed == 0 { 1 } else { STREAMS });
        if is_alone_in_a_fleet(seed) {
            (options.fleet, options.fleet_size) = (Some("one".to_owned()), Some(1));
        }
        let meanwhile = Arc::<Meanwhile>::default();
        slow.before_calls({
            let meanwhile = meanwhile.clone();
            move || {
                no_lock_is_held();
                meanwhile.before_call();
            }
        });
        let mut model = Model::new(Fs::from_image(&slow.image()));
        model.names_max = names_max;
        let slow_image = slow.image();
        let linked = has_links(&slow_image);
        let first = format!("fast {capacity} bytes, {options:?}\n{:?}", slow.image());
        Case {
            rng,
            clock,
            power,
            fast,
            slow,
            options,
            boot: 1,
            without_root: without_root(seed),
            is_cleaned_up: is_cleaned_up(seed),
            crew: Crew::of(seed),
            toxic,
            engine: None,
            kernel: None,
            is_tight: false,
            changes: Changes::new(),
            unchanged: Changes::new(),
            was_shown: slow_image,
            meanwhile,
            model,
            linked,
            armed: None,
            loose: false,
            whole: BTreeSet::new(),
            torn_in_place: false,
            mid_batch: false,
            waits_inside: false,
            trace: vec![first],
            script: Vec::new(),
            verbose: false,
            tally: Tally::default(),
        }
    }

    pub fn run(&mut self, ops: usize) -> Result<(), String> {
        self.start()?;
        let mut dice = Dice::of(self.crew, &mut self.rng);
        for _ in 0..ops {
            let op = dice.roll(&self.model, &mut self.rng);
            let op = if self.without_root { op.by_the_owner() } else { op };
            self.script.push(Rolled { op: op.clone(), rng: self.rng.clone() });
            self.step(&op)?;
        }
        self.end()
    }

    /// A part of what a case did, with the dice as they were.
    pub fn run_again(&mut self, script: &[Rolled]) -> Result<(), String> {
        self.start()?;
        for Rolled { op, rng } in script {
            self.script.push(Rolled { op: op.clone(), rng: rng.clone() });
            self.rng = rng.clone();
            self.step(op)?;
        }
        self.end()
    }

    /// The same without dice.
    pub fn run_these(&mut self, ops: &[Op]) -> Result<(), String> {
        self.start()?;
        for op in ops {
            self.script.push(Rolled { op: op.clone(), rng: self.rng.clone() });
            self.step(op)?;
        }
        self.end()
    }

    fn start(&mut self) -> Result<(), String> {
        let engine = self.open_engine().map_err(|e| format!("the first open failed: {e}"))?;
        self.attach(engine);
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        // A crash that is still to come will not.
        self.armed = None;
        self.power.restore();
        self.step(&Op::Settle)?;
        let status = self.engine().status();
        self.tally.batches += status.exceptions.batches;
        self.tally.skipped += status.exceptions.skipped;
        self.tally.spilled += status.exceptions.spilled;
        self.tally.staged += status.pipeline.staged_files;
        // Recovery is the start-up path, always: another one changes nothing.
        self.note("open again");
        self.detach();
        let engine = self.open_engine().map_err(|e| format!("the last open failed: {e}"))?;
        self.attach(engine);
        self.look().map_err(wrong)?;
        Ok(())
    }

    fn attach(&mut self, engine: Arc<Tiers>) {
        self.kernel = Some(Arc::new(Mutex::new(Kernel::new(engine.clone(), self.crew.passthrough))));
        self.engine = Some(engine);
    }

    /// With whatever is open.
    fn detach(&mut self) {
        if let Some(kernel) = self.kernel.take() {
            self.tally.through += kernel.lock().through_count;
        }
        self.engine = None;
        self.unchanged.clear();
    }

    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.as_ref().expect("open between two crashes").lock()
    }

    fn note(&mut self, line: impl Into<String>) {
        let line = line.into();
        if self.verbose {
            println!("{line}");
        }
        self.trace.push(line);
    }

    /// A start needs room for a segment of the log; where the operator is asked for it, the operator gives it. What was shown before, and
    /// could not be changed, is what is shown then.
    fn open_engine(&mut self) -> EngineResult<Arc<Tiers>> {
        let boot = format!("boot-{}", self.boot);
        let mut shown: Option<Image> = None;
        loop {
            let opened = tiers::open(
                self.fast.root(),
                self.slow.root(),
                SlowTree::Writable,
                self.options.clone(),
                self.clock.clone(),
                &boot,
            );
            let full = |e: &Error| e.errno() == Errno::ENOSPC || e.to_string().contains("is full");
            match opened {
                Err(e) if full(&e) && !self.power.is_gone() => {
                    self.more_room(&e.to_string());
                }
                Ok(engine) if engine.lacks().is_some() && !self.power.is_gone() => {
                    if let Some(image) = self.look_read_only(&engine) {
                        let same = shown.as_ref().is_none_or(|shown| *shown == image);
                        assert!(same, "another start without room shows something else");
                        shown = Some(image);
                    }
                    drop(engine);
                    self.more_room("a start without room");
                }
                opened => {
                    let engine = Arc::new(opened?);
                    let found = shown.and_then(|shown| Some((shown, self.look_at(&engine)?)));
                    if let Some((shown, found)) = found {
                        assert!(shown == found, "{}", shown.diff(&found, "read-only", "with room "));
                    }
                    return Ok(engine);
                }
            }
        }
    }

    fn more_room(&mut self, why: &str) {
        self.note(format!("     {why}: more room"));
        self.fast.set_capacity(self.fast.root().space().expect("the power is on").total + ROOM);
    }

    /// `None`: the machine stops meanwhile.
    fn look_at(&self, engine: &Tiers) -> Option<Image> {
        let mut cached = Vec::new();
        let found = walk::view(engine, &mut cached);
        cached.into_iter().for_each(|ino| engine.forget(ino, 1));
        if self.power.is_gone() { None } else { Some(found.expect("a view")) }
    }

    fn look_read_only(&mut self, engine: &Tiers) -> Option<Image> {
        self.tally.read_only += 1;
        let new = Name::new(b"new").expect("a name");
        let made = engine.mkdir(&root(), ROOT, &new, 0o755, 0).map_err(|e| e.errno());
        if self.power.is_gone() {
            return None;
        }
        assert_eq!(made.map(drop), Err(Errno::EROFS));
        self.look_at(engine)
    }

    fn engine(&self) -> &Tiers {
        self.engine.as_deref().expect("open between two crashes")
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        if !self.is_possible(op) {
            return Ok(());
        }
        self.note(format!("{:4} {op:?}", self.trace.len()));
        self.tally.ops += 1;
        self.model.now = self.clock.uptime();
        if let Op::Crash { lose, at } = op {
            self.armed = Some(*lose);
            let Some(at) = at else { return self.recover(self.model.clone(), op) };
            self.power.fail_after(*at, &mut self.rng);
            return Ok(());
        }
        let alone = match op {
            Op::During { step, .. } if self.armed.is_some() => &Op::Run(*step),
            Op::Under { op, .. } if self.armed.is_some() => op,
            op => op,
        };
        let before = self.armed.is_some().then(|| self.model.clone());
        let done = self.perform(alone);
        if self.power.is_gone() {
            self.tally.in_flight += 1;
            return self.recover(before.expect("power goes only when a crash is scheduled"), alone);
        }
        done.and_then(|()| self.check_slow(false)).map_err(wrong)
    }

    /// Whether there is a file in the slot, or none, as the operation needs it; and whether the kernel would pass it on.
    fn is_possible(&self, op: &Op) -> bool {
        let open = |slot: &usize| self.model.open[*slot];
        let view = &self.model.view;
        let kind = |path: &Path| view.find(&path.0).ok().map(|id| view.node(id).kind);
        match op {
            Op::Create { slot, .. } => open(slot).is_none(),
            Op::Open { slot, path, write, .. } => {
                // Of a writer beside a kernel that reads by itself nobody knows what it stores, or when: the file counts as changed.
                let stores_unseen = *write && self.is_read_by_kernel(path);
                open(slot).is_none() && matches!(kind(path), None | Some(Kind::File)) && !stores_unseen
            }
            Op::Write { slot, .. } | Op::Allocate { slot, .. } => open(slot).is_some_and(|open| open.write),
            Op::Read { slot, .. } | Op::Flush { slot } | Op::Fsync { slot } | Op::Release { slot } => {
                open(slot).is_some()
            }
            Op::Copy { from, to, .. } => match (open(from), open(to)) {
                (Some(from), Some(to)) => to.write && from.id != to.id,
                _ => false,
            },
            Op::Truncate { path, .. } => matches!(kind(path), None | Some(Kind::File)),
            Op::SetAttr { path, new } => kind(path) != Some(Kind::Symlink) || new.perm.is_none(),
            Op::SetXattr { path, .. } => matches!(kind(path), None | Some(Kind::File | Kind::Dir)),
            // Into itself, or onto a directory above itself: the kernel answers that.
            Op::Rename { from, to, mode } => {
                let above = from.0.starts_with(&[&to.0[..], b"/"].concat());
                !above && view.may_rename(&from.0, &to.0, *mode).err() != Some(Errno::EINVAL)
            }
            Op::Crash { .. } => self.armed.is_none(),
            Op::During { op, .. } | Op::Under { op, .. } => self.is_possible(op),
            _ => true,
        }
    }

    fn is_read_by_kernel(&self, path: &Path) -> bool {
        let kernel = self.kernel();
        let by_kernel =
            (0..SLOTS).filter(|slot| kernel.reads_by_itself(*slot)).filter_map(|slot| self.model.open[slot]);
        self.model.view.find(&path.0).is_ok_and(|id| by_kernel.into_iter().any(|open| open.id == id))
    }

    fn perform(&mut self, op: &Op) -> Check {
        match op {
            Op::Run(step) => return self.background(*step),
            Op::Advance { ms } => {
                self.clock.advance(Duration::from_millis(*ms));
                return Ok(());
            }
            Op::Look => return self.look(),
            Op::Fail(fails) => {
                self.toxic.arm(fails);
                return Ok(());
            }
            Op::Pause { paused } => {
                self.engine().pause(*paused);
                return Ok(());
            }
            Op::Room { bytes } => {
                self.fast.set_capacity(self.fast.used() + bytes);
                self.is_tight |= *bytes < LARGE;
                return Ok(());
            }
            Op::Pin { path, pinned } => return self.pin(path, *pinned),
            Op::Stage { path } => {
                self.engine().stage("a path", vec![path.0.clone()]).map_err(|e| Fail::Wrong(format!("stage: {e}")))?;
                return Ok(());
            }
            Op::Settle => return self.settle(),
            Op::During { step, after, op } => return self.user_during(*step, *after, op),
            Op::Under { op, after, step } => return self.step_under(op, *after, *step),
            _ => {}
        }
        self.user(op)
    }

    fn user(&mut self, op: &Op) -> Check {
        self.changes_by(op);
        let watched = self.watch_in_place(op)?;
        let before = (self.toxic.is_armed() || self.is_tight).then(|| self.model.clone());
        let since = self.clock.now();
        let expected = self.model.apply(op);
        self.toxic.on(true);
        let got = {
            let mut kernel = self.kernel();
            kernel.fill = self.model.fill;
            kernel.call(op)
        };
        let has_failed = self.toxic.off();
        self.forget_some();
        if self.power.is_gone() {
            return Err(Fail::Gone);
        }
        match (expected, got) {
            (expected, Err(errno)) if has_failed || (self.is_tight && errno == Errno::ENOSPC) => {
                self.note(format!("     = {errno:?}"));
                self.tally.toxics += 1;
                let before = before.expect("only what is armed fails");
                self.go_on_after_a_failed_call(before, op, expected.ok()).map_err(Fail::Wrong)
            }
            // Nobody can be told, and a tick tries it again.
            (Ok(_), Ok(_)) if has_failed && matches!(op, Op::Release { .. }) => {
                self.note("     the slow tier failed");
                self.model.close(op);
                Ok(())
            }
            (expected, got) => {
                self.judge(op, since, expected, got)?;
                if let Some((id, ino)) = watched {
                    let in_place = self.is_on_slow(ino)?;
                    self.model.order.set_in_place(id, in_place);
                }
                Ok(())
            }
        }
    }

    /// What the model expects of an operation that began at `since`, and what the engine answered.
    fn judge(&mut self, op: &Op, since: Time, expected: Result<Done, Errno>, got: Result<u64, Errno>) -> Check {
        match (expected, got) {
            (Ok(done), Ok(bytes)) => {
                match op {
                    Op::Copy { .. } if done.bytes != bytes => {
                        return Err(Fail::Wrong(format!("copied {bytes} bytes instead of {}", done.bytes)));
                    }
                    Op::Read { slot, at, len } => self.compare_read(*slot, *at, *len)?,
                    _ => {}
                }
                if let Some(id) = done.touched {
                    self.adopt_time(op, id, since)?;
                }
                self.model.finish(op, done);
                Ok(())
            }
            (Err(expected), Err(got)) if expected == got => {
                self.tally.refused += 1;
                self.note(format!("     = {got:?}"));
                Ok(())
            }
            (expected, got) => {
                let expected = expected.map(|_| ());
                Err(Fail::Wrong(format!("expected {expected:?}, got {got:?}")))
            }
        }
    }

    fn compare_read(&self, slot: usize, at: u64, len: usize) -> Check {
        let bytes = &self.model.view.node(self.model.open[slot].expect("the model has one there").id).bytes;
        let expected = bytes.get(at as usize..).unwrap_or_default();
        let expected = &expected[..expected.len().min(len)];
        let read = &self.kernel().was_read;
        if read != expected {
            let begin = |bytes: &[u8]| bytes[..bytes.len().min(8)].to_vec();
            return Err(Fail::Wrong(format!("read {:?}... instead of {:?}...", begin(read), begin(expected))));
        }
        Ok(())
    }

    fn changes_by(&mut self, op: &Op) {
        let changes_nothing = matches!(
            op,
            Op::Read { .. }
                | Op::Flush { .. }
                | Op::Release { .. }
                | Op::Fsync { .. }
                | Op::FsyncDir { .. }
                | Op::SyncFast
        );
        if !changes_nothing {
            self.unchanged.clear();
        }
    }

    // Users and the background in the middle of each other's calls to the slow tier.

    /// Whether what meets can be judged: nothing fails, and no file is written in place, of which it is not known when.
    fn may_meet(&mut self, op: &Op) -> bool {
        self.linked |= has_links(&self.slow.image());
        let is_large = |id: Id| self.model.view.node(id).bytes.len() as u64 > self.options.copy_up_max;
        let (written, ino) = match op {
            Op::Write { slot, .. } | Op::Allocate { slot, .. } | Op::Copy { to: slot, .. } => {
                (self.model.open[*slot].map(|open| open.id), Some(self.kernel().ino_of(*slot)))
            }
            Op::Truncate { path, .. } | Op::Open { path, write: true, truncate: true, .. } => {
                (self.model.view.find(&path.0).ok(), self.kernel().find(path).ok().map(|attr| attr.ino))
            }
            _ => (None, None),
        };
        let in_place = written.is_some_and(is_large)
            || (ino.is_some() && self.linked)
            || ino.is_some_and(|ino| self.kernel().reads_file_by_itself(ino));
        self.armed.is_none() && !self.toxic.is_armed() && !self.is_tight && !in_place
    }

    /// A user's call in the middle of a step.
    fn user_during(&mut self, step: Step, after: u64, op: &Op) -> Check {
        if !self.may_meet(op) {
            return self.background(step);
        }
        let (since, got) = (self.clock.now(), Arc::<Mutex<Option<Result<u64, Errno>>>>::default());
        let mut done = self.model.clone();
        // What it answers is compared when it has been called.
        self.kernel().fill = if done.apply(op).is_ok() { done.fill } else { self.model.fill };
        let (kernel, theirs, call) = (self.kernel.clone(), got.clone(), op.clone());
        self.meanwhile.arm(after, move || {
            let kernel = kernel.as_deref().and_then(Mutex::try_lock);
            *theirs.lock() = kernel.map(|mut kernel| kernel.call(&call));
        });
        self.may_commit(step);
        let batches = self.batches(step);
        self.run_step(step)?;
        let got = got.lock().take();
        if let Some(got) = got {
            self.tally.met += 1;
            self.changes_by(op);
            let expected = self.model.apply(op);
            self.judge(op, since, expected, got)?;
            self.forget_some();
            self.may_commit(step);
        }
        self.check_slow(self.batches(step) > batches)
    }

    /// A step in the middle of a user's call.
    fn step_under(&mut self, op: &Op, after: u64, step: Step) -> Check {
        if !self.may_meet(op) {
            return self.user(op);
        }
        let (engine, done) = (self.engine.clone(), Arc::<Mutex<Option<EngineResult<Progress>>>>::default());
        let (engine, theirs) = (engine.as_ref().map(Arc::downgrade).unwrap_or_default(), done.clone());
        let stream = self.rng.random_range(0..self.engine().drain_streams());
        self.meanwhile.arm(after, move || {
            *theirs.lock() = engine.upgrade().map(|engine| one_step(&engine, step, stream));
        });
        self.may_commit(step);
        let batches = self.batches(step);
        self.user(op)?;
        self.meanwhile.disarm();
        let done = done.lock().take();
        if let Some(done) = done {
            self.tally.met += 1;
            done.map_err(|e| Fail::Wrong(format!("{step:?} failed: {e}")))?;
            self.may_commit(step);
        }
        self.check_slow(self.batches(step) > batches)
    }

    fn unexpected(&self, what: &str, e: Errno) -> Fail {
        if self.power.is_gone() { Fail::Gone } else { Fail::Wrong(format!("{what} failed: {e}")) }
    }

    /// Gives back some of the references; mostly all.
    fn forget_some(&mut self) {
        if self.power.is_gone() || self.rng.random_bool(0.2) {
            return;
        }
        for ino in std::mem::take(&mut self.kernel().cached) {
            self.engine().forget(ino, 1);
        }
    }

    /// The time of change is the engine's to choose, but it lies between the call and its answer.
    fn adopt_time(&mut self, op: &Op, id: Id, since: Time) -> Check {
        let attr = match op {
            Op::Write { slot, .. } | Op::Allocate { slot, .. } | Op::Create { slot, .. } | Op::Open { slot, .. } => {
                self.attr_of(*slot)?
            }
            Op::Copy { to, .. } => self.attr_of(*to)?,
            Op::Truncate { path, .. } | Op::Mknod { path, .. } => {
                self.kernel().find(path).map_err(|e| self.unexpected("look-up", e))?
            }
            _ => unreachable!("{op:?} touches no file"),
        };
        let former = self.model.view.node(id).mtime;
        // What changes no byte need not change the time.
        let idle = matches!(op, Op::Allocate { .. } | Op::Truncate { .. } | Op::Open { .. }) && attr.mtime == former;
        if !idle && !(since..=self.clock.now()).contains(&attr.mtime) {
            return Err(Fail::Wrong(format!("the file changed at {:?}, the call began at {since:?}", attr.mtime)));
        }
        self.model.adopt_time(id, attr.mtime);
        Ok(())
    }

    fn attr_of(&mut self, slot: usize) -> Check<Attr> {
        let attr = {
            let kernel = self.kernel();
            kernel.getattr(kernel.ino_of(slot))
        };
        attr.map_err(|e| self.unexpected("getattr", e))
    }

    /// A slow file that is large or has several names, or that the kernel reads by itself, is written in place: its bytes are out of the order
    /// (P1).
    /// Before the operation that is only likely; what it was is known after it. Returns the file to look at again.
    fn watch_in_place(&mut self, op: &Op) -> Check<Option<(Id, Ino)>> {
        let (id, ino) = match op {
            Op::Write { slot, .. } | Op::Allocate { slot, .. } | Op::Copy { to: slot, .. } => {
                (self.model.open[*slot].expect("as above").id, self.kernel().ino_of(*slot))
            }
            Op::Truncate { path, .. } | Op::Open { path, write: true, truncate: true, .. } => {
                let Ok(id) = self.model.view.find(&path.0) else { return Ok(None) };
                (id, self.kernel().find(path).map_err(|e| self.unexpected("look-up", e))?.ino)
            }
            _ => return Ok(None),
        };
        let large = self.model.view.node(id).bytes.len() as u64 > self.options.copy_up_max;
        self.linked |= has_links(&self.slow.image());
        let is_read_by_kernel = self.kernel().reads_file_by_itself(ino);
        if (!large && !self.linked && !is_read_by_kernel)
            || self.model.order.is_in_place(id)
            || !self.is_on_slow(ino)?
        {
            return Ok(None);
        }
        self.model.order.set_in_place(id, true);
        Ok(Some((id, ino)))
    }

    fn is_on_slow(&self, ino: Ino) -> Check<bool> {
        let tier = errno(self.engine().get_xattr(&root(), ino, b"user.dlio.tier"));
        Ok(tier.map_err(|e| self.unexpected("getxattr", e))?.as_deref() == Some(b"slow"))
    }

    // The operator.

    fn pin(&mut self, path: &Path, pinned: bool) -> Check {
        let done = if pinned { self.engine().pin_path(&path.0) } else { self.engine().unpin_path(&path.0) };
        match errno(done) {
            _ if self.power.is_gone() => Err(Fail::Gone),
            // The list is a file on the fast tier.
            Ok(_) | Err(Errno::ENOSPC) => Ok(()),
            Err(e) => Err(Fail::Wrong(format!("a pin: {e}"))),
        }
    }

    // The background.

    /// Stages what is next, where this case does that: all that is on the slow tier has been asked for.
    fn stage(&mut self, engine: &Tiers, step: Step, done: EngineResult<Progress>) -> EngineResult<Progress> {
        if !(self.options.rules.promotes_any() || self.crew.operator) || !matches!(step, Step::Evict | Step::Tick) {
            return done;
        }
        match (done?, engine.stage_step()?) {
            (Progress::Idle, staged) => Ok(staged),
            (done, _) => Ok(done),
        }
    }

    /// Somebody else removes some of what waits in `tmp` on the slow tier, or puts something in its place: copies, and what is made to be
    /// placed. Objects, links of what a batch moves and notes are let be: nobody has them a second time.
    fn clean_up(&mut self) -> Result<(), String> {
        if !self.is_cleaned_up || self.rng.random_bool(0.6) {
            return Ok(());
        }
        let done = self.clean_up_tmp();
        match done {
            Err(_) if self.power.is_gone() => Ok(()),
            done => done.map_err(|e| format!("a clean-up of tmp: {e}")),
        }
    }

    fn clean_up_tmp(&mut self) -> std::io::Result<()> {
        let tmps = match self.slow.root().dir(b".dlio-fs").and_then(|ours| ours.dir(b"tmp")) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            tmps => tmps?,
        };
        let mut dirs = Vec::new();
        for of in tmps.list()? {
            let tmp = tmps.dir(&of.name)?;
            for lane in tmp.list()?.into_iter().filter(|entry| entry.name[0].is_ascii_digit()) {
                dirs.push(tmp.dir(&lane.name)?);
                // Goes if it is empty, as clean-ups remove such directories, too.
                if self.rng.random_bool(0.3) && tmp.rmdir(&lane.name).is_ok() {
                    dirs.pop();
                }
            }
            dirs.push(tmp);
        }
        for tmp in dirs {
            for entry in tmp.list()?.into_iter().filter(|entry| matches!(entry.name[0], b'c' | b'm')) {
                if self.rng.random_bool(0.5) {
                    continue;
                }
                remove(&*tmp, &entry.name, entry.kind)?;
                // In place of a directory a file would hold its user, while others go on.
                if self.rng.random_bool(0.3) && entry.kind != Kind::Dir {
                    tmp.create(&entry.name, 0o600)?.write_at(&[9; 333], 0)?;
                }
                self.tally.purged += 1;
            }
        }
        Ok(())
    }

    fn run_step(&mut self, step: Step) -> Check<Progress> {
        // What happens meanwhile may happen while somebody cleans up.
        let is_met = self.meanwhile.is_armed();
        self.clean_up()?;
        let engine = self.engine.clone().expect("open between two crashes");
        let glanced = Arc::<Mutex<Option<Result<(), String>>>>::default();
        // A look has no second try.
        if self.rng.random_bool(0.5) && !self.toxic.is_armed() && !is_met {
            let (engine, expected) = (Arc::downgrade(&engine), self.model.view.image());
            let after = self.rng.random_range(1..25);
            let glanced = glanced.clone();
            self.meanwhile.arm(after, move || *glanced.lock() = walk::look(&engine, &expected));
        }
        self.toxic.on(step == Step::Seal);
        let stream = if step == Step::Drain { self.rng.random_range(0..engine.drain_streams()) } else { 0 };
        let done = one_step(&engine, step, stream);
        let done = self.stage(&engine, step, done);
        drop(engine);
        self.meanwhile.disarm();
        let has_failed = self.toxic.off();
        self.tally.toxics += u64::from(has_failed);
        let glanced = glanced.lock().take();
        if self.power.is_gone() {
            return Err(Fail::Gone);
        }
        if let Some(look) = glanced {
            self.tally.glances += 1;
            look.map_err(|why| format!("in the middle of {step:?}: {why}"))?;
        }
        match done {
            // It is tried again.
            Err(e) if has_failed => {
                self.note(format!("     {step:?}: {e}"));
                Ok(Progress::Did)
            }
            // Somebody filled the fast tier when the log's own room had been used up.
            Err(e) if self.is_tight && e.errno() == Errno::ENOSPC => {
                self.more_room(&e.to_string());
                Ok(Progress::Did)
            }
            Err(e) if self.is_cleaned_up && e.to_string().contains("keeps vanishing from .dlio-fs/tmp") => {
                Ok(Progress::Did)
            }
            done => done.map_err(|e| Fail::Wrong(format!("{step:?} failed: {e}"))),
        }
    }

    /// `tick` commits what has been open for long; publishing commits, however young, what an old event waits for.
    fn may_commit(&mut self, step: Step) {
        match step {
            Step::Tick => self.model.late(self.options.live_after),
            Step::Publish => self.model.late(Duration::ZERO),
            Step::Seal | Step::Drain | Step::Evict => {}
        }
    }

    /// How many batches there have been: only publishing makes one, and to ask is dear.
    fn batches(&self, step: Step) -> u64 {
        if step == Step::Publish { self.engine().status().exceptions.batches } else { 0 }
    }

    fn background(&mut self, step: Step) -> Check {
        self.may_commit(step);
        if self.options.rules.promotes_any() && step == Step::Tick {
            self.engine().stage("everything", vec![Vec::new()]).expect("few paths");
        }
        let (batches, failed) = (self.batches(step), self.tally.toxics);
        let progress = self.run_step(step)?;
        if self.verbose {
            self.note(format!("     = {progress:?}"));
        }
        // One that failed behind its last step is not counted yet.
        let batch = self.tally.toxics > failed || self.batches(step) > batches;
        self.tally.publishes += u64::from(step == Step::Publish && progress == Progress::Did);
        self.check_slow(batch && step == Step::Publish)
    }

    /// Every state that the slow tier showed since the last check is that after some prefix of the events.
    fn check_slow(&mut self, batch: bool) -> Check {
        let images = self.slow.take_observed();
        if self.loose {
            return self.check_whole(&images);
        }
        // It waits for a copy that somebody has removed.
        let may_wait = self.is_cleaned_up || self.crew.toxics;
        let waits = may_wait && self.engine.as_ref().is_some_and(|engine| engine.is_inside_batch());
        let inside = std::mem::replace(&mut self.waits_inside, waits) || waits;
        let from = self.model.order.position();
        let mut odd = None;
        let count = images.len();
        let last = images.last().unwrap_or(&self.was_shown).clone();
        let before = std::mem::replace(&mut self.was_shown, last);
        if batch {
            self.check_inside(&before, &images)?;
        }
        for (i, image) in images.into_iter().enumerate() {
            self.tally.states += 1;
            if batch && i + 1 < count {
                // Inside a batch the tree may look like one that comes later: only how it ends says where it is.
                self.tally.inside_batches += 1;
                continue;
            }
            match self.model.order.show(&image) {
                Ok(()) if batch || inside || self.mid_batch || self.model.order.replaced_several_names(from) => {
                    // A start that goes on with it shows a whole state first, too; one after which it is not over goes on later.
                    self.mid_batch &= !batch && self.engine.is_none();
                    odd = None;
                }
                Ok(()) => {}
                Err(why) => {
                    self.tally.inside_batches += 1;
                    odd = Some(format!("{why}\n(state {} of {count} since the last look)", i + 1));
                }
            }
        }
        match odd {
            Some(_) if self.mid_batch || inside => Ok(()),
            Some(why) => Err(Fail::Wrong(why)),
            None => Ok(()),
        }
    }

    /// What has a name before a batch and after it has that name at every moment.
    fn check_inside(&self, before: &Image, images: &[Image]) -> Check {
        let Some((after, inside)) = images.split_last() else { return Ok(()) };
        let is_file =
            |tree: &Image, path: &[u8]| tree.get(path).is_some_and(|entry| entry.shown.body().kind == Kind::File);
        for path in before.paths().filter(|path| !path.contains(&b'/') && is_file(before, path) && is_file(after, path))
        {
            if let Some(image) = inside.iter().find(|image| image.get(path).is_none()) {
                return Err(Fail::Wrong(format!("inside of a batch nothing is at {}: {image:?}", escape(path))));
            }
        }
        Ok(())
    }

    /// P5 is judged even where the order is not known: what the slow tier shows of a file is one of its versions, as a whole.
    fn check_whole(&mut self, images: &[Image]) -> Check {
        self.torn_in_place |= !self.model.order.in_place().is_empty();
        if self.torn_in_place {
            return Ok(());
        }
        self.whole.extend(self.model.order.versions_of_all());
        for image in images {
            self.tally.states += 1;
            for path in image.paths() {
                let body = image.get(path).map(|entry| entry.shown.body());
                if let Some(body) = body.filter(|body| body.kind == Kind::File && !self.whole.contains(&body.bytes)) {
                    return Err(Fail::Wrong(format!("torn on the slow tier: {} is {body:?}", escape(path))));
                }
            }
        }
        Ok(())
    }

    /// Sends everything to the slow tier, which then equals the view.
    fn settle(&mut self) -> Check {
        // Once nothing fails any more, and nobody holds it up, all waiting has an end.
        self.toxic.disarm();
        for slot in 0..SLOTS {
            if self.model.open[slot].is_some() && self.rng.random_bool(0.8) {
                self.perform(&Op::Flush { slot })?;
                self.perform(&Op::Release { slot })?;
            }
        }
        self.perform(&Op::SyncFast)?;
        self.engine().count_waiter(true);
        self.engine().pause(false);
        let rest = self.rest();
        if !self.power.is_gone() {
            self.engine().count_waiter(false);
        }
        rest?;
        self.look()?;
        let (slow, view) = (self.slow.image(), self.model.view.image());
        if self.slow.has_notes() {
            return Err(Fail::Wrong("drained, and something is still open for one call".to_owned()));
        }
        if slow != view {
            let status = self.engine().status();
            let diff = slow.diff(&view, "slow", "view");
            let queue = self.engine().queue(20);
            return Err(Fail::Wrong(format!("drained, but not equal:\n{diff}\n{queue:?}\n{status:?}")));
        }
        let status = self.engine().status();
        if status.safety.files != 0 || status.safety.events != 0 {
            return Err(Fail::Wrong(format!("drained, but the status is {status:?}")));
        }
        if !self.is_cleaned_up && status.exceptions.conflicts > 0 {
            return Err(Fail::Wrong(format!(
                "nobody else is there, and conflicts are told: {:?}",
                self.engine().queue(9)
            )));
        }
        self.check_leftovers()?;
        if !self.model.dirty.is_empty() {
            return Err(Fail::Wrong(format!("the model still has changes of {:?}", self.model.dirty)));
        }
        // What is open and is written in place goes on there, whatever becomes of its other names.
        let in_place = self.model.order.in_place();
        self.model.order.restart(self.model.view.clone());
        let open = self.model.open.iter().flatten().map(|open| open.id).filter(|id| in_place.contains(id));
        self.model.order.set_all_in_place(&open.collect());
        self.loose = false;
        self.whole.clear();
        self.torn_in_place = !self.model.order.in_place().is_empty();
        self.mid_batch = false;
        Ok(())
    }

    /// At rest nothing waits in `tmp` to be placed any more. What a failing call left goes at the next start.
    fn check_leftovers(&mut self) -> Check {
        let is_left = |name: &[u8]| matches!(name.first(), Some(b'c' | b'm' | b'l'));
        let tmps = self.slow.root().dir(b".dlio-fs").and_then(|ours| ours.dir(b"tmp"));
        if self.is_cleaned_up || self.crew.toxics || self.is_tight || tmps.is_err() {
            return Ok(());
        }
        let found = |e: std::io::Error| Fail::Wrong(format!("tmp on the slow tier: {e}"));
        let (mut left, mut dirs) = (Vec::new(), Vec::new());
        let tmps = tmps.map_err(found)?;
        for of in tmps.list().map_err(found)? {
            dirs.push(tmps.dir(&of.name).map_err(found)?);
        }
        while let Some(dir) = dirs.pop() {
            for entry in dir.list().map_err(found)? {
                if is_left(&entry.name) {
                    left.push(escape(&entry.name));
                } else if entry.kind == Kind::Dir {
                    dirs.push(dir.dir(&entry.name).map_err(found)?);
                }
            }
        }
        if left.is_empty() { Ok(()) } else { Err(Fail::Wrong(format!("drained, and left in tmp: {left:?}"))) }
    }

    /// Steps the background until nothing is left to do.
    fn rest(&mut self) -> Check {
        let mut last = Vec::new();
        for _ in 0..STEPS {
            let mut wait = None;
            let mut idle = true;
            last.clear();
            for step in [Step::Seal, Step::Drain, Step::Publish, Step::Evict, Step::Tick] {
                self.may_commit(step);
                let batches = self.batches(step);
                let progress = self.run_step(step)?;
                last.push((step, progress));
                match progress {
                    Progress::Did => idle = false,
                    Progress::Idle => {}
                    Progress::Wait(for_) => wait = Some(wait.map_or(for_, |wait: Duration| wait.min(for_))),
                }
                self.check_slow(self.batches(step) > batches)?;
            }
            match wait {
                Some(wait) if idle => self.clock.advance(wait),
                // The dice may have passed over the stream that has something to do.
                None if idle && self.all_streams_rest()? => return Ok(()),
                _ => {}
            }
        }
        Err(Fail::Wrong(format!("no rest after {STEPS} rounds like {last:?}: {:?}", self.engine().status())))
    }

    fn all_streams_rest(&mut self) -> Check<bool> {
        let engine = self.engine.clone().expect("open between two crashes");
        for stream in 0..engine.drain_streams() {
            let done = engine.drain_stream_step(stream);
            if self.power.is_gone() {
                return Err(Fail::Gone);
            }
            if done.map_err(|e| Fail::Wrong(format!("Drain failed: {e}")))? == Progress::Did {
                return Ok(false);
            }
        }
        self.check_slow(false)?;
        Ok(true)
    }

    // Crashes.

    /// The machine stopped during `op`, or before it. `before`: the model without it.
    fn recover(&mut self, before: Model, op: &Op) -> Result<(), String> {
        let lose = self.armed.take().expect("a crash was scheduled");
        let mut after = before.clone();
        if let Ok(done) = after.apply(op) {
            after.finish(op, done);
        }
        // What is written in place is out of order from the moment it may have been.
        let in_place = self.model.order.in_place();
        let mut before = before;
        before.order.set_all_in_place(&in_place);
        after.order.set_all_in_place(&in_place);
        if matches!(op, Op::Run(Step::Tick | Step::Publish) | Op::Settle) {
            before.late(Duration::ZERO);
            after.late(Duration::ZERO);
        }
        let publishing = matches!(op, Op::Run(Step::Publish) | Op::Settle);
        if let Op::Settle = op {
            after = self.model.clone();
        }
        self.model = after.clone();
        if matches!(op, Op::Settle) {
            // Which of its commits were made is not known.
            for id in before.dirty.keys() {
                self.model.maybe_commit(*id);
            }
        }
        // What was shown while it still ran.
        let (inside, order) = (self.tally.inside_batches, self.model.order.clone());
        let shown = self.check_slow(false);
        // A batch whose last step was seen is not durable yet: a power cut may leave it half done.
        let half_done = self.tally.inside_batches > inside || self.waits_inside;
        if publishing {
            // What a batch shows on its way may look like a state that comes later.
            self.model.order = order;
            self.mid_batch = true;
        } else {
            shown.map_err(wrong)?;
        }
        self.crash_disks(lose, half_done)?;
        self.reopen(lose)?;
        let found = self.view()?;
        match lose {
            Lose::Nothing => self.resume(before, after, op, &found)?,
            Lose::Unsynced => self.restart(&before, &found)?,
        }
        self.look().map_err(wrong)
    }

    /// `half_done`: a batch was, and the power cut may show it.
    fn crash_disks(&mut self, lose: Lose, half_done: bool) -> Result<(), String> {
        self.note(format!("     the machine stops: {lose:?} is lost"));
        self.detach();
        self.power.restore();
        self.fast = self.fast.crash(lose, &mut self.rng);
        self.slow = self.slow.crash(lose, &mut self.rng);
        self.toxic.disarm();
        self.toxic.watch(&self.slow);
        self.clean_up()?;
        match lose {
            Lose::Nothing => self.tally.kills += 1,
            Lose::Unsynced => {
                self.tally.power_cuts += 1;
                self.boot += 1;
                if !self.loose {
                    self.tally.states += 1;
                    match self.model.order.show_after_power_cut(&self.slow.image()) {
                        Ok(()) => {}
                        Err(_) if half_done => self.tally.inside_batches += 1,
                        Err(why) => return Err(format!("after the power cut, {why}")),
                    }
                }
            }
        }
        Ok(())
    }

    /// Opens the engine; the machine may stop again meanwhile, in the same way.
    fn reopen(&mut self, lose: Lose) -> Result<(), String> {
        loop {
            if self.rng.random_bool(if self.crew.crashes { 0.5 } else { 0.25 }) {
                let n = self.rng.random_range(1..30);
                self.power.fail_after(n, &mut self.rng);
            }
            let opened = self.open_engine();
            let gone = self.power.is_gone();
            // What a batch shows on its way may look like a state that comes later; a start finishes it.
            let finished = self.mid_batch && !gone;
            self.check_slow(finished).map_err(wrong)?;
            match opened {
                _ if gone => {
                    drop(opened);
                    self.mid_batch = true;
                    self.crash_disks(lose, true)?;
                }
                Err(e) => return Err(format!("recovery failed: {e}")),
                Ok(engine) => {
                    self.power.restore();
                    self.attach(engine);
                    return Ok(());
                }
            }
        }
    }

    /// A call of a tier failed under a user's, who was told so: nothing was done, or of bytes a part. `done`: what would have been.
    fn go_on_after_a_failed_call(&mut self, before: Model, op: &Op, done: Option<Done>) -> Result<(), String> {
        let mut after = self.model.clone();
        done.into_iter().for_each(|done| after.finish(op, done));
        let open = before.open;
        let found = self.view()?;
        let mut model =
            self.choose(&before, &after, op, &found).map_err(|why| format!("after a failed call, {why}"))?;
        model.open = open;
        model.undo(op);
        self.model = model;
        Ok(())
    }

    /// After a kill: everything acknowledged is there; what was under way happened, or not.
    fn resume(&mut self, before: Model, after: Model, op: &Op, found: &Image) -> Result<(), String> {
        let mut model = self.choose(&before, &after, op, found).map_err(|why| format!("after a kill, {why}"))?;
        model.now = self.clock.uptime();
        model.crashed();
        self.model = model;
        Ok(())
    }

    /// Which of both the view is after an operation that was cut off; of bytes it may have a part.
    fn choose(&self, before: &Model, after: &Model, op: &Op, found: &Image) -> Result<Model, String> {
        let touched = before.clone().apply(op).ok().and_then(|done: Done| done.touched);
        let chosen = match touched {
            Some(id) => self.pick_touched(before, after, id, found),
            None if *found == before.view.image() => Some(before.clone()),
            None if *found == after.view.image() => Some(after.clone()),
            None => None,
        };
        let Some(mut model) = chosen else {
            let mut said = "the view is neither that before nor that after the last operation:\n".to_string();
            said += &found.diff(&before.view.image(), "found ", "before");
            said += "\nor\n";
            said += &found.diff(&after.view.image(), "found ", "after ");
            return Err(said);
        };
        // What the operation was about to commit may be committed.
        let settling = matches!(op, Op::Settle);
        for id in before.dirty.keys().filter(|id| settling || !after.dirty.contains_key(id)) {
            if model.dirty.contains_key(id) {
                model.maybe_commit(*id);
            }
        }
        Ok(model)
    }

    /// The machine stopped while the bytes of a file changed: any part of the change may be there.
    fn pick_touched(&self, before: &Model, after: &Model, id: Id, found: &Image) -> Option<Model> {
        for model in [before, after] {
            let paths = model.paths_of(id);
            let masked: BTreeSet<Vec<u8>> = paths.iter().cloned().collect();
            if found.without_bytes_of(&masked) != model.view.image().without_bytes_of(&masked) {
                continue;
            }
            let Some(path) = paths.first() else { return Some(model.clone()) };
            let body = found.get(path)?.shown.body();
            let old = if before.view.contains(id) { before.view.node(id).bytes.clone() } else { Arc::default() };
            let new = after.view.node(id).bytes.clone();
            let part = |i: usize, b: u8| [&old, &new].iter().any(|v| v.get(i).copied().unwrap_or(0) == b);
            let plausible =
                body.bytes.len() <= old.len().max(new.len()) && body.bytes.iter().enumerate().all(|(i, b)| part(i, *b));
            if !plausible {
                return None;
            }
            let changed = model.view.node(id).bytes != body.bytes || Some(model.view.node(id).mtime) != body.mtime;
            let mut chosen = model.clone();
            // The order that the operation would have made is not certain; that of everything before it is.
            chosen.order = before.order.clone();
            if std::ptr::eq(model, after) {
                chosen.order.take_events(&after.order);
            }
            if changed || chosen.dirty.contains_key(&id) {
                chosen.adopt_bytes(id, &body.bytes, body.mtime.unwrap_or_default());
            }
            chosen.maybe_commit(id);
            return Some(chosen);
        }
        None
    }

    /// After a power cut: what was synced is there; the rest as far as the disk had it.
    fn restart(&mut self, before: &Model, found: &Image) -> Result<(), String> {
        let mut order = self.model.order.clone();
        order.unsync(&before.order);
        match order.reach(found) {
            Ok(true) => {}
            Ok(false) => self.tally.unjudged += 1,
            Err(why) => return Err(why),
        }
        self.torn_in_place |= !order.in_place().is_empty();
        self.whole.extend(order.versions_of_all());
        let (fill, names_max) = (self.model.fill, self.model.names_max);
        self.model = Model::new(Fs::from_image(found));
        self.model.names_max = names_max;
        self.model.fill = fill;
        self.loose = true;
        Ok(())
    }

    // Looking at the view.

    fn look(&mut self) -> Check {
        let found = self.view_or_gone()?;
        walk::compare(&found, &self.model.view.image()).map_err(Fail::Wrong)?;
        self.compare_changes()
    }

    /// What no user has changed since the last look has not changed.
    fn compare_changes(&mut self) -> Check {
        let before = std::mem::replace(&mut self.unchanged, self.changes.clone());
        // A file that did not fit on the fast tier changes by its last step, and without root a mode for a moment.
        if self.without_root || self.engine().status().exceptions.spilled > 0 {
            return Ok(());
        }
        for (ino, at) in before {
            if self.changes.get(&ino).is_some_and(|now| *now != at) {
                let now = self.changes[&ino];
                return Err(Fail::Wrong(format!(
                    "nobody has changed inode {ino}, and it changed at {now:?}, not {at:?}"
                )));
            }
        }
        Ok(())
    }

    fn view(&mut self) -> Result<Image, String> {
        self.view_or_gone().map_err(wrong)
    }

    fn view_or_gone(&mut self) -> Check<Image> {
        let engine = self.engine.clone().expect("open between two crashes");
        let walked = walk::view_and_changes(&engine, &mut self.kernel().cached);
        if self.power.is_gone() {
            return Err(Fail::Gone);
        }
        self.forget_some();
        let (view, changes) = walked.map_err(Fail::Wrong)?;
        self.changes = changes;
        Ok(view)
    }
}

fn one_step(engine: &Tiers, step: Step, stream: u32) -> EngineResult<Progress> {
    match step {
        Step::Seal => engine.seal_step(),
        // With an old lease a member of a fleet does nothing.
        Step::Drain => engine.fleet_step().and_then(|_| engine.drain_stream_step(stream)),
        Step::Publish => engine.fleet_step().and_then(|_| engine.publish_step()),
        Step::Evict => engine.evict_step(),
        Step::Tick => engine.recheck_step().and_then(|_| engine.tick()),
    }
}

fn wrong(fail: Fail) -> String {
    match fail {
        Fail::Wrong(why) => why,
        Fail::Gone => "the machine stopped where nothing had scheduled it".into(),
    }
}

/// What was on the slow tier before there was a fast one.
fn populate(slow: &dyn Dir, rng: &mut Xoshiro256PlusPlus) {
    for _ in 0..rng.random_range(0..14) {
        let path = random_path(rng).0;
        let names: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
        let (last, above) = names.split_last().expect("a split has a last piece");
        // A file in the way of a directory: this one is left out.
        let Some(dir) = make_dirs(slow, above) else { continue };
        let dir = dir.as_deref().unwrap_or(slow);
        if dir.stat(last).is_ok() {
            continue;
        }
        let made = match rng.random_range(0..6) {
            0 => dir.mkdir(last, 0o750),
            1 => dir.symlink(last, b"to/somewhere"),
            2 => dir.mknod(last, Kind::Fifo, 0o600, 0),
            3 => match slow.list().ok().and_then(|all| all.into_iter().find(|e| e.kind == Kind::File)) {
                Some(file) => slow.link(&file.name, dir, last),
                None => Ok(()),
            },
            _ => {
                let len = [0, 10, 4096, 7000, 20000][rng.random_range(0..5)];
                let fill = rng.random_range(251..=255);
                dir.create(last, 0o640).and_then(|file| {
                    file.write_at(&vec![fill; len], 0)?;
                    if rng.random_bool(0.3) {
                        file.set_xattr(b"user.k0", b"before")?;
                    }
                    Ok(())
                })
            }
        };
        made.expect("nothing stands in the way on an empty disk");
    }
}

/// Makes the directories of a path; the last one, or nothing if a file is in the way. `Some(None)`: the root.
fn make_dirs(root: &dyn Dir, names: &[&[u8]]) -> Option<Option<Arc<dyn Dir>>> {
    let mut at: Option<Arc<dyn Dir>> = None;
    for name in names {
        let dir = at.as_deref().unwrap_or(root);
        if dir.stat(name).is_err() {
            dir.mkdir(name, 0o755).ok()?;
        }
        at = Some(dir.dir(name).ok()?);
    }
    Some(at)
}
