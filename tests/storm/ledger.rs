//! What is done to the mount and its tiers, from when to when: by it a process knows whether an answer is allowed that a plain directory
//! does not give. The storm writes it, every process reads it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds that only rise, the same for all processes of the machine.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every machine has this clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
}

impl Ledger {
    pub(crate) fn new(path: &Path) -> Self {
        Ledger { file: File::options().create(true).append(true).open(path).expect("a file in our own directory") }
    }

    /// Before it begins.
    pub(crate) fn begins(&mut self, what: &str) {
        self.note("begins", what);
    }

    /// After it has ended.
    pub(crate) fn ended(&mut self, what: &str) {
        self.note("ended", what);
    }

    fn note(&mut self, which: &str, what: &str) {
        writeln!(self.file, "{} {which} {what}", now()).expect("a file in our own directory");
    }
}

#[derive(Debug)]
pub(crate) struct Reader(pub(crate) PathBuf);

impl Reader {
    /// What was going on at some moment between the two. An answer may be late, so it is asked from before the call on.
    pub(crate) fn between(&self, from: u64, to: u64) -> Vec<String> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let mut open: Vec<(u64, &str)> = Vec::new();
        let mut found = Vec::new();
        for line in text.lines() {
            let Some((at, (which, what))) =
                line.split_once(' ').and_then(|(at, rest)| Some((at.parse().ok()?, rest.split_once(' ')?)))
            else {
                continue;
            };
            match which {
                "begins" => open.push((at, what)),
                _ => {
                    let Some(index) = open.iter().position(|(_, other)| *other == what) else { continue };
                    let (began, what) = open.swap_remove(index);
                    found.extend((began <= to && at >= from).then(|| what.to_owned()));
                }
            }
        }
        found.extend(open.into_iter().filter(|(began, _)| *began <= to).map(|(_, what)| what.to_owned()));
        found
    }
}
