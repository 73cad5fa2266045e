//! The parts of the slow tree that have a `tmp` of ours, by the paths of their roots.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use crate::error::{Context, Errno, Error, Result};
use crate::path::{escape, unescape};
use crate::tiers::disk::Dir;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, ensure_dir, read_text, replace_text, split};
use crate::tiers::disk::sync::Mutex;
use crate::tiers::log::record::{Path, Step, is_below_root};
use crate::tiers::objects::slow_tier::{SlowId, SlowTier};

const FILE: &[u8] = b"parts";

/// The inode numbers of a part's root and of its `tmp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartIds {
    root: u64,
    tmp: u64,
}

/// The parts that have a `tmp` of ours, by the paths of their roots on the slow tier.
#[derive(Debug)]
pub(crate) struct Parts {
    /// `<fast>/.dlio-fs`.
    ours: Arc<dyn Dir>,
    uuid: Vec<u8>,
    recorded: Mutex<BTreeMap<Path, PartIds>>,
    open: Mutex<HashMap<Path, Arc<dyn Dir>>>,
}

impl Parts {
    pub(crate) fn open(ours: Arc<dyn Dir>, uuid: &str) -> Result<Self> {
        let text = read_text(&*ours, FILE)?.unwrap_or_default();
        let parts = Parts { ours, uuid: uuid.as_bytes().to_vec(), recorded: Mutex::default(), open: Mutex::default() };
        // A line that nobody wrote is none.
        *parts.recorded.lock() = text.lines().filter_map(line).collect();
        Ok(parts)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.recorded.lock().is_empty()
    }

    pub(crate) fn paths(&self) -> Vec<Path> {
        self.recorded.lock().keys().cloned().collect()
    }

    /// The inode number that a part's root had when its `tmp` was made.
    pub(crate) fn root(&self, part: &[u8]) -> Option<u64> {
        self.recorded.lock().get(part).map(|recorded| recorded.root)
    }

    /// Our `tmp` below a directory, made if there is none.
    pub(crate) fn make_tmp(&self, root: &dyn Dir) -> Result<Arc<dyn Dir>> {
        ensure_dir(&*ensure_dir(&*ensure_dir(root, OURS)?, b"tmp")?, &self.uuid)
    }

    /// Removes what [`Parts::make_tmp`] has made, as far as it is empty.
    pub(crate) fn remove_made(&self, root: &dyn Dir) -> io::Result<()> {
        let ours = root.dir(OURS)?;
        absent_is_none(ours.dir(b"tmp").and_then(|tmp| tmp.rmdir(&self.uuid)))?;
        absent_is_none(ours.rmdir(b"tmp"))?;
        absent_is_none(root.rmdir(OURS)).map(drop)
    }

    /// Changes what is written down, on the disk first.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<Path, PartIds>)) -> Result<()> {
        let mut recorded = self.recorded.lock();
        let mut wanted = recorded.clone();
        change(&mut wanted);
        if wanted == *recorded {
            return Ok(());
        }
        let line = |(path, ids): (&Path, &PartIds)| format!("{} {} {}\n", escape(path), ids.root, ids.tmp);
        replace_text(&*self.ours, FILE, &wanted.iter().map(line).collect::<String>())?;
        *recorded = wanted;
        Ok(())
    }
}

fn line(line: &str) -> Option<(Path, PartIds)> {
    let mut words = line.split(' ');
    let path = unescape(words.next()?).filter(|path| is_below_root(path))?;
    let ids = PartIds { root: words.next()?.parse().ok()?, tmp: words.next()?.parse().ok()? };
    words.next().is_none().then_some((path, ids))
}

/// A name in the `tmp` of a part.
pub(crate) fn in_part(part: &[u8], name: &[u8]) -> Vec<u8> {
    if part.is_empty() { name.to_vec() } else { [part, b"/", name].concat() }
}

/// The last name of a name in `tmp`.
pub(crate) fn bare(tmp: &[u8]) -> &[u8] {
    split(tmp).1
}

impl SlowTier {
    /// The `tmp` that a name is in, and its last name.
    pub(crate) fn tmp_of<'a>(&self, tmp: &'a [u8]) -> io::Result<(Arc<dyn Dir>, &'a [u8])> {
        let (part, name) = split(tmp);
        Ok((self.tmp_at(part)?, name))
    }

    /// The `tmp` of a part that has one, by the path of its root.
    ///
    /// Errors: ENOENT if it was removed; another one if the part is not there.
    pub(crate) fn tmp_at(&self, part: &[u8]) -> io::Result<Arc<dyn Dir>> {
        if part.is_empty() {
            return Ok(self.tmp.clone());
        }
        if let Some(tmp) = self.parts.open.lock().get(part) {
            return Ok(tmp.clone());
        }
        let absent =
            || io::Error::other(".dlio-fs/tmp of a part of the slow tree is not there; is its file system mounted?");
        let recorded = self.parts.recorded.lock().get(part).copied().ok_or_else(absent)?;
        let root = absent_is_none(self.walk(part))?.ok_or_else(absent)?;
        if root.stat(b".")?.ino != recorded.root {
            return Err(absent());
        }
        let tmp = root.dir(OURS)?.dir(b"tmp")?.dir(&self.parts.uuid)?;
        if tmp.stat(b".")?.ino != recorded.tmp {
            return Err(absent());
        }
        self.parts.open.lock().insert(part.to_vec(), tmp.clone());
        Ok(tmp)
    }

    /// The same, made if there is none. `id` is the part's root.
    pub(crate) fn ensure_tmp(&self, part: &[u8], id: SlowId) -> Result<Arc<dyn Dir>> {
        if let Ok(tmp) = self.tmp_at(part) {
            return Ok(tmp);
        }
        let label = || format!("{}/.dlio-fs/tmp on the slow tier", String::from_utf8_lossy(part));
        let root = self.walk(part).at("open", label())?;
        let stat = root.stat(b".").at("stat", label())?;
        if (stat.dev, stat.ino) != id {
            return Err(Error::io("open", label(), Errno::ESTALE.into()));
        }
        let tmp = self.parts.make_tmp(&*root)?;
        let made = tmp.stat(b".").at("stat", label())?;
        // Root may do anything there anyway.
        if ![0, nix::unistd::geteuid().as_raw()].contains(&made.uid) {
            return Err(Error::refused(
                format!("/{}/.dlio-fs on the slow tier belongs to somebody else", escape(part)),
                "remove it, or give it to the user who mounts",
            ));
        }
        let recorded = PartIds { root: stat.ino, tmp: made.ino };
        self.parts.change(|all| {
            all.insert(part.to_vec(), recorded);
        })?;
        self.parts.open.lock().insert(part.to_vec(), tmp.clone());
        Ok(tmp)
    }

    /// Syncs each `tmp` that these names are in.
    pub(crate) fn sync_tmps<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let parts: BTreeSet<&[u8]> = names.map(|tmp| split(tmp).0).chain([&b""[..]]).collect();
        parts
            .into_iter()
            .try_for_each(|part| self.tmp_at(part).and_then(|tmp| tmp.sync()).at("fsync", "tmp on the slow tier"))
    }

    /// Removes an empty `tmp` of ours from the root of a part, which is otherwise empty. `false`: that is not all there is.
    pub(crate) fn remove_tmp(&self, part: &[u8], above: &dyn Dir, name: &[u8]) -> io::Result<bool> {
        let root = above.dir(name)?;
        let only = |dir: &dyn Dir, name: &[u8]| Ok::<_, io::Error>(dir.list()?.iter().all(|entry| entry.name == name));
        if !only(&*root, OURS)? {
            return Ok(false);
        }
        let ours = root.dir(OURS)?;
        if !only(&*ours, b"tmp")? || !only(&*ours.dir(b"tmp")?, &self.parts.uuid)? {
            return Ok(false);
        }
        self.parts.open.lock().remove(part);
        Ok(self.parts.remove_made(&*root).is_ok())
    }

    /// Steps that are done have moved the roots of parts, or removed one.
    pub(crate) fn follow_parts<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let below = |path: &[u8], dir: &[u8]| {
            path.strip_prefix(dir).filter(|rest| matches!(rest.first(), None | Some(b'/'))).map(<[u8]>::to_vec)
        };
        let mut moved = false;
        self.parts.change(|all| {
            for step in steps {
                let carry = |path: &Path| match step {
                    Step::Move { path: from, to, .. } => below(path, from).map(|rest| Some([&to[..], &rest].concat())),
                    Step::Swap { a, b, .. } => below(path, a)
                        .map(|rest| Some([&b[..], &rest].concat()))
                        .or_else(|| below(path, b).map(|rest| Some([&a[..], &rest].concat()))),
                    Step::Remove { path: gone, dir: true, .. } => (path == gone).then_some(None),
                    _ => None,
                };
                let carried: BTreeMap<Path, PartIds> = all
                    .iter()
                    .filter_map(|(path, ids)| Some((carry(path).unwrap_or_else(|| Some(path.clone()))?, *ids)))
                    .collect();
                moved |= carried != *all;
                *all = carried;
            }
        })?;
        if moved {
            self.parts.open.lock().clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_file_says_where_a_part_is_and_whose() {
        assert_eq!(line("a/b%20c 256 300"), Some((b"a/b c".to_vec(), PartIds { root: 256, tmp: 300 })));
        for bad in ["", "a", "a 1", "a 1 x", "a 1 2 3", "../a 1 2", ".dlio-fs/a 1 2", "/a 1 2"] {
            assert_eq!(line(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_name_in_tmp_stands_behind_the_path_of_its_part() {
        assert_eq!((in_part(b"", b"c1"), in_part(b"a.b/c", b"c1.2")), (b"c1".to_vec(), b"a.b/c/c1.2".to_vec()));
        assert_eq!((bare(b"c1"), bare(b"a.b/c/c1.2")), (&b"c1"[..], &b"c1.2"[..]));
    }
}
