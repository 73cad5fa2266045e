use std::process::ExitCode;

fn main() -> ExitCode {
    dlio_fs::observing::abort_on_panic();
    dlio_fs::cli::run()
}
