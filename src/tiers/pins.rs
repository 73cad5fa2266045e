//! Which paths stay on the fast tier: a list in `<fast>/.dlio-fs/pins`, one escaped path a line, that outlives the mount; and
//! what the configuration's rules pin.
//!
//! A path of the list stands for itself and all below it, and for whatever is there: it does not follow a rename.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::path::{escape, unescape};
use crate::tiers::Tiers;
use crate::tiers::disk::Dir;
use crate::tiers::identity::{TEXT_MAX, read_text, replace_text};
use crate::tiers::sync::{Mutex, Rank};

const FILE: &[u8] = b"pins";

#[derive(Debug)]
pub(crate) struct Pins {
    ours: Arc<dyn Dir>,
    paths: Mutex<BTreeSet<Vec<u8>>>,
    writing: Mutex<()>,
}

impl Pins {
    pub(crate) fn open(ours: Arc<dyn Dir>) -> Result<Self> {
        let text = read_text(&*ours, FILE)?.unwrap_or_default();
        // A line that nobody wrote pins nothing.
        let paths = text.lines().filter_map(unescape).collect();
        let pins = Pins { ours, paths: Mutex::default(), writing: Mutex::new(Rank::Publishing, ()) };
        *pins.paths.lock() = paths;
        Ok(pins)
    }

    pub(crate) fn has(&self, path: &[u8]) -> bool {
        let paths = self.paths.lock();
        let above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at]);
        !paths.is_empty() && [&b""[..], path].into_iter().chain(above).any(|path| paths.contains(path))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.paths.lock().is_empty()
    }

    /// Changes the list, on the disk first. `false`: the change makes none.
    fn change(&self, change: impl FnOnce(&mut BTreeSet<Vec<u8>>) -> bool) -> Result<bool> {
        let _one_at_a_time = self.writing.lock();
        let mut wanted = self.paths.lock().clone();
        if !change(&mut wanted) {
            return Ok(false);
        }
        let text: String = wanted.iter().map(|path| escape(path) + "\n").collect();
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
    /// What the fast tier has at or below `path` stays there until it is unpinned; durable when this returns. `false`: it was pinned.
    pub fn pin_path(&self, path: &[u8]) -> Result<bool> {
        self.pins.change(|paths| paths.insert(path.to_vec()))
    }

    /// `false`: that very path was not pinned.
    pub fn unpin_path(&self, path: &[u8]) -> Result<bool> {
        let changed = self.pins.change(|paths| paths.remove(path))?;
        self.wake();
        Ok(changed)
    }

    /// Whether a file of this path is not evicted.
    pub(crate) fn stays(&self, path: &[u8]) -> bool {
        self.pins.has(path) || self.options().rules.pins(|| Some(path))
    }

    /// Whether any is.
    pub(crate) fn any_stays(&self) -> bool {
        !self.pins.is_empty() || self.options().rules.pins_any()
    }

    /// The pinned paths of the list, escaped, from the mount's root.
    pub fn pinned_paths(&self) -> Vec<String> {
        self.pins.paths.lock().iter().map(|path| escape(path)).collect()
    }

    /// The patterns that a rule pins.
    pub fn pinned_patterns(&self) -> Vec<String> {
        self.options().rules.pinned().map(str::to_owned).collect()
    }
}
