//! The `tmp` of each part of the slow tree: reaching, making, syncing and removing it, and following it when its part
//! moves.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use crate::error::{Context, Errno, Error, Result};
use crate::path::escape;
use crate::tiers::disk::errors::{absent_is_none, is_elsewhere};
use crate::tiers::disk::layout::{OURS, give_nothing_on, split};
use crate::tiers::disk::{Dir, SlowId};
use crate::tiers::log::record::{Path, Step};
use crate::tiers::objects::parts::{PartIds, in_part, is_ours, lane_of};
use crate::tiers::objects::slow_tier::SlowTier;

impl SlowTier {
    /// The directory of a name in `tmp` (`tmp` itself, or a lane), and the name's last component. If a lane was removed
    /// from outside, with all that was in it: `tmp`, which has no such name either.
    pub(crate) fn tmp_of<'a>(&self, tmp: &'a [u8]) -> io::Result<(Arc<dyn Dir>, &'a [u8])> {
        let (part, name) = split(tmp);
        let lane = lane_of(name).map(|lane| absent_is_none(self.lane(part, lane))).transpose()?.flatten();
        Ok((lane.map_or_else(|| self.tmp_at(part), Ok)?, name))
    }

    /// Like [`SlowTier::tmp_of`], for a new copy: makes its lane if it is missing. The sync of `tmp` before an intent
    /// makes the lane durable.
    pub(crate) fn made_tmp_of<'a>(&self, tmp: &'a [u8]) -> io::Result<(Arc<dyn Dir>, &'a [u8])> {
        let (part, name) = split(tmp);
        if let Some(lane) = lane_of(name)
            && absent_is_none(self.lane(part, lane))?.is_none()
        {
            match self.tmp_at(part)?.mkdir(lane, 0o700) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        self.tmp_of(tmp)
    }

    fn lane(&self, part: &[u8], lane: &[u8]) -> io::Result<Arc<dyn Dir>> {
        let key = in_part(part, lane);
        if let Some(dir) = self.parts.lanes.lock().get(&key) {
            return Ok(dir.clone());
        }
        let dir = self.tmp_at(part)?.dir(lane)?;
        give_nothing_on(&*dir, false)?;
        self.parts.lanes.lock().insert(key, dir.clone());
        Ok(dir)
    }

    /// Drops the open lanes, of which one was removed from outside: they are opened, or made, again.
    pub(crate) fn forget_lanes(&self) {
        self.parts.lanes.lock().clear();
    }

    /// The `tmp` of a part that has one, by the path of its root.
    ///
    /// Errors: ENOENT if the `tmp` was removed; another one if the part is missing.
    pub(crate) fn tmp_at(&self, part: &[u8]) -> io::Result<Arc<dyn Dir>> {
        if part.is_empty() {
            return Ok(self.tmp.clone());
        }
        if let Some(tmp) = self.parts.open.lock().get(part) {
            return Ok(tmp.clone());
        }
        let absent =
            || io::Error::other(".dlio-fs/tmp of a part of the slow tree is missing; is its file system mounted?");
        let recorded = self.parts.recorded.lock().get(part).copied().ok_or_else(absent)?;
        let root = absent_is_none(self.walk(part))?.ok_or_else(absent)?;
        if root.stat(b".")?.ino != recorded.root {
            return Err(absent());
        }
        let tmp = root.dir(OURS)?.dir(b"tmp")?.dir(&self.parts.uuid)?;
        let found = tmp.stat(b".")?;
        if found.ino != recorded.tmp || !is_ours(&found) {
            return Err(absent());
        }
        give_nothing_on(&*tmp, false)?;
        self.parts.open.lock().insert(part.to_vec(), tmp.clone());
        Ok(tmp)
    }

    /// The `tmp` of a part, made if it is missing. `id` is the part's root.
    pub(crate) fn ensure_tmp(&self, part: &[u8], id: SlowId) -> Result<Arc<dyn Dir>> {
        if let Ok(tmp) = self.tmp_at(part) {
            return Ok(tmp);
        }
        let label = || format!("{}/.dlio-fs/tmp on the slow tier", escape(part));
        let root = self.walk(part).at("open", label())?;
        let stat = root.stat(b".").at("stat", label())?;
        if stat.id() != id {
            return Err(Error::io("open", label(), Errno::ESTALE.into()));
        }
        let tmp = self.parts.make_tmp(part, &*root)?;
        let made = tmp.stat(b".").at("stat", label())?;
        let recorded = PartIds { root: stat.ino, tmp: made.ino };
        self.parts.change(|all| {
            all.insert(part.to_vec(), recorded);
        })?;
        self.parts.open.lock().insert(part.to_vec(), tmp.clone());
        Ok(tmp)
    }

    /// Syncs each `tmp`, and each lane, that has one of these names.
    pub(crate) fn sync_tmps<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let dirs = names.flat_map(|tmp| {
            let (part, name) = split(tmp);
            [(part, None), (part, lane_of(name))]
        });
        let dirs: BTreeSet<(&[u8], Option<&[u8]>)> = dirs.chain([(&b""[..], None)]).collect();
        let sync = |(part, lane): (&[u8], Option<&[u8]>)| match lane {
            None => self.tmp_at(part)?.sync(),
            // A lane that is gone has nothing to sync: the steps find that.
            Some(lane) => match self.lane(part, lane).and_then(|lane| lane.sync()) {
                Err(e) if is_elsewhere(&e) => {
                    self.forget_lanes();
                    Ok(())
                }
                synced => synced,
            },
        };
        dirs.into_iter().try_for_each(|dir| sync(dir).at("fsync", "tmp on the slow tier"))
    }

    /// Removes our empty `tmp` from a part's root that is otherwise empty. `false`: the root holds something else.
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
        self.forget_lanes();
        Ok(self.parts.remove_made(&*root).is_ok())
    }

    /// Follows completed steps that have moved the roots of parts, or removed one.
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
            self.forget_lanes();
        }
        Ok(())
    }
}
