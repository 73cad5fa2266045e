//! A fast tier that is full when its daemon is killed: what is on it is ours, and the next start has to come to it.

use std::time::Duration;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::RenameMode;
use dlio_fs::tiers::{Cx, ROOT, Tiers};

use crate::sim::Lose;
use crate::stories::{Machine, create, name};

const CAPACITY: u64 = 3 << 20;
const BLOCK: u64 = 4096;
const PENDING: usize = 1 << 20;

/// A version on both tiers, one that is pending, and one that is being written; then somebody fills what the tier has left, but for so many
/// blocks, and changes are logged until one is refused or the machine stops.
fn filled(machine: &Machine, engine: &Tiers, left: u64) {
    let cx = Cx::internal();
    let names = [0, 1].map(|i| name(&format!("{}{i}", "d".repeat(240))));
    engine.mkdir(&cx, ROOT, &names[0], 0o755, 0).unwrap();
    engine.release(&cx, create(engine, ROOT, "pending", &[2; PENDING]).1);
    let open = create(engine, ROOT, "open", &[3; 5000]).1;
    engine.write(&cx, &open, &[4; 100], 5000, false).unwrap();
    drop(open);
    let foreign = machine.fast.root().create(b"foreign", 0o644).unwrap();
    let avail = || machine.fast.root().space().unwrap().avail;
    while avail() > left * BLOCK && foreign.write_at(&[9; BLOCK as usize], foreign.stat().unwrap().size).is_ok() {}
    // Nothing is published, which would shorten the log.
    let refused = (0..20_000).find_map(|i| {
        let (from, to) = (&names[i % 2], &names[(i + 1) % 2]);
        engine.rename(&cx, ROOT, from, ROOT, to, RenameMode::NoReplace).err()
    });
    let errno = refused.expect("the log is full some time").errno();
    assert!(errno == Errno::ENOSPC || machine.power.is_gone(), "{errno:?}");
}

/// All that is pending gets to the slow tier.
fn rests(machine: &Machine, engine: &Tiers) -> bool {
    (0..5000).any(|_| {
        // Some of these find no room before others have made it.
        drop(engine.sync_fast());
        for step in [Tiers::seal_step, Tiers::drain_step, Tiers::publish_step, Tiers::evict_step, Tiers::tick] {
            drop(step(engine));
        }
        machine.clock.advance(Duration::from_secs(10));
        engine.status().unsafe_files == 0
    })
}

/// The ballast was given up long before, so that the log of a start had no room: "the fast tier is full, even for the log". Whatever was on
/// it was ours, and nothing made it less.
#[test]
fn a_start_finds_room_however_full_the_tier_was_when_the_daemon_was_killed() {
    for left in (0..8).chain([16, 40, 100]) {
        for stop in [None, Some(1), Some(40), Some(120)] {
            let mut machine = Machine::new();
            machine.fast.set_capacity(CAPACITY);
            machine.options.ballast = 512 << 10;
            let engine = machine.open("boot");
            if let Some(stop) = stop {
                machine.power.fail_after(1000 + stop, &mut machine.rng);
            }
            filled(&machine, &engine, left);
            machine.power.restore();
            machine.crash(engine, Lose::Nothing);
            // One that is killed as soon as it serves has given up what it had itself.
            for _ in 0..12 {
                let engine = machine.open("boot");
                assert_eq!(engine.lookup(&Cx::internal(), ROOT, &name("pending")).unwrap().size, PENDING as u64);
                machine.crash(engine, Lose::Nothing);
            }
            let engine = machine.open("boot");
            assert!(rests(&machine, &engine), "{left} blocks left: {:?}", engine.queue(10));
            let size = |name: &[u8]| machine.slow.root().stat(name).unwrap().size;
            assert_eq!((size(b"pending"), size(b"open")), (PENDING as u64, 5100));
        }
    }
}

/// A start that is stopped at any of its calls has given its room up, and not taken it back.
#[test]
fn a_start_on_a_full_tier_that_is_stopped_at_any_call_is_followed_by_one_that_is_not() {
    for stop in 1..80 {
        let mut machine = Machine::new();
        machine.fast.set_capacity(CAPACITY);
        machine.options.ballast = 512 << 10;
        let engine = machine.open("boot");
        filled(&machine, &engine, 0);
        machine.crash(engine, Lose::Nothing);
        machine.power.fail_after(stop, &mut machine.rng);
        let root = || (machine.fast.root(), machine.slow.root());
        let (fast, slow) = root();
        let started = dlio_fs::tiers::open(fast, slow, machine.options.clone(), machine.clock.clone(), "boot");
        let ended = started.is_ok();
        drop(started);
        machine.power.restore();
        machine.fast = machine.fast.crash(Lose::Nothing, &mut machine.rng);
        machine.slow = machine.slow.crash(Lose::Nothing, &mut machine.rng);
        let engine = machine.open("boot");
        assert_eq!(engine.lookup(&Cx::internal(), ROOT, &name("pending")).unwrap().size, PENDING as u64, "call {stop}");
        if ended {
            return;
        }
    }
    panic!("a start has fewer calls");
}
