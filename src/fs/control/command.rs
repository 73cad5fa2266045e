//! The commands of `.dlio/control`, read from their lines.

use crate::path::{self, Name};

/// The longest command: a path of 4,096 bytes, each escaped.
pub(super) const LINE_MAX: usize = 3 * 4096 + 64;

pub(super) const KNOWN: &str = "sync, sync PATH, status, reload, front PATH, evict PATH, verify PATH, \
                                window start NAME, window stop [NAME], window files NAME, window recording NAME, \
                                mark TEXT";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Waits until everything, or everything below a path (its names, from the root), is on the slow tier.
    Sync(Option<Vec<Name>>),
    Status,
    /// Reads the configuration file again.
    Reload,
    /// Hurries a path, and what is to be published before it.
    Front(Vec<Name>),
    /// Lets the fast copies of clean files go: below a path, which is empty for all.
    Evict(Vec<Name>),
    /// Compares the fast copies of clean files with their slow ones, below a path.
    Verify(Vec<Name>),
    /// What is counted from here on, or up to here, is told by itself.
    StartWindow(String),
    StopWindow(Option<String>),
    /// The table of the files of a closed window.
    WindowFiles(String),
    /// All that is known of one, as a recording.
    WindowRecording(String),
    /// Notes the moment.
    Mark(String),
}

impl Command {
    /// One line, with or without its newline. The error is the text of the reply.
    pub(super) fn parse(line: &[u8]) -> Result<Command, String> {
        let line = std::str::from_utf8(line).map_err(|_| "a command is plain ASCII; escape the path".to_owned())?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        if line.contains('\n') {
            return Err("one command at a time: write one line, then read its reply".into());
        }
        let (word, argument) = line.split_once(' ').unwrap_or((line, ""));
        let argument = argument.trim();
        Ok(match word {
            "sync" if argument.is_empty() => Command::Sync(None),
            "sync" => Command::Sync(Some(names(argument)?)),
            "status" => no_argument(word, argument, Command::Status)?,
            "reload" => no_argument(word, argument, Command::Reload)?,
            "front" => Command::Front(path(word, argument)?),
            "evict" => Command::Evict(path(word, argument)?),
            "verify" => Command::Verify(path(word, argument)?),
            "window" => Command::window(argument)?,
            "mark" => Command::Mark(argument.to_owned()),
            unknown => return Err(format!("unknown command {unknown:?}; known: {KNOWN}")),
        })
    }

    fn window(argument: &str) -> Result<Command, String> {
        let (word, name) = argument.split_once(' ').unwrap_or((argument, ""));
        let name = name.trim().to_owned();
        match word {
            "start" => Ok(Command::StartWindow(name)),
            "stop" => Ok(Command::StopWindow(Some(name).filter(|name| !name.is_empty()))),
            "files" => Ok(Command::WindowFiles(name)),
            "recording" => Ok(Command::WindowRecording(name)),
            unknown => {
                Err(format!("window takes start NAME, stop [NAME], files NAME or recording NAME, got {unknown:?}"))
            }
        }
    }
}

fn no_argument(word: &str, argument: &str, command: Command) -> Result<Command, String> {
    match argument {
        "" => Ok(command),
        extra => Err(format!("{word} takes no argument, got {extra:?}")),
    }
}

/// The path that a command cannot do without.
fn path(word: &str, argument: &str) -> Result<Vec<Name>, String> {
    match argument {
        "" => Err(format!("{word} takes a path, / for everything")),
        escaped => names(escaped),
    }
}

/// The names of an escaped path, from the mount's root.
fn names(escaped: &str) -> Result<Vec<Name>, String> {
    let bad = |why: &str| format!("path {escaped:?}: {why}; give it from the mount's root, %20 for a space");
    let path = path::unescape(escaped).ok_or_else(|| bad("not escaped"))?;
    path.split(|&b| b == b'/')
        .filter(|name| !name.is_empty())
        .map(|name| Name::new(name).map_err(|errno| bad(errno.desc())))
        .collect()
}

/// Whether a line is a command, and what is said if it is none.
pub fn parse_command(line: &[u8]) -> Result<(), String> {
    Command::parse(line).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_single_lines() {
        assert_eq!(Command::parse(b"sync\n"), Ok(Command::Sync(None)));
        assert_eq!(Command::parse(b"sync"), Ok(Command::Sync(None)));
        assert_eq!(Command::parse(b"status\n"), Ok(Command::Status));
        let name = |bytes: &[u8]| Name::new(bytes).expect("a valid name");
        assert_eq!(
            Command::parse(b"sync /run/epoch%201\n"),
            Ok(Command::Sync(Some(vec![name(b"run"), name(b"epoch 1")])))
        );
        assert_eq!(Command::parse(b"sync /\n"), Ok(Command::Sync(Some(vec![]))));
    }

    #[test]
    fn a_bad_command_says_what_is_known() {
        let said = |line: &[u8]| Command::parse(line).expect_err("not a command");
        assert_eq!(said(b"frobnicate now\n"), format!("unknown command \"frobnicate\"; known: {KNOWN}"));
        assert!(said(b"\n").contains("known: sync"));
        assert!(said(b"sync\nsync\n").contains("one command at a time"));
        assert!(said(b"sync a b\n").contains("%20 for a space"));
        assert!(said(b"sync ../../etc\n").contains("../../etc"));
        assert!(said(b"sync \xff\n").contains("ASCII"));
        assert!(said(b"status now\n").contains("no argument"));
        assert!(said(b"evict\n").contains("takes a path") && said(b"verify \n").contains("takes a path"));
    }
}
