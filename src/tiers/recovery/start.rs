//! The steps of every start: from the state of the two tiers to an engine that is ready to serve.
//!
//! 1. Make or check the fast tier's layout, and identify the slow tier (P7).
//! 2. Read the log and cut a torn tail. Another thread lists the objects meanwhile. Then look at each.
//! 3. Finish the intents behind the last `applied` on the slow tier: their group was under way. If a step is refused,
//!    or has nothing to place any more, the events from its batch on stay pending. If that batch is half done, or a
//!    step behind it is done, the daemon takes it over (`recovery/takeover.rs`): no refused step keeps a mount from
//!    starting (P15).
//! 4. Delete copies in `tmp` that will not be published.
//! 5. Replay the records behind `applied` into the view. After another boot, content that was not sealed is discarded,
//!    and the version before it is shown.
//! 6. Attach the objects in use, keep clean ones until their file is looked up, delete superseded ones, and quarantine
//!    those that no record explains.
//! 7. Log `start`, new `bind` records and `applied`, so that the next start need not repeat 3.
//! 8. Mark what a cut-off writer left: it waits for a close, a sync or a drain that accepts it as it is. If it
//!    overwrote a pending version, everything behind that version waits, too.
//!
//! A crash after any step repeats it. Step 1 is in `recovery/identity.rs`, step 3 in `recovery/intents.rs`, step 5 in
//! `recovery/replay.rs`; what is done with the pool's objects in 2 and 6 is in `recovery/objects.rs`.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use foldhash::{HashMap, HashMapExt, HashSet};

use crate::error::{Context, Error, Result};
use crate::path::escape;
use crate::tiers::copies::index::Copies;
use crate::tiers::copies::reads::Reads;
use crate::tiers::core::{CoreParts, EngineCore};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::{OURS, ensure_dir, read_text, remove_leftover, remove_tree, replace_text};
use crate::tiers::disk::{Clock, Dir, DirEntry, Kind, NewAttr, closed, modes};
use crate::tiers::drain_control::DrainControl;
use crate::tiers::fleet::Fleet;
use crate::tiers::log::dirs::LoggedPath;
use crate::tiers::log::record::{Record, Step};
use crate::tiers::log::{self, Log, OpenedLog};
use crate::tiers::model::view::{FIRST_OWN, View};
use crate::tiers::objects::abilities::{AT_MOST, Abilities};
use crate::tiers::objects::file::FileState;
use crate::tiers::objects::parts::{Parts, in_part, is_lane};
use crate::tiers::objects::pool::Pool;
use crate::tiers::objects::slow_tier::SlowTier;
use crate::tiers::ops::SharedByCalls;
use crate::tiers::order::Order;
use crate::tiers::partner::Partner;
use crate::tiers::pins::Pins;
use crate::tiers::progress::WorkKind;
use crate::tiers::recovery::identity::{Super, existing_tmp, identify};
use crate::tiers::recovery::left_out::set_aside;
use crate::tiers::recovery::objects::{LOOKS_EACH, ObjectLook, expect_empty, look_at, unproven};
use crate::tiers::recovery::replay::object_of;
use crate::tiers::recovery::state::{Bound, Half, Recovery, carried};
use crate::tiers::saved::SavedWatch;
use crate::tiers::staging::jobs::StagingJobs;
use crate::tiers::writeback::Writeback;
use crate::tiers::{Ino, Lsn, Options, Tiers};

/// Whether a mount may change its slow tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowTree {
    Writable,
    /// Nothing is made or removed there. For a mount that takes no changes; pending changes are shown, and wait for a
    /// mount that may write.
    ReadOnly,
}

/// Opens both tiers, recovers, and returns the engine ready to serve. The fast tier must be locked by the caller.
///
/// `fast` and `slow` are the tiers' roots. `boot` names this boot of the machine: content that was not sealed in
/// another boot is discarded.
pub fn open(
    fast: Arc<dyn Dir>,
    slow: Arc<dyn Dir>,
    tree: SlowTree,
    options: Options,
    clock: Arc<dyn Clock>,
    boot: &str,
) -> Result<Tiers> {
    let writable = tree == SlowTree::Writable;
    let ours = ensure_dir(&*fast, OURS)?;
    for name in [&b"log"[..], b"pool", b"quarantine"] {
        ensure_dir(&*ours, name)?;
    }
    let mut identity = identify(&*ours, &*slow, writable)?; // 1
    if writable {
        // Not before: a tier that is refused as the wrong one stays unchanged.
        Abilities::expect_of_fast(&*ours)?;
    }
    let boot = &*identity.boot(boot);
    let slow = if writable { closed::closable(slow) } else { slow };
    let tmp = match writable {
        true => ensure_dir(&*ensure_dir(&*ensure_dir(&*slow, OURS)?, b"tmp")?, identity.uuid.as_bytes())?,
        false => existing_tmp(&*ours, &*slow, &identity)?,
    };
    log::drop_spare(&*ours);
    let incarnation = if writable { identity.begin(&*ours, &*slow)? } else { None };
    closed::begin(&slow, &tmp)?;
    let objects = modes::with_modes(&ours)?;
    if writable {
        let found = Abilities::find_out(&*tmp, &*clock, AT_MOST, identity.abilities);
        found.expect_steady_numbers("slow")?;
        identity.remember(&*ours, found);
    }
    let abilities = identity.abilities.unwrap_or_default();
    abilities.tell();
    let kept = options.dirs_kept;
    let (pool, copies) = (Pool::open(&*objects, kept)?, Copies::open(&*objects, clock.now(), kept)?);
    let parts = Parts::open(ours.clone(), &identity.uuid)?;
    let shards = pool.shards()?;
    let (numbers, opened) = beside(
        shards.len() >= SHARDS_BESIDE,
        || pool.numbers_in(&shards),
        || Log::open(ours.clone(), options.ballast, boot), // 2
    );
    let (numbers, opened) = (numbers?, opened?);
    if opened.records.is_empty() {
        expect_empty(&numbers)?;
    }
    let looked = look_at(&pool, &numbers, &unproven(&opened.records), LOOKS_EACH);
    let root = slow.stat(b".").at("stat", "slow tier")?;
    let view = View::new(&root, clock.uptime());
    let damaged = (!opened.damage.is_empty()).then(|| {
        format!(
            "the log is damaged ({}); nothing is copied to the slow tier until somebody has looked at it: dlio-fs rescue",
            opened.damage.join("; ")
        )
    });
    // A mount that changes nothing has no part in an order.
    let start = incarnation.as_ref().map(|this| &*this.own.start).unwrap_or_default();
    let fleet =
        if writable { join_fleet(&ours, &*slow, (&identity, start), &options, (&opened, &*clock))? } else { None };
    let tmp_path = [OURS, b"/tmp/", identity.uuid.as_bytes()].concat();
    let slow = SlowTier::new(slow, tmp, tmp_path, parts, abilities, (kept, fleet.is_some()));
    let tiers = Tiers {
        core: EngineCore::new(CoreParts { log: opened.log, damaged, pool, slow, fast, view }, options, clock),
        drain_control: DrainControl::default(),
        order: Order::of(fleet),
        incarnation,
        copies,
        reads: Reads::default(),
        pins: Pins::open(ours)?,
        calls: SharedByCalls::default(),
        writeback: Writeback::new(),
        partner: Partner::default(),
        saved: SavedWatch::default(),
        staging: StagingJobs::default(),
    };
    if let Some(damage) = &tiers.damaged {
        tracing::error!("{damage}");
    }
    if opened.torn > 0 {
        tracing::info!(bytes = opened.torn, "cut a torn record off the end of the log");
    }
    tiers.state.lock().queue.stamp(opened.stamps);
    Recovery::new(&tiers, opened.records, opened.by, boot).run(looked, writable)?;
    match tiers.order.fleet() {
        // Nothing will be logged, and no background renews the lease.
        Some(_) if tiers.lacks().is_some() => tiers.leave_fleet(|| false)?,
        // From here on the other members know of what this mount may log.
        Some(fleet) => tiers.renew_lease(fleet)?,
        None => {}
    }
    Ok(tiers)
}

/// Joins the fleet that the configuration names. The events pending in the log of the fast tier belong to the fleet in
/// which they were logged, or to none: elsewhere their stamps, or their lack, have no meaning.
fn join_fleet(
    ours: &Arc<dyn Dir>,
    slow: &dyn Dir,
    (identity, start): (&Super, &str),
    options: &Options,
    (opened, clock): (&OpenedLog, &dyn Clock),
) -> Result<Option<Fleet>> {
    let settings = options.fleet()?;
    let before = read_text(&**ours, b"fleet")?.filter(|name| !name.is_empty());
    let name = settings.as_ref().map(|settings| settings.name.clone());
    if before != name && has_pending(&opened.records) {
        let (of, remedy) = match before {
            Some(before) => (
                format!("the fast tier has changes of fleet {before:?} that are not on the slow tier yet"),
                format!("mount with fleet = {before:?} and drain it first"),
            ),
            None => (
                "the fast tier has changes of no fleet that are not on the slow tier yet".to_owned(),
                "mount without a fleet and drain it first".to_owned(),
            ),
        };
        return Err(Error::refused(of, remedy));
    }
    let fleet = match &settings {
        Some(settings) => {
            let on_slow = slow.dir(OURS).at("open", ".dlio-fs on the slow tier")?;
            Some(Fleet::join(&*on_slow, settings, (&identity.uuid, identity.turn, start), options.collect_above)?)
        }
        None => None,
    };
    // Only once the fleet has taken it.
    if before != name {
        replace_text(&**ours, b"fleet", &name.unwrap_or_default())?;
    }
    if let Some(fleet) = &fleet {
        fleet.know(&opened.stamps);
        if identity.turn > 0 {
            // What this copy does not have was logged before now.
            fleet.stamp(clock.now());
        }
    }
    Ok(fleet)
}

/// Whether the log has an event that is not applied.
fn has_pending(records: &[(Lsn, Record)]) -> bool {
    let applied = Record::applied(records.iter().map(|(_, record)| record));
    records.iter().any(|(lsn, record)| *lsn > applied && record.is_event())
}

/// With fewer shards the pool has too few objects for a thread that lists them while the log is read.
const SHARDS_BESIDE: usize = 16;

/// Runs two functions, in parallel if that is worth a thread; otherwise in a fixed order.
fn beside<A: Send, B>(worth_it: bool, one: impl Fn() -> A + Sync, other: impl FnOnce() -> B) -> (A, B) {
    if !worth_it {
        let other = other();
        return (one(), other);
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("dlio-pool".to_owned()).spawn_scoped(scope, &one);
        let other = other();
        // If the thread cannot be started, this one does it.
        let done = thread.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        (done.unwrap_or_else(|_| one()), other)
    })
}

impl Recovery<'_> {
    fn run(mut self, looked: Vec<(u64, ObjectLook)>, slow_is_writable: bool) -> Result<()> {
        self.reserve_numbers()?;
        self.bursts.extend(self.tiers.restore_checkpoints(self.rebooted));
        self.tiers.restore_streams();
        // After a change of boot there is nothing left to sync.
        self.tiers.state.lock().in_place.set_unknown_left(!self.rebooted && !self.records.is_empty());
        let placed = self.finish_intents()?; // 3
        self.tiers.restore_parts();
        let binds = self.binds_passed();
        if slow_is_writable {
            self.sweep()?; // 4
        }
        let marked = self.mark_placed_clean(&placed, &binds)?;
        self.use_inspected(looked, &marked);
        self.revert()?;
        self.find_lost()?;
        let set_aside = set_aside(&self.records);
        self.tiers.state.lock().checkpoints.change(|index| index.set_aside(|lsn| set_aside.contains(&lsn)));
        for (lsn, this_boot, path, slow) in self.expects_passed() {
            self.replay_expect(lsn, &path.bytes(), slow.as_ref(), this_boot)?;
        }
        for Bound { lsn, paths, ino, object } in &binds {
            let Some((path, further)) = paths.split_first() else { continue };
            self.learn_names(further)?;
            self.replay_bind(&path.bytes(), *ino, *object, *lsn)?;
        }
        self.replay()?; // 5
        self.tiers.expect_versions(&mut self.tiers.state.lock(), self.applied);
        self.restore_sealed()?;
        self.reapply_attrs()?;
        self.sort_objects()?; // 6
        self.log_start_where_there_is_room()?; // 7
        self.mark_cut_off(); // 8
        self.rebuild_group();
        if let Some(error) = self.refused.take() {
            tracing::warn!(%error, "the slow tier refuses a change, and everything behind it waits; it is tried again until it succeeds");
            let front = self.tiers.state.lock().queue.front();
            front.into_iter().for_each(|lsn| self.tiers.counters.notes.tried(lsn, WorkKind::Publish, Some(&error)));
            self.tiers.report("publish", Some(&error));
        }
        tracing::info!(
            pending_changes = self.tiers.state.lock().queue.len(),
            discarded_versions = self.discarded.len(),
            "recovered"
        );
        Ok(())
    }

    /// Reserves all numbers in use. Objects in quarantine keep theirs, too: a new object must not take such a name.
    fn reserve_numbers(&self) -> Result<()> {
        self.tiers.pool.quarantined_numbers()?.into_iter().for_each(|number| self.tiers.pool.reserve(number));
        let records = self.records.iter().map(|(_, record)| record);
        let object = records.clone().filter_map(object_of).map(|object| object.number).max();
        let ino = records.filter_map(Record::ino).filter(|ino| *ino >= FIRST_OWN).max();
        object.into_iter().for_each(|number| self.tiers.pool.reserve(number));
        ino.into_iter().for_each(|ino| self.tiers.state.lock().view.reserve(ino));
        Ok(())
    }

    /// The `expect` records in front of a `bind` that `applied` has passed, if the file's version comes behind it; each
    /// with whether it is from this boot. A name that was moved or removed meanwhile is left out: another file may have
    /// it.
    fn expects_passed(&self) -> Vec<(Lsn, bool, LoggedPath, Option<Fingerprint>)> {
        let is_below = |at: &LoggedPath, of: &LoggedPath| {
            let (at, of) = (at.bytes(), of.bytes());
            at.strip_prefix(&of[..]).is_some_and(|rest| rest.first().is_none_or(|next| *next == b'/'))
        };
        let mut waiting: HashMap<Ino, (Lsn, bool, &LoggedPath, Option<Fingerprint>)> = HashMap::new();
        let (mut this_boot, mut before) = (false, None);
        for (lsn, record) in self.records.iter().filter(|(lsn, _)| *lsn <= self.applied && !self.is_skipped(*lsn)) {
            // It is right in front of its `bind`, or of an event, which uses it up.
            let expect = if matches!(record, Record::Names { .. }) { before } else { before.take() };
            match record {
                Record::Start { boot } => this_boot = *boot == self.boot,
                Record::Expect { path, slow } => before = Some((*lsn, this_boot, path, *slow)),
                Record::Bind { ino, .. } => waiting.extend(expect.map(|expect| (*ino, expect))),
                // Our change alters what was there.
                Record::Content { ino, .. } | Record::SetAttr { ino, .. } | Record::InPlace { ino, .. } => {
                    waiting.remove(ino);
                }
                Record::Rename { path, to, .. } => {
                    waiting.retain(|_, (_, _, at, _)| !is_below(at, path) && !is_below(at, to));
                }
                Record::Remove { path, .. } => waiting.retain(|_, (_, _, at, _)| *at != path),
                _ => {}
            }
        }
        let expects = waiting.into_values().map(|(lsn, boot, path, slow)| (lsn, boot, path.clone(), slow));
        let mut expects: Vec<_> = expects.collect();
        expects.sort_by_key(|(lsn, ..)| *lsn);
        expects
    }

    /// Files whose bytes were ahead of their events when `applied` passed their `bind` record in a group that a crash
    /// cut off, with their names after `applied`.
    fn binds_passed(&self) -> Vec<Bound> {
        let before = Record::applied(self.records.iter().map(|(_, record)| record));
        if before == self.applied {
            return Vec::new();
        }
        let mut alive: HashMap<Ino, Bound> = HashMap::new();
        let mut names: HashMap<Ino, Vec<LoggedPath>> = HashMap::new();
        let mut boot = "";
        for (lsn, record) in &self.records {
            if let Record::Start { boot: started } = record {
                boot = started;
            }
            if *lsn <= before || *lsn > self.applied || self.is_skipped(*lsn) {
                continue;
            }
            if let Record::Names { ino, paths } = record {
                names.insert(*ino, paths.clone());
                continue;
            }
            // They are those of the file's next record, and of no later one.
            let names = record.ino().and_then(|ino| names.remove(&ino));
            match record {
                Record::Bind { path, ino, object } if boot == self.boot => {
                    let paths = names.unwrap_or_else(|| vec![path.clone()]);
                    alive.insert(*ino, Bound { lsn: *lsn, paths, ino: *ino, object: *object });
                }
                Record::Link { to, ino, .. } => {
                    if let Some(bound) = alive.get_mut(ino) {
                        bound.paths.push(to.clone());
                    }
                }
                Record::Content { ino, object, .. } if alive.get(ino).is_some_and(|bound| bound.object == *object) => {
                    alive.remove(ino);
                }
                Record::Rename { path, to, exchange, .. } => {
                    for Bound { paths, .. } in alive.values_mut() {
                        paths.retain(|at| *exchange || at != to);
                        let carried = |at: &LoggedPath| carried(&at.bytes(), &path.bytes(), &to.bytes(), *exchange);
                        paths.iter_mut().for_each(|at| *at = carried(at).into());
                    }
                }
                Record::Remove { path, .. } => {
                    alive.values_mut().for_each(|bound| bound.paths.retain(|at| at != path));
                }
                _ => {}
            }
        }
        let mut binds: Vec<Bound> = alive.into_values().filter(|bound| !bound.paths.is_empty()).collect();
        binds.sort_by_key(|bound| bound.lsn);
        binds
    }

    /// Step 4: removes everything of ours in `tmp` except objects. If an object was exchanged for the previous version,
    /// that version has its name now, and would count as another object of the file.
    fn sweep(&self) -> Result<()> {
        let replaced = self.records.iter().filter_map(|(_, record)| match record {
            Record::Intent { step: Step::Place { tmp, over: Some(over), .. }, .. } => Some((tmp.bytes(), over.ino)),
            _ => None,
        });
        let replaced: HashSet<(Cow<'_, [u8]>, u64)> = replaced.collect();
        let kept: HashSet<&[u8]> = self.half.iter().flat_map(Half::in_tmp).collect();
        let sweep = |part: &[u8]| {
            let tmp = self.tiers.slow.tmp_at(part).at("open", "tmp on the slow tier")?;
            let is_kept = |entry: &DirEntry| kept.contains(&in_part(part, &entry.name)[..]);
            let is_removed = |entry: &DirEntry| {
                let is_object = entry.name.starts_with(b"o") || entry.name.starts_with(b"q");
                !is_object || replaced.contains(&(in_part(part, &entry.name).into(), entry.ino))
            };
            self.sweep_dir(&*tmp, &is_kept, &is_removed)
        };
        sweep(b"")?;
        for part in self.tiers.slow.parts.paths() {
            // A part's file system may be unmounted now.
            if let Err(error) = sweep(&part) {
                tracing::warn!(part = escape(&part), %error, "the tmp of a part of the slow tree cannot be read");
            }
        }
        Ok(())
    }

    /// Sweeps one `tmp` and its lanes.
    fn sweep_dir(
        &self,
        tmp: &dyn Dir,
        is_kept: &dyn Fn(&DirEntry) -> bool,
        is_removed: &dyn Fn(&DirEntry) -> bool,
    ) -> Result<()> {
        for entry in tmp.list().at("list", "tmp on the slow tier")? {
            if is_kept(&entry) {
                continue;
            }
            closed::close_again(&self.tiers.slow.root, tmp, &entry.name)?;
            if entry.kind == Kind::Dir && is_lane(&entry.name) {
                let lane = tmp.dir(&entry.name).at("open", "tmp on the slow tier")?;
                self.sweep_dir(&*lane, is_kept, is_removed)?;
                continue;
            }
            if entry.kind == Kind::Dir && entry.name.starts_with(b"g") {
                // Left by a client that has not finished.
                let dir = tmp.dir(&entry.name).at("open", "leftover in tmp")?;
                let left = dir.list().at("list", "leftover in tmp")?;
                left.iter().try_for_each(|entry| remove_leftover(&*dir, &entry.name))?;
            }
            if is_removed(&entry) {
                remove_tree(tmp, &entry.name)?;
            }
        }
        Ok(())
    }

    /// Applies the logged attribute changes to objects again, except to objects that are published themselves. Times
    /// only if no later write can have advanced them.
    fn reapply_attrs(&self) -> Result<()> {
        let last = self.records.last().map_or(0, |(lsn, _)| *lsn);
        for (ino, records) in &self.later_attrs {
            let file = self.tiers.state.lock().known_file(*ino);
            if file.is_none_or(|file| file.io.read().attrs_in_view) {
                continue;
            }
            let Some(fd) = self.object_fd(*ino)? else { continue };
            let dirty = self.tiers.state.lock().uncommitted.has(*ino);
            for (lsn, record) in records {
                // The last operation before the end may have been logged and not done.
                let moved_on = dirty && *lsn != last;
                match record {
                    Record::SetAttr { new, .. } => {
                        let (atime, mtime) = if moved_on { (None, None) } else { (new.atime, new.mtime) };
                        fd.set_attr(&NewAttr { atime, mtime, ..*new })
                    }
                    Record::SetXattr { key, value: Some(value), .. } => fd.set_xattr(key, value),
                    Record::SetXattr { key, .. } => fd.remove_xattr(key),
                    _ => Ok(()),
                }
                .at("set attributes of", "object")?;
            }
        }
        Ok(())
    }

    /// Files that were discarded and that records after `applied` still mention.
    fn discarded_for_good(&self) -> impl Iterator<Item = Ino> {
        let behind = self.records.iter().filter(|(lsn, _)| *lsn > self.applied);
        let others = behind.filter(|(_, record)| !matches!(record, Record::Discarded { .. }));
        let spoken_of: BTreeSet<Ino> = others.filter_map(|(_, record)| record.ino()).collect();
        spoken_of.into_iter().filter(|ino| self.never.contains(ino))
    }

    /// Step 7. If the room reserved for it is not enough, staged copies and clean objects are evicted; as a last resort
    /// the records are put behind the last start's. If even that has no room, everything is readable but nothing is
    /// logged: this start does not count, and the next one finds the same state.
    fn log_start_where_there_is_room(&self) -> Result<()> {
        let full = match self.log_start() {
            Err(error) if log::is_full(&error) => error,
            other => return other.map(|()| self.tiers.log.set_room_aside()),
        };
        tracing::warn!(error = %full, "the fast tier is full: files that are also on the slow tier are evicted for this start");
        if let Err(error) = self.tiers.free_for_a_start(&|| self.tiers.learn_waiting()) {
            tracing::warn!(%error, "nothing could be evicted");
        }
        let ways: [&dyn Fn() -> Result<bool>; 2] = [&|| Ok(true), &|| self.tiers.log.go_on_in_last_segment()];
        for way in ways {
            if !way()? {
                continue;
            }
            match self.log_start() {
                Err(error) if log::is_full(&error) => {}
                other => return other.map(|()| self.tiers.log.set_room_aside()),
            }
        }
        let space = self.tiers.fast.space().at_fast("statfs", "fast tier")?;
        let lacking = self.start_bytes().saturating_sub(space.avail).max(u64::from(space.block));
        let error = Error::refused(
            format!("the fast tier is full: the log lacks {lacking} bytes for this start"),
            "free as much on its file system, outside .dlio-fs; then unmount this read-only mount, and mount it again",
        );
        tracing::warn!("{error}");
        self.tiers.lack(lacking);
        self.tiers.report("start", Some(&error));
        Ok(())
    }

    /// Roughly the bytes that a start logs.
    fn start_bytes(&self) -> u64 {
        let paths = {
            let st = self.tiers.state.lock();
            st.uncommitted
                .bound()
                .filter_map(|(ino, _)| st.view.path(ino))
                .map(|path| 128 + path.len() as u64)
                .sum::<u64>()
        };
        128 + paths
    }

    fn log_start(&self) -> Result<()> {
        let mut st = self.tiers.state.lock();
        let bound: Vec<_> =
            st.uncommitted.bound().filter_map(|(ino, object)| Some((ino, object, st.view.path(ino)?))).collect();
        let mut records = vec![Record::Start { boot: self.boot.to_string() }];
        records.extend(self.discarded_for_good().map(|ino| Record::Discarded { ino }));
        records.extend(bound.iter().flat_map(|(ino, ..)| st.before_bind(*ino)));
        let before = records.len() as u64;
        records.extend(bound.iter().map(|(ino, object, path)| Record::Bind {
            path: path.clone().into(),
            ino: *ino,
            object: *object,
        }));
        records.push(Record::Applied { upto: self.applied });
        // The next start must know what this one has taken over.
        records.extend(self.half.iter().flat_map(Half::intents));
        let last = self.tiers.log.append(&records)?;
        let first = last + 1 - records.len() as u64 + before;
        let now = self.tiers.uptime();
        for (lsn, (ino, object, _)) in (first..).zip(bound) {
            st.uncommitted.bind(ino, lsn, object, now);
        }
        drop(st);
        self.tiers.log.sync(self.tiers.log.last())
    }

    /// Step 8.
    fn mark_cut_off(&self) {
        let files: Vec<Arc<FileState>> = {
            let st = self.tiers.state.lock();
            st.uncommitted.bound().filter_map(|(ino, _)| st.view.get(ino)?.file.clone()).collect()
        };
        for file in files {
            file.io.write().interrupted = true;
            let path = self.tiers.label(file.ino);
            tracing::warn!(
                %path,
                "cut off while it was written: not copied to the slow tier before it is closed, synced or drained"
            );
        }
    }
}
