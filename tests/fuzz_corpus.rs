//! The inputs that `fuzz/` has found worth keeping, wherever tests run: each was new to some branch once, or stopped it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "fuzz/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;

fn run(target: &str, check: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut inputs: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 5, "{}: only {} inputs", dir.display(), inputs.len());
    for input in inputs {
        // A test that fails names the last one.
        println!("{}", input.display());
        check(&fs::read(input).unwrap());
    }
}

#[test]
fn log_replay() {
    run("log_replay", targets::log_replay);
}

#[test]
fn super_block() {
    run("super_block", targets::super_block);
}

#[test]
fn xattrs() {
    run("xattrs", targets::xattrs);
}

#[test]
fn config() {
    run("config", targets::config);
}

#[test]
fn control() {
    run("control", targets::control);
}

#[test]
fn recording() {
    run("recording", targets::recording);
}

#[test]
fn block() {
    run("block", targets::block);
}
