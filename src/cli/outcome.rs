//! The exit codes of commands, and how they print.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::error::Error;
use crate::json;
use crate::path::{Show as _, harmless_lines};

pub(super) const EXIT_CODES: &str = "Exit codes: 0 done, everything safe; 1 it failed, or was \
refused for now; 2 usage error (arguments, configuration, directories); 3 something is only on the fast tier; 4 \
degraded: the order is held, changes are refused, the slow tier does not answer, the fast one fails, or a tier failed a \
call a moment ago; 5 a conflict with a foreign change.";

/// How a command ended. The numbers are documented in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// Done; what the command was about is safe on the slow tier.
    Done = 0,
    /// The request was valid, and failed, or was refused because of what is there now. A service manager tries again.
    Failure = 1,
    /// The request is wrong: arguments, configuration, directories.
    Usage = 2,
    /// Something is only on the fast tier.
    Undrained = 3,
    /// The slow tier is down, or the order is held.
    Degraded = 4,
    /// A foreign change conflicts with ours; both versions are kept.
    Conflict = 5,
    /// Ended by Ctrl-C, with the code that a shell reports.
    Interrupted = 130,
}

/// Why a command failed: its exit code and the line to print.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into() }
    }

    /// The request is wrong.
    pub fn usage(error: Error) -> Self {
        Failure::new(Exit::Usage, error.to_string())
    }
}

/// What an argument names cannot be used. The argument is named too: a command may take several paths.
pub(super) fn unusable(argument: &str, path: &Path, why: &dyn Display, remedy: &str) -> Failure {
    Failure::usage(Error::refused(format!("{argument} {}: {why}", path.shown()), remedy))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(Exit::Failure, error.to_string())
    }
}

pub type Outcome = Result<Exit, Failure>;

/// clap's message as one line: the error, its tip, where to read more of this program.
pub(super) fn usage_line(error: &clap::Error, program: &str) -> String {
    let text = error.render().to_string();
    let (mut what, mut tips) = (Vec::new(), Vec::new());
    let mut lines = text.lines().map(str::trim);
    // The first paragraph is the error, of one or more lines; tips and usage follow.
    what.extend(lines.by_ref().take_while(|line| !line.is_empty() && !line.starts_with("Usage:")));
    tips.extend(lines.filter_map(|line| line.strip_prefix("tip: ")));
    let what = what.join(" ");
    let mut line = what.strip_prefix("error: ").unwrap_or(&what).to_owned();
    for tip in tips {
        line.push_str("; ");
        line.push_str(tip);
    }
    format!("{line}; see {program} --help")
}

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints a line of the answer. A reader that has exited (`| head`) is no failure.
pub fn say(text: impl Display) -> Result<(), Failure> {
    match writeln!(io::stdout(), "{}", harmless_lines(&text.to_string())) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Failure, format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Prints the answer for scripts. `body` is an object.
pub(super) fn say_json(body: &impl Serialize) -> Result<(), Failure> {
    say(json::document(body).trim_end())
}

/// Prints a line to standard error: an error, a note, progress.
pub fn complain(text: impl Display) {
    // If standard error is closed, nobody can be told.
    drop(writeln!(io::stderr(), "dlio-fs: {}", harmless_lines(&text.to_string())));
}
