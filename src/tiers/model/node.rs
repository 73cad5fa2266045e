//! The numerous parts of the view: the node behind an inode number, the slot behind a name. `model/view.rs` connects
//! them, and changes them when something is logged, published or seen; the `pub(super)` items are for it.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::path::Name;
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::{FileId, Kind, NewAttr, SlowId, Stat, Time};
use crate::tiers::objects::file::{FileState, Resident};
use crate::tiers::objects::version::Content;
use crate::tiers::{Ino, Lsn, SharedListing};

/// A name in a directory.
pub(crate) type DirEntryKey = (Ino, Name);

/// A node's attributes, unless an object on fast has newer ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeAttrs {
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u64,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

impl NodeAttrs {
    pub(super) fn of(stat: &Stat) -> Self {
        let Stat { perm, uid, gid, rdev, nlink, size, blocks, atime, mtime, ctime, .. } = *stat;
        NodeAttrs { perm, uid, gid, rdev, nlink, size, blocks, atime, mtime, ctime }
    }

    pub(crate) fn change(&mut self, new: &NewAttr, now: Time) {
        self.uid = new.uid.unwrap_or(self.uid);
        self.gid = new.gid.unwrap_or(self.gid);
        self.perm = new.perm.unwrap_or(self.perm);
        self.atime = new.atime.unwrap_or(self.atime);
        self.mtime = new.mtime.unwrap_or(self.mtime);
        self.ctime = now;
    }
}

/// A node's names, usually one: no room is reserved for more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkNames {
    One(DirEntryKey),
    /// None, or more than one.
    #[allow(clippy::box_collection, reason = "in 8 bytes, for which `One` has room beside its own")]
    Other(Option<Box<Vec<DirEntryKey>>>),
}

impl Default for LinkNames {
    fn default() -> Self {
        LinkNames::Other(None)
    }
}

impl std::ops::Deref for LinkNames {
    type Target = [DirEntryKey];

    fn deref(&self) -> &[DirEntryKey] {
        match self {
            LinkNames::One(place) => std::slice::from_ref(place),
            LinkNames::Other(places) => places.as_deref().map_or(&[], |places| places),
        }
    }
}

impl FromIterator<DirEntryKey> for LinkNames {
    fn from_iter<T: IntoIterator<Item = DirEntryKey>>(places: T) -> Self {
        let mut places: Vec<DirEntryKey> = places.into_iter().collect();
        match (places.pop(), places.is_empty()) {
            (None, _) => LinkNames::default(),
            (Some(one), true) => LinkNames::One(one),
            (Some(last), false) => {
                places.push(last);
                LinkNames::Other(Some(Box::new(places)))
            }
        }
    }
}

impl LinkNames {
    pub(super) fn add(&mut self, place: DirEntryKey) {
        *self = self.iter().cloned().chain([place]).collect();
    }

    pub(super) fn remove(&mut self, place: &DirEntryKey) {
        *self = self.iter().filter(|name| *name != place).cloned().collect();
    }
}

/// When the slow tier was asked, by uptime, in four bytes. Rounded down: an answer seems older than it is, never
/// younger. After eight years every answer is too old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObservedAt(u32);

impl ObservedAt {
    /// The slow tier must be asked.
    pub(crate) const NEVER: ObservedAt = ObservedAt(0);
    const PER_SECOND: u128 = 16;

    pub(crate) fn at(now: Duration) -> Self {
        let ticks = now.as_nanos() * Self::PER_SECOND / Duration::from_secs(1).as_nanos();
        ObservedAt(u32::try_from(ticks + 1).unwrap_or(0))
    }

    /// The uptime of the answer; zero for never.
    pub(crate) fn since_start(self) -> Duration {
        Duration::from_secs(1) * self.0.saturating_sub(1) / Self::PER_SECOND as u32
    }

    /// Whether an answer from then is still valid.
    pub(crate) fn fresh(self, now: Duration, limit: Duration) -> bool {
        let Some(ticks) = self.0.checked_sub(1) else { return false };
        let at = Duration::from_secs(1) * ticks / Self::PER_SECOND as u32;
        now.saturating_sub(at) < limit
    }
}

/// A million of these are in memory at once: rare fields are behind a pointer, no fact is stored twice, and
/// [`NodeAttrs`] is stored field by field to avoid padding.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Changed through this mount: its times are the view's, not the slow tier's.
    pub(crate) ours: bool,
    /// The slow tier has it, as `slow_dev`, `slow_ino` and `slow_birth`.
    pub(super) on_slow: bool,
    /// The slow file has the attributes of the node, so its fingerprint follows from them.
    slow_is_alike: bool,
    resident: Resident,
    /// It was read from a staged copy when it was last opened.
    pub(crate) staged: bool,
    perm: u16,
    /// When the attributes were last read from the slow tier.
    pub(crate) seen: ObservedAt,
    /// Pending events and open files.
    pub(crate) pins: u32,
    /// References that the kernel holds.
    pub(crate) refs: u64,
    /// Its names in the view. Empty: removed.
    pub(crate) links: LinkNames,
    /// While the slow tier does not have the node, `slow_ino` may be [`NO_NAMES`].
    slow_ino: u64,
    /// Linux has no longer device numbers.
    slow_dev: u32,
    slow_birth: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    /// For atime, mtime and ctime.
    nsec: [u32; 3],
    sec: [i64; 3],
    size: u64,
    blocks: u64,
    rare: Option<Box<Rare>>,
    pub(crate) dir: Option<Box<DirNode>>,
    /// Made when the file is opened or changed. Without it the bytes are not in use, and `resident` says where they
    /// are: ask [`EngineState::known_file`](crate::tiers::model::state::EngineState::known_file) when that matters.
    pub(crate) file: Option<Arc<FileState>>,
}

/// The inode number of a node that the slow tier does not have: it has no names there either, whatever its names in the
/// view. All new files are in this state while they wait.
const NO_NAMES: u64 = u64::MAX;

/// Fields that few nodes have.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rare {
    /// Its names on the slow tier, if they differ from those in the view and are not empty as [`NO_NAMES`] says.
    slow: Option<LinkNames>,
    /// The slow tier's fingerprint, if it does not follow from the node's attributes.
    slow_fingerprint: Option<Fingerprint>,
    /// The event of the latest change that the attributes include.
    meta_lsn: Lsn,
    xattrs: Xattrs,
    /// The target of a symbolic link.
    target: Vec<u8>,
    /// The number of a device.
    rdev: u64,
    /// A foreign change has put another file in its place that the kernel has not looked up yet: the kernel still
    /// checks access by the former file.
    unshown: bool,
}

/// Extended attributes that the slow tier does not have yet; `None` removes.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, (Option<Vec<u8>>, Lsn)>;

impl Node {
    pub(super) fn new(kind: Kind, meta: NodeAttrs) -> Box<Node> {
        let mut node = Box::new(Node {
            kind,
            ours: false,
            on_slow: false,
            slow_is_alike: false,
            resident: Resident::OnSlow,
            staged: false,
            perm: 0,
            seen: ObservedAt::NEVER,
            pins: 0,
            refs: 0,
            links: LinkNames::default(),
            slow_ino: 0,
            slow_dev: 0,
            slow_birth: 0,
            uid: 0,
            gid: 0,
            nlink: 0,
            nsec: [0; 3],
            sec: [0; 3],
            size: 0,
            blocks: 0,
            rare: None,
            dir: (kind == Kind::Dir).then(Box::default),
            file: None,
        });
        node.set_meta(meta);
        node
    }

    /// Changes the rare fields, and frees them if none is left.
    fn change_rare<T>(&mut self, change: impl FnOnce(&mut Rare) -> T) -> T {
        let mut rare = self.rare.take().unwrap_or_default();
        let done = change(&mut rare);
        self.rare = Some(rare).filter(|rare| **rare != Rare::default());
        done
    }

    /// Its names on the slow tier, as far as known.
    pub(crate) fn slow(&self) -> &[DirEntryKey] {
        match &self.rare {
            _ if self.has_no_slow_names() => &[],
            Some(rare) => rare.slow.as_ref().unwrap_or(&self.links),
            None => &self.links,
        }
    }

    /// Whether the slow tier has it under other names than the view.
    pub(crate) fn moved(&self) -> bool {
        self.has_no_slow_names() || self.rare.as_ref().is_some_and(|rare| rare.slow.is_some())
    }

    fn has_no_slow_names(&self) -> bool {
        !self.on_slow && self.slow_ino == NO_NAMES
    }

    /// Takes the names on the slow tier, if they differ from those in the view. Put them back with [`Node::put_moved`].
    fn pop_moved(&mut self) -> Option<LinkNames> {
        if self.has_no_slow_names() {
            self.slow_ino = 0;
            return Some(LinkNames::default());
        }
        self.rare.as_mut().and_then(|rare| rare.slow.take())
    }

    fn put_moved(&mut self, moved: Option<LinkNames>) {
        let none = !self.on_slow && moved.as_deref().is_some_and(<[DirEntryKey]>::is_empty);
        if none {
            self.slow_ino = NO_NAMES;
        }
        let moved = moved.filter(|_| !none);
        if moved.is_some() || self.rare.is_some() {
            self.change_rare(|rare| rare.slow = moved);
        }
    }

    /// Sets which file it is on the slow tier, if any. Drops the fingerprint, which is not that of another file.
    pub(super) fn set_slow_id(&mut self, id: Option<SlowId>) {
        self.set_slow_fingerprint(None);
        let moved = self.pop_moved();
        self.on_slow = id.is_some();
        let (dev, file) = id.unwrap_or_default();
        (self.slow_dev, self.slow_ino, self.slow_birth) = (dev as u32, file.ino, file.birth);
        self.put_moved(moved);
    }

    /// Changes the names it has in the view, on the slow tier, or both.
    pub(super) fn change_names(&mut self, view: bool, slow: bool, change: impl Fn(&mut LinkNames)) {
        if view && slow && !self.moved() {
            return change(&mut self.links);
        }
        let mut on_slow = self.pop_moved().unwrap_or_else(|| self.links.clone());
        if view {
            change(&mut self.links);
        }
        if slow {
            change(&mut on_slow);
        }
        let moved = (on_slow != self.links).then_some(on_slow);
        self.put_moved(moved);
    }

    pub(crate) fn meta(&self) -> NodeAttrs {
        let ([a_sec, m_sec, c_sec], [a_nsec, m_nsec, c_nsec]) = (self.sec, self.nsec);
        NodeAttrs {
            perm: self.perm.into(),
            uid: self.uid,
            gid: self.gid,
            rdev: self.rare.as_ref().map_or(0, |rare| rare.rdev),
            nlink: self.nlink,
            size: self.size,
            blocks: self.blocks,
            atime: Time { sec: a_sec, nsec: a_nsec },
            mtime: Time { sec: m_sec, nsec: m_nsec },
            ctime: Time { sec: c_sec, nsec: c_nsec },
        }
    }

    pub(crate) fn change_meta(&mut self, change: impl FnOnce(&mut NodeAttrs)) {
        let mut meta = self.meta();
        change(&mut meta);
        self.set_meta(meta);
    }

    pub(super) fn set_meta(&mut self, meta: NodeAttrs) {
        let slow_fingerprint = self.slow_fingerprint();
        let NodeAttrs { perm, uid, gid, rdev, nlink, size, blocks, atime, mtime, ctime } = meta;
        // Twelve bits.
        self.perm = (perm & 0o7777) as u16;
        (self.uid, self.gid, self.nlink) = (uid, gid, nlink);
        (self.size, self.blocks) = (size, blocks);
        self.sec = [atime.sec, mtime.sec, ctime.sec];
        self.nsec = [atime.nsec, mtime.nsec, ctime.nsec];
        if rdev != 0 || self.rare.is_some() {
            self.change_rare(|rare| rare.rdev = rdev);
        }
        self.set_slow_fingerprint(slow_fingerprint);
    }

    /// The fingerprint of a slow file with the attributes of the node.
    fn fingerprint(&self) -> Fingerprint {
        let NodeAttrs { size, mtime, ctime, .. } = self.meta();
        Fingerprint { file: self.slow_id().unwrap_or_default().1, size, mtime, ctime }
    }

    /// The fingerprint that the slow tier showed last; a difference from it is a foreign change.
    pub(crate) fn slow_fingerprint(&self) -> Option<Fingerprint> {
        if self.slow_is_alike {
            Some(self.fingerprint())
        } else {
            self.rare.as_ref().and_then(|rare| rare.slow_fingerprint)
        }
    }

    pub(crate) fn set_slow_fingerprint(&mut self, slow_fingerprint: Option<Fingerprint>) {
        self.slow_is_alike = slow_fingerprint == Some(self.fingerprint());
        let other = slow_fingerprint.filter(|_| !self.slow_is_alike);
        if other.is_some() || self.rare.is_some() {
            self.change_rare(|rare| rare.slow_fingerprint = other);
        }
    }

    /// The event of the latest change that the attributes include; 0: none.
    pub(crate) fn meta_lsn(&self) -> Lsn {
        self.rare.as_ref().map_or(0, |rare| rare.meta_lsn)
    }

    pub(crate) fn set_meta_lsn(&mut self, lsn: Lsn) {
        self.change_rare(|rare| rare.meta_lsn = lsn);
    }

    pub(crate) fn xattrs(&self) -> Option<&Xattrs> {
        self.rare.as_ref().map(|rare| &rare.xattrs)
    }

    /// The keys of the remembered extended attributes that are not removals.
    pub(crate) fn kept_xattrs(&self) -> Vec<Vec<u8>> {
        let kept = self.xattrs().into_iter().flatten().filter(|(_, (value, _))| value.is_some());
        kept.map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn change_xattrs<T>(&mut self, change: impl FnOnce(&mut Xattrs) -> T) -> T {
        self.change_rare(|rare| change(&mut rare.xattrs))
    }

    /// Empty: unknown, or not a symbolic link.
    pub(crate) fn target(&self) -> &[u8] {
        self.rare.as_ref().map_or(&[], |rare| &rare.target)
    }

    pub(crate) fn set_target(&mut self, target: Vec<u8>) {
        self.change_rare(|rare| rare.target = target);
    }

    /// Forgets pending attributes: the slow tier has all up to this event.
    pub(crate) fn forget_attrs(&mut self, upto: Lsn) {
        if self.rare.is_some() {
            self.change_rare(|rare| {
                rare.xattrs.retain(|_, (_, lsn)| *lsn > upto);
                rare.meta_lsn = Some(rare.meta_lsn).filter(|lsn| *lsn > upto).unwrap_or_default();
            });
        }
    }

    /// Gives events their new numbers.
    pub(super) fn renumber(&mut self, now: impl Fn(Lsn) -> Option<Lsn>) {
        if self.rare.is_some() {
            self.change_rare(|rare| {
                rare.xattrs.values_mut().for_each(|(_, lsn)| *lsn = now(*lsn).unwrap_or(*lsn));
                rare.meta_lsn = now(rare.meta_lsn).unwrap_or(rare.meta_lsn);
            });
        }
    }

    /// Which file it is on the slow tier; `None`: not there.
    pub(crate) fn slow_id(&self) -> Option<SlowId> {
        let file = FileId { ino: self.slow_ino, birth: self.slow_birth };
        self.on_slow.then_some((self.slow_dev.into(), file))
    }

    /// Notes a foreign change of the bytes.
    pub(crate) fn changed_behind(&mut self) {
        self.resident = Resident::new(self.resident.is_pending(), false);
        if let Some(file) = &self.file {
            file.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Notes that a foreign change put another file in its place.
    pub(crate) fn replaced_behind(&mut self) {
        self.unshow();
        if let Some(file) = &self.file {
            file.replaced.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The kernel must look the node up again before it may be opened.
    pub(super) fn unshow(&mut self) {
        self.change_rare(|rare| rare.unshown = true);
    }

    /// Whether the kernel must look the node up again before it may be opened.
    pub(crate) fn is_unshown(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.unshown)
    }

    pub(crate) fn refer(&mut self) {
        self.refs += 1;
    }

    /// Counts a lookup by the kernel.
    pub(crate) fn show(&mut self) {
        self.refer();
        if self.is_unshown() {
            self.change_rare(|rare| rare.unshown = false);
        }
    }

    /// Drops a file's state if [`Resident`] can say the same. `newest`: its newest pending version.
    pub(super) fn rest(&mut self, newest: Option<&Arc<Content>>) {
        let state = self.file.as_mut().and_then(Arc::get_mut);
        if let Some(resident) = state.and_then(|state| state.at_rest(newest)) {
            self.resident = resident;
            self.file = None;
        }
    }

    /// The state of a regular file; if there is none, `make` makes it and is told whether the file was opened before.
    pub(super) fn wake(&mut self, make: impl FnOnce(bool) -> FileState) -> &Arc<FileState> {
        let opened = self.resident.is_opened();
        self.file.get_or_insert_with(|| {
            self.resident = Resident::OnSlow;
            Arc::new(make(opened))
        })
    }

    /// Whether the state must be made from the pending versions.
    pub(super) fn rests_pending(&self) -> bool {
        self.file.is_none() && self.resident.is_pending()
    }

    /// Whether an object holds the bytes (or did a moment ago).
    pub(crate) fn holds_bytes(&self) -> bool {
        self.file.as_ref().map_or(self.resident.is_pending(), |file| file.holds_bytes())
    }

    /// Whether this is an open slow file with more names there than have been looked up. Its open descriptor keeps its
    /// inode number from being reused.
    pub(crate) fn has_unknown_names(&self) -> bool {
        let held = |file: &Arc<FileState>| !file.holds_bytes() && file.opens.load(Ordering::Acquire) > 0;
        self.file.as_ref().is_some_and(held) && self.has_unlisted_names()
    }

    /// Whether it has names that have not been looked up.
    pub(crate) fn has_unlisted_names(&self) -> bool {
        self.nlink as usize > self.links.len()
    }
}

#[derive(Debug, Default)]
pub(crate) struct DirNode {
    /// Every name has a slot. For a directory that the slow tier has, this ages (`ops/recheck.rs`).
    pub(crate) known: bool,
    /// When the slow tier was last asked whether `known` still holds.
    pub(crate) checked: ObservedAt,
    /// Whether a name has been looked up since.
    pub(crate) used: AtomicBool,
    /// The directory as the slow tier showed it then.
    pub(crate) shown: Option<Box<Shown>>,
    pub(crate) slots: BTreeMap<Name, Slot>,
    /// Rises with every change of a slot; a slow call that ran meanwhile is repeated.
    pub(crate) generation: u64,
    /// Listings under way; slots are not collected meanwhile.
    pub(crate) listers: u32,
    /// The default ACL, once read.
    pub(crate) default_acl: Option<Option<Vec<u8>>>,
    /// The access ACL, once known.
    pub(crate) access_acl: Option<Box<KnownAcl>>,
    /// The latest listing.
    pub(crate) listed: Option<Listed>,
    /// The names of the last listing, for a directory that is not known in full.
    pub(crate) present: Option<Box<Present>>,
}

impl DirNode {
    /// Whether the latest listing does not have this name. Counts only while the slow tier does not answer.
    pub(super) fn lists_not(&self, name: &Name) -> bool {
        self.present.as_ref().is_some_and(|present| !present.names.contains(name))
    }

    /// Drops a slot; if it has a node, its name is remembered as present.
    pub(super) fn forget_slot(&mut self, name: &Name) {
        let slot = self.slots.remove(name);
        if let (Some(present), Some(_)) = (&mut self.present, slot.and_then(|slot| slot.view())) {
            present.names.insert(name.clone());
        }
    }

    /// Forgets the ACLs: the directory is, or may be, another one on the slow tier.
    pub(super) fn forget_acls(&mut self) {
        self.default_acl = None;
        self.access_acl = None;
    }

    /// The directory is no longer known in full: names without a slot, and old slots, are looked up on the slow tier.
    pub(crate) fn forget_others(&mut self) {
        self.known = false;
        self.shown = None;
        self.generation += 1;
    }
}

/// The access ACL of a directory, if any, and when the slow tier was asked for it; `NEVER` while it is pending.
#[derive(Clone, Debug)]
pub(crate) struct KnownAcl {
    pub(crate) asked: ObservedAt,
    pub(crate) list: Option<Vec<u8>>,
}

/// A directory that is known in full, as the slow tier showed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) fingerprint: Fingerprint,
    /// Since when its times have been these, by uptime.
    pub(crate) since: Duration,
    /// It was listed long enough after its last change that a foreign change after the listing would show other times.
    pub(crate) settled: bool,
}

/// The listed names, and names that were added or whose slots were dropped since; when the listing was read, by uptime.
#[derive(Debug)]
pub(crate) struct Present {
    pub(crate) asked: Duration,
    pub(crate) names: BTreeSet<Name>,
}

/// The listing while it is in use, when it was read, by uptime, and the generation it is valid for.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) asked: Duration,
    pub(crate) generation: u64,
    pub(crate) listing: Weak<SharedListing>,
}

/// One per name, kept small like a node.
#[derive(Debug, Default, Clone)]
pub(crate) struct Slot {
    pub(super) view: Option<NonZeroU64>,
    pub(super) slow: Option<NonZeroU64>,
    /// The directory's generation at the last change of the view.
    pub(crate) changed: u64,
    /// Pending events that touch this name.
    pub(crate) pins: u32,
    /// When the slow tier was last asked.
    pub(crate) seen: ObservedAt,
}

impl Slot {
    /// The node that the view has under the name.
    pub(crate) fn view(&self) -> Option<Ino> {
        self.view.map(NonZeroU64::get)
    }

    /// The node that the slow tree has under the name.
    pub(crate) fn slow(&self) -> Option<Ino> {
        self.slow.map(NonZeroU64::get)
    }

    pub(crate) fn pending(&self) -> bool {
        self.view != self.slow || self.pins > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a box for the node and a name, these are the cost of a known file.
    #[test]
    fn what_there_is_a_million_of_is_small() {
        let sizes = (size_of::<Node>(), size_of::<Slot>(), size_of::<LinkNames>());
        assert_eq!(sizes, (152, 32, 24), "bytes of a node, of a slot, of the names in one of two places");
    }

    /// The additional cost of a pending file. Each has a lock; a build that checks the lock order stores its place.
    #[test]
    fn what_a_million_may_wait_of_is_small() {
        use crate::tiers::model::event::Event;

        let place = if cfg!(debug_assertions) { 16 } else { 0 };
        let sizes = (size_of::<Event>(), size_of::<Content>() - place, size_of::<FileState>() - place);
        assert_eq!(sizes, (80, 80, 208), "bytes of an event, of a version, of the state of a file");
    }

    /// A file that is new to the slow tier has no names there. Once, a box of rare fields said so for each, in 160
    /// bytes.
    #[test]
    fn a_new_file_has_nothing_that_few_have() {
        let place: DirEntryKey = (1, Name::new(b"new").expect("a name"));
        let mut node = Node::new(Kind::File, NodeAttrs::default());
        node.change_names(true, false, |names| names.add(place.clone()));
        assert!(node.rare.is_none() && node.moved() && node.slow().is_empty() && node.links.len() == 1);
        node.set_slow_id(Some((1, FileId { ino: 7, birth: 9 })));
        assert!(node.moved() && node.slow().is_empty(), "it is there, under no name that is known");
        node.change_names(false, true, |names| names.add(place.clone()));
        assert!(node.rare.is_none() && !node.moved() && node.slow() == [place.clone()]);
        node.change_names(false, true, |names| names.remove(&place));
        node.set_slow_id(None);
        assert!(node.rare.is_none() && node.moved() && node.slow().is_empty() && node.slow_id().is_none());
        node.change_names(true, false, |names| names.remove(&place));
        assert!(!node.moved() && node.links.is_empty(), "nor has it any in the view");
    }

    #[test]
    fn an_answer_ages_from_the_moment_it_was_given_or_a_little_before() {
        let (at, limit) = (Duration::from_millis(12_345), Duration::from_secs(1));
        let seen = ObservedAt::at(at);
        assert!(seen.fresh(at, limit) && seen.fresh(at + Duration::from_millis(900), limit));
        assert!(!seen.fresh(at + limit, limit));
        assert!(!ObservedAt::NEVER.fresh(Duration::ZERO, limit));
        assert!(ObservedAt::at(Duration::ZERO).fresh(Duration::ZERO, limit));
        let late = Duration::from_secs(1 << 40);
        assert!(!ObservedAt::at(late).fresh(late, limit), "it must not seem young");
    }
}
