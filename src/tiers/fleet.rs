//! Several mounts over one slow tree that keep one order: an operation finds on the slow tree everything that any
//! member had answered before the operation began. The members communicate only through the slow tree.
//!
//! 1. *Stamps*: each event is logged with the time it began and the time it got its place in the log, by this machine's
//!    clock. Stamps never decrease.
//! 2. *Commit wait*: a call that logged an event is answered once the clock is past its `end` by twice the bound for
//!    all clock errors ([`Fleet::wait_for`]). A call that reports a file as durable waits for all that was logged
//!    here, too.
//! 3. *Lease*: the `end` of the oldest event that is not durable on the slow tree, or the clock if there is none. Read
//!    under the state lock, written to the slow tree after it was synced (`fleet/step.rs`).
//! 4. *Gate*: an event is published once each other member's lease is larger than its `start` (`rule.rs`), and that
//!    member's clock is not ahead (`clocks.rs`). Copies are made at any time.
//! 5. *Names*: a member announces what it has published before its lease admits the others, and they look these names
//!    up again (`names.rs`, `views.rs`).
//!
//! `tests/fleet_rule.rs` checks these rules against random schedules, and shows for each what goes wrong without it.
//! `members.rs` has the files on the slow tree, `reader.rs` reads them from outside of the fleet. The engine asks here
//! for stamps and for the gate; all else happens in the background. In a large fleet, one member collects the leases of
//! all (`collector.rs`, `collected.rs`); `periods.rs` has all intervals.

pub(crate) mod appends;
mod clocks;
mod collected;
mod collector;
pub(crate) mod forget;
mod handover;
pub(crate) mod journal;
mod lines;
mod members;
pub(crate) mod names;
mod pace;
pub(crate) mod partner;
pub(crate) mod periods;
pub(crate) mod reader;
pub(crate) mod rule;
mod smallest;
mod step;
mod views;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::config::FleetSettings;
use crate::error::{Error, Result};
use crate::tiers::Lsn;
use crate::tiers::disk::sync::{Mutex, Rank};
use crate::tiers::disk::{Clock, Dir, Time};
use crate::tiers::fleet::appends::AppendClaims;
use crate::tiers::fleet::collector::{CollectedFleet, CollectorDuty};
use crate::tiers::fleet::journal::CopyJournal;
use crate::tiers::fleet::members::{Members, OwnNames};
use crate::tiers::fleet::names::{ChangedName, FILE_MAX, NamesEnd, RecentNames};
use crate::tiers::fleet::pace::LeasePace;
use crate::tiers::fleet::partner::PartnerState;
use crate::tiers::fleet::periods::FleetPeriods;
use crate::tiers::fleet::rule::{FleetGate, Loss, MemberLease, SeenLease, Standing};
use crate::tiers::log::record::Stamps;

/// An answer waits at most this long beyond the bounds of the clocks. If a clock was set back for hours, its machine
/// continues, and no member publishes until that clock has caught up.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// A member that holds up our events for this long is reported by name.
const REFUSED_LONG: Duration = Duration::from_secs(5);
/// The bound for the clocks' errors where neither the configuration nor the fleet has one.
const CLOCK_ERROR: Duration = Duration::from_millis(20);

/// This mount's membership.
#[derive(derive_more::Debug)]
#[debug("Fleet({name}, member {slot} of {size})")]
pub(crate) struct Fleet {
    pub(crate) name: String,
    /// This member: its slot number and the fast tier's id.
    slot: u32,
    id: Uuid,
    turn: u32,
    /// This start of the fast tier's daemon.
    start: Uuid,
    host: String,
    size: u32,
    error: Duration,
    /// `clock_error` is configured: skip adjtimex.
    believed: bool,
    members: Members,
    pub(crate) periods: FleetPeriods,
    pub(crate) journal: CopyJournal,
    pub(crate) appends: Arc<AppendClaims>,
    /// No new stamp is smaller.
    floor: AtomicU64,
    /// The last event's stamp.
    last_end: AtomicU64,
    /// A caller wants to know how far all members are.
    is_asked: AtomicBool,
    /// A program has asked for a name or an attribute since the others' leases were read.
    used: AtomicBool,
    state: Mutex<FleetState>,
    /// What is known of the copy of the fast tier.
    pub(crate) partner: Mutex<PartnerState>,
}

#[derive(Debug)]
struct FleetState {
    /// The beat of the last lease written, or begun to be written.
    beat: u64,
    /// The last lease written.
    least: u64,
    /// The clock error exceeds the fleet's bound, so stamps mean little: the lease stays as it is.
    off: bool,
    /// Our uptime when the last written lease was read from the log.
    written: Option<Duration>,
    /// The stamp of the oldest pending event at that time.
    oldest: Option<u64>,
    /// The members' leases, by slot. Ours as on the slow tree, if a caller has asked for it.
    seen: Vec<Option<SeenLease>>,
    /// How often leases are read, and whose.
    pace: LeasePace,
    /// What replaces `seen` where one member collects the leases.
    collected: Option<CollectedFleet>,
    /// How far we have followed the members' published names, by slot.
    followed: Vec<NamesEnd>,
    /// Our uptime when the other leases were last read, and when ours was included.
    read: Option<Duration>,
    read_all: Option<Duration>,
    /// Lines for names that we have published but not announced, and our file of names.
    untold: Vec<u8>,
    names: OwnNames,
    /// What the other members announced lately.
    told: RecentNames,
    /// The loss of this slot's former members, as our lease states it.
    loss: Option<Loss>,
    /// Events up to this LSN were logged while the clock was off, and are not all published yet.
    undated: Option<Lsn>,
    /// Since when the others have held up our pending events.
    refused: Option<Duration>,
    /// Why nothing is published until an operator acts.
    lost: Option<String>,
    /// What is wrong with this machine's clock.
    clock: Option<String>,
}

/// Nanoseconds since 1970.
pub(crate) fn nanos(time: Time) -> u64 {
    u64::try_from(time.sec).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(time.nsec.into())
}

impl Fleet {
    /// Takes a slot in the fleet for this mount, or finds its own again. `ours` is `.dlio-fs` on the slow tree, `uuid`
    /// the fast tier's id. In a fleet of more than `collect_above` members, one collects the leases of all.
    ///
    /// Errors: the fleet has another size or another bound for the clocks; all slots are taken.
    pub(crate) fn join(
        ours: &dyn Dir,
        settings: &FleetSettings,
        (uuid, turn, start): (&str, u32, &str),
        collect_above: u32,
    ) -> Result<Fleet> {
        let id = Uuid::try_parse(uuid).map_err(|why| Error::refused(why.to_string(), "report this"))?;
        let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok()).unwrap_or_default();
        let first =
            MemberLease { start: Uuid::try_parse(start).unwrap_or_default(), ..MemberLease::first(id, host, turn) };
        let (members, slot, lease) = Members::join(ours, settings, CLOCK_ERROR, &first)?;
        let size = settings.size as usize;
        let (beat, least, loss) = (lease.beat, lease.least, lease.lost);
        let is_collected = settings.size > collect_above.max(1);
        let periods = FleetPeriods::new(settings.size, is_collected);
        let collected = is_collected.then(|| CollectedFleet::new(CollectorDuty::new(slot, settings.size, periods)));
        // A new mount knows no names yet: earlier published ones are no news.
        let told = |slot| members.read(slot).ok().flatten().map(|lease| lease.names).unwrap_or_default();
        let followed = if is_collected { Vec::new() } else { (0..settings.size).map(told).collect() };
        // A member that has not left may have published more than it announced. With beat 0 it has published nothing.
        let is_told = lease.standing == Standing::Left || beat == 0;
        let names = OwnNames::ending_at(if is_told { lease.names } else { lease.names.lost() });
        let state = FleetState {
            beat,
            least,
            off: false,
            written: None,
            oldest: None,
            seen: vec![None; size],
            pace: LeasePace::new(slot, settings.size),
            collected,
            followed,
            read: None,
            read_all: None,
            untold: Vec::new(),
            names,
            told: RecentNames::default(),
            loss,
            undated: None,
            refused: None,
            lost: None,
            clock: None,
        };
        let appends = Arc::new(AppendClaims::open(members.dir(), slot, id)?);
        let fleet = Fleet {
            name: settings.name.clone(),
            slot,
            id,
            turn,
            start: first.start,
            host: first.host,
            size: settings.size,
            error: members.agreed.error,
            believed: members.agreed.is_believed,
            members,
            periods,
            journal: CopyJournal::new(),
            appends,
            floor: AtomicU64::new(lease.least),
            last_end: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            used: AtomicBool::new(false),
            state: Mutex::new(Rank::Leaf, state),
            partner: Mutex::default(),
        };
        if lease.beat > 0 || lease.start != fleet.start {
            // Writes the lease at join, before anything is logged; the replay comes first. The replay also finishes an
            // interrupted group: no member that watches this one may do so at the same time. A copy of the fast tier
            // may not know of that group: until it is made again, the lease names none.
            fleet.write_as_found(lease.least, Standing::Here)?;
        }
        Ok(fleet)
    }

    /// Splits a task that one member does for all among this many turns: returns the number of turns, and this
    /// member's.
    pub(crate) fn turns(&self, of: u32) -> (u32, u32) {
        let turns = self.size.div_ceil(of.max(1)).max(1);
        (turns, self.slot % turns)
    }

    /// The fast tier's id.
    pub(crate) fn id(&self) -> Uuid {
        self.id
    }

    /// Adopts the log's stamps: later stamps are never smaller.
    pub(crate) fn know(&self, stamps: &[(Lsn, Stamps)]) {
        for (_, Stamps { start, end }) in stamps {
            self.floor.fetch_max(*start.max(end), Ordering::AcqRel);
        }
    }

    /// A new stamp, never smaller than an earlier one.
    pub(crate) fn stamp(&self, now: Time) -> u64 {
        let now = nanos(now);
        self.floor.fetch_max(now, Ordering::AcqRel).max(now)
    }

    /// The stamps of an event that is logged now. The caller holds the state lock until the event is queued. `start` is
    /// when it began, if that is known to be earlier.
    pub(crate) fn stamps(&self, now: Time, start: Option<u64>) -> Stamps {
        let end = self.stamp(now);
        self.last_end.store(end, Ordering::Release);
        Stamps { start: start.unwrap_or(end), end }
    }

    /// How long to wait until the last logged event, by whatever call, is in the past on every clock.
    pub(crate) fn wait_for_all(&self, now: Time) -> Duration {
        self.wait_for(self.last_end.load(Ordering::Acquire), now)
    }

    /// How long to wait until an event that ended at this stamp is in the past on every clock.
    pub(crate) fn wait_for(&self, end: u64, now: Time) -> Duration {
        if end == 0 || left_out!(CommitWait) {
            return Duration::ZERO;
        }
        let past = Duration::from_nanos(end) + 2 * self.error + Duration::from_nanos(1);
        past.saturating_sub(Duration::from_nanos(nanos(now))).min(2 * self.error + WAIT_MAX)
    }

    /// Which events the others' leases admit. `now` is our uptime.
    pub(crate) fn gate(&self, now: Duration) -> FleetGate {
        let state = self.state.lock();
        if state.clock.is_some() || !self.may_publish(&state, now) {
            return FleetGate::Shut;
        }
        let collected = self.smallest(&state).map(|smallest| smallest.gate());
        collected.unwrap_or_else(|| rule::gate(self.id, self.slot, &state.seen, 2 * self.error))
    }

    /// Whether the others still count on this member: checked before each step, even of admitted events.
    pub(crate) fn may_go_on(&self, now: Duration) -> bool {
        self.may_publish(&self.state.lock(), now)
    }

    /// Notes published names: the next lease is written only after the others can read them.
    pub(crate) fn note_published(&self, names: &[ChangedName]) {
        let mut state = self.state.lock();
        // No member would read them.
        if state.collected.is_some() {
            return;
        }
        for name in names {
            // Names beyond this size are not announced one by one.
            if state.untold.len() as u64 <= FILE_MAX {
                state.untold.extend_from_slice(name.encode().as_bytes());
            }
        }
    }

    /// Whether another member's file that an event of ours finds existed before the event began. If so, the event
    /// replaces it, or removes it with its directory, as on one machine.
    pub(crate) fn was_there(&self, path: &[u8], ino: u64, start: u64) -> bool {
        let errors = 2 * self.error.as_nanos() as u64;
        !left_out!(TheirEnds) && self.state.lock().told.was_there(path, ino, start, errors)
    }

    pub(crate) fn note_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Notes whether the gate refused the oldest event.
    pub(crate) fn note_refusal(&self, refused: bool, now: Duration) {
        let mut state = self.state.lock();
        state.refused = if refused { state.refused.or(Some(now)) } else { None };
    }

    /// Why nothing is published and what to do about it, in words. `None`: events are published, or wait for nothing
    /// unusual.
    pub(crate) fn held(&self, now: Duration, pending: bool) -> Option<String> {
        let state = self.state.lock();
        let own = || (!self.is_fresh(&state, now)).then(|| "its own lease on the slow tier is not written".to_owned());
        let has_read = pending && state.read.is_some();
        let others = || self.missing(&state, now).filter(|_| has_read);
        let is_refused = has_read && state.refused.is_some_and(|since| now.saturating_sub(since) > REFUSED_LONG);
        let last = || self.last(&state).filter(|_| is_refused);
        let why = state.lost.clone().or_else(|| state.clock.clone());
        let why = why.or_else(own).or_else(others).or_else(last)?;
        Some(format!("fleet {}, member {} of {}: {why}", self.name, self.slot, self.size))
    }

    /// Why this member never publishes again.
    pub(crate) fn lost(&self) -> Option<String> {
        self.state.lock().lost.clone()
    }

    fn missing(&self, state: &FleetState, now: Duration) -> Option<String> {
        match self.smallest(state) {
            None => rule::missing(self.slot, &state.seen, now),
            Some(smallest) => smallest.missing(now, self.periods.silent),
        }
    }

    fn last(&self, state: &FleetState) -> Option<String> {
        match self.smallest(state) {
            None => rule::last(self.slot, &state.seen, 2 * self.error),
            Some(smallest) => smallest.last(),
        }
    }

    fn may_publish(&self, state: &FleetState, now: Duration) -> bool {
        state.lost.is_none() && self.is_fresh(state, now)
    }

    /// Whether our own lease was written recently.
    fn is_fresh(&self, state: &FleetState, now: Duration) -> bool {
        let is_fresh = state.written.is_some_and(|at| now.saturating_sub(at) < self.periods.own_lease_max);
        is_fresh || left_out!(FreshLease)
    }

    /// Whether the clock is within the fleet's bound, as far as this machine knows.
    pub(crate) fn has_right_clock(&self) -> bool {
        self.state.lock().clock.is_none()
    }

    /// Compares the clock with the fleet's bound.
    fn check_clock(&self, clock: &dyn Clock) {
        // In this order: a stamp that another thread takes meanwhile must not look like a clock that was set back.
        let floor = self.floor.load(Ordering::Acquire);
        let back = floor.saturating_sub(nanos(clock.now()));
        let error = if self.believed { Some(Duration::ZERO) } else { clock.error() };
        let trouble = if back > 0 {
            let by = humantime::format_duration(Duration::from_millis(back.div_ceil(1_000_000)));
            Some(format!("this machine's clock was set back by {by}; nothing is published until it has caught up"))
        } else {
            not_exact(&self.name, error, self.error)
        };
        let is_off = back == 0 && trouble.is_some();
        let mut state = self.state.lock();
        // Set back by less, it may have been right before and be right now.
        state.off = is_off || back > 2 * self.error.as_nanos() as u64;
        if let Some(why) = trouble.as_ref().filter(|_| state.clock.is_none()) {
            tracing::warn!(why, "nothing is published in this fleet");
        }
        state.clock = trouble;
    }
}

/// What is wrong with this machine's clock for a fleet of this name and bound, and what to do. `error`: the clock's
/// largest possible error.
pub(crate) fn not_exact(fleet: &str, error: Option<Duration>, bound: Duration) -> Option<String> {
    if error.is_some_and(|error| error <= bound) {
        return None;
    }
    let bound = humantime::format_duration(bound);
    let is = match error {
        Some(error) => {
            format!("may be off by {}", humantime::format_duration(Duration::from_millis(error.as_millis() as u64)))
        }
        None => "is not synchronized".to_owned(),
    };
    Some(format!(
        "this machine's clock {is}, the fleet's bound is {bound}; let chrony or systemd-timesyncd run here, or unmount all \
         members and say `dlio-fs clock-error {fleet} TIME --slow DIR` with what all their clocks keep"
    ))
}

#[cfg(test)]
#[path = "../../tests/simulations/few.rs"]
mod few;
#[cfg(test)]
#[path = "../../tests/simulations/many.rs"]
mod many;
