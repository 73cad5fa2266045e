//! Stories of names and inode numbers that go to another file: what waits for the one before is not done to it, and nobody
//! reads it by the rights of the one before.

use std::sync::Arc;
use std::time::Duration;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Dir, Kind, NewAttr, RenameMode};
use dlio_fs::tiers::{Cx, Ino, OpenMode, Progress, ROOT, SetAttr, Tiers};

use crate::sim::{Lose, Numbers};
use crate::stories::{Machine, WRITE, create, name};

const SHE: u32 = 1001;
const HE: u32 = 1002;
const READ: OpenMode = OpenMode { write: false, truncate: false, append: false };

/// A change of his that waits while his file becomes hers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Mode,
    SetId,
    Owner,
    Xattr,
    Link,
    Rename,
    Remove,
    Bytes,
}

impl Pending {
    const ALL: [Pending; 8] = [
        Pending::Mode,
        Pending::SetId,
        Pending::Owner,
        Pending::Xattr,
        Pending::Link,
        Pending::Rename,
        Pending::Remove,
        Pending::Bytes,
    ];

    /// Whether it is the owner that tells, on a tier that tells no births.
    fn is_of_attributes(self) -> bool {
        matches!(self, Pending::Mode | Pending::SetId | Pending::Owner | Pending::Xattr)
    }

    fn make(self, engine: &Tiers, his: Ino) {
        let cx = Cx::internal();
        let set = |attr: NewAttr| {
            engine.setattr(&cx, his, &SetAttr { size: None, attr }).unwrap();
        };
        match self {
            Pending::Mode => set(NewAttr { perm: Some(0o666), ..NewAttr::default() }),
            Pending::SetId => set(NewAttr { perm: Some(0o4755), ..NewAttr::default() }),
            Pending::Owner => set(NewAttr { uid: Some(77), ..NewAttr::default() }),
            Pending::Xattr => engine.set_xattr(&cx, his, b"user.of", b"him", false, false).unwrap(),
            Pending::Link => {
                engine.link(&cx, his, ROOT, &name("second")).unwrap();
            }
            Pending::Rename => engine.rename(&cx, ROOT, &name("x"), ROOT, &name("y"), RenameMode::Replace).unwrap(),
            Pending::Remove => engine.unlink(&cx, ROOT, &name("x")).unwrap(),
            Pending::Bytes => {
                let file = engine.open(&cx, his, WRITE).unwrap();
                engine.write(&cx, &file, b"again", 0, false).unwrap();
                engine.release(&cx, file);
            }
        }
    }
}

/// His file is on the slow tier.
fn machine(births: bool) -> Machine {
    let machine = Machine::new();
    machine.slow.give_numbers(Numbers { at_once: true, births });
    of(&*machine.slow.root(), "x", HE, 0o644, b"his");
    machine.slow.settle();
    machine
}

fn of(root: &dyn Dir, file: &str, uid: u32, perm: u32, bytes: &[u8]) {
    let file = root.create(file.as_bytes(), perm).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.set_attr(&NewAttr { uid: Some(uid), gid: Some(uid), perm: Some(perm), ..NewAttr::default() }).unwrap();
}

/// Her file gets the number of his, and his name.
fn becomes_hers(machine: &Machine) {
    let root = machine.slow.root();
    let number = root.stat(b"x").unwrap().ino;
    root.unlink(b"x").unwrap();
    let mut others = Vec::new();
    loop {
        of(&*root, "hers", SHE, 0o600, b"hers");
        if root.stat(b"hers").unwrap().ino == number {
            break;
        }
        // A lower number was free.
        others.push(format!("other{}", others.len()).into_bytes());
        root.rename(b"hers", &*root, &others[others.len() - 1], RenameMode::Replace).unwrap();
        assert!(others.len() < 100, "{number} is not given out again");
    }
    others.iter().for_each(|other| root.unlink(other).unwrap());
    root.rename(b"hers", &*root, b"x", RenameMode::Replace).unwrap();
}

fn all_down(engine: &Tiers) {
    engine.sync_fast().unwrap();
    for _ in 0..20 {
        engine.seal_step().unwrap();
        engine.drain_step().unwrap();
        engine.publish_step().unwrap();
    }
    assert_eq!(engine.status().safety.events, 0);
}

fn is_hers(machine: &Machine, what: &str) {
    let root = machine.slow.root();
    let stat = root.stat(b"x").unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!((stat.uid, stat.gid, stat.perm), (SHE, SHE, 0o600), "{what}");
    assert_eq!(root.get_xattr(b"x", b"user.of").unwrap(), None, "{what}");
    assert_eq!(machine.on_slow("x").unwrap(), b"hers", "{what}");
    for other in [&b"second"[..], b"y"] {
        assert_eq!(root.stat(other).unwrap_err().kind(), std::io::ErrorKind::NotFound, "{what}");
    }
}

/// On xfs a number is given out again at once. A user removed his file on the slow tier, root's new program got its number, he gave it the
/// name: his `chmod 4755`, which waited, made it set-id. The same with hers, which he could read then; also while the group is under way, and
/// after a start.
#[test]
fn what_waits_for_a_file_is_not_done_to_the_next_one_with_its_number() {
    for (pending, births) in Pending::ALL.into_iter().flat_map(|pending| [(pending, true), (pending, false)]) {
        if !births && !pending.is_of_attributes() {
            continue;
        }
        for (in_group, restarts) in [(false, false), (true, false), (false, true), (true, true)] {
            let what = format!("{pending:?}, births {births}, in a group {in_group}, a start {restarts}");
            let mut machine = machine(births);
            let mut engine = machine.open("boot");
            let his = engine.lookup(&Cx::internal(), ROOT, &name("x")).unwrap().ino;
            pending.make(&engine, his);
            engine.forget(his, 1);
            engine.sync_fast().unwrap();
            if in_group {
                machine.slow.inject(|op| (!op.private || op.to == b"x").then_some(Errno::EACCES));
                while engine.drain_step().unwrap() == Progress::Did {}
                assert!(engine.publish_step().is_err(), "{what}");
                machine.slow.inject(|_| None);
            }
            becomes_hers(&machine);
            if restarts {
                machine.crash(engine, Lose::Nothing);
                engine = machine.open("boot");
            }
            all_down(&engine);
            is_hers(&machine, &what);
            machine.clock.advance(Duration::from_secs(3600));
            let shown = engine.lookup(&Cx::internal(), ROOT, &name("x")).unwrap();
            assert_eq!((shown.uid, shown.perm), (SHE, 0o600), "{what}");
        }
    }
}

/// The kernel lets in whom his file lets in. It has to see hers before anybody opens it, whether a change of his waits or not.
#[test]
fn the_next_file_with_a_number_is_not_opened_for_whom_the_one_before_let_in() {
    let cx = Cx::internal();
    for (births, changes) in [(true, true), (true, false), (false, true), (false, false)] {
        let machine = machine(births);
        let engine = machine.open("boot");
        let his = engine.lookup(&cx, ROOT, &name("x")).unwrap().ino;
        if changes {
            Pending::Mode.make(&engine, his);
        }
        becomes_hers(&machine);
        assert_eq!(engine.open(&cx, his, READ).unwrap_err().errno(), Errno::ESTALE, "births {births}, {changes}");
        let shown = engine.lookup(&cx, ROOT, &name("x")).unwrap();
        assert_eq!((shown.uid, shown.perm), (SHE, 0o600), "births {births}, {changes}");
        let file = engine.open(&cx, shown.ino, READ).unwrap();
        let mut bytes = [0; 4];
        engine.read(&cx, &file, &mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"hers");
        engine.release(&cx, file);
        all_down(&engine);
        is_hers(&machine, "opened");
    }
}

/// A file that is too large to be copied up is written where it is.
#[test]
fn the_next_file_with_a_number_is_not_written_in_place() {
    let cx = Cx::internal();
    let mut machine = machine(true);
    machine.options.copy_up_max = 0;
    let engine = machine.open("boot");
    let his = engine.lookup(&cx, ROOT, &name("x")).unwrap().ino;
    becomes_hers(&machine);
    assert_eq!(engine.open(&cx, his, WRITE).unwrap_err().errno(), Errno::ESTALE);
    is_hers(&machine, "written");
}

/// The name went to another file while no daemon ran, or the directory of that name was hers: neither takes a number that was free. The
/// set-id bits of his new file were set on her program.
#[test]
fn attributes_that_wait_behind_a_new_file_are_given_to_nobody_elses() {
    let cx = Cx::may_wait(HE, HE, Arc::default());
    let set_id = |engine: &Tiers, ino: Ino, perm: u32| {
        let attr = NewAttr { perm: Some(perm), ..NewAttr::default() };
        engine.setattr(&Cx::internal(), ino, &SetAttr { size: None, attr }).unwrap();
    };
    let mut machine = machine(true);
    let engine = machine.open("boot");
    let (ino, file) = create(&engine, ROOT, "new", b"his");
    engine
        .setattr(
            &Cx::internal(),
            ino,
            &SetAttr { size: None, attr: NewAttr { uid: Some(HE), gid: Some(HE), ..NewAttr::default() } },
        )
        .unwrap();
    engine.release(&cx, file);
    set_id(&engine, ino, 0o4755);
    engine.sync_fast().unwrap();
    machine.slow.inject(|op| (op.call == "set_attr" && !op.private).then_some(Errno::EIO));
    while engine.drain_step().unwrap() == Progress::Did {}
    while engine.publish_step().is_ok() {}
    machine.slow.inject(|_| None);
    let root = machine.slow.root();
    of(&*root, "program", SHE, 0o755, b"program");
    root.rename(b"program", &*root, b"new", RenameMode::Replace).unwrap();
    machine.crash(engine, Lose::Nothing);
    let engine = machine.open("boot");
    all_down(&engine);
    let there = machine.slow.root().stat(b"new").unwrap();
    assert_eq!((there.uid, there.perm), (SHE, 0o755));

    let made = engine.mkdir(&cx, ROOT, &name("dir"), 0o755, 0).unwrap();
    set_id(&engine, made.ino, 0o2777);
    let root = machine.slow.root();
    root.mkdir(b"dir", 0o700).unwrap();
    root.set_attr(b"dir", &NewAttr { uid: Some(SHE), gid: Some(SHE), ..NewAttr::default() }).unwrap();
    all_down(&engine);
    let there = root.stat(b"dir").unwrap();
    assert_eq!((there.kind, there.uid, there.perm), (Kind::Dir, SHE, 0o700));
}
