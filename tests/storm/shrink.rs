//! A shorter script that fails as well: halves of the one that failed, for as long as one of them does.

use std::time::Instant;

use super::script::Script;

/// A failure that depends on the moment is not there each time.
const TRIES: usize = 2;

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
                if let Err(error) = run(&half) {
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
