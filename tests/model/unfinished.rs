//! Versions that are not complete, because some process is still at work on the file (P5).

use std::time::Duration;

use dlio_fs::tiers::{Cx, MAPPING, OpenFile, ROOT, Tiers};

use crate::sim::Lose;
use crate::stories::{Machine, WRITE, background, name, read};

/// A process.
fn by(process: u32) -> Cx {
    let cx = Cx::internal();
    cx.by(process);
    cx
}

fn create(engine: &Tiers, process: u32, file: &str) -> OpenFile {
    engine.create(&by(process), ROOT, &name(file), 0o644, 0, WRITE).unwrap().1
}

fn open(engine: &Tiers, process: u32, file: &str, truncate: bool) -> OpenFile {
    let ino = engine.lookup(&by(process), ROOT, &name(file)).unwrap().ino;
    engine.open(&by(process), ino, dlio_fs::tiers::OpenMode { truncate, ..WRITE }).unwrap()
}

/// All that the background does by itself within a second.
fn a_moment(engine: &Tiers) {
    for _ in 0..20 {
        engine.seal_step().unwrap();
        engine.drain_step().unwrap();
        engine.publish_step().unwrap();
        engine.tick().unwrap();
    }
}

/// A worker that is forked while a checkpoint is half written closes its copies of all descriptors: the half was published,
/// also over the good version, where only the slow tier had that.
#[test]
fn the_close_of_a_forked_process_publishes_no_half() {
    for old in [false, true] {
        let machine = Machine::new();
        if old {
            machine.slow.root().create(b"file", 0o644).unwrap().write_at(&[9; 20_000], 0).unwrap();
        }
        let engine = machine.open("boot");
        let file = if old { open(&engine, 10, "file", true) } else { create(&engine, 10, "file") };
        let before = machine.on_slow("file");
        engine.flush(&by(11), &file).unwrap();
        a_moment(&engine);
        assert_eq!(machine.on_slow("file"), before, "nothing is written yet; old: {old}");
        engine.write(&by(10), &file, &[1; 5000], 0, false).unwrap();
        engine.flush(&by(11), &file).unwrap();
        a_moment(&engine);
        assert_eq!(machine.on_slow("file"), before, "half is written; old: {old}");
        engine.write(&by(10), &file, &[2; 5000], 5000, false).unwrap();
        engine.flush(&by(10), &file).unwrap();
        a_moment(&engine);
        assert_eq!(machine.on_slow("file"), Some([[1; 5000], [2; 5000]].concat()), "old: {old}");
        engine.release(&by(10), file);
    }
}

/// Two ranks write one file, each its half; one closes, the other computes. The half had its full size on the slow tier, and
/// the marker that the first rank wrote came after it.
#[test]
pub fn half_of_two_ranks_waits_for_the_other_and_so_does_the_marker() {
    for ends_by in ["close", "release", "fsync"] {
        let machine = Machine::new();
        let engine = machine.open("boot");
        let (first, second) = (create(&engine, 10, "model"), open(&engine, 20, "model", false));
        engine.write(&by(10), &first, &[1; 5000], 0, false).unwrap();
        engine.flush(&by(10), &first).unwrap();
        engine.release(&by(10), first);
        let marker = create(&engine, 10, "marker");
        engine.write(&by(10), &marker, &[3; 10], 0, false).unwrap();
        engine.flush(&by(10), &marker).unwrap();
        engine.release(&by(10), marker);
        a_moment(&engine);
        assert_eq!((machine.on_slow("model"), machine.on_slow("marker")), (None, None), "{ends_by}");
        assert!(!engine.status().safety.safe);

        engine.write(&by(20), &second, &[2; 5000], 5000, false).unwrap();
        a_moment(&engine);
        assert_eq!(machine.on_slow("model"), None, "{ends_by}");
        match ends_by {
            "close" => engine.flush(&by(20), &second).unwrap(),
            "fsync" => engine.fsync(&by(20), &second).unwrap(),
            _ => {}
        }
        let kept = if ends_by == "release" {
            engine.release(&by(20), second);
            None
        } else {
            Some(second)
        };
        a_moment(&engine);
        assert_eq!(machine.on_slow("model"), Some([[1; 5000], [2; 5000]].concat()), "{ends_by}");
        assert!(machine.on_slow("marker").is_some() && engine.status().safety.safe, "{ends_by}");
        assert_eq!(engine.status().exceptions.late_snapshots, 0);
        drop(kept);
    }
}

/// A version that stays incomplete holds up the others for `live_after` at most, and is counted.
#[test]
fn an_incomplete_version_is_published_after_live_after() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    let (first, second) = (create(&engine, 10, "model"), open(&engine, 20, "model", false));
    engine.write(&by(10), &first, &[1; 5000], 0, false).unwrap();
    engine.flush(&by(10), &first).unwrap();
    a_moment(&engine);
    assert_eq!(machine.on_slow("model"), None);
    background(&engine, &machine.clock);
    assert_eq!(machine.on_slow("model"), Some(vec![1; 5000]));
    assert!(engine.status().exceptions.late_snapshots > 0);
    engine.release(&by(10), first);
    engine.release(&by(20), second);
}

/// A file to which several processes append is whole at every moment, once a version of it was: what a child adds to the log
/// that its parent has open holds up nobody.
#[test]
fn what_processes_append_to_one_file_waits_for_none_of_them() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    let log = create(&engine, 10, "log");
    engine.write(&by(10), &log, &[1; 10], 0, false).unwrap();
    engine.fsync(&by(10), &log).unwrap();
    engine.write(&by(10), &log, &[1; 10], 10, false).unwrap();
    engine.write(&by(20), &log, &[2; 10], 20, false).unwrap();
    engine.flush(&by(20), &log).unwrap();
    a_moment(&engine);
    assert_eq!(machine.on_slow("log"), Some([[1; 10], [1; 10], [2; 10]].concat()));
    engine.release(&by(10), log);
}

/// Nobody knows when the last store through a mapping was made; a sync has seen them all.
#[test]
fn stores_through_a_mapping_are_complete_with_a_sync_or_the_release() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    let file = create(&engine, 10, "mapped");
    let other = open(&engine, 20, "mapped", false);
    engine.flush(&by(20), &other).unwrap();
    engine.write(&by(MAPPING), &file, &[1; 5000], 0, false).unwrap();
    engine.flush(&by(10), &file).unwrap();
    a_moment(&engine);
    assert_eq!(machine.on_slow("mapped"), None);
    engine.fsync(&by(10), &file).unwrap();
    a_moment(&engine);
    assert_eq!(machine.on_slow("mapped"), Some(vec![1; 5000]));
    engine.write(&by(MAPPING), &file, &[2; 5000], 0, false).unwrap();
    engine.release(&by(10), file);
    engine.release(&by(20), other);
    a_moment(&engine);
    assert_eq!(machine.on_slow("mapped"), Some(vec![2; 5000]));
}

/// A daemon that is killed, or a machine that loses power, while one of two ranks has closed: the half is shown (P3, P4), and
/// not published before somebody accepts it.
#[test]
fn an_incomplete_version_outlives_a_kill_and_a_power_cut_unpublished() {
    for (lose, boot) in [(Lose::Nothing, "before"), (Lose::Unsynced, "after")] {
        let mut machine = Machine::new();
        let engine = machine.open("before");
        let (first, second) = (create(&engine, 10, "model"), open(&engine, 20, "model", false));
        engine.write(&by(10), &first, &[1; 5000], 0, false).unwrap();
        engine.fsync(&by(10), &first).unwrap();
        drop((first, second));
        machine.crash(engine, lose);
        let engine = machine.open(boot);
        assert_eq!(read(&engine, "model"), vec![1; 5000], "{boot}");
        a_moment(&engine);
        machine.clock.advance(Duration::from_secs(600));
        a_moment(&engine);
        assert_eq!(machine.on_slow("model"), None, "{boot}");
        assert!(!engine.status().safety.safe);
        let again = open(&engine, 30, "model", true);
        engine.write(&by(30), &again, &[4; 5000], 0, false).unwrap();
        engine.flush(&by(30), &again).unwrap();
        engine.release(&by(30), again);
        a_moment(&engine);
        assert_eq!(machine.on_slow("model"), Some(vec![4; 5000]), "{boot}");
    }
}
