//! Gives written data its place in the order, and makes it durable on fast.
//!
//! A file's bytes become a *content event* when a writer closes, at fsync, just before a namespace event on the file,
//! and every `live_after` while the file is open. The event stands for the first `size` bytes that the object has then;
//! a later write below that offset invalidates the version (see [`FileState::invalidate`]).
//!
//! To bring one file to D1: commit its content, sync the object and its name, log the seal, and sync the log up to the
//! seal, which includes every earlier record.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Errno, Error, Result};
use crate::tiers::checkpoints::bursts::BurstVersion;
use crate::tiers::checkpoints::step::certain_step;
use crate::tiers::disk::{Access, File, Time};
use crate::tiers::log::dirs::LoggedPath;
use crate::tiers::log::record::{Attrs, Home, ObjectId, Record};
use crate::tiers::model::event::Change;
use crate::tiers::model::node::DirEntryKey;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::attrs::own_xattrs;
use crate::tiers::objects::copy::copy_bytes;
use crate::tiers::objects::file::{Bytes, FileState, Io};
use crate::tiers::objects::pool::{Named, Pool, label};
use crate::tiers::objects::version::Content;
use crate::tiers::{Cx, Ino, Lsn, MAPPING, OpenFile, ROOT, Tiers, UNNAMED};

/// A version about to become an event, read from the object before the state lock is taken.
pub(crate) struct Frozen {
    object: ObjectId,
    size: u64,
    attrs: Attrs,
    ctime: Time,
    fd: Arc<dyn File>,
    /// Counts as complete even while processes are still writing the file.
    as_it_is: bool,
}

impl Tiers {
    /// One `close()` of one descriptor: commits the data written through it, unless the close does not imply that the
    /// data is complete. After the last close [`Tiers::release`] follows.
    pub fn flush(&self, cx: &Cx, file: &OpenFile) -> Result<()> {
        if !file.mode.write || !self.ends_work(cx, &file.state)? || self.waits_for_others(cx, &file.state)? {
            return Ok(());
        }
        self.commit(cx, &file.state).map(|_| ())
    }

    /// Whether this close by the process says that the data is complete. Not if the process did nothing to the file,
    /// and not if the file was only truncated so far: a shell opens the file of a redirection, passes it to a command
    /// and closes its own descriptor.
    fn ends_work(&self, cx: &Cx, state: &FileState) -> Result<bool> {
        let (wrote, anyone_wrote, nobody) = {
            let at_work = state.at_work();
            (at_work.wrote(cx.process()), at_work.anyone_wrote(), at_work.is_empty())
        };
        let Some(wrote) = wrote else { return Ok(nobody) };
        // Processes that cannot be told apart: each close counts.
        if cx.process() != UNNAMED && !anyone_wrote && self.is_replaced_by_nothing(cx, state)? {
            return Ok(false);
        }
        let mut at_work = state.at_work();
        at_work.end(cx.process());
        Ok(wrote || at_work.is_empty())
    }

    /// Whether there is an earlier version, which a commit of the truncated file would replace.
    fn is_replaced_by_nothing(&self, cx: &Cx, state: &FileState) -> Result<bool> {
        let (uncommitted, has_event) = {
            let io = self.shared(cx, state)?;
            (io.uncommitted(), io.has_event)
        };
        Ok(uncommitted && (has_event || self.is_on_slow(state.ino)))
    }

    /// Whether to wait for other processes at work on a file whose incomplete versions cannot go into the order. That
    /// is so in a fleet, where a version that is replaced by a later one could make two members wait for each other for
    /// ever, and for an object that is itself renamed into place.
    fn waits_for_others(&self, cx: &Cx, state: &FileState) -> Result<bool> {
        let io = self.shared(cx, state)?;
        Ok(!self.is_complete(state, &io) && !self.may_be_incomplete(&io))
    }

    fn is_complete(&self, state: &FileState, io: &Io) -> bool {
        state.at_work().is_empty() || state.is_only_appended_to(io) || left_out!(WholeVersions)
    }

    fn may_be_incomplete(&self, io: &Io) -> bool {
        !self.order.is_shared() && io.object().is_some_and(|object| !object.needs_slow())
    }

    /// Drops the last reference of a handle. Stores through a mapping may arrive after the last flush, so this commits
    /// too, but not while there is another writer: the kernel sends a release late, and a process that has opened the
    /// file since may have truncated it and not written yet.
    pub fn release(&self, cx: &Cx, file: OpenFile) {
        let read = self.note_reading(&file);
        let state = &file.state;
        if file.mode.write {
            // The only chance to learn of these stores: a release is not retried. No caller holds the lock of a pinned
            // file while it waits for the slow tier.
            let unseen = if state.is_pinned() { self.changed_unseen(&Cx::internal(), state) } else { Ok(()) };
            state.close_to_write();
            let alone = || state.writers.load(Ordering::Acquire) == 0;
            match unseen.and_then(|()| self.commit_if(cx, state, false, alone)) {
                Ok(_) => {}
                // The drain holds the file's lock, and the slow tier may hang: `tick` commits the file.
                Err(Error::NeedSlow) => self.wake(),
                // There is no caller to report this to; the bytes stay bound to the file, and `tick` retries.
                Err(e) => {
                    tracing::error!(ino = state.ino, error = %e, "written data could not be committed at release")
                }
            }
        }
        let is_last = state.opens.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.counters.open_files.fetch_sub(1, Ordering::Relaxed);
        }
        if is_last
            && let Some(mut io) = state.io.try_write()
            && state.opens.load(Ordering::Acquire) == 0
        {
            io.fd = None;
            io.copy = None;
            if io.place == Bytes::InPlace {
                io.place = Bytes::Slow;
            }
        }
        let (ino, wrote) = (file.ino, file.mode.write);
        // First, so that `collect` finds the state unused.
        drop(file);
        let mut st = self.state.lock();
        st.view.let_go(ino);
        self.settle_removed(&mut st, ino);
        st.rest(ino);
        st.view.collect(ino);
        drop(st);
        if let Some(read) = read {
            self.reads.push(read);
        }
        if wrote {
            self.wake();
        }
    }

    /// D1: returns when bytes, name and every earlier record are durable on the fast tier.
    ///
    /// Errors: EIO if the tier could not make them durable, now or at an earlier fsync; it is not retried.
    pub fn fsync(&self, cx: &Cx, file: &OpenFile) -> Result<()> {
        let state = &file.state;
        if state.failed.load(Ordering::Acquire) {
            return Err(Errno::EIO.into());
        }
        if !state.holds_bytes() {
            self.sync_in_place(cx, |ino| ino == state.ino)?;
            return self.log.sync(self.log.last());
        }
        {
            // The kernel has already sent what was stored through a mapping.
            let mut at_work = state.at_work();
            at_work.end(cx.process());
            at_work.end(MAPPING);
        }
        self.commit(cx, state)?;
        let pending = self.unsealed(|ino, _| ino == state.ino, usize::MAX);
        self.while_in_burst(&pending, || self.seal_durably(cx, &pending))
    }

    /// Keeps the burst open while it waits, so that the next file the program writes belongs to that burst too.
    fn while_in_burst<T>(&self, written: &[(Lsn, Ino, Arc<Content>)], wait: impl FnOnce() -> T) -> T {
        let Some(burst) = written.last().map(|(.., content)| content.burst()) else { return wait() };
        self.state.lock().bursts.syncing(burst);
        let waited = wait();
        let now = self.uptime();
        let mut st = self.state.lock();
        if st.bursts.synced(burst, now) {
            st.checkpoints.change(|index| index.synced(burst, self.stamp(now)));
        }
        waited
    }

    /// D1 for a directory's names and for the files in it; for the root, D1 for everything.
    pub fn fsync_dir(&self, cx: &Cx, ino: Ino) -> Result<()> {
        if ino == ROOT {
            return self.sync_all(cx, false);
        }
        let inside = |st: &EngineState, file: Ino| {
            st.view.get(file).is_some_and(|node| node.links.iter().any(|(dir, _)| *dir == ino))
        };
        for state in self.uncommitted_files(|st, file| inside(st, file)) {
            self.commit(cx, &state)?;
        }
        let within: std::collections::HashSet<Ino> = {
            let st = self.state.lock();
            st.in_place.unsynced().filter(|file| inside(&st, *file)).collect()
        };
        self.sync_in_place(cx, |file| within.contains(&file))?;
        let files: std::collections::HashSet<Ino> = {
            let st = self.state.lock();
            let named =
                st.queue.events().iter().flat_map(|event| event.change.inodes()).filter(|file| inside(&st, *file));
            named.collect()
        };
        let pending = self.unsealed(|file, _| files.contains(&file), usize::MAX);
        self.while_in_burst(&pending, || self.seal_durably(cx, &pending))
    }

    /// D1 for everything as it is now: commits, seals and syncs all data written so far, including files still being
    /// written. An operator asks for it to have everything on the slow tier. Waits for the fast tier only, except for
    /// objects that did not fit on it.
    pub fn sync_fast(&self) -> Result<()> {
        self.sync_all(&Cx::internal(), true)
    }

    /// D1 for everything, for a daemon that ends. Files that processes still write stay incomplete.
    pub fn sync_to_leave(&self) -> Result<()> {
        self.sync_all(&Cx::internal(), false)
    }

    fn sync_all(&self, cx: &Cx, as_it_is: bool) -> Result<()> {
        self.sync_in_place(cx, |_| true)?;
        for state in self.uncommitted_files(|_, _| true) {
            self.commit_if(cx, &state, as_it_is, || true)?;
        }
        let pending = self.unsealed(|_, _| true, usize::MAX);
        self.seal_durably(cx, &pending)?;
        self.wake();
        Ok(())
    }

    /// Syncs files written in place on the slow tier: their newest bytes are only there.
    pub(crate) fn sync_in_place(&self, cx: &Cx, which: impl Fn(Ino) -> bool) -> Result<()> {
        if self.state.lock().in_place.has_unknown_left() {
            cx.slow()?;
            // Before the sync, which is not retried if it fails.
            self.state.lock().in_place.set_unknown_left(false);
            self.slow.root.sync_all().at("sync", "slow tier")?;
        }
        let files: Vec<Ino> = self.state.lock().in_place.unsynced().filter(|ino| which(*ino)).collect();
        for ino in files {
            cx.slow()?;
            let file = self.state.lock().known_file(ino);
            let held = file.and_then(|file| file.io.read().fd.clone().filter(|_| !file.holds_bytes()));
            let fd = match held {
                Some(fd) => fd,
                None => match self.open_slow(cx, ino, Access::Read) {
                    // Removed since.
                    Err(e) if matches!(e.errno(), Errno::ESTALE | Errno::ENOENT) => {
                        self.state.lock().synced_in_place(ino);
                        continue;
                    }
                    // Its owner holds a lease on it: an open would wait for that owner. Sync the tier instead.
                    Err(e) if e.errno() == Errno::EAGAIN => {
                        self.state.lock().synced_in_place(ino);
                        let sync = |path: &[u8], _| self.slow.parent(path)?.0.sync_all();
                        self.at_slow(ino, sync).at("sync", "slow tier")?;
                        continue;
                    }
                    other => other?,
                },
            };
            // Before the sync: a write during the sync adds the file again.
            self.state.lock().synced_in_place(ino);
            if let Err(e) = fd.sync() {
                // A background fsync failed: the next caller must get the error, because another fsync would succeed.
                if let Some(file) = self.state.lock().file(ino) {
                    file.failed.store(true, Ordering::Release);
                }
                return Err(Error::io("fsync on slow", self.label(ino), e));
            }
        }
        Ok(())
    }

    pub(crate) fn uncommitted_files(&self, which: impl Fn(&EngineState, Ino) -> bool) -> Vec<Arc<FileState>> {
        let st = self.state.lock();
        let files = st.uncommitted.files().filter(|ino| which(&st, *ino));
        files.filter_map(|ino| st.view.get(ino)?.file.clone()).collect()
    }

    /// Makes a content event of the changes since the last one; returns its LSN if there were any. While other
    /// processes write the file, the version is incomplete: it has its place in the order and is published together
    /// with the next one.
    pub(crate) fn commit(&self, cx: &Cx, state: &FileState) -> Result<Option<Lsn>> {
        self.commit_if(cx, state, false, || true)
    }

    /// Makes a content event that counts as complete even while processes write the file.
    pub(crate) fn commit_as_it_is(&self, cx: &Cx, state: &FileState) -> Result<Option<Lsn>> {
        self.commit_if(cx, state, true, || true)
    }

    /// Makes a content event if `wanted` still holds once the bytes can no longer change.
    pub(crate) fn commit_if(
        &self,
        cx: &Cx,
        state: &FileState,
        as_it_is: bool,
        wanted: impl FnOnce() -> bool,
    ) -> Result<Option<Lsn>> {
        if !self.shared(cx, state)?.uncommitted() {
            return Ok(None);
        }
        let mut io = self.exclusive(cx, state)?;
        if !wanted() {
            return Ok(None);
        }
        let Some(frozen) = self.freeze_if_uncommitted(cx, Some(&mut io))? else { return Ok(None) };
        let frozen = Frozen { as_it_is, ..frozen };
        let mut st = self.state.lock();
        let lsn = self.commit_frozen(cx, &mut st, Some(state), Some(&mut io), Some(frozen))?;
        drop(st);
        drop(io);
        self.wake();
        Ok(lsn)
    }

    /// Commits a constantly rewritten file from a private copy of its bytes on fast, which no write can invalidate. The
    /// file continues in its own object, ahead of that event.
    pub(crate) fn commit_copy(&self, cx: &Cx, state: &FileState) -> Result<Option<Lsn>> {
        let mut io = state.io.write();
        let (Some(live), Some(frozen)) = (io.object(), self.freeze_if_uncommitted(cx, Some(&mut io))?) else {
            return Ok(None);
        };
        let copy = ObjectId { home: Home::Fast, number: self.pool.number() };
        let made = self.pool.create(copy.number, 0o600).and_then(|fd| {
            copy_bytes(&*frozen.fd, &*fd, frozen.size)?;
            fd.set_len(frozen.size)
        });
        let committed = made.at("copy", label(copy)).and_then(|()| self.log_copy(state, frozen, copy, live));
        if matches!(committed, Ok(Some(_))) {
            io.has_event = true;
        } else {
            self.remove_object(copy);
        }
        committed
    }

    fn log_copy(&self, state: &FileState, frozen: Frozen, copy: ObjectId, live: ObjectId) -> Result<Option<Lsn>> {
        let mut st = self.state.lock();
        let Some(at) = st.view.get(state.ino).and_then(|node| node.links.first().cloned()) else { return Ok(None) };
        let path = st.view.path_at(&at).ok_or(Errno::ENOENT)?;
        let Frozen { size, attrs, .. } = frozen;
        let burst = self.note_burst(&mut st, state.ino, &path, size);
        let path = LoggedPath::from(path);
        let content = Arc::new(Content::new(copy, size, attrs.clone(), burst));
        let change = Change::Content { ino: state.ino, at, content };
        let mut records = vec![
            Record::Content { path: path.clone(), ino: state.ino, object: copy, size, attrs },
            Record::Bind { path, ino: state.ino, object: live },
        ];
        records.splice(0..0, st.names_record(state.ino));
        let (origin, writer) = (self.origin(&Cx::internal(), &st, &change), st.uncommitted.writer(state.ino));
        let last = self.log.append_event(&records, origin)?;
        let now = self.uptime();
        st.queue.stamp(origin.stamps.map(|stamps| (last - 1, stamps)));
        st.note_checkpoint(last - 1, &change, self.uptime(), self.stamp(Duration::ZERO));
        self.queue_event(&mut st, (last - 1, origin.by), now, change);
        st.uncommitted.remove(state.ino);
        st.uncommitted.bind(state.ino, last, live, now);
        state.begin_version(size);
        st.uncommitted.start(state.ino, writer, origin.stamps.map(|stamps| stamps.end));
        Ok(Some(last - 1))
    }

    /// First half, before the state lock: reads from the object what the event will record.
    pub(crate) fn freeze_if_uncommitted(&self, cx: &Cx, io: Option<&mut Io>) -> Result<Option<Frozen>> {
        let Some(io) = io.filter(|io| io.uncommitted()) else { return Ok(None) };
        let Some(object) = io.object() else { return Ok(None) };
        let fd = self.fd(cx, io, object)?;
        let stat = fd.stat().at("stat", "object")?;
        let xattrs = own_xattrs(&*fd)?;
        let attrs = Attrs { perm: stat.perm, uid: stat.uid, gid: stat.gid, mtime: stat.mtime, xattrs };
        // Before an event on the file's names, a version counts as complete. If it waited for its successor, everything
        // between the two would join one batch; and a program that renames before it closes (safetensors) adds nothing
        // anyway.
        Ok(Some(Frozen { object, size: stat.size, attrs, ctime: stat.ctime, fd, as_it_is: true }))
    }

    /// Second half, under the state lock: logs and queues the event. A file without a name has no place in the order.
    pub(crate) fn commit_frozen(
        &self,
        cx: &Cx,
        st: &mut EngineState,
        state: Option<&FileState>,
        io: Option<&mut Io>,
        frozen: Option<Frozen>,
    ) -> Result<Option<Lsn>> {
        let (Some(state), Some(io), Some(frozen)) = (state, io, frozen) else { return Ok(None) };
        let ino = state.ino;
        let Some(at) = st.view.get(ino).and_then(|node| node.links.first().cloned()) else {
            return Ok(None);
        };
        let path = st.view.path_at(&at).ok_or(Errno::ENOENT)?;
        let Frozen { object, size, attrs, ctime, fd, as_it_is } = frozen;
        let is_complete = as_it_is || self.is_complete(state, io) || !self.may_be_incomplete(io);
        let burst = self.note_burst(st, ino, &path, size);
        let content = Arc::new(Content::new(object, size, attrs.clone(), burst));
        let record = Record::Content { path: path.clone().into(), ino, object, size, attrs };
        let change = Change::Content { ino, at, content: content.clone() };
        if let Some(names) = st.names_record(ino) {
            self.log.append(&[names])?;
        }
        // An incomplete version: the bytes stay ahead of the order, as after a write to it, so that the next version
        // replaces it.
        let invalidate = (!is_complete).then_some((Record::Invalidate { ino, object, from: 0 }, None));
        let lsn = self.log_event_and(cx, st, (record, invalidate), change, |_, _| ())?;
        state.add_pending_version(io, content.clone());
        io.interrupted = false;
        if let Some(node) = st.view.get_mut(ino).filter(|_| io.dirty) {
            // Freeze the ctime shown: each attribute that we set on the object from here on changes the object's own
            // ctime, which must not be visible.
            node.change_meta(|meta| meta.ctime = ctime.max(meta.ctime));
        }
        if is_complete {
            io.dirty = false;
            st.uncommitted.remove(ino);
        } else {
            state.invalidate(io, 0);
            // Explicitly, for an empty version, too.
            content.set_overwritten();
        }
        if object.home == Home::Fast {
            // Only for a rescue without the log; the event itself is logged.
            if let Err(e) = Pool::set_name(&*fd, &Named { lsn, ino, path }) {
                tracing::debug!(ino, error = %e, "the name of an object could not be stored");
            }
        }
        Ok(Some(lsn))
    }

    /// Queues an event of user `by` that was just logged or is replayed. The name that a file has after it decides
    /// whether the file's superseded versions may be skipped; when they are superseded, it may have no name.
    pub(crate) fn queue_event(&self, st: &mut EngineState, (lsn, by): (Lsn, u32), at: Duration, change: Change) {
        let options = self.options();
        let newest = |place: &DirEntryKey| options.rules.drains_newest(|| st.view.path_at(place));
        let named = match &change {
            Change::Content { ino, at, .. } => [Some((*ino, newest(at))), None],
            Change::Rename { ino, to, .. } => [Some((*ino, newest(to))), None],
            Change::Exchange { a, a_at, b, b_at } => [Some((*a, newest(b_at))), Some((*b, newest(a_at)))],
            _ => [None, None],
        };
        let is_new = matches!(change, Change::Content { .. });
        st.push(lsn, at, by, change);
        named.into_iter().flatten().for_each(|(ino, newest)| st.queue.set_policy(ino, newest, is_new));
    }

    /// Notes a complete version. Returns the number of its burst, or 0 for a log file.
    fn note_burst(&self, st: &mut EngineState, ino: Ino, path: &[u8], bytes: u64) -> u64 {
        let now = self.uptime();
        let kept = st.known_file(ino).map_or(0, |file| file.kept());
        let version = BurstVersion { step: certain_step(path), began: st.began_to_write(ino, now), now, bytes, kept };
        // A small change to a large file of a checkpoint is not a log write.
        if version.is_of_a_log() && !st.checkpoints.ask(|index| index.has_large(path)) {
            return 0;
        }
        let (burst, over) = st.bursts.add(version);
        st.learn(&over, self.stamp(Duration::ZERO));
        burst
    }

    /// The first `most` unsealed content events, in LSN order.
    pub(crate) fn unsealed(&self, which: impl Fn(Ino, Lsn) -> bool, most: usize) -> Vec<(Lsn, Ino, Arc<Content>)> {
        self.state.lock().queue.unsealed(which, most)
    }
}
