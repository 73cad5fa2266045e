//! The commands of `.dlio/control`, read from their lines.

use std::time::Duration;

use crate::path::{self, Name};
use crate::stats::plans::Promise;

/// The longest command: a path of 4,096 bytes, each escaped.
pub(super) const LINE_MAX: usize = 3 * 4096 + 64;

pub(super) const KNOWN: &str = "sync, sync PATH, deadline TIME, status, reload, front PATH, evict PATH, verify PATH, pause, resume, \
                                stage [plan:BEFORE:AFTER:BYTES] PATH..., stage glob:PATTERN, staging more N PATH..., staging watch N, \
                                staging cancel [N], staging pause, staging resume, \
                                pin PATH, unpin PATH, pins, set-aside [dry-run|discard] PATH, \
                                window start NAME, window stop [NAME], window files NAME, window recording NAME, \
                                mark TEXT";

/// What to stage.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StageTarget {
    /// A file, or all files below a directory.
    Path(Vec<Name>),
    /// All files whose path from the root matches.
    Pattern(String),
    /// No files: the savings promised for the paths given beside it.
    Promise(Promise),
}

/// What to do with data that only the fast tier has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AsideHow {
    /// Only reports what would be done.
    DryRun,
    /// Copies it to `saved` on the slow tier.
    Copy,
    Discard,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ControlCommand {
    /// Waits until everything, or everything below a path (its names, from the root), is on the slow tier.
    Sync(Option<Vec<Name>>),
    /// Copies to the slow tier what it can within this time, and reports what is left.
    Deadline(Duration),
    Status,
    /// Reads the configuration file again; or changes these values, `key=value`.
    Reload(Vec<String>),
    /// Holds the drain, or resumes it.
    Pause(bool),
    /// Hurries a path, and everything published before it.
    Front(Vec<Name>),
    /// Drops the fast copies of clean files below a path, which is empty for all.
    Evict(Vec<Name>),
    /// Compares the fast copies of clean files with their slow ones, below a path.
    Verify(Vec<Name>),
    /// Brings slow files to the fast tier.
    Stage(Vec<StageTarget>),
    /// More files for a job that has not ended.
    StageMore(u64, Vec<StageTarget>),
    /// Reports the progress of a job until it ends.
    WatchStaging(u64),
    /// One job, or all.
    CancelStaging(Option<u64>),
    PauseStaging(bool),
    /// Keeps everything at or below a path that is on the fast tier there.
    Pin(Vec<Name>),
    Unpin(Vec<Name>),
    Pins,
    /// Takes the pending changes at or below a path out of the order.
    SetAside(Vec<Name>, AsideHow),
    /// Starts, or stops, a window, whose counters are reported separately.
    StartWindow(String),
    StopWindow(Option<String>),
    /// The table of the files of a closed window.
    WindowFiles(String),
    /// Everything known of a window, as a recording.
    WindowRecording(String),
    /// Notes the time.
    Mark(String),
}

impl ControlCommand {
    /// One line, with or without its newline. The error is the text of the reply.
    pub(super) fn parse(line: &[u8]) -> Result<ControlCommand, String> {
        let line = std::str::from_utf8(line).map_err(|_| "a command is plain ASCII; escape the path".to_owned())?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        if line.contains('\n') {
            return Err("one command at a time: write one line, then read its reply".into());
        }
        let (word, argument) = line.split_once(' ').unwrap_or((line, ""));
        let argument = argument.trim();
        Ok(match word {
            "sync" if argument.is_empty() => ControlCommand::Sync(None),
            "sync" => ControlCommand::Sync(Some(names(argument)?)),
            "deadline" => ControlCommand::Deadline(
                humantime::parse_duration(argument)
                    .map_err(|_| format!("deadline takes a time as 120s or 2min, got {argument:?}"))?,
            ),
            "status" => no_argument(word, argument, ControlCommand::Status)?,
            "reload" => ControlCommand::Reload(options(argument)?),
            "pause" => no_argument(word, argument, ControlCommand::Pause(true))?,
            "resume" => no_argument(word, argument, ControlCommand::Pause(false))?,
            "front" => ControlCommand::Front(path(word, argument)?),
            "evict" => ControlCommand::Evict(path(word, argument)?),
            "verify" => ControlCommand::Verify(path(word, argument)?),
            "stage" => ControlCommand::Stage(wanted(word, argument)?),
            "staging" => ControlCommand::staging(argument)?,
            "pin" => ControlCommand::Pin(path(word, argument)?),
            "unpin" => ControlCommand::Unpin(path(word, argument)?),
            "pins" => no_argument(word, argument, ControlCommand::Pins)?,
            "set-aside" => {
                let (how, rest) = match argument.split_once(' ') {
                    Some(("dry-run", rest)) => (AsideHow::DryRun, rest),
                    Some(("discard", rest)) => (AsideHow::Discard, rest),
                    _ => (AsideHow::Copy, argument),
                };
                ControlCommand::SetAside(path(word, rest.trim())?, how)
            }
            "window" => ControlCommand::window(argument)?,
            "mark" => ControlCommand::Mark(argument.to_owned()),
            unknown => return Err(format!("unknown command {unknown:?}; known: {KNOWN}")),
        })
    }

    fn staging(argument: &str) -> Result<ControlCommand, String> {
        let (word, rest) = argument.split_once(' ').unwrap_or((argument, ""));
        let (number, rest) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
        let job = || number.parse().map_err(|_| format!("staging {word} takes a job's number, got {number:?}"));
        match word {
            "more" => Ok(ControlCommand::StageMore(job()?, wanted("staging more N", rest.trim())?)),
            "watch" => Ok(ControlCommand::WatchStaging(job()?)),
            "cancel" if number.is_empty() => Ok(ControlCommand::CancelStaging(None)),
            "cancel" => Ok(ControlCommand::CancelStaging(Some(job()?))),
            "pause" => no_argument("staging pause", number, ControlCommand::PauseStaging(true)),
            "resume" => no_argument("staging resume", number, ControlCommand::PauseStaging(false)),
            unknown => {
                Err(format!("staging takes more N PATH..., watch N, cancel [N], pause or resume, got {unknown:?}"))
            }
        }
    }

    fn window(argument: &str) -> Result<ControlCommand, String> {
        let (word, name) = argument.split_once(' ').unwrap_or((argument, ""));
        let name = name.trim().to_owned();
        match word {
            "start" => Ok(ControlCommand::StartWindow(name)),
            "stop" => Ok(ControlCommand::StopWindow(Some(name).filter(|name| !name.is_empty()))),
            "files" => Ok(ControlCommand::WindowFiles(name)),
            "recording" => Ok(ControlCommand::WindowRecording(name)),
            unknown => {
                Err(format!("window takes start NAME, stop [NAME], files NAME or recording NAME, got {unknown:?}"))
            }
        }
    }
}

fn no_argument(word: &str, argument: &str, command: ControlCommand) -> Result<ControlCommand, String> {
    match argument {
        "" => Ok(command),
        extra => Err(format!("{word} takes no argument, got {extra:?}")),
    }
}

/// Options `key=value`, escaped like paths, and separated by blanks.
fn options(argument: &str) -> Result<Vec<String>, String> {
    let one = |word: &str| path::unescape(word).and_then(|option| String::from_utf8(option).ok());
    let all = argument.split_whitespace().map(|word| one(word).ok_or_else(|| format!("{word}: not escaped UTF-8")));
    all.collect()
}

/// The path of a command that requires one.
fn path(word: &str, argument: &str) -> Result<Vec<Name>, String> {
    match argument {
        "" => Err(format!("{word} takes a path, / for everything")),
        escaped => names(escaped),
    }
}

/// Paths and patterns, at least one.
fn wanted(word: &str, argument: &str) -> Result<Vec<StageTarget>, String> {
    let one = |word: &str| match word.strip_prefix("glob:") {
        None if word.starts_with("plan:") => promise(word).map(StageTarget::Promise),
        None => names(word).map(StageTarget::Path),
        Some(pattern) => {
            let bytes = path::unescape(pattern).and_then(|bytes| String::from_utf8(bytes).ok());
            bytes
                .map(StageTarget::Pattern)
                .ok_or_else(|| format!("pattern {pattern:?}: not escaped UTF-8; %20 for a space"))
        }
    };
    match argument {
        "" => Err(format!("{word} takes paths, / for everything, or glob:PATTERN")),
        words => words.split(' ').filter(|word| !word.is_empty()).map(one).collect(),
    }
}

/// `plan:BEFORE:AFTER:BYTES`: see [`Promise`].
fn promise(word: &str) -> Result<Promise, String> {
    let mut numbers = word.split(':').skip(1).map(str::parse);
    match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(before)), Some(Ok(after)), Some(Ok(bytes)), None) => Ok(Promise { before, after, bytes }),
        _ => Err(format!("{word:?}: write plan:BEFORE:AFTER:BYTES, nanoseconds and bytes of an epoch")),
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

/// Checks whether a line is a command; the error is the reply if it is not.
pub fn parse_command(line: &[u8]) -> Result<(), String> {
    ControlCommand::parse(line).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_single_lines() {
        assert_eq!(ControlCommand::parse(b"sync\n"), Ok(ControlCommand::Sync(None)));
        assert_eq!(ControlCommand::parse(b"sync"), Ok(ControlCommand::Sync(None)));
        assert_eq!(ControlCommand::parse(b"status\n"), Ok(ControlCommand::Status));
        let name = |bytes: &[u8]| Name::new(bytes).expect("a valid name");
        assert_eq!(
            ControlCommand::parse(b"sync /run/epoch%201\n"),
            Ok(ControlCommand::Sync(Some(vec![name(b"run"), name(b"epoch 1")])))
        );
        assert_eq!(ControlCommand::parse(b"sync /\n"), Ok(ControlCommand::Sync(Some(vec![]))));
        for (how, word) in [(AsideHow::Copy, ""), (AsideHow::DryRun, "dry-run "), (AsideHow::Discard, "discard ")] {
            let line = format!("set-aside {word}/a%20b\n");
            assert_eq!(ControlCommand::parse(line.as_bytes()), Ok(ControlCommand::SetAside(vec![name(b"a b")], how)));
        }
    }

    #[test]
    fn what_is_to_be_staged_are_paths_and_patterns() {
        let name = |bytes: &[u8]| Name::new(bytes).expect("a valid name");
        let wanted = vec![
            StageTarget::Path(vec![name(b"a b")]),
            StageTarget::Path(vec![]),
            StageTarget::Pattern("data/**/*.jpg".to_owned()),
        ];
        assert_eq!(ControlCommand::parse(b"stage /a%20b / glob:data/**/*.jpg\n"), Ok(ControlCommand::Stage(wanted)));
        let planned =
            vec![StageTarget::Promise(Promise { before: 9, after: 8, bytes: 7 }), StageTarget::Path(vec![name(b"x")])];
        assert_eq!(ControlCommand::parse(b"stage plan:9:8:7 /x\n"), Ok(ControlCommand::Stage(planned)));
        for bad in ["plan:", "plan:1:2", "plan:1:2:3:4", "plan:1:-2:3", "plan:1:x:3"] {
            let said = ControlCommand::parse(format!("stage {bad} /x").as_bytes()).expect_err("no promise");
            assert!(said.contains("plan:BEFORE"), "{bad}: {said}");
        }
        assert_eq!(ControlCommand::parse(b"staging cancel\n"), Ok(ControlCommand::CancelStaging(None)));
        assert_eq!(ControlCommand::parse(b"staging cancel 3\n"), Ok(ControlCommand::CancelStaging(Some(3))));
        let more = ControlCommand::StageMore(7, vec![StageTarget::Path(vec![name(b"x")])]);
        assert_eq!(ControlCommand::parse(b"staging more 7 /x\n"), Ok(more));
        assert_eq!(ControlCommand::parse(b"staging resume\n"), Ok(ControlCommand::PauseStaging(false)));
    }

    #[test]
    fn a_bad_command_says_what_is_known() {
        let said = |line: &[u8]| ControlCommand::parse(line).expect_err("not a command");
        assert_eq!(said(b"frobnicate now\n"), format!("unknown command \"frobnicate\"; known: {KNOWN}"));
        assert!(said(b"\n").contains("known: sync"));
        assert!(said(b"sync\nsync\n").contains("one command at a time"));
        assert!(said(b"sync a b\n").contains("%20 for a space"));
        assert!(said(b"sync ../../etc\n").contains("../../etc"));
        assert!(said(b"sync \xff\n").contains("ASCII"));
        assert!(said(b"status now\n").contains("no argument"));
        assert!(said(b"stage\n").contains("takes paths") && said(b"staging watch x\n").contains("job's number"));
        assert!(said(b"staging pause 3\n").contains("no argument") && said(b"staging stop\n").contains("cancel [N]"));
        assert!(said(b"deadline soon\n").contains("120s"));
        assert_eq!(ControlCommand::parse(b"deadline 2min\n"), Ok(ControlCommand::Deadline(Duration::from_secs(120))));
        assert!(said(b"evict\n").contains("takes a path") && said(b"verify \n").contains("takes a path"));
    }
}
