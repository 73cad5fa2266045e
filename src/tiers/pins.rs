//! Which paths stay on the fast tier: a list in `<fast>/.dlio-fs/pins`, one escaped path per line, which survives the
//! mount; and the paths that the configuration's rules pin.
//!
//! A path of the list covers itself and everything below it, whatever has that path: it does not follow a rename.
//!
//! Those are the pins of the mount's owner. Other users pin their own files: the line then also has the user and the
//! file's size. The file stays while it is no larger, and all pins of one user take at most [`SHARE`] of the fast tier.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Errno, Error, Result};
use crate::path::{escape, unescape};
use crate::tiers::Tiers;
use crate::tiers::disk::Dir;
use crate::tiers::disk::layout::dirs_above;
use crate::tiers::disk::layout::{TEXT_MAX, read_text, replace_text};
use crate::tiers::disk::sync::{Mutex, Rank};

const FILE: &[u8] = b"pins";
/// The part of the fast tier that the files pinned by one user may take: an eighth.
const SHARE: u64 = 8;
/// How many files one user may pin.
const FILES_MAX: usize = 1000;

/// A pin by a user who is not the mount's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Granted {
    uid: u32,
    bytes: u64,
}

type Paths = BTreeMap<Vec<u8>, Option<Granted>>;

/// `None` for an invalid line.
fn parse(line: &str) -> Option<(Vec<u8>, Option<Granted>)> {
    let mut words = line.split(' ');
    let path = unescape(words.next()?)?;
    let Some(uid) = words.next() else { return Some((path, None)) };
    let granted = Granted { uid: uid.parse().ok()?, bytes: words.next()?.parse().ok()? };
    words.next().is_none().then_some((path, Some(granted)))
}

fn line(path: &[u8], granted: Option<Granted>) -> String {
    let path = escape(path);
    granted.map_or_else(|| format!("{path}\n"), |Granted { uid, bytes }| format!("{path} {uid} {bytes}\n"))
}

#[derive(Debug)]
pub(crate) struct Pins {
    ours: Arc<dyn Dir>,
    paths: Mutex<Paths>,
    writing: Mutex<()>,
}

impl Pins {
    pub(crate) fn open(ours: Arc<dyn Dir>) -> Result<Self> {
        let text = read_text(&*ours, FILE)?.unwrap_or_default();
        // An invalid line pins nothing.
        let paths = text.lines().filter_map(parse).collect();
        let pins = Pins { ours, paths: Mutex::default(), writing: Mutex::new(Rank::Publishing, ()) };
        *pins.paths.lock() = paths;
        Ok(pins)
    }

    /// Whether a file of this size stays.
    pub(crate) fn has(&self, path: &[u8], bytes: u64) -> bool {
        let paths = self.paths.lock();
        if paths.is_empty() {
            return false;
        }
        match paths.get(path) {
            Some(Some(granted)) if bytes <= granted.bytes => true,
            Some(None) => true,
            _ => {
                [&b""[..]].into_iter().chain(dirs_above(path)).any(|path| paths.get(path).is_some_and(Option::is_none))
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.paths.lock().is_empty()
    }

    /// Changes the list, on the disk first. `false`: nothing changes.
    fn change(&self, change: impl FnOnce(&mut Paths) -> Result<bool>) -> Result<bool> {
        let _one_at_a_time = self.writing.lock();
        let mut wanted = self.paths.lock().clone();
        if !change(&mut wanted)? {
            return Ok(false);
        }
        let text: String = wanted.iter().map(|(path, granted)| line(path, *granted)).collect();
        if text.len() as u64 > TEXT_MAX {
            let what = format!("the list of pinned paths would be longer than {TEXT_MAX} bytes");
            return Err(Error::refused(what, "pin a directory instead of its files"));
        }
        replace_text(&*self.ours, FILE, &text)?;
        *self.paths.lock() = wanted;
        Ok(true)
    }
}

impl Tiers {
    /// Pins what the fast tier has at or below `path` until it is unpinned; durable on return. `false`: it was already
    /// pinned.
    pub fn pin_path(&self, path: &[u8]) -> Result<bool> {
        self.pins.change(|paths| Ok(paths.insert(path.to_vec(), None) != Some(None)))
    }

    /// Pins a file of this size for a user who is not the mount's owner. EDQUOT beyond a user's limit.
    pub fn pin_file_for(&self, uid: u32, path: &[u8], bytes: u64) -> Result<bool> {
        let most = self.fast.space().unwrap_or_default().capacity() / SHARE;
        self.pins.change(|paths| {
            if paths.get(path) == Some(&None) {
                return Ok(false);
            }
            let others = paths.iter().filter(|(other, _)| other.as_slice() != path);
            let theirs: Vec<Granted> = others.filter_map(|(_, granted)| *granted).filter(|g| g.uid == uid).collect();
            let sum = theirs.iter().map(|granted| granted.bytes).fold(bytes, u64::saturating_add);
            if sum > most || theirs.len() >= FILES_MAX {
                let whom = format!("user {uid}, who may have {most} bytes and {FILES_MAX} files pinned");
                return Err(Error::io("pin one more file for", whom, Errno::EDQUOT.into()));
            }
            let granted = Some(Granted { uid, bytes });
            Ok(paths.insert(path.to_vec(), granted) != Some(granted))
        })
    }

    /// `false`: this exact path was not pinned.
    pub fn unpin_path(&self, path: &[u8]) -> Result<bool> {
        let changed = self.pins.change(|paths| Ok(paths.remove(path).is_some()))?;
        self.wake();
        Ok(changed)
    }

    /// Whether a file with this path and size is exempt from eviction.
    pub(crate) fn stays(&self, path: &[u8], bytes: u64) -> bool {
        self.pins.has(path, bytes) || self.options().rules.pins(|| Some(path))
    }

    /// Whether any file is exempt.
    pub(crate) fn any_stays(&self) -> bool {
        !self.pins.is_empty() || self.options().rules.pins_any()
    }

    /// The pinned paths of the list, escaped, from the mount's root. `by`: only those pinned by this user, who is not
    /// the mount's owner.
    pub fn pinned_paths(&self, by: Option<u32>) -> Vec<String> {
        let paths = self.pins.paths.lock();
        let shown = paths.iter().filter(|(_, granted)| by.is_none() || granted.map(|granted| granted.uid) == by);
        shown.map(|(path, _)| escape(path)).collect()
    }

    /// The patterns that the rules pin.
    pub fn pinned_patterns(&self) -> Vec<String> {
        self.options().rules.pinned().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_has_pinned_how_much() {
        let granted = Some(Granted { uid: 1001, bytes: 70 });
        for (path, granted) in [(&b"a/b c"[..], None), (b"", None), (b"model.bin", granted)] {
            assert_eq!(parse(line(path, granted).trim_end_matches('\n')), Some((path.to_vec(), granted)));
        }
        for bad in ["a 1001", "a 1001 x", "a 1001 5 6", "a -1 5", "%"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
