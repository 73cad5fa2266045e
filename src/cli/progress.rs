//! Progress of a drain: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};

use super::complain;
use super::talk::{self, Standing};

/// How often a mount is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Shows how a mount's drain goes on, from a thread of its own, until it is dropped. Holds nothing open in between.
#[derive(Debug)]
pub(super) struct Progress {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    pub(super) fn watch(mountpoint: &Path) -> Progress {
        let (stop, stopped) = mpsc::channel::<()>();
        let mountpoint = mountpoint.to_path_buf();
        let thread = std::thread::spawn(move || {
            let mut display = Display::new();
            loop {
                // Whoever waits for the drain finds out why the mount does not answer.
                if let Ok(standing) = talk::standing(&mountpoint) {
                    display.show(&standing);
                }
                if stopped.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                    return display.finish();
                }
            }
        });
        Progress { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop = None;
        // It has nothing to say but on the screen, and a mount that must be left may not be looked at any more.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

struct Display {
    bar: Option<ProgressBar>,
    /// The most bytes there ever were at once.
    total: u64,
    last_line: String,
}

impl Display {
    fn new() -> Self {
        let bar = stderr().is_terminal().then(|| ProgressBar::new(0).with_style(style()));
        Display { bar, total: 0, last_line: String::new() }
    }

    fn show(&mut self, now: &Standing) {
        let remaining = now.safety.bytes;
        self.total = self.total.max(remaining);
        match &self.bar {
            Some(bar) => {
                bar.set_length(self.total);
                bar.set_position(self.total - remaining);
                bar.set_message(message(now));
            }
            None if now.safety.safe => {}
            None => {
                // One line per change of what is left, not per look.
                let line = format!("{} left: {}", ByteSize(remaining), message(now));
                if line != self.last_line {
                    complain(&line);
                    self.last_line = line;
                }
            }
        }
    }

    /// Takes the bar away; what follows on the screen says how it ended.
    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn message(now: &Standing) -> String {
    let safety = &now.safety;
    let mut text = format!("{} files, {} changes to go", safety.files, safety.events);
    if now.pipeline.drain_bytes_per_s > 0 {
        text.push_str(&format!(", {}/s", ByteSize(now.pipeline.drain_bytes_per_s)));
    }
    for problem in [&safety.held, &safety.slow_down].into_iter().flatten() {
        text.push_str(&format!("; {problem}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid() {
        assert!(ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {msg}").is_ok());
    }
}
