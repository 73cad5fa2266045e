//! Members of a fleet that change the same name: nothing holds the order, nothing is dropped, and one file has the name in the end.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::faults::{Lapse, leaving_out};
use dlio_fs::tiers::disk::{Dir, MetadataOrder, RenameMode};
use dlio_fs::tiers::{Cx, OpenMode, ROOT};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::pair::{ORDERS, Pair, set, text_of};
use crate::sim::Lose;
use crate::stories::{WRITE, name, read};

/// The members' changes go for such that overlap in time, though here one call comes after the other.
fn overlapping(order: MetadataOrder) -> Pair {
    let mut pair = Pair::new(order);
    pair.overlaps = true;
    pair
}

/// As all ranks do it that each write a marker: to a name of their own, or to one for all; over an earlier one, or none;
/// renamed before or after it is published.
#[test]
fn a_name_that_both_replace_is_one_file_in_the_end() {
    for order in ORDERS {
        for temporary in [["latest.tmp"; 2], ["latest.0", "latest.1"]] {
            for (is_over, is_early) in [(false, false), (true, false), (false, true), (true, true)] {
                for turn in [[0, 1], [1, 0]] {
                    let case = format!("{order:?} {temporary:?} over {is_over} early {is_early} {turn:?}");
                    both_replace_it(order, temporary, (is_over, is_early), turn, &case);
                }
            }
        }
    }
}

fn both_replace_it(
    order: MetadataOrder,
    temporary: [&str; 2],
    (is_over, is_early): (bool, bool),
    turn: [usize; 2],
    case: &str,
) {
    let pair = overlapping(order);
    if is_over {
        pair.put(0, ROOT, "latest", "before");
        pair.all_down(turn);
        assert_eq!([0, 1].map(|member| read(&pair.members[member], "latest").len()), [6, 6]);
    }
    for (member, text) in [(0, "zero"), (1, "one")] {
        pair.put(member, ROOT, temporary[member], text);
    }
    if is_early {
        pair.all_down(turn);
    }
    for (member, temporary) in (0..).zip(temporary) {
        // The same file for both: one of them has it.
        if pair.members[member].lookup(&Cx::internal(), ROOT, &name(temporary)).is_ok() {
            pair.rename(member, ROOT, temporary, "latest");
        }
    }
    pair.all_down(turn);
    let (tree, saved) = (pair.tree(), pair.saved());
    let texts: BTreeSet<_> =
        tree.iter().chain(&saved).map(|(_, text)| &text[..]).filter(|text| *text != "before").collect();
    assert_eq!(tree.len(), 1, "{case}: {tree:?}, saved {saved:?}");
    assert_eq!(texts, BTreeSet::from(["one", "zero"]), "{case}: {tree:?}, saved {saved:?}");
    let conflicts = pair.members.iter().map(|engine| engine.status().exceptions.conflicts);
    assert_eq!(conflicts.sum::<u64>(), 0, "{case}");
    let (_, text) = tree.first().unwrap();
    let seen = [0, 1].map(|member| String::from_utf8(read(&pair.members[member], "latest")).unwrap());
    assert_eq!(seen, [text.as_str(); 2], "both see it");
}

/// Without a temporary name: each truncates it and writes it again.
#[test]
fn a_file_that_both_write_again_is_one_file_in_the_end() {
    for order in ORDERS {
        for turn in [[0, 1], [1, 0]] {
            let pair = overlapping(order);
            pair.put(0, ROOT, "latest", "before");
            pair.all_down(turn);
            for (member, text) in [(0, "zero"), (1, "one")] {
                write_again(&pair, member, text);
            }
            pair.all_down(turn);
            let (tree, saved) = (pair.tree(), pair.saved());
            let case = format!("{order:?} {turn:?}: {tree:?}, saved {saved:?}");
            assert_eq!(tree.len(), 1, "{case}");
            let texts: BTreeSet<_> = tree.iter().chain(&saved).map(|(_, text)| &text[..]).collect();
            assert!(texts.is_superset(&BTreeSet::from(["one", "zero"])), "{case}");
        }
    }
}

/// A rotation: the member that removes a directory does not see what others have pending in it.
#[test]
fn a_directory_that_one_removes_goes_with_what_others_had_pending_in_it() {
    for order in ORDERS {
        for turn in [[0, 1], [1, 0]] {
            let pair = overlapping(order);
            let cx = Cx::internal();
            let made = pair.members[0].mkdir(&cx, ROOT, &name("step-1"), 0o755, 0).unwrap().ino;
            pair.put(0, made, "shard-0", "zero");
            pair.all_down(turn);
            let seen = pair.dir(1, "step-1");
            pair.put(1, seen, "shard-1", "one");
            pair.members[0].unlink(&cx, made, &name("shard-0")).unwrap();
            pair.members[0].rmdir(&cx, ROOT, &name("step-1")).unwrap();
            pair.clock.advance(Duration::from_millis(5));
            pair.put(0, ROOT, "latest", "step-2");
            pair.all_down(turn);
            assert_eq!(pair.tree(), set([("latest", "step-2")]), "{order:?} {turn:?}");
            assert_eq!(pair.saved(), set([("step-1/shard-1", "one")]), "{order:?} {turn:?}");
            for member in &pair.members {
                let found = member.lookup(&cx, ROOT, &name("step-1")).map(|_| ());
                assert_eq!(found.unwrap_err().errno(), Errno::ENOENT, "both see that it is gone");
            }
        }
    }
}

/// It is new to the others: the directory is made anew.
#[test]
fn what_is_made_in_a_directory_after_another_member_removed_it_is_there() {
    for order in ORDERS {
        for turn in [[0, 1], [1, 0]] {
            let pair = overlapping(order);
            let cx = Cx::internal();
            pair.members[0].mkdir(&cx, ROOT, &name("run"), 0o755, 0).unwrap();
            pair.all_down(turn);
            let seen = pair.dir(1, "run");
            pair.members[0].rmdir(&cx, ROOT, &name("run")).unwrap();
            pair.clock.advance(Duration::from_millis(5));
            pair.put(1, seen, "file", "one");
            pair.put(1, ROOT, "behind", "it");
            pair.all_down(turn);
            let expected = set([("run/", ""), ("run/file", "one"), ("behind", "it")]);
            assert_eq!(pair.tree(), expected, "{order:?} {turn:?}");
            assert_eq!(pair.saved(), set([]), "{order:?} {turn:?}");
        }
    }
}

/// By a kill or by a power cut, at each call.
#[test]
fn a_stop_while_one_replaces_the_others_file_or_removes_its_directory_drops_neither() {
    for (order, is_over) in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        for lose in [Lose::Nothing, Lose::Unsynced] {
            for stop in 1.. {
                let mut pair = overlapping(order);
                pair.dice = Xoshiro256PlusPlus::seed_from_u64(stop);
                both_change_it(&pair, is_over);
                pair.power.fail_after(stop, &mut pair.dice);
                (0..5).for_each(|_| pair.work(0));
                let stopped = pair.power.is_gone();
                pair.crash(lose);
                pair.start();
                pair.all_down([0, 1]);
                let (tree, saved) = (pair.tree(), pair.saved());
                assert_eq!(tree, set([("latest", "zero")]), "{order:?} {lose:?} stop {stop}: saved {saved:?}");
                let all = set([("latest", "one"), ("step-1/shard-1", "shard")]);
                assert_eq!(saved, all, "{order:?} {lose:?} stop {stop}");
                if !stopped {
                    break;
                }
            }
        }
    }
}

/// Each call of the slow tier fails once.
#[test]
fn a_call_that_fails_while_one_replaces_the_others_file_is_made_up_for() {
    for (order, is_over) in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        for errno in [Errno::EIO, Errno::EPERM, Errno::EXDEV, Errno::ENOSPC] {
            for failing in 0.. {
                let pair = overlapping(order);
                both_change_it(&pair, is_over);
                let calls = Arc::new(AtomicU64::new(0));
                pair.slow.inject({
                    let calls = calls.clone();
                    move |_| (calls.fetch_add(1, Ordering::Relaxed) == failing).then_some(errno)
                });
                (0..5).for_each(|_| pair.work(0));
                pair.all_down([0, 1]);
                let (tree, saved) = (pair.tree(), pair.saved());
                let all = tree.iter().chain(&saved).map(|(_, text)| &text[..]);
                let all: BTreeSet<&str> = all.filter(|text| !text.is_empty()).collect();
                assert_eq!(all, BTreeSet::from(["one", "shard", "zero"]), "{order:?} {errno:?} call {failing}");
                if calls.load(Ordering::Relaxed) <= failing {
                    break;
                }
            }
        }
    }
}

/// As in another file system: theirs stays, and ours goes beside it.
#[test]
fn what_cannot_be_saved_keeps_its_name() {
    for order in ORDERS {
        let pair = overlapping(order);
        both_change_it(&pair, false);
        // Nothing else is done with them.
        pair.slow.inject(|op| {
            let is_saved =
                ["rename", "link"].contains(&op.call) && [&b"latest"[..], b"step-1/shard-1"].contains(&&op.path[..]);
            is_saved.then_some(Errno::EXDEV)
        });
        pair.all_down([0, 1]);
        let tree = pair.tree();
        let has = |path: &str, text: &str| tree.iter().any(|(found, of)| found.starts_with(path) && of == text);
        assert!(has("latest", "one") && has("latest.dlio-conflict-", "zero"), "{tree:?}");
        assert!(has("step-1/shard-1", "shard") && pair.saved().is_empty(), "{tree:?}");
    }
}

/// The second member's file and directory are on the slow tree; the first one is about to publish its own.
fn both_change_it(pair: &Pair, is_over: bool) {
    let cx = Cx::internal();
    if is_over {
        pair.put(1, ROOT, "latest", "before");
        pair.all_down([0, 1]);
        // A version of the same file each, in place of the one that both know.
        pair.members.iter().for_each(|engine| assert_eq!(read(engine, "latest"), b"before"));
    }
    pair.members[0].mkdir(&cx, ROOT, &name("step-1"), 0o755, 0).unwrap();
    pair.all_down([0, 1]);
    let seen = pair.dir(1, "step-1");
    pair.put(1, seen, "shard-1", "shard");
    if is_over {
        write_again(pair, 1, "one");
    } else {
        pair.put(1, ROOT, "latest.1", "one");
        pair.rename(1, ROOT, "latest.1", "latest");
    }
    pair.members[0].rmdir(&cx, ROOT, &name("step-1")).unwrap();
    if is_over {
        write_again(pair, 0, "zero");
    } else {
        pair.put(0, ROOT, "latest.0", "zero");
        pair.rename(0, ROOT, "latest.0", "latest");
    }
    (0..2).for_each(|member| pair.members[member].sync_fast().unwrap());
    for _ in 0..20 {
        pair.work(1);
        drop((pair.members[0].fleet_step(), pair.members[0].seal_step(), pair.members[0].drain_step()));
    }
}

fn write_again(pair: &Pair, member: usize, text: &str) {
    let (engine, cx) = (&pair.members[member], Cx::internal());
    let ino = engine.lookup(&cx, ROOT, &name("latest")).unwrap().ino;
    let file = engine.open(&cx, ino, OpenMode { truncate: true, ..WRITE }).unwrap();
    engine.write(&cx, &file, text.as_bytes(), 0, false).unwrap();
    engine.flush(&cx, &file).unwrap();
    engine.release(&cx, file);
    pair.clock.advance(Duration::from_millis(5));
}

/// At each call of the first one a third one puts its own file there; and something into the directory.
#[test]
fn what_a_third_one_does_meanwhile_is_not_lost() {
    for (order, is_over) in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        for at in 0.. {
            let pair = overlapping(order);
            both_change_it(&pair, is_over);
            let (calls, slow) = (Arc::new(AtomicU64::new(0)), pair.slow.root());
            let lacks = Arc::new(Mutex::new(BTreeSet::from(["two".to_owned(), "shard two".to_owned()])));
            let (done, lacking) = (calls.clone(), lacks.clone());
            pair.slow.before_calls(move || {
                if calls.fetch_add(1, Ordering::Relaxed) == at {
                    let mut lacking = lacking.lock().unwrap();
                    lacking.remove("two");
                    lacking.insert(text_of(&*slow, "latest"));
                    put_there(&*slow, b"third", "two");
                    slow.rename(b"third", &*slow, b"latest", RenameMode::Replace).unwrap();
                    if let Ok(dir) = slow.dir(b"step-1") {
                        put_there(&*dir, b"shard-2", "shard two");
                        lacking.remove("shard two");
                    }
                }
            });
            (0..4).for_each(|_| pair.work(0));
            let calls = done.load(Ordering::Relaxed);
            pair.all_down([0, 1]);
            let (tree, saved) = (pair.tree(), pair.saved());
            let all: BTreeSet<&str> = tree.iter().chain(&saved).map(|(_, text)| &text[..]).collect();
            // The third one replaced what had the name.
            let texts = ["one", "two", "zero", "shard", "shard two"].into_iter();
            for text in texts.filter(|text| !lacks.lock().unwrap().contains(&text.to_string())) {
                assert!(all.contains(text), "{order:?} over {is_over} call {at}: no {text}: {tree:?}, saved {saved:?}");
            }
            if calls <= at {
                assert!(at > 10, "{at} calls");
                break;
            }
        }
    }
}

fn put_there(dir: &dyn Dir, name: &[u8], text: &str) {
    dir.create(name, 0o644).unwrap().write_at(text.as_bytes(), 0).unwrap();
}

/// A rotation: what its listing shows is removed, and meanwhile the other one, which is slow, publishes a file that it wrote
/// before. `rmdir` was refused then, and 4 of 12 rotations failed. And what the other one wrote before lay in `saved` for ever.
#[test]
fn who_empties_a_directory_removes_it_whatever_is_published_meanwhile() {
    let rotate = |order, is_closed: bool| {
        let pair = Pair::new(order);
        let cx = Cx::internal();
        let made = pair.members[0].mkdir(&cx, ROOT, &name("step-1"), 0o755, 0).unwrap().ino;
        pair.put(0, made, "shard-0", "zero");
        pair.all_down([0, 1]);
        let seen = pair.dir(1, "step-1");
        let listing = pair.members[0].open_listing(&cx, made).unwrap();
        let (_, open) = pair.members[1].create(&cx, seen, &name("shard-1"), 0o644, 0, WRITE).unwrap();
        pair.members[1].write(&cx, &open, b"one", 0, false).unwrap();
        let mut open = Some(open);
        let close = |open| {
            pair.members[1].flush(&cx, &open).unwrap();
            pair.members[1].release(&cx, open);
        };
        if is_closed {
            open.take().into_iter().for_each(close);
            pair.clock.advance(Duration::from_millis(5));
            pair.all_down([1, 0]);
        }
        pair.members[0].unlink(&cx, made, &name("shard-0")).unwrap();
        pair.members[0].close_listing(&listing);
        drop(listing);
        pair.members[0].rmdir(&cx, ROOT, &name("step-1")).unwrap();
        open.take().into_iter().for_each(close);
        pair.all_down([1, 0]);
        (pair.tree(), pair.saved())
    };
    for order in ORDERS {
        assert_eq!(rotate(order, true), (set([]), set([])), "{order:?}");
        let anew = set([("step-1/", ""), ("step-1/shard-1", "one")]);
        assert_eq!(rotate(order, false), (anew, set([])), "still being written: {order:?}");
        let saved = leaving_out(Lapse::TheirEnds, || rotate(order, true));
        assert_eq!(saved, (set([]), set([("step-1/shard-1", "one")])), "{order:?}");
    }
}

/// Another program of this node has seen it since the listing, and writes into it.
#[test]
fn what_was_looked_up_here_since_the_listing_keeps_its_directory() {
    for order in ORDERS {
        let pair = Pair::new(order);
        let cx = Cx::internal();
        let made = pair.members[0].mkdir(&cx, ROOT, &name("run"), 0o755, 0).unwrap().ino;
        pair.all_down([0, 1]);
        let listing = pair.members[0].open_listing(&cx, made).unwrap();
        pair.members[1].mkdir(&cx, pair.dir(1, "run"), &name("sub"), 0o755, 0).unwrap();
        pair.all_down([1, 0]);
        // Until it has heard of that.
        while pair.members[0].lookup(&cx, made, &name("sub")).is_err() {
            pair.work(1);
            pair.work(0);
        }
        let sub = pair.members[0].lookup(&cx, made, &name("sub")).unwrap().ino;
        pair.put(0, sub, "file", "zero");
        pair.members[0].close_listing(&listing);
        let refused = pair.members[0].rmdir(&cx, ROOT, &name("run")).map_err(|error| error.errno());
        assert_eq!(refused, Err(Errno::ENOTEMPTY), "{order:?}");
        pair.all_down([0, 1]);
        assert_eq!(pair.tree(), set([("run/", ""), ("run/sub/", ""), ("run/sub/file", "zero")]), "{order:?}");
    }
}

/// A directory that the first one made and knows by heart: it asks the slow tier before it takes it for empty.
#[test]
fn a_directory_that_has_published_files_of_others_is_not_empty() {
    for order in ORDERS {
        let pair = Pair::new(order);
        let cx = Cx::internal();
        let made = pair.members[0].mkdir(&cx, ROOT, &name("step-1"), 0o755, 0).unwrap().ino;
        pair.put(0, made, "shard-0", "zero");
        pair.all_down([0, 1]);
        let seen = pair.dir(1, "step-1");
        pair.put(1, seen, "shard-1", "one");
        pair.all_down([0, 1]);
        pair.members[0].unlink(&cx, made, &name("shard-0")).unwrap();
        let refused = pair.members[0].rmdir(&cx, ROOT, &name("step-1")).unwrap_err();
        assert_eq!(refused.errno(), Errno::ENOTEMPTY);
    }
}
