//! `drain_hours`: outside of them nothing is copied to the slow tier, unless somebody asks or room is wanted.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Elsewhere, Mount, until};
use crate::needs::{MOUNTS, needs};
use crate::sim::{SimClock, SimDisk, SimPower};
use dlio_fs::config::Hours;
use dlio_fs::path::Name;
use dlio_fs::tiers::disk::{Clock, MetadataOrder};
use dlio_fs::tiers::{self, Cx, Evicted, OpenMode, Options, Progress, ROOT, SlowTree, Tiers};

/// An engine over simulated disks, whose clock stands still at 22:13:20 until it is moved on.
struct Scene {
    engine: Tiers,
    slow: SimDisk,
    fast: SimDisk,
    clock: Arc<SimClock>,
}

fn options(hours: &str) -> Options {
    let mut options = Options::for_tests();
    options.max_pending = 40;
    options.drain_hours = hours.parse().unwrap();
    options
}

impl Scene {
    fn new(hours: &str) -> Scene {
        let (power, clock) = (SimPower::new(), SimClock::stopped());
        let disk = |label| SimDisk::new(label, MetadataOrder::Journaled, 1 << 30, &power, &clock);
        let (fast, slow) = (disk("fast"), disk("slow"));
        slow.settle();
        let engine =
            tiers::open(fast.root(), slow.root(), SlowTree::Writable, options(hours), clock.clone(), "boot").unwrap();
        Scene { engine, slow, fast, clock }
    }

    fn put(&self, name: &str) {
        self.put_bytes(name, b"content");
    }

    fn put_bytes(&self, name: &str, bytes: &[u8]) {
        let cx = Cx::internal();
        let mode = OpenMode { read: true, write: true, ..OpenMode::default() };
        let name = Name::new(name.as_bytes()).unwrap();
        let (_, file) = self.engine.create(&cx, ROOT, &name, 0o600, 0, mode).unwrap();
        self.engine.write(&cx, &file, bytes, 0, false).unwrap();
        self.engine.flush(&cx, &file).unwrap();
        self.engine.release(&cx, file);
    }

    /// All that the background would do now.
    fn work(&self) {
        let steps: [fn(&Tiers) -> dlio_fs::error::Result<Progress>; 3] =
            [Tiers::seal_step, Tiers::drain_step, Tiers::publish_step];
        while steps.iter().map(|step| step(&self.engine).unwrap()).filter(|done| *done == Progress::Did).count() > 0 {}
    }

    fn has(&self, name: &str) -> bool {
        self.slow.root().stat(name.as_bytes()).is_ok()
    }

    fn waits_until(&self) -> Option<String> {
        self.engine.status().safety.waits_until
    }
}

#[test]
fn nothing_is_copied_before_the_hours_begin() {
    let scene = Scene::new("06:00-07:00,23:00-02:00");
    assert_eq!(scene.clock.second_of_day(), 22 * 3600 + 13 * 60 + 20);
    scene.put("a");
    scene.work();
    assert!(!scene.has("a") && scene.engine.status().pipeline.drained_files == 0);
    assert_eq!(scene.waits_until(), Some("23:00".to_owned()));
    assert_eq!(scene.engine.publish_step().unwrap(), Progress::Wait(Duration::from_secs(46 * 60 + 40)));
    scene.clock.advance(Duration::from_secs(46 * 60 + 40));
    scene.work();
    assert!(scene.has("a") && scene.waits_until().is_none());
    scene.clock.advance(Duration::from_secs(3 * 3600));
    scene.put("b");
    scene.work();
    assert!(!scene.has("b"));
    assert_eq!(scene.waits_until(), Some("06:00".to_owned()));
}

#[test]
fn whoever_waits_does_not_wait_for_the_hours() {
    let scene = Scene::new("06:00-07:00");
    scene.put("a");
    scene.engine.count_waiter(true);
    scene.work();
    assert!(scene.has("a"));
    scene.engine.count_waiter(false);
    scene.put("b");
    scene.work();
    assert!(!scene.has("b"));
    scene.engine.set_options(options(""));
    scene.work();
    assert!(scene.has("b") && scene.waits_until().is_none(), "other hours hold at once");
}

#[test]
fn what_is_hurried_goes_and_what_is_behind_it_waits() {
    let scene = Scene::new("06:00-07:00");
    scene.put("a");
    let a = scene.engine.lookup(&Cx::internal(), ROOT, &Name::new(b"a").unwrap()).unwrap().ino;
    assert!(scene.engine.prioritize(&Cx::internal(), a).unwrap().is_some());
    scene.work();
    assert!(scene.has("a"));
    scene.put("b");
    scene.work();
    assert!(!scene.has("b"));
}

#[test]
fn room_that_is_wanted_does_not_wait_for_the_hours() {
    let scene = Scene::new("06:00-07:00");
    scene.put("a");
    scene.work();
    assert!(!scene.has("a"));
    let used = scene.fast.used();
    scene.fast.set_capacity(used + used / 20);
    scene.work();
    assert!(scene.has("a"), "the fast tier is above high");

    let scene = Scene::new("06:00-07:00");
    (0..9).for_each(|n| scene.put(&format!("f{n}")));
    scene.work();
    assert!(!scene.has("f0"), "{} events", scene.engine.status().safety.events);
    while scene.engine.status().safety.events < 30 {
        scene.put(&format!("g{}", scene.engine.status().safety.events));
    }
    scene.work();
    assert!(scene.has("f0"), "max_pending is near");
    let left = scene.engine.status().safety.events;
    assert!((1..30).contains(&left) && scene.waits_until().is_some(), "the rest waits: {left}");
}

#[test]
fn staging_does_not_wait_for_a_checkpoint_that_waits() {
    let scene = Scene::new("06:00-07:00");
    let cx = Cx::internal();
    scene.put("data");
    scene.engine.count_waiter(true);
    scene.work();
    scene.engine.count_waiter(false);
    let data = scene.engine.lookup(&cx, ROOT, &Name::new(b"data").unwrap()).unwrap().ino;
    assert!(matches!(scene.engine.evict_now(&cx, data).unwrap(), Evicted::Gone(_)));
    scene.put_bytes("checkpoint", &vec![1; 2 << 20]);
    scene.work();
    assert!(!scene.has("checkpoint"));
    // Until the burst of writes is over, and the slow file is no new one.
    scene.clock.advance(Duration::from_secs(600));
    scene.engine.tick().unwrap();
    scene.engine.stage("data", vec![b"data".to_vec()]).unwrap();
    while scene.engine.stage_step().unwrap() == Progress::Did {}
    assert_eq!(scene.engine.staging().copies, 1, "{:?}", scene.engine.staging());
    assert!(!scene.has("checkpoint"));
}

/// In an hour that is far from now, and its neighbour.
fn far_hours() -> (String, String) {
    let output = Command::new("date").arg("+%H").output().unwrap();
    let hour: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let from = (hour + 12) % 24;
    let hours = format!("{from:02}:00-{from:02}:30");
    assert!(hours.parse::<Hours>().is_ok());
    (hours, format!("{from:02}:00"))
}

#[test]
fn a_mount_waits_says_so_and_takes_other_hours() {
    needs!(MOUNTS);
    let (hours, begin) = far_hours();
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s"]);
    let config = mount.root().with_file_name("config.toml");
    fs::write(&config, format!("drain_hours = {hours:?}\n")).unwrap();
    mount.arguments(&["--config", config.to_str().unwrap()]);
    mount.start();
    mount.put("a", "x");
    assert!(mount.verdict().ends_with(&format!("drain waits until {begin}")), "{}", mount.verdict());
    assert_eq!(mount.stats_json()["safety"]["waits_until"], *begin);
    mount.sync();
    assert!(mount.slow().join("a").exists(), "somebody waits");
    mount.put("b", "x");
    assert!(mount.verdict().contains("drain waits"), "{}", mount.verdict());
    fs::write(&config, "drain_hours = \"\"\n").unwrap();
    assert!(mount.control("reload").contains("changed: drain_hours"));
    until("it is copied", || mount.slow().join("b").exists());
    assert!(!mount.verdict().contains("drain waits"), "{}", mount.verdict());
}
