//! `pin`, `unpin` and `pins`: what stays on the fast tier.

use super::Control;
use super::session::{Session, joined, shown};
use crate::path::Name;

/// Nothing needs to be there yet.
pub(super) fn pin(control: &Control, names: &[Name]) -> Result<Session, String> {
    match control.tiers.pin_path(&joined(names)) {
        Ok(true) => Ok(Session::ok(format!("{} is pinned", shown(names)))),
        Ok(false) => Ok(Session::ok(format!("{} was pinned already", shown(names)))),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn unpin(control: &Control, names: &[Name]) -> Result<Session, String> {
    match control.tiers.unpin_path(&joined(names)) {
        Ok(true) => Ok(Session::ok(format!("{} is not pinned any more", shown(names)))),
        Ok(false) => Err(format!("{} is not pinned; pins lists what is", shown(names))),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn list(control: &Control) -> Session {
    let paths = control.tiers.pinned_paths().into_iter().map(|path| format!("/{path}\n"));
    let patterns = control.tiers.pinned_patterns().into_iter().map(|pattern| format!("rule: {pattern}\n"));
    Session::text(paths.chain(patterns).collect::<String>())
}
