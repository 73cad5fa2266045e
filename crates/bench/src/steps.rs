//! The progress of a benchmark: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use dlio_fs::cli::outcome::complain;
use dlio_fs::path::harmless;
use indicatif::{ProgressBar, ProgressStyle};

/// Never wider than the terminal: a wrapped line would stay on the screen.
const TEMPLATE: &str = "{bar:30} {elapsed} {wide_msg}";
/// How often the bar is redrawn to show that time passes.
const TICK: Duration = Duration::from_secs(1);

/// The progress of a sequence of steps, until dropped.
#[derive(Debug)]
pub(super) struct Steps {
    bar: Option<ProgressBar>,
    begun: u64,
}

impl Steps {
    pub(super) fn new(total: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64).with_style(style());
            bar.enable_steady_tick(TICK);
            bar
        });
        Steps { bar, begun: 0 }
    }

    /// Shows the next step; the one before is done.
    pub(super) fn start(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.begun);
                bar.set_message(harmless(text).into_owned());
            }
            None => complain(text),
        }
        self.begun += 1;
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
