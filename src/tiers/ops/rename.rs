//! Renaming a node, and exchanging two names.
//!
//! *Order* of one attempt, which begins anew if a name has changed meanwhile:
//!
//! 1. Look both names up.
//! 2. Check what POSIX and the slow tier allow.
//! 3. Prepare what may have to wait for the slow tier: a file that goes to another part of the slow tree is copied to
//!    the fast tier, a directory that is replaced must be empty, one that moves must be of those that the slow tier
//!    moves.
//! 4. Lock the files, and read what the events of their uncommitted versions will record.
//! 5. Lock the state. If all is as it was checked: commit these versions, log the event, apply it to the view.

use std::sync::Arc;

use crate::error::{Context, Errno, Result};
use crate::path::Name;
use crate::tiers::disk::{Kind, RenameMode, Time};
use crate::tiers::log::record::Record;
use crate::tiers::model::event::Change;
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::file::FileState;
use crate::tiers::ops::names::{add_subdir, apply_rename, is_ours, touch};
use crate::tiers::{Cx, Ino, ROOT, Tiers};

/// Two names, and the nodes that they had when they were looked up.
struct Renaming {
    from: DirEntryKey,
    to: DirEntryKey,
    ino: Ino,
    /// At `to`.
    other: Option<Ino>,
    exchange: bool,
}

/// What the check found out.
#[derive(Clone, Copy)]
struct Checked {
    /// The names are in two parts of the slow tree.
    across: bool,
    /// This directory is replaced, and must be empty.
    empty: Option<Ino>,
}

impl Tiers {
    pub fn rename(&self, cx: &Cx, parent: Ino, name: &Name, to: Ino, to_name: &Name, mode: RenameMode) -> Result<()> {
        {
            let st = self.state.lock();
            if is_ours(&st, parent, name) || is_ours(&st, to, to_name) {
                return Err(Errno::EPERM.into());
            }
        }
        self.admit_name(cx, to_name)?;
        let (from, to) = ((parent, name.clone()), (to, to_name.clone()));
        while let Some(renaming) = self.look_up_both(cx, &from, &to, mode)? {
            if self.try_rename(cx, &renaming)? {
                self.wake();
                break;
            }
        }
        Ok(())
    }

    /// Step 1. `None`: both are names of one inode, for which POSIX has rename do nothing.
    fn look_up_both(
        &self,
        cx: &Cx,
        from: &DirEntryKey,
        to: &DirEntryKey,
        mode: RenameMode,
    ) -> Result<Option<Renaming>> {
        let ino = self.resolve(cx, from.0, &from.1)?.ok_or(Errno::ENOENT)?;
        let other = self.resolve(cx, to.0, &to.1)?;
        let exchange = mode == RenameMode::Exchange;
        match (mode, other) {
            (RenameMode::NoReplace, Some(_)) => Err(Errno::EEXIST.into()),
            (RenameMode::Exchange, None) => Err(Errno::ENOENT.into()),
            (_, Some(other)) if other == ino => Ok(None),
            // No step could publish it on this slow tier: it would hold its user's changes for ever.
            _ if exchange && !self.slow.abilities.exchange => Err(Errno::EINVAL.into()),
            _ => Ok(Some(Renaming { from: from.clone(), to: to.clone(), ino, other, exchange })),
        }
    }

    /// `false`: a name has changed since it was looked up.
    fn try_rename(&self, cx: &Cx, renaming: &Renaming) -> Result<bool> {
        let (file, other_file, checked) = {
            let mut st = self.state.lock();
            let checked = renaming.check(&st)?; // 2
            let exchanged = renaming.exchanged().and_then(|ino| st.file(ino));
            (st.file(renaming.ino), exchanged, checked)
        };
        let empty = self.prepare_rename(cx, renaming, checked, file.as_ref())?; // 3
        let now = self.file_time();
        let (mut io, mut other_io) = self.exclusive_both(cx, file.as_ref(), other_file.as_ref())?; // 4
        let frozen = self.freeze_if_uncommitted(cx, io.as_deref_mut())?;
        let other_frozen = self.freeze_if_uncommitted(cx, other_io.as_deref_mut())?;
        if checked.across && frozen.is_none() {
            // Either it is so large that it is written in place, or another call has committed it just now.
            let in_place = io.as_ref().is_none_or(|io| io.object().is_none());
            return if in_place { Err(Errno::EXDEV.into()) } else { Ok(false) };
        }
        let mut st = self.state.lock(); // 5
        let is_empty = |(dir, generation)| st.view.live_dir(dir).is_some_and(|dir| dir.generation == generation);
        let Renaming { from, to, ino, other, exchange } = renaming;
        if checked.across != st.view.are_apart(from.0, to.0)
            || !self.still(&st, from.0, &from.1, Some(*ino))?
            || !self.still(&st, to.0, &to.1, *other)?
            || !empty.is_none_or(is_empty)
        {
            return Ok(false);
        }
        let (path, to_path) = (self.path_in(&st, from.0, &from.1)?, self.path_in(&st, to.0, &to.1)?);
        self.commit_frozen(cx, &mut st, file.as_deref(), io.as_deref_mut(), frozen)?;
        self.commit_frozen(cx, &mut st, other_file.as_deref(), other_io.as_deref_mut(), other_frozen)?;
        let slow = st.known_on_slow(*ino);
        let record = Record::Rename { path, to: to_path, ino: *ino, slow, exchange: *exchange };
        let change = renaming.change();
        self.log_event(cx, &mut st, record, change.clone(), |st, _| apply_rename(st, &change))?;
        renaming.count_and_touch(&mut st, now);
        if let Some(replaced) = renaming.replaced() {
            self.lost_name(&mut st, replaced, now);
        }
        Ok(true)
    }

    /// Step 3. Returns the directory that must still be empty later, and its generation.
    fn prepare_rename(
        &self,
        cx: &Cx,
        renaming: &Renaming,
        checked: Checked,
        file: Option<&Arc<FileState>>,
    ) -> Result<Option<(Ino, u64)>> {
        if let Some(file) = file.filter(|_| checked.across) {
            self.make_writable(cx, file)?;
        }
        self.expect_moves(cx, renaming.ino)?;
        renaming.exchanged().map_or(Ok(()), |other| self.expect_moves(cx, other))?;
        checked.empty.map(|dir| Ok((dir, self.empty_since(cx, dir)?))).transpose()
    }

    /// Refuses the rename of a directory that the slow tier would not rename: it would hold the order.
    fn expect_moves(&self, cx: &Cx, ino: Ino) -> Result<()> {
        if !self.slow.abilities.keeps_dirs {
            return Ok(());
        }
        {
            // From another part no rename reaches our directory, which says nothing about one within that part.
            let st = self.state.lock();
            let is_dir = st.view.get(ino).is_some_and(|node| node.kind == Kind::Dir && node.slow_id().is_some());
            if !is_dir || st.view.are_apart(ino, ROOT) {
                return Ok(());
            }
        }
        cx.slow()?;
        self.at_slow(ino, |path, _| self.slow.expect_moves(path)).at("rename on slow", self.label(ino))
    }
}

impl Renaming {
    /// The node that gets the name `from`.
    fn exchanged(&self) -> Option<Ino> {
        self.other.filter(|_| self.exchange)
    }

    /// The node that loses the name `to`.
    fn replaced(&self) -> Option<Ino> {
        self.other.filter(|_| !self.exchange)
    }

    /// Step 2.
    fn check(&self, st: &EngineState) -> Result<Checked> {
        let (parent, to) = (self.from.0, self.to.0);
        let node = st.view.get(self.ino).ok_or(Errno::ENOENT)?;
        let is_dir = node.kind == Kind::Dir;
        match self.replaced().and_then(|ino| st.view.get(ino)).map(|target| target.kind == Kind::Dir) {
            Some(false) if is_dir => return Err(Errno::ENOTDIR.into()),
            Some(true) if !is_dir => return Err(Errno::EISDIR.into()),
            _ => {}
        }
        let is_into_itself = is_dir && st.view.is_above(self.ino, to);
        if is_into_itself || self.exchanged().is_some_and(|other| st.view.is_above(other, parent)) {
            return Err(Errno::EINVAL.into());
        }
        let across = st.view.are_apart(parent, to);
        // As on the slow tier, except for a file with one name: its newest version goes to the other part, and the old
        // name is removed.
        if across && (self.exchange || node.kind != Kind::File || node.meta().nlink > 1) {
            return Err(Errno::EXDEV.into());
        }
        let empty = self.replaced().filter(|other| is_dir && st.view.get(*other).is_some());
        let is_held = |ino: Ino| st.view.is_mount(ino) || (empty.is_some() && st.view.is_part(ino));
        if is_dir && (st.view.is_mount(self.ino) || self.other.is_some_and(is_held)) {
            return Err(Errno::EBUSY.into());
        }
        Ok(Checked { across, empty })
    }

    fn change(&self) -> Change {
        let (ino, from, to) = (self.ino, self.from.clone(), self.to.clone());
        match self.exchanged() {
            Some(other) => Change::Exchange { a: ino, a_at: from.into(), b: other, b_at: to.into() },
            None => Change::Rename { ino, from: from.into(), to: to.into(), replaced: self.other },
        }
    }

    /// Updates link counts of the directories, and times.
    fn count_and_touch(&self, st: &mut EngineState, now: Time) {
        let (from, to) = (self.from.0, self.to.0);
        let is_dir = |st: &EngineState, ino: Option<Ino>| {
            i32::from(ino.and_then(|ino| st.view.get(ino)).is_some_and(|node| node.kind == Kind::Dir))
        };
        let net = is_dir(st, Some(self.ino)) - is_dir(st, self.exchanged());
        let gone = is_dir(st, self.replaced());
        let moved = if from == to { 0 } else { net };
        for (dir, by) in [(from, -moved), (to, moved - gone)] {
            if by != 0 {
                add_subdir(st, dir, by);
            }
        }
        for moved in [Some(self.ino), self.exchanged()].into_iter().flatten() {
            if let Some(node) = st.view.get_mut(moved) {
                node.change_meta(|meta| meta.ctime = now);
                node.ours = true;
            }
        }
        touch(st, from, now);
        touch(st, to, now);
    }
}
