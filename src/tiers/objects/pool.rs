//! The pool: the objects on the fast tier, each a private file with the bytes of one version of one file.
//!
//! An object is `pool/<shard>/<number>`, both in hexadecimal. It has the file's bytes *and* attributes (owner, mode,
//! times, extended attributes), so a killed daemon loses neither. `user.dlio.name` is the name it had last, for a
//! rescue without a log; `user.dlio.clean` is the fingerprint of the slow file with the same bytes. References to an
//! object, and when it may be deleted, are decided elsewhere.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Context, Error, Result};
use crate::path::{escape, harmless, unescape};
use crate::tiers::disk::fingerprint::Fingerprint;
use crate::tiers::disk::layout::{label_of, remove_leftover};
use crate::tiers::disk::shards::{self, Shard, Shards, file_name};
use crate::tiers::disk::{Access, Dir, File, MetadataOrder, RenameMode, Stat};
use crate::tiers::log::record::{COUNTER_MAX, Home, ObjectId, counter, is_below_root};
use crate::tiers::objects::hash::Hash;
use crate::tiers::{Ino, Lsn};

const CLEAN: &[u8] = b"user.dlio.clean";
const NAME: &[u8] = b"user.dlio.name";
const SUM: &[u8] = b"user.dlio.hash";

/// The file an object last belonged to, and the event that said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) lsn: Lsn,
    pub(crate) ino: Ino,
    pub(crate) path: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Pool {
    shards: Shards,
    quarantine: Arc<dyn Dir>,
    next: AtomicU64,
    pub(crate) order: MetadataOrder,
}

impl Pool {
    /// `dirs_kept`: how many shards stay open.
    pub(crate) fn open(fast: &dyn Dir, dirs_kept: usize) -> Result<Self> {
        let dir = fast.dir(b"pool").at_fast("open", "pool")?;
        let quarantine = fast.dir(b"quarantine").at_fast("open", "quarantine")?;
        let order = dir.order();
        Ok(Pool { shards: Shards::new(dir, dirs_kept), quarantine, next: AtomicU64::new(1), order })
    }

    /// Opens a pool for reading, on a tier that may have lost any directory. The parent stands in for a missing
    /// directory: it has no files with such names.
    pub(crate) fn open_what_is_left(ours: &Arc<dyn Dir>) -> Self {
        let dir = ours.dir(b"pool").unwrap_or_else(|_| ours.clone());
        let quarantine = ours.dir(b"quarantine").unwrap_or_else(|_| ours.clone());
        Pool { shards: Shards::new(dir, 8), quarantine, next: AtomicU64::new(1), order: MetadataOrder::Unknown }
    }

    /// Marks numbers up to this one as taken, by an object or by a record of the log.
    pub(crate) fn reserve(&self, number: u64) {
        self.next.fetch_max(number + 1, Ordering::Relaxed);
    }

    /// A number that no object has had.
    pub(crate) fn number(&self) -> u64 {
        // Relaxed: only uniqueness matters.
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Creates an empty object with these mode bits.
    pub(crate) fn create(&self, number: u64, perm: u32) -> io::Result<Arc<dyn File>> {
        self.shards.made(number)?.create(&file_name(number), perm)
    }

    /// Renames a file from elsewhere on the same file system to this object.
    pub(crate) fn adopt(&self, number: u64, from: &dyn Dir, name: &[u8]) -> io::Result<()> {
        let shard = self.shards.made(number)?;
        from.rename(name, &*shard, &file_name(number), RenameMode::NoReplace)
    }

    pub(crate) fn open_object(&self, number: u64, access: Access) -> io::Result<Arc<dyn File>> {
        self.shards.of(number)?.open(&file_name(number), access)
    }

    /// Opens an object for reading, wherever it is: a recovery may have quarantined it.
    pub(crate) fn open_kept(&self, number: u64) -> io::Result<Arc<dyn File>> {
        match self.open_object(number, Access::Read) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.quarantine.open(&file_name(number), Access::Read),
            opened => opened,
        }
    }

    pub(crate) fn stat(&self, number: u64) -> io::Result<Stat> {
        self.shards.of(number)?.stat(&file_name(number))
    }

    pub(crate) fn remove(&self, number: u64) -> io::Result<()> {
        match self.shards.of(number).and_then(|shard| shard.unlink(&file_name(number))) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Makes the objects' names durable, not their bytes.
    pub(crate) fn sync_names(&self, numbers: impl Iterator<Item = u64>) -> io::Result<()> {
        self.shards.sync_names(numbers)
    }

    pub(crate) fn set_name(file: &dyn File, named: &Named) -> io::Result<()> {
        let Named { lsn, ino, path } = named;
        file.set_xattr(NAME, format!("{lsn} {ino} {}", escape(label_of(path))).as_bytes())
    }

    /// The file an object belonged to, from its own attributes.
    pub(crate) fn name_of(file: &dyn File) -> io::Result<Option<Named>> {
        let Some(text) = file.get_xattr(NAME)? else { return Ok(None) };
        let parse = |text: &[u8]| {
            let mut words = std::str::from_utf8(text).ok()?.split(' ');
            let (lsn, ino) = (counter(words.next()?)?, counter(words.next()?).filter(|ino| *ino != 0)?);
            let path = unescape(words.next()?).filter(|path| is_below_root(path))?;
            words.next().is_none().then_some(Named { lsn, ino, path })
        };
        Ok(parse(&text))
    }

    pub(crate) fn fingerprint_of(file: &dyn File) -> io::Result<Option<Fingerprint>> {
        Ok(file.get_xattr(CLEAN)?.and_then(|text| Fingerprint::decode(&text)))
    }

    /// Whether the object has a fingerprint, readable or not.
    pub(crate) fn claims_to_be_clean(file: &dyn File) -> io::Result<bool> {
        Ok(file.get_xattr(CLEAN)?.is_some())
    }

    /// Marks the object as equal to this slow file, durably.
    pub(crate) fn mark_clean(file: &dyn File, fingerprint: &Fingerprint) -> io::Result<()> {
        Self::set_fingerprint(file, fingerprint)?;
        file.sync()
    }

    pub(crate) fn set_fingerprint(file: &dyn File, fingerprint: &Fingerprint) -> io::Result<()> {
        file.set_xattr(CLEAN, fingerprint.encode().as_bytes())
    }

    /// Removes the fingerprint; durable when this returns, so that not one byte changes under a fingerprint (promise
    /// P6).
    pub(crate) fn clear_clean(file: &dyn File) -> io::Result<()> {
        file.remove_xattr(CLEAN)?;
        file.remove_xattr(SUM)?;
        file.sync()
    }

    /// Stores the hash of the bytes that were copied to slow, for [`crate::tiers::recovery::verify`]. The fingerprint
    /// that follows makes it durable, and it is removed with the fingerprint. Without a hash a verify knows less, and
    /// nothing is lost.
    pub(crate) fn set_sum(file: &dyn File, sum: Option<Hash>) {
        let done = match sum {
            Some(sum) => file.set_xattr(SUM, sum.encode().as_bytes()),
            // The hash of an earlier version must not stay beside this version's fingerprint.
            None => file.remove_xattr(SUM),
        };
        if let Err(e) = done {
            tracing::debug!(error = %e, "the hash of an object could not be stored");
        }
    }

    pub(crate) fn sum_of(file: &dyn File) -> io::Result<Option<Hash>> {
        Ok(file.get_xattr(SUM)?.and_then(|text| Hash::decode(&text)))
    }

    /// The directories of the pool, for a start: their names are durable from here on.
    pub(crate) fn shards(&self) -> Result<Vec<Shard>> {
        self.shards.list_and_sync().at_fast("list", "pool")
    }

    /// The number of every object in the pool.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>> {
        self.numbers_in(&self.shards.list().at_fast("list", "pool")?)
    }

    /// The numbers of the objects in some directories of the pool. An entry with another name, in the wrong directory
    /// or that is not a file is skipped and stays where it is: `fsck` reports it.
    pub(crate) fn numbers_in(&self, shards: &[Shard]) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for shard in shards.iter().copied() {
            let listed = self.shards.numbers_in(shard).at_fast("list", format_args!("pool/{}", shard.name()))?;
            numbers.extend(listed.into_iter().filter(|number| *number < COUNTER_MAX));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The numbers of the quarantined objects.
    pub(crate) fn quarantined_numbers(&self) -> Result<Vec<u64>> {
        let names = self.quarantine.list().at_fast("list", "quarantine")?;
        Ok(names.iter().filter_map(|entry| number_of(&entry.name)).collect())
    }

    /// Quarantines an object with a reason: no record explains it, and nothing is ever deleted for that.
    pub(crate) fn quarantine(&self, number: u64, why: &str) -> Result<()> {
        let name = file_name(number);
        let reason = [&name[..], b".why"].concat();
        remove_leftover(&*self.quarantine, &reason)?;
        let file = self.quarantine.create(&reason, 0o600).at_fast("create", "quarantine reason")?;
        file.write_at(format!("{why}\n").as_bytes(), 0).at_fast("write", "quarantine reason")?;
        let shard = self.shards.of(number).at_fast("open", "pool shard")?;
        shard
            .rename(&name, &*self.quarantine, &name, RenameMode::Replace)
            .map_err(|e| Error::io_on_fast("quarantine", format!("object {number}"), e))
    }

    pub(crate) fn why_quarantined(&self, number: u64) -> String {
        let why = crate::tiers::disk::layout::read_text(&*self.quarantine, &[&file_name(number)[..], b".why"].concat());
        let why = why.ok().flatten().unwrap_or_default();
        // One printable line: any program may have written the file.
        match why.lines().next() {
            None | Some("") => "no reason is recorded".to_owned(),
            Some(line) => harmless(line).into_owned(),
        }
    }

    pub(crate) fn quarantined(&self) -> Result<u64> {
        let names = self.quarantine.list().at_fast("list", "quarantine")?;
        Ok(names.iter().filter(|entry| !entry.name.ends_with(b".why")).count() as u64)
    }
}

/// The number in an object's name.
pub(crate) fn number_of(name: &[u8]) -> Option<u64> {
    shards::number_of(name).filter(|number| *number < COUNTER_MAX)
}

pub(crate) fn label(object: ObjectId) -> String {
    match object.home {
        Home::Fast => format!("object {}", object.number),
        Home::Slow | Home::Split { .. } => format!("object {} on the slow tier", object.number),
    }
}

/// An object's name in the slow tier's `tmp`.
pub(crate) fn tmp_name(object: ObjectId) -> Vec<u8> {
    format!("o{:016x}", object.number).into_bytes()
}
