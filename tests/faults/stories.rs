//! What the failing calls have found, each with the calls that found it.

use rand::RngExt;

use crate::failing::{Case, dice, is_full_run, run};

/// All these calls, one at a time; once, and from then on; with the background at work after each call and only at the end. A short run
/// takes every other one of these ways, so that any three of a way's four choices meet; the dice say which half it begins with.
fn each_may_fail(tier: &'static str, call: &'static str, numbers: std::ops::RangeInclusive<u64>) {
    let (mut fired, half) = (0, dice().random_range(0..2));
    for nth in numbers {
        for (count, eager) in [("1", true), ("1", false), ("*", true), ("*", false)] {
            for (journaled, cut) in [(true, None), (false, None), (true, Some(nth)), (false, Some(nth))] {
                let choices = [count == "1", eager, journaled, cut.is_none()].into_iter().map(u64::from).sum::<u64>();
                if !is_full_run() && (choices + nth + half) % 2 == 0 {
                    continue;
                }
                let case = Case { tier, call, nth, count, what: "EIO", eager, journaled, cut, steps: usize::MAX };
                fired += run(&case).unwrap_or_else(|why| panic!("{why}")).fired;
            }
        }
    }
    assert!(fired > 0, "no call failed");
}

/// The log was closed by an fsync that failed while intents were being made durable. Publishing was tried again and made the
/// links and directories in `tmp` anew, under other inode numbers than the intents knew. The next start took them for
/// published: a link that had been acknowledged was gone, or the start failed because a directory was missing.
#[test]
fn what_intents_name_stays_when_the_log_is_closed() {
    each_may_fail("fast", "sync", 10..=34);
}

/// A directory's rename had been applied to the slow tree, and the sync behind it failed. Until it succeeded, whatever lay
/// below was looked for at the old place: ENOENT for files that were there. In a run without faults that lasted a moment.
#[test]
fn what_is_below_a_directory_is_found_while_its_rename_is_published() {
    each_may_fail("slow", "sync_dir", 18..=26);
}

/// After a step whose directory could not be synced, each further try applied one more step: on a file system that does not
/// order its names, a power cut left the later one and took the earlier.
#[test]
fn no_step_overtakes_the_sync_of_the_one_before() {
    each_may_fail("slow", "sync_dir", 6..=17);
    each_may_fail("slow", "dir", 14..=20);
}

/// The background's sync of a file that was written in place failed, and the application's fsync, which came after it, found
/// nothing left to sync and succeeded. So did a second fsync.
#[test]
fn a_failed_sync_of_a_file_written_in_place_is_told() {
    each_may_fail("slow", "sync", 1..=12);
}

/// A change of attributes was logged, and the object did not take it: the application was told, the view kept the old ones,
/// and the slow tier got the new ones.
#[test]
fn attributes_that_an_object_does_not_take_reach_no_tier() {
    each_may_fail("fast", "open", 1..=8);
    each_may_fail("fast", "set_attr", 1..=6);
    each_may_fail("fast", "set_xattr", 1..=6);
}

/// The attributes of a new file could not be read for the answer: the application got an error, and the file was there.
#[test]
fn a_create_that_fails_leaves_no_file() {
    each_may_fail("fast", "stat", 1..=10);
}

/// A write in place succeeded, reading the new size did not: the file was never synced, and everything was said to be on the
/// slow tier.
#[test]
fn what_a_failed_write_in_place_left_is_synced() {
    each_may_fail("slow", "stat", 60..=72);
}
