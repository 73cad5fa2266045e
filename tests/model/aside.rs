//! What the slow tier refuses for good is set aside by an operator (P15), told on simulated disks.

use std::sync::Arc;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Access, Dir, Kind, MetadataOrder, NewAttr, RenameMode};
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

/// Everything that is pending gets to the slow tier.
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

/// The directories of this path in all that was saved.
fn saved_in(machine: &Machine, path: &str) -> Vec<Arc<dyn Dir>> {
    let all = machine.slow.root().dir(b".dlio-fs").unwrap().dir(b"saved").unwrap();
    let whole = all.list().unwrap().into_iter().filter(|entry| !entry.name.ends_with(b".part"));
    let below = |name: Vec<u8>| {
        path.split('/')
            .filter(|part| !part.is_empty())
            .try_fold(all.dir(&name).ok()?, |dir, part| dir.dir(part.as_bytes()).ok())
    };
    whole.filter_map(|entry| below(entry.name)).collect()
}

/// The bytes of the only file under this path in all that was saved; a stop may have left the same bytes twice.
fn all_saved(machine: &Machine, path: &str) -> Vec<u8> {
    let (dirs, file) = path.rsplit_once('/').unwrap_or(("", path));
    let files = saved_in(machine, dirs).into_iter().filter_map(|dir| dir.open(file.as_bytes(), Access::Read).ok());
    let bytes = files.map(|file| {
        let mut bytes = vec![0; 30_000];
        let size = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(size);
        bytes
    });
    let mut all: Vec<Vec<u8>> = bytes.collect();
    all.dedup();
    assert_eq!(all.len(), 1, "{path}");
    all.remove(0)
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
        assert_eq!((&done.fast_only[..], done.events, done.bytes), (&["bad".to_owned()][..], 1, 300));
        assert_eq!(SetAside { saved: None, ..done.clone() }, would);
        assert_eq!(saved(&machine, &done.saved.unwrap(), "bad"), [2; 300]);
        rests(&engine);
        assert_eq!((machine.on_slow("behind"), machine.on_slow("bad")), (Some(vec![3; 300]), None));
        assert_eq!(find(&engine, "bad"), None);
        let status = engine.status();
        assert_eq!((status.exceptions.set_aside, status.safety.files, status.safety.held), (1, 0, None));
        assert_eq!(status.cache.objects, 2, "those of the others");
        // The name is free: what gets it now is an event like any other.
        allow(&machine.slow);
        put(&engine, "bad", &[4; 500]);
        rests(&engine);
        assert_eq!(machine.on_slow("bad"), Some(vec![4; 500]));
    }
}

/// A handle keeps the bytes that were set aside, as one on a removed file does, and so does what is written through it.
#[test]
pub fn who_has_a_file_open_that_is_set_aside_keeps_its_bytes() {
    for over in [None, Some([9; 300])] {
        let (machine, cx) = (Machine::new(), Cx::internal());
        let engine = machine.open("boot");
        if let Some(old) = over {
            put(&engine, "bad", &old);
            rests(&engine);
        }
        refuse(&machine.slow, "bad", Errno::EPERM);
        let file = match over {
            None => create(&engine, ROOT, "bad", &[2; 300]).1,
            Some(_) => {
                overwrite(&engine, "bad", &[2; 300]);
                engine.open(&cx, find(&engine, "bad").unwrap(), WRITE).unwrap()
            }
        };
        engine.sync_fast().unwrap();
        work(&engine);
        aside(&engine, "bad");
        assert_eq!(find(&engine, "bad").map(|_| read(&engine, "bad")), over.map(|old| old.to_vec()));
        engine.write(&cx, &file, &[3; 10], 300, false).unwrap();
        engine.fsync(&cx, &file).unwrap();
        let mut bytes = [0; 400];
        assert_eq!(engine.read(&cx, &file, &mut bytes, 0).unwrap(), 310);
        assert_eq!((bytes[0], bytes[309]), (2, 3));
        let shown = engine.getattr(&cx, file.ino).unwrap();
        assert_eq!((shown.size, shown.nlink), (310, 0));
        assert_eq!(engine.is_out_of_the_order(file.ino, None).unwrap_err().errno(), Errno::EIO);
        let ino = file.ino;
        engine.release(&cx, file);
        engine.forget(ino, u64::MAX);
        rests(&engine);
        assert_eq!(machine.on_slow("bad"), over.map(|old| old.to_vec()));
        assert_eq!(engine.status().cache.objects, 0);
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
        let is_aside = view(&engine) != before;
        assert!(is_aside || done.is_err(), "acknowledged, and lost at call {stop}");
        if !is_aside {
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
            assert_eq!(read(engine, "bad"), [9; 300]);
            assert_eq!(machine.on_slow("bad"), Some(vec![9; 300]));
            assert_eq!(machine.on_slow("behind"), Some(vec![3; 300]));
            assert_eq!(all_saved(machine, "bad"), [2; 300]);
            let exceptions = engine.status().exceptions;
            assert_eq!((exceptions.conflicts, exceptions.quarantined), (0, 0));
        });
    }
}

/// No object goes with it, whose removal would make the log durable.
#[test]
pub fn an_empty_directory_is_set_aside_for_good_once_that_is_acknowledged() {
    for seed in 0..8 {
        let mut machine = Machine::new();
        machine.rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let engine = machine.open("before");
        refuse(&machine.slow, "bad", Errno::EPERM);
        engine.mkdir(&Cx::internal(), ROOT, &name("bad"), 0o750, 0).unwrap();
        engine.sync_fast().unwrap();
        assert_eq!(work(&engine), Some(Errno::EPERM));
        aside(&engine, "bad");
        assert_eq!(saved_in(&machine, "bad").len(), 1);
        machine.crash(engine, Lose::Unsynced);
        let engine = machine.open("after");
        assert_eq!((find(&engine, "bad"), engine.status().safety.events), (None, 0), "seed {seed}");
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
            assert_eq!(find(engine, "bad"), None);
            for (path, byte) in [("bad/file", 2), ("bad/below/deep", 3), ("bad/moved", 4)] {
                assert_eq!(all_saved(machine, path), [byte; 300], "{path}");
            }
            assert_eq!(bytes_of(engine, "ckpt-2"), [5; 300]);
            let link = saved_in(machine, "bad/below").into_iter().find_map(|dir| dir.readlink(b"link").ok());
            assert_eq!(link.as_deref(), Some(&b"deep"[..]));
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
    let file = engine.open(&cx, ino, OpenMode::default()).unwrap();
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
                    assert_eq!((done.fast_only.len(), done.returned.len()), (0, 1), "{what}: {done:?}");
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
pub fn a_file_that_took_a_name_over_goes_with_the_one_that_had_it() {
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
    assert_eq!((done.fast_only.len(), done.events), (1, 2));
    rests(&engine);
    assert_eq!((read(&engine, "bad"), machine.on_slow("bad")), (vec![1; 300], Some(vec![1; 300])));
    assert_eq!(saved(&machine, &done.saved.unwrap(), "bad"), [2; 300]);
    assert_eq!(machine.on_slow("behind"), Some(vec![3; 300]));
}

/// A new file that a rename was to put in place of another: the slow tier keeps the one, `saved` has the other.
#[test]
pub fn what_was_to_replace_another_leaves_that_in_place() {
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
        let done = aside(&engine, "bad");
        rests(&engine);
        if let Some(lose) = lose {
            machine.crash(engine, lose);
            engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
        }
        assert_eq!((read(&engine, "bad"), find(&engine, "new")), (vec![1; 300], None));
        assert_eq!(saved(&machine, &done.saved.unwrap(), "bad"), [2; 300]);
        let (slow, shown) = (machine.slow.image(), view(&engine));
        assert!(slow == shown, "{}", slow.diff(&shown, "slow", "view"));
        assert_eq!(engine.status().exceptions.quarantined, 0);
    }
}

/// Where not even the copy can be made.
#[test]
pub fn without_a_copy_it_is_discarded_only_if_that_is_asked_for() {
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
    assert_eq!((refused.errno(), engine.status().exceptions.set_aside), (Errno::ENAMETOOLONG, 0));
    let done = engine.set_aside(&Cx::internal(), b"bad", false, &Saving::default()).unwrap();
    assert_eq!(done.saved, None);
    rests(&engine);
    assert_eq!((find(&engine, "bad"), machine.on_slow("behind")), (None, Some(vec![3; 300])));
    let nothing = engine.set_aside(&Cx::internal(), b"behind", true, &Saving::default()).unwrap_err();
    assert!(nothing.to_string().contains("nothing is pending at /behind"), "{nothing}");
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

/// Names of several files that depend on each other.
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
        assert!(done.fast_only.len() == 1 && ino != find(&engine, "twin").unwrap(), "{done:?}");
        rests(&engine);
        if let Some(lose) = lose {
            machine.crash(engine, lose);
            engine = machine.open(if lose == Lose::Nothing { "boot" } else { "another" });
        }
        assert_eq!((find(&engine, "new"), find(&engine, "other")), (None, None));
        assert_eq!((read(&engine, "bad"), read(&engine, "twin")), (vec![1; 300], vec![1; 300]));
        allow(&machine.slow);
        overwrite(&engine, "twin", &[4; 400]);
        rests(&engine);
        let (slow, shown) = (machine.slow.image(), view(&engine));
        assert!(slow == shown, "{}", slow.diff(&shown, "slow", "view"));
        assert_eq!(machine.on_slow("bad"), Some(vec![4; 400]));
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
    assert_eq!((done.events, done.fast_only.len(), done.returned.len()), (1, 0, 1), "{done:?}");
    assert!(find(&engine, "old").is_some(), "the slow tier still has it");
    rests(&engine);
}
