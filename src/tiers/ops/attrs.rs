//! Attributes: where they are kept, and how they change.
//!
//! A file with an object has its attributes on the object; the view has only its names, its link count and the ctime of
//! name changes. For every other node the view has the attributes while a change of them is pending; otherwise the slow
//! tier has them. A change is logged first and applied to the object second; recovery applies it again.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Context, Errno, Error, Result};
use crate::tiers::disk::errors::{is_elsewhere, is_full};
use crate::tiers::disk::layout::PRIVATE;
use crate::tiers::disk::{Access, Kind, NewAttr, Space, Stat, Time, acl};
use crate::tiers::log::dirs::LoggedPath;
use crate::tiers::log::record::{AttrsOf, Home, Owned, Record};
use crate::tiers::model::event::Change;
use crate::tiers::model::node::{KnownAcl, Node, NodeAttrs, ObservedAt};
use crate::tiers::model::state::EngineState;
use crate::tiers::objects::attrs::travels;
use crate::tiers::objects::file::{Bytes, FileState, Io};
use crate::tiers::{Attr, Cx, FileStatus, Ino, ROOT, SetAttr, TierKind, Tiers};

const STATE: &[u8] = b"user.dlio.state";
const TIER: &[u8] = b"user.dlio.tier";
/// Extended attributes of a node up to this total size, keys included, fit on every file system. The limit is ext4's:
/// one block.
const XATTRS_EVERYWHERE: usize = 2048;

impl Tiers {
    /// The root's attributes as last seen, however old. They decide access to the names in it.
    pub fn root_as_known(&self) -> Option<Attr> {
        let st = self.state.lock();
        st.view.get(ROOT).map(|node| self.attr_of(ROOT, node))
    }

    pub fn getattr(&self, cx: &Cx, ino: Ino) -> Result<Attr> {
        self.note_use();
        let file = {
            let mut st = self.state.lock();
            let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
            if let Some(attr) = self.attr_in_memory(&st, ino, node) {
                return Ok(attr);
            }
            st.known_file(ino)
        };
        if let Some(file) = file {
            self.compare_if_told(cx, &file)?;
            let io = self.shared(cx, &file)?;
            if io.attrs_in_view {
                let st = self.state.lock();
                return Ok(self.attr_of(ino, st.view.get(ino).ok_or(Errno::ESTALE)?));
            }
            if let Some(object) = io.object() {
                if object.needs_slow() {
                    cx.slow()?;
                }
                let stat = match (&io.fd, object.home) {
                    (Some(fd), _) => fd.stat(),
                    (None, Home::Fast) => self.pool.stat(object.number),
                    (None, Home::Slow) => self.slow.stat_object(object),
                    (None, Home::Split { .. }) => self.open_object(cx, object)?.stat(),
                };
                let st = self.state.lock();
                let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
                if object.needs_slow() && stat.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
                    // A foreign unlink: the file still exists in the view, to be written again or removed.
                    return Ok(self.attr_of(ino, node));
                }
                let stat = stat.at("stat", crate::tiers::objects::pool::label(object))?;
                let attr = self.attr_of_object(ino, node, &stat);
                // The object's own ctime also counts writes since the last version and the attributes that we set on
                // it.
                let ctime = if io.dirty { attr.ctime } else { node.meta().ctime };
                return Ok(Attr { ctime, ..attr });
            }
            if io.place == Bytes::InPlace
                && let Some(fd) = &io.fd
            {
                let fd = fd.clone();
                drop(io);
                // While an attribute change is pending, the view has it and the effects of later writes, unless the
                // stat after such a write failed.
                let pending = |st: &EngineState, node: &Node| node.meta_lsn() > st.queue.applied();
                let asked = {
                    let st = self.state.lock();
                    let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
                    if pending(&st, node) && node.seen != ObservedAt::NEVER {
                        return Ok(self.attr_of(ino, node));
                    }
                    st.view.asked(self.uptime())
                };
                cx.slow()?;
                let stat = fd.stat().at("stat on slow", self.label(ino))?;
                let mut st = self.state.lock();
                let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
                if !pending(&st, node) {
                    return Ok(self.attr_of_object(ino, node, &stat));
                }
                let applied = st.queue.applied();
                st.view.refresh(ino, &stat, asked, applied);
                return Ok(self.attr_of(ino, st.view.get(ino).ok_or(Errno::ESTALE)?));
            }
        }
        self.attr_from_memory_or_slow(cx, ino)
    }

    /// Attributes for the reply to a change that is already made. It must not fail: on `NeedSlow` the call would be
    /// retried and run into its own change. `otherwise`: the former attributes with the change applied.
    pub(crate) fn attr_to_answer(&self, cx: &Cx, ino: Ino, otherwise: Attr) -> Attr {
        self.getattr(&Cx::fast_only(cx.uid, cx.gid), ino).unwrap_or(otherwise)
    }

    pub(crate) fn attr_of_object(&self, ino: Ino, node: &Node, stat: &Stat) -> Attr {
        let Stat { perm, uid, gid, size, blocks, atime, mtime, ctime, .. } = *stat;
        // Exclude the block that our own extended attributes may take.
        let blocks = blocks.min(size.div_ceil(4096) * 8);
        let shown = Attr { perm, uid, gid, size, blocks, atime, mtime, ctime, ..self.attr_of(ino, node) };
        Attr { ctime: ctime.max(node.meta().ctime), ..shown }
    }

    pub(crate) fn attr_of(&self, ino: Ino, node: &Node) -> Attr {
        let meta = node.meta();
        Attr {
            ino,
            kind: node.kind,
            perm: meta.perm,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: meta.rdev,
            size: meta.size,
            blocks: meta.blocks,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            ttl: self.kernel_lifetime(node.ours),
        }
    }

    /// How long the kernel may cache a node's name and attributes. In a fleet other members also change what this mount
    /// has changed. The kernel is not told to drop a name: that call would wait for calls in the directory, and a
    /// daemon killed meanwhile would leave a mount that cannot be unmounted.
    fn kernel_lifetime(&self, ours: bool) -> std::time::Duration {
        let options = self.options();
        match (ours, self.order.is_shared()) {
            (true, false) => options.attribute_lifetime,
            (true, true) => options.attribute_lifetime.min(options.attribute_lifetime_slow),
            (false, _) => options.attribute_lifetime_slow,
        }
    }

    /// The attributes of a node whose bytes are neither open nor in an object, if those in the view are still valid.
    pub(crate) fn attr_in_memory(&self, st: &EngineState, ino: Ino, node: &Node) -> Option<Attr> {
        let is_open = |file: &Arc<FileState>| file.opens.load(Ordering::Acquire) > 0;
        let elsewhere = node.holds_bytes() || node.file.as_ref().is_some_and(is_open);
        (!elsewhere && self.view_holds(st, ino, node)).then(|| self.attr_of(ino, node))
    }

    /// Whether the view's attributes of a node are valid without asking the slow tier.
    fn view_holds(&self, st: &EngineState, ino: Ino, node: &Node) -> bool {
        let limit =
            if node.ours || node.staged { self.options().revalidate } else { self.options().attribute_lifetime_slow };
        let fresh = node.seen.fresh(self.uptime(), limit) || self.slow.is_down();
        let gone = node.slow().is_empty() && ino != ROOT;
        // Pending attributes are valid, but the size may not be.
        let pending = node.meta_lsn() > st.queue.applied() && node.seen != ObservedAt::NEVER;
        fresh || gone || pending || node.slow_id().is_none()
    }

    fn attr_from_memory_or_slow(&self, cx: &Cx, ino: Ino) -> Result<Attr> {
        let (id, place, path, asked) = {
            let st = self.state.lock();
            let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
            if self.view_holds(&st, ino, node) {
                return Ok(self.attr_of(ino, node));
            }
            (node.slow_id(), node.slow().first().cloned(), st.view.slow_path(ino), st.view.asked(self.uptime()))
        };
        let found = match cx.slow() {
            // A caller that may wait learns what else is there.
            Err(Error::NeedSlow) => {
                let at_hand = place.and_then(|(dir, name)| self.slow.stat_at_hand(dir, name.as_bytes())).flatten();
                Some(at_hand.filter(|stat| Some(stat.id()) == id).ok_or(Error::NeedSlow)?)
            }
            asked => match asked.map(|()| self.at_slow(ino, |path, id| self.slow.stat_of(path, id)))? {
                Err(e) if is_elsewhere(&e) => None,
                found => Some(found.at("stat on slow", self.label(ino))?),
            },
        };
        let mut st = self.state.lock();
        let applied = st.queue.applied();
        let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
        match found {
            Some(stat) if Some(stat.id()) == id => st.view.refresh(ino, &stat, asked, applied),
            // Publishing moves the node or a directory above it, or just has: the next lookup of the name will tell.
            _ if node.slow_id() != id || node.moved() || st.view.slow_path(ino) != path || self.slow.is_moving() => {}
            // A foreign rmdir: publishing makes the directory again.
            _ if st.view.owes_below(ino) => {}
            _ => {
                // Without this, a create of the same name would fail with EEXIST.
                drop(st);
                self.forget_seen(ino);
                return Err(Errno::ENOENT.into());
            }
        }
        let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
        Ok(self.attr_of(ino, node))
    }

    /// The state of a regular file, for a caller that changes it; `None` for other nodes.
    fn file_of(&self, ino: Ino) -> Result<Option<Arc<FileState>>> {
        let mut st = self.state.lock();
        st.view.get(ino).ok_or(Errno::ESTALE)?;
        Ok(st.file(ino))
    }

    /// The state of a regular file, for a caller that only reads it. `None` for other nodes and for a file without a
    /// state.
    fn known_file(&self, ino: Ino) -> Result<Option<Arc<FileState>>> {
        let mut st = self.state.lock();
        st.view.get(ino).ok_or(Errno::ESTALE)?;
        Ok(st.known_file(ino))
    }

    /// Changes attributes and length. A new length set without an open file is committed at once, as if the file had
    /// been opened and closed.
    pub fn setattr(&self, cx: &Cx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if let Some(size) = set.size {
            let file = self.file_of(ino)?.ok_or(Errno::EISDIR)?;
            let open = crate::tiers::OpenMode { write: true, ..Default::default() };
            let handle = self.open(cx, ino, open)?;
            let was_at_work = file.at_work().wrote(cx.process()).is_some();
            let done = self.truncate(cx, &file, size);
            if !was_at_work {
                // The process may have no handle whose close would end this.
                file.at_work().end(cx.process());
            }
            // With another writer, that writer's close decides when these bytes are complete.
            let alone = file.writers.load(Ordering::Acquire) == 1;
            let done = done.and_then(|()| if alone { self.flush(cx, &handle) } else { Ok(()) });
            self.release_uncommitted(cx, handle, alone);
            done?;
        }
        if set.attr != NewAttr::default() {
            self.change_attr(cx, ino, set.attr)?;
        }
        self.wake();
        self.getattr(cx, ino)
    }

    /// Releases a handle. Without `commit`, what was written does not become an event.
    fn release_uncommitted(&self, cx: &Cx, mut handle: crate::tiers::OpenFile, commit: bool) {
        if !commit {
            handle.state.close_to_write();
            handle.mode.write = false;
        }
        self.release(cx, handle);
    }

    pub(crate) fn change_attr(&self, cx: &Cx, ino: Ino, new: NewAttr) -> Result<()> {
        let before = self.getattr(cx, ino)?;
        let mut new = self.keep_of(before.kind, &new);
        if new == NewAttr::default() {
            return Ok(());
        }
        if before.kind != Kind::Dir && new.perm.is_none() && (new.uid.is_some() || new.gid.is_some()) {
            // Like the kernel's chown. Done here because the slow tier sees the chown later and from another caller.
            let perm = chowned(before.perm);
            new.perm = (perm != before.perm && self.slow.abilities.modes).then_some(perm);
        }
        let file = self.file_of(ino)?;
        let mut io = file.as_ref().map(|file| self.exclusive(cx, file)).transpose()?;
        self.move_attrs_to_view(ino, &before, io.as_deref_mut());
        // Open before the event: once logged, it cannot be undone if the object cannot be opened.
        let object = io.as_deref().and_then(|io| Some((io, io.with_attrs()?)));
        let fd = object.map(|(io, object)| self.fd(cx, io, object)).transpose()?;
        let shown = fd.as_ref().map(|fd| fd.stat().at("stat", self.label(ino))).transpose()?;
        self.log_attr(cx, ino, &new, (io.as_deref(), shown.as_ref()))?;
        if let (Some(io), Some(fd)) = (io.as_deref_mut(), fd) {
            if let Err(e) = fd.set_attr(&new) {
                // The event would still reach the slow tier: log another one that undoes it.
                let old = undone(&new, &before);
                fd.set_attr(&old).unwrap_or_default();
                self.log_attr(cx, ino, &old, (Some(io), shown.as_ref()))?;
                return Err(Error::io("set attributes of", self.label(ino), e));
            }
            io.mtime_set_since_bind |= io.dirty && new.mtime.is_some();
        }
        // For attributes on the object and for those in the view alone.
        if let (Some(file), Some(perm)) = (&file, new.perm) {
            file.privileged.store(perm & 0o6000 != 0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Moves a file's attributes into the view before an attribute change, if its object is to be published by a rename
    /// of the object itself.
    fn move_attrs_to_view(&self, ino: Ino, shown: &Attr, io: Option<&mut Io>) {
        let Some(io) = io.filter(|io| io.goes_as_it_is() && !io.attrs_in_view) else { return };
        let mut st = self.state.lock();
        if let Some(node) = st.view.get_mut(ino) {
            let Attr { perm, uid, gid, size, blocks, atime, mtime, ctime, .. } = *shown;
            node.change_meta(|meta| *meta = NodeAttrs { perm, uid, gid, size, blocks, atime, mtime, ctime, ..*meta });
            io.attrs_in_view = true;
        }
    }

    /// Moves the attributes back to the object before the object may change again.
    pub(crate) fn write_attrs_back(&self, ino: Ino, io: &mut Io) -> Result<()> {
        let (Some(fd), true) = (&io.fd, io.attrs_in_view) else { return Ok(()) };
        let (meta, xattrs) = {
            let st = self.state.lock();
            let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
            (node.meta(), node.xattrs().cloned().unwrap_or_default())
        };
        let NodeAttrs { perm, uid, gid, atime, mtime, .. } = meta;
        let new = NewAttr { uid: Some(uid), gid: Some(gid), perm: Some(perm), atime: Some(atime), mtime: Some(mtime) };
        // The object is on the slow tier: set only what that tier can hold.
        let new = self.slow.abilities.kept(&new);
        let given = xattrs.iter().try_for_each(|(key, (value, _))| match value {
            Some(value) => {
                fd.set_xattr(key, value).or_else(|e| if self.slow.never_takes(&e) { Ok(()) } else { Err(e) })
            }
            None => fd.remove_xattr(key),
        });
        given.and_then(|()| fd.set_attr(&new)).at("set attributes of", self.label(ino))?;
        io.attrs_in_view = false;
        Ok(())
    }

    /// `shown`: the stat of the object that has the attributes, if any.
    fn log_attr(&self, cx: &Cx, ino: Ino, new: &NewAttr, (io, shown): (Option<&Io>, Option<&Stat>)) -> Result<()> {
        let now = self.file_time();
        let mut st = self.state.lock();
        let has_object = io.is_some_and(|io| io.with_attrs().is_some());
        let path = st.view.path(ino);
        let event = path.filter(|_| self.is_in_order(&st, ino, io));
        let Some(path) = event else {
            // Goes with the content event, or ends with the last handle.
            cx.proceed()?;
            return self.apply_attr(&mut st, ino, new, now, None, has_object);
        };
        let of = subject(&st, ino, shown)?;
        let record = Record::SetAttr { path: path.into(), ino, of, new: *new };
        let change = Change::SetAttr { ino, of: Box::new(of), new: Box::new(*new) };
        let mut applied = Ok(());
        self.log_event(cx, &mut st, record, change, |st, lsn| {
            applied = self.apply_attr(st, ino, new, now, Some(lsn), has_object);
        })?;
        applied
    }

    /// Whether a change of the node is an event of its own. It is not for a file that never became an event.
    fn is_in_order(&self, st: &EngineState, ino: Ino, io: Option<&Io>) -> bool {
        let on_slow = st.view.get(ino).is_some_and(|node| node.slow_id().is_some());
        match io {
            Some(io) if io.object().is_some() => on_slow || io.has_event,
            _ => true,
        }
    }

    /// Changes the view's copy of the attributes. For a file with an object: only its names' attributes and the ctime,
    /// which counts while the object is clean.
    pub(crate) fn apply_attr(
        &self,
        st: &mut EngineState,
        ino: Ino,
        new: &NewAttr,
        now: Time,
        lsn: Option<u64>,
        has_object: bool,
    ) -> Result<()> {
        let node = st.view.get_mut(ino).ok_or(Errno::ESTALE)?;
        node.ours = true;
        if let Some(lsn) = lsn {
            node.set_meta_lsn(lsn);
            if new.mtime.is_some() {
                // This time is newer than that of any earlier write in place.
                st.in_place.forget_overtaken(ino);
            }
        }
        if let Some(perm) = new.perm
            && let Some((Some(list), at)) = node.xattrs().and_then(|xattrs| xattrs.get(acl::ACCESS))
            && let Some(changed) = acl::chmod(list, perm)
        {
            let at = lsn.unwrap_or(*at);
            node.change_xattrs(|xattrs| xattrs.insert(acl::ACCESS.to_vec(), (Some(changed), at)));
        }
        if let Some(perm) = new.perm
            && let Some(known) = node.dir.as_mut().and_then(|dir| dir.access_acl.as_mut())
        {
            known.list = known.list.take().and_then(|list| acl::chmod(&list, perm));
        }
        if has_object {
            node.change_meta(|meta| meta.ctime = now);
        } else {
            node.change_meta(|meta| meta.change(new, now));
        }
        Ok(())
    }

    /// Clears suid, and sgid of a group-executable file, before an unprivileged process changes the bytes. The kernel
    /// goes by its cached mode and must not run the new bytes with these bits.
    pub fn kill_privileges(&self, cx: &Cx, ino: Ino) -> Result<()> {
        let before = self.getattr(cx, ino)?.perm;
        let perm = chowned(before);
        if perm != before {
            self.change_attr(cx, ino, NewAttr { perm: Some(perm), ..NewAttr::default() })?;
            self.forget_attrs(ino);
        }
        Ok(())
    }

    pub fn readlink(&self, cx: &Cx, ino: Ino) -> Result<Vec<u8>> {
        {
            let st = self.state.lock();
            let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
            if node.kind != Kind::Symlink {
                return Err(Errno::EINVAL.into());
            }
            if !node.target().is_empty() {
                return Ok(node.target().to_vec());
            }
        }
        cx.slow()?;
        let target = self.at_slow(ino, |path, id| self.slow.act(path, id, |link| link.readlink()));
        let target = target.at("read link on slow", self.label(ino))?;
        if let Some(node) = self.state.lock().view.get_mut(ino) {
            // The target of a symbolic link never changes.
            node.set_target(target.clone());
        }
        Ok(target)
    }

    /// `Ok(None)`: no such attribute. `user.dlio.state` and `user.dlio.tier` can be read, but are not listed.
    pub fn get_xattr(&self, cx: &Cx, ino: Ino, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if key.starts_with(PRIVATE) {
            return self.own_xattr(cx, ino, key);
        }
        let (file, mut open) = (self.known_file(ino)?, None);
        if let Some(file) = file {
            let io = self.shared(cx, &file)?;
            open.clone_from(&io.fd);
            if let Some(object) = io.object() {
                if io.attrs_in_view
                    && let Some((value, _)) = self.state.lock().view.get(ino).and_then(|node| node.xattrs()?.get(key))
                {
                    return Ok(value.clone());
                }
                let fd = self.fd(cx, &io, object)?;
                let found = unsupported_is_none(fd.get_xattr(key)).at("read attribute of", self.label(ino))?;
                return Ok(if io.attrs_in_view { self.with_mode_of_view(ino, key, found) } else { found });
            }
        }
        {
            let st = self.state.lock();
            let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
            if let Some((value, _)) = node.xattrs().and_then(|xattrs| xattrs.get(key)) {
                return Ok(value.clone());
            }
            if open.is_none() && (node.slow_id().is_none() || st.view.slow_path(ino).is_none()) {
                return Ok(None);
            }
        }
        // The kernel asks for the ACL of each directory on a path, unless the caller owns it: this must not wait.
        if !self.slow.abilities.has(key) {
            return Ok(None);
        }
        if let Some(list) = self.acl_in_memory(ino, key, false) {
            return Ok(list);
        }
        let asked = ObservedAt::at(self.uptime());
        cx.slow()?;
        // An open file may have lost all its names.
        let found = match open {
            Some(fd) => fd.get_xattr(key),
            None => {
                let found = self.at_slow(ino, |path, id| self.slow.act(path, id, |inode| inode.get_xattr(key)));
                if found.as_ref().is_err_and(is_elsewhere) {
                    return self.xattr_of_gone(ino);
                }
                found
            }
        };
        let found = unsupported_is_none(found).at("read attribute on slow of", self.label(ino))?;
        let found = self.with_mode_of_view(ino, key, found);
        if key == acl::ACCESS
            && let Some(dir) = self.state.lock().view.get_mut(ino).and_then(|node| node.dir.as_mut())
        {
            dir.access_acl = Some(Box::new(KnownAcl { asked, list: found.clone() }));
        }
        Ok(found)
    }

    /// Puts the view's mode bits into an access ACL read from the tier, which does not have a pending `chmod` yet.
    fn with_mode_of_view(&self, ino: Ino, key: &[u8], found: Option<Vec<u8>>) -> Option<Vec<u8>> {
        if key != acl::ACCESS {
            return found;
        }
        let perm = self.state.lock().view.get(ino).filter(|node| node.ours).map(|node| node.meta().perm);
        let changed = found.as_deref().zip(perm).and_then(|(list, perm)| acl::chmod(list, perm));
        changed.or(found)
    }

    /// The cached access ACL of a directory. `None`: not cached, or older than attributes may be. `stale`: accept any
    /// age.
    pub fn acl_in_memory(&self, ino: Ino, key: &[u8], stale: bool) -> Option<Option<Vec<u8>>> {
        let st = self.state.lock();
        let node = st.view.get(ino).filter(|_| key == acl::ACCESS)?;
        let known = node.dir.as_ref()?.access_acl.as_ref()?;
        let limit = if node.ours { self.options().revalidate } else { self.options().attribute_lifetime_slow };
        let holds = stale || self.slow.is_down() || known.asked.fresh(self.uptime(), limit);
        holds.then(|| known.list.clone())
    }

    /// For an inode that a foreign change removed from the slow tier. The kernel asks for the ACL of what it opens.
    /// After ESTALE it looks the name up again and may create it; after ENOENT it would do neither.
    fn xattr_of_gone(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        if self.state.lock().view.owes_below(ino) {
            // Publishing makes it again.
            return Ok(None);
        }
        self.forget_seen(ino);
        Err(Errno::ESTALE.into())
    }

    pub fn list_xattr(&self, cx: &Cx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let (file, mut open) = (self.known_file(ino)?, None);
        if let Some(file) = file {
            let io = self.shared(cx, &file)?;
            open.clone_from(&io.fd);
            if let Some(object) = io.object() {
                let fd = self.fd(cx, &io, object)?;
                let mut keys = unsupported_is_none(fd.list_xattr()).at("list attributes of", self.label(ino))?;
                keys.retain(|key| !key.starts_with(PRIVATE));
                if io.attrs_in_view
                    && let Some(node) = self.state.lock().view.get(ino)
                {
                    keys.retain(|key| node.xattrs().is_none_or(|xattrs| !xattrs.contains_key(key)));
                    keys.extend(node.kept_xattrs());
                }
                return Ok(keys);
            }
        }
        let (pending, kept, on_slow) = {
            let st = self.state.lock();
            let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
            let on_slow = node.slow_id().is_some() && st.view.slow_path(ino).is_some();
            (node.xattrs().cloned().unwrap_or_default(), node.kept_xattrs(), on_slow)
        };
        let mut keys = Vec::new();
        if on_slow || open.is_some() {
            cx.slow()?;
            let listed = match open {
                Some(fd) => fd.list_xattr(),
                None => self.at_slow(ino, |path, id| self.slow.act(path, id, |inode| inode.list_xattr())),
            };
            keys = unsupported_is_none(listed).at("list attributes on slow of", self.label(ino))?;
            keys.retain(|key| !pending.contains_key(key) && !key.starts_with(PRIVATE));
        }
        keys.extend(kept);
        Ok(keys)
    }

    /// `create` and `replace`: XATTR_CREATE and XATTR_REPLACE.
    pub fn set_xattr(&self, cx: &Cx, ino: Ino, key: &[u8], value: &[u8], create: bool, replace: bool) -> Result<()> {
        self.change_xattr(cx, ino, key, Some(value), |exists| match exists {
            true if create => Err(Errno::EEXIST),
            false if replace => Err(Errno::ENODATA),
            _ => Ok(()),
        })
    }

    pub fn remove_xattr(&self, cx: &Cx, ino: Ino, key: &[u8]) -> Result<()> {
        self.change_xattr(cx, ino, key, None, |exists| if exists { Ok(()) } else { Err(Errno::ENODATA) })
    }

    fn change_xattr(
        &self,
        cx: &Cx,
        ino: Ino,
        key: &[u8],
        value: Option<&[u8]>,
        may: impl Fn(bool) -> Result<(), Errno>,
    ) -> Result<()> {
        if key.starts_with(PRIVATE) {
            return Err(Errno::EPERM.into());
        }
        if !travels(key) || !self.slow.abilities.has(key) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let old = self.get_xattr(cx, ino, key)?;
        may(old.is_some())?;
        let before = self.getattr(cx, ino)?;
        if key.starts_with(b"user.") && !matches!(before.kind, Kind::File | Kind::Dir) {
            return Err(Errno::EPERM.into());
        }
        // Setting an access ACL also sets the mode. An ACL equivalent to the mode is not stored.
        let mode =
            value.filter(|_| key == acl::ACCESS).map(|list| acl::mode_of(list, before.perm).ok_or(Errno::EINVAL));
        let mode = mode.transpose()?;
        let kept = if mode.is_some_and(|(_, minimal)| minimal) { None } else { value };
        let file = self.file_of(ino)?;
        if let Some(value) = kept {
            self.try_on_slow(cx, ino, key, value)?;
        }
        if let Some(file) = &file {
            self.forget_clean(cx, file)?;
        }
        let mut io = file.as_ref().map(|file| self.exclusive(cx, file)).transpose()?;
        self.move_attrs_to_view(ino, &before, io.as_deref_mut());
        // Open before the event, as in `change_attr`; if the object refuses the change, another event undoes it.
        let object = io.as_deref().and_then(|io| Some((io, io.with_attrs()?)));
        let fd = object.map(|(io, object)| self.fd(cx, io, object)).transpose()?;
        let shown = fd.as_ref().map(|fd| fd.stat().at("stat", self.label(ino))).transpose()?;
        let object = (io.as_deref(), shown.as_ref());
        self.log_xattr(cx, ino, key, kept, mode.map(|(perm, _)| perm), object)?;
        if let Some(fd) = fd {
            let set = |value: Option<&[u8]>, perm: Option<u32>| {
                value.map_or_else(|| fd.remove_xattr(key), |value| fd.set_xattr(key, value))?;
                perm.map_or(Ok(()), |perm| fd.set_attr(&NewAttr { perm: Some(perm), ..NewAttr::default() }))
            };
            if let Err(e) = set(kept, mode.map(|(perm, _)| perm)) {
                let perm = mode.map(|_| before.perm);
                set(old.as_deref(), perm).unwrap_or_default();
                self.log_xattr(cx, ino, key, old.as_deref(), perm, object)?;
                return Err(Error::io("set attribute of", self.label(ino), e));
            }
        }
        drop(io);
        self.wake();
        Ok(())
    }

    /// Refuses a value that does not fit beside the node's other attributes on the slow tier, by trying all of them on
    /// a file in `tmp`. As an event it would hold the order for ever. Small values fit everywhere.
    fn try_on_slow(&self, cx: &Cx, ino: Ino, key: &[u8], value: &[u8]) -> Result<()> {
        let mut all = Vec::new();
        for other in self.list_xattr(cx, ino)?.into_iter().filter(|other| other != key && travels(other)) {
            if let Some(value) = self.get_xattr(cx, ino, &other)? {
                all.push((other, value));
            }
        }
        // Last, after the existing ones: whether an attribute fits depends on those set before it.
        all.push((key.to_vec(), value.to_vec()));
        if all.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() <= XATTRS_EVERYWHERE {
            return Ok(());
        }
        cx.slow()?;
        let name = format!("p{:016x}", self.pool.number()).into_bytes();
        let tmp = &*self.slow.tmp;
        let file = match tmp.create(&name, 0o600) {
            // A tier that takes no new file for now says nothing about room for attributes, and must not block the
            // application.
            Err(e) if e.kind() == ErrorKind::ReadOnlyFilesystem || is_full(&e) => return Ok(()),
            file => file.at("try attribute on slow of", self.label(ino))?,
        };
        // ACLs name users that the file's owner chooses; only their size matters here.
        let tried = all.iter().enumerate().try_for_each(|(i, (key, value))| match key.starts_with(b"user.") {
            true => file.set_xattr(key, value),
            false => file.set_xattr(format!("user.p{i}").as_bytes(), value),
        });
        let removed = crate::tiers::disk::layout::remove_leftover(tmp, &name);
        tried.at("try attribute on slow of", self.label(ino)).and(removed)
    }

    /// Drops a clean object before one of its extended attributes changes: after a power cut one could not tell whether
    /// the change is on the object, in the log or in neither. Readers go on with the slow file. The object becomes a
    /// new version instead if there are writers (the next write to a large file would go in place to the slow file), if
    /// the slow tier does not answer, or if it no longer has the file: then the object is the only copy.
    fn forget_clean(&self, cx: &Cx, file: &Arc<FileState>) -> Result<()> {
        if self.shared(cx, file)?.clean().is_none() {
            return Ok(());
        }
        if file.writers.load(Ordering::Acquire) > 0 || self.slow.is_down() || self.is_gone_from_slow(cx, file.ino)? {
            return self.make_writable(cx, file);
        }
        let is_open = file.opens.load(Ordering::Acquire) > 0;
        let fd = is_open.then(|| self.open_slow(cx, file.ino, Access::Read)).transpose()?;
        let mut io = self.exclusive(cx, file)?;
        let (Some(fingerprint), Some(object)) = (io.clean(), io.object()) else { return Ok(()) };
        if file.is_pinned() {
            return Ok(());
        }
        let shown = self.pool.stat(object.number).at_fast("stat", "object")?;
        let mut st = self.state.lock();
        self.remember_attrs(&mut st, file.ino, &shown, fingerprint);
        self.drop_clean(&mut st, file, &mut io);
        io.fd = fd;
        Ok(())
    }

    fn is_gone_from_slow(&self, cx: &Cx, ino: Ino) -> Result<bool> {
        cx.slow()?;
        match self.at_slow(ino, |path, id| self.slow.stat_of(path, id)) {
            Err(e) if is_elsewhere(&e) => Ok(true),
            found => found.at("stat on slow", self.label(ino)).map(|_| false),
        }
    }

    fn log_xattr(
        &self,
        cx: &Cx,
        ino: Ino,
        key: &[u8],
        value: Option<&[u8]>,
        perm: Option<u32>,
        (io, shown): (Option<&Io>, Option<&Stat>),
    ) -> Result<()> {
        let now = self.file_time();
        let mut st = self.state.lock();
        let has_object = io.is_some_and(|io| io.with_attrs().is_some());
        let mode = perm.map(|perm| NewAttr { perm: Some(perm), ..NewAttr::default() });
        let event = st.view.path(ino).filter(|_| self.is_in_order(&st, ino, io));
        let Some(path) = event.map(LoggedPath::from) else {
            cx.proceed()?;
            apply_xattr(&mut st, ino, key, value, None, now, has_object);
            return mode.map_or(Ok(()), |new| self.apply_attr(&mut st, ino, &new, now, None, has_object));
        };
        let of = subject(&st, ino, shown)?;
        let new = (key.to_vec(), value.map(<[u8]>::to_vec));
        let record = Record::SetXattr { path: path.clone(), ino, of, key: new.0.clone(), value: new.1.clone() };
        let change = Change::SetXattr { ino, of: Box::new(of), new: Box::new(new) };
        // One append: a kill between two would leave the ACL with the old mode.
        let behind = mode.map(|new| {
            let change = Change::SetAttr { ino, of: Box::new(of), new: Box::new(new) };
            (Record::SetAttr { path, ino, of, new }, Some(change))
        });
        let mut applied = Ok(());
        self.room_for_event(cx, &st)?;
        self.log_event_and(cx, &mut st, (record, behind), change, |st, lsn| {
            apply_xattr(st, ino, key, value, Some(lsn), now, has_object);
            if let Some(new) = mode {
                applied = self.apply_attr(st, ino, &new, now, Some(lsn + 1), has_object);
            }
        })?;
        applied
    }

    /// The values of `user.dlio.state` and `user.dlio.tier` of an inode.
    pub(crate) fn file_status(&self, cx: &Cx, ino: Ino) -> Result<(FileStatus, TierKind)> {
        let (pending, kind, file) = {
            let mut st = self.state.lock();
            let kind = st.view.get(ino).ok_or(Errno::ESTALE)?.kind;
            let pending =
                st.uncommitted.has(ino) || st.queue.events().iter().any(|event| event.change.inodes().contains(&ino));
            (pending, kind, st.known_file(ino))
        };
        let has_copy = kind == Kind::File && self.copy_number(ino).is_some_and(|number| self.copies.has(number));
        let Some(file) = file else {
            if has_copy && !pending {
                return Ok((FileStatus::Staged, TierKind::Fast));
            }
            let state = if pending { FileStatus::Dirty } else { FileStatus::Slow };
            // A file without a state has its bytes on the slow tier, even with pending events on its names.
            let fast = pending && kind != Kind::File;
            return Ok((state, if fast { TierKind::Fast } else { TierKind::Slow }));
        };
        let (object, has_copy) = {
            let io = self.shared(cx, &file)?;
            // A handle opened before the copy was made reads and writes on slow.
            (io.object(), has_copy && (io.copy.is_some() || (io.place == Bytes::Slow && io.fd.is_none())))
        };
        let tier = match object {
            Some(object) if object.home == Home::Fast => TierKind::Fast,
            _ => TierKind::Slow,
        };
        let state = if file.failed.load(Ordering::Acquire) {
            FileStatus::Failed
        } else if file.draining.load(Ordering::Acquire) {
            FileStatus::Draining
        } else if pending {
            FileStatus::Dirty
        } else if object.is_some() {
            FileStatus::Clean
        } else if has_copy {
            FileStatus::Staged
        } else {
            FileStatus::Slow
        };
        Ok((state, if state == FileStatus::Staged { TierKind::Fast } else { tier }))
    }

    fn own_xattr(&self, cx: &Cx, ino: Ino, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let (status, tier) = self.file_status(cx, ino)?;
        let word = match key {
            STATE => match status {
                FileStatus::Slow => "slow",
                FileStatus::Dirty => "dirty",
                FileStatus::Draining => "draining",
                FileStatus::Clean => "clean",
                FileStatus::Staged => "staged",
                FileStatus::Failed => "failed",
            },
            TIER => match tier {
                TierKind::Fast => "fast",
                TierKind::Slow => "slow",
            },
            _ => return Ok(None),
        };
        Ok(Some(word.as_bytes().to_vec()))
    }

    /// The slow tier's size, and its free space minus what is pending.
    pub fn statfs(&self, cx: &Cx) -> Result<Space> {
        let pending = self.pending_bytes();
        let space = match self.counters.slow_space() {
            Some(space) if self.slow.is_down() || matches!(cx.slow(), Err(Error::NeedSlow)) => space,
            _ => {
                cx.slow()?;
                let space = self.slow.root.space().at("statfs", "slow tier")?;
                self.counters.set_slow_space(space);
                space
            }
        };
        Ok(Space { free: space.free.saturating_sub(pending), avail: space.avail.saturating_sub(pending), ..space })
    }
}

/// Turns EOPNOTSUPP into "no such attribute". The kernel asks for the ACL first and on an error would deny access to
/// all but the owner.
fn unsupported_is_none<T: Default>(found: std::io::Result<T>) -> std::io::Result<T> {
    match found {
        Err(e) if e.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(T::default()),
        found => found,
    }
}

/// The node as it is now, for an event that changes its attributes. `shown`: the stat of the object that has them, if
/// any.
fn subject(st: &EngineState, ino: Ino, shown: Option<&Stat>) -> Result<AttrsOf> {
    let node = st.view.get(ino).ok_or(Errno::ESTALE)?;
    let (kind, meta) = (node.kind, node.meta());
    let (uid, gid) = shown.map_or((meta.uid, meta.gid), |shown| (shown.uid, shown.gid));
    Ok(AttrsOf { owned: Owned { kind, uid, gid }, slow: st.known_on_slow(ino) })
}

/// The change that undoes `new`.
fn undone(new: &NewAttr, before: &Attr) -> NewAttr {
    NewAttr {
        uid: new.uid.map(|_| before.uid),
        gid: new.gid.map(|_| before.gid),
        perm: new.perm.map(|_| before.perm),
        atime: new.atime.map(|_| before.atime),
        mtime: new.mtime.map(|_| before.mtime),
    }
}

/// Mode bits after a chown, or after a write by an unprivileged process (Linux `setattr_should_drop_suidgid`).
fn chowned(perm: u32) -> u32 {
    let perm = perm & !0o4000;
    if perm & 0o2010 == 0o2010 { perm & !0o2000 } else { perm }
}

/// Changes the view's copy of an extended attribute. A file with an object has it on the object as well; the view also
/// records it because the object may be dropped before the event is published.
pub(crate) fn apply_xattr(
    st: &mut EngineState,
    ino: Ino,
    key: &[u8],
    value: Option<&[u8]>,
    lsn: Option<u64>,
    now: Time,
    has_object: bool,
) {
    let Some(node) = st.view.get_mut(ino) else { return };
    node.ours = true;
    node.change_meta(|meta| meta.ctime = now);
    if key == acl::DEFAULT
        && let Some(dir) = &mut node.dir
    {
        dir.default_acl = None;
    }
    if key == acl::ACCESS
        && let Some(dir) = &mut node.dir
    {
        dir.access_acl = Some(Box::new(KnownAcl { asked: ObservedAt::NEVER, list: value.map(<[u8]>::to_vec) }));
    }
    if lsn.is_some() || !has_object {
        let value = (value.map(<[u8]>::to_vec), lsn.unwrap_or(u64::MAX));
        node.change_xattrs(|xattrs| xattrs.insert(key.to_vec(), value));
    }
}
