//! The life of a mount, driven through the built program: made in the background, used, drained, left, killed, replaced.
//!
//! Needs /dev/fuse, and root or fusermount3. Nothing here waits for time to pass, only for things to become true.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::rig::{NEVER_SETTLES, PROGRAM, Rig, copy_program, foreground, program, succeeds, text, wait};
use crate::common::{PATIENCE, until};
use crate::needs::{MOUNTS, needs};

#[test]
fn a_mount_in_the_background_answers_when_the_command_returns() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    let stats = fs::read_to_string(rig.mnt(".dlio/stats")).unwrap();
    assert!(stats.starts_with("SAFE"), "{stats}");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(rig.path("mnt").to_str().unwrap())).unwrap();
    assert!(line.contains(&format!(" - fuse.dlio {} ", rig.path("slow").display())), "{line}");
    assert_eq!(fs::metadata(rig.path("fast/.dlio-fs")).unwrap().permissions().mode() & 0o777, 0o700);
    rig.umount_safely();
}

#[test]
fn umount_drains_first_and_leaves_no_daemon() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    fs::create_dir(rig.mnt("run")).unwrap();
    fs::write(rig.mnt("run/ckpt-1"), "weights").unwrap();
    let daemon = rig.daemon();
    let output = rig.umount(&[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.is_empty(), "nothing is left: {output:?}");
    assert_eq!(rig.slow_has("run/ckpt-1").as_deref(), Some("weights"));
    assert_eq!(fs::read_dir(rig.path("mnt")).unwrap().count(), 0, "the bare directory is back");
    assert!(fs::read_dir(format!("/proc/{daemon}/fd")).map_or(0, Iterator::count) == 0, "the daemon still holds files");
}

#[test]
fn umount_now_lists_what_stays_and_the_next_mount_goes_on() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&NEVER_SETTLES);
    fs::write(rig.mnt("ckpt 1"), "weights").unwrap();
    let output = rig.umount(&["--now"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stdout).contains("ckpt 1"), "it is listed: {output:?}");
    assert!(text(&output.stderr).contains("stay on the fast tier"), "{output:?}");
    assert_eq!(rig.slow_has("ckpt 1"), None);
    rig.mount(&[]);
    assert_eq!(fs::read_to_string(rig.mnt("ckpt 1")).unwrap(), "weights");
    rig.umount_safely();
    assert_eq!(rig.slow_has("ckpt 1").as_deref(), Some("weights"));
}

#[test]
fn a_second_daemon_on_the_fast_tier_is_refused_naming_the_first() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    let other = Rig::new();
    let mut command = program();
    command.arg("mount").arg(other.path("mnt")).arg("--slow").arg(other.path("slow"));
    let output = command.arg("--fast").arg(rig.path("fast")).output().unwrap();
    let line = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains(&format!("pid={}", rig.daemon())), "{line}");
    assert!(line.contains(&format!("mountpoint={}", rig.path("mnt").display())), "{line}");
    assert_eq!(fs::read_dir(other.path("slow")).unwrap().count(), 0, "nothing was created");
    rig.umount_safely();
}

#[test]
fn a_mount_point_in_use_by_a_mount_of_ours_is_refused() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    let other = Rig::new();
    let mut command = program();
    command.arg("mount").arg(rig.path("mnt")).arg("--slow").arg(other.path("slow"));
    let output = command.arg("--fast").arg(other.path("fast")).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("already has a dlio-fs mount"), "{output:?}");
    assert_eq!(fs::read_dir(other.path("fast")).unwrap().count(), 0, "nothing was created");
    rig.umount_safely();
}

#[test]
fn a_killed_daemon_leaves_a_dead_mount_and_the_next_mount_replaces_it() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&NEVER_SETTLES);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    rig.kill_daemon();
    let error = fs::write(rig.mnt("swallowed"), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOTCONN as i32), "a dead mount swallows nothing");
    let output = program().arg("status").arg(rig.path("mnt")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("mount it again"), "{output:?}");
    rig.mount(&[]);
    assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights");
    rig.umount_safely();
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights"));
    assert!(fs::metadata(rig.path("mnt")).is_ok(), "no dead mount is left below");
}

/// Whom the kernel answers because the daemon dies gets another errno than who comes later: a mount made at once was refused.
#[test]
fn a_mount_that_is_made_while_the_daemon_dies_replaces_it() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    let daemon = rig.daemon();
    kill(daemon, Signal::SIGSTOP).unwrap();
    let next = rig.mount_command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Where the kernel waits for the answer of a FUSE daemon, whatever it was asked.
    let asks = |task: fs::DirEntry| {
        fs::read_to_string(task.path().join("wchan")).is_ok_and(|place| place == "request_wait_answer")
    };
    let tasks = || fs::read_dir(format!("/proc/{}/task", next.id())).unwrap().flatten();
    until("it asks the mount that is there", || tasks().any(asks));
    kill(daemon, Signal::SIGKILL).unwrap();
    let output = next.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    rig.umount_safely();
}

/// `umount -l` comes back before the daemon has made everything durable and released its fast tier.
#[test]
fn a_mount_that_is_made_right_after_a_lazy_umount_waits_for_the_last_daemon() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    let daemon = rig.daemon();
    kill(daemon, Signal::SIGSTOP).unwrap();
    umount2(&rig.path("mnt"), MntFlags::MNT_DETACH).unwrap();
    let mut next = rig.mount_command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lock = rig.path("fast/.dlio-fs/lock");
    let opens = |process: fs::DirEntry| {
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let is_daemon = process.file_name().to_str() == Some(&daemon.to_string());
        !is_daemon && files.flat_map(|file| fs::read_link(file.path())).any(|file| file == lock)
    };
    until("it has met the lock", || {
        fs::read_dir("/proc").unwrap().flatten().any(opens) || next.try_wait().unwrap().is_some()
    });
    kill(daemon, Signal::SIGCONT).unwrap();
    let output = next.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights");
    rig.umount_safely();
}

/// On Linux before 6.5 the directory below is bare for a moment; then this may fail.
#[test]
fn a_writer_that_retries_is_never_swallowed_by_the_directory_below() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    for round in 0..5 {
        rig.kill_daemon();
        let path = rig.mnt(&format!("retry-{round}"));
        let writer = std::thread::spawn(move || until("the mount takes it", || fs::write(&path, "weights").is_ok()));
        rig.mount(&[]);
        writer.join().unwrap();
    }
    rig.umount_safely();
    assert_eq!(fs::read_dir(rig.path("mnt")).unwrap().count(), 0, "the directory below swallowed something");
    for round in 0..5 {
        assert_eq!(rig.slow_has(&format!("retry-{round}")).as_deref(), Some("weights"));
    }
}

#[test]
fn umount_takes_a_dead_mount_away() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    rig.kill_daemon();
    let output = rig.umount(&[]);
    assert_eq!(output.status.code(), Some(3), "what the fast tier still has is not known: {output:?}");
    assert!(text(&output.stderr).contains("was already gone"), "{output:?}");
    assert!(fs::metadata(rig.path("mnt")).is_ok());
}

#[test]
fn a_signal_leaves_with_exit_code_3_when_something_is_only_on_fast() {
    needs!(MOUNTS);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let rig = Rig::new();
        let daemon = foreground(&rig, &NEVER_SETTLES);
        fs::write(rig.mnt("ckpt"), "weights").unwrap();
        kill(Pid::from_raw(daemon.id().try_into().unwrap()), signal).unwrap();
        assert_eq!(wait(daemon).0, Some(3), "{signal}");
        assert_eq!(fs::read_dir(rig.path("mnt")).unwrap().count(), 0, "unmounted after {signal}");
        let log = fs::read_to_string(rig.path("log")).unwrap();
        assert!(
            log.contains("only the fast tier has these") && log.contains("paths=") && log.contains("ckpt"),
            "{log}"
        );
        rig.mount(&[]);
        assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights");
        rig.umount_safely();
    }
}

#[test]
fn a_signal_leaves_with_exit_code_0_when_everything_is_safe() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let daemon = foreground(&rig, &[]);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    succeeds(program().arg("drain").arg(rig.path("mnt")));
    kill(Pid::from_raw(daemon.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(wait(daemon).0, Some(0));
}

/// As in a container, where the fast tier goes away with the daemon.
#[test]
fn sigterm_waits_for_the_slow_tier_where_that_is_wanted_and_a_second_one_does_not() {
    needs!(MOUNTS);
    for again in [false, true] {
        let rig = Rig::new();
        let daemon = foreground(&rig, &["-o", "on_term=drain,settle=1h,live_after=2h"]);
        let pid = Pid::from_raw(daemon.id().cast_signed());
        if again {
            // A directory there refuses what is to be made in it.
            succeeds(Command::new("chattr").arg("+i").arg(rig.path("slow")));
        }
        fs::write(rig.mnt("ckpt"), "weights").unwrap();
        kill(pid, Signal::SIGTERM).unwrap();
        if again {
            let log = || fs::read_to_string(rig.path("log")).unwrap();
            until("it is held", || log().contains("Operation not permitted"));
            assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights", "it serves on");
            kill(pid, Signal::SIGTERM).unwrap();
        }
        let code = wait(daemon).0;
        succeeds(Command::new("chattr").arg("-i").arg(rig.path("slow")));
        assert_eq!(code, Some(if again { 3 } else { 0 }));
        assert_eq!(rig.path("slow/ckpt").exists(), !again);
    }
}

#[test]
fn a_signal_is_obeyed_while_a_file_is_open() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let daemon = foreground(&rig, &[]);
    let open = File::create(rig.mnt("open")).unwrap();
    let pid = Pid::from_raw(daemon.id().try_into().unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    // The second one asks to hurry: it does not wait for the file to be closed.
    until("it has unmounted", || fs::read_dir(rig.path("mnt")).is_ok_and(|dir| dir.count() == 0));
    kill(pid, Signal::SIGTERM).unwrap();
    let code = wait(daemon).0;
    assert!(matches!(code, Some(0 | 3)), "{code:?}");
    assert!((&open).write_all(b"late").is_err(), "nobody takes it any more");
}

#[test]
fn an_unmount_by_somebody_else_ends_the_daemon() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let daemon = foreground(&rig, &NEVER_SETTLES);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    // What umount(8) does with -i. Whatever lists the file systems of the machine is in it for a moment.
    until("nobody is in it", || umount2(&rig.path("mnt"), MntFlags::empty()) != Err(Errno::EBUSY));
    assert_eq!(wait(daemon).0, Some(3));
}

#[test]
fn a_busy_mount_is_not_left_and_its_holders_are_named() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    let held = File::create(rig.mnt("held")).unwrap();
    for options in [&["--now"][..], &[]] {
        let output = rig.umount(options);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let line = text(&output.stderr);
        assert!(line.contains(&format!("pid {}", std::process::id())) && line.contains("held"), "{line}");
    }
    assert!(rig.mnt(".dlio/stats").exists(), "it is still there");
    drop(held);
    // From inside of the mount: the command itself is no holder.
    let output = program().args(["umount", "."]).current_dir(rig.point()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// A process with a mount name space of its own, as of a container, in which this mount, and none of other tests, stays mounted. It
/// runs `command` when its input is closed.
fn copy_of(rig: &Rig, command: &str) -> Child {
    let script = format!(
        "grep ' fuse.dlio ' /proc/self/mounts | cut -d ' ' -f 2 | grep -vxF \"$0\" | xargs -r -n 1 umount -i -c -l; \
         echo made; read _; {command}"
    );
    let mut copy = Command::new("unshare");
    copy.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(rig.point().canonicalize().unwrap());
    let mut copy = copy.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut made = [0; 5];
    copy.stdout.as_mut().unwrap().read_exact(&mut made).unwrap();
    copy
}

/// Unmounted, but somebody had made a mount name space of his own before, as a container does: the daemon serves the mount there
/// until that ends. The unmount waited for a minute and said no more than that the daemon still ran.
#[test]
fn who_has_a_copy_of_the_mount_is_named_while_the_daemon_is_waited_for() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    let mut copy = copy_of(&rig, "true");
    let mut umount = program();
    let mut umount = umount.arg("umount").arg(rig.point()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(umount.stderr.take().unwrap()).lines();
    let named = format!("(pid {})", copy.id());
    let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(&named))).unwrap().unwrap();
    assert!(line.contains("in its own mount namespace"), "{line}");
    drop(copy.stdin.take());
    copy.wait().unwrap();
    assert_eq!(umount.wait().unwrap().code(), Some(0));
}

/// `umount` was told that there is no mount, and `mount` that there is one, which was to be unmounted.
#[test]
fn a_mount_that_goes_on_in_another_namespace_is_named_and_ended_from_here() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    let mut copy = copy_of(&rig, "true");
    umount2(&rig.point(), MntFlags::MNT_DETACH).unwrap();
    let run = |arguments: &[&str]| {
        let output = program().args(arguments).arg(rig.point()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["umount"]);
    let way_out = format!("dlio-fs umount --now {}", rig.point().display());
    assert!(code == Some(1) && said.contains(&format!("(pid {})", copy.id())) && said.contains(&way_out), "{said}");
    let output = rig.mount_command().output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains(&way_out), "{said}");
    assert_eq!(run(&["umount", "--now"]).0, Some(0));
    rig.mount(&[]);
    rig.umount_safely();
    drop(copy.stdin.take());
    copy.wait().unwrap();
}

/// A time limit is for the whole of it: with a copy of the mount elsewhere `umount --timeout` and `--now` waited for a minute, then
/// ended with 1, and the daemon went on.
#[test]
fn umount_in_a_hurry_ends_the_copies_of_the_mount_too() {
    needs!(MOUNTS);
    for (mount, umount, code) in [(&NEVER_SETTLES[..], &["--now"][..], 3), (&[], &["--timeout", "5min"], 0)] {
        let rig = Rig::new();
        rig.mount(mount);
        fs::write(rig.mnt("ckpt"), "weights").unwrap();
        let copy = copy_of(&rig, &format!("cat {}", rig.mnt("ckpt").display()));
        let pid = copy.id();
        let output = rig.umount(umount);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(said.contains("taken away from") && said.contains(&format!("(pid {pid})")), "{said}");
        assert_eq!(text(&output.stdout).contains("ckpt"), code == 3, "what stays is listed: {output:?}");
        // The copy is there, and is dead.
        let output = copy.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert!(["not connected", "connection abort"].iter().any(|end| said.contains(end)), "{output:?}");
        rig.mount(&[]);
        assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights");
        rig.umount_safely();
    }
}

/// What is mounted at the place of a mount that was left is somebody else's: a daemon that goes on for a copy elsewhere, and is told
/// to leave, took that away.
#[test]
fn a_daemon_that_leaves_takes_away_its_own_mount_alone() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let daemon = foreground(&rig, &[]);
    let mut copy = copy_of(&rig, "true");
    umount2(&rig.path("mnt"), MntFlags::empty()).unwrap();
    nix::mount::mount(Some("other"), &rig.path("mnt"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    fs::write(rig.path("mnt/theirs"), "").unwrap();
    kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(wait(daemon).0, Some(0));
    assert!(rig.path("mnt/theirs").exists());
    drop(copy.stdin.take());
    copy.wait().unwrap();
}

/// A slow tier of one mebibyte, so that what is larger stays on the fast tier for as long as it lasts.
struct TinySlow<'a>(&'a Rig);

impl<'a> TinySlow<'a> {
    fn new(rig: &'a Rig) -> Self {
        let slow = rig.path("slow");
        let done = nix::mount::mount(Some("tiny"), &slow, Some("tmpfs"), MsFlags::empty(), Some("size=1m"));
        done.expect("this test needs root");
        TinySlow(rig)
    }
}

impl Drop for TinySlow<'_> {
    fn drop(&mut self) {
        while umount2(&self.0.path("mnt"), MntFlags::MNT_DETACH).is_ok() {}
        umount2(&self.0.path("slow"), MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
fn a_timeout_ends_the_waiting_for_a_slow_tier_that_takes_nothing() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let _tiny = TinySlow::new(&rig);
    rig.mount(&[]);
    fs::write(rig.mnt("ckpt"), vec![7; 4 << 20]).unwrap();
    let output = rig.umount(&["--timeout", "1ms"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains("the time is up"), "{output:?}");
    assert!(text(&output.stdout).contains("ckpt"), "it is listed: {output:?}");
}

#[test]
fn status_drain_and_sync_tell_and_change_the_same_state() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&NEVER_SETTLES);
    let status = |options: &[&str]| program().arg("status").arg(rig.path("mnt")).args(options).output().unwrap();
    fs::create_dir(rig.mnt("run")).unwrap();
    fs::write(rig.mnt("run/a"), "1").unwrap();
    let output = status(&[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stdout).starts_with("NOT SAFE"), "{output:?}");
    let output = status(&["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["mounts"][0]["safety"]["safe"], false, "{json}");
    let output = program().args(["drain", "--no-wait"]).arg(rig.path("mnt")).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "it only tells: {output:?}");
    assert!(text(&output.stdout).starts_with("NOT SAFE"), "{output:?}");
    assert_eq!(rig.slow_has("run/a"), None);

    succeeds(program().arg("sync").arg(rig.mnt("run/a")));
    assert_eq!(rig.slow_has("run/a").as_deref(), Some("1"));
    fs::write(rig.mnt("b"), "2").unwrap();
    let output = program().arg("drain").arg(rig.path("mnt")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(rig.slow_has("b").as_deref(), Some("2"));
    let output = status(&[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).starts_with("SAFE"), "{output:?}");
    fs::write(rig.mnt("c"), "3").unwrap();
    let output = program().args(["drain", "--quiet"]).arg(rig.path("mnt")).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len() + output.stderr.len()), (Some(0), 0), "{output:?}");
    assert_eq!(rig.slow_has("c").as_deref(), Some("3"));
    succeeds(program().arg("sync").arg(rig.path("mnt")));
    rig.umount_safely();
}

#[test]
fn rescue_restores_what_only_the_fast_tier_has() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&NEVER_SETTLES);
    fs::create_dir(rig.mnt("run")).unwrap();
    fs::write(rig.mnt("run/ckpt"), "weights").unwrap();
    assert_eq!(rig.umount(&["--now"]).status.code(), Some(3));
    let lock = || fs::read_to_string(rig.path("fast/.dlio-fs/lock")).unwrap();
    let (out, left) = (rig.path("out"), lock());
    assert!(left.starts_with("left files="), "{left}");
    let said = succeeds(program().arg("rescue").arg(rig.path("fast")).arg("--to").arg(&out));
    assert!(said.contains("run/ckpt"), "{said}");
    assert_eq!(fs::read_to_string(out.join("run/ckpt")).unwrap(), "weights");
    assert_eq!(lock(), left, "it is still listed");
    rig.mount(&[]);
    assert_eq!(fs::read_to_string(rig.mnt("run/ckpt")).unwrap(), "weights", "rescue changed nothing");
    rig.umount_safely();
}

#[test]
fn an_unprivileged_user_mounts_through_the_helper() {
    needs!(MOUNTS, "setpriv");
    if !nix::unistd::geteuid().is_root() {
        return; // Then every test of this file is this one.
    }
    const NOBODY: u32 = 65534;
    let rig = Rig::new();
    for name in ["", "mnt", "fast", "slow"] {
        std::os::unix::fs::chown(rig.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // Where the program was built, nobody else may be able to look.
    copy_program(&rig.path("program"));
    // A device that all users may open, as udev makes it, in a mount name space that ends with the script.
    let script = "mount -t tmpfs -o mode=755 none /dev; mknod -m 666 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3; \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec \"$0\"";
    let session = "./program mount mnt --fast fast --slow slow --log-file log; echo weights > mnt/ckpt; \
                   cat mnt/.dlio/stats; ./program umount mnt";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script, session]);
    let stats = succeeds(command.current_dir(rig.dir.path()).stdin(Stdio::null()));
    assert!(stats.contains("SAFE"), "{stats}");
    assert_eq!(rig.slow_has("ckpt").as_deref(), Some("weights\n"));
    assert_eq!(fs::metadata(rig.path("slow/ckpt")).unwrap().uid(), NOBODY);
}

#[test]
fn a_daemon_in_the_background_logs_to_syslog() {
    needs!(MOUNTS);
    if !nix::unistd::geteuid().is_root() {
        return; // It takes a /dev of one's own.
    }
    let rig = Rig::new();
    let syslog = UnixDatagram::bind(rig.path("syslog")).unwrap();
    syslog.set_read_timeout(Some(PATIENCE)).unwrap();
    let script = "mount -t tmpfs -o mode=755 none /dev; mknod /dev/fuse c 10 229; mknod /dev/null c 1 3; \
                  ln -s $PWD/syslog /dev/log; $0 mount mnt --fast fast --slow slow; $0 umount mnt";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script, PROGRAM]);
    succeeds(command.current_dir(rig.dir.path()).stdin(Stdio::null()));
    let mut lines = Vec::new();
    while !lines.iter().any(|line: &String| line.contains("everything is on the slow tier")) {
        let mut line = [0; 4096];
        let len = syslog.recv(&mut line).unwrap();
        lines.push(text(&line[..len]));
    }
    assert!(lines.iter().all(|line| line.contains("dlio-fs[")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(" mounted")), "{lines:?}");
}

/// It raises the limit as far as it may, as those of descriptors and file sizes.
#[test]
fn a_mount_under_a_low_limit_on_address_space_raises_it() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let script = "ulimit -S -v 300000; exec \"$0\" mount mnt --fast fast --slow slow --log-file log";
    succeeds(Command::new("sh").args(["-c", script, PROGRAM]).current_dir(rig.dir.path()).stdin(Stdio::null()));
    let limits = fs::read_to_string(format!("/proc/{}/limits", rig.daemon())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max address space")).unwrap().to_owned();
    assert!(line.contains("unlimited            unlimited"), "{line}");
    rig.umount_safely();
}

/// The daemon made its log in the bare directory, mounted over it, called the mount ready, and failed because it no longer found the
/// log: exit code 0, and no mount.
#[test]
fn a_log_file_inside_the_mount_is_refused() {
    needs!(MOUNTS);
    for (rig, log) in [(Rig::new(), "mnt/dlio.log"), (Rig::over_itself(), "slow/dlio.log")] {
        for foreground in [&[][..], &["--foreground"]] {
            let mut command = program();
            command.arg("mount").arg(rig.point()).args(foreground).arg("--log-file").arg(rig.path(log));
            command.arg("--fast").arg(rig.path("fast")).arg("--slow").arg(rig.path("slow"));
            let output = command.output().unwrap();
            let line = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{line}");
            assert!(line.contains("--log-file") && line.contains("is inside mount point"), "{line}");
            assert!(!rig.path(log).exists() && !rig.path("fast/.dlio-fs").exists(), "nothing was made");
        }
    }
}

/// logrotate renames the log and sends SIGHUP: the daemon wrote on into the renamed file, and the disk filled with what had no name
/// any more. What a panic says, on standard error, goes along.
#[test]
fn a_hangup_opens_the_log_file_anew() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let (log, rotated) = (rig.path("log"), rig.path("log.1"));
    let has = |path: &Path, what: &str| fs::read_to_string(path).unwrap_or_default().contains(what);
    let config = rig.path("train.toml");
    fs::write(&config, "settle = \"1s\"\n").unwrap();
    rig.mount(&["--config", config.to_str().unwrap()]);
    fs::rename(&log, &rotated).unwrap();
    fs::write(&config, "settle = \"2s\"\n").unwrap();
    kill(rig.daemon(), Signal::SIGHUP).unwrap();
    until("the new file tells of the new configuration", || has(&log, "changed: settle"));
    assert!(has(&log, "log file reopened") && !has(&rotated, "log file reopened"), "the new one is for what comes");
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_link(format!("/proc/{}/fd/2", rig.daemon())).unwrap(), log.canonicalize().unwrap());
    // Where the name cannot be opened, no line is lost.
    fs::rename(&log, &rotated).unwrap();
    fs::create_dir(&log).unwrap();
    kill(rig.daemon(), Signal::SIGHUP).unwrap();
    until("the former file says so", || has(&rotated, "cannot be reopened; logging continues in the former file"));
    fs::remove_dir(&log).unwrap();
    rig.umount_safely();
    assert!(has(&rotated, "everything is on the slow tier"));
}

/// A mount without a configuration file: the signal is about the log alone, and nothing is wrong with that.
#[test]
fn a_hangup_without_a_configuration_file_is_for_the_log_alone() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&[]);
    let log = || fs::read_to_string(rig.path("log")).unwrap_or_default();
    fs::rename(rig.path("log"), rig.path("log.1")).unwrap();
    kill(rig.daemon(), Signal::SIGHUP).unwrap();
    until("a new file is begun", || log().contains("log file reopened"));
    rig.umount_safely();
    assert!(!log().contains("WARN"), "{}", log());
}

/// logrotate sent SIGHUP to a daemon that somebody had mounted from a terminal, and the mount went away.
#[test]
fn a_hangup_opens_the_log_of_a_mount_that_was_made_from_a_terminal_anew() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let script = "import pty, subprocess, sys\nmaster, slave = pty.openpty()\n\
                  sys.exit(subprocess.run(sys.argv[1:], stderr=slave).returncode)";
    let mount = rig.mount_command();
    succeeds(Command::new("python3").args(["-c", script]).arg(mount.get_program()).args(mount.get_args()));
    let daemon = rig.daemon();
    fs::rename(rig.path("log"), rig.path("log.1")).unwrap();
    kill(daemon, Signal::SIGHUP).unwrap();
    until("a new file is begun", || {
        let left = fs::read_to_string(rig.path("log.1")).unwrap().contains("SIGHUP");
        assert!(!left && kill(daemon, None).is_ok(), "the daemon leaves");
        fs::read_to_string(rig.path("log")).unwrap_or_default().contains("log file reopened")
    });
    assert!(rig.mnt(".dlio/stats").exists(), "the mount is gone");
    rig.umount_safely();
}

#[test]
fn the_demo_verifies_and_leaves_nothing_behind() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let said = succeeds(program().arg("demo").arg("--dir").arg(dir.path()));
    for part in ["ckpt-4.index", "model.keras", "identical", "SAFE: everything is on the slow tier"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    assert!(!said.contains("ckpt-1."), "it was deleted: {said}");
    // With the statistics in it, which an ordinary terminal must hold as well.
    let wide: Vec<_> = said.lines().skip(1).filter(|line| line.chars().count() > 80).collect();
    assert_eq!(wide, [""; 0]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the directory is not empty");
}

#[test]
fn the_demo_leaves_nothing_behind_when_interrupted() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let demo = program().arg("demo").arg("--dir").arg(dir.path()).stdout(Stdio::null()).spawn().unwrap();
    let mounted = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(dir.path().to_str().unwrap())
    };
    until("its mount is there", mounted);
    kill(Pid::from_raw(demo.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(wait(demo).0, Some(130));
    assert!(!mounted(), "its mount is left");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the directory is not empty");
}
