//! Common questions to the engine: paths for messages, moments, whether the fast tier works.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Error;
use crate::path::escape;
use crate::tiers::counters::Troubles;
use crate::tiers::disk::errors::{is_broken, is_silence, with_remedy};
use crate::tiers::model::state::EngineState;
use crate::tiers::{Ino, Tiers};

/// The trouble of a step that has been waiting for long.
const NO_ANSWER: &str = "no answer";

impl Tiers {
    /// An inode's path from the mount root; `None` when it has no name any more.
    pub fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.state.lock().view.path(ino)
    }

    /// The same, escaped, for messages and statistics.
    pub fn path_of(&self, ino: Ino) -> Option<String> {
        self.label_of(&self.state.lock(), ino)
    }

    pub(crate) fn label_of(&self, st: &EngineState, ino: Ino) -> Option<String> {
        Some(escape(&st.view.path(ino)?))
    }

    pub(crate) fn label_in(&self, st: &EngineState, ino: Ino) -> String {
        self.label_of(st, ino).unwrap_or_else(|| format!("removed file {ino}"))
    }

    /// A path for messages.
    pub(crate) fn label(&self, ino: Ino) -> String {
        self.path_of(ino).unwrap_or_else(|| format!("removed file {ino}"))
    }

    /// A moment that means the same to the next mount, even after a reboot: since the beginning of 1970, by the clock
    /// at the start.
    pub(crate) fn stamp(&self, uptime: Duration) -> Duration {
        self.epoch.saturating_add(uptime)
    }

    /// The kernel interface reports failures here: if the error came from a disk, the fast tier must be checked.
    pub fn suspect(&self, error: &Error) {
        if matches!(error, Error::Io { source, .. } if is_broken(source)) {
            self.log.suspect();
            self.blame(error);
        }
    }

    /// The failure may have been the fast tier's.
    pub(crate) fn blame(&self, error: &Error) {
        if matches!(error, Error::Io { on_fast: true, source, .. } if is_broken(source)) {
            self.fast_has_failed();
        }
    }

    /// The fast tier could not read or write something.
    pub(crate) fn fast_has_failed(&self) {
        let first = !self.fast_fails();
        self.counters.fast_failed.store(self.uptime().as_millis().max(1) as u64, Ordering::Relaxed);
        if first {
            tracing::error!(
                "the fast tier fails to read or write; new files go to the slow tier until it has not for a minute"
            );
        }
    }

    /// Whether it has failed lately. New files do not go there then, and its files go to the slow tier at once.
    pub(crate) fn fast_fails(&self) -> bool {
        const LATELY: u64 = 60_000;
        let at = self.counters.fast_failed.load(Ordering::Relaxed);
        at > 0 && (self.uptime().as_millis() as u64).saturating_sub(at) < LATELY
    }

    pub(crate) fn refuses_changes(&self, st: &EngineState) -> bool {
        st.events.len() as u64 >= self.options().max_pending
    }

    /// The background reports on one kind of its work: the failure, or success.
    pub fn report(&self, work: &'static str, failure: Option<&Error>) {
        let mut troubles = self.counters.troubles.lock();
        match failure {
            Some(error) => {
                self.blame(error);
                troubles.insert(work, (is_silence(error), with_remedy(error)));
            }
            None => {
                // The background itself reports the end of a failure that it reported.
                if troubles.remove(work).is_some_and(|trouble| trouble.1 == NO_ANSWER) {
                    self.counters.answered.store(self.uptime().as_millis() as u64, Ordering::Relaxed);
                    if !is_unanswered(&troubles) {
                        tracing::info!(work, "the slow tier answers again");
                    }
                }
            }
        }
        self.slow.set_down(troubles.values().any(|(silent, _)| *silent));
    }

    /// The background reports that a step has been waiting for the slow tier and nothing moves. Until the step returns,
    /// cached answers are trusted. If other work was answered since it began to wait, the step is only next in line,
    /// and the tier is not silent yet.
    pub fn report_silence(&self, work: &'static str, waited: Duration) {
        let answered = Duration::from_millis(self.counters.answered.load(Ordering::Relaxed));
        if !answered.is_zero() && self.uptime() < answered + waited {
            return;
        }
        let mut troubles = self.counters.troubles.lock();
        let told = is_unanswered(&troubles);
        if troubles.insert(work, (true, NO_ANSWER.to_owned())).is_none() && !told {
            tracing::warn!(work, "the slow tier does not answer; nothing is dropped, it goes on when it does");
        }
        self.slow.set_down(true);
    }
}

/// Whether some work is known to wait for an answer.
fn is_unanswered(troubles: &Troubles) -> bool {
    troubles.values().any(|(_, why)| why == NO_ANSWER)
}
