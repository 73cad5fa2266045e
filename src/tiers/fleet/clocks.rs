//! What a reader of leases knows of the other members' clocks. Pure.
//!
//! Each lease has its member's clock at the time the lease was read from the log.
//!
//! 1. *Ahead*: a lease was read after it was written, so one whose clock is later than the reader's by more than both
//!    errors comes from a clock that is ahead. A late reading hides that. So a member's clock is unknown until one of
//!    its leases was read soon after it was written, or several were read at all, or its lease no longer changes: then
//!    no running member has that clock. While it is unknown no event is admitted, for a few periods at most.
//! 2. *Behind*: each lease is read from the log after the one before it was written. An old lease from the slow tier's
//!    caches looks the same, so being behind counts only from [`CACHED`] on, and only for the verdict: a member that is
//!    behind sees that the others are ahead, and publishes nothing.
//! 3. A clock that was off stays so until [`CLEAN`] leases in a row showed nothing: of a small error, only leases that
//!    are read soon enough show it.
//! 4. A reader whose own clock is off knows nothing of the others' clocks.

use std::time::Duration;

/// A lease read this soon after it was written is enough.
const SOON: Duration = Duration::from_millis(150);
/// This many leases are enough, however late they are read.
const SOME: u32 = 3;
/// How old an answer from the slow tier's caches may be.
const CACHED: Duration = Duration::from_secs(5);
const CLEAN: u32 = 60;

/// A member's clock when it read its lease from its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseClock {
    /// The lease was written at a join without a clock, or by an earlier version.
    Untold,
    /// Nanoseconds since 1970.
    At(u64),
    /// The member's machine says that its clock exceeds the fleet's bound. The lease stands still.
    Off,
}

/// The reader's clocks around one reading of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAt {
    /// Nanoseconds since 1970, before and after.
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) uptime: Duration,
    /// The reader has looked recently, so an unchanged beat says something about the member.
    pub(crate) has_watched: bool,
    /// Twice the bound for the clocks' errors.
    pub(crate) errors: u64,
    /// The reader's clock is right, as far as it knows.
    pub(crate) is_right: bool,
    /// How long a lease that does not change leaves its clock unknown.
    pub(crate) patience: Duration,
}

/// What a lease says about its clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToldClock {
    pub(super) clock: LeaseClock,
    pub(super) least: u64,
    /// The member is mounted.
    pub(super) is_here: bool,
}

/// What was known before a reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownClock {
    pub(super) clock: SeenClock,
    /// The lease has changed since.
    pub(super) is_new: bool,
    /// The reader's clock when it began the last reading, and the last one before that which showed an earlier lease.
    pub(super) read: u64,
    pub(super) after: Option<u64>,
}

/// A member's clock, as far as a reader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeenClock {
    /// How many of its leases were seen, all of them late.
    Unknown(u32),
    Right,
    /// At least this many nanoseconds ahead of the reader's (negative: behind); this many leases since have not shown
    /// it.
    Off(i64, u32),
    SaysOff,
}

impl SeenClock {
    /// The state after one more reading of the member's leases, the last of which has not changed since this uptime.
    pub(super) fn renewed(known: Option<KnownClock>, told: ToldClock, since: Duration, at: ReadAt) -> SeenClock {
        // An unchanged lease may date from before its clock, or the reader's, was set back, and so seem ahead.
        if at.is_right
            && let Some(off) = shown(known.filter(|known| known.is_new), told, at)
        {
            return SeenClock::Off(off, 0);
        }
        if told.clock == LeaseClock::Off {
            return SeenClock::SaysOff;
        }
        if !at.is_right {
            return SeenClock::Unknown(0);
        }
        if !told.is_here {
            return SeenClock::Right;
        }
        let first = if at.patience.is_zero() { SeenClock::Right } else { SeenClock::Unknown(0) };
        let Some(KnownClock { clock, is_new, read, .. }) = known else { return first };
        match clock {
            SeenClock::Off(off, clean) if is_new && clean + 1 < CLEAN => SeenClock::Off(off, clean + 1),
            SeenClock::Off(off, clean) if !is_new => SeenClock::Off(off, clean),
            SeenClock::Unknown(seen) if is_new && at.has_watched => {
                let is_soon = at.ended.saturating_sub(read) <= SOON.as_nanos() as u64;
                if is_soon || seen + 1 >= SOME { SeenClock::Right } else { SeenClock::Unknown(seen + 1) }
            }
            SeenClock::Unknown(seen) if at.uptime.saturating_sub(since) < at.patience => SeenClock::Unknown(seen),
            SeenClock::SaysOff => first,
            SeenClock::Unknown(_) | SeenClock::Right | SeenClock::Off(..) => SeenClock::Right,
        }
    }

    /// Whether the member's lease counts: not if its clock is ahead, or may be.
    pub(crate) fn lets_go(self) -> bool {
        match self {
            SeenClock::Unknown(_) => left_out!(OthersClocks),
            SeenClock::Right | SeenClock::SaysOff => true,
            SeenClock::Off(off, _) => off < 0 || left_out!(OthersClocks),
        }
    }

    /// By how many seconds the clock is ahead, if that is known. `None`: nothing is wrong with it.
    pub(crate) fn trouble(self) -> Option<Option<f64>> {
        match self {
            SeenClock::Unknown(_) | SeenClock::Right => None,
            SeenClock::Off(off, _) => Some(Some(off as f64 / 1e9)),
            SeenClock::SaysOff => Some(None),
        }
    }
}

/// The error that this lease shows, ahead or behind. `before`: what was known at the previous lease.
fn shown(before: Option<KnownClock>, told: ToldClock, at: ReadAt) -> Option<i64> {
    let signed = |nanos: u64| i64::try_from(nanos).unwrap_or(i64::MAX);
    let clock = match told.clock {
        LeaseClock::At(clock) => clock.max(told.least),
        _ => told.least,
    };
    if clock > at.ended.saturating_add(at.errors) {
        return Some(signed(clock - at.ended));
    }
    let LeaseClock::At(clock) = told.clock else { return None };
    let there = before?.after?;
    let is_behind = clock.saturating_add(at.errors).saturating_add(CACHED.as_nanos() as u64) < there;
    is_behind.then(|| -signed(there - clock))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Reads leases of one member by a clock that begins at an hour; both clocks may be off by 10 ms.
    #[derive(Default)]
    struct Reader {
        told: Option<ToldClock>,
        known: Option<KnownClock>,
        since: Duration,
        is_wrong: bool,
    }

    impl Reader {
        /// Reads a new lease of the member, whose clock is off by `new`, `late` after it was written; or the last one
        /// again.
        fn read(&mut self, at: u64, new: Option<i64>, late: u64) -> SeenClock {
            let now = 3_600_000 + at;
            if let Some(off) = new {
                let clock = LeaseClock::At((now - late).saturating_add_signed(off) * MS);
                self.told = Some(ToldClock { clock, least: 0, is_here: true });
                self.since = Duration::from_millis(at);
            }
            let reading = ReadAt {
                began: now * MS,
                ended: now * MS,
                uptime: Duration::from_millis(at),
                has_watched: true,
                errors: 20 * MS,
                is_right: !self.is_wrong,
                patience: Duration::from_secs(3),
            };
            let is_new = new.is_some();
            let known = self.known.map(|known| KnownClock { is_new, ..known });
            let clock = SeenClock::renewed(known, self.told.expect("told"), self.since, reading);
            let after = known.and_then(|known| if is_new { Some(known.read) } else { known.after });
            self.known = Some(KnownClock { clock, is_new, read: now * MS, after });
            clock
        }
    }

    #[test]
    fn a_clock_is_known_once_a_lease_was_read_soon_or_some_were_read_at_all() {
        let mut reader = Reader::default();
        assert_eq!(reader.read(0, Some(0), 700), SeenClock::Unknown(0));
        assert_eq!(reader.read(100, None, 0), SeenClock::Unknown(0));
        assert_eq!(reader.read(200, Some(0), 50), SeenClock::Right);
        assert_eq!(reader.read(5000, Some(0), 700), SeenClock::Right, "it stays known");

        let mut reader = Reader::default();
        let late: Vec<_> = (0..4).map(|at| reader.read(at * 1000, Some(0), 500)).collect();
        let expected = [SeenClock::Unknown(0), SeenClock::Unknown(1), SeenClock::Unknown(2), SeenClock::Right];
        assert_eq!(late, expected);

        let mut reader = Reader::default();
        let same: Vec<_> = (0..4).map(|at| reader.read(at * 1000, (at == 0).then_some(0), 500)).collect();
        assert_eq!(same[2..], [SeenClock::Unknown(0), SeenClock::Right], "nobody writes it any more");
    }

    #[test]
    fn a_clock_that_is_ahead_is_seen_and_stays_off_until_many_leases_show_nothing_of_it() {
        let mut reader = Reader::default();
        assert_eq!(reader.read(0, Some(20), 0), SeenClock::Unknown(0), "within the errors of both");
        assert_eq!(reader.read(100, Some(21), 0), SeenClock::Off(21 * MS as i64, 0));
        assert!(!reader.read(200, None, 0).lets_go());
        for clean in 1..CLEAN {
            // Still off, but read too late to show it.
            let clock = reader.read(u64::from(clean) * 1000, Some(21), 1);
            assert_eq!(clock, SeenClock::Off(21 * MS as i64, clean));
        }
        assert_eq!(reader.read(61_000, Some(21), 1), SeenClock::Right);
        assert_eq!(reader.read(62_000, Some(3000), 900), SeenClock::Off(2100 * MS as i64, 0));
    }

    #[test]
    fn a_clock_that_is_behind_is_named_and_holds_nothing_up() {
        let mut reader = Reader::default();
        let mut last = SeenClock::Right;
        for at in 0..5 {
            last = reader.read(at * 1000, Some(-8000), 50);
        }
        assert!(matches!(last, SeenClock::Off(off, 0) if off < -6_000_000_000) && last.lets_go(), "{last:?}");
    }

    #[test]
    fn a_reader_with_a_wrong_clock_knows_nothing() {
        let mut reader = Reader { is_wrong: true, ..Reader::default() };
        assert_eq!([0, 1, 2].map(|at| reader.read(at * 100, Some(9000), 0)), [SeenClock::Unknown(0); 3]);
    }
}
