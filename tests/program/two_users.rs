//! Two ordinary users on root's mount: what concerns a path may be asked for by whoever gets there, its copies are its owner's, and nobody
//! learns of another user's files or processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use crate::common::{Elsewhere, Mount, mode, succeeded, until};
use crate::needs::{MOUNTS, needs};

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;
/// A further group of Bob's.
const PROJECT: u32 = 61_100;

/// A mount on which each of them has a private directory with a file, and both may read `shared/data`.
fn mount(settings: &[&str]) -> Mount {
    let mount = Mount::with(settings, |slow| {
        fs::create_dir(slow.join("shared")).unwrap();
        fs::write(slow.join("shared/data"), "of root").unwrap();
    });
    for (user, dir) in [(ALICE, "alice"), (BOB, "bob")] {
        fs::create_dir(mount.at(dir)).unwrap();
        chown(mount.at(dir), Some(user), Some(user)).unwrap();
        fs::set_permissions(mount.at(dir), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(mount.as_user(user, &format!("umask 077; echo of-{dir} > {dir}/{dir}-file")).status.success());
    }
    mount
}

/// The program, where users find it.
struct Program(tempfile::TempDir);

impl Program {
    fn new() -> Self {
        let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
        // By cp(1): had we it open for writing, a process that another test starts now would inherit it (ETXTBSY).
        assert!(Command::new("cp").arg(PROGRAM).arg(place.path()).status().unwrap().success());
        Program(place)
    }

    /// As a user in the mount's root. The exit code and all that was said.
    fn run(&self, mount: &Mount, user: u32, words: &[&str]) -> (i32, String) {
        let mut command = Command::new(self.0.path().join("dlio-fs"));
        said(&command.args(words).current_dir(mount.root()).uid(user).gid(user).output().unwrap())
    }
}

fn said(output: &Output) -> (i32, String) {
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    (output.status.code().unwrap(), text)
}

/// Writes a command line to `control`; the reply.
fn control(mount: &Mount, user: u32, line: &str) -> String {
    let script = "import os, sys\nfd = os.open('.dlio/control', os.O_RDWR)\ntry: os.write(fd, sys.argv[1].encode())\nexcept PermissionError: pass\n\
                  while part := os.read(fd, 4096): sys.stdout.write(part.decode())";
    let mut command = Command::new("python3");
    command.args(["-c", script, line]).current_dir(mount.root()).uid(user).gid(user);
    said(&command.output().unwrap()).1
}

#[test]
fn each_command_tells_an_ordinary_user_what_is_theirs() {
    needs!(MOUNTS);
    let (mount, program) = (mount(&["settle=1h", "live_after=2h"]), Program::new());
    let recordings: &[&[&str]] = &[&["report", "--all", "."], &["advise", "."], &["plan", "."]];
    for words in recordings.iter().copied().chain([
        &["status", "."][..],
        &["queue", "."],
        &["queue", "--json", "."],
        &["checkpoints", "."],
        &["checkpoints", "--json", "."],
        &["top", "--count", "1", "--interval", "200ms", "."],
    ]) {
        let (code, text) = program.run(&mount, BOB, words);
        // 3: something is only on the fast tier.
        assert!([0, 3].contains(&code), "{words:?}: {code} {text}");
        assert!(!text.contains("alice"), "{words:?}: {text}");
    }
    let (_, queue) = program.run(&mount, BOB, &["queue", "."]);
    assert!(queue.contains("/bob/bob-file"), "{queue}");
    // Files with one of the mount's owner are shown to that one whole.
    assert!(fs::read_to_string(mount.at(".dlio/queue")).unwrap().contains("/alice/alice-file"));
}

#[test]
fn no_file_of_dlio_tells_an_ordinary_user_of_another_one() {
    needs!(MOUNTS);
    let mount = mount(&["settle=1h", "live_after=2h", "profile=true"]);
    assert!(
        mount.as_user(ALICE, "cp /bin/sleep alice/alice-tool; alice/alice-tool 0; cat alice/*file").status.success()
    );
    assert!(mount.as_user(BOB, "cat bob/*file").status.success());
    let mut told = Vec::new();
    for entry in fs::read_dir(mount.at(".dlio")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name == "ops" || mode(&mount.at(".dlio").join(&name)) & 0o004 == 0 {
            continue;
        }
        let output = mount.as_user(BOB, &format!("timeout 20 cat .dlio/{name}"));
        let text = if name == "recording" { unpacked(&output.stdout) } else { said(&output).1 };
        assert!(output.status.success() && !text.contains("alice"), "{name}: {text}");
        if text.contains("bob-file") {
            told.push(name);
        }
    }
    told.sort();
    assert_eq!(told, ["files", "files.json", "files.tsv", "queue", "queue.json", "recording"]);
    for (name, line) in [("files", "(files of others)"), ("processes", "(others)")] {
        let text = said(&mount.as_user(BOB, &format!("cat .dlio/{name}"))).1;
        assert!(text.contains(line), "{name}: {text}");
    }
}

/// All that a recording has, as text.
fn unpacked(recording: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), recording).unwrap();
    let output = Command::new(PROGRAM).args(["report", "--format", "json"]).arg(file.path()).output();
    said(&output.unwrap()).1
}

#[test]
fn what_concerns_a_path_may_be_asked_for_by_whoever_gets_there() {
    needs!(MOUNTS);
    let (mount, program) = (mount(&["settle=1h", "live_after=2h"]), Program::new());
    let denied = "Permission denied";
    for line in [
        "sync /alice/alice-file",
        "front /alice/alice-file",
        "evict /alice",
        "verify /alice",
        "stage /alice",
        "pin /alice/alice-file",
    ] {
        let reply = control(&mount, BOB, line);
        assert!(reply.starts_with("error: ") && reply.contains(denied), "{line}: {reply}");
    }
    let whose = "it belongs to another user";
    for line in ["front /shared/data", "evict /shared/data", "verify /shared", "stage /shared/data", "pin /shared/data"]
    {
        let reply = control(&mount, BOB, line);
        assert!(reply.starts_with("error: ") && reply.contains(whose), "{line}: {reply}");
    }
    assert!(control(&mount, BOB, "sync /shared/data").starts_with("ok: "));
    for line in [
        "pause",
        "resume",
        "reload",
        "deadline 1s",
        "set-aside /bob",
        "staging pause",
        "staging cancel",
        "window start x",
        "mark x",
    ] {
        let reply = control(&mount, BOB, line);
        assert_eq!(reply, "error: only root and the mount's owner may do that\n", "{line}");
    }

    // Their own: by the commands.
    let file = "bob/bob-file";
    assert_eq!(program.run(&mount, BOB, &["drain", file]).0, 0);
    assert_eq!(fs::read(mount.slow().join(file)).unwrap(), b"of-bob\n");
    for words in [
        &["verify", file][..],
        &["pin", file],
        &["pin", "--list", "."],
        &["unpin", file],
        &["evict", file],
        &["stage", file, "--wait"],
    ] {
        let (code, text) = program.run(&mount, BOB, words);
        assert_eq!(code, 0, "{words:?}: {text}");
    }
    // What alice has written before waits no longer than theirs: one order.
    assert_eq!(program.run(&mount, BOB, &["sync", "."]).0, 0);
    assert!(mount.slow().join("alice/alice-file").exists());
}

#[test]
fn a_further_group_leads_to_a_path_as_it_does_for_the_kernel() {
    needs!(MOUNTS, "setpriv");
    let mount = mount(&["settle=0s"]);
    let dir = mount.at("project");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(ALICE), Some(PROJECT)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
    let ask = |groups: &str| {
        let script = "exec 3<>.dlio/control; echo sync /project >&3; cat <&3";
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &BOB.to_string(), "--regid", &BOB.to_string()]);
        command.args([groups, "bash", "-c", script]).current_dir(mount.root());
        said(&command.output().unwrap()).1
    };
    assert!(ask("--clear-groups").contains("Permission denied"));
    let reply = ask(&format!("--groups={PROJECT}"));
    assert!(reply.contains("ok: /project is on the slow tier"), "{reply}");
}

/// Each open file of `.dlio` holds its text in the daemon.
#[test]
fn who_opens_many_files_of_dlio_leaves_room_for_others() {
    needs!(MOUNTS);
    let mount = mount(&[]);
    let script = "import errno, os, sys\ntry:\n  while True: os.open('.dlio/stats.json', os.O_RDONLY)\n\
                  except OSError as e: print(errno.errorcode[e.errno], flush=True)\nsys.stdin.read()";
    let mut command = Command::new("python3");
    command.args(["-c", script]).current_dir(mount.root()).uid(BOB).gid(BOB);
    let mut holding = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holding.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let reads = |user| mount.as_user(user, "cat .dlio/stats").status.success();
    let seen = (line.trim().to_owned(), reads(BOB), reads(ALICE), mount.stats_json()["cache"]["open_handles"].as_u64());
    drop(holding.stdin.take());
    holding.wait().unwrap();
    assert_eq!(seen, ("ENFILE".to_owned(), false, true, Some(0)));
    until("what is closed counts no more", || reads(BOB));
}

/// As people do: from within a directory of the mount.
#[test]
fn each_command_finds_the_mount_of_a_path_on_it() {
    needs!(MOUNTS);
    let mount = Mount::new();
    fs::create_dir(mount.at("run")).unwrap();
    mount.put("run/file", "x");
    mount.sync();
    for words in ["status", "queue", "checkpoints", "top --count 1 --interval 1"] {
        for path in ["run", "run/file"] {
            let output = Command::new(PROGRAM).args(words.split(' ')).arg(mount.at(path)).output().unwrap();
            assert_eq!(said(&output).0, 0, "{words} {path}: {output:?}");
        }
    }
    for words in ["report", "advise", "plan"] {
        let output = Command::new(PROGRAM).arg(words).arg(mount.at("run")).output().unwrap();
        assert_eq!(said(&output).0, 0, "{words}: {output:?}");
    }
    // But all of it only by its own name.
    let output = Command::new(PROGRAM).args(["evict", "--all"]).arg(mount.at("run")).output().unwrap();
    assert!(!output.status.success() && said(&output).1.contains("is not a mount point"), "{output:?}");
}

/// A program with more rights that writes to a descriptor of `control` asks as who has opened it.
#[test]
fn a_descriptor_of_control_keeps_the_rights_of_who_has_opened_it() {
    needs!(MOUNTS);
    let mount = mount(&["settle=1h", "live_after=2h"]);
    let script = format!(
        "import os, subprocess\nos.setegid({BOB}); os.seteuid({BOB})\nfd = os.open('.dlio/control', os.O_RDWR)\n\
         os.seteuid(0); os.setegid(0)\nsubprocess.run(['sh', '-c', 'echo pause'], stdout=fd)\nprint(os.read(fd, 4096).decode())"
    );
    assert_eq!(mount.python(&script).trim(), "error: only root and the mount's owner may do that");
}

/// Root hands a job's mount to the job's user, who may then do with it what root may; others may not.
#[test]
fn a_mount_that_is_handed_to_a_user_is_theirs() {
    needs!(MOUNTS);
    let mount = mount(&[&format!("owner={ALICE}")]);
    assert_eq!(fs::metadata(mount.at(".dlio/control")).unwrap().uid(), ALICE);
    for line in ["mark here", "window start a", "pause", "resume"] {
        assert!(control(&mount, ALICE, line).starts_with("ok: "), "{line}");
        assert!(control(&mount, BOB, line).contains("only root and the mount's owner"), "{line}");
    }
    let config = |user| mount.as_user(user, "cat .dlio/config").status.success();
    assert!(config(ALICE) && !config(BOB));
    let files = |user| String::from_utf8(mount.as_user(user, "cat .dlio/files").stdout).unwrap();
    assert!(files(ALICE).contains("/bob/bob-file") && !files(BOB).contains("/alice/alice-file"));
    // What is in others' files stays theirs.
    assert!(!mount.as_user(ALICE, "cat bob/bob-file").status.success());
}

/// A process of Bob's with an open file that looks like the lock of another mount's daemon.
struct Impostor {
    process: Child,
    _place: tempfile::TempDir,
}

impl Impostor {
    const SCRIPT: &str = "import os, sys\nplace, mountpoint, kind = sys.argv[1:]\nos.mkdir(place + '/.dlio-fs')\n\
        lock = place + '/.dlio-fs/lock'\nif kind == 'fifo': os.mkfifo(lock)\nfd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)\n\
        line = f'host=x pid={os.getpid()} mountpoint={mountpoint} slow-read-only=/x since=2026-01-01T00:00:00Z\\n'\n\
        if kind == 'file': os.write(fd, line.encode())\nprint('holds it', flush=True)\nsys.stdin.read()";

    fn of(mount: &Mount, kind: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        chown(place.path(), Some(BOB), Some(BOB)).unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", Self::SCRIPT]).arg(place.path()).arg(mount.root()).arg(kind).uid(BOB).gid(BOB);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "holds it\n");
        Impostor { process, _place: place }
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Any user could pose as the daemon of root's mount: `umount` drained nothing and waited for the wrong process, and a fifo hung it.
#[test]
fn nobody_poses_as_the_daemon_of_a_mount_of_root() {
    needs!(MOUNTS);
    for kind in ["file", "fifo"] {
        let mut mount = Mount::idle(Elsewhere::default(), &["settle=1h", "live_after=2h"]);
        // Before the mount: processes are tried in the order of their numbers.
        let impostor = Impostor::of(&mount, kind);
        mount.start();
        mount.put("ckpt", "of root");
        let umount = Command::new(PROGRAM).arg("umount").arg(mount.root()).stderr(Stdio::piped()).spawn();
        let mut umount = umount.unwrap();
        until("umount returns", || umount.try_wait().unwrap().is_some());
        let (code, text) = said(&umount.wait_with_output().unwrap());
        assert_eq!(code, 0, "{kind}: {text}");
        assert_eq!(fs::read_to_string(mount.slow().join("ckpt")).unwrap(), "of root", "{kind}: {text}");
        drop(impostor);
    }
}

/// The roots of both tiers are a project's: a default ACL, and the group, for what is made in them. Our own directories took both and gave
/// them on, so that on the slow tier Bob read a file of mode 0640 that the mount denied him, and root's files belonged to the project.
#[test]
fn the_tiers_roots_give_nothing_on_to_files_in_other_directories() {
    needs!(MOUNTS);
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s"]);
    let (fast, slow) = (mount.fast(), mount.slow());
    let sh = |script: &str| succeeded(Command::new("sh").args(["-ec", script]).output().unwrap());
    fs::create_dir(slow.join("alice")).unwrap();
    chown(slow.join("alice"), Some(ALICE), Some(ALICE)).unwrap();
    let give_on = format!("chgrp {PROJECT} -- \"$@\"; chmod g+s -- \"$@\"; setfacl -d -m u:{BOB}:rwx -- \"$@\"");
    sh(&format!("set -- {} {}; {give_on}", fast.display(), slow.display()));
    for start in ["first", "second"] {
        mount.start();
        let made = "mkdir $1; cd $1; echo secret >f; mkdir d; mkfifo p; ln -s f l";
        succeeded(mount.as_user(ALICE, &format!("set -- {start}; cd alice; umask 027; {made}")));
        mount.sh(&format!("cd alice; echo root >{start}-root"));
        let denied = || mount.as_user(BOB, &format!("cat alice/{start}/f"));
        assert!(!denied().status.success(), "{start} start: {:?}", denied());
        mount.sync();
        let there = slow.join("alice").join(start);
        let mut cat = Command::new("cat");
        let cat = cat.arg(there.join("f")).uid(BOB).gid(BOB).output().unwrap();
        assert!(!cat.status.success(), "{start} start: {cat:?}");
        for tree in [mount.at("alice"), slow.join("alice")] {
            let facl = sh(&format!("getfacl -RPcnsE {}", tree.display()));
            assert_eq!(facl, "", "{start} start: there is more than the modes say");
        }
        let root_s = fs::metadata(slow.join(format!("alice/{start}-root"))).unwrap();
        assert_eq!((root_s.gid(), mode(&there.join("f"))), (0, 0o640), "{start} start");
        mount.stop();
        // As a daemon of former times left them.
        let ours = [fast.join(".dlio-fs"), slow.join(".dlio-fs")].map(|ours| ours.display().to_string()).join(" ");
        sh(&format!("set -- $(find {ours} -type d); {give_on}"));
    }
}
