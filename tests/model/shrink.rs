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

fn shortest(seed: u64, mut least: Failing) -> Failing {
    let until = Instant::now() + PATIENCE;
    let shorter = |least: &mut Failing, script: Vec<Rolled>| {
        let found = failing(seed, &script, least.plain).filter(|_| Instant::now() < until);
        found.map(|found| *least = found).is_some()
    };
    for actor in Actor::ALL {
        let without: Vec<Rolled> = least.script.iter().filter(|rolled| rolled.op.actor() != actor).cloned().collect();
        if without.len() < least.script.len() {
            shorter(&mut least, without);
        }
    }
    let mut size = least.script.len().div_ceil(2);
    while size > 0 && Instant::now() < until {
        let (mut at, before) = (0, least.script.len());
        while at < least.script.len() {
            let end = (at + size).min(least.script.len());
            let without = [&least.script[..at], &least.script[end..]].concat();
            if !shorter(&mut least, without) {
                at += size;
            }
        }
        // Once more, if leaving one out may have made another one needless.
        if size > 1 || least.script.len() == before {
            size /= 2;
        }
    }
    least
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
