//! `mount -t fuse.dlio`, fstab, `mount -o remount` and `umount`, through mount(8) and umount(8) of the machine.
//!
//! They look for helpers in /sbin; each test has a mount name space of its own in which /sbin holds ours and nothing else.
//! Needs root and /dev/fuse.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::process::{Command, Stdio};

use crate::common::rig::{Rig, copy_program, text};
use crate::needs::{MOUNTS, needs};

const NOBODY: u32 = 65534;
/// In the daemon's options: nothing is copied unless somebody waits for it.
const LATE: &str = "settle=30min,live_after=1h,high=98%,low=97%";

/// Runs a script in the rig's directory, with our helpers; its exit code, output and complaints. `$opts` are options that
/// make a mount.
fn run(rig: &Rig, script: &str) -> (Option<i32>, String, String) {
    let sbin = rig.path("sbin");
    if !sbin.exists() {
        fs::create_dir(&sbin).unwrap();
        copy_program(&rig.path("program"));
        for name in ["mount.fuse.dlio", "umount.fuse.dlio"] {
            symlink(rig.path("program"), sbin.join(name)).unwrap();
        }
    }
    let here = rig.dir.path().display();
    let prepared = format!(
        "mount --bind sbin $(realpath /sbin); opts=fast={here}/fast,log_file={here}/log,{LATE}
         mount -t tmpfs -o mode=755 none /dev; mknod -m 666 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3
         {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", &prepared]);
    let output =
        command.current_dir(rig.dir.path()).env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).output().unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn succeeds(rig: &Rig, script: &str) -> String {
    let (code, out, line) = run(rig, script);
    assert_eq!(code, Some(0), "{out}{line}");
    out
}

#[test]
fn mount_makes_a_mount_and_umount_drains_it() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let out = succeeds(
        &rig,
        "mount -t fuse.dlio slow mnt -o $opts,nosuid
         grep $PWD/mnt /proc/mounts
         echo weights > mnt/ckpt
         test ! -e slow/ckpt
         umount mnt 2>said
         test ! -s said
         cat slow/ckpt
         ls -A mnt",
    );
    assert!(out.contains("nosuid") && out.contains(&rig.path("slow").display().to_string()), "{out}");
    assert!(out.ends_with("weights\n"), "{out}");
    assert!(fs::read_to_string(rig.path("fast/.dlio-fs/lock")).unwrap().starts_with("left files=0 "));
}

/// A second `mount -a` finds it mounted, and the boot's words are no options of ours.
#[test]
fn a_line_of_fstab_mounts_once_and_also_over_itself() {
    needs!(MOUNTS);
    for point in ["mnt", "slow"] {
        let rig = Rig::new();
        let here = rig.dir.path().display();
        let line = format!(
            "{here}/slow {here}/{point} fuse.dlio fast={here}/fast,log_file={here}/log,{LATE},_netdev,nofail,\
             x-systemd.mount-timeout=10min,x-systemd.requires-mounts-for={here} 0 0\n"
        );
        fs::write(rig.path("fstab"), line).unwrap();
        let out = succeeds(
            &rig,
            &format!(
                r#"mount --bind fstab /etc/fstab
                 mount -a
                 mount -a
                 grep -c "$PWD/{point} fuse.dlio " /proc/mounts
                 echo weights > {point}/ckpt
                 umount {point}
                 mount {point}
                 cat {point}/ckpt
                 umount {point}"#
            ),
        );
        assert_eq!(out, "1\nweights\n");
        assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights\n"));
    }
}

#[test]
fn a_user_mounts_and_unmounts_a_line_of_fstab_that_lets_him() {
    needs!(MOUNTS, "setpriv");
    let rig = Rig::new();
    for name in ["", "mnt", "fast", "slow"] {
        chown(rig.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let here = rig.dir.path().display();
    let options = format!("fast={here}/fast,log_file={here}/log,{LATE},noauto,user");
    fs::write(rig.path("fstab"), format!("{here}/slow {here}/mnt fuse.dlio {options} 0 0\n")).unwrap();
    let out = succeeds(
        &rig,
        "mount --bind fstab /etc/fstab
         setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '
             mount mnt
             echo weights > mnt/ckpt
             grep $PWD/mnt /proc/mounts | grep -o noexec
             umount mnt
             cat slow/ckpt'",
    );
    assert_eq!(out, "noexec\nweights\n");
}

#[test]
fn a_mount_is_remounted_by_mount() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let out = succeeds(
        &rig,
        "mount -t fuse.dlio slow mnt -o $opts,noexec
         mount -o remount,ro mnt
         ! touch mnt/new 2> /dev/null
         grep $PWD/mnt /proc/mounts
         mount -o remount,rw mnt
         touch mnt/new
         umount mnt
         ls slow",
    );
    assert!(out.contains(" ro,") && out.contains("noexec") && out.ends_with("new\n"), "{out}");
}

/// By its absolute path umount(8) would otherwise see any FUSE file system, and no helper for it.
#[test]
fn umount_by_an_absolute_path_drains_whoever_mounted() {
    needs!(MOUNTS);
    for mount in ["mount -t fuse.dlio slow mnt -o $opts", "./program mount mnt --slow slow -o $opts"] {
        let rig = Rig::new();
        let script = format!(
            "{mount}
             echo weights > mnt/ckpt
             umount $PWD/mnt
             cat slow/ckpt
             ! grep $PWD/mnt /run/mount/utab"
        );
        assert_eq!(succeeds(&rig, &script), "weights\n", "{mount}");
    }
}

#[test]
fn a_lazy_umount_leaves_the_rest_for_the_next_mount() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let out = succeeds(
        &rig,
        "mount -t fuse.dlio slow mnt -o $opts
         echo weights > mnt/ckpt
         exec 9< mnt/ckpt
         ! umount mnt 2> busy
         umount -l mnt
         ls -A mnt
         exec 9<&-
         until grep -q ^left fast/.dlio-fs/lock; do :; done
         test ! -e slow/ckpt
         mount -t fuse.dlio slow mnt -o $opts
         cat mnt/ckpt
         umount mnt",
    );
    assert_eq!(out, "weights\n");
    assert!(fs::read_to_string(rig.path("busy")).unwrap().contains("is in use by sh (pid "));
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights\n"));
}

/// Also when it is the daemon that does not answer.
#[test]
fn a_forced_umount_ends_a_mount_that_does_not_answer() {
    needs!(MOUNTS);
    let rig = Rig::new();
    succeeds(
        &rig,
        "mount -t fuse.dlio slow mnt -o $opts
         echo weights > mnt/ckpt
         pid=$(sed -n 's/.* pid=\\([0-9]*\\) .*/\\1/p' fast/.dlio-fs/lock)
         kill -STOP $pid
         umount -f mnt
         ls -A mnt
         kill -CONT $pid
         until grep -q ^left fast/.dlio-fs/lock; do :; done
         grep -q ckpt fast/.dlio-fs/lock",
    );
}

#[test]
fn what_is_wrong_gets_the_exit_codes_of_mount() {
    needs!(MOUNTS);
    let rig = Rig::new();
    for (options, code, part) in [
        ("-o fats=/x", 1, "did you mean \"fast\""),
        ("-o fast=/none/such", 1, "--fast /none/such does not exist"),
        ("-o $opts,sync", 1, "-o sync is not supported"),
    ] {
        let (exit, _, line) = run(&rig, &format!("exec mount -t fuse.dlio slow mnt {options}"));
        assert_eq!(exit, Some(code), "{line}");
        assert!(line.contains(part), "{line}");
    }
    // -f: all but the mount; -s: what nobody knows is left out.
    succeeds(&rig, "mount -f -t fuse.dlio slow mnt -o $opts; ! grep -q $PWD/mnt /proc/mounts");
    succeeds(&rig, "mount -s -t fuse.dlio slow mnt -o $opts,whim; umount mnt");
    let (exit, _, line) = run(&rig, "mount -t fuse.dlio slow mnt -o $opts; mount -t fuse.dlio slow mnt -o $opts");
    assert_eq!(exit, Some(1), "{line}");
    assert!(line.contains("already has a dlio-fs mount"), "{line}");
}

/// Each read went to the slow tier's file by a descriptor that left its trace there.
#[test]
fn with_noatime_no_read_changes_a_time_of_access() {
    needs!(MOUNTS);
    let rig = Rig::new();
    fs::create_dir(rig.path("slow/data")).unwrap();
    fs::write(rig.path("slow/data/old"), "bytes").unwrap();
    let out = succeeds(
        &rig,
        "mount -t fuse.dlio slow mnt -o $opts,noatime
         echo bytes > mnt/data/new
         touch -a -d 2020-01-01 mnt/data/new slow/data/old slow/data
         cat mnt/data/old mnt/data/new > /dev/null
         ls mnt/data > /dev/null
         stat -c %x mnt/data/new slow/data/old slow/data | cut -c1-4
         umount mnt",
    );
    assert_eq!(out, "2020\n".repeat(3));
}
