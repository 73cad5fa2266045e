//! The view in memory: every inode that is known, and where it is - in the view and on the slow tier.
//!
//! A [`Slot`] is one name in one directory, with both answers: who the view has there and who the slow tree has there.
//! Appending an event moves the first, publishing moves the second; while the two differ (or an event that touches the name
//! is pending) the slot is the truth. Otherwise it is a cache of the slow tree and ages. Directories made through the
//! mount are *known in full*: a name without a slot is not there, and the slow tier need not be asked.
//!
//! No I/O, no clock, no locks: the engine holds one lock around it and brings in what it saw on the slow tier.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::path::Name;
use crate::tiers::disk::{Kind, NewAttr, Stat, Time};
use crate::tiers::file::FileState;
use crate::tiers::pool::Proof;
use crate::tiers::record::ObjectId;
use crate::tiers::{Ino, Lsn, ROOT};

/// A name in a directory.
pub(crate) type Place = (Ino, Name);

/// Own numbers start here; below, a slow-resident node shows its own inode number.
pub(crate) const FIRST_OWN: Ino = 1 << 48;

/// Attributes of a node, as far as no object on fast knows better.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta {
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

impl Meta {
    fn of(stat: &Stat) -> Self {
        let Stat { perm, uid, gid, rdev, nlink, size, blocks, atime, mtime, ctime, .. } = *stat;
        Meta { perm, uid, gid, rdev, nlink, size, blocks, atime, mtime, ctime }
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

/// Names of a node, as a rule one: no room is set aside for more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    One(Place),
    /// None, or more than one.
    #[allow(clippy::box_collection, reason = "in 8 bytes, for which `One` has room beside its own")]
    Other(Option<Box<Vec<Place>>>),
}

impl Default for Names {
    fn default() -> Self {
        Names::Other(None)
    }
}

impl std::ops::Deref for Names {
    type Target = [Place];

    fn deref(&self) -> &[Place] {
        match self {
            Names::One(place) => std::slice::from_ref(place),
            Names::Other(places) => places.as_deref().map_or(&[], |places| places),
        }
    }
}

impl FromIterator<Place> for Names {
    fn from_iter<T: IntoIterator<Item = Place>>(places: T) -> Self {
        let mut places: Vec<Place> = places.into_iter().collect();
        match (places.pop(), places.is_empty()) {
            (None, _) => Names::default(),
            (Some(one), true) => Names::One(one),
            (Some(last), false) => {
                places.push(last);
                Names::Other(Some(Box::new(places)))
            }
        }
    }
}

impl Names {
    fn add(&mut self, place: Place) {
        *self = self.iter().cloned().chain([place]).collect();
    }

    fn remove(&mut self, place: &Place) {
        *self = self.iter().filter(|name| *name != place).cloned().collect();
    }
}

/// When the slow tier was asked, by uptime, in four bytes. Rounded down: an answer seems older than it is, never younger.
/// After eight years every answer is too old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen(u32);

impl Seen {
    /// It is to be asked.
    pub(crate) const NEVER: Seen = Seen(0);
    const PER_SECOND: u128 = 16;

    pub(crate) fn at(now: Duration) -> Self {
        let ticks = now.as_nanos() * Self::PER_SECOND / Duration::from_secs(1).as_nanos();
        Seen(u32::try_from(ticks + 1).unwrap_or(0))
    }

    /// Whether an answer of then still holds.
    pub(crate) fn fresh(self, now: Duration, limit: Duration) -> bool {
        let Some(ticks) = self.0.checked_sub(1) else { return false };
        let at = Duration::from_secs(1) * ticks / Self::PER_SECOND as u32;
        now.saturating_sub(at) < limit
    }
}

/// When the slow tier was asked something, for answers that arrive after it has been published to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// By uptime.
    pub(crate) at: Duration,
    pub(crate) published: u64,
}

/// A million of these are in memory at once: what few nodes have is behind a pointer, what two fields would say alike is
/// said once, and [`Meta`] is taken apart for its gaps.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Changed through this mount: its times are the view's, not the slow tier's.
    pub(crate) ours: bool,
    /// The slow tier has it, as `slow_dev` and `slow_ino`.
    on_slow: bool,
    /// The slow tier's twin shows what the node does.
    twin_alike: bool,
    /// A regular file that was opened before, and by what is known nobody has changed it behind the mount since. While
    /// `file` is there that one knows.
    opened: bool,
    perm: u16,
    /// When the attributes were last read from the slow tier.
    pub(crate) seen: Seen,
    /// Pending events and open files.
    pub(crate) pins: u32,
    /// References the kernel holds.
    pub(crate) refs: u64,
    /// Names in the view. Empty: removed.
    pub(crate) links: Names,
    slow_dev: u64,
    slow_ino: u64,
    uid: u32,
    gid: u32,
    nlink: u32,
    /// Of atime, mtime and ctime.
    nsec: [u32; 3],
    sec: [i64; 3],
    size: u64,
    blocks: u64,
    rare: Option<Box<Rare>>,
    pub(crate) dir: Option<Box<DirNode>>,
    /// Made when somebody opens or changes the file. Without it the bytes are on the slow tier and nobody uses them.
    pub(crate) file: Option<Arc<FileState>>,
}

/// What few nodes have.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rare {
    /// Names on the slow tier where they are not those of the view.
    slow: Option<Names>,
    /// What the slow tier showed where that is not what the node shows.
    twin: Option<Proof>,
    /// The attributes hold a change that became this event.
    meta_lsn: Lsn,
    xattrs: Xattrs,
    /// Of a symbolic link.
    target: Vec<u8>,
    /// Of a device.
    rdev: u64,
}

/// Extended attributes the slow tier does not have yet; `None` removes.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, (Option<Vec<u8>>, Lsn)>;

impl Node {
    fn new(kind: Kind, meta: Meta) -> Box<Node> {
        let mut node = Box::new(Node {
            kind,
            ours: false,
            on_slow: false,
            twin_alike: false,
            opened: false,
            perm: 0,
            seen: Seen::NEVER,
            pins: 0,
            refs: 0,
            links: Names::default(),
            slow_dev: 0,
            slow_ino: 0,
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

    /// Changes what few nodes have, and lets go of it where nothing is left.
    fn change_rare<T>(&mut self, change: impl FnOnce(&mut Rare) -> T) -> T {
        let mut rare = self.rare.take().unwrap_or_default();
        let done = change(&mut rare);
        self.rare = Some(rare).filter(|rare| **rare != Rare::default());
        done
    }

    /// Names on the slow tier, as far as known.
    pub(crate) fn slow(&self) -> &[Place] {
        self.rare.as_ref().and_then(|rare| rare.slow.as_ref()).unwrap_or(&self.links)
    }

    /// Whether the slow tier has it under other names than the view.
    pub(crate) fn moved(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.slow.is_some())
    }

    /// Changes the names it has in the view, on the slow tier, or both.
    fn change_names(&mut self, view: bool, slow: bool, change: impl Fn(&mut Names)) {
        if view && slow && !self.moved() {
            return change(&mut self.links);
        }
        let moved = self.rare.as_mut().and_then(|rare| rare.slow.take());
        let mut on_slow = moved.unwrap_or_else(|| self.links.clone());
        if view {
            change(&mut self.links);
        }
        if slow {
            change(&mut on_slow);
        }
        let moved = (on_slow != self.links).then_some(on_slow);
        self.change_rare(|rare| rare.slow = moved);
    }

    pub(crate) fn meta(&self) -> Meta {
        let time = |at: usize| Time { sec: self.sec[at], nsec: self.nsec[at] };
        Meta {
            perm: self.perm.into(),
            uid: self.uid,
            gid: self.gid,
            rdev: self.rare.as_ref().map_or(0, |rare| rare.rdev),
            nlink: self.nlink,
            size: self.size,
            blocks: self.blocks,
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
        }
    }

    pub(crate) fn change_meta(&mut self, change: impl FnOnce(&mut Meta)) {
        let mut meta = self.meta();
        change(&mut meta);
        self.set_meta(meta);
    }

    fn set_meta(&mut self, meta: Meta) {
        let twin = self.twin();
        let Meta { perm, uid, gid, rdev, nlink, size, blocks, atime, mtime, ctime } = meta;
        // Twelve bits.
        self.perm = (perm & 0o7777) as u16;
        (self.uid, self.gid, self.nlink) = (uid, gid, nlink);
        (self.size, self.blocks) = (size, blocks);
        self.sec = [atime.sec, mtime.sec, ctime.sec];
        self.nsec = [atime.nsec, mtime.nsec, ctime.nsec];
        if rdev != 0 || self.rare.is_some() {
            self.change_rare(|rare| rare.rdev = rdev);
        }
        self.set_twin(twin);
    }

    /// What a twin shows that is alike.
    fn proof(&self) -> Proof {
        let Meta { size, mtime, ctime, .. } = self.meta();
        Proof { ino: self.slow_ino, size, mtime, ctime }
    }

    /// What the slow tier showed when it was last asked; a difference to it is somebody else's change.
    pub(crate) fn twin(&self) -> Option<Proof> {
        if self.twin_alike { Some(self.proof()) } else { self.rare.as_ref().and_then(|rare| rare.twin) }
    }

    pub(crate) fn set_twin(&mut self, twin: Option<Proof>) {
        self.twin_alike = twin == Some(self.proof());
        let other = twin.filter(|_| !self.twin_alike);
        if other.is_some() || self.rare.is_some() {
            self.change_rare(|rare| rare.twin = other);
        }
    }

    /// The attributes hold a change that became this event; 0: none.
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

    /// Empty: not known, or no symbolic link.
    pub(crate) fn target(&self) -> &[u8] {
        self.rare.as_ref().map_or(&[], |rare| &rare.target)
    }

    pub(crate) fn set_target(&mut self, target: Vec<u8>) {
        self.change_rare(|rare| rare.target = target);
    }

    /// The slow tier has all attributes up to this event.
    pub(crate) fn forget_attrs(&mut self, upto: Lsn) {
        if self.rare.is_some() {
            self.change_rare(|rare| {
                rare.xattrs.retain(|_, (_, lsn)| *lsn > upto);
                rare.meta_lsn = Some(rare.meta_lsn).filter(|lsn| *lsn > upto).unwrap_or_default();
            });
        }
    }

    /// Device and inode number on the slow tier; `None`: not there.
    pub(crate) fn slow_id(&self) -> Option<(u64, u64)> {
        self.on_slow.then_some((self.slow_dev, self.slow_ino))
    }

    /// Somebody else has changed the bytes.
    pub(crate) fn changed_behind(&mut self) {
        self.opened = false;
        if let Some(file) = &self.file {
            file.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Lets go of a file's state that says no more than that the bytes are on the slow tier.
    fn rest(&mut self) {
        if let Some(opened) = self.file.as_mut().and_then(Arc::get_mut).and_then(FileState::at_rest) {
            self.opened = opened;
            self.file = None;
        }
    }

    /// Whether this is an open slow file with more names there than anybody has looked up. Its descriptor keeps its
    /// number from being given to another.
    pub(crate) fn has_unknown_names(&self) -> bool {
        let held = |file: &Arc<FileState>| !file.holds_bytes() && file.opens.load(Ordering::Acquire) > 0;
        self.file.as_ref().is_some_and(held) && self.nlink as usize > self.links.len()
    }
}

#[derive(Debug, Default)]
pub(crate) struct DirNode {
    /// Every name has a slot.
    pub(crate) known: bool,
    pub(crate) slots: BTreeMap<Name, Slot>,
    /// Rises with every change of a slot; a slow call that ran meanwhile is repeated.
    pub(crate) generation: u64,
    /// Listings under way; slots are not collected meanwhile.
    pub(crate) listers: u32,
    /// The default ACL, once asked for.
    pub(crate) default_acl: Option<Option<Vec<u8>>>,
}

/// One per name: as small as a node.
#[derive(Debug, Default, Clone)]
pub(crate) struct Slot {
    view: Option<NonZeroU64>,
    slow: Option<NonZeroU64>,
    /// The directory's generation at the last change of the view.
    pub(crate) changed: u64,
    /// Pending events that touch this name.
    pub(crate) pins: u32,
    /// When the slow tier was last asked.
    pub(crate) seen: Seen,
}

impl Slot {
    /// Who the view has there.
    pub(crate) fn view(&self) -> Option<Ino> {
        self.view.map(NonZeroU64::get)
    }

    /// Who the slow tree has there.
    pub(crate) fn slow(&self) -> Option<Ino> {
        self.slow.map(NonZeroU64::get)
    }

    pub(crate) fn pending(&self) -> bool {
        self.view != self.slow || self.pins > 0
    }
}

/// A clean object found at start-up, not yet met by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) object: ObjectId,
    pub(crate) ino: Ino,
    pub(crate) proof: Proof,
    /// Eviction has looked for its file under the name it had.
    pub(crate) tried: bool,
}

/// How old an answer of the slow tier may get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ages {
    pub(crate) ours: Duration,
    pub(crate) slow: Duration,
}

#[derive(Debug)]
pub(crate) struct View {
    /// Boxed: a table has room for twice as many, and while it grows for three times.
    pub(crate) nodes: HashMap<Ino, Box<Node>>,
    /// The directories among them, and where aging goes on: behind this name of that one.
    dirs: BTreeSet<Ino>,
    aged: Option<(Ino, Option<Name>)>,
    /// Nodes that do not have the number of their slow twin.
    by_slow: HashMap<(u64, u64), Ino>,
    /// By slow inode number.
    pub(crate) waiting: HashMap<u64, Waiting>,
    /// Nodes with one more link on the slow tier than they have names there, while they are published.
    pub(crate) in_tmp: HashSet<Ino>,
    /// How often [`View::publish`] was called.
    published: u64,
    /// Names that may have changed on the slow tier, and where the view is yet to follow: it knows better.
    following: HashSet<Place>,
    /// The numbers of waiting objects.
    kept: HashSet<Ino>,
    /// Numbers promised by a listing for slow inodes whose own number is taken.
    promised: HashMap<u64, Ino>,
    next: Ino,
    root_dev: u64,
    /// During replay: the number the next node met on the slow tier had before the restart.
    pub(crate) expected: Option<Ino>,
}

impl View {
    pub(crate) fn new(root: &Stat, now: Duration) -> Self {
        let mut view = View {
            nodes: HashMap::new(),
            dirs: BTreeSet::new(),
            aged: None,
            by_slow: HashMap::new(),
            waiting: HashMap::new(),
            in_tmp: HashSet::new(),
            published: 0,
            following: HashSet::new(),
            kept: HashSet::new(),
            promised: HashMap::new(),
            next: FIRST_OWN,
            root_dev: root.dev,
            expected: None,
        };
        let mut node = Node::new(Kind::Dir, Meta::of(root));
        node.refs = 1;
        node.seen = Seen::at(now);
        view.insert(ROOT, node);
        view.identify(ROOT, root);
        view
    }

    fn insert(&mut self, ino: Ino, node: Box<Node>) -> &mut Node {
        if node.kind == Kind::Dir {
            self.dirs.insert(ino);
        }
        self.nodes.entry(ino).insert_entry(node).into_mut()
    }

    pub(crate) fn new_ino(&mut self) -> Ino {
        self.next += 1;
        self.next - 1
    }

    /// Numbers up to this one are taken.
    pub(crate) fn reserve(&mut self, ino: Ino) {
        self.next = self.next.max(ino + 1);
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<&Node> {
        self.nodes.get(&ino).map(|node| &**node)
    }

    pub(crate) fn get_mut(&mut self, ino: Ino) -> Option<&mut Node> {
        self.nodes.get_mut(&ino).map(|node| &mut **node)
    }

    /// The state of a regular file, made if nobody has needed it so far. Ask for it before changing anything about a file: its
    /// lock is what keeps others out.
    pub(crate) fn file(&mut self, ino: Ino) -> Option<Arc<FileState>> {
        let node = self.nodes.get_mut(&ino)?;
        let opened = node.opened;
        let made = || Arc::new(FileState::on_slow(ino, opened));
        (node.kind == Kind::File).then(|| Arc::clone(node.file.get_or_insert_with(made)))
    }

    /// The node that the slow tier has under this device and inode number.
    pub(crate) fn at_slow(&self, id: (u64, u64)) -> Option<Ino> {
        let same = || id.0 == self.root_dev && self.nodes.get(&id.1).is_some_and(|node| node.slow_id() == Some(id));
        self.by_slow.get(&id).copied().or_else(|| same().then_some(id.1))
    }

    /// The directory's slots, if `ino` is a directory that still has a name.
    pub(crate) fn live_dir(&self, ino: Ino) -> Option<&DirNode> {
        let node = self.nodes.get(&ino)?;
        (ino == ROOT || !node.links.is_empty()).then_some(node.dir.as_deref()?)
    }

    /// What the view has under this name, if that can be said without asking the slow tier. `trust`: however old.
    pub(crate) fn known(&self, dir: Ino, name: &Name, now: Duration, ages: Ages, trust: bool) -> Option<Option<Ino>> {
        let node = self.nodes.get(&dir)?;
        let slots = node.dir.as_ref()?;
        let Some(slot) = slots.slots.get(name) else {
            return (slots.known || !node.on_slow).then_some(None);
        };
        if slot.pending() || slots.known || trust {
            return Some(slot.view());
        }
        let ours = slot.view().and_then(|ino| self.nodes.get(&ino)).is_some_and(|node| node.ours);
        let limit = if ours { ages.ours } else { ages.slow };
        (slot.seen.fresh(now, limit) || self.is_following(dir, name)).then_some(slot.view())
    }

    /// Called before the slow tier is asked what [`View::refresh`] is to take in.
    pub(crate) fn asked(&self, now: Duration) -> Asked {
        Asked { at: now, published: self.published }
    }

    /// Takes in what the slow tier just said about a name. Must not be called for a pending slot.
    pub(crate) fn learn(
        &mut self,
        dir: Ino,
        name: &Name,
        stat: Option<&Stat>,
        asked: Asked,
        applied: Lsn,
    ) -> Option<Ino> {
        let found = stat.map(|stat| self.node_for(stat, asked, applied));
        let slot = self.slot_mut(dir, name);
        slot.seen = Seen::at(asked.at);
        if slot.view() != found || slot.slow() != found {
            self.set_both(dir, name, found);
        }
        found
    }

    /// The node behind what the slow tier shows, made if it is new.
    fn node_for(&mut self, stat: &Stat, asked: Asked, applied: Lsn) -> Ino {
        let id = (stat.dev, stat.ino);
        if let Some(ino) = self.at_slow(id) {
            if self.nodes.get(&ino).is_some_and(|node| node.kind == stat.kind) {
                self.refresh(ino, stat, asked, applied);
                return ino;
            }
            // The slow tier gave the number to something else: the one we knew is gone.
            self.set_slow_id(ino, None);
        }
        let ino = self.number_for(stat);
        let mut node = Node::new(stat.kind, Meta::of(stat));
        node.seen = Seen::at(asked.at);
        self.insert(ino, node);
        self.identify(ino, stat);
        ino
    }

    /// The slow tier has just shown this of the node.
    fn identify(&mut self, ino: Ino, stat: &Stat) {
        self.set_slow_id(ino, Some((stat.dev, stat.ino)));
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.set_twin(Some(Proof::of(stat)));
        }
    }

    fn number_for(&mut self, stat: &Stat) -> Ino {
        if let Some(ino) = self.expected.take()
            && !self.nodes.contains_key(&ino)
        {
            return ino;
        }
        if stat.dev == self.root_dev {
            if let Some(ino) = self.kept_for(stat.ino, stat.kind) {
                return ino;
            }
            if self.is_free(stat.ino) {
                return stat.ino;
            }
            if let Some(ino) = self.promised.remove(&stat.ino) {
                return ino;
            }
        }
        self.new_ino()
    }

    /// The number a slow file had before the restart, according to its object. The slow tier may have given its own number
    /// to something else since.
    fn kept_for(&self, slow_ino: u64, kind: Kind) -> Option<Ino> {
        let waiting = self.waiting.get(&slow_ino)?;
        (kind == Kind::File && !self.nodes.contains_key(&waiting.ino)).then_some(waiting.ino)
    }

    /// Whether a slow inode may show its own number: nobody has it, or will have it back from before the restart.
    fn is_free(&self, ino: Ino) -> bool {
        ino > ROOT && ino < FIRST_OWN && !self.nodes.contains_key(&ino) && !self.kept.contains(&ino)
    }

    /// A clean object found at start-up, to be met by its file.
    pub(crate) fn wait(&mut self, waiting: Waiting) {
        self.kept.insert(waiting.ino);
        // The slow tier gives inode numbers again: of two objects with the same, the later proof is the true one.
        let older = |other: &Waiting| other.proof.ctime > waiting.proof.ctime;
        if !self.waiting.get(&waiting.proof.ino).is_some_and(older) {
            self.waiting.insert(waiting.proof.ino, waiting);
        }
    }

    /// The number a listing shows for an entry that nobody has looked up: the one it will have then.
    pub(crate) fn ino_shown(&mut self, slow_ino: u64, kind: Kind) -> Ino {
        if let Some(ino) = self.at_slow((self.root_dev, slow_ino)) {
            return ino;
        }
        if let Some(ino) = self.kept_for(slow_ino, kind) {
            return ino;
        }
        if self.is_free(slow_ino) {
            return slow_ino;
        }
        if let Some(&ino) = self.promised.get(&slow_ino) {
            return ino;
        }
        let ino = self.new_ino();
        self.promised.insert(slow_ino, ino);
        ino
    }

    /// Takes over attributes the slow tier shows, unless the view's are newer. An answer that was asked for before something
    /// was published may show what was before; of the nodes that concerned, publishing says that they were seen since.
    pub(crate) fn refresh(&mut self, ino: Ino, stat: &Stat, asked: Asked, applied: Lsn) {
        let in_tmp = self.in_tmp.contains(&ino);
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if asked.published != self.published && node.seen >= Seen::at(asked.at) {
            return;
        }
        let twin = node.twin();
        let unchanged = twin == Some(Proof::of(stat));
        node.seen = Seen::at(asked.at);
        if twin.is_some() && !unchanged {
            node.changed_behind();
        }
        let holds_bytes = node.file.as_ref().is_some_and(|file| file.holds_bytes());
        if holds_bytes && twin.is_some_and(|twin| !twin.is_same_version(stat)) {
            // Somebody else's. What we hold goes back to what we knew, and whoever publishes it must find out.
            return;
        }
        if node.meta_lsn() > applied {
            return;
        }
        let Meta { atime, mtime, ctime, nlink, .. } = node.meta();
        // Our own publishing changed the times of the slow twin; the view keeps the ones it showed.
        if node.ours && (twin.is_none() || unchanged || node.dir.is_some()) {
            if node.dir.is_some() {
                node.set_meta(Meta { atime, mtime, ctime, nlink, ..Meta::of(stat) });
            }
            node.set_twin(Some(Proof::of(stat)));
            return;
        }
        // The events of its names go through numbers of links that the view has behind it.
        let opens = node.file.as_ref().map_or(0, |file| file.opens.load(Ordering::Acquire));
        let pending = node.moved() || in_tmp || node.pins > opens;
        let meta = Meta::of(stat);
        node.set_meta(if pending { Meta { nlink, ..meta } } else { meta });
        node.set_twin(Some(Proof::of(stat)));
    }

    /// Who has this number on the slow tier itself, not in something that is mounted there.
    pub(crate) fn with_slow_ino(&self, ino: u64) -> Option<Ino> {
        self.at_slow((self.root_dev, ino))
    }

    /// From now on the slow tier is not asked for these names, until it is called with others. Whoever has been, asks again.
    pub(crate) fn follow(&mut self, following: HashSet<Place>) {
        for (dir, _) in &following {
            if let Some(dir) = self.nodes.get_mut(dir).and_then(|node| node.dir.as_mut()) {
                dir.generation += 1;
            }
        }
        self.following = following;
    }

    pub(crate) fn is_following(&self, dir: Ino, name: &Name) -> bool {
        !self.following.is_empty() && self.following.contains(&(dir, name.clone()))
    }

    /// The slow tier's side of these nodes has just been changed: what it was asked before does not count.
    pub(crate) fn publish(&mut self, inos: impl IntoIterator<Item = Ino>, now: Duration) {
        self.published += 1;
        for ino in inos {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.seen = Seen::at(now);
            }
        }
    }

    fn slot_mut(&mut self, dir: Ino, name: &Name) -> &mut Slot {
        // A directory that is gone gets a slot nobody sees; callers check for life first.
        let dir =
            self.nodes.get_mut(&dir).and_then(|node| node.dir.as_mut()).expect("a directory the caller looked up");
        dir.slots.entry(name.clone()).or_default()
    }

    /// Moves the view's side of a name, and the names of whoever came and went.
    pub(crate) fn set_view(&mut self, dir: Ino, name: &Name, to: Option<Ino>) {
        self.set_sides(dir, name, to, true, false);
    }

    /// What is under a name on the slow tier is somebody else's, and the view has nothing there.
    pub(crate) fn disown(&mut self, (dir, name): &Place, now: Duration) {
        let theirs = self.slot_mut(*dir, name).slow();
        self.set_both(*dir, name, None);
        self.slot_mut(*dir, name).seen = Seen::at(now);
        if let Some(theirs) = theirs {
            self.collect(theirs);
        }
    }

    /// Moves the slow tier's side of a name.
    pub(crate) fn set_slow(&mut self, dir: Ino, name: &Name, to: Option<Ino>) {
        self.set_sides(dir, name, to, false, true);
    }

    fn set_both(&mut self, dir: Ino, name: &Name, to: Option<Ino>) {
        self.set_sides(dir, name, to, true, true);
    }

    fn set_sides(&mut self, dir: Ino, name: &Name, to: Option<Ino>, view: bool, slow: bool) {
        let place = (dir, name.clone());
        let slot = self.slot_mut(dir, name);
        let (viewed, on_slow) = (slot.view(), slot.slow());
        let to_raw = to.and_then(NonZeroU64::new);
        slot.view = if view { to_raw } else { slot.view };
        slot.slow = if slow { to_raw } else { slot.slow };
        let mut leave = |who: Option<Ino>, view: bool, slow: bool| {
            if let Some(node) = who.and_then(|ino| self.nodes.get_mut(&ino)) {
                node.change_names(view, slow, |names| names.remove(&place));
            }
        };
        if viewed == on_slow {
            leave(viewed, view, slow);
        } else {
            leave(viewed.filter(|_| view), true, false);
            leave(on_slow.filter(|_| slow), false, true);
        }
        if slow
            && on_slow != to
            && let Some(gone) = on_slow
        {
            self.leave_slow(gone);
        }
        if let Some(node) = to.and_then(|ino| self.nodes.get_mut(&ino)) {
            node.change_names(view, slow, |names| names.add(place.clone()));
        }
        let dir = self.nodes.get_mut(&dir).and_then(|node| node.dir.as_mut()).expect("checked by slot_mut");
        dir.generation += 1;
        let generation = dir.generation;
        // Also if the slow tier's side has come to the view's: a listing may have been read there before.
        if let Some(slot) = dir.slots.get_mut(name) {
            slot.changed = generation;
        }
    }

    /// A node that has lost the names it was known by on slow is no longer known there, unless something else keeps its number
    /// from being given to another: under a name that nobody has looked up it is still the same.
    fn leave_slow(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get(&ino) else { return };
        if ino != ROOT && node.slow().is_empty() && !node.has_unknown_names() && !self.in_tmp.contains(&ino) {
            self.set_slow_id(ino, None);
        }
    }

    /// `tmp` on slow has no links of replaced files any more.
    pub(crate) fn leave_tmp(&mut self, now: Duration) {
        let left = std::mem::take(&mut self.in_tmp);
        self.publish(left.iter().copied(), now);
        for ino in left {
            self.leave_slow(ino);
            self.collect(ino);
        }
    }

    pub(crate) fn set_slow_id(&mut self, ino: Ino, id: Option<(u64, u64)>) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let old = node.slow_id();
        node.set_twin(None);
        node.on_slow = id.is_some();
        (node.slow_dev, node.slow_ino) = id.unwrap_or_default();
        if let Some(old) = old
            && self.by_slow.get(&old) == Some(&ino)
        {
            self.by_slow.remove(&old);
        }
        match id {
            // Found by its number; somebody who had this identity before has it no more.
            Some(id) if id == (self.root_dev, ino) => drop(self.by_slow.remove(&id)),
            Some(id) => drop(self.by_slow.insert(id, ino)),
            None => {}
        }
    }

    /// A handle of `ino` is closed.
    pub(crate) fn let_go(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.pins -= 1;
        self.leave_slow(ino);
    }

    /// A node that only the view has so far.
    pub(crate) fn add(&mut self, ino: Ino, kind: Kind, meta: Meta) -> &mut Node {
        let mut node = Node::new(kind, meta);
        node.ours = true;
        if let Some(dir) = &mut node.dir {
            dir.known = true;
        }
        if kind == Kind::File {
            node.file = Some(Arc::new(FileState::on_slow(ino, false)));
        }
        self.insert(ino, node)
    }

    /// The view's path of a node, by its first name. `None` once it has none.
    pub(crate) fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.path_by(ino, |node| node.links.first())
    }

    /// Where a node is on the slow tier now.
    pub(crate) fn slow_path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.path_by(ino, |node| node.slow().first())
    }

    fn path_by(&self, ino: Ino, name: impl Fn(&Node) -> Option<&Place>) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let (parent, name) = name(self.nodes.get(&at)?)?;
            names.push(name.as_bytes());
            at = *parent;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    pub(crate) fn path_at(&self, (dir, name): &Place) -> Option<Vec<u8>> {
        join(self.path(*dir)?, name)
    }

    /// All the paths that are known of `ino` on the slow tier.
    pub(crate) fn slow_paths(&self, ino: Ino) -> Vec<Vec<u8>> {
        if ino == ROOT {
            return vec![Vec::new()];
        }
        let names = self.get(ino).map(|node| node.slow()).unwrap_or_default();
        names.iter().filter_map(|(dir, name)| join(self.slow_path(*dir)?, name)).collect()
    }

    /// Whether `ino` is `below` or one of the directories above it.
    pub(crate) fn is_above(&self, ino: Ino, below: Ino) -> bool {
        let mut at = below;
        loop {
            if at == ino {
                return true;
            }
            match self.nodes.get(&at).and_then(|node| node.links.first()) {
                Some((parent, _)) if at != ROOT => at = *parent,
                _ => return false,
            }
        }
    }

    /// Forgets a node, and the directories above it, if nothing needs them any more: no kernel reference, no event, no
    /// object, no child. What is forgotten is found again on the slow tier. Of a node that is needed, what is not.
    pub(crate) fn collect(&mut self, ino: Ino) {
        let mut at = ino;
        while at != ROOT {
            let Some(node) = self.nodes.get_mut(&at) else { return };
            node.rest();
            let node = &self.nodes[&at];
            let held = node.refs > 0
                || node.pins > 0
                || node.moved()
                // Found again now, it would have a link too many.
                || self.in_tmp.contains(&at)
                || node.file.as_ref().is_some_and(|file| file.holds_bytes())
                || node.dir.as_ref().is_some_and(|dir| dir.listers > 0 || !dir.slots.is_empty());
            let shown = node.links.iter().any(|(dir, name)| {
                let dir = self.nodes.get(dir).and_then(|node| node.dir.as_ref());
                dir.is_some_and(|dir| dir.known || dir.listers > 0 || dir.slots.get(name).is_some_and(Slot::pending))
            });
            if held || shown {
                return;
            }
            let parent = node.links.first().map(|link| link.0);
            for (dir, name) in node.links.clone().iter() {
                if let Some(dir) = self.nodes.get_mut(dir).and_then(|node| node.dir.as_mut()) {
                    dir.slots.remove(name);
                }
            }
            self.set_slow_id(at, None);
            self.nodes.remove(&at);
            self.dirs.remove(&at);
            match parent {
                Some(parent) => at = parent,
                None => return,
            }
        }
    }

    /// Lets directories that are as the slow tree has them be looked up there again.
    pub(crate) fn age_dirs(&mut self, now: Duration, ages: Ages) {
        for ino in &self.dirs {
            let Some(node) = self.nodes.get_mut(ino) else { continue };
            let settled = node.on_slow && !node.seen.fresh(now, ages.ours);
            let Some(dir) = node.dir.as_deref_mut().filter(|dir| dir.known && dir.listers == 0 && settled) else {
                continue;
            };
            let busy = dir.slots.values().any(|slot| slot.pending() || slot.seen.fresh(now, ages.ours));
            if !busy {
                dir.known = false;
                dir.generation += 1;
            }
        }
    }

    /// Drops cached negative answers and forgets what nobody needs, among the next `most` names; the next call goes on behind
    /// them. `true`: that was the last one. All at once would keep everybody else waiting where a million are known.
    pub(crate) fn age_names(&mut self, now: Duration, ages: Ages, most: usize) -> bool {
        let mut left = most;
        while left > 0 {
            let (first, after) = self.aged.take().unwrap_or((ROOT, None));
            // A directory that is gone by now is followed by the next one.
            let Some(&ino) = self.dirs.range(first..).next() else { return true };
            let after = after.filter(|_| ino == first);
            let (looked_at, last) = self.age_names_of(ino, after, now, ages, left);
            left -= looked_at.clamp(1, left);
            if last.is_none() {
                self.collect(ino);
            }
            self.aged = Some(if last.is_some() { (ino, last) } else { (ino + 1, None) });
        }
        false
    }

    /// In one directory, behind `after`. Returns how many names were looked at, and the last one if there are more.
    fn age_names_of(
        &mut self,
        ino: Ino,
        after: Option<Name>,
        now: Duration,
        ages: Ages,
        most: usize,
    ) -> (usize, Option<Name>) {
        let Some(dir) = self.nodes.get_mut(&ino).and_then(|node| node.dir.as_mut()) else { return (0, None) };
        if dir.listers > 0 {
            return (0, None);
        }
        let known = dir.known;
        let needed = |slot: &Slot| known || slot.pending() || slot.view.is_some() || slot.seen.fresh(now, ages.slow);
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let (mut stale, mut children, mut count, mut last) = (Vec::new(), Vec::new(), 0, None);
        for (name, slot) in dir.slots.range(range).take(most) {
            (count, last) = (count + 1, Some(name));
            if !needed(slot) {
                stale.push(name.clone());
            }
            children.extend(slot.view());
        }
        let last = last.filter(|_| count == most).cloned();
        for name in stale {
            dir.slots.remove(&name);
        }
        for child in children {
            // Most of them the kernel refers to, and asking is quick.
            if self.nodes.get(&child).is_some_and(|node| node.refs == 0) {
                self.collect(child);
            }
        }
        (count, last)
    }

    /// What must always hold; for tests.
    pub(crate) fn check(&self) {
        for (ino, node) in &self.nodes {
            for (dir, name) in node.links.iter() {
                let slot = self.nodes.get(dir).and_then(|node| node.dir.as_ref()).and_then(|dir| dir.slots.get(name));
                assert_eq!(slot.and_then(Slot::view), Some(*ino), "link {name} of {ino}");
            }
            for (dir, name) in node.slow() {
                let slot = self.nodes.get(dir).and_then(|node| node.dir.as_ref()).and_then(|dir| dir.slots.get(name));
                assert_eq!(slot.and_then(Slot::slow), Some(*ino), "slow name {name} of {ino}");
            }
            if let Some(id) = node.slow_id() {
                assert_eq!(self.at_slow(id), Some(*ino), "slow identity of {ino}");
            }
        }
    }
}

fn join(mut dir: Vec<u8>, name: &Name) -> Option<Vec<u8>> {
    if !dir.is_empty() {
        dir.push(b'/');
    }
    dir.extend_from_slice(name.as_bytes());
    Some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a box for the node and a name, these are what a known file costs.
    #[test]
    fn what_there_is_a_million_of_is_small() {
        let sizes = (size_of::<Node>(), size_of::<Slot>(), size_of::<Names>());
        assert_eq!(sizes, (152, 32, 24), "bytes of a node, of a slot, of the names in one of two places");
    }

    fn stat(ino: u64, kind: Kind) -> Stat {
        let time = Time::default();
        Stat {
            dev: 1,
            ino,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    /// Aging was one piece of work under the lock: half a second in every second with a million files.
    #[test]
    fn names_age_a_few_at_a_time() {
        let ages = Ages { ours: Duration::from_secs(30), slow: Duration::from_secs(1) };
        let mut view = View::new(&stat(2, Kind::Dir), Duration::ZERO);
        let asked = view.asked(Duration::ZERO);
        let name = |number: u64| Name::new(format!("n{number}").as_bytes()).expect("a name");
        for number in 0..10 {
            let dir = view.learn(ROOT, &name(number), Some(&stat(100 + number, Kind::Dir)), asked, 0);
            let dir = dir.expect("it is there");
            for file in 0..number {
                view.learn(dir, &name(file), Some(&stat(1000 + 100 * number + file, Kind::File)), asked, 0);
            }
            view.learn(dir, &name(99), None, asked, 0);
        }
        view.check();
        let kept = view.known(ROOT, &name(7), Duration::ZERO, ages, true).flatten().expect("it is there");
        view.get_mut(kept).expect("it is there").refs = 1;
        let mut pieces = 1;
        while !view.age_names(Duration::from_secs(60), ages, 3) {
            pieces += 1;
            view.check();
        }
        assert!(pieces > 10, "{pieces}");
        let left: HashSet<Ino> = view.nodes.keys().copied().collect();
        assert_eq!(left, HashSet::from([ROOT, kept]));
        let slots = |ino| view.live_dir(ino).map(|dir| dir.slots.len());
        assert_eq!((slots(ROOT), slots(kept)), (Some(1), Some(0)));
    }

    #[test]
    fn an_answer_ages_from_the_moment_it_was_given_or_a_little_before() {
        let (at, limit) = (Duration::from_millis(12_345), Duration::from_secs(1));
        let seen = Seen::at(at);
        assert!(seen.fresh(at, limit) && seen.fresh(at + Duration::from_millis(900), limit));
        assert!(!seen.fresh(at + limit, limit));
        assert!(!Seen::NEVER.fresh(Duration::ZERO, limit));
        assert!(Seen::at(Duration::ZERO).fresh(Duration::ZERO, limit));
        let late = Duration::from_secs(1 << 40);
        assert!(!Seen::at(late).fresh(late, limit), "it must not seem young");
    }
}
