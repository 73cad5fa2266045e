//! The slow tree of a mount without root: nodes whose mode denies their own owner are opened for the duration of a call
//! that needs them.
//!
//! A directory that its owner may not write or search, or a file that its owner may not read or write, is closed to the
//! daemon as to every other program of that user. But changes that the mount accepted before, or from root, must be
//! published all the same (P15). No policy here: a wrapper around the directories of the slow tier, which a root mount
//! does not have.
//!
//! 1. The call is made as it is. Only EACCES continues from here, for one call at a time.
//! 2. Find the nodes that are closed and ours: the directory of the call, the other one of a rename or link, the node
//!    itself. A file that is read for the daemon itself ([`Access::Unnoticed`]) stays closed.
//! 3. A note `w<inode>` in `tmp`, durable with its name, records the mode and where the node is, or will be.
//! 4. The mode is opened for the owner, and the call repeated. If it still fails with EACCES: 2, with the next node.
//! 5. The modes are set back, the last one first, through descriptors: the names may have changed by now.
//! 6. The notes are removed.
//!
//! Callers never see the modes in between: a stat that met one waits and is repeated ([`Opener::look`]). A mode that
//! cannot be set back in 5 is retried by the next call that reads or sets a mode, which fails if it still cannot.
//!
//! A crash after 4 leaves a note. The next start sets the mode back before it does anything else ([`close_again`]).

use std::any::Any;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use delegate::delegate;
use nix::errno::Errno;

use crate::error::{Context, Result};
use crate::path::{escape, unescape};
use crate::tiers::disk::errors::absent_is_none;
use crate::tiers::disk::layout::{remove_leftover, split};
use crate::tiers::disk::sync::{Mutex, Rank};
use crate::tiers::disk::{
    Access, Allocate, Dir, DirEntry, File, Inode, Kind, MetadataOrder, NewAttr, RenameMode, Seek, Space, Stat,
};

/// More than the longest note.
const NOTE_MAX: usize = 64 << 10;

/// What the directories and files of one slow tier share.
#[derive(Debug)]
struct Opener {
    /// Held from 2 to 6, and while a mode is set, so that setting a mode back does not undo a mode that an event has
    /// set meanwhile. A waiter waits for the slow tier anyway.
    turn: Mutex<()>,
    /// Odd while a node is open.
    changes: AtomicU64,
    /// Nodes whose mode could not be set back.
    left: Mutex<Vec<OpenedNode>>,
    notes: OnceLock<ClosedDirs>,
}

/// Where notes are made, and the user whose nodes may be opened.
#[derive(Debug)]
struct ClosedDirs {
    tmp: Arc<dyn Dir>,
    uid: u32,
}

/// A directory, and the way to it.
#[derive(Debug)]
struct OpenedDir {
    opener: Arc<Opener>,
    inner: Arc<dyn Dir>,
    above: Option<(Arc<OpenedDir>, Vec<u8>)>,
}

impl OpenedDir {
    fn path(&self) -> Vec<u8> {
        self.above.as_ref().map_or_else(Vec::new, |(above, name)| above.path_of(name))
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path();
        if !path.is_empty() && name != b"." {
            path.push(b'/');
        }
        path.extend_from_slice(if name == b"." { b"" } else { name });
        path
    }
}

/// A node that may be closed.
#[derive(Clone, Copy)]
enum ClosableNode<'a> {
    Dir(&'a OpenedDir),
    /// The last field is where a rename takes it.
    Named(&'a OpenedDir, &'a [u8], Option<(&'a OpenedDir, &'a [u8])>),
    File(&'a Closable<dyn File>),
    Inode(&'a Closable<dyn Inode>),
}

impl ClosableNode<'_> {
    fn hold(&self) -> io::Result<Held> {
        match self {
            ClosableNode::Dir(at) => Ok(Held::Dir(at.inner.clone())),
            ClosableNode::Named(at, name, _) => at.inner.inode(name).map(Held::Inode),
            ClosableNode::File(file) => Ok(Held::File(file.inner.clone())),
            ClosableNode::Inode(held) => Ok(Held::Inode(held.inner.clone())),
        }
    }

    fn paths(&self) -> Vec<Vec<u8>> {
        match self {
            ClosableNode::Dir(at) => vec![at.path()],
            ClosableNode::Named(at, name, to) => {
                [Some((*at, *name)), *to].into_iter().flatten().map(|(at, name)| at.path_of(name)).collect()
            }
            ClosableNode::File(file) => vec![file.at.path_of(&file.name)],
            ClosableNode::Inode(held) => vec![held.at.path_of(&held.name)],
        }
    }
}

/// A handle through which a mode is read, opened and set back, whatever has become of the name.
#[derive(Debug)]
enum Held {
    Dir(Arc<dyn Dir>),
    File(Arc<dyn File>),
    Inode(Arc<dyn Inode>),
}

impl Held {
    fn stat(&self) -> io::Result<Stat> {
        match self {
            Held::Dir(dir) => dir.stat(b"."),
            Held::File(file) => file.stat(),
            Held::Inode(inode) => inode.stat(),
        }
    }

    fn set_perm(&self, perm: u32) -> io::Result<()> {
        let new = NewAttr { perm: Some(perm), ..NewAttr::default() };
        match self {
            Held::Dir(dir) => dir.set_attr(b".", &new),
            Held::File(file) => file.set_attr(&new),
            Held::Inode(inode) => inode.set_attr(&new),
        }
    }

    fn sync(&self, tmp: &dyn Dir) -> io::Result<()> {
        match self {
            Held::Dir(dir) => dir.sync(),
            Held::File(file) => file.sync(),
            // There is no descriptor to sync by.
            Held::Inode(_) => tmp.sync_all(),
        }
    }
}

/// A node that is open for the moment.
#[derive(Debug)]
struct OpenedNode {
    note: Vec<u8>,
    held: Held,
    perm: u32,
}

impl OpenedNode {
    /// Steps 5 and 6; 5 may be done already.
    fn close(&self, notes: &ClosedDirs) -> io::Result<()> {
        let tmp = &notes.tmp;
        self.held.set_perm(self.perm)?;
        if tmp.order() != MetadataOrder::Journaled {
            self.held.sync(&**tmp)?;
        }
        absent_is_none(tmp.unlink(&self.note)).map(drop)
    }
}

impl Opener {
    /// Makes a call: step 1, and the other steps if it is denied.
    fn call<T>(&self, nodes: &[ClosableNode<'_>], call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match call() {
            Err(e) if is_denied(&e) => {}
            done => return done,
        }
        let Some(notes) = self.notes.get() else { return call() };
        let _turn = self.turn.lock();
        self.call_opened(notes, nodes, call)
    }

    /// Makes a call that sets a mode, with the turn held from the start.
    fn call_in_turn<T>(&self, nodes: &[ClosableNode<'_>], call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let Some(notes) = self.notes.get() else { return call() };
        let _turn = self.turn.lock();
        self.close_left(notes)?;
        self.call_opened(notes, nodes, call)
    }

    /// Sets back what is left from earlier calls. The caller has the turn.
    fn close_left(&self, notes: &ClosedDirs) -> io::Result<()> {
        let mut left = std::mem::take(&mut *self.left.lock());
        let mut done = Ok(());
        while let Some(one) = left.pop_if(|one| {
            done = one.close(notes);
            done.is_ok()
        }) {
            drop(one);
        }
        *self.left.lock() = left;
        self.note_closed();
        done
    }

    /// Makes the change count even again, if no node is left open. The caller has the turn.
    fn note_closed(&self) {
        let is_odd = !self.changes.load(Ordering::SeqCst).is_multiple_of(2);
        if is_odd && self.left.lock().is_empty() {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Makes a call that reads a mode; repeats it with the turn if it is denied, or a node was open meanwhile.
    fn look<T>(&self, nodes: &[ClosableNode<'_>], call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match self.unchanged(&call) {
            Some(Err(e)) if is_denied(&e) => {}
            Some(found) => return found,
            None => {}
        }
        self.call_in_turn(nodes, call)
    }

    /// `None`: a node was open meanwhile.
    fn unchanged<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        let before = self.changes.load(Ordering::SeqCst);
        let found = look();
        (before.is_multiple_of(2) && self.changes.load(Ordering::SeqCst) == before).then_some(found)
    }

    fn call_opened<T>(
        &self,
        notes: &ClosedDirs,
        nodes: &[ClosableNode<'_>],
        call: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        let done = call();
        if !done.as_ref().is_err_and(is_denied) {
            return done;
        }
        if self.changes.load(Ordering::SeqCst).is_multiple_of(2) {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        let done = self.open_and_call(done, notes, nodes, call);
        self.note_closed();
        done
    }

    fn open_and_call<T>(
        &self,
        denied: io::Result<T>,
        notes: &ClosedDirs,
        nodes: &[ClosableNode<'_>],
        call: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        let (mut opened, mut done) = (Vec::new(), denied);
        for node in nodes {
            if !done.as_ref().is_err_and(is_denied) {
                break;
            }
            match notes.open_up(node) {
                Ok(None) => continue,
                Ok(Some(one)) => opened.push(one),
                Err(e) => {
                    done = Err(e);
                    break;
                }
            }
            done = call();
        }
        for one in opened.into_iter().rev() {
            if let Err(error) = one.close(notes) {
                tracing::warn!(%error, "a mode that was opened on the slow tier for one change could not be set back; it is tried again");
                self.left.lock().push(one);
            }
        }
        done
    }
}

impl ClosedDirs {
    /// Steps 2 to 4. `None`: the node is not closed, or not ours.
    fn open_up(&self, node: &ClosableNode<'_>) -> io::Result<Option<OpenedNode>> {
        let Ok(held) = node.hold() else { return Ok(None) };
        let Ok(stat) = held.stat() else { return Ok(None) };
        let perm = opened(stat.kind, stat.perm);
        if stat.uid != self.uid || perm == stat.perm {
            return Ok(None);
        }
        let note = self.write(&stat, &node.paths())?; // 3
        match held.set_perm(perm) {
            Ok(()) => Ok(Some(OpenedNode { note, held, perm: stat.perm })), // 4
            Err(e) => self.tmp.unlink(&note).and(Err(e)),
        }
    }

    fn write(&self, stat: &Stat, paths: &[Vec<u8>]) -> io::Result<Vec<u8>> {
        let note = note_name(stat.ino);
        let words: Vec<String> = paths.iter().map(|path| escape(path)).collect();
        // An existing note of this name is for a node that is closed again.
        absent_is_none(self.tmp.unlink(&note))?;
        let file = self.tmp.create(&note, 0o600)?;
        file.write_at(format!("{:o} {}\n", stat.perm, words.join(" ")).as_bytes(), 0)?;
        if !left_out!(NoteDurable) {
            file.sync()?;
            self.tmp.sync()?;
        }
        Ok(note)
    }
}

/// The mode with which the owner can do everything; unchanged for kinds whose mode does not matter.
fn opened(kind: Kind, perm: u32) -> u32 {
    match kind {
        Kind::Dir => perm | 0o700,
        Kind::File => perm | 0o600,
        _ => perm,
    }
}

fn is_denied(e: &io::Error) -> bool {
    e.raw_os_error() == Some(Errno::EACCES as i32)
}

fn note_name(ino: u64) -> Vec<u8> {
    format!("w{ino:016x}").into_bytes()
}

/// The inode in a note's name.
fn note_of(name: &[u8]) -> Option<u64> {
    let ino = u64::from_str_radix(std::str::from_utf8(name.strip_prefix(b"w")?).ok()?, 16).ok()?;
    (note_name(ino) == name).then_some(ino)
}

/// Wraps the tree as [`crate::tiers::disk::closed`] says, if the modes in it restrict us.
pub(crate) fn closable(root: Arc<dyn Dir>) -> Arc<dyn Dir> {
    if !root.heeds_modes() {
        return root;
    }
    let turn = Mutex::new(Rank::Opening, ());
    let (changes, left) = (AtomicU64::new(0), Mutex::new(Rank::Leaf, Vec::new()));
    let opener = Arc::new(Opener { turn, changes, left, notes: OnceLock::new() });
    Arc::new(ClosableDir(Arc::new(OpenedDir { opener, inner: root, above: None })))
}

/// From here on closed nodes are opened, with notes in `tmp`. First closes the nodes that a crash has left open.
pub(crate) fn begin(root: &Arc<dyn Dir>, tmp: &Arc<dyn Dir>) -> Result<()> {
    let Some(ClosableDir(at)) = root.as_any().downcast_ref() else { return Ok(()) };
    let inner = tmp.as_any().downcast_ref().map_or(tmp, |ClosableDir(at)| &at.inner).clone();
    let uid = inner.stat(b".").at("stat", "tmp on the slow tier")?.uid;
    // Notes first: even a look below a closed directory needs them.
    at.opener.notes.get_or_init(|| ClosedDirs { tmp: inner, uid });
    for entry in tmp.list().at("list", "tmp on the slow tier")? {
        close_again(root, &**tmp, &entry.name)?;
    }
    Ok(())
}

/// If this name in `tmp` is a note of a node that a crash left open, sets its mode back. Sweeping `tmp` calls this
/// first.
pub(crate) fn close_again(root: &Arc<dyn Dir>, tmp: &dyn Dir, note: &[u8]) -> Result<()> {
    let Some(ino) = note_of(note) else { return Ok(()) };
    let label = || escape(note);
    let mut text = vec![0; NOTE_MAX];
    // Opening a directory on the way to another node may have removed its note already.
    let Some(file) = absent_is_none(tmp.open(note, Access::Read)).at("open", label())? else { return Ok(()) };
    let text = file.read_into(&mut text, 0).at("read", label())?;
    // An incomplete note was never acted upon.
    if let Some((perm, paths)) = parse(text).filter(|_| !left_out!(CloseAgain)) {
        for path in paths {
            if close_at(root, &path, ino, perm).at("close again on slow", escape(&path))? {
                tracing::info!(path = %escape(&path), "was opened on the slow tier for one change before a crash; its mode is set back");
                break;
            }
        }
    }
    remove_leftover(tmp, note)
}

fn parse(text: &[u8]) -> Option<(u32, Vec<Vec<u8>>)> {
    let mut words = std::str::from_utf8(text).ok()?.strip_suffix('\n')?.split(' ');
    let perm = u32::from_str_radix(words.next()?, 8).ok().filter(|perm| *perm <= 0o7777)?;
    Some((perm, words.map(unescape).collect::<Option<_>>()?))
}

/// `false`: the node is not there.
fn close_at(root: &Arc<dyn Dir>, path: &[u8], ino: u64, perm: u32) -> io::Result<bool> {
    let (dirs, name) = split(path);
    let mut dir = root.clone();
    for part in dirs.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        let Some(below) = absent_is_none(dir.dir(part))? else { return Ok(false) };
        dir = below;
    }
    let name = if name.is_empty() { b"." } else { name };
    let Some(held) = absent_is_none(dir.inode(name))? else { return Ok(false) };
    let stat = held.stat()?;
    if stat.ino != ino {
        return Ok(false);
    }
    if stat.perm == opened(stat.kind, perm) {
        held.set_attr(&NewAttr { perm: Some(perm), ..NewAttr::default() })?;
        if dir.order() == MetadataOrder::Unknown {
            dir.sync_all()?;
        }
    }
    Ok(true)
}

#[derive(Debug)]
struct ClosableDir(Arc<OpenedDir>);

impl ClosableDir {
    /// A call on names of this directory only.
    fn here<T>(&self, call: impl Fn(&dyn Dir) -> io::Result<T>) -> io::Result<T> {
        self.0.opener.call(&[ClosableNode::Dir(&self.0)], || call(&*self.0.inner))
    }

    /// A call that needs the node, too.
    fn with_node<T>(&self, name: &[u8], call: impl Fn(&dyn Dir) -> io::Result<T>) -> io::Result<T> {
        let nodes = [ClosableNode::Dir(&self.0), ClosableNode::Named(&self.0, name, None)];
        let nodes = if name == b"." { &nodes[..1] } else { &nodes[..] };
        self.0.opener.call(nodes, || call(&*self.0.inner))
    }

    fn file(&self, name: &[u8], inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(Closable { at: self.0.clone(), name: name.to_vec(), inner })
    }
}

/// The other directory of a call that takes two; all directories of one tier have this type.
fn other(to: &dyn Dir) -> io::Result<&OpenedDir> {
    to.as_any().downcast_ref().map(|ClosableDir(at)| &**at).ok_or_else(|| Errno::EXDEV.into())
}

impl Dir for ClosableDir {
    fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        self.0.opener.look(&[ClosableNode::Dir(&self.0)], || self.0.inner.stat(name))
    }

    fn stat_at_hand(&self, name: &[u8]) -> Option<io::Result<Stat>> {
        self.0.opener.unchanged(|| self.0.inner.stat_at_hand(name)).flatten()
    }

    fn stat_now(&self, name: &[u8]) -> io::Result<Stat> {
        self.here(|dir| dir.stat_now(name))
    }

    fn dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
        let inner = self.with_node(name, |dir| dir.dir(name))?;
        let above = Some((self.0.clone(), name.to_vec()));
        Ok(Arc::new(ClosableDir(Arc::new(OpenedDir { opener: self.0.opener.clone(), inner, above }))))
    }

    fn open(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>> {
        let opened = match access {
            Access::Unnoticed => self.here(|dir| dir.open(name, access)),
            Access::Read | Access::ReadWrite => self.with_node(name, |dir| dir.open(name, access)),
        };
        opened.map(|file| self.file(name, file))
    }

    fn open_at_hand(&self, name: &[u8]) -> Option<Arc<dyn File>> {
        let opened = self.0.opener.unchanged(|| self.0.inner.open_at_hand(name)).flatten()?;
        Some(self.file(name, opened))
    }

    fn create(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>> {
        self.here(|dir| dir.create(name, perm)).map(|file| self.file(name, file))
    }

    fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()> {
        self.here(|dir| dir.mkdir(name, perm))
    }

    fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()> {
        self.here(|dir| dir.mknod(name, kind, perm, rdev))
    }

    fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        self.here(|dir| dir.symlink(name, target))
    }

    fn inode(&self, name: &[u8]) -> io::Result<Arc<dyn Inode>> {
        let inner = self.here(|dir| dir.inode(name))?;
        Ok(Arc::new(Closable { at: self.0.clone(), name: name.to_vec(), inner }))
    }

    /// Moving a directory to another parent also writes to the directory itself.
    fn rename(&self, name: &[u8], to: &dyn Dir, to_name: &[u8], mode: RenameMode) -> io::Result<()> {
        let (from, to) = (&*self.0, other(to)?);
        let nodes = [
            ClosableNode::Dir(from),
            ClosableNode::Dir(to),
            ClosableNode::Named(from, name, Some((to, to_name))),
            ClosableNode::Named(to, to_name, Some((from, name))),
        ];
        self.0.opener.call(&nodes, || from.inner.rename(name, &*to.inner, to_name, mode))
    }

    fn unlink(&self, name: &[u8]) -> io::Result<()> {
        self.here(|dir| dir.unlink(name))
    }

    fn rmdir(&self, name: &[u8]) -> io::Result<()> {
        self.here(|dir| dir.rmdir(name))
    }

    fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.here(|dir| dir.list())
    }

    fn heeds_modes(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    delegate! {
        to self.0.inner {
            fn sync(&self) -> io::Result<()>;
            fn sync_all(&self) -> io::Result<()>;
            fn space(&self) -> io::Result<Space>;
            fn names_max(&self) -> u64;
            fn is_overlay(&self) -> bool;
            fn order(&self) -> MetadataOrder;
            fn rotates(&self) -> bool;
        }
    }
}

/// An inode, or an open file.
#[derive(Debug)]
struct Closable<T: ?Sized> {
    at: Arc<OpenedDir>,
    name: Vec<u8>,
    inner: Arc<T>,
}

/// The node to open for a call on extended attributes.
trait AsNode {
    fn as_node(&self) -> ClosableNode<'_>;
}

impl AsNode for Closable<dyn File> {
    fn as_node(&self) -> ClosableNode<'_> {
        ClosableNode::File(self)
    }
}

impl AsNode for Closable<dyn Inode> {
    fn as_node(&self) -> ClosableNode<'_> {
        ClosableNode::Inode(self)
    }
}

impl<T: ?Sized> Closable<T>
where
    Closable<T>: AsNode,
{
    fn call<R>(&self, call: impl Fn(&T) -> io::Result<R>) -> io::Result<R> {
        self.at.opener.call(&[self.as_node()], || call(&self.inner))
    }
}

impl<T: Inode + ?Sized> Inode for Closable<T>
where
    Closable<T>: AsNode,
{
    fn stat(&self) -> io::Result<Stat> {
        self.at.opener.look(&[], || self.inner.stat())
    }

    /// A mode change runs with nothing opened: setting the old mode back afterwards would undo it.
    fn set_attr(&self, new: &NewAttr) -> io::Result<()> {
        let call = || self.inner.set_attr(new);
        if new.perm.is_some() { self.at.opener.call_in_turn(&[], call) } else { call() }
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.call(|inode| inode.get_xattr(key))
    }

    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.call(|inode| inode.set_xattr(key, value))
    }

    fn remove_xattr(&self, key: &[u8]) -> io::Result<()> {
        self.call(|inode| inode.remove_xattr(key))
    }

    fn list_xattr(&self) -> io::Result<Vec<Vec<u8>>> {
        self.call(|inode| inode.list_xattr())
    }

    fn link(&self, to: &dyn Dir, to_name: &[u8]) -> io::Result<()> {
        let to = other(to)?;
        self.at.opener.call(&[ClosableNode::Dir(to)], || self.inner.link(&*to.inner, to_name))
    }

    delegate! {
        to self.inner {
            fn readlink(&self) -> io::Result<Vec<u8>>;
        }
    }
}

impl File for Closable<dyn File> {
    fn reopen(&self) -> io::Result<Arc<dyn File>> {
        let inner = self.call(|file| file.reopen())?;
        Ok(Arc::new(Closable { at: self.at.clone(), name: self.name.clone(), inner }))
    }

    delegate! {
        to self.inner {
            fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
            fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
            fn read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
            fn read_at_hand(&self, buf: &mut [u8], offset: u64) -> Option<usize>;
            fn write_uncached(&self, buf: &[u8], offset: u64) -> io::Result<()>;
            fn reflink(&self, from: BorrowedFd<'_>) -> io::Result<()>;
            fn set_len(&self, len: u64) -> io::Result<()>;
            fn allocate(&self, what: Allocate, offset: u64, len: u64) -> io::Result<()>;
            fn seek(&self, what: Seek, offset: u64) -> io::Result<u64>;
            fn sync(&self) -> io::Result<()>;
            fn descriptor(&self) -> Option<BorrowedFd<'_>>;
            fn forget_cached(&self, range: Range<u64>);
            fn write_behind(&self, range: Range<u64>);
            fn place(&self) -> Option<u64>;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_is_not_whole_says_nothing() {
        assert_eq!(parse(b"555 a/b%20c d\n"), Some((0o555, vec![b"a/b c".to_vec(), b"d".to_vec()])));
        assert_eq!(parse(b"40 \n"), Some((0o40, vec![Vec::new()])), "the root");
        for bad in [&b""[..], b"\n", b"555 a", b"9 a\n", b"77777 a\n", b"555 %\n"] {
            assert_eq!(parse(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(note_of(&note_name(77)), Some(77));
        assert_eq!(note_of(b"w77"), None);
    }
}
