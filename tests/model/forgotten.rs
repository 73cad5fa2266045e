//! A member of a fleet that is lost with its fast tier: what it had copied and not published is found again, under its paths.

use std::sync::Arc;
use std::time::Duration;

use dlio_fs::tiers::disk::{Dir, MetadataOrder, RenameMode};
use dlio_fs::tiers::{Cx, ROOT, Watched};

use crate::pair::{ORDERS, Pair, set};
use crate::sim::Lose;
use crate::stories::name;

/// The second member's copies wait for their turn behind what the first one has not published.
fn pair_with_copies(order: MetadataOrder) -> Pair {
    let pair = Pair::new(order);
    let cx = Cx::internal();
    pair.put(0, ROOT, "before", "it");
    let dir = pair.members[1].mkdir(&cx, ROOT, &name("step-1"), 0o755, 0).unwrap().ino;
    pair.put(1, dir, "shard.tmp", "shard");
    pair.members[1].rename(&cx, dir, &name("shard.tmp"), dir, &name("shard"), RenameMode::Replace).unwrap();
    pair.put(1, ROOT, "log of 1", "line");
    for _ in 0..20 {
        pair.work(1);
    }
    assert!(pair.tree().is_empty(), "the other one is first: {:?}", pair.tree());
    pair
}

/// Watches it for a minute, as `dlio-fs forget` does.
fn forget(pair: &Pair) -> u64 {
    let slow: Arc<dyn Dir> = pair.slow.root();
    let watched = Watched::begin(&*slow, "job", 1).unwrap();
    pair.clock.advance(Duration::from_secs(61));
    assert!(watched.is_silent().unwrap());
    watched.forget().unwrap();
    watched.save_copies(&slow).unwrap().0
}

#[test]
fn what_a_lost_member_had_copied_is_saved_under_its_paths() {
    for order in ORDERS {
        let mut pair = pair_with_copies(order);
        drop(pair.members.pop());
        assert_eq!(forget(&pair), 2);
        let copies = set([("step-1/shard", "shard"), ("log of 1", "line")]);
        assert_eq!(pair.saved(), copies, "{order:?}");
        let again = Watched::begin(&*pair.slow.root(), "job", 1).unwrap();
        let slow: Arc<dyn Dir> = pair.slow.root();
        assert!(again.is_forgotten() && again.save_copies(&slow).unwrap().0 == 0);
        pair.all_down([0, 0]);
        assert_eq!((pair.tree(), pair.saved()), (set([("before", "it")]), copies), "{order:?}");
    }
}

/// The slow tier's server lost power, too. Where names are in no order, those of the copies are not durable before their turn.
#[test]
fn the_journal_is_as_durable_as_the_copies() {
    let mut pair = pair_with_copies(MetadataOrder::Journaled);
    pair.crash(Lose::Unsynced);
    assert_eq!(forget(&pair), 2);
    assert_eq!(pair.saved(), set([("step-1/shard", "shard"), ("log of 1", "line")]));
}

/// It was only frozen: it publishes nothing of it any more, and what was saved stays.
#[test]
fn what_was_saved_of_a_member_that_wakes_up_again_stays() {
    for order in ORDERS {
        let pair = pair_with_copies(order);
        assert_eq!(forget(&pair), 2);
        for _ in 0..50 {
            (0..2).for_each(|member| pair.work(member));
        }
        let copies = set([("step-1/shard", "shard"), ("log of 1", "line")]);
        assert_eq!((pair.tree(), pair.saved()), (set([("before", "it")]), copies), "{order:?}");
    }
}

/// What was published is not saved, and nothing is left in `tmp` for which there is a line.
#[test]
fn what_was_published_is_not_saved() {
    for order in ORDERS {
        let mut pair = pair_with_copies(order);
        let engine = &pair.members[1];
        // With nothing pending, a round would clear the journal.
        while engine.status().safety.events > 0 {
            pair.work(0);
            drop((engine.fleet_step(), engine.publish_step()));
        }
        let all = set([("before", "it"), ("step-1/", ""), ("step-1/shard", "shard"), ("log of 1", "line")]);
        assert_eq!(pair.tree(), all, "{order:?}");
        drop(pair.members.pop());
        assert_eq!((forget(&pair), pair.saved()), (0, set([])), "{order:?}");
    }
}
