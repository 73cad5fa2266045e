//! A slow tree with parts that no rename reaches: another file system mounted inside of it, a btrfs subvolume, a project.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Elsewhere, Mount, Volume, succeeded};
use crate::needs::{MOUNTS, needs};

/// Runs a command of the system.
fn run(program: &str, arguments: &[&str], at: &Path) {
    succeeded(Command::new(program).args(arguments).arg(at).output().unwrap());
}

/// Something that a test has mounted; taken away at its end.
struct Also<'a>(&'a Path);

impl Drop for Also<'_> {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

/// What is written in `part`, and behind it, gets there; also what is moved there, and over two starts.
#[track_caller]
fn reaches(mount: &mut Mount, part: &str) {
    let at = |name: &str| format!("{part}/{name}");
    mount.put(&at("one"), "one");
    fs::create_dir(mount.at(at("dir"))).unwrap();
    mount.put(&at("dir/x"), "x");
    mount.put("later", "later");
    mount.sync();
    let slow = mount.slow();
    let has = |name: &str| fs::read_to_string(slow.join(name)).ok();
    assert_eq!(["one", "dir/x"].map(|name| has(&at(name))), [Some("one".to_owned()), Some("x".to_owned())]);
    assert_eq!(has("later").as_deref(), Some("later"));
    // A new version in place of the old one, a file that moves in, one that moves out, and what only `mv` moves.
    mount.put(&at("one"), "another");
    mount.put("two", "two");
    fs::rename(mount.at("two"), mount.at(at("two"))).unwrap();
    fs::rename(mount.at(at("dir/x")), mount.at("x")).unwrap();
    fs::create_dir(mount.at("tree")).unwrap();
    mount.put("tree/y", "y");
    succeeded(Command::new("mv").arg(mount.at("tree")).arg(mount.at(at("tree"))).output().unwrap());
    mount.sync();
    let names = [at("one"), at("two"), "x".to_owned(), at("tree/y"), "two".to_owned(), at("dir/x")];
    assert_eq!(names.map(|name| has(&name).unwrap_or_default()), ["another", "two", "x", "y", "", ""]);
    let listed = fs::read_dir(mount.at(part)).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(listed.into_iter().all(|name| name != ".dlio-fs"));
    assert!(fs::create_dir(mount.at(at(".dlio-fs"))).is_err());
    mount.stop();
    mount.start();
    mount.put(&at("dir/z"), "z");
    mount.sync();
    assert_eq!(fs::read_to_string(slow.join(at("dir/z"))).unwrap(), "z");
    assert!(mount.verdict().starts_with("SAFE"), "{}", mount.verdict());
}

/// A data disk is mounted inside of the tree: the first file there held all that came behind it, for ever.
#[test]
fn what_is_written_below_a_mount_inside_of_the_slow_tree_gets_there() {
    needs!(MOUNTS);
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s"]);
    let inside = mount.slow().join("data");
    fs::create_dir(&inside).unwrap();
    run("mount", &["-t", "tmpfs", "none"], &inside);
    let _also = Also(&inside);
    mount.start();
    reaches(&mut mount, "data");
    assert_eq!(fs::remove_dir(mount.at("data")).unwrap_err().raw_os_error(), Some(nix::libc::EBUSY));
    mount.stop();
}

/// Each project has its own subvolume.
#[test]
fn what_is_written_in_a_subvolume_gets_there() {
    needs!(MOUNTS, "mkfs.btrfs");
    if !fs::read_to_string("/proc/filesystems").unwrap().contains("btrfs") {
        return;
    }
    let volume = Volume::btrfs(320);
    run("btrfs", &["subvolume", "create"], &volume.tier().join("proj"));
    let mut mount = Mount::over(volume.tier(), &["settle=0s"]);
    reaches(&mut mount, "proj");
    mount.stop();
}

/// Each project has its own quota: the device is the same, and only the rename tells.
#[test]
fn what_is_written_in_a_project_gets_there() {
    needs!(MOUNTS, "mkfs.xfs", "xfs_io");
    let volume = Volume::xfs();
    let project = volume.tier().join("proj");
    fs::create_dir(&project).unwrap();
    for command in ["chproj 42", "chattr +P"] {
        run("xfs_io", &["-c", command], &project);
    }
    let mut mount = Mount::over(volume.tier(), &["settle=0s"]);
    reaches(&mut mount, "proj");
    mount.stop();
}
