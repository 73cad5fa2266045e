//! The conversation on one descriptor of `control`: write one line, then read until end of file.
//!
//! While the command runs, each read answers within a second, with a line that says what it waits for; then comes the
//! result, `ok: ...` or `error: ...`, and end of file. Closing the descriptor ends the waiting. File positions are
//! ignored.
//!
//! Each command is a variant of [`ControlCommand`] and a function that [`start`] calls, in the file of its kind. A
//! command that takes longer than a read may wait leaves a [`Running`](super::reply::Running) behind, which continues
//! on each read.

use super::asker::Asker;
use super::command::{ControlCommand, LINE_MAX};
use super::reply::Reply;
use super::sources::Control;
use super::{aside, deadline, evict, pins, stage, sync, verify, windows};
use crate::error::{Errno, Result};

/// A descriptor of `control`.
#[derive(Debug)]
pub(in crate::fs) struct ControlSession {
    /// The user who opened it.
    asker: Asker,
    reply: Reply,
}

impl ControlSession {
    pub(super) fn new(asker: Asker) -> Self {
        ControlSession { asker, reply: Reply::usage() }
    }

    pub(super) fn read(&mut self, control: &Control, size: usize) -> Vec<u8> {
        self.reply.read(control, size)
    }

    /// Runs a command line. Unread text of the previous reply is dropped.
    ///
    /// Errors: EBUSY while the previous command has not ended; EINVAL for a command that cannot be begun and EPERM for
    /// one that this user may not give, so that `echo` fails in a shell. The reply has the reason.
    pub(super) fn write(&mut self, control: &Control, line: &[u8]) -> Result<()> {
        if self.reply.is_running() {
            return Err(Errno::EBUSY.into());
        }
        if line.len() > LINE_MAX {
            return Err(Errno::E2BIG.into());
        }
        let begun = ControlCommand::parse(line).map_err(|text| (Errno::EINVAL, text)).and_then(|command| {
            command.allow(control, &self.asker).map_err(|text| (Errno::EPERM, text))?;
            start(control, &self.asker, command).map_err(|text| (Errno::EINVAL, text))
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
fn start(control: &Control, asker: &Asker, command: ControlCommand) -> Result<Reply, String> {
    match command {
        ControlCommand::Sync(below) => sync::start(control, asker, below),
        ControlCommand::Deadline(time) => Ok(deadline::start(control, time)),
        ControlCommand::Pause(paused) => Ok(sync::pause(control, paused)),
        ControlCommand::Front(names) => sync::front(control, names),
        ControlCommand::Evict(names) => evict::start(control, asker, names),
        ControlCommand::Verify(names) => verify::start(control, asker, names),
        ControlCommand::Stage(wanted) => stage::start(control, asker, wanted),
        ControlCommand::StageMore(number, wanted) => stage::more(control, number, wanted),
        ControlCommand::WatchStaging(number) => Ok(stage::watch(number)),
        ControlCommand::CancelStaging(number) => stage::cancel(control, number),
        ControlCommand::PauseStaging(paused) => Ok(stage::pause(control, paused)),
        ControlCommand::Pin(names) => pins::pin(control, asker, &names),
        ControlCommand::Unpin(names) => pins::unpin(control, &names),
        ControlCommand::Pins => Ok(pins::list(control, asker)),
        ControlCommand::SetAside(names, how) => aside::start(control, &names, how),
        ControlCommand::Status => Ok(Reply::text(control.status_for(asker).json())),
        ControlCommand::Reload(options) => {
            let live = &control.live;
            let done = if options.is_empty() { live.reload() } else { live.change(&options) };
            done.map(Reply::ok).map_err(|error| error.to_string())
        }
        ControlCommand::StartWindow(name) => windows::start(control, &name),
        ControlCommand::StopWindow(name) => windows::stop(control, name.as_deref()),
        ControlCommand::WindowFiles(name) => windows::files(control, &name),
        ControlCommand::WindowRecording(name) => windows::recording(control, &name),
        ControlCommand::Mark(text) => windows::mark(control, &text),
    }
}
