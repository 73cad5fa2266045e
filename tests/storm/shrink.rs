//! A shorter script that fails in the same way: halves of the one that failed, for as long as one of them does.

use std::time::Instant;

use super::script::Script;

/// A failure that depends on the moment is not there each time.
const TRIES: usize = 2;

/// What tells one failure from another, the more telling first: a shorter script that fails in another way is another story.
const KINDS: [&str; 10] = [
    "held: ",
    "does not end",
    "ended by itself",
    "cut off; ",
    "on the mount, ",
    "the mount and a plain directory differ",
    "unmounted, the slow tree",
    "drained, the ",
    "fsck",
    "a dead mount answers",
];

fn kind(error: &str) -> Option<&'static str> {
    KINDS.into_iter().find(|kind| error.contains(kind))
}

/// Until nothing shorter fails, or there is no more time. What it failed with is told with it.
pub(crate) fn shrink(
    mut failing: (Script, String),
    until: Instant,
    run: &mut dyn FnMut(&Script) -> Result<(), String>,
) -> (Script, String) {
    'shorter: loop {
        for half in failing.0.halves() {
            for _ in 0..TRIES {
                if Instant::now() > until {
                    return failing;
                }
                if let Err(error) = run(&half)
                    && kind(&error) == kind(&failing.1)
                {
                    println!(
                        "  fails, too, with {} operations and {} disturbances",
                        half.total(),
                        half.disturbances.len()
                    );
                    failing = (half, error);
                    continue 'shorter;
                }
            }
        }
        return failing;
    }
}
