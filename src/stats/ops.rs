//! The calls as they come, as lines: the text of `.dlio/ops`. Pure; calls and paths come in.
//!
//! Lines are made only while somebody reads. The file's size is the bytes of all lines ever made, so that `tail -f`
//! sees it grow; the latest [`KEPT`] bytes are kept. A reader that falls behind further is told how many lines it
//! missed, and continues with the oldest line kept.
//!
//! A line has the time of the beginning, seconds, tier, operation, path, `offset+bytes` of calls that carry bytes (else
//! `-`), `ok` or the error, and who called: `command[process/thread]`. No field contains a space.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use super::counters::Op;
use super::traced::Traced;

/// How many bytes of lines are kept.
pub const KEPT: usize = 4 << 20;
/// How many earlier calls a first reader is shown.
pub const BEFORE: usize = 1_000;

/// The lines of a mount.
#[derive(Debug, Default)]
pub struct Lines {
    readers: usize,
    text: VecDeque<u8>,
    /// Bytes and lines that are not kept any more.
    gone: (u64, u64),
    /// Calls that were collected before the first line of the present readers, and are in no line.
    unread: u64,
}

/// A reader's position. Its offsets are those of the text, until it misses something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    /// The text's offset is the reader's plus this.
    ahead: u64,
    /// Lines that were gone when it came, or that it was told it missed.
    missed: u64,
}

/// What a line needs besides the call.
pub(super) struct About<'a> {
    /// When the mount was made.
    pub(super) since: SystemTime,
    pub(super) path: &'a dyn Fn(u64) -> Option<String>,
    /// Maps a process number to its command and pid.
    pub(super) process: &'a dyn Fn(u32) -> Option<(String, u32)>,
}

impl Lines {
    /// Starts a reader.
    pub fn open(&mut self) -> Reader {
        self.readers += 1;
        Reader { ahead: 0, missed: self.gone.1 }
    }

    /// Ends a reader. The last one drops the lines that are kept: the next one is shown the latest calls instead.
    pub fn close(&mut self) {
        self.readers = self.readers.saturating_sub(1);
        if !self.is_read() {
            self.forget(self.text.len());
        }
    }

    /// Whether lines are made.
    pub fn is_read(&self) -> bool {
        self.readers > 0
    }

    /// Bytes of all lines so far.
    pub fn len(&self) -> u64 {
        self.gone.0 + self.text.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes calls that were just collected, and the number of those dropped on the way.
    pub(super) fn add(&mut self, fresh: &[Traced], dropped: u64, about: &About<'_>) {
        if !self.is_read() {
            self.unread += fresh.len() as u64 + dropped;
            return;
        }
        let mut line = String::new();
        for traced in fresh {
            line.clear();
            about.line(&mut line, traced);
            self.text.extend(line.as_bytes());
        }
        if dropped > 0 {
            self.note(&format!("# {dropped} calls came too fast and are in no line\n"));
        }
        self.trim();
    }

    /// Shows the first reader the calls before it.
    pub(super) fn recall(&mut self, latest: &[Traced], about: &About<'_>) {
        let untold = self.unread.saturating_sub(latest.len() as u64);
        self.unread = 0;
        if untold > 0 {
            self.note(&format!("# {untold} calls before are in no line\n"));
        }
        self.add(latest, 0, about);
    }

    fn note(&mut self, line: &str) {
        self.text.extend(line.as_bytes());
    }

    fn trim(&mut self) {
        if self.text.len() > KEPT {
            // Cut whole lines, and a quarter at once, so that each is moved once.
            let most = self.text.len() - KEPT * 3 / 4;
            let cut =
                self.text.iter().skip(most).position(|byte| *byte == b'\n').map_or(self.text.len(), |n| most + n + 1);
            self.forget(cut);
        }
    }

    fn forget(&mut self, bytes: usize) {
        let lines = self.text.drain(..bytes).filter(|byte| *byte == b'\n').count();
        self.gone = (self.gone.0 + bytes as u64, self.gone.1 + lines as u64);
    }

    /// Up to `size` bytes for a reader from its own offset on; empty at the end.
    pub fn read(&self, reader: &mut Reader, offset: u64, size: usize) -> Vec<u8> {
        let at = offset.saturating_add(reader.ahead);
        if at < self.gone.0 {
            let told = match self.gone.1.saturating_sub(std::mem::replace(&mut reader.missed, self.gone.1)) {
                0 => String::new(),
                missed => format!("# {missed} lines are not kept any more\n"),
            };
            let told: Vec<u8> = told.into_bytes().into_iter().take(size).collect();
            // Its next read begins at the first line that is kept.
            reader.ahead = self.gone.0.saturating_sub(offset.saturating_add(told.len() as u64));
            return if told.is_empty() { self.read(reader, offset, size) } else { told };
        }
        let from = usize::try_from(at - self.gone.0).unwrap_or(usize::MAX).min(self.text.len());
        self.text.range(from..self.text.len().min(from.saturating_add(size))).copied().collect()
    }
}

impl About<'_> {
    fn line(&self, out: &mut String, traced: &Traced) {
        let Traced { call, ino, process, thread, .. } = traced;
        let began = self.since.checked_add(call.began).unwrap_or(self.since);
        let path = (self.path)(*ino).unwrap_or_else(|| "-".to_owned());
        let told = match call.op {
            Op::Read | Op::Write | Op::CopyFileRange => format!("{}+{}", call.offset, call.bytes),
            _ => "-".to_owned(),
        };
        let result = call.errno.map_or_else(|| "ok".to_owned(), |errno| format!("{errno:?}"));
        let (command, pid) = (self.process)(*process).unwrap_or_else(|| ("-".to_owned(), 0));
        writeln!(
            out,
            "{} {} {} {} {path} {told} {result} {}[{pid}/{thread}]",
            humantime::format_rfc3339_micros(began),
            seconds(call.took),
            call.tier.name(),
            call.op.name(),
            crate::path::escape(command.as_bytes()),
        )
        .expect("formatting into memory");
    }
}

fn seconds(took: Duration) -> String {
    format!("{}.{:06}", took.as_secs(), took.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::stats::counters::{Call, Tier};

    fn traced(n: u64) -> Traced {
        let (began, took) = (Duration::from_micros(n), Duration::from_micros(7));
        let call = Call { op: Op::Read, began, took, offset: n, bytes: 3, errno: None, tier: Tier::Slow };
        Traced { call, ino: 9, handle: 2, process: 1, thread: 3 }
    }

    fn about() -> About<'static> {
        About {
            since: SystemTime::UNIX_EPOCH,
            path: &|ino| Some(format!("/f%20{ino}")),
            process: &|number| (number == 1).then(|| ("a b".to_owned(), 17)),
        }
    }

    fn some(from: u64, count: u64) -> Vec<Traced> {
        (from..from + count).map(traced).collect()
    }

    /// Reads to the end as `cat` does.
    fn cat(lines: &Lines, reader: &mut Reader, offset: &mut u64) -> String {
        let mut all = Vec::new();
        loop {
            let some = lines.read(reader, *offset, 1000);
            if some.is_empty() {
                return String::from_utf8(all).expect("UTF-8");
            }
            *offset += some.len() as u64;
            all.extend(some);
        }
    }

    #[test]
    fn a_line_has_eight_fields() {
        let mut lines = Lines::default();
        let mut reader = lines.open();
        let mut failed = traced(1_000_000);
        (failed.call.op, failed.call.errno, failed.process) = (Op::Open, Some(Errno::ENOENT), 0);
        lines.add(&[traced(5), failed], 0, &about());
        assert_eq!(
            cat(&lines, &mut reader, &mut 0),
            "1970-01-01T00:00:00.000005Z 0.000007 slow read /f%209 5+3 ok a%20b[17/3]\n\
             1970-01-01T00:00:01.000000Z 0.000007 slow open /f%209 - ENOENT -[0/3]\n"
        );
    }

    #[test]
    fn nothing_is_made_while_nobody_reads_and_the_latest_is_recalled() {
        let mut lines = Lines::default();
        lines.add(&some(0, 5_000), 7, &about());
        assert!(lines.is_empty());
        let mut reader = lines.open();
        lines.recall(&some(4_990, 10), &about());
        lines.add(&some(5_000, 2), 4, &about());
        let text = cat(&lines, &mut reader, &mut 0);
        let told: Vec<&str> = text.lines().collect();
        assert_eq!((told.len(), told[0]), (14, "# 4997 calls before are in no line"));
        assert_eq!((told[13], lines.len()), ("# 4 calls came too fast and are in no line", text.len() as u64));
        lines.close();
        assert!(!lines.is_read());
    }

    /// A second reader is not shown the first one's lines again beside the same calls from before it.
    #[test]
    fn what_was_read_is_not_shown_to_the_next_reader() {
        let mut lines = Lines::default();
        for round in 0..3 {
            let mut reader = lines.open();
            lines.recall(&some(10 * round, 4), &about());
            let text = cat(&lines, &mut reader, &mut 0);
            assert_eq!(text.lines().count(), 4, "{round}: {text}");
            let end = lines.len();
            lines.add(&some(10 * round + 4, 1), 0, &about());
            // As tail(1) does, which begins at the end of the file.
            assert_eq!(cat(&lines, &mut lines_reader(&lines), &mut { end }).lines().count(), 1);
            lines.close();
        }
    }

    /// A reader that comes while others read already.
    fn lines_reader(lines: &Lines) -> Reader {
        Reader { ahead: 0, missed: lines.gone.1 }
    }

    #[test]
    fn who_falls_behind_is_told_how_much_was_missed() {
        let mut lines = Lines::default();
        let (mut quick, mut slow) = (lines.open(), lines.open());
        let (mut quick_at, mut slow_at) = (0, 0);
        let (mut seen, mut made) = (0, 0);
        while made < 200_000 {
            lines.add(&some(made, 10_000), 0, &about());
            made += 10_000;
            seen += cat(&lines, &mut quick, &mut quick_at).lines().count();
        }
        assert_eq!((seen, quick_at), (200_000, lines.len()));
        let text = cat(&lines, &mut slow, &mut slow_at);
        let (first, rest) = text.split_once('\n').expect("lines");
        let missed: usize = first.split(' ').nth(1).expect("a number").parse().expect("a number");
        assert_eq!(missed + rest.lines().count(), 200_000, "{first}");
        assert!(rest.starts_with("1970") && lines.text.len() <= KEPT);
        lines.add(&some(made, 1), 0, &about());
        assert_eq!(cat(&lines, &mut slow, &mut slow_at).lines().count(), 1, "it goes on where it was");
    }
}
