//! What may happen in a case, and the dice for it: a few names, on which all meet; each case has its own weights, so that what is rare in
//! one is the rule in another.

use std::mem::{Discriminant, discriminant};

use dlio_fs::tiers::disk::RenameMode;
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use crate::sim::Lose;
use crate::toxic::Fails;

pub type Path = &'static str;

/// Each of them is a file in one moment, and a directory in another.
const PATHS: [Path; 9] = ["a", "b", "c", "d", "e", "d/a", "d/b", "e/a", "e/b"];
const DIRS: [Path; 3] = ["d", "e", "a"];
pub const SLOTS: usize = 3;

#[derive(Clone, Debug)]
pub enum Act {
    // Programs.
    Put {
        path: Path,
        how: How,
    },
    Remove {
        path: Path,
    },
    Mkdir {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Move {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    Link {
        from: Path,
        to: Path,
    },
    Chmod {
        path: Path,
        perm: u32,
    },
    Times {
        path: Path,
    },
    Xattr {
        path: Path,
    },
    Open {
        slot: usize,
        path: Path,
        how: Hold,
    },
    Write {
        slot: usize,
    },
    Fsync {
        slot: usize,
    },
    Close {
        slot: usize,
    },
    Sync {
        path: Path,
    },
    SyncAll,
    Read {
        path: Path,
    },
    // The operator.
    Stage,
    Pin {
        path: Path,
        pinned: bool,
    },
    LetGo {
        path: Path,
    },
    // Somebody else.
    They(Deed),
    /// Right before the `after`th call of the slow tier in what comes next.
    Ambush {
        deed: Deed,
        after: u64,
    },
    // The background.
    Step(Step),
    Wait {
        ms: u64,
    },
    Rest,
    // The machine.
    Fail(Fails),
    /// The `after`th read of a file on the fast tier fails.
    FailFast {
        after: u64,
    },
    /// It stops, at once or at the `at`th call from now; `deeds`: what somebody else does until the daemon starts; `again`: at which call of that
    /// it stops once more.
    Stop {
        lose: Lose,
        at: Option<u64>,
        deeds: Vec<Deed>,
        again: Option<u64>,
    },
}

/// How a program writes to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The file that is there, truncated.
    InPlace,
    Append,
    /// Another one, which is renamed.
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Read,
    /// The kernel reads it by itself.
    Through,
    Write,
    Append,
}

/// What somebody else does to the slow tree.
#[derive(Clone, Debug)]
pub enum Deed {
    Put {
        path: Path,
        how: Their,
    },
    Remove {
        path: Path,
    },
    /// With so many files in it; `clear`: in place of what is there.
    Mkdir {
        path: Path,
        files: usize,
        clear: bool,
    },
    Move {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    Link {
        from: Path,
        to: Path,
    },
    Symlink {
        path: Path,
    },
    Chmod {
        path: Path,
    },
    Chown {
        path: Path,
    },
    Xattr {
        path: Path,
    },
    /// Copies, and what is made to be placed.
    CleanTmp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Their {
    /// Into the file that is there.
    Inside,
    /// Another file, which is renamed.
    Rename,
    /// That one is removed, and another one made: it may get the number.
    Anew,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Seal,
    Drain,
    Publish,
    Recheck,
    Tick,
    Evict,
    Stage,
}

/// What one case draws from.
pub struct Dice {
    weights: [u32; KINDS],
    deeds: [u32; DEEDS],
}

const KINDS: usize = 27;
const DEEDS: usize = 10;
/// How often each kind is drawn where all are as they are in the middle.
const USUAL: [u32; KINDS] = [16, 5, 3, 2, 6, 2, 3, 1, 2, 6, 8, 2, 4, 2, 1, 2, 1, 1, 2, 18, 12, 36, 14, 2, 4, 1, 3];
const USUAL_DEEDS: [u32; DEEDS] = [12, 4, 3, 4, 2, 1, 2, 1, 1, 1];
/// Where the kinds of the machine begin: half of the cases have none.
const OF_MACHINE: usize = 24;
const OF_HIM: [usize; 2] = [19, 20];

impl Dice {
    pub fn new(rng: &mut Xoshiro256PlusPlus) -> Dice {
        let factor = |rng: &mut Xoshiro256PlusPlus| [0, 1, 1, 4][rng.random_range(0..4)];
        let mut weights = USUAL.map(|usual| usual * factor(rng));
        // Something is written, and goes on to the slow tier, in all of them.
        for always in [0, 21, 22] {
            weights[always] = weights[always].max(USUAL[always]);
        }
        for weight in weights.iter_mut().skip(OF_MACHINE) {
            if rng.random_bool(0.5) {
                *weight = 0;
            }
        }
        if rng.random_bool(0.05) {
            OF_HIM.iter().for_each(|&kind| weights[kind] = 0);
        }
        Dice { weights, deeds: USUAL_DEEDS.map(|usual| usual * factor(rng)) }
    }

    pub fn roll(&self, rng: &mut Xoshiro256PlusPlus) -> Act {
        let (path, to) = (path(rng), path(rng));
        let dir = if rng.random_bool(0.8) { one(rng, &DIRS) } else { path };
        let slot = rng.random_range(0..SLOTS);
        match draw(rng, &self.weights) {
            0 => Act::Put { path, how: one(rng, &[How::InPlace, How::InPlace, How::Append, How::Replace]) },
            1 => Act::Remove { path },
            2 => Act::Mkdir { path: dir },
            3 => Act::Rmdir { path: dir },
            4 => Act::Move { from: path, to, mode: mode(rng) },
            5 => Act::Link { from: path, to },
            6 => Act::Chmod { path, perm: one(rng, &[0o640, 0o600, 0o755]) },
            7 => Act::Times { path },
            8 => Act::Xattr { path },
            9 => Act::Open {
                slot,
                path,
                how: one(rng, &[Hold::Read, Hold::Through, Hold::Write, Hold::Write, Hold::Append]),
            },
            10 => Act::Write { slot },
            11 => Act::Fsync { slot },
            12 => Act::Close { slot },
            13 => Act::Sync { path },
            14 => Act::SyncAll,
            15 => Act::Read { path },
            16 => Act::Stage,
            17 => Act::Pin { path, pinned: rng.random_bool(0.6) },
            18 => Act::LetGo { path },
            19 => Act::They(self.deed(rng)),
            20 => Act::Ambush { deed: self.deed(rng), after: rng.random_range(1..25) },
            21 => Act::Step(one(
                rng,
                &[
                    Step::Seal,
                    Step::Drain,
                    Step::Drain,
                    Step::Publish,
                    Step::Publish,
                    Step::Publish,
                    Step::Recheck,
                    Step::Tick,
                    Step::Evict,
                    Step::Stage,
                ],
            )),
            22 => Act::Wait { ms: one(rng, &[1, 300, 1100, 3000, 31_000]) },
            23 => Act::Rest,
            24 => Act::Fail(Fails::roll(rng)),
            25 => Act::FailFast { after: rng.random_range(1..4) },
            _ => {
                let deeds = rng.random_range(0..3);
                Act::Stop {
                    lose: one(rng, &[Lose::Nothing, Lose::Nothing, Lose::Unsynced]),
                    at: rng.random_bool(0.7).then(|| rng.random_range(1..40)),
                    deeds: (0..deeds).map(|_| self.deed(rng)).collect(),
                    again: rng.random_bool(0.3).then(|| rng.random_range(1..30)),
                }
            }
        }
    }

    fn deed(&self, rng: &mut Xoshiro256PlusPlus) -> Deed {
        let (path, to) = (path(rng), path(rng));
        let dir = if rng.random_bool(0.7) { one(rng, &DIRS) } else { path };
        match draw(rng, &self.deeds) {
            0 => Deed::Put { path, how: one(rng, &[Their::Inside, Their::Inside, Their::Rename, Their::Anew]) },
            1 => Deed::Remove { path },
            2 => Deed::Mkdir { path: dir, files: rng.random_range(0..3), clear: rng.random_bool(0.3) },
            3 => Deed::Move { from: path, to, mode: mode(rng) },
            4 => Deed::Link { from: path, to },
            5 => Deed::Symlink { path: dir },
            6 => Deed::Chmod { path },
            7 => Deed::Chown { path },
            8 => Deed::Xattr { path },
            _ => Deed::CleanTmp,
        }
    }
}

/// What is left out as a whole, to begin with, where a case is made short.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sort(Discriminant<Act>, Option<Discriminant<Deed>>);

impl Act {
    pub fn sort(&self) -> Sort {
        let deed = match self {
            Act::They(deed) | Act::Ambush { deed, .. } => Some(discriminant(deed)),
            _ => None,
        };
        Sort(discriminant(self), deed)
    }
}

fn path(rng: &mut Xoshiro256PlusPlus) -> Path {
    // The first of them most often.
    let most = if rng.random_bool(0.4) { 3 } else { PATHS.len() };
    PATHS[rng.random_range(0..most)]
}

fn mode(rng: &mut Xoshiro256PlusPlus) -> RenameMode {
    one(rng, &[RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange])
}

fn one<T: Copy>(rng: &mut Xoshiro256PlusPlus, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

/// One of them, by its weight; the last one, if none has any.
fn draw(rng: &mut Xoshiro256PlusPlus, weights: &[u32]) -> usize {
    let sum: u32 = weights.iter().sum();
    let mut at = rng.random_range(0..sum.max(1));
    for (kind, weight) in weights.iter().enumerate() {
        if at < *weight {
            return kind;
        }
        at -= weight;
    }
    weights.len() - 1
}
