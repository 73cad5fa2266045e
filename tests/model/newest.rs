//! `drain_policy = "newest"`: what is superseded before its copy begins is skipped, and the slow tree goes from one state to a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlio_fs::config::{Config, DrainPolicy, PathRule, Rules};
use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{MetadataOrder, RenameMode};
use dlio_fs::tiers::{Cx, Progress, ROOT, Tiers};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::sim::Lose;
use crate::sim::image::Image;
use crate::steps::{clean_up, refuse};
use crate::stories::{Machine, WRITE, background, create, name};
use crate::walk::view;

const SIZE: usize = 20_000;
/// Checkpoints that a program writes while the tier takes one.
const PACE: usize = 5;

fn machine(global: DrainPolicy, rules: &[(&str, DrainPolicy)]) -> Machine {
    machine_on(MetadataOrder::Journaled, global, rules)
}

fn machine_on(order: MetadataOrder, drain_policy: DrainPolicy, rules: &[(&str, DrainPolicy)]) -> Machine {
    let mut machine = Machine::with(order);
    let rule = |(path, policy): &(&str, DrainPolicy)| PathRule {
        path: (*path).to_owned(),
        drain_policy: Some(*policy),
        ..PathRule::default()
    };
    let rules = rules.iter().map(rule).collect();
    let config = Config { drain_policy, rules, ..Config::default() };
    machine.options.rules = Rules::new(&config).unwrap();
    machine
}

/// A checkpoint of one file, whose bytes say which one it is.
fn write(engine: &Tiers, file: &str, number: usize) {
    let (ino, file) = create(engine, ROOT, file, &[number as u8; SIZE]);
    engine.release(&Cx::internal(), file);
    engine.forget(ino, 1);
}

/// Writes beside the last checkpoint, and renames over it.
fn renames_over_the_last(engine: &Tiers, number: usize) {
    write(engine, "ckpt.tmp", number);
    engine.rename(&Cx::internal(), ROOT, &name("ckpt.tmp"), ROOT, &name("last.ckpt"), RenameMode::Replace).unwrap();
}

/// Writes under new names, and removes the oldest but two.
fn keeps_the_last_three(engine: &Tiers, number: usize) {
    write(engine, &format!("ckpt-{number}"), number);
    if number > 3 {
        engine.unlink(&Cx::internal(), ROOT, &name(&format!("ckpt-{}", number - 3))).unwrap();
    }
}

/// Opens the same file again and writes all of it anew.
fn truncates(engine: &Tiers, number: usize) {
    let cx = Cx::internal();
    let Ok(found) = engine.lookup(&cx, ROOT, &name("model")) else { return write(engine, "model", number) };
    let file = engine.open(&cx, found.ino, dlio_fs::tiers::OpenMode { truncate: true, ..WRITE }).unwrap();
    engine.write(&cx, &file, &[number as u8; SIZE], 0, false).unwrap();
    engine.flush(&cx, &file).unwrap();
    engine.release(&cx, file);
}

type Program = fn(&Tiers, usize);
const PROGRAMS: [Program; 3] = [renames_over_the_last, keeps_the_last_three, truncates];

/// A slow tier that takes one version while the program writes several.
fn run(machine: &Machine, engine: &Tiers, program: Program) {
    for number in 1..=60 {
        program(engine, number);
        engine.sync_fast().unwrap();
        if number % PACE == 0 {
            engine.drain_step().unwrap();
            while engine.publish_step().unwrap() == Progress::Did {}
        }
    }
    background(engine, &machine.clock);
}

/// A program's bytes on the slow tier with a policy, those that were skipped, and the tree in the end.
fn outcome(policy: DrainPolicy, program: Program) -> (u64, u64, BTreeMap<Vec<u8>, Vec<u8>>) {
    let machine = machine(policy, &[]);
    let engine = machine.open("boot");
    run(&machine, &engine, program);
    let status = engine.status();
    assert_eq!((status.safety.files, status.safety.events, status.exceptions.conflicts), (0, 0, 0));
    let shown = view(&engine, &mut Vec::new()).unwrap();
    assert_eq!(machine.slow.image(), shown, "the slow tree is not the view");
    assert!(status.cache.objects <= 3, "{} objects are kept", status.cache.objects);
    (status.pipeline.drained_bytes, status.exceptions.skipped_bytes, bytes_of(&shown))
}

fn bytes_of(image: &Image) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let bytes = |path: &Vec<u8>| (path.clone(), image.get(path).unwrap().shown.body().bytes.to_vec());
    image.paths().map(bytes).collect()
}

/// On a tier that exchanges nothing (NFS, most FUSE file systems) a batch that makes a directory in the place of a file was refused for
/// ever: no rename replaces the one by the other. It held everybody, and could not be set aside.
#[test]
fn a_directory_takes_the_name_of_a_file_where_nothing_is_exchanged() {
    let machine = machine(DrainPolicy::Newest, &[]);
    machine.slow.become_nfs();
    let (engine, cx) = (machine.open("boot"), Cx::internal());
    write(&engine, "a", 1);
    background(&engine, &machine.clock);
    // The first of two versions is skipped, and all in between is one batch.
    truncates(&engine, 1);
    engine.unlink(&cx, ROOT, &name("a")).unwrap();
    engine.mkdir(&cx, ROOT, &name("a"), 0o755, 0).unwrap();
    truncates(&engine, 2);
    background(&engine, &machine.clock);
    let status = engine.status();
    assert_eq!((status.safety.events, status.exceptions.conflicts), (0, 0));
    assert_eq!(machine.slow.image(), view(&engine, &mut Vec::new()).unwrap(), "the slow tree is not the view");
}

/// The same, and somebody else removes our file and makes one of his between two of our calls: his was removed for ours.
#[test]
fn a_directory_takes_the_name_of_no_file_of_somebody_else() {
    let made_at = |at: u64| {
        let machine = machine(DrainPolicy::Newest, &[]);
        machine.slow.become_nfs();
        let (engine, cx) = (machine.open("boot"), Cx::internal());
        write(&engine, "a", 1);
        background(&engine, &machine.clock);
        truncates(&engine, 1);
        engine.unlink(&cx, ROOT, &name("a")).unwrap();
        engine.mkdir(&cx, ROOT, &name("a"), 0o755, 0).unwrap();
        truncates(&engine, 2);
        let (calls, made) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counting, is_made, root) = (calls.clone(), made.clone(), machine.slow.root());
        machine.slow.before_calls(move || match counting.fetch_add(1, Ordering::Relaxed) {
            // What he does is a call, too.
            call if call == at => drop(root.unlink(b"a")),
            call if call == at + 2 => {
                let file = root.create(b"a", 0o644);
                is_made.store(file.and_then(|file| file.write_at(b"theirs", 0)).is_ok(), Ordering::Relaxed);
            }
            _ => {}
        });
        for _ in 0..20 {
            // Where he comes at the last moment it is refused, and tried again.
            drop((engine.seal_step(), engine.drain_step(), engine.publish_step()));
            machine.clock.advance(Duration::from_secs(10));
        }
        machine.slow.before_calls(|| {});
        let made = made.load(Ordering::Relaxed);
        assert!(!made || machine.on_slow("a").as_deref() == Some(&b"theirs"[..]), "before call {at}");
        (made, calls.load(Ordering::Relaxed) > at)
    };
    let all: Vec<(bool, bool)> = (0..).map(made_at).take_while(|(_, reached)| *reached).collect();
    assert!(all.iter().filter(|(made, _)| *made).count() > 3, "{all:?}");
}

/// A slow tier that is behind copied each checkpoint, though most of them were replaced or removed by then.
#[test]
fn a_tier_that_is_behind_is_not_given_superseded_checkpoints() {
    for program in PROGRAMS {
        let (all, none, tree) = outcome(DrainPolicy::All, program);
        let (newest, skipped, same) = outcome(DrainPolicy::Newest, program);
        assert_eq!(none, 0, "the default skips nothing");
        assert_eq!(tree, same);
        assert_eq!(newest + skipped, 60 * SIZE as u64, "a version is copied, or counted");
        // A step of the drain copies several files as small as these: all three that are kept.
        assert!(newest * 3 < all * 2, "{newest} of {all} bytes");
    }
}

/// The last name that the slow tier knows is never gone, never torn, and never goes back.
#[test]
fn the_name_that_is_replaced_is_there_all_the_while() {
    let machine = machine(DrainPolicy::Newest, &[]);
    let engine = machine.open("boot");
    machine.slow.observe();
    run(&machine, &engine, renames_over_the_last);
    let mut last = 0;
    let mut seen = BTreeSet::new();
    for image in machine.slow.take_observed() {
        let bytes = image.get(b"last.ckpt").map(|entry| entry.shown.body().bytes.to_vec());
        assert!(image.get(b"ckpt.tmp").is_none(), "never under this name only");
        let Some(bytes) = bytes else {
            assert_eq!(last, 0, "gone");
            continue;
        };
        assert!(bytes.len() == SIZE && bytes.iter().all(|byte| *byte == bytes[0]), "torn");
        assert!(bytes[0] >= last, "{} after {last}", bytes[0]);
        last = bytes[0];
        seen.insert(last);
    }
    // Not only in the end: who writes faster than the tier takes it has checkpoints there all the same.
    assert!(last == 60 && seen.len() > 8, "{seen:?}");
    assert_eq!(engine.status().exceptions.batches, 0, "each batch takes one step, and is a prefix");
}

/// A tier that keeps up gets every version: its copy begins before the next one is there.
#[test]
fn a_tier_that_keeps_up_gets_all() {
    let machine = machine(DrainPolicy::Newest, &[]);
    let engine = machine.open("boot");
    for number in 1..=10 {
        keeps_the_last_three(&engine, number);
        background(&engine, &machine.clock);
    }
    assert_eq!(engine.status().exceptions.skipped, 0);
    assert_eq!(engine.status().pipeline.drained_bytes, 10 * SIZE as u64);
}

/// The name that a file was last given decides, not the one under which it was written; a start goes by it, too.
#[test]
fn a_rule_decides_by_the_name_that_a_file_was_last_given() {
    let rules = [("ckpt.tmp", DrainPolicy::All), ("last.ckpt", DrainPolicy::Newest)];
    for (remounts, rules, expected) in [
        (false, &rules[..], 7),
        (true, &rules[..], 7),
        (false, &[("ckpt.tmp", DrainPolicy::Newest)][..], 0),
        (true, &[("ckpt.tmp", DrainPolicy::Newest)][..], 0),
    ] {
        let machine = machine(DrainPolicy::All, rules);
        let mut engine = machine.open("boot");
        (1..=8).for_each(|number| renames_over_the_last(&engine, number));
        engine.sync_fast().unwrap();
        if remounts {
            drop(engine);
            engine = machine.open("boot");
        }
        background(&engine, &machine.clock);
        assert_eq!(engine.status().exceptions.skipped, expected, "remounted: {remounts}");
        assert_eq!(machine.on_slow("last.ckpt").unwrap(), [8; SIZE]);
    }
}

/// Who waits for a version that is skipped waits for the batch that skips it: by then the slow tree is past it. What comes behind a
/// batch whose copies have begun does not join it, so nobody waits for ever.
#[test]
fn who_waits_for_what_is_skipped_is_answered() {
    let machine = machine(DrainPolicy::Newest, &[]);
    let engine = machine.open("boot");
    (1..=4).for_each(|number| renames_over_the_last(&engine, number));
    engine.sync_fast().unwrap();
    let waits_for = engine.last_lsn();
    engine.count_waiter(true);
    let answered = (5..=30).find(|number| {
        // A checkpoint comes with each that the tier takes.
        renames_over_the_last(&engine, *number);
        engine.sync_fast().unwrap();
        engine.drain_step().unwrap();
        while engine.publish_step().unwrap() == Progress::Did {}
        engine.applied_lsn() >= waits_for
    });
    assert_eq!(answered, Some(5), "at the first batch");
    assert_eq!(machine.on_slow("last.ckpt").unwrap()[0], 5);
    engine.count_waiter(false);
}

/// A copy that has begun is published, however many checkpoints come meanwhile.
#[test]
fn what_comes_behind_a_batch_that_is_being_copied_does_not_join_it() {
    let machine = machine(DrainPolicy::Newest, &[]);
    let engine = machine.open("boot");
    (1..=10).for_each(|number| keeps_the_last_three(&engine, number));
    engine.sync_fast().unwrap();
    engine.drain_step().unwrap();
    (11..=40).for_each(|number| keeps_the_last_three(&engine, number));
    engine.sync_fast().unwrap();
    for _ in 0..2 {
        engine.drain_step().unwrap();
    }
    assert_eq!(engine.publish_step().unwrap(), Progress::Did);
    for number in 1..=40 {
        assert_eq!(machine.on_slow(&format!("ckpt-{number}")).is_some(), (8..=10).contains(&number), "{number}");
    }
    background(&engine, &machine.clock);
    assert_eq!(machine.slow.image(), view(&engine, &mut Vec::new()).unwrap());
}

/// A stop at any call, while batches skip versions: what was synced is shown, and arrives.
#[test]
fn a_stop_at_any_call_of_such_a_batch_loses_nothing() {
    for (at, program) in PROGRAMS.into_iter().enumerate() {
        for lose in [Lose::Nothing, Lose::Unsynced] {
            for order in [MetadataOrder::Journaled, MetadataOrder::Unknown] {
                let ends = (1..).find(|stop| !stopped_at(*stop, order, lose, program));
                assert!(ends.unwrap() > 20, "program {at}: it has no calls");
            }
        }
    }
}

/// `false`: it came to its end.
fn stopped_at(stop: u64, order: MetadataOrder, lose: Lose, program: Program) -> bool {
    let mut machine = machine_on(order, DrainPolicy::Newest, &[]);
    machine.rng = Xoshiro256PlusPlus::seed_from_u64(stop);
    let engine = machine.open("before");
    program(&engine, 1);
    background(&engine, &machine.clock);
    let before = machine.slow.image();
    (2..=6).for_each(|number| program(&engine, number));
    engine.sync_fast().unwrap();
    let expected = view(&engine, &mut Vec::new()).unwrap();
    machine.slow.observe();
    machine.power.fail_after(stop, &mut machine.rng);
    for _ in 0..4 {
        drop(engine.drain_step());
        while engine.publish_step().is_ok_and(|done| done == Progress::Did) {}
    }
    let stopped = machine.power.is_gone();
    machine.power.restore();
    let shown = machine.slow.take_observed();
    machine.crash(engine, lose);
    check_whole(shown.iter().chain([&before, &machine.slow.image()]));
    let engine = machine.open(if lose == Lose::Nothing { "before" } else { "after" });
    assert_eq!(view(&engine, &mut Vec::new()).unwrap(), expected, "call {stop}");
    background(&engine, &machine.clock);
    assert_eq!(machine.slow.image(), expected, "call {stop}");
    assert_eq!(engine.status().exceptions.conflicts, 0, "call {stop}");
    stopped
}

/// No file is torn, and some file is there.
fn check_whole<'a>(images: impl Iterator<Item = &'a Image>) {
    for image in images {
        let mut files = 0;
        for path in image.paths() {
            let body = image.get(path).map(|entry| entry.shown.body()).unwrap();
            if path.starts_with(b".") || body.bytes.is_empty() {
                continue;
            }
            files += 1;
            let whole = body.bytes.len() == SIZE && body.bytes.iter().all(|byte| *byte == body.bytes[0]);
            assert!(whole, "torn: {}", String::from_utf8_lossy(path));
        }
        assert!(files > 0, "none is there: {image:?}");
    }
}

/// A batch is half done when somebody takes the copy of its next version out of `tmp`, and the program removes that file
/// before it is copied again: the drain took it for superseded, and everything waited for ever.
#[test]
fn a_half_done_batch_gets_the_copy_that_it_lacks_whatever_has_become_of_the_file() {
    for reopen in [false, true] {
        let machine = machine(DrainPolicy::Newest, &[]);
        let engine = machine.open("boot");
        (1..=4).for_each(|number| write(&engine, &format!("ckpt-{number}"), number));
        let remove = |engine: &Tiers, number: usize| {
            engine.unlink(&Cx::internal(), ROOT, &name(&format!("ckpt-{number}"))).unwrap();
        };
        remove(&engine, 1);
        engine.sync_fast().unwrap();
        while engine.drain_step().unwrap() == Progress::Did {}
        let refused = refuse(&machine.slow, "rename", Errno::EIO, 1);
        assert!(engine.publish_step().is_err() && refused.load(Ordering::Relaxed) > 0);
        machine.slow.inject(|_| None);
        clean_up(&machine, false);
        assert_eq!(engine.publish_step().unwrap(), Progress::Idle, "it waits for the copy");
        (2..=4).for_each(|number| remove(&engine, number));
        write(&engine, "last", 5);
        engine.sync_fast().unwrap();
        let engine = if reopen {
            drop(engine);
            machine.open("boot")
        } else {
            engine
        };
        background(&engine, &machine.clock);
        assert_eq!(engine.status().safety.events, 0, "reopened: {reopen}");
        assert_eq!(machine.slow.image(), view(&engine, &mut Vec::new()).unwrap());
    }
}
