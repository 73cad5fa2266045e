//! Limits of the process that mounts (`ulimit`, a batch system's), which the daemon inherits; and those that the daemon sets
//! itself, in memory and for each user.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::process::Command;

use nix::errno::Errno;

use crate::common::{Elsewhere, Mount, succeeded};
use crate::needs::{MOUNTS, needs};

/// A job that may write files of 32 MiB mounted, and the first larger file of anybody ended the daemon (SIGXFSZ).
#[test]
fn a_limit_on_the_size_of_files_ends_no_daemon() {
    needs!(MOUNTS, "prlimit");
    const LIMIT: u64 = 32 << 20;
    // Who may raise the limit does so.
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=0s", "ballast=1MiB"]);
    mount.through(&["prlimit", "--fsize=33554432:"]);
    mount.start();
    let large = File::create(mount.at("large")).unwrap();
    large.set_len(3 * LIMIT).unwrap();
    large.write_all_at(b"end", 2 * LIMIT).unwrap();
    drop(large);
    mount.sync();
    assert_eq!(fs::metadata(mount.slow().join("large")).unwrap().len(), 3 * LIMIT);

    // Who may not, as root does in many a container, tells the program, and goes on.
    mount.stop();
    mount.through(&["prlimit", "--fsize=33554432:33554432"]);
    mount.start();
    let is_limited = mount.log().contains("this process may not write larger files");
    let file = File::create(mount.at("file")).unwrap();
    file.write_all_at(b"beginning", 0).unwrap();
    for beyond in [file.write_all_at(b"end", 2 * LIMIT), file.set_len(2 * LIMIT)] {
        let errno = beyond.err().and_then(|e| e.raw_os_error());
        assert_eq!(errno, is_limited.then_some(Errno::EFBIG as i32));
    }
    drop(file);
    mount.sync();
    let len = if is_limited { 9 } else { 2 * LIMIT };
    assert_eq!(fs::metadata(mount.slow().join("file")).unwrap().len(), len);
}

const BOB: u32 = 61_002;
const ALICE: u32 = 61_001;

/// The memory that the daemon has, in MiB.
fn memory(mount: &Mount) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

/// Each handle on a directory kept a listing of its own, as soon as something was made there: 60 of them on 60,000 long names took a GiB.
/// Who reads meanwhile gets what is there all the while, once, and nothing that came later.
#[test]
fn all_who_read_a_directory_share_one_listing() {
    needs!(MOUNTS);
    const HANDLES: usize = 30;
    const NAMES: usize = 5_000;
    let mount = Mount::with(&["settle=1h", "live_after=2h"], |slow| {
        fs::create_dir(slow.join("dir")).unwrap();
        (0..NAMES).for_each(|n| drop(File::create(slow.join(format!("dir/{n:05}{}", "n".repeat(240)))).unwrap()));
    });
    let before = memory(&mount);
    let mut readers: Vec<fs::ReadDir> = Vec::new();
    for number in 0..HANDLES {
        File::create(mount.at(format!("dir/z{number}"))).unwrap();
        let mut reader = fs::read_dir(mount.at("dir")).unwrap();
        let first = reader.next().unwrap().unwrap();
        if number == 0 {
            // Somebody else has had this one; it is gone when the others look.
            fs::remove_file(mount.at("dir").join(first.file_name())).unwrap();
        }
        readers.push(reader);
    }
    let grown = memory(&mount) - before;
    // Listings that are not shared take 30 × 5,000 × 300 bytes; what the allocator keeps for others varies.
    assert!(grown < 36, "{HANDLES} listings take {grown} MiB, one of them two");
    for (number, reader) in readers.into_iter().enumerate().filter(|(number, _)| [0, HANDLES - 1].contains(number)) {
        let mut seen: Vec<_> = reader.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        seen.sort();
        let all = seen.len();
        seen.dedup();
        let made = seen.iter().filter(|name| name.starts_with('z')).count();
        assert_eq!((seen.len(), made), (all, number + 1), "what was there when the reading began");
        assert_eq!(
            all - made,
            if number == 0 { NAMES - 1 } else { NAMES - 2 },
            "less the one that was returned already"
        );
    }
}

/// Each open file of `.dlio` kept a text of its own: 64 times a large `files.tsv` took 1.4 GiB.
#[test]
fn all_who_open_a_large_text_within_a_moment_share_it() {
    needs!(MOUNTS);
    const FILES: usize = 400;
    let mut deep = String::from("deep");
    (0..12).for_each(|_| deep.push_str(&format!("/{}", "d".repeat(250))));
    let mount = Mount::with(&[], |slow| {
        fs::create_dir_all(slow.join(&deep)).unwrap();
        (0..FILES).for_each(|n| fs::write(slow.join(format!("{deep}/{n}")), "x").unwrap());
    });
    (0..FILES).for_each(|n| assert_eq!(fs::read(mount.at(format!("{deep}/{n}"))).unwrap(), b"x"));
    let open = || File::open(mount.at(".dlio/files.tsv")).unwrap();
    let mut text = String::new();
    open().read_to_string(&mut text).unwrap();
    assert!(text.len() > 1 << 20, "{}", text.len());
    let before = memory(&mount);
    let held: Vec<File> = (0..64).map(|_| open()).collect();
    let grown = memory(&mount).saturating_sub(before);
    assert!(grown < 32, "64 texts of {} bytes take {grown} MiB", text.len());
    let mut again = String::new();
    for mut file in held {
        again.clear();
        file.read_to_string(&mut again).unwrap();
        assert_eq!(again.lines().count(), text.lines().count());
    }
}

/// `max_pending` was for all together: a user who made changes faster than the slow tier took them left none for the others. And values of
/// extended attributes counted as one change each, however large they were: a user filled the memory and the log.
#[test]
fn who_changes_more_than_the_slow_tier_takes_leaves_room_for_others() {
    needs!(MOUNTS);
    let mount = Mount::with(&["settle=1h", "live_after=2h", "max_pending=1000", "max_pending_bytes=4MiB"], |slow| {
        fs::create_dir(slow.join("bob")).unwrap();
        chown(slow.join("bob"), Some(BOB), Some(BOB)).unwrap();
        fs::set_permissions(slow, fs::Permissions::from_mode(0o1777)).unwrap();
    });
    let until_refused = |change: &str| {
        let script = format!(
            "python3 -c \"import os\nn = 0\ntry:\n  while n < 2000: {change}; n += 1\nexcept OSError as e: print(n, e.errno)\""
        );
        let said = succeeded(mount.as_user(BOB, &script));
        let (done, errno) = said.trim().split_once(' ').unwrap_or_else(|| panic!("never refused: {said}"));
        assert_eq!(errno, (Errno::ENOSPC as i32).to_string(), "{said}");
        done.parse::<u64>().unwrap()
    };
    let pending = |key: &str| mount.stats_json()["pipeline"][key].as_u64().unwrap();
    // Random values of 1,500 bytes: they take about 5,000 of memory and log.
    let values = until_refused("os.setxattr('bob', b'user.a', os.urandom(1500))");
    assert!((300..500).contains(&values) && pending("pending_bytes") > 2 << 20, "half of 4 MiB: {values}");
    assert_eq!(until_refused("os.mkdir('bob/more')"), 0, "it is his share of everything");
    assert!(mount.verdict().contains("REFUSING CHANGES OF 1 user (ENOSPC)"), "{}", mount.verdict());
    let others = |name: &str| succeeded(mount.as_user(ALICE, &format!("echo of alice >{name}; mv {name} {name}-2")));
    others("alice");
    mount.put("of-root", "x");
    mount.sync();
    let made = until_refused("os.mkdir(f'bob/{n}')");
    assert!((400..=500).contains(&made), "half of 1,000: {made}");
    others("again");
    mount.put("of-root", "y");
    mount.sync();
    assert_eq!((pending("pending_events"), pending("pending_bytes")), (0, 0));
    succeeded(mount.as_user(BOB, "mkdir bob/further"));
}

/// A user's directories of long names below each other: each record of the log and each counter had the whole path.
#[test]
fn a_deep_tree_takes_little_of_log_and_memory() {
    needs!(MOUNTS);
    const MAKE: &str = "import os\nat = os.open('.', os.O_RDONLY)\nfor i in range(200):\n    os.mkdir(b'\\xff' * 250, dir_fd=at)\n    \
        at = os.open(b'\\xff' * 250, os.O_RDONLY, dir_fd=at)\nfor i in range(200):\n    \
        os.write(os.open(str(i), os.O_CREAT | os.O_WRONLY, dir_fd=at), b'deep')\n    os.rename(str(i), f'r{i}', src_dir_fd=at, dst_dir_fd=at)";
    const LOOK: &str = "import os\nat = os.open('.', os.O_RDONLY)\nfor i in range(200): at = os.open(b'\\xff' * 250, os.O_RDONLY, dir_fd=at)\n\
        names = os.listdir(at)\nassert sorted(names) == sorted(f'r{i}' for i in range(200)), names\n\
        assert os.read(os.open('r7', os.O_RDONLY, dir_fd=at), 9) == b'deep'";
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=1h", "live_after=2h", "ballast=1MiB"]);
    mount.start();
    let before = memory(&mount);
    mount.python(MAKE);
    mount.python(LOOK);
    let segments = fs::read_dir(mount.fast().join(".dlio-fs/log")).unwrap();
    let log: u64 = segments.map(|segment| segment.unwrap().metadata().unwrap().len()).sum();
    assert!(log < 1 << 20, "{log} bytes of log");
    let grown = memory(&mount).saturating_sub(before);
    assert!(grown < 64, "{grown} MiB more");

    mount.kill();
    mount.start();
    mount.python(LOOK);
    let after = memory(&mount);
    assert!(after < before + 64, "{after} MiB after a start, {before} before");
    mount.sync();
    let looked = Command::new("python3").args(["-c", LOOK]).current_dir(mount.slow()).output().unwrap();
    succeeded(looked);
}
