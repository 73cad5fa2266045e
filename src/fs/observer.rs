//! What a recording says of a mount, for whoever writes one: the virtual directory, and the files that `trace` asks for.
//!
//! It keeps engine and statistics, and not the file system: files that are open in that end with the session, while the end of
//! a recording is written after it.

use std::sync::Arc;

use super::control::{path_of, safety, tier};
use super::io_paths::IoPaths;
use crate::stats::Stats;
use crate::stats::recording::{IoPath, Meta, Place};
use crate::stats::render;
use crate::tiers::disk::Space;
use crate::tiers::{Ino, Tiers};

/// See the module.
#[derive(Clone, Debug)]
pub struct Observer {
    tiers: Arc<Tiers>,
    stats: Arc<Stats>,
    io: Arc<IoPaths>,
    about: Meta,
}

impl Observer {
    /// `about`: which program and machine this is, and what the tiers are.
    pub(super) fn new(tiers: Arc<Tiers>, stats: Arc<Stats>, io: Arc<IoPaths>, about: Meta) -> Self {
        Observer { tiers, stats, io, about }
    }

    /// As of now, with all that was counted.
    pub fn meta(&self) -> Meta {
        self.stats.meta(self.about())
    }

    /// An inode's path, from the mount's root.
    pub fn path_of(&self, ino: Ino) -> Option<String> {
        path_of(&self.tiers, ino)
    }

    /// The statistics, with all calls gone through that have been answered by now.
    pub fn collected(&self) -> &Stats {
        let order = || (self.tiers.last_lsn(), self.tiers.applied_lsn());
        self.stats.collect(order, |ino| self.path_of(ino));
        &self.stats
    }

    /// What a recording says besides what was counted.
    pub(super) fn about(&self) -> Meta {
        let (status, io) = (self.tiers.status(), self.io.figures());
        let place = |of: &Place, space: &Space| {
            let render::Tier { total, used, .. } = tier(space);
            Place { total, used, ..of.clone() }
        };
        Meta {
            safety: safety(&status).line(),
            io_path: IoPath {
                name: io.name.to_owned(),
                opens: io.opens.iter().map(|(name, opens)| ((*name).to_owned(), *opens)).collect(),
                not_seen: io.not_seen.iter().map(|what| (*what).to_owned()).collect(),
            },
            fast: place(&self.about.fast, &status.fast),
            slow: place(&self.about.slow, &status.slow),
            ..self.about.clone()
        }
    }
}
