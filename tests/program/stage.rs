//! Staging: slow files that are read from the fast tier, how they get there, and what may happen to them meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{Elsewhere, Mount, Relay, USER, Volume, errno, pattern, succeeded, until};
use crate::needs::{MOUNTS, needs};
use nix::errno::Errno;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");

/// A data set of 40 files in two directories.
fn data(slow: &Path) {
    for n in 0..40 {
        let dir = slow.join(format!("data/{}", if n % 2 == 0 { "even" } else { "odd" }));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{n:02}.rec")), pattern(10_000 + n)).unwrap();
    }
}

fn stage(mount: &Mount, arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("stage").args(arguments).current_dir(mount.root()).output().unwrap()
}

/// What it printed; it must have ended with this code.
fn staged(mount: &Mount, code: i32, arguments: &[&str]) -> (String, String) {
    let output = stage(mount, arguments);
    let [said, told] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert_eq!(output.status.code(), Some(code), "{said}{told}");
    (said, told)
}

fn state(mount: &Mount, name: &str) -> String {
    let value = xattr::get(mount.at(name), "user.dlio.state").unwrap().unwrap();
    String::from_utf8(value).unwrap()
}

fn staging(mount: &Mount) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(mount.at(".dlio/staging.json")).unwrap()).unwrap()
}

/// However slow the machine is, nobody asks a slow tier that hangs for the directories above a copy.
const BELIEVED: &str = "attribute_lifetime_slow=1h";

fn expect_data(mount: &Mount) {
    for n in 0..40 {
        let path = mount.at(format!("data/{}/{n:02}.rec", if n % 2 == 0 { "even" } else { "odd" }));
        assert!(fs::read(&path).unwrap() == pattern(10_000 + n), "{}", path.display());
    }
}

/// What an ext4 keeps back for root, or a quota leaves no use of, is no use of the tier.
#[test]
fn what_the_file_system_keeps_back_is_not_taken_for_used() {
    needs!(MOUNTS, "mkfs.ext4");
    let fast = Volume::holding_back(50, 96, 20_000);
    let elsewhere = Elsewhere { fast: Some(fast.tier()), ..Elsewhere::default() };
    let mut mount = Mount::idle(elsewhere, &["high=60%", "low=30%", "reserve=0%", "ballast=1MiB"]);
    data(&mount.slow());
    mount.start();
    let (said, _) = staged(&mount, 0, &["data", "--wait"]);
    assert_eq!(said, "40 files staged, 391.4 KiB\n");
    mount.stop();
}

#[test]
fn staged_files_are_read_while_the_slow_tier_hangs() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::new(data);
    let mount = Mount::over(below.shown(), &[BELIEVED]);
    let (said, _) = staged(&mount, 0, &["data", "--wait"]);
    assert_eq!(said, "40 files staged, 391.4 KiB\n");
    assert_eq!(state(&mount, "data/odd/01.rec"), "staged");
    expect_data(&mount);
    let frozen = below.freeze();
    expect_data(&mount);
    drop(frozen);
    let (said, _) = staged(&mount, 0, &["data/even", "data/odd/03.rec", "--wait"]);
    assert_eq!(said, "0 files staged, 0 B; 21 there already\n");
    let all = staging(&mount);
    assert_eq!((&all["copies"], &all["jobs"][0]["complete"]), (&40.into(), &40.into()), "{all}");
    assert!(
        mount.stats().contains("staged       40 files, 391.4 KiB; 40 of them since the mount"),
        "{}",
        mount.stats()
    );
}

#[test]
fn copies_are_found_again_after_a_kill_and_a_remount() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&[], data);
    staged(&mount, 0, &["data/even", "--wait"]);
    for kill in [true, false] {
        if kill {
            mount.kill()
        } else {
            mount.stop()
        }
        mount.start();
        until("all are found", || staging(&mount)["copies"] == 20);
        assert_eq!(
            (state(&mount, "data/even/02.rec"), state(&mount, "data/odd/01.rec")),
            ("staged".into(), "slow".into())
        );
        expect_data(&mount);
        assert_eq!(staging(&mount)["copies"], 20);
    }
    assert_eq!(mount.stats_json()["pipeline"]["staged_files"], 0);
}

/// P11: whoever changed it, and whether a daemon ran.
#[test]
fn a_copy_is_never_older_than_the_slow_file() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["revalidate=0s", "attribute_lifetime_slow=0s"], data);
    staged(&mount, 0, &["data", "--wait"]);
    let files = ["data/even/00.rec", "data/even/02.rec", "data/even/04.rec"];
    let slow = |file: &str| mount.slow().join(file);
    // In place, by another file of the same length, and gone.
    OpenOptions::new().write(true).open(slow(files[0])).unwrap().write_all_at(b"changed", 100).unwrap();
    fs::write(slow("new"), vec![7; 10_002]).unwrap();
    fs::rename(slow("new"), slow(files[1])).unwrap();
    fs::remove_file(slow(files[2])).unwrap();
    assert_eq!(fs::read(mount.at(files[0])).unwrap()[100..107], *b"changed");
    assert!(fs::read(mount.at(files[1])).unwrap() == vec![7; 10_002]);
    assert!(fs::read(mount.at(files[2])).is_err());
    assert_eq!(state(&mount, files[0]), "slow");
    assert!(mount.log().contains("the staged copy is dropped"), "{}", mount.log());
    mount.stop();
    fs::write(mount.slow().join("data/odd/01.rec"), "changed while nobody looked").unwrap();
    mount.start();
    assert_eq!(fs::read(mount.at("data/odd/01.rec")).unwrap(), b"changed while nobody looked");
}

#[test]
fn the_first_write_takes_the_copy_and_leaves_the_slow_file_alone_until_it_is_published() {
    needs!(MOUNTS, "setfattr");
    let mount = Mount::with(&["settle=1h", "live_after=2h"], data);
    let (name, slow) = ("data/odd/05.rec", mount.slow().join("data/odd/05.rec"));
    assert!(Command::new("setfattr").args(["-n", "user.kept", "-v", "yes"]).arg(&slow).status().unwrap().success());
    assert!(Command::new("chmod").arg("640").arg(&slow).status().unwrap().success());
    staged(&mount, 0, &[name, "--wait"]);
    let before = fs::metadata(mount.at(name)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(mount.at(name)).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    assert_eq!((state(&mount, name), staging(&mount)["copies"].clone()), ("dirty".into(), 0.into()));
    assert!(fs::read(&slow).unwrap() == pattern(10_005), "nothing was written in place");
    let expected = [b"new", &pattern(10_005)[3..]].concat();
    assert!(fs::read(mount.at(name)).unwrap() == expected);
    drop(file);
    mount.sync();
    assert!(fs::read(&slow).unwrap() == expected);
    let after = fs::metadata(&slow).unwrap();
    assert_eq!(
        (before.mode(), before.uid(), before.ino()),
        (after.mode(), after.uid(), fs::metadata(mount.at(name)).unwrap().ino())
    );
    assert_eq!(xattr::get(&slow, "user.kept").unwrap().as_deref(), Some(&b"yes"[..]));
    // O_TRUNC and an appended line.
    staged(&mount, 0, &["data/odd", "--wait"]);
    fs::write(mount.at("data/odd/07.rec"), "all new").unwrap();
    OpenOptions::new().append(true).open(mount.at("data/odd/09.rec")).unwrap().write_all(b"more").unwrap();
    mount.sync();
    assert_eq!(fs::read(mount.slow().join("data/odd/07.rec")).unwrap(), b"all new");
    assert!(fs::read(mount.slow().join("data/odd/09.rec")).unwrap() == [&pattern(10_009)[..], b"more"].concat());
}

/// Larger than `copy_up_max`, it would be written in place without a copy; and who had it open before reads what is written.
#[test]
fn what_is_written_in_place_is_not_read_from_a_copy() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["copy_up_max=4KiB"], data);
    let name = "data/odd/05.rec";
    let early = File::open(mount.at(name)).unwrap();
    early.read_at(&mut [0; 10], 0).unwrap();
    staged(&mount, 0, &[name, "--wait"]);
    let writer = OpenOptions::new().read(true).write(true).open(mount.at(name)).unwrap();
    writer.write_all_at(b"in place", 0).unwrap();
    assert_eq!(staging(&mount)["copies"], 0, "it went before the first byte");
    mount.kill();
    drop((early, writer));
    mount.start();
    assert_eq!(fs::read(mount.at(name)).unwrap()[..8], *b"in place");
    until("all are found", || staging(&mount)["copies"] == 0);
}

#[test]
fn a_list_is_staged_in_its_order_and_what_fails_is_named() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], data);
    fs::hard_link(mount.slow().join("data/odd/01.rec"), mount.slow().join("other-name")).unwrap();
    let list = mount.root().with_file_name("list");
    let full = mount.at("data/odd/03.rec");
    fs::write(&list, format!("data/odd/01.rec\n{}\n\ndata/even/00.rec\ngone\n", full.display())).unwrap();
    let (said, told) = staged(&mount, 1, &["--list", list.to_str().unwrap(), ".", "--wait"]);
    assert_eq!(said, "2 files staged, 19.5 KiB; 2 failed\n");
    assert!(told.contains("/data/odd/01.rec: it has several names") && told.contains("/gone: ENOENT"), "{told}");
    let many: String =
        (0..40).map(|n| format!("data/{}/{n:02}.rec\n", if n % 2 == 0 { "even" } else { "odd" })).collect();
    let mut child = Command::new(PROGRAM);
    child.args(["stage", "--list", "-", "--wait"]).arg(mount.root()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(many.repeat(30).as_bytes()).unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert!(said.starts_with("37 files staged, ") && said.contains("1133 there already; 30 failed"), "{said}");
}

#[test]
fn a_pattern_stages_what_fits_now_and_when_the_mount_is_made() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&[], data);
    let (said, _) = staged(&mount, 0, &["data/*/1?.rec", "--wait"]);
    assert!(said.starts_with("10 files staged"), "{said}");
    let (_, told) = staged(&mount, 1, &["data/[", "--wait"]);
    assert!(told.contains("unclosed character class"), "{told}");
    mount.stop();
    mount.arguments(&["--stage", "data/even/**", "--stage", "data/odd/01.rec"]);
    mount.start();
    // The second job may not be there yet when the first one is looked at.
    until("both are done", || {
        let staging = staging(&mount);
        let jobs = staging["jobs"].as_array().unwrap();
        jobs.len() == 2 && jobs.iter().all(|job| job["state"] == "done")
    });
    assert_eq!(staging(&mount)["copies"], 26, "{}", staging(&mount));
    let said = mount.control("evict /data/even");
    assert!(said.contains("20 files evicted"), "{said}");
    assert!(mount.control("evict /").contains("6 files evicted"));
    assert_eq!((staging(&mount)["copies"].clone(), state(&mount, "data/odd/11.rec")), (0.into(), "slow".into()));
    expect_data(&mount);
}

/// `verify` compares what was staged, also by a mount before; a damaged copy is named, and evicting it is the remedy.
#[test]
fn staged_copies_are_compared() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&[], data);
    staged(&mount, 0, &["data/even", "--wait"]);
    mount.stop();
    mount.start();
    let verify = || {
        let output = Command::new(PROGRAM).arg("verify").arg(mount.root()).output().unwrap();
        let [said, told] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        (output.status.code(), said, told)
    };
    let (code, said, told) = verify();
    assert_eq!((code, said.as_str()), (Some(0), ""), "{told}");
    assert!(told.contains("20 files compared") && told.contains("0 damaged"), "{told}");
    // What says which copies are durable stands beside them.
    let shards = fs::read_dir(mount.fast().join(".dlio-fs/staged")).unwrap().map(|entry| entry.unwrap().path());
    let copies = shards.filter(|path| path.is_dir()).flat_map(|shard| fs::read_dir(shard).unwrap());
    let copy =
        copies.map(|copy| copy.unwrap().path()).find(|path| fs::metadata(path).unwrap().len() == 10_008).unwrap();
    File::options().write(true).open(copy).unwrap().write_all_at(&[!pattern(10_008)[777]], 777).unwrap();
    let line = "staged: /data/even/08.rec is damaged at byte 777; the slow file counts: evict the file, which deletes \
                the staged copy\n";
    let (code, said, told) = verify();
    assert_eq!((code, said.as_str()), (Some(1), line), "{told}");
    succeeded(Command::new(PROGRAM).arg("evict").arg(mount.at("data/even/08.rec")).output().unwrap());
    let (code, said, told) = verify();
    assert!(code == Some(0) && told.contains("19 files compared"), "{said}{told}");
    expect_data(&mount);
}

#[test]
fn jobs_are_held_and_cancelled() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], data);
    staged(&mount, 0, &["--pause", "."]);
    let (said, _) = staged(&mount, 0, &["data"]);
    assert!(said.starts_with("job 1; "), "{said}");
    let shown = staged(&mount, 0, &["--show", "."]).0;
    assert!(shown.contains("PAUSED") && shown.contains("running   /data"), "{shown}");
    assert_eq!(staged(&mount, 0, &["--cancel", "1", "."]).0, "1 job cancelled\n");
    assert!(staged(&mount, 1, &["--cancel", "1", "."]).1.contains("job 1 is not running"));
    staged(&mount, 0, &["data/even"]);
    staged(&mount, 0, &["--resume", "."]);
    until("it is done", || staging(&mount)["jobs"][1]["state"] == "done");
    assert_eq!((&staging(&mount)["copies"], &staging(&mount)["jobs"][0]["state"]), (&20.into(), &"cancelled".into()));
    assert!(mount.control("staging watch 2").contains("20 files staged"));
    assert!(mount.control("staging watch 9").contains("no job 9"));
}

/// Of a disk that turns; the order is seen in the times of the copies.
#[test]
fn files_are_staged_as_they_lie_on_the_disk() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 1000);
    let names = ["a", "b", "c", "d"];
    fs::create_dir(volume.tier().join("data")).unwrap();
    // Inodes in one order, bytes in another.
    let files = names.map(|name| File::create(volume.tier().join("data").join(name)).unwrap());
    for at in [2, 0, 3, 1] {
        (&files[at]).write_all(&vec![at as u8; 1 << 20]).unwrap();
        files[at].sync_all().unwrap();
    }
    let dev = fs::metadata(volume.tier()).unwrap().dev();
    let (major, minor) = (nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
    fs::write(format!("/sys/dev/block/{major}:{minor}/queue/rotational"), "1").unwrap();
    let place = |name: &&str| {
        let bytes = format!(
            "filefrag -v {} | awk '$1 == \"0:\" {{print $4}}'",
            volume.tier().join("data").join(name).display()
        );
        let told = succeeded(Command::new("sh").args(["-c", &bytes]).output().unwrap());
        told.trim().trim_end_matches("..").parse::<u64>().unwrap()
    };
    let mut as_they_lie = names;
    as_they_lie.sort_by_key(place);
    assert_ne!(as_they_lie, names);
    let elsewhere = Elsewhere { slow: Some(volume.tier()), fast: None };
    let mount = Mount::on(elsewhere, &["stage_bandwidth=1MiB", "reserve=0%"]);
    staged(&mount, 0, &["--wait", "data"]);
    let made = |name: &&str| {
        let ino = fs::metadata(volume.tier().join("data").join(name)).unwrap().ino();
        let copy = mount.fast().join(format!(".dlio-fs/staged/{:02x}/{ino:016x}", ino >> 8 & 0xff));
        let copy = fs::metadata(copy).unwrap();
        (copy.ctime(), copy.ctime_nsec())
    };
    let mut as_staged = names;
    as_staged.sort_by_key(made);
    assert_eq!(as_staged, as_they_lie);
}

#[test]
fn what_was_read_is_promoted_and_read_once() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::new(data);
    let mount = Mount::over(below.shown(), &[BELIEVED, "promote=true"]);
    // Half a file is not promoted.
    File::open(mount.at("data/odd/39.rec")).unwrap().read_exact(&mut [0; 100]).unwrap();
    // A file that was made a moment ago is left alone: it may change again without a new time.
    until("all are promoted", || {
        expect_data(&mount);
        staging(&mount)["promoted"] == 40
    });
    let frozen = below.freeze();
    expect_data(&mount);
    drop(frozen);
    expect_data(&mount);
    assert_eq!(staging(&mount)["promoted"], 40, "they are read from fast");
}

#[test]
fn passthrough_reads_the_copy_and_sees_what_is_written() {
    needs!(MOUNTS);
    let mount = Mount::with(&["io=passthrough"], data);
    staged(&mount, 0, &["data", "--wait"]);
    expect_data(&mount);
    let name = mount.at("data/even/10.rec");
    let reader = File::open(&name).unwrap();
    let read = |at| {
        let mut bytes = [0; 4];
        reader.read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    assert_eq!(read(0), pattern(4)[..]);
    let writer = OpenOptions::new().write(true).open(&name).unwrap();
    writer.write_all_at(b"seen", 8).unwrap();
    assert_eq!(read(8), *b"seen");
    drop((reader, writer));
    mount.sync();
    assert_eq!(fs::read(mount.slow().join("data/even/10.rec")).unwrap()[8..12], *b"seen");
}

#[test]
fn what_finds_no_room_is_left_on_the_slow_tier_and_told() {
    needs!(MOUNTS, "mkfs.ext4");
    let fast = Volume::new(96, 20_000);
    let elsewhere = Elsewhere { fast: Some(fast.tier()), ..Elsewhere::default() };
    let mut mount = Mount::idle(elsewhere, &["ballast=1MiB", "high=85%", "low=70%"]);
    fs::create_dir(mount.slow().join("big")).unwrap();
    for n in 0..20 {
        fs::write(mount.slow().join(format!("big/{n}")), vec![n; 4 << 20]).unwrap();
    }
    mount.start();
    let (said, told) = staged(&mount, 1, &["big", "--wait"]);
    assert!(said.contains("without room") && told.contains("no room for it on the fast tier"), "{said}{told}");
    let copies = staging(&mount)["copies"].as_u64().unwrap();
    assert!((1..20).contains(&copies), "{copies}");
    // A checkpoint takes the room of copies.
    mount.put("checkpoint", pattern(30 << 20));
    mount.sync();
    assert!(fs::read(mount.at("checkpoint")).unwrap() == pattern(30 << 20));
    assert!(staging(&mount)["copies"].as_u64().unwrap() < copies);
    for n in 0..20 {
        assert!(fs::read(mount.at(format!("big/{n}"))).unwrap() == vec![n; 4 << 20]);
    }
    assert_eq!(mount.stats_json()["exceptions"]["spilled"], 0);
}

/// By the file's owner, who owns no mount.
#[test]
fn an_owner_asks_by_extended_attributes() {
    needs!(MOUNTS, "setfattr");
    let mount = Mount::with(&["settle=1h", "live_after=2h"], |slow| {
        data(slow);
        assert!(
            Command::new("chown").arg(USER.to_string()).arg(slow.join("data/odd/01.rec")).status().unwrap().success()
        );
        // Whoever may write to a file is not its owner.
        fs::set_permissions(slow.join("data/odd/03.rec"), fs::Permissions::from_mode(0o666)).unwrap();
    });
    let set = |name: &str, attribute: &str| {
        let script = format!("setfattr -n user.dlio.{attribute} -v 1 {name}");
        mount.as_user(USER, &script).status.success()
    };
    assert!(set("data/odd/01.rec", "stage") && !set("data/odd/03.rec", "stage"));
    until("it is staged", || state(&mount, "data/odd/01.rec") == "staged");
    assert_eq!(staging(&mount)["copies"], 1);
    assert!(set("data/odd/01.rec", "pin"));
    fs::create_dir(mount.at("hers")).unwrap();
    std::os::unix::fs::chown(mount.at("hers"), Some(USER), None).unwrap();
    assert!(!set("hers", "pin"), "directories are the mount's owner's to pin");
    assert_eq!(mount.control("pins").trim(), "/data/odd/01.rec");
    xattr::set(mount.at("data/odd/01.rec"), "user.dlio.pin", b"0").unwrap();
    assert!(set("data/odd/01.rec", "evict"));
    assert_eq!(state(&mount, "data/odd/01.rec"), "slow");
    // What only the fast tier has is not evicted, but copied down before all others.
    mount.put("new", "x");
    assert_eq!(errno(xattr::set(mount.at("new"), "user.dlio.evict", b"1")), Errno::EBUSY);
    xattr::set(mount.at("new"), "user.dlio.drain", b"1").unwrap();
    until("it is there", || mount.slow().join("new").exists());
    assert_eq!(xattr::list(mount.at("new")).unwrap().count(), 0);
}

#[test]
fn what_is_pinned_stays_when_a_checkpoint_needs_the_room() {
    needs!(MOUNTS, "mkfs.ext4");
    let fast = Volume::new(96, 20_000);
    let elsewhere = Elsewhere { fast: Some(fast.tier()), ..Elsewhere::default() };
    let mut mount = Mount::idle(elsewhere, &["ballast=1MiB", "high=85%", "low=70%"]);
    for dir in ["kept", "other"] {
        fs::create_dir(mount.slow().join(dir)).unwrap();
        for n in 0..4 {
            fs::write(mount.slow().join(format!("{dir}/{n}")), vec![n; 4 << 20]).unwrap();
        }
    }
    mount.start();
    staged(&mount, 0, &["kept", "other", "--wait"]);
    let pin = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).args(arguments).current_dir(mount.root()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(pin(&["pin", "kept"]), "/kept is pinned\n");
    assert_eq!(pin(&["pin", "--list", "."]), "/kept\n");
    mount.put("checkpoint", pattern(45 << 20));
    mount.sync();
    let states = |dir: &str| (0..4).map(|n| state(&mount, &format!("{dir}/{n}"))).collect::<Vec<_>>();
    assert_eq!(states("kept"), ["staged"; 4], "they are pinned");
    assert!(states("other").contains(&"slow".to_owned()), "the checkpoint had their room: {:?}", states("other"));
    assert!(!mount.control("evict /kept").contains("4 files evicted"));
    assert_eq!(states("kept"), ["staged"; 4]);
    mount.stop();
    mount.start();
    assert_eq!(mount.control("pins").trim(), "/kept", "a pin outlives the mount");
    assert!(mount.control("unpin /kept").contains("no longer pinned"));
    assert!(mount.control("evict /kept").contains("4 files evicted"));
    assert!(mount.control("unpin /kept").contains("error: /kept is not pinned"));
}
