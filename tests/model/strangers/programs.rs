//! What programs do through the view, and what each of them has seen and was told.

use std::sync::Arc;

use dlio_fs::error::{Errno, Result as EngineResult};
use dlio_fs::tiers::disk::{Clock, File, Kind, NewAttr, RenameMode};
use dlio_fs::tiers::{Attr, Cx, Ino, OpenFile, OpenMode, Pin, ROOT, SetAttr};

use super::acts::{Act, Hold, How, Path};
use super::judge::{Block, Check};
use super::world::{World, at_hand_first};
use crate::stories::{WRITE, name};

const READ: OpenMode = OpenMode { write: false, truncate: false, append: false };

/// A file that a program keeps open.
pub struct Held {
    file: OpenFile,
    how: Hold,
    /// Written, and no event yet.
    dirty: Vec<Block>,
    through: Option<(Pin, Arc<dyn File>)>,
}

/// What others did meanwhile may be refused to a program, as on any tree that others use, too.
fn is_usual(errno: Errno) -> bool {
    use Errno::{EEXIST, EINVAL, EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, ESTALE};
    matches!(errno, ENOENT | EEXIST | ESTALE | ENOTDIR | EISDIR | ENOTEMPTY | ELOOP | EINVAL)
}

impl World {
    pub fn program(&mut self, act: &Act) -> Check {
        let done = self.call(act);
        let cached = self.cached.take();
        if !self.is_gone() {
            cached.into_iter().for_each(|ino| self.engine().forget(ino, 1));
        }
        done
    }

    fn call(&mut self, act: &Act) -> Check {
        match act {
            Act::Put { path, how } => self.put(path, *how),
            Act::Remove { path } => self.remove(path),
            Act::Mkdir { path } => {
                self.ledger.lock().act_on(path);
                let made = self.parent(path).and_then(|(dir, name)| self.engine().mkdir(&cx(), dir, &name, 0o755, 0));
                self.made(made)
            }
            Act::Rmdir { path } => {
                self.ledger.lock().leave(path);
                let done = self.parent(path).and_then(|(dir, name)| self.engine().rmdir(&cx(), dir, &name));
                self.told(done)
            }
            Act::Move { from, to, mode } => self.rename(from, to, *mode),
            Act::Link { from, to } => self.link(from, to),
            Act::Chmod { path, perm } => self.set(path, NewAttr { perm: Some(*perm), ..NewAttr::default() }),
            Act::Times { path } => {
                self.set(path, NewAttr { mtime: Some(self.machine.clock.now()), ..NewAttr::default() })
            }
            Act::Xattr { path } => self.set_xattr(path),
            Act::Open { slot, path, how } => self.hold(*slot, path, *how),
            Act::Write { slot } => self.write(*slot),
            Act::Fsync { slot } => self.fsync(*slot),
            Act::Close { slot } => self.close(*slot),
            Act::Sync { path } => self.sync(path),
            Act::SyncAll => {
                let done = self.engine().sync_fast();
                if done.is_ok() {
                    self.ledger.lock().synced(&Default::default());
                }
                self.told(done)
            }
            Act::Read { path } => self.shown(path).map(drop),
            Act::Stage => {
                let done = self.engine().stage("everything", vec![Vec::new()]).map(drop);
                self.told(done)
            }
            Act::Pin { path, pinned } => {
                let engine = self.engine();
                let done = if *pinned { engine.pin_path(path.as_bytes()) } else { engine.unpin_path(path.as_bytes()) };
                self.told(done.map(drop))
            }
            Act::LetGo { path } => {
                let done = self.find(path).and_then(|attr| self.engine().evict_now(&cx(), attr.ino)).map(drop);
                self.told(done)
            }
            other => unreachable!("{other:?} is no program's"),
        }
    }

    /// The answer to a program.
    fn told(&self, done: EngineResult<()>) -> Check {
        match done.map_err(|e| e.errno()) {
            Ok(()) => Ok(()),
            Err(errno) if is_usual(errno) || self.is_excused() => Ok(()),
            Err(errno) => Err(format!("a program was told {errno}")),
        }
    }

    /// The same, where a program that succeeds has let go what it saw; of one that failed with the tier nobody knows.
    fn let_go(&self, done: EngineResult<()>, shown: Vec<Block>) -> Check {
        if done.is_ok() || self.is_excused() {
            self.ledger.lock().release(shown);
        }
        self.told(done)
    }

    fn made(&self, made: EngineResult<Attr>) -> Check {
        self.told(made.map(|attr| self.engine().forget(attr.ino, 1)))
    }

    // Names. The kernel looks each of them up for each call, and forgets it behind that.

    fn lookup(&self, dir: Ino, file: &str) -> EngineResult<Attr> {
        let attr = at_hand_first(|cx| self.engine().lookup(cx, dir, &name(file)))?;
        self.cached.borrow_mut().push(attr.ino);
        Ok(attr)
    }

    fn parent(&self, path: Path) -> EngineResult<(Ino, dlio_fs::path::Name)> {
        let Some((dir, file)) = path.split_once('/') else { return Ok((ROOT, name(path))) };
        let attr = self.lookup(ROOT, dir)?;
        if attr.kind != Kind::Dir {
            return Err(Errno::ENOTDIR.into());
        }
        Ok((attr.ino, name(file)))
    }

    fn find(&self, path: Path) -> EngineResult<Attr> {
        let (dir, _) = self.parent(path)?;
        self.lookup(dir, path.rsplit('/').next().unwrap_or(path))
    }

    fn open(&self, path: Path, mode: OpenMode) -> EngineResult<OpenFile> {
        let open = || {
            let attr = self.find(path)?;
            match attr.kind {
                Kind::File => at_hand_first(|cx| self.engine().open(cx, attr.ino, mode)),
                Kind::Dir => Err(Errno::EISDIR.into()),
                _ => Err(Errno::ELOOP.into()),
            }
        };
        // The kernel looks the name up once more.
        open().or_else(|e| if e.errno() == Errno::ESTALE { open() } else { Err(e) })
    }

    fn blocks_of(&self, file: &OpenFile) -> Result<Option<Vec<Block>>, String> {
        let size = match self.engine().getattr(&cx(), file.ino) {
            Ok(attr) => attr.size as usize,
            Err(e) => return self.told(Err(e)).map(|()| None),
        };
        let mut bytes = vec![0; size + 100];
        match self.engine().read(&cx(), file, &mut bytes, 0) {
            Ok(n) => bytes.truncate(n),
            Err(e) => return self.told(Err(e)).map(|()| None),
        }
        let ledger = self.ledger.lock();
        match ledger.blocks(&bytes) {
            None if !ledger.torn => Err(format!("read what nobody wrote: {:?}...", &bytes[..bytes.len().min(20)])),
            blocks => Ok(blocks),
        }
    }

    /// What the view has there; `None`: it does not say.
    fn shown(&self, path: Path) -> Result<Option<Vec<Block>>, String> {
        let file = match self.open(path, READ) {
            Ok(file) => file,
            // Without births: another file may have got its number.
            Err(e) if e.errno() == Errno::ESTALE => return Ok(None),
            Err(e) if is_usual(e.errno()) => {
                if self.verbose {
                    println!("  {path}: {e}");
                }
                return Ok(Some(Vec::new()));
            }
            Err(e) => return self.told(Err(e)).map(|()| None),
        };
        let blocks = self.blocks_of(&file);
        if self.verbose {
            println!("  {path} has {blocks:?}");
        }
        self.engine().release(&cx(), file);
        blocks
    }

    /// Somebody writes the file where it is on the slow tier: what others wrote there meanwhile goes, as on any disk.
    fn after_write(&self, ino: Ino, block: Block, there: Vec<Block>) {
        let in_place = match self.engine().get_xattr(&cx(), ino, b"user.dlio.tier") {
            Ok(tier) => tier.as_deref() == Some(b"slow"),
            Err(_) => true,
        };
        // A file that has no name any more, or never had one of the slow tier's.
        let is_named = self.engine().getattr(&cx(), ino).is_ok_and(|attr| attr.nlink > 0);
        let on_slow = self.image();
        let mut ledger = self.ledger.lock();
        if in_place {
            ledger.in_place.insert(block);
            ledger.release(there);
            let there = on_slow.paths().any(|path| {
                let bytes = &on_slow.get(path).expect("a path of it").shown.body().bytes;
                ledger.blocks(bytes).is_some_and(|blocks| blocks.contains(&block))
            });
            if !there {
                ledger.release([block]);
            }
        }
        if !is_named {
            ledger.release([block]);
        }
    }

    fn put(&mut self, path: Path, how: How) -> Check {
        let Some(shown) = self.shown(path)? else { return Ok(()) };
        let (block, content) = self.ledger.lock().content("a program", path, false);
        let there = self.on_slow(path);
        if how == How::Replace {
            return self.replace(path, block, &content, shown);
        }
        self.ledger.lock().act_on(path);
        let opened = match self.open(path, OpenMode { truncate: how == How::InPlace, ..WRITE }) {
            Err(e) if e.errno() == Errno::ENOENT => self.create(path),
            opened => opened,
        };
        let file = match opened {
            Ok(file) => file,
            Err(e) => {
                self.ledger.lock().release([block]);
                return self.let_go(Err(e), shown);
            }
        };
        if how == How::InPlace {
            self.ledger.lock().release(shown.iter().copied());
        }
        let at = match how {
            How::Append => self.engine().getattr(&cx(), file.ino).map(|attr| attr.size),
            _ => Ok(0),
        };
        let done = at.and_then(|at| self.engine().write(&cx(), &file, &content, at, false));
        let done = done.and_then(|()| self.engine().flush(&cx(), &file));
        let ino = file.ino;
        self.engine().release(&cx(), file);
        if done.is_err() {
            // Nobody was told that it is there; and of what was there before, nobody knows.
            self.ledger.lock().release([block]);
            return self.let_go(done, shown);
        }
        self.after_write(ino, block, if how == How::Append { Vec::new() } else { there });
        Ok(())
    }

    fn create(&self, path: Path) -> EngineResult<OpenFile> {
        let (dir, name) = self.parent(path)?;
        let (attr, file) = self.engine().create(&cx(), dir, &name, 0o644, 0, WRITE)?;
        self.engine().forget(attr.ino, 1);
        Ok(file)
    }

    fn replace(&mut self, path: Path, block: Block, content: &[u8], shown: Vec<Block>) -> Check {
        let tmp = format!("tmp{block}");
        let made = self.parent(path).and_then(|(dir, to)| {
            let (attr, file) = self.engine().create(&cx(), dir, &name(&tmp), 0o644, 0, WRITE)?;
            self.engine().forget(attr.ino, 1);
            let done = self.engine().write(&cx(), &file, content, 0, false);
            let done = done.and_then(|()| self.engine().flush(&cx(), &file));
            self.engine().release(&cx(), file);
            done.map(|()| (dir, to))
        });
        let (dir, to) = match made {
            Ok(made) => made,
            Err(e) => {
                self.ledger.lock().release([block]);
                return self.told(Err(e));
            }
        };
        self.ledger.lock().leave(path);
        let done = self.engine().rename(&cx(), dir, &name(&tmp), dir, &to, RenameMode::Replace);
        self.let_go(done, shown)
    }

    fn remove(&mut self, path: Path) -> Check {
        let Some(shown) = self.shown(path)? else { return Ok(()) };
        self.ledger.lock().leave(path);
        let done = self.parent(path).and_then(|(dir, name)| self.engine().unlink(&cx(), dir, &name));
        self.let_go(done, shown)
    }

    fn rename(&mut self, from: Path, to: Path, mode: RenameMode) -> Check {
        // Into itself, or onto what it is in: the kernel answers that.
        let below = |path: &str, dir: &str| path.starts_with(&format!("{dir}/"));
        if below(from, to) || below(to, from) {
            return Ok(());
        }
        let Some(shown) = self.shown(to)? else { return Ok(()) };
        let is_dir = |path| self.find(path).is_ok_and(|attr| attr.kind == Kind::Dir);
        let dirs = is_dir(from) || is_dir(to);
        {
            let mut ledger = self.ledger.lock();
            ledger.leave(from);
            ledger.leave(to);
            if mode == RenameMode::Exchange {
                ledger.exchange();
            }
            if dirs {
                ledger.move_dir();
            }
        }
        let done = self.parent(from).and_then(|(dir, from)| {
            let (into, to) = self.parent(to)?;
            self.engine().rename(&cx(), dir, &from, into, &to, mode)
        });
        let replaced = if mode == RenameMode::Replace && from != to { shown } else { Vec::new() };
        self.let_go(done, replaced)
    }

    fn link(&mut self, from: Path, to: Path) -> Check {
        {
            let mut ledger = self.ledger.lock();
            ledger.act_on(from);
            ledger.act_on(to);
        }
        let made = self.find(from).and_then(|attr| {
            let (dir, name) = self.parent(to)?;
            // The kernel looks first.
            if attr.kind == Kind::Dir || self.find(to).is_ok() {
                return Err(Errno::EEXIST.into());
            }
            self.engine().link(&cx(), attr.ino, dir, &name)
        });
        self.made(made)
    }

    fn set(&mut self, path: Path, attr: NewAttr) -> Check {
        let Some(shown) = self.shown(path)? else { return Ok(()) };
        self.ledger.lock().act_on(path);
        self.ledger.lock().touch(&shown);
        let done = self.find(path).and_then(|found| {
            if found.kind == Kind::Symlink {
                return Ok(());
            }
            self.engine().setattr(&cx(), found.ino, &SetAttr { attr, size: None }).map(drop)
        });
        self.told(done)
    }

    fn set_xattr(&mut self, path: Path) -> Check {
        let Some(shown) = self.shown(path)? else { return Ok(()) };
        self.ledger.lock().act_on(path);
        self.ledger.lock().touch(&shown);
        let done = self.find(path).and_then(|found| {
            if found.kind == Kind::Symlink {
                return Ok(());
            }
            self.engine().set_xattr(&cx(), found.ino, b"user.k", b"kept", false, false)
        });
        let is_free = self.image().get(path.as_bytes()).is_none();
        if done.is_ok() && is_free && !self.ledger.lock().is_left(path) {
            // Also if somebody else has removed the file, and the view does not know: it has become ours again.
            self.ledger.lock().keep_again(&shown, path);
        }
        self.told(done)
    }

    // Files that stay open.

    fn hold(&mut self, slot: usize, path: Path, how: Hold) -> Check {
        if self.slots[slot].is_some() {
            return Ok(());
        }
        let writes = matches!(how, Hold::Write | Hold::Append);
        let mode = if writes { OpenMode { append: how == Hold::Append, ..WRITE } } else { READ };
        let opened = match self.open(path, mode) {
            Err(e) if writes && e.errno() == Errno::ENOENT => self.create(path),
            opened => opened,
        };
        let file = match opened {
            Ok(file) => file,
            Err(e) => return self.told(Err(e)),
        };
        if writes {
            self.ledger.lock().act_on(path);
        }
        let mut held = Held { file, how, dirty: Vec::new(), through: None };
        if how == Hold::Through {
            let backing = self.engine().backing(&held.file);
            held.through = self.engine().pin(held.file.ino, true).zip(backing);
        }
        self.slots[slot] = Some(held);
        Ok(())
    }

    fn write(&mut self, slot: usize) -> Check {
        let Some(held) = self.slots[slot].take() else { return Ok(()) };
        let wrote = self.write_to(&held, slot);
        let mut held = held;
        held.dirty.extend(wrote.as_ref().ok().into_iter().flatten());
        self.slots[slot] = Some(held);
        wrote.map(drop)
    }

    fn write_to(&mut self, held: &Held, slot: usize) -> Result<Option<Block>, String> {
        let Some(shown) = self.blocks_of(&held.file)? else { return Ok(None) };
        if let Some((_, backing)) = &held.through {
            let mut bytes = vec![0; shown.len() * self.ledger.lock().len + 100];
            let read = backing.read_at(&mut bytes, 0);
            let blocks = read.map(|n| self.ledger.lock().blocks(&bytes[..n]));
            // What he or another program writes into the very file is seen at once.
            return match blocks {
                Ok(None) if !self.ledger.lock().torn => Err("the kernel read what nobody wrote".to_owned()),
                _ => Ok(None),
            };
        }
        if !matches!(held.how, Hold::Write | Hold::Append) {
            return Ok(None);
        }
        let (block, content) = self.ledger.lock().content("a program", &format!("slot {slot}"), false);
        let ino = held.file.ino;
        let appends = held.how == Hold::Append;
        let at = if appends { self.engine().getattr(&cx(), ino).map(|attr| attr.size) } else { Ok(0) };
        let done = at.and_then(|at| self.engine().write(&cx(), &held.file, &content, at, false));
        // Somebody else, or another program, has removed the file: what is written into it goes with it, as on any tree.
        let is_gone = !self.ledger.lock().are_kept(&shown);
        let replaced: Vec<Block> = if appends { Vec::new() } else { shown.into_iter().take(1).collect() };
        if done.is_err() {
            self.ledger.lock().release([block]);
            return self.let_go(done, replaced).map(|()| None);
        }
        self.ledger.lock().release(replaced);
        self.after_write(ino, block, Vec::new());
        if is_gone {
            self.ledger.lock().release([block]);
        }
        Ok(Some(block))
    }

    fn fsync(&mut self, slot: usize) -> Check {
        let Some(held) = &self.slots[slot] else { return Ok(()) };
        let done = self.engine().fsync(&cx(), &held.file);
        if done.is_ok() {
            let blocks = self.blocks_of(&held.file)?.unwrap_or_default();
            let mut ledger = self.ledger.lock();
            blocks.iter().for_each(|block| ledger.synced_in_place(*block));
        }
        self.told(done)
    }

    fn close(&mut self, slot: usize) -> Check {
        let Some(held) = self.slots[slot].take() else { return Ok(()) };
        let done = self.engine().flush(&cx(), &held.file);
        drop(held.through);
        self.engine().release(&cx(), held.file);
        if done.is_err() {
            self.ledger.lock().release(held.dirty);
        }
        self.told(done)
    }

    /// What is in the file is durable from then on, as far as it is not written in place.
    fn sync(&mut self, path: Path) -> Check {
        let Some(shown) = self.shown(path)? else { return Ok(()) };
        let done = self.open(path, READ).and_then(|file| {
            let done = self.engine().fsync(&cx(), &file);
            self.engine().release(&cx(), file);
            done
        });
        if done.is_ok() {
            let mut ledger = self.ledger.lock();
            shown.iter().for_each(|block| ledger.synced_in_place(*block));
        }
        self.told(done)
    }
}

fn cx() -> Cx {
    Cx::internal()
}
