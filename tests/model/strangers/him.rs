//! Somebody else on the slow tree, and what may be asked of the engine for each thing that he does.

use std::sync::Arc;

use dlio_fs::tiers::disk::{Access, Dir, Kind, NewAttr, RenameMode};

use super::acts::{Deed, Path, Their};
use super::judge::{Block, Ledger};
use crate::sim::SimDisk;

/// When he does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Between,
    /// Right before a call of a step of the background.
    InStep,
    /// Right before a call of what a program asked for, who may see what he made, or not.
    InCall,
    /// While no daemon runs.
    Down,
    /// The same, where the machine stopped inside of a call: publishing may have been cut off.
    CutOff,
}

/// How the slow tier is made.
#[derive(Clone, Copy, Debug)]
pub struct Tier {
    pub nfs: bool,
    /// A number is given out again, and nothing else tells the next file with it.
    pub numbers_lie: bool,
}

pub struct Him<'a> {
    pub slow: &'a SimDisk,
    pub ledger: &'a mut Ledger,
    pub tier: Tier,
    pub when: When,
}

type Done<T = ()> = std::io::Result<T>;

impl Him<'_> {
    /// What does not work he leaves.
    pub fn act(&mut self, deed: &Deed) {
        self.ledger.idle = false;
        let before = self.ledger.written;
        if !matches!(deed, Deed::CleanTmp) && self.ledger.is_spared() {
            return;
        }
        let done = match deed {
            Deed::Put { path, how } => self.put(path, *how),
            Deed::Remove { path } => self.clear(path),
            Deed::Mkdir { path, files, clear } => self.mkdir(path, *files, *clear),
            Deed::Move { from, to, mode } => self.rename(from, to, *mode),
            Deed::Link { from, to } => self.link(from, to),
            Deed::Symlink { path } => self.symlink(path),
            Deed::Chmod { path } => self.set(path, &NewAttr { perm: Some(0o750), ..NewAttr::default() }),
            Deed::Chown { path } => self.set(path, &NewAttr { uid: Some(900), ..NewAttr::default() }),
            Deed::Xattr { path } => self.xattr(path),
            Deed::CleanTmp => clean_tmp(&*self.slow.root()),
        };
        drop(done);
        if self.slow.power().is_gone() {
            // It was not synced yet, with its name.
            let since = before + 1..=self.ledger.written;
            self.ledger.release(since);
        }
    }

    fn dir_of(&self, path: Path) -> Done<(Arc<dyn Dir>, &'static [u8])> {
        dir_of(self.slow, path)
    }

    fn blocks(&self, path: Path) -> Vec<Block> {
        self.ledger.blocks_below(&self.slow.image(), path)
    }

    /// Whether what he makes at a name is safe there. `taken`: something else was there.
    fn is_safe(&self, path: Path, taken: bool) -> bool {
        // Nothing tells his file from the one before.
        if self.tier.numbers_lie {
            return false;
        }
        match self.when {
            When::Between => true,
            // Between the last look and a removal of ours, or our rename over a name, what he makes goes with it; without an exchange also
            // behind a new version of ours (docs/SEMANTICS.md, "Limits" and P11).
            When::InStep => !(self.tier.nfs || (taken && self.ledger.is_left(path))),
            When::InCall => false,
            // What the log says of a slow file it says of the first change of a name only (P11).
            When::Down | When::CutOff => !self.ledger.is_unsure(path),
        }
    }

    /// The same for what he writes into a file of that name.
    fn is_safe_inside(&self, path: Path) -> bool {
        if self.ledger.is_left(path) {
            return false;
        }
        match self.when {
            When::Between => true,
            When::InStep => !self.tier.nfs,
            When::InCall => false,
            When::Down => !self.ledger.is_unsure(path),
            // A start that finishes what was cut off looks at the number only.
            When::CutOff => self.ledger.acts(path) == 0,
        }
    }

    /// As owner of each file somebody whom nobody else is.
    fn make(&mut self, dir: &dyn Dir, name: &[u8], path: Path, safe: bool) -> Done {
        let (block, bytes) = self.ledger.content("somebody else", path, true);
        if !safe {
            self.ledger.release([block]);
        }
        let owner = 1000 + block;
        let made = (|| {
            let file = dir.create(name, 0o640)?;
            file.write_at(&bytes, 0)?;
            file.set_attr(&NewAttr { uid: Some(owner), ..NewAttr::default() })?;
            file.sync()
        })();
        match made {
            Ok(()) => self.ledger.make(block, owner, 0o640),
            // The machine has stopped; as at the ends of other files that were written then, a part may be there.
            Err(_) => {
                self.ledger.release([block]);
                self.ledger.torn |= dir.stat(name).is_ok() || self.slow.power().is_gone();
            }
        }
        made
    }

    fn put(&mut self, path: Path, how: Their) -> Done {
        let (dir, name) = self.dir_of(path)?;
        let there = dir.stat(name).ok();
        if there.as_ref().is_some_and(|stat| stat.kind == Kind::Dir) {
            return Ok(());
        }
        let is_file = there.as_ref().is_some_and(|stat| stat.kind == Kind::File);
        if how == Their::Inside && is_file {
            return self.write_inside(&*dir, name, path);
        }
        let safe = self.is_safe(path, there.is_some());
        let replaced = self.blocks(path);
        if how == Their::Anew {
            if there.is_some() {
                dir.unlink(name)?;
            }
            self.ledger.release(replaced);
            self.make(&*dir, name, path, safe)?;
        } else {
            self.make(&*dir, b"theirs.tmp", path, safe)?;
            dir.rename(b"theirs.tmp", &*dir, name, RenameMode::Replace)?;
            self.ledger.release(replaced);
        }
        dir.sync()
    }

    fn write_inside(&mut self, dir: &dyn Dir, name: &[u8], path: Path) -> Done {
        let replaced = self.blocks(path).into_iter().take(1).collect::<Vec<_>>();
        let safe = self.is_safe_inside(path);
        let (block, bytes) = self.ledger.content("somebody else", path, true);
        let done = dir.open(name, Access::ReadWrite).and_then(|file| {
            file.write_at(&bytes, 0)?;
            file.sync()
        });
        self.ledger.release(replaced);
        if done.is_err() || !safe {
            self.ledger.release([block]);
        } else {
            self.ledger.write_inside(path, block);
        }
        self.ledger.torn |= done.is_err();
        done
    }

    fn clear(&mut self, path: Path) -> Done {
        let (dir, name) = self.dir_of(path)?;
        let kind = dir.stat(name)?.kind;
        let seen = self.blocks(path);
        self.ledger.release(seen);
        remove(&*dir, name, kind)?;
        dir.sync()
    }

    fn mkdir(&mut self, path: Path, files: usize, clear: bool) -> Done {
        let (dir, name) = self.dir_of(path)?;
        let taken = dir.stat(name).is_ok();
        if clear && taken {
            self.clear(path)?;
        }
        let safe = self.is_safe(path, taken);
        dir.mkdir(name, 0o750)?;
        let inner = dir.dir(name)?;
        for name in [b"a", b"b"].into_iter().take(files) {
            self.make(&*inner, name, path, safe)?;
        }
        inner.sync()?;
        dir.sync()
    }

    fn rename(&mut self, from: Path, to: Path, mode: RenameMode) -> Done {
        let ((dir, name), (into, to_name)) = (self.dir_of(from)?, self.dir_of(to)?);
        let (moved, replaced) = (self.blocks(from), self.blocks(to));
        let taken = into.stat(to_name).is_ok();
        // Directories that he moves are known under both names, too, and what is in them is not found: a known fault, as above.
        let is_dir = |dir: &dyn Dir, name: &[u8]| dir.stat(name).is_ok_and(|stat| stat.kind == Kind::Dir);
        if is_dir(&*dir, name) || is_dir(&*into, to_name) {
            return Ok(());
        }
        dir.rename(name, &*into, to_name, mode)?;
        if mode == RenameMode::Replace && from != to {
            self.ledger.release(replaced.iter().copied().filter(|block| !moved.contains(block)));
        }
        // A file that he moved is known under both names until the former one is looked up (docs/internals/next-steps.md, item 4), so its next
        // version, and its removal, go to both. Whatever was moved may go with what programs do to the name it had.
        if !self.is_safe(to, taken) || self.ledger.acts(from) > 0 {
            self.ledger.release(moved.clone());
        }
        if mode == RenameMode::Exchange && (!self.is_safe(from, true) || self.ledger.acts(to) > 0) {
            self.ledger.release(replaced);
        }
        for path in [from, to] {
            if self.ledger.is_left(path) {
                self.ledger.move_dir();
            }
        }
        dir.sync()?;
        into.sync()
    }

    fn link(&mut self, from: Path, to: Path) -> Done {
        let ((dir, name), (into, to_name)) = (self.dir_of(from)?, self.dir_of(to)?);
        dir.link(name, &*into, to_name)?;
        into.sync()
    }

    fn symlink(&mut self, path: Path) -> Done {
        drop(self.clear(path));
        let (dir, name) = self.dir_of(path)?;
        dir.symlink(name, b"nowhere")?;
        dir.sync()
    }

    fn set(&mut self, path: Path, new: &NewAttr) -> Done {
        let (dir, name) = self.dir_of(path)?;
        // What he changes of a file that a step of ours moves right then is not seen behind that: a known fault, as in `Ledger::is_spared`.
        if dir.stat(name)?.kind == Kind::Symlink || self.ledger.acts(path) > 0 {
            return Ok(());
        }
        let seen = self.blocks(path);
        self.ledger.change_attributes(&seen);
        dir.set_attr(name, new)
    }

    fn xattr(&mut self, path: Path) -> Done {
        let (dir, name) = self.dir_of(path)?;
        if self.ledger.acts(path) > 0 {
            return Ok(());
        }
        let seen = self.blocks(path);
        self.ledger.change_attributes(&seen);
        dir.set_xattr(name, b"user.his", b"1")
    }
}

pub fn dir_of(slow: &SimDisk, path: Path) -> Done<(Arc<dyn Dir>, &'static [u8])> {
    let root = slow.root();
    Ok(match path.split_once('/') {
        Some((dir, file)) => (root.dir(dir.as_bytes())?, file.as_bytes()),
        None => (root, path.as_bytes()),
    })
}

/// A directory with what is in it.
fn remove(dir: &dyn Dir, name: &[u8], kind: Kind) -> Done {
    if kind != Kind::Dir {
        return dir.unlink(name);
    }
    let inner = dir.dir(name)?;
    inner.list()?.iter().try_for_each(|entry| remove(&*inner, &entry.name, entry.kind))?;
    dir.rmdir(name)
}

/// Copies, and what is made to be placed. What only `tmp` has goes with it, so the rest is let be (P6).
fn clean_tmp(slow: &dyn Dir) -> Done {
    let tmps = slow.dir(b".dlio-fs")?.dir(b"tmp")?;
    for of in tmps.list()? {
        let tmp = tmps.dir(&of.name)?;
        let mut dirs = Vec::new();
        for lane in tmp.list()?.into_iter().filter(|entry| entry.name[0].is_ascii_digit()) {
            dirs.push(tmp.dir(&lane.name)?);
        }
        dirs.push(tmp);
        for tmp in dirs {
            for entry in tmp.list()?.into_iter().filter(|entry| matches!(entry.name[0], b'c' | b'm')) {
                remove(&*tmp, &entry.name, entry.kind)?;
            }
        }
    }
    Ok(())
}
