//! A refusal holds its user (P15): what the slow tier refuses for a reason that lies in one user's directory, file or
//! quota ([`holds_its_user`]) holds the later events of this user, and those that depend on them. The events of all
//! other users continue (P1's exception).
//!
//! `model/held.rs` says which events are held. They are moved behind all others, with new numbers at the end of the
//! log, so that there is one order before and after, and the slow tree is a prefix of it. At the front again they are
//! retried, and moved again if the reason persists. *Order of a move:*
//!
//! 1. End the current group in front of the refused batch. If that batch is half done, or everything is held, all wait
//!    as they would for any other refusal.
//! 2. Read the log behind `applied`. This takes no lock.
//! 3. Under the state lock, read what was logged since. Every record about a version of a file is logged under this
//!    lock.
//! 4. In one append, log the held events again, with the other records about their files, and `moved`, which makes the
//!    new records count and voids the old ones. A crash before its end changes nothing.
//! 5. Update the queue and everything that knows an event by its number. Copies get their new names when they are
//!    published ([`Tiers::name_copies`]).
//!
//! The intents of the next group are durable only after 4, because the log is synced as a whole.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::error::{Context, Errno, Error, Result};
use crate::path::escape;
use crate::stats::status as stats;
use crate::tiers::disk::RenameMode;
use crate::tiers::disk::errors::{RefusedAt, holds_its_user, with_remedy};
use crate::tiers::disk::layout::remove_leftover;
use crate::tiers::log::record::{EventOrigin, Record, in_present_order};
use crate::tiers::model::held::{HeldEvents, held_with};
use crate::tiers::model::publish_plan::{Batch, Effect, missing_at_front};
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::parts::{bare, copied_event, copy_name, in_part, lane_of};
use crate::tiers::sorted::beside;
use crate::tiers::writeback::group::Unfinished;
use crate::tiers::writeback::parts::PROBE;
use crate::tiers::{Ino, Lsn, Progress, ROOT, Tiers};

/// The longest time before a held event is retried.
const BACKOFF_MOST: Duration = Duration::from_secs(60);
/// The pause after a move: this much for each record that it logged again, and this many times its duration.
const PER_RECORD: Duration = Duration::from_micros(200);
const TIMES_AS_LONG: u32 = 20;
/// More records than this are not moved.
const RECORDS_MAX: usize = 500_000;

/// Why a user's events are held.
#[derive(Debug)]
struct Hold {
    /// Uptimes.
    since: Duration,
    tried: Duration,
    tries: u32,
    /// The file whose copy is refused, if it is a copy.
    copy: Option<Ino>,
    /// What is refused, why, and the remedy.
    path: String,
    reason: String,
}

#[derive(Debug, Default)]
pub(super) struct HeldUsers {
    users: BTreeMap<u32, Hold>,
    /// No move before this time.
    next_move: Duration,
}

impl Tiers {
    /// The users whose events are held, and why.
    pub(crate) fn held_users(&self) -> Vec<stats::HeldUser> {
        let (now, held) = (self.uptime(), self.writeback.held.lock());
        let told = held.users.iter().map(|(uid, Hold { since, path, reason, .. })| stats::HeldUser {
            uid: *uid,
            reason: format!("/{path}: {reason}"),
            held_for: now.saturating_sub(*since),
        });
        told.collect()
    }

    /// How long until this user's events are retried; `None`: they may be tried now.
    pub(super) fn held_for(&self, user: u32) -> Option<Duration> {
        let (tried, tries) = self.writeback.held.lock().users.get(&user).map(|held| (held.tried, held.tries))?;
        // A program waits.
        let tries = if self.has_waiters() { 1 } else { tries };
        let backoff = Duration::from_secs(1 << tries.saturating_sub(1).min(6)).min(BACKOFF_MOST);
        Some((tried + backoff).saturating_sub(self.uptime())).filter(|left| !left.is_zero())
    }

    /// Like `held_for`, for the user of the oldest event.
    pub(super) fn wait_of_front(&self) -> Option<Duration> {
        let user = self.state.lock().queue.events().front().map(|event| event.by)?;
        self.held_for(user)
    }

    pub(super) fn is_held(&self, user: u32) -> bool {
        self.writeback.held.lock().users.contains_key(&user)
    }

    /// Notes that an event of this user was refused.
    fn hold(&self, user: u32, path: String, copy: Option<Ino>, error: &Error) {
        let now = self.uptime();
        let mut held = self.writeback.held.lock();
        let is_new = !held.users.contains_key(&user);
        let (path_of, reason) = (path.clone(), with_remedy(error));
        let new = Hold { since: now, tried: now, tries: 0, copy: None, path, reason: String::new() };
        let one = held.users.entry(user).or_insert(new);
        (one.tried, one.tries, one.copy) = (now, one.tries.saturating_add(1), copy);
        (one.path, one.reason) = (path_of, reason);
        if is_new {
            let (path, reason) = (&one.path, &one.reason);
            tracing::warn!(user, path, reason, "the changes of this user are held; those of others go on");
        }
    }

    /// Releases users whose events were published.
    pub(super) fn let_go(&self, users: impl Iterator<Item = u32>) {
        let mut held = self.writeback.held.lock();
        for user in users {
            if held.users.remove(&user).is_some() {
                tracing::info!(user, "the changes of this user go on");
            }
        }
    }

    pub(super) fn let_all_go(&self) {
        self.writeback.held.lock().users.clear();
    }

    /// Notes that the copy of a version was refused. Returns whether that holds only its user.
    pub(super) fn hold_copy(&self, lsn: Lsn, ino: Ino, error: &Error) -> bool {
        let (user, is_in_part, path) = {
            let st = self.state.lock();
            let dir =
                st.view.get(ino).and_then(|node| node.links.first().or(node.slow().first())).map_or(ROOT, |at| at.0);
            let Some(event) = st.queue.event(lsn) else { return false };
            (event.by, st.view.part_of(dir) != ROOT, self.label_in(&st, ino))
        };
        let holds = holds_its_user(error, if is_in_part { RefusedAt::Part } else { RefusedAt::Tmp });
        if holds {
            self.hold(user, path, Some(ino), error);
        }
        holds
    }

    /// Releases a file that has a copy now.
    pub(super) fn let_copied_go(&self, ino: Ino) {
        self.writeback.held.lock().users.retain(|_, held| held.copy != Some(ino));
    }

    /// Handles a refusal of the next step. If it holds one user, the events of the others go on: `Did`.
    pub(super) fn hold_its_user(&self, error: Error) -> Result<Progress> {
        let mut unfinished = self.writeback.unfinished.lock();
        if !holds_its_user(&error, RefusedAt::Part) {
            return Err(error);
        }
        let at = match error.errno() {
            // A mount of the user's own, over a directory.
            Errno::EROFS if self.can_write() => RefusedAt::Part,
            _ => self.refused_at(unfinished.as_ref()),
        };
        if !holds_its_user(&error, at) {
            return Err(error);
        }
        if self.end_group_for(&mut unfinished, &HashSet::new()).is_err() || unfinished.is_some() {
            return Err(error); // 1
        }
        let front = {
            let st = self.state.lock();
            st.queue.events().front().map(|event| (event.by, self.label_of_event(&st, event.lsn)))
        };
        let Some((user, path)) = front else { return Err(error) };
        self.hold(user, path, None, &error);
        if self.move_behind(user)? { Ok(Progress::Did) } else { Err(error) }
    }

    /// Whether the slow tier itself can be written.
    fn can_write(&self) -> bool {
        let tmp = &self.slow.tmp;
        let made = remove_leftover(&**tmp, PROBE).is_ok() && tmp.create(PROBE, 0o600).is_ok();
        made && remove_leftover(&**tmp, PROBE).is_ok()
    }

    /// If the front is held and must not be tried yet: lets others go first. `None`: the front may be tried. With
    /// `patient` it is not tried even if nothing else can go.
    pub(super) fn let_others_first(&self, patient: bool) -> Result<Option<Progress>> {
        let user = self.state.lock().queue.events().front().map(|event| event.by);
        let Some((user, left)) = user.and_then(|user| Some((user, self.held_for(user)?))) else { return Ok(None) };
        match self.move_behind(user)? {
            true => Ok(Some(Progress::Did)),
            false => Ok(patient.then_some(Progress::Wait(left))),
        }
    }

    /// If the front waits for copies that are refused: lets others go first.
    pub(super) fn pass_refused_copy(&self) -> Result<bool> {
        let users: Vec<u32> = {
            let st = self.state.lock();
            let missing = missing_at_front(&st, false, None);
            missing.into_iter().filter_map(|lsn| st.queue.event(lsn)).map(|event| event.by).collect()
        };
        match users.into_iter().find(|user| self.is_held(*user)) {
            Some(user) => self.move_behind(user),
            None => Ok(false),
        }
    }

    /// A batch refused in its middle would hold every user with events in it: moves held events behind it first.
    pub(super) fn keep_apart(&self, batches: &[Batch]) -> Result<Option<Progress>> {
        let held = {
            let st = self.state.lock();
            let users = |batch: &Batch| -> BTreeSet<u32> {
                st.queue.events().range(batch.events.clone()).map(|event| event.by).collect()
            };
            let mut mixed = batches.iter().map(users).filter(|users| users.len() > 1).flatten();
            mixed.find(|user| self.is_held(*user))
        };
        let Some(user) = held else { return Ok(None) };
        let left = self.writeback.held.lock().next_move.saturating_sub(self.uptime());
        let before = self.state.lock().queue.applied();
        match self.move_behind(user)? {
            true => Ok(Some(Progress::Did)),
            // A filled directory was published first: these batches are of an older queue.
            false if self.state.lock().queue.applied() != before => Ok(Some(Progress::Did)),
            false => Ok(Some(Progress::Wait(left)).filter(|_| !left.is_zero())),
        }
    }

    fn label_of_event(&self, st: &EngineState, lsn: Lsn) -> String {
        let Some(event) = st.queue.event(lsn) else { return String::new() };
        let place = event.change.places().last().and_then(|place| st.view.path_at(place));
        let ino = event.change.inodes().first().copied().unwrap_or(ROOT);
        place.map_or_else(|| self.label_in(st, ino), |path| escape(&path))
    }

    /// Where the next step, or the preparation of the oldest event, was refused.
    fn refused_at(&self, group: Option<&Unfinished>) -> RefusedAt {
        let st = self.state.lock();
        let dir_of =
            |ino: Ino| st.view.get(ino).and_then(|node| node.slow().first().or(node.links.first())).map(|at| at.0);
        let step = group.and_then(|group| group.planned.get(group.met.len()));
        let dir = match (step, st.queue.events().front()) {
            (Some(planned), _) => planned.effects.iter().find_map(|effect| match effect {
                Effect::Name((dir, _), _) => Some(*dir),
                Effect::Touched(ino) => dir_of(*ino),
                Effect::Identity(..) => None,
            }),
            (None, Some(event)) => {
                let place = event.change.places().last().map(|place| place.0);
                place.or_else(|| event.change.inodes().first().and_then(|ino| dir_of(*ino)))
            }
            (None, None) => None,
        };
        match dir {
            Some(dir) if st.view.part_of(dir) != ROOT => RefusedAt::Part,
            _ => RefusedAt::Tree,
        }
    }

    /// Moves this user's events, and what is held with them, behind all others. `false`: nothing would go first, or no
    /// move is possible now. The caller has ended every group.
    fn move_behind(&self, user: u32) -> Result<bool> {
        let began = self.uptime();
        if began < self.writeback.held.lock().next_move {
            return Ok(false);
        }
        // Otherwise two users would move behind each other forever.
        let others: Vec<u32> = self.writeback.held.lock().users.keys().copied().collect();
        let others = others.into_iter().filter(|other| self.held_for(*other).is_some());
        let users: BTreeSet<u32> = others.chain([user]).collect();
        self.stop_filling();
        let mut place = self.log.place_behind(self.state.lock().queue.applied());
        let mut records = self.log.read_on(&mut place)?; // 2
        let mut st = self.state.lock();
        let held = held_with(&st, users);
        let is_held = |lsn: Lsn| held.events.binary_search(&lsn).is_ok();
        let last_free = st.queue.events().iter().rev().find(|event| !is_held(event.lsn)).map(|event| event.lsn);
        let gains = last_free.zip(held.events.first()).is_some_and(|(free, held)| *held < free);
        let moved = if gains && !st.is_inside_batch() {
            records.extend(self.log.read_on(&mut place)?); // 3
            self.log_moved(&st, &held, records)?
        } else {
            Vec::new()
        };
        if !moved.is_empty() {
            st.renumber(&moved, &held.inodes); // 5
            self.counters.notes.renumber(|lsn| beside(&moved, lsn).copied());
            self.counters.totals.held_back.increment(held.events.len() as u64);
        }
        drop(st);
        let took = self.uptime().saturating_sub(began);
        let pause = took.saturating_mul(TIMES_AS_LONG) + PER_RECORD.saturating_mul(moved.len() as u32);
        self.writeback.held.lock().next_move = self.uptime() + pause;
        Ok(!moved.is_empty())
    }

    /// Step 4. Returns the old and the new numbers of the records; `None`: they cannot be moved.
    fn log_moved(
        &self,
        st: &EngineState,
        held: &HeldEvents,
        read: Vec<(Lsn, Record, EventOrigin)>,
    ) -> Result<Vec<(Lsn, Lsn)>> {
        let mut origins: HashMap<Lsn, EventOrigin> = HashMap::new();
        let read = read.into_iter().map(|(lsn, record, origin)| {
            if record.is_event() {
                origins.insert(lsn, origin);
            }
            (lsn, record)
        });
        let applied = st.queue.applied();
        let mut records = in_present_order(read.collect());
        records.retain(|(lsn, _)| *lsn > applied);
        let binds: HashSet<Lsn> = st.uncommitted.bind_records().collect();
        let leaving = held.records(records.iter(), &binds);
        let again: Vec<Lsn> = leaving.iter().filter(|(_, again)| *again).map(|(lsn, _)| *lsn).collect();
        let is_whole = held.events.iter().all(|lsn| again.binary_search(lsn).is_ok());
        if !is_whole || leaving.len() > RECORDS_MAX {
            tracing::debug!(records = leaving.len(), is_whole, "what is held stays in front");
            return Ok(Vec::new());
        }
        let gone = ranges(leaving.iter().map(|(lsn, _)| *lsn));
        let count = again.len();
        let number = |first: Lsn, old: Lsn| again.binary_search(&old).map_or(old, |at| first + at as u64);
        let moved = records.into_iter().filter(|(lsn, _)| again.binary_search(lsn).is_ok());
        let last = self.log.append_each(count + 1, |first| {
            let moved = moved.map(move |(lsn, record)| {
                let record = match record {
                    Record::Seal { of, size } => Record::Seal { of: number(first, of), size },
                    record => record,
                };
                (Record::Again(Box::new(record)), origins.get(&lsn).copied().unwrap_or_default())
            });
            let moved: Vec<(Record, EventOrigin)> = moved.collect();
            moved.into_iter().chain([(Record::Moved { count: count as u64, gone }, EventOrigin::default())])
        })?;
        let first = last - count as u64;
        Ok(again.iter().copied().zip(first..).collect())
    }

    /// Renames copies of moved events after their present number, by which a start finds them. `false`: one has
    /// vanished.
    pub(super) fn name_copies(&self, batches: &[Batch]) -> Result<bool> {
        for (lsn, content) in batches.iter().flat_map(|batch| batch.contents.values()) {
            let copied = content.copy.lock().as_deref().map(|copied| copied.tmp.clone());
            let Some(tmp) = copied.filter(|tmp| copied_event(bare(tmp)).is_some_and(|event| event != *lsn)) else {
                continue;
            };
            let stream = lane_of(bare(&tmp)).and_then(|lane| std::str::from_utf8(lane).ok()?.parse().ok()).unwrap_or(0);
            let name = copy_name(*lsn, stream);
            let (dir, old) = self.slow.tmp_of(&tmp).at("open", "tmp on the slow tier")?;
            match dir.rename(old, &*dir, &name, RenameMode::Replace) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    self.copy_again(content);
                    return Ok(false);
                }
                renamed => renamed.at("rename a copy in", "tmp on the slow tier")?,
            }
            let part = tmp.strip_suffix(old).and_then(|part| part.strip_suffix(b"/")).unwrap_or_default();
            if let Some(copied) = content.copy.lock().as_deref_mut() {
                copied.tmp = in_part(part, &name);
            }
        }
        Ok(true)
    }
}

/// The first and last number of each run of consecutive numbers.
pub(super) fn ranges(numbers: impl Iterator<Item = Lsn>) -> Vec<(Lsn, Lsn)> {
    let mut ranges: Vec<(Lsn, Lsn)> = Vec::new();
    for lsn in numbers {
        match ranges.last_mut().filter(|(_, to)| to + 1 == lsn) {
            Some((_, to)) => *to = lsn,
            None => ranges.push((lsn, lsn)),
        }
    }
    ranges
}
