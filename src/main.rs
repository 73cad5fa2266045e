use std::process::ExitCode;

fn main() -> ExitCode {
    dlio_fs::cli::run()
}
