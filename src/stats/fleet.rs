//! What is known of all members of a fleet, and the verdict: up to which moment everything that was logged on any of
//! them is on the slow tier. Pure: `.dlio/fleet` and the commands show it, `tiers/fleet/rule.rs` makes it from leases.
//!
//! Moments are by the clock of the machine that reads. A member is *up to* a moment if the slow tier has everything that
//! the member had logged when that clock showed the moment: so much is certain with all clocks within their bound. Since
//! a call is answered after its change is logged, that includes all that was answered by then.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::render::{count, seconds};
use super::status::FleetFigures;
use crate::json;

/// A fleet, as one reader of its leases knows it. The JSON keys are the field names.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct FleetStatus {
    pub fleet: String,
    /// The bound for the errors of all clocks.
    #[serde(with = "json::seconds")]
    pub clock_error: Duration,
    /// The reader's clock when this was asked, rounded up: since 1970.
    #[serde(with = "json::date")]
    pub asked_at: Duration,
    /// How long before that the leases were read.
    #[serde(with = "json::optional_seconds")]
    pub read_ago: Option<Duration>,
    /// By slot.
    pub members: Vec<MemberStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct MemberStatus {
    pub slot: u32,
    /// Empty if it was never mounted.
    pub host: String,
    pub standing: MemberStanding,
    /// Rounded down. `None`: nothing is certain.
    #[serde(with = "json::optional_date")]
    pub up_to: Option<Duration>,
    /// How long its lease had been the same when it was read last, as far as the reader has watched.
    #[serde(with = "json::seconds")]
    pub unchanged_for: Duration,
    /// What was logged in this place from then on may be missing on the slow tier: by a forgotten member, or by one whose
    /// place a copy took. Rounded down.
    #[serde(with = "json::optional_date")]
    pub lost_from: Option<Duration>,
    /// And until then; `None`: nobody knows until when. Rounded up.
    #[serde(with = "json::optional_date")]
    pub lost_before: Option<Duration>,
    /// Somebody has accepted that: the verdicts leave it out.
    pub loss_accepted: bool,
    /// Its clock is ahead of the reader's by at least so many seconds, or behind it.
    pub clock_ahead: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberStanding {
    #[default]
    NotMounted,
    Here,
    /// Its lease has not changed for half a minute.
    Silent,
    /// It was unmounted with nothing pending.
    Left,
    /// Somebody has said that it does not come back. `up_to` stays where it was.
    Forgotten,
    /// Its clock, or the reader's, is further off than the fleet allows: its leases say so, or its own machine does.
    ClockOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FleetVerdict {
    Safe,
    /// Safe, but for what was lost with members that did not come back.
    SafeBut,
    /// Something is only on a fast tier, as far as the leases tell.
    NotSafe,
    /// The same, and somebody must do something.
    Held,
}

/// What a verdict is about: from when on it was made, and when it was whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeWithin {
    pub began: Duration,
    pub finished: Duration,
}

/// The verdict about one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetAnswer<'a> {
    pub verdict: FleetVerdict,
    #[serde(with = "json::date")]
    pub as_of: Duration,
    /// Who is not up to that moment, with the remedy.
    pub why: Option<String>,
    #[serde(flatten)]
    pub status: &'a FleetStatus,
}

/// What is wrong with the clock of this member, and what to do. `ahead`: by so many seconds at least; `None`: its own machine
/// says that it is.
pub(crate) fn clock_off(name: &str, ahead: Option<f64>) -> String {
    let Some(ahead) = ahead else {
        return format!(
            "waits for {name}, whose machine says that its clock is not synchronized well enough for the fleet; let chrony or \
             systemd-timesyncd run there, or see dlio-fs clock-error"
        );
    };
    let by = humantime::format_duration(Duration::from_millis((ahead.abs() * 1e3) as u64));
    let is = if ahead < 0.0 { "behind this machine's" } else { "ahead of this machine's" };
    format!(
        "the clock of {name} is {is} by {by} or more, which the fleet does not allow; let chrony or systemd-timesyncd run on \
         both"
    )
}

impl MemberStatus {
    fn name(&self) -> String {
        format!("member {} on {}", self.slot, self.host)
    }

    fn is_up_to(&self, moment: Duration) -> bool {
        self.up_to.is_some_and(|up_to| up_to >= moment)
    }

    fn is_forgotten(&self) -> bool {
        self.standing == MemberStanding::Forgotten
    }

    /// Whether a part of this may be lost, be that accepted or not.
    pub fn may_have_lost(&self, made: MadeWithin) -> bool {
        self.lost_from.is_some_and(|from| from < made.finished)
            && self.lost_before.is_none_or(|before| made.began <= before)
    }

    fn loss(&self, now: Duration) -> String {
        let of = |at: Option<Duration>| at.filter(|at| !at.is_zero()).map(|at| moment(at, now));
        let from = of(self.lost_from);
        if self.is_forgotten() {
            let after = from.map_or_else(String::new, |from| format!(" after {from}"));
            return format!("{}, which was forgotten, logged{after}", self.name());
        }
        let from = from.map_or_else(String::new, |from| format!(" from {from}"));
        let until = of(self.lost_before).map_or_else(String::new, |until| format!(" until {until}"));
        format!("was logged{from}{until} on the node that {} replaces", self.name())
    }

    /// Why a member that is not up to the moment is not, and whether somebody must do something about it.
    fn delay(&self, now: Duration) -> (bool, String) {
        let name = self.name();
        match self.standing {
            MemberStanding::NotMounted => {
                (true, format!("waits for member {}, which has not been mounted yet", self.slot))
            }
            MemberStanding::Silent => {
                let ago = seconds(self.unchanged_for);
                let remedy = "mount it again there, or see dlio-fs forget";
                (true, format!("waits for {name}, whose lease has not changed for {ago}; {remedy}"))
            }
            MemberStanding::ClockOff => (true, clock_off(&name, self.clock_ahead)),
            MemberStanding::Here | MemberStanding::Left | MemberStanding::Forgotten => {
                let since = self.up_to.map_or_else(String::new, |up_to| format!(" from {}", moment(up_to, now)));
                (false, format!("waits for {name}, which may have changes{since} on its fast tier only"))
            }
        }
    }
}

impl FleetStatus {
    /// The moment that all members but forgotten ones are up to, if there is one.
    pub fn up_to(&self) -> Option<Duration> {
        let members = self.members.iter().filter(|member| !member.is_forgotten());
        members.map(|member| member.up_to).min().unwrap_or(Some(self.asked_at))
    }

    /// The figures; none before the leases were read.
    pub fn figures(&self) -> Option<FleetFigures> {
        let read_at = self.asked_at.saturating_sub(self.read_ago?);
        let count = |standing| self.members.iter().filter(|member| member.standing == standing).count() as u64;
        Some(FleetFigures {
            here: count(MemberStanding::Here),
            silent: count(MemberStanding::Silent),
            left: count(MemberStanding::Left),
            forgotten: count(MemberStanding::Forgotten),
            not_mounted: count(MemberStanding::NotMounted),
            clock_off: count(MemberStanding::ClockOff),
            behind: self.up_to().map(|up_to| read_at.saturating_sub(up_to)),
        })
    }

    /// Whether the slow tier has everything that any member had logged when the reader's clock showed `as_of`.
    pub fn answer(&self, as_of: Duration) -> FleetAnswer<'_> {
        self.answer_about(as_of, MadeWithin { began: Duration::ZERO, finished: as_of })
    }

    /// The same, but that of what was lost only what may be a part of this counts.
    pub fn answer_about(&self, as_of: Duration, made: MadeWithin) -> FleetAnswer<'_> {
        if self.read_ago.is_none() {
            let why = Some("the leases of the members have not been read yet".to_owned());
            return FleetAnswer { verdict: FleetVerdict::NotSafe, as_of, why, status: self };
        }
        let late: Vec<_> =
            self.members.iter().filter(|member| !member.is_forgotten() && !member.is_up_to(as_of)).collect();
        let lost: Vec<_> =
            self.members.iter().filter(|member| !member.loss_accepted && member.may_have_lost(made)).collect();
        let delays = late.iter().map(|member| (member.up_to, member.delay(self.asked_at)));
        // The one that is the furthest behind, but first of all one that needs help.
        let worst = delays.min_by_key(|(up_to, (needs_help, _))| (!needs_help, *up_to));
        let (verdict, why) = match worst {
            Some((_, (needs_help, why))) => {
                let others = match late.len() as u64 - 1 {
                    0 => String::new(),
                    n => format!("; and for {}", count(n, "other")),
                };
                (if needs_help { FleetVerdict::Held } else { FleetVerdict::NotSafe }, Some(format!("{why}{others}")))
            }
            None if lost.is_empty() => (FleetVerdict::Safe, None),
            None => (FleetVerdict::SafeBut, Some(self.lost(&lost))),
        };
        FleetAnswer { verdict, as_of, why, status: self }
    }

    fn lost(&self, lost: &[&MemberStatus]) -> String {
        let all: Vec<String> = lost.iter().map(|member| member.loss(self.asked_at)).collect();
        format!("what {} may be missing on the slow tier; see dlio-fs accept-loss", all.join(" and what "))
    }

    /// The verdict about the latest moment for which there is one.
    fn latest(&self) -> FleetAnswer<'_> {
        self.answer(self.up_to().unwrap_or(self.asked_at))
    }

    /// The text of `.dlio/fleet`. Ends with a newline.
    pub fn text(&self) -> String {
        self.latest().text()
    }

    /// The same in a few words.
    pub fn short(&self) -> String {
        let latest = self.latest();
        match latest.verdict {
            FleetVerdict::Safe => format!("SAFE up to {} ago", seconds(self.asked_at.saturating_sub(latest.as_of))),
            FleetVerdict::SafeBut => "SAFE, but for what was lost".to_owned(),
            FleetVerdict::NotSafe => "NOT SAFE".to_owned(),
            FleetVerdict::Held => "HELD".to_owned(),
        }
    }

    /// The content of `.dlio/fleet.json`. Ends with a newline.
    pub fn json(&self) -> String {
        json::document(&self.latest())
    }
}

impl FleetAnswer<'_> {
    /// Whether all that is not lost for good is on the slow tier.
    pub fn is_final(&self) -> bool {
        matches!(self.verdict, FleetVerdict::Safe | FleetVerdict::SafeBut)
    }

    /// One line, without a newline.
    pub fn line(&self) -> String {
        let as_of = moment(self.as_of, self.status.asked_at);
        let why = self.why.as_deref().unwrap_or_default();
        match self.verdict {
            FleetVerdict::Safe => {
                let members = count(self.status.members.len() as u64, "member");
                format!("SAFE as of {as_of}: what {members} had logged by then is on the slow tier")
            }
            FleetVerdict::SafeBut => format!("SAFE as of {as_of}, but {why}"),
            FleetVerdict::NotSafe => format!("NOT SAFE as of {as_of}: {why}"),
            FleetVerdict::Held => format!("NOT SAFE as of {as_of}; HELD: {why}"),
        }
    }

    /// The line, and one for each member. Ends with a newline.
    pub fn text(&self) -> String {
        let FleetStatus { fleet, clock_error, asked_at, read_ago, members } = self.status;
        let mut out = self.line();
        let read = read_ago.map_or_else(|| "not read yet".to_owned(), |ago| format!("read {} ago", seconds(ago)));
        let error = humantime::format_duration(*clock_error);
        let mut line = |text: String| writeln!(out, "{text}").expect("formatting into memory");
        line(format!(
            "\n\nfleet {fleet}, {}, clocks within {error}, leases {read}",
            count(members.len() as u64, "member")
        ));
        // Of leases that were not read nothing is known, not even that they are missing.
        for member in members.iter().filter(|_| read_ago.is_some()) {
            let up_to = member.up_to.map_or_else(|| "unknown".to_owned(), |up_to| moment(up_to, *asked_at));
            let host = if member.host.is_empty() { "-" } else { &member.host };
            let lost = match (member.lost_from, member.loss_accepted) {
                (None, _) => "",
                (Some(_), false) => "; something may be lost",
                (Some(_), true) => "; a loss was accepted",
            };
            line(format!(
                "{:>4}  {:<24} {:<24} on the slow tier up to {up_to}{lost}",
                member.slot,
                host,
                member.standing_text()
            ));
        }
        out
    }
}

impl MemberStatus {
    pub fn standing_text(&self) -> String {
        match self.standing {
            MemberStanding::NotMounted => "not mounted yet".to_owned(),
            MemberStanding::Here => "here".to_owned(),
            MemberStanding::Silent => format!("silent for {}", seconds(self.unchanged_for)),
            MemberStanding::Left => "left".to_owned(),
            MemberStanding::Forgotten => "forgotten".to_owned(),
            MemberStanding::ClockOff => "clock off".to_owned(),
        }
    }
}

/// A date, and how long ago it was.
fn moment(since_1970: Duration, now: Duration) -> String {
    let date = json::timestamp(since_1970).unwrap_or_else(|| "1970".to_owned());
    match now.checked_sub(since_1970).filter(|ago| ago.as_secs() > 0) {
        Some(ago) => format!("{date} ({} ago)", seconds(ago)),
        None => date,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn member(slot: u32, standing: MemberStanding, up_to: Option<u64>) -> MemberStatus {
        let unchanged_for = Duration::from_secs(if standing == MemberStanding::Silent { 47 } else { 0 });
        let host = if standing == MemberStanding::NotMounted { String::new() } else { format!("node{slot}") };
        let up_to = up_to.map(Duration::from_secs);
        let lost_from = up_to.filter(|_| standing == MemberStanding::Forgotten);
        MemberStatus { slot, host, standing, up_to, unchanged_for, lost_from, ..MemberStatus::default() }
    }

    fn fleet(members: Vec<MemberStatus>) -> FleetStatus {
        FleetStatus {
            fleet: "job".to_owned(),
            clock_error: Duration::from_millis(20),
            asked_at: Duration::from_secs(NOW),
            read_ago: Some(Duration::from_secs(1)),
            members,
        }
    }

    #[test]
    fn all_must_be_up_to_the_moment_and_whoever_is_not_is_named() {
        use MemberStanding::{ClockOff, Forgotten, Here, Left, NotMounted, Silent};
        let of = |other: MemberStatus| fleet(vec![member(0, Here, Some(NOW)), other]);
        let cases = [
            (member(1, Here, Some(NOW)), FleetVerdict::Safe, ""),
            (member(1, Left, Some(NOW)), FleetVerdict::Safe, ""),
            (member(1, Silent, Some(NOW)), FleetVerdict::Safe, ""),
            (
                member(1, Here, Some(NOW - 34)),
                FleetVerdict::NotSafe,
                "waits for member 1 on node1, which may have changes from 2027-01-15T07:59:26.000Z (34 s ago)",
            ),
            (member(1, Here, None), FleetVerdict::NotSafe, "waits for member 1"),
            (member(1, Left, Some(NOW - 1)), FleetVerdict::NotSafe, "waits for member 1"),
            (member(1, Silent, Some(NOW - 50)), FleetVerdict::Held, "has not changed for 47 s"),
            (member(1, NotMounted, None), FleetVerdict::Held, "member 1, which has not been mounted yet"),
            (member(1, ClockOff, None), FleetVerdict::Held, "member 1 on node1, whose machine says that its clock"),
            (
                MemberStatus { clock_ahead: Some(0.196), ..member(1, ClockOff, None) },
                FleetVerdict::Held,
                "the clock of member 1 on node1 is ahead of this machine's by 196ms or more",
            ),
            (member(1, Forgotten, Some(NOW)), FleetVerdict::Safe, ""),
            (
                member(1, Forgotten, Some(NOW - 60)),
                FleetVerdict::SafeBut,
                "what member 1 on node1, which was forgotten, logged after",
            ),
        ];
        for (other, verdict, why) in cases {
            let status = of(other);
            let answer = status.answer(Duration::from_secs(NOW));
            assert_eq!(answer.verdict, verdict, "{answer:?}");
            assert!(answer.why.as_deref().unwrap_or_default().contains(why), "{answer:?}");
            assert_eq!(answer.why.is_none(), verdict == FleetVerdict::Safe);
        }
    }

    /// A spare node that takes the place of a lost one brings nothing back: the verdict was SAFE from then on.
    #[test]
    fn a_loss_stays_in_the_verdicts_until_somebody_accepts_it() {
        let at = Duration::from_secs;
        let next = MemberStatus {
            lost_from: Some(at(NOW - 90)),
            lost_before: Some(at(NOW - 20)),
            ..member(1, MemberStanding::Here, Some(NOW))
        };
        let status = fleet(vec![member(0, MemberStanding::Here, Some(NOW)), next.clone()]);
        let answer = status.answer(at(NOW));
        assert_eq!(answer.verdict, FleetVerdict::SafeBut);
        let why = answer.why.unwrap_or_default();
        assert!(
            why.contains("(90 s ago) until ") && why.contains("on the node that member 1 on node1 replaces"),
            "{why}"
        );
        // What was whole before, or was begun afterwards, lacks nothing.
        let about = |began, finished| {
            status.answer_about(at(NOW), MadeWithin { began: at(NOW - began), finished: at(NOW - finished) }).verdict
        };
        assert_eq!([about(200, 90), about(19, 5)], [FleetVerdict::Safe; 2]);
        assert_eq!([about(200, 89), about(20, 5), about(60, 50)], [FleetVerdict::SafeBut; 3]);
        assert_eq!(status.answer(at(NOW - 90)).verdict, FleetVerdict::Safe);
        let accepted = fleet(vec![MemberStatus { loss_accepted: true, ..next }]);
        assert_eq!(accepted.answer(at(NOW)).verdict, FleetVerdict::Safe);
        assert!(accepted.text().contains("a loss was accepted"), "{}", accepted.text());
    }

    #[test]
    fn what_was_not_read_says_nothing() {
        let unread = FleetStatus { read_ago: None, ..fleet(vec![member(0, MemberStanding::NotMounted, None)]) };
        let answer = unread.answer(Duration::from_secs(NOW));
        assert_eq!(answer.verdict, FleetVerdict::NotSafe);
        let text = unread.text();
        assert!(text.contains("have not been read yet") && !text.contains("not mounted"), "{text}");
    }

    #[test]
    fn one_that_needs_help_is_named_before_one_that_is_slow() {
        use MemberStanding::{Here, Silent};
        let status = fleet(vec![
            member(0, Here, Some(NOW - 90)),
            member(1, Silent, Some(NOW - 40)),
            member(2, Here, Some(NOW - 10)),
        ]);
        let line = status.answer(Duration::from_secs(NOW)).line();
        assert!(line.contains("HELD: waits for member 1 on node1") && line.ends_with("; and for 2 others"), "{line}");
        // Of the moment that even the last one is up to.
        assert_eq!(status.up_to(), Some(Duration::from_secs(NOW - 90)));
        assert!(status.text().starts_with("SAFE as of 2027-01-15T07:58:30.000Z (90 s ago)"), "{}", status.text());
    }

    #[test]
    fn the_figures_are_those_of_the_reading() {
        use MemberStanding::{Forgotten, Here, NotMounted, Silent};
        let members =
            vec![member(0, Here, Some(NOW - 3)), member(1, Silent, Some(NOW - 41)), member(2, Forgotten, Some(7))];
        let status = fleet(members);
        let expected = FleetFigures {
            here: 1,
            silent: 1,
            forgotten: 1,
            behind: Some(Duration::from_secs(40)),
            ..FleetFigures::default()
        };
        assert_eq!(status.figures(), Some(expected));
        assert_eq!(FleetStatus { read_ago: None, ..status }.figures(), None);
        let missing = fleet(vec![member(0, Here, Some(NOW)), member(1, NotMounted, None)]).figures().expect("read");
        assert_eq!((missing.not_mounted, missing.behind), (1, None));
    }

    #[test]
    fn a_document_reads_back() {
        use MemberStanding::{Forgotten, Here, NotMounted};
        let status =
            fleet(vec![member(0, Here, Some(7)), member(1, NotMounted, None), member(2, Forgotten, Some(NOW))]);
        let read: FleetStatus = serde_json::from_str(&status.json()).expect("our own JSON");
        assert_eq!(read, status);
        let text = status.text();
        assert!(text.lines().count() == 6 && text.contains("   1  -                        not mounted yet"), "{text}");
    }
}
