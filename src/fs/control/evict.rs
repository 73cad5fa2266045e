//! `evict`: dropping the fast copies of clean files, one by one.

use std::time::Instant;

use super::asker::Asker;
use super::clean::{CleanFiles, StagedFiles};
use super::reply::{Reply, Running};
use super::sources::Control;
use crate::error::Result;
use crate::fs::shown::path_of;
use crate::path::Name;
use crate::stats::render;
use crate::tiers::{Evictable, Evicted};

/// How many dirty files are listed.
const DIRTY_SHOWN: usize = 1_000;

#[derive(Debug)]
struct Eviction {
    clean: CleanFiles,
    staged: StagedFiles,
    files: u64,
    bytes: u64,
    /// Files that stay: dirty, open, or changed on the slow tier.
    kept: u64,
}

/// Lists what stays because it is dirty; the clean files are evicted while the reply is read.
pub(super) fn start(control: &Control, asker: &Asker, names: Vec<Name>) -> Result<Reply, String> {
    let below = control.find(&names)?;
    let Evictable { dirty, dirty_files, .. } = control.tiers.evictable(below, DIRTY_SHOWN);
    let shown = dirty.iter().filter(|(ino, _)| control.is_theirs(asker, *ino));
    let lines = shown.map(|(_, path)| format!("dirty: /{path} is only on the fast tier\n")).collect();
    let clean = CleanFiles::below(control, asker, below, &names);
    let staged = StagedFiles::below(asker, &names);
    let eviction = Eviction { clean, staged, files: 0, bytes: 0, kept: dirty_files };
    Ok(Reply::runs(lines, eviction))
}

impl Running for Eviction {
    fn advance(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String> {
        if !self.clean.find(control, "evicting", until, lines)? {
            return Ok(None);
        }
        while let Some(ino) = self.clean.next() {
            let path = || path_of(&control.tiers, ino).unwrap_or_else(|| format!("removed file {ino}"));
            match control.on_slow(move |tiers, cx| tiers.evict_now(cx, ino)) {
                Ok(Evicted::Gone(bytes)) => {
                    self.files += 1;
                    self.bytes += bytes;
                }
                Ok(Evicted::NotClean) => {}
                Ok(Evicted::Open) => {
                    self.kept += 1;
                    lines.push_str(&format!("kept: {} is open\n", path()));
                }
                Ok(Evicted::Pinned) => {
                    self.kept += 1;
                    lines.push_str(&format!("kept: {} is pinned\n", path()));
                }
                Ok(Evicted::Changed) => {
                    self.kept += 1;
                    lines.push_str(&format!("kept: {} was changed on the slow tier by somebody else\n", path()));
                }
                Err(error) => return Err(format!("{}: {error}; {} evicted", path(), self.evicted())),
            }
            if Instant::now() >= until {
                lines.push_str(&format!("evicting: {}, {} to go\n", self.evicted(), self.clean.to_go()));
                return Ok(None);
            }
        }
        if !self.evict_copies(control, until).map_err(|error| format!("{error}; {} evicted", self.evicted()))? {
            lines.push_str(&format!("evicting: {}\n", self.evicted()));
            return Ok(None);
        }
        Ok(Some(format!("{} evicted, {}; {} kept", self.evicted(), render::bytes(self.bytes), self.kept)))
    }
}

impl Eviction {
    /// Returns `false` if there is more.
    fn evict_copies(&mut self, control: &Control, until: Instant) -> Result<bool> {
        if !self.staged.find(control, until)? {
            return Ok(false);
        }
        while let Some(number) = self.staged.next() {
            if self.staged.has(control, number)
                && let Some(bytes) = control.tiers.evict_unpinned_copy(number)?
            {
                self.files += 1;
                self.bytes += bytes;
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn evicted(&self) -> String {
        render::count(self.files, "file")
    }
}
