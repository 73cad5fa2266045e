//! Do the tests notice? Steps of the engine are left out, one at a time, at the seam: the call says that it succeeded and has
//! done nothing. For each there is a run in which something is lost, torn or out of order.
//!
//! Not among them: syncs of the pool's directories (on the simulated disks, as on ext4, a sync of a new file makes its name
//! durable too), and what a copy takes along besides its bytes, which the model test compares.

use crate::failing::{Case, run};
use crate::script::script;

/// Tier, call and path; what is missing then. Some are noticed by a run that ends so many steps before the end of the script: that is
/// tried first.
const LIES: &[(&str, &str, &str, usize)] = &[
    ("fast", "sync@log", "the log is not made durable", 0),
    (
        "fast",
        "sync@pool",
        "an object's bytes are not made durable before the seal, nor the removal of a fingerprint",
        0,
    ),
    ("fast", "remove_xattr@pool", "the fingerprint is not removed before the first byte", 52),
    ("fast", "write@log", "the log is not written", 0),
    ("fast", "sync_all", "staged copies are not made durable before they count", 41),
    ("slow", "sync@tmp", "a copy is not synced before it is renamed into place", 0),
    ("slow", "sync_dir", "directories of the slow tier are not synced", 0),
    ("slow", "sync@large", "what was written in place is not synced", 0),
    ("slow", "rename", "nothing is moved into place", 0),
    ("slow", "unlink", "nothing is removed", 0),
];

/// The first run that notices.
fn noticed(tier: &'static str, call: &'static str, first: usize, every: usize) -> Option<(u64, String)> {
    let mut runs = 0;
    let all: usize = script().iter().map(Vec::len).sum();
    for steps in std::iter::once(all - first).chain((1..=all).rev().step_by(every)) {
        for (eager, journaled) in [(true, false), (false, true), (true, true), (false, false)] {
            for cut in [Some(steps as u64), None] {
                let case = Case { tier, call, nth: 1, count: "*", what: "lie", eager, journaled, cut, steps };
                runs += 1;
                if let Err(why) = run(&case) {
                    return Some((runs, why.lines().last().unwrap_or_default().to_owned()));
                }
            }
        }
    }
    None
}

#[test]
fn a_step_that_is_left_out_is_noticed() {
    // The engine makes no node of this kind here: a run that fails all the same would notice nothing.
    assert_eq!(noticed("fast", "mknod", 0, 9), None, "fails without a lie");
    let mut unnoticed = Vec::new();
    for (tier, call, missing, first) in LIES {
        match noticed(tier, call, *first, 1) {
            Some((runs, why)) => println!("{tier} {call}: {missing}: run {runs}: {why:.160}"),
            None => unnoticed.push(format!("{tier} {call}: {missing}")),
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed:\n{}", unnoticed.join("\n"));
}
