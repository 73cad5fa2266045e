//! Opening, reading and writing: which file on which tier gets the bytes, and how a file moves between tiers.
//!
//! A write goes to the object that the inode has *now*. Before the first byte after a commit changes
//! ([`Tiers::make_writable`]):
//!
//! 1. remove a clean object's fingerprint, durably (P6);
//! 2. log `bind`: the file's bytes are ahead of its events (P3);
//! 3. if the byte belongs to a pending version, log `invalidate`: this version no longer exists. The record is made durable
//!    if the version may count as sealed ([`Tiers::invalidate`], P4);
//! 4. write the byte.
//!
//! A slow file is copied up at its first write, not at its open. One that is too large, has several names or is pinned
//! (the kernel reads it directly) is written in place. A file that stops fitting on fast continues on slow from that
//! point. O_TRUNC starts a new object, so the previous version stays whole until the new one is closed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Context, Errno, Error, Result};
use crate::tiers::copies::index::{become_object, path_then};
use crate::tiers::disk::errors::{absent_is_none, has_no_such_room, is_broken, is_full};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::{Access, Allocate, File, Kind, NewAttr, Seek, Stat};
use crate::tiers::log::record::{Home, ObjectId, Record};
use crate::tiers::model::node::{NodeAttrs, ObservedAt};
use crate::tiers::model::state::EngineState;
use crate::tiers::model::view::LookupStart;
use crate::tiers::objects::attrs::{Birth, dress, own_xattrs, travels};
use crate::tiers::objects::copy::{CHUNK, copy_bytes, copy_data};
use crate::tiers::objects::file::{Bytes, FileState, Io, Pin};
use crate::tiers::objects::pool::{Named, Pool, label, tmp_name};
use crate::tiers::objects::slow_tier::SlowId;
use crate::tiers::objects::split::Split;
use crate::tiers::objects::version::Content;
use crate::tiers::{Cx, Ino, OpenFile, OpenMode, Tiers};

/// Writeback of a large file to the fast disk begins after each such number of bytes.
const PIECE: u64 = 8 << 20;
/// How many pieces may wait for that.
const BEHIND_MAX: usize = 64;
/// How many of the 16 threads that answer requests may look for bytes and names in memory at the same time.
const AT_HAND_MAX: u32 = 4;
/// A range of an open file.
pub(crate) type Piece = (Arc<dyn File>, Range<u64>);
/// The share of the fast tier to keep free: 1/50. Below it new files go to the slow tier at once.
const FLOOR: u64 = 50;

impl Tiers {
    pub fn open(&self, cx: &Cx, ino: Ino, mode: OpenMode) -> Result<OpenFile> {
        self.note_use();
        let state = {
            let mut st = self.state.lock();
            let node = st.view.get_mut(ino).ok_or(Errno::ESTALE)?;
            if node.kind != Kind::File {
                return Err(Errno::EISDIR.into());
            }
            if node.is_unshown() {
                return Err(Errno::ESTALE.into());
            }
            node.pins += 1;
            let state = st.file(ino).ok_or(Errno::ESTALE)?;
            self.count_open(&state);
            state
        };
        let file = self.hold_open(state, mode);
        match self.prepare_open(cx, &file.state, mode).and_then(|()| Ok(file.expect_same()?)) {
            Ok(()) => Ok(file),
            Err(e) => {
                if mode.write {
                    file.state.writers.fetch_sub(1, Ordering::AcqRel);
                }
                // Nothing was written through it, so this is not a close.
                self.release(cx, OpenFile { mode: OpenMode { write: false, ..mode }, ..file });
                if matches!(e.errno(), Errno::ENOENT | Errno::ESTALE) && cx.slow().is_ok() {
                    // For the kernel, which looks the name up once more.
                    self.look_again(ino);
                    return Err(Errno::ESTALE.into());
                }
                Err(e)
            }
        }
    }

    /// Counts an open of a file whose node is locked.
    pub(crate) fn count_open(&self, state: &FileState) {
        if state.opens.fetch_add(1, Ordering::AcqRel) == 0 {
            self.counters.open_files.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The handle of a file whose open count was raised under the state lock. It takes ownership of the state: another
    /// reference at the release would keep it in memory for good.
    pub(crate) fn hold_open(&self, state: Arc<FileState>, mode: OpenMode) -> OpenFile {
        if mode.write {
            state.open_to_write(self.uptime());
        }
        let replaced = state.replaced.load(Ordering::Acquire);
        OpenFile { ino: state.ino, mode, state, replaced, read: AtomicU64::new(0) }
    }

    fn prepare_open(&self, cx: &Cx, state: &Arc<FileState>, mode: OpenMode) -> Result<()> {
        self.open_bytes(cx, state, mode)?;
        if mode.write && state.is_pinned() { self.changed_unseen(cx, state) } else { Ok(()) }
    }

    /// Stores through a mapping of a pinned file bypass us: from a writer's open to its release the file counts as
    /// changed.
    pub(crate) fn changed_unseen(&self, cx: &Cx, state: &Arc<FileState>) -> Result<()> {
        if self.shared(cx, state)?.place != Bytes::InPlace {
            self.make_writable(cx, state)?;
        }
        let io = state.io.read();
        if io.object().is_some() {
            state.writes(None);
            self.invalidate(state, &io, 0)?;
        } else {
            self.state.lock().written_in_place(state.ino, self.uptime());
        }
        Ok(())
    }

    fn open_bytes(&self, cx: &Cx, state: &Arc<FileState>, mode: OpenMode) -> Result<()> {
        self.revalidate(cx, state)?;
        if mode.write {
            self.leave_shared(cx, state)?;
        }
        if mode.truncate {
            self.truncate(cx, state, 0)?;
        }
        self.attach_copy(cx, state)?;
        let place = self.shared(cx, state)?.place;
        let has_fd = || {
            let io = state.io.read();
            io.fd.is_some() || io.copy.is_some()
        };
        if has_fd() {
            return Ok(());
        }
        match place {
            Bytes::Object(object) => {
                let fd = match self.open_object(cx, object) {
                    // Published meanwhile.
                    Err(e) if e.errno() == Errno::ENOENT && state.io.read().object() != Some(object) => {
                        return self.open_bytes(cx, state, OpenMode { truncate: false, ..mode });
                    }
                    other => other?,
                };
                let mut io = state.io.write();
                if io.object() == Some(object) && io.fd.is_none() {
                    io.fd = Some(fd);
                }
            }
            Bytes::Slow | Bytes::InPlace => {
                let fd = self.open_slow(cx, state.ino, Access::Read)?;
                let mut io = state.io.write();
                if io.object().is_none() && io.fd.is_none() && io.copy.is_none() {
                    io.fd = Some(fd);
                }
            }
        }
        if has_fd() { Ok(()) } else { self.open_bytes(cx, state, OpenMode { truncate: false, ..mode }) }
    }

    /// Pins the file's bytes where they are, for the kernel to read them there directly. With `quiet`, only if no one
    /// writes and no byte is ahead of the order; without, only if they are pinned already.
    pub fn pin(&self, ino: Ino, quiet: bool) -> Option<Pin> {
        let state = self.state.lock().known_file(ino)?;
        if !quiet {
            // Pinned already, so the bytes do not move, whoever holds the lock. It must not fail: the kernel refuses an
            // open that takes another path than those before.
            return state.is_pinned().then(|| state.pin());
        }
        let io = state.io.try_read()?;
        // The kernel cannot read a file in two parts directly.
        let whole = io.place != Bytes::InPlace && io.object().is_none_or(|object| object.head().is_none());
        let settled = !io.dirty && whole && state.writers.load(Ordering::Acquire) == 0;
        settled.then(|| state.pin())
    }

    /// The descriptor that a pinned file is read from. It waits for the lock, because the descriptor exists: without it
    /// the open would take another path than those before, which the kernel refuses. No one holds the lock of a pinned
    /// file across a slow call.
    pub fn backing(&self, file: &OpenFile) -> Option<Arc<dyn File>> {
        let io = file.state.io.read();
        io.copy.as_ref().map(|copy| &copy.fd).or(io.fd.as_ref()).cloned()
    }

    /// Whether no one has changed the bytes behind the mount since the previous call, at the open before.
    pub fn unchanged_since_open(&self, file: &OpenFile) -> bool {
        let now = file.state.changes.load(Ordering::Acquire) + 1;
        file.state.changes_opened.swap(now, Ordering::AcqRel) == now
    }

    /// P11: compares a clean object with its slow file, at most every `revalidate`. A slow file changed by someone else
    /// is the newer version: the object is dropped. With the slow tier down the fast copy is served.
    fn revalidate(&self, cx: &Cx, state: &Arc<FileState>) -> Result<()> {
        let (fingerprint, checked) = {
            let io = self.shared(cx, state)?;
            (io.clean(), io.checked())
        };
        let Some(fingerprint) = fingerprint else { return Ok(()) };
        if state.is_pinned() || self.slow.is_down() {
            return Ok(());
        }
        let is_young = self.uptime().saturating_sub(checked) < self.options().revalidate;
        let to_compare = self.fleet.is_some() && self.state.lock().view.is_to_compare(state.ino);
        if is_young && !to_compare {
            return Ok(());
        }
        cx.slow()?;
        // Before the slow tier is asked: what somebody publishes meanwhile is compared at the next open.
        self.state.lock().view.set_to_compare(state.ino, false);
        let compared = self.compare_with_slow(state, fingerprint);
        if compared.is_err() {
            self.state.lock().view.set_to_compare(state.ino, to_compare);
        }
        compared
    }

    /// Another member of the fleet has changed the file, so its object may have old attributes, too. While it is open it
    /// keeps its object: the slow tier may not have the file any more.
    pub(crate) fn compare_if_told(&self, cx: &Cx, state: &Arc<FileState>) -> Result<()> {
        let is_told = self.fleet.is_some()
            && state.opens.load(Ordering::Acquire) == 0
            && self.state.lock().view.is_to_compare(state.ino);
        if is_told { self.revalidate(cx, state) } else { Ok(()) }
    }

    fn compare_with_slow(&self, state: &Arc<FileState>, fingerprint: Fingerprint) -> Result<()> {
        let asked = self.state.lock().view.asked(self.uptime());
        let found = match self.at_slow(state.ino, |path, id| self.slow.stat_of(path, id)) {
            Err(e) if e.raw_os_error() == Some(Errno::ESTALE as i32) => return Ok(()),
            found => absent_is_none(found).at("stat on slow", self.label(state.ino))?,
        };
        let same = found.as_ref().is_some_and(|stat| Fingerprint::of(stat) == fingerprint);
        let mut io = state.io.write();
        if io.clean() != Some(fingerprint) || state.is_pinned() {
            return Ok(());
        }
        io.set_checked(self.uptime());
        if same {
            return Ok(());
        }
        let mut st = self.state.lock();
        // An event of ours in progress changes the slow stat too; publishing renews the fingerprint when it is done.
        let under_way = |ino| st.view.get(ino).is_none_or(|node| node.pins > state.opens.load(Ordering::Acquire));
        if under_way(state.ino) || st.view.in_tmp.contains(&state.ino) {
            return Ok(());
        }
        tracing::info!(path = %self.label_in(&st, state.ino), "changed on the slow tier by somebody else; the fast copy is dropped");
        self.drop_clean(&mut st, state, &mut io);
        state.changes.fetch_add(1, Ordering::AcqRel);
        if let Some(stat) = found
            && stat.kind == Kind::File
        {
            adopt(&mut st, state.ino, &stat, asked);
        }
        Ok(())
    }

    /// A clean file with names that were never looked up is written in place: a new version of it would not reach them.
    fn leave_shared(&self, cx: &Cx, state: &Arc<FileState>) -> Result<()> {
        let shared = |st: &EngineState| {
            st.view
                .get(state.ino)
                .is_some_and(|node| node.meta().nlink as usize > node.links.len() && !node.slow().is_empty())
        };
        if !shared(&self.state.lock()) || self.shared(cx, state)?.clean().is_none() {
            return Ok(());
        }
        let mut io = state.io.write();
        let (Some(fingerprint), Some(object)) = (io.clean(), io.object()) else { return Ok(()) };
        let shown = self.pool.stat(object.number).at_fast("stat", label(object))?;
        let mut st = self.state.lock();
        if shared(&st) && !state.is_pinned() {
            self.remember_attrs(&mut st, state.ino, &shown, fingerprint);
            self.drop_clean(&mut st, state, &mut io);
        }
        Ok(())
    }

    /// Opens the slow file of this inode, checking that it is the same one.
    pub(crate) fn open_slow(&self, cx: &Cx, ino: Ino, access: Access) -> Result<Arc<dyn File>> {
        for _ in 0..3 {
            let (id, place, asked) = {
                let st = self.state.lock();
                let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
                let id = node.slow_id().ok_or(Errno::ESTALE)?;
                (id, node.slow().first().cloned(), st.view.asked(self.uptime()))
            };
            if let Err(why) = cx.slow() {
                // A caller that may wait finds out what else is there.
                let at_hand = place.filter(|_| access == Access::Read);
                let at_hand = at_hand
                    .and_then(|(dir, name)| self.at_hand(|| self.slow.open_at_hand(dir, name.as_bytes())))
                    .filter(|(_, stat)| stat.kind == Kind::File && (stat.dev, stat.ino) == id);
                let (fd, stat) = at_hand.ok_or(why)?;
                self.opened_slow(cx, ino, &stat, asked);
                return Ok(fd);
            }
            let opened = self.at_slow(ino, |path, id| self.slow.open_of(path, id, access));
            let (fd, stat) = match opened {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.at("open on slow", self.label(ino))?,
            };
            if (stat.dev, stat.ino) == id {
                self.opened_slow(cx, ino, &stat, asked);
                return Ok(fd);
            }
            self.adopt_replacement(ino, id, &stat, asked);
        }
        Err(Errno::ESTALE.into())
    }

    /// Asks for what lies in memory, in a thread that has a request and must not wait. What may be waited for all the same
    /// (`Dir::open_at_hand`, `disk/page_cache.rs`) takes [`AT_HAND_MAX`] of these threads at most: with so many, `None`.
    fn at_hand<T>(&self, ask: impl FnOnce() -> Option<T>) -> Option<T> {
        let before = self.calls.at_hand.fetch_add(1, Ordering::Relaxed);
        let found = if before < AT_HAND_MAX { ask() } else { None };
        self.calls.at_hand.fetch_sub(1, Ordering::Relaxed);
        found
    }

    /// The slow file is open, and these are its attributes.
    fn opened_slow(&self, cx: &Cx, ino: Ino, stat: &Stat, asked: LookupStart) {
        cx.used_slow.store(true, Ordering::Relaxed);
        let mut st = self.state.lock();
        let applied = st.queue.applied();
        st.view.refresh(ino, stat, asked, applied);
    }

    /// Another file stands under a slow-only file's name: the view follows, unless publishing made the change.
    fn adopt_replacement(&self, ino: Ino, old: SlowId, stat: &Stat, asked: LookupStart) {
        let mut st = self.state.lock();
        let known = st.view.at_slow((stat.dev, stat.ino)).is_some();
        let Some(node) = st.view.get_mut(ino) else { return };
        if node.slow_id() == Some(old) && !node.moved() && !known {
            node.changed_behind();
            adopt(&mut st, ino, stat, asked);
        }
    }

    /// The descriptor of the file that holds the bytes, and whether it is on fast. It outlives the file's lock.
    fn readable(&self, cx: &Cx, file: &OpenFile) -> Result<(Arc<dyn File>, bool)> {
        for _ in 0..3 {
            let io = self.shared(cx, &file.state)?;
            file.expect_same()?;
            if let Some(copy) = &io.copy {
                return Ok((copy.fd.clone(), true));
            }
            if let Some(fd) = io.fd.clone() {
                return Ok((fd, io.object().is_some_and(|object| object.home == Home::Fast)));
            }
            drop(io);
            // The object was dropped since it was opened.
            self.open_bytes(cx, &file.state, OpenMode { read: true, ..OpenMode::default() })?;
        }
        Err(Errno::EIO.into())
    }

    /// Fills `buf`; a short count means end of file.
    pub fn read(&self, cx: &Cx, file: &OpenFile, buf: &mut [u8], offset: u64) -> Result<usize> {
        let (fd, on_fast) = self.readable(cx, file)?;
        if !on_fast {
            if let Err(why) = cx.slow() {
                // What lies in memory is read by the thread that has the request.
                let got = self.at_hand(|| fd.read_at_hand(buf, offset)).ok_or(why)?;
                cx.used_slow.store(true, Ordering::Relaxed);
                file.read.fetch_add(got as u64, Ordering::Relaxed);
                return Ok(got);
            }
            self.counters.read_from_slow(self.uptime());
        }
        match fd.read_at(buf, offset) {
            Err(error) if self.give_up_copy(&file.state, &error)? => self.read(cx, file, buf, offset),
            Err(error) if on_fast && self.give_up_object(cx, &file.state, &error)? => self.read(cx, file, buf, offset),
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

    /// Called when a read of a file on the fast tier failed. If the slow tier has the same version, the file is read
    /// from there from now on: `true`. As at every eviction the fingerprint is compared once more (P6): if the slow
    /// file is gone, an object with one bad spot is all that is left.
    fn give_up_object(&self, cx: &Cx, state: &FileState, error: &std::io::Error) -> Result<bool> {
        let fingerprint =
            state.io.read().clean().filter(|_| is_broken(error) && !state.is_pinned() && !self.slow.is_down());
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

    /// Writes all or fails. `kill_privileges`: clear suid and sgid, as POSIX asks of a write by an unprivileged
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

    /// Starts writeback of written data to the fast disk while the program writes on, so that its fsync has little left
    /// to wait for. The background does it, because the disk's queue may block. If many pieces wait already, they are
    /// left to the fsync.
    fn write_behind(&self, state: &FileState, written: Range<u64>) {
        let pieces = written.start / PIECE * PIECE..written.end / PIECE * PIECE;
        if pieces.is_empty() {
            return;
        }
        let on_fast = |io: &Io| io.object().is_some_and(|object| object.home == Home::Fast);
        let io = state.io.read();
        let Some(fd) = io.fd.clone().filter(|_| on_fast(&io)) else { return };
        drop(io);
        let mut behind = self.calls.behind.lock();
        if behind.len() < BEHIND_MAX {
            behind.push_back((fd, pieces));
            drop(behind);
            self.wake();
        }
    }

    /// Has the fast disk begin with the data written to large files since.
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
        // Space without a change of bytes invalidates no version.
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
                    state.writes(cx.table);
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
                    self.counters.in_place_writes.fetch_add(1, Ordering::Relaxed);
                    let overtakes = self.state.lock().awaits_times(state.ino);
                    let done = act(&*fd).and_then(|()| fd.stat());
                    // Also if it failed: some of it may be there, and must be durable before anyone is told that all
                    // is.
                    self.state.lock().written_in_place(state.ino, self.uptime());
                    let done = done.at("write in place on slow", format_args!("inode {}", state.ino));
                    return done.and_then(|stat| self.changed_in_place(cx, state, &*fd, &stat, overtakes));
                }
                _ => {}
            }
            drop(io);
            self.make_writable(cx, state)?;
        }
    }

    /// Before bytes from `from` on change: invalidates the versions that contain them. The caller holds `io`, shared or
    /// not.
    fn invalidate(&self, state: &FileState, io: &Io, from: u64) -> Result<()> {
        let Some(object) = io.object().filter(|_| state.is_guarded(from)) else { return Ok(()) };
        let broken = || io.pending_versions.iter().filter(|content| content.is_alive() && from < content.size);
        if broken().next().is_some() && !left_out!(Invalidate) {
            let lsn = self.log.append(&[Record::Invalidate { ino: state.ino, object, from }])?;
            // Checked after the append: a seal that is logged later is not durable without this record.
            if broken().any(|content| content.is_sealing()) && !left_out!(InvalidateDurable) {
                self.log.sync(lsn)?;
            }
        }
        state.invalidate(io, from);
        Ok(())
    }

    /// After a write in place: the view takes over the attributes of the slow file. A pending change of its times
    /// (`overtakes`) is older than the write and would undo its mtime. The write is not an event, and its time cannot
    /// be one either: behind that change it might find the file under no name. So the pending change gets another
    /// meaning:
    ///
    /// 1. log `overtaken`: from here on the change sets the time of the write, whoever applies it, even after a crash;
    /// 2. set the time again, because the change may have been applied since the bytes changed. Publishing looks for 1
    ///    after each change.
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
        // Of two writers, the one whose time is last in the log sets it last.
        let _io = state.io.write();
        {
            let mut st = self.state.lock();
            if let Some(node) = st.view.get_mut(ino) {
                node.change_meta(|meta| meta.mtime = mtime);
            }
            if st.awaits_times(ino) {
                cx.proceed()?;
                let lsn = self.log.append(&[Record::InPlace { ino, slow: stat.ino, mtime }])?; // 1
                st.overtake(ino, lsn, mtime);
            }
        }
        let set = fd.set_attr(&NewAttr { mtime: Some(mtime), ..NewAttr::default() }); // 2
        self.state.lock().written_in_place(ino, self.uptime());
        set.at("set the time of a write in place on slow", format_args!("inode {ino}"))
    }

    /// Brings the file into a state in which its bytes may change (for the numbers see the module).
    pub(crate) fn make_writable(&self, cx: &Cx, state: &Arc<FileState>) -> Result<()> {
        self.log.takes_records()?;
        let place = self.shared(cx, state)?.place;
        if !matches!(place, Bytes::Object(_)) {
            return self.copy_up(cx, state, u64::MAX);
        }
        let mut io = state.io.write();
        let Some(object) = io.object() else { return Ok(()) };
        if io.fd.is_none() {
            io.fd = Some(self.open_object(cx, object)?);
        }
        if io.dirty {
            if io.mtime_set_since_bind {
                self.log_bind(&mut self.state.lock(), state.ino, object)?;
                io.mtime_set_since_bind = false;
            }
            return Ok(());
        }
        cx.proceed()?;
        if io.clean().is_some()
            && let Some(fd) = &io.fd
        {
            Pool::clear_clean(&**fd).at_fast("remove the fingerprint of", label(object))?; // 1
            io.unset_clean();
        }
        if io.latest.is_some() && self.state.lock().view.path(state.ino).is_none() {
            // Without a name no record can say that a pending version has changed: it stays as it is.
            drop(io);
            return self.leave_object(cx, state, object);
        }
        let is_pending = || io.pending_versions.iter().any(|content| content.is_alive());
        if self.fleet.is_some() && !left_out!(KeepPending) && is_pending() {
            // A version that no longer exists is published together with its successor, and the gate would have to let
            // both go at once: two members could wait for each other for ever. So it stays, and the file moves on. Also
            // if it is copied: a start deletes the copy.
            drop(io);
            return self.leave_object(cx, state, object);
        }
        if object.needs_slow() {
            let is_of = |content: &Content| content.object() == object;
            let stays = |latest: &Content| is_of(latest) && (latest.is_copied() || latest.size == 0);
            if io.latest.as_ref().is_some_and(|latest| stays(latest)) {
                // It is about to be published by renaming this very file: from here on it does not change any more.
                // Neither does an empty one: no record could say which of its bytes changed.
                drop(io);
                return self.leave_object(cx, state, object);
            }
            self.give_attrs(state.ino, &mut io)?;
            // No version of it survives the next byte.
            self.invalidate(state, &io, 0)?; // 3
            io.pending_versions.iter().filter(|content| is_of(content)).for_each(|content| content.lose());
        }
        let mut st = self.state.lock();
        st.clean.remove(state.ino);
        if !left_out!(Bind) {
            self.log_bind(&mut st, state.ino, object)?; // 2
        }
        io.dirty = true;
        io.mtime_set_since_bind = false;
        Ok(())
    }

    /// Moves on to a new object with the same bytes.
    pub(crate) fn leave_object(&self, cx: &Cx, state: &Arc<FileState>, object: ObjectId) -> Result<()> {
        let source = {
            // Under the lock: an object on the slow tier is not handed over meanwhile.
            let io = self.shared(cx, state)?;
            if io.object() != Some(object) {
                return Ok(());
            }
            self.fd(cx, &io, object)?
        };
        let size = source.stat().at("stat", label(object))?.size;
        let (id, fd) = self.copy_of(cx, state, &*source, size)?;
        let installed = self.install(cx, state, id, fd, |io| io.object() == Some(object) && !io.dirty);
        if !matches!(installed, Ok(true)) {
            self.remove_object(id);
        }
        installed.map(|_| ())
    }

    /// Logs that the file's bytes are this object and ahead of its events. A file without a name needs no record: it
    /// ends with its last handle.
    fn log_bind(&self, st: &mut EngineState, ino: Ino, object: ObjectId) -> Result<()> {
        let Some(path) = st.view.path(ino) else { return Ok(()) };
        self.room_for_event(st)?;
        let bind = Record::Bind { path, ino, object };
        let records: Vec<Record> = st.before_bind(ino).chain([bind]).collect();
        let lsn = self.log.append(&records)?;
        let now = self.uptime();
        st.uncommitted.bind(ino, lsn, object, now);
        st.uncommitted.start(ino, self.stamp_of_now());
        Ok(())
    }

    /// Gives a slow-only file an object with its first `keep` bytes, or has it written in place.
    fn copy_up(&self, cx: &Cx, state: &Arc<FileState>, keep: u64) -> Result<()> {
        if keep > 0 && self.adopt_copy(cx, state)? {
            return Ok(());
        }
        cx.slow()?;
        let held = state.io.read().fd.clone();
        let (source, named) = match (self.open_slow(cx, state.ino, Access::Read), held) {
            (Ok(source), _) => (source, 1),
            // The name it was opened by is gone; names that were never looked up may be left.
            (Err(e), Some(held)) if e.errno() == Errno::ESTALE => (held, 0),
            (Err(e), _) => return Err(e),
        };
        let stat = source.stat().at("stat on slow", self.label(state.ino))?;
        let keep = keep.min(stat.size);
        let in_place = keep > self.options().copy_up_max || state.is_pinned();
        if stat.nlink > named || (stat.nlink > 0 && in_place) {
            let fd = source.reopen().at("open for writing on slow", self.label(state.ino))?;
            let mut io = state.io.write();
            if io.object().is_none() {
                self.forget_copy_durably(state.ino)?;
                io.place = Bytes::InPlace;
                io.fd = Some(fd);
            }
            return Ok(());
        }
        let (object, fd) = self.copy_of(cx, state, &*source, keep)?;
        let times = NewAttr { mtime: Some(stat.mtime), atime: Some(stat.atime), ..NewAttr::default() };
        let installed = fd
            .set_attr(&times)
            .at("copy up", self.label(state.ino))
            .and_then(|()| self.install(cx, state, object, fd, |io| io.object().is_none()));
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
            // Its object was on the slow tier, and someone else has removed it.
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

    /// Makes `object` the file's bytes, ahead of its events. `false`: `expected` no longer holds, nothing was done.
    fn install(
        &self,
        cx: &Cx,
        state: &Arc<FileState>,
        object: ObjectId,
        fd: Arc<dyn File>,
        expected: impl Fn(&Io) -> bool,
    ) -> Result<bool> {
        let mut io = state.io.write();
        if !expected(&io) {
            return Ok(false);
        }
        self.rebind_to(cx, state, &io, object)?;
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

    /// Switches the log and the references to `object`; the caller, which holds `io`, switches that.
    pub(crate) fn rebind_to(&self, cx: &Cx, state: &FileState, io: &Io, object: ObjectId) -> Result<()> {
        cx.proceed()?;
        let mut st = self.state.lock();
        self.log_bind(&mut st, state.ino, object)?;
        st.objects.add(object);
        st.clean.remove(state.ino);
        if let Some(old) = io.object() {
            let lsn = self.log.last();
            st.objects.remove(old, lsn);
        }
        Ok(())
    }

    /// Creates an object for the file at `path`: on fast if `size` bytes fit there, else in the slow tier's `tmp` (P8).
    /// It goes there, too, if a rule keeps this path from being absorbed.
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
        if self.takes_new(size) {
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
        self.spill_object(cx, birth, number)
    }

    /// Whether a new object of this size belongs on the fast tier. A failing fast tier is better than an absent slow
    /// one.
    fn takes_new(&self, size: u64) -> bool {
        self.fits(size) && (!self.fast_fails() || self.slow.is_down())
    }

    /// Creates an object on the slow tier because it did not fit on fast.
    fn spill_object(&self, cx: &Cx, birth: &Birth, number: u64) -> Result<(ObjectId, Arc<dyn File>)> {
        let made = self.new_slow_object(cx, birth, number)?;
        self.counters.spilled.fetch_add(1, Ordering::Relaxed);
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

    /// As [`dress`], as far as the slow tier can hold it.
    fn dress_on_slow(&self, fd: &dyn File, birth: &Birth) -> std::io::Result<()> {
        if (birth.uid, birth.gid) != (0, 0) {
            let perm = (birth.perm & 0o6000 != 0).then_some(birth.perm);
            let owned = NewAttr { uid: Some(birth.uid), gid: Some(birth.gid), perm, ..NewAttr::default() };
            fd.set_attr(&self.slow.abilities.kept(&owned))?;
        }
        let left_out = self.slow.put_xattrs(&birth.xattrs, |key, value| fd.set_xattr(key, value))?;
        self.counters.left_out.fetch_add(left_out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the fast tier has room for this many bytes and some to spare.
    pub(crate) fn fits(&self, size: u64) -> bool {
        self.fast.space().is_ok_and(|space| space.avail.saturating_sub(size) > space.capacity() / FLOOR)
    }

    /// Called when a change of `object` found no room: evicts, or else splits the file there. `full` is the tier's
    /// error, returned if that tier is the slow one.
    fn make_room(
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
        if self.evict_for(span.end)? { Ok(()) } else { self.split(cx, state, object, span.start, full) }
    }

    /// Moves the bytes from `at` on to the slow tier's `tmp`:
    ///
    /// 1. make the tail, with the bytes that are already behind the point: none, if the file is written from beginning
    ///    to end. The bytes before the point stay where they are. A kill here leaves a tail that the next start
    ///    quarantines;
    /// 2. log a `bind` that names both parts;
    /// 3. let the file continue in both.
    fn split(&self, cx: &Cx, state: &FileState, object: ObjectId, at: u64, full: std::io::Error) -> Result<()> {
        let attr = self.getattr(cx, state.ino)?;
        let mut io = state.io.write();
        let (Some(source), true) = (io.fd.clone(), io.object() == Some(object)) else { return Ok(()) };
        let head = match object.home {
            Home::Split { head, .. } => head,
            _ => object.number,
        };
        if state.is_pinned() {
            return Err(Error::io("write", self.label(state.ino), full));
        }
        let birth = Birth { perm: attr.perm, uid: attr.uid, gid: attr.gid, xattrs: own_xattrs(&*source)? };
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
                self.rebind_to(cx, state, &io, id)?; // 2
                state.goes_on_in(&mut io, id, Arc::new(fd)); // 3
                Ok(())
            });
        if moved.is_err() {
            self.remove_object(tail);
        }
        moved
    }

    /// Sets the file's length, as ftruncate or O_TRUNC.
    pub(crate) fn truncate(&self, cx: &Cx, state: &Arc<FileState>, size: u64) -> Result<()> {
        self.admit_size(cx, size)?;
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
                let installed = self.install(cx, state, id, fd, |io| io.object() == Some(object));
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

    /// Copies between two open files; returns the bytes copied, fewer than asked at the end of the source.
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
            let got = self.read(cx, from, &mut buf[..want], from_offset + done)?;
            if got == 0 {
                break;
            }
            self.write(cx, to, &buf[..got], to_offset + done, false)?;
            done += got as u64;
        }
        Ok(done)
    }

    /// Turns the copy of a file into its object, for the first write:
    ///
    /// 1. relabel the copy as an object with a fingerprint, and sync label and bytes. A crash here leaves a file in
    ///    `staged` that is no copy, which the next start removes;
    /// 2. rename it into the pool. A crash here leaves an object with a fingerprint, which waits for its file like any
    ///    other;
    /// 3. give it the attributes that the view shows, and remove its fingerprint, durably (P6);
    /// 4. log `bind`: the file's bytes are in this object, ahead of its events.
    ///
    /// Readers of the copy, including the kernel, continue in the same file. `false`: there is no copy.
    fn adopt_copy(&self, cx: &Cx, state: &Arc<FileState>) -> Result<bool> {
        if state.io.read().copy.is_none() {
            return Ok(false);
        }
        let (birth, attr) = (self.birth_like(cx, state)?, self.getattr(cx, state.ino)?);
        let mut io = state.io.write();
        let (Some(copy), Bytes::Slow) = (io.copy.clone(), io.place) else { return Ok(false) };
        let object = ObjectId { home: Home::Fast, number: self.pool.number() };
        let label = || self.label(state.ino);
        // For a removed file use the name it had, for the next step only: no record binds it.
        let path = self.path(state.ino).map_or_else(|| path_then(&*copy.fd), |path| Ok(Some(path)));
        let path = path.at_fast("read the name of the staged copy of", label())?.ok_or(Errno::ESTALE)?;
        become_object(&copy, Named { lsn: 0, ino: state.ino, path }).at_fast("take the staged copy of", label())?; // 1
        let taken = absent_is_none(self.copies.hand_over(copy.number, &self.pool, object.number)); // 2
        if taken.at_fast("take the staged copy of", label())?.is_none() {
            io.copy = None;
            return Ok(false);
        }
        let fd = copy.fd.reopen().at_fast("open the staged copy of", label())?;
        let times =
            NewAttr { perm: Some(birth.perm), mtime: Some(attr.mtime), atime: Some(attr.atime), ..NewAttr::default() };
        let dressed = dress(&*fd, &birth); // 3
        if dressed.as_ref().is_err_and(|e| is_full(e) || has_no_such_room(e)) {
            // The attributes only fit on the slow tier, so their file goes there too. Readers of the copy go on.
            io.copy = None;
            drop(io);
            self.set_staged(state.ino, false);
            self.remove_object(object);
            return Ok(false);
        }
        let taken = dressed.and_then(|()| fd.set_attr(&times)).and_then(|()| Pool::clear_clean(&*fd));
        let bound = taken.at_fast("take the staged copy of", label()).and_then(|()| {
            self.rebind_to(cx, state, &io, object) // 4
        });
        if let Err(e) = bound {
            // Readers go on; the file is the slow one, as before.
            self.remove_object(object);
            return Err(e);
        }
        state.place(&mut io, Bytes::Object(object), Some(fd));
        io.dirty = true;
        drop(io);
        self.set_staged(state.ino, false);
        Ok(true)
    }
}

/// From here on the inode is the file that someone else has put there.
fn adopt(st: &mut EngineState, ino: Ino, stat: &Stat, asked: LookupStart) {
    let (id, applied) = ((stat.dev, stat.ino), st.queue.applied());
    let Some(node) = st.view.get_mut(ino) else { return };
    if node.slow_id() != Some(id) {
        node.replaced_behind();
    }
    node.ours = false;
    node.seen = ObservedAt::NEVER;
    st.view.set_slow_id(ino, Some(id));
    st.view.refresh(ino, stat, asked, applied);
}
