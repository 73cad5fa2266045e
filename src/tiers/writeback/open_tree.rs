//! The slow tree for a group of steps: the directories above their paths are opened once and kept.
//!
//! A kept directory is the one that had the path when it was opened. The steps of a group touch different names, and
//! each of them says which paths it moved or removed ([`OpenTree::forget_below`]). A directory that another program
//! removes meanwhile answers ENOENT; then all are forgotten ([`OpenTree::forget`]) and the path is walked again.
//!
//! On a tier with slow requests, the nodes that wait in `tmp` are looked up ahead, many at a time. Then only `rename`
//! decides: if another program has removed the node since, it answers ENOENT, and the step looks again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;

use crate::error::{Context, Result};
use crate::path::escape;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::split;
use crate::tiers::disk::{Dir, FileId, Inode, Stat};
use crate::tiers::log::record::{Path, Step};
use crate::tiers::objects::slow_tier::{SlowTier, or_self};
use crate::tiers::order::Order;
use crate::tiers::side_by_side::ask_each;

/// How many directories are kept open.
const KEPT_MAX: usize = 64;

/// See the module's documentation.
pub(crate) struct OpenTree<'a> {
    pub(super) slow: &'a SlowTier,
    kept: RefCell<HashMap<Path, Arc<dyn Dir>>>,
    /// Nodes looked up ahead, by their path in `tmp`.
    waiting: RefCell<HashMap<Path, Stat>>,
    /// See [`OpenTree::pop_saved`].
    pub(super) saved: RefCell<Vec<(Path, Path)>>,
    /// The order that is kept with other mounts, and when the event of the next step began.
    order: Option<&'a Order>,
    pub(super) began: Cell<u64>,
    /// The file systems that may be entered. `None`: all.
    devices: Option<BTreeSet<u64>>,
}

impl<'a> OpenTree<'a> {
    pub(crate) fn new(slow: &'a SlowTier) -> Self {
        let (kept, waiting, saved) = Default::default();
        OpenTree { slow, kept, waiting, saved, order: None, began: Cell::new(0), devices: None }
    }

    /// A tree that other mounts change, too, in this order.
    pub(crate) fn in_order(self, order: &'a Order) -> Self {
        OpenTree { order: Some(order), ..self }
    }

    /// Whether what another member has at this path existed before the event of the next step began.
    pub(super) fn was_there(&self, path: &[u8], ino: u64) -> bool {
        self.order.is_some_and(|order| order.was_there(path, ino, self.began.get()))
    }

    /// A tree restricted to these file systems.
    pub(crate) fn within(slow: &'a SlowTier, devices: BTreeSet<u64>) -> Self {
        OpenTree { devices: Some(devices), ..OpenTree::new(slow) }
    }

    /// The directory at `path`.
    pub(super) fn walk(&self, path: &[u8]) -> io::Result<Arc<dyn Dir>> {
        if path.is_empty() {
            return Ok(self.slow.root.clone());
        }
        if let Some(dir) = self.kept.borrow().get(path) {
            return Ok(dir.clone());
        }
        let (above, name) = split(path);
        let above = self.kept.borrow().get(above).cloned();
        let dir = match (above, &self.devices) {
            (None, None) => self.slow.walk(path),
            (Some(above), None) => above.dir(name),
            (None, Some(devices)) => self.slow.root.walk_within(path, devices),
            (Some(above), Some(devices)) => above.walk_within(name, devices),
        }?;
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(path.to_vec(), dir.clone());
        Ok(dir)
    }

    /// EBUSY if a file system that may not be entered is mounted at `path`.
    pub(super) fn expect_within(&self, path: &[u8]) -> io::Result<()> {
        let Some(devices) = self.devices.as_ref().filter(|_| !path.is_empty()) else { return Ok(()) };
        match absent_is_none(self.parent(path))? {
            Some((dir, name)) => dir.expect_within(name, devices),
            None => Ok(()),
        }
    }

    /// The directory above `path`, and the last name in it.
    pub(super) fn parent<'p>(&self, path: &'p [u8]) -> io::Result<(Arc<dyn Dir>, &'p [u8])> {
        let (dir, name) = split(path);
        Ok((self.walk(dir)?, name))
    }

    /// Like [`SlowTier::stat`], with kept directories.
    pub(super) fn stat(&self, path: &[u8]) -> io::Result<Option<Stat>> {
        absent_is_none(self.parent(path).and_then(|(dir, name)| dir.stat(or_self(name))))
    }

    /// Like [`Self::stat`], by [`Dir::stat_now`].
    pub(crate) fn stat_now(&self, path: &[u8]) -> io::Result<Option<Stat>> {
        absent_is_none(self.parent(path).and_then(|(dir, name)| dir.stat_now(or_self(name))))
    }

    /// Like [`SlowTier::hold_now`]; `None` also if a directory above it is missing.
    pub(super) fn hold_now(&self, path: &[u8], id: FileId) -> io::Result<Option<(Arc<dyn Inode>, Stat)>> {
        match absent_is_none(self.parent(path))? {
            Some((dir, name)) => SlowTier::hold_now(&*dir, name, id),
            None => Ok(None),
        }
    }

    /// To be called before the node at this path is moved or removed.
    pub(super) fn forget_below(&self, path: &[u8]) {
        let is_below =
            |kept: &[u8]| kept.strip_prefix(path).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')));
        self.kept.borrow_mut().retain(|kept, _| !is_below(kept));
    }

    pub(super) fn forget(&self) {
        self.kept.borrow_mut().clear();
        self.waiting.borrow_mut().clear();
    }

    /// Looks up what these steps place. `uptime` returns the present time.
    pub(super) fn stat_ahead<'s>(&self, uptime: impl Fn() -> Duration, steps: impl Iterator<Item = &'s Step>) {
        let in_tmp = |step: &'s Step| match step {
            Step::Place { tmp, .. } => Some((tmp, self.slow.tmp_of(tmp).ok()?)),
            _ => None,
        };
        let places: Vec<_> = steps.filter_map(in_tmp).collect();
        // After an error the steps look up their own nodes, and report it.
        let Ok(stats) = ask_each(uptime, &places, |(_, (dir, name))| absent_is_none(dir.stat(name))) else { return };
        let found = places.into_iter().zip(stats).filter_map(|((tmp, _), stat)| Some((tmp.clone(), stat?)));
        self.waiting.borrow_mut().extend(found);
    }

    /// The stat of the node with this path in `tmp`; `dir` and `name` are that path's directory and name.
    pub(super) fn stat_waiting(&self, tmp: &[u8], dir: &dyn Dir, name: &[u8]) -> io::Result<Option<Stat>> {
        match self.waiting.borrow_mut().remove(tmp) {
            Some(stat) => Ok(Some(stat)),
            None => absent_is_none(dir.stat(name)),
        }
    }

    /// The stat of each of these paths.
    pub(super) fn stat_all(&self, uptime: impl Fn() -> Duration, paths: &[Path]) -> Result<Vec<Option<Stat>>> {
        let shown = |path: &[u8]| escape(path);
        let open = |path| absent_is_none(self.parent(path)).at("open on slow", shown(path)).map(|place| (path, place));
        let places: Vec<_> = paths.iter().map(|path| open(&path[..])).collect::<Result<_>>()?;
        ask_each(uptime, &places, |(path, place)| match place {
            Some((dir, name)) => absent_is_none(dir.stat(or_self(name))).at("stat on slow", shown(path)),
            None => Ok(None),
        })
    }
}
