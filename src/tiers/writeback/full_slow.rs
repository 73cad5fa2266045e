//! A full slow tier with `full_slow = "remove-first"` (P15): removals that wait behind data without room go ahead of
//! it.
//!
//! 1. `model/publish_plan.rs::removable_first` chooses them: no earlier change touches the same nodes.
//! 2. They are applied to the slow tree, by name and inode number, until enough bytes are free, and counted.
//! 3. Their events stay in the queue. At its turn each is found done, as after a crash. So nothing is logged here, and
//!    a crash between 2 and 3 does no harm.
//!
//! Until then the slow tree lacks the removed files but does not have the earlier changes yet: an exception to P1.

use crate::config::FullSlow;
use crate::error::{Context, Error, Result};
use crate::path::escape;
use crate::tiers::disk::Kind;
use crate::tiers::disk::errors::lacks_room;
use crate::tiers::log::record::Step;
use crate::tiers::model::publish_plan;
use crate::tiers::progress::FullSlowTier;
use crate::tiers::writeback::open_tree::OpenTree;
use crate::tiers::writeback::step::Met;
use crate::tiers::{Ino, Tiers};

impl Tiers {
    /// After an error: makes room for `bytes` on the slow tier. `false`: the tier is not full, or nothing may be
    /// removed.
    pub(crate) fn removes_first(&self, error: &Error, bytes: u64) -> bool {
        if self.order.is_shared() || !is_full(error) {
            return false;
        }
        let space = self.slow.root.space().unwrap_or_default();
        let removable = publish_plan::removable_first(&self.state.lock()); // 1
        let waits = self.options().full_slow != FullSlow::RemoveFirst;
        *self.counters.notes.full.lock() = FullSlowTier {
            no_inodes: space.files > 0 && space.files_free == 0,
            removals_wait: waits && !removable.is_empty(),
        };
        if waits {
            return false;
        }
        // With a quota, free space may be out of our reach.
        let missing = bytes.checked_sub(space.avail).unwrap_or(bytes).max(1);
        let mut freed = 0;
        for ino in removable {
            match self.remove_first(ino) {
                Ok(bytes) => freed += bytes,
                Err(error) => {
                    tracing::warn!(%error, "a file whose removal would make room on the slow tier could not be removed");
                    break;
                }
            }
            if freed >= missing {
                break;
            }
        }
        freed > 0
    }

    /// Step 2. Returns the number of bytes freed.
    fn remove_first(&self, ino: Ino) -> Result<u64> {
        let (path, id) = {
            let st = self.state.lock();
            let paths = st.view.slow_paths(ino);
            let id = st.view.get(ino).and_then(|node| node.slow_id());
            match (<[_; 1]>::try_from(paths), id) {
                (Ok([path]), Some(id)) => (path, id),
                _ => return Ok(0),
            }
        };
        let label = || escape(&path);
        let found = self.slow.stat(&path).at("stat on slow", label())?;
        let is_it = |stat: &crate::tiers::disk::Stat| stat.id() == id && stat.kind == Kind::File && stat.nlink == 1;
        let Some(stat) = found.filter(is_it) else { return Ok(0) };
        let step = Step::Remove { path: path.clone(), id: id.1, dir: false };
        match OpenTree::new(&self.slow).apply(&step, None).at("remove on slow", label())? {
            Met::Expected => {}
            _ => return Ok(0),
        }
        self.counters.totals.removed_first.increment(1);
        tracing::info!(path = %escape(&path), "the slow tier is full: removed ahead of earlier changes");
        Ok(stat.blocks * 512)
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io { on_fast: false, .. }) && lacks_room(error)
}
