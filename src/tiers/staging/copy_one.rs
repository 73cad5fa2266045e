//! Makes a staged copy of a slow file:
//!
//! 1. open and stat the slow file. If it changed a moment ago, it may change again without a new time, so it gets no
//!    copy ([`TierTime`]);
//! 2. copy its bytes to `staged/new`, holes as holes;
//! 3. stat it again; if it has changed, discard the copy;
//! 4. record on the copy which file it equals, and in which epoch it becomes durable (`copies/epochs.rs`);
//! 5. with the file's lock held, and if no program writes to it, rename the copy to the place where an open finds it.
//!
//! A crash leaves a file in `staged/new`, which the next start removes, or, after step 5, a copy that counts only if
//! its epoch was synced. Nothing else needs to be durable: without the name less is staged, and nothing is lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Errno, Error, Result};
use crate::tiers::capacity::policy::Class;
use crate::tiers::disk::errors::{is_broken, is_full};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::remove_leftover;
use crate::tiers::disk::{Access, File, Kind, Stat, Time, WHOLE};
use crate::tiers::objects::copy::{NotCopied, copy_data};
use crate::tiers::objects::file::{Bytes, FileState};
use crate::tiers::{Cx, Ino, OpenMode, Tiers};

/// Two changes within this time may leave the same times on a file: the coarsest clock of the file systems we know
/// (ext3, HFS+).
const SAME_TIME: Duration = Duration::from_secs(1);

/// The result of staging one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageOutcome {
    /// This many bytes were copied.
    Copied(u64),
    /// The fast tier already has its bytes.
    There,
    /// There is no room for this many bytes.
    NoRoom(u64),
    /// It is being written, or was changed on the slow tier a moment ago or meanwhile.
    Changing,
    /// It has several names, or is on a file system of its own inside the slow tier.
    Unfit(&'static str),
    /// The caller no longer wants it.
    Stopped,
}

/// Called between two pieces of a copy, with the bytes since the last call: `false` stops the copy. May wait.
pub(crate) type Between<'a> = dyn FnMut(u64) -> bool + 'a;

/// Whether a copy is complete or was stopped.
enum Filled {
    Whole,
    Stopped,
}

impl Tiers {
    /// Copies a slow file to the fast tier, where it is read from then on. Waits for the slow tier.
    pub fn stage_file(&self, cx: &Cx, ino: Ino, between: &mut Between<'_>) -> Result<StageOutcome> {
        cx.slow()?;
        let state = {
            let mut st = self.state.lock();
            let node = st.view.get_mut(ino).ok_or(Errno::ESTALE)?;
            if node.kind != Kind::File {
                return Ok(StageOutcome::Unfit("it is not a regular file"));
            }
            if node.meta().nlink > 1 {
                return Ok(StageOutcome::Unfit("it has several names"));
            }
            // As for an open file: the node stays, and does not count as one of a pending event.
            node.pins += 1;
            let state = st.file(ino).ok_or(Errno::ESTALE)?;
            self.count_open(&state);
            state
        };
        let held = self.hold_open(state, OpenMode::default());
        let staged = self.stage_held(cx, &held.state, between);
        self.release(cx, held);
        staged
    }

    fn stage_held(&self, cx: &Cx, state: &Arc<FileState>, between: &mut Between<'_>) -> Result<StageOutcome> {
        let ino = state.ino;
        if state.io.read().object().is_some() {
            return Ok(StageOutcome::There);
        }
        let source = self.open_slow(cx, ino, Access::Unnoticed)?; // 1
        let before = source.stat().at("stat on slow", self.label(ino))?;
        let Some(number) = self.copy_number(ino).filter(|number| *number == before.ino) else {
            return Ok(StageOutcome::Unfit("it is on another file system inside the slow tier"));
        };
        let fingerprint = Fingerprint::of(&before);
        let found = self.copies.find(number).at_fast("open", "a staged copy")?;
        if found.is_some_and(|copy| copy.fingerprint == fingerprint) {
            return Ok(StageOutcome::There);
        }
        if self.is_recent(&before, &fingerprint) {
            return Ok(StageOutcome::Changing);
        }
        let expected = self.state.lock().forecast.expected();
        let (_counted, others) = self.copies.count(before.size);
        if !self.limits().admits(&self.usage()?.with(Class::Data, others), expected, before.size) {
            return Ok(StageOutcome::NoRoom(before.size));
        }
        let (name, copy) = self.copies.begin().at_fast("create", "a staged copy")?;
        let staged = self.fill_copy(state, (&*source, &before), &*copy, between).and_then(|filled| match filled {
            Filled::Stopped => Ok(StageOutcome::Stopped),
            Filled::Whole => self.finish_copy(state, (&*source, &fingerprint), (&name, &*copy)),
        });
        source.forget_cached(WHOLE);
        match staged {
            Ok(StageOutcome::Copied(bytes)) => {
                self.counters.staged(bytes);
                return staged;
            }
            Err(Error::Io { source: ref error, .. }) if is_full(error) => {
                self.copies.discard(&name);
                return Ok(StageOutcome::NoRoom(before.size));
            }
            _ => {}
        }
        self.copies.discard(&name);
        staged
    }

    /// Step 2.
    fn fill_copy(
        &self,
        state: &FileState,
        (source, stat): (&dyn File, &Stat),
        copy: &dyn File,
        between: &mut Between<'_>,
    ) -> Result<Filled> {
        let mut stopped = false;
        let mut watch = |_: u64, bytes: &[u8]| {
            stopped = !between(bytes.len() as u64);
            if stopped { Err(Errno::EINTR.into()) } else { Ok(()) }
        };
        let copied = copy_data(source, copy, 0..stat.size, &mut watch);
        if matches!(&copied, Err(NotCopied::Written(why)) if is_broken(why)) {
            self.fast_has_failed();
        }
        let copied = copied.map_err(std::io::Error::from).and_then(|()| copy.set_len(stat.size));
        if stopped {
            return Ok(Filled::Stopped);
        }
        copied.at("stage", self.label(state.ino))?;
        Ok(Filled::Whole)
    }

    /// Steps 3 to 5.
    fn finish_copy(
        &self,
        state: &Arc<FileState>,
        (source, fingerprint): (&dyn File, &Fingerprint),
        (name, copy): (&[u8], &dyn File),
    ) -> Result<StageOutcome> {
        let ino = state.ino;
        let after = source.stat().at("stat on slow", self.label(ino))?; // 3
        if Fingerprint::of(&after) != *fingerprint {
            return Ok(StageOutcome::Changing);
        }
        let Some(path) = self.path(ino) else { return Ok(StageOutcome::Changing) };
        let epoch = self.copies.label(copy, fingerprint, &path, self.uptime())?; // 4
        let mut io = state.io.write();
        let writers = state.writers.load(Ordering::Acquire) > 0;
        // A writer would open the new copy by name, while the kernel keeps using the former one.
        let is_kept = io.copy.is_some() && state.is_pinned();
        if io.place != Bytes::Slow || writers || is_kept || self.copy_number(ino) != Some(fingerprint.file.ino) {
            return Ok(StageOutcome::Changing);
        }
        let finished = self.copies.finish(name, fingerprint, epoch, self.uptime()).at_fast("stage", self.label(ino))?; // 5
        if !finished {
            return Ok(StageOutcome::Changing);
        }
        // Handles on the former copy continue in this one.
        io.copy = None;
        Ok(StageOutcome::Copied(fingerprint.size))
    }
}

/// Decides whether a slow file was changed a moment ago. The tier's times are never compared with our clock, which may
/// differ from its server's by minutes: they are compared with a time that the tier itself gave recently, or a file is
/// checked twice with a pause by our clock between.
#[derive(Debug, Default)]
pub(crate) struct TierTime {
    /// The tier's time, and our uptime when it was received.
    told: Option<(Time, Duration)>,
    /// Files that may have been changed a moment ago, by number: their fingerprint, and our uptime when it was first
    /// seen.
    looks: HashMap<u64, (Fingerprint, Duration)>,
}

/// The tier is asked for its time again after this: its clock may have been set.
const TOLD_FOR: Duration = Duration::from_secs(60);
/// Some hundred bytes each.
const LOOKS_KEPT: usize = 1 << 14;

impl TierTime {
    /// Whether `ctime` is past, given that the tier's clock has advanced at least as far as ours since.
    fn is_past(&self, ctime: Time, now: Duration) -> bool {
        let Some((told, at)) = self.told else { return false };
        let there = told.sec + now.saturating_sub(at).as_secs() as i64;
        there - ctime.sec > SAME_TIME.as_secs() as i64
    }

    fn is_told(&self, now: Duration) -> bool {
        self.told.is_some_and(|(_, at)| now.saturating_sub(at) < TOLD_FOR)
    }

    /// Whether the file has been unchanged for long enough by our clock; the first check only starts the wait.
    fn has_rested(&mut self, fingerprint: &Fingerprint, now: Duration) -> bool {
        let since =
            self.looks.get(&fingerprint.file.ino).filter(|(before, _)| before == fingerprint).map(|(_, since)| *since);
        let rested = since.is_some_and(|since| now.saturating_sub(since) > SAME_TIME);
        if rested {
            self.looks.remove(&fingerprint.file.ino);
        } else if since.is_none() {
            if self.looks.len() >= LOOKS_KEPT {
                self.looks.clear();
            }
            self.looks.insert(fingerprint.file.ino, (*fingerprint, now));
        }
        rested
    }
}

impl Tiers {
    /// Whether the file was changed so recently that it may change again unnoticed. Waits for the slow tier.
    fn is_recent(&self, stat: &Stat, fingerprint: &Fingerprint) -> bool {
        let now = self.uptime();
        if !self.staging.time.lock().is_told(now) {
            // Without an answer all files are checked twice.
            let told = self.tier_time(stat.dev).map(|time| (time, self.uptime()));
            self.staging.time.lock().told = told;
        }
        let mut time = self.staging.time.lock();
        !time.is_past(stat.ctime, now) && !time.has_rested(fingerprint, now)
    }

    /// The slow tier's time, from a file made there. `None` if none can be made, or `tmp` is on another device.
    fn tier_time(&self, dev: u64) -> Option<Time> {
        let name = format!("t{:x}", self.staging.times.fetch_add(1, Ordering::Relaxed)).into_bytes();
        let tmp = &*self.slow.tmp;
        let made = tmp.create(&name, 0o600).and_then(|file| file.stat());
        remove_leftover(tmp, &name).ok()?;
        made.ok().filter(|stat| stat.dev == dev).map(|stat| stat.ctime)
    }
}
