//! What only the fast tier has: its amount, files and age.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::tiers::counters::PendingExtent;
use crate::tiers::model::event::Change;
use crate::tiers::model::publish_plan;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::file::FileState;
use crate::tiers::progress::to_copy;
use crate::tiers::{Ino, Lsn, Tiers};

impl Tiers {
    /// Everything waits for a version that no longer exists, because a crash cut off its writer while overwriting it.
    pub(crate) fn held_by_cut_off(&self) -> Option<String> {
        let st = self.state.lock();
        let (ino, _) = publish_plan::blocker(&st)?;
        let cut_off = st.view.get(ino)?.file.as_ref()?.io.try_read()?.interrupted;
        cut_off.then(|| {
            let path = self.label_in(&st, ino);
            format!("/{path} was cut off while it was overwritten; write it again, or accept it as it is: dlio-fs sync")
        })
    }

    /// The total. With many events this takes a while, under the state lock, so callers within [`TOLD_FOR`] get the
    /// same answer. Whether there are many is checked each time, so a verdict is never late.
    pub(crate) fn pending_extent(&self, now: Duration) -> PendingExtent {
        let are_many = || {
            let st = self.state.lock();
            st.queue.len() + st.uncommitted.len() > FEW
        };
        let told = *self.counters.told.lock();
        if let Some((at, extent)) = told
            && now.saturating_sub(at) < TOLD_FOR
            && are_many()
        {
            return extent;
        }
        let extent = self.pending().extent();
        let told = Some((now, extent)).filter(|_| are_many());
        *self.counters.told.lock() = told;
        extent
    }

    /// What only the fast tier has, by node.
    pub(crate) fn pending(&self) -> PendingNodes {
        let arrivals = self.counters.notes.arrivals();
        let st = self.state.lock();
        let mut pending = PendingNodes::default();
        for event in st.queue.events() {
            pending.since(event.at);
            pending.to_copy += to_copy(event, &arrivals);
            for ino in event.change.inodes().into_iter().take(1) {
                let node = pending.node(ino, event.at);
                if let Change::Content { content, .. } = &event.change {
                    (node.content, node.bytes) = (true, content.size);
                }
            }
        }
        let uncommitted = uncommitted(&st);
        drop(st);
        for (ino, since, file) in uncommitted {
            pending.since(since);
            let size = self.size_at_once(&file).unwrap_or(0);
            pending.to_copy += size;
            let node = pending.node(ino, since);
            (node.content, node.bytes) = (true, node.bytes.max(size));
        }
        pending
    }

    /// The size of a file on the fast tier, if that is known without waiting.
    pub(crate) fn size_at_once(&self, file: &FileState) -> Option<u64> {
        let io = file.io.try_read()?;
        let object = io.object().filter(|object| object.home == crate::tiers::log::record::Home::Fast)?;
        let stat = match io.fd.clone() {
            Some(fd) => fd.stat(),
            None => self.pool.stat(object.number),
        };
        stat.ok().map(|stat| stat.size)
    }

    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending().bytes()
    }

    /// The files whose content only the fast tier has, oldest first.
    pub(crate) fn unsafe_files(&self) -> Vec<Ino> {
        self.pending().oldest_first(|node| node.content)
    }

    /// The paths whose newest state only the fast tier has, files or not, oldest first, at most `limit`.
    pub fn unsafe_paths(&self, limit: usize) -> Vec<String> {
        let nodes = self.pending().oldest_first(|_| true);
        let st = self.state.lock();
        nodes.into_iter().take(limit).map(|ino| self.label_in(&st, ino)).collect()
    }

    /// The newest event at or below `ino` that is still to be published; `None` if nothing there is pending or
    /// uncommitted.
    pub fn pending_below(&self, ino: Ino) -> Option<Lsn> {
        let st = self.state.lock();
        let below = |other: Ino| st.view.is_above(ino, other);
        let touched = st.queue.events().iter().rev().find(|event| {
            event.change.inodes().into_iter().any(below)
                || event.change.places().into_iter().any(|(dir, _)| below(*dir))
        });
        let uncommitted = st.uncommitted.files().any(below);
        if uncommitted { Some(self.log.last()) } else { touched.map(|event| event.lsn) }
    }

    /// The expected copy rate in bytes per second: the recent rate, limited by `drain_bandwidth`.
    pub(crate) fn expected_rate(&self) -> Option<f64> {
        self.limited(self.counters.rate(self.uptime()))
    }

    fn limited(&self, rate: Option<f64>) -> Option<f64> {
        match self.bandwidth_limit() {
            Some(limit) => Some(rate.unwrap_or(f64::MAX).min(limit as f64)),
            None => rate,
        }
    }

    /// The rate of the last copies, however long ago, in bytes per second, limited by `drain_bandwidth`.
    pub fn latest_rate(&self) -> Option<f64> {
        self.limited(self.counters.latest_rate())
    }

    /// Whether a checkpoint is being drained, which has precedence. While the drain is paused, none is.
    pub(crate) fn saves(&self) -> bool {
        const CHECKPOINT: u64 = 1 << 20;
        let paused = self.is_paused();
        let st = self.state.lock();
        let mut pending = st.queue.all_versions().scan(0, |sum: &mut u64, (_, content)| {
            *sum += content.size;
            Some(*sum)
        });
        st.bursts.being_written() > 0 || (!paused && pending.any(|sum| sum >= CHECKPOINT))
    }
}

/// Files with bytes that are not in an event, and since when.
pub(crate) fn uncommitted(st: &EngineState) -> Vec<(Ino, Duration, Arc<FileState>)> {
    let files = st.uncommitted.iter();
    files.filter_map(|(ino, since)| Some((ino, since, st.view.get(ino)?.file.clone()?))).collect()
}

#[derive(Default)]
pub(crate) struct PendingNodes {
    pub(crate) nodes: BTreeMap<Ino, PendingNode>,
    pub(crate) oldest: Option<Duration>,
    pub(crate) to_copy: u64,
}

pub(crate) struct PendingNode {
    pub(crate) since: Duration,
    /// Whether it is a file with content that the slow tier lacks, not just a name or attributes.
    pub(crate) content: bool,
    pub(crate) bytes: u64,
}

impl PendingNodes {
    pub(crate) fn extent(&self) -> PendingExtent {
        let files = self.nodes.values().filter(|node| node.content).count() as u64;
        PendingExtent { files, bytes: self.bytes(), oldest: self.oldest, to_copy: self.to_copy }
    }

    pub(crate) fn since(&mut self, at: Duration) {
        self.oldest = Some(self.oldest.map_or(at, |oldest| oldest.min(at)));
    }

    pub(crate) fn node(&mut self, ino: Ino, since: Duration) -> &mut PendingNode {
        self.nodes.entry(ino).or_insert(PendingNode { since, content: false, bytes: 0 })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.nodes.values().map(|node| node.bytes).sum()
    }

    pub(crate) fn oldest_first(&self, chosen: impl Fn(&PendingNode) -> bool) -> Vec<Ino> {
        let chosen = self.nodes.iter().filter(|(_, node)| chosen(node));
        let mut nodes: Vec<_> = chosen.map(|(ino, node)| (node.since, *ino)).collect();
        nodes.sort_unstable();
        nodes.into_iter().map(|(_, ino)| ino).collect()
    }
}

/// Up to this many pending events are counted anew for each caller.
const FEW: usize = 1000;

/// With more, callers within this time get the same answer.
const TOLD_FOR: Duration = Duration::from_millis(500);
