//! The view in memory: every known inode, and where it is - in the view and on the slow tier.
//!
//! A [`Slot`] is one name in one directory, with both answers: the node that the view has there and the one that the
//! slow tree has there. Appending an event moves the first, publishing moves the second. While the two differ, or an
//! event that touches the name is pending, the slot is the truth. Otherwise it is a cache of the slow tree and ages.
//! Directories made through the mount are *known in full*: a name without a slot does not exist, and the slow tier need
//! not be asked.
//!
//! No I/O, no clock, no locks: the engine holds one lock around it and passes in what it saw on the slow tier.

use std::collections::{self, BTreeSet};
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};

use crate::path::Name;
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::{Kind, SlowId, Stat};
use crate::tiers::log::record::ObjectId;
use crate::tiers::model::node::{DirEntryKey, DirNode, Node, NodeAttrs, ObservedAt, Slot};
use crate::tiers::objects::file::FileState;
use crate::tiers::{Ino, Lsn, ROOT};

/// Our own inode numbers start here; below, a slow node shows its own inode number.
pub(crate) const FIRST_OWN: Ino = 1 << 48;

/// How long a listing is believed complete if the slow tier stops answering.
const PRESENT_FOR: Duration = Duration::from_secs(600);

/// When the slow tier was asked, to judge answers that arrive after something was published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupStart {
    /// By uptime.
    pub(crate) at: Duration,
    pub(crate) published: u64,
}

/// A clean object found at start-up whose file has not been looked up yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnmetObject {
    pub(crate) object: ObjectId,
    pub(crate) ino: Ino,
    pub(crate) fingerprint: Fingerprint,
    /// Eviction has looked for its file under its old name.
    pub(crate) tried: bool,
}

/// How old an answer of the slow tier may get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ages {
    pub(crate) ours: Duration,
    pub(crate) slow: Duration,
}

/// Device and inode number on the slow tier: one file at a time has them.
type SlowNumber = (u64, u64);

fn number((dev, file): SlowId) -> SlowNumber {
    (dev, file.ino)
}

#[derive(Debug)]
pub(crate) struct View {
    /// Boxed: a table has room for twice as many entries, and for three times as many while it grows.
    pub(crate) nodes: HashMap<Ino, Box<Node>>,
    /// The directories among them, and where aging continues: behind this name of that directory.
    dirs: BTreeSet<Ino>,
    aged: Option<(Ino, Option<Name>)>,
    /// Nodes whose inode number differs from that of their slow file.
    by_slow: HashMap<SlowNumber, Ino>,
    /// By slow inode number.
    pub(crate) waiting: HashMap<u64, UnmetObject>,
    /// Nodes with one more link on the slow tier than names there, while they are being published.
    pub(crate) in_tmp: HashSet<Ino>,
    /// Files whose bytes on the fast tier are compared with the slow file at the next open, however recent the last
    /// check.
    pub(super) to_compare: HashSet<Ino>,
    /// How often [`View::publish`] was called.
    published: u64,
    /// Names that may have changed on the slow tier while the view has yet to follow: the view is right. Hashed with
    /// SipHash because users choose the names; the other tables are keyed by numbers.
    following: collections::HashSet<DirEntryKey>,
    /// The inode numbers of waiting objects, and the slow inode that each belongs to.
    kept: HashMap<Ino, u64>,
    /// Inode numbers promised by a listing for slow inodes whose own number is taken.
    promised: HashMap<SlowNumber, Ino>,
    next: Ino,
    root_dev: u64,
    /// Whether a directory has another device than the root; and the roots of parts of the slow tree that have the same
    /// device.
    has_parts: bool,
    parts: HashSet<SlowNumber>,
    /// During replay: the inode number that the next node met on the slow tier had before the restart.
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
            to_compare: HashSet::new(),
            published: 0,
            following: collections::HashSet::new(),
            kept: HashMap::new(),
            promised: HashMap::new(),
            next: FIRST_OWN,
            root_dev: root.dev,
            has_parts: false,
            parts: HashSet::new(),
            expected: None,
        };
        let mut node = Node::new(Kind::Dir, NodeAttrs::of(root));
        node.refs = 1;
        node.seen = ObservedAt::at(now);
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

    /// The device of the slow tier's root.
    pub(crate) fn root_dev(&self) -> u64 {
        self.root_dev
    }

    /// The device of nodes that the slow tier has, or gets, in this directory.
    pub(crate) fn dev_of(&self, dir: Ino) -> u64 {
        let mut at = dir;
        while at != ROOT {
            let Some(node) = self.nodes.get(&at) else { break };
            // The device of a directory after a foreign rmdir is unknown: it is 0.
            if let Some((dev, _)) = node.slow_id().filter(|(dev, _)| *dev != 0) {
                return dev;
            }
            let Some(above) = node.links.first().or(node.slow().first()) else { break };
            at = above.0;
        }
        self.root_dev
    }

    /// Adds a part that no rename from the part above reaches, although it has the same device.
    pub(crate) fn add_part(&mut self, id: SlowId) {
        self.parts.insert(number(id));
        self.has_parts = true;
    }

    /// Whether this directory is the root of a part: no rename on the slow tier goes from outside into it.
    pub(crate) fn is_part(&self, dir: Ino) -> bool {
        if dir == ROOT || !self.has_parts {
            return dir == ROOT;
        }
        let Some(node) = self.nodes.get(&dir).filter(|node| node.kind == Kind::Dir) else { return false };
        let (Some(id), Some(above)) = (node.slow_id(), node.links.first().or(node.slow().first())) else {
            return false;
        };
        self.parts.contains(&number(id)) || (id.0 != 0 && id.0 != self.dev_of(above.0))
    }

    /// Whether something seems to be mounted on this directory, so that it can be neither renamed nor removed. The root
    /// of a btrfs subvolume also has a device of its own, but can be.
    pub(crate) fn is_mount(&self, dir: Ino) -> bool {
        const SUBVOLUME: u64 = 256;
        let Some(node) = self.nodes.get(&dir).filter(|_| dir != ROOT && self.has_parts) else { return false };
        let (Some(id), Some(above)) = (node.slow_id(), node.links.first().or(node.slow().first())) else {
            return false;
        };
        id.0 != 0 && id.0 != self.dev_of(above.0) && id.1.ino != SUBVOLUME
    }

    /// The root of the part of the slow tree that contains a directory, or will.
    pub(crate) fn part_of(&self, dir: Ino) -> Ino {
        let mut at = dir;
        while self.has_parts && at != ROOT && !self.is_part(at) {
            let above = self.nodes.get(&at).and_then(|node| node.links.first().or(node.slow().first()));
            at = above.map_or(ROOT, |above| above.0);
        }
        if self.has_parts { at } else { ROOT }
    }

    /// Whether two directories are in different parts.
    pub(crate) fn are_apart(&self, a: Ino, b: Ino) -> bool {
        a != b && self.has_parts && self.part_of(a) != self.part_of(b)
    }

    pub(crate) fn new_ino(&mut self) -> Ino {
        self.next += 1;
        self.next - 1
    }

    /// Marks inode numbers up to this one as taken.
    pub(crate) fn reserve(&mut self, ino: Ino) {
        self.next = self.next.max(ino + 1);
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<&Node> {
        self.nodes.get(&ino).map(|node| &**node)
    }

    pub(crate) fn get_mut(&mut self, ino: Ino) -> Option<&mut Node> {
        self.nodes.get_mut(&ino).map(|node| &mut **node)
    }

    /// Like [`EngineState::file`](crate::tiers::model::state::EngineState::file), for a file whose state need not be
    /// made from a pending version.
    pub(super) fn file(&mut self, ino: Ino) -> Option<Arc<FileState>> {
        let node = self.nodes.get_mut(&ino).filter(|node| node.kind == Kind::File)?;
        Some(Arc::clone(node.wake(|opened| FileState::on_slow(ino, opened))))
    }

    /// The node that the slow tier has under this device and inode number.
    pub(crate) fn at_slow(&self, id: SlowNumber) -> Option<Ino> {
        let has = |node: &Node| node.slow_id().map(number) == Some(id);
        let same = || id.0 == self.root_dev && self.nodes.get(&id.1).is_some_and(|node| has(node));
        self.by_slow.get(&id).copied().or_else(|| same().then_some(id.1))
    }

    /// The next `most` directories from `first` on.
    pub(super) fn dirs_from(&self, first: Ino, most: usize) -> Vec<Ino> {
        self.dirs.range(first..).take(most).copied().collect()
    }

    /// The directory's slots, if `ino` is a directory that still has a name.
    pub(crate) fn live_dir(&self, ino: Ino) -> Option<&DirNode> {
        let node = self.nodes.get(&ino)?;
        (ino == ROOT || !node.links.is_empty()).then_some(node.dir.as_deref()?)
    }

    /// What the view has under this name, if that is known without asking the slow tier. `trust`: accept any age.
    pub(crate) fn known(&self, dir: Ino, name: &Name, now: Duration, ages: Ages, trust: bool) -> Option<Option<Ino>> {
        let node = self.nodes.get(&dir)?;
        let slots = node.dir.as_ref()?;
        slots.used.store(true, Ordering::Relaxed);
        let Some(slot) = slots.slots.get(name) else {
            return (slots.known || !node.on_slow || (trust && slots.lists_not(name))).then_some(None);
        };
        if slot.pending() || slots.known || trust {
            return Some(slot.view());
        }
        let ours = slot.view().and_then(|ino| self.nodes.get(&ino)).is_some_and(|node| node.ours || node.staged);
        let limit = if ours { ages.ours } else { ages.slow };
        (slot.seen.fresh(now, limit) || self.is_following(dir, name)).then_some(slot.view())
    }

    /// Called before asking the slow tier something that [`View::refresh`] is to take in.
    pub(crate) fn asked(&self, now: Duration) -> LookupStart {
        LookupStart { at: now, published: self.published }
    }

    /// Takes in the slow tier's answer about a name. Must not be called for a pending slot, nor if the answer takes the
    /// name from a node that is being written.
    pub(crate) fn learn(
        &mut self,
        dir: Ino,
        name: &Name,
        stat: Option<&Stat>,
        asked: LookupStart,
        applied: Lsn,
    ) -> Option<Ino> {
        if let Some(kept) = self.replaced(dir, name, stat).filter(|ino| self.owes_below(*ino)) {
            self.keep(dir, name, (kept, stat), asked);
            return Some(kept);
        }
        let found = stat.map(|stat| self.node_for(stat, asked, applied));
        let slot = self.slot_mut(dir, name);
        slot.seen = ObservedAt::at(asked.at);
        if slot.view() != found || slot.slow() != found {
            self.set_both(dir, name, found);
        }
        found
    }

    /// The node that the view has under the name, if the slow tier has removed or replaced it.
    pub(crate) fn replaced(&self, dir: Ino, name: &Name, stat: Option<&Stat>) -> Option<Ino> {
        let ino = self.nodes.get(&dir)?.dir.as_ref()?.slots.get(name)?.view()?;
        let is_there = |stat: &Stat| self.nodes.get(&ino).is_some_and(|node| node.slow_id() == Some(stat.id()));
        (!stat.is_some_and(is_there)).then_some(ino)
    }

    /// Keeps a node in the view that a foreign change removed or replaced, while changes of it, or inside it, are
    /// pending: publishing makes a directory again, or finds the other node.
    pub(crate) fn keep(&mut self, dir: Ino, name: &Name, (kept, stat): (Ino, Option<&Stat>), asked: LookupStart) {
        self.slot_mut(dir, name).seen = ObservedAt::at(asked.at);
        let is_dir = self.nodes.get(&kept).is_some_and(|node| node.kind == Kind::Dir);
        if let Some(stat) = stat.filter(|stat| is_dir && stat.kind == Kind::Dir) {
            self.made_anew(kept, stat.id());
        }
    }

    /// Forgets the names in a directory that has no name any more: a foreign rename may have put its nodes elsewhere,
    /// where a lookup finds them. Returns the nodes that have lost a name.
    pub(crate) fn drop_names_in(&mut self, ino: Ino) -> Vec<Ino> {
        let lost = self.nodes.get(&ino).filter(|node| node.links.is_empty()).and_then(|node| node.dir.as_ref());
        let slots = lost.into_iter().flat_map(|dir| &dir.slots).filter(|(_, slot)| !slot.pending());
        let names: Vec<(Name, Ino)> = slots.filter_map(|(name, slot)| Some((name.clone(), slot.view()?))).collect();
        names.iter().for_each(|(name, _)| self.set_both(ino, name, None));
        names.into_iter().map(|(_, lost)| lost).collect()
    }

    /// Whether changes are pending inside this directory.
    pub(crate) fn owes_below(&self, ino: Ino) -> bool {
        let Some(dir) = self.nodes.get(&ino).and_then(|node| node.dir.as_ref()) else { return false };
        let is_dir = |ino: &Ino| self.nodes.get(ino).is_some_and(|node| node.kind == Kind::Dir);
        let below = |slot: &Slot| slot.view().filter(is_dir).is_some_and(|ino| self.owes_below(ino));
        dir.slots.values().any(|slot| slot.pending() || below(slot))
    }

    /// The directory is another one on the slow tier: its contents are gone, except pending changes.
    pub(crate) fn made_anew(&mut self, ino: Ino, id: SlowId) {
        self.set_slow_id(ino, Some(id));
        if let Some(dir) = self.nodes.get_mut(&ino).and_then(|node| node.dir.as_mut()) {
            dir.forget_others();
            dir.forget_acls();
            dir.slots.values_mut().for_each(|slot| slot.seen = ObservedAt::NEVER);
        }
    }

    /// The node that the slow tree has under a name, or will get.
    pub(crate) fn below_on_slow(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        let slot = self.nodes.get(&dir)?.dir.as_ref()?.slots.get(name)?;
        slot.slow().or(slot.view())
    }

    /// The node for a stat of the slow tier, made if it is new.
    fn node_for(&mut self, stat: &Stat, asked: LookupStart, applied: Lsn) -> Ino {
        if let Some(ino) = self.at_slow((stat.dev, stat.ino)) {
            let is_it = |node: &Node| node.kind == stat.kind && node.slow_id() == Some(stat.id());
            if self.nodes.get(&ino).is_some_and(|node| is_it(node)) {
                self.refresh(ino, stat, asked, applied);
                return ino;
            }
            // The slow tier has reused the number: the node we knew is gone.
            self.set_slow_id(ino, None);
        }
        let ino = self.number_for(stat);
        let mut node = Node::new(stat.kind, NodeAttrs::of(stat));
        node.seen = ObservedAt::at(asked.at);
        self.insert(ino, node);
        self.identify(ino, stat);
        ino
    }

    /// Notes that the slow tier has just shown this stat of the node.
    fn identify(&mut self, ino: Ino, stat: &Stat) {
        self.set_slow_id(ino, Some(stat.id()));
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.set_slow_fingerprint(Some(Fingerprint::of(stat)));
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
        }
        self.promised.remove(&(stat.dev, stat.ino)).unwrap_or_else(|| self.new_ino())
    }

    /// The inode number that a slow file had before the restart, according to its object. Another node may have the
    /// slow file's own number since.
    fn kept_for(&self, slow_ino: u64, kind: Kind) -> Option<Ino> {
        let UnmetObject { ino, .. } = self.waiting.get(&slow_ino)?;
        let is_its = self.kept.get(ino) == Some(&slow_ino);
        (kind == Kind::File && is_its && !self.nodes.contains_key(ino)).then_some(*ino)
    }

    /// Whether a slow inode may show its own number: it is not in use, and no waiting object gets it back from before
    /// the restart.
    fn is_free(&self, ino: Ino) -> bool {
        ino > ROOT && ino < FIRST_OWN && !self.nodes.contains_key(&ino) && !self.kept.contains_key(&ino)
    }

    /// Adds a clean object found at start-up, which waits for a lookup of its file.
    pub(crate) fn wait(&mut self, waiting: UnmetObject) {
        // A file that was replaced may have left an object behind, and the slow tier reuses inode numbers: of two
        // objects with the same number of either kind, the one with the later fingerprint is right.
        let older = |other: &UnmetObject| other.fingerprint.ctime > waiting.fingerprint.ctime;
        let same = self.kept.get(&waiting.ino).and_then(|slow_ino| self.waiting.get(slow_ino));
        if !same.is_some_and(|other| other.ino == waiting.ino && older(other)) {
            self.kept.insert(waiting.ino, waiting.fingerprint.file.ino);
        }
        if !self.waiting.get(&waiting.fingerprint.file.ino).is_some_and(older) {
            self.waiting.insert(waiting.fingerprint.file.ino, waiting);
        }
    }

    /// The inode number that a listing shows for an entry not yet looked up: the lookup will give the same.
    pub(crate) fn ino_shown(&mut self, id: SlowNumber, kind: Kind) -> Ino {
        if let Some(ino) = self.at_slow(id) {
            return ino;
        }
        let (dev, slow_ino) = id;
        if dev == self.root_dev {
            if let Some(ino) = self.kept_for(slow_ino, kind) {
                return ino;
            }
            if self.is_free(slow_ino) {
                return slow_ino;
            }
        }
        if let Some(&ino) = self.promised.get(&id) {
            return ino;
        }
        let ino = self.new_ino();
        self.promised.insert(id, ino);
        ino
    }

    /// Takes over the slow tier's attributes, unless the view's are newer. An answer asked for before something was
    /// published may be old; publishing marks the nodes it concerned as seen since.
    pub(crate) fn refresh(&mut self, ino: Ino, stat: &Stat, asked: LookupStart, applied: Lsn) {
        let in_tmp = self.in_tmp.contains(&ino);
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if asked.published != self.published && node.seen >= ObservedAt::at(asked.at) {
            return;
        }
        let known = node.slow_fingerprint();
        let unchanged = known == Some(Fingerprint::of(stat));
        node.seen = ObservedAt::at(asked.at);
        if known.is_some() && !unchanged {
            node.changed_behind();
        }
        let holds_bytes = node.holds_bytes();
        if holds_bytes && known.is_some_and(|known| !known.is_same_version(stat)) {
            // A foreign change. Keep the old fingerprint: publishing will detect the conflict against it.
            return;
        }
        // No event, and no step of ours, changes the size of a file whose bytes are on the slow tier.
        if !holds_bytes && node.kind == Kind::File {
            node.change_meta(|meta| *meta = NodeAttrs { size: stat.size, blocks: stat.blocks, ..*meta });
        }
        if node.meta_lsn() > applied {
            return;
        }
        let NodeAttrs { atime, mtime, ctime, nlink, .. } = node.meta();
        // Our own publishing changed the times of the slow file; the view keeps the times it showed.
        let is_as_published =
            node.ours && (known.is_none() || node.dir.is_some()) || (node.ours || holds_bytes) && unchanged;
        if is_as_published {
            if node.dir.is_some() {
                node.set_meta(NodeAttrs { atime, mtime, ctime, nlink, ..NodeAttrs::of(stat) });
            }
            node.set_slow_fingerprint(Some(Fingerprint::of(stat)));
            return;
        }
        // While events of its names are published, the link count takes values that the view has already passed.
        let opens = node.file.as_ref().map_or(0, |file| file.opens.load(Ordering::Acquire));
        let pending = node.moved() || in_tmp || node.pins > opens;
        let meta = NodeAttrs::of(stat);
        if stat.birth == 0 && !holds_bytes && (meta.uid, meta.gid) != (node.meta().uid, node.meta().gid) {
            // It may be another file with a reused number.
            node.unshow();
        }
        node.set_meta(if pending { NodeAttrs { nlink, ..meta } } else { meta });
        node.set_slow_fingerprint(Some(Fingerprint::of(stat)));
    }

    /// The node with this inode number on the slow tier's own device, not on one mounted there.
    pub(crate) fn with_slow_ino(&self, ino: u64) -> Option<Ino> {
        self.at_slow((self.root_dev, ino))
    }

    /// Stops consulting the slow tier for these names until the next call; lookups in flight are retried.
    pub(crate) fn follow(&mut self, following: collections::HashSet<DirEntryKey>) {
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

    /// Called after the slow tier's side of these nodes has changed: earlier answers are not valid any more.
    pub(crate) fn publish(&mut self, inos: impl IntoIterator<Item = Ino>, now: Duration) {
        self.published += 1;
        for ino in inos {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.seen = ObservedAt::at(now);
            }
        }
    }

    fn slot_mut(&mut self, dir: Ino, name: &Name) -> &mut Slot {
        // A slot in a removed directory is never seen; callers check that the directory is alive first.
        let dir =
            self.nodes.get_mut(&dir).and_then(|node| node.dir.as_mut()).expect("a directory the caller looked up");
        dir.slots.entry(name.clone()).or_default()
    }

    /// Moves the view's side of a name, and the names of the nodes that come and go.
    pub(crate) fn set_view(&mut self, dir: Ino, name: &Name, to: Option<Ino>) {
        self.set_sides(dir, name, to, true, false);
    }

    /// The node under a name on the slow tier is foreign, and the view has nothing there.
    pub(crate) fn disown(&mut self, (dir, name): &DirEntryKey, now: Duration) {
        let theirs = self.slot_mut(*dir, name).slow();
        self.set_both(*dir, name, None);
        self.slot_mut(*dir, name).seen = ObservedAt::at(now);
        if let Some(theirs) = theirs {
            self.collect(theirs);
        }
    }

    /// Moves the slow tier's side of a name.
    pub(crate) fn set_slow(&mut self, dir: Ino, name: &Name, to: Option<Ino>) {
        self.set_sides(dir, name, to, false, true);
    }

    pub(super) fn set_both(&mut self, dir: Ino, name: &Name, to: Option<Ino>) {
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
        // Even if the slow side now equals the view's: a listing may have read the directory before.
        if let Some(slot) = dir.slots.get_mut(name) {
            slot.changed = generation;
        }
    }

    /// Forgets which slow file a node is, if it has no known name on slow, unless something else keeps its inode number
    /// from being reused: then it may be found again under a name not yet looked up.
    fn leave_slow(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get(&ino) else { return };
        if ino != ROOT && node.slow().is_empty() && !node.has_unknown_names() && !self.in_tmp.contains(&ino) {
            self.set_slow_id(ino, None);
        }
    }

    /// Called when `tmp` on slow no longer has links of these files.
    pub(crate) fn leave_tmp(&mut self, left: Vec<Ino>, now: Duration) {
        self.publish(left.iter().copied(), now);
        for ino in left {
            self.in_tmp.remove(&ino);
            self.leave_slow(ino);
            self.collect(ino);
        }
    }

    /// Detaches a file from its slow file, which becomes another node under the same names there. Returns that node.
    pub(crate) fn detach(&mut self, ino: Ino) -> Option<Ino> {
        let node = self.nodes.get(&ino)?;
        let id = node.slow_id()?;
        let (names, known, alike) = (node.slow().to_vec(), node.slow_fingerprint(), Node::new(node.kind, node.meta()));
        let other = self.new_ino();
        self.insert(other, alike);
        for (dir, name) in &names {
            self.set_slow(*dir, name, Some(other));
        }
        self.set_slow_id(ino, None);
        self.set_slow_id(other, Some(id));
        let node = self.nodes.get_mut(&other)?;
        node.set_slow_fingerprint(known);
        Some(other)
    }

    /// From here on the node shows what the slow tier has.
    pub(crate) fn give_back(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        (node.ours, node.seen) = (false, ObservedAt::NEVER);
        node.forget_attrs(Lsn::MAX);
        if let Some(dir) = &mut node.dir {
            dir.forget_others();
            dir.forget_acls();
        }
    }

    pub(crate) fn set_slow_id(&mut self, ino: Ino, id: Option<SlowId>) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let old = node.slow_id().map(number);
        node.set_slow_id(id);
        self.has_parts |= node.kind == Kind::Dir && id.is_some_and(|id| id.0 != self.root_dev && id.0 != 0);
        if let Some(old) = old
            && self.by_slow.get(&old) == Some(&ino)
        {
            self.by_slow.remove(&old);
        }
        match id.map(number) {
            // Found by its number; a former node with this identity has lost it.
            Some(id) if id == (self.root_dev, ino) => drop(self.by_slow.remove(&id)),
            Some(id) => drop(self.by_slow.insert(id, ino)),
            None => {}
        }
    }

    /// Called when a handle of `ino` is closed.
    pub(crate) fn let_go(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.pins -= 1;
        self.leave_slow(ino);
    }

    /// Adds a node that only the view has so far.
    pub(crate) fn add(&mut self, ino: Ino, kind: Kind, meta: NodeAttrs) -> &mut Node {
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

    /// The view's path of a node, by its first name. `None` if it has no name.
    pub(crate) fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.path_by(ino, |node| node.links.first())
    }

    /// The length of a node's path in bytes, with a slash for each name.
    pub(crate) fn path_len(&self, ino: Ino) -> usize {
        let name = |ino: &Ino| self.nodes.get(ino)?.links.first();
        std::iter::successors(name(&ino), |(dir, _)| name(dir)).map(|(_, name)| name.as_bytes().len() + 1).sum()
    }

    /// The current path of a node on the slow tier.
    pub(crate) fn slow_path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.path_by(ino, |node| node.slow().first())
    }

    fn path_by(&self, ino: Ino, name: impl Fn(&Node) -> Option<&DirEntryKey>) -> Option<Vec<u8>> {
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

    pub(crate) fn path_at(&self, (dir, name): &DirEntryKey) -> Option<Vec<u8>> {
        join(self.path(*dir)?, name)
    }

    pub(crate) fn slow_path_at(&self, (dir, name): &DirEntryKey) -> Option<Vec<u8>> {
        join(self.slow_path(*dir)?, name)
    }

    /// All known paths of `ino` on the slow tier.
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
    /// object, no child. A forgotten node is found again on the slow tier. For a node that is needed, drops the parts
    /// that are not.
    pub(crate) fn collect(&mut self, ino: Ino) {
        let mut at = ino;
        while at != ROOT {
            let Some(node) = self.nodes.get_mut(&at) else { return };
            node.rest(None);
            let Some(node) = self.nodes.get(&at) else { return };
            let held = node.refs > 0
                || node.pins > 0
                || node.moved()
                // A lookup now would count the temporary link in `tmp`.
                || self.in_tmp.contains(&at)
                || node.holds_bytes()
                || node.dir.as_ref().is_some_and(|dir| dir.listers > 0 || !dir.slots.is_empty());
            let shown = node.links.iter().any(|(dir, name)| {
                let dir = self.nodes.get(dir).and_then(|node| node.dir.as_ref());
                dir.is_some_and(|dir| dir.known || dir.listers > 0 || dir.slots.get(name).is_some_and(Slot::pending))
            });
            if held || shown {
                return;
            }
            let parent = node.links.first().map(|link| link.0);
            let found_as_another = node.slow_id().is_none_or(|(_, file)| file.ino != at);
            for (dir, name) in node.links.clone().iter() {
                if let Some(dir) = self.nodes.get_mut(dir).and_then(|node| node.dir.as_mut()) {
                    dir.forget_slot(name);
                    if found_as_another {
                        dir.listed = None;
                    }
                }
            }
            self.set_slow_id(at, None);
            self.nodes.remove(&at);
            self.dirs.remove(&at);
            self.to_compare.remove(&at);
            match parent {
                Some(parent) => at = parent,
                None => return,
            }
        }
    }

    /// Directories, at most `most`, for which the slow tier must be asked whether they are still known in full: those
    /// with lookups since they were last checked. Names in the others, and in those not checked in time, are looked up
    /// again. Our own writes there do not matter: they say nothing about foreign names.
    pub(crate) fn age_dirs(&mut self, now: Duration, ages: Ages, most: usize) -> Vec<Ino> {
        let mut due = Vec::new();
        for ino in &self.dirs {
            let Some(node) = self.nodes.get_mut(ino).filter(|node| node.on_slow) else { continue };
            if let Some(dir) = &mut node.dir {
                dir.present.take_if(|present| now.saturating_sub(present.asked) > PRESENT_FOR);
            }
            let Some(dir) = node.dir.as_deref_mut().filter(|dir| dir.known && dir.listers == 0) else { continue };
            if dir.checked == ObservedAt::NEVER {
                // It has come to the slow tier since the last call, and until then it contained only our own nodes.
                dir.checked = ObservedAt::at(now);
            }
            if dir.checked.fresh(now, ages.ours / 4 * 3) {
                continue;
            }
            let used = dir.used.load(Ordering::Relaxed);
            if used && due.len() < most {
                due.push(*ino);
            } else if !used || !dir.checked.fresh(now, ages.ours) {
                dir.forget_others();
            }
        }
        due
    }

    /// Drops cached negative answers and collects nodes that are not needed, among the next `most` names; the next call
    /// continues behind them. `true`: that was the last name. With a million names, one pass would hold the lock too
    /// long.
    pub(crate) fn age_names(&mut self, now: Duration, ages: Ages, most: usize) -> bool {
        let mut left = most;
        while left > 0 {
            let (first, after) = self.aged.take().unwrap_or((ROOT, None));
            // If the directory is gone by now, continue with the next one.
            let Some(&ino) = self.dirs.range(first..).next() else { return true };
            let after = after.filter(|_| ino == first);
            let (inspected, last) = self.age_names_of(ino, after, now, ages, left);
            left -= inspected.clamp(1, left);
            if last.is_none() {
                self.collect(ino);
            }
            self.aged = Some(if last.is_some() { (ino, last) } else { (ino + 1, None) });
        }
        false
    }

    /// Ages the names of one directory, behind `after`. Returns how many names were looked at, and the last one if
    /// there are more.
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
            // The kernel refers to most of them, and this check is quick.
            if self.nodes.get(&child).is_some_and(|node| node.refs == 0) {
                self.collect(child);
            }
        }
        (count, last)
    }

    /// Checks the invariants; for tests.
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
                assert_eq!(self.at_slow(number(id)), Some(*ino), "slow identity of {ino}");
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
pub(super) mod tests {
    use super::*;
    use crate::tiers::disk::Time;
    use crate::tiers::log::record::Home;

    pub(in crate::tiers) fn stat(ino: u64, kind: Kind) -> Stat {
        Stat { dev: 1, ino, kind, perm: 0o755, nlink: 1, ..Stat::default() }
    }

    /// A replaced file had left an object, and the slow tier had reused that object's inode number for another file: a
    /// listing showed it under the first file's number, but the lookup did not, because the first file had that number
    /// by then. Case 600243 of the model test.
    #[test]
    fn of_two_objects_of_one_file_the_later_keeps_its_number() {
        for order in [[0, 1], [1, 0]] {
            let mut view = View::new(&stat(2, Kind::Dir), Duration::ZERO);
            let files = [(20, 1), (30, 2)].map(|(slow_ino, sec)| {
                let ctime = Time { sec, nsec: 0 };
                Stat { ctime, ..stat(slow_ino, Kind::File) }
            });
            for nth in order {
                let object = ObjectId { home: Home::Fast, number: nth as u64 };
                view.wait(UnmetObject { object, ino: 12, fingerprint: Fingerprint::of(&files[nth]), tried: false });
            }
            let shown = [20, 30].map(|slow_ino| view.ino_shown((1, slow_ino), Kind::File));
            assert_eq!(shown, [20, 12]);
            let asked = view.asked(Duration::ZERO);
            let found = [1, 0].map(|nth| {
                let name = Name::new(format!("n{nth}").as_bytes()).expect("a name");
                view.learn(ROOT, &name, Some(&files[nth]), asked, 0)
            });
            assert_eq!(found, [Some(12), Some(20)]);
        }
    }

    /// Aging was once a single pass under the lock: half of every second with a million files.
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
        assert_eq!(left, HashSet::from_iter([ROOT, kept]));
        let slots = |ino| view.live_dir(ino).map(|dir| dir.slots.len());
        assert_eq!((slots(ROOT), slots(kept)), (Some(1), Some(0)));
    }
}
