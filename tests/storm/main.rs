//! The storm: the built program on real disks, used by several processes at once, each in a subtree of its own and beside a plain
//! directory, while its daemon is killed, its tiers fail and commands are given at random. In the end all must be on the slow tree.
//!
//! A script says all of it ([`script::Script`]); a seed makes one. `DLIO_STORM_SEED` begins with that seed, `DLIO_STORM_SECONDS` says for
//! how long to go on with further ones, `DLIO_STORM_SCRIPT` names a file with one script to run instead. A script that fails is halved for
//! as long as it fails, for `DLIO_STORM_SHRINK` seconds at most, then told as a story and kept in a file. Those in `kept` come first.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod actor;
mod judge;
mod ledger;
mod ops;
mod rig;
mod script;
mod shrink;
mod storm;
#[path = "../world/mod.rs"]
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use script::Script;
use storm::Done;
use world::World;

#[test]
#[ignore = "needs root, /dev/fuse and loop devices, and takes minutes: cargo xtask test storm"]
fn the_storm_loses_nothing() {
    let (began, seconds) = (Instant::now(), Duration::from_secs(number("DLIO_STORM_SECONDS").unwrap_or(180)));
    let mut storms = Storms { world: World::enter("storm"), number: 0 };
    if let Some(file) = std::env::var_os("DLIO_STORM_SCRIPT") {
        return storms.pass(&read(Path::new(&file)));
    }
    kept().iter().for_each(|file| storms.pass(&read(file)));
    // New ones each time.
    let first = number("DLIO_STORM_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    for seed in first.. {
        storms.pass(&Script::of(seed));
        if began.elapsed() > seconds {
            println!("{} storms in {:.0} s", storms.number, began.elapsed().as_secs_f64());
            break;
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

fn read(file: &Path) -> Script {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    Script::read(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Scripts that have failed once, each named for what it found.
fn kept() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/storm/kept");
    let mut files: Vec<_> = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
    files.sort_unstable();
    files
}

/// One after the other, each in a directory of its own.
struct Storms {
    world: World,
    number: u32,
}

impl Storms {
    fn run(&mut self, script: &Script) -> Result<Done, String> {
        self.number += 1;
        let dir = self.world.dir().join(self.number.to_string());
        fs::create_dir(&dir).unwrap();
        let result = storm::run(script, &dir);
        // Room for the next one. What is still mounted there stays.
        fs::remove_dir_all(&dir).unwrap_or_else(|error| println!("  {}: {error}", dir.display()));
        result
    }

    fn pass(&mut self, script: &Script) {
        let began = Instant::now();
        println!("DLIO_STORM_SEED={} {:?}", script.seed, script.scene);
        match self.run(script) {
            Ok(Done { kills, commands, lasting, operations, names }) => println!(
                "  {:.1} s: {operations} operations, {kills} kills, {commands} commands, {lasting} faults of a tier or pauses; \
                 {names} names are equal",
                began.elapsed().as_secs_f64()
            ),
            Err(error) => self.fail(script, error),
        }
    }

    /// Tells the shortest script that fails.
    fn fail(&mut self, script: &Script, error: String) {
        println!("FAILED: {error}");
        let file = keep(script, "");
        let until = Instant::now() + Duration::from_secs(number("DLIO_STORM_SHRINK").unwrap_or(300));
        let (shortest, error) =
            shrink::shrink((script.clone(), error), until, &mut |script| self.run(script).map(drop));
        let shorter = keep(&shortest, "-shortest");
        println!("{}", shortest.story());
        panic!(
            "to repeat it: DLIO_STORM_SEED={} cargo xtask test storm, or DLIO_STORM_SCRIPT={}; the shortest that fails is above and \
             DLIO_STORM_SCRIPT={}:\n{error}",
            script.seed,
            file.display(),
            shorter.display()
        );
    }
}

fn keep(script: &Script, which: &str) -> PathBuf {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("storm-{}{which}.json", script.seed));
    fs::write(&file, script.write()).unwrap();
    file
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
