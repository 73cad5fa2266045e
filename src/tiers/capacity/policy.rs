//! Decides which files may use the room of the fast tier. No I/O: figures and times in, decisions out.
//!
//! The tier holds dirty files, which stay until the slow tier has them; clean ones, including checkpoints; and copies
//! of slow files, staged for reading. Evicting a clean file or a copy costs a later read of the slow tier. Three rules
//! follow from what is likely to be read again:
//!
//! - **Staged copies are not evicted for room that will be staged into again.** Eviction starts above `high` and ends
//!   at `low`, but evicts staged copies only down to `high`. Staging leaves the room of one checkpoint free below
//!   `high` at all times ([`CheckpointForecast`](crate::tiers::checkpoints::forecast::CheckpointForecast)), not only
//!   when one is due. Otherwise each checkpoint would evict data that the epoch stages again after it.
//! - **Data goes last.** It is read again in each epoch, an old checkpoint hardly ever.
//! - **A data set that does not fit stays in place, in part.** Each epoch reads all of it once, so the least recently
//!   read file is the one that is read next: "least recently used" would bring each file in and evict it just before
//!   its turn. A file takes another's place only if that one is out of use
//!   ([`ReadRounds`](crate::tiers::copies::rounds::ReadRounds)).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::tiers::copies::rounds::replaces;

/// Classes of files that may be evicted, in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Clean, and not part of a checkpoint.
    Other,
    /// Clean, and part of a checkpoint.
    Checkpoint,
    /// A staged copy.
    Data,
}

impl Class {
    pub(crate) const ALL: [Class; 3] = [Class::Other, Class::Checkpoint, Class::Data];

    fn of<T: Copy>(self, by_class: &[T; 3]) -> T {
        let [other, checkpoint, data] = *by_class;
        match self {
            Class::Other => other,
            Class::Checkpoint => checkpoint,
            Class::Data => data,
        }
    }

    fn of_mut<T>(self, by_class: &mut [T; 3]) -> &mut T {
        let [other, checkpoint, data] = by_class;
        match self {
            Class::Other => other,
            Class::Checkpoint => checkpoint,
            Class::Data => data,
        }
    }
}

/// The operator's limits. Arrays are by class, as in [`Class::ALL`].
#[derive(Clone, Debug)]
pub(crate) struct SpaceLimits {
    /// Share of the tier in use above which eviction starts, and the share at which it ends.
    pub(crate) high: f64,
    pub(crate) low: f64,
    /// Share of the tier that staging never takes.
    pub(crate) reserve: f64,
    /// Share of the inodes that is kept free; see [`SpaceLimits::inodes_kept`].
    pub(crate) inodes: f64,
    /// Bytes that a class may take.
    pub(crate) quotas: [Option<u64>; 3],
    /// How many of the newest checkpoints stay.
    pub(crate) keep: u32,
}

/// The space in use. With copies in progress on several threads, count these as if they were complete
/// ([`Usage::with`]).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Bytes that are used or available.
    pub(crate) total: u64,
    pub(crate) avail: u64,
    /// 0: the file system has no limit, as btrfs.
    pub(crate) files_total: u64,
    pub(crate) files_free: u64,
    /// Bytes by class. Any other space in use is dirty, or not ours.
    pub(crate) classes: [u64; 3],
}

impl Usage {
    /// The usage with one more file.
    pub(crate) fn with(mut self, class: Class, bytes: u64) -> Self {
        self.avail = self.avail.saturating_sub(bytes);
        self.files_free = self.files_free.saturating_sub(1);
        let used = class.of_mut(&mut self.classes);
        *used = used.saturating_add(bytes);
        self
    }

    /// The usage without that file.
    pub(crate) fn without(mut self, class: Class, bytes: u64) -> Self {
        self.avail = self.avail.saturating_add(bytes).min(self.total);
        self.files_free = self.files_free.saturating_add(1).min(self.files_total);
        let used = class.of_mut(&mut self.classes);
        *used = used.saturating_sub(bytes);
        self
    }

    fn used(&self) -> u64 {
        self.total.saturating_sub(self.avail)
    }
}

/// Whether eviction has started and not ended yet, for bytes and for inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evicting {
    pub(crate) bytes: bool,
    pub(crate) files: bool,
}

/// Bytes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl Amount {
    fn is_nothing(self) -> bool {
        self == Amount::default()
    }

    fn less(self, bytes: u64) -> Self {
        Amount { bytes: self.bytes.saturating_sub(bytes), files: self.files.saturating_sub(1) }
    }
}

/// What has to be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeTarget {
    /// For all classes together.
    pub(crate) all: Amount,
    /// Staged copies are evicted only until this is met; it is never more than `all`.
    pub(crate) data: Amount,
    /// Bytes of each class above its quota: these go first.
    pub(crate) over: [u64; 3],
    /// To be passed to the next call.
    pub(crate) evicting: Evicting,
    /// Also files protected by `keep`: otherwise a write would fail.
    pub(crate) kept: bool,
}

impl FreeTarget {
    /// Whether a file of this class should be evicted.
    pub(crate) fn asks(&self, class: Class) -> bool {
        let spared = class == Class::Data && self.data.is_nothing();
        class.of(&self.over) > 0 || (!self.all.is_nothing() && !spared)
    }

    /// What remains wanted after this file is evicted.
    pub(crate) fn less(mut self, class: Class, bytes: u64) -> Self {
        (self.all, self.data) = (self.all.less(bytes), self.data.less(bytes));
        let over = class.of_mut(&mut self.over);
        *over = over.saturating_sub(bytes);
        self
    }
}

impl SpaceLimits {
    /// Whether a copy of `size` bytes may be staged while `ahead` bytes stay free for the next checkpoint. They stay
    /// free below `high`: above it the checkpoint would fit, but would at once evict what was staged.
    pub(crate) fn admits(&self, usage: &Usage, ahead: u64, size: u64) -> bool {
        let after = usage.with(Class::Data, size);
        let fits = usage.used().saturating_add(size).saturating_add(ahead) <= self.high_mark(usage)
            && usage.avail.saturating_sub(size) >= share(usage.total, self.reserve);
        let quota = Class::Data.of(&self.quotas);
        fits && quota.is_none_or(|quota| Class::Data.of(&after.classes) <= quota)
            && (usage.files_total == 0 || after.files_free >= self.inodes_kept(usage))
    }

    /// The largest admitted copy: how much may still be staged, in few or in many files.
    pub(crate) fn room(&self, usage: &Usage, ahead: u64) -> u64 {
        let below_high = self.high_mark(usage).saturating_sub(usage.used()).saturating_sub(ahead);
        let beside_reserve = usage.avail.saturating_sub(share(usage.total, self.reserve));
        let quota = Class::Data.of(&self.quotas).unwrap_or(u64::MAX);
        let below_quota = quota.saturating_sub(Class::Data.of(&usage.classes));
        if self.admits(usage, ahead, 0) { below_high.min(beside_reserve).min(below_quota) } else { 0 }
    }

    /// Picks the `victims` that make way for a copy of `size` bytes that is not admitted as it is; `None`: too few are
    /// out of use. `victims` come in the order of [`EvictionOrder::sort`], `interval` from `ReadRounds::interval`; the rest is
    /// as for [`SpaceLimits::admits`].
    pub(crate) fn make_way<T>(
        &self,
        usage: &Usage,
        ahead: u64,
        size: u64,
        victims: impl IntoIterator<Item = (T, Candidate)>,
        interval: Option<Duration>,
        now: Duration,
    ) -> Option<Vec<T>> {
        let mut usage = *usage;
        let mut go = Vec::new();
        for (name, victim) in victims {
            if self.admits(&usage, ahead, size) {
                break;
            }
            if replaces(interval, now.saturating_sub(victim.last_used)) {
                usage = usage.without(victim.class, victim.bytes);
                go.push(name);
            } else if victim.class == Class::Data {
                // All that follow were read later.
                return None;
            }
        }
        self.admits(&usage, ahead, size).then_some(go)
    }

    /// What has to be evicted now. `ahead`: bytes that must be free for a checkpoint that is due. It may exceed what
    /// can be evicted: dirty, pinned and kept files stay, and data is spared.
    pub(crate) fn to_free(&self, usage: &Usage, evicting: Evicting, ahead: u64) -> FreeTarget {
        let mut wanted = FreeTarget::default();
        for class in Class::ALL {
            let quota = class.of(&self.quotas).unwrap_or(u64::MAX);
            *class.of_mut(&mut wanted.over) = class.of(&usage.classes).saturating_sub(quota);
        }
        let (used, high) = (usage.used(), self.high_mark(usage));
        let low = share(usage.total, self.low).min(high);
        let due = ahead.min(usage.total).saturating_sub(usage.avail);
        wanted.evicting.bytes = used > high || (evicting.bytes && used > low);
        let down = if wanted.evicting.bytes { used.saturating_sub(low) } else { 0 };
        wanted.data.bytes = used.saturating_sub(high).max(due);
        wanted.all.bytes = down.max(due);

        let kept = self.inodes_kept(usage);
        let lacking = kept.saturating_sub(usage.files_free);
        let lacking_twice = kept.saturating_mul(2).saturating_sub(usage.files_free);
        wanted.evicting.files = lacking > 0 || (evicting.files && lacking_twice > 0);
        wanted.data.files = lacking;
        wanted.all.files = if wanted.evicting.files { lacking_twice } else { 0 };
        wanted
    }

    /// The inodes to keep free: their share, at least 1,000, at most a third of all. Eviction frees twice as many.
    fn inodes_kept(&self, usage: &Usage) -> u64 {
        share(usage.files_total, self.inodes).max(1_000).min(usage.files_total / 3)
    }

    fn high_mark(&self, usage: &Usage) -> u64 {
        share(usage.total, self.high)
    }
}

fn share(total: u64, share: f64) -> u64 {
    (total as f64 * share) as u64
}

/// A file that takes space and is not dirty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) class: Class,
    pub(crate) pinned: bool,
    /// The checkpoint it belongs to; numbers rise with time.
    pub(crate) group: Option<u64>,
    /// When it was last read, or when it arrived if it was never read.
    pub(crate) last_used: Duration,
    pub(crate) bytes: u64,
    /// Rises with each file that is drained or staged.
    pub(crate) drained: u64,
}

/// The place of a candidate in the order of eviction: the smallest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EvictionRank {
    class: Class,
    age: (u64, Duration, u64),
}

/// The order of eviction: other files, oldest drained first; checkpoints, oldest first; staged copies, least recently
/// read first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvictionOrder {
    /// This checkpoint and later ones stay.
    kept_from: Option<u64>,
}

impl EvictionOrder {
    /// `groups`: the numbers of all checkpoints that are on the fast tier in whole or in part, dirty ones too;
    /// repetitions do not matter.
    pub(crate) fn new(limits: &SpaceLimits, groups: impl IntoIterator<Item = u64>) -> Self {
        let keep = usize::try_from(limits.keep).unwrap_or(usize::MAX);
        let groups: BTreeSet<u64> = groups.into_iter().collect();
        EvictionOrder { kept_from: groups.into_iter().rev().take(keep).next_back() }
    }

    /// `None`: it is never evicted. A checkpoint's file without a number counts as the oldest.
    pub(crate) fn place(&self, candidate: &Candidate) -> Option<EvictionRank> {
        let Candidate { class, pinned, group, last_used, drained, .. } = *candidate;
        let kept = group.zip(self.kept_from).is_some_and(|(group, from)| group >= from);
        let age = match class {
            Class::Other => (0, Duration::ZERO, drained),
            Class::Checkpoint => (group.unwrap_or(0), Duration::ZERO, drained),
            Class::Data => (0, last_used, drained),
        };
        (!pinned && !kept).then_some(EvictionRank { class, age })
    }

    /// The candidates that may be evicted, as indices, first to last. Candidates of equal rank keep their given order.
    pub(crate) fn sort(&self, candidates: &[Candidate]) -> Vec<usize> {
        let places = candidates.iter().enumerate().filter_map(|(at, candidate)| Some((self.place(candidate)?, at)));
        let mut places: Vec<(EvictionRank, usize)> = places.collect();
        places.sort_unstable();
        places.into_iter().map(|(_, at)| at).collect()
    }

    /// The candidates to evict for `wanted`, as indices, first to last.
    pub(crate) fn pick(&self, candidates: &[Candidate], mut wanted: FreeTarget) -> Vec<usize> {
        let mut go = Vec::new();
        let mut left = self.sort(candidates);
        // A class above its quota pays for that before the others pay for the rest.
        for quota_only in [true, false] {
            left.retain(|at| {
                let Some(Candidate { class, bytes, .. }) = candidates.get(*at).copied() else { return false };
                let goes = wanted.asks(class) && (!quota_only || class.of(&wanted.over) > 0);
                if goes {
                    wanted = wanted.less(class, bytes);
                    go.push(*at);
                }
                !goes
            });
        }
        go
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn limits() -> SpaceLimits {
        SpaceLimits { high: 0.85, low: 0.70, reserve: 0.10, inodes: 0.05, quotas: [None; 3], keep: 2 }
    }

    /// Of 100 GiB.
    fn used(gib: u64) -> Usage {
        Usage { total: 100 * GIB, avail: (100 - gib) * GIB, files_total: 100_000, files_free: 90_000, classes: [0; 3] }
    }

    fn none() -> Evicting {
        Evicting::default()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn candidate(class: Class, group: Option<u64>, read: u64, drained: u64) -> Candidate {
        Candidate { class, pinned: false, group, last_used: at(read), bytes: GIB, drained }
    }

    fn any_limits(random: &mut SmallRng) -> SpaceLimits {
        let high = random.random_range(0.1..0.98);
        let quotas = [(); 3].map(|()| random.random_bool(0.3).then(|| random.random_range(0..50 * GIB)));
        let (low, reserve) = (random.random_range(0.01..high), random.random_range(0.0..0.5));
        SpaceLimits {
            high,
            low,
            reserve,
            inodes: random.random_range(0.0..0.2),
            quotas,
            keep: random.random_range(0..4),
        }
    }

    fn any_usage(random: &mut SmallRng) -> Usage {
        let total = random.random_range(1..100 * GIB);
        let files_total = if random.random_bool(0.2) { 0 } else { random.random_range(1..1_000_000) };
        let avail = random.random_range(0..=total);
        let files_free = random.random_range(0..=files_total);
        let classes = [(); 3].map(|()| random.random_range(0..=(total - avail) / 3));
        Usage { total, avail, files_total, files_free, classes }
    }

    fn any_candidate(random: &mut SmallRng, drained: u64) -> Candidate {
        let class = Class::ALL[random.random_range(0..3)];
        let group = (class == Class::Checkpoint && random.random_bool(0.9)).then(|| random.random_range(0..6));
        let (pinned, last_used) = (random.random_bool(0.1), at(random.random_range(0..20)));
        Candidate { class, pinned, group, last_used, bytes: random.random_range(0..3 * GIB), drained }
    }

    #[test]
    fn a_copy_is_admitted_if_and_only_if_no_limit_is_hurt_by_it() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut admitted = 0;
        for _ in 0..20_000 {
            let (limits, usage) = (any_limits(&mut random), any_usage(&mut random));
            let ahead = if random.random_bool(0.5) { 0 } else { random.random_range(0..50 * GIB) };
            let size = random.random_range(0..10 * GIB);
            let (total, left) = (usage.total as f64, usage.avail as f64 - size as f64);
            let inodes = (limits.inodes * usage.files_total as f64).max(1_000.0).min(usage.files_total as f64 / 3.0);
            let quota = limits.quotas[Class::Data as usize].map_or(f64::INFINITY, |quota| quota as f64);
            // Allows for a byte or an inode lost in rounding.
            let fine = |slack: f64| {
                total - left + ahead as f64 <= limits.high * total + slack
                    && left + slack >= limits.reserve * total
                    && left + slack >= ahead as f64
                    && usage.classes[Class::Data as usize] as f64 + size as f64 <= quota
                    && (usage.files_total == 0 || usage.files_free as f64 - 1.0 + slack >= inodes)
            };
            let admits = limits.admits(&usage, ahead, size);
            let room = limits.room(&usage, ahead);
            assert!(admits == (size <= room && limits.admits(&usage, ahead, 0)), "{limits:?} {usage:?} {ahead} {size}");
            assert!(if admits { fine(1.0) } else { !fine(-1.0) }, "{limits:?} {usage:?} {ahead} {size}");
            if admits {
                admitted += 1;
                let wanted = limits.to_free(&usage.with(Class::Data, size), none(), ahead);
                assert!(!wanted.asks(Class::Data), "staged, and to go at once: {wanted:?}");
                assert!((wanted.all, wanted.evicting) == (Amount::default(), none()), "{wanted:?}");
            }
        }
        assert!((2_000..18_000).contains(&admitted), "{admitted}");
    }

    #[test]
    fn eviction_starts_above_high_and_ends_at_low() {
        let limits = limits();
        assert_eq!(limits.to_free(&used(85), none(), 0), FreeTarget::default());
        let wanted = limits.to_free(&used(90), none(), 0);
        assert_eq!((wanted.all.bytes, wanted.data.bytes, wanted.over), (20 * GIB, 5 * GIB, [0; 3]));
        let going_on = limits.to_free(&used(80), wanted.evicting, 0);
        assert_eq!(
            (going_on.all.bytes, going_on.asks(Class::Data), going_on.asks(Class::Other)),
            (10 * GIB, false, true)
        );
        assert_eq!(limits.to_free(&used(70), going_on.evicting, 0), FreeTarget::default());
    }

    #[test]
    fn a_checkpoint_that_is_due_gets_its_room_from_all() {
        let wanted = limits().to_free(&used(80), none(), 30 * GIB);
        assert_eq!((wanted.all.bytes, wanted.data.bytes), (10 * GIB, 10 * GIB));
        assert_eq!(wanted.evicting, none(), "that is not the way down to low");
        let larger_than_the_tier = limits().to_free(&used(80), none(), u64::MAX);
        assert_eq!(larger_than_the_tier.all.bytes, 80 * GIB);
    }

    #[test]
    fn a_class_above_its_quota_goes_first_and_only_so_far() {
        let limits = SpaceLimits { quotas: [None, None, Some(10 * GIB)], ..limits() };
        let usage = Usage { classes: [5 * GIB, 0, 12 * GIB], ..used(50) };
        let wanted = limits.to_free(&usage, none(), 0);
        assert_eq!(wanted.over, [0, 0, 2 * GIB]);
        assert!(wanted.asks(Class::Data) && !wanted.asks(Class::Other));
        assert!(!limits.admits(&usage, 0, 1) && limits.admits(&usage.without(Class::Data, 3 * GIB), 0, GIB));

        let (data, other) = (Class::Data, Class::Other);
        let all: Vec<_> = [other, other, data, data, data, data].into_iter().zip(0..).collect();
        let all: Vec<_> = all.into_iter().map(|(class, n)| candidate(class, None, n, n)).collect();
        let order = EvictionOrder::new(&limits, []);
        assert_eq!(order.pick(&all, wanted), [2, 3]);
        let full = limits.to_free(&Usage { avail: 14 * GIB, ..usage }, none(), 0);
        assert_eq!(order.pick(&all, full), [2, 3, 0, 1], "data no further than its quota and the high watermark");
    }

    #[test]
    fn inodes_are_room_as_well() {
        let limits = limits();
        let short = |free| Usage { files_free: free, ..used(50) };
        assert!(limits.admits(&short(5_001), 0, 1) && !limits.admits(&short(5_000), 0, 1));
        let wanted = limits.to_free(&short(4_000), none(), 0);
        assert_eq!((wanted.all.files, wanted.data.files, wanted.all.bytes), (6_000, 1_000, 0));
        let going_on = limits.to_free(&short(6_000), wanted.evicting, 0);
        assert_eq!((going_on.all.files, going_on.data.files), (4_000, 0));
        assert_eq!(limits.to_free(&short(10_000), wanted.evicting, 0), FreeTarget::default());

        let unlimited = Usage { files_total: 0, files_free: 0, ..used(50) };
        assert!(limits.admits(&unlimited, 0, 1));
        assert_eq!(limits.to_free(&unlimited, none(), 0), FreeTarget::default());
        let few = |free| Usage { files_total: 900, files_free: free, ..used(50) };
        assert!(limits.admits(&few(301), 0, 1) && !limits.admits(&few(300), 0, 1), "a third where 1,000 are too many");
    }

    #[test]
    fn what_is_wanted_is_enough_and_is_then_wanted_no_more() {
        let mut random = SmallRng::seed_from_u64(2);
        for _ in 0..20_000 {
            let (limits, usage) = (any_limits(&mut random), any_usage(&mut random));
            let evicting = Evicting { bytes: random.random(), files: random.random() };
            let ahead = if random.random_bool(0.5) { 0 } else { random.random_range(0..150 * GIB) };
            let wanted = limits.to_free(&usage, evicting, ahead);
            let Amount { bytes, files } = wanted.all;
            assert!(wanted.data.bytes <= bytes && wanted.data.files <= files, "{wanted:?}");
            let mut after = usage;
            after.avail += bytes;
            after.files_free += files;
            for (class, over) in wanted.over.iter().enumerate() {
                after.classes[class] -= over;
            }
            assert!(after.avail <= usage.total && after.avail >= ahead.min(usage.total));
            assert!(!wanted.evicting.bytes || after.used() as f64 <= limits.low * usage.total as f64);
            assert_eq!(limits.to_free(&after, wanted.evicting, ahead), FreeTarget::default(), "{limits:?} {usage:?}");
        }
    }

    #[test]
    fn more_room_ahead_admits_no_more_and_frees_no_less() {
        let mut random = SmallRng::seed_from_u64(3);
        for _ in 0..20_000 {
            let (limits, usage) = (any_limits(&mut random), any_usage(&mut random));
            let evicting = Evicting { bytes: random.random(), files: false };
            let less = random.random_range(0..60 * GIB);
            let more = less + random.random_range(0..60 * GIB);
            let size = random.random_range(0..5 * GIB);
            assert!(limits.admits(&usage, less, size) || !limits.admits(&usage, more, size));
            let (few, many) = (limits.to_free(&usage, evicting, less), limits.to_free(&usage, evicting, more));
            assert!(few.all.bytes <= many.all.bytes && few.data.bytes <= many.data.bytes);
            assert_eq!((few.evicting, few.over, few.all.files), (many.evicting, many.over, many.all.files));
        }
    }

    /// Writers and the evictor at any speed: between two starts of eviction at least the distance between the
    /// watermarks is written.
    #[test]
    fn eviction_does_not_flap() {
        let mut random = SmallRng::seed_from_u64(4);
        let (limits, mut evicting, mut usage) = (limits(), none(), used(60));
        let (mut starts, mut written) = (0, 0);
        for _ in 0..50_000 {
            let wanted = limits.to_free(&usage, evicting, 0);
            starts += u64::from(wanted.evicting.bytes && !evicting.bytes);
            evicting = wanted.evicting;
            let goes = random.random_range(0..GIB / 2).min(wanted.all.bytes);
            usage = usage.without(Class::Other, goes);
            let writes = random.random_bool(0.5);
            let bytes = if writes { random.random_range(0..GIB / 4).min(usage.avail) } else { 0 };
            usage = usage.with(Class::Other, bytes);
            written += bytes;
        }
        assert!(starts > 10 && starts <= 1 + written / (15 * GIB), "{starts} starts, {} GiB", written / GIB);
    }

    #[test]
    fn data_goes_last_and_the_newest_checkpoints_and_what_is_pinned_never() {
        let (other, save, data) = (Class::Other, Class::Checkpoint, Class::Data);
        let all = [
            candidate(data, None, 7, 1),
            candidate(data, None, 3, 2),
            candidate(save, Some(4), 0, 3),
            candidate(save, Some(2), 9, 5),
            candidate(save, Some(2), 9, 4),
            candidate(save, Some(3), 0, 6),
            candidate(other, None, 0, 8),
            candidate(other, None, 9, 7),
            Candidate { pinned: true, ..candidate(other, None, 0, 0) },
            candidate(save, None, 0, 9),
        ];
        let limits = limits();
        // The fifth checkpoint is not drained: not a candidate, but one of the newest two.
        let order = EvictionOrder::new(&limits, [5, 4, 4, 3, 2]);
        assert_eq!(order.sort(&all), [7, 6, 9, 4, 3, 5, 1, 0]);
        assert_eq!(EvictionOrder::new(&limits, [2]).sort(&all[3..5]), [0; 0], "the only ones");
        assert_eq!(EvictionOrder::new(&SpaceLimits { keep: 0, ..limits }, [2]).sort(&all[3..5]), [1, 0]);
    }

    #[test]
    fn the_order_is_total_and_stable() {
        let mut random = SmallRng::seed_from_u64(5);
        for _ in 0..500 {
            let limits = any_limits(&mut random);
            let mut all: Vec<_> = (0..random.random_range(0..40)).map(|n| any_candidate(&mut random, n)).collect();
            let groups: Vec<u64> = all.iter().filter_map(|one| one.group).collect();
            let order = EvictionOrder::new(&limits, groups.iter().copied());
            let sorted = |all: &[Candidate]| order.sort(all).into_iter().map(|at| all[at].drained).collect::<Vec<_>>();
            let before = sorted(&all);
            all.shuffle(&mut random);
            assert_eq!(sorted(&all), before, "whatever order they are given in");
            let newer = |group: u64| groups.iter().filter(|one| **one > group).collect::<BTreeSet<_>>().len();
            let stays = |one: &Candidate| one.pinned || one.group.is_some_and(|g| newer(g) < limits.keep as usize);
            assert_eq!(before.len(), all.iter().filter(|one| !stays(one)).count());
            assert!(all.iter().filter(|one| stays(one)).all(|one| !before.contains(&one.drained)));
            all.iter_mut().for_each(|one| *one = candidate(Class::Data, None, 1, 1));
            assert!(order.sort(&all).is_sorted(), "of equals the first is first");
        }
    }

    #[test]
    fn enough_is_picked_and_not_more() {
        let mut random = SmallRng::seed_from_u64(6);
        for _ in 0..2_000 {
            let limits = any_limits(&mut random);
            let all: Vec<_> = (0..random.random_range(1..60)).map(|n| any_candidate(&mut random, n)).collect();
            let order = EvictionOrder::new(&limits, all.iter().filter_map(|one| one.group));
            let ahead = random.random_range(0..20 * GIB);
            let wanted = limits.to_free(&any_usage(&mut random), none(), ahead);
            let picked = order.pick(&all, wanted);
            let less = |wanted: FreeTarget, at: &usize| wanted.less(all[*at].class, all[*at].bytes);
            let left = picked.iter().fold(wanted, less);
            let stay = order.sort(&all).into_iter().filter(|at| !picked.contains(at));
            assert!(stay.into_iter().all(|at| !left.asks(all[at].class)), "some stay although more is wanted");
            assert!(picked.iter().all(|at| order.place(&all[*at]).is_some()));
            if let Some((last, others)) = picked.split_last() {
                assert!(others.iter().fold(wanted, less).asks(all[*last].class), "the last was not needed");
            }
        }
    }

    #[test]
    fn only_what_is_out_of_use_makes_way() {
        let limits = limits();
        let data = |read| (read, candidate(Class::Data, None, read, read));
        let staged = [data(10), data(20), data(900)];
        let way = |used_gib, gib, interval: Option<u64>, victims: &[(u64, Candidate)]| {
            let interval = interval.map(at);
            limits.make_way(&used(used_gib), 5 * GIB, gib * GIB, victims.iter().copied(), interval, at(1_000))
        };
        assert_eq!(way(80, 2, Some(100), &staged), Some(vec![10, 20]));
        assert_eq!(way(79, 1, None, &staged), Some(vec![]), "there is room");
        assert_eq!(way(80, 2, None, &staged), None, "read for the first time");
        assert_eq!(way(80, 3, Some(100), &staged), None, "the third is in use");
        assert_eq!(way(80, 1, Some(950), &staged), None, "all may be in use");
        // A clean file that is read keeps being read from the fast tier, so it is in use; an unread old checkpoint is
        // not.
        let clean = [(1, candidate(Class::Other, None, 990, 1)), (2, candidate(Class::Checkpoint, Some(1), 0, 2))];
        assert_eq!(way(80, 1, Some(100), &clean), Some(vec![2]));
    }

    #[test]
    fn figures_beyond_reason_are_no_reason_to_stop() {
        let odd = [f64::NAN, -1.0, 0.0, 0.5, 2.0, f64::INFINITY];
        let sizes = [0, 1, u64::MAX / 2, u64::MAX];
        for share in odd {
            let limits =
                SpaceLimits { high: share, low: 0.7, reserve: share, inodes: share, quotas: [Some(0); 3], keep: 9 };
            for (total, avail) in sizes.into_iter().flat_map(|total| sizes.map(|avail| (total, avail))) {
                let usage = Usage { total, avail, files_total: total, files_free: avail, classes: [avail; 3] };
                for ahead in sizes {
                    limits.admits(&usage, ahead, ahead);
                    let wanted = limits.to_free(&usage, Evicting { bytes: true, files: true }, ahead);
                    assert!(wanted.all.bytes <= total && wanted.all.files <= total);
                    usage.with(Class::Data, ahead).without(Class::Data, ahead);
                }
            }
        }
    }
}
