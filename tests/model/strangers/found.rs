//! Cases that the dice found, as short as they got, each with the seed of its machine.

use dlio_fs::tiers::disk::RenameMode::{Exchange, NoReplace, Replace};

use super::acts::Act::{
    self, Link, Mkdir, Move, Open, Put, Rest, Rmdir, Step, Stop, SyncAll, They, Times, Wait, Write, Xattr,
};
use super::acts::Deed;
use super::acts::Hold;
use super::acts::How::{self, Append, InPlace};
use super::acts::Step::{Drain, Publish, Seal, Tick};
use super::acts::Their::{self, Anew, Inside};
use crate::sim::Lose;

fn put(path: &'static str, how: How) -> Act {
    Put { path, how }
}

fn theirs(path: &'static str, how: Their) -> Act {
    They(Deed::Put { path, how })
}

fn holds(seed: u64, acts: &[Act]) {
    if let Err(why) = super::run(seed, acts, true) {
        panic!("{why}");
    }
}

/// A conflict had put the first version beside. The second one went to no name of the slow tier, and counted as safe.
#[test]
fn a_newer_version_follows_the_one_that_a_conflict_has_put_beside() {
    let wait = [put("d/b", InPlace), theirs("d/b", Inside), Step(Seal), put("a", Append), put("d/b", InPlace)];
    holds(139, &[&wait[..], &[Step(Drain), put("a", InPlace)]].concat());
}

/// A link, an exchange and a replacement that waited behind it were lost, or were shown and not there.
#[test]
fn what_waits_behind_a_conflict_finds_the_file_where_it_is() {
    let moved = |from, to, mode| Move { from, to, mode };
    let link = |from, to| Link { from, to };
    holds(1079, &[put("c", Append), theirs("c", Their::Rename), link("c", "e"), put("c", Append)]);
    let open = Open { slot: 1, path: "b", how: Hold::Write };
    holds(3242, &[open, link("b", "a"), put("b", How::Replace), theirs("b", Anew)]);
    let exchange = moved("e", "b", Exchange);
    holds(
        1808,
        &[theirs("e", Their::Rename), put("b", InPlace), theirs("b", Inside), exchange, put("b", How::Replace)],
    );
    holds(5944, &[put("a", Append), link("a", "d/b"), put("d/b", InPlace), theirs("d/b", Anew)]);
    let below = [put("b", InPlace), Mkdir { path: "e" }, theirs("e", Their::Rename), put("e/b", InPlace)];
    holds(6220, &[&below[..], &[put("b", How::Replace), Xattr { path: "d" }, put("e/b", Append)]].concat());
}

/// The note of what the slow tier had under the name is in front of what is published already.
#[test]
fn a_start_finds_their_file_at_a_name_that_was_begun_in_front_of_what_is_published() {
    let begin = [put("e", InPlace), Open { slot: 2, path: "a", how: Hold::Append }, Wait { ms: 31_000 }];
    let stop = Stop { lose: Lose::Nothing, at: Some(35), deeds: Vec::new(), again: None };
    let steps = [Rmdir { path: "d" }, stop, Step(Seal), Step(Tick), Step(Drain), theirs("a", Inside)];
    let end = [Wait { ms: 31_000 }, put("b", InPlace), Step(Publish)];
    holds(2232, &[&begin[..], &steps, &end].concat());
}

/// What he had written into a file was taken for ours behind a change of its attributes: the view went on with what was there before, or a version
/// of ours replaced his.
#[test]
fn a_change_of_attributes_hides_no_bytes_of_others() {
    let times = |path| Times { path };
    holds(4215, &[put("b", Append), Rest, theirs("b", Inside), times("b")]);
    holds(5405, &[theirs("c", Anew), times("c"), put("c", InPlace), theirs("c", Inside)]);
    let renamed = theirs("c", Their::Rename);
    holds(5405, &[theirs("c", Anew), times("c"), renamed, put("c", InPlace), theirs("c", Inside)]);
}

/// What was written and no event yet went with a name or a directory that he replaced; in a directory, its close was told ENOENT.
#[test]
fn what_is_being_written_keeps_its_name() {
    let clear = |files| They(Deed::Mkdir { path: "d", files, clear: true });
    let open = |slot, how| Open { slot, path: "d/a", how };
    let wrote = [clear(2), open(1, Hold::Append), Wait { ms: 1100 }, Write { slot: 1 }];
    holds(4841, &[&wrote[..], &[theirs("d/a", Their::Rename), open(0, Hold::Write)]].concat());
    holds(4958, &[put("d/b", Append), clear(0), Rest, put("d/b", Append)]);
}

/// Publishing stood still for good: a file of his had got the number of one that was to be renamed; a directory that something went into was
/// neither where it had been nor where it was to be.
#[test]
fn what_he_has_taken_away_does_not_hold_what_is_behind_it() {
    let moved = |from, to, mode| Move { from, to, mode };
    let reused = [put("b", InPlace), Rest, theirs("b", Their::Rename), theirs("d/b", Anew)];
    holds(5450, &[&reused[..], &[moved("c", "d/b", Replace), moved("b", "e", Replace)]].concat());
    let gone = [Open { slot: 2, path: "d/b", how: Hold::Write }, They(Deed::Symlink { path: "d" })];
    holds(7548, &[&gone[..], &[Mkdir { path: "e" }, moved("d", "e/b", NoReplace)]].concat());
}

/// A file was renamed to a name that had become his directory: EISDIR, each time.
#[test]
fn a_file_that_is_renamed_to_his_directory_is_put_beside_it() {
    let deeds = vec![Deed::Mkdir { path: "a", files: 2, clear: false }, Deed::Put { path: "d/a", how: Their::Rename }];
    let down = Stop { lose: Lose::Nothing, at: None, deeds, again: None };
    let onto_itself = vec![Deed::Move { from: "a", to: "a", mode: NoReplace }];
    let again = Stop { lose: Lose::Nothing, at: Some(6), deeds: onto_itself, again: Some(5) };
    let acts = [put("a", Append), down, SyncAll, put("a", How::Replace), Step(Drain), Step(Publish)];
    holds(11_675, &[&acts[..], &[again, put("a", How::Replace)]].concat());
}

/// It had been made for events that were put behind those of other users.
#[test]
fn a_directory_that_was_made_for_a_group_that_ended_is_not_left_in_tmp() {
    let acts = [put("d/a", InPlace), Mkdir { path: "a" }, theirs("b", Anew), They(Deed::Symlink { path: "d" })];
    holds(6737, &[&acts[..], &[put("b", InPlace)]].concat());
}
