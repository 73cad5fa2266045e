//! The JSON documents and the pages that describe them, in both directions: each key that a document has stands in its section, and each
//! key of a section is in a document, but for those that the page says may be absent.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Elsewhere, Mount, pattern, succeeded, until};
use crate::needs::{MOUNTS, needs};

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");
const PAGES: [&str; 2] = ["docs/json.md", "docs/json-commands.md"];
/// Names that stand for the keys of another section, below what they are there.
const STAND_FOR: [(&str, &str, &str); 7] = [
    ("STATS", "stats.json", ""),
    ("SAFETY", "stats.json", "safety."),
    ("FLEET", "fleet.json", ""),
    ("FIGURE", "stats.json", "operations[]."),
    ("COUNT", "files.json", "files[]."),
    ("CHECKPOINT", "checkpoints.json", "checkpoints[]."),
    ("EPOCH", "windows.json", "epochs[]."),
];
/// They stand for no more than this: a file's name stands only once, and the report has no dates.
const NOT_THERE: [&str; 9] = [
    "files[].before.ino",
    "files[].before.path",
    "checkpoints[].began_at",
    "checkpoints[].absorbed_at",
    "checkpoints[].durable_at",
    "checkpoints[].drained_at",
    "checkpoints[].elsewhere_at",
    "epochs[].began_at",
    "epochs[].ended_at",
];
const FAST_OR_SLOW: [&str; 2] = ["fast", "slow"];
const IO_PATHS: [&str; 3] = ["exact", "cached", "passthrough"];

// The pages

/// The keys of a section, and whether each may be absent.
type Section = BTreeMap<String, bool>;

fn sections() -> BTreeMap<String, Section> {
    let mut all: BTreeMap<String, Section> = BTreeMap::new();
    for page in PAGES {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
        for section in text.split("\n## ").skip(1) {
            let (title, body) = section.split_once('\n').unwrap();
            let rows = body.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
            let rows = rows.flat_map(|(keys, meaning)| {
                keys.split('`').step_by(2).map(move |key| (key.to_owned(), meaning.starts_with("If ")))
            });
            let keys: Vec<_> = rows.filter(|(key, _)| !key.is_empty()).collect();
            let count = keys.len();
            let section: Section = keys.into_iter().collect();
            assert_eq!(section.len(), count, "a key of {title} stands there twice");
            all.insert(title.to_owned(), section);
        }
    }
    let told = all.clone();
    all.values_mut().for_each(|section| {
        *section = section.iter().flat_map(|(key, may_lack)| stood_for(key, *may_lack, &told)).collect();
    });
    all
}

fn stood_for(key: &str, may_lack: bool, all: &BTreeMap<String, Section>) -> Section {
    let whole = || Section::from([(key.to_owned(), may_lack)]);
    let name = key.rsplit('.').next().unwrap_or_default();
    let above = key.strip_suffix(name).unwrap_or_default();
    let Some((_, title, below)) = STAND_FOR.iter().find(|(word, _, _)| *word == name) else { return whole() };
    let keys = all[*title].iter().filter_map(|(key, lacks)| Some((key.strip_prefix(below)?, lacks)));
    let keys = keys.filter(|(key, _)| !key.starts_with("before."));
    let keys = keys.map(|(key, lacks)| (format!("{above}{key}"), may_lack || *lacks));
    keys.filter(|(key, _)| !NOT_THERE.contains(&key.as_str())).collect()
}

// The documents

/// A key with the path to it, and whether anything is there: neither null nor an empty list or object.
fn flat(value: &Value, above: &str, keys: &mut BTreeSet<(String, bool)>) {
    match value {
        Value::Object(all) if !all.is_empty() => {
            for (key, value) in all.iter().filter(|(key, _)| !key.ends_with("_escaped")) {
                let dot = if above.is_empty() { "" } else { "." };
                flat(value, &format!("{above}{dot}{}", general(above, key)), keys);
            }
        }
        Value::Array(all) if !all.is_empty() => all.iter().for_each(|one| flat(one, &format!("{above}[]"), keys)),
        Value::Array(_) => drop(keys.insert((format!("{above}[]"), false))),
        Value::Null | Value::Object(_) => drop(keys.insert((above.to_owned(), false))),
        _ => drop(keys.insert((above.to_owned(), true))),
    }
}

/// What the page calls a key of which there are several.
fn general<'a>(above: &str, key: &'a str) -> &'a str {
    match above.rsplit('.').next() {
        Some("tiers") if FAST_OR_SLOW.contains(&key) => "TIER",
        Some("job") if FAST_OR_SLOW.contains(&key) => "TIER",
        Some("opens") if IO_PATHS.contains(&key) => "PATH",
        _ => key,
    }
}

/// What is wrong between the page and what was seen of one document.
fn differences(title: &str, section: &Section, documents: &[Value]) -> Vec<String> {
    let mut keys = BTreeSet::new();
    documents.iter().for_each(|document| flat(document, "", &mut keys));
    keys.retain(|(key, _)| key != "schema");
    let is_below = |key: &str, above: &str| {
        key.strip_prefix(above.trim_end_matches("[]")).is_some_and(|rest| rest.starts_with(['.', '[']))
    };
    let is_told = |(key, is_there): &&(String, bool)| {
        section.contains_key(key) || (!is_there && section.keys().any(|told| is_below(told, key)))
    };
    let untold = keys.iter().filter(|key| !is_told(key)).map(|(key, _)| format!("{title}: {key} is not in the page"));
    let is_seen = |told: &str| keys.iter().any(|(key, _)| key == told || is_below(key, told));
    let unseen = section.iter().filter(|(told, may_lack)| !**may_lack && !is_seen(told));
    untold.chain(unseen.map(|(told, _)| format!("{title}: no document has {told}"))).collect()
}

#[derive(Default)]
struct Seen(BTreeMap<&'static str, Vec<Value>>);

impl Seen {
    fn add(&mut self, title: &'static str, text: &str) -> Value {
        let document: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{title}: {e}: {text}"));
        assert_eq!(document["schema"], 1, "{title}");
        let first = text.trim_start_matches(['{', ' ', '\n']);
        assert!(first.starts_with("\"schema\""), "{title} begins with {}", &first[..first.len().min(40)]);
        self.0.entry(title).or_default().push(document.clone());
        document
    }

    /// What a command prints.
    fn run(&mut self, title: &'static str, arguments: &[&str], paths: &[&Path]) -> Value {
        let output = Command::new(PROGRAM).args(arguments).args(paths).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        self.add(title, &text)
    }

    /// The JSON files of `.dlio`.
    fn look(&mut self, mount: &Mount) {
        let names = ["stats", "files", "processes", "queue", "staging", "windows", "timeline", "checkpoints", "pace"];
        for (name, title) in names.into_iter().zip(DLIO) {
            self.add(title, &fs::read_to_string(mount.at(format!(".dlio/{name}.json"))).unwrap());
        }
    }
}

const DLIO: [&str; 9] = [
    "stats.json",
    "files.json",
    "processes.json",
    "queue.json",
    "staging.json",
    "windows.json",
    "timeline.json",
    "checkpoints.json",
    "pace.json",
];

/// Makes a directory immutable while it lives: what is to be published there holds the order.
struct Immutable(PathBuf);

impl Drop for Immutable {
    fn drop(&mut self) {
        Command::new("chattr").arg("-i").arg(&self.0).status().ok();
    }
}

fn done(mount: &Mount, command: &str) {
    let reply = mount.control(command);
    assert!(reply.contains("ok: "), "{command}: {reply}");
}

fn staged(mount: &Mount) {
    until("all is staged", || {
        let text = fs::read_to_string(mount.at(".dlio/staging.json")).unwrap();
        let staging: Value = serde_json::from_str(&text).unwrap();
        staging["jobs"].as_array().unwrap().iter().all(|job| job["state"] != "running")
    });
}

fn told<'a>(list: &'a Value, path: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|one| one["path"] == path);
    found.unwrap_or_else(|| panic!("no {path} in {list:#}"))
}

/// Files that are read again and again, so that a pass over them is noticed.
const FILES: usize = 20;

#[test]
fn the_pages_tell_each_key_of_each_document() {
    needs!(MOUNTS);
    let not_text = OsStr::from_bytes(b"run/\xff");
    let mut mount = Mount::with(&["settle=0s"], |slow| {
        fs::create_dir(slow.join("data")).unwrap();
        fs::create_dir(slow.join("run")).unwrap();
        fs::write(slow.join("run/old"), "old").unwrap();
        (0..FILES).for_each(|n| fs::write(slow.join(format!("data/{n}")), pattern(20_000)).unwrap());
        fs::write(slow.join("data/a b"), pattern(5000)).unwrap();
    });
    let root = mount.root();
    let mut seen = Seen::default();

    // Passes over data, a window, a mark, and what fails.
    done(&mount, "window start w");
    let read_all = || (0..FILES).for_each(|n| drop(fs::read(mount.at(format!("data/{n}"))).unwrap()));
    (0..3).for_each(|_| read_all());
    done(&mount, "mark half of it");
    (0..1500).for_each(|n| assert!(fs::metadata(mount.at(format!("data/none-{n}"))).is_err()));
    done(&mount, "window stop w");
    done(&mount, "window start open");

    // A staged file, and one that is not there to be staged.
    done(&mount, "stage /data/a%20b");
    done(&mount, "stage /data/none");
    staged(&mount);
    // Asked before the staged file is read: a busy machine may read it more slowly than the slow tier, and then nothing
    // is worth staging.
    let plan = seen.run("plan", &["plan", "--json"], &[&root]);
    fs::read(mount.at("data/a b")).unwrap();
    assert!(plan["files"][0]["path"].as_str().unwrap().starts_with("/data/"), "{plan}");
    let file = root.with_file_name("plan.json");
    fs::write(&file, plan.to_string()).unwrap();
    succeeded(Command::new(PROGRAM).args(["stage", "--plan"]).arg(&file).arg(&root).output().unwrap());
    staged(&mount);

    // A checkpoint that is safe, and a copy of it that somebody changes.
    mount.put("ckpt-7", pattern(3 << 20));
    // Says that all is there.
    mount.put("latest_checkpointed_iteration.txt", "7");
    mount.sync();
    until("the checkpoint is complete", || {
        let one = seen.add("checkpoints.json", &fs::read_to_string(mount.at(".dlio/checkpoints.json")).unwrap());
        let one = &one["checkpoints"][0];
        one["complete"] == true && one["durable"].is_f64() && one["drained"].is_f64()
    });
    assert_eq!(seen.run("verify", &["verify", "--json"], &[&root])["findings"], Value::Array(Vec::new()));
    seen.run("report", &["report", "--format", "json"], &[&root]);

    // Both change a file.
    done(&mount, "pause");
    mount.put("data/0", "ours");
    fs::write(mount.slow().join("data/0"), "theirs, and longer").unwrap();
    done(&mount, "resume");
    mount.sync();
    fs::write(mount.slow().join("ckpt-7"), "not ours").unwrap();
    let found = seen.run("verify", &["verify", "--json"], &[&root]);
    assert_eq!(told(&found["findings"], "/ckpt-7")["kind"], "changed", "{found}");
    seen.look(&mount);
    let failed = &seen.0["staging.json"][0]["jobs"][1]["failures"];
    told(failed, "/data/none");

    // The slow tier refuses what comes into a directory.
    let refusing = Immutable(mount.slow().join("run"));
    succeeded(Command::new("chattr").arg("+i").arg(&refusing.0).output().unwrap());
    mount.put("run/a b", "held");
    mount.put("run/aside", "aside");
    fs::write(mount.at(not_text), "not text").unwrap();
    mount.sh("chmod 600 run/old");
    fs::rename(mount.at("run/a b"), mount.at("run/c d")).unwrap();
    until("the order is held", || mount.stats_json()["safety"]["held"].is_string());
    // Between two tries nobody counts as held for a moment.
    until("each document tells who is held", || {
        let stats = seen.add("stats.json", &fs::read_to_string(mount.at(".dlio/stats.json")).unwrap());
        let queue = seen.run("queue.json", &["queue", "--json"], &[&root]);
        let status = seen.run("status", &["status", "--json"], &[&root]);
        [&stats, &queue, &status["mounts"][0]].into_iter().all(|document| document["held_users"][0].is_object())
    });
    let queue = seen.run("queue.json", &["queue", "--json"], &[&root]);
    let pending = queue["pending"].as_array().unwrap();
    assert!(pending.iter().any(|one| one["path"] == "/run/a b" && one["to"] == "/run/c d"), "{queue:#}");
    assert_eq!(told(&queue["pending"], "/run/%FF")["path_escaped"], true);
    let stats = seen.run("status", &["status", "--json"], &[&root]);
    assert!(stats["mounts"][0].get("schema").is_none());
    seen.run("drain", &["drain", "--no-wait", "--json"], &[&root]);
    seen.run("checkpoints.json", &["checkpoints", "--json"], &[&root]);
    seen.run("staging.json", &["stage", "--show", "--json"], &[&root]);
    let evicted = seen.run("evict", &["evict", "--json"], &[&mount.at("run")]);
    assert_eq!(told(&evicted["evicted"][0]["findings"], "/run/%FF")["path_escaped"], true);
    let left = seen.run("drain --deadline", &["drain", "--deadline", "200ms", "--json"], &[&root]);
    told(&left["findings"], "/run/c d");
    top(&mut seen, &mount);

    let aside = seen.run("set-aside", &["set-aside", "--json"], &[&mount.at("run/aside")]);
    told(&aside["fast_only"], "/run/aside");
    let returned = seen.run("set-aside", &["set-aside", "--json"], &[&mount.at("run/old")]);
    told(&returned["returned"], "/run/old");
    let saved = seen.run("saved", &["saved", "--json"], &[&mount.slow()]);
    assert_eq!(saved["saved"][0]["kind"], "kept", "{saved}");
    seen.look(&mount);
    let report = seen.run("report", &["report", "--format", "json"], &[&root]);
    told(&report["top"], "/data/a b");
    let advice = seen.run("advise", &["advise", "--json"], &[&root]);
    assert_eq!(report["files"]["misses"]["path"], "/data", "{advice}");

    let left = seen.run("umount", &["umount", "--now", "--json"], &[&root]);
    told(&left["paths"], "/run/c d");
    assert_eq!(told(&left["paths"], "/run/%FF")["path_escaped"], true);
    mount.ended();
    drop(refusing);
    fs::write(mount.fast().join(".dlio-fs/pool/stray"), "no daemon made it").unwrap();
    seen.run("fsck", &["fsck", "--json"], &[&mount.fast()]);
    seen.run("doctor", &["doctor", "--json"], &[]);
    seen.run("doctor --visibility", &["doctor", "--visibility", "--json"], &[]);

    failures(&mut seen);
    fleet(&mut seen);

    let mut wrong = Vec::new();
    let sections = sections();
    for (title, documents) in &seen.0 {
        wrong.extend(differences(title, sections.get(*title).unwrap_or(&Section::new()), documents));
    }
    let unseen = sections.iter().filter(|(title, keys)| !keys.is_empty() && !seen.0.contains_key(title.as_str()));
    wrong.extend(unseen.map(|(title, _)| format!("{title}: no such document was made")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A call that a tier failed, and files that nobody has finished.
fn failures(seen: &mut Seen) {
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s", "live_after=1h"]);
    fs::write(mount.slow().join("old"), "bytes").unwrap();
    mount.through(&["env", "DLIO_FAULTS=at=slow:read@old:1:1:EIO"]);
    mount.start();
    let mut half = fs::File::create(mount.at("half")).unwrap();
    half.write_all(b"half").unwrap();
    mount.kill();
    drop(half);
    mount.start();
    let _open = fs::File::create(mount.at("open")).unwrap();
    fs::read(mount.at("old")).unwrap_err();
    seen.run("queue.json", &["queue", "--json"], &[&mount.root()]);
    seen.add("stats.json", &fs::read_to_string(mount.at(".dlio/stats.json")).unwrap());
    seen.run("status", &["status", "--json"], &[&mount.root()]);
}

/// A fleet of one.
fn fleet(seen: &mut Seen) {
    let mount = Mount::with(&["fleet=one", "fleet_size=1", "clock_error=2ms"], |_| ());
    seen.add("fleet.json", &fs::read_to_string(mount.at(".dlio/fleet.json")).unwrap());
    seen.run("status --fleet", &["status", "--json", "--fleet"], &[&mount.root()]);
    mount.put("ckpt-8", vec![8; 3 << 20]);
    mount.sync();
    until("the other nodes could read the checkpoint", || {
        let text = fs::read_to_string(mount.at(".dlio/checkpoints.json")).unwrap();
        seen.add("checkpoints.json", &text)["checkpoints"][0]["elsewhere_at"].is_string()
    });
    seen.run("checkpoints --fleet", &["checkpoints", "--json", "--fleet"], &[&mount.root()]);
    seen.run("report", &["report", "--format", "json"], &[&mount.root()]);
}

/// Intervals until something was done in one.
fn top(seen: &mut Seen, mount: &Mount) {
    let root = mount.root();
    let mut command = Command::new(PROGRAM);
    command.args(["top", "--json", "--interval", "200ms", "--count", "2"]).arg(&root);
    until("an interval has reads", || {
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| child.wait_with_output().unwrap());
            while !waiting.is_finished() {
                fs::read(mount.at("data/1")).unwrap();
            }
            waiting.join().unwrap()
        });
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| seen.add("top", line)).collect::<Vec<_>>();
        lines.iter().any(|line| line["operations"].as_array().is_some_and(|all| !all.is_empty()))
    });
}

#[test]
fn a_difference_is_noticed_in_both_directions() {
    let section = Section::from([("a".to_owned(), false), ("b[].c".to_owned(), false), ("d".to_owned(), true)]);
    let wrong = |document: Value| differences("x", &section, &[document]);
    assert_eq!(wrong(serde_json::json!({ "schema": 1, "a": null, "b": [{ "c": 1, "c_escaped": true }] })), [""; 0]);
    assert_eq!(wrong(serde_json::json!({ "a": 1, "b": [] })), ["x: no document has b[].c"]);
    assert_eq!(
        wrong(serde_json::json!({ "a": 1, "b": [{ "c": 1, "e": 2 }], "d": { "f": 1 } })),
        ["x: b[].e is not in the page", "x: d.f is not in the page"]
    );
}
