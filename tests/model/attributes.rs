//! Stories of attributes that only one of the two tiers can have.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dlio_fs::config::{Config, PathRule, Rules};
use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Dir, Kind, NewAttr};
use dlio_fs::tiers::{Cx, ROOT, Tiers};

use crate::sim::{ACCESS_ACL, DEFAULT_ACL, Lose};
use crate::stories::{Machine, WRITE, create, name};
use crate::walk;

fn all_down(engine: &Tiers) {
    engine.sync_fast().unwrap();
    while engine.status().safety.events > 0 {
        engine.drain_step().unwrap();
        engine.publish_step().unwrap();
    }
}

/// P16. An attribute for which the slow tier has no room, beside the others of the node or at all, held the whole log for good.
#[test]
fn an_attribute_that_the_slow_tier_never_takes_is_left_out_and_counted() {
    for errno in [Errno::ENOSPC, Errno::E2BIG, Errno::ERANGE, Errno::EOPNOTSUPP] {
        for of_new_file in [false, true] {
            let (machine, cx) = (Machine::new(), Cx::internal());
            let engine = machine.open("boot");
            engine.mkdir(&cx, ROOT, &name("d"), 0o755, 0).unwrap();
            let at = if of_new_file { "f" } else { "d" };
            if of_new_file {
                engine.release(&cx, create(&engine, ROOT, "f", &[1; 300]).1);
            } else {
                all_down(&engine);
            }
            let ino = engine.lookup(&cx, ROOT, &name(at)).unwrap().ino;
            engine.set_xattr(&cx, ino, b"user.key", b"value", false, false).unwrap();
            engine.release(&cx, create(&engine, ROOT, "later", &[2; 300]).1);
            machine.slow.inject(move |op| (op.call == "set_xattr").then_some(errno));
            all_down(&engine);
            let status = engine.status();
            assert_eq!((status.safety.held, status.safety.events), (None, 0), "{errno} of {at}");
            assert_eq!(machine.on_slow("later"), Some(vec![2; 300]), "{errno} of {at}");
            assert!(
                status.exceptions.left_out == 1 && status.exceptions.conflicts == 1,
                "{errno} of {at}: {} left out",
                status.exceptions.left_out
            );
        }
    }
}

/// A full slow tier says the same, and takes the attribute once it has room: that waits.
#[test]
fn an_attribute_waits_for_a_slow_tier_that_is_full() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let engine = machine.open("boot");
    let ino = engine.mkdir(&cx, ROOT, &name("d"), 0o755, 0).unwrap().ino;
    all_down(&engine);
    engine.set_xattr(&cx, ino, b"user.key", b"value", false, false).unwrap();
    let full = Arc::new(AtomicBool::new(true));
    let is_full = full.clone();
    machine.slow.inject(move |op| (op.call == "set_xattr" && is_full.load(Ordering::Relaxed)).then_some(Errno::ENOSPC));
    machine.slow.set_capacity(machine.slow.used());
    assert_eq!(engine.publish_step().unwrap_err().errno(), Errno::ENOSPC);
    full.store(false, Ordering::Relaxed);
    machine.slow.set_capacity(1 << 30);
    all_down(&engine);
    assert_eq!(machine.slow.root().get_xattr(b"d", b"user.key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(engine.status().exceptions.left_out, 0);
}

/// P16. What a slow tier keeps of its own in attributes went into the object at the first write, and with the next version to another file.
/// Where the fast tier refused it, so did the write.
#[test]
fn attributes_that_belong_to_the_tier_stay_there() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let file = machine.slow.root().create(b"model", 0o644).unwrap();
    file.write_at(&[1; 300], 0).unwrap();
    for key in [
        &b"trusted.lov"[..],
        b"trusted.SGI_ACL_FILE",
        b"trusted.glusterfs.volume",
        b"security.selinux",
        b"user.mine",
        b"trusted.mine",
    ] {
        file.set_xattr(key, b"value").unwrap();
    }
    let engine = machine.open("boot");
    let ino = engine.lookup(&cx, ROOT, &name("model")).unwrap().ino;
    let file = engine.open(&cx, ino, WRITE).unwrap();
    engine.write(&cx, &file, &[2; 300], 300, false).unwrap();
    engine.release(&cx, file);
    all_down(&engine);
    let kept: Vec<Vec<u8>> = machine.slow.root().list_xattr(b"model").unwrap();
    assert_eq!(kept, [b"trusted.mine".to_vec(), b"user.mine".to_vec()]);
    let refused = engine.set_xattr(&cx, ino, b"trusted.lov", b"value", false, false);
    assert_eq!(refused.unwrap_err().errno(), Errno::EOPNOTSUPP);
}

/// P16. Beyond the largest file of the slow tier a size held the whole log for good; the simulated disks have none above 16 TiB.
#[test]
fn a_size_beyond_the_largest_file_of_the_slow_tier_is_refused_at_the_call() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let engine = machine.open("boot");
    let (_, file) = create(&engine, ROOT, "model", &[1; 300]);
    assert_eq!(engine.write(&cx, &file, &[1], 1 << 44, false).unwrap_err().errno(), Errno::EFBIG);
    engine.write(&cx, &file, &[1], (1 << 44) - 1, false).unwrap();
    assert_eq!(machine.slow.root().dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap().list().unwrap().len(), 1);
}

/// An ACL by which user 1002 may do everything.
fn list() -> Vec<u8> {
    let entries =
        [(0x01_u16, 7_u16, u32::MAX), (0x02, 7, 1002), (0x04, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 0, u32::MAX)];
    let entry =
        |(tag, perm, id): (u16, u16, u32)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    [2_u32.to_le_bytes().to_vec(), entries.into_iter().flat_map(entry).collect()].concat()
}

/// What is made in this directory gets an ACL and the group of a project.
fn gives_on(dir: &dyn Dir) {
    let group = NewAttr { gid: Some(77), perm: Some(0o2755), ..NewAttr::default() };
    dir.set_attr(b".", &group).unwrap();
    dir.set_xattr(b".", DEFAULT_ACL, &list()).unwrap();
}

/// The same for all directories of ours, as a daemon left them that took what their parents gave.
fn all_give_on(dir: &dyn Dir) {
    gives_on(dir);
    for entry in dir.list().unwrap().into_iter().filter(|entry| entry.kind == Kind::Dir) {
        all_give_on(&*dir.dir(&entry.name).unwrap());
    }
}

/// A tier's root is often a project's directory, with a default ACL and the group for what is made in it. Our own directories took both, and
/// gave them to each object and copy: on the slow tier another user read a file of mode 0640 that the view denied him (P12, P14).
#[test]
fn nothing_gets_an_acl_or_a_group_from_a_directory_of_ours() {
    let (mut machine, cx) = (Machine::new(), Cx::internal());
    let past = PathRule { path: "**/past".to_owned(), absorb: Some(false), ..PathRule::default() };
    machine.options.rules = Rules::new(&Config { rules: vec![past], ..Config::default() }).unwrap();
    let root = machine.slow.root();
    for (above, made) in [("", "alice"), ("", "part"), ("part", "alice")] {
        let above = if above.is_empty() { root.clone() } else { root.dir(above.as_bytes()).unwrap() };
        above.mkdir(made.as_bytes(), 0o755).unwrap();
    }
    machine.slow.make_part(b"part", 7);
    [machine.fast.root(), root.clone(), root.dir(b"part").unwrap()].iter().for_each(|dir| gives_on(&**dir));
    machine.slow.settle();
    for start in ["first", "second"] {
        let engine = machine.open("boot");
        for place in ["alice", "part/alice"] {
            let dir = place.split('/').fold(ROOT, |at, one| engine.lookup(&cx, at, &name(one)).unwrap().ino);
            let dir = engine.mkdir(&cx, dir, &name(start), 0o755, 0).unwrap().ino;
            for file in ["f", "past"] {
                engine.release(&cx, create(&engine, dir, file, &[1; 5000]).1);
            }
            engine.mkdir(&cx, dir, &name("d"), 0o755, 0).unwrap();
            engine.mknod(&cx, dir, &name("fifo"), Kind::Fifo, 0o640, 0, 0).unwrap();
            engine.symlink(&cx, dir, &name("link"), b"f").unwrap();
        }
        all_down(&engine);
        let (shown, drained) = (walk::view(&engine, &mut Vec::new()).unwrap(), machine.slow.image());
        assert!(drained == shown, "{start} start: {}", drained.diff(&shown, "slow", "view"));
        for place in ["alice", "part/alice"] {
            let dir = root.walk(format!("{place}/{start}").as_bytes()).unwrap();
            for entry in dir.list().unwrap().iter().map(|entry| &entry.name[..]).chain([&b"."[..]]) {
                let lists = [ACCESS_ACL, DEFAULT_ACL].map(|key| dir.get_xattr(entry, key).unwrap());
                assert_eq!(
                    (lists, dir.stat(entry).unwrap().gid),
                    ([None, None], 0),
                    "{start} start: {place}: {}",
                    entry.escape_ascii()
                );
            }
        }
        drop(engine);
        [machine.fast.root(), root.clone(), root.dir(b"part").unwrap()]
            .iter()
            .for_each(|dir| all_give_on(&*dir.dir(b".dlio-fs").unwrap()));
    }
}

/// An ACL and the mode that it implies were two appends to the log: a kill between them left the ACL with the mode from before, which no
/// program had ever seen. Found by the storm.
#[test]
fn an_acl_comes_with_its_mode_or_not_at_all() {
    let entry = |(tag, perm, id): (u16, u16, u32)| {
        [tag.to_le_bytes().to_vec(), perm.to_le_bytes().to_vec(), id.to_le_bytes().to_vec()].concat()
    };
    // Owner rw, user 1000 rw, group r, mask rw, others nothing.
    let entries = [(1, 6, u32::MAX), (2, 6, 1000), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
    let acl = [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat();
    let mut outcomes = BTreeSet::new();
    for stop in 1..20 {
        let (mut machine, cx) = (Machine::new(), Cx::internal());
        let engine = machine.open("boot");
        let (ino, file) = create(&engine, ROOT, "file", b"bytes");
        engine.release(&cx, file);
        machine.power.fail_after(stop, &mut machine.rng);
        let set = engine.set_xattr(&cx, ino, ACCESS_ACL, &acl, false, false);
        if !machine.power.is_gone() {
            set.unwrap();
        }
        machine.power.restore();
        machine.crash(engine, Lose::Nothing);
        let engine = machine.open("boot");
        let ino = engine.lookup(&cx, ROOT, &name("file")).unwrap().ino;
        let has_acl = engine.get_xattr(&cx, ino, ACCESS_ACL).unwrap().is_some();
        let perm = engine.getattr(&cx, ino).unwrap().perm;
        assert_eq!(perm, if has_acl { 0o660 } else { 0o644 }, "stop {stop}");
        outcomes.insert(has_acl);
    }
    assert_eq!(outcomes.len(), 2, "{outcomes:?}");
}
