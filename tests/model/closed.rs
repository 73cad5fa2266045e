//! Stories of a mount without root: disks on which the modes hold for the daemon as well, which owns all that is there.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use dlio_fs::config::{Config, PathRule, Rules, Verify};
use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::sync::{Rank, held};
use dlio_fs::tiers::disk::{Kind, MetadataOrder, NewAttr, RenameMode};
use dlio_fs::tiers::{Cx, Evicted, Ino, ROOT, SetAttr, Tiers};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::sim::Lose;
use crate::stories::{Machine, WRITE, name, read};
use crate::walk;

const KNOWN: MetadataOrder = MetadataOrder::Journaled;
const UNKNOWN: MetadataOrder = MetadataOrder::Unknown;

/// The daemon is no root on this machine.
fn machine(order: MetadataOrder) -> Machine {
    let machine = Machine::with(order);
    machine.fast.heed_modes(true);
    machine.slow.heed_modes(true);
    machine
}

fn chmod(engine: &Tiers, ino: Ino, perm: u32) {
    let attr = NewAttr { perm: Some(perm), ..NewAttr::default() };
    engine.setattr(&Cx::internal(), ino, &SetAttr { attr, size: None }).unwrap();
}

fn mkdir(engine: &Tiers, above: Ino, dir: &str, perm: u32) -> Ino {
    engine.mkdir(&Cx::internal(), above, &name(dir), perm, 0).unwrap().ino
}

fn put(engine: &Tiers, dir: Ino, file: &str, perm: u32, bytes: &[u8]) -> Ino {
    let cx = Cx::internal();
    let (attr, file) = engine.create(&cx, dir, &name(file), perm, 0, WRITE).unwrap();
    engine.write(&cx, &file, bytes, 0, false).unwrap();
    engine.flush(&cx, &file).unwrap();
    engine.release(&cx, file);
    attr.ino
}

fn moved(engine: &Tiers, (dir, from): (Ino, &str), (to_dir, to): (Ino, &str)) {
    engine.rename(&Cx::internal(), dir, &name(from), to_dir, &name(to), RenameMode::Replace).unwrap();
}

fn ino(engine: &Tiers, dir: Ino, file: &str) -> Ino {
    engine.lookup(&Cx::internal(), dir, &name(file)).unwrap().ino
}

/// Everything to the slow tier, until the machine stops.
fn down(engine: &Tiers) {
    for _ in 0..1000 {
        if engine.status().safety.events == 0 || engine.sync_fast().is_err() {
            return;
        }
        if engine.drain_step().and(engine.publish_step()).is_err() {
            return;
        }
    }
    panic!("{:?}", engine.status());
}

fn all_down(engine: &Tiers) {
    down(engine);
    engine.publish_step().unwrap();
    assert_eq!(engine.status().safety.events, 0, "{:?}", engine.status());
}

/// Names that only the daemon uses.
fn left_in_tmp(machine: &Machine) -> Vec<String> {
    let tmp = machine.slow.root().dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap();
    let uuid = tmp.list().unwrap().remove(0).name;
    let left = tmp.dir(&uuid).unwrap().list().unwrap();
    left.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
}

/// Tells a story and has the machine stop at each call of what it takes to bring it down: without loss of what was not synced, and
/// with it. The next daemon shows what was shown, and brings down just that, with nothing left open.
fn told(set_up: impl Fn(&mut Machine), before: impl Fn(&Tiers), story: impl Fn(&Tiers)) {
    for (lose, order) in [(Lose::Nothing, KNOWN), (Lose::Unsynced, KNOWN), (Lose::Unsynced, UNKNOWN)] {
        for stop in 1.. {
            let mut machine = machine(order);
            machine.rng = Xoshiro256PlusPlus::seed_from_u64(stop);
            set_up(&mut machine);
            let engine = machine.open("before");
            before(&engine);
            all_down(&engine);
            story(&engine);
            engine.sync_fast().unwrap();
            let expected = walk::view(&engine, &mut Vec::new()).unwrap();
            machine.power.fail_after(stop, &mut machine.rng);
            down(&engine);
            let stopped = machine.power.is_gone();
            machine.power.restore();
            if !stopped {
                assert_eq!(engine.status().safety.events, 0, "{:?}", engine.status());
            }
            machine.crash(engine, lose);
            let engine = machine.open(if lose == Lose::Nothing { "before" } else { "after" });
            let shown = walk::view(&engine, &mut Vec::new()).unwrap();
            assert!(shown == expected, "stop {stop}: {}", shown.diff(&expected, "shown", "before"));
            all_down(&engine);
            let drained = machine.slow.image();
            assert!(drained == expected, "stop {stop}: {}", drained.diff(&expected, "slow", "view"));
            drop(engine);
            assert_eq!(left_in_tmp(&machine), Vec::<String>::new(), "stop {stop}");
            if !stopped {
                break;
            }
        }
    }
}

/// `git` makes an object under another name, closes it with 0444 and renames it; a later `gc` removes it. Its objects held the drain.
#[test]
fn files_that_their_owner_may_not_write_arrive_and_go() {
    let before = |engine: &Tiers| {
        let objects = mkdir(engine, ROOT, "objects", 0o755);
        put(engine, objects, "old", 0o444, &[9; 300]);
    };
    told(
        |_| (),
        before,
        |engine| {
            let cx = Cx::internal();
            let objects = ino(engine, ROOT, "objects");
            let dir = mkdir(engine, objects, "ab", 0o755);
            put(engine, dir, "tmp_obj_1", 0o444, &[1; 300]);
            moved(engine, (dir, "tmp_obj_1"), (dir, "cdef"));
            let pack = put(engine, objects, "tmp_pack", 0o600, &[2; 20_000]);
            engine.set_xattr(&cx, pack, b"user.checked", b"yes", false, false).unwrap();
            chmod(engine, pack, 0o444);
            moved(engine, (objects, "tmp_pack"), (objects, "pack"));
            engine.unlink(&cx, objects, &name("old")).unwrap();
            engine.link(&cx, pack, objects, &name("pack.keep")).unwrap();
        },
    );
}

/// `umask 0777; echo x > none`: it held the drain, with all that came behind it.
#[test]
fn files_without_any_rights_arrive() {
    told(
        |machine| machine.options.rules = Rules::new(&verifying()).unwrap(),
        |_| (),
        |engine| {
            put(engine, ROOT, "none", 0, b"x");
            let only_to_write = put(engine, ROOT, "wo", 0o644, b"w");
            chmod(engine, only_to_write, 0o200);
            engine.set_xattr(&Cx::internal(), only_to_write, b"user.k", b"v", false, false).unwrap();
            put(engine, ROOT, "later", 0o644, b"later");
        },
    );
}

/// What is copied is read back before it counts.
fn verifying() -> Config {
    Config { verify: Verify::Bytes, ..Config::default() }
}

/// `cp -a` of a module cache.
#[test]
fn closed_directories_arrive() {
    told(
        |_| (),
        |_| (),
        |engine| {
            let cache = mkdir(engine, ROOT, "cache", 0o700);
            let module = mkdir(engine, cache, "module", 0o700);
            put(engine, module, "go.mod", 0o444, b"module");
            chmod(engine, module, 0o555);
            chmod(engine, cache, 0o555);
            mkdir(engine, ROOT, "born closed", 0o555);
            let secret = mkdir(engine, ROOT, "secret", 0o700);
            put(engine, secret, "key", 0o400, b"key");
            chmod(engine, secret, 0);
            put(engine, ROOT, "later", 0o644, b"later");
        },
    );
}

fn closed_directory(engine: &Tiers) {
    let dir = mkdir(engine, ROOT, "closed", 0o700);
    for file in ["gone", "moved", "kept"] {
        put(engine, dir, file, 0o444, file.as_bytes());
    }
    chmod(engine, dir, 0);
}

/// `chmod -R u+w; rm -r`, with what is meant to stay taken out before.
#[test]
fn a_directory_that_is_opened_again_is_changed_and_removed() {
    told(
        |_| (),
        closed_directory,
        |engine| {
            let cx = Cx::internal();
            let dir = ino(engine, ROOT, "closed");
            chmod(engine, dir, 0o755);
            moved(engine, (dir, "moved"), (ROOT, "moved"));
            moved(engine, (dir, "kept"), (dir, "still kept"));
            engine.unlink(&cx, dir, &name("gone")).unwrap();
            chmod(engine, dir, 0o555);
            put(engine, ROOT, "later", 0o644, b"later");
        },
    );
    told(
        |_| (),
        closed_directory,
        |engine| {
            let cx = Cx::internal();
            let dir = ino(engine, ROOT, "closed");
            chmod(engine, dir, 0o700);
            for file in ["gone", "moved", "kept"] {
                engine.unlink(&cx, dir, &name(file)).unwrap();
            }
            engine.rmdir(&cx, ROOT, &name("closed")).unwrap();
        },
    );
}

/// Root uses a mount of somebody else (`allow_other`): modes do not hold for it, and the daemon is left with what it has accepted.
#[test]
pub fn what_root_changes_in_closed_directories_arrives() {
    let before = |engine: &Tiers| {
        closed_directory(engine);
        let dir = mkdir(engine, ROOT, "read only", 0o700);
        put(engine, mkdir(engine, dir, "below", 0o755), "file", 0o644, b"file");
        chmod(engine, dir, 0o555);
    };
    told(
        |_| (),
        before,
        |engine| {
            let cx = Cx::internal();
            let (closed, dir) = (ino(engine, ROOT, "closed"), ino(engine, ROOT, "read only"));
            engine.unlink(&cx, closed, &name("gone")).unwrap();
            moved(engine, (closed, "moved"), (dir, "moved"));
            let kept = ino(engine, closed, "kept");
            engine.set_xattr(&cx, kept, b"user.by", b"root", false, false).unwrap();
            put(engine, closed, "new", 0o600, b"new");
            chmod(engine, ino(engine, dir, "below"), 0o500);
            moved(engine, (dir, "below"), (closed, "below"));
            engine.set_xattr(&cx, closed, b"user.by", b"root", false, false).unwrap();
        },
    );
}

/// What does not fit on the fast tier is in `tmp` on the slow one, and published as it is.
#[test]
fn objects_on_the_slow_tier_have_the_modes_of_their_files() {
    let past = PathRule { path: "**".to_owned(), absorb: Some(false), ..PathRule::default() };
    let past = Config { rules: vec![past], ..Config::default() };
    told(
        |machine| machine.options.rules = Rules::new(&past).unwrap(),
        |_| (),
        |engine| {
            let cx = Cx::internal();
            let model = put(engine, ROOT, "model", 0o444, &[1; 20_000]);
            engine.set_xattr(&cx, model, b"user.k", b"v", false, false).unwrap();
            put(engine, ROOT, "none", 0, &[2; 300]);
        },
    );
}

/// A program that has opened its file before goes on writing: where the file is small to an object, where it is large in place.
#[test]
fn a_file_is_written_through_a_descriptor_from_before_it_was_closed() {
    for copy_up_max in [1 << 20, 0] {
        for perm in [0o444, 0] {
            let (mut machine, cx) = (machine(KNOWN), Cx::internal());
            machine.options.copy_up_max = copy_up_max;
            let engine = machine.open("boot");
            let log = put(&engine, ROOT, "log", 0o644, &[1; 300]);
            all_down(&engine);
            assert!(matches!(engine.evict_now(&cx, log).unwrap(), Evicted::Gone(_)));
            let file = engine.open(&cx, log, WRITE).unwrap();
            chmod(&engine, log, perm);
            all_down(&engine);
            engine.write(&cx, &file, &[2; 10], 300, false).unwrap();
            engine.flush(&cx, &file).unwrap();
            engine.release(&cx, file);
            all_down(&engine);
            machine.slow.heed_modes(false);
            assert_eq!(machine.on_slow("log"), Some([&[1; 300][..], &[2; 10]].concat()));
            assert_eq!(machine.slow.root().stat(b"log").unwrap().perm, perm, "set back");
            machine.slow.heed_modes(true);
            assert_eq!(left_in_tmp(&machine), Vec::<String>::new());
        }
    }
}

thread_local! {
    /// To whom a thread says that it has looked at the slow tier.
    static LOOKED: Cell<Option<Sender<()>>> = const { Cell::new(None) };
}

/// While a directory of mode 0555 was open for the removal of a file in it, whoever looked saw it open, and the view went on showing that:
/// what is copied from there, or made anew, had the wrong mode for good. Somebody looks before each call while it is open.
#[test]
fn what_is_open_for_one_call_is_seen_closed() {
    let mut machine = machine(KNOWN);
    let engine = machine.open("boot");
    let closed = mkdir(&engine, ROOT, "closed", 0o700);
    put(&engine, closed, "gone", 0o644, b"gone");
    chmod(&engine, closed, 0o555);
    all_down(&engine);
    machine.crash(engine, Lose::Nothing);
    let engine = Arc::new(machine.open("boot"));
    let closed = ino(&engine, ROOT, "closed");
    engine.unlink(&Cx::internal(), closed, &name("gone")).unwrap();
    engine.sync_fast().unwrap();
    let looks = Arc::new(Mutex::new(Vec::new()));
    machine.slow.after_looks(|| LOOKED.take().into_iter().for_each(|looked| looked.send(()).unwrap_or_default()));
    machine.slow.before_calls({
        let (looks, engine, slow, clock) = (looks.clone(), engine.clone(), machine.slow.clone(), machine.clock.clone());
        move || {
            if !held().contains(&Rank::Opening) || !slow.has_notes() {
                return;
            }
            // What is known of it is old.
            clock.advance(Duration::from_secs(60));
            let (told, looked) = channel();
            let engine = engine.clone();
            looks.lock().push(std::thread::spawn(move || {
                LOOKED.set(Some(told));
                engine.lookup(&Cx::internal(), ROOT, &name("closed")).unwrap().perm
            }));
            // Whether it has, or has ended without.
            looked.recv().unwrap_or_default();
        }
    });
    all_down(&engine);
    machine.slow.before_calls(|| ());
    let perms: Vec<u32> = looks.lock().drain(..).map(|look| look.join().unwrap()).collect();
    assert!(perms.len() > 2 && perms.iter().all(|perm| *perm == 0o555), "{perms:?}");
}

/// A file is clean, evicted and read whatever its mode; root, who takes the tiers over, sees the same.
#[test]
fn a_closed_file_is_evicted_and_read_and_root_sees_its_mode() {
    let (mut machine, cx) = (machine(KNOWN), Cx::internal());
    let engine = machine.open("boot");
    let evicted = put(&engine, ROOT, "evicted", 0o444, b"weights");
    put(&engine, ROOT, "clean", 0o400, b"weights");
    all_down(&engine);
    assert!(matches!(engine.evict_now(&cx, evicted).unwrap(), Evicted::Gone(_)));
    assert_eq!(read(&engine, "evicted"), b"weights");
    put(&engine, ROOT, "pending", 0, b"weights");
    machine.crash(engine, Lose::Nothing);
    machine.fast.heed_modes(false);
    machine.slow.heed_modes(false);
    let engine = machine.open("boot");
    for (file, perm) in [("evicted", 0o444), ("clean", 0o400), ("pending", 0)] {
        assert_eq!(engine.lookup(&cx, ROOT, &name(file)).unwrap().perm, perm, "{file}");
        assert_eq!(read(&engine, file), b"weights");
    }
    all_down(&engine);
    let slow = machine.slow.root();
    let files = slow.list().unwrap().into_iter().filter(|entry| entry.kind == Kind::File);
    let mut modes: Vec<u32> = files.map(|entry| slow.stat(&entry.name).unwrap().perm).collect();
    modes.sort_unstable();
    assert_eq!(modes, [0, 0o400, 0o444]);
}

/// The tier answers one call late: a mode that could not be set back stayed open until the next start, and was shown so. Each call in turn.
#[test]
fn what_could_not_be_closed_at_once_is_closed_before_anybody_sees_it() {
    for order in [KNOWN, UNKNOWN] {
        for failing in 0.. {
            let machine = machine(order);
            let engine = machine.open("boot");
            let dir = mkdir(&engine, ROOT, "d", 0o755);
            put(&engine, dir, "before", 0o644, b"x");
            all_down(&engine);
            chmod(&engine, dir, 0o444);
            all_down(&engine);
            put(&engine, dir, "file", 0o644, b"x");
            let calls = Arc::new(AtomicU64::new(0));
            machine.slow.inject({
                let calls = calls.clone();
                move |_| (calls.fetch_add(1, Ordering::Relaxed) == failing).then_some(Errno::ETIMEDOUT)
            });
            for _ in 0..20 {
                machine.clock.advance(Duration::from_secs(60));
                drop((engine.sync_fast(), engine.drain_step(), engine.publish_step()));
                let shown = engine.getattr(&Cx::internal(), dir).map(|attr| attr.perm);
                assert!(matches!(shown, Ok(0o444) | Err(_)), "{order:?} call {failing}: {shown:?}");
            }
            assert_eq!(engine.status().safety.events, 0, "{order:?} call {failing}: {:?}", engine.status());
            assert_eq!(machine.slow.root().stat(b"d").unwrap().perm, 0o444, "{order:?} call {failing}");
            assert_eq!(left_in_tmp(&machine), Vec::<String>::new(), "{order:?} call {failing}");
            if calls.load(Ordering::Relaxed) <= failing {
                break;
            }
        }
    }
}
