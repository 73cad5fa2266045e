//! What must stand any bytes: called by `fuzz/` with those that a fuzzer makes up, and by `tests/fuzz_corpus.rs` with those
//! that it has found worth keeping.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each program uses one of them")]

#[path = "../sim/mod.rs"]
mod sim;

use std::collections::BTreeSet;
use std::io::{self, Cursor, Write};
use std::sync::Arc;

use clap::ValueEnum as _;
use dlio_fs::config::Config;
use dlio_fs::error::Error;
use dlio_fs::path::Name;
use dlio_fs::report::asked::DocumentOptions;
use dlio_fs::report::formats::Format;
use dlio_fs::report::outlet::Outlet;
use dlio_fs::stats::recording::{Recording, Writer};
use dlio_fs::stats::trace::block;
use dlio_fs::tiers::disk::{Access, Dir, Kind, MetadataOrder};
use dlio_fs::tiers::{self, Cx, Options, ROOT, SlowTree, Tiers};

use sim::{SimClock, SimDisk, SimPower};

const BOOT: &str = "boot-1";
/// Objects in the pool.
const OBJECTS: u64 = 6;

struct Scene {
    fast: SimDisk,
    slow: SimDisk,
    clock: Arc<SimClock>,
}

impl Scene {
    /// A tier that was started once, with a few objects that nothing explains.
    fn new() -> Scene {
        let (power, clock) = (SimPower::new(), SimClock::new());
        let disk = |label| SimDisk::new(label, MetadataOrder::Journaled, 1 << 30, &power, &clock);
        let scene = Scene { fast: disk("fast"), slow: disk("slow"), clock };
        drop(scene.open().unwrap());
        let pool = scene.private("pool");
        for number in 1..=OBJECTS {
            let shard = format!("{number:02x}");
            pool.mkdir(shard.as_bytes(), 0o700).unwrap();
            let shard = pool.dir(shard.as_bytes()).unwrap();
            let object = shard.create(format!("{number:016x}").as_bytes(), 0o600).unwrap();
            object.write_at(&vec![number as u8; 3_000], 0).unwrap();
        }
        scene
    }

    fn open(&self) -> Result<Tiers, Error> {
        let mut options = Options::for_tests();
        options.ballast = 0;
        tiers::open(self.fast.root(), self.slow.root(), SlowTree::Writable, options, self.clock.clone(), BOOT)
    }

    fn private(&self, name: &str) -> Arc<dyn Dir> {
        self.fast.root().dir(b".dlio-fs").unwrap().dir(name.as_bytes()).unwrap()
    }

    /// A start and all that works on it; then it is looked at as the commands without a mount do.
    fn exercise(&self) {
        if let Ok(engine) = self.open() {
            walk(&engine);
            for _ in 0..3 {
                // What stands in the way is reported, and no more.
                drop((engine.seal_step(), engine.drain_step(), engine.publish_step(), engine.tick()));
            }
            engine.status();
            engine.queue(100);
        }
        let (power, clock) = (SimPower::new(), SimClock::new());
        let to = SimDisk::new("to", MetadataOrder::Journaled, 1 << 30, &power, &clock);
        let report = tiers::fsck(self.fast.root(), Some(self.slow.root()), BOOT, true).unwrap();
        let found = report.findings.iter().map(|f| format!("{} {} {}", f.place, f.what, f.remedy));
        let rescued = tiers::rescue(self.fast.root(), to.root(), "boot-2").unwrap();
        let mut said = found.chain(rescued.restored).chain(rescued.unexplained).chain(rescued.damage);
        assert!(said.all(|line| !line.contains(|c: char| c.is_control())));
    }

    /// Numbers of the objects in the pool or put aside.
    fn objects(&self) -> BTreeSet<Vec<u8>> {
        let pool = self.private("pool");
        let mut all = self.private("quarantine").list().unwrap();
        all.extend(pool.list().unwrap().iter().flat_map(|shard| pool.dir(&shard.name).unwrap().list().unwrap()));
        all.retain(|entry| entry.kind == Kind::File && !entry.name.ends_with(b".why"));
        all.into_iter().map(|entry| entry.name).collect()
    }
}

fn walk(engine: &Tiers) {
    let mut dirs = vec![(ROOT, 0)];
    while let Some((dir, depth)) = dirs.pop() {
        let Ok(listing) = engine.list(&Cx::internal(), dir) else { continue };
        for entry in listing.entries.iter().skip(2) {
            let Ok(attr) = engine.lookup(&Cx::internal(), dir, &Name::new(&entry.name).unwrap()) else { continue };
            assert!(depth < 100_000, "a directory inside of itself");
            if attr.kind == Kind::Dir {
                dirs.push((attr.ino, depth + 1));
            }
        }
    }
}

/// The bytes are the log. A line gets the checksum that makes it a record, unless it begins with `!`: then what follows is the
/// line as it stands.
pub fn log_replay(bytes: &[u8]) {
    let scene = Scene::new();
    let dir = scene.private("log");
    let segment = dir.list().unwrap().into_iter().find(|e| dir.stat(&e.name).unwrap().size > 0).unwrap();
    let mut log = Vec::new();
    let mut only_damage = true;
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        if let Some(raw) = line.strip_prefix(b"!") {
            log.extend_from_slice(raw);
            continue;
        }
        only_damage = false;
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        log.extend_from_slice(format!("{:08x} ", crc32fast::hash(text)).as_bytes());
        log.extend_from_slice(line);
    }
    let file = dir.open(&segment.name, Access::ReadWrite).unwrap();
    file.set_len(0).unwrap();
    file.write_at(&log, 0).unwrap();
    scene.exercise();
    // Of forged records some may say that an object is not needed any more.
    assert!(!only_damage || scene.objects().len() as u64 == OBJECTS, "{:?}", scene.objects());
}

/// The bytes are the super block.
pub fn super_block(bytes: &[u8]) {
    let scene = Scene::new();
    let dir = scene.fast.root().dir(b".dlio-fs").unwrap();
    let file = dir.open(b"super", Access::ReadWrite).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
    scene.exercise();
    assert_eq!(scene.objects().len() as u64, OBJECTS);
}

/// Three lines: what an object says of its name, its fingerprint and its hash.
pub fn xattrs(bytes: &[u8]) {
    let scene = Scene::new();
    let object = scene.private("pool").dir(b"03").unwrap();
    let mut lines = bytes.split(|b| *b == b'\n');
    for key in [&b"user.dlio.name"[..], b"user.dlio.clean", b"user.dlio.hash"] {
        let value = lines.next().unwrap_or_default();
        // As long as a file system takes it.
        object.set_xattr(b"0000000000000003", key, &value[..value.len().min(4_000)]).unwrap();
    }
    scene.exercise();
    assert_eq!(scene.objects().len() as u64, OBJECTS);
}

/// A configuration file, and each of its lines as an option.
pub fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut config = Config::default();
    if config.apply_toml(&text, "fuzz").is_ok() {
        drop(config.validate());
    }
    for line in text.lines() {
        let mut config = Config::default();
        if config.apply_option(line).is_ok() {
            drop(config.validate());
        }
    }
}

/// One command for `.dlio/control`.
pub fn control(bytes: &[u8]) {
    if let Err(why) = dlio_fs::fs::parse_command(bytes) {
        assert!(!why.contains('\n') || bytes.contains(&b'\n'), "{why:?}");
    }
}

/// Takes a document and keeps its parts.
#[derive(Default)]
struct Taken(Vec<Vec<u8>>);

impl Write for Taken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            self.0.push(Vec::new());
        }
        self.0.last_mut().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Outlet for Taken {
    fn next(&mut self) -> io::Result<()> {
        self.0.push(Vec::new());
        Ok(())
    }
    fn table(&mut self, _: &str) -> io::Result<()> {
        self.next()
    }
}

/// A recording: as it stands if it begins as one. Else its pieces, with what makes them valid, so that more than checksums is
/// reached: kind, calls, dropped (255 is very many), the length in two bytes, and what is in it before compression.
pub fn recording(bytes: &[u8]) {
    let bytes = if bytes.starts_with(b"dlio-rec") { bytes.to_vec() } else { pieces(bytes) };
    let read = || Recording::read(vec![Box::new(Cursor::new(bytes.clone()))]);
    if read().is_err() {
        return;
    }
    for format in Format::value_variants() {
        let mut parts = Taken::default();
        format.write(&mut read().unwrap(), &DocumentOptions { all: true, split: 2_000 }, &mut parts).unwrap();
        if *format == Format::Chrome {
            parts.0.iter().for_each(|part| drop(serde_json::from_slice::<serde_json::Value>(part).unwrap()));
        }
    }
}

fn pieces(mut bytes: &[u8]) -> Vec<u8> {
    let mut recording = Writer::new(Vec::new()).unwrap().into_inner();
    while let [kind, calls, dropped, low, high, rest @ ..] = bytes {
        let (raw, after) = rest.split_at(rest.len().min(usize::from(*low) | usize::from(*high) << 8));
        let stored = zstd::bulk::compress(raw, 1).unwrap();
        let mut header = [0; 48];
        header[0] = *kind;
        header[4..8].copy_from_slice(&(stored.len() as u32).to_le_bytes());
        header[8..12].copy_from_slice(&crc32fast::hash(&stored).to_le_bytes());
        header[12] = *calls;
        header[16..24].fill(if *dropped == 255 { 255 } else { 0 });
        header[16] = *dropped;
        header[32..40].fill(255);
        let sum = crc32fast::hash(&header[..40]);
        header[40..44].copy_from_slice(&sum.to_le_bytes());
        recording.extend(header.into_iter().chain(stored));
        bytes = after;
    }
    recording
}

/// A block of traced calls, before compression.
pub fn block(bytes: &[u8]) {
    drop(block::unpack(bytes));
    if let Some(calls) = block::unpack(&zstd::bulk::compress(bytes, 1).unwrap()) {
        assert_eq!(block::unpack(&block::pack(&calls)), Some(calls));
    }
}
