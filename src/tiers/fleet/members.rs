//! The fleet's files on the slow tree, in `.dlio-fs/fleet/NAME`: `fleet` has what all members agree on, and `0`, `1`,
//! ... are the members' slots, each with one lease. `0.pub`, `1.pub`, ... have the names that each has published
//! (`names.rs`). `smallest` has the smallest leases, if the fleet is large (`smallest.rs`).
//!
//! Readers open all slots by name and never list the directory: a listing may be a minute old on a network file system.
//! A lease is overwritten in place, so that a reader with an open descriptor sees the new one.
//!
//! The slot of a member that has left goes to that member if it comes back first, or else to another one; the slot of a
//! forgotten member only to another one:
//!
//! 1. Make the *claim*, a file named after the slot, the member and the beat of the lease to be replaced: one can be
//!    made for each lease. A member that finds another's claim has no right to the slot.
//! 2. Another member renames a new file over the slot's: later writes of the old member are lost.
//! 3. Write the lease, before anything is logged.
//!
//! After a crash the claim exists, and its maker continues.
//!
//! Beside a slot, `0.accepted` is the beat up to which an operator has accepted the losses of its former members. It is
//! read only while the slot's lease names a loss.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use uuid::Uuid;

use crate::config::{FLEET_MAX, FleetSettings};
use crate::error::{Context, Error, Result};
use crate::path::escape;
use crate::tiers::disk::errors::{absent_is_none, is_silence};
use crate::tiers::disk::layout::{OURS, ensure_dir, is_taken, read_text, remove_leftover, replace_text};
use crate::tiers::disk::{Access, Dir, File, RenameMode, Stat};
use crate::tiers::fleet::names::{
    ChangedName, FILE_MAX, HEADER_LEN, NamesEnd, NamesFrom, decode_names, goes_on, header,
};
use crate::tiers::fleet::periods::COLLECT_ABOVE;
use crate::tiers::fleet::rule::{LEASE_LEN, Loss, MemberLease, Standing};
use crate::tiers::fleet::smallest::{SMALLEST_LEN, SmallestLeases};

/// For how many seconds a claim is kept.
const CLAIM_KEPT_S: i64 = 24 * 60 * 60;
/// How often, and at what interval, an unreadable lease is read again at a start.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Members {
    dir: Arc<dyn Dir>,
    own: Arc<dyn File>,
    pub(super) agreed: Agreed,
}

impl Members {
    /// Finds the member's slot, or takes the first slot that is free or given up. Returns the slot's number and its
    /// lease.
    pub(super) fn join(
        ours: &dyn Dir,
        settings: &FleetSettings,
        usual: Duration,
        first: &MemberLease,
    ) -> Result<(Members, u32, MemberLease)> {
        let dir = ensure_dir(&*ensure_dir(ours, b"fleet")?, settings.name.as_bytes())?;
        let agreed = agree(&*dir, settings, usual, first)?;
        let was_forgotten = || {
            Error::refused(
                format!("this fast tier was forgotten by fleet {}, which has gone on without it", settings.name),
                "save what it has pending with `dlio-fs rescue`, then use an empty fast tier",
            )
        };
        if read_text(&*dir, &forgotten_name(first))?.is_some() {
            return Err(was_forgotten());
        }
        if is_handed_on(&*dir, first)? {
            return Err(was_handed_on(&settings.name));
        }
        for slot in slots_from(first.member, settings.size) {
            let lease = match read_settled(&*dir, slot)? {
                None if make(&*dir, slot_name(slot).as_bytes(), first.member, &first.encode())? => Some(first.clone()),
                // Another member has taken it at the same moment.
                None => read_settled(&*dir, slot)?,
                lease => lease,
            };
            let Some(lease) = lease.filter(|lease| lease.member == first.member) else { continue };
            if lease.standing == Standing::Forgotten {
                return Err(was_forgotten());
            }
            check_turn(&settings.name, &lease, first)?;
            if lease.standing == Standing::Here || claim(&*dir, slot, &lease, first)? {
                return Members::of(dir, &settings.name, agreed, slot, lease);
            }
        }
        for slot in 0..settings.size {
            let given_up = read_settled(&*dir, slot)?.filter(|lease| lease.standing != Standing::Here);
            let Some(lease) = given_up.filter(|lease| lease.member != first.member) else { continue };
            if claim(&*dir, slot, &lease, first)? {
                // The beats of a slot only grow, so that no two claims have one name.
                let (beat, lost) = (lease.beat + 1, lease.lost);
                // Nor do a slot's stamps go back when its next member's clock is behind: a member may have read the
                // last lease. No member waits for a forgotten one's events, and at least a minute lies between it and
                // the next.
                let least = if lease.standing == Standing::Left { lease.least } else { 0 };
                let first = MemberLease { least, beat, names: lease.names, lost, ..first.clone() };
                replace(&*dir, slot, &first)?;
                return Members::of(dir, &settings.name, agreed, slot, first);
            }
        }
        Err(Error::refused(
            format!("all {} places of fleet {} are taken by other fast tiers", settings.size, settings.name),
            "unmount one of them with nothing pending, forget one that is lost, or choose another name for the fleet",
        ))
    }

    fn of(
        dir: Arc<dyn Dir>,
        fleet: &str,
        agreed: Agreed,
        slot: u32,
        lease: MemberLease,
    ) -> Result<(Members, u32, MemberLease)> {
        let own = dir.open(slot_name(slot).as_bytes(), Access::ReadWrite).at("open", label(fleet, slot))?;
        // The place may have gone to a copy since the lease was read: then this file is the copy's.
        if read_lease(&*own, slot)?.is_some_and(|opened| opened.turn != lease.turn && !left_out!(PartnerTurn)) {
            return Err(was_handed_on(fleet));
        }
        Ok((Members { dir, own, agreed }, slot, lease))
    }

    /// The fleet's directory.
    pub(super) fn dir(&self) -> &Arc<dyn Dir> {
        &self.dir
    }

    /// Reads one member's lease. `None`: the slot was never taken. An unreadable lease, which is being written, is an
    /// error.
    pub(super) fn read(&self, slot: u32) -> Result<Option<MemberLease>> {
        read(&*self.dir, slot)
    }

    /// Whether the fleet's agreed settings are still those of this member's join.
    pub(super) fn still_agree(&self) -> Result<bool> {
        let same = |agreed: Agreed| (agreed.size, agreed.error) == (self.agreed.size, self.agreed.error);
        Ok(agreed(&*self.dir)?.is_some_and(same))
    }

    /// Writes our own lease, durably.
    pub(super) fn write(&self, lease: &MemberLease) -> Result<()> {
        self.own.write_at(&lease.encode(), 0).at("write", "the fleet's lease")?;
        self.own.sync().at("fsync", "the fleet's lease")
    }
}

/// The file of the smallest leases. It is opened by name each time, like the leases.
impl Members {
    /// `None`: there is none yet. A file that is being written is an error.
    pub(super) fn read_smallest(&self) -> Result<Option<SmallestLeases>> {
        let what = "the smallest leases of the fleet";
        let Some(file) = absent_is_none(self.dir.open(SMALLEST, Access::Read)).at("open", what)? else {
            return Ok(None);
        };
        let mut bytes = vec![0; SMALLEST_LEN];
        let got = file.read_into(&mut bytes, 0).at("read", what)?;
        let smallest = SmallestLeases::decode(got);
        smallest
            .map(Some)
            .ok_or_else(|| Error::refused(format!("{what} are not readable"), "see who writes to `smallest`"))
    }

    /// Overwritten in place, perhaps by another member at the same time: a mixed file is unreadable, and the next one
    /// is whole.
    pub(super) fn write_smallest(&self, smallest: &SmallestLeases, by: Uuid) -> Result<()> {
        let what = "the smallest leases of the fleet";
        let bytes = smallest.encode();
        let Some(file) = absent_is_none(self.dir.open(SMALLEST, Access::ReadWrite)).at("open", what)? else {
            // If another member is quicker, ours comes later.
            return make(&*self.dir, SMALLEST, by, &bytes).map(drop);
        };
        file.write_at(&bytes, 0).at("write", what)?;
        // So that others see it: it need not be durable.
        file.sync().at("fsync", what)
    }
}

const SMALLEST: &[u8] = b"smallest";

/// The slots in the order in which a member looks for its own, or for a free one. No slot becomes free again, so its
/// own one comes before the first free one. In a large fleet each member begins elsewhere: N simultaneous mounts would
/// otherwise read half of N² leases before each has found a slot.
fn slots_from(member: Uuid, size: u32) -> impl Iterator<Item = u32> {
    let first = if size > COLLECT_ABOVE { (member.as_u128() % u128::from(size)) as u32 } else { 0 };
    (first..size).chain(0..first)
}

/// What another member has published since its names were last read.
pub(super) enum ToldNames {
    These(Vec<ChangedName>),
    /// Its file is about to be replaced: the next lease names the new one.
    Later,
    /// Some can no longer be read.
    Lost,
}

/// Our own file of names, while it is open.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnNames {
    pub(super) end: NamesEnd,
    file: Option<Arc<dyn File>>,
}

impl OwnNames {
    /// The next lines begin a new file.
    pub(super) fn ending_at(end: NamesEnd) -> OwnNames {
        OwnNames { end, file: None }
    }
}

impl Members {
    /// Appends lines to the file of member `slot`, which is ours, durably, or begins the next file with them.
    pub(super) fn append_names(&self, slot: u32, own: &OwnNames, lines: &[u8]) -> Result<OwnNames> {
        let what = "the fleet's list of published names";
        let OwnNames { end, file } = own;
        let len = lines.len() as u64;
        if len > FILE_MAX {
            return Ok(OwnNames::ending_at(end.lost()));
        }
        if let Some(file) = file.as_ref().filter(|_| end.len + len <= FILE_MAX) {
            file.write_at(lines, end.len).at("write", what)?;
            file.sync().at("fsync", what)?;
            return Ok(OwnNames { end: NamesEnd { len: end.len + len, ..*end }, file: Some(Arc::clone(file)) });
        }
        // Written before it gets its name. If a power cut of the server loses the name, the readers find another
        // number.
        let next = NamesEnd { file: end.file + 1, len: HEADER_LEN + len };
        let (name, beside) = (names_name(slot), format!("{slot}.pub.new").into_bytes());
        remove_leftover(&*self.dir, &beside)?;
        let file = self.dir.create(&beside, 0o644).at("create", what)?;
        file.write_at(&[&header(next.file, *end), lines].concat(), 0).at("write", what)?;
        file.sync().at("fsync", what)?;
        self.dir.rename(&beside, &*self.dir, name.as_bytes(), RenameMode::Replace).at("rename", what)?;
        Ok(OwnNames { end: next, file: Some(file) })
    }

    /// What member `slot`, whose lease says `told`, has published since `known`. An error: the slow tier does not
    /// answer.
    pub(super) fn names_since(&self, slot: u32, known: NamesEnd, told: NamesEnd) -> Result<ToldNames> {
        match self.read_names(slot, known, told).at("read", "a list of published names") {
            Err(error) if is_silence(&error) => Err(error),
            // For any reason: a reader that forgets what it knows looks it up again.
            names => Ok(names.ok().flatten().unwrap_or(ToldNames::Lost)),
        }
    }

    /// `None`: a part of it does not exist.
    fn read_names(&self, slot: u32, known: NamesEnd, told: NamesEnd) -> io::Result<Option<ToldNames>> {
        if told.len == 0 {
            return Ok(None);
        }
        let file = self.dir.open(names_name(slot).as_bytes(), Access::Read)?;
        let Some(header) = read_range(&*file, 0, HEADER_LEN)? else { return Ok(None) };
        let offset = match goes_on(known, told, &header) {
            NamesFrom::Offset(offset) => offset,
            NamesFrom::Later => return Ok(Some(ToldNames::Later)),
            NamesFrom::Lost => return Ok(None),
        };
        let Some(len) = told.len.checked_sub(offset).filter(|len| *len <= 2 * FILE_MAX) else { return Ok(None) };
        let lines = read_range(&*file, offset, len)?;
        Ok(lines.and_then(|lines| decode_names(&lines)).map(ToldNames::These))
    }
}

/// `None`: the file is shorter.
fn read_range(file: &dyn File, offset: u64, len: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; len as usize];
    let got = file.read_at(&mut bytes, offset)?;
    Ok((got == bytes.len()).then_some(bytes))
}

fn names_name(slot: u32) -> String {
    format!("{slot}.pub")
}

pub(super) fn slot_name(slot: u32) -> String {
    slot.to_string()
}

fn label(fleet: &str, slot: u32) -> String {
    format!("slot {slot} of fleet {fleet}")
}

/// Reads one member's lease. `None`: the slot was never taken. An unreadable lease, which is being written, is an
/// error.
pub(super) fn read(dir: &dyn Dir, slot: u32) -> Result<Option<MemberLease>> {
    let what = || format!("slot {slot} of the fleet");
    let Some(file) = absent_is_none(dir.open(slot_name(slot).as_bytes(), Access::Read)).at("open", what())? else {
        return Ok(None);
    };
    let lease = read_lease(&*file, slot)?;
    let mut lease =
        lease.ok_or_else(|| Error::refused(format!("{} is not readable", what()), "see who writes to it"))?;
    if let Some(loss) = &mut lease.lost {
        let accepted = read_text(dir, &accepted_name(slot))?.and_then(|beat| beat.trim().parse::<u64>().ok());
        loss.is_accepted = accepted.is_some_and(|beat| beat >= loss.beat);
    }
    Ok(Some(lease))
}

fn accepted_name(slot: u32) -> Vec<u8> {
    format!("{slot}.accepted").into_bytes()
}

/// From now on verdicts ignore the loss that this slot's lease names. A later loss is reported again.
pub(super) fn accept(dir: &dyn Dir, slot: u32, loss: &Loss) -> Result<()> {
    replace_text(dir, &accepted_name(slot), &format!("{}\n", loss.beat))
}

/// `None`: the lease is unreadable.
fn read_lease(file: &dyn File, slot: u32) -> Result<Option<MemberLease>> {
    let mut bytes = [0; LEASE_LEN];
    let got = file.read_into(&mut bytes, 0).at("read", format!("slot {slot} of the fleet"))?;
    Ok(MemberLease::decode(got))
}

/// Like [`read`], but retries a lease that is being written.
pub(super) fn read_settled(dir: &dyn Dir, slot: u32) -> Result<Option<MemberLease>> {
    for _ in 0..TRIES {
        if let Ok(lease) = read(dir, slot) {
            return Ok(lease);
        }
        thread::sleep(PAUSE);
    }
    read(dir, slot)
}

/// Step 1. `false`: another member has made the claim.
fn claim(dir: &dyn Dir, slot: u32, lease: &MemberLease, by: &MemberLease) -> Result<bool> {
    let name = format!("{slot}.after-{}-{}", lease.member, lease.beat).into_bytes();
    let wanted = format!("{}\n", by.member);
    let is_new = make(dir, &name, by.member, wanted.as_bytes())?;
    if is_new {
        remove_old_claims(dir, slot, &name);
        return Ok(true);
    }
    Ok(read_text(dir, &name)?.is_some_and(|text| text == wanted))
}

/// A claim is needed while a member may have read the lease that it names. Newer claims are left for a later call.
fn remove_old_claims(dir: &dyn Dir, slot: u32, new: &[u8]) {
    let prefix = format!("{slot}.after-").into_bytes();
    let Ok(Stat { mtime: now, .. }) = dir.stat(new) else { return };
    for entry in dir.list().unwrap_or_default().iter().filter(|entry| entry.name.starts_with(&prefix)) {
        if dir.stat(&entry.name).is_ok_and(|claim| claim.mtime.sec + CLAIM_KEPT_S < now.sec) {
            dir.unlink(&entry.name).ok();
        }
    }
}

fn forgotten_name(member: &MemberLease) -> Vec<u8> {
    format!("forgotten-{}", member.member).into_bytes()
}

/// The name of the note that the member's place, at this turn, went to a copy of its fast tier.
fn handed_on_name(member: &MemberLease) -> Vec<u8> {
    format!("handed-on-{}-{}", member.member, member.turn).into_bytes()
}

fn is_handed_on(dir: &dyn Dir, member: &MemberLease) -> Result<bool> {
    Ok(read_text(dir, &handed_on_name(member))?.is_some() && !left_out!(PartnerTurn))
}

pub(super) fn note_handed_on(dir: &dyn Dir, member: &MemberLease) -> Result<()> {
    make(dir, &handed_on_name(member), member.member, format!("{}\n", member.host).as_bytes()).map(drop)
}

fn was_handed_on(fleet: &str) -> Error {
    Error::refused(
        format!("a copy of this fast tier has taken its place in fleet {fleet} (dlio-fs forget --partner)"),
        "save what it has pending with `dlio-fs rescue`, then use an empty fast tier",
    )
}

/// Of a member's fast tier and its copies, only the one that received its place last may join.
fn check_turn(fleet: &str, lease: &MemberLease, own: &MemberLease) -> Result<()> {
    if lease.turn > own.turn && !left_out!(PartnerTurn) {
        return Err(was_handed_on(fleet));
    }
    if lease.turn < own.turn {
        let what = format!("this copy of a member's fast tier was not handed its place in fleet {fleet} yet");
        return Err(Error::refused(what, "run `dlio-fs forget --partner` again: it was cut off"));
    }
    Ok(())
}

/// Keeps the member from joining again, regardless of who has its slot then.
pub(super) fn note_forgotten(dir: &dyn Dir, member: &MemberLease) -> Result<()> {
    make(dir, &forgotten_name(member), member.member, format!("{}\n", member.host).as_bytes()).map(drop)
}

/// Step 2.
fn replace(dir: &dyn Dir, slot: u32, first: &MemberLease) -> Result<()> {
    let beside = format!("{slot}.{}", first.member).into_bytes();
    let what = || format!("slot {slot} of the fleet");
    remove_leftover(dir, &beside)?;
    let file = dir.create(&beside, 0o644).at("create", what())?;
    file.write_at(&first.encode(), 0).at("write", what())?;
    file.sync().at("fsync", what())?;
    dir.rename(&beside, dir, slot_name(slot).as_bytes(), RenameMode::Replace).at("rename", what())?;
    dir.sync().at("fsync", what())
}

/// The directory of a fleet on this slow tree. The error, if there is none of this name, lists those that exist.
pub(super) fn dir_of(slow: &dyn Dir, fleet: &str) -> Result<Arc<dyn Dir>> {
    let fleets = absent_is_none(slow.dir(OURS).and_then(|ours| ours.dir(b"fleet"))).at("open", ".dlio-fs/fleet")?;
    let dir = fleets.as_ref().map(|fleets| absent_is_none(fleets.dir(fleet.as_bytes())));
    if let Some(dir) = dir.transpose().at("open", format!("fleet {fleet}"))?.flatten() {
        return Ok(dir);
    }
    let mut names: Vec<_> =
        fleets.and_then(|fleets| fleets.list().ok()).into_iter().flatten().map(|entry| escape(&entry.name)).collect();
    names.sort_unstable();
    let there = if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
    let remedy = "name a fleet of this slow tier, or the slow tier of this fleet";
    Err(Error::refused(format!("the slow tier has no fleet {fleet}: {there}"), remedy))
}

/// What all members of a fleet agree on, in its file `fleet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) size: u32,
    /// The bound for the errors of all clocks.
    pub(super) error: Duration,
    /// An operator has set the bound for all: the kernels' estimates of their clocks are ignored.
    pub(super) is_believed: bool,
}

impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Agreed { size, error, is_believed } = self;
        write!(f, "fleet_size = {size}\nclock_error = \"{}\"\n", humantime::format_duration(*error))?;
        if *is_believed { f.write_str("believed = true\n") } else { Ok(()) }
    }
}

impl FromStr for Agreed {
    type Err = ();

    fn from_str(text: &str) -> Result<Agreed, ()> {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        let size = value("fleet_size").and_then(|size| size.parse().ok());
        let error = value("clock_error").and_then(|error| humantime::parse_duration(error.trim_matches('"')).ok());
        let size = size.filter(|size| (1..=FLEET_MAX).contains(size)).ok_or(())?;
        Ok(Agreed { size, error: error.ok_or(())?, is_believed: value("believed") == Some("true") })
    }
}

/// `None`: missing or unreadable.
pub(super) fn agreed(dir: &dyn Dir) -> Result<Option<Agreed>> {
    Ok(read_text(dir, b"fleet")?.and_then(|text| text.parse().ok()))
}

/// Changes the bound for all. The caller has verified that no member is mounted.
pub(super) fn agree_on(dir: &dyn Dir, agreed: &Agreed) -> Result<()> {
    replace_text(dir, b"fleet", &agreed.to_string())
}

/// The first member writes what all have to agree on; the others compare. A member without a configured bound takes the
/// fleet's.
fn agree(dir: &dyn Dir, settings: &FleetSettings, usual: Duration, first: &MemberLease) -> Result<Agreed> {
    let FleetSettings { name, size, error } = settings;
    let wanted = Agreed { size: *size, error: error.unwrap_or(usual), is_believed: false };
    if read_text(dir, b"fleet")?.is_none() {
        make(dir, b"fleet", first.member, wanted.to_string().as_bytes())?;
    }
    let agreed = agreed(dir)?;
    if let Some(agreed) =
        agreed.filter(|agreed| agreed.size == *size && error.is_none_or(|error| error == agreed.error))
    {
        return Ok(Agreed { is_believed: agreed.is_believed || error.is_some(), ..agreed });
    }
    let told = |agreed: &Agreed| agreed.to_string().trim().replace('\n', ", ");
    let begun = agreed.as_ref().map_or_else(|| "something unreadable".to_owned(), told);
    let remedy = match agreed.filter(|agreed| agreed.size == *size) {
        Some(_) => format!(
            "leave clock_error out to take the fleet's; `dlio-fs clock-error {name} {} --slow DIR` changes it for all its \
             mounts",
            humantime::format_duration(wanted.error)
        ),
        None => "give all its mounts the same fleet_size, or choose another name".to_owned(),
    };
    Err(Error::refused(format!("fleet {name} was begun with {begun}; this mount has {}", told(&wanted)), remedy))
}

/// Makes a new file that is complete as soon as it has its name. `false`: it exists.
fn make(dir: &dyn Dir, name: &[u8], by: Uuid, bytes: &[u8]) -> Result<bool> {
    let own = format!("{by}.new").into_bytes();
    let what = || escape(name);
    remove_leftover(dir, &own)?;
    let file = dir.create(&own, 0o644).at("create", what())?;
    file.write_at(bytes, 0).at("write", what())?;
    file.sync().at("fsync", what())?;
    let made = match dir.link(&own, dir, name) {
        Err(error) if !is_taken(&error) => dir.rename(&own, dir, name, RenameMode::NoReplace),
        linked => linked,
    };
    remove_leftover(dir, &own)?;
    dir.sync().at("fsync", what())?;
    match made {
        Err(error) if is_taken(&error) => Ok(false),
        made => made.at("create", what()).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::disk::os::OsDir;
    use crate::tiers::fleet::names::NameChange;

    fn lines(count: usize) -> (Vec<ChangedName>, Vec<u8>) {
        let path = |number: usize| format!("{number:0200}").into_bytes();
        let name = |number| ChangedName { end: 1, change: NameChange::Placed, ino: 1, dir: 2, path: path(number) };
        let names: Vec<ChangedName> = (0..count).map(name).collect();
        let lines = names.iter().flat_map(|name| name.encode().into_bytes()).collect();
        (names, lines)
    }

    /// Each begins elsewhere, and finds its own slot again.
    #[test]
    fn each_of_many_members_has_one_slot_and_reads_few_to_find_it() {
        let root = tempfile::tempdir().expect("a directory");
        let ours: Arc<dyn Dir> = Arc::new(OsDir::open(root.path()).expect("opened"));
        let settings = FleetSettings { name: "job".to_owned(), size: COLLECT_ABOVE + 16, error: None };
        let id =
            |member: u32| Uuid::from_u128(u128::from(member).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
        let lease = |member| MemberLease::first(id(member), String::new(), 0);
        let join = |member| Members::join(&*ours, &settings, PAUSE, &lease(member)).map(|(_, slot, _)| slot);
        let slots: Vec<u32> = (0..settings.size).map(|member| join(member).expect("a slot")).collect();
        assert_eq!((0..settings.size).map(|member| join(member).expect("its slot")).collect::<Vec<_>>(), slots);
        assert!(join(settings.size).is_err(), "all are taken");
        let size = settings.size as usize;
        let asked = (0..settings.size).zip(&slots).map(|(member, slot)| {
            slots_from(lease(member).member, settings.size).take_while(|other| other != slot).count() + 1
        });
        let asked: usize = asked.sum();
        assert!(asked < size * size / 4, "{asked}: in order it would be half of N²");
        let mut slots = slots;
        slots.sort_unstable();
        assert_eq!(slots, (0..settings.size).collect::<Vec<_>>());
    }

    #[test]
    fn a_long_file_of_names_is_replaced_and_who_has_read_it_all_goes_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir: Arc<dyn Dir> = Arc::new(OsDir::open(dir.path()).expect("opened"));
        let own = dir.create(b"0", 0o644).expect("made");
        let agreed = Agreed { size: 1, error: PAUSE, is_believed: false };
        let members = Members { dir, own, agreed };
        let since = |known, told| members.names_since(0, known, told).expect("it answers");
        let append = |own: &OwnNames, lines: &[u8]| members.append_names(0, own, lines).expect("written");
        let (some, bytes) = lines(1000);
        let mut own = OwnNames::default();
        let (mut known, mut files) = (own.end, Vec::new());
        for _ in 0..12 {
            let before = own.end;
            own = append(&own, &bytes);
            assert!(own.end.len <= FILE_MAX);
            files.push(own.end.file);
            assert!(matches!(since(known, own.end), ToldNames::These(names) if names == some), "{known}");
            // A reader that was away when the file was replaced has missed lines.
            let late = since(NamesEnd { file: 1, len: HEADER_LEN }, own.end);
            assert_eq!(own.end.file > 1, matches!(late, ToldNames::Lost), "{}", own.end);
            // A reader with an older lease.
            let early = since(known, before);
            assert!(before.file == own.end.file || before.file == 0 || matches!(early, ToldNames::Later), "{before}");
            known = own.end;
        }
        files.dedup();
        assert!(files.len() > 2, "{files:?}");
        // It begins the next file after a start.
        let next = append(&OwnNames::ending_at(own.end), &bytes);
        assert!(matches!(since(known, next.end), ToldNames::These(names) if names == some));
        assert_eq!(next.end.file, own.end.file + 1);
        let lost = append(&next, &vec![0; FILE_MAX as usize + 1]);
        assert!(matches!(since(next.end, lost.end), ToldNames::Lost));
        let after = append(&lost, &bytes);
        assert!(matches!(since(lost.end, after.end), ToldNames::These(names) if names == some));
        assert!(matches!(since(next.end, after.end), ToldNames::Lost));
        // The file server has lost the end of the file.
        let short = NamesEnd { len: after.end.len + 1, ..after.end };
        assert!(matches!(since(after.end, short), ToldNames::Lost));
    }
}
