//! Traffic on a mount that is about to lose its daemon or its power: the habits of training frameworks, one system call after
//! the other, each noted in a ledger outside of the mount.

#![allow(clippy::unwrap_used, dead_code)] // Not every test that shares it uses all of it.

pub(crate) mod ledger;
pub(crate) mod record;
pub(crate) mod tree;

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use ledger::{Ledger, Op};
use record::record;
use tree::{Shown, set_tag};

/// At most one WRITE request each.
const CHUNK: usize = 64 << 10;
/// Actions without a pause, then none for a random time: training saves, then computes. Without pauses the slow tier would
/// only fall behind, and every kill would find the same.
const BURST: u32 = 10;
/// Older checkpoints and directories are removed.
const KEEP: usize = 2;
/// The files of a data set, and the payload of each of the two records in one: the second begins in a page of the first.
const SAMPLES: usize = 20;
const SAMPLE: usize = 30_000;

/// Which habits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habits {
    /// Every version is written to a new or truncated file: each keeps its bytes until it is published, so the slow tier
    /// must be at an exact prefix of the order.
    NewFiles,
    /// Now and then appends and rewrites in place as well: a version may be gone before it was published, and what follows up to the
    /// newer one is published together.
    InPlace,
    /// Reads the files of a data set, writes over some and lets fast copies go. It writes in place only where the slow tier has the
    /// file as it is, so this is an exact prefix as well.
    DataSet,
}

/// The daemon has gone, or the budget is used up: the worker stops where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopped;

type Done = Result<(), Stopped>;

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) dir: PathBuf,
    pub(crate) ledger: Ledger,
    pub(crate) habits: Habits,
    random: SmallRng,
    generation: u64,
    /// When calls began and ended whose file had to be copied up from the slow tier, because it had been evicted.
    pub(crate) recalls: Vec<(u64, u64)>,
    /// Calls that may still be made.
    pub(crate) budget: u64,
    /// The longest time between two bursts.
    pub(crate) pause_max: Duration,
    /// Nothing new is begun after this time, as [`now`] tells it.
    pub(crate) until: u64,
    /// When a call was answered with EIO: so the kernel answers one whose bytes it was handing to the daemon when that was killed.
    pub(crate) failed: Option<u64>,
}

impl Worker {
    /// `dir` exists and is this worker's alone.
    pub(crate) fn new(dir: PathBuf, habits: Habits, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        Worker {
            dir,
            ledger: Ledger::default(),
            habits,
            random,
            generation: 0,
            recalls: Vec::new(),
            budget: u64::MAX,
            pause_max: Duration::from_secs(1),
            until: u64::MAX,
            failed: None,
        }
    }

    /// Its data set is there before the first mount, in what `top` is for the slow tier.
    pub(crate) fn begin_with_samples(&mut self, top: &Path) {
        for number in 0..SAMPLES {
            let (path, bytes) = (sample(number), self.two_records());
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(top.join(&path)).unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            for op in [Op::Create(path.clone()), Op::Write { path: path.clone(), offset: 0, bytes }, Op::Close(path)] {
                self.ledger.begin(op, now());
                self.ledger.acknowledge(now());
            }
        }
    }

    /// Works until the daemon is killed, the budget is used up or the time has come.
    pub(crate) fn work(&mut self) {
        let mut done = self.tidy();
        while done.is_ok() {
            done = (0..BURST).try_for_each(|_| if now() < self.until { self.act() } else { Err(Stopped) });
            if done.is_ok() {
                thread::sleep(self.pause_max.mul_f64(self.random.random()));
            }
        }
    }

    /// One call: noted before, acknowledged after.
    fn call<T>(&mut self, op: Op, call: impl FnOnce(&Path) -> io::Result<T>) -> Result<T, Stopped> {
        if self.budget == 0 {
            return Err(Stopped);
        }
        self.budget -= 1;
        let what = format!("{op:?}");
        self.ledger.begin(op, now());
        match call(&self.dir) {
            Ok(value) => {
                self.ledger.acknowledge(now());
                Ok(value)
            }
            Err(error) if is_dead(&error) => Err(Stopped),
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => {
                self.failed = Some(now());
                Err(Stopped)
            }
            Err(error) => panic!("{}: {what:.200}: {error}", self.dir.display()),
        }
    }

    /// As a restarted job: what was cut off is removed or written anew.
    fn tidy(&mut self) -> Done {
        for path in self.ledger.unfinished() {
            match self.random.random_bool(0.5) {
                true => self.unlink(&path)?,
                false => self.overwrite(&path, generation_of(&path))?,
            }
        }
        Ok(())
    }

    fn act(&mut self) -> Done {
        if self.habits == Habits::DataSet {
            return self.use_samples();
        }
        if self.habits == Habits::InPlace && self.random.random_bool(0.2) {
            return if self.random.random_bool(0.5) { self.append() } else { self.rewrite_in_place() };
        }
        match self.random.random_range(0..7) {
            0 => self.checkpoint(),
            1 => self.overwrite(Path::new("model.keras"), None),
            2 => self.rename_while_open(),
            3 => self.commit_directory(),
            4 => self.relink(),
            5 => self.link_best(),
            _ => self.change_attributes(),
        }
    }

    /// Each is mostly read.
    fn use_samples(&mut self) -> Done {
        let path = sample(self.random.random_range(0..SAMPLES));
        match self.random.random_range(0..10) {
            0 => {
                let tmp = PathBuf::from("sample.tmp");
                let bytes = self.two_records();
                if self.ledger.has(&tmp) {
                    self.unlink(&tmp)?;
                }
                self.write_new(&tmp, &bytes)?;
                self.rename(&tmp, &path)
            }
            1 => self.overwrite(&path, None),
            2 | 3 => self.write_over_one_record(&path),
            4 => self.let_go(&path),
            _ => self.read_whole(&path),
        }
    }

    fn two_records(&mut self) -> Vec<u8> {
        [self.next_generation(), self.next_generation()].map(|generation| record(generation, 0, SAMPLE)).concat()
    }

    /// In place, so that the rest of the file is what the staged copy, or the slow file, has.
    fn write_over_one_record(&mut self, path: &Path) -> Done {
        let bytes = record(self.next_generation(), 0, SAMPLE);
        if self.ledger.size(path) != 2 * bytes.len() || !self.is_as_on_slow(path) {
            return self.overwrite(path, None);
        }
        let file = OpenOptions::new().write(true).open(self.dir.join(path)).map_err(expect_dead)?;
        let start = bytes.len() * self.random.random_range(0..2);
        self.write_and_close(file, path, start, &bytes)
    }

    /// Nobody else writes to it: whatever tier it is read from, it has what was written last.
    fn read_whole(&self, path: &Path) -> Done {
        if self.ledger.has(path) {
            let bytes = fs::read(self.dir.join(path)).map_err(expect_dead)?;
            let (wanted, found) = (self.ledger.content(path), Shown::file(&bytes));
            assert_eq!(Some(found), wanted, "read, and written last: {} {}", self.dir.display(), path.display());
        }
        Ok(())
    }

    /// The fast tier's copy goes, if nothing of it is pending.
    fn let_go(&self, path: &Path) -> Done {
        if !self.ledger.has(path) {
            return Ok(());
        }
        match xattr::set(self.dir.join(path), "user.dlio.evict", b"1") {
            Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => Ok(()),
            done => done.map_err(expect_dead),
        }
    }

    /// A data file, then the manifest that names it, then the removal of what no manifest needs: TensorFlow's manager.
    fn checkpoint(&mut self) -> Done {
        let generation = self.next_generation();
        let data = PathBuf::from(format!("ckpt-{generation:08}"));
        let bytes = self.some_record(generation);
        self.write_new(&data, &bytes)?;
        let manifest = PathBuf::from("manifest.tmp");
        if self.ledger.has(&manifest) {
            self.unlink(&manifest)?;
        }
        self.write_new(&manifest, &record(generation, 0, 40))?;
        self.rename(&manifest, Path::new("manifest"))?;
        if self.random.random_bool(0.2) {
            self.call(Op::SyncDir, |dir| File::open(dir)?.sync_all())?;
        }
        let mut old = self.ledger.names("ckpt-");
        old.truncate(old.len().saturating_sub(KEEP));
        old.iter().try_for_each(|path| self.unlink(path))
    }

    /// The same name each time, truncated: Keras, torch.save.
    fn overwrite(&mut self, path: &Path, generation: Option<u64>) -> Done {
        let generation = generation.unwrap_or_else(|| self.next_generation());
        let bytes = self.some_record(generation);
        if !self.ledger.has(path) {
            return self.write_new(path, &bytes);
        }
        let open = |dir: &Path| OpenOptions::new().write(true).truncate(true).open(dir.join(path));
        let file = self.call(Op::Truncate(path.to_owned()), open)?;
        self.write_and_close(file, path, 0, &bytes)
    }

    /// Renamed before it is closed: safetensors.
    fn rename_while_open(&mut self) -> Done {
        let generation = self.next_generation();
        let (tmp, last) = (PathBuf::from(format!(".tmp{generation}")), PathBuf::from("model.safetensors"));
        let bytes = self.some_record(generation);
        let file = self.create(&tmp)?;
        self.write(&file, &tmp, 0, &bytes)?;
        self.rename(&tmp, &last)?;
        self.close(file, &last)
    }

    /// A directory is filled under a temporary name, then renamed: Orbax.
    fn commit_directory(&mut self) -> Done {
        let generation = self.next_generation();
        let (tmp, last) =
            (PathBuf::from(format!("tmp-{generation:08}")), PathBuf::from(format!("dir-{generation:08}")));
        self.mkdir(&tmp)?;
        for name in ["weights", "state"] {
            let bytes = self.some_record(generation);
            self.write_new(&tmp.join(name), &bytes)?;
        }
        self.rename(&tmp, &last)?;
        let is_dir = |path: &&PathBuf| path.components().count() == 1;
        let dirs: Vec<PathBuf> = self.ledger.names("dir-").iter().filter(is_dir).cloned().collect();
        let abandoned = self.ledger.names("tmp-").into_iter().filter(|path| is_dir(&path));
        let old: Vec<PathBuf> = abandoned.chain(dirs.iter().rev().skip(KEEP).cloned()).collect();
        old.iter().try_for_each(|path| self.remove_directory(path))
    }

    fn remove_directory(&mut self, path: &Path) -> Done {
        for name in ["weights", "state"].map(|name| path.join(name)) {
            if self.ledger.has(&name) {
                self.unlink(&name)?;
            }
        }
        self.call(Op::Rmdir(path.to_owned()), |dir| fs::remove_dir(dir.join(path)))
    }

    /// A symbolic link to the newest, replaced by rename.
    fn relink(&mut self) -> Done {
        let tmp = PathBuf::from("latest.tmp");
        if self.ledger.has(&tmp) {
            self.unlink(&tmp)?;
        }
        let target = self.ledger.names("ckpt-").pop().unwrap_or_else(|| PathBuf::from("nothing"));
        self.call(Op::Symlink(target.clone(), tmp.clone()), |dir| symlink(&target, dir.join(&tmp)))?;
        self.rename(&tmp, Path::new("latest"))
    }

    /// A second name for the newest checkpoint, which outlives the first.
    fn link_best(&mut self) -> Done {
        let Some(newest) = self.ledger.names("ckpt-").pop() else { return Ok(()) };
        let best = PathBuf::from("best");
        if self.ledger.has(&best) {
            self.unlink(&best)?;
        }
        self.call(Op::Link(newest.clone(), best.clone()), |dir| fs::hard_link(dir.join(&newest), dir.join(&best)))
    }

    fn change_attributes(&mut self) -> Done {
        let Some(newest) = self.ledger.names("ckpt-").pop() else { return Ok(()) };
        let mode = 0o600 | self.random.random_range(0..0o100);
        let set_mode = |dir: &Path| fs::set_permissions(dir.join(&newest), Permissions::from_mode(mode));
        self.call(Op::Chmod(newest.clone(), mode), set_mode)?;
        let tag = format!("tag {}", self.next_generation()).into_bytes();
        self.call(Op::Tag(newest.clone(), tag.clone()), |dir| set_tag(&dir.join(&newest), &tag))
    }

    /// One more record at the end: a log.
    fn append(&mut self) -> Done {
        let path = PathBuf::from("log");
        if !self.ledger.has(&path) || self.ledger.size(&path) > 1 << 20 {
            return self.overwrite(&path, None);
        }
        let generation = self.next_generation();
        let len = self.random.random_range(0..CHUNK - 100);
        let bytes = record(generation, 0, len);
        let offset = self.ledger.size(&path);
        let (began, evicted) = (now(), self.is_evicted(&path));
        let file = OpenOptions::new().append(true).open(self.dir.join(&path)).map_err(expect_dead)?;
        let op = Op::Write { path: path.clone(), offset, bytes: bytes.clone() };
        self.call(op, |_| io::Write::write_all(&mut &file, &bytes))?;
        self.recalls.extend(evicted.then(|| (began, now())));
        self.close(file, &path)
    }

    /// Bytes of the same length over the old ones, without truncation: HDF5, memory maps.
    fn rewrite_in_place(&mut self) -> Done {
        const LEN: usize = 3 * CHUNK;
        let path = PathBuf::from("table");
        let bytes = record(self.next_generation(), 0, LEN);
        if !self.ledger.has(&path) {
            return self.write_new(&path, &bytes);
        }
        let (began, evicted) = (now(), self.is_evicted(&path));
        let file = OpenOptions::new().write(true).open(self.dir.join(&path)).map_err(expect_dead)?;
        // Cut short or not, `tidy` may have written it anew with another length.
        if self.ledger.size(&path) != bytes.len() {
            drop(file);
            self.unlink(&path)?;
            return self.write_new(&path, &bytes);
        }
        self.write(&file, &path, 0, &bytes)?;
        self.recalls.extend(evicted.then(|| (began, now())));
        self.write_and_close(file, &path, bytes.len(), &[])
    }

    /// Whether the file's bytes are on the slow tier only: its next write brings them back.
    fn is_evicted(&self, path: &Path) -> bool {
        self.state(path).is_some_and(|state| state == b"slow")
    }

    /// Whether nothing of it is on its way to the slow tier.
    fn is_as_on_slow(&self, path: &Path) -> bool {
        self.state(path).is_some_and(|state| [&b"slow"[..], b"staged", b"clean"].contains(&&state[..]))
    }

    /// Where there is no daemon, or none any more, it has none.
    fn state(&self, path: &Path) -> Option<Vec<u8>> {
        xattr::get(self.dir.join(path), "user.dlio.state").ok().flatten()
    }

    fn write_new(&mut self, path: &Path, bytes: &[u8]) -> Done {
        let file = self.create(path)?;
        self.write_and_close(file, path, 0, bytes)
    }

    fn create(&mut self, path: &Path) -> Result<File, Stopped> {
        let create = |dir: &Path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join(path));
        self.call(Op::Create(path.to_owned()), create)
    }

    fn write(&mut self, file: &File, path: &Path, start: usize, bytes: &[u8]) -> Done {
        for (number, chunk) in bytes.chunks(CHUNK).enumerate() {
            let offset = start + number * CHUNK;
            let op = Op::Write { path: path.to_owned(), offset, bytes: chunk.to_vec() };
            self.call(op, |_| file.write_all_at(chunk, offset as u64))?;
        }
        Ok(())
    }

    /// Some files are fsynced, most are not, as with the frameworks.
    fn write_and_close(&mut self, file: File, path: &Path, start: usize, bytes: &[u8]) -> Done {
        self.write(&file, path, start, bytes)?;
        if self.random.random_bool(0.2) {
            self.call(Op::Fsync(path.to_owned()), |_| file.sync_all())?;
        }
        self.close(file, path)
    }

    fn close(&mut self, file: File, path: &Path) -> Done {
        self.call(Op::Close(path.to_owned()), |_| Ok(nix::unistd::close(file)?))
    }

    fn mkdir(&mut self, path: &Path) -> Done {
        self.call(Op::Mkdir(path.to_owned()), |dir| DirBuilder::new().mode(0o700).create(dir.join(path)))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Done {
        let op = Op::Rename(from.to_owned(), to.to_owned());
        self.call(op, |dir| fs::rename(dir.join(from), dir.join(to)))
    }

    fn unlink(&mut self, path: &Path) -> Done {
        self.call(Op::Unlink(path.to_owned()), |dir| fs::remove_file(dir.join(path)))
    }

    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Mostly small, sometimes several requests long.
    fn some_record(&mut self, generation: u64) -> Vec<u8> {
        let len = match self.random.random_range(0..4) {
            0 => self.random.random_range(0..4 * CHUNK),
            _ => self.random.random_range(0..CHUNK / 4),
        };
        record(generation, self.random.random(), len)
    }
}

/// Nanoseconds that only rise, the same for all threads and processes of the machine: what one of them did before another
/// can be told from it.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// The generation that a file's name promises.
pub(crate) fn generation_of(path: &Path) -> Option<u64> {
    path.to_str()?.strip_prefix("ckpt-")?.parse().ok()
}

fn sample(number: usize) -> PathBuf {
    PathBuf::from(format!("sample-{number:02}"))
}

/// How a mount without its daemon answers.
pub(crate) fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ENOTCONN | Errno::ECONNABORTED))
}

/// An open that changes nothing fails only because the daemon has gone.
fn expect_dead(error: io::Error) -> Stopped {
    assert!(is_dead(&error), "open: {error}");
    Stopped
}
