//! `sync` and `front`: getting files onto the slow tier.

use std::thread;
use std::time::Instant;

use super::asker::Asker;
use super::paths::shown;
use super::reply::{Reply, Running};
use super::sources::Control;
use super::waiting::LOOK;
use crate::fs::published::WaiterGuard;
use crate::path::Name;
use crate::stats::render;
use crate::tiers::Lsn;

/// Waiting for D2: everything up to an LSN applied to the slow tier.
#[derive(Debug)]
struct Wait {
    /// What will be safe then, for the reply.
    what: String,
    lsn: Lsn,
    /// Changes that had been set aside when the wait began.
    set_aside: u64,
    asker: Asker,
    _waiter: WaiterGuard,
}

/// D1 for everything at once, and the LSN that must be applied for D2.
pub(super) fn start(control: &Control, asker: &Asker, below: Option<Vec<Name>>) -> Result<Reply, String> {
    let waiter = WaiterGuard::new(&control.tiers);
    control.tiers.sync_fast().map_err(|error| error.to_string())?;
    let (what, lsn) = match below {
        None => ("everything".to_owned(), Some(control.tiers.last_lsn())),
        Some(names) => (shown(&names), control.tiers.pending_below(control.find(&names)?)),
    };
    Ok(match lsn {
        None => Reply::ok(format!("{what} is on the slow tier")),
        Some(lsn) => {
            let set_aside = control.tiers.status().exceptions.set_aside;
            Reply::runs(String::new(), Wait { what, lsn, set_aside, asker: asker.clone(), _waiter: waiter })
        }
    })
}

impl Running for Wait {
    fn advance(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String> {
        while control.tiers.applied_lsn() < self.lsn {
            if Instant::now() >= until {
                let why = control.safety_for(&self.asker).line();
                lines.push_str(&format!("waiting for the slow tier: {why}\n"));
                return Ok(None);
            }
            thread::park_timeout(LOOK);
        }
        let but_for = match control.tiers.status().exceptions.set_aside - self.set_aside {
            0 => String::new(),
            changes => format!(", but for {} that an operator has set aside", render::count(changes, "change")),
        };
        Ok(Some(format!("{} is on the slow tier{but_for}", self.what)))
    }
}

/// Copies a path's bytes next, and hurries everything published before it.
pub(super) fn front(control: &Control, names: Vec<Name>) -> Result<Reply, String> {
    let (ino, shown) = (control.find(&names)?, shown(&names));
    match control.on_slow(move |tiers, cx| tiers.prioritize(cx, ino)) {
        Ok(None) => Ok(Reply::ok(format!("{shown} is on the slow tier"))),
        Ok(Some(events)) => {
            let before = render::count(events.saturating_sub(1), "change");
            Ok(Reply::ok(format!("{shown} is moved to the front, with {before} published before it")))
        }
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

pub(super) fn pause(control: &Control, paused: bool) -> Reply {
    control.tiers.pause(paused);
    Reply::ok(if paused { "nothing is copied to the slow tier until it is resumed" } else { "the drain continues" })
}
