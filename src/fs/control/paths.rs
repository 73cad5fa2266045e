//! The paths in commands: as the engine takes them, as they are shown, and how they are resolved.

use super::sources::Control;
use crate::error::{Errno, Result};
use crate::path::Name;
use crate::tiers::{Attr, Cx, Ino, ROOT, Tiers};

impl Control {
    /// The file or directory that a command names. The error is the text of the reply.
    pub(super) fn find(&self, names: &[Name]) -> Result<Ino, String> {
        let walked = names.to_vec();
        self.on_slow(move |tiers, cx| find(tiers, cx, &walked)).map_err(|error| format!("{}: {error}", shown(names)))
    }
}

/// A path as the engine takes it.
pub(super) fn joined(names: &[Name]) -> Vec<u8> {
    names.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/')
}

/// A path for the reply.
pub(super) fn shown(names: &[Name]) -> String {
    format!("/{}", names.iter().map(Name::to_string).collect::<Vec<_>>().join("/"))
}

/// Walks from the root. Each step's reference is given back as soon as the next is held, and so is the last one's: the
/// caller may find the inode gone, because the engine forgets a number without a reference.
fn find(tiers: &Tiers, cx: &Cx, names: &[Name]) -> Result<Ino> {
    Ok(walk(tiers, cx, names, |_| true)?.pop().map_or(ROOT, |last| last.ino))
}

/// Like `find`, but returns the attributes of each step but the root. EACCES behind a directory that may not be
/// traversed.
pub(super) fn walk(tiers: &Tiers, cx: &Cx, names: &[Name], may_pass: impl Fn(&Attr) -> bool) -> Result<Vec<Attr>> {
    let mut held = Reference { tiers, ino: ROOT, counted: false };
    let mut steps: Vec<Attr> = Vec::with_capacity(names.len());
    for name in names {
        if steps.last().is_some_and(|above| !may_pass(above)) {
            return Err(Errno::EACCES.into());
        }
        let attr = tiers.find(cx, held.ino, name)?;
        held = Reference { tiers, ino: attr.ino, counted: true };
        steps.push(attr);
    }
    Ok(steps)
}

/// An inode that is held for a moment.
struct Reference<'a> {
    tiers: &'a Tiers,
    ino: Ino,
    counted: bool,
}

impl Drop for Reference<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.tiers.forget(self.ino, 1);
        }
    }
}
