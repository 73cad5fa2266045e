//! A tree as people see it: what must be equal for two trees to be equal, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use dlio_fs::path::escape;
use dlio_fs::tiers::disk::{Kind, Time};
use foldhash::fast::FixedState;

/// Everything about one file, directory, link or special file but its names. Not here: access and change time, inode
/// number, and the modification time of anything but a regular file.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Body {
    pub kind: Kind,
    /// 0o777 for symbolic links.
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub mtime: Option<Time>,
    pub bytes: Arc<Vec<u8>>,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:04o} {}:{}", self.kind, self.perm, self.uid, self.gid)?;
        match self.kind {
            Kind::File => {
                let t = self.mtime.unwrap_or_default();
                write!(f, " mtime {}.{:09} {}", t.sec, t.nsec, show_bytes(&self.bytes))?;
            }
            Kind::Symlink => write!(f, " -> {}", escape(&self.target))?,
            Kind::CharDevice | Kind::BlockDevice => write!(f, " rdev {}", self.rdev)?,
            Kind::Dir | Kind::Fifo | Kind::Socket => {}
        }
        for (key, value) in &self.xattrs {
            write!(f, " {}={}", escape(key), escape(value))?;
        }
        Ok(())
    }
}

/// Runs of equal bytes: what the tests write is made of runs, and a torn file shows at once.
pub fn show_bytes(bytes: &[u8]) -> String {
    let mut runs: Vec<(u64, u8)> = Vec::new();
    for &b in bytes {
        match runs.last_mut() {
            Some((n, last)) if *last == b => *n += 1,
            _ => runs.push((1, b)),
        }
    }
    let shown: Vec<String> = runs.iter().take(24).map(|(n, b)| format!("{n}x{b:02x}")).collect();
    let more = if runs.len() > 24 { " ..." } else { "" };
    format!("{} bytes [{}{more}]", bytes.len(), shown.join(" "))
}

/// A body with its hash, made once and shared by every image that shows it.
#[derive(Clone, Debug)]
pub struct Shown(Arc<(u64, Body)>);

impl Shown {
    pub fn new(body: Body) -> Self {
        Shown(Arc::new((FixedState::default().hash_one(&body), body)))
    }

    pub fn body(&self) -> &Body {
        &self.0.1
    }
}

impl PartialEq for Shown {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub shown: Shown,
    /// The first path (in order) of the same inode, where there are several.
    pub same_as: Option<Vec<u8>>,
}

/// A whole tree by path; the root is the empty path.
#[derive(Clone, Default)]
pub struct Image {
    entries: Arc<BTreeMap<Vec<u8>, Entry>>,
    hash: u64,
}

impl Image {
    /// `found`: each path with the inode behind it. The order of the paths does not matter.
    pub fn new(found: impl IntoIterator<Item = (Vec<u8>, u64, Shown)>) -> Self {
        let found: BTreeMap<Vec<u8>, (u64, Shown)> = found.into_iter().map(|(p, i, s)| (p, (i, s))).collect();
        let mut first: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut entries = BTreeMap::new();
        let mut hash = 0u64;
        for (path, (ino, shown)) in found {
            let same_as = match first.get(&ino) {
                Some(path) => Some(path.clone()),
                None => {
                    first.insert(ino, path.clone());
                    None
                }
            };
            hash = hash.wrapping_add(FixedState::default().hash_one((&path, shown.0.0, &same_as)));
            entries.insert(path, Entry { shown, same_as });
        }
        Image { entries: Arc::new(entries), hash }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn get(&self, path: &[u8]) -> Option<&Entry> {
        self.entries.get(path)
    }

    pub fn paths(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.entries.keys()
    }

    /// The same tree, where the bytes, size and times of the files at `paths` (and of their other names) are not looked
    /// at.
    pub fn without_bytes_of(&self, paths: &BTreeSet<Vec<u8>>) -> Image {
        if !paths.iter().any(|p| self.entries.contains_key(p)) {
            return self.clone();
        }
        let inode = |path: &Vec<u8>, e: &Entry| e.same_as.clone().unwrap_or_else(|| path.clone());
        let masked: BTreeSet<Vec<u8>> =
            self.entries.iter().filter(|(p, _)| paths.contains(*p)).map(|(p, e)| inode(p, e)).collect();
        let numbers: BTreeMap<&Vec<u8>, u64> = self.entries.keys().zip(0..).collect();
        Image::new(self.entries.iter().map(|(path, e)| {
            let first = inode(path, e);
            let shown = if masked.contains(&first) {
                Shown::new(Body { mtime: None, bytes: Arc::default(), ..e.shown.body().clone() })
            } else {
                e.shown.clone()
            };
            (path.clone(), numbers[&first], shown)
        }))
    }

    /// What differs, one line per path; empty for equal trees.
    pub fn diff(&self, other: &Image, this: &str, that: &str) -> String {
        let mut lines = Vec::new();
        let all: BTreeSet<&Vec<u8>> = self.entries.keys().chain(other.entries.keys()).collect();
        for path in all {
            let (a, b) = (self.entries.get(path), other.entries.get(path));
            if a != b {
                let path = if path.is_empty() { "(root)".into() } else { escape(path) };
                lines.push(format!("  {path}\n    {this}: {}\n    {that}: {}", show(a), show(b)));
            }
        }
        lines.join("\n")
    }
}

fn show(entry: Option<&Entry>) -> String {
    match entry {
        None => "absent".into(),
        Some(Entry { shown, same_as: None }) => format!("{:?}", shown.body()),
        Some(Entry { shown, same_as: Some(first) }) => format!("{:?}, same file as {}", shown.body(), escape(first)),
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.entries, &other.entries) || (self.hash == other.hash && self.entries == other.entries)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, entry) in self.entries.iter() {
            let path = if path.is_empty() { "(root)".into() } else { escape(path) };
            writeln!(f, "  {path}: {}", show(Some(entry)))?;
        }
        Ok(())
    }
}
