//! What a walk through a directory of the slow tier asks of that tier.

use std::sync::Arc;
use std::time::Duration;

use dlio_fs::error::Error;
use dlio_fs::path::Name;
use dlio_fs::tiers::disk::faults::TierName;
use dlio_fs::tiers::disk::{Kind, MetadataOrder};
use dlio_fs::tiers::{Cx, Listing, ROOT};

use crate::engine::World;

const FILES: usize = 500;

/// A directory of the slow tier with many files and some directories, listed.
fn listed(believed: Duration) -> (World, u64, Arc<Listing>) {
    let mut world = World::new(MetadataOrder::Journaled, false);
    world.believed = believed;
    let root = world.slow.root();
    root.mkdir(b"many", 0o755).unwrap();
    let many = root.dir(b"many").unwrap();
    for number in 0..FILES {
        let name = format!("n{number:04}");
        if number % 100 == 50 {
            many.mkdir(name.as_bytes(), 0o755).unwrap()
        } else {
            drop(many.create(name.as_bytes(), 0o644).unwrap())
        }
    }
    drop((many, root));
    world.start().unwrap();
    let dir = world.engine().lookup(&Cx::internal(), ROOT, &Name::new(b"many").unwrap()).unwrap().ino;
    let listing = world.engine().list(&Cx::internal(), dir).unwrap();
    (world, dir, listing)
}

/// Looks up a name as the file system does: by a thread that must not wait, then by one that may. `true`: the second was
/// needed.
fn look_up(world: &World, dir: u64, name: &[u8]) -> bool {
    let name = Name::new(name).unwrap();
    match world.engine().lookup(&Cx::fast_only(0, 0), dir, &name) {
        Err(Error::NeedSlow) => world.engine().lookup(&Cx::internal(), dir, &name).map(|_| true).unwrap(),
        found => found.map(|_| false).unwrap(),
    }
}

fn stats(world: &World) -> u64 {
    world.faults.counts().get(&(TierName::Slow, "stat")).copied().unwrap_or(0)
}

/// Each look-up of a name once took three system calls of a thread that must not wait, or two changes of threads.
#[test]
fn look_ups_in_the_order_of_a_listing_ask_once_for_each_name_and_seldom_wait() {
    let (world, dir, listing) = listed(Duration::from_secs(1));
    let before = stats(&world);
    let waited = listing.entries.iter().skip(2).filter(|entry| look_up(&world, dir, &entry.name)).count();
    let asked = stats(&world) - before;
    assert_eq!(asked, FILES as u64, "questions for as many names");
    assert!(waited < FILES / 20, "{waited} of {FILES} look-ups waited");
}

/// Whoever asks for names in another order, or for one only, gets what was asked for, and so does everybody where no answer may be believed.
#[test]
fn other_look_ups_ask_for_nothing_else() {
    let (world, dir, listing) = listed(Duration::from_secs(1));
    let before = stats(&world);
    let some: Vec<_> = listing.entries.iter().skip(2).step_by(97).collect();
    for entry in some.iter().rev() {
        look_up(&world, dir, &entry.name);
    }
    assert_eq!(stats(&world) - before, some.len() as u64);

    let (world, dir, listing) = listed(Duration::ZERO);
    let before = stats(&world);
    for entry in listing.entries.iter().skip(2).take(40) {
        look_up(&world, dir, &entry.name);
    }
    let asked = stats(&world) - before;
    assert!((40..=80).contains(&asked), "{asked} questions for 40 names, of which no answer may be kept");
}

/// What is mounted on a directory may never answer: nobody waits for it who has not asked for it. A name that went meanwhile is no news.
#[test]
fn names_ahead_are_no_directories_and_may_be_gone() {
    let (world, dir, listing) = listed(Duration::from_secs(1));
    let gone = listing.entries[12].name.clone();
    world.slow.root().dir(b"many").unwrap().unlink(&gone).unwrap();
    let dirs = listing.entries.iter().filter(|entry| entry.kind == Kind::Dir).count() - 2;
    let asked = listing.entries.iter().skip(2).filter(|entry| entry.kind != Kind::Dir && entry.name != gone);
    let before = stats(&world);
    let mut number = 0;
    for entry in asked {
        look_up(&world, dir, &entry.name);
        number += 1;
    }
    assert_eq!(stats(&world) - before, number + 1, "no question for the {dirs} directories, one for what is gone");
    assert!(world.engine().lookup(&Cx::internal(), dir, &Name::new(&gone).unwrap()).is_err());
}
