//! Each call is traced as it was made, live and in files; and what nobody marks is found in them.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Cursor, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Elsewhere, Mount, Volume, pattern, until};
use crate::needs::{MOUNTS, needs};
use dlio_fs::error::Errno;
use dlio_fs::stats::counters::{Op, Tier};
use dlio_fs::stats::recording::{Recording, Source};
use dlio_fs::stats::traced::Traced;

fn recording(mount: &Mount) -> Recording {
    let bytes = fs::read(mount.at(".dlio/recording")).unwrap();
    Recording::read(vec![Box::new(Cursor::new(bytes))]).unwrap()
}

fn recorded(dir: &Path) -> Recording {
    read_latest(dir).unwrap()
}

fn read_latest(dir: &Path) -> Result<Recording, String> {
    let files = dlio_fs::mount::latest_recording(dir).unwrap();
    let sources = files.iter().map(|path| Box::new(File::open(path).unwrap()) as Box<dyn Source>);
    Recording::read(sources.collect())
}

/// Whether a mount has written calls by now. A file that was just made has no beginning yet, and cannot be read.
fn has_written(dir: &Path) -> bool {
    read_latest(dir).is_ok_and(|recording| recording.traced().0 > 0)
}

fn calls(recording: &mut Recording, wanted: impl Fn(&Traced) -> bool) -> Vec<Traced> {
    let mut found = Vec::new();
    recording.calls(Duration::ZERO, Duration::MAX, |traced| found.extend(Some(*traced).filter(&wanted)));
    found
}

fn json(mount: &Mount, name: &str) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(mount.at(".dlio").join(name)).unwrap()).unwrap()
}

#[test]
fn calls_are_traced_as_they_were_made() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| fs::write(slow.join("f"), pattern(100_000)).unwrap());
    let handles = [File::open(mount.at("f")).unwrap(), File::open(mount.at("f")).unwrap()];
    let made = [(0, 0_u64, 4096_usize), (1, 50_000, 10), (0, 4096, 100), (0, 99_990, 100), (1, 0, 100_000)];
    for (handle, offset, len) in made {
        handles[handle].read_at(&mut vec![0; len], offset).unwrap();
    }
    assert!(File::open(mount.at("nothing")).is_err());
    let mut found = recording(&mount);
    assert!(found.is_whole && found.flaws.is_empty(), "{:?}", found.flaws);
    let file = found.files.iter().find(|file| file.path == "/f").unwrap().ino;
    let reads = calls(&mut found, |traced| traced.call.op == Op::Read && traced.ino == file);
    let told: Vec<_> = reads.iter().map(|one| (one.call.offset, one.call.bytes)).collect();
    assert_eq!(told, [(0, 4096), (50_000, 10), (4096, 100), (99_990, 10), (0, 100_000)]);
    let [first, second] = [reads[0].handle, reads[1].handle];
    assert_ne!(first, second);
    assert_eq!(reads.iter().map(|one| one.handle).collect::<Vec<_>>(), [first, second, first, first, second]);
    assert!(reads.iter().all(|one| one.call.tier == Tier::Slow && one.call.took > Duration::ZERO));
    assert!(reads.windows(2).all(|two| two[1].call.began >= two[0].ended()), "one after the other");
    let process = found.meta.processes.iter().find(|process| process.number == u64::from(reads[0].process)).unwrap();
    assert_eq!(process.pid, std::process::id());
    let missed = calls(&mut found, |traced| traced.call.op == Op::Lookup && traced.call.errno.is_some());
    assert_eq!(missed.last().unwrap().call.errno, Some(Errno::ENOENT));
    assert_eq!(calls(&mut found, |traced| traced.call.op == Op::Open && traced.ino == file).len(), 2);
}

/// As `tail -f` in another terminal.
#[test]
fn the_lines_of_ops_can_be_followed() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("before", "x");
    let mut tail = Command::new("tail");
    tail.args(["-n", "+1", "-f"]).arg(mount.at(".dlio/ops")).stdout(Stdio::piped());
    let mut tail = tail.spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines().map(Result::unwrap);
    let written = lines.find(|line| line.contains(" write /before 0+1 ok ")).unwrap();
    let fields: Vec<&str> = written.split(' ').collect();
    assert_eq!((fields.len(), fields[2]), (8, "fast"), "{written}");
    assert!(fields[7].ends_with(']') && fields[7].contains(&format!("[{}/", std::process::id())), "{written}");
    mount.put("new file", pattern(5000));
    let written = lines.find(|line| line.contains(" write ")).unwrap();
    assert!(written.contains(" write /new%20file 0+5000 ok "), "{written}");
    assert!(fs::metadata(mount.at(".dlio/ops")).unwrap().size() > 0);
    tail.kill().unwrap();
    tail.wait().unwrap();
    until("nobody reads: no line is made", || {
        let before = fs::metadata(mount.at(".dlio/ops")).unwrap().size();
        mount.put("more", "x");
        fs::read(mount.at(".dlio/recording")).unwrap();
        fs::metadata(mount.at(".dlio/ops")).unwrap().size() == before
    });
}

#[test]
fn checkpoints_are_found_with_what_they_took() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let found = |step: usize| {
        let told = recording(&mount).meta.checkpoints;
        (told.len() == step && told[step - 1].drained.is_some()).then_some(told)
    };
    for step in 1..=2 {
        // Under no name that says that all is there: the next one would be taken for a part of it.
        mount.put("new", pattern(3 << 20));
        fs::rename(mount.at("new"), mount.at(format!("ckpt-{step}"))).unwrap();
        mount.put("index", "latest");
        until("it is over, and on the slow tier", || found(step).is_some());
    }
    for (at, one) in found(2).unwrap().iter().enumerate() {
        assert_eq!((one.number, one.files, one.bytes), (at as u64 + 1, 2, (3 << 20) + 6), "{one:?}");
        assert_eq!(one.path, format!("/ckpt-{}", at + 1));
        assert!(one.began < one.absorbed && Some(one.absorbed) < one.drained, "{one:?}");
    }
    let metrics = fs::read_to_string(mount.at(".dlio/metrics")).unwrap();
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap().split(' ').nth(1).unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("dliofs_checkpoints_total"), 2.0);
    // One detector: what waited is the same everywhere.
    let told = json(&mount, "checkpoints.json")["checkpoints"].as_array().unwrap().clone();
    let last = &found(2).unwrap()[1];
    assert_eq!((told.len(), &told[1]["absorbed"]), (2, &last.absorbed.into()), "{told:?}");
    assert!((value("dliofs_checkpoint_absorb_seconds") - (last.absorbed - last.began)).abs() < 1e-6);
    assert!(value("dliofs_checkpoint_at_risk_seconds") > 0.0 && value("dliofs_checkpoint_interval_seconds") > 0.0);
    let pace = json(&mount, "pace.json");
    let asked = ["newest", "newest_safe", "safe_in", "checkpoint_bytes"].map(|key| pace[key].clone());
    assert_eq!(asked, ["/ckpt-2".into(), "/ckpt-2".into(), 0.0.into(), told[1]["bytes"].clone()], "{pace}");
    let apart = told[1]["began"].as_f64().unwrap() - told[0]["began"].as_f64().unwrap();
    assert!((pace["interval"].as_f64().unwrap() - apart).abs() < 1e-6, "{pace}");
    assert!(pace["work_at_risk"].as_f64() > pace["safe_in"].as_f64(), "{pace}");
    assert!(value("dliofs_trace_calls_total") > 0.0 && value("dliofs_trace_dropped_total") == 0.0);
}

/// What a checkpoint took is what its program waited: from the open to the end of the fsync.
#[test]
fn a_checkpoint_takes_from_its_open_to_the_end_of_its_fsync() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| fs::write(slow.join("weights"), pattern(100)).unwrap());
    let mut file = File::options().write(true).open(mount.at("weights")).unwrap();
    let gathers = Duration::from_millis(300);
    std::thread::sleep(gathers);
    file.write_all(&pattern(8 << 20)).unwrap();
    file.sync_all().unwrap();
    let told = json(&mount, "checkpoints.json")["checkpoints"].as_array().unwrap().clone();
    let moment = |name: &str| told[0][name].as_f64().unwrap();
    assert!(moment("absorbed") >= moment("durable"), "{told:?}");
    assert!(moment("absorbed") - moment("began") >= gathers.as_secs_f64(), "{told:?}");
}

/// A log that was open all along made a checkpoint of a quarter of a second take 24, and six steps one.
#[test]
fn each_step_is_a_checkpoint_whatever_log_is_open_beside_it() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let mut log = File::create(mount.at("metrics.csv")).unwrap();
    writeln!(log, "step,loss").unwrap();
    // Longer than the pause that ends a checkpoint.
    std::thread::sleep(Duration::from_millis(3200));
    let mut waited = Vec::new();
    for step in 1..=3 {
        fs::create_dir(mount.at(format!("step-{step}"))).unwrap();
        let began = Instant::now();
        let mut file = File::create(mount.at(format!("step-{step}/weights"))).unwrap();
        file.write_all(&pattern(2 << 20)).unwrap();
        file.sync_all().unwrap();
        waited.push(began.elapsed().as_secs_f64());
        writeln!(log, "{step},0.5").unwrap();
    }
    drop(log);
    until("the last one is over", || recording(&mount).meta.checkpoints.len() == 3);
    let told = recording(&mount).meta.checkpoints;
    for ((one, step), waited) in told.iter().zip(1..).zip(waited) {
        assert_eq!((&*one.path, one.step, one.files, one.bytes), (&*format!("/step-{step}"), Some(step), 1, 2 << 20));
        assert!(one.absorbed - one.began <= waited, "the program waited {waited} s: {one:?}");
    }
}

#[test]
fn epochs_are_found_without_a_mark() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| {
        (0..60).for_each(|n| fs::write(slow.join(n.to_string()), pattern(100 + n)).unwrap());
    });
    for epoch in 0..3 {
        for n in 0..60 {
            fs::read(mount.at(((n * 7 + epoch * 13) % 60).to_string())).unwrap();
        }
    }
    let told = json(&mount, "windows.json")["epochs"].clone();
    let found: Vec<_> =
        told.as_array().unwrap().iter().map(|one| (one["files"].clone(), one["bytes_slow"].clone())).collect();
    let bytes: u64 = (0..60).map(|n| 100 + n).sum();
    assert_eq!(found, vec![(60.into(), bytes.into()); 3], "{told}");
    assert!(fs::read_to_string(mount.at(".dlio/windows")).unwrap().contains("3, not over"));
}

/// Half of the metadata calls in a report were of "(unknown)": those of directories.
#[test]
fn each_traced_call_has_a_name() {
    needs!(MOUNTS);
    let mount = Mount::new();
    fs::create_dir_all(mount.at("run/step-1")).unwrap();
    mount.put("run/step-1/weights", pattern(100));
    assert_eq!(fs::read_dir(mount.at("run")).unwrap().count(), 1);
    let mut found = recording(&mount);
    let named: HashSet<u64> = found.paths.keys().copied().chain(found.files.iter().map(|file| file.ino)).collect();
    let paths: Vec<_> = found.paths.values().chain(found.files.iter().map(|file| &file.path)).collect();
    assert!(paths.iter().any(|path| *path == "/run/step-1"), "{paths:?}");
    let all = calls(&mut found, |_| true);
    let unnamed: Vec<_> = all.iter().filter(|traced| !named.contains(&traced.ino)).collect();
    assert!(all.len() > 10 && unnamed.is_empty(), "{unnamed:?}");
}

/// A window's recording has its files and its calls, and no others.
#[test]
fn a_window_is_a_recording_of_its_own() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("before", pattern(10));
    mount.control("window start epoch 1");
    mount.put("inside", pattern(20));
    mount.control("window stop");
    mount.put("behind", pattern(30));
    let mut ask = Command::new("sh");
    ask.args(["-c", "exec 3<>.dlio/control; echo 'window recording epoch 1' >&3; cat <&3"]);
    let bytes = ask.current_dir(mount.root()).output().unwrap().stdout;
    let mut found = Recording::read(vec![Box::new(Cursor::new(bytes))]).unwrap();
    assert_eq!(found.meta.window.as_deref(), Some("epoch 1"));
    let files: Vec<_> = found.files.iter().map(|file| file.path.as_str()).filter(|path| *path != "/").collect();
    assert_eq!(files, ["/inside"]);
    let (from, until) = (Duration::from_secs_f64(found.meta.from), Duration::from_secs_f64(found.meta.until));
    let mut written = Vec::new();
    found.calls(from, until, |traced| written.extend((traced.call.op == Op::Write).then_some(traced.call.bytes)));
    assert_eq!(written, [20]);
    assert!(mount.control("window recording none").starts_with("error: no closed window none"));
}

/// Files of recordings stay below their limit, and the calls in them are the latest.
#[test]
fn recorded_files_rotate() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let options = [format!("trace={}", dir.path().display()), "trace_max=1MiB".to_owned()];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut mount = Mount::with(&options, |slow| fs::write(slow.join("f"), pattern(1 << 20)).unwrap());
    let file = File::open(mount.at("f")).unwrap();
    let mut at: u64 = 1;
    let made = 170_000;
    for _ in 0..made {
        // Offsets that nothing foretells.
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        file.read_at(&mut [0; 1], at >> 44).unwrap();
    }
    drop(file);
    mount.stop();
    let sizes: Vec<u64> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().size()).collect();
    // The last block, and the tables at the end, may go a little over.
    assert!(sizes.len() > 4 && sizes.iter().sum::<u64>() < (1 << 20) + (1 << 19), "{sizes:?}");
    let mut found = recorded(dir.path());
    assert!(found.is_whole && found.flaws.is_empty(), "{:?}", found.flaws);
    let reads = calls(&mut found, |traced| traced.call.op == Op::Read);
    assert!(reads.len() < made && reads.len() > made / 4, "{} of {made}", reads.len());
    assert_eq!(reads.last().unwrap().call.offset, at >> 44, "the latest are there");
    let row = found.files.iter().find(|file| file.path == "/f").unwrap();
    assert_eq!(row.record().get(dlio_fs::stats::record::Field::Calls(Op::Read)), made as u64, "the table has all");
    assert_eq!(found.meta.trace.unwritten, 0);
}

/// Where the trace finds no room it is told and counted, and nothing else is held up; what is there can be read.
#[test]
fn a_full_disk_for_the_trace_holds_up_nothing() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(16, 64);
    let dir = volume.root().join("trace");
    let option = format!("trace={}", dir.display());
    let mut mount = Mount::with(&[&option], |slow| fs::write(slow.join("f"), pattern(1000)).unwrap());
    assert_eq!(fs::read(mount.at("f")).unwrap().len(), 1000);
    until("a block is written", || has_written(&dir));
    volume.fill(0);
    let unwritten = || mount.stats_json()["found"]["trace"]["unwritten"].as_u64().unwrap();
    until("it is counted", || {
        mount.put("more", "x");
        unwritten() > 0
    });
    assert_eq!(mount.log().matches("the trace cannot be written").count(), 1, "{}", mount.log());
    assert!(mount.stats().contains("not in the files of trace"), "{}", mount.stats());
    mount.sync();
    mount.stop();
    let found = recorded(&dir);
    assert!(found.traced().0 > 0 && !found.flaws.is_empty(), "{found:?}");
}

/// What a killed daemon has written can be read, and says that it is not all.
#[test]
fn a_killed_daemon_leaves_its_recording() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let option = format!("trace={}", dir.path().display());
    let mut mount = Mount::with(&[&option], |slow| fs::write(slow.join("f"), pattern(1000)).unwrap());
    assert_eq!(fs::read(mount.at("f")).unwrap().len(), 1000);
    until("a block is written", || has_written(dir.path()));
    mount.kill();
    let mut found = recorded(dir.path());
    assert!(!found.is_whole && found.files.is_empty());
    let file = *found.paths.iter().find(|(_, path)| *path == "/f").unwrap().0;
    let read: u64 =
        calls(&mut found, |one| one.call.op == Op::Read && one.ino == file).iter().map(|one| one.call.bytes).sum();
    assert_eq!(read, 1000);
    assert_eq!(found.meta.mountpoint, mount.root().display().to_string());
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_before_the_mount_is_made() {
    needs!(MOUNTS);
    let refused = |directory: &dyn Fn(&Mount) -> String| {
        let mut mount = Mount::idle(Elsewhere::default(), &[]);
        mount.option(&format!("trace={}", directory(&mount)));
        mount.refused().1
    };
    assert!(refused(&|_| "here".to_owned()).contains("not an absolute path"));
    let inside = refused(&|mount| mount.root().join("t").display().to_string());
    assert!(inside.contains("it is inside the mount"), "{inside}");
    assert!(refused(&|_| "/proc/none".to_owned()).contains("/proc/none"));
}

/// A loader that reads each file once more to find its end is told so, live and of a recording; one that does not is told nothing.
#[test]
fn advice_is_given_where_there_is_something_to_say() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| fs::write(slow.join("f"), pattern(300_000)).unwrap());
    let advice = || fs::read_to_string(mount.at(".dlio/advice")).unwrap();
    assert!(!advice().contains("find the end of a file"), "{}", advice());
    let file = File::open(mount.at("f")).unwrap();
    for _ in 0..1_500 {
        file.read_at(&mut [0; 20_000], 0).unwrap();
        file.read_at(&mut [0; 20_000], 300_000).unwrap();
    }
    assert!(advice().contains("1,500 of 3,000 reads found nothing but the end"), "{}", advice());
    let program = env!("CARGO_BIN_EXE_dlio-fs");
    let said = Command::new(program).arg("advise").arg(mount.root()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim_end(), advice().trim_end());
}

/// One page of a mount, and of what a killed daemon has left.
#[test]
fn a_report_is_made_of_a_mount_and_of_recorded_files() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let option = format!("trace={}", dir.path().display());
    let mut mount = Mount::with(&[&option], |slow| fs::write(slow.join("some data"), pattern(54_321)).unwrap());
    assert_eq!(fs::read(mount.at("some data")).unwrap().len(), 54_321);
    let report = |source: &Path, output: &str| {
        let output = dir.path().join(output);
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        let done = command.arg("report").arg(source).arg("-o").arg(&output).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        fs::read_to_string(output).unwrap()
    };
    let page = report(&mount.root(), "report.html");
    assert!(page.starts_with("<!doctype html>") && page.contains("/some data") && !page.contains("http://"));
    until("a block is written", || has_written(dir.path()));
    mount.kill();
    let told: serde_json::Value = serde_json::from_str(&report(dir.path(), "left.json")).unwrap();
    assert_eq!((&told["moved"]["bytes_read"], &told["completeness"]["is_whole"]), (&54_321.into(), &false.into()));
    assert_eq!(told["top"].as_array().unwrap().iter().filter(|row| row["path"] == "/some data").count(), 1);
}

/// The test that users run, which says what each I/O path shows.
#[test]
fn the_exact_path_sees_what_was_done() {
    needs!(MOUNTS);
    let output =
        Command::new(env!("CARGO_BIN_EXE_dlio-fs")).args(["doctor", "--visibility", "--json"]).output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let paths = told["io_paths"].as_array().unwrap();
    assert_eq!(
        paths.iter().map(|path| path["io"].as_str().unwrap()).collect::<Vec<_>>(),
        ["exact", "cached", "passthrough"]
    );
    for step in paths[0]["steps"].as_array().unwrap() {
        assert!(step["done"] == step["seen"] || step["exactly"] == false, "{step}");
        // However a read is split, no byte of it is lost.
        assert!(step["done"]["bytes"] == step["seen"]["bytes"], "{step}");
    }
    let reads = |path: usize| paths[path]["steps"][1]["seen"]["calls"].as_u64().unwrap();
    assert!(reads(1) < 10, "read-ahead answers some of them: {told}");
    assert!(output.status.success(), "{output:?}");
}
