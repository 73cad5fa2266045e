//! The conversation on one descriptor of `control`: write one line, then read until end of file.
//!
//! While the command runs, each read answers within a second, with a line that tells what it waits for; then comes the
//! result, `ok: ...` or `error: ...`, and end of file. Closing the descriptor ends the waiting. File positions mean
//! nothing here.
//!
//! Each command is a variant of [`Command`] and a function that [`begin`] calls, in the file of its kind. A command that
//! takes longer than a read may wait leaves a [`Running`] behind, which goes on as often as the reader asks.

use std::fmt::{Debug, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use super::command::{Command, KNOWN, LINE_MAX};
use super::{Asker, Control, aside, deadline, evict, pins, stage, sync, verify, windows};
use crate::error::{Errno, Error, Result};
use crate::fs::slow_pool::Caller;
use crate::path::Name;
use crate::tiers::{Attr, Cx, Ino, ROOT, Tiers};

/// How long a read of `control` waits before it tells what it is waiting for: a process waiting for us cannot be
/// interrupted, only between two reads.
const PROGRESS: Duration = Duration::from_secs(1);
/// How long a command waits for the slow tier at most: there are few threads for all of `.dlio`.
const COMMAND_WAIT: Duration = Duration::from_secs(60);

/// A descriptor of `control`.
#[derive(Debug)]
pub(in crate::fs) struct Session {
    /// Who has opened it.
    asker: Asker,
    reply: Reply,
}

/// What it has to tell.
#[derive(Debug)]
pub(super) struct Reply {
    /// What is to be read next.
    text: Vec<u8>,
    /// The command that has not ended yet.
    running: Option<Box<dyn Running>>,
}

/// A command that takes longer than a read may wait: how far it has come. Dropped when its reader has gone.
pub(super) trait Running: Debug + Send {
    /// Goes on, until `until` at the latest, and adds lines for the reader: what is found, and when the time is over,
    /// what is still to be done. Ends with the text after `ok: `, or with that after `error: `; `None`: there is more.
    fn go_on(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String>;
}

impl Reply {
    /// For whoever reads without a command.
    fn usage() -> Self {
        Reply::text(format!(
            "commands: {KNOWN} (write one line, then read; PATH from the mount's root, escaped as in \
             .dlio/files: %20 for a space)\n"
        ))
    }

    /// Without a verdict.
    pub(super) fn text(text: impl Into<Vec<u8>>) -> Self {
        Reply { text: text.into(), running: None }
    }

    pub(super) fn ok(text: impl Display) -> Self {
        Reply::text(verdict("ok", text))
    }

    /// Lines to be read at once, and a command that goes on.
    pub(super) fn runs(lines: String, running: impl Running + 'static) -> Self {
        Reply { text: lines.into_bytes(), running: Some(Box::new(running)) }
    }

    fn read(&mut self, control: &Control, size: usize) -> Vec<u8> {
        if self.text.is_empty()
            && let Some(mut running) = self.running.take()
        {
            let mut lines = String::new();
            match running.go_on(control, Instant::now() + PROGRESS, &mut lines) {
                Ok(None) => self.running = Some(running),
                Ok(Some(text)) => lines.push_str(&verdict("ok", text)),
                Err(text) => lines.push_str(&verdict("error", text)),
            }
            self.text = lines.into_bytes();
        }
        let taken = self.text.len().min(size);
        self.text.drain(..taken).collect()
    }
}

impl Session {
    pub(super) fn new(asker: Asker) -> Self {
        Session { asker, reply: Reply::usage() }
    }

    pub(super) fn read(&mut self, control: &Control, size: usize) -> Vec<u8> {
        self.reply.read(control, size)
    }

    /// Runs a command line. What the reader has not read of the former reply is gone.
    ///
    /// Errors: EBUSY while the former command has not ended; EINVAL for a command that cannot be begun and EPERM for one that this user may
    /// not give, so that `echo` fails in a shell. The reply says why.
    pub(super) fn write(&mut self, control: &Control, line: &[u8]) -> Result<()> {
        if self.reply.running.is_some() {
            return Err(Errno::EBUSY.into());
        }
        if line.len() > LINE_MAX {
            return Err(Errno::E2BIG.into());
        }
        let begun = Command::parse(line).map_err(|text| (Errno::EINVAL, text)).and_then(|command| {
            command.allow(control, &self.asker).map_err(|text| (Errno::EPERM, text))?;
            begin(control, &self.asker, command).map_err(|text| (Errno::EINVAL, text))
        });
        let (reply, answer) = match begun {
            Ok(reply) => (reply, Ok(())),
            Err((errno, text)) => (Reply::text(verdict("error", text)), Err(errno.into())),
        };
        self.reply = reply;
        answer
    }
}

fn verdict(word: &str, text: impl Display) -> String {
    format!("{word}: {text}\n")
}

/// Runs a command, or the beginning of it. The error is the text of the reply.
fn begin(control: &Control, asker: &Asker, command: Command) -> Result<Reply, String> {
    match command {
        Command::Sync(below) => sync::begin(control, asker, below),
        Command::Deadline(time) => Ok(deadline::begin(control, time)),
        Command::Pause(paused) => Ok(sync::pause(control, paused)),
        Command::Front(names) => sync::front(control, names),
        Command::Evict(names) => evict::begin(control, asker, names),
        Command::Verify(names) => verify::begin(control, asker, names),
        Command::Stage(wanted) => stage::begin(control, asker, wanted),
        Command::StageMore(number, wanted) => stage::more(control, number, wanted),
        Command::WatchStaging(number) => Ok(stage::watch(number)),
        Command::CancelStaging(number) => stage::cancel(control, number),
        Command::PauseStaging(paused) => Ok(stage::pause(control, paused)),
        Command::Pin(names) => pins::pin(control, asker, &names),
        Command::Unpin(names) => pins::unpin(control, &names),
        Command::Pins => Ok(pins::list(control, asker)),
        Command::SetAside(names, how) => aside::begin(control, &names, how),
        Command::Status => Ok(Reply::text(control.snapshot_for(asker).json())),
        Command::Reload => control.live.reload().map(Reply::ok).map_err(|error| error.to_string()),
        Command::StartWindow(name) => windows::start(control, &name),
        Command::StopWindow(name) => windows::stop(control, name.as_deref()),
        Command::WindowFiles(name) => windows::files(control, &name),
        Command::WindowRecording(name) => windows::recording(control, &name),
        Command::Mark(text) => windows::mark(control, &text),
    }
}

impl Control {
    /// The file or directory that a command names. The error is the text of the reply.
    pub(super) fn find(&self, names: &[Name]) -> Result<Ino, String> {
        let walked = names.to_vec();
        self.on_slow(move |tiers, cx| find(tiers, cx, &walked)).map_err(|error| format!("{}: {error}", shown(names)))
    }

    /// Runs what may need the slow tier where waiting for it is bounded: with that tier down, `.dlio/stats` must go on
    /// answering.
    pub(super) fn on_slow<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Tiers, &Cx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (found, answer) = mpsc::sync_channel(1);
        let left = Arc::new(AtomicBool::new(false));
        let has_left = Arc::clone(&left);
        let caller = Caller {
            uid: 0,
            wait: None,
            is_killed: Box::new(move || has_left.load(Ordering::Relaxed)),
            about: Box::new(|| "a command".to_owned()),
        };
        let tiers = Arc::clone(&self.tiers);
        let run = move |gave_up| run(&tiers, &Cx::may_wait(0, 0, gave_up));
        // One answer at most, and one place for it: sending never blocks, and fails only if nobody listens any more.
        let done = |found: SyncSender<_>, result| drop(found.try_send(result));
        let expired = |found: SyncSender<_>, _| drop(found.try_send(Err(Error::SlowTimeout)));
        drop(self.slow.submit(caller, found, run, done, expired));
        // Refused, dropped unanswered while the mount ends, or too slow for a command.
        answer.recv_timeout(COMMAND_WAIT).unwrap_or_else(|_| {
            left.store(true, Ordering::Relaxed);
            Err(Error::SlowTimeout)
        })
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

/// Walks from the root. Each step's reference is given back as soon as the next is held, and the last one's as well: a
/// number that nobody holds any more means nothing to the engine, and nothing worse.
fn find(tiers: &Tiers, cx: &Cx, names: &[Name]) -> Result<Ino> {
    Ok(walk(tiers, cx, names, |_| true)?.pop().map_or(ROOT, |last| last.ino))
}

/// The same: the attributes of each step but the root. EACCES behind a directory that may not be passed.
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
