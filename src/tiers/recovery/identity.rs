//! The identity of a fast tier and of its slow tree (P7): the layout, the super block, and the slow tree's `id`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Context, Errno, Error, Result};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{OURS, ensure_dir, is_taken, read_text, remove_leftover, replace_text};
use crate::tiers::disk::{Dir, RenameMode};
use crate::tiers::fleet::partner::NOTES;
use crate::tiers::incarnation::Incarnation;
use crate::tiers::objects::abilities::Abilities;

/// The format of everything that a daemon writes into `<fast>/.dlio-fs`, and into its `tmp` on the slow tier. Any other
/// is refused. There is one number for all of it: nothing there is read by itself.
pub(crate) const FORMAT: u32 = 5;

/// `<fast>/.dlio-fs/super`: TOML. Its first line is the CRC-32 of everything behind it, in hexadecimal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Super {
    pub(crate) format: u32,
    /// This fast tier.
    pub(crate) uuid: String,
    /// The slow tree it belongs to, as in `<slow>/.dlio-fs/id`.
    pub(crate) slow: String,
    /// How often its member's place in a fleet was handed to a copy; 0: this is no copy.
    #[serde(default, skip_serializing_if = "is_first")]
    pub(crate) turn: u32,
    /// The starts of a daemon that the slow tree may name as the last one (`incarnation.rs`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) starts: Vec<String>,
    /// The slow tier's abilities when they were last tried (P16).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) abilities: Option<Abilities>,
    /// Other keys are kept as they are. `parts` is reserved: what is known of the parts of the slow tree beyond
    /// `<fast>/.dlio-fs/parts`.
    #[serde(flatten)]
    others: toml::Table,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_first(turn: &u32) -> bool {
    *turn == 0
}

/// The checksum of a `super`, as its first line.
fn sum_line(text: &str) -> String {
    format!("sum = \"{:08x}\"", crc32fast::hash(text.as_bytes()))
}

impl Super {
    fn new(uuid: String, slow: String) -> Self {
        Super { format: FORMAT, uuid, slow, turn: 0, starts: Vec::new(), abilities: None, others: toml::Table::new() }
    }

    /// The boot in which this fast tier is used. A copy starts as after a power cut, even on the machine that made it.
    pub(crate) fn boot(&self, boot: &str) -> String {
        if self.turn == 0 { boot.to_owned() } else { format!("{boot}/{}", self.turn) }
    }

    fn encode(&self) -> Result<String> {
        let text = toml::to_string(self).map_err(|e| Error::refused(e.to_string(), "report this"))?;
        Ok(format!("{}\n{text}", sum_line(&text)))
    }

    /// Makes this start of a daemon the last one.
    pub(crate) fn begin(&mut self, ours: &dyn Dir, slow: &dyn Dir) -> Result<Option<Incarnation>> {
        let (uuid, turn, known) = (self.uuid.clone(), self.turn, self.starts.clone());
        Incarnation::begin(slow, &uuid, (turn, &known), |starts| {
            self.starts = starts;
            write_super(ours, self)
        })
    }

    /// Stores the slow tier's abilities, for a start at which it is slow to answer. On a fast tier without room the old
    /// ones stay.
    pub(crate) fn remember(&mut self, ours: &dyn Dir, abilities: Abilities) {
        if self.abilities.replace(abilities) == Some(abilities) {
            return;
        }
        if let Err(error) = write_super(ours, self) {
            tracing::debug!(%error, "the abilities of the slow tier are not remembered");
        }
    }
}

/// The `tmp` of a slow tier that is not writable now: if it ever was, it may have objects that did not fit. If it never
/// was, it has no `tmp`, and an empty directory on the fast tier takes its place.
pub(crate) fn existing_tmp(ours: &dyn Dir, slow: &dyn Dir, identity: &Super) -> Result<Arc<dyn Dir>> {
    let below = |dir: Arc<dyn Dir>, name: &[u8]| dir.dir(name);
    let there = slow.dir(OURS).and_then(|dir| below(dir, b"tmp")).and_then(|dir| below(dir, identity.uuid.as_bytes()));
    match absent_is_none(there).at("open", "tmp on the slow tier")? {
        Some(tmp) => Ok(tmp),
        None => ensure_dir(ours, b"tmp"),
    }
}

/// `slow` in `super`: the slow tree could not be written when the fast tier was first used with it, and has no `id`.
pub(crate) const UNIDENTIFIED: &str = "read-only";

/// Step 1: checks that the two tiers belong together.
pub(crate) fn identify(ours: &dyn Dir, slow: &dyn Dir, writable: bool) -> Result<Super> {
    let slow_id = read_slow_id(slow)?;
    let Some(text) = read_text(ours, b"super")? else {
        let used = !ours.dir(b"log").and_then(|dir| dir.list()).at("list", "log")?.is_empty();
        if ours.stat(NOTES).is_ok() {
            return Err(Error::refused(
                "this is a copy of the fast tier of a fleet's member, which still has its place",
                "if that member is lost, run `dlio-fs forget FLEET MEMBER --slow DIR --partner DIR` first",
            ));
        }
        if used {
            return Err(Error::refused(
                "the fast tier has a log but no .dlio-fs/super",
                "save its files with `dlio-fs rescue`, then use an empty fast tier",
            ));
        }
        let new = Super::new(uuid::Uuid::new_v4().to_string(), UNIDENTIFIED.to_owned());
        return join(ours, new, slow, slow_id, writable);
    };
    let identity = read_super(&text)?;
    if identity.turn > 0 && absent_is_none(ours.stat(NOTES)).at("stat", "the copy's notes")?.is_some() {
        return Err(Error::refused(
            "this copy of the fast tier of a fleet's member was not given the member's place to the end",
            "run `dlio-fs forget FLEET MEMBER --slow DIR --partner DIR` again",
        ));
    }
    if identity.slow == UNIDENTIFIED {
        // No mount over such a tree ever wrote anything, so nothing is pending for it.
        return join(ours, identity, slow, slow_id, writable);
    }
    match slow_id {
        None => {
            let found = match slow.list().is_ok_and(|names| names.is_empty()) {
                true => "an empty directory is in its place",
                false => "the directory in its place has no .dlio-fs/id",
            };
            Err(Error::refused(
                format!("the fast tier belongs to the slow tree {}; {found}", identity.slow),
                "is the slow tier not mounted? If its tree was moved on purpose, move .dlio-fs with it",
            ))
        }
        Some(id) if id != identity.slow => Err(Error::refused(
            format!("the fast tier belongs to the slow tree {}, this one is {id}", identity.slow),
            "mount it with its own slow tier, whose .dlio-fs/id has that number, or use an empty fast tier for this one",
        )),
        Some(_) => Ok(identity),
    }
}

#[derive(Deserialize)]
struct OnlyFormat {
    format: u32,
}

/// Nothing else is known about another format.
fn other_format(format: u32) -> Error {
    let (age, remedy) = match format > FORMAT {
        true => {
            ("a newer", "mount it with that one; to come back to this one, drain it there, then move its .dlio-fs away")
        }
        false => (
            "an older",
            "drain it with the dlio-fs that wrote it, then move its .dlio-fs away and mount it with this one",
        ),
    };
    let what =
        format!("the fast tier is in format {format}, of {age} dlio-fs; this one reads and writes format {FORMAT}");
    Error::refused(what, remedy)
}

/// Refuses a fast tier in another format. One without a readable `super` is not refused: the rest may be in this one.
pub(crate) fn refuse_other_format(ours: &dyn Dir) -> Result<()> {
    let text = read_text(ours, b"super").ok().flatten();
    match text.and_then(|text| toml::from_str(&text).ok()) {
        Some(OnlyFormat { format }) if format != FORMAT => Err(other_format(format)),
        _ => Ok(()),
    }
}

/// Parses a `super`; checks the format first.
pub(crate) fn read_super(text: &str) -> Result<Super> {
    let unreadable = |e: toml::de::Error| {
        Error::refused(
            format!("the fast tier's .dlio-fs/super is not readable: {}", e.message()),
            "save its files with `dlio-fs rescue`, then use an empty fast tier",
        )
    };
    let OnlyFormat { format } = toml::from_str(text).map_err(unreadable)?;
    if format != FORMAT {
        return Err(other_format(format));
    }
    let sound = text.split_once('\n').filter(|(first, rest)| *first == sum_line(rest)).map(|(_, rest)| rest);
    let identity: Option<Super> = sound.map(toml::from_str).transpose().map_err(unreadable)?;
    identity.filter(|identity| uuid::Uuid::try_parse(&identity.uuid).is_ok()).ok_or_else(|| {
        Error::refused(
            "the fast tier's .dlio-fs/super is damaged: its checksum is wrong",
            "save its files with `dlio-fs rescue`, then use an empty fast tier",
        )
    })
}

/// Makes the fast tier one of this slow tree.
fn join(ours: &dyn Dir, identity: Super, slow: &dyn Dir, id: Option<String>, writable: bool) -> Result<Super> {
    let slow = match id {
        Some(id) => {
            if writable {
                // Another mount may have made it a moment ago, and not synced it yet.
                slow.dir(OURS).and_then(|ours| ours.sync()).at("fsync", ".dlio-fs on the slow tier")?;
            }
            id
        }
        None if writable => make_slow_id(slow, &identity.uuid)?,
        None => UNIDENTIFIED.to_owned(),
    };
    let identity = Super { slow, ..identity };
    write_super(ours, &identity)?;
    Ok(identity)
}

/// Makes a copy a fast tier of its own.
pub(crate) fn give_turn(ours: &dyn Dir, uuid: String, slow: String, turn: u32) -> Result<()> {
    write_super(ours, &Super { turn, ..Super::new(uuid, slow) })
}

/// The turn in a copy's `super`. `None`: it has no `super`.
pub(crate) fn turn_of(ours: &dyn Dir) -> Result<Option<u32>> {
    let text = read_text(ours, b"super")?;
    text.map(|text| read_super(&text).map(|identity| identity.turn)).transpose()
}

/// The boot in which this fast tier is used, if its `super` can be read.
pub(crate) fn boot_of(ours: &dyn Dir, boot: &str) -> String {
    let text = read_text(ours, b"super").ok().flatten();
    text.and_then(|text| read_super(&text).ok()).map_or_else(|| boot.to_owned(), |identity| identity.boot(boot))
}

fn write_super(ours: &dyn Dir, identity: &Super) -> Result<()> {
    replace_text(ours, b"super", &identity.encode()?)
}

pub(crate) fn read_slow_id(slow: &dyn Dir) -> Result<Option<String>> {
    // The first read of a slow tier, so a broken one shows here.
    let unusable = |error: Error| match error.errno() {
        Errno::EIO => Error::refused(
            format!(".dlio-fs/id on the slow tier cannot be read: {error}"),
            "see the kernel log for its device; unmount its file system and mount it again",
        ),
        _ => error,
    };
    let ours = absent_is_none(slow.dir(OURS)).at("open", ".dlio-fs on the slow tier").map_err(unusable)?;
    let text = ours.map_or(Ok(None), |ours| read_text(&*ours, b"id").map_err(unusable))?;
    let id = text.map(|text| text.trim().to_string());
    if id.as_deref() == Some("") {
        // Only a tier without links and without a rename that refuses to replace can show a file that is not written
        // yet.
        return Err(Error::refused(
            ".dlio-fs/id on the slow tier is empty: another mount is writing it, or was cut off",
            "mount again; if it stays empty and nobody else mounts this slow tier, remove that file",
        ));
    }
    Ok(id)
}

/// Gives the slow tree an id. Several mounts may start at the same moment, each with its own fast tier, and all must
/// end with the same id: the one that is stored on the tier, not the one that a mount has generated.
///
/// 1. write an id to a file of our own beside `id`, under a name that no other mount takes, and sync it: a mount that
///    sees it as `id` sees all of it, even after a power cut;
/// 2. link it to `id`. This fails if `id` exists, so the first id stays. On a tier without links rename it with
///    NOREPLACE, or else create `id` exclusively and write it;
/// 3. remove our own file, and sync the directory: `id`, whichever mount made it, is durable before `super` names it;
/// 4. read `id` again; its content is the tree's id. A server may have done step 2 although it reported a failure.
///
/// A crash between 1 and 3 leaves our own file, which is never read.
fn make_slow_id(slow: &dyn Dir, uuid: &str) -> Result<String> {
    let ours = ensure_dir(slow, OURS)?;
    let text = format!("{}\n", uuid::Uuid::new_v4());
    let own = format!("id.{uuid}").into_bytes();
    remove_leftover(&*ours, &own)?;
    write_new(&*ours, &own, &text).at("write", ".dlio-fs/id on the slow tier")?; // 1
    let taken = match ours.link(&own, &*ours, b"id") {
        Err(e) if !is_taken(&e) => match ours.rename(&own, &*ours, b"id", RenameMode::NoReplace) {
            Err(e) if !is_taken(&e) => write_new(&*ours, b"id", &text),
            renamed => renamed,
        },
        linked => linked,
    }; // 2
    match taken {
        Err(e) if is_taken(&e) => {}
        taken => taken.at("create", ".dlio-fs/id on the slow tier")?,
    }
    remove_leftover(&*ours, &own)?;
    ours.sync().at("fsync", ".dlio-fs on the slow tier")?; // 3
    // 4
    read_slow_id(slow)?.ok_or_else(|| {
        Error::refused(
            "somebody removed .dlio-fs/id from the slow tier while it was being made",
            "mount again once nobody else changes .dlio-fs there",
        )
    })
}

/// Writes a file that must not exist, durable except for its name.
fn write_new(dir: &dyn Dir, name: &[u8], text: &str) -> std::io::Result<()> {
    let file = dir.create(name, 0o600)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;
    use std::time::Duration;

    use super::*;
    use crate::tiers::disk::os::OsDir;

    fn refusal(text: &str) -> String {
        read_super(text).expect_err(text).to_string()
    }

    fn all_but(change: impl FnOnce(&mut Abilities)) -> Abilities {
        let mut all = Abilities::default();
        change(&mut all);
        all
    }

    fn sealed(text: &str) -> String {
        format!("{}\n{text}", sum_line(text))
    }

    #[test]
    fn another_format_is_refused_with_the_way_out() {
        for (format, age, way_out) in [
            (0, "an older", "drain it with the dlio-fs that wrote it"),
            (FORMAT - 1, "an older", "then move its .dlio-fs away and mount it with this one"),
            (FORMAT + 1, "a newer", "mount it with that one"),
            (u32::MAX, "a newer", "drain it there"),
        ] {
            // The refusal does not depend on what else the other format has, or where its checksum is.
            for rest in ["", "uuid = \"x\"\nslow = \"y\"\nsum = \"7e32c39d\"\n", "[layers]\nmany = [1, 2]\n"] {
                let said = refusal(&format!("format = {format}\n{rest}"));
                let numbers =
                    format!("in format {format}, of {age} dlio-fs; this one reads and writes format {FORMAT}");
                assert!(said.contains(&numbers) && said.contains(way_out), "{said}");
            }
        }
    }

    #[test]
    fn all_that_super_says_is_in_its_checksum_and_reads_back() {
        let abilities = all_but(|all| (all.owners, all.time_grain) = (false, Duration::from_secs(2)));
        let uuid = "e10a37a2-4864-41f8-9352-bea18985c97e".to_owned();
        let mut identity = Super { abilities: Some(abilities), ..Super::new(uuid, "tree".to_owned()) };
        let others = "parts = [{ path = \"a%20b\", root = 256 }]\n[later]\nnumber = 9\n";
        identity.others = toml::from_str(others).expect("TOML");
        let text = identity.encode().expect("encoded");
        let read = read_super(&text).expect("sound");
        assert_eq!((&read.uuid, &read.slow, read.abilities), (&identity.uuid, &identity.slow, Some(abilities)));
        assert_eq!((&read.others, read.encode().expect("encoded")), (&identity.others, text.clone()));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let said = refusal(&String::from_utf8_lossy(&bytes));
            assert!(["damaged", "not readable", "in format"].iter().any(|how| said.contains(how)), "{at}: {said}");
        }
    }

    #[test]
    fn a_super_of_this_format_needs_its_checksum_and_an_id_of_its_own() {
        let text = format!("format = {FORMAT}\nuuid = \"e10a37a2-4864-41f8-9352-bea18985c97e\"\nslow = \"tree\"\n");
        let read = read_super(&sealed(&text)).expect("sound");
        assert!(read.abilities.is_none() && read.others.is_empty());
        assert!(refusal(&text).contains("damaged"));
        assert!(refusal(&sealed(&text.replace("e10a37a2-", "../"))).contains("damaged"));
        assert!(refusal(&sealed(&format!("{text}abilities = 5\n"))).contains("not readable"));
        // An ability that was not known when it was written.
        let some = read_super(&sealed(&format!("{text}[abilities]\nfifos = false\nwings = true\n"))).expect("sound");
        assert_eq!(some.abilities, Some(all_but(|all| all.fifos = false)));
    }

    /// Ten nodes of a job begin with the same slow tree (`srun dlio-fs mount`): of twelve such mounts seven went wrong,
    /// and one left a checkpoint in a fast tier that was refused from then on.
    #[test]
    fn all_who_begin_with_a_slow_tree_at_once_know_it_by_the_same_id() {
        for _ in 0..10 {
            let (slow, begin) = (tempfile::tempdir().expect("a directory"), Barrier::new(10));
            let mount = || {
                let fast = tempfile::tempdir().expect("a directory");
                let (fast, slow) = (OsDir::open(fast.path()).expect("fast"), OsDir::open(slow.path()).expect("slow"));
                let _log = ensure_dir(&fast, b"log").expect("log");
                begin.wait();
                let identity = identify(&fast, &slow, true).expect("an identity");
                let tmp = ensure_dir(&*slow.dir(OURS).expect("made"), b"tmp").expect("tmp");
                ensure_dir(&*tmp, identity.uuid.as_bytes()).expect("tmp of its own");
                identity.slow
            };
            let ids: BTreeSet<String> = std::thread::scope(|scope| {
                let mounts: Vec<_> = (0..10).map(|_| scope.spawn(mount)).collect();
                mounts.into_iter().map(|mount| mount.join().expect("no panic")).collect()
            });
            let slow = OsDir::open(slow.path()).expect("slow");
            assert_eq!(Vec::from_iter(ids), [read_slow_id(&slow).expect("readable").expect("an id")]);
            let ours = slow.dir(OURS).expect("made").list().expect("listed");
            let names: BTreeSet<Vec<u8>> = ours.into_iter().map(|entry| entry.name).collect();
            assert_eq!(names, BTreeSet::from([b"id".to_vec(), b"tmp".to_vec()]), "nothing is left of the others'");
        }
    }
}
