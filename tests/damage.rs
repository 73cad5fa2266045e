//! Damage to a fast tier, over simulated disks: what is lost is noticed, named and put aside, and the rest is served.
//!
//! The scene: files in directories, synced and renamed, the first ones on the slow tier already, over three starts. Then
//! bytes are changed as a failing device or somebody with bad intentions would, and the tier is started again. Whatever was
//! changed: no panic, no hang, and every object is still in the pool or in quarantine.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "tests")]

mod sim;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dlio_fs::error::Error;
use dlio_fs::path::Name;
use dlio_fs::tiers::disk::os::{OsClock, OsDir};
use dlio_fs::tiers::disk::{Access, Dir, Kind, MetadataOrder, RenameMode};
use dlio_fs::tiers::{
    self, Bad, Cx, Evicted, Ino, OpenMode, Options, ROOT, RescueReport, Severity, SlowTree, Tiers, Verified,
};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, RngExt, SeedableRng};

use sim::{Lose, SimClock, SimDisk, SimPower};

const BOOT: &str = "boot-1";
const OTHER_BOOT: &str = "boot-2";

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn content(i: u8) -> Vec<u8> {
    vec![i + 1; 5_000 + usize::from(i)]
}

fn options() -> Options {
    Options::for_tests()
}

/// The two tiers of a machine that is not running.
struct Scene {
    fast: SimDisk,
    slow: SimDisk,
    clock: Arc<SimClock>,
}

impl Scene {
    fn empty() -> Scene {
        let (power, clock) = (SimPower::new(), SimClock::new());
        let disk = |label| SimDisk::new(label, MetadataOrder::Journaled, 1 << 30, &power, &clock);
        let (fast, slow) = (disk("fast"), disk("slow"));
        slow.settle();
        Scene { fast, slow, clock }
    }

    /// Files 0 to 2 are on the slow tier and clean, 3 to 8 are pending, of 3 in its second version.
    fn used() -> Scene {
        let scene = Scene::empty();
        scene.run(BOOT, |engine| {
            let dir = engine.mkdir(&Cx::internal(), ROOT, &name("run"), 0o755, 0).unwrap().ino;
            for i in 0..4 {
                put(engine, dir, i, &content(i));
            }
            publish_all(engine);
        });
        scene.run(BOOT, |engine| {
            let dir = find(engine, &["run"]).unwrap();
            for i in 3..6 {
                put(engine, dir, i, &content(i + 100));
            }
        });
        scene.run(BOOT, |engine| {
            let dir = find(engine, &["run"]).unwrap();
            for i in 6..9 {
                put(engine, dir, i, &content(i + 100));
            }
        })
    }

    fn open(&self, boot: &str) -> Result<Tiers, Error> {
        tiers::open(self.fast.root(), self.slow.root(), SlowTree::Writable, options(), self.clock.clone(), boot)
    }

    /// One life of a daemon, which is killed at its end.
    fn run(&self, boot: &str, act: impl FnOnce(&Tiers)) -> Scene {
        let engine = self.open(boot).unwrap();
        act(&engine);
        drop(engine);
        Scene { fast: self.fast.clone(), slow: self.slow.clone(), clock: self.clock.clone() }
    }

    fn private(&self, path: &str) -> Arc<dyn Dir> {
        path.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.fast.root().dir(b".dlio-fs").unwrap(), |dir, part| dir.dir(part.as_bytes()).unwrap())
    }

    /// The log's segments that have records, in their order.
    fn segments(&self) -> Vec<String> {
        let dir = self.private("log");
        let mut all: Vec<String> =
            dir.list().unwrap().into_iter().map(|e| String::from_utf8(e.name).unwrap()).collect();
        all.retain(|segment| dir.stat(segment.as_bytes()).unwrap().size > 0);
        all.sort();
        all
    }

    fn log(&self) -> Vec<(String, Vec<u8>)> {
        let dir = self.private("log");
        self.segments().into_iter().map(|segment| (segment.clone(), read(&*dir, segment.as_bytes()))).collect()
    }

    /// Numbers of the objects in the pool, or put aside. Empty ones have nothing to lose.
    fn objects(&self) -> BTreeSet<Vec<u8>> {
        let pool = self.private("pool");
        let mut dirs = vec![self.private("quarantine")];
        dirs.extend(pool.list().unwrap().iter().map(|shard| pool.dir(&shard.name).unwrap()));
        let mut all = BTreeSet::new();
        for dir in dirs {
            let files = dir.list().unwrap().into_iter().filter(|entry| entry.kind == Kind::File);
            all.extend(
                files.map(|e| e.name).filter(|name| !name.ends_with(b".why") && dir.stat(name).unwrap().size > 0),
            );
        }
        all
    }

    fn rescue(&self, boot: &str) -> (RescueReport, SimDisk) {
        let (power, clock) = (SimPower::new(), SimClock::new());
        let to = SimDisk::new("to", MetadataOrder::Journaled, 1 << 30, &power, &clock);
        (tiers::rescue(self.fast.root(), to.root(), boot).unwrap(), to)
    }
}

fn read(dir: &dyn Dir, name: &[u8]) -> Vec<u8> {
    let file = dir.open(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn write(dir: &dyn Dir, name: &[u8], bytes: &[u8]) {
    let file = dir.open(name, Access::ReadWrite).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
}

fn put(engine: &Tiers, dir: Ino, i: u8, bytes: &[u8]) {
    let (cx, mode) = (Cx::internal(), OpenMode { write: true, ..OpenMode::default() });
    let (_, file) = engine.create(&cx, dir, &name("part"), 0o644, 0, mode).unwrap();
    engine.write(&cx, &file, bytes, 0, false).unwrap();
    engine.fsync(&cx, &file).unwrap();
    engine.release(&cx, file);
    engine.rename(&cx, dir, &name("part"), dir, &name(&format!("ckpt-{i}")), RenameMode::Replace).unwrap();
    engine.sync_fast().unwrap();
}

fn step(engine: &Tiers) {
    for _ in 0..30 {
        // What stands in the way is asked for afterwards.
        drop((engine.seal_step(), engine.drain_step(), engine.publish_step(), engine.evict_step(), engine.tick()));
    }
}

fn publish_all(engine: &Tiers) {
    engine.count_waiter(true);
    step(engine);
    engine.count_waiter(false);
    assert_eq!(engine.status().safety.events, 0, "{:?}", engine.status().safety.held);
}

fn find(engine: &Tiers, path: &[&str]) -> Option<Ino> {
    path.iter().try_fold(ROOT, |dir, part| Some(engine.lookup(&Cx::internal(), dir, &name(part)).ok()?.ino))
}

/// What a file of the view has in it.
fn shown(engine: &Tiers, file: &str) -> Option<Vec<u8>> {
    let (cx, mode) = (Cx::internal(), OpenMode::default());
    let ino = find(engine, &["run", file])?;
    let open = engine.open(&cx, ino, mode).ok()?;
    let mut bytes = vec![0; 20_000];
    let got = engine.read(&cx, &open, &mut bytes, 0).ok()?;
    bytes.truncate(got);
    engine.release(&cx, open);
    Some(bytes)
}

/// Reads everything, so that whatever replay made is walked.
fn walk(engine: &Tiers) {
    let mut dirs = vec![(ROOT, 0)];
    while let Some((dir, depth)) = dirs.pop() {
        let Ok(listing) = engine.list(&Cx::internal(), dir) else { continue };
        for entry in listing.entries.iter().skip(2) {
            let Ok(attr) = engine.lookup(&Cx::internal(), dir, &Name::new(&entry.name).unwrap()) else { continue };
            assert!(depth < 50, "a directory inside of itself");
            if attr.kind == Kind::Dir {
                dirs.push((attr.ino, depth + 1));
            }
        }
    }
    let (status, queue) = (engine.status(), engine.queue(100).text());
    assert!(queue.lines().all(|line| line.chars().all(|c| !c.is_control())), "{queue:?} {status:?}");
}

fn flip(bytes: &mut [u8], rng: &mut impl Rng) {
    let at = rng.random_range(0..bytes.len());
    bytes[at] ^= 1 << rng.random_range(0..8);
}

/// One of the ways in which bytes go bad.
fn mutate(bytes: &mut Vec<u8>, rng: &mut impl Rng) {
    let at = rng.random_range(0..bytes.len());
    let len = rng.random_range(1..200).min(bytes.len() - at);
    match rng.random_range(0..6) {
        0 => flip(bytes, rng),
        1 => drop(bytes.drain(at..at + len)),
        2 => bytes[at..at + len].fill(0),
        3 => bytes.truncate(at),
        4 => {
            let copy = bytes[at..at + len].to_vec();
            let to = rng.random_range(0..bytes.len());
            bytes.splice(to..to, copy);
        }
        _ => {
            let noise: Vec<u8> = (0..len).map(|_| rng.random_range(0..=255)).collect();
            bytes.splice(at..at + len, noise);
        }
    }
}

/// The words of a record changed for others that mean something, the CRC made right again.
fn forge(line: &str, rng: &mut impl Rng) -> String {
    const VALUES: &[&str] = &[
        "0",
        "1",
        "2",
        "281474976710656",
        "281474976710657",
        "18446744073709551615",
        "4611686018427387903",
        "-1",
        "",
        "-",
        "..",
        "run",
        "run/ckpt-3",
        "run/ckpt-7",
        "run/part",
        "1/ckpt-3",
        "1/ckpt-7",
        "1/run",
        "2/part",
        "1/..",
        "1/a/b",
        "/",
        "a/../b",
        "%00",
        "%0A%1B[2J",
        ".dlio-fs/id",
        "f1",
        "f3",
        "s1",
        "s1+f2@3",
        "f4611686018427387903",
        "m1",
        "c0000000000000003",
        "0.0",
        "-5.999999999",
        "7777",
        "10000",
    ];
    const KINDS: &[&str] = &[
        "bind",
        "content",
        "rename",
        "exchange",
        "link",
        "unlink",
        "rmdir",
        "seal",
        "applied",
        "discarded",
        "invalidate",
    ];
    let mut words: Vec<String> = line.split(' ').skip(1).map(str::to_owned).collect();
    for _ in 0..rng.random_range(1..3) {
        let i = rng.random_range(0..words.len());
        let value = VALUES[rng.random_range(0..VALUES.len())];
        words[i] = match words[i].split_once('=') {
            Some((key, _)) => format!("{key}={value}"),
            None if i == 2 => KINDS[rng.random_range(0..KINDS.len())].to_owned(),
            None => value.to_owned(),
        };
    }
    let text = words.join(" ");
    format!("{:08x} {text}", crc32fast::hash(text.as_bytes()))
}

fn is_dir(line: &str) -> bool {
    line[9..].starts_with("dir ")
}

fn cases() -> u64 {
    std::env::var("DLIO_DAMAGE_CASES").ok().map_or(300, |text| text.parse().unwrap())
}

#[test]
fn after_a_start_from_any_mutated_log_every_object_is_still_there() {
    let mut refused = 0;
    for seed in 0..cases() {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let scene = Scene::used();
        let before = scene.objects();
        assert!(before.len() >= 9, "{before:?}");
        let log = scene.log();
        let (segment, mut bytes) = log[rng.random_range(0..log.len())].clone();
        for _ in 0..rng.random_range(1..4) {
            if !bytes.is_empty() {
                mutate(&mut bytes, rng);
            }
        }
        write(&*scene.private("log"), segment.as_bytes(), &bytes);
        match scene.open([BOOT, OTHER_BOOT][rng.random_range(0..2)]) {
            Ok(engine) => {
                walk(&engine);
                step(&engine);
            }
            Err(error) => {
                assert!(matches!(error, Error::Refused { .. }), "seed {seed}: {error}");
                refused += 1;
            }
        }
        let after = scene.objects();
        assert!(before.is_subset(&after), "seed {seed}: {:?}", before.difference(&after).collect::<Vec<_>>());
        scene.rescue(BOOT);
    }
    println!("{} cases, {refused} starts refused", cases());
}

/// Nobody proves who wrote a line. What it says may cost the data that it is about, but no panic and no endless start, and
/// nothing is written that is not below the roots of the tiers.
#[test]
fn a_forged_log_stops_nobody() {
    for seed in 0..2 * cases() {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let scene = Scene::used();
        let log = scene.log();
        let (segment, bytes) = &log[rng.random_range(0..log.len())];
        let mut lines: Vec<String> = String::from_utf8(bytes.clone()).unwrap().lines().map(str::to_owned).collect();
        for _ in 0..rng.random_range(1..4) {
            let i = rng.random_range(0..lines.len());
            lines[i] = forge(&lines[i], rng);
        }
        write(&*scene.private("log"), segment.as_bytes(), (lines.join("\n") + "\n").as_bytes());
        if let Ok(engine) = scene.open(BOOT) {
            walk(&engine);
            step(&engine);
        }
        let (report, _) = scene.rescue(BOOT);
        let said = [report.restored, report.unexplained, report.short, report.damage].concat();
        assert!(said.iter().all(|line| !line.contains(|c: char| c.is_control())), "seed {seed}: {said:?}");
    }
}

#[test]
fn any_attributes_on_objects_cost_no_object() {
    for seed in 0..cases() / 3 {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let scene = Scene::used();
        // Of a clean one without a fingerprint the slow tier has the bytes.
        let before: BTreeSet<Vec<u8>> = (3..9).map(|i| scene.object_of_pending(&format!("ckpt-{i}")).1).collect();
        let pool = scene.private("pool");
        for shard in pool.list().unwrap() {
            let dir = pool.dir(&shard.name).unwrap();
            for object in dir.list().unwrap() {
                for key in [&b"user.dlio.name"[..], b"user.dlio.clean", b"user.dlio.hash"] {
                    let mut value =
                        dir.get_xattr(&object.name, key).unwrap().unwrap_or_else(|| b"1 2 run/ckpt-7".to_vec());
                    match rng.random_range(0..4) {
                        0 => mutate(&mut value, rng),
                        1 => value = b"18446744073709551615 18446744073709551615 ../../etc/x".to_vec(),
                        2 => value = b"18446744073709551615 18446744073709551615 9.9 9.9".to_vec(),
                        _ => continue,
                    }
                    dir.set_xattr(&object.name, key, &value).unwrap();
                }
            }
        }
        let engine = scene.open(BOOT).unwrap();
        walk(&engine);
        step(&engine);
        // What the log says is pending goes on whatever its object says.
        assert_eq!(shown(&engine, "ckpt-7"), Some(content(107)), "seed {seed}");
        drop(engine);
        let after = scene.objects();
        assert!(before.is_subset(&after), "seed {seed}");
        scene.rescue(BOOT);
    }
}

/// A flipped byte in the name of the tier or of its tree once made another tier of it, which found nothing of what it had on
/// slow.
#[test]
fn every_flipped_bit_of_the_super_block_is_noticed() {
    let scene = Scene::used();
    let dir = scene.private("");
    let good = read(&*dir, b"super");
    for at in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[at / 8] ^= 1 << (at % 8);
        write(&*dir, b"super", &bad);
        match scene.open(BOOT) {
            Err(Error::Refused { remedy, .. }) => assert!(!remedy.is_empty()),
            Err(other) => panic!("bit {at}: {other}"),
            Ok(_) => panic!("bit {at} is taken for sound"),
        }
        let tmp = scene.slow.root().dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap();
        assert_eq!(tmp.list().unwrap().len(), 1, "bit {at}: it took another name");
    }
}

/// The log of another format looks damaged to this one: that is not said of it.
#[test]
fn a_fast_tier_in_another_format_is_only_named() {
    let scene = Scene::used();
    let text = String::from_utf8(read(&*scene.private(""), b"super")).unwrap();
    let line = text.lines().find(|line| line.starts_with("format = ")).unwrap();
    for format in [2, 99] {
        let other = text.replace(line, &format!("format = {format}"));
        assert_ne!(other, text);
        write(&*scene.private(""), b"super", other.as_bytes());
        let named = format!("the fast tier is in format {format}, ");
        assert!(scene.open(BOOT).unwrap_err().to_string().starts_with(&named));
        let found = check(&scene, true);
        assert!(found.len() == 1 && found[0].1.contains(&named), "{found:?}");
        // What this one understands of it may be all that there is.
        let (report, _) = scene.rescue(BOOT);
        assert!(report.damage[0].starts_with(&named) && !report.restored.is_empty(), "{report:?}");
    }
    write(&*scene.private(""), b"super", text.as_bytes());
    assert_eq!(shown(&scene.open(BOOT).unwrap(), "ckpt-7"), Some(content(107)));
}

/// Of several mounts over one slow tree each stamps its events. The format has the stamps already.
#[test]
fn events_with_stamps_are_replayed_as_those_without() {
    let scene = Scene::used();
    let mut stamped = 0;
    for (segment, bytes) in scene.log() {
        let line = |line: &str| {
            let is_event = ["make", "content", "link", "rename", "exchange", "unlink", "rmdir", "setattr", "setxattr"];
            let mut words = line.split(' ').skip(1);
            let (lsn, kind) = (words.next().unwrap(), words.nth(1));
            if !kind.is_some_and(|kind| is_event.contains(&kind)) {
                return format!("{line}\n");
            }
            stamped += 1;
            let text = format!("{} start=17{lsn}0 end=17{lsn}9", &line[9..]);
            format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()))
        };
        let text: String = std::str::from_utf8(&bytes).unwrap().lines().map(line).collect();
        write(&*scene.private("log"), segment.as_bytes(), text.as_bytes());
    }
    assert!(stamped > 3, "{stamped} events");
    assert!(check(&scene, false).iter().all(|(severity, _)| *severity == Severity::Note));
    let engine = scene.open(BOOT).unwrap();
    walk(&engine);
    assert_eq!(shown(&engine, "ckpt-7"), Some(content(107)));
    step(&engine);
}

/// A kill may end the last write in its middle: then what was to be moved is where it was, and no number is given twice.
#[test]
fn the_beginning_of_a_move_counts_for_nothing() {
    let scene = Scene::used();
    let (segment, mut bytes) = scene.log().pop().unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    let last: u64 = text.lines().last().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let content = text.lines().rev().find(|line| line.contains(" content ")).unwrap();
    let content = content.splitn(4, ' ').nth(3).unwrap();
    let again = format!("{} {last} again {content}", last + 1);
    bytes.extend(format!("{:08x} {again}\n", crc32fast::hash(again.as_bytes())).bytes());
    write(&*scene.private("log"), segment.as_bytes(), &bytes);
    let mut events = None;
    for _ in 0..2 {
        let engine = scene.open(BOOT).unwrap();
        assert_eq!(engine.status().safety.held, None, "it is no damage");
        assert_eq!(*events.get_or_insert(engine.status().safety.events), engine.status().safety.events);
        assert_eq!(shown(&engine, "ckpt-7"), Some(self::content(107)));
    }
    let engine = scene.open(BOOT).unwrap();
    walk(&engine);
    step(&engine);
}

/// It was shown, and copied to the slow tier as far as it went with zeros behind: over a good version.
#[test]
fn a_pending_version_with_missing_bytes_is_put_aside_and_the_one_before_it_shown() {
    for lost in ["all", "some", "object"] {
        let scene = Scene::used();
        // Of 3 there is an older version, of 7 there is none.
        for file in ["ckpt-3", "ckpt-7"] {
            let (dir, object) = scene.object_of_pending(file);
            match lost {
                "object" => dir.unlink(&object).unwrap(),
                _ => {
                    dir.open(&object, Access::ReadWrite).unwrap().set_len(if lost == "all" { 0 } else { 700 }).unwrap()
                }
            }
        }
        let engine = scene.open(BOOT).unwrap();
        assert_eq!(shown(&engine, "ckpt-3"), Some(content(3)), "{lost}");
        assert_eq!(shown(&engine, "ckpt-7"), None, "{lost}");
        assert_eq!(engine.status().exceptions.damaged, 2);
        for i in [4, 5, 6, 8] {
            assert_eq!(shown(&engine, &format!("ckpt-{i}")), Some(content(i + 100)), "{lost}");
        }
        publish_all(&engine);
        let run = scene.slow.root().dir(b"run").unwrap();
        assert_eq!(read(&*run, b"ckpt-3"), content(3), "{lost}");
        assert!(run.stat(b"ckpt-7").is_err());
        assert_eq!(read(&*run, b"ckpt-8"), content(108));
        drop(engine);
        if lost != "object" {
            let quarantine = scene.private("quarantine");
            let names = quarantine.list().unwrap();
            let reasons = names.iter().filter(|entry| entry.name.ends_with(b".why"));
            let reasons: Vec<String> =
                reasons.map(|e| String::from_utf8(read(&*quarantine, &e.name)).unwrap()).collect();
            assert!(reasons.iter().all(|why| why.starts_with("damaged: its object has only ")), "{reasons:?}");
            assert_eq!(reasons.len(), 2);
        }
        assert_eq!(scene.open(BOOT).unwrap().status().exceptions.damaged, 0, "told once");
    }
}

impl Scene {
    fn object_of_pending(&self, file: &str) -> (Arc<dyn Dir>, Vec<u8>) {
        // Each was written as `part`, committed under that name, and renamed; the log says which object it is.
        let text: String = self.log().into_iter().map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect();
        let lines: Vec<&str> = text.lines().collect();
        let renamed =
            lines.iter().rposition(|line| line.contains(" rename ") && line.contains(&format!("/{file} "))).unwrap();
        let content =
            lines[..renamed].iter().rev().find(|line| line.contains(" content ") && line.contains("/part ")).unwrap();
        let number = content.split(" object=f").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
        let shard = self.private(&format!("pool/{:02x}", number >> 8 & 0xff));
        (shard, format!("{number:016x}").into_bytes())
    }
}

/// Copying went on with zeros in the place of what was missing, and the slow tier's good version was gone.
#[test]
fn bytes_that_go_missing_while_mounted_hold_the_order_and_name_the_file() {
    let scene = Scene::used();
    let engine = scene.open(BOOT).unwrap();
    let (dir, object) = scene.object_of_pending("ckpt-3");
    dir.open(&object, Access::ReadWrite).unwrap().set_len(700).unwrap();
    engine.count_waiter(true);
    for _ in 0..10 {
        let failed = engine.drain_step().err();
        engine.report("copy", failed.as_ref());
        if failed.is_some() {
            break;
        }
    }
    let held = engine.status().safety.held.unwrap();
    assert!(held.contains("run/ckpt-3: 700 of 5103 bytes") && held.contains("mount again"), "{held}");
    assert_eq!(read(&*scene.slow.root().dir(b"run").unwrap(), b"ckpt-3"), content(3));
    drop(engine);
    scene.run(BOOT, publish_all);
    let run = scene.slow.root().dir(b"run").unwrap();
    assert_eq!((read(&*run, b"ckpt-3"), read(&*run, b"ckpt-8")), (content(3), content(108)));
}

/// Segments whose records are applied are removed from the front on. Where the file system keeps no order a power cut may bring back
/// the first and not the second one: the numbers between were taken for missing, and nothing was copied down any more.
#[test]
fn a_segment_that_is_back_although_all_in_it_is_applied_is_no_damage() {
    let scene = Scene::used();
    let old = scene.log();
    assert!(old.len() > 2, "{}", old.len());
    scene.run(BOOT, publish_all);
    let scene = scene.run(BOOT, |_| ());
    let kept = scene.segments();
    let (first, bytes) = &old[0];
    assert!(!kept.contains(first) && !kept.contains(&old[1].0), "{kept:?}");
    scene.private("log").create(first.as_bytes(), 0o600).unwrap().write_at(bytes, 0).unwrap();
    let engine = scene.open(BOOT).unwrap();
    assert_eq!(engine.status().safety.held, None);
    let dir = find(&engine, &["run"]).unwrap();
    put(&engine, dir, 9, &content(9));
    publish_all(&engine);
    assert_eq!(engine.status().safety.files, 0);
}

/// A rotation that found no room leaves a segment without bytes, and the next start, short of room, goes on in the
/// segment before it. The one after that took the empty one's number for the end of what that segment holds: it was
/// removed with pending records in it, and nothing was copied down any more.
#[test]
fn an_empty_segment_ends_no_other() {
    let mut scene = Scene::used();
    let files: Vec<String> = (0..9).map(|i| format!("ckpt-{i}")).collect();
    let shown_by = |engine: &Tiers| files.iter().map(|file| shown(engine, file)).collect::<Vec<_>>();
    let last = scene.segments().pop().unwrap();
    let first: u64 = last.strip_suffix(".log").unwrap().parse().unwrap();
    // Its records are those of several files.
    scene.private("log").create(format!("{:020}.log", first + 1).as_bytes(), 0o600).unwrap();
    let expected = shown_by(&scene.open(BOOT).unwrap());
    while {
        let engine = scene.open(BOOT).unwrap();
        assert_eq!((engine.status().safety.held, shown_by(&engine)), (None, expected.clone()));
        engine.status().safety.files > 0
    } {
        scene = scene.run(BOOT, |engine| {
            engine.seal_step().unwrap();
            engine.drain_step().unwrap();
            engine.publish_step().unwrap();
        });
    }
    let run = scene.slow.root().dir(b"run").unwrap();
    assert_eq!((read(&*run, b"ckpt-3"), read(&*run, b"ckpt-8")), (content(103), content(108)));
    assert!(!scene.segments().contains(&last), "its records are all applied");
}

/// The line that a kill cut off was damage if an empty segment followed: only the end of the last one may be torn.
#[test]
fn a_torn_line_in_front_of_an_empty_segment_is_no_damage() {
    let scene = Scene::used();
    let (last, bytes) = scene.log().pop().unwrap();
    let lines = String::from_utf8(bytes.clone()).unwrap().lines().filter(|line| !is_dir(line)).count() as u64;
    let next = last.strip_suffix(".log").unwrap().parse::<u64>().unwrap() + lines;
    let log = scene.private("log");
    log.create(format!("{next:020}.log").as_bytes(), 0o600).unwrap();
    write(&*log, last.as_bytes(), &[&bytes[..], &bytes[..20]].concat());
    assert_eq!(scene.open(BOOT).unwrap().status().safety.held, None);
    assert_eq!(read(&*log, last.as_bytes()), bytes);
}

/// Its records were skipped as if they had never been: nobody compared the numbers.
#[test]
fn a_missing_segment_is_damage() {
    let last = Scene::used().segments().len() - 1;
    for lost in 0..last {
        let scene = Scene::used();
        scene.private("log").unlink(scene.segments()[lost].as_bytes()).unwrap();
        let before = scene.objects();
        let engine = scene.open(BOOT).unwrap();
        let held = engine.status().safety.held;
        step(&engine);
        // Of the first segment all may have been applied.
        let needed = lost > 0 || scene.slow.root().dir(b"run").is_err();
        let held = held.unwrap_or_default();
        assert!(!needed || (held.contains("record") && held.contains("missing")), "{lost}: {held:?}");
        drop(engine);
        assert!(before.is_subset(&scene.objects()));
    }
}

/// With those in front of it gone, no number was missing between two records, and what they had said was taken for applied.
#[test]
fn segments_that_are_missing_in_front_are_damage() {
    let last = Scene::used().segments().len() - 1;
    for lost in 2..=last {
        let scene = Scene::used();
        for segment in &scene.segments()[..lost] {
            scene.private("log").unlink(segment.as_bytes()).unwrap();
        }
        let before = scene.objects();
        let engine = scene.open(BOOT).unwrap();
        let held = engine.status().safety.held.unwrap_or_default();
        assert!(held.contains("missing at its beginning"), "{lost}: {held:?}");
        drop(engine);
        assert!(before.is_subset(&scene.objects()));
    }
}

/// It looked like a tier that had never been used: its files were shown as they had been, and its objects put aside.
#[test]
fn a_lost_log_is_refused_and_its_files_are_rescued_by_what_the_objects_say() {
    let scene = Scene::used();
    for segment in scene.private("log").list().unwrap() {
        scene.private("log").unlink(&segment.name).unwrap();
    }
    for _ in 0..2 {
        let error = scene.open(BOOT).unwrap_err().to_string();
        assert!(error.contains("the log of the fast tier is gone") && error.contains("dlio-fs rescue"), "{error}");
    }
    let (report, to) = scene.rescue(BOOT);
    assert!(!report.restored.is_empty(), "{report:?}");
    // All were committed under the name that was renamed later. The newest gets it; it was the oldest once, and the others
    // were nowhere.
    let run = to.root().dir(b"run").unwrap();
    assert_eq!(read(&*run, b"part"), content(108));
    let found: BTreeSet<Vec<u8>> = run.list().unwrap().iter().map(|entry| read(&*run, &entry.name)).collect();
    assert_eq!(found, (3..9).map(|i| content(i + 100)).collect());
}

/// In the boot in which it was written nothing of the log is lost but the end of a killed daemon's last write. A damaged record
/// behind the last sync was cut off as if torn, and every record behind it.
#[test]
fn a_damaged_record_of_this_boot_is_not_taken_for_a_torn_tail() {
    let scene = Scene::used();
    let (segment, mut bytes) = scene.log().pop().unwrap();
    let lines = bytes.iter().filter(|b| **b == b'\n').count();
    let last = bytes[..bytes.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
    bytes[last + 12] ^= 1;
    write(&*scene.private("log"), segment.as_bytes(), &bytes);
    let engine = scene.open(BOOT).unwrap();
    let held = engine.status().safety.held.unwrap();
    assert!(held.contains(&format!("log/{segment}")) && held.contains("are not records; records from"), "{held}");
    drop(engine);
    let kept = scene.log().into_iter().find(|(name, _)| *name == segment).unwrap().1;
    assert_eq!(kept.iter().filter(|b| **b == b'\n').count(), lines, "nothing was cut");
}

/// Records name their directory by a number. Without its line it must not be taken for another one.
#[test]
fn a_lost_directory_is_damage_and_no_other_path() {
    let scene = Scene::used();
    let (segment, bytes) = scene.log().pop().unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.lines().any(is_dir), "{text}");
    let left: String = text.split_inclusive('\n').filter(|line| !is_dir(line)).collect();
    write(&*scene.private("log"), segment.as_bytes(), left.as_bytes());
    let before = scene.objects();
    let engine = scene.open(BOOT).unwrap();
    let held = engine.status().safety.held.unwrap();
    assert!(held.contains(&format!("log/{segment}")) && held.contains("are not records"), "{held}");
    for dir in [ROOT, find(&engine, &["run"]).unwrap()] {
        let listing = engine.list(&Cx::internal(), dir).unwrap();
        let names = listing.entries.iter().skip(2).map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
        let known = (0..6).map(|i| format!("ckpt-{i}")).chain(["run".to_owned()]).collect::<BTreeSet<_>>();
        let names: BTreeSet<String> = names.collect();
        assert!(names.is_subset(&known), "{names:?}");
    }
    drop(engine);
    assert!(before.is_subset(&scene.objects()));
    assert!(!scene.rescue(BOOT).0.damage.is_empty());
}

/// Numbers began anew once the log had forgotten the highest: the next object that was put aside replaced the one before.
#[test]
fn what_is_in_quarantine_keeps_its_number() {
    let scene = Scene::empty();
    scene.run(BOOT, |_| ());
    let stray = |number: u64, bytes: &[u8]| {
        let pool = scene.private("pool");
        let shard = format!("{:02x}", number >> 8 & 0xff);
        drop(pool.mkdir(shard.as_bytes(), 0o700));
        let file = pool.dir(shard.as_bytes()).unwrap().create(format!("{number:016x}").as_bytes(), 0o600).unwrap();
        file.write_at(bytes, 0).unwrap();
    };
    stray(3, b"the first");
    scene.run(BOOT, |engine| assert_eq!(engine.status().exceptions.quarantined, 1));
    scene.run(BOOT, |engine| {
        for i in 0..5 {
            put(engine, ROOT, i, &content(i));
        }
    });
    let pool = scene.private("pool");
    let taken = pool.dir(b"03").is_ok_and(|shard| shard.stat(b"0000000000000003").is_ok());
    assert!(!taken, "number 3 was given out again");
    assert_eq!(read(&*scene.private("quarantine"), b"0000000000000003"), b"the first");
}

/// What the mount discards after a power cut came back with a rescue: half a checkpoint in the place of a whole one.
#[test]
fn rescue_discards_what_a_mount_would() {
    let scene = Scene::used();
    scene.run(BOOT, |engine| {
        let (cx, dir) = (Cx::internal(), find(engine, &["run"]).unwrap());
        let mode = OpenMode { write: true, ..OpenMode::default() };
        let (_, file) = engine.create(&cx, dir, &name("half"), 0o644, 0, mode).unwrap();
        engine.write(&cx, &file, &[9; 100], 0, false).unwrap();
        engine.flush(&cx, &file).unwrap();
        engine.rename(&cx, dir, &name("half"), dir, &name("ckpt-7"), RenameMode::Replace).unwrap();
        drop(file);
    });
    let (same_boot, to) = scene.rescue(BOOT);
    assert_eq!(read(&*to.root().dir(b"run").unwrap(), b"ckpt-7"), [9; 100], "acknowledged: {same_boot:?}");
    let (report, to) = scene.rescue(OTHER_BOOT);
    assert_eq!(read(&*to.root().dir(b"run").unwrap(), b"ckpt-7"), content(107));
    assert!(report.unexplained.iter().any(|line| line.contains("run/half, written but not durable")), "{report:?}");
    let engine = scene.open(OTHER_BOOT).unwrap();
    assert_eq!(shown(&engine, "ckpt-7"), Some(content(107)), "as a mount shows it");
}

/// One object that could not be opened ended a rescue, and a start.
#[test]
fn what_is_no_object_in_the_pool_stands_in_nobody_s_way() {
    let scene = Scene::used();
    let pool = scene.private("pool");
    let shard = pool.dir(b"00").unwrap();
    shard.symlink(b"00000000000000f1", b"/etc/passwd").unwrap();
    shard.mknod(b"00000000000000f2", Kind::Fifo, 0o600, 0).unwrap();
    shard.mkdir(b"00000000000000f3", 0o700).unwrap();
    drop(shard.create(b"0000000000000102", 0o600).unwrap());
    drop(shard.create(b"1", 0o600).unwrap());
    drop(shard.create(b"ffffffffffff00f4", 0o600).unwrap());
    pool.symlink(b"fe", b"/etc").unwrap();
    drop(pool.create(b"fd", 0o600).unwrap());
    let engine = scene.open(BOOT).unwrap();
    assert_eq!(shown(&engine, "ckpt-7"), Some(content(107)));
    drop(engine);
    assert_eq!(shard.list().unwrap().iter().filter(|e| e.kind != Kind::File).count(), 3, "left as they are");
    let (report, _) = scene.rescue(BOOT);
    assert!(report.restored.contains(&"run/ckpt-7".to_owned()), "{report:?}");
}

/// A power cut after which nothing is damaged: the rules above must not see any.
#[test]
fn a_power_cut_is_not_damage() {
    for seed in 0..cases() / 3 {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let scene = Scene::used();
        let fast = scene.fast.crash(Lose::Unsynced, rng);
        let slow = scene.slow.crash(Lose::Unsynced, rng);
        let engine = Scene { fast, slow, clock: scene.clock.clone() }.open(OTHER_BOOT).unwrap();
        assert_eq!((engine.status().safety.held, engine.status().exceptions.damaged), (None, 0), "seed {seed}");
        for i in 3..9 {
            assert_eq!(shown(&engine, &format!("ckpt-{i}")), Some(content(i + 100)), "seed {seed}");
        }
    }
}

fn check(scene: &Scene, repair: bool) -> Vec<(Severity, String)> {
    let report = tiers::fsck(scene.fast.root(), Some(scene.slow.root()), BOOT, repair).unwrap();
    let findings = report.findings.into_iter();
    findings.map(|f| (f.severity, format!("{}: {}; {}", f.place, f.what, f.remedy))).collect()
}

fn of(findings: &[(Severity, String)], wanted: Severity) -> Vec<&str> {
    findings.iter().filter(|(severity, _)| *severity == wanted).map(|(_, line)| line.as_str()).collect()
}

#[test]
fn fsck_finds_nothing_wrong_where_nothing_is() {
    let scene = Scene::used();
    let report = tiers::fsck(scene.fast.root(), Some(scene.slow.root()), BOOT, false).unwrap();
    assert!(report.findings.iter().all(|f| f.severity == Severity::Note), "{:?}", report.findings);
    assert_eq!((report.pending, report.objects, report.quarantined), (6, 9, 0));
}

#[test]
fn fsck_names_each_damage_and_repairs_only_what_is_safe() {
    let scene = Scene::used();
    let (dir, object) = scene.object_of_pending("ckpt-3");
    dir.open(&object, Access::ReadWrite).unwrap().set_len(700).unwrap();
    let (dir, object) = scene.object_of_pending("ckpt-7");
    dir.unlink(&object).unwrap();
    let shard = scene.private("pool/00");
    shard.create(b"0000000000770005", 0o600).unwrap().write_at(b"whose?", 0).unwrap();
    shard.symlink(b"0000000000aa0005", b"/etc/passwd").unwrap();
    let log = scene.log();
    let (segment, bytes) = log.last().unwrap();
    let torn = [bytes, &b"4b0efde6 99 9 make pa"[..]].concat();
    write(&*scene.private("log"), segment.as_bytes(), &torn);

    let before = scene.objects();
    let found = check(&scene, false);
    let damage = of(&found, Severity::Damage).join("\n");
    assert!(
        damage.contains("run/part: a version waits to be copied, and its object") && damage.contains("700 of 5103")
    );
    assert!(damage.contains("is not there") && damage.contains("dlio-fs rescue"), "{damage}");
    let repairable = of(&found, Severity::Repairable).join("\n");
    assert!(repairable.contains("21 bytes at its end are the append that a crash cut off"), "{repairable}");
    assert!(repairable.contains("pool/00/0000000000770005: no record of the log explains it"), "{repairable}");
    assert!(of(&found, Severity::Note).join("\n").contains("pool/00/0000000000aa0005: no daemon made it"), "{found:?}");
    assert_eq!(read(&*scene.private("log"), segment.as_bytes()), torn, "a dry run changes nothing");

    assert_eq!(of(&check(&scene, true), Severity::Repaired).len(), 2);
    assert_eq!(read(&*scene.private("log"), segment.as_bytes()), *bytes);
    assert_eq!(read(&*scene.private("quarantine"), b"0000000000770005"), b"whose?");
    assert_eq!(scene.objects(), before);
    let again = check(&scene, true);
    assert!(of(&again, Severity::Repairable).is_empty() && of(&again, Severity::Repaired).is_empty(), "{again:?}");
    assert!(of(&again, Severity::Note).join("\n").contains("quarantine/0000000000770005: no record"), "{again:?}");
}

/// Without the log nothing explains any object: to put them all aside would take from a rescue what it goes by.
#[test]
fn fsck_puts_nothing_aside_that_a_damaged_log_may_have_explained() {
    let scene = Scene::used();
    let log = scene.log();
    let (segment, bytes) = &log[1];
    let mut bad = bytes.clone();
    let half = bad.len() / 2;
    bad[half] ^= 4;
    write(&*scene.private("log"), segment.as_bytes(), &bad);
    let found = check(&scene, true);
    assert!(of(&found, Severity::Repaired).is_empty(), "{found:?}");
    assert!(of(&found, Severity::Damage)[0].contains(&format!("log/{segment}")), "{found:?}");
    assert!(scene.private("quarantine").list().unwrap().is_empty());
    for (segment, _) in scene.log() {
        scene.private("log").unlink(segment.as_bytes()).unwrap();
    }
    scene.private("").unlink(b"super").unwrap();
    let found = check(&scene, true);
    let damage = of(&found, Severity::Damage).join("\n");
    assert!(damage.contains("super: it is missing") && damage.contains("log: it has no record"), "{damage}");
    assert!(scene.private("quarantine").list().unwrap().is_empty());
    let (report, _) = scene.rescue(BOOT);
    assert!(report.restored.contains(&"run/part".to_owned()), "{report:?}");
}

#[test]
fn fsck_survives_any_bytes() {
    for seed in 0..cases() / 3 {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let scene = Scene::used();
        let (segment, mut bytes) = scene.log().remove(0);
        mutate(&mut bytes, rng);
        write(&*scene.private("log"), segment.as_bytes(), &bytes);
        let mut text = read(&*scene.private(""), b"super");
        mutate(&mut text, rng);
        write(&*scene.private(""), b"super", &text);
        let before = scene.objects();
        for (_, line) in check(&scene, rng.random_bool(0.5)) {
            assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
        }
        assert_eq!(scene.objects(), before, "seed {seed}");
    }
}

fn verify(engine: &Tiers, file: &str) -> Verified {
    let cx = Cx::internal();
    let mut file = match engine.begin_verify(&cx, find(engine, &["run", file]).unwrap()).unwrap() {
        Ok(file) => file,
        Err(not_clean) => return not_clean,
    };
    loop {
        match engine.verify_some(&cx, &mut file).unwrap() {
            Verified::More => {}
            done => return done,
        }
    }
}

/// The object with these bytes, in the pool.
fn object_with(scene: &Scene, bytes: &[u8]) -> (Arc<dyn Dir>, Vec<u8>) {
    let pool = scene.private("pool");
    let dirs: Vec<Arc<dyn Dir>> = pool.list().unwrap().iter().map(|shard| pool.dir(&shard.name).unwrap()).collect();
    let found = dirs.into_iter().find_map(|dir| {
        let object = dir.list().unwrap().into_iter().find(|object| read(&*dir, &object.name) == bytes)?;
        Some((dir, object.name))
    });
    found.expect("an object with these bytes")
}

#[test]
fn verify_tells_which_copy_is_bad_and_takes_nothing_clean_for_damaged() {
    let scene = Scene::used();
    let engine = scene.open(BOOT).unwrap();
    for i in 0..3 {
        assert_eq!(verify(&engine, &format!("ckpt-{i}")), Verified::Same);
    }
    assert_eq!(verify(&engine, "ckpt-7"), Verified::NotClean);
    let flip = |i: u8, at: usize| {
        let (dir, object) = object_with(&scene, &content(i));
        let file = dir.open(&object, Access::ReadWrite).unwrap();
        file.write_at(&[0xee], at as u64).unwrap();
        (dir, object, file)
    };
    flip(0, 4_321);
    assert_eq!(verify(&engine, "ckpt-0"), Verified::Differs { bad: Bad::Fast, at: 4_321 });
    // As if those were the bytes that had been copied, and the slow tier's had gone bad since.
    let (_, _, file) = flip(1, 0);
    let mut bytes = content(1);
    bytes[0] = 0xee;
    file.set_xattr(b"user.dlio.hash", format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes)).as_bytes()).unwrap();
    assert_eq!(verify(&engine, "ckpt-1"), Verified::Differs { bad: Bad::Slow, at: 0 });
    let (_, _, file) = flip(2, 5_001);
    file.set_xattr(b"user.dlio.hash", b"0000000000000001").unwrap();
    assert_eq!(verify(&engine, "ckpt-2"), Verified::Differs { bad: Bad::Both, at: 5_001 });
    file.remove_xattr(b"user.dlio.hash").unwrap();
    assert_eq!(verify(&engine, "ckpt-2"), Verified::Differs { bad: Bad::Unknown, at: 5_001 });
    file.set_len(5_001).unwrap();
    assert_eq!(verify(&engine, "ckpt-2"), Verified::Differs { bad: Bad::Unknown, at: 5_001 });
    // Somebody writes: it is dirty, not damaged, and the hash goes with the fingerprint.
    let (cx, mode) = (Cx::internal(), OpenMode { write: true, ..OpenMode::default() });
    let open = engine.open(&cx, find(&engine, &["run", "ckpt-1"]).unwrap(), mode).unwrap();
    engine.write(&cx, &open, b"anew", 0, false).unwrap();
    assert_eq!(verify(&engine, "ckpt-1"), Verified::NotClean);
    assert_eq!(file_hash(&scene, 1), None);
    engine.release(&cx, open);
    publish_all(&engine);
    assert_eq!(verify(&engine, "ckpt-1"), Verified::Same);
    // The remedy.
    assert!(matches!(engine.evict_now(&cx, find(&engine, &["run", "ckpt-0"]).unwrap()).unwrap(), Evicted::Gone(_)));
    assert_eq!(shown(&engine, "ckpt-0"), Some(content(0)));
}

fn file_hash(scene: &Scene, i: u8) -> Option<Vec<u8>> {
    let mut bytes = content(i);
    bytes[..4].copy_from_slice(b"anew");
    let (dir, object) = object_with(scene, &bytes);
    dir.get_xattr(&object, b"user.dlio.hash").unwrap()
}

/// A fast tier from somebody else, on a real file system: what is not what it seems to be is neither followed nor waited for,
/// and nothing outside of the tiers and of rescue's target changes.
#[test]
fn nothing_in_a_crafted_tier_leads_out_of_it() {
    type Craft = fn(&Path, &Path);
    let cases: &[(&str, Craft)] = &[
        ("fifo as segment", |ours, _| replace(&segment(ours), |at| mkfifo(at, Mode::S_IRWXU).unwrap())),
        ("link as segment", |ours, out| replace(&segment(ours), |at| symlink(out.join("precious"), at).unwrap())),
        ("file with two names as segment", |ours, out| {
            replace(&segment(ours), |at| fs::hard_link(out.join("precious"), at).unwrap());
        }),
        ("directory as segment", |ours, _| replace(&segment(ours), |at| fs::create_dir(at).unwrap())),
        ("endless segment", |ours, _| {
            fs::File::options().write(true).open(segment(ours)).unwrap().set_len(1 << 42).unwrap()
        }),
        ("endless super", |ours, _| {
            fs::File::options().write(true).open(ours.join("super")).unwrap().set_len(1 << 42).unwrap()
        }),
        ("log elsewhere", |ours, out| replace(&ours.join("log"), |at| symlink(out, at).unwrap())),
        ("pool elsewhere", |ours, out| replace(&ours.join("pool"), |at| symlink(out, at).unwrap())),
        ("quarantine elsewhere", |ours, out| replace(&ours.join("quarantine"), |at| symlink(out, at).unwrap())),
        ("fifo as super", |ours, _| replace(&ours.join("super"), |at| mkfifo(at, Mode::S_IRWXU).unwrap())),
        ("link as super", |ours, out| replace(&ours.join("super"), |at| symlink(out.join("precious"), at).unwrap())),
        ("link as object", |ours, out| replace(&object(ours), |at| symlink(out.join("precious"), at).unwrap())),
        ("fifo as object", |ours, _| replace(&object(ours), |at| mkfifo(at, Mode::S_IRWXU).unwrap())),
        ("file with two names as object", |ours, out| {
            replace(&object(ours), |at| fs::hard_link(out.join("precious"), at).unwrap());
        }),
        ("objects elsewhere", |ours, out| {
            replace(object(ours).parent().unwrap(), |at| symlink(out, at).unwrap());
        }),
        ("names that lead out, and no log", |ours, _| {
            xattr::set(object(ours), "user.dlio.name", b"9 1 ../../out/new").unwrap();
            fs::remove_dir_all(ours.join("log")).unwrap();
        }),
    ];
    for (case, craft) in cases {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        for name in ["fast", "slow", "out", "to"] {
            fs::create_dir(at(name)).unwrap();
        }
        // As long as any object: one that is too short is taken for damaged, whatever its names.
        let precious = [&b"precious"[..], &content(0)].concat();
        fs::write(at("out/precious"), &precious).unwrap();
        let dir = |name: &str| -> Arc<dyn Dir> { Arc::new(OsDir::open(&at(name)).unwrap()) };
        let open = || tiers::open(dir("fast"), dir("slow"), SlowTree::Writable, options(), Arc::new(OsClock), BOOT);
        let engine = open().unwrap();
        put(&engine, ROOT, 0, &content(0));
        drop(engine);
        craft(&at("fast/.dlio-fs"), &at("out"));
        let inspected = tiers::fsck(dir("fast"), Some(dir("slow")), BOOT, true);
        let found = inspected.unwrap().findings;
        assert!(found.iter().any(|f| f.severity != Severity::Repaired), "{case}: {found:?}");
        if let Ok(engine) = open() {
            step(&engine);
        }
        drop(tiers::rescue(dir("fast"), dir("to"), BOOT));
        let names: Vec<_> = fs::read_dir(at("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["precious"], "{case}");
        assert!(fs::read(at("out/precious")).unwrap() == precious, "{case}");
        assert_eq!(xattr::list(at("out/precious")).unwrap().count(), 0, "{case}");
    }
}

fn replace(at: &Path, by: impl FnOnce(&Path)) {
    if at.is_dir() {
        fs::remove_dir_all(at).unwrap()
    } else {
        fs::remove_file(at).unwrap()
    }
    by(at);
}

fn segment(ours: &Path) -> PathBuf {
    let mut all: Vec<_> = fs::read_dir(ours.join("log")).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all.remove(0)
}

/// The only one.
fn object(ours: &Path) -> PathBuf {
    let shards = fs::read_dir(ours.join("pool")).unwrap();
    shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap()).next().unwrap().unwrap().path()
}
