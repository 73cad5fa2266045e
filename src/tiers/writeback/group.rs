//! A group of batches whose intents are logged, with steps still to be done.

use std::collections::HashMap;
use std::sync::Arc;

use crate::tiers::disk::{Dir, FileId, SlowId, Stat};
use crate::tiers::log::record::{Path, Record, Step};
use crate::tiers::model::publish_plan::{Batch, Effect, Planned};
use crate::tiers::objects::version::Content;
use crate::tiers::writeback::step::{Met, go_on_beside};
use crate::tiers::{Ino, Lsn};

/// A group whose intents are logged and whose steps are not all done: an error interrupted it, and it is continued
/// before anything else.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) batches: Vec<Batch>,
    pub(crate) upto: Lsn,
    pub(crate) planned: Vec<Planned>,
    pub(crate) met: Vec<Met>,
    /// How many steps a start found done, including those after `met`.
    done: usize,
    /// The view is updated; an error came after that.
    pub(crate) followed: bool,
    /// Links in `tmp` for steps that were taken out of the group.
    pub(crate) left: Vec<Vec<u8>>,
    /// The first step places a directory that contains all others (`writeback/fill.rs`).
    pub(crate) filled: Option<FilledDir>,
}

/// The contents of a filled directory.
#[derive(Debug, Default)]
pub(crate) struct FilledDir {
    /// It and the directories below it, by node.
    pub(crate) dirs: HashMap<Ino, Arc<dyn Dir>>,
    /// The files, as they were after their move.
    pub(crate) files: HashMap<Ino, Stat>,
}

impl Unfinished {
    pub(super) fn new(batches: Vec<Batch>, planned: Vec<Planned>) -> Self {
        let upto = batches.last().map_or(0, |batch| batch.upto);
        let (met, left) = (Vec::new(), Vec::new());
        Unfinished { batches, upto, planned, met, done: 0, followed: false, left, filled: None }
    }

    /// The first step places a directory that contains all others.
    pub(super) fn filled(batches: Vec<Batch>, planned: Vec<Planned>, filled: FilledDir) -> Self {
        Unfinished { filled: Some(filled), ..Unfinished::new(batches, planned) }
    }

    /// Whether the next step places a filled directory.
    pub(super) fn places_filled(&self) -> bool {
        self.filled.is_some() && self.met.is_empty()
    }

    /// The steps that are applied one by one.
    pub(super) fn own_steps(&self) -> impl Iterator<Item = &Step> {
        let count = if self.filled.is_some() { 1 } else { self.planned.len() };
        self.steps().take(count)
    }

    /// A group found at a start, with the outcome of its first steps and the number already done.
    pub(crate) fn taken_over(batch: Batch, planned: Vec<Planned>, (met, done): (Vec<Met>, usize)) -> Self {
        Unfinished { met, done, ..Unfinished::new(vec![batch], planned) }
    }

    /// The next step to apply; `None`: all are applied.
    pub(super) fn next(&self) -> Option<&Planned> {
        self.planned.get(self.met.len())
    }

    pub(super) fn applied(&self) -> &[Planned] {
        self.planned.get(..self.met.len()).unwrap_or(&self.planned)
    }

    pub(super) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.planned.iter().map(|planned| &planned.step)
    }

    /// The intents of all steps, including those done: a start takes all of them or none.
    pub(super) fn intents(&self) -> Vec<Record> {
        let count = self.planned.len() as u64;
        let intent = |(index, Planned { step, upto, .. }): (u64, &Planned)| Record::Intent {
            upto: *upto,
            index,
            count,
            step: step.logged(),
        };
        (0..).zip(&self.planned).map(intent).collect()
    }

    /// Whether part of the next step's batch, or a later step, is done. All of a placed filled directory is on the slow
    /// tree.
    pub(crate) fn is_inside_batch(&self) -> bool {
        let at = self.met.len();
        if at > 0 && self.filled.is_some() {
            return at < self.planned.len();
        }
        let before = self.applied().last().zip(self.next());
        at < self.done || before.is_some_and(|(last, next)| next.upto == last.upto)
    }

    /// If the last step has put its node beside another program's file, the later ones look for it there.
    pub(super) fn go_on_beside(&mut self) {
        let (applied, rest) = self.planned.split_at_mut(self.met.len());
        if let Some((Planned { step, .. }, met)) = applied.last().zip(self.met.last()) {
            go_on_beside((step, met), rest.iter_mut().map(|planned| &mut planned.step));
        }
    }

    /// The path where a finished step has placed this node.
    pub(crate) fn placed(&self, node: Ino, slow: FileId) -> Option<Path> {
        self.planned.iter().zip(&self.met).find_map(|(planned, met)| match &planned.step {
            Step::Place { node: other, id, path, .. } if (*other, *id, met) == (node, slow, &Met::Expected) => {
                Some(path.clone())
            }
            _ => None,
        })
    }

    /// The version that the next step places.
    pub(crate) fn next_content(&self) -> Option<(Lsn, Arc<Content>)> {
        let Step::Place { node, object: Some(_), .. } = &self.next()?.step else { return None };
        self.batches.iter().find_map(|batch| batch.contents.get(node)).cloned()
    }

    /// A directory now has another inode on the slow tier.
    pub(super) fn identify(&mut self, node: Ino, new: SlowId) {
        for effect in self.planned.iter_mut().flat_map(|planned| &mut planned.effects) {
            if let Effect::Identity(ino, id) = effect
                && *ino == node
            {
                *id = new;
            }
        }
    }

    /// The files whose object did not fit on the fast tier.
    pub(super) fn on_slow(&self) -> impl Iterator<Item = (Ino, &Arc<Content>)> {
        let contents = self.batches.iter().flat_map(|batch| &batch.contents);
        contents.map(|(ino, (_, content))| (*ino, content)).filter(|(_, content)| content.object().needs_slow())
    }
}
