//! A refusal holds its user, and nobody else (P15), told on simulated disks.

use std::collections::BTreeMap;
use std::time::Duration;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{NewAttr, RenameMode};
use dlio_fs::tiers::{Cx, Ino, OpenFile, OpenMode, Progress, ROOT, SetAttr, Tiers};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::sim::image::Image;
use crate::sim::{Lose, SimDisk};
use crate::stories::{Machine, WRITE, name};
use crate::walk;

const SHE: u32 = 1001;
const HE: u32 = 1002;
const IT: u32 = 1003;

fn cx(user: u32) -> Cx {
    Cx::may_wait(user, user, std::sync::Arc::default())
}

fn find(engine: &Tiers, path: &str) -> Option<Ino> {
    let step = |at: Ino, part: &str| Some(engine.lookup(&Cx::internal(), at, &name(part)).ok()?.ino);
    path.split('/').try_fold(ROOT, step)
}

fn open_new(engine: &Tiers, user: u32, dir: Ino, file: &str, bytes: &[u8]) -> OpenFile {
    let (_, open) = engine.create(&cx(user), dir, &name(file), 0o644, 0, WRITE).unwrap();
    engine.write(&cx(user), &open, bytes, 0, false).unwrap();
    open
}

fn put(engine: &Tiers, user: u32, dir: Ino, file: &str, bytes: &[u8]) {
    let open = open_new(engine, user, dir, file, bytes);
    engine.flush(&cx(user), &open).unwrap();
    engine.release(&cx(user), open);
}

fn rename(engine: &Tiers, user: u32, dir: Ino, from: &str, to: &str) {
    engine.rename(&cx(user), dir, &name(from), dir, &name(to), RenameMode::Replace).unwrap();
}

/// What begins with `he-` gets no name on the slow tier, loses none, and does not change.
fn refuse(disk: &SimDisk) {
    let changes = ["rename", "unlink", "rmdir", "link", "set_attr", "set_xattr"];
    disk.inject(move |op| {
        let last = op.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let is_his = |name: &[u8]| name.starts_with(b"he-");
        (changes.contains(&op.call) && (is_his(last) || is_his(&op.to))).then_some(Errno::EACCES)
    });
}

fn allow(disk: &SimDisk) {
    disk.inject(|_| None);
}

/// All that the background does, until nothing gets on. Time passes, as a move that follows another at once waits.
fn work(machine: &Machine, engine: &Tiers) {
    for _ in 0..300 {
        let did = [engine.seal_step(), engine.drain_patiently(0), engine.publish_patiently()];
        machine.clock.advance(Duration::from_millis(100));
        if did[2].is_ok() {
            engine.report("publish", None);
        }
        if !did.iter().any(|did| matches!(did, Ok(Progress::Did))) {
            return;
        }
    }
    panic!("no rest: {:?}", engine.queue(10));
}

/// Each user's files, in a directory of theirs, have rising numbers. What came later is never there without what came
/// before.
fn expect_prefixes(images: &[Image], what: &str) {
    for image in images {
        let mut there: BTreeMap<Vec<u8>, Vec<u32>> = BTreeMap::new();
        for path in image.paths() {
            let text = String::from_utf8_lossy(path).into_owned();
            if let Some((user, number)) =
                text.split_once('/').and_then(|(user, file)| Some((user, file.rsplit_once("-f")?.1)))
            {
                there.entry(user.into()).or_default().push(number.parse().unwrap());
            }
        }
        for (user, mut numbers) in there {
            numbers.sort_unstable();
            let whole: Vec<u32> = (0..numbers.len() as u32).collect();
            assert_eq!(numbers, whole, "{what}: of {} on the slow tier", String::from_utf8_lossy(&user));
        }
    }
}

/// A program of some user.
struct Program {
    user: u32,
    /// The name of their directory, and how all their names begin.
    who: &'static str,
    count: u32,
}

impl Program {
    const ALL: [(u32, &'static str); 3] = [(SHE, "she"), (HE, "he"), (IT, "it")];

    fn all() -> Vec<Program> {
        Program::ALL.map(|(user, who)| Program { user, who, count: 0 }).into()
    }

    /// Some changes, and then the next file.
    fn act(&mut self, engine: &Tiers, dice: &mut Xoshiro256PlusPlus, shared: bool) {
        let Program { user, who, count } = *self;
        let dir = find(engine, who).unwrap();
        let file = |number: u32| format!("{who}-f{number}");
        let bytes = vec![count as u8; 300];
        match dice.random_range(0..9) {
            0 => {
                let sub = format!("{who}-d{count}");
                let below = engine.mkdir(&cx(user), dir, &name(&sub), 0o755, 0).unwrap().ino;
                put(engine, user, below, &format!("{who}-x"), &bytes);
                if dice.random_bool(0.5) {
                    rename(engine, user, dir, &sub, &format!("{who}-moved{count}"));
                }
            }
            1 if count > 0 => {
                let new = SetAttr { attr: NewAttr { perm: Some(0o600), ..NewAttr::default() }, size: None };
                let ino = engine.lookup(&cx(user), dir, &name(&file(dice.random_range(0..count)))).unwrap().ino;
                engine.setattr(&cx(user), ino, &new).unwrap();
                engine.set_xattr(&cx(user), ino, b"user.n", &bytes[..9], false, false).unwrap();
            }
            // Written anew: while a version that is written over waits for the next one, all between them go together.
            2 if count > 0 => {
                let ino = engine.lookup(&cx(user), dir, &name(&file(dice.random_range(0..count)))).unwrap().ino;
                let open = engine.open(&cx(user), ino, OpenMode { truncate: true, ..WRITE }).unwrap();
                engine.write(&cx(user), &open, &bytes[..200], 0, false).unwrap();
                engine.release(&cx(user), open);
            }
            3 => {
                put(engine, user, dir, &format!("{who}-gone"), &bytes);
                engine.unlink(&cx(user), dir, &name(&format!("{who}-gone"))).unwrap();
            }
            4 if count > 0 => {
                let ino = engine.lookup(&cx(user), dir, &name(&file(count - 1))).unwrap().ino;
                engine.link(&cx(user), ino, dir, &name(&format!("{who}-link{count}"))).unwrap();
            }
            // All users move something to one name: whoever comes behind a held one waits, too.
            5 if shared => {
                let shared = find(engine, "shared").unwrap();
                put(engine, user, shared, &format!("{who}-new"), &bytes);
                rename(engine, user, shared, &format!("{who}-new"), "latest");
            }
            _ => {}
        }
        match dice.random_bool(0.4) {
            true => {
                put(engine, user, dir, &format!("{who}-tmp"), &bytes);
                rename(engine, user, dir, &format!("{who}-tmp"), &file(count));
            }
            false => put(engine, user, dir, &file(count), &bytes),
        }
        self.count += 1;
    }

    fn is_there(&self, machine: &Machine) -> bool {
        let dir = machine.slow.root().dir(self.who.as_bytes()).unwrap();
        (0..self.count).all(|number| dir.stat(format!("{}-f{number}", self.who).as_bytes()).is_ok())
    }
}

fn scene(machine: &Machine, engine: &Tiers) {
    for (user, who) in Program::ALL {
        engine.mkdir(&cx(user), ROOT, &name(who), 0o755, 0).unwrap();
    }
    engine.mkdir(&Cx::internal(), ROOT, &name("shared"), 0o777, 0).unwrap();
    rests(machine, engine);
    machine.slow.observe();
}

/// Everything gets to the slow tier.
fn rests(machine: &Machine, engine: &Tiers) {
    engine.sync_fast().unwrap();
    machine.clock.advance(Duration::from_secs(100));
    work(machine, engine);
    engine.tick().unwrap();
    let status = engine.status();
    assert_eq!(
        (status.safety.events, status.safety.held, status.exceptions.conflicts),
        (0, None, 0),
        "{:?}",
        engine.queue(10)
    );
    engine.check();
    let (slow, shown) = (machine.slow.image(), walk::view(engine, &mut Vec::new()).unwrap());
    assert!(slow == shown, "{}", slow.diff(&shown, "slow", "view"));
}

/// While the slow tier refuses what one user does, the changes of the others arrive, his wait in their order, and all of
/// them arrive once it no longer does. Also across restarts and crashes.
#[test]
pub fn what_is_refused_to_one_user_holds_nobody_else() {
    for seed in 0..40 {
        let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
        let shared = seed % 3 == 0;
        let mut machine = Machine::new();
        let mut boot = "boot 0".to_owned();
        let mut engine = machine.open(&boot);
        scene(&machine, &engine);
        let mut programs = Program::all();
        for round in 1..=3 {
            refuse(&machine.slow);
            for _ in 0..dice.random_range(3..15) {
                let program = dice.random_range(0..programs.len());
                programs[program].act(&engine, &mut dice, shared);
                if dice.random_bool(0.3) {
                    work(&machine, &engine);
                }
            }
            engine.sync_fast().unwrap();
            work(&machine, &engine);
            machine.clock.advance(Duration::from_secs(5));
            work(&machine, &engine);
            for other in programs.iter().filter(|other| other.user != HE && !shared) {
                assert!(other.is_there(&machine), "seed {seed}: {} waits: {:?}", other.who, engine.queue(20));
            }
            let before = walk::view(&engine, &mut Vec::new()).unwrap();
            let held = engine.status();
            if held.safety.events > 0 {
                assert!(held.held_users.iter().any(|held| held.uid == HE), "seed {seed}: {}", engine.queue(9).text());
            }
            if let Some(lose) = [None, Some(Lose::Nothing), Some(Lose::Unsynced)][dice.random_range(0..3)] {
                machine.crash(engine, lose);
                refuse(&machine.slow);
                boot = if lose == Lose::Nothing { boot } else { format!("boot {round}") };
                engine = machine.open(&boot);
                let after = walk::view(&engine, &mut Vec::new()).unwrap();
                assert!(before == after, "seed {seed}: {}", before.diff(&after, "before", "after"));
                work(&machine, &engine);
            }
            expect_prefixes(&machine.slow.take_observed(), &format!("seed {seed}"));
            if dice.random_bool(0.5) {
                allow(&machine.slow);
                rests(&machine, &engine);
                expect_prefixes(&machine.slow.take_observed(), &format!("seed {seed}"));
            }
        }
        allow(&machine.slow);
        rests(&machine, &engine);
        expect_prefixes(&machine.slow.take_observed(), &format!("seed {seed}"));
    }
}

/// A stop at any call of a move, and of what goes on behind it, loses nothing and changes no user's order.
#[test]
pub fn a_move_may_be_cut_off_at_any_call() {
    for lose in [Lose::Nothing, Lose::Unsynced] {
        for stop in 1.. {
            let mut machine = Machine::new();
            machine.rng = Xoshiro256PlusPlus::seed_from_u64(stop);
            let engine = machine.open("before");
            scene(&machine, &engine);
            let (his, hers) = (find(&engine, "he").unwrap(), find(&engine, "she").unwrap());
            refuse(&machine.slow);
            let below = engine.mkdir(&cx(HE), his, &name("he-d"), 0o755, 0).unwrap().ino;
            let open = open_new(&engine, HE, below, "he-open", &[9; 300]);
            put(&engine, HE, below, "he-tmp", &[1; 300]);
            rename(&engine, HE, below, "he-tmp", "he-x");
            put(&engine, HE, his, "he-f0", &[2; 300]);
            put(&engine, SHE, hers, "she-f0", &[3; 300]);
            put(&engine, HE, his, "he-f1", &[4; 300]);
            let new = SetAttr { attr: NewAttr { perm: Some(0o600), ..NewAttr::default() }, size: None };
            engine.setattr(&cx(HE), find(&engine, "he/he-f0").unwrap(), &new).unwrap();
            put(&engine, SHE, hers, "she-f1", &[5; 300]);
            engine.sync_fast().unwrap();
            let before = walk::view(&engine, &mut Vec::new()).unwrap();
            machine.power.fail_after(stop, &mut machine.rng);
            for _ in 0..12 {
                drop((engine.seal_step(), engine.drain_patiently(0), engine.publish_patiently()));
                machine.clock.advance(Duration::from_millis(300));
            }
            let ended = !machine.power.is_gone();
            machine.power.restore();
            drop(open);
            machine.crash(engine, lose);
            refuse(&machine.slow);
            let engine = machine.open(if lose == Lose::Nothing { "before" } else { "after" });
            let after = walk::view(&engine, &mut Vec::new()).unwrap();
            assert!(before == after, "{lose:?}, call {stop}: {}", before.diff(&after, "before", "after"));
            work(&machine, &engine);
            let there = machine.slow.root().dir(b"she").unwrap();
            assert!(there.stat(b"she-f1").is_ok(), "{lose:?}, call {stop}: {:?}", engine.queue(20));
            assert!(machine.slow.root().dir(b"he").unwrap().list().unwrap().is_empty(), "{lose:?}, call {stop}");
            allow(&machine.slow);
            rests(&machine, &engine);
            expect_prefixes(&machine.slow.take_observed(), &format!("{lose:?}, call {stop}"));
            if ended {
                break;
            }
        }
    }
}

/// Whoever waits for the slow tier to have something of theirs waits for nobody who is held, and for what is held only
/// if it is theirs.
#[test]
pub fn whoever_is_held_waits_and_nobody_else() {
    let machine = Machine::new();
    let engine = machine.open("boot");
    scene(&machine, &engine);
    refuse(&machine.slow);
    let (his, hers) = (find(&engine, "he").unwrap(), find(&engine, "she").unwrap());
    put(&engine, HE, his, "he-f0", &[1; 300]);
    put(&engine, SHE, hers, "she-f0", &[2; 300]);
    engine.sync_fast().unwrap();
    let of = |dir| engine.pending_below(dir).unwrap();
    let (awaited_by_him, awaited_by_her, all) = (of(his), of(hers), engine.last_lsn());
    work(&machine, &engine);
    assert!(!engine.has_applied(awaited_by_him) && engine.has_applied(awaited_by_her));
    assert!(engine.applied_lsn() < all, "who waits for everything waits for him");
    let held = &engine.status().held_users[..];
    assert!(matches!(held, [held] if held.uid == HE && held.reason.contains("he/he-f0")), "{held:?}");
    assert!(engine.queue_of(HE, 10).held_users.len() == 1 && engine.queue_of(SHE, 10).held_users.is_empty());
    // Further ones of his wait behind, without a move; hers go on.
    put(&engine, HE, his, "he-f1", &[1; 300]);
    put(&engine, SHE, hers, "she-f1", &[2; 300]);
    engine.sync_fast().unwrap();
    work(&machine, &engine);
    assert!(machine.slow.root().dir(b"she").unwrap().stat(b"she-f1").is_ok());
    allow(&machine.slow);
    rests(&machine, &engine);
    assert!(engine.has_applied(awaited_by_him) && engine.applied_lsn() >= all);
}
