//! The parts of the slow tree that have our own `tmp`, by the paths of their roots.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use crate::error::{Context, Errno, Error, Result};
use crate::path::{escape, unescape};
use crate::tiers::Lsn;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, ensure_dir, read_text, replace_text, split};
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::{Dir, Stat};
use crate::tiers::log::record::{Path, is_below_root};

const FILE: &[u8] = b"parts";

/// The inode numbers of a part's root and of its `tmp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartIds {
    pub(super) root: u64,
    pub(super) tmp: u64,
}

/// The parts that have our own `tmp`, by the paths of their roots on the slow tier.
#[derive(Debug)]
pub(crate) struct Parts {
    /// `<fast>/.dlio-fs`.
    pub(super) ours: Arc<dyn Dir>,
    pub(super) uuid: Vec<u8>,
    pub(super) recorded: Mutex<BTreeMap<Path, PartIds>>,
    pub(super) open: Mutex<HashMap<Path, Arc<dyn Dir>>>,
    /// The lanes in use, by their names behind the paths of their parts.
    pub(super) lanes: Mutex<HashMap<Path, Arc<dyn Dir>>>,
}

impl Parts {
    pub(crate) fn open(ours: Arc<dyn Dir>, uuid: &str) -> Result<Self> {
        let text = read_text(&*ours, FILE)?.unwrap_or_default();
        let parts = Parts {
            ours,
            uuid: uuid.as_bytes().to_vec(),
            recorded: Mutex::default(),
            open: Mutex::default(),
            lanes: Mutex::default(),
        };
        // Skip an invalid line.
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

    /// Our `tmp` below the directory at `part`, made if it is missing.
    ///
    /// Errors: a foreign file or directory has one of its names, or other users may change one of its directories
    /// (P17).
    pub(crate) fn make_tmp(&self, part: &[u8], root: &dyn Dir) -> Result<Arc<dyn Dir>> {
        let below = |above: &dyn Dir, name: &[u8]| {
            let taken = || {
                Error::refused(
                    format!("/{}/{} on the slow tier is not ours", escape(part), escape(OURS)),
                    "find out whose it is, and have it moved: dlio-fs makes a directory of its own there",
                )
            };
            let dir = ensure_dir(above, name).map_err(|error| match error.errno() {
                Errno::ENOTDIR | Errno::ELOOP => taken(),
                _ => error,
            })?;
            let stat = dir.stat(b".").at("stat", escape(name))?;
            if is_ours(&stat) { Ok(dir) } else { Err(taken()) }
        };
        below(&*below(&*below(root, OURS)?, b"tmp")?, &self.uuid)
    }

    /// Removes the directories of [`Parts::make_tmp`] that are empty.
    pub(crate) fn remove_made(&self, root: &dyn Dir) -> io::Result<()> {
        let ours = root.dir(OURS)?;
        if let Some(tmp) = absent_is_none(ours.dir(b"tmp"))? {
            if let Some(lanes) = absent_is_none(tmp.dir(&self.uuid))? {
                let names = lanes.list()?.into_iter().map(|entry| entry.name).filter(|name| is_lane(name));
                names.into_iter().try_for_each(|lane| lanes.rmdir(&lane))?;
            }
            absent_is_none(tmp.rmdir(&self.uuid))?;
        }
        absent_is_none(ours.rmdir(b"tmp"))?;
        absent_is_none(root.rmdir(OURS)).map(drop)
    }

    /// Changes the recorded parts, on the disk first.
    pub(super) fn change(&self, change: impl FnOnce(&mut BTreeMap<Path, PartIds>)) -> Result<()> {
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

/// Whether only we may change this directory. Root may anyway.
pub(super) fn is_ours(stat: &Stat) -> bool {
    [0, nix::unistd::geteuid().as_raw()].contains(&stat.uid) && stat.perm & 0o022 == 0
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

/// The name of a copy in `tmp`, made by this stream of the drain. Each stream but the first has a directory in `tmp`,
/// its *lane*: a network client lets only one thread at a time create or rename in a directory, for as long as the
/// server takes.
pub(crate) fn copy_name(lsn: Lsn, stream: u32) -> Vec<u8> {
    match stream {
        0 => format!("c{lsn:016x}").into_bytes(),
        stream => format!("c{lsn:016x}-{stream}").into_bytes(),
    }
}

/// The lane that has a name of `tmp`; `None`: it is in `tmp` itself.
pub(crate) fn lane_of(name: &[u8]) -> Option<&[u8]> {
    let name = name.strip_prefix(b"c")?;
    let name = name.split(|byte| *byte == b'.').next()?;
    let lane = name.get(name.iter().position(|byte| *byte == b'-')? + 1..)?;
    is_lane(lane).then_some(lane)
}

/// Whether this is the name of a lane.
pub(crate) fn is_lane(name: &[u8]) -> bool {
    matches!(name, [b'1'..=b'9'])
}

/// The event whose version a name in `tmp` is a copy of; a further link of it has a dot and a number behind its name.
pub(crate) fn copied_event(name: &[u8]) -> Option<Lsn> {
    let lsn = name.strip_prefix(b"c")?.split(|byte| matches!(byte, b'-' | b'.')).next()?;
    Lsn::from_str_radix(std::str::from_utf8(lsn).ok()?, 16).ok()
}

/// The last component of a name in `tmp`.
pub(crate) fn bare(tmp: &[u8]) -> &[u8] {
    split(tmp).1
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

    #[test]
    fn the_name_of_a_copy_tells_its_event_and_its_lane() {
        for (stream, lane) in [(0, None), (1, Some(&b"1"[..])), (7, Some(b"7"))] {
            let name = copy_name(0x2f, stream);
            for name in [name.clone(), [&name[..], b".12"].concat()] {
                assert_eq!((copied_event(&name), lane_of(&name)), (Some(0x2f), lane), "{name:?}");
            }
        }
        for other in [&b"o1-2"[..], b"m1", b"l1-2", b"c1-", b"c1-12", b"c1.-2", b"qc1-2"] {
            assert_eq!(lane_of(other), None, "{other:?}");
        }
    }
}
