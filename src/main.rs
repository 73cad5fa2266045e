use std::panic::{set_hook, take_hook};
use std::process::{ExitCode, abort};

fn main() -> ExitCode {
    abort_on_panic();
    dlio_fs::cli::run()
}

/// Also in builds that could unwind, which those for tests are: the tests then share one build of everything with the
/// program.
fn abort_on_panic() {
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        print(panic);
        abort();
    }));
}
