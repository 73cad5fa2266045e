//! What users do who mean harm, or do not care (P17). Root mounts; they are others. Needs root, /dev/fuse.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dlio_fs::path::is_harmless;
use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::rig::{NEVER_SETTLES, Rig, foreground, program, succeeds, text, wait};
use crate::common::{Elsewhere, Mount, Volume, names, succeeded, until};
use crate::needs::{MOUNTS, needs};

const SOMEBODY: u32 = 1001;

/// The mount command looks on the slow tier who else mounts it, and removed what daemons that are gone had left there: by any link.
fn link_to_what_a_daemon_left(rig: &Rig, victim: &Path) {
    let (elsewhere, host) = (victim.parent().unwrap(), nix::unistd::gethostname().unwrap().into_string().unwrap());
    fs::create_dir(elsewhere).unwrap();
    fs::write(victim, format!("host={host} pid=1 mountpoint=/m slow=/s since=0 fleet=\n")).unwrap();
    let link = rig.path("slow/.dlio-fs/mounts");
    fs::remove_dir_all(&link).unwrap();
    symlink(elsewhere, &link).unwrap();
    lchown(link, Some(SOMEBODY), None).unwrap();
}

/// Whoever had made the directory before root mounted over it could swap the log between two mounts, and with it who owns what: the
/// next mount made a set-id program of root's. Or read and replace everybody's pending files.
#[test]
fn a_tier_that_somebody_else_prepared_is_refused_until_it_is_root_s() {
    needs!(MOUNTS);
    for place in ["fast/.dlio-fs/log", "fast/.dlio-fs/pool/00", "slow/.dlio-fs/tmp", "slow"] {
        let rig = Rig::new();
        rig.mount(&[]);
        rig.umount_safely();
        let theirs = rig.path(place);
        fs::create_dir_all(&theirs).unwrap();
        chown(&theirs, Some(SOMEBODY), None).unwrap();
        let victim = rig.path("elsewhere/lock");
        if place == "slow" {
            link_to_what_a_daemon_left(&rig, &victim);
        }
        let refused = rig.mount_command().output().unwrap();
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        if place == "slow" {
            assert!(victim.exists());
            fs::remove_file(rig.path("slow/.dlio-fs/mounts")).unwrap();
        }
        assert!(said.contains(&format!("chown 0 {}", theirs.display())), "{said}");
        chown(&theirs, Some(0), None).unwrap();
        fs::set_permissions(&theirs, Permissions::from_mode(0o777)).unwrap();
        let said = text(&rig.mount_command().output().unwrap().stderr);
        assert!(said.contains(&format!("chmod go-w {}", theirs.display())), "{said}");
        fs::set_permissions(&theirs, Permissions::from_mode(0o755)).unwrap();
        rig.mount(&[]);
        rig.umount_safely();
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// Of a tier that was root's.
fn give_away(path: &Path) {
    succeeds(Command::new("chown").arg("-R").arg(SOMEBODY.to_string()).arg(path));
}

/// What is on a user's tier is that user's word. Root who forgot a member of a user's fleet did as the journal there said: a set-id
/// program of root's. Root who rescued a user's fast tier made the raw disk that its log named, for everybody.
#[test]
fn root_reads_a_user_s_tier_as_that_user_only() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&["-o", "fleet=job,fleet_size=2,clock_error=50ms"]);
    succeeds(Command::new("mknod").arg(rig.mnt("disk")).args(["b", "7", "0"]));
    for (name, mode) in [("plain", 0o640), ("set-id", 0o4755)] {
        fs::write(rig.mnt(name), name).unwrap();
        fs::set_permissions(rig.mnt(name), Permissions::from_mode(mode)).unwrap();
    }
    rig.kill_daemon();
    open_to_all(rig.dir.path());
    let (fast, slow, out) = (rig.path("fast"), rig.path("slow"), rig.path("out"));
    let rescue = |to: &Path| program().arg("rescue").arg(&fast).arg("--to").arg(to).output().unwrap();
    let roots = rescue(&out);
    assert_eq!(roots.status.code(), Some(0), "{roots:?}");
    let mode = |name: &str| fs::symlink_metadata(out.join(name)).map(|stat| stat.mode() & 0o7777).ok();
    assert!(fs::metadata(out.join("disk")).unwrap().file_type().is_block_device());
    assert_eq!(mode("set-id"), Some(0o4755), "a tier of root's own gives back all that there was");
    fs::remove_dir_all(&out).unwrap();

    give_away(&fast);
    give_away(&slow);
    // Who owns a file may do that.
    let mut chmod = Command::new("find");
    succeeds(chmod.arg(fast.join(".dlio-fs/pool")).args(["-size", "6c", "-exec", "chmod", "4755", "{}", "+"]));
    let told = "is a tier of user 1001; this goes on with the rights of that user only";
    let refused = rescue(&out);
    assert!(refused.status.code() == Some(2) && text(&refused.stderr).contains(told), "{refused:?}");
    fs::create_dir(&out).unwrap();
    chown(&out, Some(SOMEBODY), None).unwrap();
    let rescued = rescue(&out);
    let said = text(&rescued.stderr);
    assert!(rescued.status.code() == Some(3) && said.contains(told), "{said}");
    assert!(said.contains("disk: a device node in a fast tier that is not root's alone"), "{said}");
    assert!(said.contains("set-id: without its set-id bits") && said.contains("plain: without its group"), "{said}");
    assert_eq!((mode("disk"), mode("set-id"), mode("plain")), (None, Some(0o705), Some(0o600)));
    assert!(names(&out).iter().all(|name| fs::metadata(out.join(name)).unwrap().uid() == SOMEBODY));
    assert_eq!(fs::read_to_string(out.join("plain")).unwrap(), "plain");

    let [fast, slow] = [&fast, &slow].map(|path| path.to_str().unwrap());
    for command in [
        &["fsck", fast, "--slow", slow][..],
        &["status", "--fleet", "job", "--slow", slow],
        &["wait", slow, "--fleet", "job", "--slow", slow, "--timeout", "1s"],
        &["forget", "job", "1", "--slow", slow],
        &["saved", slow, "--adopt"],
    ] {
        let said = text(&program().args(command).output().unwrap().stderr);
        assert!(said.contains(told), "{command:?}: {said}");
    }
    // It watches the member for a minute, with nothing left of root's rights.
    let mut forget = program().args(["forget", "job", "0", "--slow", slow]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(forget.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("watching member 0")));
    let status = fs::read_to_string(format!("/proc/{}/status", forget.id())).unwrap();
    forget.kill().unwrap();
    forget.wait().unwrap();
    let words = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().split_whitespace();
    assert!(words("Uid:").all(|uid| uid == SOMEBODY.to_string()), "{status}");
    assert!(words("Gid:").chain(words("Groups:")).all(|gid| gid != "0"), "{status}");
    assert!(
        ["CapPrm:", "CapEff:"].iter().all(|key| words(key).all(|set| set.trim_matches('0').is_empty())),
        "{status}"
    );

    // One that a user may change and that says it is root's is read by nobody.
    chown(rig.path("fast/.dlio-fs"), Some(0), None).unwrap();
    let refused = rescue(&rig.path("new"));
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("fast belongs to user 1001, who could change"), "{said}");
    // Nor does the doctor try anything there.
    let doctor = program().args(["doctor", "--slow", slow]).output().unwrap();
    assert!(text(&doctor.stdout).contains("chown 0 "), "{doctor:?}");
}

/// Paths that a configuration names were looked up again at each use. Who owned a directory above exchanged it for a link: the daemon's next
/// report went there as root, and at SIGHUP its log was appended to any file.
#[test]
fn a_link_that_takes_the_place_of_a_directory_or_log_leads_the_daemon_nowhere() {
    needs!(MOUNTS);
    let rig = Rig::new();
    open_to_all(rig.dir.path());
    let (home, roots) = (rig.path("home"), rig.path("roots"));
    for dir in ["home/reports", "home/logs", "roots"] {
        fs::create_dir_all(rig.path(dir)).unwrap();
    }
    give_away(&home);
    fs::write(roots.join("precious"), "root's\n").unwrap();
    let exchange = |name: &str, target: &Path| {
        let path = home.join(name);
        fs::rename(&path, home.join(format!("{name}.old"))).unwrap();
        symlink(target, &path).unwrap();
        lchown(path, Some(SOMEBODY), None).unwrap();
    };
    let in_home = |name: &str| home.join(name).display().to_string();
    let config = rig.path("home/train.toml");
    let settings = format!("owner = \"{SOMEBODY}\"\njob_report = \"{}\"\n", in_home("reports"));
    fs::write(&config, &settings).unwrap();
    let mut mount = program();
    mount.arg("mount").arg(rig.point()).args(["--config", &in_home("train.toml"), "--log-file", &in_home("logs/log")]);
    mount.arg("--fast").arg(rig.path("fast")).arg("--slow").arg(rig.path("slow"));
    succeeds(&mut mount);
    let control = |line: &str| {
        let mut control = OpenOptions::new().read(true).write(true).open(rig.mnt(".dlio/control")).unwrap();
        // A refusal is in the reply, too.
        drop(control.write_all(format!("{line}\n").as_bytes()));
        std::io::read_to_string(control).unwrap()
    };
    control("window start job evil");
    exchange("reports", &roots);
    let said = control("window stop job evil");
    assert!(said.starts_with("ok") && names(&home.join("reports.old")).len() == 2, "{said}");

    let has = |path: &str, what: &str| fs::read_to_string(home.join(path)).unwrap_or_default().contains(what);
    let hang_up = || kill(rig.daemon(), Signal::SIGHUP).unwrap();
    exchange("logs/log", &roots.join("precious"));
    hang_up();
    until("the former file goes on", || has("logs/log.old", "cannot be reopened"));
    exchange("logs", &roots);
    fs::remove_file(home.join("logs.old/log")).unwrap();
    hang_up();
    until("the log is where it was", || has("logs.old/log", "log file reopened"));
    // Its text would be part of the complaint.
    exchange("train.toml", &roots.join("precious"));
    let said = control("reload");
    assert!(said.contains("link of user 1001") && !said.contains("root's"), "{said}");
    assert_eq!((names(&roots).len(), fs::read_to_string(roots.join("precious")).unwrap()), (1, "root's\n".to_owned()));
    rig.umount_safely();

    // Nor from the start.
    for (option, why) in [("job_report", "reports"), ("trace", "reports"), ("log_file", "logs/log")] {
        let mut mount = program();
        mount.arg("mount").arg(rig.point()).arg("--fast").arg(rig.path("fast")).arg("--slow").arg(rig.path("slow"));
        let output = mount.args(["-o", &format!("{option}={}", in_home(why))]).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("is a link of user 1001"), "{option}: {said}");
    }
    assert_eq!(names(&roots).len(), 1);
}

/// The list of what was installed named a file of root's, of which its user knew the content: root who uninstalled removed it.
#[test]
fn root_uninstalls_by_no_list_of_a_user_s_and_nothing_beyond_the_prefix() {
    needs!(MOUNTS);
    let dir = tempfile::tempdir().unwrap();
    let (prefix, precious) = (dir.path().join("home/.local"), dir.path().join("precious"));
    let install = |more: &[&str]| program().arg("install").arg("--prefix").arg(&prefix).args(more).output().unwrap();
    assert!(install(&[]).status.success());
    let (page, list) = (prefix.join("share/doc/dlio-fs/README.md"), prefix.join("share/dlio-fs/installed"));
    fs::copy(&page, &precious).unwrap();
    let text_of_list = fs::read_to_string(&list).unwrap();
    let hash = text_of_list.lines().find_map(|line| line.strip_suffix("/README.md")?.split_once(' ')).unwrap().0;
    fs::write(&list, format!("{text_of_list}{hash} {}\n", precious.display())).unwrap();
    chown(&list, Some(SOMEBODY), None).unwrap();
    for arguments in [&["--uninstall"][..], &[]] {
        let said = text(&install(arguments).stderr);
        assert!(said.contains("the list of what was installed, may be changed by others"), "{said}");
    }
    // A list of root's own reaches no further, and through no link of a user's.
    chown(&list, Some(0), None).unwrap();
    let mine = prefix.join("share/man");
    chown(prefix.join("bin/dlio-fs"), Some(SOMEBODY), None).unwrap();
    let output = install(&["--uninstall"]);
    let said = text(&output.stderr);
    assert!(
        said.contains("precious is not of this prefix") && said.contains("bin/dlio-fs belongs to another"),
        "{said}"
    );
    assert!(output.status.code() == Some(1) && precious.exists() && !mine.exists(), "{said}");
}

/// Each of these ended the daemon, without what a TERM has it do.
#[test]
fn signals_that_nobody_means_by_it_do_not_end_the_daemon() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let daemon = foreground(&rig, &NEVER_SETTLES);
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    let pid = Pid::from_raw(daemon.id().cast_signed());
    for ignored in
        [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGVTALRM, Signal::SIGPROF, Signal::SIGIO]
    {
        kill(pid, ignored).unwrap();
        assert_eq!(fs::read_to_string(rig.mnt("ckpt")).unwrap(), "weights", "{ignored}");
    }
    kill(pid, Signal::SIGQUIT).unwrap();
    assert_eq!(wait(daemon).0, Some(3), "it leaves as by a TERM");
    assert!(fs::read_to_string(rig.path("log")).unwrap().contains("only the fast tier has these"));
}

/// The bits were gone at once on the disk; the kernel went on running the file by those that it remembered, for as long as attributes live:
/// what a user had written into a set-id program ran as root.
#[test]
fn what_a_user_writes_into_a_set_id_program_never_runs_with_its_privileges() {
    needs!(MOUNTS);
    for io in ["exact", "cached", "passthrough"] {
        let rig = Rig::new();
        rig.mount(&["-o", &format!("io={io}"), "-o", "attribute_lifetime=1h,attribute_lifetime_slow=1h"]);
        for written in ["dd of=id conv=notrunc", "dd of=id", "cat >id"] {
            let id = rig.mnt("id");
            fs::write(&id, "a program of root's").unwrap();
            fs::set_permissions(&id, Permissions::from_mode(0o6777)).unwrap();
            // As of now the kernel knows the mode.
            assert_eq!(fs::metadata(&id).unwrap().mode() & 0o7777, 0o6777);
            let script = format!("{written} <$(command -v id) 2>/dev/null && ./id -u");
            let mut sh = Command::new("sh");
            sh.args(["-c", &script]).current_dir(rig.point()).uid(SOMEBODY).gid(SOMEBODY);
            assert_eq!(succeeds(&mut sh).trim(), SOMEBODY.to_string(), "{io}: {written}");
        }
        rig.umount_safely();
    }
}

/// xfs gives a freed inode number out again at once. A user's `chmod 4755` of his own file waited; he removed the file on the slow tier,
/// root's new program got its number, and he gave it the name: it was set-id, and he was root. With 666 he could read another user's
/// file, and on the mount he could at once: the kernel knew his.
#[test]
fn what_waits_for_a_users_file_is_not_done_to_the_next_one_with_its_inode_number() {
    needs!(MOUNTS, "mkfs.xfs");
    for (waits, next, perm) in [("4755", 0, 0o755), ("666", SOMEBODY + 1, 0o600)] {
        let volume = Volume::xfs();
        let home = volume.tier().join("home");
        fs::create_dir(&home).unwrap();
        fs::write(home.join("x"), "his").unwrap();
        [home.clone(), home.join("x")].iter().for_each(|path| chown(path, Some(SOMEBODY), None).unwrap());
        let mut mount = Mount::over(volume.tier(), &["settle=30min", "live_after=1h"]);
        succeeded(mount.as_user(SOMEBODY, &format!("cat home/x && chmod {waits} home/x")));
        let number = fs::metadata(home.join("x")).unwrap().ino();
        fs::remove_file(home.join("x")).unwrap();
        // The kernel frees it a little later.
        until("the number is given out again", || {
            fs::write(home.join("next"), "next").unwrap();
            let is_it = fs::metadata(home.join("next")).unwrap().ino() == number;
            if !is_it {
                fs::remove_file(home.join("next")).unwrap();
            }
            is_it
        });
        chown(home.join("next"), Some(next), None).unwrap();
        fs::set_permissions(home.join("next"), Permissions::from_mode(perm)).unwrap();
        fs::rename(home.join("next"), home.join("x")).unwrap();
        let read = mount.as_user(SOMEBODY, "cat home/x");
        assert_eq!(read.status.success(), perm == 0o755, "{}", text(&read.stderr));
        mount.sync();
        let is = fs::metadata(home.join("x")).unwrap();
        assert_eq!((is.mode() & 0o7777, is.uid()), (perm, next));
        assert_eq!(fs::read_to_string(home.join("x")).unwrap(), "next");
        mount.stop();
    }
}

/// Opens files until it is refused one, says how many and why, and keeps them until its standard input ends.
const GREEDY: &str = "
import os, sys
held = []
try:
    while len(held) < 1000:
        held.append(os.open(f'{sys.argv[1]}-{len(held)}', os.O_CREAT | os.O_WRONLY))
except OSError as e:
    print(len(held), e.errno, flush=True)
sys.stdin.read()
";

/// Whoever opened enough files took all descriptors of the daemon: nobody could list a directory, and nothing was published. With a limit of
/// 256 that was soon.
#[test]
fn who_opens_files_without_end_leaves_descriptors_for_others() {
    needs!(MOUNTS);
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s"]);
    mount.through(&["prlimit", "--nofile=256:256"]);
    mount.start();
    fs::set_permissions(mount.root(), Permissions::from_mode(0o777)).unwrap();
    let mut greedy: Vec<(Child, usize)> = (0..3)
        .map(|user| {
            let mut python = Command::new("python3");
            python.args(["-c", GREEDY, &format!("of{user}")]).current_dir(mount.root());
            python.uid(SOMEBODY + user).gid(SOMEBODY + user).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut python = python.spawn().unwrap();
            let mut said = String::new();
            BufReader::new(python.stdout.take().unwrap()).read_line(&mut said).unwrap();
            let (held, errno) = said.trim().split_once(' ').unwrap();
            assert_eq!(errno, (Errno::ENFILE as i32).to_string(), "{user}: {said}");
            (python, held.parse().unwrap())
        })
        .collect();
    let held: Vec<usize> = greedy.iter().map(|(_, held)| *held).collect();
    assert!(held[0] > held[1] && held[1] > held[2] && held[2] > 10, "each less than the one before: {held:?}");
    succeeded(mount.as_user(SOMEBODY + 3, "ls -l >/dev/null; echo mine >mine; cat mine"));
    for dir in 0..100 {
        fs::create_dir(mount.at(format!("{dir}"))).unwrap();
        mount.put(&format!("{dir}/f"), "root's");
    }
    for (python, _) in &mut greedy {
        drop(python.stdin.take());
        assert!(python.wait().unwrap().success());
    }
    mount.sync();
    assert_eq!(names(&mount.slow()).len(), 1 + held.iter().sum::<usize>() + 1 + 100);
}

/// Any user with a mount of his own chooses its name, and root's `dlio-fs status` printed it as it was: escape sequences, and a line that said
/// `SAFE: everything is on the slow tier`. Names of files, processes and marks are anybody's choice, too.
#[test]
fn what_a_user_names_writes_no_line_and_nothing_that_a_terminal_follows() {
    needs!(MOUNTS);
    const NAME: &str = "a\u{1b}]0;OWNED\u{7}\u{9b}31m\u{202e}\nSAFE: everything is on the slow tier: forged";
    let rig = Rig::called(NAME);
    rig.mount(&[&NEVER_SETTLES[..], &["-o", "profile=true"]].concat());
    let copy = "cp $(command -v cat) \"$1\" && \"./$1\" </dev/null >\"$1.pt\"";
    succeeds(Command::new("sh").args(["-c", copy, "sh", NAME]).current_dir(rig.point()));
    let held = fs::File::open(rig.mnt(&format!("{NAME}.pt"))).unwrap();
    let mut told: Vec<(String, String)> = Vec::new();
    for words in [
        "status",
        "queue",
        "checkpoints",
        "report",
        "report --all",
        "advise",
        "top --count 1 --interval 200ms",
        "stage",
        "umount --now",
    ] {
        for json in [&["--json"][..], &[]] {
            let mut command = program();
            let output = command.args(words.split(' ')).args(json).arg(rig.point()).output().unwrap();
            told.push((format!("{words} {json:?}"), text(&output.stdout) + &text(&output.stderr)));
        }
    }
    // Of all mounts, others' among them.
    told.extend(
        ["status", "umount"].map(|word| (word.to_owned(), text(&program().arg(word).output().unwrap().stdout))),
    );
    for name in
        names(&rig.mnt(".dlio")).into_iter().filter(|name| name != "control" && name != "ops" && name != "recording")
    {
        if let Ok(read) = fs::read(rig.mnt(".dlio").join(&name)) {
            told.push((format!(".dlio/{}", name.display()), text(&read)));
        }
    }
    told.push(("the log".to_owned(), fs::read_to_string(rig.path("log")).unwrap()));
    for (what, text) in &told {
        let followed = text.chars().find(|c| !matches!(c, '\n' | '\t') && !is_harmless(*c));
        assert_eq!(followed, None, "{what}: {text:?}");
        assert!(
            !text.lines().any(|line| line.starts_with("SAFE: everything is on the slow tier: forged")),
            "{what}: {text}"
        );
    }
    assert!(told.iter().any(|(_, text)| text.contains("OWNED")), "it is shown");
    let json = program().args(["status", "--json"]).arg(rig.point()).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["mounts"][0]["mountpoint"].as_str(), rig.point().to_str(), "{json}");
    drop(held);
    rig.umount_safely();
}

/// Holds a lease on a file, and takes it again whenever it is broken.
const LEASE: &str = "
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, lambda *_: None)
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('has it', flush=True)
sys.stdin.read()
";

/// A file system that never answers.
fn mount_silence(at: &Path, uid: u32) -> fs::File {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id={uid},group_id={uid},allow_other", fuse.as_raw_fd());
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    nix::mount::mount(Some("silence"), at, Some("fuse.silence"), flags, Some(&options[..])).unwrap();
    fuse
}

/// Each of these kept everybody's checkpoints from the slow tier: a lease on a file that its owner had changed, a file `.dlio-fs` in
/// somebody's part of the tree, a part without room, and a file system mounted over a directory to which something was on its
/// way, also one that never answers.
#[test]
fn what_one_user_does_to_the_slow_tree_holds_nobody_else() {
    needs!(MOUNTS);
    const USERS: [&str; 5] = ["lease", "planted", "full", "silent", "over"];
    let uid = |name: &str| 2001 + USERS.iter().position(|user| *user == name).unwrap() as u32;
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s"]);
    let slow = mount.slow();
    for (user, size) in USERS.into_iter().zip(["", "20m", "1m", "", ""]) {
        let dir = slow.join(user);
        fs::create_dir(&dir).unwrap();
        chown(&dir, Some(uid(user)), Some(uid(user))).unwrap();
        if !size.is_empty() {
            let options = format!("size={size},uid={},mode=755", uid(user));
            succeeded(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&dir).output().unwrap());
        }
    }
    let _parts = ["planted", "full", "over/d", "silent/d"].map(|part| Also(slow.join(part)));
    fs::write(slow.join("lease/x"), "x").unwrap();
    chown(slow.join("lease/x"), Some(uid("lease")), None).unwrap();
    mount.start();
    fs::create_dir(mount.at("alice")).unwrap();
    for user in ["silent", "over"] {
        succeeded(mount.as_user(uid(user), &format!("mkdir {user}/d")));
    }
    mount.sync();
    let goes_on = |behind: &str| {
        mount.put(&format!("alice/{behind}"), "checkpoint");
        until(&format!("a checkpoint arrives behind {behind}"), || slow.join("alice").join(behind).exists());
    };

    let mut lease = Command::new("python3");
    lease.args(["-c", LEASE]).arg(slow.join("lease/x")).uid(uid("lease")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut lease = lease.spawn().unwrap();
    BufReader::new(lease.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    succeeded(mount.as_user(uid("lease"), "chmod 640 lease/x"));
    goes_on("lease");
    assert_eq!(fs::metadata(slow.join("lease/x")).unwrap().mode() & 0o777, 0o640);

    fs::write(slow.join("planted/.dlio-fs"), "planted").unwrap();
    succeeded(mount.as_user(uid("planted"), "echo mine >planted/x"));
    goes_on("planted");

    succeeded(mount.as_user(uid("full"), "head -c 5M /dev/zero >full/x; echo marker >full/y"));
    goes_on("full");

    mount.control("pause");
    succeeded(mount.as_user(uid("silent"), "echo x >silent/d/x; chmod 700 silent/d"));
    succeeded(mount.as_user(uid("over"), "echo x >over/d/x; chmod 700 over/d; echo marker >over/y"));
    let silence = mount_silence(&slow.join("silent/d"), uid("silent"));
    succeeded(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(slow.join("over/d")).output().unwrap());
    mount.control("resume");
    goes_on("silent");
    goes_on("over");
    assert_eq!(names(&slow.join("over")), ["d"], "the marker waits");
    assert!(names(&slow.join("over/d")).is_empty());
    let held = mount.stats_json()["held_users"].as_array().unwrap().clone();
    let held: Vec<_> = held.iter().map(|held| held["uid"].as_u64().unwrap() as u32).collect();
    assert_eq!(held, ["planted", "full", "silent", "over"].map(uid), "{}", mount.stats());
    assert!(mount.stats().contains("a file system is mounted over its directory"), "{}", mount.stats());

    // And all of it arrives once the reason is gone.
    drop(lease.stdin.take());
    lease.wait().unwrap();
    fs::remove_file(slow.join("planted/.dlio-fs")).unwrap();
    succeeded(Command::new("mount").args(["-o", "remount,size=20m"]).arg(slow.join("full")).output().unwrap());
    for over in ["silent/d", "over/d"] {
        succeeded(Command::new("umount").arg("-l").arg(slow.join(over)).output().unwrap());
    }
    drop(silence);
    mount.sync();
    for arrived in ["planted/x", "full/x", "full/y", "silent/d/x", "over/d/x", "over/y"] {
        assert!(slow.join(arrived).exists(), "{arrived}");
    }
    assert!(mount.verdict().starts_with("SAFE"), "{}", mount.verdict());
}

/// Something that a test has mounted; taken away at its end.
struct Also(PathBuf);

impl Drop for Also {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}
