//! `evict`: letting the fast copies of clean files go, one by one.

use std::time::Instant;

use super::clean::CleanFiles;
use super::session::{Running, Session};
use super::{Control, path_of};
use crate::path::Name;
use crate::stats::render;
use crate::tiers::{Evictable, Evicted};

/// How many dirty files are named.
const DIRTY_SHOWN: usize = 1_000;

#[derive(Debug)]
struct Eviction {
    clean: CleanFiles,
    files: u64,
    bytes: u64,
    /// Files that stay: dirty, open, or changed on the slow tier.
    kept: u64,
}

/// Names what stays because it is dirty; the clean files go while the reply is read.
pub(super) fn begin(control: &Control, names: Vec<Name>) -> Result<Session, String> {
    let below = control.find(&names)?;
    let Evictable { dirty, dirty_files, .. } = control.tiers.evictable(below, DIRTY_SHOWN);
    let lines = dirty.iter().map(|path| format!("dirty: /{path} is only on the fast tier\n")).collect();
    let clean = CleanFiles::below(control, below, &names);
    Ok(Session::runs(lines, Eviction { clean, files: 0, bytes: 0, kept: dirty_files }))
}

impl Running for Eviction {
    fn go_on(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String> {
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
        Ok(Some(format!("{} evicted, {}; {} kept", self.evicted(), render::bytes(self.bytes), self.kept)))
    }
}

impl Eviction {
    fn evicted(&self) -> String {
        render::count(self.files, "file")
    }
}
