//! Limits of the process that mounts (`ulimit`, a batch system's), which the daemon inherits; and those that the daemon sets
//! itself, in memory and for each user.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;

use crate::common::{Elsewhere, Mount};
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
    assert!(grown < 25, "{HANDLES} listings take {grown} MiB, one of them two");
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
