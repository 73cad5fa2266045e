//! The contents of a member's lease, the events that the others' leases admit, and what all leases say about the fleet.
//! Pure.

use std::time::Duration;

use uuid::Uuid;

use crate::stats::fleet::{FleetStatus, MemberStanding, MemberStatus, clock_off};
use crate::tiers::fleet::clocks::{KnownClock, LeaseClock, ReadAt, SeenClock, ToldClock};
use crate::tiers::fleet::lines::{checked, with_crc};
use crate::tiers::fleet::names::NamesEnd;
use crate::tiers::fleet::periods::FleetPeriods;

/// Bytes of a lease in its file. It is overwritten in place by one write, so its length is constant. Leases of earlier
/// versions are shorter, and say less.
pub(crate) const LEASE_LEN: usize = 512;
/// A longer host name is cut.
const HOST_MAX: usize = 64;

/// One member's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberLease {
    pub(crate) member: Uuid,
    pub(crate) host: String,
    /// `end` of the member's oldest event that is not durable on the slow tree, or its clock if there is none:
    /// nanoseconds since 1970.
    pub(crate) least: u64,
    /// Increases with each write.
    pub(crate) beat: u64,
    /// How far its file of published names goes.
    pub(crate) names: NamesEnd,
    /// What may be missing of the slot's former members.
    pub(crate) lost: Option<Loss>,
    /// How often the member's place went to a copy of its fast tier (`handover.rs`).
    pub(crate) turn: u32,
    /// The copy that may take the member's place (`partner.rs`); 0: none.
    pub(crate) copy: u64,
    pub(crate) clock: LeaseClock,
    /// The start of the member's daemon (`incarnation.rs`). Nil: an earlier version wrote it.
    pub(crate) start: Uuid,
    pub(crate) standing: Standing,
}

/// What a forgotten member, or one whose place a copy took, had logged and may be missing on the slow tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Events with a smaller `end` are there.
    pub(crate) from: u64,
    /// It logged nothing later. The largest number until the slot's next member has written its first own lease.
    pub(crate) before: u64,
    /// The beat of its last lease, which an acceptance names.
    pub(crate) beat: u64,
    /// The loss was accepted (`members.rs`). Not written in the lease.
    pub(crate) is_accepted: bool,
}

impl Loss {
    fn encode(loss: Option<Loss>) -> String {
        loss.map_or_else(|| "0".to_owned(), |Loss { from, before, beat, .. }| format!("{before}:{from}:{beat}"))
    }

    /// Earlier versions wrote the end only. The outer `None`: unreadable.
    fn decode(word: &str) -> Option<Option<Loss>> {
        let mut numbers = word.split(':').map(|number| number.parse::<u64>().ok());
        let before = numbers.next()??;
        let from = numbers.next().unwrap_or(Some(0))?;
        let beat = numbers.next().unwrap_or(Some(0))?;
        let loss = (before > 0).then_some(Loss { from, before, beat, is_accepted: false });
        numbers.next().is_none().then_some(loss)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Here,
    /// The member was unmounted with nothing pending. The slot's next member, the same or another one, writes a lease
    /// before it logs anything.
    Left,
    /// An operator has declared its node lost for good (`forget.rs`). Another member may have its slot.
    Forgotten,
}

impl Standing {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Standing::Here => "here",
            Standing::Left => "left",
            Standing::Forgotten => "forgotten",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Standing> {
        [Standing::Here, Standing::Left, Standing::Forgotten].into_iter().find(|standing| standing.word() == word)
    }
}

/// A host's name as a word of a line; it may be foreign input.
pub(crate) fn plain_host(host: &str) -> String {
    host.chars().filter(|c| c.is_ascii_graphic() && *c != '=').take(HOST_MAX).collect()
}

impl MemberLease {
    /// The lease of a member that has logged nothing yet.
    pub(crate) fn first(member: Uuid, host: String, turn: u32) -> MemberLease {
        let (names, clock, standing) = (NamesEnd::default(), LeaseClock::Untold, Standing::Here);
        MemberLease {
            member,
            host,
            least: 0,
            beat: 0,
            names,
            lost: None,
            turn,
            copy: 0,
            clock,
            start: Uuid::nil(),
            standing,
        }
    }

    /// One line of `lines.rs`, padded to [`LEASE_LEN`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        let MemberLease { member, least, beat, names, turn, copy, start, .. } = self;
        let host = plain_host(&self.host);
        let (lost, standing) = (Loss::encode(self.lost), self.standing.word());
        let clock = match self.clock {
            LeaseClock::Untold => "-".to_owned(),
            LeaseClock::At(clock) => clock.to_string(),
            LeaseClock::Off => "off".to_owned(),
        };
        let words = format!(
            "lease member={member} host={host} least={least} beat={beat} names={names} lost={lost} turn={turn} \
             copy={copy:x} clock={clock} start={start} {standing}"
        );
        let mut line = with_crc(&words).into_bytes();
        line.resize(LEASE_LEN - 1, b' ');
        line.push(b'\n');
        line
    }

    /// `None`: invalid, for example while it is being overwritten.
    pub(crate) fn decode(bytes: &[u8]) -> Option<MemberLease> {
        let words = checked(std::str::from_utf8(bytes).ok()?.trim_end())?;
        let mut words = words.strip_prefix("lease ")?.split(' ');
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
        let (member, host) = (Uuid::try_parse(value("member")?).ok()?, plain_host(value("host")?));
        let (least, beat) = (value("least")?.parse().ok()?, value("beat")?.parse().ok()?);
        let (names, lost) = (value("names")?.parse().ok()?, Loss::decode(value("lost")?)?);
        let (turn, copy) = (value("turn")?.parse().ok()?, u64::from_str_radix(value("copy")?, 16).ok()?);
        // Earlier versions did not write it.
        let (clock, standing) = match words.next()? {
            word if word.starts_with("clock=") => (word.strip_prefix("clock=")?, words.next()?),
            standing => ("-", standing),
        };
        let (start, standing) = match standing.strip_prefix("start=") {
            Some(start) => (Uuid::try_parse(start).ok()?, words.next()?),
            None => (Uuid::nil(), standing),
        };
        let clock = match clock {
            "-" => LeaseClock::Untold,
            "off" => LeaseClock::Off,
            clock => LeaseClock::At(clock.parse().ok()?),
        };
        let standing = Standing::of_word(standing)?;
        let lease = MemberLease { member, host, least, beat, names, lost, turn, copy, clock, start, standing };
        words.next().is_none().then(|| match (standing, lost) {
            // Earlier versions did not write a forgotten member's loss.
            (Standing::Forgotten, loss) if loss.is_none_or(|loss| loss.before < u64::MAX) => lease.forgotten(),
            _ => lease,
        })
    }

    /// The lease once no member waits for this one any more.
    pub(crate) fn forgotten(&self) -> MemberLease {
        MemberLease { standing: Standing::Forgotten, lost: Some(self.loss()), ..self.clone() }
    }

    /// What may be missing if the member does not come back, including earlier losses. A member without a lease of its
    /// own has logged nothing.
    pub(crate) fn loss(&self) -> Loss {
        let from = match self.lost {
            Some(loss) if self.least == 0 => loss.from,
            Some(loss) => loss.from.min(self.least),
            None => self.least,
        };
        Loss { from, before: u64::MAX, beat: self.beat, is_accepted: false }
    }
}

/// A lease of another member, as it was read.
#[derive(Clone, Debug)]
pub(crate) struct SeenLease {
    pub(crate) lease: MemberLease,
    /// Our clock when we began to read it: nanoseconds since 1970.
    pub(crate) read: u64,
    /// Our uptime when we first saw this beat, and when we read it last.
    pub(crate) since: Duration,
    pub(crate) seen_at: Duration,
    /// Our clock when we began the last reading that showed another lease.
    pub(crate) after: Option<u64>,
    pub(crate) clock: SeenClock,
}

impl SeenLease {
    /// Replaces what is known of a slot by this lease, unless it is older: an old cache may show it.
    pub(crate) fn renew(seen: &mut Option<SeenLease>, lease: MemberLease, at: ReadAt) {
        let since = match seen {
            // The beats of a slot only grow, across its members.
            Some(seen) if seen.lease.beat > lease.beat => return,
            Some(seen) if seen.lease.beat == lease.beat && at.has_watched => seen.since,
            _ => at.uptime,
        };
        let after = match seen {
            Some(seen) if seen.lease.beat == lease.beat => seen.after,
            Some(other) => Some(other.read),
            None => None,
        };
        let known = seen.as_ref().filter(|seen| seen.lease.member == lease.member);
        let known = known.map(|seen| KnownClock {
            clock: seen.clock,
            is_new: seen.lease.beat != lease.beat,
            read: seen.read,
            after: seen.after,
        });
        let told = ToldClock { clock: lease.clock, least: lease.least, is_here: lease.standing == Standing::Here };
        let clock = SeenClock::renewed(known, told, since, at);
        *seen = Some(SeenLease { lease, read: at.began, since, seen_at: at.uptime, after, clock });
    }

    /// Whether a reader of this slot has watched it. It reads all slots one after another, so this counts per slot: a
    /// pass over many may take longer than the time between two.
    pub(crate) fn is_watched(seen: Option<&SeenLease>, uptime: Duration, silent: Duration) -> bool {
        seen.is_some_and(|seen| uptime.saturating_sub(seen.seen_at) < silent / 2)
    }

    /// The member's lease. No member waits for one that has left or is forgotten, but the slot's next member logs with
    /// stamps of now, by a clock that is off by at most as much as ours.
    pub(crate) fn least(&self, errors: u64) -> u64 {
        match self.lease.standing {
            Standing::Here => self.lease.least,
            Standing::Left => self.read.saturating_sub(errors).max(self.lease.least),
            Standing::Forgotten => self.read.saturating_sub(errors),
        }
    }

    /// Events logged until then may be missing. The largest number: the end is unknown.
    pub(crate) fn lost_before(&self) -> u64 {
        if self.clock.lets_go() { self.lease.lost.map_or(0, |loss| loss.before) } else { u64::MAX }
    }
}

/// What the leases of all members say. `asked` is the reader's clock, in nanoseconds since 1970.
///
/// The slow tier has everything that a member logged with an `end` below its lease. When the reader's clock shows `t`,
/// no member's clock shows more than `t` and the errors of both: so what was logged by then has at most that `end`, and
/// is on the slow tier if the lease is larger.
pub(crate) fn fleet_status(
    fleet: &str,
    seen: &[Option<SeenLease>],
    error: Duration,
    asked: u64,
    read_ago: Option<Duration>,
) -> FleetStatus {
    let (errors, silent) = (2 * error.as_nanos() as u64, FleetPeriods::of(seen.len()).silent);
    let members = (0..).zip(seen).map(|(slot, seen)| match seen {
        None => MemberStatus { slot, ..MemberStatus::default() },
        Some(seen) => seen.status(slot, errors, silent),
    });
    // Rounded so that the verdict is never too early.
    let asked_at = Duration::from_millis(asked.div_ceil(1_000_000));
    FleetStatus { fleet: fleet.to_owned(), clock_error: error, asked_at, read_ago, members: members.collect() }
}

impl SeenLease {
    fn status(&self, slot: u32, errors: u64, silent: Duration) -> MemberStatus {
        // A forgotten member's pending events are lost, even if its slot has a new member.
        let is_forgotten = self.lease.standing == Standing::Forgotten;
        let least = if is_forgotten { self.lease.least } else { self.least(errors) };
        // By the reader's clock, rounded so that the verdict is never too good.
        let there = |least: u64| least.checked_sub(errors + 1).map(|nanos| Duration::from_millis(nanos / 1_000_000));
        let up_to = there(least);
        let unchanged_for = self.seen_at.saturating_sub(self.since);
        let clock = self.clock.trouble();
        let standing = match self.lease.standing {
            Standing::Forgotten => MemberStanding::Forgotten,
            _ if clock.is_some() => MemberStanding::ClockOff,
            Standing::Left => MemberStanding::Left,
            Standing::Here if unchanged_for > silent => MemberStanding::Silent,
            Standing::Here => MemberStanding::Here,
        };
        let up_to = up_to.filter(|_| standing == MemberStanding::Forgotten || self.clock == SeenClock::Right);
        let lost = self.lease.lost;
        let lost_from = lost.map(|loss| there(loss.from).unwrap_or_default());
        let lost_before = lost.map(|loss| loss.before).filter(|before| *before < u64::MAX);
        let lost_before = lost_before.map(|before| Duration::from_millis(before.div_ceil(1_000_000)));
        let loss_accepted = lost.is_some_and(|loss| loss.is_accepted);
        let host = self.lease.host.clone();
        let clock_ahead = clock.flatten();
        MemberStatus { slot, host, standing, up_to, unchanged_for, lost_from, lost_before, loss_accepted, clock_ahead }
    }
}

/// Which events may be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FleetGate {
    /// All: the mount is in no fleet, or the only member of one.
    Open,
    /// Events that began before this, of the member with the second id.
    Before((u64, Uuid), Uuid),
    /// None: a member is unknown, its clock exceeds the bound, or this member may have been declared lost.
    Shut,
}

impl FleetGate {
    /// Whether an event that began at `start` may be published.
    pub(crate) fn lets_go(self, start: u64) -> bool {
        match self {
            FleetGate::Open => true,
            FleetGate::Before(least, own) => least > (start, own) || left_out!(Gate),
            FleetGate::Shut => false,
        }
    }
}

/// The gate that the leases of the other members form. `errors` is twice the bound for the clocks' errors.
pub(crate) fn gate(own: Uuid, slot: u32, seen: &[Option<SeenLease>], errors: Duration) -> FleetGate {
    let errors = errors.as_nanos() as u64;
    let mut least = None;
    for (_, seen) in (0..).zip(seen).filter(|(other, _)| *other != slot) {
        let Some(seen) = seen.as_ref().filter(|seen| seen.clock.lets_go()) else { return FleetGate::Shut };
        let this = (seen.least(errors), seen.lease.member);
        least = Some(least.map_or(this, |least: (u64, Uuid)| least.min(this)));
    }
    least.map_or(FleetGate::Open, |least| FleetGate::Before(least, own))
}

/// The member whose lease to read again for an event that began at `start`: of those that hold it up, the furthest
/// behind, as far as is known.
pub(crate) fn next_to_read(
    own: Uuid,
    slot: u32,
    seen: &[Option<SeenLease>],
    errors: Duration,
    start: u64,
) -> Option<u32> {
    let errors = errors.as_nanos() as u64;
    let others = (0..).zip(seen).filter(|(other, _)| *other != slot);
    let known = others.map(|(other, seen)| {
        let seen = seen.as_ref().filter(|seen| seen.clock.lets_go());
        (seen.map(|seen| (seen.least(errors), seen.lease.member)), other)
    });
    let (least, other) = known.min()?;
    least.is_none_or(|least| least <= (start, own)).then_some(other)
}

/// The member for which others wait although it does nothing: not there yet, or silent, or its clock is off.
pub(crate) fn missing(slot: u32, seen: &[Option<SeenLease>], now: Duration) -> Option<String> {
    let silent = FleetPeriods::of(seen.len()).silent;
    let others = (0..).zip(seen).filter(|(other, _): &(u32, _)| *other != slot);
    others.into_iter().find_map(|(other, seen)| match seen {
        None => Some(format!("waits for member {other}, which has not been mounted yet")),
        Some(SeenLease { lease, clock, .. }) if clock.trouble().is_some() && lease.standing != Standing::Forgotten => {
            Some(clock_off(&format!("member {other} on {}", lease.host), clock.trouble().flatten()))
        }
        // As of the last look at it.
        Some(SeenLease { lease, since, seen_at, .. })
            if lease.standing == Standing::Here && seen_at.saturating_sub(*since) > silent =>
        {
            let ago = humantime::format_duration(Duration::from_secs(now.saturating_sub(*since).as_secs()));
            Some(format!(
                "waits for member {other} on {}, last seen {ago} ago; mount it again there, or see dlio-fs forget",
                lease.host
            ))
        }
        Some(_) => None,
    })
}

/// The member with the smallest lease, for which the others wait.
pub(crate) fn last(slot: u32, seen: &[Option<SeenLease>], errors: Duration) -> Option<String> {
    let errors = errors.as_nanos() as u64;
    let others = (0..).zip(seen).filter(|(other, _): &(u32, _)| *other != slot);
    let leases = others.filter_map(|(other, seen)| seen.as_ref().map(|seen| (seen.least(errors), other, seen)));
    let (_, other, seen) = leases.min_by_key(|(least, ..)| *least)?;
    let host = &seen.lease.host;
    Some(format!("waits for member {other} on {host}, which has older changes; see .dlio/stats there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(least: u64, member: u128) -> MemberLease {
        MemberLease {
            member: Uuid::from_u128(member),
            host: "node7".to_owned(),
            least,
            beat: 3,
            names: NamesEnd { file: 2, len: 5 },
            lost: Some(Loss { from: least / 3, before: least / 2 + 1, beat: least, is_accepted: false }),
            turn: u32::MAX,
            copy: least,
            clock: LeaseClock::At(least),
            start: Uuid::from_u128(member),
            standing: Standing::Here,
        }
    }

    fn seen(lease: MemberLease) -> Option<SeenLease> {
        let (since, seen_at) = (Duration::ZERO, Duration::ZERO);
        Some(SeenLease { lease, read: 1000, since, seen_at, after: None, clock: SeenClock::Right })
    }

    #[test]
    fn a_lease_reads_back_and_a_half_written_one_is_none() {
        for lease in [lease(0, 1), lease(u64::MAX, u128::MAX), MemberLease { standing: Standing::Left, ..lease(7, 2) }]
        {
            let line = lease.encode();
            assert_eq!((line.len(), MemberLease::decode(&line)), (LEASE_LEN, Some(lease.clone())));
            let next = MemberLease { least: lease.least.wrapping_add(1 << 40), beat: lease.beat + 1, ..lease.clone() }
                .encode();
            for cut in 0..LEASE_LEN {
                let mixed = [&next[..cut], &line[cut..]].concat();
                let read = MemberLease::decode(&mixed);
                assert!(read.is_none() || mixed == line || mixed == next, "{cut}: {read:?}");
            }
        }
        let odd = MemberLease { host: format!("a b=\n{}", "x".repeat(500)), ..lease(1, 1) };
        assert_eq!(MemberLease::decode(&odd.encode()).map(|lease| lease.host.len()), Some(HOST_MAX));
    }

    #[test]
    fn an_event_goes_once_all_others_are_past_its_start() {
        let own = Uuid::from_u128(5);
        let gate = |seen: &[Option<SeenLease>]| gate(own, 1, seen, Duration::from_nanos(40));
        let of = |least, member| seen(lease(least, member));
        assert_eq!(gate(&[None, None, of(9, 9)]), FleetGate::Shut, "a member that was never there");
        let both = gate(&[of(20, 9), None, of(10, 8)]);
        assert!(both.lets_go(9) && both.lets_go(10) && !both.lets_go(11), "equal ones by the ids");
        assert!(!gate(&[of(20, 9), None, of(10, 2)]).lets_go(10));
        assert_eq!(super::gate(own, 0, &[None], Duration::ZERO), FleetGate::Open, "alone");
        // It may come back at once.
        let left = gate(&[seen(MemberLease { standing: Standing::Left, ..lease(5, 9) }), None, of(2000, 8)]);
        assert!(left.lets_go(960) && !left.lets_go(961));
        // A lease does not count if its clock is ahead, or may be.
        let of_clock = |clock| gate(&[of(20, 9).map(|seen| SeenLease { clock, ..seen }), None, of(2000, 8)]);
        assert_eq!([SeenClock::Unknown(2), SeenClock::Off(1, 9)].map(of_clock), [FleetGate::Shut; 2]);
        assert!([SeenClock::Off(-1, 9), SeenClock::SaysOff].map(of_clock).iter().all(|gate| gate.lets_go(19)));
        let forgotten = gate(&[seen(MemberLease { standing: Standing::Forgotten, ..lease(5, 9) }), None, of(2000, 8)]);
        assert!(forgotten.lets_go(960) && !forgotten.lets_go(961), "another one may have its slot");
    }

    /// The one furthest behind, as far as is known, until no member holds the event up.
    #[test]
    fn of_those_that_hold_an_event_up_the_smallest_is_read_again() {
        let own = Uuid::from_u128(5);
        let next = |seen: &[Option<SeenLease>], start| next_to_read(own, 1, seen, Duration::from_nanos(40), start);
        let of = |least, member| seen(lease(least, member));
        let both = [of(30, 9), None, of(20, 8), of(10, 7)];
        assert_eq!([9, 10, 11, 30, 31].map(|start| next(&both, start)), [None, None, Some(3), Some(3), Some(3)]);
        assert_eq!(next(&[of(30, 9), None, of(20, 8), of(10, 2)], 10), Some(3), "equal ones by the ids");
        assert_eq!(next(&[of(30, 9), None, of(20, 8), of(100, 7)], 25), Some(2), "it has gone on");
        assert_eq!(next(&[of(30, 9), None, None, of(10, 7)], 5), Some(2), "not mounted yet");
        let ahead = of(90, 9).map(|seen| SeenLease { clock: SeenClock::Off(1, 9), ..seen });
        assert_eq!(next(&[ahead, None, of(10, 7)], 20), Some(0));
        // A member that has left counts as of the last look.
        let left = seen(MemberLease { standing: Standing::Left, ..lease(5, 9) });
        assert_eq!([960, 961].map(|start| next(&[left.clone(), None], start)), [None, Some(0)]);
        assert_eq!(next_to_read(own, 0, &[None], Duration::ZERO, 9), None, "alone");
    }

    #[test]
    fn who_is_missing_is_named() {
        let late = Duration::from_secs(31);
        let inspected = |seen: SeenLease| SeenLease { seen_at: late, ..seen };
        let all = |first: Option<SeenLease>| missing(1, &[first.map(inspected), None], late);
        assert_eq!(all(None).as_deref(), Some("waits for member 0, which has not been mounted yet"));
        assert!(all(seen(lease(1, 1))).is_some_and(|why| why.contains("member 0 on node7, last seen 31s ago")));
        assert_eq!(all(seen(MemberLease { standing: Standing::Left, ..lease(1, 1) })), None);
        assert_eq!(missing(1, &[seen(lease(1, 1)), None], late), None, "nobody has looked since");
        let three = [seen(lease(9, 1)), None, seen(lease(7, 2))];
        assert!(last(1, &three, Duration::ZERO).is_some_and(|why| why.contains("member 2 on node7, which has older")));
    }

    const MS: u64 = 1_000_000;

    /// What one reading of a lease at 1 s by all clocks says; the clocks' bound is 10 ms.
    fn told(lease: MemberLease) -> MemberStatus {
        let mut seen = None;
        let errors = 20 * MS;
        let (began, ended, uptime, patience) = (1000 * MS, 1001 * MS, Duration::ZERO, Duration::ZERO);
        let at = ReadAt { began, ended, uptime, has_watched: false, errors, is_right: true, patience };
        SeenLease::renew(&mut seen, lease, at);
        fleet_status("job", &[seen], Duration::from_millis(10), 1000 * MS + 1, None).members.remove(0)
    }

    #[test]
    fn a_lease_tells_up_to_which_moment_of_the_readers_clock_its_member_is() {
        let up_to = |lease| told(lease).up_to.map(|up_to| up_to.as_millis());
        assert_eq!(up_to(lease(990 * MS, 1)), Some(969), "an event of 990 ms may have been logged when we had 970 ms");
        assert_eq!(up_to(lease(990 * MS + 1, 1)), Some(970));
        assert_eq!(up_to(lease(20 * MS, 1)), None);
        let left = MemberLease { standing: Standing::Left, ..lease(3, 1) };
        assert_eq!((told(left.clone()).standing, up_to(left)), (MemberStanding::Left, Some(959)));
        let forgotten = lease(500 * MS, 1).forgotten();
        assert_eq!((told(forgotten.clone()).standing, up_to(forgotten)), (MemberStanding::Forgotten, Some(479)));
        // A clock that is off says nothing.
        assert_eq!(told(lease(1021 * MS, 1)).standing, MemberStanding::Here);
        let ahead = told(lease(1021 * MS + 1, 1));
        assert_eq!((ahead.standing, ahead.up_to), (MemberStanding::ClockOff, None));
    }

    #[test]
    fn whoever_takes_the_slot_of_a_forgotten_member_says_that_something_is_lost() {
        let left = MemberLease { standing: Standing::Left, lost: None, ..lease(900 * MS, 1) };
        assert_eq!((told(left.clone()).lost_from, told(left.clone()).lost_before), (None, None));
        let forgotten = left.forgotten();
        let span = |lease: MemberLease| [told(lease.clone()).lost_from, told(lease).lost_before];
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(span(forgotten.clone()), [ms(879), None], "until the next one has a lease of its own");
        let lost = forgotten.lost.map(|loss| Loss { before: 950 * MS + 1, ..loss });
        let next = MemberLease { lost, ..lease(990 * MS, 2) };
        assert_eq!(span(next.clone()), [ms(879), ms(951)]);
        let again = MemberLease { beat: 9, ..next }.forgotten();
        assert_eq!((span(again.clone()), again.lost.map(|loss| loss.beat)), ([ms(879), None], Some(9)), "both");
        // It never wrote a lease of its own.
        assert_eq!(span(MemberLease { least: 0, ..again }.forgotten()), [ms(879), None]);
    }

    #[test]
    fn what_an_earlier_version_wrote_of_a_loss_is_read() {
        let line = |lost: u64, standing: &str| {
            let member = Uuid::from_u128(1);
            let words =
                format!("lease member={member} host=h least=7 beat=3 names=2:5 lost={lost} turn=0 copy=0 {standing}");
            MemberLease::decode(format!("{:<320}", with_crc(&words)).as_bytes())
        };
        let lost = |lost, standing| line(lost, standing).expect("readable").lost.map(|loss| (loss.from, loss.before));
        assert_eq!(lost(0, "here"), None);
        assert_eq!(lost(9, "here"), Some((0, 9)));
        assert_eq!(lost(0, "forgotten"), Some((7, u64::MAX)));
        assert_eq!(lost(9, "forgotten"), Some((0, u64::MAX)));
    }

    #[test]
    fn only_a_lease_that_was_watched_is_silent() {
        let mut seen = None;
        let mut read = |beat, at, has_watched| {
            let uptime = Duration::from_secs(at);
            let patience = Duration::ZERO;
            let at = ReadAt { began: 1000, ended: 1000, uptime, has_watched, errors: 0, is_right: true, patience };
            SeenLease::renew(&mut seen, MemberLease { beat, ..lease(1, 1) }, at);
            fleet_status("job", std::slice::from_ref(&seen), Duration::ZERO, 1000, None).members.remove(0).standing
        };
        assert_eq!(read(3, 0, false), MemberStanding::Here);
        assert_eq!(read(3, 50, false), MemberStanding::Here, "nobody has looked in between");
        assert_eq!(read(3, 80, true), MemberStanding::Here);
        assert_eq!(read(3, 81, true), MemberStanding::Silent);
        assert_eq!(read(4, 82, true), MemberStanding::Here);
    }
}
