//! What single steps of the engine's order are there for: what is lost without them, told on simulated disks. The dice come to these
//! moments too seldom, or need somebody else on the slow tier. `lapses` leaves the steps out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Access, Dir, MetadataOrder, RenameMode};
use dlio_fs::tiers::sync::{Rank, held};
use dlio_fs::tiers::{Cx, Evicted, OpenMode, Options, Progress, ROOT, Tiers};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::sim::Lose;
use crate::sim::image::Image;
use crate::stories::{Machine, WRITE, background, create, name, read};
use crate::walk;

const KNOWN: MetadataOrder = MetadataOrder::Journaled;
const UNKNOWN: MetadataOrder = MetadataOrder::Unknown;

/// Sets a scene, does something to it, and has the machine stop at the first call of that, at the second, and so on, until it
/// is done to the end. `judge` gets the machine as it is found then.
fn at_any_stop(
    (lose, order): (Lose, MetadataOrder),
    scene: impl Fn(&Tiers),
    act: impl Fn(&Tiers),
    judge: impl Fn(&mut Machine, &Image, &[Image]),
) {
    (1..).find(|stop| !at_stop(*stop, *stop, (lose, order), &scene, &act, &judge));
}

/// The same at one call. `false`: it was done to the end.
fn at_stop(
    stop: u64,
    seed: u64,
    (lose, order): (Lose, MetadataOrder),
    scene: impl Fn(&Tiers),
    act: impl Fn(&Tiers),
    judge: impl Fn(&mut Machine, &Image, &[Image]),
) -> bool {
    let mut machine = Machine::with(order);
    machine.rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let engine = machine.open("before");
    scene(&engine);
    let expected = walk::view(&engine, &mut Vec::new()).unwrap();
    machine.slow.observe();
    let mut shown = vec![machine.slow.image()];
    machine.power.fail_after(stop, &mut machine.rng);
    act(&engine);
    let stopped = machine.power.is_gone();
    machine.power.restore();
    shown.extend(machine.slow.take_observed());
    machine.crash(engine, lose);
    judge(&mut machine, &expected, &shown);
    stopped
}

fn boot_after(lose: Lose) -> &'static str {
    if lose == Lose::Nothing { "before" } else { "after" }
}

fn overwrite(engine: &Tiers, file: &str, bytes: &[u8]) {
    let cx = Cx::internal();
    let ino = engine.lookup(&cx, ROOT, &name(file)).unwrap().ino;
    let file = engine.open(&cx, ino, OpenMode { truncate: true, ..WRITE }).unwrap();
    engine.write(&cx, &file, bytes, 0, false).unwrap();
    engine.release(&cx, file);
}

/// Everything to the slow tier; also what is about names only.
fn all_down(engine: &Tiers) {
    engine.sync_fast().unwrap();
    for _ in 0..1000 {
        if engine.status().pending_events == 0 {
            return;
        }
        engine.drain_step().unwrap();
        engine.publish_step().unwrap();
    }
    panic!("{:?}", engine.status());
}

fn put(engine: &Tiers, file: &str, bytes: &[u8]) {
    engine.release(&Cx::internal(), create(engine, ROOT, file, bytes).1);
}

/// One group of events of all kinds, copied and not published; its intents are longer than a page of the log.
fn group(engine: &Tiers) {
    let cx = Cx::internal();
    let rename = |from, to, mode| engine.rename(&cx, ROOT, &name(from), ROOT, &name(to), mode).unwrap();
    for (file, byte) in [("a", 1), ("b", 2), ("old name", 3), ("removed", 4), ("replaced", 5)] {
        put(engine, file, &[byte; 300]);
    }
    all_down(engine);
    rename("a", "b", RenameMode::Exchange);
    rename("old name", "new name", RenameMode::Replace);
    engine.unlink(&cx, ROOT, &name("removed")).unwrap();
    overwrite(engine, "replaced", &[6; 400]);
    for i in 0..16 {
        put(engine, &format!("{i}-{}", "x".repeat(200)), &[7; 20]);
    }
    engine.mkdir(&cx, ROOT, &name("dir"), 0o755, 0).unwrap();
    engine.sync_fast().unwrap();
    while engine.drain_step().unwrap() == Progress::Did {}
}

fn publish(engine: &Tiers) {
    while matches!(engine.publish_step(), Ok(Progress::Did)) {}
}

fn is_as_before(lose: Lose, machine: &mut Machine, expected: &Image) {
    let engine = machine.open(boot_after(lose));
    walk::compare(&walk::view(&engine, &mut Vec::new()).unwrap(), expected).unwrap();
    all_down(&engine);
    let drained = machine.slow.image();
    assert!(drained == *expected, "{}", drained.diff(expected, "slow", "view"));
}

fn a_stop_within_a_group(lose: Lose, order: MetadataOrder) {
    at_any_stop((lose, order), group, publish, |machine, expected, shown| {
        let left = machine.slow.image();
        assert!(shown.contains(&left), "the slow tier is as it never was before: {left:?}");
        is_as_before(lose, machine, expected);
    });
}

/// What was synced is in the view, and arrives; the slow tier is at each moment as it had been at one before.
#[test]
pub fn a_power_cut_while_a_group_is_published_takes_nothing_and_changes_no_order() {
    a_stop_within_a_group(Lose::Unsynced, KNOWN);
    a_stop_within_a_group(Lose::Unsynced, UNKNOWN);
}

#[test]
pub fn a_kill_while_a_group_is_published_is_gone_on_from() {
    a_stop_within_a_group(Lose::Nothing, KNOWN);
}

/// Its first calls log the intents and make them durable: of those only some may be left, and then none of them counts.
#[test]
pub fn a_group_whose_intents_are_not_all_there_has_not_begun() {
    for (stop, seed) in (4..9).flat_map(|stop| (0..24).map(move |seed| (stop, seed))) {
        for lose in [Lose::Nothing, Lose::Unsynced] {
            at_stop(stop, seed, (lose, KNOWN), group, publish, |machine, expected, _| {
                is_as_before(lose, machine, expected);
            });
        }
    }
}

/// A segment of the log goes when all in it is applied. Where the power is cut just then, the log that is left must not seem to have
/// lost its beginning.
#[test]
pub fn a_segment_does_not_go_before_the_log_says_that_it_is_done_with() {
    for seed in 0..4 {
        let (mut machine, cx) = (Machine::new(), Cx::internal());
        machine.rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let engine = machine.open("before");
        // A record of 180,000 bytes each: more than a segment.
        for i in 0..100 {
            engine.set_xattr(&cx, ROOT, format!("user.{i}").as_bytes(), &[0xFF; 60_000], false, false).unwrap();
        }
        let log = machine.fast.root().dir(b".dlio-fs").unwrap().dir(b"log").unwrap();
        let first = log.list().unwrap().into_iter().map(|entry| entry.name).min().unwrap();
        while log.stat(&first).is_ok() {
            assert_eq!(engine.publish_step().unwrap(), Progress::Did);
        }
        machine.crash(engine, Lose::Unsynced);
        assert_eq!(machine.open("after").status().held, None, "seed {seed}");
    }
}

/// The version before the one that is being sealed is there as long as that is not.
#[test]
pub fn a_power_cut_while_a_version_is_sealed_leaves_one_of_two() {
    for order in [KNOWN, UNKNOWN] {
        let scene = |engine: &Tiers| {
            put(engine, "model", &[1; 20_000]);
            all_down(engine);
            overwrite(engine, "model", &[2; 24_000]);
        };
        let seal = |engine: &Tiers| drop(engine.sync_fast());
        at_any_stop((Lose::Unsynced, order), scene, seal, |machine, _, _| {
            let found = read(&machine.open("after"), "model");
            assert!(found == [1; 20_000] || found == [2; 24_000], "{} bytes of neither", found.len());
        });
    }
}

/// A step is known by the inode that it is about. Where it was done already, somebody else may have taken the name since.
#[test]
pub fn a_step_is_not_done_again_to_what_somebody_else_has_made() {
    let scene = |engine: &Tiers| {
        let cx = Cx::internal();
        put(engine, "moved", &[1; 300]);
        put(engine, "removed", &[2; 300]);
        all_down(engine);
        engine.rename(&cx, ROOT, &name("moved"), ROOT, &name("arrived"), RenameMode::Replace).unwrap();
        engine.unlink(&cx, ROOT, &name("removed")).unwrap();
        engine.sync_fast().unwrap();
    };
    at_any_stop((Lose::Nothing, KNOWN), scene, publish, |machine, _, _| {
        let root = machine.slow.root();
        // Takes the number of the one that was removed.
        root.create(b"other", 0o644).unwrap();
        let mut theirs = Vec::new();
        for file in ["moved", "removed"] {
            if machine.on_slow(file).is_none() {
                root.create(file.as_bytes(), 0o644).unwrap().write_at(&[9; 30], 0).unwrap();
                theirs.push(file);
            }
        }
        let engine = machine.open("before");
        all_down(&engine);
        for file in theirs {
            assert_eq!(machine.on_slow(file), Some(vec![9; 30]), "{file}");
        }
        assert_eq!(machine.on_slow("arrived"), Some(vec![1; 300]));
    });
}

/// What is in the view is in the log: an operation that could not be logged has not been.
#[test]
pub fn what_could_not_be_logged_is_not_shown() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let engine = machine.open("boot");
    machine.fast.inject(|op| (op.call == "write_at" && op.path.ends_with(b".log")).then_some(Errno::EIO));
    assert_eq!(engine.mkdir(&cx, ROOT, &name("dir"), 0o755, 0).unwrap_err().errno(), Errno::EIO);
    assert_eq!(engine.lookup(&cx, ROOT, &name("dir")).unwrap_err().errno(), Errno::ENOENT);
    machine.fast.inject(|_| None);
    engine.mkdir(&cx, ROOT, &name("dir"), 0o755, 0).unwrap();
}

/// A file of two pieces, which are read one after the other, is written over at each call of its copying.
#[test]
pub fn a_version_that_is_written_over_while_it_is_copied_is_not_published() {
    for at in 0..30 {
        let (machine, cx) = (Machine::new(), Cx::internal());
        let engine = Arc::new(machine.open("boot"));
        let write = |file: &_, byte| {
            for offset in [0, 8192] {
                engine.write(&cx, file, &[byte; 4096], offset, false).unwrap();
            }
        };
        let (_, file) = create(&engine, ROOT, "model", &[]);
        write(&file, 1);
        engine.fsync(&cx, &file).unwrap();
        let file = Arc::new(file);
        machine.slow.before_calls({
            let (calls, engine, file) = (AtomicU64::new(0), Arc::downgrade(&engine), Arc::downgrade(&file));
            move || {
                if calls.fetch_add(1, Ordering::Relaxed) == at
                    && let (Some(engine), Some(file)) = (engine.upgrade(), file.upgrade())
                {
                    for offset in [0, 8192] {
                        engine.write(&Cx::internal(), &file, &[2; 4096], offset, false).unwrap();
                    }
                }
            }
        });
        engine.drain_step().unwrap();
        engine.publish_step().unwrap();
        if let Some(bytes) = machine.on_slow("model") {
            assert!(bytes[..4096] == [bytes[0]; 4096] && bytes[8192..] == [bytes[0]; 4096], "torn at call {at}");
        }
        machine.slow.before_calls(|| ());
        write(&file, 3);
        engine.flush(&cx, &file).unwrap();
        background(&engine, &machine.clock);
        assert_eq!(machine.on_slow("model").map(|bytes| (bytes[0], bytes[12_287])), Some((3, 3)));
    }
}

/// The order goes past the record that says whose bytes an open file's are.
#[test]
pub fn a_file_that_is_written_while_others_are_published_outlives_a_kill() {
    let (mut machine, cx) = (Machine::new(), Cx::internal());
    let engine = machine.open("boot");
    let (_, file) = engine.create(&cx, ROOT, &name("open"), 0o644, 0, WRITE).unwrap();
    engine.write(&cx, &file, &[1; 300], 0, false).unwrap();
    put(&engine, "other", &[2; 300]);
    engine.seal_step().unwrap();
    engine.drain_step().unwrap();
    publish(&engine);
    assert!(machine.on_slow("other").is_some());
    drop(file);
    machine.crash(engine, Lose::Nothing);
    assert_eq!(read(&machine.open("boot"), "open"), [1; 300]);
}

/// P6, where somebody else has changed the file since it was proven.
#[test]
pub fn a_file_that_somebody_else_has_changed_is_not_evicted() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let engine = machine.open("boot");
    put(&engine, "data", &[1; 300]);
    all_down(&engine);
    machine.slow.root().open(b"data", Access::ReadWrite).unwrap().write_at(&[9; 30], 0).unwrap();
    let ino = engine.lookup(&cx, ROOT, &name("data")).unwrap().ino;
    assert_eq!(engine.evict_now(&cx, ino).unwrap(), Evicted::Changed);
    assert_eq!(engine.status().objects, 1);
}

/// P11, where somebody else changes what pending events are to replace while no daemon runs: both are kept, and theirs has the name.
#[test]
pub fn what_somebody_else_changed_while_no_daemon_ran_is_kept() {
    let add = |slow: &dyn Dir| slow.open(b"model", Access::ReadWrite).unwrap().write_at(&[9; 10], 5000).unwrap();
    let put_theirs = |slow: &dyn Dir, name: &[u8]| {
        slow.create(b"theirs", 0o644).unwrap().write_at(&[9; 400], 0).unwrap();
        slow.rename(b"theirs", slow, name, RenameMode::Replace).unwrap();
    };
    let overwritten: fn(&Tiers) = |engine| overwrite(engine, "model", &[2; 300]);
    let renamed_over: fn(&Tiers) = |engine| {
        put(engine, "part", &[2; 300]);
        engine.rename(&Cx::internal(), ROOT, &name("part"), ROOT, &name("model"), RenameMode::Replace).unwrap();
    };
    for ours in [overwritten, renamed_over] {
        changed_while_no_daemon_ran("model", ours, add, 1);
        changed_while_no_daemon_ran("model", ours, |slow| put_theirs(slow, b"model"), 1);
    }
    changed_while_no_daemon_ran("new", |engine| put(engine, "new", &[2; 300]), |slow| put_theirs(slow, b"new"), 1);
    let made = |engine: &Tiers| assert!(engine.symlink(&Cx::internal(), ROOT, &name("new"), b"model").is_ok());
    changed_while_no_daemon_ran("new", made, |slow| put_theirs(slow, b"new"), 1);
    let removed = |engine: &Tiers| engine.unlink(&Cx::internal(), ROOT, &name("model")).unwrap();
    changed_while_no_daemon_ran("model", removed, |slow| put_theirs(slow, b"model"), 0);
}

/// `kept`: versions of ours beside theirs in the end.
fn changed_while_no_daemon_ran(file: &str, ours: impl Fn(&Tiers), theirs: impl Fn(&dyn Dir), kept: usize) {
    let mut machine = Machine::new();
    let engine = machine.open("boot");
    put(&engine, "model", &[1; 5000]);
    all_down(&engine);
    ours(&engine);
    engine.sync_fast().unwrap();
    let shown = walk::view(&engine, &mut Vec::new()).unwrap();
    machine.crash(engine, Lose::Nothing);

    theirs(&*machine.slow.root());
    let expected = machine.on_slow(file);
    let engine = machine.open("boot");
    assert_eq!(walk::view(&engine, &mut Vec::new()).unwrap(), shown);
    all_down(&engine);
    assert_eq!(machine.on_slow(file), expected, "theirs has the name");
    let beside = |path: &&Vec<u8>| path.windows(8).any(|part| part == b"conflict");
    assert_eq!((machine.slow.image().paths().filter(beside).count(), engine.status().conflicts), (kept, 1));
}

/// What a program still writes in place to a file that has lost its name is nobody else's change.
#[test]
fn what_is_written_to_a_replaced_file_in_place_is_no_foreign_change() {
    let mut machine = Machine { options: Options { copy_up_max: 1000, ..Machine::new().options }, ..Machine::new() };
    let engine = machine.open("boot");
    put(&engine, "data", &[1; 5000]);
    all_down(&engine);
    let ino = engine.lookup(&Cx::internal(), ROOT, &name("data")).unwrap().ino;
    engine.evict_now(&Cx::internal(), ino).unwrap();
    let file = engine.open(&Cx::internal(), ino, WRITE).unwrap();
    put(&engine, "part", &[2; 300]);
    engine.rename(&Cx::internal(), ROOT, &name("part"), ROOT, &name("data"), RenameMode::Replace).unwrap();
    engine.write(&Cx::internal(), &file, &[3; 100], 5000, false).unwrap();
    assert_eq!(engine.status().in_place_writes, 1);
    engine.sync_fast().unwrap();
    drop(file);
    machine.crash(engine, Lose::Nothing);

    let engine = machine.open("boot");
    all_down(&engine);
    assert_eq!((machine.on_slow("data"), engine.status().conflicts), (Some(vec![2; 300]), 0));
}

/// P11, where somebody else changes a file while a program writes it, and somebody looks at it meanwhile.
#[test]
fn what_somebody_else_changed_behind_a_writer_is_kept() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let engine = machine.open("boot");
    put(&engine, "model", &[1; 5000]);
    all_down(&engine);
    let ino = engine.lookup(&cx, ROOT, &name("model")).unwrap().ino;
    let file = engine.open(&cx, ino, OpenMode { truncate: true, ..WRITE }).unwrap();
    engine.write(&cx, &file, &[2; 300], 0, false).unwrap();

    machine.slow.root().open(b"model", Access::ReadWrite).unwrap().write_at(&[9; 10], 5000).unwrap();
    machine.clock.advance(Duration::from_secs(100));
    assert_eq!(engine.lookup(&cx, ROOT, &name("model")).unwrap().size, 300);
    let theirs = machine.on_slow("model");
    engine.release(&cx, file);
    all_down(&engine);
    assert_eq!((machine.on_slow("model"), engine.status().conflicts), (theirs, 1));
}

/// A batch of several events shows what is no state of the view; but what has a name before it and behind it has one all the while.
#[test]
pub fn a_file_that_a_batch_moves_is_there_all_the_while() {
    there_all_the_while(|engine| {
        engine.mkdir(&Cx::internal(), ROOT, &name("dir"), 0o755, 0).unwrap();
        engine.rename(&Cx::internal(), ROOT, &name("last"), ROOT, &name("best"), RenameMode::Replace).unwrap();
        engine.mkdir(&Cx::internal(), ROOT, &name("later"), 0o755, 0).unwrap();
    });
}

/// The new file took the name before the old one had got its other one: for a moment the slow tier had no name of it.
#[test]
pub fn a_file_whose_name_a_batch_gives_to_another_is_there_all_the_while() {
    there_all_the_while(|engine| {
        engine.rename(&Cx::internal(), ROOT, &name("last"), ROOT, &name("best"), RenameMode::Replace).unwrap();
        put(engine, "last", &[2; 300]);
        put(engine, "later", &[3; 300]);
    });
}

fn there_all_the_while(changes: impl Fn(&Tiers)) {
    let machine = Machine::new();
    let engine = machine.open("boot");
    put(&engine, "last", &[1; 300]);
    all_down(&engine);
    changes(&engine);
    engine.sync_fast().unwrap();
    // Pressure: all of them are one batch.
    engine.set_options(Options { high: 0.0, ..machine.options.clone() });
    machine.slow.observe();
    all_down(&engine);
    assert_eq!(engine.status().batches, 1);
    for image in machine.slow.take_observed() {
        let bytes = |name: &str| image.get(name.as_bytes()).map(|entry| entry.shown.body().bytes.to_vec());
        assert!(["last", "best"].iter().any(|name| bytes(name) == Some(vec![1; 300])), "gone for a moment: {image:?}");
    }
}

/// A full fast tier has no room for a proof either, and the object goes at once. Who reads the file then is sent to the slow tier, and
/// must find there what the view says is there. Here the first file of a group is read while the second one is to be proven.
#[test]
pub fn a_file_is_not_clean_before_the_view_knows_where_it_is() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let engine = Arc::new(machine.open("boot"));
    let files = ["first", "second"];
    files.iter().for_each(|file| put(&engine, file, &[1; 300]));
    all_down(&engine);
    files.iter().for_each(|file| overwrite(&engine, file, &[2; 400]));
    engine.sync_fast().unwrap();
    while engine.drain_step().unwrap() == Progress::Did {}
    let inodes = files.map(|file| engine.lookup(&cx, ROOT, &name(file)).unwrap().ino);
    let reads = Arc::new(AtomicU64::new(0));
    machine.fast.inject(|op| (op.call == "set_xattr").then_some(Errno::ENOSPC));
    machine.fast.before_calls({
        let (engine, reads, busy) = (Arc::downgrade(&engine), reads.clone(), AtomicBool::new(false));
        move || {
            let one_is_proven = held().contains(&Rank::Io) && held().iter().all(|rank| *rank <= Rank::Io);
            let Some(engine) = engine.upgrade().filter(|_| one_is_proven && !busy.swap(true, Ordering::Relaxed)) else {
                return;
            };
            // Another thread, which waits for nobody: this one holds the lock of one of them.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for (file, ino) in files.iter().zip(inodes) {
                        let unlocked = engine.getattr(&Cx::fast_only(0, 0), ino).is_ok();
                        let tier = || engine.get_xattr(&Cx::internal(), ino, b"user.dlio.tier").unwrap();
                        if unlocked && tier().is_some_and(|tier| tier == b"slow") {
                            assert_eq!(read(&engine, file), [2; 400]);
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            });
            busy.store(false, Ordering::Relaxed);
        }
    });
    publish(&engine);
    machine.fast.before_calls(|| ());
    assert!(reads.load(Ordering::Relaxed) > 0);
    assert_eq!(files.map(|file| read(&engine, file)), [[2; 400]; 2]);
}
