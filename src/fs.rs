//! The kernel's side: FUSE requests in, replies out.
//!
//! There is one short handler per operation, and all of them go through one place, `DlioFs::observe`: it calls the
//! engine, counts the call, logs a failure, and answers. `tiers` decides what an operation means; the caller mounts.
//!
//! No thread that serves the kernel waits for the slow tier. A call is first tried with the fast tier and memory alone;
//! if they do not suffice, it moves, with its reply, to a bounded pool of threads that may wait. A watchdog answers EIO
//! for it after `slow_wait`, or EINTR once its program is being killed.

mod caller;
mod control;
mod convert;
mod failures;
mod handles;
mod holdings;
mod io_paths;
mod job_report;
mod observer;
mod ops;
mod options;
mod published;
mod reload;
mod reply;
mod seen;
mod shown;
mod slow_pool;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

use crate::error::{Errno, Error, Result};
use crate::observing::behind_door;
use crate::path::Name;
use crate::stats::counters::{Call, Op, Tier};
use crate::stats::{By, Stats};
use crate::tiers::{Cx, MAPPING, Tiers};
#[doc(hidden)] // For what feeds it any bytes: `tests/fuzz_corpus.rs`, `fuzz/`.
pub use control::command::parse_command;
use control::node;
use handles::Open;
pub use job_report::JobReports;
pub use observer::Observer;
use ops::{Changes, Core};
pub use options::{FsOptions, OtherMounts};
use published::Published;
pub use published::silent_after;
pub use reload::LiveSettings;
use reply::{Answer, Synced};
use seen::{ObservedCall, OpAt, Subject, is_root_s_getattr};
use slow_pool::{Caller, GivenUp, Limits, PoolTotals, SlowPool};

/// How many calls wait for the slow tier at once. More would not make a disk faster.
const SLOW_THREADS: usize = 32;
/// The limit including the threads that replace hung ones.
const SLOW_THREADS_MOST: usize = 256;
/// How long the root's attributes are waited for.
const ROOT_WAIT: Duration = Duration::from_secs(1);
/// How long a look-up waits when the name is known to be free, or a directory's ACL when it is known, before the known
/// answer is given.
const KNOWN_WAIT: Duration = Duration::from_secs(10);
/// How failures of such calls are named once no caller waits any more.
const LOOK_UP: &str = "look-up";
/// How many calls of one user may queue for a thread.
const SLOW_QUEUE: usize = 1024;
/// For `.dlio`, whose calls wait only for a text to be rendered.
const CONTROL_THREADS: usize = 4;
const CONTROL_QUEUE: usize = 64;
/// For commands, each read of which waits for up to a second. They have their own threads so that they never block
/// access to the statistics.
const COMMAND_THREADS: usize = 16;

/// Background requests (read-ahead of mappings, asynchronous direct I/O) that the kernel keeps under way.
const MAX_BACKGROUND: u16 = 64;

/// What we ask of the kernel, each item on its own, and the cost if it is missing.
///
/// We do not offer file handles (`name_to_handle_at(2)`, on which NFS servers rely). A handle must find its file for as
/// long as the file exists, but the engine knows a file of the slow tier by its name, and by a number only while the
/// kernel refers to it or it has an object. To find any file by a forgotten number, it would have to remember all of
/// them.
const CAPABILITIES: [(InitFlags, &str); 10] = [
    (InitFlags::FUSE_PARALLEL_DIROPS, "lookups and listings of one directory run one after the other"),
    (InitFlags::FUSE_DO_READDIRPLUS, "listings with attributes need a lookup per file"),
    (InitFlags::FUSE_READDIRPLUS_AUTO, "every listing fetches attributes"),
    (InitFlags::FUSE_ATOMIC_O_TRUNC, "O_TRUNC takes a second request"),
    (InitFlags::FUSE_ASYNC_DIO, "asynchronous direct I/O runs one request after the other"),
    (InitFlags::FUSE_CACHE_SYMLINKS, "symbolic links are read each time"),
    (InitFlags::FUSE_POSIX_ACL, "POSIX ACLs are not honoured"),
    (InitFlags::FUSE_DONT_MASK, "default ACLs do not replace the umask"),
    (InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, "shared mappings fail with ENODEV (Linux 6.6 or later has them)"),
    (InitFlags::FUSE_NO_EXPORT_SUPPORT, "file handles may become ESTALE (Linux 6.9 or later gives none)"),
];

/// The file system as fuser runs it.
///
/// It expects to be mounted with `MountOption::DefaultPermissions` (the kernel checks permissions: no handler does),
/// `SessionACL::All` if other users are to use it, `MountOption::Dev` and `MountOption::Suid` only where the slow tier
/// has them, several event-loop threads (`n_threads`, `clone_fd`), and never with `AutoUnmount`. Handlers must not be
/// called from a thread that uses this mount.
#[derive(Debug)]
pub struct DlioFs {
    core: Arc<Core>,
    slow: Arc<SlowPool>,
    control: SlowPool,
    commands: SlowPool,
}

/// The public text of `.dlio/metrics`. It does not keep the file system alive: open files end with the session.
#[derive(Clone, Debug)]
pub struct Metrics(Weak<Core>);

impl Metrics {
    /// The current text; `None` once the session has ended. Waits for short-held locks and for the file system of the
    /// fast tier, never for the slow tier.
    pub fn text(&self) -> Option<String> {
        let fs = self.0.upgrade()?;
        behind_door("the metrics", || fs.control.metrics_for_all())
    }

    /// Why writes are not accepted normally, for probes; `None` once the session has ended. Waits for the engine's
    /// lock, which every call takes, and for neither tier.
    pub fn refuses_writes(&self) -> Option<Option<String>> {
        let core = self.0.upgrade()?;
        let failing = || core.failures.lately().and_then(|failing| failing.of_writes());
        Some(core.tiers.refuses_writes().map(str::to_owned).or_else(failing))
    }
}

impl DlioFs {
    /// Starts the threads that may wait. Errors: a thread could not be started.
    pub fn new(tiers: Arc<Tiers>, stats: Arc<Stats>, live: Arc<LiveSettings>, options: FsOptions) -> Result<Self> {
        let wait = Some(options.slow_wait);
        let owner = options.owner_uid;
        let wait = Limits { threads: SLOW_THREADS, threads_most: SLOW_THREADS_MOST, queue: SLOW_QUEUE, wait, owner };
        let control = |threads| Limits { threads, threads_most: threads, queue: CONTROL_QUEUE, wait: None, owner };
        let pool = |name, limits, totals| SlowPool::new(name, limits, totals).map_err(|e| Error::no_thread(name, &e));
        let slow = Arc::new(pool("slow", wait, PoolTotals::of_slow(tiers.recorder()))?);
        let commands = pool("command", control(COMMAND_THREADS), PoolTotals::default())?;
        let control = pool("control", control(CONTROL_THREADS), PoolTotals::default())?;
        let published = Published::new(Arc::clone(&tiers), options.slow_wait);
        let published = published.map_err(|e| Error::no_thread("published", &e))?;
        let core = Core::new(tiers, stats, Arc::clone(&slow), live, published, &options);
        Ok(DlioFs { core: Arc::new(core), slow, control, commands })
    }

    /// For the code that writes recordings.
    pub fn observer(&self) -> Observer {
        self.core.observer()
    }

    /// For the code that serves metrics elsewhere.
    pub fn metrics(&self) -> Metrics {
        Metrics(Arc::downgrade(&self.core))
    }

    /// The one place that every call passes. Tries `run` with the fast tier and memory; calls that need the slow tier,
    /// and all calls in `.dlio`, continue on another thread with a copy of `payload` (a name, bytes to write: borrowed
    /// from the receive buffer).
    fn observe<R, B, F>(&self, req: &Request, what: impl Into<OpAt>, on: Subject, payload: &B, reply: R, run: F)
    where
        R: Answer,
        B: ToOwned + ?Sized,
        B::Owned: Send + 'static,
        F: Fn(&Core, &Cx, &B) -> Result<R::Value> + Send + 'static,
    {
        self.observe_known(req, what, on, payload, reply, run, |_, _| None);
    }

    /// `DlioFs::observe` for calls that the kernel makes on the way to a file. `known` gives the answer if the slow
    /// tier does not answer within [`KNOWN_WAIT`]; from then on the slow tier counts as silent until it does answer.
    #[allow(clippy::too_many_arguments)]
    fn observe_known<R, B, F>(
        &self,
        req: &Request,
        what: impl Into<OpAt>,
        on: Subject,
        payload: &B,
        reply: R,
        run: F,
        known: impl Fn(&Core, &B) -> Option<Result<R::Value>>,
    ) where
        R: Answer,
        B: ToOwned + ?Sized,
        B::Owned: Send + 'static,
        F: Fn(&Core, &Cx, &B) -> Result<R::Value> + Send + 'static,
    {
        let seen = ObservedCall { what: what.into(), on, since: Instant::now(), tier: Tier::Fast, thread: req.pid() };
        if !seen.on.is_virtual() {
            let cx = Cx::fast_only(req.uid(), req.gid());
            match run(&self.core, &cx, payload) {
                Err(Error::NeedSlow) if is_root_s_getattr(&seen) && self.slow.hangs() => {
                    let known = R::known(&self.core.tiers, &seen).ok_or(Error::SlowTimeout);
                    return finish(&self.core, &seen, (reply, known), cx.logged());
                }
                Err(Error::NeedSlow) => {}
                result => {
                    let tier = if cx.has_used_slow() { Tier::Slow } else { Tier::Fast };
                    return finish(&self.core, &ObservedCall { tier, ..seen }, (reply, result), cx.logged());
                }
            }
        }
        let known = known(&self.core, payload);
        self.continue_elsewhere(
            req,
            (ObservedCall { tier: Tier::Slow, ..seen }, known),
            payload.to_owned(),
            reply,
            run,
        );
    }

    fn continue_elsewhere<R, B, O, F>(
        &self,
        req: &Request,
        (seen, known): (ObservedCall, Option<Result<R::Value>>),
        payload: O,
        reply: R,
        run: F,
    ) where
        R: Answer,
        B: ?Sized,
        O: std::borrow::Borrow<B> + Send + 'static,
        F: Fn(&Core, &Cx, &B) -> Result<R::Value> + Send + 'static,
    {
        let (uid, gid, thread) = (req.uid(), req.gid(), seen.thread);
        let logged = Arc::new(AtomicU64::new(0));
        let end = {
            let (core, logged) = (Arc::clone(&self.core), Arc::clone(&logged));
            move |seen: &ObservedCall, reply: R, result| {
                finish(&core, seen, (reply, result), logged.load(Ordering::Acquire));
            }
        };
        let core = Arc::clone(&self.core);
        let is_known = known.is_some();
        let known = Mutex::new(known);
        let run = move |gave_up: Arc<AtomicBool>| {
            let cx = Cx::may_wait(uid, gid, Arc::clone(&gave_up));
            let done = run(&core, &cx, payload.borrow());
            logged.store(cx.logged(), Ordering::Release);
            if is_known && gave_up.load(Ordering::SeqCst) {
                core.tiers.report(LOOK_UP, None);
            }
            done
        };
        let done = {
            let (seen, end) = (seen.clone(), end.clone());
            move |reply, result| end(&seen, reply, result)
        };
        let expired = {
            let (core, seen, end) = (Arc::clone(&self.core), seen.clone(), end.clone());
            move |reply, why| {
                let result = match (why, known.lock().take()) {
                    (GivenUp::TooLong, Some(known)) => {
                        core.tiers.report_silence(LOOK_UP, KNOWN_WAIT);
                        known
                    }
                    (GivenUp::TooLong, None) => R::known(&core.tiers, &seen).ok_or(Error::SlowTimeout),
                    (GivenUp::Killed, _) => Err(Errno::EINTR.into()),
                };
                end(&seen, reply, result)
            }
        };
        let caller = {
            let (core, seen) = (Arc::clone(&self.core), seen.clone());
            Caller {
                uid,
                wait: is_root_s_getattr(&seen).then_some(ROOT_WAIT).or(is_known.then_some(KNOWN_WAIT)),
                is_killed: Box::new(move || caller::is_killed(thread)),
                about: Box::new(move || about(&core, &seen)),
            }
        };
        let pool = match () {
            () if seen.on.is_command() => &self.commands,
            () if seen.on.is_virtual() => &self.control,
            () => &*self.slow,
        };
        if let Err(reply) = pool.submit(caller, reply, run, done, expired) {
            end(&seen, reply, Err(Error::SlowTimeout));
        }
    }

    /// `DlioFs::observe` for a call on an open file. EBADF if the kernel names an unknown handle.
    fn observe_open<R, B, F>(&self, req: &Request, what: impl Into<OpAt>, fh: FileHandle, payload: &B, reply: R, run: F)
    where
        R: Answer,
        B: ToOwned + ?Sized,
        B::Owned: Send + 'static,
        F: Fn(&Core, &Cx, &Open, &B) -> Result<R::Value> + Send + 'static,
    {
        match self.core.files.get(fh.0) {
            None => reply.refuse(Errno::EBADF),
            Some(open) => {
                let on = Subject::Open(Arc::clone(&open));
                self.observe(req, what, on, payload, reply, move |core, cx, payload| run(core, cx, &open, payload));
            }
        }
    }

    /// Refuses calls that the kernel handles itself, or that have no meaning here.
    fn refuse<R: Answer>(&self, req: &Request, ino: INodeNo, reply: R, errno: Errno) {
        self.observe(req, Op::Refused, ino.into(), &(), reply, move |_, _, ()| Err(errno.into()));
    }
}

/// Describes a call for messages.
fn about(core: &Core, seen: &ObservedCall) -> String {
    let path = seen.on.ino().and_then(|ino| core.path_of(ino)).unwrap_or_default();
    let who = caller::shown(seen.thread).unwrap_or_else(|| "a process that is invisible from here".to_owned());
    format!("{} of {path} by {who}", seen.what.op.name())
}

/// The engine has done its part: concludes the call now, or once the slow tier has the data that the call waits for, and
/// once the commit wait of a fleet is over. `logged`: of the call's context.
fn finish<R: Answer>(core: &Arc<Core>, seen: &ObservedCall, (reply, result): (R, Result<R::Value>), logged: u64) {
    let lsn = result.as_ref().ok().and_then(R::awaits);
    let wait = if seen.on.is_virtual() { Duration::ZERO } else { core.tiers.commit_wait(logged, is_sync(seen)) };
    if lsn.is_none() && wait.is_zero() {
        return conclude(core, seen, reply, result);
    }
    let (published, core) = (Arc::clone(&core.published), Arc::clone(core));
    let tier = if lsn.is_some() { Tier::Slow } else { seen.tier };
    let seen = ObservedCall { tier, ..seen.clone() };
    published.wait_for(lsn, wait, move |waited| {
        let is_in_order =
            || seen.on.ino().filter(|_| lsn.is_some()).map_or(Ok(()), |ino| core.tiers.is_out_of_the_order(ino, lsn));
        let arrived = waited.and_then(|()| is_in_order());
        conclude(&core, &seen, reply, arrived.and(result));
    });
}

/// Whether the answer says that earlier changes are durable; the background may just have logged them.
fn is_sync(seen: &ObservedCall) -> bool {
    match (seen.what.op, &seen.on) {
        (Op::Flush | Op::Fsync | Op::Fdatasync | Op::Fsyncdir, _) => true,
        (Op::Write | Op::Fallocate | Op::CopyFileRange, Subject::Open(open)) => {
            open.user_file().is_some_and(|file| file.sync)
        }
        _ => false,
    }
}

/// Counts, logs, answers; in this order, so that a caller that has the answer finds its call counted.
fn conclude<R: Answer>(core: &Core, seen: &ObservedCall, reply: R, result: Result<R::Value>) {
    let took = seen.since.elapsed();
    // Reads in `.dlio` report how the file system is used; they do not count as use themselves.
    if !seen.on.is_virtual() {
        let call = Call {
            op: seen.what.op,
            began: seen.since.saturating_duration_since(core.stats.since()),
            took,
            offset: seen.what.offset,
            bytes: result.as_ref().map_or(0, R::bytes),
            // Calls that are left to the kernel have not failed: Python asks for each file it opens whether it is a
            // terminal.
            errno: result.as_ref().err().map(Error::errno).filter(|_| seen.what.op != Op::Refused),
            tier: seen.tier,
        };
        match (result.as_ref().ok().and_then(R::opened), &seen.on) {
            (Some(handle), _) => core.stats.record_through(&call, handle, seen.thread),
            (None, Subject::Open(open)) => {
                if let Some(handle) = open.user_file() {
                    core.stats.record_through(&call, &handle.seen, seen.thread);
                }
            }
            (None, Subject::Inode(ino)) => {
                let by = By { thread: seen.thread, process: core.process_lately(seen.thread) };
                core.stats.record(&call, &core.stats.file(*ino, || core.path_of(*ino)), by);
            }
        }
    }
    match result {
        Ok(value) => reply.answer(value),
        Err(error) => {
            core.tiers.suspect(&error);
            core.failures.log(seen.what.op, seen.on.ino(), &error, |ino| core.path_of(ino));
            reply.refuse(error.errno());
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "the signatures are fuser's")]
impl Filesystem for DlioFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for (capability, without) in CAPABILITIES {
            if config.add_capabilities(capability).is_err() {
                tracing::warn!(?capability, "the kernel does not offer {capability:?}: {without}");
            }
        }
        self.core.io.negotiate(config);
        // Only 0 is refused.
        config.set_max_background(MAX_BACKGROUND).map(drop).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let run = move |core: &Core, cx: &Cx, name: &[u8]| core.lookup(cx, parent.0, name);
        let known = move |core: &Core, name: &[u8]| {
            let free = |name| !node::owns(parent.0) && core.tiers.lists_not(parent.0, &name);
            Name::new(name).is_ok_and(free).then(|| Err(Errno::ENOENT.into()))
        };
        self.observe_known(req, Op::Lookup, parent.into(), name.as_bytes(), reply, run, known);
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        if !node::owns(ino.0) {
            self.core.tiers.forget(ino.0, count);
            self.core.stats.record_untimed(Op::Forget, 1);
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.observe(req, Op::Getattr, ino.into(), &(), reply, move |core, cx, ()| core.getattr(cx, ino.0));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes { mode, uid, gid, size, atime, mtime };
        let by = req.pid();
        let run = move |core: &Core, cx: &Cx, (): &()| match changes.size {
            Some(_) => core.setattr(core.by(cx, by), ino.0, &changes),
            None => core.setattr(cx, ino.0, &changes),
        };
        self.observe(req, Op::Setattr, ino.into(), &(), reply, run);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let by = req.pid();
        self.observe(req, Op::Readlink, ino.into(), &(), reply, move |core, cx, ()| core.readlink(cx, by, ino.0));
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let run = move |core: &Core, cx: &Cx, name: &[u8]| core.mknod(cx, parent.0, name, mode, umask, rdev);
        self.observe(req, Op::Mknod, parent.into(), name.as_bytes(), reply, run);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let run = move |core: &Core, cx: &Cx, name: &[u8]| core.mkdir(cx, parent.0, name, mode, umask);
        self.observe(req, Op::Mkdir, parent.into(), name.as_bytes(), reply, run);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let run = move |core: &Core, cx: &Cx, name: &[u8]| core.unlink(cx, parent.0, name);
        self.observe(req, Op::Unlink, parent.into(), name.as_bytes(), reply, run);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let run = move |core: &Core, cx: &Cx, name: &[u8]| core.rmdir(cx, parent.0, name);
        self.observe(req, Op::Rmdir, parent.into(), name.as_bytes(), reply, run);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().to_owned();
        let run = move |core: &Core, cx: &Cx, name: &[u8]| core.symlink(cx, parent.0, name, target.as_bytes());
        self.observe(req, Op::Symlink, parent.into(), name.as_bytes(), reply, run);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let to_name = to_name.to_owned();
        let run = move |core: &Core, cx: &Cx, name: &[u8]| {
            core.rename(cx, (parent.0, name), (to.0, to_name.as_bytes()), flags)
        };
        self.observe(req, Op::Rename, parent.into(), name.as_bytes(), reply, run);
    }

    fn link(&self, req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let run = move |core: &Core, cx: &Cx, name: &[u8]| core.link(cx, ino.0, parent.0, name);
        self.observe(req, Op::Link, ino.into(), name.as_bytes(), reply, run);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let by = req.pid();
        let run = move |core: &Core, cx: &Cx, name: &[u8]| core.create(cx, by, (parent.0, name), mode, umask, flags);
        self.observe(req, Op::Create, parent.into(), name.as_bytes(), reply, run);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let by = req.pid();
        self.observe(req, Op::Open, ino.into(), &(), reply, move |core, cx, ()| core.open(cx, by, ino.0, flags.0));
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let run = move |core: &Core, cx: &Cx, open: &Open, (): &()| core.read(cx, open, offset, size);
        self.observe_open(req, OpAt { op: Op::Read, offset }, fh, &(), reply, run);
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // Flagged: the kernel writes back stores through a mapping, by an unknown process.
        let by = (!write_flags.contains(WriteFlags::FUSE_WRITE_CACHE)).then(|| req.pid());
        let run = move |core: &Core, cx: &Cx, open: &Open, data: &[u8]| {
            let cx = by.map_or_else(|| cx.by(MAPPING), |by| core.by(cx, by));
            core.write(cx, open, data, offset, kill)
        };
        self.observe_open(req, OpAt { op: Op::Write, offset }, fh, data, reply, run);
    }

    fn flush(&self, req: &Request, _ino: INodeNo, fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        let by = req.pid();
        let run = move |core: &Core, cx: &Cx, open: &Open, (): &()| core.flush(cx, by, open);
        self.observe_open(req, Op::Flush, fh, &(), reply, run);
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let run = move |core: &Core, _: &Cx, (): &()| {
            core.release(fh.0);
            Ok(())
        };
        self.observe(req, Op::Release, ino.into(), &(), reply, run);
    }

    fn fsync(&self, req: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let (op, by) = (if datasync { Op::Fdatasync } else { Op::Fsync }, req.pid());
        let run = move |core: &Core, cx: &Cx, open: &Open, (): &()| core.fsync(core.by(cx, by), open);
        self.observe_open(req, op, fh, &(), Synced(reply), run);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let run = move |core: &Core, _: &Cx, (): &()| Ok(core.opendir(ino.0));
        self.observe(req, Op::Opendir, ino.into(), &(), reply, run);
    }

    fn readdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let run = move |core: &Core, cx: &Cx, (): &()| core.readdir(cx, fh.0, offset);
        self.observe(req, Op::Readdir, ino.into(), &(), reply, run);
    }

    fn readdirplus(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        let run = move |core: &Core, cx: &Cx, (): &()| core.readdirplus(cx, fh.0, offset);
        self.observe(req, Op::Readdirplus, ino.into(), &(), reply, run);
    }

    fn releasedir(&self, req: &Request, ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let run = move |core: &Core, _: &Cx, (): &()| {
            core.releasedir(fh.0);
            Ok(())
        };
        self.observe(req, Op::Releasedir, ino.into(), &(), reply, run);
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.observe(req, Op::Fsyncdir, ino.into(), &(), Synced(reply), move |core, cx, ()| core.fsyncdir(cx, ino.0));
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.observe(req, Op::Statfs, ino.into(), &(), reply, |core, cx, ()| core.statfs(cx));
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        key: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let key = key.to_owned();
        let run = move |core: &Core, cx: &Cx, value: &[u8]| core.setxattr(cx, ino.0, key.as_bytes(), value, flags);
        self.observe(req, Op::Setxattr, ino.into(), value, reply, run);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, key: &OsStr, size: u32, reply: ReplyXattr) {
        let run = move |core: &Core, cx: &Cx, key: &[u8]| core.getxattr(cx, ino.0, key, size);
        let known = move |core: &Core, key: &[u8]| core.acl_as_known(ino.0, key, size);
        self.observe_known(req, Op::Getxattr, ino.into(), key.as_bytes(), reply, run, known);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.observe(req, Op::Listxattr, ino.into(), &(), reply, move |core, cx, ()| core.listxattr(cx, ino.0, size));
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, key: &OsStr, reply: ReplyEmpty) {
        let run = move |core: &Core, cx: &Cx, key: &[u8]| core.removexattr(cx, ino.0, key);
        self.observe(req, Op::Removexattr, ino.into(), key.as_bytes(), reply, run);
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let by = req.pid();
        let run =
            move |core: &Core, cx: &Cx, open: &Open, (): &()| core.fallocate(core.by(cx, by), open, offset, len, mode);
        self.observe_open(req, Op::Fallocate, fh, &(), reply, run);
    }

    fn lseek(&self, req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let run = move |core: &Core, cx: &Cx, open: &Open, (): &()| core.lseek(cx, open, offset, whence);
        self.observe_open(req, Op::Lseek, fh, &(), reply, run);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let by = req.pid();
        let run = move |core: &Core, cx: &Cx, from: &Open, (): &()| {
            core.copy_range(core.by(cx, by), (from, offset_in), (fh_out.0, offset_out), len)
        };
        self.observe_open(req, Op::CopyFileRange, fh_in, &(), reply, run);
    }

    // Left to the kernel: it remembers ENOSYS, and does the work itself from then on.

    fn access(&self, req: &Request, ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        self.refuse(req, ino, reply, Errno::ENOSYS);
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        _start: u64,
        _end: u64,
        _typ: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        self.refuse(req, ino, reply, Errno::ENOSYS);
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        _start: u64,
        _end: u64,
        _typ: i32,
        _pid: u32,
        _sleep: bool,
        reply: ReplyEmpty,
    ) {
        self.refuse(req, ino, reply, Errno::ENOSYS);
    }

    fn bmap(&self, req: &Request, ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        self.refuse(req, ino, reply, Errno::ENOSYS);
    }

    fn poll(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _handle: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        self.refuse(req, ino, reply, Errno::ENOSYS);
    }

    // Not a device: no ioctl is supported.

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.refuse(req, ino, reply, Errno::ENOTTY);
    }
}
