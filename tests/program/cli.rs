//! The command line as a user meets it: the built program, bad input, help. Nothing here makes a mount.
//!
//! Each refusal is one line on standard error, has its documented exit code, and leaves everything as it was.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dlio_fs::mount::{FastLock, HeldDir};

use crate::common::rig::{PROGRAM, copy_program};
use crate::needs::{MOUNTS, needs};

/// Three directories that would make a mount.
struct Places {
    dir: tempfile::TempDir,
}

impl Places {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["mnt", "fast", "slow"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Places { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `mount` with these three, by their names in the temporary directory.
    fn mount(&self, mountpoint: &str, fast: &str, slow: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("mount").arg(self.path(mountpoint));
        command.arg("--fast").arg(self.path(fast)).arg("--slow").arg(self.path(slow));
        command
    }

    /// Every path below, to see that nothing was created.
    fn tree(&self) -> Vec<PathBuf> {
        fn walk(dir: &Path, into: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                into.push(entry.path());
                if entry.file_type().unwrap().is_dir() {
                    walk(&entry.path(), into);
                }
            }
        }
        let mut tree = Vec::new();
        walk(self.dir.path(), &mut tree);
        tree.sort();
        tree
    }

    /// Runs what must be refused: the exit code, one line with all of `parts`, and nothing created.
    #[track_caller]
    fn refused(&self, command: &mut Command, code: i32, parts: &[&str]) {
        let before = self.tree();
        let output = command.output().unwrap();
        assert_refusal(&output, code, parts);
        assert_eq!(self.tree(), before, "something was created");
    }
}

#[track_caller]
fn assert_refusal(output: &Output, code: i32, parts: &[&str]) {
    let line = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert_eq!(line.lines().count(), 1, "not one line: {line}");
    assert!(line.starts_with("dlio-fs: "), "{line}");
    for part in parts {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
    assert!(output.stdout.is_empty(), "{output:?}");
}

fn owner(mountpoint: &str) -> dlio_fs::mount::Owner {
    dlio_fs::mount::Owner::ourselves(Path::new(mountpoint), None, true)
}

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

#[test]
fn a_missing_directory_is_named_with_its_option() {
    let places = Places::new();
    places.refused(
        &mut places.mount("mnt", "none", "slow"),
        2,
        &["--fast", "none does not exist", "create the directory"],
    );
    places.refused(&mut places.mount("mnt", "fast", "none"), 2, &["--slow", "none does not exist"]);
    places.refused(&mut places.mount("none", "fast", "slow"), 2, &["mount point", "none does not exist"]);
    places.refused(&mut places.mount("no/ne", "fast", "slow"), 2, &["mount point", "ne does not exist"]);
}

/// `--fast=~/fast`, or `fast = "$HOME/fast"` in a file: the directory that was meant exists, and "create it" is no help.
#[test]
fn a_path_that_nothing_has_expanded_is_told_as_such() {
    let places = Places::new();
    let config = places.path("train.toml");
    for name in ["~/fast", "$HOME/fast"] {
        let mut mount = places.mount("mnt", name, "slow");
        places.refused(&mut mount, 2, &["--fast", "fast does not exist; nothing expands ~", "write the whole path"]);
        fs::write(&config, format!("fast = \"{name}\"")).unwrap();
        let mut mount = Command::new(PROGRAM);
        mount.arg("mount").arg(places.path("mnt")).arg("--slow").arg(places.path("slow")).arg("--config").arg(&config);
        places.refused(&mut mount, 2, &["--fast", "fast does not exist; nothing expands ~", "write the whole path"]);
    }
}

#[test]
fn what_is_not_a_directory_is_refused() {
    let places = Places::new();
    fs::write(places.path("file"), "").unwrap();
    places.refused(&mut places.mount("mnt", "file", "slow"), 2, &["--fast", "file is not a directory"]);
    places.refused(&mut places.mount("mnt", "fast", "file"), 2, &["--slow", "file is not a directory"]);
    places.refused(&mut places.mount("file", "fast", "slow"), 2, &["mount point", "file is not a directory"]);
}

#[test]
fn a_directory_one_may_not_use_is_refused() {
    let places = Places::new();
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    ["", "mnt", "fast", "slow"].iter().for_each(|name| open(&places.path(name)));
    // Where the program was built, nobody else may be able to look.
    let program = places.path("program");
    copy_program(&program);
    for (name, option) in [("fast", "--fast"), ("slow", "--slow")] {
        fs::set_permissions(places.path(name), fs::Permissions::from_mode(0o555)).unwrap();
        let mut command = Command::new(&program);
        command.arg("mount").arg(places.path("mnt"));
        command.arg("--fast").arg(places.path("fast")).arg("--slow").arg(places.path("slow"));
        // Root passes all mode bits.
        if nix::unistd::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        places.refused(&mut command, 2, &[option, "cannot be read, written and searched by user", "mode or owner"]);
        open(&places.path(name));
    }
}

/// `ulimit -v 300000`: "start thread slow: Resource temporarily unavailable", and with a little more the daemon was ended by an
/// allocation that failed.
#[test]
fn too_little_address_space_is_told_with_the_limit_and_what_a_mount_needs() {
    let places = Places::new();
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    ["", "mnt", "fast", "slow"].iter().for_each(|name| open(&places.path(name)));
    let program = places.path("program");
    copy_program(&program);
    for foreground in ["", "--foreground"] {
        let script = format!("ulimit -v 300000; exec ./program mount mnt --fast fast --slow slow {foreground}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(places.dir.path());
        // Root raises it.
        if nix::unistd::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let parts =
            ["is limited to 293.0 MiB (ulimit -v), and a mount needs ", "raise the hard limit (ulimit -v unlimited"];
        places.refused(&mut command, 1, &parts);
    }
}

#[test]
fn the_same_directory_twice_is_refused() {
    let places = Places::new();
    symlink("slow", places.path("link")).unwrap();
    places.refused(&mut places.mount("mnt", "slow", "slow"), 2, &["are the same directory"]);
    places.refused(&mut places.mount("mnt", "link", "slow"), 2, &["are the same directory"]);
    places.refused(&mut places.mount("fast", "fast", "slow"), 2, &["is inside"]);
}

#[test]
fn nested_directories_are_refused() {
    let places = Places::new();
    for outer in ["mnt", "fast", "slow"] {
        fs::create_dir(places.path(outer).join("in")).unwrap();
    }
    for (mountpoint, fast, slow) in [
        ("mnt", "slow/in", "slow"),
        ("mnt", "fast", "fast/in"),
        ("fast/in", "fast", "slow"),
        ("slow/in", "fast", "slow"),
        ("mnt", "mnt/in", "slow"),
        ("mnt", "fast", "mnt/in"),
    ] {
        places.refused(&mut places.mount(mountpoint, fast, slow), 2, &["is inside", "none contains another"]);
    }
}

#[test]
fn a_directory_is_recognised_behind_a_bind_mount() {
    let places = Places::new();
    fs::create_dir(places.path("slow/in")).unwrap();
    fs::create_dir(places.path("bound")).unwrap();
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", script, PROGRAM]);
        command.current_dir(places.dir.path());
        command
    };
    if !in_namespace("true").status().is_ok_and(|status| status.success()) {
        assert_ne!(nix::unistd::geteuid().as_raw(), 0, "root can make mount name spaces");
        return;
    }
    let same = "mount --bind slow bound; exec $0 mount mnt --fast bound --slow slow";
    places.refused(&mut in_namespace(same), 2, &["are the same directory"]);
    let nested = "mount --bind slow/in bound; exec $0 mount mnt --fast bound --slow slow";
    places.refused(&mut in_namespace(nested), 2, &["--fast", "is inside --slow"]);
    let below = "mount --bind slow/in bound; exec $0 mount bound --fast fast --slow slow";
    places.refused(&mut in_namespace(below), 2, &["mount point", "is inside --slow"]);
    // The device is looked for before anything is created, too.
    let no_fuse = "mount -t tmpfs none /dev; exec $0 mount mnt --fast fast --slow slow";
    places.refused(&mut in_namespace(no_fuse), 1, &["/dev/fuse is missing", "modprobe fuse"]);
    let output = in_namespace("mount -t tmpfs none /dev; exec $0 demo").output().unwrap();
    assert_refusal(&output, 1, &["/dev/fuse is missing"]);
}

#[test]
fn what_is_not_given_is_asked_for() {
    let places = Places::new();
    let mount = || {
        let mut command = Command::new(PROGRAM);
        command.arg("mount");
        command
    };
    places.refused(&mut mount(), 2, &["no mount point is given", "--fast DIR"]);
    places.refused(mount().arg(places.path("mnt")), 2, &["no fast tier is given", "add --fast DIR"]);
    places.refused(mount().arg(places.path("mnt")).args(["--fast", "/x"]), 2, &["no slow tier is given"]);
}

fn fast(places: &Places) -> HeldDir {
    HeldDir::open(&places.path("fast")).unwrap()
}

#[test]
fn a_fast_tier_in_use_is_refused_naming_its_holder() {
    needs!(MOUNTS);
    let places = Places::new();
    let _held = FastLock::acquire(&fast(&places), &owner("/mnt/other")).unwrap();
    let pid = format!("pid={}", std::process::id());
    places.refused(&mut places.mount("mnt", "fast", "slow"), 1, &["--fast", "in use", &pid, "mountpoint=/mnt/other"]);
}

#[test]
fn bad_configuration_names_key_value_and_remedy() {
    let places = Places::new();
    let config = places.path("bad.toml");
    for (text, parts) in [
        ("settle = \"soon\"", ["bad.toml, line 1: settle = \"soon\"", "\"1s\""]),
        ("sttle = \"1s\"", ["bad.toml, line 1: unknown key \"sttle\"", "did you mean \"settle\"?"]),
        ("low = \"90%\"", ["low = 90% is not below high = 85%", "choose low below high"]),
        ("io = \"fast\"", ["io = \"fast\"", "passthrough"]),
        ("log = \"loud=x\"", ["log = \"loud=x\"", "write a level"]),
        ("log = \"loud\"", ["log = \"loud\": loud is no level", "write a level"]),
        ("log = \"warn,dlio_fs::tiers=debug,loud\"", ["loud is no level", "write a level"]),
        ("settle = [", ["bad.toml, line 1", "TOML"]),
        ("\u{0}", ["bad.toml, line 1", "TOML"]),
    ] {
        fs::write(&config, text).unwrap();
        places.refused(places.mount("mnt", "fast", "slow").arg("--config").arg(&config), 2, &parts);
    }
    fs::write(&config, b"\xff\xfe").unwrap();
    places.refused(places.mount("mnt", "fast", "slow").arg("--config").arg(&config), 2, &["--config", "UTF-8"]);
    let mut mount = places.mount("mnt", "fast", "slow");
    places.refused(mount.env("DLIO_LOG", "loud=x"), 2, &["DLIO_LOG=loud=x", "write a level"]);
    let missing = places.path("none.toml");
    places.refused(places.mount("mnt", "fast", "slow").arg("--config").arg(missing), 2, &["--config", "none.toml"]);
    places.refused(places.mount("mnt", "fast", "slow").args(["-o", "max_pending=many"]), 2, &["max_pending", "many"]);
    places.refused(places.mount("mnt", "fast", "slow").args(["-o", "settle"]), 2, &["-o settle", "key=value"]);
}

/// `log_file = "/nowhere/x"` ended in "open /nowhere/x: No such file or directory": which key named it, and what to do, was left to
/// the reader. So it was with what a command's arguments name.
#[test]
fn a_path_that_cannot_be_used_is_told_with_what_names_it_and_a_remedy() {
    let places = Places::new();
    let command = |words: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(words);
        command
    };
    for (words, named, remedy) in [
        (&["umount", "--config", "/nowhere/x"][..], "--config /nowhere/x: No such file", "a readable text file"),
        (&["rescue", "/nowhere/x", "--to", "/tmp"], "FAST /nowhere/x: No such file", "given as --fast"),
        (&["forget", "f", "1", "--slow", "/nowhere/x"], "--slow /nowhere/x: No such file", "existing directory"),
        (&["status", "--fleet", "f", "--slow", "/nowhere/x"], "--slow /nowhere/x: No such file", "existing directory"),
        (&["stage", "--plan", "/nowhere/x"], "--plan /nowhere/x: No such file", "dlio-fs plan --json"),
        (&["report", "/nowhere/x"], "SOURCE /nowhere/x: No such file", "name a mount, a recording"),
    ] {
        places.refused(&mut command(words), 2, &[named, "; ", remedy]);
    }
    needs!(MOUNTS);
    let config = places.path("train.toml");
    for (key, path, code, named, remedy) in [
        ("log_file", "/nowhere/x", 2, "log_file (--log-file) /nowhere/x: No such file", "make the directory"),
        ("log_file", "/dev/null", 2, "log_file (--log-file) /dev/null is not a regular file", "name another file"),
        ("trace", "/dev/null/x", 1, "trace = /dev/null/x: Not a directory", "name a directory outside the mount"),
        ("job_report", "/nowhere/x", 1, "job_report = /nowhere/x: No such file", "name an existing directory"),
    ] {
        fs::write(&config, format!("{key} = \"{path}\"\n")).unwrap();
        let mount = || places.mount("mnt", "fast", "slow");
        places.refused(mount().arg("--config").arg(&config), code, &[named, "; ", remedy]);
        places.refused(mount().args(["-o", &format!("{key}={path}")]), code, &[named, "; ", remedy]);
    }
}

/// What comes of the files is in `tests/model/saved.rs`.
#[test]
fn what_is_saved_is_listed_adopted_and_removed() {
    let places = Places::new();
    let slow = places.path("slow");
    let saved = slow.join(".dlio-fs/saved");
    let run = |words: &[&str]| {
        let output = Command::new(PROGRAM).arg("saved").arg(&slow).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(&[]), "0 files in all, 0 B\n");
    for name in ["n1-1795384262/run/a", "n1-1795384262/b", "n1-1795384262-fleet/c"] {
        fs::create_dir_all(saved.join(name).parent().unwrap()).unwrap();
        fs::write(saved.join(name), "four").unwrap();
    }
    fs::create_dir(slow.join("b")).unwrap();
    let list = run(&[]);
    assert!(list.contains("lost a race between nodes") && list.ends_with("3 files in all, 12 B\n"), "{list}");
    let told = run(&["--adopt"]);
    assert!(told.contains("left: n1-1795384262/b: a directory has its name\n"), "{told}");
    assert!(told.ends_with("adopted 1 file; 1 left\n"), "{told}");
    assert_eq!((fs::read(slow.join("run/a")).unwrap(), slow.join("c").exists()), (b"four".to_vec(), false));
    let named = saved.join("n1-1795384262-fleet/c");
    assert_eq!(run(&["--adopt", named.to_str().unwrap()]), "adopted 1 file; 0 left\n");
    assert!(slow.join("c").exists());
    assert_eq!(run(&["--purge"]), "nothing in saved is older than 30days\n");
    let told = run(&["--purge", "--older-than", "0"]);
    assert!(told.contains("removed n1-1795384262: 1 file, 4 B\n"), "{told}");
    assert_eq!(fs::read_dir(&saved).unwrap().count(), 0);
    let output = Command::new(PROGRAM).arg("saved").arg(&slow).args(["--adopt", "n1-7"]).output().unwrap();
    assert_refusal(&output, 1, &[".dlio-fs/saved/n1-7 is not there", "dlio-fs saved SLOW"]);
}

#[test]
fn the_file_gives_the_directories_and_flags_override_it() {
    let places = Places::new();
    let config = places.path("mount.toml");
    fs::write(&config, "mountpoint = \"/from/file\"\nfast = \"/from/file\"\nslow = \"/from/file\"\n").unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("mount").arg("--config").arg(&config);
    places.refused(&mut command, 2, &["--fast /from/file does not exist"]);
    places.refused(command.arg("--fast").arg(places.path("fast")), 2, &["--slow /from/file does not exist"]);
    places.refused(command.arg("--slow").arg(places.path("slow")), 2, &["mount point /from/file does not exist"]);
}

#[test]
fn usage_errors_are_one_line_with_exit_code_2() {
    assert_refusal(&run(&["frobnicate"]), 2, &["frobnicate", "dlio-fs --help"]);
    assert_refusal(&run(&["mount", "--fats", "/x"]), 2, &["'--fats'", "'--fast'"]);
    assert_refusal(&run(&["umount", "/x", "--timeout", "soon"]), 2, &["soon", "30s"]);
    assert_refusal(&run(&["umount", "/x", "--now", "--timeout", "1s"]), 2, &["--now", "--timeout"]);
    assert_refusal(&run(&["umount"]), 2, &["<MOUNTPOINT>"]);
    assert_refusal(&run(&["rescue", "/x"]), 2, &["--to"]);
    assert_refusal(&run(&["verify"]), 2, &["<PATH>"]);
    assert_refusal(&run(&["fsck"]), 2, &["<FAST>"]);
    assert_refusal(&run(&["fsck", "/x", "--repair"]), 2, &["--repair"]);
    assert_refusal(&run(&["evict"]), 2, &["<PATH>"]);
    assert_refusal(&run(&["queue", "/x", "--front", "/y"]), 2, &["--front"]);
    assert_refusal(&run(&["report", "/x", "-o", "/tmp/report.doc"]), 2, &["/tmp/report.doc", "--format", ".html"]);
}

#[test]
fn commands_for_a_mount_say_when_there_is_none() {
    let places = Places::new();
    let path = places.path("mnt");
    let path = path.to_str().unwrap();
    for arguments in [
        ["umount", path],
        ["status", path],
        ["sync", path],
        ["drain", path],
        ["reload", path],
        ["queue", path],
        ["evict", path],
        ["verify", path],
    ] {
        places.refused(Command::new(PROGRAM).args(arguments), 1, &[path, "is not on a dlio-fs mount"]);
    }
    places.refused(Command::new(PROGRAM).args(["sync", "/none/such"]), 1, &["/none/such", "No such file"]);
}

#[test]
fn rescue_refuses_what_is_no_fast_tier_and_a_target_with_something_in_it() {
    let places = Places::new();
    let rescue = |fast: &str, to: &str| {
        let mut command = Command::new(PROGRAM);
        command.arg("rescue").arg(places.path(fast)).arg("--to").arg(places.path(to));
        command
    };
    places.refused(&mut rescue("slow", "new"), 2, &["FAST ", "slow: it is not a fast tier", "--fast"]);
    drop(FastLock::acquire(&fast(&places), &owner("/mnt/x")).unwrap());
    fs::write(places.path("slow/something"), "").unwrap();
    places.refused(&mut rescue("fast", "slow"), 2, &["--to ", "slow: it is not empty", "a new directory"]);
    let _held = FastLock::acquire(&fast(&places), &owner("/mnt/x")).unwrap();
    places.refused(&mut rescue("fast", "new"), 1, &["in use", "mountpoint=/mnt/x"]);
}

#[test]
fn fsck_refuses_what_is_no_fast_tier_and_one_that_is_in_use() {
    let places = Places::new();
    let fsck = |fast: &str, more: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("fsck").arg(places.path(fast)).args(more);
        command
    };
    places.refused(&mut fsck("slow", &[]), 2, &["FAST ", "slow: it is not a fast tier", "--fast"]);
    places.refused(&mut fsck("none", &[]), 2, &["FAST ", "none: No such file", "--fast"]);
    drop(FastLock::acquire(&fast(&places), &owner("/mnt/x")).unwrap());
    places.refused(&mut fsck("fast", &["--slow", "/none/such"]), 2, &["--slow /none/such: No such file"]);
    let output = fsck("fast", &["--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["findings"][0]["place"]), (Some(1), &"super".into()), "{report}");
    for (slow, parts) in [
        (None, &["in use", "mountpoint=/mnt/x"][..]),
        (Some(Path::new("/slow")), &["fast is mounted at /mnt/x", "dlio-fs umount /mnt/x", "dlio-fs verify /mnt/x"]),
    ] {
        let owner = dlio_fs::mount::Owner::ourselves(Path::new("/mnt/x"), slow, true);
        let _held = FastLock::acquire(&fast(&places), &owner).unwrap();
        for more in [&[][..], &["--dry-run"]] {
            places.refused(&mut fsck("fast", more), 1, parts);
        }
    }
}

/// The lock was opened by its path: a private directory that is a link, or a lock that is one file with another, let the
/// start write outside of the tier; a fifo in its place held it for ever.
#[test]
fn a_lock_that_leads_out_of_the_tier_is_not_written() {
    let places = Places::new();
    let take = |fast: &str| FastLock::acquire(&HeldDir::open(&places.path(fast)).unwrap(), &owner("/mnt/x"));
    fs::create_dir(places.path("outside")).unwrap();
    fs::write(places.path("outside/lock"), "precious").unwrap();
    symlink(places.path("outside"), places.path("fast/.dlio-fs")).unwrap();
    take("fast").unwrap_err();
    fs::remove_file(places.path("fast/.dlio-fs")).unwrap();
    fs::create_dir(places.path("fast/.dlio-fs")).unwrap();
    fs::hard_link(places.path("outside/lock"), places.path("fast/.dlio-fs/lock")).unwrap();
    let error = take("fast").unwrap_err().to_string();
    assert!(error.contains("is not a file of its own: it has 2 names"), "{error}");
    assert_eq!(fs::read_to_string(places.path("outside/lock")).unwrap(), "precious");
    fs::remove_file(places.path("fast/.dlio-fs/lock")).unwrap();
    nix::unistd::mkfifo(&places.path("fast/.dlio-fs/lock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    take("fast").unwrap_err();
    assert!(dlio_fs::mount::last_left(&places.path("fast")).is_none());
}

#[test]
fn help_says_at_once_what_each_command_is_for() {
    let help = |arguments: &[&str]| {
        let output = run(arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let top = help(&["--help"]);
    assert!(top.starts_with("Absorb checkpoints on fast storage"), "{top}");
    assert!(top.contains("Exit codes: 0 done"), "{top}");
    for command in [
        "mount",
        "umount",
        "status",
        "drain",
        "sync",
        "queue",
        "set-aside",
        "checkpoints",
        "evict",
        "reload",
        "report",
        "advise",
        "plan",
        "completions",
        "fsck",
        "verify",
        "rescue",
        "doctor",
        "demo",
        "install",
    ] {
        let (short, long) = (help(&[command, "-h"]), help(&[command, "--help"]));
        let first = short.lines().next().unwrap();
        assert!(first.len() > 30 && first.starts_with(char::is_uppercase), "{command}: {first}");
        assert!(top.contains(&first[..30]), "{command} is not in the list of commands");
        assert!(long.len() >= short.len(), "{command}");
        assert!(command == "demo" || long.contains("\nExample"), "{command} shows no example: {long}");
    }
    assert!(!help(&["mount", "--help"]).contains("announce"), "internal flags are not shown");
}

#[test]
fn no_command_at_all_shows_the_help() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("Usage: dlio-fs <COMMAND>"));
}

#[test]
fn doctor_finds_what_a_tier_lacks_and_cleans_up() {
    let places = Places::new();
    let before = places.tree();
    let doctor = |fast: &str, slow: &str| {
        let mut command = Command::new(PROGRAM);
        command.arg("doctor").arg("--fast").arg(places.path(fast)).arg("--slow").arg(places.path(slow));
        let output = command.arg("--json").output().unwrap();
        let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), findings)
    };
    let verdict = |findings: &serde_json::Value, about: &str| {
        let found = findings["findings"].as_array().unwrap().iter().find(|finding| finding["about"] == about);
        found.map(|finding| finding["verdict"].as_str().unwrap().to_owned())
    };
    let (_, findings) = doctor("fast", "slow");
    assert_eq!(verdict(&findings, "fast: directory").as_deref(), Some("ok"), "{findings}");
    assert_eq!(verdict(&findings, "slow: abilities").as_deref(), Some("ok"), "{findings}");
    assert_eq!(verdict(&findings, "tiers").as_deref(), Some("warn"), "both are on one file system: {findings}");
    let (code, findings) = doctor("fast", "none");
    assert_eq!(code, Some(1));
    assert_eq!(verdict(&findings, "slow: directory").as_deref(), Some("fail"), "{findings}");
    assert_eq!(places.tree(), before, "the doctor left something behind");
}

#[test]
fn status_without_a_mount_does_not_read_as_safe() {
    // Other mounts of this machine are none of this test's business: it looks into a mount name space without any.
    let script = "for m in $(awk '/ - fuse.dlio /{print $5}' /proc/self/mountinfo); do umount -l $m; done; \
                  exec $0 status --json";
    let mut command = Command::new("unshare");
    let output = command.args(["--mount", "--propagation", "private", "sh", "-c", script, PROGRAM]).output().unwrap();
    if nix::unistd::geteuid().is_root() {
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &told["mounts"]), (Some(1), &serde_json::json!([])), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("there is no dlio-fs mount here"), "{output:?}");
    }
}

/// Runs a command line on a terminal of 60 columns; what the terminal got, without carriage returns.
fn on_terminal(arguments: &str, environment: &[(&str, &str)]) -> String {
    on_terminal_of(60, arguments, environment)
}

fn on_terminal_of(columns: u32, arguments: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new("script");
    command.args(["-qec", &format!("stty cols {columns} rows 40; exec {PROGRAM} {arguments}"), "/dev/null"]);
    command
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .envs(environment.iter().copied())
        .stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap().replace('\r', "")
}

#[test]
fn help_fits_the_terminal_and_has_colours_only_where_they_are_wanted() {
    needs!("script", "/dev/pts");
    let coloured = on_terminal("queue --help", &[]);
    assert!(coloured.contains("\u{1b}["), "headings are set off: {coloured:?}");
    for plain in [on_terminal("queue --help", &[("NO_COLOR", "1")]), on_terminal("queue --help | cat", &[])] {
        assert!(!plain.contains('\u{1b}'), "{plain:?}");
    }
    let narrow = on_terminal("queue --help", &[("NO_COLOR", "1")]);
    // Examples are commands, to be copied: they are not broken.
    let (prose, examples) = narrow.split_once("Examples:").unwrap();
    assert!(prose.lines().all(|line| line.chars().count() <= 60), "{prose}");
    assert!(examples.contains("dlio-fs queue --front /mnt/train/run1/model-09.keras\n"), "{examples}");
    let wide = String::from_utf8(run(&["queue", "--help"]).stdout).unwrap();
    assert!(wide.lines().count() < narrow.lines().count(), "without a terminal it is wider");
    let widest = on_terminal_of(300, "drain --help", &[("NO_COLOR", "1")]);
    assert!(widest.lines().all(|line| line.chars().count() <= 100), "nobody reads longer lines: {widest}");
    let first = "Wait until everything written so far is on the slow tier, and show progress\n";
    assert!(widest.starts_with(first) && widest.contains("`dlio-fs sync` is short for"), "{widest}");
}

#[test]
fn the_short_help_of_a_command_is_as_it_was_written() {
    needs!("script", "/dev/pts");
    let expected = "\
List what is on its way to the slow tier, in the order in which it will be published

Usage: dlio-fs queue [OPTIONS] [MOUNTPOINT]

Arguments:
  [MOUNTPOINT]  The mount, or a path on it; optional if there is only one

Options:
      --json          Print JSON
      --front <PATH>  Move this file or directory of a mount to the front
  -h, --help          Print help (see more with '--help')
";
    assert_eq!(String::from_utf8(run(&["queue", "-h"]).stdout).unwrap(), expected);
    assert!(on_terminal("queue -h", &[("NO_COLOR", "1")]).lines().all(|line| line.len() <= 60));
}

#[test]
fn a_refusal_looks_the_same_on_a_terminal() {
    needs!("script", "/dev/pts");
    let text = on_terminal("umount /x --now --timeout 1s 2>&1", &[]);
    let piped = run(&["umount", "/x", "--now", "--timeout", "1s"]);
    assert_eq!(text, String::from_utf8(piped.stderr).unwrap());
}

#[test]
fn completions_and_man_pages_know_every_command() {
    let top = String::from_utf8(run(&["--help"]).stdout).unwrap();
    let commands: Vec<&str> = top
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|l| !l.starts_with(' '))?.split(' ').next())
        .collect();
    assert!(commands.contains(&"mount") && commands.contains(&"evict"), "{commands:?}");
    for (shell, syntax) in [("bash", Some("bash")), ("zsh", None), ("fish", None)] {
        let output = run(&["completions", shell]);
        assert!(output.status.success(), "{output:?}");
        let script = String::from_utf8(output.stdout).unwrap();
        for command in &commands {
            assert!(script.contains(command), "{shell} lacks {command}");
        }
        if let Some(interpreter) = syntax {
            let places = Places::new();
            fs::write(places.path("completions"), &script).unwrap();
            let checked = Command::new(interpreter).arg("-n").arg(places.path("completions")).output().unwrap();
            assert!(checked.status.success(), "{checked:?}");
        }
    }
    assert_refusal(&run(&["completions", "dosh"]), 2, &["dosh", "bash, zsh, fish"]);
    let pages = dlio_fs::cli::man_pages().unwrap();
    let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[0], "dlio-fs.1");
    for command in commands.iter().filter(|command| **command != "help") {
        assert!(names.contains(&format!("dlio-fs-{command}.1").as_str()), "no page for {command}: {names:?}");
    }
    for (name, text) in &pages {
        let text = String::from_utf8(text.clone()).unwrap();
        let headings: Vec<_> = text.lines().filter(|line| line.starts_with(".SH ")).collect();
        assert_eq!(headings[..3], [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"], "{name}");
        let synopsis = text.lines().skip_while(|line| *line != ".SH SYNOPSIS").nth(1).unwrap();
        assert!(synopsis.starts_with("dlio\\-fs"), "{name}: {synopsis}");
        assert!(text.lines().all(|line| !line.contains("announce")), "{name} shows an internal flag");
    }
}
