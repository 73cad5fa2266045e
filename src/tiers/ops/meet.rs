//! Clean objects from before this start whose files have not been looked up yet. They wait (`View::waiting`) and are
//! attached to their files again at the lookup.

use crate::error::{Context, Error, Result};
use crate::tiers::disk::Access;
use crate::tiers::disk::layout::is_at_or_below;
use crate::tiers::objects::pool::Pool;
use crate::tiers::{Cx, Tiers};

/// How many are looked up at once.
const AT_ONCE: usize = 16;

impl Tiers {
    /// Makes room on the fast tier for a write that found it full; `false` if nothing could be evicted. `kept`: also
    /// evict the checkpoints that `keep` keeps.
    pub(crate) fn evict_for(&self, bytes: u64, kept: bool) -> Result<bool> {
        self.free(bytes, kept, &|| self.learn_waiting())
    }

    /// Looks up some of the files whose objects have waited since the start, by the names they had then. Each is tried
    /// once; `false`: there are no more.
    pub(crate) fn learn_waiting(&self) -> Result<bool> {
        let untried: Vec<u64> = {
            let mut st = self.state.lock();
            let untried = st.view.waiting.values_mut().filter(|waiting| !waiting.tried).take(AT_ONCE);
            let numbers = untried.map(|waiting| {
                waiting.tried = true;
                waiting.object.number
            });
            numbers.collect()
        };
        self.meet(&untried, b"")?;
        Ok(!untried.is_empty())
    }

    /// The clean objects whose files have not been looked up since the start.
    pub fn unmet(&self) -> Vec<u64> {
        self.state.lock().view.waiting.values().map(|waiting| waiting.object.number).collect()
    }

    /// Looks up the files of these objects by the names they had, if those are `below` or beneath it.
    pub fn meet(&self, objects: &[u64], below: &[u8]) -> Result<()> {
        for number in objects {
            let object = match self.pool.open_object(*number, Access::Read) {
                // Looked up and deleted meanwhile.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.at_fast("open", "object")?,
            };
            let named = Pool::name_of(&*object).at_fast("read name of", "object")?;
            if let Some(named) = named.filter(|named| is_at_or_below(&named.path, below)) {
                self.look_up(&named.path)?;
            }
        }
        Ok(())
    }

    pub(crate) fn look_up(&self, path: &[u8]) -> Result<()> {
        match self.at_path(&Cx::internal(), path, |_| Ok(())) {
            // Another node is there by now.
            Err(Error::Posix(_)) => Ok(()),
            other => other,
        }
    }
}
