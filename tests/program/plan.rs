//! Plans: which files to stage, chosen from what was read, and what came of it.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Mount, pattern, until};
use crate::needs::{MOUNTS, needs};
use dlio_fs::report::plan::StagePlan;
use dlio_fs::stats::plans::{RunningPlan, Spent};
use dlio_fs::stats::recording::Recording;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");
const FILES: usize = 200;

fn len(n: usize) -> usize {
    1_000 + n * n * 10
}

fn data(slow: &Path) {
    for n in 0..FILES {
        fs::create_dir_all(slow.join(format!("data/{}", n % 4))).unwrap();
        fs::write(slow.join(name(n)), pattern(len(n))).unwrap();
    }
}

/// With a space, which is told escaped.
fn name(n: usize) -> String {
    format!("data/{}/{n:03} x.rec", n % 4)
}

fn read_all(mount: &Mount) {
    for n in 0..FILES {
        assert!(fs::read(mount.at(name(n))).unwrap() == pattern(len(n)), "{n}");
    }
}

/// What a command prints. It must have ended with this code.
fn run(mount: &Mount, code: i32, arguments: &[&str], input: &[u8]) -> String {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).current_dir(mount.root());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let [said, told] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}{told}");
    if code == 0 { said } else { told }
}

fn plan(mount: &Mount, arguments: &[&str]) -> StagePlan {
    StagePlan::read(run(mount, 0, &[&["plan", "--json"], arguments].concat(), b"").as_bytes()).unwrap()
}

fn told(mount: &Mount) -> Vec<RunningPlan> {
    let bytes = fs::read(mount.at(".dlio/recording")).unwrap();
    Recording::read(vec![Box::new(Cursor::new(bytes))]).unwrap().meta.plans
}

#[test]
fn a_plan_is_staged_and_what_came_of_it_is_told() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], data);
    read_all(&mount);
    read_all(&mount);
    let made = plan(&mount, &[".", "--size", "2MB"]);
    let whole: usize = (0..FILES).map(len).sum();
    assert_eq!((made.all.files, made.all.bytes), (FILES as u64, whole as u64));
    assert_eq!((made.epochs, made.epochs_found), (2.0, true), "{:?}", made.curve);
    assert!(made.chosen.files > 0 && made.chosen.files < FILES as u64, "{:?}", made.chosen);
    assert!(made.chosen.bytes <= 2_000_000 && made.chosen.saved <= made.all.saved);
    let bytes: u64 = made.files.iter().map(|file| fs::metadata(place(&mount, &file.path)).unwrap().len()).sum();
    assert_eq!((bytes, made.promise.bytes), (made.chosen.bytes, made.chosen.bytes), "an epoch reads each once");
    let file = mount.root().with_file_name("plan.json");
    fs::write(&file, made.json()).unwrap();

    let said = run(&mount, 0, &["stage", "--plan", file.to_str().unwrap(), ".", "--wait"], b"");
    assert!(said.starts_with(&format!("{} files staged", made.chosen.files)), "{said}");
    let again = plan(&mount, &["."]);
    assert_eq!(again.on_fast, made.chosen.files, "they are left out");
    assert_eq!(again.all.files, made.all.files - made.chosen.files);
    until("what was spent until then is noted", || told(&mount)[0].since.is_some());
    let advice = run(&mount, 0, &["advise", "."], b"");
    assert!(advice.contains("Read on to see the result of job 1"), "{advice}");

    read_all(&mount);
    let plans = told(&mount);
    let Spent { bytes, slow_bytes, time } = plans[0].since.unwrap();
    assert_eq!((plans[0].files, plans[0].promise), (made.chosen.files, made.promise));
    assert_eq!((bytes, slow_bytes), (made.chosen.bytes, 0), "an epoch, from the fast tier");
    assert!(time > 0);
    let advice = fs::read_to_string(mount.at(".dlio/advice")).unwrap();
    let advice = advice.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(advice.contains("See the result of job 1") && advice.contains("read 1.0 times"), "{advice}");
}

/// A path of a plan, as the mount has it.
fn place(mount: &Mount, path: &str) -> std::path::PathBuf {
    mount.at(path.trim_start_matches('/').replace("%20", " "))
}

#[test]
fn a_recording_makes_the_same_plan_and_a_list() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], data);
    read_all(&mount);
    let copy = mount.root().with_file_name("run.dlio");
    fs::copy(mount.at(".dlio/recording"), &copy).unwrap();
    let copy = copy.to_str().unwrap();
    let (live, recorded) = (plan(&mount, &[".", "--size", "1MB"]), plan(&mount, &[copy, "--size", "1MB"]));
    assert_eq!(live.files.iter().map(|file| &file.path).collect::<Vec<_>>(), paths(&recorded));
    assert_eq!(plan(&mount, &[copy]).size, None, "a recording knows no room");
    assert!(plan(&mount, &["."]).size.unwrap() > 0, "a mount does");
    let text = run(&mount, 0, &["plan", copy], b"");
    assert!(text.starts_with("staging ") && text.contains("\n 100 %"), "{text}");

    let list = run(&mount, 0, &["plan", copy, "--list", "--size", "1MB"], b"");
    assert_eq!(list.lines().count(), recorded.files.len());
    assert!(list.lines().all(|line| line.starts_with("/data/") && line.ends_with(" x.rec")), "{list}");
    let said = run(&mount, 0, &["stage", "--list", "-", ".", "--wait"], list.as_bytes());
    assert!(said.starts_with(&format!("{} files staged", recorded.files.len())), "{said}");
    assert!(told(&mount).is_empty(), "a list promises nothing");
}

fn paths(plan: &StagePlan) -> Vec<&String> {
    plan.files.iter().map(|file| &file.path).collect()
}

#[test]
fn what_is_no_plan_stages_nothing() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], data);
    for (input, why) in [("", "no plan"), ("{}", "no plan"), ("/data/0/000 x.rec\n", "no plan")] {
        let said = run(&mount, 2, &["stage", "--plan", "-", "."], input.as_bytes());
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
    let nothing = run(&mount, 0, &["plan", ".", "--json"], b"");
    let said = run(&mount, 2, &["stage", "--plan", "-", "."], nothing.as_bytes());
    assert!(said.contains("nothing to stage"), "{said}");
    assert!(mount.control("stage plan:1:2 /data").contains("write plan:BEFORE:AFTER:BYTES"));
    assert!(told(&mount).is_empty());
}
