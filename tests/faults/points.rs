//! The daemon stops before, in the middle of and after each single call that changes a tier, over a script that covers what
//! it does: absorb, drain, publish, evict, copy up, stage, promote, pin, and the recovery after that.
//!
//! At each point: the slow tree is at a position of the order (P1, P5); on a copy of both disks, as a power cut would leave
//! them, what was synced survives (P4); a second stop falls into the recovery; after that the view shows everything that was
//! acknowledged (P3), and drains until both are equal.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU64, Ordering};

use dlio_fs::error::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use rand::RngExt;

use crate::failing::{dice, is_full_run};
use crate::needs::{MOUNTS, needs};
use crate::rig::{Machine, Pristine};
use crate::script::{Failed, Player, Step, Target, brief_tree, script};
use crate::traffic::ledger::Op;
use crate::traffic::tree;

/// Points of the short run, spread over all; the dice say with which it begins.
const SHORT: u64 = 24;
/// A second stop, in the recovery, falls on one of its first calls.
const RECOVERY: u64 = 45;

type Check<T = ()> = Result<T, String>;

/// Plays the script until the daemon is gone; `Ok(true)` if it came to the end.
pub(crate) fn play(machine: &mut Machine, player: &mut Player) -> Check<bool> {
    play_steps(machine, player, script().into_iter().flatten())
}

pub(crate) fn play_steps(machine: &mut Machine, player: &mut Player, steps: impl Iterator<Item = Step>) -> Check<bool> {
    for step in steps {
        let done = match &step {
            Step::Do(op) => one(machine, player, op)?,
            Step::Drain => machine.drain().is_ok().then(|| player.drained()),
            Step::Evict => {
                machine.evict();
                Some(())
            }
            Step::Look => machine.tree().ok().map(drop),
            Step::Bring(dir, read) => {
                machine.bring(dir, read);
                Some(())
            }
            Step::Read(path) => {
                unless_dead(machine.read(path), "read")?.map(|found| player.reads(path, &found)).transpose()?
            }
            Step::Fill(full) => {
                machine.fill(*full);
                Some(())
            }
            Step::Pin(path) => unless_dead(player.pin(machine, path), "pin")?,
        };
        if done.is_none() {
            return Ok(false);
        }
    }
    Ok(machine.drain().is_ok())
}

fn one(machine: &mut Machine, player: &mut Player, op: &Op) -> Check<Option<()>> {
    match player.play(machine, op) {
        Ok(()) => Ok(Some(())),
        Err(Failed::Errno(errno)) if is_dead(errno) || (errno == Errno::EIO && machine.is_ending()) => Ok(None),
        Err(why) => Err(format!("{op:?}: {why:?}\n{}", machine.log())),
    }
}

fn unless_dead<T>(done: Result<T, Errno>, what: &str) -> Check<Option<T>> {
    match done {
        Err(errno) if is_dead(errno) => Ok(None),
        done => done.map(Some).map_err(|errno| format!("{what}: {errno}")),
    }
}

/// A call that was under way when the daemon stopped may get EIO as well, which says so only beside the daemon's end.
fn is_dead(errno: Errno) -> bool {
    matches!(errno, Errno::ENOTCONN | Errno::ECONNABORTED)
}

fn at_a_position(machine: &Machine, player: &Player, since: usize, when: &str) -> Check {
    let slow = machine.slow_tree();
    match player.positions(&slow, since).is_empty() {
        true => {
            Err(format!("{when}: the slow tier is at no position of the order since {since}: {}", brief_tree(&slow)))
        }
        false => Ok(()),
    }
}

/// Everything to the slow tier, which then equals the view in every byte and attribute.
fn drained_and_equal(machine: &mut Machine) -> Check {
    machine.drain().map_err(|errno| format!("the drain failed: {errno}"))?;
    let differences = tree::differences(&machine.tree()?, &machine.slow_tree());
    machine.leave();
    match differences.is_empty() {
        true => Ok(()),
        false => Err(format!("drained, but not equal:\n{}", differences.join("\n"))),
    }
}

/// One point; `false` if the script ended before it.
fn point(pristine: &Pristine, stop: &str, number: u64) -> Check<bool> {
    let mut machine = Machine::new(pristine);
    let mut player = Player::new();
    let mut ended = false;
    if machine.start(&format!("stop={stop}:{number}")) {
        ended = play(&mut machine, &mut player)?;
    }
    if ended {
        // The last calls are those of an orderly end.
        machine.terminate();
    }
    let status = machine.ended();
    if ended && status.success() {
        return Ok(false);
    }
    if status.signal() != Some(Signal::SIGABRT as i32) {
        return Err(format!("the daemon ended with {status}\n{}", machine.log()));
    }
    let mut cut = machine.power_cut();
    player.dead();

    // The node is lost.
    let since = player.on_slow();
    at_a_position(&machine, &player, since, "after the stop")?;
    // The power was cut.
    at_a_position(&cut, &player, since, "after the power cut")?;
    player.change_behind(&mut [&mut machine, &mut cut]);
    if !cut.start("boot=another") {
        return Err(format!("no start after the power cut:\n{}", cut.log()));
    }
    player.survived(&cut.tree()?).map_err(|why| format!("after the power cut: {why}"))?;
    player.pins(&cut.pins()?).map_err(|why| format!("after the power cut: {why}"))?;
    drained_and_equal(&mut cut).map_err(|why| format!("after the power cut: {why}"))?;
    drop(cut);

    // The recovery is stopped too.
    machine.start(&format!("stop=before:{}", 1 + number * 7 % RECOVERY));
    machine.kill();
    at_a_position(&machine, &player, since, "after the stop of the recovery")?;
    if !machine.start("") {
        return Err(format!("no start after the stop:\n{}", machine.log()));
    }
    let seen = machine.tree()?;
    player.shows(&seen).map_err(|why| format!("after the stop: {why}"))?;
    player.pins(&machine.pins()?).map_err(|why| format!("after the stop: {why}"))?;
    drained_and_equal(&mut machine)?;
    Ok(true)
}

/// How many calls the whole script makes that change a tier.
fn calls(pristine: &Pristine) -> u64 {
    let mut machine = Machine::new(pristine);
    let record = machine.path("record");
    assert!(machine.start(&format!("record={}", record.display())), "{}", machine.log());
    assert_eq!(play(&mut machine, &mut Player::new()), Ok(true), "{}", machine.log());
    machine.leave();
    let record = fs::read_to_string(record).unwrap();
    let copies = record.lines().filter(|line| line.contains(" rename ") && line.contains("staged/new"));
    assert!(copies.count() >= 4, "three files are staged and one is promoted:\n{record}");
    record.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).max().unwrap()
}

#[test]
fn a_stop_at_any_call_loses_nothing() {
    needs!(MOUNTS);
    setrlimit(Resource::RLIMIT_CORE, 0, 0).unwrap();
    let pristine = Pristine::make();
    let calls = calls(&pristine);
    let mut points: Vec<(&str, u64)> = Vec::new();
    for number in 1..=calls {
        points.push(("before", number));
        points.push((if number % 2 == 0 { "half" } else { "after" }, number));
    }
    if let Ok(only) = std::env::var("DLIO_POINT") {
        points.retain(|(stop, number)| only == format!("{stop}:{number}"));
    } else if !is_full_run() {
        let every = (points.len() as u64).div_ceil(SHORT) as usize | 1;
        points = points.into_iter().skip(dice().random_range(0..every)).step_by(every).collect();
    }
    let (reached, failures) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let wanted = points.len();
    let left = Mutex::new(points);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((stop, number)) = left.lock().pop() else { return };
                    match point(&pristine, stop, number) {
                        Ok(was) => drop(reached.fetch_add(u64::from(was), Ordering::Relaxed)),
                        Err(why) => failures.lock().push(format!("DLIO_POINT={stop}:{number}: {why}")),
                    }
                }
            });
        }
    });
    let (reached, failures) = (reached.into_inner(), failures.into_inner());
    println!("{calls} calls change a tier; {reached} of {wanted} points were reached");
    assert!(failures.is_empty(), "{} points failed:\n\n{}", failures.len(), failures.join("\n\n"));
    // Threads take turns differently from run to run; a script that ends early most of the time proves nothing.
    assert!(reached * 10 >= wanted as u64 * 9, "too few points were reached");
}
