//! What users of other caches and staging tools have complained of, as tests of this one. Each names where the complaint can be
//! read. Those that are tested elsewhere, under the name of what is promised, are not repeated here.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::trees::{assert_same, content};
use crate::common::{Elsewhere, Mount, Relay, Volume, names, pattern, until};
use crate::needs::{MOUNTS, needs};
use nix::errno::Errno;

const MIB: usize = 1 << 20;

/// `dlio-fs` in the mount's root, to succeed.
fn dlio(mount: &Mount, arguments: &[&str]) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_dlio-fs")).args(arguments).current_dir(mount.root()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn is_safe(mount: &Mount) -> bool {
    mount.verdict().starts_with("SAFE")
}

/// Where a slow tier has what is being copied to it.
fn under_way(mount: &Mount) -> PathBuf {
    let tmp = fs::read_dir(mount.slow().join(".dlio-fs/tmp")).unwrap();
    tmp.map(|entry| entry.unwrap().path()).next().unwrap()
}

/// Where a fast tier has its staged copies.
fn copies(fast: &Path) -> Vec<PathBuf> {
    let shards = fs::read_dir(fast.join(".dlio-fs/staged")).unwrap().map(|entry| entry.unwrap().path());
    let shards = shards.filter(|path| path.is_dir() && path.file_name().is_some_and(|name| name != "new"));
    shards.flat_map(|shard| fs::read_dir(shard).unwrap().map(|entry| entry.unwrap().path())).collect()
}

/// juicefs#3143: the upload goes on after the file was deleted; Alluxio#14476: what was deleted is made again when it is persisted.
#[test]
fn a_file_that_is_deleted_while_it_is_copied_does_not_come_back() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s", "drain_bandwidth=2MiB"], |_| ());
    mount.put("model", content(1, 8 * MIB));
    until("it is being copied", || !names(&under_way(&mount)).is_empty());
    fs::remove_file(mount.at("model")).unwrap();
    until("nothing is pending", || is_safe(&mount));
    assert_eq!(names(&mount.slow()), [".dlio-fs"]);
    until("nothing is left of the copy", || names(&under_way(&mount)).is_empty());
}

/// Alluxio#18667: a directory that was renamed while its files were persisted was there twice.
#[test]
fn a_directory_that_is_renamed_while_its_files_are_copied_is_there_once() {
    needs!(MOUNTS);
    // The first second's worth goes at once: three more are left to be seen.
    let mount = Mount::with(&["settle=0s", "drain_bandwidth=1MiB"], |_| ());
    fs::create_dir(mount.at("step-1.tmp")).unwrap();
    for n in 0..4 {
        mount.put(&format!("step-1.tmp/{n}"), content(n, MIB));
    }
    until("they are being copied", || !names(&under_way(&mount)).is_empty());
    fs::rename(mount.at("step-1.tmp"), mount.at("step-1")).unwrap();
    mount.sync();
    assert_eq!(names(&mount.slow()), [".dlio-fs", "step-1"]);
    assert_same(&mount.root(), &mount.slow());
}

/// rclone#7309: what waited for its write-back delay was dropped by the unmount; juicefs#2644.
#[test]
fn what_waits_for_its_delay_outlives_the_unmount() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["settle=1h", "live_after=2h"], |_| ());
    mount.put("model", content(3, MIB));
    mount.stop();
    assert_eq!(names(&mount.slow()), [".dlio-fs"], "it had to wait an hour");
    mount.start();
    assert_eq!(fs::read(mount.at("model")).unwrap(), content(3, MIB));
    mount.sync();
    assert_eq!(fs::read(mount.slow().join("model")).unwrap(), content(3, MIB));
}

/// rclone#9530: a remote that could not be reached was taken for one without the file.
#[test]
fn a_slow_tier_that_does_not_answer_is_not_taken_for_an_empty_one() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::new(|slow| fs::write(slow.join("data"), pattern(100_000)).unwrap());
    let mount = Mount::over(below.shown(), &["slow_wait=2s", "revalidate=0s", "attribute_lifetime_slow=0s"]);
    assert_eq!(names(&mount.root()), ["data"]);
    let frozen = below.freeze();
    let failed = File::open(mount.at("data")).and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
    assert_eq!(Errno::from_raw(failed.unwrap_err().raw_os_error().unwrap()), Errno::EIO);
    drop(frozen);
    until("it is read again", || fs::read(mount.at("data")).is_ok_and(|bytes| bytes == pattern(100_000)));
}

/// juicefs#6161: what was evicted could not be read until the next mount.
#[test]
fn what_was_evicted_is_read_at_once_and_so_is_what_is_staged_after_that() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s", "keep=0"], |_| ());
    mount.put("model", content(4, 2 * MIB));
    mount.sync();
    let mut open = File::open(mount.at("model")).unwrap();
    let all = || fs::read(mount.at("model")).unwrap() == content(4, 2 * MIB);
    for _ in 0..3 {
        mount.control("evict /model");
        assert!(all());
        mount.control("stage /model");
        until("it is staged", || fs::read_to_string(mount.at(".dlio/staging")).unwrap().contains("done"));
        assert!(all());
    }
    let mut bytes = Vec::new();
    std::io::copy(&mut open, &mut bytes).unwrap();
    assert!(bytes == content(4, 2 * MIB), "also through a handle of before");
}

/// minio#20745: a staged file of 0 bytes after a reboot.
#[test]
fn a_copy_that_lost_its_bytes_is_not_served() {
    needs!(MOUNTS);
    let data = |slow: &Path| (0..8).for_each(|n| fs::write(slow.join(n.to_string()), pattern(30_000 + n)).unwrap());
    let mut mount = Mount::with(&[], data);
    dlio(&mount, &["stage", ".", "--wait"]);
    mount.kill();
    let all = copies(&mount.fast());
    assert_eq!(all.len(), 8);
    for (n, path) in all.iter().enumerate() {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len([0, 10_000, 60_000][n % 3]).unwrap();
    }
    mount.start();
    for n in 0..8 {
        assert!(fs::read(mount.at(n.to_string())).unwrap() == pattern(30_000 + n), "{n}");
    }
    until("the copies are gone", || copies(&mount.fast()).is_empty());
}

/// autotier#58: a file that stays open is never moved.
#[test]
fn a_file_that_stays_open_is_copied_all_the_same() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s", "live_after=1s"], |_| ());
    let mut log = File::create(mount.at("events.out")).unwrap();
    log.write_all(b"step 1\n").unwrap();
    let slow = mount.slow().join("events.out");
    until("the slow tier has it", || fs::read(&slow).is_ok_and(|bytes| bytes == b"step 1\n"));
    log.write_all(b"step 2\n").unwrap();
    until("and what came after", || fs::read(&slow).is_ok_and(|bytes| bytes == b"step 1\nstep 2\n"));
}

/// mergerfs#1180: a file that was appended to while it was moved to another disk.
#[test]
fn appending_to_a_file_that_goes_from_tier_to_tier_loses_nothing() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s", "keep=0"], |_| ());
    let mut expected: Vec<u8> = Vec::new();
    let path = mount.put("log", "");
    for round in 0..12 {
        let mut log = OpenOptions::new().append(true).open(&path).unwrap();
        for line in 0..50 {
            let line = format!("round {round} line {line}\n");
            log.write_all(line.as_bytes()).unwrap();
            expected.extend(line.as_bytes());
            if round % 3 == 2 && line.ends_with("25\n") {
                mount.control("sync");
            }
        }
        drop(log);
        match round % 3 {
            0 => mount.sync(),
            1 => {
                mount.sync();
                dlio(&mount, &["evict", "log"]);
                mount.control("stage /log");
            }
            _ => {}
        }
        assert!(fs::read(&path).unwrap() == expected, "round {round}");
    }
    mount.sync();
    assert!(fs::read(mount.slow().join("log")).unwrap() == expected);
}

/// gcsfuse#4221: writers that wait for room wait for each other; mergerfs#822: all stall when a branch is full.
#[test]
fn writers_that_fill_the_fast_tier_together_all_come_to_their_end() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(96, 512);
    let elsewhere = Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() };
    let mount = Mount::on(elsewhere, &["settle=0s", "ballast=4MiB", "keep=0"]);
    let write = |n: usize| {
        let mut file = File::create(mount.at(format!("shard-{n}"))).unwrap();
        content(n, 32 * MIB).chunks(MIB).for_each(|piece| file.write_all(piece).unwrap());
        file.sync_all().unwrap();
    };
    std::thread::scope(|scope| {
        (0..6).for_each(|n| drop(scope.spawn(move || write(n))));
    });
    for n in 0..6 {
        assert!(fs::read(mount.at(format!("shard-{n}"))).unwrap() == content(n, 32 * MIB), "{n}");
    }
    mount.sync();
    assert_same(&mount.root(), &mount.slow());
}

/// rclone#4998: a full disk was told for each file, again and again.
#[test]
fn a_full_slow_tier_is_told_once_and_not_for_each_file() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(32, 2048);
    let elsewhere = Elsewhere { slow: Some(volume.tier()), ..Elsewhere::default() };
    let mount = Mount::on(elsewhere, &["settle=0s"]);
    let filler = volume.fill(1 << 20);
    for n in 0..300 {
        mount.put(&format!("{n}"), content(n, 20_000));
    }
    until("it is held", || mount.verdict().contains("HELD: "));
    // It has tried again meanwhile.
    let tries = || mount.log().lines().filter(|line| line.contains("ENOSPC") || line.contains("No space")).count();
    fs::remove_file(filler).unwrap();
    until("it goes on by itself", || is_safe(&mount));
    assert!((1..=4).contains(&tries()), "{}", mount.log());
}

/// rclone#7024, #6696: a mount that did not answer for hours, for its queue was long.
#[test]
fn a_long_queue_does_not_keep_a_mount_from_answering() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["settle=1h", "live_after=2h"], |_| ());
    for n in 0..3_000 {
        mount.put(&format!("{n}"), n.to_string());
    }
    mount.kill();
    mount.start();
    assert!(mount.stats_json()["pipeline"]["pending_events"].as_u64() >= Some(3_000), "{}", mount.verdict());
    assert_eq!(names(&mount.root()).len(), 3_000);
    assert_eq!(fs::read_to_string(mount.at("2999")).unwrap(), "2999");
    assert_eq!(names(&mount.slow()), [".dlio-fs"]);
}
