//! `deadline`: copying to the slow tier what it can within a given time, the newest checkpoint in any case.
//!
//! Nothing here waits for the slow tier: calls that do run on threads of their own, which may hang. The reply comes
//! when the time is up.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use super::reply::{Reply, Running};
use super::sources::Control;
use super::waiting::{LOOK, apart};
use crate::error::Result as Done;
use crate::fs::published::WaiterGuard;
use crate::stats::render::{bytes, count, seconds};
use crate::tiers::{Lsn, Saved, Saving, Tiers};

/// How many of the remaining paths are listed.
const LEFT_SHOWN: usize = 1_000;
/// A shorter measurement says nothing about the rate.
const MEASURE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Deadline {
    begun: Instant,
    until: Instant,
    /// The bytes that had arrived by then.
    before: u64,
    /// Receives the LSN to be applied once everything written before is durable on the fast tier.
    synced: Receiver<Done<Lsn>>,
    lsn: Option<Lsn>,
    save: Option<CheckpointSave>,
    saved: Vec<Saved>,
    /// The last checkpoint that we started to save.
    tried: Option<u64>,
    _urgent: Urgent,
    _waiter: WaiterGuard,
}

/// A checkpoint being saved; given up on when this is dropped.
#[derive(Debug)]
struct CheckpointSave {
    path: String,
    saving: Arc<Saving>,
    done: Receiver<Done<Saved>>,
}

impl Drop for CheckpointSave {
    fn drop(&mut self) {
        self.saving.cancel();
    }
}

/// While one of these exists, only the deadline counts.
#[derive(Debug)]
struct Urgent(Arc<Tiers>);

impl Urgent {
    fn new(tiers: &Arc<Tiers>) -> Self {
        tiers.set_urgent(true);
        Urgent(Arc::clone(tiers))
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.0.set_urgent(false);
    }
}

pub(super) fn start(control: &Control, time: Duration) -> Reply {
    let begun = Instant::now();
    let (urgent, waiter) = (Urgent::new(&control.tiers), WaiterGuard::new(&control.tiers));
    let synced = apart(&control.tiers, "deadline", |tiers| tiers.sync_fast().map(|()| tiers.last_lsn()));
    let deadline = Deadline {
        begun,
        until: begun.checked_add(time).unwrap_or(begun),
        before: control.tiers.arrived_bytes(),
        synced,
        lsn: None,
        save: None,
        saved: Vec::new(),
        tried: None,
        _urgent: urgent,
        _waiter: waiter,
    };
    Reply::runs(String::new(), deadline)
}

impl Running for Deadline {
    fn advance(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String> {
        let until = until.min(self.until);
        self.judge(control);
        loop {
            self.listen(lines);
            if self.lsn.is_some_and(|lsn| control.tiers.applied_lsn() >= lsn) {
                return Ok(Some("SAFE: everything written is on the slow tier".to_owned()));
            }
            let now = Instant::now();
            if now >= self.until {
                return Ok(Some(self.verdict(control, lines)));
            }
            if now >= until {
                lines.push_str(&self.progress(control));
                return Ok(None);
            }
            thread::park_timeout(LOOK);
        }
    }
}

impl Deadline {
    /// Takes the results of the threads.
    fn listen(&mut self, lines: &mut String) {
        match self.synced.try_recv() {
            Ok(Ok(lsn)) => self.lsn = Some(lsn),
            Ok(Err(error)) => lines.push_str(&format!("not durable on the fast tier: {error}\n")),
            Err(_) => {}
        }
        let Some(done) = self.save.as_ref().and_then(|save| save.done.try_recv().ok()) else { return };
        let path = self.save.take().map_or(String::new(), |save| save.path.clone());
        match done {
            Ok(saved) => self.saved.push(saved),
            Err(error) => lines.push_str(&format!("not saved: {path}: {error}\n")),
        }
    }

    /// If not everything will arrive in time, the newest complete checkpoint is saved first, again each time there is a
    /// newer one.
    fn judge(&mut self, control: &Control) {
        let safety = control.tiers.status().safety;
        // With the order held, or the slow tier down, there is nothing to measure.
        let stuck = safety.held.is_some() || safety.slow_down;
        let arrived = control.tiers.arrived_bytes().saturating_sub(self.before);
        let now = Instant::now();
        let (measured, left) = (now - self.begun, self.until.saturating_duration_since(now));
        let fit = !stuck && fits(safety.bytes, arrived, measured, left);
        control.tiers.set_fits(fit && measured >= MEASURE);
        if fit || self.save.is_some() {
            return;
        }
        let Some(unsaved) = control.tiers.newest_unsaved().filter(|one| self.tried != Some(one.number)) else { return };
        let (saving, path) = (Arc::new(Saving::default()), unsaved.path.clone());
        self.tried = Some(unsaved.number);
        let watched = Arc::clone(&saving);
        let done = apart(&control.tiers, "deadline", move |tiers| tiers.save_checkpoint(&unsaved, &watched));
        self.save = Some(CheckpointSave { path, saving, done });
    }

    fn progress(&self, control: &Control) -> String {
        let left = seconds(self.until.saturating_duration_since(Instant::now()));
        let saving = self.save.as_ref().map_or(String::new(), |save| {
            format!("; saving {} first, {} so far", save.path, bytes(save.saving.bytes()))
        });
        format!("{left} left. {}{saving}\n", control.tiers.status().line())
    }

    /// The time is up: reports what was saved, and what is left.
    fn verdict(&self, control: &Control, lines: &mut String) -> String {
        let slow = control.observer.about().slow.path;
        for Saved { place, path, files, bytes: size, published } in &self.saved {
            let (files, size) = (count(*files, "file"), bytes(*size));
            let more = match published {
                0 => String::new(),
                n => format!("; {} more of it in the tree already", count(*n, "file")),
            };
            lines.push_str(&format!("saved: {path}: {files}, {size}, below {slow}/{place}{more}\n"));
        }
        if let Some(save) = &self.save {
            lines.push_str(&format!("not saved: {}: the deadline came first\n", save.path));
        }
        let left = control.tiers.unsafe_paths(LEFT_SHOWN);
        left.iter().for_each(|path| lines.push_str(&format!("left: /{path}\n")));
        // Changes made meanwhile do not count, and only renames and similar changes may be left of those that do.
        match control.tiers.status().line() {
            line if line.starts_with("NOT SAFE") => line,
            line => format!("NOT SAFE: the deadline came first; now {line}"),
        }
    }
}

/// Whether `to_copy` bytes will arrive in the time `left`, given that `arrived` did in the time `measured`, with a
/// fifth to spare.
fn fits(to_copy: u64, arrived: u64, measured: Duration, left: Duration) -> bool {
    if to_copy == 0 || measured < MEASURE.min(left) {
        return true;
    }
    let rate = arrived as f64 / measured.as_secs_f64();
    to_copy as f64 <= rate * left.as_secs_f64() * 0.8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_told_by_what_has_arrived() {
        let s = Duration::from_secs;
        assert!(fits(80, 10, s(1), s(10)) && !fits(81, 10, s(1), s(10)), "a fifth is to spare");
        assert!(!fits(1, 0, s(1), s(100)), "nothing has arrived at all");
        assert!(fits(0, 0, s(5), s(1)));
        assert!(fits(1 << 40, 0, Duration::from_millis(10), s(100)), "nothing is known yet");
        assert!(!fits(1 << 40, 0, Duration::from_millis(10), Duration::from_millis(5)), "there is no time to measure");
    }
}
