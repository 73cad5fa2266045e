//! `dlio-fs doctor --visibility`: what was done on a mount, and what the mount saw of it, on each I/O path.
//!
//! A file system sees only calls that the page cache cannot answer, split as the kernel chooses. That depends on the
//! kernel and on the path, so it is tried. Every step has its own file, so that calls are told apart by path.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::super::outcome::{Exit, Failure, Outcome, say, say_json};
use super::super::report;
use super::super::sandbox::{self, Mount, Sandbox};
use crate::config::IoPath;
use crate::error::Context;
use crate::mount::this_program;
use crate::path::Show as _;
use crate::stats::counters::Op;

/// Bytes of a file that exists before the step.
const FILE: usize = 4 << 20;
const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Calls of one kind, and the bytes they carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Calls {
    calls: u64,
    bytes: u64,
}

/// An action of a program.
struct ProbeStep {
    what: &'static str,
    /// What is counted.
    op: Op,
    /// Whether `exact` sees exactly these calls.
    exactly: bool,
    run: fn(&Path) -> io::Result<Calls>,
}

/// The calls made and the calls seen, for one step on one path.
#[derive(Debug, Serialize)]
struct StepResult {
    what: &'static str,
    op: Op,
    done: Calls,
    seen: Calls,
    exactly: bool,
}

/// All steps on one path.
#[derive(Debug, Serialize)]
struct Sight {
    io: &'static str,
    steps: Vec<StepResult>,
    not_seen: Vec<String>,
}

const STEPS: [ProbeStep; 11] = [
    ProbeStep { what: "3 opens", op: Op::Open, exactly: true, run: opens },
    ProbeStep { what: "10 reads of 4 KiB", op: Op::Read, exactly: true, run: |path| reads(path, 10, PAGE, 0) },
    ProbeStep {
        what: "4 reads of 1 MiB, aligned buffer",
        op: Op::Read,
        exactly: true,
        run: |path| reads(path, 4, MIB, 0),
    },
    ProbeStep {
        what: "4 reads of 1 MiB, unaligned buffer",
        op: Op::Read,
        exactly: false,
        run: |path| reads(path, 4, MIB, 16),
    },
    ProbeStep { what: "a file read twice", op: Op::Read, exactly: true, run: twice },
    ProbeStep { what: "2 reads at the end of a file", op: Op::Read, exactly: true, run: at_the_end },
    ProbeStep { what: "50 writes of 86 bytes", op: Op::Write, exactly: true, run: |path| writes(path, 50, 86) },
    ProbeStep { what: "2 writes of 1 MiB", op: Op::Write, exactly: true, run: |path| writes(path, 2, MIB) },
    ProbeStep { what: "2 fsyncs", op: Op::Fsync, exactly: true, run: fsyncs },
    ProbeStep { what: "5 stats of one file", op: Op::Getattr, exactly: false, run: stats },
    ProbeStep { what: "3 lookups of missing names", op: Op::Lookup, exactly: false, run: absent },
];

fn opens(path: &Path) -> io::Result<Calls> {
    (0..3).try_for_each(|_| File::open(path).map(drop))?;
    Ok(Calls { calls: 3, bytes: 0 })
}

/// Sequential reads into a buffer that starts `off` bytes into a page.
fn reads(path: &Path, calls: u64, len: usize, off: usize) -> io::Result<Calls> {
    let file = File::open(path)?;
    let mut room = vec![0; len + 2 * PAGE];
    let from = room.as_ptr().align_offset(PAGE) + off;
    let mut bytes = 0;
    for call in 0..calls {
        bytes += file.read_at(&mut room[from..from + len], call * len as u64)? as u64;
    }
    Ok(Calls { calls, bytes })
}

fn twice(path: &Path) -> io::Result<Calls> {
    let first = reads(path, 1, MIB, 0)?;
    let second = reads(path, 1, MIB, 0)?;
    Ok(Calls { calls: first.calls + second.calls, bytes: first.bytes + second.bytes })
}

fn at_the_end(path: &Path) -> io::Result<Calls> {
    let file = File::open(path)?;
    (0..2).try_for_each(|_| file.read_at(&mut [0; PAGE], FILE as u64).map(drop))?;
    Ok(Calls { calls: 2, bytes: 0 })
}

fn writes(path: &Path, calls: u64, len: usize) -> io::Result<Calls> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut room = vec![7; len + PAGE];
    let from = room.as_mut_ptr().align_offset(PAGE);
    (0..calls).try_for_each(|call| file.write_all_at(&room[from..from + len], call * len as u64))?;
    Ok(Calls { calls, bytes: calls * len as u64 })
}

fn fsyncs(path: &Path) -> io::Result<Calls> {
    let file = OpenOptions::new().write(true).open(path)?;
    for call in 0..2 {
        file.write_all_at(b"x", call)?;
        file.sync_all()?;
    }
    Ok(Calls { calls: 2, bytes: 0 })
}

fn stats(path: &Path) -> io::Result<Calls> {
    (0..5).try_for_each(|_| path.metadata().map(drop))?;
    Ok(Calls { calls: 5, bytes: 0 })
}

fn absent(path: &Path) -> io::Result<Calls> {
    let absent = path.with_extension("absent");
    (0..3).for_each(|_| drop(absent.metadata()));
    Ok(Calls { calls: 3, bytes: 0 })
}

pub(super) fn run(as_json: bool) -> Outcome {
    let Some(sights) = sandbox::run(this_program()?, |sandbox| {
        let root = sandbox.dir(&std::env::temp_dir(), "dlio-fs-doctor-", "set TMPDIR to one that you may write to")?;
        let mount = Mount::inside(&root);
        fs::create_dir(&mount.slow).at("mkdir", mount.slow.shown())?;
        // One mount per path, one after the other over the same tiers.
        IoPath::ALL.into_iter().map(|io| observe(sandbox, &mount, io)).collect::<Result<Vec<_>, _>>()
    })?
    else {
        return Ok(Exit::Interrupted);
    };
    match as_json {
        true => say_json(&serde_json::json!({ "io_paths": sights }))?,
        false => print(&sights)?,
    }
    let wrong = sights[0].steps.iter().filter(|step| step.exactly && step.done != step.seen).count();
    Ok(if wrong == 0 { Exit::Done } else { Exit::Failure })
}

/// All steps on a mount with this path.
fn observe(sandbox: &Sandbox, mount: &Mount, io: IoPath) -> Result<Sight, Failure> {
    let name = |at: usize| format!("{}-{at}", io.name());
    for at in 0..STEPS.len() {
        let path = mount.slow.join(name(at));
        fs::write(&path, vec![b'd'; FILE]).at("write", path.shown())?;
    }
    sandbox.mount(mount, &[format!("io={}", io.name())])?;
    let mut done = Vec::with_capacity(STEPS.len());
    for (at, step) in STEPS.iter().enumerate() {
        let path = mount.mountpoint.join(name(at));
        // Look it up now, so that the lookup is not counted with the step.
        path.metadata().at("look at", path.shown())?;
        done.push((step.run)(&path).at("do on the mount", step.what)?);
    }
    let mut recording = report::read(std::slice::from_ref(&mount.mountpoint), None)?;
    let inos: Vec<_> = (0..STEPS.len())
        .map(|at| recording.files.iter().find(|file| file.path == format!("/{}", name(at))).map(|file| file.ino))
        .collect();
    let mut seen = [Calls::default(); STEPS.len()];
    recording.calls(Duration::ZERO, Duration::MAX, |traced| {
        for (at, step) in STEPS.iter().enumerate() {
            // A missing name has no file: its lookup fails in the root.
            let of_step = if step.op == Op::Lookup {
                traced.call.errno.is_some()
            } else {
                inos[at] == Some(traced.ino) && traced.call.errno.is_none()
            };
            if of_step && traced.call.op == step.op {
                seen[at].calls += 1;
                seen[at].bytes += traced.call.bytes;
            }
        }
    });
    mount.unmount()?;
    let steps = STEPS.iter().zip(done).zip(seen);
    let steps = steps.map(|((step, done), seen)| {
        let ProbeStep { what, op, exactly, .. } = *step;
        StepResult { what, op, done, seen, exactly }
    });
    Ok(Sight { io: io.name(), steps: steps.collect(), not_seen: recording.meta.io_path.not_seen })
}

fn print(sights: &[Sight]) -> Result<(), Failure> {
    say("What was done on a mount, and what each I/O path saw of it: calls, and bytes\n")?;
    let names: String = sights.iter().map(|sight| format!("{:>14}", sight.io)).collect();
    say(format_args!("{:<35}{names}", ""))?;
    for (at, step) in STEPS.iter().enumerate() {
        let cell = |sight: &Sight| {
            let StepResult { done, seen, .. } = &sight.steps[at];
            match (done == seen, seen) {
                (true, _) => format!("{:>14}", "all"),
                (false, Calls { calls, bytes: 0 }) => format!("{calls:>14}"),
                (false, Calls { calls, bytes }) => format!("{:>14}", format!("{calls}: {}", size(*bytes))),
            }
        };
        say(format_args!("{:<35}{}", step.what, sights.iter().map(cell).collect::<String>()))?;
    }
    say("\nNot seen, and why:")?;
    let mut told: Vec<&String> = sights.iter().flat_map(|sight| &sight.not_seen).collect();
    told.dedup();
    let mut shown = Vec::new();
    for what in told {
        if !shown.contains(&what) {
            say(format_args!("  {what}"))?;
            shown.push(what);
        }
    }
    Ok(())
}

fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_does_what_it_says() {
        let dir = tempfile::tempdir().expect("a directory");
        for step in &STEPS {
            let path = dir.path().join("f");
            fs::write(&path, vec![1; FILE]).expect("written");
            let done = (step.run)(&path).expect("done");
            let told: u64 = step.what.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(2);
            assert_eq!(done.calls, told, "{}", step.what);
        }
    }
}
