//! A fast tier that is full when its daemon is killed: what is on it is ours, and the next start has to come to it. And a slow tier that is
//! full.

use std::time::Duration;

use dlio_fs::config::FullSlow;
use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Access, NewAttr, RenameMode};
use dlio_fs::tiers::{Cx, ROOT, SetAttr, SlowTree, Tiers};

use crate::sim::Lose;
use crate::stories::{Machine, WRITE, create, name};
use crate::walk::view;

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
    rests_within(5000, machine, engine)
}

fn rests_within(rounds: u32, machine: &Machine, engine: &Tiers) -> bool {
    (0..rounds).any(|_| {
        // Some of these find no room before others have made it.
        drop(engine.sync_fast());
        for step in [Tiers::seal_step, Tiers::drain_step, Tiers::publish_step, Tiers::evict_step, Tiers::tick] {
            drop(step(engine));
        }
        machine.clock.advance(Duration::from_secs(10));
        engine.status().safety.files == 0
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
    for stop in 1..150 {
        let mut machine = Machine::new();
        machine.fast.set_capacity(CAPACITY);
        machine.options.ballast = 512 << 10;
        let engine = machine.open("boot");
        filled(&machine, &engine, 0);
        machine.crash(engine, Lose::Nothing);
        machine.power.fail_after(stop, &mut machine.rng);
        let root = || (machine.fast.root(), machine.slow.root());
        let (fast, slow) = root();
        let started = dlio_fs::tiers::open(
            fast,
            slow,
            SlowTree::Writable,
            machine.options.clone(),
            machine.clock.clone(),
            "boot",
        );
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

const OLD: usize = 64 << 10;

/// A slow tier with two old checkpoints and no room for a third; the new one is written, then both old ones are removed.
fn on_a_full_slow_tier(full_slow: FullSlow) -> (Machine, Tiers) {
    let mut machine = Machine::new();
    machine.options.full_slow = full_slow;
    let engine = machine.open("boot");
    for old in ["old", "older"] {
        engine.release(&Cx::internal(), create(&engine, ROOT, old, &[1; OLD]).1);
    }
    assert!(rests(&machine, &engine));
    machine.slow.set_capacity(machine.slow.root().space().unwrap().used() + (OLD / 4) as u64);
    engine.release(&Cx::internal(), create(&engine, ROOT, "new", &[2; OLD]).1);
    for old in ["old", "older"] {
        engine.unlink(&Cx::internal(), ROOT, &name(old)).unwrap();
    }
    (machine, engine)
}

fn on_slow(machine: &Machine) -> Vec<(String, u64)> {
    let root = machine.slow.root();
    let names = root.list().unwrap().into_iter().map(|entry| entry.name).filter(|name| name != b".dlio-fs");
    let sized = |name: Vec<u8>| (String::from_utf8(name.clone()).unwrap(), root.stat(&name).unwrap().size);
    let mut found: Vec<_> = names.map(sized).collect();
    found.sort();
    found
}

/// P15. What a slow tier has no room for held the order, and with it the removals that make room.
#[test]
fn on_a_full_slow_tier_removals_go_first_where_that_is_wanted() {
    let (machine, engine) = on_a_full_slow_tier(FullSlow::RemoveFirst);
    engine.sync_fast().unwrap();
    let went = (0..100).any(|_| {
        machine.clock.advance(Duration::from_secs(10));
        drop(engine.drain_step());
        engine.status().exceptions.removed_first > 0
    });
    assert!(went, "{:?}", engine.queue(10));
    assert_eq!(on_slow(&machine), [("older".to_owned(), OLD as u64)], "no more than needed");
    assert!(rests(&machine, &engine), "{:?}", engine.queue(10));
    assert_eq!(on_slow(&machine), [("new".to_owned(), OLD as u64)]);
    assert_eq!((engine.status().exceptions.removed_first, engine.status().exceptions.conflicts), (1, 0));

    let (machine, engine) = on_a_full_slow_tier(FullSlow::Hold);
    assert!(!rests_within(50, &machine, &engine));
    assert_eq!(on_slow(&machine), [("old".to_owned(), OLD as u64), ("older".to_owned(), OLD as u64)]);
}

/// Its event is still in the order, and the next start finds it done.
#[test]
fn a_daemon_that_is_stopped_behind_a_removal_that_went_first_has_lost_nothing() {
    for lose in [Lose::Nothing, Lose::Unsynced] {
        for stop in 1.. {
            let (mut machine, engine) = on_a_full_slow_tier(FullSlow::RemoveFirst);
            engine.sync_fast().unwrap();
            machine.power.fail_after(stop, &mut machine.rng);
            let ended = rests_within(50, &machine, &engine);
            machine.power.restore();
            machine.crash(engine, lose);
            let engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
            assert!(rests(&machine, &engine), "call {stop}: {:?}", engine.queue(10));
            assert_eq!(on_slow(&machine), [("new".to_owned(), OLD as u64)], "call {stop}");
            assert_eq!(engine.status().exceptions.conflicts, 0, "call {stop}");
            if ended {
                break;
            }
        }
    }
}

/// A removal may not go ahead of a change that touches what it removes: its file is to get another name.
#[test]
fn what_is_still_to_get_another_name_is_not_removed_first() {
    let (machine, engine) = on_a_full_slow_tier(FullSlow::RemoveFirst);
    assert!(rests(&machine, &engine));
    let cx = Cx::internal();
    engine.release(&cx, create(&engine, ROOT, "newer", &[3; 2 * OLD]).1);
    let new = engine.lookup(&cx, ROOT, &name("new")).unwrap().ino;
    engine.link(&cx, new, ROOT, &name("best")).unwrap();
    engine.unlink(&cx, ROOT, &name("new")).unwrap();
    let before = engine.status().exceptions.removed_first;
    assert!(!rests_within(50, &machine, &engine));
    assert_eq!(
        (on_slow(&machine), engine.status().exceptions.removed_first),
        (vec![("new".to_owned(), OLD as u64)], before)
    );
}

/// Somebody else has taken the room that was set aside for the start, and a file is open in pieces: what the start is to log finds no room. It
/// was refused, and nothing of the tree could be read until somebody had made room.
#[test]
fn a_start_that_nothing_helps_serves_what_there_is_read_only() {
    let mut machine = Machine::new();
    machine.fast.set_capacity(CAPACITY);
    machine.options.ballast = 512 << 10;
    let engine = machine.open("boot");
    let long = name(&"f".repeat(250));
    let cx = Cx::internal();
    let (_, open) = engine.create(&cx, ROOT, &long, 0o644, 0, WRITE).unwrap();
    engine.write(&cx, &open, &[5; 100], 0, false).unwrap();
    drop(open);
    filled(&machine, &engine, 0);
    machine.crash(engine, Lose::Nothing);
    let ours = machine.fast.root().dir(b".dlio-fs").unwrap();
    for set_aside in [&b"spare"[..], b"ballast"] {
        drop(ours.unlink(set_aside));
    }
    let foreign = machine.fast.root().open(b"foreign", Access::ReadWrite).unwrap();
    while foreign.write_at(&[9; BLOCK as usize], foreign.stat().unwrap().size).is_ok() {}
    drop((ours, foreign));

    let engine = machine.open("boot");
    let lacks = engine.lacks().expect("there is no room");
    let status = engine.status();
    assert!(status.safety.held.iter().any(|why| why.contains(&format!("lacks {lacks} bytes"))), "{status:?}");
    let shown = view(&engine, &mut Vec::new()).unwrap();
    let size = |name: &str| shown.get(name.as_bytes()).unwrap().shown.body().bytes.len();
    assert_eq!((size("pending"), size("open"), size(&"f".repeat(250))), (PENDING, 5100, 100));
    let pending = engine.lookup(&cx, ROOT, &name("pending")).unwrap().ino;
    let errno = |done: Result<(), dlio_fs::error::Error>| done.map_err(|e| e.errno());
    assert_eq!(errno(engine.mkdir(&cx, ROOT, &name("new"), 0o755, 0).map(drop)), Err(Errno::EROFS));
    assert_eq!(errno(engine.create(&cx, ROOT, &name("new"), 0o644, 0, WRITE).map(drop)), Err(Errno::EROFS));
    assert_eq!(errno(engine.unlink(&cx, ROOT, &name("pending"))), Err(Errno::EROFS));
    let truncated = SetAttr { attr: NewAttr::default(), size: Some(0) };
    assert_eq!(errno(engine.setattr(&cx, pending, &truncated).map(drop)), Err(Errno::EROFS));
    let written = engine.open(&cx, pending, WRITE).and_then(|file| engine.write(&cx, &file, b"x", 0, false));
    assert_eq!(errno(written.map(drop)), Err(Errno::EROFS));
    machine.crash(engine, Lose::Nothing);

    machine.fast.root().unlink(b"foreign").unwrap();
    let engine = machine.open("boot");
    assert_eq!(engine.lacks(), None);
    assert!(view(&engine, &mut Vec::new()).unwrap() == shown, "the next start finds what this one has found");
    assert!(rests(&machine, &engine), "{:?}", engine.queue(10));
    assert!(machine.slow.image() == shown);
}
