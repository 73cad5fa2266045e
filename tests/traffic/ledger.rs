//! What one worker was told: every operation that returned, kept outside of the mount.
//!
//! From it follows what the view must show after a kill ([`Ledger::settle`]) and every state that the slow tier may be in
//! ([`Ledger::positions`]): the state after some number of the worker's changes, in their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::now;
use super::tree::{Seen, Shown, Tree};

/// One system call that changes something. Paths are relative to the worker's directory.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Mkdir(PathBuf),
    Rmdir(PathBuf),
    Create(PathBuf),
    /// Open with O_TRUNC.
    Truncate(PathBuf),
    Write {
        path: PathBuf,
        offset: usize,
        bytes: Vec<u8>,
    },
    Fsync(PathBuf),
    /// fsync of the worker's directory: all of its files, none of which is open.
    SyncDir,
    Close(PathBuf),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
    /// Target, then name.
    Symlink(PathBuf, PathBuf),
    /// Old name, then new name.
    Link(PathBuf, PathBuf),
    Chmod(PathBuf, u32),
    Tag(PathBuf, Vec<u8>),
}

type FileId = usize;

#[derive(Clone, Debug)]
enum Node {
    Dir,
    Link(PathBuf),
    File(FileId),
}

#[derive(Clone, Debug, Default)]
struct FileState {
    /// As acknowledged: what the view must show.
    bytes: Vec<u8>,
    mode: u32,
    tag: Option<Vec<u8>>,
    /// The content that has its place in the order: as of the last close, fsync or change of a name.
    ordered: Option<Shown>,
    /// Content whose place in the order was being taken when the daemon was killed: it may have one or not.
    perhaps: Option<Shown>,
}

impl FileState {
    fn order(&mut self) {
        self.ordered = Some(Shown::file(&self.bytes));
        self.perhaps = None;
    }
}

#[derive(Clone, Debug, Default)]
struct State {
    names: BTreeMap<PathBuf, Node>,
    files: HashMap<FileId, FileState>,
    next: FileId,
}

/// What the slow tier may show for one name from some change on; `None` is the absence of the name.
type Allowed = Vec<Option<Shown>>;

/// A call that took effect, from before it was made until its return, or until its effect was seen.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    pub(crate) op: Op,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// It was cut off and had no effect that can be seen; but it may have ordered the content that its file had.
    pub(crate) cut_off: bool,
}

/// A change that the slow tier will see, with the worker's clock before the call and after its return.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) start: u64,
    pub(crate) end: u64,
    now: Vec<(PathBuf, Allowed)>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    state: State,
    changes: Vec<Change>,
    /// The call that had not returned when the daemon was killed.
    in_flight: Option<(Op, u64)>,
    /// Every content that ever had its place in the order, by name.
    versions: BTreeSet<(PathBuf, Shown)>,
    /// Every call, if somebody wants to know how things were at some time in the past.
    pub(crate) history: Option<Vec<Past>>,
}

impl Ledger {
    /// Before the call.
    pub(crate) fn begin(&mut self, op: Op, start: u64) {
        self.in_flight = Some((op, start));
    }

    /// After the call has returned successfully.
    pub(crate) fn acknowledge(&mut self, end: u64) {
        if let Some((op, start)) = self.in_flight.take() {
            let now = self.state.apply(&op);
            self.remember(Change { start, end, now });
            self.note(Past { op, start, end, cut_off: false });
        }
    }

    /// Somebody else has changed this, whatever is in flight.
    pub(crate) fn adopt(&mut self, op: &Op, at: u64) {
        let now = self.state.apply(op);
        self.remember(Change { start: at, end: at, now });
    }

    fn note(&mut self, past: Past) {
        self.history.iter_mut().for_each(|history| history.push(past.clone()));
    }

    fn remember(&mut self, change: Change) {
        for (path, allowed) in &change.now {
            self.versions.extend(allowed.iter().flatten().map(|shown| (path.clone(), shown.clone())));
        }
        if !change.now.is_empty() {
            self.changes.push(change);
        }
    }

    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The changes, and the one that was in flight: it may have been published although nobody was told of it.
    pub(crate) fn with_in_flight(&self) -> Vec<Change> {
        let mut changes = self.changes.clone();
        if let Some((op, start)) = &self.in_flight {
            let now = self.state.clone().apply(op);
            changes.push(Change { start: *start, end: u64::MAX, now });
        }
        changes
    }

    /// Whether this content was ever ordered under this name.
    pub(crate) fn ever_had(&self, path: &Path, shown: &Shown) -> bool {
        let in_flight = self.in_flight.as_ref().map(|(op, _)| self.state.clone().apply(op)).unwrap_or_default();
        let now = in_flight.iter().any(|(at, allowed)| at == path && allowed.contains(&Some(shown.clone())));
        now || self.versions.contains(&(path.to_owned(), shown.clone()))
    }

    /// Compares the view after a kill with what was acknowledged. The call in flight may have happened or not; the ledger
    /// goes on from what is seen.
    pub(crate) fn settle(&mut self, seen: &Tree) -> Result<(), String> {
        let Some((op, start)) = self.in_flight.take() else {
            return self.state.differs(seen).map_or(Ok(()), Err);
        };
        let Some(without) = self.state.differs(seen) else {
            let changed = self.state.may_have_ordered(&op);
            self.remember(Change { start, end: u64::MAX, now: changed });
            self.note(Past { op, start, end: now(), cut_off: true });
            return Ok(());
        };
        let mut with = self.state.clone();
        let as_seen = self.state.as_far_as(&op, seen);
        let changed = with.apply(&as_seen);
        match with.differs(seen) {
            None => {
                self.state = with;
                self.remember(Change { start, end: u64::MAX, now: changed });
                self.note(Past { op: as_seen, start, end: now(), cut_off: false });
                Ok(())
            }
            Some(difference) => Err(format!("without {op:?}: {without}\nwith it: {difference}")),
        }
    }

    /// Files whose writer was cut off: what they hold is not what was last closed.
    pub(crate) fn unfinished(&self) -> Vec<PathBuf> {
        let unfinished = |id: &FileId| {
            let file = &self.state.files[id];
            file.ordered.as_ref() != Some(&Shown::file(&file.bytes))
        };
        let names = self.state.names.iter();
        names
            .filter(|(_, node)| matches!(node, Node::File(id) if unfinished(id)))
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// The names that start with `prefix`, in order.
    pub(crate) fn names(&self, prefix: &str) -> Vec<PathBuf> {
        let starts = |path: &&PathBuf| path.to_string_lossy().starts_with(prefix);
        self.state.names.keys().filter(starts).cloned().collect()
    }

    pub(crate) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.state.names.contains_key(path.as_ref())
    }

    /// What the file holds by now, ordered or not.
    pub(crate) fn content(&self, path: &Path) -> Option<Shown> {
        match self.state.names.get(path) {
            Some(Node::File(id)) => Some(Shown::file(&self.state.files[id].bytes)),
            _ => None,
        }
    }

    /// The same of all files.
    pub(crate) fn contents(&self) -> BTreeSet<Shown> {
        self.state.names.keys().filter_map(|path| self.content(path)).collect()
    }

    pub(crate) fn size(&self, path: &Path) -> usize {
        match self.state.names.get(path) {
            Some(Node::File(id)) => self.state.files[id].bytes.len(),
            _ => 0,
        }
    }
}

/// Every `k` for which `slow` is the state after the first `k` changes.
pub(crate) fn positions(changes: &[Change], slow: &Tree) -> Vec<usize> {
    let mut wrong: BTreeSet<&Path> = slow.keys().map(PathBuf::as_path).collect();
    let mut found = Vec::new();
    for k in 0..=changes.len() {
        let now = k.checked_sub(1).map_or([].as_slice(), |last| &changes[last].now);
        for (path, allowed) in now {
            let shown = slow.get(path).map(|seen| seen.shown.clone());
            match allowed.contains(&shown) {
                true => wrong.remove(path.as_path()),
                false => wrong.insert(path),
            };
        }
        if wrong.is_empty() {
            found.push(k);
        }
    }
    found
}

/// The changes as if `path` were nobody's business; their numbers stay.
pub(crate) fn without(mut changes: Vec<Change>, path: &Path) -> Vec<Change> {
    changes.iter_mut().for_each(|change| change.now.retain(|(changed, _)| changed != path));
    changes
}

/// Whether a power cut may have left `seen`: of each name what it was after the first `durable` changes, or anything later.
/// Content that is not among the `synced` may be discarded, and then what was there before it stands.
pub(crate) fn may_survive(
    changes: &[Change],
    durable: usize,
    synced: &BTreeSet<Shown>,
    seen: &Tree,
) -> Result<(), String> {
    let mut allowed: BTreeMap<&Path, Allowed> = BTreeMap::new();
    for (number, change) in changes.iter().enumerate() {
        for (path, now) in &change.now {
            let values = allowed.entry(path).or_insert_with(|| vec![None]);
            let is_certain = |shown: &Option<Shown>| match shown {
                Some(file @ Shown::File { .. }) => synced.contains(file),
                _ => true,
            };
            if number < durable && now.iter().all(is_certain) {
                values.clear();
            }
            values.extend(now.iter().cloned());
        }
    }
    if let Some((path, seen)) = seen.iter().find(|(path, _)| !allowed.contains_key(path.as_path())) {
        return Err(format!("{} should not be there: {seen:?}", path.display()));
    }
    for (path, allowed) in allowed {
        let shown = seen.get(path).map(|seen| seen.shown.clone());
        if !allowed.contains(&shown) {
            return Err(format!("{} is {shown:?}, may be {allowed:?}", path.display()));
        }
    }
    Ok(())
}

impl State {
    fn file(&mut self, path: &Path) -> &mut FileState {
        match self.names.get(path) {
            Some(Node::File(id)) => self.files.get_mut(id).expect("every name's file is in the table"),
            other => panic!("{} is {other:?}, not a file", path.display()),
        }
    }

    /// Changes the state, and tells what the slow tier will show for the names this touches.
    fn apply(&mut self, op: &Op) -> Vec<(PathBuf, Allowed)> {
        match op {
            Op::Create(path) => {
                self.files.insert(self.next, FileState { mode: 0o600, ..FileState::default() });
                self.names.insert(path.clone(), Node::File(self.next));
                self.next += 1;
                Vec::new()
            }
            Op::Truncate(path) => {
                self.file(path).bytes.clear();
                Vec::new()
            }
            Op::Write { path, offset, bytes } => {
                let file = self.file(path);
                let end = offset + bytes.len();
                file.bytes.resize(file.bytes.len().max(end), 0);
                file.bytes[*offset..end].copy_from_slice(bytes);
                Vec::new()
            }
            Op::Chmod(path, mode) => {
                self.file(path).mode = *mode;
                Vec::new()
            }
            Op::Tag(path, tag) => {
                self.file(path).tag = Some(tag.clone());
                Vec::new()
            }
            // Every file in it was closed before: each has its place in the order.
            Op::SyncDir => Vec::new(),
            Op::Fsync(path) | Op::Close(path) => {
                self.file(path).order();
                self.allowed([path.clone()])
            }
            Op::Mkdir(path) => self.insert(path, Node::Dir),
            Op::Symlink(target, path) => self.insert(path, Node::Link(target.clone())),
            Op::Link(old, new) => {
                self.file(old).order();
                let node = self.names[old].clone();
                self.insert(new, node)
            }
            Op::Rmdir(path) | Op::Unlink(path) => {
                self.names.remove(path);
                self.allowed([path.clone()])
            }
            Op::Rename(from, to) => self.rename(from, to),
        }
    }

    fn insert(&mut self, path: &Path, node: Node) -> Vec<(PathBuf, Allowed)> {
        self.names.insert(path.to_owned(), node);
        self.allowed([path.to_owned()])
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Vec<(PathBuf, Allowed)> {
        if let Some(Node::File(_)) = self.names.get(from) {
            self.file(from).order();
        }
        let moved: Vec<PathBuf> = self.names.keys().filter(|path| path.starts_with(from)).cloned().collect();
        let mut touched = Vec::new();
        for old in moved {
            let below = old.strip_prefix(from).expect("only names below were taken");
            // Joining an empty path would add a slash.
            let new = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
            let node = self.names.remove(&old).expect("the name was just listed");
            self.names.insert(new.clone(), node);
            touched.extend([old, new]);
        }
        self.allowed(touched)
    }

    fn allowed(&self, paths: impl IntoIterator<Item = PathBuf>) -> Vec<(PathBuf, Allowed)> {
        paths.into_iter().map(|path| (path.clone(), self.slow_may_show(&path))).collect()
    }

    /// A new file has no name on the slow tier before its first content is ordered.
    fn slow_may_show(&self, path: &Path) -> Allowed {
        match self.names.get(path) {
            None => vec![None],
            Some(Node::Dir) => vec![Some(Shown::Dir)],
            Some(Node::Link(target)) => vec![Some(Shown::Link(target.clone()))],
            Some(Node::File(id)) => {
                let file = &self.files[id];
                let mut allowed = vec![file.ordered.clone()];
                allowed.extend(file.perhaps.clone().map(Some));
                allowed
            }
        }
    }

    /// The call did not take effect in the view, but what orders the file's content may have come before that.
    fn may_have_ordered(&mut self, op: &Op) -> Vec<(PathBuf, Allowed)> {
        let (Op::Fsync(path) | Op::Close(path) | Op::Rename(path, _) | Op::Link(path, _)) = op else {
            return Vec::new();
        };
        let Some(Node::File(_)) = self.names.get(path) else { return Vec::new() };
        let file = self.file(path);
        file.perhaps = Some(Shown::file(&file.bytes));
        self.allowed([path.clone()])
    }

    /// A write that was cut off may have left any number of its first bytes.
    fn as_far_as(&self, op: &Op, seen: &Tree) -> Op {
        let Op::Write { path, offset, bytes } = op else { return op.clone() };
        let Some(Seen { shown, .. }) = seen.get(path) else { return op.clone() };
        let partial = |len| Op::Write { path: path.clone(), offset: *offset, bytes: bytes[..len].to_vec() };
        let fits = |len: &usize| {
            let mut state = self.clone();
            state.apply(&partial(*len));
            Shown::file(&state.file(path).bytes) == *shown
        };
        // A cut-off write ends at a page of the file, or in its middle where a fault says so; a shorter one that extends the
        // file shows in its size.
        let by_size = shown.len().checked_sub(*offset);
        let pages = (1..=bytes.len()).filter(|len| (offset + len).is_multiple_of(4096));
        by_size
            .into_iter()
            .filter(|len| *len <= bytes.len())
            .chain(pages)
            .chain([bytes.len() / 2])
            .find(fits)
            .map_or_else(|| op.clone(), partial)
    }

    /// The first difference between what was acknowledged and what is seen.
    fn differs(&self, seen: &Tree) -> Option<String> {
        let mine: BTreeMap<&Path, Seen> =
            self.names.iter().map(|(path, node)| (path.as_path(), self.seen(node))).collect();
        for (path, wanted) in &mine {
            match seen.get(*path) {
                None => return Some(format!("{} is missing, should be {wanted:?}", path.display())),
                Some(found) if !found.same_to_applications(wanted) => {
                    return Some(format!("{} is {found:?}, should be {wanted:?}", path.display()));
                }
                Some(_) => {}
            }
        }
        let extra = seen.keys().find(|path| !mine.contains_key(path.as_path()))?;
        Some(format!("{} should not be there", extra.display()))
    }

    fn seen(&self, node: &Node) -> Seen {
        match node {
            Node::Dir => Seen::noted(Shown::Dir, 0, None),
            Node::Link(target) => Seen::noted(Shown::Link(target.clone()), 0, None),
            Node::File(id) => {
                let file = &self.files[id];
                Seen::noted(Shown::file(&file.bytes), file.mode, file.tag.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        PathBuf::from(name)
    }

    fn ledger(ops: &[Op]) -> Ledger {
        let mut ledger = Ledger::default();
        for (time, op) in ops.iter().enumerate() {
            ledger.begin(op.clone(), 2 * time as u64);
            ledger.acknowledge(2 * time as u64 + 1);
        }
        ledger
    }

    fn tree(names: &[(&str, Shown)]) -> Tree {
        names.iter().map(|(name, shown)| (path(name), Seen::noted(shown.clone(), 0o600, None))).collect()
    }

    fn write(name: &str, offset: usize, bytes: &[u8]) -> Op {
        Op::Write { path: path(name), offset, bytes: bytes.to_vec() }
    }

    fn saved(name: &str, bytes: &[u8]) -> Vec<Op> {
        vec![Op::Create(path(name)), write(name, 0, bytes), Op::Close(path(name))]
    }

    #[test]
    fn the_slow_tier_may_be_at_any_change_but_not_between() {
        let mut ops = saved("tmp", b"one");
        ops.extend([Op::Rename(path("tmp"), path("last")), Op::Mkdir(path("d"))]);
        let ledger = ledger(&ops);
        let one = Shown::file(b"one");
        let at = |names: &[_]| positions(ledger.changes(), &tree(names));
        assert_eq!(at(&[]), [0]);
        assert_eq!(at(&[("tmp", one.clone())]), [1]);
        assert_eq!(at(&[("last", one.clone())]), [2]);
        assert_eq!(at(&[("last", one.clone()), ("d", Shown::Dir)]), [3]);
        assert_eq!(at(&[("tmp", one.clone()), ("d", Shown::Dir)]), [0; 0], "a later change without an earlier one");
        assert_eq!(at(&[("tmp", one.clone()), ("last", one)]), [0; 0], "half a rename");
        assert_eq!(at(&[("tmp", Shown::file(b"on"))]), [0; 0], "a torn file");
    }

    #[test]
    fn an_overwritten_file_keeps_its_old_content_until_the_close() {
        let mut ops = saved("f", b"old");
        ops.extend([Op::Truncate(path("f")), write("f", 0, b"newer")]);
        let mut ledger = ledger(&ops);
        let slow = |bytes| tree(&[("f", Shown::file(bytes))]);
        assert_eq!(positions(ledger.changes(), &slow(b"old")), [1]);
        assert!(positions(ledger.changes(), &slow(b"newer")).is_empty());
        ledger.begin(Op::Close(path("f")), 90);
        assert_eq!(positions(&ledger.with_in_flight(), &slow(b"newer")), [2], "published before the close returned");
        assert!(ledger.settle(&slow(b"newer")).is_ok());
        assert_eq!(positions(ledger.changes(), &slow(b"old")), [1, 2], "killed before the close had its place");
        assert_eq!(positions(ledger.changes(), &slow(b"newer")), [2]);
        assert_eq!(ledger.unfinished(), [path("f")]);
    }

    #[test]
    fn a_call_in_flight_may_have_happened_or_not_and_nothing_else_may() {
        let before = saved("a", b"x");
        for (seen, fine) in [("a", true), ("b", true), ("c", false)] {
            let mut ledger = ledger(&before);
            ledger.begin(Op::Rename(path("a"), path("b")), 90);
            assert_eq!(ledger.settle(&tree(&[(seen, Shown::file(b"x"))])).is_ok(), fine, "{seen}");
        }
        let mut lost = ledger(&before);
        assert!(lost.settle(&tree(&[])).is_err_and(|why| why.contains("a is missing")));
    }

    #[test]
    fn a_write_in_flight_may_be_cut_anywhere_and_an_acknowledged_one_nowhere() {
        let ops = [Op::Create(path("f")), write("f", 0, b"first")];
        for (bytes, fine) in [(b"first".as_slice(), true), (b"firstsec", true), (b"firstsecond", true), (b"fir", false)]
        {
            let mut ledger = ledger(&ops);
            ledger.begin(write("f", 5, b"second"), 90);
            assert_eq!(ledger.settle(&tree(&[("f", Shown::file(bytes))])).is_ok(), fine, "{bytes:?}");
        }
    }
}
