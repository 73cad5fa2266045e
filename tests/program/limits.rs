//! Limits of the process that mounts (`ulimit`, a batch system's), which the daemon inherits.

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
