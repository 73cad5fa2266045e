//! One large file from beginning to end, as in IOR; small files one after another.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;

use super::StopFlag;
use super::data::Data;
use super::reader::{BUFFER, join, read_file};

/// The alignment of buffers: direct I/O and mapped copies need it, and the kernel moves whole pages more cheaply.
const PAGE: usize = 4096;

/// Writes a new file in pieces; returns seconds. With `fsync`, until it is durable.
pub(crate) fn write(
    path: &Path,
    size: u64,
    piece: usize,
    fsync: bool,
    data: &mut Data,
    stop: &StopFlag,
) -> Result<f64> {
    let begun = Instant::now();
    let mut file = File::create(path).at("create", path.shown())?;
    data.write(&mut file, path, size, piece, stop)?;
    if fsync {
        file.sync_all().at("fsync", path.shown())?;
    }
    drop(file);
    Ok(begun.elapsed().as_secs_f64())
}

/// Reads a file in pieces; returns bytes per second.
pub(crate) fn read(path: &Path, piece: usize, stop: &StopFlag) -> Result<f64> {
    let mut room = vec![0; piece + PAGE];
    let from = room.as_ptr().align_offset(PAGE);
    let buffer = &mut room[from..from + piece];
    let begun = Instant::now();
    let mut file = File::open(path).at("open", path.shown())?;
    let mut bytes = 0u64;
    loop {
        stop.check()?;
        match file.read(buffer).at("read", path.shown())? {
            0 => break,
            n => bytes += n as u64,
        }
    }
    drop(file);
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

/// Opens, stats, reads and closes each file, with `threads` threads; returns seconds for all.
pub(crate) fn read_small(paths: &[PathBuf], threads: usize, stop: &StopFlag) -> Result<f64> {
    let next = AtomicUsize::new(0);
    let one = || {
        let mut buffer = vec![0; BUFFER];
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            stop.check()?;
            read_file(path, &mut buffer)?;
        }
        Ok(())
    };
    let begun = Instant::now();
    std::thread::scope(|scope| join((0..threads).map(|_| scope.spawn(one)).collect()))?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Writes `count` files of one size into an existing directory; returns their paths.
pub(crate) fn write_small(
    dir: &Path,
    count: usize,
    size: usize,
    data: &mut Data,
    stop: &StopFlag,
) -> Result<Vec<PathBuf>> {
    let paths: Vec<_> = (0..count).map(|number| super::data::numbered(dir, number)).collect();
    for path in &paths {
        stop.check()?;
        std::fs::write(path, data.piece(size)).at("write", path.shown())?;
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, mut data, stop) = (dir.path().join("large"), Data::new(1 << 20), StopFlag::default());
        assert!(write(&path, 3_000_000, 1 << 20, true, &mut data, &stop).expect("written") > 0.0);
        assert_eq!(path.metadata().expect("stat").len(), 3_000_000);
        assert!(read(&path, 65_536, &stop).expect("read") > 0.0);
        let small = write_small(dir.path(), 20, 5_000, &mut data, &stop).expect("written");
        assert!(small.iter().all(|path| path.metadata().expect("stat").len() == 5_000));
        for threads in [1, 4, 40] {
            read_small(&small, threads, &stop).expect("read");
        }
        std::fs::remove_file(&small[7]).expect("removed");
        let gone = read_small(&small, 4, &stop).expect_err("one is missing").to_string();
        assert!(gone.contains("000007"), "{gone}");
        stop.set();
        assert!(read(&path, 65_536, &stop).is_err() && read_small(&small[..1], 1, &stop).is_err());
    }
}
