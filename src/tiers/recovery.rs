//! How every start begins: from what lies on the two tiers to an engine that is ready to serve.
//!
//! 1. the fast tier's layout is made or checked, and the slow tier identified (P7);
//! 2. the log is read, a torn tail cut;
//! 3. intents behind the last `applied` are finished on the slow tier: their group was under way;
//! 4. copies in `tmp` that nobody will publish are swept;
//! 5. the records behind `applied` are replayed into the view. After a change of boot, content that was not sealed is
//!    struck: the version before it is shown;
//! 6. objects: the ones in use are attached, proven ones wait for their file, superseded ones are deleted, and what no
//!    record explains is quarantined;
//! 7. `start`, new `bind` records and `applied` are logged: the next start need not do 3 again;
//! 8. what a cut-off writer left waits for a close, a sync or a drain that accepts it as it is; where it has written over a
//!    version that is owed, so does everything behind that.
//!
//! A crash behind any step repeats it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::{Context, Errno, Error, Result};
use crate::path::{Name, escape};
use crate::tiers::commit::{own_xattrs, tmp_name};
use crate::tiers::data::is_full;
use crate::tiers::disk::{Access, Clock, Dir, Kind, NewAttr, RenameMode};
use crate::tiers::drain::{remove_leftover, set_attrs};
use crate::tiers::file::{Bytes, Content, FileState, Io};
use crate::tiers::log::Log;
use crate::tiers::names::{OURS, add_made, add_subdir, apply_rename};
use crate::tiers::pool::{Pool, Proof, number_of};
use crate::tiers::publish::Touched;
use crate::tiers::record::{Attrs, Home, ObjectId, Record, Spec, Step};
use crate::tiers::slow::{SlowTier, absent_is_none, split};
use crate::tiers::state::{Change, State};
use crate::tiers::status::Counters;
use crate::tiers::sync::{Mutex, Rank, RwLock};
use crate::tiers::view::{FIRST_OWN, Meta, Place, View, Waiting};
use crate::tiers::{Cx, Ino, Lsn, Options, ROOT, Tiers, attrs};

/// The format of everything under `<fast>/.dlio-fs`.
pub(crate) const FORMAT: u32 = 1;

/// `<fast>/.dlio-fs/super`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Super {
    pub(crate) format: u32,
    /// This fast tier.
    pub(crate) uuid: String,
    /// The slow tree it belongs to, as in `<slow>/.dlio-fs/id`.
    pub(crate) slow: String,
    /// CRC-32 of the three above, in hexadecimal. Older ones have none.
    #[serde(default)]
    pub(crate) sum: Option<String>,
}

impl Super {
    fn new(uuid: String, slow: String) -> Self {
        let unsigned = Super { format: FORMAT, uuid, slow, sum: None };
        Super { sum: Some(unsigned.right_sum()), ..unsigned }
    }

    fn right_sum(&self) -> String {
        let Super { format, uuid, slow, .. } = self;
        format!("{:08x}", crc32fast::hash(format!("{format} {uuid} {slow}").as_bytes()))
    }
}

/// Opens both tiers, recovers, and returns the engine ready to serve. The fast tier must be locked by the caller.
///
/// `fast` and `slow` are the tiers' roots. `boot` names this boot of the machine: what was not sealed in another boot is
/// struck.
pub fn open(
    fast: Arc<dyn Dir>,
    slow: Arc<dyn Dir>,
    options: Options,
    clock: Arc<dyn Clock>,
    boot: &str,
) -> Result<Tiers> {
    open_with(fast, slow, true, options, clock, boot)
}

/// As [`open`], over a slow tier that cannot be written: nothing is made or removed there. For a mount that takes no
/// changes; what the fast tier still owes to the slow tree is shown, and waits for a mount that may write.
pub fn open_over_read_only(
    fast: Arc<dyn Dir>,
    slow: Arc<dyn Dir>,
    options: Options,
    clock: Arc<dyn Clock>,
    boot: &str,
) -> Result<Tiers> {
    open_with(fast, slow, false, options, clock, boot)
}

fn open_with(
    fast: Arc<dyn Dir>,
    slow: Arc<dyn Dir>,
    writable: bool,
    options: Options,
    clock: Arc<dyn Clock>,
    boot: &str,
) -> Result<Tiers> {
    let ours = ensure_dir(&*fast, OURS)?;
    for name in [&b"log"[..], b"pool", b"quarantine"] {
        ensure_dir(&*ours, name)?;
    }
    let identity = identify(&*ours, &*slow, writable)?; // 1
    let tmp = match writable {
        true => ensure_dir(&*ensure_dir(&*ensure_dir(&*slow, OURS)?, b"tmp")?, identity.uuid.as_bytes())?,
        false => existing_tmp(&*ours, &*slow, &identity)?,
    };
    let pool = Pool::open(&*ours)?;
    let opened = Log::open(ours.clone(), options.ballast, boot)?; // 2
    if opened.records.is_empty() {
        expect_empty(&pool)?;
    }
    let root = slow.stat(b".").at("stat", "slow tier")?;
    let view = View::new(&root, clock.uptime());
    let damaged = (!opened.damage.is_empty()).then(|| {
        format!(
            "the log is damaged ({}); nothing is copied down until it has been looked at: dlio-fs rescue",
            opened.damage.join("; ")
        )
    });
    let tiers = Tiers {
        pool,
        slow: SlowTier::new(slow, tmp, [OURS, b"/tmp/", identity.uuid.as_bytes()].concat()),
        fast,
        log: opened.log,
        state: Mutex::new(Rank::State, State::new(view)),
        options: RwLock::new(Rank::Leaf, 0, Arc::new(options)),
        clock,
        wake: OnceLock::new(),
        hurry: AtomicU64::new(0),
        publishing: Mutex::new(Rank::Publishing, None),
        damaged,
        counters: Counters::default(),
    };
    if let Some(damage) = &tiers.damaged {
        tracing::error!("{damage}");
    }
    if opened.torn > 0 {
        tracing::info!(bytes = opened.torn, "cut a torn record off the end of the log");
    }
    Recovery::new(&tiers, opened.records, boot).run(writable)?;
    Ok(tiers)
}

/// A start is logged before the first object is made.
fn expect_empty(pool: &Pool) -> Result<()> {
    match pool.numbers()?.len() {
        0 => Ok(()),
        objects => Err(Error::refused(
            format!("the log of the fast tier is gone or unreadable, and its pool has {objects} objects"),
            "save its files with `dlio-fs rescue`, then use an empty fast tier",
        )),
    }
}

/// Objects that did not fit may lie in the `tmp` of a slow tier that was writable once. One that never was has none: then
/// an empty directory on the fast tier stands for it.
fn existing_tmp(ours: &dyn Dir, slow: &dyn Dir, identity: &Super) -> Result<Arc<dyn Dir>> {
    let below = |dir: Arc<dyn Dir>, name: &[u8]| dir.dir(name);
    let there = slow.dir(OURS).and_then(|dir| below(dir, b"tmp")).and_then(|dir| below(dir, identity.uuid.as_bytes()));
    match absent_is_none(there).at("open", "tmp on the slow tier")? {
        Some(tmp) => Ok(tmp),
        None => ensure_dir(ours, b"tmp"),
    }
}

fn ensure_dir(parent: &dyn Dir, name: &[u8]) -> Result<Arc<dyn Dir>> {
    let what = || String::from_utf8_lossy(name).into_owned();
    match parent.dir(name) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            parent.mkdir(name, 0o700).at("create", what())?;
            parent.sync().at("fsync", what())?;
            parent.dir(name).at("open", what())
        }
        other => other.at("open", what()),
    }
}

/// `super` and `id` are a few lines.
const TEXT_MAX: u64 = 64 << 10;

/// In `super`: the slow tree could not be written when the fast tier was first used with it, and has no `id`.
pub(crate) const UNIDENTIFIED: &str = "read-only";

/// Step 1: whether these two belong together.
fn identify(ours: &dyn Dir, slow: &dyn Dir, writable: bool) -> Result<Super> {
    let slow_id = read_slow_id(slow)?;
    let Some(text) = read_text(ours, b"super")? else {
        let used = !ours.dir(b"log").and_then(|dir| dir.list()).at("list", "log")?.is_empty();
        if used {
            return Err(Error::refused(
                "the fast tier has a log but no .dlio-fs/super",
                "save its files with `dlio-fs rescue`, then use an empty fast tier",
            ));
        }
        return write_super(ours, uuid::Uuid::new_v4().to_string(), slow, slow_id, writable);
    };
    let identity = read_super(&text)?;
    if identity.sum.is_none() {
        write_whole_super(ours, &Super::new(identity.uuid.clone(), identity.slow.clone()))?;
    }
    if identity.slow == UNIDENTIFIED {
        // Nothing was ever written through a mount over such a tree, so nothing is owed to it.
        return write_super(ours, identity.uuid, slow, slow_id, writable);
    }
    match slow_id {
        None => Err(Error::refused(
            "the slow tier has no .dlio-fs/id, but this fast tier has been used with one that has",
            "is the slow tier not mounted? If its tree was moved on purpose, move .dlio-fs with it",
        )),
        Some(id) if id != identity.slow => Err(Error::refused(
            format!("the fast tier belongs to the slow tree {}, this one is {id}", identity.slow),
            "mount it with its own slow tier, or use an empty fast tier for this one",
        )),
        Some(_) => Ok(identity),
    }
}

/// The format is looked at first: of another one nothing else is known.
pub(crate) fn read_super(text: &str) -> Result<Super> {
    #[derive(Deserialize)]
    struct OnlyFormat {
        format: u32,
    }
    let unreadable = |e: toml::de::Error| {
        Error::refused(
            format!("the fast tier's .dlio-fs/super is not readable: {}", e.message()),
            "save its files with `dlio-fs rescue`, then use an empty fast tier",
        )
    };
    let OnlyFormat { format } = toml::from_str(text).map_err(unreadable)?;
    if format != FORMAT {
        let age = if format > FORMAT { "a newer" } else { "an older" };
        return Err(Error::refused(
            format!("the fast tier was written by {age} dlio-fs: it has format {format}, this one reads {FORMAT}"),
            "mount it with the version of dlio-fs that wrote it and drain it there",
        ));
    }
    let identity: Super = toml::from_str(text).map_err(unreadable)?;
    let sum = identity.right_sum();
    if identity.sum.as_ref().is_some_and(|written| *written != sum) || uuid::Uuid::try_parse(&identity.uuid).is_err() {
        return Err(Error::refused(
            "the fast tier's .dlio-fs/super is damaged: its checksum does not fit what it says",
            "save its files with `dlio-fs rescue`, then use an empty fast tier",
        ));
    }
    Ok(identity)
}

fn write_super(ours: &dyn Dir, uuid: String, slow: &dyn Dir, id: Option<String>, writable: bool) -> Result<Super> {
    let slow = match id {
        Some(id) => id,
        None if writable => write_slow_id(slow)?,
        None => UNIDENTIFIED.to_owned(),
    };
    let identity = Super::new(uuid, slow);
    write_whole_super(ours, &identity)?;
    Ok(identity)
}

fn write_whole_super(ours: &dyn Dir, identity: &Super) -> Result<()> {
    let text = toml::to_string(identity).map_err(|e| Error::refused(e.to_string(), "report this"))?;
    replace_text(ours, b"super", &text)
}

pub(crate) fn read_slow_id(slow: &dyn Dir) -> Result<Option<String>> {
    // The first that is wanted of a slow tier, so this is where a broken one shows.
    let unusable = |error: Error| match error.errno() {
        Errno::EIO => Error::refused(
            format!(".dlio-fs/id on the slow tier cannot be read: {error}"),
            "see the kernel log for its device; unmount its file system and mount it again",
        ),
        _ => error,
    };
    let ours = absent_is_none(slow.dir(OURS)).at("open", ".dlio-fs on the slow tier").map_err(unusable)?;
    let text = ours.map_or(Ok(None), |ours| read_text(&*ours, b"id").map_err(unusable))?;
    Ok(text.map(|text| text.trim().to_string()))
}

fn write_slow_id(slow: &dyn Dir) -> Result<String> {
    let ours = ensure_dir(slow, OURS)?;
    let id = uuid::Uuid::new_v4().to_string();
    replace_text(&*ours, b"id", &format!("{id}\n"))?;
    Ok(id)
}

pub(crate) fn read_text(dir: &dyn Dir, name: &[u8]) -> Result<Option<String>> {
    let what = || String::from_utf8_lossy(name).into_owned();
    let Some(file) = absent_is_none(dir.open(name, Access::Read)).at("open", what())? else { return Ok(None) };
    let len = file.stat().at("stat", what())?.size;
    let mut bytes = vec![0; len.min(TEXT_MAX) as usize];
    let got = file.read_at(&mut bytes, 0).at("read", what())?;
    bytes.truncate(got);
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Written beside, synced, renamed, synced: there is always one whole file.
fn replace_text(dir: &dyn Dir, name: &[u8], text: &str) -> Result<()> {
    let what = || String::from_utf8_lossy(name).into_owned();
    let beside = [name, b".new"].concat();
    remove_leftover(dir, &beside)?;
    let file = dir.create(&beside, 0o600).at("create", what())?;
    file.write_at(text.as_bytes(), 0).at("write", what())?;
    file.sync().at("fsync", what())?;
    dir.rename(&beside, dir, name, RenameMode::Replace).at("rename", what())?;
    dir.sync().at("fsync", what())
}

struct Recovery<'a> {
    tiers: &'a Tiers,
    records: Vec<(Lsn, Record)>,
    boot: &'a str,
    /// The last daemon ran in another boot: what it did not sync may be gone.
    rebooted: bool,
    cx: Cx,
    /// Up to where everything is on the slow tier, once the intents are finished.
    applied: Lsn,
    sealed: HashSet<Lsn>,
    /// Objects the log speaks of: what becomes of them is known.
    explained: HashSet<ObjectId>,
    struck: HashSet<ObjectId>,
    /// Of those, the ones of which something was lost, and what.
    lost: HashMap<ObjectId, String>,
    /// After a reboot: the newest sealed version of each object, to cut what a power cut left behind it and to give it
    /// back the attributes it was sealed with. Always: the committed objects on the slow tier.
    sealed_as: HashMap<ObjectId, (u64, Attrs)>,
    /// What we have placed on the slow tier, by its number there, and the intent that says so.
    placed: HashMap<u64, Lsn>,
    /// The inode each number of the log is now, as far as it has been met.
    met: HashMap<Ino, Ino>,
    /// The inodes met.
    taken: HashSet<Ino>,
    /// Numbers of files that were struck and have no older version: what follows about them is about nothing.
    never: HashSet<Ino>,
    /// Changes of attributes behind a file's newest content, for its object: in memory and in the log they are, on the
    /// object perhaps not.
    later_attrs: BTreeMap<Ino, Vec<(Lsn, Record)>>,
}

/// A file whose bytes are ahead of its events, by the record that says so.
struct Bound {
    lsn: Lsn,
    paths: Vec<Vec<u8>>,
    ino: Ino,
    object: ObjectId,
}

impl<'a> Recovery<'a> {
    fn new(tiers: &'a Tiers, records: Vec<(Lsn, Record)>, boot: &'a str) -> Self {
        let sealed = records.iter().filter_map(|(_, r)| if let Record::Seal { of, .. } = r { Some(*of) } else { None });
        let never = records.iter().filter_map(|(_, r)| if let Record::Struck { ino } = r { Some(*ino) } else { None });
        let placed = records.iter().filter_map(|(lsn, r)| match r {
            Record::Intent { step: Step::Place { ino, .. }, .. } => Some((*ino, *lsn)),
            _ => None,
        });
        let explained = records.iter().filter_map(|(_, r)| object_of(r));
        let last =
            records.iter().rev().find_map(|(_, r)| if let Record::Start { boot } = r { Some(boot) } else { None });
        Recovery {
            rebooted: last.is_some_and(|last| last != boot),
            sealed: sealed.collect(),
            placed: placed.collect(),
            explained: explained.collect(),
            tiers,
            boot,
            cx: Cx::internal(),
            applied: 0,
            struck: HashSet::new(),
            lost: HashMap::new(),
            met: HashMap::new(),
            taken: HashSet::new(),
            never: never.collect(),
            sealed_as: HashMap::new(),
            later_attrs: BTreeMap::new(),
            records,
        }
    }

    fn run(mut self, slow_is_writable: bool) -> Result<()> {
        self.reserve_numbers()?;
        // After a change of boot there is nothing left to sync.
        self.tiers.state.lock().in_place_before = !self.rebooted && !self.records.is_empty();
        let placed = self.finish_intents()?; // 3
        let binds = self.binds_passed();
        if slow_is_writable {
            self.sweep()?; // 4
        }
        self.prove_placed(&placed, &binds)?;
        self.find_waiting()?;
        self.find_lost()?;
        for Bound { lsn, paths, ino, object } in &binds {
            self.learn_names(&paths[1..])?;
            self.replay_bind(&paths[0], *ino, *object, *lsn)?;
        }
        self.replay()?; // 5
        self.restore_sealed()?;
        self.reapply_attrs()?;
        self.sort_objects()?; // 6
        self.log_start()?; // 7
        self.mark_cut_off(); // 8
        tracing::info!(
            applied = self.applied,
            pending = self.tiers.state.lock().events.len(),
            struck = self.struck.len(),
            "recovered"
        );
        Ok(())
    }

    /// What was put aside keeps its number too: the next one to be put aside must not take its name.
    fn reserve_numbers(&self) -> Result<()> {
        self.tiers.pool.quarantined_numbers()?.into_iter().for_each(|number| self.tiers.pool.reserve(number));
        let mut st = self.tiers.state.lock();
        for (_, record) in &self.records {
            if let Some(object) = object_of(record) {
                self.tiers.pool.reserve(object.number);
            }
            if let Some(ino) = record.ino().filter(|ino| *ino >= FIRST_OWN) {
                st.view.reserve(ino);
            }
        }
        Ok(())
    }

    /// Step 3. Every step is done or found done, by the inode numbers it names. Returns the placed versions.
    fn finish_intents(&mut self) -> Result<Vec<Step>> {
        let last = self.records.iter().rposition(|(_, record)| matches!(record, Record::Applied { .. }));
        if let Some((_, Record::Applied { upto })) = last.map(|at| &self.records[at]) {
            self.applied = *upto;
        }
        let mut placed = Vec::new();
        let mut touched = Touched::default();
        let intents = self.records[last.map_or(0, |at| at + 1)..].iter().filter_map(|(_, record)| match record {
            Record::Intent { upto, index, count, step } => Some((*upto, *index, *count, step)),
            _ => None,
        });
        let intents: Vec<_> = intents.collect();
        // They are made durable together before the first of them is done: if one is missing, none was.
        let whole = intents.first().is_some_and(|(_, _, count, _)| *count == intents.len() as u64)
            && intents.iter().enumerate().all(|(i, (_, index, ..))| *index == i as u64);
        for (upto, _, _, step) in intents.into_iter().filter(|_| whole || left_out!(AllIntents)) {
            let path = crate::tiers::publish::step_path(step);
            self.tiers.slow.apply(step, None).at("finish publishing", String::from_utf8_lossy(path))?;
            touched.add(step);
            self.applied = self.applied.max(upto);
            placed.push(step.clone());
        }
        touched.sync(self.tiers)?;
        self.tiers.state.lock().applied = self.applied;
        Ok(placed)
    }

    /// Files whose bytes were ahead of their events when `applied` passed their `bind` record in a group that a crash cut
    /// off: their names behind `applied`.
    fn binds_passed(&self) -> Vec<Bound> {
        let before = Record::applied(self.records.iter().map(|(_, record)| record));
        if before == self.applied {
            return Vec::new();
        }
        let mut alive: HashMap<Ino, Bound> = HashMap::new();
        let mut names: HashMap<Ino, Vec<Vec<u8>>> = HashMap::new();
        let mut boot = "";
        for (lsn, record) in &self.records {
            if let Record::Start { boot: started } = record {
                boot = started;
            }
            if *lsn <= before || *lsn > self.applied {
                continue;
            }
            match record {
                Record::Names { ino, paths } => {
                    names.insert(*ino, paths.clone());
                }
                Record::Bind { path, ino, object } if boot == self.boot => {
                    let paths = names.remove(ino).unwrap_or_else(|| vec![path.clone()]);
                    alive.insert(*ino, Bound { lsn: *lsn, paths, ino: *ino, object: *object });
                }
                Record::Link { to, ino, .. } => {
                    if let Some(bound) = alive.get_mut(ino) {
                        bound.paths.push(to.clone());
                    }
                }
                Record::Content { ino, object, .. } if alive.get(ino).is_some_and(|bound| bound.object == *object) => {
                    alive.remove(ino);
                }
                Record::Rename { path, to, exchange, .. } => {
                    for Bound { paths, .. } in alive.values_mut() {
                        paths.retain(|at| *exchange || at != to);
                        paths.iter_mut().for_each(|at| *at = carried(at, path, to, *exchange));
                    }
                }
                Record::Remove { path, .. } => {
                    alive.values_mut().for_each(|bound| bound.paths.retain(|at| at != path));
                }
                _ => {}
            }
        }
        let mut binds: Vec<Bound> = alive.into_values().filter(|bound| !bound.paths.is_empty()).collect();
        binds.sort_by_key(|bound| bound.lsn);
        binds
    }

    /// Step 4: everything of ours in `tmp` but objects.
    fn sweep(&self) -> Result<()> {
        let tmp = &*self.tiers.slow.tmp;
        for entry in tmp.list().at("list", "tmp on the slow tier")? {
            if !entry.name.starts_with(b"o") && !entry.name.starts_with(b"q") {
                remove_leftover(tmp, &entry.name)?;
            }
        }
        Ok(())
    }

    /// A version placed by a group that a crash cut off is clean, unless its object has been written to since. After a power cut
    /// the object may lack attributes that the slow tier has by now: it goes.
    fn prove_placed(&self, placed: &[Step], binds: &[Bound]) -> Result<()> {
        if self.rebooted {
            return Ok(());
        }
        for step in placed {
            let Step::Place { path, object: Some(object), ino, .. } = step else { continue };
            let changed = self.changed_since(*object) || binds.iter().any(|bound| bound.object.uses(*object));
            if object.needs_slow() || changed || self.needed_later(*object) {
                continue;
            }
            let file = match self.tiers.pool.open_object(object.number, Access::ReadWrite) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.at("open", "object")?,
            };
            let twin = self.tiers.slow.stat(path).at("stat on slow", String::from_utf8_lossy(path))?;
            if let Some(twin) = twin.filter(|twin| twin.ino == *ino) {
                Pool::set_sum(&*file, None);
                match Pool::prove(&*file, &Proof::of(&twin)) {
                    // No room for the proof: without one the object goes, and the slow tier has its bytes.
                    Err(e) if is_full(&e) => {}
                    other => other.at("prove clean", "object")?,
                }
            }
        }
        Ok(())
    }

    /// Whether the object was written to after its last version became an event; also by what a power cut has struck.
    fn changed_since(&self, object: ObjectId) -> bool {
        let last = self.records.iter().rev().find_map(|(_, record)| match record {
            Record::Bind { object: other, .. } if other.uses(object) => Some(true),
            Record::Content { object: other, .. } if other.uses(object) => Some(*other != object),
            _ => None,
        });
        last == Some(true)
    }

    fn needed_later(&self, object: ObjectId) -> bool {
        let later = self.records.iter().filter(|(lsn, _)| *lsn > self.applied);
        later
            .into_iter()
            .any(|(_, r)| !matches!(r, Record::Intent { .. }) && object_of(r).is_some_and(|other| other.uses(object)))
    }

    /// Proven objects, by the slow inode they are equal to; they meet their file when it is looked up.
    fn find_waiting(&self) -> Result<()> {
        let mut proven = Vec::new();
        for number in self.tiers.pool.numbers()? {
            self.tiers.pool.reserve(number);
            let object = ObjectId { home: Home::Fast, number };
            let opened = self.tiers.pool.open_object(number, Access::Read);
            let told = opened.and_then(|file| Ok((Pool::proof_of(&*file)?, Pool::name_of(&*file)?)));
            let (proof, named) = match told {
                Ok(told) => told,
                Err(error) => {
                    // Unproven: it is put aside, or if its file needs it, named when it is read.
                    tracing::error!(object = number, %error, "an object of the pool cannot be read");
                    continue;
                }
            };
            let Some(proof) = proof else { continue };
            proven.push((object, proof, named.map(|named| named.ino)));
        }
        let mut st = self.tiers.state.lock();
        // Before the first new number is given out.
        let numbers = proven.iter().filter_map(|(_, _, ino)| *ino);
        numbers.filter(|ino| *ino >= FIRST_OWN).for_each(|ino| st.view.reserve(ino));
        for (object, proof, ino) in proven {
            let ino = ino.unwrap_or_else(|| st.view.new_ino());
            st.view.wait(Waiting { object, ino, proof, tried: false });
        }
        Ok(())
    }

    /// Step 5.
    fn replay(&mut self) -> Result<()> {
        let records = std::mem::take(&mut self.records);
        let mut boot = String::new();
        for (lsn, record) in &records {
            if let Record::Start { boot: started } = record {
                boot.clone_from(started);
            }
            if *lsn <= self.applied {
                continue;
            }
            self.replay_one(*lsn, record, boot == self.boot)?;
        }
        self.records = records;
        Ok(())
    }

    fn replay_one(&mut self, lsn: Lsn, record: &Record, this_boot: bool) -> Result<()> {
        match record {
            Record::Bind { path, ino, object } | Record::Content { path, ino, object, .. }
                if self.lost.contains_key(object) =>
            {
                self.strike(path, *ino, *object)
            }
            Record::Bind { path, ino, object } if this_boot => self.replay_bind(path, *ino, *object, lsn),
            Record::Bind { path, ino, object } => self.strike(path, *ino, *object),
            Record::Content { path, ino, object, size, attrs } => {
                if this_boot || self.sealed.contains(&lsn) || left_out!(Strike) {
                    self.struck.remove(object);
                    self.never.remove(ino);
                    self.replay_content(lsn, path, *ino, *object, *size, attrs)
                } else {
                    self.strike(path, *ino, *object)
                }
            }
            Record::Breach { ino, object, from } => self.replay_breach(lsn, *ino, *object, *from),
            Record::Names { paths, .. } => self.learn_names(paths),
            Record::Expect { path, slow } => self.replay_expect(lsn, path, slow.as_ref(), this_boot),
            Record::Make { path, ino, spec } => self.replay_make(lsn, path, *ino, spec),
            Record::Link { path, to, ino } => self.replay_link(lsn, path, to, *ino),
            Record::Rename { path, to, ino, exchange } => self.replay_rename(lsn, path, to, *ino, *exchange),
            Record::Remove { path, ino, dir } => self.replay_remove(lsn, path, *ino, *dir),
            Record::SetAttr { .. } | Record::SetXattr { .. } => self.replay_attr(lsn, record),
            Record::Start { .. }
            | Record::Struck { .. }
            | Record::Seal { .. }
            | Record::Intent { .. }
            | Record::Applied { .. } => Ok(()),
        }
    }

    /// Looks up all the names of a file, so that its next version goes to each of them.
    fn learn_names(&self, paths: &[Vec<u8>]) -> Result<()> {
        for path in paths {
            if let Some(place) = self.place(path)? {
                self.find(&place, None)?;
            }
        }
        Ok(())
    }

    /// The directory and last name of a path of the view, if all the directories are there.
    fn place(&self, path: &[u8]) -> Result<Option<Place>> {
        let (dirs, name) = split(path);
        let mut dir = ROOT;
        for part in dirs.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
            match self.find(&(dir, name_of(part)?), None)? {
                Some(ino) => dir = ino,
                None => return Ok(None),
            }
        }
        let is_dir = self.tiers.state.lock().view.live_dir(dir).is_some();
        Ok(if is_dir { Some((dir, name_of(name)?)) } else { None })
    }

    fn find(&self, (dir, name): &Place, expected: Option<Ino>) -> Result<Option<Ino>> {
        self.tiers.state.lock().view.expected = expected;
        let found = self.tiers.resolve(&self.cx, *dir, name);
        self.tiers.state.lock().view.expected = None;
        match found {
            Err(Error::Posix(Errno::ENOTDIR)) => Ok(None),
            other => other,
        }
    }

    /// A version that was not sealed before the power went: the one before it is shown, if there is one.
    fn strike(&mut self, path: &[u8], ino: Ino, object: ObjectId) -> Result<()> {
        self.struck.insert(object);
        if self.at(path, ino)?.is_none() && !self.met.contains_key(&ino) {
            self.never.insert(ino);
        }
        Ok(())
    }

    /// The node a record speaks of, at the path it says; numbered as the record says if it is met for the first time.
    /// `None` if another one is there: the one that was meant has been struck.
    fn at(&mut self, path: &[u8], ino: Ino) -> Result<Option<(Place, Ino)>> {
        let Some(place) = self.place(path)? else { return Ok(None) };
        if self.never.contains(&ino) {
            return Ok(None);
        }
        let found = self.find(&place, Some(ino))?;
        // While nothing was struck, every path leads where it led. One node goes by two numbers where a start came between two
        // of its records: the one it was made with, and then the slow tier's.
        let certain = self.struck.is_empty() && self.never.is_empty();
        let twin = if ino < FIRST_OWN { self.tiers.state.lock().view.with_slow_ino(ino) } else { None };
        let unmet = |found: &Ino| *found == ino || twin == Some(*found) || !self.taken.contains(found);
        let same = |found: &Ino| certain || self.met.get(&ino).map_or_else(|| unmet(found), |met| met == found);
        let Some(found) = found.filter(same) else { return Ok(None) };
        self.meet(ino, found);
        Ok(Some((place, found)))
    }

    fn meet(&mut self, logged: Ino, found: Ino) {
        self.met.insert(logged, found);
        self.taken.insert(found);
    }

    /// The file at `place`, made if there is none.
    fn file_at(&mut self, place: &Place, ino: Ino) -> Result<Option<Arc<FileState>>> {
        let found = self.find(place, Some(ino))?;
        let now = self.tiers.now();
        let mut st = self.tiers.state.lock();
        if let Some(found) = found {
            self.meet(ino, found);
            return Ok(st.view.file(found));
        }
        let logged = ino;
        let ino = if st.view.get(ino).is_some() { st.view.new_ino() } else { ino };
        let meta = Meta { nlink: 1, mtime: now, ctime: now, atime: now, ..Meta::default() };
        let file = st.view.add(ino, Kind::File, meta).file.clone();
        st.view.set_view(place.0, &place.1, Some(ino));
        self.meet(logged, ino);
        Ok(file)
    }

    fn has_object(&self, object: ObjectId) -> Result<bool> {
        let found = match object.home {
            Home::Fast => self.tiers.pool.stat(object.number),
            Home::Slow | Home::Split { .. } => self.tiers.slow.tmp.stat(&tmp_name(object)),
        };
        if let Some(head) = object.head()
            && !self.has_object(head)?
        {
            return Ok(false);
        }
        let found = absent_is_none(found).at("stat", crate::tiers::commit::label(object))?;
        Ok(found.is_some_and(|stat| stat.kind == Kind::File && (object.needs_slow() || stat.nlink == 1)))
    }

    /// Pending versions of which the fast tier has lost bytes: an object that is gone, or in the pool shorter than it was when
    /// the version was committed, although nobody has shortened it since. As after a power cut, the version before is shown.
    fn find_lost(&mut self) -> Result<()> {
        let mut contents = Vec::new();
        let mut boot = "";
        for (lsn, record) in &self.records {
            match record {
                Record::Start { boot: started } => boot = started,
                Record::Content { path, object, size, .. }
                    if *lsn > self.applied && (boot == self.boot || self.sealed.contains(lsn)) =>
                {
                    contents.push((*lsn, path, *object, *size));
                }
                _ => {}
            }
        }
        let mut lost = HashMap::new();
        for (lsn, path, object, size) in contents {
            let what = if !self.has_object(object)? {
                "its object is gone".to_owned()
            } else if object.needs_slow() {
                continue;
            } else {
                let has = self.tiers.pool.stat(object.number).at("stat", "object")?.size;
                if has >= size || Record::breached(&self.records, lsn, object, size) {
                    continue;
                }
                format!("its object has only {has} of {size} bytes")
            };
            let path = escape(path);
            tracing::error!(path, object = object.number, "a pending version is damaged and not shown: {what}");
            lost.insert(object, format!("damaged: {what}; it was {path}"));
        }
        self.tiers.counters.damaged.store(lost.len() as u64, Ordering::Relaxed);
        self.lost = lost;
        Ok(())
    }

    fn replay_bind(&mut self, path: &[u8], ino: Ino, object: ObjectId, lsn: Lsn) -> Result<()> {
        let Some(place) = self.place(path)? else { return Ok(()) };
        if !self.has_object(object)? {
            return Ok(());
        }
        let Some(file) = self.file_at(&place, ino)? else { return Ok(()) };
        let mut io = file.io.write();
        if io.object() != Some(object) {
            self.give_object(&file, &mut io, object)?;
        }
        self.sealed_as.remove(&object);
        self.goes_ahead(&file, &mut io, object, lsn);
        Ok(())
    }

    /// The file's bytes are ahead of its events.
    fn goes_ahead(&self, file: &FileState, io: &mut Io, object: ObjectId, lsn: Lsn) {
        io.attrs_in_view = false;
        io.dirty = true;
        io.clean = None;
        let now = self.tiers.uptime();
        self.tiers.state.lock().bind(file.ino, lsn, object, now);
    }

    /// Somebody else has changed what was under the name while no daemon ran: the view goes on from what was there, and publishing,
    /// which finds something else, keeps both (P11). What they removed is not missed. A power cut may have taken what we had written
    /// in place: that makes no file newer.
    fn replay_expect(&mut self, lsn: Lsn, path: &[u8], slow: Option<&Proof>, this_boot: bool) -> Result<()> {
        let Some(place) = self.place(path)? else { return Ok(()) };
        let Some(found) = self.find(&place, None)? else { return Ok(()) };
        let mut st = self.tiers.state.lock();
        let slot = st.view.get(place.0).and_then(|dir| dir.dir.as_ref()?.slots.get(&place.1));
        let twin = st.view.get(found).and_then(|node| Some((node.slow_id()?, node.twin()?)));
        let (Some(slot), Some(((dev, ino), twin))) = (slot, twin) else { return Ok(()) };
        let ours = self.placed.get(&ino).is_some_and(|placed| *placed > lsn);
        let older = |slow: &Proof| !this_boot && twin.mtime <= slow.mtime;
        let same =
            |slow: &Proof| slow.ino == twin.ino && ((slow.size, slow.mtime) == (twin.size, twin.mtime) || older(slow));
        if slot.pending() || ours || slow.is_some_and(same) {
            return Ok(());
        }
        tracing::warn!(path = %escape(path), "changed on the slow tier by somebody else while no daemon ran");
        match slow {
            None => st.view.disown(&place, self.tiers.uptime()),
            Some(slow) => {
                // No file has the number 0: theirs may have a new one, and another file theirs.
                let known = if slow.ino == ino { ino } else { 0 };
                st.view.set_slow_id(found, Some((dev, known)));
                if let Some(node) = st.view.get_mut(found) {
                    node.set_twin(Some(*slow));
                }
            }
        }
        Ok(())
    }

    /// After a change of boot too: a sealed version that was written over is shown as it is, for its synced bytes are nowhere
    /// else, and waits for somebody who accepts it.
    fn replay_breach(&mut self, lsn: Lsn, ino: Ino, object: ObjectId, from: u64) -> Result<()> {
        let Some(file) = self.met.get(&ino).and_then(|ino| self.tiers.state.lock().view.file(*ino)) else {
            return Ok(());
        };
        let mut io = file.io.write();
        let broken = |content: &Content| object.shares(content.object) && from < content.size;
        let mut any = false;
        if let Some(versions) = self.tiers.state.lock().contents.get(&file.ino) {
            for (_, content) in versions.iter().filter(|(_, content)| broken(content)) {
                content.intact.store(false, Ordering::Release);
                any = true;
            }
        }
        if let Some(known) = io.object().filter(|known| any && object.shares(*known)) {
            self.goes_ahead(&file, &mut io, known, lsn);
        }
        Ok(())
    }

    /// Attaches an object that a record names. It is not clean, whatever it says itself.
    fn give_object(&self, file: &FileState, io: &mut Io, object: ObjectId) -> Result<()> {
        if let Some(split) = self.tiers.open_split(&self.cx, object)?
            && !self.rebooted
        {
            split.finish_truncation().at("truncate", "object")?;
        }
        for object in [Some(object), object.head()].into_iter().flatten().filter(|object| !object.needs_slow()) {
            let fd = self.tiers.open_object(&self.cx, object)?;
            if let Some(proof) = Pool::proof_of(&*fd).at("read proof of", "object")? {
                let waiting = &mut self.tiers.state.lock().view.waiting;
                if waiting.get(&proof.ino).is_some_and(|waiting| waiting.object == object) {
                    waiting.remove(&proof.ino);
                }
                Pool::disprove(&*fd).at("take back the proof of", "object")?;
            }
        }
        let mut st = self.tiers.state.lock();
        if let Some(old) = io.object() {
            st.unset_clean(file.ino);
            st.unrefer(old, self.tiers.log.last());
        }
        st.refer(object);
        file.place(io, Bytes::Object(object), None);
        for (_, content) in st.contents.get(&file.ino).into_iter().flatten() {
            if object.shares(content.object) && content.is_alive() {
                file.owe(io, content.clone());
            }
        }
        if let Some(node) = st.view.get_mut(file.ino) {
            node.ours = true;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn replay_content(
        &mut self,
        lsn: Lsn,
        path: &[u8],
        ino: Ino,
        object: ObjectId,
        size: u64,
        attrs: &Attrs,
    ) -> Result<()> {
        let Some(place) = self.place(path)? else { return Ok(()) };
        let Some(file) = self.file_at(&place, ino)? else { return Ok(()) };
        self.later_attrs.remove(&file.ino);
        if let Some(head) = object.head() {
            self.sealed_as.remove(&head);
        }
        // An object on slow is published as it is: the drain may have been in the middle of adding to it, and a write of giving
        // it newer attributes.
        if self.rebooted || object.needs_slow() {
            self.sealed_as.insert(object, (size, attrs.clone()));
        }
        let mut io = file.io.write();
        if io.object() != Some(object) {
            self.give_object(&file, &mut io, object)?;
        }
        let mut st = self.tiers.state.lock();
        io.dirty = false;
        io.attrs_in_view = false;
        if let Some(node) = st.view.get_mut(file.ino).filter(|_| object.needs_slow()) {
            // What a change of its attributes starts from.
            let Attrs { perm, uid, gid, mtime, .. } = *attrs;
            let blocks = size.div_ceil(512);
            node.change_meta(|meta| *meta = Meta { perm, uid, gid, size, blocks, mtime, ..*meta });
        }
        let content = Arc::new(Content::new(object, size, attrs.clone()));
        let sealed = self.sealed.contains(&lsn);
        content.sealing.store(sealed, Ordering::SeqCst);
        content.sealed.store(sealed, Ordering::Release);
        file.owe(&mut io, content.clone());
        st.committed(file.ino);
        let now = self.tiers.uptime();
        st.push(lsn, now, Change::Content { ino: file.ino, at: place, content });
        Ok(())
    }

    fn replay_make(&mut self, lsn: Lsn, path: &[u8], ino: Ino, spec: &Spec) -> Result<()> {
        let Some(place) = self.place(path)? else { return Ok(()) };
        if self.find(&place, None)?.is_some() {
            return Ok(());
        }
        let now = self.tiers.uptime();
        let mut st = self.tiers.state.lock();
        let logged = ino;
        let ino = if ino < FIRST_OWN || st.view.get(ino).is_some() { st.view.new_ino() } else { ino };
        self.meet(logged, ino);
        add_made(&mut st, ino, spec, place.clone(), lsn);
        if spec.kind == Kind::Dir {
            add_subdir(&mut st, place.0, 1);
        }
        st.push(lsn, now, Change::Make { ino, at: place, spec: Arc::new(spec.clone()) });
        Ok(())
    }

    fn replay_link(&mut self, lsn: Lsn, path: &[u8], to: &[u8], ino: Ino) -> Result<()> {
        let (Some((_, ino)), Some(to)) = (self.at(path, ino)?, self.place(to)?) else { return Ok(()) };
        if self.find(&to, None)?.is_some() {
            return Ok(());
        }
        let now = self.tiers.uptime();
        let mut st = self.tiers.state.lock();
        if st.view.get(ino).is_none_or(|node| node.kind == Kind::Dir) {
            // A directory has one name; with two it could be inside of itself.
            return Ok(());
        }
        st.view.set_view(to.0, &to.1, Some(ino));
        if let Some(node) = st.view.get_mut(ino) {
            node.change_meta(|meta| meta.nlink += 1);
        }
        st.push(lsn, now, Change::Link { ino, at: to });
        Ok(())
    }

    fn replay_rename(&mut self, lsn: Lsn, path: &[u8], to: &[u8], ino: Ino, exchange: bool) -> Result<()> {
        let (from, to) = (self.place(path)?, self.place(to)?);
        let (Some(mut from), Some(mut to)) = (from, to) else { return Ok(()) };
        let mut mover = self.at(path, ino)?.map(|(_, ino)| ino);
        let mut other = self.find(&to, None)?;
        if exchange && mover.is_none() {
            // It was struck; the other one moves all the same.
            (mover, other) = (other, None);
            std::mem::swap(&mut from, &mut to);
        }
        let Some(ino) = mover else { return Ok(()) };
        let exchange = exchange && other.is_some();
        let change = match other {
            Some(other) if exchange => Change::Exchange { a: ino, a_at: from.clone(), b: other, b_at: to.clone() },
            replaced => Change::Rename { ino, from: from.clone(), to: to.clone(), replaced },
        };
        let now = self.tiers.uptime();
        let mut st = self.tiers.state.lock();
        let is_dir = |st: &State, ino: Ino| st.view.get(ino).is_some_and(|node| node.kind == Kind::Dir);
        let net =
            i32::from(is_dir(&st, ino)) - other.filter(|_| exchange).map_or(0, |other| i32::from(is_dir(&st, other)));
        apply_rename(&mut st, &change);
        if from.0 != to.0 {
            add_subdir(&mut st, from.0, -net);
            add_subdir(&mut st, to.0, net);
        }
        if let Some(other) = other.filter(|_| !exchange) {
            if is_dir(&st, other) {
                add_subdir(&mut st, to.0, -1);
            }
            if let Some(node) = st.view.get_mut(other) {
                node.change_meta(|meta| meta.nlink = meta.nlink.saturating_sub(1));
            }
            self.tiers.settle_removed(&mut st, other);
        }
        st.push(lsn, now, change);
        Ok(())
    }

    /// What still has the name of a file that was struck and then removed: it had been replaced, and does not come back.
    fn replaced_by_struck(&self, path: &[u8]) -> Result<Option<(Place, Ino)>> {
        let Some(place) = self.place(path)? else { return Ok(None) };
        let found = self.find(&place, None)?;
        let st = self.tiers.state.lock();
        let found = found.filter(|ino| st.view.get(*ino).is_some_and(|node| node.kind != Kind::Dir));
        Ok(found.map(|ino| (place, ino)))
    }

    fn replay_remove(&mut self, lsn: Lsn, path: &[u8], ino: Ino, dir: bool) -> Result<()> {
        let found = match self.at(path, ino)? {
            None if self.never.contains(&ino) && !dir => self.replaced_by_struck(path)?,
            other => other,
        };
        let Some((at, ino)) = found else { return Ok(()) };
        let now = self.tiers.uptime();
        let mut st = self.tiers.state.lock();
        let slot = st.view.live_dir(at.0).and_then(|dir| dir.slots.get(&at.1));
        let never_seen = slot.is_some_and(|slot| slot.slow().is_none() && slot.pins == 0);
        st.view.set_view(at.0, &at.1, None);
        if dir {
            add_subdir(&mut st, at.0, -1);
        }
        if let Some(node) = st.view.get_mut(ino) {
            node.change_meta(|meta| meta.nlink = meta.nlink.saturating_sub(1));
        }
        self.tiers.settle_removed(&mut st, ino);
        if never_seen {
            st.view.collect(ino);
        } else {
            st.push(lsn, now, Change::Remove { ino, at });
        }
        Ok(())
    }

    /// The node a change of attributes is about; the root has no name.
    fn subject(&mut self, path: &[u8], ino: Ino) -> Result<Option<Ino>> {
        if path.is_empty() { Ok(Some(ROOT)) } else { Ok(self.at(path, ino)?.map(|(_, ino)| ino)) }
    }

    /// The file's object, open, if it has one.
    fn object_fd(&self, ino: Ino) -> Result<Option<Arc<dyn crate::tiers::disk::File>>> {
        let file = self.tiers.state.lock().view.get(ino).and_then(|node| node.file.clone());
        let object = file.and_then(|file| file.io.read().object());
        object.map(|object| self.tiers.open_object(&self.cx, object)).transpose()
    }

    fn replay_attr(&mut self, lsn: Lsn, record: &Record) -> Result<()> {
        let (Record::SetAttr { path, ino, .. } | Record::SetXattr { path, ino, .. }) = record else { return Ok(()) };
        let Some(ino) = self.subject(path, *ino)? else { return Ok(()) };
        let file = self.tiers.state.lock().view.get(ino).and_then(|node| node.file.clone());
        let has_object = file.is_some_and(|file| {
            let mut io = file.io.write();
            io.attrs_in_view |= io.goes_as_it_is();
            io.with_attrs().is_some()
        });
        if has_object {
            self.later_attrs.entry(ino).or_default().push((lsn, record.clone()));
        }
        let (now, uptime) = (self.tiers.now(), self.tiers.uptime());
        let mut st = self.tiers.state.lock();
        let change = match record {
            Record::SetXattr { key, value, .. } => {
                attrs::apply_xattr(&mut st, ino, key, value.as_deref(), Some(lsn), now, has_object);
                Change::SetXattr { ino, key: key.clone(), value: value.clone() }
            }
            Record::SetAttr { new, .. } => {
                self.tiers.apply_attr(&mut st, ino, new, now, Some(lsn), has_object)?;
                Change::SetAttr { ino, new: *new }
            }
            _ => return Ok(()),
        };
        st.push(lsn, uptime, change);
        Ok(())
    }

    /// After a power cut an object may be longer than its sealed version, or have attributes that were never synced.
    fn restore_sealed(&self) -> Result<()> {
        for (object, (size, attrs)) in &self.sealed_as {
            let fd = match self.tiers.open_object(&self.cx, *object) {
                Err(e) if e.errno() == Errno::ENOENT => continue,
                other => other?,
            };
            // Longer: never synced. Shorter: cut, as a `breach` record says, or the tail of an object that the drain adds to.
            let has = fd.stat().at("stat", "object")?.size;
            if has > *size || (has < *size && object.needs_slow()) {
                fd.set_len(*size).at("set the length of", "object")?;
            }
            for (key, _) in own_xattrs(&*fd)? {
                if !attrs.xattrs.iter().any(|(kept, _)| *kept == key) {
                    fd.remove_xattr(&key).at("set attribute of", "object")?;
                }
            }
            set_attrs(&*fd, attrs).at("set attributes of", "object")?;
        }
        Ok(())
    }

    /// Gives objects the logged changes of attributes again. Times only where no later write can have moved them on.
    fn reapply_attrs(&self) -> Result<()> {
        let last = self.records.last().map_or(0, |(lsn, _)| *lsn);
        for (ino, records) in &self.later_attrs {
            let Some(fd) = self.object_fd(*ino)? else { continue };
            let dirty = self.tiers.state.lock().uncommitted.contains_key(ino);
            for (lsn, record) in records {
                // The last operation before the end may have been logged and not done.
                let moved_on = dirty && *lsn != last;
                match record {
                    Record::SetAttr { new, .. } => {
                        let (atime, mtime) = if moved_on { (None, None) } else { (new.atime, new.mtime) };
                        fd.set_attr(&NewAttr { atime, mtime, ..*new })
                    }
                    Record::SetXattr { key, value: Some(value), .. } => fd.set_xattr(key, value),
                    Record::SetXattr { key, .. } => fd.remove_xattr(key),
                    _ => Ok(()),
                }
                .at("set attributes of", "object")?;
            }
        }
        Ok(())
    }

    /// Step 6.
    fn sort_objects(&self) -> Result<()> {
        let (used, waiting): (HashSet<ObjectId>, HashSet<ObjectId>) = {
            let st = self.tiers.state.lock();
            (files_of(st.objects.keys()), st.view.waiting.values().map(|waiting| waiting.object).collect())
        };
        let (explained, struck) = (files_of(&self.explained), files_of(&self.struck));
        for number in self.tiers.pool.numbers()? {
            let object = ObjectId { home: Home::Fast, number };
            if used.contains(&object) || waiting.contains(&object) {
                continue;
            }
            let empty =
                !self.lost.contains_key(&object) && self.tiers.pool.stat(number).at("stat", "object")?.size == 0;
            let superseded = explained.contains(&object) && !struck.contains(&object);
            if empty || (superseded && self.tiers.damaged.is_none()) {
                self.tiers.remove_object(object);
                continue;
            }
            let why = match self.lost.get(&object) {
                Some(what) => what,
                None if struck.contains(&object) => {
                    "not made durable before a power cut; the version before it is shown"
                }
                None => "no record of the log explains it",
            };
            self.tiers.pool.quarantine(number, why)?;
            self.tiers.counters.quarantined.fetch_add(1, Ordering::Relaxed);
        }
        for entry in self.tiers.slow.tmp.list().at("list", "tmp on the slow tier")? {
            let put_aside = entry.name.strip_prefix(b"q").unwrap_or(&entry.name);
            let Some(number) = put_aside.strip_prefix(b"o").and_then(number_of) else { continue };
            self.tiers.pool.reserve(number);
            if put_aside != entry.name {
                continue;
            }
            let object = ObjectId { home: Home::Slow, number };
            if used.contains(&object) {
                continue;
            }
            if explained.contains(&object) && !struck.contains(&object) && self.tiers.damaged.is_none() {
                self.tiers.remove_object(object);
            } else {
                let aside = [b"q", &entry.name[..]].concat();
                let tmp = &*self.tiers.slow.tmp;
                tmp.rename(&entry.name, tmp, &aside, RenameMode::Replace)
                    .at("quarantine", "object on the slow tier")?;
                self.tiers.counters.quarantined.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.tiers
            .state
            .lock()
            .doomed
            .retain(|(_, object)| object.needs_slow() || self.tiers.pool.stat(object.number).is_ok());
        self.tiers.counters.struck.store(self.struck.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Files that were struck and are still spoken of behind `applied`.
    fn struck_for_good(&self) -> impl Iterator<Item = Ino> {
        let behind = self.records.iter().filter(|(lsn, _)| *lsn > self.applied);
        let others = behind.filter(|(_, record)| !matches!(record, Record::Struck { .. }));
        let spoken_of: BTreeSet<Ino> = others.filter_map(|(_, record)| record.ino()).collect();
        spoken_of.into_iter().filter(|ino| self.never.contains(ino))
    }

    /// Step 7.
    fn log_start(&self) -> Result<()> {
        let mut st = self.tiers.state.lock();
        let bound: Vec<_> =
            st.bound.values().filter_map(|(ino, object)| Some((*ino, *object, st.view.path(*ino)?))).collect();
        let mut records = vec![Record::Start { boot: self.boot.to_string() }];
        records.extend(self.struck_for_good().map(|ino| Record::Struck { ino }));
        records.extend(bound.iter().flat_map(|(ino, ..)| st.before_bind(*ino)));
        let before = records.len() as u64;
        records.extend(bound.iter().map(|(ino, object, path)| Record::Bind {
            path: path.clone(),
            ino: *ino,
            object: *object,
        }));
        records.push(Record::Applied { upto: self.applied });
        let last = match self.tiers.log.append(&records) {
            Err(Error::Io { source, .. }) if is_full(&source) => {
                return Err(Error::refused(
                    "the fast tier is full, even for the log",
                    "free some space on its file system",
                ));
            }
            other => other?,
        };
        let first = last + 1 - records.len() as u64 + before;
        let now = self.tiers.uptime();
        for (lsn, (ino, object, _)) in (first..).zip(bound) {
            st.bind(ino, lsn, object, now);
        }
        drop(st);
        self.tiers.log.sync(last)
    }

    /// Step 8.
    fn mark_cut_off(&self) {
        let files: Vec<Arc<FileState>> = {
            let st = self.tiers.state.lock();
            st.bound.values().filter_map(|(ino, _)| st.view.get(*ino)?.file.clone()).collect()
        };
        for file in files {
            file.io.write().interrupted = true;
            let path = self.tiers.label(file.ino);
            tracing::warn!(
                path,
                "cut off while it was written: not copied down before it is closed, synced or drained"
            );
        }
    }
}

fn name_of(part: &[u8]) -> Result<Name> {
    Name::new(part).map_err(Error::from)
}

/// The files that these objects are, each by itself.
fn files_of<'a>(objects: impl IntoIterator<Item = &'a ObjectId>) -> HashSet<ObjectId> {
    objects.into_iter().flat_map(|object| [Some(object.tail()), object.head()]).flatten().collect()
}

fn object_of(record: &Record) -> Option<ObjectId> {
    match record {
        Record::Bind { object, .. } | Record::Content { object, .. } => Some(*object),
        Record::Intent { step: Step::Place { object, .. }, .. } => *object,
        _ => None,
    }
}

/// Where a path is after a rename of `from` to `to`.
fn carried(path: &[u8], from: &[u8], to: &[u8], exchange: bool) -> Vec<u8> {
    let moved = |from: &[u8], to: &[u8]| {
        let rest = path.strip_prefix(from)?;
        (rest.is_empty() || rest[0] == b'/').then(|| [to, rest].concat())
    };
    let back = if exchange { moved(to, from) } else { None };
    moved(from, to).or(back).unwrap_or_else(|| path.to_vec())
}
