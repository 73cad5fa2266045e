//! The engine's state as people are shown it: paths from the mount's root, and its status in the terms of the
//! statistics.

use crate::stats::render;
use crate::tiers::disk::Space;
use crate::tiers::{Abilities, Ino, Status, Tiers};

/// An inode's path for people, from the mount's root `/`.
pub(super) fn path_of(tiers: &Tiers, ino: Ino) -> Option<String> {
    tiers.path_of(ino).map(|path| format!("/{}", path.trim_start_matches('/')))
}

pub(super) fn safety(status: &Status) -> render::Safety {
    render::Safety {
        safe: status.unsafe_files == 0 && status.pending_events == 0 && status.interrupted == 0,
        files: status.unsafe_files,
        bytes: status.unsafe_bytes,
        events: status.pending_events,
        oldest: status.oldest,
        eta: status.eta,
        held: status.held.clone(),
        waits_until: status.waits_until.clone(),
        slow_down: status.slow_down,
        fast_fails: status.fast_fails,
        refusing: status.refusing,
        interrupted: status.interrupted,
        aside: status.aside,
        aside_bytes: status.aside_bytes,
    }
}

pub(super) fn abilities(found: &Abilities) -> render::SlowAbilities {
    render::SlowAbilities {
        user_xattrs: found.user_xattrs,
        acls: found.acls,
        owners: found.owners,
        groups: found.groups,
        modes: found.modes,
        symlinks: found.symlinks,
        symlink_attrs: found.link_attrs,
        fifos: found.fifos,
        hard_links: found.hard_links,
        lasting_inode_numbers: found.lasting_numbers,
        any_names: found.any_names,
        rename_exchange: found.exchange,
        rename_noreplace: found.no_replace,
        time_grain: found.time_grain,
    }
}

pub(super) fn tier(space: &Space) -> render::TierSpace {
    render::TierSpace { total: space.capacity(), used: space.used(), available: space.avail }
}
