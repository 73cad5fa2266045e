//! A member of a fleet that is lost with its fast tier: what it had copied and not published is found again, under its paths.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Dir, MetadataOrder, RenameMode};
use dlio_fs::tiers::{Cx, FinishedGroup, ROOT, Watched, finish_group};

use crate::pair::{ORDERS, Pair, set};
use crate::sim::{Lose, Op};
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

fn forget(pair: &Pair) -> u64 {
    forget_member(pair, 1)
}

/// Watches it for a minute, as `dlio-fs forget` does.
fn forget_member(pair: &Pair, member: u32) -> u64 {
    let slow: Arc<dyn Dir> = pair.slow.root();
    let watched = Watched::begin(&*slow, "job", member).unwrap();
    pair.clock.advance(Duration::from_secs(61));
    assert!(watched.is_silent().unwrap());
    finish_group(&watched, &slow).unwrap();
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

/// A job's end wipes the fast tiers of all nodes while one of them is dead, for which the others have waited.
#[test]
fn what_all_had_copied_is_saved_when_all_fast_tiers_are_wiped() {
    for order in ORDERS {
        for first in [0, 1] {
            let mut pair = pair_with_copies(order);
            pair.members.clear();
            let moved = forget_member(&pair, first) + forget_member(&pair, 1 - first);
            let of_the_other = set([("step-1/shard", "shard"), ("log of 1", "line")]);
            assert!(moved >= 2 && pair.saved().is_superset(&of_the_other), "{order:?}: {:?}", pair.saved());
            assert!(pair.tree().is_empty(), "nothing had its turn: {:?}", pair.tree());
        }
    }
}

/// Watched at the same time: one minute for both. Whoever comes back meanwhile is not silent.
#[test]
fn all_members_that_are_silent_are_forgotten_at_once() {
    let mut pair = pair_with_copies(MetadataOrder::Journaled);
    let slow: Arc<dyn Dir> = pair.slow.root();
    let all = || Watched::all(&*slow, "job").unwrap();
    let silent = |all: &[Watched]| all.iter().map(|watched| watched.is_silent().unwrap()).collect::<Vec<_>>();
    let watched = all();
    pair.clock.advance(Duration::from_secs(61));
    assert_eq!(silent(&watched), [true, true]);
    pair.work(0);
    assert_eq!(silent(&watched), [false, true]);
    pair.members.clear();
    let watched = all();
    pair.clock.advance(Duration::from_secs(61));
    for watched in &watched {
        assert!(watched.is_silent().unwrap(), "though those before it were forgotten");
        finish_group(watched, &slow).unwrap();
        watched.forget().unwrap();
        watched.save_copies(&slow).unwrap();
    }
    assert_eq!(watched.iter().map(Watched::slot).collect::<Vec<_>>(), [0, 1]);
    assert!(pair.saved().is_superset(&set([("step-1/shard", "shard"), ("log of 1", "line")])), "{:?}", pair.saved());
    assert!(all().is_empty(), "nobody waits for them any more");
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

/// What member 1 does in its group: a file that replaces one, a removal, a link, a directory that moves, a new file in it, an
/// attribute.
fn pair_with_a_group(order: MetadataOrder) -> Pair {
    let pair = Pair::new(order);
    let cx = Cx::internal();
    pair.put(1, ROOT, "latest", "first");
    pair.put(1, ROOT, "old", "it");
    pair.members[1].mkdir(&cx, ROOT, &name("step"), 0o755, 0).unwrap();
    pair.put(1, pair.dir(1, "step"), "a", "shard");
    pair.all_down([1, 0]);
    pair.put(0, ROOT, "before", "it");
    pair.put(1, ROOT, "latest.tmp", "second");
    pair.rename(1, ROOT, "latest.tmp", "latest");
    let engine = &pair.members[1];
    engine.unlink(&cx, ROOT, &name("old")).unwrap();
    let latest = engine.lookup(&cx, ROOT, &name("latest")).unwrap().ino;
    engine.link(&cx, latest, ROOT, &name("best")).unwrap();
    pair.rename(1, ROOT, "step", "step-1");
    pair.put(1, pair.dir(1, "step-1"), "b", "more");
    wait_for_the_turn(&pair);
    pair
}

/// Member 1 copies, and waits for its turn until the other one's lease lets all of it go.
fn wait_for_the_turn(pair: &Pair) {
    let engine = &pair.members[1];
    for _ in 0..10 {
        drop((engine.fleet_step(), engine.seal_step(), engine.drain_step(), engine.publish_step()));
        pair.clock.advance(Duration::from_millis(120));
    }
    while pair.members[0].status().safety.events > 0 {
        pair.work(0);
    }
    for _ in 0..10 {
        pair.work(0);
        // A clock is known once a lease was read soon after it was written.
        drop(engine.fleet_step());
    }
}

/// Member 1 is lost after this many calls to the slow tree from the moment when it may publish. How many groups were written
/// down by then, how many calls there were, and the tree after each round of its work.
fn lose_in_a_group(pair: &mut Pair, calls: u64) -> (usize, u64, Vec<BTreeSet<(String, String)>>) {
    let (made, told) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (made.clone(), told.clone());
    let is_lost = move |op: &Op| {
        let is_lost = seen.0.fetch_add(1, Ordering::Relaxed) >= calls;
        seen.1.fetch_add(
            usize::from(!is_lost && op.call == "write_at" && op.path.ends_with(b"/group")),
            Ordering::Relaxed,
        );
        is_lost.then_some(Errno::EIO)
    };
    let mut trees = vec![pair.tree()];
    pair.slow.inject(is_lost);
    for _ in 0..10 {
        drop((pair.members[1].fleet_step(), pair.members[1].publish_step()));
        pair.clock.advance(Duration::from_millis(120));
        if calls == u64::MAX {
            trees.push(pair.tree());
        }
    }
    drop(pair.members.pop());
    pair.slow.inject(|_| None);
    trees.dedup();
    (told.load(Ordering::Relaxed), made.load(Ordering::Relaxed), trees)
}

/// Wherever it stopped, the groups that had their turn are on the slow tree as a whole, and nothing of the next one.
#[test]
fn a_group_that_a_lost_member_had_begun_is_finished() {
    for order in ORDERS {
        let (groups, all, states) = lose_in_a_group(&mut pair_with_a_group(order), u64::MAX);
        assert!(groups >= 1 && states.len() == groups + 1, "{states:?}");
        let names = [("before", "it"), ("latest", "second"), ("best", "second"), ("step-1/", "")];
        let after = set(names).union(&set([("step-1/a", "shard"), ("step-1/b", "more")])).cloned().collect();
        assert_eq!(states.last(), Some(&after));
        let mut half = 0;
        for calls in 0..all {
            let mut pair = pair_with_a_group(order);
            let (told, ..) = lose_in_a_group(&mut pair, calls);
            let old = ("old".to_owned(), "it".to_owned());
            let had_old = pair.tree().contains(&old);
            half += u32::from(!states.contains(&pair.tree()));
            forget(&pair);
            assert_eq!(pair.tree(), states[told], "{order:?}, lost after {calls} of {all} calls, in group {told}");
            assert_eq!(pair.saved().contains(&old), had_old && !pair.tree().contains(&old), "nothing is deleted");
            let is_saved = pair.saved().contains(&("latest".to_owned(), "second".to_owned()));
            assert!(told > 0 || is_saved, "{:?}", pair.saved());
            // What the others do goes on from there.
            pair.put(0, ROOT, "marker", "it");
            pair.all_down([0, 0]);
        }
        assert!(half > 0, "it was never lost in the middle: {half}");
    }
}

/// The last group stays written down for a while: what it names may be somebody else's by the time its member is lost.
#[test]
fn a_group_that_is_published_is_not_done_again() {
    let mut pair = pair_with_a_group(MetadataOrder::Journaled);
    let engine = &pair.members[1];
    while engine.status().safety.events > 0 {
        drop((engine.fleet_step(), engine.publish_step()));
        pair.work(0);
    }
    assert!(tmp_with_group(&pair).is_some(), "it stays there");
    for _ in 0..20 {
        pair.clock.advance(Duration::from_millis(120));
        engine.fleet_step().unwrap();
    }
    drop(pair.members.pop());
    let tree = pair.tree();
    let slow: Arc<dyn Dir> = pair.slow.root();
    let watched = Watched::begin(&*slow, "job", 1).unwrap();
    assert_eq!(finish_group(&watched, &slow).unwrap(), FinishedGroup::default());
    assert_eq!(pair.tree(), tree);
}

fn tmp_with_group(pair: &Pair) -> Option<Arc<dyn Dir>> {
    let tmp = pair.slow.root().dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap();
    let mut dirs = tmp.list().unwrap().into_iter().map(|entry| tmp.dir(&entry.name).unwrap());
    dirs.find(|dir| dir.stat(b"group").is_ok())
}

/// Files that wait in a new directory, which has its turn with all of them: wherever the member was lost, each is on the slow
/// tree or saved.
#[test]
fn what_a_lost_member_had_moved_into_a_new_directory_is_saved() {
    let files = set([("run/a", "1"), ("run/b", "22"), ("run/c", "333")]);
    let pair_with_a_directory = || {
        let pair = Pair::new(MetadataOrder::Unknown);
        pair.put(0, ROOT, "before", "it");
        let dir = pair.members[1].mkdir(&Cx::internal(), ROOT, &name("run"), 0o755, 0).unwrap().ino;
        files.iter().for_each(|(path, text)| pair.put(1, dir, path.strip_prefix("run/").unwrap(), text));
        wait_for_the_turn(&pair);
        pair
    };
    let (_, all, states) = lose_in_a_group(&mut pair_with_a_directory(), u64::MAX);
    assert!(states.last().unwrap().is_superset(&files), "{states:?}");
    let mut moved_on = 0;
    for calls in 0..all {
        let mut pair = pair_with_a_directory();
        lose_in_a_group(&mut pair, calls);
        let slow: Arc<dyn Dir> = pair.slow.root();
        let watched = Watched::begin(&*slow, "job", 1).unwrap();
        finish_group(&watched, &slow).unwrap();
        moved_on += u32::from(has_a_filled_directory(&pair));
        forget(&pair);
        let there: BTreeSet<_> = pair.tree().union(&pair.saved()).cloned().collect();
        assert!(there.is_superset(&files), "lost after {calls} of {all} calls: {there:?}");
    }
    assert!(moved_on > 0, "no file was in a directory that waits");
}

fn has_a_filled_directory(pair: &Pair) -> bool {
    let tmp = pair.slow.root().dir(b".dlio-fs").unwrap().dir(b"tmp").unwrap();
    let tmps = tmp.list().unwrap().into_iter().map(|entry| tmp.dir(&entry.name).unwrap());
    let mut made = tmps.flat_map(|tmp| {
        let names = tmp.list().unwrap().into_iter().map(|entry| entry.name).filter(|name| name.starts_with(b"m"));
        names.filter_map(|name| tmp.dir(&name).ok()).collect::<Vec<_>>()
    });
    made.any(|dir| !dir.list().unwrap().is_empty())
}

/// Lost once its first group is under way, in front of the last step.
fn lost_in_the_middle() -> Pair {
    let (_, all, states) = lose_in_a_group(&mut pair_with_a_group(MetadataOrder::Journaled), u64::MAX);
    for calls in 0..all {
        let mut pair = pair_with_a_group(MetadataOrder::Journaled);
        lose_in_a_group(&mut pair, calls);
        if !states.contains(&pair.tree()) {
            return pair;
        }
    }
    panic!("it was never lost in the middle")
}

/// Somebody whose change overlaps in time has replaced what the group had placed.
#[test]
fn a_group_is_finished_behind_what_another_member_has_replaced() {
    let two_files = || {
        let pair = Pair::new(MetadataOrder::Journaled);
        pair.put(0, ROOT, "before", "it");
        ["x", "y"].iter().for_each(|file| pair.put(1, ROOT, file, "ours"));
        wait_for_the_turn(&pair);
        pair
    };
    let (_, all, _) = lose_in_a_group(&mut two_files(), u64::MAX);
    let only_the_first = set([("before", "it"), ("x", "ours")]);
    let lost = (0..all).map(|calls| {
        let mut pair = two_files();
        lose_in_a_group(&mut pair, calls);
        pair
    });
    let pair = lost.into_iter().find(|pair| pair.tree() == only_the_first).expect("it was lost between the two");
    let slow: Arc<dyn Dir> = pair.slow.root();
    slow.create(b"theirs", 0o644).unwrap().write_at(b"theirs", 0).unwrap();
    slow.rename(b"theirs", &*slow, b"x", RenameMode::Replace).unwrap();
    let watched = Watched::begin(&*slow, "job", 1).unwrap();
    let FinishedGroup { done, all, stopped } = finish_group(&watched, &slow).unwrap();
    assert_eq!((done, all, stopped), (2, 2, None));
    assert_eq!(pair.tree(), set([("before", "it"), ("x", "theirs"), ("y", "ours")]));
}

/// A step that the slow tier refuses for now: the others must not go on yet.
#[test]
fn a_group_that_cannot_be_finished_now_is_finished_later() {
    let pair = lost_in_the_middle();
    let slow: Arc<dyn Dir> = pair.slow.root();
    let watched = Watched::begin(&*slow, "job", 1).unwrap();
    let changes = ["rename", "link", "unlink", "set_attr"];
    pair.slow.inject(move |op| (changes.contains(&op.call) && !op.path.is_empty()).then_some(Errno::ENOSPC));
    assert!(finish_group(&watched, &slow).is_err());
    pair.slow.inject(|_| None);
    let FinishedGroup { done, all, .. } = finish_group(&watched, &slow).unwrap();
    assert!(done == all && all > 1);
}

/// A start finishes the group, too: whoever watches the member sees it first.
#[test]
fn a_member_that_starts_again_is_seen_before_it_finishes_its_group() {
    let mut pair = lost_in_the_middle();
    let slow: Arc<dyn Dir> = pair.slow.root();
    let watched = Watched::begin(&*slow, "job", 1).unwrap();
    // From its first call to the tree itself on, none reaches the slow tier.
    let is_lost = AtomicBool::new(false);
    pair.slow.inject(move |op| {
        let is_change = !op.private && ["rename", "link", "unlink", "set_attr"].contains(&op.call);
        (is_lost.fetch_or(is_change, Ordering::Relaxed) || is_change).then_some(Errno::EIO)
    });
    pair.start_one(1);
    pair.slow.inject(|_| None);
    assert!(!watched.is_silent().unwrap());
    assert!(finish_group(&watched, &slow).is_err(), "it has come back");
}
