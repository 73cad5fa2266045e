//! Gets the files out of a fast tier without a mount and without its slow tier.
//!
//! With a log: the records after `applied` are followed by path, and every file whose bytes only the fast tier has is
//! copied to its path. As at a start, content that was not sealed before a change of boot counts as never written: the
//! previous version is restored. Without a log: objects without a fingerprint record their last name. Objects without a
//! name are listed. The fast tier is not changed; read access is enough. Unreadable objects are listed, and the rest is
//! restored.
//!
//! Every user who may write to the tier controls what is restored. So only a tier that root alone can write gives
//! device nodes and set-id bits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::error::{Context, Errno, Error, Result};
use crate::path::Show as _;
use crate::tiers::disk::layout::{OURS, split};
use crate::tiers::disk::layout::{after_move, is_at_or_below};
use crate::tiers::disk::{Dir, File, Kind, Stat, acl, modes};
use crate::tiers::log::dirs::LoggedPath;
use crate::tiers::log::record::{Attrs, Home, ObjectId, Path, Record, Spec};
use crate::tiers::objects::attrs::{own_xattrs, set_attrs};
use crate::tiers::objects::copy::copy_bytes;
use crate::tiers::objects::pool::Pool;
use crate::tiers::recovery::identity::{boot_of, refuse_other_format};
use crate::tiers::recovery::left_out::left_out;
use crate::tiers::{Ino, Lsn, log};

const SET_ID: u32 = 0o6000;

/// The result of a rescue.
#[derive(Debug, Default)]
pub struct RescueReport {
    /// Paths restored.
    pub restored: Vec<String>,
    /// Files that were restored only in part, and what is missing.
    pub short: Vec<String>,
    /// Objects without a name, versions that a power cut discarded, unreadable objects, and files whose bytes are on
    /// the slow tier (in its `.dlio-fs/tmp`).
    pub unexplained: Vec<String>,
    /// Damage found in the log.
    pub damage: Vec<String>,
}

/// A node that only the fast tier has under a path.
#[derive(Clone)]
enum RescuedAt {
    File { object: ObjectId, size: Option<u64> },
    Node(Spec),
}

/// How much of a file was restored.
enum Restored {
    Whole,
    /// Only the first number of bytes, out of the second.
    Short(u64, u64),
    /// All of its bytes, without this attribute.
    Without(&'static str),
    /// Its bytes are on the slow tier.
    Elsewhere,
}

/// Restores everything that only the fast tier has to `to`, an empty directory. `fast` is the tier's root, `boot` this
/// boot of the machine.
pub fn rescue(fast: Arc<dyn Dir>, to: Arc<dyn Dir>, boot: &str) -> Result<RescueReport> {
    if !to.list().at("list", "the target")?.is_empty() {
        return Err(Error::refused("the target directory is not empty", "name an empty directory with --to"));
    }
    let ours = fast.dir(OURS).map_err(|e| {
        Error::refused(
            format!("this is not a fast tier: no .dlio-fs in it ({e})"),
            "name the directory that was mounted with --fast",
        )
    })?;
    let boot = &boot_of(&*ours, boot);
    let mut report = RescueReport::default();
    // What this version can read of it may be all that there is.
    report.damage.extend(refuse_other_format(&*ours).err().map(|error| error.to_string()));
    let records = match ours.dir(b"log").at("open", "log").and_then(|dir| log::read_only(&*dir, boot)) {
        Ok(found) => {
            report.damage.extend(found.damage);
            found.records
        }
        Err(e) => {
            report.damage.push(e.to_string());
            Vec::new()
        }
    };
    let is_roots = is_roots(&*fast) && is_roots(&*ours);
    let pool = Pool::open_what_is_left(&modes::with_marked_modes(&ours));
    let mut followed = Followed::default();
    followed.follow(&records, boot);
    let Followed { mut tree, discarded, .. } = followed;
    for (object, path) in discarded.iter().filter(|(object, _)| pool.open_kept(**object).is_ok()) {
        let path = path.shown();
        report.unexplained.push(format!("object {object:016x}: {path}, written but not durable before a power cut"));
    }
    add_unlogged(&pool, &records, &mut tree, &mut report)?;
    for (path, found) in tree {
        let shown = path.shown().to_string();
        match restore(&pool, &*to, &path, &found, is_roots) {
            Ok(Restored::Whole) => report.restored.push(shown),
            Ok(Restored::Without(what)) => {
                report.short.push(format!("{shown}: without its {what}"));
                report.restored.push(shown);
            }
            Ok(Restored::Short(has, of)) => {
                report.short.push(format!("{shown}: {has} of {of} bytes, the rest are zeros"));
                report.restored.push(shown);
            }
            Ok(Restored::Elsewhere) => report.unexplained.push(format!("{shown}: its bytes are on the slow tier")),
            Err(e) => report.unexplained.push(format!("{shown}: {e}")),
        }
    }
    Ok(report)
}

/// The pending part of the view, by path, as far as the log has been followed.
#[derive(Default)]
struct Followed {
    tree: BTreeMap<Path, RescuedAt>,
    /// Objects that a power cut discarded, with the path they were written to.
    discarded: BTreeMap<u64, Path>,
    /// Files without any valid version.
    never: HashSet<Ino>,
}

impl Followed {
    fn follow(&mut self, records: &[(Lsn, Record)], boot: &str) {
        let sealed: HashSet<Lsn> = records
            .iter()
            .filter_map(|(_, r)| if let Record::Seal { of, .. } = r { Some(*of) } else { None })
            .collect();
        let applied = Record::applied(records.iter().map(|(_, record)| record));
        let skipped = left_out(records);
        let mut names: HashMap<Ino, &[LoggedPath]> = HashMap::new();
        let mut this_boot = false;
        for (lsn, record) in records {
            if let Record::Start { boot: started } = record {
                this_boot = started == boot;
            }
            if *lsn <= applied || skipped.contains(lsn) {
                continue;
            }
            if let Record::Names { ino, paths } = record {
                names.insert(*ino, paths);
                continue;
            }
            let names = record.ino().and_then(|ino| names.remove(&ino));
            match record {
                Record::Bind { path, ino, object } | Record::Content { path, ino, object, .. } => {
                    if this_boot || sealed.contains(lsn) {
                        self.discarded.remove(&object.number);
                        self.never.remove(ino);
                        let size = if let Record::Content { size, .. } = record { Some(*size) } else { None };
                        insert(
                            &mut self.tree,
                            path,
                            names.unwrap_or_default(),
                            &RescuedAt::File { object: *object, size },
                        );
                    } else if !object.needs_slow() {
                        self.discard_unsynced(&path.bytes(), *ino, *object);
                    }
                }
                other => self.follow_names(other),
            }
        }
    }

    /// Discards as [`crate::tiers::recovery::start`] does: a file without an older version is followed no further.
    fn discard_unsynced(&mut self, path: &[u8], ino: Ino, object: ObjectId) {
        let kept =
            self.tree.values().any(|found| matches!(found, RescuedAt::File { object: kept, .. } if *kept == object));
        if !kept {
            self.discarded.insert(object.number, path.to_vec());
        }
        if !self.tree.contains_key(path) {
            self.never.insert(ino);
        }
    }

    fn follow_names(&mut self, record: &Record) {
        match record {
            Record::Make { path, spec, .. } => {
                self.tree.insert(path.bytes().into_owned(), RescuedAt::Node(spec.clone()));
            }
            Record::Link { ino, .. } | Record::Rename { ino, exchange: false, .. } if self.never.contains(ino) => {}
            Record::Link { path, to, .. } => {
                if let Some(RescuedAt::File { object, size }) = self.tree.get(&path.bytes()[..]) {
                    let same = RescuedAt::File { object: *object, size: *size };
                    self.tree.insert(to.bytes().into_owned(), same);
                }
            }
            Record::Rename { path, to, exchange, .. } => rename(&mut self.tree, &path.bytes(), &to.bytes(), *exchange),
            Record::Remove { path, .. } => {
                self.tree.remove(&path.bytes()[..]);
            }
            _ => {}
        }
    }
}

fn insert(tree: &mut BTreeMap<Path, RescuedAt>, path: &LoggedPath, names: &[LoggedPath], found: &RescuedAt) {
    for name in std::iter::once(path).chain(names) {
        tree.insert(name.bytes().into_owned(), found.clone());
    }
}

fn rename(tree: &mut BTreeMap<Path, RescuedAt>, from: &[u8], to: &[u8], exchange: bool) {
    let mut moved = Vec::new();
    let mut back = Vec::new();
    let paths: Vec<Path> =
        tree.keys().filter(|path| is_at_or_below(path, from) || is_at_or_below(path, to)).cloned().collect();
    for path in paths {
        let Some(found) = tree.remove(&path) else { continue };
        if let Some(there) = after_move(&path, from, to) {
            moved.push((there, found));
        } else if exchange && let Some(there) = after_move(&path, to, from) {
            back.push((there, found));
        }
    }
    tree.extend(moved);
    tree.extend(back);
}

/// Adds objects that the log does not mention but that record their own name.
fn add_unlogged(
    pool: &Pool,
    records: &[(Lsn, Record)],
    tree: &mut BTreeMap<Path, RescuedAt>,
    report: &mut RescueReport,
) -> Result<()> {
    let logged = |number: u64| {
        records.iter().any(|(_, record)| match record {
            Record::Bind { object, .. } | Record::Content { object, .. } => {
                object.uses(ObjectId { home: Home::Fast, number })
            }
            _ => false,
        })
    };
    let mut named = BTreeMap::new();
    for number in pool.numbers()? {
        let told = pool.open_kept(number).and_then(|file| Ok((Pool::fingerprint_of(&*file)?, Pool::name_of(&*file)?)));
        match told {
            _ if logged(number) => {}
            Ok((Some(_), _)) => {}
            Ok((None, Some(name))) => {
                named.insert((name.path, name.lsn), number);
            }
            Ok((None, None)) => report.unexplained.push(format!("object {number:016x}: it has no name")),
            Err(e) => report.unexplained.push(format!("object {number:016x}: {e}")),
        }
    }
    for number in pool.quarantined_numbers()?.into_iter().filter(|number| !logged(*number)) {
        report.unexplained.push(format!("quarantine/{number:016x}: {}", pool.why_quarantined(number)));
    }
    // The newest object of a name gets it. The others get a name beside it: programs write many files under one
    // temporary name.
    for ((path, _), number) in named.into_iter().rev() {
        let beside = [&path[..], format!(".dlio-object-{number:016x}").as_bytes()].concat();
        let path = if tree.contains_key(&path) { beside } else { path };
        tree.insert(path, RescuedAt::File { object: ObjectId { home: Home::Fast, number }, size: None });
    }
    Ok(())
}

/// Whether only root can have written in this directory.
fn is_roots(dir: &dyn Dir) -> bool {
    let others = |stat: &Stat| if stat.gid == 0 { stat.perm & 0o002 } else { stat.perm & 0o022 };
    dir.stat(b".").is_ok_and(|stat| stat.uid == 0 && others(&stat) == 0)
}

fn restore(pool: &Pool, to: &dyn Dir, path: &[u8], found: &RescuedAt, is_roots: bool) -> Result<Restored> {
    let (dirs, name) = split(path);
    let label = || path.shown().to_string();
    let mut dir: Option<Arc<dyn Dir>> = None;
    for part in dirs.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        let parent: &dyn Dir = dir.as_deref().unwrap_or(to);
        let next = match parent.dir(part) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                parent.mkdir(part, 0o755).and_then(|()| parent.dir(part))
            }
            other => other,
        };
        dir = Some(next.at("create the directory of", label())?);
    }
    let dir: &dyn Dir = dir.as_deref().unwrap_or(to);
    match found {
        RescuedAt::Node(Spec { kind: Kind::CharDevice | Kind::BlockDevice, .. }) if !is_roots => {
            let what = "a device node in a fast tier that is not root's alone";
            return Err(Error::refused(what, "make it by hand, if it is meant"));
        }
        RescuedAt::Node(spec) => restore_node(dir, name, spec).at("restore", label())?,
        RescuedAt::File { object, .. } if object.needs_slow() => return Ok(Restored::Elsewhere),
        RescuedAt::File { object, size } => {
            let source = pool.open_kept(object.number).at("open the object of", label())?;
            let stat = source.stat().at("stat the object of", label())?;
            let attrs = Attrs {
                perm: if is_roots { stat.perm } else { stat.perm & !SET_ID },
                uid: stat.uid,
                gid: stat.gid,
                mtime: stat.mtime,
                xattrs: own_xattrs(&*source)?,
            };
            let size = size.unwrap_or(stat.size);
            let file = dir.create(name, 0o600).at("create", label())?;
            copy_bytes(&*source, &*file, size).and_then(|()| file.set_len(size)).at("restore", label())?;
            let group = give_attrs(&*file, attrs).at("restore", label())?;
            file.sync().at("restore", label())?;
            if stat.size < size {
                return Ok(Restored::Short(stat.size, size));
            }
            let set_id = (!is_roots && stat.perm & SET_ID != 0).then_some("set-id bits");
            return Ok(set_id.or(group).map_or(Restored::Whole, Restored::Without));
        }
    }
    Ok(Restored::Whole)
}

/// Sets a file's attributes. A user who is not in the file's group cannot give it: then its group bits are cleared.
/// Returns what was not given.
fn give_attrs(file: &dyn File, mut attrs: Attrs) -> std::io::Result<Option<&'static str>> {
    match set_attrs(file, &attrs) {
        Err(e) if e.raw_os_error() == Some(Errno::EPERM as i32) => {}
        given => return given.map(|()| None),
    }
    attrs.gid = file.stat()?.gid;
    attrs.perm &= !0o070;
    // An ACL would give the group bits back.
    attrs.xattrs.retain(|(key, _)| key != acl::ACCESS);
    set_attrs(file, &attrs).map(|()| Some("group"))
}

fn restore_node(dir: &dyn Dir, name: &[u8], spec: &Spec) -> std::io::Result<()> {
    match spec.kind {
        Kind::Dir => match dir.mkdir(name, spec.attrs.perm) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        },
        Kind::Symlink => dir.symlink(name, &spec.target),
        kind => dir.mknod(name, kind, spec.attrs.perm, spec.rdev),
    }
}
