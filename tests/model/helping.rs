//! One large version that several streams copy.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dlio_fs::config::{Config, DrainStreams, Rules, Verify};
use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Access, Dir};
use dlio_fs::tiers::{Cx, Ino, OpenFile, Progress, ROOT, SetAttr, Tiers, Verified};

use crate::sim::Op;
use crate::stories::{Machine, WRITE, drain, name};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 120 * MIB + 5;

/// Data, holes, and a hole at the end.
fn large(engine: &Tiers, size: u64) -> (Ino, OpenFile, Vec<u8>) {
    let cx = Cx::internal();
    let (attr, file) = engine.create(&cx, ROOT, &name("model"), 0o644, 0, WRITE).unwrap();
    engine.setattr(&cx, attr.ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    let mut bytes = vec![0; size as usize];
    for (at, len) in [(0, 9 * MIB + 7), (30 * MIB + 4096, 40 * MIB), (80 * MIB, 4096), (90 * MIB, 20 * MIB)] {
        let run = &mut bytes[at as usize..(at + len) as usize];
        run.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 3 + i / 4096) as u8 | 1);
        engine.write(&cx, &file, run, at, false).unwrap();
    }
    engine.flush(&cx, &file).unwrap();
    engine.sync_fast().unwrap();
    (attr.ino, file, bytes)
}

/// The streams of an engine behind the first: before each call of that one to the slow tier they come, and do one step.
#[derive(Default)]
struct Helpers {
    engine: OnceLock<Weak<Tiers>>,
    are_at_it: AtomicBool,
    stay_away: AtomicBool,
    /// Steps in which they copied.
    steps: AtomicU32,
}

impl Helpers {
    fn of(machine: &Machine, engine: Tiers) -> (Arc<Tiers>, Arc<Helpers>) {
        let (engine, helpers) = (Arc::new(engine), Arc::new(Helpers::default()));
        helpers.engine.set(Arc::downgrade(&engine)).unwrap();
        let come = helpers.clone();
        machine.slow.before_calls(move || come.come());
        (engine, helpers)
    }

    fn come(&self) {
        let Some(engine) = self.engine.get().and_then(Weak::upgrade) else { return };
        // While locks are held it is no copy that goes on.
        if self.stay_away.load(Ordering::Relaxed)
            || !dlio_fs::tiers::disk::sync::held().is_empty()
            || self.are_at_it.swap(true, Ordering::Relaxed)
        {
            return;
        }
        for stream in 1..4 {
            if matches!(engine.drain_stream_step(stream), Ok(Progress::Did)) {
                self.steps.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.are_at_it.store(false, Ordering::Relaxed);
    }

    fn steps(&self) -> u32 {
        self.steps.load(Ordering::Relaxed)
    }
}

fn with_streams(count: u32) -> Machine {
    let mut machine = Machine::new();
    machine.options.drain_streams = DrainStreams::Exactly(count);
    machine
}

/// Copies in `tmp`, those in lanes too.
fn copies(machine: &Machine) -> usize {
    fn below(dir: &dyn Dir) -> usize {
        let found = dir.list().unwrap().into_iter().map(|entry| match dir.dir(&entry.name) {
            Ok(inner) => below(&*inner),
            Err(_) => usize::from(entry.name.starts_with(b"c")),
        });
        found.sum()
    }
    below(&*machine.slow.root().dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap())
}

/// The slow file has these bytes, and its hash is the one that was recorded.
fn check(machine: &Machine, engine: &Tiers, ino: Ino, bytes: &[u8]) {
    drain(engine);
    let file = machine.slow.root().open(b"model", Access::Read).unwrap();
    let stat = file.stat().unwrap();
    let mut found = vec![0; stat.size as usize];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), found.len());
    assert!(found == bytes, "the slow tier has other bytes");
    assert!(stat.blocks * 512 < 72 * MIB, "holes are copied as holes: {} blocks", stat.blocks);
    let mut verifying = engine.begin_verify(&Cx::internal(), ino).unwrap().unwrap();
    let mut turns = (0..1000).map(|_| engine.verify_some(&Cx::internal(), &mut verifying).unwrap());
    assert_eq!(turns.find(|turn| *turn != Verified::More), Some(Verified::Same));
}

#[test]
fn idle_streams_copy_parts_of_a_large_version() {
    for verify in [Verify::Length, Verify::Bytes] {
        let mut machine = with_streams(4);
        machine.options.rules = Rules::new(&Config { verify, ..Config::default() }).unwrap();
        let (engine, helpers) = Helpers::of(&machine, machine.open("boot"));
        let (ino, file, bytes) = large(&engine, SIZE);
        engine.release(&Cx::internal(), file);
        check(&machine, &engine, ino, &bytes);
        assert!(helpers.steps() >= 2, "{} steps", helpers.steps());
        assert_eq!(engine.status().pipeline.drained_bytes, SIZE);
    }
}

#[test]
fn no_more_streams_copy_a_large_version_than_are_allowed() {
    let machine = with_streams(1);
    let (engine, helpers) = Helpers::of(&machine, machine.open("boot"));
    let (ino, file, bytes) = large(&engine, SIZE);
    engine.release(&Cx::internal(), file);
    check(&machine, &engine, ino, &bytes);
    assert_eq!(helpers.steps(), 0);
}

/// As threads, which meet wherever the system lets them.
#[test]
fn streams_that_are_threads_copy_one_version() {
    let machine = with_streams(4);
    let engine = machine.open("boot");
    let (ino, file, bytes) = large(&engine, SIZE);
    engine.release(&Cx::internal(), file);
    std::thread::scope(|scope| {
        for stream in 0..4 {
            let engine = &engine;
            scope.spawn(move || {
                while engine.status().pipeline.drained_files == 0 {
                    engine.drain_stream_step(stream).unwrap();
                    std::thread::yield_now();
                }
            });
        }
    });
    assert_eq!(copies(&machine), 1);
    check(&machine, &engine, ino, &bytes);
}

#[test]
fn a_write_while_several_streams_copy_discards_the_copy() {
    let (machine, cx) = (with_streams(4), Cx::internal());
    let (engine, helpers) = Helpers::of(&machine, machine.open("boot"));
    let (ino, file, mut bytes) = large(&engine, SIZE);
    let file = Arc::new(file);
    let (writer, written, come) = (Arc::downgrade(&engine), Arc::new(AtomicBool::new(false)), helpers.clone());
    let (to, is_written) = (file.clone(), written.clone());
    machine.slow.before_calls(move || {
        come.come();
        if come.steps() > 0 && !is_written.swap(true, Ordering::Relaxed) {
            writer.upgrade().unwrap().write(&Cx::internal(), &to, &[77; 5000], 35 * MIB, false).unwrap();
        }
    });
    engine.drain_step().unwrap();
    assert!(written.load(Ordering::Relaxed));
    assert_eq!((copies(&machine), engine.status().pipeline.drained_files), (0, 0));
    machine.slow.before_calls(|| ());
    bytes[35 * MIB as usize..][..5000].fill(77);
    engine.flush(&cx, &file).unwrap();
    engine.release(&cx, Arc::into_inner(file).unwrap());
    check(&machine, &engine, ino, &bytes);
}

#[test]
fn a_stream_that_fails_discards_the_copy_and_one_makes_it_again() {
    for (errno, call, by_helper) in [
        (Errno::EIO, "write_at", true),
        (Errno::ENOSPC, "write_at", true),
        (Errno::EFBIG, "write_at", false),
        (Errno::EIO, "sync", false),
    ] {
        let machine = with_streams(4);
        let (engine, helpers) = Helpers::of(&machine, machine.open("boot"));
        let (ino, file, bytes) = large(&engine, SIZE);
        engine.release(&Cx::internal(), file);
        let (watched, seen) = (helpers.clone(), Arc::new(AtomicU64::new(0)));
        let calls = seen.clone();
        machine.slow.inject(move |op: &Op| {
            let is_meant = op.call == call
                && op.path.windows(2).any(|at| at == b"/c")
                && watched.steps() > 0
                && watched.are_at_it.load(Ordering::Relaxed) == by_helper;
            let fails = is_meant && calls.fetch_add(1, Ordering::Relaxed) == 0;
            // Otherwise one of them would be the first to make it again.
            watched.stay_away.fetch_or(fails, Ordering::Relaxed);
            fails.then_some(errno)
        });
        let failed = engine.drain_step().map_err(|error| error.errno());
        assert_eq!(failed, Err(errno), "{errno:?} at {call}, {} steps", helpers.steps());
        // A sync that has failed says nothing the second time: it is not made.
        assert_eq!(seen.load(Ordering::Relaxed), 1, "{errno:?} at {call}");
        assert_eq!((copies(&machine), engine.status().pipeline.drained_files), (0, 0));
        let steps = helpers.steps();
        helpers.stay_away.store(false, Ordering::Relaxed);
        engine.drain_step().unwrap();
        assert_eq!((copies(&machine), helpers.steps()), (1, steps), "{errno:?} at {call}: made again, by one");
        check(&machine, &engine, ino, &bytes);
    }
}

/// What the helpers copy takes no time here, so two streams are much faster than one.
#[test]
fn a_single_large_file_shows_that_streams_are_rewarded() {
    let mut machine = Machine::new();
    machine.options.drain_streams = DrainStreams::Auto;
    let (engine, helpers) = Helpers::of(&machine, machine.open("boot"));
    let (come, clock) = (helpers.clone(), machine.clock.clone());
    machine.slow.before_calls(move || {
        if !come.are_at_it.load(Ordering::Relaxed) {
            clock.advance(Duration::from_millis(20));
        }
        come.come();
    });
    let cx = Cx::internal();
    let (_, file) = engine.create(&cx, ROOT, &name("model"), 0o644, 0, WRITE).unwrap();
    let piece = vec![5; 16 << 20];
    (0..18).for_each(|i| engine.write(&cx, &file, &piece, i * (16 << 20), false).unwrap());
    engine.flush(&cx, &file).unwrap();
    engine.sync_fast().unwrap();
    assert_eq!(engine.drain_streams(), 1);
    engine.drain_step().unwrap();
    assert!(helpers.steps() > 0);
    assert!(engine.drain_streams() >= 2, "{}", engine.drain_streams());
    engine.release(&cx, file);
}
