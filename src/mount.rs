//! The life of one mount, from the checked request to what is left behind.
//!
//! The daemon takes these steps, in this order; a start that fails leaves no mount, or the dead one it found:
//!
//!  1. Open the roots of the tiers: our mount may be about to hide the slow one, or a dead mount may hide it already.
//!     Refuse tiers that other users may change (P17).
//!  2. Call `umask(0)`: each request brings the umask of its application.
//!  3. Raise the soft limits for descriptors and file size to the hard ones, or beyond where allowed (`limits.rs`; that of
//!     address space before the first thread). Catch SIGXFSZ.
//!  4. Lock the fast tier (P7) before reading anything on it, and bind the port of the metrics.
//!  5. From here on use only descriptors of the tiers. Read the boot id: what was not sealed in another boot is
//!     discarded (P4).
//!  6. Open the engine. This call is always a recovery.
//!  7. Catch signals: TERM, INT and QUIT ask to leave; HUP reopens the log file and reads the configuration again;
//!     others that would end a program are ignored. So from step 8 on only KILL can leave a mount behind.
//!  8. Make the mount, replacing a dead one of ours. It is read-only if the slow tier cannot be written or the start
//!     found no room on the fast tier.
//!  9. Start to answer the kernel, start the background (not if there is no room), and notify umount(8) and the process
//!     that started the daemon.
//! 10. Serve until a signal asks to leave or the mount is unmounted. After a signal, make everything durable on the
//!     fast tier (D1), unmount lazily, and give open files a moment.
//! 11. Stop the background, make everything durable once more, and list what only the fast tier has.
//!
//! A panic aborts the process and leaves a mount that answers ENOTCONN, never a bare directory (P3, P10). The daemon
//! itself never looks at its own mount: only it could answer.

mod answer;
mod attach;
mod background;
mod daemon;
mod left;
mod limits;
mod lock;
mod logging;
mod metrics;
mod nested;
mod notify;
mod owner;
mod places;
mod presence;
mod process;
mod recorder;
mod spawn;
mod table;
mod trust;
mod underlay;
mod utab;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use fuser::{INodeNo, Notifier, Session};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

pub use answer::within;
pub use attach::{Detach, MountFlags, detach, flag, flag_names, force, helper_version, open_device, others_allowed};
pub use daemon::{Daemon, Pulse, pulse};
pub use left::Left;
pub use limits::check_address_space;
pub use lock::{FastLock, Owner, PRIVATE_DIR, last_left, mountpoint_of};
pub use logging::{FILTER_VAR, KEY as LOG_FILE_KEY, LogTo, has_syslog, start as start_logging};
pub use nested::nested_trees;
pub use notify::{still_leaving, stopping};
pub use places::Places;
pub use presence::note as note_of_other_mounts;
pub use process::{open_files, processes};
pub use recorder::latest_recording;
pub use spawn::{Started, describe, start as start_in_background, this_program};
pub use table::{MountEntry, also_at, holder_of, mounted_at, mounts, mounts_of};
pub use trust::{TrustedTier, check as check_trust, enter};

pub use crate::tiers::disk::held::HeldDir;

use limits::{descriptor_limit, raise_descriptor_limit, raise_file_size_limit};
use recorder::{Directory, Recorder};

use crate::config::{Config, OnTerm, Rules, Settings};
use crate::error::{Context, Error, Result};
use crate::fs::{DlioFs, FsOptions, JobReports, LiveSettings, Observer, OtherMounts};
use crate::json;
use crate::observing::behind_door;
use crate::path::Show as _;
use crate::stats::Stats;
use crate::stats::recording::{Meta, TierPlace};
use crate::stats::status::Safety;
use crate::tiers::disk::os::{OsClock, OsDir};
use crate::tiers::disk::{Clock, Dir};
use crate::tiers::{self, Ino, Tiers};

/// Threads that answer the kernel. More than the slow-tier waits that may block some of them.
const FUSE_THREADS: usize = 16;
/// How long open files may keep a mount alive after it was told to leave.
const LEAVE_WAIT: Duration = Duration::from_secs(5);
/// How long a member may take to announce to its fleet that it leaves.
const FLEET_WAIT: Duration = Duration::from_secs(10);
/// How long a job's report may take.
const REPORT_WAIT: Duration = Duration::from_secs(30);
/// How long background steps may take to finish; any of them may be cut off.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// How many paths are listed when leaving.
const LEFT_MAX: usize = 1_000;

/// A mount to be made: checked places and settings.
#[derive(Debug)]
pub struct Request {
    pub places: Places,
    pub settings: Settings,
    /// Read-only and the like; always read-only over a slow tier that cannot be written.
    pub flags: MountFlags,
    /// Started by [`start_in_background`], which waits until the mount answers.
    pub in_background: bool,
}

/// For probes: why a mount is read-only although the user did not ask for that.
const READ_ONLY_SLOW: &str = "the mount is read-only: its slow tier could not be written when it was mounted; make it writable and mount again, or mount with --read-only if that is intended";
const READ_ONLY_FULL: &str =
    "the mount is read-only: its fast tier was full when it was mounted; make room there and mount again";

/// What ends step 10.
enum ServingEnd {
    Signal(&'static str),
    Session(io::Result<()>),
}

/// The tiers of a mount, opened but not inspected.
#[derive(Debug)]
pub struct TierRoots {
    fast: HeldDir,
    slow: HeldDir,
    /// There is a dead mount to replace.
    replace: bool,
    writable: bool,
}

impl TierRoots {
    /// Refuses tiers that other users may change (P17).
    pub fn check(&self) -> Result<()> {
        trust::check(TrustedTier::Fast, &self.fast)?;
        trust::check(self.slow_tier(), &self.slow)
    }

    fn slow_tier(&self) -> TrustedTier {
        TrustedTier::Slow { writable: self.writable }
    }
}

/// Step 1: opens the tiers.
pub fn open_roots(request: &Request) -> Result<TierRoots> {
    let (slow, replace, writable) = slow_tree(request)?;
    let fast = &request.places.fast;
    let fast = HeldDir::open(fast).map_err(|e| places::unusable("--fast", fast, &e))?;
    Ok(TierRoots { fast, slow, replace, writable })
}

/// Mounts, serves until told to leave, and returns what was left behind. The caller has checked the tiers.
pub fn serve(request: Request, opened: TierRoots) -> Result<Left> {
    let Places { mountpoint, .. } = &request.places;
    let TierRoots { fast, slow: tree, replace, writable } = &opened;
    let (replace, writable) = (*replace, *writable);
    if request.in_background {
        spawn::become_session_leader()?;
    }
    // The directory it was started in must stay unmountable. All paths are absolute by now.
    std::env::set_current_dir("/").at("change to", "/")?;
    umask(Mode::empty()); // 2
    raise_descriptor_limit(); // 3
    let runtime = background::runtime()?;
    raise_file_size_limit(&runtime)?;
    let config = request.settings.config();
    let trace = Directory::of(&config, mountpoint)?;
    let whose = owner::of(config.owner.as_deref())?;
    let reports = config.job_report.as_ref();
    let reports = reports.map(|dir| JobReports::new(dir, config.job.as_deref(), mountpoint, whose)).transpose()?;
    let owner = Owner::ourselves(mountpoint, Some(tree.path()), writable);
    let mut lock = FastLock::acquire(fast, &owner)?; // 4
    let port = request.settings.config().metrics_addr.as_ref().map(metrics::listen).transpose()?;
    let tiers = Arc::new(open_tiers(&request, [fast, tree], writable, whose.0)?); // 5, 6
    // In a shared root another user may have made `.dlio-fs` since the check.
    trust::check_top(opened.slow_tier(), tree)?;
    if let Some(dir) = config.partner_dir.clone() {
        tiers.set_partner(Box::new(move || open_partner(&dir)));
    }
    let has_room = tiers.lacks().is_none();
    let takes_changes = writable && has_room;
    lock.say(&Owner::ourselves(mountpoint, Some(tree.path()), takes_changes))?;
    let live = Arc::new(live_settings(&request.settings, &tiers, whose.0));
    let (ended, end) = mpsc::sync_channel(4);
    catch_signals(&runtime, &ended)?; // 7
    renew_on_hangup(&runtime, &ended, &live, request.in_background)?;
    let mut flags = request.flags;
    flags.set(MountFlags::MOUNT_ATTR_RDONLY, flags.contains(MountFlags::MOUNT_ATTR_RDONLY) || !takes_changes);
    let attached = attach::attach(mountpoint, attach::MountSpec { source: tree.path(), flags }, replace)?; // 8
    // If there was a dead mount, a failure leaves a dead mount again rather than a bare directory.
    let guard = DetachOnFailure((!replace).then_some(mountpoint));
    let stats = Arc::new(registry(&request.settings.config(), &tiers));
    let metrics_addr = port.as_ref().map(|port| port.addr);
    let other_mounts = Arc::<OtherMounts>::default();
    let fs = file_system(&request, (&tiers, &stats), live, metrics_addr, (whose, reports.clone()), &other_mounts)?;
    let (figures, observer) = (fs.metrics(), fs.observer());
    let reports = reports.filter(|_| stats.is_on()).map(|reports| (reports, observer.clone()));
    let session = session(fs, attached, mountpoint)?;
    tiers.on_unseen_attrs(forget_attrs(session.notifier()));
    // Before the mount answers: a process that waits for it may unmount it at once.
    let entry = table_entry(mountpoint);
    lock.serving();
    answer(session, ended)?; // 9
    if has_room {
        background::start(&runtime, &tiers, request.settings.config().slow_wait);
        for pattern in request.settings.config().patterns_to_stage()? {
            tiers.stage_fitting(pattern)?;
        }
    }
    if takes_changes {
        let root = File::open(tree.by_descriptor()).at("open", tree.path().shown())?;
        let fleet = request.settings.config().fleet()?.map(|fleet| fleet.name);
        presence::keep(&runtime, root, owner, fleet, other_mounts);
    }
    // With statistics off there is nothing to collect.
    let recorder = stats.is_on().then(|| Recorder::start(&stats, &tiers, observer, trace)).transpose()?;
    let is_meant = request.flags.contains(MountFlags::MOUNT_ATTR_RDONLY);
    let why = if writable { READ_ONLY_FULL } else { READ_ONLY_SLOW };
    let read_only = (!takes_changes && !is_meant).then_some(why);
    port.map_or(Ok(()), |port| metrics::serve(&runtime, port, figures, read_only))?;
    utab::register(tree.path(), mountpoint);
    tell_the_starter(&request)?;
    guard.disarm();
    info!(mountpoint = %mountpoint.shown(), read_only = flags.contains(MountFlags::MOUNT_ATTR_RDONLY), "mounted");
    request.places.notes.iter().for_each(|note| warn!("{note}"));
    let ended = wait_for_the_end(&end, &tiers, &request, entry.as_ref()); // 10
    utab::forget(tree.path(), mountpoint);
    let left = leave(runtime, &tiers, lock, recorder, reports)?; // 11, also where the session failed
    ended.map(|()| left)
}

/// The slow tier's root, whether there is a dead mount to replace, and whether the tree can be written.
fn slow_tree(request: &Request) -> Result<(HeldDir, bool, bool)> {
    let places = &request.places;
    let open = |hidden| underlay::open(&places.slow, hidden);
    let (tree, replace) = match open(places.slow_is_hidden()) {
        // Without the right to look beneath the dead mount that hides its own slow tier, the directory is bare until
        // the new mount is there, as always when such a user replaces a mount.
        Err(e) if places.slow_is_hidden() && e.raw_os_error() == Some(Errno::EPERM as i32) => {
            attach::take_away(&places.mountpoint)?;
            (open(false), false)
        }
        tree => (tree, places.replaces_dead),
    };
    let unusable = |e| places::unusable("--slow", &places.slow, &e);
    let tree = tree.map_err(unusable)?;
    let writable = match underlay::is_writable(&tree) {
        Err(_) if request.flags.contains(MountFlags::MOUNT_ATTR_RDONLY) => false,
        writable => writable.map_err(unusable)?,
    };
    Ok((tree, replace, writable))
}

fn open_tiers(request: &Request, [fast, slow]: [&HeldDir; 2], slow_is_writable: bool, owner: u32) -> Result<Tiers> {
    let noatime = request.flags.contains(MountFlags::MOUNT_ATTR_NOATIME);
    let open = |dir: &HeldDir| OsDir::open(&dir.by_descriptor()).at("open", dir.path().shown());
    let tier = |dir: OsDir| -> Arc<dyn Dir> { Arc::new(dir.unnoticed(noatime)) };
    let (fast, slow) = (tier(open(fast)?), tier(open(slow)?.with_births()));
    let boot = boot_id()?;
    #[cfg(debug_assertions)]
    let ([fast, slow], boot) = tiers::disk::faults::install([fast, slow], boot)?;
    let clock: Arc<dyn Clock> = Arc::new(OsClock);
    let tree = if slow_is_writable { tiers::SlowTree::Writable } else { tiers::SlowTree::ReadOnly };
    tiers::open(fast, slow, tree, engine_options(&request.settings.config(), owner)?, clock, &boot).map_err(|error| {
        match error {
            // The engine does not know the paths: it says "the fast tier" and "the slow tier".
            Error::Refused { what, remedy } => {
                let Places { fast, slow, .. } = &request.places;
                Error::refused(format!("{what} (--fast {}, --slow {})", fast.shown(), slow.shown()), remedy)
            }
            other => other,
        }
    })
}

/// A copy there is trusted once it takes the place of the fast tier.
fn open_partner(dir: &Path) -> Result<Arc<dyn Dir>> {
    let held = HeldDir::open(dir).at("open partner_dir", dir.shown())?;
    trust::check(TrustedTier::Fast, &held)?;
    Ok(Arc::new(OsDir::open(&held.by_descriptor()).at("open partner_dir", dir.shown())?))
}

/// In the background the daemon is at most a child of some service, not the service itself.
fn tell_the_starter(request: &Request) -> Result<()> {
    let Places { mountpoint, slow, .. } = &request.places;
    match request.in_background {
        true => spawn::announce()?,
        false => notify::ready(&format!("serving {} at {}", slow.shown(), mountpoint.shown())),
    }
    Ok(())
}

/// Takes a mount away when its start fails.
struct DetachOnFailure<'a>(Option<&'a Path>);

impl DetachOnFailure<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for DetachOnFailure<'_> {
    fn drop(&mut self) {
        let Some(mountpoint) = self.0 else { return };
        if let Err(errno) = detach(mountpoint, Detach::Now) {
            warn!(mountpoint = %mountpoint.shown(), %errno, "could not unmount after a failed start");
        }
    }
}

/// What a reload changes. `ballast` and the wait for the slow tier stay as they were at the start.
fn live_settings(settings: &Settings, tiers: &Arc<Tiers>, owner: u32) -> LiveSettings {
    let tiers = Arc::clone(tiers);
    LiveSettings::new(settings.clone(), move |config| {
        logging::set_filter(&config.log)?;
        tiers.set_options(engine_options(config, owner)?);
        Ok(())
    })
}

fn engine_options(config: &Config, owner: u32) -> Result<tiers::Options> {
    tiers::Options::new(config.clone(), (descriptor_limit() / 32).clamp(8, 512) as usize, owner)
}

/// The statistics of this mount.
fn registry(settings: &Config, tiers: &Tiers) -> Stats {
    match settings.profile {
        true => Stats::new(settings.profile_memory as usize, Arc::clone(tiers.recorder())),
        false => Stats::off(),
    }
}

fn file_system(
    request: &Request,
    (tiers, stats): (&Arc<Tiers>, &Arc<Stats>),
    live: Arc<LiveSettings>,
    metrics_addr: Option<SocketAddr>,
    ((owner_uid, owner_gid), job_reports): ((u32, u32), Option<JobReports>),
    other_mounts: &Arc<OtherMounts>,
) -> Result<DlioFs> {
    let settings = request.settings.config();
    let (rules, slow_wait) = (Rules::new(&settings)?, settings.slow_wait);
    let (descriptors, about) = (descriptor_limit(), about(&request.places));
    let options = FsOptions {
        rules,
        slow_wait,
        owner_uid,
        owner_gid,
        descriptors,
        job_reports,
        about,
        metrics_addr,
        other_mounts: Arc::clone(other_mounts),
    };
    DlioFs::new(Arc::clone(tiers), Arc::clone(stats), live, options)
}

/// A recording's description of the machine and the mount.
fn about(places: &Places) -> Meta {
    let kernel = nix::sys::utsname::uname().ok();
    let told = |text: &std::ffi::OsStr| json::lossy(text.as_ref());
    let mounts = mounts().unwrap_or_default();
    let tier = |path: &Path| TierPlace {
        path: json::lossy(path),
        kind: holder_of(path, &mounts).map(|mount| mount.fs_type.clone()).unwrap_or_default(),
        ..TierPlace::default()
    };
    Meta {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: kernel.as_ref().map(|kernel| told(kernel.nodename())).unwrap_or_default(),
        kernel: kernel
            .map(|kernel| format!("{} {}", told(kernel.sysname()), told(kernel.release())))
            .unwrap_or_default(),
        uid: geteuid().as_raw(),
        mountpoint: json::lossy(&places.mountpoint),
        fast: tier(&places.fast),
        slow: tier(&places.slow),
        ..Meta::default()
    }
}

fn session(fs: DlioFs, attached: attach::Attached, mountpoint: &Path) -> Result<Session<DlioFs>> {
    let mut config = fuser::Config::default();
    config.acl = attached.acl;
    config.n_threads = Some(FUSE_THREADS);
    // Each thread gets its own queue in the kernel.
    config.clone_fd = true;
    let session = Session::from_fd(fs, attached.device, attached.acl, config);
    session.at("start the FUSE session at", mountpoint.shown())
}

/// Makes the kernel forget the attributes of an inode, but no data: to drop data it would wait for readers and writers.
fn forget_attrs(kernel: Notifier) -> Box<dyn Fn(Ino) + Send + Sync> {
    const ATTRS_ONLY: i64 = -1;
    Box::new(move |ino| {
        if let Err(error) = kernel.inval_inode(INodeNo(ino), ATTRS_ONLY, 0) {
            tracing::warn!(ino, %error, "the kernel may use old attributes for a minute");
        }
    })
}

/// Answers the kernel on threads of its own until the mount is gone.
fn answer(session: Session<DlioFs>, ended: SyncSender<ServingEnd>) -> Result<()> {
    let run = move || {
        let end = ServingEnd::Session(without_abort(session.run()));
        // The daemon is leaving: the receiver is gone.
        drop(ended.send(end));
    };
    let started = std::thread::Builder::new().name("dlio-session".into()).spawn(run);
    started.map(drop).map_err(|e| Error::no_thread("dlio-session", &e))
}

/// The kernel reports the end of a connection to most threads as ENODEV, which is no error to the session. A thread
/// whose read is cut off half way may get ECONNABORTED, also after a plain unmount.
fn without_abort(ran: io::Result<()>) -> io::Result<()> {
    ran.or_else(|e| if e.raw_os_error() == Some(Errno::ECONNABORTED as i32) { Ok(()) } else { Err(e) })
}

fn catch_signals(runtime: &Runtime, ended: &SyncSender<ServingEnd>) -> Result<()> {
    let asked =
        [(SignalKind::terminate(), "SIGTERM"), (SignalKind::interrupt(), "SIGINT"), (SignalKind::quit(), "SIGQUIT")];
    let _inside = runtime.enter();
    // Each of these would end the daemon, which no sender wants. The handlers stay installed without a listener.
    for ignored in
        [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGVTALRM, Signal::SIGPROF, Signal::SIGIO]
    {
        drop(signal(SignalKind::from_raw(ignored as i32)).at("catch", ignored.as_str())?);
    }
    for (kind, name) in asked {
        let mut arrivals = signal(kind).at("catch", name)?;
        let ended = ended.clone();
        runtime.spawn(async move {
            // If the channel is full, there are other reasons to leave already.
            while arrivals.recv().await.is_some() {
                drop(ended.try_send(ServingEnd::Signal(name)));
            }
        });
    }
    Ok(())
}

/// SIGHUP reopens the log file and reads the configuration again, as with any daemon; but when the terminal of a daemon
/// in the foreground is closed, it asks to leave.
fn renew_on_hangup(
    runtime: &Runtime,
    ended: &SyncSender<ServingEnd>,
    live: &Arc<LiveSettings>,
    in_background: bool,
) -> Result<()> {
    let _inside = runtime.enter();
    let mut arrivals = signal(SignalKind::hangup()).at("catch", "SIGHUP")?;
    // A daemon in the background has no terminal that could hang up, but has its starter's for errors until it stands.
    let on_terminal = !in_background && (io::stdin().is_terminal() || io::stderr().is_terminal());
    let (ended, live) = (ended.clone(), Arc::clone(live));
    runtime.spawn(async move {
        while arrivals.recv().await.is_some() {
            if on_terminal {
                drop(ended.try_send(ServingEnd::Signal("SIGHUP")));
                continue;
            }
            let live = Arc::clone(&live);
            // The files may be on a file system that hangs: keep this off the threads that run timers.
            drop(tokio::task::spawn_blocking(move || renew(&live, in_background)).await);
        }
    });
    Ok(())
}

/// The log first, so that its new file has the lines about the rest. Each step logs its result.
fn renew(live: &LiveSettings, in_background: bool) {
    let opened = match logging::reopen() {
        Ok(opened) => opened,
        Err(error) => {
            warn!(%error, "the log file cannot be reopened; logging continues in the former file");
            false
        }
    };
    if opened {
        info!("log file reopened");
        if in_background && let Err(error) = logging::redirect_stderr() {
            warn!(%error, "a panic message goes to the former log file");
        }
    }
    // Without a configuration file the signal was about the log: no warning that there is nothing to read.
    if live.has_file() || !opened {
        drop(live.reload());
    }
}

/// The kernel's entry for a mount point. It is read without asking the mount.
fn table_entry(mountpoint: &Path) -> Option<MountEntry> {
    mounted_at(&mounts().ok()?, mountpoint).filter(|mount| mount.is_ours()).cloned()
}

/// `entry` is the mount's entry in the kernel's list.
fn wait_for_the_end(
    end: &Receiver<ServingEnd>,
    tiers: &Tiers,
    request: &Request,
    entry: Option<&MountEntry>,
) -> Result<()> {
    let mountpoint = request.places.mountpoint.as_path();
    let name = match end.recv() {
        Ok(ServingEnd::Signal(name)) => name,
        // An aborted connection ends the session in the same way, but the mount stays, and is dead.
        Ok(ServingEnd::Session(Ok(()))) if entry.is_some() && table_entry(mountpoint).as_ref() == entry => {
            warn!(
                mountpoint = %mountpoint.shown(),
                "the connection was cut off; the mount is still there and answers ENOTCONN until it is mounted again"
            );
            return Ok(());
        }
        Ok(ServingEnd::Session(Ok(()))) => {
            info!("unmounted");
            return Ok(());
        }
        // The mount stays as it is, answering ENOTCONN once we have gone (P3).
        Ok(ServingEnd::Session(Err(e))) => return Err(Error::io("serve", mountpoint.shown().to_string(), e)),
        Err(_) => unreachable!("the signal tasks hold a sender for as long as the runtime lives"),
    };
    info!(signal = name, "leaving");
    if !request.in_background {
        stopping("making everything durable on the fast tier");
    }
    // Changes between this sync and the unmount are covered by the second one, in step 11.
    sync_changes(tiers)?;
    // A mount that started without room publishes nothing.
    let drains = name == "SIGTERM" && request.settings.config().on_term == OnTerm::Drain && tiers.lacks().is_none();
    if drains && table_entry(mountpoint).as_ref() == entry && drained(end, tiers)? {
        return Ok(());
    }
    // Never unmount another program's mount made there since: if ours is already gone here, only copies in other mount
    // namespaces are left.
    let is_there = entry.is_some() && table_entry(mountpoint).as_ref() == entry;
    if is_there && let Err(errno) = detach(mountpoint, Detach::Now) {
        warn!(mountpoint = %mountpoint.shown(), %errno, "could not unmount");
    }
    match wait_for_session(end) {
        true => info!("unmounted"),
        false if !is_there => {
            warn!("leaving although the mount is still used in another mount namespace; its users there get errors");
        }
        false => warn!(open_files = tiers.status().cache.open_files, "leaving with files open; their users get errors"),
    }
    Ok(())
}

/// Keeps serving until everything written before is on the slow tier, or a signal asks again. `true`: the mount has
/// ended meanwhile.
fn drained(end: &Receiver<ServingEnd>, tiers: &Tiers) -> Result<bool> {
    tiers.count_waiter(true);
    // Bytes, too: a large file is copied for a long time before its event is applied.
    let progress = || (tiers.applied_lsn(), tiers.copied_bytes());
    let (upto, mut before) = (tiers.last_lsn(), (0, 0));
    while tiers.applied_lsn() < upto {
        // Ask the service manager for more time only while there is progress: a held drain must not delay the machine's
        // shutdown.
        let now = progress();
        if std::mem::replace(&mut before, now) != now {
            // Every user can read a service's status: no paths.
            still_leaving(&format!("draining: {}", tiers.status().safety.for_others().line()));
        }
        match end.recv_timeout(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(ServingEnd::Session(Ok(()))) => return Ok(true),
            Ok(ServingEnd::Session(Err(e))) => return Err(Error::io("serve", "the mount", e)),
            Ok(ServingEnd::Signal(name)) => {
                let changes = tiers.status().safety.events;
                warn!(signal = name, changes, "leaving before everything is on the slow tier");
                return Ok(false);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
        }
    }
    // Makes changes made meanwhile durable like the earlier ones.
    sync_changes(tiers).map(|()| false)
}

/// Whether the session ended. A second request to leave means hurry: leaving now loses nothing (P3).
fn wait_for_session(end: &Receiver<ServingEnd>) -> bool {
    matches!(end.recv_timeout(LEAVE_WAIT), Ok(ServingEnd::Session(_)))
}

/// A mount that started without room has accepted no changes.
fn sync_changes(tiers: &Tiers) -> Result<()> {
    if tiers.lacks().is_some() { Ok(()) } else { tiers.sync_to_leave() }
}

fn leave(
    runtime: Runtime,
    tiers: &Arc<Tiers>,
    lock: FastLock,
    recorder: Option<Recorder>,
    reports: Option<(JobReports, Observer)>,
) -> Result<Left> {
    // Stopped before the list is made, so that the list is true. A step that hangs in the slow tier ends with the
    // process.
    runtime.shutdown_timeout(STOP_WAIT);
    sync_changes(tiers)?;
    leave_fleet(tiers);
    if let Err(error) = tiers.sync_copies() {
        warn!(%error, "the last staged copies are not durable and will be made again");
    }
    tiers.end_checkpoints();
    if let Some((reports, observer)) = reports {
        leave_report(reports, observer);
    }
    let Safety { files, events, .. } = tiers.status().safety;
    let left = Left { files, events, paths: tiers.unsafe_paths(LEFT_MAX) };
    lock.leave(&left)?;
    if let Some(recorder) = recorder {
        recorder.finish();
    }
    match left.is_nothing() {
        true => info!("everything is on the slow tier"),
        false => warn!(
            files = left.files,
            changes = left.events,
            paths = %left.paths.join(" "),
            "only the fast tier has these; the next mount continues with them"
        ),
    }
    Ok(left)
}

/// The lease is on the slow tier, which may hang. Once the lock of the fast tier is released, the next mount may write
/// the same lease, so an abandoned attempt must not begin another write.
fn leave_fleet(tiers: &Arc<Tiers>) {
    let given_up = Arc::new(AtomicBool::new(false));
    let (leaving, is_late) = (Arc::clone(tiers), Arc::clone(&given_up));
    let left = within(FLEET_WAIT, move || leaving.leave_fleet(|| is_late.load(Ordering::Acquire)));
    let left = left.unwrap_or_else(|| {
        given_up.store(true, Ordering::Release);
        Err(Error::refused(format!("the slow tier has not answered for {FLEET_WAIT:?}"), "see why it hangs"))
    });
    if let Err(error) = left {
        warn!(%error, "the other members of the fleet wait for this one until it is mounted again");
    }
}

/// Before the lock is released: a process that waits for the lock must find the report. The report's directory may be
/// on a file system that hangs.
fn leave_report(reports: JobReports, observer: Observer) {
    let (told, done) = mpsc::sync_channel(1);
    let leave = move || {
        let left = behind_door("the job's report", || reports.leave(&observer));
        drop(
            told.send(left.unwrap_or_else(|| Err(Error::refused("a bug in the report", "see the panic in this log")))),
        );
    };
    let left =
        std::thread::Builder::new().name("dlio-report".into()).spawn(leave).map(|_| done.recv_timeout(REPORT_WAIT));
    match left {
        Ok(Ok(Ok(report))) => info!(report = %report.shown(), "the job's report"),
        Ok(Ok(Err(error))) => warn!(%error, "the job leaves no report"),
        Ok(Err(_)) => warn!("the job's report is not written after {REPORT_WAIT:?}; leaving without it"),
        Err(error) => warn!(%error, "the job leaves no report"),
    }
}

/// The ID of this boot of the machine.
pub fn boot_id() -> Result<String> {
    let file = "/proc/sys/kernel/random/boot_id";
    Ok(std::fs::read_to_string(file).at("read", file)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_the_end_of_the_connection_catches_is_no_failure() {
        assert!(without_abort(Ok(())).is_ok());
        assert!(without_abort(Err(Errno::ECONNABORTED.into())).is_ok());
        assert!(without_abort(Err(Errno::EIO.into())).is_err());
        assert!(without_abort(Err(io::Error::other("event loop thread panicked"))).is_err());
    }
}
