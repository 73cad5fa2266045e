//! One regular file's bytes: where they are, what has changed since they last got a place in the order, and which
//! versions the slow tier still has to get.
//!
//! Data I/O holds [`FileState::io`] shared; moving the bytes elsewhere or freezing a version takes it exclusively.

use std::sync::Arc;
use std::time::Duration;

use crate::tiers::Ino;
use crate::tiers::disk::File;
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::tiers::disk::sync::{Mutex, MutexGuard, Rank, RwLock};
use crate::tiers::log::record::{Home, ObjectId};
use crate::tiers::objects::at_work::AtWork;
use crate::tiers::objects::version::Content;
use crate::tiers::small_deque::SmallDeque;

#[derive(Debug)]
pub(crate) struct FileState {
    pub(crate) ino: Ino,
    pub(crate) io: RwLock<Io>,
    /// The longest pending version that is still unchanged, in bytes: a write below it changes a pending version.
    guard: AtomicU64,
    /// How many of the first bytes are as they were when the version that is being written was begun.
    kept: AtomicU64,
    pub(crate) opens: AtomicU32,
    pub(crate) writers: AtomicU32,
    /// The uptime in milliseconds, modulo 2^32, when the file got its first writer. Only 32 bits: there may be a
    /// million of these.
    opened: AtomicU32,
    /// Whether `io.place` is an object, readable without the lock.
    holds: AtomicBool,
    /// Whether suid or sgid may be set, so that a write by an unprivileged process must clear them.
    pub(crate) privileged: AtomicBool,
    /// How often a foreign change hit the bytes on the slow tier, and that number at the last open (+ 1; 0: not
    /// opened).
    pub(crate) changes: AtomicU32,
    pub(crate) changes_opened: AtomicU32,
    /// How often a foreign change put another file in its place on the slow tier. Earlier openers were given access to
    /// the former file.
    pub(crate) replaced: AtomicU32,
    /// Holders that know where the bytes are and access them directly: while there is one, the bytes stay there.
    pins: AtomicU32,
    /// The processes whose work on the bytes is not complete.
    at_work: Mutex<AtWork>,
    /// A copy to the slow tier is under way.
    pub(crate) draining: AtomicBool,
    /// Its last fsync failed: earlier writes may be lost.
    pub(crate) failed: AtomicBool,
}

/// Where a file's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// Only on the slow tier, read from there.
    Slow,
    /// Only on the slow tier, and written there: too large to copy up, or with several names.
    InPlace,
    Object(ObjectId),
}

#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) place: Bytes,
    /// Open while a handle is.
    pub(crate) fd: Option<Arc<dyn File>>,
    /// The staged copy that a slow file is read from, instead of `fd`, while a handle is open. Boxed: of a million
    /// pending files none has one.
    pub(crate) copy: Option<Box<Copy>>,
    /// Changed since its bytes last became an event; a `bind` record says so in the log.
    pub(crate) dirty: bool,
    /// Its object is on the slow tier and committed: that very file will be published, so later attribute changes are
    /// in the view, as for a slow file.
    pub(crate) attrs_in_view: bool,
    /// Its mtime was set while it was dirty: the next write logs that it came after that.
    pub(crate) mtime_set_since_bind: bool,
    /// The newest version that became an event and is not applied yet.
    pub(crate) latest: Option<Arc<Content>>,
    /// It has been an event at least once: changes of its attributes are events too.
    pub(crate) has_event: bool,
    /// Versions of this object that the slow tier still has to get.
    pub(crate) pending_versions: SmallDeque<Arc<Content>>,
    /// Boxed: of a million pending files none is clean.
    clean: Option<Box<Equal>>,
    /// Left behind by a writer that a crash cut off: waits for a close or a sync.
    pub(crate) interrupted: bool,
}

/// The slow tier has the same bytes.
#[derive(Debug)]
struct Equal {
    fingerprint: Fingerprint,
    /// Uptime of the last comparison with the slow file.
    checked: Duration,
}

impl FileState {
    fn new(ino: Ino, place: Bytes) -> Self {
        let io = Io {
            place,
            fd: None,
            copy: None,
            dirty: false,
            mtime_set_since_bind: false,
            attrs_in_view: false,
            latest: None,
            has_event: false,
            pending_versions: SmallDeque::None,
            clean: None,
            interrupted: false,
        };
        FileState {
            ino,
            io: RwLock::new(Rank::Io, ino, io),
            guard: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            opens: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            opened: AtomicU32::new(0),
            holds: AtomicBool::new(matches!(place, Bytes::Object(_))),
            // Assumed until the mode is known.
            privileged: AtomicBool::new(true),
            changes: AtomicU32::new(0),
            changes_opened: AtomicU32::new(0),
            replaced: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            at_work: Mutex::default(),
            draining: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    /// Adds a writer.
    pub(crate) fn open_to_write(&self, now: Duration) {
        if self.writers.fetch_add(1, Ordering::AcqRel) == 0 {
            self.opened.store(now.as_millis() as u32, Ordering::Relaxed);
        }
    }

    /// Removes a writer. The last one ends the work of all: a process that has exited, or a mapping, has no other end.
    pub(crate) fn close_to_write(&self) {
        if self.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut at_work = self.at_work();
            // A later opener has counted itself first, and begins its work after this.
            if self.writers.load(Ordering::Acquire) == 0 {
                at_work.end_all();
            }
        }
    }

    /// How long before `now` the file got its first writer, modulo 49 days.
    pub(crate) fn open_to_write_for(&self, now: Duration) -> Duration {
        Duration::from_millis((now.as_millis() as u32).wrapping_sub(self.opened.load(Ordering::Relaxed)).into())
    }

    /// The state of a file on the slow tier. `opened`: it was opened before and, as far as known, has had no foreign
    /// change since.
    pub(crate) fn on_slow(ino: Ino, opened: bool) -> Self {
        let state = Self::new(ino, Bytes::Slow);
        state.changes_opened.store(opened.into(), Ordering::Relaxed);
        state
    }

    /// The state of a file whose bytes are those of the newest of `versions`, which are all its pending versions,
    /// oldest first.
    pub(crate) fn on_pending<'a>(
        ino: Ino,
        opened: bool,
        versions: impl Iterator<Item = &'a Arc<Content>> + Clone,
    ) -> Self {
        let newest = versions.clone().last();
        let state = Self::new(ino, newest.map_or(Bytes::Slow, |newest| Bytes::Object(newest.object())));
        state.changes_opened.store(opened.into(), Ordering::Relaxed);
        let mut io = state.io.write_new();
        let alive = versions.filter(|content| content.is_alive());
        for content in alive.filter(|content| newest.is_some_and(|newest| newest.object().shares(content.object()))) {
            state.add_pending_version(&mut io, Arc::clone(content));
        }
        io.has_event = newest.is_some();
        io.latest = newest.cloned();
        drop(io);
        state
    }

    /// What to remember so that [`FileState::on_slow`] can rebuild the state, or [`FileState::on_pending`] from the
    /// pending versions, whose `newest` this is. `None` if the state says more, or the bytes are in use.
    pub(crate) fn at_rest(&mut self, newest: Option<&Arc<Content>>) -> Option<Resident> {
        let Io {
            place,
            fd,
            copy,
            dirty,
            mtime_set_since_bind,
            attrs_in_view,
            latest,
            has_event,
            pending_versions,
            clean,
            interrupted,
        } = self.io.get_mut();
        pending_versions.retain(|content| !content.is_applied());
        let used = fd.is_some() || copy.is_some() || clean.is_some();
        let marked = *dirty || *mtime_set_since_bind || *attrs_in_view || *interrupted;
        let open = [&mut self.opens, &mut self.writers, &mut self.pins].into_iter().any(|count| *count.get_mut() > 0);
        let busy = *self.draining.get_mut() || *self.failed.get_mut();
        if used || marked || open || busy {
            return None;
        }
        let pending = match place {
            Bytes::Slow
                if latest.is_none() && pending_versions.is_empty() && !*has_event && *self.guard.get_mut() == 0 =>
            {
                false
            }
            // An object on the slow tier is handed over when it is published.
            Bytes::Object(object @ ObjectId { home: Home::Fast, .. }) => {
                let newest = newest.filter(|newest| newest.object() == *object)?;
                latest.as_ref().filter(|latest| Arc::ptr_eq(latest, newest))?;
                true
            }
            _ => return None,
        };
        Some(Resident::new(pending, *self.changes_opened.get_mut() == *self.changes.get_mut() + 1))
    }

    /// The processes whose work on the bytes is not complete.
    pub(crate) fn at_work(&self) -> MutexGuard<'_, AtWork> {
        self.at_work.lock()
    }

    /// Whether bytes were only added behind the newest version since it was made: a file to which several processes
    /// append is whole at every moment.
    pub(crate) fn is_only_appended_to(&self, io: &Io) -> bool {
        let guard = self.guard.load(Ordering::Acquire);
        io.latest.as_ref().is_some_and(|latest| latest.is_intact() && latest.size > 0 && latest.size <= guard)
    }

    /// The next version begins with `kept` bytes of the former one.
    pub(crate) fn begin_version(&self, kept: u64) {
        self.kept.store(kept, Ordering::Relaxed);
    }

    /// Called when bytes from `offset` on change.
    pub(crate) fn change_from(&self, offset: u64) {
        if offset < self.kept.load(Ordering::Relaxed) {
            self.kept.fetch_min(offset, Ordering::Relaxed);
        }
    }

    /// How many of the first bytes are older than the version that is being written; 0 for a pinned file, to which the
    /// kernel writes directly.
    pub(crate) fn kept(&self) -> u64 {
        if self.is_pinned() { 0 } else { self.kept.load(Ordering::Relaxed) }
    }

    /// Whether an object holds the bytes (or did a moment ago).
    pub(crate) fn holds_bytes(&self) -> bool {
        self.holds.load(Ordering::Acquire)
    }

    /// Whether the bytes must stay where they are. With `io` held exclusively, no new pin is taken meanwhile.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Pins the bytes; the caller holds `io` at least shared.
    pub(crate) fn pin(self: &Arc<Self>) -> Pin {
        self.pins.fetch_add(1, Ordering::AcqRel);
        Pin(Arc::clone(self))
    }

    /// Moves the bytes. The caller holds `io` exclusively and passes it in.
    pub(crate) fn place(&self, io: &mut Io, place: Bytes, fd: Option<Arc<dyn File>>) {
        io.place = place;
        io.fd = fd;
        io.copy = None;
        io.clean = None;
        io.attrs_in_view = false;
        io.latest = None;
        io.pending_versions = SmallDeque::None;
        self.guard.store(0, Ordering::Release);
        self.failed.store(false, Ordering::Release);
        self.holds.store(matches!(place, Bytes::Object(_)), Ordering::Release);
    }

    /// Ends the present object and continues the file in `object`. Its pending versions are still there, and may still
    /// be overwritten. The caller holds `io` exclusively and passes it in.
    pub(crate) fn goes_on_in(&self, io: &mut Io, object: ObjectId, fd: Arc<dyn File>) {
        io.place = Bytes::Object(object);
        io.fd = Some(fd);
        io.dirty = true;
    }

    /// Makes `content` a version that writes must not change unnoticed. The caller holds `io` exclusively.
    pub(crate) fn add_pending_version(&self, io: &mut Io, content: Arc<Content>) {
        // Keep a copied version too: a crash before it is published removes the copy.
        io.pending_versions.retain(|pending_versions| pending_versions.is_alive());
        self.guard.fetch_max(content.size, Ordering::AcqRel);
        io.has_event = true;
        io.pending_versions.push_back(content.clone());
        io.latest = Some(content);
    }

    /// Whether a change of bytes from `offset` on may break a pending version.
    pub(crate) fn is_guarded(&self, offset: u64) -> bool {
        // Acquire pairs with `add_pending_version`: a writer that came after the freeze sees its guard.
        offset < self.guard.load(Ordering::Acquire)
    }

    /// Called before bytes from `offset` on change; the caller holds `io` at least shared, so no version is frozen
    /// meanwhile.
    pub(crate) fn invalidate(&self, io: &Io, offset: u64) {
        let mut guard = 0;
        for content in io.pending_versions.iter() {
            if offset < content.size {
                content.set_overwritten();
            } else {
                guard = guard.max(content.size);
            }
        }
        self.guard.store(guard, Ordering::Release);
    }
}

/// While this exists, the bytes of a file stay where they are, in an object or in the slow file.
#[derive(Debug)]
pub struct Pin(Arc<FileState>);

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Io {
    /// The slow file's fingerprint, if the slow tier has the same bytes.
    pub(crate) fn clean(&self) -> Option<Fingerprint> {
        self.clean.as_ref().map(|equal| equal.fingerprint)
    }

    /// Uptime of the last comparison with the slow file, for a clean file.
    pub(crate) fn checked(&self) -> Duration {
        self.clean.as_ref().map_or(Duration::ZERO, |equal| equal.checked)
    }

    pub(crate) fn set_clean(&mut self, fingerprint: Fingerprint) {
        self.clean = Some(Box::new(Equal { fingerprint, checked: self.checked() }));
    }

    pub(crate) fn set_checked(&mut self, now: Duration) {
        if let Some(equal) = &mut self.clean {
            equal.checked = now;
        }
    }

    pub(crate) fn unset_clean(&mut self) {
        self.clean = None;
    }

    pub(crate) fn object(&self) -> Option<ObjectId> {
        match self.place {
            Bytes::Object(id) => Some(id),
            Bytes::Slow | Bytes::InPlace => None,
        }
    }

    /// The object that has the file's attributes.
    pub(crate) fn with_attrs(&self) -> Option<ObjectId> {
        self.object().filter(|_| !self.attrs_in_view)
    }

    /// Whether the object itself is to be published, so that an attribute change must not touch it.
    pub(crate) fn goes_as_it_is(&self) -> bool {
        !self.dirty && self.object().is_some_and(ObjectId::needs_slow)
    }

    /// Whether bytes of this version's object have changed since the last event; changes in another object do not
    /// count.
    pub(crate) fn is_ahead_of(&self, content: &Content) -> bool {
        self.dirty && self.object().is_some_and(|object| object.shares(content.object()))
    }

    /// Whether there are writes since the last event, or there never was an event.
    pub(crate) fn uncommitted(&self) -> bool {
        self.dirty && self.object().is_some()
    }
}

/// An open staged copy.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) number: u64,
    pub(crate) fd: Arc<dyn File>,
    pub(crate) fingerprint: Fingerprint,
}

/// What is known of a regular file's bytes while it has no state. *Opened*: it was opened before and, as far as known,
/// has had no foreign change since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resident {
    OnSlow,
    OnSlowOpened,
    /// The bytes are in an object, and nothing has changed since the newest pending version.
    Pending,
    PendingOpened,
}

impl Resident {
    pub(crate) fn new(pending: bool, opened: bool) -> Self {
        match (pending, opened) {
            (false, false) => Resident::OnSlow,
            (false, true) => Resident::OnSlowOpened,
            (true, false) => Resident::Pending,
            (true, true) => Resident::PendingOpened,
        }
    }

    pub(crate) fn is_pending(self) -> bool {
        matches!(self, Resident::Pending | Resident::PendingOpened)
    }

    pub(crate) fn is_opened(self) -> bool {
        matches!(self, Resident::OnSlowOpened | Resident::PendingOpened)
    }
}
