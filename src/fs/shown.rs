//! Paths as users see them: from the mount's root.

use crate::tiers::{Ino, Tiers};

/// An inode's path for messages, from the mount's root `/`.
pub(super) fn path_of(tiers: &Tiers, ino: Ino) -> Option<String> {
    tiers.path_of(ino).map(|path| format!("/{}", path.trim_start_matches('/')))
}
