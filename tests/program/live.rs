//! What an operator sees and changes while mounted: `.dlio/config`, reload, `.dlio/metrics`, `.dlio/queue`, `queue`, `evict`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{Mount, USER, errno, mode, until};
use crate::needs::{MOUNTS, needs};
use nix::errno::Errno;
use nix::sys::signal::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");
/// Long enough that nothing is published unless a sync asks for it; nor does a disk that happens to be full hurry it.
const NEVER_SETTLES: [&str; 4] = ["settle=50min", "live_after=1h", "high=98%", "low=97%"];

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
    needs!(MOUNTS);
    let (mount, _file, _dir) = with_file("settle = \"3s\"\n");
    assert_eq!(in_force(&mount, "settle"), ("\"3s\"".into(), "file".into()));
    assert_eq!(in_force(&mount, "revalidate"), ("\"30s\"".into(), "default".into()));
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
    needs!(MOUNTS);
    let (mount, file, _dir) = with_file("settle = \"50min\"\nlive_after = \"1h\"\nhigh = \"98%\"\n");
    mount.put("ckpt", "weights");
    assert!(!mount.slow().join("ckpt").exists());
    fs::write(&file, "high = \"98%\"\nsettle = \"0s\"\nslow_wait = \"9s\"\nmax_pending = 5000\n").unwrap();
    let (code, out, err) = dlio(&["reload"], &mount.root());
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, "changed: settle, live_after, max_pending; needs a remount: slow_wait");
    // It holds for what is pending already.
    until("the file is published", || mount.slow().join("ckpt").exists());
    assert_eq!(in_force(&mount, "settle"), ("\"0s\"".into(), "reload".into()));
    assert_eq!(in_force(&mount, "slow_wait"), ("\"10m\"".into(), "default; a change needs a remount".into()));
    let (_, out, _) = dlio(&["reload"], &mount.root());
    assert_eq!(out, "nothing changed; needs a remount: slow_wait");
}

#[test]
fn a_broken_file_changes_nothing_and_says_where() {
    needs!(MOUNTS);
    let (mount, file, _dir) = with_file("settle = \"3s\"\n");
    for (text, part) in [
        ("live_after = \"2min\"\nsettle = \"soon\"\n", "line 2: settle = \"soon\""),
        ("settle = ", "line 1"),
        ("\n\nsetle = \"1s\"", "line 3: unknown key \"setle\"; did you mean \"settle\"?"),
        ("revalidate = \"2d\"", "revalidate = 2days is out of range"),
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
    assert!(
        code == 2 && err.contains("no configuration file; change a value with `dlio-fs reload -o key=value`"),
        "{err}"
    );
}

#[test]
fn a_mount_without_a_file_is_changed_by_an_option() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let reload = |option: &str| dlio(&["reload", "-o", option], &mount.root());
    let (code, said, _) = reload("full_slow=remove-first,settle=5s");
    assert_eq!((code, &*said), (0, "changed: settle, full_slow"));
    assert_eq!(in_force(&mount, "settle"), ("\"5s\"".into(), "option".into()));
    for (option, part) in
        [("io=cached", "io does not change while mounted"), ("keep=-1", "keep = -1"), ("ro", "remount,ro")]
    {
        let (code, _, said) = reload(option);
        assert!(code == 2 && said.contains(part), "{said}");
    }
}

#[test]
fn a_hangup_reloads_and_the_log_follows_its_level() {
    needs!(MOUNTS);
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

#[test]
fn a_terminal_that_is_closed_ends_a_daemon_in_its_foreground() {
    needs!(MOUNTS, "script");
    let mut mount = Mount::new();
    mount.stop();
    let tiers = format!("--fast {} --slow {}", mount.fast().display(), mount.slow().display());
    let line = format!("exec {PROGRAM} mount {} {tiers} --foreground", mount.root().display());
    let mut terminal = Command::new("script").args(["-qec", &line, "/dev/null"]).stdout(Stdio::null()).spawn().unwrap();
    until("the mount answers", || mount.at(".dlio/stats").exists());
    // The terminal goes with the process that holds its other end.
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    until("the daemon has left in order", || dlio_fs::mount::last_left(&mount.fast()).is_some());
    assert!(!mount.at(".dlio").exists());
    mount.start();
}

/// Reads the text strictly, as format 0.0.4 has it: what it says of a family, then its samples, each once. Samples by name
/// with labels, and the types by family.
fn metrics(text: &str) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
    let (mut samples, mut types, mut helped) = (BTreeMap::new(), BTreeMap::new(), String::new());
    let is_name = |name: &str| {
        !name.is_empty()
            && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            && (name.starts_with("dliofs_") || name.starts_with("process_"))
    };
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(is_name(name) && help.len() > 10 && help.ends_with('.'), "{line}");
            helped = name.to_owned();
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, helped, "the type follows the help");
            assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line:?}"));
        let name = sample.split('{').next().unwrap();
        let kind = &types[&helped];
        let suffix = name.strip_prefix(&helped).unwrap_or_else(|| panic!("{line} is not of {helped}"));
        let allowed: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(allowed.contains(&suffix), "{line}");
        if let Some(labels) = sample.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            let labels = labels.strip_prefix('{').and_then(|l| l.strip_suffix('}')).unwrap();
            for label in labels.split(',') {
                let (key, value) = label.split_once('=').unwrap();
                let quoted = value.len() > 2 && value.starts_with('"') && value.ends_with('"');
                assert!(key.chars().all(|c| c.is_ascii_lowercase() || c == '_') && quoted, "{line}");
            }
        }
        let value: f64 = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(value >= 0.0, "{line}");
        assert!(samples.insert(sample.to_owned(), value).is_none(), "{sample} twice");
    }
    (samples, types)
}

#[test]
fn metrics_are_valid_agree_with_the_statistics_and_never_go_down() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s"], |_| ());
    let look = || metrics(&read(&mount, "metrics"));
    let (first, types) = look();
    assert_eq!((first["dliofs_safe"], first["dliofs_drain_queue_files"]), (1.0, 0.0));
    for family in
        ["dliofs_held", "dliofs_slow_tier_down", "dliofs_log_lsn", "dliofs_log_durable_lsn", "dliofs_log_applied_lsn"]
    {
        assert_eq!(types[family], "gauge", "{family}");
    }
    let mut before = first;
    for round in 0..3 {
        mount.put(&format!("secret-{round}"), crate::common::pattern(100_000));
        fs::read(mount.at(format!("secret-{round}"))).unwrap();
        mount.sync();
        let (now, _) = look();
        for (sample, value) in &before {
            let family = sample.split('{').next().unwrap();
            if family.ends_with("_total") || family.ends_with("_bucket") || family.ends_with("_count") {
                assert!(now[sample] >= *value, "{sample} went down: {value} to {}", now[sample]);
            }
        }
        before = now;
    }
    assert!(!mount.at("no-such-secret").exists());
    let _handles = [0, 1].map(|_| fs::File::open(mount.at("secret-0")).unwrap());
    let text = read(&mount, "metrics");
    assert!(!text.contains("secret"), "{text}");
    let (now, _) = metrics(&text);
    assert_eq!((now["dliofs_open_files"], now["dliofs_open_handles"]), (1.0, 2.0), "not those of .dlio");
    assert_eq!(now["dliofs_lookup_negative_total"], now["dliofs_op_errors_total{op=\"lookup\",errno=\"ENOENT\"}"]);
    assert_eq!(now["dliofs_read_bytes_total{tier=\"fast\"}"], 300_000.0);
    assert_eq!(now["dliofs_read_bytes_total{tier=\"slow\"}"], 0.0, "from the beginning");
    let capacity = mount.stats_json()["fast"]["total"].as_f64().unwrap();
    assert_eq!(now["dliofs_tier_capacity_bytes{tier=\"fast\"}"], capacity);
    for own in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
        assert!(now[own] > 0.0, "{own}");
    }
    assert!(now["process_max_fds"] >= now["process_open_fds"]);
    let (calls, bytes) = mount.calls("write");
    assert_eq!(now["dliofs_ops_total{op=\"write\",tier=\"fast\"}"], calls as f64);
    assert_eq!(now["dliofs_written_bytes_total{tier=\"fast\"}"], bytes as f64);
    assert_eq!(now["dliofs_drained_bytes_total"], mount.stats_json()["pipeline"]["drained_bytes"].as_f64().unwrap());
    // A histogram's buckets are cumulative, and the last one has all.
    let of_write =
        |sample: &&String| sample.starts_with("dliofs_op_duration_seconds_bucket{op=\"write\",tier=\"fast\"");
    let mut buckets: Vec<f64> = now.keys().filter(of_write).map(|sample| now[sample]).collect();
    buckets.sort_by(f64::total_cmp);
    assert_eq!(buckets.last(), Some(&(calls as f64)));
    assert_eq!(now["dliofs_op_duration_seconds_count{op=\"write\",tier=\"fast\"}"], calls as f64);
    assert!(now.keys().any(|sample| sample.contains("le=\"+Inf\"")));
    // Everybody may read it.
    assert_eq!(mode(&mount.at(".dlio/metrics")), 0o444);
    assert!(mount.as_user(USER, "grep -q dliofs_safe .dlio/metrics").status.success());
}

fn queue(mount: &Mount) -> serde_json::Value {
    let output = Command::new(PROGRAM).args(["queue", "--json"]).arg(mount.root()).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[test]
fn the_queue_lists_what_is_pending_in_its_order() {
    needs!(MOUNTS);
    let mount = Mount::with(&NEVER_SETTLES, |_| ());
    assert_eq!(read(&mount, "queue"), "nothing is pending\n");
    fs::create_dir(mount.at("run")).unwrap();
    mount.put("run/a b", crate::common::pattern(5000));
    fs::rename(mount.at("run/a b"), mount.at("run/ckpt")).unwrap();
    until("the bytes are copied", || queue(&mount)["pending"][1]["state"] == "copied");
    let listed = queue(&mount);
    let pending = listed["pending"].as_array().unwrap();
    let told: Vec<_> = pending.iter().map(|p| (p["change"].as_str().unwrap(), p["path"].as_str().unwrap())).collect();
    assert_eq!(told, [("make", "/run"), ("content", "/run/a b"), ("rename", "/run/a b")]);
    assert_eq!((pending[1]["size"].as_u64(), pending[2]["to"].as_str()), (Some(5000), Some("/run/ckpt")));
    assert_eq!((pending[0]["state"].as_str(), pending[0]["tries"].as_u64()), (Some("settling"), Some(0)));
    assert!(pending[0]["eta"].as_f64().unwrap() > 60.0, "it settles first: {pending:?}");
    assert_eq!((listed["events"].as_u64(), listed["bytes_to_copy"].as_u64()), (Some(3), Some(0)));
    let (code, out, _) = dlio(&["queue"], &mount.root());
    assert_eq!(code, 3, "the verdict of status");
    assert!(out.starts_with("3 changes pending, 0 B to copy; published in this order\n"), "{out}");
    assert!(out.ends_with("rename /run/a b -> /run/ckpt"), "{out}");
}

#[test]
fn a_long_queue_is_cut_and_says_so() {
    needs!(MOUNTS);
    let mount = Mount::with(&NEVER_SETTLES, |_| ());
    mount.sh("mkdir many; for i in $(seq 1200); do : > many/$i; done");
    let listed = queue(&mount);
    let events = listed["events"].as_u64().unwrap();
    assert!(events > 1000, "{events}");
    assert_eq!(listed["pending"].as_array().unwrap().len(), 1000);
    assert!(read(&mount, "queue").ends_with(&format!("{} more follow\n", events - 1000)));
}

#[test]
fn what_is_moved_to_the_front_is_published_with_all_before_it_and_nothing_behind_it() {
    needs!(MOUNTS);
    let mount = Mount::with(&NEVER_SETTLES, |_| ());
    for name in ["first", "second", "third"] {
        mount.put(name, name);
    }
    let (code, out, err) = dlio(&["queue", "--front"], &mount.at("second"));
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, "/second is moved to the front, with 1 change published before it");
    // The name is there before the daemon knows that it is durable.
    until("it is published", || dlio(&["queue", "--front"], &mount.at("second")).1 == "/second is on the slow tier");
    assert!(mount.slow().join("second").exists());
    assert!(mount.slow().join("first").exists(), "in order");
    assert!(!mount.slow().join("third").exists(), "what is behind it goes on waiting to settle");
    // What is still being written goes as it is now.
    let mut open = fs::File::create(mount.at("fourth")).unwrap();
    open.write_all(b"so far").unwrap();
    assert_eq!(dlio(&["queue", "--front"], &mount.at("fourth")).0, 0);
    until("it is published", || fs::read(mount.slow().join("fourth")).is_ok_and(|bytes| bytes == b"so far"));
}

#[test]
fn clean_files_are_evicted_on_demand_and_dirty_ones_are_named() {
    needs!(MOUNTS);
    let mount = Mount::with(&NEVER_SETTLES, |_| ());
    let tier = |name: &str| xattr::get(mount.at(name), "user.dlio.tier").unwrap().unwrap();
    fs::create_dir(mount.at("old")).unwrap();
    mount.put("old/a", crate::common::pattern(70_000));
    mount.put("old/b", crate::common::pattern(80_000));
    mount.put("kept", "open");
    mount.sync();
    mount.put("dirty", "new");
    let evict = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.current_dir(mount.root()).arg("evict").args(arguments);
        told(&command.output().unwrap())
    };
    let (code, out, err) = evict(&["old/a"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "1 file evicted, 68.4 KiB; 0 kept", ""));
    assert_eq!((tier("old/a"), tier("old/b")), (b"slow".to_vec(), b"fast".to_vec()));
    assert_eq!(fs::read(mount.at("old/a")).unwrap(), crate::common::pattern(70_000));

    let open = fs::File::open(mount.at("kept")).unwrap();
    let (code, _, err) = evict(&["kept"]);
    assert_eq!((code, err.as_str()), (1, "dlio-fs: kept: /kept is open"));
    drop(open);
    let (code, out, err) = evict(&["dirty"]);
    assert_eq!((code, err.as_str()), (3, "dlio-fs: dirty: /dirty is only on the fast tier"));
    assert!(out.starts_with("0 files evicted"), "{out}");
    assert_eq!(evict(&["."]).0, 2, "a whole mount needs --all");
    // What a foreigner changed is left to the next open.
    fs::write(mount.slow().join("old/b"), "theirs").unwrap();
    let (code, _, err) = evict(&["old"]);
    assert!(code == 5 && err.contains("/old/b was changed on the slow tier"), "{err}");

    let (code, out, _) = evict(&["--all", "."]);
    assert_eq!(code, 5, "the worst of it: {out}");
    until("an object that was released goes", || {
        evict(&["--all", "."]);
        tier("kept") == b"slow"
    });
    assert_eq!(fs::read(mount.at("dirty")).unwrap(), b"new");
    assert_eq!(tier("dirty"), b"fast");
}

#[test]
fn clean_objects_of_the_mount_before_are_evicted_although_nobody_has_looked_their_files_up() {
    needs!(MOUNTS);
    let mut mount = Mount::new();
    mount.sh("mkdir old older");
    for name in ["ckpt", "old/ckpt", "older/ckpt"] {
        mount.put(name, crate::common::pattern(5000));
    }
    mount.sync();
    mount.stop();
    mount.start();
    let (code, out, _) = dlio(&["evict"], &mount.at("old"));
    assert_eq!((code, out.as_str()), (0, "1 file evicted, 4.9 KiB; 0 kept"));
    assert_eq!(mount.stats_json()["cache"]["objects"], 2, "no others");
    let (code, out, _) = dlio(&["evict", "--all"], &mount.root());
    assert_eq!((code, out.as_str()), (0, "2 files evicted, 9.8 KiB; 0 kept"));
    assert_eq!(mount.stats_json()["cache"]["objects"], 0);
    assert_eq!(fs::read(mount.at("ckpt")).unwrap(), crate::common::pattern(5000));
}

/// Makes a directory of a real file system immutable while it lives: whatever is to be made in it fails with EPERM, for
/// root too.
struct Immutable(PathBuf);

impl Immutable {
    fn new(dir: PathBuf) -> Self {
        crate::common::succeeded(Command::new("chattr").arg("+i").arg(&dir).output().unwrap());
        Immutable(dir)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        Command::new("chattr").arg("-i").arg(&self.0).status().ok();
    }
}

/// "ETA 0 s", for a minute, while `queue` said that nothing was pending.
#[test]
fn a_file_that_stays_open_is_named_with_the_time_of_its_snapshot() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s", "live_after=1h"], |_| ());
    let mut log = fs::File::create(mount.at("log")).unwrap();
    log.write_all(b"epoch 1: ok").unwrap();
    let told = "NOT SAFE: 1 file being written, 11 B only on fast; ";
    until("its name is on the slow tier", || mount.verdict().starts_with(told));
    let verdict = mount.verdict();
    assert!(verdict.contains("; a snapshot follows in ") && !verdict.contains("ETA"), "{verdict}");
    assert!(read(&mount, "queue").starts_with("being written: "), "and not: nothing is pending");
    assert_eq!(queue(&mount)["writing_shown"][0]["path"], "/log");
    let safety = mount.stats_json()["safety"].clone();
    let soon = safety["snapshot_in"].as_f64().unwrap();
    assert!(safety["writing"] == 1 && soon > 0.0 && soon <= 3600.0, "{safety}");
    drop(log);
    until("it is safe", || mount.verdict().starts_with("SAFE"));
}

/// It said SAFE while what it spoke of was gone.
#[test]
fn a_tier_that_was_removed_below_the_mount_is_told() {
    needs!(MOUNTS);
    let mount = Mount::new();
    mount.put("a", "x");
    mount.sync();
    // The daemon makes and removes files of its own in it meanwhile.
    until("it is removed", || fs::remove_dir_all(mount.slow()).is_ok() || !mount.slow().exists());
    until("it is told", || mount.verdict().starts_with("NOT SAFE; HELD: the directory of the slow tier was removed"));
    let mount = Mount::new();
    until("it is removed", || fs::remove_dir_all(mount.fast()).is_ok() || !mount.fast().exists());
    until("it is told", || mount.verdict().contains("; HELD: the log could not be written and is closed"));
    assert!(fs::write(mount.at("lost"), "x").is_err(), "it would be gone with the daemon");
}

/// The line had a number and one remedy, `queue` said that nothing was pending, and no list had the name.
#[test]
fn a_file_that_was_cut_off_is_named_with_all_that_can_be_done() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["settle=0s", "live_after=1h"], |_| ());
    mount.put("model", "the good version");
    mount.sync();
    let mut half = fs::File::create(mount.at("model")).unwrap();
    half.write_all(b"half").unwrap();
    mount.kill();
    drop(half);
    mount.start();
    assert!(mount.verdict().contains("1 file cut off by a crash"), "{}", mount.verdict());
    let told = read(&mount, "queue");
    assert!(told.starts_with("cut off by a crash: write it again, delete it, or accept it: `dlio-fs sync`"), "{told}");
    assert!(told.lines().any(|line| line == "  /model"), "{told}");
    assert_eq!(queue(&mount)["cut_off_shown"][0]["path"], "/model");
    assert_eq!(fs::read_to_string(mount.slow().join("model")).unwrap(), "the good version");
    mount.sync();
    assert_eq!(fs::read_to_string(mount.slow().join("model")).unwrap(), "half", "as the mount shows it");
    assert!(read(&mount, "queue").starts_with("nothing is pending"));
}

#[test]
fn a_poisoned_event_is_first_in_the_statistics_and_in_the_queue_with_its_remedy() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s"], |slow| fs::create_dir(slow.join("run")).unwrap());
    let poison = Immutable::new(mount.slow().join("run"));
    mount.put("run/ckpt", "weights");
    mount.put("later", "behind it");
    until("the order is held", || mount.stats().lines().next().unwrap().contains("HELD: "));
    let first = mount.stats().lines().next().unwrap().to_owned();
    assert!(first.contains("run/ckpt") && first.contains("let dlio-fs write to the slow tier"), "{first}");
    assert!(first.ends_with("; ETA unknown"), "{first}");
    until("it was tried more than once", || queue(&mount)["pending"][0]["tries"].as_u64() > Some(1));
    let listed = queue(&mount);
    let held = &listed["pending"][0];
    assert_eq!((held["state"].as_str(), held["path"].as_str()), (Some("held"), Some("/run/ckpt")));
    assert!(held["reason"].as_str().unwrap().contains("; let dlio-fs write to the slow tier: "), "{held}");
    assert!(held["eta"].is_null() && listed["held"].is_string(), "{listed}");
    assert_eq!(dlio(&["queue"], &mount.root()).0, 4);
    assert_eq!(metrics(&read(&mount, "metrics")).0["dliofs_held"], 1.0);
    // The application goes on, and nothing overtakes.
    assert_eq!(fs::read(mount.at("run/ckpt")).unwrap(), b"weights");
    assert!(!mount.slow().join("later").exists());
    assert_eq!(mount.log().matches("the changes of this user are held").count(), 1, "one line: {}", mount.log());

    drop(poison);
    until("it goes on by itself", || mount.stats().starts_with("SAFE"));
    assert!(mount.slow().join("run/ckpt").exists() && mount.slow().join("later").exists());
    until("the end of it is logged", || mount.log().matches("the changes of this user go on").count() == 1);
    assert_eq!(read(&mount, "queue"), "nothing is pending\n");
}

/// A bar that wraps cannot be taken away again, and one that is cut would hide what to do.
#[test]
fn the_bar_of_a_drain_fits_the_terminal_and_what_holds_it_is_told_once_and_whole() {
    needs!(MOUNTS, "script");
    let mount = Mount::with(&["settle=0s"], |slow| fs::create_dir(slow.join("run")).unwrap());
    let _poison = Immutable::new(mount.slow().join("run"));
    mount.put("run/ckpt", crate::common::pattern(100_000));
    until("the order is held", || mount.stats().lines().next().unwrap().contains("HELD: "));
    let line = format!("stty cols 60 rows 40; exec {PROGRAM} umount --timeout 3s {}", mount.root().display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").stdin(Stdio::null());
    let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert_eq!(shown.matches("chattr -i, no_root_squash").count(), 1, "{shown:?}");
    let bar = |piece| str::find(piece, ['░', '█']).map(|at| &piece[at..]).filter(|bar| bar.contains(" left: "));
    let bars: Vec<&str> = shown.split(['\r', '\n', '\u{1b}']).filter_map(bar).collect();
    assert!(!bars.is_empty() && bars.iter().all(|bar| bar.chars().count() <= 60), "{shown:?}");
    assert!(bars.iter().all(|bar| bar.contains("97.7 KiB left: 1 file, ")), "{bars:?}");
}

/// The kernel opens `control` for nobody there.
#[test]
fn commands_say_what_to_do_instead_where_the_mount_is_read_only() {
    needs!(MOUNTS);
    let mut mount = Mount::new();
    mount.put("ckpt", "weights");
    mount.sync();
    mount.stop();
    mount.arguments(&["--read-only"]);
    mount.start();
    for (arguments, path) in [
        (&["evict"][..], mount.at("ckpt")),
        (&["evict", "--all"], mount.root()),
        (&["queue", "--front"], mount.at("ckpt")),
    ] {
        let (code, out, err) = dlio(arguments, &path);
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("is read-only and takes no commands") && err.contains("mount -o remount,rw"), "{err}");
    }
    let (code, _, err) = dlio(&["reload"], &mount.root());
    assert!(code == 1 && err.contains("SIGHUP instead: kill -HUP "), "{err}");
    // What only reads works.
    assert_eq!(queue(&mount)["events"], 0);
    assert_eq!(dlio(&["queue"], &mount.root()).0, 0);
    assert_eq!(dlio(&["sync"], &mount.root()), (0, String::new(), String::new()));
}

#[test]
fn a_conflict_is_counted_named_and_an_exit_code() {
    needs!(MOUNTS);
    let mount = Mount::with(&NEVER_SETTLES, |_| ());
    mount.put("ckpt", "ours");
    fs::write(mount.slow().join("ckpt"), "theirs").unwrap();
    mount.sync();
    let listed = queue(&mount);
    let told = listed["conflicts_shown"][0].as_str().unwrap().to_owned();
    assert!(told.starts_with("/ckpt: a foreign file has the name, ours is ckpt.dlio-conflict-"), "{told}");
    assert_eq!(listed["conflicts"], 1);
    let ours = told.split(' ').find(|word| word.contains(".dlio-conflict-")).unwrap();
    assert_eq!(fs::read(mount.slow().join(ours)).unwrap(), b"ours");
    assert_eq!(fs::read(mount.slow().join("ckpt")).unwrap(), b"theirs");
    assert!(read(&mount, "queue").contains("1 conflict since the mount was made\n  /ckpt: "));
    assert_eq!((dlio(&["queue"], &mount.root()).0, dlio(&["status"], &mount.root()).0), (5, 5));
    let verdict = mount.verdict();
    assert_eq!(verdict, "SAFE: everything is on the slow tier; CONFLICT: 1 file, see dlio-fs queue");
    assert_eq!(metrics(&read(&mount, "metrics")).0["dliofs_conflicts_total"], 1.0);
}

#[test]
fn a_paused_drain_is_told_first_and_goes_on_when_it_is_resumed() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=0s"], |_| ());
    assert_eq!(dlio(&["pause"], &mount.root()).0, 0);
    fs::write(mount.at("held"), "x").unwrap();
    assert!(read(&mount, "stats").lines().next().unwrap().contains("HELD: the drain is paused; dlio-fs resume"));
    assert_eq!(dlio(&["status"], &mount.root()).0, 4);
    // A sync hurries, and waits all the same.
    let mut waiting = fs::OpenOptions::new().read(true).write(true).open(mount.at(".dlio/control")).unwrap();
    waiting.write_all(b"sync\n").unwrap();
    let mut line = [0; 64];
    let got = std::io::Read::read(&mut waiting, &mut line).unwrap();
    assert!(line[..got].starts_with(b"waiting for "), "{:?}", String::from_utf8_lossy(&line[..got]));
    assert!(!mount.slow().join("held").exists());
    assert_eq!(dlio(&["resume"], &mount.root()), (0, "the drain continues".into(), String::new()));
    mount.sync();
    assert!(mount.slow().join("held").exists());
}
