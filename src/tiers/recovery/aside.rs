//! Set-aside nodes as the log describes them: for every start, and for tools that read the log of an unmounted tier.
//! `writeback/set_aside.rs` writes the records.
//!
//! - Nodes that were aside when `applied` reached its present value are shown before anything is replayed, under the
//!   paths that they have by then ([`aside_at`]); later ones at their place in the log.
//! - Events that a `set-aside` names are not replayed, nor other records of those files ([`left_out()`]).
//! - A node stops being aside with the version, or the node, that it becomes as an event. A version that a power cut
//!   has discarded does not end it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::path::escape;
use crate::tiers::disk::Kind;
use crate::tiers::log::record::{Attrs, Kept, ObjectId, Path, Record, Spec};
use crate::tiers::model::aside_nodes::Aside;
use crate::tiers::model::node::{DirEntryKey, NodeAttrs};
use crate::tiers::model::state::EngineState;
use crate::tiers::model::view::FIRST_OWN;
use crate::tiers::ops::names::{add_made, add_subdir};
use crate::tiers::recovery::state::{Recovery, carried};
use crate::tiers::{Ino, Lsn};

/// A node that is aside at some point of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AsideEntry {
    pub(crate) lsn: Lsn,
    pub(crate) ino: Ino,
    pub(crate) since: u64,
    pub(crate) paths: Vec<Path>,
    pub(crate) kept: Kept,
}

impl AsideEntry {
    /// The first of its names; it has at least one.
    pub(super) fn path(&self) -> &[u8] {
        self.paths.first().map_or(&[], |path| path)
    }
}

/// The events taken out of the order.
pub(crate) fn cancelled(records: &[(Lsn, Record)]) -> HashSet<Lsn> {
    let ranges = records.iter().filter_map(|(lsn, record)| match record {
        Record::SetAside { events, .. } => Some(events.iter().map(move |(from, to)| (*from, (*to).min(lsn - 1)))),
        _ => None,
    });
    let mut ranges: Vec<(Lsn, Lsn)> = ranges.flatten().collect();
    ranges.sort_unstable();
    let (mut cancelled, mut done) = (HashSet::new(), 0);
    for (from, to) in ranges {
        // Each record once, whatever the ranges are: the log may contain anything.
        let first = records.partition_point(|(lsn, _)| *lsn < from.max(done));
        let behind = records.iter().skip(first).map(|(lsn, _)| *lsn).take_while(|lsn| *lsn <= to);
        cancelled.extend(behind);
        done = done.max(to.saturating_add(1));
    }
    cancelled
}

/// The `saved` records whose group is complete.
fn counted(records: &[(Lsn, Record)]) -> HashSet<Lsn> {
    let mut counted = HashSet::new();
    for (at, (_, record)) in records.iter().enumerate() {
        let Record::SetAside { count, .. } = record else { continue };
        let count = usize::try_from(*count).ok();
        let Some(group) = count.and_then(|count| records.get(at.checked_sub(count)?..at)) else { continue };
        counted.extend(group.iter().map(|(lsn, _)| *lsn));
    }
    counted
}

/// The records that a replay skips: events taken out of the order, earlier records about the bytes of their files, and
/// the records that precede these.
pub(crate) fn left_out(records: &[(Lsn, Record)]) -> HashSet<Lsn> {
    let (cancelled, counted) = (cancelled(records), counted(records));
    // The LSN up to which records of a file, or of an object, are obsolete.
    let (mut files, mut objects): (HashMap<Ino, Lsn>, HashMap<ObjectId, Lsn>) = (HashMap::new(), HashMap::new());
    let mut left_out = cancelled;
    let mut until = 0;
    for (lsn, record) in records.iter().rev() {
        match record {
            Record::SetAside { .. } => until = *lsn,
            Record::Saved { .. } if !counted.contains(lsn) => drop(left_out.insert(*lsn)),
            _ if !left_out.contains(lsn) => {}
            record => {
                if let Some(ino) = record.ino() {
                    files.entry(ino).or_insert(until);
                }
                if let Record::Content { object, .. } = record {
                    objects.entry(*object).or_insert(until);
                }
            }
        }
    }
    let is_over = |until: Option<&Lsn>, lsn: Lsn| until.is_some_and(|until| lsn < *until);
    let mut next_is = false;
    for (lsn, record) in records.iter().rev() {
        next_is = match record {
            Record::Bind { ino, object, .. } => is_over(files.get(ino), *lsn) || is_over(objects.get(object), *lsn),
            Record::Expect { .. } | Record::Names { .. } => next_is,
            _ => left_out.contains(lsn),
        };
        if next_is {
            left_out.insert(*lsn);
        }
    }
    left_out
}

/// The nodes that are aside once everything up to `upto` is applied, directories before their contents.
pub(crate) fn aside_at(records: &[(Lsn, Record)], upto: Lsn) -> Vec<AsideEntry> {
    let (cancelled, counted) = (cancelled(records), counted(records));
    let mut all: BTreeMap<Ino, AsideEntry> = BTreeMap::new();
    for (lsn, record) in records.iter().take_while(|(lsn, _)| *lsn <= upto) {
        match record {
            Record::Saved { ino, since, paths, kept } if counted.contains(lsn) => {
                let paths: Vec<Path> = paths.iter().map(|path| path.bytes().into_owned()).collect();
                // The same node, which a start has renumbered.
                all.retain(|_, other| !other.paths.iter().any(|path| paths.contains(path)));
                let (since, kept) = (*since, kept.clone());
                all.insert(*ino, AsideEntry { lsn: *lsn, ino: *ino, since, paths, kept });
            }
            Record::Content { ino, .. } | Record::Make { ino, .. } => drop(all.remove(ino)),
            Record::Remove { ino, .. } | Record::Rename { ino, .. } | Record::Link { ino, .. }
                if cancelled.contains(lsn) =>
            {
                // If it still exists, it is set aside anew.
                all.remove(ino);
            }
            Record::Remove { path, .. } if !all.is_empty() => {
                let path = path.bytes();
                all.values_mut().for_each(|one| one.paths.retain(|at| *at != *path));
            }
            Record::Rename { path, to, exchange, .. } if !all.is_empty() => {
                let (path, to) = (&path.bytes()[..], &to.bytes()[..]);
                for one in all.values_mut() {
                    one.paths.retain(|at| *exchange || at != to);
                    one.paths.iter_mut().for_each(|at| *at = carried(at, path, to, *exchange));
                }
            }
            _ => {}
        }
        all.retain(|_, one| !one.paths.is_empty());
    }
    let mut all: Vec<AsideEntry> = all.into_values().collect();
    let depth = |one: &AsideEntry| one.path().iter().filter(|byte| **byte == b'/').count();
    all.sort_by_key(|one| (depth(one), one.lsn));
    all
}

impl Recovery<'_> {
    /// Shows set-aside nodes, before anything is replayed.
    pub(crate) fn show_aside(&mut self) -> Result<()> {
        let all = aside_at(&self.records, self.applied);
        all.into_iter().try_for_each(|one| self.replay_aside(one))?;
        let cancelled = cancelled(&self.records);
        self.tiers.state.lock().checkpoints.change(|index| index.set_aside(|lsn| cancelled.contains(&lsn)));
        Ok(())
    }

    pub(crate) fn replay_aside(&mut self, entry: AsideEntry) -> Result<()> {
        self.last_dir = None;
        if let Some(known) = self.known_aside(&entry)? {
            return self.renew_aside(known, entry);
        }
        match entry.kept.clone() {
            Kept::File { object, size, attrs } => self.show_file(entry, object, size, attrs),
            Kept::Node(spec) => self.show_node(entry, &spec),
        }
    }

    /// The node, if it is shown already.
    fn known_aside(&mut self, entry: &AsideEntry) -> Result<Option<Ino>> {
        let known = self.met.get(&entry.ino).copied();
        let there = match self.place(entry.path())? {
            Some(place) => self.find(&place, None)?,
            None => None,
        };
        let st = self.tiers.state.lock();
        Ok([known, there].into_iter().flatten().find(|ino| st.aside.has(*ino)))
    }

    /// Renews a known node: its attributes may have changed.
    fn renew_aside(&mut self, known: Ino, entry: AsideEntry) -> Result<()> {
        self.meet(entry.ino, known);
        let mut st = self.tiers.state.lock();
        let Some(old) = st.aside.get(known).cloned() else { return Ok(()) };
        match &entry.kept {
            Kept::File { object, size, attrs } => drop(self.sealed_as.insert(*object, (*size, attrs.clone()))),
            Kept::Node(spec) => dress(&mut st, known, spec),
        }
        let aside = Aside { kept: entry.kept, since: entry.since, lsn: old.lsn, again: Some(entry.lsn) };
        st.set_aside(known, aside, self.tiers.log.last());
        Ok(())
    }

    fn show_file(&mut self, entry: AsideEntry, object: ObjectId, size: u64, attrs: Attrs) -> Result<()> {
        if let Some(what) = self.lacks(entry.lsn, object, size)? {
            let path = escape(entry.path());
            tracing::error!(path, object = object.number, "what was set aside is damaged and not shown: {what}");
            self.tiers.counters.damaged.fetch_add(1, Ordering::Relaxed);
            self.lost.insert(object, format!("damaged: {what}; it was {path}, and set aside"));
            return Ok(());
        }
        let places = self.places_aside(&entry, (attrs.uid, attrs.gid), false)?;
        if places.is_empty() {
            self.put_aside(entry.path(), object);
            return Ok(());
        }
        let now = self.tiers.file_time();
        let file = {
            let mut st = self.tiers.state.lock();
            let ino = self.number_aside(&mut st, entry.ino);
            let meta =
                NodeAttrs { nlink: places.len() as u32, mtime: now, ctime: now, atime: now, ..NodeAttrs::default() };
            st.view.add(ino, Kind::File, meta);
            places.iter().for_each(|place| show_at(&mut st, place, ino));
            st.file(ino)
        };
        let Some(file) = file else { return Ok(()) };
        self.meet(entry.ino, file.ino);
        self.give_object(&file, &mut file.io.write(), object)?;
        self.sealed_as.insert(object, (size, attrs));
        let aside = Aside { kept: entry.kept, since: entry.since, lsn: entry.lsn, again: None };
        self.tiers.state.lock().set_aside(file.ino, aside, self.tiers.log.last());
        Ok(())
    }

    fn show_node(&mut self, entry: AsideEntry, spec: &Spec) -> Result<()> {
        let is_dir = spec.kind == Kind::Dir;
        let places = self.places_aside(&entry, (spec.attrs.uid, spec.attrs.gid), is_dir)?;
        // Someone else has made one there by now.
        let Some(first) = places.first() else { return Ok(()) };
        let mut st = self.tiers.state.lock();
        let ino = self.number_aside(&mut st, entry.ino);
        hide(&mut st, first);
        add_made(&mut st, ino, spec, first.clone(), entry.lsn);
        places.iter().skip(1).for_each(|place| show_at(&mut st, place, ino));
        if is_dir {
            add_subdir(&mut st, first.0, 1);
        }
        dress(&mut st, ino, spec);
        if let Some(node) = st.view.get_mut(ino) {
            node.change_meta(|meta| meta.nlink = if is_dir { meta.nlink } else { places.len() as u32 });
        }
        let aside = Aside { kept: entry.kept, since: entry.since, lsn: entry.lsn, again: None };
        st.set_aside(ino, aside, self.tiers.log.last());
        drop(st);
        self.meet(entry.ino, ino);
        Ok(())
    }

    /// The names of the node, except those that a directory has by now: a directory neither hides nor is hidden.
    /// `alone`: skips every name that exists.
    fn places_aside(&mut self, entry: &AsideEntry, owner: (u32, u32), alone: bool) -> Result<Vec<DirEntryKey>> {
        let mut places = Vec::new();
        for path in &entry.paths {
            let Some(place) = self.place_of_new(path, |_| owner)? else { continue };
            let found = self.find(&place, None)?;
            let st = self.tiers.state.lock();
            let is_dir = |ino| st.view.get(ino).is_some_and(|node| node.kind == Kind::Dir);
            if found.is_none_or(|ino| !alone && !is_dir(ino)) {
                places.push(place);
            }
        }
        Ok(places)
    }

    /// Its logged number, or a new one, which the start logs.
    fn number_aside(&mut self, st: &mut EngineState, logged: Ino) -> Ino {
        if logged >= FIRST_OWN && st.view.get(logged).is_none() {
            return logged;
        }
        let ino = st.view.new_ino();
        self.renumbered.push(ino);
        ino
    }

    /// Describes what its object lacks, if anything.
    fn lacks(&self, lsn: Lsn, object: ObjectId, size: u64) -> Result<Option<String>> {
        if !self.has_object(object)? {
            return Ok(Some("its object is gone".to_owned()));
        }
        let has = self.looked_at(object).map_or(size, |looked| looked.size);
        let is_short = has < size && !Record::invalidated(&self.records, lsn, object, size);
        // A writer that continued may have cut it, which no record says.
        let goes_on = self.records.iter().any(
            |(at, record)| matches!(record, Record::Bind { object: other, .. } if *at > lsn && other.uses(object)),
        );
        Ok((is_short && !goes_on).then(|| format!("its object has only {has} of {size} bytes")))
    }
}

/// Shows the node in front of the slow tier's file.
fn show_at(st: &mut EngineState, place: &DirEntryKey, ino: Ino) {
    hide(st, place);
    st.view.set_view(place.0, &place.1, Some(ino));
}

/// The inode that is shown under a name loses that name.
fn hide(st: &mut EngineState, (dir, name): &DirEntryKey) {
    let shown = st.view.live_dir(*dir).and_then(|dir| dir.slots.get(name)?.view());
    if let Some(node) = shown.and_then(|ino| st.view.get_mut(ino)) {
        node.change_meta(|meta| meta.nlink = meta.nlink.saturating_sub(1));
    }
}

/// Sets the attributes from the record.
fn dress(st: &mut EngineState, ino: Ino, spec: &Spec) {
    let Some(node) = st.view.get_mut(ino) else { return };
    let Attrs { perm, uid, gid, mtime, xattrs } = spec.attrs.clone();
    node.change_meta(|meta| *meta = NodeAttrs { perm, uid, gid, mtime, ..*meta });
    node.set_meta_lsn(0);
    node.change_xattrs(|all| *all = xattrs.into_iter().map(|(key, value)| (key, (Some(value), 0))).collect());
}
