//! The storm: the built program on real disks, used by several processes at once, each in a subtree of its own and beside a plain
//! directory, while its daemon is killed, its tiers fail and commands are given at random. In the end all must be on the slow tree.
//!
//! A script says all of it ([`script::Script`]); a seed makes one. `DLIO_STORM_SEED` begins with that seed, `DLIO_STORM_SECONDS` says for
//! how long to go on with further ones, `DLIO_STORM_SCRIPT` names a file with one script to run instead. A script that fails is halved for
//! as long as it fails, then told as a story and kept in a file.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod actor;
mod judge;
mod ledger;
mod ops;
mod rig;
mod script;
mod storm;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rig::World;
use script::Script;
use storm::Done;

#[test]
#[ignore = "needs root, /dev/fuse and loop devices, and takes minutes: cargo xtask test storm"]
fn the_storm_loses_nothing() {
    let world = World::enter();
    let mut number = 0;
    let mut run = |script: &Script| {
        number += 1;
        let dir = world.dir().join(number.to_string());
        fs::create_dir(&dir).unwrap();
        let result = storm::run(script, &dir);
        fs::remove_dir_all(&dir).ok();
        result
    };
    if let Some(file) = std::env::var_os("DLIO_STORM_SCRIPT") {
        let script = Script::read(&fs::read_to_string(file).unwrap()).unwrap();
        pass(&script, &mut run);
        return;
    }
    let (began, seconds) = (Instant::now(), from_environment("DLIO_STORM_SECONDS").unwrap_or(60));
    let first = from_environment("DLIO_STORM_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    for seed in first.. {
        pass(&Script::of(seed), &mut run);
        if began.elapsed() > Duration::from_secs(seconds) {
            break;
        }
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

fn pass(script: &Script, run: &mut impl FnMut(&Script) -> Result<Done, String>) {
    let began = Instant::now();
    println!("DLIO_STORM_SEED={} {:?}", script.seed, script.scene);
    match run(script) {
        Ok(Done { kills, commands, lasting, operations, names }) => println!(
            "  {:.1} s: {operations} operations, {kills} kills, {commands} commands, {lasting} faults of a tier or pauses; {names} names are equal",
            began.elapsed().as_secs_f64()
        ),
        Err(error) => {
            let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("storm-{}.json", script.seed));
            fs::write(&file, script.write()).unwrap();
            panic!("DLIO_STORM_SEED={}, kept in {}:\n{error}", script.seed, file.display());
        }
    }
}

/// Started by the storm.
#[test]
#[ignore = "is one process of a storm"]
fn one_process() {
    let Ok(task) = std::env::var(storm::TASK) else { return };
    actor::play(serde_json::from_str(&task).unwrap()).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_script_comes_back_from_its_text() {
    for seed in 0..100 {
        let script = Script::of(seed);
        assert_eq!(Script::read(&script.write()).unwrap(), script);
        assert_eq!(Script::of(seed), script);
    }
}

#[test]
fn halves_are_smaller_and_end() {
    let mut script = Script::of(1);
    let mut before = usize::MAX;
    while let Some(half) = script.halves().into_iter().min_by_key(|half| half.story().len()) {
        script = half;
        assert!(script.story().len() < before, "{}", script.story());
        before = script.story().len();
    }
    assert!(script.total() <= script.actors.len() as u64, "{}", script.story());
}
