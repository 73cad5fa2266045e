//! Opening a file: the descriptor of the file that holds its bytes, on fast or on slow, and whether the fast copy is
//! still the file that the slow tier has (P11).
//!
//! What is in the page or dentry cache is opened by the thread that has the request; everything else on slow is opened
//! by a thread that may wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Context, Errno, Result};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::{Access, File, Kind, SlowId, Stat};
use crate::tiers::fleet::appends::AppendClaim;
use crate::tiers::log::record::{Home, Owned};
use crate::tiers::model::node::ObservedAt;
use crate::tiers::model::state::EngineState;
use crate::tiers::model::view::LookupStart;
use crate::tiers::objects::file::{Bytes, FileState, Pin};
use crate::tiers::objects::pool::label;
use crate::tiers::{Cx, Ino, Lsn, MAPPING, OpenFile, OpenMode, ROOT, Tiers};

/// How many of the 16 threads that answer requests may probe the kernel's caches at the same time.
const AT_HAND_MAX: u32 = 4;

impl Tiers {
    pub fn open(&self, cx: &Cx, ino: Ino, mode: OpenMode) -> Result<OpenFile> {
        self.note_use();
        let claim = self.claim_append(cx, mode, || self.state.lock().view.path(ino), Some(ino))?;
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
        let file = OpenFile { claim, ..self.hold_open(state, mode) };
        match self.prepare_open(cx, &file.state, mode).and_then(|()| Ok(file.expect_same()?)) {
            Ok(()) => {
                if mode.write && self.was_never_complete(cx, &file.state)? {
                    file.state.at_work().begin(cx.process(), false);
                }
                Ok(file)
            }
            Err(e) => {
                if mode.write {
                    file.state.close_to_write();
                }
                // Nothing was written through it, so this is not a close.
                self.release(cx, OpenFile { mode: OpenMode { write: false, ..mode }, ..file });
                if matches!(e.errno(), Errno::ENOENT | Errno::ESTALE) && cx.slow().is_ok() {
                    // ESTALE makes the kernel look the name up again.
                    self.forget_seen(ino);
                    return Err(Errno::ESTALE.into());
                }
                Err(e)
            }
        }
    }

    /// Whether the file is new and never had a complete version.
    fn was_never_complete(&self, cx: &Cx, state: &FileState) -> Result<bool> {
        let is_new = {
            let io = self.shared(cx, state)?;
            io.uncommitted() && io.latest.as_ref().is_none_or(|latest| !latest.is_intact())
        };
        Ok(is_new && !self.is_on_slow(state.ino))
    }

    /// Whether the slow tier has the file.
    pub(crate) fn is_on_slow(&self, ino: Ino) -> bool {
        self.state.lock().view.get(ino).is_some_and(|node| node.slow_id().is_some())
    }

    /// Counts an open of a file whose node is locked.
    pub(crate) fn count_open(&self, state: &FileState) {
        if state.opens.fetch_add(1, Ordering::AcqRel) == 0 {
            self.counters.open_files.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The handle of a file whose open count was raised under the state lock. Takes ownership of the state: another
    /// reference at the release would keep it in memory for good.
    pub(crate) fn hold_open(&self, state: Arc<FileState>, mode: OpenMode) -> OpenFile {
        if mode.write {
            state.open_to_write(self.uptime());
        }
        let replaced = state.replaced.load(Ordering::Acquire);
        OpenFile { ino: state.ino, mode, state, claim: None, replaced, read: AtomicU64::new(0) }
    }

    /// In a fleet a file is open for appending on one member at a time: EBUSY if another member has it open, or has not
    /// published what it appended. `ino`: `None` if the file is about to be made.
    pub(crate) fn claim_append(
        &self,
        cx: &Cx,
        mode: OpenMode,
        path: impl FnOnce() -> Option<Vec<u8>>,
        ino: Option<Ino>,
    ) -> Result<Option<AppendClaim>> {
        if !mode.append || !mode.write || !self.order.is_shared() {
            return Ok(None);
        }
        // No other member can find a file without a name.
        let Some(path) = path() else { return Ok(None) };
        let claimed = self.order.claim_append(&path, ino.unwrap_or(ROOT), || cx.slow())?;
        // The last member that appended has published it, and what is known here may be older.
        if let Some((_, true)) = &claimed
            && let Some(ino) = ino.filter(|ino| self.is_on_slow(*ino))
        {
            self.forget_seen(ino);
        }
        Ok(claimed.map(|(claim, _)| claim))
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
        let io = self.shared(cx, state)?;
        if io.object().is_some() {
            state.at_work().begin(MAPPING, true);
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
        let has_fd = || self.shared(cx, state).map(|io| io.fd.is_some() || io.copy.is_some());
        if has_fd()? {
            return Ok(());
        }
        match place {
            Bytes::Object(object) => {
                let fd = match self.open_object(cx, object) {
                    // Published meanwhile.
                    Err(e) if e.errno() == Errno::ENOENT && self.shared(cx, state)?.object() != Some(object) => {
                        return self.open_bytes(cx, state, OpenMode { truncate: false, ..mode });
                    }
                    other => other?,
                };
                let mut io = self.exclusive(cx, state)?;
                if io.object() == Some(object) && io.fd.is_none() {
                    io.fd = Some(fd);
                }
            }
            Bytes::Slow | Bytes::InPlace => {
                let fd = self.open_slow(cx, state.ino, Access::Read)?;
                let mut io = self.exclusive(cx, state)?;
                if io.object().is_none() && io.fd.is_none() && io.copy.is_none() {
                    io.fd = Some(fd);
                }
            }
        }
        if has_fd()? { Ok(()) } else { self.open_bytes(cx, state, OpenMode { truncate: false, ..mode }) }
    }

    /// Pins the file's bytes where they are, for the kernel to read them directly. `quiet`: only if there is no writer
    /// and no byte is ahead of the order; otherwise only if they are pinned already.
    pub fn pin(&self, ino: Ino, quiet: bool) -> Option<Pin> {
        let state = self.state.lock().known_file(ino)?;
        if !quiet {
            // Pinned already, so the bytes do not move, and the lock is not needed. This must not fail: the kernel
            // refuses an open in another mode than the earlier ones.
            return state.is_pinned().then(|| state.pin());
        }
        let io = state.io.try_read()?;
        // The kernel cannot read a file in two parts directly; and a version in an object on the slow tier stays there
        // while the next write moves the file to a new object.
        let stays = io.place != Bytes::InPlace && io.object().is_none_or(|object| !object.needs_slow());
        let settled = !io.dirty && stays && state.writers.load(Ordering::Acquire) == 0;
        settled.then(|| state.pin())
    }

    /// The descriptor that a pinned file is read from. Waits for the lock: without the descriptor the open would take
    /// another mode than the earlier ones, which the kernel refuses. No caller holds the lock of a pinned file across a
    /// slow call.
    pub fn backing(&self, file: &OpenFile) -> Option<Arc<dyn File>> {
        let io = file.state.io.read();
        io.copy.as_ref().map(|copy| &copy.fd).or(io.fd.as_ref()).cloned()
    }

    /// Whether the bytes have had no foreign change since the previous call, at the open before.
    pub fn unchanged_since_open(&self, file: &OpenFile) -> bool {
        let now = file.state.changes.load(Ordering::Acquire) + 1;
        file.state.changes_opened.swap(now, Ordering::AcqRel) == now
    }

    /// P11: compares a clean object with its slow file, at most every `revalidate`. After a foreign change the slow
    /// file is the newer version: the object is dropped. With the slow tier down the fast copy is served.
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
        let to_compare = self.order.is_shared() && self.state.lock().view.is_to_compare(state.ino);
        if is_young && !to_compare {
            return Ok(());
        }
        cx.slow()?;
        // Before the slow tier is asked: a change published after that is compared at the next open.
        self.state.lock().view.set_to_compare(state.ino, false);
        let compared = self.compare_with_slow(state, fingerprint);
        if compared.is_err() {
            self.state.lock().view.set_to_compare(state.ino, to_compare);
        }
        compared
    }

    /// For a file that another member of the fleet has changed: its object may also have old attributes. An open file
    /// keeps its object: the slow tier may not have the file any more.
    pub(crate) fn compare_if_told(&self, cx: &Cx, state: &Arc<FileState>) -> Result<()> {
        let is_told = self.order.is_shared()
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
        let shown = io.object().and_then(|object| self.pool.stat(object.number).ok());
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
            let known = shown.map(|Stat { kind, uid, gid, .. }| Owned { kind, uid, gid });
            let is_other = known.is_some_and(|known| self.slow.abilities.owned(&stat, &known) != known);
            adopt(&mut st, state.ino, &stat, asked, is_other);
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
        let mut io = self.exclusive(cx, state)?;
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
                // A caller that may wait learns what else is there.
                let at_hand = place.filter(|_| access == Access::Read);
                let at_hand = at_hand
                    .and_then(|(dir, name)| self.at_hand(|| self.slow.open_at_hand(dir, name.as_bytes())))
                    .filter(|(_, stat)| stat.kind == Kind::File && stat.id() == id && self.has_its_owner(ino, stat));
                let (fd, stat) = at_hand.ok_or(why)?;
                self.opened_slow(cx, ino, &stat, asked);
                return Ok(fd);
            }
            let opened = self.at_slow(ino, |path, id| self.slow.open_of(path, id, access));
            let (fd, stat) = match opened {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                // EINVAL: not a regular file. A foreign change put a directory or a link there; the kernel is to look
                // the name up again.
                Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => break,
                other => other.at("open on slow", self.label(ino))?,
            };
            if stat.id() == id && self.has_its_owner(ino, &stat) {
                self.opened_slow(cx, ino, &stat, asked);
                return Ok(fd);
            }
            self.adopt_replacement(ino, id, &stat, asked);
        }
        Err(Errno::ESTALE.into())
    }

    /// Calls `ask`, which reads from the kernel's caches, in a thread that has a request and must not block. Some of
    /// these calls may block all the same (`Dir::open_at_hand`, `disk/page_cache.rs`), so at most [`AT_HAND_MAX`]
    /// threads make them; beyond that, `None`.
    pub(crate) fn at_hand<T>(&self, ask: impl FnOnce() -> Option<T>) -> Option<T> {
        let before = self.calls.at_hand.fetch_add(1, Ordering::Relaxed);
        let found = if before < AT_HAND_MAX { ask() } else { None };
        self.calls.at_hand.fetch_sub(1, Ordering::Relaxed);
        found
    }

    /// Records that the slow file was opened and has these attributes.
    fn opened_slow(&self, cx: &Cx, ino: Ino, stat: &Stat, asked: LookupStart) {
        cx.used_slow.store(true, Ordering::Relaxed);
        let mut st = self.state.lock();
        let applied = st.queue.applied();
        st.view.refresh(ino, stat, asked, applied);
    }

    /// Another file has the name of a slow-only file: the view follows, unless publishing made the change.
    fn adopt_replacement(&self, ino: Ino, old: SlowId, stat: &Stat, asked: LookupStart) {
        let mut st = self.state.lock();
        let known = st.view.at_slow((stat.dev, stat.ino)).is_some_and(|known| known != ino);
        let Some(node) = st.view.get_mut(ino) else { return };
        if node.slow_id() == Some(old) && !node.moved() && !known {
            node.changed_behind();
            adopt(&mut st, ino, stat, asked, true);
        }
    }

    /// The descriptor of the file that holds the bytes, and whether it is on fast. It stays valid after the file's lock
    /// is released.
    pub(crate) fn readable(&self, cx: &Cx, file: &OpenFile) -> Result<(Arc<dyn File>, bool)> {
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
            self.open_bytes(cx, &file.state, OpenMode::default())?;
        }
        Err(Errno::EIO.into())
    }
}

/// Makes the inode the file that a foreign change put there. `is_other`: it is certainly another file. Pending
/// attributes of the former file are not applied to it.
fn adopt(st: &mut EngineState, ino: Ino, stat: &Stat, asked: LookupStart, is_other: bool) {
    let (id, applied) = (stat.id(), st.queue.applied());
    let Some(node) = st.view.get_mut(ino) else { return };
    if is_other || node.slow_id() != Some(id) {
        node.replaced_behind();
        node.forget_attrs(Lsn::MAX);
    }
    node.ours = false;
    node.seen = ObservedAt::NEVER;
    st.view.set_slow_id(ino, Some(id));
    st.view.refresh(ino, stat, asked, applied);
}
