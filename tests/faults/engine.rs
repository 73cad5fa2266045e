//! The engine on two simulated disks of which any call may fail, as a target of the script.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dlio_fs::config::{Config, DrainStreams, Rules};
use dlio_fs::error::{Errno, Error, Result as EngineResult};
use dlio_fs::path::Name;
use dlio_fs::tiers::disk::faults::{Faults, TierName};
use dlio_fs::tiers::disk::{Dir, Kind, MetadataOrder, NewAttr};
use dlio_fs::tiers::{self, Cx, Ino, OpenFile, OpenMode, Options, Progress, ROOT, SetAttr, SlowTree, Tiers};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::script::{COPY_UP_MAX, LITTLE, RULES, Target, before};
use crate::sim::image::Image;
use crate::sim::{Lose, SimClock, SimDisk, SimPower};
use crate::traffic::ledger::Op;
use crate::traffic::tree::{Seen, Shown, Tree};

const TAG: &[u8] = b"user.tag";
/// Rounds of the background within which it has to come to rest.
const ROUNDS: usize = 400;
const ROOM: u64 = 1 << 30;
/// Steps within which a job that nothing hinders has ended.
const STAGE_STEPS: usize = 100;

pub(crate) struct World {
    pub(crate) faults: Arc<Faults>,
    clock: Arc<SimClock>,
    fast: SimDisk,
    pub(crate) slow: SimDisk,
    engine: Option<Tiers>,
    open: Option<OpenFile>,
    boot: u32,
    /// How long an answer of the slow tier is believed.
    pub(crate) believed: Duration,
    /// After each call of the application the background does a round.
    eager: bool,
    /// What the background said last.
    pub(crate) trouble: Option<String>,
}

impl World {
    /// Both tiers, the slow one filled; no engine yet.
    pub(crate) fn new(order: MetadataOrder, eager: bool) -> Self {
        let (clock, power) = (SimClock::new(), SimPower::new());
        let disk = |name| SimDisk::new(name, order, ROOM, &power, &clock);
        let (fast, slow) = (disk("fast"), disk("slow"));
        populate(&*slow.root());
        slow.settle();
        slow.observe();
        let (faults, trouble, believed) = (Arc::default(), None, Duration::from_secs(1));
        World { faults, clock, fast, slow, engine: None, open: None, boot: 1, believed, eager, trouble }
    }

    /// Any start is a recovery.
    pub(crate) fn start(&mut self) -> EngineResult<()> {
        let mut options = Options::for_tests();
        options.copy_up_max = COPY_UP_MAX;
        options.rules = rules();
        options.drain_streams = DrainStreams::Exactly(2);
        options.attribute_lifetime_slow = self.believed;
        let fast = self.faults.wrap(TierName::Fast, self.fast.root());
        let slow = self.faults.wrap(TierName::Slow, self.slow.root());
        let boot = format!("boot-{}", self.boot);
        self.engine = Some(tiers::open(fast, slow, SlowTree::Writable, options, self.clock.clone(), &boot)?);
        Ok(())
    }

    /// The daemon is killed; with `cut`, the machine loses its power too.
    pub(crate) fn stop(&mut self, cut: Option<u64>) {
        self.open = None;
        self.engine = None;
        let (lose, seed) = cut.map_or((Lose::Nothing, 0), |seed| (Lose::Unsynced, seed));
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        self.fast = self.fast.crash(lose, &mut random);
        self.slow = self.slow.crash(lose, &mut random);
        self.boot += u32::from(cut.is_some());
    }

    pub(crate) fn engine(&self) -> &Tiers {
        self.engine.as_ref().expect("started before it is used")
    }

    /// One step of each kind of background work; whether any did something.
    fn round(&mut self) -> bool {
        let engine = self.engine.as_ref().expect("started before it is used");
        let mut did = false;
        for (name, step) in WORKS {
            let done = step(engine);
            engine.report(name, done.as_ref().err());
            match done {
                Ok(progress) => did |= progress == Progress::Did,
                Err(e) => self.trouble = Some(format!("{name}: {e}")),
            }
        }
        did
    }

    /// Lets the background work until it rests or no longer gets on.
    pub(crate) fn rest(&mut self) {
        self.engine().count_waiter(true);
        let mut idle = 0;
        for _ in 0..ROUNDS {
            self.trouble = None;
            // As whoever waits for D2 does.
            if let Err(e) = self.engine().sync_fast() {
                self.trouble = Some(format!("sync: {e}"));
            }
            idle = if self.round() { 0 } else { idle + 1 };
            if idle == 3 {
                break;
            }
            self.clock.advance(Duration::from_secs(1));
        }
        self.engine().count_waiter(false);
    }

    pub(crate) fn is_drained(&self) -> bool {
        let status = self.engine().status();
        status.safety.files == 0 && status.safety.events == 0
    }

    /// What an application sees while calls fail.
    pub(crate) fn tree_with_faults(&self) -> EngineResult<Tree> {
        let mut tree = Tree::new();
        self.read_below(ROOT, Path::new(""), &mut tree).map(|()| tree)
    }

    fn bytes_of(&self, path: &Path) -> EngineResult<Vec<u8>> {
        let engine = self.engine();
        let file = engine.open(&cx(), self.find(path)?, OpenMode::default())?;
        let size = engine.getattr(&cx(), file.ino).map(|attr| attr.size as usize);
        let mut bytes = vec![0; size.as_ref().map_or(0, |size| size + 1)];
        let read = size.and_then(|_| engine.read(&cx(), &file, &mut bytes, 0));
        engine.release(&cx(), file);
        bytes.truncate(read?);
        Ok(bytes)
    }

    fn find(&self, path: &Path) -> Result<Ino, Errno> {
        let mut ino = ROOT;
        for name in path.iter() {
            let name = Name::new(name.as_encoded_bytes())?;
            ino = errno(self.engine().lookup(&cx(), ino, &name))?.ino;
        }
        Ok(ino)
    }

    fn parent(&self, path: &Path) -> Result<(Ino, Name), Errno> {
        let name = Name::new(path.file_name().expect("no call is about the root").as_encoded_bytes())?;
        Ok((self.find(path.parent().unwrap_or(Path::new("")))?, name))
    }

    fn opened(&mut self, path: &Path, truncate: bool) -> Result<(), Errno> {
        let mode = OpenMode { write: true, append: false, truncate };
        let file = errno(self.engine().open(&cx(), self.find(path)?, mode))?;
        self.open = Some(file);
        Ok(())
    }

    fn call(&mut self, op: &Op) -> Result<(), Errno> {
        match op {
            Op::Create(path) => {
                let (dir, name) = self.parent(path)?;
                let mode = OpenMode { write: true, append: false, truncate: false };
                let (_, file) = errno(self.engine().create(&cx(), dir, &name, 0o600, 0, mode))?;
                self.open = Some(file);
                Ok(())
            }
            Op::Truncate(path) => self.opened(path, true),
            Op::Write { path, offset, bytes } => {
                if self.open.is_none() {
                    self.opened(path, false)?;
                }
                let file = self.open.as_ref().ok_or(Errno::EBADF)?;
                errno(self.engine().write(&cx(), file, bytes, *offset as u64, false))
            }
            Op::Fsync(_) => errno(self.engine().fsync(&cx(), self.open.as_ref().ok_or(Errno::EBADF)?)),
            Op::Close(_) => {
                let file = self.open.take().ok_or(Errno::EBADF)?;
                let flushed = errno(self.engine().flush(&cx(), &file));
                self.engine().release(&cx(), file);
                flushed
            }
            _ => self.call_on_names(op),
        }
    }

    fn call_on_names(&self, op: &Op) -> Result<(), Errno> {
        let engine = self.engine();
        match op {
            Op::Mkdir(path) => {
                let (dir, name) = self.parent(path)?;
                errno(engine.mkdir(&cx(), dir, &name, 0o700, 0)).map(drop)
            }
            Op::Symlink(to, path) => {
                let (dir, name) = self.parent(path)?;
                errno(engine.symlink(&cx(), dir, &name, to.as_os_str().as_encoded_bytes())).map(drop)
            }
            Op::Link(from, to) => {
                let (dir, name) = self.parent(to)?;
                errno(engine.link(&cx(), self.find(from)?, dir, &name)).map(drop)
            }
            Op::Unlink(path) => {
                let (dir, name) = self.parent(path)?;
                errno(engine.unlink(&cx(), dir, &name))
            }
            Op::Rmdir(path) => {
                let (dir, name) = self.parent(path)?;
                errno(engine.rmdir(&cx(), dir, &name))
            }
            Op::Rename(from, to) => {
                let ((dir, name), (to, to_name)) = (self.parent(from)?, self.parent(to)?);
                let mode = tiers::disk::RenameMode::Replace;
                errno(engine.rename(&cx(), dir, &name, to, &to_name, mode))
            }
            Op::Chmod(path, mode) => {
                let attr = NewAttr { perm: Some(*mode), ..NewAttr::default() };
                errno(engine.setattr(&cx(), self.find(path)?, &SetAttr { attr, size: None })).map(drop)
            }
            Op::Tag(path, tag) => errno(engine.set_xattr(&cx(), self.find(path)?, TAG, tag, false, false)),
            other => unreachable!("{other:?} is about an open file"),
        }
    }

    fn read_below(&self, dir: Ino, at: &Path, tree: &mut Tree) -> EngineResult<()> {
        let engine = self.engine();
        let listing = engine.list(&cx(), dir)?;
        for entry in listing.entries.iter().skip(2) {
            let attr = engine.lookup(&cx(), dir, &Name::new(&entry.name)?)?;
            let path = at.join(String::from_utf8_lossy(&entry.name).as_ref());
            let tag = engine.get_xattr(&cx(), attr.ino, TAG)?;
            let seen = match attr.kind {
                Kind::Dir => Seen::noted(Shown::Dir, 0, None),
                Kind::Symlink => Seen::noted(Shown::Link(text(&engine.readlink(&cx(), attr.ino)?).into()), 0, None),
                _ => {
                    let file = engine.open(&cx(), attr.ino, OpenMode::default())?;
                    let mut bytes = vec![0; attr.size as usize + 1];
                    let read = engine.read(&cx(), &file, &mut bytes, 0);
                    engine.release(&cx(), file);
                    bytes.truncate(read?);
                    Seen::noted(Shown::file(&bytes), attr.perm, tag)
                }
            };
            if seen.shown == Shown::Dir {
                self.read_below(attr.ino, &path, tree)?;
            }
            tree.insert(path, seen);
        }
        Ok(())
    }
}

type Work = fn(&Tiers) -> EngineResult<Progress>;

const WORKS: [(&str, Work); 7] = [
    ("seal", Tiers::seal_step),
    ("drain 2", |tiers| tiers.drain_stream_step(1)),
    ("drain", Tiers::drain_step),
    ("publish", Tiers::publish_step),
    ("evict", Tiers::evict_step),
    ("stage", Tiers::stage_step),
    ("tick", Tiers::tick),
];

impl Target for World {
    fn perform(&mut self, op: &Op) -> Result<(), Errno> {
        let was_open = self.open.is_some();
        let done = self.call(op);
        // Nobody closes what could not be written to at first.
        if done.is_err()
            && !was_open
            && let Some(file) = self.open.take()
        {
            self.engine().release(&cx(), file);
        }
        if self.eager {
            self.round();
        }
        done
    }

    fn tree(&mut self) -> Result<Tree, String> {
        self.faults.hold(true);
        let read = self.tree_with_faults();
        self.faults.hold(false);
        read.map_err(|e| format!("the view cannot be read: {e}"))
    }

    fn drain(&mut self) -> Result<(), Errno> {
        self.rest();
        if self.is_drained() { Ok(()) } else { Err(Errno::EIO) }
    }

    fn evict(&mut self) {
        for ino in self.engine().evictable(ROOT, 0).clean {
            // Whatever stays is none the worse for it.
            self.engine().evict_now(&cx(), ino).map(drop).unwrap_or_default();
        }
        for number in self.engine().copies() {
            self.engine().evict_unpinned_copy(number).map(drop).unwrap_or_default();
        }
    }

    fn bring(&mut self, dir: &Path, read: &Path) {
        // Later than a change that might go unnoticed.
        self.clock.advance(Duration::from_secs(10));
        let dir = dir.as_os_str().as_encoded_bytes().to_vec();
        self.engine().stage("some", vec![dir]).expect("few paths");
        drop(self.bytes_of(read));
        for _ in 0..STAGE_STEPS {
            match self.engine().stage_step() {
                Ok(Progress::Did) => {}
                Ok(Progress::Idle) => return,
                Ok(Progress::Wait(time)) => self.clock.advance(time),
                Err(e) => self.trouble = Some(format!("stage: {e}")),
            }
        }
    }

    fn read(&mut self, path: &Path) -> Result<Shown, Errno> {
        errno(self.bytes_of(path)).map(|bytes| Shown::file(&bytes))
    }

    fn pin(&mut self, path: &Path) -> Result<(), Errno> {
        errno(self.engine().pin_path(path.as_os_str().as_encoded_bytes())).map(drop)
    }

    fn pins(&mut self) -> Result<Vec<PathBuf>, String> {
        Ok(self.engine().pinned_paths(None).into_iter().map(PathBuf::from).collect())
    }

    fn fill(&mut self, full: bool) {
        self.fast.set_capacity(if full { self.fast.used() + LITTLE } else { ROOM });
    }

    fn change_behind(&mut self, path: &Path, bytes: &[u8]) {
        let (dir, name) = (path.parent().expect("below the root"), path.file_name().expect("no root"));
        let dir = self.slow.root().dir(dir.as_os_str().as_encoded_bytes()).expect("one that nobody moves");
        let file = dir.open(name.as_encoded_bytes(), tiers::disk::Access::ReadWrite).expect("nobody removes it");
        file.write_at(bytes, 0).expect("nothing fails below the seam");
    }
}

fn rules() -> Rules {
    let rules = toml::from_str::<Config>(&format!("rules = {RULES}")).expect("rules are an array");
    Rules::new(&rules).expect("patterns")
}

/// The tree that a disk shows, as a ledger compares it.
pub(crate) fn tree_of(image: &Image) -> Tree {
    let mut tree = Tree::new();
    for path in image.paths().filter(|path| !path.is_empty()) {
        let Some(entry) = image.get(path) else { continue };
        let body = entry.shown.body();
        let tag = body.xattrs.get(TAG).cloned();
        let seen = match body.kind {
            Kind::Dir => Seen::noted(Shown::Dir, 0, None),
            Kind::Symlink => Seen::noted(Shown::Link(text(&body.target).into()), 0, None),
            _ => Seen::noted(Shown::file(&body.bytes), body.perm, tag),
        };
        tree.insert(text(path).into(), seen);
    }
    tree
}

fn populate(root: &dyn Dir) {
    let dir_of = |path: &Path| -> io::Result<Option<Arc<dyn Dir>>> {
        let mut dir: Option<Arc<dyn Dir>> = None;
        for name in path.parent().unwrap_or(Path::new("")) {
            dir = Some(dir.as_deref().unwrap_or(root).dir(name.as_encoded_bytes())?);
        }
        Ok(dir)
    };
    for op in before() {
        let (path, mode, bytes) = match &op {
            Op::Mkdir(path) => (path, 0o700, None),
            Op::Create(path) => (path, 0o600, Some(&[][..])),
            Op::Write { path, bytes, .. } => (path, 0o600, Some(&bytes[..])),
            _ => continue,
        };
        let dir = dir_of(path).expect("the one above was made before");
        let dir = dir.as_deref().unwrap_or(root);
        let name = path.file_name().expect("no root").as_encoded_bytes();
        let done = match (&op, bytes) {
            (Op::Write { .. }, Some(bytes)) => {
                dir.open(name, tiers::disk::Access::ReadWrite).and_then(|file| file.write_at(bytes, 0))
            }
            (_, Some(_)) => dir.create(name, mode).map(drop),
            (_, None) => dir.mkdir(name, mode),
        };
        done.expect("an empty disk takes it");
    }
}

fn cx() -> Cx {
    Cx::internal()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn errno<T>(done: Result<T, Error>) -> Result<T, Errno> {
    done.map_err(|e| e.errno())
}
