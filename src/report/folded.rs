//! The traced calls as folded stacks, one per line, for flame graphs: `tier;command;directory;...;file;operation
//! value`. Pure.
//!
//! The tools that draw them add up equal lines, so a line may occur several times.

use std::collections::HashMap;
use std::io::{self, Write};

use super::asked::Weigh;
use super::traced::{self, Names};
use crate::path::harmless;
use crate::stats::counters::{Op, Tier, nanos};
use crate::stats::recording::Recording;

/// How many stacks are added up in memory before they are written.
const STACKS: usize = 1 << 20;

/// The key of a stack: what its calls have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Stack {
    tier: Tier,
    process: u32,
    ino: u64,
    op: Op,
}

/// Writes the stacks, after a line that begins with `#` and says what is missing.
pub(super) fn write(recording: &mut Recording, weigh: Weigh, out: &mut dyn Write) -> io::Result<()> {
    let names = Names::of(recording);
    let unit = match weigh {
        Weigh::Time => "microseconds",
        Weigh::Bytes => "bytes",
    };
    let (path, dropped) = (&recording.meta.io_path, recording.traced().1);
    let (name, hidden) = (frame(&path.name), frame(&path.not_seen.join(", ")));
    writeln!(out, "# {unit} of traced calls; {dropped} calls dropped; I/O path: {name}, which does not see: {hidden}")?;
    let mut sums: HashMap<Stack, u64> = HashMap::new();
    traced::each(recording, |traced| {
        let call = &traced.call;
        let stack = Stack { tier: call.tier, process: traced.process, ino: traced.ino, op: call.op };
        let sum = sums.entry(stack).or_default();
        *sum = sum.saturating_add(match weigh {
            // In nanoseconds, so that short calls add up.
            Weigh::Time => nanos(call.took),
            Weigh::Bytes => call.bytes,
        });
        if sums.len() >= STACKS { put(&names, &mut sums, weigh, out) } else { Ok(()) }
    })?;
    put(&names, &mut sums, weigh, out)
}

/// Writes the lines, in order, and clears them.
fn put(names: &Names, sums: &mut HashMap<Stack, u64>, weigh: Weigh, out: &mut dyn Write) -> io::Result<()> {
    let line = |(stack, sum): (Stack, u64)| {
        let sum = match weigh {
            Weigh::Time => sum.saturating_add(500) / 1000,
            Weigh::Bytes => sum,
        };
        (sum > 0).then(|| format!("{} {sum}\n", stack.frames(names)))
    };
    let mut lines: Vec<String> = sums.drain().filter_map(line).collect();
    lines.sort_unstable();
    lines.iter().try_for_each(|line| out.write_all(line.as_bytes()))
}

impl Stack {
    fn frames(&self, names: &Names) -> String {
        let mut frames = format!("{};{}", self.tier.name(), frame(names.process(self.process).1));
        let path = names.path(self.ino);
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.map(frame).chain([self.op.name().to_owned()]).for_each(|part| {
            frames.push(';');
            frames.push_str(&part);
        });
        frames
    }
}

/// As one frame: `;` would end it, and a line break the whole stack.
fn frame(text: &str) -> String {
    harmless(text).replace(';', "%3B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::traced::sample;
    use std::time::Duration;

    fn folded(recording: &mut Recording, weigh: Weigh) -> Vec<(Vec<String>, u64)> {
        let mut out = Vec::new();
        write(recording, weigh, &mut out).expect("into memory");
        let text = String::from_utf8(out).expect("UTF-8");
        let lines = text.lines().skip(1).map(|line| {
            let (stack, value) = line.rsplit_once(' ').expect("a value");
            (stack.split(';').map(str::to_owned).collect(), value.parse().expect("a number"))
        });
        assert!(
            text.starts_with("# ") && text.contains("7 calls dropped; I/O path: exact, which does not see: seeks"),
            "{text}"
        );
        lines.collect()
    }

    /// The stacks add up to all calls, under the right names.
    #[test]
    fn the_values_add_up_to_the_calls() {
        let mut recording = sample::recording();
        let (mut bytes, mut nanos) = (0, 0);
        recording.calls(Duration::ZERO, Duration::MAX, |traced| {
            bytes += traced.call.bytes;
            nanos += traced.call.took.as_nanos() as u64;
        });
        let lines = folded(&mut sample::recording(), Weigh::Bytes);
        assert_eq!(lines.iter().map(|line| line.1).sum::<u64>(), bytes);
        let lines = folded(&mut sample::recording(), Weigh::Time);
        let told = lines.iter().map(|line| line.1 * 1000).sum::<u64>();
        assert!(told.abs_diff(nanos) <= 500 * lines.len() as u64, "{told} of {nanos} ns in {} lines", lines.len());
        let stack = ["slow", "python", "data", "a%3Bb", "f0.bin", "read"].map(str::to_owned);
        assert!(lines.iter().any(|line| line.0 == stack), "{lines:?}");
        assert!(lines.iter().all(|line| line.0[1] == "python" || line.0[1] == "(unknown)"), "{lines:?}");
    }

    #[test]
    fn a_frame_has_nothing_that_ends_it() {
        assert_eq!(frame("a;b\nc\u{7f}\u{85} d"), "a%3Bb\\nc\\u{7f}\\u{85} d");
    }
}
