//! The tiers that a command reads without a mount.

use std::path::Path;
use std::sync::Arc;

use super::outcome::{Failure, complain};
use crate::error::{Context, Error};
use crate::mount::{self, HeldDir, PRIVATE_DIR, TrustedTier};
use crate::path::Show as _;
use crate::tiers::disk::Dir;
use crate::tiers::disk::os::OsDir;

pub(super) const SLOW: TrustedTier = TrustedTier::Slow { writable: true };

/// Opens a tier's root, or a directory that has one.
pub(super) fn open(path: &Path) -> Result<HeldDir, Failure> {
    HeldDir::open(path).at("open", path.shown()).map_err(Failure::usage)
}

pub(super) fn open_fast(path: &Path) -> Result<HeldDir, Failure> {
    match HeldDir::open(path) {
        Ok(fast) if fast.at(PRIVATE_DIR).is_dir() => Ok(fast),
        _ => {
            let what = format!("{} is not a fast tier of dlio-fs: it has no {PRIVATE_DIR}", path.shown());
            Err(Failure::usage(Error::refused(what, "name the directory that was given as --fast")))
        }
    }
}

/// Checks the tiers. Root goes on as the owner of the first one.
pub(super) fn enter(tiers: &[(TrustedTier, &HeldDir)]) -> Result<(), Failure> {
    if let (Some(user), Some((_, first))) = (mount::enter(tiers).map_err(Failure::usage)?, tiers.first()) {
        let first = first.path().shown();
        complain(format_args!(
            "note: {first} is a tier of user {user}; this goes on with the rights of that user only"
        ));
    }
    Ok(())
}

pub(super) fn dir(tier: &HeldDir) -> Result<Arc<dyn Dir>, Error> {
    Ok(Arc::new(opened(tier)?))
}

/// The slow tier for a command that changes what is there: it tells apart the files that have had one inode number.
pub(super) fn slow_dir(tier: &HeldDir) -> Result<Arc<dyn Dir>, Error> {
    Ok(Arc::new(opened(tier)?.telling_births()))
}

fn opened(tier: &HeldDir) -> Result<OsDir, Error> {
    OsDir::open(&tier.by_descriptor()).at("open", tier.path().shown())
}
