//! Bytes to write: random, so that compression or zero detection cannot save work.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::StopFlag;

/// The size of the pool that pieces are taken from, at random places.
const POOL: usize = 64 << 20;
/// The alignment of a piece in the pool: copies from there are as fast as any.
const STEP: usize = 64;

/// Random bytes. The same in each run of the program.
#[derive(Debug)]
pub(crate) struct Data {
    pool: Vec<u8>,
    random: SmallRng,
}

impl Data {
    /// For pieces of at most `largest` bytes.
    pub(crate) fn new(largest: usize) -> Self {
        let mut random = SmallRng::seed_from_u64(1);
        let mut pool = vec![0; POOL.min(largest * 8) + largest];
        random.fill_bytes(&mut pool);
        Data { pool, random }
    }

    /// Some bytes; consecutive pieces differ.
    pub(crate) fn piece(&mut self, len: usize) -> &[u8] {
        let last = (self.pool.len() - len) / STEP;
        let from = self.random.random_range(0..=last) * STEP;
        &self.pool[from..from + len]
    }

    /// Writes `size` bytes, piece by piece.
    pub(crate) fn write(
        &mut self,
        file: &mut File,
        path: &Path,
        size: u64,
        piece: usize,
        stop: &StopFlag,
    ) -> Result<()> {
        let mut left = size;
        while left > 0 {
            stop.check()?;
            let len = left.min(piece as u64) as usize;
            file.write_all(self.piece(len)).at("write", path.shown())?;
            left -= len as u64;
        }
        Ok(())
    }
}

/// Makes the name of a file or directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).at("sync", dir.shown())
}

/// Removes everything in a directory, except what a mount keeps there for itself.
pub(crate) fn clear(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).at("list", dir.shown())? {
        let entry = entry.at("list", dir.shown())?;
        let (path, name) = (entry.path(), entry.file_name());
        if [".dlio", ".dlio-fs"].iter().any(|ours| name == *ours) {
            continue;
        }
        match entry.file_type().at("stat", path.shown())?.is_dir() {
            true => fs::remove_dir_all(&path).at("remove", path.shown())?,
            false => fs::remove_file(&path).at("unlink", path.shown())?,
        }
    }
    Ok(())
}

/// `000007`, below a directory: names of the same length sort like numbers.
pub(crate) fn numbered(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("{number:06}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_random_and_differ() {
        let mut data = Data::new(1 << 16);
        let [first, second] = [1, 2].map(|_| data.piece(1 << 16).to_vec());
        assert_ne!(first, second);
        // Hardly compressible.
        let packed = zstd::bulk::compress(&first, 3).expect("compressed");
        assert!(packed.len() > first.len() * 99 / 100);
        assert_eq!(Data::new(1 << 16).piece(1 << 16), first, "another run writes the same");
    }

    #[test]
    fn a_file_is_as_long_as_asked_and_a_stop_is_obeyed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let (mut file, mut data, stop) = (File::create(&path).expect("made"), Data::new(4096), StopFlag::default());
        data.write(&mut file, &path, 10_000, 4096, &stop).expect("written");
        assert_eq!(file.metadata().expect("stat").len(), 10_000);
        stop.set();
        assert!(data.write(&mut file, &path, 1, 4096, &stop).is_err());
    }
}
