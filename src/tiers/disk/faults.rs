//! Faults on demand, for tests: a wrapper around the tiers' directories that numbers the engine's calls, stops the
//! process at one of them, fails them or leaves them out.
//!
//! Only in builds with debug assertions, which all tests use; a release build contains none of it. The daemon reads its
//! plan from `DLIO_FAULTS`, words separated by blanks; without it the tiers are left alone:
//!
//! | word | meaning |
//! |---|---|
//! | `stop=before:N`, `stop=after:N` | abort before or after the Nth changing call, counted over both tiers |
//! | `stop=half:N` | abort after half of the bytes of the Nth changing call, if a write; else after it |
//! | `at=TIER:CALL[@PART]:FIRST:COUNT:WHAT` | some calls end with `WHAT` |
//! | `record=PATH` | append a line for each call there: number of the changing call or `-`, tier, call, path |
//! | `boot=ID` | this is another boot: what a power cut would have taken does not count |
//!
//! `at=` covers the calls `CALL` (or `any`) on `TIER` (or `any`), on paths that contain `PART`: `COUNT` of them (or
//! `*`) from the `FIRST` one on. `WHAT` is an errno, `short` (half of a write, then ENOSPC) or `lie` (success, and
//! nothing was done).
//!
//! Calls have the names of the seam's methods (`disk`), except that a directory's `sync` is `sync_dir`, and that all
//! ways to read or write bytes are `read` or `write`: from the cache, past it, by sharing blocks. The seam sets owner,
//! mode and times with one call; here they are three, as they are for the kernel, so that a stop may come between them.
//! A stop happens with the count locked: no further changing call begins on any thread.
//!
//! The seam does not know the order in which the engine means to make its calls. [`Lapse`] switches that order off one
//! step at a time, on one thread: `left_out!` checks for it at the step.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use delegate::delegate;
use parking_lot::Mutex;

use super::{
    Access, Allocate, Dir, DirEntry, File, Inode, Kind, MetadataOrder, NewAttr, RenameMode, Seek, Space, Stat,
};
use crate::error::{Context, Errno, Error, Result};
use crate::path::{Show as _, escape};
use crate::tiers::Lsn;

/// The environment variable that a daemon of such a build reads.
pub const VARIABLE: &str = "DLIO_FAULTS";

/// Calls that change a tier, or make changes durable.
pub const CHANGING: [&str; 17] = [
    "create",
    "mkdir",
    "mknod",
    "symlink",
    "link",
    "rename",
    "unlink",
    "rmdir",
    "set_attr",
    "set_xattr",
    "remove_xattr",
    "write",
    "set_len",
    "allocate",
    "sync",
    "sync_dir",
    "sync_all",
];
/// All other calls that may fail.
pub const LOOKING: [&str; 11] =
    ["stat", "dir", "open", "reopen", "readlink", "list", "get_xattr", "list_xattr", "space", "read", "seek"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum TierName {
    Fast,
    Slow,
}

/// Where the process stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
enum Stop {
    Before,
    Half,
    After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Fail(Errno),
    Short,
    Lie,
}

/// Some calls and how they end.
#[derive(Clone, Debug)]
struct Rule {
    tier: Option<TierName>,
    call: Option<String>,
    part: Option<String>,
    first: u64,
    count: u64,
    what: What,
    seen: u64,
}

impl Rule {
    /// Counts the call if the rule covers it.
    fn take(&mut self, tier: TierName, call: &str, path: &str) -> Option<What> {
        let is_ours = self.tier.is_none_or(|wanted| wanted == tier)
            && self.call.as_ref().is_none_or(|wanted| wanted == call)
            && self.part.as_ref().is_none_or(|part| path.contains(part.as_str()));
        if !is_ours {
            return None;
        }
        self.seen += 1;
        let since = self.seen.checked_sub(self.first)?;
        (since < self.count).then_some(self.what)
    }
}

#[derive(Debug, Default)]
struct Plan {
    stop: Option<(Stop, u64)>,
    rules: Vec<Rule>,
    record: Option<PathBuf>,
    boot: Option<String>,
}

impl Plan {
    fn parse(text: &str) -> Option<Plan> {
        let mut plan = Plan::default();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=')?;
            match key {
                "stop" => plan.stop = Some(stop(value)?),
                "at" => plan.rules.push(rule(value)?),
                "record" => plan.record = Some(PathBuf::from(value)),
                "boot" => plan.boot = Some(value.to_owned()),
                _ => return None,
            }
        }
        Some(plan)
    }
}

fn stop(text: &str) -> Option<(Stop, u64)> {
    let (when, number) = text.split_once(':')?;
    Some((when.parse().ok()?, number.parse().ok()?))
}

fn rule(text: &str) -> Option<Rule> {
    let words: Vec<&str> = text.split(':').collect();
    let [tier, call, first, count, what] = words[..] else { return None };
    let tier = if tier == "any" { None } else { Some(tier.parse().ok()?) };
    let (call, part) = call.split_once('@').map_or((call, None), |(call, part)| (call, Some(part.to_owned())));
    let is_known = CHANGING.contains(&call) || LOOKING.contains(&call) || call == "any";
    let what = match what {
        "short" => What::Short,
        "lie" => What::Lie,
        errno => What::Fail(errno_named(errno)?),
    };
    Some(Rule {
        tier,
        call: (call != "any").then(|| call.to_owned()),
        part,
        first: first.parse().ok()?,
        count: if count == "*" { u64::MAX } else { count.parse().ok()? },
        what,
        seen: 0,
    })
    .filter(|_| is_known)
}

fn errno_named(name: &str) -> Option<Errno> {
    [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT, Errno::EACCES, Errno::EROFS, Errno::EOPNOTSUPP]
        .into_iter()
        .find(|errno| format!("{errno:?}") == name)
}

/// A step of the engine's own order that is left out, or done at the wrong time, to see whether a test detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
pub enum Lapse {
    /// A record is written with the next one, after the reply.
    Append,
    /// The view changes before the record is appended.
    LogFirst,
    /// A write after a commit logs no `bind`.
    Bind,
    /// No `invalidate` is logged.
    Invalidate,
    /// A version counts as complete while other processes write the file.
    WholeVersions,
    /// The `invalidate` of a sealed version is logged and not synced.
    InvalidateDurable,
    /// A seal is durable before the object is.
    SealLast,
    /// A start after a power cut treats every version as sealed.
    Discard,
    /// A copy counts although the version was overwritten meanwhile.
    WrittenOver,
    /// The steps of a group are done in reverse.
    Turn,
    /// Removals are the first steps of a batch.
    RemoveLast,
    /// No intents are logged.
    Intents,
    /// Intents are logged and not synced before the first step.
    IntentsDurable,
    /// On a slow tier that does not order its names, they are synced only at the end of the group.
    EachStepDurable,
    /// A directory that was filled in `tmp` is placed before what is in it is durable.
    FillDurable,
    /// Steps are synced after `applied` is durable.
    StepsDurable,
    /// Files are marked clean before the view has followed.
    FollowFirst,
    /// `applied` passes the `bind` records of files that are ahead of it.
    Rebind,
    /// A start continues a group although intents of it are missing.
    AllIntents,
    /// A placed copy is placed again, whatever has its name in `tmp` by now.
    PlaceOnce,
    /// Anything that is missing from `tmp` counts as placed.
    FindPlaced,
    /// A move does not check what has the old name.
    MoveOnce,
    /// A removal does not check what has the name.
    RemoveOnce,
    /// Segments of the log are deleted before the `applied` that makes them superfluous is durable.
    AppliedDurable,
    /// An object is deleted before the log is durable up to what made it superfluous.
    DeleteDurable,
    /// Eviction does not check the slow file.
    CompareFingerprint,
    /// The log does not record what the slow tier had under a name.
    Expect,
    /// The slow tree goes on without something set aside before that is durable.
    AsideDurable,
    /// Without root: a start leaves open what a crash has left open.
    CloseAgain,
    /// Without root: a closed node is opened before its note is durable.
    NoteDurable,
    /// In a fleet: a reply does not wait until no clock is behind it.
    CommitWait,
    /// In a fleet: an event is published regardless of the other members' leases.
    Gate,
    /// In a fleet: only the first event of a batch is compared with the other members' leases.
    GateEach,
    /// In a fleet: the lease says that the oldest event is published when it is not.
    LeaseLast,
    /// In a fleet: a member whose own lease is old goes on publishing.
    FreshLease,
    /// In a fleet: the leases of a clock that is ahead count, too.
    OthersClocks,
    /// In a fleet: what another member had finished before counts as if it overlapped.
    TheirEnds,
    /// In a fleet: a member does not check whether its slot is still its own.
    OwnSlot,
    /// Two daemons with one id both go on.
    OneStart,
    /// With a partner: a group is applied before its intents are in the copy.
    PartnerIntents,
    /// With a partner: the lease passes what the copy does not know to be published.
    PartnerLease,
    /// With a partner: the copy's log names objects that are not in the copy yet.
    PartnerObjects,
    /// With a partner: a member goes on although a copy has its place.
    PartnerTurn,
    /// With a partner: a copy that was given up takes the member's place.
    StaleCopy,
    /// In a fleet: a version that is pending is overwritten.
    KeepPending,
    /// In a fleet: a checkpoint is safe once this member's part of it is.
    PartsOfAll,
    /// The index of checkpoints has a bug: it panics at a new version.
    IndexStands,
    /// In a fleet: a marker of an earlier save under the same names counts.
    MarkerLater,
}

thread_local! {
    static LEFT_OUT: Cell<Option<Lapse>> = const { Cell::new(None) };
    /// For [`Lapse::Append`]: the text to write with the next record, and that record's number if no start came
    /// between.
    static HELD_BACK: RefCell<Option<(Lsn, String)>> = const { RefCell::new(None) };
}

/// Runs `act` with this step left out wherever the engine comes to it on this thread.
pub fn leaving_out<T>(lapse: Lapse, act: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            LEFT_OUT.set(None);
            HELD_BACK.take();
        }
    }
    LEFT_OUT.set(Some(lapse));
    let _reset = Reset;
    act()
}

pub(crate) fn is_left_out(lapse: Lapse) -> bool {
    LEFT_OUT.get() == Some(lapse)
}

/// The text to write for these records: the records, or with [`Lapse::Append`] those before them.
pub(crate) fn held_back(text: String, first: Lsn, records: usize) -> String {
    if !is_left_out(Lapse::Append) {
        return text;
    }
    let before = HELD_BACK.replace(Some((first + records as u64, text)));
    before.filter(|(next, _)| *next == first).map_or_else(String::new, |(_, text)| text)
}

/// How often each call was made on each tier.
pub type Counts = BTreeMap<(TierName, &'static str), u64>;

#[derive(Debug, Default)]
struct Seen {
    held: bool,
    changing: u64,
    counts: Counts,
    fired: u64,
    record: Option<fs::File>,
    /// Inodes whose sync was failed, and the files that were synced again all the same.
    failed_syncs: BTreeSet<(TierName, u64)>,
    synced_again: Vec<String>,
}

/// The plan, and what was seen. One for both tiers.
#[derive(Debug, Default)]
pub struct Faults {
    plan: Mutex<Plan>,
    seen: Mutex<Seen>,
}

/// Wraps both tiers of a daemon, fast and slow, as the environment says; also returns the boot that it is to assume.
pub fn install([fast, slow]: [Arc<dyn Dir>; 2], boot: String) -> Result<([Arc<dyn Dir>; 2], String)> {
    let Ok(plan) = std::env::var(VARIABLE) else { return Ok(([fast, slow], boot)) };
    let faults = Arc::new(Faults::default());
    faults.set(&plan)?;
    let boot = faults.plan.lock().boot.clone().unwrap_or(boot);
    Ok(([faults.wrap(TierName::Fast, fast), faults.wrap(TierName::Slow, slow)], boot))
}

impl Faults {
    /// Replaces the plan from now on. Rules count from here.
    pub fn set(&self, text: &str) -> Result<()> {
        let refused = || Error::refused(format!("{VARIABLE}={text} is not understood"), "see src/tiers/disk/faults.rs");
        let plan = Plan::parse(text).ok_or_else(refused)?;
        let mut seen = self.seen.lock();
        if let Some(path) = &plan.record {
            let file = fs::OpenOptions::new().create(true).append(true).open(path);
            seen.record = Some(file.at("open", path.shown())?);
        }
        seen.fired = 0;
        *self.plan.lock() = plan;
        Ok(())
    }

    /// Wraps a tier for one engine, which cannot know what an earlier engine failed to sync.
    pub fn wrap(self: &Arc<Self>, tier: TierName, dir: Arc<dyn Dir>) -> Arc<dyn Dir> {
        self.seen.lock().failed_syncs.retain(|(other, _)| *other != tier);
        Arc::new(FaultyDir { at: FaultSite { faults: Arc::clone(self), tier, path: String::new() }, inner: dir })
    }

    /// How many calls were made to end differently since the plan was set.
    pub fn fired(&self) -> u64 {
        self.seen.lock().fired
    }

    /// While held, calls pass and are not counted: a test is looking.
    pub fn hold(&self, held: bool) {
        self.seen.lock().held = held;
    }

    pub fn counts(&self) -> Counts {
        self.seen.lock().counts.clone()
    }

    /// Files that were synced after a sync of them had failed: the second one proves nothing.
    pub fn synced_again(&self) -> Vec<String> {
        self.seen.lock().synced_again.clone()
    }

    /// Counts a call and says how it ends; does not return if the process stops before it.
    fn enter(&self, at: &FaultSite, call: &'static str, path: &str) -> Ticket {
        let mut seen = self.seen.lock();
        if seen.held {
            return Ticket { what: None, stop: None };
        }
        let mut plan = self.plan.lock();
        *seen.counts.entry((at.tier, call)).or_default() += 1;
        let changes = CHANGING.contains(&call);
        let mut stop = None;
        let mut number = String::from("-");
        if changes {
            seen.changing += 1;
            number = seen.changing.to_string();
            stop = plan.stop.filter(|(_, wanted)| *wanted == seen.changing).map(|(when, _)| when);
        }
        let what = plan.rules.iter_mut().filter_map(|rule| rule.take(at.tier, call, path)).next();
        seen.fired += u64::from(what.is_some());
        let end = what.map_or_else(String::new, |what| format!(" {what:?}"));
        seen.note(&format!("{number} {} {call} {path}{end}", at.tier));
        if stop == Some(Stop::Before) {
            std::process::abort();
        }
        Ticket { what, stop }
    }

    /// Keeps the lock, so that no other changing call begins while the process goes down.
    fn stop(&self) -> ! {
        let _seen = self.seen.lock();
        std::process::abort()
    }

    /// Inode numbers are reused, so a new file does not inherit a failed sync.
    fn created(&self, at: &FaultSite, file: &dyn File) {
        if let Ok(stat) = file.stat() {
            self.seen.lock().failed_syncs.remove(&(at.tier, stat.ino));
        }
    }

    fn file_synced(&self, at: &FaultSite, ino: Option<u64>, done: &io::Result<()>) {
        let Some(ino) = ino else { return };
        let mut seen = self.seen.lock();
        if seen.failed_syncs.contains(&(at.tier, ino)) {
            seen.synced_again.push(format!("{} {}", at.tier, at.path));
        }
        if done.is_err() {
            seen.failed_syncs.insert((at.tier, ino));
        }
    }
}

impl Seen {
    /// One write per line: noted lines survive the abort. A missing line shows in the numbers.
    fn note(&mut self, line: &str) {
        if let Some(file) = &mut self.record {
            file.write_all(format!("{line}\n").as_bytes()).unwrap_or_default();
        }
    }
}

/// How one call ends.
struct Ticket {
    what: Option<What>,
    stop: Option<Stop>,
}

/// Where a wrapped directory or file is, for rules and records.
#[derive(Clone, Debug)]
struct FaultSite {
    faults: Arc<Faults>,
    tier: TierName,
    path: String,
}

impl FaultSite {
    fn below(&self, name: &[u8]) -> FaultSite {
        FaultSite { path: self.path_of(name), ..self.clone() }
    }

    fn path_of(&self, name: &[u8]) -> String {
        match (self.path.is_empty(), name) {
            (_, b"." | b"") => self.path.clone(),
            (true, name) => escape(name),
            (false, name) => format!("{}/{}", self.path, escape(name)),
        }
    }

    fn call<T>(&self, call: &'static str, name: &[u8], act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let ticket = self.faults.enter(self, call, &self.path_of(name));
        let done = match ticket.what {
            Some(What::Fail(errno)) => Err(errno.into()),
            _ => act(),
        };
        self.leave(&ticket);
        done
    }

    /// A call without a result, which may be left out unnoticed.
    fn act(&self, call: &'static str, name: &[u8], act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let ticket = self.faults.enter(self, call, &self.path_of(name));
        let done = match ticket.what {
            Some(What::Fail(errno)) => Err(errno.into()),
            Some(What::Lie) => Ok(()),
            Some(What::Short) | None => act(),
        };
        self.leave(&ticket);
        done
    }

    fn leave(&self, ticket: &Ticket) {
        if ticket.stop.is_some() {
            self.faults.stop();
        }
    }
}

/// Splits an attribute change into one for each system call, in the seam's order.
fn apart(new: &NewAttr) -> impl Iterator<Item = NewAttr> {
    let owner = NewAttr { uid: new.uid, gid: new.gid, ..NewAttr::default() };
    let mode = NewAttr { perm: new.perm, ..NewAttr::default() };
    let times = NewAttr { atime: new.atime, mtime: new.mtime, ..NewAttr::default() };
    [owner, mode, times].into_iter().filter(|part| *part != NewAttr::default())
}

#[derive(Debug)]
struct FaultyDir {
    at: FaultSite,
    inner: Arc<dyn Dir>,
}

impl FaultyDir {
    fn file(&self, name: &[u8], inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(Faulty { at: self.at.below(name), inner })
    }
}

/// The inner directory, for the other directory of a call that takes two.
fn unwrapped(dir: &dyn Dir) -> &dyn Dir {
    dir.as_any().downcast_ref::<FaultyDir>().map_or(dir, |faulty| &*faulty.inner)
}

impl Dir for FaultyDir {
    fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        self.at.call("stat", name, || self.inner.stat(name))
    }

    fn stat_now(&self, name: &[u8]) -> io::Result<Stat> {
        self.at.call("stat", name, || self.inner.stat_now(name))
    }

    fn dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
        let inner = self.at.call("dir", name, || self.inner.dir(name))?;
        Ok(Arc::new(FaultyDir { at: self.at.below(name), inner }))
    }

    fn walk(&self, path: &[u8]) -> io::Result<Arc<dyn Dir>> {
        let at = path.split(|b| *b == b'/').fold(self.at.clone(), |at, name| at.below(name));
        let inner = at.call("dir", b".", || self.inner.walk(path))?;
        Ok(Arc::new(FaultyDir { at, inner }))
    }

    fn walk_within(&self, path: &[u8], devices: &BTreeSet<u64>) -> io::Result<Arc<dyn Dir>> {
        let at = path.split(|b| *b == b'/').fold(self.at.clone(), |at, name| at.below(name));
        let inner = at.call("dir", b".", || self.inner.walk_within(path, devices))?;
        Ok(Arc::new(FaultyDir { at, inner }))
    }

    fn expect_within(&self, name: &[u8], devices: &BTreeSet<u64>) -> io::Result<()> {
        self.at.call("stat", name, || self.inner.expect_within(name, devices))
    }

    fn open(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>> {
        self.at.call("open", name, || self.inner.open(name, access)).map(|file| self.file(name, file))
    }

    fn create(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>> {
        let file = self.at.call("create", name, || self.inner.create(name, perm))?;
        self.at.faults.created(&self.at, &*file);
        Ok(self.file(name, file))
    }

    fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()> {
        self.at.act("mkdir", name, || self.inner.mkdir(name, perm))
    }

    fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()> {
        self.at.act("mknod", name, || self.inner.mknod(name, kind, perm, rdev))
    }

    fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        self.at.act("symlink", name, || self.inner.symlink(name, target))
    }

    fn inode(&self, name: &[u8]) -> io::Result<Arc<dyn Inode>> {
        let inner = self.at.call("stat", name, || self.inner.inode(name))?;
        Ok(Arc::new(Faulty { at: self.at.below(name), inner }))
    }

    fn rename(&self, name: &[u8], to: &dyn Dir, to_name: &[u8], mode: RenameMode) -> io::Result<()> {
        self.at.act("rename", name, || self.inner.rename(name, unwrapped(to), to_name, mode))
    }

    fn unlink(&self, name: &[u8]) -> io::Result<()> {
        self.at.act("unlink", name, || self.inner.unlink(name))
    }

    fn rmdir(&self, name: &[u8]) -> io::Result<()> {
        self.at.act("rmdir", name, || self.inner.rmdir(name))
    }

    fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.at.call("list", b".", || self.inner.list())
    }

    fn sync(&self) -> io::Result<()> {
        self.at.act("sync_dir", b".", || self.inner.sync())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.at.act("sync_all", b".", || self.inner.sync_all())
    }

    fn space(&self) -> io::Result<Space> {
        self.at.call("space", b".", || self.inner.space())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    delegate! {
        to self.inner {
            fn names_max(&self) -> u64;
            fn is_overlay(&self) -> bool;
            fn order(&self) -> MetadataOrder;
            fn rotates(&self) -> bool;
            fn heeds_modes(&self) -> bool;
        }
    }
}

/// An inode, or an open file.
#[derive(Debug)]
struct Faulty<T: ?Sized> {
    at: FaultSite,
    inner: Arc<T>,
}

impl<T: Inode + ?Sized> Inode for Faulty<T> {
    fn stat(&self) -> io::Result<Stat> {
        self.at.call("stat", b".", || self.inner.stat())
    }

    fn set_attr(&self, new: &NewAttr) -> io::Result<()> {
        apart(new).try_for_each(|part| self.at.act("set_attr", b".", || self.inner.set_attr(&part)))
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.at.call("get_xattr", b".", || self.inner.get_xattr(key))
    }

    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.at.act("set_xattr", b".", || self.inner.set_xattr(key, value))
    }

    fn remove_xattr(&self, key: &[u8]) -> io::Result<()> {
        self.at.act("remove_xattr", b".", || self.inner.remove_xattr(key))
    }

    fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>> {
        self.at.call("list_xattr", b".", || self.inner.list_xattr())
    }

    fn readlink(&self) -> io::Result<Vec<u8>> {
        self.at.call("readlink", b".", || self.inner.readlink())
    }

    fn link(&self, to: &dyn Dir, to_name: &[u8]) -> io::Result<()> {
        self.at.act("link", b".", || self.inner.link(unwrapped(to), to_name))
    }
}

impl Faulty<dyn File> {
    /// A write of `buf`, all or half of it.
    fn write(&self, buf: &[u8], act: impl Fn(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let ticket = self.at.faults.enter(&self.at, "write", &self.at.path);
        let half = || act(buf.get(..buf.len() / 2).unwrap_or_default());
        let done = match (ticket.what, ticket.stop) {
            (Some(What::Fail(errno)), _) => Err(errno.into()),
            (Some(What::Lie), _) => Ok(()),
            (Some(What::Short), _) => half().and(Err(Errno::ENOSPC.into())),
            (None, Some(Stop::Half)) => half(),
            (None, _) => act(buf),
        };
        self.at.leave(&ticket);
        done
    }
}

impl File for Faulty<dyn File> {
    fn reopen(&self) -> io::Result<Arc<dyn File>> {
        let inner = self.at.call("reopen", b".", || self.inner.reopen())?;
        Ok(Arc::new(Faulty { at: self.at.clone(), inner }))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.at.call("read", b".", || self.inner.read_at(buf, offset))
    }

    fn read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.at.call("read", b".", || self.inner.read_cached(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(buf, |part| self.inner.write_at(part, offset))
    }

    fn write_uncached(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(buf, |part| self.inner.write_uncached(part, offset))
    }

    /// All or nothing: half of it is nothing.
    fn reflink(&self, from: BorrowedFd<'_>) -> io::Result<()> {
        self.write(&[0], |part| if part.is_empty() { Ok(()) } else { self.inner.reflink(from) })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.at.act("set_len", b".", || self.inner.set_len(len))
    }

    fn allocate(&self, what: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.at.act("allocate", b".", || self.inner.allocate(what, offset, len))
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        self.at.call("seek", b".", || self.inner.seek(what, offset))
    }

    fn sync(&self) -> io::Result<()> {
        let done = self.at.act("sync", b".", || self.inner.sync());
        self.at.faults.file_synced(&self.at, self.inner.stat().ok().map(|stat| stat.ino), &done);
        done
    }

    delegate! {
        to self.inner {
            fn descriptor(&self) -> Option<BorrowedFd<'_>>;
            fn place(&self) -> Option<u64>;
            fn write_behind(&self, range: Range<u64>);
            fn stay_in_place(&self);
            fn forget_cached(&self, range: Range<u64>);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        let plan = Plan::parse("stop=half:12 at=fast:sync@log:2:*:EIO at=any:any:1:3:short boot=other").unwrap();
        assert_eq!((plan.stop, plan.rules.len(), plan.boot.as_deref()), (Some((Stop::Half, 12)), 2, Some("other")));
        for bad in ["stop", "stop=now:1", "at=fast:sync:1:EIO", "at=fast:sink:1:1:EIO", "at=fast:sync:1:1:EWHAT", "x=1"]
        {
            assert!(Plan::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_rule_takes_its_calls_only_and_as_many_as_it_says() {
        let mut rule = rule("slow:write@tmp/:2:2:EIO").unwrap();
        let mut take = |tier, call: &str, path: &str| rule.take(tier, call, path).is_some();
        assert!(
            !take(TierName::Fast, "write", "tmp/a")
                && !take(TierName::Slow, "sync", "tmp/a")
                && !take(TierName::Slow, "write", "a")
        );
        let taken: Vec<bool> = (0..5).map(|_| take(TierName::Slow, "write", "tmp/a")).collect();
        assert_eq!(taken, [false, true, true, false, false]);
    }
}
