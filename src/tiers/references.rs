//! Objects by their references: opened, released, deleted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Context, Errno, Result};
use crate::tiers::disk::sync::{RwLockReadGuard, RwLockWriteGuard};
use crate::tiers::disk::{Access, File};
use crate::tiers::log::record::{Home, ObjectId};
use crate::tiers::model::node::ObservedAt;
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::file::{Bytes, FileState, Io};
use crate::tiers::objects::pool::{label, tmp_name};
use crate::tiers::objects::split::Split;
use crate::tiers::{Cx, Ino, ROOT, Tiers};

impl Tiers {
    /// The object's descriptor: the one kept open, or a new one for this call.
    pub(crate) fn fd(&self, cx: &Cx, io: &Io, object: ObjectId) -> Result<Arc<dyn File>> {
        if object.needs_slow() {
            cx.slow()?;
        }
        match &io.fd {
            Some(fd) => Ok(fd.clone()),
            None => self.open_object(cx, object),
        }
    }

    pub(crate) fn open_object(&self, cx: &Cx, object: ObjectId) -> Result<Arc<dyn File>> {
        match object.home {
            Home::Fast => self.pool.open_object(object.number, Access::ReadWrite).at_fast("open", label(object)),
            Home::Slow => {
                cx.slow()?;
                self.slow.object(object).at("open", label(object))
            }
            Home::Split { .. } => Ok(Arc::new(self.open_split(cx, object)?.ok_or(Errno::EIO)?)),
        }
    }

    /// Both parts of an object in two parts.
    pub(crate) fn open_split(&self, cx: &Cx, object: ObjectId) -> Result<Option<Split>> {
        let (Home::Split { at, .. }, Some(head)) = (object.home, object.head()) else { return Ok(None) };
        let tail = self.open_object(cx, object.tail())?;
        Ok(Some(Split::new(self.open_object(cx, head)?, tail, at)))
    }

    /// Deletes the objects without references, once the log says so durably.
    pub(crate) fn delete_unreferenced(&self, cx: &Cx) -> Result<()> {
        let needed = self.state.lock().objects.deletable_at();
        let Some(needed) = needed else { return Ok(()) };
        if !left_out!(DeleteDurable) {
            self.log.sync(needed)?;
        }
        let to_delete = {
            let mut st = self.state.lock();
            let durable = if left_out!(DeleteDurable) { needed } else { self.log.durable() };
            st.objects.pop_deletable(durable)
        };
        for object in to_delete {
            if object.needs_slow() {
                cx.slow()?;
            }
            self.remove_object(object);
        }
        Ok(())
    }

    /// Deletes an object's file; for an object in two parts the tail, because the head goes with its own last
    /// reference. A leftover is found by the next start's recovery.
    pub(crate) fn remove_object(&self, object: ObjectId) {
        let removed = match object.home {
            Home::Fast => self.pool.remove(object.number),
            Home::Slow | Home::Split { .. } => self.slow.tmp.unlink(&tmp_name(object)),
        };
        let failed = removed.err().filter(|e| e.kind() != std::io::ErrorKind::NotFound);
        // If the tier fails, so does the next deletion: warn once.
        let told = self.counters.undeleted.swap(failed.is_some(), Ordering::Relaxed);
        if let Some(error) = failed.filter(|_| !told) {
            tracing::warn!(object = %label(object), %error, "an unneeded object could not be deleted");
        }
    }

    /// Releases a file's object once the file has no name, is not open, and the kernel has forgotten it: a process that
    /// looked up its last name just before the removal may still open it.
    pub(crate) fn settle_removed(&self, st: &mut EngineState, ino: Ino) {
        match st.view.get(ino) {
            Some(node) if node.refs > 0 && node.links.is_empty() => st.uncommitted.remove(ino),
            _ => self.settle_lost(st, ino),
        }
    }

    /// Releases the object of a file that has no name and is not open, even if the kernel still knows the file. If
    /// another program removed or replaced it on the slow tier, the kernel is not notified and may never forget it.
    pub(crate) fn settle_lost(&self, st: &mut EngineState, ino: Ino) {
        let Some(node) = st.view.get(ino) else { return };
        if !node.links.is_empty() || ino == ROOT {
            return;
        }
        let Some(file) = st.known_file(ino) else { return };
        st.uncommitted.remove(ino);
        if file.opens.load(Ordering::Acquire) > 0 || !file.holds_bytes() {
            return;
        }
        // `io` comes before the state lock; if a reader holds it, `tick` retries the file.
        let Some(mut io) = file.io.try_write() else {
            st.add_orphan(ino);
            return;
        };
        if let Some(object) = io.object() {
            file.place(&mut io, Bytes::Slow, None);
            io.dirty = false;
            st.clean.remove(ino);
            let lsn = self.log.last();
            st.objects.remove(object, lsn);
            // The object's size and times are lost with it: if the file is found under another name, it shows the slow
            // tier's.
            if let Some(node) = st.view.get_mut(ino) {
                (node.ours, node.seen) = (false, ObservedAt::NEVER);
            }
        }
    }

    /// Releases a clean file's object; the bytes are the slow tier's from now on.
    pub(crate) fn drop_clean(&self, st: &mut EngineState, state: &FileState, io: &mut Io) {
        let Some(object) = io.object() else { return };
        state.place(io, Bytes::Slow, None);
        st.clean.remove(state.ino);
        let lsn = self.log.last();
        st.objects.remove(object, lsn);
    }

    /// The file's lock, shared. A caller that must not wait for the slow tier does not wait for a holder that does.
    pub(crate) fn shared<'a>(&self, cx: &Cx, state: &'a FileState) -> Result<RwLockReadGuard<'a, Io>> {
        if let Some(io) = state.io.try_read_for(BRIEF) {
            return Ok(io);
        }
        cx.slow()?;
        Ok(state.io.read())
    }

    /// The file's lock, exclusive. The drain holds it while it writes to the slow tier.
    pub(crate) fn exclusive<'a>(&self, cx: &Cx, state: &'a FileState) -> Result<RwLockWriteGuard<'a, Io>> {
        if let Some(io) = state.io.try_write_for(BRIEF) {
            return Ok(io);
        }
        cx.slow()?;
        let io = state.io.write();
        // The caller may have been answered meanwhile.
        cx.proceed()?;
        Ok(io)
    }

    /// The exclusive locks of one or two files, in the order of their inode numbers.
    pub(crate) fn exclusive_both<'a>(
        &self,
        cx: &Cx,
        a: Option<&'a Arc<FileState>>,
        b: Option<&'a Arc<FileState>>,
    ) -> Result<(Locked<'a>, Locked<'a>)> {
        let lock = |file: Option<&'a Arc<FileState>>| file.map(|file| self.exclusive(cx, file)).transpose();
        if a.map(|a| a.ino) <= b.map(|b| b.ino) {
            let a = lock(a)?;
            Ok((a, lock(b)?))
        } else {
            let b = lock(b)?;
            Ok((lock(a)?, b))
        }
    }
}

type Locked<'a> = Option<RwLockWriteGuard<'a, Io>>;

/// How long a fast-only caller waits while the file's bytes are being moved, before it retries with slow access.
const BRIEF: Duration = Duration::from_millis(20);
