//! The conversation on one descriptor of `control`: write one line, then read until end of file.
//!
//! While the command runs, each read answers within a second, with a line that says what it waits for; then comes the
//! result, `ok: ...` or `error: ...`, and end of file. Closing the descriptor ends the waiting. File positions mean
//! nothing here.
//!
//! Each command is a variant of [`Command`] and a function that [`begin`] calls, in the file of its kind. A command
//! that takes longer than a read may wait leaves a [`Running`](super::reply::Running) behind, which continues on each
//! read.

use super::asker::Asker;
use super::command::{Command, LINE_MAX};
use super::reply::Reply;
use super::sources::Control;
use super::{aside, deadline, evict, pins, stage, sync, verify, windows};
use crate::error::{Errno, Result};

/// A descriptor of `control`.
#[derive(Debug)]
pub(in crate::fs) struct Session {
    /// Who opened it.
    asker: Asker,
    reply: Reply,
}

impl Session {
    pub(super) fn new(asker: Asker) -> Self {
        Session { asker, reply: Reply::usage() }
    }

    pub(super) fn read(&mut self, control: &Control, size: usize) -> Vec<u8> {
        self.reply.read(control, size)
    }

    /// Runs a command line. Unread text of the previous reply is dropped.
    ///
    /// Errors: EBUSY while the previous command has not ended; EINVAL for a command that cannot be begun and EPERM for
    /// one that this user may not give, so that `echo` fails in a shell. The reply says why.
    pub(super) fn write(&mut self, control: &Control, line: &[u8]) -> Result<()> {
        if self.reply.is_running() {
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
            Err((errno, text)) => (Reply::error(text), Err(errno.into())),
        };
        self.reply = reply;
        answer
    }
}

/// Runs a command, or starts it. The error is the text of the reply.
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
        Command::Status => Ok(Reply::text(control.status_for(asker).json())),
        Command::Reload => control.live.reload().map(Reply::ok).map_err(|error| error.to_string()),
        Command::StartWindow(name) => windows::start(control, &name),
        Command::StopWindow(name) => windows::stop(control, name.as_deref()),
        Command::WindowFiles(name) => windows::files(control, &name),
        Command::WindowRecording(name) => windows::recording(control, &name),
        Command::Mark(text) => windows::mark(control, &text),
    }
}
