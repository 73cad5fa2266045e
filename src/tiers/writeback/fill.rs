//! A new directory is filled in `tmp` and placed with all that is in it by one rename.
//!
//! Where the slow tier does not order its names, each step waits for a sync of the one before it, so many small files
//! would take a rename and a sync each, one after the other. In a directory that the slow tree does not have yet they
//! may arrive in any order and in parallel, because no program sees it. The slow tree goes from the state before the
//! directory to the one after its last file; the program went through both (P1).
//!
//! 1. Make the directory in `tmp`, as any other.
//! 2. In rounds, as their copies get ready: move the next events' files into it ([`FillPlan`] says what belongs there).
//! 3. Once the next event does not belong there, or took too long to get ready: sync the directory, those below it, and
//!    `tmp`.
//! 4. Go on with step 3 of any group (`writeback/publish.rs`). The intents name all that is in the directory, but only
//!    the directory is renamed.
//!
//! A crash before the intents are durable leaves a directory in `tmp`, which the next start sweeps; its files are
//! copied again. After that, a start finds the directory in `tmp` or in its place, with everything in it. If it cannot
//! be placed, because another program has made one of that name, its files are copied again and published one by one.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Errno, Error, Result};
use crate::path::escape;
use crate::tiers::disk::errors::is_silence;
use crate::tiers::disk::layout::remove_tree;
use crate::tiers::disk::{Dir, FileId, MetadataOrder, RenameMode, Stat};
use crate::tiers::log::record::{Step, TmpStat};
use crate::tiers::model::fill::FillPlan;
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::publish_plan::{self, Batch, Effect, NextToPublish, Planned, PublishPace};
use crate::tiers::side_by_side::ask_each;
use crate::tiers::writeback::group::{FilledDir, Unfinished};
use crate::tiers::writeback::open_tree::OpenTree;
use crate::tiers::writeback::step::{Met, step_path};
use crate::tiers::{Ino, Progress, Tiers};

/// The longest time a directory is filled: until it is placed, nothing of it is on the slow tier.
const FILL_FOR: Duration = Duration::from_secs(30);
/// How long to wait for the next event to get ready.
const WAIT_FOR: Duration = Duration::from_secs(2);

/// A directory that is being filled. The publishing thread takes it out of its slot and puts it back.
#[derive(Debug)]
pub(crate) struct Filling {
    plan: FillPlan,
    /// The directory is the first step; everything else goes into it.
    batches: Vec<Batch>,
    planned: Vec<Planned>,
    /// Where the new directories go.
    places: HashMap<Ino, DirEntryKey>,
    filled: FilledDir,
    began: Duration,
    /// When it last took in a file.
    last: Duration,
}

impl Tiers {
    /// Continues with a directory that is being filled. `None`: there is none.
    pub(crate) fn fill_on(&self, pace: PublishPace, unfinished: &mut Option<Unfinished>) -> Result<Option<Progress>> {
        if self.writeback.filling.lock().is_some() {
            // Leave alone what a closed log may name in `tmp`.
            self.log.usable()?;
        }
        let Some(mut fill) = self.writeback.filling.lock().take() else { return Ok(None) };
        match self.fill_once(&mut fill, pace) {
            Ok(Some(progress)) => {
                *self.writeback.filling.lock() = Some(fill);
                Ok(Some(progress))
            }
            Ok(None) => self.place_filled(fill, unfinished).map(Some),
            Err(error) => self.give_up_filling(fill, error).map(Some),
        }
    }

    /// Begins to fill the new directory of the first batch, if that has one and a file goes into it. Batches in front
    /// of such a directory are left in `batches`, to be published before it. `true`: it has begun.
    pub(crate) fn begin_filling(&self, batches: &mut Vec<Batch>, pressure: bool) -> Result<bool> {
        let is_ordered = self.slow.root.order() != MetadataOrder::Unknown;
        if is_ordered || pressure || self.drain_control.has_deadline() {
            return Ok(false);
        }
        self.log.usable()?;
        let found = {
            let st = self.state.lock();
            let refused = self.writeback.not_filled.load(Ordering::Relaxed);
            let plan = |(at, batch): (usize, &Batch)| {
                let plan = FillPlan::begin(&st, batch).filter(|_| batch.upto != refused)?;
                let next = st.queue.events().get(batch.events.end)?;
                plan.may_take(next).then_some((at, plan))
            };
            batches.iter().enumerate().find_map(plan)
        };
        match found {
            Some((0, plan)) => {
                batches.truncate(1);
                let (batches, now) = (std::mem::take(batches), self.uptime());
                let (places, filled) = Default::default();
                let mut fill =
                    Filling { plan, batches: Vec::new(), planned: Vec::new(), places, filled, began: now, last: now };
                if let Err(error) = self.make_filled(&mut fill, batches) {
                    return self.give_up_filling(fill, error).map(|_| true);
                }
                *self.writeback.filling.lock() = Some(fill);
                Ok(true)
            }
            Some((at, _)) => {
                batches.truncate(at);
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Step 1.
    fn make_filled(&self, fill: &mut Filling, batches: Vec<Batch>) -> Result<()> {
        let made = self.make_in_tmp(&batches)?; // 1
        fill.planned = publish_plan::steps_below(&self.state.lock(), &batches, &made, &mut fill.places)
            .ok_or_else(|| Error::refused("a directory could not be planned", "report this with the log"))?;
        fill.batches = batches;
        if let Some(Step::Place { tmp, node, .. }) = fill.planned.first().map(|planned| &planned.step) {
            let dir = self.slow.tmp_of(tmp).and_then(|(dir, name)| dir.dir(name));
            fill.filled.dirs.insert(*node, dir.at("open", "a directory in tmp on the slow tier")?);
        }
        Ok(())
    }

    /// Step 2. `None`: it is time to place it.
    fn fill_once(&self, fill: &mut Filling, pace: PublishPace) -> Result<Option<Progress>> {
        let now = self.uptime();
        if self.drain_control.has_deadline() || now >= fill.began + FILL_FOR {
            return Ok(None);
        }
        let (next, belongs) = {
            let st = self.state.lock();
            let at = st.queue.index_behind(fill.plan.upto());
            let belongs = st.queue.events().get(at).is_some_and(|event| fill.plan.may_take(event));
            let next = publish_plan::next_behind(&st, pace, fill.plan.upto());
            let next = match next {
                NextToPublish::Batches(mut batches) => {
                    let taken = batches.iter().take_while(|batch| fill.plan.take(&st, batch)).count();
                    batches.truncate(taken);
                    NextToPublish::Batches(batches)
                }
                next => next,
            };
            (next, belongs)
        };
        let hurries = self.has_waiting_calls();
        let patience = (fill.last + WAIT_FOR).min(fill.began + FILL_FOR).saturating_sub(now);
        match next {
            NextToPublish::Batches(batches) if !batches.is_empty() => {
                self.add_batches(fill, batches)?;
                fill.last = self.uptime();
                Ok(Some(Progress::Did))
            }
            NextToPublish::Wait(left) if belongs && !hurries && !patience.is_zero() => {
                Ok(Some(Progress::Wait(left.min(patience))))
            }
            NextToPublish::Blocked if belongs && !hurries && !patience.is_zero() => Ok(Some(Progress::Wait(patience))),
            _ => Ok(None),
        }
    }

    /// Step 2 for batches that belong there. A directory comes before what goes into it.
    fn add_batches(&self, fill: &mut Filling, batches: Vec<Batch>) -> Result<()> {
        let made = self.make_in_tmp(&batches)?;
        let planned = publish_plan::steps_below(&self.state.lock(), &batches, &made, &mut fill.places);
        let planned = planned.ok_or_else(not_its_own)?;
        // Recorded even if this fails: some of these copies may have been moved by then.
        fill.batches.extend(batches);
        let mut files = Vec::new();
        for Planned { step, effects, .. } in &planned {
            let (Step::Place { tmp, id, node, over: None, known, .. }, Some(Effect::Name((dir, name), _))) =
                (step, effects.first())
            else {
                return Err(not_its_own());
            };
            let into = fill.filled.dirs.get(dir).ok_or_else(not_its_own)?.clone();
            let (from, name_in_tmp) = self.slow.tmp_of(tmp).at("open", "tmp on the slow tier")?;
            // A directory may show another time once it is moved.
            let known = known.filter(|_| !fill.places.contains_key(node));
            let moved = MoveInTmp { from, name_in_tmp, into, name: name.as_bytes(), node: *node, id: *id, known };
            if fill.places.contains_key(node) {
                moved.go().at("move in tmp on the slow tier", escape(tmp))?;
                let dir = moved.into.dir(moved.name).at("open", "a directory in tmp on the slow tier")?;
                fill.filled.dirs.insert(*node, dir);
            } else {
                files.push(moved);
            }
        }
        // 2
        let stats = ask_each(
            || self.uptime(),
            &files,
            |file| file.go().at("move in tmp on the slow tier", escape(file.name_in_tmp)),
        )?;
        fill.filled.files.extend(files.iter().map(|file| file.node).zip(stats));
        fill.planned.extend(planned);
        Ok(())
    }

    /// Steps 3 and 4.
    fn place_filled(&self, mut fill: Filling, unfinished: &mut Option<Unfinished>) -> Result<Progress> {
        if let Err(error) = self.sync_filled(&mut fill) {
            return self.give_up_filling(fill, error);
        }
        let Filling { batches, planned, filled, .. } = fill;
        let contents = batches.iter().flat_map(|batch| batch.contents.values());
        let contents: Vec<_> = contents.map(|(_, content)| content.clone()).collect();
        let first = planned.first().map_or(0, |planned| planned.upto);
        let placed = self.publish_planned(Unfinished::filled(batches, planned, filled), unfinished); // 4
        if placed.is_err() && unfinished.is_none() {
            // The intents may have been logged: keep the directory in `tmp`.
            self.writeback.not_filled.store(first, Ordering::Relaxed);
            contents.iter().for_each(|content| self.copy_again(content));
        }
        placed.map(|()| Progress::Did)
    }

    /// Step 3. Another program may have removed some of it meanwhile.
    fn sync_filled(&self, fill: &mut Filling) -> Result<()> {
        let dirs: Vec<_> = fill.filled.dirs.values().cloned().collect();
        if !left_out!(FillDurable) {
            ask_each(|| self.uptime(), &dirs, |dir| dir.sync().at("fsync", "a directory in tmp on the slow tier"))?; // 3
        }
        if let Some(missing) = first_missing(&fill.filled.dirs, &fill.planned)?.and_then(|at| fill.planned.get(at)) {
            let path = escape(step_path(&missing.step));
            return Err(Error::io("publish", path, Errno::ENOENT.into()));
        }
        for planned in &mut fill.planned {
            // A directory may show another size or time a moment later.
            if let Step::Place { node, known, .. } = &mut planned.step
                && fill.filled.dirs.contains_key(node)
            {
                *known = None;
            }
        }
        self.sync_in_tmp(fill.planned.first().map(|planned| &planned.step).into_iter())
    }

    /// Nothing of it is on the slow tree: its files are copied again and published one by one.
    fn give_up_filling(&self, fill: Filling, error: Error) -> Result<Progress> {
        self.empty_filled(&fill.batches, &fill.planned);
        match error.errno() {
            // A copy that was made for another part of the tree: ordinary publishing brings it over.
            Errno::EXDEV => return Ok(Progress::Did),
            Errno::ENOENT | Errno::ESTALE => {}
            _ => return Err(error),
        }
        let path = fill.planned.first().map(|planned| escape(step_path(&planned.step))).unwrap_or_default();
        tracing::warn!(
            path,
            "somebody else removed files to be published from .dlio-fs/tmp on the slow tier; they are copied again"
        );
        self.counters.conflict(format!(
            "/{path}: files for it were removed from .dlio-fs/tmp on the slow tier by somebody else, made again"
        ));
        Ok(Progress::Did)
    }

    /// The copies in a filled directory in `tmp` are gone with it, and it is not filled again.
    pub(crate) fn empty_filled(&self, batches: &[Batch], planned: &[Planned]) {
        if let Some(first) = planned.first() {
            self.writeback.not_filled.store(first.upto, Ordering::Relaxed);
        }
        for (_, content) in batches.iter().flat_map(|batch| batch.contents.values()) {
            self.copy_again(content);
        }
        if let Some(Step::Place { tmp, .. }) = planned.first().map(|planned| &planned.step) {
            let removed = self.slow.tmp_of(tmp).at("open", "tmp on the slow tier");
            if let Err(error) = removed.and_then(|(dir, name)| remove_tree(&*dir, name)) {
                tracing::debug!(%error, "a directory that was not placed stays in tmp until the next start");
            }
        }
    }

    /// Placing the directory places everything in it, except what another program removed at the last moment: from
    /// there on each step is checked. Where another program has made a directory of that name, nothing of ours is in
    /// place: the group ends there.
    pub(crate) fn adopt_filled(&self, group: &mut Unfinished) -> Result<()> {
        let Some(filled) = group.filled.as_ref().filter(|_| group.met.len() == 1) else { return Ok(()) };
        let at = group.planned.first().map(|first| step_path(&first.step).to_vec()).unwrap_or_default();
        match group.met.first().and_then(|met| met.path(&at)) {
            Some(beside) => {
                for planned in &mut group.planned {
                    if let Step::Place { path, .. } = &mut planned.step
                        && let Some(rest) = path.strip_prefix(&at[..]).filter(|rest| !rest.is_empty())
                    {
                        *path = [&beside[..], rest].concat();
                    }
                }
                let there = first_missing(&filled.dirs, &group.planned)?.unwrap_or(group.planned.len());
                group.met.resize_with(there, || Met::Expected);
            }
            None => self.cut(group),
        }
        Ok(())
    }

    /// Whether a filled directory is still in `tmp` after an attempt to place it, because it was refused, perhaps for
    /// its contents. A tier that does not answer may still be placing it.
    pub(crate) fn stays_in_tmp(&self, tree: &OpenTree<'_>, group: &Unfinished, met: &Result<Met>) -> bool {
        match (met, group.steps().next()) {
            (Ok(met), _) => matches!(met, Met::Lacking | Met::Apart),
            (Err(error), Some(step)) => !is_silence(error) && matches!(tree.has_applied(step), Ok(Some(false))),
            (Err(_), None) => false,
        }
    }

    /// The order of pending events is about to change: a directory that is being filled begins anew.
    pub(crate) fn stop_filling(&self) {
        let fill = self.writeback.filling.lock().take();
        if let Some(fill) = fill {
            self.empty_filled(&fill.batches, &fill.planned);
        }
    }
}

/// The first step after the filled directory's own whose node is not in it or below.
fn first_missing(dirs: &HashMap<Ino, Arc<dyn Dir>>, planned: &[Planned]) -> Result<Option<usize>> {
    let mut there: HashSet<(Ino, Vec<u8>)> = HashSet::new();
    for (ino, dir) in dirs {
        let entries = dir.list().at("list", "a new directory on the slow tier")?;
        there.extend(entries.into_iter().map(|entry| (*ino, entry.name)));
    }
    let is_missing = |planned: &Planned| match planned.effects.first() {
        Some(Effect::Name((dir, name), _)) => !there.contains(&(*dir, name.as_bytes().to_vec())),
        _ => false,
    };
    Ok(planned.iter().skip(1).position(is_missing).map(|at| at + 1))
}

/// A node that goes from `tmp` into its directory there.
struct MoveInTmp<'a> {
    from: Arc<dyn Dir>,
    name_in_tmp: &'a [u8],
    into: Arc<dyn Dir>,
    name: &'a [u8],
    node: Ino,
    id: FileId,
    known: Option<TmpStat>,
}

impl MoveInTmp<'_> {
    /// Errors: ENOENT if another program has removed or replaced the node.
    fn go(&self) -> io::Result<Stat> {
        self.from.rename(self.name_in_tmp, &*self.into, self.name, RenameMode::Replace)?;
        let stat = self.into.stat(self.name)?;
        let is_it = stat.file() == self.id && self.known.is_none_or(|known| known.fits(&stat));
        if is_it { Ok(stat) } else { Err(Errno::ENOENT.into()) }
    }
}

/// [`FillPlan::take`] admits nothing else.
fn not_its_own() -> Error {
    Error::refused("a new directory could not be filled", "report this with the log")
}
