//! Seals content in the background soon after it is committed, so that a closed file reaches D1 without an fsync.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Errno, Error, Result};
use crate::tiers::disk::File;
use crate::tiers::log::record::{Home, ObjectId, Record};
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::file::FileState;
use crate::tiers::objects::version::Content;
use crate::tiers::side_by_side::ask_each;
use crate::tiers::{Cx, Ino, Lsn, Progress, Tiers};

/// Content events sealed with one sync of the log; objects synced together.
const AT_ONCE: usize = 64;
/// Larger files are written back while they are written, and their clean pages stay in the cache.
const BEGIN_MAX: u64 = 1 << 20;

/// The current LSN of an event, which may have been moved.
fn number_of(st: &EngineState, (lsn, ino, content): &(Lsn, Ino, Arc<Content>)) -> Lsn {
    st.queue.versions(*ino).find(|(_, other)| Arc::ptr_eq(other, content)).map_or(*lsn, |(now, _)| *now)
}

/// An object that is to become durable.
struct ToSync {
    ino: Ino,
    state: Option<Arc<FileState>>,
    object: ObjectId,
    size: u64,
    fd: Arc<dyn File>,
}

impl Tiers {
    /// Seals the oldest unsealed content events, in LSN order, and makes the log durable up to the seals.
    pub fn seal_step(&self) -> Result<Progress> {
        self.begin_behind();
        let pending = self.unsealed(|_, _| true, AT_ONCE);
        let cx = Cx::internal();
        if pending.is_empty() {
            return self.sync_in_place(&cx, |_| true).map(|()| Progress::Idle);
        }
        self.seal_durably(&cx, &pending)?;
        self.wake();
        Ok(Progress::Did)
    }

    /// D1 for these content events, and for everything in the log.
    pub(crate) fn seal_durably(&self, cx: &Cx, pending: &[(Lsn, Ino, Arc<Content>)]) -> Result<()> {
        self.seal(cx, pending)?;
        self.log.sync(self.log.last())?;
        let mut st = self.state.lock();
        let sealed: Vec<Lsn> = pending.iter().map(|one| number_of(&st, one)).collect();
        st.checkpoints.change(|index| index.sealed(sealed.into_iter(), self.stamp(self.uptime())));
        Ok(())
    }

    /// Seals these content events, in order:
    ///
    /// 1. sync the objects' bytes; the disk starts writing all of them before the first sync, so that one journal
    ///    commit often serves many; if one takes long, several are synced in parallel;
    /// 2. sync their names;
    /// 3. log the seals, which the caller's sync of the log makes durable.
    fn seal(&self, cx: &Cx, pending: &[(Lsn, Ino, Arc<Content>)]) -> Result<()> {
        let seals = |st: &EngineState| -> Vec<Record> {
            pending.iter().map(|one| Record::Seal { of: number_of(st, one), size: one.2.size }).collect()
        };
        if left_out!(SealLast) && !pending.is_empty() {
            let lsn = self.log.append(&seals(&self.state.lock()))?;
            self.log.sync(lsn)?;
        }
        pending.iter().for_each(|(_, _, content)| content.set_sealing());
        let mut known = HashSet::new();
        let contents: Vec<_> = pending.iter().filter(|(_, _, content)| known.insert(content.object())).collect();
        // Open only this many at a time: there may be a million.
        for some in contents.chunks(AT_ONCE) {
            let objects: Vec<_> =
                some.iter().map(|(_, ino, content)| self.to_sync(cx, *ino, content)).collect::<Result<_>>()?;
            let objects: Vec<ToSync> = objects.into_iter().flatten().collect();
            if objects.len() > 1 {
                let small = objects.iter().filter(|object| object.size <= BEGIN_MAX);
                small.for_each(|object| object.fd.write_behind(0..object.size));
            }
            ask_each(|| self.uptime(), &objects, |object| self.sync_object(object))?; // 1
            self.sync_names(&objects)?; // 2
        }
        if pending.is_empty() {
            return Ok(());
        }
        let st = self.state.lock();
        // Events may have been moved meanwhile: take the numbers again.
        self.log.append(&seals(&st))?; // 3
        for (_, _, content) in pending {
            content.set_sealed();
        }
        Ok(())
    }

    /// `None`: deleted since. Its references are gone, and so is the event.
    fn to_sync(&self, cx: &Cx, ino: Ino, content: &Content) -> Result<Option<ToSync>> {
        let object = content.object();
        let state = self.state.lock().known_file(ino);
        if object.needs_slow() {
            cx.slow()?;
        }
        let open = match &state {
            Some(state) => {
                let io = self.shared(cx, state)?;
                io.fd.clone().filter(|_| io.object() == Some(object))
            }
            None => None,
        };
        let fd = match open {
            Some(fd) => fd,
            None => match self.open_object(cx, object) {
                Err(e) if e.errno() == Errno::ENOENT => return Ok(None),
                other => other?,
            },
        };
        Ok(Some(ToSync { ino, state, object, size: content.size, fd }))
    }

    /// Step 1 for one object.
    fn sync_object(&self, of: &ToSync) -> Result<()> {
        // After a failed fsync another one would succeed and prove nothing.
        let failed_before = of.state.as_ref().is_some_and(|state| state.failed.load(Ordering::Acquire));
        if failed_before && of.object.home == Home::Fast {
            // Not a new failure: the earlier one says nothing about the fast tier's present state.
            let what = format!("an fsync of {} has failed, and its bytes may be gone", self.distrust(&[of]));
            return Err(Error::refused(what, "write the file under a new name"));
        }
        let synced = if failed_before { Err(Errno::EIO.into()) } else { of.fd.sync() };
        synced.map_err(|e| match of.object.home {
            Home::Fast => Error::io_on_fast("fsync", self.distrust(&[of]), e),
            Home::Slow | Home::Split { .. } => Error::io("fsync", self.distrust(&[of]), e),
        })
    }

    /// Step 2 for all objects, which are usually in one directory.
    fn sync_names(&self, objects: &[ToSync]) -> Result<()> {
        let on_fast: Vec<_> = objects.iter().filter(|of| of.object.home != Home::Slow).collect();
        let on_slow: Vec<_> = objects.iter().filter(|of| of.object.needs_slow()).collect();
        let numbers = on_fast.iter().map(|of| of.object.head().unwrap_or(of.object).number);
        self.pool.sync_names(numbers).map_err(|e| Error::io_on_fast("fsync", self.distrust(&on_fast), e))?;
        if on_slow.is_empty() {
            return Ok(());
        }
        self.slow.tmp.sync().map_err(|e| Error::io("fsync", self.distrust(&on_slow), e))
    }

    /// Marks the objects whose unsynced data the kernel may have dropped. Returns the label of the first.
    fn distrust(&self, objects: &[&ToSync]) -> String {
        for state in objects.iter().filter_map(|of| of.state.as_ref()) {
            state.failed.store(true, Ordering::Release);
        }
        objects.first().map_or_else(|| "the pool".to_owned(), |of| self.label(of.ino).into())
    }
}
