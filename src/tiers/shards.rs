//! A directory of very many numbered files: `<low byte>/<number>`, both in hexadecimal. What they are is for others to know.

use std::io;
use std::sync::{Arc, OnceLock};

use crate::tiers::disk::{Dir, Kind};

#[derive(Debug)]
pub(crate) struct Shards {
    dir: Arc<dyn Dir>,
    open: Vec<OnceLock<Arc<dyn Dir>>>,
}

impl Shards {
    pub(crate) fn new(dir: Arc<dyn Dir>) -> Self {
        Shards { dir, open: (0..256).map(|_| OnceLock::new()).collect() }
    }

    /// The directory of this number. ENOENT if it was never made.
    pub(crate) fn of(&self, number: u64) -> io::Result<&Arc<dyn Dir>> {
        let slot = &self.open[(number & 0xff) as usize];
        if let Some(dir) = slot.get() {
            return Ok(dir);
        }
        let dir = self.dir.dir(shard_name(number).as_bytes())?;
        // Whoever made it, another thread or a killed daemon, may not have come to this yet.
        self.dir.sync()?;
        Ok(slot.get_or_init(|| dir))
    }

    /// The same, made if it is not there.
    pub(crate) fn made(&self, number: u64) -> io::Result<&Arc<dyn Dir>> {
        match self.of(number) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            there => return there,
        }
        match self.dir.mkdir(shard_name(number).as_bytes(), 0o700) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => self.of(number),
        }
    }

    /// The directories that are there, by the low byte of their numbers.
    pub(crate) fn list(&self) -> io::Result<Vec<u64>> {
        let dirs = self.dir.list()?.into_iter().filter(|entry| entry.kind == Kind::Dir);
        Ok(dirs.filter_map(|entry| shard_of(&entry.name)).collect())
    }

    /// The numbers of the files in one of them. What has another name, or lies in another directory than its number says, is none.
    pub(crate) fn numbers_in(&self, low: u64) -> io::Result<Vec<u64>> {
        let files = self.of(low)?.list()?.into_iter().filter(|entry| entry.kind == Kind::File);
        Ok(files.filter_map(|entry| number_of(&entry.name).filter(|number| number & 0xff == low)).collect())
    }
}

fn shard_name(number: u64) -> String {
    format!("{:02x}", number & 0xff)
}

pub(crate) fn file_name(number: u64) -> Vec<u8> {
    format!("{number:016x}").into_bytes()
}

/// The number in a file's name, for exactly what [`file_name`] writes.
pub(crate) fn number_of(name: &[u8]) -> Option<u64> {
    let number = u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?;
    (file_name(number) == name).then_some(number)
}

/// The low byte of the numbers in a directory of this name.
pub(crate) fn shard_of(name: &[u8]) -> Option<u64> {
    let low = u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?;
    (format!("{low:02x}").as_bytes() == name && low <= 0xff).then_some(low)
}
