//! A fleet of two members over one simulated slow tree, for stories in which each call is chosen.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dlio_fs::tiers::disk::faults::{Lapse, leaving_out};
use dlio_fs::tiers::disk::{Access, Dir, Kind, MetadataOrder, RenameMode};
use dlio_fs::tiers::{self, Cx, Ino, Options, ROOT, SlowTree, Tiers};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::sim::{Lose, SimClock, SimDisk, SimPower};
use crate::stories::{create, name};

pub const ORDERS: [MetadataOrder; 2] = [MetadataOrder::Journaled, MetadataOrder::Unknown];

/// Two members, whose clocks agree.
pub struct Pair {
    pub clock: Arc<SimClock>,
    pub power: Arc<SimPower>,
    pub slow: SimDisk,
    pub fast: Vec<SimDisk>,
    pub members: Vec<Tiers>,
    pub dice: Xoshiro256PlusPlus,
    is_collected: bool,
    /// Nobody knows which of two members' changes was over before the other began.
    pub overlaps: bool,
}

fn options(is_collected: bool) -> Options {
    Options::for_tests().with(|options| {
        options.fleet = Some("job".to_owned());
        options.fleet_size = Some(2);
        options.collect_above = if is_collected { 0 } else { options.collect_above };
        options.clock_error = Some(Duration::from_millis(1));
        options.revalidate = Duration::ZERO;
        options.settle = Duration::ZERO;
    })
}

impl Pair {
    pub fn new(order: MetadataOrder) -> Pair {
        Pair::of(order, false)
    }

    /// `is_collected`: one of them reads the leases of both, as in a fleet that is too large for each to do so.
    pub fn of(order: MetadataOrder, is_collected: bool) -> Pair {
        let (clock, power) = (SimClock::new(), SimPower::new());
        let slow = SimDisk::new("slow", order, 1 << 30, &power, &clock);
        let fast = (0..2).map(|_| SimDisk::new("fast", MetadataOrder::Journaled, 1 << 30, &SimPower::new(), &clock));
        let fast = fast.collect();
        let mut pair = Pair {
            clock,
            power,
            slow,
            fast,
            members: Vec::new(),
            dice: Xoshiro256PlusPlus::seed_from_u64(1),
            is_collected,
            overlaps: false,
        };
        pair.start();
        pair
    }

    pub fn start(&mut self) {
        let open = |fast: &SimDisk| {
            tiers::open(
                fast.root(),
                self.slow.root(),
                SlowTree::Writable,
                options(self.is_collected),
                self.clock.clone(),
                "boot",
            )
            .unwrap()
        };
        self.members = self.fast.iter().map(open).collect();
    }

    /// Starts a member that is lost on its own fast tier, whatever becomes of it.
    pub fn start_one(&mut self, member: usize) {
        let (fast, slow) = (self.fast[member].root(), self.slow.root());
        let options = options(false);
        drop(tiers::open(fast, slow, SlowTree::Writable, options, self.clock.clone(), "boot"));
    }

    /// A member with a new fast tier takes the slot that another one has given up.
    pub fn replace(&mut self, member: usize) {
        self.fast[member] = SimDisk::new("fast", MetadataOrder::Journaled, 1 << 30, &SimPower::new(), &self.clock);
        let (fast, slow) = (self.fast[member].root(), self.slow.root());
        let engine =
            tiers::open(fast, slow, SlowTree::Writable, options(self.is_collected), self.clock.clone(), "boot")
                .unwrap();
        self.members.insert(member, engine);
    }

    /// A power cut of the slow tier's server, or none of it; both members end.
    pub fn crash(&mut self, lose: Lose) {
        self.power.restore();
        self.members.clear();
        self.slow = self.slow.crash(lose, &mut self.dice);
        self.fast = self.fast.iter().map(|fast| fast.crash(Lose::Nothing, &mut self.dice)).collect();
    }

    pub fn put(&self, member: usize, dir: Ino, file: &str, text: &str) {
        let engine = &self.members[member];
        engine.release(&Cx::internal(), create(engine, dir, file, text.as_bytes()).1);
        self.clock.advance(Duration::from_millis(5));
    }

    pub fn rename(&self, member: usize, dir: Ino, file: &str, to: &str) {
        let cx = Cx::internal();
        self.members[member].rename(&cx, dir, &name(file), dir, &name(to), RenameMode::Replace).unwrap();
        self.clock.advance(Duration::from_millis(5));
    }

    pub fn dir(&self, member: usize, dir: &str) -> Ino {
        self.members[member].lookup(&Cx::internal(), ROOT, &name(dir)).unwrap().ino
    }

    /// One piece of a member's work in the background, whatever becomes of it.
    pub fn work(&self, member: usize) {
        let engine = &self.members[member];
        drop((engine.fleet_step(), engine.seal_step(), engine.drain_step()));
        match self.overlaps {
            true => leaving_out(Lapse::TheirEnds, || engine.publish_step().ok()),
            false => engine.publish_step().ok(),
        };
        self.clock.advance(Duration::from_millis(120));
    }

    /// Until nothing is pending.
    pub fn all_down(&self, order: [usize; 2]) {
        for _ in 0..300 {
            order.iter().for_each(|member| self.work(*member));
            if self.members.iter().all(|engine| engine.status().safety.events == 0) {
                return;
            }
        }
        panic!("{:?}", self.members.iter().map(|engine| engine.status().safety).collect::<Vec<_>>());
    }

    /// The paths and contents of the files of the slow tree; a directory has a path that ends with a slash.
    pub fn tree(&self) -> BTreeSet<(String, String)> {
        let mut found = BTreeSet::new();
        walk(&*self.slow.root(), "", &mut found);
        found
    }

    /// The same of what was saved, without the directory of each time.
    pub fn saved(&self) -> BTreeSet<(String, String)> {
        let mut found = BTreeSet::new();
        if let Ok(saved) = self.slow.root().dir(b".dlio-fs").unwrap().dir(b"saved") {
            saved.list().unwrap().iter().for_each(|time| walk(&*saved.dir(&time.name).unwrap(), "", &mut found));
        }
        found.retain(|(path, _)| !path.ends_with('/'));
        found
    }
}

pub fn walk(dir: &dyn Dir, above: &str, found: &mut BTreeSet<(String, String)>) {
    for entry in dir.list().unwrap().iter().filter(|entry| entry.name != b".dlio-fs") {
        let path = format!("{above}{}", str::from_utf8(&entry.name).unwrap());
        if entry.kind == Kind::Dir {
            found.insert((format!("{path}/"), String::new()));
            walk(&*dir.dir(&entry.name).unwrap(), &format!("{path}/"), found);
            continue;
        }
        found.insert((path, text_of(dir, str::from_utf8(&entry.name).unwrap())));
    }
}

pub fn set<const N: usize>(all: [(&str, &str); N]) -> BTreeSet<(String, String)> {
    all.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect()
}

pub fn text_of(dir: &dyn Dir, name: &str) -> String {
    let file = dir.open(name.as_bytes(), Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    String::from_utf8(bytes).unwrap()
}
