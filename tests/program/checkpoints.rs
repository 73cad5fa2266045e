//! What is known of checkpoints: which are complete, which are safe, and the link to the newest one that is.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::iter::repeat_with;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::common::{Elsewhere, Mount, USER, Volume, mode, names, pattern, succeeded, until};
use crate::needs::{MOUNTS, needs};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");
/// Nothing is published unless somebody asks for it.
const NEVER_SETTLES: [&str; 2] = ["settle=50min", "live_after=1h"];

fn dlio(arguments: &[&str], path: &Path) -> Output {
    Command::new(PROGRAM).args(arguments).arg(path).output().unwrap()
}

fn told(mount: &Mount) -> Vec<Value> {
    checkpoints_of(&fs::read_to_string(mount.at(".dlio/checkpoints.json")).unwrap())
}

fn checkpoints_of(json: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(json).unwrap();
    document["checkpoints"].as_array().unwrap().clone()
}

/// The last one, when it is as wanted.
fn last(mount: &Mount, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    until(what, || {
        last = told(mount).pop().unwrap_or_default();
        wanted(&last)
    });
    last
}

fn latest_safe(mount: &Mount) -> Option<String> {
    Some(fs::read_link(mount.at(".dlio/latest-safe")).ok()?.into_os_string().into_string().unwrap())
}

/// Writes one as frameworks do: under a temporary name, and something small behind it. It is no name that says that all is there, so
/// the next one is not taken for a part of it once it is complete.
fn write(mount: &Mount, step: u64) {
    mount.put("run/ckpt.tmp", pattern(3 << 20));
    fs::rename(mount.at("run/ckpt.tmp"), mount.at(format!("run/ckpt-{step}"))).unwrap();
    mount.put("run/note", format!("ckpt-{step}"));
}

#[test]
fn a_checkpoint_is_complete_durable_safe_and_verified_in_turn() {
    needs!(MOUNTS);
    let mount = Mount::with(&NEVER_SETTLES, |_| ());
    fs::create_dir(mount.at("run")).unwrap();
    assert!(fs::read_to_string(mount.at(".dlio/checkpoints")).unwrap().starts_with("no checkpoint"));
    write(&mount, 1200);
    let one =
        last(&mount, "it is complete, and durable on fast", |one| one["complete"] == true && one["durable"].is_f64());
    assert_eq!((&one["step"], &one["path"]), (&1200.into(), &"/run/ckpt-1200".into()), "{one}");
    assert_eq!((&one["files"], &one["bytes"]), (&2.into(), &((3 << 20) + 9).into()), "{one}");
    assert_eq!((&one["current"], &one["safe"], &one["drained"]), (&true.into(), &false.into(), &Value::Null), "{one}");
    assert_eq!(latest_safe(&mount), None);
    assert!(!names(&mount.at(".dlio")).contains(&"latest-safe".into()));
    mount.sync();
    let one = told(&mount).pop().unwrap();
    assert!(one["safe"] == true && one["verified"] == false, "{one}");
    let moment = |name: &str| one[name].as_f64().unwrap();
    assert!(moment("began") <= moment("absorbed") && moment("absorbed") <= moment("durable"), "{one}");
    assert!(moment("durable") <= moment("drained"), "{one}");
    assert_eq!(latest_safe(&mount).as_deref(), Some("../run/ckpt-1200"));
    assert!(fs::read(mount.at(".dlio/latest-safe")).unwrap() == pattern(3 << 20));
    assert!(names(&mount.at(".dlio")).contains(&"latest-safe".into()));
    assert!(dlio(&["verify"], &mount.at("run")).status.success());
    assert_eq!(told(&mount).pop().unwrap()["verified"], true);
    let output = dlio(&["checkpoints"], &mount.root());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text.starts_with("1 checkpoint; the newest, /run/ckpt-1200, is on the slow tier\n"), "{text}");
    assert!(text.contains(" verified  /run/ckpt-1200\n"), "{text}");
    let json = String::from_utf8(dlio(&["checkpoints", "--json"], &mount.root()).stdout).unwrap();
    assert_eq!(checkpoints_of(&json), told(&mount));
}

#[test]
fn the_newest_safe_one_is_offered_also_without_a_profile() {
    needs!(MOUNTS);
    let mut mount = Mount::idle(Elsewhere::default(), &NEVER_SETTLES);
    mount.arguments(&["--no-profile"]);
    mount.start();
    fs::create_dir(mount.at("run")).unwrap();
    write(&mount, 1);
    last(&mount, "the first is complete", |one| one["complete"] == true);
    mount.sync();
    write(&mount, 2);
    last(&mount, "the second is complete", |one| one["step"] == 2 && one["complete"] == true);
    assert_eq!(latest_safe(&mount).as_deref(), Some("../run/ckpt-1"), "the second is on the fast tier only");
    mount.sync();
    assert_eq!(latest_safe(&mount).as_deref(), Some("../run/ckpt-2"));
    fs::remove_file(mount.at("run/ckpt-2")).unwrap();
    assert_eq!(latest_safe(&mount).as_deref(), Some("../run/ckpt-1"));
    let states: Vec<_> = told(&mount).iter().map(|one| (one["whole"].clone(), one["current"].clone())).collect();
    assert_eq!(states, [(true.into(), true.into()), (false.into(), false.into())]);
    fs::rename(mount.at("run"), mount.at("kept")).unwrap();
    assert_eq!(latest_safe(&mount), None, "the slow tier has it under its former name");
    mount.sync();
    assert_eq!(latest_safe(&mount).as_deref(), Some("../kept/ckpt-1"));
    // Somebody begins to write over it.
    let mut file = OpenOptions::new().write(true).open(mount.at("kept/ckpt-1")).unwrap();
    file.write_all(b"x").unwrap();
    assert_eq!(latest_safe(&mount), None);
}

#[test]
fn the_weights_belong_to_the_small_files_before_them_however_long_they_take() {
    needs!(MOUNTS);
    // Two files of one checkpoint are less than three seconds apart: a machine that halts for longer in between gets another try.
    let in_time = || {
        let mount = Mount::with(&NEVER_SETTLES, |_| ());
        fs::create_dir_all(mount.at("run/checkpoint-7")).unwrap();
        let began = Instant::now();
        mount.put("run/checkpoint-7/config.json", pattern(2 << 20));
        let weights = fs::File::create(mount.at("run/checkpoint-7/model.bin")).unwrap();
        (began.elapsed() < Duration::from_millis(2500)).then_some((mount, weights))
    };
    let (mount, mut weights) = repeat_with(in_time).flatten().next().unwrap();
    weights.write_all(&pattern(1 << 20)).unwrap();
    let seconds = || {
        let now: Value = serde_json::from_str(&fs::read_to_string(mount.at(".dlio/stats.json")).unwrap()).unwrap();
        now["mounted_for"].as_f64().unwrap()
    };
    last(&mount, "there is one", |one| one["files"] == 1);
    let began = seconds();
    until("a burst would be over", || seconds() > began + 5.0);
    assert_eq!(told(&mount)[0]["complete"], false);
    weights.write_all(&pattern(1 << 20)).unwrap();
    drop(weights);
    let one = last(&mount, "it is complete", |one| one["complete"] == true);
    assert_eq!((&one["number"], &one["files"]), (&1.into(), &2.into()), "{one}");
    assert_eq!(one["path"], "/run/checkpoint-7");
}

#[test]
fn the_link_outlives_the_mount_and_leads_nowhere_when_its_end_is_gone() {
    needs!(MOUNTS);
    let mut mount = Mount::new();
    fs::create_dir(mount.at("run")).unwrap();
    write(&mount, 5);
    until("it is safe", || latest_safe(&mount).is_some());
    mount.stop();
    mount.start();
    assert_eq!(latest_safe(&mount).as_deref(), Some("../run/ckpt-5"));
    mount.stop();
    fs::remove_file(mount.slow().join("run/ckpt-5")).unwrap();
    mount.start();
    assert_eq!(latest_safe(&mount), None);
}

#[test]
fn checkpoints_are_known_after_a_kill_and_what_became_of_them_since() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["settle=0s"], |_| ());
    fs::create_dir(mount.at("run")).unwrap();
    for step in [1, 2, 3] {
        write(&mount, step);
        last(&mount, "it is complete and safe", |one| {
            one["step"] == step && one["complete"] == true && one["safe"] == true
        });
    }
    let before = told(&mount);
    let file = mount.fast().join(".dlio-fs/checkpoints");
    until("they are written down", || fs::read_to_string(&file).is_ok_and(|text| text.contains("run/ckpt-3")));
    mount.kill();
    fs::remove_file(mount.slow().join("run/ckpt-2")).unwrap();
    mount.start();
    until("what is gone is missed", || told(&mount)[1]["whole"] == false);
    let after = told(&mount);
    let parts =
        |one: &Value| ["number", "step", "path", "files", "bytes", "complete", "safe"].map(|key| one[key].clone());
    assert_eq!(after.iter().map(parts).collect::<Vec<_>>(), before.iter().map(parts).collect::<Vec<_>>());
    let took = |one: &Value| (one["drained"].as_f64().unwrap() - one["began"].as_f64().unwrap()) * 1e3;
    assert_eq!(took(&after[2]).round(), took(&before[2]).round());
    assert!(after[2]["absorbed"].as_f64().unwrap() < 0.0, "before this mount: {}", after[2]);
    assert_eq!((&after[2]["current"], &after[0]["whole"]), (&true.into(), &true.into()));
    assert_eq!(latest_safe(&mount).as_deref(), Some("../run/ckpt-3"));
    fs::remove_file(mount.at("run/ckpt-3")).unwrap();
    assert_eq!(latest_safe(&mount).as_deref(), Some("../run/ckpt-1"));
    write(&mount, 4);
    let last = last(&mount, "there is a new one", |one| one["step"] == 4);
    assert!(last["number"].as_u64() > after[2]["number"].as_u64(), "{last}");
}

#[test]
fn a_checkpoint_that_was_on_its_way_when_the_daemon_died_becomes_safe() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&NEVER_SETTLES, |_| ());
    fs::create_dir(mount.at("run")).unwrap();
    write(&mount, 7);
    last(&mount, "it is complete, and durable", |one| one["complete"] == true && one["durable"].is_f64());
    let file = mount.fast().join(".dlio-fs/checkpoints");
    until("it is written down", || fs::read_to_string(&file).is_ok_and(|text| text.contains("run/ckpt-7")));
    mount.kill();
    mount.start();
    let one = told(&mount).pop().unwrap();
    assert_eq!((&one["safe"], &one["current"], &one["drained"]), (&false.into(), &true.into(), &Value::Null), "{one}");
    mount.sync();
    let one = told(&mount).pop().unwrap();
    assert_eq!((&one["safe"], &one["drained"].is_f64(), &one["files"]), (&true.into(), &true, &2.into()), "{one}");
    assert_eq!(latest_safe(&mount).as_deref(), Some("../run/ckpt-7"));
}

#[test]
fn the_newest_checkpoint_of_before_stays_on_the_fast_tier_after_a_remount() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["settle=0s", "keep=1"], |_| ());
    fs::create_dir(mount.at("run")).unwrap();
    for step in [1, 2] {
        write(&mount, step);
        last(&mount, "it is complete and safe", |one| {
            one["step"] == step && one["complete"] == true && one["safe"] == true
        });
    }
    mount.put("later", "small");
    mount.stop();
    mount.option("high=2%");
    mount.option("low=1%");
    mount.start();
    let state =
        |name: &str| String::from_utf8(xattr::get(mount.at(name), "user.dlio.state").unwrap().unwrap()).unwrap();
    // What goes at once goes in the order in which it is met, or comes.
    assert_eq!(state("run/ckpt-2"), "clean");
    mount.put("last", "small");
    until("what may go is evicted", || ["run/ckpt-1", "later", "last"].iter().all(|name| state(name) == "slow"));
    assert_eq!(state("run/ckpt-2"), "clean");
}

/// They made way for the next one, but for the newest.
#[test]
fn checkpoints_that_are_kept_stay_where_the_next_one_does_not_fit_beside_them() {
    needs!(MOUNTS, "mkfs.ext4");
    let fast = Volume::new(96, 20_000);
    let elsewhere = Elsewhere { fast: Some(fast.tier()), ..Elsewhere::default() };
    let mount = Mount::on(elsewhere, &["settle=0s", "keep=2", "ballast=1MiB"]);
    for step in [1, 2] {
        mount.put(&format!("ckpt-{step}"), pattern(24 << 20));
        last(&mount, "it is complete and safe", |one| {
            one["step"] == step && one["complete"] == true && one["safe"] == true
        });
    }
    let mut third = fs::File::create(mount.at("ckpt-3")).unwrap();
    third.write_all(&pattern(60 << 20)).unwrap();
    for name in ["ckpt-1", "ckpt-2"] {
        let state = xattr::get(mount.at(name), "user.dlio.state").unwrap().unwrap();
        assert_eq!(String::from_utf8(state).unwrap(), "clean", "{name}");
    }
    drop(third);
    mount.sync();
    assert!(fs::read(mount.slow().join("ckpt-3")).unwrap() == pattern(60 << 20));
}

#[test]
fn the_link_names_only_what_the_reader_may_see() {
    needs!(MOUNTS);
    let mount = Mount::new();
    fs::create_dir(mount.at("run")).unwrap();
    write(&mount, 5);
    until("it is safe", || latest_safe(&mount).is_some());
    let link = |mount: &Mount| mount.as_user(USER, "readlink .dlio/latest-safe");
    assert_eq!(String::from_utf8(link(&mount).stdout).unwrap(), "../run/ckpt-5\n");
    mount.sh("chmod 700 run");
    assert!(!link(&mount).status.success() && link(&mount).stdout.is_empty());
    assert!(latest_safe(&mount).is_some());
    let listed = |name: &str| succeeded(mount.as_user(USER, &format!("cat .dlio/{name}")));
    let listed_as_json = checkpoints_of(&listed("checkpoints.json"));
    assert_eq!((listed("checkpoints").contains("ckpt-5"), listed_as_json), (false, vec![]));
    mount.sh(&format!("chown -R {USER} run"));
    assert!(listed("checkpoints").contains("ckpt-5"), "{}", listed("checkpoints"));
}

// A deadline

/// `dlio-fs drain --deadline`: exit code, standard output, the rest.
fn drain(mount: &Mount, deadline: &str) -> (Option<i32>, String, String) {
    let output = dlio(&["drain", "--deadline", deadline], &mount.root());
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn saved(mount: &Mount) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(mount.slow().join(".dlio-fs/saved")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// A directory of the slow tier that is immutable while this lives: nothing can be renamed into it, so what is written there holds the
/// order.
struct Immutable(PathBuf);

impl Immutable {
    fn at(dir: PathBuf) -> Self {
        fs::create_dir(&dir).unwrap();
        succeeded(Command::new("chattr").arg("+i").arg(&dir).output().unwrap());
        Immutable(dir)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        Command::new("chattr").arg("-i").arg(&self.0).status().ok();
    }
}

#[test]
fn a_deadline_that_suffices_drops_limits_and_pauses_and_leaves_nothing() {
    needs!(MOUNTS);
    let options = ["settle=50min", "live_after=1h", "drain_bandwidth=1K"];
    let mount = Mount::with(&options, |_| ());
    fs::create_dir(mount.at("run")).unwrap();
    write(&mount, 1);
    until("the first file is on its way, at a kilobyte a second", || {
        fs::read_to_string(mount.at(".dlio/queue")).unwrap().contains("copying")
    });
    assert!(mount.control("pause").starts_with("ok"));
    mount.put("run/after", "x");
    let (code, out, err) = drain(&mount, "50s");
    assert_eq!((code, out.as_str()), (Some(0), "SAFE: everything written is on the slow tier\n"), "{err}");
    assert!(fs::read(mount.slow().join("run/ckpt-1")).unwrap() == pattern(3 << 20));
    assert_eq!(fs::read_to_string(mount.slow().join("run/after")).unwrap(), "x");
    assert!(saved(&mount).is_empty(), "there was no need");
    // The pause was the operator's.
    assert!(mount.stats_json()["safety"]["held"].as_str().unwrap().contains("paused"));
}

#[test]
fn what_cannot_come_in_its_turn_is_saved_beside_the_tree() {
    needs!(MOUNTS);
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=50min", "live_after=1h"]);
    let _immutable = Immutable::at(mount.slow().join("other"));
    mount.start();
    mount.put("other/first", "holds the order");
    fs::create_dir(mount.at("run")).unwrap();
    write(&mount, 7);
    last(&mount, "it is complete", |one| one["complete"] == true);
    let (code, out, err) = drain(&mount, "15s");
    assert_eq!(code, Some(3), "{out}{err}");
    let [place] = &saved(&mount)[..] else { panic!("{:?}: {out}{err}", saved(&mount)) };
    let line = format!("saved: /run/ckpt-7: 3 files, 3.0 MiB, below {}\n", place.display());
    assert!(out.contains(&line), "{out}");
    assert!(fs::read(place.join("run/ckpt-7")).unwrap() == pattern(3 << 20));
    assert_eq!(fs::read_to_string(place.join("run/note")).unwrap(), "ckpt-7");
    assert_eq!(mode(&place.join("run/ckpt-7")), mode(&mount.at("run/ckpt-7")));
    for left in ["left: /other/first\n", "left: /run/ckpt-7\n", "left: /run\n"] {
        assert!(out.contains(left), "{out}");
    }
    assert!(out.lines().last().unwrap().starts_with("NOT SAFE: "), "{out}");
    assert!(!mount.slow().join("run").exists() && !mount.slow().join("other/first").exists(), "a prefix");
    assert!(err.contains(" left. NOT SAFE"), "it tells how far it is: {err}");
    assert_eq!(latest_safe(&mount), None, "it is not in the tree");
}

#[test]
fn a_slow_tier_that_hangs_does_not_hold_up_the_deadline() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 512);
    let options = ["settle=50min", "live_after=1h"];
    let mount = Mount::on(Elsewhere { slow: Some(volume.tier()), ..Elsewhere::default() }, &options);
    // Whatever is being copied now waits until it goes on.
    let frozen = Frozen::freeze(volume.root());
    fs::create_dir(mount.at("run")).unwrap();
    write(&mount, 7);
    last(&mount, "it is complete", |one| one["complete"] == true);
    let (code, out, err) = drain(&mount, "6s");
    assert_eq!(code, Some(3), "{out}{err}");
    assert!(out.contains("left: /run/ckpt-7\n") && !out.contains("saved: /"), "{out}");
    drop(frozen);
    mount.sync();
    assert!(fs::read(volume.tier().join("run/ckpt-7")).unwrap() == pattern(3 << 20));
}

/// A file system whose changes wait.
struct Frozen(PathBuf);

impl Frozen {
    fn freeze(root: PathBuf) -> Self {
        succeeded(Command::new("fsfreeze").arg("-f").arg(&root).output().unwrap());
        Frozen(root)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        succeeded(Command::new("fsfreeze").arg("-u").arg(&self.0).output().unwrap());
    }
}
