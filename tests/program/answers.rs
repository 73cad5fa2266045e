//! What the pages of `docs/` say to users and no other test shows. Needs root and /dev/fuse.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::common::rig::{NEVER_SETTLES, PROGRAM, Rig};
use crate::common::{Mount, pattern};
use crate::needs::{MOUNTS, needs};

#[test]
fn syncfs_reaches_nobody_and_fsync_of_the_mount_point_does() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=1h", "live_after=2h"], |_| ());
    mount.put("f", pattern(4096));
    mount.sh("sync; sync -f f");
    assert_eq!((mount.calls("fsync").0, mount.calls("fsyncdir").0), (0, 0), "{}", mount.stats());
    assert!(!mount.slow().join("f").exists());
    mount.python("import os; os.fsync(os.open('.', os.O_RDONLY))");
    assert_eq!(mount.calls("fsyncdir").0, 1);
    mount.sync();
    assert!(mount.slow().join("f").exists());
}

/// As Lightning does it: a temporary file, then `shutil.move`.
#[test]
fn a_move_within_the_mount_is_one_rename_and_from_outside_a_copy() {
    needs!(MOUNTS);
    let mount = Mount::new();
    fs::create_dir(mount.at(".tmp")).unwrap();
    let save = |tmpdir: &Path, name: &str| {
        let (renames, writes) = (mount.calls("rename").0, mount.calls("write").1);
        // Given in this way, Python does not try with a file of its own whether the directory can be written.
        let script = "import os, shutil, sys, tempfile\n\
            tempfile.tempdir = os.environ['TMPDIR']\n\
            fd, temporary = tempfile.mkstemp()\n\
            os.write(fd, bytes(1 << 20))\n\
            os.close(fd)\n\
            shutil.move(temporary, sys.argv[1])\n";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(mount.at(name)).env("TMPDIR", tmpdir);
        assert!(command.status().unwrap().success());
        assert_eq!(fs::metadata(mount.at(name)).unwrap().len(), 1 << 20);
        (mount.calls("rename").0 - renames, mount.calls("write").1 - writes)
    };
    assert_eq!(save(&mount.at(".tmp"), "inside.ckpt"), (1, 1 << 20));
    let outside = tempfile::tempdir().unwrap();
    assert_eq!(save(outside.path(), "outside.ckpt"), (0, 1 << 20), "no rename: copied under its final name");
}

#[test]
fn watchers_are_told_of_changes_through_the_mount_only() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let watch = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
    watch.add_watch(&mount.root(), AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO).unwrap();
    let told = || watch.read_events().unwrap().into_iter().map(|event| event.name.unwrap()).collect::<Vec<_>>();
    fs::write(mount.slow().join("foreign"), "x").unwrap();
    assert_eq!(fs::read_to_string(mount.at("foreign")).unwrap(), "x");
    mount.sh("echo weights > temporary; mv temporary ckpt");
    assert_eq!(told(), ["temporary", "ckpt"]);
}

#[test]
fn a_slow_tree_is_used_from_one_fast_tier_after_the_other() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let nodes = ["fast", "other"].map(|fast| rig.path(fast));
    fs::create_dir(&nodes[1]).unwrap();
    // Forth and back: the first node still has its copy of a file that the second one changes.
    for (i, fast) in nodes.iter().chain([&nodes[0]]).enumerate() {
        assert!(mount_with_fast(&rig, fast).status().unwrap().success());
        if i > 0 {
            assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), format!("version {}", i - 1));
        }
        fs::write(rig.mnt("ckpt"), format!("version {i}")).unwrap();
        rig.umount_safely();
        assert_eq!(rig.slow_has("ckpt"), Some(format!("version {i}")));
    }
}

fn mount_with_fast(rig: &Rig, fast: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("mount").arg(rig.point()).arg("--log-file").arg(rig.path("log"));
    command.arg("--fast").arg(fast).arg("--slow").arg(rig.path("slow")).stdin(Stdio::null());
    command
}

#[test]
fn what_was_left_behind_is_deleted_and_a_new_mount_begins_anew() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&NEVER_SETTLES);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    rig.umount_safely();
    for tier in ["fast", "slow"] {
        fs::remove_dir_all(rig.path(tier).join(".dlio-fs")).unwrap();
    }
    assert_eq!(fs::read_dir(rig.path("fast")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(rig.path("slow")).unwrap().count(), 1, "the user's files and nothing else");
    rig.mount(&[]);
    assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights");
    fs::write(rig.mnt("ckpt"), "newer").unwrap();
    rig.umount_safely();
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("newer"));
}
