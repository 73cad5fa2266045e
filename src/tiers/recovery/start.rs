//! The steps of every start: from the state of the two tiers to an engine that is ready to serve.
//!
//! 1. Make or check the fast tier's layout, and identify the slow tier (P7).
//! 2. Read the log and cut a torn tail. Another thread looks at the objects meanwhile.
//! 3. Finish the intents behind the last `applied` on the slow tier: their group was under way. If a step is refused,
//!    or has nothing to place any more, the events from its batch on stay pending. If that batch is half done, the
//!    daemon takes it over (`recovery/takeover.rs`): no refused step keeps a mount from starting (P15).
//! 4. Delete copies in `tmp` that nobody will publish.
//! 5. Replay the records behind `applied` into the view. After another boot, content that was not sealed is discarded,
//!    and the version before it is shown.
//! 6. Attach the objects in use, keep clean ones until their file is looked up, delete superseded ones, and quarantine
//!    those that no record explains.
//! 7. Log `start`, new `bind` records and `applied`, so that the next start need not repeat 3.
//! 8. Mark what a cut-off writer left: it waits for a close, a sync or a drain that accepts it as it is. If it
//!    overwrote a pending version, everything behind that version waits, too.
//!
//! A crash after any step repeats it. Step 1 is in `recovery/identity.rs`, step 5 in `recovery/replay.rs`.

use std::collections::BTreeSet;
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};

use crate::error::{Context, Errno, Error, Result};
use crate::path::escape;
use crate::tiers::copies::index::Copies;
use crate::tiers::copies::reads::Reads;
use crate::tiers::core::{CoreParts, EngineCore};
use crate::tiers::disk::errors::{absent_is_none, is_full};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::{OURS, ensure_dir, read_text, remove_leftover, replace_text};
use crate::tiers::disk::{
    Access, Clock, Dir, DirEntry, File, Kind, MetadataOrder, NewAttr, RenameMode, Time, closed, modes,
};
use crate::tiers::drain_control::DrainControl;
use crate::tiers::fleet::Fleet;
use crate::tiers::log::record::{Home, ObjectId, Record, Step};
use crate::tiers::log::{self, Log, OpenedLog};
use crate::tiers::model::view::{FIRST_OWN, UnmetObject, View};
use crate::tiers::objects::abilities::{AT_MOST, Abilities};
use crate::tiers::objects::attrs::{own_xattrs, set_attrs};
use crate::tiers::objects::file::FileState;
use crate::tiers::objects::parts::{Parts, in_part, is_lane};
use crate::tiers::objects::pool::{Named, Pool, number_of};
use crate::tiers::objects::slow_tier::SlowTier;
use crate::tiers::ops::SharedByCalls;
use crate::tiers::pins::Pins;
use crate::tiers::progress::WorkKind;
use crate::tiers::recovery::identity::{Super, existing_tmp, identify};
use crate::tiers::recovery::replay::{each_of, object_of};
use crate::tiers::recovery::state::{Half, Looked, Recovery, carried};
use crate::tiers::sorted_set::SortedSet;
use crate::tiers::staging::jobs::StagingJobs;
use crate::tiers::writeback::Writeback;
use crate::tiers::writeback::open_tree::OpenTree;
use crate::tiers::writeback::step::{Met, SyncSet, step_path};
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
    let slow = if writable { closed::closable(slow) } else { slow };
    let tmp = match writable {
        true => ensure_dir(&*ensure_dir(&*ensure_dir(&*slow, OURS)?, b"tmp")?, identity.uuid.as_bytes())?,
        false => existing_tmp(&*ours, &*slow, &identity)?,
    };
    log::drop_spare(&*ours);
    closed::begin(&slow, &tmp)?;
    let objects = modes::with_modes(&ours)?;
    if writable {
        identity.remember(&*ours, Abilities::find_out(&*tmp, &*clock, AT_MOST, identity.abilities));
    }
    let abilities = identity.abilities.unwrap_or_default();
    abilities.tell();
    let kept = options.dirs_kept;
    let (pool, copies) = (Pool::open(&*objects, kept)?, Copies::open(&*objects, clock.now(), kept)?);
    let parts = Parts::open(ours.clone(), &identity.uuid)?;
    let numbers = pool.numbers()?;
    let (looked, opened) = beside(
        numbers.len() > LOOKS_EACH,
        || look_at(&pool, &numbers, LOOKS_EACH),
        || Log::open(ours.clone(), options.ballast, boot), // 2
    );
    let opened = opened?;
    if opened.records.is_empty() {
        expect_empty(&looked)?;
    }
    let root = slow.stat(b".").at("stat", "slow tier")?;
    let view = View::new(&root, clock.uptime());
    let damaged = (!opened.damage.is_empty()).then(|| {
        format!(
            "the log is damaged ({}); nothing is copied to the slow tier until somebody has looked at it: dlio-fs rescue",
            opened.damage.join("; ")
        )
    });
    // A mount that changes nothing has no part in an order.
    let fleet = if writable { join_fleet(&ours, &*slow, &identity, &options, &opened)? } else { None };
    let tmp_path = [OURS, b"/tmp/", identity.uuid.as_bytes()].concat();
    let slow = SlowTier::new(slow, tmp, tmp_path, parts, abilities, kept);
    let tiers = Tiers {
        core: EngineCore::new(CoreParts { log: opened.log, damaged, pool, slow, fast, view }, options, clock),
        drain_control: DrainControl::default(),
        fleet,
        copies,
        reads: Reads::default(),
        pins: Pins::open(ours)?,
        calls: SharedByCalls::default(),
        writeback: Writeback::new(),
        staging: StagingJobs::default(),
    };
    if let Some(damage) = &tiers.damaged {
        tracing::error!("{damage}");
    }
    if opened.torn > 0 {
        tracing::info!(bytes = opened.torn, "cut a torn record off the end of the log");
    }
    tiers.state.lock().queue.stamp(opened.stamps);
    Recovery::new(&tiers, opened.records, boot).run(looked, writable)?;
    match &tiers.fleet {
        // Nothing will be logged, and no background renews the lease.
        Some(_) if tiers.lacks().is_some() => tiers.leave_fleet()?,
        // From here on the others know of what this mount may log.
        Some(fleet) => tiers.renew_lease(fleet)?,
        None => {}
    }
    Ok(tiers)
}

/// Joins the fleet that the configuration names. What the log of the fast tier has pending belongs to the fleet, or to
/// none, in which it was logged: its stamps, or their lack, mean nothing elsewhere.
fn join_fleet(
    ours: &Arc<dyn Dir>,
    slow: &dyn Dir,
    identity: &Super,
    options: &Options,
    opened: &OpenedLog,
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
            Some(Fleet::join(&*on_slow, settings, &identity.uuid)?)
        }
        None => None,
    };
    // Once the fleet has taken it.
    if before != name {
        replace_text(&**ours, b"fleet", &name.unwrap_or_default())?;
    }
    if let Some(fleet) = &fleet {
        fleet.know(&opened.stamps);
    }
    Ok(fleet)
}

/// Whether the log has an event that is not applied.
fn has_pending(records: &[(Lsn, Record)]) -> bool {
    let applied = Record::applied(records.iter().map(|(_, record)| record));
    records.iter().any(|(lsn, record)| *lsn > applied && record.is_event())
}

/// A file whose bytes are ahead of its events, with the LSN of the `bind` record.
struct Bound {
    lsn: Lsn,
    paths: Vec<Vec<u8>>,
    ino: Ino,
    object: ObjectId,
}

/// The fingerprint of the slow file that an object equals, and the object's recorded name.
type MarkedClean = (Fingerprint, Option<Named>);

/// The result of examining an object.
type ObjectLook = io::Result<(Looked, Option<MarkedClean>)>;

/// Examines an object, and reads its fingerprint if it has one.
fn look(file: &dyn File) -> ObjectLook {
    let stat = file.stat()?;
    let fingerprint = Pool::fingerprint_of(file)?;
    let looked = Looked { size: stat.size, alone: stat.nlink == 1, clean: fingerprint.is_some() };
    let Some(fingerprint) = fingerprint else { return Ok((looked, None)) };
    Ok((looked, Some((fingerprint, Pool::name_of(file)?))))
}

/// Most threads that examine objects side by side, given as many processors.
const LOOKING_MAX: usize = 8;
/// Fewer objects are not worth a thread.
const LOOKS_EACH: usize = 4096;

fn look_at_one(pool: &Pool, number: u64) -> ObjectLook {
    pool.open_object(number, Access::Read).and_then(|file| look(&*file))
}

/// Does two things, at the same time if that is worth a thread; otherwise in a fixed order.
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

/// Examines these objects, on several threads if each has at least `least`; the results are in the order of the
/// numbers.
fn look_at(pool: &Pool, numbers: &[u64], least: usize) -> Vec<(u64, ObjectLook)> {
    let one = |number: &u64| (*number, look_at_one(pool, *number));
    let threads = thread::available_parallelism().map_or(1, usize::from).min(LOOKING_MAX);
    let each = numbers.len().div_ceil(threads).max(least);
    let look = |some: &[u64]| -> Vec<_> { some.iter().map(one).collect() };
    let mut pieces = numbers.chunks(each);
    let ours = pieces.next().unwrap_or_default();
    thread::scope(|scope| {
        let others: Vec<_> = pieces
            .map(|some| (some, thread::Builder::new().name("dlio-look".to_owned()).spawn_scoped(scope, || look(some))))
            .collect();
        let mut all = look(ours);
        for (some, thread) in others {
            // If the thread cannot be started, this one does it.
            let looked = thread.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            all.extend(looked.unwrap_or_else(|_| look(some)));
        }
        all
    })
}

/// Files that the last daemon has written in place while changes of their times were pending, and the times of these
/// writes, by slow inode number. Intents of earlier daemons are finished; the last daemon's own plans include what they
/// have written.
fn written_in_place(records: &[(Lsn, Record)], applied: Lsn) -> HashMap<u64, Time> {
    let started = records.iter().rposition(|(_, record)| matches!(record, Record::Start { .. })).unwrap_or(0);
    let mut last: HashMap<Ino, (u64, Time)> = HashMap::new();
    for (_, record) in records[started..].iter().filter(|(lsn, _)| *lsn > applied) {
        match record {
            Record::InPlace { ino, slow, mtime } => drop(last.insert(*ino, (*slow, *mtime))),
            Record::SetAttr { ino, new, .. } if new.mtime.is_some() => drop(last.remove(ino)),
            _ => {}
        }
    }
    last.into_values().collect()
}

/// Refuses a pool with objects but no log: a start is logged before the first object is made.
fn expect_empty(looked: &[(u64, ObjectLook)]) -> Result<()> {
    match looked.len() {
        0 => Ok(()),
        objects => Err(Error::refused(
            format!("the log of the fast tier is gone or unreadable, and its pool has {objects} objects"),
            "save its files with `dlio-fs rescue`, then use an empty fast tier",
        )),
    }
}

impl Recovery<'_> {
    fn run(mut self, looked: Vec<(u64, ObjectLook)>, slow_is_writable: bool) -> Result<()> {
        self.reserve_numbers()?;
        self.bursts.extend(self.tiers.restore_checkpoints(self.rebooted));
        self.tiers.restore_streams();
        // After a change of boot there is nothing left to sync.
        self.tiers.state.lock().in_place.set_unknown_left(!self.rebooted && !self.records.is_empty());
        let placed = self.finish_intents(); // 3
        self.tiers.restore_parts();
        let binds = self.binds_passed();
        if slow_is_writable {
            self.sweep()?; // 4
        }
        let marked = self.mark_placed_clean(&placed, &binds)?;
        self.take_in(looked, &marked);
        self.take_back()?;
        self.find_lost()?;
        self.show_aside()?;
        for Bound { lsn, paths, ino, object } in &binds {
            self.learn_names(&paths[1..])?;
            self.replay_bind(&paths[0], *ino, *object, *lsn)?;
        }
        self.replay()?; // 5
        self.tiers.expect_versions(&mut self.tiers.state.lock(), self.applied);
        self.restore_sealed()?;
        self.reapply_attrs()?;
        self.sort_objects()?; // 6
        self.log_start_where_there_is_room()?; // 7
        self.mark_cut_off(); // 8
        self.take_over();
        if let Some(error) = self.refused.take() {
            tracing::warn!(%error, "the slow tier refuses a change, and everything behind it waits; it is tried again until it succeeds");
            let front = self.tiers.state.lock().queue.front();
            front.into_iter().for_each(|lsn| self.tiers.counters.notes.tried(lsn, WorkKind::Publish, Some(&error)));
            self.tiers.report("publish", Some(&error));
        }
        tracing::info!(
            applied = self.applied,
            pending = self.tiers.state.lock().queue.len(),
            discarded = self.discarded.len(),
            "recovered"
        );
        Ok(())
    }

    /// Objects in quarantine keep their numbers, too: the next one must not take such a name.
    fn reserve_numbers(&self) -> Result<()> {
        self.tiers.pool.quarantined_numbers()?.into_iter().for_each(|number| self.tiers.pool.reserve(number));
        let records = self.records.iter().map(|(_, record)| record);
        let object = records.clone().filter_map(object_of).map(|object| object.number).max();
        let ino = records.filter_map(Record::ino).filter(|ino| *ino >= FIRST_OWN).max();
        object.into_iter().for_each(|number| self.tiers.pool.reserve(number));
        ino.into_iter().for_each(|ino| self.tiers.state.lock().view.reserve(ino));
        Ok(())
    }

    /// Step 3. Applies every step, or finds it applied, by the inode numbers it names, up to one that is refused or has
    /// nothing to place. If that batch is partly done, or not durable, the daemon takes it over; batches that have not
    /// begun are replayed as other events. Returns the steps that are done for good.
    fn finish_intents(&mut self) -> Vec<Step> {
        self.applied = Record::applied(self.records.iter().map(|(_, record)| record));
        let written = written_in_place(&self.records, self.applied);
        let as_written = |step: &Step| match step {
            Step::Attr { path, ino, new: new @ NewAttr { mtime: Some(_), .. } } if written.contains_key(ino) => {
                let mtime = written.get(ino).copied();
                Step::Attr { path: path.clone(), ino: *ino, new: NewAttr { mtime, ..*new } }
            }
            step => step.clone(),
        };
        let unfinished = Record::unfinished(&self.records).into_iter();
        let group: Vec<(Lsn, Step)> = unfinished.map(|(upto, step)| (upto, as_written(step))).collect();
        let (met, durable) = self.apply_group(&group);
        let (done, of_batch) = (met.len(), |one: usize, other: usize| group[one].0 == group[other].0);
        let (mut finished, mut end) = (if durable { done } else { 0 }, done);
        while durable && finished > 0 && done < group.len() && of_batch(finished - 1, done) {
            finished -= 1;
        }
        while done > 0 && end < group.len() && of_batch(end, done - 1) {
            end += 1;
        }
        if done > finished {
            let steps = group[finished..end].iter().map(|(_, step)| step.clone()).collect();
            let met = met.into_iter().skip(finished).collect();
            self.half = Some(Half { upto: group[end - 1].0, steps, met });
        }
        let applied = group[..finished].last().map_or(0, |(upto, _)| *upto);
        self.applied = self.applied.max(applied);
        self.tiers.state.lock().queue.start_behind(self.applied);
        group.into_iter().take(finished).map(|(_, step)| step).collect()
    }

    /// What each step met, and whether all of them are durable.
    fn apply_group(&mut self, group: &[(Lsn, Step)]) -> (Vec<Met>, bool) {
        let (mut met, mut touched) = (Vec::new(), SyncSet::default());
        let tree = OpenTree::new(&self.tiers.slow);
        for (_, step) in group {
            let path = String::from_utf8_lossy(step_path(step)).into_owned();
            match tree.apply(step, None) {
                Ok(Met::Lacking) => {
                    tracing::warn!(
                        path,
                        "somebody else removed a file to be published from .dlio-fs/tmp on the slow tier; it is copied again"
                    );
                    break;
                }
                Ok(Met::Apart) => {
                    self.refused = Some(Error::io("finish publishing", path, Errno::EXDEV.into()));
                    break;
                }
                Ok(found) => met.push(found),
                Err(e) => {
                    self.refused = Some(Error::io("finish publishing", path, e));
                    break;
                }
            }
            touched.add(step);
            // Two file systems do not order their writes between them.
            let in_order = self.tiers.slow.root.order() == MetadataOrder::Journaled && self.tiers.slow.parts.is_empty();
            if !in_order && !self.is_synced(&tree, &mut touched) {
                let done = self.done_already(&group[met.len()..]);
                met.extend(std::iter::repeat_with(|| Met::Expected).take(done));
                return (met, false);
            }
        }
        let durable = self.is_synced(&tree, &mut touched);
        (met, durable)
    }

    /// How many of these steps the previous daemon has done. Applies none itself, because the earlier ones are not
    /// durable.
    fn done_already(&self, steps: &[(Lsn, Step)]) -> usize {
        let (mut done, tree) = (0, OpenTree::new(&self.tiers.slow));
        for (at, (_, step)) in steps.iter().enumerate() {
            match tree.has_applied(step) {
                Ok(Some(true)) => done = at + 1,
                // Attributes alone tell nothing.
                Ok(None) => {}
                Ok(Some(false)) | Err(_) => break,
            }
        }
        done
    }

    fn is_synced(&mut self, tree: &OpenTree<'_>, touched: &mut SyncSet) -> bool {
        let failed = touched.sync(tree).err();
        let synced = failed.is_none();
        self.refused = self.refused.take().or(failed);
        synced
    }

    /// Files whose bytes were ahead of their events when `applied` passed their `bind` record in a group that a crash
    /// cut off, with their names after `applied`.
    fn binds_passed(&self) -> Vec<Bound> {
        let before = Record::applied(self.records.iter().map(|(_, record)| record));
        if before == self.applied {
            return Vec::new();
        }
        let mut alive: HashMap<Ino, Bound> = HashMap::new();
        let mut names: HashMap<Ino, Vec<Vec<u8>>> = HashMap::new();
        let mut boot = "";
        for (lsn, record) in &self.records {
            if let Record::Start { boot: started } = record {
                boot = started;
            }
            if *lsn <= before || *lsn > self.applied || self.is_skipped(*lsn) {
                continue;
            }
            match record {
                Record::Names { ino, paths } => {
                    names.insert(*ino, paths.clone());
                }
                Record::Bind { path, ino, object } if boot == self.boot => {
                    let paths = names.remove(ino).unwrap_or_else(|| vec![path.clone()]);
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
                        paths.iter_mut().for_each(|at| *at = carried(at, path, to, *exchange));
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
            Record::Intent { step: Step::Place { tmp, over: Some(over), .. }, .. } => Some((tmp.as_slice(), *over)),
            _ => None,
        });
        let replaced: HashSet<(&[u8], u64)> = replaced.collect();
        let kept: HashSet<&[u8]> = self.half.iter().flat_map(Half::in_tmp).collect();
        let sweep = |part: &[u8]| {
            let tmp = self.tiers.slow.tmp_at(part).at("open", "tmp on the slow tier")?;
            let is_kept = |entry: &DirEntry| kept.contains(&in_part(part, &entry.name)[..]);
            let is_removed = |entry: &DirEntry| {
                let is_object = entry.name.starts_with(b"o") || entry.name.starts_with(b"q");
                !is_object || replaced.contains(&(&in_part(part, &entry.name)[..], entry.ino))
            };
            self.sweep_dir(&*tmp, &is_kept, &is_removed)
        };
        sweep(b"")?;
        for part in self.tiers.slow.parts.paths() {
            // A file system may be unmounted now.
            if let Err(error) = sweep(&part) {
                tracing::warn!(part = escape(&part), %error, "the tmp of a part of the slow tree cannot be read");
            }
        }
        Ok(())
    }

    /// The same in a `tmp` and its lanes.
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
                remove_leftover(tmp, &entry.name)?;
            }
        }
        Ok(())
    }

    /// A version placed by a group that a crash cut off is clean, unless its object has been written to since. After a
    /// power cut the object may lack attributes that the slow tier has by now: it is dropped.
    ///
    /// Returns the numbers of the objects that have a fingerprint now.
    fn mark_placed_clean(&self, placed: &[Step], binds: &[Bound]) -> Result<HashSet<u64>> {
        let mut marked = HashSet::new();
        if self.rebooted {
            return Ok(marked);
        }
        for step in placed {
            let Step::Place { path, object: Some(object), ino, .. } = step else { continue };
            let changed = self.changed_since(*object) || binds.iter().any(|bound| bound.object.uses(*object));
            if object.needs_slow() || changed || self.needed_later(*object) {
                continue;
            }
            let file = match self.tiers.pool.open_object(object.number, Access::ReadWrite) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                other => other.at("open", "object")?,
            };
            let slow_stat = self.tiers.slow.stat(path).at("stat on slow", String::from_utf8_lossy(path))?;
            if let Some(slow_stat) = slow_stat.filter(|slow_stat| slow_stat.ino == *ino) {
                marked.insert(object.number);
                Pool::set_sum(&*file, None);
                match Pool::mark_clean(&*file, &Fingerprint::of(&slow_stat)) {
                    // No room for the fingerprint: without one the object is dropped, and the slow tier has its bytes.
                    Err(e) if is_full(&e) => {}
                    other => other.at("mark clean", "object")?,
                }
            }
        }
        Ok(marked)
    }

    /// Whether the object was written to after its last version became an event, also by a write that a power cut has
    /// discarded.
    fn changed_since(&self, object: ObjectId) -> bool {
        let last = self.records.iter().rev().find_map(|(_, record)| match record {
            Record::Bind { object: other, .. } if other.uses(object) => Some(true),
            Record::Content { object: other, .. } if other.uses(object) => Some(*other != object),
            _ => None,
        });
        last == Some(true)
    }

    fn needed_later(&self, object: ObjectId) -> bool {
        let later = self.records.iter().filter(|(lsn, _)| *lsn > self.applied);
        later
            .into_iter()
            .any(|(_, r)| !matches!(r, Record::Intent { .. }) && object_of(r).is_some_and(|other| other.uses(object)))
    }

    /// Takes in the results of examining the pool's objects; those that got a fingerprint since are examined again.
    /// Clean objects wait, by the slow inode they equal, and meet their file when it is looked up.
    fn take_in(&mut self, looked: Vec<(u64, ObjectLook)>, marked_since: &HashSet<u64>) {
        let mut clean = Vec::new();
        for (number, looked) in looked {
            let looked = match marked_since.contains(&number) {
                true => look_at_one(&self.tiers.pool, number),
                false => looked,
            };
            self.tiers.pool.reserve(number);
            let object = ObjectId { home: Home::Fast, number };
            let fingerprint = match looked {
                Ok((looked, fingerprint)) => {
                    self.looked.push((number, Some(looked)));
                    fingerprint
                }
                Err(error) => {
                    // Not clean: it is put aside, or, if a file needs it, reported when it is read.
                    tracing::error!(object = number, %error, "an object of the pool cannot be read");
                    self.looked.push((number, None));
                    continue;
                }
            };
            let Some((fingerprint, named)) = fingerprint else { continue };
            clean.push((object, fingerprint, named.map(|named| named.ino)));
        }
        let mut st = self.tiers.state.lock();
        // Before the first new number is given out.
        let numbers = clean.iter().filter_map(|(_, _, ino)| *ino);
        numbers.filter(|ino| *ino >= FIRST_OWN).for_each(|ino| st.view.reserve(ino));
        for (object, fingerprint, ino) in clean {
            let ino = ino.unwrap_or_else(|| st.view.new_ino());
            st.view.wait(UnmetObject { object, ino, fingerprint, tried: false });
        }
    }

    /// Finds pending versions of which the fast tier has lost bytes: the object is gone, or in the pool it is shorter
    /// than when the version was committed, although no one has shortened it since. As after a power cut, the previous
    /// version is shown.
    fn find_lost(&mut self) -> Result<()> {
        let mut contents = Vec::new();
        let mut boot = "";
        for (lsn, record) in &self.records {
            match record {
                Record::Start { boot: started } => boot = started,
                Record::Content { path, object, size, .. }
                    if *lsn > self.applied
                        && !self.is_skipped(*lsn)
                        && (boot == self.boot || self.sealed.contains(lsn)) =>
                {
                    contents.push((*lsn, path, *object, *size));
                }
                _ => {}
            }
        }
        let mut lost = HashMap::new();
        for (lsn, path, object, size) in contents {
            let what = if !self.has_object(object)? {
                "its object is gone".to_owned()
            } else if object.needs_slow() {
                continue;
            } else {
                let has = match self.looked_at(object) {
                    Some(looked) => looked.size,
                    None => self.tiers.pool.stat(object.number).at("stat", "object")?.size,
                };
                if has >= size || Record::invalidated(&self.records, lsn, object, size) {
                    continue;
                }
                format!("its object has only {has} of {size} bytes")
            };
            let path = escape(path);
            tracing::error!(path, object = object.number, "a pending version is damaged and not shown: {what}");
            lost.insert(object, format!("damaged: {what}; it was {path}"));
        }
        self.tiers.counters.damaged.store(lost.len() as u64, Ordering::Relaxed);
        self.lost = lost;
        Ok(())
    }

    /// After a power cut an object may be longer than its sealed version, or have attributes that were never synced.
    fn restore_sealed(&self) -> Result<()> {
        for (object, (size, attrs)) in &self.sealed_as {
            let fd = match self.tiers.open_object(&self.cx, *object) {
                Err(e) if e.errno() == Errno::ENOENT => continue,
                other => other?,
            };
            // Longer: never synced. Shorter: cut, as an `invalidate` record says, or the tail of an object that the
            // drain was adding to.
            let stat = fd.stat().at("stat", "object")?;
            let has = stat.size;
            if has > *size || (has < *size && object.needs_slow()) {
                fd.set_len(*size).at("set the length of", "object")?;
            }
            for (key, _) in own_xattrs(&*fd)? {
                if !attrs.xattrs.iter().any(|(kept, _)| *kept == key) {
                    fd.remove_xattr(&key).at("set attribute of", "object")?;
                }
            }
            let set = if object.needs_slow() {
                self.tiers.slow.set_attrs(&*fd, &stat, attrs).map(drop)
            } else {
                set_attrs(&*fd, attrs)
            };
            set.at("set attributes of", "object")?;
        }
        Ok(())
    }

    /// Applies the logged changes of attributes to objects again, except to those that are published as they are. Times
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

    /// Step 6.
    fn sort_objects(&self) -> Result<()> {
        let (used, waiting): (SortedSet<ObjectId>, SortedSet<ObjectId>) = {
            let st = self.tiers.state.lock();
            (each_of(st.objects.objects()).collect(), st.view.waiting.values().map(|waiting| waiting.object).collect())
        };
        let (explained, discarded) = (&self.explained, SortedSet::from_iter(each_of(self.discarded.iter().copied())));
        for (number, _) in &self.looked {
            let object = ObjectId { home: Home::Fast, number: *number };
            if used.contains(&object) || waiting.contains(&object) {
                continue;
            }
            let Some(stat) = absent_is_none(self.tiers.pool.stat(*number)).at("stat", "object")? else { continue };
            let empty = !self.lost.contains_key(&object) && stat.size == 0;
            let superseded = explained.contains(&object) && !discarded.contains(&object);
            if empty || (superseded && self.tiers.damaged.is_none()) {
                self.tiers.remove_object(object);
                continue;
            }
            let homeless =
                self.homeless.get(&object).map(|path| format!("its directory no longer exists; it was {path}"));
            let why = match self.lost.get(&object).or(homeless.as_ref()) {
                Some(what) => what,
                None if discarded.contains(&object) => {
                    "not made durable before a power cut; the version before it is shown"
                }
                None => "no record of the log explains it",
            };
            self.tiers.pool.quarantine(*number, why)?;
            self.tiers.counters.quarantined.fetch_add(1, Ordering::Relaxed);
        }
        for entry in self.tiers.slow.tmp.list().at("list", "tmp on the slow tier")? {
            let put_aside = entry.name.strip_prefix(b"q").unwrap_or(&entry.name);
            let Some(number) = put_aside.strip_prefix(b"o").and_then(number_of) else { continue };
            self.tiers.pool.reserve(number);
            if put_aside != entry.name {
                continue;
            }
            let object = ObjectId { home: Home::Slow, number };
            if used.contains(&object) {
                continue;
            }
            if explained.contains(&object) && !discarded.contains(&object) && self.tiers.damaged.is_none() {
                self.tiers.remove_object(object);
            } else {
                let aside = [b"q", &entry.name[..]].concat();
                let tmp = &*self.tiers.slow.tmp;
                tmp.rename(&entry.name, tmp, &aside, RenameMode::Replace)
                    .at("quarantine", "object on the slow tier")?;
                self.tiers.counters.quarantined.fetch_add(1, Ordering::Relaxed);
            }
        }
        let is_there = |object: ObjectId| object.needs_slow() || self.tiers.pool.stat(object.number).is_ok();
        self.tiers.state.lock().objects.keep_deletable(is_there);
        self.tiers.counters.discarded.store(self.discarded.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Files that were discarded and that records after `applied` still mention.
    fn discarded_for_good(&self) -> impl Iterator<Item = Ino> {
        let behind = self.records.iter().filter(|(lsn, _)| *lsn > self.applied);
        let others = behind.filter(|(_, record)| !matches!(record, Record::Discarded { .. }));
        let spoken_of: BTreeSet<Ino> = others.filter_map(|(_, record)| record.ino()).collect();
        spoken_of.into_iter().filter(|ino| self.never.contains(ino))
    }

    /// Step 7. If the room set aside for it is not enough, staged copies and clean objects are evicted; as a last
    /// resort the records are put behind the last start's. If even that has no room, everything is readable but nothing
    /// is logged: this start does not count, and the next one finds the same state.
    fn log_start_where_there_is_room(&self) -> Result<()> {
        let full = match self.log_start() {
            Err(error) if log::is_full(&error) => error,
            other => return other.map(|()| self.tiers.log.set_room_aside()),
        };
        tracing::warn!(error = %full, "the fast tier is full: files that are also on the slow tier are evicted for this start");
        if let Err(error) = self.tiers.free_for_a_start(&|| self.tiers.meet_waiting()) {
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
            path: path.clone(),
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
        self.tiers.log_aside_again(&mut st, self.renumbered.clone())?;
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
                path,
                "cut off while it was written: not copied to the slow tier before it is closed, synced or drained"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::disk::os::OsDir;

    #[test]
    fn objects_that_are_looked_at_side_by_side_stay_in_their_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let fast = OsDir::open(dir.path()).expect("opened");
        for name in [&b"pool"[..], b"quarantine"] {
            ensure_dir(&fast, name).expect("made");
        }
        let pool = Pool::open(&fast, 8).expect("a pool");
        let numbers: Vec<u64> = (1..100).collect();
        for number in numbers.iter().filter(|number| **number != 50) {
            pool.create(*number, 0o600).expect("an object").set_len(*number).expect("its size");
        }
        for least in [1, 7, 1000] {
            let looked = look_at(&pool, &numbers, least);
            let sizes: Vec<_> =
                looked.iter().map(|(_, one)| one.as_ref().ok().map(|(looked, _)| looked.size)).collect();
            let made: Vec<_> = numbers.iter().map(|number| Some(*number).filter(|number| *number != 50)).collect();
            assert_eq!(sizes, made);
        }
    }
}
