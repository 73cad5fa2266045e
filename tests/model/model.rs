//! What the engine is expected to answer and to show after each operation.
//!
//! The view is the reference's tree. The order has the events: names as they change, a file's content when it is
//! committed - by a writer's close, by fsync, by a namespace event on the file while it has changes that were not.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Allocate, Kind, NewAttr, RenameMode, Time};

use super::ops::{Op, Path};
use super::order::{Content, Event, Order};
use super::reference::{Fs, Id, Node, Place, ROOT};

/// Places for open files.
pub const SLOTS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub id: Id,
    pub write: bool,
}

#[derive(Clone, Debug)]
pub struct Model {
    pub view: Fs,
    pub order: Order,
    /// Files with bytes that no event has, or that never became one; since when.
    pub dirty: BTreeMap<Id, Duration>,
    /// Files that were taken in while somebody was at work on them, and since when they had such bytes: that time goes on.
    unfinished: BTreeMap<Id, Duration>,
    /// Those of the dirty ones that a kill cut off: only who closes or syncs them commits them.
    cut_off: BTreeSet<Id>,
    pub open: [Option<Open>; SLOTS],
    /// The most names that a file gets, if it is few.
    pub names_max: Option<usize>,
    /// Uptime.
    pub now: Duration,
    next: Id,
    /// What the next write writes.
    pub fill: u8,
}

/// What an operation that succeeded did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// The file whose bytes or times it changed: its time of change is the engine's to choose.
    pub touched: Option<Id>,
    /// Bytes read or copied.
    pub bytes: u64,
}

impl Model {
    pub fn new(view: Fs) -> Model {
        Model {
            next: view.largest_id() + 1,
            order: Order::new(view.clone()),
            view,
            dirty: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            open: [None; SLOTS],
            names_max: None,
            now: Duration::ZERO,
            fill: 0,
        }
    }

    /// Does what the operation does to the view, and all events that do not depend on the new time of a touched file.
    /// The rest is for [`Model::finish`].
    pub fn apply(&mut self, op: &Op) -> Result<Done, Errno> {
        match op {
            Op::Mkdir { path, mode, umask, uid } => {
                self.make(path, Kind::Dir, mode & !umask, (*uid, *uid), |_| ()).map(|_| Done::default())
            }
            Op::Mknod { path, kind: Kind::File, mode, .. } => {
                let id = self.make_file(path, *mode, 0)?;
                Ok(Done { touched: Some(id), bytes: 0 })
            }
            Op::Mknod { path, kind, mode, rdev } => {
                self.make(path, *kind, *mode, (0, 0), |node| node.rdev = *rdev).map(|_| Done::default())
            }
            Op::Symlink { path, target } => {
                let made = self.make(path, Kind::Symlink, 0o777, (0, 0), |node| node.target = target.0.clone());
                made.map(|_| Done::default())
            }
            Op::Create { slot, path, mode, umask, uid } => {
                let id = self.make_file(path, mode & !umask, *uid)?;
                self.open[*slot] = Some(Open { id, write: true });
                Ok(Done { touched: Some(id), bytes: 0 })
            }
            Op::Open { slot, path, write, truncate } => {
                let id = self.view.find(&path.0)?;
                self.open[*slot] = Some(Open { id, write: *write });
                if *truncate && *write {
                    self.set_bytes(id, Arc::default(), true);
                    return Ok(Done { touched: Some(id), bytes: 0 });
                }
                Ok(Done::default())
            }
            Op::Write { slot, at, len, kill_privileges } => Ok(self.write(*slot, *at, *len, *kill_privileges)),
            Op::Read { slot, at, len } => {
                let open = self.open[*slot].expect("only with a file in the slot");
                let size = self.view.node(open.id).bytes.len() as u64;
                Ok(Done { touched: None, bytes: size.saturating_sub(*at).min(*len as u64) })
            }
            Op::Allocate { slot, what, at, len } => Ok(self.allocate(*slot, *what, *at, *len)),
            Op::Copy { from, at, to, to_at, len } => Ok(self.copy((*from, *at), (*to, *to_at), *len)),
            Op::Truncate { path, len } => {
                let id = self.view.find(&path.0)?;
                let mut bytes = self.view.node(id).bytes.to_vec();
                bytes.resize(*len as usize, 0);
                self.set_bytes(id, bytes.into(), *len == 0);
                Ok(Done { touched: Some(id), bytes: 0 })
            }
            Op::SetAttr { path, new } => {
                let id = self.view.find(&path.0)?;
                self.set_attr(id, *new);
                Ok(Done::default())
            }
            Op::SetXattr { path, key, value, create, replace } => {
                self.set_xattr(path, *key, *value, *create, *replace).map(|()| Done::default())
            }
            Op::Link { from, to } => {
                let (id, at) = self.view.may_link(&from.0, &to.0)?;
                if self.names_max.is_some_and(|most| self.view.names(id).len() >= most) {
                    return Err(Errno::EMLINK);
                }
                self.commit(id);
                self.view.put(&at, Some(id));
                self.order.push(Event::Link { id, at });
                Ok(Done::default())
            }
            Op::Unlink { path } => {
                let (id, at) = self.view.may_unlink(&path.0)?;
                self.remove(id, at);
                Ok(Done::default())
            }
            Op::Rmdir { path } => {
                let (id, at) = self.view.may_rmdir(&path.0)?;
                self.remove(id, at);
                Ok(Done::default())
            }
            Op::Rename { from, to, mode } => self.rename(from, to, *mode).map(|()| Done::default()),
            Op::Prioritize { path } => self.view.find(&path.0).map(|_| Done::default()),
            Op::FsyncDir { path } => {
                let id = self.view.find(&path.0)?;
                if self.view.node(id).kind == Kind::Dir { Ok(Done::default()) } else { Err(Errno::ENOTDIR) }
            }
            Op::Flush { .. }
            | Op::Fsync { .. }
            | Op::Release { .. }
            | Op::SyncFast
            | Op::Run(_)
            | Op::Advance { .. }
            | Op::Crash { .. }
            | Op::During { .. }
            | Op::Under { .. }
            | Op::Look
            | Op::Pin { .. }
            | Op::Stage { .. }
            | Op::Pause { .. }
            | Op::Room { .. }
            | Op::Fail(_)
            | Op::Settle => Ok(Done::default()),
        }
    }

    /// The contents that the operation commits, now that the touched file's time is known.
    pub fn finish(&mut self, op: &Op, done: Done) {
        match op {
            Op::Mknod { kind: Kind::File, .. } => done.touched.into_iter().for_each(|id| self.commit(id)),
            // Another writer's close decides when the bytes are complete.
            Op::Truncate { .. } => {
                let id = done.touched.expect("it changes a file");
                if !self.open.iter().flatten().any(|open| open.id == id && open.write) {
                    self.commit(id);
                }
            }
            Op::Flush { slot } => {
                let open = self.open[*slot].expect("only with a file in the slot");
                if open.write {
                    self.commit(open.id);
                }
            }
            // Another writer's close decides, as above.
            Op::Release { slot } => {
                let open = self.open[*slot].take().expect("only with a file in the slot");
                if open.write && !self.open.iter().flatten().any(|other| other.id == open.id && other.write) {
                    self.commit(open.id);
                }
            }
            Op::Fsync { slot } => {
                let id = self.open[*slot].expect("only with a file in the slot").id;
                self.commit(id);
                self.order.synced(|file| file == id);
            }
            Op::Prioritize { path } => {
                let file = self.view.find(&path.0).expect("it was there a moment ago");
                if !self.cut_off.contains(&file) {
                    self.commit_all(|id| id == file);
                }
            }
            Op::FsyncDir { path } => {
                let dir = self.view.find(&path.0).expect("it was there a moment ago");
                if dir == ROOT {
                    return self.finish(&Op::SyncFast, done);
                }
                let files: Vec<Id> = self.view.node(dir).children.values().copied().collect();
                self.commit_all(|id| files.contains(&id));
                self.order.synced(|id| files.contains(&id));
            }
            Op::SyncFast => {
                self.commit_all(|_| true);
                self.order.synced(|_| true);
            }
            _ => {}
        }
    }

    /// A file was closed, and what was written to it may have become an event by that, or will by a tick.
    pub fn close(&mut self, op: &Op) {
        let Op::Release { slot } = op else { return };
        let open = self.open[*slot].take().expect("only with a file in the slot");
        if self.dirty.contains_key(&open.id) {
            self.maybe_commit(open.id);
        }
    }

    /// The engine has taken in files held open for longer than this; or it will.
    pub fn late(&mut self, live_after: Duration) {
        let is_due = |id: &Id, since: Duration| self.now >= since + live_after && !self.cut_off.contains(id);
        let due: Vec<Id> = self.dirty.iter().filter(|(id, since)| is_due(id, **since)).map(|d| *d.0).collect();
        due.into_iter().for_each(|id| self.maybe_commit(id));
    }

    /// The time of change that the engine gave a touched file.
    pub fn adopt_time(&mut self, id: Id, mtime: Time) {
        self.view.node_mut(id).mtime = mtime;
    }

    /// The bytes and time that a crash left of a file in the middle of a change.
    pub fn adopt_bytes(&mut self, id: Id, bytes: &Arc<Vec<u8>>, mtime: Time) {
        let node = self.view.node_mut(id);
        node.bytes = bytes.clone();
        node.mtime = mtime;
        self.order.wrote(id, bytes, false);
        self.soil(id);
    }

    /// A crash closed everything.
    pub fn crashed(&mut self) {
        self.open = [None; SLOTS];
        self.unfinished.clear();
        let view = &self.view;
        self.dirty.retain(|id, _| !view.names(*id).is_empty());
        self.cut_off = self.dirty.keys().copied().collect();
    }

    /// The paths that lead to a file.
    pub fn paths_of(&self, id: Id) -> Vec<Vec<u8>> {
        self.view.paths().into_iter().filter(|(_, of)| *of == id).map(|(path, _)| path).collect()
    }

    /// From now on the slow tier may show the file as it is, or not yet.
    pub fn maybe_commit(&mut self, id: Id) {
        if let Some(content) = self.content(id) {
            self.order.maybe(content);
        }
    }

    fn content(&self, id: Id) -> Option<Content> {
        let at = self.view.names(id).into_iter().next()?;
        Some(self.order.content(id, at, self.view.shared(id)))
    }

    fn commit(&mut self, id: Id) {
        self.cut_off.remove(&id);
        self.unfinished.remove(&id);
        if self.dirty.remove(&id).is_some()
            && let Some(content) = self.content(id)
        {
            self.order.push(Event::Content(content));
        }
    }

    /// Commits several files; nobody says in which order.
    fn commit_all(&mut self, which: impl Fn(Id) -> bool) {
        let files: Vec<Id> = self.dirty.keys().copied().filter(|id| which(*id)).collect();
        if files.len() > 1 {
            files.iter().for_each(|id| self.maybe_commit(*id));
        }
        for id in files {
            let since = self.dirty[&id];
            self.commit(id);
            if self.open.iter().flatten().any(|open| open.write && open.id == id) {
                self.unfinished.insert(id, since);
            }
        }
    }

    fn soil(&mut self, id: Id) {
        let since = self.unfinished.get(&id).copied().unwrap_or(self.now);
        self.dirty.entry(id).or_insert(since);
    }

    fn next_id(&mut self) -> Id {
        self.next += 1;
        self.next - 1
    }

    fn born(&self, dir: Id, kind: Kind, perm: u32, (uid, gid): (u32, u32)) -> Node {
        let parent = self.view.node(dir);
        let inherits = parent.perm & 0o2000 != 0;
        let gid = if inherits { parent.gid } else { gid };
        let perm = if inherits && kind == Kind::Dir { perm | 0o2000 } else { perm };
        Node::new(kind, perm, uid, gid)
    }

    fn make(
        &mut self,
        path: &Path,
        kind: Kind,
        perm: u32,
        owner: (u32, u32),
        dress: impl FnOnce(&mut Node),
    ) -> Result<Id, Errno> {
        let at = self.view.may_make(&path.0)?;
        let mut node = self.born(at.0, kind, perm, owner);
        dress(&mut node);
        let id = self.next_id();
        let node = Rc::new(node);
        self.view.insert(id, node.clone());
        self.view.put(&at, Some(id));
        self.order.push(Event::Make { id, at, node });
        Ok(id)
    }

    fn make_file(&mut self, path: &Path, perm: u32, uid: u32) -> Result<Id, Errno> {
        let at = self.view.may_make(&path.0)?;
        let node = self.born(at.0, Kind::File, perm, (uid, uid));
        let id = self.next_id();
        self.view.insert(id, Rc::new(node));
        self.view.put(&at, Some(id));
        self.dirty.insert(id, self.now);
        self.order.wrote(id, &Arc::default(), true);
        Ok(id)
    }

    fn set_bytes(&mut self, id: Id, bytes: Arc<Vec<u8>>, anew: bool) {
        self.order.wrote(id, &bytes, anew);
        self.view.node_mut(id).bytes = bytes;
        self.soil(id);
        // What may have been taken in as a whole before the kill may not have been cut off: this may be its first change since.
        if anew || self.order.may_have(id) {
            self.cut_off.remove(&id);
        }
    }

    fn write(&mut self, slot: usize, at: Option<u64>, len: usize, kill_privileges: bool) -> Done {
        let id = self.open[slot].expect("only with a file in the slot").id;
        self.fill = self.fill % 250 + 1;
        let at = at.map_or(self.view.node(id).bytes.len(), |at| at as usize);
        self.put_bytes(id, at, &vec![self.fill; len]);
        let node = self.view.node(id);
        let perm = node.without_privileges();
        if kill_privileges && perm != node.perm {
            self.set_attr(id, NewAttr { perm: Some(perm), ..NewAttr::default() });
        }
        Done { touched: Some(id), bytes: len as u64 }
    }

    fn put_bytes(&mut self, id: Id, at: usize, new: &[u8]) {
        let mut bytes = self.view.node(id).bytes.to_vec();
        bytes.resize(bytes.len().max(at + new.len()), 0);
        bytes[at..at + new.len()].copy_from_slice(new);
        self.set_bytes(id, bytes.into(), false);
    }

    fn allocate(&mut self, slot: usize, what: Allocate, at: u64, len: u64) -> Done {
        let id = self.open[slot].expect("only with a file in the slot").id;
        let mut bytes = self.view.node(id).bytes.to_vec();
        let (at, end) = (at as usize, (at + len) as usize);
        if matches!(what, Allocate::Extend | Allocate::ZeroRange) {
            bytes.resize(bytes.len().max(end), 0);
        }
        if !matches!(what, Allocate::Extend | Allocate::KeepSize) {
            let end = end.min(bytes.len());
            bytes[at.min(end)..end].fill(0);
        }
        self.set_bytes(id, bytes.into(), false);
        Done { touched: Some(id), bytes: 0 }
    }

    fn copy(&mut self, (from, at): (usize, u64), (to, to_at): (usize, u64), len: u64) -> Done {
        let [from, to] = [from, to].map(|slot| self.open[slot].expect("only with a file in the slot").id);
        let source = self.view.node(from).bytes.clone();
        let start = (at as usize).min(source.len());
        let end = start.saturating_add(len as usize).min(source.len());
        if start == end {
            return Done::default();
        }
        self.put_bytes(to, to_at as usize, &source[start..end]);
        Done { touched: Some(to), bytes: (end - start) as u64 }
    }

    fn set_attr(&mut self, id: Id, mut new: NewAttr) {
        let node = self.view.node(id);
        if (new.uid.is_some() || new.gid.is_some()) && new.perm.is_none() && node.kind != Kind::Dir {
            new.perm = Some(node.without_privileges());
        }
        self.view.node_mut(id).set(&new);
        self.attribute_event(id, Event::Attr { id, new });
    }

    /// A change of attributes was refused behind its event: another event undoes it, and the slow tier may show it in between.
    pub fn undo(&mut self, op: &Op) {
        let (Op::SetAttr { path, .. } | Op::SetXattr { path, .. }) = op else { return };
        let Ok(id) = self.view.find(&path.0) else { return };
        let node = self.view.shared(id);
        match op {
            Op::SetAttr { new, .. } => {
                let Node { perm, uid, gid, mtime, .. } = *node;
                let old = NewAttr { perm: Some(perm), uid: Some(uid), gid: Some(gid), mtime: Some(mtime), atime: None };
                self.set_attr(id, *new);
                self.set_attr(id, old);
            }
            Op::SetXattr { key, value, .. } => {
                let (key, value) = xattr(*key, *value);
                let old = node.xattrs.get(&key).cloned();
                self.attribute_event(id, Event::Xattr { id, key: key.clone(), value });
                self.attribute_event(id, Event::Xattr { id, key, value: old });
            }
            _ => {}
        }
    }

    /// Of a file that never became an event, attributes travel with the content.
    fn attribute_event(&mut self, id: Id, event: Event) {
        if self.view.names(id).is_empty() && id != ROOT {
            return;
        }
        if id == ROOT || self.order.has(id) {
            self.order.push(event);
        } else {
            self.order.maybe_changed(&event);
        }
    }

    fn set_xattr(&mut self, path: &Path, key: u8, value: Option<u8>, create: bool, replace: bool) -> Result<(), Errno> {
        let id = self.view.find(&path.0)?;
        let (key, value) = xattr(key, value);
        let exists = self.view.node(id).xattrs.contains_key(&key);
        match &value {
            None if !exists => return Err(Errno::ENODATA),
            Some(_) if create && exists => return Err(Errno::EEXIST),
            Some(_) if replace && !exists => return Err(Errno::ENODATA),
            _ => {}
        }
        let xattrs = &mut self.view.node_mut(id).xattrs;
        match &value {
            Some(value) => drop(xattrs.insert(key.clone(), value.clone())),
            None => drop(xattrs.remove(&key)),
        }
        self.attribute_event(id, Event::Xattr { id, key, value });
        Ok(())
    }

    fn remove(&mut self, id: Id, at: Place) {
        self.view.put(&at, None);
        if self.order.has_name(&at) {
            self.order.push(Event::Remove { id, at });
        } else {
            self.order.forget(id);
        }
    }

    fn rename(&mut self, from: &Path, to: &Path, mode: RenameMode) -> Result<(), Errno> {
        let moved = self.view.may_rename(&from.0, &to.0, mode)?;
        if moved.over == Some(moved.id) {
            return Ok(());
        }
        self.commit(moved.id);
        if let (RenameMode::Exchange, Some(over)) = (mode, moved.over) {
            self.commit(over);
            self.view.put(&moved.from, Some(over));
            self.view.put(&moved.to, Some(moved.id));
            self.order.push(Event::Exchange { a: moved.id, a_at: moved.from, b: over, b_at: moved.to });
        } else {
            self.view.put(&moved.from, None);
            self.view.put(&moved.to, Some(moved.id));
            self.order.push(Event::Rename { id: moved.id, from: moved.from, to: moved.to });
        }
        Ok(())
    }
}

/// The extended attribute that an operation speaks of.
pub fn xattr(key: u8, value: Option<u8>) -> (Vec<u8>, Option<Vec<u8>>) {
    (format!("user.k{key}").into_bytes(), value.map(|value| vec![value; usize::from(value % 8)]))
}
