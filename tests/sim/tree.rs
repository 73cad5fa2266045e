//! The inodes of a simulated disk, changed only by [`Change`]s, so that what is live and what is durable differ by
//! nothing but the list of changes in between.

use std::collections::{BTreeMap, BTreeSet};

use dlio_fs::tiers::disk::{Kind, Time};

use super::bytes::Bytes;

pub type Ino = u64;
pub const ROOT: Ino = 2;

#[derive(Clone, Copy, Debug, Default)]
pub struct Meta {
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
}

#[derive(Clone, Debug)]
pub struct Inode {
    pub kind: Kind,
    pub meta: Meta,
    pub rdev: u64,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a directory.
    pub entries: BTreeMap<Vec<u8>, Ino>,
    /// Every directory and name that leads here.
    pub names: BTreeSet<(Ino, Vec<u8>)>,
    pub bytes: Bytes,
    /// No two of a disk have the same.
    pub birth: u32,
}

impl Inode {
    pub fn new(kind: Kind, meta: Meta) -> Self {
        Inode {
            kind,
            meta,
            rdev: 0,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            names: BTreeSet::new(),
            bytes: Bytes::default(),
            birth: 0,
        }
    }
}

/// One step of metadata.
#[derive(Clone, Debug)]
pub enum Change {
    New(Ino, Box<Inode>),
    Entry { dir: Ino, name: Vec<u8>, ino: Option<Ino> },
    Meta(Ino, Meta),
    Xattr { ino: Ino, key: Vec<u8>, value: Option<Vec<u8>> },
}

#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub inodes: BTreeMap<Ino, Inode>,
}

impl Tree {
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::New(ino, inode) => drop(self.inodes.insert(*ino, (**inode).clone())),
            Change::Entry { dir, name, ino } => {
                let Some(parent) = self.inodes.get_mut(dir) else { return };
                let before = match ino {
                    Some(ino) => parent.entries.insert(name.clone(), *ino),
                    None => parent.entries.remove(name),
                };
                let key = (*dir, name.clone());
                if let Some(inode) = before.and_then(|before| self.inodes.get_mut(&before)) {
                    inode.names.remove(&key);
                }
                if let Some(inode) = ino.and_then(|ino| self.inodes.get_mut(&ino)) {
                    inode.names.insert(key);
                }
            }
            Change::Meta(ino, meta) => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.meta = *meta;
                }
            }
            Change::Xattr { ino, key, value } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    match value {
                        Some(value) => drop(inode.xattrs.insert(key.clone(), value.clone())),
                        None => drop(inode.xattrs.remove(key)),
                    }
                }
            }
        }
    }

    /// As `stat` counts them: names of a file, 2 and the subdirectories of a directory, 0 for a removed one.
    pub fn nlink(&self, ino: Ino) -> u32 {
        let inode = &self.inodes[&ino];
        match inode.kind {
            Kind::Dir if ino != ROOT && inode.names.is_empty() => 0,
            Kind::Dir => {
                2 + inode.entries.values().filter(|i| self.inodes.get(i).is_some_and(|n| n.kind == Kind::Dir)).count()
                    as u32
            }
            _ => inode.names.len() as u32,
        }
    }

    pub fn parent(&self, dir: Ino) -> Option<Ino> {
        self.inodes.get(&dir)?.names.first().map(|(parent, _)| *parent)
    }

    /// Whether `ino` is `dir` or lies somewhere below it.
    pub fn is_below(&self, ino: Ino, dir: Ino) -> bool {
        let mut at = Some(ino);
        while let Some(here) = at {
            if here == dir {
                return true;
            }
            at = self.parent(here);
        }
        false
    }

    pub fn path(&self, ino: Ino) -> Vec<u8> {
        match self.inodes.get(&ino).and_then(|n| n.names.first()) {
            None => Vec::new(),
            Some((parent, name)) => {
                let mut path = self.path(*parent);
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                path
            }
        }
    }

    /// What `fsck` does after a power cut: entries that lead nowhere and inodes that nothing leads to are dropped.
    pub fn repair(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut todo = vec![ROOT];
        while let Some(dir) = todo.pop() {
            let known: BTreeSet<Ino> = self.inodes.keys().copied().collect();
            let Some(inode) = self.inodes.get_mut(&dir) else { continue };
            inode.entries.retain(|_, ino| known.contains(ino));
            for &child in inode.entries.values() {
                if reached.insert(child) {
                    todo.push(child);
                }
            }
        }
        self.inodes.retain(|ino, _| reached.contains(ino));
        let entries: Vec<(Ino, Vec<u8>, Ino)> = self
            .inodes
            .iter()
            .flat_map(|(&dir, inode)| inode.entries.iter().map(move |(name, &ino)| (dir, name.clone(), ino)))
            .collect();
        self.inodes.values_mut().for_each(|inode| inode.names.clear());
        for (dir, name, ino) in entries {
            self.inodes.get_mut(&ino).expect("only known inodes are left").names.insert((dir, name));
        }
    }
}
