//! A slow tree that has parts: no rename and no hard link goes across their borders, as with another file system that is mounted inside of
//! it, a btrfs subvolume, or a directory with a project of its own.

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Kind, MetadataOrder, RenameMode};
use dlio_fs::tiers::{Cx, Ino, OpenMode, ROOT, Tiers};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::sim::Lose;
use crate::sim::image::Image;
use crate::stories::{Machine, WRITE, background, create, name};
use crate::walk;

/// The device of the tree's root, and another one.
const DEVICES: [u64; 2] = [1, 7];
const ORDERS: [MetadataOrder; 2] = [MetadataOrder::Journaled, MetadataOrder::Unknown];

/// A slow tree with `part/deep`, `part/inner/deeper` and `plain`: `part`, and `inner` in it, are parts.
fn machine(device: u64, order: MetadataOrder) -> Machine {
    let machine = Machine::with(order);
    let root = machine.slow.root();
    for (above, dir) in [("", "part"), ("part", "deep"), ("part", "inner"), ("part/inner", "deeper"), ("", "plain")] {
        let names = above.split('/').filter(|name| !name.is_empty());
        let at = names.fold(root.clone(), |at, name| at.dir(name.as_bytes()).unwrap());
        at.mkdir(dir.as_bytes(), 0o755).unwrap();
    }
    machine.slow.make_part(b"part", device);
    machine.slow.make_part(b"part/inner", if device == 1 { 1 } else { 9 });
    machine.slow.settle();
    machine
}

fn dir(engine: &Tiers, path: &str) -> Ino {
    let cx = Cx::internal();
    path.split('/')
        .filter(|name| !name.is_empty())
        .fold(ROOT, |at, one| engine.lookup(&cx, at, &name(one)).unwrap().ino)
}

fn put(engine: &Tiers, path: &str, bytes: &[u8]) {
    let (dirs, file) = path.rsplit_once('/').unwrap_or(("", path));
    let (cx, at) = (Cx::internal(), dir(engine, dirs));
    if engine.lookup(&cx, at, &name(file)).is_err() {
        return engine.release(&cx, create(engine, at, file, bytes).1);
    }
    let file = engine.open(&cx, dir(engine, path), OpenMode { truncate: true, ..WRITE }).unwrap();
    engine.write(&cx, &file, bytes, 0, false).unwrap();
    engine.release(&cx, file);
}

fn rename(engine: &Tiers, from: &str, to: &str) -> Result<(), Errno> {
    let split = |path: &str| {
        let (dirs, file) = path.rsplit_once('/').unwrap_or(("", path));
        (dir(engine, dirs), name(file))
    };
    let ((from, name), (to, to_name)) = (split(from), split(to));
    engine.rename(&Cx::internal(), from, &name, to, &to_name, RenameMode::Replace).map_err(|e| e.errno())
}

fn unlink(engine: &Tiers, path: &str) {
    let (dirs, file) = path.rsplit_once('/').unwrap_or(("", path));
    engine.unlink(&Cx::internal(), dir(engine, dirs), &name(file)).unwrap();
}

/// Goes on until an error comes, or all is there.
fn all_down(engine: &Tiers) -> Result<(), String> {
    for _ in 0..1000 {
        if engine.status().safety.events == 0 {
            return Ok(());
        }
        for done in [engine.seal_step(), engine.drain_step(), engine.publish_step()] {
            done.map_err(|e| e.to_string())?;
        }
    }
    Err(format!("{:?}", engine.status()))
}

fn looks(engine: &Tiers) -> Image {
    walk::view(engine, &mut Vec::new()).unwrap()
}

fn is_drained(machine: &Machine, engine: &Tiers) {
    all_down(engine).unwrap();
    let (shown, drained) = (looks(engine), machine.slow.image());
    assert!(drained == shown, "{}", drained.diff(&shown, "slow", "view"));
    assert_eq!((engine.status().safety.files, engine.status().exceptions.conflicts), (0, 0));
}

/// What a program does in all parts: new files, new versions, directories, links, removals, and files that move across.
fn first(engine: &Tiers) {
    for path in ["plain/a", "part/a", "part/deep/a", "part/inner/deeper/a", "plain/b", "part/b", "part/gone"] {
        put(engine, path, path.as_bytes());
    }
}

fn changes(engine: &Tiers) {
    let cx = Cx::internal();
    for path in ["part/a", "part/inner/deeper/a", "part/new", "plain/new"] {
        put(engine, path, &[path.as_bytes(), &[7; 5000]].concat());
    }
    let part = dir(engine, "part");
    engine.mkdir(&cx, part, &name("made"), 0o755, 0).unwrap();
    put(engine, "part/made/x", b"x");
    engine.symlink(&cx, part, &name("link"), b"made/x").unwrap();
    engine.mknod(&cx, dir(engine, "part/made"), &name("fifo"), Kind::Fifo, 0o640, 0, 0).unwrap();
    engine.link(&cx, dir(engine, "part/deep/a"), part, &name("second")).unwrap();
    unlink(engine, "part/gone");
    rename(engine, "part/deep/a", "part/deep/moved").unwrap();
}

fn across(engine: &Tiers) {
    // There already; never there; replacing one; and to and fro.
    rename(engine, "plain/b", "part/came").unwrap();
    put(engine, "plain/tmp", b"written aside");
    rename(engine, "plain/tmp", "part/a").unwrap();
    rename(engine, "part/b", "part/inner/b").unwrap();
    rename(engine, "part/inner/b", "plain/back").unwrap();
}

/// Publishing was held for ever by the first file in such a directory.
#[test]
fn what_is_made_in_a_part_gets_there() {
    for device in DEVICES {
        for order in ORDERS {
            let machine = machine(device, order);
            let engine = machine.open("boot");
            first(&engine);
            is_drained(&machine, &engine);
            changes(&engine);
            is_drained(&machine, &engine);
            across(&engine);
            is_drained(&machine, &engine);
            background(&engine, &machine.clock);
            drop(engine);
            let engine = machine.open("boot");
            is_drained(&machine, &engine);
            put(&engine, "part/inner/deeper/a", b"again");
            is_drained(&machine, &engine);
        }
    }
}

/// The same with all that is pending in one batch.
#[test]
fn a_batch_reaches_into_several_parts() {
    for device in DEVICES {
        let machine = machine(device, MetadataOrder::Journaled);
        let engine = machine.open("boot");
        first(&engine);
        is_drained(&machine, &engine);
        engine.set_options(machine.options.clone().with(|options| options.high = 0.0));
        changes(&engine);
        across(&engine);
        is_drained(&machine, &engine);
    }
}

/// As natively: whoever gets the answer copies.
#[test]
fn directories_and_files_of_several_names_do_not_go_across() {
    let machine = machine(7, MetadataOrder::Journaled);
    let (engine, cx) = (machine.open("boot"), Cx::internal());
    first(&engine);
    let plain = dir(&engine, "plain");
    engine.mkdir(&cx, plain, &name("dir"), 0o755, 0).unwrap();
    engine.symlink(&cx, plain, &name("link"), b"a").unwrap();
    engine.link(&cx, dir(&engine, "plain/a"), plain, &name("second")).unwrap();
    for path in ["plain/dir", "plain/link", "plain/a"] {
        assert_eq!(rename(&engine, path, "part/x"), Err(Errno::EXDEV), "{path}");
    }
    let linked = engine.link(&cx, dir(&engine, "plain/b"), dir(&engine, "part"), &name("x"));
    assert_eq!(linked.map(drop).map_err(|e| e.errno()), Err(Errno::EXDEV));
    let exchanged = engine.rename(&cx, plain, &name("b"), dir(&engine, "part"), &name("b"), RenameMode::Exchange);
    assert_eq!(exchanged.map_err(|e| e.errno()), Err(Errno::EXDEV));
    is_drained(&machine, &engine);
}

/// Our directory at the root of a part is hidden as that of the tree, and goes with it.
#[test]
fn the_root_of_a_part_is_removed_with_what_is_ours_in_it() {
    let machine = machine(1, MetadataOrder::Journaled);
    let (engine, cx) = (machine.open("boot"), Cx::internal());
    put(&engine, "part/inner/x", b"x");
    is_drained(&machine, &engine);
    let inner = dir(&engine, "part/inner");
    let there = machine.slow.root().dir(b"part").unwrap().dir(b"inner").unwrap();
    assert!(there.stat(b".dlio-fs").is_ok());
    let listed = engine.list(&cx, inner).unwrap();
    assert!(listed.entries.iter().all(|entry| entry.name != b".dlio-fs"));
    assert!(engine.lookup(&cx, inner, &name(".dlio-fs")).is_err());
    let made = engine.mkdir(&cx, inner, &name(".dlio-fs"), 0o755, 0);
    assert_eq!(made.map(drop).map_err(|e| e.errno()), Err(Errno::EPERM));
    drop((listed, there));
    unlink(&engine, "part/inner/x");
    engine.rmdir(&cx, inner, &name("deeper")).unwrap();
    engine.rmdir(&cx, dir(&engine, "part"), &name("inner")).unwrap();
    is_drained(&machine, &engine);
    assert!(machine.slow.root().dir(b"part").unwrap().stat(b"inner").is_err());
}

/// Something is mounted on it: it neither moves nor goes.
#[test]
fn a_mount_inside_of_the_slow_tree_stays() {
    let machine = machine(7, MetadataOrder::Journaled);
    let (engine, cx) = (machine.open("boot"), Cx::internal());
    let removed = engine.rmdir(&cx, dir(&engine, "part"), &name("inner"));
    assert_eq!(removed.map_err(|e| e.errno()), Err(Errno::EBUSY));
    assert_eq!(rename(&engine, "part", "other"), Err(Errno::EBUSY));
}

/// A directory above a part is renamed while a copy waits in the part.
#[test]
fn a_copy_is_found_where_its_part_has_moved() {
    for device in DEVICES {
        let machine = machine(device, MetadataOrder::Journaled);
        let (engine, cx) = (machine.open("boot"), Cx::internal());
        put(&engine, "part/inner/x", b"1");
        is_drained(&machine, &engine);
        let up = dir(&engine, "part");
        engine.mkdir(&cx, up, &name("up"), 0o755, 0).unwrap();
        is_drained(&machine, &engine);
        put(&engine, "plain/in front", b"1");
        rename(&engine, "part/deep", "part/away").unwrap();
        put(&engine, "part/inner/x", b"22");
        put(&engine, "part/away/y", b"22");
        is_drained(&machine, &engine);
    }
}

/// The machine stops at each call that is made until all is there; what comes after loses nothing, and goes on.
#[test]
fn a_stop_at_any_call_in_a_part() {
    for device in DEVICES {
        for (lose, order, pressed) in [
            (Lose::Nothing, MetadataOrder::Journaled, false),
            (Lose::Unsynced, MetadataOrder::Journaled, true),
            (Lose::Unsynced, MetadataOrder::Unknown, false),
        ] {
            let stopped = |stop: u64| {
                let mut machine = machine(device, order);
                machine.rng = Xoshiro256PlusPlus::seed_from_u64(stop);
                let engine = machine.open("before");
                first(&engine);
                is_drained(&machine, &engine);
                changes(&engine);
                across(&engine);
                engine.sync_fast().unwrap();
                if pressed {
                    engine.set_options(machine.options.clone().with(|options| options.high = 0.0));
                }
                let expected = looks(&engine);
                machine.power.fail_after(stop, &mut machine.rng);
                let _stopped = all_down(&engine);
                let stopped = machine.power.is_gone();
                machine.power.restore();
                machine.crash(engine, lose);
                let engine = machine.open(if lose == Lose::Nothing { "before" } else { "after" });
                let found = looks(&engine);
                assert!(found == expected, "stop {stop}: {}", found.diff(&expected, "found", "expected"));
                is_drained(&machine, &engine);
                stopped
            };
            (1..).find(|stop| !stopped(*stop));
        }
    }
}
