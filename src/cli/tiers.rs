//! The tiers that a command reads without a mount.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::outcome::{Failure, complain, unusable};
use crate::error::{Context, Error};
use crate::mount::{self, HeldDir, PRIVATE_DIR, TrustedTier};
use crate::path::Show as _;
use crate::tiers::FleetReader;
use crate::tiers::disk::Dir;
use crate::tiers::disk::os::{OsClock, OsDir};

pub(super) const SLOW: TrustedTier = TrustedTier::Slow { writable: true };

/// Opens a tier's root, or a directory that has one, which `argument` names.
pub(super) fn open(argument: &str, path: &Path) -> Result<HeldDir, Failure> {
    HeldDir::open(path).map_err(|e| unusable(argument, path, &e, "name an existing directory"))
}

pub(super) fn open_fast(path: &Path) -> Result<HeldDir, Failure> {
    const REMEDY: &str = "name the directory that was given as --fast to dlio-fs mount";
    let fast = HeldDir::open(path).map_err(|e| unusable("FAST", path, &e, REMEDY))?;
    match fast.at(PRIVATE_DIR).metadata() {
        Ok(found) if found.is_dir() => Ok(fast),
        // A tier that this user may not look into is none that is missing.
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(unusable("FAST", &path.join(PRIVATE_DIR), &e, "run this as the user who mounted it, or as root"))
        }
        _ => {
            let why = format!("it is not a fast tier of dlio-fs: it has no {PRIVATE_DIR}");
            Err(unusable("FAST", path, &why, REMEDY))
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
    Ok(Arc::new(opened(tier)?.with_births()))
}

/// Of a fleet on this slow tier.
pub(super) fn fleet_reader(slow: &HeldDir, fleet: &str) -> Result<FleetReader, Error> {
    FleetReader::open(&*dir(slow)?, fleet, Arc::new(OsClock))
}

fn opened(tier: &HeldDir) -> Result<OsDir, Error> {
    OsDir::open(&tier.by_descriptor()).at("open", tier.path().shown())
}
