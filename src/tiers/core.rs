//! What every room may hold: the log, the objects, the slow tier, the state and the clock; and common queries: paths
//! for messages, times, whether the fast tier works.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::Error;
use crate::path::escape;
use crate::stats::recorder::MetricsRecorder;
use crate::tiers::counters::{Counters, Troubles};
use crate::tiers::disk::errors::{is_broken, is_silence};
use crate::tiers::disk::sync::{Mutex, Rank, RwLock};
use crate::tiers::disk::{Clock, Dir, Kind, Stat, Time};
use crate::tiers::log::Log;
use crate::tiers::log::record::Owned;
use crate::tiers::model::event::Change;
use crate::tiers::model::node::NodeAttrs;
use crate::tiers::model::state::EngineState;
use crate::tiers::model::view::{Ages, View};
use crate::tiers::objects::pool::Pool;
use crate::tiers::objects::slow_tier::SlowTier;
use crate::tiers::{Ino, Options, Wake};

/// The reported trouble of a step that has been waiting for long.
const NO_ANSWER: &str = "no answer";

/// See the module's documentation.
#[derive(derive_more::Debug)]
#[debug("Tiers({})", log.last())]
pub struct EngineCore {
    pub(super) log: Log,
    pub(super) pool: Pool,
    pub(super) slow: SlowTier,
    pub(super) fast: Arc<dyn Dir>,
    pub(super) state: Mutex<EngineState>,
    pub(super) counters: Counters,
    /// Damage in the log: nothing is published until an operator has inspected it.
    pub(super) damaged: Option<String>,
    /// Bytes that this start lacked for the log: the log takes no record, and the mount no change.
    lacks: OnceLock<u64>,
    /// Read through [`EngineCore::options`]; replaced as a whole.
    options: RwLock<Arc<Options>>,
    pub(super) clock: Arc<dyn Clock>,
    /// When `uptime` began, since 1970, by the time of day at the start.
    epoch: Duration,
    wake: OnceLock<Box<dyn Fn(Wake) + Send + Sync>>,
    forget_attrs: OnceLock<Box<dyn Fn(Ino) + Send + Sync>>,
}

/// What a start opens for [`EngineCore`].
pub(crate) struct CoreParts {
    pub(crate) log: Log,
    pub(crate) damaged: Option<String>,
    pub(crate) pool: Pool,
    pub(crate) slow: SlowTier,
    pub(crate) fast: Arc<dyn Dir>,
    pub(crate) view: View,
}

impl EngineCore {
    pub(crate) fn new(opened: CoreParts, options: Options, clock: Arc<dyn Clock>) -> EngineCore {
        let CoreParts { log, damaged, pool, slow, fast, view } = opened;
        let (wall, uptime) = (clock.now(), clock.uptime());
        EngineCore {
            log,
            pool,
            slow,
            fast,
            state: Mutex::new(Rank::State, EngineState::new(view)),
            counters: Counters::default(),
            damaged,
            lacks: OnceLock::new(),
            options: RwLock::new(Rank::Leaf, 0, Arc::new(options)),
            clock,
            epoch: Duration::new(wall.sec.max(0).unsigned_abs(), wall.nsec).saturating_sub(uptime),
            wake: OnceLock::new(),
            forget_attrs: OnceLock::new(),
        }
    }

    /// What the mount's counters are registered with.
    pub fn recorder(&self) -> &Arc<MetricsRecorder> {
        &self.counters.totals.recorder
    }

    pub(crate) fn ages(&self) -> Ages {
        let options = self.options();
        Ages { ours: options.revalidate, slow: options.attribute_lifetime_slow }
    }

    /// The options now in force. Keeps no lock, so it may be called under any.
    pub(crate) fn options(&self) -> Arc<Options> {
        Arc::clone(&self.options.read())
    }

    /// Replaces the options from now on, except `ballast`, which was set aside at the start. Work in progress keeps its
    /// old options.
    pub fn set_options(&self, options: Options) {
        *self.options.write() = Arc::new(options);
        self.wake();
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The time for a node that is changed now ([`Clock::file_time`]).
    pub fn file_time(&self) -> Time {
        self.clock.file_time()
    }

    /// Time since some fixed start: the engine's times count from it.
    pub fn uptime(&self) -> Duration {
        self.clock.uptime()
    }

    /// Processor time that this thread has used.
    pub(crate) fn thread_cpu(&self) -> Option<Duration> {
        self.clock.thread_cpu()
    }

    pub(crate) fn wake(&self) {
        self.wake_some(Wake::EachKind);
    }

    pub(crate) fn wake_some(&self, whom: Wake) {
        if let Some(wake) = self.wake.get() {
            wake(whom);
        }
    }

    /// Called once, with a function that wakes the background.
    pub fn on_work(&self, wake: Box<dyn Fn(Wake) + Send + Sync>) {
        let set = self.wake.set(wake);
        debug_assert!(set.is_ok(), "a second background, which the fast tier's lock excludes");
    }

    /// Called once, with a function that makes the kernel forget an inode's attributes after a call changed them
    /// without returning them.
    pub fn on_unseen_attrs(&self, forget: Box<dyn Fn(Ino) + Send + Sync>) {
        let set = self.forget_attrs.set(forget);
        debug_assert!(set.is_ok(), "there is one kernel");
    }

    /// A call has changed an inode's attributes without returning them.
    pub(crate) fn forget_attrs(&self, ino: Ino) {
        if let Some(forget) = self.forget_attrs.get() {
            forget(ino);
        }
    }

    /// This start lacks this many bytes for the log: nothing can be changed any more.
    pub(crate) fn lack(&self, bytes: u64) {
        self.log.make_read_only();
        self.lacks.get_or_init(|| bytes);
    }

    /// How much room the start lacked. Everything can then be read, but nothing changed or drained.
    pub fn lacks(&self) -> Option<u64> {
        self.lacks.get().copied()
    }

    /// An inode's path from the mount root; `None` when it has no name any more.
    pub fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.state.lock().view.path(ino)
    }

    /// Like [`EngineCore::path`], escaped, for messages and statistics.
    pub fn path_of(&self, ino: Ino) -> Option<String> {
        self.label_of(&self.state.lock(), ino)
    }

    /// Whether a slow file has the owner that the view says, on which the kernel's permission check of the open relied:
    /// on a tier that reports no birth, another file may have its number. A pending change of its owner may or may not
    /// have been applied. An object has the owner of its file.
    pub(crate) fn has_its_owner(&self, ino: Ino, stat: &Stat) -> bool {
        let st = self.state.lock();
        let Some(node) = st.view.get(ino) else { return false };
        let NodeAttrs { uid, gid, .. } = node.meta();
        let is_of = |known: &Owned| self.slow.abilities.owned(stat, known) == *known;
        let before = |change: &Change| match change {
            Change::SetAttr { ino: other, of, .. } => *other == ino && is_of(&of.owned),
            _ => false,
        };
        let is_pending = node.meta_lsn() > st.queue.applied();
        node.holds_bytes()
            || is_of(&Owned { kind: Kind::File, uid, gid })
            || (is_pending && st.queue.events().iter().any(|event| before(&event.change)))
    }

    pub(crate) fn label_of(&self, st: &EngineState, ino: Ino) -> Option<String> {
        Some(escape(&st.view.path(ino)?))
    }

    pub(crate) fn label_in(&self, st: &EngineState, ino: Ino) -> String {
        self.label_of(st, ino).unwrap_or_else(|| removed_label(st, ino))
    }

    /// A path for messages. Formatting it takes the state lock.
    pub(crate) fn label(&self, ino: Ino) -> FileLabel<'_> {
        FileLabel { core: self, ino }
    }

    /// A time that is valid across mounts and reboots: since the beginning of 1970, by the clock at the start.
    pub(crate) fn stamp(&self, uptime: Duration) -> Duration {
        self.epoch.saturating_add(uptime)
    }

    /// Failures of the kernel interface: if the error came from a disk, the fast tier must be checked.
    pub fn suspect(&self, error: &Error) {
        if matches!(error, Error::Io { source, .. } if is_broken(source)) {
            self.log.suspect();
            self.blame(error);
        }
    }

    /// Checks the fast tier, which may be the cause of this failure.
    pub(crate) fn blame(&self, error: &Error) {
        if matches!(error, Error::Io { on_fast: true, source, .. } if is_broken(source)) {
            self.fast_has_failed();
        }
    }

    /// Notes that the fast tier could not read or write.
    pub(crate) fn fast_has_failed(&self) {
        let first = !self.fast_fails();
        self.counters.fast_failed.store(self.uptime().as_millis().max(1) as u64, Ordering::Relaxed);
        if first {
            tracing::error!(
                "the fast tier fails to read or write; new files go to the slow tier until it has worked for a minute"
            );
        }
    }

    /// Whether it has failed lately. Then new files do not go there, and its files go to the slow tier at once.
    pub(crate) fn fast_fails(&self) -> bool {
        const LATELY: u64 = 60_000;
        let at = self.counters.fast_failed.load(Ordering::Relaxed);
        at > 0 && (self.uptime().as_millis() as u64).saturating_sub(at) < LATELY
    }

    /// Whether so much waits for the slow tier that changes of all users are refused.
    pub(crate) fn refuses_changes(&self, st: &EngineState) -> bool {
        st.queue.is_full(self.options().pending_most())
    }

    /// Whether changes of one user are refused, whose waiting data may not exceed what is left for others.
    pub(crate) fn refuses_changes_of(&self, st: &EngineState, uid: u32) -> bool {
        let options = self.options();
        let is_limited = !options.is_trusted(uid) && st.queue.has_share(uid, options.pending_most());
        is_limited || self.refuses_changes(st)
    }

    /// How many users are refused further changes while others are not.
    pub(crate) fn users_refused(&self, st: &EngineState) -> u64 {
        if self.refuses_changes(st) {
            return 0;
        }
        st.queue.users().filter(|uid| self.refuses_changes_of(st, *uid)).count() as u64
    }

    /// Reports the failure or success of one kind of background work.
    pub fn report(&self, work: &'static str, failure: Option<&Error>) {
        let full = *self.counters.notes.full.lock();
        let mut troubles = self.counters.troubles.lock();
        match failure {
            Some(error) => {
                self.blame(error);
                troubles.insert(work, (is_silence(error), full.with_remedy(error)));
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

    /// Forgets the failures of all work whose name has this prefix: it has succeeded elsewhere.
    pub(crate) fn forget_failures(&self, work: &str) {
        let mut troubles = self.counters.troubles.lock();
        troubles.retain(|other, (_, why)| !other.starts_with(work) || why == NO_ANSWER);
        self.slow.set_down(troubles.values().any(|(silent, _)| *silent));
    }

    /// Reports that a step has been waiting for the slow tier without progress. Until the step returns, cached answers
    /// are trusted. If other work was answered since it began to wait, the step is only next in line, and the tier does
    /// not count as silent yet.
    pub fn report_silence(&self, work: &'static str, waited: Duration) {
        let answered = Duration::from_millis(self.counters.answered.load(Ordering::Relaxed));
        if !answered.is_zero() && self.uptime() < answered + waited {
            return;
        }
        let mut troubles = self.counters.troubles.lock();
        let told = is_unanswered(&troubles);
        if troubles.insert(work, (true, NO_ANSWER.to_owned())).is_none() && !told {
            tracing::warn!(
                work,
                "the slow tier does not answer; nothing is dropped, work continues when it answers again"
            );
        }
        self.slow.set_down(true);
    }
}

/// Whether some work is known to wait for an answer.
fn is_unanswered(troubles: &Troubles) -> bool {
    troubles.values().any(|(_, why)| why == NO_ANSWER)
}

/// Looks the path up only when the message is written: successful calls, nearly all, need none.
pub(crate) struct FileLabel<'a> {
    core: &'a EngineCore,
    ino: Ino,
}

impl Display for FileLabel<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let label = self.core.label_in(&self.core.state.lock(), self.ino);
        f.write_str(&label)
    }
}

/// The last name known to a pending event; otherwise the number.
fn removed_label(st: &EngineState, ino: Ino) -> String {
    let named = st.queue.events().iter().rev().find_map(|event| {
        let of_it = event.change.inodes().contains(&ino);
        event.change.places().last().filter(|_| of_it).and_then(|at| st.view.path_at(at))
    });
    match named {
        Some(path) => format!("removed file {}", escape(&path)),
        None => format!("removed file {ino}"),
    }
}

impl From<FileLabel<'_>> for String {
    fn from(label: FileLabel<'_>) -> String {
        label.to_string()
    }
}
