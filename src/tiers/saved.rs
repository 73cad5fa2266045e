//! The contents of `saved` on the slow tree: their size, and the removal of old ones.
//!
//! Users remove most of it themselves (`dlio-fs saved`). Files that lost a race between the members of a fleet come by
//! themselves, with each rotation of checkpoints, so the daemon removes those once they are older than `saved_age`.
//! [`adopt()`] gives files their names in the tree back.

mod adopt;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Context, Result};
use crate::path::escape;
use crate::stats::status::SavedFigures;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::split;
use crate::tiers::disk::saved::{SavedKind, below, dirs_below, open};
use crate::tiers::disk::sync::{Mutex, Rank};
use crate::tiers::disk::{Dir, Kind, Time};
use crate::tiers::{Progress, Tiers};

pub use adopt::{Adopted, adopt};

/// When a mount looks first, and how often.
const FIRST: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_secs(60 * 60);
/// In a larger fleet the members take turns: this many look within an hour.
const LOOKERS: u32 = 64;

/// A directory in `saved`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedDir {
    pub name: Vec<u8>,
    pub kind: SavedKind,
    /// Seconds since 1970: when it got its name, or its youngest entry, whichever is later.
    pub since: u64,
    pub files: u64,
    pub bytes: u64,
    changed: Time,
}

impl SavedDir {
    /// `now`: seconds since 1970.
    pub fn age(&self, now: u64) -> Duration {
        Duration::from_secs(now.saturating_sub(self.since))
    }
}

/// The sums over all of them, and when the oldest one was made.
pub(crate) fn sum(dirs: &[SavedDir]) -> (u64, u64, Option<u64>) {
    let (files, bytes) = (dirs.iter().map(|dir| dir.files).sum(), dirs.iter().map(|dir| dir.bytes).sum());
    (files, bytes, dirs.iter().map(|dir| dir.since).min())
}

/// The number of files in a directory, and their size.
fn measure(top: &Arc<dyn Dir>) -> io::Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    dirs_below(top, |dir, name| {
        files += 1;
        let stat = absent_is_none(dir.stat(name))?;
        bytes += stat.filter(|stat| stat.kind == Kind::File).map_or(0, |stat| stat.size);
        Ok(())
    })?;
    Ok((files, bytes))
}

/// The contents of `saved`, the oldest first. `known`: the result of the last look; a directory that has not changed
/// since is not read again.
pub fn saved_dirs(slow: &dyn Dir, known: &[SavedDir]) -> Result<Vec<SavedDir>> {
    let Some(saved) = open(slow)? else { return Ok(Vec::new()) };
    let known: BTreeMap<_, _> = known.iter().map(|dir| (&*dir.name, dir)).collect();
    let mut found = Vec::new();
    for entry in saved.list().at("list", ".dlio-fs/saved")?.into_iter().filter(|entry| entry.kind == Kind::Dir) {
        let what = || format!(".dlio-fs/saved/{}", escape(&entry.name));
        let Some(stat) = absent_is_none(saved.stat(&entry.name)).at("stat", what())? else { continue };
        if let Some(known) = known.get(&*entry.name).filter(|known| known.changed == stat.mtime) {
            found.push((*known).clone());
            continue;
        }
        let Some(dir) = absent_is_none(saved.dir(&entry.name)).at("open", what())? else { continue };
        let (files, bytes) = measure(&dir).at("read", what())?;
        let (kind, named) = SavedKind::of(&entry.name);
        let since = named.unwrap_or_default().max(stat.mtime.sec.max(0).unsigned_abs());
        found.push(SavedDir { name: entry.name, kind, since, files, bytes, changed: stat.mtime });
    }
    found.sort_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
    Ok(found)
}

/// Removes a directory of `saved` with all its contents. Other programs may do the same meanwhile.
pub fn remove_saved(slow: &dyn Dir, name: &[u8]) -> Result<()> {
    let what = || format!(".dlio-fs/saved/{}", escape(name));
    let remove = |saved: Arc<dyn Dir>| {
        let Some(top) = absent_is_none(saved.dir(name))? else { return Ok(()) };
        let dirs = dirs_below(&top, |dir, name| absent_is_none(dir.unlink(name)).map(drop))?;
        for path in dirs.iter().rev().filter(|path| !path.is_empty()) {
            let (above, last) = split(path);
            absent_is_none(below(&top, above).and_then(|dir| dir.rmdir(last)))?;
        }
        absent_is_none(saved.rmdir(name))?;
        saved.sync()
    };
    open(slow)?.map_or(Ok(()), |saved| remove(saved).at("remove", what()))
}

/// What the daemon knows of `saved`.
#[derive(Debug)]
pub(crate) struct SavedWatch(Mutex<SavedState>);

#[derive(Debug, Default)]
struct SavedState {
    /// When the next look is due, in uptime. `None`: not planned yet.
    due: Option<Duration>,
    /// `None`: not looked yet.
    dirs: Option<Vec<SavedDir>>,
}

impl Default for SavedWatch {
    fn default() -> SavedWatch {
        SavedWatch(Mutex::new(Rank::Leaf, SavedState::default()))
    }
}

impl Tiers {
    /// Looks at `saved` once an hour, and removes old files that lost a race. No caller waits for it: after a failure
    /// the next look tries again.
    pub fn saved_step(&self) -> Result<Progress> {
        let now = self.uptime();
        let (turns, turn) = self.order.turns(LOOKERS);
        let known = {
            let mut state = self.saved.0.lock();
            let due = *state.due.get_or_insert(now + FIRST + EVERY * turn);
            if now < due {
                return Ok(Progress::Idle);
            }
            state.due = Some(now + EVERY * turns);
            state.dirs.clone().unwrap_or_default()
        };
        match self.scan_saved(&known) {
            Ok(dirs) => self.saved.0.lock().dirs = Some(dirs),
            Err(error) => tracing::debug!(%error, "what is saved on the slow tier could not be looked at"),
        }
        Ok(Progress::Idle)
    }

    fn scan_saved(&self, known: &[SavedDir]) -> Result<Vec<SavedDir>> {
        let (slow, most) = (&*self.slow.root, self.options().saved_age);
        let now = self.now().sec.max(0).unsigned_abs();
        // A user may have changed a young one further down, which its own time does not show.
        let settled: Vec<_> = known.iter().filter(|dir| dir.age(now) > EVERY).cloned().collect();
        let mut dirs = saved_dirs(slow, &settled)?;
        let is_over = |dir: &SavedDir| dir.kind == SavedKind::Replaced && !most.is_zero() && dir.age(now) > most;
        dirs.retain(|dir| match is_over(dir).then(|| remove_saved(slow, &dir.name)) {
            None => true,
            Some(Ok(())) => {
                tracing::info!(
                    name = escape(&dir.name),
                    files = dir.files,
                    bytes = dir.bytes,
                    "removed from saved: it is older than saved_age"
                );
                false
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "a directory in saved that is older than saved_age stays");
                true
            }
        });
        Ok(dirs)
    }

    /// What was in `saved` at the last look.
    pub(crate) fn saved_figures(&self) -> Option<SavedFigures> {
        let state = self.saved.0.lock();
        let (files, bytes, oldest) = sum(state.dirs.as_ref()?);
        let now = self.now().sec.max(0).unsigned_abs();
        Some(SavedFigures { files, bytes, oldest: oldest.map(|since| Duration::from_secs(now.saturating_sub(since))) })
    }
}
