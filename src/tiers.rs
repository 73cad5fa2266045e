//! The two tiers and the view over them: what an application's calls mean.
//!
//! [`Tiers`] is the engine. Its methods are the file system's operations on inode numbers, independent of FUSE; its
//! `*_step` methods are the background's work, each a bounded piece that a test can stop after.
//!
//! How a write becomes a file on the slow tier: `ops::data` puts the bytes into an object and its name into the view, a
//! close makes them an event of the log (`ops::commit`), `ops::seal` makes the event durable on fast,
//! `writeback::drain` copies the bytes to the slow tier's `tmp`, `writeback::publish` moves them into place in log
//! order, and `capacity::evict` releases the object. Every start begins with `recovery`.
//!
//! The parts and what each owns: ARCHITECTURE.md, "The parts". The locks and their order: `disk::sync`.

/// Whether a test leaves out this step of the engine's order: `faults::Lapse`. A release build contains no such check.
#[cfg(debug_assertions)]
macro_rules! left_out {
    ($lapse:ident) => {
        $crate::tiers::disk::faults::is_left_out($crate::tiers::disk::faults::Lapse::$lapse)
    };
}
#[cfg(not(debug_assertions))]
macro_rules! left_out {
    ($lapse:ident) => {
        false
    };
}

mod capacity;
mod checkpoints;
mod copies;
mod core;
mod counters;
pub mod disk;
mod drain_control;
mod fleet;
mod housekeeping;
mod incarnation;
mod log;
mod model;
mod objects;
mod ops;
mod order;
mod partner;
mod pending;
mod pins;
mod progress;
mod recovery;
mod references;
mod saved;
mod side_by_side;
mod small_deque;
mod sorted;
mod staging;
mod status;
mod writeback;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use derive_more::{Deref, DerefMut};

use crate::config::{Config, Rules};
use crate::error::{Errno, Error, Result};
use copies::index::Copies;
use copies::reads::Reads;
use core::EngineCore;
use disk::{Kind, NewAttr, Time};
use drain_control::DrainControl;
use fleet::appends::AppendClaim;
use fleet::periods::COLLECT_ABOVE;
use incarnation::Incarnation;
use model::queue::PendingMost;
use objects::file::FileState;
use ops::SharedByCalls;
use order::Order;
use partner::Partner;
use pins::Pins;
use saved::SavedWatch;
use staging::jobs::StagingJobs;
use writeback::Writeback;

pub use capacity::evict::{Evictable, Evicted};
pub(crate) use checkpoints::index::{FLEET_MARKERS, is_temporary};
pub(crate) use checkpoints::step::{certain_step, step_in};
pub use disk::saved::SavedKind;
pub use fleet::forget::Watched;
pub(crate) use fleet::periods::FleetPeriods;
pub use fleet::reader::{FleetReader, SlotLook};
pub use model::listing::SharedListing;
pub use objects::abilities::{Abilities, Lack, NAMES_AHEAD};
pub use objects::file::Pin;
pub use recovery::fsck::{Finding, FsckReport, Severity, fsck};
pub use recovery::handover::FoundCopy;
pub use recovery::lost_member::{FinishedGroup, finish_group};
pub use recovery::rescue::{RescueReport, rescue};
pub use recovery::start::{SlowTree, open};
pub use recovery::verify::{Bad, Verified, Verifying};
pub(crate) use saved::sum as sum_of_saved;
pub use saved::{Adopted, SavedDir, adopt, remove_saved, saved_dirs};
pub use staging::copy_one::StageOutcome;
pub use writeback::deadline::{Saved, Saving, Unsaved};
pub use writeback::set_aside::SetAside;

/// An inode number of the view: ours, stable while the kernel or an object knows the file. The root is 1.
pub type Ino = u64;
pub const ROOT: Ino = 1;
/// A log sequence number.
pub type Lsn = u64;

/// In place of a process: the kernel cannot name it here. All such processes count as one.
pub const UNNAMED: u32 = 0;
/// In place of a process: the kernel itself, which writes back what was stored through a mapping. Nobody can tell when the
/// last store was made, so only the release of the last writer's handle ends it.
pub const MAPPING: u32 = u32::MAX;

/// Attributes as the view shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    pub kind: Kind,
    /// The low twelve mode bits.
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// How long the kernel may believe these attributes without asking.
    pub ttl: Duration,
}

/// The caller's identity, and how far the call may go.
#[derive(Debug)]
pub struct Cx {
    pub uid: u32,
    pub gid: u32,
    slow: SlowAccess,
    /// Who opens, writes or closes: see [`Cx::by`].
    process: AtomicU32,
    /// The call has opened or read a slow file.
    used_slow: AtomicBool,
    /// In a fleet: the stamp of the last event that the call has logged. 0: none.
    logged: AtomicU64,
}

#[derive(Clone, Debug)]
enum SlowAccess {
    Forbidden,
    Allowed(Arc<AtomicBool>),
}

impl Cx {
    /// For a thread that must not wait: a call that needs the slow tier answers [`Error::NeedSlow`] and changes
    /// nothing.
    pub fn fast_only(uid: u32, gid: u32) -> Self {
        Cx::new(uid, gid, SlowAccess::Forbidden)
    }

    fn new(uid: u32, gid: u32, slow: SlowAccess) -> Self {
        let (process, used_slow, logged) = (AtomicU32::new(UNNAMED), AtomicBool::default(), AtomicU64::default());
        Cx { uid, gid, slow, process, used_slow, logged }
    }

    /// For a thread that may wait for the slow tier. Once `gave_up` is set, the call changes nothing more and answers
    /// [`Error::SlowTimeout`].
    pub fn may_wait(uid: u32, gid: u32, gave_up: Arc<AtomicBool>) -> Self {
        Cx::new(uid, gid, SlowAccess::Allowed(gave_up))
    }

    /// From here on it is a call of this process: its number as the kernel has it (the thread group), [`MAPPING`], or
    /// [`UNNAMED`]. It tells whose close makes a version complete.
    pub fn by(&self, process: u32) -> &Self {
        self.process.store(process, Ordering::Relaxed);
        self
    }

    fn process(&self) -> u32 {
        self.process.load(Ordering::Relaxed)
    }

    /// For [`Tiers::commit_wait`].
    pub fn logged(&self) -> u64 {
        self.logged.load(Ordering::Relaxed)
    }

    /// For the background and for tests: may wait, and is never given up.
    pub fn internal() -> Self {
        Cx::may_wait(0, 0, Arc::new(AtomicBool::new(false)))
    }

    /// Whether the call has opened or read a slow file without waiting.
    pub fn has_used_slow(&self) -> bool {
        self.used_slow.load(Ordering::Relaxed)
    }

    /// Call before anything that touches the slow tier.
    fn slow(&self) -> Result<()> {
        match &self.slow {
            SlowAccess::Forbidden => Err(Error::NeedSlow),
            SlowAccess::Allowed(_) => self.proceed(),
        }
    }

    /// Call before the first change: the caller may have been answered EIO meanwhile.
    fn proceed(&self) -> Result<()> {
        match &self.slow {
            SlowAccess::Allowed(gave_up) if gave_up.load(Ordering::Acquire) => Err(Error::SlowTimeout),
            _ => Ok(()),
        }
    }
}

/// Changes asked for by one SETATTR.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub attr: NewAttr,
    pub size: Option<u64>,
}

/// How a file is opened; other flags make no difference to the engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenMode {
    pub write: bool,
    pub append: bool,
    pub truncate: bool,
}

/// An open file. Refers to the inode, wherever its bytes are now. Give it back with [`Tiers::release`].
#[derive(Debug)]
pub struct OpenFile {
    pub ino: Ino,
    pub mode: OpenMode,
    state: Arc<FileState>,
    /// In a fleet, of one that is opened for appending.
    claim: Option<AppendClaim>,
    /// [`FileState::replaced`] when the open was permitted.
    replaced: u32,
    /// Bytes read through this handle.
    read: AtomicU64,
}

impl OpenFile {
    /// ESTALE once a foreign change has put another file in its place: the opener was not given access to that one.
    fn expect_same(&self) -> std::result::Result<(), Errno> {
        if self.state.replaced.load(Ordering::Acquire) == self.replaced { Ok(()) } else { Err(Errno::ESTALE) }
    }
}

/// A merged directory listing. `.` and `..` are included, first.
#[derive(Debug)]
pub struct Listing {
    /// In the order of their positions.
    pub entries: Vec<ListEntry>,
    /// Behind the last position that was ever given.
    pub end: u64,
    bytes: usize,
    /// The directory's generation that it is true for.
    generation: u64,
}

#[derive(Clone, Debug)]
pub struct ListEntry {
    pub name: Vec<u8>,
    pub ino: Ino,
    pub kind: Kind,
    /// Its position, the same as long as anybody has the listing and the name is in the directory.
    pub at: u64,
}

/// Which tier holds the newest bytes, for `user.dlio.tier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierKind {
    Fast,
    Slow,
}

/// `user.dlio.state`, as docs/commands.md tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileStatus {
    Slow,
    Dirty,
    Draining,
    Clean,
    /// On slow, with a copy on fast.
    Staged,
    Failed,
}

/// What a background step achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something was done; call again.
    Did,
    /// Nothing to do until something changes.
    Idle,
    /// Nothing to do before this much time has passed.
    Wait(Duration),
}

/// Whom the background is to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// One loop for each kind of work: something was appended, closed, sealed, copied or published.
    EachKind,
    /// One more stream of the drain, because another one has found something to copy.
    OneStream,
    /// All streams: there is something that each can help with, or there may be more streams.
    AllStreams,
}

/// The engine's options: the configuration, whose fields are those of the options too, and what is derived from it.
#[derive(Clone, Debug, Deref, DerefMut)]
pub struct Options {
    #[deref]
    #[deref_mut]
    pub config: Config,
    /// Rules by path: which files read from slow get a copy on fast, which stay there, and which bypass it.
    pub rules: Rules,
    /// How many directories of the slow tier, of the pool and of the staged copies stay open. A running mount keeps the
    /// value it started with.
    pub dirs_kept: usize,
    /// The mount's owner, who like root has no share of what may wait but all of it.
    pub owner_uid: u32,
    /// In a fleet of more members, one of them reads the leases of all, and not each.
    pub collect_above: u32,
}

impl Options {
    /// Errors: a rule with an invalid pattern.
    pub fn new(config: Config, dirs_kept: usize, owner_uid: u32) -> Result<Options> {
        Ok(Options { rules: Rules::new(&config)?, config, dirs_kept, owner_uid, collect_above: COLLECT_ABOVE })
    }

    fn pending_most(&self) -> PendingMost {
        PendingMost { events: self.max_pending, bytes: self.max_pending_bytes }
    }

    fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner_uid
    }

    /// No waiting, no rules and no reserve, for small tiers: the starting point for tests of the engine.
    pub fn for_tests() -> Options {
        let config = Config {
            settle: Duration::ZERO,
            live_after: Duration::from_secs(60),
            copy_up_max: 64 << 20,
            revalidate: Duration::from_secs(30),
            max_pending: 1_000_000,
            keep: 0,
            reserve: 0.0,
            high: 0.85,
            low: 0.70,
            ballast: 16 << 10,
            attribute_lifetime: Duration::from_secs(60),
            attribute_lifetime_slow: Duration::from_secs(1),
            ..Config::default()
        };
        Options { config, rules: Rules::default(), dirs_kept: 64, owner_uid: 0, collect_above: COLLECT_ABOVE }
    }

    /// The same options with a change applied.
    pub fn with(mut self, change: impl FnOnce(&mut Options)) -> Options {
        change(&mut self);
        self
    }
}

/// The engine: what every room may hold (its core, for which it stands), and what one room has to itself.
#[derive(derive_more::Debug, Deref)]
#[debug("{core:?}")]
pub struct Tiers {
    #[deref]
    core: EngineCore,
    drain_control: DrainControl,
    order: Order,
    /// `None`: the mount writes nothing to the slow tree, or nobody would notice a copy of the fast tier.
    incarnation: Option<Incarnation>,
    copies: Copies,
    reads: Reads,
    pins: Pins,
    calls: SharedByCalls,
    writeback: Writeback,
    partner: Partner,
    saved: SavedWatch,
    staging: StagingJobs,
}
