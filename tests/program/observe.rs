//! What is counted of each file and of each process is what was done: held against what the test did, and against what
//! strace saw of a program, counted anew by Darshan's rules.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Elsewhere, Mount, pattern, succeeded, until};
use crate::needs::{MOUNTS, needs};

/// Rows of `.dlio/files.tsv` by path: cells by column.
fn files(mount: &Mount) -> BTreeMap<String, HashMap<String, String>> {
    let table = fs::read_to_string(mount.at(".dlio/files.tsv")).unwrap();
    let mut rows = table.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
    let names = rows.next().unwrap();
    rows.map(|cells| (cells[0].clone(), names.iter().cloned().zip(cells).collect())).collect()
}

fn cells<'a>(row: &'a HashMap<String, String>, names: &[&str]) -> Vec<&'a str> {
    names.iter().map(|name| row[*name].as_str()).collect()
}

#[test]
fn reads_are_told_apart_by_where_they_lie() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| fs::write(slow.join("f"), pattern(100_000)).unwrap());
    let file = File::open(mount.at("f")).unwrap();
    let read = |offset: u64, len: usize| file.read_at(&mut vec![0; len], offset).unwrap();
    for (offset, len) in [(0, 4096), (4096, 4096), (20_000, 100), (500, 100), (90_000, 20_000), (100_000, 10), (0, 500)]
    {
        read(offset, len);
    }
    let other = File::open(mount.at("f")).unwrap();
    other.read_at(&mut [0; 10], 50_000).unwrap();
    let row = &files(&mount)["/f"];
    let kinds = ["reads_first", "reads_consecutive", "reads_forward", "reads_again", "reads_backward", "reads_end"];
    assert_eq!(cells(row, &kinds), ["2", "1", "2", "2", "0", "1"], "a handle has a first read of its own");
    assert_eq!(cells(row, &["opens", "read", "bytes_read", "end_read"]), ["2", "8", "18902", "100000"]);
    assert_eq!(cells(row, &["reads_0_100", "reads_100_1K", "reads_1K_10K", "reads_10K_100K"]), ["4", "1", "3", "0"]);
    assert_eq!(cells(row, &["read_bytes_0_100", "read_bytes_1K_10K"]), ["210", "18192"]);
    assert_eq!(cells(row, &["slow_reads", "slow_bytes_read"]), ["8", "18902"], "nothing of it is on the fast tier");
}

#[test]
fn what_the_fast_tier_serves_is_not_counted_for_the_slow_one() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("f", pattern(10_000));
    assert_eq!(fs::read(mount.at("f")).unwrap().len(), 10_000);
    let row = &files(&mount)["/f"];
    assert_eq!(cells(row, &["slow_reads", "slow_writes", "bytes_written"]), ["0", "0", "10000"]);
    let served = |op: &str| {
        let stats = mount.stats_json();
        let line = stats["operations"].as_array().unwrap().iter().find(|line| line["op"] == op).unwrap().clone();
        line["tiers"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!((served("read"), served("write")), (vec!["fast".to_owned()], vec!["fast".to_owned()]));
}

/// A checkpoint is written under another name and renamed; its figures go with it, and those of the one before stay.
#[test]
fn figures_follow_a_file_through_a_rename() {
    needs!(MOUNTS);
    let mount = Mount::new();
    for step in 1..=3 {
        mount.put("ckpt.tmp", pattern(1000 * step));
        fs::rename(mount.at("ckpt.tmp"), mount.at("ckpt")).unwrap();
    }
    let found = files(&mount);
    assert_eq!(cells(&found["/ckpt"], &["create", "bytes_written", "end_written"]), ["1", "3000", "3000"]);
    assert_eq!(cells(&found["/ckpt.tmp"], &["create", "bytes_written"]), ["2", "3000"], "two that were replaced");
}

#[test]
fn what_fails_is_told_with_its_error() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("f", "x");
    for _ in 0..3 {
        assert!(fs::metadata(mount.at("nothing")).is_err());
    }
    assert!(OpenOptions::new().write(true).create_new(true).open(mount.at("d/f")).is_err());
    assert!(fs::remove_dir(mount.at("f")).is_err());
    let failures = mount.stats_json()["failures"].clone();
    let calls = |op: &str, errno: &str| {
        let line = failures.as_array().unwrap().iter().find(|line| line["op"] == op && line["errno"] == errno);
        line.map_or(0, |line| line["calls"].as_u64().unwrap())
    };
    assert!(calls("lookup", "ENOENT") >= 3, "{failures}");
    assert!(mount.stats().contains("ENOENT"), "{}", mount.stats());
    mount.python("assert not open('f').isatty()");
    let row = &files(&mount)["/f"];
    assert!(row["refused"] != "0" && row["errors"] == "0", "that it is no terminal is no failure: {row:?}");
    let root = &files(&mount)["/"];
    assert!(root["failures"].contains("lookup/ENOENT:"), "{root:?}");
}

/// Each window has what was done meanwhile, by itself: epochs within a run, from a shell.
#[test]
fn a_window_has_what_was_done_meanwhile() {
    needs!(MOUNTS);
    let mount =
        Mount::with(&[], |slow| (0..20).for_each(|n| fs::write(slow.join(format!("{n}")), "0123456789").unwrap()));
    let read = |files: std::ops::Range<i32>| {
        files.for_each(|n| assert_eq!(fs::read(mount.at(n.to_string())).unwrap().len(), 10));
    };
    read(0..20);
    // A process that is none of the window's.
    mount.sh("cat 0");
    let control = |command: &str| {
        let reply = mount.control(command);
        assert!(reply.starts_with("ok: "), "{command}: {reply}");
    };
    control("window start run");
    for epoch in 1..=2 {
        control(&format!("window start epoch {epoch}"));
        read(0..10 * epoch);
        control("mark half of it");
        read(0..10 * epoch);
        control("window stop");
    }
    mount.put("new", "written");
    control("window stop run");
    read(0..20);

    let text = fs::read_to_string(mount.at(".dlio/windows.json")).unwrap();
    let windows: serde_json::Value = serde_json::from_str(&text).unwrap();
    let bytes = |window: &serde_json::Value, op: &str| {
        let operations = window["operations"].as_array().unwrap();
        operations.iter().find(|line| line["op"] == op).map_or(0, |line| line["bytes"].as_u64().unwrap())
    };
    let closed = windows["closed"].as_array().unwrap().iter();
    let told: Vec<_> = closed
        .map(|window| (window["name"].as_str().unwrap(), bytes(window, "read"), bytes(window, "write")))
        .collect();
    assert_eq!(told, [("epoch 1", 200, 0), ("epoch 2", 400, 0), ("run", 600, 7)]);
    assert!(windows["closed"].as_array().unwrap().iter().all(|window| window["processes"] == 1), "{windows}");
    // Files that were read or written: the directory is there too, something was looked up in it.
    let files = |name: &str| {
        let table = mount.control(&format!("window files {name}"));
        table.lines().skip(1).filter(|line| !line.starts_with("/\t")).count()
    };
    assert_eq!((files("epoch 1"), files("epoch 2"), files("run")), (10, 20, 21));
    assert_eq!(windows["marks"].as_array().unwrap().len(), 2);
    assert_eq!(mount.calls("read").1, 1010, "the whole mount has all of it");
    for (command, said) in
        [("window stop", "no window is open"), ("window files none", "no closed window"), ("mark", "give it a name")]
    {
        let reply = mount.control(command);
        assert!(reply.starts_with("error: ") && reply.contains(said), "{command}: {reply}");
    }
}

/// All that moved stands in the timeline, each byte once.
#[test]
fn the_timeline_adds_up_to_what_moved() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| fs::write(slow.join("old"), pattern(50_000)).unwrap());
    mount.put("new", pattern(70_000));
    assert_eq!(fs::read(mount.at("new")).unwrap().len() + fs::read(mount.at("old")).unwrap().len(), 120_000);
    mount.sync();
    let amounts = ["read_fast", "read_slow", "written_fast", "written_slow", "drained"];
    let told = || {
        let text = fs::read_to_string(mount.at(".dlio/timeline.json")).unwrap();
        let timeline: serde_json::Value = serde_json::from_str(&text).unwrap();
        amounts.map(|name| timeline[name].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>())
    };
    until("the next look has seen it", || told() == [70_000, 50_000, 70_000, 0, 70_000]);
}

/// Workers that a loader has forked, threads among them: every open and every byte is told, and of whom.
#[test]
fn every_worker_is_attributed() {
    needs!(MOUNTS);
    const WORKERS: usize = 4;
    let mount = Mount::with(&[], |slow| {
        (0..10_000).for_each(|n| fs::write(slow.join(format!("{n}")), pattern(1000 + n)).unwrap());
    });
    let told = mount.python(
        "import os, sys, threading\n\
         def load(first):\n\
         \x20   for n in range(first, 10000, 4):\n\
         \x20       with open(str(n), 'rb', buffering=0) as f: f.read(20000)\n\
         for worker in range(4):\n\
         \x20   if os.fork() == 0:\n\
         \x20       thread = threading.Thread(target=load, args=(worker,))\n\
         \x20       thread.start(); thread.join()\n\
         \x20       sys.stdout.write(f'{os.getpid()}\\n'); sys.stdout.flush()\n\
         \x20       os._exit(0)\n\
         for worker in range(4): os.wait()",
    );
    let pids: Vec<&str> = told.split_whitespace().collect();
    assert_eq!(pids.len(), WORKERS);
    let table = fs::read_to_string(mount.at(".dlio/processes")).unwrap();
    for pid in pids {
        let line = table.lines().find(|line| line.split_whitespace().next() == Some(pid));
        let cells: Vec<&str> = line.unwrap_or_else(|| panic!("no {pid} in\n{table}")).split_whitespace().collect();
        assert!(cells[1].starts_with("python3"), "{table}");
        assert_eq!(&cells[2..5], ["2500", "2500", "0"], "opens, reads, writes of {pid} in\n{table}");
    }
    let found = files(&mount);
    let read: u64 = found.values().map(|row| row["bytes_read"].parse::<u64>().unwrap()).sum();
    assert_eq!(read, (0..10_000).map(|n| 1000 + n).sum::<u64>());
    assert!((0..10_000).all(|n| found[&format!("/{n}")]["opens"] == "1"));
}

#[test]
fn without_a_profile_nothing_is_counted_and_the_figures_say_so() {
    needs!(MOUNTS);
    let mut mount = Mount::idle(Elsewhere::default(), &[]);
    mount.arguments(&["--no-profile"]);
    mount.start();
    mount.put("f", pattern(1000));
    assert!(fs::read(mount.at("f")).unwrap() == pattern(1000));
    assert_eq!(mount.calls("write"), (0, 0));
    assert!(files(&mount).is_empty());
    assert!(mount.stats().contains("counted      nothing: profile = false"), "{}", mount.stats());
    assert_eq!(mount.stats_json()["profile"], false);
    assert!(!fs::read_to_string(mount.at(".dlio/metrics")).unwrap().contains("dliofs_ops_total{"));
}

/// They tell of all users together; what is told to each of their own, `two_users.rs` tries.
#[test]
fn only_the_owner_sees_single_calls_and_windows() {
    needs!(MOUNTS);
    let mount = Mount::new();
    for name in ["ops", "windows", "windows.json", "config"] {
        assert_eq!(crate::common::mode(&mount.at(".dlio").join(name)), 0o400, "{name}");
        assert!(!mount.as_user(crate::common::USER, &format!("cat .dlio/{name}")).status.success());
    }
}

/// A program whose calls strace writes down. They are counted anew from that, by Darshan's definitions, and every number is
/// the same.
#[test]
fn darshan_s_counters_are_what_strace_saw() {
    needs!(MOUNTS, "strace");
    let mount = Mount::with(&[], |slow| fs::write(slow.join("data"), pattern(3_000_000)).unwrap());
    let trace = mount.fast().join("trace");
    let program = "\
import os, random
random.seed(7)
def go(name, flags):
    fd = os.open(name, flags, 0o640)
    for step in range(60):
        kind = random.randrange(6)
        n = random.choice([1, 100, 101, 4096, 4096, 4096, 65536, 131072, 1000000])
        if kind < 2: os.read(fd, n)
        elif kind == 2: os.pread(fd, n, random.choice([0, 4096, 10000, 2999999, 3000000, random.randrange(3000000)]))
        elif kind == 3: os.lseek(fd, random.randrange(3000000), 0)
        elif flags & os.O_RDWR and kind == 4: os.write(fd, b'x' * n)
        elif flags & os.O_RDWR:
            os.pwrite(fd, b'y' * n, random.choice([0, 4096, random.randrange(100000)]))
            if step % 3 == 0: os.fsync(fd)
            elif step % 3 == 1: os.fdatasync(fd)
    os.close(fd)
for round in range(4):
    go('data', os.O_RDONLY)
    go('new', os.O_RDWR | os.O_CREAT)
    go('data', os.O_RDONLY)
";
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-s", "0", "-o"]).arg(&trace);
    strace.args(["-e", "trace=openat,read,pread64,write,pwrite64,lseek,fsync,fdatasync,close"]);
    succeeded(strace.args(["python3", "-c", program]).current_dir(mount.root()).output().unwrap());
    let mut text = String::new();
    File::open(&trace).unwrap().read_to_string(&mut text).unwrap();
    let seen = darshan(&text, &mount.root());
    assert_eq!(seen.len(), 2, "{text}");
    let found = files(&mount);
    for (path, wanted) in seen {
        let row = &found[&path];
        let names: Vec<&str> = wanted.keys().map(String::as_str).collect();
        let told: BTreeMap<String, String> =
            names.iter().map(|name| ((*name).to_owned(), row[*name].clone())).collect();
        assert_eq!(told, wanted, "{path}");
    }
}

/// One file's record while it is counted. Darshan's state: the last byte each way, and which way the last call went.
#[derive(Default)]
struct Counted {
    n: BTreeMap<String, u64>,
    last: [i64; 2],
    way: Option<usize>,
    sizes: Vec<(i64, u64)>,
    strides: Vec<(i64, u64)>,
}

/// Darshan's counters of the files below `root`, from what strace wrote, as columns of our table.
fn darshan(trace: &str, root: &Path) -> BTreeMap<String, BTreeMap<String, String>> {
    let (mut files, mut positions): (BTreeMap<String, Counted>, HashMap<i64, i64>) = Default::default();
    let mut writers = HashSet::new();
    let root = format!("{}/", root.display());
    for line in trace.lines() {
        // 123 read(3</mnt/f>, ""..., 4096) = 4096
        let Some((head, result)) = line.rsplit_once(" = ") else { continue };
        let Some((call, arguments)) = head.split_once(' ').unwrap().1.trim_start().split_once('(') else { continue };
        let result: i64 = result.split(['<', ' ']).next().unwrap().parse().unwrap_or(-1);
        let named = if call == "openat" { line.rsplit_once('<') } else { arguments.split_once('<') };
        let Some(path) = named.and_then(|(_, rest)| rest.split_once('>')).map(|(path, _)| path) else { continue };
        let Some(name) = path.strip_prefix(&root) else { continue };
        let file = files.entry(format!("/{name}")).or_default();
        let mut add = |what: &str, amount: u64| *file.n.entry(what.to_owned()).or_default() += amount;
        let fd = |text: &str| text.split('<').next().unwrap().parse::<i64>().unwrap();
        let last_number = || arguments.trim_end_matches(')').rsplit(", ").next().unwrap().parse::<i64>().unwrap();
        let (way, offset) = match call {
            "openat" => {
                add("opens", 1);
                let writes = arguments.contains("O_RDWR") || arguments.contains("O_WRONLY");
                if writes {
                    writers.insert(result)
                } else {
                    writers.remove(&result)
                };
                (file.last, _) = ([0; 2], positions.insert(result, 0));
                continue;
            }
            // The kernel does not tell of one that only reads.
            "close" => {
                if writers.contains(&fd(arguments)) {
                    add("flush", 1);
                }
                continue;
            }
            "fsync" | "fdatasync" => {
                add(call, 1);
                continue;
            }
            "lseek" => {
                positions.insert(fd(arguments), result);
                continue;
            }
            "read" | "write" => {
                let position = positions.get_mut(&fd(arguments)).unwrap();
                *position += result;
                (usize::from(call == "write"), *position - result)
            }
            _ => (usize::from(call == "pwrite64"), last_number()),
        };
        file.access(way, offset, result);
    }
    files.into_iter().map(|(path, file)| (path, file.told())).collect()
}

impl Counted {
    fn access(&mut self, way: usize, offset: i64, len: i64) {
        const CLASSES: [(i64, &str); 10] = [
            (100, "0_100"),
            (1 << 10, "100_1K"),
            (10 << 10, "1K_10K"),
            (100 << 10, "10K_100K"),
            (1 << 20, "100K_1M"),
            (4 << 20, "1M_4M"),
            (10 << 20, "4M_10M"),
            (100 << 20, "10M_100M"),
            (1 << 30, "100M_1G"),
            (i64::MAX, "1G_PLUS"),
        ];
        let (call, past) = [("read", "read"), ("write", "written")][way];
        let last = self.last[way];
        let mut add = |what: String, amount: i64| *self.n.entry(what).or_default() += amount as u64;
        let is = |yes: bool| i64::from(yes);
        add(call.to_owned(), 1);
        add(format!("bytes_{past}"), len);
        add(format!("seq_{call}s"), is(offset > last));
        add(format!("consec_{call}s"), is(offset == last + 1));
        add("switches".to_owned(), is(self.way.is_some_and(|before| before != way)));
        add("unaligned".to_owned(), is(offset % 4096 != 0));
        let class = CLASSES.iter().find(|(bound, _)| len <= *bound).unwrap().1;
        add(format!("{call}s_{class}"), 1);
        let end = self.n.entry(format!("end_{past}")).or_default();
        *end = (*end).max((offset + len) as u64);
        let count = |values: &mut Vec<(i64, u64)>, value: i64| {
            if let Some(one) = values.iter_mut().find(|one| one.0 == value) {
                one.1 += 1;
            } else if value != 0 && values.len() < 32 {
                values.push((value, 1));
            }
        };
        count(&mut self.sizes, len);
        let stride = if offset > 0 && offset > last && last != 0 { offset - last - 1 } else { 0 };
        count(&mut self.strides, stride);
        self.last[way] = offset + len - 1;
        self.way = Some(way);
    }

    fn told(self) -> BTreeMap<String, String> {
        let top = |mut values: Vec<(i64, u64)>| {
            values.sort_by_key(|(value, count)| std::cmp::Reverse((*count, *value)));
            let told: Vec<_> = values.iter().take(4).map(|(value, count)| format!("{value}:{count}")).collect();
            told.join(",")
        };
        let mut told: BTreeMap<String, String> = self.n.into_iter().map(|(name, n)| (name, n.to_string())).collect();
        told.extend([("sizes".to_owned(), top(self.sizes)), ("strides".to_owned(), top(self.strides))]);
        told
    }
}
