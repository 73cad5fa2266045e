//! What the configuration says of some files only, by their paths.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Mount, Relay, errno, names, pattern, until};
use crate::needs::{MOUNTS, needs};
use nix::errno::Errno;

const SIZE: usize = 300_000;

fn tier(mount: &Mount, name: &str) -> String {
    let value = xattr::get(mount.at(name), "user.dlio.tier").unwrap().unwrap();
    String::from_utf8(value).unwrap()
}

/// What is not published yet and does not lie on the fast tier.
fn unpublished(slow: &Path) -> Vec<PathBuf> {
    let tmp = fs::read_dir(slow.join(".dlio-fs/tmp")).unwrap().map(|entry| entry.unwrap().path());
    tmp.flat_map(|of| fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path())).collect()
}

fn data(slow: &Path) {
    for dir in ["data", "logs"] {
        fs::create_dir(slow.join(dir)).unwrap();
        for n in 0..4 {
            fs::write(slow.join(format!("{dir}/{n}")), pattern(SIZE + n)).unwrap();
        }
    }
}

#[test]
fn what_is_not_absorbed_is_written_to_the_slow_tier_in_its_order() {
    needs!(MOUNTS);
    let rule = r#"rules=[{path="data/**", absorb=false}]"#;
    let mut mount = Mount::with(&[rule, "settle=1h", "live_after=2h"], data);
    mount.put("before", "1");
    mount.put("data/new", pattern(SIZE));
    // In place, over an end that is cut off, and anew.
    OpenOptions::new().write(true).open(mount.at("data/0")).unwrap().write_all_at(b"changed", 1000).unwrap();
    File::options().write(true).open(mount.at("data/1")).unwrap().set_len(10).unwrap();
    mount.put("data/2", "anew");
    mount.put("after", "2");
    for name in ["data/new", "data/0", "data/1", "data/2"] {
        assert_eq!(tier(&mount, name), "slow", "{name}");
    }
    assert_eq!((tier(&mount, "before"), tier(&mount, "after")), ("fast".into(), "fast".into()));
    let sizes = unpublished(&mount.slow()).into_iter().map(|path| fs::metadata(path).unwrap().len() as usize);
    // What is absorbed may be on its way here, too.
    let mut sizes: Vec<usize> = sizes.filter(|size| *size > 1).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [4, 10, SIZE, SIZE], "nothing of them is published yet");
    assert_eq!(names(&mount.slow().join("data")), ["0", "1", "2", "3"]);
    File::open(mount.at("data/new")).unwrap().sync_all().unwrap();

    mount.kill();
    mount.start();
    let expect = |mount: &Mount| {
        assert!(fs::read(mount.at("data/new")).unwrap() == pattern(SIZE));
        let changed = fs::read(mount.at("data/0")).unwrap();
        assert!(changed[1000..1007] == *b"changed" && changed[1007..] == pattern(SIZE)[1007..]);
        assert_eq!(fs::read(mount.at("data/1")).unwrap(), pattern(10));
        assert_eq!(fs::read(mount.at("data/2")).unwrap(), b"anew");
    };
    expect(&mount);
    mount.sync();
    expect(&mount);
    assert!(fs::read(mount.slow().join("data/new")).unwrap() == pattern(SIZE));
    assert_eq!(fs::read(mount.slow().join("data/2")).unwrap(), b"anew");
    let stats = mount.stats_json();
    assert_eq!(stats["exceptions"]["spilled"], 0, "it was meant to be there");
}

#[test]
fn what_a_rule_pins_stays_and_what_one_promotes_comes() {
    needs!(MOUNTS);
    let rules = r#"rules=[{path="data/0"}, {path="data/**", promote=true, pin=true}, {path="logs/**", promote=false}]"#;
    let mount = Mount::with(&[rules, "settle=0s", "live_after=1s", "keep=0"], data);
    let copies = || {
        let staging = fs::read_to_string(mount.at(".dlio/staging.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&staging).unwrap()["copies"].as_u64().unwrap()
    };
    until("what is to be promoted is", || {
        for name in ["data/0", "data/1", "data/2", "data/3", "logs/0", "logs/1"] {
            let mut bytes = Vec::new();
            File::open(mount.at(name)).unwrap().read_to_end(&mut bytes).unwrap();
        }
        copies() == 3
    });
    // Once the kernel has told of the last close: an open file is read on where its reader began.
    until("it is read from its copy", || tier(&mount, "data/1") == "fast");
    assert_eq!(tier(&mount, "logs/0"), "slow");
    assert_eq!(tier(&mount, "data/0"), "slow", "the first rule that fits has no word on it");

    for name in ["data/new", "logs/new"] {
        mount.put(name, pattern(SIZE));
    }
    mount.sync();
    let evict = |name: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_dlio-fs")).arg("evict").arg(mount.at(name)).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    assert!(evict("data/new").contains("pinned"), "{}", evict("data/new"));
    evict("data/1");
    assert_eq!(tier(&mount, "data/1"), "fast", "a staged copy");
    assert!(mount.control("pins").starts_with("rule: data/**\n"), "{}", mount.control("pins"));
    let said = evict("logs/new");
    assert!(said.contains("1 file") && !said.contains("pinned"), "{said}");
    assert_eq!((tier(&mount, "data/new"), tier(&mount, "logs/new")), ("fast".into(), "slow".into()));
}

const FINAL: &str = r#"rules=[{path="final{,/**}", fsync="slow"}]"#;

/// And whatever comes before it in the order.
#[test]
fn an_fsync_waits_for_the_slow_tier_where_a_rule_says_so() {
    needs!(MOUNTS);
    let mount = Mount::with(&[FINAL, "settle=1h", "live_after=2h"], |_| ());
    fs::create_dir(mount.at("final")).unwrap();
    let before = mount.put("before", pattern(SIZE));
    File::open(before).unwrap().sync_all().unwrap();
    assert_eq!(names(&mount.slow()), [".dlio-fs"], "no rule for it");

    let mut file = File::create(mount.at("final/model.tmp")).unwrap();
    file.write_all(&pattern(2 * SIZE)).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(mount.slow().join("final/model.tmp")).unwrap() == pattern(2 * SIZE));
    assert!(fs::read(mount.slow().join("before")).unwrap() == pattern(SIZE));
    // The file is open still, and written again.
    file.write_all_at(b"again", 5).unwrap();
    file.sync_data().unwrap();
    assert_eq!(fs::read(mount.slow().join("final/model.tmp")).unwrap()[5..10], *b"again");
    fs::rename(mount.at("final/model.tmp"), mount.at("final/model")).unwrap();
    File::open(mount.at("final")).unwrap().sync_all().unwrap();
    assert_eq!(names(&mount.slow().join("final")), ["model"]);
    // Nobody else is hurried by it now.
    mount.put("later", "3");
    assert_eq!(names(&mount.slow()), [".dlio-fs", "before", "final"]);
}

/// What waits for the slow tier is answered by the batch that skips a version in front of it. (The file that is being synced itself is replaced
/// by nobody meanwhile: the kernel holds its lock.)
#[test]
fn who_waits_behind_versions_that_are_skipped_is_answered() {
    needs!(MOUNTS);
    let rules = r#"rules=[{path="last.ckpt", drain_policy="newest"}, {path="final", fsync="slow"}]"#;
    let mount = Mount::with(&[rules], |_| ());
    assert!(mount.control("pause").contains("ok"));
    for n in 0..4 {
        let mut file = File::create(mount.at("ckpt.tmp")).unwrap();
        file.write_all(&pattern(SIZE + n)).unwrap();
        file.sync_all().unwrap();
        fs::rename(mount.at("ckpt.tmp"), mount.at("last.ckpt")).unwrap();
    }
    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| {
                let mut file = File::create(mount.at("final")).unwrap();
                file.write_all(b"final").unwrap();
                file.sync_all().unwrap();
            }),
            scope.spawn(|| assert!(mount.control("sync").contains("ok"))),
        ];
        // The sync may commit `final` before it is written.
        until("both wait", || mount.stats_json()["pipeline"]["pending_events"].as_u64() >= Some(9));
        assert!(waits.iter().all(|wait| !wait.is_finished()));
        assert!(mount.control("resume").contains("ok"));
    });
    assert_eq!(fs::read(mount.slow().join("final")).unwrap(), b"final");
    assert!(fs::read(mount.slow().join("last.ckpt")).unwrap() == pattern(SIZE + 3));
    let exceptions = &mount.stats_json()["exceptions"];
    assert_eq!((&exceptions["skipped"], &exceptions["skipped_bytes"]), (&3.into(), &(3 * SIZE as u64 + 3).into()));
}

#[test]
fn many_fsyncs_wait_at_once_and_each_is_answered() {
    needs!(MOUNTS);
    let mount = Mount::with(&[r#"rules=[{path="**", fsync="slow"}]"#, "settle=1h", "live_after=2h"], |_| ());
    assert!(mount.control("pause").contains("ok"));
    std::thread::scope(|scope| {
        for n in 0..100 {
            let path = mount.at(format!("{n}"));
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                file.write_all(&pattern(n)).unwrap();
                file.sync_all().unwrap();
            });
        }
        // More than there are threads to wait, and the mount answers.
        until("all have written", || names(&mount.root()).len() == 100 && mount.calls("write").0 == 99);
        assert_eq!(mount.calls("fsync").0, 0, "none is answered while the drain is paused");
        assert!(mount.control("resume").contains("ok"));
    });
    assert_eq!(mount.calls("fsync").0, 100);
    for n in 0..100 {
        assert!(fs::read(mount.slow().join(format!("{n}"))).unwrap() == pattern(n));
    }
}

#[test]
fn an_fsync_that_the_slow_tier_does_not_answer_fails_and_loses_nothing() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::new(|_| ());
    let mount = Mount::over(below.shown(), &[FINAL, "slow_wait=300ms"]);
    fs::create_dir(mount.at("final")).unwrap();
    mount.sync();
    let mut file = File::create(mount.at("final/model")).unwrap();
    file.write_all(&pattern(SIZE)).unwrap();
    let frozen = below.freeze();
    assert_eq!(errno(file.sync_all()), Errno::EIO);
    assert!(mount.log().contains("nothing has arrived on the slow tier for 3s 600ms"), "{}", mount.log());
    assert!(fs::read(mount.at("final/model")).unwrap() == pattern(SIZE));
    drop(frozen);
    until("the slow tier is taken for up", || file.sync_all().is_ok());
    assert!(fs::read(below.shown().join("final/model")).unwrap() == pattern(SIZE));
}
