//! A PyTorch profiler's trace, into which ours is merged: scanned once for the place, then copied. Pure.
//!
//! It may come from anywhere, be compressed, and be larger than memory. It is read as a stream; input that no real
//! trace has, such as an endless name, is refused before it is stored.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufReader, Read};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The longest text in a trace.
const TEXT_MAX: u64 = 16 << 20;
/// The deepest nesting in a trace.
const DEPTH_MAX: usize = 512;

/// What must be known of a trace before it is copied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MergeInfo {
    /// Nanoseconds since 1970 at its time 0.
    pub(super) base: u64,
    /// The offset of the byte that ends its events.
    pub(super) end: u64,
    /// It has no events.
    pub(super) is_empty: bool,
    /// Processes with events in it.
    pub(super) pids: HashSet<u64>,
}

/// Scans a trace to its end. Errors: why ours cannot be merged into it.
pub(super) fn inspect(trace: impl Read) -> Result<MergeInfo, String> {
    let read = Cell::new(0);
    let mut deserializer = serde_json::Deserializer::from_reader(Tame::new(trace, &read));
    let looked = deserializer.deserialize_any(TraceVisitor { read: &read }).and_then(|looked| {
        deserializer.end()?;
        Ok(looked)
    });
    let (base, events) = looked.map_err(|e| format!("it is no trace of the PyTorch profiler: {e}"))?;
    let (end, is_empty, pids) = events.ok_or("it is no trace of the PyTorch profiler: it has no traceEvents")?;
    let base = base.ok_or(
        "it has no baseTimeNanoseconds, without which nobody knows when its events were: the profiler of PyTorch 2.4 and \
         later tells it",
    )?;
    Ok(MergeInfo { base, end, is_empty, pids })
}

/// Passes on what it reads, counts it, and refuses what would be stored whole in memory.
struct Tame<'a, R> {
    bytes: io::Bytes<BufReader<R>>,
    read: &'a Cell<u64>,
    depth: usize,
    /// The length of the current text.
    text: Option<u64>,
    is_escaped: bool,
}

impl<'a, R: Read> Tame<'a, R> {
    fn new(trace: R, read: &'a Cell<u64>) -> Self {
        let bytes = BufReader::with_capacity(1 << 16, trace).bytes();
        Tame { bytes, read, depth: 0, text: None, is_escaped: false }
    }

    fn step(&mut self, byte: u8) -> Result<(), &'static str> {
        match (&mut self.text, byte) {
            (Some(_), _) if self.is_escaped => self.is_escaped = false,
            (Some(_), b'\\') => self.is_escaped = true,
            (Some(_), b'"') => self.text = None,
            (Some(len), _) if *len >= TEXT_MAX => return Err("a text in it is longer than 16 MiB"),
            (Some(len), _) => *len += 1,
            (None, b'"') => self.text = Some(0),
            (None, b'[' | b'{') if self.depth >= DEPTH_MAX => return Err("it is nested more than 512 deep"),
            (None, b'[' | b'{') => self.depth += 1,
            (None, b']' | b'}') => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }
}

impl<R: Read> Read for Tame<'_, R> {
    /// One byte, so that no more is read than was requested: `Found::end` is derived from that count.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (Some(place), Some(byte)) = (into.first_mut(), self.bytes.next()) else { return Ok(0) };
        *place = byte?;
        self.step(*place).map_err(io::Error::other)?;
        self.read.set(self.read.get() + 1);
        Ok(1)
    }
}

/// The trace as a whole.
struct TraceVisitor<'a> {
    read: &'a Cell<u64>,
}

/// Where the events end, whether there are none, and their processes.
type Events = (u64, bool, HashSet<u64>);

impl<'de> Visitor<'de> for TraceVisitor<'_> {
    type Value = (Option<u64>, Option<Events>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with traceEvents")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut base, mut events) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" if events.is_some() => return Err(A::Error::duplicate_field("traceEvents")),
                "traceEvents" => events = Some(map.next_value_seed(InEvents { read: self.read })?),
                "baseTimeNanoseconds" => base = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok((base, events))
    }
}

struct InEvents<'a> {
    read: &'a Cell<u64>,
}

impl<'de> DeserializeSeed<'de> for InEvents<'_> {
    type Value = Events;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Events, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for InEvents<'_> {
    type Value = Events;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<Events, A::Error> {
        let (mut is_empty, mut pids) = (true, HashSet::new());
        while let Some(TraceEvent { pid }) = events.next_element()? {
            is_empty = false;
            pids.extend(pid.0);
        }
        // The bracket that ends them was read, and nothing after it.
        Ok((self.read.get().saturating_sub(1), is_empty, pids))
    }
}

#[derive(Deserialize)]
struct TraceEvent {
    #[serde(default)]
    pid: Pid,
}

/// A number, or a text if it is not a process.
#[derive(Default)]
struct Pid(Option<u64>);

impl<'de> Deserialize<'de> for Pid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pid, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Pid;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a process")
            }
            fn visit_u64<E>(self, pid: u64) -> Result<Pid, E> {
                Ok(Pid(Some(pid)))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Pid, E> {
                Ok(Pid(None))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Pid, E> {
                Ok(Pid(None))
            }
            fn visit_str<E>(self, _: &str) -> Result<Pid, E> {
                Ok(Pid(None))
            }
            fn visit_unit<E>(self) -> Result<Pid, E> {
                Ok(Pid(None))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(trace: &str) -> Result<MergeInfo, String> {
        inspect(trace.as_bytes())
    }

    #[test]
    fn the_end_of_the_events_is_found_wherever_they_are() {
        let traces = [
            r#"{"baseTimeNanoseconds": 5, "traceEvents": [{"pid": 7, "args": {"x": [1, "]"]}}, {"pid": "Spans"}] , "z": "\"]"}"#,
            r#"{"schemaVersion":1,"traceEvents":[ {"pid":-1},{"name":"]\\"},{"pid":7} ],"traceName":"]","baseTimeNanoseconds":5}"#,
            "{\"traceEvents\":[{\"pid\":7}\n\t],\"baseTimeNanoseconds\":5}\n",
        ];
        for trace in traces {
            let found = found(trace).expect("a trace");
            assert_eq!((found.base, found.is_empty, found.pids), (5, false, HashSet::from([7])));
            let (events, rest) = trace.split_at(found.end as usize);
            assert!(rest.starts_with(']'), "{rest}");
            let ours = format!("{events},{{\"pid\":8}}{rest}");
            let all: serde_json::Value = serde_json::from_str(&ours).expect("still a trace");
            assert_eq!(all["traceEvents"].as_array().expect("events").last().expect("ours")["pid"], 8);
        }
        let none = found(r#"{"traceEvents":[],"baseTimeNanoseconds":0}"#).expect("a trace");
        assert_eq!((none.is_empty, none.end), (true, 16));
    }

    #[test]
    fn what_is_no_such_trace_is_refused_with_the_reason() {
        let cases = [
            ("", "no trace"),
            ("[{\"ph\":\"X\"}]", "an object with traceEvents"),
            ("{\"baseTimeNanoseconds\":1}", "has no traceEvents"),
            ("{\"traceEvents\":[]}", "baseTimeNanoseconds"),
            ("{\"traceEvents\":{},\"baseTimeNanoseconds\":1}", "an array of events"),
            ("{\"traceEvents\":[],\"baseTimeNanoseconds\":-1}", "no trace"),
            ("{\"traceEvents\":[],\"traceEvents\":[],\"baseTimeNanoseconds\":1}", "duplicate"),
            ("{\"traceEvents\":[1],\"baseTimeNanoseconds\":1}", "no trace"),
            ("{\"traceEvents\":[{}", "no trace"),
            ("{\"traceEvents\":[],\"baseTimeNanoseconds\":1} x", "no trace"),
        ];
        for (trace, why) in cases {
            let said = found(trace).expect_err(trace);
            assert!(said.contains(why), "{trace}: {said}");
        }
    }

    #[test]
    fn what_would_fill_memory_is_refused() {
        let endless = |byte: u8, before: &str| inspect(before.as_bytes().chain(io::repeat(byte))).expect_err("endless");
        assert!(endless(b'a', "{\"").contains("16 MiB"));
        assert!(endless(b'[', "{\"a\":").contains("512 deep"));
    }
}
