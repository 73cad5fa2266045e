//! What a start asks of the slow tier, which may be slow, for it is asked while somebody waits.

use std::path::PathBuf;
use std::time::Duration;

use dlio_fs::tiers::disk::MetadataOrder;
use dlio_fs::tiers::disk::faults::TierName;

use crate::engine::World;
use crate::script::Target;
use crate::traffic::ledger::Op;

const FILES: u64 = 40;

/// A daemon that ended with so many files pending.
fn leave_pending(world: &mut World) {
    world.start().unwrap();
    for number in 0..FILES {
        let path = PathBuf::from(format!("dir/sub/{number}"));
        let written = Op::Write { path: path.clone(), offset: 0, bytes: vec![1; 10] };
        for op in [Op::Create(path.clone()), written, Op::Close(path)] {
            world.perform(&op).unwrap();
        }
    }
    world.stop(None);
}

/// Each record looked for the directories of its path again where the mount was to believe nothing (`attribute_lifetime_slow=0s`): two million
/// look-ups for a million files in a directory of the slow tier.
#[test]
fn a_start_asks_for_a_directory_once_and_not_for_each_record() {
    let mut world = World::new(MetadataOrder::Journaled, false);
    world.believed = Duration::ZERO;
    leave_pending(&mut world);
    let asked = |world: &World| world.faults.counts().get(&(TierName::Slow, "stat")).copied().unwrap_or(0);
    let before = asked(&world);
    world.start().unwrap();
    let asked = asked(&world) - before;
    // Some forty of them try what the tier can do, and look whether our directories give anything on.
    assert!((FILES..FILES + 48).contains(&asked), "{asked} look-ups for {FILES} names in one directory");
    assert_eq!(world.read(&PathBuf::from("dir/sub/7")).unwrap(), world.read(&PathBuf::from("dir/sub/8")).unwrap());
}

/// A start once opened each object of a pending file and asked the open file three questions, and asked a fourth time who owns it, in case a
/// directory had to be made anew for it. That such an object has no fingerprint is known from the log.
#[test]
fn a_start_asks_one_question_about_the_object_of_a_pending_file() {
    let mut world = World::new(MetadataOrder::Journaled, false);
    leave_pending(&mut world);
    let calls = ["stat", "open", "get_xattr"];
    let asked =
        |world: &World| calls.map(|call| world.faults.counts().get(&(TierName::Fast, call)).copied().unwrap_or(0));
    let before = asked(&world);
    world.start().unwrap();
    let [stats, opens, attributes] = std::array::from_fn(|call| asked(&world)[call] - before[call]);
    assert!((FILES..FILES + 40).contains(&stats), "{stats} stats for {FILES} objects");
    assert!(
        opens < FILES / 2 && attributes < FILES / 2,
        "{opens} opens and {attributes} attributes for {FILES} objects"
    );
}
