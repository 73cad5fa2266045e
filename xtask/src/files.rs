//! The stages with more files than the daemon may have descriptors.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::scratch::{Scratch, Wish};
use crate::{Context, Tally};

/// So many files in directories of so many; one in `read_every` is read, the others are only looked at.
#[derive(Clone, Copy, Debug)]
struct Many {
    files: usize,
    per_dir: usize,
    read_every: usize,
}

/// Files written through the mount, five for every two descriptors: in the view, after a remount, on the slow tier.
pub(crate) fn many_files(cx: &Context) -> Result<Tally> {
    let (files, descriptors) = if cx.all { (50_000, 20_000) } else { (10_000, 4_000) };
    let many = Many { files, per_dir: files / 10, read_every: 1 };
    let mut scratch = Scratch::mounted(cx, "files", Wish { descriptors, ..Wish::default() })?;
    let view = scratch.point().join("many");
    step("create", || many.create(&view))?;
    step("list, stat and read", || many.check(&view))?;
    step("unmount without draining", || scratch.umount_now())?;
    step("mount again", || scratch.mount())?;
    step("list, stat and read", || many.check(&view))?;
    step("drain", || scratch.drain())?;
    step("list, stat and read on the slow tier", || many.check(&scratch.slow().join("many")))?;
    step("unmount", || scratch.umount())?;
    let note = format!("{} files: in the view, after a remount, on the slow tier", many.files);
    Ok(Tally { passed: 3, note, ..Tally::default() })
}

/// A million files that were on the slow tier before it was mounted. The daemon comes to know all of them, with far fewer
/// descriptors and within a fixed share of memory for each.
pub(crate) fn million(cx: &Context) -> Result<Tally> {
    /// Three for each of its some 60 threads and for the tiers; what a login shell may have by default.
    const DESCRIPTORS: u64 = 1024;
    /// Bytes per file, and what the daemon has before it knows any.
    const MEMORY_PER_FILE: u64 = 352;
    const MEMORY_AT_REST: u64 = 32 << 20;
    let many = Many { files: 1_000_000, per_dir: 10_000, read_every: 100 };
    // Their few bytes are inside of their inodes: a million blocks would be 4 GiB.
    let inodes = (many.files + many.files / 10).to_string();
    let mkfs = ["-O", "inline_data", "-N", &inodes];
    let mut scratch =
        Scratch::unmounted(cx, "million", Wish { descriptors: DESCRIPTORS, mkfs: &mkfs, ..Wish::default() })?;
    step("create on the slow tier", || many.create(&scratch.slow().join("many")))?;
    step("mount", || scratch.mount())?;
    let view = scratch.point().join("many");
    let mut known = 0;
    step("list, stat and read one in a hundred", || {
        for (number, first) in many.dirs().enumerate() {
            many.check_dir(&view, first)?;
            if number.is_multiple_of(10) || first + many.per_dir == many.files {
                known = known.max(scratch.figure("/cache/known_inodes")?);
            }
        }
        Ok(())
    })?;
    let (memory, descriptors) = scratch.usage()?;
    let note = format!(
        "{known} known, at most {} MiB, {} bytes for each; {descriptors} of {DESCRIPTORS} descriptors",
        memory >> 20,
        memory / known.max(1)
    );
    println!("{note}");
    // A kernel that is short of memory drops inodes from its cache, and the daemon what it knew of them.
    ensure!(known >= many.files as u64 / 2, "only {known} of {} files were known: the figures say nothing", many.files);
    let allowed = MEMORY_AT_REST + MEMORY_PER_FILE * known;
    ensure!(memory <= allowed, "the daemon has had {memory} bytes of memory, {allowed} are allowed");
    step("unmount", || scratch.umount())?;
    Ok(Tally { passed: 1, note, ..Tally::default() })
}

fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    let result = work().with_context(|| what.to_owned())?;
    println!("{what}: {:.1} s", began.elapsed().as_secs_f64());
    Ok(result)
}

fn content(number: usize) -> String {
    format!("content of file {number}\n")
}

impl Many {
    fn dir_of(&self, top: &Path, number: usize) -> PathBuf {
        top.join(format!("d{:02}", number / self.per_dir))
    }

    fn create(&self, top: &Path) -> Result<()> {
        for number in 0..self.files {
            let dir = self.dir_of(top, number);
            if number.is_multiple_of(self.per_dir) {
                fs::create_dir_all(&dir)?;
            }
            let file = dir.join(format!("f{number}"));
            fs::write(&file, content(number)).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    /// The first file of each directory.
    fn dirs(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.files).step_by(self.per_dir)
    }

    fn check(&self, top: &Path) -> Result<()> {
        self.dirs().try_for_each(|first| self.check_dir(top, first))
    }

    fn check_dir(&self, top: &Path, first: usize) -> Result<()> {
        let dir = self.dir_of(top, first);
        let numbers = first..first + self.per_dir;
        let wanted: BTreeSet<String> = numbers.clone().map(|number| format!("f{number}")).collect();
        let listed = fs::read_dir(&dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let listed: Vec<String> =
            listed.collect::<Result<_>>().with_context(|| format!("listing {}", dir.display()))?;
        ensure!(listed.len() == wanted.len(), "{} lists {} names", dir.display(), listed.len());
        ensure!(BTreeSet::from_iter(listed) == wanted, "{} lists the wrong names", dir.display());
        for number in numbers {
            self.check_file(&dir.join(format!("f{number}")), number)?;
        }
        Ok(())
    }

    fn check_file(&self, file: &Path, number: usize) -> Result<()> {
        let wanted = content(number);
        let size = fs::metadata(file).with_context(|| format!("stat of {}", file.display()))?.len();
        ensure!(size == wanted.len() as u64, "{} has {size} bytes", file.display());
        if number.is_multiple_of(self.read_every) {
            let found = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            ensure!(found == wanted.as_bytes(), "{} has the wrong content", file.display());
        }
        Ok(())
    }
}
