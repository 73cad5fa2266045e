//! The namespace: looking up, making, linking, renaming, removing.
//!
//! Every operation is a loop of two halves: resolve the names (which may need the slow tier and holds no lock across
//! it), then, under the state lock, check that they still hold and log, queue and apply the event at once. Nothing is
//! changed before the second half, so the loop, or the caller with slow access, may start over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Errno, Error, Result};
use crate::path::Name;
use crate::tiers::disk::errors::{absent_is_none, is_elsewhere};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::OURS;
use crate::tiers::disk::{Kind, SlowId, Stat, acl};
use crate::tiers::log::dirs::LoggedPath;
use crate::tiers::log::record::{Attrs, EventOrigin, Record, Spec};
use crate::tiers::model::clean_list::Clean;
use crate::tiers::model::event::Change;
use crate::tiers::model::node::{KnownAcl, Node, NodeAttrs, ObservedAt, Slot};
use crate::tiers::model::state::EngineState;
use crate::tiers::model::view::LookupStart;
use crate::tiers::objects::attrs::Birth;
use crate::tiers::objects::file::{Bytes, FileState};
use crate::tiers::{Attr, Cx, Ino, Lsn, OpenFile, OpenMode, ROOT, Tiers};

impl Tiers {
    /// Looks up a name and counts one kernel reference to the inode, given back by [`Tiers::forget`].
    pub fn lookup(&self, cx: &Cx, parent: Ino, name: &Name) -> Result<Attr> {
        self.note_use();
        self.lookup_as(cx, parent, name, Node::show)
    }

    /// Looks up a name for internal use: it counts a reference, but does not count as a lookup by the kernel.
    pub fn find(&self, cx: &Cx, parent: Ino, name: &Name) -> Result<Attr> {
        self.lookup_as(cx, parent, name, Node::refer)
    }

    fn lookup_as(&self, cx: &Cx, parent: Ino, name: &Name, refer: fn(&mut Node)) -> Result<Attr> {
        if let Some(attr) = self.look_up_in_memory(parent, name, refer) {
            return Ok(attr);
        }
        loop {
            let ino = self.resolve(cx, parent, name)?.ok_or(Errno::ENOENT)?;
            let attr = match self.getattr(cx, ino) {
                // Gone between the two: look again.
                Err(Error::Posix(Errno::ENOENT)) if self.resolve(cx, parent, name)? != Some(ino) => continue,
                // Collected, because it had no reference yet. Another lookup may have found it again by now, so retry
                // without a check.
                Err(Error::Posix(Errno::ESTALE)) => continue,
                other => other?,
            };
            let mut st = self.state.lock();
            match st.view.get_mut(ino) {
                Some(node) => refer(node),
                None => continue,
            }
            return Ok(attr);
        }
    }

    /// Looks up a name in one pass over the view, if that has the whole answer. A listing asks for each of its entries.
    fn look_up_in_memory(&self, parent: Ino, name: &Name, refer: fn(&mut Node)) -> Option<Attr> {
        let (now, ages, trust) = (self.uptime(), self.ages(), self.slow.is_down());
        let mut st = self.state.lock();
        if is_ours(&st, parent, name) {
            return None;
        }
        let ino = st.view.known(parent, name, now, ages, trust)??;
        let attr = self.attr_in_memory(&st, ino, st.view.get(ino)?)?;
        refer(st.view.get_mut(ino)?);
        Some(attr)
    }

    /// Gives back kernel references.
    pub fn forget(&self, ino: Ino, count: u64) {
        let mut st = self.state.lock();
        let Some(node) = st.view.get_mut(ino) else { return };
        node.refs = node.refs.saturating_sub(count);
        if node.refs == 0 && ino != ROOT {
            self.settle_removed(&mut st, ino);
            st.view.collect(ino);
        }
    }

    /// Calls `act` on the inode at a path from the root. Holds references to the inode and the directories above it,
    /// which might otherwise be collected before the next name is looked up.
    pub(crate) fn at_path<T>(&self, cx: &Cx, path: &[u8], act: impl FnOnce(Ino) -> Result<T>) -> Result<T> {
        let mut on_the_way = Vec::new();
        let mut walk = || {
            let mut at = ROOT;
            for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
                at = self.find(cx, at, &Name::new(name)?)?.ino;
                on_the_way.push(at);
            }
            Ok(at)
        };
        let done = walk().and_then(act);
        on_the_way.into_iter().for_each(|ino| self.forget(ino, 1));
        done
    }

    /// The inode that the view has under a name.
    pub(crate) fn resolve(&self, cx: &Cx, dir: Ino, name: &Name) -> Result<Option<Ino>> {
        loop {
            let (generation, id, asked) = {
                let st = self.state.lock();
                if is_ours(&st, dir, name) {
                    return Ok(None);
                }
                let node = st.view.get(dir).ok_or(Errno::ESTALE)?;
                let slots = node.dir.as_ref().ok_or(Errno::ENOTDIR)?;
                if let Some(found) = st.view.known(dir, name, self.uptime(), self.ages(), self.slow.is_down()) {
                    return Ok(found);
                }
                (slots.generation, node.slow_id().ok_or(Errno::ESTALE)?, st.view.asked(self.uptime()))
            };
            let stat = match cx.slow() {
                Err(Error::NeedSlow) => self.slow.stat_at_hand(dir, name.as_bytes()).ok_or(Error::NeedSlow)?,
                asked => asked.and_then(|()| self.stat_in(dir, id, name))?,
            };
            let mut st = self.state.lock();
            let unchanged = st.view.live_dir(dir).is_some_and(|slots| slots.generation == generation);
            if unchanged {
                return Ok(self.learn(&mut st, dir, name, stat.as_ref(), asked));
            }
        }
    }

    fn stat_in(&self, dir: Ino, id: SlowId, name: &Name) -> Result<Option<Stat>> {
        let found = self.at_slow(dir, |path, _| absent_is_none(self.slow.dir(dir, path, id)?.stat(name.as_bytes())));
        if found.as_ref().is_err_and(is_elsewhere) {
            if self.state.lock().view.owes_below(dir) {
                // A foreign rmdir: publishing makes the directory again, with the pending entries.
                return Ok(None);
            }
            self.forget_seen(dir);
        }
        found.at("stat on slow", self.label(dir))
    }

    /// Takes in the result of a slow lookup, and attaches an object that waits for the file.
    pub(crate) fn learn(
        &self,
        st: &mut EngineState,
        dir: Ino,
        name: &Name,
        stat: Option<&Stat>,
        asked: LookupStart,
    ) -> Option<Ino> {
        let applied = st.queue.applied();
        let before = st.view.live_dir(dir).and_then(|slots| slots.slots.get(name)).and_then(Slot::view);
        let slow_id = |st: &EngineState| st.view.get(before?)?.slow_id();
        let former = slow_id(st);
        // What is being written is no event yet and would be lost with its name: keep it. Publishing finds the
        // conflict.
        let found = match st.view.replaced(dir, name, stat).filter(|ino| st.is_written_at(*ino)) {
            Some(kept) => {
                st.view.keep(dir, name, (kept, stat), asked);
                Some(kept)
            }
            None => st.view.learn(dir, name, stat, asked, applied),
        };
        if let Some(kept) = before.filter(|_| found == before && slow_id(st) != former) {
            // A foreign change put another directory there, and something pending goes into it.
            self.slow.forget_dir(kept);
        }
        if let Some(ino) = found
            && let Some(stat) = stat
        {
            self.attach_waiting(st, ino, stat);
        }
        if before != found
            && let Some(gone) = before
        {
            let mut lost = vec![gone];
            while let Some(gone) = lost.pop() {
                lost.extend(st.view.drop_names_in(gone));
                self.settle_lost(st, gone);
                st.view.collect(gone);
            }
        }
        found
    }

    /// Attaches the clean object that has waited for this file since the start, if both still match.
    fn attach_waiting(&self, st: &mut EngineState, ino: Ino, stat: &Stat) {
        let Some(waiting) = st.view.waiting.get(&stat.ino).copied() else { return };
        let Some(file) = st.file(ino) else { return };
        // The file is new, so this does not block; if another thread has it already, the next lookup attaches the
        // object.
        let Some(mut io) = file.io.try_write() else { return };
        if io.place != Bytes::Slow || io.fd.is_some() {
            return;
        }
        st.view.waiting.remove(&stat.ino);
        let own = self.pool.stat(waiting.object.number);
        let tier = &self.slow.abilities;
        let is_unchanged = own.is_ok_and(|own| {
            let same_bytes = own.size == stat.size && tier.same_time(own.mtime, stat.mtime);
            same_bytes && tier.shows(stat, (own.uid, own.gid, own.perm))
        });
        if Fingerprint::of(stat) != waiting.fingerprint || !is_unchanged {
            // Changed on the slow tier since, which makes that the newer version. Or its attributes were changed, and a
            // power cut took the record of it.
            let lsn = self.log.last();
            st.objects.delete_after(waiting.object, lsn);
            return;
        }
        file.place(&mut io, Bytes::Object(waiting.object), None);
        io.set_clean(waiting.fingerprint);
        io.set_checked(self.uptime());
        drop(io);
        st.objects.add(waiting.object);
        let burst = st
            .view
            .path(ino)
            .and_then(|path| st.checkpoints.ask(|index| index.burst_at(&path, stat.size)))
            .unwrap_or(0);
        st.clean.add(Clean { ino, bytes: stat.size, burst });
    }

    /// The directory's generation if it is empty. In a fleet the slow tier is asked: other members may have made
    /// entries in it, which a rename over it would move away. Entries made since the directory was listed here do not
    /// count: a program that empties a directory removes what its listing shows, and the order decides about the rest.
    pub(super) fn empty_since(&self, cx: &Cx, ino: Ino) -> Result<u64> {
        loop {
            let (mut entries, generation) = self.list_since(cx, ino, self.order.is_shared())?;
            let others = entries.split_off(2);
            if others.is_empty() {
                return Ok(generation);
            }
            if !self.came_since_listed(ino, &others) {
                return Err(Errno::ENOTEMPTY.into());
            }
            if let Some(generation) = self.overlook(ino, &others, generation) {
                return Ok(generation);
            }
        }
    }

    /// `mode` has the caller's bits; the umask is applied here, unless a default ACL replaces it. Counts one reference.
    pub fn mkdir(&self, cx: &Cx, parent: Ino, name: &Name, mode: u32, umask: u32) -> Result<Attr> {
        self.make(cx, parent, name, Kind::Dir, mode, umask, 0, &[])
    }

    /// Makes any node but a directory or symbolic link. A regular file is created and closed.
    #[allow(clippy::too_many_arguments)]
    pub fn mknod(
        &self,
        cx: &Cx,
        parent: Ino,
        name: &Name,
        kind: Kind,
        mode: u32,
        umask: u32,
        rdev: u64,
    ) -> Result<Attr> {
        if kind == Kind::File {
            let open = OpenMode { write: true, ..OpenMode::default() };
            let (attr, file) = self.create(cx, parent, name, mode, umask, open)?;
            let closed = self.flush(cx, &file);
            self.release(cx, file);
            // The file exists, so this call is not retried: the release, or the next commit, does what the flush could
            // not.
            return if matches!(closed, Err(Error::NeedSlow)) { Ok(attr) } else { closed.map(|()| attr) };
        }
        self.make(cx, parent, name, kind, mode, umask, rdev, &[])
    }

    pub fn symlink(&self, cx: &Cx, parent: Ino, name: &Name, target: &[u8]) -> Result<Attr> {
        self.make(cx, parent, name, Kind::Symlink, 0o777, 0, 0, target)
    }

    #[allow(clippy::too_many_arguments)]
    fn make(
        &self,
        cx: &Cx,
        parent: Ino,
        name: &Name,
        kind: Kind,
        mode: u32,
        umask: u32,
        rdev: u64,
        target: &[u8],
    ) -> Result<Attr> {
        self.admit_kind(kind)?;
        self.admit_name(cx, name)?;
        if kind == Kind::Symlink {
            self.admit_target(cx, target)?;
        }
        let birth = self.birth(cx, parent, kind, mode, umask)?;
        let now = self.file_time();
        let attrs = Attrs { perm: birth.perm, uid: birth.uid, gid: birth.gid, mtime: now, xattrs: birth.xattrs };
        let spec = Arc::new(Spec { kind, attrs, rdev, target: target.to_vec() });
        let made = loop {
            if self.resolve(cx, parent, name)?.is_some() {
                return Err(Errno::EEXIST.into());
            }
            let mut st = self.state.lock();
            if !self.still(&st, parent, name, None)? {
                continue;
            }
            let path = self.path_in(&st, parent, name)?;
            let ino = st.view.new_ino();
            let record = Record::Make { path, ino, spec: (*spec).clone() };
            let change = Change::Make { ino, at: (parent, name.clone()), spec: spec.clone() };
            self.log_event(cx, &mut st, record, change, |st, lsn| {
                add_made(st, ino, &spec, (parent, name.clone()), lsn)
            })?;
            touch(&mut st, parent, now);
            if kind == Kind::Dir {
                add_subdir(&mut st, parent, 1);
            }
            refer_kernel(&mut st, ino);
            // The node is not visible to other calls yet.
            break self.attr_of(ino, st.view.get(ino).ok_or(Errno::EIO)?);
        };
        self.wake();
        Ok(made)
    }

    /// Creates a regular file and opens it; EEXIST if the name is there. The file is logged as bound to an empty
    /// object, and reaches the slow tier with its first committed content.
    pub fn create(
        &self,
        cx: &Cx,
        parent: Ino,
        name: &Name,
        mode: u32,
        umask: u32,
        open: OpenMode,
    ) -> Result<(Attr, OpenFile)> {
        if self.resolve(cx, parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.admit_name(cx, name)?;
        let claim = self.claim_append(cx, open, || self.state.lock().view.path_at(&(parent, name.clone())), None)?;
        if claim.is_some() && self.was_made_by_others(cx, parent, name)? {
            // The kernel looks the name up again.
            return Err(Errno::ESTALE.into());
        }
        let birth = self.birth(cx, parent, Kind::File, mode, umask)?;
        let path = || self.state.lock().view.path_at(&(parent, name.clone()));
        let (object, fd) = self.new_object(cx, &birth, 0, path)?;
        // Read the attributes for the reply before there is a name: an error must not leave one.
        let stat = fd.stat().at("stat", crate::tiers::objects::pool::label(object));
        let bound = stat.and_then(|stat| Ok((self.bind_new(cx, parent, name, object, fd, &birth)?, stat)));
        let (state, stat) = match bound {
            Ok(bound) => bound,
            Err(e) => {
                self.remove_object(object);
                return Err(e);
            }
        };
        let file = OpenFile { claim, ..self.hold_open(state, open) };
        file.claim.iter().for_each(|claim| claim.is_of(file.ino));
        if open.write {
            file.state.at_work().begin(cx.process(), false);
        }
        let st = self.state.lock();
        let node = st.view.get(file.ino).ok_or(Errno::ESTALE)?;
        Ok((self.attr_of_object(file.ino, node, &stat), file))
    }

    /// Whether a name that was free here exists on the slow tier by now.
    fn was_made_by_others(&self, cx: &Cx, parent: Ino, name: &Name) -> Result<bool> {
        if cx.slow().is_ok() && self.state.lock().view.slow_path(parent).is_some() {
            self.relearn_names(parent, Some(std::slice::from_ref(name)))?;
        }
        Ok(self.resolve(cx, parent, name)?.is_some())
    }

    fn bind_new(
        &self,
        cx: &Cx,
        parent: Ino,
        name: &Name,
        object: crate::tiers::log::record::ObjectId,
        fd: Arc<dyn crate::tiers::disk::File>,
        birth: &Birth,
    ) -> Result<Arc<FileState>> {
        let (now, uptime) = (self.file_time(), self.uptime());
        loop {
            if self.resolve(cx, parent, name)?.is_some() {
                return Err(Errno::EEXIST.into());
            }
            let mut st = self.state.lock();
            if !self.still(&st, parent, name, None)? {
                continue;
            }
            let path = self.path_in(&st, parent, name)?;
            self.room_for_event(cx, &st)?;
            cx.proceed()?;
            let ino = st.view.new_ino();
            let expected = st.expect_record(&(parent, name.clone()));
            let records: Vec<Record> = expected.into_iter().chain([Record::Bind { path, ino, object }]).collect();
            let lsn = self.log.append(&records)?;
            let meta = NodeAttrs {
                perm: birth.perm,
                uid: birth.uid,
                gid: birth.gid,
                nlink: 1,
                ctime: now,
                mtime: now,
                atime: now,
                ..NodeAttrs::default()
            };
            let node = st.view.add(ino, Kind::File, meta);
            node.refs = 1;
            node.pins = 1;
            let state = node.file.clone().ok_or(Errno::EIO)?;
            {
                let mut io = state.io.write_new();
                state.place(&mut io, Bytes::Object(object), Some(fd));
                io.dirty = true;
            }
            state.privileged.store(birth.perm & 0o6000 != 0, Ordering::Relaxed);
            self.count_open(&state);
            st.objects.add(object);
            st.view.set_view(parent, name, Some(ino));
            st.uncommitted.bind(ino, lsn, object, uptime);
            st.uncommitted.start(ino, cx.uid, self.stamp_of_now());
            touch(&mut st, parent, now);
            return Ok(state);
        }
    }

    pub fn link(&self, cx: &Cx, ino: Ino, parent: Ino, name: &Name) -> Result<Attr> {
        let before = self.getattr(cx, ino)?;
        if !self.slow.abilities.hard_links {
            return Err(Errno::EPERM.into());
        }
        self.admit_name(cx, name)?;
        let file = self.state.lock().file(ino);
        loop {
            if self.resolve(cx, parent, name)?.is_some() {
                return Err(Errno::EEXIST.into());
            }
            let now = self.file_time();
            let mut io = file.as_ref().map(|file| self.exclusive(cx, file)).transpose()?;
            let frozen = self.freeze_if_uncommitted(cx, io.as_deref_mut())?;
            let mut st = self.state.lock();
            if !self.still(&st, parent, name, None)? {
                continue;
            }
            let path = st.view.path(ino).filter(|_| ino != ROOT).ok_or(Errno::ENOENT)?.into();
            let to = self.path_in(&st, parent, name)?;
            if st.view.get(ino).is_none_or(|node| node.kind == Kind::Dir) {
                return Err(Errno::EPERM.into());
            }
            // As on the slow tier: a file has all its names in one part.
            if st.view.get(ino).and_then(|node| node.links.first()).is_some_and(|at| st.view.are_apart(at.0, parent)) {
                return Err(Errno::EXDEV.into());
            }
            if u64::from(before.nlink) >= self.slow.abilities.names_max {
                return Err(Errno::EMLINK.into());
            }
            self.commit_frozen(cx, &mut st, file.as_deref(), io.as_deref_mut(), frozen)?;
            let at = (parent, name.clone());
            let change = Change::Link { ino, at: at.clone() };
            let slow = st.known_on_slow(ino);
            self.log_event(cx, &mut st, Record::Link { path, to, ino, slow }, change, |st, _| {
                st.view.set_view(at.0, &at.1, Some(ino))
            })?;
            if let Some(node) = st.view.get_mut(ino) {
                node.change_meta(|meta| (meta.nlink, meta.ctime) = (meta.nlink + 1, now));
                node.ours = true;
            }
            touch(&mut st, parent, now);
            refer_kernel(&mut st, ino);
            drop((st, io));
            self.wake();
            return Ok(self.attr_to_answer(cx, ino, Attr { nlink: before.nlink + 1, ctime: now, ..before }));
        }
    }

    pub fn unlink(&self, cx: &Cx, parent: Ino, name: &Name) -> Result<()> {
        loop {
            let ino = self.resolve(cx, parent, name)?.ok_or(Errno::ENOENT)?;
            let now = self.file_time();
            let mut st = self.state.lock();
            if !self.still(&st, parent, name, Some(ino))? {
                continue;
            }
            if st.view.get(ino).is_some_and(|node| node.kind == Kind::Dir) {
                return Err(Errno::EISDIR.into());
            }
            // A process that has it open may still write to it, and then needs the copy.
            let opens = st.view.get(ino).and_then(|node| Some(node.file.as_ref()?.opens.load(Ordering::Acquire)));
            let copy = self.copy_number_in(&st, ino).filter(|_| opens.unwrap_or(0) == 0);
            self.remove(cx, &mut st, ino, parent, name, false, now)?;
            drop(st);
            copy.into_iter().for_each(|number| self.drop_copy(number));
            break;
        }
        self.wake();
        Ok(())
    }

    pub fn rmdir(&self, cx: &Cx, parent: Ino, name: &Name) -> Result<()> {
        loop {
            let ino = self.resolve(cx, parent, name)?.ok_or(Errno::ENOENT)?;
            {
                let st = self.state.lock();
                if st.view.get(ino).is_some_and(|node| node.kind != Kind::Dir) {
                    return Err(Errno::ENOTDIR.into());
                }
                if st.view.is_mount(ino) {
                    return Err(Errno::EBUSY.into());
                }
            }
            let generation = self.empty_since(cx, ino)?;
            let now = self.file_time();
            let mut st = self.state.lock();
            let empty = st.view.live_dir(ino).is_some_and(|dir| dir.generation == generation);
            if !empty || !self.still(&st, parent, name, Some(ino))? {
                continue;
            }
            self.remove(cx, &mut st, ino, parent, name, true, now)?;
            add_subdir(&mut st, parent, -1);
            break;
        }
        self.wake();
        Ok(())
    }

    /// Logs and applies the removal of a name. A file that never became an event has nothing to remove on the slow
    /// tier: its record is logged for recovery, but no event is queued.
    #[allow(clippy::too_many_arguments)]
    fn remove(
        &self,
        cx: &Cx,
        st: &mut EngineState,
        ino: Ino,
        parent: Ino,
        name: &Name,
        dir: bool,
        now: crate::tiers::disk::Time,
    ) -> Result<()> {
        let path = self.path_in(st, parent, name)?;
        let record = Record::Remove { path, ino, dir };
        let slot = st.view.live_dir(parent).and_then(|dir| dir.slots.get(name));
        let never_seen = slot.is_some_and(|slot| slot.slow().is_none() && slot.pins == 0);
        if never_seen {
            cx.proceed()?;
            self.log.append(&[record])?;
            st.view.set_view(parent, name, None);
        } else {
            let change = Change::Remove { ino, at: (parent, name.clone()) };
            self.log_event(cx, st, record, change, |st, _| st.view.set_view(parent, name, None))?;
        }
        self.lost_name(st, ino, now);
        touch(st, parent, now);
        Ok(())
    }

    /// Updates `ino` after it has lost a name.
    pub(super) fn lost_name(&self, st: &mut EngineState, ino: Ino, now: crate::tiers::disk::Time) {
        if let Some(node) = st.view.get_mut(ino) {
            let left = if node.kind == Kind::Dir { 0 } else { node.meta().nlink.saturating_sub(1) };
            node.change_meta(|meta| (meta.nlink, meta.ctime) = (left, now));
            node.ours = true;
        }
        self.settle_removed(st, ino);
        st.view.collect(ino);
    }

    /// Whether the name is still what `resolve` returned; ENOENT if its directory has been removed.
    pub(super) fn still(&self, st: &EngineState, dir: Ino, name: &Name, who: Option<Ino>) -> Result<bool> {
        if is_ours(st, dir, name) {
            return Err(Errno::EPERM.into());
        }
        st.view.live_dir(dir).ok_or(Errno::ENOENT)?;
        // Ignore the age: the answer was fresh a moment ago, and any change would have changed the slot.
        Ok(st.view.known(dir, name, self.uptime(), self.ages(), true) == Some(who))
    }

    pub(crate) fn path_in(&self, st: &EngineState, dir: Ino, name: &Name) -> Result<LoggedPath> {
        Ok(st.view.path_at(&(dir, name.clone())).ok_or(Errno::ENOENT)?.into())
    }

    /// P9: memory and log are bounded. At `max_pending` or `max_pending_bytes` changes are refused, and those of one
    /// user at a share of that. A commit of bytes that were already accepted is never refused: what waits for it could
    /// not be published, and no room would be made.
    pub(crate) fn room_for_event(&self, cx: &Cx, st: &EngineState) -> Result<()> {
        if self.refuses_changes_of(st, cx.uid) { Err(Errno::ENOSPC.into()) } else { Ok(()) }
    }

    /// Logs an event, applies it to the view, and queues it, in this order: everything in the view is in the log.
    pub(crate) fn log_event(
        &self,
        cx: &Cx,
        st: &mut EngineState,
        record: Record,
        change: Change,
        apply: impl FnOnce(&mut EngineState, Lsn),
    ) -> Result<Lsn> {
        self.room_for_event(cx, st)?;
        self.log_event_anyway(cx, st, record, change, apply)
    }

    pub(crate) fn log_event_anyway(
        &self,
        cx: &Cx,
        st: &mut EngineState,
        record: Record,
        change: Change,
        apply: impl FnOnce(&mut EngineState, Lsn),
    ) -> Result<Lsn> {
        self.log_event_and(cx, st, (record, None), change, apply)
    }

    /// Logs an event and, in the same append, a record that must hold as soon as the event does. If that record comes
    /// with a change, it is an event too, with the next LSN; `apply` does both to the view.
    pub(crate) fn log_event_and(
        &self,
        cx: &Cx,
        st: &mut EngineState,
        (record, behind): (Record, Option<(Record, Option<Change>)>),
        change: Change,
        apply: impl FnOnce(&mut EngineState, Lsn),
    ) -> Result<Lsn> {
        cx.proceed()?;
        let (behind, further_change) = behind.unzip();
        let further_change = further_change.flatten();
        let expected = st.expect_before(&change);
        let further = u64::from(behind.is_some());
        let records: Vec<Record> = expected.into_iter().chain([record]).chain(behind).collect();
        let origin = self.origin(cx, st, &change);
        let append = || self.log.append_event(&records, origin).map(|last| last - further);
        let lsn = if left_out!(LogFirst) { self.log.last() + records.len() as u64 - further } else { append()? };
        let events = 1 + u64::from(further_change.is_some());
        st.queue.stamp(origin.stamps.into_iter().flat_map(|stamps| (lsn..lsn + events).map(move |lsn| (lsn, stamps))));
        st.note_checkpoint(lsn, &change, self.uptime(), self.stamp(Duration::ZERO));
        apply(st, lsn);
        for (lsn, change) in (lsn..).zip([Some(change), further_change].into_iter().flatten()) {
            self.queue_event(st, (lsn, origin.by), self.uptime(), change);
        }
        if left_out!(LogFirst) { append() } else { Ok(lsn) }
    }

    /// A stamp for the start of a version, if this mount is a member of a fleet.
    pub(crate) fn stamp_of_now(&self) -> Option<u64> {
        self.order.stamp(self.now())
    }

    /// The origin of an event that is logged now. A version started with its first byte. Everything else is so short
    /// that its end serves as its start: a later start only waits for more.
    pub(crate) fn origin(&self, cx: &Cx, st: &EngineState, change: &Change) -> EventOrigin {
        let start = if let Change::Content { ino, .. } = change { st.uncommitted.started(*ino) } else { None };
        let stamps = self.order.stamps(self.now(), start);
        if let Some(stamps) = &stamps {
            cx.logged.store(stamps.end, Ordering::Relaxed);
        }
        EventOrigin { by: st.whose(cx.uid, change), stamps }
    }

    /// The attributes that a new node of this caller in `parent` starts with.
    fn birth(&self, cx: &Cx, parent: Ino, kind: Kind, mode: u32, umask: u32) -> Result<Birth> {
        let dir = self.getattr(cx, parent)?;
        if dir.kind != Kind::Dir {
            return Err(Errno::ENOTDIR.into());
        }
        let mut birth = Birth { perm: mode & 0o7777, uid: cx.uid, gid: cx.gid, xattrs: Vec::new() };
        if dir.perm & 0o2000 != 0 {
            birth.gid = dir.gid;
            if kind == Kind::Dir {
                birth.perm |= 0o2000;
            }
        }
        if kind == Kind::Symlink {
            self.slow.abilities.give(kind, &mut birth);
            return Ok(birth);
        }
        let default = self.default_acl(cx, parent)?;
        let inherited = default.as_deref().and_then(|list| Some((list, acl::inherit(list, birth.perm)?)));
        match inherited {
            None => birth.perm &= !umask,
            Some((list, (perm, access))) => {
                birth.perm = perm;
                birth.xattrs.extend(access.map(|list| (acl::ACCESS.to_vec(), list)));
                if kind == Kind::Dir {
                    birth.xattrs.push((acl::DEFAULT.to_vec(), list.to_vec()));
                }
            }
        }
        self.slow.abilities.give(kind, &mut birth);
        Ok(birth)
    }

    /// A directory's default ACL, read once and then cached.
    pub(crate) fn default_acl(&self, cx: &Cx, dir: Ino) -> Result<Option<Vec<u8>>> {
        if let Some(known) = self.state.lock().view.get(dir).and_then(|node| node.dir.as_ref()?.default_acl.clone()) {
            return Ok(known);
        }
        let list = self.get_xattr(cx, dir, acl::DEFAULT)?;
        if let Some(dir) = self.state.lock().view.get_mut(dir).and_then(|node| node.dir.as_mut()) {
            dir.default_acl = Some(list.clone());
        }
        Ok(list)
    }
}

/// Our own directory, at the root of the tree or of a part of it.
pub(super) fn is_ours(st: &EngineState, dir: Ino, name: &Name) -> bool {
    name.as_bytes() == OURS && st.view.is_part(dir)
}

/// Adds the node of a `make` event to the view.
pub(crate) fn add_made(st: &mut EngineState, ino: Ino, spec: &Spec, at: (Ino, Name), lsn: Lsn) {
    let time = spec.attrs.mtime;
    let meta = NodeAttrs {
        perm: spec.attrs.perm,
        uid: spec.attrs.uid,
        gid: spec.attrs.gid,
        rdev: spec.rdev,
        nlink: if spec.kind == Kind::Dir { 2 } else { 1 },
        size: if spec.kind == Kind::Symlink { spec.target.len() as u64 } else { 0 },
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
    };
    let node = st.view.add(ino, spec.kind, meta);
    node.set_meta_lsn(lsn);
    node.set_target(spec.target.clone());
    if let Some(dir) = &mut node.dir {
        let list = spec.attrs.xattrs.iter().find(|(key, _)| key == acl::ACCESS).map(|(_, list)| list.clone());
        dir.access_acl = Some(Box::new(KnownAcl { asked: ObservedAt::NEVER, list }));
    }
    let xattrs = spec.attrs.xattrs.iter().map(|(key, value)| (key.clone(), (Some(value.clone()), lsn)));
    node.change_xattrs(|all| all.extend(xattrs));
    st.view.set_view(at.0, &at.1, Some(ino));
}

/// Moves the names of a rename or an exchange in the view.
pub(crate) fn apply_rename(st: &mut EngineState, change: &Change) {
    match change {
        Change::Rename { ino, from, to, .. } => {
            st.view.set_view(to.0, &to.1, Some(*ino));
            st.view.set_view(from.0, &from.1, None);
        }
        Change::Exchange { a, a_at, b, b_at } => {
            st.view.set_view(b_at.0, &b_at.1, Some(*a));
            st.view.set_view(a_at.0, &a_at.1, Some(*b));
        }
        _ => {}
    }
}

/// Sets a directory's times after its entries changed.
pub(crate) fn touch(st: &mut EngineState, dir: Ino, now: crate::tiers::disk::Time) {
    if let Some(node) = st.view.get_mut(dir) {
        node.change_meta(|meta| (meta.mtime, meta.ctime) = (now, now));
        node.ours = true;
    }
}

/// A directory's link count counts its subdirectories, unless its file system does not count them (btrfs shows 1).
pub(crate) fn add_subdir(st: &mut EngineState, dir: Ino, by: i32) {
    if let Some(node) = st.view.get_mut(dir)
        && node.meta().nlink >= 2
    {
        node.change_meta(|meta| meta.nlink = meta.nlink.saturating_add_signed(by).max(2));
    }
}

fn refer_kernel(st: &mut EngineState, ino: Ino) {
    if let Some(node) = st.view.get_mut(ino) {
        node.refs += 1;
    }
}
