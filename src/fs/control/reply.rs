//! A command's answer: a text at once, or progress on each read until it has ended.

use std::fmt::{Debug, Display};
use std::time::{Duration, Instant};

use super::command::KNOWN;
use super::sources::Control;

/// How long a read of `control` waits before it reports what it is waiting for: a waiting process can be interrupted
/// only between two reads.
const PROGRESS: Duration = Duration::from_secs(1);

/// The output of a conversation on `control`.
#[derive(Debug)]
pub(super) struct Reply {
    /// What to read next.
    text: Vec<u8>,
    /// The command that has not ended yet.
    running: Option<Box<dyn Running>>,
}

/// A command that takes longer than a read may wait, and its progress. Dropped when its reader has gone.
pub(super) trait Running: Debug + Send {
    /// Continues, until `until` at the latest, and adds lines for the reader: results, and at the end of that time the
    /// remaining work. Ends with the text after `ok: `, or with that after `error: `; `None`: there is more.
    fn advance(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String>;
}

impl Reply {
    /// For a reader that has written no command.
    pub(super) fn usage() -> Self {
        Reply::text(format!(
            "commands: {KNOWN} (write one line, then read; PATH from the mount's root, escaped as in \
             .dlio/files: %20 for a space)\n"
        ))
    }

    /// A text without `ok: ` or `error: `.
    pub(super) fn text(text: impl Into<Vec<u8>>) -> Self {
        Reply { text: text.into(), running: None }
    }

    pub(super) fn ok(text: impl Display) -> Self {
        Reply::text(verdict("ok", text))
    }

    pub(super) fn error(text: impl Display) -> Self {
        Reply::text(verdict("error", text))
    }

    /// Lines to be read at once, and a command that continues.
    pub(super) fn runs(lines: String, running: impl Running + 'static) -> Self {
        Reply { text: lines.into_bytes(), running: Some(Box::new(running)) }
    }

    /// Whether its command has not ended yet.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// If there is no text but the command continues, waits at most a second for more.
    pub(super) fn read(&mut self, control: &Control, size: usize) -> Vec<u8> {
        if self.text.is_empty()
            && let Some(mut running) = self.running.take()
        {
            let mut lines = String::new();
            match running.advance(control, Instant::now() + PROGRESS, &mut lines) {
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

fn verdict(word: &str, text: impl Display) -> String {
    format!("{word}: {text}\n")
}
