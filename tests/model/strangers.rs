//! Somebody else writes, replaces and removes on the slow tree what programs use through the view: on the same names, between any two
//! steps of the background. There is no one order then; what holds instead, at rest:
//!
//! - the view and the slow tree are equal, and no step failed for good;
//! - each content that a program wrote, or somebody else did, is on the slow tree as a whole, under whatever name, unless it was removed or replaced
//!   by somebody who saw it: a program what the view showed, somebody else what the slow tree showed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use dlio_fs::error::{Errno, Result as EngineResult};
use dlio_fs::tiers::disk::{Access, Dir, RenameMode};
use dlio_fs::tiers::{Cx, Ino, OpenMode, Progress, ROOT, Tiers};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::shrink;
use crate::sim::image::Image;
use crate::stories::{Machine, WRITE, name};
use crate::walk;

type Path = &'static str;

/// Few names: all meet on them.
const PATHS: [Path; 6] = ["a", "b", "c", "d/a", "d/b", "d/c"];
const ACTS: usize = 40;
const CASES: u64 = 400;
/// A file's bytes.
const LEN: usize = 300;
const REVALIDATE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
enum Act {
    /// In place of what is there: its bytes, or the file.
    Put {
        path: Path,
        replace: bool,
    },
    Remove {
        path: Path,
    },
    Move {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    Sync {
        path: Path,
    },
    TheyPut {
        path: Path,
        replace: bool,
    },
    TheyRemove {
        path: Path,
    },
    Step(Step),
    Wait {
        ms: u64,
    },
    Rest,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Seal,
    Drain,
    Publish,
    Recheck,
    Tick,
    Evict,
}

fn roll(rng: &mut Xoshiro256PlusPlus) -> Act {
    let path = PATHS[rng.random_range(0..PATHS.len())];
    let to = PATHS[rng.random_range(0..PATHS.len())];
    let replace = rng.random_bool(0.5);
    match rng.random_range(0..40) {
        0..8 => Act::Put { path, replace },
        8..10 => Act::Remove { path },
        10..13 => {
            let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            Act::Move { from: path, to, mode: modes[rng.random_range(0..modes.len())] }
        }
        13 => Act::Sync { path },
        14..18 => Act::TheyPut { path, replace },
        18..20 => Act::TheyRemove { path },
        20..34 => {
            let steps = [
                Step::Seal,
                Step::Drain,
                Step::Drain,
                Step::Publish,
                Step::Publish,
                Step::Recheck,
                Step::Tick,
                Step::Evict,
            ];
            Act::Step(steps[rng.random_range(0..steps.len())])
        }
        34..39 => Act::Wait { ms: [1, 300, 1100, 3000, 31_000][rng.random_range(0..5)] },
        _ => Act::Rest,
    }
}

struct World {
    machine: Machine,
    engine: Tiers,
    /// What must still be there, and who wrote it where.
    kept: BTreeMap<Vec<u8>, String>,
    /// Names that programs have removed, moved or replaced since the last rest: the file that the slow tree still has there goes, whatever is
    /// written into it.
    left: BTreeSet<Path>,
    /// What somebody else wrote into the file of this name: it goes with the file, if a program removes or replaces that, as anywhere.
    inside: BTreeMap<Path, Vec<u8>>,
    written: u32,
    verbose: bool,
}

type Check = Result<(), String>;

impl World {
    fn new(seed: u64) -> World {
        let mut machine = Machine::new();
        (machine.options.revalidate, machine.options.attribute_lifetime_slow) = (REVALIDATE, Duration::from_secs(1));
        // What is clean is evicted at the first opportunity.
        if seed.is_multiple_of(3) {
            (machine.options.high, machine.options.low) = (0.0, 0.0);
        }
        machine.slow.root().mkdir(b"d", 0o755).unwrap();
        machine.slow.settle();
        let engine = machine.open("boot");
        World {
            machine,
            engine,
            kept: BTreeMap::new(),
            left: BTreeSet::new(),
            inside: BTreeMap::new(),
            written: 0,
            verbose: false,
        }
    }

    fn run(&mut self, acts: &[Act]) -> Check {
        for act in acts {
            if self.verbose {
                println!("{act:?}");
            }
            self.act(act).map_err(|why| format!("{act:?}: {why}"))?;
        }
        self.rest()
    }

    fn act(&mut self, act: &Act) -> Check {
        match act {
            Act::Put { path, replace } => self.put(path, *replace),
            Act::Remove { path } => {
                let shown = self.shown(path)?;
                self.leave(path);
                let done =
                    self.parent(path).and_then(|(dir, file)| self.engine.unlink(&Cx::internal(), dir, &name(file)));
                self.let_go(done, shown)
            }
            Act::Move { from, to, mode } => {
                let shown = if *mode == RenameMode::Replace && from != to { self.shown(to)? } else { None };
                self.leave(to);
                self.left.insert(from);
                let done = self.rename(from, to, *mode);
                self.let_go(done, shown)
            }
            Act::Sync { path } => {
                let open = self.open(path, OpenMode { read: true, ..OpenMode::default() });
                let done = open.and_then(|file| {
                    let done = self.engine.fsync(&Cx::internal(), &file);
                    self.engine.release(&Cx::internal(), file);
                    done
                });
                self.let_go(done, None)
            }
            Act::TheyPut { path, replace } => self.they_put(path, *replace).map_err(|e| e.to_string()),
            Act::TheyRemove { path } => {
                let (dir, file) = self.slow_dir(path);
                let shown = self.on_slow(path);
                if dir.unlink(file.as_bytes()).is_ok() {
                    self.released(shown);
                }
                Ok(())
            }
            Act::Step(step) => self.step(*step).map(drop),
            Act::Wait { ms } => {
                self.machine.clock.advance(Duration::from_millis(*ms));
                Ok(())
            }
            Act::Rest => self.rest(),
        }
    }

    /// What nobody wrote before.
    fn content(&mut self, by: &str, path: &str) -> Vec<u8> {
        self.written += 1;
        let content: Vec<u8> = format!("{by} {} ", self.written).into_bytes().into_iter().cycle().take(LEN).collect();
        self.kept.insert(content.clone(), format!("{by} wrote it to {path}, as number {}", self.written));
        content
    }

    fn released(&mut self, content: Option<Vec<u8>>) {
        if let Some(content) = content {
            self.kept.remove(&content);
        }
    }

    fn leave(&mut self, path: Path) {
        self.left.insert(path);
        let inside = self.inside.remove(path);
        self.released(inside);
    }

    /// The program that was answered has let go what it saw. What others did meanwhile may be refused to it.
    fn let_go(&mut self, done: EngineResult<()>, shown: Option<Vec<u8>>) -> Check {
        match done.map_err(|e| e.errno()) {
            Ok(()) => self.released(shown),
            Err(Errno::ENOENT | Errno::EEXIST | Errno::ESTALE) => {}
            Err(e) => return Err(format!("{e}")),
        }
        Ok(())
    }

    // Programs.

    fn parent(&self, path: Path) -> EngineResult<(Ino, Path)> {
        let Some((dir, file)) = path.split_once('/') else { return Ok((ROOT, path)) };
        let attr = self.engine.lookup(&Cx::internal(), ROOT, &name(dir))?;
        self.engine.forget(attr.ino, 1);
        Ok((attr.ino, file))
    }

    fn open(&self, path: Path, mode: OpenMode) -> EngineResult<dlio_fs::tiers::OpenFile> {
        let (dir, file) = self.parent(path)?;
        let attr = self.engine.lookup(&Cx::internal(), dir, &name(file))?;
        let open = self.engine.open(&Cx::internal(), attr.ino, mode);
        self.engine.forget(attr.ino, 1);
        open
    }

    /// What the view has there.
    fn shown(&self, path: Path) -> Result<Option<Vec<u8>>, String> {
        let file = match self.open(path, OpenMode { read: true, ..OpenMode::default() }) {
            Ok(file) => file,
            // It may be on its way, and others have moved it besides.
            Err(e) if matches!(e.errno(), Errno::ENOENT | Errno::ESTALE) => return Ok(self.on_slow(path)),
            Err(e) => return Err(format!("open {path}: {e}")),
        };
        let mut bytes = vec![0; LEN + 100];
        let read = self.engine.read(&Cx::internal(), &file, &mut bytes, 0);
        self.engine.release(&Cx::internal(), file);
        bytes.truncate(read.map_err(|e| format!("read {path}: {e}"))?);
        Ok(Some(bytes))
    }

    fn put(&mut self, path: Path, replace: bool) -> Check {
        let content = self.content("a program", path);
        let cx = Cx::internal();
        let tmp = format!("tmp{}", self.written);
        let shown = self.shown(path)?;
        let exists = shown.is_some() && !replace;
        let opened = if exists {
            self.open(path, OpenMode { truncate: true, ..WRITE })
        } else {
            self.parent(path).and_then(|(dir, file)| {
                let file = if replace { &tmp } else { file };
                Ok(self.engine.create(&cx, dir, &name(file), 0o644, 0, WRITE)?.1)
            })
        };
        let written = opened.and_then(|file| {
            let done = self.engine.write(&cx, &file, &content, 0, false);
            let done = done.and_then(|()| self.engine.flush(&cx, &file));
            self.engine.release(&cx, file);
            done
        });
        if written.is_err() {
            // Nobody was told that it is there; and of what was there before, nobody knows.
            self.released(Some(content));
            return self.let_go(written, None);
        }
        if replace {
            self.leave(path);
            let (dir, file) = self.parent(path).map_err(|e| e.to_string())?;
            let shown = self.shown(path)?;
            let done = self.engine.rename(&cx, dir, &name(&tmp), dir, &name(file), RenameMode::Replace);
            return self.let_go(done, shown);
        }
        self.let_go(Ok(()), shown)
    }

    fn rename(&self, from: Path, to: Path, mode: RenameMode) -> EngineResult<()> {
        let ((dir, file), (into, to)) = (self.parent(from)?, self.parent(to)?);
        self.engine.rename(&Cx::internal(), dir, &name(file), into, &name(to), mode)
    }

    // Somebody else.

    fn slow_dir(&self, path: Path) -> (std::sync::Arc<dyn Dir>, Path) {
        let root = self.machine.slow.root();
        match path.split_once('/') {
            Some((dir, file)) => (root.dir(dir.as_bytes()).unwrap(), file),
            None => (root, path),
        }
    }

    fn on_slow(&self, path: Path) -> Option<Vec<u8>> {
        let (dir, file) = self.slow_dir(path);
        let file = dir.open(file.as_bytes(), Access::Read).ok()?;
        let mut bytes = vec![0; LEN + 100];
        let n = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(n);
        Some(bytes)
    }

    fn they_put(&mut self, path: Path, replace: bool) -> std::io::Result<()> {
        let shown = self.on_slow(path);
        let content = self.content("somebody else", path);
        let (dir, file) = self.slow_dir(path);
        let (file, there) = (file.as_bytes(), shown.is_some());
        if there && !replace {
            dir.open(file, Access::ReadWrite)?.write_at(&content, 0)?;
            if self.left.contains(path) {
                self.released(Some(content));
            } else {
                self.inside.insert(path, content);
            }
        } else {
            dir.create(b"theirs.tmp", 0o644)?.write_at(&content, 0)?;
            dir.rename(b"theirs.tmp", &*dir, file, RenameMode::Replace)?;
        }
        self.released(shown);
        Ok(())
    }

    // The background.

    fn step(&self, step: Step) -> Result<Progress, String> {
        let done = match step {
            Step::Seal => self.engine.seal_step(),
            Step::Drain => self.engine.drain_step(),
            Step::Publish => self.engine.publish_step(),
            Step::Recheck => self.engine.recheck_step(),
            Step::Tick => self.engine.tick(),
            Step::Evict => self.engine.evict_step(),
        };
        done.map_err(|e| format!("{step:?}: {e}"))
    }

    fn rest(&mut self) -> Check {
        self.engine.sync_fast().map_err(|e| e.to_string())?;
        for _ in 0..20 {
            for step in [Step::Seal, Step::Drain, Step::Publish, Step::Recheck, Step::Tick, Step::Evict] {
                for _ in 0..20 {
                    if self.step(step)? != Progress::Did {
                        break;
                    }
                }
            }
            self.machine.clock.advance(Duration::from_secs(6));
        }
        let queue = self.engine.queue(20);
        if queue.events > 0 {
            return Err(format!("no rest: {queue:?}"));
        }
        let mut cached = Vec::new();
        // What others changed is noticed at an open, and shown from then on.
        drop(walk::view(&self.engine, &mut cached));
        let view = walk::view(&self.engine, &mut cached);
        cached.into_iter().for_each(|ino| self.engine.forget(ino, 1));
        let slow = self.machine.slow.image();
        let view = view.map_err(|why| format!("{why}\non the slow tree:\n{slow:?}"))?;
        if view != slow {
            return Err(format!("at rest the view is not the slow tree:\n{}", view.diff(&slow, "view", "slow")));
        }
        self.left.clear();
        self.inside.clear();
        self.all_is_there(&slow)
    }

    fn all_is_there(&self, slow: &Image) -> Check {
        let there: BTreeSet<&Vec<u8>> =
            slow.paths().filter_map(|path| slow.get(path)).map(|entry| &*entry.shown.body().bytes).collect();
        match self.kept.iter().find(|(content, _)| !there.contains(content)) {
            None => Ok(()),
            Some((_, whose)) => Err(format!("lost: {whose}\n{slow:?}")),
        }
    }
}

fn run(seed: u64, acts: &[Act]) -> Check {
    World::new(seed).run(acts)
}

#[test]
fn somebody_else_on_the_same_names_takes_nothing_with_him() {
    let one = crate::number("DLIO_STRANGERS_SEED");
    let first = one.or(crate::number("DLIO_STRANGERS_FIRST")).unwrap_or(0);
    let cases = if one.is_some() { 1 } else { crate::number("DLIO_STRANGERS_CASES").unwrap_or(CASES) };
    for seed in first..first + cases {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let acts: Vec<Act> = (0..ACTS).map(|_| roll(&mut rng)).collect();
        let Err(why) = run(seed, &acts) else { continue };
        let (acts, why) = shrink::least((acts, why), |acts| run(seed, acts).err());
        let mut story = String::new();
        acts.iter().for_each(|act| writeln!(story, "        {act:?},").unwrap());
        panic!("DLIO_STRANGERS_SEED={seed}:\n{story}{why}");
    }
}
