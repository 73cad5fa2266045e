//! Looks up the names of a listed directory ahead of a caller who asks for one after the other, as `find -size` does.
//!
//! A thread that must not wait takes three system calls to look up a name of the slow tier (`Dir::stat_at_hand`): a
//! plain stat might wait for the disk. One that may wait takes one. So it gets the lookups that follow the order of a
//! listing, looks up the next names too, and the caller finds them in memory: one system call for each name, and one
//! change of threads for many. A listing with attributes (READDIRPLUS) is looked up in the same way.
//!
//! Each answer is that of a stat of one name beneath the directory's own descriptor, as for any lookup: it follows no
//! symbolic link, and tells by its device what is mounted there. Directories are left out: what is mounted on one may
//! never answer, and the caller has not asked for it.

use std::io;
use std::time::Duration;

use crate::error::{Context, Result};
use crate::path::Name;
use crate::tiers::disk::errors::{absent_is_none, is_elsewhere};
use crate::tiers::disk::{Kind, Stat};
use crate::tiers::model::node::DirNode;
use crate::tiers::model::state::EngineState;
use crate::tiers::model::view::LookupStart;
use crate::tiers::objects::slow_tier::SlowId;
use crate::tiers::{Cx, Ino, ListEntry, Tiers};

/// Names looked up ahead of one at most. Each lookup in order doubles the number: whoever stops soon wastes little.
const AHEAD_MOST: usize = 64;
/// A caller waits no longer than this for names that it has not asked for.
const AHEAD_FOR: Duration = Duration::from_millis(5);
/// Names between two lookups that still follow the order: the kernel may know some.
const SKIPPED_MOST: usize = 32;

/// Names of a listing to look up, by their positions in it.
#[derive(Debug, Default)]
pub(super) struct NamesAhead {
    names: Vec<(usize, Name)>,
    /// The position behind the name that was asked for; `None`: it does not follow the order.
    behind: Option<usize>,
}

impl NamesAhead {
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// What the slow tier has under the first of the names ahead.
pub(super) type StatsAhead = Vec<Option<Stat>>;

impl Tiers {
    /// The names to look up together with this one.
    pub(super) fn names_ahead(&self, st: &EngineState, dir: Ino, name: &Name) -> NamesAhead {
        let listed = st.view.get(dir).and_then(|node| node.dir.as_ref()?.listed.as_ref());
        // A start knows which number the name that it asks for must get, and no other.
        let listed = listed.filter(|_| st.view.expected.is_none());
        let Some((listed, listing)) = listed.and_then(|listed| Some((listed, listed.listing.upgrade()?))) else {
            return NamesAhead::default();
        };
        // Behind `.` and `..`.
        let from = listed.next.max(2);
        let next = listing.entries.iter().enumerate().skip(from).take(SKIPPED_MOST);
        let Some(at) = next.clone().find(|(_, entry)| entry.name == name.as_bytes()).map(|(at, _)| at) else {
            return NamesAhead::default();
        };
        let most = if listed.in_order == 0 { 0 } else { AHEAD_MOST.min(1 << listed.in_order.min(16)) };
        let next = listing.entries.iter().enumerate().skip(at + 1).take(most);
        NamesAhead { names: self.unknown(st, dir, next), behind: Some(at + 1) }
    }

    /// The names among these entries for which the slow tier has to be asked, but for directories.
    fn unknown<'a>(
        &self,
        st: &EngineState,
        dir: Ino,
        entries: impl Iterator<Item = (usize, &'a ListEntry)>,
    ) -> Vec<(usize, Name)> {
        let (now, ages, trust) = (self.uptime(), self.ages(), self.slow.is_down());
        if ages.slow.is_zero() {
            // No answer would hold until it is asked for.
            return Vec::new();
        }
        let others = entries.filter(|(_, entry)| entry.kind != Kind::Dir);
        let names = others.filter_map(|(at, entry)| Some((at, Name::new(&entry.name).ok()?)));
        names.filter(|(_, name)| st.view.known(dir, name, now, ages, trust).is_none()).collect()
    }

    /// Asks the slow tier for a name, if there is one, and for those ahead of it up to the first that fails or that
    /// would take too long.
    pub(super) fn stat_in(
        &self,
        dir: Ino,
        id: SlowId,
        name: Option<&Name>,
        ahead: &NamesAhead,
    ) -> Result<(Option<Stat>, StatsAhead)> {
        let found = self.at_slow(dir, |path, _| {
            let open = self.slow.dir(dir, path, id)?;
            let stat = |name: &Name| absent_is_none(open.stat(name.as_bytes()));
            let (asked, begun) = (name.map(stat).transpose()?.flatten(), self.uptime());
            let in_time = ahead.names.iter().take_while(|_| self.uptime().saturating_sub(begun) < AHEAD_FOR);
            Ok::<_, io::Error>((asked, in_time.map_while(|(_, name)| stat(name).ok()).collect()))
        });
        if found.as_ref().is_err_and(is_elsewhere) {
            if self.state.lock().view.owes_below(dir) {
                // Someone else has removed it: it will be made anew, with the entries that are on their way.
                return Ok((None, Vec::new()));
            }
            self.look_again(dir);
        }
        found.at("stat on slow", self.label(dir))
    }

    /// Takes in the answers about the names ahead. The directory has not changed since they were asked for.
    pub(super) fn learn_ahead(
        &self,
        st: &mut EngineState,
        dir: Ino,
        ahead: &NamesAhead,
        stats: &[Option<Stat>],
        asked: LookupStart,
    ) {
        let (now, ages, trust) = (self.uptime(), self.ages(), self.slow.is_down());
        for ((_, name), stat) in ahead.names.iter().zip(stats) {
            // A name that is gone is no news: nobody has asked for it.
            if stat.is_some() && st.view.known(dir, name, now, ages, trust).is_none() {
                self.learn(st, dir, name, stat.as_ref(), asked);
            }
        }
        let last = stats.len().checked_sub(1).and_then(|last| Some(ahead.names.get(last)?.0 + 1));
        if let Some(next) = last.or(ahead.behind) {
            let node = st.view.get_mut(dir).and_then(|node| node.dir.as_deref_mut());
            node.into_iter()
                .for_each(|dir: &mut DirNode| dir.listed.iter_mut().for_each(|listed| listed.goes_on(next)));
        }
    }

    /// Looks up these entries of the directory's listing, so that each of them is in memory when it is asked for. What
    /// cannot be looked up is left for then.
    ///
    /// Errors: `NeedSlow` if the slow tier has to be asked.
    pub fn look_up_listed<'a>(
        &self,
        cx: &Cx,
        dir: Ino,
        entries: impl Iterator<Item = (usize, &'a ListEntry)>,
    ) -> Result<()> {
        let (generation, id, ahead, asked) = {
            let st = self.state.lock();
            let Some(slots) = st.view.live_dir(dir) else { return Ok(()) };
            let Some(id) = st.view.get(dir).and_then(|node| node.slow_id()) else { return Ok(()) };
            let ahead = NamesAhead { names: self.unknown(&st, dir, entries), behind: None };
            (slots.generation, id, ahead, st.view.asked(self.uptime()))
        };
        if ahead.is_empty() {
            return Ok(());
        }
        cx.slow()?;
        let Ok((_, stats)) = self.stat_in(dir, id, None, &ahead) else { return Ok(()) };
        let mut st = self.state.lock();
        if st.view.live_dir(dir).is_some_and(|slots| slots.generation == generation) {
            self.learn_ahead(&mut st, dir, &ahead, &stats, asked);
        }
        Ok(())
    }
}
