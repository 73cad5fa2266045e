//! What the slow tier refuses for good is set aside at an operator's word (P15), told on simulated disks.

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Access, Kind, MetadataOrder, NewAttr, RenameMode};
use dlio_fs::tiers::{Cx, Ino, OpenMode, Progress, ROOT, Saving, SetAside, SetAttr, Tiers};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::sim::image::Image;
use crate::sim::{Lose, SimDisk};
use crate::stories::{Machine, WRITE, create, name, read};
use crate::walk;

/// What a program does.
type Act = fn(&Tiers);

fn put(engine: &Tiers, file: &str, bytes: &[u8]) {
    put_in(engine, ROOT, file, bytes);
}

fn put_in(engine: &Tiers, dir: Ino, file: &str, bytes: &[u8]) {
    engine.release(&Cx::internal(), create(engine, dir, file, bytes).1);
}

fn find(engine: &Tiers, path: &str) -> Option<Ino> {
    let step = |at: Ino, part: &str| Some(engine.lookup(&Cx::internal(), at, &name(part)).ok()?.ino);
    path.split('/').try_fold(ROOT, step)
}

fn overwrite(engine: &Tiers, path: &str, bytes: &[u8]) {
    let cx = Cx::internal();
    let file = engine.open(&cx, find(engine, path).unwrap(), OpenMode { truncate: true, ..WRITE }).unwrap();
    engine.write(&cx, &file, bytes, 0, false).unwrap();
    engine.release(&cx, file);
}

fn rename(engine: &Tiers, from: &str, to: &str) {
    engine.rename(&Cx::internal(), ROOT, &name(from), ROOT, &name(to), RenameMode::Replace).unwrap();
}

fn aside(engine: &Tiers, path: &str) -> SetAside {
    engine.set_aside(&Cx::internal(), path.as_bytes(), true, &Saving::default()).unwrap()
}

/// All that the background does, as long as it gets on. Returns what it is held by.
fn work(engine: &Tiers) -> Option<Errno> {
    for _ in 0..1000 {
        let did = [engine.seal_step(), engine.drain_step(), engine.publish_step()];
        let held = did.iter().find_map(|did| did.as_ref().err()).map(|error| error.errno());
        if !did.iter().any(|did| matches!(did, Ok(Progress::Did))) {
            return held;
        }
    }
    panic!("no rest: {:?}", engine.queue(10));
}

/// Everything but what is aside gets to the slow tier.
fn rests(engine: &Tiers) {
    engine.sync_fast().unwrap();
    assert_eq!(work(engine), None, "{:?}", engine.queue(10));
    engine.tick().unwrap();
    assert_eq!(engine.status().safety.events, 0, "{:?}", engine.queue(10));
    engine.check();
}

/// Nothing gets the name on the slow tier, or leaves it.
fn refuse(disk: &SimDisk, name: &'static str, errno: Errno) {
    let changes = ["rename", "unlink", "rmdir", "link", "set_attr", "set_xattr"];
    disk.inject(move |op| {
        let is_it = op.path == name.as_bytes() || op.path.ends_with(format!("/{name}").as_bytes());
        let saves = op.private && op.call != "rename";
        (changes.contains(&op.call) && !saves && (is_it || op.to == name.as_bytes())).then_some(errno)
    });
}

fn allow(disk: &SimDisk) {
    disk.inject(|_| None);
}

fn view(engine: &Tiers) -> Image {
    walk::view(engine, &mut Vec::new()).unwrap()
}

/// The bytes of the file in `saved/` under this path.
fn saved(machine: &Machine, place: &str, path: &str) -> Vec<u8> {
    let mut dir = machine.slow.root();
    let whole = format!("{place}/{path}");
    let (dirs, file) = whole.rsplit_once('/').unwrap();
    for part in dirs.split('/') {
        dir = dir.dir(part.as_bytes()).unwrap();
    }
    let file = dir.open(file.as_bytes(), Access::Read).unwrap();
    let mut bytes = vec![0; 30_000];
    let size = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(size);
    bytes
}

/// P15. One file whose place is refused held all others.
#[test]
pub fn a_file_that_is_refused_is_set_aside_and_all_others_go_on() {
    for errno in [Errno::EPERM, Errno::ENAMETOOLONG, Errno::EACCES] {
        let machine = Machine::new();
        let engine = machine.open("boot");
        refuse(&machine.slow, "bad", errno);
        for (file, byte) in [("before", 1), ("bad", 2), ("behind", 3)] {
            put(&engine, file, &[byte; 300]);
        }
        engine.sync_fast().unwrap();
        assert_eq!(work(&engine), Some(errno));
        assert_eq!(machine.on_slow("behind"), None);
        let would = engine.would_set_aside(&Cx::internal(), b"bad").unwrap();
        let done = aside(&engine, "bad");
        assert_eq!((&done.kept[..], done.events, done.bytes), (&["bad".to_owned()][..], 1, 300));
        assert_eq!(SetAside { saved: None, ..done.clone() }, would);
        assert_eq!(saved(&machine, &done.saved.unwrap(), "bad"), [2; 300]);
        rests(&engine);
        assert_eq!((machine.on_slow("behind"), machine.on_slow("bad")), (Some(vec![3; 300]), None));
        assert_eq!(read(&engine, "bad"), [2; 300]);
        let status = engine.status();
        assert_eq!(
            (status.exceptions.aside, status.exceptions.aside_bytes, status.safety.files, status.safety.held),
            (1, 300, 0, None)
        );
    }
}

/// The next version of such a file is in the order again, and so is it under another name.
#[test]
pub fn what_is_set_aside_becomes_an_event_again_by_its_next_change() {
    let changes: [(&str, Act); 3] = [
        ("written", |engine| overwrite(engine, "bad", &[4; 500])),
        ("renamed", |engine| rename(engine, "bad", "good")),
        ("linked", |engine| {
            engine.link(&Cx::internal(), find(engine, "bad").unwrap(), ROOT, &name("good")).unwrap();
        }),
    ];
    for restarted in [None, Some(Lose::Nothing), Some(Lose::Unsynced)] {
        for (what, change) in changes {
            let mut machine = Machine::new();
            let mut engine = machine.open("boot");
            refuse(&machine.slow, "bad", Errno::EPERM);
            put(&engine, "bad", &[2; 300]);
            engine.sync_fast().unwrap();
            work(&engine);
            aside(&engine, "bad");
            allow(&machine.slow);
            if let Some(lose) = restarted {
                machine.crash(engine, lose);
                engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
            }
            assert_eq!(engine.status().exceptions.aside, 1, "{what} {restarted:?}");
            change(&engine);
            assert_eq!(engine.status().exceptions.aside, 0, "{what}");
            rests(&engine);
            let (slow, shown) = (machine.slow.image(), view(&engine));
            assert!(slow == shown, "{what}: {}", slow.diff(&shown, "slow", "view"));
            assert!(machine.on_slow(if what == "written" { "bad" } else { "good" }).is_some(), "{what}");
        }
    }
}

/// What a daemon that is stopped at any call of it leaves: all is set aside, or nothing, and nothing is lost.
fn at_any_stop(
    lose: Lose,
    order: MetadataOrder,
    scene: &dyn Fn(&Machine, &Tiers),
    path: &str,
    judge: &dyn Fn(&Tiers, &Machine),
) {
    let mut stops = 0;
    for stop in 1.. {
        let mut machine = Machine::with(order);
        machine.rng = Xoshiro256PlusPlus::seed_from_u64(stop);
        let engine = machine.open("before");
        scene(&machine, &engine);
        let before = view(&engine);
        machine.power.fail_after(stop, &mut machine.rng);
        let done = engine.set_aside(&Cx::internal(), path.as_bytes(), true, &Saving::default());
        work(&engine);
        let ended = !machine.power.is_gone();
        machine.power.restore();
        machine.crash(engine, lose);
        refuse(&machine.slow, "bad", Errno::EPERM);
        let engine = machine.open(if lose == Lose::Nothing { "before" } else { "after" });
        let status = engine.status();
        let is_aside = status.exceptions.aside > 0;
        assert!(is_aside || done.is_err(), "acknowledged, and lost at call {stop}");
        if !is_aside {
            walk::compare(&view(&engine), &before).unwrap_or_else(|why| panic!("call {stop}: {why}"));
            engine.sync_fast().unwrap();
            work(&engine);
            aside(&engine, path);
        }
        rests(&engine);
        judge(&engine, &machine);
        // Another start changes nothing.
        let shown = view(&engine);
        machine.crash(engine, lose);
        refuse(&machine.slow, "bad", Errno::EPERM);
        let engine = machine.open(if lose == Lose::Nothing { "before" } else { "last" });
        walk::compare(&view(&engine), &shown).unwrap_or_else(|why| panic!("another start, call {stop}: {why}"));
        rests(&engine);
        judge(&engine, &machine);
        stops = stop;
        if ended {
            break;
        }
    }
    assert!(stops > 10, "{stops} calls");
}

fn held_by_bad(machine: &Machine, engine: &Tiers) {
    put(engine, "old", &[1; 300]);
    put(engine, "bad", &[9; 300]);
    rests(engine);
    refuse(&machine.slow, "bad", Errno::EPERM);
    overwrite(engine, "bad", &[2; 300]);
    put(engine, "behind", &[3; 300]);
    engine.sync_fast().unwrap();
    assert_eq!(work(engine), Some(Errno::EPERM));
}

/// A file that the slow tier has, and whose new version it refuses: it keeps the old one.
#[test]
pub fn a_stop_at_any_call_leaves_all_of_it_set_aside_or_nothing() {
    for (lose, order) in [
        (Lose::Nothing, MetadataOrder::Journaled),
        (Lose::Unsynced, MetadataOrder::Journaled),
        (Lose::Unsynced, MetadataOrder::Unknown),
    ] {
        at_any_stop(lose, order, &held_by_bad, "bad", &|engine, machine| {
            assert_eq!(read(engine, "bad"), [2; 300]);
            assert_eq!(machine.on_slow("bad"), Some(vec![9; 300]));
            assert_eq!(machine.on_slow("behind"), Some(vec![3; 300]));
            assert_eq!(
                (
                    engine.status().exceptions.aside,
                    engine.status().exceptions.conflicts,
                    engine.status().exceptions.quarantined
                ),
                (1, 0, 0)
            );
        });
    }
}

/// A directory that is refused, with all that is in it; the temporary name that others use, too, is theirs.
#[test]
pub fn a_directory_is_set_aside_with_what_is_beneath_and_nothing_else() {
    let scene = |machine: &Machine, engine: &Tiers| {
        let cx = Cx::internal();
        refuse(&machine.slow, "bad", Errno::EPERM);
        put(engine, "tmp", &[1; 300]);
        rename(engine, "tmp", "ckpt-1");
        let dir = engine.mkdir(&cx, ROOT, &name("bad"), 0o750, 0).unwrap().ino;
        engine.set_xattr(&cx, dir, b"user.k", b"v", false, false).unwrap();
        put_in(engine, dir, "file", &[2; 300]);
        let below = engine.mkdir(&cx, dir, &name("below"), 0o700, 0).unwrap().ino;
        put_in(engine, below, "deep", &[3; 300]);
        engine.symlink(&cx, below, &name("link"), b"deep").unwrap();
        put(engine, "tmp", &[4; 300]);
        engine.rename(&cx, ROOT, &name("tmp"), dir, &name("moved"), RenameMode::Replace).unwrap();
        put(engine, "tmp", &[5; 300]);
        rename(engine, "tmp", "ckpt-2");
        engine.sync_fast().unwrap();
        assert_eq!(work(engine), Some(Errno::EPERM));
    };
    for lose in [Lose::Nothing, Lose::Unsynced] {
        at_any_stop(lose, MetadataOrder::Journaled, &scene, "bad", &|engine, machine| {
            assert_eq!(engine.status().exceptions.aside, 6);
            for (path, byte) in [("bad/file", 2), ("bad/below/deep", 3), ("bad/moved", 4), ("ckpt-2", 5)] {
                assert_eq!(bytes_of(engine, path), [byte; 300], "{path}");
            }
            let link = engine.readlink(&Cx::internal(), find(engine, "bad/below/link").unwrap()).unwrap();
            assert_eq!(link, b"deep");
            let dir = engine.getattr(&Cx::internal(), find(engine, "bad").unwrap()).unwrap();
            assert_eq!((dir.perm, dir.nlink), (0o750, 3));
            assert_eq!(engine.get_xattr(&Cx::internal(), dir.ino, b"user.k").unwrap().as_deref(), Some(&b"v"[..]));
            assert_eq!(
                (machine.on_slow("ckpt-1"), machine.on_slow("ckpt-2")),
                (Some(vec![1; 300]), Some(vec![5; 300]))
            );
            assert!(machine.slow.root().stat(b"bad").is_err() && machine.slow.root().stat(b"tmp").is_err());
        });
    }
}

fn bytes_of(engine: &Tiers, path: &str) -> Vec<u8> {
    let cx = Cx::internal();
    let ino = find(engine, path).unwrap_or_else(|| panic!("{path} is not there"));
    let file = engine.open(&cx, ino, OpenMode { read: true, ..OpenMode::default() }).unwrap();
    let mut bytes = vec![0; 30_000];
    let size = engine.read(&cx, &file, &mut bytes, 0).unwrap();
    bytes.truncate(size);
    engine.release(&cx, file);
    bytes
}

/// Removed, renamed, given another mode: the view goes back to what the slow tier has.
#[test]
pub fn a_removal_a_rename_and_a_chmod_that_are_set_aside_are_undone() {
    let changes: [(&str, Act); 4] = [
        ("removed", |engine| engine.unlink(&Cx::internal(), ROOT, &name("bad")).unwrap()),
        ("renamed", |engine| rename(engine, "bad", "elsewhere")),
        ("chmod", |engine| {
            let new = SetAttr { attr: NewAttr { perm: Some(0o600), ..NewAttr::default() }, size: None };
            engine.setattr(&Cx::internal(), find(engine, "bad").unwrap(), &new).unwrap();
        }),
        ("xattr", |engine| {
            engine.set_xattr(&Cx::internal(), find(engine, "bad").unwrap(), b"user.k", b"v", false, false).unwrap();
        }),
    ];
    for kind in [Kind::File, Kind::Dir] {
        for evicted in [false, true] {
            for (what, change) in changes {
                for lose in [None, Some(Lose::Nothing), Some(Lose::Unsynced)] {
                    if kind == Kind::Dir && (what == "removed" || evicted) {
                        continue;
                    }
                    let mut machine = Machine::new();
                    let mut engine = machine.open("boot");
                    match kind {
                        Kind::Dir => drop(engine.mkdir(&Cx::internal(), ROOT, &name("bad"), 0o755, 0).unwrap()),
                        _ => put(&engine, "bad", &[2; 300]),
                    }
                    rests(&engine);
                    if evicted {
                        engine.evict_now(&Cx::internal(), find(&engine, "bad").unwrap()).unwrap();
                    }
                    let before = machine.slow.image();
                    refuse(&machine.slow, "bad", Errno::EPERM);
                    change(&engine);
                    put(&engine, "behind", &[3; 300]);
                    engine.sync_fast().unwrap();
                    assert_eq!(work(&engine), Some(Errno::EPERM), "{what}");
                    let done = aside(&engine, "bad");
                    assert_eq!((done.kept.len(), done.returned.len()), (0, 1), "{what}: {done:?}");
                    rests(&engine);
                    if let Some(lose) = lose {
                        machine.crash(engine, lose);
                        engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
                    }
                    let shown = view(&engine);
                    let slow = machine.slow.image();
                    assert!(shown == slow, "{what} {kind:?} {evicted}: {}", shown.diff(&slow, "view", "slow"));
                    engine.unlink(&Cx::internal(), ROOT, &name("behind")).unwrap();
                    rests(&engine);
                    let slow = machine.slow.image();
                    assert!(slow == before, "{what}: {}", slow.diff(&before, "slow", "before"));
                }
            }
        }
    }
}

/// A removal that is refused, and a new file under the name: who took the name over goes with it.
#[test]
pub fn whoever_took_a_name_over_goes_with_who_had_it() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    put(&engine, "bad", &[1; 300]);
    rests(&engine);
    refuse(&machine.slow, "bad", Errno::EPERM);
    engine.unlink(&Cx::internal(), ROOT, &name("bad")).unwrap();
    put(&engine, "bad", &[2; 300]);
    put(&engine, "behind", &[3; 300]);
    engine.sync_fast().unwrap();
    assert_eq!(work(&engine), Some(Errno::EPERM));
    let done = aside(&engine, "bad");
    assert_eq!((done.kept.len(), done.events), (1, 2));
    rests(&engine);
    assert_eq!((read(&engine, "bad"), machine.on_slow("bad")), (vec![2; 300], Some(vec![1; 300])));
    assert_eq!(machine.on_slow("behind"), Some(vec![3; 300]));
}

/// One that nobody can place over another, by a rename: both versions stay, each on its tier, and it can be removed there again.
#[test]
pub fn what_is_set_aside_over_another_is_removed_with_it() {
    for lose in [None, Some(Lose::Nothing), Some(Lose::Unsynced)] {
        let mut machine = Machine::new();
        let mut engine = machine.open("boot");
        put(&engine, "bad", &[1; 300]);
        rests(&engine);
        refuse(&machine.slow, "bad", Errno::EPERM);
        put(&engine, "new", &[2; 300]);
        rename(&engine, "new", "bad");
        put(&engine, "behind", &[3; 300]);
        engine.sync_fast().unwrap();
        assert_eq!(work(&engine), Some(Errno::EPERM));
        aside(&engine, "bad");
        rests(&engine);
        if let Some(lose) = lose {
            machine.crash(engine, lose);
            engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
        }
        assert_eq!((read(&engine, "bad"), machine.on_slow("bad")), (vec![2; 300], Some(vec![1; 300])));
        allow(&machine.slow);
        let ino = engine.lookup(&Cx::internal(), ROOT, &name("bad")).unwrap().ino;
        engine.unlink(&Cx::internal(), ROOT, &name("bad")).unwrap();
        engine.forget(ino, u64::MAX);
        rests(&engine);
        assert_eq!((find(&engine, "bad"), machine.on_slow("bad"), engine.status().exceptions.aside), (None, None, 0));
        assert_eq!(engine.status().cache.objects, 1, "that of the one behind");
        machine.crash(engine, Lose::Nothing);
        let engine = machine.open("third");
        assert_eq!(
            (find(&engine, "bad"), engine.status().exceptions.aside, engine.status().exceptions.quarantined),
            (None, 0, 0)
        );
    }
}

/// The log goes on, and loses its beginning; what was set aside there does not.
#[test]
pub fn what_is_set_aside_outlives_the_segments_of_the_log_that_said_so() {
    for lose in [Lose::Nothing, Lose::Unsynced] {
        let (mut machine, cx) = (Machine::new(), Cx::internal());
        let engine = machine.open("boot");
        refuse(&machine.slow, "bad", Errno::EPERM);
        let dir = engine.mkdir(&cx, ROOT, &name("dir"), 0o755, 0).unwrap().ino;
        put_in(&engine, dir, "bad", &[2; 300]);
        engine.sync_fast().unwrap();
        assert_eq!(work(&engine), Some(Errno::EPERM));
        aside(&engine, "dir/bad");
        rests(&engine);
        let log = || machine.fast.root().dir(b".dlio-fs").unwrap().dir(b"log").unwrap();
        let first = log().list().unwrap().into_iter().map(|entry| entry.name).min().unwrap();
        rename(&engine, "dir", "renamed");
        // A record of 180,000 bytes each: more than a segment.
        for i in 0..120 {
            engine.set_xattr(&cx, ROOT, format!("user.{}", i % 100).as_bytes(), &[0xFF; 60_000], false, false).unwrap();
            engine.publish_step().unwrap();
        }
        rests(&engine);
        assert!(log().stat(&first).is_err(), "the segment is gone");
        machine.crash(engine, lose);
        let engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
        assert_eq!((bytes_of(&engine, "renamed/bad"), engine.status().exceptions.aside), (vec![2; 300], 1));
        let new = SetAttr { attr: NewAttr { perm: Some(0o600), ..NewAttr::default() }, size: None };
        let ino = find(&engine, "renamed/bad").unwrap();
        engine.setattr(&cx, ino, &new).unwrap();
        engine.set_xattr(&cx, ino, b"user.k", b"v", false, false).unwrap();
        engine.sync_fast().unwrap();
        machine.crash(engine, lose);
        let engine = machine.open(if lose == Lose::Nothing { "boot" } else { "third" });
        assert_eq!((bytes_of(&engine, "renamed/bad"), engine.status().exceptions.aside), (vec![2; 300], 1));
        let bad = find(&engine, "renamed/bad").unwrap();
        assert_eq!(engine.getattr(&cx, bad).unwrap().perm, 0o600, "an attribute is logged as the record anew");
        assert_eq!(engine.get_xattr(&cx, bad, b"user.k").unwrap().as_deref(), Some(&b"v"[..]));
        rests(&engine);
    }
}

/// Where not even the copy can be made.
#[test]
pub fn without_a_copy_it_goes_on_only_where_that_is_said() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    machine.slow.inject(|op| {
        (op.path.ends_with(b"/bad") || op.path == b"bad" || op.to == b"bad").then_some(Errno::ENAMETOOLONG)
    });
    put(&engine, "bad", &[2; 300]);
    put(&engine, "behind", &[3; 300]);
    engine.sync_fast().unwrap();
    work(&engine);
    let refused = engine.set_aside(&Cx::internal(), b"bad", true, &Saving::default()).unwrap_err();
    assert_eq!((refused.errno(), engine.status().exceptions.aside), (Errno::ENAMETOOLONG, 0));
    let done = engine.set_aside(&Cx::internal(), b"bad", false, &Saving::default()).unwrap();
    assert_eq!(done.saved, None);
    rests(&engine);
    assert_eq!((read(&engine, "bad"), machine.on_slow("behind")), (vec![2; 300], Some(vec![3; 300])));
    let nothing = engine.set_aside(&Cx::internal(), b"behind", true, &Saving::default()).unwrap_err();
    assert!(nothing.to_string().contains("nothing is pending at /behind"), "{nothing}");
}

/// What goes into a directory that is set aside takes that with it, as it was made.
#[test]
pub fn what_is_put_into_a_directory_that_is_aside_brings_it_back_into_the_order() {
    for lose in [None, Some(Lose::Nothing), Some(Lose::Unsynced)] {
        let (mut machine, cx) = (Machine::new(), Cx::internal());
        let mut engine = machine.open("boot");
        refuse(&machine.slow, "bad", Errno::EPERM);
        let dir = engine.mkdir(&cx, ROOT, &name("bad"), 0o750, 0).unwrap().ino;
        put_in(&engine, dir, "old", &[1; 300]);
        engine.sync_fast().unwrap();
        work(&engine);
        aside(&engine, "bad");
        rests(&engine);
        allow(&machine.slow);
        put_in(&engine, find(&engine, "bad").unwrap(), "new", &[2; 300]);
        engine.sync_fast().unwrap();
        if let Some(lose) = lose {
            machine.crash(engine, lose);
            engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
        }
        rests(&engine);
        assert_eq!(engine.status().exceptions.aside, 1, "the old one");
        let on_slow = machine.slow.root().dir(b"bad").unwrap();
        let names: Vec<Vec<u8>> = on_slow.list().unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, [b"new".to_vec()]);
        assert_eq!(machine.slow.root().stat(b"bad").unwrap().perm, 0o750);
        assert_eq!((bytes_of(&engine, "bad/old"), bytes_of(&engine, "bad/new")), (vec![1; 300], vec![2; 300]));
        assert_eq!(engine.status().exceptions.conflicts, 0);
    }
}

/// P4, P2. The version that was set aside is the one before, as long as the next one is not durable.
#[test]
pub fn a_new_version_that_a_power_cut_strikes_leaves_what_was_set_aside() {
    let (mut machine, cx) = (Machine::new(), Cx::internal());
    let engine = machine.open("boot");
    refuse(&machine.slow, "bad", Errno::EPERM);
    put(&engine, "bad", &[2; 300]);
    engine.sync_fast().unwrap();
    work(&engine);
    aside(&engine, "bad");
    let file = engine.open(&cx, find(&engine, "bad").unwrap(), OpenMode { truncate: true, ..WRITE }).unwrap();
    engine.write(&cx, &file, &[4; 500], 0, false).unwrap();
    engine.flush(&cx, &file).unwrap();
    engine.release(&cx, file);
    engine.mkdir(&cx, ROOT, &name("dir"), 0o755, 0).unwrap();
    engine.fsync_dir(&cx, find(&engine, "dir").unwrap()).unwrap();
    engine.tick().unwrap();
    machine.crash(engine, Lose::Unsynced);
    let engine = machine.open("another");
    assert_eq!((read(&engine, "bad"), engine.status().exceptions.aside), (vec![2; 300], 1));
    machine.crash(engine, Lose::Unsynced);
    let engine = machine.open("third");
    assert_eq!((read(&engine, "bad"), engine.status().exceptions.aside), (vec![2; 300], 1));
}

/// One thing is set aside in front of another, and a directory that gets its old name back has what was set aside in it before.
#[test]
pub fn what_was_set_aside_before_stays_where_it_is() {
    for lose in [None, Some(Lose::Nothing), Some(Lose::Unsynced)] {
        let (mut machine, cx) = (Machine::new(), Cx::internal());
        let mut engine = machine.open("boot");
        let dir = engine.mkdir(&cx, ROOT, &name("bad"), 0o755, 0).unwrap().ino;
        put_in(&engine, dir, "file", &[1; 300]);
        rests(&engine);
        refuse(&machine.slow, "file", Errno::EPERM);
        engine.unlink(&cx, dir, &name("file")).unwrap();
        engine.sync_fast().unwrap();
        assert_eq!(work(&engine), Some(Errno::EPERM));
        put_in(&engine, dir, "file", &[2; 300]);
        aside(&engine, "bad/file");
        rests(&engine);
        refuse(&machine.slow, "bad", Errno::EPERM);
        rename(&engine, "bad", "renamed");
        put(&engine, "behind", &[3; 300]);
        engine.sync_fast().unwrap();
        assert_eq!(work(&engine), Some(Errno::EPERM));
        assert_eq!(bytes_of(&engine, "renamed/file"), [2; 300]);
        aside(&engine, "renamed");
        rests(&engine);
        if let Some(lose) = lose {
            machine.crash(engine, lose);
            engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
        }
        assert_eq!((bytes_of(&engine, "bad/file"), find(&engine, "renamed")), (vec![2; 300], None));
        assert_eq!((engine.status().exceptions.aside, engine.status().exceptions.conflicts), (1, 0));
        let on_slow = machine.slow.root().dir(b"bad").unwrap();
        assert_eq!(on_slow.stat(b"file").unwrap().size, 300);
        rests(&engine);
    }
}

/// A group of several changes of which one is refused: those before it are there, those behind it come.
#[test]
pub fn what_is_in_the_middle_of_a_group_is_set_aside() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    refuse(&machine.slow, "bad", Errno::EPERM);
    for file in ["a", "b", "bad", "c", "d"] {
        put(&engine, file, file.as_bytes());
    }
    engine.sync_fast().unwrap();
    while engine.drain_step().unwrap() == Progress::Did {}
    assert_eq!(work(&engine), Some(Errno::EPERM));
    assert_eq!(machine.on_slow("a"), Some(b"a".to_vec()));
    aside(&engine, "bad");
    assert_eq!(machine.on_slow("d"), None);
    rests(&engine);
    for file in ["a", "b", "c", "d"] {
        assert_eq!(machine.on_slow(file), Some(file.as_bytes().to_vec()));
    }
    assert_eq!((machine.on_slow("bad"), engine.status().exceptions.conflicts), (None, 0));
    let tmp = machine.slow.root().dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap();
    let mine = tmp.list().unwrap().into_iter().next().unwrap().name;
    assert!(tmp.dir(&mine).unwrap().list().unwrap().is_empty(), "its copy is gone");
}

/// A file with two names, both of which the slow tier has: its next version gets to both.
#[test]
pub fn a_file_with_several_names_gets_them_all_back() {
    for lose in [None, Some(Lose::Nothing)] {
        let (mut machine, cx) = (Machine::new(), Cx::internal());
        let mut engine = machine.open("boot");
        put(&engine, "bad", &[1; 300]);
        engine.link(&cx, find(&engine, "bad").unwrap(), ROOT, &name("twin")).unwrap();
        rests(&engine);
        refuse(&machine.slow, "bad", Errno::EPERM);
        rename(&engine, "bad", "other");
        let ino = find(&engine, "twin").unwrap();
        let copy = engine.create(&cx, ROOT, &name("new"), 0o644, 0, WRITE).unwrap();
        engine.write(&cx, &copy.1, &[2; 300], 0, false).unwrap();
        engine.flush(&cx, &copy.1).unwrap();
        engine.release(&cx, copy.1);
        engine.link(&cx, find(&engine, "new").unwrap(), ROOT, &name("second")).unwrap();
        rename(&engine, "second", "twin");
        engine.sync_fast().unwrap();
        assert_eq!(work(&engine), Some(Errno::EPERM));
        let done = aside(&engine, "other");
        assert!(done.kept.len() == 1 && ino != find(&engine, "twin").unwrap(), "{done:?}");
        rests(&engine);
        if let Some(lose) = lose {
            machine.crash(engine, lose);
            engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
        }
        assert_eq!((read(&engine, "new"), read(&engine, "twin")), (vec![2; 300], vec![2; 300]));
        assert_eq!(read(&engine, "bad"), [1; 300]);
        allow(&machine.slow);
        overwrite(&engine, "twin", &[4; 400]);
        rests(&engine);
        let (slow, shown) = (machine.slow.image(), view(&engine));
        assert!(slow == shown, "{}", slow.diff(&shown, "slow", "view"));
        assert_eq!(machine.on_slow("new"), Some(vec![4; 400]));
    }
}

/// A file of the slow tier that nobody has opened is removed, and the slow tier refuses that: the removal alone is pending.
#[test]
fn a_removal_of_what_nobody_opened_is_set_aside() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    put(&engine, "old", b"old");
    rests(&engine);
    drop(engine);
    let engine = machine.open("boot");
    refuse(&machine.slow, "old", Errno::EPERM);
    engine.unlink(&Cx::internal(), ROOT, &name("old")).unwrap();
    assert_eq!(work(&engine), Some(Errno::EPERM));
    let done = aside(&engine, "old");
    assert_eq!((done.events, done.kept.len(), done.returned.len()), (1, 0, 1), "{done:?}");
    assert!(find(&engine, "old").is_some(), "the slow tier still has it");
    rests(&engine);
}
