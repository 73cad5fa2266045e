//! The number of the drain's streams from mount to mount: `<fast>/.dlio-fs/streams`, one decimal number.
//!
//! Without it, a mount over a tier that rewards eight streams would climb from one again, which takes many rounds. It
//! is only a hint: the stream controller continues from there, so a wrong number costs a few rounds.

use std::sync::atomic::Ordering;

use crate::config::{DrainStreams, STREAMS_MAX};
use crate::error::Context;
use crate::tiers::Tiers;
use crate::tiers::disk::layout::{OURS, read_text, replace_text};
use crate::tiers::writeback::streams::StreamCount;

const FILE: &[u8] = b"streams";

impl Tiers {
    /// Called at a start. A missing, unreadable or impossible number is ignored.
    pub(crate) fn restore_streams(&self) {
        let text = self.fast.dir(OURS).at_fast("open", "streams").and_then(|ours| read_text(&*ours, FILE));
        if let Some(count) = text.ok().flatten().and_then(|text| count_of(&text)) {
            *self.writeback.streams.lock() = StreamCount::starting_with(count);
            self.writeback.saved_streams.store(count, Ordering::Relaxed);
        }
    }

    /// Saves the controller's present number, if it has changed.
    pub(crate) fn save_streams(&self) {
        let count = self.writeback.streams.lock().settled();
        let is_climbing = self.options().drain_streams == DrainStreams::Auto;
        if !is_climbing || self.writeback.saved_streams.load(Ordering::Relaxed) == count {
            return;
        }
        let ours = self.fast.dir(OURS).at_fast("open", "streams");
        match ours.and_then(|ours| replace_text(&*ours, FILE, &format!("{count}\n"))) {
            Ok(()) => self.writeback.saved_streams.store(count, Ordering::Relaxed),
            // The next tick retries.
            Err(error) => tracing::debug!(%error, "the number of streams is not remembered"),
        }
    }
}

fn count_of(text: &str) -> Option<u32> {
    text.trim_end().parse().ok().filter(|count| (1..=STREAMS_MAX).contains(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_possible_number_is_believed() {
        assert_eq!((count_of("1\n"), count_of("8")), (Some(1), Some(STREAMS_MAX)));
        for wrong in ["", "0", "9", "-1", "4 4", "four", "4294967297", "\u{fffd}"] {
            assert_eq!(count_of(wrong), None, "{wrong}");
        }
    }
}
