//! A tree as text, one line for each name: two trees are equal if their lines are.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// What is compared besides names, types, bytes, link targets, mode, owner, and which names are one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Besides {
    /// Of two trees that were not changed by the same calls: mtimes that somebody has set, to a time long ago. Known: while
    /// the rename of a slow file is being published, extended attributes may be read from what has its name there.
    SetTimes,
    /// And extended attributes.
    SetTimesAndXattrs,
    All,
}

/// Behind it stands what a file has.
const BYTES: &str = " with ";

/// What each name below a directory is; paths are relative to it.
type Tree = BTreeMap<PathBuf, String>;

/// Names, types, bytes, link targets, mode, owner, mtime of files, extended attributes, and which names are one file. One
/// line for each difference.
pub(crate) fn ensure_alike(one: &Path, other: &Path, besides: Besides) -> Result<()> {
    ensure_alike_but(one, other, besides, &[])
}

/// The same, where files of these names have other bytes each time that they are made.
pub(crate) fn ensure_alike_but(one: &Path, other: &Path, besides: Besides, other_bytes: &[&str]) -> Result<()> {
    /// Of a hundred differences the first ones tell.
    const SHOWN: usize = 10;
    let read = |top| {
        let mut tree = read(top, besides)?;
        for (name, line) in &mut tree {
            if name.file_name().is_some_and(|name| other_bytes.iter().any(|varies| name == *varies)) {
                line.truncate(line.find(BYTES).unwrap_or(line.len()));
            }
        }
        anyhow::Ok(tree)
    };
    let (left, right) = (read(one)?, read(other)?);
    let mut differ = Vec::new();
    for name in left.keys().chain(right.keys().filter(|name| !left.contains_key(*name))) {
        let (here, there) = (left.get(name), right.get(name));
        if here != there {
            let text = |line: Option<&String>| line.map_or("nothing", String::as_str).to_owned();
            differ.push(format!("{}\n  {}\n  {}", name.display(), text(here), text(there)));
        }
    }
    ensure!(
        differ.is_empty(),
        "{} and {} differ in {} names: {}",
        one.display(),
        other.display(),
        differ.len(),
        differ.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

fn read(top: &Path, besides: Besides) -> Result<Tree> {
    let (mut tree, mut first) = (Tree::new(), BTreeMap::new());
    read_below(top, Path::new(""), besides, &mut first, &mut tree)?;
    Ok(tree)
}

/// `first` has the name under which a file with several names was met first.
fn read_below(
    top: &Path,
    dir: &Path,
    besides: Besides,
    first: &mut BTreeMap<(u64, u64), PathBuf>,
    tree: &mut Tree,
) -> Result<()> {
    let path = top.join(dir);
    let listed = || format!("listing {}", path.display());
    let Some(names) = unless_closed(fs::read_dir(&path)).with_context(listed)? else {
        tree.insert(dir.join("*"), CLOSED.to_owned());
        return Ok(());
    };
    let mut names: Vec<_> =
        names.map(|entry| Ok(dir.join(entry?.file_name()))).collect::<Result<_>>().with_context(listed)?;
    names.sort();
    // The mount does not list what it keeps on the slow tier for itself.
    names.retain(|name| name != Path::new(".dlio-fs"));
    for name in names {
        let path = top.join(&name);
        let read = || format!("reading {}", path.display());
        let Some(stat) = unless_closed(fs::symlink_metadata(&path)).with_context(read)? else {
            tree.insert(name, CLOSED.to_owned());
            continue;
        };
        let mut line = describe(&path, &stat, besides).with_context(read)?;
        if !stat.is_dir() {
            let met = first.entry((stat.dev(), stat.ino())).or_insert_with(|| name.clone());
            if *met != name {
                line.push_str(&format!(", the same file as {}", met.display()));
            }
        }
        if stat.is_dir() {
            read_below(top, &name, besides, first, tree)?;
        }
        tree.insert(name, line);
    }
    Ok(())
}

fn describe(path: &Path, stat: &Metadata, besides: Besides) -> Result<String> {
    /// Seconds: 2001.
    const LONG_AGO: i64 = 1_000_000_000;
    let mut line = format!("{:o} {}:{} rdev {:x}", stat.mode(), stat.uid(), stat.gid(), stat.rdev());
    if stat.is_symlink() {
        line.push_str(&format!(" -> {:?}", fs::read_link(path)?));
    } else if stat.is_file() {
        let bytes = unless_closed(checksum(path))?.map_or_else(|| CLOSED.to_owned(), |crc| format!("crc {crc:08x}"));
        line.push_str(&format!("{BYTES}{} bytes, {bytes}", stat.len()));
        if besides == Besides::All || stat.mtime() < LONG_AGO {
            line.push_str(&format!(", mtime {}.{:09}", stat.mtime(), stat.mtime_nsec()));
        }
    }
    if besides == Besides::SetTimes {
        return Ok(line);
    }
    let mut names: Vec<_> = xattr::list(path)?.collect();
    names.sort();
    for name in names.iter().filter(|name| !name.as_encoded_bytes().starts_with(b"user.dlio.")) {
        let value = unless_closed(xattr::get(path, name))?;
        let value = value.map_or_else(|| CLOSED.to_owned(), |value| format!("{value:?}"));
        line.push_str(&format!(" {name:?}={value}"));
    }
    Ok(line)
}

/// For an ordinary user, who sees that of both trees.
const CLOSED: &str = "closed";

fn unless_closed<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        done => done.map(Some),
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let top = std::env::temp_dir().join(format!("xtask-alike-{}", std::process::id()));
        let (one, other) = (top.join("one"), top.join("other"));
        for dir in [&one, &other] {
            fs::create_dir_all(dir.join("dir")).unwrap();
            for (name, bytes) in [("same", "x"), ("bytes", dir.to_str().unwrap()), ("dir/link", "x")] {
                fs::write(dir.join(name), bytes).unwrap();
            }
        }
        fs::hard_link(one.join("same"), one.join("second")).unwrap();
        let error = ensure_alike(&one, &other, Besides::SetTimesAndXattrs).unwrap_err().to_string();
        fs::remove_dir_all(&top).unwrap();
        assert!(error.contains("differ in 2 names: bytes\n"), "{error}");
        assert!(error.contains("\nsecond\n") && !error.contains("dir/link"), "{error}");
    }
}
