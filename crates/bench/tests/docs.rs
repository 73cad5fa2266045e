//! The documentation speaks of benchmarks that are there, and of all of them.

#![allow(clippy::unwrap_used)]

#[path = "../../../tests/pages/mod.rs"]
mod pages;

use std::collections::BTreeMap;
use std::process::Command;

use dlio_fs::cli::completions::FILES_COMMAND;
use pages::{pages, read, unknown_commands};

#[test]
fn every_benchmark_is_documented_and_every_documented_one_is_there() {
    let output = Command::new(env!("CARGO_BIN_EXE_dlio-fs-bench")).arg(FILES_COMMAND).output().unwrap();
    let files: BTreeMap<String, String> = serde_json::from_slice(&output.stdout).unwrap();
    let commands = files.into_iter().filter_map(|(path, page)| {
        let name = path.strip_prefix("share/man/man1/dlio-fs-bench-")?.strip_suffix(".1")?;
        Some((name.to_owned(), page.replace('\\', "")))
    });
    let commands: Vec<(String, String)> = commands.collect();
    assert!(commands.len() > 10, "{commands:?}");
    for page in pages() {
        assert_eq!(unknown_commands(&read(&page), "dlio-fs-bench", &commands), [""; 0], "{page}");
    }
    let reference = read("docs/benchmarking.md");
    for (name, _) in commands {
        assert!(reference.contains(&format!("\n| `{name}` | ")), "{name} is not in docs/benchmarking.md");
    }
}
