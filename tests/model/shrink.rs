//! A failing case made short: which of its operations it takes, told as a story that can be pasted into a test.
//!
//! First what one actor does is left out as a whole, then halves, quarters and single operations, as long as the case still fails.
//! Whatever a part fails with is taken for the same failure: a shorter story of another defect is as welcome.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::thread;
use std::time::{Duration, Instant};

use super::case::{Case, Rolled};
use super::ops::Actor;

/// How long it is worth looking for a shorter one.
const PATIENCE: Duration = Duration::from_secs(60);

/// A case that failed, as short as it got.
struct Failing {
    script: Vec<Rolled>,
    /// Without the dice of each operation, so that a story needs none.
    plain: bool,
    why: String,
}

/// The case must fail. `ops`: so many it rolls.
pub fn story(seed: u64, ops: usize) -> String {
    let print = take_hook();
    let ours = thread::current().id();
    // Panics of the cases that are tried are expected.
    set_hook(Box::new(move |info| {
        if thread::current().id() != ours {
            print(info);
        }
    }));
    let story = match first(seed, ops) {
        Some(failing) => tell(seed, &shortest(seed, failing)),
        None => "it did not fail a second time: something in it is not decided by its number".to_owned(),
    };
    drop(take_hook());
    story
}

fn first(seed: u64, ops: usize) -> Option<Failing> {
    let (why, script) = failure(seed, |case| case.run(ops))?;
    let plain = failing(seed, &script, true);
    plain.or(Some(Failing { script, plain: false, why }))
}

fn failing(seed: u64, script: &[Rolled], plain: bool) -> Option<Failing> {
    let (why, script) = if plain {
        let ops: Vec<_> = script.iter().map(|rolled| rolled.op.clone()).collect();
        let (why, done) = failure(seed, |case| case.run_these(&ops))?;
        (why, script[..done.len()].to_vec())
    } else {
        failure(seed, |case| case.run_again(script))?
    };
    Some(Failing { script, plain, why })
}

/// Why it fails, and what it has done by then.
fn failure(seed: u64, run: impl FnOnce(&mut Case) -> Result<(), String>) -> Option<(String, Vec<Rolled>)> {
    let mut case = Case::new(seed);
    case.verbose = std::env::var_os("DLIO_V").is_some();
    match catch_unwind(AssertUnwindSafe(|| run(&mut case))) {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some((why, case.script)),
        Err(_) => Some(("it panics".to_owned(), case.script)),
    }
}

fn shortest(seed: u64, mut least_of_all: Failing) -> Failing {
    for actor in Actor::ALL {
        let without = |rolled: &&Rolled| rolled.op.actor() != actor;
        let without: Vec<Rolled> = least_of_all.script.iter().filter(without).cloned().collect();
        if without.len() < least_of_all.script.len() {
            least_of_all = failing(seed, &without, least_of_all.plain).unwrap_or(least_of_all);
        }
    }
    let Failing { script, plain, why } = least_of_all;
    let (script, why) = least((script, why), |script| failing(seed, script, plain).map(|found| found.why));
    Failing { script, plain, why }
}

/// The least part of a script that still fails, as far as leaving out one stretch at a time finds it, and why that fails.
pub fn least<T: Clone>(
    (mut script, mut why): (Vec<T>, String),
    fails: impl Fn(&[T]) -> Option<String>,
) -> (Vec<T>, String) {
    let until = Instant::now() + PATIENCE;
    let mut size = script.len().div_ceil(2);
    while size > 0 && Instant::now() < until {
        let (mut at, before) = (0, script.len());
        while at < script.len() && Instant::now() < until {
            let end = (at + size).min(script.len());
            let without = [&script[..at], &script[end..]].concat();
            match fails(&without) {
                Some(found) => (script, why) = (without, found),
                None => at += size,
            }
        }
        // Once more, if leaving one out may have made another one needless.
        if size > 1 || script.len() == before {
            size /= 2;
        }
    }
    (script, why)
}

fn tell(seed: u64, Failing { script, plain, why }: &Failing) -> String {
    let mut story = format!("    let mut case = Case::new({seed});\n    case.run_these(&[\n");
    for Rolled { op, .. } in script {
        writeln!(story, "        {op:?},").expect("a text");
    }
    story += "    ])\n";
    if !plain {
        story += "(it takes the dice of the case, too: this alone does not fail)\n";
    }
    format!("{story}{why}")
}
