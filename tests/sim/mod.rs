//! A disk in memory that can lose power, run full, fail on demand, and that remembers every state it showed.
//!
//! [`SimDisk`] behaves as ext4 does towards its callers. Underneath it keeps what is durable apart from what is live:
//! a sync moves things over, [`SimDisk::crash`] gives the disk that is found after a kill or a power cut.
//! [`SimPower`] is shared by the disks of one machine and counts their mutating calls, so a test can stop the machine at
//! any one of them. What is equal and what is not is [`image`]'s business.

#![allow(dead_code, unreachable_pub, reason = "each test uses the part of this module that it needs")]

mod bytes;
mod calls;
pub mod image;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Clock, Dir, Kind, MetadataOrder, Stat, Time};
use parking_lot::Mutex;
use rand::{Rng, RngExt};

use bytes::BLOCK;
use calls::SimDir;
use image::{Body, Image, Shown};
use tree::{Change, Ino, Inode, Meta, ROOT, Tree};

/// The directory at a tier's root that belongs to the engine.
pub const PRIVATE: &[u8] = b".dlio-fs";

/// The ACL of a node, and that of a directory for what is made in it: the simulated disk copies it there as it is.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// What an inode costs of the capacity, in bytes.
const INODE_BYTES: u64 = 256;
/// How the names begin of files that stay until they are closed.
const NFS_KEEPS: &str = ".nfs";
const FUSE_KEEPS: &str = ".fuse_hidden";

/// Time that passes when the test says so, and a microsecond whenever somebody looks: no two moments are the same.
#[derive(Debug)]
pub struct SimClock {
    nanos: AtomicU64,
    /// How much later it is each time that somebody looks, in nanoseconds.
    tick: u64,
}

impl SimClock {
    pub fn new() -> Arc<Self> {
        Self::ticking(1000)
    }

    /// Goes on only by [`SimClock::advance`].
    pub fn stopped() -> Arc<Self> {
        Self::ticking(0)
    }

    fn ticking(tick: u64) -> Arc<Self> {
        Arc::new(SimClock { nanos: AtomicU64::new(1_700_000_000_000_000_000), tick })
    }

    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }

    /// As an operator does it. Not of the clock that an engine has.
    pub fn set_back(&self, by: Duration) {
        self.nanos.fetch_sub(by.as_nanos() as u64, Ordering::Relaxed);
    }

    fn tick(&self) -> u64 {
        self.nanos.fetch_add(self.tick, Ordering::Relaxed) + self.tick
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        let nanos = self.tick();
        Time { sec: (nanos / 1_000_000_000) as i64, nsec: (nanos % 1_000_000_000) as u32 }
    }

    fn uptime(&self) -> Duration {
        Duration::from_nanos(self.tick() - 1_700_000_000_000_000_000)
    }
}

/// How much of the call during which the machine stops still reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Nothing,
    /// Of a write, some of its pages; of anything else, all.
    Part,
    All,
}

#[derive(Debug, Default)]
struct Supply {
    calls: u64,
    stop: Option<(u64, Effect)>,
    gone: bool,
}

/// The power supply of one machine: its disks share it.
#[derive(Debug, Default)]
pub struct SimPower(Mutex<Supply>);

impl SimPower {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Mutating calls so far, on all disks.
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// The machine stops at the `n`th mutating call from now (1: the next one); that call and all after it, reads too,
    /// fail with EIO. Chance decides how much of that one call still takes effect.
    pub fn fail_after(&self, n: u64, rng: &mut impl Rng) {
        let effect = [Effect::Nothing, Effect::Part, Effect::All][rng.random_range(0..3)];
        let mut supply = self.0.lock();
        supply.stop = Some((supply.calls + n, effect));
    }

    pub fn is_gone(&self) -> bool {
        self.0.lock().gone
    }

    /// The machine starts again; nothing is scheduled to stop it.
    pub fn restore(&self) {
        let mut supply = self.0.lock();
        supply.gone = false;
        supply.stop = None;
    }

    fn mutating(&self) -> Option<Effect> {
        let mut supply = self.0.lock();
        if supply.gone {
            return Some(Effect::Nothing);
        }
        supply.calls += 1;
        let effect = supply.stop.filter(|(at, _)| *at <= supply.calls).map(|(_, effect)| effect);
        supply.gone |= effect.is_some();
        effect
    }
}

/// What a crash takes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lose {
    /// The process was killed: the disk is as it was.
    Nothing,
    /// The power was cut: what was not synced is there or not, as the disk pleases.
    Unsynced,
}

/// A call that is about to be made, for [`SimDisk::inject`].
#[derive(Clone, Debug)]
pub struct Op {
    /// The name of the trait's method.
    pub call: &'static str,
    /// From the disk's root.
    pub path: Vec<u8>,
    /// The new name of a rename or link, in whatever directory.
    pub to: Vec<u8>,
    /// Whether it is beneath `.dlio-fs`.
    pub private: bool,
    pub bytes: u64,
}

type Inject = Box<dyn Fn(&Op) -> Option<Errno> + Send + Sync>;
type FailRead = dyn Fn(&[u8]) -> Option<Errno> + Send + Sync;

/// Changes that reach the disk together.
#[derive(Clone, Debug)]
struct Transaction {
    changes: Vec<Change>,
    behind: Behind,
}

/// What a transaction does not reach the disk before, besides what it builds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Nothing,
    /// A directory moved: no disk lets that overtake another such move, or one directory might be lost in the other.
    Moves,
    /// A directory went away: no disk lets that overtake anything.
    All,
}

/// What becomes of the number of an inode that is gone, and what tells the next one with it from that.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// It is given out again at once, as on xfs. Otherwise once the removal is durable. Of a disk with a journal.
    pub at_once: bool,
    /// Each inode tells its birth.
    pub births: bool,
}

impl Default for Numbers {
    fn default() -> Self {
        Numbers { at_once: false, births: true }
    }
}

#[derive(Debug, Default)]
struct State {
    live: Tree,
    /// What is on the disk for certain, and what was done since, oldest first. A file's durable bytes are in here too.
    durable: Tree,
    pending: Vec<Transaction>,
    numbers: Numbers,
    /// So many inodes were made.
    made: u32,
    /// Open descriptors, by inode.
    open: BTreeMap<Ino, u64>,
    capacity: u64,
    /// Whoever asks is an ordinary user, for whom the modes hold.
    heeds_modes: bool,
    /// It is a file server, as an NFS client shows it.
    is_nfs: bool,
    /// A file that is open and loses its last name keeps one of this beginning in the same directory until it is closed.
    keeps_open: Option<&'static str>,
    /// So many have.
    kept_open: u64,
    /// What the client believes of a name until it asks anew.
    believed: BTreeMap<(Ino, Vec<u8>), Stat>,
    /// The most names of a file, if it is few.
    names_max: Option<u64>,
    /// Set once a crash has taken the disk over: whoever still holds descriptors gets EIO.
    dead: bool,
    observed: Option<Observed>,
    /// Roots of parts of the tree, and the device that each shows: no rename and no hard link goes across the border of one.
    parts: BTreeMap<Ino, u64>,
}

/// What the tree outside of the private directory looked like, after each change.
#[derive(Debug, Default)]
struct Observed {
    images: Vec<Image>,
    last: Image,
    bodies: BTreeMap<Ino, Shown>,
}

struct Shared {
    label: &'static str,
    order: MetadataOrder,
    power: Arc<SimPower>,
    clock: Arc<SimClock>,
    state: Mutex<State>,
    inject: Mutex<Option<Inject>>,
    before: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    after: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    reads: Mutex<Option<Arc<FailRead>>>,
    failing: Mutex<Option<Arc<dyn Fn() -> bool + Send + Sync>>>,
    /// Bytes of files that were read, and calls that changed nothing.
    read: AtomicU64,
    looks: AtomicU64,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label)
    }
}

#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Shared>);

impl SimDisk {
    /// An empty disk. `capacity` in bytes.
    pub fn new(
        label: &'static str,
        order: MetadataOrder,
        capacity: u64,
        power: &Arc<SimPower>,
        clock: &Arc<SimClock>,
    ) -> Self {
        let now = clock.now();
        let meta = Meta { perm: 0o755, atime: now, mtime: now, ctime: now, ..Meta::default() };
        let mut tree = Tree::default();
        tree.inodes.insert(ROOT, Inode::new(Kind::Dir, meta));
        let state = State { live: tree.clone(), durable: tree, capacity, ..State::default() };
        Self::with(label, order, power, clock, state)
    }

    fn with(
        label: &'static str,
        order: MetadataOrder,
        power: &Arc<SimPower>,
        clock: &Arc<SimClock>,
        state: State,
    ) -> Self {
        SimDisk(Arc::new(Shared {
            label,
            order,
            power: power.clone(),
            clock: clock.clone(),
            state: Mutex::new(state),
            inject: Mutex::new(None),
            before: Mutex::new(None),
            after: Mutex::new(None),
            reads: Mutex::new(None),
            read: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            failing: Mutex::new(None),
        }))
    }

    pub fn root(&self) -> Arc<dyn Dir> {
        SimDir::open(&self.0, &mut self.0.state.lock(), ROOT)
    }

    /// Bytes of files that were read so far, and calls that changed nothing.
    pub fn effort(&self) -> (u64, u64) {
        (self.0.read.load(Ordering::Relaxed), self.0.looks.load(Ordering::Relaxed))
    }

    pub fn power(&self) -> Arc<SimPower> {
        self.0.power.clone()
    }

    pub fn set_capacity(&self, bytes: u64) {
        self.0.state.lock().capacity = bytes;
    }

    /// From now on whoever asks is an ordinary user, who owns what is there; or root again.
    pub fn heed_modes(&self, heeds: bool) {
        self.0.state.lock().heeds_modes = heeds;
    }

    /// From now on it is as an NFS client shows a file server: nothing is exchanged, and no rename refuses a taken name; a file that is open and
    /// loses its last name is `.nfs` and digits in the same directory until it is closed. A directory that is gone is stale.
    pub fn become_nfs(&self) {
        let mut state = self.0.state.lock();
        (state.is_nfs, state.keeps_open) = (true, Some(NFS_KEEPS));
    }

    /// From now on it is as libfuse shows any file system, sshfs for example: an open file that loses its last name is `.fuse_hidden` and
    /// digits in the same directory until it is closed.
    pub fn become_fuse(&self) {
        self.0.state.lock().keeps_open = Some(FUSE_KEEPS);
    }

    pub fn limit_names(&self, names_max: u64) {
        self.0.state.lock().names_max = Some(names_max);
    }

    pub fn give_numbers(&self, numbers: Numbers) {
        assert!(
            !numbers.at_once || self.0.order == MetadataOrder::Journaled,
            "without an order a number says too little"
        );
        self.0.state.lock().numbers = numbers;
    }

    pub fn used(&self) -> u64 {
        self.0.state.lock().used()
    }

    /// Asks `inject` before every mutating call; the call fails with the errno it gives.
    pub fn inject(&self, inject: impl Fn(&Op) -> Option<Errno> + Send + Sync + 'static) {
        *self.0.inject.lock() = Some(Box::new(inject));
    }

    /// Asks `fail` before every read of a file's bytes, while nothing of the disk is locked; the read fails with the errno it
    /// gives. It is told where the file is, from the disk's root.
    pub fn fail_reads(&self, fail: impl Fn(&[u8]) -> Option<Errno> + Send + Sync + 'static) {
        *self.0.reads.lock() = Some(Arc::new(fail));
    }

    /// Asks `fail` at every call that changes nothing whether it is EIO.
    pub fn fail_looks(&self, fail: impl Fn() -> bool + Send + Sync + 'static) {
        *self.0.failing.lock() = Some(Arc::new(fail));
    }

    /// The `n`th such call from now is EIO (1: the next one); 0: none.
    pub fn fail_look(&self, n: u64) {
        let left = AtomicU64::new(n);
        let less = |left: u64| left.checked_sub(1);
        self.fail_looks(move || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) == Ok(1));
    }

    /// Calls `before` before every call that is made from now on, while nothing of the disk is locked. A disk after a crash
    /// goes on doing so.
    pub fn before_calls(&self, before: impl Fn() + Send + Sync + 'static) {
        *self.0.before.lock() = Some(Arc::new(before));
    }

    /// Calls `after` after every call that changes nothing, before its caller has the answer.
    pub fn after_looks(&self, after: impl Fn() + Send + Sync + 'static) {
        *self.0.after.lock() = Some(Arc::new(after));
    }

    /// The tree outside of the private directory.
    pub fn image(&self) -> Image {
        self.0.state.lock().image(&mut BTreeMap::new())
    }

    /// What a power cut now might leave of that. This disk goes on.
    pub fn image_after_power_cut(&self, rng: &mut impl Rng) -> Image {
        let state = self.0.state.lock();
        let tree = state.after_power_cut(self.0.order, rng);
        State { live: tree, ..State::default() }.image(&mut BTreeMap::new())
    }

    /// Whether something is open for one call of a daemon without root.
    pub fn has_notes(&self) -> bool {
        self.0.state.lock().notes().next().is_some()
    }

    /// From now on, keeps the tree outside of the private directory as it is after each change of it.
    pub fn observe(&self) {
        let mut state = self.0.state.lock();
        let mut observed = Observed::default();
        observed.last = state.image(&mut observed.bodies);
        state.observed = Some(observed);
    }

    /// What was observed since the last time this was asked, oldest first.
    pub fn take_observed(&self) -> Vec<Image> {
        self.0.state.lock().observed.as_mut().map(|o| std::mem::take(&mut o.images)).unwrap_or_default()
    }

    /// Makes the directory at this path the root of a part: no rename and no hard link goes across its border. `device`: that it shows; 1 is
    /// that of the root.
    pub fn make_part(&self, path: &[u8], device: u64) {
        let mut state = self.0.state.lock();
        let below = |dir, name: &[u8]| state.live.inodes[&dir].entries[name];
        let ino = path.split(|&b| b == b'/').fold(ROOT, below);
        state.parts.insert(ino, device);
    }

    /// Everything as if synced: for setting a scene.
    pub fn settle(&self) {
        let mut state = self.0.state.lock();
        state.live.inodes.values_mut().for_each(|inode| inode.bytes.synced());
        state.durable = state.live.clone();
        state.pending.clear();
    }

    /// The disk as it is found after a crash. This one answers EIO from now on, whoever still holds descriptors.
    pub fn crash(&self, lose: Lose, rng: &mut impl Rng) -> SimDisk {
        let mut state = self.0.state.lock();
        state.dead = true;
        let after = match lose {
            Lose::Nothing => {
                let mut live = std::mem::take(&mut state.live);
                live.repair();
                State { live, durable: state.durable.clone(), pending: state.pending.clone(), ..State::default() }
            }
            Lose::Unsynced => {
                let tree = state.after_power_cut(self.0.order, rng);
                State { live: tree.clone(), durable: tree, ..State::default() }
            }
        };
        self.with_contents(&state, after)
    }

    /// Another disk with what this one has, as `cp -a` or an image of the machine makes it.
    pub fn copy(&self) -> SimDisk {
        let state = self.0.state.lock();
        let mut live = state.live.clone();
        live.repair();
        let (durable, pending) = (state.durable.clone(), state.pending.clone());
        self.with_contents(&state, State { live, durable, pending, ..State::default() })
    }

    fn with_contents(&self, state: &State, after: State) -> SimDisk {
        let after = State {
            capacity: state.capacity,
            parts: state.parts.clone(),
            heeds_modes: state.heeds_modes,
            is_nfs: state.is_nfs,
            keeps_open: state.keeps_open,
            kept_open: state.kept_open,
            names_max: state.names_max,
            numbers: state.numbers,
            made: state.made,
            ..after
        };
        let disk = Self::with(self.0.label, self.0.order, &self.0.power, &self.0.clock, after);
        *disk.0.before.lock() = self.0.before.lock().clone();
        if state.observed.is_some() {
            disk.observe();
        }
        disk
    }
}

impl State {
    fn used(&self) -> u64 {
        self.live.inodes.values().map(|inode| INODE_BYTES + inode.bytes.allocated() * BLOCK).sum()
    }

    fn room_for(&self, bytes: u64) -> io::Result<()> {
        if self.used() + bytes > self.capacity { Err(Errno::ENOSPC.into()) } else { Ok(()) }
    }

    /// The lowest number that nothing on the disk or in anybody's hands goes by: numbers come back.
    fn free_ino(&self) -> Ino {
        if self.numbers.at_once {
            return (11..).find(|ino| !self.live.inodes.contains_key(ino)).expect("a disk has fewer than 2^64 inodes");
        }
        let taken = |ino: &Ino| self.live.inodes.contains_key(ino) || self.durable.inodes.contains_key(ino);
        let unsynced: BTreeSet<Ino> = self
            .pending
            .iter()
            .flat_map(|t| &t.changes)
            .filter_map(|c| if let Change::New(ino, _) = c { Some(*ino) } else { None })
            .collect();
        (11..).find(|ino| !taken(ino) && !unsynced.contains(ino)).expect("a disk has fewer than 2^64 inodes")
    }

    /// Applies metadata changes that belong together.
    fn commit(&mut self, changes: Vec<Change>, behind: Behind) {
        let mut seen = false;
        let mut dropped = Vec::new();
        for change in &changes {
            seen |= self.is_public(change);
            if let Change::Entry { dir, name, .. } = change {
                dropped.extend(self.live.inodes.get(dir).and_then(|d| d.entries.get(name)));
            }
            self.live.apply(change);
            // A rename that moves a name out of the private directory shows only now.
            seen |= self.is_public(change);
        }
        self.pending.push(Transaction { changes, behind });
        dropped.into_iter().for_each(|ino| self.drop_unused(ino));
        if seen {
            self.observe();
        }
    }

    /// Moves the times that no image shows: of directories whose entries changed, and the change time of files.
    fn touch(&mut self, ino: Ino, now: Time) {
        let Some(inode) = self.live.inodes.get(&ino) else { return };
        let mut meta = Meta { ctime: now, ..inode.meta };
        if inode.kind == Kind::Dir {
            meta.mtime = now;
        }
        let change = Change::Meta(ino, meta);
        self.live.apply(&change);
        self.pending.push(Transaction { changes: vec![change], behind: Behind::Nothing });
    }

    /// Changes the bytes of a file and its times.
    fn edit<T>(&mut self, ino: Ino, now: Time, change: impl FnOnce(&mut bytes::Bytes) -> T) -> io::Result<T> {
        let inode = self.live.inodes.get_mut(&ino).ok_or(Errno::EIO)?;
        let done = change(&mut inode.bytes);
        let meta = Meta { mtime: now, ctime: now, ..inode.meta };
        self.commit(vec![Change::Meta(ino, meta)], Behind::Nothing);
        Ok(done)
    }

    /// The root of the part that a directory lies in.
    fn part_of(&self, dir: Ino) -> Ino {
        let mut at = dir;
        while !self.parts.contains_key(&at) {
            match self.live.parent(at) {
                Some(above) => at = above,
                None => return ROOT,
            }
        }
        at
    }

    fn device_of(&self, ino: Ino) -> u64 {
        self.parts.get(&self.part_of(ino)).copied().unwrap_or(1)
    }

    fn drop_unused(&mut self, ino: Ino) {
        let unnamed = self.live.inodes.get(&ino).is_some_and(|inode| inode.names.is_empty());
        if ino != ROOT && unnamed && !self.open.contains_key(&ino) {
            self.live.inodes.remove(&ino);
            self.parts.remove(&ino);
        }
    }

    /// Whether an observer sees this change.
    fn is_public(&mut self, change: &Change) -> bool {
        let Some(observed) = &mut self.observed else { return false };
        match change {
            Change::New(ino, _) => {
                observed.bodies.remove(ino);
                false
            }
            Change::Entry { dir, name, .. } => self.is_public_name(*dir, name),
            Change::Meta(ino, _) | Change::Xattr { ino, .. } => {
                observed.bodies.remove(ino);
                let names = self.live.inodes.get(ino).map(|inode| inode.names.clone()).unwrap_or_default();
                *ino == ROOT || names.iter().any(|(dir, name)| self.is_public_name(*dir, name))
            }
        }
    }

    fn is_public_name(&self, dir: Ino, name: &[u8]) -> bool {
        if dir == ROOT {
            return name != PRIVATE;
        }
        match self.live.inodes[&ROOT].entries.get(PRIVATE) {
            Some(&private) => !self.live.is_below(dir, private),
            None => true,
        }
    }

    fn observe(&mut self) {
        let Some(mut observed) = self.observed.take() else { return };
        let image = self.image(&mut observed.bodies);
        if image != observed.last {
            observed.last = image.clone();
            observed.images.push(image);
        }
        self.observed = Some(observed);
    }

    fn image(&self, bodies: &mut BTreeMap<Ino, Shown>) -> Image {
        let mut found = Vec::new();
        self.walk(ROOT, Vec::new(), bodies, &mut found);
        Image::new(found)
    }

    fn walk(&self, ino: Ino, path: Vec<u8>, bodies: &mut BTreeMap<Ino, Shown>, found: &mut Vec<(Vec<u8>, u64, Shown)>) {
        let inode = &self.live.inodes[&ino];
        let shown = || Shown::new(self.body(ino));
        let shown = bodies.entry(ino).or_insert_with(shown).clone();
        for (name, &child) in &inode.entries {
            if (path.is_empty() || self.parts.contains_key(&ino)) && name == PRIVATE {
                continue;
            }
            let below = if path.is_empty() { name.clone() } else { [&path, &b"/"[..], name].concat() };
            self.walk(child, below, bodies, found);
        }
        found.push((path, ino, shown));
    }

    /// With the mode that a note in `tmp` says, if there is one: open for one call of a daemon without root is no state of the tree.
    fn body(&self, ino: Ino) -> Body {
        let inode = &self.live.inodes[&ino];
        let shown = body(inode);
        let note = format!("w{ino:016x}").into_bytes();
        let closed = self.notes().find(|(name, _)| **name == note).and_then(|(_, note)| {
            let text = String::from_utf8(note.bytes.to_vec()).ok()?;
            u32::from_str_radix(text.strip_suffix('\n')?.split(' ').next()?, 8).ok()
        });
        let rights = if inode.kind == Kind::Dir { 0o700 } else { 0o600 };
        let perm = closed.filter(|closed| closed | rights == shown.perm).unwrap_or(shown.perm);
        Body { perm, ..shown }
    }

    /// What is named `w...` in `tmp`.
    fn notes(&self) -> impl Iterator<Item = (&Vec<u8>, &Inode)> {
        let below = |dir: Option<&Ino>, name: &[u8]| self.live.inodes.get(dir?)?.entries.get(name);
        let tmp = if self.heeds_modes { below(below(Some(&ROOT), PRIVATE), b"tmp") } else { None };
        let daemons = tmp.into_iter().flat_map(|tmp| self.live.inodes[tmp].entries.values());
        let names = daemons.flat_map(|daemon| &self.live.inodes[daemon].entries);
        names.filter(|(name, _)| name.starts_with(b"w")).map(|(name, ino)| (name, &self.live.inodes[ino]))
    }

    fn sync_file(&mut self, ino: Ino, order: MetadataOrder) {
        self.flush(order, |change| match change {
            Change::New(new, _) => *new == ino,
            Change::Meta(of, _) | Change::Xattr { ino: of, .. } => *of == ino,
            Change::Entry { .. } => false,
        });
        if let Some(inode) = self.live.inodes.get_mut(&ino) {
            inode.bytes.synced();
            if let Some(durable) = self.durable.inodes.get_mut(&ino) {
                durable.bytes = inode.bytes.clone();
            }
        }
    }

    /// With the directory go the attributes of the links and special files in it: nothing else could ever sync them.
    fn sync_dir(&mut self, ino: Ino, order: MetadataOrder) {
        let inodes = &self.live.inodes;
        let children = inodes.get(&ino).into_iter().flat_map(|dir| dir.entries.values());
        let unsyncable =
            |child: &&Ino| inodes.get(child).is_some_and(|child| !matches!(child.kind, Kind::File | Kind::Dir));
        let with: BTreeSet<Ino> = children.filter(unsyncable).copied().chain([ino]).collect();
        self.flush(order, |change| match change {
            Change::New(new, _) => with.contains(new),
            Change::Meta(of, _) | Change::Xattr { ino: of, .. } => with.contains(of),
            Change::Entry { dir, .. } => *dir == ino,
        });
    }

    fn sync_all(&mut self, order: MetadataOrder) {
        self.flush(order, |_| true);
        let inodes: Vec<Ino> = self.live.inodes.keys().copied().collect();
        for ino in inodes {
            self.sync_file(ino, order);
        }
    }

    /// Makes the pending changes durable that are asked for and those they build on; with a journal, all of them.
    fn flush(&mut self, order: MetadataOrder, wanted: impl Fn(&Change) -> bool) {
        let mut kept = Vec::new();
        let mut needs = Needs::default();
        let mut chosen = Vec::new();
        for t in std::mem::take(&mut self.pending).into_iter().rev() {
            // Nobody promises that with a new file its name is durable.
            if order == MetadataOrder::Unknown
                && let [new @ Change::New(..), name] = &t.changes[..]
                && !wanted(name)
                && !needs.needs(name)
            {
                if wanted(new) || needs.needs(new) {
                    chosen.push(Transaction { changes: vec![new.clone()], ..t });
                    kept.push(Transaction { changes: vec![name.clone()], ..t });
                } else {
                    kept.push(t);
                }
                continue;
            }
            let take = order == MetadataOrder::Journaled || t.changes.iter().any(&wanted) || needs.concern(&t);
            if take {
                needs.add(&t);
                chosen.push(t);
            } else {
                kept.push(t);
            }
        }
        chosen.iter().rev().flat_map(|t| &t.changes).for_each(|change| self.durable.apply(change));
        kept.reverse();
        self.pending = kept;
        if self.pending.is_empty() {
            let live = &self.live;
            self.durable
                .inodes
                .retain(|ino, inode| *ino == ROOT || !inode.names.is_empty() || live.inodes.contains_key(ino));
        }
    }

    fn after_power_cut(&self, order: MetadataOrder, rng: &mut impl Rng) -> Tree {
        let mut tree = self.durable.clone();
        match order {
            MetadataOrder::Journaled => {
                let arrived = rng.random_range(0..=self.pending.len());
                self.pending[..arrived].iter().flat_map(|t| &t.changes).for_each(|change| tree.apply(change));
            }
            MetadataOrder::Unknown => {
                // Each arrives or not, but none without those it builds on: backwards, what is needed is known in time.
                let odds = [0.1, 0.5, 0.9][rng.random_range(0..3)];
                let mut needs = Needs::default();
                let mut arrived: Vec<&Transaction> = Vec::new();
                for t in self.pending.iter().rev() {
                    if needs.concern(t) || rng.random_bool(odds) {
                        needs.add(t);
                        arrived.push(t);
                    }
                }
                arrived.iter().rev().flat_map(|t| &t.changes).for_each(|change| tree.apply(change));
            }
        }
        for (ino, inode) in &self.live.inodes {
            if let Some(found) = tree.inodes.get_mut(ino).filter(|found| found.birth == inode.birth) {
                found.bytes = inode.bytes.torn(&found.bytes, rng);
            }
        }
        tree.repair();
        tree
    }
}

/// What chosen transactions build on, when they are chosen from the newest to the oldest.
#[derive(Debug, Default)]
struct Needs {
    inodes: BTreeSet<Ino>,
    entries: BTreeSet<(Ino, Vec<u8>)>,
    meta: BTreeSet<Ino>,
    all: bool,
    moves: bool,
}

impl Needs {
    fn concern(&self, t: &Transaction) -> bool {
        (self.moves && t.behind == Behind::Moves) || t.changes.iter().any(|change| self.needs(change))
    }

    fn needs(&self, change: &Change) -> bool {
        self.all
            || match change {
                Change::New(ino, _) => self.inodes.contains(ino),
                Change::Entry { dir, name, .. } => self.entries.contains(&(*dir, name.clone())),
                Change::Meta(ino, _) | Change::Xattr { ino, .. } => self.meta.contains(ino),
            }
    }

    fn add(&mut self, t: &Transaction) {
        self.all |= t.behind == Behind::All;
        self.moves |= t.behind == Behind::Moves;
        for change in &t.changes {
            match change {
                Change::New(..) => {}
                Change::Entry { dir, name, ino } => {
                    self.inodes.insert(*dir);
                    self.inodes.extend(ino);
                    self.entries.insert((*dir, name.clone()));
                }
                Change::Meta(ino, _) | Change::Xattr { ino, .. } => {
                    self.inodes.insert(*ino);
                    self.meta.insert(*ino);
                }
            }
        }
    }
}

fn body(inode: &Inode) -> Body {
    Body {
        kind: inode.kind,
        perm: if inode.kind == Kind::Symlink { 0o777 } else { inode.meta.perm },
        uid: inode.meta.uid,
        gid: inode.meta.gid,
        rdev: inode.rdev,
        mtime: (inode.kind == Kind::File).then_some(inode.meta.mtime),
        bytes: Arc::new(inode.bytes.to_vec()),
        target: inode.target.clone(),
        xattrs: inode.xattrs.clone(),
    }
}
