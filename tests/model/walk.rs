//! A walk through the whole view, as programs see it; also in the middle of what the background does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use dlio_fs::error::Result as EngineResult;
use dlio_fs::path::{Name, escape};
use dlio_fs::tiers::disk::sync::{Rank, held};
use dlio_fs::tiers::disk::{Kind, Time};
use dlio_fs::tiers::{Attr, Cx, Ino, OpenMode, ROOT, Tiers};
use parking_lot::Mutex;

use super::sim::image::{Body, Image, Shown};

type Check<T = ()> = Result<T, String>;

/// All there is. The references that the walk has taken go to `cached`, also when it fails.
pub fn view(engine: &Tiers, cached: &mut Vec<Ino>) -> Check<Image> {
    view_and_changes(engine, cached).map(|(view, _)| view)
}

pub fn view_and_changes(engine: &Tiers, cached: &mut Vec<Ino>) -> Check<(Image, Changes)> {
    let Found { view, names, changes } = everything(engine, cached)?;
    for (ino, (nlink, count)) in names {
        if nlink != count {
            return Err(format!("inode {ino} has {count} names and says {nlink}"));
        }
    }
    Ok((view, changes))
}

/// What a walk has found.
pub struct Found {
    pub view: Image,
    /// Of each file: its link count, and how often it was met.
    pub names: BTreeMap<Ino, (u32, u32)>,
    pub changes: Changes,
}

/// When each file with an object on the fast tier changed last.
pub type Changes = BTreeMap<Ino, Time>;

/// All there is, whatever number of names a file says to have.
pub fn everything(engine: &Tiers, cached: &mut Vec<Ino>) -> Check<Found> {
    let (found, names, changes) = Default::default();
    let mut walk = Walk { engine, cx: Cx::internal(), cached, found, names, changes };
    walk.dir(ROOT, &[])?;
    let Walk { found, names, changes, .. } = walk;
    Ok(Found { view: Image::new(found), names, changes })
}

pub fn compare(found: &Image, expected: &Image) -> Check {
    if found != expected {
        return Err(format!("the view is wrong:\n{}", found.diff(expected, "found   ", "expected")));
    }
    Ok(())
}

/// What happens once right before a call to the slow tier, in the middle of what made that call.
#[derive(Default)]
pub struct Meanwhile(Mutex<Option<Due>>);

struct Due {
    /// So many calls come before it.
    after: u64,
    act: Box<dyn FnOnce() + Send>,
}

impl Meanwhile {
    pub fn arm(&self, after: u64, act: impl FnOnce() + Send + 'static) {
        *self.0.lock() = Some(Due { after, act: Box::new(act) });
    }

    pub fn is_armed(&self) -> bool {
        self.0.lock().is_some()
    }

    /// The call, the step is over.
    pub fn disarm(&self) {
        drop(self.0.lock().take());
    }

    /// To be called before each call. Where another thread could do nothing just now, it waits for the next one.
    pub fn before_call(&self) {
        if held().iter().any(|rank| matches!(rank, Rank::Io | Rank::Opening)) {
            return;
        }
        let is_due = |due: &mut Due| {
            due.after = due.after.saturating_sub(1);
            due.after == 0
        };
        let due = self.0.lock().take_if(is_due);
        if let Some(due) = due {
            (due.act)();
        }
    }
}

/// A look at the view, which is to be as expected.
pub fn look(engine: &Weak<Tiers>, expected: &Image) -> Option<Check> {
    let engine = engine.upgrade()?;
    let mut cached = Vec::new();
    let found = view(&engine, &mut cached);
    cached.into_iter().for_each(|ino| engine.forget(ino, 1));
    Some(found.and_then(|found| compare(&found, expected)))
}

/// A walk through the whole view.
struct Walk<'a> {
    engine: &'a Tiers,
    cx: Cx,
    cached: &'a mut Vec<Ino>,
    found: Vec<(Vec<u8>, u64, Shown)>,
    /// Of each file: its link count, and how often it was met.
    names: BTreeMap<Ino, (u32, u32)>,
    changes: Changes,
}

impl Walk<'_> {
    fn try_<T>(&self, what: &str, path: &[u8], answer: EngineResult<T>) -> Check<T> {
        answer.map_err(|e| format!("{what} {} failed: {}", escape(path), e.errno()))
    }

    fn dir(&mut self, ino: Ino, path: &[u8]) -> Check {
        let attr = self.try_("getattr", path, self.engine.getattr(&self.cx, ino))?;
        let body = self.body(&attr, path)?;
        self.found.push((path.to_vec(), ino, Shown::new(body)));
        let listing = self.try_("list", path, self.engine.list(&self.cx, ino))?;
        let (dots, entries) = listing.entries.split_at(listing.entries.len().min(2));
        if dots.iter().map(|e| &e.name[..]).ne([&b"."[..], b".."]) || dots[0].ino != ino {
            return Err(format!("{} does not begin with . and ..: {dots:?}", escape(path)));
        }
        let mut seen = BTreeSet::new();
        for entry in entries {
            let below = if path.is_empty() { entry.name.clone() } else { [path, b"/", &entry.name].concat() };
            if !seen.insert(&entry.name) {
                return Err(format!("{} is listed twice", escape(&below)));
            }
            let name = Name::new(&entry.name).map_err(|_| format!("listed: {entry:?}"))?;
            let attr = self.try_("look-up of the listed", &below, self.engine.lookup(&self.cx, ino, &name))?;
            self.cached.push(attr.ino);
            // Of what is mounted on a directory the number is known once it was looked up.
            let again = || {
                self.engine
                    .list(&self.cx, ino)
                    .is_ok_and(|again| again.entries.iter().any(|e| (&e.name, e.ino) == (&entry.name, attr.ino)))
            };
            let mounted = entry.kind == Kind::Dir && entry.ino != attr.ino && again();
            if !mounted && (entry.kind, entry.ino) != (attr.kind, attr.ino) {
                return Err(format!("{} is listed as {entry:?} and found as {attr:?}", escape(&below)));
            }
            self.entry(attr, &below)?;
        }
        Ok(())
    }

    fn entry(&mut self, attr: Attr, path: &[u8]) -> Check {
        if attr.kind == Kind::Dir {
            return self.dir(attr.ino, path);
        }
        let again = self.try_("getattr", path, self.engine.getattr(&self.cx, attr.ino))?;
        // Without root the mode of what its owner may not read or write is changed for a moment, where its object is on the slow tier.
        let ctime = if attr.perm & 0o600 == 0o600 { again.ctime } else { attr.ctime };
        if (Attr { ttl: attr.ttl, ctime, ..again }) != attr {
            return Err(format!("{}: look-up says {attr:?}, getattr {again:?}", escape(path)));
        }
        self.names.entry(attr.ino).or_insert((attr.nlink, 0)).1 += 1;
        if attr.kind == Kind::File && self.has_object(attr.ino, path)? {
            self.changes.insert(attr.ino, attr.ctime);
        }
        let body = self.body(&attr, path)?;
        self.found.push((path.to_vec(), attr.ino, Shown::new(body)));
        Ok(())
    }

    /// What is on the slow tier only, or a copy of that, shows the time of the step that brought a change there.
    fn has_object(&self, ino: Ino, path: &[u8]) -> Check<bool> {
        let is = |key: &[u8], value: &[u8]| {
            let found = self.try_("getxattr", path, self.engine.get_xattr(&self.cx, ino, key))?;
            Ok::<_, String>(found.as_deref() == Some(value))
        };
        Ok(is(b"user.dlio.tier", b"fast")? && !is(b"user.dlio.state", b"staged")?)
    }

    fn body(&mut self, attr: &Attr, path: &[u8]) -> Check<Body> {
        let is = |kind| attr.kind == kind;
        let bytes = if is(Kind::File) { self.bytes(attr, path)? } else { Vec::new() };
        let target = match is(Kind::Symlink) {
            true => self.try_("readlink", path, self.engine.readlink(&self.cx, attr.ino))?,
            false => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for key in self.try_("listxattr", path, self.engine.list_xattr(&self.cx, attr.ino))? {
            let value = self.try_("getxattr", path, self.engine.get_xattr(&self.cx, attr.ino, &key))?;
            let value = value.ok_or_else(|| format!("{} has no {}", escape(path), escape(&key)))?;
            xattrs.insert(key, value);
        }
        Ok(Body {
            kind: attr.kind,
            perm: if is(Kind::Symlink) { 0o777 } else { attr.perm },
            uid: attr.uid,
            gid: attr.gid,
            rdev: if matches!(attr.kind, Kind::CharDevice | Kind::BlockDevice) { attr.rdev } else { 0 },
            mtime: is(Kind::File).then_some(attr.mtime),
            bytes: Arc::new(bytes),
            target,
            xattrs,
        })
    }

    fn bytes(&mut self, attr: &Attr, path: &[u8]) -> Check<Vec<u8>> {
        let mode = OpenMode::default();
        let file = self.try_("open", path, self.engine.open(&self.cx, attr.ino, mode))?;
        let mut bytes = vec![0; attr.size as usize + 100];
        let read = self.engine.read(&self.cx, &file, &mut bytes, 0);
        self.engine.release(&self.cx, file);
        let n = self.try_("read", path, read)?;
        bytes.truncate(n);
        if n as u64 != attr.size {
            return Err(format!("{} has {} bytes and {n} were read", escape(path), attr.size));
        }
        Ok(bytes)
    }
}
