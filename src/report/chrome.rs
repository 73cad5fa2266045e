//! The traced calls as Chrome's trace JSON, which Perfetto reads. Pure.
//!
//! A call is a pair of asynchronous events in a row of its thread (`chrome/lanes.rs`); the mount's own windows, epochs,
//! checkpoints, marks and throughput are a process beside the application's. Times are microseconds since
//! `baseTimeNanoseconds`. A long document is cut into parts, each of which is a trace by itself.

mod lanes;

use std::io;

use lanes::{LaneOwner, Lanes};

use super::outlet::Outlet;
use super::traced::{self, Names, OF_THE_MOUNT, OF_UNKNOWN};
use crate::json;
use crate::stats::recording::{Meta, Recording};
use crate::stats::traced::Traced;

/// The category of all our events, so that their ids do not clash with another tool's.
const CATEGORY: &str = "dlio-fs";

/// A span as nanoseconds since the mount.
type Span = (u64, u64);

/// Writes the trace, in parts of about `split` bytes.
pub(super) fn write(recording: &mut Recording, split: u64, out: &mut dyn Outlet) -> io::Result<()> {
    let names = Names::of(recording);
    let base = recording.meta.since;
    let mut part = ChromePart { out, names: &names, base, written: 0, calls: 0, events: 0, lanes: Lanes::default() };
    part.start()?;
    part.of_the_mount(&recording.meta)?;
    for (at, dropped) in recording.gaps() {
        part.instant(&format!("{dropped} calls dropped"), traced::nanos(at))?;
    }
    let told = json::plain(serde_json::to_string(&traced::completeness(recording))?);
    traced::each(recording, |traced| {
        if part.calls > 0 && part.written > split {
            part.end(&told)?;
            part.out.next()?;
            part.start()?;
        }
        part.call(traced)
    })?;
    // By now the completeness may also list unreadable blocks.
    let told = json::plain(serde_json::to_string(&traced::completeness(recording))?);
    part.end(&told)
}

/// A part of the document.
struct ChromePart<'a> {
    out: &'a mut dyn Outlet,
    names: &'a Names,
    /// Nanoseconds since 1970 at time 0.
    base: u64,
    written: u64,
    /// The counts in this part.
    calls: u64,
    events: u64,
    lanes: Lanes,
}

impl ChromePart<'_> {
    fn start(&mut self) -> io::Result<()> {
        (self.written, self.calls, self.events) = (0, 0, 0);
        self.put(&format!(r#"{{"displayTimeUnit":"ns","baseTimeNanoseconds":{},"traceEvents":["#, self.base))?;
        self.processes()
    }

    /// Ends the events and the part. `told` describes its completeness.
    fn end(&mut self, told: &str) -> io::Result<()> {
        for row in self.lanes.end() {
            let (label, pid, thread) = labelled(row.owner);
            self.event(&format!(
                r#"{{"ph":"e","cat":"{CATEGORY}","id":{},"name":"{label}","pid":{pid},"tid":{thread},"ts":{}}}"#,
                row.id,
                time(row.ended)
            ))?;
        }
        self.put(&format!("\n],\n\"dlio-fs\":{told}}}\n"))
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        self.written += text.len() as u64;
        self.out.write_all(text.as_bytes())
    }

    fn event(&mut self, event: &str) -> io::Result<()> {
        self.put(if self.events == 0 { "\n" } else { ",\n" })?;
        self.events += 1;
        self.put(event)
    }

    fn processes(&mut self) -> io::Result<()> {
        let names = self.names;
        let mut name = |pid: u32, name: &str| {
            let name = json::string(name);
            self.event(&format!(r#"{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":{name}}}}}"#))
        };
        name(OF_THE_MOUNT, "dlio-fs")?;
        name(OF_UNKNOWN, "unknown processes")?;
        for (pid, command) in names.commands() {
            name(pid, &format!("{command} {pid}"))?;
        }
        Ok(())
    }

    fn call(&mut self, traced: &Traced) -> io::Result<()> {
        let call = &traced.call;
        let began = traced::nanos(call.began);
        let span = (began, began.saturating_add(traced::nanos(call.took)));
        let owner = LaneOwner::Thread { pid: self.names.process(traced.process).0, thread: traced.thread };
        let path = json::string(self.names.path(traced.ino));
        let mut args = format!(r#""path":{path},"tier":"{}","handle":{}"#, call.tier.name(), traced.handle);
        if call.bytes > 0 || call.offset > 0 {
            args.push_str(&format!(r#","offset":{},"bytes":{}"#, call.offset, call.bytes));
        }
        if let Some(errno) = call.errno {
            args.push_str(&format!(r#","errno":"{errno:?}""#));
        }
        self.calls += 1;
        self.span(owner, call.op.name(), span, &args)
    }

    /// Adds something that lasts, in a row of its owner. A row is itself one span around everything in it, which names
    /// it.
    fn span(&mut self, owner: LaneOwner, name: &str, (began, ended): Span, args: &str) -> io::Result<()> {
        let (id, is_new) = self.lanes.place(owner, began, ended);
        let (label, pid, thread) = labelled(owner);
        let (name, began, ended) = (json::string(name), time(began), time(ended.max(began)));
        let of = |phase: &str, name: &str, at: &str| {
            format!(
                r#"{{"ph":"{phase}","cat":"{CATEGORY}","id":{id},"name":{name},"pid":{pid},"tid":{thread},"ts":{at}"#
            )
        };
        if is_new {
            self.event(&(of("b", &format!("\"{label}\""), &began) + "}"))?;
        }
        self.event(&format!("{},\"args\":{{{args}}}}}", of("b", &name, &began)))?;
        self.event(&(of("e", &name, &ended) + "}"))
    }

    fn instant(&mut self, text: &str, at: u64) -> io::Result<()> {
        let (text, at) = (json::string(text), time(at));
        self.event(&format!(
            r#"{{"ph":"i","s":"g","cat":"{CATEGORY}","name":{text},"pid":{OF_THE_MOUNT},"tid":0,"ts":{at}}}"#
        ))
    }

    /// Everything that is not a call.
    fn of_the_mount(&mut self, meta: &Meta) -> io::Result<()> {
        for mark in &meta.marks {
            self.instant(&mark.text, nanos(mark.at))?;
        }
        for window in &meta.windows {
            let args = format!(
                r#""files":{},"bytes_read":{},"bytes_written":{}"#,
                window.files, window.bytes_read, window.bytes_written
            );
            let span = (nanos(window.began), nanos(window.ended));
            self.span(LaneOwner::Named("windows"), &window.name, span, &args)?;
        }
        for epoch in &meta.epochs {
            let args = format!(
                r#""files":{},"reads":{},"bytes_fast":{},"bytes_slow":{},"open":{}"#,
                epoch.files, epoch.reads, epoch.bytes_fast, epoch.bytes_slow, epoch.open
            );
            let span = (nanos(epoch.began), nanos(epoch.ended));
            self.span(LaneOwner::Named("epochs"), &format!("epoch {}", epoch.number), span, &args)?;
        }
        for one in &meta.checkpoints {
            let path = json::string(&one.path);
            let args = format!(r#""files":{},"bytes":{},"path":{path}"#, one.files, one.bytes);
            let (began, absorbed) = (nanos(one.began), nanos(one.absorbed));
            let absorb = format!("absorb checkpoint {}", one.number);
            self.span(LaneOwner::Named("checkpoints: absorb"), &absorb, (began, absorbed), &args)?;
            let drained = nanos(one.drained.unwrap_or(meta.until));
            let args = format!(r#""bytes":{},"drained":{}"#, one.bytes, one.drained.is_some());
            let drain = format!("drain checkpoint {}", one.number);
            self.span(LaneOwner::Named("checkpoints: drain"), &drain, (absorbed, drained), &args)?;
        }
        self.throughput(meta)
    }

    fn throughput(&mut self, meta: &Meta) -> io::Result<()> {
        let line = &meta.timeline;
        let rows = [
            ("read from the fast tier", "MB/s", 1e6, &line.read_fast),
            ("read from the slow tier", "MB/s", 1e6, &line.read_slow),
            ("written to the fast tier", "MB/s", 1e6, &line.written_fast),
            ("written to the slow tier", "MB/s", 1e6, &line.written_slow),
            ("drained", "MB/s", 1e6, &line.drained),
            ("calls", "1/s", 1.0, &line.calls),
        ];
        for (name, unit, scale, values) in rows {
            let mut before = None;
            for (n, value) in values.iter().enumerate() {
                let rate = *value as f64 / line.span / scale;
                // A viewer needs only the points where the value changes.
                if rate.is_finite() && before.replace(*value) != Some(*value) {
                    let at = time(nanos(n as f64 * line.span));
                    self.event(&format!(
                        r#"{{"ph":"C","cat":"{CATEGORY}","name":"{name}","pid":{OF_THE_MOUNT},"ts":{at},"args":{{"{unit}":{rate}}}}}"#
                    ))?;
                }
            }
        }
        Ok(())
    }
}

/// The label of a row, and the process and thread it belongs to.
fn labelled(owner: LaneOwner) -> (String, u32, u32) {
    match owner {
        LaneOwner::Thread { pid, thread } => (format!("thread {thread}"), pid, thread),
        LaneOwner::Named(name) => (name.to_owned(), OF_THE_MOUNT, 0),
    }
}

/// Nanoseconds as microseconds with three decimals.
fn time(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

/// Saturates at both ends.
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::Memory;
    use crate::report::traced::sample;
    use serde_json::Value;
    use std::collections::HashMap;

    fn written(split: u64) -> Vec<Value> {
        let mut out = Memory::default();
        write(&mut sample::recording(), split, &mut out).expect("into memory");
        out.0.iter().map(|part| serde_json::from_slice(&part.1).expect("JSON")).collect()
    }

    fn events(part: &Value) -> &Vec<Value> {
        part["traceEvents"].as_array().expect("events")
    }

    /// A time with nanosecond precision, in nanoseconds.
    fn at(event: &Value) -> i64 {
        (event["ts"].as_f64().expect("a time") * 1000.0).round() as i64
    }

    /// Calls, their bytes and their nanoseconds, from a part in which each span is closed before the next one of its
    /// row.
    fn sums(part: &Value) -> (usize, u64, i64) {
        let (mut calls, mut bytes, mut nanos) = (0, 0, 0);
        let mut open: HashMap<u64, Vec<&Value>> = HashMap::new();
        for event in events(part) {
            let begins = event["ph"] == "b";
            if !begins && event["ph"] != "e" {
                continue;
            }
            let row = open.entry(event["id"].as_u64().expect("an id")).or_default();
            if begins {
                assert!(row.last().is_none_or(|outer| at(outer) <= at(event)), "{event} is not in its row's span");
                row.push(event);
                assert!(row.len() <= 2, "{event} overlaps {row:?}");
                continue;
            }
            let begun = row.pop().expect("it was begun");
            assert_eq!((&begun["name"], &begun["pid"], &begun["tid"]), (&event["name"], &event["pid"], &event["tid"]));
            assert!(at(begun) <= at(event));
            if let Some(path) = begun["args"].get("tier").and(begun["args"]["path"].as_str()) {
                assert!(path.starts_with("/data/a;b/f"), "{path}");
                calls += 1;
                bytes += begun["args"]["bytes"].as_u64().unwrap_or(0);
                nanos += at(event) - at(begun);
            }
        }
        assert!(open.values().all(Vec::is_empty), "a row is open at the end");
        (calls, bytes, nanos)
    }

    fn wanted() -> (usize, u64, i64) {
        let calls = sample::calls();
        let took = |one: &Traced| one.call.took.as_nanos() as i64;
        (calls.len(), calls.iter().map(|one| one.call.bytes).sum(), calls.iter().map(took).sum())
    }

    #[test]
    fn each_call_is_a_pair_in_a_row_and_all_add_up() {
        let parts = written(u64::MAX);
        assert_eq!((parts.len(), sums(&parts[0])), (1, wanted()));
        assert_eq!(parts[0]["baseTimeNanoseconds"], sample::SINCE);
        let told = &parts[0]["dlio-fs"];
        assert_eq!((&told["calls_dropped"], &told["io_path"]["name"]), (&7.into(), &"exact".into()));
        assert_eq!(told["io_path"]["not_seen"][0], "seeks");
    }

    #[test]
    fn marks_windows_checkpoints_and_throughput_are_there() {
        let parts = written(u64::MAX);
        let named = |name: &str, ph: &str| {
            events(&parts[0]).iter().find(|e| e["name"] == name && e["ph"] == ph).unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!(at(named("step\t1", "i")), 150_000_000);
        assert_eq!((at(named("w\"\n\u{1}", "b")), at(named("w\"\n\u{1}", "e"))), (100_000_000, 200_000_000));
        assert_eq!(at(named("drain checkpoint 1", "e")), 300_000_000);
        assert_eq!(at(named("drain checkpoint 2", "e")), 400_000_000, "to the end of the recording");
        assert_eq!(named("drain checkpoint 2", "b")["args"]["drained"], false);
        assert_eq!(at(named("epoch 1", "e")), 300_000_000);
        assert_eq!(at(named("7 calls dropped", "i")), 100_000_100);
        let fast = |e: &&Value| e["name"] == "read from the fast tier";
        let counters: Vec<_> =
            events(&parts[0]).iter().filter(fast).map(|e| (at(e), e["args"]["MB/s"].clone())).collect();
        assert_eq!(counters, [(0, 0.into()), (200_000_000, 5.into()), (300_000_000, 0.into())]);
        let name = |pid: u32| events(&parts[0]).iter().find(|e| e["ph"] == "M" && e["pid"] == pid).expect("a name");
        assert_eq!(name(4711)["args"]["name"], "python 4711");
    }

    #[test]
    fn each_part_is_a_trace_and_all_parts_are_all_calls() {
        let parts = written(10_000);
        assert!(parts.len() > 5, "{} parts", parts.len());
        let all = parts.iter().map(sums).fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
        assert_eq!(all, wanted());
        for part in &parts {
            assert_eq!(
                (&part["dlio-fs"]["calls_dropped"], part["baseTimeNanoseconds"].as_u64()),
                (&7.into(), Some(sample::SINCE))
            );
            assert!(events(part).iter().any(|e| e["ph"] == "M" && e["pid"] == 4712));
        }
    }

    #[test]
    fn a_recording_that_was_cut_off_is_a_trace_of_what_it_has() {
        let whole = sample::bytes();
        for len in (16..whole.len()).step_by(97) {
            let mut out = Memory::default();
            write(&mut sample::read(whole[..len].to_vec()), u64::MAX, &mut out).expect("into memory");
            let part: Value = serde_json::from_slice(&out.0[0].1).expect("JSON");
            assert_eq!(part["dlio-fs"]["is_whole"], false, "{len}");
        }
    }
}
