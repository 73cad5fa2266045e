//! Getting the files out of a fast tier without a mount and without its slow tier.
//!
//! With a log: the records behind `applied` are followed by path, and every file whose bytes only the fast tier has is
//! copied to where it would be. Without one: objects without a proof tell their last name themselves. What tells nothing
//! is listed. The fast tier is not changed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::error::{Context, Error, Result};
use crate::tiers::commit::own_xattrs;
use crate::tiers::data::copy_bytes;
use crate::tiers::disk::{Access, Dir, Kind};
use crate::tiers::drain::set_attrs;
use crate::tiers::names::OURS;
use crate::tiers::pool::Pool;
use crate::tiers::record::{Attrs, Home, ObjectId, Path, Record, Spec};
use crate::tiers::slow::split;
use crate::tiers::{Ino, Lsn, log};

/// What a rescue did.
#[derive(Debug, Default)]
pub struct RescueReport {
    /// Paths restored.
    pub restored: Vec<String>,
    /// Objects nothing names, and files whose bytes are on the slow tier (in its `.dlio-fs/tmp`).
    pub unexplained: Vec<String>,
    /// Damage found in the log.
    pub damage: Vec<String>,
}

/// What only the fast tier has under a path.
#[derive(Clone)]
enum Found {
    File { object: ObjectId, size: Option<u64> },
    Node(Spec),
}

/// Restores what only the fast tier has to `to`, an empty directory. `fast` is the tier's root.
pub fn rescue(fast: Arc<dyn Dir>, to: Arc<dyn Dir>) -> Result<RescueReport> {
    if !to.list().at("list", "the target")?.is_empty() {
        return Err(Error::refused("the target directory is not empty", "give --to an empty directory"));
    }
    let ours = fast.dir(OURS).map_err(|e| {
        Error::refused(
            format!("this is not a fast tier: no .dlio-fs in it ({e})"),
            "give the directory that was mounted with --fast",
        )
    })?;
    let mut report = RescueReport::default();
    let records = match ours.dir(b"log").at("open", "log").and_then(|dir| log::read_only(&*dir)) {
        Ok((records, damage)) => {
            report.damage = damage;
            records
        }
        Err(e) => {
            report.damage.push(e.to_string());
            Vec::new()
        }
    };
    let pool = Pool::open(&*ours)?;
    let mut tree = follow(&records);
    add_unlogged(&pool, &records, &mut tree, &mut report)?;
    for (path, found) in tree {
        match restore(&pool, &*to, &path, &found) {
            Ok(true) => report.restored.push(crate::path::escape(&path)),
            Ok(false) => report.unexplained.push(crate::path::escape(&path)),
            Err(e) => report.unexplained.push(format!("{}: {e}", crate::path::escape(&path))),
        }
    }
    Ok(report)
}

/// The pending part of the view, by path.
fn follow(records: &[(Lsn, Record)]) -> BTreeMap<Path, Found> {
    let applied =
        records.iter().rev().find_map(|(_, r)| if let Record::Applied { upto } = r { Some(*upto) } else { None });
    let applied = applied.unwrap_or(0);
    let mut tree: BTreeMap<Path, Found> = BTreeMap::new();
    let mut names: HashMap<Ino, &[Path]> = HashMap::new();
    for (_, record) in records.iter().filter(|(lsn, _)| *lsn > applied) {
        match record {
            Record::Names { ino, paths } => {
                names.insert(*ino, paths);
            }
            Record::Bind { path, ino, object } => {
                let found = Found::File { object: *object, size: None };
                insert(&mut tree, path, names.remove(ino), &found);
            }
            Record::Content { path, ino, object, size, .. } => {
                let found = Found::File { object: *object, size: Some(*size) };
                insert(&mut tree, path, names.remove(ino), &found);
            }
            Record::Make { path, spec, .. } => {
                tree.insert(path.clone(), Found::Node(spec.clone()));
            }
            Record::Link { path, to, .. } => {
                if let Some(Found::File { object, size }) = tree.get(path) {
                    let twin = Found::File { object: *object, size: *size };
                    tree.insert(to.clone(), twin);
                }
            }
            Record::Rename { path, to, exchange, .. } => rename(&mut tree, path, to, *exchange),
            Record::Remove { path, .. } => {
                tree.remove(path);
            }
            _ => {}
        }
    }
    tree
}

fn insert(tree: &mut BTreeMap<Path, Found>, path: &Path, names: Option<&[Path]>, found: &Found) {
    for name in std::iter::once(path).chain(names.unwrap_or_default()) {
        tree.insert(name.clone(), found.clone());
    }
}

fn rename(tree: &mut BTreeMap<Path, Found>, from: &[u8], to: &[u8], exchange: bool) {
    let below = |path: &[u8], dir: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    let mut moved = Vec::new();
    let mut back = Vec::new();
    let paths: Vec<Path> = tree.keys().filter(|path| below(path, from) || below(path, to)).cloned().collect();
    for path in paths {
        let Some(found) = tree.remove(&path) else { continue };
        if below(&path, from) {
            moved.push(([to, &path[from.len()..]].concat(), found));
        } else if exchange {
            back.push(([from, &path[to.len()..]].concat(), found));
        }
    }
    tree.extend(moved);
    tree.extend(back);
}

/// Objects the log does not speak of but which know their own name.
fn add_unlogged(
    pool: &Pool,
    records: &[(Lsn, Record)],
    tree: &mut BTreeMap<Path, Found>,
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
        let file = pool.open_object(number, Access::Read).at("open", "object")?;
        if logged(number) || Pool::proof_of(&*file).at("read proof of", "object")?.is_some() {
            continue;
        }
        match Pool::name_of(&*file).at("read name of", "object")? {
            Some(name) => {
                named.insert((name.path, name.lsn), number);
            }
            None => report.unexplained.push(format!("object {number}")),
        }
    }
    // The newest of a name comes last and wins.
    for ((path, _), number) in named {
        let found = Found::File { object: ObjectId { home: Home::Fast, number }, size: None };
        tree.entry(path).or_insert(found);
    }
    Ok(())
}

/// `false`: its bytes are not on this tier.
fn restore(pool: &Pool, to: &dyn Dir, path: &[u8], found: &Found) -> Result<bool> {
    let (dirs, name) = split(path);
    let label = || crate::path::escape(path);
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
        Found::Node(spec) => restore_node(dir, name, spec).at("restore", label())?,
        Found::File { object, .. } if object.needs_slow() => return Ok(false),
        Found::File { object, size } => {
            let source = pool.open_kept(object.number).at("open the object of", label())?;
            let stat = source.stat().at("stat the object of", label())?;
            let attrs = Attrs {
                perm: stat.perm,
                uid: stat.uid,
                gid: stat.gid,
                mtime: stat.mtime,
                xattrs: own_xattrs(&*source)?,
            };
            let size = size.unwrap_or(stat.size);
            let file = dir.create(name, 0o600).at("create", label())?;
            copy_bytes(&*source, &*file, size)
                .and_then(|()| file.set_len(size))
                .and_then(|()| set_attrs(&*file, &attrs))
                .and_then(|()| file.sync())
                .at("restore", label())?;
        }
    }
    Ok(true)
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
