//! What happens to a mount when the machine around it fails for real: the kernel gives up the file system of a tier, somebody
//! unmounts or swaps it, a disk is slow, the connection to the kernel is cut, descriptors or memory run out. Each test is named
//! as what it shows. Needs root, /dev/fuse, loop devices, and control groups for two of them.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dlio_fs::tiers::disk::os::OsDir;
use dlio_fs::tiers::disk::{Dir, MetadataOrder};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{major, minor};
use nix::sys::statvfs::statvfs;

use crate::common::rig::program;
use crate::common::trees::{NEVER_SETTLES, assert_same, content, fingerprint, the_application_goes_on, tree};
use crate::common::{Elsewhere, Mount, Relay, Volume, errno, names, pattern, succeeded, until};
use crate::needs::{MOUNTS, needs};

/// What the daemon has logged of trouble, without the times.
fn troubles(mount: &Mount) -> Vec<String> {
    let log = mount.log();
    let lines = log.lines().filter_map(|line| line.split_once("Z "));
    lines.map(|(_, line)| line.trim().to_owned()).filter(|line| !line.starts_with("INFO")).collect()
}

/// One line for each work of the background that failed, and, however many calls did, one per interval for those.
#[track_caller]
fn assert_told_once(mount: &Mount, calls: usize) {
    let troubles = troubles(mount);
    for work in ["drain", "publish", "evict", "seal", "tick"] {
        let of_it = troubles.iter().filter(|line| line.contains(&format!("work=\"{work}\""))).count();
        assert!(of_it <= 1, "{work}: {troubles:#?}");
    }
    let of_objects = troubles.iter().filter(|line| line.contains("could not be deleted")).count();
    assert!(of_objects <= 1, "{troubles:#?}");
    let of_calls = troubles.iter().filter(|line| line.contains("operation failed")).count();
    assert!(of_calls > 0 && of_calls * 5 < calls, "{calls} calls failed: {troubles:#?}");
    assert!(!mount.log().contains("panic"), "{troubles:#?}");
}

// A tier whose file system the kernel has given up

/// What comes back is the disk, not the file system that was given up: the daemon has to let go of that one first.
fn goes_on_without_its_slow_tier(volume: &Volume) {
    const FILES: usize = 30;
    fs::write(volume.tier().join("cold"), "only on slow").unwrap();
    let mut mount = Mount::over(volume.tier(), &["settle=0s"]);
    fs::create_dir(mount.at("run")).unwrap();
    mount.put("run/before", "on both");
    mount.sync();
    // In the middle of it: some are copied, some are published.
    (0..FILES).for_each(|i| drop(mount.put(&format!("run/{i:02}"), content(i, 200_000))));
    until("one has arrived", || volume.tier().join("run/00").exists());
    volume.shut_down();
    mount.put("run/after", "while it is down");
    until("the statistics say so first", || mount.verdict().contains("SLOW TIER DOWN"));
    let verdict = mount.verdict();
    assert!(verdict.starts_with("NOT SAFE: ") && verdict.ends_with("ETA unknown"), "{verdict}");
    assert_eq!(mount.status(), Some(4));
    the_application_goes_on(&mount);
    for _ in 0..100 {
        assert_eq!(errno(fs::read(mount.at("cold"))), Errno::EIO);
    }
    assert_told_once(&mount, 100);
    assert_eq!(umount2(&volume.root(), MntFlags::empty()), Err(Errno::EBUSY), "the daemon holds what was given up");

    mount.stop();
    let (code, said) = mount.refused();
    // Of an xfs not even the directory can be looked at, and that is found among the arguments.
    assert!(matches!(code, Some(1 | 2)), "{said}");
    assert!(said.contains("slow") && said.contains("see the kernel log for its device"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    volume.detach();
    volume.attach();
    mount.start();
    mount.sync();
    assert_eq!(mount.status(), Some(0));
    assert_same(&mount.root(), &volume.tier());
    // cold, run, before, after, and what the application did meanwhile.
    assert_eq!(tree(&volume.tier()).len(), FILES + 4 + 1 + 19);
    for i in 0..FILES {
        assert!(fs::read(volume.tier().join(format!("run/{i:02}"))).unwrap() == content(i, 200_000), "{i}");
    }
}

#[test]
fn an_ext4_that_is_shut_down_as_the_slow_tier_gets_all_once_it_is_mounted_again() {
    needs!(MOUNTS, "mkfs.ext4");
    goes_on_without_its_slow_tier(&Volume::new(64, 512));
}

#[test]
fn an_xfs_that_is_shut_down_as_the_slow_tier_gets_all_once_it_is_mounted_again() {
    needs!(MOUNTS, "mkfs.xfs");
    goes_on_without_its_slow_tier(&Volume::xfs());
}

fn keeps_what_was_synced_on_its_fast_tier(volume: &Volume) {
    const FILES: usize = 20;
    let mut mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &NEVER_SETTLES);
    fs::write(mount.slow().join("cold"), "only on slow").unwrap();
    fs::create_dir(mount.at("run")).unwrap();
    mount.put("run/rewritten", content(100, 50_000));
    mount.sync();
    for i in 0..FILES {
        File::open(mount.put(&format!("run/{i:02}"), content(i, 50_000))).unwrap().sync_all().unwrap();
    }
    fs::rename(mount.at("run/00"), mount.at("run/renamed")).unwrap();
    // Not synced, but what comes behind it is, and with it the record of this.
    mount.put("run/rewritten", content(101, 60_000));
    fs::remove_file(mount.at("run/01")).unwrap();
    File::open(mount.put("run/last", "synced")).unwrap().sync_all().unwrap();
    let open = OpenOptions::new().write(true).open(mount.at("run/02")).unwrap();
    volume.shut_down();

    let calls: [(&str, &dyn Fn() -> io::Result<()>); 7] = [
        ("read", &|| fs::read(mount.at("run/03")).map(drop)),
        ("write", &|| open.write_all_at(b"more", 50_000)),
        ("create", &|| fs::write(mount.at("run/new"), "new")),
        ("mkdir", &|| fs::create_dir(mount.at("run/dir"))),
        ("rename", &|| fs::rename(mount.at("run/04"), mount.at("run/elsewhere"))),
        ("unlink", &|| fs::remove_file(mount.at("run/05"))),
        ("symlink", &|| std::os::unix::fs::symlink("run/06", mount.at("link"))),
    ];
    // None of these is a change of names, which alone need the log.
    for (call, act) in &calls[..3] {
        assert_eq!(errno(act()), Errno::EIO, "{call}");
    }
    until("the statistics say so first", || mount.verdict().contains("HELD: "));
    for _ in 0..20 {
        for (call, act) in calls {
            assert_eq!(errno(act()), Errno::EIO, "{call}");
        }
    }
    // An xfs that is shut down does not even tell what there is to be hurried.
    mount.control("front /run/03");
    let verdict = mount.verdict();
    assert!(verdict.starts_with("NOT SAFE: ") && verdict.contains("fast tier"), "{verdict}");
    assert!(!verdict.contains("SLOW TIER DOWN"), "it is not the slow one's: {verdict}");
    assert_eq!(mount.status(), Some(4));
    assert_eq!(fs::read_to_string(mount.at("cold")).unwrap(), "only on slow", "what needs no fast tier is served");
    assert!(mount.runs(), "the daemon goes on");
    assert_told_once(&mount, 143);
    assert_eq!(names(&mount.slow().join("run")), ["rewritten"], "nothing is published that the log does not hold");
    drop(open);
    mount.stop();

    volume.detach();
    volume.attach();
    mount.start();
    let expected: Vec<OsString> = (2..FILES).map(|i| format!("{i:02}").into()).collect();
    let judge = |root: &Path| {
        let found = names(&root.join("run"));
        assert_eq!(found[..FILES - 2], expected[..]);
        assert_eq!(found[FILES - 2..], ["last", "renamed", "rewritten"]);
        for i in 2..FILES {
            assert!(fs::read(root.join(format!("run/{i:02}"))).unwrap() == content(i, 50_000), "{i}");
        }
        assert!(fs::read(root.join("run/renamed")).unwrap() == content(0, 50_000));
        assert_eq!(fs::read_to_string(root.join("run/last")).unwrap(), "synced");
        let rewritten = fs::read(root.join("run/rewritten")).unwrap();
        let is_whole = rewritten == content(100, 50_000) || rewritten == content(101, 60_000);
        assert!(is_whole, "{} bytes of neither version", rewritten.len());
    };
    judge(&mount.root());
    mount.sync();
    judge(&mount.slow());
    assert_same(&mount.root(), &mount.slow());
}

#[test]
fn an_ext4_that_is_shut_down_as_the_fast_tier_keeps_what_was_synced() {
    needs!(MOUNTS, "mkfs.ext4");
    keeps_what_was_synced_on_its_fast_tier(&Volume::new(64, 256));
}

#[test]
fn an_xfs_that_is_shut_down_as_the_fast_tier_keeps_what_was_synced() {
    needs!(MOUNTS, "mkfs.xfs");
    keeps_what_was_synced_on_its_fast_tier(&Volume::xfs());
}

/// The second try to seal a file was told as the slow tier's failure: SLOW TIER DOWN.
#[test]
fn a_fast_tier_that_is_shut_down_while_it_seals_is_not_told_as_the_slow_one_s() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(64, 512);
    let mount = Mount::on(Elsewhere { fast: Some(volume.tier()), ..Elsewhere::default() }, &NEVER_SETTLES);
    // In one breath, so that the seals have not caught up.
    let script = format!(
        "for i in range(200): open(str(i), 'w').write('x' * 20000)\n{}",
        Volume::SHUT_DOWN.replace("sys.argv[1]", &format!("{:?}", volume.root()))
    );
    mount.python(&script);
    // If they have, this is noticed.
    assert_eq!(errno(fs::read(mount.at("0"))), Errno::EIO);
    until("the statistics say so first", || mount.verdict().contains("HELD: "));
    let mounted_for = || mount.stats_json()["mounted_for"].as_f64().unwrap();
    let since = mounted_for();
    until("it was tried again", || {
        let verdict = mount.verdict();
        assert!(verdict.contains("fast tier") && !verdict.contains("SLOW TIER DOWN"), "{verdict}");
        mounted_for() > since + 2.5
    });
}

// A slow tier that is taken away or exchanged

#[test]
fn a_slow_tier_that_is_unmounted_beneath_the_daemon_gets_all_and_the_bare_directory_nothing() {
    needs!(MOUNTS, "mkfs.ext4");
    let volume = Volume::new(32, 256);
    let bare = || fs::read_dir(volume.root()).unwrap().count() == 0;
    let mut mount = Mount::over(volume.root(), &NEVER_SETTLES);
    mount.put("before", "before");
    mount.sync();
    volume.detach_lazily();
    assert!(bare());
    // It goes on with the disk, which it has open.
    fs::create_dir(mount.at("run")).unwrap();
    (0..20).for_each(|i| drop(mount.put(&format!("run/{i}"), content(i, 10_000))));
    fs::rename(mount.at("before"), mount.at("run/renamed")).unwrap();
    mount.sync();
    assert_eq!((mount.verdict().as_str(), mount.status()), ("SAFE: everything is on the slow tier", Some(0)));
    assert!(bare());
    volume.attach();
    assert_same(&mount.root(), &volume.root());
    volume.detach_lazily();
    mount.put("pending", "only on fast");
    mount.stop();

    let before = fingerprint(&mount.fast());
    let (code, said) = mount.refused();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is the slow tier not mounted?") && said.lines().count() == 1, "{said}");
    assert_eq!(fingerprint(&mount.fast()), before);
    assert!(bare());
    volume.attach();
    mount.start();
    mount.sync();
    assert_eq!(names(&volume.root().join("run")).len(), 20 + 1);
    assert_eq!(fs::read_to_string(volume.root().join("pending")).unwrap(), "only on fast");
    assert_same(&mount.root(), &volume.root());
}

#[test]
fn another_file_system_in_the_slow_tier_s_place_is_refused_and_not_touched() {
    needs!(MOUNTS, "mkfs.ext4");
    let (ours, other) = (Volume::new(32, 256), Volume::new(32, 256));
    let mut mount = Mount::over(ours.root(), &NEVER_SETTLES);
    mount.put("known", "on both");
    mount.sync();
    mount.put("pending", "only on fast");
    mount.stop();
    let refused = |why: &str| {
        let tiers = || (fingerprint(&mount.fast()), fingerprint(&ours.root()));
        other.attach_at(&ours.root());
        let before = tiers();
        let (code, said) = mount.refused();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        assert_eq!(tiers(), before, "nothing is created or changed");
        ours.detach();
    };
    ours.detach();
    fs::write(other.root().join("known"), "somebody else's").unwrap();
    other.detach();
    refused("is the slow tier not mounted?");
    // And one that is a slow tier, but of another mount.
    other.attach();
    let mut theirs = Mount::over(other.root(), &[]);
    theirs.put("theirs", "theirs");
    theirs.sync();
    theirs.stop();
    other.detach();
    refused("its own slow tier");

    ours.attach();
    mount.start();
    mount.sync();
    assert_eq!(fs::read(ours.root().join("known")).unwrap(), b"on both");
    assert_eq!(fs::read(ours.root().join("pending")).unwrap(), b"only on fast");
}

// Limits

/// A control group of its own for a daemon; removed when dropped, once nobody is in it.
struct Group {
    dir: PathBuf,
    limit: &'static str,
}

impl Group {
    /// The first of these that there is: a hierarchy, and the file of the limit. Without one the test is skipped, and says so.
    fn new(places: [(&str, &'static str); 2]) -> Option<Self> {
        for (hierarchy, limit) in places {
            let dir = tempfile::Builder::new()
                .prefix("dlio-fs-test-")
                .tempdir_in(Path::new("/sys/fs/cgroup").join(hierarchy));
            let Ok(dir) = dir else { continue };
            // What is in it cannot be removed, only it.
            let group = Group { dir: dir.keep(), limit };
            if group.dir.join(limit).exists() {
                return Some(group);
            }
        }
        eprintln!("skipped: there is none of {places:?} in /sys/fs/cgroup");
        None
    }

    /// What starts a daemon in it.
    fn launcher(&self) -> [String; 4] {
        let script = format!("echo $$ > '{}/cgroup.procs' && exec \"$@\"", self.dir.display());
        ["sh".into(), "-c".into(), script, "sh".into()]
    }

    fn limit(&self, value: &str) -> io::Result<()> {
        fs::write(self.dir.join(self.limit), value)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may be in it for a moment.
        until("the group is empty", || fs::remove_dir(&self.dir).is_ok() || !self.dir.exists());
    }
}

fn start_in(mount: &mut Mount, group: &Group) {
    mount.through(&group.launcher().each_ref().map(String::as_str));
    mount.start();
}

/// Shown by what comes before what: all is written while most is still to be copied.
#[test]
fn over_a_slow_tier_of_a_megabyte_a_second_writing_goes_on_and_nothing_is_lost() {
    needs!(MOUNTS, "mkfs.ext4");
    const FILES: usize = 24;
    let volume = Volume::new(64, 256);
    let places = [("blkio", "blkio.throttle.write_bps_device"), ("", "io.max")];
    let Some(group) = Group::new(places) else { return };
    let device = fs::metadata(volume.root()).unwrap().dev();
    let device = format!("{}:{}", major(device), minor(device));
    let (key, served) = match group.limit {
        "io.max" => ("wbps=", "io.stat"),
        _ => ("", "blkio.throttle.io_service_bytes"),
    };
    let limit = |bytes: &str| group.limit(&format!("{device} {key}{bytes}")).unwrap();
    limit("1048576");
    let mut mount = Mount::idle(Elsewhere { slow: Some(volume.tier()), ..Elsewhere::default() }, &["settle=0s"]);
    start_in(&mut mount, &group);
    fs::create_dir(mount.at("run")).unwrap();
    let expected: Vec<OsString> = (0..FILES).map(|i| format!("{i:02}").into()).collect();
    for (i, name) in expected.iter().enumerate() {
        let path = mount.put(&format!("run/{i:02}"), content(i, 1 << 20));
        assert!(fs::read(path).unwrap() == content(i, 1 << 20), "{name:?}");
    }
    let safety = &mount.stats_json()["safety"];
    assert!(safety["bytes"].as_u64().unwrap() > 0, "all is written before all is copied: {safety}");
    let verdict = mount.verdict();
    assert!(verdict.starts_with("NOT SAFE: ") && !verdict.contains("DOWN"), "slow is not silent: {verdict}");
    assert_eq!(mount.status(), Some(3));
    until("some have arrived", || volume.tier().join("run/01").exists());
    let arrived = names(&volume.tier().join("run"));
    assert!(arrived.len() < FILES, "and not yet all");
    assert!(group.read(served).contains(&device), "through the limit: {}", group.read(served));
    assert_eq!(arrived[..], expected[..arrived.len()], "in the order of writing");
    limit(if group.limit == "io.max" { "max" } else { "0" });
    until("all is there", || mount.verdict().starts_with("SAFE"));
    assert_same(&mount.root(), &volume.tier());
    assert_eq!(troubles(&mount), [""; 0]);
    mount.stop();
}

#[test]
fn with_1024_descriptors_more_files_are_written_read_listed_and_drained() {
    needs!(MOUNTS);
    const DIRS: usize = 20;
    const FILES: usize = 60;
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s"]);
    mount.through(&["prlimit", "--nofile=1024:1024"]);
    mount.start();
    let name = |dir: usize, file: usize| format!("{dir:02}/{file:03}");
    for dir in 0..DIRS {
        fs::create_dir(mount.at(format!("{dir:02}"))).unwrap();
        (0..FILES).for_each(|file| drop(mount.put(&name(dir, file), name(dir, file))));
    }
    let judge = |root: &Path| {
        for dir in 0..DIRS {
            assert_eq!(names(&root.join(format!("{dir:02}"))).len(), FILES);
            (0..FILES).for_each(|file| {
                assert_eq!(fs::read_to_string(root.join(name(dir, file))).unwrap(), name(dir, file));
            });
        }
    };
    judge(&mount.root());
    mount.sync();
    succeeded(program().arg("evict").arg("--all").arg(mount.root()).output().unwrap());
    judge(&mount.root());
    judge(&mount.slow());
    assert_eq!(troubles(&mount), [""; 0]);

    // Each file that is open costs one: then they do run out, and that is no harm.
    let path = |i: usize| mount.at(format!("open-{i:04}"));
    let mut open = Vec::new();
    let refused = (0..1024).find_map(|i| match File::create(path(i)) {
        Ok(file) => {
            file.write_all_at(path(i).as_os_str().as_encoded_bytes(), 0).unwrap();
            open.push(file);
            None
        }
        Err(e) => Some(e.raw_os_error()),
    });
    let held = open.len();
    assert_eq!(refused, Some(Some(Errno::ENFILE as i32)), "after {held}");
    assert!(held > 500, "{held}");
    assert!((held..held + 50).all(|i| errno(File::create(path(i))) == Errno::ENFILE));
    assert!(mount.verdict().starts_with("NOT SAFE: "), "statistics need none");
    drop(open);
    mount.sync();
    assert_told_once(&mount, 50);
    assert_eq!(names(&mount.slow()).len(), 1 + DIRS + held, "what was refused has left nothing");
    for i in 0..held {
        let slow = mount.slow().join(path(i).file_name().unwrap());
        assert_eq!(fs::read(slow).unwrap(), path(i).as_os_str().as_encoded_bytes());
    }
    assert_same(&mount.root(), &mount.slow());
}

const MEMORY: [(&str, &str); 2] = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];

#[test]
fn in_little_memory_more_than_that_is_written_and_drained() {
    needs!(MOUNTS);
    let Some(group) = Group::new(MEMORY) else { return };
    group.limit("48M").unwrap();
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s"]);
    start_in(&mut mount, &group);
    fs::create_dir(mount.at("run")).unwrap();
    (0..500).for_each(|i| drop(mount.put(&format!("run/{i}"), content(i, 20_000))));
    (0..3).for_each(|i| drop(mount.put(&format!("run/large-{i}"), content(i, 32 << 20))));
    mount.sync();
    assert!(mount.runs(), "it was not killed for it");
    for i in 0..500 {
        assert!(fs::read(mount.slow().join(format!("run/{i}"))).unwrap() == content(i, 20_000), "{i}");
    }
    for i in 0..3 {
        assert!(fs::read(mount.slow().join(format!("run/large-{i}"))).unwrap() == content(i, 32 << 20), "{i}");
    }
    assert_eq!(troubles(&mount), [""; 0]);
    mount.stop();
}

#[test]
fn a_daemon_that_is_killed_for_its_memory_has_lost_nothing_that_was_acknowledged() {
    needs!(MOUNTS);
    let Some(group) = Group::new(MEMORY) else { return };
    let mut mount = Mount::idle(Elsewhere::default(), &NEVER_SETTLES);
    start_in(&mut mount, &group);
    (0..200).for_each(|i| drop(mount.put(&format!("before-{i}"), content(i, 3000))));
    // What it has now, all that can be given back aside, and next to nothing more.
    let stat = group.read("memory.stat");
    let of = |key: &str| stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    let anonymous = of("total_rss ").or_else(|| of("anon ")).unwrap();
    until("it has little left", || (0..64).any(|i| group.limit(&(anonymous + (i << 16)).to_string()).is_ok()));
    let gone = [Errno::ENOTCONN, Errno::ECONNABORTED].map(|errno| Some(errno as i32));
    let mut written = Vec::new();
    let dead = (0..20_000).any(|i| match fs::write(mount.at(format!("{i:05}")), content(i, 3000)) {
        Ok(()) => {
            written.push(i);
            false
        }
        // Some calls may be refused before.
        Err(e) => gone.contains(&e.raw_os_error()),
    });
    assert!(dead, "a daemon that needs no memory for {} files", written.len());
    assert!(!mount.ended().success());
    assert_eq!(statvfs(&mount.root()), Err(Errno::ENOTCONN), "no bare directory that swallows writes");
    mount.through(&[]);
    mount.start();
    for i in 0..200 {
        assert!(fs::read(mount.at(format!("before-{i}"))).unwrap() == content(i, 3000), "{i}");
    }
    for i in &written {
        assert!(fs::read(mount.at(format!("{i:05}"))).unwrap() == content(*i, 3000), "{i} of {}", written.len());
    }
    mount.sync();
    assert_same(&mount.root(), &mount.slow());
    assert!(names(&mount.slow()).len() > 200 + written.len());
}

// The connection

/// Where the kernel tells of its FUSE connections; on a machine that shows it nowhere, too.
struct Connections(tempfile::TempDir);

impl Connections {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("mount");
        succeeded(command.args(["-t", "fusectl", "none"]).arg(dir.path()).output().unwrap());
        Connections(dir)
    }

    fn abort(&self, mount: &Mount) {
        let device = fs::metadata(mount.root()).unwrap().dev();
        fs::write(self.0.path().join(format!("{}/abort", minor(device))), "1").unwrap();
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        umount2(self.0.path(), MntFlags::MNT_DETACH).ok();
    }
}

#[test]
fn an_aborted_connection_ends_the_daemon_and_the_next_mount_has_all() {
    needs!(MOUNTS);
    let connections = Connections::new();
    let mut mount = Mount::with(&NEVER_SETTLES, |_| ());
    fs::create_dir(mount.at("run")).unwrap();
    (0..20).for_each(|i| drop(mount.put(&format!("run/{i}"), content(i, 10_000))));
    fs::rename(mount.at("run/0"), mount.at("run/renamed")).unwrap();
    let open = File::create(mount.at("open")).unwrap();
    open.write_all_at(b"acknowledged", 0).unwrap();
    connections.abort(&mount);

    let gone = [Errno::ENOTCONN, Errno::ECONNABORTED];
    assert!(gone.contains(&errno(open.write_all_at(b"more", 12))));
    assert!(gone.contains(&errno(open.sync_all())));
    assert!(gone.contains(&errno(fs::write(mount.at("new"), "new"))));
    assert!(gone.contains(&errno(fs::read_dir(mount.root()))));
    drop(open);
    assert_eq!(mount.ended().code(), Some(3), "it ends by itself, and something is only on fast");
    assert_eq!(statvfs(&mount.root()), Err(Errno::ENOTCONN), "no bare directory that swallows writes");
    let log = mount.log();
    assert!(!log.contains(" unmounted"), "it is still mounted: {log}");
    assert_eq!(log.matches("WARN").count(), 2, "what happened, and what is left: {log}");
    assert!(log.contains("the connection was cut off"), "{log}");

    mount.start();
    for i in 1..20 {
        assert!(fs::read(mount.at(format!("run/{i}"))).unwrap() == content(i, 10_000), "{i}");
    }
    assert!(fs::read(mount.at("run/renamed")).unwrap() == content(0, 10_000));
    assert_eq!(fs::read_to_string(mount.at("open")).unwrap(), "acknowledged");
    assert!(!mount.at("new").exists());
    mount.sync();
    assert_same(&mount.root(), &mount.slow());
    assert_eq!(tree(&mount.slow()).len(), 1 + 20 + 1);
}

/// A file that lies in memory is opened and read by the thread that has the request: where it looked for what is not there, a disk that
/// hangs took all threads that answer the kernel.
#[test]
fn what_lies_in_memory_is_read_while_a_local_disk_hangs() {
    needs!(MOUNTS, "mkfs.ext4", "bindfs");
    // More than there are threads that answer the kernel, fewer than may wait for the slow tier.
    const COLD: usize = 28;
    let relay = Relay::new(|_| ());
    let disk = Volume::behind(&relay, 64);
    let cold: Vec<String> = (0..COLD).map(|i| format!("cold-{i}")).collect();
    for name in cold.iter().chain([&"hot".to_owned()]) {
        fs::write(disk.tier().join(name), pattern(1 << 20)).unwrap();
    }
    // From here on memory has nothing of it.
    disk.detach();
    disk.attach();
    let elsewhere = Elsewhere { slow: Some(disk.tier()), ..Elsewhere::default() };
    let mut mount = Mount::idle(elsewhere, &["attribute_lifetime_slow=1h", "slow_wait=2s"]);
    mount.start();
    let read = |name: &str| fs::read(mount.at(name));
    let served = || mount.stats_json()["slow_calls"]["served"].as_u64().unwrap();
    assert!(cold.iter().all(|name| mount.at(name).exists()));
    until("it is read from memory", || {
        let before = served();
        assert!(read("hot").unwrap() == pattern(1 << 20));
        served() == before
    });
    // The kernel keeps what is mapped, also when another test has it drop its caches. This process ends when its input does.
    let mut maps = Command::new("python3");
    maps.args(["-c", "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print(sum(m[::4096]), flush=True); sys.stdin.read()"]);
    let mut maps = maps.arg(disk.tier().join("hot")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert!(BufReader::new(maps.stdout.take().unwrap()).lines().next().unwrap().is_ok());
    let frozen = relay.freeze();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = cold.iter().map(|name| scope.spawn(|| read(name))).collect();
        while !waiting.iter().all(|reader| reader.is_finished()) {
            assert!(read("hot").unwrap() == pattern(1 << 20));
        }
        assert!(waiting.into_iter().all(|reader| errno(reader.join().unwrap()) == Errno::EIO));
    });
    drop(frozen);
    until("the disk answers again", || read(&cold[0]).is_ok_and(|found| found == pattern(1 << 20)));
    drop(maps.stdin.take());
    maps.wait().unwrap();
    mount.stop();
}

/// Only where a journal keeps the order of changes are those that came before durable with the last one. A group was published as if there
/// were one.
#[test]
fn an_ext4_without_a_journal_is_told_from_one_with_it() {
    needs!(MOUNTS, "mkfs.ext4");
    let order = |volume: &Volume| OsDir::open(&volume.tier()).unwrap().order();
    assert_eq!(order(&Volume::new(16, 100)), MetadataOrder::Journaled);
    assert_eq!(order(&Volume::without_journal()), MetadataOrder::Unknown);
}
