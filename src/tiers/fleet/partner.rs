//! The state of the copy that a member keeps at its partner (`tiers/partner.rs`), and what follows for the lease and
//! for publishing. Pure.
//!
//! The lease says whether a copy may take the member's place, and which one. As long as it may say so,
//!
//! - no group is applied before its intents are in the copy ([`PartnerState::lets_go`]): otherwise the copy would
//!   publish again what is already there;
//! - the lease is no larger than the copy allows ([`PartnerState::limit`]): the `applied` records of the events below
//!   it are in the copy. Otherwise others could remove what the copy would then publish again.
//!
//! A copy becomes good in two rounds. After the first one, publishing and the lease wait for it; the second one, which
//! begins later, has the intents of all that was published before without waiting, and the `applied` records of all
//! that the lease has passed. Only then does the lease name the copy. A failing copy is given up in the other order:
//! first the lease says that there is none, then publishing no longer waits.

use std::time::Duration;

use uuid::Uuid;

use crate::tiers::Lsn;
use crate::tiers::fleet::lines::{checked, with_crc};

/// A partner that takes no byte for this long although asked is given up.
pub(crate) const HANGS: Duration = Duration::from_secs(20);
/// A round that takes longer is reported, because others wait for it.
pub(crate) const LONG: Duration = Duration::from_secs(5);

/// Bytes of a note in its file, which has room for two notes: the one being overwritten may be torn.
pub(crate) const NOTE_LEN: usize = 256;
/// The file of notes in the copy's `.dlio-fs`.
pub(crate) const NOTES: &[u8] = b"partner";

/// What a copy says of itself: it has the log up to here, and everything that this part of the log needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyNote {
    pub(crate) member: Uuid,
    /// The copy's number, never 0; a new copy gets another one.
    pub(crate) copy: u64,
    pub(crate) lsn: Lsn,
    /// The last segment of the log, and how many bytes of it count. Later bytes were not made durable.
    pub(crate) segment: Lsn,
    pub(crate) len: u64,
}

impl CopyNote {
    /// One line of `lines.rs`, padded to [`NOTE_LEN`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        let CopyNote { member, copy, lsn, segment, len } = self;
        let words = format!("copy={copy} member={member} lsn={lsn} segment={segment} len={len}");
        let mut line = with_crc(&words).into_bytes();
        line.resize(NOTE_LEN - 1, b' ');
        line.push(b'\n');
        line
    }

    fn decode(bytes: &[u8]) -> Option<CopyNote> {
        let words = checked(std::str::from_utf8(bytes).ok()?.trim_end())?;
        let mut words = words.split(' ');
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
        let (copy, member) = (value("copy")?.parse().ok()?, Uuid::try_parse(value("member")?).ok()?);
        let (lsn, segment, len) =
            (value("lsn")?.parse().ok()?, value("segment")?.parse().ok()?, value("len")?.parse().ok()?);
        words.next().is_none().then_some(CopyNote { member, copy, lsn, segment, len })
    }

    /// The newest note of a file.
    pub(crate) fn newest(file: &[u8]) -> Option<CopyNote> {
        file.chunks(NOTE_LEN).filter_map(CopyNote::decode).max_by_key(|note| note.lsn)
    }
}

/// How far a round has brought the copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyRound {
    /// The copy's log goes up to here.
    pub(crate) noted: Lsn,
    /// After a power cut now, the copy has every event up to here.
    pub(crate) whole: Lsn,
    /// `end` of the oldest pending event when the round began, and the lease at that time.
    pub(crate) oldest: Option<u64>,
    pub(crate) least: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum CopyStage {
    #[default]
    NoCopy,
    Begun,
    /// Publishing and the lease wait for it.
    Awaited,
    /// It may take the member's place.
    Good,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct PartnerState {
    copy: u64,
    stage: CopyStage,
    round: CopyRound,
    /// The largest lease that may have been written.
    passed: u64,
    /// The copy that the lease on the slow tree may name; 0: certainly none.
    told: u64,
    /// The lease does name it.
    is_named: bool,
    /// Our uptime when the partner answered last, if it is being asked.
    asked: Option<Duration>,
    /// Our uptime when the current round began, or the first round after the last finished one.
    began: Option<Duration>,
    trouble: Option<String>,
}

impl PartnerState {
    /// Begins a copy. `false`: the lease may still name the previous one, which must not be touched.
    pub(crate) fn begin(&mut self, copy: u64) -> bool {
        if self.told != 0 {
            return false;
        }
        (self.copy, self.stage, self.round) = (copy, CopyStage::Begun, CopyRound::default());
        true
    }

    /// Notes that the partner is asked from now on, or has just answered. `false`: this copy was given up.
    pub(crate) fn asked(&mut self, copy: u64, now: Duration) -> bool {
        let is_kept = self.copy == copy && self.stage != CopyStage::NoCopy;
        if is_kept {
            self.asked = Some(now);
        }
        is_kept
    }

    /// Notes that a round begins.
    pub(crate) fn round_begins(&mut self, now: Duration) {
        self.began = self.began.or(Some(now));
    }

    /// How long publishing and the lease have been waiting for a long round.
    pub(crate) fn waits(&self, now: Duration) -> Option<Duration> {
        let began = self.began.filter(|_| self.stage >= CopyStage::Awaited)?;
        Some(now.saturating_sub(began)).filter(|waits| *waits >= LONG)
    }

    /// Notes that a round was cut off, through no fault of the partner.
    pub(crate) fn is_not_asked(&mut self) {
        self.asked = None;
    }

    /// Notes a finished round. `false`: this copy was given up.
    pub(crate) fn done(&mut self, copy: u64, round: CopyRound) -> bool {
        if self.copy != copy || self.stage == CopyStage::NoCopy {
            return false;
        }
        self.stage = match self.stage {
            CopyStage::Begun => CopyStage::Awaited,
            _ => CopyStage::Good,
        };
        (self.round, self.asked, self.began, self.trouble) = (round, None, None, None);
        true
    }

    /// Gives up the copy, which is worthless from here on.
    pub(crate) fn give_up(&mut self, why: String) {
        (self.copy, self.stage, self.asked, self.trouble) = (0, CopyStage::NoCopy, None, Some(why));
        (self.is_named, self.began) = (false, None);
    }

    /// Gives up a copy whose partner hangs. `true`: it did so now.
    pub(crate) fn give_up_hanging(&mut self, now: Duration) -> bool {
        let hangs = self.asked.is_some_and(|at| now.saturating_sub(at) >= HANGS);
        if hangs {
            self.give_up(format!("the partner directory has not answered for {} s", HANGS.as_secs()));
        }
        hangs
    }

    /// The oldest pending event and the lease, as the copy allows them. The caller holds the state lock, and writes a
    /// lease that is no larger.
    ///
    /// Not only a good copy limits the lease: the round that makes it good may have begun before events were applied
    /// that are no longer pending. What the lease had passed before was applied before that round began.
    pub(crate) fn limit(&mut self, oldest: Option<u64>, least: u64) -> (Option<u64>, u64) {
        let (oldest, least) = match self.stage >= CopyStage::Awaited && !left_out!(PartnerLease) {
            // A lease never goes back.
            true => (self.round.oldest, self.round.least.max(self.passed).min(least)),
            false => (oldest, least),
        };
        self.passed = self.passed.max(least);
        (oldest, least)
    }

    /// The copy to name in the next lease; 0: none.
    pub(crate) fn name_copy(&mut self) -> u64 {
        let copy = if self.stage == CopyStage::Good { self.copy } else { 0 };
        if copy != 0 {
            // A failed write may have been done.
            self.told = copy;
        }
        copy
    }

    /// Whether the lease names another copy than it should.
    pub(crate) fn is_to_tell(&self) -> bool {
        self.told != if self.stage == CopyStage::Good { self.copy } else { 0 }
    }

    /// Notes that the lease was written, and names this copy.
    pub(crate) fn named(&mut self, copy: u64) {
        (self.told, self.is_named) = (copy, copy != 0 && copy == self.copy);
    }

    /// Whether a group with these intents may be applied.
    pub(crate) fn lets_go(&self, intents: Lsn) -> bool {
        let is_awaited = self.stage >= CopyStage::Awaited || self.told != 0;
        !is_awaited || self.round.noted >= intents || left_out!(PartnerIntents)
    }

    /// The LSN up to which everything is in a copy that the lease names; 0: there is none.
    pub(crate) fn whole(&self) -> Lsn {
        if self.is_good() { self.round.whole } else { 0 }
    }

    /// Whether a copy could take the member's place now.
    pub(crate) fn is_good(&self) -> bool {
        self.is_named
    }

    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(noted: Lsn, least: u64) -> CopyRound {
        CopyRound { noted, whole: noted, oldest: Some(least), least }
    }

    #[test]
    fn a_torn_note_leaves_the_one_before() {
        let note = |lsn| CopyNote { member: Uuid::from_u128(7), copy: u64::MAX, lsn, segment: 3, len: 1 << 20 };
        let file = [note(9).encode(), note(8).encode()].concat();
        assert_eq!((file.len(), CopyNote::newest(&file)), (2 * NOTE_LEN, Some(note(9))));
        for cut in 0..NOTE_LEN {
            let torn = [&note(10).encode()[..cut], &note(8).encode()[cut..]].concat();
            let newest = CopyNote::newest(&[note(9).encode(), torn.clone()].concat());
            assert!(newest == Some(note(9)) || torn == note(10).encode(), "{cut}");
        }
        assert_eq!(CopyNote::newest(b""), None);
    }

    #[test]
    fn the_lease_names_a_copy_after_publishing_waits_for_it_and_stops_before_it_goes_on() {
        let mut state = PartnerState::default();
        assert!(state.begin(5) && state.lets_go(100), "a copy in the making holds up nobody");
        assert!(state.done(5, round(10, 70)));
        assert!(!state.lets_go(11) && state.lets_go(10), "waits");
        assert_eq!(
            (state.name_copy(), state.limit(None, 90)),
            (0, (Some(70), 70)),
            "what was published before may be missing"
        );
        assert!(state.done(5, round(12, 80)));
        assert_eq!((state.limit(None, 90), state.whole()), ((Some(80), 80), 0), "not told yet");
        assert_eq!((state.name_copy(), state.is_good()), (5, false));
        state.named(5);
        assert_eq!((state.whole(), state.is_to_tell()), (12, false));
        state.give_up("gone".to_owned());
        assert!(!state.lets_go(13) && state.is_to_tell() && state.whole() == 0, "the lease still names it");
        assert!(!state.begin(6) && !state.done(5, round(14, 90)), "nor is it touched");
        assert_eq!((state.name_copy(), state.limit(None, 90)), (0, (None, 90)));
        state.named(0);
        assert!(state.lets_go(13) && state.begin(6));
    }

    #[test]
    fn the_lease_waits_from_the_first_round_on_and_never_goes_back() {
        let mut state = PartnerState::default();
        state.begin(5);
        assert_eq!(state.limit(Some(75), 75), (Some(75), 75), "a copy in the making holds up nobody");
        state.done(5, round(10, 70));
        assert_eq!(state.limit(Some(78), 78).1, 75, "the second round may have begun before this was applied");
        state.done(5, round(12, 78));
        assert_eq!((state.limit(None, 90).1, state.name_copy()), (78, 5));
        state.give_up("gone".to_owned());
        assert_eq!((state.limit(None, 90).1, state.name_copy()), (90, 0), "the others need not wait for no copy");
    }

    #[test]
    fn who_waits_for_a_round_says_since_when() {
        let mut state = PartnerState::default();
        let at = Duration::from_secs;
        state.begin(5);
        state.round_begins(at(1));
        assert_eq!(state.waits(at(100)), None, "a copy in the making holds up nobody");
        state.done(5, round(1, 1));
        assert_eq!(state.waits(at(200)), None, "no round is under way");
        state.round_begins(at(200));
        state.is_not_asked();
        state.round_begins(at(203));
        assert_eq!(
            (state.waits(at(204)), state.waits(at(206))),
            (None, Some(at(6))),
            "one that was cut off was not done"
        );
        state.done(5, round(2, 2));
        assert_eq!(state.waits(at(300)), None);
        state.round_begins(at(300));
        state.give_up("gone".to_owned());
        assert_eq!(state.waits(at(400)), None, "nobody waits for it any more");
    }

    #[test]
    fn a_lease_that_could_not_be_written_may_name_the_copy() {
        let mut state = PartnerState::default();
        state.begin(5);
        state.done(5, round(1, 1));
        state.done(5, round(2, 2));
        assert_eq!(state.name_copy(), 5);
        state.give_up("gone".to_owned());
        assert!(!state.lets_go(3), "nobody knows whether the write was done");
    }

    #[test]
    fn a_partner_that_hangs_is_given_up() {
        let mut state = PartnerState::default();
        state.begin(5);
        assert!(!state.give_up_hanging(HANGS), "it was asked nothing");
        assert!(state.asked(5, Duration::from_secs(1)) && !state.give_up_hanging(HANGS));
        assert!(state.give_up_hanging(HANGS + Duration::from_secs(1)));
        assert!(!state.asked(5, HANGS) && state.trouble().is_some_and(|why| why.contains("has not answered")));
    }
}
