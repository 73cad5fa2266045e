//! How a file gets an object, and moves to another one or to both tiers.
//!
//! A slow file is copied up at its first write, not at its open. A file that is too large, has several names or is
//! pinned (the kernel reads it directly) is written in place. A file that no longer fits on fast continues on slow from
//! that offset. O_TRUNC starts a new object, so the previous version stays whole until the new one is closed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Context, Errno, Error, Result};
use crate::tiers::copies::index::{become_object, path_then};
use crate::tiers::disk::errors::{absent_is_none, has_no_such_room, is_broken, is_full, lacks_room};
use crate::tiers::disk::{Access, File, Kind, NewAttr, Stat};
use crate::tiers::log::record::{Home, ObjectId};
use crate::tiers::objects::attrs::{Birth, dress, drop_inherited, own_xattrs, travels};
use crate::tiers::objects::copy::{copy_bytes, copy_data};
use crate::tiers::objects::file::{Bytes, Copy, FileState, Io};
use crate::tiers::objects::pool::{Named, Pool, label, tmp_name};
use crate::tiers::objects::split::Split;
use crate::tiers::{Cx, Tiers};

/// The share of the fast tier to keep free: 1/50. Below it new files go to the slow tier at once.
const FLOOR: u64 = 50;

impl Tiers {
    /// Moves the file to a new object with the same bytes.
    pub(crate) fn leave_object(&self, cx: &Cx, state: &Arc<FileState>, object: ObjectId) -> Result<()> {
        let source = {
            // Under the lock, which keeps an object on the slow tier from being handed over meanwhile.
            let io = self.shared(cx, state)?;
            if io.object() != Some(object) {
                return Ok(());
            }
            self.fd(cx, &io, object)?
        };
        let size = source.stat().at("stat", label(object))?.size;
        let (id, fd) = self.copy_of(cx, state, &*source, size)?;
        let installed = self.install(cx, state, (id, size), fd, |io| io.object() == Some(object) && !io.dirty);
        if !matches!(installed, Ok(true)) {
            self.remove_object(id);
        }
        installed.map(|_| ())
    }

    /// Gives a slow-only file an object with its first `keep` bytes, or has it written in place.
    pub(crate) fn copy_up(&self, cx: &Cx, state: &Arc<FileState>, keep: u64) -> Result<()> {
        // A file that the kernel reads directly is truncated where it is.
        if (keep > 0 || state.is_pinned()) && self.adopt_copy(cx, state)? {
            return Ok(());
        }
        cx.slow()?;
        let held = state.io.read().fd.clone();
        let (source, named) = match (self.open_slow(cx, state.ino, Access::Read), held) {
            (Ok(source), _) => (source, 1),
            // The name that the file was opened by is gone; there may be others that were never looked up.
            (Err(e), Some(held)) if e.errno() == Errno::ESTALE => (held, 0),
            (Err(e), _) => return Err(e),
        };
        let stat = source.stat().at("stat on slow", self.label(state.ino))?;
        let keep = keep.min(stat.size);
        let in_place = keep > self.options().copy_up_max || state.is_pinned();
        // After a foreign unlink the file gets an object, which brings it back.
        let is_there = stat.nlink > 0 || self.path(state.ino).is_none();
        if stat.nlink > named || (is_there && in_place) {
            let fd = source.reopen().at("open for writing on slow", self.label(state.ino))?;
            let mut io = state.io.write();
            if io.object().is_none() {
                self.forget_copy_durably(state.ino)?;
                io.place = Bytes::InPlace;
                io.fd = Some(fd);
                io.copy = None;
            }
            return Ok(());
        }
        let (object, fd) = self.copy_of(cx, state, &*source, keep)?;
        let times = NewAttr { mtime: Some(stat.mtime), atime: Some(stat.atime), ..NewAttr::default() };
        let installed = fd
            .set_attr(&times)
            .at("copy up", self.label(state.ino))
            .and_then(|()| self.install(cx, state, (object, keep), fd, |io| io.object().is_none()));
        if !matches!(installed, Ok(true)) {
            self.remove_object(object);
        }
        installed.map(|_| ())
    }

    /// A new object with the file's attributes and the first bytes of `source`, on fast if they fit there.
    fn copy_of(&self, cx: &Cx, state: &FileState, source: &dyn File, size: u64) -> Result<(ObjectId, Arc<dyn File>)> {
        let birth = self.birth_like(cx, state)?;
        let mut made = self.new_object(cx, &birth, size, || self.path(state.ino))?;
        let fill = |fd: &dyn File| copy_bytes(source, fd, size).and_then(|()| fd.set_len(size));
        let mut filled = fill(&*made.1);
        if filled.as_ref().is_err_and(is_full) && !made.0.needs_slow() {
            self.remove_object(made.0);
            made = self.spill_object(cx, &birth, self.pool.number())?;
            filled = fill(&*made.1);
        }
        if filled.is_err() {
            self.remove_object(made.0);
        }
        filled.at("copy", self.label(state.ino)).map(|()| made)
    }

    /// The attributes that a new object of this file starts with.
    pub(crate) fn birth_like(&self, cx: &Cx, state: &FileState) -> Result<Birth> {
        let attr = self.getattr(cx, state.ino)?;
        let mut xattrs = Vec::new();
        let keys = match self.list_xattr(cx, state.ino) {
            // Its object was on the slow tier and was removed there from outside.
            Err(e) if e.errno() == Errno::ENOENT => Vec::new(),
            keys => keys?,
        };
        for key in keys.into_iter().filter(|key| travels(key)) {
            if let Some(value) = self.get_xattr(cx, state.ino, &key)? {
                xattrs.push((key, value));
            }
        }
        Ok(Birth { perm: attr.perm, uid: attr.uid, gid: attr.gid, xattrs })
    }

    /// Makes `object` the file's bytes, ahead of its events; `kept`: how many of them are not new. `false`: `expected`
    /// no longer holds and nothing was done.
    pub(crate) fn install(
        &self,
        cx: &Cx,
        state: &Arc<FileState>,
        (object, kept): (ObjectId, u64),
        fd: Arc<dyn File>,
        expected: impl Fn(&Io) -> bool,
    ) -> Result<bool> {
        let mut io = self.exclusive(cx, state)?;
        if !expected(&io) {
            return Ok(false);
        }
        self.rebind_to(cx, state, &io, (object, kept))?;
        let was_on_slow = io.object().is_none();
        state.place(&mut io, Bytes::Object(object), Some(fd));
        io.dirty = true;
        io.interrupted = false;
        drop(io);
        if was_on_slow {
            self.forget_copy(state.ino);
        }
        Ok(true)
    }

    /// Switches the log and the references to `object`. The caller holds `io` and switches it.
    pub(crate) fn rebind_to(&self, cx: &Cx, state: &FileState, io: &Io, (object, kept): (ObjectId, u64)) -> Result<()> {
        cx.proceed()?;
        let mut st = self.state.lock();
        self.log_bind(cx, &mut st, state, object, kept)?;
        st.objects.add(object);
        st.clean.remove(state.ino);
        if let Some(old) = io.object() {
            let lsn = self.log.last();
            st.objects.remove(old, lsn);
        }
        Ok(())
    }

    /// Creates an object for the file at `path`: on fast if `size` bytes fit there, else in the slow tier's `tmp` (P8),
    /// and there also if a rule keeps this path from being absorbed.
    pub(crate) fn new_object(
        &self,
        cx: &Cx,
        birth: &Birth,
        size: u64,
        path: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Result<(ObjectId, Arc<dyn File>)> {
        let number = self.pool.number();
        if !self.options().rules.absorbs(path) {
            return self.new_slow_object(cx, birth, number);
        }
        if self.has_room_for_new(size) {
            let id = ObjectId { home: Home::Fast, number };
            let made = self.pool.create(number, birth.perm).and_then(|fd| dress(&*fd, birth).map(|()| fd));
            match made {
                Ok(fd) => return Ok((id, fd)),
                Err(e) if is_full(&e) || has_no_such_room(&e) => self.remove_object(id),
                Err(e) if is_broken(&e) && !self.slow.is_down() => {
                    self.remove_object(id);
                    self.fast_has_failed();
                }
                Err(e) => {
                    self.remove_object(id);
                    return Err(Error::io_on_fast("create", label(id), e));
                }
            }
        }
        let spilled = self.spill_object(cx, birth, number);
        let room = size + self.fast.space().map_or(0, |space| space.capacity() / FLOOR) + 1;
        match spilled {
            // As in `make_room`.
            Err(error) if lacks_room(&error) && self.evict_for(room, true)? => {
                let id = ObjectId { home: Home::Fast, number: self.pool.number() };
                let made = self.pool.create(id.number, birth.perm).and_then(|fd| dress(&*fd, birth).map(|()| fd));
                made.map(|fd| (id, fd)).map_err(|e| {
                    self.remove_object(id);
                    Error::io_on_fast("create", label(id), e)
                })
            }
            spilled => spilled,
        }
    }

    /// Whether a new object of this size goes to the fast tier. A failing fast tier is better than a slow tier that is
    /// down.
    fn has_room_for_new(&self, size: u64) -> bool {
        self.fits(size) && (!self.fast_fails() || self.slow.is_down())
    }

    /// Creates an object on the slow tier because it did not fit on fast.
    fn spill_object(&self, cx: &Cx, birth: &Birth, number: u64) -> Result<(ObjectId, Arc<dyn File>)> {
        let made = self.new_slow_object(cx, birth, number)?;
        self.counters.totals.spilled_files.increment(1);
        Ok(made)
    }

    fn new_slow_object(&self, cx: &Cx, birth: &Birth, number: u64) -> Result<(ObjectId, Arc<dyn File>)> {
        cx.slow()?;
        let id = ObjectId { home: Home::Slow, number };
        let made = self.slow.tmp.create(&tmp_name(id), birth.perm);
        let made = made.and_then(|fd| self.dress_on_slow(&*fd, birth).map(|()| fd));
        match made {
            Ok(fd) => Ok((id, fd)),
            Err(e) => {
                self.remove_object(id);
                Err(Error::io("create", label(id), e))
            }
        }
    }

    /// Like [`dress`], limited to what the slow tier can hold.
    fn dress_on_slow(&self, fd: &dyn File, birth: &Birth) -> std::io::Result<()> {
        if self.slow.abilities.acls {
            drop_inherited(fd, Kind::File, &birth.xattrs)?;
        }
        if birth.has_owner() {
            let perm = (birth.perm & 0o6000 != 0).then_some(birth.perm);
            let owned = NewAttr { uid: Some(birth.uid), gid: Some(birth.gid), perm, ..NewAttr::default() };
            fd.set_attr(&self.slow.abilities.kept(&owned))?;
        }
        let left_out = self.slow.put_xattrs(&birth.xattrs, |key, value| fd.set_xattr(key, value))?;
        self.counters.left_out.fetch_add(left_out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the fast tier has room for this many bytes and the floor.
    pub(crate) fn fits(&self, size: u64) -> bool {
        self.fast.space().is_ok_and(|space| space.avail.saturating_sub(size) > space.capacity() / FLOOR)
    }

    /// Called when a change of `object` found no room: evicts, or else splits the file at that offset. `full`: the
    /// tier's error, returned if that tier is the slow one.
    pub(crate) fn make_room(
        &self,
        cx: &Cx,
        state: &FileState,
        object: ObjectId,
        span: &Range<u64>,
        full: std::io::Error,
    ) -> Result<()> {
        let on_fast = match object.home {
            Home::Fast => true,
            Home::Split { at, .. } => span.start < at,
            Home::Slow => false,
        };
        if !on_fast {
            return Err(Error::io("write on slow", self.label(state.ino), full));
        }
        cx.slow()?;
        let evicted = self.evict_for(span.end, false).unwrap_or_else(|error| {
            tracing::warn!(%error, "nothing could be evicted for a write; the file goes on on the slow tier");
            false
        });
        if evicted {
            return Ok(());
        }
        match self.split(cx, state, object, span.start, full) {
            // The slow tier is full, too. Evict what `keep` keeps: the slow tier has it as well and can be read once.
            Err(error) if lacks_room(&error) && self.evict_for(span.end, true)? => Ok(()),
            other => other,
        }
    }

    /// Continues the file from offset `at` in the slow tier's `tmp`:
    ///
    /// 1. make the tail, with the bytes that are already behind the offset (none, if the file is written sequentially).
    ///    The bytes before it stay where they are. A kill here leaves a tail that the next start quarantines;
    /// 2. log a `bind` that names both parts;
    /// 3. let the file continue in both.
    fn split(&self, cx: &Cx, state: &FileState, object: ObjectId, at: u64, full: std::io::Error) -> Result<()> {
        let mut io = state.io.write();
        let (Some(source), true) = (io.fd.clone(), io.object() == Some(object)) else { return Ok(()) };
        if !io.dirty {
            // Committed meanwhile, so its attributes may be in the view alone.
            return Ok(());
        }
        let head = match object.home {
            Home::Split { head, .. } => head,
            _ => object.number,
        };
        if state.is_pinned() {
            return Err(Error::io("write", self.label(state.ino), full));
        }
        // Under the lock, which an attribute change takes, too.
        let Stat { perm, uid, gid, .. } = source.stat().at("stat", label(object))?;
        let birth = Birth { perm, uid, gid, xattrs: own_xattrs(&*source)? };
        let (tail, fd) = self.spill_object(cx, &birth, self.pool.number())?; // 1
        let moved = source
            .stat()
            .and_then(|stat| {
                copy_data(&*source, &*fd, at..stat.size, &mut |_, _| Ok(()))?;
                fd.set_len(stat.size)?;
                Ok(at.min(stat.size))
            })
            .at("move to the slow tier", self.label(state.ino))
            .and_then(|at| {
                let id = ObjectId { home: Home::Split { head, at }, ..tail };
                let fd = Split::new(self.open_object(cx, id.head().unwrap_or(id))?, fd, at);
                self.rebind_to(cx, state, &io, (id, at))?; // 2
                state.goes_on_in(&mut io, id, Arc::new(fd)); // 3
                Ok(())
            });
        if moved.is_err() {
            self.remove_object(tail);
        }
        moved
    }

    /// Turns the staged copy of a file into its object, for the first write:
    ///
    /// 1. relabel the copy as an object with a fingerprint, and sync label and bytes. A crash here leaves a file in
    ///    `staged` that is not a copy; the next start removes it;
    /// 2. rename it into the pool. A crash here leaves an object with a fingerprint, which waits for its file like any
    ///    other;
    /// 3. give it the attributes that the view shows, and remove its fingerprint, durably (P6);
    /// 4. log `bind`: the file's bytes are in this object, ahead of its events.
    ///
    /// Readers of the copy, including the kernel, continue in the same file. `false`: there is no copy to take.
    fn adopt_copy(&self, cx: &Cx, state: &Arc<FileState>) -> Result<bool> {
        if self.shared(cx, state)?.copy.is_none() {
            return Ok(false);
        }
        let (birth, attr) = (self.birth_like(cx, state)?, self.getattr(cx, state.ino)?);
        let mut io = self.exclusive(cx, state)?;
        let (Some(copy), Bytes::Slow) = (io.copy.clone(), io.place) else { return Ok(false) };
        let object = ObjectId { home: Home::Fast, number: self.pool.number() };
        let label = || self.label(state.ino);
        // A removed file: use its former name, for step 2 only. No record binds it.
        let path = self.path(state.ino).map_or_else(|| path_then(&*copy.fd), |path| Ok(Some(path)));
        let path = path.at_fast("read the name of the staged copy of", label())?.ok_or(Errno::ESTALE)?;
        become_object(&copy, Named { lsn: 0, ino: state.ino, path }).at_fast("take the staged copy of", label())?; // 1
        let taken = self.use_copy(state, &copy, object)?; // 2
        if !taken {
            io.copy = None;
            return Ok(false);
        }
        let fd = copy.fd.reopen().at_fast("open the staged copy of", label())?;
        let times =
            NewAttr { perm: Some(birth.perm), mtime: Some(attr.mtime), atime: Some(attr.atime), ..NewAttr::default() };
        let dressed = dress(&*fd, &birth); // 3
        if dressed.as_ref().is_err_and(|e| is_full(e) || has_no_such_room(e)) && !state.is_pinned() {
            // The attributes fit only on the slow tier, so the object is made there, too. Readers of the copy go on.
            io.copy = None;
            drop(io);
            self.set_staged(state.ino, false);
            self.remove_object(object);
            return Ok(false);
        }
        let taken = dressed.and_then(|()| fd.set_attr(&times)).and_then(|()| Pool::clear_clean(&*fd));
        let bound = taken.at_fast("take the staged copy of", label()).and_then(|()| {
            self.rebind_to(cx, state, &io, (object, attr.size)) // 4
        });
        if let Err(e) = bound {
            // Readers go on with the copy; the file is still the slow one.
            self.remove_object(object);
            return Err(e);
        }
        state.place(&mut io, Bytes::Object(object), Some(fd));
        io.dirty = true;
        drop(io);
        self.set_staged(state.ino, false);
        Ok(true)
    }

    /// Renames a copy into the pool. `false`: its name is gone, or another file had it.
    fn use_copy(&self, state: &FileState, copy: &Copy, object: ObjectId) -> Result<bool> {
        let renamed = absent_is_none(self.copies.hand_over(copy.number, &self.pool, object.number));
        let is_it = renamed
            .and_then(|renamed| Ok(renamed.is_some() && self.pool.stat(object.number)?.ino == copy.fd.stat()?.ino));
        if is_it.at_fast("take the staged copy of", self.label(state.ino))? {
            return Ok(true);
        }
        self.remove_object(object);
        if state.is_pinned() {
            // Stores through the writer's mapping go to the file that the kernel reads.
            let path = self.label(state.ino);
            tracing::warn!(%path, "programs read by passthrough a staged copy that is gone; until they close the file nobody can write to it");
            return Err(Error::io_on_fast("write", path, Errno::EIO.into()));
        }
        Ok(false)
    }
}
