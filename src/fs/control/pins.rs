//! `pin`, `unpin` and `pins`: what stays on the fast tier.

use super::asker::Asker;
use super::paths::{joined, shown};
use super::reply::Reply;
use super::sources::Control;
use crate::path::Name;
use crate::tiers::disk::Kind;

/// The path need not exist yet.
pub(super) fn pin(control: &Control, asker: &Asker, names: &[Name]) -> Result<Reply, String> {
    let pinned = match asker.limited() {
        None => control.tiers.pin_path(&joined(names)),
        Some(uid) => pin_for(control, asker, uid, names)?,
    };
    match pinned {
        Ok(true) => Ok(Reply::ok(format!("{} is pinned", shown(names)))),
        Ok(false) => Ok(Reply::ok(format!("{} is already pinned", shown(names)))),
        Err(error) => Err(error.to_string()),
    }
}

/// Pins a file of the user's own. Not a directory: files that appear below it later are not counted against the limit.
fn pin_for(control: &Control, asker: &Asker, uid: u32, names: &[Name]) -> Result<crate::error::Result<bool>, String> {
    let attr = control.reached(asker, names)?;
    match attr.kind {
        Kind::File => Ok(control.tiers.pin_file_for(uid, &joined(names), attr.size)),
        _ => Err(format!("{}: only root and the mount's owner may pin a directory", shown(names))),
    }
}

pub(super) fn unpin(control: &Control, names: &[Name]) -> Result<Reply, String> {
    match control.tiers.unpin_path(&joined(names)) {
        Ok(true) => Ok(Reply::ok(format!("{} is no longer pinned", shown(names)))),
        Ok(false) => Err(format!("{} is not pinned; pins lists the pinned paths", shown(names))),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn list(control: &Control, asker: &Asker) -> Reply {
    let paths = control.tiers.pinned_paths(asker.limited()).into_iter().map(|path| format!("/{path}\n"));
    let patterns = control.tiers.pinned_patterns().into_iter().map(|pattern| format!("rule: {pattern}\n"));
    Reply::text(paths.chain(patterns).collect::<String>())
}
