//! The copy of a fleet member's fast tier in a second directory, `partner_dir`, that another node can reach. If the node is
//! lost, the copy takes the member's place (`recovery/handover.rs`).
//!
//! The copy is a fast tier in a directory named after the member's id, in the state after a power cut, but without
//! `super`, which it gets when it takes the place. It has `log`, `pool`, and the small files in [`TEXTS`]; `partner`
//! has room for two notes of how far its log counts. It does not include objects on the slow tier. One round:
//!
//! 1. under the state lock note the extent of the log, and which events are new; then make that extent durable;
//! 2. copy the objects of sealed versions that are not applied, and make them durable;
//! 3. append to the copy's log what it lacks of that extent, and make it durable;
//! 4. write a note, durably, of how far the copy's log counts (`fleet/partner.rs` has what follows from it for the
//!    lease and for publishing);
//! 5. delete from the copy what the log up to there no longer needs.
//!
//! A power cut of the copy after any step leaves what the last note says, and more that is never read. In a fleet a
//! pending version does not change (`ops/data.rs::make_writable`); an object whose versions are all applied may, so
//! copied objects are identified by the version's event.
//!
//! Each start of the daemon and each failure begins the copy anew: until the copy is whole, the lease says that there
//! is none. A daemon whose lease is old does not touch the copy, because an operator may be handing it the place.
//!
//! No lock is held across a call to the copy.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foldhash::{HashMap, HashMapExt};

use crate::error::{Context, Errno, Error, Result};
use crate::stats::status::PartnerFigures;
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::errors::with_remedy;
use crate::tiers::disk::layout::{OURS, ensure_dir, read_text, remove_leftover, replace_text};
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::{Access, Dir, File};
use crate::tiers::fleet::Fleet;
use crate::tiers::fleet::partner::{CopyNote, CopyRound, NOTE_LEN, NOTES};
use crate::tiers::log::record::Home;
use crate::tiers::log::{LogExtent, segment_name, segment_of};
use crate::tiers::model::event::Change;
use crate::tiers::objects::copy::{CHUNK, copy_data};
use crate::tiers::objects::pool::Pool;
use crate::tiers::objects::version::Content;
use crate::tiers::{Lsn, Progress, Tiers};

/// The pause between two rounds with nothing new: how much older waiting for the copy may make the lease.
const ROUND: Duration = Duration::from_millis(100);
/// After a failure; twice as long after each further one.
const AGAIN: Duration = Duration::from_secs(5);
const AGAIN_MOST: Duration = Duration::from_secs(80);
/// A large object is synced in pieces: a sync of all of it would look as if the partner did not answer.
const SYNC_EACH: u64 = 64 << 20;
/// The temporary name of an object or a text that is being copied.
const BEING_MADE: &[u8] = b"partner.new";
/// Small files that a start reads, apart from `super`.
const TEXTS: [&[u8]; 4] = [b"fleet", b"modes", b"parts", b"pins"];

type OpenDir = Box<dyn Fn() -> Result<Arc<dyn Dir>> + Send + Sync>;

#[derive(derive_more::Debug, Default)]
pub(crate) struct Partner {
    /// Opens the directory for copies, which may hang or fail.
    #[debug(skip)]
    open: OnceLock<OpenDir>,
    /// The state between two rounds. `None` while a round runs.
    mirror: Mutex<Option<Mirror>>,
    retry: Mutex<Retry>,
}

#[derive(Debug, Default)]
struct Retry {
    /// Our uptime before which nothing is retried.
    not_before: Duration,
    failures: u32,
}

/// The copy while it is kept up to date.
#[derive(Debug)]
struct Mirror {
    copy: u64,
    ours: Arc<dyn Dir>,
    logs: Arc<dyn Dir>,
    pool: Pool,
    /// Its objects, each with the event of the copied version, and its size.
    objects: HashMap<u64, (Lsn, u64)>,
    /// Objects whose names are not durable yet: a round may be cut off between two objects.
    unsynced: Vec<u64>,
    /// Its segments: how much of each, and whether the segment is complete.
    segments: BTreeMap<Lsn, (u64, bool)>,
    texts: Vec<Option<String>>,
    notes: Option<Arc<dyn File>>,
    noted: Lsn,
    /// How many notes were written.
    written: u64,
    /// Events were looked at up to here; they are applied up to here.
    seen: Lsn,
    applied: Lsn,
    /// Unapplied versions, by event: those not sealed when they were looked at, and the others.
    unsealed: BTreeMap<Lsn, Arc<Content>>,
    sealed: BTreeMap<Lsn, Arc<Content>>,
    /// How many of these versions have their bytes in an object.
    users: HashMap<u64, u32>,
}

/// The outcome of a round.
enum RoundEnd {
    Whole(CopyRound),
    /// A file that it was about to read is no longer needed.
    Again,
    /// This member may be declared lost.
    Paused,
}

impl Retry {
    /// Returns how long to wait.
    fn failed(&mut self, now: Duration) -> Duration {
        let pause = AGAIN.saturating_mul(1 << self.failures.min(8)).min(AGAIN_MOST);
        (self.not_before, self.failures) = (now + pause, self.failures.saturating_add(1));
        pause
    }
}

impl Tiers {
    /// Called once, before the background is started: how to open the partner directory. Not called outside of a fleet.
    pub fn set_partner(&self, open: OpenDir) {
        let set = self.partner.open.set(open);
        debug_assert!(set.is_ok(), "there is one partner directory");
    }

    /// Whether a copy is configured.
    pub fn has_partner(&self) -> bool {
        self.partner.open.get().is_some()
    }

    /// One round. Its failures are not failures of the tiers: only the copy suffers.
    pub fn partner_step(&self) -> Result<Progress> {
        let (Some(fleet), Some(open)) = (self.order.fleet(), self.partner.open.get()) else {
            return Ok(Progress::Idle);
        };
        let now = self.uptime();
        let not_before = self.partner.retry.lock().not_before;
        if now < not_before {
            return Ok(Progress::Wait(not_before.saturating_sub(now)));
        }
        if !fleet.may_go_on(now) || self.damaged.is_some() {
            return Ok(Progress::Wait(ROUND));
        }
        let kept = self.partner.mirror.lock().take();
        let made = match kept {
            Some(mirror) => self.go_round(fleet, mirror),
            None => self.begin_copy(fleet, open).and_then(|begun| match begun {
                Some(mirror) => self.go_round(fleet, mirror),
                None => Ok(Progress::Wait(ROUND)),
            }),
        };
        made.or_else(|error| {
            let is_new = fleet.partner.lock().trouble().is_none();
            fleet.partner.lock().give_up(with_partner_remedy(&error));
            if is_new {
                tracing::warn!(%error, "the copy at the partner is given up; it is made anew once the directory takes it");
            }
            let pause = self.partner.retry.lock().failed(now);
            Ok(Progress::Wait(pause))
        })
    }

    /// `None`: the lease may still name the previous copy.
    fn begin_copy(&self, fleet: &Fleet, open: &OpenDir) -> Result<Option<Mirror>> {
        // Any number that no earlier copy had.
        let copy = uuid::Uuid::new_v4().as_u64_pair().1 | 1;
        if !fleet.partner.lock().begin(copy) {
            return Ok(None);
        }
        fleet.partner.lock().asked(copy, self.uptime());
        let partner = open()?;
        let root = ensure_dir(&*partner, fleet.id().to_string().as_bytes())?;
        // A different owner could change what is to replace the fast tier.
        let owner = |dir: &dyn Dir| dir.stat(b".").map(|stat| stat.uid).at("stat", "the partner directory");
        if owner(&*root)? != owner(&*partner)? {
            let what = format!("the directory {} in the partner directory is another user's", fleet.id());
            return Err(Error::refused(what, "find out where it comes from, then remove it"));
        }
        let is_own = |stat: io::Result<crate::tiers::disk::Stat>| stat.map(|stat| (stat.dev, stat.ino)).ok();
        if is_own(root.stat(b".")) == is_own(self.fast.stat(b".")) {
            let what = "the partner directory has this very fast tier";
            return Err(Error::refused(what, "choose another partner_dir for a fast tier that was a copy"));
        }
        expect_copy(&*root)?;
        Mirror::begin(copy, &*root).map(Some)
    }

    fn go_round(&self, fleet: &Fleet, mut mirror: Mirror) -> Result<Progress> {
        let copy = mirror.copy;
        let goes_on = || {
            let now = self.uptime();
            fleet.partner.lock().asked(copy, now) && fleet.may_go_on(now)
        };
        let is_kept = || fleet.partner.lock().asked(copy, self.uptime());
        if !is_kept() {
            // Removing an old copy took too long: the next round has less to remove.
            return Ok(Progress::Did);
        }
        fleet.partner.lock().round_begins(self.uptime());
        let noted = mirror.noted;
        let progress = match self.round(&mut mirror, &goes_on)? {
            RoundEnd::Whole(round) => {
                if !fleet.partner.lock().done(copy, round) {
                    // It was given up meanwhile.
                    return Ok(Progress::Did);
                }
                self.partner.retry.lock().failures = 0;
                if round.noted > noted {
                    self.wake();
                }
                Progress::Wait(ROUND)
            }
            RoundEnd::Again => Progress::Did,
            RoundEnd::Paused if !is_kept() => return Ok(Progress::Did),
            RoundEnd::Paused => {
                fleet.partner.lock().is_not_asked();
                Progress::Wait(ROUND)
            }
        };
        *self.partner.mirror.lock() = Some(mirror);
        Ok(progress)
    }

    /// Steps 1 to 5.
    fn round(&self, mirror: &mut Mirror, goes_on: &dyn Fn() -> bool) -> Result<RoundEnd> {
        let (extent, mut round) = self.begin_round(mirror)?; // 1
        let texts = self.on_fast_tier(&extent)?;
        if !goes_on() {
            return Ok(RoundEnd::Paused);
        }
        mirror.copy_texts(texts)?;
        let objects_first = !left_out!(PartnerObjects);
        if objects_first && let Some(end) = mirror.copy_objects(&self.pool, goes_on)? {
            return Ok(end);
        } // 2
        if extent.last > mirror.noted {
            match mirror.copy_log(&extent, |first| self.log.segment(first), goes_on)? {
                Some(true) => {} // 3
                Some(false) => return Ok(RoundEnd::Paused),
                None => return Ok(RoundEnd::Again),
            }
            let member = self.order.fleet().map(Fleet::id).unwrap_or_default();
            let LogExtent { tail: segment, len, last: lsn, .. } = extent;
            mirror.note(&CopyNote { member, copy: mirror.copy, lsn, segment, len })?; // 4
        }
        round.noted = mirror.noted;
        if !mirror.forget_applied(&extent, goes_on)? {
            return Ok(RoundEnd::Paused);
        } // 5
        if !objects_first {
            mirror.copy_objects(&self.pool, goes_on)?;
        }
        Ok(RoundEnd::Whole(round))
    }

    /// The rest of step 1, and the small files. The partner is not asked: time spent on this tier is not its silence.
    fn on_fast_tier(&self, extent: &LogExtent) -> Result<Vec<Option<String>>> {
        if let Some(fleet) = self.order.fleet() {
            fleet.partner.lock().is_not_asked();
        }
        self.log.sync(extent.last)?;
        let ours = self.fast.dir(OURS).at_fast("open", ".dlio-fs")?;
        TEXTS.into_iter().map(|name| read_text(&*ours, name)).collect()
    }

    /// Step 1.
    fn begin_round(&self, mirror: &mut Mirror) -> Result<(LogExtent, CopyRound)> {
        let now = self.now();
        let st = self.state.lock();
        let extent = self.log.extent()?;
        for event in st.queue.events().range(st.queue.index_behind(mirror.seen)..) {
            if let Change::Content { content, .. } = &event.change {
                mirror.add(event.lsn, content);
            }
        }
        (mirror.seen, mirror.applied) = (extent.last, st.queue.applied());
        // The seal of a sealed version is in the log by now.
        let open = mirror.unsealed.iter().find(|(_, content)| !content.is_sealed() && !content.is_applied());
        let whole = open.map_or(extent.last, |(lsn, _)| lsn - 1);
        let oldest = st.queue.oldest_stamps(0).map(|stamps| stamps.end);
        let least = oldest.or_else(|| self.order.fleet().map(|fleet| fleet.stamp(now))).unwrap_or(0);
        Ok((extent, CopyRound { noted: 0, whole, oldest, least }))
    }

    /// Whether a group whose intents are in the log up to here may be applied.
    pub(crate) fn is_in_copy(&self, intents: Lsn) -> bool {
        self.order.fleet().is_none_or(|fleet| fleet.partner.lock().lets_go(intents))
    }

    /// How far the copy is. `None`: none is configured.
    pub(crate) fn partner_figures(&self) -> Option<PartnerFigures> {
        let (fleet, _) = (self.order.fleet()?, self.partner.open.get()?);
        let (lost, now) = (fleet.lost(), self.uptime());
        let (whole, is_good, trouble, waits) = match lost {
            // Its copy is refused from now on.
            Some(why) => (0, false, Some(why), None),
            None => {
                let partner = fleet.partner.lock();
                (partner.whole(), partner.is_good(), partner.trouble().map(str::to_owned), partner.waits(now))
            }
        };
        let st = self.state.lock();
        let behind = st.queue.events().range(st.queue.index_behind(whole)..);
        let size = |change: &Change| if let Change::Content { content, .. } = change { content.size } else { 0 };
        let bytes = behind.clone().map(|event| size(&event.change)).sum();
        let events = behind.len() as u64;
        // An open file that was written to has no event yet.
        let open_files = st.uncommitted.len() as u64;
        let safe = events == 0 && open_files == 0 && self.damaged.is_none();
        Some(PartnerFigures { safe_if_one_node_is_lost: safe, is_good, events, bytes, open_files, trouble, waits })
    }
}

/// The pool file with the bytes of a version, and their number. `None`: they are on the slow tier.
fn in_pool(content: &Content) -> Option<(u64, u64)> {
    let object = content.object();
    match object.home {
        Home::Fast => Some((object.number, content.size)),
        Home::Slow => None,
        Home::Split { head, at } => Some((head, content.size.min(at))),
    }
}

/// Like [`with_remedy`], for an error that may be the partner's.
fn with_partner_remedy(error: &Error) -> String {
    let remedy = match (error, error.errno()) {
        (Error::Refused { .. } | Error::Io { on_fast: true, .. }, _) => return with_remedy(error),
        (_, Errno::ENOSPC | Errno::EDQUOT) => "free space or raise the quota at partner_dir",
        (_, Errno::EACCES | Errno::EPERM | Errno::EROFS) => "let dlio-fs write to partner_dir",
        _ => "it is tried again until it succeeds; see whether partner_dir can be reached",
    };
    format!("{error}; {remedy}")
}

/// A copy has no `super` until it takes the member's place. With one it is a fast tier, perhaps this very one by
/// another path.
fn expect_copy(root: &dyn Dir) -> Result<()> {
    let there = absent_is_none(root.dir(OURS).and_then(|ours| ours.stat(b"super")));
    match there.at("look for a copy in", "the partner directory")? {
        None => Ok(()),
        Some(_) => Err(Error::refused(
            "the partner directory has a fast tier with this member's id, and no copy",
            "choose another partner_dir for a fast tier that was a copy; if `dlio-fs forget --partner` was cut off and the member has come back, remove that directory",
        )),
    }
}

impl Mirror {
    /// Removes the rest of an earlier copy, its marks as a copy first.
    fn begin(copy: u64, root: &dyn Dir) -> Result<Mirror> {
        let ours = ensure_dir(root, OURS)?;
        remove_leftover(&*ours, NOTES)?;
        ours.sync().at("fsync", "the copy")?;
        remove_leftover(&*ours, BEING_MADE)?;
        TEXTS.into_iter().try_for_each(|name| remove_leftover(&*ours, name))?;
        for name in [&b"pool"[..], b"quarantine"] {
            ensure_dir(&*ours, name)?;
        }
        let logs = ensure_dir(&*ours, b"log")?;
        for entry in logs.list().at("list", "the copy's log")? {
            if segment_of(&entry.name).is_some() {
                remove_leftover(&*logs, &entry.name)?;
            }
        }
        let pool = Pool::open(&*ours, 8)?;
        for number in pool.numbers()? {
            pool.remove(number).at("remove", "an old object of the copy")?;
        }
        Ok(Mirror {
            copy,
            ours,
            logs,
            pool,
            objects: HashMap::new(),
            unsynced: Vec::new(),
            segments: BTreeMap::new(),
            texts: vec![None; TEXTS.len()],
            notes: None,
            noted: 0,
            written: 0,
            seen: 0,
            applied: 0,
            unsealed: BTreeMap::new(),
            sealed: BTreeMap::new(),
            users: HashMap::new(),
        })
    }

    fn add(&mut self, lsn: Lsn, content: &Arc<Content>) {
        self.unsealed.insert(lsn, content.clone());
        if let Some((number, _)) = in_pool(content) {
            *self.users.entry(number).or_default() += 1;
        }
    }

    fn copy_texts(&mut self, texts: Vec<Option<String>>) -> Result<()> {
        for ((name, known), text) in TEXTS.into_iter().zip(&mut self.texts).zip(texts) {
            if let Some(text) = text.as_ref().filter(|text| known.as_ref() != Some(text)) {
                replace_text(&*self.ours, name, text)?;
            }
            *known = text;
        }
        Ok(())
    }

    /// Step 2. Returns what ends the round before its log is copied.
    fn copy_objects(&mut self, from: &Pool, goes_on: &dyn Fn() -> bool) -> Result<Option<RoundEnd>> {
        // If its seal is being logged, the copied part of the log may contain it.
        let sealing: Vec<(Lsn, Arc<Content>)> = self
            .unsealed
            .range(self.applied + 1..)
            .filter(|(_, content)| content.is_sealing())
            .map(|(lsn, content)| (*lsn, content.clone()))
            .collect();
        let mut is_missing = false;
        for (lsn, content) in sealing {
            let Some((number, size)) = in_pool(&content) else { continue };
            if self.has_object(number, lsn, size) {
                continue;
            }
            // Applied since the round began: its object may be gone, or have other bytes.
            if content.is_applied() {
                is_missing = true;
                continue;
            }
            match self.copy_object(from, number, size, goes_on) {
                Ok(true) => {}
                Ok(false) => return Ok(Some(RoundEnd::Paused)),
                // Applied just now, and deleted.
                Err(error) if error.kind() == io::ErrorKind::NotFound && content.is_applied() => {
                    is_missing = true;
                    continue;
                }
                Err(error) => return Err(Error::io("copy to the partner", format!("object {number}"), error)),
            }
            self.objects.insert(number, (lsn, size));
            self.unsynced.push(number);
        }
        self.pool.sync_names(self.unsynced.iter().copied()).at("fsync", "the copy's pool")?;
        self.unsynced.clear();
        // The copied log would contain its seal, but not that it is applied: the next round has both.
        Ok(is_missing.then_some(RoundEnd::Again))
    }

    /// Whether the copy has these bytes: of this version, or of an unchanged one in the same object.
    fn has_object(&self, number: u64, lsn: Lsn, size: u64) -> bool {
        let of_pending = |lsn: &Lsn| {
            let content = self.sealed.get(lsn).or_else(|| self.unsealed.get(lsn));
            content.is_some_and(|content| !content.is_applied())
        };
        self.objects.get(&number).is_some_and(|(copied, has)| *has >= size && (*copied == lsn || of_pending(copied)))
    }

    fn copy_object(&self, from: &Pool, number: u64, size: u64, goes_on: &dyn Fn() -> bool) -> io::Result<bool> {
        let source = from.open_object(number, Access::Unnoticed)?;
        self.ours.unlink(BEING_MADE).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let target = self.ours.create(BEING_MADE, 0o600)?;
        let mut is_cut_off = !goes_on();
        let mut synced = 0;
        let copied = copy_data(&*source, &*target, 0..size, &mut |at, _| {
            is_cut_off |= !goes_on();
            if is_cut_off {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if at >= synced + SYNC_EACH {
                target.sync()?;
                synced = at;
            }
            Ok(())
        });
        if is_cut_off {
            return Ok(false);
        }
        copied?;
        target.set_len(size)?;
        target.sync()?;
        if !goes_on() {
            return Ok(false);
        }
        self.pool.remove(number)?;
        self.pool.adopt(number, &*self.ours, BEING_MADE).map(|()| true)
    }

    /// Step 3. `None`: a segment was deleted meanwhile; `false`: it was cut off.
    fn copy_log(
        &mut self,
        extent: &LogExtent,
        segment: impl Fn(Lsn) -> io::Result<Arc<dyn File>>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<bool>> {
        let what = "the copy's log";
        let mut is_new = false;
        let closed = extent.closed.iter().map(|first| (*first, None));
        for (first, len) in closed.chain([(extent.tail, Some(extent.len))]) {
            let (has, is_whole) = self.segments.get(&first).copied().unwrap_or_default();
            if is_whole {
                continue;
            }
            let source = match segment(first) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => opened.at_fast("open", "a log segment")?,
            };
            let upto = len.map_or_else(|| source.stat().map(|stat| stat.size), Ok).at_fast("stat", "a log segment")?;
            let target = match self.segments.contains_key(&first) {
                true => self.logs.open(&segment_name(first), Access::ReadWrite).at("open", what)?,
                false => {
                    is_new = true;
                    remove_leftover(&*self.logs, &segment_name(first))?;
                    self.logs.create(&segment_name(first), 0o600).at("create", what)?
                }
            };
            if !append(&*source, &*target, has..upto, goes_on).at("write", what)? {
                return Ok(Some(false));
            }
            target.sync().at("fsync", what)?;
            self.segments.insert(first, (upto, len.is_none()));
        }
        if is_new {
            self.logs.sync().at("fsync", what)?;
        }
        Ok(Some(goes_on()))
    }

    /// Step 4.
    fn note(&mut self, note: &CopyNote) -> Result<()> {
        let what = "the copy's notes";
        let file = match &self.notes {
            Some(file) => Arc::clone(file),
            None => self.ours.create(NOTES, 0o600).at("create", what)?,
        };
        file.write_at(&note.encode(), (self.written % 2) * NOTE_LEN as u64).at("write", what)?;
        file.sync().at("fsync", what)?;
        if self.notes.replace(file).is_none() {
            self.ours.sync().at("fsync", what)?;
        }
        self.written += 1;
        self.noted = note.lsn;
        Ok(())
    }

    /// Step 5. `false`: it was cut off.
    fn forget_applied(&mut self, extent: &LogExtent, goes_on: &dyn Fn() -> bool) -> Result<bool> {
        // A version sealed since step 2 is copied in the next round.
        let is_taken = |(lsn, content): &(&Lsn, &Arc<Content>)| {
            let has = in_pool(content).is_none_or(|(number, size)| self.has_object(number, **lsn, size));
            content.is_sealed() && has
        };
        let done: Vec<Lsn> = self.unsealed.iter().filter(is_taken).map(|(lsn, _)| *lsn).collect();
        for lsn in done {
            self.sealed.extend(self.unsealed.remove(&lsn).map(|content| (lsn, content)));
        }
        while let Some(version) = self.next_applied() {
            if !goes_on() {
                return Ok(false);
            }
            self.forget(&version)?;
        }
        let first = extent.closed.first().unwrap_or(&extent.tail);
        while let Some(old) = self.segments.keys().next().copied().filter(|old| old < first) {
            if !goes_on() {
                return Ok(false);
            }
            self.segments.remove(&old);
            remove_leftover(&*self.logs, &segment_name(old))?;
        }
        Ok(true)
    }

    /// The next version that the log up to the last note no longer needs; it is kept until [`Mirror::forget`].
    fn next_applied(&self) -> Option<(Lsn, Arc<Content>)> {
        let applied = [&self.sealed, &self.unsealed].into_iter().filter_map(|versions| versions.first_key_value());
        let next = applied.filter(|(lsn, _)| **lsn <= self.applied).min_by_key(|(lsn, _)| **lsn);
        next.map(|(lsn, content)| (*lsn, content.clone()))
    }

    /// Removes the version's object, unless it holds the bytes of another version, too.
    fn forget(&mut self, (lsn, content): &(Lsn, Arc<Content>)) -> Result<()> {
        self.sealed.remove(lsn).or_else(|| self.unsealed.remove(lsn));
        let Some((number, _)) = in_pool(content) else { return Ok(()) };
        let Some(users) = self.users.get_mut(&number) else { return Ok(()) };
        *users -= 1;
        if *users > 0 {
            return Ok(());
        }
        self.users.remove(&number);
        if self.objects.remove(&number).is_some() {
            self.pool.remove(number).at("remove", "an object of the copy")?;
        }
        Ok(())
    }
}

/// Copies these bytes. `false`: it was cut off.
fn append(from: &dyn File, to: &dyn File, range: std::ops::Range<u64>, goes_on: &dyn Fn() -> bool) -> io::Result<bool> {
    let mut at = range.start;
    let mut bytes = vec![0; CHUNK.min(range.end.saturating_sub(at) as usize)];
    while at < range.end {
        if !goes_on() {
            return Ok(false);
        }
        let want = bytes.len().min((range.end - at) as usize);
        match from.read_into(bytes.get_mut(..want).unwrap_or_default(), at)? {
            [] => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => {
                to.write_at(got, at)?;
                at += got.len() as u64;
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes to the slow tier, or to what waits for it, do not help a partner.
    #[test]
    fn the_remedy_for_a_partner_s_trouble_is_at_the_partner() {
        for errno in [Errno::ENOSPC, Errno::EDQUOT, Errno::EROFS, Errno::EACCES, Errno::EIO, Errno::ESTALE] {
            let told = with_partner_remedy(&Error::io("copy to the partner", "object 4", errno.into()));
            assert!(
                told.contains("partner_dir") && !told.contains("slow tier") && !told.contains("set-aside"),
                "{told}"
            );
        }
    }
}
