//! Checks an unmounted fast tier piece by piece: whether it is as a start expects, and what is lost.
//!
//! Each finding names its place and the remedy. A repair only does what is safe and what the next start would do as
//! well: it cuts the torn tail of the log, and quarantines an unexplained object with the reason. It changes nothing
//! else, and never deletes.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;

use crate::error::{Context, Error, Result};
use crate::path::escape;
use crate::tiers::disk::layout::{OURS, read_text, split};
use crate::tiers::disk::shards::Shard;
use crate::tiers::disk::{Access, Dir, DirEntry, Kind, modes};
use crate::tiers::log::record::{Home, ObjectId, Record, Step};
use crate::tiers::objects::parts::is_lane;
use crate::tiers::objects::pool::{Pool, number_of};
use crate::tiers::recovery::identity::{UNIDENTIFIED, boot_of, read_slow_id, read_super, refuse_other_format};
use crate::tiers::recovery::left_out::set_aside;
use crate::tiers::writeback::step::{step_path, step_target};
use crate::tiers::{Lsn, log};

/// The remedy for damage that cannot be repaired.
const RESCUE: &str = "save what is there with `dlio-fs rescue`, then use an empty fast tier";

const SHORT: &str = "has only";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Nothing is wrong, but it is worth knowing.
    Note,
    /// It was wrong, and has been repaired.
    Repaired,
    /// It is wrong, and a repair or the next mount fixes it.
    Repairable,
    /// Something is lost.
    Damage,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// A path below `<fast>/.dlio-fs`, or of the view; escaped.
    pub place: String,
    pub what: String,
    pub remedy: String,
}

/// The result of a check.
#[derive(Debug, Default, Serialize)]
pub struct FsckReport {
    pub findings: Vec<Finding>,
    pub records: u64,
    pub objects: u64,
    /// Versions that the slow tier does not have yet.
    pub pending: u64,
    pub quarantined: u64,
}

/// Checks the fast tier whose root is `fast`, together with its slow tier if that is given. The fast tier must be
/// locked by the caller. `boot` names this boot of the machine. Without `repair` nothing is changed.
pub fn fsck(fast: Arc<dyn Dir>, slow: Option<Arc<dyn Dir>>, boot: &str, repair: bool) -> Result<FsckReport> {
    let ours = fast.dir(OURS).at_fast("open", ".dlio-fs")?;
    let boot = &boot_of(&*ours, boot);
    let mut check = Check {
        pool: Pool::open_what_is_left(&modes::with_marked_modes(&ours)),
        ours,
        slow,
        repair,
        records: Vec::new(),
        report: FsckReport::default(),
    };
    if let Err(error) = refuse_other_format(&*check.ours) {
        check.failed("super", &error);
        return Ok(check.report);
    }
    let uuid = check.identity();
    let is_sound = check.log(boot);
    check.layout();
    check.pending(boot, uuid.as_deref());
    check.unfinished();
    check.objects(is_sound)?;
    check.quarantine();
    if let Some(uuid) = uuid {
        check.tmp(&uuid);
    }
    check.report.records = check.records.len() as u64;
    Ok(check.report)
}

struct Check {
    ours: Arc<dyn Dir>,
    slow: Option<Arc<dyn Dir>>,
    pool: Pool,
    repair: bool,
    records: Vec<(Lsn, Record)>,
    report: FsckReport,
}

impl Check {
    fn add(&mut self, severity: Severity, place: impl Into<String>, what: impl Into<String>, remedy: &str) {
        let (place, what, remedy) = (place.into(), what.into(), remedy.to_owned());
        self.report.findings.push(Finding { severity, place, what, remedy });
    }

    fn damage(&mut self, place: impl Into<String>, what: impl Into<String>, remedy: &str) {
        self.add(Severity::Damage, place, what, remedy);
    }

    fn failed(&mut self, place: impl Into<String>, error: &Error) {
        match error {
            Error::Refused { what, remedy } => self.damage(place, what, remedy),
            other => self.damage(place, other.to_string(), RESCUE),
        }
    }

    /// Checks the super block, and whether the two tiers belong together. Returns the fast tier's own uuid, if it is
    /// known.
    fn identity(&mut self) -> Option<String> {
        let text = match read_text(&*self.ours, b"super") {
            Ok(Some(text)) => text,
            Ok(None) => {
                self.damage("super", "it is missing", RESCUE);
                return None;
            }
            Err(error) => {
                self.failed("super", &error);
                return None;
            }
        };
        let identity = match read_super(&text) {
            Ok(identity) => identity,
            Err(error) => {
                self.failed("super", &error);
                return None;
            }
        };
        match self.slow.as_ref().map(|slow| read_slow_id(&**slow)) {
            None => {}
            Some(Ok(Some(id))) if id == identity.slow || identity.slow == UNIDENTIFIED => {}
            Some(Err(error)) => self.failed("slow:.dlio-fs/id", &error),
            Some(Ok(found)) => {
                let found = found.map_or("has no id".to_owned(), |id| format!("is {}", escape(id.as_bytes())));
                let what = format!("the fast tier belongs to the slow tree {}, this one {found}", identity.slow);
                self.damage("slow:.dlio-fs/id", what, "name its own slow tier; is it mounted?");
                self.slow = None;
            }
        }
        Some(identity.uuid)
    }

    /// Reads the log. `false`: its information about objects is incomplete.
    fn log(&mut self, boot: &str) -> bool {
        let dir = match self.ours.dir(b"log").at_fast("open", "log") {
            Ok(dir) => dir,
            Err(error) => {
                self.failed("log", &error);
                return false;
            }
        };
        for entry in dir.list().unwrap_or_default() {
            if log::segment_of(&entry.name).is_none() || entry.kind != Kind::File {
                self.stray(format!("log/{}", escape(&entry.name)));
            }
        }
        let found = if self.repair { log::read_and_cut(&*dir, boot) } else { log::read_only(&*dir, boot) };
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.failed("log", &error);
                return false;
            }
        };
        if found.torn > 0 {
            let what = format!("{} bytes at its end are the append that a crash cut off", found.torn);
            match self.repair {
                true => self.add(Severity::Repaired, "log", format!("{what}; they are cut off"), ""),
                false => self.add(Severity::Repairable, "log", what, "fsck or the next mount cuts them off"),
            }
        }
        let is_sound = found.damage.is_empty() && !found.records.is_empty();
        for damage in found.damage {
            let (place, what) = damage.split_once(": ").unwrap_or(("log", &damage));
            self.damage(place, what, RESCUE);
        }
        self.records = found.records;
        if self.records.is_empty() {
            let remedy = if self.pool.numbers().is_ok_and(|all| all.is_empty()) { "mount it" } else { RESCUE };
            self.add(
                if remedy == RESCUE { Severity::Damage } else { Severity::Note },
                "log",
                "it has no record",
                remedy,
            );
        }
        is_sound
    }

    fn layout(&mut self) {
        for name in ["pool", "quarantine"] {
            match self.ours.stat(name.as_bytes()) {
                Ok(stat) if stat.kind == Kind::Dir => {}
                Ok(_) => self.damage(name, "it is no directory", "move it away: the next mount makes one"),
                Err(_) => self.add(Severity::Repairable, name, "it is missing", "the next mount makes it"),
            }
        }
        for name in ["ballast", "spare"] {
            if self.ours.stat(name.as_bytes()).is_err() {
                let what = "it is missing: the tier was full, or it reserves none";
                self.add(Severity::Note, name, what, "the next mount makes it again if there is room");
            }
        }
    }

    /// Checks that every version that the slow tier does not have has its object, in full length.
    fn pending(&mut self, boot: &str, uuid: Option<&str>) {
        let applied = Record::applied(self.records.iter().map(|(_, record)| record));
        let sealed = |record: &Record| if let Record::Seal { of, .. } = record { Some(*of) } else { None };
        let sealed: HashSet<Lsn> = self.records.iter().filter_map(|(_, record)| sealed(record)).collect();
        let cancelled = set_aside(&self.records);
        let mut wrong = Vec::new();
        let mut this_boot = false;
        for (lsn, record) in &self.records {
            if let Record::Start { boot: started } = record {
                this_boot = started == boot;
            }
            let Record::Content { path, object, size, .. } = record else { continue };
            if *lsn <= applied || cancelled.contains(lsn) || !(this_boot || sealed.contains(lsn)) {
                continue;
            }
            self.report.pending += 1;
            if let Some(what) = self.missing_of(*object, *size, uuid)
                && !(what.contains(SHORT) && Record::invalidated(&self.records, *lsn, *object, *size))
            {
                wrong.push((escape(&path.bytes()), what));
            }
        }
        for (path, what) in wrong {
            let remedy =
                "the next mount shows the version before it; `dlio-fs rescue` restores what is left of this one";
            self.damage(path, what, remedy);
        }
    }

    /// Reports a group of changes that was begun and is not finished. The daemon's log and the next mount give the
    /// reason; only missing directories of the slow tier are found here.
    fn unfinished(&mut self) {
        let steps = Record::unfinished(&self.records);
        let Some((_, first)) = steps.first() else { return };
        let lacks = |step: &Step| {
            let target = step_target(step)?;
            let slow = self.slow.as_ref()?;
            let (dirs, _) = split(target);
            let mut dir = slow.clone();
            for name in dirs.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
                dir = match dir.dir(name) {
                    Err(e) => return Some(format!("/{}: its directory cannot be opened: {e}", escape(target))),
                    Ok(dir) => dir,
                };
            }
            None
        };
        let lacking = steps.iter().find_map(|(_, step)| lacks(step));
        let count = crate::stats::render::count(steps.len() as u64, "change");
        let what = format!("{count} of the slow tree were begun together and may not all be done");
        let what = lacking.map_or(what.clone(), |lacking| format!("{what}; {lacking}"));
        let place = format!("/{}", escape(step_path(first)));
        self.add(Severity::Note, place, what, "the next mount continues with them, and its stats say what holds it");
    }

    fn missing_of(&self, object: ObjectId, size: u64, uuid: Option<&str>) -> Option<String> {
        let name = format!("object {:016x}", object.number);
        let found = match object.home {
            Home::Fast => self.pool.stat(object.number),
            Home::Slow | Home::Split { .. } => {
                let (slow, uuid) = (self.slow.as_ref()?, uuid?);
                let tmp = slow.dir(OURS).and_then(|dir| dir.dir(b"tmp")).and_then(|dir| dir.dir(uuid.as_bytes()));
                tmp.and_then(|tmp| tmp.stat(format!("o{:016x}", object.number).as_bytes()))
            }
        };
        match found {
            Err(e) => Some(format!("a version waits to be copied, and its {name} is not there: {e}")),
            Ok(stat) if stat.kind != Kind::File || (!object.needs_slow() && stat.nlink > 1) => {
                Some(format!("a version waits to be copied, and its {name} is not a file of its own"))
            }
            Ok(stat) if stat.size < size && !object.needs_slow() => {
                Some(format!("a version waits to be copied, and its {name} {SHORT} {} of {size} bytes", stat.size))
            }
            _ => None,
        }
    }

    fn objects(&mut self, log_is_sound: bool) -> Result<()> {
        self.strays();
        let named = |record: &Record| match record {
            Record::Bind { object, .. } | Record::Content { object, .. } => vec![Some(object.tail()), object.head()],
            _ => Vec::new(),
        };
        let explained: HashSet<ObjectId> =
            self.records.iter().flat_map(|(_, record)| named(record)).flatten().collect();
        for number in self.pool.numbers()? {
            self.report.objects += 1;
            let place = place_of(number);
            let is_explained = explained.contains(&ObjectId { home: Home::Fast, number });
            match self.fingerprint_and_name(number) {
                Err(e) => self.damage(&place, format!("it cannot be read: {e}"), RESCUE),
                Ok((true, _)) => {}
                Ok((false, _)) if is_explained => {}
                Ok((false, name)) => self.unexplained(number, &place, name.as_deref(), log_is_sound)?,
            }
        }
        Ok(())
    }

    /// Whether the object has a fingerprint, and the path it had. Reports a fingerprint that does not parse.
    fn fingerprint_and_name(&mut self, number: u64) -> std::io::Result<(bool, Option<String>)> {
        let place = place_of(number);
        let file = self.pool.open_object(number, Access::Read)?;
        let (fingerprint, name) = (Pool::fingerprint_of(&*file)?, Pool::name_of(&*file)?);
        if fingerprint.is_none() && Pool::claims_to_be_clean(&*file)? {
            let remedy = "nothing is lost: the slow file is read instead";
            self.add(Severity::Note, &place, "its fingerprint is not readable", remedy);
        }
        Ok((fingerprint.is_some(), name.map(|named| escape(&named.path))))
    }

    fn unexplained(&mut self, number: u64, place: &str, name: Option<&str>, log_is_sound: bool) -> Result<()> {
        if self.pool.stat(number).is_ok_and(|stat| stat.size == 0) {
            return Ok(());
        }
        let was = name.map_or(String::new(), |name| format!("; it was {name}"));
        let what = format!("no record of the log explains it{was}");
        if !log_is_sound {
            self.damage(place, what, RESCUE);
        } else if self.repair {
            self.pool.quarantine(number, &what)?;
            self.add(Severity::Repaired, place, format!("{what}; it is now in quarantine"), "");
        } else {
            self.add(Severity::Repairable, place, what, "fsck or the next mount moves it to quarantine");
        }
        Ok(())
    }

    fn strays(&mut self) {
        let Ok(pool) = self.ours.dir(b"pool") else { return };
        for shard in pool.list().unwrap_or_default() {
            let place = format!("pool/{}", escape(&shard.name));
            let Some(known) = Shard::named(&shard.name).filter(|_| shard.kind == Kind::Dir) else {
                self.stray(place);
                continue;
            };
            for entry in pool.dir(&shard.name).and_then(|dir| dir.list()).unwrap_or_default() {
                let number = number_of(&entry.name).filter(|number| Shard::of(*number) == known);
                if number.is_none() || entry.kind != Kind::File {
                    self.stray(format!("{place}/{}", escape(&entry.name)));
                }
            }
        }
    }

    fn stray(&mut self, place: String) {
        self.add(Severity::Note, place, "no daemon made it", "look at it, then move it away; dlio-fs never touches it");
    }

    fn quarantine(&mut self) {
        for number in self.pool.quarantined_numbers().unwrap_or_default() {
            self.report.quarantined += 1;
            let why = self.pool.why_quarantined(number);
            let remedy = "look at it, then remove it together with its .why";
            self.add(Severity::Note, format!("quarantine/{number:016x}"), why, remedy);
        }
    }

    /// Reports files that interrupted copies have left on the slow tier.
    fn tmp(&mut self, uuid: &str) {
        let Some(slow) = &self.slow else { return };
        let tmp = slow.dir(OURS).and_then(|dir| dir.dir(b"tmp")).and_then(|dir| dir.dir(uuid.as_bytes()));
        let Ok(tmp) = tmp else { return };
        let Ok(mut entries) = tmp.list() else { return };
        let lanes: Vec<DirEntry> = entries.extract_if(.., |entry| is_lane(&entry.name)).collect();
        let in_lanes = lanes.iter().filter_map(|lane| tmp.dir(&lane.name).and_then(|lane| lane.list()).ok());
        entries.extend(in_lanes.flatten());
        let (kept, stale): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .map(|entry| entry.name)
            .partition(|name| name.starts_with(b"o") || name.starts_with(b"q"));
        if !stale.is_empty() {
            let what =
                format!("{} left by interrupted copies", crate::stats::render::count(stale.len() as u64, "file"));
            self.add(Severity::Note, format!("slow:.dlio-fs/tmp/{uuid}"), what, "the next mount removes them");
        }
        for name in kept.iter().filter(|name| name.starts_with(b"q")) {
            let place = format!("slow:.dlio-fs/tmp/{uuid}/{}", escape(name));
            self.add(Severity::Note, place, "an object put aside", "look at it, then remove it");
        }
    }
}

/// The place of an object, for reports.
fn place_of(number: u64) -> String {
    format!("pool/{}/{number:016x}", Shard::of(number).name())
}
