//! A fleet, as one machine sees it for some seconds: who writes leases, by which clock and which start, what is lost, what the
//! slow tier's client keeps back, and what the leases cost.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::finding::DoctorFinding;
use crate::cli::outcome::{Failure, complain};
use crate::cli::tiers;
use crate::mount::{self, MountEntry};
use crate::path::Show as _;
use crate::stats::fleet::{FleetStatus, MemberStanding, MemberStatus, clock_off};
use crate::stats::render::{count, seconds};
use crate::tiers::SlotLook;

const LOOK: Duration = Duration::from_secs(1);
/// For how long a client may believe what it has heard: more is seen late.
const CACHED_MOST: u64 = 3;

/// One look at all slots.
type SlotLooks = Vec<Option<SlotLook>>;

/// Errors: there is no such fleet, or the slow tier does not answer.
pub(super) fn examine(fleet: &str, slow: &Path) -> Result<Vec<DoctorFinding>, Failure> {
    let held = tiers::open("--slow", slow)?;
    tiers::enter(&[(tiers::SLOW, &held)])?;
    let root = tiers::dir(&held)?;
    let mut reader = tiers::fleet_reader(&held, fleet).map_err(Failure::usage)?;
    let (watched, began) = (reader.change_after(), Instant::now());
    complain(format!("watching fleet {fleet} for {} s", watched.as_secs()));
    let mut looks = Vec::new();
    let status = loop {
        looks.push(reader.slots(&*root)?);
        let status = reader.look()?;
        if began.elapsed() >= watched {
            break status;
        }
        thread::sleep(LOOK);
    };
    let mut findings = vec![members(&looks, &status)];
    findings.push(clocks(&status));
    findings.extend(clones(&looks));
    findings.extend(losses(&status, fleet));
    let mounts = mount::mounts().unwrap_or_default();
    let path = slow.canonicalize().unwrap_or_else(|_| slow.to_path_buf());
    findings.extend(mount::holder_of(&path, &mounts).map(client_cache));
    findings.push(cost(status.members.len(), reader.requests()));
    Ok(findings)
}

/// What a list has, or nothing.
fn listed(all: Vec<String>) -> Option<String> {
    (!all.is_empty()).then(|| all.join(", "))
}

fn name(slot: usize, host: &str) -> String {
    if host.is_empty() { format!("member {slot}") } else { format!("member {slot} on {host}") }
}

/// The looks at one slot, in their order.
fn of_slot(looks: &[SlotLooks], slot: usize) -> Vec<&SlotLook> {
    looks.iter().filter_map(|look| look.get(slot)?.as_ref()).collect()
}

fn writes(looks: &[&SlotLook]) -> bool {
    looks.iter().any(|look| looks.first().is_some_and(|first| look.beat != first.beat))
}

/// Who is there, and for whom the others wait.
fn members(looks: &[SlotLooks], status: &FleetStatus) -> DoctorFinding {
    let about = "fleet: members";
    let (mut alive, mut silent, mut missing) = (0, Vec::new(), Vec::new());
    for slot in 0..status.members.len() {
        let of_it = of_slot(looks, slot);
        match of_it.last() {
            None => missing.push(slot.to_string()),
            Some(last) if last.is_here && !writes(&of_it) => silent.push(name(slot, &last.host)),
            Some(last) => alive += u64::from(last.is_here),
        }
    }
    let there = format!("{alive} of {} write leases", count(status.members.len() as u64, "member"));
    match (listed(silent), listed(missing)) {
        (Some(silent), _) => DoctorFinding::warn(
            about,
            format!("{there}; silent: {silent}"),
            "the others wait for them: mount them again there, or see dlio-fs forget",
        ),
        (None, Some(missing)) => DoctorFinding::warn(
            about,
            format!("{there}; never mounted: {missing}"),
            "nothing is published before all of them have been: mount them, or choose another fleet_size and name",
        ),
        (None, None) => DoctorFinding::ok(about, there),
    }
}

fn clocks(status: &FleetStatus) -> DoctorFinding {
    let about = "fleet: clocks";
    let is_off = |member: &&MemberStatus| member.standing == MemberStanding::ClockOff;
    let off = status.members.iter().filter(is_off);
    let told: Vec<String> =
        off.map(|member| clock_off(&name(member.slot as usize, &member.host), member.clock_ahead)).collect();
    // All have one remedy, behind the semicolon.
    let whats: Vec<&str> = told.iter().filter_map(|told| told.split_once("; ")).map(|(what, _)| what).collect();
    match told.first().and_then(|told| told.split_once("; ")) {
        Some((_, remedy)) => DoctorFinding::warn(about, whats.join(", "), remedy),
        None => {
            let bound = humantime::format_duration(status.clock_error);
            DoctorFinding::ok(about, format!("no member's is seen to be off by more than the bound, {bound}"))
        }
    }
}

/// Two daemons with one fast tier: the last start is not the one whose leases are written, or both write them in turn.
fn clones(looks: &[SlotLooks]) -> Vec<DoctorFinding> {
    let slots = looks.first().map_or(0, Vec::len);
    let clone = |slot: usize| {
        let of_it = of_slot(looks, slot);
        let last = of_it.last().filter(|last| last.is_here && !last.start.is_empty() && writes(&of_it))?;
        let is_other = |look: &&SlotLook| look.last_start.as_ref().is_some_and(|(start, _)| *start != look.start);
        let other = last.last_start.as_ref().filter(|_| of_it.iter().all(is_other));
        // One that is mounted anew meanwhile changes its start once.
        let starts: BTreeSet<&str> = of_it.iter().map(|look| &*look.start).collect();
        let changes = of_it.windows(2).filter(|pair| matches!(pair, [a, b] if a.start != b.start)).count();
        let elsewhere = match other {
            Some((_, host)) => format!(", and on {host}"),
            None if changes >= starts.len() => ", and by another daemon in turn".to_owned(),
            None => return None,
        };
        Some(DoctorFinding::warn(
            "fleet: copies",
            format!("the fast tier of {} is mounted there{elsewhere}", name(slot, &last.host)),
            "a fast tier was copied: unmount one of them, and save what it has pending with `dlio-fs rescue`",
        ))
    };
    let found: Vec<DoctorFinding> = (0..slots).filter_map(clone).collect();
    match found.is_empty() {
        true => vec![DoctorFinding::ok("fleet: copies", "no fast tier is mounted twice")],
        false => found,
    }
}

fn losses(status: &FleetStatus, fleet: &str) -> Vec<DoctorFinding> {
    let lost = status.members.iter().filter(|member| member.lost_from.is_some() && !member.loss_accepted);
    let lost = lost.map(|member| name(member.slot as usize, &member.host)).collect();
    let finding = |lost| {
        let found = format!("something may be lost in the place of {lost}");
        let remedy =
            format!("see dlio-fs status --fleet; if that is all right: dlio-fs accept-loss {fleet} --slow DIR");
        DoctorFinding::warn("fleet: losses", found, remedy)
    };
    listed(lost).map(finding).into_iter().collect()
}

/// What the client of the slow tier's server believes without asking.
fn client_cache(holder: &MountEntry) -> DoctorFinding {
    let about = "fleet: slow tier";
    let at = format!("{} at {}", holder.fs_type, holder.at.shown());
    if !holder.fs_type.starts_with("nfs") {
        let known = ["ext4", "xfs", "btrfs", "tmpfs", "overlay"].contains(&&*holder.fs_type);
        let what = if known { "it is on this machine" } else { "nothing is known of what its client keeps" };
        return DoctorFinding::ok(about, format!("{at}: {what}"));
    }
    let late = nfs_believes(&holder.options);
    match late.is_empty() {
        true => DoctorFinding::ok(about, format!("{at}: its client asks for names again soon enough")),
        false => DoctorFinding::warn(
            about,
            format!("{at}: {}", late.join(", ")),
            "names that others publish are seen that much later: mount it with -o lookupcache=none,actimeo=1",
        ),
    }
}

fn nfs_believes(options: &str) -> Vec<String> {
    let options: Vec<&str> = options.split(',').collect();
    if options.contains(&"noac") {
        return Vec::new();
    }
    let value = |key: &str| options.iter().find_map(|option| option.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
    let names = (!options.contains(&"lookupcache=none")).then(|| "it believes names (no lookupcache=none)".to_owned());
    // The kernel's own defaults, which it does not list.
    let longest = ["acregmax", "acdirmax"].map(|key| value("actimeo").or(value(key)).unwrap_or(60)).into_iter().max();
    let longest = longest.filter(|longest: &u64| *longest > CACHED_MOST);
    let attrs =
        longest.map(|longest| format!("it believes attributes for up to {}", seconds(Duration::from_secs(longest))));
    names.into_iter().chain(attrs).collect()
}

fn cost(members: usize, (idle, busy): (u64, u64)) -> DoctorFinding {
    let members = count(members as u64, "member");
    let found =
        format!("for {members} about {idle} requests a second with nothing pending, and {busy} with all of them busy");
    DoctorFinding::ok("fleet: leases", found)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn look(beat: u64, start: &str, last: &str) -> Option<SlotLook> {
        let last_start = Some((last.to_owned(), "n9".to_owned()));
        Some(SlotLook { host: "n1".to_owned(), is_here: true, beat, start: start.to_owned(), last_start })
    }

    fn status(members: Vec<MemberStatus>) -> FleetStatus {
        FleetStatus { members, clock_error: Duration::from_millis(20), ..FleetStatus::default() }
    }

    #[test]
    fn a_fast_tier_that_is_mounted_twice_is_named_and_one_that_is_mounted_anew_is_not() {
        let of = |looks: &[Option<SlotLook>]| {
            let looks: Vec<SlotLooks> = looks.iter().map(|look| vec![look.clone()]).collect();
            let found = clones(&looks).remove(0);
            (found.verdict, found.found)
        };
        assert_eq!(of(&[look(1, "a", "a"), look(2, "a", "a")]).0, Verdict::Ok);
        assert_eq!(of(&[look(1, "a", "a"), look(2, "a", "b"), look(3, "b", "b")]).0, Verdict::Ok, "mounted anew");
        let (verdict, found) = of(&[look(1, "a", "b"), look(2, "a", "b")]);
        assert!(verdict == Verdict::Warn && found.contains("member 0 on n1 is mounted there, and on n9"), "{found}");
        assert_eq!(of(&[look(1, "a", "b"), look(1, "a", "b")]).0, Verdict::Ok, "cut off before its first lease");
        let (verdict, found) = of(&[look(1, "a", "a"), look(2, "b", "b"), look(3, "a", "b"), look(4, "b", "b")]);
        assert!(verdict == Verdict::Warn && found.contains("in turn"), "{found}");
    }

    #[test]
    fn who_is_silent_or_was_never_there_is_named() {
        let of = |first: SlotLooks, last: SlotLooks| {
            let all = status(vec![MemberStatus::default(); 2]);
            let found = members(&[first, last], &all);
            (found.verdict, found.found)
        };
        let (a, b) = (|beat| look(beat, "a", "a"), |beat| look(beat, "b", "b"));
        assert_eq!(of(vec![a(1), b(1)], vec![a(2), b(2)]), (Verdict::Ok, "2 of 2 members write leases".to_owned()));
        assert!(of(vec![a(1), b(1)], vec![a(2), b(1)]).1.ends_with("; silent: member 1 on n1"));
        assert!(of(vec![a(1), None], vec![a(2), None]).1.ends_with("; never mounted: 1"));
        let left = |beat| b(beat).map(|look| SlotLook { is_here: false, ..look });
        assert_eq!(of(vec![a(1), left(1)], vec![a(2), left(1)]).0, Verdict::Ok);
    }

    #[test]
    fn clocks_and_losses_are_told_with_their_remedies() {
        let member = |standing, clock_ahead| MemberStatus { standing, clock_ahead, ..MemberStatus::default() };
        let off =
            clocks(&status(vec![member(MemberStanding::ClockOff, Some(-7.5)), member(MemberStanding::Here, None)]));
        assert!(off.verdict == Verdict::Warn && off.found.contains("behind this machine's by 7s 500ms"), "{off:?}");
        assert!(off.remedy.is_some_and(|remedy| remedy.contains("chrony")));
        assert_eq!(clocks(&status(vec![member(MemberStanding::Here, None)])).verdict, Verdict::Ok);
        let lost = MemberStatus { lost_from: Some(Duration::ZERO), ..MemberStatus::default() };
        let accepted = MemberStatus { loss_accepted: true, ..lost.clone() };
        assert_eq!((losses(&status(vec![lost]), "f").len(), losses(&status(vec![accepted]), "f").len()), (1, 0));
    }

    #[test]
    fn what_an_nfs_client_believes_is_read_from_its_options() {
        assert_eq!(nfs_believes("rw,vers=4.2").len(), 2);
        assert_eq!(nfs_believes("rw,acregmin=1,acregmax=1,acdirmin=1,acdirmax=1,lookupcache=none"), [""; 0]);
        assert_eq!(nfs_believes("rw,actimeo=1,lookupcache=none"), [""; 0]);
        assert_eq!(nfs_believes("rw,lookupcache=none"), ["it believes attributes for up to 60 s"]);
        assert_eq!(nfs_believes("rw,lookupcache=pos,actimeo=0").len(), 1);
        assert_eq!(nfs_believes("rw,noac"), [""; 0]);
    }
}
