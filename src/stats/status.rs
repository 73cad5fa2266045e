//! A mount's status: the one form of its figures. The engine fills what it knows, the file system the rest. It is written
//! to `.dlio/stats.json`, from which the commands read it back, and the text and the metrics are made from it. Pure.
//!
//! The daemon may be older than the command that reads. So keys may be absent from all structs with `#[serde(default)]`,
//! and a key that is added to [`Status`] or [`Safety`] needs that attribute at its field.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::catalog::CatalogExtent;
use super::counters::{self, BUCKETS, Op, OpFigures};
use super::trace::TraceExtent;
use crate::error::Errno;
use crate::json;

/// The content of `.dlio/stats`. Durations are in seconds, sizes in bytes. The JSON keys are the field names.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Status {
    pub safety: Safety,
    pub version: String,
    /// The date, in UTC.
    pub mounted_at: Option<String>,
    #[serde(with = "json::seconds")]
    pub mounted_for: Duration,
    pub fast: TierSpace,
    pub slow: TierSpace,
    pub pipeline: Pipeline,
    pub log: LogFigures,
    pub cache: Cache,
    pub exceptions: Exceptions,
    pub slow_abilities: SlowAbilities,
    pub slow_calls: SlowCalls,
    /// Calls that a tier has failed lately.
    #[serde(default)]
    pub failing: Option<FailingCalls>,
    pub io_path: IoPathFigures,
    pub operations: Vec<Operation>,
    pub failures: Vec<FailureCount>,
    /// Whether operations are counted.
    pub profile: bool,
    /// The extent of the files' records.
    pub files: CatalogExtent,
    pub found: Detected,
    pub daemon: DaemonFigures,
    /// Where the metrics are served over HTTP.
    pub metrics_addr: Option<String>,
    /// Mounts of the same slow tree that keep no order with this one, each as `HOST:MOUNTPOINT`.
    #[serde(default)]
    pub other_mounts: Vec<String>,
    /// The copy at the partner, if there is to be one.
    #[serde(default)]
    pub partner: Option<PartnerFigures>,
    /// What is in `saved` on the slow tier; nothing before somebody has looked.
    #[serde(default)]
    pub saved: Option<SavedFigures>,
    /// The users whose changes are held while those of others go on.
    #[serde(default)]
    pub held_users: Vec<HeldUser>,
    /// Parts that only observe and were turned off by a bug of theirs.
    #[serde(default)]
    pub off: Vec<String>,
    /// All members of the fleet, if the mount is in one and their leases were read.
    #[serde(default)]
    pub fleet: Option<FleetFigures>,
}

/// What the slow tier keeps for people in `.dlio-fs/saved`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct SavedFigures {
    pub files: u64,
    pub bytes: u64,
    /// How old the oldest directory there is.
    #[serde(with = "json::optional_seconds")]
    pub oldest: Option<Duration>,
}

/// A user whose changes are held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct HeldUser {
    pub uid: u32,
    /// What is refused, why, and the remedy.
    pub reason: String,
    #[serde(with = "json::seconds")]
    pub held_for: Duration,
}

/// A fleet member's copy of its fast tier in `partner_dir`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PartnerFigures {
    /// Everything is on the slow tier, or in the copy.
    pub safe_if_one_node_is_lost: bool,
    /// The copy may take the member's place.
    pub is_good: bool,
    /// What only the fast tier has: events, the bytes of their contents, and files that were written and not closed.
    pub events: u64,
    pub bytes: u64,
    pub open_files: u64,
    /// Why there is no copy, with the remedy.
    pub trouble: Option<String>,
    /// How long publishing, and the other members with it, have been waiting for the copy, if that is long.
    #[serde(with = "json::optional_seconds")]
    pub waits: Option<Duration>,
}

/// The members of a fleet by their standing (`fleet.rs`), and how far the fleet is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct FleetFigures {
    pub here: u64,
    pub silent: u64,
    pub left: u64,
    pub forgotten: u64,
    pub not_mounted: u64,
    pub clock_off: u64,
    /// How far the moment that all members are up to was behind when the leases were read. `None`: there is none.
    #[serde(with = "json::optional_seconds")]
    pub behind: Option<Duration>,
}

/// What was found in the calls as they came, and how many of them are traced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Detected {
    pub trace: TraceExtent,
    /// Bursts of writes so far.
    pub checkpoints: u64,
    /// The last one: its bytes, how long it was written, how long after that the slow tier had it (or how long that has
    /// taken so far), and how long after the one before it began.
    pub checkpoint_bytes: u64,
    #[serde(with = "json::seconds")]
    pub checkpoint_absorb: Duration,
    #[serde(with = "json::seconds")]
    pub checkpoint_at_risk: Duration,
    #[serde(with = "json::seconds")]
    pub checkpoint_interval: Duration,
    /// The current pass over the data; 0 before a second one has begun.
    pub epoch: u64,
    /// How long the previous one took.
    #[serde(with = "json::seconds")]
    pub epoch_duration: Duration,
}

/// Whether losing the fast tier now would lose anything, and what stands in the way.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Safety {
    /// Nothing is only on the fast tier.
    pub safe: bool,
    pub files: u64,
    pub bytes: u64,
    /// How many of the files somebody is writing, and when the first of them is published as it is then.
    pub writing: u64,
    #[serde(with = "json::optional_seconds")]
    pub snapshot_in: Option<Duration>,
    /// Events the slow tier does not have yet: contents, and changes of names and attributes.
    pub events: u64,
    #[serde(with = "json::optional_seconds")]
    pub oldest: Option<Duration>,
    #[serde(with = "json::optional_seconds")]
    pub eta: Option<Duration>,
    /// Why publishing stands still, with the remedy.
    pub held: Option<String>,
    /// The slow tier does not answer.
    pub slow_down: bool,
    /// The fast tier has failed to read or write within the last minute.
    pub fast_fails: bool,
    /// `max_pending` or `max_pending_bytes` is reached: changes get ENOSPC.
    pub refusing: bool,
    /// If it is not: how many users have their share of that, and get ENOSPC.
    pub users_refused: u64,
    /// Files whose writer was cut off by a crash.
    pub interrupted: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct TierSpace {
    pub total: u64,
    pub used: u64,
    pub available: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Pipeline {
    pub pending_events: u64,
    /// About how much memory and log they take.
    pub pending_bytes: u64,
    pub published_events: u64,
    pub drained_files: u64,
    pub drained_bytes: u64,
    pub drain_bytes_per_s: u64,
    /// How many files are copied at the same time.
    pub drain_streams: u32,
    /// Processor time that copying a GiB has taken since the mount, on the threads that copy; unknown before anything was
    /// copied.
    #[serde(with = "json::optional_seconds")]
    pub drain_cpu_per_gib: Option<Duration>,
    /// Bytes that are not on the slow tier's disk yet: for a file being copied, those that have not arrived.
    pub bytes_to_copy: u64,
    pub evictions: u64,
    /// Copies of slow files on the fast tier, as far as they were found since the start, and their bytes.
    pub copies: u64,
    pub copies_bytes: u64,
    /// Copies made since the start.
    pub staged_files: u64,
    pub staged_bytes: u64,
}

/// Log sequence numbers: the last one given, the last durable on fast, the last applied to slow.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct LogFigures {
    pub lsn: u64,
    pub durable_lsn: u64,
    pub applied_lsn: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Cache {
    pub objects: u64,
    pub known_inodes: u64,
    pub open_files: u64,
    /// One for each open.
    pub open_handles: u64,
}

/// Counts of exceptions to the order of publishing, and of what recovery found.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Exceptions {
    pub batches: u64,
    pub late_snapshots: u64,
    pub in_place_writes: u64,
    pub conflicts: u64,
    /// Attributes, and changes of them, that the slow tier does not support.
    pub left_out: u64,
    /// Files removed from a full slow tier ahead of earlier changes.
    pub removed_first: u64,
    /// Changes of held users that others went ahead of; each time counts.
    pub held_back: u64,
    /// Files and directories of other members of the fleet that made way for ours; they are in `saved`.
    pub replaced: u64,
    /// Versions that were superseded before they were copied and so never are, and their bytes.
    pub skipped: u64,
    pub skipped_bytes: u64,
    /// Changes that an operator has set aside since the mount.
    pub set_aside: u64,
    pub spilled: u64,
    pub discarded: u64,
    pub damaged: u64,
    pub quarantined: u64,
}

/// What the slow tier was able to do at the start. Abilities that were not tried are taken to be there.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct SlowAbilities {
    pub user_xattrs: bool,
    pub acls: bool,
    pub owners: bool,
    pub groups: bool,
    pub modes: bool,
    pub symlinks: bool,
    pub symlink_attrs: bool,
    pub fifos: bool,
    pub hard_links: bool,
    pub lasting_inode_numbers: bool,
    pub any_names: bool,
    pub rename_exchange: bool,
    pub rename_noreplace: bool,
    #[serde(with = "json::seconds")]
    pub time_grain: Duration,
}

/// Operations that had to wait for the slow tier.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct SlowCalls {
    /// Calls waiting for a thread.
    pub waiting: usize,
    /// The one that has waited longest, if more than five seconds.
    pub longest: Option<LongestCall>,
    /// Calls of one user that may wait for a thread.
    pub limit: usize,
    /// Calls that run at once; more if some hang.
    pub threads: usize,
    pub served: u64,
    /// Answered EIO because the slow tier took longer than the bounded wait.
    pub timed_out: u64,
    /// Answered EIO at once because `limit` calls of one user were waiting.
    pub refused: u64,
}

/// Calls that a tier has failed, none of them more than a minute after the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct FailingCalls {
    pub calls: u64,
    /// Those of them that change something.
    pub writes: u64,
    /// The error of the last one, by name, and how long ago that was.
    pub errno: String,
    #[serde(with = "json::seconds")]
    pub ago: Duration,
}

/// Who waits for what.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct LongestCall {
    pub seconds: u64,
    pub about: String,
}

/// Which paths file contents take, and what that hides from these figures.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct IoPathFigures {
    /// The mount's path; rules may choose another for some files.
    pub name: String,
    /// How many opens took each path.
    pub opens: BTreeMap<String, u64>,
    pub not_seen: Vec<String>,
}

/// The machine resources that the daemon uses; `None` if the system does not report one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct DaemonFigures {
    /// Processor time since it started.
    #[serde(with = "json::optional_seconds")]
    pub cpu: Option<Duration>,
    pub resident_bytes: Option<u64>,
    pub descriptors: Option<u64>,
    pub descriptors_max: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Operation {
    pub op: String,
    #[serde(flatten)]
    pub all: Figures,
    /// The same, for each tier that served them.
    pub tiers: BTreeMap<String, Figures>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Figures {
    pub calls: u64,
    pub errors: u64,
    pub bytes: u64,
    #[serde(with = "json::seconds")]
    pub total: Duration,
    #[serde(with = "json::optional_seconds")]
    pub p50: Option<Duration>,
    #[serde(with = "json::optional_seconds")]
    pub p90: Option<Duration>,
    #[serde(with = "json::optional_seconds")]
    pub p99: Option<Duration>,
    #[serde(with = "json::optional_seconds")]
    pub p999: Option<Duration>,
    #[serde(with = "json::seconds")]
    pub max: Duration,
    /// Calls by latency: element `i` counts those shorter than `2^i` microseconds that no element before it counts.
    pub latency_log2_us: [u64; BUCKETS],
}

/// How often an operation failed with an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct FailureCount {
    pub op: String,
    /// `ENOENT` and the like.
    pub errno: String,
    pub calls: u64,
}

impl From<&OpFigures> for Figures {
    fn from(figures: &OpFigures) -> Self {
        Figures {
            calls: figures.calls,
            errors: figures.errors,
            bytes: figures.bytes,
            total: figures.total,
            p50: figures.quantile(0.5),
            p90: figures.quantile(0.9),
            p99: figures.quantile(0.99),
            p999: figures.quantile(0.999),
            max: figures.max,
            latency_log2_us: counters::by_powers_of_two(&figures.latency),
        }
    }
}

impl Operation {
    /// One operation each, from figures in the order of operations, tier by tier.
    pub fn all(figures: Vec<(Op, counters::Tier, OpFigures)>) -> Vec<Operation> {
        let tiers = |of: &[(Op, counters::Tier, OpFigures)]| {
            of.iter().map(|(_, tier, figures)| (tier.name().to_owned(), figures.into())).collect()
        };
        let together = |of: &[(Op, counters::Tier, OpFigures)]| {
            let mut sum = of[0].2.clone();
            of[1..].iter().for_each(|(_, _, figures)| sum.add(figures));
            sum
        };
        let same = figures.chunk_by(|a, b| a.0 == b.0);
        same.map(|of| Operation { op: of[0].0.name().to_owned(), all: (&together(of)).into(), tiers: tiers(of) })
            .collect()
    }
}

impl FailureCount {
    /// Most frequent first.
    pub fn all(counts: Vec<(Op, Errno, u64)>) -> Vec<FailureCount> {
        let one = |(op, errno, calls): (Op, Errno, u64)| FailureCount {
            op: op.name().to_owned(),
            errno: format!("{errno:?}"),
            calls,
        };
        let mut all: Vec<_> = counts.into_iter().map(one).collect();
        all.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| (&a.op, &a.errno).cmp(&(&b.op, &b.errno))));
        all
    }
}
