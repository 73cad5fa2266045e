//! The objects of the pool at a start: what each is (step 2), which of them have lost bytes, and what becomes of unused
//! ones (step 6). `recovery/start.rs` has the steps.

use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::thread;

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};

use crate::error::{Context, Errno, Error, Result};
use crate::path::escape;
use crate::tiers::Lsn;
use crate::tiers::disk::errors::{absent_is_none, is_full};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::{Access, File, Kind, RenameMode};
use crate::tiers::log::record::{Home, ObjectId, Record, Step};
use crate::tiers::model::view::{FIRST_OWN, UnmetObject};
use crate::tiers::objects::attrs::{own_xattrs, set_attrs};
use crate::tiers::objects::pool::{Named, Pool, number_of};
use crate::tiers::recovery::replay::{each_of, object_of};
use crate::tiers::recovery::state::{Bound, Looked, Recovery};
use crate::tiers::sorted::SortedSet;

/// The fingerprint of the slow file that an object equals, and the object's recorded name.
type MarkedClean = (Fingerprint, Option<Named>);

/// The result of examining an object.
pub(super) type ObjectLook = io::Result<(Looked, Option<MarkedClean>)>;

/// Examines an object without its fingerprint.
fn stat_outside(pool: &Pool, number: u64) -> ObjectLook {
    let stat = pool.stat(number)?;
    if stat.kind != Kind::File {
        // The error that an open would give.
        return Err(Errno::EINVAL.into());
    }
    Ok((Looked { size: stat.size, alone: stat.nlink == 1, clean: false }, None))
}

/// Examines an object, and reads its fingerprint if it has one.
fn look(file: &dyn File) -> ObjectLook {
    let stat = file.stat()?;
    let fingerprint = Pool::fingerprint_of(file)?;
    let looked = Looked { size: stat.size, alone: stat.nlink == 1, clean: fingerprint.is_some() };
    let Some(fingerprint) = fingerprint else { return Ok((looked, None)) };
    Ok((looked, Some((fingerprint, Pool::name_of(file)?))))
}

/// Most threads that examine objects in parallel, if there are as many processors.
const LOOKING_MAX: usize = 8;

/// Fewer objects are not worth a thread.
pub(super) const LOOKS_EACH: usize = 4096;

fn inspect_one(pool: &Pool, number: u64) -> ObjectLook {
    pool.open_object(number, Access::Read).and_then(|file| look(&*file))
}

/// Examines these objects, on several threads if each has at least `least`; the results are in the order of the
/// numbers. The fingerprints of `unproven` objects are not read.
pub(super) fn look_at(pool: &Pool, numbers: &[u64], unproven: &SortedSet<u64>, least: usize) -> Vec<(u64, ObjectLook)> {
    let one = |number: &u64| match unproven.contains(number) {
        true => (*number, stat_outside(pool, *number)),
        false => (*number, inspect_one(pool, *number)),
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(LOOKING_MAX);
    let each = numbers.len().div_ceil(threads).max(least);
    let look = |some: &[u64]| -> Vec<_> { some.iter().map(one).collect() };
    let mut pieces = numbers.chunks(each);
    let ours = pieces.next().unwrap_or_default();
    thread::scope(|scope| {
        let others: Vec<_> = pieces
            .map(|some| (some, thread::Builder::new().name("dlio-look".to_owned()).spawn_scoped(scope, || look(some))))
            .collect();
        let mut all = look(ours);
        for (some, thread) in others {
            // If the thread cannot be started, this one does it.
            let looked = thread.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            all.extend(looked.unwrap_or_else(|_| look(some)));
        }
        all
    })
}

/// The objects of pending versions, and of files ahead of their events, that cannot have a fingerprint: it is removed
/// durably before the record about the change (P6), and the version gets one only after the intent to place it. Reading
/// the fingerprint costs more than everything else about them.
pub(super) fn unproven(records: &[(Lsn, Record)]) -> SortedSet<u64> {
    let applied = Record::applied(records.iter().map(|(_, record)| record));
    let (mut pending, mut placed) = (Vec::new(), Vec::new());
    for (lsn, record) in records {
        match record {
            Record::Bind { object, .. } | Record::Content { object, .. } if *lsn > applied => pending.push(*object),
            Record::Intent { step: Step::Place { object, .. }, .. } => placed.extend(*object),
            _ => {}
        }
    }
    let placed: SortedSet<ObjectId> = each_of(placed).collect();
    let pending = each_of(pending).filter(|object| object.home == Home::Fast && !placed.contains(object));
    pending.map(|object| object.number).collect()
}

/// Refuses a pool with objects but no log: a start is logged before the first object is made.
pub(super) fn expect_empty(numbers: &[u64]) -> Result<()> {
    match numbers.len() {
        0 => Ok(()),
        objects => Err(Error::refused(
            format!("the log of the fast tier is gone or unreadable, and its pool has {objects} objects"),
            "save its files with `dlio-fs rescue`, then use an empty fast tier",
        )),
    }
}

impl Recovery<'_> {
    /// Marks versions clean that were placed by a group that a crash cut off, unless their object has been written to
    /// since. After a power cut the object may lack attributes that the slow tier has by now: it is dropped.
    ///
    /// Returns the numbers of the objects that have a fingerprint now.
    pub(super) fn mark_placed_clean(&self, placed: &[Step], binds: &[Bound]) -> Result<HashSet<u64>> {
        let mut marked = HashSet::new();
        if self.rebooted {
            return Ok(marked);
        }
        for step in placed {
            let Step::Place { path, object: Some(object), id, .. } = step else { continue };
            let changed = self.changed_since(*object) || binds.iter().any(|bound| bound.object.uses(*object));
            if object.needs_slow() || changed || self.needed_later(*object) {
                continue;
            }
            let file = match self.tiers.pool.open_object(object.number, Access::ReadWrite) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                other => other.at("open", "object")?,
            };
            let slow_stat = self.tiers.slow.stat(path).at("stat on slow", escape(path))?;
            if let Some(slow_stat) = slow_stat.filter(|slow_stat| slow_stat.file() == *id) {
                marked.insert(object.number);
                Pool::set_sum(&*file, None);
                match Pool::mark_clean(&*file, &Fingerprint::of(&slow_stat)) {
                    // No room for the fingerprint: without one the object is dropped, and the slow tier has its bytes.
                    Err(e) if is_full(&e) => {}
                    other => other.at("mark clean", "object")?,
                }
            }
        }
        Ok(marked)
    }

    /// Whether the object was written to after its last version became an event, also by a write that a power cut has
    /// discarded.
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

    /// Takes in the results of examining the pool's objects; those that got a fingerprint since are examined again.
    /// Clean objects wait, by the slow inode they equal, until their file is looked up.
    pub(super) fn use_inspected(&mut self, looked: Vec<(u64, ObjectLook)>, marked_since: &HashSet<u64>) {
        let mut clean = Vec::new();
        for (number, looked) in looked {
            let looked = match marked_since.contains(&number) {
                true => inspect_one(&self.tiers.pool, number),
                false => looked,
            };
            self.tiers.pool.reserve(number);
            let object = ObjectId { home: Home::Fast, number };
            let fingerprint = match looked {
                Ok((looked, fingerprint)) => {
                    self.looked.push((number, Some(looked)));
                    fingerprint
                }
                Err(error) => {
                    // Not clean: it is quarantined, or, if a file needs it, reported when it is read.
                    tracing::error!(object = number, %error, "an object of the pool cannot be read");
                    self.looked.push((number, None));
                    continue;
                }
            };
            let Some((fingerprint, named)) = fingerprint else { continue };
            clean.push((object, fingerprint, named.map(|named| named.ino)));
        }
        let mut st = self.tiers.state.lock();
        // Before the first new number is given out.
        let numbers = clean.iter().filter_map(|(_, _, ino)| *ino);
        numbers.filter(|ino| *ino >= FIRST_OWN).for_each(|ino| st.view.reserve(ino));
        for (object, fingerprint, ino) in clean {
            let ino = ino.unwrap_or_else(|| st.view.new_ino());
            st.view.wait(UnmetObject { object, ino, fingerprint, tried: false });
        }
    }

    /// Finds pending versions of which the fast tier has lost bytes: the object is gone, or in the pool it is shorter
    /// than when the version was committed, although no record shortened it since. As after a power cut, the previous
    /// version is shown.
    pub(super) fn find_lost(&mut self) -> Result<()> {
        let mut contents = Vec::new();
        let mut boot = "";
        for (lsn, record) in &self.records {
            match record {
                Record::Start { boot: started } => boot = started,
                Record::Content { path, object, size, .. }
                    if *lsn > self.applied
                        && !self.is_skipped(*lsn)
                        && (boot == self.boot || self.sealed.contains(lsn)) =>
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
                let has = match self.inspected(object) {
                    Some(looked) => looked.size,
                    None => self.tiers.pool.stat(object.number).at("stat", "object")?.size,
                };
                if has >= size || Record::invalidated(&self.records, lsn, object, size) {
                    continue;
                }
                format!("its object has only {has} of {size} bytes")
            };
            let path = escape(&path.bytes());
            tracing::error!(path, object = object.number, "a pending version is damaged and not shown: {what}");
            lost.insert(object, format!("damaged: {what}; it was {path}"));
        }
        self.tiers.counters.damaged.store(lost.len() as u64, Ordering::Relaxed);
        self.lost = lost;
        Ok(())
    }

    /// Restores objects to their sealed state: after a power cut an object may be longer than its sealed version,
    /// or have attributes that were never synced.
    pub(super) fn restore_sealed(&self) -> Result<()> {
        for (object, (size, attrs)) in &self.sealed_as {
            let fd = match self.tiers.open_object(&self.cx, *object) {
                Err(e) if e.errno() == Errno::ENOENT => continue,
                other => other?,
            };
            // Longer: never synced. Shorter: cut, as an `invalidate` record says, or the tail of an object that the
            // drain was adding to.
            let stat = fd.stat().at("stat", "object")?;
            let has = stat.size;
            if has > *size || (has < *size && object.needs_slow()) {
                fd.set_len(*size).at("set the length of", "object")?;
            }
            for (key, _) in own_xattrs(&*fd)? {
                if !attrs.xattrs.iter().any(|(kept, _)| *kept == key) {
                    fd.remove_xattr(&key).at("set attribute of", "object")?;
                }
            }
            let set = if object.needs_slow() {
                self.tiers.slow.set_attrs(&*fd, &stat, attrs).map(drop)
            } else {
                set_attrs(&*fd, attrs)
            };
            set.at("set attributes of", "object")?;
        }
        Ok(())
    }

    /// Step 6.
    pub(super) fn sort_objects(&self) -> Result<()> {
        let (used, waiting): (SortedSet<ObjectId>, SortedSet<ObjectId>) = {
            let st = self.tiers.state.lock();
            (each_of(st.objects.objects()).collect(), st.view.waiting.values().map(|waiting| waiting.object).collect())
        };
        let (explained, discarded) = (&self.explained, SortedSet::from_iter(each_of(self.discarded.iter().copied())));
        for (number, _) in &self.looked {
            let object = ObjectId { home: Home::Fast, number: *number };
            if used.contains(&object) || waiting.contains(&object) {
                continue;
            }
            let Some(stat) = absent_is_none(self.tiers.pool.stat(*number)).at("stat", "object")? else { continue };
            let empty = !self.lost.contains_key(&object) && stat.size == 0;
            let superseded = explained.contains(&object) && !discarded.contains(&object);
            if empty || (superseded && self.tiers.damaged.is_none()) {
                self.tiers.remove_object(object);
                continue;
            }
            let homeless =
                self.homeless.get(&object).map(|path| format!("its directory no longer exists; it was {path}"));
            let why = match self.lost.get(&object).or(homeless.as_ref()) {
                Some(what) => what,
                None if discarded.contains(&object) => {
                    "not made durable before a power cut; the version before it is shown"
                }
                None => "no record of the log explains it",
            };
            self.tiers.pool.quarantine(*number, why)?;
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
            if explained.contains(&object) && !discarded.contains(&object) && self.tiers.damaged.is_none() {
                self.tiers.remove_object(object);
            } else {
                let aside = [b"q", &entry.name[..]].concat();
                let tmp = &*self.tiers.slow.tmp;
                tmp.rename(&entry.name, tmp, &aside, RenameMode::Replace)
                    .at("quarantine", "object on the slow tier")?;
                self.tiers.counters.quarantined.fetch_add(1, Ordering::Relaxed);
            }
        }
        let is_there = |object: ObjectId| object.needs_slow() || self.tiers.pool.stat(object.number).is_ok();
        self.tiers.state.lock().objects.keep_deletable(is_there);
        self.tiers.counters.discarded.store(self.discarded.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::disk::FileId;
    use crate::tiers::disk::layout::ensure_dir;
    use crate::tiers::disk::os::OsDir;
    use crate::tiers::log::record::Attrs;

    #[test]
    fn objects_that_are_looked_at_side_by_side_stay_in_their_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let fast = OsDir::open(dir.path()).expect("opened");
        for name in [&b"pool"[..], b"quarantine"] {
            ensure_dir(&fast, name).expect("made");
        }
        let pool = Pool::open(&fast, 8).expect("a pool");
        let numbers: Vec<u64> = (1..100).collect();
        for number in numbers.iter().filter(|number| **number != 50) {
            pool.create(*number, 0o600).expect("an object").set_len(*number).expect("its size");
        }
        let unproven = (20..60).collect();
        for least in [1, 7, 1000] {
            let looked = look_at(&pool, &numbers, &unproven, least);
            let sizes: Vec<_> =
                looked.iter().map(|(_, one)| one.as_ref().ok().map(|(looked, _)| looked.size)).collect();
            let made: Vec<_> = numbers.iter().map(|number| Some(*number).filter(|number| *number != 50)).collect();
            assert_eq!(sizes, made);
        }
    }

    /// A fingerprint that is not looked for would stay while the bytes change.
    #[test]
    fn only_what_waits_and_was_not_placed_is_sure_to_have_no_fingerprint() {
        let object = |number| ObjectId { home: Home::Fast, number };
        let bind = |number| Record::Bind { path: b"f".to_vec().into(), ino: 9, object: object(number) };
        let content = |number| Record::Content {
            path: b"f".to_vec().into(),
            ino: 9,
            object: object(number),
            size: 1,
            attrs: Attrs::default(),
        };
        let placed = Step::Place {
            tmp: b"c".to_vec(),
            id: FileId { ino: 20, birth: 0 },
            path: b"f".to_vec(),
            over: None,
            node: 9,
            object: Some(object(3)),
            known: None,
        };
        let in_two = Record::Bind {
            path: b"g".to_vec().into(),
            ino: 10,
            object: ObjectId { home: Home::Split { head: 6, at: 1 }, number: 7 },
        };
        let records = [
            content(1),
            bind(2),
            Record::Applied { upto: 2 },
            content(3),
            bind(4),
            content(5),
            Record::Intent { upto: 4, index: 0, count: 1, step: placed.logged() },
            in_two,
        ];
        let records: Vec<(Lsn, Record)> = (1..).zip(records).collect();
        let unproven = unproven(&records);
        let sure: Vec<u64> = (0..10).filter(|number| unproven.contains(number)).collect();
        assert_eq!(sure, [4, 5, 6]);
    }
}
