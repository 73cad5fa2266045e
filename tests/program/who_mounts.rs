//! Who mounts, and over what: the slow tier itself, read-only trees, unprivileged users, containers; and what is said
//! when something stands in the way.
//!
//! Needs root and /dev/fuse; other users and containers are played by `setpriv` and `unshare`.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;

use crate::common::rig::{NEVER_SETTLES, PROGRAM, Rig, copy_program, program, succeeds, text};
use crate::common::{Volume, errno, until};
use crate::needs::{MOUNTS, needs};

const NOBODY: u32 = 65534;

/// Something else that a test mounted; taken away at its end.
#[derive(Debug)]
struct Also(PathBuf);

impl Also {
    fn tmpfs(at: &Path) -> Also {
        mount(Some("none"), at, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        Also(at.to_path_buf())
    }

    fn bind(from: &Path, at: &Path) -> Also {
        fs::create_dir_all(at).unwrap();
        mount(Some(from), at, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>).unwrap();
        Also(at.to_path_buf())
    }

    fn remount(&self, flags: MsFlags) {
        mount(None::<&str>, &self.0, None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>).unwrap();
    }
}

impl Drop for Also {
    fn drop(&mut self) {
        // A mount of ours may be on top of it.
        while umount2(&self.0, MntFlags::MNT_DETACH).is_ok() {}
    }
}

fn ran(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    (status.code(), text(&stdout), text(&stderr))
}

/// Runs what must fail with one line that has all `parts`.
#[track_caller]
fn refused(command: &mut Command, code: i32, parts: &[&str]) {
    let (exit, _, line) = ran(command);
    assert_eq!(exit, Some(code), "{command:?}: {line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    parts.iter().for_each(|part| assert!(line.contains(part), "no {part:?} in {line}"));
}

#[test]
fn a_mount_over_its_own_slow_tier_works_on_the_tree_beneath() {
    needs!(MOUNTS);
    let rig = Rig::over_itself();
    fs::create_dir(rig.path("slow/run")).unwrap();
    fs::write(rig.path("slow/run/old"), "there before").unwrap();
    let beneath = Also::bind(&rig.path("slow"), &rig.path("beneath"));
    rig.mount(&NEVER_SETTLES);
    assert_eq!(fs::read_to_string(rig.mnt("run/old")).unwrap(), "there before");
    fs::write(rig.mnt("run/new"), "weights").unwrap();
    assert!(!beneath.0.join("run/new").exists(), "it is on the fast tier only");
    succeeds(program().arg("sync").arg(rig.point()));
    assert_eq!(fs::read_to_string(beneath.0.join("run/new")).unwrap(), "weights");
    assert!(!rig.mnt(".dlio-fs").exists(), "what is ours is hidden");
    let lock = fs::read_to_string(rig.path("fast/.dlio-fs/lock")).unwrap();
    assert!(lock.contains(&format!(" slow={} ", rig.path("slow").display())), "{lock}");

    let (code, out, _) = ran(program().arg("status").arg(rig.point()));
    assert_eq!(code, Some(0), "{out}");
    let (code, out, _) = ran(program().arg("doctor").arg("--slow").arg(rig.point()));
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("is on a dlio-fs mount"), "{out}");
    refused(&mut rig.mount_command(), 2, &["already has a dlio-fs mount", "dlio-fs umount"]);

    rig.umount_safely();
    assert_eq!(
        fs::read_to_string(rig.path("slow/run/new")).unwrap(),
        "weights",
        "the bare tree has it at the same path"
    );
}

/// The dead mount hides the slow tree, which is found beneath it: a directory, a file system that is mounted just there,
/// with another one inside of it.
#[test]
fn a_dead_mount_over_its_own_slow_tier_is_replaced_and_the_tree_beneath_found() {
    needs!(MOUNTS);
    for on_a_mount in [false, true] {
        let rig = Rig::over_itself();
        let _own = on_a_mount.then(|| Also::tmpfs(&rig.path("slow")));
        fs::create_dir(rig.path("slow/inner")).unwrap();
        let inner = Also::tmpfs(&rig.path("slow/inner"));
        fs::write(inner.0.join("far"), "beyond a mount").unwrap();
        let _beneath = Also::bind(&rig.path("slow"), &rig.path("beneath"));
        rig.mount(&NEVER_SETTLES);
        for round in 0..2 {
            fs::write(rig.mnt(&format!("ckpt-{round}")), "weights").unwrap();
            rig.kill_daemon();
            assert_eq!(errno(fs::write(rig.mnt("swallowed"), "")), Errno::ENOTCONN);
            let (code, out, _) = ran(program().arg("status").arg(rig.point()));
            assert_eq!(code, Some(1), "{out}");
            assert!(out.contains("mount it again"), "{out}");
            rig.mount(&NEVER_SETTLES);
            assert_eq!(fs::read_to_string(rig.mnt(&format!("ckpt-{round}"))).unwrap(), "weights");
            assert_eq!(fs::read_to_string(rig.mnt("inner/far")).unwrap(), "beyond a mount");
        }
        rig.umount_safely();
        assert_eq!(rig.slow_has("ckpt-1").as_deref(), Some("weights"), "no dead mount is left below");
        assert_eq!(fs::read_to_string(rig.path("beneath/ckpt-0")).unwrap(), "weights", "in the one slow tree");
        assert!(!rig.path("slow/swallowed").exists());
        // The name space in which it was looked for keeps nothing busy.
        umount2(&rig.path("beneath"), MntFlags::MNT_DETACH).unwrap();
        until("the inner file system is free", || umount2(&inner.0, MntFlags::empty()).is_ok());
    }
}

#[test]
fn what_was_left_over_its_own_slow_tier_is_rescued_without_a_mount() {
    needs!(MOUNTS);
    let rig = Rig::over_itself();
    rig.mount(&NEVER_SETTLES);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    rig.kill_daemon();
    let (code, _, line) = ran(program().arg("umount").arg(rig.point()));
    assert_eq!(code, Some(3), "{line}");
    assert!(!rig.path("slow/ckpt").exists(), "the bare tree, without it");
    succeeds(program().arg("rescue").arg(rig.path("fast")).arg("--to").arg(rig.path("out")));
    assert_eq!(fs::read_to_string(rig.path("out/ckpt")).unwrap(), "weights");
}

#[test]
fn a_tier_on_a_mount_of_ours_is_refused() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    fs::create_dir(rig.mnt("inside")).unwrap();
    let other = Rig::new();
    let mut command = program();
    command.arg("mount").arg(other.point()).arg("--fast").arg(other.path("fast")).arg("--slow").arg(rig.mnt("inside"));
    refused(&mut command, 2, &["--slow", "is on a dlio-fs mount"]);
    rig.umount_safely();
}

#[test]
fn a_read_only_mount_takes_no_changes_and_goes_on_with_what_is_pending() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&NEVER_SETTLES);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    assert_eq!(rig.umount(&["--now"]).status.code(), Some(3));
    for flag in [&["-o", "ro,settle=10ms"][..], &["--read-only"]] {
        rig.mount(flag);
        assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights");
        assert_eq!(errno(File::create(rig.mnt("new"))), Errno::EROFS);
        assert_eq!(errno(fs::remove_file(rig.mnt("ckpt"))), Errno::EROFS);
        until("it is on the slow tier", || rig.slow_has("ckpt").as_deref() == Some("weights"));
        rig.umount_safely();
    }
}

#[test]
fn a_mount_is_remounted_read_only_and_back() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&["-o", "ro"]);
    let remount = |how: &str| succeeds(program().arg("mount").arg(rig.point()).arg("-o").arg(format!("remount,{how}")));
    remount("rw");
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    remount("ro");
    assert_eq!(errno(File::create(rig.mnt("new"))), Errno::EROFS);
    rig.umount_safely();
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights"));
}

/// A data set on a read-only file system that nobody ever mounted: nothing is made there, and the same fast tier goes on
/// once the tree can be written.
#[test]
fn a_slow_tree_on_a_read_only_file_system_is_served_read_only() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let slow = Also::tmpfs(&rig.path("slow"));
    fs::create_dir(slow.0.join("data")).unwrap();
    fs::write(slow.0.join("data/sample"), "pixels").unwrap();
    slow.remount(MsFlags::MS_RDONLY);
    let (code, _, line) = ran(&mut rig.mount_command());
    assert_eq!(code, Some(0), "{line}");
    assert!(line.contains("note: ") && line.contains("the mount is read-only"), "{line}");
    assert_eq!(fs::read_to_string(rig.mnt("data/sample")).unwrap(), "pixels");
    assert_eq!(errno(File::create(rig.mnt("new"))), Errno::EROFS);
    let (code, out, _) = ran(program().arg("status").arg(rig.point()));
    assert_eq!(code, Some(0), "{out}");
    let mut remount = program();
    refused(
        remount.arg("mount").arg(rig.point()).args(["-o", "remount,rw"]),
        1,
        &["stays read-only", "unmount, and mount again"],
    );
    rig.umount_safely();
    assert!(!slow.0.join(".dlio-fs").exists());

    slow.remount(MsFlags::empty());
    rig.mount(&[]);
    fs::write(rig.mnt("new"), "weights").unwrap();
    rig.umount_safely();
    assert_eq!(rig.slow_has("new").as_deref(), Some("weights"));
    slow.remount(MsFlags::MS_RDONLY);
    refused(&mut rig.mount_command(), 2, &["is mounted read-only", "or mount it with -o ro"]);
    rig.mount(&["-o", "ro"]);
    assert_eq!(fs::read_to_string(rig.mnt("new")).unwrap(), "weights");
    rig.umount_safely();
}

/// What the fast tier owes to a tree that cannot be written now is shown, kept, and brought over later.
#[test]
fn what_is_owed_to_a_tree_that_became_read_only_waits() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let slow = Also::tmpfs(&rig.path("slow"));
    rig.mount(&NEVER_SETTLES);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    assert_eq!(rig.umount(&["--now"]).status.code(), Some(3));
    slow.remount(MsFlags::MS_RDONLY);
    refused(&mut rig.mount_command(), 2, &["is mounted read-only", "or mount it with -o ro"]);
    rig.mount(&["-o", "ro"]);
    assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights");
    for word in ["sync", "drain"] {
        // It waited for ever.
        let (code, _, said) = ran(Command::new("timeout").arg("60").arg(PROGRAM).args([word]).arg(rig.point()));
        assert_eq!(code, Some(1), "{word}: {said}");
        assert!(said.contains("cannot come") && said.contains("make the slow tier writable"), "{word}: {said}");
    }
    let left = rig.umount(&[]);
    assert_eq!(left.status.code(), Some(3), "it does not wait for what cannot come: {left:?}");
    assert!(text(&left.stdout).contains("ckpt"), "{left:?}");
    slow.remount(MsFlags::empty());
    rig.mount(&[]);
    rig.umount_safely();
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights"));
}

#[test]
fn relative_paths_and_bind_mounts_are_the_same_mount() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let here = |command: &mut Command| succeeds(command.current_dir(rig.dir.path()));
    here(program().args(["mount", "mnt", "--fast", "fast", "--slow", "./slow", "--log-file", "log"]));
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    let bound = Also::bind(&rig.point(), &rig.path("bound"));
    assert_eq!(fs::read_to_string(bound.0.join("ckpt")).unwrap(), "weights");
    here(program().args(["sync", "bound"]));
    assert!(here(program().args(["status", "bound"])).starts_with("SAFE"));
    let (code, _, line) = ran(program().args(["umount", "mnt"]).current_dir(rig.dir.path()));
    assert_eq!(code, Some(0), "{line}");
    assert!(line.contains("continues at") && line.contains("bound"), "{line}");
    fs::write(bound.0.join("more"), "still there").unwrap();
    here(program().args(["umount", "bound"]));
    assert_eq!(rig.slow_has("more").as_deref(), Some("still there"));
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights"));
    until("the daemon has ended", || fs::read_to_string(rig.path("fast/.dlio-fs/lock")).unwrap().starts_with("left "));
}

/// It was said to be safe, although nobody had looked.
#[test]
fn a_mount_that_continues_elsewhere_says_what_is_pending() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&NEVER_SETTLES);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    let bound = Also::bind(&rig.point(), &rig.path("bound"));
    let left = rig.umount(&["--json"]);
    let told: serde_json::Value = serde_json::from_slice(&left.stdout).unwrap();
    assert_eq!((&told["safe"], &told["files"]), (&false.into(), &1.into()), "{left:?}");
    assert!(told["changes"].as_u64() > Some(0), "{left:?}");
    assert_eq!(left.status.code(), Some(3), "{left:?}");
    succeeds(program().arg("umount").arg(&bound.0));
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights"));
}

/// A rig that belongs to nobody, with the program where that user can run it.
fn rig_of_nobody(rig: Rig) -> Rig {
    for name in ["", "mnt", "fast", "slow"] {
        std::os::unix::fs::chown(rig.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // Where it was built, nobody else may be able to look.
    copy_program(&rig.path("program"));
    rig
}

/// Runs `session` as nobody, in a mount name space where everybody may open /dev/fuse, as udev makes it.
fn as_nobody(rig: &Rig, become_nobody: &str, session: &str) -> (Option<i32>, String, String) {
    let script = format!(
        "mount -t tmpfs -o mode=755 none /dev; mknod -m 666 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3; \
         mknod -m 666 /dev/urandom c 1 9; \
         {become_nobody} setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec \"$0\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", &script, session]);
    ran(command.current_dir(rig.dir.path()))
}

#[test]
fn an_unprivileged_mount_is_the_users_own() {
    needs!(MOUNTS, "setpriv");
    let rig = rig_of_nobody(Rig::new());
    let session = "
        ./program mount mnt --fast fast --slow slow --log-file log
        echo weights > mnt/ckpt
        ! chown 0 mnt/ckpt 2> /dev/null
        ! mknod mnt/device c 1 3 2> /dev/null
        grep $PWD/mnt /proc/mounts | grep ' fuse.dlio .*user_id=65534' | grep -q nosuid,nodev
        pid=$(sed -n 's/.* pid=\\([0-9]*\\) .*/\\1/p' fast/.dlio-fs/lock)
        kill -9 $pid
        while ls mnt 2> /dev/null; do :; done
        ./program mount mnt --fast fast --slow slow --log-file log
        cat mnt/ckpt
        ./program sync mnt
        fusermount3 -u mnt
        until grep -q ^left fast/.dlio-fs/lock; do :; done
        ls -A mnt";
    let (code, out, line) = as_nobody(&rig, "exec", session);
    assert_eq!((code, out.as_str()), (Some(0), "weights\n"), "{line}");
    assert_eq!(fs::metadata(rig.path("slow/ckpt")).unwrap().uid(), NOBODY);
}

/// Objects of git have mode 0444, directories of module caches 0555: the modes hold for the daemon, too, and one such file held the
/// order for ever, with all that came behind it.
#[test]
fn an_unprivileged_mount_takes_what_its_user_has_closed() {
    needs!(MOUNTS, "setpriv", "git", "setfattr");
    let rig = rig_of_nobody(Rig::new());
    let session = "
        export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=n@n GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=n@n
        mount='./program mount mnt --fast fast --slow slow -o settle=0s --log-file log'
        mkdir -p module/below; echo module > module/go.mod; echo code > module/below/code
        setfattr -n user.from -v there module/go.mod
        chmod 0444 module/go.mod; chmod 0555 module/below module
        $mount
        git -c init.defaultBranch=main init -q mnt/repo
        for i in 1 2 3; do echo $i > mnt/repo/file; git -C mnt/repo add file; git -C mnt/repo commit -q -m $i; done
        git clone -q --no-hardlinks mnt/repo mnt/clone
        cp -a module mnt/module
        mkdir -m 0555 mnt/born
        (umask 0777; echo x > mnt/none)
        mkdir mnt/hidden; echo x > mnt/hidden/file; chmod 0 mnt/hidden
        ./program sync mnt
        kill -9 $(sed -n 's/.* pid=\\([0-9]*\\) .*/\\1/p' fast/.dlio-fs/lock)
        while ls mnt 2> /dev/null; do :; done
        $mount
        git -C mnt/clone fsck --no-progress
        chmod u+w mnt/repo/.git/objects/*/*; git -C mnt/repo gc -q
        chmod 0700 mnt/hidden; echo y >> mnt/hidden/file; chmod 0500 mnt/hidden
        chmod u+w mnt/module/below; rm mnt/module/below/code; chmod 0555 mnt/module/below
        ./program sync mnt
        ./program evict --all mnt > /dev/null
        cat mnt/module/go.mod
        ./program umount mnt
        git -C slow/repo fsck --no-progress
        test $(git -C slow/clone rev-parse HEAD) = $(git -C slow/repo rev-parse HEAD)
        stat -c '%a %n' slow/module slow/module/* slow/born slow/none slow/hidden
        getfattr --only-values -n user.from slow/module/go.mod
        ls slow/module/below";
    let (code, out, line) = as_nobody(&rig, "exec", session);
    let expected = "module\n555 slow/module\n555 slow/module/below\n444 slow/module/go.mod\n555 slow/born\n0 slow/none\n\
                    500 slow/hidden\nthere";
    assert_eq!((code, out.as_str()), (Some(0), expected), "{line}");
    assert_eq!(rig.slow_has("hidden/file").as_deref(), Some("x\ny\n"));
    let tmp = fs::read_dir(rig.path("slow/.dlio-fs/tmp")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(tmp).unwrap().count(), 0, "nothing is left open");
}

#[test]
fn an_unprivileged_mount_over_its_own_slow_tier_is_replaced() {
    needs!(MOUNTS, "setpriv");
    let rig = rig_of_nobody(Rig::over_itself());
    let session = "
        ./program mount slow --fast fast --slow slow -o settle=30min,live_after=1h,high=98%,low=97% --log-file log
        echo weights > slow/ckpt
        kill -9 $(sed -n 's/.* pid=\\([0-9]*\\) .*/\\1/p' fast/.dlio-fs/lock)
        while ls slow 2> /dev/null; do :; done
        ./program mount slow --fast fast --slow slow --log-file log
        cat slow/ckpt
        ./program umount slow";
    let (code, out, line) = as_nobody(&rig, "exec", session);
    assert_eq!((code, out.as_str()), (Some(0), "weights\n"), "{line}");
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights\n"));
}

/// A data set of others: it can be read, and so it can be mounted read-only.
#[test]
fn a_tree_that_one_may_only_read_is_mounted_read_only() {
    needs!(MOUNTS, "setpriv");
    let rig = rig_of_nobody(Rig::new());
    std::os::unix::fs::chown(rig.path("slow"), Some(0), Some(0)).unwrap();
    fs::set_permissions(rig.path("slow"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(rig.path("slow/sample"), "pixels").unwrap();
    let mount = "./program mount mnt --fast fast --slow slow --log-file log";
    let (code, _, line) = as_nobody(&rig, "exec", mount);
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("--slow") && line.contains("-o ro"), "{line}");
    let session = format!("{mount} -o ro; cat mnt/sample; ! echo x 2>/dev/null > mnt/new; ./program umount mnt");
    let (code, out, line) = as_nobody(&rig, "exec", &session);
    assert_eq!((code, out.as_str()), (Some(0), "pixels"), "{line}");
    assert!(!rig.path("slow/.dlio-fs").exists());
}

#[test]
fn root_is_told_why_it_may_not_look_into_a_users_mount() {
    needs!(MOUNTS, "setpriv");
    let rig = rig_of_nobody(Rig::new());
    // As root, in the same mount name space, with the user's mount still there.
    let outer = "setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec './program mount mnt --fast fast --slow slow \
                 --log-file log'; ! ./program status mnt; ! ./program umount mnt; umount mnt;";
    let (code, out, line) = as_nobody(&rig, outer, "true");
    assert_eq!(code, Some(0), "{out}{line}");
    assert!(out.contains("may only be used by another user") && out.contains("user_allow_other"), "{out}");
    assert!(line.contains("may only be used by another user"), "{line}");
}

/// A rootless container that got /dev/fuse: root of its own user name space mounts directly, without a helper.
#[test]
fn root_of_a_user_name_space_mounts_directly() {
    needs!(MOUNTS, "setpriv");
    let rig = rig_of_nobody(Rig::new());
    let session = "unshare --user --map-root-user --mount sh -ec '
        export PATH=/bin
        ./program mount mnt --fast fast --slow slow --log-file log
        echo weights > mnt/ckpt
        ./program umount mnt'";
    let (code, out, line) = as_nobody(&rig, "exec", session);
    assert_eq!(code, Some(0), "{out}{line}");
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights\n"));
    assert_eq!(fs::metadata(rig.path("slow/ckpt")).unwrap().uid(), NOBODY);
}

#[test]
fn a_container_that_may_not_mount_is_told_what_it_lacks() {
    needs!(MOUNTS, "setpriv");
    let rig = Rig::new();
    let mount = rig.mount_command();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]).arg(mount.get_program());
    refused(command.args(mount.get_args()), 1, &["CAP_SYS_ADMIN", "--cap-add SYS_ADMIN", "mount on the host"]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", "mount -t tmpfs none /dev; exec \"$0\" \"$@\""]);
    refused(
        command.arg(mount.get_program()).args(mount.get_args()),
        1,
        &["/dev/fuse is missing", "--device /dev/fuse"],
    );
    assert_eq!(fs::read_dir(rig.path("fast")).unwrap().count(), 1, "only the lock of the first was made");
}

/// Thaws at the end of a test, whatever happens.
struct Stopped(nix::unistd::Pid);

impl Stopped {
    fn new(rig: &Rig) -> Stopped {
        let pid = rig.daemon();
        kill(pid, Signal::SIGSTOP).unwrap();
        // In the middle of a call nothing could be said of it.
        let threads = || fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
        let is_stopped = |task: PathBuf| fs::read_to_string(task.join("stat")).unwrap().contains(") T ");
        until("all of it is stopped", || threads().all(is_stopped));
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGCONT).unwrap();
    }
}

#[test]
fn a_daemon_that_is_stopped_is_named_with_the_remedy() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    let other = Rig::new();
    let stopped = Stopped::new(&rig);
    let remedy = format!("kill -CONT {}", stopped.0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (code, out, _) = ran(program().arg("status").arg(rig.point()));
            assert_eq!(code, Some(1), "{out}");
            assert!(out.contains("is stopped") && out.contains(&remedy), "{out}");
        });
        scope.spawn(|| refused(program().arg("umount").arg(rig.point()), 1, &["is stopped", &remedy]));
        scope.spawn(|| refused(&mut rig.mount_command(), 2, &["is stopped", &remedy]));
        scope.spawn(|| {
            let mut command = program();
            command.arg("mount").arg(other.point()).arg("--slow").arg(other.path("slow"));
            refused(command.arg("--fast").arg(rig.path("fast")), 1, &["is in use by", "is stopped", &remedy]);
        });
    });
    drop(stopped);
    rig.umount_safely();
}

#[test]
fn another_format_of_the_fast_tier_is_refused_and_left_alone() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&NEVER_SETTLES);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    assert_eq!(rig.umount(&["--now"]).status.code(), Some(3));
    let file = rig.path("fast/.dlio-fs/super");
    let ours = fs::read_to_string(&file).unwrap();
    for (theirs, age) in [("format = 999\nwhat = \"nobody knows\"\n", "a newer"), ("format = 0\n", "an older")] {
        fs::write(&file, theirs).unwrap();
        let (code, _, line) = ran(&mut rig.mount_command());
        assert_eq!(code, Some(1), "{line}");
        assert!(line.contains(&format!(", of {age} dlio-fs; ")) && line.contains("move its .dlio-fs away"), "{line}");
        assert_eq!(statvfs(&rig.point()).unwrap().filesystem_id(), statvfs(rig.dir.path()).unwrap().filesystem_id());
        assert_eq!(fs::read_to_string(&file).unwrap(), theirs);
    }
    fs::write(&file, ours).unwrap();
    rig.mount(&[]);
    rig.umount_safely();
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights"));
}

#[test]
fn users_files_of_our_names_are_spoken_of() {
    needs!(MOUNTS);
    let rig = Rig::new();
    fs::write(rig.path("slow/.dlio"), "a user's").unwrap();
    fs::create_dir(rig.path("slow/below")).unwrap();
    fs::write(rig.path("slow/below/.dlio-fs"), "a user's").unwrap();
    let (code, _, line) = ran(&mut rig.mount_command());
    assert_eq!(code, Some(0), "{line}");
    assert!(line.contains("has a .dlio of its own") && line.contains("rename it"), "{line}");
    assert!(rig.mnt(".dlio/stats").exists());
    let mut text = String::new();
    File::open(rig.mnt("below/.dlio-fs")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "a user's", "only the names in the root are ours");
    rig.umount_safely();
    assert_eq!(fs::read_to_string(rig.path("slow/.dlio")).unwrap(), "a user's");

    let rig = Rig::new();
    fs::write(rig.path("slow/.dlio-fs"), "a user's").unwrap();
    refused(&mut rig.mount_command(), 2, &["has a .dlio-fs that dlio-fs did not make", "find out whose it is"]);
}

/// A file system on which every change waits in the kernel, where no signal ends it, until this is dropped.
struct FrozenVolume(PathBuf);

impl FrozenVolume {
    fn new(root: PathBuf) -> Self {
        succeeds(Command::new("fsfreeze").arg("--freeze").arg(&root));
        FrozenVolume(root)
    }
}

impl Drop for FrozenVolume {
    fn drop(&mut self) {
        Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).status().ok();
    }
}

/// Killed, but not gone: its first thread is, and took its descriptors along; another one waits in the kernel and holds the
/// lock. Root was told to look as root.
#[test]
fn a_killed_daemon_that_waits_in_the_kernel_is_named_with_the_remedy() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(32, 256);
    let rig = Rig::new();
    let mount = |point: PathBuf| {
        let mut command = program();
        command.arg("mount").arg(point).arg("--log-file").arg(rig.path("log")).args(["-o", "settle=0s"]);
        command.arg("--fast").arg(rig.path("fast")).arg("--slow").arg(volume.tier());
        command
    };
    succeeds(&mut mount(rig.point()));
    fs::write(rig.mnt("first"), "x").unwrap();
    succeeds(program().arg("sync").arg(rig.point()));
    let frozen = FrozenVolume::new(volume.root());
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    let pid = rig.daemon();
    // Behind the freeze, and not for a moment on the fast tier's disk.
    let waits = |task: PathBuf| fs::read_to_string(task.join("wchan")).is_ok_and(|at| at == "percpu_rwsem_wait");
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    until("it waits for the slow tier", || threads().any(waits));
    kill(pid, Signal::SIGKILL).unwrap();
    until("all but that is gone", || threads().all(|task| task.ends_with(pid.to_string()) || waits(task)));
    let (named, remedy) = (format!("(pid {pid}) waits in the kernel"), "it continues, or ends if it was killed");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (code, out, _) = ran(program().arg("status").arg(rig.point()));
            assert_eq!(code, Some(1), "{out}");
            assert!(out.contains(&named) && out.contains(remedy), "{out}");
        });
        scope.spawn(|| refused(program().arg("umount").arg(rig.point()), 1, &[&named, remedy]));
        scope.spawn(|| refused(&mut mount(rig.point()), 2, &[&named, remedy]));
        fs::create_dir(rig.path("elsewhere")).unwrap();
        let elsewhere = rig.path("elsewhere");
        scope.spawn(|| refused(&mut mount(elsewhere), 1, &["is in use by", "waits in the kernel", remedy]));
    });
    drop(frozen);
    until("the same mount replaces it", || ran(&mut mount(rig.point())).0 == Some(0));
    assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights");
    rig.umount_safely();
    assert_eq!(fs::read_to_string(volume.tier().join("ckpt")).unwrap(), "weights");
}
