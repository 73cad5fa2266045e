//! Stories about fast copies: what holds while the kernel reads one by itself, and when one cannot be read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlio_fs::config::{Config, PathRule, Rules};
use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Access, Kind, NewAttr, RenameMode};
use dlio_fs::tiers::{Cx, Evicted, Ino, OpenFile, OpenMode, Progress, ROOT, SetAttr, Tiers};

use crate::sim::Lose;
use crate::stories::{Machine, WRITE, background, create, drain, name, read};

const READ: OpenMode = OpenMode { write: false, truncate: false, append: false };
const REPLACE: OpenMode = OpenMode { write: true, truncate: true, append: false };
const LEN: usize = 5000;

/// Copies all slow files that have no copy yet, or one of a former version.
fn stage(machine: &Machine, engine: &Tiers) {
    // Later than a change that might go unnoticed.
    machine.clock.advance(Duration::from_secs(10));
    engine.stage("all", vec![Vec::new()]).unwrap();
    while engine.stage_step().unwrap() == Progress::Did {}
}

/// An engine with a file that lies on the slow tier only, for long enough to be copied.
fn on_slow(machine: &Machine) -> (Tiers, Ino) {
    let (engine, cx) = (machine.open("boot"), Cx::internal());
    engine.release(&cx, create(&engine, ROOT, "file", &[1; LEN]).1);
    drain(&engine);
    let ino = engine.lookup(&cx, ROOT, &name("file")).unwrap().ino;
    assert!(matches!(engine.evict_now(&cx, ino).unwrap(), Evicted::Gone(_)));
    machine.clock.advance(Duration::from_secs(10));
    (engine, ino)
}

/// The same, with a copy.
fn with_a_copy(machine: &Machine) -> (Tiers, Ino) {
    let (engine, ino) = on_slow(machine);
    stage(machine, &engine);
    assert_eq!(engine.copies().len(), 1);
    (engine, ino)
}

fn chmod(engine: &Tiers, ino: Ino, perm: u32) {
    let attr = NewAttr { perm: Some(perm), ..NewAttr::default() };
    engine.setattr(&Cx::internal(), ino, &SetAttr { attr, size: None }).unwrap();
}

/// All bytes, as whoever has it open reads them.
fn bytes_of(engine: &Tiers, file: &OpenFile) -> Vec<u8> {
    let mut bytes = vec![0; 2 * LEN];
    let size = engine.read(&Cx::internal(), file, &mut bytes, 0).unwrap();
    bytes.truncate(size);
    bytes
}

/// All bytes, as the kernel reads them from the file below.
fn by_the_kernel(engine: &Tiers, file: &OpenFile) -> Vec<u8> {
    let mut bytes = vec![0; 2 * LEN];
    let size = engine.backing(file).unwrap().read_at(&mut bytes, 0).unwrap();
    bytes.truncate(size);
    bytes
}

fn written_at_100(what: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1; LEN];
    bytes[100..100 + what.len()].copy_from_slice(what);
    bytes
}

/// Whoever writes to the file now has it on the slow tier.
fn write_arrives(machine: &Machine, engine: &Tiers, ino: Ino) {
    let cx = Cx::internal();
    let writer = engine.open(&cx, ino, WRITE).unwrap();
    engine.write(&cx, &writer, b"written", 100, false).unwrap();
    engine.release(&cx, writer);
    drain(engine);
    assert!(machine.on_slow("file").unwrap() == written_at_100(b"written"));
}

/// A file that the kernel read from its copy was staged anew, and the new copy got the name of the old one. The first write went to the old
/// one, and the new one became the file's object: what was written and synced was lost.
#[test]
fn what_is_written_while_the_kernel_reads_a_former_copy_is_kept() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let (engine, ino) = with_a_copy(&machine);
    let reader = engine.open(&cx, ino, READ).unwrap();
    let pin = engine.pin(ino, true).unwrap();
    let backing = engine.backing(&reader).unwrap();
    chmod(&engine, ino, 0o600);
    background(&engine, &machine.clock);
    stage(&machine, &engine);
    let writer = engine.open(&cx, ino, WRITE).unwrap();
    engine.write(&cx, &writer, b"written", 100, false).unwrap();
    engine.fsync(&cx, &writer).unwrap();
    let mut got = [0; 7];
    backing.read_at(&mut got, 100).unwrap();
    assert_eq!(&got, b"written", "the kernel reads it");
    engine.release(&cx, writer);
    drop(pin);
    engine.release(&cx, reader);
    background(&engine, &machine.clock);
    assert!(machine.on_slow("file").unwrap() == written_at_100(b"written"));
}

/// The kernel reads a file itself, which loses its last name. What was written after that went to a new object, so the reader did not see it:
/// where the file was on the slow tier only, and where a version of it was on its way.
#[test]
fn what_is_written_to_a_removed_file_is_read_by_the_kernel() {
    for pending in [false, true] {
        let (machine, cx) = (Machine::new(), Cx::internal());
        let (engine, ino) = if pending {
            let engine = machine.open("boot");
            let (ino, file) = create(&engine, ROOT, "file", &[1; LEN]);
            engine.release(&cx, file);
            (engine, ino)
        } else {
            on_slow(&machine)
        };
        let reader = engine.open(&cx, ino, READ).unwrap();
        let pin = engine.pin(ino, true).unwrap();
        let backing = engine.backing(&reader).unwrap();
        let writer = if pending { None } else { Some(engine.open(&cx, ino, WRITE).unwrap()) };
        engine.unlink(&cx, ROOT, &name("file")).unwrap();
        if !pending {
            background(&engine, &machine.clock);
        }
        let writer = writer.unwrap_or_else(|| engine.open(&cx, ino, WRITE).unwrap());
        engine.write(&cx, &writer, b"written", 100, false).unwrap();
        let mut got = [0; 7];
        backing.read_at(&mut got, 100).unwrap();
        assert_eq!(&got, b"written", "{pending}");
        engine.setattr(&cx, ino, &SetAttr { size: Some(103), ..SetAttr::default() }).unwrap();
        assert_eq!(backing.read_at(&mut got, 100).unwrap(), 3, "{pending}");
        background(&engine, &machine.clock);
        assert!(machine.on_slow("file").is_none() && engine.status().safety.events == 0, "{pending}");
        engine.release(&cx, writer);
        drop(pin);
        engine.release(&cx, reader);
    }
}

/// The next open of a file that was staged anew while it was open took the new copy for the former one, and dropped it.
#[test]
fn a_file_is_staged_anew_while_it_is_open() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let (engine, ino) = with_a_copy(&machine);
    let reader = engine.open(&cx, ino, READ).unwrap();
    chmod(&engine, ino, 0o600);
    background(&engine, &machine.clock);
    stage(&machine, &engine);
    assert!(bytes_of(&engine, &reader) == [1; LEN]);
    assert!(read(&engine, "file") == [1; LEN]);
    assert_eq!(engine.copies().len(), 1, "the new one");
    let state = engine.get_xattr(&cx, ino, b"user.dlio.state").unwrap();
    assert_eq!(state.as_deref(), Some(&b"staged"[..]));
    engine.release(&cx, reader);
}

/// The copy that the kernel read had lost its name, because it could not be made durable. A write went to the slow file, the kernel went on
/// reading the copy, and what was stored through the writer's mapping of it was lost.
#[test]
fn nobody_writes_while_the_kernel_reads_a_copy_that_is_lost() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let (engine, ino) = on_slow(&machine);
    engine.stage("all", vec![Vec::new()]).unwrap();
    while engine.copies().is_empty() {
        engine.stage_step().unwrap();
    }
    let reader = engine.open(&cx, ino, READ).unwrap();
    let pin = engine.pin(ino, true).unwrap();
    machine.fast.inject(|op| (op.call == "sync_all").then_some(Errno::EIO));
    engine.sync_copies().unwrap_err();
    machine.fast.inject(|_| None);
    for mode in [WRITE, REPLACE] {
        assert_eq!(engine.open(&cx, ino, mode).unwrap_err().errno(), Errno::EIO);
    }
    assert!(by_the_kernel(&engine, &reader) == [1; LEN]);
    drop(pin);
    engine.release(&cx, reader);
    write_arrives(&machine, &engine, ino);
}

/// Another file had got the name of the copy that was read. The first write went to the copy, and the other file became the object.
#[test]
fn a_copy_whose_name_another_file_has_does_not_become_the_object() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let (engine, ino) = with_a_copy(&machine);
    let reader = engine.open(&cx, ino, READ).unwrap();
    let staged = machine.fast.root().dir(b".dlio-fs").unwrap().dir(b"staged").unwrap();
    let copies = staged.list().unwrap().into_iter().filter(|entry| entry.kind == Kind::Dir && entry.name != b"new");
    for shard in copies.map(|entry| staged.dir(&entry.name).unwrap()) {
        for entry in shard.list().unwrap() {
            shard.create(b"another", 0o600).unwrap().write_at(&[2; LEN], 0).unwrap();
            shard.rename(b"another", &*shard, &entry.name, RenameMode::Replace).unwrap();
        }
    }
    let writer = engine.open(&cx, ino, WRITE).unwrap();
    engine.write(&cx, &writer, b"written", 100, false).unwrap();
    assert!(bytes_of(&engine, &reader) == written_at_100(b"written"));
    engine.release(&cx, writer);
    engine.release(&cx, reader);
    drain(&engine);
    assert!(machine.on_slow("file").unwrap() == written_at_100(b"written"));
}

/// The attributes of a staged file did not fit on the fast tier. It was written on the slow tier from then on, and the kernel went on reading
/// the copy.
#[test]
fn nobody_writes_what_the_kernel_reads_if_its_attributes_do_not_fit() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let (engine, ino) = with_a_copy(&machine);
    engine.set_xattr(&cx, ino, b"user.tag", b"large", false, false).unwrap();
    background(&engine, &machine.clock);
    stage(&machine, &engine);
    let reader = engine.open(&cx, ino, READ).unwrap();
    let pin = engine.pin(ino, true).unwrap();
    machine
        .fast
        .inject(|op| (op.call == "set_xattr" && op.path.starts_with(b".dlio-fs/pool/")).then_some(Errno::ENOSPC));
    assert_eq!(engine.open(&cx, ino, WRITE).unwrap_err().errno(), Errno::ENOSPC);
    assert!(by_the_kernel(&engine, &reader) == [1; LEN]);
    drop(pin);
    engine.release(&cx, reader);
    write_arrives(&machine, &engine, ino);
}

/// A staged file was truncated at its open while the kernel read its copy. It was written on the slow tier from then on, and everybody
/// went on reading the copy, whoever wrote too.
#[test]
fn a_file_that_is_replaced_while_the_kernel_reads_its_copy_is_read_anew() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let (engine, ino) = with_a_copy(&machine);
    let reader = engine.open(&cx, ino, READ).unwrap();
    let pin = engine.pin(ino, true).unwrap();
    let backing = engine.backing(&reader).unwrap();
    let writer = engine.open(&cx, ino, REPLACE).unwrap();
    engine.write(&cx, &writer, b"new", 0, false).unwrap();
    assert!(bytes_of(&engine, &writer) == b"new");
    let mut got = [0; LEN];
    assert_eq!((backing.read_at(&mut got, 0).unwrap(), &got[..3]), (3, &b"new"[..]), "the kernel reads it");
    engine.release(&cx, writer);
    drop(pin);
    engine.release(&cx, reader);
    drain(&engine);
    assert_eq!(machine.on_slow("file").unwrap(), b"new");
}

/// The same without the kernel, of a file that somebody has given a second name on the slow tier meanwhile.
#[test]
fn what_is_written_in_place_to_a_file_with_a_copy_is_read() {
    let (mut machine, cx) = (Machine::new(), Cx::internal());
    machine.options.attribute_lifetime_slow = Duration::from_secs(3600);
    let (engine, ino) = with_a_copy(&machine);
    let reader = engine.open(&cx, ino, READ).unwrap();
    let root = machine.slow.root();
    root.link(b"file", &*root, b"other").unwrap();
    let writer = engine.open(&cx, ino, REPLACE).unwrap();
    engine.write(&cx, &writer, b"new", 0, false).unwrap();
    for file in [&writer, &reader] {
        assert!(bytes_of(&engine, file) == b"new");
    }
    engine.release(&cx, writer);
    engine.release(&cx, reader);
    assert_eq!(machine.on_slow("other").unwrap(), b"new");
}

/// A version that lies on the slow tier and waits to be published is not changed: whoever writes next gets a new object. The kernel went on
/// reading the former one, and so did all who opened the file then.
#[test]
fn the_kernel_does_not_read_what_waits_on_the_slow_tier_to_be_published() {
    let (mut machine, cx) = (Machine::new(), Cx::internal());
    let past = PathRule { path: "**".to_owned(), absorb: Some(false), ..PathRule::default() };
    machine.options.rules = Rules::new(&Config { rules: vec![past], ..Config::default() }).unwrap();
    let engine = machine.open("boot");
    let (ino, file) = create(&engine, ROOT, "file", &[1; LEN]);
    engine.fsync(&cx, &file).unwrap();
    engine.release(&cx, file);
    let read_beside = || {
        let reader = engine.open(&cx, ino, READ).unwrap();
        let pin = engine.pin(ino, true);
        let backing = pin.as_ref().map(|_| engine.backing(&reader).unwrap());
        let writer = engine.open(&cx, ino, WRITE).unwrap();
        engine.write(&cx, &writer, b"written", 100, false).unwrap();
        let by_kernel = backing.map(|backing| {
            let mut got = [0; 7];
            backing.read_at(&mut got, 100).unwrap();
            got
        });
        engine.release(&cx, writer);
        drop(pin);
        engine.release(&cx, reader);
        by_kernel
    };
    while engine.drain_step().unwrap() == Progress::Did {}
    assert_eq!(read_beside(), None, "it is copied, and not published");
    drain(&engine);
    assert_eq!(read_beside().as_ref(), Some(b"written"), "it is published, and the kernel reads it");
    drain(&engine);
    assert!(machine.on_slow("file").unwrap() == written_at_100(b"written"));
}

/// Reads of files below this directory of the fast tier fail, and another thread meets the same between a read's call and its error.
fn two_reads_fail(machine: &Machine, engine: &Arc<Tiers>, file: OpenFile, dir: &'static [u8]) {
    let (shared, reads) = (Arc::new(OnceLock::from(file)), Arc::new(AtomicUsize::new(0)));
    let (other, mount, count) = (Arc::clone(&shared), Arc::downgrade(engine), Arc::clone(&reads));
    machine.fast.fail_reads(move |path| {
        if !path.starts_with(dir) {
            return None;
        }
        if count.fetch_add(1, Ordering::Relaxed) == 0 {
            let engine = mount.upgrade().unwrap();
            assert!(bytes_of(&engine, other.get().unwrap()) == [1; LEN], "the other thread");
        }
        Some(Errno::EIO)
    });
    assert!(bytes_of(engine, shared.get().unwrap()) == [1; LEN], "this thread");
    assert_eq!(reads.load(Ordering::Relaxed), 2);
    machine.fast.fail_reads(|_| None);
    let file = Arc::into_inner(shared).map_or_else(|| unreachable!("nobody else has it"), OnceLock::into_inner);
    engine.release(&Cx::internal(), file.unwrap());
}

/// Two threads read a fast copy that cannot be read. One dropped it and went to the slow tier; the program of the other got EIO.
#[test]
fn of_two_reads_of_a_copy_that_cannot_be_read_both_go_to_the_slow_tier() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let (engine, ino) = with_a_copy(&machine);
    let engine = Arc::new(engine);
    let file = engine.open(&cx, ino, READ).unwrap();
    two_reads_fail(&machine, &engine, file, b".dlio-fs/staged/");

    let machine = Machine::new();
    let engine = Arc::new(machine.open("boot"));
    let (ino, file) = create(&engine, ROOT, "file", &[1; LEN]);
    engine.release(&cx, file);
    drain(&engine);
    let file = engine.open(&cx, ino, READ).unwrap();
    two_reads_fail(&machine, &engine, file, b".dlio-fs/pool/");
}

/// The disk had become read-only: a copy could be neither read nor removed. The read got the error of the removal, and so did an open after
/// a change on the slow tier. While the copies of the mount before were still being looked for, the copy would be found again each time.
#[test]
fn a_copy_that_can_be_neither_read_nor_removed_is_done_without() {
    for remount in [false, true] {
        let (mut machine, cx) = (Machine::new(), Cx::internal());
        let (mut engine, _) = with_a_copy(&machine);
        if remount {
            engine.sync_copies().unwrap();
            machine.crash(engine, Lose::Nothing);
            engine = machine.open("boot");
        }
        machine.fast.inject(|op| (op.call == "unlink").then_some(Errno::EROFS));
        machine.fast.fail_reads(|path| path.starts_with(b".dlio-fs/staged/").then_some(Errno::EIO));
        let ino = engine.lookup(&cx, ROOT, &name("file")).unwrap().ino;
        let reader = engine.open(&cx, ino, READ).unwrap();
        assert!(bytes_of(&engine, &reader) == [1; LEN], "{remount}");
        engine.release(&cx, reader);
        while engine.find_copies_step().unwrap() == Progress::Did {}
        assert!(read(&engine, "file") == [1; LEN], "{remount}");
        assert_eq!(engine.copies(), [0; 0], "{remount}");
    }
}

/// As above, where the copy is given up because the slow file is another.
#[test]
fn a_copy_of_a_former_version_that_cannot_be_removed_is_done_without() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let (engine, ino) = with_a_copy(&machine);
    machine.clock.advance(Duration::from_secs(600));
    machine.slow.root().open(b"file", Access::ReadWrite).unwrap().write_at(b"written", 100).unwrap();
    machine.fast.inject(|op| (op.call == "unlink").then_some(Errno::EROFS));
    let reader = engine.open(&cx, ino, READ).unwrap();
    assert!(bytes_of(&engine, &reader) == written_at_100(b"written"));
    engine.release(&cx, reader);
}

/// A drain that is paused by day kept the training data of the whole day on the slow tier.
#[test]
fn a_paused_drain_does_not_hold_staging() {
    let machine = Machine::new();
    let (engine, _) = on_slow(&machine);
    engine.pause(true);
    engine.release(&Cx::internal(), create(&engine, ROOT, "checkpoint", &[1; 2 << 20]).1);
    while engine.seal_step().unwrap() == Progress::Did {}
    // The burst of writes is over.
    machine.clock.advance(Duration::from_secs(600));
    engine.tick().unwrap();
    stage(&machine, &engine);
    assert_eq!(engine.copies().len(), 1, "{:?}", engine.staging());
}
