//! Two trees, compared: names, types, bytes, link targets, modes, owners, extended attributes with the ACLs among them, which names are
//! one file, and times.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::ops::LONG_AGO;

/// Attributes of dlio-fs, and what xfs shows of its ACLs besides.
const OF_THE_TIERS: [&[u8]; 2] = [b"user.dlio.", b"trusted.SGI_ACL_"];

/// Which times are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// Of two trees that were not changed by the same calls: those that somebody has set, to long ago.
    Set,
    All,
    /// A FUSE layer may keep none.
    None,
}

/// What each name below a directory is, as text; paths are relative to it.
pub(crate) type Tree = BTreeMap<PathBuf, String>;

pub(crate) fn read(top: &Path, times: Times) -> io::Result<Tree> {
    let (mut tree, mut first) = (Tree::new(), BTreeMap::new());
    read_below(top, Path::new(""), times, &mut first, &mut tree)?;
    Ok(tree)
}

/// One text for all differences; empty if there is none.
pub(crate) fn differences(left: &Tree, right: &Tree) -> String {
    /// Of a hundred the first ones tell.
    const SHOWN: usize = 10;
    let mut found = Vec::new();
    for name in left.keys().chain(right.keys().filter(|name| !left.contains_key(*name))) {
        let (here, there) = (left.get(name), right.get(name));
        if here != there {
            let text = |line: Option<&String>| line.map_or("nothing", String::as_str).to_owned();
            found.push(format!("{}\n    {}\n    {}", name.display(), text(here), text(there)));
        }
    }
    found.truncate(SHOWN);
    found.join("\n")
}

/// `first` has the name under which a file with several names was met first.
fn read_below(
    top: &Path,
    dir: &Path,
    times: Times,
    first: &mut BTreeMap<(u64, u64), PathBuf>,
    tree: &mut Tree,
) -> io::Result<()> {
    let names = fs::read_dir(top.join(dir))?.map(|entry| Ok(dir.join(entry?.file_name())));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        let path = top.join(&name);
        let stat = fs::symlink_metadata(&path)?;
        let mut line = describe(&path, &stat, times)?;
        if stat.is_dir() {
            read_below(top, &name, times, first, tree)?;
        } else {
            let met = first.entry((stat.dev(), stat.ino())).or_insert_with(|| name.clone());
            if *met != name {
                line.push_str(&format!(", the same file as {}", met.display()));
            }
        }
        tree.insert(name, line);
    }
    Ok(())
}

fn describe(path: &Path, stat: &Metadata, times: Times) -> io::Result<String> {
    let mut line = format!("{:o} {}:{} rdev {:x}", stat.mode(), stat.uid(), stat.gid(), stat.rdev());
    if stat.is_symlink() {
        line.push_str(&format!(" -> {:?}", fs::read_link(path)?));
    } else if stat.is_file() {
        line.push_str(&format!(" {} bytes, crc {:08x}", stat.len(), checksum(path)?));
        match times {
            Times::None => {}
            Times::Set if stat.mtime() >= LONG_AGO => {}
            Times::Set | Times::All => line.push_str(&format!(", mtime {}.{:09}", stat.mtime(), stat.mtime_nsec())),
        }
    }
    let mut names: Vec<_> = xattr::list(path)?.collect();
    names.sort();
    for name in names.iter().filter(|name| !OF_THE_TIERS.iter().any(|of| name.as_encoded_bytes().starts_with(of))) {
        line.push_str(&format!(" {name:?}={:?}", xattr::get(path, name)?));
    }
    Ok(line)
}

fn checksum(path: &Path) -> io::Result<u32> {
    let (mut file, mut hasher, mut buffer) = (File::open(path)?, crc32fast::Hasher::new(), vec![0; 1 << 18]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize()),
            count => hasher.update(&buffer[..count]),
        }
    }
}
