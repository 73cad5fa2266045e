//! Three daemons over one slow directory that keep one order.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlio_fs::tiers::Watched;
use dlio_fs::tiers::disk::Dir;
use dlio_fs::tiers::disk::os::OsDir;
use nix::sys::signal::Signal;

use crate::common::gluster::Gluster;
use crate::common::{Elsewhere, Mount, Relay, until};
use crate::needs::{MOUNTS, needs};

/// One clock, so it is never off.
const FLEET: [&str; 4] = ["fleet=job", "fleet_size=3", "clock_error=2ms", "settle=0s"];
const SHARD: usize = 300_000;

fn member(slow: &Path, options: &[&str]) -> Mount {
    let elsewhere = Elsewhere { slow: Some(slow.to_owned()), ..Elsewhere::default() };
    Mount::idle(elsewhere, &[&FLEET, options].concat())
}

/// Three members; the last one drains so slowly that its shards come long after the others'.
fn fleet_over(slow: [&Path; 3]) -> [Mount; 3] {
    let mut members = [member(slow[0], &[]), member(slow[1], &[]), member(slow[2], &["drain_bandwidth=1MiB"])];
    members.iter_mut().for_each(Mount::start);
    members
}

fn fleet(slow: &Path) -> [Mount; 3] {
    fleet_over([slow; 3])
}

fn shard(slow: &Path, step: u32, rank: usize) -> PathBuf {
    slow.join(format!("step-{step}-rank-{rank}"))
}

/// As `torch.distributed.checkpoint` does it: each rank its shard, a barrier, and then the first one what makes it whole.
fn save(members: &[Mount; 3], step: u32) {
    thread::scope(|scope| {
        for (rank, member) in members.iter().enumerate() {
            scope.spawn(move || fs::write(shard(&member.root(), step, rank), vec![step as u8; SHARD]).unwrap());
        }
    });
    let first = &members[0];
    first.put("metadata.tmp", step.to_string());
    fs::rename(first.at("metadata.tmp"), first.at(format!("metadata-{step}"))).unwrap();
    first.put("latest.tmp", step.to_string());
    fs::rename(first.at("latest.tmp"), first.at("latest")).unwrap();
}

/// Looks at the slow directory all the time until it is told to end: what was there too early.
fn watch(slow: &Path, ends: &AtomicBool) -> BTreeSet<String> {
    let mut early = BTreeSet::new();
    while !ends.load(Ordering::Acquire) {
        // The marker first: what comes meanwhile is no fault.
        let names = fs::read_dir(slow).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let steps: Vec<u32> = names.filter_map(|name| name.strip_prefix("metadata-")?.parse().ok()).collect();
        let latest = fs::read_to_string(slow.join("latest")).ok().and_then(|text| text.parse().ok());
        for step in steps.into_iter().chain(latest) {
            let is_whole = |rank| fs::metadata(shard(slow, step, rank)).is_ok_and(|file| file.len() == SHARD as u64);
            early.extend((0..3).filter(|rank| !is_whole(*rank)).map(|rank| format!("step {step} without rank {rank}")));
        }
        thread::sleep(Duration::from_millis(2));
    }
    early
}

/// Without a fleet three of four markers came early.
#[test]
fn no_marker_comes_before_the_shards_of_other_members() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let slow = dir.path();
    let mut members = fleet(slow);
    let ends = AtomicBool::new(false);
    let early = thread::scope(|scope| {
        let watch = scope.spawn(|| watch(slow, &ends));
        for step in 0..4 {
            save(&members, step);
            if step == 1 {
                // What it has pending stays, and the others wait for it.
                members[2].kill();
                members[2].start();
            }
        }
        members.iter().for_each(Mount::sync);
        ends.store(true, Ordering::Release);
        watch.join().unwrap()
    });
    assert!(early.is_empty(), "{early:?}");
    assert_eq!(fs::read_to_string(slow.join("latest")).unwrap(), "3");
}

/// How a framework lays out a checkpoint that all ranks save, and how it says which one is whole.
struct Layout {
    name: &'static str,
    /// A rank's part of a step.
    part: fn(u32, usize) -> String,
    /// Written by the first rank once all have saved, in place.
    marker: fn(u32) -> String,
    text: fn(u32) -> String,
    /// Of a marker's text: the step that it speaks of.
    step: fn(&str) -> Option<u32>,
    /// The first rank removes the step before, which others may not have published yet.
    rotates: bool,
}

const LAYOUTS: [Layout; 3] = [
    Layout {
        name: "transformers",
        part: |step, rank| format!("checkpoint-{step}/rng_state_{rank}.pth"),
        marker: |step| format!("checkpoint-{step}/trainer_state.json"),
        text: |step| format!("{{\"global_step\": {step}}}"),
        step: |text| text.strip_prefix("{\"global_step\": ")?.strip_suffix('}')?.parse().ok(),
        rotates: true,
    },
    Layout {
        name: "megatron",
        part: |step, rank| format!("iter_{step:07}/mp_rank_{rank:02}/model_optim_rng.pt"),
        marker: |_| "latest_checkpointed_iteration.txt".to_owned(),
        text: |step| step.to_string(),
        step: |text| text.parse().ok(),
        rotates: false,
    },
    Layout {
        name: "deepspeed",
        part: |step, rank| format!("global_step{step}/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"),
        marker: |_| "latest".to_owned(),
        text: |step| format!("global_step{step}"),
        step: |text| text.strip_prefix("global_step")?.parse().ok(),
        rotates: true,
    },
];
const PART: usize = 100_000;

impl Layout {
    /// All ranks at once, each of which makes the directories that it needs.
    fn save(&self, members: &[Mount; 3], step: u32) {
        thread::scope(|scope| {
            for (rank, member) in members.iter().enumerate() {
                let path = member.at(self.name).join((self.part)(step, rank));
                scope.spawn(move || {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(path, vec![step as u8; PART]).unwrap();
                });
            }
        });
        fs::write(members[0].at(self.name).join((self.marker)(step)), (self.text)(step)).unwrap();
        if self.rotates && step > 1 {
            let old = members[0].at(self.name).join((self.part)(step - 1, 0));
            fs::remove_dir_all(old.parent().unwrap()).unwrap();
        }
    }

    /// What a marker on the slow tree says is there and is not.
    fn early(&self, slow: &Path, steps: u32) -> BTreeSet<String> {
        let top = slow.join(self.name);
        let marked = (1..=steps).map(|step| top.join((self.marker)(step)));
        // An empty one says nothing: a shell's `>` and Python's open() make it so first.
        let told = marked.filter_map(|marker| Some(((self.step)(&fs::read_to_string(&marker).ok()?)?, marker)));
        let mut early = BTreeSet::new();
        for (step, marker) in told {
            for rank in 0..3 {
                let part = fs::metadata(top.join((self.part)(step, rank)));
                let is_whole = part.is_ok_and(|part| part.len() == PART as u64);
                // Unless the step is being removed, which begins when there is a newer one.
                let says = |marker: &Path| (self.step)(&fs::read_to_string(marker).ok()?);
                let is_newest = says(&marker) == Some(step) && says(&top.join((self.marker)(step + 1))) <= Some(step);
                if !is_whole && is_newest {
                    early.insert(format!("{}: step {step} without rank {rank}", self.name));
                }
            }
        }
        early
    }
}

/// Directories that all ranks make, markers written in place, rotation by the first rank.
#[test]
fn what_a_framework_s_marker_speaks_of_is_there_before_it() {
    needs!(MOUNTS);
    const STEPS: u32 = 3;
    let dir = tempfile::tempdir().unwrap();
    let slow = dir.path();
    let members = fleet(slow);
    let ends = AtomicBool::new(false);
    let early = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut early = BTreeSet::new();
            while !ends.load(Ordering::Acquire) {
                LAYOUTS.iter().for_each(|layout| early.extend(layout.early(slow, STEPS)));
                thread::sleep(Duration::from_millis(2));
            }
            early
        });
        for step in 1..=STEPS {
            LAYOUTS.iter().for_each(|layout| layout.save(&members, step));
        }
        members.iter().for_each(Mount::sync);
        ends.store(true, Ordering::Release);
        watch.join().unwrap()
    });
    assert!(early.is_empty(), "{early:?}");
    for layout in &LAYOUTS {
        let marker = slow.join(layout.name).join((layout.marker)(STEPS));
        assert_eq!(fs::read_to_string(&marker).unwrap(), (layout.text)(STEPS), "{}", layout.name);
        let is_there = |step| slow.join(layout.name).join((layout.part)(step, 2)).exists();
        assert_eq!((is_there(STEPS), is_there(1)), (true, !layout.rotates), "{}", layout.name);
    }
}

/// Each member has a client of its own, as on a machine of its own, and one of three bricks is away for a while.
#[test]
#[ignore = "needs root, /dev/fuse and GlusterFS: cargo xtask test gluster"]
fn over_glusterfs_no_marker_comes_before_the_shards_of_other_members() {
    needs!(MOUNTS, "glusterd", "ip");
    let mut below = Gluster::new();
    let slow = [below.tier(), below.elsewhere(), below.elsewhere()];
    let observer = below.elsewhere();
    let mut members = fleet_over([0, 1, 2].map(|member| &*slow[member]));
    let ends = AtomicBool::new(false);
    let early = thread::scope(|scope| {
        let watch = scope.spawn(|| watch(&observer, &ends));
        for step in 0..8 {
            save(&members, step);
            match step {
                2 => below.kill_brick(Gluster::BRICKS[1]),
                4 => {
                    members[1].kill();
                    members[1].start();
                }
                6 => below.start_bricks(),
                _ => {}
            }
        }
        members.iter().for_each(Mount::sync);
        ends.store(true, Ordering::Release);
        watch.join().unwrap()
    });
    assert!(early.is_empty(), "{early:?}");
    assert_eq!(fs::read_to_string(observer.join("latest")).unwrap(), "7");
}

#[test]
fn a_member_that_is_not_there_is_named_and_one_that_has_left_is_not_waited_for() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let slowly = &["drain_bandwidth=1MiB"];
    let mut members = [member(dir.path(), &[]), member(dir.path(), &[]), member(dir.path(), slowly)];
    members[0].start();
    members[1].start();
    members[0].put("first", "1");
    let held = "waits for member 2, which has not been mounted yet";
    until("it says for whom it waits", || members[0].verdict().contains(held));
    assert!(!dir.path().join("first").exists());
    members[2].start();
    members[0].sync();
    members[2].stop();
    members[0].put("second", "2");
    members[0].sync();
    // Whoever comes back is waited for again.
    members[2].start();
    members[2].put("third", vec![3; 1 << 20]);
    members[0].put("fourth", "4");
    members[0].sync();
    assert!(dir.path().join("third").exists(), "it takes a second to copy");
}

/// As some programs do it: every rank writes the marker, and the first one removes the checkpoint before.
#[test]
fn one_name_for_all_is_one_file_and_a_rotation_removes_what_others_had_pending() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let slow = dir.path();
    let members = fleet(slow);
    fs::create_dir(members[0].at("step-0")).unwrap();
    members[0].sync();
    until("all see it", || members.iter().all(|member| member.at("step-0").exists()));
    // The first one must not see what the others write.
    members[1..].iter().for_each(|member| assert!(member.control("pause").starts_with("ok")));
    for (rank, member) in members.iter().enumerate() {
        member.put(&format!("step-0/rank-{rank}"), vec![0; SHARD]);
    }
    fs::remove_dir_all(members[0].at("step-0")).unwrap();
    members[1..].iter().for_each(|member| assert!(member.control("resume").starts_with("ok")));
    for (rank, member) in members.iter().enumerate() {
        member.put("latest.tmp", format!("step-1 by {rank}"));
        fs::rename(member.at("latest.tmp"), member.at("latest")).unwrap();
    }
    members.iter().for_each(Mount::sync);
    let names = fs::read_dir(slow).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.filter(|name| name != ".dlio-fs").collect();
    assert_eq!(names, BTreeSet::from(["latest".to_owned()]));
    let text = fs::read_to_string(slow.join("latest")).unwrap();
    assert!(text.starts_with("step-1 by "), "{text}");
    let replaced: u64 =
        members.iter().map(|member| member.stats_json()["exceptions"]["replaced"].as_u64().unwrap()).sum();
    assert_eq!(replaced, 0, "what was there before is removed, and replaced");
    assert!(!slow.join(".dlio-fs/saved").exists());
}

/// In a directory of the reader, for which it would ask the slow tier, and the kernel the reader, again after an hour.
#[test]
fn what_one_member_publishes_the_other_sees_soon() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let late = ["fleet_size=2", "revalidate=1h", "attribute_lifetime=1h"];
    let mut members = [0, 1].map(|_| member(dir.path(), &late));
    members.iter_mut().for_each(Mount::start);
    let [writer, reader] = &members;
    let names = |mount: &Mount| -> BTreeSet<String> {
        let entries = fs::read_dir(mount.at("d")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    fs::create_dir_all(reader.at("d/dir")).unwrap();
    for file in ["d/old", "d/gone", "d/moved"] {
        reader.put(file, "first");
    }
    reader.sync();
    let before = set(&["dir", "gone", "moved", "old"]);
    until("the writer has it", || writer.at("d").exists() && names(writer) == before);
    assert_eq!((names(reader), reader.at("d/new").exists()), (before.clone(), false));
    assert_eq!(fs::read(reader.at("d/old")).unwrap(), b"first");

    writer.put("d/new", "new");
    writer.put("d/old.tmp", "the second");
    fs::rename(writer.at("d/old.tmp"), writer.at("d/old")).unwrap();
    fs::remove_file(writer.at("d/gone")).unwrap();
    fs::rename(writer.at("d/moved"), writer.at("d/away")).unwrap();
    fs::remove_dir(writer.at("d/dir")).unwrap();
    writer.sync();
    let after = set(&["away", "new", "old"]);
    let is = |name: &str| fs::symlink_metadata(reader.at(format!("d/{name}"))).ok().map(|file| file.len());
    until("what is new is found", || is("new") == Some(3) && is("away") == Some(5));
    until("what is gone is not", || ["gone", "moved", "dir"].iter().all(|name| is(name).is_none()));
    until("a replaced file is the new one", || is("old") == Some(10));
    until("the listing has what is there", || names(reader) == after);
    assert_eq!(fs::read(reader.at("d/old")).unwrap(), b"the second");
    assert_eq!(before.union(&after).filter(|name| is(name).is_some()).cloned().collect::<BTreeSet<_>>(), after);
}

/// Alone in its fleet, a mount waits for nobody but the clock.
#[test]
fn what_logs_a_change_is_answered_once_no_clock_is_behind_it() {
    needs!(MOUNTS);
    let mount = Mount::with(&["fleet=one", "fleet_size=1", "clock_error=100ms"], |_| ());
    let file = OpenOptions::new().create(true).append(true).open(mount.at("log")).unwrap();
    let synchronous =
        OpenOptions::new().create(true).write(true).custom_flags(nix::libc::O_SYNC).open(mount.at("status")).unwrap();
    (&file).write_all(b"line").unwrap();
    let calls: [(&str, &dyn Fn()); 5] = [
        ("mkdir", &|| fs::create_dir(mount.at("d")).unwrap()),
        ("fsync", &|| file.sync_all().unwrap()),
        ("rename", &|| fs::rename(mount.at("log"), mount.at("d/log")).unwrap()),
        ("a synchronous write", &|| (&synchronous).write_all(b"50 %").unwrap()),
        ("setxattr", &|| xattr::set(mount.at("d"), "user.a", b"b").unwrap()),
    ];
    for (what, call) in calls {
        let began = Instant::now();
        call();
        assert!(began.elapsed() >= Duration::from_millis(200), "{what} took {:?}", began.elapsed());
    }
    mount.sync();
}

/// `dlio-fs` with these arguments: its exit code, and what it says.
fn told(arguments: &[&str], path: &Path) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
    let output = command.args(arguments).arg(path).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

/// Through a member, and where there is no mount.
#[test]
fn the_verdict_about_a_fleet_is_safe_only_if_every_member_is() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let mut members = [member(dir.path(), &[]), member(dir.path(), &[]), member(dir.path(), &[])];
    members[0].start();
    members[1].start();
    let outside = |word: &str, code: i32| {
        let (was, said) = told(&["status", "--fleet", "job", "--slow"], dir.path());
        assert!(was == code && said.contains(word), "{was}: {said}");
        said
    };
    let inside = |member: &Mount, word: &str, code: i32| {
        let (was, said) = told(&["status", "--fleet"], &member.root());
        assert!(was == code && said.contains(word), "{was}: {said}");
    };
    outside("HELD: waits for member 2, which has not been mounted yet", 4);
    inside(&members[0], "HELD: waits for member 2, which has not been mounted yet", 4);
    members[2].start();
    outside("SAFE as of", 0);
    inside(&members[0], "SAFE as of", 0);
    // One that has nothing pending itself says what another one has.
    members[1].control("pause");
    members[1].put("pending", "1");
    outside("waits for member 1 on", 3);
    inside(&members[0], "waits for member 1 on", 3);
    let text = fs::read_to_string(members[2].at(".dlio/fleet")).unwrap();
    assert!(text.contains("fleet job, 3 members, clocks within 2ms"), "{text}");
    members[1].control("resume");
    members[2].stop();
    members[1].sync();
    let text = outside("SAFE as of", 0);
    assert!(text.contains(" left ") && !text.contains("NOT"), "{text}");
    inside(&members[0], "SAFE as of", 0);
}

/// Asked on a member with nothing pending, and where there is no mount.
#[test]
fn a_sync_of_the_fleet_waits_for_what_other_members_have_pending() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let slow = dir.path();
    let members = fleet(slow);
    let root = members[0].root();
    let questions = [(vec!["sync", "--fleet"], &*root), (vec!["sync", "--fleet", "job", "--slow"], slow)];
    for (number, (arguments, path)) in questions.into_iter().enumerate() {
        members[1].control("pause");
        members[1].put(&number.to_string(), "pending");
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        let mut sync = command.args(arguments).arg(path).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(sync.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("waits for member 1 on")));
        assert!(sync.try_wait().unwrap().is_none() && !slow.join(number.to_string()).exists());
        members[1].control("resume");
        assert_eq!((sync.wait().unwrap().code(), slow.join(number.to_string()).exists()), (Some(0), true));
    }
    // What the asked one has itself.
    members[2].put("ours", vec![2; 1 << 20]);
    let (code, said) = told(&["sync", "--fleet"], &members[2].root());
    assert_eq!((code, fs::metadata(slow.join("ours")).unwrap().len()), (0, 1 << 20), "{said}");
}

/// The marker is what is named, on a member that wrote nothing of the checkpoint; and where there is no mount.
#[test]
fn a_checkpoint_is_waited_for_until_it_is_whole() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let slow = dir.path();
    let quick = &["revalidate=1s"];
    let mut members = [member(slow, &[]), member(slow, &[]), member(slow, quick)];
    members.iter_mut().for_each(Mount::start);
    members[1].control("pause");
    // One that sees the marker as soon as it is made, and one that sees it once it is on the slow tier.
    let markers = [&members[0], &members[2]].map(|member| member.at("step/.metadata"));
    let mut waiting = markers.each_ref().map(|marker| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        let mut waiting = command.arg("wait").arg(marker).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("which does not exist")));
        (waiting, lines)
    });
    members[1].put("shard", "1");
    fs::create_dir(members[0].at("step")).unwrap();
    members[0].put("step/.metadata", "all");
    // Meanwhile all members have renewed their leases.
    let (code, said) = told(&["wait", "--timeout", "3s"], &markers[0]);
    assert!(code == 3 && said.contains("waits for member"), "{said}");
    assert!(waiting.iter_mut().all(|(waiting, _)| waiting.try_wait().unwrap().is_none()));
    members[1].control("resume");
    assert!(waiting.iter_mut().all(|(waiting, _)| waiting.wait().unwrap().success()));
    assert!(slow.join("shard").exists() && slow.join("step/.metadata").exists() && markers[1].exists());
    let outside = ["wait", "--fleet", "job", "--slow", slow.to_str().unwrap()];
    assert_eq!(told(&outside, &slow.join("step")).0, 0);
    let of_step = || told(&["wait", "--step", "700", "--timeout", "0"], &members[0].root());
    fs::create_dir(members[0].at("step-700")).unwrap();
    let (code, said) = of_step();
    assert!(code == 1 && said.contains("a whole checkpoint of step 700 in "), "{said}");
    members[0].put("step-700/.metadata", "all");
    assert_eq!(told(&["wait", "--step", "700"], &members[0].root()).0, 0);
    assert!(slow.join("step-700/.metadata").exists());
    let (code, said) = told(&["wait", "--timeout", "0"], &members[0].at("none"));
    assert!(code == 1 && said.contains("none does not exist"), "{said}");
    // Not for ever where there is no mount any more.
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
    let mut waiting = command.arg("wait").arg(members[0].at("none")).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("which does not exist")));
    members[0].stop();
    assert!(lines.any(|line| line.contains("is not on a dlio-fs mount")));
    assert_eq!(waiting.wait().unwrap().code(), Some(1));
}

#[test]
fn a_question_about_no_fleet_is_refused() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let (code, said) = told(&["status", "--fleet"], &mount.root());
    assert!(code == 1 && said.contains("is in no fleet"), "{said}");
    let (code, said) = told(&["status", "--fleet", "job", "--slow"], &mount.slow());
    assert!(code == 2 && said.contains("the slow tier has no fleet job: it has none; name a fleet"), "{said}");
    let (code, said) = told(&["status", "--fleet"], Path::new("job"));
    assert!(code == 2 && said.contains("add --slow DIR"), "{said}");
    assert!(fs::metadata(mount.at(".dlio/fleet")).is_err());
}

/// What it finds: `src/cli/doctor/fleet.rs`.
#[test]
fn a_doctor_looks_at_a_fleet_from_one_machine() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let mut first = member(dir.path(), &["fleet_size=2"]);
    first.start();
    let (code, said) = told(&["doctor", "--fleet"], &first.root());
    assert!(code == 0 && said.contains("1 of 2 members write leases; never mounted: 1"), "{said}");
    assert!(said.contains("about 8 requests a second with nothing pending, and 120 with"), "{said}");
    assert!(said.contains("no fast tier is mounted twice"), "{said}");
    let (code, said) = told(&["doctor", "--fleet", "none", "--slow"], dir.path());
    assert!(code == 2 && said.contains("the slow tier has no fleet none: it has job"), "{said}");
    assert_eq!(told(&["doctor", "--fleet"], Path::new("job")).0, 2);
}

/// What is done with one that is silent, and with one that wakes up again: `tests/model/fleet.rs`.
#[test]
fn only_a_silent_member_is_forgotten() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let mut members = fleet(dir.path());
    let forget = |fleet: &str, slot: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlio-fs"));
        let output = command.args(["forget", fleet, slot, "--slow"]).arg(dir.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = forget("job", "2");
    assert!(code == Some(1) && said.contains("is alive; unmount it there"), "{said}");
    members[2].stop();
    let (code, said) = told(&["forget", "job", "--all", "--slow"], dir.path());
    let alive = said.matches("is alive; unmount it there").count();
    assert!(code == 0 && alive == 2 && said.contains("no member of fleet job was forgotten"), "{said}");
    let refused = [
        ("job", "2", "has left with nothing pending"),
        ("job", "7", "was never mounted"),
        ("ajob", "0", "no fleet ajob: it has job;"),
    ];
    for (fleet, slot, why) in refused {
        let (code, said) = forget(fleet, slot);
        assert!(code == Some(2) && said.contains(why), "{said}");
    }
}

/// The minute in which the member is watched is `dlio-fs forget`'s own; what comes then is done here without it.
#[test]
fn a_copy_at_the_partner_takes_the_place_of_a_lost_node() {
    needs!(MOUNTS);
    let (slow, partner) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copies = format!("partner_dir={}", partner.path().display());
    let mut members = [member(slow.path(), &["fleet_size=2", &copies]), member(slow.path(), &["fleet_size=2"])];
    members.iter_mut().for_each(Mount::start);
    let figure = |member: &Mount, key: &str| member.stats_json()["partner"][key].clone();
    let is_safe = |member: &Mount| figure(member, "safe_if_one_node_is_lost") == true;
    until("there is a copy", || figure(&members[0], "is_good") == true);
    assert_eq!(members[1].stats_json()["partner"], serde_json::Value::Null);
    members[0].put("before", "published");
    members[0].sync();
    members[0].control("pause");
    fs::create_dir(members[0].at("step")).unwrap();
    let open = members[0].put("step/open", "half");
    let file = OpenOptions::new().append(true).open(&open).unwrap();
    (&file).write_all(b" a file").unwrap();
    assert!(!is_safe(&members[0]) && members[0].stats().contains("NOT SAFE IF ONE NODE IS LOST"));
    drop(file);
    for rank in 0..3 {
        members[0].put(&format!("step/rank-{rank}"), vec![rank; SHARD]);
    }
    until("all of it is in the copy", || is_safe(&members[0]));
    let text = members[0].stats();
    assert!(text.contains("\npartner      SAFE IF ONE NODE IS LOST: ") && text.starts_with("NOT SAFE"), "{text}");
    let metrics = fs::read_to_string(members[0].at(".dlio/metrics")).unwrap();
    assert!(metrics.contains("dliofs_partner_safe 1\n") && metrics.contains("dliofs_safe 0\n"));
    members[1].put("latest", "step");
    // What is not in the copy is lost with the node.
    members[0].kill();
    let tier: Arc<dyn Dir> = Arc::new(OsDir::open(slow.path()).unwrap());
    let watched = Watched::begin(&*tier, "job", 0).unwrap();
    let copy = partner.path().join(watched.id());
    let mut at_copy = Mount::idle(
        Elsewhere { fast: Some(copy), slow: Some(slow.path().to_owned()) },
        &[&FLEET[..], &["fleet_size=2"]].concat(),
    );
    let (code, said) = at_copy.refused();
    assert!(code != Some(0) && said.contains("run `dlio-fs forget FLEET MEMBER"), "{said}");
    let other = tempfile::tempdir().unwrap();
    let of_other = ["forget", "job", "0", "--slow", slow.path().to_str().unwrap(), "--partner"];
    let (code, said) = told(&of_other, other.path());
    assert!(code == 1 && said.contains(&watched.id()), "{said}");
    // Nor a copy that somebody else can change.
    let its_dir = partner.path().join(watched.id());
    std::os::unix::fs::chown(&its_dir, Some(1001), None).unwrap();
    let (code, said) = told(&of_other, partner.path());
    assert!(code == 2 && said.contains("belongs to user 1001"), "{said}");
    std::os::unix::fs::chown(&its_dir, Some(0), None).unwrap();
    let copies: Arc<dyn Dir> = Arc::new(OsDir::open(partner.path()).unwrap());
    watched.hand_over(&tier, &copies).unwrap();
    let verdict = || told(&["status", "--fleet", "job", "--slow"], slow.path());
    assert!(!slow.path().join("latest").exists() && !slow.path().join("step").exists());
    at_copy.start();
    at_copy.sync();
    members[1].sync();
    let body = |name: &str| fs::read(slow.path().join(name)).unwrap();
    assert_eq!([body("before"), body("step/open"), body("latest")], [&b"published"[..], b"half a file", b"step"]);
    (0..3).for_each(|rank| assert!(body(&format!("step/rank-{rank}")) == vec![rank; SHARD], "{rank}"));
    let (code, said) = members[0].refused();
    assert!(code != Some(0) && said.contains("a copy of this fast tier has taken its place"), "{said}");
    // Nobody knows what the node did in its last moments.
    let (code, said) = verdict();
    assert!(code == 3 && said.contains("on the node that member 0 on"), "{said}");
    assert_eq!(told(&["accept-loss", "job", "--slow"], slow.path()).0, 0);
    assert_eq!(verdict().0, 0);
}

/// A spare node took the place of a lost one: from then on the verdict was SAFE, and `wait` called a checkpoint whole that
/// lacked the lost node's part.
#[test]
fn a_checkpoint_that_lacks_a_lost_part_is_not_called_whole() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let slow = dir.path();
    let mut members = [0, 1, 2].map(|_| member(slow, &["fleet_size=2"]));
    members[..2].iter_mut().for_each(Mount::start);
    let outside = ["wait", "--fleet", "job", "--slow", slow.to_str().unwrap(), "--timeout", "120s"];
    let marker = |step: u32| slow.join(format!("step-{step}/.metadata"));
    let save = |step: u32, ranks: &[&Mount]| {
        for (rank, member) in ranks.iter().enumerate() {
            fs::create_dir_all(member.at(format!("step-{step}"))).unwrap();
            member.put(&format!("step-{step}/rank-{rank}"), vec![step as u8; SHARD]);
        }
        ranks[0].put(&format!("step-{step}/.metadata"), "all");
    };
    save(1, &[&members[0], &members[1]]);
    assert_eq!(told(&outside, &marker(1)).0, 0);
    members[1].control("pause");
    // What was whole before is whole; the times of files are good for two seconds.
    thread::sleep(Duration::from_secs(3));
    save(2, &[&members[0], &members[1]]);
    members[1].kill();
    let tier: Arc<dyn Dir> = Arc::new(OsDir::open(slow).unwrap());
    Watched::begin(&*tier, "job", 1).unwrap().forget().unwrap();
    until("the others go on", || marker(2).exists());
    assert!(!slow.join("step-2/rank-1").exists());
    let verdict = || told(&["status", "--fleet", "job", "--slow"], slow);
    let lost = |(code, said): (i32, String), what: &str| assert!(code == 3 && said.contains(what), "{code}: {said}");
    lost(verdict(), "which was forgotten, logged after ");
    lost(told(&outside, &marker(2)), "which was forgotten, logged after ");
    members[2].start();
    lost(verdict(), "on the node that member 1 on ");
    lost(told(&outside, &marker(2)), "on the node that member 1 on ");
    let of_step = |step: &str| told(&["wait", "--step", step, "--timeout", "120s"], &members[0].root());
    lost(of_step("2"), "on the node that member 1 on ");
    save(3, &[&members[0], &members[2]]);
    assert_eq!([told(&outside, &marker(1)).0, told(&outside, &marker(3)).0, of_step("3").0], [0; 3]);
    let (code, said) = told(&["accept-loss"], &members[0].root());
    assert!(code == 0 && said.contains("accepted: what the node that member 1 on "), "{said}");
    assert_eq!([verdict().0, told(&outside, &marker(2)).0, of_step("2").0], [0; 3]);
    assert!(told(&["accept-loss", "job", "--slow"], slow).1.contains("has lost nothing that was not accepted"));
}

#[test]
fn a_mount_that_does_not_agree_with_its_fleet_is_refused() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let mut members = fleet(dir.path());
    let refused = |options: &[&str]| {
        let (code, said) = member(dir.path(), options).refused();
        assert_ne!(code, Some(0), "{said}");
        said
    };
    assert!(refused(&["fleet_size=4"]).contains("was begun with fleet_size = 3"));
    assert!(refused(&["clock_error=5ms"]).contains("clock_error = \"2ms\""));
    assert!(refused(&[]).contains("all 3 places of fleet job are taken"));
    // Who was refused can still be mounted without a fleet.
    let mut outsider = member(dir.path(), &[]);
    assert!(outsider.refused().1.contains("are taken"));
    outsider.leave_out("fleet");
    outsider.start();
    // What is pending belongs to the fleet in which it was written.
    members[2].put("pending", vec![0; 3 << 20]);
    members[2].kill();
    members[2].option("fleet=other");
    let (code, said) = members[2].refused();
    assert!(code != Some(0) && said.contains("has changes of fleet \"job\""), "{said}");
    members[2].option("fleet=job");
    members[2].start();
    members[2].sync();
}

/// Each had the end of the log as it was for itself, and the lines of one were dropped without a word.
#[test]
fn a_file_is_open_for_appending_on_one_node_at_a_time() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let mut members = [0, 1].map(|_| member(dir.path(), &["fleet_size=2"]));
    members.iter_mut().for_each(Mount::start);
    let append = |member: &Mount| OpenOptions::new().append(true).create(true).open(member.at("log"));
    let busy = |member: &Mount| append(member).err().and_then(|e| e.raw_os_error()) == Some(nix::libc::EBUSY);
    let first = append(&members[0]).unwrap();
    (&first).write_all(b"first\n").unwrap();
    writeln!(append(&members[0]).unwrap(), "again").unwrap();
    members[0].control("pause");
    drop(first);
    assert!(busy(&members[1]), "what it appended is on its fast tier only");
    members[0].control("resume");
    let line = |member: &Mount, text: &str| {
        until("the other one is done", || append(member).is_ok_and(|log| writeln!(&log, "{text}").is_ok()));
    };
    line(&members[1], "second");
    // Who has closed the file is waited for.
    writeln!(append(&members[0]).unwrap(), "third").unwrap();
    // Of one that is killed the place is kept, and so is the file; its next start gives it back.
    let _open = append(&members[0]).unwrap();
    members[0].kill();
    assert!(busy(&members[1]));
    members[0].start();
    line(&members[1], "fourth");
    members.iter().for_each(Mount::sync);
    let text = fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(text.lines().collect::<Vec<_>>(), ["first", "again", "second", "third", "fourth"]);
}

/// A machine that is made from the image of another one: both had the same place, and a marker came before the shard of one.
#[test]
fn a_copy_of_a_fast_tier_does_not_share_its_place() {
    needs!(MOUNTS);
    for fleet in [&["fleet_size=2"][..], &[]] {
        let dir = tempfile::tempdir().unwrap();
        let slow = dir.path();
        let mount = |fast: Option<PathBuf>| {
            let mut mount =
                Mount::idle(Elsewhere { fast, slow: Some(slow.to_owned()) }, &[&FLEET[..], &["fleet_size=2"]].concat());
            if fleet.is_empty() {
                ["fleet", "fleet_size", "clock_error"].iter().for_each(|key| mount.leave_out(key));
            }
            mount
        };
        let copies = tempfile::tempdir().unwrap();
        let copy = |of: &Mount, name: &str| {
            let to = copies.path().join(name);
            assert!(Command::new("cp").arg("-a").arg(of.fast()).arg(&to).status().unwrap().success());
            mount(Some(to))
        };
        let (mut first, mut second) = (mount(None), mount(None));
        first.start();
        second.start();
        first.put("before", "1");
        first.sync();
        first.stop();
        let old = copy(&first, "old");
        first.start();
        let (code, said) = old.refused();
        assert!(code != Some(0) && said.contains("an old copy of a fast tier that was mounted since, on"), "{said}");
        // One that is made while the first one is mounted is as good; whoever was there before goes on no more.
        let mut live = copy(&first, "live");
        live.start();
        until("it says why", || {
            first.put("beside", "1");
            first.verdict().contains("a copy of this fast tier has been mounted on")
        });
        first.put("after", "1");
        live.put("of the copy", "1");
        live.sync();
        assert!(slow.join("of the copy").exists());
        second.put("of another", "1");
        second.sync();
        assert!(!slow.join("after").exists());
        let (code, _) = told(&["umount", "--now"], &first.root());
        assert!(matches!(code, 3 | 4), "{code}");
        first.ended();
        assert!(first.refused().1.contains("an old copy of a fast tier"));
    }
}

/// The remedy was to set another `clock_error`, which the fleet refused, and then another name, which the pending changes did.
#[test]
fn another_bound_for_the_clocks_is_one_command() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let mut members = [0, 1].map(|_| member(dir.path(), &["fleet_size=2"]));
    members.iter_mut().for_each(Mount::start);
    members[0].control("pause");
    members[0].put("pending", "1");
    let set = |error: &str| told(&["clock-error", "job", error, "--slow"], dir.path());
    let (code, said) = set("50ms");
    assert!(code == 2 && said.contains("is mounted on") && said.contains("umount --now"), "{said}");
    assert_eq!(set("1h").0, 2, "no clock is as bad");
    for member in &mut members {
        let (code, said) = told(&["umount", "--now"], &member.root());
        assert!(matches!(code, 0 | 3), "{said}");
        member.ended();
    }
    members[0].option("clock_error=50ms");
    let (code, said) = members[0].refused();
    assert!(code != Some(0) && said.contains("dlio-fs clock-error job 50ms --slow DIR"), "{said}");
    assert_eq!(set("50ms").0, 0);
    members[1].leave_out("clock_error");
    members.iter_mut().for_each(Mount::start);
    members[0].control("resume");
    members[0].sync();
    assert!(dir.path().join("pending").exists());
    let text = fs::read_to_string(members[1].at(".dlio/fleet")).unwrap();
    assert!(text.contains("clocks within 50ms"), "{text}");
}

#[test]
fn mounts_that_keep_no_order_name_each_other() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let slow = dir.path();
    let mut alone = Mount::idle(Elsewhere { slow: Some(slow.to_owned()), ..Elsewhere::default() }, &[]);
    alone.start();
    let others = |mount: &Mount| mount.stats_json()["other_mounts"].as_array().unwrap().len();
    assert_eq!(others(&alone), 0);
    let mut members = [member(slow, &[]), member(slow, &[]), member(slow, &[])];
    members.iter_mut().for_each(Mount::start);
    for member in &members {
        until("it sees the one that is in no fleet", || others(member) == 1);
    }
    let stats = members[0].stats();
    let named = format!(":{}, too: order is kept for each mount only", alone.root().display());
    assert!(stats.contains("mounted by ") && stats.contains(&named), "{stats}");
    let more = tempfile::tempdir().unwrap();
    let at = |name: &str| more.path().join(name);
    ["mnt", "fast"].into_iter().for_each(|name| fs::create_dir(at(name)).unwrap());
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_dlio-fs")).args(args).arg(at("mnt")).output().unwrap();
    let (fast, slow) = (at("fast"), slow.to_str().unwrap());
    let made = run(&["mount", "--fast", fast.to_str().unwrap(), "--slow", slow]);
    run(&["umount", "--now"]);
    let told = String::from_utf8(made.stderr).unwrap();
    assert!(told.contains(&format!("--slow {slow} is mounted by ")) && told.matches(":/").count() >= 4, "{told}");
}

/// It waited for its lease, which is on the slow tier, for as long as that hung.
#[test]
fn a_member_with_nothing_pending_leaves_while_the_slow_tier_hangs() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::new(|_| ());
    let mut alone = member(&below.shown(), &["fleet_size=1"]);
    alone.start();
    alone.put("ckpt", "weights");
    alone.sync();
    let frozen = below.freeze();
    alone.signal(Signal::SIGTERM);
    // A call that the relay has begun keeps the process in the kernel; letting go of the lock is its last act.
    until("it has left", || fs::read_to_string(alone.fast().join(".dlio-fs/lock")).unwrap().starts_with("left "));
    assert!(alone.log().contains("wait for this one until it is mounted again"), "{}", alone.log());
    drop(frozen);
    alone.ended();
    alone.start();
    alone.put("more", "weights");
    alone.sync();
    assert!(below.tree().join("more").exists());
}

/// `DLIO_FIRST_MOUNTS` says how many times.
#[test]
fn ten_first_mounts_at_once_are_one_fleet() {
    needs!(MOUNTS);
    let times = std::env::var("DLIO_FIRST_MOUNTS").map_or(1, |times| times.parse().unwrap());
    for _ in 0..times {
        let dir = tempfile::tempdir().unwrap();
        let slow = dir.path();
        let mut members: Vec<_> = (0..10).map(|_| member(slow, &["fleet_size=10"])).collect();
        thread::scope(|scope| {
            for member in &mut members {
                scope.spawn(|| member.start());
            }
        });
        for (number, member) in members.iter().enumerate() {
            member.put(&format!("shard-{number}"), "weights");
        }
        members[0].put("marker", "all");
        let until_all_have_it = Command::new(env!("CARGO_BIN_EXE_dlio-fs"))
            .args(["sync", "--fleet"])
            .arg(members[3].root())
            .output()
            .unwrap();
        assert!(until_all_have_it.status.success(), "{until_all_have_it:?}");
        assert!((0..10).all(|number| slow.join(format!("shard-{number}")).exists()) && slow.join("marker").exists());
        let slots: BTreeSet<_> = (0..10)
            .map(|slot| {
                let lease = fs::read_to_string(slow.join(format!(".dlio-fs/fleet/job/{slot}"))).unwrap();
                lease.split(' ').find_map(|word| word.strip_prefix("member=")).unwrap().to_owned()
            })
            .collect();
        assert_eq!(slots.len(), 10, "each has a slot of its own");
    }
}

/// On a member that wrote a part of it and no marker, and whose own part is long on the slow tier.
#[test]
fn latest_safe_waits_for_the_parts_of_all_members() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let mut members = [member(dir.path(), &[]), member(dir.path(), &[]), member(dir.path(), &[])];
    members.iter_mut().for_each(Mount::start);
    let link = |member: &Mount| fs::read_link(member.at(".dlio/latest-safe")).ok();
    members[1].control("pause");
    // The paused one comes last, so that the others need not wait for it.
    for rank in [0, 2, 1] {
        fs::create_dir_all(members[rank].at("step-700")).unwrap();
        members[rank].put(&format!("step-700/rank-{rank}"), vec![7; 1 << 20]);
    }
    let listed = |member: &Mount| {
        let (code, said) = told(&["checkpoints", "--fleet", "--json"], &member.root());
        (code, serde_json::from_str::<serde_json::Value>(&said).unwrap()["checkpoints"][0].clone())
    };
    until("its own part is safe", || {
        let text = fs::read_to_string(members[2].at(".dlio/checkpoints.json")).unwrap();
        text.contains("\"safe\": true") && text.contains("\"complete\": true")
    });
    assert_eq!(link(&members[2]), None);
    let (code, one) = listed(&members[2]);
    assert_eq!((code, &one["elsewhere_at"]), (3, &serde_json::Value::Null), "{one}");
    members[0].put("step-700/.metadata", "all");
    members[1].control("resume");
    until("all know that it is safe", || {
        members.iter().all(|member| link(member).is_some_and(|to| to == Path::new("../step-700")))
    });
    assert!((0..3).all(|rank| dir.path().join(format!("step-700/rank-{rank}")).exists()));
    let (code, one) = listed(&members[2]);
    let known = [&one["step"], &one["files"], &one["ranks"], &one["complete"]];
    assert_eq!((code, known), (0, [&700.into(), &4.into(), &3.into(), &true.into()]), "{one}");
    assert!(one["elsewhere_at"].is_string(), "{one}");
    let (_, said) = told(&["checkpoints", "--fleet"], &members[2].root());
    assert!(said.starts_with("SAFE as of") && said.contains("readable elsewhere since"), "{said}");
}
