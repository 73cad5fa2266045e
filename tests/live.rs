//! What an operator sees and changes while mounted: `.dlio/config`, reload, `.dlio/metrics`, `.dlio/queue`, `queue`, `evict`.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Mount, USER, errno, mode, until};
use nix::errno::Errno;
use nix::sys::signal::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");
/// Long enough that nothing is published unless a sync asks for it.
const NEVER_SETTLES: [&str; 2] = ["settle=50min", "live_after=1h"];

/// Runs the program; its exit code and the trimmed text on each of its outputs.
fn dlio(arguments: &[&str], path: &Path) -> (i32, String, String) {
    let output = Command::new(PROGRAM).args(arguments).arg(path).output().unwrap();
    told(&output)
}

fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().trim_end().to_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn read(mount: &Mount, name: &str) -> String {
    fs::read_to_string(mount.at(".dlio").join(name)).unwrap()
}

/// A value of `.dlio/config` and where it came from.
fn in_force(mount: &Mount, key: &str) -> (String, String) {
    let text = read(mount, "config");
    let line =
        text.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap_or_else(|| panic!("no {key}: {text}"));
    let (set, origin) = line.split_once(" # ").unwrap();
    (set.split_once(" = ").unwrap().1.trim().to_owned(), origin.to_owned())
}

/// A mount with a configuration file beside it.
fn with_file(text: &str) -> (Mount, PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dlio.toml");
    fs::write(&file, text).unwrap();
    let mut mount = Mount::new();
    mount.stop();
    mount.arguments(&["--config", file.to_str().unwrap()]);
    mount.start();
    (mount, file, dir)
}

#[test]
fn what_is_in_force_is_shown_with_its_origin_to_the_owner_only() {
    let (mount, _file, _dir) = with_file("settle = \"3s\"\n");
    assert_eq!(in_force(&mount, "settle"), ("\"3s\"".into(), "file".into()));
    assert_eq!(in_force(&mount, "high"), ("\"85%\"".into(), "default".into()));
    assert_eq!(in_force(&mount, "slow").1, "option; a change needs a remount");
    assert_eq!(mode(&mount.at(".dlio/config")), 0o400);
    assert!(!mount.as_user(USER, "cat .dlio/config").status.success());
    assert_eq!(errno(fs::OpenOptions::new().write(true).open(mount.at(".dlio/config"))), Errno::EACCES);
    // It is a configuration file again.
    let mut read_again = dlio_fs::config::Config::default();
    read_again.apply_toml(&read(&mount, "config"), "config").unwrap();
    assert_eq!(read_again.fast, Some(mount.fast()));
}

#[test]
fn a_reload_changes_what_can_change_at_once_and_names_the_rest() {
    let (mount, file, _dir) = with_file("settle = \"50min\"\nlive_after = \"1h\"\n");
    mount.put("ckpt", "weights");
    fs::write(&file, "settle = \"0s\"\nslow_wait = \"9s\"\nmax_pending = 5000\n").unwrap();
    let (code, out, err) = dlio(&["reload"], &mount.root());
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, "changed: settle, live_after, max_pending; needs a remount: slow_wait");
    // It holds for what is pending already.
    until("the file is published", || mount.slow().join("ckpt").exists());
    assert_eq!(in_force(&mount, "settle"), ("\"0s\"".into(), "reload".into()));
    assert_eq!(in_force(&mount, "slow_wait"), ("\"5s\"".into(), "default; a change needs a remount".into()));
    let (_, out, _) = dlio(&["reload"], &mount.root());
    assert_eq!(out, "nothing changed; needs a remount: slow_wait");
}

#[test]
fn a_broken_file_changes_nothing_and_says_where() {
    let (mount, file, _dir) = with_file("settle = \"3s\"\n");
    for (text, part) in [
        ("live_after = \"2min\"\nsettle = \"soon\"\n", "line 2: settle = \"soon\""),
        ("settle = ", "line 1"),
        ("\n\nsetle = \"1s\"", "line 3: unknown key \"setle\"; did you mean \"settle\"?"),
        ("low = \"90%\"", "low = 90% is not below high = 85%"),
    ] {
        fs::write(&file, text).unwrap();
        let before = read(&mount, "config");
        let (code, out, err) = dlio(&["reload"], &mount.root());
        assert_eq!((code, out.as_str()), (2, ""), "{text}: {err}");
        assert!(err.contains(part) && err.lines().count() == 1, "{err}");
        assert_eq!(read(&mount, "config"), before);
    }
    fs::remove_file(&file).unwrap();
    let (code, _, err) = dlio(&["reload"], &mount.root());
    assert!(code == 2 && err.contains("dlio.toml: No such file"), "{err}");
    let without = Mount::new();
    let (code, _, err) = dlio(&["reload"], &without.root());
    assert!(code == 2 && err.contains("no configuration file; mount it with --config FILE"), "{err}");
}

#[test]
fn a_hangup_reloads_and_the_log_follows_its_level() {
    let (mount, file, _dir) = with_file("log = \"error\"\n");
    // The one line is of the daemon before this one, which had no file.
    assert_eq!(mount.log().matches("mounted mountpoint").count(), 1, "{}", mount.log());
    fs::write(&file, "log = \"debug\"\nsettle = \"2s\"\n").unwrap();
    mount.signal(Signal::SIGHUP);
    until("the daemon has read the file again", || in_force(&mount, "settle").0 == "\"2s\"");
    until("the log has lines of the new level", || mount.log().contains("changed: log, settle"));
    fs::write(&file, "log = \"debug\"\nsettle = [").unwrap();
    mount.signal(Signal::SIGHUP);
    until("the mistake is logged", || {
        mount.log().contains("nothing changed") && mount.log().contains("dlio.toml, line")
    });
    assert_eq!(in_force(&mount, "settle").0, "\"2s\"");
}
