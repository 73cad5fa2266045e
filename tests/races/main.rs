//! Threads that meet on one file, in every order a scheduler can think of: shuttle switches between them at each lock, each
//! atomic of a file and each call to a disk.
//!
//! A race is what was done before, and what each of several threads does then, with the background among them. Afterwards
//! there must be *one* order of the operations, each at once, in which the reference (`tests/model`) gives every answer that the
//! threads were given and shows what the view shows; every state that the slow tier has had is one after a prefix of that
//! order (P1), its files are whole (P5), a kill loses nothing (P3), and drained it equals the view.
//!
//! `cargo xtask test races`; `RACES=n` tries n schedules of each race. A failure prints its schedule, and `RACES_REPLAY=schedule`
//! with the test's name repeats that one.

#![cfg(debug_assertions)] // What they need of the engine is in no release build.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a failing race tells its story")]
#![allow(unreachable_pub, dead_code, reason = "what is shared with the model test is used in part")]

#[path = "../model/model.rs"]
mod model;
#[path = "../model/ops.rs"]
mod ops;
#[path = "../model/order.rs"]
mod order;
#[path = "../model/reference.rs"]
mod reference;
#[path = "../sim/mod.rs"]
mod sim;
#[path = "../model/toxic.rs"]
mod toxic;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlio_fs::error::{Errno, Result as EngineResult};
use dlio_fs::path::{Name, escape};
use dlio_fs::tiers::disk::sync::turns;
use dlio_fs::tiers::disk::{Clock, Kind, MetadataOrder, RenameMode};
use dlio_fs::tiers::{self, Cx, Ino, OpenFile, OpenMode, Options, Progress, ROOT, SetAttr, SlowTree, Tiers};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use model::{Model, SLOTS};
use ops::{Op, Path, Step};
use reference::Fs;
use sim::image::Image;
use sim::{Lose, SimClock, SimDisk, SimPower};

/// Schedules of each race, half of them by the dice and half by priorities that change at a few points (PCT), which finds what
/// needs one thread to be kept waiting for long.
const SCHEDULES: usize = 400;
const ROOM: u64 = 1 << 30;

/// What one thread does.
#[derive(Clone, Debug)]
enum Act {
    Op(Op),
    /// Lets go of the fast copy of a file that is there when the race begins.
    Evict(&'static str),
}

/// What a thread was told: the bytes that it read, or an errno.
type Answer = Result<Vec<u8>, Errno>;

/// An answer, and when it was asked for and given, by a clock that all threads share.
#[derive(Clone, Debug)]
struct Told {
    answer: Answer,
    asked: u64,
    given: u64,
}

struct Race {
    before: Vec<Op>,
    threads: Vec<Vec<Act>>,
}

/// Each name gets an end that is no text, is read from the right, moves a terminal's cursor, and makes it as long as a name may be.
fn path(path: &str) -> Path {
    let name = |name: &str| {
        let mut name = [name, "\u{e9}1\u{202e}\u{1b}%"].concat().into_bytes();
        name.resize(255, 0xff);
        name
    };
    Path(path.split('/').map(name).collect::<Vec<_>>().join(&b'/'))
}

fn open(slot: usize, at: &str) -> Op {
    Op::Open { slot, path: path(at), write: true, truncate: false }
}

fn create(slot: usize, at: &str) -> Op {
    Op::Create { slot, path: path(at), mode: 0o644, umask: 0, uid: 0 }
}

fn write(slot: usize, at: u64, len: usize) -> Op {
    Op::Write { slot, at: Some(at), len, kill_privileges: false }
}

fn close(slot: usize) -> [Op; 2] {
    [Op::Flush { slot }, Op::Release { slot }]
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename { from: path(from), to: path(to), mode: RenameMode::Replace }
}

fn exchange(from: &str, to: &str) -> Op {
    Op::Rename { from: path(from), to: path(to), mode: RenameMode::Exchange }
}

fn unlink(at: &str) -> Op {
    Op::Unlink { path: path(at) }
}

fn mkdir(at: &str) -> Op {
    Op::Mkdir { path: path(at), mode: 0o755, umask: 0, uid: 0 }
}

/// A file of `len` bytes that is closed.
fn file(at: &str, len: usize) -> Vec<Op> {
    [vec![create(0, at), write(0, 0, len)], close(0).to_vec()].concat()
}

fn acts(ops: impl IntoIterator<Item = Op>) -> Vec<Act> {
    ops.into_iter().map(Act::Op).collect()
}

/// The background's work on everything that is there, and some of what comes meanwhile.
fn background() -> Vec<Act> {
    let round = [Step::Seal, Step::Drain, Step::Publish];
    acts(round.into_iter().chain(round).map(Op::Run))
}

/// The machine of one race.
struct World {
    clock: Arc<SimClock>,
    fast: SimDisk,
    slow: SimDisk,
    tiers: Tiers,
    /// What was there before the threads began, and the directories among it.
    known: BTreeMap<Vec<u8>, Ino>,
    time: AtomicU64,
}

fn options() -> Options {
    let mut options = Options::for_tests();
    options.live_after = Duration::from_secs(3600);
    options
}

fn root() -> Cx {
    Cx::internal()
}

fn errno<T>(answer: EngineResult<T>) -> Result<T, Errno> {
    answer.map_err(|e| e.errno())
}

type Files = [Option<OpenFile>; SLOTS];

impl World {
    fn new() -> World {
        let (clock, power) = (SimClock::stopped(), SimPower::new());
        let [fast, slow] = ["fast", "slow"].map(|label| {
            let disk = SimDisk::new(label, MetadataOrder::Journaled, ROOM, &power, &clock);
            disk.before_calls(thread::yield_now);
            disk
        });
        slow.observe();
        let tiers =
            tiers::open(fast.root(), slow.root(), SlowTree::Writable, options(), clock.clone(), "boot").unwrap();
        World { clock, fast, slow, tiers, known: BTreeMap::new(), time: AtomicU64::new(0) }
    }

    /// The same machine after a kill of the daemon.
    fn killed(self) -> World {
        let World { clock, fast, slow, tiers, .. } = self;
        drop(tiers);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(0);
        let (fast, slow) = (fast.crash(Lose::Nothing, &mut random), slow.crash(Lose::Nothing, &mut random));
        let tiers =
            tiers::open(fast.root(), slow.root(), SlowTree::Writable, options(), clock.clone(), "boot").unwrap();
        World { clock, fast, slow, tiers, known: BTreeMap::new(), time: AtomicU64::new(0) }
    }

    fn parent(&self, path: &Path) -> Result<(Ino, Name), Errno> {
        let cut = path.0.iter().rposition(|&b| b == b'/');
        let (dir, name) = cut.map_or((&b""[..], &path.0[..]), |cut| (&path.0[..cut], &path.0[cut + 1..]));
        let dir = if dir.is_empty() { ROOT } else { *self.known.get(dir).ok_or(Errno::ENOENT)? };
        Ok((dir, Name::new(name).unwrap()))
    }

    /// What the kernel knew the path by when the race began, else what it leads to now.
    fn find(&self, path: &Path) -> Result<Ino, Errno> {
        if let Some(ino) = self.known.get(&path.0) {
            return Ok(*ino);
        }
        let (dir, name) = self.parent(path)?;
        Ok(errno(self.tiers.lookup(&root(), dir, &name))?.ino)
    }

    /// Keeps every name that is there as the kernel's cache would.
    fn remember(&mut self) {
        self.known.clear();
        let mut dirs = vec![(Vec::new(), ROOT)];
        while let Some((above, dir)) = dirs.pop() {
            let listing = self.tiers.list(&root(), dir).unwrap();
            for entry in listing.entries.iter().skip(2) {
                let path = [&above[..], if above.is_empty() { b"" } else { b"/" }, &entry.name].concat();
                let attr = self.tiers.lookup(&root(), dir, &Name::new(&entry.name).unwrap()).unwrap();
                if attr.kind == Kind::Dir {
                    dirs.push((path.clone(), attr.ino));
                }
                self.known.insert(path, attr.ino);
            }
        }
    }

    fn time(&self) -> u64 {
        self.time.fetch_add(1, Ordering::Relaxed)
    }

    fn act(&self, files: &mut Files, act: &Act, fill: u8) -> Answer {
        match act {
            Act::Op(op) => self.call(files, op, fill),
            Act::Evict(at) => {
                self.tiers.evict_now(&root(), self.known[&path(at).0]).unwrap();
                Ok(Vec::new())
            }
        }
    }

    fn call(&self, files: &mut Files, op: &Op, fill: u8) -> Answer {
        let (cx, tiers) = (root(), &self.tiers);
        let done = match op {
            Op::Run(step) => self.step(*step).map(drop),
            Op::Create { slot, path, mode, umask, .. } => {
                let (dir, name) = self.parent(path)?;
                let how = OpenMode { write: true, append: false, truncate: false };
                tiers.create(&cx, dir, &name, *mode, *umask, how).map(|(_, file)| files[*slot] = Some(file))
            }
            Op::Open { slot, path, write, truncate } => {
                let how = OpenMode { write: *write, append: false, truncate: *truncate };
                tiers.open(&cx, self.find(path)?, how).map(|file| files[*slot] = Some(file))
            }
            Op::Write { slot, at, len, .. } => {
                tiers.write(&cx, files[*slot].as_ref().unwrap(), &vec![fill; *len], at.unwrap(), false)
            }
            Op::Read { slot, at, len } => {
                let mut bytes = vec![0; *len];
                let got = errno(tiers.read(&cx, files[*slot].as_ref().unwrap(), &mut bytes, *at))?;
                bytes.truncate(got);
                return Ok(bytes);
            }
            Op::Flush { slot } => tiers.flush(&cx, files[*slot].as_ref().unwrap()),
            Op::Fsync { slot } => tiers.fsync(&cx, files[*slot].as_ref().unwrap()),
            Op::Release { slot } => {
                tiers.release(&cx, files[*slot].take().unwrap());
                Ok(())
            }
            Op::Truncate { path, len } => {
                let set = SetAttr { size: Some(*len), ..SetAttr::default() };
                tiers.setattr(&cx, self.find(path)?, &set).map(drop)
            }
            Op::Mkdir { path, mode, umask, .. } => {
                let (dir, name) = self.parent(path)?;
                tiers.mkdir(&cx, dir, &name, *mode, *umask).map(drop)
            }
            Op::Link { from, to } => {
                let (dir, name) = self.parent(to)?;
                tiers.link(&cx, self.find(from)?, dir, &name).map(drop)
            }
            Op::Unlink { path } => {
                let (dir, name) = self.parent(path)?;
                tiers.unlink(&cx, dir, &name)
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.parent(path)?;
                tiers.rmdir(&cx, dir, &name)
            }
            Op::Rename { from, to, mode } => {
                let ((dir, name), (to, to_name)) = (self.parent(from)?, self.parent(to)?);
                tiers.rename(&cx, dir, &name, to, &to_name, *mode)
            }
            Op::SyncFast => tiers.sync_fast(),
            _ => unreachable!("{op:?} is in no race"),
        };
        errno(done).map(|()| Vec::new())
    }

    fn step(&self, step: Step) -> EngineResult<Progress> {
        match step {
            Step::Seal => self.tiers.seal_step(),
            Step::Drain => self.tiers.drain_step(),
            Step::Publish => self.tiers.publish_step(),
            Step::Evict => self.tiers.evict_step(),
            Step::Tick => self.tiers.recheck_step().and_then(|_| self.tiers.tick()),
        }
    }

    /// Everything to the slow tier.
    fn drain(&self) {
        self.tiers.count_waiter(true);
        for _ in 0..1000 {
            let mut did = false;
            for step in [Step::Seal, Step::Drain, Step::Publish, Step::Tick] {
                did |= self.step(step).unwrap() == Progress::Did;
            }
            let status = self.tiers.status();
            if !did && status.safety.files == 0 && status.safety.events == 0 {
                self.tiers.count_waiter(false);
                return;
            }
            self.clock.advance(Duration::from_secs(1));
        }
        panic!("everything was closed, and not everything is drained: {:?}", self.tiers.status());
    }

    /// Every name with what it leads to.
    fn view(&self) -> Seen {
        let mut seen = Seen::new();
        let mut dirs = vec![(Vec::new(), ROOT)];
        let mut looked_up = Vec::new();
        while let Some((above, dir)) = dirs.pop() {
            let listing = self.tiers.list(&root(), dir).unwrap();
            for entry in listing.entries.iter().skip(2) {
                let path = [&above[..], if above.is_empty() { b"" } else { b"/" }, &entry.name].concat();
                let attr = self.tiers.lookup(&root(), dir, &Name::new(&entry.name).unwrap()).unwrap();
                let mut bytes = Vec::new();
                match attr.kind {
                    Kind::Dir => dirs.push((path.clone(), attr.ino)),
                    _ => {
                        let how = OpenMode::default();
                        let file = self.tiers.open(&root(), attr.ino, how).unwrap();
                        bytes = vec![0; attr.size as usize + 1];
                        let got = self.tiers.read(&root(), &file, &mut bytes, 0).unwrap();
                        assert_eq!(got as u64, attr.size, "{} is as long as it says", escape(&path));
                        bytes.truncate(got);
                        self.tiers.release(&root(), file);
                    }
                }
                looked_up.push(attr.ino);
                seen.insert(path, (attr.kind, attr.nlink.min(2), bytes));
            }
        }
        looked_up.into_iter().for_each(|ino| self.tiers.forget(ino, 1));
        seen.values_mut().filter(|(kind, ..)| *kind == Kind::Dir).for_each(|(_, nlink, _)| *nlink = 0);
        seen
    }
}

/// Names, with kind, whether there are more of them (files), and bytes.
type Seen = BTreeMap<Vec<u8>, (Kind, u32, Vec<u8>)>;

fn seen(image: &Image) -> Seen {
    let mut seen = Seen::new();
    let mut names: BTreeMap<&[u8], u32> = BTreeMap::new();
    for path in image.paths() {
        let first = image.get(path).unwrap().same_as.as_deref().unwrap_or(path);
        *names.entry(first).or_default() += 1;
    }
    for path in image.paths().filter(|path| !path.is_empty()) {
        let entry = image.get(path).unwrap();
        let body = entry.shown.body();
        let count = names[entry.same_as.as_deref().unwrap_or(path)].min(2);
        let count = if body.kind == Kind::Dir { 0 } else { count };
        seen.insert(path.to_vec(), (body.kind, count, body.bytes.to_vec()));
    }
    seen
}

fn describe(seen: &Seen) -> String {
    let line = |(path, (kind, names, bytes)): (&Vec<u8>, &(Kind, u32, Vec<u8>))| {
        format!("  {} {kind:?} {names} {}", escape(path), sim::image::show_bytes(bytes))
    };
    seen.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The reference does one operation; whether it gives the same answer.
fn answers(model: &mut Model, clock: &SimClock, op: &Op, fill: u8, answer: &Answer) -> bool {
    model.fill = fill - 1;
    if let Op::Read { slot, at, len } = op {
        let bytes = &model.view.node(model.open[*slot].unwrap().id).bytes;
        let bytes = bytes.get(*at as usize..).unwrap_or_default();
        return answer.as_deref() == Ok(&bytes[..bytes.len().min(*len)]);
    }
    match model.apply(op) {
        Ok(done) => {
            if let Some(id) = done.touched {
                model.adopt_time(id, clock.now());
            }
            model.finish(op, done);
            answer.is_ok()
        }
        Err(errno) => answer.as_ref().err() == Some(&errno),
    }
}

/// Different for each operation of each thread.
fn fill(thread: usize, at: usize) -> u8 {
    (16 * (thread + 1) + at + 1) as u8
}

/// What the reference does not see has its place in any order wherever it is.
fn is_unseen(act: &Act) -> bool {
    matches!(act, Act::Op(Op::Run(_)) | Act::Evict(_))
}

/// Every order of the threads' operations in which the reference agrees with their answers and with `view`, and none comes
/// before one that had its answer when it was asked for.
fn orders(model: &Model, clock: &SimClock, race: &Race, told: &[Vec<Told>], view: &Seen) -> Vec<Model> {
    let mut found = Vec::new();
    let mut stack = vec![(model.clone(), vec![0; race.threads.len()])];
    while let Some((model, at)) = stack.pop() {
        let rest = |thread: usize| race.threads[thread][at[thread]..].iter();
        if (0..race.threads.len()).all(|thread| rest(thread).all(is_unseen)) {
            found.extend((seen(&model.view.image()) == *view).then_some(model));
            continue;
        }
        let next = |thread: usize| at[thread] + rest(thread).take_while(|act| is_unseen(act)).count();
        let given = (0..told.len()).filter_map(|thread| Some(told[thread].get(next(thread))?.given)).min();
        for (thread, acts) in race.threads.iter().enumerate() {
            let next = next(thread);
            let Some(Act::Op(op)) = acts.get(next) else { continue };
            let told = &told[thread][next];
            if given.is_some_and(|given| given < told.asked) {
                continue;
            }
            let (mut model, mut after) = (model.clone(), at.clone());
            after[thread] = next + 1;
            if answers(&mut model, clock, op, fill(thread, next), &told.answer) {
                stack.push((model, after));
            }
        }
    }
    found
}

fn run(race: &Race) {
    let mut world = World::new();
    let mut model = Model::new(Fs::from_image(&world.slow.image()));
    let mut files = Files::default();
    for op in &race.before {
        match op {
            Op::Settle => {
                world.drain();
                model.order.restart(model.view.clone());
            }
            op => {
                world.remember();
                let answer = world.call(&mut files, op, 1);
                assert!(answers(&mut model, &world.clock, op, 1, &answer), "{op:?}: {answer:?}");
            }
        }
    }
    world.remember();
    drop(world.slow.take_observed());
    let batches = world.tiers.status().exceptions.batches;

    let world = Arc::new(world);
    // Each open file belongs to the thread that uses its slot first.
    let mut given: Vec<Files> = race.threads.iter().map(|_| Files::default()).collect();
    for (slot, file) in files.into_iter().enumerate().filter(|(_, file)| file.is_some()) {
        let uses = |act: &Act| slot_of(act) == Some(slot);
        let owner = race.threads.iter().position(|acts| acts.iter().any(uses)).expect("somebody uses it");
        given[owner][slot] = file;
    }
    let threads = race.threads.iter().cloned().zip(given).enumerate().map(|(thread, (acts, mut files))| {
        let world = world.clone();
        thread::spawn(move || {
            let act = |(at, act)| {
                let asked = world.time();
                let answer = world.act(&mut files, act, fill(thread, at));
                Told { answer, asked, given: world.time() }
            };
            (acts.iter().enumerate().map(act).collect(), files)
        })
    });
    let ended: Vec<_> = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
    let (told, left): (Vec<Vec<Told>>, Vec<_>) = ended.into_iter().unzip();
    let world = Arc::into_inner(world).expect("all threads have ended");
    judge(race, world, &model, &told, left, batches);
}

fn judge(race: &Race, world: World, model: &Model, told: &[Vec<Told>], left: Vec<Files>, batches: u64) {
    let view = world.view();
    let story = || format!("{:#?}\n{told:?}\nview:\n{}", race.threads, describe(&view));
    let orders = orders(model, &world.clock, race, told, &view);
    assert!(!orders.is_empty(), "no order of the operations explains\n{}", story());

    let states = world.slow.take_observed();
    if world.tiers.status().exceptions.batches == batches {
        let fits = |model: &&Model| {
            let mut order = model.order.clone();
            states.iter().all(|state| order.show(state).is_ok())
        };
        let first = || states.iter().map(|state| format!("{state:?}")).collect::<Vec<_>>().join("\n");
        assert!(orders.iter().any(|model| fits(&model)), "no prefix of the order:\n{}\n{}", first(), story());
    }
    let whole: BTreeSet<Vec<u8>> =
        orders.iter().flat_map(|model| model.order.versions_of_all()).map(|bytes| bytes.to_vec()).collect();
    for state in states.iter().map(seen) {
        for (path, (kind, _, bytes)) in &state {
            let torn = *kind == Kind::File && !whole.contains(bytes);
            assert!(!torn, "{} is torn on slow: {}\n{}", escape(path), sim::image::show_bytes(bytes), story());
        }
    }

    let world = match shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng()) {
        true => {
            drop(left);
            let world = world.killed();
            assert_eq!(describe(&world.view()), describe(&view), "after a kill\n{}", story());
            world
        }
        false => {
            left.into_iter().flatten().flatten().for_each(|file| {
                world.tiers.flush(&root(), &file).unwrap();
                world.tiers.release(&root(), file);
            });
            world
        }
    };
    world.tiers.sync_fast().unwrap();
    world.drain();
    assert_eq!(describe(&world.view()), describe(&view), "drained, the view is another\n{}", story());
    assert_eq!(describe(&seen(&world.slow.image())), describe(&view), "the slow tier is not the view\n{}", story());
}

fn slot_of(act: &Act) -> Option<usize> {
    match act {
        Act::Op(
            Op::Write { slot, .. }
            | Op::Read { slot, .. }
            | Op::Flush { slot }
            | Op::Fsync { slot }
            | Op::Release { slot },
        ) => Some(*slot),
        _ => None,
    }
}

fn check(race: Race) {
    let race = Arc::new(race);
    in_all_orders(move || run(&race));
}

fn in_all_orders(test: impl Fn() + Clone + Send + Sync + 'static) {
    // An atomic of shuttle's is a point at which it may switch, and nothing else.
    let may_switch = || {
        shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
    };
    turns::install(turns::Scheduler { may_switch, must_switch: thread::yield_now });
    if let Ok(schedule) = std::env::var("RACES_REPLAY") {
        return shuttle::replay(test, &schedule);
    }
    let schedules = std::env::var("RACES").map_or(SCHEDULES, |n| n.parse().unwrap());
    let mut config = Config::new();
    // The reference's maps and the engine's recovery need more than the coroutines' usual 32 KiB.
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new(schedules / 2), config.clone()).run(test.clone());
    Runner::new(PctScheduler::new(3, schedules / 2), config).run(test);
}

#[test]
fn a_clean_file_is_written_while_it_is_evicted_and_read() {
    check(Race {
        before: [file("a", 9000), vec![Op::Settle, open(0, "a"), open(1, "a")]].concat(),
        threads: vec![
            acts([write(0, 0, 100), Op::Flush { slot: 0 }, write(0, 5000, 100)].into_iter().chain(close(0))),
            vec![Act::Evict("a"), Act::Evict("a")],
            acts([Op::Read { slot: 1, at: 0, len: 6000 }, Op::Read { slot: 1, at: 0, len: 6000 }]),
            background(),
        ],
    });
}

#[test]
fn a_version_is_written_over_while_it_is_drained_and_published() {
    check(Race {
        before: [file("a", 9000), vec![open(0, "a")]].concat(),
        threads: vec![
            acts(
                [write(0, 0, 4096), write(0, 4096, 4096), Op::Flush { slot: 0 }, write(0, 100, 10)]
                    .into_iter()
                    .chain(close(0)),
            ),
            background(),
            background(),
        ],
    });
}

#[test]
fn a_file_is_truncated_while_it_is_drained_and_published() {
    check(Race {
        before: [file("a", 9000), vec![open(0, "a")]].concat(),
        threads: vec![
            acts([Op::Truncate { path: path("a"), len: 0 }, Op::Truncate { path: path("a"), len: 50 }]),
            acts([write(0, 40, 4096)].into_iter().chain(close(0))),
            background(),
        ],
    });
}

#[test]
fn two_write_one_file_and_one_of_them_syncs() {
    check(Race {
        before: [file("a", 5000), vec![open(0, "a"), open(1, "a")]].concat(),
        threads: vec![
            acts([write(0, 0, 3000), Op::Fsync { slot: 0 }].into_iter().chain(close(0))),
            acts([write(1, 2000, 3000)].into_iter().chain(close(1))),
            background(),
        ],
    });
}

#[test]
fn a_file_is_renamed_over_another_while_it_is_closed_and_published() {
    check(Race {
        before: [file("a", 5000), vec![create(1, "tmp"), write(1, 0, 6000)]].concat(),
        threads: vec![
            acts([write(1, 6000, 100)].into_iter().chain(close(1))),
            acts([rename("tmp", "a"), rename("a", "b")]),
            background(),
        ],
    });
}

#[test]
fn a_file_on_slow_is_renamed_over_while_it_is_evicted() {
    check(Race {
        before: [file("a", 5000), file("b", 6000), vec![Op::Settle]].concat(),
        threads: vec![acts([rename("a", "b"), rename("b", "c")]), vec![Act::Evict("a"), Act::Evict("b")], background()],
    });
}

#[test]
fn a_file_is_removed_and_made_again_while_it_is_drained_and_published() {
    check(Race {
        before: [file("a", 5000), file("b", 100), vec![create(0, "tmp"), write(0, 0, 60)]].concat(),
        threads: vec![
            acts([unlink("a"), rename("tmp", "a"), write(0, 60, 70)].into_iter().chain(close(0))),
            acts([rename("b", "a")]),
            background(),
        ],
    });
}

#[test]
fn two_files_change_places_while_both_are_published() {
    check(Race {
        before: [file("a", 5000), file("b", 100), vec![open(1, "b")]].concat(),
        threads: vec![
            acts([exchange("a", "b"), exchange("b", "a"), unlink("a")]),
            acts([write(1, 0, 60)].into_iter().chain(close(1))),
            background(),
        ],
    });
}

#[test]
fn a_directory_is_renamed_while_a_file_in_it_is_written_and_published() {
    check(Race {
        before: [vec![mkdir("d")], file("d/a", 500), vec![create(1, "d/b"), write(1, 0, 50)]].concat(),
        threads: vec![
            acts([write(1, 0, 70)].into_iter().chain(close(1))),
            acts([rename("d", "e"), mkdir("d")]),
            background(),
        ],
    });
}

#[test]
fn a_file_gets_another_name_while_it_is_written_and_published() {
    check(Race {
        before: [file("a", 5000), vec![open(0, "a")]].concat(),
        threads: vec![
            acts([write(0, 0, 60)].into_iter().chain(close(0))),
            acts([Op::Link { from: path("a"), to: path("b") }, unlink("a")]),
            background(),
        ],
    });
}

#[test]
fn a_file_that_was_published_is_removed_while_it_is_written() {
    check(Race {
        before: [file("a", 5000), vec![Op::Settle, open(0, "a")]].concat(),
        threads: vec![
            acts([write(0, 0, 60), Op::Fsync { slot: 0 }].into_iter().chain(close(0))),
            acts([unlink("a"), create(1, "a"), write(1, 0, 30)].into_iter().chain(close(1))),
            background(),
            vec![Act::Evict("a")],
        ],
    });
}

#[test]
fn several_want_the_same_name() {
    check(Race {
        before: [file("a", 5000), file("b", 100), vec![Op::Settle]].concat(),
        threads: vec![
            acts([mkdir("x"), unlink("x")]),
            acts([rename("a", "x")]),
            acts([Op::Link { from: path("b"), to: path("x") }, unlink("b")]),
            background(),
        ],
    });
}

#[test]
fn several_sync_the_log_at_once() {
    check(Race {
        before: (0..3).flat_map(|slot| [create(slot, ["a", "b", "c"][slot]), write(slot, 0, 100)]).collect(),
        threads: (0..3)
            .map(|slot| acts([Op::Fsync { slot }, Op::Release { slot }]))
            .chain([acts([Op::SyncFast, Op::Run(Step::Tick), Op::Run(Step::Seal)])])
            .collect(),
    });
}

/// The slow file has its new name before the view follows: the open walked to the old one, found nothing there, and after three
/// tries at once said that the file was stale. Nobody but the publisher is at work besides the one who asks.
#[test]
fn an_evicted_file_is_opened_while_its_rename_is_published() {
    check(Race {
        before: [file("a", 5000), vec![Op::Settle]].concat(),
        threads: vec![
            [
                vec![Act::Evict("a")],
                acts([rename("a", "b"), Op::Open { slot: 1, path: path("b"), write: false, truncate: false }]),
            ]
            .concat(),
            background(),
        ],
    });
}

/// Between the two looks that a look-up takes, another's forget or the background let go of what nobody referred to yet, and the
/// name was said to be stale. The model knows no forgetting; the answer is always the same.
#[test]
fn a_name_is_looked_up_while_others_forget_it() {
    in_all_orders(|| {
        let (mut world, mut files) = (World::new(), Files::default());
        for op in [vec![mkdir("d")], file("d/a", 10)].concat() {
            world.call(&mut files, &op, 1).unwrap();
            world.remember();
        }
        world.drain();
        let world = Arc::new(world.killed());
        let look_up = |world: &World| {
            let name = |name: &str| Name::new(&path(name).0).unwrap();
            let dir = world.tiers.lookup(&root(), ROOT, &name("d")).unwrap().ino;
            let file = world.tiers.lookup(&root(), dir, &name("a")).unwrap();
            assert_eq!(file.size, 10);
            world.tiers.forget(file.ino, 1);
            world.tiers.forget(dir, 1);
        };
        let tick = |world: &World| assert_eq!(world.step(Step::Tick).unwrap(), Progress::Idle);
        let acts: [fn(&World); 3] = [look_up, look_up, tick];
        let threads = acts.map(|act| (act, world.clone())).map(|(act, world)| thread::spawn(move || act(&world)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A file that could not be committed when it was closed is left to the background, which came to it when somebody had opened it
/// anew and truncated it: the empty file got a place in the order.
#[test]
fn a_closed_file_is_written_anew_while_the_background_commits_it() {
    in_all_orders(|| {
        let (mut world, mut files) = (World::new(), Files::default());
        for op in [create(0, "a"), write(0, 0, 100)] {
            world.call(&mut files, &op, 1).unwrap();
            world.remember();
        }
        world.fast.fail_look(1);
        world.call(&mut files, &Op::Release { slot: 0 }, 1).unwrap();
        world.fast.fail_look(0);
        let sizes = |world: &World| -> Vec<u64> {
            world.tiers.queue(10).pending.iter().filter_map(|event| event.size).collect()
        };
        assert!(sizes(&world).is_empty());
        let anew = Op::Open { slot: 0, path: path("a"), write: true, truncate: true };
        let world = Arc::new(world);
        let threads =
            [acts([anew]), acts([Op::Run(Step::Tick)])].map(|acts| (acts, world.clone())).map(|(acts, world)| {
                thread::spawn(move || {
                    let mut files = Files::default();
                    acts.iter().for_each(|act| drop(world.act(&mut files, act, 2).unwrap()));
                    files
                })
            });
        let _open = threads.map(|thread| thread.join().unwrap());
        let sizes = sizes(&world);
        assert!(!sizes.contains(&0), "{sizes:?}");
    });
}
