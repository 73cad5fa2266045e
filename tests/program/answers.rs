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

/// What `docs/SEMANTICS.md` says is missing against ext4.
#[test]
fn what_a_mount_lacks_against_ext4_is_what_the_page_lists() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.python(LACKING);
}

const LACKING: &str = r#"
import ctypes, errno, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
libc.fanotify_mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
def lacks(code, call):
    try: done = call()
    except OSError as e: assert e.errno == code, e
    else: assert done == -1 and ctypes.get_errno() == code, (done, ctypes.get_errno(), code)
file = os.open("f", os.O_RDWR | os.O_CREAT)
os.write(file, bytes(65536))
ENOTSUP = errno.EOPNOTSUPP
lacks(ENOTSUP, lambda: os.open(".", os.O_TMPFILE | os.O_RDWR))
for collapse_insert in 0x08, 0x20: lacks(ENOTSUP, lambda: libc.fallocate(file, collapse_insert, 4096, 4096))
for mode in 0, 1, 3, 0x10, 0x11: assert libc.fallocate(file, mode, 4096, 4096) == 0
shown = ctypes.create_string_buffer(256)
assert libc.statx(-100, b"f", 0, 0xfff, shown) == 0 and not struct.unpack_from("I", shown)[0] & 0x800
for key in "security.selinux", "security.ima", "security.x": lacks(ENOTSUP, lambda: os.setxattr("f", key, b"x"))
os.setxattr("f", "security.capability", bytes([1, 0, 0, 2]) + bytes(16))
os.setxattr("f", "trusted.x", b"x")
flags, project, version, label = (0x80086601, 8), (0x801c581f, 28), (0x80087601, 8), (0x81009431, 256)
verity = (0x40806685, 128)
for code, size in flags, project, version, label, verity:
    lacks(errno.ENOTTY, lambda: fcntl.ioctl(file, code, bytearray(size)))
lacks(ENOTSUP, lambda: fcntl.ioctl(file, 0xc020660b, bytearray(struct.pack("QQIIII", 0, 2**63 - 1, 0, 0, 1, 0) + bytes(56))))
lacks(ENOTSUP, lambda: fcntl.ioctl(os.open("g", os.O_RDWR | os.O_CREAT), 0x40049409, file))
assert os.copy_file_range(file, os.open("g", os.O_RDWR), 100, 0, 0) == 100
lacks(errno.EINVAL, lambda: libc.swapon(os.path.abspath("f").encode(), 0))
lacks(errno.EINVAL, lambda: libc.renameat2(-100, b"g", -100, b"h", 4))
lacks(ENOTSUP, lambda: os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT))
group = libc.fanotify_init(0x200, 0)
lacks(errno.ENODEV, lambda: libc.fanotify_mark(group, 0x101, 0x100, -100, b"."))
lacks(errno.ENOSYS, lambda: libc.syscall(443, file, 0x80000400, 0, 0))
"#;

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
