//! Reading a directory tree, and comparing two of them.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::record;

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shown {
    Dir,
    Link(PathBuf),
    File { len: usize, crc: u32 },
}

impl Shown {
    pub(crate) fn file(bytes: &[u8]) -> Self {
        Shown::File { len: bytes.len(), crc: crc32fast::hash(bytes) }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Shown::File { len, .. } => *len,
            _ => 0,
        }
    }
}

/// A name, what it leads to and its attributes.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) shown: Shown,
    /// Permissions of a regular file, else 0.
    pub(crate) mode: u32,
    /// The extended attribute that the workers set.
    pub(crate) tag: Option<Vec<u8>>,
    /// The generations of a regular file's records; `None` if it is torn or empty.
    pub(crate) generations: Option<Vec<u64>>,
    stat: Option<Box<Metadata>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Paths are relative to where the reading began, which itself is not listed.
pub(crate) type Tree = BTreeMap<PathBuf, Seen>;

const TAG: &str = "user.tag";

impl Seen {
    /// As a ledger has it: what was noted, nothing that was read.
    pub(crate) fn noted(shown: Shown, mode: u32, tag: Option<Vec<u8>>) -> Self {
        Seen { shown, mode, tag, generations: None, stat: None, xattrs: BTreeMap::new() }
    }

    /// Equal in what the workers change and check.
    pub(crate) fn same_to_applications(&self, other: &Seen) -> bool {
        self.shown == other.shown && self.mode == other.mode && self.tag == other.tag
    }

    fn read(path: &Path) -> io::Result<Self> {
        let stat = fs::symlink_metadata(path)?;
        let xattrs = read_xattrs(path)?;
        let mut seen = Seen::noted(Shown::Dir, 0, None);
        if stat.is_symlink() {
            seen.shown = Shown::Link(fs::read_link(path)?);
        } else if stat.is_file() {
            let bytes = fs::read(path)?;
            seen.shown = Shown::file(&bytes);
            seen.generations = record::generations(&bytes);
            seen.mode = stat.mode() & 0o7777;
            seen.tag = xattrs.get(TAG.as_bytes()).cloned();
        } else if !stat.is_dir() {
            return Err(io::Error::other(format!("no worker makes a {:?}", stat.file_type())));
        }
        Ok(Seen { stat: Some(Box::new(stat)), xattrs, ..seen })
    }

    /// Everything that two equal trees have in common.
    fn compared(&self) -> String {
        let Seen { shown, xattrs, stat, .. } = self;
        let attributes = stat.as_ref().map(|stat| {
            // A directory's times are not compared, a link's mode is no mode.
            let mtime = stat.is_file().then(|| (stat.mtime(), stat.mtime_nsec()));
            (stat.mode(), stat.uid(), stat.gid(), mtime)
        });
        format!("{shown:?} (mode, uid, gid, mtime) {attributes:?} {xattrs:?}")
    }
}

/// Ours are not shown to applications and differ between the tiers.
fn read_xattrs(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for name in xattr::list(path)? {
        let bytes = name.as_encoded_bytes();
        if !bytes.starts_with(b"user.dlio.")
            && let Some(value) = xattr::get(path, &name)?
        {
            found.insert(bytes.to_vec(), value);
        }
    }
    Ok(found)
}

pub(crate) fn set_tag(path: &Path, value: &[u8]) -> io::Result<()> {
    xattr::set(path, TAG, value)
}

/// Reads everything below `top`, except what dlio-fs keeps there for itself. An absent `top` is an empty tree.
pub(crate) fn read(top: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    if top.exists() {
        read_below(top, Path::new(""), &mut tree)?;
    }
    Ok(tree)
}

fn read_below(top: &Path, dir: &Path, tree: &mut Tree) -> io::Result<()> {
    for entry in fs::read_dir(top.join(dir))? {
        let path = dir.join(entry?.file_name());
        if path == Path::new(".dlio-fs") {
            continue;
        }
        let in_context =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", top.join(&path).display()));
        let seen = Seen::read(&top.join(&path)).map_err(in_context)?;
        if seen.shown == Shown::Dir {
            read_below(top, &path, tree)?;
        }
        tree.insert(path, seen);
    }
    Ok(())
}

/// The differences between two trees in what makes trees equal: names, types, bytes, targets, mode, owner, file mtime,
/// extended attributes, and which names are links to one file.
pub(crate) fn differences(one: &Tree, other: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for path in one.keys().chain(other.keys().filter(|path| !one.contains_key(*path))) {
        let (one, other) = (one.get(path).map(Seen::compared), other.get(path).map(Seen::compared));
        if one != other {
            found.push(format!("{}:\n  {one:?}\n  {other:?}", path.display()));
        }
    }
    if hard_links(one) != hard_links(other) {
        found.push(format!("hard links:\n  {:?}\n  {:?}", hard_links(one), hard_links(other)));
    }
    found
}

/// Groups of names that are links to one file.
fn hard_links(tree: &Tree) -> Vec<Vec<&Path>> {
    let mut groups: HashMap<u64, Vec<&Path>> = HashMap::new();
    for (path, seen) in tree {
        if let Some(stat) = seen.stat.as_ref().filter(|stat| stat.is_file()) {
            groups.entry(stat.ino()).or_default().push(path);
        }
    }
    let mut groups: Vec<_> = groups.into_values().filter(|names| names.len() > 1).collect();
    groups.sort();
    groups
}
