//! A file that is nearly all hole costs what its data costs, wherever it is copied, hashed or compared.

use std::time::Duration;

use dlio_fs::config::{Config, Rules, Verify};
use dlio_fs::tiers::disk::{Access, File, Seek};
use dlio_fs::tiers::{Cx, Ino, OpenFile, ROOT, SetAttr, StageOutcome, Tiers, Verified};

use crate::sim::SimDisk;
use crate::stories::{Machine, create, drain, name};

/// LMDB with a map of 1 TiB, the image of a disk.
const SIZE: u64 = 1 << 40;
const DATA: [u64; 3] = [0, 1 << 20, 40 << 30];
const BYTES: &[u8] = &[7; 4096];
/// What may be read of a tier for some 12 KiB of data, and how often it may be asked for anything.
const READ_MAX: u64 = 64 << 20;
const LOOKS_MAX: u64 = 3000;

/// Open, with what nobody has closed.
fn sparse(engine: &Tiers, file: &str, size: u64, data: &[u64]) -> (Ino, OpenFile) {
    let cx = Cx::internal();
    let (ino, open) = create(engine, ROOT, file, &[]);
    engine.setattr(&cx, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    data.iter().for_each(|at| engine.write(&cx, &open, BYTES, *at, false).unwrap());
    (ino, open)
}

fn verified(engine: &Tiers, ino: Ino) -> Verified {
    let mut file = engine.begin_verify(&Cx::internal(), ino).unwrap().unwrap();
    // As many turns as its data takes, and some.
    let mut turns = (0..20).map(|_| engine.verify_some(&Cx::internal(), &mut file).unwrap());
    turns.find(|turn| *turn != Verified::More).expect("a turn passes over a hole")
}

/// The act's answer, once both disks have had little to do with it.
fn cheap<T>(machine: &Machine, what: &str, act: impl FnOnce() -> T) -> T {
    let tiers: [&SimDisk; 2] = [&machine.fast, &machine.slow];
    let before = tiers.map(SimDisk::effort);
    let done = act();
    for ((read, looks), (read_before, looks_before)) in tiers.map(SimDisk::effort).into_iter().zip(before) {
        let (read, looks) = (read - read_before, looks - looks_before);
        assert!(read < READ_MAX && looks < LOOKS_MAX, "{what}: {read} bytes read, {looks} looks");
    }
    done
}

/// Every run of data of a slow file: from, up to.
fn runs(file: &dyn File) -> Vec<(u64, u64)> {
    let (mut runs, mut at) = (Vec::new(), 0);
    while let Ok(data) = file.seek(Seek::Data, at) {
        at = file.seek(Seek::Hole, data).unwrap();
        runs.push((data, at));
    }
    runs
}

fn on_slow(machine: &Machine, file: &str) -> Vec<(u64, u64)> {
    let file = machine.slow.root().open(file.as_bytes(), Access::Read).unwrap();
    assert_eq!(file.stat().unwrap().size, SIZE);
    runs(&*file)
}

/// The drain fed 1 TiB of zeros to the hash of 12 KiB, which took minutes, and what came behind it waited; to read the copy back, or to
/// compare the two, each zero was read as well.
#[test]
fn a_hole_costs_nothing_to_copy_to_read_back_and_to_compare() {
    let mut machine = Machine::new();
    machine.options.rules = Rules::new(&Config { verify: Verify::Bytes, ..Config::default() }).unwrap();
    let engine = machine.open("boot");
    let (ino, file) = sparse(&engine, "data.mdb", SIZE, &DATA);
    engine.release(&Cx::internal(), file);
    cheap(&machine, "drain", || drain(&engine));
    assert_eq!(on_slow(&machine, "data.mdb"), DATA.map(|at| (at, at + 4096)));
    assert_eq!(cheap(&machine, "verify", || verified(&engine, ino)), Verified::Same);

    // A byte in what is a hole of the other copy.
    let damaged = machine.slow.root().open(b"data.mdb", Access::ReadWrite).unwrap();
    let before = damaged.stat().unwrap();
    damaged.write_at(&[1], 77 << 30).unwrap();
    let times = dlio_fs::tiers::disk::NewAttr { mtime: Some(before.mtime), ..Default::default() };
    damaged.set_attr(&times).unwrap();
    // Its ctime tells; with the fingerprint taken anew nothing does.
    assert_eq!(
        cheap(&machine, "verify", || engine.begin_verify(&Cx::internal(), ino).unwrap().err()),
        Some(Verified::Changed)
    );
}

/// Of a file that stopped fitting the head was taken in MiB by MiB, with its holes.
#[test]
fn a_hole_costs_nothing_in_the_head_of_a_file_that_stopped_fitting() {
    let machine = Machine::new();
    machine.fast.set_capacity(200 << 10);
    let (engine, cx) = (machine.open("boot"), Cx::internal());
    let (_, file) = sparse(&engine, "image", SIZE, &DATA);
    let from = 500 << 30;
    cheap(&machine, "split", || engine.write(&cx, &file, &vec![5; 300 << 10], from, false).unwrap());
    assert_eq!(engine.status().exceptions.spilled, 1);
    engine.release(&cx, file);
    cheap(&machine, "drain", || drain(&engine));
    let wanted = DATA.map(|at| (at, at + 4096)).into_iter().chain([(from, from + (300 << 10))]);
    assert_eq!(on_slow(&machine, "image"), wanted.collect::<Vec<_>>());
}

#[test]
fn a_hole_costs_nothing_to_stage() {
    let (machine, cx) = (Machine::new(), Cx::internal());
    let file = machine.slow.root().create(b"shard", 0o644).unwrap();
    file.set_len(600 << 20).unwrap();
    file.write_at(BYTES, 400 << 20).unwrap();
    machine.clock.advance(Duration::from_secs(100));
    let engine = machine.open("boot");
    let ino = engine.lookup(&cx, ROOT, &name("shard")).unwrap().ino;
    let staged = cheap(&machine, "stage", || engine.stage_file(&cx, ino, &mut |_| true).unwrap());
    assert_eq!(staged, StageOutcome::Copied(600 << 20));
}
