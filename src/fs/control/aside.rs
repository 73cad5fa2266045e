//! `set-aside`: taking changes that the slow tier refuses for good out of the order.
//!
//! It may first have to copy much to the slow tier, on a thread of its own; closing `control` ends that.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::Instant;

use super::command::AsideHow;
use super::paths::{joined, shown};
use super::reply::{Reply, Running};
use super::sources::Control;
use super::waiting::{LOOK, apart};
use crate::error::Result as Done;
use crate::path::Name;
use crate::stats::render::{bytes, count};
use crate::tiers::{Cx, Saving, SetAside};

#[derive(Debug)]
struct Setting {
    path: String,
    saving: Arc<Saving>,
    done: Receiver<Done<SetAside>>,
}

impl Drop for Setting {
    fn drop(&mut self) {
        self.saving.cancel();
    }
}

pub(super) fn start(control: &Control, names: &[Name], how: AsideHow) -> Result<Reply, String> {
    let (path, below) = (shown(names), joined(names));
    if how == AsideHow::DryRun {
        let found = control.on_slow(move |tiers, cx| tiers.would_set_aside(cx, &below));
        let would = found.map_err(|error| error.to_string())?;
        return Ok(Reply::text(format!("{}ok: {path}: {}\n", list(&would, None), describe(&would, true))));
    }
    let saving = Arc::new(Saving::default());
    let watched = Arc::clone(&saving);
    let done = apart(&control.tiers, "set-aside", move |tiers| {
        tiers.set_aside(&Cx::internal(), &below, how == AsideHow::Copy, &watched)
    });
    Ok(Reply::runs(String::new(), Setting { path, saving, done }))
}

impl Running for Setting {
    fn advance(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String> {
        loop {
            match self.done.try_recv() {
                Ok(Ok(done)) => {
                    let slow = control.observer.about().slow.path;
                    lines.push_str(&list(&done, Some(&slow.to_string())));
                    let copy = if done.saved.is_some() || done.fast_only.is_empty() { "" } else { ", DISCARDED" };
                    return Ok(Some(format!("{}: {}{copy}", self.path, describe(&done, false))));
                }
                Ok(Err(error)) => return Err(explained(&error)),
                Err(TryRecvError::Disconnected) => return Err("no thread could be started for it".to_owned()),
                Err(TryRecvError::Empty) => {}
            }
            if Instant::now() >= until {
                lines.push_str(&format!("saving: {} so far\n", bytes(self.saving.bytes())));
                return Ok(None);
            }
            thread::park_timeout(LOOK);
        }
    }
}

/// Explains the case where the slow tier refuses the copy, too.
fn explained(error: &crate::error::Error) -> String {
    match error {
        crate::error::Error::Io { on_fast: false, .. } => {
            format!(
                "{error}; nothing is set aside. If the slow tier does not take the copies either, copy the files from the \
                 mount to another place, then use --discard"
            )
        }
        other => format!("{other}; nothing is set aside"),
    }
}

/// One line for each node. `slow`: where the slow tier is.
fn list(done: &SetAside, slow: Option<&str>) -> String {
    let fast_only = done.fast_only.iter().map(|path| format!("fast only: /{path}\n"));
    let returned = done.returned.iter().map(|path| format!("returned: /{path}\n"));
    let saved = done.saved.iter().zip(slow).map(|(place, slow)| format!("saved: {slow}/{place}\n"));
    fast_only.chain(returned).chain(saved).collect()
}

/// `would`: a dry run, in which nothing is done.
fn describe(done: &SetAside, would: bool) -> String {
    let changes = count(done.events, "change");
    let had = match done.fast_only.len() {
        0 => String::new(),
        names => format!("; only on the fast tier: {}, {}", count(names as u64, "name"), bytes(done.bytes)),
    };
    match (would, done.events) {
        (true, _) => format!("{changes} would leave the order{had}"),
        (false, 1) => format!("{changes} has left the order{had}"),
        (false, _) => format!("{changes} have left the order{had}"),
    }
}
