//! The clean files at or below a path, and the staged ones, for commands that take them one by one.

use std::time::Instant;

use super::asker::Asker;
use super::paths::joined;
use super::sources::Control;
use crate::error::Result;
use crate::path::Name;
use crate::stats::render;
use crate::tiers::{Ino, Progress};

/// How many objects are resolved to their files in one turn.
const MET_AT_ONCE: usize = 16;

#[derive(Debug)]
pub(super) struct CleanFiles {
    /// At or below this, as an inode and as a path.
    below: (Ino, Vec<u8>),
    /// Only files that belong to this user.
    asker: Asker,
    /// Objects left by the previous mount, whose files have not been looked up since; they are looked up first.
    unmet: Vec<u64>,
    /// In reverse order; filled in once all of `unmet` are looked up.
    left: Option<Vec<Ino>>,
}

impl CleanFiles {
    pub(super) fn below(control: &Control, asker: &Asker, ino: Ino, names: &[Name]) -> Self {
        CleanFiles { below: (ino, joined(names)), asker: asker.clone(), unmet: control.tiers.unmet(), left: None }
    }

    /// Continues the search, until `until` at the latest. Returns whether it is complete; if not, a line says what the
    /// command, which is `doing` this, waits for.
    pub(super) fn find(
        &mut self,
        control: &Control,
        doing: &str,
        until: Instant,
        lines: &mut String,
    ) -> Result<bool, String> {
        while !self.unmet.is_empty() {
            let some = self.unmet.split_off(self.unmet.len().saturating_sub(MET_AT_ONCE));
            let path = self.below.1.clone();
            control
                .on_slow(move |tiers, _| tiers.meet(&some, &path))
                .map_err(|error| format!("looking up the files of the mount before: {error}"))?;
            if Instant::now() >= until {
                let left = render::count(self.unmet.len() as u64, "object");
                lines.push_str(&format!("{doing}: {left} of the mount before to look up\n"));
                return Ok(false);
            }
        }
        self.left.get_or_insert_with(|| {
            let mut clean = control.tiers.evictable(self.below.0, 0).clean;
            clean.retain(|ino| control.is_theirs(&self.asker, *ino));
            clean.reverse();
            clean
        });
        Ok(true)
    }

    /// The next file found.
    pub(super) fn next(&mut self) -> Option<Ino> {
        self.left.as_mut()?.pop()
    }

    pub(super) fn to_go(&self) -> usize {
        self.left.as_ref().map_or(0, Vec::len)
    }
}

/// The staged copies of files at or below a path.
#[derive(Debug)]
pub(super) struct StagedFiles {
    below: Vec<u8>,
    /// Only files that belong to this user.
    asker: Asker,
    /// Filled in once the copies of the previous mount are known.
    left: Option<Vec<u64>>,
}

impl StagedFiles {
    pub(super) fn below(asker: &Asker, names: &[Name]) -> Self {
        StagedFiles { below: joined(names), asker: asker.clone(), left: None }
    }

    /// Continues the search, until `until` at the latest. Returns whether it is complete.
    pub(super) fn find(&mut self, control: &Control, until: Instant) -> Result<bool> {
        while self.left.is_none() {
            if control.tiers.find_copies_step()? == Progress::Idle {
                self.left = Some(control.tiers.copies());
            } else if Instant::now() >= until {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next of all copies; [`StagedFiles::has`] says whether it was requested.
    pub(super) fn next(&mut self) -> Option<u64> {
        self.left.as_mut()?.pop()
    }

    pub(super) fn has(&self, control: &Control, number: u64) -> bool {
        control.tiers.is_copy_below(number, &self.below) && self.is_theirs(control, number)
    }

    fn is_theirs(&self, control: &Control, number: u64) -> bool {
        let Some(uid) = self.asker.limited() else { return true };
        let Some(path) = control.tiers.copy_path(number) else { return false };
        control.on_slow(move |tiers, cx| tiers.owner_at(cx, &path)).is_ok_and(|owner| owner == uid)
    }

    pub(super) fn to_go(&self) -> usize {
        self.left.as_ref().map_or(0, Vec::len)
    }
}
