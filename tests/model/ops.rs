//! What a case does: the operations, and the dice that choose them.

use std::collections::VecDeque;
use std::fmt;

use dlio_fs::path::{escape, unescape};
use dlio_fs::tiers::disk::{Allocate, Kind, NewAttr, RenameMode, Time};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use super::model::{Model, SLOTS};
use super::sim::Lose;
use super::toxic::Fails;

/// From the root, names joined by `/`.
#[derive(Clone, PartialEq, Eq)]
pub struct Path(pub Vec<u8>);

/// As a story says it: see [`path`].
impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.split(|&b| b == b'/');
        let names: Vec<String> = names.map(|name| escape(name).replace(&escape(&LONGEST[..251]), LONG)).collect();
        write!(f, "path({:?})", names.join("/"))
    }
}

/// The beginning of the longest name, in a story.
const LONG: &str = "LONG";

/// Names as [`escape`] writes them, joined by `/`; the empty text is the root.
pub fn path(names: &str) -> Path {
    Path(unescape(&names.replace(LONG, &escape(&LONGEST[..251]))).expect("escaped names"))
}

/// One piece of the background's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Seal,
    Drain,
    Publish,
    Evict,
    Tick,
}

/// `slot` is one of a few places for open files.
#[derive(Clone, Debug)]
pub enum Op {
    Mkdir {
        path: Path,
        mode: u32,
        umask: u32,
        uid: u32,
    },
    Mknod {
        path: Path,
        kind: Kind,
        mode: u32,
        rdev: u64,
    },
    Symlink {
        path: Path,
        target: Path,
    },
    Create {
        slot: usize,
        path: Path,
        mode: u32,
        umask: u32,
        uid: u32,
    },
    Open {
        slot: usize,
        path: Path,
        write: bool,
        truncate: bool,
    },
    /// `at` is where; `None`: at the end.
    Write {
        slot: usize,
        at: Option<u64>,
        len: usize,
        kill_privileges: bool,
    },
    Read {
        slot: usize,
        at: u64,
        len: usize,
    },
    Allocate {
        slot: usize,
        what: Allocate,
        at: u64,
        len: u64,
    },
    Copy {
        from: usize,
        at: u64,
        to: usize,
        to_at: u64,
        len: u64,
    },
    Flush {
        slot: usize,
    },
    Fsync {
        slot: usize,
    },
    Release {
        slot: usize,
    },
    Truncate {
        path: Path,
        len: u64,
    },
    SetAttr {
        path: Path,
        new: NewAttr,
    },
    SetXattr {
        path: Path,
        key: u8,
        value: Option<u8>,
        create: bool,
        replace: bool,
    },
    Link {
        from: Path,
        to: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    FsyncDir {
        path: Path,
    },
    SyncFast,
    Run(Step),
    Advance {
        ms: u64,
    },
    /// The machine stops, at once or at this mutating call from now on.
    Crash {
        lose: Lose,
        at: Option<u64>,
    },
    /// From now on what is there and comes there stays on the fast tier, or no longer.
    Pin {
        path: Path,
        pinned: bool,
    },
    /// What is there and below is copied to the fast tier.
    Stage {
        path: Path,
    },
    /// Somebody waits for what is there to get to the slow tier.
    Prioritize {
        path: Path,
    },
    /// The drain stands still, or goes on.
    Pause {
        paused: bool,
    },
    /// The fast tier has this much free.
    Room {
        bytes: u64,
    },
    Fail(Fails),
    /// A user's call in the middle of a step: right before so many calls of that to the slow tier.
    During {
        step: Step,
        after: u64,
        op: Box<Op>,
    },
    /// A step in the middle of a user's call.
    Under {
        op: Box<Op>,
        after: u64,
        step: Step,
    },
    /// Walk the whole view and compare it.
    Look,
    /// Everything to the slow tier.
    Settle,
}

/// Who does something. What one of them does can be left out without changing what the others may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    Users,
    Background,
    Time,
    Machine,
    Operator,
    Toxics,
}

impl Actor {
    /// In the order in which it is worth leaving them out.
    pub const ALL: [Actor; 6] =
        [Actor::Toxics, Actor::Operator, Actor::Machine, Actor::Time, Actor::Background, Actor::Users];
}

impl Op {
    pub fn actor(&self) -> Actor {
        match self {
            Op::Run(_) | Op::Settle | Op::During { .. } | Op::Under { .. } => Actor::Background,
            Op::Advance { .. } => Actor::Time,
            Op::Crash { .. } => Actor::Machine,
            Op::Pin { .. } | Op::Stage { .. } | Op::Prioritize { .. } | Op::Pause { .. } | Op::Room { .. } => {
                Actor::Operator
            }
            Op::Fail(_) => Actor::Toxics,
            _ => Actor::Users,
        }
    }
}

/// Who is there besides users, the background and a machine that may stop: with all of them in each case, some would never meet alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crew {
    pub operator: bool,
    pub toxics: bool,
    /// The kernel reads by itself what is on the fast tier.
    pub passthrough: bool,
    /// The machine stops where it hurts most: in the middle of publishing, at a start, and soon again.
    pub crashes: bool,
    /// Users and the background are there in the middle of each other's calls.
    pub meets: bool,
    /// Some of what can be done is done never, some often, and on few names.
    pub swarm: bool,
}

impl Crew {
    pub fn of(seed: u64) -> Crew {
        let bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let is = |bit: u32| bits >> (63 - bit) & 1 == 1;
        Crew { operator: is(0), toxics: is(1), passthrough: is(2), crashes: is(3), meets: is(4), swarm: is(5) }
    }

    /// What one of them does now, if any does.
    fn roll(self, model: &Model, rng: &mut Xoshiro256PlusPlus) -> Option<Op> {
        if self.operator && rng.random_bool(0.08) {
            let path = pick_path(model, rng);
            return Some(match rng.random_range(0..10) {
                0..2 => Op::Pin { path, pinned: rng.random_bool(0.6) },
                2..5 => Op::Stage { path },
                5..7 => Op::Prioritize { path },
                7 => Op::Pause { paused: rng.random_bool(0.3) },
                _ => Op::Room { bytes: one(rng, &[0, 5_000, 30_000, 100_000, 1 << 30]) },
            });
        }
        (self.toxics && rng.random_bool(0.06)).then(|| Op::Fail(Fails::roll(rng)))
    }
}

/// Chooses operations. Mostly one by one, sometimes the sequence in which a framework saves a checkpoint.
#[derive(Debug)]
pub struct Dice {
    crew: Crew,
    weights: [u32; WEIGHTS.len()],
    /// So many of the names, and of the depths.
    names: usize,
    depths: usize,
    queued: VecDeque<Op>,
}

/// What is chosen next.
#[derive(Clone, Copy, Debug)]
enum Throw {
    Mkdir,
    Mknod,
    Symlink,
    Create,
    Open,
    Write,
    Read,
    Allocate,
    Copy,
    Flush,
    Fsync,
    Release,
    Truncate,
    SetAttr,
    SetXattr,
    Link,
    Unlink,
    Rmdir,
    Rename,
    FsyncDir,
    SyncFast,
    Run(Step),
    Advance,
    Look,
    Crash,
    Settle,
    Save,
    SaveDirectory,
    /// What is ready gets to the slow tier.
    Round,
    /// A sync, and the machine stops soon after it.
    Cut,
}

const WEIGHTS: [(Throw, u32); 34] = [
    (Throw::Mkdir, 5),
    (Throw::Mknod, 2),
    (Throw::Symlink, 2),
    (Throw::Create, 8),
    (Throw::Open, 7),
    (Throw::Write, 12),
    (Throw::Read, 2),
    (Throw::Allocate, 2),
    (Throw::Copy, 2),
    (Throw::Flush, 3),
    (Throw::Fsync, 3),
    (Throw::Release, 6),
    (Throw::Truncate, 2),
    (Throw::SetAttr, 4),
    (Throw::SetXattr, 3),
    (Throw::Link, 3),
    (Throw::Unlink, 4),
    (Throw::Rmdir, 2),
    (Throw::Rename, 7),
    (Throw::FsyncDir, 1),
    (Throw::SyncFast, 1),
    (Throw::Run(Step::Seal), 3),
    (Throw::Run(Step::Drain), 7),
    (Throw::Run(Step::Publish), 8),
    (Throw::Run(Step::Evict), 2),
    (Throw::Run(Step::Tick), 2),
    (Throw::Advance, 4),
    (Throw::Look, 3),
    (Throw::Crash, 2),
    (Throw::Settle, 1),
    (Throw::Save, 4),
    (Throw::SaveDirectory, 3),
    (Throw::Round, 3),
    (Throw::Cut, 1),
];

const SIZES: [usize; 7] = [1, 10, 100, 4096, 5000, 9000, 20000];
const OFFSETS: [u64; 6] = [0, 5, 4000, 4096, 8192, 12288];
const MODES: [u32; 6] = [0o644, 0o600, 0o755, 0o444, 0o4755, 0o2770];

impl Dice {
    pub fn of(crew: Crew, rng: &mut Xoshiro256PlusPlus) -> Dice {
        let weights = WEIGHTS.map(|(_, weight)| if crew.swarm { weight * one(rng, &[0, 1, 1, 4]) } else { weight });
        let (names, depths) = if crew.swarm {
            (rng.random_range(1..=NAMES.len()), rng.random_range(1..=DEPTHS.len()))
        } else {
            (NAMES.len(), DEPTHS.len())
        };
        Dice { crew, weights, names, depths, queued: VecDeque::new() }
    }

    pub fn roll(&mut self, model: &Model, rng: &mut Xoshiro256PlusPlus) -> Op {
        if let Some(op) = self.crew.roll(model, rng) {
            return op;
        }
        let op = self.next(model, rng);
        if !self.crew.meets || op.actor() != Actor::Users || matches!(op, Op::Look) || rng.random_bool(0.8) {
            return op;
        }
        let step =
            one(rng, &[Step::Seal, Step::Drain, Step::Drain, Step::Publish, Step::Publish, Step::Evict, Step::Tick]);
        let (after, op) = (rng.random_range(1..12), Box::new(op));
        if rng.random_bool(0.5) { Op::During { step, after, op } } else { Op::Under { op, after: after.min(4), step } }
    }

    fn next(&mut self, model: &Model, rng: &mut Xoshiro256PlusPlus) -> Op {
        if let Some(op) = self.queued.pop_front() {
            // Now and then something comes in between.
            if rng.random_bool(0.8) {
                return op;
            }
            self.queued.push_front(op);
        }
        let throw = self.throw(rng);
        let slot = slot_for(throw, model, rng);
        match throw {
            Throw::Run(step) => Op::Run(step),
            Throw::Advance => Op::Advance { ms: one(rng, &[1, 300, 1100, 3000, 40_000, 70_000]) },
            Throw::Look => Op::Look,
            Throw::Crash => {
                let crash = Op::Crash {
                    lose: if rng.random_bool(0.6) { Lose::Nothing } else { Lose::Unsynced },
                    at: rng.random_bool(0.8).then(|| rng.random_range(1..40)),
                };
                if self.crew.crashes {
                    self.crash_again(rng);
                }
                crash
            }
            Throw::Settle => Op::Settle,
            Throw::SaveDirectory => {
                self.save_directory(rng, slot);
                self.queued.pop_front().expect("just queued")
            }
            Throw::Save => {
                self.save(model, rng, slot);
                self.queued.pop_front().expect("just queued")
            }
            Throw::Cut => {
                let syncs = [
                    Op::Fsync { slot },
                    Op::FsyncDir { path: self.old_path(model, rng) },
                    Op::SyncFast,
                    Op::Flush { slot },
                ];
                let lose = if rng.random_bool(0.3) { Lose::Nothing } else { Lose::Unsynced };
                let at = rng.random_bool(0.6).then(|| rng.random_range(1..8));
                let after = [Op::Crash { lose, at }, Op::Run(Step::Drain), Op::Run(Step::Publish), Op::Look];
                self.queued.extend(after);
                syncs[rng.random_range(0..syncs.len())].clone()
            }
            Throw::Round => {
                let steps = [Step::Seal, Step::Drain, Step::Drain, Step::Drain, Step::Publish, Step::Publish];
                self.queued.extend(steps.map(Op::Run));
                Op::Advance { ms: one(rng, &[0, 1100, 3000]) }
            }
            Throw::Open => Op::Open {
                slot,
                path: self.old_path(model, rng),
                write: rng.random_bool(0.7),
                truncate: rng.random_bool(0.3),
            },
            Throw::Write => {
                let at = rng.random_bool(0.6).then(|| one(rng, &OFFSETS));
                Op::Write { slot, at, len: one(rng, &SIZES), kill_privileges: rng.random_bool(0.2) }
            }
            Throw::Read => Op::Read { slot, at: one(rng, &OFFSETS), len: one(rng, &SIZES) },
            Throw::Allocate => {
                let what = [
                    Allocate::Extend,
                    Allocate::KeepSize,
                    Allocate::PunchHole,
                    Allocate::ZeroRange,
                    Allocate::ZeroRangeKeepSize,
                ];
                Op::Allocate { slot, what: one(rng, &what), at: one(rng, &OFFSETS), len: one(rng, &SIZES) as u64 }
            }
            Throw::Copy => {
                let to = rng.random_range(0..SLOTS);
                let len = one(rng, &SIZES) as u64;
                Op::Copy { from: slot, at: one(rng, &OFFSETS), to, to_at: one(rng, &OFFSETS), len }
            }
            Throw::Flush => Op::Flush { slot },
            Throw::Fsync => Op::Fsync { slot },
            Throw::Release => Op::Release { slot },
            on_name => self.on_name(on_name, slot, model, rng),
        }
    }

    fn throw(&self, rng: &mut Xoshiro256PlusPlus) -> Throw {
        let total: u32 = self.weights.iter().sum();
        let mut at = rng.random_range(0..total.max(1));
        for ((throw, _), weight) in WEIGHTS.iter().zip(self.weights) {
            if at < weight {
                return *throw;
            }
            at -= weight;
        }
        Throw::Look
    }

    fn on_name(&self, throw: Throw, slot: usize, model: &Model, rng: &mut Xoshiro256PlusPlus) -> Op {
        match throw {
            Throw::Mkdir => Op::Mkdir {
                path: self.new_path(rng),
                mode: one(rng, &[0o755, 0o700, 0o777, 0o1777]),
                umask: umask(rng),
                uid: uid(rng),
            },
            Throw::Mknod => {
                let kind = one(rng, &[Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::File]);
                let rdev = if kind == Kind::CharDevice { 0x103 } else { 0 };
                Op::Mknod { path: self.new_path(rng), kind, mode: 0o640, rdev }
            }
            Throw::Symlink => Op::Symlink { path: self.new_path(rng), target: self.new_path(rng) },
            Throw::Create => {
                Op::Create { slot, path: self.new_path(rng), mode: one(rng, &MODES), umask: umask(rng), uid: uid(rng) }
            }
            Throw::Truncate => {
                Op::Truncate { path: self.old_path(model, rng), len: one(rng, &[0, 0, 1, 4096, 5000, 30000]) }
            }
            Throw::SetAttr => Op::SetAttr { path: self.old_path(model, rng), new: new_attr(rng) },
            Throw::SetXattr => Op::SetXattr {
                path: self.old_path(model, rng),
                key: rng.random_range(0..2),
                value: rng.random_bool(0.7).then(|| rng.random()),
                create: rng.random_bool(0.1),
                replace: rng.random_bool(0.1),
            },
            Throw::Link => Op::Link { from: self.old_path(model, rng), to: self.new_path(rng) },
            Throw::Unlink => Op::Unlink { path: self.old_path(model, rng) },
            Throw::Rmdir => Op::Rmdir { path: self.old_path(model, rng) },
            Throw::Rename => {
                let mode =
                    one(rng, &[RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]);
                let to = if rng.random_bool(0.5) { self.old_path(model, rng) } else { self.new_path(rng) };
                Op::Rename { from: self.old_path(model, rng), to, mode }
            }
            Throw::FsyncDir => {
                Op::FsyncDir { path: if rng.random_bool(0.3) { Path(Vec::new()) } else { self.old_path(model, rng) } }
            }
            _ => Op::SyncFast,
        }
    }

    fn new_path(&self, rng: &mut Xoshiro256PlusPlus) -> Path {
        path_of(rng, &NAMES[..self.names], &DEPTHS[..self.depths])
    }

    /// Mostly a path that is there.
    fn old_path(&self, model: &Model, rng: &mut Xoshiro256PlusPlus) -> Path {
        if rng.random_bool(0.15) { self.new_path(rng) } else { pick_path(model, rng) }
    }

    /// What is published while the machine stops, and perhaps a second stop behind it: what the first one left is all that counts then.
    fn crash_again(&mut self, rng: &mut Xoshiro256PlusPlus) {
        self.queued.extend([Step::Drain, Step::Publish, Step::Publish].map(Op::Run));
        if rng.random_bool(0.5) {
            let lose = if rng.random_bool(0.5) { Lose::Nothing } else { Lose::Unsynced };
            self.queued.push_back(Op::Crash { lose, at: rng.random_bool(0.7).then(|| rng.random_range(1..25)) });
            self.queued.extend([Step::Drain, Step::Publish].map(Op::Run));
        }
    }

    /// A checkpoint of several files, in a directory of its own.
    fn save_directory(&mut self, rng: &mut Xoshiro256PlusPlus, slot: usize) {
        let mut dir = self.new_path(rng);
        let mkdir = |path| Op::Mkdir { path, mode: 0o755, umask: 0, uid: 0 };
        self.queued.push_back(mkdir(dir.clone()));
        for name in NAMES {
            let path = Path([&dir.0[..], b"/", name].concat());
            match rng.random_range(0..10) {
                0 => self.queued.push_back(Op::Symlink { path, target: dir.clone() }),
                1 => {
                    self.queued.push_back(mkdir(path.clone()));
                    dir = path;
                }
                written => {
                    let tmp = Path([&dir.0[..], b"/", &name[..name.len().min(251)], b".tmp"].concat());
                    let to = if written < 4 { tmp.clone() } else { path.clone() };
                    let create = Op::Create { slot, path: to, mode: 0o644, umask: 0, uid: 0 };
                    let write = Op::Write { slot, at: None, len: one(rng, &SIZES), kill_privileges: false };
                    self.queued.extend([Op::Release { slot }, create, write, Op::Release { slot }]);
                    if written < 4 {
                        self.queued.push_back(Op::Rename { from: tmp, to: path, mode: RenameMode::Replace });
                    }
                }
            }
        }
        if rng.random_bool(0.5) {
            self.queued.push_back(Op::SyncFast);
            self.queued.push_back(Op::Run(Step::Drain));
            self.queued.extend([Step::Publish; 3].map(Op::Run));
        }
    }

    /// A checkpoint: written under a temporary name (or not), synced (or not), closed and renamed.
    fn save(&mut self, model: &Model, rng: &mut Xoshiro256PlusPlus, slot: usize) {
        let path = if rng.random_bool(0.5) { pick_path(model, rng) } else { self.new_path(rng) };
        let tmp = if rng.random_bool(0.6) { self.new_path(rng) } else { path.clone() };
        self.queued.push_back(Op::Release { slot });
        if model.view.find(&tmp.0).is_ok() {
            self.queued.push_back(Op::Open { slot, path: tmp.clone(), write: true, truncate: true });
        } else {
            self.queued.push_back(Op::Create { slot, path: tmp.clone(), mode: 0o644, umask: 0, uid: 0 });
        }
        for _ in 0..rng.random_range(1..4) {
            self.queued.push_back(Op::Write { slot, at: None, len: one(rng, &SIZES), kill_privileges: false });
        }
        if rng.random_bool(0.4) {
            self.queued.push_back(Op::Fsync { slot });
        }
        let renamed = (tmp != path).then_some(Op::Rename { from: tmp, to: path, mode: RenameMode::Replace });
        let close = [Op::Flush { slot }, Op::Release { slot }];
        // safetensors renames before it closes.
        let early = rng.random_bool(0.2);
        if early {
            self.queued.extend(renamed.clone());
        }
        self.queued.extend(close);
        if !early {
            self.queued.extend(renamed);
        }
    }
}

/// Mostly one in which there is a file, or none, as it takes.
fn slot_for(throw: Throw, model: &Model, rng: &mut Xoshiro256PlusPlus) -> usize {
    let fills = matches!(throw, Throw::Create | Throw::Open | Throw::Save | Throw::SaveDirectory);
    let fitting: Vec<usize> = (0..SLOTS).filter(|slot| model.open[*slot].is_none() == fills).collect();
    if fitting.is_empty() { rng.random_range(0..SLOTS) } else { fitting[rng.random_range(0..fitting.len())] }
}

fn one<T: Copy>(rng: &mut Xoshiro256PlusPlus, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

fn umask(rng: &mut Xoshiro256PlusPlus) -> u32 {
    one(rng, &[0, 0o22, 0o77])
}

fn uid(rng: &mut Xoshiro256PlusPlus) -> u32 {
    one(rng, &[0, 0, 1000])
}

fn new_attr(rng: &mut Xoshiro256PlusPlus) -> NewAttr {
    let mut new = NewAttr::default();
    match rng.random_range(0..4) {
        0 => new.perm = Some(one(rng, &MODES)),
        1 => (new.uid, new.gid) = (Some(one(rng, &[0, 7])), rng.random_bool(0.5).then(|| one(rng, &[0, 8]))),
        2 => new.mtime = Some(Time { sec: rng.random_range(-5..1000), nsec: rng.random_range(0..1_000_000_000) }),
        _ => {
            new.gid = Some(9);
            new.perm = Some(one(rng, &MODES));
            new.atime = Some(Time { sec: 1, nsec: 2 });
            new.mtime = Some(Time { sec: 3, nsec: 4 });
        }
    }
    new
}

impl Op {
    /// The same by who owns everything, and gives nothing away.
    pub fn by_the_owner(self) -> Op {
        match self {
            Op::Mkdir { path, mode, umask, .. } => Op::Mkdir { path, mode, umask, uid: 0 },
            Op::Create { slot, path, mode, umask, .. } => Op::Create { slot, path, mode, umask, uid: 0 },
            Op::SetAttr { path, new } => Op::SetAttr { path, new: NewAttr { uid: None, gid: None, ..new } },
            Op::During { step, after, op } => Op::During { step, after, op: Box::new(op.by_the_owner()) },
            Op::Under { op, after, step } => Op::Under { op: Box::new(op.by_the_owner()), after, step },
            op => op,
        }
    }
}

/// Text of more bytes than characters, that is read from the right, that moves a terminal's cursor, and the longest name there is,
/// which is no text.
const NAMES: [&[u8]; 4] = [b"a", "\u{e9}1".as_bytes(), "\u{202e}c\u{1b}".as_bytes(), &LONGEST];

const LONGEST: [u8; 255] = {
    let mut name = [b'n'; 255];
    (name[0], name[254]) = (0xff, 0xc3);
    name
};

/// Few names and little depth: they meet often.
pub fn random_path(rng: &mut Xoshiro256PlusPlus) -> Path {
    path_of(rng, &NAMES, &DEPTHS)
}

const DEPTHS: [usize; 5] = [1, 1, 2, 2, 3];

fn path_of(rng: &mut Xoshiro256PlusPlus, names: &[&[u8]], depths: &[usize]) -> Path {
    let depth = one(rng, depths);
    let names: Vec<&[u8]> = (0..depth).map(|_| one(rng, names)).collect();
    Path(names.join(&b'/'))
}

/// Mostly a path that is there.
fn pick_path(model: &Model, rng: &mut Xoshiro256PlusPlus) -> Path {
    let paths = model.view.paths();
    if paths.len() < 2 {
        return random_path(rng);
    }
    let named: Vec<Vec<u8>> = paths.into_iter().map(|(path, _)| path).filter(|path| !path.is_empty()).collect();
    Path(named[rng.random_range(0..named.len())].clone())
}
