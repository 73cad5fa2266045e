//! A directory of very many numbered files: `<shard>/<number>`, both in hexadecimal. Callers know what the files are.
//!
//! A run of 256 numbers is in one directory: files that were made together, or are near each other on the slow tier,
//! share the same disk blocks, and one sync is enough for the names of files made at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use crate::tiers::disk::layout::give_nothing_on;
use crate::tiers::disk::sync::Mutex;
use crate::tiers::disk::{Dir, Kind};

/// One of 256 directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shard(u8);

impl Shard {
    /// The shard of the file with this number.
    pub(crate) fn of(number: u64) -> Self {
        // The cast keeps the low byte.
        Shard((number >> 8) as u8)
    }

    /// The shard with this name.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        let shard = Shard(u8::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?);
        (shard.name().as_bytes() == name).then_some(shard)
    }

    pub(crate) fn name(self) -> String {
        format!("{:02x}", self.0)
    }
}

#[derive(Debug)]
pub(crate) struct Shards {
    dir: Arc<dyn Dir>,
    /// How many are kept open at most: each costs a descriptor.
    kept: usize,
    known: Mutex<KnownShards>,
}

#[derive(Debug, Default)]
struct KnownShards {
    open: BTreeMap<Shard, Arc<dyn Dir>>,
    /// Shards whose own name is durable.
    named: BTreeSet<Shard>,
    /// Shards from which new files inherit nothing.
    cleared: BTreeSet<Shard>,
}

impl Shards {
    pub(crate) fn new(dir: Arc<dyn Dir>, kept: usize) -> Self {
        Shards { dir, kept, known: Mutex::default() }
    }

    /// The directory of this number. ENOENT if it was never made.
    pub(crate) fn of(&self, number: u64) -> io::Result<Arc<dyn Dir>> {
        self.at(Shard::of(number))
    }

    /// The directory of this shard. ENOENT if it was never made.
    pub(crate) fn at(&self, shard: Shard) -> io::Result<Arc<dyn Dir>> {
        let is_named = {
            let known = self.known.lock();
            if let Some(dir) = known.open.get(&shard) {
                return Ok(Arc::clone(dir));
            }
            known.named.contains(&shard)
        };
        let dir = self.dir.dir(shard.name().as_bytes())?;
        if !is_named {
            // Its maker, another thread or a killed daemon, may not have synced its name yet.
            self.dir.sync()?;
        }
        let mut known = self.known.lock();
        known.named.insert(shard);
        if known.open.len() >= self.kept {
            // Callers hold a reference of their own.
            known.open.clear();
        }
        Ok(Arc::clone(known.open.entry(shard).or_insert(dir)))
    }

    /// The directory of this number, made if it is missing.
    pub(crate) fn made(&self, number: u64) -> io::Result<Arc<dyn Dir>> {
        let shard = Shard::of(number);
        let dir = match self.at(shard) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => match self.dir.mkdir(shard.name().as_bytes(), 0o700) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => self.at(shard)?,
            },
            there => there?,
        };
        if !self.known.lock().cleared.contains(&shard) {
            give_nothing_on(&*dir, false)?;
            self.known.lock().cleared.insert(shard);
        }
        Ok(dir)
    }

    /// Makes the names of these files durable.
    pub(crate) fn sync_names(&self, numbers: impl Iterator<Item = u64>) -> io::Result<()> {
        let shards: BTreeSet<Shard> = numbers.map(Shard::of).collect();
        shards.into_iter().try_for_each(|shard| self.at(shard)?.sync())
    }

    /// The existing shards.
    pub(crate) fn list(&self) -> io::Result<Vec<Shard>> {
        let dirs = self.dir.list()?.into_iter().filter(|entry| entry.kind == Kind::Dir);
        Ok(dirs.filter_map(|entry| Shard::named(&entry.name)).collect())
    }

    /// The existing shards, whose names are durable from here on: one sync instead of one for each shard that is used.
    pub(crate) fn list_and_sync(&self) -> io::Result<Vec<Shard>> {
        let shards = self.list()?;
        if !shards.is_empty() {
            self.dir.sync()?;
            self.known.lock().named.extend(&shards);
        }
        Ok(shards)
    }

    /// The numbers of the files in one shard. A file with another name, or in the wrong shard for its number, is left
    /// out.
    pub(crate) fn numbers_in(&self, shard: Shard) -> io::Result<Vec<u64>> {
        let files = self.at(shard)?.list()?.into_iter().filter(|entry| entry.kind == Kind::File);
        let numbers = files.filter_map(|entry| number_of(&entry.name));
        Ok(numbers.filter(|number| Shard::of(*number) == shard).collect())
    }
}

pub(crate) fn file_name(number: u64) -> Vec<u8> {
    format!("{number:016x}").into_bytes()
}

/// The number in a file's name; accepts exactly what [`file_name`] writes.
pub(crate) fn number_of(name: &[u8]) -> Option<u64> {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = std::str::from_utf8(name).ok().filter(|_| name.len() == 16 && name.iter().all(is_digit))?;
    u64::from_str_radix(digits, 16).ok()
}
