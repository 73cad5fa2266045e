//! The traced calls in the format of DFTracer 1.0: an object on each line, for DFAnalyzer and other readers of `.pfw`.
//! Pure.
//!
//! The format names the calls of a C library, so a call gets the name of the library call that causes it, where there
//! is one, or keeps its own. Files, commands and the host are named once, and then referred to by a hash.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::{self, Write};

use xxhash_rust::xxh3::xxh3_64;

use super::traced::{self, Names, OF_THE_MOUNT, Provenance};
use crate::json;
use crate::stats::counters::Op;
use crate::stats::recording::Recording;
use crate::stats::traced::Traced;

/// Writes the lines.
pub(super) fn write(recording: &mut Recording, out: &mut dyn Write) -> io::Result<()> {
    let names = Names::of(recording);
    let (since, mountpoint) = (recording.meta.since, recording.meta.mountpoint.trim_end_matches('/').to_owned());
    writeln!(out, "[")?;
    let host = hash(&recording.meta.host);
    let mut lines = DftracerLines { out, id: 0, host, since, mountpoint, told: HashSet::new() };
    lines.name("HH", OF_THE_MOUNT, &recording.meta.host)?;
    traced::each(recording, |traced| lines.call(&names, traced))?;
    lines.completeness(&traced::completeness(recording))?;
    writeln!(lines.out, "]")
}

struct DftracerLines<'a> {
    out: &'a mut dyn Write,
    /// The number of the last line.
    id: u64,
    host: String,
    /// When the mount was made, in nanoseconds since 1970.
    since: u64,
    mountpoint: String,
    /// Inode numbers of files, and numbers of processes, that have been named.
    told: HashSet<(bool, u64)>,
}

impl DftracerLines<'_> {
    fn call(&mut self, names: &Names, traced: &Traced) -> io::Result<()> {
        let (pid, command) = names.process(traced.process);
        let path = format!("{}{}", self.mountpoint, names.path(traced.ino));
        if self.told.insert((true, traced.process.into())) {
            self.name("SH", pid, command)?;
        }
        if self.told.insert((false, traced.ino)) {
            self.name("FH", pid, &path)?;
        }
        let call = &traced.call;
        let micros = |nanos: u128| (nanos + 500) / 1000;
        let (ts, dur) = (micros(u128::from(self.since) + call.began.as_nanos()), micros(call.took.as_nanos()));
        let (name, tier, thread, host) = (name(call.op), call.tier.name(), traced.thread, &self.host);
        self.id += 1;
        write!(
            self.out,
            r#"{{"id":{},"name":"{name}","cat":"POSIX","pid":{pid},"tid":{thread},"ts":{ts},"dur":{dur},"ph":"X","args":{{"hhash":"{host}","p_idx":-1,"level":1,"fhash":"{}","tier":"{tier}""#,
            self.id,
            hash(&path)
        )?;
        match call.errno {
            Some(errno) => write!(self.out, r#","ret":-1,"errno":"{errno:?}""#)?,
            None => write!(self.out, r#","ret":{}"#, call.bytes)?,
        }
        if matches!(call.op, Op::Read | Op::Write) {
            write!(self.out, r#","offset":{}"#, call.offset)?;
        }
        writeln!(self.out, "}}}}")
    }

    /// Names what a hash stands for.
    fn name(&mut self, kind: &str, pid: u32, name: &str) -> io::Result<()> {
        self.metadata(kind, pid, name, &hash(name))
    }

    fn metadata(&mut self, kind: &str, pid: u32, name: &str, value: &str) -> io::Result<()> {
        self.id += 1;
        let (id, host, name, value) = (self.id, &self.host, json::string(name), json::string(value));
        writeln!(
            self.out,
            r#"{{"id":{id},"name":"{kind}","cat":"dftracer","pid":{pid},"tid":{pid},"ph":"M","args":{{"hhash":"{host}","name":{name},"value":{value}}}}}"#
        )
    }

    fn completeness(&mut self, told: &Provenance<'_>) -> io::Result<()> {
        let mut tell = |name: &str, value: &dyn Display| self.metadata("PR", OF_THE_MOUNT, name, &value.to_string());
        tell("dlio-fs", &told.version)?;
        tell("mountpoint", &told.mountpoint)?;
        tell("io_path", &told.io_path.name)?;
        tell("not_seen", &told.io_path.not_seen.join("; "))?;
        tell("calls_traced", &told.calls_traced)?;
        tell("calls_dropped", &told.calls_dropped)?;
        tell("calls_counted", &told.calls_counted)?;
        tell("is_whole", &told.is_whole)?;
        told.flaws.iter().try_for_each(|flaw| tell("flaw", flaw))
    }
}

fn hash(name: &str) -> String {
    format!("{:016x}", xxh3_64(name.as_bytes()))
}

/// The C library call that usually makes the kernel send this request, if there is one.
fn name(op: Op) -> &'static str {
    match op {
        Op::Getattr => "stat",
        Op::Create => "open",
        // The kernel sends this at each close.
        Op::Flush => "close",
        Op::Readdirplus => "readdir",
        Op::Releasedir => "closedir",
        Op::Fsyncdir => "fsync",
        Op::Statfs => "statvfs",
        op => op.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::traced::sample;
    use serde_json::Value;
    use std::collections::HashMap;

    fn lines(recording: &mut Recording) -> Vec<Value> {
        let mut out = Vec::new();
        write(recording, &mut out).expect("into memory");
        let text = String::from_utf8(out).expect("UTF-8");
        assert!(text.starts_with("[\n") && text.ends_with("\n]\n"));
        let objects = text.lines().filter(|line| *line != "[" && *line != "]");
        objects.map(|line| serde_json::from_str(line).expect("an object")).collect()
    }

    #[test]
    fn every_call_is_a_line_and_every_hash_was_told_before() {
        let lines = lines(&mut sample::recording());
        let mut told: HashMap<&str, &str> = HashMap::new();
        let (mut calls, mut bytes, mut micros) = (0, 0, 0.0);
        for (n, line) in lines.iter().enumerate() {
            assert_eq!(line["id"], n + 1);
            let args = &line["args"];
            if line["ph"] == "M" {
                told.insert(args["value"].as_str().expect("text"), args["name"].as_str().expect("text"));
                continue;
            }
            assert!(told.contains_key(args["hhash"].as_str().expect("text")), "{line}");
            assert!(told[args["fhash"].as_str().expect("text")].starts_with("/mnt/t/data/a;b/f"), "{line}");
            calls += 1;
            bytes += args["ret"].as_i64().expect("a number").max(0);
            micros += line["dur"].as_f64().expect("a number");
        }
        let all = sample::calls();
        assert_eq!(calls, all.len());
        assert_eq!(bytes as u64, all.iter().map(|one| one.call.bytes).sum::<u64>());
        let exact = all.iter().map(|one| one.call.took.as_secs_f64() * 1e6).sum::<f64>();
        assert!((micros - exact).abs() <= 0.5 * all.len() as f64, "{micros} {exact}");
        let first = lines.iter().find(|line| line["ph"] == "X").expect("a call");
        assert_eq!((&first["name"], &first["pid"]), (&"read".into(), &4711.into()));
        assert_eq!(first["ts"], (sample::SINCE + 500) / 1000);
        let tells = |name: &str| {
            lines.iter().find(|line| line["args"]["name"] == name).expect("a line")["args"]["value"].clone()
        };
        assert_eq!((tells("calls_dropped"), tells("io_path")), ("7".into(), "exact".into()));
    }
}
