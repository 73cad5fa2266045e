//! The mount as a service, and what `dlio-fs install` places for it: what a service manager is told, the unit, and that
//! exactly what was placed goes away again.
//!
//! Needs root and /dev/fuse; for the unit the program systemd-analyze (Debian: package systemd).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::rig::{NEVER_SETTLES, PROGRAM, Rig, program, succeeds, text, wait};
use crate::common::{PATIENCE, until};
use crate::needs::{MOUNTS, needs};

/// The end of the notification socket that a service manager has.
struct Manager(UnixDatagram);

impl Manager {
    fn new(rig: &Rig) -> Manager {
        let socket = UnixDatagram::bind(rig.path("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Manager(socket)
    }

    /// Listens until a line begins with `what`; all lines so far.
    #[track_caller]
    fn hears(&self, what: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let mut datagram = [0; 4096];
        loop {
            let len = self.0.recv(&mut datagram).unwrap_or_else(|e| panic!("no {what}: {e}; heard {lines:?}"));
            lines.extend(text(&datagram[..len]).lines().map(str::to_owned));
            if lines.iter().any(|line| line.starts_with(what)) {
                return lines;
            }
        }
    }
}

/// A slow tier of its own size.
struct Small(PathBuf);

impl Small {
    fn new(rig: &Rig, size: &str) -> Small {
        let small = Small(rig.path("slow"));
        let options = format!("size={size}");
        mount(Some("small"), &small.0, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
        small
    }

    fn resize(&self, size: &str) {
        let options = format!("size={size}");
        mount(Some("small"), &self.0, Some("tmpfs"), MsFlags::MS_REMOUNT, Some(options.as_str())).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

/// A configuration as the unit reads it.
fn configuration(rig: &Rig) -> PathBuf {
    let path = rig.path("train.toml");
    let line = |key: &str, name: &str| format!("{key} = \"{}\"\n", rig.path(name).display());
    fs::write(&path, line("mountpoint", "mnt") + &line("fast", "fast") + &line("slow", "slow")).unwrap();
    path
}

#[test]
fn a_service_manager_is_told_of_start_drain_and_end() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let slow = Small::new(&rig, "1m");
    let manager = Manager::new(&rig);
    let config = configuration(&rig);
    let with = |arguments: &[&str]| {
        let mut command = program();
        command.args(arguments).arg("--config").arg(&config).env("NOTIFY_SOCKET", rig.path("notify"));
        command.stderr(Stdio::piped());
        command
    };
    let daemon = with(&["mount", "--foreground"]).args(NEVER_SETTLES).spawn().unwrap();
    let lines = manager.hears("READY=1");
    assert!(lines.iter().any(|line| line.starts_with("STATUS=serving ")), "{lines:?}");
    assert!(rig.mnt(".dlio/stats").exists(), "ready means that it answers");
    fs::write(rig.mnt("ckpt"), vec![7; 4 << 20]).unwrap();

    // A drain that takes a while: the slow tier has no room for the file yet.
    let umount = with(&["umount"]).spawn().unwrap();
    let lines = manager.hears("STOPPING=1");
    assert!(lines.iter().any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")), "{lines:?}");
    let lines = manager.hears("EXTEND_TIMEOUT_USEC=");
    assert!(lines.iter().any(|line| line.starts_with("STATUS=")), "{lines:?}");
    slow.resize("64m");
    let (code, line) = wait(umount);
    assert_eq!(code, Some(0), "{line}");
    assert_eq!(wait(daemon).0, Some(0));
    assert_eq!(fs::read(rig.path("slow/ckpt")).unwrap(), vec![7; 4 << 20]);
}

#[test]
fn a_service_manager_is_told_when_a_signal_ends_the_mount() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let manager = Manager::new(&rig);
    let mut command = program();
    command.args(["mount", "--foreground", "--config"]).arg(configuration(&rig)).stderr(Stdio::piped());
    let daemon = command.args(NEVER_SETTLES).env("NOTIFY_SOCKET", rig.path("notify")).spawn().unwrap();
    manager.hears("READY=1");
    fs::write(rig.mnt("ckpt"), "weights").unwrap();
    kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM).unwrap();
    let lines = manager.hears("STOPPING=1");
    assert!(lines.iter().any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")), "{lines:?}");
    assert_eq!(wait(daemon).0, Some(3), "the unit counts this as success");
}

/// The manager heard nothing more while one large file was copied, and killed the daemon.
#[test]
fn a_service_manager_hears_of_the_drain_of_one_large_file() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let manager = Manager::new(&rig);
    let mut command = program();
    command.args(["mount", "--foreground", "--config"]).arg(configuration(&rig)).stderr(Stdio::piped());
    command.args(["-o", "on_term=drain,drain_bandwidth=1MiB", "-o", "copy_up_max=1GiB"]);
    let daemon = command.args(NEVER_SETTLES).env("NOTIFY_SOCKET", rig.path("notify")).spawn().unwrap();
    manager.hears("READY=1");
    // More than is copied before the end of the test.
    fs::write(rig.mnt("ckpt"), vec![7; 256 << 20]).unwrap();
    let ask = || kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM).unwrap();
    ask();
    manager.hears("STOPPING=1");
    for _ in 0..6 {
        let lines = manager.hears("STATUS=draining: ");
        assert!(lines.iter().any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")), "{lines:?}");
    }
    ask();
    assert_eq!(wait(daemon).0, Some(3));
}

/// A mount in the background made by some service is not that service.
#[test]
fn a_daemon_in_the_background_tells_nobody() {
    needs!(MOUNTS);
    let rig = Rig::new();
    let socket = UnixDatagram::bind(rig.path("notify")).unwrap();
    socket.set_nonblocking(true).unwrap();
    succeeds(rig.mount_command().env("NOTIFY_SOCKET", rig.path("notify")));
    rig.umount_safely();
    assert!(socket.recv(&mut [0; 16]).is_err(), "something was said");
}

fn install(prefix: &Path, arguments: &[&str]) -> Output {
    program().arg("install").arg("--prefix").arg(prefix).args(arguments).output().unwrap()
}

fn tree(top: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![top.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                dirs.push(path.clone());
            }
            found.insert(path);
        }
    }
    found
}

#[test]
fn install_places_everything_and_takes_exactly_that_away() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    fs::create_dir_all(prefix.join("bin")).unwrap();
    fs::write(prefix.join("bin/other"), "somebody else's").unwrap();
    let before = tree(dir.path());
    for round in ["first", "again"] {
        let output = install(&prefix, &[]);
        assert_eq!(output.status.code(), Some(0), "{round}: {output:?}");
        assert!(text(&output.stderr).contains("bin is not in your PATH"), "{output:?}");
        let placed: BTreeSet<PathBuf> = text(&output.stdout).lines().map(PathBuf::from).collect();
        let list = prefix.join("share/dlio-fs/installed");
        let files = |path: &PathBuf| path.is_symlink() || path.is_file();
        let there: BTreeSet<_> = tree(dir.path()).into_iter().filter(files).filter(|path| *path != list).collect();
        let expected: BTreeSet<_> = there.difference(&before).cloned().collect();
        assert_eq!(placed, expected, "{round}: what it prints is what it placed");
    }
    assert_eq!(fs::read(prefix.join("bin/dlio-fs")).unwrap(), fs::read(PROGRAM).unwrap());
    assert_eq!(fs::metadata(prefix.join("bin/dlio-fs")).unwrap().permissions().mode() & 0o777, 0o755);
    for name in ["mount.fuse.dlio", "umount.fuse.dlio"] {
        assert_eq!(fs::read_link(prefix.join("sbin").join(name)).unwrap(), prefix.join("bin/dlio-fs"));
        let help = succeeds(Command::new(prefix.join("sbin").join(name)).arg("--help"));
        assert!(help.contains(&format!("Usage: {name}")), "{help}");
    }
    // They could not be run as the page says.
    for (script, mode) in [("prolog", 0o755), ("epilog", 0o755), ("task_prolog", 0o755), ("common", 0o644)] {
        let script = prefix.join("share/doc/dlio-fs/packaging/slurm").join(script).with_extension("sh");
        assert_eq!(fs::metadata(&script).unwrap().permissions().mode() & 0o777, mode, "{}", script.display());
    }
    let page = fs::read_to_string(prefix.join("share/man/man1/dlio-fs-mount.1")).unwrap();
    assert!(page.contains(".TH dlio-fs-mount") && page.contains("read\\-only"), "{page}");
    let bash = fs::read_to_string(prefix.join("share/bash-completion/completions/dlio-fs")).unwrap();
    assert!(bash.contains("umount"), "{bash}");
    assert!(prefix.join("share/zsh/site-functions/_dlio-fs").exists());
    assert!(prefix.join("share/fish/vendor_completions.d/dlio-fs.fish").exists());

    let output = install(&prefix, &["--uninstall"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(tree(dir.path()), before);
    let output = install(&prefix, &["--uninstall"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("nothing was installed with this prefix"), "{output:?}");
}

#[test]
fn install_neither_replaces_nor_removes_what_is_not_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    let unit = prefix.join("lib/systemd/system/dlio-fs@.service");
    fs::create_dir_all(unit.parent().unwrap()).unwrap();
    fs::write(&unit, "somebody else's").unwrap();
    let before = tree(dir.path());
    let output = install(&prefix, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = text(&output.stderr);
    assert!(line.contains("dlio-fs@.service") && line.contains("nothing was touched"), "{line}");
    assert_eq!(tree(dir.path()), before, "nothing else was placed either");

    fs::remove_file(&unit).unwrap();
    assert_eq!(install(&prefix, &[]).status.code(), Some(0));
    fs::write(&unit, "edited by the administrator").unwrap();
    let output = install(&prefix, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = install(&prefix, &["--uninstall"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("was changed since it was placed: left as it is"), "{output:?}");
    assert_eq!(fs::read_to_string(&unit).unwrap(), "edited by the administrator");
    assert!(!prefix.join("bin").exists(), "the rest has gone");
}

/// What a package is made of: each file at the path that it will have, links that are right already, and no list, with which `--uninstall`
/// would remove what belongs to the package manager.
#[test]
fn install_lays_out_what_a_package_contains() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    let root_argument = ["--root", root.to_str().unwrap()];
    let output = install(Path::new("/usr"), &root_argument);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap());
    let placed: BTreeSet<PathBuf> = text(&output.stdout).lines().map(|line| below(Path::new(line))).collect();
    let files = |path: &PathBuf| path.is_symlink() || path.is_file();
    assert_eq!(placed, tree(&root).into_iter().filter(files).collect(), "what it prints is what it placed");
    for name in ["mount.fuse.dlio", "umount.fuse.dlio"] {
        let helper = root.join("usr/sbin").join(name);
        assert_eq!(fs::read_link(&helper).unwrap(), Path::new("../bin/dlio-fs"));
        assert!(succeeds(Command::new(&helper).arg("--help")).contains(name));
    }
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/dlio-fs@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/dlio-fs mount"), "{unit}");

    let output = install(Path::new("/usr"), &root_argument);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("is not empty; name an empty directory"), "{output:?}");
}

/// What systemd itself says of the unit and of the timers that pause and resume the drain, and that nothing in the unit gives the daemon
/// a view of its own of the file systems.
#[test]
fn the_unit_is_right_and_does_not_hide_the_mount() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(install(dir.path(), &[]).status.code(), Some(0));
    let unit = dir.path().join("lib/systemd/system/dlio-fs@.service");
    let words = fs::read_to_string(&unit).unwrap();
    assert!(words.contains(&format!("ExecStart={}/bin/dlio-fs mount", dir.path().display())), "{words}");
    for forbidden in ["LimitCORE=0", "ProtectClock=yes", "IPAddressDeny=any\nIPAddressAllow=localhost"] {
        assert!(words.contains(&format!("\n{forbidden}\n")), "{forbidden}");
    }
    let instance = dir.path().join("lib/systemd/system/dlio-fs@train.service");
    std::os::unix::fs::symlink(&unit, &instance).unwrap();
    let hiding = [
        "Private",
        "Protect",
        "ReadOnlyPaths=",
        "ReadWritePaths=",
        "InaccessiblePaths=",
        "TemporaryFileSystem=",
        "BindPaths=",
        "RootDirectory=",
        "MountFlags=",
        "DynamicUser=",
        "ProcSubset=",
    ];
    // This one needs none.
    for line in words.lines().filter(|line| !line.starts_with('#') && !line.starts_with("ProtectClock=")) {
        assert!(!hiding.iter().any(|word| line.starts_with(word)), "{line} needs a mount name space");
    }
    let doc = dir.path().join("share/doc/dlio-fs/systemd");
    let mut units = vec![instance];
    for verb in ["pause", "resume"] {
        let (timer, service) =
            (doc.join(format!("dlio-fs-{verb}.timer")), doc.join(format!("dlio-fs-drain@{verb}.service")));
        std::os::unix::fs::symlink("dlio-fs-drain@.service", &service).unwrap();
        let words = fs::read_to_string(&timer).unwrap();
        assert!(words.contains(&format!("\nUnit=dlio-fs-drain@{verb}.service\n")), "{words}");
        succeeds(program().args([verb, "--help"]));
        units.extend([timer, service]);
    }
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output();
    if verify.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        eprintln!("not verified: there is no systemd-analyze; `cargo xtask test` installs the package systemd");
        return;
    }
    let verify = verify.unwrap();
    assert!(verify.status.success() && verify.stderr.is_empty(), "{verify:?}");
}

/// What the unit forbids, the daemon does without: as far as it can be tried without systemd.
#[test]
fn the_capabilities_of_the_unit_are_enough() {
    needs!(MOUNTS, "setpriv");
    let unit = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/dlio-fs@.service")).unwrap();
    let kept =
        unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet=")).flat_map(str::split_whitespace);
    let kept: Vec<String> = kept.map(|name| format!("+{}", name.trim_start_matches("CAP_").to_lowercase())).collect();
    let bounding = format!("-all,{}", kept.join(","));
    let rig = Rig::over_itself();
    let run = |command: &Command| {
        let mut confined = Command::new("setpriv");
        confined.args(["--no-new-privs", "--bounding-set", &bounding, "--inh-caps", "-all"]);
        succeeds(confined.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null()));
    };
    run(&rig.mount_command());
    for (user, name) in [(1000, "a"), (2000, "b")] {
        fs::write(rig.mnt(name), "weights").unwrap();
        std::os::unix::fs::chown(rig.mnt(name), Some(user), Some(user)).unwrap();
        fs::set_permissions(rig.mnt(name), fs::Permissions::from_mode(0o4700)).unwrap();
    }
    succeeds(Command::new("mknod").arg(rig.mnt("null")).args(["c", "1", "3"]));
    rig.kill_daemon();
    run(&rig.mount_command());
    assert_eq!(fs::read_to_string(rig.mnt("b")).unwrap(), "weights");
    run(program().arg("umount").arg(rig.point()));
    until("it is there", || rig.slow_has("a").as_deref() == Some("weights"));
    assert_eq!(fs::metadata(rig.path("slow/a")).unwrap().permissions().mode() & 0o7777, 0o4700);
}
