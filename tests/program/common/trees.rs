//! What the tests of tiers that fail have in common: trees that are compared, and an application that goes on.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::{Mount, pattern, succeeded};

/// Keeps what is written on the fast tier until somebody waits for it, however full the machine's disk is.
pub const NEVER_SETTLES: [&str; 3] = ["settle=30min", "live_after=1h", "high=98%"];

/// Bytes that differ from place to place and from file to file.
pub fn content(file: usize, len: usize) -> Vec<u8> {
    pattern(file + len).split_off(file)
}

/// Every file below a directory, with what it holds, and every directory; without our own and what the volume has.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if [".dlio-fs", "lost+found"].iter().any(|ours| entry.file_name() == *ours) {
                continue;
            }
            let is_dir = entry.file_type().unwrap().is_dir();
            let bytes = (!is_dir).then(|| fs::read(&path).unwrap());
            found.insert(path.strip_prefix(root).unwrap().to_owned(), bytes);
            if is_dir {
                dirs.push(path);
            }
        }
    }
    found
}

/// Both trees have the same names with the same bytes; says which do not, not what is in them.
#[track_caller]
pub fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (tree(one), tree(other));
    let differ: Vec<_> = one.keys().chain(other.keys()).filter(|path| one.get(*path) != other.get(*path)).collect();
    assert!(differ.is_empty(), "these differ: {differ:?}");
}

/// Everything there is in a tier, ours included: path, kind, length, inode and change time. Of the lock only the text: whoever
/// is refused holds it meanwhile.
pub fn fingerprint(tier: &Path) -> String {
    let script = "find . ! -name lock -printf '%p %y %s %i %C@\\n' | sort; cat .dlio-fs/lock 2> /dev/null || :";
    let output = std::process::Command::new("sh").args(["-ec", script]).current_dir(tier).output().unwrap();
    succeeded(output)
}

pub fn state(path: &Path) -> Vec<u8> {
    xattr::get(path, "user.dlio.state").unwrap().unwrap()
}

/// Writes, reads, renames and removes while nothing reaches the slow tier; what is expected there in the end.
pub fn the_application_goes_on(mount: &Mount) {
    let held = mount.verdict();
    fs::create_dir(mount.at("run/held")).unwrap();
    for i in 0..20 {
        let path = mount.put(&format!("run/held/{i}"), content(i, 10_000));
        assert!(fs::read(&path).unwrap() == content(i, 10_000), "{held}");
    }
    fs::rename(mount.at("run/held/0"), mount.at("run/held/renamed")).unwrap();
    fs::remove_file(mount.at("run/held/1")).unwrap();
    File::open(mount.at("run/held/2")).unwrap().sync_all().unwrap();
    assert!(!mount.slow().join("run/held").exists(), "the order is kept: what came before is not there yet");
}
