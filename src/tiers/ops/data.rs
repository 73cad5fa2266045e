//! Reading and writing open files: which file on which tier gives and gets the bytes.
//!
//! A write goes to the object that the inode has *now*. Before the first byte after a commit changes
//! ([`Tiers::make_writable`]):
//!
//! 1. remove a clean object's fingerprint, durably (P6);
//! 2. log `bind`: the file's bytes are ahead of its events (P3);
//! 3. if the byte belongs to a pending version, log `invalidate`: this version no longer exists. The record is made
//!    durable if the version may count as sealed ([`Tiers::invalidate`], P4);
//! 4. write the byte.
//!
//! `copy_up.rs` says how a file gets its object and moves to another one.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Context, Errno, Result};
use crate::tiers::disk::errors::{is_broken, is_full};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::{Allocate, File, NewAttr, Seek, Stat};
use crate::tiers::log::record::{Home, ObjectId, Record};
use crate::tiers::model::node::NodeAttrs;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::copy::CHUNK;
use crate::tiers::objects::file::{Bytes, FileState, Io};
use crate::tiers::objects::pool::{Pool, label};
use crate::tiers::objects::version::Content;
use crate::tiers::{Cx, OpenFile, Tiers};

/// Writeback of a large file to the fast disk starts after every this many bytes.
const PIECE: u64 = 8 << 20;
/// At most this many pieces wait for writeback.
const BEHIND_MAX: usize = 64;
/// A range of an open file.
pub(crate) type Piece = (Arc<dyn File>, Range<u64>);

impl Tiers {
    /// Fills `buf`; a short count means end of file.
    pub fn read(&self, cx: &Cx, file: &OpenFile, buf: &mut [u8], offset: u64) -> Result<usize> {
        let (fd, on_fast) = self.readable(cx, file)?;
        if !on_fast {
            if let Err(why) = cx.slow() {
                // Bytes in memory are read by the thread that has the request.
                let got = self.at_hand(|| fd.read_at_hand(buf, offset)).ok_or(why)?;
                cx.used_slow.store(true, Ordering::Relaxed);
                file.read.fetch_add(got as u64, Ordering::Relaxed);
                return Ok(got);
            }
            self.counters.read_from_slow(self.uptime());
        }
        match fd.read_at(buf, offset) {
            Err(error) if self.is_read_elsewhere(cx, &file.state, &fd, on_fast, &error)? => {
                self.read(cx, file, buf, offset)
            }
            read => {
                let got = match on_fast {
                    true => read.at_fast("read", self.label(file.ino))?,
                    false => read.at("read on slow", self.label(file.ino))?,
                };
                file.read.fetch_add(got as u64, Ordering::Relaxed);
                Ok(got)
            }
        }
    }

    /// After a failed read through `fd`: whether the file is now read through another descriptor.
    fn is_read_elsewhere(
        &self,
        cx: &Cx,
        state: &FileState,
        fd: &Arc<dyn File>,
        on_fast: bool,
        error: &std::io::Error,
    ) -> Result<bool> {
        if self.give_up_copy(state, fd, error) || (on_fast && self.give_up_object(cx, state, error)?) {
            return Ok(true);
        }
        // Of two threads whose reads failed, one drops the copy or object, and the other gets here.
        let io = self.shared(cx, state)?;
        let present = io.copy.as_ref().map(|copy| &copy.fd).or(io.fd.as_ref());
        Ok(present.is_none_or(|present| !Arc::ptr_eq(present, fd)))
    }

    /// After a failed read of a file on the fast tier: `true` if the slow tier has the same version, and the file is
    /// read from there from now on. Compares the fingerprint once more, as before every eviction (P6): if the slow file
    /// is gone, an object with one bad block is all that is left.
    fn give_up_object(&self, cx: &Cx, state: &FileState, error: &std::io::Error) -> Result<bool> {
        let fingerprint =
            self.shared(cx, state)?.clean().filter(|_| is_broken(error) && !state.is_pinned() && !self.slow.is_down());
        let Some(fingerprint) = fingerprint else { return Ok(false) };
        self.fast_has_failed();
        cx.slow()?;
        let Some(path) = self.state.lock().view.slow_path(state.ino) else { return Ok(false) };
        let slow_stat = self.slow.stat(&path).at("stat on slow", self.label(state.ino))?;
        let mut io = state.io.write();
        let same = slow_stat.is_some_and(|slow_stat| Fingerprint::of(&slow_stat) == fingerprint)
            && io.clean() == Some(fingerprint);
        let Some(object) = io.object().filter(|_| same && !state.is_pinned()) else { return Ok(false) };
        let shown = self.pool.stat(object.number);
        let mut st = self.state.lock();
        // An event in progress needs the object's attributes.
        if st.view.get(state.ino).is_none_or(|node| node.pins > state.opens.load(Ordering::Acquire)) {
            return Ok(false);
        }
        let path = self.label_in(&st, state.ino);
        tracing::warn!(path, %error, "the fast copy cannot be read; it is dropped, and the file is read from the slow tier");
        if let Ok(shown) = shown {
            self.remember_attrs(&mut st, state.ino, &shown, fingerprint);
        }
        self.drop_clean(&mut st, state, &mut io);
        Ok(true)
    }

    /// Writes all or fails. `kill_privileges`: clear suid and sgid, as POSIX requires for a write by an unprivileged
    /// process.
    pub fn write(&self, cx: &Cx, file: &OpenFile, bytes: &[u8], offset: u64, kill_privileges: bool) -> Result<()> {
        let end = offset + bytes.len() as u64;
        self.admit_size(cx, end)?;
        if kill_privileges && file.state.privileged.load(Ordering::Relaxed) {
            self.kill_privileges(cx, file.ino)?;
        }
        self.change(cx, &file.state, offset, offset..end, |fd| {
            file.expect_same()?;
            fd.write_at(bytes, offset)
        })?;
        self.write_behind(&file.state, offset..end);
        Ok(())
    }

    /// Starts writeback of written data to the fast disk while the program still writes, so that its fsync has less to
    /// wait for. The background does it, because the disk's queue may block. If too many pieces wait already, fsync
    /// writes this one.
    fn write_behind(&self, state: &FileState, written: Range<u64>) {
        let pieces = written.start / PIECE * PIECE..written.end / PIECE * PIECE;
        if pieces.is_empty() {
            return;
        }
        let on_fast = |io: &Io| io.object().is_some_and(|object| object.home == Home::Fast);
        // An exclusive holder may block on the slow tier: leave this piece to fsync.
        let Some(io) = state.io.try_read() else { return };
        let Some(fd) = io.fd.clone().filter(|_| on_fast(&io)) else { return };
        drop(io);
        let mut behind = self.calls.behind.lock();
        if behind.len() < BEHIND_MAX {
            behind.push_back((fd, pieces));
            drop(behind);
            self.wake();
        }
    }

    /// Starts writeback of the pieces queued since.
    pub(crate) fn begin_behind(&self) {
        loop {
            let next = self.calls.behind.lock().pop_front();
            let Some((fd, piece)) = next else { return };
            fd.write_behind(piece);
        }
    }

    pub fn allocate(&self, cx: &Cx, file: &OpenFile, what: Allocate, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if matches!(what, Allocate::Extend | Allocate::ZeroRange) {
            self.admit_size(cx, end)?;
        }
        // Allocating space without changing bytes invalidates no version.
        let from = if matches!(what, Allocate::Extend | Allocate::KeepSize) { u64::MAX } else { offset };
        self.change(cx, &file.state, from, offset..end, |fd| {
            file.expect_same()?;
            fd.allocate(what, offset, len)
        })
    }

    /// Changes bytes from `from` on, through the file that holds them, after moving the bytes to where they can be
    /// changed. `span`: where space may be needed.
    fn change(
        &self,
        cx: &Cx,
        state: &Arc<FileState>,
        from: u64,
        span: Range<u64>,
        act: impl Fn(&dyn File) -> std::io::Result<()>,
    ) -> Result<()> {
        loop {
            let io = self.shared(cx, state)?;
            match (io.place, &io.fd) {
                (Bytes::Object(object), Some(fd)) if io.dirty && !io.mtime_set_since_bind => {
                    if object.needs_slow() {
                        cx.slow()?;
                    }
                    self.invalidate(state, &io, from)?; // 3
                    state.change_from(from);
                    state.at_work().begin(cx.process(), !span.is_empty());
                    let done = act(&**fd);
                    drop(io);
                    match done {
                        Err(e) if is_full(&e) => self.make_room(cx, state, object, &span, e)?,
                        other if object.home == Home::Fast => return other.at_fast("write", label(object)),
                        other => return other.at("write", label(object)),
                    }
                    continue;
                }
                (Bytes::InPlace, Some(fd)) => {
                    let fd = fd.clone();
                    drop(io);
                    cx.slow()?;
                    self.counters.totals.in_place_writes.increment(1);
                    let overtakes = self.state.lock().awaits_times(state.ino);
                    let done = act(&*fd);
                    // Even after an error: part of it may be written, and must be durable before an fsync reports
                    // success.
                    self.state.lock().written_in_place(state.ino, self.uptime());
                    let taken_over = match fd.stat() {
                        Ok(stat) => self.changed_in_place(cx, state, &*fd, &stat, overtakes),
                        Err(e) => {
                            let mut st = self.state.lock();
                            let applied = st.queue.applied();
                            st.view.expire_node(state.ino, applied);
                            // Its times are those that the write has set; they are not known here.
                            if let Some(node) = st.view.get_mut(state.ino) {
                                node.ours = false;
                            }
                            Err(e).at("stat on slow", format_args!("inode {}", state.ino))
                        }
                    };
                    return done.at("write in place on slow", format_args!("inode {}", state.ino)).and(taken_over);
                }
                _ => {}
            }
            drop(io);
            self.make_writable(cx, state)?;
        }
    }

    /// Invalidates the versions that contain bytes from `from` on, before those change. The caller holds `io`, shared
    /// or exclusive.
    pub(crate) fn invalidate(&self, state: &FileState, io: &Io, from: u64) -> Result<()> {
        let Some(object) = io.object().filter(|_| state.is_guarded(from)) else { return Ok(()) };
        let broken = || io.pending_versions.iter().filter(|content| content.is_alive() && from < content.size);
        if broken().next().is_some() && !left_out!(Invalidate) {
            let (lsn, is_sealing) = {
                // Under the state lock, so that no event of the file is moved in between.
                let _st = self.state.lock();
                let lsn = self.log.append(&[Record::Invalidate { ino: state.ino, object, from }])?;
                // Checked after the append: a seal that is logged later is not durable without this record.
                let is_sealing = broken().any(|content| content.is_sealing());
                state.invalidate(io, from);
                (lsn, is_sealing)
            };
            if is_sealing && !left_out!(InvalidateDurable) {
                self.log.sync(lsn)?;
            }
        }
        state.invalidate(io, from);
        Ok(())
    }

    /// After a write in place the view takes over the attributes of the slow file. A pending change of its times
    /// (`overtakes`) is older than the write and would undo its mtime. The write is not an event, and its time cannot
    /// be one either: behind the pending change the file might no longer have a name. So the pending change gets
    /// another meaning:
    ///
    /// 1. log `overtaken`: from here on the pending change sets the time of the write, even when it is applied after a
    ///    crash;
    /// 2. set the time again, because the pending change may have been applied since the bytes changed. Publishing
    ///    checks for 1 after each change.
    fn changed_in_place(&self, cx: &Cx, state: &FileState, fd: &dyn File, stat: &Stat, overtakes: bool) -> Result<()> {
        let (ino, Stat { size, blocks, mtime, ctime, .. }) = (state.ino, *stat);
        let overtakes = {
            let mut st = self.state.lock();
            if let Some(node) = st.view.get_mut(ino) {
                node.change_meta(|meta| *meta = NodeAttrs { size, blocks, mtime, ctime, ..*meta });
            }
            overtakes || st.awaits_times(ino)
        };
        if !overtakes {
            return Ok(());
        }
        // With two writers, the time that is last in the log is also set last.
        let _io = state.io.write();
        {
            let mut st = self.state.lock();
            if let Some(node) = st.view.get_mut(ino) {
                node.change_meta(|meta| meta.mtime = mtime);
            }
            if st.awaits_times(ino) {
                cx.proceed()?;
                let lsn = self.log.append(&[Record::InPlace { ino, slow: stat.file(), mtime }])?; // 1
                st.overtake(ino, lsn, mtime);
            }
        }
        let set = fd.set_attr(&NewAttr { mtime: Some(mtime), ..NewAttr::default() }); // 2
        self.state.lock().written_in_place(ino, self.uptime());
        set.at("set the time of a write in place on slow", format_args!("inode {ino}"))
    }

    /// Brings the file into a state in which its bytes may change. The numbers are the steps in the module's comment.
    pub(crate) fn make_writable(&self, cx: &Cx, state: &Arc<FileState>) -> Result<()> {
        self.log.check_writable()?;
        let place = self.shared(cx, state)?.place;
        if !matches!(place, Bytes::Object(_)) {
            return self.copy_up(cx, state, u64::MAX);
        }
        let mut io = self.exclusive(cx, state)?;
        let Some(object) = io.object() else { return Ok(()) };
        if io.fd.is_none() {
            io.fd = Some(self.open_object(cx, object)?);
        }
        if io.dirty {
            if io.mtime_set_since_bind {
                self.log_bind(cx, &mut self.state.lock(), state, object, 0)?;
                io.mtime_set_since_bind = false;
            }
            return Ok(());
        }
        cx.proceed()?;
        let kept = io.latest.as_ref().map(|latest| latest.size).or(io.clean().map(|clean| clean.size)).unwrap_or(0);
        if io.clean().is_some()
            && let Some(fd) = &io.fd
        {
            Pool::clear_clean(&**fd).at_fast("remove the fingerprint of", label(object))?; // 1
            io.unset_clean();
        }
        if io.latest.is_some() && self.state.lock().view.path(state.ino).is_none() {
            if state.is_pinned() {
                // The kernel goes on in this object. The pending versions are not needed: they end with the last name.
                self.invalidate(state, &io, 0)?;
                io.dirty = true;
                return Ok(());
            }
            // Without a name no record can bind the file to the object: keep the pending version as it is.
            drop(io);
            return self.leave_object(cx, state, object);
        }
        let is_pending = || io.pending_versions.iter().any(|content| content.is_alive());
        if self.order.is_shared() && !left_out!(KeepPending) && is_pending() {
            // An invalidated version is published together with its successor, and the gate would have to let both go
            // at once: two members could wait for each other for ever. So keep the version and move the file to a new
            // object. Copied versions, too: a start deletes the copy.
            drop(io);
            return self.leave_object(cx, state, object);
        }
        if object.needs_slow() {
            let is_of = |content: &Content| content.object() == object;
            let stays = |latest: &Content| is_of(latest) && (latest.is_copied() || latest.size == 0);
            if io.latest.as_ref().is_some_and(|latest| stays(latest)) {
                // It is about to be published by renaming this very file, so it must not change any more. Nor may an
                // empty version: no record could say which of its bytes changed.
                drop(io);
                return self.leave_object(cx, state, object);
            }
            self.write_attrs_back(state.ino, &mut io)?;
            // No version in this object survives the next byte.
            self.invalidate(state, &io, 0)?; // 3
            io.pending_versions.iter().filter(|content| is_of(content)).for_each(|content| content.lose());
        }
        let mut st = self.state.lock();
        st.clean.remove(state.ino);
        if !left_out!(Bind) {
            self.log_bind(cx, &mut st, state, object, kept)?; // 2
        }
        io.dirty = true;
        io.mtime_set_since_bind = false;
        Ok(())
    }

    /// Logs that the file's bytes are in this object and ahead of its events. A file without a name needs no record: it
    /// ends with its last handle. `kept`: how many of the bytes are not new.
    pub(crate) fn log_bind(
        &self,
        cx: &Cx,
        st: &mut EngineState,
        state: &FileState,
        object: ObjectId,
        kept: u64,
    ) -> Result<()> {
        let ino = state.ino;
        let Some(path) = st.view.path(ino) else { return Ok(()) };
        self.room_for_event(cx, st)?;
        let bind = Record::Bind { path: path.into(), ino, object };
        let records: Vec<Record> = st.before_bind(ino).chain([bind]).collect();
        let lsn = self.log.append(&records)?;
        let now = self.uptime();
        if !st.uncommitted.has(ino) {
            state.begin_version(kept);
        }
        st.uncommitted.bind(ino, lsn, object, now);
        st.uncommitted.start(ino, cx.uid, self.stamp_of_now());
        Ok(())
    }

    /// Sets the file's length, for ftruncate and O_TRUNC.
    pub(crate) fn truncate(&self, cx: &Cx, state: &Arc<FileState>, size: u64) -> Result<()> {
        self.admit_size(cx, size)?;
        state.at_work().begin(cx.process(), false);
        let (place, fresh) = {
            let io = self.shared(cx, state)?;
            (io.place, io.dirty && io.latest.is_none())
        };
        match place {
            Bytes::Object(_) if size > 0 || fresh || state.is_pinned() => {
                self.change(cx, state, size, size..size, |fd| fd.set_len(size))
            }
            Bytes::Object(object) => {
                let (id, fd) = self.new_object(cx, &self.birth_like(cx, state)?, 0, || self.path(state.ino))?;
                let installed = self.install(cx, state, (id, 0), fd, |io| io.object() == Some(object));
                if !matches!(installed, Ok(true)) {
                    self.remove_object(id);
                }
                if installed? { Ok(()) } else { self.truncate(cx, state, size) }
            }
            Bytes::Slow | Bytes::InPlace => {
                self.copy_up(cx, state, size)?;
                self.change(cx, state, size, size..size, |fd| fd.set_len(size))
            }
        }
    }

    pub fn seek(&self, cx: &Cx, file: &OpenFile, what: Seek, offset: u64) -> Result<u64> {
        let (fd, on_fast) = self.readable(cx, file)?;
        if !on_fast {
            cx.slow()?;
        }
        fd.seek(what, offset).at("seek", format_args!("inode {}", file.ino))
    }

    /// Copies between two open files. Returns the bytes copied; fewer than asked at the end of the source.
    pub fn copy_range(
        &self,
        cx: &Cx,
        from: &OpenFile,
        from_offset: u64,
        to: &OpenFile,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let mut buf = vec![0; len.min(CHUNK as u64) as usize];
        let mut done = 0;
        while done < len {
            let want = buf.len().min((len - done) as usize);
            let piece = buf.get_mut(..want).unwrap_or_default();
            let got = self.read(cx, from, piece, from_offset + done)?;
            if got == 0 {
                break;
            }
            self.write(cx, to, piece.get(..got).unwrap_or_default(), to_offset + done, false)?;
            done += got as u64;
        }
        Ok(done)
    }
}
