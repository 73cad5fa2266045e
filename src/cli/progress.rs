//! Progress of a drain: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};

use super::client;
use super::outcome::complain;
use crate::path::harmless;
use crate::stats::render::{count, seconds};
use crate::stats::status::Status;

/// How often a mount is polled.
const LOOK: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(2);
/// Never wider than the terminal: a wrapped line would stay on the screen.
const TEMPLATE: &str = "{bar:30} {wide_msg}";

/// Shows the progress of a mount's drain, from its own thread, until dropped. Keeps no file open in between.
#[derive(Debug)]
pub(super) struct ProgressDisplay {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressDisplay {
    pub(super) fn watch(mountpoint: &Path) -> ProgressDisplay {
        ProgressDisplay::telling(mountpoint, OffScreen::Lines)
    }

    /// The same for umount(8), which prints nothing if all is well.
    pub(super) fn watch_on_terminals(mountpoint: &Path) -> ProgressDisplay {
        ProgressDisplay::telling(mountpoint, OffScreen::Trouble)
    }

    fn telling(mountpoint: &Path, off_screen: OffScreen) -> ProgressDisplay {
        let (stop, stopped) = mpsc::channel::<()>();
        let mountpoint = mountpoint.to_path_buf();
        let show = move || {
            let mut display = Display::new(off_screen);
            loop {
                // The caller, which waits for the drain, finds out why the mount does not answer.
                if let Ok(status) = client::status(&mountpoint) {
                    display.show(&status);
                }
                if stopped.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                    return display.finish();
                }
            }
        };
        // Without a thread nothing is shown, and what is waited for comes all the same.
        ProgressDisplay { stop: Some(stop), thread: std::thread::Builder::new().spawn(show).ok() }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.stop = None;
        // Wait for the thread: it must not touch a mount that is about to be unmounted. Its result is of no interest.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// What to print if standard error is no terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OffScreen {
    /// A line from time to time.
    Lines,
    /// Only what blocks the drain.
    Trouble,
}

struct Display {
    bar: Option<ProgressBar>,
    off_screen: OffScreen,
    /// The most bytes that were pending at once.
    total: u64,
    /// What blocked the drain when the bar was last drawn.
    trouble: Option<String>,
    news: News,
}

/// Lines for a log file: from time to time, and only news.
#[derive(Debug, Default)]
pub(super) struct News {
    last: Option<(Instant, String)>,
}

impl News {
    pub(super) fn tell(&mut self, line: &str) {
        let is_due = self.last.as_ref().is_none_or(|(at, last)| at.elapsed() >= LINE_EVERY && last != line);
        if is_due {
            complain(line);
            self.last = Some((Instant::now(), line.to_owned()));
        }
    }
}

impl Display {
    fn new(off_screen: OffScreen) -> Self {
        let bar = stderr().is_terminal().then(|| ProgressBar::new(0).with_style(style()));
        Display { bar, off_screen, total: 0, trouble: None, news: News::default() }
    }

    fn show(&mut self, now: &Status) {
        let remaining = now.pipeline.bytes_to_copy;
        self.total = self.total.max(remaining);
        match &self.bar {
            Some(bar) => {
                bar.set_length(self.total);
                bar.set_position(self.total - remaining);
                bar.set_message(left(now));
                let trouble = trouble(now);
                // Above the bar, whose single line would cut off the remedy.
                if let Some(trouble) = trouble.as_ref().filter(|_| trouble != self.trouble) {
                    bar.println(format!("dlio-fs: {}", harmless(trouble)));
                }
                self.trouble = trouble;
            }
            None if now.safety.safe => {}
            None if self.off_screen == OffScreen::Trouble => {
                if let Some(trouble) = trouble(now) {
                    self.news.tell(&trouble);
                }
            }
            None => {
                let trouble = trouble(now).map(|trouble| format!("; {trouble}")).unwrap_or_default();
                self.news.tell(&format!("{}{trouble}", left(now)));
            }
        }
    }

    /// Removes the bar; the caller prints how it ended.
    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn left(now: &Status) -> String {
    let safety = &now.safety;
    // A copied file that is not published still counts as only on the fast tier.
    let left = if now.pipeline.bytes_to_copy == 0 { safety.bytes } else { now.pipeline.bytes_to_copy };
    let mut text =
        format!("{} left: {}, {} to go", ByteSize(left), count(safety.files, "file"), count(safety.events, "change"));
    if now.pipeline.drain_bytes_per_s > 0 {
        text.push_str(&format!(", {}/s", ByteSize(now.pipeline.drain_bytes_per_s)));
    }
    if let Some(eta) = safety.eta {
        text.push_str(&format!(", ETA {}", seconds(eta)));
    }
    text
}

pub(super) fn trouble(now: &Status) -> Option<String> {
    match &now.safety.held {
        Some(why) => Some(format!("held: {why}")),
        None => now.safety.slow_down.then(|| "the slow tier does not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
