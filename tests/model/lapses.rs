//! Do the tests notice? Steps of the engine's own order are left out or done at the wrong time, one at a time ([`Lapse`]), and the dice
//! or a story must fail. What is left out at the seam below the engine is tried by `tests/faults/lies.rs`.
//!
//! `cargo test --test model lapses`

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::thread;
use std::time::Instant;

use dlio_fs::tiers::disk::faults::{Lapse, leaving_out};

use crate::{aside, closed, fill, run, steps, stories, unfinished};

/// Who is to notice.
enum By {
    /// The model test, within this many cases: several times as many as it takes.
    Dice(u64),
    Story(fn()),
    /// Something else keeps what this step is there for.
    Nobody,
}

use By::{Dice, Nobody, Story};

const LAPSES: &[(Lapse, By)] = &[
    (Lapse::Append, Dice(500)),
    (Lapse::LogFirst, Story(steps::what_could_not_be_logged_is_not_shown)),
    (Lapse::Bind, Dice(500)),
    (Lapse::Rebind, Story(steps::a_file_that_is_written_while_others_are_published_outlives_a_kill)),
    (Lapse::Invalidate, Story(stories::what_a_kill_cut_off_over_a_version_not_copied_yet_is_not_published)),
    (Lapse::WholeVersions, Story(unfinished::half_of_two_ranks_waits_for_the_other_and_so_does_the_marker)),
    (Lapse::InvalidateDurable, Story(stories::a_synced_version_that_a_power_cut_mixed_is_not_published)),
    (Lapse::SealLast, Story(steps::a_power_cut_while_a_version_is_sealed_leaves_one_of_two)),
    (Lapse::Discard, Dice(1000)),
    (Lapse::WrittenOver, Story(steps::a_version_that_is_written_over_while_it_is_copied_is_not_published)),
    (Lapse::Turn, Dice(500)),
    (Lapse::RemoveLast, Story(steps::a_file_that_a_batch_moves_is_there_all_the_while)),
    (Lapse::Intents, Story(steps::a_kill_while_a_group_is_published_is_gone_on_from)),
    (Lapse::IntentsDurable, Story(steps::a_power_cut_while_a_group_is_published_takes_nothing_and_changes_no_order)),
    (Lapse::AllIntents, Story(steps::a_group_whose_intents_are_not_all_there_has_not_begun)),
    (Lapse::EachStepDurable, Story(steps::a_power_cut_while_a_group_is_published_takes_nothing_and_changes_no_order)),
    (Lapse::FillDurable, Story(fill::a_stop_while_a_directory_is_filled_or_placed_loses_nothing)),
    (Lapse::StepsDurable, Story(steps::a_power_cut_while_a_group_is_published_takes_nothing_and_changes_no_order)),
    (Lapse::FollowFirst, Story(steps::a_file_is_not_clean_before_the_view_knows_where_it_is)),
    (Lapse::PlaceOnce, Story(steps::a_kill_while_a_group_is_published_is_gone_on_from)),
    (Lapse::FindPlaced, Story(steps::what_somebody_takes_out_of_tmp_goes_again)),
    (Lapse::MoveOnce, Story(steps::a_step_is_not_done_again_to_what_somebody_else_has_made)),
    (Lapse::RemoveOnce, Story(steps::a_step_is_not_done_again_to_what_somebody_else_has_made)),
    (Lapse::AppliedDurable, Story(steps::a_segment_does_not_go_before_the_log_says_that_it_is_done_with)),
    (Lapse::DeleteDurable, Nobody),
    (Lapse::CompareFingerprint, Story(steps::a_file_that_somebody_else_has_changed_is_not_evicted)),
    (Lapse::Expect, Story(steps::what_somebody_else_changed_while_no_daemon_ran_is_kept)),
    (Lapse::AsideDurable, Story(aside::an_empty_directory_is_set_aside_for_good_once_that_is_acknowledged)),
    (Lapse::CloseAgain, Story(closed::what_root_changes_in_closed_directories_arrives)),
    (Lapse::NoteDurable, Story(closed::what_root_changes_in_closed_directories_arrives)),
];

/// How it was noticed.
fn noticed(lapse: Lapse, by: &By) -> Option<String> {
    let dice = |cases| {
        let failed = |seed| leaving_out(lapse, || run(seed, false)).err().map(|why| (seed, why));
        let (seed, why) = (0..cases).find_map(failed)?;
        let why = why.rsplit_once(&format!("\ncase {seed}: ")).map_or("", |(_, why)| why).to_owned();
        Some(format!("case {seed}: {why}"))
    };
    match by {
        Dice(cases) => dice(*cases),
        // Each is a test of its own, which passes without the lapse.
        Story(story) => leaving_out(lapse, || failure(*story)),
        Nobody => dice(100),
    }
}

thread_local! {
    /// What the panic of a story said that is expected to fail on this thread.
    static EXPECTED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What the story fails with. It is not printed: whoever looks for a failure in a long output would find these.
fn failure(story: fn()) -> Option<String> {
    EXPECTED.set(Some(String::new()));
    let failed = catch_unwind(AssertUnwindSafe(story)).is_err();
    EXPECTED.take().filter(|_| failed)
}

/// Panics are printed but for the expected ones, and those of threads that a story starts: they have no name.
fn keep_expected_panics() {
    let print = take_hook();
    set_hook(Box::new(move |info| {
        if EXPECTED.with_borrow(Option::is_none) {
            if thread::current().name().is_some() {
                print(info);
            }
            return;
        }
        let (at, what) = (info.location().map(ToString::to_string), info.payload_as_str());
        EXPECTED.set(Some(format!("{}: {}", at.unwrap_or_default(), what.unwrap_or_default())));
    }));
}

#[test]
fn a_step_of_the_order_that_is_left_out_is_noticed() {
    keep_expected_panics();
    let mut wrong = Vec::new();
    for (lapse, by) in LAPSES {
        let began = Instant::now();
        let how = noticed(*lapse, by);
        let took = began.elapsed().as_millis();
        let line = how.as_deref().unwrap_or("nobody noticed").replace('\n', " ");
        println!("{lapse:?}: {took} ms: {line:.200}");
        if how.is_some() == matches!(by, Nobody) {
            wrong.push(format!("{lapse:?}: {}", how.unwrap_or_default()));
        }
    }
    assert!(wrong.is_empty(), "not noticed, or noticed where nobody was to:\n{}", wrong.join("\n"));
}
