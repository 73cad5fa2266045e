//! New directories that are filled in `tmp` and placed with all that is in them, where the slow tier does not order its names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use dlio_fs::config::DrainStreams;
use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Dir, Kind, MetadataOrder, RenameMode};
use dlio_fs::tiers::{Cx, Evicted, Options, Progress, ROOT, Saving, Tiers};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::sim::image::Image;
use crate::sim::{Lose, SimDisk};
use crate::stories::{Machine, create, name};
use crate::walk;

/// A file before it, a directory with files (one of them renamed, one removed again), a link, and a directory in it; then a file behind it.
/// All of it sealed and copied.
fn save(engine: &Tiers) {
    let cx = Cx::internal();
    let put = |dir, file: &str, bytes: &[u8]| engine.release(&cx, create(engine, dir, file, bytes).1);
    put(ROOT, "before", &[1; 300]);
    let dir = engine.mkdir(&cx, ROOT, &name("step-100"), 0o755, 0).unwrap().ino;
    put(dir, "model", &[2; 5000]);
    put(dir, "optimizer.tmp", &[3; 9000]);
    engine.rename(&cx, dir, &name("optimizer.tmp"), dir, &name("optimizer"), RenameMode::Replace).unwrap();
    put(dir, "lock", &[4; 10]);
    engine.unlink(&cx, dir, &name("lock")).unwrap();
    engine.symlink(&cx, dir, &name("config"), b"../config").unwrap();
    let inner = engine.mkdir(&cx, dir, &name("shards"), 0o700, 0).unwrap().ino;
    (0..5).for_each(|n| put(inner, &format!("shard-{n}"), &[n; 700]));
    put(ROOT, "latest", b"step-100");
    engine.sync_fast().unwrap();
    // From a lane, which is synced by nobody else.
    engine.set_options(Options::for_tests().with(|options| {
        (options.drain_streams, options.settle) = (DrainStreams::Exactly(2), Duration::ZERO);
    }));
    while engine.drain_stream_step(1).unwrap() == Progress::Did {}
}

/// Publishes as far as it goes.
fn publish(engine: &Tiers) {
    while matches!(engine.publish_step(), Ok(Progress::Did)) {}
}

fn all_down(engine: &Tiers) {
    for _ in 0..200 {
        if engine.status().safety.events == 0 {
            return;
        }
        drop((engine.seal_step(), engine.drain_step(), engine.publish_step()));
    }
    panic!("{:?}", engine.status().safety);
}

/// What the slow tree was at each moment: "before" or not, all of the directory or nothing, "latest" or not.
fn states(slow: &SimDisk) -> Vec<usize> {
    slow.take_observed().iter().map(|image| image.paths().count()).collect()
}

#[test]
fn a_new_directory_comes_with_all_that_is_in_it() {
    for (order, at_once) in [(MetadataOrder::Unknown, true), (MetadataOrder::Journaled, false)] {
        let machine = Machine::with(order);
        let engine = machine.open("boot");
        machine.slow.observe();
        save(&engine);
        publish(&engine);
        let counts = states(&machine.slow);
        assert_eq!(counts.len() == 3, at_once, "{order:?}: {counts:?}");
        let view = walk::view(&engine, &mut Vec::new()).unwrap();
        let slow = machine.slow.image();
        assert!(slow == view, "{}", slow.diff(&view, "slow", "view"));
        assert_eq!(engine.status().safety.events, 0);
        let dir = engine.lookup(&Cx::internal(), ROOT, &name("step-100")).unwrap().ino;
        let model = engine.lookup(&Cx::internal(), dir, &name("model")).unwrap().ino;
        assert_eq!(engine.evict_now(&Cx::internal(), model).unwrap(), Evicted::Gone(5000), "it is clean");
        assert_eq!(engine.status().exceptions.batches, 0, "each state is one that the program went through");
        assert_eq!(left_in_tmp(&machine), [""; 0]);
    }
}

fn left_in_tmp(machine: &Machine) -> Vec<String> {
    let tmp = machine.slow.root().dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap();
    let tmp = tmp.dir(&tmp.list().unwrap()[0].name).unwrap();
    let lane = |name: &[u8]| name[0].is_ascii_digit();
    let entries = tmp.list().unwrap().into_iter().filter(|entry| !lane(&entry.name));
    entries.map(|entry| String::from_utf8(entry.name).unwrap()).collect()
}

/// A stop at each call, by a kill or by a power cut: the slow tree is as it was at some moment before, and everything arrives.
#[test]
pub fn a_stop_while_a_directory_is_filled_or_placed_loses_nothing() {
    for lose in [Lose::Nothing, Lose::Unsynced] {
        let mut stop = 0;
        loop {
            stop += 1;
            let mut machine = Machine::with(MetadataOrder::Unknown);
            machine.rng = Xoshiro256PlusPlus::seed_from_u64(stop);
            let engine = machine.open("before");
            save(&engine);
            let expected = walk::view(&engine, &mut Vec::new()).unwrap();
            machine.slow.observe();
            let mut shown = vec![machine.slow.image()];
            machine.power.fail_after(stop, &mut machine.rng);
            publish(&engine);
            let stopped = machine.power.is_gone();
            machine.power.restore();
            shown.extend(machine.slow.take_observed());
            machine.crash(engine, lose);
            assert!(shown.contains(&machine.slow.image()), "stop {stop}: as it never was: {:?}", machine.slow.image());
            let engine = machine.open(if lose == Lose::Nothing { "before" } else { "after" });
            let found = walk::view(&engine, &mut Vec::new()).unwrap();
            assert!(found == expected, "stop {stop}: {}", found.diff(&expected, "view", "before"));
            all_down(&engine);
            let slow = machine.slow.image();
            assert!(slow == expected, "stop {stop}: {}", slow.diff(&expected, "slow", "view"));
            assert_eq!(left_in_tmp(&machine), [""; 0], "stop {stop}");
            if !stopped {
                break;
            }
        }
    }
}

/// A call of the slow tier that fails, each one once: a directory that cannot be filled goes the way of others.
#[test]
fn a_call_that_fails_while_a_directory_is_filled_is_made_up_for() {
    for errno in [Errno::EIO, Errno::ENOSPC, Errno::EACCES] {
        for failing in 0.. {
            let machine = Machine::with(MetadataOrder::Unknown);
            let engine = machine.open("boot");
            save(&engine);
            let calls = Arc::new(AtomicU64::new(0));
            machine.slow.inject({
                let calls = calls.clone();
                move |_| (calls.fetch_add(1, Ordering::Relaxed) == failing).then_some(errno)
            });
            publish(&engine);
            all_down(&engine);
            let view = walk::view(&engine, &mut Vec::new()).unwrap();
            let slow = machine.slow.image();
            assert!(slow == view, "call {failing}: {}", slow.diff(&view, "slow", "view"));
            assert_eq!(engine.status().exceptions.conflicts, 0, "call {failing}: nobody else did anything");
            if calls.load(Ordering::Relaxed) <= failing {
                break;
            }
        }
    }
}

/// Somebody else removes files in `tmp`, at each moment: of the copies, and of what was put into the directory there.
#[test]
fn what_somebody_removes_from_a_directory_in_tmp_is_copied_again() {
    for at in 0..60 {
        let machine = Machine::with(MetadataOrder::Unknown);
        let engine = machine.open("boot");
        save(&engine);
        let (calls, slow) = (AtomicU64::new(0), machine.slow.root());
        machine.slow.before_calls(move || {
            if calls.fetch_add(1, Ordering::Relaxed) == at {
                remove_a_file(&*slow);
            }
        });
        publish(&engine);
        all_down(&engine);
        let view = walk::view(&engine, &mut Vec::new()).unwrap();
        let slow = machine.slow.image();
        assert!(slow == view, "call {at}: {}", slow.diff(&view, "slow", "view"));
    }
}

/// The same, of copies only, and puts files of its own in their places.
#[test]
fn what_somebody_puts_in_the_place_of_a_copy_is_not_published() {
    for at in 0..60 {
        let machine = Machine::with(MetadataOrder::Unknown);
        let engine = machine.open("boot");
        save(&engine);
        let (calls, slow) = (AtomicU64::new(0), machine.slow.root());
        machine.slow.before_calls(move || {
            if calls.fetch_add(1, Ordering::Relaxed) == at {
                replace_a_copy(&*slow);
            }
        });
        publish(&engine);
        all_down(&engine);
        let view = walk::view(&engine, &mut Vec::new()).unwrap();
        let slow = machine.slow.image();
        assert!(slow == view, "call {at}: {}", slow.diff(&view, "slow", "view"));
    }
}

/// One in the middle, in the lane of the second stream: it goes into the directory.
fn replace_a_copy(slow: &dyn Dir) {
    let tmps = slow.dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap();
    let lane = tmps.dir(&tmps.list().unwrap()[0].name).unwrap().dir(b"1").unwrap();
    let copies = lane.list().unwrap();
    if let Some(copy) = copies.get(copies.len() / 2) {
        lane.unlink(&copy.name).unwrap();
        lane.create(&copy.name, 0o644).unwrap().write_at(&[9; 700], 0).unwrap();
    }
}

/// The last one, below `tmp`.
fn remove_a_file(slow: &dyn Dir) {
    let Ok(tmps) = slow.dir(b".dlio-fs").and_then(|ours| ours.dir(b"tmp")) else { return };
    let uuid = tmps.list().unwrap()[0].name.clone();
    let mut dir = tmps.dir(&uuid).unwrap();
    loop {
        let entries = dir.list().unwrap();
        let inner = entries
            .iter()
            .find(|entry| entry.kind == Kind::Dir && !dir.dir(&entry.name).unwrap().list().unwrap().is_empty());
        match (inner, entries.iter().rfind(|entry| entry.kind == Kind::File)) {
            (Some(inner), _) => dir = dir.dir(&inner.name).unwrap(),
            (None, Some(file)) => return dir.unlink(&file.name).unwrap(),
            (None, None) => return,
        }
    }
}

/// Somebody else makes a directory of that name, or a file, at each moment: everything arrives, and nothing of theirs is lost.
#[test]
fn a_directory_that_somebody_else_makes_first_takes_in_ours() {
    let moments = (0..60).step_by(2).flat_map(|at| [(at, Kind::Dir), (at, Kind::File)]);
    let orders = [MetadataOrder::Unknown, MetadataOrder::Journaled];
    for ((at, kind), order) in moments.flat_map(|moment| orders.map(|order| (moment, order))) {
        let machine = Machine::with(order);
        let engine = machine.open("boot");
        save(&engine);
        // What comes behind those that it takes in.
        let dir = engine.lookup(&Cx::internal(), ROOT, &name("step-100")).unwrap().ino;
        engine.release(&Cx::internal(), create(&engine, dir, "large", &[5; (1 << 20) + 1]).1);
        let (calls, slow) = (AtomicU64::new(0), machine.slow.root());
        machine.slow.before_calls(move || {
            if calls.fetch_add(1, Ordering::Relaxed) != at || slow.stat(b"step-100").is_ok() {
                return;
            }
            match kind {
                Kind::Dir => {
                    slow.mkdir(b"step-100", 0o755).unwrap();
                    slow.dir(b"step-100").unwrap().create(b"theirs", 0o644).unwrap().write_at(&[9; 9], 0).unwrap();
                }
                _ => slow.create(b"step-100", 0o644).unwrap().write_at(&[9; 9], 0).unwrap(),
            }
        });
        publish(&engine);
        all_down(&engine);
        let slow = machine.slow.image();
        let is_file =
            |path: &&Vec<u8>| path.ends_with(b"/model") || path.ends_with(b"/shard-4") || path.ends_with(b"/large");
        assert_eq!(slow.paths().filter(is_file).count(), 3, "call {at}, {kind:?}: {slow:?}");
        let conflicts = slow.paths().filter(|path| path.windows(13).any(|part| part == b"dlio-conflict"));
        let beside = conflicts.filter(|path| !path.contains(&b'/')).count();
        assert!(beside <= usize::from(kind == Kind::File), "call {at}, {kind:?}: {slow:?}");
    }
}

/// An operator takes a file out of the order while its directory is being filled.
#[test]
fn a_file_of_a_directory_that_is_being_filled_can_be_set_aside() {
    for rounds in 0..10 {
        let machine = Machine::with(MetadataOrder::Unknown);
        let engine = machine.open("boot");
        save(&engine);
        for _ in 0..rounds {
            engine.publish_step().unwrap();
        }
        if engine.status().safety.events < 9 {
            continue;
        }
        engine.set_aside(&Cx::internal(), b"step-100/shards/shard-2", true, &Saving::default()).unwrap();
        all_down(&engine);
        let slow = machine.slow.image();
        assert!(slow.get(b"step-100/shards/shard-2").is_none() && slow.get(b"step-100/shards/shard-4").is_some());
        assert!(slow.get(b"latest").is_some(), "round {rounds}");
    }
}

/// Somebody makes a file where a new directory is to go: it goes beside that, and what is in it follows. To a start the
/// paths in the log lead to that file: synced files had no place any more, and were put aside.
#[test]
fn what_follows_into_a_directory_beside_somebody_elses_file_arrives_after_a_kill() {
    const SHARDS: u8 = 4;
    let cx = Cx::internal();
    for order in [MetadataOrder::Unknown, MetadataOrder::Journaled] {
        for stop in 1.. {
            let mut machine = Machine::with(order);
            let engine = machine.open("boot");
            let dir = engine.mkdir(&cx, ROOT, &name("ckpt"), 0o755, 0).unwrap().ino;
            let inner = engine.mkdir(&cx, dir, &name("inner"), 0o755, 0).unwrap().ino;
            for n in 0..SHARDS {
                engine.release(&cx, create(&engine, inner, "part", &[n + 1; 300]).1);
                engine
                    .rename(&cx, inner, &name("part"), inner, &name(&format!("shard-{n}")), RenameMode::Replace)
                    .unwrap();
            }
            engine.sync_fast().unwrap();
            machine.slow.root().create(b"ckpt", 0o644).unwrap().write_at(&[9; 9], 0).unwrap();
            machine.power.fail_after(stop, &mut machine.rng);
            for _ in 0..40 {
                drop((engine.drain_step(), engine.publish_step()));
            }
            let stopped = machine.power.is_gone();
            machine.power.restore();
            machine.crash(engine, Lose::Nothing);
            let engine = machine.open("boot");
            let is_whole = |image: &Image| {
                let shard = |n: u8| {
                    let end = format!("/inner/shard-{n}").into_bytes();
                    let at: Vec<_> = image.paths().filter(|path| path.ends_with(&end)).collect();
                    at.len() == 1 && *image.get(at[0]).unwrap().shown.body().bytes == [n + 1; 300]
                };
                (0..SHARDS).all(shard)
            };
            let shown = walk::view(&engine, &mut Vec::new()).unwrap();
            assert!(is_whole(&shown), "{order:?}, call {stop}: shown {shown:?}");
            all_down(&engine);
            let slow = machine.slow.image();
            assert!(is_whole(&slow), "{order:?}, call {stop}: {slow:?}");
            assert_eq!(machine.on_slow("ckpt"), Some(vec![9; 9]), "{order:?}, call {stop}");
            if !stopped {
                break;
            }
        }
    }
}
