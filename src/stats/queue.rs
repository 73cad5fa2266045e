//! The changes on their way to the slow tier, as `.dlio/queue` shows them. Pure: filled by the engine, a string out.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::render::{bytes, count, one_line, seconds};
use super::status::HeldUser;
use crate::json;
use crate::path::readable;

/// The pending events in the order in which they will be published. Durations are in seconds, sizes in bytes; the JSON
/// keys are the field names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Queue {
    /// The number of pending events; `pending` may list fewer.
    pub events: u64,
    /// Bytes of all contents not copied yet.
    pub bytes_to_copy: u64,
    /// Why publishing stands still, with the remedy.
    pub held: Option<String>,
    /// The users whose changes are held while those of others go on.
    #[serde(default)]
    pub held_users: Vec<HeldUser>,
    pub pending: Vec<PendingEvent>,
    /// Conflicts since the mount was made; `conflicts_shown` has the last ones, by name.
    pub conflicts: u64,
    pub conflicts_shown: Vec<String>,
    /// Files whose writer was cut off by a crash: they wait for somebody to decide. The first ones, by name.
    #[serde(with = "json::paths")]
    pub cut_off_shown: Vec<String>,
    /// Files that somebody is writing, which have no place in the order yet. The first ones, by name.
    #[serde(with = "json::paths")]
    pub writing_shown: Vec<String>,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct PendingEvent {
    pub lsn: u64,
    /// `content`, `make`, `link`, `rename`, `exchange`, `remove` or `attributes`.
    pub change: String,
    /// From the mount's root, escaped.
    #[serde(flatten, with = "json::path")]
    pub path: String,
    /// The other name of a link, rename or exchange.
    #[serde(flatten, with = "json::to")]
    pub to: Option<String>,
    /// The size of a content.
    pub size: Option<u64>,
    pub state: EventState,
    /// Bytes that have arrived, while it is being copied.
    pub done: Option<u64>,
    /// Why it is held, with the remedy.
    pub reason: Option<String>,
    #[serde(with = "json::seconds")]
    pub age: Duration,
    /// Failed attempts to copy or publish it.
    pub tries: u32,
    /// Time until it is published; `None` if unknown.
    #[serde(with = "json::optional_seconds")]
    pub eta: Option<Duration>,
}

/// How far an event has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum EventState {
    /// It failed, and is retried; everything after it waits.
    Held,
    /// Waits for its file to be left alone for `settle`.
    Settling,
    /// Its bytes are being made durable on fast.
    Sealing,
    /// Waits for its turn.
    #[default]
    Waiting,
    /// Its bytes are on their way.
    Copying,
    /// Its bytes are there, under a private name; it is published when its turn comes.
    Copied,
    /// The file was rewritten in place before its bytes were copied: the newer version stands in for it.
    Replaced,
}

/// With all that can be done about it.
const CUT_OFF: &str =
    "cut off by a crash: write it again, delete it, or accept it: `dlio-fs sync` publishes it as the mount shows it";

impl Queue {
    /// The text of `.dlio/queue`. Ends with a newline.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        self.lines(&mut out).expect("formatting into memory");
        out
    }

    /// The same as JSON, one object. Ends with a newline.
    pub fn json(&self) -> String {
        json::document(self)
    }

    fn lines(&self, out: &mut String) -> std::fmt::Result {
        match self.events {
            0 if self.writing_shown.is_empty() && self.cut_off_shown.is_empty() => writeln!(out, "nothing is pending")?,
            0 => {}
            n => writeln!(
                out,
                "{} pending, {} to copy; published in this order",
                count(n, "change"),
                bytes(self.bytes_to_copy)
            )?,
        }
        if let Some(why) = &self.held {
            writeln!(out, "HELD: {}", one_line(why))?;
        }
        let is_told = |held: &&HeldUser| self.held.as_deref() == Some(&*held.line());
        let others = self.held_users.iter().filter(|held| !is_told(held));
        others.into_iter().try_for_each(|held| writeln!(out, "held: {}", held.line_since()))?;
        if !self.pending.is_empty() {
            writeln!(
                out,
                "\n{:>10}  {:<12}{:>10}{:>9}{:>7}{:>9}  change",
                "no", "state", "size", "age", "tries", "ETA"
            )?;
            self.pending.iter().try_for_each(|pending| pending.line(out))?;
        }
        let more = self.events.saturating_sub(self.pending.len() as u64);
        if more > 0 {
            writeln!(out, "{more} more follow")?;
        }
        if !self.cut_off_shown.is_empty() {
            writeln!(out, "{}", CUT_OFF)?;
            self.cut_off_shown.iter().try_for_each(|path| writeln!(out, "  {}", readable(path)))?;
        }
        if !self.writing_shown.is_empty() {
            writeln!(out, "being written: on its way once it is closed, or has been open for live_after")?;
            self.writing_shown.iter().try_for_each(|path| writeln!(out, "  {}", readable(path)))?;
        }
        if self.conflicts > 0 {
            writeln!(out, "\n{} since the mount was made", count(self.conflicts, "conflict"))?;
            self.conflicts_shown.iter().try_for_each(|conflict| writeln!(out, "  {conflict}"))?;
        }
        Ok(())
    }
}

impl PendingEvent {
    fn line(&self, out: &mut String) -> std::fmt::Result {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let state: &str = self.state.into();
        let state = match (self.done, self.size) {
            (Some(done), Some(size @ 1..)) => format!("{state} {}%", u128::from(done) * 100 / u128::from(size)),
            _ => state.to_owned(),
        };
        write!(
            out,
            "{:>10}  {:<12}{:>10}{:>9}{:>7}{:>9}  {} {}",
            self.lsn,
            state,
            or_dash(self.size.map(bytes)),
            seconds(self.age),
            self.tries,
            or_dash(self.eta.map(seconds)),
            self.change,
            readable(&self.path)
        )?;
        if let Some(to) = &self.to {
            write!(out, " -> {}", readable(to))?;
        }
        if let Some(reason) = &self.reason {
            write!(out, "; {}", one_line(reason))?;
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_a_table_that_tells_what_is_left_out() {
        let content = PendingEvent {
            lsn: 7,
            change: "content".into(),
            path: "/run/ckpt-1".into(),
            size: Some(1 << 30),
            state: EventState::Held,
            reason: Some("copy to the slow tier\nrun/ckpt-1: EDQUOT".into()),
            age: Duration::from_secs(14),
            tries: 3,
            ..PendingEvent::default()
        };
        let rename = PendingEvent {
            lsn: 9,
            change: "rename".into(),
            path: "/run/%C3%A9%201".into(),
            to: Some("/run/b".into()),
            state: EventState::Settling,
            age: Duration::from_secs(1),
            eta: Some(Duration::from_secs(11)),
            ..PendingEvent::default()
        };
        let queue = Queue {
            events: 5,
            bytes_to_copy: 1 << 30,
            held: Some("quota; raise it".into()),
            held_users: Vec::new(),
            pending: vec![content, rename],
            conflicts: 1,
            conflicts_shown: vec!["/x: ours is x.dlio-conflict-h-1".into()],
            cut_off_shown: vec!["/run/half".into()],
            writing_shown: vec!["/run/log".into()],
        };
        let text = "5 changes pending, 1.0 GiB to copy; published in this order
HELD: quota; raise it

        no  state             size      age  tries      ETA  change
         7  held           1.0 GiB     14 s      3        -  content /run/ckpt-1; copy to the slow tier run/ckpt-1: EDQUOT
         9  settling             -      1 s      0     11 s  rename /run/é 1 -> /run/b
3 more follow
cut off by a crash: write it again, delete it, or accept it: `dlio-fs sync` publishes it as the mount shows it
  /run/half
being written: on its way once it is closed, or has been open for live_after
  /run/log

1 conflict since the mount was made
  /x: ours is x.dlio-conflict-h-1
";
        assert_eq!(queue.text(), text);
        let copying =
            PendingEvent { state: EventState::Copying, done: Some(3 << 28), reason: None, ..queue.pending[0].clone() };
        let text = Queue { pending: vec![copying], ..queue.clone() }.text();
        assert!(text.contains("         7  copying 75%    1.0 GiB "), "{text}");
        assert_eq!(Queue::default().text(), "nothing is pending\n");
        let value: serde_json::Value = serde_json::from_str(&queue.json()).expect("valid JSON");
        assert_eq!(
            (value["pending"][0]["state"].as_str(), value["pending"][1]["eta"].as_f64()),
            (Some("held"), Some(11.0))
        );
    }
}
