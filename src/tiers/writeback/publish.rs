//! Applies the log to the slow tree, in its order.
//!
//! One group of events (`model/publish_plan.rs`) takes these steps. After a crash the next start finishes the group.
//!
//! 1. Make new directories, links and special files in `tmp`, complete with their attributes, and further links of
//!    copies that go to several names.
//! 2. Sync `tmp`: every node that an intent will name exists.
//! 3. Log the intents, and make them and every record before them durable. In a fleet write them to the slow tree, too,
//!    for the member that forgets this one (`fleet/journal.rs`).
//! 4. Apply each step: a rename, link, removal or change of attributes. It finds what it expects, or keeps both
//!    versions (P11).
//! 5. Sync the directories: at the end if the file system keeps its metadata in order, else after each step. Then
//!    update the view's knowledge of the slow tier, and in a fleet note the names for the other members.
//! 6. Mark files that have not changed since as clean: make the fingerprint durable on their objects. If this came
//!    before the view's update, an eviction in between would show the previous version of the slow tier, or none.
//! 7. Log `applied`, behind new `bind` records for files whose bytes are ahead of it.
//! 8. Once 7 is durable, delete what is no longer needed.
//!
//! Nodes for a part of the tree that no rename reaches wait in a `tmp` of that part (`writeback/parts.rs`).
//!
//! If another program removes a node from `tmp` between 2 and 4, it is made again (P6). If nothing of its batch is
//! done, the group ends before that batch and the rest is planned anew. If the batch is half done, the node is made
//! again and its intent logged again. A directory that another program removed is made again, with the attributes of
//! the view.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Errno, Error, Result};
use crate::path::{Name, escape};
use crate::tiers::disk::errors::{RefusedAt, holds_its_user, is_elsewhere, is_full};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::{remove_leftover, remove_tree, split};
use crate::tiers::disk::{Access, Dir, File, Kind, MetadataOrder, NewAttr, Stat};
use crate::tiers::fleet::journal::GroupStep;
use crate::tiers::fleet::rule::FleetGate;
use crate::tiers::log::record::{Attrs, ObjectId, Path, Record, Spec, Step, TmpStat};
use crate::tiers::model::clean_list::Clean;
use crate::tiers::model::event::Change;
use crate::tiers::model::node::{DirEntryKey, ObservedAt};
use crate::tiers::model::publish_plan::{self, Batch, Effect, NextToPublish, Planned, PublishPace};
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::abilities::is_refused;
use crate::tiers::objects::attrs::drop_inherited;
use crate::tiers::objects::file::{Bytes, FileState, Io};
use crate::tiers::objects::parts::{bare, in_part};
use crate::tiers::objects::pool::{Pool, label};
use crate::tiers::objects::slow_tier::{Moving, SlowTier};
use crate::tiers::objects::version::{Content, Copied};
use crate::tiers::progress::WorkKind;
use crate::tiers::side_by_side::ask_each;
use crate::tiers::writeback::group::Unfinished;
use crate::tiers::writeback::mend::{Mended, base_of, vanishes};
use crate::tiers::writeback::open_tree::OpenTree;
use crate::tiers::writeback::step::{Met, SyncSet, step_path, step_target};
use crate::tiers::{Cx, Ino, Lsn, Progress, ROOT, Tiers};

/// How many fingerprints are made durable together.
const UNSYNCED_MAX: usize = 64;

impl Tiers {
    /// Publishes the next group of events, if it is settled, sealed and copied. Held events are retried at once if
    /// nothing else can go.
    pub fn publish_step(&self) -> Result<Progress> {
        self.publish_once(false)
    }

    /// Like [`Tiers::publish_step`], but held events are not retried before their time, and are no failure.
    pub fn publish_patiently(&self) -> Result<Progress> {
        match self.publish_once(true) {
            Err(error) => match self.wait_of_front() {
                Some(left) => Ok(Progress::Wait(left)),
                None => Err(error),
            },
            done => done,
        }
    }

    fn publish_once(&self, patient: bool) -> Result<Progress> {
        let front = self.state.lock().queue.front();
        let waits = self.wait_of_front().is_some();
        let done = match self.publish_next(patient) {
            // Room for a name or an attribute.
            Err(error) if self.removes_first(&error, 1) => Ok(Progress::Did),
            done => done,
        };
        // If others went first, the front was not tried.
        if let Some(lsn) = front.filter(|_| !waits || done.is_err()) {
            self.counters.notes.tried(lsn, WorkKind::Publish, done.as_ref().err());
        }
        match done {
            Err(error) => self.hold_its_user(error),
            done => done,
        }
    }

    fn publish_next(&self, patient: bool) -> Result<Progress> {
        let mut unfinished = self.writeback.unfinished.lock();
        if self.damaged.is_some() {
            return Ok(Progress::Idle);
        }
        if unfinished.is_some() {
            return self.continue_group(&mut unfinished);
        }
        if let Some(rest) = self.may_not_begin(patient)? {
            return Ok(rest);
        }
        let pace = self.publish_pace();
        if let Some(progress) = self.fill_on(pace, &mut unfinished)? {
            return Ok(progress);
        }
        match self.plan_next(pace) {
            NextToPublish::Empty => Ok(Progress::Idle),
            NextToPublish::Wait(left) => Ok(Progress::Wait(left)),
            NextToPublish::Blocked if self.pass_refused_copy()? => Ok(Progress::Did),
            NextToPublish::Blocked => self.unblock(),
            // The fleet's own work wakes this one.
            NextToPublish::Gated => Ok(Progress::Idle),
            NextToPublish::Batches(batches) => self.publish_batches(batches, pace.pressure, &mut unfinished),
        }
    }

    /// Finishes the group that an error, or a wait, has interrupted.
    fn continue_group(&self, unfinished: &mut Option<Unfinished>) -> Result<Progress> {
        if let Some(group) = unfinished.as_mut()
            && !self.apply_group(group)?
        {
            return Ok(Progress::Idle);
        }
        self.finish_group(unfinished)?;
        self.publish_cut_batch(unfinished).map(|()| Progress::Did)
    }

    /// Why no group may begin now, if so: an operator, a user whose changes are held, another daemon of this fast tier,
    /// or the partner.
    fn may_not_begin(&self, patient: bool) -> Result<Option<Progress>> {
        if self.is_paused() {
            return Ok(Some(Progress::Idle));
        }
        if let Some(done) = self.let_others_first(patient)? {
            return Ok(Some(done));
        }
        if let Some(this) = self.incarnation.as_ref().filter(|_| self.state.lock().queue.front().is_some()) {
            this.look(self.uptime())?;
        }
        Ok(self.held_by_copy().map(|_| Progress::Idle))
    }

    fn publish_pace(&self) -> PublishPace {
        let is_hurried = self.has_waiters() || self.fast_fails();
        let options = self.options();
        PublishPace {
            now: self.uptime(),
            settle: if is_hurried { Duration::ZERO } else { options.settle },
            live_after: options.live_after,
            pressure: self.batches_by_pressure(),
            priority_lsn: self.counters.notes.priority_lsn(),
            gate: self.order.gate(self.uptime()),
        }
    }

    fn plan_next(&self, pace: PublishPace) -> NextToPublish {
        let next = publish_plan::next(&self.state.lock(), pace);
        self.order.note_refusal(matches!(next, NextToPublish::Gated), pace.now);
        match next {
            NextToPublish::Batches(_) => self.counters.publishing_goes_on(pace.now),
            _ => self.counters.publishing_rests(),
        }
        next
    }

    fn publish_batches(
        &self,
        mut batches: Vec<Batch>,
        pressure: bool,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<Progress> {
        if let Some(done) = self.keep_apart(&batches)? {
            return Ok(done);
        }
        if !self.begin_filling(&mut batches, pressure)? {
            self.publish(batches, unfinished)?;
            self.publish_cut_batch(unfinished)?;
        }
        Ok(Progress::Did)
    }

    /// Publishes the rest of a cut batch at once: until then the slow tree is in the middle of it.
    fn publish_cut_batch(&self, unfinished: &mut Option<Unfinished>) -> Result<()> {
        loop {
            if unfinished.is_some() {
                return Ok(());
            }
            let next = {
                let st = self.state.lock();
                if !st.is_inside_batch() {
                    return Ok(());
                }
                let (settle, live_after) = (Duration::ZERO, self.options().live_after);
                let now = self.uptime();
                // Under pressure a version without a copy may have been left to a later one: then the rest is ready
                // only with pressure.
                [false, true].into_iter().find_map(|pressure| {
                    // Regardless of other members: the slow tree is not left in the middle of a batch.
                    let pace =
                        PublishPace { now, settle, live_after, pressure, priority_lsn: 0, gate: FleetGate::Open };
                    match publish_plan::next(&st, pace) {
                        NextToPublish::Batches(batches) => Some(batches),
                        NextToPublish::Empty
                        | NextToPublish::Wait(_)
                        | NextToPublish::Blocked
                        | NextToPublish::Gated => None,
                    }
                })
            };
            match next {
                Some(batches) => self.publish(batches, unfinished)?,
                None => return Ok(()),
            }
        }
    }

    /// Steps 1 to 3, then the rest.
    fn publish(&self, batches: Vec<Batch>, unfinished: &mut Option<Unfinished>) -> Result<()> {
        // A closed log may hold intents that name the present nodes in `tmp`: if they were made again, the next start
        // would not find them.
        self.log.usable()?;
        if batches.len() > 1 {
            let first = batches.iter().take(1).cloned().collect();
            let applied = || self.state.lock().queue.applied();
            let before = applied();
            return match self.publish_all(batches, unfinished) {
                // A batch published alone shows whose it is. Not if the error came after the group: then these batches
                // are of an older queue.
                Err(error) if unfinished.is_none() && may_hold_one(&error) && applied() == before => {
                    self.publish_all(first, unfinished)
                }
                done => done,
            };
        }
        self.publish_all(batches, unfinished)
    }

    fn publish_all(&self, batches: Vec<Batch>, unfinished: &mut Option<Unfinished>) -> Result<()> {
        if !self.name_copies(&batches)? {
            return Ok(());
        }
        let made = self.make_in_tmp(&batches)?; // 1
        let planned = self.link_moved(&batches).and_then(|()| self.prepare(&batches, &made)); // 1, 2
        if !matches!(planned, Ok(Some(_))) {
            self.unlink_moved(&batches);
        }
        let Some(planned) = planned? else { return Ok(()) };
        self.forget_unplaced(&made, &planned);
        self.publish_planned(Unfinished::new(batches, planned), unfinished)
    }

    /// What the batch makes and removes again is not placed.
    fn forget_unplaced(&self, made: &HashMap<Lsn, Copied>, planned: &[Planned]) {
        let is_placed = |one: &Copied| {
            planned
                .iter()
                .any(|planned| matches!(&planned.step, Step::Place { tmp, .. } if base_of(tmp) == &one.tmp[..]))
        };
        for one in made.values().filter(|one| !is_placed(one)) {
            let removed = self.slow.tmp_of(&one.tmp).at("open", "tmp on the slow tier");
            let removed = removed.and_then(|(dir, name)| remove_tree(&*dir, name));
            if let Err(e) = removed {
                tracing::debug!(error = %e, "what a batch made and removed stays in tmp until the next start");
            }
        }
    }

    /// The steps of a group; the nodes they place are durable. `None`: a copy has vanished from `tmp`; it is copied
    /// again.
    fn prepare(&self, batches: &[Batch], made: &HashMap<Lsn, Copied>) -> Result<Option<Vec<Planned>>> {
        let plan = || {
            let planned = publish_plan::steps(&self.state.lock(), batches, made);
            planned.ok_or_else(|| Error::refused("an event could not be planned", "report this with the log"))
        };
        let mut planned = plan()?;
        if self.copy_to_parts(batches, &planned)? {
            if batches.iter().flat_map(|batch| batch.contents.values()).any(|(_, content)| !content.is_copied()) {
                return Ok(None);
            }
            planned = plan()?;
        }
        if left_out!(Turn) {
            planned.reverse();
        }
        if left_out!(RemoveLast) && batches.len() == 1 {
            planned.sort_by_key(|planned| !matches!(planned.step, Step::Remove { .. }));
        }
        if !self.link_in_tmp(&planned)? {
            self.forget_vanished(&[])?;
            return Ok(None);
        }
        self.sync_in_tmp(planned.iter().map(|planned| &planned.step))?; // 2
        Ok(Some(planned))
    }

    /// Step 2.
    pub(crate) fn sync_in_tmp<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> Result<()> {
        self.slow.sync_tmps(steps.filter_map(|step| match step {
            Step::Place { tmp, .. } => Some(&tmp[..]),
            _ => None,
        }))
    }

    /// Step 3, then the rest.
    pub(crate) fn publish_planned(&self, group: Unfinished, unfinished: &mut Option<Unfinished>) -> Result<()> {
        let intents = group.intents();
        if !intents.is_empty() && !left_out!(Intents) {
            let last = self.log.append(&intents)?;
            self.note_intents(last);
        }
        if !left_out!(IntentsDurable) {
            self.log.sync(self.log.last())?; // 3
        }
        self.journal_group(&group);
        if self.apply_group(unfinished.insert(group))? {
            self.finish_group(unfinished)?;
        }
        Ok(())
    }

    /// In a fleet, writes the intents to the slow tree, too: if this member is lost with its log, the group can be
    /// finished. Continues after an error: then the member that forgets this one finds the slow tree where it stopped.
    pub(crate) fn journal_group(&self, group: &Unfinished) {
        if group.planned.is_empty() {
            return;
        }
        self.order.journal_group(&*self.slow.tmp, || {
            let st = self.state.lock();
            let end = |upto: Lsn| st.queue.stamps(upto).end;
            let step = |planned: &Planned| GroupStep {
                upto: planned.upto,
                end: end(planned.upto),
                step: planned.step.clone(),
            };
            group.planned.iter().map(step).collect()
        });
    }

    /// Notes the LSN of the last intent, which the partner must take.
    pub(crate) fn note_intents(&self, last: Lsn) {
        self.writeback.intents.store(last, Ordering::Release);
        if !self.is_in_copy(last) {
            self.wake();
        }
    }

    /// Continues a group that a start could not finish.
    pub(crate) fn resume_group(&self, group: Unfinished) {
        self.journal_group(&group);
        // Its intents were logged again.
        self.note_intents(self.log.last());
        self.slow.set_moving(self.moves(group.steps()));
        self.begin(&group.planned);
        *self.writeback.unfinished.lock() = Some(group);
    }

    /// Steps 4 and 5, from where an error stopped them. `false`: the next node to place is being copied again, this
    /// member of a fleet may have been declared lost, or its partner does not have the intents yet.
    pub(crate) fn apply_group(&self, group: &mut Unfinished) -> Result<bool> {
        if group.followed {
            return Ok(true);
        }
        for (_, content) in group.on_slow() {
            self.slow.place(content.object().tail()).at("open", "object on the slow tier")?;
        }
        self.slow.set_moving(self.moves(group.own_steps()));
        self.begin(&group.planned);
        // What is found is compared with the changes that other members have reported.
        self.follow_reported()?;
        let tree = OpenTree::within(&self.slow, self.devices(&group.planned)).in_order(&self.order);
        let mut touched = SyncSet::of(group.applied());
        let in_order = self.keeps_order(&group.planned)?;
        if !in_order {
            // This sync may have failed before: the next step must not be durable before the last one.
            touched.sync(&tree)?; // 5
        }
        tree.stat_ahead(|| self.uptime(), group.own_steps().skip(group.met.len()));
        let mut mended = None;
        while group.met.len() < group.planned.len() {
            if !self.may_go_on() || !self.is_in_copy(self.writeback.intents.load(Ordering::Acquire)) {
                return Ok(false);
            }
            let at = group.met.len();
            let made = match self.adopt_new_copy(group)? {
                Some(mended) => mended,
                None => match self.apply(&tree, group) {
                    met if group.places_filled() && self.stays_in_tmp(&tree, group, &met) => {
                        self.cut(group);
                        Mended::Cut
                    }
                    met => match met? {
                        Met::Lacking => {
                            if mended.replace(at) == Some(at)
                                && let Some(next) = group.next()
                            {
                                return Err(vanishes(&next.step));
                            }
                            self.mend(group)?
                        }
                        Met::Apart => self.move_to_parts(group)?,
                        Met::Moved => {
                            self.cut(group);
                            Mended::Cut
                        }
                        met => Mended::Never(met), // 4
                    },
                },
            };
            match made {
                Mended::Again | Mended::Cut => {
                    // Nodes that were looked up ahead may have been made again, too.
                    tree.forget();
                    continue;
                }
                Mended::Soon => return Ok(false),
                Mended::Never(met) => group.met.push(met),
            }
            self.adopt_filled(group)?;
            group.go_on_beside();
            group.planned.get(at).into_iter().for_each(|applied| touched.add(&applied.step));
            if !in_order && !left_out!(EachStepDurable) {
                touched.sync(&tree)?; // 5
            }
        }
        if !left_out!(StepsDurable) {
            touched.sync(&tree)?; // 5
        }
        Ok(true)
    }

    /// The known file systems of these steps' directories.
    fn devices(&self, planned: &[Planned]) -> BTreeSet<u64> {
        let st = self.state.lock();
        let mut above: Vec<Ino> = planned
            .iter()
            .flat_map(|planned| &planned.effects)
            .map(|effect| match effect {
                Effect::Name((dir, _), _) => *dir,
                Effect::Touched(ino) | Effect::Identity(ino, _) => *ino,
            })
            .collect();
        let (mut seen, mut devices) = (HashSet::new(), BTreeSet::from([st.view.root_dev()]));
        while let Some(ino) = above.pop() {
            if let Some(node) = st.view.get(ino).filter(|_| seen.insert(ino)) {
                devices.extend(node.slow_id().map(|(dev, _)| dev));
                above.extend(node.links.iter().chain(node.slow()).map(|(dir, _)| *dir));
            }
        }
        devices
    }

    /// The places where the slow tree may differ from the view until the group is finished, in the order of the steps.
    pub(crate) fn moves<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> Vec<Moving> {
        let moved = |step: &Step| match step {
            Step::Link { path, to, .. } => vec![Moving::To(path.clone(), to.clone())],
            Step::Move { path, to, .. } => vec![Moving::Gone(to.clone()), Moving::To(path.clone(), to.clone())],
            Step::Swap { a, b, .. } => vec![Moving::Exchanged(a.clone(), b.clone())],
            // An existing node: it may lose its old name before a link of it comes from `tmp` to the new one.
            Step::Place { node, tmp, path, object: None, .. } => {
                let there = self.state.lock().view.slow_paths(*node);
                let waiting = self.slow.path_in_tmp(tmp);
                let to = |from: Path| [Moving::To(from.clone(), waiting.clone()), Moving::To(from, path.clone())];
                let left = [Moving::Gone(waiting.clone()), Moving::Gone(path.clone())];
                there.into_iter().flat_map(to).chain(left).collect()
            }
            Step::Place { path, .. } | Step::Remove { path, .. } => vec![Moving::Gone(path.clone())],
            Step::Attr { .. } | Step::Xattr { .. } => Vec::new(),
        };
        steps.flat_map(moved).collect()
    }

    /// From here on the slow tier may be ahead of the view.
    fn begin(&self, planned: &[Planned]) {
        let mut st = self.state.lock();
        let names = planned.iter().flat_map(|planned| &planned.effects);
        let names =
            names.filter_map(|effect| if let Effect::Name(place, _) = effect { Some(place.clone()) } else { None });
        st.view.follow(names.collect());
        // Replaced files keep a name in `tmp` for a while.
        let replaced = |planned: &Planned| match &planned.step {
            Step::Place { over: Some(_), .. } => planned.effects.iter().find_map(|effect| match effect {
                Effect::Name((dir, name), Some(_)) => st.view.get(*dir)?.dir.as_ref()?.slots.get(name)?.slow(),
                _ => None,
            }),
            _ => None,
        };
        let replaced: Vec<Ino> = planned.iter().filter_map(replaced).collect();
        st.view.in_tmp.extend(replaced);
    }

    pub(crate) fn finish_group(&self, unfinished: &mut Option<Unfinished>) -> Result<()> {
        let Some(group) = unfinished.as_mut() else { return Ok(()) };
        let placed = self.placed_stats(group)?;
        if left_out!(FollowFirst) {
            self.finish_contents(&group.batches, &placed)?;
        }
        if !group.followed {
            self.follow_group(group, &placed);
            self.note_changed_names(group);
            group.followed = true;
        }
        let done = group.planned.iter().zip(&group.met).filter(|(_, met)| **met == Met::Expected);
        self.slow.follow_parts(done.map(|(planned, _)| &planned.step))?;
        let superseded = self.finish(group, &placed)?; // 6, 7
        match unfinished.take() {
            Some(group) => self.clean_up(&group, &[superseded, group.left.clone()].concat()), // 8
            None => Ok(()),
        }
    }

    /// Step 1: makes everything but regular files, complete, in `tmp`.
    pub(crate) fn make_in_tmp(&self, batches: &[Batch]) -> Result<HashMap<Lsn, Copied>> {
        let specs: Vec<(Lsn, Arc<Spec>, Ino)> = {
            let st = self.state.lock();
            let events = batches.iter().flat_map(|batch| st.queue.events().range(batch.events.clone()));
            let specs = events.filter_map(|event| match &event.change {
                Change::Make { spec, at, .. } => Some((event.lsn, spec.clone(), at.0)),
                _ => None,
            });
            specs.collect()
        };
        specs.into_iter().map(|(lsn, spec, dir)| Ok((lsn, self.make_one(lsn, &spec, dir)?))).collect()
    }

    /// Makes the node in the `tmp` for directory `dir`.
    pub(crate) fn make_one(&self, lsn: Lsn, spec: &Spec, dir: Ino) -> Result<Copied> {
        let (part, tmp) = self.tmp_for(dir)?;
        let name = format!("m{lsn:016x}").into_bytes();
        let stat = self.make_whole(&*tmp, &name, spec)?;
        Ok(Copied { tmp: in_part(&part, &name), id: stat.id(), sum: None, known: Some(TmpStat::of(&stat)) })
    }

    /// Makes a node in `tmp` with all its attributes. It is durable, except for its name if the file system does not
    /// order names.
    pub(crate) fn make_whole(&self, tmp: &dyn Dir, name: &[u8], spec: &Spec) -> Result<Stat> {
        remove_tree(tmp, name)?;
        let made = make(&self.slow, tmp, name, spec).at("make on the slow tier", escape(name))?;
        let (stat, left_out) = made;
        self.warn_of_left_out(escape(&self.slow.path_in_tmp(name)), &left_out);
        if spec.kind == Kind::Dir && tmp.order() == MetadataOrder::Unknown {
            // Makes the directory's own attributes durable; other kinds have nothing to sync.
            let dir = tmp.dir(name).and_then(|dir| dir.sync());
            dir.at("fsync", escape(name))?;
        }
        Ok(stat)
    }

    /// Step 1: nodes that a batch moves get a link in `tmp`, to be placed from there.
    fn link_moved(&self, batches: &[Batch]) -> Result<()> {
        let links: Vec<_> = {
            let mut st = self.state.lock();
            let links: Vec<_> = batches.iter().flat_map(|batch| publish_plan::to_link(&st, batch)).collect();
            st.view.in_tmp.extend(links.iter().map(|(ino, _)| *ino));
            let dir = |ino: Ino| st.view.get(ino).and_then(|node| Some(node.slow().first()?.0)).unwrap_or(ROOT);
            let at = |ino: Ino| Some((st.view.slow_path(ino)?, st.view.get(ino)?.slow_id()?));
            links.into_iter().map(|(ino, name)| (at(ino), dir(ino), name)).collect()
        };
        for (at, dir, link) in links {
            let Some((path, id)) = at else { continue };
            let (tmp, link) = match split(&link) {
                (b"", name) => (self.slow.tmp.clone(), name),
                (_, name) => (self.tmp_for(dir)?.1, name),
            };
            remove_leftover(&*tmp, link)?;
            match self.slow.act(&path, id, |inode| inode.link(&*tmp, link)) {
                // Another program has removed or replaced it: the step finds nothing to place.
                Err(e) if is_elsewhere(&e) => {}
                linked => linked.at("link into tmp", escape(&path))?,
            }
        }
        Ok(())
    }

    /// The group is not published now: the links would be counted as names of the files until it is.
    fn unlink_moved(&self, batches: &[Batch]) {
        let links: Vec<_> = {
            let st = self.state.lock();
            batches.iter().flat_map(|batch| publish_plan::to_link(&st, batch)).collect()
        };
        let removed = |(ino, link): (Ino, Vec<u8>)| {
            let (dir, name) = self.slow.tmp_of(&link).ok()?;
            remove_leftover(&*dir, name).ok().map(|()| ino)
        };
        let left = links.into_iter().filter_map(removed).collect();
        self.state.lock().view.leave_tmp(left, self.uptime());
    }

    /// Makes further links, as `tmp.1`, `tmp.2`, ..., of copies that go to several names. `false`: another program has
    /// removed a copy.
    fn link_in_tmp(&self, planned: &[Planned]) -> Result<bool> {
        for planned in planned {
            let Step::Place { tmp, .. } = &planned.step else { continue };
            let (copy, further) = tmp.split_at(base_of(tmp).len());
            // A link of a node in the tree is not one of a copy: the step finds out what is left of it.
            if !further.is_empty() && !self.link_further(copy, further)? && !bare(tmp).starts_with(b"l") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Applies the next step of a group. If its file was written in place meanwhile, the step is applied again with the
    /// time of that write. A write that comes after the last check sets the time itself.
    fn apply(&self, tree: &OpenTree<'_>, group: &mut Unfinished) -> Result<Met> {
        let overtaken = |group: &Unfinished| group.next().and_then(|next| self.as_overtaken(next));
        let mut instead = overtaken(group);
        loop {
            let met = self.apply_once(tree, group, instead.as_ref())?;
            let since = overtaken(group);
            if since == instead {
                return Ok(met);
            }
            instead = since;
        }
    }

    fn apply_once(&self, tree: &OpenTree<'_>, group: &mut Unfinished, instead: Option<&Step>) -> Result<Met> {
        let Some(Planned { step, effects, upto, .. }) = group.next() else { return Ok(Met::Gone) };
        if self.order.is_shared() {
            tree.began.set(self.state.lock().queue.stamps(*upto).start);
        }
        let step = instead.unwrap_or(step);
        let (known, path) = (self.known_slow_fingerprint(effects, step), step_path(step).to_vec());
        let mut met = tree.apply(step, known);
        if met.as_ref().is_err_and(|e| e.raw_os_error() == Some(Errno::ESTALE as i32)) {
            // A file server's answer for a directory that was removed while it was kept open.
            tree.forget();
            self.slow.forget_lanes();
            met = tree.apply(step, known);
        }
        if met.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            if !group.is_inside_batch() && self.is_of_moved_dir(group)? {
                return Ok(Met::Moved);
            }
            // Another program has just removed a directory, or the node that waited in `tmp`.
            let made = step_target(step).map_or(Ok(Vec::new()), |target| self.make_parents(target))?;
            made.into_iter().for_each(|(ino, id)| group.identify(ino, id));
            tree.forget();
            if let Some(step) = instead.or(group.next().map(|next| &next.step)) {
                met = tree.apply(step, known);
            }
        }
        tree.pop_saved().iter().for_each(|(path, place)| self.log_saved(path, place));
        met.at("publish", escape(&path))
    }

    /// Whether another member of the fleet has renamed the directory in which the next step changes a name.
    fn is_of_moved_dir(&self, group: &Unfinished) -> Result<bool> {
        let Some(Planned { step, effects, .. }) = group.next() else { return Ok(false) };
        let dir = effects.iter().find_map(|effect| match effect {
            Effect::Name((dir, _), Some(_)) => Some(*dir),
            _ => None,
        });
        let (Some(dir), Some(target)) = (dir, step_target(step)) else { return Ok(false) };
        self.has_moved_on(dir, split(target).0)
    }

    /// Reports that another member of the fleet had the name.
    fn log_saved(&self, path: &[u8], place: &[u8]) {
        let (path, place) = (escape(path), escape(place));
        tracing::info!(path, place, "another member has changed the same name; what it had there is saved");
        self.counters.totals.replaced.increment(1);
    }

    /// The step that replaces a change of times if a write in place came after it was planned.
    fn as_overtaken(&self, planned: &Planned) -> Option<Step> {
        let (Step::Attr { path, id, of, new }, [Effect::Touched(node)]) = (&planned.step, &planned.effects[..]) else {
            return None;
        };
        let now = self.state.lock().in_place.as_overtaken(*node, *new);
        (now != *new).then(|| Step::Attr { path: path.clone(), id: *id, of: *of, new: now })
    }

    /// The known fingerprint of the slow file that a step replaces or whose attributes it sets: tells another program's
    /// change from ours.
    fn known_slow_fingerprint(&self, effects: &[Effect], step: &Step) -> Option<Fingerprint> {
        match step {
            Step::Place { over: Some(_), .. } => {
                let st = self.state.lock();
                effects.iter().find_map(|effect| match effect {
                    Effect::Name((dir, name), Some(_)) => {
                        let slot = st.view.get(*dir)?.dir.as_ref()?.slots.get(name)?;
                        let node = st.view.get(slot.slow()?)?;
                        if node.kind == Kind::File { node.slow_fingerprint() } else { None }
                    }
                    _ => None,
                })
            }
            Step::Attr { .. } | Step::Xattr { .. } => {
                let Some(Effect::Touched(ino)) = effects.first() else { return None };
                let (known, file) = {
                    let mut st = self.state.lock();
                    let node = st.view.get(*ino).filter(|node| node.kind == Kind::File)?;
                    (node.slow_fingerprint(), st.known_file(*ino))
                };
                known.or_else(|| file?.io.read().clean())
            }
            _ => None,
        }
    }

    /// The current stat of published contents on the slow tier, under their names or beside them.
    fn placed_stats(&self, group: &Unfinished) -> Result<HashMap<Ino, Stat>> {
        let mut found: HashMap<Ino, Stat> = group.filled.as_ref().map_or_else(HashMap::new, |had| had.files.clone());
        let placed = group.planned.iter().zip(&group.met).filter_map(|(planned, met)| match &planned.step {
            Step::Place { node, .. } if found.contains_key(node) => None,
            Step::Place { node, path, id, object: Some(_), known, .. } => Some(((*node, *id, *known), met.path(path)?)),
            _ => None,
        });
        let (nodes, paths): (Vec<_>, Vec<Path>) = placed.unzip();
        let tree = OpenTree::within(&self.slow, self.devices(&group.planned));
        let stats = tree.stat_all(|| self.uptime(), &paths)?;
        for ((node, id, known), stat) in nodes.into_iter().zip(stats) {
            if let Some(stat) = stat
                && stat.file() == id
                && known.is_none_or(|known| known.size == stat.size)
            {
                found.insert(node, stat);
            }
        }
        Ok(found)
    }

    /// Updates the view with the effects of the steps.
    fn follow_group(&self, group: &Unfinished, placed: &HashMap<Ino, Stat>) {
        {
            let mut st = self.state.lock();
            for (planned, met) in group.planned.iter().zip(&group.met) {
                self.follow(&mut st, planned, met);
            }
            st.view.follow(HashSet::new());
            let changed = inodes_upto(&st, group.upto);
            st.view.publish(changed, self.uptime());
            for (ino, stat) in placed {
                if let Some(node) = st.view.get_mut(*ino) {
                    node.set_slow_fingerprint(Some(Fingerprint::of(stat)));
                }
            }
        }
        self.slow.set_moving(Vec::new());
    }

    /// Steps 6 and 7. Returns the copies that a newer version of the same batch made superfluous.
    fn finish(&self, group: &Unfinished, placed: &HashMap<Ino, Stat>) -> Result<Vec<Vec<u8>>> {
        let Unfinished { batches, upto, planned, met, .. } = group;
        self.finish_contents(batches, placed)?; // 6
        for (ino, content) in group.on_slow() {
            self.adopt_placed(ino, content, placed.get(&ino)); // 6
        }
        self.renew_fingerprints(planned, met)?; // 6
        let mut st = self.state.lock();
        self.forget_applied_attrs(&mut st, *upto);
        st.run_ahead(batches.iter().flat_map(|batch| batch.ahead.iter().copied()));
        let rebound = self.rebind(&st, *upto);
        let mut records: Vec<Record> = rebound.iter().flat_map(|(ino, ..)| st.before_bind(*ino)).collect();
        let names = records.len() as u64;
        records.extend(rebound.iter().map(|(_, _, record)| record.clone()));
        records.push(Record::Applied { upto: *upto });
        let last = self.log.append(&records)?; // 7
        let first = last + 1 - records.len() as u64 + names;
        for (lsn, (ino, object, _)) in (first..).zip(rebound) {
            st.uncommitted.bind(ino, lsn, object, self.uptime());
        }
        let superseded = superseded(&st, *upto, planned);
        self.let_go(st.queue.up_to(*upto).map(|event| event.by));
        let events = st.queue.up_to(*upto).count() as u64;
        st.pop(*upto, last);
        st.checkpoints.change(|index| index.published(*upto, self.stamp(self.uptime())));
        self.counters.notes.applied(*upto);
        self.counters.published(events, publish_plan::stepped(batches, planned), self.uptime());
        batches.iter().for_each(|batch| self.counters.skip(batch.skipped));
        Ok(superseded)
    }

    fn finish_contents(&self, batches: &[Batch], placed: &HashMap<Ino, Stat>) -> Result<()> {
        // One journal commit of the disk often covers many. At most this many are open at the same time.
        let mut unsynced: Vec<Arc<dyn File>> = Vec::new();
        let make_durable = |unsynced: &mut Vec<Arc<dyn File>>| {
            // The last fingerprint was set last, so its sync covers the others.
            let covers_all = self.pool.order == MetadataOrder::Journaled;
            let first = if covers_all { unsynced.len().saturating_sub(1) } else { 0 };
            let last = unsynced.get(first..).unwrap_or_default();
            let synced = ask_each(|| self.uptime(), last, |fd| fd.sync().at_fast("mark clean", "an object"));
            unsynced.clear();
            synced.map(drop)
        };
        for batch in batches {
            for (ino, (lsn, content)) in &batch.contents {
                unsynced.extend(self.mark_clean(*ino, content, placed.get(ino))?);
                if *lsn > batch.upto {
                    content.set_early();
                    *content.copy.lock() = None;
                }
                if unsynced.len() >= UNSYNCED_MAX {
                    make_durable(&mut unsynced)?;
                }
            }
        }
        make_durable(&mut unsynced)
    }

    /// Step 6 of one file. A file that changed since stays dirty; a `bind` record will say so. Returns the object with
    /// its new fingerprint, which is not durable yet: an eviction may rely on it, and a write removes it durably.
    fn mark_clean(&self, ino: Ino, content: &Arc<Content>, stat: Option<&Stat>) -> Result<Option<Arc<dyn File>>> {
        if content.object().needs_slow() {
            return Ok(None);
        }
        let file = self.state.lock().known_file(ino);
        let (Some(file), Some(stat)) = (file, stat) else { return Ok(None) };
        let mut io = file.io.write();
        let newest = io.latest.as_ref().is_some_and(|latest| Arc::ptr_eq(latest, content));
        if io.dirty || !newest || io.object() != Some(content.object()) {
            return Ok(None);
        }
        io.latest = None;
        let fd = match &io.fd {
            Some(fd) => fd.clone(),
            None => self.pool.open_object(content.object().number, Access::ReadWrite).at_fast("open", "object")?,
        };
        let sum = content.copy.lock().as_ref().and_then(|copied| copied.sum);
        Pool::set_sum(&*fd, sum);
        let is_clean =
            self.mark_clean_or_let_go(&file, &mut io, fd.clone(), Fingerprint::of(stat), Pool::set_fingerprint)?;
        if is_clean {
            io.set_checked(self.uptime());
            self.state.lock().clean.add(Clean { ino, bytes: content.size, burst: content.burst() });
        }
        Ok(is_clean.then_some(fd))
    }

    /// Step 6 of a file whose object was on the slow tier and was itself renamed into place: from here on the file is
    /// the slow file that the updated view has there. Handles keep reading the same file, except for one in two parts,
    /// whose head is removed.
    fn adopt_placed(&self, ino: Ino, content: &Arc<Content>, stat: Option<&Stat>) {
        let file = self.state.lock().known_file(ino);
        if let (Some(file), Some(stat)) = (file, stat) {
            let mut io = file.io.write();
            let newest = io.latest.as_ref().is_some_and(|latest| Arc::ptr_eq(latest, content));
            if !io.dirty && newest && io.object() == Some(content.object()) {
                // In another part it is another file.
                let same = |fd: &Arc<dyn File>| fd.stat().is_ok_and(|own| own.id() == stat.id());
                let fd = io.fd.take().filter(|fd| content.object().head().is_none() && same(fd));
                let mut st = self.state.lock();
                if !io.attrs_in_view {
                    // The attributes that the object had until now.
                    self.keep_ctime(&mut st, ino, stat);
                    self.remember_attrs(&mut st, ino, stat, Fingerprint::of(stat));
                }
                file.place(&mut io, Bytes::Slow, fd);
                let lsn = self.log.last();
                st.objects.remove(content.object(), lsn);
            }
        }
        self.slow.placed(content.object().tail());
    }

    /// Keeps the object's ctime in the view.
    fn keep_ctime(&self, st: &mut EngineState, ino: Ino, stat: &Stat) {
        if let Some(node) = st.view.get_mut(ino) {
            node.change_meta(|meta| meta.ctime = stat.ctime.max(meta.ctime));
        }
    }

    /// A full fast tier has no room for the fingerprint. Then the object is dropped, which frees room: its bytes are on
    /// the slow tier. Open handles keep reading it. `mark_clean` may be durable or not. `false`: the object is not
    /// clean.
    fn mark_clean_or_let_go(
        &self,
        file: &FileState,
        io: &mut Io,
        fd: Arc<dyn File>,
        fingerprint: Fingerprint,
        mark_clean: fn(&dyn File, &Fingerprint) -> std::io::Result<()>,
    ) -> Result<bool> {
        match mark_clean(&*fd, &fingerprint) {
            Err(e) if is_full(&e) => {}
            other => {
                other.at_fast("mark clean", self.label(file.ino))?;
                io.set_clean(fingerprint);
                return Ok(true);
            }
        }
        if file.is_pinned() {
            // Without a fingerprint it is not evicted; the next start finds it superfluous.
            return Ok(false);
        }
        let shown = fd.stat().at("stat", "object")?;
        let held = io.fd.is_some().then_some(fd);
        let mut st = self.state.lock();
        self.remember_attrs(&mut st, file.ino, &shown, fingerprint);
        self.drop_clean(&mut st, file, io);
        io.fd = held;
        Ok(false)
    }

    /// Renews fingerprints after our own later steps changed the slow side of clean files: their ctime, and the mtime
    /// where a step sets it. Any other difference is another program's change, and must still be found.
    fn renew_fingerprints(&self, planned: &[Planned], met: &[Met]) -> Result<()> {
        let mut touched: HashMap<Ino, bool> = HashMap::new();
        for (planned, _) in planned.iter().zip(met).filter(|(_, met)| **met == Met::Expected) {
            let sets_mtime = matches!(&planned.step, Step::Attr { new, .. } if new.mtime.is_some());
            for effect in &planned.effects {
                if let Effect::Touched(ino) = effect {
                    *touched.entry(*ino).or_default() |= sets_mtime;
                }
            }
        }
        touched.into_iter().try_for_each(|(ino, sets_mtime)| {
            self.renew_fingerprint(ino, |old, new| {
                let mtime = if sets_mtime { new.mtime } else { old.mtime };
                Fingerprint { ctime: new.ctime, mtime, ..*old } == *new
            })
        })
    }

    /// Renews a clean file's fingerprint if the slow tier still has the file and `ours`, given the old and the new
    /// fingerprint, says that our step made the difference.
    fn renew_fingerprint(&self, ino: Ino, ours: impl FnOnce(&Fingerprint, &Fingerprint) -> bool) -> Result<()> {
        let (file, path, id) = {
            let mut st = self.state.lock();
            let Some(id) = st.view.get(ino).map(|node| node.slow_id()) else { return Ok(()) };
            (st.known_file(ino), st.view.slow_path(ino), id)
        };
        let (Some(file), Some(path), Some(id)) = (file, path, id) else { return Ok(()) };
        if file.io.read().clean().is_none() {
            return Ok(());
        }
        let stat = self.slow.stat(&path).at("stat on slow", self.label(ino))?;
        let stat = stat.filter(|stat| stat.id() == id);
        let mut io = file.io.write();
        let (Some(object), Some(stat), Some(fingerprint)) = (io.object(), stat, io.clean()) else { return Ok(()) };
        if !ours(&fingerprint, &Fingerprint::of(&stat)) {
            return Ok(());
        }
        let fd = self.open_object(&Cx::internal(), object)?;
        // A fingerprint shows a change of mode or owner only in the ctime, which our step has set, too.
        let owner_and_mode = |stat: &Stat| (stat.uid, stat.gid, stat.perm);
        if owner_and_mode(&fd.stat().at_fast("stat", label(object))?) != owner_and_mode(&stat) {
            return Ok(());
        }
        self.mark_clean_or_let_go(&file, &mut io, fd, Fingerprint::of(&stat), Pool::mark_clean).map(|_| ())
    }

    /// Updates the slow side of the view for a step.
    fn follow(&self, st: &mut EngineState, planned: &Planned, met: &Met) {
        let mut effects = &planned.effects[..];
        if let (Met::Conflict(name), Some(Effect::Name(at, Some(ino)))) = (met, effects.first()) {
            let path = escape(step_path(&planned.step));
            self.counters.conflict(format!("/{path}: a foreign file has the name, ours is {} beside it", escape(name)));
            tracing::warn!(
                path = %escape(step_path(&planned.step)),
                ours = %escape(name),
                "changed on the slow tier by somebody else; both versions are kept"
            );
            self.view_conflict(st, at, *ino, name, planned.upto);
            effects = effects.get(1..).unwrap_or_default();
        }
        if *met == Met::Lost {
            // Nothing was placed: the slow tier still has its old file under the name.
            return;
        }
        if *met == Met::Gone && self.order.is_shared() {
            // Another member removed or replaced it, which is allowed.
            let path = escape(step_path(&planned.step));
            tracing::info!(%path, "another member has changed the same name; this change of ours has nothing left to change");
        } else if *met == Met::Gone {
            let path = escape(step_path(&planned.step));
            self.counters.conflict(format!("/{path}: changed or gone on the slow tier, left as it is"));
            tracing::warn!(
                path = %escape(step_path(&planned.step)),
                "somebody else changed or removed it on the slow tier; it is left as it is"
            );
        }
        if let (Met::LeftOut, Step::Xattr { path, key, .. }) = (met, &planned.step) {
            self.warn_of_left_out(escape(path), std::slice::from_ref(key));
        }
        for effect in effects {
            match effect {
                // A forgotten directory needs no names.
                Effect::Name((dir, _), _) if st.view.get(*dir).is_none_or(|node| node.dir.is_none()) => {}
                // Nothing was done there: the name must be looked up again.
                Effect::Name(place, who) if *met == Met::Gone && !who.is_some_and(|ino| st.comes_below(ino)) => {
                    st.forget_slow_at(place);
                }
                Effect::Name((dir, name), who) => {
                    st.view.set_slow(*dir, name, *who);
                    if let Some(slot) = st.view.get_mut(*dir).and_then(|node| node.dir.as_mut()?.slots.get_mut(name)) {
                        slot.seen = ObservedAt::at(self.uptime());
                    }
                }
                Effect::Identity(ino, id) => {
                    let merged = if let Met::Merged(theirs) = met { Some(*theirs) } else { None };
                    st.view.set_slow_id(*ino, Some(merged.unwrap_or(*id)));
                    if let (Some(_), Some(dir)) = (merged, st.view.get_mut(*ino).and_then(|node| node.dir.as_mut())) {
                        // The other directory may hold names that we have not seen.
                        dir.known = false;
                        dir.access_acl = None;
                    }
                    if st.view.get(*ino).is_some_and(|node| node.kind == Kind::Dir) {
                        self.slow.forget_dir(*ino);
                    }
                }
                // Our next version must find that the slow file is not the known one.
                Effect::Touched(_) if matches!(met, Met::Rewritten | Met::Gone) => {}
                Effect::Touched(ino) => {
                    if let Some(node) = st.view.get_mut(*ino) {
                        node.set_slow_fingerprint(None);
                    }
                }
            }
        }
    }

    /// After a conflict the name shows the slow tier's file, and ours goes on `beside` it as the same inode: open
    /// handles and the kernel's cache keep its bytes, and its pending events go there. A file without a name in the
    /// view stays behind as one of the slow tier's.
    fn view_conflict(&self, st: &mut EngineState, at: &DirEntryKey, ino: Ino, beside: &[u8], upto: Lsn) {
        let (dir, name) = at;
        let has = |name: &Name| st.view.get(*dir)?.dir.as_ref()?.slots.get(name)?.view();
        let ours = has(name) == Some(ino);
        let beside = Name::new(beside).ok().filter(|beside| has(beside).is_none());
        let is_named = st.view.get(ino).is_some_and(|node| !node.links.is_empty());
        match beside.filter(|_| st.queue.leaves(upto, at).map_or(ours, |leaves| leaves || is_named)) {
            Some(beside) => st.move_on_from(upto, at, &(*dir, beside), ino),
            None if ours => st.view.set_view(*dir, name, None),
            None => {}
        }
        st.view.set_slow(*dir, name, None);
        if let Some(node) = st.view.get_mut(*dir) {
            if let Some(dir) = &mut node.dir {
                dir.known = false;
                dir.default_acl = None;
            }
            if let Some(slot) = node.dir.as_mut().and_then(|dir| dir.slots.get_mut(name)) {
                slot.seen = ObservedAt::NEVER;
            }
        }
        self.settle_lost(st, ino);
    }

    /// Drops attributes and times from the view that the slow tier now has.
    fn forget_applied_attrs(&self, st: &mut EngineState, upto: Lsn) {
        let inos = inodes_upto(st, upto);
        for ino in &inos {
            let Some(node) = st.view.get_mut(*ino) else { continue };
            node.forget_attrs(upto);
            // From here on other programs may change it.
            let acl = node.dir.as_mut().and_then(|dir| dir.access_acl.as_mut());
            if let Some(acl) = acl.filter(|acl| acl.asked == ObservedAt::NEVER) {
                acl.asked = ObservedAt::at(self.uptime());
            }
        }
        st.view.publish(inos, self.uptime());
    }

    /// New `bind` records for files whose present record `applied` is about to pass: recovery reads only records after
    /// it.
    fn rebind(&self, st: &EngineState, upto: Lsn) -> Vec<(Ino, ObjectId, Record)> {
        let passed = st.uncommitted.bound_up_to(upto).filter(|_| !left_out!(Rebind));
        let files = passed.filter_map(|(ino, object)| {
            let path = st.view.path(ino)?;
            Some((ino, object, Record::Bind { path: path.into(), ino, object }))
        });
        files.collect()
    }

    /// Step 8. What cannot be removed is retried after the next group, and swept at the next start.
    fn clean_up(&self, group: &Unfinished, superseded: &[Vec<u8>]) -> Result<()> {
        if !left_out!(AppliedDurable) {
            self.log.sync(self.log.last())?;
        }
        if left_out!(StepsDurable) {
            SyncSet::of(&group.planned).sync(&OpenTree::new(&self.slow))?;
        }
        // A node that replaced nothing has left none there. A lost one may have left a further link.
        let replaced = group.planned.iter().zip(&group.met).filter_map(|(planned, met)| match &planned.step {
            Step::Place { tmp, over, .. } if over.is_some() || *met == Met::Lost => Some(tmp),
            _ => None,
        });
        let (before, mut leftovers) = (std::mem::take(&mut *self.writeback.leftovers.lock()), Vec::new());
        for tmp in replaced.chain(superseded).chain(&before) {
            let removed = self.slow.tmp_of(tmp).at("open", "tmp on the slow tier");
            if let Err(e) = removed.and_then(|(dir, name)| remove_leftover(&*dir, name)) {
                tracing::debug!(error = %e, "a replaced version stays in tmp until the next group");
                leftovers.push(tmp.clone());
            }
        }
        // A file that had a link there and still has a name has another ctime now, and no other difference.
        let in_tmp: Vec<Ino> = self.state.lock().view.in_tmp.iter().copied().collect();
        let only_ctime = |old: &Fingerprint, new: &Fingerprint| Fingerprint { ctime: new.ctime, ..*old } == *new;
        in_tmp.into_iter().try_for_each(|ino| self.renew_fingerprint(ino, only_ctime))?;
        self.delete_unreferenced(&Cx::internal())?;
        let applied = {
            let mut st = self.state.lock();
            // A link that is left there would be counted as a name.
            if leftovers.is_empty() {
                let left = st.view.in_tmp.iter().copied().collect();
                st.view.leave_tmp(left, self.uptime());
            }
            st.queue.applied()
        };
        *self.writeback.leftovers.lock() = leftovers;
        self.log.drop_upto(applied)
    }
}

/// Whether the reason may lie with one user.
fn may_hold_one(error: &Error) -> bool {
    holds_its_user(error, RefusedAt::Part)
}

/// The inodes of the events up to `upto`.
fn inodes_upto(st: &EngineState, upto: Lsn) -> HashSet<Ino> {
    st.queue.up_to(upto).flat_map(|event| event.change.inodes()).collect()
}

/// Copies of the events up to `upto` that were not placed. An object that is in `tmp` itself is not one of them.
fn superseded(st: &EngineState, upto: Lsn, planned: &[Planned]) -> Vec<Vec<u8>> {
    let placed: HashSet<&[u8]> = planned
        .iter()
        .filter_map(|planned| match &planned.step {
            Step::Place { tmp, .. } => Some(tmp.as_slice()),
            _ => None,
        })
        .collect();
    let copies = st.queue.up_to(upto).filter_map(|event| match &event.change {
        Change::Content { content, .. } if !content.object().needs_slow() => {
            content.copy.lock().as_ref().map(|copied| copied.tmp.clone())
        }
        _ => None,
    });
    copies.filter(|tmp| !placed.contains(tmp.as_slice())).collect()
}

/// Makes a node in `tmp` with the attributes that the slow tier can hold; also returns the keys that it cannot hold.
fn make(slow: &SlowTier, tmp: &dyn Dir, name: &[u8], spec: &Spec) -> std::io::Result<(Stat, Vec<Vec<u8>>)> {
    let tier = &slow.abilities;
    let Attrs { perm, uid, gid, mtime, xattrs } = &spec.attrs;
    match spec.kind {
        Kind::Dir => tmp.mkdir(name, *perm)?,
        Kind::Symlink => tmp.symlink(name, &spec.target)?,
        kind => tmp.mknod(name, kind, *perm, spec.rdev)?,
    }
    if spec.kind == Kind::Symlink && !tier.link_attrs {
        return Ok((tmp.stat(name)?, xattrs.iter().map(|(key, _)| key.clone()).collect()));
    }
    // For a tier that accepted this when it was probed.
    let of_links = |done: std::io::Result<()>| match done {
        Err(e) if spec.kind == Kind::Symlink && (is_refused(&e) || is_elsewhere(&e)) => Ok(()),
        done => done,
    };
    let made = tmp.stat(name)?;
    if (made.uid, made.gid) != (*uid, *gid) {
        let owned = NewAttr { uid: Some(*uid), gid: Some(*gid), ..NewAttr::default() };
        of_links(tmp.set_attr(name, &tier.kept(&owned)))?;
    }
    if tier.acls && spec.kind != Kind::Symlink {
        drop_inherited(&*tmp.inode(name)?, spec.kind, xattrs)?;
    }
    // A chown clears suid.
    if spec.kind != Kind::Symlink && tmp.stat(name)?.perm != *perm {
        tmp.set_attr(name, &tier.kept(&NewAttr { perm: Some(*perm), ..NewAttr::default() }))?;
    }
    let left_out = slow.put_xattrs(xattrs, |key, value| tmp.set_xattr(name, key, value))?;
    of_links(tmp.set_attr(name, &NewAttr { mtime: Some(*mtime), ..NewAttr::default() }))?;
    Ok((tmp.stat(name)?, left_out))
}
