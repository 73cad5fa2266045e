//! Somebody else writes, replaces, moves and removes on the slow tree what programs use through the view: on the same names, between any two
//! steps of the background and before any call inside of one, and while no daemon runs; the machine stops at any call, and calls fail. There is
//! no one order then; what holds instead:
//!
//! - at rest the view and the slow tree are equal, no step fails for good, and nothing of ours is left in `tmp`;
//! - each content that a program wrote, or somebody else did, is on the slow tree as a whole, under whatever name, unless it was removed or
//!   replaced by somebody who saw it: a program what the view showed, somebody else what the slow tree showed. So it is whenever the engine says
//!   that nothing is on the fast tier only. A power cut takes what was not synced;
//! - no file on the slow tree is a part of a content, and no attribute that a program gave one file goes to another one.
//!
//! A failing case prints what it takes, as a list to paste; `DLIO_STRANGERS_SEED=n cargo test --test model somebody_else` repeats it.
//! `DLIO_STRANGERS_CASES` says how many to run, `DLIO_STRANGERS_FIRST` with which number to begin.

#[path = "strangers/acts.rs"]
mod acts;
#[path = "strangers/found.rs"]
mod found;
#[path = "strangers/him.rs"]
mod him;
#[path = "strangers/judge.rs"]
mod judge;
#[path = "strangers/programs.rs"]
mod programs;
#[path = "strangers/world.rs"]
mod world;

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::shrink;
use acts::{Act, Dice};
use judge::Check;
use world::World;

const ACTS: usize = 60;
const CASES: u64 = 5000;

fn acts_of(seed: u64) -> Vec<Act> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let dice = Dice::new(&mut rng);
    (0..ACTS).map(|_| dice.roll(&mut rng)).collect()
}

fn run(seed: u64, acts: &[Act], verbose: bool) -> Check {
    let act = || {
        let mut world = World::new(seed);
        world.verbose = verbose;
        world.run(acts)
    };
    catch_unwind(AssertUnwindSafe(|| crate::with_lapse(act))).unwrap_or_else(|_| Err("panicked, see above".to_owned()))
}

/// What of it is needed: first whole sorts of acts go, then halves, quarters and single ones.
fn shortest(seed: u64, mut acts: Vec<Act>, mut why: String) -> (Vec<Act>, String) {
    let mut at = 0;
    while let Some(sort) = acts.get(at).map(Act::sort) {
        let without: Vec<Act> = acts.iter().filter(|act| act.sort() != sort).cloned().collect();
        match run(seed, &without, false) {
            Err(found) => (acts, why) = (without, found),
            Ok(()) => at += 1,
        }
    }
    shrink::least((acts, why), |acts| run(seed, acts, false).err())
}

fn story(seed: u64, acts: &[Act], why: &str) -> String {
    let mut story = String::new();
    acts.iter().for_each(|act| writeln!(story, "        {act:?},").expect("a text"));
    format!("{why}\n{story}; DLIO_STRANGERS_SEED={seed} repeats it")
}

#[test]
fn somebody_else_on_the_same_names_takes_nothing_with_him() {
    if let Some(seed) = crate::number("DLIO_STRANGERS_SEED") {
        let acts = acts_of(seed);
        let Err(why) = run(seed, &acts, true) else { return };
        let (acts, why) = shortest(seed, acts, why);
        drop(run(seed, &acts, true));
        panic!("{}", story(seed, &acts, &why));
    }
    let first = crate::number("DLIO_STRANGERS_FIRST").unwrap_or(0);
    let cases = crate::number("DLIO_STRANGERS_CASES").unwrap_or(CASES);
    let (next, failed, failure) = (AtomicU64::new(first), AtomicBool::new(false), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + cases {
                        return;
                    }
                    let Err(why) = run(seed, &acts_of(seed), false) else { continue };
                    failed.store(true, Ordering::Relaxed);
                    // With several at once, the lowest number is the one to look at.
                    let mut failure = failure.lock();
                    if failure.as_ref().is_none_or(|(other, _)| seed < *other) {
                        *failure = Some((seed, why));
                    }
                }
            });
        }
    });
    if let Some((seed, why)) = failure.into_inner() {
        // Whoever waits for this need not wait for the short one.
        println!("it panicked at:\n{why}\n; DLIO_STRANGERS_SEED={seed} repeats it");
        let (acts, why) = shortest(seed, acts_of(seed), why);
        panic!("{}", story(seed, &acts, &why));
    }
}
