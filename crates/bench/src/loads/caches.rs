//! Cold caches, and touching memory before anything is timed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use dlio_fs::error::{Context, Result};
use dlio_fs::path::Show as _;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::unistd::syncfs;
use procfs::{Current as _, Meminfo};

use super::StopFlag;

const DROP: &str = "/proc/sys/vm/drop_caches";
/// The most memory that is touched.
const TOUCH_MAX: u64 = 4 << 30;
const PAGE: usize = 4096;
/// How much is touched between two checks for a stop.
const CHUNK: usize = 64 << 20;

/// Which caches are cold when a measurement begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caches {
    /// Everything that the kernel drops: content, names, inodes.
    Dropped,
    /// The content of the benchmark's own files. Names and inodes stay cached: only root can drop them.
    FileData,
    /// Nothing.
    Hot,
}

impl Caches {
    /// The coldest state that this process can get.
    pub(crate) fn coldest() -> Caches {
        match fs::OpenOptions::new().write(true).open(DROP) {
            Ok(_) => Caches::Dropped,
            Err(_) => Caches::FileData,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Caches::Dropped => "dropped",
            Caches::FileData => "file data only",
            Caches::Hot => "hot",
        }
    }

    /// Makes everything below these directories cold. It is written back first, because dirty pages cannot be dropped.
    pub(crate) fn cool(self, dirs: &[PathBuf]) -> Result<()> {
        if self == Caches::Hot {
            return Ok(());
        }
        dirs.iter().try_for_each(|dir| write_back(dir))?;
        match self {
            Caches::Dropped => fs::write(DROP, "3").at("write to", DROP),
            _ => dirs.iter().try_for_each(|dir| forget(dir)),
        }
    }
}

/// Writes back everything on the file system that holds a directory. This does not reach FUSE file systems.
pub(crate) fn write_back(dir: &Path) -> Result<()> {
    let opened = File::open(dir).at("open", dir.shown())?;
    syncfs(&opened).map_err(io::Error::from).at("sync", dir.shown())
}

/// Drops the pages of all regular files below.
fn forget(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).at("list", dir.shown())? {
        let entry = entry.at("list", dir.shown())?;
        let (path, kind) = (entry.path(), entry.file_type());
        let kind = kind.at("stat", path.shown())?;
        if kind.is_dir() && entry.file_name() != ".dlio" {
            forget(&path)?;
        } else if kind.is_file() {
            let file = File::open(&path).at("open", path.shown())?;
            let advised = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            advised.map_err(io::Error::from).at("advise", path.shown())?;
        }
    }
    Ok(())
}

/// Touches memory once: a virtual machine may get it slowly the first time, and the page cache that a benchmark fills
/// is memory, too. `bytes`: how much; the default is 4 GiB; the limit is a quarter of what is available.
pub(crate) fn touch_memory(bytes: Option<u64>, stop: &StopFlag) -> Result<()> {
    let meminfo = Meminfo::current().map_err(io::Error::other).at("read", "/proc/meminfo")?;
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limits = limits.iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    let most = limits.chain(meminfo.mem_available).min().unwrap_or(0) / 4;
    let mut memory = Vec::new();
    for _ in 0..bytes.unwrap_or(TOUCH_MAX).min(most) / CHUNK as u64 {
        stop.check()?;
        let mut chunk = vec![0u8; CHUNK];
        chunk.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        memory.push(std::hint::black_box(chunk));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_directory_is_cooled_either_way() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("d")).expect("mkdir");
        fs::write(dir.path().join("d/file"), vec![7; 1 << 20]).expect("written");
        for caches in [Caches::FileData, Caches::coldest(), Caches::Hot] {
            caches.cool(&[dir.path().to_path_buf()]).expect("cooled");
        }
        assert!(Caches::FileData.cool(&[dir.path().join("none")]).is_err());
    }

    #[test]
    fn a_stop_is_obeyed() {
        let stop = StopFlag::default();
        touch_memory(Some(CHUNK as u64), &stop).expect("touched");
        stop.set();
        touch_memory(Some(0), &stop).expect("there is nothing to stop");
        touch_memory(Some(CHUNK as u64), &stop).expect_err("stopped");
    }
}
