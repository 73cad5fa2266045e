//! `dlio-fs-bench` on real mounts, with sizes of a moment: that it ends, says what it measured, and leaves nothing behind. How fast
//! anything was is nobody's business here.
//!
//! It mounts by the `dlio-fs` beside it, which Cargo builds for the tests of that package.

#![allow(clippy::unwrap_used)]

#[path = "../../../tests/needs/mod.rs"]
mod needs;

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use needs::{MOUNTS, needs};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs-bench");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The other tests' caches are theirs.
const FILE_DATA: [&str; 2] = ["--caches", "file"];

/// Two tiers, and where everything else that is temporary goes.
struct Places {
    dir: tempfile::TempDir,
}

impl Places {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        ["fast", "slow", "tmp", "other"].iter().for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
        Places { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, bench: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args([bench, "--fast"]).arg(self.path("fast")).arg("--slow").arg(self.path("slow"));
        if bench != "trace" {
            // The disk beneath may be nearly full, and memory need not be touched for this.
            command.args(["-o", "high=98%,low=97%,reserve=0%", "--touch", "0"]);
        }
        command.args(arguments).env("TMPDIR", self.path("tmp")).stdin(Stdio::null());
        command
    }

    /// The results of a benchmark that ends well.
    fn results(&self, bench: &str, arguments: &[&str]) -> Value {
        let output = self.command(bench, arguments).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        self.assert_clear();
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&results["format"], results["bench"].as_str()), (&Value::from(1), Some(bench)));
        results
    }

    fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(self.dir.path().to_str().unwrap())
    }

    fn assert_clear(&self) {
        assert!(!self.is_mounted(), "a mount is left");
        for name in ["fast", "slow", "tmp", "other"] {
            let left: Vec<_> = fs::read_dir(self.path(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert_eq!(left, [""; 0].map(PathBuf::from), "left behind");
        }
    }
}

/// Each case with its places, in order.
fn cases(results: &Value) -> Vec<(String, Vec<String>)> {
    let mut cases: Vec<(String, Vec<String>)> = Vec::new();
    for row in results["rows"].as_array().unwrap() {
        let [case, place] = ["case", "place"].map(|key| row[key].as_str().unwrap().to_owned());
        match cases.last_mut().filter(|last| last.0 == case) {
            Some(last) => last.1.push(place),
            None => cases.push((case, vec![place])),
        }
    }
    cases
}

fn assert_cases(results: &Value, places: &[&str], expected: &[&str]) {
    let found = cases(results);
    assert_eq!(found.iter().map(|(case, _)| case.as_str()).collect::<Vec<_>>(), expected);
    for (case, of) in found {
        assert_eq!(of, places, "{case}");
    }
}

/// What each row has: its runs, and what is told of them.
fn assert_rows(results: &Value, runs: usize) {
    for row in results["rows"].as_array().unwrap() {
        let figures: Vec<f64> = row["runs"].as_array().unwrap().iter().map(|run| run.as_f64().unwrap()).collect();
        assert_eq!(figures.len(), runs, "{row}");
        assert!(figures.iter().all(|figure| figure.is_finite() && *figure > 0.0), "{row}");
        let [median, least, most] = ["median", "least", "most"].map(|key| row[key].as_f64().unwrap());
        assert!(least <= median && median <= most, "{row}");
        for ratio in row["ratios"].as_array().unwrap() {
            let [low, median, high] = ["low", "median", "high"].map(|key| ratio[key].as_f64().unwrap());
            assert!(low <= median && median <= high && ratio["to"] != row["place"], "{row}");
            assert!(ratio["level"].is_number(), "{row}");
        }
    }
}

/// The results but for rows whose figures may be zero.
fn without(results: &Value, may_be_zero: impl Fn(&Value) -> bool) -> Value {
    let mut rest = results.clone();
    rest["rows"].as_array_mut().unwrap().retain(|row| !may_be_zero(row));
    rest
}

#[test]
fn checkpoints_are_measured_until_all_is_on_the_slow_tier() {
    needs!(MOUNTS);
    let places = Places::new();
    let results = places.results("checkpoint", &["--count", "2", "--size", "300kB", "--runs", "2"]);
    let caches = if nix::unistd::geteuid().is_root() { "dropped" } else { "file data only" };
    assert_eq!(results["caches"], caches);
    let all = ["slow", "fast", "mount exact"].map(str::to_owned).to_vec();
    let slow = vec![all[0].clone(), all[2].clone()];
    let expected = [("application blocked", &all), ("until all is on the slow tier", &slow), ("slow bandwidth", &slow)];
    assert_eq!(cases(&results), expected.map(|(case, places)| (case.to_owned(), places.clone())));
    assert_rows(&results, 2);
    // A version rests for `settle`, a second, before it is copied: all cannot be there sooner, however fast the disks are.
    let median = |at: usize| results["rows"][at]["median"].as_f64().unwrap();
    assert!(median(4) > median(2) + 0.5, "{results}");
    assert_eq!(results["settings"][1], serde_json::json!(["size", "300 kB"]));

    let results = places
        .results("checkpoint", &["--count", "1", "--size", "10kB", "--runs", "1", "--no-fsync", "--caches", "file"]);
    assert_eq!(cases(&results)[1], ("until durable".to_owned(), all));
}

#[test]
fn blocks_are_read_and_written_by_fio_in_each_way() {
    needs!(MOUNTS, "fio");
    let places = Places::new();
    let arguments = "--engines psync,io_uring --blocks 4KiB --jobs 2 --size 1MiB --time 50ms --runs 1";
    let results = places.results("blocks", &arguments.split(' ').collect::<Vec<_>>());
    let mut cases = cases(&results);
    // A slow machine does too few blocks for them.
    cases.retain(|(case, _)| !case.contains(" p99"));
    // Written and read, and psync buffered, too; each with a rate and a time, and what the daemon takes.
    assert_eq!(cases.len(), 3 * 2 * 3);
    for (case, of) in &cases {
        let reads = case.starts_with("read");
        let paused = [Some("mount exact paused"), None][usize::from(reads)];
        let tiers: &[_] = if case.contains("daemon") { &[] } else { &["fast"] };
        let expected: Vec<_> = tiers.iter().copied().chain(["mount exact"]).chain(paused).collect();
        assert_eq!(of, &expected, "{case}");
    }
    assert_eq!(cases[0].0, "write 4 KiB, psync, 2 jobs, buffered");
    let daemon = "write 4 KiB daemon's processor time per GiB, psync, 2 jobs, buffered";
    assert!(cases.iter().any(|(case, _)| case == daemon), "{cases:?}");
    // A daemon may take less than a tick in so short a time.
    assert_rows(&without(&results, |row| row["unit"] == "s"), 1);
}

#[test]
fn metadata_is_measured_by_the_phases_of_mdtest() {
    needs!(MOUNTS);
    let places = Places::new();
    let other = format!("other={}", places.path("other").display());
    let arguments = ["--ranks", "3", "--files", "20", "--runs", "2", "--io", "exact,passthrough", "--also", &other];
    let results = places.results("metadata", &arguments);
    let expected = [
        "mdtest-easy-write",
        "mdtest-hard-write",
        "mdtest-easy-stat",
        "mdtest-hard-stat",
        "mdtest-easy-delete",
        "mdtest-hard-read",
        "mdtest-hard-delete",
    ];
    assert_cases(&results, &["slow", "fast", "mount exact", "mount passthrough", "other"], &expected);
    assert_rows(&results, 2);
    assert!(results["rows"].as_array().unwrap().iter().all(|row| row["unit"] == "operations/s"), "{results}");
    assert_eq!(results["caches"], "hot");
}

#[test]
fn ranks_save_and_load_and_the_daemon_is_watched_meanwhile() {
    needs!(MOUNTS);
    let places = Places::new();
    let arguments = ["--ranks", "3", "--count", "2", "--shard", "20MB", "--runs", "1"];
    let results = places.results("ranks", &arguments);
    let (mount, mut found) = (vec!["mount exact".to_owned()], cases(&results));
    // Nothing is told while the drain's speed is not known yet.
    found.retain(|(case, _)| !case.ends_with("as the mount told it"));
    let all = ["slow", "fast", "mount exact"].map(str::to_owned).to_vec();
    let slow = vec![all[0].clone(), all[2].clone()];
    let expected = [
        ("save, slowest rank", &all),
        ("processor time, per GiB saved", &all),
        ("until all is on the slow tier", &slow),
        ("load, slowest rank", &all),
        ("readable on the slow tier after the save", &mount),
        ("interval that the slow tier sustains", &mount),
        ("the daemon's processor time, per GiB saved and drained", &mount),
        ("the daemon's memory, at most", &mount),
    ];
    let sorted = |mut cases: Vec<(String, Vec<String>)>| {
        cases.sort();
        cases
    };
    assert_eq!(sorted(found), sorted(expected.map(|(case, of)| (case.to_owned(), of.clone())).to_vec()));
    // Where all is drained by then, the mount tells of no wait.
    assert_rows(&without(&results, |row| row["case"] == "the same as the mount told it"), 1);
    assert_eq!(results["settings"][2], serde_json::json!(["shard", "20 MB"]));
}

/// A stand-in for Python: what it is told and answers is what `ranks.py` is and does.
#[test]
fn ranks_are_processes_where_pytorch_saves() {
    needs!(MOUNTS);
    let places = Places::new();
    let python = places.path("python");
    let be = |script: &str| {
        fs::write(&python, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    };
    be("test \"$1 $6\" = '-c dcp' || exit 1\n\
        echo ready\n\
        while read -r what step; do\n\
            test $what != save || head -c $5 /dev/zero > $step/$3\n\
            test -s $step/$3 && echo done\n\
        done");
    let python = python.to_str().unwrap();
    let arguments =
        ["--ranks", "3", "--count", "2", "--shard", "1MB", "--runs", "1", "--save", "dcp", "--python", python];
    let results = places.results("ranks", &arguments);
    let save = results["rows"].as_array().unwrap().iter().find(|row| row["case"] == "save, slowest rank").unwrap();
    assert!(save["median"].as_f64().unwrap() > 0.0, "{save}");
    be("echo something else");
    let ended = places.command("ranks", &arguments).output().unwrap();
    assert!(text(&ended.stderr).contains("a rank says \"something else\" in place of \"ready\""), "{ended:?}");
    be("exit 3");
    let ended = places.command("ranks", &arguments).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(text(&ended.stderr).contains("name a Python that has PyTorch with --python"), "{ended:?}");
    places.assert_clear();
}

#[test]
fn tiers_are_measured_beside_a_mount_and_another_place() {
    needs!(MOUNTS);
    let places = Places::new();
    let other = format!("other={}", places.path("other").display());
    let arguments = ["--size", "2MiB", "--files", "5", "--runs", "2", "--io", "exact,cached", "--also", &other];
    let results = places.results("tiers", &[&arguments[..], &FILE_DATA].concat());
    assert_eq!(results["caches"], "file data only");
    let expected = ["sequential write and fsync", "sequential read", "small files"];
    assert_cases(&results, &["slow", "fast", "mount exact", "mount cached", "other"], &expected);
    assert_rows(&results, 2);
    assert_eq!(results["rows"][0]["ratios"].as_array().unwrap().len(), 4, "to each other place");
}

#[test]
fn a_data_set_is_read_decoded_and_prefetched_staged_and_not() {
    needs!(MOUNTS);
    let places = Places::new();
    let sizes = [&["--files", "6", "--file-size", "8KiB", "--runs", "1"][..], &FILE_DATA].concat();
    let steps = ["--threads", "2,1", "--batch", "3", "--compute", "1ms", "--prefetch", "2"];
    let results = places.results("ingest", &[&sizes[..], &steps[..]].concat());
    let expected = [
        "read, 1 thread",
        "read, 2 threads",
        "read and decode, 1 thread",
        "read and decode, 2 threads",
        "step, no prefetch",
        "step, 2 batches ahead",
    ];
    assert_cases(&results, &["slow", "fast", "mount exact", "mount exact staged"], &expected);
    assert_rows(&results, 1);
    let few = places.command("ingest", &[&sizes[..], &["--batch", "7"]].concat()).output().unwrap();
    assert_refused(&few, "--only read,decode");
    let read = places.results("ingest", &[&sizes[..], &["--batch", "7", "--only", "read", "--threads", "1"]].concat());
    assert_eq!(cases(&read).len(), 1);
}

#[test]
fn an_epoch_is_read_for_simulated_accelerators() {
    needs!(MOUNTS);
    let places = Places::new();
    let sizes = [&["--large-files", "4", "--large-size", "4MB", "--small-files", "32", "--runs", "2"][..], &FILE_DATA];
    let results = places.results("epoch", &sizes.concat());
    let expected = ["cold epoch", "fed at 90 % utilisation", "simulated", "utilisation of these"];
    let expected: Vec<_> = expected
        .iter()
        .flat_map(|case| ["unet3d-like", "resnet-like"].map(|model| format!("{case}, {model}")))
        .collect();
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    assert_cases(&results, &["slow", "fast", "mount exact", "mount exact staged"], &expected);
    assert_rows(&results, 2);
    let figures = |unit: &str| -> Vec<f64> {
        let of = results["rows"].as_array().unwrap().iter().filter(|row| row["unit"] == unit);
        of.map(|row| row["median"].as_f64().unwrap()).collect()
    };
    assert!(figures("%").len() == 8 && figures("%").iter().all(|busy| *busy <= 100.0), "{results}");
    assert_eq!(figures("accelerators").len(), 16);
    assert_eq!(results["settings"][0], serde_json::json!(["unet3d-like", "4 of 4 MB"]));
}

#[test]
fn a_training_loop_is_measured_beside_saves_and_a_drain() {
    needs!(MOUNTS);
    let places = Places::new();
    let other = format!("other={}", places.path("other").display());
    let arguments = "--steps 5 --batch 2 --compute 1ms --every 2 --size 30kB --backlog 100kB --runs 2 --also";
    let arguments: Vec<_> = arguments.split(' ').chain([other.as_str()]).chain(FILE_DATA).collect();
    let mut results = places.results("interference", &arguments);
    let all = ["slow", "fast", "mount exact", "other"].map(str::to_owned).to_vec();
    let mount = vec!["mount exact".to_owned()];
    let expected = [
        ("training loop, nothing beside it", &all),
        ("training loop, waits for saves", &all),
        ("training loop, saves beside it", &all),
        ("training loop, a drain beside it", &mount),
        ("slowdown, waits for saves", &all),
        ("slowdown, saves beside it", &all),
        ("slowdown, a drain beside it", &mount),
        ("slowdown, between the waits for saves", &all),
        ("wait for a batch, nothing beside it", &all),
        ("wait for a batch, waits for saves", &all),
        ("wait for a batch, saves beside it", &all),
        ("wait for a batch, a drain beside it", &mount),
        ("wait for a save, synchronous", &all),
        ("wait for a save, beside the loop", &all),
        ("drained meanwhile", &mount),
    ];
    assert_eq!(cases(&results), expected.map(|(case, of)| (case.to_owned(), of.clone())));
    // A slowdown may be none, and so little may be drained between two looks.
    let may_be_none = |row: &Value| row["unit"] == "% slower" || row["case"] == "drained meanwhile";
    let rows = results["rows"].as_array_mut().unwrap();
    assert!(rows.iter().filter(|row| row["unit"] == "% slower").all(|row| row["median"].as_f64().unwrap() < 100.0));
    rows.retain(|row| !may_be_none(row));
    assert_rows(&results, 2);
    assert_eq!(results["settings"][3], serde_json::json!(["saves", "2 of 30 kB"]));
    assert_eq!(results["settings"][4], serde_json::json!(["saved before a drain", "4 of 30 kB"]));
}

#[test]
fn what_a_mount_costs_is_measured_with_everything_in_memory() {
    needs!(MOUNTS);
    let places = Places::new();
    let arguments = ["--size", "1MiB", "--files", "4", "--entries", "20", "--listing", "30", "--runs", "1"];
    let results = places.results("files", &arguments);
    let expected = [
        "sequential read, 4 KiB",
        "sequential read, 64 KiB",
        "sequential read, 1 MiB",
        "small files, 1 thread",
        "small files, 4 threads",
        "sequential read, 4 KiB, slow files",
        "sequential read, 64 KiB, slow files",
        "sequential read, 1 MiB, slow files",
        "small files, 1 thread, slow files",
        "small files, 4 threads, slow files",
        "sequential write, 4 KiB",
        "sequential write, 64 KiB",
        "sequential write, 1 MiB",
        "create and write 4 KiB",
        "stat, first",
        "stat, again",
        "rename",
        "unlink",
        "walk of a tree with stat",
        "listing of one directory",
    ];
    assert_cases(&results, &["slow", "fast", "mount exact"], &expected);
    assert_rows(&results, 1);
    assert_eq!(results["caches"], "hot");
}

#[test]
fn the_drain_is_measured_beside_a_paused_one_and_cp() {
    needs!(MOUNTS);
    let places = Places::new();
    let other = format!("other={}", places.path("other").display());
    let arguments = ["--entries", "20", "--files", "30", "--size", "10kB", "--runs", "2", "--also", &other];
    let results = places.results("drain", &arguments);
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let expected = [
        ("create and write 4 KiB", names(&["slow", "fast", "mount exact", "other", "mount exact paused"])),
        ("small files, until all are slow", names(&["mount exact", "cp", "cp x 8"])),
        ("large files, until all are slow", names(&["mount exact", "cp x 8"])),
    ];
    assert_eq!(cases(&results), expected.map(|(case, places)| (case.to_owned(), places)));
    assert_rows(&results, 2);
    assert_eq!(results["caches"], "hot");
}

#[test]
fn growth_is_measured_of_each_number_of_files() {
    needs!(MOUNTS);
    let places = Places::new();
    let results = places.results("growth", &["--files", "20,10", "--runs", "1"]);
    let expected = [
        "memory per file, looked up",
        "memory per file, looked up, not observed",
        "memory per file, staged",
        "memory per file, staged, not observed",
        "memory per file, pending",
        "memory per file, pending, not observed",
        "memory per file, staged and read",
        "walk with stat, nothing known",
        "stat, looked up",
        "stat, pending",
        "open and read, staged",
        "create and write, pending",
        "mount ready, nothing known",
        "mount ready, staged",
        "mount ready, pending, after a kill",
        "recovery",
    ];
    assert_cases(&results, &["10 files", "20 files"], &expected);
    for row in results["rows"].as_array().unwrap() {
        let run = row["runs"][0].as_f64().unwrap();
        // Of so few files a daemon may need no more memory than it had.
        assert!(run > 0.0 || row["unit"] == "B" && run == 0.0, "{row}");
    }
    let recovery = results["rows"].as_array().unwrap().last().unwrap();
    assert_eq!(recovery["ratios"][0]["to"], "10 files", "sizes are compared");
}

#[test]
fn results_go_to_files_by_their_endings_and_to_a_table() {
    needs!(MOUNTS);
    let places = Places::new();
    let out = tempfile::tempdir().unwrap();
    let mut command = places.command("checkpoint", &["--count", "1", "--size", "10kB", "--runs", "2"]);
    command.args(FILE_DATA);
    for ending in ["html", "svg", "md", "json", "txt"] {
        command.arg("--output").arg(out.path().join("results").with_extension(ending));
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = text(&output.stdout);
    assert!(table.contains("application blocked") && table.contains("mount exact"), "{table}");
    assert!(text(&output.stderr).contains("run 2 of 2: fast"), "progress: {output:?}");
    let read = |ending| fs::read_to_string(out.path().join("results").with_extension(ending)).unwrap();
    assert_eq!(read("txt"), table);
    assert!(read("html").starts_with("<!doctype html>") && read("svg").starts_with("<svg "));
    assert!(read("md").contains("| mount exact |"));
    let results: Value = serde_json::from_str(&read("json")).unwrap();
    assert_rows(&results, 2);
}

/// An ext4 on a loop device.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        let disk = Disk { dir: tempfile::tempdir().unwrap() };
        let image = disk.dir.path().join("image");
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        fs::create_dir(disk.root()).unwrap();
        let succeeds = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
        succeeds(Command::new("mkfs.ext4").args(["-q", "-J", "size=4"]).arg(&image));
        succeeds(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(disk.root()));
        disk
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        umount2(&self.root(), MntFlags::MNT_DETACH).ok();
    }
}

/// What is written to the slow tier's disk while a command runs is what its device is said to have written.
#[test]
fn a_trace_has_what_the_devices_moved() {
    needs!(MOUNTS, "mkfs.ext4");
    let (disk, places) = (Disk::new(), Places::new());
    let mut command = Command::new(PROGRAM);
    command.args(["trace", "--json", "--every", "20ms", "--fast"]).arg(places.path("fast"));
    command.arg("--slow").arg(disk.root()).args(["--", "dd", "if=/dev/zero", "bs=1M", "count=8", "conv=fsync"]);
    let output = command.arg(format!("of={}", disk.root().join("file").display())).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = results["devices"].as_array().unwrap();
    let slow = devices.iter().find(|course| course["tier"] == "slow").unwrap();
    assert!(slow["device"].as_str().unwrap().starts_with("loop"), "{slow}");
    assert_eq!(slow["device"], results["tiers"]["slow"]["device"]);
    let rates = slow["written"].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap());
    let written = rates.sum::<f64>() * slow["every"].as_f64().unwrap();
    // Not all of it is the file: there is a journal, too.
    assert!((8e6..64e6).contains(&written), "{written}");
    let failed = places.command("trace", &["--", "false"]).output().unwrap();
    assert!(failed.status.code() == Some(1) || text(&failed.stderr).contains("block device"), "{failed:?}");
}

#[test]
fn nothing_is_left_when_it_is_interrupted() {
    needs!(MOUNTS);
    for arguments in
        [&["--count", "1000", "--size", "1MB"][..], &["--count", "2", "--size", "10kB", "--interval", "1h"]]
    {
        let places = Places::new();
        let mut command = places.command("checkpoint", &[arguments, &FILE_DATA].concat());
        let bench = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        while !walk(&places.path("slow")).iter().any(|path| path.ends_with("ckpt-1")) {
            assert!(Instant::now() < deadline, "there is no checkpoint");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(bench.id().cast_signed()), Signal::SIGINT).unwrap();
        let output = bench.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("cleaning up"), "{said}");
        places.assert_clear();
    }
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.extend(walk(&entry.path()));
        found.push(entry.path());
    }
    found
}

#[track_caller]
fn assert_refused(output: &Output, why: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "one line: {said}");
    assert!(said.contains(why), "{why:?} is not in {said}");
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    needs!(MOUNTS);
    let places = Places::new();
    let (fast, other) = (places.path("fast").display().to_string(), places.path("other").display().to_string());
    let also = |name: &str| format!("{name}={other}");
    let refused = |bench: &str, arguments: &[&str], why: &str| {
        assert_refused(&places.command(bench, arguments).output().unwrap(), why);
        places.assert_clear();
    };
    refused("checkpoint", &["--runs", "0"], "--runs");
    refused("checkpoint", &["--size", "0"], "above 0");
    refused("checkpoint", &["--size", "10TB"], "--size or --count");
    refused("epoch", &["--large-size", "1MB"], "give 3177104 B or more");
    refused("blocks", &["--time", "0"], "write 1ms or more");
    refused("files", &["--io", "fast"], "passthrough");
    refused("files", &["--io", "exact,exact"], "each once");
    refused("tiers", &["--also", &also("slow")], "another name");
    refused("tiers", &["--also", &also("a"), "--also", &also("a")], "another name");
    refused("tiers", &["--also", &also("mount exact staged")], "another name");
    refused("drain", &["--also", &also("mount exact paused")], "another name");
    refused("drain", &["--also", &also("cp")], "another name");
    refused("tiers", &["--also", "/"], "NAME=DIR");
    refused("tiers", &["--also", "a=/no/such/directory"], "existing directory");
    refused("tiers", &["-o", "nonsense=1"], "nonsense");
    refused("tiers", &["-o", "io=cached"], "--io");
    refused("files", &["--caches", "file"], "leave it out");
    refused("drain", &["--caches", "file"], "leave it out");
    refused("metadata", &["--caches", "file"], "leave it out");
    refused("ingest", &["--threads", "2,2"], "each once");
    refused("ingest", &["--file-size", "1"], "2 KiB");
    refused("ingest", &["--compute", "1h"], "a minute");
    refused("interference", &["--steps", "10"], "lower --every");
    refused("epoch", &["--large-files", "3"], "--large-files");
    refused("growth", &["--files", "10,20,10"], "each once");
    refused("growth", &["-o", "nonsense=1"], "nonsense");
    refused("tiers", &["--output", "/tmp/results.pdf"], ".html");
    refused("tiers", &["--output", "/no/such/directory/results.md"], "existing directory");
    refused("trace", &["--every", "1us"], "10ms");
    fs::create_dir(places.path("other").join("dlio-fs-bench-x")).unwrap();
    let output = places.command("tiers", &["--also", &format!("a={other}/dlio-fs-bench-x")]).output().unwrap();
    assert_refused(&output, "another benchmark's");
    let mut same = Command::new(PROGRAM);
    same.args(["tiers", "--fast", &fast, "--slow", &fast]);
    assert_refused(&same.output().unwrap(), "faster storage");
}

#[test]
fn it_needs_a_dlio_fs_beside_it_or_in_path() {
    needs!(MOUNTS);
    let places = Places::new();
    let [alone, elsewhere] = ["alone", "elsewhere"].map(|name| places.path(name));
    [&alone, &elsewhere].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let program = alone.join("dlio-fs-bench");
    // A process that another test starts must not inherit it open for writing.
    assert!(Command::new("cp").arg(PROGRAM).arg(&program).status().unwrap().success());
    let run = || {
        let mut command = places.command("tiers", &[]);
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let sizes = ["--size", "1MiB", "--files", "2", "--runs", "1"];
        command = Command::new(&program);
        command.args(arguments).args(sizes).args(FILE_DATA).env("PATH", &elsewhere).env("TMPDIR", places.path("tmp"));
        command.output().unwrap()
    };
    let output = run();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("install it, or add its directory to PATH"), "{output:?}");
    symlink(Path::new(PROGRAM).with_file_name("dlio-fs"), elsewhere.join("dlio-fs")).unwrap();
    let output = run();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    places.assert_clear();
}

#[test]
fn it_is_installed_with_its_pages_by_the_program_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut install = Command::new(Path::new(PROGRAM).with_file_name("dlio-fs"));
    let output = install.args(["install", "--prefix", "/usr", "--root"]).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let placed = text(&output.stdout);
    for file in [
        "bin/dlio-fs-bench",
        "share/bash-completion/completions/dlio-fs-bench",
        "share/zsh/site-functions/_dlio-fs-bench",
        "share/fish/vendor_completions.d/dlio-fs-bench.fish",
        "share/man/man1/dlio-fs-bench.1",
        "share/man/man1/dlio-fs-bench-tiers.1",
    ] {
        assert!(placed.lines().any(|line| line == format!("/usr/{file}")), "{file} is not in {placed}");
    }
    let installed = Command::new(dir.path().join("usr/bin/dlio-fs-bench")).arg("--version").output().unwrap();
    assert_eq!(text(&installed.stdout), concat!("dlio-fs-bench ", env!("CARGO_PKG_VERSION"), "\n"));
    let page = fs::read_to_string(dir.path().join("usr/share/man/man1/dlio-fs-bench-tiers.1")).unwrap();
    assert!(page.contains("\\-\\-runs"), "{page}");
}
