//! The smallest leases of a fleet too large for each member to read all of them: the contents of their file, and which
//! events they admit. Pure; `collector.rs` decides whose turn it is to write them, `collected.rs` does it.
//!
//! A member waits for the smallest lease that is not its own, so two would be enough for all. With some more, members
//! whose turns follow each other need not wait for the next file: a member among them reads the leases before its own
//! again itself, but goes no further than the largest one in the file, where an unlisted member may be.
//!
//! Any member may write them at any time, and several may at once, without a lock: a lease never goes back, so an old
//! value only delays. Each lease is written as it counts for the member that collected it, by its clock when it began
//! to read that lease ([`SeenLease::least`]): the slot's next member has larger stamps, whenever the file is read. A
//! reader takes it as it is; by the reader's later clock it would be too large. As long as a slot was never taken, no
//! event is admitted.

use std::time::Duration;

use uuid::Uuid;

use crate::tiers::fleet::clocks::ReadAt;
use crate::tiers::fleet::lines::{checked, with_crc};
use crate::tiers::fleet::rule::{FleetGate, SeenLease, Standing, plain_host};

/// Bytes of the file. It is overwritten in place by one write, so its length is constant.
pub(crate) const SMALLEST_LEN: usize = 8192;
/// How many leases are written at most; in a small fleet, half of them.
const KEPT_MOST: usize = 40;

/// The file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SmallestLeases {
    /// Increases with each write; after a power cut of the slow tier, or when two members write at once, it may go
    /// back.
    pub(crate) round: u64,
    /// The round of the file that first had these leases, which had been read then. If smaller than this round: this
    /// file repeats it, to show its writer. 0: not read yet.
    pub(crate) read: u64,
    /// The slot of the member that wrote it and keeps doing so. `None`: no member does.
    pub(crate) by: Option<u32>,
    /// If not 0: events that a forgotten member logged until then may be missing. The largest number: the end is
    /// unknown, because its slot has no new member yet, or a member's clock is off.
    pub(crate) lost_before: u64,
    pub(crate) found: CollectedLeases,
}

/// Which file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SmallestHead {
    pub(crate) round: u64,
    pub(crate) read: u64,
    pub(crate) by: Option<u32>,
}

/// What a collector has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CollectedLeases {
    /// This slot was never taken, or never readable.
    NotTaken(u32),
    /// The clock of the member in this slot is ahead of the collector's.
    ClockOff(u32),
    /// At least two, the smallest first.
    Smallest(Vec<SmallLease>),
}

/// One of the smallest leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SmallLease {
    pub(crate) slot: u32,
    pub(crate) member: Uuid,
    pub(crate) host: String,
    /// The value that counts for all members.
    pub(crate) least: u64,
    pub(crate) beat: u64,
    pub(crate) standing: Standing,
}

impl CollectedLeases {
    /// From all leases that were read. `errors` is twice the bound for the clocks' errors.
    pub(crate) fn of(seen: &[Option<SeenLease>], errors: u64) -> CollectedLeases {
        let mut all = Vec::with_capacity(seen.len());
        for (slot, seen) in (0..).zip(seen) {
            let Some(seen) = seen else { return CollectedLeases::NotTaken(slot) };
            if !seen.clock.lets_go() {
                return CollectedLeases::ClockOff(slot);
            }
            all.push((seen.least(errors), seen.lease.member, slot, seen));
        }
        all.sort_unstable_by_key(|(least, member, ..)| (*least, *member));
        let small = |(least, member, slot, seen): &(u64, Uuid, u32, &SeenLease)| SmallLease {
            slot: *slot,
            member: *member,
            host: seen.lease.host.clone(),
            least: *least,
            beat: seen.lease.beat,
            standing: seen.lease.standing,
        };
        let kept = (all.len() / 2).clamp(2, KEPT_MOST);
        CollectedLeases::Smallest(all.iter().take(kept).map(small).collect())
    }

    fn smallest(&self) -> &[SmallLease] {
        match self {
            CollectedLeases::NotTaken(_) | CollectedLeases::ClockOff(_) => &[],
            CollectedLeases::Smallest(smallest) => smallest,
        }
    }
}

impl SmallestLeases {
    /// The file to write, from all leases that the member of slot `by` has read.
    pub(crate) fn of(seen: &[Option<SeenLease>], errors: u64, round: u64, by: u32) -> SmallestLeases {
        let lost = seen.iter().flatten().map(SeenLease::lost_before);
        SmallestLeases {
            round,
            read: round,
            by: Some(by),
            lost_before: lost.max().unwrap_or(0),
            found: CollectedLeases::of(seen, errors),
        }
    }

    /// The file with the same contents in the name of this member, or of none. `known`: the file as it was read last.
    pub(crate) fn again(known: Option<&SmallestLeases>, round: u64, by: Option<u32>) -> SmallestLeases {
        match known {
            Some(known) => SmallestLeases { round, by, ..known.clone() },
            None => SmallestLeases { round, read: 0, by, lost_before: 0, found: CollectedLeases::NotTaken(0) },
        }
    }

    pub(crate) fn head(&self) -> SmallestHead {
        SmallestHead { round: self.round, read: self.read, by: self.by }
    }

    /// One line of `lines.rs`, padded to [`SMALLEST_LEN`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        let by = self.by.map_or_else(|| "-".to_owned(), |by| by.to_string());
        let found = match &self.found {
            CollectedLeases::NotTaken(slot) => format!("not-taken={slot}"),
            CollectedLeases::ClockOff(slot) => format!("clock-off={slot}"),
            CollectedLeases::Smallest(all) => all.iter().map(SmallLease::encode).collect::<Vec<_>>().join(" "),
        };
        let SmallestLeases { round, read, lost_before, .. } = self;
        let mut line =
            with_crc(&format!("smallest round={round} read={read} by={by} lost={lost_before} {found}")).into_bytes();
        line.resize(SMALLEST_LEN - 1, b' ');
        line.push(b'\n');
        line
    }

    /// `None`: invalid, for example while it is being overwritten.
    pub(crate) fn decode(bytes: &[u8]) -> Option<SmallestLeases> {
        let words = checked(std::str::from_utf8(bytes).ok()?.trim_end())?;
        let words: Vec<&str> = words.strip_prefix("smallest ")?.split(' ').collect();
        let [round, read, by, lost, found @ ..] = &words[..] else { return None };
        let by = match value(by, "by")? {
            "-" => None,
            by => Some(by.parse().ok()?),
        };
        let found = match found {
            [word] => match word.split_once('=')? {
                ("not-taken", slot) => CollectedLeases::NotTaken(slot.parse().ok()?),
                ("clock-off", slot) => CollectedLeases::ClockOff(slot.parse().ok()?),
                _ => return None,
            },
            _ => {
                let all: Option<Vec<_>> = found.chunks(SMALL_WORDS).map(SmallLease::decode).collect();
                CollectedLeases::Smallest(all.filter(|all| all.len() >= 2)?)
            }
        };
        let (round, read) = (value(round, "round")?.parse().ok()?, value(read, "read")?.parse().ok()?);
        let lost_before = value(lost, "lost")?.parse().ok()?;
        Some(SmallestLeases { round, read, by, lost_before, found })
    }
}

/// Words of one of them.
const SMALL_WORDS: usize = 6;

fn value<'a>(word: &'a str, key: &str) -> Option<&'a str> {
    word.strip_prefix(key)?.strip_prefix('=')
}

impl SmallLease {
    fn encode(&self) -> String {
        let SmallLease { slot, member, host, least, beat, standing } = self;
        format!("slot={slot} member={member} host={host} least={least} beat={beat} {}", standing.word())
    }

    fn decode(words: &[&str]) -> Option<SmallLease> {
        let [slot, member, host, least, beat, standing] = words else { return None };
        Some(SmallLease {
            slot: value(slot, "slot")?.parse().ok()?,
            member: Uuid::try_parse(value(member, "member")?).ok()?,
            host: plain_host(value(host, "host")?),
            least: value(least, "least")?.parse().ok()?,
            beat: value(beat, "beat")?.parse().ok()?,
            standing: Standing::of_word(standing)?,
        })
    }
}

/// The file, as it was read.
#[derive(Clone, Debug)]
pub(crate) struct SeenSmallest {
    pub(crate) smallest: SmallestLeases,
    /// Our uptime when we first saw the lease for which we wait, in a file that was renewed.
    since: Duration,
    /// Our uptime when we first saw this file's reading.
    renewed: Duration,
}

impl SeenSmallest {
    /// Replaces what the member of this slot knew by what it has read. Nothing is compared: an old file only delays. A
    /// repeated file is no new look at the leases, so it does not show whether their members are alive.
    pub(crate) fn renew(seen: &mut Option<SeenSmallest>, smallest: SmallestLeases, slot: u32, at: ReadAt) {
        let waits_for = |smallest: &SmallestLeases| smallest.first_other(slot).map(|small| (small.slot, small.beat));
        let (since, renewed) = match seen {
            Some(seen) if at.has_watched => (
                if waits_for(&seen.smallest) == waits_for(&smallest) { seen.since } else { at.uptime },
                if seen.is_read_since(&smallest) { at.uptime } else { seen.renewed },
            ),
            _ => (at.uptime, at.uptime),
        };
        *seen = Some(SeenSmallest { smallest, since, renewed });
    }

    /// Whether the leases were read for this file since. A claim may repeat an older file than ours.
    fn is_read_since(&self, smallest: &SmallestLeases) -> bool {
        let (before, read) = (self.smallest.read, smallest.read);
        // After a power cut of the slow tier the rounds may have gone back.
        read != before && (read > before || read == smallest.round)
    }

    /// Whether the member of this slot is among the smallest: others may wait for it now.
    pub(crate) fn has(&self, slot: u32) -> bool {
        self.smallest.found.smallest().iter().any(|small| small.slot == slot)
    }
}

impl SmallestLeases {
    /// The smallest lease that is not this slot's.
    fn first_other(&self, slot: u32) -> Option<&SmallLease> {
        self.found.smallest().iter().find(|small| small.slot != slot)
    }
}

/// A member that knows the file and perhaps some leases that it has read itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallestReader<'a> {
    pub(crate) own: Uuid,
    pub(crate) slot: u32,
    pub(crate) seen: Option<&'a SeenSmallest>,
    /// By slot.
    pub(crate) leases: &'a [Option<SeenLease>],
    /// Twice the bound for the clocks' errors.
    pub(crate) errors: u64,
}

impl SmallestReader<'_> {
    fn smallest(&self) -> &[SmallLease] {
        self.seen.map_or(&[], |seen| seen.smallest.found.smallest())
    }

    /// The value of another member: as in the file, or as it was read since.
    fn least(&self, small: &SmallLease) -> (u64, Uuid) {
        let written = (small.least, small.member);
        let again = self.leases.get(small.slot as usize).and_then(Option::as_ref);
        again.map_or(written, |again| written.max((again.least(self.errors), again.lease.member)))
    }

    fn others(&self) -> impl Iterator<Item = ((u64, Uuid), &SmallLease)> {
        let others = self.smallest().iter().filter(|small| small.slot != self.slot);
        others.map(|small| (self.least(small), small))
    }

    /// What may be published.
    pub(crate) fn gate(&self) -> FleetGate {
        let Some(largest) = self.smallest().last() else { return FleetGate::Shut };
        let least = self.others().map(|(least, _)| least).min();
        let written = (largest.least, largest.member);
        FleetGate::Before(least.map_or(written, |least| least.min(written)), self.own)
    }

    /// The member whose lease to read again for an event that began at `start`: the smallest that holds it up, if
    /// unlisted members may not. Only for a member among the smallest: otherwise all members would read it.
    pub(crate) fn next_to_read(&self, start: u64) -> Option<u32> {
        let largest = self.smallest().last().filter(|_| self.seen.is_some_and(|seen| seen.has(self.slot)))?;
        let is_before = |least: (u64, Uuid)| least <= (start, self.own);
        let (least, small) = self.others().min_by_key(|(least, _)| *least)?;
        (is_before(least) && !is_before((largest.least, largest.member))).then_some(small.slot)
    }

    /// The member for which the others wait although it does nothing: not there yet, or silent. Or no member renews the
    /// file.
    pub(crate) fn missing(&self, now: Duration, silent: Duration) -> Option<String> {
        let SeenSmallest { smallest, since, renewed } = self.seen?;
        let ago =
            |since: Duration| humantime::format_duration(Duration::from_secs(now.saturating_sub(since).as_secs()));
        if now.saturating_sub(*renewed) > silent {
            return Some(format!(
                "the smallest leases have not been renewed for {}; see whether the members can write `smallest` in the \
                 fleet's directory, .dlio-fs/fleet on the slow tier",
                ago(*renewed)
            ));
        }
        if let CollectedLeases::NotTaken(other) = smallest.found {
            // Unknown before the first reading.
            let is_known = smallest.read > 0;
            return is_known.then(|| format!("waits for member {other}, which has not been mounted yet"));
        }
        if let CollectedLeases::ClockOff(other) = smallest.found {
            return Some(format!(
                "the clock of member {other} is ahead of that of another member by more than the fleet allows; dlio-fs \
                 status --fleet tells more"
            ));
        }
        // By the last new file: earlier looks at the lease do not count.
        let SmallLease { slot, host, standing, .. } = smallest.first_other(self.slot)?;
        let is_silent = *standing == Standing::Here && renewed.saturating_sub(*since) > silent;
        let ago = ago(*since);
        is_silent.then(|| {
            format!(
                "waits for member {slot} on {host}, last seen {ago} ago; mount it again there, or see dlio-fs forget"
            )
        })
    }

    /// The member with the smallest lease, for which the others wait.
    pub(crate) fn last(&self) -> Option<String> {
        let (_, SmallLease { slot, host, .. }) = self.others().min_by_key(|(least, _)| *least)?;
        Some(format!("waits for member {slot} on {host}, which has older changes; see .dlio/stats there"))
    }

    /// Whether the slow tier has all that any member had logged when the reader's clock showed `moment`, and no member
    /// was lost that may have had something that began at `began` or later.
    pub(crate) fn is_all_there(&self, moment: u64, began: u64) -> bool {
        let (Some(seen), Some(first)) = (self.seen, self.smallest().first()) else { return false };
        let lost_before = seen.smallest.lost_before;
        first.least > moment.saturating_add(self.errors)
            && (lost_before == 0 || began.saturating_sub(self.errors) > lost_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::fleet::clocks::{LeaseClock, SeenClock};
    use crate::tiers::fleet::names::NamesEnd;
    use crate::tiers::fleet::rule::{Loss, MemberLease};

    fn seen(least: u64, member: u128, standing: Standing) -> Option<SeenLease> {
        let (host, names) = ("h".repeat(64), NamesEnd::default());
        let (member, clock) = (Uuid::from_u128(member), LeaseClock::At(least));
        let lease = MemberLease {
            member,
            host,
            least,
            beat: 3,
            names,
            lost: None,
            turn: 0,
            copy: 0,
            clock,
            start: member,
            standing,
        };
        let (since, seen_at) = (Duration::ZERO, Duration::ZERO);
        Some(SeenLease { lease, read: 1000, since, seen_at, after: None, clock: SeenClock::Right })
    }

    fn here(least: u64, member: u128) -> Option<SeenLease> {
        seen(least, member, Standing::Here)
    }

    fn at(seconds: u64) -> ReadAt {
        let (uptime, patience) = (Duration::from_secs(seconds), Duration::ZERO);
        ReadAt { began: 0, ended: 0, uptime, has_watched: true, errors: 40, is_right: true, patience }
    }

    /// The file of these leases, as it was read.
    fn read(leases: &[Option<SeenLease>], round: u64, slot: u32, at: ReadAt, seen: &mut Option<SeenSmallest>) {
        let file = SmallestLeases::decode(&SmallestLeases::of(leases, 40, round, 1).encode());
        SeenSmallest::renew(seen, file.expect("readable"), slot, at);
    }

    fn reader<'a>(slot: u32, seen: &'a Option<SeenSmallest>, leases: &'a [Option<SeenLease>]) -> SmallestReader<'a> {
        SmallestReader { own: Uuid::from_u128(u128::from(slot)), slot, seen: seen.as_ref(), leases, errors: 40 }
    }

    #[test]
    fn the_file_reads_back_and_a_half_written_one_is_none() {
        let many: Vec<_> = (0..100).map(|slot| here(u64::MAX - slot, u128::MAX - u128::from(slot))).collect();
        let files = [
            SmallestLeases::of(&many, 0, u64::MAX, u32::MAX),
            SmallestLeases::of(&many[..2], 0, 7, 0),
            SmallestLeases { by: None, ..SmallestLeases::of(&[here(1, 1), None], 0, 0, 5) },
            SmallestLeases { found: CollectedLeases::ClockOff(7), ..SmallestLeases::of(&many[..2], 0, 7, 0) },
        ];
        assert_eq!(files.each_ref().map(|file| file.found.smallest().len()), [KEPT_MOST, 2, 0, 0]);
        for (file, next) in files.iter().zip(files.iter().cycle().skip(1)) {
            let (line, next) = (file.encode(), next.encode());
            assert_eq!((line.len(), SmallestLeases::decode(&line).as_ref()), (SMALLEST_LEN, Some(file)));
            for cut in (0..SMALLEST_LEN).step_by(7) {
                let mixed = [&next[..cut], &line[cut..]].concat();
                let read = SmallestLeases::decode(&mixed);
                assert!(read.is_none() || mixed == line || mixed == next, "{cut}: {read:?}");
            }
        }
    }

    #[test]
    fn an_event_goes_once_the_smallest_of_the_others_are_past_its_start_and_no_further_than_what_is_written() {
        let mut leases: Vec<_> = (0..6_u32).map(|slot| here(100 + 10 * u64::from(slot), u128::from(slot))).collect();
        let mut file = None;
        read(&leases, 1, 0, at(0), &mut file);
        let goes = |slot, leases: &[Option<SeenLease>], start| reader(slot, &file, leases).gate().lets_go(start);
        // Slots 0 to 2 are written. The first one waits for the second, all others for the first.
        assert!(goes(0, &[], 110) && !goes(0, &[], 111), "equal ones by the ids");
        assert!(goes(1, &[], 99) && !goes(1, &[], 100) && !goes(5, &[], 100));
        // The first is past: the second one reads that itself.
        leases[0] = here(500, 0);
        assert_eq!([1, 2].map(|slot| reader(slot, &file, &[]).next_to_read(110)), [Some(0); 2]);
        assert!(goes(1, &leases, 119) && !goes(1, &leases, 121), "slot 3 may be there");
        assert_eq!(reader(1, &file, &leases).next_to_read(110), None, "it may go");
        assert_eq!(reader(1, &file, &leases).next_to_read(121), None, "nothing helps but the next file");
        assert_eq!(reader(2, &file, &leases).next_to_read(115), Some(1));
        assert_eq!(reader(5, &file, &[]).next_to_read(115), None, "all would read it");
        // Both are past, but slot 3 may be where slot 2 was.
        leases[1] = here(500, 1);
        assert!(goes(2, &leases, 119) && !goes(2, &leases, 121));
        assert_eq!(reader(0, &None, &leases).gate(), FleetGate::Shut);
    }

    /// Whenever the file is read: the member may have come back since.
    #[test]
    fn one_that_has_left_counts_as_the_collectors_clock_when_it_read_the_lease() {
        for standing in [Standing::Left, Standing::Forgotten] {
            let leases = [seen(5, 9, standing), here(2000, 8), here(3000, 7)];
            let mut file = None;
            read(&leases, 1, 2, ReadAt { began: 1 << 40, ..at(0) }, &mut file);
            let gate = reader(2, &file, &[]).gate();
            assert!(gate.lets_go(960) && !gate.lets_go(961), "{standing:?}");
        }
    }

    #[test]
    fn who_is_missing_is_named() {
        let silent = Duration::from_secs(30);
        let mut file = None;
        let missing = |file: &Option<SeenSmallest>, now| reader(1, file, &[]).missing(Duration::from_secs(now), silent);
        read(&[here(1, 0), here(2, 1), None], 1, 1, at(0), &mut file);
        assert_eq!(missing(&file, 1).as_deref(), Some("waits for member 2, which has not been mounted yet"));
        assert_eq!(reader(1, &file, &[]).gate(), FleetGate::Shut);
        let leases = [here(1, 0), here(2, 1), here(3, 2)];
        for round in 2..=33 {
            read(&leases, round, 1, at(round), &mut file);
        }
        assert!(
            missing(&file, 33).is_some_and(|why| why.contains("member 0 on h") && why.contains("last seen 31s ago"))
        );
        // The lease was not looked at since, so nothing is said of it.
        read(&leases, 33, 1, at(60), &mut file);
        assert!(missing(&file, 64).is_some_and(|why| why.contains("have not been renewed for 31s")));
        read(&[seen(1, 0, Standing::Left), here(2, 1), here(3, 2)], 34, 1, at(65), &mut file);
        assert_eq!(missing(&file, 66), None);
        assert!(reader(1, &file, &[]).last().is_some_and(|why| why.contains("member 2 on h")));
    }

    /// A claim, or the collector that announces that it is reading.
    #[test]
    fn a_file_that_repeats_another_is_no_reading_of_the_leases() {
        let silent = Duration::from_secs(30);
        let missing = |file: &Option<SeenSmallest>, now| {
            reader(1, file, &[]).missing(Duration::from_secs(now), silent).unwrap_or_default()
        };
        let again = |file: &mut Option<SeenSmallest>, round, seconds| {
            let known = file.as_ref().map(|seen| seen.smallest.clone());
            let line = SmallestLeases::again(known.as_ref(), round, Some(0)).encode();
            SeenSmallest::renew(file, SmallestLeases::decode(&line).expect("readable"), 1, at(seconds));
        };
        let mut file = None;
        again(&mut file, 1, 0);
        assert_eq!(missing(&file, 1), "", "nobody knows who is there");
        read(&[here(1, 0), here(2, 1), here(3, 2)], 2, 1, at(1), &mut file);
        for round in 3..50 {
            again(&mut file, round, round - 1);
            assert!(!missing(&file, round - 1).contains("last seen"), "{round}: {}", missing(&file, round - 1));
        }
        assert!(missing(&file, 48).contains("have not been renewed for 47s"), "{}", missing(&file, 48));
        // This one, which we had not seen, was read before that round.
        let missed = SmallestLeases { round: 60, read: 55, ..file.as_ref().expect("read").smallest.clone() };
        SeenSmallest::renew(&mut file, missed, 1, at(49));
        assert!(!missing(&file, 50).contains("not been renewed"), "{}", missing(&file, 50));
    }

    #[test]
    fn what_all_are_past_is_there_unless_somebody_was_lost_or_has_a_wrong_clock() {
        let ahead = |seen: Option<SeenLease>| seen.map(|seen| SeenLease { clock: SeenClock::Off(41, 0), ..seen });
        let with = |change: &dyn Fn(MemberLease) -> MemberLease| {
            here(500, 2).map(|seen| SeenLease { lease: change(seen.lease.clone()), ..seen })
        };
        let lost = |before| {
            let lost = Some(Loss { from: 0, before, beat: 1, is_accepted: true });
            with(&|lease| MemberLease { lost, ..lease })
        };
        for (third, is_there) in [
            (here(500, 2), true),
            (here(339, 2), false),
            (with(&|lease| lease.forgotten()), false),
            (ahead(here(500, 2)), false),
            (lost(59), true),
            (lost(60), false),
        ] {
            let leases = [here(400, 0), here(450, 1), third];
            let mut file = None;
            read(&leases, 1, 0, at(0), &mut file);
            assert_eq!(reader(0, &file, &[]).is_all_there(300, 100), is_there, "{:?}", leases[2]);
            assert!(!reader(0, &file, &[]).is_all_there(360, 100));
        }
    }
}
